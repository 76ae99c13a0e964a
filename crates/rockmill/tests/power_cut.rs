//! Power cuts at many points of a recorded run, and I/O calls that fail in turn, with the whole store.
//!
//! Every operation is one batch over two column families that also writes its own number to both, so a recovered
//! database shows its last operation. Its contents must be exactly those after this operation: never a part of a batch,
//! never a later write without an earlier one, and the same in both column families. And it must not be before the last
//! operation that was acknowledged as durable. Seeds are printed; `ROCKMILL_SEED` sets one.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rockmill::{
    ColumnFamilyDescriptor, CompactionStyle, CompressionType, Db, ErrorKind, FifoCompactOptions, IteratorMode, Options,
    WriteBatch, WriteOptions,
};
use rockmill_io::{CrashMode, FileSystem, MemFileSystem};

const FAMILIES: [&str; 2] = ["default", "second"];
const OPS: u64 = 600;
/// The key that holds the number of the last operation.
const NUMBER: &[u8] = b"!number";

/// What differs between runs.
#[derive(Debug, Clone, Copy)]
enum Variant {
    Plain,
    /// WALs are used again.
    Recycled,
    /// WALs are kept across opens, in a separate directory, and archived. Flushes are atomic.
    Kept,
    /// Values stay in logs, which are on another device.
    Fast,
}

type Contents = BTreeMap<Vec<u8>, Vec<u8>>;

fn seed() -> u64 {
    let seed = std::env::var("ROCKMILL_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    println!("seed {seed} (set ROCKMILL_SEED to repeat)");
    seed
}

fn path() -> &'static Path {
    Path::new("/db")
}

fn options(fs: &MemFileSystem, variant: Variant) -> Options {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.create_missing_column_families(true);
    options.set_file_system(Arc::new(fs.clone()));
    // Small, so that power cuts also interrupt flushes, compactions, new logs and new MANIFESTs.
    options.set_write_buffer_size(16 << 10);
    options.set_target_file_size_base(8 << 10);
    options.set_max_bytes_for_level_base(32 << 10);
    options.set_level_zero_file_num_compaction_trigger(2);
    options.set_max_manifest_file_size(1500);
    match variant {
        Variant::Plain => {}
        Variant::Recycled => options.set_recycle_log_file_num(2),
        Variant::Kept => {
            options.set_avoid_flush_during_recovery(true);
            options.set_atomic_flush(true);
            options.set_wal_dir("/wals");
            options.set_wal_ttl_seconds(3600);
        }
        Variant::Fast => {
            options.set_fast_path("/fast", 256 << 10);
            options.set_max_index_size(16 << 10);
            options.set_data_flush_trigger_size(40 << 10);
            options.set_index_inline_size(8);
        }
    }
    options
}

fn try_open(fs: &MemFileSystem, variant: Variant) -> rockmill::Result<Db> {
    let options = options(fs, variant);
    Db::open_cf_descriptors(&options, path(), FAMILIES.map(|f| ColumnFamilyDescriptor::new(f, options.clone())))
}

/// A key and its new value; `None` deletes it.
type Change = (Vec<u8>, Option<Vec<u8>>);

/// Operation `n`: per column family, its puts and its deletions (`None`).
fn operation(seed: u64, n: u64) -> [Vec<Change>; 2] {
    let mut rng = fastrand::Rng::with_seed(seed ^ n.wrapping_mul(0x9e37_79b9));
    let mut one = || {
        let mut changes = vec![(NUMBER.to_vec(), Some(n.to_string().into_bytes()))];
        for _ in 0..rng.usize(..4) {
            let key = format!("key{:03}", rng.u32(..300)).into_bytes();
            let value = vec![b'a' + (n % 26) as u8; rng.usize(..300)];
            changes.push((key, (rng.u8(..5) != 0).then_some(value)));
        }
        changes
    };
    [one(), one()]
}

fn apply(contents: &mut [Contents; 2], seed: u64, n: u64) {
    for (contents, changes) in contents.iter_mut().zip(operation(seed, n)) {
        for (key, value) in changes {
            match value {
                Some(value) => contents.insert(key, value),
                None => contents.remove(&key),
            };
        }
    }
}

fn write(db: &Db, seed: u64, n: u64, sync: bool) -> rockmill::Result<()> {
    let mut batch = WriteBatch::new();
    for (family, changes) in FAMILIES.iter().zip(operation(seed, n)) {
        let cf = db.cf_handle(family).expect("opened");
        for (key, value) in changes {
            match value {
                Some(value) => batch.put_cf(&cf, key, value),
                None => batch.delete_cf(&cf, key),
            }
        }
    }
    let mut how = WriteOptions::default();
    how.set_sync(sync);
    db.write_opt(&batch, &how)
}

fn contents(db: &Db) -> rockmill::Result<[Contents; 2]> {
    let mut out = [Contents::new(), Contents::new()];
    for (family, out) in FAMILIES.iter().zip(&mut out) {
        let cf = db.cf_handle(family).expect("opened");
        for entry in db.iterator_cf(&cf, IteratorMode::Start) {
            let (key, value) = entry?;
            out.insert(key.into_vec(), value.into_vec());
        }
    }
    Ok(out)
}

/// The state after each operation; index 0 is the empty state.
fn states(seed: u64, ops: u64) -> Vec<[Contents; 2]> {
    let mut all = vec![[Contents::new(), Contents::new()]];
    for n in 1..=ops {
        let mut next = all[n as usize - 1].clone();
        apply(&mut next, seed, n);
        all.push(next);
    }
    all
}

/// The last operation in a database; checks that the contents are exactly those after this operation.
#[track_caller]
fn moment(what: &str, db: &Db, states: &[[Contents; 2]]) -> u64 {
    let found = contents(db).unwrap_or_else(|e| panic!("{what}: {e}"));
    let number = |c: &Contents| -> u64 {
        let text = c.get(NUMBER).map(|v| String::from_utf8_lossy(v).into_owned());
        text.map_or(0, |t| t.parse().expect("a number"))
    };
    let n = number(&found[0]);
    assert_eq!(n, number(&found[1]), "{what}: the column families show different moments");
    let expected = &states[n as usize];
    for (family, (expected, found)) in FAMILIES.iter().zip(expected.iter().zip(&found)) {
        if expected != found {
            let wrong = expected.keys().chain(found.keys()).find(|k| expected.get(*k) != found.get(*k));
            let wrong = wrong.map(|k| String::from_utf8_lossy(k).into_owned());
            panic!("{what}: {family} at operation {n} differs, first at {wrong:?}");
        }
    }
    n
}

fn power_cuts(variant: Variant) {
    let seed = seed();
    let mut rng = fastrand::Rng::with_seed(seed);
    let fs = MemFileSystem::new();
    drop(try_open(&fs, variant).expect("a new database"));
    fs.start_recording();
    // (events recorded when it returned, operation, durable)
    let mut acknowledged = vec![(0, 0, true)];
    {
        let mut db = try_open(&fs, variant).expect("open");
        for n in 1..=OPS {
            let mut durable = rng.u8(..4) == 0;
            write(&db, seed, n, durable).unwrap_or_else(|e| panic!("operation {n}: {e}"));
            if rng.u8(..60) == 0 {
                db.flush().unwrap_or_else(|e| panic!("flush: {e}"));
                durable = true;
            }
            acknowledged.push((fs.recorded(), n, durable));
            if rng.u8(..150) == 0 {
                drop(db);
                db = try_open(&fs, variant).unwrap_or_else(|e| panic!("reopen: {e}"));
            }
        }
    }
    let states = states(seed, OPS);
    let mut replay = fs.replay().expect("recording");
    let points = replay.points();
    let step = (points / 250).max(1);
    println!("{points} points, every {step}th");
    let (mut lost, mut opened, mut refused) = (0, 0, 0);
    let mut point = 0;
    while point < points {
        replay.advance_to(point);
        let floor = |durable_only: bool| {
            let before = acknowledged.iter().take_while(|(at, ..)| *at <= point);
            before.filter(|(.., durable)| *durable || !durable_only).map(|(_, n, _)| *n).last().unwrap_or(0)
        };
        let (durable, any) = (floor(true), floor(false));
        let modes = [
            CrashMode::KeepAll,
            CrashMode::SyncedOnly,
            CrashMode::Random(seed ^ point as u64),
            CrashMode::Hostile(seed ^ point as u64),
        ];
        for mode in modes {
            let what = format!("seed {seed}, power cut at {point} of {points}, {mode:?}");
            let image = replay.crash_image(mode);
            let db = match try_open(&image, variant) {
                Ok(db) => db,
                // Lost sectors in a MANIFEST that was being written cannot be distinguished from damage of synced data:
                // as in RocksDB, they are reported, not ignored.
                Err(e)
                    if matches!(mode, CrashMode::Random(_) | CrashMode::Hostile(_))
                        && e.kind() == ErrorKind::Corruption
                        && e.to_string().contains("MANIFEST") =>
                {
                    refused += 1;
                    continue;
                }
                Err(e) => panic!("{what}: does not open: {e}"),
            };
            opened += 1;
            let n = moment(&what, &db, &states);
            let at_least = if mode == CrashMode::KeepAll { any } else { durable };
            assert!(n >= at_least, "{what}: shows operation {n}, but {at_least} was acknowledged");
            lost += any - n.min(any);
            // It continues to work: one more write, a clean close, and the write is there.
            if point % 5 == 0 {
                let cf = db.cf_handle(FAMILIES[1]).expect("opened");
                db.put_cf(&cf, b"~after", b"1").unwrap_or_else(|e| panic!("{what}: a write after recovery: {e}"));
                drop(db);
                let db = try_open(&image, variant).unwrap_or_else(|e| panic!("{what}: second open: {e}"));
                let cf = db.cf_handle(FAMILIES[1]).expect("opened");
                let there = db.get_cf(&cf, b"~after").unwrap_or_else(|e| panic!("{what}: {e}"));
                assert!(there.is_some(), "{what}: the write after recovery is gone");
            }
        }
        point += 1 + rng.usize(..step * 2);
    }
    println!("{opened} opened, {refused} refused for lost sectors in the MANIFEST");
    assert!(refused * 20 < opened, "{refused} of {} images were refused", refused + opened);
    assert!(lost > 0, "no power cut lost an unsynced write: the memory disk keeps everything");
}

#[test]
fn power_cuts_leave_a_moment_that_was() {
    power_cuts(Variant::Plain);
}

#[test]
fn power_cuts_with_recycled_logs_leave_a_moment_that_was() {
    power_cuts(Variant::Recycled);
}

#[test]
fn power_cuts_with_kept_logs_leave_a_moment_that_was() {
    power_cuts(Variant::Kept);
}

#[test]
fn power_cuts_with_values_in_logs_leave_a_moment_that_was() {
    power_cuts(Variant::Fast);
}

/// Performs operations until one fails; returns the last acknowledged one.
fn write_until_error(fs: &MemFileSystem, variant: Variant, seed: u64, ops: u64) -> u64 {
    let Ok(db) = try_open(fs, variant) else { return 0 };
    let mut last = 0;
    for n in 1..=ops {
        if write(&db, seed, n, n % 3 == 0).is_err() {
            // The store may continue, or refuse all further writes; it never accepts a write that is lost.
            break;
        }
        last = n;
        if n % 50 == 0 && db.flush().is_err() {
            break;
        }
    }
    last
}

/// Call `at` fails for lack of space, or the disk dies with it.
fn failing(at: u64, dies: bool) -> MemFileSystem {
    let fs = MemFileSystem::new();
    if dies {
        fs.fail_after(at, 5); // EIO
    } else {
        fs.fail_once_after(at, 28); // ENOSPC
    }
    fs
}

fn failed_calls(variant: Variant) {
    let seed = seed();
    let ops = 120;
    let states = states(seed, ops);
    let whole = MemFileSystem::new();
    assert_eq!(write_until_error(&whole, variant, seed, ops), ops);
    let calls = whole.calls();
    assert!(calls > 200, "only {calls} calls: the sweep sees nothing");
    let mut noticed = 0;
    let step = (calls / 300).max(1);
    for at in (0..calls).step_by(step as usize) {
        for dies in [false, true] {
            let fs = failing(at, dies);
            let last = write_until_error(&fs, variant, seed, ops);
            noticed += u64::from(last < ops);
            fs.clear_fault();
            let what = format!("seed {seed}, {} call {at} of {calls} fails", if dies { "from" } else { "only" });
            let db = try_open(&fs, variant).unwrap_or_else(|e| panic!("{what}: does not open afterwards: {e}"));
            let n = moment(&what, &db, &states);
            // The failed operation may have reached the log: then it may exist, completely.
            assert!(n == last || n == last + 1, "{what}: shows operation {n}, {last} were acknowledged");
            drop(db);
            // The same after a power cut: synced operations count.
            let image = fs.crash_image(CrashMode::SyncedOnly);
            let db = try_open(&image, variant).unwrap_or_else(|e| panic!("{what}, power cut: does not open: {e}"));
            let n = moment(&what, &db, &states);
            assert!(n >= last - last % 3, "{what}, power cut: shows operation {n}, {} was synced", last - last % 3);
        }
    }
    assert!(noticed > 10, "only {noticed} failed calls were noticed");
}

#[test]
fn a_failed_call_loses_nothing() {
    failed_calls(Variant::Plain);
}

#[test]
fn a_failed_call_with_values_in_logs_loses_nothing() {
    failed_calls(Variant::Fast);
}

/// Small tables; FIFO compaction keeps a few, and merges small ones.
fn open_fifo(fs: &MemFileSystem) -> rockmill::Result<Db> {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_file_system(Arc::new(fs.clone()));
    options.set_write_buffer_size(8 << 10);
    options.set_max_manifest_file_size(1500);
    options.set_compression_type(CompressionType::None);
    options.set_compaction_style(CompactionStyle::Fifo);
    options.set_level_zero_file_num_compaction_trigger(3);
    let mut fifo = FifoCompactOptions::default();
    fifo.set_max_table_files_size(12 << 10);
    fifo.set_allow_compaction(true);
    options.set_fifo_compaction_options(&fifo);
    Db::open(&options, path())
}

/// Each operation has its own key, and all share another one. Returns the last acknowledged one.
fn write_fifo(fs: &MemFileSystem, ops: std::ops::RangeInclusive<u64>) -> u64 {
    let mut last = ops.start() - 1;
    let Ok(db) = open_fifo(fs) else { return last };
    for n in ops {
        let mut batch = WriteBatch::new();
        batch.put(format!("{n:05}"), vec![b'v'; 200]);
        batch.put(NUMBER, n.to_be_bytes());
        let mut sync = WriteOptions::default();
        sync.set_sync(n % 3 == 0);
        if db.write_opt(&batch, &sync).is_err() || (n % 10 == 0 && db.flush().is_err()) {
            break;
        }
        last = n;
    }
    last
}

/// The first and the last existing operation; `(n + 1, n)` means none.
fn newest_part(what: &str, db: &Db) -> (u64, u64) {
    let all: Vec<_> = db.iterator(IteratorMode::Start).map(|kv| kv.unwrap_or_else(|e| panic!("{what}: {e}"))).collect();
    let Some(((_, number), keys)) = all.split_first() else { return (1, 0) };
    let last = u64::from_be_bytes(number[..].try_into().unwrap_or_else(|_| panic!("{what}: the shared key is gone")));
    let first = last + 1 - keys.len() as u64;
    let numbers = keys.iter().map(|(key, _)| std::str::from_utf8(key).ok()?.parse::<u64>().ok());
    assert!(numbers.eq((first..=last).map(Some)), "{what}: not the operations from {first} to {last}");
    (first, last)
}

/// Checks that no table remains: leftovers of background work are removed soon; unknown tables would never be.
fn no_table_stays(what: &str, fs: &MemFileSystem, db: &Db) {
    let until = Instant::now() + Duration::from_secs(300);
    loop {
        let live: Vec<String> = db.live_files().expect("a list").into_iter().map(|f| f.name).collect();
        let mut tables = fs.list_dir(path()).expect("a directory");
        tables.retain(|name| name.ends_with(".sst") && !live.iter().any(|l| l.trim_start_matches('/') == name));
        if tables.is_empty() {
            return;
        }
        assert!(Instant::now() < until, "{what}: {tables:?} stay, {live:?} are live");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whatever call fails while old tables are dropped: the newest acknowledged operations are there, older ones do not
/// reappear, and no table outside of the tree remains.
#[test]
fn a_failed_call_under_fifo_compaction_loses_the_oldest_alone() {
    let (ops, more) = (120, 40);
    let whole = MemFileSystem::new();
    assert_eq!(write_fifo(&whole, 1..=ops), ops);
    let calls = whole.calls();
    // The writes may have been faster than the thread that drops tables.
    let (db, until) = (open_fifo(&whole).expect("opens"), Instant::now() + Duration::from_secs(60));
    let kept = loop {
        let kept = newest_part("no call fails", &db);
        if kept.0 > 20 || Instant::now() > until {
            break kept;
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    assert!(kept.0 > 20 && kept.1 == ops, "what was dropped: all in front of {kept:?}");
    drop(db);
    let mut noticed = 0;
    for at in (0..calls).step_by((calls / 60).max(1) as usize) {
        for dies in [false, true] {
            let fs = failing(at, dies);
            let last = write_fifo(&fs, 1..=ops);
            noticed += u64::from(last < ops);
            fs.clear_fault();
            let what = format!("{} call {at} of {calls} fails", if dies { "from" } else { "only" });
            for (image, least) in [(fs.crash_image(CrashMode::SyncedOnly), last - last % 3), (fs, last)] {
                let db = open_fifo(&image).unwrap_or_else(|e| panic!("{what}: does not open afterwards: {e}"));
                let (first, n) = newest_part(&what, &db);
                assert!(least <= n && n <= last + 1, "{what}: shows up to {n}, {last} were acknowledged");
                no_table_stays(&what, &image, &db);
                drop(db);
                let end = n + more;
                assert_eq!(write_fifo(&image, n + 1..=end), end, "{what}: goes on");
                let db = open_fifo(&image).unwrap_or_else(|e| panic!("{what}: does not open again: {e}"));
                let (later, now) = newest_part(&what, &db);
                assert!(now == end && later >= first.min(end), "{what}: from {first}, then from {later} to {now}");
            }
        }
    }
    assert!(noticed > 10, "only {noticed} failed calls were noticed");
}
