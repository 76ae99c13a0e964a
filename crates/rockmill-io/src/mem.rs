//! A file system in memory, for tests: it remembers what was synced, can be cut at any point, and can fail.
//!
//! A [`MemFileSystem`] is a handle; its clones show the same files. Three things make it a twin of a disk:
//!
//! - **Crash images.** [`MemFileSystem::crash_image`] gives a new, independent file system as the next start would
//!   find it after a power cut now. After [`MemFileSystem::start_recording`] the same can be had later for every
//!   point in between, by [`MemFileSystem::replay`].
//! - **Faults.** A hook sees every call before it happens and decides what it does: as asked, fail, happen partly, flip
//!   a bit, wait.
//! - **Counts.** Every call has a number and is counted by kind, so that a test can fail each in turn.
//!
//! Relative paths start at the root, which is there from the start.

mod crash;
mod file;
mod positioned;
mod tree;

pub use crash::{CrashMode, Replay};

use crate::clock::{Clock, SystemClock};
use crate::error::{has_other_names, path_error};
use crate::fs::{
    Entry, EntryKind, FileLock, FileSystem, PositionedFile, RandomAccessFile, SequentialFile, WritableFile,
    WriteOptions,
};
use crate::op::{FailHook, Fault, FaultHook, Op, OpKind};
use crate::ring::{BatchIo, BatchKind, BatchLimits, BatchProbe, CallOrder};
use crate::sync::{Mutex, RwLock};
use crash::Recording;
use file::{Handle, MemRandomAccessFile, MemSequentialFile, MemWritableFile};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tree::{DataOp, DirOp, Event, FileNode, Id, Node, Tree, errno};

/// What free space is said to be when none was set.
const FREE_SPACE_DEFAULT: u64 = 1 << 40;

/// Longest file that a truncate makes: there are no holes here, every byte takes memory.
const FILE_BYTES_MAX: u64 = 16 << 30;

/// The files, and their state while the file system is in use.
#[derive(Debug)]
struct Live {
    tree: Tree,
    recording: Option<Recording>,
    /// Bytes that all files together may have; `None` for no limit.
    capacity: Option<u64>,
    /// The same for directories that are separate devices.
    devices: BTreeMap<Id, u64>,
    /// What modification times are taken from.
    clock: Arc<dyn Clock>,
}

impl Live {
    fn commit(&mut self, event: Event) {
        self.tree.apply(&event);
        if let Event::Create { id, .. } | Event::Data(id, _) = &event
            && let Some(file) = self.tree.file_mut(*id)
        {
            file.modified = self.clock.now_micros() / 1_000_000;
        }
        if let Some(recording) = &mut self.recording {
            recording.events.push(event);
        }
    }

    fn free(&self) -> Option<u64> {
        self.capacity.map(|capacity| capacity.saturating_sub(self.tree.used_bytes()))
    }

    /// The same of the device that a directory is.
    fn free_in(&self, dir: Id) -> Option<u64> {
        self.devices.get(&dir).map(|capacity| capacity.saturating_sub(self.tree.used_bytes_in(dir)))
    }

    /// How much of a write of `len` bytes fits.
    fn room_for(&self, id: Id, offset: u64, len: usize) -> usize {
        let mut free = self.free();
        if !self.devices.is_empty() {
            free = free.into_iter().chain(self.tree.named_in(id).filter_map(|dir| self.free_in(dir))).min();
        }
        let Some(free) = free else { return len };
        let size = self.tree.file(id).map_or(0, |file| file.current.len() as u64);
        let room = (size + free).saturating_sub(offset);
        usize::try_from(room).map_or(len, |room| room.min(len))
    }
}

struct Shared {
    live: RwLock<Live>,
    hook: Mutex<Option<FaultHook>>,
    /// Avoids locking the hook's mutex while there is no hook.
    hooked: AtomicBool,
    calls: AtomicU64,
    counts: [AtomicU64; OpKind::ALL.len()],
    locks: Mutex<BTreeSet<Vec<OsString>>>,
    batch: Mutex<Batch>,
}

/// How batched I/O is performed.
#[derive(Debug)]
struct Batch {
    order: CallOrder,
    /// Why there is none of io_uring's kind.
    refused: Option<String>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("calls", &self.calls).finish_non_exhaustive()
    }
}

impl Shared {
    /// The simulation of a ring.
    fn ring(&self, limits: &BatchLimits) -> io::Result<BatchIo> {
        let batch = self.batch.lock();
        match &batch.refused {
            Some(reason) => Err(io::Error::new(io::ErrorKind::Unsupported, reason.clone())),
            None => BatchIo::calls(limits, batch.order, BatchKind::Uring, None),
        }
    }

    /// Counts a call and asks the hook about it. Delays have passed when this returns.
    fn gate(&self, kind: OpKind, path: &Path, to: Option<&Path>, offset: u64, len: u64) -> Fault {
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        self.counts[kind as usize].fetch_add(1, Ordering::Relaxed);
        if !self.hooked.load(Ordering::Acquire) {
            return Fault::None;
        }
        let fault = match &mut *self.hook.lock() {
            Some(hook) => hook(&Op { kind, path, to, offset, len, number }),
            None => Fault::None,
        };
        let fault = match fault {
            Fault::Deferred(decide) => decide(),
            fault => fault,
        };
        match fault {
            Fault::Delay(time) => std::thread::sleep(time),
            Fault::After(wait) => {
                wait();
                return Fault::None;
            }
            _ => {}
        }
        fault
    }
}

/// A file system in memory. Clones show the same files.
#[derive(Debug, Clone)]
pub struct MemFileSystem {
    shared: Arc<Shared>,
}

impl Default for MemFileSystem {
    fn default() -> Self {
        Self::from_tree(Tree::default())
    }
}

impl MemFileSystem {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    fn from_tree(tree: Tree) -> Self {
        let shared = Shared {
            live: RwLock::new(Live {
                tree,
                recording: None,
                capacity: None,
                devices: BTreeMap::new(),
                clock: Arc::new(SystemClock::default()),
            }),
            hook: Mutex::new(None),
            hooked: AtomicBool::new(false),
            calls: AtomicU64::new(0),
            counts: std::array::from_fn(|_| AtomicU64::new(0)),
            locks: Mutex::new(BTreeSet::new()),
            batch: Mutex::new(Batch { order: CallOrder::Random(1), refused: None }),
        };
        Self { shared: Arc::new(shared) }
    }

    /// A new file system as the next start would find it after a power cut now. Has no locks, hooks, limits or counts.
    pub fn crash_image(&self, mode: CrashMode) -> MemFileSystem {
        Self::from_tree(self.shared.live.read().tree.crash(mode))
    }

    /// A copy of the file system as the next process finds it when this process dies and the machine keeps running.
    /// Names, dirty pages and failed write-backs (see [`fail_write_back`](Self::fail_write_back)) are kept; locks,
    /// hooks, limits and counts are not. A crash image of the copy is what a power cut after the death leaves.
    pub fn next_process(&self) -> MemFileSystem {
        Self::from_tree(self.shared.live.read().tree.next_process())
    }

    /// Makes the kernel's own write-back of a file fail silently: no call returns the error. Bytes that were not yet
    /// durable stay in the page cache and count as clean, and the disk keeps its old bytes. This is not counted as a
    /// call, and a recording includes it.
    ///
    /// # Errors
    /// There is no such file.
    pub fn fail_write_back(&self, path: &Path) -> io::Result<()> {
        let mut live = self.shared.live.write();
        let id = live.tree.find_file(path).map_err(|e| path_error("fail the write-back of", path, e))?.0;
        live.commit(Event::SyncFailed(id));
        Ok(())
    }

    /// Evicts a file's clean pages from the page cache, as the kernel may do at any time. Reads then return dirty bytes
    /// where there are any, and the disk's bytes elsewhere. This is not counted as a call, and a recording includes it.
    ///
    /// # Errors
    /// There is no such file.
    pub fn drop_cache(&self, path: &Path) -> io::Result<()> {
        let mut live = self.shared.live.write();
        let id = live.tree.find_file(path).map_err(|e| path_error("drop from the cache", path, e))?.0;
        live.commit(Event::CacheDropped(id));
        Ok(())
    }

    /// From now on records every change for [`replay`](Self::replay); discards the previous recording.
    pub fn start_recording(&self) {
        let mut live = self.shared.live.write();
        live.recording = Some(Recording { base: live.tree.clone(), events: Vec::new() });
    }

    /// Number of changes recorded so far: the current crash point. 0 when not recording.
    pub fn recorded(&self) -> usize {
        self.shared.live.read().recording.as_ref().map_or(0, |recording| recording.events.len())
    }

    /// The recording so far, for stepping through it; `None` when not recording.
    pub fn replay(&self) -> Option<Replay> {
        self.shared.live.read().recording.clone().map(Replay::new)
    }

    /// The disk after a power cut at one recorded point (see [`Replay`] for many); `None` when not recording.
    pub fn crash_image_at(&self, point: usize, mode: CrashMode) -> Option<MemFileSystem> {
        let mut replay = self.replay()?;
        replay.advance_to(point);
        Some(replay.crash_image(mode))
    }

    /// Lets a hook decide about every call.
    pub fn set_hook(&self, hook: FaultHook) {
        *self.shared.hook.lock() = Some(hook);
        self.shared.hooked.store(true, Ordering::Release);
    }

    /// Lets a function fail calls: those for which it gives an error.
    pub fn set_fault(&self, mut fault: FailHook) {
        self.set_hook(Box::new(move |op| fault(op).map_or(Fault::None, Fault::Error)));
    }

    /// No more faults.
    pub fn clear_fault(&self) {
        self.shared.hooked.store(false, Ordering::Release);
        *self.shared.hook.lock() = None;
    }

    /// Lets `calls` more calls pass and fails all after them: a disk that dies.
    pub fn fail_after(&self, calls: u64, errno: i32) {
        let first = self.calls() + calls;
        self.set_fault(Box::new(move |op| (op.number >= first).then(|| io::Error::from_raw_os_error(errno))));
    }

    /// Lets `calls` more calls pass and fails only the next: for tests that fail each call in turn.
    pub fn fail_once_after(&self, calls: u64, errno: i32) {
        let at = self.calls() + calls;
        self.set_fault(Box::new(move |op| (op.number == at).then(|| io::Error::from_raw_os_error(errno))));
    }

    /// Calls so far.
    pub fn calls(&self) -> u64 {
        self.shared.calls.load(Ordering::Relaxed)
    }

    /// Calls of one kind so far.
    pub fn calls_of(&self, kind: OpKind) -> u64 {
        self.shared.counts[kind as usize].load(Ordering::Relaxed)
    }

    /// The order in which operations of batched I/O created from now on happen; this simulates a ring. The default is
    /// random, with the same seed each time.
    pub fn set_batch_order(&self, order: CallOrder) {
        self.shared.batch.lock().order = order;
    }

    /// Refuses rings from now on, for this reason; `None` grants them.
    pub fn refuse_rings(&self, reason: Option<&str>) {
        self.shared.batch.lock().refused = reason.map(str::to_string);
    }

    /// Says how many bytes are free from now on; a write that does not fit happens as far as it does and fails with
    /// ENOSPC. Deleting files makes room again. `None` lifts the limit.
    pub fn set_free_space(&self, bytes: Option<u64>) {
        let mut live = self.shared.live.write();
        live.capacity = bytes.map(|bytes| live.tree.used_bytes().saturating_add(bytes));
    }

    /// The same of a directory that is a device of its own: of the files that have a name in it.
    ///
    /// # Errors
    /// There is no such directory.
    pub fn set_free_space_in(&self, dir: &Path, bytes: Option<u64>) -> io::Result<()> {
        let mut live = self.shared.live.write();
        let id = live.tree.find_dir(dir).map_err(|e| path_error("bound the space in", dir, e))?.0;
        match bytes {
            Some(bytes) => {
                let capacity = live.tree.used_bytes_in(id).saturating_add(bytes);
                live.devices.insert(id, capacity);
            }
            None => drop(live.devices.remove(&id)),
        }
        Ok(())
    }

    /// Takes modification times from this clock from now on.
    pub fn set_clock(&self, clock: Arc<dyn Clock>) {
        self.shared.live.write().clock = clock;
    }

    /// Bytes of all files.
    pub fn used_bytes(&self) -> u64 {
        self.shared.live.read().tree.used_bytes()
    }

    /// Damages a stored file for good, as an ageing disk would: flips one bit, counted from the file's start. Fails
    /// with UnexpectedEof beyond its end. No call, no crash point.
    pub fn flip_stored_bit(&self, path: &Path, bit: u64) -> io::Result<()> {
        let failed = |e| path_error("flip a bit of", path, e);
        let mut live = self.shared.live.write();
        let id = live.tree.find_file(path).map_err(failed)?.0;
        let Some(Node::File(file)) = live.tree.nodes.get_mut(&id) else {
            return Err(failed(errno(libc::ENOENT)));
        };
        let at = usize::try_from(bit / 8).unwrap_or(usize::MAX);
        if at >= file.current.len() {
            return Err(failed(io::ErrorKind::UnexpectedEof.into()));
        }
        Arc::make_mut(&mut file.current)[at] ^= 1 << (bit % 8);
        if let Some(byte) = Arc::make_mut(&mut file.durable).get_mut(at) {
            *byte ^= 1 << (bit % 8);
        }
        Ok(())
    }

    /// Counts a call without a transfer and fails it if so decided.
    fn enter(&self, kind: OpKind, path: &Path, to: Option<&Path>) -> io::Result<()> {
        self.enter_at(kind, path, to, 0)
    }

    fn enter_at(&self, kind: OpKind, path: &Path, to: Option<&Path>, offset: u64) -> io::Result<()> {
        match self.shared.gate(kind, path, to, offset, 0) {
            Fault::Error(e) | Fault::Partial(_, e) => Err(e),
            Fault::None
            | Fault::Short(_)
            | Fault::FlipBit(_)
            | Fault::Delay(_)
            | Fault::After(_)
            | Fault::Deferred(_) => Ok(()),
        }
    }

    fn handle(&self, id: Id, file: &FileNode, path: &Path) -> Handle {
        Handle::new(Arc::clone(&self.shared), id, path, Arc::clone(&file.handles))
    }

    fn open(&self, kind: OpKind, path: &Path) -> io::Result<(Handle, u64)> {
        self.enter(kind, path, None)?;
        let live = self.shared.live.read();
        let (id, file) = live.tree.find_file(path)?;
        Ok((self.handle(id, file, path), file.current.len() as u64))
    }

    fn create_file(&self, path: &Path) -> io::Result<Handle> {
        self.enter(OpKind::Create, path, None)?;
        let mut live = self.shared.live.write();
        let (parent, name, there) = live.tree.find_entry(path).map_err(root_is_dir)?;
        if let Some(id) = there {
            live.tree.file(id).ok_or_else(|| errno(libc::EISDIR))?;
            live.commit(Event::Entries(DirOp(vec![(parent, name.clone(), None)])));
        }
        let id = live.tree.new_id();
        live.commit(Event::Create { id, is_dir: false, parent, name });
        let file = live.tree.file(id).ok_or_else(|| errno(libc::ENOENT))?;
        Ok(self.handle(id, file, path))
    }

    fn rename_entry(live: &mut Live, from: &Path, to: &Path) -> io::Result<()> {
        let (from_dir, from_name, moved) = live.tree.find_entry(from)?;
        let moved = moved.ok_or_else(|| errno(libc::ENOENT))?;
        let (to_dir, to_name, replaced) = live.tree.find_entry(to)?;
        let is_dir = live.tree.dir(moved).is_some();
        if let Some(replaced) = replaced {
            if replaced == moved {
                // POSIX: two names of one file, or one name twice; both stay.
                return Ok(());
            }
            match (is_dir, live.tree.dir(replaced)) {
                (true, None) => return Err(errno(libc::ENOTDIR)),
                (false, Some(_)) => return Err(errno(libc::EISDIR)),
                (true, Some(dir)) if !dir.current.is_empty() => return Err(errno(libc::ENOTEMPTY)),
                _ => {}
            }
        }
        if is_dir && Tree::key(to).starts_with(&Tree::key(from)) {
            return Err(errno(libc::EINVAL));
        }
        let changes = vec![(from_dir, from_name, None), (to_dir, to_name, Some(moved))];
        live.commit(Event::Entries(DirOp(changes)));
        Ok(())
    }

    fn remove_entry(&self, path: &Path, want_dir: bool) -> io::Result<()> {
        let mut live = self.shared.live.write();
        let (parent, name, there) = live.tree.find_entry(path)?;
        let id = there.ok_or_else(|| errno(libc::ENOENT))?;
        match (want_dir, live.tree.dir(id)) {
            (true, None) => return Err(errno(libc::ENOTDIR)),
            (true, Some(dir)) if !dir.current.is_empty() => return Err(errno(libc::ENOTEMPTY)),
            (false, Some(_)) => return Err(errno(libc::EISDIR)),
            _ => {}
        }
        live.commit(Event::Entries(DirOp(vec![(parent, name, None)])));
        Ok(())
    }

    fn make_dir(live: &mut Live, path: &Path) -> io::Result<()> {
        if live.tree.find_dir(path).is_ok() {
            return Ok(());
        }
        let (parent, name, there) = live.tree.find_entry(path)?;
        if there.is_some() {
            return Err(errno(libc::EEXIST));
        }
        let id = live.tree.new_id();
        live.commit(Event::Create { id, is_dir: true, parent, name });
        Ok(())
    }
}

/// The root has no entry, but for who wants a file there it is a directory like any other.
fn root_is_dir(error: io::Error) -> io::Error {
    if error.raw_os_error() == Some(libc::EBUSY) { errno(libc::EISDIR) } else { error }
}

fn pair_error(operation: &str, from: &Path, to: &Path, cause: io::Error) -> io::Error {
    path_error(format!("{operation} {} to", from.display()), to, cause)
}

impl FileSystem for MemFileSystem {
    fn open_random(&self, path: &Path, direct: bool) -> io::Result<Arc<dyn RandomAccessFile>> {
        let (handle, size) =
            self.open(OpKind::OpenRandom, path).map_err(|e| path_error("open for reading", path, e))?;
        Ok(Arc::new(MemRandomAccessFile { handle: handle.direct(direct), size }))
    }

    fn open_sequential(&self, path: &Path) -> io::Result<Box<dyn SequentialFile>> {
        let (handle, _) =
            self.open(OpKind::OpenSequential, path).map_err(|e| path_error("open for reading", path, e))?;
        Ok(Box::new(MemSequentialFile { handle, position: 0 }))
    }

    fn create(&self, path: &Path, options: WriteOptions) -> io::Result<Box<dyn WritableFile>> {
        let handle = self.create_file(path).map_err(|e| path_error("create", path, e))?;
        Ok(Box::new(MemWritableFile::new(handle, &options, false)))
    }

    fn create_positioned(&self, path: &Path, options: WriteOptions) -> io::Result<Box<dyn PositionedFile>> {
        let handle = self.create_file(path).map_err(|e| path_error("create", path, e))?;
        Ok(Box::new(positioned::MemPositionedFile::new(handle, options.direct)))
    }

    fn batch_io(&self, kind: BatchKind, limits: &BatchLimits) -> io::Result<BatchIo> {
        let refused = self.shared.batch.lock().refused.clone();
        match (kind, refused) {
            (BatchKind::Pread, _) => BatchIo::plain(limits, None),
            (BatchKind::Auto, Some(reason)) => BatchIo::plain(limits, Some(reason)),
            (BatchKind::Uring, _) | (BatchKind::Auto, None) => self.shared.ring(limits),
        }
    }

    fn batch_probe(&self) -> BatchProbe {
        match &self.shared.batch.lock().refused {
            Some(reason) => BatchProbe::unavailable(reason.clone()),
            None => BatchProbe { available: true, reason: "rings of the memory file system".to_string() },
        }
    }

    fn reuse(&self, old: &Path, new: &Path, options: WriteOptions) -> io::Result<Box<dyn WritableFile>> {
        let failed = |e| pair_error("reuse", old, new, e);
        self.enter(OpKind::Reuse, old, Some(new)).map_err(failed)?;
        let mut live = self.shared.live.write();
        let (id, file) = live.tree.find_file(old).map_err(failed)?;
        if live.tree.named_in(id).nth(1).is_some() {
            return Err(failed(has_other_names()));
        }
        let handle = self.handle(id, file, new);
        Self::rename_entry(&mut live, old, new).map_err(failed)?;
        Ok(Box::new(MemWritableFile::new(handle, &options, true)))
    }

    fn list_dir(&self, path: &Path) -> io::Result<Vec<String>> {
        let failed = |e| path_error("list", path, e);
        self.enter(OpKind::ListDir, path, None).map_err(failed)?;
        let live = self.shared.live.read();
        let (_, dir) = live.tree.find_dir(path).map_err(failed)?;
        Ok(dir.current.keys().map(|name| name.to_string_lossy().into_owned()).collect())
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.enter(OpKind::Exists, path, None).map_err(|e| path_error("look for", path, e))?;
        Ok(self.shared.live.read().tree.find(path).is_ok())
    }

    fn entry(&self, path: &Path) -> io::Result<Option<Entry>> {
        self.enter(OpKind::Exists, path, None).map_err(|e| path_error("look for", path, e))?;
        let live = self.shared.live.read();
        let Ok(id) = live.tree.find(path) else { return Ok(None) };
        let kind = if live.tree.dir(id).is_some() { EntryKind::Directory } else { EntryKind::File };
        Ok(Some(Entry { kind, ours: true, shared: live.tree.named_in(id).nth(1).is_some() }))
    }

    fn file_size(&self, path: &Path) -> io::Result<u64> {
        let failed = |e| path_error("stat", path, e);
        self.enter(OpKind::FileSize, path, None).map_err(failed)?;
        let live = self.shared.live.read();
        let id = live.tree.find(path).map_err(failed)?;
        Ok(live.tree.file(id).map_or(0, |file| file.current.len() as u64))
    }

    fn modified_seconds(&self, path: &Path) -> io::Result<u64> {
        let failed = |e| path_error("stat", path, e);
        self.enter(OpKind::FileSize, path, None).map_err(failed)?;
        let live = self.shared.live.read();
        let id = live.tree.find(path).map_err(failed)?;
        Ok(live.tree.file(id).map_or(0, |file| file.modified))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.enter(OpKind::Rename, from, Some(to))
            .and_then(|()| Self::rename_entry(&mut self.shared.live.write(), from, to))
            .map_err(|e| pair_error("rename", from, to, e))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.enter(OpKind::Remove, path, None)
            .and_then(|()| self.remove_entry(path, false))
            .map_err(|e| path_error("delete", path, e))
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.enter(OpKind::RemoveDir, path, None)
            .and_then(|()| self.remove_entry(path, true))
            .map_err(|e| path_error("delete directory", path, e))
    }

    fn create_dir(&self, path: &Path, parents: bool) -> io::Result<()> {
        let failed = |e| path_error("create directory", path, e);
        self.enter(OpKind::CreateDir, path, None).map_err(failed)?;
        let mut live = self.shared.live.write();
        if parents {
            let above: Vec<&Path> = path.ancestors().skip(1).filter(|p| !p.as_os_str().is_empty()).collect();
            for dir in above.into_iter().rev() {
                Self::make_dir(&mut live, dir).map_err(failed)?;
            }
        }
        Self::make_dir(&mut live, path).map_err(failed)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let failed = |e| pair_error("link", from, to, e);
        self.enter(OpKind::HardLink, from, Some(to)).map_err(failed)?;
        let mut live = self.shared.live.write();
        let id = live.tree.find(from).map_err(failed)?;
        if live.tree.file(id).is_none() {
            return Err(failed(errno(libc::EPERM)));
        }
        let (parent, name, there) = live.tree.find_entry(to).map_err(failed)?;
        if there.is_some() {
            return Err(failed(errno(libc::EEXIST)));
        }
        live.commit(Event::Entries(DirOp(vec![(parent, name, Some(id))])));
        Ok(())
    }

    fn truncate(&self, path: &Path, len: u64) -> io::Result<()> {
        let failed = |e| path_error(format!("truncate to {len} bytes"), path, e);
        self.enter_at(OpKind::Truncate, path, None, len).map_err(failed)?;
        if len > FILE_BYTES_MAX {
            return Err(failed(errno(libc::EFBIG)));
        }
        let mut live = self.shared.live.write();
        let id = live.tree.find_file(path).map_err(failed)?.0;
        live.commit(Event::Data(id, DataOp::SetLen(len)));
        Ok(())
    }

    fn sync_file(&self, path: &Path) -> io::Result<()> {
        let failed = |e| path_error("fdatasync", path, e);
        let fault = self.enter(OpKind::Sync, path, None);
        let mut live = self.shared.live.write();
        let id = live.tree.find_file(path).map_err(failed)?.0;
        live.commit(if fault.is_ok() { Event::Sync(id) } else { Event::SyncFailed(id) });
        fault.map_err(failed)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let failed = |e| path_error("fsync directory", path, e);
        self.enter(OpKind::SyncDir, path, None).map_err(failed)?;
        let mut live = self.shared.live.write();
        let id = live.tree.find_dir(path).map_err(failed)?.0;
        live.commit(Event::SyncDir(id));
        Ok(())
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn FileLock>> {
        let failed = |e| path_error("lock", path, e);
        self.enter(OpKind::Lock, path, None).map_err(failed)?;
        let mut locks = self.shared.locks.lock();
        let key = Tree::key(path);
        if locks.contains(&key) {
            let by = format!("already open in this process (pid {}); close that handle first", std::process::id());
            return Err(failed(io::Error::new(io::ErrorKind::WouldBlock, by)));
        }
        let mut live = self.shared.live.write();
        let (parent, name, there) = live.tree.find_entry(path).map_err(failed)?;
        match there {
            Some(id) if live.tree.file(id).is_none() => return Err(failed(errno(libc::EISDIR))),
            Some(_) => {}
            None => {
                let id = live.tree.new_id();
                live.commit(Event::Create { id, is_dir: false, parent, name });
            }
        }
        locks.insert(key.clone());
        Ok(Box::new(MemFileLock { shared: Arc::clone(&self.shared), key }))
    }

    fn free_space(&self, path: &Path) -> io::Result<u64> {
        let failed = |e| path_error("ask the free space at", path, e);
        self.enter(OpKind::FreeSpace, path, None).map_err(failed)?;
        let live = self.shared.live.read();
        let id = live.tree.find(path).map_err(failed)?;
        Ok(live.free().into_iter().chain(live.free_in(id)).min().unwrap_or(FREE_SPACE_DEFAULT))
    }
}

#[derive(Debug)]
struct MemFileLock {
    shared: Arc<Shared>,
    key: Vec<OsString>,
}

impl FileLock for MemFileLock {}

impl Drop for MemFileLock {
    fn drop(&mut self) {
        self.shared.locks.lock().remove(&self.key);
    }
}
