//! Lookups that keep rows in the cache instead of blocks.

use super::*;
use crate::table::cache::{block_charge, row_charge};

/// A cache that keeps rows.
fn cache_of_rows(capacity: usize) -> Arc<BlockCache> {
    let cache = BlockCache::new(capacity);
    cache.row_choice().force_rows();
    cache
}

#[test]
fn lookups_are_the_same_with_rows() {
    let (mut found_again, mut held) = (0, 0);
    for seed in 0..80 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let cmp = order_of(seed);
        let o = random_options(&mut rng, cmp.clone());
        let count = *rng.choice(&[1, 30, 300]).unwrap();
        let entries = random_entries(&mut rng, count, &cmp);
        println!("seed {seed}: {} entries, {o:?}", entries.len());
        let fs = MemFileSystem::new();
        build(&fs, &o, &entries, &Vec::new());
        // A small one evicts rows, too.
        let cache = cache_of_rows(*rng.choice(&[32 << 10, 4 << 20]).unwrap());
        let table = open_at(&fs, &o.path, &cmp, Some(Arc::clone(&cache))).unwrap();
        for _ in 0..600 {
            let ro = TableReadOptions { fill_cache: rng.u8(0..10) > 0, ..TableReadOptions::default() };
            let user_key = match rng.u8(0..4) {
                0 => random_user_key(&mut rng),
                _ => key::user_key(&entries[rng.usize(..entries.len())].0).to_vec(),
            };
            if rng.u8(0..50) == 0 {
                // Steps put blocks into the cache.
                let mut iter = table.iter(ro);
                iter.seek(InternalKey::min_possible(&user_key).as_bytes());
            }
            for seq in [rng.u64(0..200), MAX_SEQUENCE] {
                let expected = model_get(&entries, &Vec::new(), &cmp, &user_key, seq);
                assert_eq!(table_get(&table, ro, &user_key, seq), expected, "get {user_key:?} at {seq}");
            }
        }
        held += cache.rows_held();
        found_again += cache.stats().hits;
        let stats = cache.stats();
        assert!(stats.usage <= stats.capacity, "{stats:?}");
    }
    assert!(found_again > 10_000 && held > 200, "{found_again} of 96,000 lookups, {held} rows");
}

/// Values of 100 bytes in blocks of 4 KiB.
fn table_of_rows(cache: &Arc<BlockCache>, keys: u64) -> (CountingFileSystem, Arc<Table>) {
    let fs = CountingFileSystem::new(Arc::new(MemFileSystem::new()));
    let o = options(InternalKeyComparator::default());
    let entry = |n: u64| {
        let key = InternalKey::new(format!("{n:08}").as_bytes(), n + 1, ValueType::Value);
        (key.as_bytes().to_vec(), vec![b'v'; 100])
    };
    build(&fs, &o, &(0..keys).map(entry).collect(), &Vec::new());
    let table = open_at(&fs, &o.path, &InternalKeyComparator::default(), Some(Arc::clone(cache))).unwrap();
    (fs, table)
}

#[test]
fn a_row_takes_the_bytes_of_its_entry_and_answers_alone() {
    let cache = cache_of_rows(1 << 20);
    let (fs, table) = table_of_rows(&cache, 1_000);
    let ro = TableReadOptions::default();
    let get = |n: u64| {
        let before = fs.counts();
        let (_, value) = table_get(&table, ro, format!("{n:08}").as_bytes(), MAX_SEQUENCE);
        assert_eq!(value, Some(Some(vec![b'v'; 100])), "{n}");
        (fs.counts() - before).reads
    };
    // One row in each block: in some the first, in others a middle one or the last.
    let some = || (0..1_000).step_by(40);
    assert_eq!(some().map(get).sum::<u64>(), 25);
    assert_eq!(cache.usage(), 25 * row_charge(8 + 8 + 100) as u64);
    assert_eq!(cache.rows_held(), 25);
    assert_eq!(some().map(get).sum::<u64>(), 0);
    assert_eq!((cache.stats().hits, cache.stats().misses), (25, 25));
    // Neighbouring rows are read, and also kept.
    assert_eq!(some().map(|n| get(n + 1)).sum::<u64>(), 25);
    assert_eq!(cache.usage(), 50 * row_charge(8 + 8 + 100) as u64);
    // Each absent key costs a read; then the block answers.
    let lacks = |key: &str| table_get(&table, ro, key.as_bytes(), MAX_SEQUENCE).1.is_none();
    assert!(lacks("00000500a") && lacks("00000500a"));
    assert!(cache.usage() > 50 * row_charge(8 + 8 + 100) as u64 + block_charge(4_000) as u64);
    assert_eq!([499, 501].map(get).into_iter().min(), Some(0));
}

#[test]
fn what_a_value_points_into_is_in_the_cache() {
    let cache = cache_of_rows(64 << 10);
    let (_fs, table) = table_of_rows(&cache, 20_000);
    let mut held = Vec::new();
    let mut hold = |n: u64| -> crate::Result<()> {
        let user_key = format!("{n:08}");
        let mut ctx = GetContext::new(user_key.as_bytes());
        let ikey = InternalKey::new(user_key.as_bytes(), MAX_SEQUENCE, VALUE_TYPE_FOR_SEEK);
        table.get(ikey.as_bytes(), TableReadOptions::default(), &mut ctx)?;
        held.push(ctx.state);
        Ok(())
    };
    for n in 0..400 {
        hold(n * 40).unwrap();
    }
    assert_eq!(cache.pinned_usage(), 400 * row_charge(8 + 8 + 100) as u64);
    let mut strict = crate::Cache(Arc::clone(&cache));
    strict.set_strict_capacity_limit(true);
    assert_eq!(hold(17_000).unwrap_err().kind(), crate::ErrorKind::Aborted);
    drop(held);
    assert_eq!(cache.pinned_usage(), 0);
}

#[test]
fn a_row_of_another_key_or_block_answers_nothing() {
    let cache = cache_of_rows(1 << 20);
    let (_fs, table) = table_of_rows(&cache, 200);
    let (_, id) = blocks_of(&table).cache.as_ref().unwrap();
    let offset = blocks_of(&table).data_handles().unwrap()[0].offset;
    let get = |n: u64| table_get(&table, TableReadOptions::default(), format!("{n:08}").as_bytes(), MAX_SEQUENCE).1;
    let there = Some(Some(vec![b'v'; 100]));
    assert_eq!(get(1), there);
    let row = cache.get_row(*id, offset, b"00000001").unwrap();
    // As if all hashes were equal.
    for n in [0, 2, 150, 999] {
        for handle in blocks_of(&table).data_handles().unwrap() {
            cache.insert_row(*id, handle.offset, format!("{n:08}").as_bytes(), Arc::clone(&row)).unwrap();
        }
        assert_eq!(get(n), if n < 200 { there.clone() } else { None });
    }
    for handle in &blocks_of(&table).data_handles().unwrap()[1..] {
        cache.insert_row(*id, handle.offset, b"00000150", Arc::clone(&row)).unwrap();
    }
    assert_eq!(get(150), there);
}

#[test]
fn rows_of_an_ingested_table_have_its_sequence_number() {
    use rockmill_format::properties::{EXTERNAL_VERSION, GLOBAL_SEQNO};
    let mut o = options(InternalKeyComparator::default());
    o.properties.other.insert(EXTERNAL_VERSION.into(), 2u32.to_le_bytes().to_vec());
    o.properties.other.insert(GLOBAL_SEQNO.into(), 77u64.to_le_bytes().to_vec());
    let entry = |n: u64| {
        let key = InternalKey::new(format!("{n:08}").as_bytes(), 0, ValueType::Value);
        (key.as_bytes().to_vec(), vec![b'v'; 100])
    };
    let fs = MemFileSystem::new();
    build(&fs, &o, &(0..200).map(entry).collect(), &Vec::new());
    let cache = cache_of_rows(1 << 20);
    let table = open_at(&fs, &o.path, &InternalKeyComparator::default(), Some(Arc::clone(&cache))).unwrap();
    assert_eq!(table.global_seqno(), Some(77));
    for n in (0..200).chain(0..200) {
        let get = |seq| table_get(&table, TableReadOptions::default(), format!("{n:08}").as_bytes(), seq).1;
        for seq in [0, 76] {
            assert_eq!(get(seq), None, "{n} at {seq}");
        }
        for seq in [77, 78, MAX_SEQUENCE] {
            assert_eq!(get(seq), Some(Some(vec![b'v'; 100])), "{n} at {seq}");
        }
    }
    assert_eq!(cache.rows_held(), 200);
}

#[test]
fn damage_is_told_where_rows_are_kept() {
    let fs = MemFileSystem::new();
    let o = options(InternalKeyComparator::default());
    let entry = |n: u64| {
        let key = InternalKey::new(format!("{n:08}").as_bytes(), n + 1, ValueType::Value);
        (key.as_bytes().to_vec(), vec![b'v'; 100])
    };
    build(&fs, &o, &(0..100).map(entry).collect(), &Vec::new());
    let mut bytes = fs.read_to_vec(&o.path).unwrap();
    bytes[2_000] ^= 1;
    let mut file = fs.create(&o.path, WriteOptions::default()).unwrap();
    file.append(&bytes).unwrap();
    file.close().unwrap();
    let cache = cache_of_rows(1 << 20);
    let table = open_at(&fs, &o.path, &InternalKeyComparator::default(), Some(Arc::clone(&cache))).unwrap();
    let ikey = InternalKey::new(b"00000003", MAX_SEQUENCE, VALUE_TYPE_FOR_SEEK);
    for _ in 0..2 {
        let e = table.get(ikey.as_bytes(), TableReadOptions::default(), &mut GetContext::new(b"00000003"));
        assert_eq!(e.unwrap_err().kind(), crate::ErrorKind::Corruption);
    }
    let only = TableReadOptions { cache_only: true, ..TableReadOptions::default() };
    let e = table.get(ikey.as_bytes(), only, &mut GetContext::new(b"00000003"));
    assert_eq!((e.unwrap_err().kind(), cache.rows_held()), (crate::ErrorKind::Incomplete, 0));
    assert_eq!(
        table_get(&table, TableReadOptions::default(), b"00000099", MAX_SEQUENCE).1,
        Some(Some(vec![b'v'; 100]))
    );
    assert_eq!(table_get(&table, only, b"00000099", MAX_SEQUENCE).1, Some(Some(vec![b'v'; 100])));
}

#[test]
fn a_cache_changes_to_rows_by_itself() {
    let cache = BlockCache::with_options(&LruCacheOptions {
        capacity: 2 << 20,
        num_shard_bits: 0,
        ..LruCacheOptions::default()
    });
    let (fs, table) = table_of_rows(&cache, 100_000);
    let mut rng = fastrand::Rng::with_seed(1);
    let mut reads = |n: u32, of: &mut dyn FnMut(&mut fastrand::Rng) -> u64| {
        let before = fs.counts();
        for _ in 0..n {
            let key = of(&mut rng);
            table_get(&table, TableReadOptions::default(), format!("{key:08}").as_bytes(), MAX_SEQUENCE);
        }
        (fs.counts() - before).reads as f64 / f64::from(n)
    };
    // One key of each block: the rows take a fifth of the cache; the blocks would take six times its size.
    let mut hot_keys = |rng: &mut fastrand::Rng| rng.u64(0..2_500) * 40;
    reads(100_000, &mut hot_keys);
    assert!(cache.row_choice().keeps_rows());
    assert!(reads(20_000, &mut hot_keys) < 0.05);
    // All keys of a few blocks.
    let mut hot_blocks = |rng: &mut fastrand::Rng| rng.u64(0..22_000);
    reads(200_000, &mut hot_blocks);
    assert!(!cache.row_choice().keeps_rows());
    assert!(reads(20_000, &mut hot_blocks) < 0.4);
}
