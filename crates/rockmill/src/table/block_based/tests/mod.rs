//! Compares tables with a plain sorted list, with many options.

mod damage;
mod oracle;
mod rows;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rockmill_format::checksum::ChecksumType;
use rockmill_format::compression::CompressionType;
use rockmill_format::key::{self, InternalKey, MAX_SEQUENCE, VALUE_TYPE_FOR_SEEK, ValueType};
use rockmill_format::properties::TableProperties;
use rockmill_format::{Comparator, InternalKeyComparator, SequenceNumber, SliceTransform};
use rockmill_io::{CountingFileSystem, FileSystem, MemFileSystem, WriteOptions};

use super::*;
use crate::iter::InternalIterator;
use crate::iter::get::{GetContext, GetState};
use crate::table::*;

type Entries = Vec<(Vec<u8>, Vec<u8>)>;
type Tombstones = Vec<(Vec<u8>, Vec<u8>, SequenceNumber)>;

fn options(cmp: InternalKeyComparator) -> TableBuilderOptions {
    TableBuilderOptions {
        cmp,
        tph: Option::None,
        pieces: Arc::new([]),
        replaced: Arc::default(),
        block_based: BlockBasedSettings::default(),
        compression: CompressionType::None,
        compression_opts: crate::CompressionOptions::default(),
        target_file_size: 0,
        prefix_extractor: None,
        properties: TableProperties {
            column_family_id: 0,
            column_family_name: "default".into(),
            db_id: "test-db".into(),
            db_session_id: "ABCDEFGHIJKLMNOPQRST".into(),
            orig_file_number: 7,
            ..TableProperties::default()
        },
        path: PathBuf::from("/000007.sst"),
        statistics: Option::None,
    }
}

fn random_options(rng: &mut fastrand::Rng, cmp: InternalKeyComparator) -> TableBuilderOptions {
    use CompressionType::*;
    let two_level_index = rng.bool();
    let prefix_extractor = match rng.u8(0..5) {
        0 => Some(SliceTransform::create_fixed_prefix(6)),
        1 => Some(SliceTransform::create_capped_prefix(7)),
        2 => Some(SliceTransform::create_noop()),
        _ => Option::None,
    };
    let block_based = BlockBasedSettings {
        block_size: *rng.choice(&[1, 64, 300, 1000, 4096, 20_000]).unwrap(),
        block_size_deviation: *rng.choice(&[0, 10, 50, 100]).unwrap(),
        block_restart_interval: rng.usize(1..20),
        index_block_restart_interval: rng.usize(1..6),
        format_version: rng.u32(5..=7),
        checksum: *rng
            .choice(&[
                ChecksumType::None,
                ChecksumType::Crc32c,
                ChecksumType::XxHash,
                ChecksumType::XxHash64,
                ChecksumType::Xxh3,
            ])
            .unwrap(),
        bloom_bits_per_key: *rng.choice(&[0.0, 5.0, 10.0]).unwrap(),
        whole_key_filtering: rng.bool(),
        partition_filters: two_level_index && rng.bool(),
        two_level_index,
        metadata_block_size: *rng.choice(&[1, 100, 1000, 4096]).unwrap(),
        hash_index_util_ratio: rng.bool().then_some(0.75),
    };
    TableBuilderOptions {
        block_based,
        compression: *rng.choice(&[None, Snappy, Zlib, Lz4, Zstd]).unwrap(),
        compression_opts: crate::CompressionOptions {
            max_dict_bytes: *rng.choice(&[0, 0, 100, 5000]).unwrap(),
            zstd_max_train_bytes: *rng.choice(&[0, 20_000]).unwrap(),
            max_dict_buffer_bytes: *rng.choice(&[0, 1, 3000]).unwrap(),
            ..crate::CompressionOptions::default()
        },
        target_file_size: *rng.choice(&[0, 10_000]).unwrap(),
        prefix_extractor,
        ..options(cmp)
    }
}

/// User keys from a small alphabet, so that prefixes, neighbours and repeats are common.
fn random_user_key(rng: &mut fastrand::Rng) -> Vec<u8> {
    let prefix: &[u8] = rng.choice(&[&b""[..], b"user:", b"user:0000"]).unwrap();
    let mut k = prefix.to_vec();
    for _ in 0..rng.usize(0..7) {
        k.push(*rng.choice(b"\x00\x01ab\xfe\xff").unwrap());
    }
    k
}

fn random_entries(rng: &mut fastrand::Rng, n: usize, cmp: &InternalKeyComparator) -> Entries {
    let mut entries: Entries = Vec::new();
    let mut seq = 1;
    for _ in 0..n {
        let user_key = random_user_key(rng);
        for _ in 0..*rng.choice(&[1, 1, 1, 2, 30]).unwrap() {
            seq += rng.u64(1..3);
            use ValueType::*;
            let t = *rng.choice(&[Value, Value, Value, Deletion, Merge, SingleDeletion]).unwrap();
            let value = match t {
                Value | Merge => vec![rng.u8(b'a'..b'e'); rng.usize(0..*rng.clone().choice(&[5, 100, 700]).unwrap())],
                _ => Vec::new(),
            };
            entries.push((InternalKey::new(&user_key, seq, t).as_bytes().to_vec(), value));
        }
    }
    entries.sort_by(|a, b| cmp.compare(&a.0, &b.0));
    entries.dedup_by(|a, b| a.0 == b.0);
    entries
}

fn build(fs: &dyn FileSystem, o: &TableBuilderOptions, entries: &Entries, tombstones: &Tombstones) -> TableSummary {
    let file = fs.create(&o.path, WriteOptions::default()).unwrap();
    let mut b = TableBuilder::new(o.clone(), file);
    for (k, v) in entries {
        b.add(k, v).unwrap();
    }
    for (begin, end, seq) in tombstones {
        b.add_range_tombstone(begin, end, *seq).unwrap();
    }
    b.finish().unwrap()
}

fn open_at(
    fs: &dyn FileSystem,
    path: &Path,
    cmp: &InternalKeyComparator,
    cache: Option<Arc<BlockCache>>,
) -> crate::Result<Arc<Table>> {
    let file = fs.open_random(path, false).unwrap();
    let options = TableOpenOptions {
        path: path.into(),
        cmp: cmp.clone(),
        cache,
        largest_seqno: None,
        prefix_extractor: None,
        statistics: None,
        read_protection: None,
    };
    Table::open(file, options)
}

fn forward(mut it: impl InternalIterator) -> Entries {
    let mut out = Vec::new();
    it.seek_to_first();
    while it.valid() {
        out.push((it.key().to_vec(), it.value().to_vec()));
        it.next();
    }
    it.status().unwrap();
    out
}

fn backward(mut it: impl InternalIterator) -> Entries {
    let mut out = Vec::new();
    it.seek_to_last();
    while it.valid() {
        out.push((it.key().to_vec(), it.value().to_vec()));
        it.prev();
    }
    it.status().unwrap();
    out.reverse();
    out
}

/// The table as a block-based one.
fn blocks_of(table: &Table) -> &BlockBasedTable {
    table.as_block_based().unwrap()
}

impl<I: InternalIterator + ?Sized> InternalIterator for Box<I> {
    fn valid(&self) -> bool {
        (**self).valid()
    }
    fn seek_to_first(&mut self) {
        (**self).seek_to_first();
    }
    fn seek_to_last(&mut self) {
        (**self).seek_to_last();
    }
    fn seek(&mut self, target: &[u8]) {
        (**self).seek(target);
    }
    fn seek_for_prev(&mut self, target: &[u8]) {
        (**self).seek_for_prev(target);
    }
    fn next(&mut self) {
        (**self).next();
    }
    fn prev(&mut self) {
        (**self).prev();
    }
    fn key(&self) -> &[u8] {
        (**self).key()
    }
    fn value(&self) -> &[u8] {
        (**self).value()
    }
    fn status(&self) -> crate::Result<()> {
        (**self).status()
    }
}

/// What a lookup at `seq` must find: the values of merge operands and of the entry that decides, and its type.
fn model_get(
    entries: &Entries,
    tombstones: &Tombstones,
    cmp: &InternalKeyComparator,
    user_key: &[u8],
    seq: SequenceNumber,
) -> (Vec<Vec<u8>>, Option<Option<Vec<u8>>>) {
    let covering = tombstones
        .iter()
        .filter(|(b, e, s)| *s <= seq && cmp.compare_user(b, user_key).is_le() && cmp.compare_user(user_key, e).is_lt())
        .map(|(_, _, s)| *s)
        .max()
        .unwrap_or(0);
    let mut operands = Vec::new();
    for (k, v) in entries {
        if key::user_key(k) != user_key || key::sequence(k) > seq {
            continue;
        }
        let t = ValueType::from_u8(key::tag(k) as u8).unwrap();
        match t {
            _ if key::sequence(k) < covering => return (operands, Some(None)),
            ValueType::Merge => operands.push(v.clone()),
            ValueType::Value => return (operands, Some(Some(v.clone()))),
            _ => return (operands, Some(None)),
        }
    }
    (operands, None)
}

fn table_get(
    table: &Table,
    ro: TableReadOptions,
    user_key: &[u8],
    seq: SequenceNumber,
) -> (Vec<Vec<u8>>, Option<Option<Vec<u8>>>) {
    let ikey = InternalKey::new(user_key, seq, VALUE_TYPE_FOR_SEEK);
    let mut ctx = GetContext::new(user_key);
    table.get(ikey.as_bytes(), ro, &mut ctx).unwrap();
    let all = |ops: Vec<crate::iter::get::PinnedValue>| ops.into_iter().map(|o| o.into_vec()).collect();
    match ctx.state {
        GetState::NotFound => (Vec::new(), None),
        GetState::Found(v) => (Vec::new(), Some(Some(v.into_vec()))),
        GetState::Deleted => (Vec::new(), Some(None)),
        GetState::Merge(ops) => (all(ops), None),
        GetState::MergeDone(ops, base) => (all(ops), Some(base.map(|b| b.into_vec()))),
        GetState::Failed(e) => panic!("{e}"),
    }
}

/// The filter may exclude a prefix only if no key with the target's prefix is on the requested side.
fn check_prefix(table: &Table, entries: &Entries, target: &[u8]) {
    let Some(extractor) = table.filter_prefixes() else { return };
    let Some(prefix) = extractor.prefix(key::user_key(target)) else { return };
    for backward in [false, true] {
        let on_side = |k: &[u8]| {
            let order = table.comparator().compare(k, target);
            if backward { order.is_le() } else { order.is_ge() }
        };
        let is_there = entries.iter().any(|(k, _)| on_side(k) && extractor.prefix(key::user_key(k)) == Some(prefix));
        let found = table.prefix_may_match(prefix, target, backward);
        assert!(found || !is_there, "{extractor:?}, {target:?}, backward {backward}");
    }
}

/// Everything a table must answer.
fn check(table: &Arc<Table>, entries: &Entries, tombstones: &Tombstones, rng: &mut fastrand::Rng) {
    let cmp = table.comparator().clone();
    table.verify().unwrap();
    let ro = TableReadOptions {
        fill_cache: rng.bool(),
        readahead: *rng.choice(&[0, 1, 3000]).unwrap(),
        ..TableReadOptions::default()
    };
    assert!(forward(table.iter(ro)) == *entries, "forward");
    assert!(backward(table.iter(ro)) == *entries, "backward");
    for readahead in [0, 1000, 1 << 20] {
        assert!(forward(table.scan(readahead, true)) == *entries, "scan, {readahead}");
    }
    let mut it = table.iter(ro);
    let mut stream = table.scan(500, true);
    for _ in 0..100 {
        let target = if rng.bool() && !entries.is_empty() {
            entries[rng.usize(..entries.len())].0.clone()
        } else {
            InternalKey::new(&random_user_key(rng), rng.u64(0..100), ValueType::Value).as_bytes().to_vec()
        };
        let at = entries.partition_point(|(k, _)| cmp.compare(k, &target).is_lt());
        it.seek(&target);
        stream.seek(&target);
        assert_eq!(it.valid().then(|| it.key()), entries.get(at).map(|e| e.0.as_slice()));
        assert_eq!(stream.valid().then(|| stream.key()), entries.get(at).map(|e| e.0.as_slice()));
        let mut pos = at as isize;
        for _ in 0..rng.usize(0..6) {
            if !it.valid() {
                break;
            }
            if rng.bool() {
                it.next();
                pos += 1;
            } else {
                it.prev();
                pos -= 1;
            }
            let expected = usize::try_from(pos).ok().and_then(|p| entries.get(p));
            assert_eq!(it.valid().then(|| (it.key(), it.value())), expected.map(|e| (e.0.as_slice(), e.1.as_slice())));
        }
        let behind = entries.partition_point(|(k, _)| cmp.compare(k, &target).is_le());
        it.seek_for_prev(&target);
        let expected = behind.checked_sub(1).map(|p| entries[p].0.as_slice());
        assert_eq!(it.valid().then(|| it.key()), expected);

        check_prefix(table, entries, &target);
        let user_key = key::user_key(&target);
        for seq in [rng.u64(0..200), MAX_SEQUENCE] {
            assert_eq!(
                table_get(table, ro, user_key, seq),
                model_get(entries, tombstones, &cmp, user_key, seq),
                "get {user_key:?} at {seq}"
            );
        }
    }
    // The list of blocks covers the file, up to the footer and padding, and has every entry.
    let blocks = table.describe();
    assert!(blocks.iter().all(|b| b.error.is_none()), "{blocks:?}");
    assert!(blocks.windows(2).all(|w| w[0].offset + w[0].size < w[1].offset), "{blocks:?}");
    let data = blocks.iter().filter(|b| b.kind == TableBlockKind::Data);
    assert_eq!(data.map(|b| b.entries.unwrap()).sum::<u64>(), entries.len() as u64);
    // Anchors ascend and end with the data; offsets match them.
    for max in [1, 3, 100] {
        let anchors = table.anchors(max).unwrap();
        assert!(anchors.len() <= max);
        assert!(anchors.windows(2).all(|w| w[0].1 < w[1].1 && cmp.compare_user(&w[0].0, &w[1].0).is_le()));
        if !entries.is_empty() {
            assert_eq!(anchors.last().unwrap().1, blocks_of(table).data_end());
        }
    }
}

/// Keys are in reverse order in one case of four.
fn order_of(seed: u64) -> InternalKeyComparator {
    if seed % 4 == 3 {
        InternalKeyComparator::new(Arc::new(rockmill_format::comparator::ReverseBytewiseComparator))
    } else {
        InternalKeyComparator::default()
    }
}

#[test]
fn tables_answer_as_a_sorted_list_does() {
    for seed in 0..120 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let cmp = order_of(seed);
        let o = random_options(&mut rng, cmp.clone());
        let count = *rng.choice(&[0, 1, 10, 100, 400]).unwrap();
        let entries = random_entries(&mut rng, count, &cmp);
        let mut tombstones: Tombstones = Vec::new();
        for _ in 0..*rng.choice(&[0, 0, 1, 10]).unwrap() {
            let (a, b) = (random_user_key(&mut rng), random_user_key(&mut rng));
            match cmp.compare_user(&a, &b) {
                std::cmp::Ordering::Less => tombstones.push((a, b, rng.u64(1..200))),
                std::cmp::Ordering::Greater => tombstones.push((b, a, rng.u64(1..200))),
                std::cmp::Ordering::Equal => {}
            }
        }
        tombstones.sort_by(|a, b| cmp.compare_user(&a.0, &b.0).then(b.2.cmp(&a.2)));
        tombstones.dedup_by(|a, b| a.0 == b.0 && a.2 == b.2);
        println!("seed {seed}: {} entries, {} tombstones, {o:?}", entries.len(), tombstones.len());

        let fs = MemFileSystem::new();
        let summary = build(&fs, &o, &entries, &tombstones);
        assert_eq!(summary.file_size, fs.file_size(&o.path).unwrap());
        let p = &summary.properties;
        assert_eq!(p.num_entries as usize, entries.len() + tombstones.len());
        assert_eq!(p.tail_start_offset, p.data_size);
        assert_eq!(summary.tail_size, summary.file_size - p.data_size);
        if let (Some(first), Some(last)) = (entries.first(), entries.last()) {
            assert!(cmp.compare(summary.smallest.as_bytes(), &first.0).is_le());
            assert!(cmp.compare(summary.largest.as_bytes(), &last.0).is_ge());
        }
        let cache = rng.bool().then(|| BlockCache::new(1 << 20));
        cache.iter().filter(|_| rng.bool()).for_each(|c| c.row_choice().force_rows());
        let table = open_at(&fs, &o.path, &cmp, cache).unwrap();
        assert_eq!(table.properties(), p);
        check(&table, &entries, &tombstones, &mut rng);

        // The same input gives the same bytes.
        let once = fs.read_to_vec(&o.path).unwrap();
        build(&fs, &o, &entries, &tombstones);
        assert!(once == fs.read_to_vec(&o.path).unwrap());
    }
}

#[test]
fn keys_out_of_order_are_refused() {
    let fs = MemFileSystem::new();
    let o = options(InternalKeyComparator::default());
    let k = |u: &str, s| InternalKey::new(u.as_bytes(), s, ValueType::Value);
    for (first, second) in [("b", "a"), ("a", "a")] {
        let mut b = TableBuilder::new(o.clone(), fs.create(&o.path, WriteOptions::default()).unwrap());
        b.add(k(first, 5).as_bytes(), b"").unwrap();
        let e = b.add(k(second, 6).as_bytes(), b"").unwrap_err();
        assert_eq!(e.kind(), crate::ErrorKind::Corruption);
        assert_eq!(b.finish().unwrap_err(), e);
    }
    let mut b = TableBuilder::new(o.clone(), fs.create(&o.path, WriteOptions::default()).unwrap());
    b.add_range_tombstone(b"b", b"c", 5).unwrap();
    b.add_range_tombstone(b"b", b"c", 6).unwrap_err();
    b.abandon();
}

#[test]
fn a_failing_disk_fails_the_build() {
    let mut o = options(InternalKeyComparator::default());
    o.block_based.block_size = 100;
    let entries = random_entries(&mut fastrand::Rng::with_seed(1), 300, &o.cmp);
    let mut failures = 0;
    for calls in 0.. {
        let fs = MemFileSystem::new();
        let file = fs.create(&o.path, WriteOptions { buffer_size: 512, ..WriteOptions::default() }).unwrap();
        fs.fail_after(calls, libc::ENOSPC);
        let mut b = TableBuilder::new(o.clone(), file);
        let added = entries.iter().try_for_each(|(k, v)| b.add(k, v));
        match added.and_then(|()| b.finish()) {
            Ok(_) => break,
            Err(e) => assert!(e.is_no_space() && e.message().contains("/000007.sst"), "{e}"),
        }
        failures += 1;
    }
    assert!(failures > 2);
}

#[test]
fn cache_only_reads_do_no_io() {
    let fs = MemFileSystem::new();
    let o = options(InternalKeyComparator::default());
    let entries = random_entries(&mut fastrand::Rng::with_seed(2), 500, &o.cmp);
    build(&fs, &o, &entries, &Vec::new());
    let cache = BlockCache::new(8 << 20);
    let table = open_at(&fs, &o.path, &o.cmp, Some(cache.clone())).unwrap();
    let ro = TableReadOptions { cache_only: true, ..TableReadOptions::default() };
    let ikey = &entries[entries.len() / 2].0;
    let mut ctx = GetContext::new(key::user_key(ikey));
    assert_eq!(table.get(ikey, ro, &mut ctx).unwrap_err().kind(), crate::ErrorKind::Incomplete);
    let mut it = table.iter(ro);
    it.seek(ikey);
    assert!(!it.valid());
    assert_eq!(it.status().unwrap_err().kind(), crate::ErrorKind::Incomplete);

    assert!(forward(table.iter(TableReadOptions::default())) == entries);
    let before = cache.stats();
    assert!(before.usage > 0 && before.hits == 0);
    assert!(forward(table.iter(ro)) == entries);
    table.get(ikey, ro, &mut ctx).unwrap();
    assert_eq!(cache.stats().misses, before.misses);
    assert!(cache.stats().hits > 0);
}

#[test]
fn comparators_must_be_the_tables_own() {
    let fs = MemFileSystem::new();
    let o = options(InternalKeyComparator::default());
    build(&fs, &o, &Vec::new(), &Vec::new());
    struct Other;
    impl Comparator for Other {
        fn name(&self) -> &str {
            "other"
        }
        fn compare(&self, a: &[u8], b: &[u8]) -> std::cmp::Ordering {
            a.cmp(b)
        }
        fn find_shortest_separator(&self, _: &mut Vec<u8>, _: &[u8]) {}
        fn find_short_successor(&self, _: &mut Vec<u8>) {}
    }
    let e = open_at(&fs, &o.path, &InternalKeyComparator::new(Arc::new(Other)), None).unwrap_err();
    assert_eq!(e.kind(), crate::ErrorKind::InvalidArgument);
    assert!(e.message().contains("leveldb.BytewiseComparator") && e.message().contains("/000007.sst"), "{e}");
}

#[test]
fn readahead_grows_from_small_and_streams_are_few_reads() {
    let fs = MemFileSystem::new();
    let o = options(InternalKeyComparator::default());
    let entries: Entries = (0..3000u32)
        .map(|i| {
            (InternalKey::new(format!("{i:08}").as_bytes(), 1, ValueType::Value).as_bytes().to_vec(), vec![7; 500])
        })
        .collect();
    let summary = build(&fs, &o, &entries, &Vec::new());
    let blocks = summary.properties.num_data_blocks;
    assert!(blocks > 300);
    let table = open_at(&fs, &o.path, &o.cmp, None).unwrap();
    let reads = |f: &dyn Fn()| {
        let before = fs.calls_of(rockmill_io::OpKind::ReadAt);
        f();
        fs.calls_of(rockmill_io::OpKind::ReadAt) - before
    };
    let scan = reads(&|| assert_eq!(forward(table.iter(TableReadOptions::default())).len(), 3000));
    // 8, 16, … 256 KiB, then 256 KiB each: 1.5 MB are about twelve reads.
    assert!((5..20).contains(&scan), "{scan} reads");
    // The first two blocks are read alone; from the third on, readahead is added: 8 KiB include the whole next block.
    let block_entries = 3000usize.div_ceil(blocks as usize);
    let blocks_of = |wanted: usize| {
        // Nothing is known about seeks in a table that was just opened.
        let table = open_at(&fs, &o.path, &o.cmp, None).unwrap();
        reads(&|| {
            let mut it = table.iter(TableReadOptions::default());
            it.seek_to_first();
            (1..wanted * block_entries).for_each(|_| it.next());
            assert!(it.valid());
        })
    };
    assert_eq!([1, 2, 3, 4].map(blocks_of), [1, 2, 3, 3]);
    let explicit = TableReadOptions { readahead: 1 << 20, ..TableReadOptions::default() };
    assert_eq!(reads(&|| assert_eq!(forward(table.iter(explicit)).len(), 3000)), 2);
    assert_eq!(reads(&|| assert_eq!(forward(table.scan(1 << 20, true)).len(), 3000)), 2);
    assert_eq!(reads(&|| assert_eq!(forward(table.scan(0, true)).len(), 3000)), blocks);
}

#[test]
fn a_seek_reads_at_once_what_the_seeks_before_it_went_through() {
    let fs = CountingFileSystem::new(Arc::new(MemFileSystem::new()));
    let o = options(InternalKeyComparator::default());
    let entry = |i: usize| InternalKey::new(format!("{i:08}").as_bytes(), 1, ValueType::Value).as_bytes().to_vec();
    let entries: Entries = (0..8000).map(|i| (entry(i), vec![7; 1000])).collect();
    build(&fs, &o, &entries, &Vec::new());
    let table = |cache| open_at(&fs, &o.path, &o.cmp, cache).unwrap();
    // The mean calls and bytes of a seek followed by `steps` steps, after some seeks to learn from.
    let rng = std::cell::RefCell::new(fastrand::Rng::with_seed(3));
    let mean = |table: &Arc<Table>, steps: usize, ro: TableReadOptions, backward: bool| {
        let seek = || {
            let at = rng.borrow_mut().usize(200..7800);
            let mut it = table.iter(ro);
            match backward {
                false => it.seek(&entries[at].0),
                true => it.seek_for_prev(&entries[at].0),
            }
            for step in 0..=steps {
                let expected = if backward { at - step } else { at + step };
                assert!(it.valid() && it.key() == entries[expected].0 && it.value().len() == 1000);
                if step < steps {
                    if backward { it.prev() } else { it.next() }
                }
            }
        };
        (0..16).for_each(|_| seek());
        let before = fs.counts();
        (0..200).for_each(|_| seek());
        let after = fs.counts();
        ((after.reads - before.reads) as f64 / 200.0, (after.read_bytes - before.read_bytes) / 200)
    };
    let ro = TableReadOptions::default();
    // Ten steps of 1,000 bytes go through 3.5 blocks of 4 KiB, a hundred through 26.
    let learning = table(None);
    let (calls, bytes) = mean(&learning, 10, ro, false);
    assert!(calls < 1.3 && (12_000..20_000).contains(&bytes), "{calls} calls, {bytes} bytes");
    let (calls, bytes) = mean(&learning, 100, ro, false);
    assert!(calls < 1.5 && (100_000..140_000).contains(&bytes), "{calls} calls, {bytes} bytes");
    // Seeks alone read no more than their block again.
    let (calls, bytes) = mean(&learning, 0, ro, false);
    assert!(calls == 1.0 && bytes < 4_500, "{calls} calls, {bytes} bytes");
    // Backwards seeks neither learn nor use this; the same holds if readers set the readahead size.
    (0..2).for_each(|_| _ = mean(&learning, 10, ro, false));
    let (calls, _) = mean(&learning, 10, ro, true);
    assert!(calls > 2.5, "{calls} calls");
    let explicit = TableReadOptions { readahead: 4 << 10, ..ro };
    let (calls, _) = mean(&table(None), 10, explicit, false);
    assert!((1.8..3.0).contains(&calls), "{calls} calls");
    // Seeks that the cache answers do not count: nothing is read.
    let cached = table(Some(BlockCache::new(64 << 20)));
    assert!(forward(cached.iter(ro)).len() == 8000);
    assert_eq!(mean(&cached, 10, ro, false), (0.0, 0));
    // With a tiny cache, the number of calls is the same.
    let (calls, _) = mean(&table(Some(BlockCache::new(64 << 10))), 10, ro, false);
    assert!(calls < 1.3, "{calls} calls");
}

#[test]
fn a_block_that_cannot_be_read_takes_none_along_that_stand_before_it() {
    let fs = MemFileSystem::new();
    let o = options(InternalKeyComparator::default());
    let entry = |i: usize| InternalKey::new(format!("{i:08}").as_bytes(), 1, ValueType::Value).as_bytes().to_vec();
    let entries: Entries = (0..1000).map(|i| (entry(i), vec![7; 1000])).collect();
    build(&fs, &o, &entries, &Vec::new());
    let table = open_at(&fs, &o.path, &o.cmp, None).unwrap();
    let seek = |at: usize, steps: usize| {
        let mut it = table.iter(TableReadOptions::default());
        it.seek(&entries[at].0);
        let mut seen = 0;
        while it.valid() {
            assert_eq!(it.key(), entries[at + seen].0);
            seen += 1;
            if seen > steps {
                break;
            }
            it.next();
        }
        (seen, it.status().err())
    };
    // The place of the block with entry 500.
    let place = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let read = Arc::clone(&place);
    fs.set_hook(Box::new(move |op| {
        read.store(op.offset, std::sync::atomic::Ordering::Relaxed);
        rockmill_io::Fault::None
    }));
    let place_of = |at| {
        _ = seek(at, 0);
        place.load(std::sync::atomic::Ordering::Relaxed)
    };
    let place = place_of(500);
    let first = (480..500).find(|&at| place_of(at) == place).unwrap_or(500);
    (0..10).for_each(|n| assert_eq!(seek(n * 20, 12).0, 13));
    fs.set_hook(Box::new(move |op| {
        if op.kind == rockmill_io::OpKind::ReadAt && (op.offset..op.offset + op.len).contains(&place) {
            return std::io::Error::from_raw_os_error(libc::EIO).into();
        }
        rockmill_io::Fault::None
    }));
    // From the third block on, a scan reads ahead, and fails if that fails.
    let (seen, error) = seek(first - 4, 12);
    assert_eq!(seen, 4, "entries in front of the block");
    assert_eq!(error.unwrap().kind(), crate::ErrorKind::IOError);
    assert_eq!(seek(504, 0), (1, None));
}

/// Data that a flush or a compaction wrote past the page cache is read from the device, which works ahead while a scan
/// runs.
#[test]
fn a_long_scan_tells_what_it_reads_next_and_a_short_one_nothing() {
    let fs = CountingFileSystem::new(Arc::new(MemFileSystem::new()));
    let o = options(InternalKeyComparator::default());
    let entry = |i: u32| InternalKey::new(format!("{i:08}").as_bytes(), 1, ValueType::Value).as_bytes().to_vec();
    let entries: Entries = (0..8000).map(|i| (entry(i), vec![7; 500])).collect();
    build(&fs, &o, &entries, &Vec::new());
    let table = open_at(&fs, &o.path, &o.cmp, None).unwrap();
    let told = |scan: &dyn Fn()| {
        let before = fs.counts().prefetches;
        scan();
        fs.counts().prefetches - before
    };
    let short = |n: usize| {
        let mut it = table.iter(TableReadOptions::default());
        it.seek(&entries[100].0);
        (0..n).for_each(|_| it.next());
        let mut it = table.iter(TableReadOptions::default());
        it.seek(&entries[7000].0);
        (0..n).for_each(|_| it.prev());
    };
    assert_eq!([1, 10, 60].map(|n| told(&|| short(n))), [0; 3]);
    // 4 MB: once for each window from 64 KiB on, until the announced range reaches the end of the blocks.
    let forwards = told(&|| assert_eq!(forward(table.iter(TableReadOptions::default())).len(), 8000));
    let backwards = told(&|| assert_eq!(backward(table.iter(TableReadOptions::default())).len(), 8000));
    assert!((10..18).contains(&forwards) && (10..18).contains(&backwards), "{forwards}, {backwards}");
    let explicit = TableReadOptions { readahead: 1 << 20, ..TableReadOptions::default() };
    assert_eq!(told(&|| assert_eq!(forward(table.iter(explicit)).len(), 8000)), 3);
    assert_eq!(told(&|| assert_eq!(forward(table.scan(1 << 20, true)).len(), 8000)), 0);
}
