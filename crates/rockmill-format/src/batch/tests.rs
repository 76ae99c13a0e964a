//! Tests of write batches: round trips, damaged bytes, bytes written by RocksDB.

use super::*;

/// A record with owned bytes, so that random batches can be compared with their decoded form.
#[derive(Debug, Clone)]
struct Owned(u8, u32, Vec<u8>, Vec<u8>);

impl Owned {
    fn record(&self) -> BatchRecord<'_> {
        let Owned(kind, cf, a, b) = self;
        let (cf, key, value) = (*cf, a.as_slice(), b.as_slice());
        match kind {
            0 => BatchRecord::Put { cf, key, value },
            1 => BatchRecord::Delete { cf, key },
            2 => BatchRecord::SingleDelete { cf, key },
            3 => BatchRecord::Merge { cf, key, value },
            4 => BatchRecord::DeleteRange { cf, begin: key, end: value },
            5 => BatchRecord::LogData(key),
            _ => BatchRecord::Noop,
        }
    }
}

fn random(rng: &mut fastrand::Rng) -> Vec<Owned> {
    let n = rng.usize(0..20);
    let bytes = |rng: &mut fastrand::Rng| -> Vec<u8> {
        let len = match rng.u8(0..5) {
            0 => 0,
            1 => rng.usize(100..300),
            2 => rng.usize(16_000..17_000),
            _ => rng.usize(0..20),
        };
        std::iter::repeat_with(|| rng.u8(..)).take(len).collect()
    };
    (0..n)
        .map(|_| {
            let cf = rng.choice([0u32, 0, 1, 127, 128, u32::MAX]).unwrap_or(0);
            Owned(rng.u8(0..7), cf, bytes(rng), bytes(rng))
        })
        .collect()
}

fn build(records: &[Owned]) -> BatchRep {
    let mut b = BatchRep::default();
    records.iter().for_each(|r| b.push(r.record()));
    b
}

#[test]
fn random_batches_round_trip() {
    for seed in 0..300 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (one, two) = (random(&mut rng), random(&mut rng));
        let mut batch = build(&one);
        batch.set_sequence(seed * 1000);
        assert_eq!(batch.count() as usize, one.iter().filter(|r| r.record().counts()).count(), "seed {seed}");
        batch.append(&build(&two));
        let expected: Vec<_> = one.iter().chain(&two).map(Owned::record).collect();
        let decoded = BatchRep::from_bytes(batch.as_bytes().to_vec()).unwrap();
        assert_eq!(decoded.iter().collect::<Result<Vec<_>>>().unwrap(), expected, "seed {seed}");
        assert_eq!(decoded.sequence(), seed * 1000);
        let (seq, records) = decode(batch.as_bytes()).unwrap();
        assert_eq!(seq, seed * 1000);
        assert_eq!(records.promised(), batch.count());
        assert_eq!(records.map(|r| r.unwrap()).collect::<Vec<_>>(), expected);
        // Column family 0 uses the short record types, others the long ones.
        for r in &expected {
            let mut single = BatchRep::default();
            single.push(*r);
            let t = ValueType::from_u8(single.as_bytes()[HEADER_LEN]).unwrap();
            assert_eq!(t == r.value_type(), matches!(r.column_family(), None | Some(0)), "{t:?}");
        }
    }
}

#[test]
fn clear_and_truncate_go_back() {
    let mut b = BatchRep::with_capacity(100);
    assert!(b.is_empty());
    b.set_sequence(9);
    b.push(BatchRecord::Put { cf: 0, key: b"k", value: b"v" });
    let (len, count) = (b.len_bytes(), b.count());
    let saved = b.clone();
    b.push(BatchRecord::Delete { cf: 3, key: b"k" });
    b.push(BatchRecord::LogData(b"note"));
    b.truncate(len, count);
    assert_eq!(b, saved);
    b.truncate(len + 1, 7);
    assert_eq!(b, saved, "truncating cannot grow");
    b.clear();
    assert_eq!(b, BatchRep::default());
    assert_eq!(b.iter().count(), 0);
    assert_eq!(b.into_bytes(), vec![0; HEADER_LEN]);
}

#[test]
fn every_truncation_is_an_error() {
    let mut rng = fastrand::Rng::with_seed(5);
    for _ in 0..20 {
        let records: Vec<_> = random(&mut rng).into_iter().filter(|r| r.2.len() + r.3.len() < 400).collect();
        let bytes = build(&records).into_bytes();
        for cut in 0..bytes.len() {
            match decode(&bytes[..cut]) {
                Err(_) => assert!(cut < HEADER_LEN),
                // Cutting off records that do not count goes unnoticed; cutting off any other makes the count wrong.
                Ok((_, iter)) => {
                    let got: Result<Vec<_>> = iter.collect();
                    let lost_counted = |n: usize| records[n..].iter().any(|r| r.record().counts());
                    if let Ok(got) = got {
                        assert!(!lost_counted(got.len()), "cut at {cut}");
                    }
                }
            }
        }
    }
}

#[test]
fn bit_flips_and_random_bytes_never_panic_and_errors_end_the_iteration() {
    for seed in 0..2000 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut bytes = build(&random(&mut rng)).into_bytes();
        for _ in 0..rng.usize(1..10) {
            let i = rng.usize(..bytes.len());
            bytes[i] = rng.u8(..);
        }
        if let Ok((_, mut iter)) = decode(&bytes) {
            while let Some(item) = iter.next() {
                if let Err(FormatError::Corruption { offset, .. }) = &item {
                    assert!(*offset <= bytes.len() as u64 + 1, "seed {seed}");
                }
                if item.is_err() {
                    assert!(iter.next().is_none(), "seed {seed}");
                }
            }
        }
    }
}

#[test]
fn a_wrong_count_is_found_at_the_end() {
    let mut bytes = build(&[Owned(0, 0, b"k".to_vec(), b"v".to_vec())]).into_bytes();
    bytes[COUNT_AT] = 2;
    let items: Vec<_> = decode(&bytes).unwrap().1.collect();
    assert_eq!(items.len(), 2);
    let error = items[1].clone().unwrap_err();
    assert_eq!(error, FormatError::corruption("write batch has 1 records but its header says 2", 8));
}

#[test]
fn no_record_of_a_batch_passes_the_last_sequence_number() {
    let mut rep = b"\0\0\0\0\0\0\0\0\x02\0\0\0\x01\x01a\x01b\x00\x01c".to_vec();
    rep[..8].copy_from_slice(&(crate::key::MAX_SEQUENCE - 1).to_le_bytes());
    assert_eq!(BatchRep::from_bytes(rep.clone()).unwrap().iter().count(), 2);
    rep[..8].copy_from_slice(&crate::key::MAX_SEQUENCE.to_le_bytes());
    assert!(BatchRep::from_bytes(rep.clone()).unwrap_err().to_string().contains("limit"));
    assert!(decode(&rep).is_err());
}

#[test]
fn sequence_numbers_over_56_bits_are_refused() {
    let mut bytes = vec![0; HEADER_LEN];
    bytes[7] = 1;
    assert!(BatchRep::from_bytes(bytes).is_err());
}

#[test]
fn unsupported_records_name_their_feature() {
    for (tag, feature) in [
        (0x9u8, "two-phase commit"),
        (0xA, "two-phase commit"),
        (0xB, "two-phase commit"),
        (0xC, "two-phase commit"),
        (0x12, "two-phase commit"),
        (0x13, "two-phase commit"),
        (0x15, "user-defined timestamps"),
        (0x14, "user-defined timestamps"),
        (0x10, "BlobDB"),
        (0x11, "BlobDB"),
        (0x16, "wide columns"),
        (0x17, "wide columns"),
        (0x18, "TimedPut"),
        (0x19, "TimedPut"),
    ] {
        let mut bytes = vec![0; HEADER_LEN];
        bytes.push(tag);
        match decode(&bytes).unwrap().1.next() {
            Some(Err(FormatError::Unsupported { feature: f })) => assert!(f.contains(feature), "{tag:#x}: {f}"),
            other => panic!("{tag:#x}: {other:?}"),
        }
    }
    for tag in [0x1Au8, 0x7F, 0xFF] {
        let mut bytes = vec![0; HEADER_LEN];
        bytes.push(tag);
        let item = decode(&bytes).unwrap().1.next();
        assert!(matches!(item, Some(Err(FormatError::Corruption { .. }))), "{tag:#x}: {item:?}");
    }
}

/// RocksDB 9.8.4 wrote this into its WAL: six records in two column families at sequence 7.
#[test]
fn rocksdb_wrote_this_batch() {
    let bytes = unhex("07000000000000000600000001016101310001620f016301640501017a0132040101790e01016d016e");
    let expected = [
        BatchRecord::Put { cf: 0, key: b"a", value: b"1" },
        BatchRecord::Delete { cf: 0, key: b"b" },
        BatchRecord::DeleteRange { cf: 0, begin: b"c", end: b"d" },
        BatchRecord::Put { cf: 1, key: b"z", value: b"2" },
        BatchRecord::Delete { cf: 1, key: b"y" },
        BatchRecord::DeleteRange { cf: 1, begin: b"m", end: b"n" },
    ];
    let (seq, iter) = decode(&bytes).unwrap();
    assert_eq!(seq, 7);
    assert_eq!(iter.map(|r| r.unwrap()).collect::<Vec<_>>(), expected);
    let mut again = BatchRep::default();
    again.set_sequence(7);
    expected.iter().for_each(|r| again.push(*r));
    assert_eq!(again.as_bytes(), bytes);
}

fn unhex(s: &str) -> Vec<u8> {
    (0..s.len()).step_by(2).map(|i| u8::from_str_radix(&s[i..i + 2], 16).unwrap()).collect()
}
