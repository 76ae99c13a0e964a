//! A file system that records how tables were opened, read and written, how many are open, and which reads of logs were
//! announced.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use rockmill_io::ring::{BatchIo, BatchKind, BatchLimits};
use rockmill_io::{
    AccessPattern, Entry, FileLock, FileSystem, RandomAccessFile, SequentialFile, WritableFile, WriteOptions,
};

#[derive(Debug, Default)]
pub struct Seen {
    /// For each table opened for reading: whether direct I/O was requested.
    pub opened_direct: Mutex<Vec<bool>>,
    /// Tables created, with how.
    pub created: Mutex<Vec<WriteOptions>>,
    /// Reads of tables: offset and length.
    pub reads: Mutex<Vec<(u64, usize)>>,
    pub advised: Mutex<Vec<AccessPattern>>,
    /// A read of a table takes at least 100 us, and each byte written to one takes 100 ns, as on a slow device.
    pub slow: AtomicBool,
    /// There are rings, if there are below.
    pub rings: AtomicBool,
    /// Percentage of each table that is in the page cache.
    pub cached_percent: AtomicUsize,
    /// Reads of logs that were announced to the kernel.
    pub ahead: Mutex<Ahead>,
    /// Memory of each queue of plain calls.
    pub plain_memory: Mutex<Vec<usize>>,
    open: AtomicUsize,
    open_max: AtomicUsize,
}

impl Seen {
    /// Table files open now, and at most.
    pub fn open(&self) -> (usize, usize) {
        (self.open.load(Ordering::SeqCst), self.open_max.load(Ordering::SeqCst))
    }

    /// The reads since the last call.
    pub fn take_reads(&self) -> Vec<(u64, usize)> {
        std::mem::take(&mut self.reads.lock().unwrap())
    }
}

/// Reads that are to come.
#[derive(Debug, Default)]
pub struct Ahead {
    /// Their lengths, by file and offset.
    now: BTreeMap<(PathBuf, u64), u64>,
    /// The largest number of them, and of their bytes.
    pub most: usize,
    pub most_bytes: u64,
    /// All that were told of.
    pub all: usize,
}

#[derive(Debug)]
struct WatchedLog {
    path: PathBuf,
    inner: Arc<dyn RandomAccessFile>,
    seen: Arc<Seen>,
}

impl RandomAccessFile for WatchedLog {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.seen.ahead.lock().unwrap().now.remove(&(self.path.clone(), offset));
        self.inner.read_at(offset, buf)
    }
    fn prefetch(&self, offset: u64, len: u64) {
        let mut ahead = self.seen.ahead.lock().unwrap();
        ahead.now.insert((self.path.clone(), offset), len);
        ahead.all += 1;
        ahead.most = ahead.most.max(ahead.now.len());
        ahead.most_bytes = ahead.most_bytes.max(ahead.now.values().sum());
        self.inner.prefetch(offset, len);
    }
    rockmill_io::pass_on! { inner =>
        fn size(&self) -> u64;
        fn is_direct(&self) -> bool;
    }
}

#[derive(Debug)]
pub struct WatchedFileSystem {
    inner: Arc<dyn FileSystem>,
    pub seen: Arc<Seen>,
}

impl WatchedFileSystem {
    pub fn new(inner: Arc<dyn FileSystem>) -> Arc<Self> {
        Arc::new(Self { inner, seen: Arc::default() })
    }
}

fn is_table(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "sst")
}

#[derive(Debug)]
struct WatchedTable {
    inner: Arc<dyn RandomAccessFile>,
    seen: Arc<Seen>,
}

impl Drop for WatchedTable {
    fn drop(&mut self) {
        self.seen.open.fetch_sub(1, Ordering::SeqCst);
    }
}

impl RandomAccessFile for WatchedTable {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.seen.reads.lock().unwrap().push((offset, buf.len()));
        if self.seen.slow.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_micros(100));
        }
        self.inner.read_at(offset, buf)
    }
    fn advise(&self, pattern: AccessPattern) {
        self.seen.advised.lock().unwrap().push(pattern);
        self.inner.advise(pattern);
    }
    fn cached_bytes(&self) -> Option<u64> {
        Some(self.size() * self.seen.cached_percent.load(Ordering::SeqCst) as u64 / 100)
    }
    rockmill_io::pass_on! { inner =>
        fn size(&self) -> u64;
        fn prefetch(&self, offset: u64, len: u64);
        fn is_direct(&self) -> bool;
    }
}

#[derive(Debug)]
struct SlowFile(Box<dyn WritableFile>);

impl WritableFile for SlowFile {
    fn append(&mut self, data: &[u8]) -> io::Result<()> {
        std::thread::sleep(Duration::from_nanos(100 * data.len() as u64));
        self.0.append(data)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
    fn sync(&mut self) -> io::Result<()> {
        self.0.sync()
    }
    fn close(&mut self) -> io::Result<()> {
        self.0.close()
    }
    fn len(&self) -> u64 {
        self.0.len()
    }
}

impl FileSystem for WatchedFileSystem {
    fn open_random(&self, path: &Path, direct: bool) -> io::Result<Arc<dyn RandomAccessFile>> {
        let inner = self.inner.open_random(path, direct)?;
        let seen = Arc::clone(&self.seen);
        if path.extension().is_some_and(|e| e == "log") {
            return Ok(Arc::new(WatchedLog { path: path.to_owned(), inner, seen }));
        }
        if !is_table(path) {
            return Ok(inner);
        }
        seen.opened_direct.lock().unwrap().push(direct);
        let open = seen.open.fetch_add(1, Ordering::SeqCst) + 1;
        seen.open_max.fetch_max(open, Ordering::SeqCst);
        Ok(Arc::new(WatchedTable { inner, seen }))
    }
    fn create(&self, path: &Path, options: WriteOptions) -> io::Result<Box<dyn WritableFile>> {
        if is_table(path) {
            self.seen.created.lock().unwrap().push(options);
            if self.seen.slow.load(Ordering::SeqCst) {
                return Ok(Box::new(SlowFile(self.inner.create(path, options)?)));
            }
        }
        self.inner.create(path, options)
    }
    fn batch_io(&self, kind: BatchKind, limits: &BatchLimits) -> io::Result<BatchIo> {
        match kind {
            _ if self.seen.rings.load(Ordering::SeqCst) => self.inner.batch_io(kind, limits),
            BatchKind::Uring => Err(io::ErrorKind::Unsupported.into()),
            BatchKind::Auto | BatchKind::Pread => {
                self.seen.plain_memory.lock().unwrap().push(limits.memory_bytes);
                BatchIo::plain(limits, None)
            }
        }
    }
    rockmill_io::pass_on! { inner =>
        fn same_file(&self, a: &Path, b: &Path) -> io::Result<bool>;
        fn open_sequential(&self, path: &Path) -> io::Result<Box<dyn SequentialFile>>;
        fn reuse(&self, old: &Path, new: &Path, options: WriteOptions) -> io::Result<Box<dyn WritableFile>>;
        fn list_dir(&self, path: &Path) -> io::Result<Vec<String>>;
        fn exists(&self, path: &Path) -> io::Result<bool>;
        fn file_size(&self, path: &Path) -> io::Result<u64>;
        fn modified_seconds(&self, path: &Path) -> io::Result<u64>;
        fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
        fn remove(&self, path: &Path) -> io::Result<()>;
        fn remove_dir(&self, path: &Path) -> io::Result<()>;
        fn create_dir(&self, path: &Path, parents: bool) -> io::Result<()>;
        fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()>;
        fn truncate(&self, path: &Path, len: u64) -> io::Result<()>;
        fn sync_file(&self, path: &Path) -> io::Result<()>;
        fn sync_dir(&self, path: &Path) -> io::Result<()>;
        fn lock(&self, path: &Path) -> io::Result<Box<dyn FileLock>>;
        fn free_space(&self, path: &Path) -> io::Result<u64>;
        fn entry(&self, path: &Path) -> io::Result<Option<Entry>>;
    }
}
