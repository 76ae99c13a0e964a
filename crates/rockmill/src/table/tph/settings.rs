//! What shapes a TPH table in addition to its blocks.

/// The settings of TPH tables alone; what they share with block-based tables is in
/// [`BlockBasedSettings`](crate::table::BlockBasedSettings).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TphSettings {
    /// The most files that a table consists of, including its own: 1 to 1,024. With 1 each compaction rewrites the
    /// whole table (the paper's single-tier mode, 4.4.2).
    pub piece_limit: u32,
    /// Bytes in pieces that are no longer referenced, in percent of those that are. Above this, compactions rewrite the
    /// live rest of the emptiest pieces.
    pub garbage_percent: u32,
}

impl Default for TphSettings {
    fn default() -> Self {
        Self { piece_limit: 16, garbage_percent: 20 }
    }
}
