//! The spec of a job: a compaction or a flush as plain data that can be sent elsewhere.
//!
//! 1. The store makes a spec of a picked compaction, or of memtables to be flushed. Files are told by number, size,
//!    bounds and checksum, code by name, and nothing in the spec refers to memory or to open files.
//! 2. A runner ([`job::run`](super::job::run) here) takes the spec and a host ([`JobHost`]), which opens inputs,
//!    creates outputs, says when to stop and hears of progress. It looks nothing up in the tree, and its result is
//!    data, too (`result.rs`).
//! 3. Which bytes the tables have depends on the spec, the inputs, the host's clock and the file numbers. If the spec
//!    sets numbers aside, and has one part or is `reproducible`, every host writes the same tables.
//!
//! The store runs its own jobs this way, without the encoding (`spec/encoding.rs`, `docs/job-spec.md`), which is for
//! others.

use std::sync::Arc;

use rockmill_format::edit::FileEntry;
use rockmill_format::key::SequenceNumber;

pub use super::filter::FilterSpec;

use super::file_ranges::FileRanges;
use super::pieces::KeptFile;
use super::plan::{JobPlan, OutputPlan, Part};
use super::sst_map::SstMap;
use super::table_format::{TableFormat, TableOwner};
use super::tombstones::Tombstones;
use super::{Compaction, CompactionReason, JobHost, JobMeans, subtrees};
use crate::compaction_filter::TableFileCreationReason;
use crate::error::Result;
use crate::front::SealedRuns;
use crate::options::{CfOptions, CompressionOptions};
use crate::rate_limiter::IoPriority;
use crate::table::ReplacedTables;
use crate::version::Version;

#[cfg(feature = "internals")]
mod encoding;

/// A job. See the module.
#[derive(Debug, Clone, PartialEq)]
pub struct JobSpec {
    /// The job's number, for logs and events.
    pub job: u64,
    /// A compaction, a flush, or a flush while a database is opened.
    pub reason: TableFileCreationReason,
    /// Sorted runs that a compaction reads, newest first: of entries that compare equal the one of the earlier run
    /// wins. Each file of L0 is a run.
    pub runs: Vec<SpecRun>,
    /// Ids of the memtables that a flush reads, oldest first; the host has their entries.
    pub memtables: Vec<u64>,
    /// Name of the order of user keys.
    pub comparator: String,
    /// Merge operator, as OPTIONS files have it, with its properties; empty without one. Its name alone is in
    /// [`TableOwner`].
    pub merge_operator: String,
    /// Compaction filter.
    pub filter: Option<FilterSpec>,
    /// Live snapshots, rising.
    pub snapshots: Vec<SequenceNumber>,
    /// Nothing older than the output exists for its keys.
    pub bottommost: bool,
    /// Tables with older data that overlap the job, one list for each sorted run; `None`: older data may be anywhere.
    pub older: Option<Vec<FileRanges>>,
    /// What the tables are.
    pub output: OutputPlan,
    /// Parts that the job may be split into at most, each done by a thread.
    pub parts_max: usize,
    /// How the job is split, where that is decided; else the runner splits it.
    pub parts: Vec<Part>,
    /// Numbers set aside for the outputs, which are used in this order; when all are, the host is asked for more.
    pub numbers: Vec<NumberRange>,
    /// Files of the inputs, pieces included, that outputs may go on using (TPH tables).
    pub keep: Vec<KeptFile>,
    /// Space set aside for the outputs on the device that the inputs' extents are of; empty where the host has files.
    pub space: Vec<Extent>,
}

/// One sorted input: files in key order that do not overlap, read as one stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpecRun {
    /// Level it lies in.
    pub level: usize,
    /// Its files, by key.
    pub files: Vec<Arc<SpecFile>>,
}

/// One input file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpecFile {
    /// As the MANIFEST describes it: number, size, bounds, sequence numbers, epoch, extra run, checksum, unique id,
    /// size of its tail.
    pub entry: FileEntry,
    /// Where its bytes are on the device, in their order; empty: all of the host's file of that number.
    pub extents: Vec<Extent>,
}

impl SpecFile {
    /// A file of the host, as the MANIFEST describes it.
    pub fn new(entry: FileEntry) -> Self {
        Self { entry, extents: Vec::new() }
    }

    /// File number.
    pub fn number(&self) -> u64 {
        self.entry.number
    }

    /// Bytes that the table counts for, as [`FileMeta::size`](crate::version::FileMeta::size) has it.
    pub fn size(&self) -> u64 {
        self.entry.table_size()
    }

    /// Its first user key.
    pub fn smallest_user_key(&self) -> &[u8] {
        self.entry.smallest.user_key()
    }

    /// Its last user key.
    pub fn largest_user_key(&self) -> &[u8] {
        self.entry.largest.user_key()
    }
}

/// Bytes of a device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Extent {
    /// Offset of the first byte.
    pub offset: u64,
    /// How many bytes.
    pub length: u64,
}

/// File numbers that follow one another.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NumberRange {
    /// The first.
    pub first: u64,
    /// How many.
    pub count: u64,
}

/// What the specs of a column family's jobs are made from: its names, options and snapshots at one moment.
#[derive(Debug, Clone)]
pub struct JobFamily {
    /// Database id.
    pub db_id: String,
    /// Session id.
    pub db_session_id: String,
    /// Column family's id.
    pub cf_id: u32,
    /// Column family's name.
    pub cf_name: String,
    /// Its options.
    pub options: Arc<CfOptions>,
    /// Live snapshots, rising.
    pub snapshots: Vec<SequenceNumber>,
    /// Tables that left the current version and whose files are still there, rising.
    pub past: Vec<u64>,
}

/// Tables replaced before that a job's tables list, at most; the newest. Readers that keep more are not expected, and
/// each table has the list.
const PAST_MAX: usize = 16 << 10;

impl JobFamily {
    /// What the family's tables say of their origin.
    pub(super) fn owner(&self) -> TableOwner {
        let operator = self.options.merge_operator.as_ref();
        TableOwner {
            db_id: self.db_id.clone(),
            db_session_id: self.db_session_id.clone(),
            cf_id: self.cf_id,
            cf_name: self.cf_name.clone(),
            merge_operator: operator.map_or_else(String::new, |m| m.name().to_owned()),
        }
    }

    /// A job that reads nothing, writes one table of `output`, and knows nothing of older data.
    fn spec(&self, reason: TableFileCreationReason, mut output: OutputPlan, job: u64, means: &JobMeans) -> JobSpec {
        let operator = self.options.merge_operator.as_ref();
        if output.format.tph.is_some() && !self.past.is_empty() {
            let newest = self.past.len().saturating_sub(PAST_MAX);
            let before = self.past.get(newest..).unwrap_or_default().to_vec();
            output.replaced = Arc::new(ReplacedTables { before, ..ReplacedTables::default() });
        }
        JobSpec {
            job,
            reason,
            comparator: means.objects.cmp.user_comparator().name().to_owned(),
            merge_operator: operator.map_or_else(String::new, |m| m.option_text()),
            snapshots: self.snapshots.clone(),
            ..JobSpec::of_nothing(output)
        }
    }
}

impl JobSpec {
    /// A job that reads nothing, and has no rules.
    fn of_nothing(output: OutputPlan) -> Self {
        Self {
            job: 0,
            reason: TableFileCreationReason::Compaction,
            runs: Vec::new(),
            memtables: Vec::new(),
            comparator: String::new(),
            merge_operator: String::new(),
            filter: None,
            snapshots: Vec::new(),
            bottommost: false,
            older: None,
            output,
            parts_max: 1,
            parts: Vec::new(),
            numbers: Vec::new(),
            keep: Vec::new(),
            space: Vec::new(),
        }
    }

    /// The spec of a compaction. Any host that knows its objects may run it.
    ///
    /// # Errors
    /// A filter factory that panics.
    pub(crate) fn of_compaction(
        compaction: &Compaction,
        family: &JobFamily,
        job: u64,
        means: &JobMeans,
    ) -> Result<Self> {
        let mut runs = Vec::new();
        for (level, files) in &compaction.inputs {
            let files = files.iter().map(|f| Arc::new(SpecFile::new(f.entry.clone())));
            match *level {
                0 => runs.extend(files.map(|f| SpecRun { level: 0, files: vec![f] })),
                level => runs.push(SpecRun { level, files: files.collect() }),
            }
        }
        let cf = &*family.options;
        // What is ingested behind later lies below everything; what an intra-DF merge's parts wait for, too.
        let knows = compaction.output_level > 0 && !compaction.version.reserves_last_level && !compaction.is_intra_df();
        let times = compaction.input_files().map(|f| f.entry.oldest_ancester_time).filter(|&t| t != 0);
        let mut format = TableFormat::of(cf);
        if cf.optimize_filters_for_hits && compaction.bottommost {
            format.block_based.bloom_bits_per_key = 0.0;
        }
        let by_hash = means.objects.cmp.is_hash_range() && compaction.output_level > 0;
        let (grandparents, file_size_max) = match by_hash {
            // Subtrees say where tables end.
            true => (FileRanges::default(), compaction.output_file_size_target.saturating_mul(2)),
            false => (FileRanges::of(&compaction.grandparents), compaction.output_file_size_max),
        };
        let output = OutputPlan {
            format,
            extra_run: compaction.output_run,
            path_id: compaction.output_path,
            file_size_target: compaction.output_file_size_target,
            file_size_max,
            grandparents,
            grandparent_overlap_max: compaction.grandparent_overlap_max,
            subtree_bits: if by_hash { subtrees::subtree_bits(compaction) } else { 0 },
            split_key: compaction.split_key.clone(),
            compression: compaction.compression,
            compression_opts: compression_opts(cf, &compaction.version, compaction.output_level).clone(),
            epoch_number: compaction.input_files().map(|f| f.entry.epoch_number).min().unwrap_or(0),
            oldest_ancestor_time: times.min().unwrap_or(0),
            ..OutputPlan::of_new_entries(family.owner(), cf, compaction.output_level, means.db.reproducible)
        };
        let tph = output.format.tph.as_ref();
        let live_of = |piece| compaction.version.piece_live(piece).1;
        let spec = Self {
            runs,
            keep: tph.map_or_else(Vec::new, |tph| super::pieces::files_to_keep(compaction, tph, live_of)),
            bottommost: compaction.bottommost,
            older: knows.then(|| compaction.older_runs().iter().map(|files| FileRanges::of(files)).collect()),
            parts_max: match compaction.subcompactions_max {
                0 => means.db.max_subcompactions as usize,
                // What its caller says; else what the strategy found idle, or the options say.
                n if compaction.reason == CompactionReason::ManualCompaction => n,
                n => n.max(means.db.max_subcompactions as usize),
            },
            ..family.spec(TableFileCreationReason::Compaction, output, job, means)
        };
        let filter = FilterSpec::of_compaction(compaction, &means.objects, means.clock.now_micros());
        Ok(Self { filter: filter.map_err(|e| e.context(spec.what()))?, ..spec })
    }

    /// The spec of a flush of what was sealed into one table.
    ///
    /// # Errors
    /// A filter factory that panics.
    pub(crate) fn of_flush(
        sealed: &SealedRuns,
        family: &JobFamily,
        reason: TableFileCreationReason,
        job: u64,
        means: &JobMeans,
    ) -> Result<Self> {
        let cf = &*family.options;
        let output = OutputPlan {
            bytes_expected: sealed.data_size(),
            compression: cf.compression_per_level.first().copied().unwrap_or(cf.compression),
            io_priority: IoPriority::High,
            ..OutputPlan::of_new_entries(family.owner(), cf, 0, means.db.reproducible)
        };
        let spec = Self { memtables: sealed.ids().collect(), ..family.spec(reason, output, job, means) };
        let filter = FilterSpec::of_flush(&means.objects, reason, means.clock.now_micros());
        Ok(Self { filter: filter.map_err(|e| e.context(spec.what()))?, ..spec })
    }

    /// Decides on the parts, and looks up in the inputs' indexes which blocks each reads, unless it reads entry by
    /// entry: a runner elsewhere then reads no index.
    ///
    /// # Errors
    /// A table that cannot be opened.
    #[cfg_attr(not(test), expect(dead_code, reason = "for hosts elsewhere; the store's own runner looks it up itself"))]
    pub(crate) fn lay_out(&mut self, host: &dyn JobHost) -> Result<()> {
        let mut plan = JobPlan::new(self, host)?;
        Tombstones::gather(&mut plan, host)?;
        plan.split(self.parts_max, host)?;
        if !plan.by_entries {
            let maps = plan.parts.iter().map(|part| SstMap::new(&plan, part, host)).collect::<Result<Vec<_>>>()?;
            for (part, map) in plan.parts.iter_mut().zip(maps) {
                let files = map.runs.into_iter().flat_map(|run| run.files);
                part.blocks = Some(files.map(|f| (f.file.number(), f.blocks)).collect());
            }
        }
        self.parts = plan.parts;
        Ok(())
    }

    /// Bytes of all inputs; 0 for a flush.
    pub fn input_bytes(&self) -> u64 {
        self.runs.iter().flat_map(|run| &run.files).map(|f| f.size()).fold(0, u64::saturating_add)
    }

    /// True for a table of the sorted run that the outputs become part of. Outputs may go on using its files.
    pub(super) fn is_base(&self, run: &SpecRun, file: &SpecFile) -> bool {
        run.level == self.output.level && file.entry.extra_run == self.output.extra_run
    }

    /// Refuses to keep files where the output's run is not the oldest that is read. An output would have what is older
    /// in its own file, where it hides the newer entries in a file that is kept (I1 in docs/tph.md).
    pub(super) fn check_bases(&self) -> std::result::Result<(), String> {
        let is_base = |run: &SpecRun, f: &SpecFile| self.is_base(run, f);
        let since_base = self.runs.iter().skip_while(|run| !run.files.iter().any(|f| is_base(run, f)));
        let older =
            since_base.flat_map(|run| run.files.iter().filter(move |f| !is_base(run, f)).map(move |f| (run, f)));
        match older.map(|(run, f)| (run.level, f.number())).next() {
            Some((level, number)) if !self.keep.is_empty() => Err(format!(
                "files to keep, and table {number} of level {level}, which is not newer than the output's run"
            )),
            _ => Ok(()),
        }
    }

    /// The job in words, for errors.
    pub(super) fn what(&self) -> String {
        match (self.reason, self.runs.first()) {
            (TableFileCreationReason::Compaction, first) => {
                let from = first.map_or(0, |run| run.level);
                format!("compaction of level {from} into level {}", self.output.level)
            }
            _ => format!("flush of column family {:?}", self.output.owner.cf_name),
        }
    }

    /// The numbers set aside, in order.
    pub(super) fn leased_numbers(&self) -> Vec<u64> {
        self.numbers.iter().flat_map(|range| range.first..range.first.saturating_add(range.count)).collect()
    }
}

/// Of tables written to `level` (RocksDB's `GetCompressionOptions`).
fn compression_opts<'a>(cf: &'a CfOptions, version: &Version, level: usize) -> &'a CompressionOptions {
    let deepest = version.levels.iter().rposition(|files| !files.is_empty());
    let bottommost = deepest.is_none_or(|l| level >= l);
    if bottommost && cf.bottommost_compression_opts.enabled {
        &cf.bottommost_compression_opts
    } else {
        &cf.compression_opts
    }
}

#[cfg(test)]
pub(crate) mod tests;
