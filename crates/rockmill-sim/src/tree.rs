//! The simulated tree: the store's `Version`, with tables that are only key ranges with sizes.

use std::collections::HashMap;
use std::sync::Arc;

use rockmill::internals::simulation::{Compaction, FileMeta, PurgeQueue, Version};
use rockmill_format::InternalKeyComparator;
use rockmill_format::edit::FileEntry;
use rockmill_format::key::{InternalKey, ValueType};

use crate::keys::{Extent, POSITIONS};
use crate::pieces::{Files, Output};

/// Virtual time begins here, in seconds: 0 means an unknown time to the store.
pub const EPOCH_SECONDS: f64 = 1e6;

/// A tree and the contents of its tables.
pub struct Tree {
    /// As the strategies see it.
    pub version: Arc<Version>,
    extents: HashMap<u64, Extent>,
    /// Bytes of all tables.
    bytes: u64,
    /// Total positions that the tables cover.
    cover: u128,
    purge: Arc<PurgeQueue>,
    next_number: u64,
    next_epoch: u64,
    /// Bytes of an entry in a table.
    entry_bytes: f64,
    /// Total positions that the files of all tables cover; see `cover`.
    file_cover: u128,
    /// Which files tables share; `None` if tables are block-based.
    pub files: Option<Files>,
}

impl Tree {
    /// No tables in so many levels.
    pub fn new(levels: usize, entry_bytes: f64, files: Option<Files>) -> Self {
        let version = Version::empty(levels, rockmill_format::InternalKeyComparator::default());
        let (extents, purge) = (HashMap::new(), Arc::default());
        Self {
            version: Arc::new(version),
            extents,
            bytes: 0,
            cover: 0,
            purge,
            next_number: 1,
            next_epoch: 1,
            entry_bytes,
            file_cover: 0,
            files,
        }
    }

    /// What a table holds.
    pub fn extent(&self, number: u64) -> Option<&Extent> {
        self.extents.get(&number)
    }

    /// Bytes of all tables; shared files count once.
    pub fn bytes(&self) -> u64 {
        self.files.as_ref().map_or(self.bytes, Files::bytes)
    }

    /// Files that a seek positions in, on average over the key space, if tables have several files; otherwise 0.
    pub fn file_cover(&self) -> f64 {
        self.file_cover as f64 / POSITIONS as f64
    }

    /// Tables that cover a key, on average over the key space.
    pub fn cover(&self) -> f64 {
        self.cover as f64 / POSITIONS as f64
    }

    /// Positions that a table reaches over.
    fn width(&self, f: &FileMeta) -> u128 {
        self.extents.get(&f.number()).map_or(0, |e| u128::from(e.end - e.begin))
    }

    /// Sorted runs: L0 tables, and the runs of levels.
    pub fn runs(&self) -> usize {
        self.version.sorted_runs().count()
    }

    /// The same, counted once for each file of the table.
    fn file_width(&self, f: &FileMeta) -> u128 {
        self.files.as_ref().map_or(0, |files| self.width(f) * files.count(f.number()) as u128)
    }

    fn table(&mut self, output: Output, epoch: u64, (path_id, run): (u32, u64), now: f64) -> Arc<FileMeta> {
        let number = self.next_number;
        self.next_number += 1;
        let (size, pieces) = match &mut self.files {
            Some(files) => files.add(number, &output),
            None => (((output.extent.entries() * self.entry_bytes) as u64).max(1), Vec::new()),
        };
        let extent = output.extent;
        let key = |at: u64| InternalKey::new(&at.to_be_bytes(), 1, ValueType::Value);
        let seconds = (EPOCH_SECONDS + now) as u64;
        let entry = FileEntry {
            number,
            size,
            pieces,
            path_id,
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
        let file = FileMeta::new(entry, Arc::clone(&self.purge));
        let _ = file.tombstone_weight.set(0); // known: there are none
        Arc::new(file)
    }

    /// Adds a flushed table.
    pub fn flush(&mut self, extent: Extent, now: f64) {
        let epoch = self.next_epoch;
        self.next_epoch += 1;
        let table = self.table(Output::whole(extent), epoch, (0, 0), now);
        self.came(std::slice::from_ref(&table));
        Arc::make_mut(&mut self.version).levels[0].base.insert(0, table);
    }

    /// Adds tables to an empty level, in this path of the options.
    pub fn fill(&mut self, level: usize, path: u32, extents: Vec<Extent>) {
        let tables: Vec<_> = extents.into_iter().map(|e| self.table(Output::whole(e), 1, (path, 0), 0.0)).collect();
        self.next_epoch = self.next_epoch.max(2);
        self.came(&tables);
        put(Arc::make_mut(&mut self.version), level, tables);
    }

    /// Tables are live.
    fn came(&mut self, tables: &[Arc<FileMeta>]) {
        for f in tables {
            self.bytes += f.size();
            self.cover += self.width(f);
            self.file_cover += self.file_width(f);
            if let Some(files) = &mut self.files {
                files.count_file(f.number());
            }
        }
    }

    /// Creates a job's output tables, which are not live yet: its inputs if these move, none if they are deleted.
    pub fn write(&mut self, job: &Compaction, outputs: Vec<Output>, now: f64) -> Vec<Arc<FileMeta>> {
        let epoch = job.input_files().map(|f| f.entry.epoch_number).min().unwrap_or(1);
        match (job.deletion, job.trivial_move) {
            (true, _) => Vec::new(),
            (_, true) => job.input_files().map(|f| moved(f, job)).collect(),
            _ => outputs.into_iter().map(|e| self.table(e, epoch, (job.output_path, job.output_run), now)).collect(),
        }
    }

    /// Removes tables that are not live and will not become live.
    pub fn remove<'f>(&mut self, tables: impl IntoIterator<Item = &'f Arc<FileMeta>>) {
        for f in tables {
            let gone = self.extents.remove(&f.number());
            if let Some((files, gone)) = self.files.as_mut().zip(gone) {
                files.remove(f.number(), gone.entries());
            }
        }
    }

    /// Removes a job's inputs and adds its outputs.
    pub fn commit(&mut self, job: &Compaction, tables: Vec<Arc<FileMeta>>) {
        self.came(&tables);
        for f in job.input_files() {
            self.bytes -= f.size();
            self.cover = self.cover.saturating_sub(self.width(f));
            self.file_cover = self.file_cover.saturating_sub(self.file_width(f));
        }
        if !job.trivial_move {
            self.remove(job.input_files());
        }
        // Changed in place: running jobs do not hold a version.
        let version = Arc::make_mut(&mut self.version);
        for (level, files) in &job.inputs {
            take(version, *level, files);
        }
        put(version, job.output_level, tables);
    }
}

/// A table in the run that a job moves it to.
pub(crate) fn moved(f: &Arc<FileMeta>, job: &Compaction) -> Arc<FileMeta> {
    match f.entry.extra_run == job.output_run {
        true => Arc::clone(f),
        false => Arc::new(f.renewed(FileEntry { extra_run: job.output_run, ..f.entry.clone() })),
    }
}

/// The place in a sorted run of a table that begins like `f`.
fn place(cmp: &InternalKeyComparator, run: &[Arc<FileMeta>], f: &FileMeta) -> usize {
    run.partition_point(|r| cmp.compare(r.entry.smallest.as_bytes(), f.entry.smallest.as_bytes()).is_lt())
}

/// Removes tables of a run from a level. Usually they are neighbours.
fn take(version: &mut Version, level: usize, files: &[Arc<FileMeta>]) {
    let Version { levels, cmp, .. } = version;
    let level_files = &mut levels[level];
    let Some(first) = files.first() else { return };
    if level == 0 {
        level_files.base.retain(|f| !files.iter().any(|taken| taken.number() == f.number()));
        return;
    }
    let run = match first.entry.extra_run {
        0 => &mut level_files.base,
        id => match level_files.extras.iter_mut().find(|run| run.id == id) {
            Some(run) => &mut run.files,
            None => return,
        },
    };
    let mut rest = files;
    while let Some(first) = rest.first() {
        let at = place(cmp, run, first);
        let same = run.iter().skip(at).zip(rest).take_while(|(a, b)| a.number() == b.number()).count();
        run.drain(at..at + same);
        rest = &rest[same.max(1)..];
    }
    level_files.extras.retain(|run| !run.files.is_empty());
}

/// Adds tables of one run to a level.
fn put(version: &mut Version, level: usize, mut tables: Vec<Arc<FileMeta>>) {
    let Version { levels, cmp, .. } = version;
    let of = &mut levels[level];
    let run = match tables.first().map(|f| f.entry.extra_run) {
        Some(0) if level > 0 => Some(&mut of.base),
        Some(id) if level > 0 => of.extras.iter_mut().find(|run| run.id == id).map(|run| &mut run.files),
        _ => None,
    };
    let Some(run) = run else {
        of.extend(tables);
        of.sort(level, cmp);
        return;
    };
    tables.sort_by(|a, b| cmp.compare(a.entry.smallest.as_bytes(), b.entry.smallest.as_bytes()));
    let mut tables = tables.into_iter().peekable();
    while let Some(first) = tables.next() {
        let at = place(cmp, run, &first);
        let mut stretch = vec![first];
        let next = run.get(at).map(|f| f.entry.smallest.clone());
        let before = |f: &Arc<FileMeta>| {
            next.as_ref().is_none_or(|n| cmp.compare(f.entry.smallest.as_bytes(), n.as_bytes()).is_lt())
        };
        while let Some(more) = tables.next_if(before) {
            stretch.push(more);
        }
        run.splice(at..at, stretch);
    }
}
