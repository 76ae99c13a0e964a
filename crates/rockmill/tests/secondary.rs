//! Secondary instances: one that follows a primary through flushes, compactions, new WALs and new MANIFESTs, with
//! concurrent writers; one that follows RocksDB; and RocksDB's secondary following Rockmill.

mod oracle;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use rockmill::{
    BottommostLevelCompaction, CompactOptions, Db, ErrorKind, FlushOptions, IteratorMode, Options, WriteBatch,
    WriteOptions,
};
use rockmill_io::{Fault, FileSystem, MemFileSystem, OpKind};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

const CFS: [&str; 2] = ["default", "other"];

fn options() -> Options {
    let mut o = Options::default();
    o.create_if_missing(true);
    o.create_missing_column_families(true);
    o.set_write_buffer_size(16 << 10);
    o.set_target_file_size_base(8 << 10);
    o.set_max_bytes_for_level_base(32 << 10);
    o
}

fn follow(primary: &Path, own: &Path) -> Db {
    Db::open_cf_as_secondary(&Options::default(), primary, own, CFS).unwrap()
}

/// Synced WALs are longer than their contents.
fn synced(sync: bool) -> WriteOptions {
    let mut how = WriteOptions::default();
    how.set_sync(sync);
    how
}

fn contents(db: &Db, cf: &str) -> Map {
    let handle = db.cf_handle(cf).unwrap();
    let all = db.iterator_cf(&handle, IteratorMode::Start).map(|kv| kv.unwrap());
    all.map(|(k, v)| (k.into_vec(), v.into_vec())).collect()
}

/// In a WAL that is longer than its contents, a record is partly visible while it is being written.
#[test]
fn a_record_that_is_half_there_is_read_once_it_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let (path, own) = (dir.path().join("primary"), dir.path().join("secondary"));
    let mut o = options();
    o.set_write_buffer_size(4 << 20);
    let primary = Db::open_cf(&o, &path, CFS).unwrap();
    let put = |key: &str| {
        primary.put_opt(key, vec![b'x'; 3000], &synced(true)).unwrap();
        let wal = &primary.get_sorted_wal_files().unwrap()[0];
        (wal.path.clone(), wal.size as usize)
    };
    let (wal, before) = put("a");
    let secondary = follow(&path, &own);
    let keys =
        || contents(&secondary, "default").into_keys().map(|k| String::from_utf8(k).unwrap()).collect::<String>();
    assert_eq!(keys(), "a");
    let (_, end) = put("b");
    let whole = std::fs::read(&wal).unwrap();
    // This many bytes of the record that begins at `before`.
    for there in [3, 100, 1500, end - before - 1] {
        let mut part = whole.clone();
        part[before + there..end].fill(0);
        std::fs::write(&wal, &part).unwrap();
        secondary.try_catch_up_with_primary().unwrap();
        assert_eq!(keys(), "a", "{there} bytes");
    }
    // With more behind it, it is damaged.
    std::fs::write(&wal, &whole).unwrap();
    put("c");
    let whole = std::fs::read(&wal).unwrap();
    let mut damaged = whole.clone();
    damaged[before + 100] ^= 1;
    std::fs::write(&wal, &damaged).unwrap();
    let error = secondary.try_catch_up_with_primary().unwrap_err();
    assert!(error.kind() == ErrorKind::Corruption && error.to_string().contains(".log"), "{error}");
    assert_eq!(keys(), "a");
    std::fs::write(&wal, &whole).unwrap();
    secondary.try_catch_up_with_primary().unwrap();
    assert_eq!(keys(), "abc");
}

#[test]
fn a_secondary_follows_whatever_the_primary_does() {
    let seed = std::env::var("ROCKMILL_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    println!("ROCKMILL_SEED={seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let dir = tempfile::tempdir().unwrap();
    let (path, own) = (dir.path().join("primary"), dir.path().join("secondary"));
    let mut o = options();
    o.set_max_manifest_file_size(if rng.bool() { 3000 } else { 1 << 30 });
    o.set_recycle_log_file_num(if rng.bool() { 2 } else { 0 });
    o.set_level_compaction_dynamic_level_bytes(rng.bool());
    let mut primary = Db::open_cf(&o, &path, CFS).unwrap();
    let mut want: [Map; 2] = Default::default();
    let secondary = follow(&path, &own);
    for round in 0..60 {
        for _ in 0..rng.usize(0..150) {
            let cf = rng.usize(0..2);
            let handle = primary.cf_handle(CFS[cf]).unwrap();
            let key = format!("key{:03}", rng.u32(0..400)).into_bytes();
            if rng.u8(0..5) == 0 {
                primary.delete_cf(&handle, &key).unwrap();
                want[cf].remove(&key);
            } else {
                let value = vec![rng.u8(b'a'..=b'z'); rng.usize(0..600)];
                primary.put_cf_opt(&handle, &key, &value, &synced(rng.u8(0..10) == 0)).unwrap();
                want[cf].insert(key, value);
            }
        }
        match rng.u8(0..12) {
            0 => primary.flush().unwrap(),
            1 => primary.compact_range::<&[u8], &[u8]>(None, None).unwrap(),
            2 => {
                let mut all = CompactOptions::default();
                all.set_bottommost_level_compaction(BottommostLevelCompaction::Force);
                let handle = primary.cf_handle("other").unwrap();
                primary.compact_range_cf_opt::<&[u8], &[u8]>(&handle, None, None, &all).unwrap();
            }
            3 => {
                drop(primary);
                primary = Db::open_cf(&o, &path, CFS).unwrap();
            }
            _ => {}
        }
        if rng.bool() {
            secondary.try_catch_up_with_primary().unwrap_or_else(|e| panic!("round {round}: {e}"));
            for (cf, name) in CFS.iter().enumerate() {
                assert!(contents(&secondary, name) == want[cf], "round {round}, {name}");
            }
            let key = format!("key{:03}", rng.u32(0..400)).into_bytes();
            assert_eq!(secondary.get(&key).unwrap().as_ref(), want[0].get(&key));
        }
    }
}

/// Each batch writes the same number under every key of both column families. However the primary flushes and
/// compacts, the secondary sees one number, and never an older one than before.
#[test]
fn a_secondary_sees_whole_batches_in_order_beside_a_busy_primary() {
    const KEYS: usize = 20;
    let dir = tempfile::tempdir().unwrap();
    let (path, own) = (dir.path().join("primary"), dir.path().join("secondary"));
    let mut o = options();
    o.set_max_manifest_file_size(4000);
    let primary = Db::open_cf(&o, &path, CFS).unwrap();
    let stop = AtomicBool::new(false);
    let stopped = || stop.load(Ordering::Relaxed);
    let secondary = follow(&path, &own);
    std::thread::scope(|s| {
        s.spawn(|| {
            let handles = CFS.map(|n| primary.cf_handle(n).unwrap());
            let mut n = 0u64;
            while !stopped() {
                n += 1;
                let mut batch = WriteBatch::new();
                for key in 0..KEYS {
                    for cf in &handles {
                        let mut value = n.to_be_bytes().to_vec();
                        value.resize(100, b'.');
                        batch.put_cf(cf, format!("{key:03}"), value);
                    }
                }
                primary.write(&batch).unwrap();
            }
        });
        // A reader beside the catching up.
        s.spawn(|| {
            let mut newest = 0;
            while !stopped() {
                let handle = secondary.cf_handle("other").unwrap();
                let seen: Vec<u64> = secondary.iterator_cf(&handle, IteratorMode::Start).map(number).collect();
                assert!(seen.windows(2).all(|w| w[0] == w[1]), "a batch in parts: {seen:?}");
                let keys = (0..KEYS).flat_map(|k| CFS.map(|cf| (cf, format!("{k:03}"))));
                let handles = CFS.map(|n| secondary.cf_handle(n).unwrap());
                let keys = keys.map(|(cf, k)| (&handles[usize::from(cf == "other")], k));
                let got: Vec<_> = secondary.multi_get_cf(keys).into_iter().map(Result::unwrap).collect();
                assert!(got.windows(2).all(|w| w[0] == w[1]), "column families at different moments");
                let now = seen.first().copied().unwrap_or(0);
                assert!(now >= newest, "{now} after {newest}");
                newest = now;
            }
        });
        // A failure here also ends the other threads, and is then reported.
        let _end = Stop(&stop);
        let began = std::time::Instant::now();
        let mut last = 0;
        let mut rounds = 0;
        // On a busy machine, four seconds may be too short.
        while began.elapsed().as_secs() < 4 || (began.elapsed().as_secs() < 120 && (rounds <= 5 || last <= 50)) {
            // A primary that constantly replaces its MANIFEST may be too fast; the call then fails and is repeated.
            match secondary.try_catch_up_with_primary() {
                Ok(()) => rounds += 1,
                Err(e) => assert_eq!(e.kind(), ErrorKind::TryAgain, "{e}"),
            }
            let now = secondary.get("007").unwrap().map_or(0, |v| u64::from_be_bytes(v[..8].try_into().unwrap()));
            assert!(now >= last, "{now} after {last}");
            last = now;
        }
        assert!(rounds > 5 && last > 50, "{rounds} rounds, {last} batches seen");
    });
}

/// A database in memory, and a secondary of it.
fn in_memory() -> (MemFileSystem, Db, Db) {
    let fs = MemFileSystem::default();
    let mut o = options();
    o.set_file_system(Arc::new(fs.clone()));
    let primary = Db::open_cf(&o, "/db", CFS).unwrap();
    let mut o = Options::default();
    o.set_file_system(Arc::new(fs.clone()));
    let secondary = Db::open_cf_as_secondary(&o, "/db", "/own", CFS).unwrap();
    (fs, primary, secondary)
}

/// The only file whose name begins and ends like this.
fn file_named(fs: &MemFileSystem, begin: &str, end: &str) -> PathBuf {
    let names = fs.list_dir(Path::new("/db")).unwrap();
    let mut fitting = names.iter().filter(|n| n.starts_with(begin) && n.ends_with(end));
    let name = fitting.next().unwrap();
    assert_eq!(fitting.next(), None);
    Path::new("/db").join(name)
}

/// The secondary reads the MANIFEST when the primary has written half of an edit. Before it checks whether that is
/// legitimate, the edit is complete and another one follows.
#[test]
fn an_edit_that_the_primary_writes_meanwhile_is_no_damage() {
    for cut in [1, 8, 30] {
        let (fs, primary, secondary) = in_memory();
        let manifest = file_named(&fs, "MANIFEST", "");
        primary.put("a", "1").unwrap();
        primary.flush().unwrap();
        let first = fs.file_size(&manifest).unwrap();
        primary.put("a", "2").unwrap();
        primary.flush().unwrap();
        let second = fs.file_size(&manifest).unwrap();
        primary.put("a", "3").unwrap();
        primary.flush().unwrap();
        drop(primary);
        let whole = fs.read_to_vec(&manifest).unwrap();
        for half in [first + cut, second - cut] {
            fs.write_all(&manifest, &whole[..half as usize]).unwrap();
            let (writer, whole, manifest) = (fs.clone(), whole.clone(), manifest.clone());
            let mut opened = 0;
            fs.set_hook(Box::new(move |op| {
                opened += u32::from(op.kind == OpKind::OpenSequential && op.path == manifest);
                if opened != 2 {
                    return Fault::None;
                }
                opened += 1;
                let (writer, whole, manifest) = (writer.clone(), whole.clone(), manifest.clone());
                Fault::After(Box::new(move || writer.write_all(&manifest, &whole).unwrap()))
            }));
            secondary.try_catch_up_with_primary().unwrap();
            fs.clear_fault();
            assert_eq!(secondary.get("a").unwrap().as_deref(), Some(&b"3"[..]), "cut at {half}");
        }
    }
}

/// A large directory is read in pieces while the primary continues: the list may have the newest WAL and lack the one
/// before it.
#[test]
fn a_wal_that_a_list_lacks_is_not_passed_over() {
    let (fs, primary, secondary) = in_memory();
    let put = |cf: &str, value: &str| {
        let handle = primary.cf_handle(cf).unwrap();
        primary.put_cf(&handle, "k", value).unwrap();
    };
    // The flush of one column family begins a new WAL; the earlier ones stay for the other column family.
    put("default", "1");
    let listed = Mutex::new(Vec::new());
    for n in ["2", "3"] {
        put("other", n);
        let handle = primary.cf_handle("other").unwrap();
        primary.flush_cf(&handle).unwrap();
        put("default", n);
        let names = fs.list_dir(Path::new("/db")).unwrap();
        listed.lock().unwrap().push(names.into_iter().filter(|n| n.ends_with(".log")).collect::<Vec<_>>());
    }
    let listed = listed.into_inner().unwrap();
    assert_eq!((listed[0].len(), listed[1].len()), (2, 3), "{listed:?}");
    // The list is made while the WAL in the middle has another name.
    let middle = Path::new("/db").join(listed[0].iter().max().unwrap());
    let away = middle.with_extension("away");
    fs.rename(&middle, &away).unwrap();
    let mut lists = 0;
    let disk = fs.clone();
    fs.set_hook(Box::new(move |op| {
        lists += u32::from(op.kind == OpKind::ListDir);
        if lists != 2 {
            return Fault::None;
        }
        lists += 1;
        let (disk, middle, away) = (disk.clone(), middle.clone(), away.clone());
        Fault::After(Box::new(move || disk.rename(&away, &middle).unwrap()))
    }));
    for _ in 0..2 {
        secondary.try_catch_up_with_primary().unwrap();
        assert_eq!(secondary.get("k").unwrap().as_deref(), Some(&b"3"[..]));
    }
}

/// Tables that the primary has replaced are missing only for a moment; other missing tables are errors.
#[test]
fn a_missing_table_is_told_and_one_that_was_replaced_is_not() {
    let (fs, primary, secondary) = in_memory();
    primary.put("a", "1").unwrap();
    primary.flush().unwrap();
    let table = file_named(&fs, "", ".sst");
    let bytes = fs.read_to_vec(&table).unwrap();
    fs.remove(&table).unwrap();
    let e = secondary.try_catch_up_with_primary().unwrap_err();
    assert!(e.kind() == ErrorKind::IOError && e.to_string().contains(table.to_str().unwrap()), "{e}");
    fs.write_all(&table, &bytes).unwrap();

    // Whenever it opens a table, the primary has just replaced that table.
    let primary = Arc::new(primary);
    let (writer, mut n) = (Arc::clone(&primary), 0u32);
    fs.set_hook(Box::new(move |op| {
        let reads = std::thread::current().name() == Some("reads");
        if !reads || op.kind != OpKind::OpenRandom || op.path.extension().is_none_or(|e| e != "sst") {
            return Fault::None;
        }
        let writer = Arc::clone(&writer);
        n += 1;
        Fault::After(Box::new(move || {
            // A thread with another name: its calls are the primary's.
            let replace = move || {
                writer.put("a", n.to_string()).unwrap();
                writer.flush().unwrap();
                writer.compact_range::<&[u8], &[u8]>(None, None).unwrap();
            };
            std::thread::spawn(replace).join().unwrap();
        }))
    }));
    let read = |what: &(dyn Fn() + Sync)| {
        std::thread::scope(|s| {
            std::thread::Builder::new().name("reads".into()).spawn_scoped(s, what).unwrap().join().unwrap();
        });
    };
    read(&|| {
        let e = secondary.try_catch_up_with_primary().unwrap_err();
        assert_eq!(e.kind(), ErrorKind::TryAgain, "{e}");
    });
    fs.clear_fault();
    secondary.try_catch_up_with_primary().unwrap();
    assert_eq!(secondary.get("a").unwrap(), primary.get("a").unwrap());
}

/// Set when dropped.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

type Entry = (Box<[u8]>, Box<[u8]>);

fn number(entry: rockmill::Result<Entry>) -> u64 {
    u64::from_be_bytes(entry.unwrap().1[..8].try_into().unwrap())
}

#[test]
fn an_iterator_stays_at_its_moment_and_bad_use_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (path, own) = (dir.path().join("primary"), dir.path().join("secondary"));
    let missing = Db::open_as_secondary(&Options::default(), &path, &own).unwrap_err();
    assert!(missing.to_string().contains("primary"), "{missing}");
    let primary = Db::open_cf(&options(), &path, CFS).unwrap();
    primary.put("a", "1").unwrap();
    let secondary = follow(&path, &own);
    let iter = secondary.iterator(IteratorMode::Start);
    primary.put("b", "2").unwrap();
    primary.flush_opt(&FlushOptions::default()).unwrap();
    primary.compact_range::<&[u8], &[u8]>(None, None).unwrap();
    secondary.try_catch_up_with_primary().unwrap();
    assert_eq!(iter.count(), 1);
    assert!(std::fs::metadata(own.join("LOG")).unwrap().len() > 0, "its info log is its own");
    assert_eq!(contents(&secondary, "default").len(), 2);

    let refused = secondary.put("c", "3").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotSupported);
    assert!(refused.to_string().contains("secondary"), "{refused}");
    assert_eq!(primary.try_catch_up_with_primary().unwrap_err().kind(), ErrorKind::NotSupported);
    let mut bounded = Options::default();
    bounded.set_max_open_files(100);
    let refused = Db::open_as_secondary(&bounded, &path, &own).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);

    // A column family that the primary drops stays readable as it was.
    let other = secondary.cf_handle("other").unwrap();
    primary.put_cf(&primary.cf_handle("other").unwrap(), "x", "y").unwrap();
    secondary.try_catch_up_with_primary().unwrap();
    primary.drop_cf("other").unwrap();
    secondary.try_catch_up_with_primary().unwrap();
    assert_eq!(secondary.get_cf(&other, "x").unwrap().as_deref(), Some(&b"y"[..]));
    // Data without a WAL becomes visible when it is in a table.
    let mut unlogged = WriteOptions::default();
    unlogged.disable_wal(true);
    primary.put_opt("unlogged", "1", &unlogged).unwrap();
    secondary.try_catch_up_with_primary().unwrap();
    assert_eq!(secondary.get("unlogged").unwrap(), None);
    primary.flush().unwrap();
    secondary.try_catch_up_with_primary().unwrap();
    assert!(secondary.get("unlogged").unwrap().is_some());
}

#[test]
fn a_secondary_follows_rocksdb_and_rocksdb_follows_rockmill() {
    let test = "a_secondary_follows_rocksdb_and_rocksdb_follows_rockmill";
    let ldb = need!(test, oracle::tool("ldb"));
    let dir = tempfile::tempdir().unwrap();
    let (path, own) = (dir.path().join("primary"), dir.path().join("secondary"));
    let at = format!("--db={}", path.display());
    oracle::run_tool(&ldb, &[&at, "--create_if_missing", "put", "k0", "v0"]).unwrap();
    let secondary = Db::open_as_secondary(&Options::default(), &path, &own).unwrap();
    let mut want = Map::from([(b"k0".to_vec(), b"v0".to_vec())]);
    for i in 1..8 {
        let (key, value) = (format!("k{i}"), format!("v{i}"));
        oracle::run_tool(&ldb, &[&at, "put", &key, &value]).unwrap();
        want.insert(key.into_bytes(), value.into_bytes());
        if i % 3 == 0 {
            oracle::run_tool(&ldb, &[&at, "compact"]).unwrap();
        }
        secondary.try_catch_up_with_primary().unwrap();
        assert_eq!(contents(&secondary, "default"), want, "after {i}");
    }

    let path = dir.path().join("ours");
    let primary = Db::open(&options(), &path).unwrap();
    for i in 0..500 {
        primary.put(format!("k{i:04}"), vec![b'v'; 100]).unwrap();
    }
    // RocksDB's secondary skips a WAL that is deleted while it opens; it would have to catch up, which ldb does not do.
    primary.wait_for_background_work().unwrap();
    let (at, own) = (format!("--db={}", path.display()), dir.path().join("ldb"));
    let own = format!("--secondary_path={}", own.display());
    let scan = oracle::run_tool(&ldb, &[&at, &own, "scan"]).unwrap();
    assert_eq!(scan.lines().filter(|l| l.starts_with('k')).count(), 500, "{scan}");
}

/// A write fails in its sync: its record is nevertheless in the WAL, and a secondary may show it, as an open would.
/// Once the primary has removed it, it is never visible again, whatever the secondary had read before.
#[test]
fn a_write_that_failed_goes_from_the_secondary_when_the_primary_resumes() {
    for (looked_before, data_before) in [(false, false), (true, false), (false, true), (true, true)] {
        let (fs, primary, secondary) = in_memory();
        let other = primary.cf_handle("other").unwrap();
        let seen = |key: &str| {
            let cf = secondary.cf_handle("other").unwrap();
            let families = [secondary.get(key).unwrap(), secondary.get_cf(&cf, key).unwrap()];
            families.map(|v| v.map(|v| String::from_utf8(v).unwrap()))
        };
        primary.put("kept", "1").unwrap();
        if !data_before {
            primary.flush().unwrap();
        }
        let mut synced = WriteOptions::default();
        synced.set_sync(true);
        fs.set_fault(Box::new(|op| {
            let wal = op.path.extension().is_some_and(|e| e == "log");
            (op.kind == OpKind::Sync && wal).then(|| std::io::Error::from_raw_os_error(5))
        }));
        let mut batch = WriteBatch::new();
        batch.put("refused", "1");
        batch.put_cf(&other, "refused", "1");
        batch.delete("kept");
        primary.write_opt(&batch, &synced).unwrap_err();
        fs.clear_fault();
        if looked_before {
            secondary.try_catch_up_with_primary().unwrap();
            assert_eq!(seen("refused"), [Some("1".to_owned()), Some("1".to_owned())]);
        }
        primary.resume().unwrap();
        let told = format!("looked before: {looked_before}, data before: {data_before}");
        for round in 0..3 {
            assert_eq!(primary.get("kept").unwrap().as_deref(), Some(&b"1"[..]), "{told}");
            secondary.try_catch_up_with_primary().unwrap();
            assert_eq!(seen("refused"), [None, None], "{told}, round {round}");
            assert_eq!(seen("kept"), [Some("1".to_owned()), None], "{told}, round {round}");
            // The sequence numbers of removed records are used again.
            let key = format!("after {round}");
            let mut before = secondary.raw_iterator();
            primary.put(&key, "1").unwrap();
            primary.put_cf(&other, &key, "2").unwrap();
            assert_eq!(seen(&key), [None, None], "{told}, round {round}: a secondary saw it before it caught up");
            secondary.try_catch_up_with_primary().unwrap();
            assert_eq!(seen(&key), [Some("1".to_owned()), Some("2".to_owned())], "{told}, round {round}");
            before.seek(&key);
            assert_eq!(before.key(), Some(&b"kept"[..]), "{told}, round {round}: an iterator of before sees it");
        }
    }
}
