//! The encoding of a spec; docs/job-spec.md has it byte by byte.
//!
//! ```text
//! spec:  magic | varint32 version | field* | fixed32 masked CRC-32C of all before it
//! field: varint32 tag | varint32 length | bytes
//! ```
//!
//! Tags rise; those of lists may repeat. A reader skips an unknown tag with bit 13 and refuses any other. Every length
//! and count is checked against the bytes that are there before memory is taken for it.
//!
//! It is bytes in and bytes out, and stands here and not in `rockmill-format` because its types are the store's: what a
//! job is, is no format of RocksDB's.

use rockmill_format::checksum::{crc32c, mask};
use rockmill_format::coding::{
    put_fixed32, put_fixed64, put_length_prefixed, put_varint32, put_varint64, put_varsigned64,
};
use rockmill_format::edit::{MAX_FILE_NUMBER, MAX_LEVELS, VersionEdit};
use rockmill_format::footer::{BLOCK_TRAILER_LEN, BlockHandle};

use super::{Extent, FilterSpec, JobSpec, SpecRun};
use crate::compaction::file_ranges::FileRanges;
use crate::compaction::plan::{OutputPlan, Part};
use crate::compaction::table_format::{TableFormat, TableOwner};
use crate::compaction_filter::TableFileCreationReason;
use crate::error::{Error, Result};
use crate::options::CompressionOptions;

/// What a spec begins with.
pub(super) const MAGIC: &[u8; 8] = b"RMILLJOB";
/// Of this encoding.
pub(super) const VERSION: u32 = 1;
/// Largest spec, in bytes. Longer ones are neither written nor read.
pub(super) const SPEC_BYTES_MAX: usize = 64 << 20;
/// Longest name, in bytes.
pub(super) const TEXT_BYTES_MAX: usize = 64 << 10;
/// File numbers that are set aside for one job, at most.
pub(super) const NUMBERS_MAX: u64 = 1 << 20;
/// Runs and parts together, at most.
pub(super) const LISTED_MAX: usize = 1 << 16;
/// Bytes that the inputs have together, and each list of ranges, at most: so that sums of sizes stay numbers.
pub(super) const FILE_BYTES_MAX: u64 = 1 << 60;
/// Last four bytes.
pub(super) const CHECKSUM_LEN: usize = 4;

/// Tags of fields, in the order in which they stand.
pub(super) mod tag {
    pub const JOB: u32 = 1;
    pub const REASON: u32 = 2;
    pub const FLAGS: u32 = 3;
    pub const OWNER: u32 = 4;
    pub const COMPARATOR: u32 = 5;
    pub const MERGE_OPERATOR: u32 = 6;
    pub const FILTER: u32 = 7;
    pub const SNAPSHOTS: u32 = 8;
    pub const OUTPUT: u32 = 9;
    pub const COMPRESSION_OPTIONS: u32 = 10;
    pub const TABLE_FORMAT: u32 = 11;
    pub const SPLIT_KEY: u32 = 12;
    pub const MODE_MAX: u32 = 13;
    pub const PARTS_MAX: u32 = 14;
    pub const MEMTABLES: u32 = 15;
    pub const NUMBERS: u32 = 16;
    pub const SPACE: u32 = 17;
    /// One for each run.
    pub const INPUT_RUN: u32 = 18;
    /// One for each run.
    pub const OLDER_RUN: u32 = 19;
    pub const GRANDPARENTS: u32 = 20;
    /// One for each part.
    pub const PART: u32 = 21;
    /// A tag with this bit may be skipped.
    pub const SAFE_TO_IGNORE: u32 = 1 << 13;
    /// Every spec has these.
    pub const REQUIRED: [u32; 8] = [JOB, REASON, FLAGS, OWNER, COMPARATOR, OUTPUT, COMPRESSION_OPTIONS, TABLE_FORMAT];
}

/// Bits of the field `FLAGS`.
pub(super) mod flag {
    pub const BOTTOMMOST: u8 = 1;
    pub const REPRODUCIBLE: u8 = 2;
    pub const OLDER_KNOWN: u8 = 4;
}

/// Bits of the field `FILTER`.
pub(super) mod filter_flag {
    pub const FACTORY: u8 = 1;
    pub const FULL: u8 = 2;
    pub const MANUAL: u8 = 4;
    pub const START_LEVEL: u8 = 8;
}

/// Bits of the field `COMPRESSION_OPTIONS`.
pub(super) mod compression_flag {
    pub const ENABLED: u8 = 1;
    pub const TRAINER: u8 = 2;
    pub const CHECKSUM: u8 = 4;
}

/// Bits of the field `TABLE_FORMAT`.
pub(super) mod table_flag {
    pub const WHOLE_KEYS: u8 = 1;
    pub const PARTITIONED_FILTERS: u8 = 2;
    pub const TWO_LEVEL_INDEX: u8 = 4;
    pub const HASH_INDEX: u8 = 8;
}

/// Bits of the field `PART`.
pub(super) mod part_flag {
    pub const BEGIN: u8 = 1;
    pub const END: u8 = 2;
    pub const BLOCKS: u8 = 4;
}

impl JobSpec {
    /// The spec as bytes.
    ///
    /// # Errors
    /// What is over the bounds of the encoding, or no sound spec: such a job has to be run here.
    pub fn encode(&self) -> Result<Vec<u8>> {
        self.check_bounds()?;
        let mut out = Fields { bytes: MAGIC.to_vec() };
        put_varint32(&mut out.bytes, VERSION);
        out.field(tag::JOB, |b| put_varint64(b, self.job));
        out.field(tag::REASON, |b| b.push(reason_number(self.reason)));
        let older_known = flag_if(self.older.is_some(), flag::OLDER_KNOWN);
        let flags = flag_if(self.bottommost, flag::BOTTOMMOST) | flag_if(self.output.reproducible, flag::REPRODUCIBLE);
        out.field(tag::FLAGS, |b| b.push(flags | older_known));
        out.field(tag::OWNER, |b| put_owner(b, &self.output.owner));
        out.field(tag::COMPARATOR, |b| put_text(b, &self.comparator));
        out.field_if(!self.merge_operator.is_empty(), tag::MERGE_OPERATOR, |b| put_text(b, &self.merge_operator));
        if let Some(filter) = &self.filter {
            out.field(tag::FILTER, |b| put_filter(b, filter));
        }
        out.field_if(!self.snapshots.is_empty(), tag::SNAPSHOTS, |b| {
            put_varint64(b, self.snapshots.len() as u64);
            let mut before = 0;
            for &snapshot in &self.snapshots {
                put_varint64(b, snapshot.wrapping_sub(before));
                before = snapshot;
            }
        });
        out.field(tag::OUTPUT, |b| put_output(b, &self.output));
        out.field(tag::COMPRESSION_OPTIONS, |b| put_compression_options(b, &self.output.compression_opts));
        out.field(tag::TABLE_FORMAT, |b| put_table_format(b, &self.output.format));
        if let Some(key) = &self.output.split_key {
            out.field(tag::SPLIT_KEY, |b| b.extend_from_slice(key.as_bytes()));
        }
        if let Some(mode) = self.output.mode_max {
            out.field(tag::MODE_MAX, |b| put_varint32(b, mode));
        }
        out.field(tag::PARTS_MAX, |b| put_varint64(b, self.parts_max as u64));
        out.field_if(!self.memtables.is_empty(), tag::MEMTABLES, |b| {
            put_varint64(b, self.memtables.len() as u64);
            self.memtables.iter().for_each(|&id| put_varint64(b, id));
        });
        out.field_if(!self.numbers.is_empty(), tag::NUMBERS, |b| {
            put_varint64(b, self.numbers.len() as u64);
            for range in &self.numbers {
                put_varint64(b, range.first);
                put_varint64(b, range.count);
            }
        });
        out.field_if(!self.space.is_empty(), tag::SPACE, |b| put_extents(b, &self.space));
        for run in &self.runs {
            out.field(tag::INPUT_RUN, |b| put_run(b, run));
        }
        for run in self.older.iter().flatten() {
            out.field(tag::OLDER_RUN, |b| put_ranges(b, run));
        }
        let grandparents = &self.output.grandparents;
        out.field_if(!grandparents.is_empty(), tag::GRANDPARENTS, |b| put_ranges(b, grandparents));
        for part in &self.parts {
            out.field(tag::PART, |b| put_part(b, part));
        }
        let mut out = out.bytes;
        if out.len() + CHECKSUM_LEN > SPEC_BYTES_MAX {
            return Err(Error::invalid_argument(format!(
                "a job spec of {} bytes, more than the {SPEC_BYTES_MAX} that one may have",
                out.len() + CHECKSUM_LEN
            )));
        }
        let checksum = mask(crc32c(&out));
        put_fixed32(&mut out, checksum);
        Ok(out)
    }

    /// What the encoding has no room for.
    fn check_bounds(&self) -> Result<()> {
        let (owner, format) = (&self.output.owner, &self.output.format);
        let texts = [
            &owner.db_id,
            &owner.db_session_id,
            &owner.cf_name,
            &owner.merge_operator,
            &self.comparator,
            &self.merge_operator,
            &format.prefix_extractor,
        ];
        let filter = self.filter.iter().map(|f| &f.name);
        let long = texts.into_iter().chain(filter).find(|text| text.len() > TEXT_BYTES_MAX);
        let numbers = self.numbers.iter().map(|range| range.count).fold(0, u64::saturating_add);
        let largest = self.numbers.iter().map(|range| range.first).max().unwrap_or(0);
        let listed = self.runs.len() + self.older.iter().map(Vec::len).sum::<usize>() + self.parts.len();
        let deepest = self.runs.iter().map(|run| run.level).fold(self.output.level, usize::max);
        let mut extents = self.runs.iter().flat_map(|run| &run.files).flat_map(|f| &f.extents).chain(&self.space);
        let endless = extents.any(|e| e.offset.checked_add(e.length).is_none());
        let known = self.older.iter().flatten().chain([&self.output.grandparents]);
        let bytes = known.map(FileRanges::total_bytes).fold(self.input_bytes(), u64::max);
        let blocks = |part: &Part| part.blocks.iter().flatten().all(|(_, blocks)| are_in_order(blocks));
        let wrong = match () {
            () if long.is_some() => format!("a name of more than {TEXT_BYTES_MAX} bytes"),
            () if numbers > NUMBERS_MAX || largest > MAX_FILE_NUMBER - NUMBERS_MAX => {
                format!("{numbers} file numbers, of {NUMBERS_MAX} at most, up to {largest}")
            }
            () if listed > LISTED_MAX => format!("{listed} runs and parts, of {LISTED_MAX} at most"),
            () if deepest >= MAX_LEVELS as usize => format!("level {deepest}, which is not below {MAX_LEVELS}"),
            () if bytes > FILE_BYTES_MAX => format!("tables of {bytes} bytes"),
            () if endless => "an extent that ends beyond 64 bits".to_owned(),
            () if !self.snapshots.is_sorted() => "snapshots that do not rise".to_owned(),
            () if !are_adjacent(&self.parts) => "parts with a gap".to_owned(),
            () if !self.parts.iter().all(blocks) => "blocks that are out of order".to_owned(),
            () if !format.block_based.bloom_bits_per_key.is_finite() => {
                "a number of Bloom bits that is none".to_owned()
            }
            () if format.block_based.hash_index_util_ratio.is_some_and(|r| !r.is_finite()) => {
                "a ratio of the hash index that is none".to_owned()
            }
            () => return Ok(()),
        };
        Err(Error::invalid_argument(format!("a job spec with {wrong}")))
    }
}

/// Fields one behind the other.
struct Fields {
    bytes: Vec<u8>,
}

impl Fields {
    fn field(&mut self, tag: u32, fill: impl FnOnce(&mut Vec<u8>)) {
        let mut body = Vec::new();
        fill(&mut body);
        put_varint32(&mut self.bytes, tag);
        put_length_prefixed(&mut self.bytes, &body);
    }

    fn field_if(&mut self, wanted: bool, tag: u32, fill: impl FnOnce(&mut Vec<u8>)) {
        if wanted {
            self.field(tag, fill);
        }
    }
}

fn flag_if(set: bool, flag: u8) -> u8 {
    if set { flag } else { 0 }
}

/// RocksDB's numbers of the reasons.
fn reason_number(reason: TableFileCreationReason) -> u8 {
    match reason {
        TableFileCreationReason::Flush => 0,
        TableFileCreationReason::Compaction => 1,
        TableFileCreationReason::Recovery => 2,
    }
}

/// Each part begins where the one before it ends, and together they are everything.
pub(super) fn are_adjacent(parts: &[Part]) -> bool {
    let (Some(first), Some(last)) = (parts.first(), parts.last()) else { return true };
    let meet = |pair: &[Part]| pair[0].end.is_some() && pair[0].end == pair[1].begin;
    first.begin.is_none() && last.end.is_none() && parts.windows(2).all(meet)
}

/// Each block lies behind the one before it.
fn are_in_order(blocks: &[BlockHandle]) -> bool {
    blocks.windows(2).all(|pair| behind(pair[0]).is_some_and(|end| pair[1].offset >= end))
        && blocks.last().is_none_or(|&last| behind(last).is_some())
}

/// Offset behind a block and its trailer.
pub(super) fn behind(block: BlockHandle) -> Option<u64> {
    block.offset.checked_add(block.size)?.checked_add(BLOCK_TRAILER_LEN as u64)
}

fn put_text(b: &mut Vec<u8>, text: &str) {
    put_length_prefixed(b, text.as_bytes());
}

fn put_owner(b: &mut Vec<u8>, owner: &TableOwner) {
    put_text(b, &owner.db_id);
    put_text(b, &owner.db_session_id);
    put_varint32(b, owner.cf_id);
    put_text(b, &owner.cf_name);
    put_text(b, &owner.merge_operator);
}

fn put_filter(b: &mut Vec<u8>, filter: &FilterSpec) {
    b.push(
        flag_if(filter.from_factory, filter_flag::FACTORY)
            | flag_if(filter.is_full_compaction, filter_flag::FULL)
            | flag_if(filter.is_manual_compaction, filter_flag::MANUAL)
            | flag_if(filter.input_start_level.is_some(), filter_flag::START_LEVEL),
    );
    put_text(b, &filter.name);
    if let Some(level) = filter.input_start_level {
        put_varint32(b, level);
    }
    put_varint64(b, filter.now_micros);
}

fn put_output(b: &mut Vec<u8>, o: &OutputPlan) {
    put_varint64(b, o.level as u64);
    put_varint64(b, o.extra_run);
    put_varint64(b, o.file_size_target);
    put_varint64(b, o.file_size_max);
    put_varint64(b, o.bytes_expected);
    put_varint64(b, o.grandparent_overlap_max);
    put_varint64(b, o.epoch_number);
    put_varint64(b, o.oldest_ancestor_time);
    b.push(o.compression as u8);
    b.push(o.io_priority as u8);
}

fn put_compression_options(b: &mut Vec<u8>, o: &CompressionOptions) {
    b.push(
        flag_if(o.enabled, compression_flag::ENABLED)
            | flag_if(o.use_zstd_dict_trainer, compression_flag::TRAINER)
            | flag_if(o.checksum, compression_flag::CHECKSUM),
    );
    for n in [o.window_bits, o.level, o.strategy, o.max_compressed_bytes_per_kb] {
        put_varsigned64(b, i64::from(n));
    }
    for n in [o.max_dict_bytes, o.zstd_max_train_bytes, o.parallel_threads] {
        put_varint32(b, n);
    }
    put_varint64(b, o.max_dict_buffer_bytes);
}

fn put_table_format(b: &mut Vec<u8>, format: &TableFormat) {
    let f = &format.block_based;
    b.push(
        flag_if(f.whole_key_filtering, table_flag::WHOLE_KEYS)
            | flag_if(f.partition_filters, table_flag::PARTITIONED_FILTERS)
            | flag_if(f.two_level_index, table_flag::TWO_LEVEL_INDEX)
            | flag_if(f.hash_index_util_ratio.is_some(), table_flag::HASH_INDEX),
    );
    b.push(f.checksum as u8);
    put_varint32(b, f.format_version);
    let sizes = [
        f.block_size,
        f.block_size_deviation,
        f.block_restart_interval,
        f.index_block_restart_interval,
        f.metadata_block_size,
    ];
    sizes.into_iter().for_each(|n| put_varint64(b, n as u64));
    put_fixed64(b, f.bloom_bits_per_key.to_bits());
    if let Some(ratio) = f.hash_index_util_ratio {
        put_fixed64(b, ratio.to_bits());
    }
    put_text(b, &format.prefix_extractor);
}

fn put_extents(b: &mut Vec<u8>, extents: &[Extent]) {
    put_varint64(b, extents.len() as u64);
    for extent in extents {
        put_varint64(b, extent.offset);
        put_varint64(b, extent.length);
    }
}

fn put_run(b: &mut Vec<u8>, run: &SpecRun) {
    let entries = run.files.iter().map(|f| (run.level as u32, f.entry.clone())).collect();
    let edit = VersionEdit { new_files: entries, ..VersionEdit::default() };
    put_varint64(b, run.level as u64);
    put_length_prefixed(b, &edit.encode());
    run.files.iter().for_each(|f| put_extents(b, &f.extents));
}

fn put_ranges(b: &mut Vec<u8>, ranges: &FileRanges) {
    put_varint64(b, ranges.len() as u64);
    for file in ranges.iter() {
        put_length_prefixed(b, file.smallest);
        put_length_prefixed(b, file.largest);
        put_varint64(b, file.size);
    }
}

fn put_part(b: &mut Vec<u8>, part: &Part) {
    b.push(
        flag_if(part.begin.is_some(), part_flag::BEGIN)
            | flag_if(part.end.is_some(), part_flag::END)
            | flag_if(part.blocks.is_some(), part_flag::BLOCKS),
    );
    part.begin.iter().chain(&part.end).for_each(|key| put_length_prefixed(b, key));
    let Some(files) = &part.blocks else { return };
    put_varint64(b, files.len() as u64);
    for (&number, blocks) in files {
        put_varint64(b, number);
        put_varint64(b, blocks.len() as u64);
        let mut end = 0;
        for &block in blocks {
            put_varint64(b, block.offset.wrapping_sub(end));
            put_varint64(b, block.size);
            end = behind(block).unwrap_or(0);
        }
    }
}
