//! TPH tables: which files tables share, what jobs write of a table, and which bytes are still in use (docs/tph.md).
//!
//! A table is a file of its own and *parts* of older files, each with the keys that are still the table's. The store's
//! own code decides which files a job's outputs may keep using. The keys of a kept part stay there unless something
//! from above has them; everything else is written to the output's own file, with a function of all the table's keys.
//!
//! User keys with several versions under snapshots, range tombstones and placeholders are not modelled.

use std::collections::HashMap;

use rockmill::TableKind;
use rockmill::internals::simulation::{Compaction, KeptFile, TphSettings, files_to_keep};
use rockmill_format::edit::TablePiece;

use crate::keys::{Extent, KeySpace};
use crate::settings::Settings;

/// Bits of a function for each key, and slots for each key (docs/phash.md, `pilot`).
const FUNCTION_BITS: f64 = 2.86;
const SLOTS: f64 = 1.011;
/// Bits of a signature.
const SIGNATURE_BITS: f64 = 8.0;
/// Fixed bytes of a head, and of the memory for block places, of any table.
const HEAD_BYTES: f64 = 120.0;
/// Bytes of each additional file in the head, without its two keys, and of its places in memory.
const LISTED_BYTES: f64 = 40.0;
const PLACES_BYTES: f64 = 24.0;
/// CPU nanoseconds of a job per key of a table that it writes: its hash, and the function.
pub const FUNCTION_NS: f64 = 45.0;
/// Number of absent keys per one whose signature matches by chance.
pub const ABSENT_PER_READ: f64 = 255.0;

/// A table's keys in a file that is not its own.
#[derive(Debug, Clone, PartialEq)]
pub struct Part {
    /// The file.
    pub file: u64,
    /// How many, by class.
    pub keys: Vec<f64>,
}

impl Part {
    fn entries(&self) -> f64 {
        self.keys.iter().sum()
    }
}

/// A table that a job writes.
#[derive(Debug, Clone)]
pub struct Output {
    /// Its keys, wherever they are.
    pub extent: Extent,
    /// Parts that stay where they are, newest file first.
    pub parts: Vec<Part>,
}

impl Output {
    /// A table of a single file.
    pub fn whole(extent: Extent) -> Self {
        Self { extent, parts: Vec::new() }
    }

    /// Entries in its own file.
    pub fn written(&self) -> f64 {
        (self.extent.entries() - self.parts.iter().map(Part::entries).sum::<f64>()).max(0.0)
    }
}

/// A table some of whose files stay.
pub struct Base {
    extent: Extent,
    parts: Vec<Part>,
    /// Bytes that it counts for.
    bytes: u64,
}

impl Base {
    /// First position, and bytes.
    pub fn begin(&self) -> (u64, u64) {
        (self.extent.begin, self.bytes)
    }
}

/// Files that a job's outputs continue to use.
#[derive(Default)]
pub struct Kept {
    /// The tables of the output's run some of whose files stay, by key.
    pub bases: Vec<Base>,
}

impl Kept {
    /// True where nothing stays.
    pub fn is_empty(&self) -> bool {
        self.bases.is_empty()
    }
}

/// A file on the device.
struct File {
    bytes: u64,
    /// Entries, whoever still needs them.
    entries: f64,
    /// Positions that it was written for.
    width: f64,
    /// Tables that have it.
    tables: usize,
    /// Bytes that these refer to, added up.
    live: u64,
    /// It belongs, or belonged, to a live table.
    counted: bool,
}

/// The files of a tree of TPH tables.
pub struct Files {
    settings: TphSettings,
    entry_bytes: f64,
    entries_per_block: f64,
    key_bytes: f64,
    files: HashMap<u64, File>,
    /// By table.
    parts: HashMap<u64, Vec<Part>>,
    /// Bytes of files that live tables have, each file once.
    bytes: u64,
    /// Bytes of memory of tables, their keys, and the files that they consist of.
    index: f64,
    keys: f64,
    pieces: usize,
}

impl Files {
    /// None where tables are block-based.
    pub fn of(s: &Settings) -> Option<Self> {
        let tph = &s.options.tph;
        (s.options.table_factory == TableKind::Tph).then(|| Self {
            settings: TphSettings { piece_limit: tph.piece_limit, garbage_percent: tph.garbage_percent },
            entry_bytes: s.stored_entry_bytes(),
            entries_per_block: (s.options.table.block_size as f64 / (s.entry_bytes() + 8.0)).ceil().max(1.0),
            key_bytes: s.key_bytes as f64,
            files: HashMap::new(),
            parts: HashMap::new(),
            bytes: 0,
            index: 0.0,
            keys: 0.0,
            pieces: 0,
        })
    }

    /// Bytes of all files that live tables have, each once.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of memory per key of a table.
    pub fn index_per_key(&self) -> f64 {
        self.index / self.keys.max(1.0)
    }

    /// Files per table, on average.
    pub fn per_table(&self) -> f64 {
        1.0 + self.pieces as f64 / self.parts.len().max(1) as f64
    }

    /// Files that a table consists of.
    pub fn count(&self, table: u64) -> usize {
        1 + self.parts.get(&table).map_or(0, Vec::len)
    }

    /// Bytes of a head: its list of files, and the function with signatures and locators, for a table with this many
    /// keys whose files have `entries` entries.
    fn head_bytes(&self, keys: f64, parts: &[Part], entries: f64) -> f64 {
        let locator = (entries / self.entries_per_block).max(1.0).log2().ceil();
        let list = parts.len() as f64 * (LISTED_BYTES + 2.0 * self.key_bytes);
        HEAD_BYTES + list + keys * (FUNCTION_BITS + SLOTS * (SIGNATURE_BITS + locator)) / 8.0
    }

    /// Bytes of a new table's own file.
    pub fn own_bytes(&self, table: &Output) -> f64 {
        let shared: f64 = table.parts.iter().filter_map(|p| self.files.get(&p.file)).map(|f| f.entries).sum();
        let own = table.written();
        own * self.entry_bytes + self.head_bytes(table.extent.entries(), &table.parts, own + shared)
    }

    /// Bytes that a job reads of a table: all that its files have in its range, stale entries included.
    pub fn read_bytes(&self, table: u64, extent: &Extent) -> f64 {
        let of = |file: u64| {
            let of = self.files.get(&file)?;
            Some(of.entries * self.entry_bytes * ((extent.end - extent.begin) as f64 / of.width).min(1.0))
        };
        let shared = self.parts.get(&table).into_iter().flatten().filter_map(|p| of(p.file)).sum::<f64>();
        of(table).unwrap_or(0.0) + shared
    }

    /// The files that a job's outputs continue to use.
    pub fn kept<'t>(&self, job: &Compaction, extent: impl Fn(u64) -> Option<&'t Extent>) -> Kept {
        let keep = files_to_keep(job, &self.settings, |n| self.files.get(&n).map_or(0, |f| f.live));
        if keep.is_empty() {
            return Kept::default();
        }
        let outputs_run =
            job.inputs.iter().filter(|(level, _)| *level == job.output_level).flat_map(|(_, files)| files);
        let mut bases = Vec::new();
        for f in outputs_run.filter(|f| f.entry.extra_run == job.output_run) {
            let Some(extent) = extent(f.number()) else { continue };
            let shared = self.parts.get(&f.number()).map_or(&[][..], Vec::as_slice);
            let mut own = Part { file: f.number(), keys: extent.keys.clone() };
            for part in shared {
                own.keys.iter_mut().zip(&part.keys).for_each(|(all, some)| *all = (*all - some).max(0.0));
            }
            let mut parts: Vec<Part> = std::iter::once(&own).chain(shared).cloned().collect();
            parts.retain(|p| keep.contains(&KeptFile { table: f.number(), file: p.file }));
            if !parts.is_empty() {
                bases.push(Base { extent: extent.clone(), parts, bytes: f.size() });
            }
        }
        bases.sort_by_key(|b| b.extent.begin);
        Kept { bases }
    }

    /// Determines which part of an output stays where it is. `above`: all of the job's inputs that are not of the
    /// output's run.
    pub fn share(&self, extent: Extent, kept: &Kept, above: &[&Extent], keys: &KeySpace) -> Output {
        let width = |e: &Extent| (e.end - e.begin) as f64;
        let common = |e: &Extent| (e.end.min(extent.end)).saturating_sub(e.begin.max(extent.begin)) as f64;
        // For each class, the fraction of keys without newer versions.
        let mut stays = vec![1.0; extent.keys.len()];
        let mut parts: Vec<Part> = Vec::new();
        // A table lists each file once, and no more files than allowed.
        let most = self.settings.piece_limit.saturating_sub(1) as usize;
        let mut keep = |file: u64, keys: &[f64], share: f64, stays: &[f64]| {
            let listed = parts.iter().any(|p| p.file == file) || parts.len() >= most;
            let keys: Vec<f64> = keys.iter().zip(stays).map(|(n, stays)| n * stays * share).collect();
            if !listed && keys.iter().sum::<f64>() >= 1.0 {
                parts.push(Part { file, keys });
            }
        };
        for e in above {
            // If each key is written once, nothing is replaced.
            for (class, stays) in stays.iter_mut().enumerate().filter(|_| !keys.unique) {
                let hit = e.keys[class] * common(e) / width(e) / keys.in_range(class, &extent).max(1e-9);
                *stays *= 1.0 - hit.clamp(0.0, 1.0);
            }
        }
        for base in &kept.bases {
            base.parts.iter().for_each(|p| keep(p.file, &p.keys, common(&base.extent) / width(&base.extent), &stays));
        }
        parts.sort_by_key(|p| std::cmp::Reverse(p.file));
        Output { extent, parts }
    }

    /// Adds a written table; returns its own bytes, and its pieces as in the MANIFEST.
    pub fn add(&mut self, number: u64, table: &Output) -> (u64, Vec<TablePiece>) {
        let bytes = (self.own_bytes(table) as u64).max(1);
        let (entries, width) = (table.written(), (table.extent.end - table.extent.begin) as f64);
        self.files.insert(number, File { bytes, entries, width, tables: 1, live: bytes, counted: false });
        let mut pieces = Vec::new();
        for part in &table.parts {
            let Some(file) = self.files.get_mut(&part.file) else { continue };
            let live = ((part.entries() * self.entry_bytes) as u64).min(file.bytes);
            file.tables += 1;
            file.live += live;
            pieces.push(TablePiece { number: part.file, size: file.bytes, live, path_id: 0 });
        }
        self.index += self.index_bytes(table.extent.entries(), &table.parts, number);
        self.keys += table.extent.entries();
        self.pieces += table.parts.len();
        self.parts.insert(number, table.parts.clone());
        (bytes, pieces)
    }

    /// Bytes of memory that a table needs to find its keys: its head, and the places of blocks.
    fn index_bytes(&self, keys: f64, parts: &[Part], own: u64) -> f64 {
        let of = |file: u64| self.files.get(&file).map_or(0.0, |f| f.entries);
        let entries = of(own) + parts.iter().map(|p| of(p.file)).sum::<f64>();
        // Two bits, half a bit, and the low bits of offsets.
        let block = self.entries_per_block * self.entry_bytes;
        let place = (2.5 + block.max(1.0).log2()) / 8.0;
        let places = (1 + parts.len()) as f64 * PLACES_BYTES + entries / self.entries_per_block * place;
        self.head_bytes(keys, parts, entries) + places
    }

    /// Counts a table that became live or was moved.
    pub fn count_file(&mut self, table: u64) {
        if let Some(file) = self.files.get_mut(&table).filter(|f| !f.counted) {
            file.counted = true;
            self.bytes += file.bytes;
        }
    }

    /// Removes a table, with the files that no other table uses.
    pub fn remove(&mut self, table: u64, keys: f64) {
        let Some(parts) = self.parts.remove(&table) else { return };
        self.index -= self.index_bytes(keys, &parts, table);
        self.keys -= keys;
        self.pieces -= parts.len();
        let own = self.files.get(&table).map_or(0, |f| f.bytes);
        let entry_bytes = self.entry_bytes;
        let uses = parts.iter().map(|p| (p.file, (p.entries() * entry_bytes) as u64)).chain([(table, own)]);
        for (number, live) in uses.collect::<Vec<_>>() {
            let Some(file) = self.files.get_mut(&number) else { continue };
            file.tables -= 1;
            file.live = file.live.saturating_sub(live.min(file.bytes));
            if file.tables == 0 {
                self.bytes -= if file.counted { file.bytes } else { 0 };
                self.files.remove(&number);
            }
        }
    }
}
