//! Where the tests run: each implementation, with and without the page cache.

use rockmill_io::ring::{BatchIo, BatchKind, BatchLimits, CallOrder};
use rockmill_io::{FileSystem, MemFileSystem, PosixFileSystem, WriteOptions};
use std::path::PathBuf;
use std::sync::Arc;

pub struct Place {
    pub name: String,
    pub fs: Arc<dyn FileSystem>,
    pub root: PathBuf,
    pub kind: BatchKind,
    pub direct: bool,
    _dir: Option<tempfile::TempDir>,
}

impl Place {
    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    pub fn options(&self) -> WriteOptions {
        WriteOptions { direct: self.direct, ..WriteOptions::default() }
    }

    pub fn io(&self, limits: &BatchLimits) -> BatchIo {
        self.fs.batch_io(self.kind, limits).unwrap()
    }
}

/// A directory on the disk of the build directory: the usual temporary directory may be in memory.
pub fn real_dir() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Limits for tests: small, so that they are reached.
pub fn small() -> BatchLimits {
    BatchLimits { memory_bytes: 4 << 20, depth: 32, huge_pages: false, ..BatchLimits::default() }
}

/// True if rings are available; otherwise reports the skip.
pub fn have_ring() -> bool {
    let probe = PosixFileSystem::default().batch_probe();
    if !probe.available {
        rockmill_skip::skip("rings on the disk", &rockmill_skip::Needs::Uring.because(probe.reason));
    }
    probe.available
}

/// Places on the disk.
pub fn on_disk(kind: BatchKind) -> Vec<Place> {
    if kind == BatchKind::Uring && !have_ring() {
        return Vec::new();
    }
    [false, true]
        .into_iter()
        .map(|direct| {
            let dir = real_dir();
            Place {
                name: format!("{kind} on disk, direct: {direct}"),
                fs: Arc::new(PosixFileSystem::default()),
                root: dir.path().to_path_buf(),
                kind,
                direct,
                _dir: Some(dir),
            }
        })
        .collect()
}

/// A place in memory.
pub fn in_memory(order: CallOrder, direct: bool) -> (Place, MemFileSystem) {
    let fs = MemFileSystem::new();
    fs.set_batch_order(order);
    let root = PathBuf::from("/db");
    fs.create_dir(&root, false).unwrap();
    let name = format!("in memory, {order:?}, direct: {direct}");
    let shared: Arc<dyn FileSystem> = Arc::new(fs.clone());
    (Place { name, fs: shared, root, kind: BatchKind::Uring, direct, _dir: None }, fs)
}

/// Runs a test in each place.
pub fn everywhere(test: impl Fn(&Place)) {
    let orders = [CallOrder::Oldest, CallOrder::Newest, CallOrder::Random(7), CallOrder::OnDemand];
    let memory = orders.into_iter().flat_map(|order| [false, true].map(|direct| in_memory(order, direct).0));
    let all = on_disk(BatchKind::Uring).into_iter().chain(on_disk(BatchKind::Pread)).chain(memory);
    for place in all {
        println!("{}", place.name);
        test(&place);
    }
}

/// Bytes without repetitions nearby.
pub fn pattern(len: usize, salt: u32) -> Vec<u8> {
    (0..len).map(|i| ((i as u32) ^ salt.rotate_left(16)).wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect()
}
