//! Files, directories, time and locks behind traits.
//!
//! Everything the store does to the outside goes through a [`FileSystem`] and a [`Clock`], so that tests can replace
//! both by a memory twin that records, fails, tears and forgets. All `unsafe` of file I/O is in this crate.

pub mod aligned;
pub mod clock;
pub mod counting;
pub mod error;
pub mod fs;
pub mod mem;
pub mod op;
pub mod pages;
pub mod posix;
pub mod prefetch;
pub mod report;
pub mod ring;
pub mod sync;
pub mod throttle;

pub use clock::{Clock, ManualClock, SystemClock};
pub use counting::{CountingFileSystem, IoCounts};
pub use fs::{
    Access, AccessPattern, Ahead, Entry, EntryKind, FileLock, FileSystem, PositionedFile, RandomAccessFile,
    SequentialFile, View, WritableFile, WriteOptions,
};
pub use mem::{CrashMode, MemFileSystem};
pub use op::{Fault, Op, OpKind};
pub use posix::{LocalTime, PosixFileSystem, local_time, thread_id};
pub use throttle::{DeviceModel, ThrottledFileSystem};
