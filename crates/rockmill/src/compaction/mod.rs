//! Compaction: choose (strategy), describe (spec), run (job, merge engine), resolve, build, commit. See
//! `docs/compaction.md`.
//!
//! `tests/style/layers.rs` says which file may use which. The declarations here are for all of them: what a compaction
//! is, and what a job results in.

pub mod commit;
pub mod describe;
pub mod elsewhere;
pub mod engine;
pub mod events;
pub mod file_ranges;
mod filter;
mod flush;
pub mod host;
pub mod job;
mod local_host;
pub mod merge;
#[cfg(test)]
pub(crate) mod model;
pub mod objects;
mod output;
mod page_cache;
pub mod pieces;
pub mod plan;
pub mod resolve;
pub mod result;
pub(crate) mod rewrite;
pub mod spec;
pub mod sst_map;
pub mod strategy;
mod subtrees;
pub mod table_format;
mod thread_cpu;
pub(crate) mod tombstones;
mod unique_id;
// The encoding of jobs is for runners in other processes: the store does its own jobs without it.
mod wire;
#[cfg(feature = "internals")]
pub mod worker;

pub(crate) use unique_id::internal_unique_id;

use std::collections::HashSet;
use std::sync::Arc;

use rockmill_format::InternalKeyComparator;
use rockmill_format::compression::CompressionType;
use rockmill_format::edit::FileEntry;
use rockmill_format::key::InternalKey;
use rockmill_format::properties::TableProperties;

pub use crate::event_listener::CompactionReason;
pub use crate::options::MergeEngine;
use crate::sync::atomic::AtomicBool;
use crate::version::{FileMeta, Version};
#[cfg(feature = "kernel")]
pub use engine::kernel::probe_kernel_engine;
pub use engine::{EngineParts, SharedEngines};
pub(crate) use engine::{LOOKUP_MEMORY, LentRing};
pub use events::JobEvents;
pub use host::JobProgress;
pub(crate) use host::{JobHost, JobMeans};
pub(crate) use local_host::LocalHost;
use resolve::ResolveStats;

/// One compaction, chosen: plain data.
#[derive(Debug, Clone)]
pub struct Compaction {
    /// Why.
    pub reason: CompactionReason,
    /// Input files: (level, files), one pair for each sorted run, newest run first; L0 files newest first in one pair,
    /// others by key. A level with extra runs may occur several times: its extra runs newest first, then its base
    /// run. The files' entries say which run it is.
    pub inputs: Vec<(usize, Vec<Arc<FileMeta>>)>,
    /// Where the output goes.
    pub output_level: usize,
    /// The run of that level: 0 is its base run, otherwise the extra run with this id.
    pub output_run: u64,
    /// The column family's path that the output goes to (`strategy/paths.rs`). Tables that only move to another level
    /// stay in their path.
    pub output_path: u32,
    /// Files of the level below the output that overlap, to end outputs early.
    pub grandparents: Vec<Arc<FileMeta>>,
    /// The version it was chosen from (for the tombstone check below the output level).
    pub version: Arc<Version>,
    /// No older data of the key range exists below the output level.
    pub bottommost: bool,
    /// The inputs may be moved to the output level without rewriting them.
    pub trivial_move: bool,
    /// The inputs are deleted, and nothing is written.
    pub deletion: bool,
    /// Size in bytes that output files should have.
    pub output_file_size_target: u64,
    /// Bytes at which an output file ends; above the target where a file may run on to a boundary below.
    pub output_file_size_max: u64,
    /// Bytes of grandparent overlap at which an output file ends.
    pub grandparent_overlap_max: u64,
    /// Of output blocks.
    pub compression: CompressionType,
    /// Threads to split it over; 0 takes the database's `max_subcompactions`.
    pub subcompactions_max: usize,
    /// With the priority `kRoundRobin`: the start level's cursor when this has committed.
    pub next_cursor: Option<InternalKey>,
    /// With the priority `kRoundRobin`: the output level's cursor, if it lies in the inputs. A table ends before it, so
    /// that the next job from there takes no table that reaches over it.
    pub split_key: Option<InternalKey>,
    /// Unchanged entries may stay in their files, which become pieces of the outputs. Otherwise each output is one
    /// file, as in RocksDB.
    pub keep_pieces: bool,
    /// Score of the start level when chosen.
    pub score: f64,
}

impl Compaction {
    /// A job that merges `inputs` into the base run of a level, without limits or other settings.
    pub(crate) fn new(
        version: &Arc<Version>,
        reason: CompactionReason,
        inputs: Vec<(usize, Vec<Arc<FileMeta>>)>,
        output_level: usize,
        compression: CompressionType,
    ) -> Self {
        Self {
            reason,
            inputs,
            output_level,
            output_run: 0,
            output_path: 0,
            grandparents: Vec::new(),
            version: Arc::clone(version),
            bottommost: false,
            trivial_move: false,
            deletion: false,
            output_file_size_target: u64::MAX,
            output_file_size_max: u64::MAX,
            grandparent_overlap_max: u64::MAX,
            compression,
            subcompactions_max: 0,
            next_cursor: None,
            split_key: None,
            keep_pieces: true,
            score: 0.0,
        }
    }

    /// Level of the first inputs.
    pub fn start_level(&self) -> usize {
        self.inputs.first().map_or(0, |(level, _)| *level)
    }

    /// All input files.
    pub fn input_files(&self) -> impl Iterator<Item = &Arc<FileMeta>> {
        self.inputs.iter().flat_map(|(_, files)| files)
    }

    /// Smallest and largest user key of the inputs.
    pub fn user_key_range(&self) -> Option<(&[u8], &[u8])> {
        user_key_range(&self.version.cmp, self.input_files().map(|f| &f.entry))
    }

    /// Tables that hold, or will hold, older data for the job's keys than its output does, one sorted list for each
    /// run. These are the tables below the output, and tables that other jobs hold and will commit before this one:
    /// they lie below an input that they overlap.
    pub fn older_runs(&self) -> Vec<Vec<Arc<FileMeta>>> {
        older_runs(&self.version, &self.inputs, self.output_level, self.output_run)
    }

    /// True if the inputs are outputs of finished jobs that are not live yet (`strategy/intra.rs`).
    pub fn is_intra_df(&self) -> bool {
        self.reason == CompactionReason::IntraDf
    }

    /// Bytes of all inputs.
    pub fn input_bytes(&self) -> u64 {
        self.inputs.iter().flat_map(|(_, f)| f).map(|f| f.size()).sum()
    }
}

/// Smallest and largest user key of tables.
pub(crate) fn user_key_range<'f>(
    cmp: &InternalKeyComparator,
    tables: impl Iterator<Item = &'f FileEntry>,
) -> Option<(&'f [u8], &'f [u8])> {
    tables.map(|f| (f.smallest.user_key(), f.largest.user_key())).reduce(|(s, l), (fs, fl)| {
        (if cmp.compare_user(fs, s).is_lt() { fs } else { s }, if cmp.compare_user(fl, l).is_gt() { fl } else { l })
    })
}

/// False if [`older_runs`] finds nothing; faster than that if it finds something.
pub fn has_older_runs(
    version: &Version,
    inputs: &[(usize, Vec<Arc<FileMeta>>)],
    output_level: usize,
    output_run: u64,
) -> bool {
    let all = || inputs.iter().flat_map(|(_, files)| files);
    let (smallest, largest) = user_key_range(&version.cmp, all().map(|f| &f.entry)).unzip();
    let taken = |f: &Arc<FileMeta>| all().any(|input| input.number() == f.number());
    // Usually there is deeper data, most likely in the largest run.
    let deepest_first = version.levels.iter().enumerate().skip(output_level.max(1)).rev();
    let mut below = deepest_first.flat_map(|(level, l)| l.runs().rev().map(move |run| (level, run)));
    below.any(|(level, run)| {
        let deeper = level > output_level || run.first().is_some_and(|f| f.entry.extra_run < output_run);
        deeper && version.touched_of(run, smallest, largest).iter().any(|f| !taken(f))
    }) || !older_runs(version, inputs, output_level, output_run).is_empty()
}

/// See [`Compaction::older_runs`].
pub fn older_runs(
    version: &Version,
    inputs: &[(usize, Vec<Arc<FileMeta>>)],
    output_level: usize,
    output_run: u64,
) -> Vec<Vec<Arc<FileMeta>>> {
    let all = || inputs.iter().flat_map(|(_, files)| files);
    let taken: HashSet<u64> = all().map(|f| f.number()).collect();
    let (smallest, largest) = user_key_range(&version.cmp, all().map(|f| &f.entry)).unzip();
    let mut runs = Vec::new();
    let mut above: Vec<&Arc<FileMeta>> = Vec::new();
    for place in version.sorted_runs() {
        // A base run has the id 0, the smallest: it is the last of its level.
        let below = place.level > output_level || (place.level == output_level && place.run < output_run);
        let is_older = |f: &&Arc<FileMeta>| {
            let touched =
                |g: &&Arc<FileMeta>| version.touches(f, Some(g.smallest_user_key()), Some(g.largest_user_key()));
            !taken.contains(&f.number()) && (below || above.iter().any(touched))
        };
        // A run of L0 is one file.
        let near = version.touched_of(place.files, smallest, largest);
        let older: Vec<_> = near.iter().filter(is_older).cloned().collect();
        if !older.is_empty() {
            runs.push(older);
        }
        if !below {
            above.extend(near.iter().filter(|f| taken.contains(&f.number())));
        }
    }
    runs
}

/// Flags of a job that ends when one is set: the store closes, its output is no longer wanted, another part failed.
pub(crate) type Stop<'a> = [&'a AtomicBool; 3];

/// Counters of a job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JobStats {
    /// Bytes of input tables that were read.
    pub input_bytes: u64,
    /// Bytes of output tables.
    pub output_bytes: u64,
    /// Entries read.
    pub input_records: u64,
    /// Entries that survived.
    pub output_records: u64,
    /// Wall time, in microseconds.
    pub wall_micros: u64,
    /// CPU time of all its threads, in microseconds; of helpers the time that they spent on it.
    pub cpu_micros: u64,
    /// Subcompactions it was split over.
    pub subcompactions: u64,
    /// Input tables that were dropped without reading them, because range tombstones delete everything in them.
    pub files_covered: u64,
    /// Bytes of these; not among `input_bytes`.
    pub bytes_covered: u64,
    /// What happened to the entries that did not survive.
    pub dropped: ResolveStats,
}

/// The output of a job: files that are written, synced and closed, and not yet live.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct JobOutput {
    /// New files in key order.
    pub files: Vec<FileEntry>,
    /// The properties of each of them.
    pub properties: Vec<TableProperties>,
    /// Counters.
    pub stats: JobStats,
}
