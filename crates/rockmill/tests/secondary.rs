//! Secondary instances: one that follows a primary through flushes, compactions, new WALs and new MANIFESTs, beside
//! writers; one that follows RocksDB; and RocksDB's secondary following Rockmill.

mod oracle;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rockmill::{
    BottommostLevelCompaction, CompactOptions, Db, ErrorKind, FlushOptions, IteratorMode, Options, WriteBatch,
    WriteOptions,
};

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

fn contents(db: &Db, cf: &str) -> Map {
    let handle = db.cf_handle(cf).unwrap();
    let all = db.iterator_cf(&handle, IteratorMode::Start).map(|kv| kv.unwrap());
    all.map(|(k, v)| (k.into_vec(), v.into_vec())).collect()
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
                primary.put_cf(&handle, &key, &value).unwrap();
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
        // A failure here ends the others too, and is then shown.
        let _end = Stop(&stop);
        let began = std::time::Instant::now();
        let mut last = 0;
        let mut rounds = 0;
        while began.elapsed().as_secs() < 4 {
            // A primary that rolls its MANIFEST all the time may outrun this; then it says so and is tried again.
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
    // Data that is in no WAL shows when it is in a table.
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
    let (at, own) = (format!("--db={}", path.display()), dir.path().join("ldb"));
    let own = format!("--secondary_path={}", own.display());
    let scan = oracle::run_tool(&ldb, &[&at, &own, "scan"]).unwrap();
    assert_eq!(scan.lines().filter(|l| l.starts_with('k')).count(), 500, "{scan}");
}
