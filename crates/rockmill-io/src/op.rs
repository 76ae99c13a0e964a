//! Names for the calls of the I/O layer, and what a test can make of one.

use std::io;
use std::path::Path;
use std::time::Duration;

/// A kind of call, at the level of the kernel: an append that only fills a buffer is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[expect(missing_docs, reason = "each is the FileSystem or file method of that name, or said below")]
pub enum OpKind {
    OpenRandom,
    OpenSequential,
    Create,
    Reuse,
    ListDir,
    Exists,
    FileSize,
    Rename,
    Remove,
    RemoveDir,
    CreateDir,
    HardLink,
    Truncate,
    SyncDir,
    Lock,
    FreeSpace,
    /// `RandomAccessFile::read_at`.
    ReadAt,
    /// `SequentialFile::read`.
    Read,
    /// A buffer going to the kernel, on append, flush, sync or close.
    Write,
    /// The cut of padding or recycled space on sync or close.
    Cut,
    /// `WritableFile::sync`, after what it wrote, or `FileSystem::sync_file`.
    Sync,
    /// `WritableFile::close`, after what it wrote.
    Close,
}

impl OpKind {
    /// Every kind, in order of its number.
    pub const ALL: [OpKind; 22] = [
        OpKind::OpenRandom,
        OpKind::OpenSequential,
        OpKind::Create,
        OpKind::Reuse,
        OpKind::ListDir,
        OpKind::Exists,
        OpKind::FileSize,
        OpKind::Rename,
        OpKind::Remove,
        OpKind::RemoveDir,
        OpKind::CreateDir,
        OpKind::HardLink,
        OpKind::Truncate,
        OpKind::SyncDir,
        OpKind::Lock,
        OpKind::FreeSpace,
        OpKind::ReadAt,
        OpKind::Read,
        OpKind::Write,
        OpKind::Cut,
        OpKind::Sync,
        OpKind::Close,
    ];
}

/// One call, as a fault hook sees it before it happens.
#[derive(Debug, Clone, Copy)]
pub struct Op<'a> {
    /// Which call.
    pub kind: OpKind,
    /// The file or directory; of a two-path call the first.
    pub path: &'a Path,
    /// The second path of a rename, link or reuse.
    pub to: Option<&'a Path>,
    /// Where in the file; for a truncation or cut the new length.
    pub offset: u64,
    /// Bytes to transfer.
    pub len: u64,
    /// How many calls the file system had before this one.
    pub number: u64,
}

/// What becomes of a call.
#[derive(Default)]
pub enum Fault {
    /// It happens as asked.
    #[default]
    None,
    /// It does not happen and fails. A failed sync loses what it should have made durable, as Linux may.
    Error(io::Error),
    /// A write: only the first bytes happen, then it fails (a disk running full). A sequential read: at most so many
    /// bytes (at least one) and no failure. Anything else: the failure alone.
    Partial(usize, io::Error),
    /// A transfer, also of a batch ([`crate::ring`]): the kernel takes or gives at most so many bytes (at least one)
    /// without a failure, and what is missing is asked for again, which is a call of its own. Anything else: as asked.
    Short(usize),
    /// A read: this bit of the transfer arrives flipped, counted from the lowest bit of the first byte.
    FlipBit(u64),
    /// It happens after this time.
    Delay(Duration),
    /// It happens when this function returns, which runs in the thread of the call; other calls go on meanwhile.
    After(Box<dyn FnOnce() + Send>),
    /// What becomes of it is decided later: by this function, which runs in the thread of the call; other calls go on
    /// meanwhile. Its answer is not decided later again.
    Deferred(Box<dyn FnOnce() -> Fault + Send>),
}

impl std::fmt::Debug for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Fault::None => f.write_str("None"),
            Fault::Error(e) => f.debug_tuple("Error").field(e).finish(),
            Fault::Partial(n, e) => f.debug_tuple("Partial").field(n).field(e).finish(),
            Fault::Short(n) => f.debug_tuple("Short").field(n).finish(),
            Fault::FlipBit(bit) => f.debug_tuple("FlipBit").field(bit).finish(),
            Fault::Delay(time) => f.debug_tuple("Delay").field(time).finish(),
            Fault::After(_) => f.write_str("After(..)"),
            Fault::Deferred(_) => f.write_str("Deferred(..)"),
        }
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Fault::Error(error)
    }
}

/// The function that decides. It runs inside the call; it may take crash images, but must make no call of its own.
pub type FaultHook = Box<dyn FnMut(&Op<'_>) -> Fault + Send>;

/// A function that only fails calls: those for which it gives an error. The same holds for it.
pub type FailHook = Box<dyn FnMut(&Op<'_>) -> Option<io::Error> + Send>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_listed_at_its_number() {
        for (number, kind) in OpKind::ALL.iter().enumerate() {
            assert_eq!(*kind as usize, number);
        }
        assert_eq!(OpKind::Close as usize + 1, OpKind::ALL.len());
    }
}
