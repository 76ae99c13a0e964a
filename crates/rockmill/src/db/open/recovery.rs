//! WAL recovery: what was acknowledged and is in no table comes back into memtables.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rockmill_format::batch::{self, BatchRep};
use rockmill_format::filename::{self, FileType};
use rockmill_format::log::{DamageKind, LogEvent, LogReader, ReadBlock, RecoveryAction, RecoveryMode};
use rockmill_format::{FormatError, SequenceNumber};
use rockmill_io::{FileSystem, WriteOptions};

use crate::compaction::flush;
use crate::compaction_filter::TableFileCreationReason;
use crate::db::catalog::install::add_files;
use crate::db::write::group::parts;
use crate::db::write::switch::new_memtable;
use crate::db::write::wal::Follows;
use crate::db::{CfState, DbInner};
use crate::error::{Error, Result};
use crate::sync::atomic::Ordering;
use crate::version::{LogSource, VersionBuilder};

/// Numbers of the WALs in the directory, ascending.
pub(crate) fn wal_numbers(names: &[String]) -> Vec<u64> {
    let mut logs: Vec<u64> = names
        .iter()
        .filter_map(|n| match filename::parse(n) {
            Some(FileType::Wal(n)) => Some(n),
            _ => None,
        })
        .collect();
    logs.sort_unstable();
    logs
}

/// What replaying the WALs has come to.
struct Replay {
    /// Sequence number after the last record replayed; before there is one, after the last that the MANIFEST counted.
    next: SequenceNumber,
    /// A WAL ended in a hole (point-in-time recovery): later ones count only if they go on exactly there.
    hole: Option<u64>,
    /// The hole may be none: behind the end of a whole recycled WAL stand bytes of its earlier use, which look like an
    /// old record, or like damage where the end fell inside one.
    hole_is_doubtful: bool,
    /// A recycled WAL ended where it may have been damaged; for modes that count on it that nothing is missing.
    doubtful_end: Option<u64>,
    /// Something was replayed.
    any: bool,
    /// The WAL of the last record replayed; files without a record count for nothing.
    last_wal: u64,
    /// WALs below this hold nothing that is not in tables, and may be gone.
    oldest: u64,
    /// Something was damaged or missing, or a memtable was written as a table: what the WALs hold and what the
    /// memtables hold is not the same.
    irregular: bool,
    /// Bytes of records since memtables were last looked at for whether they are full.
    unchecked: usize,
}

/// Memtables are looked at for whether they are full after so many bytes of records, not after each, and smaller ones
/// are not: a table then has as much, whatever the options say. RocksDB's least `write_buffer_size`.
pub(crate) const CHECK_EVERY: usize = 64 << 10;

/// WALs that stay in use after a recovery.
pub(crate) struct KeptWals {
    /// Number and length, oldest first.
    pub wals: Vec<(u64, u64)>,
    /// Where the last of them ends.
    pub follows: Follows,
}

impl DbInner {
    /// Replays every WAL that may hold data which is in no table. With `flush_full`, memtables that fill up are
    /// written as tables (not yet in a MANIFEST: the caller writes a new one with the whole state).
    ///
    /// With `avoid_flush_during_recovery`, gives the WALs whose data is to stay in memtables, where that can be: no
    /// memtable was full and no WAL was damaged.
    pub(crate) fn recover_wals(self: &Arc<Self>, logs: &[u64], flush_full: bool) -> Result<Option<KeptWals>> {
        let (kept, oldest) = {
            let state = self.state.lock();
            let by_families = state.cfs.values().map(|c| c.log_number).min().unwrap_or(0);
            // A WAL below that the directory still has may have lost its unsynced end: it says nothing about others.
            (state.wal_bound, by_families.max(state.wal_bound))
        };
        logs.iter().filter(|&&n| n >= kept && n < oldest).try_for_each(|&n| self.refuse_transactions(n))?;
        let mut replay = Replay {
            next: self.last_sequence() + 1,
            hole: None,
            hole_is_doubtful: false,
            doubtful_end: None,
            any: false,
            last_wal: 0,
            oldest,
            irregular: false,
            unchecked: 0,
        };
        for &number in logs.iter().filter(|&&n| n >= oldest) {
            self.numbers.pass(number);
            self.replay_wal(number, &mut replay, flush_full)?;
        }
        if let Some(at) = replay.hole {
            self.check_tables_not_ahead(at, &replay)?;
        }
        if replay.any {
            self.last_sequence.fetch_max(replay.next - 1, Ordering::AcqRel);
        }
        if !flush_full || !self.opts.avoid_flush_during_recovery || replay.irregular || !replay.any {
            return Ok(None);
        }
        self.keep_wals(logs, Follows { wal: replay.last_wal, end: replay.next }).map(Some)
    }

    /// The WALs that memtables were recovered from, made durable: the process that wrote them may not have done so, and
    /// what is written and synced from now on must be preceded by what they hold.
    ///
    /// They are written anew for that, with the same bytes. That process may have seen a sync fail: the kernel then has
    /// the contents, which were just read, and takes them for written; another sync would succeed and do nothing.
    fn keep_wals(&self, logs: &[u64], follows: Follows) -> Result<KeptWals> {
        let state = self.state.lock();
        let oldest = state.cfs.values().filter_map(CfState::oldest_wal).min();
        drop(state);
        let mut wals = Vec::new();
        for &number in logs.iter().filter(|&&n| oldest.is_some_and(|o| n >= o)) {
            let path = self.wal_path(number);
            let size = write_anew(&*self.opts.fs, &path);
            wals.push((number, size.map_err(|e| Error::io(format_args!("cannot keep WAL {}", path.display()), &e))?));
        }
        Ok(KeptWals { wals, follows })
    }

    /// Refuses a WAL that the MANIFEST keeps although all its updates are in tables, if it has a transaction that was
    /// prepared: opening would remove that WAL, and the transaction with it.
    fn refuse_transactions(&self, number: u64) -> Result<()> {
        let path = self.wal_path(number);
        let failed = |e| Error::io(format_args!("cannot read WAL {}", path.display()), &e);
        let mut reader = LogReader::new(LogSource::new(self.opts.fs.open_sequential(&path).map_err(failed)?), number);
        let mut record = Vec::new();
        // Behind damage there is nothing that RocksDB would find, either.
        while let LogEvent::Record { .. } = reader.next_record(&mut record).map_err(failed)? {
            let Ok((_, records)) = batch::decode(&record) else { continue };
            for e in records.filter_map(std::result::Result::err) {
                if matches!(&e, FormatError::Unsupported { feature } if feature == batch::TWO_PHASE_COMMIT) {
                    let hint = "commit or roll back the transactions that were prepared with RocksDB, and close it";
                    return Err(Error::format(&path, &e).context(hint));
                }
            }
        }
        Ok(())
    }

    fn replay_wal(self: &Arc<Self>, number: u64, replay: &mut Replay, flush_full: bool) -> Result<()> {
        let path = self.wal_path(number);
        let mode = self.opts.wal_recovery_mode;
        let file = self
            .opts
            .fs
            .open_sequential(&path)
            .map_err(|e| Error::io(format_args!("cannot open WAL {}", path.display()), &e))?;
        let mut reader = LogReader::new(LogSource::new(file), number);
        let mut record = Vec::new();
        let mut first = true;
        loop {
            let event = reader
                .next_record(&mut record)
                .map_err(|e| Error::io(format_args!("cannot read WAL {}", path.display()), &e))?;
            let mut action = mode.action(&event);
            let mut failure = match &event {
                LogEvent::Damage { error, .. } => Some(error.clone()),
                _ => None,
            };
            replay.irregular |= failure.is_some();
            if failure.is_some() && flush_full {
                // What is lost here is gone: the WAL goes with it. (A reader beside a writer may see it change.)
                reader.source_mut().check_again(&*self.opts.fs, &path)?;
            }
            if let LogEvent::Damage { kind, error, .. } = &event
                && (matches!(kind, DamageKind::OldRecord { .. } | DamageKind::BadFragment { recycled: true })
                    || (*kind == DamageKind::CutTail && reader.is_recycled()))
                && matches!(mode, RecoveryMode::TolerateCorruptedTailRecords | RecoveryMode::AbsoluteConsistency)
            {
                // Written under another mode, or by RocksDB: what looks damaged is most often the end.
                let torn = reader.damage_is_ours();
                let goes_on = reader.goes_on_after_damage();
                if goes_on.map_err(|e| Error::io(format_args!("cannot read WAL {}", path.display()), &e))? {
                    let what = format!("{error}; whole records of this WAL stand behind it");
                    failure = Some(FormatError::corruption(what, 0));
                    action = RecoveryAction::Fail;
                } else if torn && mode == RecoveryMode::AbsoluteConsistency {
                    action = RecoveryAction::Fail;
                } else {
                    action = RecoveryAction::Stop { hole: false };
                    replay.doubtful_end = Some(number);
                }
            }
            if action == RecoveryAction::Replay {
                match self.replay_record(number, &mut record, &mut first, replay) {
                    Ok(Applied::Yes) => {}
                    // This WAL does not follow on from where the hole is: all of it is after the point in time.
                    Ok(Applied::BehindHole) => return Ok(()),
                    Err(e) => {
                        replay.irregular = true;
                        action = mode.action_on_error(&e);
                        failure = Some(e);
                    }
                }
            }
            match action {
                RecoveryAction::Replay | RecoveryAction::Skip => {}
                RecoveryAction::Stop { hole } => {
                    if hole {
                        replay.hole = Some(number);
                        replay.hole_is_doubtful = reader.is_recycled() && replay.last_wal == number;
                    }
                    return Ok(());
                }
                RecoveryAction::Fail => {
                    let e = failure.unwrap_or_else(|| FormatError::corruption("damaged record", 0));
                    return Err(Error::format(&path, &e).context(format_args!("WAL recovery ({mode:?})")));
                }
            }
            replay.unchecked += record.len();
            if flush_full && replay.unchecked >= CHECK_EVERY {
                replay.unchecked = 0;
                replay.irregular |= self.flush_full_memtables()?;
            }
        }
    }

    fn replay_record(
        self: &Arc<Self>,
        number: u64,
        record: &mut Vec<u8>,
        first: &mut bool,
        replay: &mut Replay,
    ) -> std::result::Result<Applied, FormatError> {
        let batch = BatchRep::from_bytes(std::mem::take(record))?;
        let sequence = batch.sequence();
        if *first {
            *first = false;
            // The WAL before this one lost its end between two records, or as a whole. What follows then is behind that
            // hole, whatever its sequence number: `next` may be the MANIFEST's count of what was in that WAL alone.
            if let Some(follows) = Follows::read(&batch)
                && follows.wal >= replay.oldest
                && (replay.last_wal != follows.wal || replay.next != follows.end)
            {
                replay.irregular = true;
                match self.opts.wal_recovery_mode {
                    RecoveryMode::PointInTime => {
                        if replay.hole.is_none() {
                            replay.hole = Some(follows.wal);
                            replay.hole_is_doubtful = false;
                        }
                        return Ok(Applied::BehindHole);
                    }
                    RecoveryMode::AbsoluteConsistency => {
                        return Err(FormatError::corruption(
                            format!("WAL {:06}.log, which this one follows, has lost its end", follows.wal),
                            0,
                        ));
                    }
                    // The end of the one before could not be told from damage in it. This is how it shows.
                    RecoveryMode::TolerateCorruptedTailRecords if replay.doubtful_end == Some(follows.wal) => {
                        return Err(FormatError::corruption(
                            format!(
                                "WAL {:06}.log, which this one follows, is damaged: it lacks records up to sequence \
                                 number {}",
                                follows.wal, follows.end
                            ),
                            0,
                        ));
                    }
                    // These two take what there is.
                    RecoveryMode::TolerateCorruptedTailRecords | RecoveryMode::SkipAnyCorruptedRecords => {}
                }
            }
            if replay.hole.is_some() {
                if !replay.any || sequence != replay.next {
                    return Ok(Applied::BehindHole);
                }
                replay.hole = None;
            }
        }
        // The whole batch is checked before any of it is applied: batches are all or nothing.
        for r in batch.iter() {
            r?;
        }
        let mut seq = sequence;
        let mut state = self.state.lock();
        for r in batch.iter() {
            let Some((cf, t, key, value)) = parts(&r?) else { continue };
            // A column family that was dropped, or whose tables already have this WAL's data, passes it over.
            if let Some(c) = state.cfs.get_mut(&cf)
                && c.log_number <= number
            {
                if c.mem.is_empty() {
                    c.mem_wal = number;
                }
                c.mem.add(seq, t, key, value);
            }
            seq += 1;
        }
        drop(state);
        replay.next = seq;
        replay.any = true;
        replay.last_wal = number;
        *record = batch.into_bytes();
        Ok(Applied::Yes)
    }

    /// After point-in-time recovery stopped inside WAL `at`, a column family whose tables hold data from later WALs
    /// would be ahead of the others: the database would not be at one point in time (RocksDB's check).
    ///
    /// Where it is doubtful that there is a hole, tables must show it: by an update that is after the point in time.
    /// (Updates that were never in a WAL are behind a later one that says where this one ends.) RocksDB would refuse a
    /// database that lost nothing.
    fn check_tables_not_ahead(&self, at: u64, replay: &Replay) -> Result<()> {
        let state = self.state.lock();
        for c in state.cfs.values() {
            let mut files = c.version.levels.iter().flatten();
            let ahead = files.any(|f| !replay.hole_is_doubtful || f.entry.largest_seqno >= replay.next);
            if c.log_number > at && ahead {
                return Err(Error::corruption(format!(
                    "{}: the WAL {:06}.log is damaged and tables of column family {:?} are newer than it; the database \
                     cannot be brought to one point in time (another recovery mode may open it with a loss)",
                    self.path.display(),
                    at,
                    c.cf.name
                )));
            }
        }
        Ok(())
    }

    /// Writes memtables that are full as tables; true if there were any.
    fn flush_full_memtables(self: &Arc<Self>) -> Result<bool> {
        let full: Vec<u32> = {
            let state = self.state.lock();
            let pressed = self.write_buffers.as_ref().is_some_and(|m| m.should_flush());
            let full = |c: &CfState| {
                let size = c.mem.memory_usage();
                size >= CHECK_EVERY && (pressed || size >= c.cf.options.load().write_buffer_size)
            };
            state.cfs.iter().filter(|(_, c)| full(c)).map(|(&id, _)| id).collect()
        };
        full.iter().try_for_each(|&id| self.flush_recovered(id))?;
        Ok(!full.is_empty())
    }

    /// Writes a column family's recovered memtable as a table of L0, in memory only.
    pub(crate) fn flush_recovered(self: &Arc<Self>, id: u32) -> Result<()> {
        let (cf, mem, base, epoch) = {
            let mut state = self.state.lock();
            let Some(c) = state.cfs.get_mut(&id) else { return Ok(()) };
            if c.mem.is_empty() {
                return Ok(());
            }
            c.next_epoch += 1;
            c.next_mem_id += 1;
            let fresh = new_memtable(c.next_mem_id, &c.cf.cmp, &c.cf.options.load(), self.memory());
            let mem = std::mem::replace(&mut c.mem, fresh);
            (Arc::clone(&c.cf), mem, Arc::clone(&c.version), c.next_epoch)
        };
        if let Some((mut entry, _)) = {
            let (reason, family) = (TableFileCreationReason::Recovery, self.job_family(&cf));
            flush::build_l0(&[mem], &family, &self.job_context(&cf, &family, 0, reason), reason)?
        } {
            entry.epoch_number = epoch;
            let mut builder = VersionBuilder::new(base, Arc::clone(&self.purge));
            builder.apply(&add_files(0, [entry]))?;
            let version = Arc::new(builder.build()?);
            let mut state = self.state.lock();
            if let Some(c) = state.cfs.get_mut(&id) {
                c.version = version;
            }
        }
        Ok(())
    }
}

/// Overwrites a file with what it holds and syncs it; gives its length. Whatever of that a crash keeps, the bytes are
/// the same. Each is read twice before it is written: a bit that flipped on the way would stay.
fn write_anew(fs: &dyn FileSystem, path: &Path) -> io::Result<u64> {
    let mut first = LogSource::new(fs.open_sequential(path)?);
    let mut second = LogSource::new(fs.open_sequential(path)?);
    let mut to = fs.reuse(path, path, WriteOptions::default())?;
    let (mut buf, mut again) = (vec![0; 64 << 10], vec![0; 64 << 10]);
    loop {
        let n = first.read_block(&mut buf)?;
        if second.read_block(&mut again[..n])? != n || buf[..n] != again[..n] {
            return Err(io::Error::other("it reads differently the second time; nothing was changed"));
        }
        if n == 0 {
            break;
        }
        to.append(&buf[..n])?;
    }
    to.sync()?;
    to.close()?;
    Ok(to.len())
}

enum Applied {
    Yes,
    BehindHole,
}

/// The epoch number that the next flush of a column family takes: above every one in use.
pub(crate) fn largest_epoch(version: &crate::version::Version) -> u64 {
    // RocksDB reserves the topmost numbers for "unknown".
    let known = version.levels.iter().flatten().map(|f| f.entry.epoch_number).filter(|&e| e < u64::MAX - 1024);
    known.max().unwrap_or(0)
}
