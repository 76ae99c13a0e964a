//! The spec of a job: a compaction or a flush as plain data that can be sent elsewhere.
//!
//! 1. The store makes a spec of a picked compaction, or of memtables to be flushed (`describe.rs`). Files are
//!    identified by number, size, bounds and checksum, and code by name; nothing in the spec refers to memory or to
//!    open files.
//! 2. A runner ([`job::run`](super::job::run) here) takes the spec and a host ([`JobHost`](super::JobHost)), which
//!    opens inputs, creates outputs, says when to stop and is told about progress. The runner looks nothing up in the
//!    tree, and its result is data, too (`result.rs`).
//! 3. Which bytes the tables have depends on the spec, the inputs, the host's clock and the file numbers. If the spec
//!    sets numbers aside, and has one part or is `reproducible`, every host writes the same tables. On a worker that
//!    holds unless an engine hands a part over: the next takes other numbers, and with `reproducible` the job
//!    fails once a table was begun.
//!
//! The store runs its own jobs this way as well. Only jobs for others are encoded (`spec/encoding.rs`,
//! `docs/job-spec.md`).

use std::collections::BTreeMap;
use std::sync::Arc;

use rockmill_format::compression::CompressionType;
use rockmill_format::edit::FileEntry;
use rockmill_format::footer::BlockHandle;
use rockmill_format::key::{InternalKey, SequenceNumber};

use super::file_ranges::FileRanges;
use super::pieces::KeptFile;
use super::table_format::{TableFormat, TableOwner};
use crate::compaction_filter::TableFileCreationReason;
use crate::options::{CfOptions, CompressionOptions};
use crate::rate_limiter::IoPriority;
use crate::table::ReplacedTables;

mod encoding;

/// A job. See the module.
#[derive(Debug, Clone, PartialEq)]
pub struct JobSpec {
    /// The job's number, for logs and events.
    pub job: u64,
    /// A compaction, a flush, or a flush while a database is opened.
    pub reason: TableFileCreationReason,
    /// Sorted runs that a compaction reads, newest first: of equal entries, the one of the earlier run wins. Each file
    /// of L0 is a run.
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
    /// The most parts that the job may be split into, each done by a thread.
    pub parts_max: usize,
    /// How the job is split, if that is decided; otherwise the runner splits it.
    pub parts: Vec<Part>,
    /// Numbers set aside for the outputs, used in this order; after that the host is asked for more.
    pub numbers: Vec<NumberRange>,
    /// Files of the inputs, pieces included, that outputs may keep using (TPH tables).
    pub keep: Vec<KeptFile>,
    /// Space set aside for the outputs, on the device of the inputs' extents; empty if the host has files.
    pub space: Vec<Extent>,
    /// Further files of inputs, on that device, by rising numbers, each once; empty if the host has files (TPH tables).
    pub further: Vec<FurtherFile>,
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
    /// Where its bytes are on the device, in their order; if empty, it is the host's whole file of that number.
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

/// A file that TPH tables have besides their own, and may share.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FurtherFile {
    /// Its number.
    pub number: u64,
    /// Where its bytes are on the device, in their order.
    pub extents: Vec<Extent>,
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

/// A job's filter by name, and what it is told of the job: part of the spec.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FilterSpec {
    /// The filter's or factory's name.
    pub name: String,
    /// Its further settings, in its own notation (`option_text`).
    pub options: String,
    /// A factory makes one for each part of the job; otherwise all jobs of the host share one.
    pub from_factory: bool,
    /// The job reads every table of the column family.
    pub is_full_compaction: bool,
    /// It was asked for by `compact_range`.
    pub is_manual_compaction: bool,
    /// The lowest level that it reads; `None` when it reads memtables.
    pub input_start_level: Option<u32>,
    /// When the job began, in microseconds since 1970.
    pub now_micros: u64,
}

/// User keys [`begin`, `end`) of a job that one thread does; `None` unbounded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Part {
    /// First user key.
    pub begin: Option<Vec<u8>>,
    /// First user key of the next part.
    pub end: Option<Vec<u8>>,
    /// The data blocks that it reads of each input, by file number, if the spec has them (`JobSpec::lay_out`).
    /// Otherwise they are looked up in the inputs' indexes.
    pub blocks: Option<BTreeMap<u64, Vec<BlockHandle>>>,
}

/// What output tables look like and where they end: plain data, part of the spec.
#[derive(Debug, Clone, PartialEq)]
pub struct OutputPlan {
    /// Whose tables they are.
    pub owner: TableOwner,
    /// How they are written.
    pub format: TableFormat,
    /// Level of the outputs.
    pub level: usize,
    /// The run of that level: 0 is its base run, otherwise the extra run with this id.
    pub extra_run: u64,
    /// The column family's path that the outputs are in, as the MANIFEST will say. The host has the directory.
    pub path_id: u32,
    /// Size in bytes that files should have.
    pub file_size_target: u64,
    /// Size in bytes at which a file ends.
    pub file_size_max: u64,
    /// About how many bytes all files together will have; 0 if that is not known in advance.
    pub bytes_expected: u64,
    /// Files below whose boundaries outputs follow.
    pub grandparents: FileRanges,
    /// Bytes of overlapped grandparents at which a file ends.
    pub grandparent_overlap_max: u64,
    /// In the order by search key: a file ends where these upper bits of it change; 0 for no such places
    /// (`subtrees.rs`).
    pub subtree_bits: u32,
    /// A file ends before the first user key from here on (`kRoundRobin`).
    pub split_key: Option<InternalKey>,
    /// Of blocks.
    pub compression: CompressionType,
    /// Level, dictionary and the like of compression.
    pub compression_opts: CompressionOptions,
    /// Written through the page cache, by plain calls; otherwise as the engine writes, which bypasses it with a ring.
    /// The host decides this: no spec has it.
    pub page_cache: bool,
    /// The permission bits that the outputs may have: those that every input granted when it was opened. `None` if
    /// there are no modes, and for data that was in no table before. A spec has it if its maker knows it.
    pub mode_max: Option<u32>,
    /// Path ids of the files that outputs may keep using, by number, without those in the first path. Taken from the
    /// inputs: no spec has it.
    pub piece_paths: BTreeMap<u64, u32>,
    /// How urgent the job is to the rate limiter.
    pub io_priority: IoPriority,
    /// Tables that no longer count. In a spec these are the tables that were replaced before the job; those that the
    /// job replaces are added if outputs keep using files.
    pub replaced: Arc<ReplacedTables>,
    /// Of the outputs: the inputs' smallest, so that L0 order holds.
    pub epoch_number: u64,
    /// Unix seconds of the oldest data that went in; 0 unknown.
    pub oldest_ancestor_time: u64,
    /// The same job writes the same bytes at any time: tables get the times of their data, and parts run one after the
    /// other, so that their file numbers are the same.
    pub reproducible: bool,
}

impl OutputPlan {
    /// One table, however large, of what was in no table before.
    pub fn of_new_entries(owner: TableOwner, cf: &CfOptions, level: usize, reproducible: bool) -> Self {
        Self {
            owner,
            format: TableFormat::of(cf),
            level,
            extra_run: 0,
            path_id: 0,
            file_size_target: u64::MAX,
            file_size_max: u64::MAX,
            bytes_expected: 0,
            grandparents: FileRanges::default(),
            grandparent_overlap_max: u64::MAX,
            subtree_bits: 0,
            split_key: None,
            compression: cf.compression,
            compression_opts: cf.compression_opts.clone(),
            page_cache: false,
            mode_max: None,
            piece_paths: BTreeMap::new(),
            io_priority: IoPriority::Low,
            replaced: Arc::default(),
            epoch_number: 0,
            oldest_ancestor_time: 0,
            reproducible,
        }
    }
}

impl JobSpec {
    /// A job that reads nothing, and has no rules.
    pub(super) fn of_nothing(output: OutputPlan) -> Self {
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
            further: Vec::new(),
        }
    }

    /// Bytes of all inputs; 0 for a flush.
    pub fn input_bytes(&self) -> u64 {
        self.runs.iter().flat_map(|run| &run.files).map(|f| f.size()).fold(0, u64::saturating_add)
    }

    /// True for a table of the sorted run that the outputs become part of. Outputs may keep using its files.
    pub(super) fn is_base(&self, run: &SpecRun, file: &SpecFile) -> bool {
        run.level == self.output.level && file.entry.extra_run == self.output.extra_run
    }

    /// Refuses to keep files if the output's run is not the oldest that is read. An output would have what is older in
    /// its own file, where it hides the newer entries in a file that is kept (I1 in docs/tph.md).
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

#[cfg(test)]
pub(crate) mod tests;
