//! Blocks that RocksDB 11.8.1's own builder made (`oracle/blocks.cc`): separate values, hash indexes, the mark of
//! uniform keys, delta-encoded index values. They are read, and built again byte for byte.

use rockmill_format::block::{BlockBuilder, BlockBuilderOptions, BlockCursor, BlockKind, BlockLayout};
use rockmill_format::footer::BlockHandle;
use rockmill_format::key::{InternalKey, ValueType};
use rockmill_format::{InternalKeyComparator, MAX_SEQUENCE};

const ENTRIES: u64 = 40;

fn user_key(i: u64) -> Vec<u8> {
    format!("key{:05}", i * 3).into_bytes()
}

fn data_entries() -> Vec<(Vec<u8>, Vec<u8>)> {
    (0..ENTRIES)
        .map(|i| {
            let len = if i % 20 == 7 { 150 } else { i * 7 % 20 };
            let key = InternalKey::new(&user_key(i), 100 + i, ValueType::Value);
            (key.as_bytes().to_vec(), vec![b'a' + (i % 26) as u8; len as usize])
        })
        .collect()
}

fn handles() -> Vec<BlockHandle> {
    let mut handles: Vec<BlockHandle> = Vec::new();
    for i in 0..ENTRIES {
        let offset = handles.last().map_or(0, BlockHandle::end);
        handles.push(BlockHandle { offset, size: 4000 + i * 37 % 500 });
    }
    handles
}

fn check_data(data: &[u8]) {
    let entries = data_entries();
    let cmp = InternalKeyComparator::default();
    let mut c = BlockCursor::new(BlockLayout::parse(data).unwrap(), BlockKind::Data { global_seqno: None });
    c.seek_to_first(data).unwrap();
    for (k, v) in &entries {
        assert!(c.valid() && c.key() == k && c.value(data) == v);
        c.next(data).unwrap();
    }
    assert!(!c.valid());
    c.seek_to_last(data).unwrap();
    for (k, v) in entries.iter().rev() {
        assert!(c.valid() && c.key() == k && c.value(data) == v);
        c.prev(data).unwrap();
    }
    for (i, (k, v)) in entries.iter().enumerate() {
        let target = InternalKey::new(&user_key(i as u64), MAX_SEQUENCE, ValueType::Value);
        assert!(c.seek_for_get(data, target.as_bytes(), &cmp).unwrap());
        assert!(c.valid() && c.key() == k && c.value(data) == v);
        let absent = InternalKey::new(&[&user_key(i as u64)[..], b"x"].concat(), 1, ValueType::Value);
        c.seek(data, absent.as_bytes(), &cmp).unwrap();
        assert_eq!(c.valid().then(|| c.key()), entries.get(i + 1).map(|e| e.0.as_slice()));
    }
}

fn check_index(data: &[u8]) {
    let handles = handles();
    let cmp = InternalKeyComparator::default();
    let kind = BlockKind::Index { value_delta: true, user_keys: true, first_key: false };
    let mut c = BlockCursor::new(BlockLayout::parse(data).unwrap(), kind);
    c.seek_to_first(data).unwrap();
    for (i, handle) in handles.iter().enumerate() {
        assert!(c.valid() && c.key() == user_key(i as u64) && c.handle() == *handle);
        c.next(data).unwrap();
    }
    assert!(!c.valid());
    for (i, handle) in handles.iter().enumerate().rev() {
        let target = InternalKey::new(&user_key(i as u64), 7, ValueType::Value);
        c.seek(data, target.as_bytes(), &cmp).unwrap();
        assert!(c.valid() && c.handle() == *handle);
        if i > 0 {
            c.prev(data).unwrap();
            assert!(c.valid() && c.handle() == handles[i - 1]);
        }
    }
}

#[test]
fn blocks_of_rocksdb_11() {
    let mut file: &[u8] = include_bytes!("data/blocks-rocksdb-11.bin");
    let mut next = || {
        let (len, rest) = file.split_first_chunk::<4>().expect("a block");
        let (block, rest) = rest.split_at(u32::from_le_bytes(*len) as usize);
        file = rest;
        block
    };
    for separate_values in [false, true] {
        for restart_interval in [1, 4, 16] {
            for hashed in [false, true] {
                for uniform in [false, true] {
                    let theirs = next();
                    let layout = BlockLayout::parse(theirs).unwrap();
                    assert_eq!(layout.has_separated_values(), separate_values);
                    assert_eq!(layout.has_hash_index(), hashed);
                    assert_eq!(layout.is_uniform(), uniform);
                    assert_eq!(u64::from(layout.num_restarts()), ENTRIES.div_ceil(restart_interval as u64));
                    check_data(theirs);
                    let mut ours = BlockBuilder::new(BlockBuilderOptions {
                        restart_interval,
                        hash_index_util_ratio: hashed.then_some(0.75),
                        separate_values,
                        ..Default::default()
                    });
                    for (k, v) in data_entries() {
                        ours.add(&k, &v, None);
                    }
                    let mut ours = ours.finish().to_vec();
                    // The mark of uniform keys is a hint for RocksDB's index search; this crate does not write it.
                    *ours.last_mut().unwrap() |= if uniform { 0x20 } else { 0 };
                    assert!(ours == theirs, "{restart_interval} {separate_values} {hashed} {uniform}");
                }
            }
            let theirs = next();
            check_index(theirs);
            let mut ours = BlockBuilder::new(BlockBuilderOptions {
                restart_interval,
                value_delta_encoding: true,
                separate_values,
                ..Default::default()
            });
            let handles = handles();
            for (i, handle) in handles.iter().enumerate() {
                let mut value = Vec::new();
                handle.encode(&mut value);
                let delta = i.checked_sub(1).map(|previous| {
                    let mut d = Vec::new();
                    handle.encode_size_delta(&handles[previous], &mut d);
                    d
                });
                ours.add(&user_key(i as u64), &value, delta.as_deref());
            }
            assert!(ours.finish() == theirs, "index {restart_interval} {separate_values}");
        }
    }
    assert!(file.is_empty());
}
