//! The command's errors: what went wrong, what to do about it, and the exit code.

use std::fmt;
use std::io;

use rockmill::ErrorKind;

/// Exit code when everything was done and found.
pub const EXIT_OK: u8 = 0;
/// Exit code when a key was not found or a verification found problems.
pub const EXIT_NO: u8 = 1;
/// Exit code of a wrong call: unknown flag, bad hex, unknown column family.
pub const EXIT_USAGE: u8 = 2;
/// Exit code of I/O errors, corruption, a locked database, and similar errors.
pub const EXIT_FAILED: u8 = 3;

/// The hint if CURRENT or the MANIFEST is missing or damaged.
pub const REPAIR_HINT: &str = "restore a backup, or `rockmill repair DB` makes a database of what is left";

/// Result of a command's steps.
pub type Result<T> = std::result::Result<T, CliError>;

/// Why a command ended early.
#[derive(Debug)]
pub struct CliError {
    /// The kind in `--json` output: one of RocksDB's kinds, or `Usage`, `Data`, `Problems`.
    pub kind: String,
    /// What went wrong and where.
    pub message: String,
    /// What to do, if that is not obvious.
    pub hint: Option<String>,
    /// Exit code.
    pub code: u8,
    /// The reader of our output has closed it: end quietly.
    pub broken_pipe: bool,
}

impl CliError {
    fn new(kind: impl Into<String>, code: u8, message: impl Into<String>) -> Self {
        Self { kind: kind.into(), message: message.into(), hint: None, code, broken_pipe: false }
    }

    /// The command was called wrongly.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new("Usage", EXIT_USAGE, message)
    }

    /// The input to load is invalid.
    pub fn data(message: impl Into<String>) -> Self {
        Self::new("Data", EXIT_FAILED, message)
    }

    /// The requested item does not exist.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new("NotFound", EXIT_NO, message)
    }

    /// A check failed; its findings are already printed.
    pub fn problems(message: impl Into<String>) -> Self {
        Self::new("Problems", EXIT_NO, message)
    }

    /// A damaged file.
    pub fn corruption(message: impl Into<String>) -> Self {
        Self::new("Corruption", EXIT_FAILED, message)
    }

    /// An I/O error while doing `what`.
    pub fn io(what: impl fmt::Display, error: &io::Error) -> Self {
        let mut e = Self::new("IOError", EXIT_FAILED, format!("{what}: {error}"));
        e.broken_pipe = error.kind() == io::ErrorKind::BrokenPipe;
        e.hint = match error.kind() {
            io::ErrorKind::StorageFull => Some("the disk is full: make room and run the command again".into()),
            io::ErrorKind::PermissionDenied => Some("this user may not do that: check owner and mode".into()),
            _ => None,
        };
        e
    }

    /// Output could not be written.
    pub fn output(error: &io::Error) -> Self {
        Self::io("cannot write output", error)
    }

    /// The output was not read to its end, and the command had more to do than to print.
    #[must_use]
    pub fn unread(self) -> Self {
        let message = "standard output was closed before the command ended: the rest was not done";
        Self { message: message.to_owned(), broken_pipe: false, ..self }
    }

    /// The same error with advice.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for CliError {}

impl From<rockmill::Error> for CliError {
    fn from(e: rockmill::Error) -> Self {
        let text = e.message();
        let hint = match e.kind() {
            _ if e.is_no_space() => Some("the disk is full: make room and run the command again"),
            ErrorKind::IOError if text.contains("ermission denied") => {
                Some("this user may not do that: check owner and mode of the directory and its files")
            }
            _ if text.contains("CURRENT names it, but it is missing")
                || text.contains("must hold the MANIFEST's name")
                || (e.kind() == ErrorKind::Corruption && text.contains("/MANIFEST-")) =>
            {
                Some(REPAIR_HINT)
            }
            ErrorKind::Busy => Some("another process has the database open; only one at a time may write to it"),
            ErrorKind::Corruption => Some("`rockmill verify DB` lists everything that is damaged"),
            ErrorKind::MergeInProgress => Some("the key holds merge operands, and their operator is not known here"),
            _ => None,
        };
        let code = match e.kind() {
            ErrorKind::NotFound => EXIT_NO,
            ErrorKind::InvalidArgument => EXIT_USAGE,
            _ => EXIT_FAILED,
        };
        let mut out = Self::new(format!("{:?}", e.kind()), code, e.to_string());
        out.hint = hint.map(str::to_owned);
        out
    }
}
