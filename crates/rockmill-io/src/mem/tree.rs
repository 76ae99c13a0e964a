//! The disk of the memory file system: inodes and directories, each with its durable state.
//!
//! Every change is an [`Event`] applied to a [`Tree`], so that a recorded run can be replayed up to any point.
//!
//! Durability follows the strictest reading of POSIX:
//!
//! - a file's bytes and length are those at its last sync;
//! - a directory's entries are those at the directory's last sync; syncing a file does not make its name durable;
//! - a rename is also atomic with respect to crashes;
//! - data that a failed sync or write-back of a file should have made durable is lost, and no later sync brings it
//!   back, although reads through the page cache still see it; direct reads see the disk's contents. A failed sync of a
//!   directory changes nothing: with a journal, the file system then refuses further changes, and without one, the next
//!   change in the directory writes its block again.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::path::{Component, Path};
use std::sync::Arc;

/// Number of a file or directory; never used twice.
pub(super) type Id = u64;

/// The root directory.
pub(super) const ROOT: Id = 0;

/// A change of one file's contents that its next sync makes durable.
#[derive(Debug, Clone)]
pub(super) enum DataOp {
    Write { offset: u64, data: Arc<[u8]> },
    SetLen(u64),
}

impl DataOp {
    pub(super) fn apply(&self, contents: &mut Vec<u8>) {
        match self {
            DataOp::Write { offset, data } => write_at(contents, *offset as usize, data),
            DataOp::SetLen(len) => contents.resize(*len as usize, 0),
        }
    }
}

/// Overwrites, extending with zeros where needed.
pub(super) fn write_at(contents: &mut Vec<u8>, offset: usize, data: &[u8]) {
    if contents.len() == offset {
        contents.extend_from_slice(data);
        return;
    }
    let end = offset + data.len();
    if contents.len() < end {
        contents.resize(end, 0);
    }
    contents[offset..end].copy_from_slice(data);
}

/// An atomic change of directory entries: `(directory, name, entry after the change)`.
#[derive(Debug, Clone)]
pub(super) struct DirOp(pub(super) Vec<(Id, OsString, Option<Id>)>);

/// An event on the disk.
#[derive(Debug, Clone)]
pub(super) enum Event {
    /// A new, empty inode with its first name.
    Create { id: Id, is_dir: bool, parent: Id, name: OsString },
    /// Names change.
    Entries(DirOp),
    /// Contents change.
    Data(Id, DataOp),
    /// The file is synced.
    Sync(Id),
    /// The file's sync or write-back failed: the kernel drops the dirty data without having written it.
    SyncFailed(Id),
    /// The file's clean pages leave the page cache.
    CacheDropped(Id),
    /// The directory is synced.
    SyncDir(Id),
}

#[derive(Debug, Clone, Default)]
pub(super) struct FileNode {
    pub(super) current: Arc<Vec<u8>>,
    pub(super) durable: Arc<Vec<u8>>,
    /// Changes of `current` since the last sync.
    pub(super) pending: Vec<DataOp>,
    /// A write-back failed: the disk may differ from `current` even where nothing is pending.
    pub(super) lost: bool,
    /// When `current` last changed, in seconds since the Unix epoch.
    pub(super) modified: u64,
    /// Shared with every open handle; keeps an unlinked file alive.
    pub(super) handles: Arc<()>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct DirNode {
    pub(super) current: BTreeMap<OsString, Id>,
    pub(super) durable: BTreeMap<OsString, Id>,
}

#[derive(Debug, Clone)]
pub(super) enum Node {
    File(FileNode),
    Dir(DirNode),
}

/// All files and directories.
#[derive(Debug, Clone)]
pub(super) struct Tree {
    pub(super) nodes: BTreeMap<Id, Node>,
    /// Entry changes that no directory sync has made durable, in order.
    pub(super) pending: Vec<DirOp>,
    next_id: Id,
}

impl Default for Tree {
    fn default() -> Self {
        Self { nodes: BTreeMap::from([(ROOT, Node::Dir(DirNode::default()))]), pending: Vec::new(), next_id: ROOT + 1 }
    }
}

pub(super) fn errno(code: i32) -> io::Error {
    io::Error::from_raw_os_error(code)
}

/// The names of a path, with `.` and `..` resolved. Relative paths start at the root.
fn names(path: &Path) -> Vec<OsString> {
    let mut names = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => names.push(name.to_owned()),
            Component::ParentDir => drop(names.pop()),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    names
}

impl Tree {
    pub(super) fn new_id(&self) -> Id {
        self.next_id
    }

    pub(super) fn file(&self, id: Id) -> Option<&FileNode> {
        match self.nodes.get(&id) {
            Some(Node::File(file)) => Some(file),
            _ => None,
        }
    }

    pub(super) fn file_mut(&mut self, id: Id) -> Option<&mut FileNode> {
        match self.nodes.get_mut(&id) {
            Some(Node::File(file)) => Some(file),
            _ => None,
        }
    }

    pub(super) fn dir(&self, id: Id) -> Option<&DirNode> {
        match self.nodes.get(&id) {
            Some(Node::Dir(dir)) => Some(dir),
            _ => None,
        }
    }

    fn dir_mut(&mut self, id: Id) -> Option<&mut DirNode> {
        match self.nodes.get_mut(&id) {
            Some(Node::Dir(dir)) => Some(dir),
            _ => None,
        }
    }

    fn walk(&self, names: &[OsString]) -> io::Result<Id> {
        let mut at = ROOT;
        for name in names {
            let dir = self.dir(at).ok_or_else(|| errno(libc::ENOTDIR))?;
            at = *dir.current.get(name).ok_or_else(|| errno(libc::ENOENT))?;
        }
        Ok(at)
    }

    /// What a path names now.
    pub(super) fn find(&self, path: &Path) -> io::Result<Id> {
        self.walk(&names(path))
    }

    /// The file that a path names now.
    pub(super) fn find_file(&self, path: &Path) -> io::Result<(Id, &FileNode)> {
        let id = self.find(path)?;
        Ok((id, self.file(id).ok_or_else(|| errno(libc::EISDIR))?))
    }

    /// The directory that a path names now.
    pub(super) fn find_dir(&self, path: &Path) -> io::Result<(Id, &DirNode)> {
        let id = self.find(path)?;
        Ok((id, self.dir(id).ok_or_else(|| errno(libc::ENOTDIR))?))
    }

    /// The directory of a path's last name, that name, and its current node.
    pub(super) fn find_entry(&self, path: &Path) -> io::Result<(Id, OsString, Option<Id>)> {
        let mut names = names(path);
        let name = names.pop().ok_or_else(|| errno(libc::EBUSY))?;
        let parent = self.walk(&names)?;
        let dir = self.dir(parent).ok_or_else(|| errno(libc::ENOTDIR))?;
        let there = dir.current.get(&name).copied();
        Ok((parent, name, there))
    }

    /// A path in one spelling, to compare.
    pub(super) fn key(path: &Path) -> Vec<OsString> {
        names(path)
    }

    /// Bytes of all files that have a name or are open.
    pub(super) fn used_bytes(&self) -> u64 {
        let mut named = BTreeSet::new();
        for node in self.nodes.values() {
            if let Node::Dir(dir) = node {
                named.extend(dir.current.values().copied());
            }
        }
        let alive = |id: &Id, file: &FileNode| named.contains(id) || Arc::strong_count(&file.handles) > 1;
        self.nodes
            .iter()
            .filter_map(|(id, node)| match node {
                Node::File(file) if alive(id, file) => Some(file.current.len() as u64),
                _ => None,
            })
            .sum()
    }

    /// Bytes of all files in one directory.
    pub(super) fn used_bytes_in(&self, dir: Id) -> u64 {
        let files = self.dir(dir).into_iter().flat_map(|dir| dir.current.values());
        files.filter_map(|id| self.file(*id)).map(|file| file.current.len() as u64).sum()
    }

    /// The directories that contain names of a file, once for each name.
    pub(super) fn named_in(&self, id: Id) -> impl Iterator<Item = Id> {
        self.nodes.iter().flat_map(move |(at, node)| {
            let dir = if let Node::Dir(dir) = node { Some(dir) } else { None };
            dir.into_iter().flat_map(|dir| dir.current.values()).filter(move |named| **named == id).map(|_| *at)
        })
    }

    pub(super) fn apply(&mut self, event: &Event) {
        match event {
            Event::Create { id, is_dir, parent, name } => {
                let node = if *is_dir { Node::Dir(DirNode::default()) } else { Node::File(FileNode::default()) };
                self.nodes.insert(*id, node);
                self.next_id = self.next_id.max(id + 1);
                self.change_entries(DirOp(vec![(*parent, name.clone(), Some(*id))]));
            }
            Event::Entries(op) => self.change_entries(op.clone()),
            Event::Data(id, op) => {
                // A replay may write to unlinked, closed and collected files; that has no visible effect.
                if let Some(file) = self.file_mut(*id) {
                    op.apply(Arc::make_mut(&mut file.current));
                    file.pending.push(op.clone());
                }
            }
            Event::Sync(id) => {
                if let Some(file) = self.file_mut(*id) {
                    file.sync();
                }
            }
            Event::SyncFailed(id) => {
                if let Some(file) = self.file_mut(*id) {
                    file.lost |= !file.pending.is_empty();
                    file.pending.clear();
                }
            }
            Event::CacheDropped(id) => {
                if let Some(file) = self.file_mut(*id) {
                    file.current = Arc::new(file.on_disk().into_owned());
                    file.lost = false;
                }
            }
            Event::SyncDir(id) => self.sync_dir(*id),
        }
    }

    fn change_entries(&mut self, op: DirOp) {
        for (dir, name, after) in &op.0 {
            if let Some(dir) = self.dir_mut(*dir) {
                set_entry(&mut dir.current, name, *after);
            }
        }
        self.pending.push(op);
    }

    /// Makes an entry change durable.
    pub(super) fn settle(&mut self, op: &DirOp) {
        for (dir, name, after) in &op.0 {
            if let Some(dir) = self.dir_mut(*dir) {
                set_entry(&mut dir.durable, name, *after);
            }
        }
    }

    fn sync_dir(&mut self, id: Id) {
        // A rename between two directories becomes durable as a whole, together with everything before it in both.
        let mut dirs = BTreeSet::from([id]);
        loop {
            let before = dirs.len();
            for op in &self.pending {
                if op.0.iter().any(|(dir, ..)| dirs.contains(dir)) {
                    dirs.extend(op.0.iter().map(|(dir, ..)| *dir));
                }
            }
            if dirs.len() == before {
                break;
            }
        }
        let (settled, rest) = std::mem::take(&mut self.pending)
            .into_iter()
            .partition(|op| op.0.iter().any(|(dir, ..)| dirs.contains(dir)));
        self.pending = rest;
        for op in &settled {
            self.settle(op);
        }
        self.collect();
    }

    /// Drops the nodes that no name, now or after any crash, and no open handle can reach.
    pub(super) fn collect(&mut self) {
        let mut reachable = BTreeSet::from([ROOT]);
        for node in self.nodes.values() {
            if let Node::Dir(dir) = node {
                reachable.extend(dir.current.values().chain(dir.durable.values()).copied());
            }
        }
        reachable.extend(self.pending.iter().flat_map(|op| op.0.iter().filter_map(|(_, _, after)| *after)));
        self.nodes.retain(|id, node| {
            reachable.contains(id) || matches!(node, Node::File(file) if Arc::strong_count(&file.handles) > 1)
        });
    }
}

fn set_entry(entries: &mut BTreeMap<OsString, Id>, name: &OsString, after: Option<Id>) {
    match after {
        Some(id) => drop(entries.insert(name.clone(), id)),
        None => drop(entries.remove(name)),
    }
}

impl FileNode {
    /// The result of a direct read: the kernel first writes pending data, but not data that it has dropped.
    pub(super) fn on_disk(&self) -> Cow<'_, [u8]> {
        if !self.lost {
            return Cow::Borrowed(&self.current);
        }
        let mut bytes = Cow::Borrowed(&self.durable[..]);
        for op in &self.pending {
            op.apply(bytes.to_mut());
        }
        bytes
    }

    fn sync(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        // Data dropped by a failed sync must stay lost, so only pending changes are carried over. If all of a file is
        // pending, its bytes are shared: a table, written once and synced once, is stored once.
        let pending = std::mem::take(&mut self.pending);
        if self.durable.is_empty() && covers(&pending, self.current.len()) {
            self.durable = Arc::clone(&self.current);
            self.lost = false;
            return;
        }
        let durable = Arc::make_mut(&mut self.durable);
        for op in &pending {
            op.apply(durable);
        }
        // Written anew, or cut.
        self.lost &= self.durable != self.current;
    }
}

/// True if the writes are appends that make up the whole file.
fn covers(pending: &[DataOp], len: usize) -> bool {
    let mut end = 0;
    for op in pending {
        match op {
            DataOp::Write { offset, data } if *offset == end => end += data.len() as u64,
            _ => return false,
        }
    }
    end == len as u64
}
