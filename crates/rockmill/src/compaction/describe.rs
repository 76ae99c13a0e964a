//! The specs of the store's own jobs: a picked compaction, or what was sealed for a flush, as a [`JobSpec`].

use std::sync::Arc;

use rockmill_format::key::SequenceNumber;

use super::file_ranges::FileRanges;
use super::pieces::files_to_keep;
use super::spec::{FilterSpec, JobSpec, OutputPlan, SpecFile, SpecRun};
use super::subtrees::subtree_bits;
use super::table_format::{TableFormat, TableOwner};
use super::{Compaction, CompactionReason, JobMeans};
use crate::compaction_filter::TableFileCreationReason;
use crate::error::Result;
use crate::front::SealedRuns;
use crate::options::{CfOptions, CompressionOptions};
use crate::rate_limiter::IoPriority;
use crate::table::ReplacedTables;
use crate::version::Version;

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
    /// Tables that are no longer in the current version and whose files still exist, rising.
    pub past: Vec<u64>,
}

/// The most earlier replaced tables that a job's tables list, the newest ones. Readers are not expected to keep more,
/// and each table has the list.
const PAST_MAX: usize = 16 << 10;

impl JobFamily {
    /// What the family's tables say about their origin.
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
        // Files that are ingested behind later lie below everything, and so does what the parts of an intra-DF merge
        // wait for.
        let knows = compaction.output_level > 0 && !compaction.version.reserves_last_level && !compaction.is_intra_df();
        let times = compaction.input_files().map(|f| f.entry.oldest_ancester_time).filter(|&t| t != 0);
        let mut format = TableFormat::of(cf);
        if cf.optimize_filters_for_hits && compaction.bottommost {
            format.block_based.bloom_bits_per_key = 0.0;
        }
        let by_hash = means.objects.cmp.is_hash_range() && compaction.output_level > 0;
        let (grandparents, file_size_max) = match by_hash {
            // Subtrees determine where tables end.
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
            subtree_bits: if by_hash { subtree_bits(compaction) } else { 0 },
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
            keep: tph.map_or_else(Vec::new, |tph| files_to_keep(compaction, tph, live_of)),
            bottommost: compaction.bottommost,
            older: knows.then(|| compaction.older_runs().iter().map(|files| FileRanges::of(files)).collect()),
            parts_max: match compaction.subcompactions_max {
                0 => means.db.max_subcompactions as usize,
                // As many as the caller says; otherwise as many as the strategy found idle, or the options say.
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
