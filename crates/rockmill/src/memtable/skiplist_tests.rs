use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::AtomicBool;

use rockmill_format::ValueType;
use rockmill_format::comparator::{Comparator, ReverseBytewiseComparator};
use rockmill_format::key::{InternalKey, pack_tag};

use super::*;

const OPERATIONS: usize = if cfg!(miri) { 150 } else { 20_000 };

/// A custom order: by length, then bytes.
struct ByLength;

impl Comparator for ByLength {
    fn name(&self) -> &str {
        "test.ByLength"
    }
    fn compare(&self, a: &[u8], b: &[u8]) -> KeyOrdering {
        a.len().cmp(&b.len()).then_with(|| a.cmp(b))
    }
    fn find_shortest_separator(&self, _start: &mut Vec<u8>, _limit: &[u8]) {}
    fn find_short_successor(&self, _key: &mut Vec<u8>) {}
}

fn orders() -> [InternalKeyComparator; 3] {
    [
        InternalKeyComparator::default(),
        InternalKeyComparator::new(Arc::new(ReverseBytewiseComparator)),
        InternalKeyComparator::new(Arc::new(ByLength)),
    ]
}

fn random_key(rng: &mut fastrand::Rng) -> Vec<u8> {
    // Short keys of few bytes and keys that differ after the prefix, so that all paths of a comparison are taken.
    let mut k: Vec<u8> = (0..rng.usize(0..5)).map(|_| *rng.choice(&[0u8, 1, b'a', 255]).unwrap()).collect();
    if rng.bool() {
        k.splice(0..0, b"common-prefix".iter().copied());
    }
    if rng.u8(..20) == 0 {
        k.resize(k.len() + rng.usize(100..400), b'l'); // lengths of two bytes
    }
    k
}

fn ikey(user: &[u8], seq: u64) -> Vec<u8> {
    InternalKey::new(user, seq, ValueType::Value).as_bytes().to_vec()
}

/// Entries of a list with the model's, both ways, and seeks to present and absent keys.
fn check(list: &SkipList, model: &[(Vec<u8>, Vec<u8>)], rng: &mut fastrand::Rng) {
    let cmp = list.cmp();
    let mut at = list.first();
    for (k, v) in model {
        let e = at.expect("an entry");
        assert_eq!((e.key(), e.value()), (&k[..], &v[..]));
        at = e.next();
    }
    assert!(at.is_none());
    let mut at = list.last();
    for (k, _) in model.iter().rev().take(300) {
        let e = at.expect("an entry");
        assert_eq!(e.key(), &k[..]);
        at = list.before(e.key());
    }
    for _ in 0..300 {
        let target = ikey(&random_key(rng), rng.u64(0..OPERATIONS as u64 + 2));
        let first = model.partition_point(|(k, _)| cmp.compare(k, &target).is_lt());
        let after = model.partition_point(|(k, _)| cmp.compare(k, &target).is_le());
        let want = |i: Option<usize>| i.and_then(|i| model.get(i)).map(|(k, _)| &k[..]);
        assert_eq!(list.seek(&target).map(|e| e.key()), want(Some(first)));
        assert_eq!(list.seek_for_prev(&target).map(|e| e.key()), want(after.checked_sub(1)));
        assert_eq!(list.before(&target).map(|e| e.key()), want(first.checked_sub(1)));
    }
}

#[test]
fn random_inserts_agree_with_a_sorted_vector() {
    for (i, cmp) in orders().into_iter().enumerate() {
        let seed = 11 + i as u64;
        println!("seed {seed}");
        let mut rng = fastrand::Rng::with_seed(seed);
        let list = SkipList::new(cmp.clone(), 4096);
        let mut model = Vec::new();
        for seq in 1..=OPERATIONS as u64 {
            let user = random_key(&mut rng);
            let most = if rng.u8(..50) == 0 { 20_000 } else { 30 };
            let value: Vec<u8> = (0..rng.usize(0..most)).map(|_| rng.u8(..)).collect();
            list.insert(&user, pack_tag(seq, ValueType::Value), &value);
            model.push((ikey(&user, seq), value));
        }
        model.sort_by(|a, b| cmp.compare(&a.0, &b.0));
        check(&list, &model, &mut rng);
    }
}

#[test]
fn sequential_inserts_use_the_hint_and_stay_in_order() {
    let seed = 5;
    let mut rng = fastrand::Rng::with_seed(seed);
    let list = SkipList::new(InternalKeyComparator::default(), 1 << 16);
    let mut model = BTreeMap::new();
    // Runs of ascending keys at changing places: in the middle, at the end, at the front.
    for run in 0..OPERATIONS / 50 {
        let mut at = rng.u32(..);
        for i in 0..50 {
            at = at.wrapping_add(1);
            let user = format!("{at:010}").into_bytes();
            let seq = (run * 50 + i + 1) as u64;
            list.insert(&user, pack_tag(seq, ValueType::Value), b"v");
            model.insert(user, seq);
        }
    }
    // A key may have been written twice by overlapping runs; then the newer one comes first.
    let mut at = list.first();
    for (user, &seq) in &model {
        while let Some(e) = at
            && e.key() != ikey(user, seq)
        {
            assert!(
                !model.contains_key(key::user_key(e.key())) || key::sequence(e.key()) < model[key::user_key(e.key())]
            );
            at = e.next();
        }
        assert_eq!(at.expect("an entry").key(), ikey(user, seq), "seed {seed}");
        at = at.and_then(|e| e.next());
    }
}

#[test]
fn every_level_is_sorted_and_holds_a_part_of_the_one_below() {
    let list = SkipList::new(InternalKeyComparator::default(), 1 << 16);
    let mut rng = fastrand::Rng::with_seed(8);
    for seq in 1..=OPERATIONS as u64 {
        let user = if seq % 3 == 0 { rng.u64(..).to_be_bytes() } else { (seq << 40).to_be_bytes() };
        list.insert(&user, pack_tag(seq, ValueType::Value), b"");
    }
    let mut below: Option<HashSet<*mut Node>> = None;
    for level in 0..list.height.load(Ordering::Relaxed) {
        let mut nodes = Vec::new();
        let mut n = load_next(list.head, level);
        while !n.is_null() {
            nodes.push(n);
            n = load_next(n, level);
        }
        assert!(nodes.windows(2).all(|w| list.cmp.compare(node_key(w[0]), node_key(w[1])).is_lt()));
        if let Some(below) = below {
            assert!(nodes.iter().all(|n| below.contains(n)), "level {level}");
        } else {
            assert_eq!(nodes.len(), OPERATIONS);
        }
        below = Some(nodes.into_iter().collect());
    }
}

#[test]
fn parallel_inserts_are_all_there_and_readers_see_order() {
    let seed = 21u64;
    println!("seed {seed}");
    let list = Arc::new(SkipList::new(InternalKeyComparator::default(), 1 << 14));
    let (threads, each) = (4u64, if cfg!(miri) { 30 } else { 8_000u64 });
    let done = AtomicBool::new(false);
    std::thread::scope(|s| {
        let reader = s.spawn(|| {
            let mut rounds = 0;
            while !done.load(Ordering::Relaxed) || rounds == 0 {
                let (mut at, mut last): (_, Option<Vec<u8>>) = (list.first(), None);
                while let Some(e) = at {
                    // The value repeats the user key: a partly visible entry would be noticed here.
                    assert_eq!(key::user_key(e.key()), e.value());
                    if let Some(last) = &last {
                        assert!(list.cmp().compare(last, e.key()).is_lt());
                    }
                    last = Some(e.key().to_vec());
                    at = e.next();
                }
                rounds += 1;
            }
        });
        let writers: Vec<_> = (0..threads)
            .map(|t| {
                let list = &list;
                s.spawn(move || {
                    let mut rng = fastrand::Rng::with_seed(seed + t);
                    for i in 0..each {
                        // Half of the keys are close together, so that threads contend for the same links.
                        let user = if i % 2 == 0 { (i * threads + t).to_be_bytes() } else { rng.u64(..).to_be_bytes() };
                        list.insert(&user, pack_tag(i * threads + t + 1, ValueType::Value), &user);
                        let mine = ikey(&user, i * threads + t + 1);
                        assert_eq!(list.seek(&mine).map(|e| e.key()), Some(&mine[..]));
                    }
                })
            })
            .collect();
        for w in writers {
            w.join().unwrap();
        }
        done.store(true, Ordering::Relaxed);
        reader.join().unwrap();
    });
    let mut count = 0;
    let mut at = list.first();
    while let Some(e) = at {
        count += 1;
        at = e.next();
    }
    assert_eq!(count, threads * each);
}

#[test]
fn heights_fall_by_half() {
    let mut counts = [0usize; MAX_HEIGHT + 1];
    let n = if cfg!(miri) { 2_000 } else { 200_000 };
    for seq in 0..n {
        let tag = pack_tag(seq as u64, ValueType::Value);
        let height = height_of(tag);
        assert_eq!(height, height_of(tag), "filled again, a memtable takes the same memory");
        counts[height] += 1;
    }
    assert_eq!(counts[0], 0);
    for (height, &count) in counts.iter().enumerate().take(4).skip(1) {
        let expected = n as f64 * 0.5f64.powi(height as i32);
        let ratio = count as f64 / expected;
        assert!((0.7..1.3).contains(&ratio), "height {height}: {ratio} of the expected count");
    }
}

#[test]
fn a_cursor_keeps_the_list_alive() {
    let list = Arc::new(SkipList::new(InternalKeyComparator::default(), 4096));
    list.insert(b"k", pack_tag(1, ValueType::Value), b"v");
    let mut cursor = Cursor::new(Arc::clone(&list));
    cursor.set(|l, _| l.first());
    drop(list);
    assert_eq!(cursor.entry().map(|e| e.value()), Some(&b"v"[..]));
}
