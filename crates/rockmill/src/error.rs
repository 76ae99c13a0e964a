//! The store's error: a kind that programs can act on, and a message that people can.

use std::fmt;
use std::io;
use std::path::Path;

use rockmill_format::{FormatError, printable};

/// What kind of failure; the names are RocksDB's (`rocksdb::ErrorKind`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum ErrorKind {
    NotFound,
    Corruption,
    NotSupported,
    InvalidArgument,
    IOError,
    MergeInProgress,
    Incomplete,
    ShutdownInProgress,
    TimedOut,
    Aborted,
    Busy,
    Expired,
    TryAgain,
    CompactionTooLarge,
    ColumnFamilyDropped,
    Unknown,
}

impl ErrorKind {
    /// RocksDB's words for the kind, as they begin its messages.
    pub fn prefix(self) -> &'static str {
        match self {
            Self::NotFound => "NotFound",
            Self::Corruption => "Corruption",
            Self::NotSupported => "Not implemented",
            Self::InvalidArgument => "Invalid argument",
            Self::IOError => "IO error",
            Self::MergeInProgress => "Merge in progress",
            Self::Incomplete => "Result incomplete",
            Self::ShutdownInProgress => "Shutdown in progress",
            Self::TimedOut => "Operation timed out",
            Self::Aborted => "Operation aborted",
            Self::Busy => "Resource busy",
            Self::Expired => "Operation expired",
            Self::TryAgain => "Operation failed. Try again.",
            Self::CompactionTooLarge => "Compaction too large",
            Self::ColumnFamilyDropped => "Column family dropped",
            Self::Unknown => "Unknown",
        }
    }
}

/// An error of any call of the store. Cheap to clone: background errors are handed to every later writer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    inner: Box<Inner>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Inner {
    kind: ErrorKind,
    message: String,
    no_space: bool,
    missing_file: bool,
}

/// Result of the store's calls.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error of this kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { inner: Box::new(Inner { kind, message: message.into(), no_space: false, missing_file: false }) }
    }

    /// Damaged data; say which file and where.
    pub fn corruption(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Corruption, message)
    }

    /// A bad option, key or call.
    pub fn invalid_argument(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidArgument, message)
    }

    /// A RocksDB feature that Rockmill does not have.
    pub fn not_supported(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::NotSupported, message)
    }

    /// An I/O error while doing `what`.
    pub fn io(what: impl fmt::Display, error: &io::Error) -> Self {
        let mut e = Self::new(ErrorKind::IOError, format!("{what}: {error}"));
        e.inner.no_space = is_no_space(error);
        e.inner.missing_file = error.kind() == io::ErrorKind::NotFound;
        e
    }

    /// A decoding error in the file at `path`.
    pub fn format(path: impl AsRef<Path>, error: &FormatError) -> Self {
        let path = path.as_ref().display();
        match error {
            FormatError::Corruption { .. } => Self::corruption(format!("{path}: {error}")),
            FormatError::Unsupported { .. } => Self::not_supported(format!("{path}: {error}")),
        }
    }

    /// What kind of failure.
    pub fn kind(&self) -> ErrorKind {
        self.inner.kind
    }

    /// The message without the kind's words, as it was made: names of files and families in it are not escaped, as
    /// they are where the error is displayed.
    pub fn message(&self) -> &str {
        &self.inner.message
    }

    /// True when the cause is a file that is not there.
    pub fn is_missing_file(&self) -> bool {
        self.inner.missing_file
    }

    /// True when the cause is a full disk or quota.
    pub fn is_no_space(&self) -> bool {
        self.inner.no_space
    }

    /// The full text.
    pub fn into_string(self) -> String {
        self.to_string()
    }

    /// The same error with words before its message.
    #[must_use]
    pub fn context(mut self, what: impl fmt::Display) -> Self {
        self.inner.message = format!("{what}: {}", self.inner.message);
        self
    }
}

fn is_no_space(error: &io::Error) -> bool {
    let mut code = error.raw_os_error();
    let mut source: Option<&(dyn std::error::Error + 'static)> = error.get_ref().map(|e| e as _);
    while let (None, Some(s)) = (code, source) {
        code = s.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error);
        source = s.source();
    }
    matches!(code, Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG)) || error.kind() == io::ErrorKind::StorageFull
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Here and not where errors are made: most are never shown.
        write!(f, "{}: {}", self.inner.kind.prefix(), printable::line(&self.inner.message))
    }
}

impl std::error::Error for Error {}

impl From<Error> for String {
    fn from(e: Error) -> String {
        e.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_without_escape_sequences() {
        let e = Error::corruption("a\x1b]0;x\x07\n\u{9b}\u{202e}b: bad block");
        assert_eq!(e.to_string(), "Corruption: a\\x1b]0;x\\x07\\n\\xc2\\x9b\\xe2\\x80\\xaeb: bad block");
        assert!(e.message().contains('\x1b'), "programs get the name as it is");
    }
}
