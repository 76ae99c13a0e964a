//! Copies and reads files, with several threads, a rate limit, and a way to stop.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rockmill_format::checksum::crc32c_extend;
use rockmill_io::{FileSystem, WriteOptions};

use super::options::{BackupProgress, Callback};
use crate::error::{Error, ErrorKind, Result};
use crate::panics::guarded;
use crate::rate_limiter::{IoPriority, RateLimiter, RateLimiterMode};
use crate::statistics::{MaybeStatistics, Statistics, Ticker};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// The smallest buffer, even at a low rate.
const BUFFER_BYTES_MIN: u64 = 4096;

/// The shared state of all transfers of one operation.
pub(super) struct Transfer<'a> {
    stop: &'a AtomicBool,
    limiter: Option<Arc<RateLimiter>>,
    buffer_bytes: usize,
    callback: Option<Callback>,
    interval: u64,
    done: AtomicU64,
    total: AtomicU64,
    /// Counts bytes: the statistics of the backed-up database.
    pub statistics: Option<Arc<Statistics>>,
}

/// A file that was read to its end, or up to the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Contents {
    pub size: u64,
    pub crc: u32,
}

impl<'a> Transfer<'a> {
    pub fn new(
        stop: &'a AtomicBool,
        limiter: Option<Arc<RateLimiter>>,
        buffer_bytes: u64,
        callback: Option<&Callback>,
        interval: u64,
    ) -> Self {
        let burst = limiter.as_ref().map_or(u64::MAX, |l| l.single_burst_bytes().unsigned_abs());
        let buffer_bytes = buffer_bytes.min(burst.max(BUFFER_BYTES_MIN));
        Self {
            stop,
            limiter,
            buffer_bytes: usize::try_from(buffer_bytes).unwrap_or(usize::MAX).max(1),
            callback: callback.cloned(),
            interval,
            done: AtomicU64::new(0),
            total: AtomicU64::new(0),
            statistics: None,
        }
    }

    /// Adds to the total bytes to transfer.
    pub fn expect(&self, bytes: u64) {
        self.total.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn check_stop(&self) -> Result<()> {
        if self.stop.load(Ordering::Acquire) {
            return Err(stopped());
        }
        Ok(())
    }

    fn moved(&self, bytes: u64) {
        let before = self.done.fetch_add(bytes, Ordering::Relaxed);
        if let Some(callback) = &self.callback
            && before / self.interval != (before + bytes) / self.interval
        {
            let total = self.total.load(Ordering::Relaxed);
            callback(BackupProgress { bytes_done: before + bytes, bytes_total: total.max(before + bytes) });
        }
    }

    /// Waits until the rate limit allows this many bytes, if it applies to this kind of I/O.
    fn ask(&self, bytes: u64, limits: impl Fn(RateLimiterMode) -> bool) {
        if let Some(limiter) = self.limiter.as_ref().filter(|l| limits(l.mode())) {
            limiter.request_until(bytes, IoPriority::Low, &|| self.stop.load(Ordering::Acquire));
        }
    }

    /// Reads the first `limit` bytes (without a limit, all) and passes them on.
    fn read(
        &self,
        fs: &dyn FileSystem,
        path: &Path,
        limit: Option<u64>,
        mut take: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<Contents> {
        let failed = |e: io::Error| Error::io(format_args!("cannot read {}", path.display()), &e);
        let mut file = fs.open_sequential(path).map_err(failed)?;
        let mut buffer =
            vec![0; self.buffer_bytes.min(usize::try_from(limit.unwrap_or(u64::MAX)).unwrap_or(usize::MAX))];
        let mut contents = Contents { size: 0, crc: 0 };
        loop {
            self.check_stop()?;
            let left = limit.map_or(u64::MAX, |l| l - contents.size);
            if left == 0 {
                return Ok(contents);
            }
            let want = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let n = file.read(&mut buffer[..want]).map_err(failed)?;
            if n == 0 {
                return match limit {
                    None => Ok(contents),
                    Some(limit) => Err(Error::corruption(format!(
                        "{}: has {} bytes where {limit} are expected",
                        path.display(),
                        contents.size
                    ))),
                };
            }
            self.ask(n as u64, RateLimiterMode::limits_reads);
            contents.crc = crc32c_extend(contents.crc, &buffer[..n]);
            contents.size += n as u64;
            self.statistics.add(Ticker::BackupReadBytes, n as u64);
            take(&buffer[..n]).map_err(|e| Error::io(format_args!("cannot copy {}", path.display()), &e))?;
            self.moved(n as u64);
        }
    }

    /// Size and checksum of a file.
    pub fn checksum(&self, fs: &dyn FileSystem, path: &Path) -> Result<Contents> {
        self.read(fs, path, None, |_| Ok(()))
    }

    /// Copies the first `limit` bytes of a file (all, without a limit); with `sync`, makes the contents durable.
    pub fn copy(
        &self,
        from: (&dyn FileSystem, &Path),
        to: (&dyn FileSystem, &Path),
        limit: Option<u64>,
        sync: bool,
    ) -> Result<Contents> {
        let path = to.1;
        let failed = |e: io::Error| Error::io(format_args!("cannot write {}", path.display()), &e);
        let like = from.0.like(from.1).map_err(failed)?;
        let mut target = to.0.create(path, like).map_err(failed)?;
        let contents = self.read(from.0, from.1, limit, |bytes| {
            self.ask(bytes.len() as u64, RateLimiterMode::limits_writes);
            self.statistics.add(Ticker::BackupWriteBytes, bytes.len() as u64);
            target.append(bytes)
        })?;
        let ended = if sync { target.sync() } else { Ok(()) };
        ended.and_then(|()| target.close()).map_err(failed)?;
        Ok(contents)
    }

    /// Writes a small file.
    pub fn write(&self, fs: &dyn FileSystem, path: &Path, bytes: &[u8], sync: bool) -> Result<Contents> {
        self.check_stop()?;
        let written = fs.create(path, WriteOptions::default()).and_then(|mut f| {
            f.append(bytes)?;
            if sync {
                f.sync()?;
            }
            f.close()
        });
        written.map_err(|e| Error::io(format_args!("cannot write {}", path.display()), &e))?;
        self.statistics.add(Ticker::BackupWriteBytes, bytes.len() as u64);
        self.moved(bytes.len() as u64);
        Ok(Contents { size: bytes.len() as u64, crc: crc32c_extend(0, bytes) })
    }
}

fn stopped() -> Error {
    Error::new(ErrorKind::Incomplete, "the backup engine was told to stop (stop_backup)")
}

/// Does every job, on this many threads. Returns the results in the jobs' order, or the first error, after which no
/// further job is begun.
pub(super) fn in_parallel<T: Sync, R: Send>(
    threads: usize,
    jobs: &[T],
    run: impl Fn(&T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let next = AtomicUsize::new(0);
    let failed: Mutex<Option<Error>> = Mutex::new(None);
    let done: Mutex<Vec<(usize, R)>> = Mutex::new(Vec::with_capacity(jobs.len()));
    let work = || {
        while failed.lock().is_none() {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(job) = jobs.get(at) else { break };
            // A progress callback is the caller's code: if it panics, the operation fails.
            match guarded("it", || run(job)) {
                Ok(result) => done.lock().push((at, result)),
                Err(e) => {
                    failed.lock().get_or_insert(e);
                }
            }
        }
    };
    crate::sync::thread::scope(|scope| {
        for i in 1..threads.min(jobs.len()) {
            // If no thread can be started, this thread does all of it.
            let _ = crate::sync::thread::Builder::new().name(format!("rockmill:backup{i}")).spawn_scoped(scope, work);
        }
        work();
    });
    if let Some(e) = failed.into_inner() {
        return Err(e);
    }
    let mut done = done.into_inner();
    done.sort_unstable_by_key(|(at, _)| *at);
    Ok(done.into_iter().map(|(_, r)| r).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rockmill_io::{Clock, ManualClock, MemFileSystem};

    #[test]
    fn a_limited_copy_takes_as_long_as_the_limit_says() {
        let fs = MemFileSystem::new();
        fs.write_all(Path::new("/a"), &vec![7; 1_000_000]).unwrap();
        let clock = ManualClock::new(0);
        let mode = RateLimiterMode::KReadsOnly;
        let limiter = RateLimiter::with_clock(100_000, 100_000, 10, mode, false, Arc::new(clock.clone()));
        let stop = AtomicBool::new(false);
        let transfer = Transfer::new(&stop, Some(limiter), 5 << 20, None, 1);
        let copied = transfer.copy((&fs, Path::new("/a")), (&fs, Path::new("/b")), None, true).unwrap();
        assert_eq!(copied.size, 1_000_000);
        assert!((98..=102).contains(&(clock.monotonic_nanos() / 100_000_000)), "10 s, not {clock:?}");
        assert_eq!(transfer.checksum(&fs, Path::new("/b")).unwrap(), copied);
        let e = transfer.copy((&fs, Path::new("/a")), (&fs, Path::new("/c")), Some(1_000_001), true).unwrap_err();
        assert!(e.to_string().contains("/a: has 1000000 bytes where 1000001"), "{e}");
        stop.store(true, Ordering::Release);
        assert_eq!(transfer.checksum(&fs, Path::new("/b")).unwrap_err().kind(), ErrorKind::Incomplete);
    }

    #[test]
    fn jobs_run_once_each_in_order_and_a_panic_is_an_error() {
        for threads in [1, 3, 50] {
            let jobs: Vec<u64> = (0..40).collect();
            assert_eq!(in_parallel(threads, &jobs, |n| Ok(n * 2)).unwrap(), (0..40).map(|n| n * 2).collect::<Vec<_>>());
            let e = in_parallel(threads, &jobs, |n| if *n == 20 { panic!("no") } else { Ok(()) }).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Aborted, "{e}");
        }
    }
}
