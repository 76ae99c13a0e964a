//! Reading the encoding of a spec (`encode.rs`), whoever wrote it.

use std::collections::BTreeMap;

use rockmill_format::checksum::{ChecksumType, crc32c, unmask};
use rockmill_format::coding::{Decoder, fixed32_at};
use rockmill_format::compression::CompressionType;
use rockmill_format::edit::{MAX_FILE_NUMBER, MAX_LEVELS, VersionEdit};
use rockmill_format::footer::BlockHandle;
use rockmill_format::key::TAG_LEN;
use rockmill_format::{FormatError, InternalKey};

use super::encode::{
    CHECKSUM_LEN, FILE_BYTES_MAX, LISTED_MAX, MAGIC, NUMBERS_MAX, SPEC_BYTES_MAX, TEXT_BYTES_MAX, VERSION,
    are_adjacent, behind, compression_flag, filter_flag, flag, part_flag, table_flag, tag,
};
use super::{Extent, FilterSpec, JobSpec, NumberRange, SpecFile, SpecRun};
use crate::compaction::file_ranges::{FileRange, FileRanges};
use crate::compaction::plan::{OutputPlan, Part};
use crate::compaction::table_format::{TableFormat, TableOwner};
use crate::compaction_filter::TableFileCreationReason;
use crate::error::{Error, Result};
use crate::options::{CfOptions, CompressionOptions};
use crate::rate_limiter::IoPriority;
use crate::table::BlockBasedSettings;

type Decoded<T> = rockmill_format::Result<T>;

impl JobSpec {
    /// The spec that these bytes are.
    ///
    /// # Errors
    /// `Corruption` that says what is wrong and at which offset; `NotSupported` for what a newer version wrote.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        decode(bytes).map_err(|e| match &e {
            FormatError::Corruption { .. } => Error::corruption(format!("job spec: {e}")),
            FormatError::Unsupported { .. } => Error::not_supported(format!("job spec: {e}")),
        })
    }
}

fn decode(bytes: &[u8]) -> Decoded<JobSpec> {
    if bytes.len() > SPEC_BYTES_MAX {
        let what = format!("{} bytes, more than the {SPEC_BYTES_MAX} that one may have", bytes.len());
        return Err(FormatError::corruption(what, SPEC_BYTES_MAX as u64));
    }
    let mut head = Decoder::new(bytes);
    if head.bytes(MAGIC.len(), "magic number")? != MAGIC {
        return Err(FormatError::corruption("the magic number is another: this is no job spec", 0));
    }
    let version = head.varint32("version")?;
    if version != VERSION {
        return Err(FormatError::unsupported(format!(
            "version {version} of the encoding (version {VERSION} is known)"
        )));
    }
    let begin = head.offset() as usize;
    let Some(end) = bytes.len().checked_sub(CHECKSUM_LEN).filter(|&end| end >= begin) else {
        return Err(head.error("the checksum is cut short"));
    };
    let (fields, stored) = (&bytes[..end], fixed32_at(bytes, end).unwrap_or(0));
    let computed = crc32c(fields);
    if unmask(stored) != computed {
        let stored = unmask(stored);
        let what = format!("the checksum is {stored:#010x}, that of the bytes before it {computed:#010x}");
        return Err(FormatError::corruption(what, end as u64));
    }
    let mut d = Decoder::new(fields);
    d.bytes(begin, "version")?;
    let (mut spec, mut seen, mut last, mut listed) = (blank(), 0u32, 0, 0);
    while !d.is_empty() {
        let at = d.offset();
        let tag = d.varint32("tag")?;
        let in_list = matches!(tag, tag::INPUT_RUN | tag::OLDER_RUN | tag::PART);
        if tag < last || (tag == last && !in_list) {
            return Err(FormatError::corruption(format!("field {tag} stands behind field {last}"), at));
        }
        last = tag;
        listed += usize::from(in_list);
        if listed > LISTED_MAX {
            return Err(FormatError::corruption(format!("more than {LISTED_MAX} runs and parts"), at));
        }
        let body = d.length_prefixed("field")?;
        let start = d.offset() - body.len() as u64;
        let mut body = Decoder::new(body);
        match decode_field(&mut spec, tag, &mut body).map_err(|e| e.at(start))? {
            true => seen |= 1 << tag,
            false if tag & tag::SAFE_TO_IGNORE != 0 => continue,
            false => {
                let what = format!("field {tag}, which may not be skipped (a newer version may have written it),");
                return Err(FormatError::unsupported(what));
            }
        }
        if !body.is_empty() {
            return Err(body.error(format!("field {tag} has bytes left over")).at(start));
        }
    }
    if let Some(missing) = tag::REQUIRED.into_iter().find(|tag| seen & (1 << tag) == 0) {
        return Err(d.error(format!("field {missing} is missing")));
    }
    if spec.input_bytes() > FILE_BYTES_MAX {
        return Err(d.error(format!("the input files have {} bytes, more than there can be", spec.input_bytes())));
    }
    let is_compaction = spec.reason == TableFileCreationReason::Compaction;
    if (is_compaction && !spec.memtables.is_empty()) || (!is_compaction && !spec.runs.is_empty()) {
        return Err(d.error("a compaction reads tables and a flush memtables: this has the other's inputs"));
    }
    if !are_adjacent(&spec.parts) {
        return Err(d.error("the parts do not follow on one another from the first key to the last"));
    }
    Ok(spec)
}

/// A spec in which nothing stands yet.
fn blank() -> JobSpec {
    let output = OutputPlan {
        owner: TableOwner::default(),
        format: TableFormat::of(&CfOptions::default()),
        level: 0,
        extra_run: 0,
        file_size_target: 0,
        file_size_max: 0,
        bytes_expected: 0,
        grandparents: FileRanges::default(),
        grandparent_overlap_max: 0,
        split_key: None,
        compression: CompressionType::None,
        compression_opts: CompressionOptions::default(),
        page_cache: false,
        mode_max: None,
        io_priority: IoPriority::Low,
        epoch_number: 0,
        oldest_ancestor_time: 0,
        reproducible: false,
    };
    JobSpec {
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
        space: Vec::new(),
    }
}

/// Reads one field; false for one that is not known.
fn decode_field(spec: &mut JobSpec, tag: u32, d: &mut Decoder<'_>) -> Decoded<bool> {
    match tag {
        tag::JOB => spec.job = d.varint64("job number")?,
        tag::REASON => {
            spec.reason = match d.u8("reason")? {
                0 => TableFileCreationReason::Flush,
                1 => TableFileCreationReason::Compaction,
                2 => TableFileCreationReason::Recovery,
                n => return Err(FormatError::corruption(format!("reason {n} is not known"), 0)),
            }
        }
        tag::FLAGS => {
            let flags = flags(d, flag::BOTTOMMOST | flag::REPRODUCIBLE | flag::OLDER_KNOWN)?;
            spec.bottommost = flags & flag::BOTTOMMOST != 0;
            spec.output.reproducible = flags & flag::REPRODUCIBLE != 0;
            spec.older = (flags & flag::OLDER_KNOWN != 0).then(Vec::new);
        }
        tag::OWNER => spec.output.owner = owner(d)?,
        tag::COMPARATOR => spec.comparator = text(d, "comparator")?,
        tag::MERGE_OPERATOR => spec.merge_operator = text(d, "merge operator")?,
        tag::FILTER => spec.filter = Some(filter(d)?),
        tag::SNAPSHOTS => {
            let mut before = 0u64;
            for _ in 0..count(d, 1, "snapshots")? {
                before = sum(d, before, "snapshot")?;
                spec.snapshots.push(before);
            }
        }
        tag::OUTPUT => output(&mut spec.output, d)?,
        tag::COMPRESSION_OPTIONS => spec.output.compression_opts = compression_options(d)?,
        tag::TABLE_FORMAT => spec.output.format = table_format(d)?,
        tag::SPLIT_KEY => {
            let key = d.bytes(d.remaining().len(), "split key")?;
            if key.len() < TAG_LEN {
                return Err(FormatError::corruption("the split key is shorter than eight bytes", 0));
            }
            spec.output.split_key = Some(InternalKey::from_encoded(key));
        }
        tag::MODE_MAX => spec.output.mode_max = Some(d.varint32("permissions")?),
        tag::PARTS_MAX => spec.parts_max = size(d, "number of parts")?,
        tag::MEMTABLES => {
            for _ in 0..count(d, 1, "memtables")? {
                spec.memtables.push(d.varint64("memtable")?);
            }
        }
        tag::NUMBERS => spec.numbers = numbers(d)?,
        tag::SPACE => spec.space = extents(d)?,
        tag::INPUT_RUN => spec.runs.push(run(d)?),
        tag::OLDER_RUN => match &mut spec.older {
            Some(older) => older.push(ranges(d)?),
            None => return Err(FormatError::corruption("older tables, where the flags say that none are known", 0)),
        },
        tag::GRANDPARENTS => spec.output.grandparents = ranges(d)?,
        tag::PART => spec.parts.push(part(d)?),
        _ => return Ok(false),
    }
    Ok(true)
}

/// How many things of at least `least` bytes each follow: never more than there is room for.
fn count(d: &mut Decoder<'_>, least: usize, what: &'static str) -> Decoded<usize> {
    let at = d.offset();
    let n = d.varint64(what)?;
    let room = d.remaining().len() / least;
    match usize::try_from(n) {
        Ok(n) if n <= room => Ok(n),
        _ => Err(FormatError::corruption(format!("{what}: {n} where there is room for {room}"), at)),
    }
}

/// `before` and the number that follows, added.
fn sum(d: &mut Decoder<'_>, before: u64, what: &'static str) -> Decoded<u64> {
    let at = d.offset();
    let step = d.varint64(what)?;
    before.checked_add(step).ok_or_else(|| FormatError::corruption(format!("{what} is beyond 64 bits"), at))
}

fn size(d: &mut Decoder<'_>, what: &'static str) -> Decoded<usize> {
    let at = d.offset();
    let n = d.varint64(what)?;
    usize::try_from(n).map_err(|_| FormatError::corruption(format!("{what}: {n} is too large here"), at))
}

fn flags(d: &mut Decoder<'_>, known: u8) -> Decoded<u8> {
    let at = d.offset();
    match d.u8("flags")? {
        flags if flags & !known == 0 => Ok(flags),
        flags => Err(FormatError::corruption(format!("flags {flags:#04x}, of which {known:#04x} are known"), at)),
    }
}

fn text(d: &mut Decoder<'_>, what: &'static str) -> Decoded<String> {
    let at = d.offset();
    let bytes = d.length_prefixed(what)?;
    if bytes.len() > TEXT_BYTES_MAX {
        let what = format!("{what} of {} bytes, of {TEXT_BYTES_MAX} at most", bytes.len());
        return Err(FormatError::corruption(what, at));
    }
    let text = std::str::from_utf8(bytes).map_err(|_| FormatError::corruption(format!("{what} is not UTF-8"), at))?;
    Ok(text.to_owned())
}

fn float(d: &mut Decoder<'_>, what: &'static str) -> Decoded<f64> {
    let at = d.offset();
    let n = f64::from_bits(d.fixed64(what)?);
    if n.is_finite() { Ok(n) } else { Err(FormatError::corruption(format!("{what} is no number"), at)) }
}

fn level(d: &mut Decoder<'_>) -> Decoded<usize> {
    let at = d.offset();
    match d.varint32("level")? {
        level if level < MAX_LEVELS => Ok(level as usize),
        level => Err(FormatError::corruption(format!("level {level} is not below {MAX_LEVELS}"), at)),
    }
}

fn owner(d: &mut Decoder<'_>) -> Decoded<TableOwner> {
    Ok(TableOwner {
        db_id: text(d, "database id")?,
        db_session_id: text(d, "session id")?,
        cf_id: d.varint32("column family id")?,
        cf_name: text(d, "column family name")?,
        merge_operator: text(d, "merge operator's name")?,
    })
}

fn filter(d: &mut Decoder<'_>) -> Decoded<FilterSpec> {
    use filter_flag::{FACTORY, FULL, MANUAL, START_LEVEL};
    let flags = flags(d, FACTORY | FULL | MANUAL | START_LEVEL)?;
    Ok(FilterSpec {
        name: text(d, "filter")?,
        from_factory: flags & FACTORY != 0,
        is_full_compaction: flags & FULL != 0,
        is_manual_compaction: flags & MANUAL != 0,
        input_start_level: if flags & START_LEVEL != 0 { Some(d.varint32("filter's level")?) } else { None },
        now_micros: d.varint64("filter's time")?,
    })
}

fn output(o: &mut OutputPlan, d: &mut Decoder<'_>) -> Decoded<()> {
    o.level = level(d)?;
    o.extra_run = d.varint64("extra run")?;
    o.file_size_target = d.varint64("target size of files")?;
    o.file_size_max = d.varint64("largest size of files")?;
    o.bytes_expected = d.varint64("expected bytes")?;
    o.grandparent_overlap_max = d.varint64("overlap")?;
    o.epoch_number = d.varint64("epoch number")?;
    o.oldest_ancestor_time = d.varint64("oldest ancestor time")?;
    let at = d.offset();
    let number = d.u8("compression")?;
    let unknown = || FormatError::corruption(format!("compression {number} is not known"), at);
    o.compression = CompressionType::from_u8(number).ok_or_else(unknown)?;
    let at = d.offset();
    o.io_priority = match d.u8("priority")? {
        0 => IoPriority::Low,
        1 => IoPriority::Mid,
        2 => IoPriority::High,
        3 => IoPriority::User,
        n => return Err(FormatError::corruption(format!("priority {n} is not known"), at)),
    };
    Ok(())
}

fn compression_options(d: &mut Decoder<'_>) -> Decoded<CompressionOptions> {
    use compression_flag::{CHECKSUM, ENABLED, TRAINER};
    let flags = flags(d, ENABLED | TRAINER | CHECKSUM)?;
    let mut signed = [0i32; 4];
    for n in &mut signed {
        let at = d.offset();
        let wide = d.varsigned64("compression option")?;
        *n = i32::try_from(wide)
            .map_err(|_| FormatError::corruption(format!("compression option {wide} is beyond 32 bits"), at))?;
    }
    let [window_bits, level, strategy, max_compressed_bytes_per_kb] = signed;
    Ok(CompressionOptions {
        window_bits,
        level,
        strategy,
        max_compressed_bytes_per_kb,
        max_dict_bytes: d.varint32("dictionary bytes")?,
        zstd_max_train_bytes: d.varint32("training bytes")?,
        parallel_threads: d.varint32("compressing threads")?,
        max_dict_buffer_bytes: d.varint64("dictionary buffer")?,
        enabled: flags & ENABLED != 0,
        use_zstd_dict_trainer: flags & TRAINER != 0,
        checksum: flags & CHECKSUM != 0,
    })
}

fn table_format(d: &mut Decoder<'_>) -> Decoded<TableFormat> {
    use table_flag::{HASH_INDEX, PARTITIONED_FILTERS, TWO_LEVEL_INDEX, WHOLE_KEYS};
    let flags = flags(d, WHOLE_KEYS | PARTITIONED_FILTERS | TWO_LEVEL_INDEX | HASH_INDEX)?;
    let at = d.offset();
    let number = d.u8("checksum type")?;
    let unknown = || FormatError::corruption(format!("checksum type {number} is not known"), at);
    let block_based = BlockBasedSettings {
        whole_key_filtering: flags & WHOLE_KEYS != 0,
        partition_filters: flags & PARTITIONED_FILTERS != 0,
        two_level_index: flags & TWO_LEVEL_INDEX != 0,
        checksum: ChecksumType::from_u8(number).ok_or_else(unknown)?,
        format_version: d.varint32("format_version")?,
        block_size: size(d, "block_size")?,
        block_size_deviation: size(d, "block_size_deviation")?,
        block_restart_interval: size(d, "block_restart_interval")?,
        index_block_restart_interval: size(d, "index_block_restart_interval")?,
        metadata_block_size: size(d, "metadata_block_size")?,
        bloom_bits_per_key: float(d, "Bloom bits per key")?,
        hash_index_util_ratio: if flags & HASH_INDEX != 0 { Some(float(d, "hash index ratio")?) } else { None },
    };
    Ok(TableFormat { block_based, prefix_extractor: text(d, "prefix extractor")? })
}

fn numbers(d: &mut Decoder<'_>) -> Decoded<Vec<NumberRange>> {
    let (mut out, mut all) = (Vec::new(), 0u64);
    for _ in 0..count(d, 2, "file numbers")? {
        let at = d.offset();
        let range = NumberRange { first: d.varint64("file number")?, count: d.varint64("file numbers")? };
        all = all.saturating_add(range.count);
        if all > NUMBERS_MAX || range.first > MAX_FILE_NUMBER - NUMBERS_MAX {
            let (first, count) = (range.first, range.count);
            return Err(FormatError::corruption(format!("{count} file numbers from {first} are too many"), at));
        }
        out.push(range);
    }
    Ok(out)
}

fn extents(d: &mut Decoder<'_>) -> Decoded<Vec<Extent>> {
    let n = count(d, 2, "extents")?;
    let mut out = Vec::with_capacity(n);
    for _ in 0..n {
        let offset = d.varint64("extent's offset")?;
        let end = sum(d, offset, "extent's end")?;
        out.push(Extent { offset, length: end - offset });
    }
    Ok(out)
}

fn run(d: &mut Decoder<'_>) -> Decoded<SpecRun> {
    let level = level(d)?;
    let bytes = d.length_prefixed("input files")?;
    let start = d.offset() - bytes.len() as u64;
    let mut edit = VersionEdit::decode(bytes).map_err(|e| e.at(start))?;
    let entries = std::mem::take(&mut edit.new_files);
    if edit != VersionEdit::default() || entries.iter().any(|(l, _)| *l as usize != level) {
        return Err(FormatError::corruption("an input run has something other than files of its level", start));
    }
    let mut files = Vec::with_capacity(entries.len());
    for (_, entry) in entries {
        files.push(SpecFile { entry, extents: extents(d)? });
    }
    Ok(SpecRun { level, files })
}

fn ranges(d: &mut Decoder<'_>) -> Decoded<FileRanges> {
    let at = d.offset();
    let mut out = FileRanges::default();
    for _ in 0..count(d, 3, "key ranges")? {
        let smallest = d.length_prefixed("smallest key")?;
        let largest = d.length_prefixed("largest key")?;
        out.push(FileRange { smallest, largest, size: d.varint64("file size")? });
    }
    if out.total_bytes() > FILE_BYTES_MAX {
        return Err(FormatError::corruption(format!("tables of {} bytes", out.total_bytes()), at));
    }
    Ok(out)
}

fn part(d: &mut Decoder<'_>) -> Decoded<Part> {
    let flags = flags(d, part_flag::BEGIN | part_flag::END | part_flag::BLOCKS)?;
    let mut bound = |flag: u8, what: &'static str| match flags & flag != 0 {
        true => d.length_prefixed(what).map(|key| Some(key.to_vec())),
        false => Ok(None),
    };
    let (begin, end) = (bound(part_flag::BEGIN, "part's begin")?, bound(part_flag::END, "part's end")?);
    let blocks = if flags & part_flag::BLOCKS != 0 { Some(blocks(d)?) } else { None };
    Ok(Part { begin, end, blocks })
}

fn blocks(d: &mut Decoder<'_>) -> Decoded<BTreeMap<u64, Vec<BlockHandle>>> {
    let mut out = BTreeMap::new();
    for _ in 0..count(d, 2, "files of a part")? {
        let at = d.offset();
        let number = d.varint64("file number")?;
        if out.last_key_value().is_some_and(|(&last, _)| last >= number) {
            return Err(FormatError::corruption(format!("file {number} of a part is out of order"), at));
        }
        let n = count(d, 2, "blocks")?;
        let (mut blocks, mut end) = (Vec::with_capacity(n), 0);
        for _ in 0..n {
            let at = d.offset();
            let offset = sum(d, end, "block's offset")?;
            let block = BlockHandle { offset, size: d.varint64("block's size")? };
            end = behind(block).ok_or_else(|| FormatError::corruption("a block ends beyond 64 bits", at))?;
            blocks.push(block);
        }
        out.insert(number, blocks);
    }
    Ok(out)
}
