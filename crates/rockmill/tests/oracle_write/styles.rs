//! Compaction styles compared with RocksDB's: the same flushes give the same trees, and OPTIONS files agree.

use rockmill::{
    CompactionStyle, CompressionType, Db, FifoCompactOptions, Options, OptionsLoader, UniversalCompactOptions,
};

use std::path::Path;

use crate::oracle::{Driver, Peer, Script, copy_dir};
use rockmill_skip::skip;

/// The keys of a flush: spread over the whole key space, each written once.
fn keys(flush: u64, entries: u64) -> impl Iterator<Item = Vec<u8>> {
    (0..entries).map(move |i| {
        let n = (flush << 32 | i).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        format!("{n:016x}").into_bytes()
    })
}

/// (level, tables) of non-empty levels, after each flush and the following compactions.
type Trees = Vec<Vec<(usize, usize)>>;

const VALUE: [u8; 1000] = [b'v'; 1000];

fn of_rockmill(options: &Options, flushes: &[u64]) -> Trees {
    let home = tempfile::tempdir().expect("a folder");
    let db = Db::open(options, home.path()).unwrap_or_else(|e| panic!("open: {e}"));
    let cf = db.cf_handle("default").expect("always there");
    let mut trees = Trees::new();
    for (n, &entries) in flushes.iter().enumerate() {
        for key in keys(n as u64, entries) {
            db.put(key, VALUE).expect("put");
        }
        db.flush().expect("flush");
        db.wait_for_background_work().expect("compactions");
        let levels = db.level_stats(&cf).into_iter().map(|l| l.files).enumerate();
        trees.push(levels.filter(|(_, files)| *files > 0).collect());
    }
    trees
}

fn of_rocksdb(driver: &Driver, options: &str, levels: usize, flushes: &[u64], test: &str) -> Option<Trees> {
    let home = tempfile::tempdir().expect("a folder");
    let mut script = Script::new();
    script.line(format!("cf default {options};compression=kNoCompression")).open(&home.path().join("db"));
    for (n, &entries) in flushes.iter().enumerate() {
        for key in keys(n as u64, entries) {
            script.hex("put", "default", &[&key, &VALUE]);
        }
        script.line("flush default").line("wait");
        for level in 0..levels {
            script.line(format!("prop default rocksdb.num-files-at-level{level}"));
        }
    }
    let answer = driver.answer(test, &script)?;
    let files: Vec<usize> = answer.properties().iter().map(|n| n.parse().expect("a number")).collect();
    let trees = files.chunks(levels).map(|tree| tree.iter().copied().enumerate().filter(|l| l.1 > 0).collect());
    Some(trees.collect())
}

/// Both do the same after each flush.
fn compare(test: &str, options: &str, flushes: &[u64]) {
    let driver = match Peer::Library.driver() {
        Ok(driver) => driver,
        Err(reason) => return skip(test, &reason),
    };
    let mut base = Options::default();
    base.create_if_missing(true);
    base.set_compression_type(CompressionType::None);
    let ours = Options::from_string(&base, options).unwrap_or_else(|e| panic!("{options}: {e}"));
    let levels = ours.cf.num_levels as usize;
    let ours = of_rockmill(&ours, flushes);
    let Some(theirs) = of_rocksdb(&driver, options, levels, flushes, test) else { return };
    assert_eq!(ours.len(), flushes.len());
    for (n, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
        assert_eq!(ours, theirs, "{options}: after flush {n} of {flushes:?} entries; (level, tables)");
    }
    assert_eq!(ours.len(), theirs.len());
}

const STYLE: &str = "compaction_style=kCompactionStyleUniversal;level_compaction_dynamic_level_bytes=false";

#[test]
fn universal_trees_are_rocksdbs() {
    let test = "universal_trees_are_rocksdbs";
    let odd = [300, 90, 100, 210, 30, 95, 400, 20, 60, 110, 33, 250, 70, 140];
    let more = [
        "",
        "level0_file_num_compaction_trigger=2",
        "num_levels=1",
        "num_levels=3;level0_file_num_compaction_trigger=3",
        "compaction_options_universal={size_ratio=60;min_merge_width=3;max_size_amplification_percent=90}",
        "compaction_options_universal={stop_style=kCompactionStopStyleSimilarSize;size_ratio=20}",
    ];
    // They mostly wait.
    std::thread::scope(|scope| {
        scope.spawn(|| compare(test, STYLE, &[100; 15]));
        for options in more {
            scope.spawn(move || compare(test, format!("{STYLE};{options}").trim_end_matches(';'), &odd));
        }
    });
}

#[test]
fn fifo_trees_are_rocksdbs() {
    let test = "fifo_trees_are_rocksdbs";
    // None is as large as a memtable, so each flush writes one table.
    let odd = [170, 90, 100, 120, 30, 95, 160, 20, 60, 110, 33, 150, 70, 140];
    let style = "compaction_style=kCompactionStyleFIFO;level_compaction_dynamic_level_bytes=false;num_levels=1";
    let more = [
        "compaction_options_fifo={max_table_files_size=500000}",
        "compaction_options_fifo={max_table_files_size=700000;allow_compaction=true}",
        "compaction_options_fifo={max_table_files_size=9000000;allow_compaction=true};write_buffer_size=300000",
    ];
    std::thread::scope(|scope| {
        for options in more {
            scope.spawn(move || compare(test, &format!("{style};{options}"), &odd));
        }
    });
}

/// Styles and their options go through OPTIONS files, ours and RocksDB's.
#[test]
fn an_options_file_keeps_the_style() {
    let mut options = Options::default();
    options.set_compaction_style(CompactionStyle::Universal);
    options.set_ttl(1234);
    let mut universal = UniversalCompactOptions::default();
    universal.set_size_ratio(7);
    universal.set_min_merge_width(3);
    options.set_universal_compaction_options(&universal);
    keeps_the_style(options);

    let mut options = Options::default();
    options.set_compaction_style(CompactionStyle::Fifo);
    options.set_level_compaction_dynamic_level_bytes(false);
    options.set_num_levels(1);
    options.set_ttl(4321);
    let mut fifo = FifoCompactOptions::default();
    fifo.set_max_table_files_size(7 << 20);
    fifo.set_allow_compaction(true);
    options.set_fifo_compaction_options(&fifo);
    keeps_the_style(options);
}

fn keeps_the_style(mut options: Options) {
    let home = tempfile::tempdir().expect("a folder");
    options.create_if_missing(true);
    drop(Db::open(&options, home.path()).expect("open"));
    let check = || {
        let loaded = OptionsLoader::new().load_latest(home.path()).expect("there is one").options.cf;
        let given = &options.cf;
        assert_eq!(loaded.compaction_style, given.compaction_style);
        assert_eq!(loaded.compaction_options_universal, given.compaction_options_universal);
        assert_eq!(loaded.compaction_options_fifo, given.compaction_options_fifo);
        assert_eq!((loaded.ttl, loaded.num_levels), (given.ttl, given.num_levels));
    };
    check();

    // RocksDB accepts the file unchanged, and writes an equivalent one.
    let test = "an_options_file_keeps_the_style";
    let driver = match Peer::Library.driver() {
        Ok(driver) => driver,
        Err(reason) => return skip(test, &reason),
    };
    let mut script = Script::new();
    script.line(format!("load {}", home.path().display())).open(home.path());
    script.put("default", "a", "b").line("flush default").line("close");
    driver.answer(test, &script).expect("plain operations");
    check();
}

/// The table numbers of the inputs of the first compaction or move in the LOG in `dir`.
fn first_compaction(dir: &Path) -> Vec<u64> {
    let log = std::fs::read_to_string(dir.join("LOG")).expect("a LOG");
    let number = |text: &str| text.trim().parse::<u64>().unwrap_or_else(|e| panic!("{text:?}: {e}"));
    let mut moved = Vec::new();
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Moving #") {
            let table = number(rest.split(' ').next().expect("a word"));
            // The next job moves it further, and its line comes before the first job's last line.
            if moved.contains(&table) {
                return moved;
            }
            moved.push(table);
        } else if line.contains("Moved #") && !moved.is_empty() {
            return moved;
        } else if line.contains("\"compaction_started\"") {
            let inputs = line.split("\"files_L").skip(1);
            let inputs = inputs.filter_map(|list| list.split_once('[')?.1.split_once(']'));
            // Levels without files are listed too.
            return inputs.flat_map(|(list, _)| list.split(',')).filter(|n| !n.trim().is_empty()).map(number).collect();
        }
    }
    Vec::new()
}

/// The number after a word in a line of a LOG.
fn after(line: &str, word: &str) -> Option<u64> {
    let (_, rest) = line.split_once(word)?;
    rest.trim_start().split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// The first job in a LOG: the number of a compaction, or the output level of a move.
fn first_started(log: &str) -> Option<Result<u64, u64>> {
    log.lines().find_map(|line| match line.contains("\"compaction_started\"") {
        true => after(line, "\"job\":").map(Ok),
        false => after(line.contains("Moving #").then_some(line)?, " to level-").map(Err),
    })
}

/// True if the first job in the LOG in `dir` has inputs of one level: it is a move, or nothing overlaps below.
fn is_of_one_level(dir: &Path) -> bool {
    let log = std::fs::read_to_string(dir.join("LOG")).expect("a LOG");
    let first = log.lines().find(|l| l.contains("\"compaction_started\"") || l.contains("Moving #"));
    first.is_some_and(|l| l.contains("Moving #") || l.matches("\"files_L").count() == 1)
}

/// The entries of each table that the first compaction wrote, in the order of their keys.
fn first_outputs(dir: &Path) -> Vec<u64> {
    let log = std::fs::read_to_string(dir.join("LOG")).expect("a LOG");
    let Some(Ok(job)) = first_started(&log) else { return Vec::new() };
    let of_job = |l: &&str| l.contains("\"table_file_creation\"") && after(l, "\"job\":") == Some(job);
    log.lines().filter(of_job).filter_map(|l| after(l, "\"num_entries\":")).collect()
}

/// Starting from the same directories, RocksDB and Rockmill begin with the same compaction, with each of `cases`
/// (options in addition to [`SIZES`]). With `outputs`, it must also write the same tables. One directory has full
/// levels after a decrease of the limits, the other one has a full L0.
fn same_first_picks(test: &str, peer: Peer, build: &str, cases: &[String], outputs: bool) {
    let sizes = SIZES;
    let driver = match peer.driver() {
        Ok(driver) => driver,
        Err(reason) => return skip(test, &reason),
    };
    let home = tempfile::tempdir().expect("a folder");
    // The last one is Rockmill's, the others RocksDB's.
    let dirs = ["rests", "full", "own"].map(|name| home.path().join(name));
    let writes = |n: u64| {
        let value = move |i: usize| (i % 5 != 4).then(|| &VALUE[..200 + (n as usize * 131 + i * 17) % 800]);
        keys(n, 60 + n * 37 % 90).enumerate().map(move |(i, key)| (key, value(i)))
    };
    for dir in &dirs[..2] {
        let mut script = Script::new();
        script.line(format!("cf default {sizes};{build}")).open(dir).line("snap s");
        for n in 0..25u64 {
            if n == 23 && *dir == dirs[1] {
                script.line("set default disable_auto_compactions=true");
            }
            for (key, value) in writes(n) {
                match value {
                    Some(value) => script.hex("put", "default", &[&key, value]),
                    None => script.hex("del", "default", &[&key]),
                };
            }
            script.line("flush default");
            if n % 5 == 0 || outputs {
                script.line("wait");
            }
        }
        script.line("wait");
        script.line("set default disable_auto_compactions=true").line("release s").line("levels default");
        let Some(answer) = driver.answer(test, &script) else { return };
        assert!(answer.levels().iter().filter(|l| l.1 > 0).count() >= 2, "{:?}", answer.levels());
    }
    let base = Options::from_string(&Options::default(), "create_if_missing=true").expect("an option");
    let o = Options::from_string(&base, &format!("{sizes};{build}")).unwrap_or_else(|e| panic!("{build}: {e}"));
    let db = Db::open(&o, &dirs[2]).unwrap_or_else(|e| panic!("open: {e}"));
    let snapshot = db.snapshot();
    for n in 0..25u64 {
        for (key, value) in writes(n) {
            match value {
                Some(value) => db.put(key, value).expect("put"),
                None => db.delete(key).expect("delete"),
            }
        }
        db.flush().expect("flush");
        if outputs {
            db.wait_for_background_work().expect("compactions");
        }
    }
    db.wait_for_background_work().expect("compactions");
    drop(snapshot);
    drop(db);
    let pick = |from: &Path, options: &str, name: &str| {
        let (theirs, ours) = (home.path().join(format!("theirs{name}")), home.path().join(format!("ours{name}")));
        copy_dir(from, &theirs);
        copy_dir(from, &ours);
        let mut script = Script::new();
        if peer == Peer::Wheel {
            // It takes the directory's own options.
            let change = options.replace(&format!("{sizes};"), "");
            script.line(format!("cf default {sizes};{build}")).open(&theirs);
            script.line(format!("set default {change};disable_auto_compactions=false")).line("wait");
        } else {
            script.line(format!("cf default {options}")).open(&theirs).line("wait");
        }
        driver.answer(test, &script)?;
        let options = format!("{build};{options}");
        let options = options.as_str();
        let o = Options::from_string(&Options::default(), options).unwrap_or_else(|e| panic!("{options}: {e}"));
        let db = Db::open(&o, &ours).unwrap_or_else(|e| panic!("open: {e}"));
        db.wait_for_background_work().expect("compactions");
        drop(db);
        let mut picks = (first_compaction(&ours), first_compaction(&theirs));
        let both = (first_outputs(&ours), first_outputs(&theirs));
        if outputs && both.1.is_empty() {
            // It moved them. With `kRoundRobin` RocksDB 7.8 moves fewer at a time than 10.4.
            picks = Default::default();
        } else if outputs && picks.0 == picks.1 {
            assert_eq!(both.0, both.1, "{options}, {from:?}: outputs of {picks:?}; left: ours");
        }
        // RocksDB 7.8 differs from 9.8 and later in two things. First, if nothing overlaps below, it takes fewer
        // neighbours along (up to four), to move them, or to rewrite them if they overlap too much of the level after
        // the next.
        let has_all = |more: &[u64], of: &[u64]| !of.is_empty() && of.iter().all(|n| more.contains(n));
        let moved = both.0.is_empty() && both.1.is_empty();
        let fewer = is_of_one_level(&ours) && picks.0.len() <= 4 && has_all(&picks.0, &picks.1);
        // Second, more files of the start level join a job regardless of `max_compaction_bytes`, not only up to its
        // double.
        let more = options.contains("max_compaction_bytes") && !moved && has_all(&picks.1, &picks.0);
        if peer == Peer::Library && (fewer || more) {
            picks.1.clone_from(&picks.0);
        }
        Some((picks.0, picks.1, both.0.len()))
    };
    let picks = std::sync::Mutex::new((std::collections::HashSet::new(), false));
    let jobs: Vec<_> = cases.iter().flat_map(|options| dirs.iter().map(move |dir| (options, dir))).collect();
    std::thread::scope(|scope| {
        for thread in 0..9 {
            let (jobs, pick, picks) = (&jobs, &pick, &picks);
            scope.spawn(move || {
                for (n, (options, dir)) in jobs.iter().enumerate().filter(|(n, _)| n % 9 == thread) {
                    let options = format!("{sizes};{options}");
                    let Some((ours, theirs, tables)) = pick(dir, &options, &n.to_string()) else { return };
                    assert_eq!(ours, theirs, "{options}, {dir:?}; left: ours");
                    let mut picks = picks.lock().expect("no panic");
                    picks.0.insert(ours);
                    picks.1 |= tables > 1;
                }
            });
        }
    });
    let (picks, split) = picks.into_inner().expect("no panic");
    assert!(picks.len() >= 4 || outputs, "the cases differ: {picks:?}");
    assert!(split || !outputs || picks.is_empty(), "no job wrote several tables");
}

const SIZES: &str = "target_file_size_base=30000;max_bytes_for_level_multiplier=3;num_levels=6;\
                     compression=kNoCompression";

/// Each priority takes the same files as RocksDB. The directories were made with `kRoundRobin`, so they have cursors.
#[test]
fn leveled_picks_are_rocksdbs() {
    let mut cases = Vec::new();
    for priority in
        ["ByCompensatedSize", "OldestLargestSeqFirst", "OldestSmallestSeqFirst", "MinOverlappingRatio", "RoundRobin"]
    {
        for more in [
            "max_bytes_for_level_base=20000;level0_file_num_compaction_trigger=50",
            "max_bytes_for_level_base=40000;level0_file_num_compaction_trigger=50;max_compaction_bytes=90000",
            "max_bytes_for_level_base=60000;level0_file_num_compaction_trigger=2",
        ] {
            cases.push(format!("{more};compaction_pri=k{priority};level_compaction_dynamic_level_bytes=false"));
        }
    }
    let build = "level0_file_num_compaction_trigger=2;max_bytes_for_level_base=90000;compaction_pri=kRoundRobin;\
                 level_compaction_dynamic_level_bytes=false";
    same_first_picks("leveled_picks_are_rocksdbs", Peer::Library, build, &cases, false);
}

/// A job's tables end at the cursor of the output level, as in RocksDB. There are no other reasons to end a table,
/// because tables may be large.
#[test]
fn round_robin_outputs_are_rocksdbs() {
    let large = "target_file_size_base=100000000;max_compaction_bytes=100000000000;compaction_pri=kRoundRobin;\
                 level_compaction_dynamic_level_bytes=false";
    let mut cases = Vec::new();
    for (base, multiplier, trigger) in
        [(20_000, 1000, 50), (40_000, 1000, 50), (60_000, 1000, 2), (60_000, 3, 2), (20_000, 3, 50), (40_000, 5, 50)]
    {
        cases.push(format!(
            "max_bytes_for_level_base={base};max_bytes_for_level_multiplier={multiplier};\
             level0_file_num_compaction_trigger={trigger};{large}"
        ));
    }
    let build = "level0_file_num_compaction_trigger=2;max_bytes_for_level_base=90000;compaction_pri=kRoundRobin;\
                 level_compaction_dynamic_level_bytes=false";
    same_first_picks("round_robin_outputs_are_rocksdbs", Peer::Library, build, &cases, true);
}

/// With dynamic level sizes, RocksDB 8 and newer count differently than earlier versions: 9.8 is the reference.
#[test]
fn leveled_picks_with_dynamic_sizes_are_rocksdbs() {
    let cases = [
        "max_bytes_for_level_base=20000;level0_file_num_compaction_trigger=50",
        "max_bytes_for_level_base=40000;level0_file_num_compaction_trigger=50;max_compaction_bytes=90000",
        "max_bytes_for_level_base=60000;level0_file_num_compaction_trigger=2",
        "max_bytes_for_level_base=400000;level0_file_num_compaction_trigger=2",
    ]
    .map(str::to_owned);
    let build = "level0_file_num_compaction_trigger=2;max_bytes_for_level_base=90000;\
                 level_compaction_dynamic_level_bytes=true";
    same_first_picks("leveled_picks_with_dynamic_sizes_are_rocksdbs", Peer::Wheel, build, &cases, false);
}

/// The first job in the LOG in `dir`: the numbers of its inputs, and the output level.
fn first_job(dir: &Path) -> (Vec<u64>, Option<u64>) {
    let log = std::fs::read_to_string(dir.join("LOG")).expect("a LOG");
    let level = first_started(&log).and_then(|first| {
        let job = match first {
            Ok(job) => job,
            Err(level) => return Some(level),
        };
        let ends = |l: &&str| l.contains("\"compaction_finished\"") && after(l, "\"job\":") == Some(job);
        log.lines().find(ends).and_then(|l| after(l, "\"output_level\":"))
    });
    (first_compaction(dir), level)
}

/// A tree of universal compaction: options, then flushes with these numbers of entries; from one of them on, nothing is
/// compacted.
struct RandomTree {
    build: String,
    flushes: Vec<u64>,
    rests: usize,
    deletes: bool,
}

impl RandomTree {
    fn new(rng: &mut fastrand::Rng) -> Self {
        let levels = [1, 2, 3, 5, 7][rng.usize(0..5)];
        let file_size = [20_000, 60_000, 64 << 20][rng.usize(0..3)];
        let build = format!(
            "{STYLE};compression=kNoCompression;num_levels={levels};target_file_size_base={file_size};\
             level0_file_num_compaction_trigger={}",
            rng.u32(2..6)
        );
        // Sizes from 2 to 300 entries, most of them small; or all the same.
        let same = rng.u8(0..4) == 0;
        let size = |rng: &mut fastrand::Rng| (2.0 * 150f64.powf(rng.f64() * if same { 0.5 } else { 1.0 })) as u64;
        let first = size(rng);
        let flushes = (0..rng.usize(3..16)).map(|_| if same { first } else { size(rng) }).collect::<Vec<_>>();
        let rests = rng.usize(0..flushes.len());
        Self { build, flushes, rests, deletes: rng.bool() }
    }

    /// Random options of universal compaction. `newer`: includes options that RocksDB 7.8 does not have, and values
    /// with which RocksDB 8.6 and newer, unlike 7.8, omit the newest tables from a job that saves space.
    fn options(rng: &mut fastrand::Rng, newer: bool) -> String {
        let (trigger, least) = (rng.u32(1..8), rng.u32(2..6));
        let most = if newer && rng.bool() { u32::MAX } else { least + [0, 1, 3, 1000][rng.usize(0..4)] };
        let amplification = [10, 50, 100, 200, 1000, 100_000][rng.usize(0..6)];
        let ratio = [0, 1, 10, 60, 150, 1000][rng.usize(0..6)];
        let style = ["Similar", "Total"][rng.usize(0..2)];
        let read_amp = if newer {
            format!("max_read_amp={};", [-1, 0, trigger as i32, trigger as i32 + 3][rng.usize(0..4)])
        } else {
            String::new()
        };
        let stop = if newer { [36, 12, 20][rng.usize(0..3)] } else { 100_000 };
        format!(
            "level0_file_num_compaction_trigger={trigger};level0_slowdown_writes_trigger={stop};\
             level0_stop_writes_trigger={stop};compaction_options_universal={{size_ratio={ratio};{read_amp}\
             min_merge_width={least};max_merge_width={most};max_size_amplification_percent={amplification};\
             stop_style=kCompactionStopStyle{style}Size;allow_trivial_move={}}}",
            rng.u8(0..4) == 0
        )
    }

    /// Has RocksDB make it.
    fn make(&self, driver: &Driver, dir: &Path, test: &str) -> bool {
        let mut script = Script::new();
        script.line(format!("cf default {}", self.build)).open(dir);
        for (n, &entries) in self.flushes.iter().enumerate() {
            if n == self.rests {
                script.line("wait").line("set default disable_auto_compactions=true");
            }
            for (i, key) in keys(n as u64, entries).enumerate() {
                match self.deletes && i % 5 == 4 {
                    false => script.hex("put", "default", &[&key, &VALUE[..500 + i * 37 % 500]]),
                    true => script.hex("del", "default", &[&key]),
                };
            }
            script.line("flush default");
            if n < self.rests {
                script.line("wait");
            }
        }
        driver.answer(test, script.line("wait")).is_some()
    }
}

/// Starting from random trees, RocksDB and Rockmill begin with the same universal compaction, with random options.
/// `ROCKMILL_UNIVERSAL_TREES` sets the number of trees, `ROCKMILL_SEED` the seed.
#[test]
fn universal_picks_are_rocksdbs() {
    let number = |name: &str| std::env::var(name).ok().and_then(|n| n.parse::<u64>().ok());
    let trees = number("ROCKMILL_UNIVERSAL_TREES").unwrap_or(6);
    let from = number("ROCKMILL_SEED").unwrap_or(1);
    for peer in [Peer::Library, Peer::Wheel] {
        same_universal_picks("universal_picks_are_rocksdbs", peer, from..from + trees);
    }
}

fn same_universal_picks(test: &str, peer: Peer, seeds: std::ops::Range<u64>) {
    const CASES: usize = 6;
    let driver = match peer.driver() {
        Ok(driver) => driver,
        Err(reason) => return skip(test, &reason),
    };
    let counts = std::sync::Mutex::new((0, 0, std::collections::BTreeMap::new()));
    let one = |seed: u64| {
        let mut rng = fastrand::Rng::with_seed(seed);
        let tree = RandomTree::new(&mut rng);
        let home = tempfile::tempdir().expect("a folder");
        let made = home.path().join("made");
        if !tree.make(&driver, &made, test) {
            return;
        }
        for case in 0..CASES {
            let (build, change) = (&tree.build, RandomTree::options(&mut rng, peer == Peer::Wheel));
            let (ours, theirs) = (home.path().join(format!("ours{case}")), home.path().join(format!("theirs{case}")));
            copy_dir(&made, &ours);
            copy_dir(&made, &theirs);
            let mut script = Script::new();
            if peer == Peer::Wheel {
                // It takes the directory's own options.
                script.line(format!("cf default {build}")).open(&theirs);
                script.line(format!("set default {change};disable_auto_compactions=false")).line("wait");
            } else {
                script.line(format!("cf default {build};{change}")).open(&theirs).line("wait");
            }
            if driver.answer(test, &script).is_none() {
                return;
            }
            let options = format!("{build};{change}");
            let o = Options::from_string(&Options::default(), &options).unwrap_or_else(|e| panic!("{options}: {e}"));
            let db = Db::open(&o, &ours).unwrap_or_else(|e| panic!("open: {e}"));
            db.wait_for_background_work().expect("compactions");
            drop(db);
            let (ours, theirs) = (first_job(&ours), first_job(&theirs));
            let what = format!("seed {seed}, case {case}: {options}; flushes {:?}, rests {}", tree.flushes, tree.rests);
            assert_eq!(ours, theirs, "{what}; left: ours");
            let mut counts = counts.lock().expect("no panic");
            counts.0 += 1;
            counts.1 += usize::from(!ours.0.is_empty());
            *counts.2.entry((ours.0.len(), ours.1)).or_insert(0) += 1;
        }
    };
    // They mostly wait.
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let (one, seeds) = (&one, seeds.clone());
            scope.spawn(move || (seeds.start + thread..seeds.end).step_by(6).for_each(one));
        }
    });
    let (cases, jobs, kinds) = counts.into_inner().expect("no panic");
    println!("{peer:?}: {cases} cases, {jobs} with a job; by (inputs, output level): {kinds:?}");
    assert!(cases == 0 || kinds.len() >= 4, "the cases differ: {kinds:?}");
}
