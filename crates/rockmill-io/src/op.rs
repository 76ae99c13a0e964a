//! The calls of the I/O layer, and the faults that a test can inject.

use std::io;
use std::path::Path;
use std::time::Duration;

/// A kind of kernel-level call: an append that only fills a buffer does not count.
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
    /// `RandomAccessFile::read_at`, and the read of `RandomAccessFile::send_to`.
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

/// One call, as a fault hook sees it before its execution.
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
    /// The call fails without effect. A failed sync loses the data that it should have made durable, as Linux may.
    Error(io::Error),
    /// A write: only the first bytes are written, then it fails (a full disk). A sequential read: returns at most this
    /// many bytes (at least one) without a failure. Any other call: only the failure.
    Partial(usize, io::Error),
    /// A transfer, also in a batch ([`crate::ring`]): the kernel transfers at most this many bytes (at least one)
    /// without a failure; the rest is requested in another call. Any other call: executed normally.
    Short(usize),
    /// A read: this bit of the transferred data is flipped, counted from the lowest bit of the first byte.
    FlipBit(u64),
    /// It happens after this time.
    Delay(Duration),
    /// The call is executed when this function returns. The function runs in the calling thread; other calls continue
    /// meanwhile.
    After(Box<dyn FnOnce() + Send>),
    /// This function decides later. It runs in the calling thread; other calls continue meanwhile. Its answer must not
    /// be deferred again.
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

/// The function that decides. It runs inside the call; it may take crash images, but must not make other calls.
pub type FaultHook = Box<dyn FnMut(&Op<'_>) -> Fault + Send>;

/// A function that only makes calls fail: those for which it returns an error. The same rules apply to it.
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
