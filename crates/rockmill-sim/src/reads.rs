//! The cost of reads of a tree.
//!
//! A lookup searches each table that may have its key, from the newest on. It is assumed to search all of them, as it
//! must for a key in the last level or an absent key. One of the tables has the key, and its block is read. For each
//! other table, a block is read at the filter's false positive rate, or always without a filter. A seek positions every
//! sorted run, and reads a block of each; for TPH tables, a block of each file of the table at that position. Their
//! function errs for one in 255 absent keys. Blocks are read one after the other. A cache is modelled only by the bytes
//! that a block takes from the device ([`Settings::read_bytes`]).

use crate::pieces::ABSENT_PER_READ;
use crate::settings::Settings;
use crate::share::Cost;
use crate::tree::Tree;

/// What reads meet in a tree.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Reads {
    /// Tables that a lookup searches, on average over the keys.
    pub tables: f64,
    /// Blocks that it reads.
    pub blocks: f64,
    /// Sorted runs that a seek positions in, or files if tables have several; it reads a block of each.
    pub runs: f64,
    /// Full index tables in memory that lookups and seeks search first.
    pub index_tables: f64,
}

impl Reads {
    /// The cost for this tree. `there`: fraction of the key space in which there are keys.
    pub fn of(tree: &Tree, s: &Settings, there: f64) -> Self {
        let tables = tree.cover() / there.max(1e-9);
        let bits = s.options.table.bloom_bits_per_key;
        let errs = match bits {
            _ if tree.files.is_some() => 1.0 / ABSENT_PER_READ,
            bits if bits > 0.0 => 0.6185f64.powf(bits),
            _ => 1.0,
        };
        let runs = (tree.runs() as f64).max(tree.file_cover() / there.max(1e-9));
        Self { tables, blocks: tables.min(1.0) + (tables - 1.0).max(0.0) * errs, runs, index_tables: 0.0 }
    }

    /// Of a lookup.
    pub fn lookup(&self, s: &Settings) -> Cost {
        cost(s, self.tables + self.index_tables, self.blocks)
    }

    /// Of a seek.
    pub fn seek(&self, s: &Settings) -> Cost {
        cost(s, self.runs + self.index_tables, self.runs)
    }

    /// Seconds of a lookup and of a seek on an otherwise idle device.
    pub fn seconds(&self, s: &Settings) -> (f64, f64) {
        let block = |blocks: f64| blocks * s.device_latency * (s.read_bytes as f64).min(4096.0) / 4096.0;
        let of = |c: Cost, blocks: f64| c.cpu + c.read / s.device_read + block(blocks);
        (of(self.lookup(s), self.blocks), of(self.seek(s), self.runs))
    }
}

fn cost(s: &Settings, asked: f64, blocks: f64) -> Cost {
    Cost { cpu: (s.read_ns + asked * s.read_run_ns) * 1e-9, read: blocks * s.read_bytes as f64, ..Cost::default() }
}
