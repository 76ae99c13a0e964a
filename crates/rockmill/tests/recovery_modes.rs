//! The four WAL recovery modes with a whole database, with RocksDB's `ldb` as the reference for the default mode.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use rockmill::{Db, ErrorKind, IteratorMode, Options, RecoveryMode, Result, WriteBatch, WriteOptions};
use rockmill_io::{CrashMode, Fault, FileSystem as _, MemFileSystem, OpKind};
use rockmill_skip::{Missing, Needs, program, skip};

const RECORDS: u32 = 40;

fn key(n: u32) -> String {
    format!("key{n:04}")
}

fn value(n: u32) -> Vec<u8> {
    format!("{n}-").bytes().chain(std::iter::repeat_n(b'v', 3000)).collect()
}

fn options(mode: RecoveryMode) -> Options {
    let mut o = Options::default();
    o.create_if_missing(true);
    o.create_missing_column_families(true);
    o.set_wal_recovery_mode(mode);
    o
}

fn no_wait() -> rockmill::FlushOptions {
    let mut options = rockmill::FlushOptions::default();
    options.set_wait(false);
    options
}

/// A copy of the directory as a killed process leaves it: everything that was passed to the kernel.
fn copy(from: &Path) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("db");
    fs::create_dir(&to).unwrap();
    for e in fs::read_dir(from).unwrap() {
        let e = e.unwrap();
        fs::copy(e.path(), to.join(e.file_name())).unwrap();
    }
    (dir, to)
}

fn wals(path: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(path).unwrap().map(|e| e.unwrap().path());
    let mut logs: Vec<_> = files.filter(|p| p.extension().is_some_and(|e| e == "log")).collect();
    logs.sort();
    logs
}

fn read(db: &Db) -> BTreeMap<String, Vec<u8>> {
    let all = db.iterator(IteratorMode::Start).map(|kv| kv.unwrap());
    all.map(|(k, v)| (String::from_utf8(k.into()).unwrap(), v.into())).collect()
}

fn open(path: &Path, mode: RecoveryMode) -> Result<BTreeMap<String, Vec<u8>>> {
    let (_keep, path) = copy(path);
    let contents = read(&Db::open(&options(mode), &path)?);
    // The result of recovery is permanent: it is in tables now.
    assert_eq!(contents, read(&Db::open(&options(RecoveryMode::AbsoluteConsistency), &path)?));
    Ok(contents)
}

/// The keys that RocksDB finds, or `None` if it refuses to open; `Err` without RocksDB's tool.
fn rocksdb(path: &Path) -> std::result::Result<Option<Vec<String>>, Missing> {
    let (_keep, path) = copy(path);
    let ldb = program("ldb", Needs::Ldb)?;
    let out = Command::new(ldb)
        .arg(format!("--db={}", path.display()))
        .arg("scan")
        .output()
        .map_err(|e| Needs::Ldb.because(e))?;
    if !out.status.success() {
        return Ok(None);
    }
    let text = String::from_utf8_lossy(&out.stdout);
    Ok(Some(text.lines().filter_map(|l| l.split_once(" : ")).map(|(k, _)| k.to_owned()).collect()))
}

fn assert_like_rocksdb(what: &str, path: &Path, ours: &Result<BTreeMap<String, Vec<u8>>>) {
    match rocksdb(path) {
        Err(missing) => skip("recovery modes compared with ldb", &missing),
        Ok(theirs) => {
            let ours = ours.as_ref().ok().map(|c| c.keys().cloned().collect::<Vec<_>>());
            assert_eq!(ours, theirs, "{what}: ours and RocksDB's");
        }
    }
}

/// A database with everything in one WAL.
fn with_one_wal() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let db = Db::open(&options(RecoveryMode::PointInTime), &path).unwrap();
    for n in 0..RECORDS {
        db.put(key(n), value(n)).unwrap();
    }
    copy(&path)
}

fn prefix(n: u32) -> Vec<String> {
    (0..n).map(key).collect()
}

fn keys(r: &Result<BTreeMap<String, Vec<u8>>>) -> Vec<String> {
    r.as_ref().map(|c| c.keys().cloned().collect()).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn a_sound_wal_opens_in_every_mode() {
    let (_keep, path) = with_one_wal();
    use RecoveryMode::*;
    for mode in [TolerateCorruptedTailRecords, AbsoluteConsistency, PointInTime, SkipAnyCorruptedRecords] {
        let got = open(&path, mode);
        assert_eq!(keys(&got), prefix(RECORDS), "{mode:?}");
        assert_eq!(got.unwrap()[&key(7)], value(7));
    }
}

#[test]
fn a_tail_cut_by_a_crash() {
    let (_keep, path) = with_one_wal();
    let wal = &wals(&path)[0];
    let len = fs::metadata(wal).unwrap().len();
    fs::OpenOptions::new().write(true).open(wal).unwrap().set_len(len - 1000).unwrap();
    use RecoveryMode::*;
    for mode in [TolerateCorruptedTailRecords, PointInTime, SkipAnyCorruptedRecords] {
        assert_eq!(keys(&open(&path, mode)), prefix(RECORDS - 1), "{mode:?}");
    }
    let e = open(&path, AbsoluteConsistency).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Corruption);
    assert!(e.to_string().contains(".log"), "{e}");
    assert_like_rocksdb("cut tail", &path, &open(&path, PointInTime));
}

/// The bytes of a database's only WAL, and the length of its valid part.
fn only_wal(db: &Db) -> (Vec<u8>, usize) {
    let wal = &db.get_sorted_wal_files().unwrap()[0];
    (fs::read(&wal.path).unwrap(), wal.size as usize)
}

/// A synced WAL is longer than its contents, so that a sync need not make a new length durable.
#[test]
fn a_synced_wal_ends_in_zeros_and_opens_in_every_mode() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let db = Db::open(&options(RecoveryMode::PointInTime), &path).unwrap();
    let mut synced = WriteOptions::default();
    synced.set_sync(true);
    for n in 0..RECORDS {
        db.put_opt(key(n), value(n), &synced).unwrap();
    }
    let (bytes, len) = only_wal(&db);
    if bytes.len() == len {
        let missing = Needs::Reserve.because("this file system does not reserve space");
        return skip("a_synced_wal_ends_in_zeros_and_opens_in_every_mode", &missing);
    }
    assert!(bytes[len..].iter().all(|&b| b == 0), "{len} of {}", bytes.len());
    assert_eq!(db.get_updates_since(0).unwrap().map(Result::unwrap).count(), RECORDS as usize);
    let (_keep, killed) = copy(&path);
    use RecoveryMode::*;
    for mode in [TolerateCorruptedTailRecords, AbsoluteConsistency, PointInTime, SkipAnyCorruptedRecords] {
        assert_eq!(keys(&open(&killed, mode)), prefix(RECORDS), "{mode:?}");
    }
    assert_like_rocksdb("zeros behind the end", &killed, &open(&killed, PointInTime));
    // A record torn by a power cut, within a block and at the beginning of a block.
    let wal = &wals(&killed)[0];
    for from in [len - 1000, len - len % (32 << 10)] {
        let mut torn = bytes.clone();
        torn[from..].fill(0);
        fs::write(wal, &torn).unwrap();
        let got = keys(&open(&killed, PointInTime));
        assert!(got.len() < RECORDS as usize && got == prefix(got.len() as u32), "{from}: {}", got.len());
        assert_eq!(keys(&open(&killed, SkipAnyCorruptedRecords)), got, "{from}");
        assert_eq!(open(&killed, AbsoluteConsistency).unwrap_err().kind(), ErrorKind::Corruption, "{from}");
        assert_like_rocksdb("a torn record before zeros", &killed, &open(&killed, PointInTime));
    }
    // Data after zeros is not treated as the next records.
    let mut holed = bytes.clone();
    holed[32 << 10..64 << 10].fill(0);
    fs::write(wal, &holed).unwrap();
    let got = keys(&open(&killed, PointInTime));
    assert!(got.len() < 12 && got == prefix(got.len() as u32), "{}", got.len());
    drop(db);
    assert_eq!(wals(&path).iter().map(|w| fs::metadata(w).unwrap().len()).max(), Some(len as u64), "cut at the end");
}

#[test]
fn a_wal_is_no_longer_than_its_contents_where_that_could_be_damage_or_nobody_wants_it() {
    let mut off = options(RecoveryMode::PointInTime);
    off.set_allow_fallocate(false);
    let modes = [RecoveryMode::TolerateCorruptedTailRecords, RecoveryMode::AbsoluteConsistency];
    for options in modes.map(options).into_iter().chain([off]) {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(&options, dir.path()).unwrap();
        let mut synced = WriteOptions::default();
        synced.set_sync(true);
        for n in 0..3 {
            db.put_opt(key(n), value(n), &synced).unwrap();
        }
        let (bytes, len) = only_wal(&db);
        assert_eq!(bytes.len(), len);
    }
}

#[test]
fn a_record_damaged_in_the_middle() {
    let (_keep, path) = with_one_wal();
    let wal = &wals(&path)[0];
    let mut bytes = fs::read(wal).unwrap();
    // In the second record of the second 32 KiB block, away from block boundaries.
    let at = 32 * 1024 + 6000;
    bytes[at] ^= 0x10;
    fs::write(wal, &bytes).unwrap();
    use RecoveryMode::*;
    let before = keys(&open(&path, PointInTime));
    assert!((9..13).contains(&before.len()), "{}", before.len());
    assert_eq!(before, prefix(before.len() as u32));
    for mode in [TolerateCorruptedTailRecords, AbsoluteConsistency] {
        let e = open(&path, mode).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Corruption, "{mode:?}");
        assert!(e.to_string().contains(".log"), "{e}");
    }
    let rest = keys(&open(&path, SkipAnyCorruptedRecords));
    assert!(rest.len() > before.len() && rest.len() < RECORDS as usize, "{} of {RECORDS}", rest.len());
    assert!(rest.contains(&key(RECORDS - 1)), "what follows the damage is kept");
    assert_like_rocksdb("damaged middle", &path, &open(&path, PointInTime));
}

#[test]
fn a_hole_in_an_older_wal() {
    // A flush of one column family begins a new WAL while the other's data stays in the old one.
    let dir = tempfile::tempdir().unwrap();
    let live = dir.path().join("db");
    let o = options(RecoveryMode::PointInTime);
    let db = Db::open_cf(&o, &live, ["default", "other"]).unwrap();
    let other = db.cf_handle("other").unwrap();
    for n in 0..RECORDS / 2 {
        db.put(key(n), value(n)).unwrap();
    }
    db.put_cf(&other, "o", "1").unwrap();
    db.flush_cf(&other).unwrap();
    for n in RECORDS / 2..RECORDS {
        db.put(key(n), value(n)).unwrap();
    }
    let (_keep, path) = copy(&live);
    assert_eq!(wals(&path).len(), 2, "two live WALs");
    let open = |path: &Path, mode| -> Result<Vec<String>> {
        let (_keep, path) = copy(path);
        let db = Db::open_cf(&options(mode), &path, ["default", "other"])?;
        Ok(read(&db).into_keys().collect())
    };
    assert_eq!(open(&path, RecoveryMode::PointInTime).unwrap(), prefix(RECORDS));

    // The older WAL is damaged, and a table of the other column family is newer than the damage: no consistent point in
    // time exists.
    let old = &wals(&path)[0];
    let mut bytes = fs::read(old).unwrap();
    bytes[9000] ^= 1;
    fs::write(old, &bytes).unwrap();
    let e = open(&path, RecoveryMode::PointInTime).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Corruption);
    assert!(e.to_string().contains("other"), "{e}");
    // Skipping the damage keeps the rest of both WALs.
    let rest = open(&path, RecoveryMode::SkipAnyCorruptedRecords).unwrap();
    assert!(rest.contains(&key(RECORDS - 1)) && rest.len() < RECORDS as usize);
    match rocksdb(&path) {
        Err(missing) => skip("recovery modes compared with ldb", &missing),
        Ok(theirs) => assert_eq!(theirs, None, "RocksDB refuses it, too"),
    }
}

/// A column family without data does not keep WALs alive, and its log number in the MANIFEST does not change. A missing
/// WAL before a later one is then not a loss.
#[test]
fn wals_that_an_idle_column_family_outlived_are_not_missed() {
    for mode in [RecoveryMode::PointInTime, RecoveryMode::AbsoluteConsistency] {
        let dir = tempfile::tempdir().unwrap();
        let mut o = Options::default();
        o.create_if_missing(true);
        o.create_missing_column_families(true);
        o.set_wal_recovery_mode(mode);
        o.set_disable_auto_compactions(true);
        let open = || Db::open_cf(&o, dir.path(), ["default", "idle"]).unwrap();
        let db = open();
        let idle = db.cf_handle("idle").unwrap();
        db.put_cf(&idle, "a", "1").unwrap();
        db.put("a", "1").unwrap();
        db.flush_cf(&idle).unwrap();
        for i in 0..4 {
            db.put("b", i.to_string()).unwrap();
            db.flush().unwrap();
        }
        db.put("c", "last").unwrap();
        drop(db);
        let db = open();
        assert_eq!(db.get("c").unwrap().as_deref(), Some(&b"last"[..]));
        assert_eq!(db.get("b").unwrap().as_deref(), Some(&b"3"[..]));
    }
}

/// A WAL that only one column family needed is deleted with it. Recovery knows that from the edit that drops the column
/// family. Otherwise it would treat all later WALs as data after a hole, and lose acknowledged writes.
#[test]
fn nothing_acknowledged_is_lost_with_a_dropped_column_family() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(RecoveryMode::PointInTime);
    {
        let db = Db::open(&options, dir.path()).unwrap();
        let passing = db.create_cf("passing", &Options::default()).unwrap();
        db.put_cf(&passing, "k", "v").unwrap();
        // The memtable is switched but never flushed: a new WAL begins.
        db.cancel_all_background_work(true);
        db.flush_cf_opt(&passing, &no_wait()).unwrap();
        assert_eq!(wals(dir.path()).len(), 2);
        db.put("kept", "1").unwrap();
        db.drop_cf("passing").unwrap();
        assert_eq!(wals(dir.path()).len(), 1, "the first WAL is needed by nobody");
        db.put("kept too", "2").unwrap();
    }
    for mode in [RecoveryMode::PointInTime, RecoveryMode::AbsoluteConsistency] {
        let found = open(dir.path(), mode);
        assert_eq!(keys(&found), ["kept", "kept too"], "{mode:?}");
        assert_like_rocksdb("a WAL went with its column family", dir.path(), &found);
    }
}

/// A copy of a database with a record in each of two WALs. The MANIFEST has an edit with the sequence number of the
/// second WAL's beginning, which counts data that is only in the first WAL.
fn two_wals_counted() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let live = dir.path().join("db");
    let db = Db::open(&options(RecoveryMode::PointInTime), &live).unwrap();
    db.put("a", "lost").unwrap();
    db.create_cf("later", &Options::default()).unwrap();
    db.drop_cf("later").unwrap();
    db.cancel_all_background_work(true);
    db.flush_opt(&no_wait()).unwrap();
    db.put("b", "kept").unwrap();
    copy(&live)
}

/// A WAL emptied by a power cut is a hole, even if the MANIFEST, which also counts unflushed data, has the sequence
/// number at which the next WAL begins.
#[test]
fn an_emptied_wal_is_a_hole_whatever_the_manifest_counted() {
    let (_keep, path) = two_wals_counted();
    let [first, _] = &wals(&path)[..] else { panic!("{:?}", wals(&path)) };
    assert_eq!(keys(&open(&path, RecoveryMode::AbsoluteConsistency)), ["a", "b"]);
    fs::write(first, "").unwrap();
    assert_eq!(keys(&open(&path, RecoveryMode::PointInTime)), [""; 0]);
    let e = open(&path, RecoveryMode::AbsoluteConsistency).unwrap_err();
    assert!(e.to_string().contains("has lost its end"), "{e}");
    assert_eq!(keys(&open(&path, RecoveryMode::TolerateCorruptedTailRecords)), ["b"]);
}

/// The same with a WAL whose only record is damaged.
#[test]
fn a_wal_without_a_whole_record_is_a_hole_whatever_the_manifest_counted() {
    let (_keep, path) = two_wals_counted();
    let first = &wals(&path)[0];
    let mut bytes = fs::read(first).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(first, &bytes).unwrap();
    assert_eq!(keys(&open(&path, RecoveryMode::PointInTime)), [""; 0]);
}

/// A WAL of an earlier open, whose records have no log number, is not recycled: until it is overwritten, its old
/// records would pass for new ones.
#[test]
fn old_records_do_not_come_back_in_a_recycled_wal() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let mut o = options(RecoveryMode::PointInTime);
    o.set_avoid_flush_during_recovery(true);
    let db = Db::open(&o, &path).unwrap();
    db.put("a", "old").unwrap();
    drop(db);
    o.set_recycle_log_file_num(1);
    let db = Db::open(&o, &path).unwrap();
    for n in ["newer", "newest"] {
        db.put("a", n).unwrap();
        db.flush().unwrap();
        // The WALs that the flush made obsolete are processed after it.
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    let (_keep, killed) = copy(&path);
    drop(db);
    let db = Db::open(&o, &killed).unwrap();
    assert_eq!(db.get("a").unwrap().as_deref(), Some(&b"newest"[..]));
}

/// RocksDB keeps a WAL for a prepared transaction, even if tables have everything else in it.
#[test]
fn a_transaction_that_was_prepared_is_refused_by_name_wherever_its_wal_is() {
    use rockmill_format::edit::VersionEdit;
    use rockmill_io::{FileSystem, MemFileSystem};

    // The sequence number, one update, and a prepared section of one put.
    let mut record = vec![3, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0x9, 0x1, 1, b'k', 1, b'v', 0xA];
    record.extend([3, b'x', b'i', b'd']);
    let mut wal = Vec::new();
    rockmill_format::log::LogEncoder::new(5, false, 0).add_record(&record, &mut wal);
    // The first WAL that the column family needs, the one in the MANIFEST, and the result of the open.
    for (log_number, kept, refused) in [(5, 5, true), (20, 5, true), (20, 6, false)] {
        let fs = MemFileSystem::new();
        let shared: std::sync::Arc<dyn FileSystem> = std::sync::Arc::new(fs.clone());
        fs.create_dir(Path::new("/db"), true).unwrap();
        let edits = [
            VersionEdit {
                comparator: Some("leveldb.BytewiseComparator".into()),
                log_number: Some(log_number),
                ..VersionEdit::default()
            },
            VersionEdit {
                prev_log_number: Some(0),
                min_log_number_to_keep: Some(kept),
                next_file_number: Some(30),
                last_sequence: Some(10),
                max_column_family: Some(0),
                ..VersionEdit::default()
            },
        ];
        rockmill::internals::ManifestWriter::create(&shared, Path::new("/db"), 4, &edits).unwrap();
        fs.write_all(Path::new("/db/000005.log"), &wal).unwrap();
        let mut o = options(RecoveryMode::PointInTime);
        o.set_file_system(shared);
        let check = |what: &str, opened: Result<Db>| match opened.map(drop) {
            Ok(()) => assert!(!refused, "{what} of WAL 5 with {log_number} and {kept}"),
            Err(e) => {
                assert!(refused, "{what} of WAL 5 with {log_number} and {kept}: {e}");
                assert_eq!(e.kind(), ErrorKind::NotSupported, "{what}: {e}");
                assert!(e.to_string().contains("two-phase commit") && e.to_string().contains("000005.log"), "{e}");
            }
        };
        check("read-only opening", Db::open_for_read_only(&o, "/db", false));
        check("opening", Db::open(&o, "/db"));
        assert_eq!(fs.exists(Path::new("/db/000005.log")).unwrap(), refused, "{log_number} and {kept}");
    }
}

const MODES: [RecoveryMode; 4] = [
    RecoveryMode::TolerateCorruptedTailRecords,
    RecoveryMode::AbsoluteConsistency,
    RecoveryMode::PointInTime,
    RecoveryMode::SkipAnyCorruptedRecords,
];
const STRICT: [RecoveryMode; 2] = [MODES[0], MODES[1]];

fn in_memory(fs: &MemFileSystem, mode: RecoveryMode) -> Options {
    let mut o = options(mode);
    o.set_file_system(Arc::new(fs.clone()));
    o.set_recycle_log_file_num(2);
    o
}

fn put_synced(db: &Db, key: &str, len: usize) {
    let mut how = WriteOptions::default();
    how.set_sync(true);
    db.put_opt(key, vec![b'v'; len], &how).unwrap();
}

/// A database killed with `n` synced records in its last WAL, after others whose files can be recycled.
fn killed(mode: RecoveryMode, n: usize) -> MemFileSystem {
    let fs = MemFileSystem::new();
    let db = Db::open(&in_memory(&fs, mode), "/db").unwrap();
    for round in 0..4 {
        for i in 0..50 {
            db.put(format!("k{round}{i}"), vec![7; 137]).unwrap();
        }
        db.flush().unwrap();
    }
    (0..n).for_each(|i| put_synced(&db, &format!("z{i:02}"), 91));
    fs.crash_image(CrashMode::KeepAll)
}

fn found(db: &Db, n: usize) -> Vec<usize> {
    (0..n).filter(|i| db.get(format!("z{i:02}")).unwrap().is_some()).collect()
}

/// After the end of a WAL in a recycled file, old bytes may look like a fragment that extends beyond the file's end:
/// nothing is missing.
#[test]
fn a_recycled_wal_may_end_in_old_bytes_that_reach_past_its_file() {
    const N: usize = 7;
    for mode in MODES {
        // A flush returns before its obsolete WALs are kept for recycling: the last one may have been too late.
        let used_again = || {
            let fs = killed(RecoveryMode::PointInTime, N);
            let names = fs.list_dir(Path::new("/db")).unwrap();
            let wal = names.into_iter().filter(|n| n.ends_with(".log")).max().unwrap();
            let path = Path::new("/db").join(wal);
            let bytes = fs.read_to_vec(&path).unwrap();
            let last = format!("z{:02}", N - 1).into_bytes();
            let at = bytes.windows(last.len()).rposition(|w| w == last).unwrap();
            let end = at + last.len() + 1 + 91;
            (bytes.len() > end + 20).then_some((fs, path, bytes, end))
        };
        let found_one = (0..50).find_map(|_| used_again());
        let (fs, path, mut bytes, end) = found_one.expect("a WAL in a file that is used again");
        bytes.truncate(end + 20);
        // A checksum, 65,535 bytes, the first fragment of several in a recyclable log, and another log's number.
        bytes[end..end + 11].copy_from_slice(&[1, 2, 3, 4, 0xFF, 0xFF, 6, 9, 0, 0, 0]);
        fs.write_all(&path, &bytes).unwrap();
        let db = Db::open(&in_memory(&fs, mode), "/db").unwrap_or_else(|e| panic!("{mode:?}: {e}"));
        assert_eq!(found(&db, N).len(), N, "{mode:?}");
    }
}

/// Damage is read a second time, because a bit may have flipped in transit: a WAL with a thousand damaged places is
/// read twice, not a thousand times.
#[test]
fn a_wal_with_much_damage_is_read_twice() {
    let fs = MemFileSystem::new();
    let o = in_memory(&fs, RecoveryMode::SkipAnyCorruptedRecords);
    let db = Db::open(&o, "/db").unwrap();
    (0..1000).for_each(|n| db.put(key(n), value(n)).unwrap());
    let fs = fs.crash_image(CrashMode::KeepAll);
    drop(db);
    let names = fs.list_dir(Path::new("/db")).unwrap();
    let wal = names.into_iter().filter(|n| n.ends_with(".log")).max().unwrap();
    let path = Path::new("/db").join(wal);
    let mut bytes = fs.read_to_vec(&path).unwrap();
    bytes.chunks_mut(32 << 10).for_each(|block| block[block.len() / 2] ^= 1);
    fs.write_all(&path, &bytes).unwrap();
    let read = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let (sum, log) = (Arc::clone(&read), path.clone());
    fs.set_hook(Box::new(move |op| {
        if op.kind == OpKind::Read && op.path == log {
            sum.fetch_add(op.len, std::sync::atomic::Ordering::Relaxed);
        }
        Fault::None
    }));
    let db = Db::open(&in_memory(&fs, RecoveryMode::SkipAnyCorruptedRecords), "/db").unwrap();
    let found = db.iterator(IteratorMode::Start).count();
    assert!((400..999).contains(&found), "{found} of 1000");
    let (read, size) = (read.load(std::sync::atomic::Ordering::Relaxed), bytes.len() as u64);
    // A read requests as many bytes as fit into its buffer.
    assert!(read <= 2 * size + (4 << 16), "{read} bytes of {size}");
}

#[test]
fn wal_files_are_not_used_again_where_their_end_looks_like_damage() {
    for mode in MODES {
        let fs = MemFileSystem::new();
        let o = in_memory(&fs, mode);
        let db = Db::open(&o, "/db").unwrap();
        let kept = if STRICT.contains(&mode) { 0 } else { 2 };
        assert_eq!(db.get_db_options().recycle_log_file_num, kept, "{mode:?}");
        assert_eq!(o.db.recycle_log_file_num, 2, "the caller's are the caller's");
        drop(db);
        let text = fs.read_to_vec("/db/LOG".as_ref()).unwrap();
        let said = String::from_utf8_lossy(&text).contains("recycle_log_file_num is 2, and is taken for 0");
        assert_eq!(said, kept == 0, "{mode:?}");
        for n in 1..20 {
            let image = killed(mode, n);
            let db = Db::open(&in_memory(&image, mode), "/db").unwrap_or_else(|e| panic!("{mode:?}, {n}: {e}"));
            assert_eq!(found(&db, n).len(), n, "{mode:?}");
        }
    }
    // With an archive, no WAL is recycled.
    let fs = MemFileSystem::new();
    let mut o = in_memory(&fs, RecoveryMode::PointInTime);
    o.set_wal_ttl_seconds(60);
    assert_eq!(Db::open(&o, "/db").unwrap().get_db_options().recycle_log_file_num, 0);
}

/// Files written by an open with another mode, or by RocksDB.
#[test]
fn wals_in_files_that_were_used_again_are_read_in_every_mode() {
    for n in 0..40 {
        let image = killed(RecoveryMode::PointInTime, n);
        for mode in MODES {
            let image = image.crash_image(CrashMode::KeepAll);
            let db = Db::open(&in_memory(&image, mode), "/db").unwrap_or_else(|e| panic!("{mode:?}, {n}: {e}"));
            assert_eq!(found(&db, n).len(), n, "{mode:?}");
            put_synced(&db, "more", 10);
            let image = image.crash_image(CrashMode::KeepAll);
            let db = Db::open(&in_memory(&image, mode), "/db").unwrap();
            assert!(found(&db, n).len() == n && db.get("more").unwrap().is_some(), "{mode:?}, {n}");
        }
    }
}

#[test]
fn damage_in_a_recycled_wal_is_told_from_its_end() {
    for mode in STRICT {
        for two_wals in [false, true] {
            let fs = MemFileSystem::new();
            let open = |fs: &MemFileSystem, mode| Db::open_cf(&in_memory(fs, mode), "/db", ["default", "b"]);
            let db = open(&fs, RecoveryMode::PointInTime).unwrap();
            let b = db.cf_handle("b").unwrap();
            for round in 0..4 {
                for i in 0..50 {
                    db.put(format!("k{round}{i}"), vec![7; 137]).unwrap();
                }
                db.flush_all().unwrap();
            }
            (0..40).for_each(|i| put_synced(&db, &format!("z{i:02}"), 91));
            let wal = db.get_sorted_wal_files().unwrap().pop().unwrap().path;
            if two_wals {
                db.put_cf(&b, "x", "x").unwrap();
                db.flush_cf(&b).unwrap();
                (40..60).for_each(|i| put_synced(&db, &format!("z{i:02}"), 91));
            }
            let sound = fs.crash_image(CrashMode::KeepAll);
            let whole = open(&sound.crash_image(CrashMode::KeepAll), mode).unwrap();
            assert_eq!(found(&whole, 60).len(), if two_wals { 60 } else { 40 });
            drop(whole);
            // Each record has about 128 bytes; damage in the very last one cannot be detected, because nothing follows
            // it.
            for at in [5, 100, 1500, 3000, 4000] {
                let image = sound.crash_image(CrashMode::KeepAll);
                image.flip_stored_bit(&wal, 8 * at).unwrap();
                let e = open(&image, mode).map(|db| found(&db, 60)).expect_err("a synced record is damaged");
                assert_eq!(e.kind(), ErrorKind::Corruption, "{mode:?}, {at}: {e}");
            }
        }
    }
}

/// Sequence numbers that are in no WAL are not a hole, even if each WAL ends in its file's old contents, and a power
/// cut leaves the current WAL empty.
#[test]
fn writes_without_a_wal_go_with_recycled_wals() {
    for mode in [RecoveryMode::PointInTime, RecoveryMode::SkipAnyCorruptedRecords] {
        for seed in 0..20 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let fs = MemFileSystem::new();
            let open = |fs: &MemFileSystem| Db::open_cf(&in_memory(fs, mode), "/db", ["default", "b"]);
            let db = open(&fs).unwrap();
            let b = db.cf_handle("b").unwrap();
            let mut unlogged = WriteOptions::default();
            unlogged.disable_wal(true);
            let (mut logged, mut durable, mut others) = (Vec::new(), 0, 0);
            let without = rng.u8(5..18);
            for n in 0..300 {
                match rng.u8(0..20) {
                    0 => db.flush().unwrap(),
                    1 => db.flush_cf(&b).unwrap(),
                    k if k < without => {
                        others += 1;
                        let cf = if rng.bool() { db.default_cf() } else { b.clone() };
                        db.put_cf_opt(&cf, format!("u{n}"), vec![1; rng.usize(0..300)], &unlogged).unwrap();
                    }
                    _ => {
                        let mut how = WriteOptions::default();
                        how.set_sync(rng.u8(0..4) == 0);
                        let mut batch = WriteBatch::new();
                        batch.put(format!("l{n}"), vec![2; rng.usize(0..300)]);
                        batch.put_cf(&b, format!("l{n}"), vec![2; rng.usize(0..300)]);
                        db.write_opt(&batch, &how).unwrap();
                        logged.push(format!("l{n}"));
                        if how.sync {
                            durable = logged.len();
                        }
                    }
                }
                if n % 10 != 9 {
                    continue;
                }
                for (crash, kept) in [(CrashMode::KeepAll, logged.len()), (CrashMode::SyncedOnly, durable)] {
                    let what = format!("{mode:?}, {seed}, {n}, {crash:?}");
                    let db = open(&fs.crash_image(crash)).unwrap_or_else(|e| panic!("{what}: {e}"));
                    let b = db.cf_handle("b").unwrap();
                    for key in &logged[..kept] {
                        let both = db.get(key).unwrap().is_some() && db.get_cf(&b, key).unwrap().is_some();
                        assert!(both, "{what}: {key} is lost");
                    }
                }
            }
            assert!(others > 10);
        }
    }
}
