//! Logs, batches and version edits against RocksDB's own tools (`ldb`, `db_bench`), in both directions. Each test that
//! lacks a tool reports that it was skipped.

use std::path::{Path, PathBuf};
use std::process::Command;

use rockmill_format::batch::{self, BatchRecord, BatchRep};
use rockmill_format::edit::{FileEntry, VersionEdit};
use rockmill_format::log::{LogEncoder, LogEvent, LogReader};
use rockmill_format::{InternalKey, ValueType};
use rockmill_skip::{Needs, program, skip};

/// Runs a tool and returns its standard output; reports and returns `None` if it is not installed.
fn tool(name: &str, args: &[String]) -> Option<String> {
    let path = program(name, Needs::Ldb).inspect_err(|missing| skip("logs against RocksDB's tools", missing)).ok()?;
    let out = Command::new(path).args(args).output().unwrap_or_else(|e| panic!("{name}: {e}"));
    let (stdout, stderr) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{name} {args:?}: {stdout}{stderr}");
    Some(stdout.into_owned())
}

fn files(dir: &Path, keep: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| keep(p.file_name().unwrap().to_str().unwrap()))
        .collect();
    found.sort();
    found
}

fn log_number(path: &Path) -> u64 {
    let digits: String = path.file_name().unwrap().to_str().unwrap().chars().filter(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

/// The records of a log that must be undamaged, with their offsets.
fn records(path: &Path) -> Vec<(u64, Vec<u8>)> {
    let bytes = std::fs::read(path).unwrap();
    let mut reader = LogReader::new(&bytes[..], log_number(path));
    let mut all = Vec::new();
    let mut record = Vec::new();
    loop {
        match reader.next_record(&mut record).unwrap() {
            LogEvent::Record { offset } => all.push((offset, record.clone())),
            LogEvent::End { clean } => {
                assert!(clean, "{}", path.display());
                return all;
            }
            damage => panic!("{}: {damage:?}", path.display()),
        }
    }
}

/// One line in the format that `ldb dump_wal --header --print_value` uses for a batch.
fn dump_line(offset: u64, rep: &[u8]) -> String {
    use std::fmt::Write;
    let hex = |b: &[u8]| b.iter().fold("0x".to_owned(), |s, b| s + &format!("{b:02X}"));
    let (sequence, records) = batch::decode(rep).unwrap();
    let mut line = format!("{sequence},{},{},{offset},", records.promised(), rep.len());
    for r in records {
        match r.unwrap() {
            BatchRecord::Put { cf, key, value } => write!(line, "PUT({cf}) : {} : {} ", hex(key), hex(value)),
            BatchRecord::Merge { cf, key, value } => write!(line, "MERGE({cf}) : {} : {} ", hex(key), hex(value)),
            BatchRecord::Delete { cf, key } => write!(line, "DELETE({cf}) : {} ", hex(key)),
            BatchRecord::SingleDelete { cf, key } => write!(line, "SINGLE_DELETE({cf}) : {} ", hex(key)),
            BatchRecord::DeleteRange { cf, begin, end } => {
                write!(line, "DELETE_RANGE({cf}) : {} {} ", hex(begin), hex(end))
            }
            BatchRecord::LogData(_) | BatchRecord::Noop => Ok(()),
        }
        .unwrap();
    }
    line
}

/// The output of `ldb` for a WAL, without the heading.
fn ldb_dump(path: &Path) -> Option<Vec<String>> {
    let args =
        ["dump_wal".to_owned(), format!("--walfile={}", path.display()), "--header".into(), "--print_value".into()];
    Some(tool("ldb", &args)?.lines().skip(1).map(str::to_owned).collect())
}

#[test]
fn rocksdb_writes_and_we_read_its_wal_and_manifest() {
    let dir = tempfile::tempdir().unwrap();
    let db = dir.path().join("db");
    // Batches of 50 records of 1,000 bytes take several blocks each; small buffers cause flushes and compactions.
    for (batch_size, num) in [(1, 3000), (50, 4000)] {
        let args = [
            "--benchmarks=fillrandom".to_owned(),
            format!("--db={}", db.display()),
            format!("--num={num}"),
            format!("--batch_size={batch_size}"),
            "--value_size=1000".into(),
            "--write_buffer_size=500000".into(),
            "--compression_type=none".into(),
        ];
        if tool("db_bench", &args).is_none() {
            return;
        }
        let wals = files(&db, |n| n.ends_with(".log"));
        let mut seen = 0;
        for wal in &wals {
            let ours: Vec<String> = records(wal).iter().map(|(offset, rep)| dump_line(*offset, rep)).collect();
            seen += ours.len();
            let Some(theirs) = ldb_dump(wal) else { return };
            assert_eq!(ours, theirs, "{}", wal.display());
        }
        assert!(seen > 0, "db_bench left no WAL records");

        let manifest = files(&db, |n| n.starts_with("MANIFEST-")).pop().unwrap();
        let mut live = std::collections::BTreeMap::new();
        for (_, record) in records(&manifest) {
            let edit = VersionEdit::decode(&record).unwrap();
            for (level, number) in &edit.deleted_files {
                assert_eq!(live.remove(number).map(|(l, _)| l), Some(*level));
            }
            for (level, f) in &edit.new_files {
                assert!(live.insert(f.number, (*level, f.size)).is_none());
            }
            assert_eq!(VersionEdit::decode(&edit.encode()).unwrap(), edit);
        }
        assert!(!live.is_empty(), "no flush happened");
        for (number, (_, size)) in live {
            let table = db.join(format!("{number:06}.sst"));
            assert_eq!(std::fs::metadata(&table).unwrap().len(), size, "{}", table.display());
        }
    }
}

#[test]
fn we_write_and_rocksdb_reads_our_wal() {
    let dir = tempfile::tempdir().unwrap();
    for (recyclable, number) in [(false, 7), (true, 8)] {
        let mut rng = fastrand::Rng::with_seed(number);
        let mut encoder = LogEncoder::new(number, recyclable, 0);
        let mut out = Vec::new();
        let mut sequence = 1;
        for _ in 0..300 {
            let mut b = BatchRep::default();
            b.set_sequence(sequence);
            for _ in 0..rng.usize(1..5) {
                let cf = 0;
                let (key, value) = (vec![rng.u8(..); rng.usize(1..20)], vec![rng.u8(..); rng.usize(0..9000)]);
                b.push(match rng.u8(0..6) {
                    0 => BatchRecord::Delete { cf, key: &key },
                    1 => BatchRecord::SingleDelete { cf, key: &key },
                    2 => BatchRecord::Merge { cf, key: &key, value: &value },
                    3 => BatchRecord::DeleteRange { cf, begin: &key, end: &value[..value.len().min(8)] },
                    _ => BatchRecord::Put { cf, key: &key, value: &value },
                });
            }
            sequence += u64::from(b.count());
            encoder.add_record(b.as_bytes(), &mut out);
        }
        let wal = dir.path().join(format!("{number:06}.log"));
        std::fs::write(&wal, &out).unwrap();
        let Some(theirs) = ldb_dump(&wal) else { return };
        let ours: Vec<String> = records(&wal).iter().map(|(offset, rep)| dump_line(*offset, rep)).collect();
        assert_eq!(ours.len(), 300);
        assert_eq!(ours, theirs, "recyclable: {recyclable}");
    }
}

#[test]
fn we_write_and_rocksdb_reads_our_manifest() {
    let dir = tempfile::tempdir().unwrap();
    let file = |number: u64, from: &[u8], to: &[u8]| FileEntry {
        number,
        size: 1000 + number,
        smallest: InternalKey::new(from, 20, ValueType::Value),
        largest: InternalKey::new(to, 10, ValueType::Deletion),
        smallest_seqno: 10,
        largest_seqno: 20,
        oldest_ancester_time: 1_700_000_000,
        file_creation_time: 1_700_000_001,
        // Fields that RocksDB 7.8 does not have yet: it must skip them.
        epoch_number: number,
        tail_size: 300,
        compensated_range_deletion_size: 12,
        unique_id: [number, 1],
        file_open_metadata: b"opaque".to_vec(),
        ..FileEntry::default()
    };
    let edits = [
        VersionEdit {
            db_id: Some("some-id".into()),
            comparator: Some("leveldb.BytewiseComparator".into()),
            persist_user_defined_timestamps: Some(true),
            log_number: Some(4),
            prev_log_number: Some(0),
            next_file_number: Some(20),
            last_sequence: Some(20),
            max_column_family: Some(1),
            last_compacted_manifest_file_size: Some(123),
            ..VersionEdit::default()
        },
        VersionEdit {
            column_family: 1,
            column_family_add: Some("second".into()),
            comparator: Some("leveldb.BytewiseComparator".into()),
            log_number: Some(4),
            ..VersionEdit::default()
        },
        VersionEdit {
            new_files: vec![(0, file(9, b"a", b"m")), (6, file(10, b"b", b"c"))],
            min_log_number_to_keep: Some(4),
            ..VersionEdit::default()
        },
        // RocksDB ignores all other fields of an edit about WALs.
        VersionEdit { wal_additions: vec![(4, Some(100)), (5, None)], ..VersionEdit::default() },
        VersionEdit { wal_deletions: Some(5), ..VersionEdit::default() },
        VersionEdit {
            remaining_in_group: Some(1),
            deleted_files: vec![(0, 9)],
            new_files: vec![(6, file(11, b"d", b"m"))],
            ..VersionEdit::default()
        },
        VersionEdit {
            remaining_in_group: Some(0),
            column_family: 1,
            new_files: vec![(2, file(12, b"x", b"y"))],
            ..VersionEdit::default()
        },
    ];
    let mut encoder = LogEncoder::new(3, false, 0);
    let mut out = Vec::new();
    edits.iter().for_each(|e| encoder.add_record(&e.encode(), &mut out));
    let manifest = dir.path().join("MANIFEST-000003");
    std::fs::write(&manifest, &out).unwrap();
    let args = ["manifest_dump".to_owned(), format!("--path={}", manifest.display())];
    let Some(dump) = tool("ldb", &args) else { return };
    for expected in [
        "Column family \"second\"  (ID 1)",
        " 10:1010[10 .. 20]['b' seq:20, type:1 .. 'c' seq:10, type:0]",
        " 11:1011[10 .. 20]['d' seq:20, type:1 .. 'm' seq:10, type:0]",
        " 12:1012[10 .. 20]['x' seq:20, type:1 .. 'y' seq:10, type:0]",
        "last_sequence 20  prev_log_number 0 max_column_family 1 min_log_number_to_keep 4",
    ] {
        assert!(dump.contains(expected), "no {expected:?} in:\n{dump}");
    }
    assert!(!dump.contains(" 9:1009"), "file 9 was deleted:\n{dump}");
}
