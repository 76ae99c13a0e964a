//! A file system that counts calls and bytes, for statistics.

use crate::fs::{
    Access, AccessPattern, Ahead, Entry, FileExtents, FileLock, FileSystem, PositionedFile, RandomAccessFile,
    SequentialFile, View, WritableFile, WriteOptions,
};
use crate::ring::{BatchIo, BatchKind, BatchLimits, BatchObserver, BatchProbe, DeviceFacts};
use std::io;
use std::ops::Sub;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts up to some moment. The difference of two is the count in between.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct IoCounts {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl IoCounts {
            /// Each count with its name, in order.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }
        }

        impl Sub for IoCounts {
            type Output = IoCounts;

            fn sub(self, earlier: IoCounts) -> IoCounts {
                IoCounts { $($name: self.$name.saturating_sub(earlier.$name),)* }
            }
        }

        /// The counters themselves, shared by a file system and all its files.
        #[derive(Debug, Default)]
        struct Counters {
            $($name: AtomicU64,)*
        }

        impl Counters {
            fn snapshot(&self) -> IoCounts {
                IoCounts { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Files opened, for whatever purpose.
    opens,
    /// Reads at an offset or of the next bytes.
    reads,
    /// Bytes that they gave.
    read_bytes,
    /// Hints that a range will be read.
    prefetches,
    /// Writes that went to the kernel.
    writes,
    /// Bytes appended.
    write_bytes,
    /// How often write-back was started before a sync.
    write_backs,
    /// Syncs of files.
    syncs,
    /// Syncs of directories.
    dir_syncs,
    /// Files closed after writing.
    closes,
    /// Everything else: renames, deletions, links, truncations, listings, sizes, locks.
    metadata,
    /// Reads done by a ring; one call submits several.
    ring_reads,
    /// Of the writes, the same.
    ring_writes,
    /// The same for syncs and starts of write-back.
    ring_syncs,
    /// Calls that submitted transfers to a ring or waited for them.
    ring_enters,
}

impl IoCounts {
    /// Calls by kind: an estimate of system calls. A read that the kernel answered in parts counts once; ring transfers
    /// count as the calls that submitted them.
    pub fn calls_by_kind(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let syncs = self.syncs + self.write_backs;
        [
            ("opens", self.opens),
            ("reads", self.reads.saturating_sub(self.ring_reads)),
            ("prefetches", self.prefetches),
            ("writes", self.writes.saturating_sub(self.ring_writes)),
            ("syncs", syncs.saturating_sub(self.ring_syncs)),
            ("dir_syncs", self.dir_syncs),
            ("closes", self.closes),
            ("metadata", self.metadata),
            ("ring_enters", self.ring_enters),
        ]
        .into_iter()
    }

    /// All of these calls.
    pub fn calls(&self) -> u64 {
        self.calls_by_kind().map(|(_, n)| n).sum()
    }
}

fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

/// Counts calls and bytes, and passes everything on. Clones share the counters.
#[derive(Debug, Clone)]
pub struct CountingFileSystem {
    inner: Arc<dyn FileSystem>,
    counters: Arc<Counters>,
}

impl CountingFileSystem {
    /// Counts the calls to `inner` through the result.
    pub fn new(inner: Arc<dyn FileSystem>) -> Self {
        Self { inner, counters: Arc::default() }
    }

    /// What was counted so far.
    pub fn counts(&self) -> IoCounts {
        self.counters.snapshot()
    }

    /// The file system underneath.
    pub fn inner(&self) -> &Arc<dyn FileSystem> {
        &self.inner
    }

    fn metadata(&self) -> &dyn FileSystem {
        add(&self.counters.metadata, 1);
        &*self.inner
    }

    fn writer(&self, inner: Box<dyn WritableFile>) -> Box<dyn WritableFile> {
        let counters = Arc::clone(&self.counters);
        Box::new(CountingWritableFile { inner, counters, writes: 0, write_backs: 0, syncing: false })
    }
}

impl FileSystem for CountingFileSystem {
    fn open_random(&self, path: &Path, direct: bool) -> io::Result<Arc<dyn RandomAccessFile>> {
        add(&self.counters.opens, 1);
        let inner = self.inner.open_random(path, direct)?;
        Ok(Arc::new(CountingRandomAccessFile { inner, counters: Arc::clone(&self.counters) }))
    }

    fn open_sequential(&self, path: &Path) -> io::Result<Box<dyn SequentialFile>> {
        add(&self.counters.opens, 1);
        let inner = self.inner.open_sequential(path)?;
        Ok(Box::new(CountingSequentialFile { inner, counters: Arc::clone(&self.counters) }))
    }

    fn create(&self, path: &Path, options: WriteOptions) -> io::Result<Box<dyn WritableFile>> {
        add(&self.counters.opens, 1);
        Ok(self.writer(self.inner.create(path, options)?))
    }

    fn reuse(&self, old: &Path, new: &Path, options: WriteOptions) -> io::Result<Box<dyn WritableFile>> {
        add(&self.counters.opens, 1);
        add(&self.counters.metadata, 1);
        Ok(self.writer(self.inner.reuse(old, new, options)?))
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        add(&self.counters.dir_syncs, 1);
        self.inner.sync_dir(path)
    }

    fn sync_file(&self, path: &Path) -> io::Result<()> {
        add(&self.counters.syncs, 1);
        self.inner.sync_file(path)
    }

    fn view(&self, view: &View) -> io::Result<Option<Arc<dyn FileSystem>>> {
        let counters = Arc::clone(&self.counters);
        Ok(self.inner.view(view)?.map(|inner| Arc::new(Self { inner, counters }) as Arc<dyn FileSystem>))
    }

    fn create_positioned(&self, path: &Path, options: WriteOptions) -> io::Result<Box<dyn PositionedFile>> {
        add(&self.counters.opens, 1);
        let inner = self.inner.create_positioned(path, options)?;
        Ok(Box::new(CountingPositionedFile { inner, counters: Arc::clone(&self.counters) }))
    }

    fn batch_io(&self, kind: BatchKind, limits: &BatchLimits) -> io::Result<BatchIo> {
        let io = self.inner.batch_io(kind, limits)?;
        io.observe(Arc::clone(&self.counters) as Arc<dyn BatchObserver>);
        Ok(io)
    }

    crate::pass_on! { metadata() =>
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
    }

    crate::pass_on! { inner =>
        fn batch_probe(&self) -> BatchProbe;
        fn same_file(&self, a: &Path, b: &Path) -> io::Result<bool>;
        fn device(&self, path: &Path) -> Option<DeviceFacts>;
    }
}

/// Counts a ring's transfers on the files' descriptors, which the wrappers do not see.
impl BatchObserver for Counters {
    fn read(&self, bytes: u64) {
        add(&self.reads, 1);
        add(&self.ring_reads, 1);
        add(&self.read_bytes, bytes);
    }

    fn written(&self, bytes: u64) {
        add(&self.writes, 1);
        add(&self.ring_writes, 1);
        add(&self.write_bytes, bytes);
    }

    fn synced(&self) {
        add(&self.syncs, 1);
        add(&self.ring_syncs, 1);
    }

    fn write_back(&self) {
        add(&self.write_backs, 1);
        add(&self.ring_syncs, 1);
    }

    fn entered(&self, calls: u64) {
        add(&self.ring_enters, calls);
    }
}

#[derive(Debug)]
struct CountingPositionedFile {
    inner: Box<dyn PositionedFile>,
    counters: Arc<Counters>,
}

impl PositionedFile for CountingPositionedFile {
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<usize> {
        add(&self.counters.writes, 1);
        let n = self.inner.write_at(offset, data)?;
        add(&self.counters.write_bytes, n as u64);
        Ok(n)
    }

    fn cut(&self, len: u64) -> io::Result<()> {
        add(&self.counters.metadata, 1);
        self.inner.cut(len)
    }

    fn sync(&self) -> io::Result<()> {
        add(&self.counters.syncs, 1);
        self.inner.sync()
    }

    fn start_write_back(&self, offset: u64, len: u64) -> io::Result<()> {
        add(&self.counters.write_backs, 1);
        self.inner.start_write_back(offset, len)
    }

    fn close(&self) -> io::Result<()> {
        add(&self.counters.closes, 1);
        self.inner.close()
    }

    crate::pass_on! { inner =>
        fn path(&self) -> &Path;
        fn is_direct(&self) -> bool;
        fn reserve(&self, end: u64, extend: bool) -> bool;
        fn flush(&self) -> io::Result<()>;
        fn await_write_back(&self, offset: u64, len: u64) -> io::Result<()>;
        fn in_order(&self) -> bool;
        fn bytes_max(&self) -> u64;
        fn raw_fd(&self) -> Option<i32>;
        fn fd_offset(&self) -> u64;
    }
}

#[derive(Debug)]
struct CountingRandomAccessFile {
    inner: Arc<dyn RandomAccessFile>,
    counters: Arc<Counters>,
}

impl RandomAccessFile for CountingRandomAccessFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        add(&self.counters.reads, 1);
        let n = self.inner.read_at(offset, buf)?;
        add(&self.counters.read_bytes, n as u64);
        Ok(n)
    }

    fn read_once(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        add(&self.counters.reads, 1);
        let n = self.inner.read_once(offset, buf)?;
        add(&self.counters.read_bytes, n as u64);
        Ok(n)
    }

    fn send_to(&self, offset: u64, len: usize, socket: BorrowedFd<'_>) -> io::Result<usize> {
        add(&self.counters.reads, 1);
        let n = self.inner.send_to(offset, len, socket)?;
        add(&self.counters.read_bytes, n as u64);
        Ok(n)
    }

    fn prefetch(&self, offset: u64, len: u64) {
        add(&self.counters.prefetches, 1);
        self.inner.prefetch(offset, len);
    }

    fn ring(&self, limits: &BatchLimits) -> io::Result<BatchIo> {
        let io = self.inner.ring(limits)?;
        io.observe(Arc::clone(&self.counters) as Arc<dyn BatchObserver>);
        Ok(io)
    }

    crate::pass_on! { inner =>
        fn sends(&self) -> bool;
        fn mode(&self) -> Option<u32>;
        fn size(&self) -> u64;
        fn advise(&self, pattern: AccessPattern);
        fn cached_bytes(&self) -> Option<u64>;
        fn is_direct(&self) -> bool;
        fn reads_device(&self) -> bool;
        fn direct_alignment(&self) -> u64;
        fn extents(&self) -> io::Result<FileExtents>;
        fn raw_fd(&self) -> Option<i32>;
        fn fd_offset(&self) -> u64;
    }
}

#[derive(Debug)]
struct CountingSequentialFile {
    inner: Box<dyn SequentialFile>,
    counters: Arc<Counters>,
}

impl SequentialFile for CountingSequentialFile {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        add(&self.counters.reads, 1);
        let n = self.inner.read(buf)?;
        add(&self.counters.read_bytes, n as u64);
        Ok(n)
    }

    fn skip(&mut self, n: u64) -> io::Result<()> {
        self.inner.skip(n)
    }
}

#[derive(Debug)]
struct CountingWritableFile {
    inner: Box<dyn WritableFile>,
    counters: Arc<Counters>,
    /// Kernel writes of `inner` that were counted.
    writes: u64,
    write_backs: u64,
    /// A sync was begun, and counted.
    syncing: bool,
}

impl CountingWritableFile {
    fn count_writes(&mut self) {
        let writes = self.inner.kernel_writes();
        if writes != self.writes {
            add(&self.counters.writes, writes - self.writes);
            self.writes = writes;
        }
        let write_backs = self.inner.write_backs();
        if write_backs != self.write_backs {
            add(&self.counters.write_backs, write_backs - self.write_backs);
            self.write_backs = write_backs;
        }
    }
}

impl WritableFile for CountingWritableFile {
    fn append(&mut self, data: &[u8]) -> io::Result<()> {
        let result = self.inner.append(data);
        if result.is_ok() {
            add(&self.counters.write_bytes, data.len() as u64);
        }
        self.count_writes();
        result
    }

    fn append_and_flush(&mut self, data: &[u8]) -> io::Result<()> {
        let result = self.inner.append_and_flush(data);
        if result.is_ok() {
            add(&self.counters.write_bytes, data.len() as u64);
        }
        self.count_writes();
        result
    }

    fn flush(&mut self) -> io::Result<()> {
        let result = self.inner.flush();
        self.count_writes();
        result
    }

    fn sync(&mut self) -> io::Result<()> {
        if !std::mem::take(&mut self.syncing) {
            add(&self.counters.syncs, 1);
        }
        let result = self.inner.sync();
        self.count_writes();
        result
    }

    fn begin_sync(&mut self) -> io::Result<bool> {
        add(&self.counters.syncs, 1);
        let result = self.inner.begin_sync();
        self.syncing = matches!(result, Ok(false));
        self.count_writes();
        result
    }

    fn poll_sync(&mut self) -> io::Result<bool> {
        let result = self.inner.poll_sync();
        self.syncing &= matches!(result, Ok(false));
        result
    }

    fn extend_ahead(&mut self, how: Ahead) {
        self.inner.extend_ahead(how);
    }

    fn undo_append(&mut self, len: u64) -> io::Result<()> {
        self.inner.undo_append(len)
    }

    fn close(&mut self) -> io::Result<()> {
        add(&self.counters.closes, 1);
        let result = self.inner.close();
        self.count_writes();
        result
    }

    crate::pass_on! { inner =>
        fn len(&self) -> u64;
        fn kernel_writes(&self) -> u64;
        fn write_backs(&self) -> u64;
    }
}
