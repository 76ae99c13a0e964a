//! The fields of a spec (`wire.rs` says how they become bytes); docs/job-spec.md has them byte by byte.

use std::sync::Arc;

use rockmill_format::InternalKey;
use rockmill_format::checksum::ChecksumType;
use rockmill_format::comparator::HASH_RANGE_NAME;
use rockmill_format::compression::CompressionType;
use rockmill_format::edit::{MAX_FILE_NUMBER, MAX_PATH_ID};
use rockmill_format::footer::{BLOCK_TRAILER_LEN, BlockHandle};
use rockmill_format::key::TAG_LEN;

use super::{Extent, FilterSpec, JobSpec, NumberRange, OutputPlan, Part, SpecFile, SpecRun};
use crate::compaction::file_ranges::{FileRange, FileRanges};
use crate::compaction::subtrees::SUBTREE_BITS_MAX;
use crate::compaction::table_format::{TableFormat, TableOwner};
use crate::compaction::wire::{self, Coded, Coder, Item, Message};
use crate::compaction_filter::TableFileCreationReason;
use crate::error::Result;
use crate::options::{CfOptions, CompressionOptions};
use crate::rate_limiter::IoPriority;
use crate::table::TphSettings;

/// The most file numbers that are set aside for one job.
pub(super) const NUMBERS_MAX: u64 = 1 << 20;
/// The most bytes of all inputs together, and of each list of ranges, so that sums of sizes do not overflow.
const FILE_BYTES_MAX: u64 = 1 << 60;

/// Tags of fields, in their order in the message.
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
    pub const TPH_TABLE: u32 = 22;
    pub const SUBTREES: u32 = 23;
    pub const REPLACED: u32 = 24;
    pub const PATH: u32 = 25;
    pub const FILTER_OPTIONS: u32 = 26;
    pub const FURTHER_FILES: u32 = 27;
}

impl JobSpec {
    /// The spec as bytes.
    ///
    /// # Errors
    /// If the spec exceeds the bounds of the encoding or is not sound: such a job has to be run here.
    pub fn encode(&self) -> Result<Vec<u8>> {
        wire::encode(self)
    }

    /// The spec that these bytes are.
    ///
    /// # Errors
    /// `Corruption` that says what is wrong and at which offset; `NotSupported` for what a newer version wrote.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        wire::decode(bytes)
    }
}

impl Message for JobSpec {
    const NAME: &'static str = "job spec";
    const MAGIC: &'static [u8; 8] = b"RMILLJOB";
    const VERSION: u32 = 1;
    const TAG_MAX: u32 = tag::FURTHER_FILES;
    const REQUIRED: &'static [u32] = &[
        tag::JOB,
        tag::REASON,
        tag::FLAGS,
        tag::OWNER,
        tag::COMPARATOR,
        tag::OUTPUT,
        tag::COMPRESSION_OPTIONS,
        tag::TABLE_FORMAT,
    ];
    const LISTS: &'static [u32] = &[tag::INPUT_RUN, tag::OLDER_RUN, tag::PART];

    fn blank() -> Self {
        // Every spec has these fields of the output.
        Self::of_nothing(OutputPlan::of_new_entries(TableOwner::default(), &CfOptions::default(), 0, false))
    }

    fn field<C: Coder>(&mut self, tag: u32, c: &mut C) -> Coded {
        let o = &mut self.output;
        match tag {
            tag::JOB => c.field(true, |c| c.number("job number", &mut self.job)),
            tag::REASON => c.field(true, |c| c.one_of("reason", &mut self.reason, &REASONS)),
            tag::FLAGS => c.field(true, |c| {
                let mut older_known = self.older.is_some();
                c.flags([&mut self.bottommost, &mut o.reproducible, &mut older_known])?;
                if older_known {
                    self.older.get_or_insert_default();
                }
                Ok(())
            }),
            tag::OWNER => c.field(true, |c| owner(c, &mut o.owner)),
            tag::COMPARATOR => c.field(true, |c| c.text("comparator's name", &mut self.comparator)),
            tag::MERGE_OPERATOR => {
                c.field(!self.merge_operator.is_empty(), |c| c.text("merge operator's name", &mut self.merge_operator))
            }
            tag::FILTER => c.field(self.filter.is_some(), |c| filter(c, self.filter.get_or_insert_default())),
            tag::SNAPSHOTS => c.field(!self.snapshots.is_empty(), |c| {
                let mut before = 0;
                c.list("snapshots", Item::NUMBER, &mut self.snapshots, |c, snapshot| {
                    c.beyond("snapshot", before, snapshot)?;
                    before = *snapshot;
                    Ok(())
                })
            }),
            tag::OUTPUT => c.field(true, |c| output(c, o)),
            tag::COMPRESSION_OPTIONS => c.field(true, |c| compression_options(c, &mut o.compression_opts)),
            tag::TABLE_FORMAT => c.field(true, |c| table_format(c, &mut o.format)),
            tag::SPLIT_KEY => c.field(o.split_key.is_some(), |c| {
                let mut key = o.split_key.as_ref().map_or_else(Vec::new, |key| key.as_bytes().to_vec());
                c.rest(&mut key);
                c.check(key.len() >= TAG_LEN, || "a split key that is shorter than eight bytes".to_owned())?;
                o.split_key = Some(InternalKey::from_encoded(key));
                Ok(())
            }),
            tag::MODE_MAX => {
                c.field(o.mode_max.is_some(), |c| c.number32("permissions", o.mode_max.get_or_insert_default()))
            }
            tag::PARTS_MAX => c.field(true, |c| c.size("number of parts", &mut self.parts_max)),
            tag::MEMTABLES => c.field(!self.memtables.is_empty(), |c| {
                c.list("memtables", Item::NUMBER, &mut self.memtables, |c, id| c.number("memtable", id))
            }),
            tag::NUMBERS => c.field(!self.numbers.is_empty(), |c| numbers(c, &mut self.numbers)),
            tag::SPACE => c.field(!self.space.is_empty(), |c| extents(c, &mut self.space)),
            tag::INPUT_RUN => c.each(&mut self.runs, run),
            tag::OLDER_RUN => match &mut self.older {
                Some(older) => c.each(older, ranges),
                None => c.check(!C::READS, || "older tables, where the flags say that none are known".to_owned()),
            },
            tag::GRANDPARENTS => c.field(!o.grandparents.is_empty(), |c| ranges(c, &mut o.grandparents)),
            tag::PART => c.each(&mut self.parts, part),
            tag::TPH_TABLE => c.field(o.format.tph.is_some(), |c| {
                tph_table(c, o.format.tph.get_or_insert_default())?;
                c.list("files to keep", Item::TWO_NUMBERS, &mut self.keep, |c, kept| {
                    c.number("table of a file to keep", &mut kept.table)?;
                    c.number("file to keep", &mut kept.file)
                })
            }),
            tag::SUBTREES => c.field(o.subtree_bits > 0, |c| c.number32("bits of subtrees", &mut o.subtree_bits)),
            tag::REPLACED => c.field(!o.replaced.before.is_empty(), |c| {
                let mut last = 0;
                c.list(
                    "tables replaced before",
                    Item::NUMBER,
                    &mut Arc::make_mut(&mut o.replaced).before,
                    |c, number| {
                        c.beyond("table replaced before", last, number)?;
                        last = *number;
                        Ok(())
                    },
                )
            }),
            tag::PATH => c.field(o.path_id > 0, |c| {
                c.number32("path id", &mut o.path_id)?;
                let most = u32::from(MAX_PATH_ID);
                c.check((1..=most).contains(&o.path_id), || format!("path id {}, of {most} at most", o.path_id))
            }),
            tag::FILTER_OPTIONS => match &mut self.filter {
                Some(filter) => {
                    c.field(!filter.options.is_empty(), |c| c.text("filter's options", &mut filter.options))
                }
                None => c.check(!C::READS, || "options of a filter, and no filter".to_owned()),
            },
            tag::FURTHER_FILES => c.field(!self.further.is_empty(), |c| {
                let mut before = 0;
                c.list("further files", Item::PART_FILE, &mut self.further, |c, file| {
                    c.beyond("further file", before, &mut file.number)?;
                    c.check(file.number > before, || format!("further file {} twice", file.number))?;
                    before = file.number;
                    extents(c, &mut file.extents)
                })
            }),
            _ => Ok(()),
        }
    }

    fn check(&self) -> std::result::Result<(), String> {
        let (is_compaction, bytes) = (self.reason == TableFileCreationReason::Compaction, self.input_bytes());
        if bytes > FILE_BYTES_MAX {
            return Err(format!("input tables of {bytes} bytes, more than there can be"));
        }
        if self.output.format.tph.is_none() && !self.keep.is_empty() {
            return Err("files to keep, and tables that have no others".to_owned());
        }
        if self.output.format.tph.is_none() && !self.output.replaced.before.is_empty() {
            return Err("tables replaced before, and tables that do not list them".to_owned());
        }
        let bits = self.output.subtree_bits;
        if bits > SUBTREE_BITS_MAX || (bits > 0 && self.comparator != HASH_RANGE_NAME) {
            return Err(format!("subtrees by {bits} bits of search keys, in the order of {}", self.comparator));
        }
        if (is_compaction && !self.memtables.is_empty()) || (!is_compaction && !self.runs.is_empty()) {
            return Err("the other's inputs: a compaction reads tables and a flush memtables".to_owned());
        }
        self.check_bases()?;
        match are_adjacent(&self.parts) {
            true => Ok(()),
            false => {
                Err("parts with a gap: they do not follow on one another from the first key to the last".to_owned())
            }
        }
    }
}

/// By RocksDB's numbers.
const REASONS: [TableFileCreationReason; 3] =
    [TableFileCreationReason::Flush, TableFileCreationReason::Compaction, TableFileCreationReason::Recovery];

/// By their numbers in tables.
const CHECKSUMS: [ChecksumType; 5] =
    [ChecksumType::None, ChecksumType::Crc32c, ChecksumType::XxHash, ChecksumType::XxHash64, ChecksumType::Xxh3];

/// Each part begins where the one before it ends, and together they are everything.
fn are_adjacent(parts: &[Part]) -> bool {
    let (Some(first), Some(last)) = (parts.first(), parts.last()) else { return true };
    let meet = |pair: &[Part]| pair[0].end.is_some() && pair[0].end == pair[1].begin;
    first.begin.is_none() && last.end.is_none() && parts.windows(2).all(meet)
}

fn owner<C: Coder>(c: &mut C, o: &mut TableOwner) -> Coded {
    c.text("database id", &mut o.db_id)?;
    c.text("session id", &mut o.db_session_id)?;
    c.number32("column family id", &mut o.cf_id)?;
    c.text("column family name", &mut o.cf_name)?;
    c.text("merge operator's name", &mut o.merge_operator)
}

fn filter<C: Coder>(c: &mut C, f: &mut FilterSpec) -> Coded {
    let mut has_level = f.input_start_level.is_some();
    let FilterSpec { from_factory, is_full_compaction, is_manual_compaction, .. } = f;
    c.flags([from_factory, is_full_compaction, is_manual_compaction, &mut has_level])?;
    c.text("filter's name", &mut f.name)?;
    c.if_there(has_level, &mut f.input_start_level, |c, level| c.number32("filter's level", level))?;
    c.number("filter's time", &mut f.now_micros)
}

fn output<C: Coder>(c: &mut C, o: &mut OutputPlan) -> Coded {
    c.level(&mut o.level)?;
    c.number("extra run", &mut o.extra_run)?;
    c.number("target size of files", &mut o.file_size_target)?;
    c.number("largest size of files", &mut o.file_size_max)?;
    c.number("expected bytes", &mut o.bytes_expected)?;
    c.number("overlap", &mut o.grandparent_overlap_max)?;
    c.number("epoch number", &mut o.epoch_number)?;
    c.number("oldest ancestor time", &mut o.oldest_ancestor_time)?;
    c.one_of("compression", &mut o.compression, &CompressionType::ALL)?;
    c.one_of("priority", &mut o.io_priority, &IoPriority::ALL)
}

fn compression_options<C: Coder>(c: &mut C, o: &mut CompressionOptions) -> Coded {
    c.flags([&mut o.enabled, &mut o.use_zstd_dict_trainer, &mut o.checksum])?;
    c.signed32("window bits", &mut o.window_bits)?;
    c.signed32("compression level", &mut o.level)?;
    c.signed32("compression strategy", &mut o.strategy)?;
    c.signed32("bytes of a compressed KiB", &mut o.max_compressed_bytes_per_kb)?;
    c.number32("dictionary bytes", &mut o.max_dict_bytes)?;
    c.number32("training bytes", &mut o.zstd_max_train_bytes)?;
    c.number32("compressing threads", &mut o.parallel_threads)?;
    c.number("dictionary buffer", &mut o.max_dict_buffer_bytes)
}

fn table_format<C: Coder>(c: &mut C, format: &mut TableFormat) -> Coded {
    let f = &mut format.block_based;
    let mut has_hash_index = f.hash_index_util_ratio.is_some();
    c.flags([&mut f.whole_key_filtering, &mut f.partition_filters, &mut f.two_level_index, &mut has_hash_index])?;
    c.one_of("checksum type", &mut f.checksum, &CHECKSUMS)?;
    c.number32("format_version", &mut f.format_version)?;
    c.size("block_size", &mut f.block_size)?;
    c.size("block_size_deviation", &mut f.block_size_deviation)?;
    c.size("block_restart_interval", &mut f.block_restart_interval)?;
    c.size("index_block_restart_interval", &mut f.index_block_restart_interval)?;
    c.size("metadata_block_size", &mut f.metadata_block_size)?;
    c.double("Bloom bits per key", &mut f.bloom_bits_per_key)?;
    c.if_there(has_hash_index, &mut f.hash_index_util_ratio, |c, ratio| c.double("ratio of the hash index", ratio))?;
    c.text("prefix extractor's name", &mut format.prefix_extractor)
}

fn tph_table<C: Coder>(c: &mut C, t: &mut TphSettings) -> Coded {
    c.number32("piece_limit", &mut t.piece_limit)?;
    c.number32("garbage_percent", &mut t.garbage_percent)
}

fn numbers<C: Coder>(c: &mut C, ranges: &mut Vec<NumberRange>) -> Coded {
    let mut all = 0u64;
    c.list("file numbers", Item::TWO_NUMBERS, ranges, |c, range| {
        c.number("file number", &mut range.first)?;
        c.number("file numbers", &mut range.count)?;
        all = all.saturating_add(range.count);
        let sound = range.count > 0 && all <= NUMBERS_MAX && range.first <= MAX_FILE_NUMBER - NUMBERS_MAX;
        c.check(sound, || format!("{} file numbers from {}, which are none or too many", range.count, range.first))
    })
}

fn extents<C: Coder>(c: &mut C, extents: &mut Vec<Extent>) -> Coded {
    c.list("extents", Item::TWO_NUMBERS, extents, |c, extent| {
        c.number("extent's offset", &mut extent.offset)?;
        c.number("extent's length", &mut extent.length)?;
        let end = extent.offset.checked_add(extent.length);
        c.check(end.is_some(), || "extent's end is beyond 64 bits".to_owned())
    })
}

fn run<C: Coder>(c: &mut C, run: &mut SpecRun) -> Coded {
    c.level(&mut run.level)?;
    let mut entries = run.files.iter().map(|f| f.entry.clone()).collect();
    c.files("input files", run.level, &mut entries)?;
    if C::READS {
        run.files = entries.into_iter().map(|entry| Arc::new(SpecFile::new(entry))).collect();
    }
    run.files.iter_mut().try_for_each(|file| extents(c, &mut Arc::make_mut(file).extents))
}

fn ranges<C: Coder>(c: &mut C, ranges: &mut FileRanges) -> Coded {
    let count = c.count("key ranges", Item::KEY_RANGE, ranges.len())?;
    let mut coded = FileRanges::with_capacity(count);
    for i in 0..count {
        let known = ranges.get(i).map(|f| (f.smallest.to_vec(), f.largest.to_vec(), f.size));
        let (mut smallest, mut largest, mut size) = known.unwrap_or_default();
        c.bytes("smallest key", &mut smallest)?;
        c.bytes("largest key", &mut largest)?;
        c.number("file size", &mut size)?;
        coded.push(FileRange { smallest: &smallest, largest: &largest, size });
    }
    let bytes = coded.total_bytes();
    *ranges = coded;
    c.check(bytes <= FILE_BYTES_MAX, || format!("tables of {bytes} bytes"))
}

fn part<C: Coder>(c: &mut C, part: &mut Part) -> Coded {
    let [mut has_begin, mut has_end, mut has_blocks] =
        [part.begin.is_some(), part.end.is_some(), part.blocks.is_some()];
    c.flags([&mut has_begin, &mut has_end, &mut has_blocks])?;
    c.if_there(has_begin, &mut part.begin, |c, key| c.bytes("part's begin", key))?;
    c.if_there(has_end, &mut part.end, |c, key| c.bytes("part's end", key))?;
    c.if_there(has_blocks, &mut part.blocks, |c, blocks| {
        let mut files: Vec<_> = std::mem::take(blocks).into_iter().collect();
        let mut before = None;
        c.list("files of a part", Item::PART_FILE, &mut files, |c, (number, blocks)| {
            c.number("file number", number)?;
            let rises = before.replace(*number).is_none_or(|before| before < *number);
            c.check(rises, || format!("file {number} of a part is out of order"))?;
            let mut end = 0;
            c.list("blocks", Item::TWO_NUMBERS, blocks, |c, block| {
                c.beyond("block's offset", end, &mut block.offset)?;
                c.number("block's size", &mut block.size)?;
                end = behind(*block).unwrap_or(0);
                c.check(end > 0, || "blocks that end beyond 64 bits".to_owned())
            })
        })?;
        *blocks = files.into_iter().collect();
        Ok(())
    })
}

/// Offset after a block and its trailer.
fn behind(block: BlockHandle) -> Option<u64> {
    block.offset.checked_add(block.size)?.checked_add(BLOCK_TRAILER_LEN as u64)
}
