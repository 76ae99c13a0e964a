//! Tests of the log: round trips, every kind of damage, every recovery mode, files written by RocksDB.

use super::*;
use RecoveryMode::{AbsoluteConsistency, PointInTime, SkipAnyCorruptedRecords, TolerateCorruptedTailRecords};

const MODES: [RecoveryMode; 4] =
    [TolerateCorruptedTailRecords, AbsoluteConsistency, PointInTime, SkipAnyCorruptedRecords];
const LOG: u64 = (7 << 32) | 42;

fn encode(records: &[Vec<u8>], recyclable: bool) -> Vec<u8> {
    let mut out = Vec::new();
    let mut e = LogEncoder::new(LOG, recyclable, 0);
    for r in records {
        e.add_record(r, &mut out);
    }
    out
}

/// All events up to the end, with the records' contents. Fails if the reader does not reach the end.
fn events(bytes: &[u8]) -> Vec<(LogEvent, Vec<u8>)> {
    let mut reader = LogReader::new(bytes, LOG);
    let mut all = Vec::new();
    let mut record = Vec::new();
    // Each event except the last takes at least one header.
    for _ in 0..bytes.len() / HEADER_LEN + 3 {
        let Ok(event) = reader.next_record(&mut record);
        let done = matches!(event, LogEvent::End { .. });
        all.push((event, record.clone()));
        if done {
            return all;
        }
    }
    panic!("the reader does not end: {all:?}");
}

/// The result of a store's recovery: the records, and whether recovery fails or stops at a hole.
fn recover(bytes: &[u8], mode: RecoveryMode) -> (Vec<Vec<u8>>, RecoveryAction) {
    let mut records = Vec::new();
    for (event, record) in events(bytes) {
        match mode.action(&event) {
            RecoveryAction::Replay => records.push(record),
            RecoveryAction::Skip => {}
            stop => return (records, stop),
        }
    }
    unreachable!("the end stops every mode")
}

fn kinds(bytes: &[u8]) -> Vec<DamageKind> {
    let kind = |e| if let (LogEvent::Damage { kind, .. }, _) = e { Some(kind) } else { None };
    events(bytes).into_iter().filter_map(kind).collect()
}

fn random_records(rng: &mut fastrand::Rng) -> Vec<Vec<u8>> {
    let n = rng.usize(0..12);
    std::iter::repeat_with(|| {
        let len = match rng.u8(0..6) {
            0 => 0,
            1 => rng.usize(0..100),
            2 => rng.usize(BLOCK_SIZE - 40..BLOCK_SIZE + 40),
            3 => rng.usize(0..4 * BLOCK_SIZE),
            _ => rng.usize(0..3000),
        };
        std::iter::repeat_with(|| rng.u8(..)).take(len).collect()
    })
    .take(n)
    .collect()
}

fn sample(n: u8, len: usize) -> Vec<Vec<u8>> {
    (0..n).map(|i| vec![i + 1; len]).collect()
}

#[test]
fn random_records_round_trip_and_the_encoder_can_be_resumed() {
    for seed in 0..200 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let records = random_records(&mut rng);
        for recyclable in [false, true] {
            let bytes = encode(&records, recyclable);
            let (found, action) = recover(&bytes, AbsoluteConsistency);
            assert_eq!(action, RecoveryAction::Stop { hole: false }, "seed {seed}");
            assert_eq!(found, records, "seed {seed}");

            let mut resumed = Vec::new();
            for r in &records {
                let mut e = LogEncoder::new(LOG, recyclable, resumed.len() % BLOCK_SIZE);
                e.add_record(r, &mut resumed);
                assert_eq!(e.block_offset() % BLOCK_SIZE, resumed.len() % BLOCK_SIZE, "seed {seed}");
            }
            assert_eq!(resumed, bytes, "seed {seed}");
        }
    }
}

#[test]
fn block_ends_are_padded_with_zeros() {
    for recyclable in [false, true] {
        let header = if recyclable { RECYCLABLE_HEADER_LEN } else { HEADER_LEN };
        for left in 0..=header + 1 {
            let records = vec![vec![1; BLOCK_SIZE - header - left], vec![2; 5]];
            let bytes = encode(&records, recyclable);
            assert_eq!(recover(&bytes, AbsoluteConsistency).0, records);
            match left {
                l if l < header => {
                    assert!(bytes[BLOCK_SIZE - left..BLOCK_SIZE].iter().all(|b| *b == 0));
                    assert_eq!(bytes.len(), BLOCK_SIZE + header + 5);
                }
                // Room only for a header: a first fragment without payload.
                l if l == header => assert_eq!(bytes.len(), BLOCK_SIZE + header + 5),
                _ => assert_eq!(bytes.len(), BLOCK_SIZE + header + 4),
            }
        }
    }
}

#[test]
fn record_events_carry_offsets() {
    let records = vec![vec![1; 100], vec![2; BLOCK_SIZE], vec![], vec![3; 1]];
    let bytes = encode(&records, false);
    let offsets: Vec<u64> = events(&bytes)
        .into_iter()
        .filter_map(|(e, _)| if let LogEvent::Record { offset } = e { Some(offset) } else { None })
        .collect();
    let second_end = 107 + 7 + BLOCK_SIZE as u64 + 7;
    assert_eq!(offsets, [0, 107, second_end, second_end + 7]);
    let mut reader = LogReader::new(&bytes[..], LOG);
    let mut record = Vec::new();
    let Ok(_) = reader.next_record(&mut record);
    assert_eq!(reader.offset(), 107);
}

#[test]
fn every_truncation_is_a_cut_tail_or_clean() {
    let records = vec![vec![1; 20], vec![], vec![2; BLOCK_SIZE + 500], vec![3; 30]];
    for recyclable in [false, true] {
        let bytes = encode(&records, recyclable);
        let cuts = (0..200).chain(BLOCK_SIZE - 30..BLOCK_SIZE + 30).chain(bytes.len() - 60..bytes.len());
        for cut in cuts {
            let part = &bytes[..cut];
            let clean = matches!(events(part).last(), Some((LogEvent::End { clean: true }, _)));
            for mode in MODES {
                let (found, action) = recover(part, mode);
                assert_eq!(found, records[..found.len()], "cut at {cut}");
                let expected = match (clean, mode) {
                    (true, _) => RecoveryAction::Stop { hole: false },
                    (false, AbsoluteConsistency) => RecoveryAction::Fail,
                    (false, PointInTime) => RecoveryAction::Stop { hole: true },
                    (false, _) => RecoveryAction::Stop { hole: false },
                };
                assert_eq!(action, expected, "cut at {cut}, {mode:?}");
            }
            if clean {
                // Only whole records and padding.
                assert_eq!(recover(part, AbsoluteConsistency).0.len(), recover(part, SkipAnyCorruptedRecords).0.len());
            } else {
                assert_eq!(kinds(part), [DamageKind::CutTail], "cut at {cut}");
            }
        }
    }
}

#[test]
fn bit_flips_never_invent_records() {
    for seed in 0..60 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let records = random_records(&mut rng);
        let mut bytes = encode(&records, rng.bool());
        if bytes.is_empty() {
            continue;
        }
        for _ in 0..rng.usize(1..4) {
            let i = rng.usize(..bytes.len());
            bytes[i] ^= 1 << rng.u8(0..8);
        }
        for mode in MODES {
            let (found, _) = recover(&bytes, mode);
            // The remaining records are originals in their order.
            let mut originals = records.iter();
            for f in &found {
                assert!(originals.any(|r| r == f), "seed {seed}, {mode:?}: a record that was never written");
            }
        }
        let (prefix, _) = recover(&bytes, PointInTime);
        assert_eq!(prefix, records[..prefix.len()], "seed {seed}");
    }
}

#[test]
fn random_bytes_end_and_do_not_panic() {
    for seed in 0..300 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let len = rng.usize(0..3 * BLOCK_SIZE);
        // Small values are plausible as types and lengths.
        let top = rng.choice([2u8, 12, 255]).unwrap_or(255);
        let bytes: Vec<u8> = std::iter::repeat_with(|| rng.u8(0..=top)).take(len).collect();
        assert!(recover(&bytes, SkipAnyCorruptedRecords).0.is_empty(), "seed {seed}");
    }
}

#[test]
fn zeros_allocated_ahead_are_a_clean_end() {
    let records = sample(3, 50);
    for recyclable in [false, true] {
        let bytes = encode(&records, recyclable);
        for zeros in [7, 100, BLOCK_SIZE, 3 * BLOCK_SIZE + 9] {
            let mut padded = bytes.clone();
            padded.resize(bytes.len() + zeros, 0);
            for mode in MODES {
                // RocksDB calls a last block shorter than a header a truncated header.
                if (padded.len() % BLOCK_SIZE) >= HEADER_LEN {
                    let expected = (records.clone(), RecoveryAction::Stop { hole: false });
                    assert_eq!(recover(&padded, mode), expected, "{zeros} {mode:?}");
                }
            }
        }
        // A record cut off there is a truncated tail.
        let mut torn = encode(&[vec![9; BLOCK_SIZE + 100]], recyclable);
        torn[BLOCK_SIZE..].fill(0);
        assert_eq!(kinds(&torn), [DamageKind::CutTail]);
    }
}

#[test]
fn a_log_that_goes_on_behind_zeros_is_damaged() {
    for recyclable in [false, true] {
        // Three blocks; in the second one, the start of a record or its remainder reads as zeros.
        let short = vec![vec![1; 100], vec![2; BLOCK_SIZE - 300], vec![3; BLOCK_SIZE + 500], vec![4; 100]];
        let whole = encode(&short, recyclable);
        let header = if recyclable { RECYCLABLE_HEADER_LEN } else { HEADER_LEN };
        let third = 2 * header + 100 + BLOCK_SIZE - 300;
        for from in [third, BLOCK_SIZE] {
            let mut holed = whole.clone();
            holed[from..2 * BLOCK_SIZE].fill(0);
            assert_eq!(kinds(&holed)[0], DamageKind::BrokenRecord, "{recyclable} {from}");
            assert_eq!(recover(&holed, PointInTime), (short[..2].to_vec(), RecoveryAction::Stop { hole: true }));
            let (kept, _) = recover(&holed, SkipAnyCorruptedRecords);
            assert_eq!(kept, [short[0].clone(), short[1].clone(), short[3].clone()]);
        }
    }
}

#[test]
fn a_record_of_which_zeros_take_the_place_is_cut_off_where_a_sector_begins() {
    let records = [vec![1; 700], vec![2; 2000], vec![3; 700]];
    let ends = [7 + 700, 14 + 2700, 21 + 3400];
    let mut whole = encode(&records, false);
    whole.resize(3 * BLOCK_SIZE, 0);
    // Zeros from a sector's start on, within the last record, after any content; and too few zeros, which are damage.
    let damage = DamageKind::BadFragment { recycled: false };
    for (from, kind) in [(3072, DamageKind::CutTail), (3000, DamageKind::CutTail), (3100, damage)] {
        let mut torn = whole.clone();
        torn[from..].fill(0);
        assert_eq!(kinds(&torn), [kind], "{from}");
        assert_eq!(recover(&torn, PointInTime), (records[..2].to_vec(), RecoveryAction::Stop { hole: true }));
    }
    // A flipped bit there is damage, and so is a torn write with more data after it.
    let mut flipped = whole.clone();
    flipped[ends[1] + 100] ^= 1;
    assert_eq!(kinds(&flipped), [DamageKind::BadFragment { recycled: false }]);
    let mut middle = whole.clone();
    middle[1024..ends[1]].fill(0);
    assert_eq!(kinds(&middle), [DamageKind::BadFragment { recycled: false }]);
    // Zeros at a record's start with more data in the same block.
    let mut holed = whole;
    holed[ends[0]..ends[1]].fill(0);
    assert_eq!(kinds(&holed), [DamageKind::BrokenRecord]);
    // A MANIFEST is not read in this way.
    let mut reader = LogReader::new(&holed[..], LOG).without_space_ahead();
    let mut record = Vec::new();
    assert!(matches!(reader.next_record(&mut record).unwrap(), LogEvent::Record { offset: 0 }));
    assert_eq!(reader.next_record(&mut record).unwrap(), LogEvent::End { clean: true });
    assert_eq!(reader.zeros_at(), Some(ends[0] as u64));
}

#[test]
fn a_recycled_file_may_end_in_an_earlier_logs_zeros() {
    // Values of zeros: where the new log ends, the old one has bytes that look like reserved space, followed by whole
    // blocks.
    let mut file = Vec::new();
    let mut old = LogEncoder::new(LOG - 1, true, 0);
    for _ in 0..5 {
        old.add_record(&vec![0; BLOCK_SIZE - 100], &mut file);
    }
    let new = encode(&[vec![1; 400], vec![2; 500]], true);
    file[..new.len()].copy_from_slice(&new);
    let found = kinds(&file);
    assert!(found.len() > 1 && found.iter().all(|&k| k == DamageKind::OldRecord { in_record: false }), "{found:?}");
}

#[test]
fn the_padding_of_a_block_with_long_headers_is_no_space_ahead() {
    // 7 to 10 bytes are left: enough for a short header, not for a long one.
    for left in HEADER_LEN..RECYCLABLE_HEADER_LEN {
        let records = [vec![1; BLOCK_SIZE - RECYCLABLE_HEADER_LEN - left], vec![2; 50]];
        let bytes = encode(&records, true);
        assert_eq!(bytes.len(), BLOCK_SIZE + RECYCLABLE_HEADER_LEN + 50);
        assert_eq!(recover(&bytes, AbsoluteConsistency).0, records, "{left} bytes left");
        let mut reader = LogReader::new(&bytes[..], LOG);
        let mut record = Vec::new();
        while let LogEvent::Record { .. } = reader.next_record(&mut record).unwrap() {}
        assert_eq!(reader.zeros_at(), None, "{left} bytes left");
    }
}

#[test]
fn a_recycled_file_ends_at_the_earlier_logs_records() {
    let old = {
        let mut out = Vec::new();
        LogEncoder::new(LOG - 1, true, 0).add_record(&[7; 400], &mut out);
        let mut e = LogEncoder::new(LOG - 1, true, out.len());
        e.add_record(&[8; 400], &mut out);
        out
    };
    // The new log ends exactly where an old record starts.
    let new = encode(&[vec![1; 400]], true);
    let mut file = old.clone();
    file[..new.len()].copy_from_slice(&new);
    assert_eq!(kinds(&file), [DamageKind::OldRecord { in_record: false }]);
    for mode in MODES {
        let (found, action) = recover(&file, mode);
        assert_eq!(found, [vec![1; 400]]);
        assert_eq!(action, RecoveryAction::Stop { hole: mode == PointInTime }, "{mode:?}");
    }
    // It ends inside an old record: the bytes there fail their check.
    let new = encode(&[vec![1; 100]], true);
    let mut file = old;
    file[..new.len()].copy_from_slice(&new);
    let damage = kinds(&file);
    assert_eq!(damage.len(), 1, "{damage:?}");
    for mode in MODES {
        let (found, action) = recover(&file, mode);
        assert_eq!(found, [vec![1; 100]]);
        let cut = damage == [DamageKind::CutTail];
        assert!(cut || damage == [DamageKind::BadFragment { recycled: true }], "{damage:?}");
        let expected = match mode {
            AbsoluteConsistency => RecoveryAction::Fail,
            PointInTime => RecoveryAction::Stop { hole: true },
            TolerateCorruptedTailRecords | SkipAnyCorruptedRecords => RecoveryAction::Stop { hole: false },
        };
        assert_eq!(action, expected, "{mode:?}");
    }
    // An old record in the middle of a fragmented one.
    let mut torn = encode(&[vec![1; BLOCK_SIZE + 100]], true);
    let mut old = Vec::new();
    LogEncoder::new(LOG - 1, true, 0).add_record(&[7; 300], &mut old);
    torn.truncate(BLOCK_SIZE);
    torn.extend_from_slice(&old);
    assert_eq!(kinds(&torn), [DamageKind::OldRecord { in_record: true }]);
    assert_eq!(recover(&torn, AbsoluteConsistency), (vec![], RecoveryAction::Fail));
    assert_eq!(recover(&torn, TolerateCorruptedTailRecords), (vec![], RecoveryAction::Stop { hole: false }));
}

#[test]
fn reading_goes_on_behind_a_damaged_block() {
    let records = sample(8, 10_000);
    let clean = encode(&records, false);
    let mut bytes = clean.clone();
    // Damages the second record, in the first block: the rest of that block is lost with it.
    bytes[10_007 + 50] ^= 1;
    let (found, action) = recover(&bytes, SkipAnyCorruptedRecords);
    assert_eq!(action, RecoveryAction::Stop { hole: false });
    assert_eq!(found[0], records[0]);
    assert_eq!(found[1..], records[4..], "records 2, 3 and the start of 4 were in the damaged block");
    assert_eq!(kinds(&bytes), [DamageKind::BadFragment { recycled: false }, DamageKind::BrokenRecord]);
    assert_eq!(recover(&bytes, PointInTime), (records[..1].to_vec(), RecoveryAction::Stop { hole: true }));
    assert_eq!(recover(&bytes, TolerateCorruptedTailRecords), (records[..1].to_vec(), RecoveryAction::Fail));
    let Some((LogEvent::Damage { error, dropped, .. }, _)) = events(&bytes).into_iter().nth(1) else {
        panic!("the second event is damage")
    };
    assert_eq!(error, FormatError::corruption("log fragment checksum mismatch", 10_007));
    assert_eq!(dropped, (BLOCK_SIZE - 10_007) as u64);
}

/// Stale bytes may look like an unknown type: they are not an old record, although the type is odd.
#[test]
fn stale_bytes_of_an_unknown_odd_type_are_a_bad_fragment() {
    let mut file = encode(&[vec![1; 100]], true);
    file.resize(30_000, 0x11);
    assert_eq!(kinds(&file), [DamageKind::BadFragment { recycled: true }]);
}

/// A fragment of any type, with a correct checksum.
fn fragment(t: u8, payload: &[u8]) -> Vec<u8> {
    let mut tail = (payload.len() as u16).to_le_bytes().to_vec();
    tail.push(t);
    if is_recyclable(t) {
        tail.extend_from_slice(&(LOG as u32).to_le_bytes());
    }
    tail.extend_from_slice(payload);
    let mut out = mask(crc32c(&tail[2..])).to_le_bytes().to_vec();
    out.extend_from_slice(&tail);
    out
}

#[test]
fn special_record_types() {
    let good = encode(&[vec![5; 30]], false);
    for t in [130u8, 131, 200, 255] {
        let mut log = fragment(t, b"whatever it is");
        log.extend_from_slice(&good);
        let expected = (vec![vec![5; 30]], RecoveryAction::Stop { hole: false });
        assert_eq!(recover(&log, AbsoluteConsistency), expected, "type {t} may be ignored");
    }
    for t in [12u8, 50, 127] {
        let mut log = fragment(t, b"x");
        log.extend_from_slice(&good);
        assert_eq!(kinds(&log), [DamageKind::BrokenRecord], "type {t}");
        assert_eq!(recover(&log, SkipAnyCorruptedRecords).0.len(), 1, "type {t}");
    }
    for (t, payload, feature) in [
        (9u8, &[7u8, 0, 0, 0][..], "compressed WAL (wal_compression)"),
        (10, &[0, 0, 0, 0, 8, 0], "user-defined timestamps in the WAL"),
        (11, &[0, 0, 0, 0, 8, 0], "user-defined timestamps in the WAL"),
    ] {
        let mut log = fragment(t, payload);
        log.extend_from_slice(&good);
        let Some((LogEvent::Damage { kind: DamageKind::Unsupported, error, .. }, _)) = events(&log).into_iter().next()
        else {
            panic!("type {t} is refused")
        };
        assert_eq!(error, FormatError::unsupported(feature));
        for mode in MODES {
            assert_eq!(recover(&log, mode), (vec![], RecoveryAction::Fail), "{mode:?}");
        }
    }
}

#[test]
fn fragments_out_of_order() {
    let (full, first, middle, last) = (fragment(1, b"F"), fragment(2, b"a"), fragment(3, b"b"), fragment(4, b"c"));
    // Fragments, number of damages, records.
    type Case<'a> = (&'a [&'a [u8]], usize, &'a [&'a [u8]]);
    let cases: [Case<'_>; 8] = [
        (&[&first, &middle, &last], 0, &[b"abc"]),
        (&[&middle, &last, &first, &middle, &last], 2, &[b"abc"]),
        (&[&last, &full], 1, &[b"F"]),
        (&[&first, &full], 1, &[b"F"]),
        (&[&first, &middle, &first, &middle, &last], 1, &[b"abc"]),
        (&[&first, &middle], 1, &[]),
        // Old writers left empty first fragments.
        (&[&fragment(2, b""), &full], 0, &[b"F"]),
        (&[&first, &fragment(130, b"i"), &full], 1, &[b"F"]),
    ];
    for (i, (parts, damages, records)) in cases.into_iter().enumerate() {
        let log = parts.concat();
        assert_eq!(kinds(&log).len(), damages, "case {i}: {:?}", events(&log));
        assert_eq!(recover(&log, SkipAnyCorruptedRecords).0, records, "case {i}");
    }
    // A recyclable fragment after legacy records: RocksDB considers it a bad record.
    let log = [full, fragment(5, b"R")].concat();
    assert_eq!(kinds(&log), [DamageKind::BadFragment { recycled: false }]);
}

/// The whole table, as in `DBImpl::RecoverLogFiles` and `log::Reader::ReadRecord`.
#[test]
fn every_mode_at_every_event() {
    use RecoveryAction::{Fail, Replay, Skip, Stop};
    let (end, hole) = (Stop { hole: false }, Stop { hole: true });
    let damage = |kind| LogEvent::Damage { kind, error: FormatError::corruption("x", 0), dropped: 1 };
    // Tolerate, absolute, point in time, skip.
    let table = [
        (LogEvent::Record { offset: 0 }, [Replay, Replay, Replay, Replay]),
        (LogEvent::End { clean: true }, [end, end, end, end]),
        (LogEvent::End { clean: false }, [end, end, end, end]),
        (damage(DamageKind::CutTail), [end, Fail, hole, end]),
        (damage(DamageKind::OldRecord { in_record: false }), [end, end, hole, Skip]),
        (damage(DamageKind::OldRecord { in_record: true }), [end, Fail, hole, Skip]),
        (damage(DamageKind::BadFragment { recycled: false }), [Fail, Fail, hole, Skip]),
        (damage(DamageKind::BadFragment { recycled: true }), [end, Fail, hole, Skip]),
        (damage(DamageKind::BrokenRecord), [Fail, Fail, hole, Skip]),
        (damage(DamageKind::Unsupported), [Fail, Fail, Fail, Fail]),
    ];
    for (event, actions) in table {
        for (mode, expected) in MODES.into_iter().zip(actions) {
            assert_eq!(mode.action(&event), expected, "{mode:?} at {event:?}");
        }
    }
    let bad = FormatError::corruption("x", 0);
    assert_eq!(MODES.map(|m| m.action_on_error(&bad)), [Fail, Fail, hole, Skip]);
    assert_eq!(MODES.map(|m| m.action_on_error(&FormatError::unsupported("x"))), [Fail; 4]);
}

/// A recyclable log that RocksDB 9.8.4 wrote (`recycle_log_file_num = 2`), number 14: `put last`, then a batch in two
/// column families.
#[test]
fn rocksdb_wrote_this_recyclable_log() {
    let bytes = unhex(
        "1316739a1400050e00000006000000000000000100000001046c61737401316c23da862900050e0000000700000000000000060000000101\
         6101310001620f016301640501017a0132040101790e01016d016e",
    );
    let mut reader = LogReader::new(&bytes[..], 14);
    let mut records = Vec::new();
    let mut record = Vec::new();
    while let Ok(LogEvent::Record { .. }) = reader.next_record(&mut record) {
        records.push(record.clone());
    }
    assert!(reader.is_recycled());
    assert_eq!(records.len(), 2);
    assert_eq!(reader.offset(), bytes.len() as u64);
    let mut again = Vec::new();
    let mut e = LogEncoder::new(14, true, 0);
    records.iter().for_each(|r| e.add_record(r, &mut again));
    assert_eq!(again, bytes, "the encoder writes RocksDB's bytes");
}

/// A log that Debian's RocksDB 7.8.3 wrote (`ldb deleterange a b`).
#[test]
fn rocksdb_wrote_this_legacy_log() {
    let bytes = unhex("a4bb70ea1100010400000000000000010000000f01610162");
    let mut reader = LogReader::new(&bytes[..], 21);
    let mut record = Vec::new();
    assert_eq!(reader.next_record(&mut record), Ok(LogEvent::Record { offset: 0 }));
    let mut again = Vec::new();
    LogEncoder::new(21, false, 0).add_record(&record, &mut again);
    assert_eq!(again, bytes);
}

fn unhex(s: &str) -> Vec<u8> {
    (0..s.len()).step_by(2).map(|i| u8::from_str_radix(&s[i..i + 2], 16).unwrap()).collect()
}

#[test]
fn reading_goes_on_where_it_ended() {
    let mut log = Vec::new();
    let mut encoder = LogEncoder::new(7, true, 0);
    let records: Vec<Vec<u8>> = (0..60u8).map(|i| vec![i; 37 * usize::from(i) * usize::from(i) % 70_000]).collect();
    let mut ends = vec![0];
    for r in &records {
        encoder.add_record(r, &mut log);
        ends.push(log.len());
    }
    // From each record's end: first with a log that ends there, then with the whole log.
    for (i, &end) in ends.iter().enumerate() {
        let whole = &log[block_start(end as u64) as usize..];
        let cut = &log[block_start(end as u64) as usize..end];
        let mut record = Vec::new();
        let mut reader = LogReader::resume(cut, 7, end as u64, true);
        assert_eq!(reader.next_record(&mut record), Ok(LogEvent::End { clean: true }), "{i}");
        let mut reader = LogReader::resume(whole, 7, end as u64, true);
        for (want, end) in records[i..].iter().zip(&ends[i + 1..]) {
            assert!(matches!(reader.next_record(&mut record), Ok(LogEvent::Record { .. })));
            assert!(record == *want);
            assert_eq!(reader.offset(), *end as u64);
        }
        assert_eq!(reader.next_record(&mut record), Ok(LogEvent::End { clean: true }));
    }
}
