use std::collections::BTreeMap;

use rockmill_format::InternalKey;
use rockmill_format::ValueType;
use rockmill_format::checksum::{ChecksumType, crc32c, mask};
use rockmill_format::coding::{Decoder, put_fixed32, put_length_prefixed, put_varint32, put_varint64};
use rockmill_format::comparator::HASH_RANGE_NAME;
use rockmill_format::compression::CompressionType;
use rockmill_format::edit::TablePiece;
use rockmill_format::footer::BlockHandle;

use super::encoding::{NUMBERS_MAX, tag};
use super::*;
use crate::compaction::file_ranges::FileRange;
use crate::compaction::wire::{
    CHECKSUM_LEN, Item, LISTED_MAX, LISTS_MEMORY_MAX, Message, SAFE_TO_IGNORE, TEXT_BYTES_MAX,
};
use crate::error::ErrorKind;
use crate::table::{BlockBasedSettings, TphSettings};

type Rng = fastrand::Rng;

pub(crate) fn bytes(rng: &mut Rng, len_max: usize) -> Vec<u8> {
    let len = rng.usize(0..=len_max);
    std::iter::repeat_with(|| rng.u8(..)).take(len).collect()
}

pub(crate) fn text(rng: &mut Rng) -> String {
    let len = rng.usize(0..20);
    std::iter::repeat_with(|| rng.char(..)).take(len).collect()
}

/// All magnitudes are equally likely.
pub(crate) fn number(rng: &mut Rng) -> u64 {
    let bits = rng.u32(0..=64);
    rng.u64(..).checked_shr(64 - bits).unwrap_or(0)
}

pub(crate) fn list<T>(rng: &mut Rng, len_max: usize, mut item: impl FnMut(&mut Rng) -> T) -> Vec<T> {
    let len = rng.usize(0..=len_max);
    (0..len).map(|_| item(rng)).collect()
}

fn some<T>(rng: &mut Rng, item: impl FnOnce(&mut Rng) -> T) -> Option<T> {
    if rng.bool() { Some(item(rng)) } else { None }
}

fn key(rng: &mut Rng) -> InternalKey {
    let user = bytes(rng, 30);
    InternalKey::new(&user, rng.u64(0..1 << 56), ValueType::Value)
}

pub(crate) fn entry(rng: &mut Rng) -> FileEntry {
    let checksum = rng.bool();
    FileEntry {
        number: rng.u64(0..1 << 62),
        path_id: rng.u32(0..4),
        size: number(rng) >> 10,
        smallest: key(rng),
        largest: key(rng),
        smallest_seqno: number(rng),
        largest_seqno: number(rng),
        marked_for_compaction: rng.bool(),
        oldest_blob_file_number: 0,
        oldest_ancester_time: number(rng),
        file_creation_time: number(rng),
        epoch_number: number(rng),
        file_checksum: if checksum { bytes(rng, 8) } else { Vec::new() },
        file_checksum_func_name: if checksum { "crc32".to_owned() } else { String::new() },
        unique_id: [number(rng), number(rng)],
        tail_size: number(rng),
        compensated_range_deletion_size: number(rng),
        temperature: rng.u8(0..0x10),
        user_defined_timestamps_persisted: rng.bool(),
        min_timestamp: bytes(rng, 4),
        max_timestamp: bytes(rng, 4),
        file_open_metadata: bytes(rng, 4),
        extra_run: number(rng),
        pieces: (1..rng.u64(1..5)).map(|n| piece(rng, (1 << 62) - n)).collect(),
    }
}

fn piece(rng: &mut Rng, number_of_file: u64) -> TablePiece {
    let size = number(rng) >> 10;
    TablePiece { number: number_of_file, size, live: size >> rng.u8(0..3), path_id: rng.u32(0..4) }
}

fn extent(rng: &mut Rng) -> Extent {
    let offset = number(rng);
    Extent { offset, length: number(rng).min(u64::MAX - offset) }
}

fn ranges(rng: &mut Rng) -> FileRanges {
    let mut out = FileRanges::default();
    for _ in 0..rng.usize(0..5) {
        let (smallest, largest) = (bytes(rng, 9), bytes(rng, 9));
        out.push(FileRange { smallest: &smallest, largest: &largest, size: number(rng) >> 10 });
    }
    out
}

fn blocks(rng: &mut Rng) -> BTreeMap<u64, Vec<BlockHandle>> {
    let files = list(rng, 3, |rng| {
        let mut end = 0;
        let blocks = list(rng, 5, |rng| {
            let block = BlockHandle { offset: end + rng.u64(0..3) * 1000, size: rng.u64(0..5000) };
            end = block.end();
            block
        });
        (number(rng), blocks)
    });
    files.into_iter().collect()
}

fn parts(rng: &mut Rng) -> Vec<Part> {
    let mut bounds: Vec<_> = list(rng, 4, |rng| Some(bytes(rng, 5)));
    if bounds.is_empty() && rng.bool() {
        return Vec::new();
    }
    bounds.push(None);
    let mut begin = None;
    let part = |end: Option<Vec<u8>>| {
        let begin = std::mem::replace(&mut begin, end.clone());
        Part { begin, end, blocks: some(rng, blocks) }
    };
    bounds.into_iter().map(part).collect()
}

/// Without fields that only some kinds of tables have.
fn plain_spec(rng: &mut Rng) -> JobSpec {
    let flush = rng.u8(0..4) == 0;
    let reason = match flush {
        true if rng.bool() => TableFileCreationReason::Flush,
        true => TableFileCreationReason::Recovery,
        false => TableFileCreationReason::Compaction,
    };
    let run = |rng: &mut Rng| SpecRun {
        level: rng.usize(0..256),
        files: list(rng, 3, |rng| Arc::new(SpecFile { entry: entry(rng), extents: list(rng, 2, extent) })),
    };
    let mut snapshots = list(rng, 5, number);
    snapshots.sort_unstable();
    JobSpec {
        job: number(rng),
        reason,
        runs: if flush { Vec::new() } else { list(rng, 4, run) },
        memtables: if flush { list(rng, 3, number) } else { Vec::new() },
        comparator: text(rng),
        merge_operator: text(rng),
        filter: some(rng, |rng| FilterSpec {
            name: text(rng),
            options: String::new(),
            from_factory: rng.bool(),
            is_full_compaction: rng.bool(),
            is_manual_compaction: rng.bool(),
            input_start_level: some(rng, |rng| rng.u32(..)),
            now_micros: number(rng),
        }),
        snapshots,
        bottommost: rng.bool(),
        older: some(rng, |rng| list(rng, 3, ranges)),
        output: OutputPlan {
            path_id: rng.u32(0..4),
            piece_paths: BTreeMap::new(),
            owner: TableOwner {
                db_id: text(rng),
                db_session_id: text(rng),
                cf_id: rng.u32(..),
                cf_name: text(rng),
                merge_operator: text(rng),
            },
            format: TableFormat {
                block_based: BlockBasedSettings {
                    block_size: number(rng) as usize,
                    block_size_deviation: number(rng) as usize,
                    block_restart_interval: number(rng) as usize,
                    index_block_restart_interval: number(rng) as usize,
                    format_version: rng.u32(..),
                    checksum: ChecksumType::from_u8(rng.u8(0..5)).unwrap(),
                    bloom_bits_per_key: rng.f64() * 100.0,
                    whole_key_filtering: rng.bool(),
                    partition_filters: rng.bool(),
                    two_level_index: rng.bool(),
                    metadata_block_size: number(rng) as usize,
                    hash_index_util_ratio: some(rng, Rng::f64),
                },
                prefix_extractor: text(rng),
                tph: some(rng, |rng| TphSettings { piece_limit: rng.u32(..), garbage_percent: rng.u32(..) }),
            },
            level: rng.usize(0..256),
            extra_run: number(rng),
            file_size_target: number(rng),
            file_size_max: number(rng),
            bytes_expected: number(rng),
            grandparents: ranges(rng),
            grandparent_overlap_max: number(rng),
            subtree_bits: 0,
            split_key: some(rng, key),
            compression: *rng.choice(&CompressionType::ALL).unwrap(),
            compression_opts: CompressionOptions {
                window_bits: rng.i32(..),
                level: rng.i32(..),
                strategy: rng.i32(..),
                max_dict_bytes: rng.u32(..),
                zstd_max_train_bytes: rng.u32(..),
                parallel_threads: rng.u32(..),
                enabled: rng.bool(),
                max_dict_buffer_bytes: number(rng),
                use_zstd_dict_trainer: rng.bool(),
                max_compressed_bytes_per_kb: rng.i32(..),
                checksum: rng.bool(),
            },
            page_cache: false,
            mode_max: some(rng, |rng| rng.u32(..)),
            io_priority: *rng.choice(&IoPriority::ALL).unwrap(),
            replaced: Arc::default(),
            epoch_number: number(rng),
            oldest_ancestor_time: number(rng),
            reproducible: rng.bool(),
        },
        parts_max: number(rng) as usize,
        parts: if flush { Vec::new() } else { parts(rng) },
        keep: Vec::new(),
        numbers: list(rng, 3, |rng| NumberRange { first: rng.u64(0..1 << 40), count: rng.u64(1..1000) }),
        space: list(rng, 3, extent),
        further: list(rng, 3, |rng| rng.u64(1..1 << 40))
            .into_iter()
            .collect::<std::collections::BTreeSet<_>>()
            .into_iter()
            .map(|number| FurtherFile { number, extents: list(rng, 2, extent) })
            .collect(),
    }
}

/// With all possible fields of a spec.
fn random_spec(rng: &mut Rng) -> JobSpec {
    let mut spec = plain_spec(rng);
    if let Some(filter) = spec.filter.as_mut().filter(|_| rng.bool()) {
        filter.options = text(rng);
    }
    if rng.bool() {
        spec.comparator = HASH_RANGE_NAME.to_owned();
        spec.output.subtree_bits = rng.u32(0..=32);
    }
    if spec.output.format.tph.is_none() {
        return spec;
    }
    let mut before = list(rng, 5, number);
    before.sort_unstable();
    spec.output.replaced = Arc::new(ReplacedTables { before, ..ReplacedTables::default() });
    spec.keep = list(rng, 4, |rng| KeptFile { table: number(rng), file: number(rng) });
    // The last run is the one that the outputs become part of, with files to keep.
    if spec.reason == TableFileCreationReason::Compaction && rng.bool() {
        let (level, extra_run) = (spec.output.level, spec.output.extra_run);
        let files = list(rng, 3, |rng| FileEntry { extra_run, ..entry(rng) });
        for f in &files {
            spec.keep.extend(f.files().map(|file| KeptFile { table: f.number, file: file.number }));
        }
        spec.runs.push(SpecRun { level, files: files.into_iter().map(|f| Arc::new(SpecFile::new(f))).collect() });
    }
    spec
}

/// The fields of an encoded message.
pub(crate) fn fields(encoded: &[u8]) -> Vec<(u32, Vec<u8>)> {
    let mut d = Decoder::new(&encoded[..encoded.len() - CHECKSUM_LEN]);
    d.bytes(JobSpec::MAGIC.len(), "magic").unwrap();
    d.varint32("version").unwrap();
    let mut out = Vec::new();
    while !d.is_empty() {
        out.push((d.varint32("tag").unwrap(), d.length_prefixed("field").unwrap().to_vec()));
    }
    out
}

/// A message of these fields with a valid checksum.
pub(in crate::compaction) fn of_fields<M: Message>(version: u32, fields: &[(u32, Vec<u8>)]) -> Vec<u8> {
    let mut out = M::MAGIC.to_vec();
    put_varint32(&mut out, version);
    for (tag, body) in fields {
        put_varint32(&mut out, *tag);
        put_length_prefixed(&mut out, body);
    }
    let checksum = mask(crc32c(&out));
    put_fixed32(&mut out, checksum);
    out
}

fn varints(numbers: &[u64]) -> Vec<u8> {
    let mut out = Vec::new();
    numbers.iter().for_each(|&n| put_varint64(&mut out, n));
    out
}

#[test]
fn specs_go_there_and_back() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..2000 {
        let spec = random_spec(&mut Rng::with_seed(seed));
        let encoded = spec.encode().unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let decoded = JobSpec::decode(&encoded).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert_eq!(decoded, spec, "seed {seed}");
        assert_eq!(decoded.encode().unwrap(), encoded, "seed {seed}");
        assert_eq!(of_fields::<JobSpec>(1, &fields(&encoded)), encoded, "seed {seed}");
        seen.extend(fields(&encoded).into_iter().map(|(tag, _)| tag));
    }
    assert!(seen.into_iter().eq(1..=JobSpec::TAG_MAX), "a field that no spec has");
}

/// A reader that does not know TPH tables refuses jobs that write them, and accepts all others as before.
#[test]
fn only_jobs_of_tph_tables_say_so() {
    let mut spec = plain_spec(&mut Rng::with_seed(1));
    (spec.output.format.tph, spec.keep) = (None, Vec::new());
    let plain = fields(&spec.encode().unwrap());
    assert!(plain.iter().all(|(tag, _)| *tag != tag::TPH_TABLE));
    spec.output.format.tph = Some(TphSettings { piece_limit: 300, garbage_percent: 7 });
    spec.keep = vec![KeptFile { table: 41, file: 40 }, KeptFile { table: 12, file: 12 }];
    let encoded = spec.encode().unwrap();
    assert_eq!(
        fields(&encoded),
        [plain.as_slice(), &[(tag::TPH_TABLE, varints(&[300, 7, 2, 41, 40, 12, 12]))]].concat()
    );
    assert_eq!(tag::TPH_TABLE & SAFE_TO_IGNORE, 0);
    assert_eq!(JobSpec::decode(&encoded), Ok(spec));
    for (body, what) in [(varints(&[300]), "garbage_percent"), (varints(&[1 << 32, 7, 0]), "too large")] {
        let all = [plain.as_slice(), &[(tag::TPH_TABLE, body)]].concat();
        let e = JobSpec::decode(&of_fields::<JobSpec>(1, &all)).unwrap_err();
        assert!(e.kind() == ErrorKind::Corruption && e.message().contains(what), "{e}");
    }
}

#[test]
fn only_jobs_of_tph_tables_list_what_was_replaced_before() {
    let mut spec = plain_spec(&mut Rng::with_seed(1));
    (spec.output.format.tph, spec.keep) = (Some(TphSettings::default()), Vec::new());
    let plain = fields(&spec.encode().unwrap());
    assert!(plain.iter().all(|(tag, _)| *tag != tag::REPLACED));
    spec.output.replaced = Arc::new(ReplacedTables { before: vec![3, 9, 40], ..ReplacedTables::default() });
    let encoded = spec.encode().unwrap();
    assert_eq!(fields(&encoded), [plain.as_slice(), &[(tag::REPLACED, varints(&[3, 3, 6, 31]))]].concat());
    assert_eq!(JobSpec::decode(&encoded), Ok(spec.clone()));
    spec.output.format.tph = None;
    assert!(spec.encode().unwrap_err().message().contains("tables replaced before"));
}

/// The same for jobs in the order by search key.
#[test]
fn only_jobs_with_subtrees_say_so() {
    let mut spec = plain_spec(&mut Rng::with_seed(1));
    spec.comparator = HASH_RANGE_NAME.to_owned();
    let plain = fields(&spec.encode().unwrap());
    spec.output.subtree_bits = 5;
    let encoded = spec.encode().unwrap();
    assert_eq!(fields(&encoded), [plain.as_slice(), &[(tag::SUBTREES, varints(&[5]))]].concat());
    assert_eq!(tag::SUBTREES & SAFE_TO_IGNORE, 0);
    assert_eq!(JobSpec::decode(&encoded), Ok(spec.clone()));
    let all = [plain.as_slice(), &[(tag::SUBTREES, varints(&[33]))]].concat();
    let e = JobSpec::decode(&of_fields::<JobSpec>(1, &all)).unwrap_err();
    assert!(e.message().contains("subtrees by 33 bits"), "{e}");
    spec.comparator = "another".to_owned();
    assert!(spec.encode().unwrap_err().message().contains("in the order of another"));
}

/// A filter without options is written as before; readers that would ignore options refuse a filter that has them.
#[test]
fn only_filters_with_options_say_so() {
    let mut spec = plain_spec(&mut Rng::with_seed(1));
    spec.filter = Some(FilterSpec { name: "f".into(), ..FilterSpec::default() });
    let plain = fields(&spec.encode().unwrap());
    assert!(plain.contains(&(tag::FILTER, vec![0, 1, b'f', 0])) && plain.iter().all(|f| f.0 != tag::FILTER_OPTIONS));
    spec.filter.as_mut().unwrap().options = "x=1".into();
    let encoded = spec.encode().unwrap();
    assert_eq!(fields(&encoded), [plain.as_slice(), &[(tag::FILTER_OPTIONS, b"\x03x=1".to_vec())]].concat());
    assert_eq!(tag::FILTER_OPTIONS & SAFE_TO_IGNORE, 0);
    assert_eq!(JobSpec::decode(&encoded), Ok(spec.clone()));
    let without: Vec<_> = fields(&encoded).into_iter().filter(|(tag, _)| *tag != tag::FILTER).collect();
    let e = JobSpec::decode(&of_fields::<JobSpec>(1, &without)).unwrap_err();
    assert!(e.kind() == ErrorKind::Corruption && e.message().contains("no filter"), "{e}");
    spec.filter.as_mut().unwrap().options = "x".repeat(TEXT_BYTES_MAX + 1);
    assert!(spec.encode().unwrap_err().message().contains("filter's options"));
}

/// In an output, older entries would otherwise hide newer ones.
#[test]
fn files_are_kept_of_the_oldest_run_alone() {
    let table = |number: u64, extra_run: u64| {
        let entry = FileEntry { number, extra_run, ..entry(&mut Rng::with_seed(number)) };
        Arc::new(SpecFile::new(FileEntry { size: 1000, pieces: Vec::new(), ..entry }))
    };
    let mut spec = JobSpec { memtables: Vec::new(), ..plain_spec(&mut Rng::with_seed(1)) };
    (spec.reason, spec.output.level, spec.output.extra_run) = (TableFileCreationReason::Compaction, 5, 7);
    spec.output.format.tph = Some(TphSettings::default());
    let run = |level, files| SpecRun { level, files };
    let sound = vec![run(0, vec![table(9, 0)]), run(4, vec![table(8, 0)]), run(5, vec![table(5, 9), table(6, 9)])];
    let base = run(5, vec![table(3, 7), table(4, 7)]);
    spec.runs = [sound.clone(), vec![base.clone()]].concat();
    spec.keep = vec![KeptFile { table: 3, file: 3 }];
    assert_eq!(JobSpec::decode(&spec.encode().unwrap()).as_ref(), Ok(&spec));
    for (older, named) in [(run(5, vec![table(2, 0)]), "table 2 of level 5"), (run(6, vec![table(1, 7)]), "table 1 of")]
    {
        spec.runs = [sound.clone(), vec![base.clone(), older]].concat();
        let e = spec.encode().unwrap_err();
        assert!(e.message().contains("files to keep") && e.message().contains(named), "{e}");
        // As somebody else may write it.
        let keep = std::mem::take(&mut spec.keep);
        let mut fields = fields(&spec.encode().unwrap());
        let settings = TphSettings::default();
        let body = varints(&[u64::from(settings.piece_limit), u64::from(settings.garbage_percent), 1, 3, 3]);
        fields.retain(|(tag, _)| *tag != tag::TPH_TABLE);
        fields.push((tag::TPH_TABLE, body));
        let e = JobSpec::decode(&of_fields::<JobSpec>(1, &fields)).unwrap_err();
        assert!(e.kind() == ErrorKind::Corruption && e.message().contains(named), "{e}");
        spec.keep = keep;
    }
    // A job that keeps nothing may read any tables.
    spec.keep.clear();
    spec.encode().unwrap();
}

#[test]
fn every_cut_and_every_flipped_bit_is_an_error() {
    for seed in 0..6 {
        let encoded = random_spec(&mut Rng::with_seed(seed)).encode().unwrap();
        for len in 0..encoded.len() {
            let e = JobSpec::decode(&encoded[..len]).unwrap_err();
            assert!(e.message().starts_with("job spec: "), "{len} bytes: {e}");
        }
        for bit in 0..encoded.len() * 8 {
            let mut damaged = encoded.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(JobSpec::decode(&damaged).is_err(), "bit {bit}");
        }
        assert!(JobSpec::decode(&[encoded.as_slice(), &[0]].concat()).is_err());
    }
}

#[test]
fn damage_that_no_checksum_catches_is_an_error_or_a_spec() {
    let (mut errors, mut specs) = (0, 0);
    for seed in 0..40 {
        let mut rng = Rng::with_seed(seed);
        let encoded = random_spec(&mut rng).encode().unwrap();
        let end = encoded.len() - CHECKSUM_LEN;
        for at in JobSpec::MAGIC.len()..end {
            let mut damaged = encoded[..end].to_vec();
            let flipped = damaged[at] ^ 1 << rng.u8(0..8);
            damaged[at] = *rng.choice(&[0, 1, 0x7f, 0x80, 0xff, flipped]).unwrap();
            if rng.u8(0..4) == 0 {
                damaged.truncate(at + 1);
            }
            let checksum = mask(crc32c(&damaged));
            put_fixed32(&mut damaged, checksum);
            match JobSpec::decode(&damaged) {
                Ok(spec) => {
                    specs += 1;
                    let again = spec.encode().unwrap_or_else(|e| panic!("seed {seed}, byte {at}: {e}"));
                    assert_eq!(JobSpec::decode(&again), Ok(spec), "seed {seed}, byte {at}");
                }
                Err(e) => {
                    errors += 1;
                    let place = e.message().contains("at offset") || e.kind() == ErrorKind::NotSupported;
                    assert!(place && e.message().starts_with("job spec: "), "seed {seed}, byte {at}: {e}");
                }
            }
        }
    }
    assert!(errors > 1000 && specs > 1000, "{errors} errors, {specs} specs");
}

#[test]
fn counts_and_lengths_promise_no_more_than_there_is() {
    let compaction = TableFileCreationReason::Compaction;
    let spec = JobSpec { reason: compaction, memtables: Vec::new(), ..plain_spec(&mut Rng::with_seed(3)) };
    let plain = fields(&spec.encode().unwrap());
    let many = 1 << 60;
    let part = |tail: &[u64]| [vec![4], varints(tail)].concat();
    let cases: [(u32, Vec<u8>, &str); 13] = [
        (tag::GRANDPARENTS, varints(&[1, 0, 0, 1 << 61]), "tables of"),
        (tag::SNAPSHOTS, varints(&[many, 1, 2]), "snapshots"),
        (tag::SNAPSHOTS, varints(&[2, u64::MAX, 1]), "snapshot is beyond"),
        (tag::MEMTABLES, varints(&[many]), "memtables"),
        (tag::NUMBERS, varints(&[many, 1, 1]), "file numbers"),
        (tag::NUMBERS, varints(&[1, 5, NUMBERS_MAX + 1]), "too many"),
        (tag::SPACE, varints(&[many]), "extents"),
        (tag::SPACE, varints(&[1, u64::MAX, 1]), "extent's end"),
        (tag::OLDER_RUN, varints(&[many, 0, 0, 0]), "key ranges"),
        (tag::GRANDPARENTS, varints(&[1, many, 0]), "smallest key"),
        (tag::PART, part(&[many]), "files of a part"),
        (tag::PART, part(&[1, 7, many, 1, 1]), "blocks"),
        (tag::PART, part(&[1, 7, 2, u64::MAX, 1, 0, 0]), "beyond 64 bits"),
    ];
    for (tag, body, what) in cases {
        let mut fields: Vec<_> = plain.iter().filter(|(t, _)| *t != tag).cloned().collect();
        for (t, flags) in &mut fields {
            if *t == tag::FLAGS {
                flags[0] |= 4;
            }
        }
        fields.push((tag, body));
        fields.sort_by_key(|(tag, _)| *tag);
        let e = JobSpec::decode(&of_fields::<JobSpec>(1, &fields)).unwrap_err();
        assert!(e.kind() == ErrorKind::Corruption && e.message().contains(what), "{what}: {e}");
        assert!(e.message().contains("at offset"), "{e}");
    }
    let e = JobSpec::decode(&[JobSpec::MAGIC.as_slice(), &[1, 200]].concat()).unwrap_err();
    assert!(e.message().contains("checksum"), "{e}");
}

#[test]
fn what_a_newer_version_wrote_is_refused_unless_it_may_be_skipped() {
    let spec = plain_spec(&mut Rng::with_seed(8));
    let plain = fields(&spec.encode().unwrap());
    let with = |tag: u32| {
        let all = [plain.as_slice(), &[(tag, b"more".to_vec())]].concat();
        JobSpec::decode(&of_fields::<JobSpec>(1, &all))
    };
    assert_eq!(with(SAFE_TO_IGNORE + 5), Ok(spec));
    for unknown in [JobSpec::TAG_MAX + 1, 1 << 12, (1 << 14) + 3] {
        let e = with(unknown).unwrap_err();
        assert!(e.kind() == ErrorKind::NotSupported && e.message().contains(&format!("field {unknown}")), "{e}");
    }
    let e = JobSpec::decode(&of_fields::<JobSpec>(2, &plain)).unwrap_err();
    assert!(e.kind() == ErrorKind::NotSupported && e.message().contains("version 2"), "{e}");
    let e = JobSpec::decode(b"RMILLJOX\x01\0\0\0\0").unwrap_err();
    assert!(e.message().contains("no job spec"), "{e}");
}

#[test]
fn fields_stand_once_and_in_order_and_none_is_missing() {
    let spec = JobSpec { older: None, ..plain_spec(&mut Rng::with_seed(8)) };
    let plain = fields(&spec.encode().unwrap());
    for (i, (tag, _)) in plain.iter().enumerate() {
        let mut fewer = plain.clone();
        fewer.remove(i);
        if JobSpec::REQUIRED.contains(tag) {
            let e = JobSpec::decode(&of_fields::<JobSpec>(1, &fewer)).unwrap_err();
            assert!(e.message().contains(&format!("field {tag} is missing")), "{e}");
        }
        let mut longer = plain.clone();
        longer[i].1.push(0);
        assert!(JobSpec::decode(&of_fields::<JobSpec>(1, &longer)).is_err() || *tag == tag::SPLIT_KEY, "field {tag}");
    }
    let mut twice = plain.clone();
    twice.insert(0, twice[0].clone());
    let e = JobSpec::decode(&of_fields::<JobSpec>(1, &twice)).unwrap_err();
    assert!(e.message().contains("field 1 stands behind field 1"), "{e}");
    let mut swapped = plain;
    swapped.swap(0, 1);
    let e = JobSpec::decode(&of_fields::<JobSpec>(1, &swapped)).unwrap_err();
    assert!(e.message().contains("field 1 stands behind field 2"), "{e}");
}

#[test]
fn what_is_over_the_bounds_is_not_written() {
    let range = |from: &str, to: &str| Part {
        begin: Some(from.into()).filter(|b: &Vec<u8>| !b.is_empty()),
        end: Some(to.into()).filter(|e: &Vec<u8>| !e.is_empty()),
        blocks: None,
    };
    let block = |offset, size| BlockHandle { offset, size };
    let with_blocks = |blocks: Vec<BlockHandle>| Part { blocks: Some([(1, blocks)].into()), ..Part::default() };
    type Change<'a> = Box<dyn Fn(&mut JobSpec) + 'a>;
    let vast = FileRange { smallest: b"", largest: b"", size: 1 << 61 };
    let cases: [(&str, Change<'_>); 14] = [
        ("tables of", Box::new(|s| s.output.grandparents.push(vast))),
        ("name", Box::new(|s| s.output.owner.cf_name = "x".repeat(TEXT_BYTES_MAX + 1))),
        ("file numbers", Box::new(|s| s.numbers = vec![NumberRange { first: 1, count: NUMBERS_MAX + 1 }])),
        ("file numbers", Box::new(|s| s.numbers = vec![NumberRange { first: u64::MAX, count: 1 }])),
        ("fields in lists", Box::new(|s| s.older = Some(vec![FileRanges::default(); LISTED_MAX + 1]))),
        ("level 256", Box::new(|s| s.output.level = 256)),
        ("extent", Box::new(|s| s.space = vec![Extent { offset: u64::MAX, length: 1 }])),
        ("snapshot", Box::new(|s| s.snapshots = vec![2, 1])),
        ("gap", Box::new(|s| s.parts = vec![range("", "b"), range("c", "")])),
        ("gap", Box::new(|s| s.parts = vec![range("a", "")])),
        ("block", Box::new(|s| s.parts = vec![with_blocks(vec![block(0, 10), block(14, 1)])])),
        ("block", Box::new(|s| s.parts = vec![with_blocks(vec![block(u64::MAX, 1)])])),
        ("Bloom", Box::new(|s| s.output.format.block_based.bloom_bits_per_key = f64::NAN)),
        ("hash index", Box::new(|s| s.output.format.block_based.hash_index_util_ratio = Some(f64::INFINITY))),
    ];
    for (what, change) in cases {
        let mut spec = plain_spec(&mut Rng::with_seed(8));
        spec.parts.clear();
        assert!(spec.encode().is_ok());
        change(&mut spec);
        let e = spec.encode().unwrap_err();
        assert!(e.kind() == ErrorKind::InvalidArgument && e.message().contains(what), "{what}: {e}");
    }
}

/// Each list alone, and all lists together, may have as many items as memory allows, and not one more.
#[test]
fn lists_are_bounded_by_the_memory_that_they_take() {
    let most = |item: Item, beside: usize| (LISTS_MEMORY_MAX - beside) / item.memory;
    let (field, part_file) = (Item::FIELD.memory, Item::PART_FILE.memory);
    let (numbers, pairs) = (most(Item::NUMBER, 0), most(Item::TWO_NUMBERS, 0));
    type Fill = fn(&mut JobSpec, usize);
    let cases: [(&str, usize, Fill); 9] = [
        ("snapshots", numbers, |s, n| s.snapshots = (0..n as u64).collect()),
        ("memtables", numbers, |s, n| (s.reason, s.memtables) = (TableFileCreationReason::Flush, vec![7; n])),
        ("extents", pairs, |s, n| s.space = vec![Extent { offset: 1, length: 1 }; n]),
        ("files to keep", pairs, |s, n| {
            s.output.format.tph = Some(TphSettings::default());
            s.keep = vec![KeptFile { table: 1, file: 1 }; n];
        }),
        ("key ranges", most(Item::KEY_RANGE, 0), |s, n| {
            (0..n).for_each(|_| s.output.grandparents.push(FileRange { smallest: b"", largest: b"", size: 1 }));
        }),
        ("blocks", most(Item::TWO_NUMBERS, field + part_file), |s, n| {
            let block = |i: u64| BlockHandle { offset: 9 * i, size: 4 };
            s.parts = vec![Part { blocks: Some([(1, (0..n as u64).map(block).collect())].into()), ..Part::default() }];
        }),
        ("files of a part", most(Item::PART_FILE, field), |s, n| {
            let files = (0..n as u64).map(|number| (number, Vec::new()));
            s.parts = vec![Part { blocks: Some(files.collect()), ..Part::default() }];
        }),
        ("input files", most(Item::FILE, field), |s, n| {
            let file = Arc::new(SpecFile::new(tiny()));
            s.runs = vec![SpecRun { level: 1, files: vec![file; n] }];
        }),
        ("input files", (LISTS_MEMORY_MAX - field) / (Item::FILE.memory + 1000 * Item::PIECE.memory), |s, n| {
            let pieces = (1..=1000).map(|number| TablePiece { number, size: 1, live: 1, path_id: 0 });
            let file = Arc::new(SpecFile::new(FileEntry { pieces: pieces.collect(), ..tiny() }));
            s.runs = vec![SpecRun { level: 1, files: vec![file; n] }];
        }),
    ];
    for (what, most, fill) in cases {
        let mut spec = JobSpec::blank();
        fill(&mut spec, most);
        let encoded = spec.encode().unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!(JobSpec::decode(&encoded).as_ref(), Ok(&spec), "{what}");
        // As another writer may write it: the remaining bytes are too few for these items.
        let mut fields = fields(&encoded);
        let (tag, least) = if what == "extents" { (tag::MEMTABLES, 1) } else { (tag::SPACE, 2) };
        let mut body = varints(&[10_000]);
        body.resize(body.len() + 10_000 * least, 0);
        fields.push((tag, body));
        fields.sort_by_key(|(tag, _)| *tag);
        let e = JobSpec::decode(&of_fields::<JobSpec>(1, &fields)).unwrap_err();
        assert!(e.kind() == ErrorKind::Corruption && e.message().contains("of memory"), "{what}: {e}");
        fill(&mut spec, most + 1);
        let e = spec.encode().unwrap_err();
        assert!(e.kind() == ErrorKind::InvalidArgument && e.message().contains(what), "{what}: {e}");
        assert!(e.message().contains("of memory"), "{e}");
    }
}

/// The smallest possible table entry.
fn tiny() -> FileEntry {
    let key = |user_key: &[u8]| InternalKey::new(user_key, 1, ValueType::Value);
    FileEntry { number: 1 << 20, smallest: key(b"a"), largest: key(b"b"), ..FileEntry::default() }
}

#[test]
fn a_job_is_told_in_words() {
    let mut spec = plain_spec(&mut Rng::with_seed(8));
    spec.reason = TableFileCreationReason::Compaction;
    spec.runs = vec![SpecRun { level: 3, files: Vec::new() }];
    spec.output.level = 4;
    assert_eq!(spec.what(), "compaction of level 3 into level 4");
    spec.reason = TableFileCreationReason::Flush;
    spec.output.owner.cf_name = "a".into();
    assert_eq!(spec.what(), "flush of column family \"a\"");
    spec.numbers = vec![NumberRange { first: 7, count: 2 }, NumberRange { first: 20, count: 1 }];
    assert_eq!(spec.leased_numbers(), [7, 8, 20]);
}
