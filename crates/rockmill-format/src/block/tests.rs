//! Blocks written and read back, compared with a sorted vector; damage; layouts that no installed RocksDB writes.

use super::*;
use crate::comparator::{InternalKeyComparator, ReverseBytewiseComparator};
use crate::footer::{BLOCK_TRAILER_LEN, BlockHandle};
use crate::key::{InternalKey, MAX_SEQUENCE, VALUE_TYPE_FOR_SEEK, ValueType, append_internal_key};
use std::cmp::Ordering;
use std::sync::Arc;

type Entries = Vec<(Vec<u8>, Vec<u8>)>;

/// Random internal keys in order, several versions of some; values of all sizes.
fn data_entries(rng: &mut fastrand::Rng, n: usize, cmp: &InternalKeyComparator) -> Entries {
    let mut entries = Vec::new();
    for _ in 0..n {
        let mut user: Vec<u8> = b"prefix".to_vec();
        user.truncate(rng.usize(0..7));
        user.extend((0..rng.usize(0..8)).map(|_| rng.u8(b'a'..b'e')));
        if rng.u32(0..30) == 0 {
            user.extend(std::iter::repeat_n(b'z', 150)); // lengths of two varint bytes
        }
        for _ in 0..rng.usize(1..3) {
            let key = InternalKey::new(&user, rng.u64(1..1000), ValueType::Value);
            let value_len = *rng.choice(&[0, 1, 5, 100, 127, 128, 300]).unwrap();
            entries.push((key.as_bytes().to_vec(), vec![rng.u8(..); value_len]));
        }
    }
    entries.sort_by(|a, b| cmp.compare(&a.0, &b.0));
    entries.dedup_by(|a, b| a.0 == b.0);
    entries
}

fn build(entries: &Entries, options: BlockBuilderOptions) -> Vec<u8> {
    let mut b = BlockBuilder::new(options);
    for (k, v) in entries {
        b.add(k, v, None);
    }
    let estimate = b.current_size_estimate();
    let data = b.finish().to_vec();
    assert_eq!(estimate, data.len());
    data
}

fn current<'a>(c: &'a BlockCursor, data: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
    c.valid().then(|| (c.key(), c.value(data)))
}

fn expected(entries: &Entries, i: usize) -> Option<(&[u8], &[u8])> {
    entries.get(i).map(|(k, v)| (k.as_slice(), v.as_slice()))
}

fn options(rng: &mut fastrand::Rng) -> BlockBuilderOptions {
    BlockBuilderOptions {
        restart_interval: *rng.choice(&[1, 2, 3, 16, 1000]).unwrap(),
        delta_encoding: rng.u32(0..4) != 0,
        value_delta_encoding: false,
        hash_index_util_ratio: if rng.bool() { Some(0.75) } else { None },
        separate_values: rng.bool(),
    }
}

#[test]
fn data_blocks_read_back_in_every_way() {
    let seed = 1234;
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    for round in 0..150 {
        let cmp = if round % 5 == 0 {
            InternalKeyComparator::new(Arc::new(ReverseBytewiseComparator))
        } else {
            InternalKeyComparator::default()
        };
        let n = rng.usize(0..80);
        let entries = data_entries(&mut rng, n, &cmp);
        let data = build(&entries, options(&mut rng));
        let layout = BlockLayout::parse(&data).unwrap();
        let mut c = BlockCursor::new(layout, BlockKind::Data { global_seqno: None });

        c.seek_to_first(&data).unwrap();
        for i in 0..=entries.len() {
            assert_eq!(current(&c, &data), expected(&entries, i));
            c.next(&data).unwrap();
        }
        c.seek_to_last(&data).unwrap();
        for i in (0..entries.len()).rev() {
            assert_eq!(current(&c, &data), expected(&entries, i));
            c.prev(&data).unwrap();
        }
        assert!(!c.valid());

        for _ in 0..60 {
            let target = match entries.is_empty() || rng.bool() {
                true => data_entries(&mut rng, 1, &cmp)[0].0.clone(),
                false => rng.choice(&entries).unwrap().0.clone(),
            };
            let at = entries.partition_point(|e| cmp.compare(&e.0, &target) == Ordering::Less);
            c.seek(&data, &target, &cmp).unwrap();
            assert_eq!(current(&c, &data), expected(&entries, at));
            // Steps back and forth from the seek's result.
            let mut i = at;
            for _ in 0..12 {
                if !c.valid() {
                    break;
                }
                if rng.bool() {
                    c.next(&data).unwrap();
                    i += 1;
                } else {
                    c.prev(&data).unwrap();
                    i = i.wrapping_sub(1);
                }
                assert_eq!(current(&c, &data), expected(&entries, i));
            }
            let exact = entries.get(at).is_some_and(|e| e.0 == target);
            c.seek_for_prev(&data, &target, &cmp).unwrap();
            assert_eq!(current(&c, &data), expected(&entries, if exact { at } else { at.wrapping_sub(1) }));

            let found = c.seek_for_get(&data, &target, &cmp).unwrap();
            let same_user = |e: &(Vec<u8>, Vec<u8>)| crate::key::user_key(&e.0) == crate::key::user_key(&target);
            if found {
                // It may stop early at another user key, but never after the first match.
                match entries.get(at) {
                    Some(e) if same_user(e) => assert_eq!(current(&c, &data), expected(&entries, at)),
                    Some(_) => assert!(!layout.has_hash_index() || c.valid()),
                    None => assert!(!c.valid()),
                }
            } else {
                assert!(layout.has_hash_index() && !c.valid());
                assert!(!entries.get(at).is_some_and(same_user));
            }
        }
    }
}

#[test]
fn a_global_sequence_number_replaces_every_stored_one() {
    let mut rng = fastrand::Rng::with_seed(8);
    let cmp = InternalKeyComparator::default();
    for interval in [1, 3, 16] {
        // Ingested files have sequence number zero. Keys that continue with a tag's bytes share them with the previous
        // key.
        let mut users: Vec<Vec<u8>> =
            (0..60).map(|_| (0..rng.usize(1..10)).map(|_| *rng.choice(&[0u8, 1, 2]).unwrap()).collect()).collect();
        users.sort();
        users.dedup();
        let stored: Entries =
            users.iter().map(|u| (InternalKey::new(u, 0, ValueType::Value).as_bytes().to_vec(), u.clone())).collect();
        let seen: Entries =
            users.iter().map(|u| (InternalKey::new(u, 77, ValueType::Value).as_bytes().to_vec(), u.clone())).collect();
        let data = build(&stored, BlockBuilderOptions { restart_interval: interval, ..Default::default() });
        let mut c = BlockCursor::new(BlockLayout::parse(&data).unwrap(), BlockKind::Data { global_seqno: Some(77) });
        c.seek_to_first(&data).unwrap();
        for i in 0..=seen.len() {
            assert_eq!(current(&c, &data), expected(&seen, i));
            c.next(&data).unwrap();
        }
        c.seek_to_last(&data).unwrap();
        for i in (0..seen.len()).rev() {
            assert_eq!(current(&c, &data), expected(&seen, i));
            c.prev(&data).unwrap();
        }
        for (i, u) in users.iter().enumerate() {
            for (seq, at) in [(MAX_SEQUENCE, i), (77, i), (76, i + 1)] {
                c.seek(&data, InternalKey::new(u, seq, VALUE_TYPE_FOR_SEEK).as_bytes(), &cmp).unwrap();
                assert_eq!(current(&c, &data), expected(&seen, at), "sequence {seq}");
            }
            c.prev(&data).unwrap();
            c.next(&data).unwrap();
        }
    }
}

#[test]
fn index_blocks_of_every_shape() {
    let mut rng = fastrand::Rng::with_seed(31);
    let cmp = InternalKeyComparator::default();
    for round in 0..200 {
        let (value_delta, user_keys, first_key, separated) =
            (round & 1 != 0, round & 2 != 0, round & 4 != 0, round & 8 != 0);
        let restart_interval = *rng.choice(&[1, 2, 5, 16]).unwrap();
        let mut builder = BlockBuilder::new(BlockBuilderOptions {
            restart_interval,
            value_delta_encoding: value_delta,
            separate_values: separated,
            ..Default::default()
        });
        let mut users: Vec<Vec<u8>> =
            (0..rng.usize(1..60)).map(|_| format!("k{:04}", rng.u32(0..5000)).into_bytes()).collect();
        users.sort();
        users.dedup();
        let mut handles: Vec<BlockHandle> = Vec::new();
        let first = |u: &[u8]| InternalKey::new(u, 3, ValueType::Value).as_bytes().to_vec();
        for u in &users {
            let previous = handles.last().copied();
            // Occasionally a gap before a block, which a delta cannot express.
            let gap = if rng.u32(0..8) == 0 { 100 } else { 0 };
            let handle = BlockHandle { offset: previous.map_or(0, |p| p.end()) + gap, size: rng.u64(0..100_000) };
            let mut key = u.clone();
            if !user_keys {
                key.clear();
                append_internal_key(&mut key, u, 5, ValueType::Value);
            }
            let mut value = Vec::new();
            handle.encode(&mut value);
            let mut delta = None;
            if let Some(previous) = previous.filter(|_| value_delta && gap == 0) {
                let mut d = Vec::new();
                handle.encode_size_delta(&previous, &mut d);
                delta = Some(d);
            }
            if first_key {
                crate::coding::put_length_prefixed(&mut value, &first(u));
                if let Some(d) = &mut delta {
                    crate::coding::put_length_prefixed(d, &first(u));
                }
            }
            builder.add(&key, &value, delta.as_deref());
            handles.push(handle);
        }
        let data = builder.finish();
        let kind = BlockKind::Index { value_delta, user_keys, first_key };
        let layout = BlockLayout::parse(data).unwrap();
        let mut c = BlockCursor::new(layout, kind);
        let check = |c: &BlockCursor, i: usize| {
            assert_eq!(c.valid(), i < handles.len());
            if c.valid() {
                assert_eq!(c.handle(), handles[i], "{kind:?} entry {i}");
                assert_eq!(c.first_key(data), if first_key { first(&users[i]) } else { Vec::new() });
                assert!(c.key().starts_with(&users[i]));
            }
        };
        c.seek_to_first(data).unwrap();
        for i in 0..=users.len() {
            check(&c, i);
            c.next(data).unwrap();
        }
        c.seek_to_last(data).unwrap();
        for i in (0..users.len()).rev() {
            check(&c, i);
            c.prev(data).unwrap();
        }
        for _ in 0..50 {
            let user = format!("k{:04}", rng.u32(0..5000)).into_bytes();
            let at = users.partition_point(|u| *u < user);
            c.seek(data, InternalKey::new(&user, MAX_SEQUENCE, VALUE_TYPE_FOR_SEEK).as_bytes(), &cmp).unwrap();
            check(&c, at);
            if c.valid() {
                c.prev(data).unwrap();
                if at > 0 {
                    check(&c, at - 1);
                }
            }
        }
        assert_eq!(BLOCK_TRAILER_LEN, 5);
    }
}

#[test]
fn equal_keys_are_found_from_the_first_on() {
    // Range deletion blocks may hold the same begin key several times.
    let cmp = InternalKeyComparator::default();
    let keys = ["a", "b", "b", "b", "c"];
    let entries: Entries = keys
        .iter()
        .enumerate()
        .map(|(i, k)| (InternalKey::new(k.as_bytes(), 9, ValueType::RangeDeletion).as_bytes().to_vec(), vec![i as u8]))
        .collect();
    for restart_interval in [1, 2, 16] {
        let data = build(&entries, BlockBuilderOptions { restart_interval, ..Default::default() });
        let mut c = BlockCursor::new(BlockLayout::parse(&data).unwrap(), BlockKind::Data { global_seqno: None });
        c.seek(&data, &entries[1].0, &cmp).unwrap();
        assert_eq!(c.value(&data), [1]);
    }
}

#[test]
fn empty_and_short_blocks() {
    let empty = BlockBuilder::new(BlockBuilderOptions::default()).finish().to_vec();
    let cmp = InternalKeyComparator::default();
    for data in [empty, vec![0; 4]] {
        let mut c = BlockCursor::new(BlockLayout::parse(&data).unwrap(), BlockKind::Meta);
        c.seek_to_first(&data).unwrap();
        assert!(!c.valid());
        c.seek_to_last(&data).unwrap();
        assert!(!c.valid());
        c.seek(&data, b"x", &cmp).unwrap();
        assert!(!c.valid());
    }
    for data in [&[][..], &[1], &[1, 0, 0], &[1, 0, 0, 0], &[0, 0, 0, 0x40], &[0, 0, 0, 0x80], &[0, 0, 0, 0x10]] {
        assert!(BlockLayout::parse(data).is_err(), "{data:?}");
    }
}

#[test]
fn damaged_blocks_never_panic_and_never_loop() {
    let seed = 99;
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let cmp = InternalKeyComparator::default();
    for _ in 0..4000 {
        let entries = data_entries(&mut rng, 20, &cmp);
        let options = options(&mut rng);
        let mut data = build(&entries, options);
        for _ in 0..rng.usize(1..6) {
            let at = if rng.bool() { rng.usize(0..data.len()) } else { data.len() - 1 - rng.usize(0..12) };
            data[at] = if rng.bool() { rng.u8(..) } else { *rng.choice(&[0, 1, 0x7f, 0x80, 0xff]).unwrap() };
        }
        let Ok(layout) = BlockLayout::parse(&data) else { continue };
        for kind in [
            BlockKind::Data { global_seqno: None },
            BlockKind::Data { global_seqno: Some(5) },
            BlockKind::Index { value_delta: rng.bool(), user_keys: rng.bool(), first_key: rng.bool() },
            BlockKind::Meta,
        ] {
            let mut c = BlockCursor::new(layout, kind);
            let target = &rng.choice(&entries).unwrap().0;
            let mut steps = 0;
            let mut walk = |c: &mut BlockCursor, forward: bool| -> Result<()> {
                while c.valid() {
                    let _ = (c.key(), c.value(&data), c.handle(), c.first_key(&data));
                    if forward {
                        c.next(&data)?
                    } else {
                        c.prev(&data)?
                    }
                    steps += 1;
                    assert!(steps < 100_000, "loops");
                }
                Ok(())
            };
            let _ = c.seek_to_first(&data).and_then(|()| walk(&mut c, true));
            let _ = c.seek_to_last(&data).and_then(|()| walk(&mut c, false));
            let _ = c.seek(&data, target, &cmp).and_then(|()| walk(&mut c, false));
            let _ = c.seek_for_prev(&data, target, &cmp).and_then(|()| walk(&mut c, true));
            let _ = c.seek_for_get(&data, target, &cmp).and_then(|_| walk(&mut c, true));
            // A block that does not match the layout.
            let short = &data[..rng.usize(0..data.len())];
            let _ = c.seek_to_first(short);
            let _ = c.seek(short, target, &cmp);
        }
    }
}

#[test]
fn stepping_back_takes_memory_in_proportion_to_the_block() {
    // Keys of up to 20,000 bytes, each of which shares all but a few with its predecessor; one restart interval.
    let (cmp, mut user) = (InternalKeyComparator::default(), vec![b'k'; 20_000]);
    let mut entries: Entries = Vec::new();
    for i in 0..4_000u32 {
        user.resize(20_000 - (i as usize % 7), b'k');
        user.truncate(user.len() - 4);
        user.extend_from_slice(&i.to_be_bytes());
        entries.push((InternalKey::new(&user, 9, ValueType::Value).as_bytes().to_vec(), b"v".to_vec()));
    }
    entries.sort_by(|a, b| cmp.compare(&a.0, &b.0));
    let data = build(&entries, BlockBuilderOptions { restart_interval: 1 << 20, ..Default::default() });
    let whole: usize = entries.iter().map(|e| e.0.len()).sum();
    assert!(whole > 8 * data.len(), "{whole} bytes of keys in {} bytes", data.len());
    let mut c = BlockCursor::new(BlockLayout::parse(&data).unwrap(), BlockKind::Data { global_seqno: None });
    c.seek_to_last(&data).unwrap();
    for i in (0..entries.len()).rev() {
        assert!(current(&c, &data) == expected(&entries, i), "entry {i}");
        if i % 1_000 == 500 {
            // Forwards and back again.
            c.next(&data).unwrap();
            c.prev(&data).unwrap();
            assert!(current(&c, &data) == expected(&entries, i), "entry {i} again");
        }
        c.prev(&data).unwrap();
    }
    assert!(!c.valid());
    let bound = 4 * (1 << 20) + 2 * data.len() + 4_000 * 128;
    assert!(c.memory_usage() < bound, "{} bytes for a block of {}, at most {bound}", c.memory_usage(), data.len());
}
