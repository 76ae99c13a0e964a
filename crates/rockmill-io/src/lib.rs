//! Files, directories, time and locks behind traits.
//!
//! All of the store's I/O goes through a [`FileSystem`] and a [`Clock`], so that tests can replace both with in-memory
//! versions that can record changes, fail, tear writes and lose unsynced data. All `unsafe` of file I/O is in this
//! crate.

#![cfg_attr(all(unix, not(rings)), expect(dead_code, reason = "some of it only rings use (`build.rs`)"))]

#[cfg(not(unix))]
compile_error!("Rockmill runs on Linux, and with plain reads and writes on macOS; Windows is not supported");

#[cfg(unix)]
pub mod aligned;
#[cfg(unix)]
pub mod clock;
#[cfg(unix)]
pub mod counting;
#[cfg(unix)]
pub mod error;
#[cfg(unix)]
pub mod fs;
#[cfg(unix)]
pub mod mem;
#[cfg(unix)]
pub mod op;
#[cfg(unix)]
pub mod pages;
#[cfg(unix)]
pub mod posix;
#[cfg(unix)]
pub mod prefetch;
#[cfg(unix)]
pub mod report;
#[cfg(unix)]
pub mod ring;
#[cfg(unix)]
pub mod sync;
#[cfg(unix)]
pub mod throttle;

#[cfg(unix)]
pub use clock::{Clock, ManualClock, SystemClock};
#[cfg(unix)]
pub use counting::{CountingFileSystem, IoCounts};
#[cfg(unix)]
pub use fs::{
    Access, AccessPattern, Ahead, Entry, EntryKind, FileExtent, FileExtents, FileLock, FileSystem, PositionedFile,
    RandomAccessFile, SequentialFile, View, WritableFile, WriteOptions,
};
#[cfg(unix)]
pub use mem::{CrashMode, MemFileSystem};
#[cfg(unix)]
pub use op::{Fault, Op, OpKind};
#[cfg(unix)]
pub use posix::{
    BlockDevice, LocalTime, PosixFileSystem, block_device_number, local_time, send_more, stand_back, thread_id,
};
#[cfg(unix)]
pub use throttle::{DeviceModel, ThrottledFileSystem};
