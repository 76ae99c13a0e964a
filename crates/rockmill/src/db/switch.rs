//! Making room: full memtables become immutable, WALs begin, writers wait or are slowed. Only the write leader is
//! here, so nobody writes meanwhile.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rockmill_io::WriteOptions as FileWriteOptions;

use super::wal::WalWriter;
use super::{DbInner, ImmTable};
use crate::error::{Error, ErrorKind, Result};
use crate::event_listener::BackgroundErrorReason;
use crate::memtable::MemTable;
use crate::options::WriteOptions;

/// How long a stopped writer waits before it looks again by itself.
const STOP_WAIT: Duration = Duration::from_millis(100);

impl DbInner {
    /// Reports a background error, switches full memtables, waits while writers are stopped, sleeps off delay.
    pub fn make_room(&self, options: &WriteOptions, bytes: u64) -> Result<()> {
        loop {
            self.attention.store(false, Ordering::Release);
            let (full, stop) = {
                let state = self.state.lock();
                if let Some(e) = &state.background_error {
                    self.attention.store(true, Ordering::Release);
                    return Err(e.clone());
                }
                if self.shutdown.load(Ordering::Acquire) && self.stop_reason(&state).is_some() {
                    return Err(Error::new(ErrorKind::ShutdownInProgress, "the database is being closed"));
                }
                (self.full_memtables(&state), self.stop_reason(&state))
            };
            if let Some(reason) = stop {
                self.attention.store(true, Ordering::Release);
                if options.no_slowdown {
                    return Err(Error::new(ErrorKind::Incomplete, format!("write stall: too many {}", reason.name())));
                }
                let before = self.opts.clock.monotonic_nanos();
                {
                    let mut state = self.state.lock();
                    if self.stop_reason(&state).is_some() && state.background_error.is_none() {
                        self.work.notify_all();
                        self.progress.wait_for(&mut state, STOP_WAIT);
                    }
                }
                let waited = self.opts.clock.monotonic_nanos().saturating_sub(before) / 1000;
                self.controller.stopped_micros.fetch_add(waited, Ordering::Relaxed);
                continue;
            }
            if full.is_empty() {
                break;
            }
            for id in full {
                self.switch_memtable(id)?;
            }
        }
        if self.controller.is_delaying() {
            if options.no_slowdown {
                let reason = self.controller.reason().name();
                return Err(Error::new(ErrorKind::Incomplete, format!("write stall: too many {reason}")));
            }
            self.controller.delay(bytes, &*self.opts.clock);
        }
        Ok(())
    }

    /// Column families whose memtable is full, or holds back WALs that have grown too large together.
    fn full_memtables(&self, state: &super::State) -> Vec<u32> {
        let mut full: Vec<u32> = state
            .cfs
            .iter()
            .filter(|(_, c)| !c.mem.is_empty() && c.mem.memory_usage() >= c.cf.options.load().write_buffer_size)
            .map(|(&id, _)| id)
            .collect();
        if state.cfs.len() > 1 {
            let limit = match self.live().max_total_wal_size {
                0 => state
                    .cfs
                    .values()
                    .map(|c| {
                        c.cf.options.load().write_buffer_size as u64
                            * c.cf.options.load().max_write_buffer_number.max(1) as u64
                    })
                    .sum::<u64>()
                    .saturating_mul(4),
                n => n,
            };
            let closed: u64 = state.wals.iter().map(|w| w.1).sum();
            let total = closed + self.wal.lock().current.as_ref().map_or(0, WalWriter::size);
            if total > limit
                && let Some(oldest) = state.cfs.values().filter_map(super::CfState::oldest_wal).min()
            {
                for (&id, c) in &state.cfs {
                    if !c.mem.is_empty() && c.mem_wal <= oldest && !full.contains(&id) {
                        full.push(id);
                    }
                }
            }
        }
        full
    }

    /// Makes a column family's memtable immutable and begins a new one, and a new WAL if the present one is not empty.
    pub fn switch_memtable(&self, id: u32) -> Result<()> {
        let wal_number = self.begin_wal()?;
        let mut state = self.state.lock();
        // Memtables without data follow the new WAL: they hold back no older one.
        for c in state.cfs.values_mut() {
            if c.mem.is_empty() && c.imm.is_empty() {
                c.mem_wal = wal_number;
                c.log_number = c.log_number.max(wal_number);
            }
        }
        if let Some(c) = state.cfs.get_mut(&id)
            && !c.mem.is_empty()
        {
            c.next_mem_id += 1;
            let fresh =
                Arc::new(MemTable::new(c.next_mem_id, c.cf.cmp.clone(), arena_block_size(&c.cf.options.load())));
            let full = std::mem::replace(&mut c.mem, fresh);
            self.memtable_sealed(&c.cf, &full);
            c.imm.push_back(ImmTable { mem: full, wal: c.mem_wal });
            c.mem_wal = wal_number;
            c.publish();
        }
        self.update_pressure(&state);
        drop(state);
        self.work.notify_all();
        Ok(())
    }

    /// Begins a new WAL unless the present one is empty; gives the number of the one in use afterwards.
    pub fn begin_wal(&self) -> Result<u64> {
        let mut wal = self.wal.lock();
        if let Some(current) = &wal.current
            && current.size() == 0
        {
            return Ok(current.number);
        }
        let number = self.new_file_number();
        let recycle = wal.recycle.pop();
        let created = self.create_wal(number, recycle);
        let mut fresh = match created {
            Ok(w) => w,
            Err(e) => {
                drop(wal);
                self.set_background_error(BackgroundErrorReason::WriteCallback, "the creation of a WAL", &e);
                return Err(e);
            }
        };
        if let Some(before) = &wal.current {
            fresh.follow(before);
        }
        let left = wal.current.replace(fresh);
        let mut size = 0;
        if let Some(old) = left {
            size = old.size();
            wal.older.push(old);
        }
        drop(wal);
        let mut state = self.state.lock();
        if let Some(last) = state.wals.back_mut() {
            last.1 = size;
        }
        state.wals.push_back((number, 0));
        Ok(number)
    }

    pub fn create_wal(&self, number: u64, recycle: Option<u64>) -> Result<WalWriter> {
        let options =
            FileWriteOptions { bytes_per_sync: self.live().wal_bytes_per_sync, ..FileWriteOptions::default() };
        let recyclable = self.opts.recycle_log_file_num > 0;
        WalWriter::create(&self.opts.fs, &self.path, number, options, recycle, recyclable)
    }
}

/// RocksDB's choice: an eighth of the memtable, at most 1 MiB.
pub(crate) fn arena_block_size(options: &crate::options::CfOptions) -> usize {
    match options.arena_block_size {
        0 => (options.write_buffer_size / 8).clamp(4096, 1 << 20),
        n => n,
    }
}
