//! Tables through generations of compactions, compared with a plain map. The decisions of a compaction are random here,
//! so that every combination of kept and rewritten files occurs.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use rockmill_format::comparator::ReverseBytewiseComparator;
use rockmill_format::compression::CompressionType;
use rockmill_format::key::{self, InternalKey, MAX_SEQUENCE, VALUE_TYPE_FOR_SEEK, ValueType};
use rockmill_format::properties::TableProperties;
use rockmill_format::{Comparator, InternalKeyComparator};
use rockmill_io::{FileSystem, MemFileSystem, OpKind, WriteOptions};

use super::*;
use crate::error::ErrorKind;
use crate::helpers::{Help, Helpers};
use crate::iter::InternalIterator;
use crate::iter::get::{GetContext, GetState};
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::table::{
    AutoReadahead, BlockBasedSettings, BlockCache, Leaves, LruCacheOptions, MetaCaching, OnDemand, StreamReads,
    TableBuilder, TableBuilderOptions, TableOpenOptions, TableReadOptions, TableSummary,
};

/// Versions of a user key, newest first: sequence number, type, value.
type Versions = Vec<(u64, ValueType, Vec<u8>)>;

/// All user keys, by a byte string with the comparator's order.
#[derive(Clone, Default)]
struct Model(BTreeMap<Vec<u8>, Versions>);

struct World {
    fs: MemFileSystem,
    cmp: InternalKeyComparator,
    reverse: bool,
    settings: BlockBasedSettings,
    compression: CompressionType,
    cache: Option<Arc<BlockCache>>,
    tph: bool,
    piece_limit: u32,
    /// Compactions rewrite nothing that may stay.
    keeps_all: bool,
    readahead: AutoReadahead,
}

impl World {
    fn new(rng: &mut fastrand::Rng) -> Self {
        let reverse = rng.u8(0..5) == 0;
        let cmp = match reverse {
            true => InternalKeyComparator::new(Arc::new(ReverseBytewiseComparator) as Arc<dyn Comparator>),
            false => InternalKeyComparator::default(),
        };
        let settings = BlockBasedSettings {
            block_size: *rng.choice(&[1, 100, 1000, 4096]).unwrap(),
            block_restart_interval: rng.usize(1..17),
            format_version: rng.u32(5..=7),
            ..BlockBasedSettings::default()
        };
        let compression = *rng.choice(&[CompressionType::None, CompressionType::Lz4]).unwrap();
        let cache = rng.bool().then(|| BlockCache::new(1 << 20));
        cache.iter().filter(|_| rng.bool()).for_each(|c| c.row_choice().force_rows());
        let readahead = AutoReadahead::default();
        Self {
            fs: MemFileSystem::new(),
            cmp,
            reverse,
            settings,
            compression,
            cache,
            tph: true,
            piece_limit: TphSettings::default().piece_limit,
            keeps_all: false,
            readahead,
        }
    }

    fn path(number: u64) -> PathBuf {
        PathBuf::from(format!("/{number:06}.sst"))
    }

    fn builder(&self, number: u64, pieces: Vec<KeptPiece>) -> TableBuilder {
        let properties = TableProperties {
            column_family_name: "default".into(),
            db_id: "test-db".into(),
            db_session_id: "ABCDEFGHIJKLMNOPQRST".into(),
            orig_file_number: number,
            ..TableProperties::default()
        };
        let options = TableBuilderOptions {
            cmp: self.cmp.clone(),
            tph: self.tph.then(|| TphSettings { piece_limit: self.piece_limit, ..TphSettings::default() }),
            pieces: pieces.into(),
            replaced: Arc::default(),
            block_based: self.settings.clone(),
            compression: self.compression,
            compression_opts: crate::CompressionOptions::default(),
            target_file_size: 0,
            prefix_extractor: None,
            properties,
            path: Self::path(number),
            statistics: None,
        };
        TableBuilder::new(options, self.fs.create(&Self::path(number), WriteOptions::default()).unwrap())
    }

    fn open_file(&self, number: u64) -> Arc<Table> {
        let options = TableOpenOptions {
            path: Self::path(number),
            cmp: self.cmp.clone(),
            cache: self.cache.clone(),
            largest_seqno: None,
            prefix_extractor: None,
            statistics: None,
            read_protection: None,
        };
        let file = self.fs.open_random(&Self::path(number), false).unwrap();
        let caching = MetaCaching { in_cache: true, on_demand: OnDemand::All, ..MetaCaching::default() };
        Table::open_file(file, options, None, self.readahead, caching).unwrap()
    }

    fn open(&self, number: u64, summary: &TableSummary) -> Arc<Table> {
        let pieces: Vec<_> = summary.pieces.iter().map(|p| self.open_file(p.number)).collect();
        Table::with_pieces(self.open_file(number), &pieces, number.is_multiple_of(2)).unwrap()
    }

    /// The model's keys in the comparator's order.
    fn in_order<'a>(&self, model: &'a Model) -> Vec<(&'a Vec<u8>, &'a Versions)> {
        let mut all: Vec<_> = model.0.iter().collect();
        if self.reverse {
            all.reverse();
        }
        all
    }

    fn entries(&self, model: &Model) -> Vec<(Vec<u8>, Vec<u8>)> {
        let all = self.in_order(model).into_iter();
        let of = |(k, versions): (&Vec<u8>, &Versions)| {
            let k = k.clone();
            versions.clone().into_iter().map(move |(s, t, v)| (InternalKey::new(&k, s, t).as_bytes().to_vec(), v))
        };
        all.flat_map(of).collect()
    }
}

fn random_key(rng: &mut fastrand::Rng) -> Vec<u8> {
    format!("key{:04}", rng.u32(0..300)).into_bytes()
}

fn random_versions(rng: &mut fastrand::Rng, seq: &mut u64) -> Versions {
    let count = if rng.u8(0..4) == 0 { rng.u64(2..6) } else { 1 };
    *seq += count;
    let one = |i| {
        let t = *rng.choice(&[ValueType::Value, ValueType::Value, ValueType::Deletion, ValueType::Merge]).unwrap();
        let value = if t == ValueType::Deletion { Vec::new() } else { vec![rng.u8(b'a'..=b'z'); rng.usize(0..200)] };
        (*seq - i, t, value)
    };
    (0..count).map(one).collect()
}

/// Compacts a base table with newer versions of some keys; an empty list deletes a key.
fn compact(
    world: &World,
    base: (u64, &Arc<Table>),
    delta: &BTreeMap<Vec<u8>, Versions>,
    number: u64,
    rng: &mut fastrand::Rng,
    range: (Option<&[u8]>, Option<&[u8]>),
) -> Option<TableSummary> {
    let all = base.1.kept_pieces(base.0);
    let mut pieces: Vec<KeptPiece> = all.iter().filter(|_| world.keeps_all || rng.u8(0..5) > 0).cloned().collect();
    pieces.sort_by_key(|p| std::cmp::Reverse(p.number));
    let place = |i: usize| pieces.iter().position(|p| p.number == all[i].number).map(|at| at as u32);
    let mut builder = world.builder(number, pieces.clone());
    let mut scan = base.1.scan_keeping(&StreamReads::unpaced(rng.usize(0..10_000), true), &place);
    match range.0 {
        Some(begin) => scan.seek(InternalKey::min_possible(begin).as_bytes()),
        None => scan.seek_to_first(),
    }
    let mut delta: Vec<_> = delta.iter().collect();
    if world.reverse {
        delta.reverse();
    }
    let cmp = &world.cmp;
    let is_in = |k: &[u8]| {
        range.0.is_none_or(|b| cmp.compare_user(k, b).is_ge()) && range.1.is_none_or(|e| cmp.compare_user(k, e).is_lt())
    };
    let mut delta = delta.into_iter().filter(|(k, _)| is_in(k)).peekable();
    let mut any = false;
    loop {
        let here = scan.valid().then(|| key::user_key(scan.key()).to_vec()).filter(|k| range.1.is_none() || is_in(k));
        let next = delta.peek().map(|(k, _)| (*k).clone());
        let user_key = match (here.clone(), next.clone()) {
            (None, None) => break,
            (Some(a), Some(b)) => {
                if cmp.compare_user(&a, &b).is_le() {
                    a
                } else {
                    b
                }
            }
            (a, b) => a.or(b).unwrap(),
        };
        let newer = if next.as_ref() == Some(&user_key) { delta.next().map(|(_, v)| v) } else { None };
        if let Some(versions) = newer {
            for (seq, t, value) in versions {
                builder.add(InternalKey::new(&user_key, *seq, *t).as_bytes(), value).unwrap();
                any = true;
            }
        }
        let mut leaves = Leaves::Nothing;
        let mut survives = newer.is_some_and(|v| !v.is_empty());
        while scan.valid() && key::user_key(scan.key()) == user_key {
            leaves = if scan.leaves() == Leaves::Nothing { leaves } else { scan.leaves() };
            let placeholder = key::tag(scan.key()) as u8 == ValueType::Placeholder as u8;
            if newer.is_none() && !placeholder {
                survives = true;
                any = true;
                assert_eq!(scan.value_len(), scan.value().len());
                let origin = scan.origin().filter(|o| o.alone && (world.keeps_all || rng.u8(0..8) > 0));
                if !origin.is_some_and(|o| builder.keep(scan.key(), scan.value_len(), o).unwrap()) {
                    builder.add(scan.key(), scan.value()).unwrap();
                }
            }
            scan.next();
        }
        if !survives && any {
            match leaves {
                Leaves::Nothing => {}
                Leaves::Entries => builder.gone(&user_key, None),
                Leaves::Placeholder(piece) => builder.gone(&user_key, Some(piece)),
            }
        }
    }
    scan.status().unwrap();
    any.then(|| builder.finish().unwrap())
}

fn same(found: &[(Vec<u8>, Vec<u8>)], expected: &[(Vec<u8>, Vec<u8>)]) {
    let at = found.iter().zip(expected).position(|(a, b)| a != b).unwrap_or(found.len().min(expected.len()));
    let show = |list: &[(Vec<u8>, Vec<u8>)]| {
        list.get(at).map(|e| key::ParsedInternalKey::parse(&e.0).map(|k| format!("{k:?}")))
    };
    let (found_at, expected_at) = (show(found), show(expected));
    assert!(
        found == expected,
        "{} of {}, at {at}: {found_at:?}, expected {expected_at:?}",
        found.len(),
        expected.len()
    );
}

fn check(world: &World, table: &Arc<Table>, model: &Model, seq: u64, rng: &mut fastrand::Rng) {
    let expected = world.entries(model);
    let cmp = &world.cmp;
    let ro = TableReadOptions { fill_cache: rng.bool(), ..TableReadOptions::default() };
    let mut iter = table.iter(ro);
    let mut found = Vec::new();
    iter.seek_to_first();
    while iter.valid() {
        found.push((iter.key().to_vec(), iter.value().to_vec()));
        iter.next();
    }
    iter.status().unwrap();
    same(&found, &expected);
    found.clear();
    iter.seek_to_last();
    while iter.valid() {
        found.push((iter.key().to_vec(), iter.value().to_vec()));
        iter.prev();
    }
    found.reverse();
    same(&found, &expected);

    for _ in 0..60 {
        let target = InternalKey::new(&random_key(rng), rng.u64(0..seq + 2), VALUE_TYPE_FOR_SEEK);
        let at = expected.partition_point(|e| cmp.compare(&e.0, target.as_bytes()).is_lt());
        let mut at = at as i64;
        match rng.bool() {
            true => iter.seek(target.as_bytes()),
            false => {
                iter.seek_for_prev(target.as_bytes());
                at -= i64::from(expected.get(at as usize).is_none_or(|e| e.0 != target.as_bytes()));
            }
        }
        for _ in 0..rng.u8(0..8) {
            let entry = usize::try_from(at).ok().and_then(|at| expected.get(at));
            assert_eq!(iter.valid().then(|| iter.key()), entry.map(|e| &e.0[..]));
            if !iter.valid() {
                break;
            }
            assert_eq!(iter.value(), entry.unwrap().1);
            let back = rng.bool();
            if back {
                iter.prev()
            } else {
                iter.next()
            }
            at += if back { -1 } else { 1 };
        }
        iter.status().unwrap();
    }

    for i in 0..320u32 {
        let user_key = format!("key{i:04}").into_bytes();
        let snapshot = if rng.bool() { MAX_SEQUENCE } else { rng.u64(0..seq + 2) };
        let mut ctx = GetContext::new(&user_key);
        table.get(InternalKey::new(&user_key, snapshot, VALUE_TYPE_FOR_SEEK).as_bytes(), ro, &mut ctx).unwrap();
        let none = Versions::new();
        let seen = model.0.get(&user_key).unwrap_or(&none).iter().filter(|v| v.0 <= snapshot);
        let mut operands = 0;
        let mut decided = None;
        for (_, t, value) in seen {
            if *t == ValueType::Merge {
                operands += 1;
                continue;
            }
            decided = Some((*t, value.clone()));
            break;
        }
        match (&ctx.state, operands, &decided) {
            (GetState::NotFound, 0, None) | (GetState::Deleted, 0, Some((ValueType::Deletion, _))) => {}
            (GetState::Found(v), 0, Some((ValueType::Value, value))) => assert_eq!(v.as_slice(), value),
            (GetState::Merge(ops), n, None) => assert_eq!(ops.len(), n),
            (GetState::MergeDone(ops, base), n, Some((t, value))) => {
                assert_eq!(ops.len(), n);
                assert_eq!(base.as_ref().map(|b| b.as_slice()), (*t == ValueType::Value).then_some(&value[..]));
            }
            other => panic!("key {i} at {snapshot}: {other:?}"),
        }
    }
    table.verify().unwrap();
    assert_eq!(table.point_entries().map(|r| *r.start()), Some(expected.len() as u64).filter(|&n| n > 0));
}

#[test]
fn generations_of_compactions_keep_what_a_plain_map_has() {
    let mut shared = 0;
    for seed in 0..150 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut world = World::new(&mut rng);
        let (mut model, mut seq, mut number) = (Model::default(), 0, 10);
        // A base table of one file, perhaps of the other table kind.
        world.tph = rng.u8(0..4) > 0;
        for _ in 0..rng.usize(1..300) {
            model.0.insert(random_key(&mut rng), random_versions(&mut rng, &mut seq));
        }
        let mut builder = world.builder(number, Vec::new());
        world.entries(&model).iter().for_each(|(k, v)| builder.add(k, v).unwrap());
        let mut summary = builder.finish().unwrap();
        world.tph = true;
        let mut table = world.open(number, &summary);
        check(&world, &table, &model, seq, &mut rng);
        for _ in 0..rng.usize(1..9) {
            let mut delta = BTreeMap::new();
            for _ in 0..rng.usize(0..60) {
                let versions = if rng.u8(0..3) == 0 { Versions::new() } else { random_versions(&mut rng, &mut seq) };
                delta.insert(random_key(&mut rng), versions);
            }
            // Now and then the table is split, as at the end of an output.
            let cut = (rng.u8(0..4) == 0).then(|| random_key(&mut rng));
            let upper = rng.bool();
            let range = match (&cut, upper) {
                (None, _) => (None, None),
                (Some(cut), true) => (Some(&cut[..]), None),
                (Some(cut), false) => (None, Some(&cut[..])),
            };
            let next = compact(&world, (number, &table), &delta, number + 1, &mut rng, range);
            for (k, versions) in delta {
                match versions.is_empty() {
                    true => model.0.remove(&k),
                    false => model.0.insert(k, versions),
                };
            }
            if let Some(cut) = &cut {
                let cmp = &world.cmp;
                model.0.retain(|k, _| cmp.compare_user(k, cut).is_ge() == upper);
            }
            number += 1;
            let Some(next) = next else { break };
            summary = next;
            shared += summary.pieces.len();
            table = world.open(number, &summary);
            check(&world, &table, &model, seq, &mut rng);
            let numbers: Vec<_> = summary.pieces.iter().map(|p| p.number).collect();
            assert!(numbers.is_sorted_by(|a, b| a > b), "{numbers:?}");
        }
    }
    assert!(shared > 500, "only {shared} files stayed in all");
}

/// So many files that the last ones share one bit in a step's record of visited files.
#[test]
fn a_table_of_a_hundred_files_keeps_what_a_plain_map_has() {
    for seed in 0..3 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut world = World { keeps_all: true, piece_limit: 100, ..World::new(&mut rng) };
        let (mut model, mut seq, mut number) = (Model::default(), 0, 10);
        // A base table of one file, perhaps of the other table kind.
        world.tph = rng.bool();
        (0..300).for_each(|i| drop(model.0.insert(key_of(i), random_versions(&mut rng, &mut seq))));
        let mut builder = world.builder(number, Vec::new());
        world.entries(&model).iter().for_each(|(k, v)| builder.add(k, v).unwrap());
        world.tph = true;
        let mut table = world.open(number, &builder.finish().unwrap());
        let (mut most, mut placeholders) = (0, 0);
        for generation in 0..160 {
            let mut delta = BTreeMap::new();
            for _ in 0..rng.usize(1..12) {
                let versions = if rng.u8(0..3) == 0 { Versions::new() } else { random_versions(&mut rng, &mut seq) };
                delta.insert(random_key(&mut rng), versions);
            }
            let next = compact(&world, (number, &table), &delta, number + 1, &mut rng, (None, None)).unwrap();
            for (k, versions) in delta {
                placeholders += u32::from(versions.is_empty());
                match versions.is_empty() {
                    true => model.0.remove(&k),
                    false => model.0.insert(k, versions),
                };
            }
            number += 1;
            table = world.open(number, &next);
            most = most.max(next.pieces.len());
            assert!(next.pieces.len() < 100);
            if generation % 16 == 15 {
                check(&world, &table, &model, seq, &mut rng);
            }
        }
        assert!(most > 80 && placeholders > 100, "{most} further files, {placeholders} deletions");
    }
}

#[test]
fn a_table_is_refused_without_its_files_and_with_others() {
    let mut rng = fastrand::Rng::with_seed(7);
    let world = World { reverse: false, cmp: InternalKeyComparator::default(), ..World::new(&mut rng) };
    let mut seq = 0;
    let model =
        Model((0..200u32).map(|i| (format!("key{i:04}").into_bytes(), random_versions(&mut rng, &mut seq))).collect());
    let mut builder = world.builder(10, Vec::new());
    world.entries(&model).iter().for_each(|(k, v)| builder.add(k, v).unwrap());
    let summary = builder.finish().unwrap();
    let base = world.open(10, &summary);
    let mut next = None;
    for seed in 0..50 {
        let delta = [(b"key0100".to_vec(), vec![(seq + 1, ValueType::Value, b"new".to_vec())])].into();
        next = compact(&world, (10, &base), &delta, 11, &mut fastrand::Rng::with_seed(seed), (None, None));
        if next.as_ref().is_some_and(|s| !s.pieces.is_empty()) {
            break;
        }
    }
    let next = next.unwrap();
    assert_eq!(next.pieces.len(), 1);
    let refused = Table::with_pieces(world.open_file(11), &[], false).unwrap_err().to_string();
    assert!(refused.contains("lists 1 further files, and the table is opened with 0"), "{refused}");
    let other = world.open_file(11);
    let refused = Table::with_pieces(world.open_file(11), &[other], false).unwrap_err().to_string();
    assert!(refused.contains("where the table's head lists file 10"), "{refused}");
    let refused = Table::with_pieces(world.open_file(10), &[world.open_file(11)], false).unwrap_err().to_string();
    assert!(refused.contains("lists 0 further files, and the table is opened with 1"), "{refused}");
}

/// A table of the files 10 to 15: each has a sixth of all keys, and 10 older entries of the others.
fn table_of_files(world: &World) -> (Arc<Table>, Model) {
    let mut model = Model((0..300).map(|i| (key_of(i), vec![(1, ValueType::Value, vec![b'a'; 40])])).collect());
    let mut builder = world.builder(10, Vec::new());
    world.entries(&model).iter().for_each(|(k, v)| builder.add(k, v).unwrap());
    let mut table = world.open(10, &builder.finish().unwrap());
    for number in 11..16 {
        let version = vec![(number, ValueType::Value, vec![b'a' + number as u8; 40])];
        let delta: BTreeMap<_, _> = (0..50).map(|i| (key_of(i * 6 + number % 6), version.clone())).collect();
        let rng = &mut fastrand::Rng::with_seed(number);
        let summary = compact(world, (number - 1, &table), &delta, number, rng, (None, None)).unwrap();
        assert_eq!(summary.pieces.len() as u64, number - 10);
        model.0.extend(delta);
        table = world.open(number, &summary);
    }
    (table, model)
}

fn key_of(i: u64) -> Vec<u8> {
    format!("key{i:04}").into_bytes()
}

fn world_of_files() -> World {
    let mut world = World::new(&mut fastrand::Rng::with_seed(2));
    (world.reverse, world.cmp) = (false, InternalKeyComparator::default());
    world.settings = BlockBasedSettings { block_size: 200, ..BlockBasedSettings::default() };
    (world.compression, world.cache, world.keeps_all) = (CompressionType::None, None, true);
    world.readahead.max = 0;
    world
}

#[test]
fn the_first_read_of_each_file_takes_what_a_short_scan_needs() {
    let mut world = world_of_files();
    let reads = |world: &World| {
        let (table, _) = table_of_files(world);
        let before = world.fs.calls_of(OpKind::ReadAt);
        let mut iter = table.iter(TableReadOptions::default());
        iter.seek(InternalKey::new(&key_of(100), MAX_SEQUENCE, VALUE_TYPE_FOR_SEEK).as_bytes());
        (0..30).for_each(|_| iter.next());
        assert!(iter.valid());
        world.fs.calls_of(OpKind::ReadAt) - before
    };
    assert!(reads(&world) > 18);
    world.readahead = AutoReadahead::default();
    // Reads the index of each file, and one part of its data.
    assert_eq!(reads(&world), 12);
}

#[test]
fn a_read_that_fails_ends_a_scan_until_the_next_seek() {
    let world = world_of_files();
    let (table, model) = table_of_files(&world);
    let expected = world.entries(&model);
    for backward in [false, true] {
        let mut failures = 0;
        for fails_at in 0.. {
            let mut iter = table.iter(TableReadOptions::default());
            let target = InternalKey::new(&key_of(100), MAX_SEQUENCE, VALUE_TYPE_FOR_SEEK);
            let walk = |iter: &mut Box<dyn InternalIterator>| {
                let (mut at, mut seen) = (100, 0);
                if backward {
                    at = 99;
                    iter.seek_for_prev(target.as_bytes());
                } else {
                    iter.seek(target.as_bytes());
                }
                while iter.valid() && seen < 30 {
                    assert_eq!((iter.key(), iter.value()), (&expected[at].0[..], &expected[at].1[..]));
                    if backward {
                        at -= 1;
                        iter.prev();
                    } else {
                        at += 1;
                        iter.next();
                    }
                    seen += 1;
                }
                seen
            };
            world.fs.fail_once_after(fails_at, 5);
            let seen = walk(&mut iter);
            world.fs.clear_fault();
            if iter.status().is_ok() {
                assert_eq!(seen, 30);
                break;
            }
            failures += 1;
            let error = iter.status().unwrap_err().to_string();
            assert!(seen < 31 && !iter.valid() && error.contains(".sst: reading"), "{seen}: {error}");
            iter.next();
            iter.prev();
            assert!(!iter.valid() && iter.status().is_err());
            assert_eq!(walk(&mut iter), 30);
            iter.status().unwrap();
        }
        assert!(failures > 12, "{failures}");
    }
}

/// Two 16-byte keys with the same XXH3 hash for this seed. The hash is computed from the sum of both halves of the key,
/// one with its bytes reversed, and their product, which is 0 if one half is 0.
fn keys_of_one_hash(number: u64, n: u64) -> [Vec<u8>; 2] {
    let seed = rockmill_phash::hash_key(b"test-db", number);
    // From XXH3's secret: the numbers at bytes 24, 32, 40 and 48.
    let flips = [0x1f67_b3b7_a4a4_4072 ^ 0x78e5_c0cc_4ee6_79cb_u64, 0x2172_ffcc_7dd0_5a82 ^ 0x8e24_43f7_7446_08b8_u64];
    let (low, high) = (flips[0].wrapping_add(seed), flips[1].wrapping_sub(seed));
    let key = |a: u64, b: u64| [a.to_le_bytes(), b.to_le_bytes()].concat();
    let keys = [key(low, n ^ high), key(n.swap_bytes() ^ low, high)];
    let [a, b] = keys.each_ref().map(|key| rockmill_phash::hash_key(key, seed));
    assert_eq!(a, b, "XXH3 is another function than this test knows");
    keys
}

/// Different keys with equal hashes occur once in 37 million tables. Lookups must be right nevertheless, with a
/// function.
#[test]
fn different_keys_with_one_hash_are_found() {
    for pairs in [1u64, 2, 40] {
        let mut rng = fastrand::Rng::with_seed(pairs);
        let mut world = World { reverse: false, cmp: InternalKeyComparator::default(), ..World::new(&mut rng) };
        world.settings.block_size = 100;
        let chosen: Vec<[Vec<u8>; 2]> = (1..=pairs).map(|n| keys_of_one_hash(11, n)).collect();
        // The second key of each pair is absent at first, then added; then the first one is deleted.
        let base: Model = Model(
            (0..200u32)
                .map(|i| format!("key{i:04}").into_bytes())
                .chain(chosen.iter().map(|pair| pair[0].clone()))
                .map(|key| (key, vec![(1, ValueType::Value, b"old".to_vec())]))
                .collect(),
        );
        let mut builder = world.builder(10, Vec::new());
        world.entries(&base).iter().for_each(|(k, v)| builder.add(k, v).unwrap());
        let table = world.open(10, &builder.finish().unwrap());
        let mut next = base.clone();
        let mut delta = BTreeMap::new();
        for pair in &chosen {
            delta.insert(pair[1].clone(), vec![(2, ValueType::Value, b"new".to_vec())]);
        }
        next.0.extend(delta.clone());
        let summary = compact(&world, (10, &table), &delta, 11, &mut rng, (None, None)).unwrap();
        let table = world.open(11, &summary);
        let tph = table.as_tph().unwrap();
        let finder = tph.finder(false).unwrap().expect("a function, though hashes are equal");
        let found = |key: &[u8]| finder.find(finder.hash(key));
        assert!(chosen.iter().flatten().all(|key| found(key) == Some(tph.head.blocks())));
        let alone = |i: u32| found(format!("key{i:04}").as_bytes()).is_some_and(|block| block < tph.head.blocks());
        assert!((0..200).all(alone));
        check(&world, &table, &next, 2, &mut rng);
        for key in chosen.iter().flatten() {
            let mut ctx = GetContext::new(key);
            let ro = TableReadOptions::default();
            table.get(InternalKey::new(key, 9, VALUE_TYPE_FOR_SEEK).as_bytes(), ro, &mut ctx).unwrap();
            assert!(matches!(&ctx.state, GetState::Found(v) if v.as_slice() == next.0[key][0].2), "{:?}", ctx.state);
        }
        // One of the two keys is gone. The file has another number and thus another seed, so this is an ordinary table
        // again.
        let gone: BTreeMap<_, _> = chosen.iter().map(|pair| (pair[0].clone(), Versions::new())).collect();
        gone.keys().for_each(|key| drop(next.0.remove(key)));
        let summary = compact(&world, (11, &table), &gone, 12, &mut rng, (None, None)).unwrap();
        check(&world, &world.open(12, &summary), &next, 2, &mut rng);
    }
}

/// One key with this hash exists, the other is deleted.
#[test]
fn a_key_that_is_gone_may_share_its_hash() {
    let mut rng = fastrand::Rng::with_seed(8);
    let world = World { reverse: false, cmp: InternalKeyComparator::default(), ..World::new(&mut rng) };
    for gone in 0..2 {
        let pair = keys_of_one_hash(11, 77);
        let mut model = Model::default();
        for key in pair.iter().cloned().chain([Vec::from(*b"\0"), vec![255; 20]]) {
            model.0.insert(key, vec![(1, ValueType::Value, b"v".to_vec())]);
        }
        let mut builder = world.builder(10, Vec::new());
        world.entries(&model).iter().for_each(|(k, v)| builder.add(k, v).unwrap());
        let table = world.open(10, &builder.finish().unwrap());
        let delta: BTreeMap<_, _> = [(pair[gone].clone(), Versions::new())].into();
        model.0.remove(&pair[gone]);
        for seed in 0..20 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let summary = compact(&world, (10, &table), &delta, 11, &mut rng, (None, None)).unwrap();
            let next = world.open(11, &summary);
            check(&world, &next, &model, 1, &mut rng);
            for (key, there) in [(&pair[gone], false), (&pair[1 - gone], true)] {
                let mut ctx = GetContext::new(key);
                let ro = TableReadOptions::default();
                next.get(InternalKey::new(key, 9, VALUE_TYPE_FOR_SEEK).as_bytes(), ro, &mut ctx).unwrap();
                assert_eq!(matches!(ctx.state, GetState::Found(_)), there, "{:?}", ctx.state);
            }
        }
    }
}

/// A file that counts how often its end, where the footer is, is read.
#[derive(Debug)]
struct Counted(Arc<dyn RandomAccessFile>, AtomicUsize);

impl RandomAccessFile for Counted {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<usize> {
        let is_end = offset + buf.len() as u64 == self.size();
        self.1.fetch_add(usize::from(is_end), Ordering::Relaxed);
        self.0.read_at(offset, buf)
    }
    fn size(&self) -> u64 {
        self.0.size()
    }
    fn prefetch(&self, _: u64, _: u64) {}
    fn is_direct(&self) -> bool {
        false
    }
}

#[test]
fn a_file_tells_of_its_table_in_one_read_of_its_end() {
    let mut rng = fastrand::Rng::with_seed(5);
    let world = World { reverse: false, cmp: InternalKeyComparator::default(), ..World::new(&mut rng) };
    let mut builder = world.builder(10, Vec::new());
    for i in 0..200u32 {
        let key = InternalKey::new(format!("key{i:04}").as_bytes(), 1, ValueType::Value);
        builder.add(key.as_bytes(), b"value").unwrap();
    }
    let base = world.open(10, &builder.finish().unwrap());
    let mut builder = world.builder(11, base.kept_pieces(10));
    let mut scan = base.scan_keeping(&StreamReads::unpaced(0, true), &|file| u32::try_from(file).ok());
    scan.seek_to_first();
    while scan.valid() {
        assert!(builder.keep(scan.key(), scan.value_len(), scan.origin().unwrap()).unwrap());
        scan.next();
    }
    builder.finish().unwrap();
    let file = world.fs.open_random(&World::path(11), false).unwrap();
    let file = Arc::new(Counted(file, AtomicUsize::new(0)));
    let OwnFile { properties, pieces, .. } = told_by_own_file(Arc::clone(&file) as _, &World::path(11)).unwrap();
    assert_eq!(pieces.iter().map(|p| p.number).collect::<Vec<_>>(), [10]);
    assert_eq!(properties.num_entries, 200, "of all files");
    assert_eq!(file.1.load(Ordering::Relaxed), 1);
}

/// Two tables that were once one share a file. One of them keeps a placeholder in it, which takes the file's place in
/// the list. So an entry that the other one could keep there is rewritten.
#[test]
fn a_file_is_listed_once_where_a_placeholder_of_it_is_kept_first() {
    let mut rng = fastrand::Rng::with_seed(7);
    let world = World { reverse: false, cmp: InternalKeyComparator::default(), ..World::new(&mut rng) };
    let mut builder = world.builder(20, Vec::new());
    for i in 0..200u32 {
        let key = InternalKey::new(format!("key{i:04}").as_bytes(), 1, ValueType::Value);
        builder.add(key.as_bytes(), b"value").unwrap();
    }
    let base = world.open(20, &builder.finish().unwrap());
    let both = [base.kept_pieces(20), base.kept_pieces(20)].concat();
    let mut builder = world.builder(21, both);
    builder.gone(b"key0003", Some(0));
    let mut scan = base.scan_keeping(&StreamReads::unpaced(0, true), &|_| Some(1));
    scan.seek_to_first();
    (0..100).for_each(|_| scan.next());
    assert!(!builder.keep(scan.key(), scan.value_len(), scan.origin().unwrap()).unwrap(), "the file is used already");
    builder.add(scan.key(), b"value").unwrap();
    let summary = builder.finish().unwrap();
    assert_eq!(summary.pieces.iter().map(|p| p.number).collect::<Vec<_>>(), [20]);
}

/// All memory that a table needs to find its keys: at most four bytes per key.
#[test]
fn a_key_takes_less_than_four_bytes_of_memory() {
    for (keys, value_len, most) in [(100_000u32, 128, 3.4), (30_000, 1000, 4.0)] {
        let mut world = World::new(&mut fastrand::Rng::with_seed(1));
        world.cmp = InternalKeyComparator::default();
        world.settings = BlockBasedSettings::default();
        world.compression = CompressionType::None;
        let mut builder = world.builder(10, Vec::new());
        let value = vec![b'v'; value_len];
        for i in 0..keys {
            builder
                .add(InternalKey::new(format!("user{i:016}").as_bytes(), 0, ValueType::Value).as_bytes(), &value)
                .unwrap();
        }
        let summary = builder.finish().unwrap();
        let (live, bytes) = world.open(10, &summary).as_tph().unwrap().index_memory();
        let each = bytes as f64 / f64::from(keys);
        println!("{keys} keys, values of {value_len} bytes: {each:.2} bytes a key");
        assert!(live == u64::from(keys) && each < most, "{each}");
    }
}

/// The checksums are right, but the head's contents are not.
#[test]
fn a_check_finds_a_head_that_is_wrong() {
    let world = World {
        reverse: false,
        cmp: InternalKeyComparator::default(),
        settings: BlockBasedSettings { block_size: 100, ..BlockBasedSettings::default() },
        ..World::new(&mut fastrand::Rng::with_seed(3))
    };
    let table = |number: u64, step: u32| {
        let mut builder = world.builder(number, Vec::new());
        for i in 0..200 * step {
            if i % step == 0 {
                builder
                    .add(InternalKey::new(format!("key{i:04}").as_bytes(), 1, ValueType::Value).as_bytes(), b"v")
                    .unwrap();
            }
        }
        builder.finish().unwrap();
        TphTable::new(&world.open_file(number), &[], false).unwrap().unwrap()
    };
    let (mut one, mut other) = (table(10, 1), table(11, 3));
    one.verify().unwrap();
    std::mem::swap(&mut one.held, &mut other.held);
    let wrong = one.verify().unwrap_err().to_string();
    assert!(wrong.contains("is not where the function says"), "{wrong}");
    std::mem::swap(&mut one.held, &mut other.held);
    one.head.totals.entries += 1;
    let wrong = one.verify().unwrap_err().to_string();
    assert!(wrong.contains("the head counts 201 entries of 200 user keys, the files have 200 of 200"), "{wrong}");
}

/// With enough keys for a function of several segments.
#[test]
fn a_function_is_the_same_whoever_builds_it_and_none_is_built_after_a_stop() {
    let mut world = World::new(&mut fastrand::Rng::with_seed(1));
    world.cmp = InternalKeyComparator::default();
    world.settings = BlockBasedSettings::default();
    world.compression = CompressionType::None;
    let build = |help: Option<&Help>, stop: &(dyn Fn() -> bool + Sync)| {
        let mut builder = world.builder(7, Vec::new());
        builder.set_help(help);
        for n in 0..200_000u32 {
            builder.add(InternalKey::new(&n.to_be_bytes(), 1, ValueType::Value).as_bytes(), &[])?;
        }
        let (_, file) = builder.finish_without_waiting(stop)?;
        file.wait()?;
        Ok::<_, Error>(world.fs.read_to_vec(&World::path(7)).unwrap())
    };
    let helpers = Arc::new(Helpers::default());
    let help = helpers.help(3).unwrap();
    let alone = build(None, &|| false).unwrap();
    assert!(build(Some(&help), &|| false).unwrap() == alone, "threads write other bytes");
    assert!(help.micros() > 0, "nobody helped");
    for help in [None, Some(&help)] {
        for stop_at in 0..3 {
            let looks = AtomicUsize::new(0);
            let stopped = build(help, &|| looks.fetch_add(1, Ordering::Relaxed) >= stop_at);
            assert_eq!(stopped.unwrap_err().kind(), ErrorKind::ShutdownInProgress);
        }
    }
}

/// The block cache has room for one copy of the function. Concurrent lookups wait for the one that reads it, instead of
/// each reserving room.
#[test]
fn lookups_that_come_at_once_need_room_for_one_function() {
    let mut rng = fastrand::Rng::with_seed(1);
    let (cmp, settings) = (InternalKeyComparator::default(), BlockBasedSettings::default());
    let mut world = World { reverse: false, cmp, settings, ..World::new(&mut rng) };
    let mut builder = world.builder(2, Vec::new());
    let key = |i: usize| InternalKey::new(format!("{i:08}").as_bytes(), 5, ValueType::Value);
    (0..60_000).for_each(|i| builder.add(key(i).as_bytes(), b"").unwrap());
    let summary = builder.finish().unwrap();
    world.cache = None;
    let function = world.open(2, &summary).as_tph().unwrap().index_memory().1 as usize;
    let capacity = 4 << 20;
    let options =
        LruCacheOptions { capacity, num_shard_bits: 0, strict_capacity_limit: true, ..LruCacheOptions::default() };
    for round in 0..30 {
        let cache = BlockCache::with_options(&options);
        world.cache = Some(Arc::clone(&cache));
        let _always = cache.reserve(capacity - function - function / 2);
        let at_first = cache.reserve(function + function / 2);
        let table = world.open(2, &summary);
        assert!(
            at_first.is_some() && table.as_tph().unwrap().index_memory().1 < function as u64,
            "it holds no function yet"
        );
        drop(at_first);
        let begin = std::sync::Barrier::new(6);
        std::thread::scope(|s| {
            for thread in 0..6 {
                let (table, begin, key) = (&table, &begin, &key);
                s.spawn(move || {
                    let key = key(thread * 10_000 + round);
                    let mut ctx = GetContext::new(key::user_key(key.as_bytes()));
                    begin.wait();
                    table.get(key.as_bytes(), TableReadOptions::default(), &mut ctx).unwrap();
                    assert!(ctx.is_done());
                });
            }
        });
        assert_eq!(table.as_tph().unwrap().index_memory().1, function as u64);
        assert!(cache.usage() <= capacity as u64);
    }
}
