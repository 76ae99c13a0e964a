//! Measures the device's limits in the same run as the figures that are compared with them: with direct I/O, through
//! the same I/O layer as the stores, with one request at a time and several at once (with as many threads), and with a
//! job's mix of concurrent reads and writes (through the ring).

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rockmill_io::aligned::AlignedBuf;
use rockmill_io::ring::{BatchKind, BatchLimits, ReadOptions, ReadPlan, Span};
use rockmill_io::{FileSystem, PosixFileSystem, RandomAccessFile, WritableFile, WriteOptions};
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::random::Mersenne64;

const LARGE_BYTES: usize = 1 << 20;
const SMALL_BYTES: usize = 4096;
/// How long random reads are measured, at each depth.
const RANDOM_READS_FOR: Duration = Duration::from_secs(1);
/// Large reads at once.
const LARGE_DEPTH: usize = 8;
/// Small reads at once.
const SMALL_DEPTH: usize = 32;

/// The device's limits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeviceLimits {
    /// 1 MiB writes in order into a preallocated file, and one sync: bytes per second.
    pub sequential_write: f64,
    /// 1 MiB reads in order: bytes per second.
    pub sequential_read: f64,
    /// The same, eight at once.
    pub sequential_read_deep: f64,
    /// Random 4 KiB reads: reads per second.
    pub random_reads: f64,
    /// The same, 32 at once.
    pub random_reads_deep: f64,
    /// False if the file system refused direct I/O, so that the page cache was used.
    pub direct: bool,
}

impl DeviceLimits {
    /// A readable line, in db_bench's form.
    pub fn to_text(self) -> String {
        let mb = |bytes: f64| bytes / f64::from(1 << 20);
        format!(
            "{:<12} : 1 MiB sequential write {:.0} MB/s, 1 MiB sequential read {:.0} MB/s ({:.0} MB/s eight at once), \
             4 KiB random read {:.0} reads/s ({:.1} us each; {:.0} reads/s 32 at once){}\n",
            "device",
            mb(self.sequential_write),
            mb(self.sequential_read),
            mb(self.sequential_read_deep),
            self.random_reads,
            1e6 / self.random_reads,
            self.random_reads_deep,
            if self.direct { "" } else { "; direct I/O refused, the page cache took part" },
        )
    }

    pub(crate) fn to_json(self) -> Value {
        json!({
            "sequential_write_bytes_per_second": self.sequential_write,
            "sequential_read_bytes_per_second": self.sequential_read,
            "sequential_read_8_at_once_bytes_per_second": self.sequential_read_deep,
            "random_4k_reads_per_second": self.random_reads,
            "random_4k_reads_32_at_once_per_second": self.random_reads_deep,
            "direct": self.direct,
        })
    }
}

/// Measures the device below `dir` with a temporary file of `file_bytes`.
pub fn probe(dir: &Path, file_bytes: u64, seed: u64) -> Result<DeviceLimits> {
    let fs = PosixFileSystem::default();
    fs.create_dir(dir, true).map_err(|e| Error::io(format_args!("cannot create {}", dir.display()), &e))?;
    let path = probe_path(dir);
    let done = probe_file(&fs, &path, file_bytes.max(LARGE_BYTES as u64) / LARGE_BYTES as u64, seed);
    let removed = fs.remove(&path);
    let limits = done.map_err(|e| Error::io("the measurement of the device failed", &e))?;
    removed.map_err(|e| Error::io(format_args!("cannot remove {}", path.display()), &e))?;
    Ok(limits)
}

/// A name in `dir` that no file has.
pub(crate) fn probe_path(dir: &Path) -> PathBuf {
    let name = |n: u32| dir.join(format!("rockmill-probe-{}-{n}.tmp", std::process::id()));
    (0..).map(name).find(|path| !path.exists()).unwrap_or_else(|| name(0))
}

fn probe_file(fs: &dyn FileSystem, path: &Path, blocks: u64, seed: u64) -> std::io::Result<DeviceLimits> {
    let file_bytes = blocks * LARGE_BYTES as u64;
    let mut buf = AlignedBuf::with_capacity(LARGE_BYTES);
    let mut random = Mersenne64::new(seed);
    // Random content: some devices and file systems are faster with zeros.
    for word in buf.chunks_exact_mut(8) {
        word.copy_from_slice(&random.next_u64().to_le_bytes());
    }
    let options =
        WriteOptions { direct: true, buffer_size: LARGE_BYTES, preallocate: file_bytes, ..WriteOptions::default() };
    let start = Instant::now();
    let mut out = fs.create(path, options)?;
    for _ in 0..blocks {
        out.append_and_flush(&buf)?;
    }
    out.sync()?;
    out.close()?;
    let sequential_write = file_bytes as f64 / start.elapsed().as_secs_f64();

    let file = fs.open_random(path, true)?;
    let sequential = |depth| large_reads(&*file, blocks, depth);
    let random_at = |depth| random_reads(&*file, file_bytes / SMALL_BYTES as u64, depth, seed);
    Ok(DeviceLimits {
        sequential_write,
        sequential_read: sequential(1)?,
        sequential_read_deep: sequential(LARGE_DEPTH)?,
        random_reads: random_at(1)?,
        random_reads_deep: random_at(SMALL_DEPTH)?,
        direct: file.is_direct(),
    })
}

/// The device's time for a job's bytes if only the device limits the job.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MixedLimit {
    /// From the first read to the end of the sync.
    pub seconds: f64,
    /// Bytes read.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
    /// Through a ring; false: with plain calls, one after another, without io_uring.
    pub ring: bool,
}

/// Reads in flight for each file: more of them than any job needs.
const MIXED_READS: usize = 8;
/// Writes in flight.
const MIXED_WRITES: usize = 8;
/// Operations in flight.
const MIXED_DEPTH: u32 = 256;
const MIXED_MEMORY: usize = 96 << 20;
/// The first bytes are copied into the output; the rest repeats them with a mark in each sector, so that no two sectors
/// are equal and copying is not part of the limit.
const COPIED_BYTES: u64 = 32 << 20;
const SECTOR_BYTES: usize = 512;

/// Reads all of `files` and meanwhile evenly writes `output_bytes` to `path`, with direct I/O and as much in flight as
/// the device can use: the best possible time of a job with these bytes. The output is removed again.
pub fn mixed(files: &[PathBuf], path: &Path, output_bytes: u64) -> Result<MixedLimit> {
    let fs = PosixFileSystem::default();
    let done = mixed_file(&fs, files, path, output_bytes);
    let removed = fs.remove(path);
    let limit = done.map_err(|e| Error::io("the measurement of the device's mixed limit failed", &e))?;
    removed.map_err(|e| Error::io(format_args!("cannot remove {}", path.display()), &e))?;
    Ok(limit)
}

fn mixed_file(fs: &dyn FileSystem, files: &[PathBuf], path: &Path, output_bytes: u64) -> std::io::Result<MixedLimit> {
    let limits = BatchLimits {
        memory_bytes: MIXED_MEMORY,
        depth: MIXED_DEPTH,
        writes_in_flight: MIXED_WRITES,
        ..BatchLimits::default()
    };
    let io = fs.batch_io(BatchKind::Auto, &limits)?;
    let span_bytes = io.span_bytes(fs.device(path).as_ref(), files.len()) as u64;
    let mut plan = ReadPlan::new();
    for path in files {
        let file = fs.open_random(path, true)?;
        let size = file.size();
        let number = plan.add_file(file, path);
        let span = |offset| Span { file: number, offset, len: (size - offset).min(span_bytes) as u32 };
        plan.add_run((0..size).step_by(span_bytes as usize).map(span).collect());
    }
    let read = plan.bytes();
    let options =
        WriteOptions { direct: true, buffer_size: LARGE_BYTES, preallocate: output_bytes, ..WriteOptions::default() };
    let start = Instant::now();
    let mut stream = io.read(plan, ReadOptions { depth: MIXED_READS, ..ReadOptions::default() })?;
    let mut out = io.create(fs, path, options)?;
    let chunk_max = out.space_bytes_max().min(span_bytes as usize);
    let (mut seen, mut written) = (0u64, 0u64);
    let mut open: Vec<usize> = (0..files.len()).collect();
    while !open.is_empty() {
        let mut still = Vec::with_capacity(open.len());
        for run in open {
            let Some(window) = stream.next(run)? else { continue };
            seen += window.len() as u64;
            // The same fraction of the output as of the inputs.
            let due = (u128::from(output_bytes) * u128::from(seen) / u128::from(read.max(1))) as u64;
            while written < due {
                let len = chunk_max.min((due - written) as usize);
                let space = out.space(len)?;
                let copied = if written < COPIED_BYTES { len.min(window.len()) } else { 0 };
                space[..copied].copy_from_slice(&window[..copied]);
                for (sector, n) in space.chunks_exact_mut(SECTOR_BYTES).zip(written..) {
                    sector[..8].copy_from_slice(&n.to_le_bytes());
                }
                out.commit(len);
                written += len as u64;
            }
            still.push(run);
        }
        open = still;
    }
    out.sync()?;
    out.close()?;
    let seconds = start.elapsed().as_secs_f64();
    Ok(MixedLimit { seconds, read, written, ring: io.facts().kind == BatchKind::Uring })
}

/// Bytes per second of large sequential reads, `depth` at once.
fn large_reads(file: &dyn RandomAccessFile, blocks: u64, depth: usize) -> std::io::Result<f64> {
    let next = AtomicU64::new(0);
    let start = Instant::now();
    at_once(depth, &|_| {
        let mut buf = AlignedBuf::with_capacity(LARGE_BYTES);
        loop {
            let block = next.fetch_add(1, Ordering::Relaxed);
            if block >= blocks {
                return Ok(());
            }
            read_exactly(file, block * LARGE_BYTES as u64, &mut buf)?;
        }
    })?;
    Ok((blocks * LARGE_BYTES as u64) as f64 / start.elapsed().as_secs_f64())
}

/// Small random reads per second, `depth` at once.
fn random_reads(file: &dyn RandomAccessFile, blocks: u64, depth: usize, seed: u64) -> std::io::Result<f64> {
    let (done, start) = (AtomicU64::new(0), Instant::now());
    at_once(depth, &|thread| {
        let mut buf = AlignedBuf::with_capacity(SMALL_BYTES);
        let mut random = Mersenne64::new(seed.wrapping_add(thread));
        let mut reads = 0;
        while start.elapsed() < RANDOM_READS_FOR {
            read_exactly(file, random.next_u64() % blocks * SMALL_BYTES as u64, &mut buf)?;
            reads += 1;
        }
        done.fetch_add(reads, Ordering::Relaxed);
        Ok(())
    })?;
    Ok(done.into_inner() as f64 / start.elapsed().as_secs_f64())
}

/// Runs `work` in this many threads; returns the first error.
fn at_once(threads: usize, work: &(dyn Fn(u64) -> std::io::Result<()> + Sync)) -> std::io::Result<()> {
    if threads == 1 {
        return work(0);
    }
    std::thread::scope(|scope| {
        let spawn = |i| std::thread::Builder::new().spawn_scoped(scope, move || work(i));
        let handles: Vec<_> = (0..threads as u64).map(spawn).collect();
        let join = |handle: std::io::Result<std::thread::ScopedJoinHandle<'_, std::io::Result<()>>>| {
            handle?.join().unwrap_or_else(|_| Err(std::io::Error::other("a thread panicked")))
        };
        handles.into_iter().map(join).fold(Ok(()), std::io::Result::and)
    })
}

fn read_exactly(file: &dyn RandomAccessFile, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
    match file.read_at(offset, buf)? {
        n if n == buf.len() => Ok(()),
        _ => Err(std::io::ErrorKind::UnexpectedEof.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mix_reads_everything_and_writes_as_much_as_asked() {
        let dir = tempfile::tempdir().unwrap();
        let files: Vec<PathBuf> = (0..3).map(|i| dir.path().join(format!("in{i}"))).collect();
        for (i, path) in files.iter().enumerate() {
            std::fs::write(path, vec![i as u8 + 1; 700_000 + i]).unwrap();
        }
        for output in [0, 1_234_567, 2_100_003, 5_000_000] {
            let limit = mixed(&files, &dir.path().join("out"), output).unwrap();
            assert_eq!((limit.read, limit.written), (2_100_003, output));
            assert!(limit.seconds > 0.0);
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 3, "the output is gone");
        assert!(mixed(&[dir.path().join("no")], &dir.path().join("out"), 1).is_err());
    }

    #[test]
    fn a_probe_measures_and_cleans_up() {
        let dir = tempfile::tempdir().unwrap();
        let limits = probe(&dir.path().join("new"), 4 << 20, 1).unwrap();
        assert!(limits.sequential_write > 0.0 && limits.sequential_read > 0.0 && limits.random_reads > 1.0);
        assert!(limits.sequential_read_deep > 0.0 && limits.random_reads_deep > 1.0);
        assert!(limits.to_text().contains("32 at once"));
        assert_eq!(std::fs::read_dir(dir.path().join("new")).unwrap().count(), 0);
        let error = probe(Path::new("/proc/no-such"), 1, 1).expect_err("not writable").to_string();
        assert!(error.contains("/proc/no-such"), "{error}");
    }
}
