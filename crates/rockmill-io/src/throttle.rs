//! A file system that is as slow as a described device: it shows on any machine, and without being root, how a store
//! behaves on such a device.
//!
//! What is modelled is a device behind an empty page cache:
//!
//! - each read goes to the device, takes its share of the bandwidth, and comes after the latency;
//! - writes are gathered for each file up to 1 MiB and then wait for the device to take them; a sync or close waits for
//!   the rest; a sync takes the latency, too;
//! - the number of operations in progress is limited, and further ones wait for one to end;
//! - names, lengths and lists of files cost nothing.
//!
//! The caller sleeps, by the [`Clock`], until the device would have answered, or until the file system underneath has,
//! if that is later: the modelled device cannot be faster than the real one. Files give no descriptors and there is no
//! io_uring, as transfers past the files' own calls would go past this; engines use plain calls and say why.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::fs::{
    Access, AccessPattern, Ahead, Entry, FileLock, FileSystem, PositionedFile, RandomAccessFile, SequentialFile, View,
    WritableFile, WriteOptions,
};
use crate::ring::{BatchIo, BatchKind, BatchLimits, BatchProbe, DeviceFacts};
use crate::sync::Mutex;

/// Bytes that a file gathers before they go to the device.
const GATHERED_BYTES: u64 = 1 << 20;

/// Why there is no ring.
const NO_RING: &str = "the device is a model, which sees plain calls only";

/// A sleep may be too long by this many nanoseconds and the device still counts as having worked meanwhile.
const OVERSLEPT_MAX: u64 = 5_000_000;

/// What a device can do. 0 is no limit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceModel {
    /// Bytes that it reads each second.
    pub read_bytes_per_second: u64,
    /// Bytes that it writes each second.
    pub write_bytes_per_second: u64,
    /// Bytes of both together each second.
    pub total_bytes_per_second: u64,
    /// The time for each operation in addition to the time for its bytes.
    pub latency: Duration,
    /// Operations that are under way at a time.
    pub queue_depth: usize,
}

impl DeviceModel {
    /// True if nothing is limited.
    pub fn is_unlimited(&self) -> bool {
        *self == Self::default()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Read,
    Write,
}

/// When the device will have finished everything submitted so far, in nanoseconds of the clock.
#[derive(Debug, Default)]
struct Booked {
    read: u64,
    written: u64,
    both: u64,
    /// When each operation under way ends.
    under_way: BinaryHeap<Reverse<u64>>,
    /// Nanoseconds that somebody slept too long: the device was not idle then.
    overslept: u64,
}

#[derive(Debug)]
struct Device {
    model: DeviceModel,
    clock: Arc<dyn Clock>,
    booked: Mutex<Booked>,
}

impl Device {
    /// Books an operation; when it will have ended, in nanoseconds of the clock.
    fn book(&self, direction: Direction, bytes: u64, now: u64) -> u64 {
        let m = &self.model;
        let mut booked = self.booked.lock();
        let mut start = now;
        if m.queue_depth > 0 {
            while booked.under_way.peek().is_some_and(|Reverse(end)| *end <= start) {
                booked.under_way.pop();
            }
            if booked.under_way.len() >= m.queue_depth
                && let Some(Reverse(end)) = booked.under_way.pop()
            {
                start = start.max(end);
            }
        }
        let free = match direction {
            Direction::Read => booked.read,
            Direction::Write => booked.written,
        };
        let free = free.max(booked.both);
        // A caller that slept too long submits too late: that is not the device's fault.
        let earlier = start.saturating_sub(free).min(booked.overslept);
        booked.overslept -= earlier;
        let begin = free.max(start - earlier);
        let takes = |rate: u64| match rate {
            0 => 0,
            rate => u64::try_from(u128::from(bytes) * 1_000_000_000 / u128::from(rate)).unwrap_or(u64::MAX),
        };
        let (of_direction, rate) = match direction {
            Direction::Read => (&mut booked.read, m.read_bytes_per_second),
            Direction::Write => (&mut booked.written, m.write_bytes_per_second),
        };
        *of_direction = begin.saturating_add(takes(rate));
        let transferred = *of_direction;
        booked.both = begin.saturating_add(takes(m.total_bytes_per_second));
        let end = transferred.max(booked.both).saturating_add(m.latency.as_nanos() as u64).max(now);
        if m.queue_depth > 0 {
            booked.under_way.push(Reverse(end));
        }
        end
    }

    fn now(&self) -> u64 {
        self.clock.monotonic_nanos()
    }

    /// Sleeps until a moment, if that has not come.
    fn wait_until(&self, end: u64) {
        let now = self.now();
        if end > now {
            self.clock.sleep(Duration::from_nanos(end - now));
            let late = self.now().saturating_sub(end);
            let mut booked = self.booked.lock();
            booked.overslept = (booked.overslept + late).min(OVERSLEPT_MAX);
        }
    }

    fn transfer(&self, direction: Direction, bytes: u64) {
        self.wait_until(self.book(direction, bytes, self.now()));
    }

    /// Does a read, and takes as long as the device would.
    fn read(&self, read: impl FnOnce() -> io::Result<usize>) -> io::Result<usize> {
        let began = self.now();
        let n = read()?;
        self.wait_until(self.book(Direction::Read, n as u64, began));
        Ok(n)
    }
}

/// Passes everything on, as fast as a [`DeviceModel`] allows. Clones share the device.
#[derive(Debug, Clone)]
pub struct ThrottledFileSystem {
    inner: Arc<dyn FileSystem>,
    device: Arc<Device>,
}

impl ThrottledFileSystem {
    /// What `inner` has, on such a device, in the time of `clock`.
    pub fn new(inner: Arc<dyn FileSystem>, model: DeviceModel, clock: Arc<dyn Clock>) -> Self {
        Self { inner, device: Arc::new(Device { model, clock, booked: Mutex::default() }) }
    }

    /// The device.
    pub fn model(&self) -> &DeviceModel {
        &self.device.model
    }

    fn writer(&self, inner: Box<dyn WritableFile>) -> Box<dyn WritableFile> {
        Box::new(ThrottledWritableFile { inner, device: Arc::clone(&self.device), gathered: 0 })
    }
}

impl FileSystem for ThrottledFileSystem {
    fn open_random(&self, path: &Path, direct: bool) -> io::Result<Arc<dyn RandomAccessFile>> {
        let inner = self.inner.open_random(path, direct)?;
        Ok(Arc::new(ThrottledRandomAccessFile { inner, device: Arc::clone(&self.device) }))
    }

    fn open_sequential(&self, path: &Path) -> io::Result<Box<dyn SequentialFile>> {
        let inner = self.inner.open_sequential(path)?;
        Ok(Box::new(ThrottledSequentialFile { inner, device: Arc::clone(&self.device) }))
    }

    fn create(&self, path: &Path, options: WriteOptions) -> io::Result<Box<dyn WritableFile>> {
        Ok(self.writer(self.inner.create(path, options)?))
    }

    fn reuse(&self, old: &Path, new: &Path, options: WriteOptions) -> io::Result<Box<dyn WritableFile>> {
        Ok(self.writer(self.inner.reuse(old, new, options)?))
    }

    fn sync_file(&self, path: &Path) -> io::Result<()> {
        self.inner.sync_file(path)?;
        self.device.transfer(Direction::Write, 0);
        Ok(())
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.inner.sync_dir(path)?;
        self.device.transfer(Direction::Write, 0);
        Ok(())
    }

    fn view(&self, view: &View) -> io::Result<Option<Arc<dyn FileSystem>>> {
        let device = Arc::clone(&self.device);
        Ok(self.inner.view(view)?.map(|inner| Arc::new(Self { inner, device }) as Arc<dyn FileSystem>))
    }

    fn create_positioned(&self, path: &Path, options: WriteOptions) -> io::Result<Box<dyn PositionedFile>> {
        let inner = self.inner.create_positioned(path, options)?;
        Ok(Box::new(ThrottledPositionedFile { inner, device: Arc::clone(&self.device) }))
    }

    fn batch_io(&self, kind: BatchKind, limits: &BatchLimits) -> io::Result<BatchIo> {
        match kind {
            BatchKind::Uring => Err(io::Error::new(io::ErrorKind::Unsupported, NO_RING)),
            BatchKind::Auto => BatchIo::plain(limits, Some(NO_RING.to_owned())),
            BatchKind::Pread => BatchIo::plain(limits, None),
        }
    }

    fn batch_probe(&self) -> BatchProbe {
        BatchProbe::unavailable(NO_RING)
    }

    crate::pass_on! { inner =>
        fn list_dir(&self, path: &Path) -> io::Result<Vec<String>>;
        fn exists(&self, path: &Path) -> io::Result<bool>;
        fn file_size(&self, path: &Path) -> io::Result<u64>;
        fn modified_seconds(&self, path: &Path) -> io::Result<u64>;
        fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
        fn remove(&self, path: &Path) -> io::Result<()>;
        fn remove_dir(&self, path: &Path) -> io::Result<()>;
        fn create_dir(&self, path: &Path, parents: bool) -> io::Result<()>;
        fn create_new_dir(&self, path: &Path) -> io::Result<()>;
        fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()>;
        fn truncate(&self, path: &Path, len: u64) -> io::Result<()>;
        fn lock(&self, path: &Path) -> io::Result<Box<dyn FileLock>>;
        fn free_space(&self, path: &Path) -> io::Result<u64>;
        fn entry(&self, path: &Path) -> io::Result<Option<Entry>>;
        fn access(&self, dir: &Path, files: &[&Path]) -> io::Result<Option<Access>>;
        fn same_file(&self, a: &Path, b: &Path) -> io::Result<bool>;
        fn device(&self, path: &Path) -> Option<DeviceFacts>;
    }
}

#[derive(Debug)]
struct ThrottledRandomAccessFile {
    inner: Arc<dyn RandomAccessFile>,
    device: Arc<Device>,
}

impl RandomAccessFile for ThrottledRandomAccessFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.device.read(|| self.inner.read_at(offset, buf))
    }

    fn read_once(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.device.read(|| self.inner.read_once(offset, buf))
    }

    fn ring(&self, _limits: &BatchLimits) -> io::Result<BatchIo> {
        Err(io::Error::new(io::ErrorKind::Unsupported, NO_RING))
    }

    crate::pass_on! { inner =>
        fn mode(&self) -> Option<u32>;
        fn size(&self) -> u64;
        fn prefetch(&self, offset: u64, len: u64);
        fn advise(&self, pattern: AccessPattern);
        fn cached_bytes(&self) -> Option<u64>;
        fn is_direct(&self) -> bool;
        fn reads_device(&self) -> bool;
        fn direct_alignment(&self) -> u64;
    }
}

#[derive(Debug)]
struct ThrottledSequentialFile {
    inner: Box<dyn SequentialFile>,
    device: Arc<Device>,
}

impl SequentialFile for ThrottledSequentialFile {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let inner = &mut self.inner;
        self.device.read(|| inner.read(buf))
    }

    fn skip(&mut self, n: u64) -> io::Result<()> {
        self.inner.skip(n)
    }
}

#[derive(Debug)]
struct ThrottledPositionedFile {
    inner: Box<dyn PositionedFile>,
    device: Arc<Device>,
}

impl PositionedFile for ThrottledPositionedFile {
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<usize> {
        let began = self.device.now();
        let n = self.inner.write_at(offset, data)?;
        self.device.wait_until(self.device.book(Direction::Write, n as u64, began));
        Ok(n)
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()?;
        self.device.transfer(Direction::Write, 0);
        Ok(())
    }

    crate::pass_on! { inner =>
        fn path(&self) -> &Path;
        fn is_direct(&self) -> bool;
        fn reserve(&self, end: u64, extend: bool) -> bool;
        fn flush(&self) -> io::Result<()>;
        fn cut(&self, len: u64) -> io::Result<()>;
        fn start_write_back(&self, offset: u64, len: u64) -> io::Result<()>;
        fn await_write_back(&self, offset: u64, len: u64) -> io::Result<()>;
        fn close(&self) -> io::Result<()>;
        fn in_order(&self) -> bool;
        fn bytes_max(&self) -> u64;
    }
}

#[derive(Debug)]
struct ThrottledWritableFile {
    inner: Box<dyn WritableFile>,
    device: Arc<Device>,
    /// Bytes that the device has not been given.
    gathered: u64,
}

impl ThrottledWritableFile {
    fn gather(&mut self, bytes: usize) {
        self.gathered += bytes as u64;
        if self.gathered >= GATHERED_BYTES {
            self.device.transfer(Direction::Write, std::mem::take(&mut self.gathered));
        }
    }
}

impl WritableFile for ThrottledWritableFile {
    fn append(&mut self, data: &[u8]) -> io::Result<()> {
        self.inner.append(data)?;
        self.gather(data.len());
        Ok(())
    }

    fn append_and_flush(&mut self, data: &[u8]) -> io::Result<()> {
        self.inner.append_and_flush(data)?;
        self.gather(data.len());
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }

    fn sync(&mut self) -> io::Result<()> {
        let began = self.device.now();
        self.inner.sync()?;
        let end = self.device.book(Direction::Write, std::mem::take(&mut self.gathered), began);
        self.device.wait_until(end);
        Ok(())
    }

    fn extend_ahead(&mut self, how: Ahead) {
        self.inner.extend_ahead(how);
    }

    fn undo_append(&mut self, len: u64) -> io::Result<()> {
        self.inner.undo_append(len)
    }

    fn close(&mut self) -> io::Result<()> {
        if self.gathered > 0 {
            self.device.transfer(Direction::Write, std::mem::take(&mut self.gathered));
        }
        self.inner.close()
    }

    crate::pass_on! { inner =>
        fn len(&self) -> u64;
        fn kernel_writes(&self) -> u64;
        fn write_backs(&self) -> u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;
    use crate::mem::MemFileSystem;

    const MB: u64 = 1_000_000;

    fn on(model: DeviceModel) -> (ThrottledFileSystem, ManualClock) {
        let clock = ManualClock::new(0);
        let fs = ThrottledFileSystem::new(Arc::new(MemFileSystem::default()), model, Arc::new(clock.clone()));
        fs.create_dir(Path::new("/d"), true).unwrap();
        (fs, clock)
    }

    /// Seconds since the last call.
    fn lap(clock: &ManualClock, last: &mut u64) -> f64 {
        let now = clock.monotonic_nanos();
        (now - std::mem::replace(last, now)) as f64 * 1e-9
    }

    #[test]
    fn bandwidth_and_latency_are_kept_whatever_the_calls() {
        let (fs, clock) = on(DeviceModel {
            read_bytes_per_second: 300 * MB,
            write_bytes_per_second: 50 * MB,
            latency: Duration::from_micros(100),
            ..DeviceModel::default()
        });
        let (path, mut last) = (Path::new("/d/f"), 0);
        let mut f = fs.create(path, WriteOptions::default()).unwrap();
        for _ in 0..1000 {
            f.append(&[7; 10_000]).unwrap();
        }
        f.sync().unwrap();
        f.close().unwrap();
        let seconds = lap(&clock, &mut last);
        // Ten times 1 MiB, and the rest.
        assert!((0.2..0.202).contains(&seconds), "10 MB at 50 MB/s: {seconds}");

        let f = fs.open_random(path, false).unwrap();
        let mut buf = vec![0; 30_000];
        for i in 0..100 {
            assert_eq!(f.read_at(i * 30_000, &mut buf).unwrap(), 30_000);
        }
        let seconds = lap(&clock, &mut last);
        assert!((seconds - (0.01 + 0.01)).abs() < 1e-6, "3 MB at 300 MB/s, 100 times 0.1 ms: {seconds}");
        let mut f = fs.open_sequential(path).unwrap();
        while f.read(&mut buf).unwrap() > 0 {}
        let seconds = lap(&clock, &mut last);
        assert!((0.066..0.068).contains(&seconds), "10 MB and 335 times 0.1 ms: {seconds}");

        let f = fs.create_positioned(Path::new("/d/g"), WriteOptions::default()).unwrap();
        for i in 0..5 {
            assert_eq!(f.write_at(i * MB, &vec![1; MB as usize]).unwrap(), MB as usize);
        }
        f.sync().unwrap();
        f.close().unwrap();
        let seconds = lap(&clock, &mut last);
        assert!((seconds - (0.1 + 0.0006)).abs() < 1e-6, "5 MB, five writes and a sync: {seconds}");
        fs.sync_dir(Path::new("/d")).unwrap();
        assert!((lap(&clock, &mut last) - 0.0001).abs() < 1e-9);
    }

    #[test]
    fn nothing_is_slower_on_a_device_without_limits() {
        let (fs, clock) = on(DeviceModel::default());
        assert!(fs.model().is_unlimited());
        fs.write_all(Path::new("/d/f"), &[1; 5_000_000]).unwrap();
        assert_eq!(fs.read_to_vec(Path::new("/d/f")).unwrap().len(), 5_000_000);
        assert_eq!(clock.monotonic_nanos(), 0);
    }

    /// Operations at the same time: latencies pass together, as far as the queue is deep.
    #[test]
    fn a_queue_takes_so_many_operations_at_a_time() {
        let ms = |depth, n: u64| {
            let (fs, _) =
                on(DeviceModel { latency: Duration::from_millis(1), queue_depth: depth, ..DeviceModel::default() });
            let ends: Vec<u64> = (0..n).map(|_| fs.device.book(Direction::Read, 4096, 0)).collect();
            ends.into_iter().max().unwrap_or(0) / 1_000_000
        };
        assert_eq!([ms(0, 100), ms(1, 8), ms(2, 8), ms(3, 8), ms(8, 8)], [1, 8, 4, 3, 1]);
    }

    /// Both directions also share a total limit. Below it, both reach their own limits at the same time.
    #[test]
    fn directions_share_the_device() {
        let seconds = |total| {
            let (fs, _) = on(DeviceModel {
                read_bytes_per_second: 100 * MB,
                write_bytes_per_second: 100 * MB,
                total_bytes_per_second: total,
                ..DeviceModel::default()
            });
            let mut end = 0;
            for _ in 0..100 {
                end = end.max(fs.device.book(Direction::Read, MB, 0)).max(fs.device.book(Direction::Write, MB, 0));
            }
            end as f64 * 1e-9
        };
        assert!((seconds(0) - 1.0).abs() < 0.02 && (seconds(150 * MB) - 4.0 / 3.0).abs() < 0.02, "{}", seconds(0));
    }

    /// Sleeps of a real clock are too long, which the device does not wait for; idle time is lost.
    #[test]
    fn what_was_overslept_is_made_up_for_and_idle_time_is_not() {
        let (fs, _) = on(DeviceModel { read_bytes_per_second: 100 * MB, ..DeviceModel::default() });
        let d = &fs.device;
        let mut now = 0;
        for _ in 0..100 {
            let end = d.book(Direction::Read, 10_000, now);
            now = end.max(now) + 60_000; // 60 us too late
            d.booked.lock().overslept += 60_000;
        }
        assert!((now as f64 * 1e-9 - 0.01).abs() < 0.001, "1 MB at 100 MB/s: {now} ns");
        d.booked.lock().overslept = 0;
        assert_eq!(d.book(Direction::Read, MB, now + 1_000_000_000), now + 1_010_000_000);
    }

    #[test]
    fn rings_are_refused_and_say_why() {
        let (fs, clock) = on(DeviceModel { read_bytes_per_second: MB, ..DeviceModel::default() });
        let limits = BatchLimits { memory_bytes: 4 << 20, huge_pages: false, ..BatchLimits::default() };
        let refused = fs.batch_io(BatchKind::Uring, &limits).unwrap_err();
        assert!(refused.to_string().contains("the device is a model"), "{refused}");
        let plain = fs.batch_io(BatchKind::Auto, &limits).unwrap();
        assert_eq!((plain.facts().kind, plain.facts().fallback.as_deref()), (BatchKind::Pread, Some(NO_RING)));
        fs.write_all(Path::new("/d/f"), &[1; 10_000]).unwrap();
        let f = fs.open_random(Path::new("/d/f"), false).unwrap();
        assert!(f.raw_fd().is_none() && f.ring(&limits).is_err());
        // Plain calls of an engine are as slow as any others.
        let mut plan = crate::ring::ReadPlan::new();
        let file = plan.add_file(f, Path::new("/d/f"));
        let run = plan.add_run(vec![crate::ring::Span { file, offset: 0, len: 10_000 }]);
        let before = clock.monotonic_nanos();
        let mut stream = plain.read(plan, crate::ring::ReadOptions::default()).unwrap();
        assert!(stream.next(run).unwrap().is_some());
        assert_eq!(clock.monotonic_nanos() - before, 10_000_000, "10 kB at 1 MB/s");
    }
}
