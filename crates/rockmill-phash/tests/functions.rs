//! Functions against a model: every key has its own slot, unless the keys were chosen for the seed; the bytes depend
//! only on the set; any other bytes are refused or lead to slots in range.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rockmill_phash::{BuildError, Builder, Kind, PerfectHash, hash_key};

fn random(n: usize, seed: u64) -> Vec<u64> {
    let mut rng = fastrand::Rng::with_seed(seed);
    (0..n).map(|_| rng.u64(..)).collect()
}

fn build(kind: Kind, hashes: &[u64]) -> Vec<u8> {
    let built = Builder::new().kind(kind).seed(42).build(hashes);
    built.unwrap_or_else(|e| panic!("{kind:?}, {} keys: {e}", hashes.len()))
}

/// Opens a function and checks that these keys have different slots.
#[track_caller]
fn check(kind: Kind, hashes: &[u64], bytes: &[u8]) {
    let function = PerfectHash::open(bytes).expect("what was built opens");
    assert_eq!((function.kind(), function.seed(), function.key_count()), (kind, 42, hashes.len() as u64));
    assert_eq!(function.bytes(), bytes);
    let mut seen = vec![false; function.slot_count()];
    let mut slots = vec![usize::MAX; hashes.len()];
    function.slots(hashes, &mut slots);
    for (&hash, &slot) in hashes.iter().zip(&slots) {
        assert_eq!(function.slot(hash), slot, "one lookup and many differ");
        assert!(!std::mem::replace(&mut seen[slot], true), "{kind:?}: slot {slot} has two keys");
    }
    for absent in random(100, 99) {
        assert!(function.slot(absent) < function.slot_count());
    }
}

#[test]
fn every_small_count_works() {
    for kind in Kind::ALL {
        for n in (0..300).chain([511, 512, 513, 1023, 1024, 1025, 2047, 4095, 4096, 4097, 9_999]) {
            let hashes = random(n, n as u64);
            check(kind, &hashes, &build(kind, &hashes));
        }
    }
}

#[test]
fn slots_fills_the_buffer_no_further_than_there_are_hashes() {
    let hashes = random(500, 8);
    for kind in Kind::ALL {
        let bytes = build(kind, &hashes);
        let function = PerfectHash::open(&bytes[..]).expect("what was built opens");
        for n in [0, 1, 10, 31, 32, 33, 70] {
            for room in [0, 5, 10, 32, 40, 64, 130] {
                let mut slots = vec![usize::MAX; room];
                function.slots(&hashes[..n], &mut slots);
                let (written, rest) = slots.split_at(n.min(room));
                assert!(written.iter().zip(&hashes).all(|(&slot, &hash)| slot == function.slot(hash)));
                assert!(rest.iter().all(|&slot| slot == usize::MAX), "{kind:?}: {n} hashes, room for {room}");
            }
        }
    }
}

#[test]
fn few_slots_are_empty_and_few_bits_are_used() {
    for (kind, slots_max, bits_max) in [(Kind::Pilot, 1.02, 3.0), (Kind::CpHash, 1.15, 4.0), (Kind::Chd, 1.3, 4.0)] {
        for n in [10_000, 100_000, 300_000] {
            let hashes = random(n, 1);
            let bytes = build(kind, &hashes);
            let function = PerfectHash::open(&bytes[..]).expect("it opens");
            let (slots, bits) = (function.slot_count() as f64 / n as f64, 8.0 * bytes.len() as f64 / n as f64);
            assert!(
                slots <= slots_max && bits <= bits_max,
                "{kind:?}, {n} keys: {slots:.4} slots, {bits:.3} bits a key"
            );
        }
    }
}

/// With 8-bit signatures, the lowest bits of the hash, a table mistakes one absent key in 256 for a present one.
#[test]
fn the_lowest_bits_of_the_hash_tell_keys_of_a_slot_apart() {
    for kind in Kind::ALL {
        let hashes: Vec<u64> = (0..50_000u64).map(|key| hash_key(&key.to_le_bytes(), 42)).collect();
        let bytes = build(kind, &hashes);
        let function = PerfectHash::open(&bytes[..]).expect("what was built opens");
        let mut signatures = vec![None; function.slot_count()];
        for &hash in &hashes {
            signatures[function.slot(hash)] = Some(hash as u8);
        }
        let absent = (50_000..550_000u64).map(|key| hash_key(&key.to_le_bytes(), 42));
        let taken = absent.filter(|&hash| signatures[function.slot(hash)] == Some(hash as u8)).count();
        let expected = 500_000.0 / 256.0 * hashes.len() as f64 / function.slot_count() as f64;
        assert!((taken as f64 / expected - 1.0).abs() < 0.1, "{kind:?}: {taken} absent keys, not {expected:.0}");
    }
}

#[test]
fn a_million_keys() {
    for kind in [Kind::Pilot, Kind::CpHash] {
        let hashes: Vec<u64> = (0..1_000_000u64).map(|key| hash_key(&key.to_le_bytes(), 42)).collect();
        let bytes = Builder::new().kind(kind).seed(42).threads(2).build(&hashes).expect("a function");
        check(kind, &hashes, &bytes);
    }
}

/// Hashes that no hash function produces: consecutive, sparse, equal in most bits.
#[test]
fn badly_spread_hashes_work() {
    let n = 20_000u64;
    let sets: [(&str, Vec<u64>); 8] = [
        ("consecutive", (0..n).collect()),
        ("from the end", (0..n).map(|i| u64::MAX - i).collect()),
        (
            "high bits only",
            (0..n).map(|i| i << 48 | i >> 16 << 47).collect::<std::collections::BTreeSet<_>>().into_iter().collect(),
        ),
        ("middle bits only", (0..n).map(|i| i << 24).collect()),
        ("multiples of an odd number", (0..n).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect()),
        ("squares", (0..n).map(|i| i * i).collect()),
        ("two far clusters", (0..n).map(|i| if i % 2 == 0 { i } else { i | 1 << 63 }).collect()),
        ("one bit or two", (0..64).flat_map(|i| (i..64).map(move |j| 1u64 << i | 1 << j)).collect()),
    ];
    for kind in Kind::ALL {
        for (name, hashes) in &sets {
            println!("{kind:?}: {name}");
            check(kind, hashes, &build(kind, hashes));
        }
    }
}

/// For each of these attempts at building with seed 42, `keys` hashes that fall into one bucket.
fn crowd(kind: Kind, attempts: u64, keys: usize) -> Vec<u64> {
    let mut rng = fastrand::Rng::with_seed(attempts);
    let mut hashes = Vec::new();
    for attempt in 1..=attempts {
        // As in docs/phash.md. A bucket is larger than the range chosen from here: a 2,000th of a segment's keys.
        let mut salt = 42u64.wrapping_add(attempt.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        salt = (salt ^ salt >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        salt = (salt ^ salt >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        salt ^= salt >> 31;
        let is_in_bucket = |hash: u64| {
            let product = u128::from(hash ^ salt) * 0x9fb2_1c65_1e98_df25;
            let mixed = product as u64 ^ (product >> 64) as u64;
            match kind {
                Kind::Pilot => mixed < u64::MAX / 2000,
                _ => mixed < 1 << 63 && mixed.wrapping_mul(0xd6e8_feb8_6659_fd93) < u64::MAX / 1000,
            }
        };
        hashes.extend(std::iter::repeat_with(|| rng.u64(..)).filter(|&hash| is_in_bucket(hash)).take(keys));
    }
    hashes
}

/// Keys chosen by somebody who knows the seed: an error without a search, and the next seed solves it.
#[test]
fn crowded_buckets_are_refused() {
    for kind in Kind::ALL {
        let mut hashes = crowd(kind, 16, 90);
        hashes.extend(random(100, 9));
        let refused = BuildError::NotPlaced { attempts: 16 };
        let looks = AtomicUsize::new(0);
        let count_looks = || {
            looks.fetch_add(1, Ordering::Relaxed);
            false
        };
        assert_eq!(Builder::new().kind(kind).seed(42).build_until(&hashes, count_looks), Err(refused), "{kind:?}");
        assert_eq!(looks.into_inner(), 16, "{kind:?}: something was placed");
        assert!(Builder::new().kind(kind).seed(43).build(&hashes).is_ok(), "{kind:?}: the next seed");

        let mut hashes = crowd(kind, 1, 1000);
        hashes.extend(random(500, 9));
        let bytes = build(kind, &hashes);
        check(kind, &hashes, &bytes);
        assert_eq!(bytes[6], 1, "{kind:?}: the second attempt has another salt");

        let hashes = crowd(kind, 16, 50);
        check(kind, &hashes, &build(kind, &hashes));
    }
}

#[test]
fn the_bytes_depend_on_the_set_alone() {
    for kind in Kind::ALL {
        for n in [1, 50, 1000, 70_000, 250_000] {
            let mut hashes = random(n, 7);
            let bytes = build(kind, &hashes);
            for threads in [2, 3, 8] {
                fastrand::Rng::with_seed(threads).shuffle(&mut hashes);
                let builder = Builder::new().kind(kind).seed(42).threads(threads as usize);
                assert_eq!(builder.build(&hashes).as_ref(), Ok(&bytes), "{kind:?}, {n} keys, {threads} threads");
            }
            let scalar = Builder::new().kind(kind).seed(42).simd(false).build(&hashes);
            assert_eq!(scalar.as_ref(), Ok(&bytes), "{kind:?}, {n} keys, without AVX2");
            assert_ne!(Builder::new().kind(kind).seed(43).build(&hashes), Ok(bytes), "the seed changes nothing");
        }
    }
}

#[test]
fn few_keys_need_one_thread() {
    let threads = |kind, keys| Builder::new().kind(kind).useful_threads(keys);
    for kind in Kind::ALL {
        assert_eq!([0, 1, 19_999].map(|keys| threads(kind, keys)), [1, 1, 1], "{kind:?}");
        assert!(threads(kind, 1_000_000) > 8, "{kind:?}");
    }
    assert_eq!([183_000, 184_000, 1_000_000].map(|keys| threads(Kind::Pilot, keys)), [1, 2, 10]);
}

#[test]
fn equal_hashes_are_reported_with_their_places() {
    for kind in Kind::ALL {
        for n in [2, 100, 50_000] {
            let mut hashes = random(n, 3);
            hashes[n - 1] = hashes[n / 2 - 1];
            let expected = BuildError::Duplicate { hash: hashes[n - 1], positions: vec![n / 2 - 1, n - 1] };
            assert_eq!(Builder::new().kind(kind).build(&hashes), Err(expected), "{kind:?}, {n} keys");
            let text = Builder::new().kind(kind).build(&hashes).expect_err("equal hashes").to_string();
            assert!(text.contains("another seed") && text.contains(&(n - 1).to_string()), "{text}");
        }
        let alike = Builder::new().kind(kind).threads(2).build(&[5; 100_000]);
        assert!(matches!(alike, Err(BuildError::Duplicate { hash: 5, positions }) if positions.len() == 100_000));
    }
}

/// Whenever the caller stops the build, it ends without a function; calling `stop` changes nothing else.
#[test]
fn a_build_stops_where_it_is_told_to() {
    let hashes = random(3000, 10);
    for kind in Kind::ALL {
        let bytes = build(kind, &hashes);
        // Stops at the first call, the second, and so on, until there are fewer calls.
        let mut stop_at = 0;
        loop {
            let looks = AtomicUsize::new(0);
            let built = Builder::new()
                .kind(kind)
                .seed(42)
                .build_until(&hashes, || looks.fetch_add(1, Ordering::Relaxed) == stop_at);
            if built.as_ref() == Ok(&bytes) {
                assert_eq!(looks.into_inner(), stop_at, "{kind:?}: it went on");
                break;
            }
            assert_eq!(built, Err(BuildError::Stopped), "{kind:?}");
            assert_eq!(looks.into_inner(), stop_at + 1, "{kind:?}: it went on");
            stop_at += 1;
        }
        assert!(stop_at > 1, "{kind:?}: one question for the attempt and one for each segment at least");
    }
}

#[test]
fn a_build_on_several_threads_stops() {
    let hashes = random(100_000, 11);
    for kind in Kind::ALL {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let builds = scope.spawn(|| {
                let builder = Builder::new().kind(kind).threads(2);
                let until_stopped = || builder.build_until(&hashes, || stop.load(Ordering::Relaxed));
                std::iter::repeat_with(until_stopped).find_map(Result::err)
            });
            std::thread::sleep(std::time::Duration::from_millis(30));
            stop.store(true, Ordering::Relaxed);
            assert_eq!(builds.join().expect("no panic"), Some(BuildError::Stopped), "{kind:?}");
        });
    }
}

/// Every prefix is refused, and so is every function with bytes after it.
#[test]
fn a_wrong_length_is_refused() {
    for kind in Kind::ALL {
        for n in [0, 1, 10, 3000] {
            let mut bytes = build(kind, &random(n, 4));
            for len in 0..bytes.len() {
                let error = PerfectHash::open(&bytes[..len]).expect_err("a prefix");
                assert!(error.offset <= len, "{error}");
            }
            bytes.push(0);
            assert!(PerfectHash::open(&bytes[..]).is_err());
        }
    }
}

/// Whatever is changed, the result is an error, or slots in range.
#[test]
fn damaged_bytes_do_no_harm() {
    let probes = random(50, 5);
    let mut slots = vec![0; probes.len()];
    for kind in Kind::ALL {
        for n in [0, 1, 10, 500, 5000] {
            let sound = build(kind, &random(n, 6));
            let mut rng = fastrand::Rng::with_seed(n as u64);
            let mut opened = 0;
            let each_bit = (0..sound.len().min(600) * 8).map(|bit| vec![(bit / 8, 1u8 << (bit % 8))]);
            let by_chance =
                (0..2000).map(|_| (0..rng.usize(1..5)).map(|_| (rng.usize(..sound.len()), rng.u8(..))).collect());
            let damages: Vec<Vec<(usize, u8)>> = each_bit.chain(by_chance).collect();
            for damage in damages {
                let mut bytes = sound.clone();
                for (at, change) in damage {
                    bytes[at] ^= change;
                }
                let Ok(function) = PerfectHash::open(&bytes[..]) else { continue };
                opened += 1;
                assert!(function.slot_count() <= 256 * bytes.len());
                function.slots(&probes, &mut slots);
                assert!(slots.iter().all(|&slot| slot < function.slot_count()));
                assert!(probes.iter().all(|&hash| function.slot(hash) < function.slot_count()));
            }
            assert!(opened > 0, "{kind:?}: damage to the seed opens");
        }
    }
}

/// Numbers of slots and buckets that no builder writes and that the bytes have no room for.
#[test]
fn claims_beyond_the_bytes_are_refused() {
    fn put(bytes: &mut [u8], at: usize, number: u32) {
        bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
    }
    let opens = |bytes: &[u8]| PerfectHash::open(bytes).map(|function| function.slot_count());

    // One bucket, in one segment with this number of groups.
    for (group_bits, groups, slots) in [(0, 128, Some(128)), (0, 129, None), (6, 2, Some(128)), (6, u32::MAX, None)] {
        let mut bytes = build(Kind::Pilot, &[]);
        bytes[7] = group_bits;
        bytes[24..32].copy_from_slice(&(u64::from(groups) << group_bits).to_le_bytes());
        put(&mut bytes, 44, groups);
        let opened = opens(&bytes);
        assert_eq!(opened.as_ref().ok().copied(), slots, "{groups} groups, {opened:?}");
    }

    // Two buckets, or this many more sparse ones, without bits; one segment with this many slots.
    for kind in [Kind::CpHash, Kind::Chd] {
        let least = if kind == Kind::Chd { 2 } else { 1 };
        for (sparse, slots, sound) in
            [(least, 64, true), (least, 65, false), (64, 2048, true), (65, 1, false), (u32::MAX - 1, u32::MAX, false)]
        {
            let mut bytes = build(kind, &[]);
            put(&mut bytes, 24, slots);
            let magic = (u64::MAX / u64::from(slots)).wrapping_add(1);
            bytes[48..56].copy_from_slice(&magic.to_le_bytes());
            put(&mut bytes, 56, slots);
            put(&mut bytes, 64, sparse);
            let opened = opens(&bytes);
            assert_eq!(opened.is_ok(), sound, "{kind:?}: {sparse} sparse buckets, {slots} slots: {opened:?}");
        }
    }
}

/// Existing functions are read and written exactly as before. A change needs a new version.
#[test]
fn the_encoding_is_as_before() {
    let hashes: Vec<u64> = (0..1000u64).map(|key| hash_key(&key.to_le_bytes(), 42)).collect();
    let encoded = ENCODED.map(|(kind, ..)| {
        let bytes = build(kind, &hashes);
        (kind, bytes.len(), hash_key(&bytes, 0))
    });
    assert_eq!(encoded, ENCODED);
}

/// Kind, length and XXH3 of a function of 1,000 keys.
const ENCODED: [(Kind, usize, u64); 3] = [
    (Kind::Pilot, 406, 0xe3fababe7658a84c),
    (Kind::CpHash, 323, 0xc6062b4ab6f0f399),
    (Kind::Chd, 355, 0x0d0d034956cdade0),
];
