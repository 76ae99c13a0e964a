//! A table file that a job writes, with gates before it: each gate is asked before the device gets its next bytes. With
//! statistics, writes and syncs are timed, including waits at the gates.

use std::fmt::Debug;
use std::io;
use std::sync::Arc;

use rockmill_io::{Ahead, WritableFile};

use super::flush_priority::{FlushPriority, STEP_BYTES};
use super::read_protection::{DeviceShare, PIECE_BYTES};
use crate::perf_context::now_nanos;
use crate::rate_limiter::Limit;
use crate::statistics::{Histogram, Statistics};
use crate::sync::atomic::AtomicBool;

/// What a write may have to wait for.
#[derive(Debug, Clone)]
pub(crate) enum Gate {
    /// Users' reads.
    DeviceShare(Arc<DeviceShare>),
    /// A flush that goes first. The flag ends a wait: the database closes.
    FlushPriority(Arc<FlushPriority>, Arc<AtomicBool>),
}

impl Gate {
    /// It is asked after every this many bytes, but only once for each append, however long.
    fn piece(&self) -> usize {
        match self {
            Self::DeviceShare(_) => PIECE_BYTES,
            Self::FlushPriority(..) => STEP_BYTES,
        }
    }

    /// Waits until so many bytes may be read or written.
    pub fn pass(&self, bytes: usize) {
        match self {
            Self::DeviceShare(job) => job.pass(bytes as u64),
            Self::FlushPriority(priority, stop) => priority.pass(stop),
        }
    }
}

#[derive(Debug)]
struct GateState {
    gate: Gate,
    piece: usize,
    /// Bytes written since it was last asked.
    uncharged: usize,
}

/// Where the times of a file's calls are recorded.
#[derive(Debug)]
pub(crate) struct Measures {
    pub statistics: Arc<Statistics>,
    /// What a write counts as, besides `SstWriteMicros`.
    pub write: Histogram,
    /// What a sync counts as.
    pub sync: Histogram,
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct JobFile {
    inner: Box<dyn WritableFile>,
    gates: Vec<GateState>,
    /// The rate limiter, and for how many bytes it is asked at once: all that is written, the last bytes before a
    /// flush, a sync or a close.
    limit: Option<(Limit, usize)>,
    /// Bytes not yet requested from the limiter; fewer than one request.
    uncharged: usize,
    measures: Option<Measures>,
    /// When a sync was begun that is not over.
    syncing: Option<u64>,
}

impl JobFile {
    /// `inner` with these gates, which are asked in this order, and with the limiter.
    pub fn new(
        inner: Box<dyn WritableFile>,
        gates: impl IntoIterator<Item = Gate>,
        limit: Option<(Limit, usize)>,
        measures: Option<Measures>,
    ) -> Self {
        let gates = gates.into_iter().map(|gate| GateState { piece: gate.piece(), gate, uncharged: 0 });
        Self { inner, gates: gates.collect(), limit, uncharged: 0, measures, syncing: None }
    }

    /// Requests the remaining bytes from the rate limiter.
    fn charge_rest(&mut self) {
        if let Some((limit, _)) = self.limit.as_ref().filter(|_| self.uncharged > 0) {
            limit.request(self.uncharged as u64);
            self.uncharged = 0;
        }
    }

    fn pass_gates_and_append(&mut self, mut data: &[u8]) -> io::Result<()> {
        for state in &mut self.gates {
            state.uncharged += data.len();
            if state.uncharged >= state.piece {
                state.gate.pass(state.uncharged);
                state.uncharged = 0;
            }
        }
        let Some((limit, chunk)) = &self.limit else { return self.inner.append(data) };
        while !data.is_empty() {
            let (now, later) = data.split_at(data.len().min(chunk - self.uncharged));
            self.uncharged += now.len();
            if self.uncharged == *chunk {
                limit.request(*chunk as u64);
                self.uncharged = 0;
            }
            self.inner.append(now)?;
            data = later;
        }
        Ok(())
    }

    /// A call that may write: its time is recorded only if it did.
    fn write<T>(&mut self, call: impl FnOnce(&mut Self) -> T) -> T {
        if self.measures.is_none() {
            return call(self);
        }
        let (before, writes) = (now_nanos(), self.inner.kernel_writes());
        let done = call(self);
        if let Some(measures) = self.measures.as_ref().filter(|_| self.inner.kernel_writes() != writes) {
            let micros = now_nanos().saturating_sub(before) / 1000;
            measures.statistics.record_time(Histogram::SstWriteMicros, micros);
            measures.statistics.record_time(measures.write, micros);
        }
        done
    }

    fn synced(&self, before: u64) {
        if let Some(measures) = &self.measures {
            measures.statistics.record_time(measures.sync, now_nanos().saturating_sub(before) / 1000);
        }
    }
}

impl WritableFile for JobFile {
    fn append(&mut self, data: &[u8]) -> io::Result<()> {
        self.write(|f| f.pass_gates_and_append(data))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.write(|f| {
            f.charge_rest();
            f.inner.flush()
        })
    }

    fn sync(&mut self) -> io::Result<()> {
        // So that the time of a sync is only that of a sync.
        if self.measures.is_some() && self.syncing.is_none() {
            self.flush()?;
        }
        self.charge_rest();
        let before = self.syncing.take().unwrap_or_else(now_nanos);
        let done = self.inner.sync();
        self.synced(before);
        done
    }

    fn begin_sync(&mut self) -> io::Result<bool> {
        let before = now_nanos();
        let done = self.write(|f| {
            f.charge_rest();
            f.inner.begin_sync()
        });
        match done {
            Ok(false) => self.syncing = Some(before),
            Ok(true) | Err(_) => self.synced(before),
        }
        done
    }

    fn poll_sync(&mut self) -> io::Result<bool> {
        let done = self.inner.poll_sync();
        if !matches!(done, Ok(false))
            && let Some(before) = self.syncing.take()
        {
            self.synced(before);
        }
        done
    }

    fn extend_ahead(&mut self, how: Ahead) {
        self.inner.extend_ahead(how);
    }

    fn close(&mut self) -> io::Result<()> {
        self.write(|f| {
            f.charge_rest();
            f.inner.close()
        })
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn write_backs(&self) -> u64 {
        self.inner.write_backs()
    }

    fn kernel_writes(&self) -> u64 {
        self.inner.kernel_writes()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rockmill_io::{FileSystem, ManualClock, MemFileSystem, WriteOptions};

    use super::*;
    use crate::rate_limiter::{IoPriority, RateLimiter, RateLimiterMode};

    #[test]
    fn each_gate_is_asked_for_pieces_of_its_own() {
        let clock = ManualClock::new(0);
        let limiter = RateLimiter::with_clock(1 << 30, 100_000, 10, RateLimiterMode::KAllIo, false, Arc::new(clock));
        let limit = Limit {
            limiter,
            priority: IoPriority::Low,
            writers_wait: Arc::default(),
            stop: Arc::default(),
            statistics: None,
        };
        let (way, stop) = (Arc::new(FlushPriority::default()), Arc::new(AtomicBool::new(true)));
        let fs = MemFileSystem::default();
        let inner = fs.create(Path::new("/f"), WriteOptions::default()).unwrap();
        let gate = Gate::FlushPriority(Arc::clone(&way), stop);
        let mut file = JobFile::new(inner, [gate], Some((limit.clone(), 10_000)), None);
        way.set(1.0);
        for _ in 0..5 * 256 {
            file.append(&[7; 4096]).unwrap();
        }
        assert_eq!(way.waits(), 5, "at every megabyte");
        let through = || limit.limiter.total_bytes_through(None);
        assert_eq!(through(), (5 << 20) / 10_000 * 10_000);
        file.begin_sync().unwrap();
        assert_eq!((through(), file.len()), (5 << 20, 5 << 20), "the rest before a sync");
        // A value that is longer than many pieces waits once.
        file.append(&vec![7; 10 << 20]).unwrap();
        assert_eq!(way.waits(), 6);
        file.close().unwrap();
        assert_eq!((through(), fs.file_size(Path::new("/f")).unwrap()), (15 << 20, 15 << 20));
    }
}
