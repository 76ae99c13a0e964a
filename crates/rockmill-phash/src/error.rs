//! What can go wrong.

use std::fmt;

/// Why a function could not be built.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuildError {
    /// Several keys have the same hash. If they are different keys, try the next seed for hashes and function.
    Duplicate {
        /// The hash.
        hash: u64,
        /// Where it stands in the list of hashes: all places, ascending, at least two.
        positions: Vec<usize>,
    },
    /// There are more keys than the format has room for.
    TooManyKeys {
        /// How many there are.
        keys: usize,
        /// How many there may be.
        keys_max: u64,
    },
    /// No attempt placed every key: try the next seed for hashes and function. Evenly spread hashes do not lead here,
    /// hashes that someone chose who knows the seed may.
    NotPlaced {
        /// How many salts were tried.
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

/// Why bytes are no function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenError {
    /// Where in the bytes it was noticed.
    pub offset: usize,
    /// What is wrong there.
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
