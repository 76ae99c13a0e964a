//! What the device could do at best, measured in the same run as the figures that are compared with it: one thread,
//! past the page cache, one request at a time, through the same I/O layer as the store.

use std::path::Path;
use std::time::{Duration, Instant};

use rockmill_io::aligned::AlignedBuf;
use rockmill_io::{FileSystem, PosixFileSystem, WriteOptions};

use crate::error::{Error, Result};
use crate::random::Mersenne64;

const LARGE_BYTES: usize = 1 << 20;
const SMALL_BYTES: usize = 4096;
/// How long random reads are measured.
const RANDOM_READS_FOR: Duration = Duration::from_secs(1);

/// The device's limits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeviceLimits {
    /// 1 MiB writes in order into a preallocated file, and one sync: bytes per second.
    pub sequential_write: f64,
    /// 1 MiB reads in order: bytes per second.
    pub sequential_read: f64,
    /// Random 4 KiB reads: reads per second.
    pub random_reads: f64,
    /// False when the file system refused direct I/O, so that the page cache took part.
    pub direct: bool,
}

/// Measures the device below `dir` with a file of `file_bytes`, which is removed again.
pub fn probe(dir: &Path, file_bytes: u64, seed: u64) -> Result<DeviceLimits> {
    let fs = PosixFileSystem::default();
    fs.create_dir(dir, true).map_err(|e| Error::io(format_args!("cannot create {}", dir.display()), &e))?;
    let path = dir.join("device-probe.tmp");
    let done = probe_file(&fs, &path, file_bytes.max(LARGE_BYTES as u64) / LARGE_BYTES as u64, seed);
    let removed = fs.remove(&path);
    let limits = done.map_err(|e| Error::io("the measurement of the device failed", &e))?;
    removed.map_err(|e| Error::io(format_args!("cannot remove {}", path.display()), &e))?;
    Ok(limits)
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
    let start = Instant::now();
    for i in 0..blocks {
        read_exactly(&*file, i * LARGE_BYTES as u64, &mut buf)?;
    }
    let sequential_read = file_bytes as f64 / start.elapsed().as_secs_f64();

    let mut buf = AlignedBuf::with_capacity(SMALL_BYTES);
    let (start, mut reads) = (Instant::now(), 0u64);
    while start.elapsed() < RANDOM_READS_FOR {
        let block = random.next_u64() % (file_bytes / SMALL_BYTES as u64);
        read_exactly(&*file, block * SMALL_BYTES as u64, &mut buf)?;
        reads += 1;
    }
    let random_reads = reads as f64 / start.elapsed().as_secs_f64();
    Ok(DeviceLimits { sequential_write, sequential_read, random_reads, direct: file.is_direct() })
}

fn read_exactly(file: &dyn rockmill_io::RandomAccessFile, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
    match file.read_at(offset, buf)? {
        n if n == buf.len() => Ok(()),
        _ => Err(std::io::ErrorKind::UnexpectedEof.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_measures_and_cleans_up() {
        let dir = tempfile::tempdir().unwrap();
        let limits = probe(&dir.path().join("new"), 4 << 20, 1).unwrap();
        assert!(limits.sequential_write > 0.0 && limits.sequential_read > 0.0 && limits.random_reads > 1.0);
        assert_eq!(std::fs::read_dir(dir.path().join("new")).unwrap().count(), 0);
        let error = probe(Path::new("/proc/no-such"), 1, 1).expect_err("not writable").to_string();
        assert!(error.contains("/proc/no-such"), "{error}");
    }
}
