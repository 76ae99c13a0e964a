//! Every option at every extreme: set in code, in an OPTIONS file, and while a database is open. A value is adjusted,
//! works, or is refused with the option's name. No value causes a panic, an endless job, a writer that waits for ever,
//! or an excessive allocation.
//!
//! The list of options is the store's own, so new options are tested automatically. The test runs in a separate
//! process: a failed allocation ends it, and its last line then shows the value.

use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use rockmill::event_listener::{CompactionJobInfo, FlushJobInfo};
use rockmill::{
    BlockBasedOptions, BottommostLevelCompaction, Cache, ColumnFamilyDescriptor, CompactOptions, Db, Error, ErrorKind,
    EventListener, IteratorMode, LruCacheOptions, OptionValue, Options, OptionsLoader, ReadOptions, WriteBufferManager,
};
use rockmill_io::{FileSystem, MemFileSystem};

const DIR: &str = "/db";

/// Time limit of one case on a slow and busy machine. A normal one takes some milliseconds.
const LIMIT: Duration = Duration::from_secs(60);

/// Most compactions of one case. A normal one makes at most 20.
const JOBS_MAX: usize = 300;

/// Most flushes of one case. It requests six, of 7 KB each, and no limit causes smaller ones.
const FLUSHES_MAX: usize = 12;

/// Most bytes by which a case may raise the process's peak memory.
const MEMORY_MAX: u64 = 512 << 20;

/// The variable that makes a process run the cases itself.
const INSIDE: &str = "ROCKMILL_OPTION_WALK";

const INTEGERS: [&str; 13] = [
    "-9223372036854775808",
    "-2147483648",
    "-1",
    "0",
    "1",
    "2",
    "4095",
    "2147483647",
    "4294967295",
    "1099511627776",
    "9223372036854775807",
    "18446744073709551614",
    "18446744073709551615",
];
const FLOATS: [&str; 11] = ["-inf", "-1", "-1e-300", "0", "1e-300", "0.5", "1", "1e9", "1e300", "inf", "nan"];

/// Values of options whose text is neither a number nor a word.
const OTHERS: [(&str, &[&str]); 13] = [
    ("table_factory", &["TphTable", "PlainTable"]),
    ("compaction_style", &["kCompactionStyleLevel", "kCompactionStyleUniversal", "kCompactionStyleFIFO", "kNone"]),
    (
        "compaction_pri",
        &["kByCompensatedSize", "kOldestLargestSeqFirst", "kOldestSmallestSeqFirst", "kRoundRobin", "kNone"],
    ),
    ("max_bytes_for_level_multiplier_additional", &["", "0", "-1:-2147483648", "2147483647:2147483647:0:1:1:1:1:1:1"]),
    ("compression", &["kZlibCompression", "kLZ4Compression", "kLZ4HCCompression", "kZSTD", "kBZip2Compression"]),
    ("bottommost_compression", &["kZSTD", "kXpressCompression", "kNoCompression"]),
    ("compression_per_level", &["kZSTD:kZSTD:kZSTD:kZSTD:kZSTD:kZSTD:kZSTD:kZSTD:kZSTD:kZSTD", "kXpressCompression"]),
    (
        "prefix_extractor",
        &["rocksdb.FixedPrefix.0", "rocksdb.FixedPrefix.18446744073709551615", "rocksdb.CappedPrefix.4294967296"],
    ),
    ("filter_policy", &["bloomfilter:1e300:false", "bloomfilter:-7:false", "bloomfilter:nan:false", "ribbonfilter:9"]),
    ("index_type", &["kTwoLevelIndexSearch", "kHashSearch", "kNone"]),
    ("data_block_index_type", &["kDataBlockBinaryAndHash"]),
    ("checksum", &["kNoChecksum", "kCRC32c", "kxxHash", "kxxHash64"]),
    ("wal_recovery_mode", &["kTolerateCorruptedTailRecords", "kAbsoluteConsistency", "kSkipAnyCorruptedRecords"]),
];

/// Options nested in others that are not in the text where they have RocksDB's default.
const NESTED: [&str; 5] = [
    "compaction_options_universal.max_read_amp=-1",
    "compression_opts.max_compressed_bytes_per_kb=896",
    "compression_opts.checksum=false",
    "bottommost_compression_opts.max_compressed_bytes_per_kb=896",
    "bottommost_compression_opts.checksum=false",
];

/// What column families are otherwise.
const SETTINGS: [&[(&str, &str)]; 7] = [
    &[],
    &[("compaction_style", "kCompactionStyleUniversal")],
    &[("compaction_style", "kCompactionStyleUniversal"), ("num_levels", "1")],
    &[("compaction_style", "kCompactionStyleFIFO")],
    &[("compaction_downforce", "true")],
    &[("compaction_classic", "true"), ("compaction_style", "kCompactionStyleUniversal")],
    &[("level_compaction_dynamic_level_bytes", "false"), ("level0_file_num_compaction_trigger", "2")],
];

/// One option, and its section in OPTIONS files; Rockmill's own are in none.
struct Walked {
    section: &'static str,
    name: String,
    values: Vec<String>,
    in_files: bool,
}

fn owned(values: &[&str]) -> Vec<String> {
    values.iter().map(|v| (*v).to_owned()).collect()
}

fn values_of(name: &str, default: &str) -> Vec<String> {
    if let Some((_, values)) = OTHERS.iter().find(|(n, _)| *n == name) {
        return owned(values);
    }
    match default {
        "true" | "false" => owned(&["true", "false"]),
        _ if default.parse::<i128>().is_ok() => owned(&INTEGERS),
        _ if default.parse::<f64>().is_ok() => owned(&FLOATS),
        _ => Vec::new(),
    }
}

/// The section of options that only TPH tables have.
const TPH: &str = "TableOptions/TphTable";

/// Every option of the store: those of TPH tables are in a section of their own.
fn all_values() -> Vec<OptionValue> {
    let mut all = Options::default().values();
    let tph = Options::from_string(&Options::default(), "table_factory=TphTable").unwrap().values();
    let alone: Vec<_> = tph.into_iter().filter(|v| all.iter().all(|other| other.name != v.name)).collect();
    assert!(alone.iter().all(|v| v.section == TPH));
    all.extend(alone);
    all
}

/// The setting that makes a column family use this section.
fn kind_of(section: &str) -> &'static [(&'static str, &'static str)] {
    if section == TPH { &[("table_factory", "TphTable")] } else { &[] }
}

/// Every option of the store that has values to try.
fn options() -> Vec<Walked> {
    let mut all = Vec::new();
    for option in all_values() {
        let inner = option.value.strip_prefix('{').and_then(|v| v.strip_suffix('}'));
        let mut nested: Vec<String> = inner.into_iter().flat_map(|v| v.split(';')).map(str::to_owned).collect();
        nested.retain(|pair| pair.contains('='));
        let beside = NESTED.iter().filter_map(|n| n.strip_prefix(option.name)?.strip_prefix('.'));
        nested.extend(beside.map(str::to_owned));
        let names = match inner {
            Some(_) => nested.iter().filter_map(|pair| pair.split_once('=')).collect(),
            None => vec![("", &*option.value)],
        };
        for (inner, default) in names {
            let name = if inner.is_empty() { option.name.to_owned() } else { format!("{}.{inner}", option.name) };
            let values = values_of(&name, default);
            all.push(Walked { section: option.section, name, values, in_files: option.in_files });
        }
    }
    // Directories are not numbers, and objects belong to the caller.
    all.retain(|o| !o.values.is_empty());
    assert!(all.len() > 100, "{}", all.len());
    all
}

#[derive(Clone, Default)]
struct Jobs {
    compactions: Arc<AtomicUsize>,
    flushes: Arc<AtomicUsize>,
}

impl EventListener for Jobs {
    fn on_compaction_completed(&self, _: &CompactionJobInfo) {
        self.compactions.fetch_add(1, Ordering::SeqCst);
    }

    fn on_flush_completed(&self, _: &FlushJobInfo) {
        self.flushes.fetch_add(1, Ordering::SeqCst);
    }
}

/// One try, for which nothing exists yet.
struct Case {
    fs: Arc<MemFileSystem>,
    jobs: Jobs,
}

impl Case {
    fn new() -> Self {
        Self { fs: Arc::new(MemFileSystem::new()), jobs: Jobs::default() }
    }

    fn base(&self) -> Options {
        let mut o = Options::default();
        o.create_if_missing(true);
        o.set_write_buffer_size(64 << 10);
        o.set_file_system(Arc::clone(&self.fs) as Arc<dyn FileSystem>);
        o.add_event_listener(self.jobs.clone());
        o
    }

    fn with(&self, pairs: &[(&str, &str)]) -> Result<Options, Error> {
        let mut o = self.base();
        for (name, value) in pairs {
            let outer = name.split('.').next().unwrap_or_default();
            let section = all_values().into_iter().find(|v| v.name == outer).map_or("", |v| v.section);
            let of_table = section.starts_with('T');
            let name = if of_table { format!("table_factory.{name}") } else { (*name).to_owned() };
            let kind = kind_of(section).iter().map(|(name, kind)| ((*name).to_owned(), *kind));
            o = Options::from_pairs(&o, kind.chain([(name, *value)]))?;
        }
        Ok(o)
    }

    /// Some tables, overwritten and deleted keys, a compaction of everything, and all of it read.
    fn work(&self, db: &Db, round: u8) -> Result<(), Error> {
        let flushes = self.jobs.flushes.load(Ordering::SeqCst);
        for part in 0..6_u8 {
            for key in 0..40_u8 {
                db.put([b'k', key, key ^ 0x5a], [part ^ round; 150])?;
            }
            db.delete([b'k', part, part ^ 0x5a])?;
            db.flush()?;
        }
        let expected = |key: u8| if key != 5 { Some(vec![5 ^ round; 150]) } else { None };
        for key in 0..40_u8 {
            let found = db.get([b'k', key, key ^ 0x5a])?;
            assert_eq!(found.as_deref(), expected(key).as_deref(), "key {key}");
        }
        db.compact_range(None::<&[u8]>, None::<&[u8]>)?;
        let entries: Result<Vec<_>, Error> = db.iterator(IteratorMode::Start).collect();
        assert_eq!(entries?.len(), 39);
        let flushes = self.jobs.flushes.load(Ordering::SeqCst) - flushes;
        assert!(flushes < FLUSHES_MAX, "{flushes} flushes: memtables are full with nothing in them");
        self.rest()
    }

    /// Opens with options as they are in code, and once more.
    fn given_in_code(&self, pairs: &[(&str, &str)]) -> Result<(), Error> {
        let o = self.with(pairs)?;
        for round in 0..2 {
            let mut o = o.clone();
            o.set_error_if_exists(o.db.error_if_exists && round == 0);
            o.create_if_missing(o.db.create_if_missing || round == 0);
            let db = Db::open(&o, DIR)?;
            self.work(&db, round)?;
        }
        Ok(())
    }

    /// Opens with an OPTIONS file that has a modified line.
    fn stored_in_file(&self, section: &str, name: &str, value: &str) -> Result<(), Error> {
        self.work(&Db::open(&self.with(kind_of(section))?, DIR)?, 0)?;
        let mut names = self.fs.list_dir(Path::new(DIR)).unwrap();
        names.retain(|n| n.starts_with("OPTIONS-"));
        names.sort();
        let path = Path::new(DIR).join(names.last().unwrap());
        let text = String::from_utf8(self.fs.read_to_vec(&path).unwrap()).unwrap();
        let (outer, line) = match name.split_once('.') {
            Some((outer, inner)) => (outer, format!("  {outer}={{{inner}={value}}}")),
            None => (name, format!("  {name}={value}")),
        };
        let head = match section {
            "DBOptions" => "[DBOptions]".to_owned(),
            other => format!("[{other} \"default\"]"),
        };
        let kept = text.lines().filter(|l| l.trim().split('=').next() != Some(outer));
        let text = kept.collect::<Vec<_>>().join("\n").replace(&head, &format!("{head}\n{line}"));
        self.fs.write_all(&path, text.as_bytes()).unwrap();
        let loaded = OptionsLoader::new().file_system(Arc::clone(&self.fs) as Arc<dyn FileSystem>).load_latest(DIR)?;
        let mut o = loaded.options;
        o.add_event_listener(self.jobs.clone());
        o.set_error_if_exists(false);
        let families = loaded.column_families;
        let families = families.into_iter().map(|d| ColumnFamilyDescriptor::new(d.name(), d.options().clone()));
        let db = Db::open_cf_descriptors(&o, DIR, families)?;
        self.work(&db, 1)?;
        Ok(())
    }

    /// Changes an open database, which then continues.
    fn while_open(&self, setting: &[(&str, &str)], section: &str, name: &str, value: &str) -> Result<(), Error> {
        let db = Db::open(&self.with(&[kind_of(section), setting].concat())?, DIR)?;
        self.work(&db, 0)?;
        match section {
            "DBOptions" => db.set_db_options(&[(name, value)])?,
            "CFOptions" => db.set_options(&[(name, value)])?,
            _ => db.set_options(&[(&format!("table_factory.{name}"), value)])?,
        }
        self.work(&db, 1)?;
        Ok(())
    }

    /// Detects endless jobs: compactions come to rest after a limited number.
    fn rest(&self) -> Result<(), Error> {
        let (mut jobs, mut quiet) = (self.jobs.compactions.load(Ordering::SeqCst), 0);
        while quiet < 3 {
            std::thread::sleep(Duration::from_millis(2));
            let now = self.jobs.compactions.load(Ordering::SeqCst);
            assert!(now < JOBS_MAX, "{now} compactions, and no rest");
            quiet = if now == jobs { quiet + 1 } else { 0 };
            jobs = now;
        }
        Ok(())
    }
}

/// The peak memory of this process in bytes; 0 if it is unknown.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) << 10
}

/// Runs one case on a separate thread, and checks it.
fn judge(what: &str, names: &[&str], case: impl FnOnce() -> Result<(), Error> + Send + 'static) -> Option<String> {
    let mut out = std::io::stdout();
    writeln!(out, "{what}").and_then(|()| out.flush()).unwrap();
    let before = peak_memory();
    let (done, waits) = mpsc::channel();
    let thread = std::thread::Builder::new().name("case".to_owned());
    let thread = thread.spawn(move || done.send(case()).unwrap()).unwrap();
    let result = match waits.recv_timeout(LIMIT) {
        Ok(result) => result,
        Err(mpsc::RecvTimeoutError::Timeout) => return Some("goes on for ever".to_owned()),
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            let panic = thread.join().unwrap_err();
            let text = panic.downcast_ref::<String>().cloned();
            return Some(format!("panics: {}", text.unwrap_or_else(|| "no text".to_owned())));
        }
    };
    let grown = peak_memory().saturating_sub(before);
    if grown > MEMORY_MAX {
        return Some(format!("takes {grown} bytes of memory"));
    }
    let Err(e) = result else { return None };
    let named = |name: &&str| name.split('.').any(|part| e.message().contains(part));
    match e.kind() {
        // An open database returns `NotFound` for a database option that it cannot change.
        ErrorKind::InvalidArgument | ErrorKind::NotSupported | ErrorKind::NotFound if names.iter().any(named) => None,
        _ => Some(format!("fails: {e}")),
    }
}

/// Runs `walk` in a separate process; returns its findings.
fn in_a_process(test: &str, walk: impl FnOnce() -> Vec<String>) {
    if std::env::var(INSIDE).is_ok() {
        let wrong = walk();
        assert!(wrong.is_empty(), "{} cases are wrong:\n{}", wrong.len(), wrong.join("\n"));
        return;
    }
    let out = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(INSIDE, "1")
        .output()
        .unwrap();
    if !out.status.success() {
        let (lines, errors) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        let last = |text: &str, n: usize| {
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len().saturating_sub(n)..].join("\n")
        };
        panic!("{}; last:\n{}\n{}", out.status, last(&lines, 3), last(&errors, 60));
    }
}

/// Each of these correctly makes the database not open, not be created, or keep nothing.
fn is_asked_for(name: &str, value: &str) -> bool {
    matches!(
        (name, value),
        ("error_if_exists", "true")
            | ("create_if_missing", "false")
            // FIFO compaction deletes tables above its size limit and older than its age limit.
            | ("compaction_options_fifo.max_table_files_size", "0" | "1" | "2" | "4095")
            | ("ttl", "1" | "2")
    )
}

#[test]
fn every_option_from_code_works_is_adjusted_or_is_refused_by_name() {
    in_a_process("every_option_from_code_works_is_adjusted_or_is_refused_by_name", || {
        let mut wrong = Vec::new();
        for setting in SETTINGS {
            for o in options() {
                if setting.is_empty() || o.section == "CFOptions" {
                    for value in o.values.iter().filter(|v| !is_asked_for(&o.name, v)) {
                        let what = format!("{setting:?} {}={value}", o.name);
                        let (name, value) = (o.name.clone(), value.clone());
                        let case = move || Case::new().given_in_code(&[setting, &[(&*name, &*value)]].concat());
                        wrong.extend(judge(&what, &[&o.name], case).map(|why| format!("{what}: {why}")));
                    }
                }
            }
        }
        wrong
    });
}

#[test]
fn every_option_of_a_file_works_is_adjusted_or_is_refused_by_name() {
    in_a_process("every_option_of_a_file_works_is_adjusted_or_is_refused_by_name", || {
        let mut wrong = Vec::new();
        for o in options().into_iter().filter(|o| o.in_files) {
            for value in o.values.iter().filter(|v| !is_asked_for(&o.name, v)) {
                let what = format!("in a file: {}={value}", o.name);
                let (section, name, value) = (o.section, o.name.clone(), value.clone());
                let case = move || Case::new().stored_in_file(section, &name, &value);
                wrong.extend(judge(&what, &[&o.name], case).map(|why| format!("{what}: {why}")));
            }
        }
        wrong
    });
}

#[test]
fn every_option_of_an_open_database_works_is_adjusted_or_is_refused_by_name() {
    in_a_process("every_option_of_an_open_database_works_is_adjusted_or_is_refused_by_name", || {
        let mut wrong = Vec::new();
        for setting in SETTINGS {
            for o in options() {
                if setting.is_empty() || o.section == "CFOptions" {
                    for value in o.values.iter().filter(|v| !is_asked_for(&o.name, v)) {
                        let what = format!("while open: {setting:?} {}={value}", o.name);
                        let (section, name, value) = (o.section, o.name.clone(), value.clone());
                        let case = move || Case::new().while_open(setting, section, &name, &value);
                        wrong.extend(judge(&what, &[&o.name], case).map(|why| format!("{what}: {why}")));
                    }
                }
            }
        }
        wrong
    });
}

#[test]
fn some_options_at_extremes_together_work_are_adjusted_or_are_refused_by_name() {
    in_a_process("some_options_at_extremes_together_work_are_adjusted_or_are_refused_by_name", || {
        let rounds = std::env::var("ROCKMILL_OPTION_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(150_u64);
        let (all, mut wrong) = (options(), Vec::new());
        for seed in 0..rounds {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut pairs: Vec<(String, String)> = Vec::new();
            for _ in 0..rng.usize(2..7) {
                let o = &all[rng.usize(..all.len())];
                let value = &o.values[rng.usize(..o.values.len())];
                // An invalid value would hide the others.
                let alone = Case::new().with(&[(&o.name, value)]).is_ok();
                if alone && !is_asked_for(&o.name, value) {
                    pairs.push((o.name.clone(), value.clone()));
                }
            }
            let what = format!("seed {seed}: {pairs:?}");
            let names: Vec<String> = pairs.iter().map(|(name, _)| name.clone()).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let case = move || {
                let pairs: Vec<(&str, &str)> = pairs.iter().map(|(n, v)| (&**n, &**v)).collect();
                Case::new().given_in_code(&pairs)
            };
            wrong.extend(judge(&what, &names, case).map(|why| format!("{what}: {why}")));
        }
        wrong
    });
}

/// Options whose sizes multiply, each at its largest.
#[test]
fn sizes_that_multiply_are_bounded() {
    in_a_process("sizes_that_multiply_are_bounded", || {
        let mut wrong = Vec::new();
        for pairs in [
            &[
                ("write_buffer_size", "9223372036854775807"),
                ("memtable_prefix_bloom_size_ratio", "0.25"),
                ("memtable_whole_key_filtering", "true"),
            ][..],
            &[("write_buffer_size", "9223372036854775807"), ("arena_block_size", "9223372036854775807")],
            &[("max_subcompactions", "4294967295"), ("compaction_readahead_size", "9223372036854775807")],
            &[("max_background_jobs", "2147483647"), ("writable_file_max_buffer_size", "9223372036854775807")],
        ] {
            let names: Vec<&str> = pairs.iter().map(|(name, _)| *name).collect();
            let what = format!("{pairs:?}");
            wrong.extend(judge(&what, &names, || Case::new().given_in_code(pairs)).map(|why| format!("{what}: {why}")));
        }
        wrong
    });
}

#[test]
fn sizes_of_reads_caches_and_bounds_without_sense_do_no_harm() {
    in_a_process("sizes_of_reads_caches_and_bounds_without_sense_do_no_harm", || {
        let mut wrong = Vec::new();
        for size in [0, 1, 4095, 1 << 30, 1 << 40, usize::MAX >> 1, usize::MAX] {
            let mut judged = |what: &str, case: Box<dyn FnOnce() -> Result<(), Error> + Send>| {
                let what = format!("{what} {size}");
                wrong.extend(judge(&what, &[], case).map(|why| format!("{what}: {why}")));
            };
            judged(
                "reads ahead",
                Box::new(move || {
                    let case = Case::new();
                    let db = Db::open(&case.base(), DIR)?;
                    case.work(&db, 0)?;
                    let mut read = ReadOptions::default();
                    read.set_readahead_size(size);
                    read.set_async_io(size % 2 == 1);
                    assert_eq!(db.iterator_opt(IteratorMode::Start, read).count(), 39);
                    Ok(())
                }),
            );
            judged(
                "a cache",
                Box::new(move || {
                    let case = Case::new();
                    let mut o = case.base();
                    let mut table = BlockBasedOptions::default();
                    table.set_block_cache(&Cache::new_lru_cache(size));
                    table.set_cache_index_and_filter_blocks(true);
                    o.set_block_based_table_factory(&table);
                    case.work(&Db::open(&o, DIR)?, 0)
                }),
            );
            judged(
                "a strict cache of shards",
                Box::new(move || {
                    let mut lru = LruCacheOptions::default();
                    lru.set_capacity(size);
                    lru.set_num_shard_bits(if size % 2 == 1 { i32::MAX } else { i32::MIN });
                    lru.set_high_pri_pool_ratio(f64::NAN);
                    let cache = Cache::new_lru_cache_opts(&lru);
                    let case = Case::new();
                    let mut o = case.base();
                    let mut table = BlockBasedOptions::default();
                    table.set_block_cache(&cache);
                    o.set_block_based_table_factory(&table);
                    case.work(&Db::open(&o, DIR)?, 0)
                }),
            );
            judged(
                "a bound of memtables",
                Box::new(move || {
                    let case = Case::new();
                    let mut o = case.base();
                    o.set_write_buffer_manager(&WriteBufferManager::new_write_buffer_manager(size, size > 4095));
                    case.work(&Db::open(&o, DIR)?, 0)
                }),
            );
            judged(
                "a compaction to level",
                Box::new(move || {
                    let case = Case::new();
                    let db = Db::open(&case.base(), DIR)?;
                    case.work(&db, 0)?;
                    let mut c = CompactOptions::default();
                    c.set_change_level(true);
                    c.set_target_level(size as i32);
                    c.set_bottommost_level_compaction(BottommostLevelCompaction::Force);
                    match db.compact_range_opt(None::<&[u8]>, None::<&[u8]>, &c) {
                        Err(e) if e.kind() != ErrorKind::InvalidArgument => return Err(e),
                        _ => {}
                    }
                    case.work(&db, 1)
                }),
            );
        }
        wrong
    });
}

/// Number of tables that a recovery or a repair makes from a WAL of 20,000 small records.
fn tables_of_a_wal(options: &Options, repair: bool) -> usize {
    let fs = Arc::new(MemFileSystem::new());
    let mut large = Options::default();
    large.create_if_missing(true);
    large.set_file_system(Arc::clone(&fs) as Arc<dyn FileSystem>);
    large.set_avoid_flush_during_shutdown(true);
    let db = Db::open(&large, DIR).unwrap();
    for key in 0..20_000_u32 {
        db.put(key.to_be_bytes(), b"v").unwrap();
    }
    drop(db);
    let mut o = options.clone();
    o.set_file_system(fs);
    o.set_disable_auto_compactions(true);
    if repair {
        Db::repair(&o, DIR).unwrap();
    }
    let db = Db::open(&o, DIR).unwrap();
    assert_eq!(db.iterator(IteratorMode::Start).count(), 20_000);
    db.live_files().unwrap().len()
}

#[test]
fn small_memtables_do_not_make_a_table_of_each_record_of_a_wal() {
    let mut small = Options::default();
    small.set_write_buffer_size(1);
    let mut bounded = Options::default();
    bounded.set_db_write_buffer_size(1);
    for options in [&small, &bounded] {
        for repair in [false, true] {
            // 32 bytes per record: one table per 64 KiB of them.
            let tables = tables_of_a_wal(options, repair);
            assert!(tables <= 12, "{tables} tables, repair: {repair}");
        }
    }
}

#[test]
fn a_large_step_of_the_arena_does_not_fill_a_memtable() {
    for size in [4 << 10, 64 << 10, 1 << 20] {
        for step in [size, size / 2, size / 4 * 3] {
            let (fs, jobs) = (Arc::new(MemFileSystem::new()), Jobs::default());
            let mut o = Options::default();
            o.create_if_missing(true);
            o.set_write_buffer_size(size);
            o.set_arena_block_size(step);
            o.set_disable_auto_compactions(true);
            o.set_file_system(fs);
            o.add_event_listener(jobs.clone());
            let db = Db::open(&o, DIR).unwrap();
            let writes = 3 * size / 100;
            for key in 0..writes as u32 {
                db.put(key.to_be_bytes(), [7; 60]).unwrap();
            }
            db.wait_for_background_work().unwrap();
            // About 120 bytes of memory each.
            let flushes = jobs.flushes.load(Ordering::SeqCst);
            assert!(flushes <= 12, "write_buffer_size {size}, arena_block_size {step}: {flushes} flushes of {writes}");
        }
    }
}
