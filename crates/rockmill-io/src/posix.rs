//! The real file system.

/// The machine's file system.
#[derive(Debug, Default)]
pub struct PosixFileSystem {}
