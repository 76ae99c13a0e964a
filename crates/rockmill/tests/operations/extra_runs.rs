//! A tree whose levels have extra runs can be read like any other, keeps its order in all operations, and can become a
//! tree without them.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included};
use std::path::Path;
use std::sync::Arc;

use rockmill::backup::{BackupEngine, BackupEngineOptions, RestoreOptions};
use rockmill::internals::merge_into_extra_run;
use rockmill::{
    BlockBasedOptions, Checkpoint, CompactionStyle, Db, Direction, Env, ErrorKind, IteratorMode, Options, Range,
    ReadOptions, SliceTransform,
};
use rockmill_format::edit::VersionEdit;
use rockmill_format::log::{LogEvent, LogReader};
use rockmill_io::{CrashMode, FileSystem, MemFileSystem};

use super::oracle::{Outcome, Peer, Script, copy_dir, run_tool, tool};
use rockmill_skip::skip;

pub(super) type Model = BTreeMap<String, Vec<u8>>;
type Entries = Vec<(Vec<u8>, Vec<u8>)>;

pub(super) fn options(fs: &MemFileSystem, rng: &mut fastrand::Rng) -> Options {
    let mut o = Options::default();
    o.create_if_missing(true);
    o.set_file_system(Arc::new(fs.clone()));
    o.set_disable_auto_compactions(true);
    o.set_target_file_size_base(2 << 10);
    o.set_num_levels(5);
    o.set_level_compaction_dynamic_level_bytes(rng.bool());
    o.set_prefix_extractor(SliceTransform::create_fixed_prefix(3));
    o.set_merge_operator_associative("join", |_, old, operands| {
        let mut all = old.unwrap_or_default().to_vec();
        operands.iter().for_each(|o| all.extend_from_slice(o));
        Some(all)
    });
    let mut t = BlockBasedOptions::default();
    t.set_block_size(256);
    t.set_bloom_filter(10.0, false);
    o.set_block_based_table_factory(&t);
    o
}

pub(super) fn key(i: u64) -> String {
    format!("k{i:03}")
}

pub(super) fn write(db: &Db, model: &mut Model, rng: &mut fastrand::Rng, round: u64) {
    let cf = db.cf_handle("default").unwrap();
    for _ in 0..rng.usize(1..60) {
        let k = key(rng.u64(..200));
        match rng.u32(..12) {
            0..=2 => {
                db.delete(&k).unwrap();
                model.remove(&k);
            }
            3 | 4 => {
                db.merge(&k, format!("+{round}")).unwrap();
                model.entry(k).or_default().extend_from_slice(format!("+{round}").as_bytes());
            }
            5 => {
                let to = key(rng.u64(..200).max(10));
                let from = to.clone().min(k);
                db.delete_range_cf(&cf, &from, &to).unwrap();
                model.retain(|k, _| *k < from || *k >= to);
            }
            _ => {
                let value = format!("{round}:{}", "v".repeat(rng.usize(..30)));
                db.put(&k, &value).unwrap();
                model.insert(k, value.into_bytes());
            }
        }
    }
}

fn pairs(model: &Model) -> Vec<(String, Vec<u8>)> {
    model.iter().map(|(k, v)| (k.clone(), v.clone())).collect()
}

pub(super) fn check(db: &Db, model: &Model, ro: impl Fn() -> ReadOptions, what: &str) {
    let keys: Vec<String> = (0..200).map(key).collect();
    for k in &keys {
        assert_eq!(db.get_opt(k, &ro()).unwrap().as_ref(), model.get(k), "{what}: {k}");
    }
    let all = db.multi_get_opt(&keys, &ro());
    let all: Vec<_> = all.into_iter().map(Result::unwrap).collect();
    assert!(all.iter().zip(&keys).all(|(v, k)| v.as_ref() == model.get(k)), "{what}: multi_get");
    let text = |(k, v): (Box<[u8]>, Box<[u8]>)| (String::from_utf8(k.into_vec()).unwrap(), v.into_vec());
    let scan = |mode, ro| db.iterator_opt(mode, ro).map(|kv| text(kv.unwrap())).collect::<Vec<_>>();
    let whole = || {
        let mut ro = ro();
        ro.set_total_order_seek(true);
        ro
    };
    let expected = pairs(model);
    assert_eq!(scan(IteratorMode::Start, whole()), expected, "{what}: forward");
    let mut back = scan(IteratorMode::End, whole());
    back.reverse();
    assert_eq!(back, expected, "{what}: backward");
    let (from, to) = (key(37), key(161));
    let mut bounded = whole();
    bounded.set_iterate_lower_bound(from.as_bytes());
    bounded.set_iterate_upper_bound(to.as_bytes());
    let inside: Model =
        model.range::<String, _>((Included(&from), Excluded(&to))).map(|(k, v)| (k.clone(), v.clone())).collect();
    let found = scan(IteratorMode::From(b"k10", Direction::Forward), bounded);
    assert_eq!(found.first().map(|p| &p.0), inside.keys().find(|k| k.as_str() >= "k10"), "{what}: in bounds");
    for prefix in ["k01", "k12"] {
        let mut by_prefix = ro();
        by_prefix.set_prefix_same_as_start(true);
        let found = scan(IteratorMode::From(prefix.as_bytes(), Direction::Forward), by_prefix);
        let expected: Vec<_> = expected.iter().filter(|(k, _)| k.starts_with(prefix)).cloned().collect();
        assert_eq!(found, expected, "{what}: prefix {prefix}");
    }
}

pub(super) fn extra_runs(db: &Db) -> usize {
    db.level_stats(&db.cf_handle("default").unwrap()).iter().map(|l| l.extra_runs).sum()
}

#[test]
fn random_trees_with_extra_runs_read_as_the_model() {
    let mut most = 0;
    for seed in 0..30 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let fs = MemFileSystem::default();
        let o = options(&fs, &mut rng);
        let mut db = Db::open(&o, "/db").unwrap();
        let mut model = Model::new();
        for round in 0..25 {
            write(&db, &mut model, &mut rng, round);
            let before = model.clone();
            let snapshot = db.snapshot();
            write(&db, &mut model, &mut rng, round);
            let cf = db.cf_handle("default").unwrap();
            let what = format!("seed {seed} round {round}");
            match rng.u32(..10) {
                0..=6 => {
                    db.flush().unwrap();
                    for _ in 0..4 {
                        let (from, to) = (if rng.bool() { 0 } else { rng.usize(0..4) }, rng.usize(1..5));
                        let levels: Vec<usize> = (from..=from + rng.usize(0..2)).collect();
                        match merge_into_extra_run(&db, &cf, &levels, to) {
                            Ok(_) => break,
                            Err(e) => assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{what}: {e}"),
                        }
                    }
                }
                7 | 8 => db.flush().unwrap(),
                9 if rng.bool() => db.compact_range(Some(key(rng.u64(..100))), Some(key(rng.u64(100..200)))).unwrap(),
                _ => {}
            }
            most = most.max(extra_runs(&db));
            let at_snapshot = || {
                let mut ro = ReadOptions::default();
                ro.set_snapshot(&snapshot);
                ro
            };
            check(&db, &before, at_snapshot, &format!("{what}, snapshot"));
            check(&db, &model, ReadOptions::default, &what);
            drop(snapshot);
            if rng.u32(..6) == 0 {
                let (runs, files) = (extra_runs(&db), db.live_files().unwrap().len());
                drop(db);
                db = Db::open(&o, "/db").unwrap();
                assert!(extra_runs(&db) == runs || files != db.live_files().unwrap().len(), "{what}");
                check(&db, &model, ReadOptions::default, &format!("{what}, opened again"));
            }
        }
        db.flush().unwrap();
        if seed % 2 == 0 {
            db.compact_range(None::<&str>, None::<&str>).unwrap();
        } else {
            db.merge_extra_runs_cf(&db.cf_handle("default").unwrap()).unwrap();
        }
        assert_eq!(extra_runs(&db), 0, "seed {seed}");
        check(&db, &model, ReadOptions::default, &format!("seed {seed} without extra runs"));
    }
    assert!(most >= 3, "{most}: the trees had extra runs");
}

#[test]
fn what_tells_of_tables_knows_extra_runs() {
    let fs = MemFileSystem::default();
    let mut rng = fastrand::Rng::with_seed(1);
    let db = Db::open(&options(&fs, &mut rng), "/db").unwrap();
    let cf = db.cf_handle("default").unwrap();
    for (round, to) in [(0, 3), (1, 3), (2, 2)] {
        for i in 0..100 {
            db.put(key(i * 2 % 200), format!("{round}")).unwrap();
        }
        db.flush().unwrap();
        merge_into_extra_run(&db, &cf, &[0], to).unwrap();
    }
    assert_eq!(extra_runs(&db), 3);
    let stats = db.level_stats(&cf);
    assert_eq!((stats[3].extra_runs, stats[2].extra_runs), (2, 1));
    let files = db.live_files().unwrap();
    assert!(files.iter().all(|f| matches!(f.level, 2 | 3)));
    let meta = db.get_column_family_metadata();
    assert_eq!((meta.file_count, meta.levels[3].files.len()), (files.len(), stats[3].files));
    let size = db.get_approximate_sizes(&[Range::new(b"a", b"z")])[0];
    let bytes: u64 = files.iter().map(|f| f.size as u64).sum();
    assert!(size > bytes / 2 && size <= bytes, "{size} of {bytes}");
    // Properties count a level's tables in all of its runs.
    let property = |name: &str| db.property_value(name).unwrap().unwrap();
    for (level, stats) in stats.iter().enumerate() {
        assert_eq!(property(&format!("rocksdb.num-files-at-level{level}")), stats.files.to_string());
    }
    let text = property("rocksdb.levelstats");
    assert!(
        text.lines().any(|l| l.split_whitespace().take(2).eq(["3", stats[3].files.to_string().as_str()])),
        "{text}"
    );
    let text = property("rocksdb.sstables");
    assert!(files.iter().all(|f| text.contains(&f.number.to_string())), "{text}");
    // Operations that treat a level as one sorted run elsewhere refuse several.
    let exported = Checkpoint::new(&db).unwrap().export_column_family(&cf, "/export");
    assert_eq!(exported.unwrap_err().kind(), ErrorKind::NotSupported);
}

/// All entries as each available RocksDB reads them, or why it refuses the database.
pub(super) fn as_rocksdb_reads(dir: &Path, test: &str) -> Vec<Result<Entries, String>> {
    let mut all = Vec::new();
    let mut script = Script::new();
    script.line("cf default num_levels=5").line("cf other num_levels=5");
    for driver in Peer::all(test) {
        let copy = dir.with_extension(format!("{:?}", driver.peer));
        copy_dir(dir, &copy);
        let mut script = script.clone();
        script.open(&copy).line("dump default").line("dump other");
        match driver.run(&script) {
            Outcome::Done(answer) => all.push(Ok(answer.entries())),
            Outcome::Unsupported(what) => skip(test, &what),
            Outcome::Failed(why) => all.push(Err(why)),
        }
        std::fs::remove_dir_all(copy).unwrap();
    }
    all
}

#[test]
fn rocksdb_refuses_extra_runs_and_opens_the_database_once_they_are_merged() {
    let test = "rocksdb_refuses_extra_runs_and_opens_the_database_once_they_are_merged";
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("db");
    let mut o = Options::default();
    o.create_if_missing(true);
    o.set_disable_auto_compactions(true);
    o.set_num_levels(5);
    o.set_target_file_size_base(4 << 10);
    o.set_compression_type(rockmill::CompressionType::None);
    let fill = || {
        let db = Db::open(&o, &dir).unwrap();
        let cf = match db.cf_handle("other") {
            Some(cf) => cf,
            None => db.create_cf("other", &o).unwrap(),
        };
        db.put("plain", "value").unwrap();
        for (round, to) in [(1, 4), (2, 4), (3, 3)] {
            for i in (0..400).filter(|i| i % round == 0) {
                db.put_cf(&cf, key(i), format!("{round}")).unwrap();
            }
            db.flush_cf(&cf).unwrap();
            merge_into_extra_run(&db, &cf, &[0], to).unwrap();
        }
        db
    };
    drop(fill());
    for answer in as_rocksdb_reads(&dir, test) {
        let why = answer.unwrap_err();
        assert!(why.contains("custom field not supported") || why.contains("Corruption"), "{why}");
    }
    let ldb = tool("ldb").inspect_err(|why| skip(test, why)).ok();
    let scan =
        || run_tool(ldb.as_ref().unwrap(), &[&format!("--db={}", dir.display()), "--column_family=other", "scan"]);
    if ldb.is_some() {
        let why = scan().unwrap_err();
        assert!(why.contains("custom field not supported"), "{why}");
    }

    // Merged and still open: RocksDB can now read the files on disk.
    let db = Db::open_cf(&o, &dir, ["default", "other"]).unwrap();
    let cf = db.cf_handle("other").unwrap();
    assert_eq!(db.level_stats(&cf).iter().map(|l| l.extra_runs).sum::<usize>(), 3);
    db.merge_extra_runs_cf(&cf).unwrap();
    let expected: Vec<_> = (0..400)
        .map(|i| {
            (
                key(i).into_bytes(),
                if i % 3 == 0 {
                    "3"
                } else if i % 2 == 0 {
                    "2"
                } else {
                    "1"
                },
            )
        })
        .map(|(k, v)| (k, v.as_bytes().to_vec()))
        .collect();
    let ours: Vec<_> = db.iterator_cf(&cf, IteratorMode::Start).map(|kv| kv.unwrap()).collect();
    assert!(ours.iter().map(|(k, v)| (k.to_vec(), v.to_vec())).eq(expected.iter().cloned()));
    drop((cf, db));
    for answer in as_rocksdb_reads(&dir, test) {
        let mut entries = answer.unwrap();
        entries.retain(|(k, _)| k != b"plain");
        assert_eq!(entries, expected);
    }
    if ldb.is_some() {
        assert_eq!(scan().unwrap().lines().filter(|l| l.contains(" : ") || l.contains("==>")).count(), 400);
    }
}

/// Only existing extra runs keep RocksDB from opening the database: neither earlier ones nor the option do.
#[test]
fn rocksdb_opens_what_has_no_extra_run_any_more_whatever_the_option_says() {
    let test = "rocksdb_opens_what_has_no_extra_run_any_more_whatever_the_option_says";
    let Ok(ldb) = tool("ldb").inspect_err(|why| skip(test, why)) else { return };
    let temp = tempfile::tempdir().unwrap();
    let path = |name: &str| temp.path().join(name);
    let mut o = Options::default();
    o.create_if_missing(true);
    o.set_compaction_downforce(true);
    o.set_disable_auto_compactions(true);
    o.set_compression_type(rockmill::CompressionType::None);
    let scan = |name: &str| {
        let said = run_tool(&ldb, &[&format!("--db={}", path(name).display()), "scan"]);
        said.map(|text| text.lines().filter(|l| l.contains(" : 2") || l.contains("==> 2")).count())
    };
    let refused = |name: &str| {
        let why = scan(name).unwrap_err();
        assert!(why.contains("custom field not supported"), "{name}: {why}");
    };
    let db = Db::open(&o, path("db")).unwrap();
    let cf = db.cf_handle("default").unwrap();
    for round in 0..3 {
        for i in 0..100 {
            db.put(key(i), format!("{round}")).unwrap();
        }
        db.flush().unwrap();
        merge_into_extra_run(&db, &cf, &[0], 5).unwrap();
    }
    let engine = BackupEngine::open(&BackupEngineOptions::new(path("backups")).unwrap(), &Env::new().unwrap()).unwrap();
    engine.create_new_backup(&db).unwrap();
    let checkpoint = |name: &str| Checkpoint::new(&db).unwrap().create_checkpoint(path(name)).unwrap();
    checkpoint("with");
    let dies = |name: &str| copy_dir(&path("db"), &path(name));
    dies("died before");
    db.merge_extra_runs_cf(&cf).unwrap();
    checkpoint("without");
    dies("died");
    drop((cf, db));
    engine.restore_from_latest_backup(path("restored"), path("restored"), &RestoreOptions::default()).unwrap();
    refused("with");
    refused("restored");
    refused("died before");
    assert_eq!(scan("died"), Ok(100), "what a process that dies leaves");
    assert_eq!(scan("without"), Ok(100));
    assert_eq!(scan("db"), Ok(100), "after a close");
    // Merged and closed, copies are as good.
    for name in ["with", "restored"] {
        let db = Db::open(&o, path(name)).unwrap();
        assert_eq!(extra_runs(&db), 3, "{name}");
        db.merge_extra_runs_cf(&db.cf_handle("default").unwrap()).unwrap();
        drop(db);
        assert_eq!(scan(name), Ok(100), "{name}");
    }
    // By itself, at rest.
    o.set_disable_auto_compactions(false);
    let db = Db::open(&o, path("db")).unwrap();
    for _ in 0..3 {
        db.put("k000", "2").unwrap();
        db.flush().unwrap();
        merge_into_extra_run(&db, &db.cf_handle("default").unwrap(), &[0], 5).unwrap();
    }
    db.wait_for_background_work().unwrap();
    assert_eq!(extra_runs(&db), 0);
    dies("died at rest");
    drop(db);
    assert_eq!(scan("db"), Ok(100), "at rest");
    assert_eq!(scan("died at rest"), Ok(100));
}

/// True if the current MANIFEST has an edit that puts a table into an extra run: RocksDB then refuses it.
fn manifest_tells_of_extra_runs(fs: &MemFileSystem, dir: &Path) -> bool {
    let current = String::from_utf8(fs.read_to_vec(&dir.join("CURRENT")).unwrap()).unwrap();
    let manifest = fs.read_to_vec(&dir.join(current.trim_end())).unwrap();
    let mut reader = LogReader::new(&manifest[..], 0);
    let (mut record, mut tells) = (Vec::new(), false);
    while let LogEvent::Record { .. } = reader.next_record(&mut record).unwrap() {
        let edit = VersionEdit::decode(&record).unwrap();
        tells |= edit.new_files.iter().any(|(_, f)| f.extra_run != 0);
    }
    tells
}

/// At every moment, however the last extra run is removed, and with the option on: after a crash or a power cut, the
/// MANIFEST mentions extra runs exactly if there are some, so that otherwise RocksDB can open the database.
#[test]
fn the_manifest_tells_of_extra_runs_while_there_are_some_and_no_longer() {
    let fs = MemFileSystem::new();
    let mut o = options(&fs, &mut fastrand::Rng::with_seed(3));
    o.set_compaction_downforce(true);
    let dir = Path::new("/db");
    let db = Db::open(&o, dir).unwrap();
    fs.start_recording();
    let make = |name: &str| {
        let cf = db.cf_handle(name).unwrap();
        for round in 0..2 {
            (0..50).for_each(|i| db.put_cf(&cf, key(i), format!("{round}")).unwrap());
            db.flush_cf(&cf).unwrap();
            merge_into_extra_run(&db, &cf, &[0], 3).unwrap();
        }
    };
    let default = db.cf_handle("default").unwrap();
    make("default");
    db.merge_extra_runs_cf(&default).unwrap();
    make("default");
    db.compact_range(None::<&str>, None::<&str>).unwrap();
    make("default");
    db.delete_file_in_range("", "~").unwrap();
    db.create_cf("other", &o).unwrap();
    make("default");
    make("other");
    db.merge_extra_runs_cf(&default).unwrap();
    db.drop_cf("other").unwrap();
    make("default");
    db.merge_extra_runs_cf(&default).unwrap();
    drop((default, db));
    let mut replay = fs.replay().unwrap();
    let (mut changes, mut before) = (0, false);
    for point in 0..=fs.recorded() {
        replay.advance_to(point);
        let mode = if point % 2 == 0 { CrashMode::KeepAll } else { CrashMode::SyncedOnly };
        let image = replay.crash_image(mode);
        let tells = manifest_tells_of_extra_runs(&image, dir);
        o.set_file_system(Arc::new(image.clone()));
        let names = Db::list_cf(&o, dir).unwrap();
        let db = Db::open_cf_for_read_only(&o, dir, &names, false).unwrap();
        let there: usize = names
            .iter()
            .flat_map(|name| db.level_stats(&db.cf_handle(name).unwrap()))
            .map(|level| level.extra_runs)
            .sum();
        assert_eq!(tells, there > 0, "{mode:?} at {point} of {}", fs.recorded());
        changes += usize::from(tells != before);
        before = tells;
    }
    assert_eq!(changes, 10, "five times there were some");
}

/// Small tables and many compaction threads, so that jobs overtake each other.
pub(super) fn downforce(fs: &MemFileSystem, style: CompactionStyle) -> Options {
    let mut o = Options::default();
    o.create_if_missing(true);
    o.set_file_system(Arc::new(fs.clone()));
    o.set_compaction_style(style);
    o.set_compaction_downforce(true);
    o.set_max_background_jobs(8);
    o.set_write_buffer_size(8 << 10);
    o.set_target_file_size_base(4 << 10);
    o.set_max_bytes_for_level_base(12 << 10);
    o.set_max_bytes_for_level_multiplier(3.0);
    o.set_level_zero_file_num_compaction_trigger(2);
    o.set_compression_type(rockmill::CompressionType::None);
    o.set_level_compaction_dynamic_level_bytes(false);
    o
}

/// Debug builds check each version, so that a job that commits out of order is detected immediately.
#[test]
fn df_compaction_under_writers_keeps_the_newest_of_every_key() {
    for style in [CompactionStyle::Level, CompactionStyle::Universal] {
        let fs = MemFileSystem::default();
        let mut o = downforce(&fs, style);
        o.enable_statistics();
        let mut models = vec![Model::new(); 3];
        for round in 0..2 {
            let db = Db::open(&o, "/db").unwrap();
            std::thread::scope(|scope| {
                for (writer, model) in models.iter_mut().enumerate() {
                    let db = &db;
                    scope.spawn(move || {
                        let mut rng = fastrand::Rng::with_seed(round * 10 + writer as u64);
                        for i in 0..1500 {
                            let k = format!("{}{}", key(rng.u64(..300)), ["a", "b", "c"][writer]);
                            if rng.u32(..8) == 0 {
                                db.delete(&k).unwrap();
                                model.remove(&k);
                            } else {
                                let v = format!("{round}.{i}:{}", "v".repeat(rng.usize(..60)));
                                db.put(&k, &v).unwrap();
                                model.insert(k.clone(), v.into_bytes());
                            }
                            if i % 50 == 0 {
                                assert_eq!(db.get(&k).unwrap().as_ref(), model.get(&k), "{style:?}: {k}");
                            }
                        }
                    });
                }
            });
            let expected: Model = models.iter().flatten().map(|(k, v)| (k.clone(), v.clone())).collect();
            let check = |what: &str| {
                let found = db.iterator(IteratorMode::Start).map(|kv| kv.unwrap());
                let found: Vec<_> =
                    found.map(|(k, v)| (String::from_utf8(k.into_vec()).unwrap(), v.into_vec())).collect();
                assert_eq!(found, pairs(&expected), "{style:?} round {round}: {what}");
            };
            check("while jobs run");
            db.flush().unwrap();
            db.wait_for_background_work().unwrap();
            check("at rest");
            if round == 1 {
                db.set_options(&[("compaction_downforce", "false")]).unwrap();
                db.compact_range(None::<&str>, None::<&str>).unwrap();
                db.wait_for_background_work().unwrap();
                check("with a classic strategy");
                assert_eq!(extra_runs(&db), 0, "{style:?}");
            }
        }
        // The options allow one part; the first job finds the other threads idle.
        let parts = o.get_histogram_data(rockmill::statistics::Histogram::NumSubcompactionsScheduled).max();
        assert_eq!(parts, 2.0, "{style:?}: idle threads share jobs");
    }
}

#[test]
fn fifo_and_df_compaction_exclude_each_other() {
    let fs = MemFileSystem::default();
    let mut o = downforce(&fs, CompactionStyle::Fifo);
    let why = Db::open(&o, "/db").unwrap_err().to_string();
    assert!(why.contains("compaction_downforce") && why.contains("FIFO"), "{why}");
    o.set_compaction_downforce(false);
    let db = Db::open(&o, "/db").unwrap();
    let why = db.set_options(&[("compaction_downforce", "true")]).unwrap_err().to_string();
    assert!(why.contains("FIFO"), "{why}");
}
