//! All operations on a database whose levels have extra runs: the newest version of every key is visible, whatever
//! happened before.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rockmill::backup::{BackupEngine, BackupEngineOptions, RestoreOptions};
use rockmill::internals::merge_into_extra_run;
use rockmill::{
    BottommostLevelCompaction, Checkpoint, CompactOptions, CompactionStyle, Db, DbRawIterator, Env, ErrorKind,
    FifoCompactOptions, ImportColumnFamilyOptions, IngestExternalFileOptions, IteratorMode, Options, ReadOptions,
    SstFileWriter,
};
use rockmill_io::{FileSystem, ManualClock, MemFileSystem, SystemClock};

use super::extra_runs::{Model, check, extra_runs, key, options, write};

/// Merges the newest tables into a new extra run, if some level accepts it.
fn stack(db: &Db, rng: &mut fastrand::Rng) {
    db.flush().unwrap();
    let cf = db.cf_handle("default").unwrap();
    for _ in 0..4 {
        let (from, to) = (if rng.bool() { 0 } else { rng.usize(0..4) }, rng.usize(1..5));
        let levels: Vec<usize> = (from..=from + rng.usize(0..2)).collect();
        match merge_into_extra_run(db, &cf, &levels, to) {
            Ok(_) => return,
            Err(e) => assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}"),
        }
    }
}

fn remove_tree(fs: &MemFileSystem, path: &Path) {
    match fs.list_dir(path) {
        Ok(names) => {
            names.iter().for_each(|name| remove_tree(fs, &path.join(name)));
            fs.remove_dir(path).unwrap();
        }
        Err(_) => fs.remove(path).unwrap(),
    }
}

fn two_keys(rng: &mut fastrand::Rng) -> (String, String) {
    let (a, b) = (key(rng.u64(..200)), key(rng.u64(..200)));
    if a <= b { (a, b) } else { (b, a) }
}

/// Iterator moves that end in other places than a scan.
fn seeks(db: &Db, model: &Model, rng: &mut fastrand::Rng, what: &str) {
    let mut ro = ReadOptions::default();
    ro.set_total_order_seek(true);
    let mut it = db.raw_iterator_opt(ro);
    let at = |it: &DbRawIterator<'_>| it.item().map(|(k, v)| (k.to_vec(), v.to_vec()));
    let pair = |e: Option<(&String, &Vec<u8>)>| e.map(|(k, v)| (k.clone().into_bytes(), v.clone()));
    for _ in 0..20 {
        let k = key(rng.u64(..200));
        it.seek(&k);
        let mut after = model.range(k.clone()..);
        assert_eq!(at(&it), pair(after.next()), "{what}: seek {k}");
        if it.valid() {
            it.next();
            assert_eq!(at(&it), pair(after.next()), "{what}: next after {k}");
        }
        it.seek_for_prev(&k);
        let mut before = model.range(..=k.clone()).rev();
        assert_eq!(at(&it), pair(before.next()), "{what}: seek_for_prev {k}");
        if it.valid() {
            it.prev();
            assert_eq!(at(&it), pair(before.next()), "{what}: prev before {k}");
        }
    }
    it.status().unwrap();
}

/// Tables from outside, newer than everything.
fn ingest(db: &Db, o: &Options, fs: &MemFileSystem, model: &mut Model, rng: &mut fastrand::Rng, round: u64) {
    let mut paths = Vec::new();
    for n in 0..rng.u32(1..3) {
        let path = Path::new("/").join(format!("outside-{n}.sst"));
        let mut w = SstFileWriter::create(o);
        w.open(&path).unwrap();
        let from = rng.u64(..200);
        for i in (from..(from + rng.u64(1..60)).min(200)).filter(|i| i % 3 != u64::from(n)) {
            match rng.u32(..4) {
                0 => {
                    w.delete(key(i)).unwrap();
                    model.remove(&key(i));
                }
                1 => {
                    w.merge(key(i), format!("!{round}")).unwrap();
                    model.entry(key(i)).or_default().extend_from_slice(format!("!{round}").as_bytes());
                }
                _ => {
                    w.put(key(i), format!("in {round}")).unwrap();
                    model.insert(key(i), format!("in {round}").into_bytes());
                }
            }
        }
        // One that cannot be without entries.
        let last = format!("z{round}{n}");
        w.put(&last, "in").unwrap();
        model.insert(last, b"in".to_vec());
        w.finish().unwrap();
        paths.push(path);
    }
    db.ingest_external_file_opts(&IngestExternalFileOptions::default(), paths.clone()).unwrap();
    paths.iter().for_each(|p| drop(fs.remove(p)));
}

/// Strategies by their options.
const STRATEGIES: [(&str, &str, &str); 6] = [
    ("kCompactionStyleLevel", "false", "false"),
    ("kCompactionStyleUniversal", "false", "false"),
    ("kCompactionStyleLevel", "true", "false"),
    ("kCompactionStyleUniversal", "true", "false"),
    ("kCompactionStyleLevel", "false", "true"),
    ("kCompactionStyleUniversal", "false", "true"),
];

/// Lets a strategy run all jobs that it wants.
fn settle(db: &Db, rng: &mut fastrand::Rng) {
    let (style, downforce, classic) = STRATEGIES[rng.usize(..STRATEGIES.len())];
    let all = [("compaction_style", style), ("compaction_downforce", downforce), ("compaction_classic", classic)];
    db.set_options(&all).unwrap();
    db.set_options(&[("disable_auto_compactions", "false")]).unwrap();
    db.wait_for_background_work().unwrap();
    db.set_options(&[("disable_auto_compactions", "true")]).unwrap();
}

fn copies(db: &Db, o: &Options, fs: &MemFileSystem, model: &Model, which: u32, what: &str) {
    let there = |path: &str, what: &str| {
        let copy = Db::open(o, path).unwrap_or_else(|e| panic!("{what}: {e}"));
        check(&copy, model, ReadOptions::default, what);
        assert_eq!(extra_runs(&copy), extra_runs(db), "{what}");
        drop(copy);
        Db::destroy(o, path).unwrap();
    };
    match which {
        0 => {
            Checkpoint::new(db).unwrap().create_checkpoint("/checkpoint").unwrap();
            there("/checkpoint", &format!("{what}: checkpoint"));
        }
        1 => {
            let env = Env::from_parts(Arc::new(fs.clone()), Arc::new(SystemClock::default()));
            let engine = BackupEngine::open(&BackupEngineOptions::new("/backups").unwrap(), &env).unwrap();
            engine.create_new_backup_flush(db, true).unwrap();
            engine.verify_backup_with_checksum(1).unwrap();
            engine.restore_from_latest_backup("/restored", "/restored", &RestoreOptions::default()).unwrap();
            drop(engine);
            there("/restored", &format!("{what}: backup"));
            remove_tree(fs, Path::new("/backups"));
        }
        _ => {
            let mut o = o.clone();
            o.set_max_open_files(-1);
            let secondary = Db::open_as_secondary(&o, "/db", "/secondary").unwrap();
            check(&secondary, model, ReadOptions::default, &format!("{what}: secondary"));
            assert_eq!(extra_runs(&secondary), extra_runs(db), "{what}: secondary");
        }
    }
}

#[test]
fn whatever_is_done_to_a_tree_with_extra_runs_the_newest_shows() {
    let mut seen = [0usize; 16];
    for seed in 0..24 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let fs = MemFileSystem::default();
        let mut o = options(&fs, &mut rng);
        let mut db = Db::open(&o, "/db").unwrap();
        let mut model = Model::new();
        for round in 0..25 {
            write(&db, &mut model, &mut rng, round);
            stack(&db, &mut rng);
            write(&db, &mut model, &mut rng, round);
            let had = extra_runs(&db);
            let act = rng.usize(..seen.len());
            let what = format!("seed {seed} round {round}, act {act} with {had} extra runs");
            seen[act] += usize::from(had > 1);
            match act {
                // Sequence numbers of ingested tables are only in the MANIFEST, and half of the trees lose theirs.
                3 | 4 if seed % 2 == 0 => ingest(&db, &o, &fs, &mut model, &mut rng, round),
                0..=4 => {}
                5 => {
                    let (from, to) = two_keys(&mut rng);
                    let cf = db.cf_handle("default").unwrap();
                    db.delete_file_in_range(&from, &to).unwrap();
                    // Versions hidden by the deleted files must be gone, too.
                    db.delete_range_cf(&cf, &from, &to).unwrap();
                    db.delete(&to).unwrap();
                    model.retain(|k, _| *k < from || *k > to);
                }
                6 => {
                    let (from, to) = two_keys(&mut rng);
                    db.compact_range(Some(from), Some(to)).unwrap();
                }
                7 => {
                    let mut how = CompactOptions::default();
                    how.set_change_level(true);
                    how.set_target_level(rng.i32(-1..5));
                    how.set_bottommost_level_compaction(BottommostLevelCompaction::Force);
                    if let Err(e) = db.compact_range_opt(None::<&str>, None::<&str>, &how) {
                        assert!(matches!(e.kind(), ErrorKind::NotSupported | ErrorKind::Aborted), "{what}: {e}");
                    }
                }
                8 | 9 => settle(&db, &mut rng),
                10 => copies(&db, &o, &fs, &model, 0, &what),
                11 => {
                    let path = Path::new("/db");
                    drop(db);
                    let whole = seed % 2 == 0;
                    if !whole {
                        let gone = fs.list_dir(path).unwrap();
                        for name in gone.iter().filter(|n| n.starts_with("MANIFEST") || *n == "CURRENT") {
                            fs.remove(&path.join(name)).unwrap();
                        }
                    }
                    let report = Db::repair(&o, path).unwrap_or_else(|e| panic!("{what}: {e}"));
                    assert_eq!(report.damaged, [], "{what}");
                    db = Db::open(&o, "/db").unwrap();
                    assert_eq!(extra_runs(&db), if whole { had } else { 0 }, "{what}, MANIFEST {whole}");
                }
                12 => copies(&db, &o, &fs, &model, 1, &what),
                13 => copies(&db, &o, &fs, &model, 2, &what),
                14 => {
                    let cf = db.cf_handle("default").unwrap();
                    db.merge_extra_runs_cf(&cf).unwrap();
                    let exported = Checkpoint::new(&db).unwrap().export_column_family(&cf, "/export").unwrap();
                    let how = ImportColumnFamilyOptions::default();
                    db.create_column_family_with_import(&o, "copy", &how, &exported).unwrap();
                    remove_tree(&fs, Path::new("/export"));
                    drop(db);
                    db = Db::open_cf(&o, "/db", ["default", "copy"]).unwrap();
                    let copy = db.cf_handle("copy").unwrap();
                    assert!(model.iter().all(|(k, v)| db.get_cf(&copy, k).unwrap().as_ref() == Some(v)), "{what}");
                    drop(copy);
                    db.drop_cf("copy").unwrap();
                }
                _ => {
                    drop(db);
                    {
                        let read_only = Db::open_for_read_only(&o, "/db", false).unwrap();
                        check(&read_only, &model, ReadOptions::default, &format!("{what}, read only"));
                    }
                    o.set_compaction_downforce(rng.bool());
                    db = Db::open(&o, "/db").unwrap();
                    assert_eq!(extra_runs(&db), had, "{what}");
                }
            }
            check(&db, &model, ReadOptions::default, &what);
            seeks(&db, &model, &mut rng, &what);
        }
    }
    assert!(seen.iter().all(|n| *n > 3), "{seen:?}: each with extra runs");
}

/// Three overlapping runs in one level, the newest on top, and their model.
fn three_runs(db: &Db, rng: &mut fastrand::Rng) -> Model {
    let mut model = Model::new();
    let cf = db.cf_handle("default").unwrap();
    for round in 0..3 {
        for _ in 0..6 {
            write(db, &mut model, rng, round);
        }
        db.flush().unwrap();
        merge_into_extra_run(db, &cf, &[0], 3).unwrap();
    }
    assert_eq!(extra_runs(db), 3);
    model
}

#[test]
fn extra_runs_age_as_other_tables_do() {
    for (style, periodic) in [
        (CompactionStyle::Level, true),
        (CompactionStyle::Level, false),
        (CompactionStyle::Universal, true),
        (CompactionStyle::Universal, false),
    ] {
        let what = format!("{style:?}, periodic {periodic}");
        let fs = MemFileSystem::default();
        let mut rng = fastrand::Rng::with_seed(5);
        let clock = Arc::new(ManualClock::new(1_700_000_000_000_000));
        let mut o = options(&fs, &mut rng);
        o.set_clock(clock.clone());
        o.set_compaction_style(style);
        o.set_compaction_downforce(true);
        o.set_level_compaction_dynamic_level_bytes(false);
        if periodic {
            o.set_periodic_compaction_seconds(100);
            o.set_ttl(0);
        } else {
            o.set_ttl(100);
        }
        let db = Db::open(&o, "/db").unwrap();
        let model = three_runs(&db, &mut rng);
        let before: Vec<u64> = db.live_files().unwrap().iter().map(|f| f.number).collect();
        clock.advance(Duration::from_secs(1000));
        db.set_options(&[("disable_auto_compactions", "false")]).unwrap();
        db.wait_for_background_work().unwrap();
        let left = db.live_files().unwrap().iter().filter(|f| before.contains(&f.number)).count();
        assert_eq!(left, 0, "{what}: all that was old is rewritten");
        assert_eq!(extra_runs(&db), 0, "{what}");
        check(&db, &model, ReadOptions::default, &what);
    }
}

#[test]
fn what_is_ingested_lies_above_the_extra_runs_that_it_overlaps() {
    let fs = MemFileSystem::default();
    let mut rng = fastrand::Rng::with_seed(3);
    let o = options(&fs, &mut rng);
    let db = Db::open(&o, "/db").unwrap();
    // Base runs are empty: tables that must not be passed on the way down are only in extra runs.
    let mut model = three_runs(&db, &mut rng);
    let places = |db: &Db| {
        let mut all: Vec<_> = db.live_files().unwrap().iter().map(|f| (f.number, f.level)).collect();
        all.sort_unstable();
        all
    };
    let ingested = |db: &Db, name: &str, keys: &[u64]| {
        let mut w = SstFileWriter::create(&o);
        w.open(name).unwrap();
        keys.iter().for_each(|i| w.put(key(*i), "ingested").unwrap());
        w.finish().unwrap();
        db.ingest_external_file(vec![name]).unwrap();
        places(db).last().unwrap().1
    };
    let there: Vec<u64> = (0..200).filter(|i| model.contains_key(&key(*i))).collect();
    let some = [there[3], there[9], there[there.len() - 2]];
    assert!(ingested(&db, "/over.sst", &some) < 3);
    some.iter().for_each(|i| drop(model.insert(key(*i), b"ingested".to_vec())));
    check(&db, &model, ReadOptions::default, "over extra runs");
    assert_eq!(ingested(&db, "/beside.sst", &[300, 301]), 4, "nothing is in its way");
    [300, 301].iter().for_each(|i| drop(model.insert(key(*i), b"ingested".to_vec())));
    check(&db, &model, ReadOptions::default, "beside extra runs");
    db.merge_extra_runs_cf(&db.cf_handle("default").unwrap()).unwrap();
    db.compact_range(None::<&str>, None::<&str>).unwrap();
    check(&db, &model, ReadOptions::default, "merged");
}

#[test]
fn what_is_ingested_behind_lies_below_extra_runs() {
    let fs = MemFileSystem::default();
    let mut rng = fastrand::Rng::with_seed(3);
    let mut o = options(&fs, &mut rng);
    o.set_allow_ingest_behind(true);
    let db = Db::open(&o, "/db").unwrap();
    let mut model = three_runs(&db, &mut rng);
    let mut w = SstFileWriter::create(&o);
    w.open("/behind.sst").unwrap();
    for i in 200..260 {
        w.put(key(i), "behind").unwrap();
        model.insert(key(i), b"behind".to_vec());
    }
    w.finish().unwrap();
    let mut how = IngestExternalFileOptions::default();
    how.set_ingest_behind(true);
    db.ingest_external_file_opts(&how, vec!["/behind.sst"]).unwrap();
    assert!(db.live_files().unwrap().iter().any(|f| (f.level, f.largest_seqno) == (4, 0)));
    check(&db, &model, ReadOptions::default, "ingested behind");
    // It does not go into a last level that has an extra run with its keys.
    db.put(key(250), "in front").unwrap();
    model.insert(key(250), b"in front".to_vec());
    db.flush().unwrap();
    merge_into_extra_run(&db, &db.cf_handle("default").unwrap(), &[0, 1, 2, 3], 4).unwrap();
    w.open("/again.sst").unwrap();
    w.put(key(250), "behind").unwrap();
    w.finish().unwrap();
    let e = db.ingest_external_file_opts(&how, vec!["/again.sst"]).unwrap_err();
    assert!(e.to_string().contains("does not fit into the last level"), "{e}");
    check(&db, &model, ReadOptions::default, "with the last level's extra run");
    db.merge_extra_runs_cf(&db.cf_handle("default").unwrap()).unwrap();
    check(&db, &model, ReadOptions::default, "merged");
}

/// FIFO compaction finds extra runs of another strategy. It drops the oldest first, so entries hidden by a dropped
/// newer table never reappear.
#[test]
fn fifo_compaction_after_df_drops_the_oldest_run_first() {
    let fs = MemFileSystem::default();
    let mut rng = fastrand::Rng::with_seed(9);
    let mut o = options(&fs, &mut rng);
    let db = Db::open(&o, "/db").unwrap();
    let mut model = Model::new();
    let cf = db.cf_handle("default").unwrap();
    for round in 0..5u64 {
        for i in (0..200).filter(|_| rng.u32(..3) > 0) {
            db.put(key(i), format!("{round}")).unwrap();
            model.insert(key(i), format!("{round}").into_bytes());
        }
        db.flush().unwrap();
        if round < 4 {
            merge_into_extra_run(&db, &cf, &[0], if round < 2 { 4 } else { 3 }).unwrap();
        }
    }
    let all: u64 = db.live_files().unwrap().iter().map(|f| f.size as u64).sum();
    drop((cf, db));
    o.set_compaction_style(CompactionStyle::Fifo);
    o.set_disable_auto_compactions(false);
    let mut fifo = FifoCompactOptions::default();
    fifo.set_max_table_files_size(all);
    o.set_fifo_compaction_options(&fifo);
    let db = Db::open(&o, "/db").unwrap();
    db.wait_for_background_work().unwrap();
    assert_eq!(extra_runs(&db), 4, "there is room");
    check(&db, &model, ReadOptions::default, "with room");
    let mut left = 200;
    for part in 1..7 {
        let size = format!("{{max_table_files_size={}}}", all - all * part / 8);
        db.set_options(&[("compaction_options_fifo", &size)]).unwrap();
        db.wait_for_background_work().unwrap();
        let now: u64 = db.live_files().unwrap().iter().map(|f| f.size as u64).sum();
        assert!(now <= all - all * part / 8 && now > 0, "{now} of {all}");
        let found: Vec<_> = (0..200).filter_map(|i| Some((key(i), db.get(key(i)).unwrap()?))).collect();
        assert!(found.iter().all(|(k, v)| model.get(k) == Some(v)), "part {part}: an older value came back");
        assert!(found.len() <= left);
        left = found.len();
    }
    assert!(left > 0 && left < 200, "{left}");
    // Whatever strategy comes then, and a downgrade.
    db.merge_extra_runs_cf(&db.cf_handle("default").unwrap()).unwrap();
    assert_eq!(extra_runs(&db), 0);
    drop(db);
    o.set_compaction_style(CompactionStyle::Level);
    o.set_compaction_downforce(true);
    let db = Db::open(&o, "/db").unwrap();
    db.wait_for_background_work().unwrap();
    assert!(
        db.iterator(IteratorMode::Start).all(|e| e.is_ok_and(|(k, v)| model[std::str::from_utf8(&k).unwrap()] == *v))
    );
}
