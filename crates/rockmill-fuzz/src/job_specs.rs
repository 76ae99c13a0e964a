//! Initial specs and results of jobs for the corpora: one with every field, a minimal one, a flush, TPH tables with
//! shared files, and the options of a filter; an output, and an error. Also specs whose lists are too long.

use std::collections::BTreeMap;
use std::sync::Arc;

use rockmill::internals::{
    Extent, FileRange, FileRanges, FilterSpec, JobOutput, JobResult, JobSpec, JobStats, KeptFile, NumberRange,
    OutputPlan, Part, ReplacedTables, SpecFile, SpecRun, TableFormat, TableOwner,
};
use rockmill::{
    CfOptions, CompressionOptions, Error, ErrorKind, IoPriority, Options, TableFileCreationReason, TphTableOptions,
};
use rockmill_format::coding::{Decoder, put_length_prefixed, put_varint32, put_varint64};
use rockmill_format::comparator::HASH_RANGE_NAME;
use rockmill_format::compression::CompressionType;
use rockmill_format::edit::{FileEntry, TablePiece, VersionEdit};
use rockmill_format::footer::BlockHandle;
use rockmill_format::properties::TableProperties;
use rockmill_format::{InternalKey, ValueType};

use crate::mend;

fn ranges(files: &[(&str, &str, u64)]) -> FileRanges {
    let mut out = FileRanges::default();
    for (smallest, largest, size) in files {
        out.push(FileRange { smallest: smallest.as_bytes(), largest: largest.as_bytes(), size: *size });
    }
    out
}

fn run(level: usize, first: u64, bounds: &[(&str, &str)]) -> SpecRun {
    let file = |(i, (smallest, largest)): (usize, &(&str, &str))| SpecFile {
        entry: FileEntry {
            number: first + i as u64,
            size: 64 << 20,
            smallest: InternalKey::new(smallest.as_bytes(), 90, ValueType::Value),
            largest: InternalKey::new(largest.as_bytes(), 7, ValueType::Deletion),
            smallest_seqno: 7,
            largest_seqno: 90,
            oldest_ancester_time: 1_700_000_000,
            file_creation_time: 1_700_000_100,
            epoch_number: 5,
            file_checksum: b"\x01\x02\x03\x04".to_vec(),
            file_checksum_func_name: "FileChecksumCrc32c".into(),
            unique_id: [1 << 60, 2 << 60],
            tail_size: 4000,
            ..FileEntry::default()
        },
        extents: vec![Extent { offset: 1 << 40, length: 32 << 20 }, Extent { offset: 3 << 40, length: 32 << 20 }],
    };
    SpecRun { level, files: bounds.iter().enumerate().map(file).map(Arc::new).collect() }
}

/// A minimal compaction.
fn small() -> JobSpec {
    JobSpec {
        job: 1,
        reason: TableFileCreationReason::Compaction,
        runs: Vec::new(),
        memtables: Vec::new(),
        comparator: "leveldb.BytewiseComparator".into(),
        merge_operator: String::new(),
        filter: None,
        snapshots: Vec::new(),
        bottommost: true,
        older: None,
        output: OutputPlan {
            path_id: 2,
            piece_paths: BTreeMap::new(),
            owner: TableOwner { cf_name: "default".into(), ..TableOwner::default() },
            format: TableFormat::of(&CfOptions::default()),
            level: 1,
            extra_run: 0,
            file_size_target: 64 << 20,
            file_size_max: 128 << 20,
            bytes_expected: 0,
            grandparents: FileRanges::default(),
            grandparent_overlap_max: 1 << 30,
            subtree_bits: 0,
            split_key: None,
            compression: CompressionType::Zstd,
            compression_opts: CompressionOptions::default(),
            page_cache: false,
            mode_max: None,
            io_priority: IoPriority::Low,
            replaced: Arc::default(),
            epoch_number: 0,
            oldest_ancestor_time: 0,
            reproducible: false,
        },
        parts_max: 1,
        parts: Vec::new(),
        numbers: Vec::new(),
        keep: Vec::new(),
        space: Vec::new(),
        further: Vec::new(),
    }
}

/// A compaction with every field.
fn large() -> JobSpec {
    let mut spec = small();
    spec.runs = vec![run(0, 30, &[("a", "z")]), run(1, 20, &[("a", "f"), ("g", "y")])];
    spec.merge_operator = "{id=StringAppendOperator;delimiter=,;}".into();
    spec.filter = Some(FilterSpec {
        name: "rockmill.Expire".into(),
        options: String::new(),
        from_factory: true,
        is_full_compaction: false,
        is_manual_compaction: true,
        input_start_level: Some(0),
        now_micros: 1_700_000_000_000_000,
    });
    spec.snapshots = vec![10, 20, 1 << 40];
    spec.older = Some(vec![ranges(&[("a", "c", 100), ("d", "k", 1 << 30)]), FileRanges::default()]);
    let o = &mut spec.output;
    o.owner.db_id = "00000000-0000-4000-8000-000000000000".into();
    o.owner.db_session_id = "ABCDEFGHIJKLMNOPQRST".into();
    o.owner.merge_operator = "StringAppendOperator".into();
    o.format.block_based.hash_index_util_ratio = Some(0.75);
    o.format.block_based.bloom_bits_per_key = 9.5;
    o.format.prefix_extractor = "rocksdb.FixedPrefix.4".into();
    o.grandparents = ranges(&[("b", "e", 7 << 20), ("h", "n", 8 << 20), ("p", "q", 9)]);
    o.split_key = Some(InternalKey::new(b"j", 80, ValueType::Value));
    o.mode_max = Some(0o640);
    (o.epoch_number, o.oldest_ancestor_time, o.reproducible) = (5, 1_700_000_000, true);
    let block = |i: u64| BlockHandle { offset: i * 4005, size: 4000 };
    let blocks = || BTreeMap::from([(20, (0..3).map(block).collect()), (30, (2..4).map(block).collect())]);
    let middle = Some(b"g".to_vec());
    spec.parts = vec![
        Part { begin: None, end: middle.clone(), blocks: Some(blocks()) },
        Part { begin: middle, end: None, blocks: Some(blocks()) },
    ];
    spec.parts_max = 4;
    spec.numbers = vec![NumberRange { first: 40, count: 16 }];
    spec.space = vec![Extent { offset: 5 << 40, length: 1 << 30 }];
    spec
}

fn flush() -> JobSpec {
    let mut spec = small();
    (spec.reason, spec.memtables, spec.bottommost) = (TableFileCreationReason::Flush, vec![3, 4, 9], false);
    (spec.output.level, spec.output.io_priority) = (0, IoPriority::High);
    spec
}

/// A compaction that writes TPH tables.
fn tph() -> JobSpec {
    let (mut spec, mut options) = (small(), Options::default());
    let mut table = TphTableOptions::default();
    table.set_piece_limit(8);
    table.set_garbage_percent(50);
    options.set_tph_table_factory(&table);
    spec.output.format = TableFormat::of(&options.cf);
    spec
}

/// A compaction that writes TPH tables and may keep using files of its inputs.
fn sharing() -> JobSpec {
    let mut spec = tph();
    let mut base = run(1, 20, &[("a", "f"), ("g", "y")]);
    for (file, first) in base.files.iter_mut().map(Arc::make_mut).zip([10, 11]) {
        let piece = |number| TablePiece { number, size: 64 << 20, live: 50 << 20, path_id: (number % 2) as u32 };
        file.entry.pieces = (first..14).map(piece).collect();
        file.extents.clear();
    }
    spec.runs = vec![run(0, 30, &[("a", "z")]), base];
    let kept = [(20, 20), (20, 10), (20, 13), (21, 13), (21, 12)];
    spec.keep = kept.map(|(table, file)| KeptFile { table, file }).to_vec();
    spec.output.replaced = Arc::new(ReplacedTables { before: vec![3, 4, 1 << 40], ..ReplacedTables::default() });
    spec.output.split_key = Some(InternalKey::new(b"j", 80, ValueType::Value));
    spec
}

/// A compaction in the order by search key.
fn hash_range() -> JobSpec {
    let mut spec = small();
    (spec.comparator, spec.output.subtree_bits) = (HASH_RANGE_NAME.into(), 6);
    spec
}

/// A compaction in a database whose values have a time to live.
fn time_to_live() -> JobSpec {
    let mut spec = small();
    spec.filter = Some(FilterSpec {
        name: "TtlCompactionFilterFactory".into(),
        options: "seconds=100;filter=\"keep\"".into(),
        from_factory: true,
        input_start_level: Some(0),
        now_micros: 1_700_000_000_000_000,
        ..FilterSpec::default()
    });
    spec
}

/// The specs, encoded.
pub fn all() -> Vec<Vec<u8>> {
    let all = [small(), large(), flush(), tph(), sharing(), hash_range(), time_to_live()];
    all.iter().map(|spec| spec.encode().expect("a sound spec")).collect()
}

/// Passes specs to `take` with a description of their list: first lists of the maximum length, then lists as long as a
/// message of 16 MiB allows. Some specs are invalid in other ways, which is detected only after the whole list was
/// read.
pub fn each_long_list(mut take: impl FnMut(&str, &[u8])) {
    const SIZE: usize = 16 << 20;
    // Bytes of memory that all lists of a message may account for; the field has a share of it (docs/job-spec.md).
    const MEMORY: usize = (16 << 20) - 256;
    /// Its name, tag, the start of the field, an item, and the bytes of memory that an item counts as.
    type List<'a> = (&'a str, u32, &'a [u8], &'a [u8], usize);
    let lists: [List<'_>; 8] = [
        ("snapshots", 8, &[], &[0], 8),
        ("memtables", 15, &[], &[0], 8),
        ("file numbers", 16, &[], &[1, 1], 16),
        ("extents", 17, &[], &[0, 0], 16),
        ("key ranges", 20, &[], &[0, 0, 0], 32),
        ("blocks of a part", 21, &[4, 1, 1], &[0, 0], 16),
        ("files to keep", 22, &[1, 1], &[0, 0], 16),
        ("tables replaced before", 24, &[], &[0], 8),
    ];
    for (what, tag, begin, item, memory) in lists {
        for count in [MEMORY / memory, SIZE / item.len() - 100] {
            let mut body = begin.to_vec();
            put_varint64(&mut body, count as u64);
            body.extend(item.repeat(count));
            take(what, &with_fields(&[(tag, body)]));
        }
    }
    for count in [MEMORY / 128, SIZE / 5] {
        let mut body = vec![4];
        put_varint64(&mut body, count as u64);
        for number in 0..count as u64 {
            put_varint64(&mut body, number);
            body.push(0); // blocks
        }
        take("files of a part", &with_fields(&[(21, body)]));
    }
    // The format as written by LevelDB, the shortest one.
    let table: [u8; 22] = [7, 0, 1, 0, 8, 1, 0, 0, 0, 0, 0, 0, 0, 8, 1, 0, 0, 0, 0, 0, 0, 0];
    let pieces = (2..1002).map(|number| TablePiece { number, size: 1, live: 1, path_id: 0 });
    let key = |user_key: &[u8]| InternalKey::new(user_key, 1, ValueType::Value);
    let (smallest, largest, pieces) = (key(b"a"), key(b"b"), pieces.collect());
    let of_many = FileEntry { number: 1, smallest, largest, pieces, ..FileEntry::default() };
    let of_many = VersionEdit { new_files: vec![(0, of_many)], ..VersionEdit::default() }.encode();
    let tables: [(&str, &[u8], usize); 2] =
        [("input files", &table, 512), ("further files", &of_many, 512 + 1000 * 64)];
    for (what, table, memory) in tables {
        for count in [MEMORY / memory, SIZE / table.len() - 100] {
            let mut body = vec![0]; // level
            put_length_prefixed(&mut body, &table.repeat(count));
            body.resize(body.len() + count, 0); // no extents
            take(what, &with_fields(&[(18, body)]));
        }
    }
    take("parts", &with_fields(&vec![(21, vec![0]); 1 << 16]));
}

/// The small spec with these additional fields, valid or not.
fn with_fields(more: &[(u32, Vec<u8>)]) -> Vec<u8> {
    const HEAD: usize = 8 + 1;
    let spec = small().encode().expect("a sound spec");
    let mut fields = more.to_vec();
    let mut d = Decoder::new(&spec[HEAD..spec.len() - 4]);
    while !d.is_empty() {
        let tag = d.varint32("tag").expect("a sound spec");
        fields.push((tag, d.length_prefixed("field").expect("a sound spec").to_vec()));
    }
    fields.sort_by_key(|(tag, _)| *tag);
    let mut out = spec[..HEAD].to_vec();
    for (tag, body) in &fields {
        put_varint32(&mut out, *tag);
        put_length_prefixed(&mut out, body);
    }
    out.extend_from_slice(&[0; 4]);
    mend::job_message(&mut out);
    out
}

/// Results, encoded.
pub fn results() -> Vec<Vec<u8>> {
    let files: Vec<FileEntry> = run(1, 40, &[("a", "f"), ("g", "y")]).files.iter().map(|f| f.entry.clone()).collect();
    let properties = |f: &FileEntry| TableProperties {
        num_entries: 1000,
        num_deletions: 3,
        raw_key_size: 16_000,
        raw_value_size: 1 << 20,
        orig_file_number: f.number,
        column_family_name: "default".into(),
        comparator_name: "leveldb.BytewiseComparator".into(),
        other: BTreeMap::from([("user.property".into(), b"\x00\xff".to_vec())]),
        ..TableProperties::default()
    };
    let stats = JobStats { input_bytes: 3 << 20, input_records: 3000, subcompactions: 2, ..JobStats::default() };
    let output = JobOutput { properties: files.iter().map(properties).collect(), files, stats };
    let error = Error::new(ErrorKind::Corruption, "000030.sst: block at offset 4005 is damaged");
    let all = [Ok(output), Ok(JobOutput::default()), Err(error)];
    all.map(|outcome| JobResult { job: 7, outcome }.encode().expect("a sound result")).to_vec()
}
