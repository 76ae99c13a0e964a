//! Full filters: RocksDB's cache-local Bloom filter (read and written), Ribbon and the legacy Bloom layout (read).

use crate::error::Result;

/// Builds a Bloom filter in RocksDB's current layout (`FastLocalBloom`, format_version 5).
pub struct BloomBuilder {
    _private: (),
}

impl BloomBuilder {
    /// `bits_per_key` as in RocksDB's `NewBloomFilterPolicy`.
    pub fn new(bits_per_key: f64) -> Self {
        let _ = bits_per_key;
        todo!()
    }

    /// Adds a user key (or prefix). Equal keys in a row count once.
    pub fn add_key(&mut self, key: &[u8]) {
        let _ = key;
        todo!()
    }

    /// Keys added so far.
    pub fn num_keys(&self) -> usize {
        todo!()
    }

    /// The filter block's contents, metadata included; empty when no key was added.
    pub fn finish(&mut self) -> Vec<u8> {
        todo!()
    }
}

/// A full filter block, ready to be asked.
#[derive(Debug, Clone)]
pub struct FilterReader {
    _private: (),
}

impl FilterReader {
    /// Takes a filter block's contents. A layout that is not known answers `may_match` with true, as in RocksDB.
    pub fn parse(data: Vec<u8>) -> Result<Self> {
        let _ = data;
        todo!()
    }

    /// False when the key is certainly not in the table.
    pub fn may_match(&self, key: &[u8]) -> bool {
        let _ = key;
        todo!()
    }

    /// Bytes held.
    pub fn memory_usage(&self) -> usize {
        todo!()
    }

    /// The layout's name, for dumps: `fast local bloom`, `ribbon`, `legacy bloom`, `always true`, …
    pub fn kind_name(&self) -> &'static str {
        todo!()
    }
}
