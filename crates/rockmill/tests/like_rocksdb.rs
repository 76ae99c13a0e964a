//! What users of RocksDB expect, compared with RocksDB: kinds of errors for missing things, adjusted or refused
//! options, iterators between prefixes and bounds. And read options that outlive the objects that they were made from.

mod oracle;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use oracle::{Peer, Script, to_hex};
use rockmill::backup::{BackupEngine, BackupEngineOptions, RestoreOptions};
use rockmill::{
    Checkpoint, ColumnFamilyDescriptor, CompactOptions, Db, Env, ErrorKind, IteratorMode, Options, OptionsLoader,
    ReadOptions, ReverseBytewiseComparator, SliceTransform, SstFileWriter, properties,
};
use rockmill_io::MemFileSystem;

const CFS: [&str; 2] = ["default", "other"];

fn creating() -> Options {
    let mut o = Options::default();
    o.create_if_missing(true);
    o.create_missing_column_families(true);
    o
}

/// A database of two families, closed, with a table in each; next to it an empty directory, a garbage file, and a
/// backup.
fn ours(dir: &Path) {
    let db = Db::open_cf(&creating(), dir.join("db"), CFS).unwrap();
    db.put("k", "v").unwrap();
    db.put_cf(&db.cf_handle("other").unwrap(), "k", "v").unwrap();
    db.flush().unwrap();
    db.flush_cf(&db.cf_handle("other").unwrap()).unwrap();
    backups(&dir.join("backups")).create_new_backup(&db).unwrap();
    beside(dir);
}

fn beside(dir: &Path) {
    fs::create_dir(dir.join("empty")).unwrap();
    fs::write(dir.join("rubbish.sst"), "no table at all, but long enough for a footer to be looked for in it").unwrap();
}

fn backups(dir: &Path) -> BackupEngine {
    BackupEngine::open(&BackupEngineOptions::new(dir).unwrap(), &Env::new().unwrap()).unwrap()
}

/// What a script makes first.
fn theirs(dir: &Path) -> Script {
    let mut script = Script::new();
    script.line("cf other").open(&dir.join("db"));
    for cf in CFS {
        script.put(cf, "k", "v").line(format!("flush {cf}"));
    }
    script.line(format!("backup {}", dir.join("backups").display()));
    script.line("close").line("reset");
    beside(dir);
    script
}

fn open(dir: &Path) -> Db {
    Db::open_cf(&Options::default(), dir.join("db"), CFS).unwrap()
}

fn read_only(dir: &Path) -> Db {
    Db::open_cf_for_read_only(&Options::default(), dir.join("db"), CFS, false).unwrap()
}

fn remove(dir: &Path, part: &str) {
    for entry in fs::read_dir(dir.join("db")).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().unwrap().to_str().unwrap().contains(part) {
            fs::remove_file(path).unwrap();
        }
    }
}

type Try = fn(&Path) -> rockmill::Result<()>;

/// The attempts, as RocksDB driver commands separated by `;` (DIR is the directory), and in Rockmill.
const KINDS: &[(&str, Try)] = &[
    ("db create_if_missing=false;try open DIR/nowhere", |d| Db::open(&Options::default(), d.join("nowhere")).map(drop)),
    ("db create_if_missing=false;try open DIR/empty", |d| Db::open(&Options::default(), d.join("empty")).map(drop)),
    ("db error_if_exists=true;cf other;try open DIR/db", |d| {
        let mut o = creating();
        o.set_error_if_exists(true);
        Db::open_cf(&o, d.join("db"), CFS).map(drop)
    }),
    ("db create_if_missing=false;try open_ro DIR/nowhere", |d| {
        Db::open_for_read_only(&Options::default(), d.join("nowhere"), false).map(drop)
    }),
    ("db create_if_missing=false;try open_ro DIR/empty", |d| {
        Db::open_for_read_only(&Options::default(), d.join("empty"), false).map(drop)
    }),
    ("db create_missing_column_families=false;cf other;cf third;try open DIR/db", |d| {
        Db::open_cf(&Options::default(), d.join("db"), ["default", "other", "third"]).map(drop)
    }),
    ("try open DIR/db", |d| Db::open(&Options::default(), d.join("db")).map(drop)),
    ("cf third;try open_ro DIR/db", |d| {
        Db::open_cf_for_read_only(&Options::default(), d.join("db"), ["default", "third"], false).map(drop)
    }),
    ("cf default comparator=rocksdb.ReverseBytewiseComparator;cf other;try open DIR/db", |d| {
        let mut o = Options::default();
        o.set_comparator_object(Arc::new(ReverseBytewiseComparator));
        let cfs = [ColumnFamilyDescriptor::new("default", o), ColumnFamilyDescriptor::new("other", Options::default())];
        Db::open_cf_descriptors(&Options::default(), d.join("db"), cfs).map(drop)
    }),
    ("cf other;open DIR/db;try create_cf other", |d| open(d).create_cf("other", &Options::default()).map(drop)),
    ("cf other;open DIR/db;try drop_cf default keep", |d| open(d).drop_cf("default")),
    ("cf other;open DIR/db;drop_cf other keep;try drop_cf other keep", |d| {
        let db = open(d);
        db.drop_cf("other").unwrap();
        db.drop_cf("other")
    }),
    ("cf other;open DIR/db;drop_cf other keep;try put other 61 62", |d| {
        let db = open(d);
        let other = db.cf_handle("other").unwrap();
        db.drop_cf("other").unwrap();
        db.put_cf(&other, "a", "b")
    }),
    ("cf other;open DIR/db;drop_cf other keep;try get other 6b", |d| {
        let db = open(d);
        let other = db.cf_handle("other").unwrap();
        db.drop_cf("other").unwrap();
        assert_eq!(db.get_cf(&other, "k").unwrap().as_deref(), Some(&b"v"[..]));
        Ok(())
    }),
    ("cf other;open DIR/db;drop_cf other keep;try flush other", |d| {
        let db = open(d);
        let other = db.cf_handle("other").unwrap();
        db.drop_cf("other").unwrap();
        db.flush_cf(&other)
    }),
    ("try list_cf DIR/nowhere", |d| Db::list_cf(&Options::default(), d.join("nowhere")).map(drop)),
    ("try list_cf DIR/empty", |d| Db::list_cf(&Options::default(), d.join("empty")).map(drop)),
    ("try destroy DIR/nowhere", |d| Db::destroy(&Options::default(), d.join("nowhere"))),
    ("try destroy DIR/empty", |d| Db::destroy(&Options::default(), d.join("empty"))),
    ("try repair DIR/nowhere", |d| Db::repair(&Options::default(), d.join("nowhere")).map(drop)),
    ("cf other;open DIR/db;try set default nonsense=1", |d| open(d).set_options(&[("nonsense", "1")])),
    ("cf other;open DIR/db;try set default write_buffer_size=much", |d| {
        open(d).set_options(&[("write_buffer_size", "much")])
    }),
    ("cf other;open DIR/db;try set default num_levels=5", |d| open(d).set_options(&[("num_levels", "5")])),
    ("cf other;open DIR/db;try set db nonsense=1", |d| open(d).set_db_options(&[("nonsense", "1")])),
    ("cf other;open DIR/db;try set db create_if_missing=true", |d| {
        open(d).set_db_options(&[("create_if_missing", "true")])
    }),
    ("try cf default nonsense=1", |_| Options::from_string(&Options::default(), "nonsense=1").map(drop)),
    ("try cf default write_buffer_size=much", |_| {
        Options::from_string(&Options::default(), "write_buffer_size=much").map(drop)
    }),
    ("try load DIR/empty", |d| OptionsLoader::new().load_latest(d.join("empty")).map(drop)),
    ("try load DIR/nowhere", |d| OptionsLoader::new().load_latest(d.join("nowhere")).map(drop)),
    ("cf other;open DIR/db;try ingest_files default - DIR/nowhere.sst", |d| {
        open(d).ingest_external_file(vec![d.join("nowhere.sst")])
    }),
    ("cf other;open DIR/db;try ingest_files default -", |d| open(d).ingest_external_file(Vec::<PathBuf>::new())),
    ("cf other;open DIR/db;try ingest_files default - DIR/rubbish.sst", |d| {
        open(d).ingest_external_file(vec![d.join("rubbish.sst")])
    }),
    ("try write_sst default DIR/none.sst", |d| {
        let o = Options::default();
        let mut writer = SstFileWriter::create(&o);
        writer.open(d.join("none.sst")).unwrap();
        writer.finish()
    }),
    ("try write_sst default DIR/back.sst p 62 62 p 61 61", |d| {
        let o = Options::default();
        let mut writer = SstFileWriter::create(&o);
        writer.open(d.join("back.sst")).unwrap();
        writer.put("b", "b").unwrap();
        writer.put("a", "a")
    }),
    ("try write_sst default DIR/nowhere/a.sst p 61 61", |d| {
        SstFileWriter::create(&Options::default()).open(d.join("nowhere/a.sst"))
    }),
    ("cf other;open DIR/db;try checkpoint DIR/empty", |d| {
        let db = open(d);
        Checkpoint::new(&db).unwrap().create_checkpoint(d.join("empty"))
    }),
    ("try backup_verify DIR/backups 7", |d| backups(&d.join("backups")).verify_backup(7)),
    ("try backup_delete DIR/backups 7", |d| backups(&d.join("backups")).delete_backup(7)),
    ("try restore DIR/backups 7 DIR/restored", |d| {
        let to = d.join("restored");
        backups(&d.join("backups")).restore_from_backup(&to, &to, &RestoreOptions::default(), 7)
    }),
    ("cf other;open_ro DIR/db;try put default 61 62", |d| read_only(d).put("a", "b")),
    ("cf other;open_ro DIR/db;try flush default", |d| read_only(d).flush()),
    ("cf other;open_ro DIR/db;try compact default", |d| {
        let db = read_only(d);
        db.compact_range_opt(None::<&[u8]>, None::<&[u8]>, &CompactOptions::default())
    }),
    ("cf other;open_ro DIR/db;try create_cf third", |d| read_only(d).create_cf("third", &Options::default()).map(drop)),
    ("cf other;open_ro DIR/db;try drop_cf other keep", |d| read_only(d).drop_cf("other")),
    ("cf other;open_ro DIR/db;try set default write_buffer_size=100000", |d| {
        read_only(d).set_options(&[("write_buffer_size", "100000")])
    }),
    ("cf other;open DIR/db;try delrange default 62 61", |d| {
        let db = open(d);
        db.delete_range_cf(&db.default_cf(), "b", "a")
    }),
    ("cf other;open DIR/db;try prop default rocksdb.nonsense", |d| {
        let none = open(d).property_value("rocksdb.nonsense").unwrap();
        none.map(drop).ok_or_else(|| rockmill::Error::new(ErrorKind::Unknown, "none"))
    }),
    ("db wal_dir=DIR/nowhere;cf other;try open_ro DIR/db", |d| {
        let mut o = Options::default();
        o.set_wal_dir(d.join("nowhere"));
        Db::open_cf_for_read_only(&o, d.join("db"), CFS, false).map(drop)
    }),
    ("remove MANIFEST;cf other;try open DIR/db", |d| Db::open_cf(&Options::default(), d.join("db"), CFS).map(drop)),
    ("remove .sst;cf other;try open DIR/db", |d| Db::open_cf(&Options::default(), d.join("db"), CFS).map(drop)),
    ("remove CURRENT;db create_if_missing=false;cf other;try open DIR/db", |d| {
        Db::open_cf(&Options::default(), d.join("db"), CFS).map(drop)
    }),
];

/// Kinds that intentionally differ from RocksDB's: a read-only database changes nothing, and a repair does not create a
/// database.
const KINDS_OF_OUR_OWN: &[(&str, &str)] = &[
    ("try repair DIR/nowhere", "InvalidArgument"),
    ("cf other;open_ro DIR/db;try create_cf third", "NotSupported"),
    ("cf other;open_ro DIR/db;try drop_cf other keep", "NotSupported"),
    ("cf other;open_ro DIR/db;try set default write_buffer_size=100000", "NotSupported"),
];

#[test]
fn kinds_of_errors_are_rocksdbs() {
    let test = "kinds_of_errors_are_rocksdbs";
    let driver = need!(test, Peer::Library.driver());
    let mut wrong = Vec::new();
    for (commands, here) in KINDS {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        fs::create_dir(&a).unwrap();
        fs::create_dir(&b).unwrap();
        ours(&a);
        let mut script = theirs(&b);
        let removed = commands.split(';').find_map(|c| c.strip_prefix("remove "));
        if let Some(part) = removed {
            remove(&a, part);
            driver.answer(test, &script).expect("the library runs it");
            remove(&b, part);
            script = Script::new();
        }
        for command in commands.split(';').filter(|c| !c.starts_with("remove ")) {
            script.line(command.replace("DIR", b.to_str().unwrap()));
        }
        let answer = driver.answer(test, &script).expect("the library runs it");
        let theirs = answer.statuses()[0].to_owned();
        let done = here(&a);
        let kind = match &done {
            Ok(()) => "OK".to_owned(),
            Err(e) if e.kind() == ErrorKind::Unknown => e.message().to_owned(),
            Err(e) => format!("{:?}", e.kind()),
        };
        let own = KINDS_OF_OUR_OWN.iter().find(|(c, _)| c == commands).map(|(_, kind)| *kind);
        if own.unwrap_or(&theirs) != kind {
            wrong.push(format!("{commands}: {done:?}; RocksDB: {theirs}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// An empty name is refused, as by RocksDB 11; earlier versions lost the column family.
#[test]
fn a_column_family_needs_a_name() {
    let mut o = creating();
    o.set_file_system(Arc::new(MemFileSystem::new()));
    assert_eq!(Db::open_cf(&o, "/db", ["default", ""]).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let db = Db::open(&o, "/db").unwrap();
    assert_eq!(db.create_cf("", &o).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert!(db.cf_handle("").is_none());
}

/// Options with values, some of them invalid. Those before the bar are options of the database.
const ODD: &[(&str, &[&str])] = &[
    ("max_open_files", &["-1", "-2", "-100", "20", "1000"]),
    ("delayed_write_rate", &["0", "1", "1000000"]),
    ("max_background_jobs", &["0", "-3", "1", "4"]),
    ("max_subcompactions", &["0", "1", "3"]),
    ("keep_log_file_num", &["0", "1", "10"]),
    ("bytes_per_sync", &["0", "1"]),
    ("writable_file_max_buffer_size", &["0", "1", "65536"]),
    ("use_direct_io_for_flush_and_compaction", &["false", "true"]),
    ("atomic_flush", &["false", "true"]),
    ("max_manifest_file_size", &["0", "1", "1000000"]),
    ("|", &[]),
    ("write_buffer_size", &["0", "1", "65536", "100000", "1T"]),
    ("arena_block_size", &["1", "4096", "100000"]),
    ("max_write_buffer_number", &["0", "-1", "1", "2", "5"]),
    ("min_write_buffer_number_to_merge", &["0", "-1", "1", "2", "9"]),
    ("num_levels", &["0", "1", "2", "3", "7"]),
    ("compaction_style", &["kCompactionStyleLevel", "kCompactionStyleLevel", "kCompactionStyleUniversal"]),
    ("max_bytes_for_level_multiplier", &["0", "-1", "0.5", "1", "1.5", "10"]),
    ("max_bytes_for_level_multiplier_additional", &["0", "1:0:1", "2:2", "-1:1"]),
    ("max_bytes_for_level_base", &["1", "1000", "1000000"]),
    ("target_file_size_base", &["1", "1000", "1000000"]),
    ("target_file_size_multiplier", &["0", "1", "3"]),
    ("level0_file_num_compaction_trigger", &["0", "-1", "1", "4", "50"]),
    ("level0_slowdown_writes_trigger", &["0", "-1", "1", "20", "60"]),
    ("level0_stop_writes_trigger", &["0", "-1", "1", "36", "70"]),
    ("soft_pending_compaction_bytes_limit", &["0", "1000", "1000000000"]),
    ("hard_pending_compaction_bytes_limit", &["0", "1000000", "1000000000"]),
    ("memtable_prefix_bloom_size_ratio", &["-1", "0", "0.1", "0.3", "7"]),
    (
        "block_based_table_factory",
        &[
            "{block_restart_interval=0}",
            "{index_block_restart_interval=0}",
            "{block_size_deviation=200}",
            "{partition_filters=true}",
            "{partition_filters=true;index_type=kTwoLevelIndexSearch}",
            "{block_size=1}",
            "{format_version=99}",
            "{no_block_cache=true;cache_index_and_filter_blocks=true}",
            "{no_block_cache=true;pin_l0_filter_and_index_blocks_in_cache=true}",
            "{data_block_index_type=kDataBlockBinaryAndHash;data_block_hash_table_util_ratio=0}",
            "{data_block_index_type=kDataBlockBinaryAndHash;data_block_hash_table_util_ratio=0.5}",
        ],
    ),
    ("compression_opts", &["{max_dict_bytes=0;zstd_max_train_bytes=100}", "{max_dict_bytes=100}"]),
    ("compression", &["kNoCompression", "kSnappyCompression"]),
    ("ttl", &["0", "1000"]),
    ("max_compaction_bytes", &["1", "1000000"]),
];

/// Options whose values are compared after the open; others only have to be accepted or refused in the same way.
const SAME: &[&str] = &[
    "delayed_write_rate",
    "max_write_buffer_number",
    "min_write_buffer_number_to_merge",
    "num_levels",
    "max_bytes_for_level_multiplier",
    "level0_file_num_compaction_trigger",
    "level0_slowdown_writes_trigger",
    "level0_stop_writes_trigger",
    "soft_pending_compaction_bytes_limit",
    "hard_pending_compaction_bytes_limit",
    "memtable_prefix_bloom_size_ratio",
    "write_buffer_size",
    "max_open_files",
    "partition_filters",
];

/// Random options, some of them invalid: the database opens if RocksDB's opens, with the same options, and works;
/// otherwise the error has RocksDB's kind.
#[test]
fn odd_options_are_adjusted_or_refused_as_by_rocksdb() {
    let test = "odd_options_are_adjusted_or_refused_as_by_rocksdb";
    let driver = Peer::Library.driver();
    if let Err(missing) = &driver {
        rockmill_skip::skip(test, missing);
    }
    let seed = std::env::var("ROCKMILL_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    println!("ROCKMILL_SEED={seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let dir = tempfile::tempdir().unwrap();
    let bar = ODD.iter().position(|(name, _)| *name == "|").unwrap();
    let mut script = Script::new();
    let mut cases = Vec::new();
    for case in 0..150 {
        let (mut of_db, mut of_family) = (Vec::new(), Vec::new());
        // Each odd value alone, then several together.
        let alone = ODD.iter().flat_map(|(name, values)| values.iter().map(move |v| (*name, *v))).nth(case);
        let picked: Vec<(&str, &str)> = match alone {
            Some(one) => vec![one],
            None => rng
                .choose_multiple(0..ODD.len(), 5)
                .into_iter()
                .filter(|i| *i != bar)
                .map(|i| {
                    let (name, values) = ODD[i];
                    (name, *rng.choice(values).unwrap())
                })
                .collect(),
        };
        for (name, value) in &picked {
            let at = ODD.iter().position(|(n, _)| n == name).unwrap();
            if at < bar { &mut of_db } else { &mut of_family }.push(format!("{name}={value}"));
        }
        let (of_db, of_family) = (of_db.join(";"), of_family.join(";"));
        script.line("reset").line(format!("say {case}")).line(format!("db {of_db}"));
        script.line(format!("cf default {of_family}"));
        script.line(format!("try open {}", dir.path().join(format!("theirs{case}")).display()));
        script.line("try live default").line("try live db").line("try close");
        cases.push([of_db, of_family].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(";"));
    }
    let answer = driver.ok().and_then(|driver| driver.answer(test, &script));
    let theirs = answer.as_ref().map(|a| a.sections());
    let mut wrong = Vec::new();
    for (case, text) in cases.iter().enumerate() {
        let mut o = Options::from_string(&creating(), text).unwrap_or_else(|e| panic!("{text}: {e}"));
        o.set_file_system(Arc::new(MemFileSystem::new()));
        let opened = Db::open(&o, "/db");
        let ours = opened.as_ref().map_or_else(|e| format!("{:?}", e.kind()), |_| "OK".to_owned());
        let lines = theirs.as_ref().map(|t| &t[case]);
        if let Some(lines) = lines {
            let status = lines.iter().find_map(|l| l.strip_prefix("status ")).unwrap();
            if status != ours {
                wrong.push(format!("{text}: {:?}; RocksDB: {status}", opened.as_ref().map(drop)));
            }
        }
        let Ok(db) = opened else { continue };
        if let Some(lines) = lines {
            let values = db.get_options().values();
            for name in SAME {
                let line =
                    lines.iter().find_map(|l| l.trim().strip_prefix("option ")?.strip_prefix(name)?.strip_prefix('='));
                let ours = values.iter().find(|v| v.name == *name).map(|v| v.value.as_str());
                let small = *name == "write_buffer_size" && ours.is_some_and(|v| v.parse::<u64>().unwrap() < 65536);
                let number = |v: Option<&str>| v.and_then(|v| v.parse::<f64>().ok());
                // RocksDB keeps a negative trigger, never compacts, and finally stops its writers for ever. It then
                // does not raise the other two triggers either.
                let negative = text.contains("level0_file_num_compaction_trigger=-");
                let endless = negative && name.starts_with("level0_") && number(line) < Some(1.0) && ours == Some("1");
                if !small && !endless && line.is_some() && line != ours && number(line) != number(ours) {
                    wrong.push(format!("{text}: {name} is {ours:?}; RocksDB: {line:?}"));
                }
            }
        }
        for i in 0..300 {
            db.put(format!("{:03}", i * 7 % 150), format!("{i}")).unwrap();
        }
        db.flush().unwrap_or_else(|e| panic!("{text}: {e}"));
        db.put("more", "1").unwrap();
        db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap_or_else(|e| panic!("{text}: {e}"));
        let entries: Result<Vec<_>, _> = db.iterator(IteratorMode::Start).collect();
        assert_eq!(entries.expect(text).len(), 151, "{text}");
        assert_eq!(db.get("149").unwrap().as_deref(), Some(&b"257"[..]), "{text}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Iterators over prefixes, with bounds before, in and after the prefix of the target, go to the same entries as
/// RocksDB's. There are no filters, which could make RocksDB's results random.
#[test]
fn iterators_between_prefixes_and_bounds_go_where_rocksdbs_go() {
    let test = "iterators_between_prefixes_and_bounds_go_where_rocksdbs_go";
    let driver = need!(test, Peer::Library.driver());
    let seed = std::env::var("ROCKMILL_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    println!("ROCKMILL_SEED={seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let dir = tempfile::tempdir().unwrap();
    let (mut script, mut walks, mut found) = (Script::new(), Vec::new(), Vec::new());
    for (round, prefix) in ["fixed:1", "fixed:2", "capped:2", "nullptr"].into_iter().enumerate() {
        let mut o = creating();
        match prefix.split_once(':') {
            Some(("fixed", n)) => o.set_prefix_extractor(SliceTransform::create_fixed_prefix(n.parse().unwrap())),
            Some((_, n)) => o.set_prefix_extractor(SliceTransform::create_capped_prefix(n.parse().unwrap())),
            None => {}
        }
        let db = Db::open(&o, dir.path().join(format!("ours{round}"))).unwrap();
        script.line("reset").line(format!("cf default prefix_extractor={prefix}"));
        script.open(&dir.path().join(format!("theirs{round}")));
        // RocksDB 7.8 reads past the end of a key without a prefix, so all keys are long enough.
        let shortest = if prefix == "fixed:2" { 2 } else { 1 };
        let long = |rng: &mut fastrand::Rng| -> Vec<u8> {
            (0..rng.usize(shortest..5)).map(|_| *rng.choice(b"abc").unwrap()).collect()
        };
        for i in 0..60 {
            let key = long(&mut rng);
            db.put(&key, "v").unwrap();
            script.put("default", &key, "v");
            if i == 20 {
                db.flush().unwrap();
                script.line("flush default");
            }
        }
        for _ in 0..300 {
            let flags = *rng.choice(&["same", "same,total", "same,auto", "total", "-"]).unwrap();
            // Without any of them, a seek to another prefix has random results in RocksDB.
            let flags = if flags == "-" && prefix != "nullptr" { "same" } else { flags };
            let bound = |rng: &mut fastrand::Rng| rng.bool().then(|| long(rng));
            let (lower, upper) = (bound(&mut rng), bound(&mut rng));
            let mut options = ReadOptions::default();
            options.set_prefix_same_as_start(flags.contains("same"));
            options.set_total_order_seek(flags.contains("total"));
            options.set_auto_prefix_mode(flags.contains("auto"));
            let text = |bound: &Option<Vec<u8>>| bound.as_ref().map_or("none".to_owned(), |b| to_hex(b));
            let mut walk = format!("walk default {flags} {} {}", text(&lower), text(&upper));
            if let Some(lower) = lower {
                options.set_iterate_lower_bound(lower);
            }
            if let Some(upper) = upper {
                options.set_iterate_upper_bound(upper);
            }
            let mut iter = db.raw_iterator_opt(options);
            for step in 0..rng.usize(2..10) {
                let target = long(&mut rng);
                let (what, target) = match if step == 0 { rng.u8(0..4) } else { rng.u8(0..12) } {
                    0 => ("first".to_owned(), iter.seek_to_first()),
                    1 => ("last".to_owned(), iter.seek_to_last()),
                    2 => (format!("seek:{}", to_hex(&target)), iter.seek(&target)),
                    3 => (format!("back:{}", to_hex(&target)), iter.seek_for_prev(&target)),
                    4..=8 => ("next".to_owned(), iter.next()),
                    _ => ("prev".to_owned(), iter.prev()),
                };
                let () = target;
                iter.status().unwrap();
                walk += &format!(" {what}");
                walks.push(format!("{prefix}: {walk}"));
                found.push(iter.key().map(<[u8]>::to_vec));
            }
            script.line(walk);
        }
        script.line("close");
    }
    let Some(answer) = driver.answer(test, &script) else { return };
    let theirs = answer.places();
    assert_eq!(theirs.len(), found.len());
    for (walk, (ours, theirs)) in walks.iter().zip(found.iter().zip(&theirs)) {
        assert_eq!(ours, theirs, "{walk}");
    }
}

/// Overwrites, deletes and compacts everything, so that old versions remain only if a snapshot holds them.
fn turn_over(db: &Db, value: &str) {
    for i in 0..20 {
        db.put(format!("{i:02}"), value).unwrap();
    }
    db.delete("gone").unwrap();
    db.flush().unwrap();
    let mut all = CompactOptions::default();
    all.set_bottommost_level_compaction(rockmill::BottommostLevelCompaction::Force);
    db.compact_range_opt(None::<&[u8]>, None::<&[u8]>, &all).unwrap();
}

/// Read options hold their snapshot: every kind of read sees the same after the snapshot's handle was dropped, whatever
/// is compacted meanwhile, until the last of the options is dropped, too.
#[test]
fn read_options_hold_their_snapshot() {
    let mut o = creating();
    o.set_file_system(Arc::new(MemFileSystem::new()));
    let db = Db::open(&o, "/db").unwrap();
    let snapshots = || db.property_int_value(properties::NUM_SNAPSHOTS).unwrap();
    turn_over(&db, "old");
    db.put("gone", "old").unwrap();
    let mut options = ReadOptions::default();
    let snapshot = db.snapshot();
    let number = snapshot.sequence_number();
    options.set_snapshot(&snapshot);
    drop(snapshot);
    let copy = options.clone();
    assert_eq!(snapshots(), Some(1));
    for round in 0..3 {
        turn_over(&db, &format!("new {round}"));
        for options in [&options, &copy] {
            assert_eq!(db.get_opt("07", options).unwrap().as_deref(), Some(&b"old"[..]), "round {round}");
            assert_eq!(db.get_opt("gone", options).unwrap().as_deref(), Some(&b"old"[..]), "round {round}");
            let many = db.multi_get_opt(["00", "gone", "never"], options);
            let many: Vec<_> = many.into_iter().map(|v| v.unwrap().map(|v| v.len())).collect();
            assert_eq!(many, [Some(3), Some(3), None], "round {round}");
            for mode in [IteratorMode::Start, IteratorMode::End] {
                let all: Vec<_> = db.iterator_opt(mode, options.clone()).map(|e| e.unwrap().1).collect();
                assert!(all.len() == 21 && all.iter().all(|v| **v == *b"old"), "round {round}: {all:?}");
            }
        }
    }
    drop(options);
    assert_eq!(snapshots(), Some(1));
    assert_eq!(db.property_int_value(properties::OLDEST_SNAPSHOT_SEQUENCE).unwrap(), Some(number));
    drop(copy);
    assert_eq!(snapshots(), Some(0));
}

/// A snapshot's number is valid only in its own database, and only until that is closed.
#[test]
fn a_snapshot_of_another_database_is_refused() {
    let mut o = creating();
    o.set_file_system(Arc::new(MemFileSystem::new()));
    let db = Db::open(&o, "/db").unwrap();
    db.put("k", "v").unwrap();
    let other = Db::open(&o, "/other").unwrap();
    let mut options = ReadOptions::default();
    options.set_snapshot(&other.snapshot());
    let refused = |db: &Db, options: &ReadOptions, what: &str| {
        let errors = [
            db.get_opt("k", options).unwrap_err(),
            db.get_pinned_opt("k", options).unwrap_err(),
            db.multi_get_opt(["k"], options).remove(0).unwrap_err(),
            db.iterator_opt(IteratorMode::Start, options.clone()).next().unwrap().unwrap_err(),
            {
                let mut iter = db.raw_iterator_opt(options.clone());
                iter.seek("a");
                assert!(!iter.valid());
                iter.status().unwrap_err()
            },
        ];
        for e in errors {
            assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
            assert!(e.to_string().contains(what), "{e}");
        }
    };
    refused(&db, &options, "/other");
    options.set_snapshot(&db.snapshot());
    assert_eq!(db.get_opt("k", &options).unwrap().as_deref(), Some(&b"v"[..]));
    drop(db);
    // The options keep nothing open.
    let db = Db::open(&o, "/db").unwrap();
    refused(&db, &options, "was closed");
}

/// Properties equal RocksDB's if nothing is compacted into one level, and if files wait to be deleted.
#[test]
fn properties_mean_what_rocksdbs_mean() {
    let mut o = creating();
    o.set_file_system(Arc::new(MemFileSystem::new()));
    for (style, base) in
        [("kCompactionStyleLevel", 6), ("kCompactionStyleUniversal", u64::MAX), ("kCompactionStyleFIFO", u64::MAX)]
    {
        let mut o = Options::from_string(&o, &format!("compaction_style={style};write_buffer_size=100000")).unwrap();
        o.set_disable_auto_compactions(true);
        let db = Db::open(&o, format!("/{style}")).unwrap();
        assert_eq!(db.property_int_value(properties::BASE_LEVEL).unwrap(), Some(base), "{style}");
    }
    o.set_disable_auto_compactions(true);
    o.cf.table.disable_cache();
    let db = Db::open(&o, "/db").unwrap();
    let number = |name: &str| db.property_int_value(name).unwrap();
    assert_eq!(number(properties::BLOCK_CACHE_CAPACITY), None);
    assert_eq!(number(properties::NUM_BLOB_FILES), Some(0));
    assert_eq!(db.property_value(properties::OPTIONS_STATISTICS).unwrap(), None);
    assert_eq!(db.property_value("rocksdb.num-files-at-level0").unwrap().as_deref(), Some("0"));
    assert_eq!(db.property_value("rocksdb.num-files-at-level+0").unwrap(), None);
    db.disable_file_deletions().unwrap();
    for _ in 0..2 {
        db.put("k", "v").unwrap();
        db.flush().unwrap();
    }
    let before = number(properties::LIVE_SST_FILES_SIZE).unwrap();
    assert_eq!(number(properties::OBSOLETE_SST_FILES_SIZE), Some(0));
    db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
    assert_eq!(number(properties::OBSOLETE_SST_FILES_SIZE), Some(before));
    db.enable_file_deletions().unwrap();
    assert_eq!(number(properties::OBSOLETE_SST_FILES_SIZE), Some(0));
}

/// Each read after a new range tombstone examines all of the memtable's; an option limits their number.
#[test]
fn a_memtable_with_as_many_range_tombstones_as_it_may_have_is_flushed() {
    let fs = MemFileSystem::new();
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_file_system(Arc::new(fs.clone()));
    options.set_disable_auto_compactions(true);
    let db = Db::open(&options, "/db").unwrap();
    let tables = |db: &Db| db.live_files().unwrap().len();
    let cf = db.default_cf();
    let delete = |from: u32| {
        (from..from + 10).for_each(|n| db.delete_range_cf(&cf, &*format!("{n:04}"), "9999").unwrap());
    };
    delete(0);
    db.put("0500", "1").unwrap();
    assert_eq!(tables(&db), 0, "by default there is no limit");
    db.set_options(&[("memtable_max_range_deletions", "5")]).unwrap();
    delete(10);
    // The write after the last allowed one finds the memtable full.
    db.put("0600", "1").unwrap();
    db.flush().unwrap();
    // A flush takes all that wait.
    assert!((2..=4).contains(&tables(&db)), "{}", tables(&db));
    assert_eq!(db.get("0500").unwrap(), None);
    assert_eq!(db.get("0600").unwrap().as_deref(), Some(&b"1"[..]));
}
