//! Errors of building and opening functions.

use std::fmt;

/// Why a function could not be built.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuildError {
    /// Several keys have the same hash. If they are different keys, try the next seed for hashes and function.
    Duplicate {
        /// The hash.
        hash: u64,
        /// All positions of it in the list of hashes, ascending, at least two.
        positions: Vec<usize>,
    },
    /// There are more keys than the format allows.
    TooManyKeys {
        /// The number of keys.
        keys: usize,
        /// The maximum number of keys.
        keys_max: u64,
    },
    /// No attempt placed every key: try the next seed for hashes and function. Uniformly distributed hashes do not
    /// cause this; hashes chosen by somebody who knows the seed may.
    NotPlaced {
        /// Number of salts tried.
        attempts: u8,
    },
    /// The caller stopped the build.
    Stopped,
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Duplicate { hash, positions } => {
                write!(f, "perfect hash: the hash {hash:#018x} stands {} times in the list, ", positions.len())?;
                let shown: Vec<String> = positions.iter().take(8).map(usize::to_string).collect();
                let more = if positions.len() > shown.len() { ", ..." } else { "" };
                write!(f, "at {}{more}: leave out equal keys, or hash with another seed", shown.join(", "))
            }
            Self::TooManyKeys { keys, keys_max } => {
                write!(f, "perfect hash: {keys} keys, at most {keys_max}: split them over several functions")
            }
            Self::NotPlaced { attempts } => {
                write!(f, "perfect hash: {attempts} attempts found no function: hash and build with another seed")
            }
            Self::Stopped => write!(f, "perfect hash: the build was stopped by its caller"),
        }
    }
}

impl std::error::Error for BuildError {}

/// Why bytes are not a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenError {
    /// Offset at which the problem was detected.
    pub offset: usize,
    /// The problem there.
    pub reason: &'static str,
}

impl OpenError {
    pub(crate) fn at(offset: usize, reason: &'static str) -> Self {
        Self { offset, reason }
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "perfect hash: {} at byte {}: build the function again", self.reason, self.offset)
    }
}

impl std::error::Error for OpenError {}
