//! A queue for files that carry out their operations themselves: a device that another machine serves, which has no
//! descriptor that a ring of io_uring could be given.
//!
//! An operation goes to its file as a [`Carried`], which owns the operation's memory. The file returns at once and ends
//! it later, from any thread and in any order. Everything above the queue is the same as over io_uring: read plans,
//! windows, writers with several writes in flight.
//!
//! Invariant: each operation comes back exactly once. A [`Carried`] that is dropped comes back as a failure, so that
//! nobody waits for ever for a file that gave up.

use super::queue::{Action, Done, Op, Queue, QueueCounts, Target};
use super::{BatchIo, BatchKind, BatchLimits};
use crate::fs::{FileLock, FileSystem, RandomAccessFile, SequentialFile, WritableFile, WriteOptions, unsupported};
use crate::sync::{Condvar, Mutex};
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Operations that are through, until their thread takes them.
#[derive(Debug, Default)]
struct Inbox {
    ended: Mutex<Vec<Done>>,
    more: Condvar,
}

/// A read or a write that its file carries out: [`RandomAccessFile::carry`], [`PositionedFile::carry`].
///
/// [`PositionedFile::carry`]: crate::fs::PositionedFile::carry
#[derive(Debug)]
pub struct Carried {
    /// `None` only once it has ended.
    op: Option<Op>,
    inbox: Arc<Inbox>,
}

impl Carried {
    /// Where it begins in the file.
    pub fn offset(&self) -> u64 {
        self.op.as_ref().map_or(0, |op| op.offset)
    }

    /// Where the bytes of a read go, or the bytes that a write takes.
    pub fn memory(&mut self) -> &mut [u8] {
        let memory = self.op.as_mut().and_then(|op| op.lease.as_deref_mut()?.get_mut(op.range.clone()));
        memory.unwrap_or_default()
    }

    /// Ends it: so many bytes are through, or none, and why.
    pub fn done(mut self, result: io::Result<usize>) {
        self.end(result);
    }

    fn end(&mut self, result: io::Result<usize>) {
        if let Some(op) = self.op.take() {
            self.inbox.ended.lock().push(Done { op, result, raw: false, bypassed: false });
            self.inbox.more.notify_one();
        }
    }

    /// Does it in this thread.
    fn call(mut self) {
        if let Some(op) = &mut self.op {
            let result = op.call();
            self.end(result);
        }
    }
}

impl Drop for Carried {
    fn drop(&mut self) {
        self.end(Err(io::Error::other("the device gave the operation up")));
    }
}

/// Operations that files carry out.
#[derive(Debug)]
pub(super) struct CarriedQueue {
    depth: usize,
    in_flight: usize,
    inbox: Arc<Inbox>,
    counts: QueueCounts,
}

impl CarriedQueue {
    pub(super) fn new(depth: usize) -> Self {
        Self { depth: depth.max(1), in_flight: 0, inbox: Arc::default(), counts: QueueCounts::default() }
    }
}

impl Queue for CarriedQueue {
    fn depth(&self) -> usize {
        self.depth
    }

    fn push(&mut self, op: Op) {
        self.counts.operations += 1;
        self.counts.enters += 1;
        self.in_flight += 1;
        let (file, action) = (Arc::clone(&op.file), op.action);
        let carried = Carried { op: Some(op), inbox: Arc::clone(&self.inbox) };
        let left = match (&file.target, action) {
            (Target::Read(file), Action::Read) => file.carry(carried),
            (Target::Write(file), Action::Write) => file.carry(carried),
            _ => Some(carried),
        };
        if let Some(left) = left {
            left.call();
        }
    }

    fn submit(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn reap(&mut self, wait: usize, _wanted: u64, done: &mut Vec<Done>) -> io::Result<()> {
        let mut ended = self.inbox.ended.lock();
        while wait > 0 && ended.is_empty() && self.in_flight > 0 {
            self.inbox.more.wait(&mut ended);
        }
        self.in_flight -= ended.len();
        done.append(&mut ended);
        Ok(())
    }

    fn unsubmitted(&self) -> usize {
        0
    }

    fn counts(&self) -> QueueCounts {
        self.counts
    }
}

/// A file system without files. Its batched I/O hands each operation to the operation's file
/// ([`RandomAccessFile::carry`]): for jobs whose files are on another machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct CarriedFiles;

/// Methods of a file system that has nothing to do them with.
macro_rules! none {
    ($($what:literal => fn $name:ident(&self, $path:ident: &Path $(, $arg:ident: $kind:ty)*) -> $out:ty;)+) => {
        $(fn $name(&self, $path: &Path $(, $arg: $kind)*) -> io::Result<$out> {
            $(let _ = $arg;)*
            Err(unsupported($what, $path))
        })+
    };
}

impl FileSystem for CarriedFiles {
    none! {
        "open" => fn open_random(&self, path: &Path, direct: bool) -> Arc<dyn RandomAccessFile>;
        "open" => fn open_sequential(&self, path: &Path) -> Box<dyn SequentialFile>;
        "create" => fn create(&self, path: &Path, options: WriteOptions) -> Box<dyn WritableFile>;
        "reuse" => fn reuse(&self, path: &Path, new: &Path, options: WriteOptions) -> Box<dyn WritableFile>;
        "list" => fn list_dir(&self, path: &Path) -> Vec<String>;
        "look for" => fn exists(&self, path: &Path) -> bool;
        "ask the length of" => fn file_size(&self, path: &Path) -> u64;
        "rename" => fn rename(&self, path: &Path, to: &Path) -> ();
        "remove" => fn remove(&self, path: &Path) -> ();
        "remove directory" => fn remove_dir(&self, path: &Path) -> ();
        "create directory" => fn create_dir(&self, path: &Path, parents: bool) -> ();
        "link" => fn hard_link(&self, path: &Path, to: &Path) -> ();
        "truncate" => fn truncate(&self, path: &Path, len: u64) -> ();
        "sync" => fn sync_file(&self, path: &Path) -> ();
        "sync directory" => fn sync_dir(&self, path: &Path) -> ();
        "lock" => fn lock(&self, path: &Path) -> Box<dyn FileLock>;
        "ask the free space at" => fn free_space(&self, path: &Path) -> u64;
    }

    fn batch_io(&self, kind: BatchKind, limits: &BatchLimits) -> io::Result<BatchIo> {
        match kind {
            BatchKind::Pread => BatchIo::plain(limits, None),
            BatchKind::Auto | BatchKind::Uring => BatchIo::carried(limits),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::path::PathBuf;
    use std::thread;

    use super::super::{ReadOptions, ReadPlan, Span};
    use super::*;
    use crate::aligned::ALIGNMENT;
    use crate::fs::PositionedFile;

    /// A device in another thread, which ends operations in any order, or drops those at and after an offset.
    #[derive(Debug, Clone, Default)]
    struct Device {
        bytes: Arc<Mutex<Vec<u8>>>,
        asked: Arc<Mutex<VecDeque<(bool, Carried)>>>,
        /// The most operations that it ever had at once.
        most: Arc<Mutex<usize>>,
        gives_up_at: Option<u64>,
    }

    impl Device {
        fn put(&self, read: bool, op: Carried) -> Option<Carried> {
            if self.gives_up_at.is_some_and(|at| op.offset() >= at) {
                drop(op);
                return None;
            }
            let mut asked = self.asked.lock();
            asked.push_back((read, op));
            let mut most = self.most.lock();
            *most = (*most).max(asked.len());
            None
        }

        /// Ends what was asked, in the order of `choose`, until it says that nothing more comes.
        fn serve(&self, stop: &std::sync::atomic::AtomicBool) {
            let mut rng = 7u64;
            while !stop.load(std::sync::atomic::Ordering::Acquire) {
                rng = rng.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let next = {
                    let mut asked = self.asked.lock();
                    let n = asked.len();
                    if n == 0 { None } else { asked.remove((rng >> 33) as usize % n) }
                };
                let Some((read, mut op)) = next else {
                    thread::yield_now();
                    continue;
                };
                let (mut bytes, at) = (self.bytes.lock(), op.offset() as usize);
                let memory = op.memory();
                let end = at + memory.len();
                if bytes.len() < end {
                    bytes.resize(end, 0);
                }
                match read {
                    true => memory.copy_from_slice(&bytes[at..end]),
                    false => bytes[at..end].copy_from_slice(memory),
                }
                let len = memory.len();
                drop(bytes);
                op.done(Ok(len));
            }
        }
    }

    impl RandomAccessFile for Device {
        fn read_at(&self, _: u64, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("it is carried"))
        }
        fn size(&self) -> u64 {
            self.bytes.lock().len() as u64
        }
        fn prefetch(&self, _: u64, _: u64) {}
        fn is_direct(&self) -> bool {
            true
        }
        fn carry(&self, op: Carried) -> Option<Carried> {
            self.put(true, op)
        }
    }

    impl PositionedFile for Device {
        fn path(&self) -> &Path {
            Path::new("device")
        }
        fn is_direct(&self) -> bool {
            true
        }
        fn write_at(&self, _: u64, _: &[u8]) -> io::Result<usize> {
            Err(io::Error::other("it is carried"))
        }
        fn cut(&self, len: u64) -> io::Result<()> {
            self.bytes.lock().truncate(len as usize);
            Ok(())
        }
        fn sync(&self) -> io::Result<()> {
            Ok(())
        }
        fn close(&self) -> io::Result<()> {
            Ok(())
        }
        fn carry(&self, op: Carried) -> Option<Carried> {
            self.put(false, op)
        }
    }

    fn io() -> BatchIo {
        let limits = BatchLimits { memory_bytes: 8 << 20, huge_pages: false, ..BatchLimits::default() };
        CarriedFiles.batch_io(BatchKind::Uring, &limits).unwrap()
    }

    #[test]
    fn reads_and_writes_come_back_from_another_thread_in_any_order() {
        let (io, device, stop) = (io(), Device::default(), std::sync::atomic::AtomicBool::new(false));
        let wanted: Vec<u8> = (0..1_500_001u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        thread::scope(|scope| {
            scope.spawn(|| device.serve(&stop));
            let options = WriteOptions { buffer_size: 64 << 10, direct: true, ..WriteOptions::default() };
            let mut writer = io.writer(Arc::new(device.clone()), options).unwrap();
            for piece in wanted.chunks(10_000) {
                writer.append(piece).unwrap();
            }
            writer.sync().unwrap();
            writer.close().unwrap();
            assert!(*device.bytes.lock() == wanted);
            let mut plan = ReadPlan::new();
            let file = plan.add_file(Arc::new(device.clone()), Path::new("device"));
            let span = |i: usize, len: usize| Span { file, offset: i as u64, len: len as u32 };
            let spans = (0..wanted.len()).step_by(50_000).map(|i| span(i, 50_000.min(wanted.len() - i))).collect();
            let run = plan.add_run(spans);
            let mut stream = io.read(plan, ReadOptions::default()).unwrap();
            let mut got = Vec::new();
            while let Some(window) = stream.next(run).unwrap() {
                got.extend_from_slice(&window);
            }
            assert!(got == wanted);
            stop.store(true, std::sync::atomic::Ordering::Release);
        });
        assert!(*device.most.lock() > 2, "several operations are with the device at once");
        assert!(io.is_idle());
        assert!(io.counts().operations > 50);
    }

    #[test]
    fn what_the_device_gives_up_fails_and_nobody_waits_for_it() {
        let (io, stop) = (io(), std::sync::atomic::AtomicBool::new(false));
        let device = Device { gives_up_at: Some(20 * ALIGNMENT as u64), ..Device::default() };
        device.bytes.lock().resize(40 * ALIGNMENT, 7);
        thread::scope(|scope| {
            scope.spawn(|| device.serve(&stop));
            let mut plan = ReadPlan::new();
            let file = plan.add_file(Arc::new(device.clone()), Path::new("device"));
            let span = |i: u64| Span { file, offset: i * ALIGNMENT as u64, len: ALIGNMENT as u32 };
            let run = plan.add_run((0..40).map(span).collect());
            let mut stream = io.read(plan, ReadOptions::default()).unwrap();
            for _ in 0..20 {
                assert!(stream.next(run).unwrap().unwrap().iter().all(|&b| b == 7));
            }
            let e = stream.next(run).unwrap_err();
            assert!(e.to_string().contains("gave the operation up"), "{e}");
            drop(stream);
            // The other direction, the same.
            let mut writer = io.writer(Arc::new(device.clone()), WriteOptions::default()).unwrap();
            writer.append(&vec![1; 3 << 20]).and_then(|()| writer.sync()).unwrap_err();
            drop(writer);
            stop.store(true, std::sync::atomic::Ordering::Release);
        });
        assert!(io.is_idle());
    }

    #[test]
    fn there_are_no_files() {
        let path = PathBuf::from("/x");
        let e = CarriedFiles.open_random(&path, false).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::Unsupported);
        assert!(CarriedFiles.exists(&path).is_err() && CarriedFiles.create(&path, WriteOptions::default()).is_err());
        let plain = CarriedFiles.batch_io(BatchKind::Pread, &BatchLimits::default()).unwrap();
        assert_eq!(plain.facts().kind, BatchKind::Pread);
    }
}
