//! How much of a worker's tables the store reads before it takes them.

use std::fmt;
use std::io;
use std::str::FromStr;

use rockmill::internals::TableCheck;
use rockmill_nvme::auth::{Random as _, SystemRandom};

/// How the tables that a worker wrote are checked. What both see, and what a sample does not, is in docs/offload.md,
/// "The check".
///
/// As text it is `all`, or a part of the data blocks as `10%`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Check {
    /// Every block and every entry of each table.
    #[default]
    All,
    /// Everything outside of the data, and this part of the data blocks of each table, chosen by chance when the worker
    /// can write no more. The first and the last block of a table always belong to it.
    Sample {
        /// Blocks of each hundred, rounded up to whole blocks; more than 100 are 100.
        percent: u8,
    },
}

impl Check {
    /// What the store is told for one job.
    pub(crate) fn of_job(self) -> TableCheck {
        match self {
            Self::All => TableCheck::All,
            Self::Sample { percent } => {
                let mut seed = [0; 8];
                match SystemRandom.fill(&mut seed) {
                    Ok(()) => TableCheck::Sample { percent, seed: u64::from_le_bytes(seed) },
                    // A sample that can be foreseen is none.
                    Err(_) => TableCheck::All,
                }
            }
        }
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Sample { percent } => write!(f, "{percent}%"),
        }
    }
}

impl FromStr for Check {
    type Err = io::Error;

    fn from_str(text: &str) -> io::Result<Self> {
        if text == "all" {
            return Ok(Self::All);
        }
        let percent = text.strip_suffix('%').and_then(|number| number.parse().ok()).filter(|percent| *percent <= 100);
        let percent = percent.ok_or_else(|| {
            crate::bad_configuration(format!("{text:?} is neither all nor a part of the blocks, 0% to 100%"))
        })?;
        Ok(Self::Sample { percent })
    }
}
