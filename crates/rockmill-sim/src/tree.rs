//! The simulated tree: the store's `Version`, of tables that are key ranges with sizes.

use std::collections::HashMap;
use std::sync::Arc;

use rockmill::simulation::{Compaction, FileMeta, PurgeQueue, Version};
use rockmill_format::edit::FileEntry;
use rockmill_format::key::{InternalKey, ValueType};

use crate::keys::Extent;

/// Virtual time begins here, in seconds: 0 means an unknown time to the store.
pub const EPOCH_SECONDS: f64 = 1e6;

/// A tree and what its tables hold.
pub struct Tree {
    /// As the strategies see it.
    pub version: Arc<Version>,
    extents: HashMap<u64, Extent>,
    purge: Arc<PurgeQueue>,
    next_number: u64,
    next_epoch: u64,
    /// Bytes of an entry in a table.
    entry_bytes: f64,
}

impl Tree {
    /// No tables in so many levels.
    pub fn new(levels: usize, entry_bytes: f64) -> Self {
        let version = Version::empty(levels, rockmill_format::InternalKeyComparator::default());
        let (extents, purge) = (HashMap::new(), Arc::default());
        Self { version: Arc::new(version), extents, purge, next_number: 1, next_epoch: 1, entry_bytes }
    }

    /// What a table holds.
    pub fn extent(&self, number: u64) -> Option<&Extent> {
        self.extents.get(&number)
    }

    /// Bytes of all tables.
    pub fn bytes(&self) -> u64 {
        (0..self.version.levels.len()).map(|l| self.version.level_bytes(l)).sum()
    }

    /// Sorted runs: L0 tables, and the runs of levels.
    pub fn runs(&self) -> usize {
        self.version.places().count()
    }

    fn table(&mut self, extent: Extent, epoch: u64, run: u64, now: f64) -> Arc<FileMeta> {
        let number = self.next_number;
        self.next_number += 1;
        let key = |at: u64| InternalKey::new(&at.to_be_bytes(), 1, ValueType::Value);
        let seconds = (EPOCH_SECONDS + now) as u64;
        let entry = FileEntry {
            number,
            size: ((extent.entries() * self.entry_bytes) as u64).max(1),
            smallest: key(extent.begin),
            largest: key(extent.end - 1),
            smallest_seqno: 1,
            largest_seqno: 1,
            epoch_number: epoch,
            extra_run: run,
            oldest_ancester_time: seconds,
            file_creation_time: seconds,
            ..FileEntry::default()
        };
        self.extents.insert(number, extent);
        Arc::new(FileMeta::new(entry, Arc::clone(&self.purge)))
    }

    /// Adds a flushed table.
    pub fn flush(&mut self, extent: Extent, now: f64) {
        let epoch = self.next_epoch;
        self.next_epoch += 1;
        let table = self.table(extent, epoch, 0, now);
        Arc::make_mut(&mut self.version).levels[0].base.insert(0, table);
    }

    /// Adds tables to a level that was empty there.
    pub fn fill(&mut self, level: usize, extents: Vec<Extent>) {
        let tables: Vec<_> = extents.into_iter().map(|e| self.table(e, 1, 0, 0.0)).collect();
        self.next_epoch = self.next_epoch.max(2);
        let version = Arc::make_mut(&mut self.version);
        version.levels[level].extend(tables);
        sort(version, level);
    }

    /// A job's tables, which are not live yet: its inputs where these move, none where they are deleted.
    pub fn write(&mut self, job: &Compaction, outputs: Vec<Extent>, now: f64) -> Vec<Arc<FileMeta>> {
        let epoch = job.input_files().map(|f| f.entry.epoch_number).min().unwrap_or(1);
        match (job.deletion, job.trivial_move) {
            (true, _) => Vec::new(),
            (_, true) => job.input_files().map(|f| moved(f, job)).collect(),
            _ => outputs.into_iter().map(|e| self.table(e, epoch, job.output_run, now)).collect(),
        }
    }

    /// Tables that are not live, and shall not be, are gone.
    pub fn remove<'f>(&mut self, tables: impl IntoIterator<Item = &'f Arc<FileMeta>>) {
        for f in tables {
            self.extents.remove(&f.number());
        }
    }

    /// Takes a job's inputs out and puts tables in.
    pub fn commit(&mut self, job: &Compaction, tables: Vec<Arc<FileMeta>>) {
        let numbers: std::collections::HashSet<u64> = job.input_files().map(|f| f.number()).collect();
        if !job.trivial_move {
            self.remove(job.input_files());
        }
        let version = Arc::make_mut(&mut self.version);
        for (level, _) in &job.inputs {
            version.levels[*level].retain(|f| !numbers.contains(&f.number()));
        }
        version.levels[job.output_level].extend(tables);
        sort(version, job.output_level);
    }
}

/// A table in the run that a job moves it to.
pub(crate) fn moved(f: &Arc<FileMeta>, job: &Compaction) -> Arc<FileMeta> {
    match f.entry.extra_run == job.output_run {
        true => Arc::clone(f),
        false => Arc::new(f.renewed(FileEntry { extra_run: job.output_run, ..f.entry.clone() })),
    }
}

fn sort(version: &mut Version, level: usize) {
    let Version { levels, cmp } = version;
    levels[level].sort(level, cmp);
}
