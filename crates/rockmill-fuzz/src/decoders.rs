//! Decoders: pure functions of bytes. All except those for job specs and perfect hash functions are from
//! `rockmill-format`.

use std::ops::ControlFlow;

use rockmill::internals::{JobRegistry, JobResult, JobSpec};
use rockmill_format::block::{BlockCursor, BlockKind, BlockLayout};
use rockmill_format::compression::{Dictionary, decompress};
use rockmill_format::edit::VersionEdit;
use rockmill_format::filter::FilterReader;
use rockmill_format::footer::Footer;
use rockmill_format::hash::hash64;
use rockmill_format::log::{LogEvent, LogReader, RecoveryAction, RecoveryMode};
use rockmill_format::properties::TableProperties;
use rockmill_format::{InternalKeyComparator, ParsedInternalKey, batch as batches};
use rockmill_phash::{BuildError, Builder, Kind, PerfectHash};

use crate::mend;

/// Splits off the first byte, which selects a variant; zero if there are no bytes.
fn choose(data: &[u8]) -> (u8, &[u8]) {
    data.split_first().map_or((0, data), |(&first, rest)| (first, rest))
}

/// The footer of a table, unchanged and with a corrected checksum.
pub fn footer(data: &[u8]) {
    let mut mended = data.to_vec();
    mend::footer(&mut mended, data.len() as u64);
    for tail in [data, &mended] {
        for size in [tail.len() as u64, tail.len() as u64 + (1 << 33), u64::MAX, 0] {
            let Ok(footer) = Footer::decode(tail, size) else { continue };
            assert!((2..=7).contains(&footer.format_version));
            assert!(footer.index.is_some() == (footer.format_version < 6));
            let _ = footer.verify_block(tail, footer.metaindex.offset);
        }
    }
}

/// A block of entries: iterated and searched. The first byte selects its kind.
pub fn block(data: &[u8]) {
    let (choice, data) = choose(data);
    let index = |value_delta, user_keys, first_key| BlockKind::Index { value_delta, user_keys, first_key };
    let kind = match choice % 8 {
        0 => BlockKind::Data { global_seqno: None },
        1 => BlockKind::Data { global_seqno: Some(77) },
        2 => BlockKind::Meta,
        3 => index(false, false, false),
        4 => index(true, false, false),
        5 => index(true, true, false),
        6 => index(false, true, true),
        _ => index(true, false, true),
    };
    walk_block(data, kind);
}

fn walk_block(data: &[u8], kind: BlockKind) {
    let Ok(layout) = BlockLayout::parse(data) else { return };
    let cmp = InternalKeyComparator::default();
    let mut cursor = BlockCursor::new(layout, kind);
    let mut keys: Vec<Vec<u8>> = Vec::new();
    let mut there = 0;
    if cursor.seek_to_first(data).is_ok() {
        while cursor.valid() {
            there += 1;
            // Each entry takes bytes of its own in the block: more entries than bytes mean an endless loop.
            assert!(there <= data.len(), "an entry took no bytes");
            assert!(cursor.value_range().end <= data.len());
            let _ = (cursor.value(data), cursor.handle(), cursor.first_key(data));
            if keys.len() < 32 {
                keys.push(cursor.key().to_vec());
            }
            if cursor.next(data).is_err() {
                break;
            }
        }
    }
    if cursor.seek_to_last(data).is_ok() {
        let mut steps = 0;
        while cursor.valid() && cursor.prev(data).is_ok() {
            steps += 1;
            assert!(steps <= 2 * data.len(), "going back does not end");
        }
    }
    let strange = [b"\0\0\0\0\0\0\0\0".to_vec(), b"key\x01\xff\xff\xff\xff\xff\xff\xff".to_vec(), vec![0xff; 40]];
    for key in keys.iter().chain(&strange) {
        // Callers' targets always have a tag, except in a block of plain keys.
        let mut target = key.clone();
        if target.len() < 8 {
            target.resize(8, 0);
        }
        if cursor.seek(data, &target, &cmp).is_ok() && cursor.valid() {
            let _ = cursor.prev(data);
        }
        if cursor.seek_for_prev(data, &target, &cmp).is_ok() && cursor.valid() {
            let _ = cursor.next(data);
        }
        if matches!(kind, BlockKind::Data { .. }) {
            let _ = cursor.seek_for_get(data, &target, &cmp);
        }
        let _ = ParsedInternalKey::parse(key);
    }
}

/// A filter block.
pub fn filter(data: &[u8]) {
    let Ok(reader) = FilterReader::parse(data.to_vec()) else { return };
    for key in [&b""[..], b"a", b"key0001", data] {
        assert_eq!(reader.may_match(key), reader.may_match_hashed(key, hash64(key)));
    }
    let _ = (reader.is_empty(), reader.kind_name(), reader.memory_usage());
}

/// A perfect hash function: the bytes as a function, and functions built from the bytes as hashes.
pub fn perfect_hash(data: &[u8]) {
    let hashes: Vec<u64> = data.as_chunks().0.iter().take(2000).map(|&bytes| u64::from_le_bytes(bytes)).collect();
    let mut slots = vec![0; hashes.len()];
    if let Ok(function) = PerfectHash::open(data) {
        assert!(function.slot_count() <= 256 * data.len());
        function.slots(&hashes, &mut slots);
        for (&hash, &slot) in hashes.iter().zip(&slots) {
            assert!(slot == function.slot(hash) && slot < function.slot_count());
        }
    }
    for kind in Kind::ALL {
        match Builder::new().kind(kind).seed(hashes.len() as u64).build(&hashes) {
            Ok(bytes) => {
                let function = PerfectHash::open(&bytes[..]).expect("what was built opens");
                function.slots(&hashes, &mut slots);
                let mut sorted = slots.clone();
                sorted.sort_unstable();
                assert!(sorted.windows(2).all(|pair| pair[0] < pair[1]), "two keys have one slot");
                assert!(sorted.last().is_none_or(|&last| last < function.slot_count()));
            }
            Err(BuildError::Duplicate { hash, positions }) => {
                assert!(positions.len() > 1 && positions.iter().all(|&at| hashes[at] == hash));
            }
            Err(e) => unreachable!("{e}"),
        }
    }
}

/// The properties block of a table.
pub fn properties(data: &[u8]) {
    let Ok(properties) = TableProperties::decode_block(data) else { return };
    let _ = (properties.for_display(), properties.index_type(), properties.global_seqno());
    let _ = (properties.whole_key_filtering(), properties.prefix_filtering());
    let again = TableProperties::decode_block(&properties.encode_block()).expect("what was encoded decodes");
    assert_eq!(again, properties, "properties change when they are written again");
}

/// A compressed block: the first byte is the compression type, the second selects whether there is a dictionary.
pub fn compression(data: &[u8]) {
    let (kind, data) = choose(data);
    let (dictionary, data) = choose(data);
    let dictionary = (dictionary & 1 == 1).then(|| Dictionary::new(b"a dictionary of words such as key0001 value"));
    if let Ok(out) = decompress(kind, data, dictionary.as_ref(), 1 << 30) {
        assert!(out.len() <= 1 << 30);
    }
}

/// A write batch, as a WAL record or as a user's bytes.
pub fn batch(data: &[u8]) {
    if let Ok((_, records)) = batches::decode(data) {
        let mut count = 0;
        for record in records {
            count += 1;
            assert!(count <= data.len(), "a record took no bytes");
            if let Ok(record) = record {
                let _ = (record.column_family(), record.value_type(), record.counts());
            } else {
                break;
            }
        }
    }
    if let Ok(rep) = batches::BatchRep::from_bytes(data.to_vec()) {
        assert_eq!(rep.as_bytes(), data);
        let _ = rep.iter().take(data.len() + 1).count();
    }
}

/// A log, unchanged and with corrected checksums, read in every recovery mode; its records are read as batches.
pub fn wal(data: &[u8]) {
    let mut mended = data.to_vec();
    mend::log(&mut mended);
    for bytes in [data, &mended] {
        read_log(bytes, batch);
    }
}

/// Reads all records of a log in each recovery mode. Checks that reading ends and that a reader can continue anywhere.
pub fn read_log(data: &[u8], mut f: impl FnMut(&[u8])) {
    use RecoveryMode::{AbsoluteConsistency, PointInTime, SkipAnyCorruptedRecords, TolerateCorruptedTailRecords};
    let modes = [SkipAnyCorruptedRecords, PointInTime, TolerateCorruptedTailRecords, AbsoluteConsistency];
    for (nth, mode) in modes.into_iter().enumerate() {
        let mut reader = LogReader::new(data, 7);
        let mut record = Vec::new();
        let mut events = 0;
        let mut step = || {
            events += 1;
            assert!(events <= data.len() + 2, "reading a log does not end");
            let event = match reader.next_record(&mut record) {
                Ok(event) => event,
                Err(never) => match never {},
            };
            if matches!(event, LogEvent::Record { .. }) && nth == 0 {
                f(&record);
            }
            let end = matches!(event, LogEvent::End { .. });
            let action = mode.action(&event);
            assert!(reader.offset() <= data.len() as u64);
            match action {
                RecoveryAction::Fail | RecoveryAction::Stop { .. } => ControlFlow::Break(()),
                _ if end => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        };
        while step().is_continue() {}
        let (offset, recycled) = (reader.offset(), reader.is_recycled());
        let rest = data.get(rockmill_format::log::block_start(offset) as usize..).unwrap_or(&[]);
        let mut again = LogReader::resume(rest, 7, offset, recycled);
        let _ = again.next_record(&mut record);
    }
}

/// A record of a MANIFEST.
pub fn version_edit(data: &[u8]) {
    let Ok(edit) = VersionEdit::decode(data) else { return };
    assert!(edit.new_files.iter().all(|(_, f)| f.has_sound_pieces()), "unsound pieces are let through");
    let bytes = edit.encode();
    let again = VersionEdit::decode(&bytes).expect("what was encoded decodes");
    assert_eq!(again.encode(), bytes, "an edit changes when it is written again");
}

/// The spec of a job, unchanged and with a corrected checksum.
pub fn job_spec(data: &[u8]) {
    let mut mended = data.to_vec();
    mend::job_message(&mut mended);
    for bytes in [data, &mended] {
        let Ok(spec) = JobSpec::decode(bytes) else { continue };
        let again = spec.encode().expect("what was decoded encodes");
        assert_eq!(JobSpec::decode(&again), Ok(spec.clone()), "a spec changes when it is written again");
        let _ = (JobRegistry::default().objects(&spec), spec.input_bytes());
    }
}

/// The result of a job, unchanged and with a corrected checksum.
pub fn job_result(data: &[u8]) {
    let mut mended = data.to_vec();
    mend::job_message(&mut mended);
    for bytes in [data, &mended] {
        let Ok(result) = JobResult::decode(bytes) else { continue };
        let again = result.encode().expect("what was decoded encodes");
        assert_eq!(JobResult::decode(&again), Ok(result), "a result changes when it is written again");
    }
}
