//! The store's error: a kind for programs, and a message for people.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rockmill_format::{FormatError, printable};
use rockmill_io::error::{copy, raw_os_error};

/// The kind of a failure; the names are RocksDB's (`rocksdb::ErrorKind`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
#[non_exhaustive]
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
    /// RocksDB's prefix of messages of this kind.
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

/// An error of any call of the store. Cheap to clone, because background errors are returned to every later writer.
///
/// The message is complete; [`source`](std::error::Error::source) returns the underlying I/O or format error, if there
/// is one. Two errors of the same kind and message are equal.
#[derive(Clone)]
pub struct Error {
    inner: Box<Inner>,
}

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    message: String,
    cause: Option<Arc<Cause>>,
}

/// What an error comes from.
enum Cause {
    Io(io::Error),
    Format(FormatError),
}

/// Result of the store's calls.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error of this kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { inner: Box::new(Inner { kind, message: message.into(), cause: None }) }
    }

    /// Damaged data. The message should name the file and the place.
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

    /// The error that ends waits when the database closes.
    pub(crate) fn closing() -> Self {
        Self::new(ErrorKind::ShutdownInProgress, "the database is being closed")
    }

    /// An I/O error while doing `what`.
    pub fn io(what: impl fmt::Display, error: &io::Error) -> Self {
        Self::new(ErrorKind::IOError, format!("{what}: {error}")).caused_by(Cause::Io(copy(error)))
    }

    /// A decoding error in the file at `path`.
    pub fn format(path: impl AsRef<Path>, error: &FormatError) -> Self {
        let kind = match error {
            FormatError::Corruption { .. } => ErrorKind::Corruption,
            FormatError::Unsupported { .. } => ErrorKind::NotSupported,
        };
        Self::new(kind, format!("{}: {error}", path.as_ref().display())).caused_by(Cause::Format(error.clone()))
    }

    fn caused_by(mut self, cause: Cause) -> Self {
        self.inner.cause = Some(Arc::new(cause));
        self
    }

    fn io_error(&self) -> Option<&io::Error> {
        match self.inner.cause.as_deref()? {
            Cause::Io(e) => Some(e),
            Cause::Format(_) => None,
        }
    }

    /// The operating system's number of the underlying I/O error.
    pub(crate) fn os_error(&self) -> Option<i32> {
        self.io_error().and_then(raw_os_error)
    }

    /// The same error, with the I/O error of this number as its cause.
    #[must_use]
    pub(crate) fn with_os_error(self, number: i32) -> Self {
        self.caused_by(Cause::Io(io::Error::from_raw_os_error(number)))
    }

    /// What kind of failure.
    pub fn kind(&self) -> ErrorKind {
        self.inner.kind
    }

    /// The original message, without the kind's prefix. Names of files and column families are not escaped in it; they
    /// are when the error is displayed.
    pub fn message(&self) -> &str {
        &self.inner.message
    }

    /// True if the cause is a missing file.
    pub fn is_missing_file(&self) -> bool {
        self.io_error().is_some_and(|e| e.kind() == io::ErrorKind::NotFound)
    }

    /// True if the cause is a full disk or quota.
    pub fn is_no_space(&self) -> bool {
        self.io_error().is_some_and(|e| {
            let full = matches!(raw_os_error(e), Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG));
            full || e.kind() == io::ErrorKind::StorageFull
        })
    }

    /// The full text.
    pub fn into_string(self) -> String {
        self.to_string()
    }

    /// The same error with a text before its message.
    #[must_use]
    pub fn context(mut self, what: impl fmt::Display) -> Self {
        self.inner.message = format!("{what}: {}", self.inner.message);
        self
    }
}

impl PartialEq for Error {
    fn eq(&self, other: &Self) -> bool {
        (self.kind(), self.message()) == (other.kind(), other.message())
    }
}

impl Eq for Error {}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error").field("kind", &self.kind()).field("message", &self.message()).finish()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Escaped here and not when errors are created: most are never shown.
        write!(f, "{}: {}", self.inner.kind.prefix(), printable::line(&self.inner.message))
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self.inner.cause.as_deref()? {
            Cause::Io(e) => Some(e),
            Cause::Format(e) => Some(e),
        }
    }
}

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

    #[test]
    fn what_an_error_comes_from_stays_reachable() {
        use std::error::Error as _;
        let full = io::Error::from_raw_os_error(libc::ENOSPC);
        let full = rockmill_io::error::path_error("write", Path::new("/db/1.log"), full);
        let e = Error::io("a flush", &full).context("column family \"a\"");
        let source = e.source().and_then(|s| s.downcast_ref::<io::Error>()).expect("an I/O error");
        assert_eq!((source.kind(), raw_os_error(source)), (io::ErrorKind::StorageFull, Some(libc::ENOSPC)));
        assert!(e.is_no_space() && !e.is_missing_file() && e.clone() == e);
        let missing = Error::io("x", &io::ErrorKind::NotFound.into());
        assert!(missing.is_missing_file() && !missing.is_no_space());

        let damage = FormatError::corruption("bad block", 7);
        let e = Error::format("/db/2.sst", &damage);
        assert_eq!((e.kind(), e.message()), (ErrorKind::Corruption, "/db/2.sst: bad block (at offset 7)"));
        assert_eq!(e.source().and_then(|s| s.downcast_ref::<FormatError>()), Some(&damage));
        assert!(Error::corruption("no cause").source().is_none());
        assert_eq!(format!("{e:?}"), r#"Error { kind: Corruption, message: "/db/2.sst: bad block (at offset 7)" }"#);
    }
}
