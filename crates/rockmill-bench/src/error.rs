//! Errors of benchmarks.

use std::fmt;

/// An error of the command line or of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// The command line is invalid.
    Usage(String),
    /// The store or the machine failed.
    Run(String),
}

/// Result of this crate's calls.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An I/O error while doing `what`.
    pub fn io(what: impl fmt::Display, cause: &std::io::Error) -> Self {
        Self::Run(format!("{what}: {cause}"))
    }

    /// The exit code of the command.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Run(_) => 1,
            Self::Usage(_) => 2,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(m) => write!(f, "{m} (see --help)"),
            Self::Run(m) => f.write_str(m),
        }
    }
}

impl std::error::Error for Error {}

impl From<rockmill::Error> for Error {
    fn from(e: rockmill::Error) -> Self {
        Self::Run(e.to_string())
    }
}
