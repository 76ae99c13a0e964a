use std::collections::BTreeMap;

use rockmill_format::key::{InternalKey, VALUE_TYPE_FOR_SEEK};

use super::*;
use crate::iter::get::GetState;

fn table() -> Arc<MemTable> {
    Arc::new(MemTable::new(7, InternalKeyComparator::default(), 4096))
}

fn get(m: &MemTable, user: &[u8], snapshot: u64) -> Option<Vec<u8>> {
    let ikey = InternalKey::new(user, snapshot, VALUE_TYPE_FOR_SEEK);
    let mut ctx = GetContext::new(user);
    m.get(ikey.as_bytes(), &mut ctx);
    ctx.finish(None).unwrap().map(|v| v.into_vec())
}

#[test]
fn an_empty_table_says_so() {
    let m = table();
    assert!(m.is_empty());
    assert_eq!((m.id(), m.num_entries(), m.data_size(), m.first_sequence()), (7, 0, 0, u64::MAX));
    assert!(m.range_tombstones().is_none());
    assert_eq!(get(&m, b"k", 100), None);
    let mut it = m.iter();
    it.seek_to_first();
    assert!(!it.valid());
    it.seek_to_last();
    assert!(!it.valid());
}

#[test]
fn counters_count() {
    let m = table();
    m.add(9, ValueType::Value, b"k", b"value");
    m.add(5, ValueType::Deletion, b"kk", b"");
    m.add(6, ValueType::SingleDeletion, b"kkk", b"");
    m.add(8, ValueType::RangeDeletion, b"a", b"b");
    assert_eq!((m.num_entries(), m.num_deletes(), m.num_range_deletes(), m.first_sequence()), (4, 3, 1, 5));
    assert_eq!(m.data_size(), (1 + 8 + 5) + (2 + 8) + (3 + 8) + (1 + 8 + 1));
    assert!(m.memory_usage() >= 4096);
}

#[test]
fn range_tombstones_cover_older_entries_at_their_snapshots() {
    let m = table();
    m.add(1, ValueType::Value, b"c", b"old");
    m.add(2, ValueType::RangeDeletion, b"b", b"d");
    assert_eq!(m.range_tombstones().unwrap().len(), 1);
    m.add(3, ValueType::Value, b"c", b"new");
    m.add(4, ValueType::RangeDeletion, b"a", b"c");
    m.add(5, ValueType::RangeDeletion, b"a", b"x");
    assert_eq!(get(&m, b"c", 1), Some(b"old".to_vec()));
    assert_eq!(get(&m, b"c", 2), None);
    assert_eq!(get(&m, b"c", 3), Some(b"new".to_vec()));
    assert_eq!(get(&m, b"c", 4), Some(b"new".to_vec()));
    assert_eq!(get(&m, b"c", 5), None);
    // The lookup leaves the tombstone to older sources.
    let mut ctx = GetContext::new(b"q");
    m.get(InternalKey::new(b"q", 9, VALUE_TYPE_FOR_SEEK).as_bytes(), &mut ctx);
    assert_eq!(ctx.max_covering, 5);
}

#[test]
fn merge_operands_are_offered_newest_first_down_to_the_base() {
    let m = table();
    m.add(1, ValueType::Value, b"k", b"base");
    m.add(2, ValueType::Merge, b"k", b"one");
    m.add(3, ValueType::Merge, b"k", b"two");
    m.add(4, ValueType::Value, b"kk", b"other");
    let mut ctx = GetContext::new(b"k");
    m.get(InternalKey::new(b"k", 9, VALUE_TYPE_FOR_SEEK).as_bytes(), &mut ctx);
    let GetState::MergeDone(operands, Some(base)) = ctx.state else { panic!("{:?}", ctx.state) };
    let operands: Vec<_> = operands.iter().map(|o| o.as_slice()).collect();
    assert_eq!((operands, base.as_slice()), (vec![&b"two"[..], b"one"], &b"base"[..]));
}

#[test]
fn random_operations_agree_with_a_model() {
    let seed = 42;
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let m = table();
    // The versions of each key: sequence number to value.
    let mut model: BTreeMap<Vec<u8>, BTreeMap<u64, Option<Vec<u8>>>> = BTreeMap::new();
    let operations = if cfg!(miri) { 200 } else { 10_000 };
    for seq in 1..=operations {
        let user = format!("key{:03}", rng.u32(0..300)).into_bytes();
        match rng.u32(0..100) {
            0 => {
                let end = format!("key{:03}", rng.u32(0..310)).into_bytes();
                m.add(seq, ValueType::RangeDeletion, &user, &end);
                if user < end {
                    for versions in model.range_mut(user..end).map(|(_, v)| v) {
                        versions.insert(seq, None);
                    }
                }
            }
            1..30 => {
                m.add(seq, ValueType::Deletion, &user, b"");
                model.entry(user).or_default().insert(seq, None);
            }
            _ => {
                let value = seq.to_le_bytes().to_vec();
                m.add(seq, ValueType::Value, &user, &value);
                model.entry(user).or_default().insert(seq, Some(value));
            }
        }
        if rng.u32(0..4) == 0 {
            let user = format!("key{:03}", rng.u32(0..300)).into_bytes();
            let snapshot = rng.u64(0..=seq);
            let want = model.get(&user).and_then(|v| v.range(..=snapshot).next_back()).and_then(|(_, v)| v.clone());
            assert_eq!(get(&m, &user, snapshot), want, "{user:?} at {snapshot}");
        }
    }
    let mut forward = Vec::new();
    let mut it = m.iter();
    it.seek_to_first();
    while it.valid() {
        forward.push((it.key().to_vec(), it.value().to_vec()));
        it.next();
    }
    assert_eq!(forward.len() as u64, m.num_entries() - m.num_range_deletes());
    let mut backward = Vec::new();
    it.seek_to_last();
    while it.valid() {
        backward.push((it.key().to_vec(), it.value().to_vec()));
        it.prev();
    }
    backward.reverse();
    assert_eq!(forward, backward);
}
