//! A file system in memory.

/// A file system in memory, for tests.
#[derive(Debug, Default)]
pub struct MemFileSystem {}
