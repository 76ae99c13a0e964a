//! The strategies in real directories, with real threads and a heavy load: written data is readable while they run, at
//! rest and after a reopen, and each strategy makes its intended tree.

use std::collections::BTreeMap;
use std::path::Path;

use rockmill::{CompactionStyle, CompressionType, Db, IteratorMode, LevelStats, MergeEngine, Options};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

const TRIGGER: usize = 4;

/// The name, the style, with DF-compaction, classic.
const STRATEGIES: [(&str, CompactionStyle, bool, bool); 6] = [
    ("leveled", CompactionStyle::Level, false, false),
    ("tiered", CompactionStyle::Universal, false, false),
    ("df-leveled", CompactionStyle::Level, true, false),
    ("df-tiered", CompactionStyle::Universal, true, false),
    ("classic-leveled", CompactionStyle::Level, false, true),
    ("classic-tiered", CompactionStyle::Universal, false, true),
];

fn options(strategy: &str) -> Options {
    let (_, style, downforce, classic) = *STRATEGIES.iter().find(|s| s.0 == strategy).expect("there is one");
    let mut o = Options::default();
    o.create_if_missing(true);
    o.set_compaction_style(style);
    o.set_compaction_downforce(downforce);
    o.set_compaction_classic(classic);
    o.set_level_compaction_dynamic_level_bytes(false);
    o.set_compression_type(CompressionType::None);
    o.set_max_background_jobs(6);
    o.set_write_buffer_size(64 << 10);
    o.set_target_file_size_base(32 << 10);
    o.set_max_bytes_for_level_base(128 << 10);
    o.set_max_bytes_for_level_multiplier(4.0);
    o.set_level_zero_file_num_compaction_trigger(TRIGGER as i32);
    o
}

/// The largest observed number of sorted runs of one level below L0, and of all levels together.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Seen {
    extra_runs: usize,
    of_a_level: usize,
}

impl Seen {
    fn look(&mut self, db: &Db) {
        let levels: Vec<LevelStats> = db.level_stats(&db.cf_handle("default").unwrap());
        let extra = |l: &LevelStats| l.extra_runs;
        self.extra_runs = self.extra_runs.max(levels.iter().map(extra).sum());
        // A level's bytes tell whether it also has a base run.
        let runs = |l: &LevelStats| l.extra_runs + usize::from(l.bytes > l.extra_run_bytes);
        self.of_a_level = self.of_a_level.max(levels.iter().skip(1).map(runs).max().unwrap_or(0));
    }
}

/// Overwrites and deletes about 20,000 keys, and reads them back meanwhile.
fn load(db: &Db, model: &mut Model, seed: u64, writes: usize) -> Seen {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut seen = Seen::default();
    for i in 0..writes {
        let key = format!("key{:06}", rng.u32(0..20_000)).into_bytes();
        if rng.u8(0..10) == 0 {
            db.delete(&key).unwrap();
            model.remove(&key);
        } else {
            let value = vec![rng.u8(..); rng.usize(50..150)];
            db.put(&key, &value).unwrap();
            model.insert(key, value);
        }
        if i % 64 == 0 {
            seen.look(db);
            let key = format!("key{:06}", rng.u32(0..20_000)).into_bytes();
            assert_eq!(db.get(&key).unwrap().as_ref(), model.get(&key), "{i} writes");
        }
        if i % 16_384 == 0 {
            check(db, model, "under load");
        }
    }
    seen
}

#[track_caller]
fn check(db: &Db, model: &Model, what: &str) {
    let all = db.iterator(IteratorMode::Start).map(|kv| kv.unwrap());
    assert!(all.map(|(k, v)| (k.to_vec(), v.to_vec())).eq(model.clone()), "{what}");
}

/// A load, rest, a reopen, another load, and a full compaction.
fn run(strategy: &str, o: &Options, dir: &Path) -> Seen {
    let mut model = Model::new();
    let mut seen = Seen::default();
    for round in 0..2 {
        let db = Db::open(o, dir).unwrap();
        check(&db, &model, strategy);
        let now = load(&db, &mut model, round, 40_000);
        seen.extra_runs = seen.extra_runs.max(now.extra_runs);
        seen.of_a_level = seen.of_a_level.max(now.of_a_level);
        db.wait_for_background_work().unwrap();
        seen.look(&db);
        check(&db, &model, strategy);
        let counted = db.counters();
        println!("{strategy}: {seen:?}, {} jobs, {} moves", counted.compactions, counted.trivial_moves);
        assert!(counted.compactions > 5, "{strategy}: {counted:?}");
        assert_eq!((counted.compactions_failed, counted.compactions_dropped, counted.flushes_failed), (0, 0, 0));
    }
    // What it left any other strategy takes.
    for (other, ..) in STRATEGIES {
        let db = Db::open(&options(other), dir).unwrap();
        load(&db, &mut model, 7, 3_000);
        db.wait_for_background_work().unwrap();
        check(&db, &model, &format!("{strategy}, then {other}"));
    }
    let db = Db::open(o, dir).unwrap();
    db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
    check(&db, &model, strategy);
    db.set_options(&[("compaction_downforce", "false"), ("compaction_classic", "false")]).unwrap();
    db.merge_extra_runs_cf(&db.cf_handle("default").unwrap()).unwrap();
    let levels = db.level_stats(&db.cf_handle("default").unwrap());
    assert!(levels.iter().all(|l| l.extra_runs == 0), "{strategy}: {levels:?}");
    check(&db, &model, strategy);
    seen
}

#[test]
fn df_tiered_runs_for_real() {
    let temp = tempfile::tempdir().unwrap();
    let seen = run("df-tiered", &options("df-tiered"), &temp.path().join("db"));
    assert!(seen.extra_runs >= TRIGGER, "its levels have several runs: {seen:?}");
}

#[test]
fn classic_leveled_never_has_more_than_one_run_in_a_level() {
    let temp = tempfile::tempdir().unwrap();
    let seen = run("classic-leveled", &options("classic-leveled"), &temp.path().join("db"));
    assert_eq!(seen, Seen { extra_runs: 0, of_a_level: 1 });
}

#[test]
fn classic_tiered_never_has_more_runs_in_a_level_than_it_may() {
    let temp = tempfile::tempdir().unwrap();
    let seen = run("classic-tiered", &options("classic-tiered"), &temp.path().join("db"));
    assert!(seen.extra_runs >= TRIGGER && seen.of_a_level == TRIGGER, "{seen:?}");
}

/// With each engine and kind of table, and with values that stay in logs.
#[test]
fn classic_strategies_go_with_every_engine_table_and_front() {
    for strategy in ["classic-leveled", "classic-tiered"] {
        for (n, engine) in [MergeEngine::Pread, MergeEngine::Uring, MergeEngine::Kernel].into_iter().enumerate() {
            let temp = tempfile::tempdir().unwrap();
            let mut o = options(strategy);
            o.set_merge_engine(engine);
            if n != 1 {
                o = Options::from_string(&o, "table_factory=TphTable").unwrap();
            }
            if n != 0 {
                o.set_fast_path(temp.path().join("fast"), 4 << 20);
            }
            let (dir, mut model) = (temp.path().join("db"), Model::new());
            for seed in 0..2 {
                let db = Db::open(&o, &dir).unwrap();
                load(&db, &mut model, seed, 15_000);
                db.wait_for_background_work().unwrap();
                check(&db, &model, &format!("{strategy}, {engine:?}"));
            }
        }
    }
}

/// Options without effect in the classic strategies, or in contradiction to them, are not silently accepted.
#[test]
fn options_without_an_effect_on_classic_strategies_are_refused() {
    let temp = tempfile::tempdir().unwrap();
    let db = Db::open(&options("leveled"), temp.path().join("db")).unwrap();
    let classic = [("compaction_style", "kCompactionStyleUniversal"), ("compaction_classic", "true")];
    for (name, value, usual) in [
        ("max_read_amp", "9", "-1"),
        ("stop_style", "kCompactionStopStyleSimilarSize", "kCompactionStopStyleTotalSize"),
        ("compression_size_percent", "50", "-1"),
        ("size_ratio", "2", "1"),
        ("min_merge_width", "3", "2"),
        ("max_merge_width", "9", "4294967295"),
        ("max_size_amplification_percent", "100", "200"),
    ] {
        let name = format!("compaction_options_universal.{name}");
        let e = db.set_options(&[&classic[..], &[(&*name, value)]].concat()).unwrap_err();
        assert!(e.message().contains(&format!("{name} has no effect with compaction_classic")), "{e}");
        db.set_options(&[("compaction_classic", "false"), (&*name, value)]).unwrap_or_else(|e| panic!("{name}: {e}"));
        db.set_options(&[(&*name, usual)]).unwrap();
    }
    let e = db.set_options(&[("compaction_classic", "true"), ("compaction_downforce", "true")]).unwrap_err();
    assert!(e.message().contains("compaction_classic does not go with compaction_downforce"), "{e}");
    let fifo = [("compaction_style", "kCompactionStyleFIFO"), ("compaction_classic", "true")];
    assert!(db.set_options(&fifo).unwrap_err().message().contains("compaction_classic"));
    // A single level has no place for merged runs.
    drop(db);
    let mut o = options("tiered");
    o.set_num_levels(1);
    let db = Db::open(&o, temp.path().join("one")).unwrap();
    let e = db.set_options(&[("compaction_classic", "true")]).unwrap_err();
    assert!(e.message().contains("with compaction_classic needs num_levels of at least 2"), "{e}");
    // Without such a line in the OPTIONS file, a database opens as in RocksDB.
    drop(db);
    let db = Db::open(&options("classic-tiered"), temp.path().join("two")).unwrap();
    drop(db);
    let names = std::fs::read_dir(temp.path().join("two")).unwrap().map(|f| f.unwrap().path());
    let written: Vec<_> = names.filter(|p| p.to_string_lossy().contains("OPTIONS-")).collect();
    assert!(!written.is_empty());
    assert!(written.iter().all(|p| !std::fs::read_to_string(p).unwrap().contains("compaction_classic")));
}
