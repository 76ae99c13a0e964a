//! Databases in the repository (`tests/fixtures`) that all available versions of RocksDB and all releases of Rockmill
//! wrote. Each opens, has the contents that its writer read from it, and stays correct when Rockmill writes to it and
//! compacts it. Unsupported features are refused by name.
//!
//! Debian's RocksDB reads each database after Rockmill's changes. If `ROCKMILL_ROCKSDB_LIBS` names a folder of
//! libraries (`scripts/fixtures/make --libraries` makes target/rocksdb), the version that wrote a database also reads
//! it again.

mod archive;
#[path = "../oracle/mod.rs"]
mod oracle;
mod releases;
mod rocksdb_11;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use archive::{Case, Entries};
use oracle::content::{same, try_read};
use oracle::{Driver, Peer, Script};
use rockmill::backup::{BackupEngine, BackupEngineOptions};
use rockmill::internals::{Table, TableDirs, open_table, recover_manifest};
use rockmill::merge_operator::{StringAppendOperator, UInt64AddOperator};
use rockmill::{
    BottommostLevelCompaction, ColumnFamilyDescriptor, CompactOptions, Comparator, Db, Env, ErrorKind, IteratorMode,
    Options, OptionsLoader, ReverseBytewiseComparator, SliceTransform, TphTableOptions,
};
use rockmill_format::InternalKeyComparator;
use rockmill_format::comparator::BytewiseComparator;
use rockmill_io::{FileSystem, MemFileSystem, SystemClock};
use rockmill_skip::{Missing, Needs, skip, wish};

/// The path of each database in its in-memory file system.
const DIR: &str = "/compat/db";
const BACKUPS: &str = "/compat/backups";

/// A case in memory.
struct Home {
    case: Case,
    fs: Arc<MemFileSystem>,
}

impl Home {
    fn new(case: &Case) -> Self {
        let fs = Arc::new(MemFileSystem::new());
        let root = Path::new(if case.is_backup { BACKUPS } else { DIR });
        fs.create_dir(root, true).expect("a directory in memory");
        for (name, bytes) in &case.files {
            let path = root.join(name);
            fs.create_dir(path.parent().expect("below the root"), true).expect("a directory in memory");
            fs.write_all(&path, bytes).expect("a file in memory");
        }
        Self { case: case.clone(), fs }
    }

    fn options(&self, family: &str) -> Options {
        let mut options = Options::default();
        options.set_file_system(Arc::clone(&self.fs) as Arc<dyn FileSystem>);
        match self.case.operators.get(family).map(String::as_str) {
            Some("StringAppendOperator") => {
                options.set_merge_operator_object(Arc::new(StringAppendOperator::default()));
            }
            Some("UInt64AddOperator") => options.set_merge_operator_object(Arc::new(UInt64AddOperator)),
            Some(other) => panic!("{}: no operator {other}", self.case.title()),
            None => {}
        }
        if let Some(&length) = self.case.prefixes.get(family) {
            options.set_prefix_extractor(SliceTransform::create_fixed_prefix(length));
        }
        if self.reverse(family) {
            options.set_comparator_object(Arc::new(ReverseBytewiseComparator));
        }
        if self.case.tph.iter().any(|f| f == family) {
            options.set_tph_table_factory(&TphTableOptions::default());
        }
        options
    }

    fn reverse(&self, family: &str) -> bool {
        self.case.reverse.iter().any(|f| f == family)
    }

    fn descriptors(&self, families: &[String]) -> Vec<ColumnFamilyDescriptor> {
        families.iter().map(|name| ColumnFamilyDescriptor::new(name, self.options(name))).collect()
    }

    fn try_open(&self, families: &[String], read_only: bool) -> rockmill::Result<Db> {
        let options = self.options("default");
        let descriptors = self.descriptors(families);
        match (self.case.ttl, read_only) {
            (true, true) => Db::open_cf_with_ttl_for_read_only(&options, DIR, families, false),
            (true, false) => Db::open_cf_descriptors_with_ttl(&options, DIR, descriptors, Duration::ZERO),
            (false, true) => Db::open_cf_descriptors_read_only(&options, DIR, descriptors, false),
            (false, false) => Db::open_cf_descriptors(&options, DIR, descriptors),
        }
    }

    fn open(&self, families: &[String], read_only: bool) -> Db {
        self.try_open(families, read_only).unwrap_or_else(|e| panic!("{}: {e}", self.case.title()))
    }

    /// Every file of the database, by name.
    fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let dir = Path::new(DIR);
        let names = self.fs.list_dir(dir).expect("the database");
        let kept = names.into_iter().filter(|n| n != "LOCK" && !n.starts_with("LOG"));
        kept.map(|n| (n.clone(), self.fs.read_to_vec(&dir.join(&n)).expect("a file"))).collect()
    }

    /// The newest backup of the directory becomes the database.
    fn restore(&self) {
        let title = self.case.title();
        let env = Env::from_parts(Arc::clone(&self.fs) as Arc<dyn FileSystem>, Arc::new(SystemClock::default()));
        let engine = BackupEngine::open(&BackupEngineOptions::new(BACKUPS).expect("options"), &env)
            .unwrap_or_else(|e| panic!("{title}: {e}"));
        assert!(engine.get_corrupted_backups().is_empty(), "{title}: {:?}", engine.get_corrupted_backups());
        let ids: Vec<u32> = engine.get_backup_info().iter().map(|i| i.backup_id).collect();
        assert_eq!(ids, [1, 2], "{title}");
        for &id in &ids {
            engine.verify_backup_with_checksum(id).unwrap_or_else(|e| panic!("{title}: {e}"));
            engine.restore_from_backup(DIR, DIR, &Default::default(), id).unwrap_or_else(|e| panic!("{title}: {e}"));
        }
    }

    /// Opens every table that the MANIFEST names.
    fn tables(&self) -> Vec<Arc<Table>> {
        let dir = Path::new(DIR);
        let order = |reverse| {
            let order: Arc<dyn Comparator> =
                if reverse { Arc::new(ReverseBytewiseComparator) } else { Arc::new(BytewiseComparator) };
            InternalKeyComparator::new(order)
        };
        let mut orders = |family: &str, _: &str| Ok((order(self.reverse(family)), 7));
        let state = recover_manifest(&*self.fs, dir, &|_| Arc::default(), &mut orders)
            .unwrap_or_else(|e| panic!("{}: {e}", self.case.title()));
        let mut all = Vec::new();
        for cf in &state.column_families {
            for file in cf.version.levels.iter().flatten() {
                let cmp = order(self.reverse(&cf.name));
                let largest_seqno = Some(file.entry.largest_seqno);
                let table = open_table(&*self.fs, &TableDirs::one(dir), &file.entry, &cmp, largest_seqno);
                all.push(table.unwrap_or_else(|e| panic!("{}: {e}", self.case.title())));
            }
        }
        all
    }

    fn verify_tables(&self) {
        for table in self.tables() {
            table.verify().unwrap_or_else(|e| panic!("{}: {e}", self.case.title()));
        }
    }
}

/// Compares all contents with the expected ones, with every way of reading.
fn compare(home: &Home, db: &Db, expected: &BTreeMap<String, Entries>, when: &str) {
    for (name, entries) in expected {
        let what = format!("{}, {name}, {when}", home.case.title());
        let found = try_read(db, name).unwrap_or_else(|e| panic!("{what}: {e}"));
        same(&what, entries, &found);
        let cf = db.cf_handle(name).expect("opened");
        for (key, value) in entries {
            let found = db.get_cf(&cf, key).unwrap_or_else(|e| panic!("{what}: {e}"));
            assert_eq!(found.as_ref(), Some(value), "{what}: get of {}", key.escape_ascii());
        }
    }
}

/// Writes with Rockmill, and changes the expected contents accordingly.
fn write(home: &Home, db: &Db, expected: &mut BTreeMap<String, Entries>) {
    for (name, entries) in expected {
        let cf = db.cf_handle(name).expect("opened");
        let mut model: BTreeMap<_, _> = std::mem::take(entries).into_iter().collect();
        let old: Vec<Vec<u8>> = model.keys().step_by(4).cloned().collect();
        let operator = home.case.operators.get(name).map(String::as_str);
        for (i, key) in old.into_iter().enumerate() {
            match (operator, i % 3) {
                (_, 0) => {
                    db.delete_cf(&cf, &key).expect("delete");
                    model.remove(&key);
                }
                (Some("StringAppendOperator"), _) => {
                    db.merge_cf(&cf, &key, b"more").expect("merge");
                    model.get_mut(&key).expect("there").extend_from_slice(b",more");
                }
                (Some(_), _) => {
                    db.merge_cf(&cf, &key, 1000u64.to_le_bytes()).expect("merge");
                    let value = model.get_mut(&key).expect("there");
                    let sum = u64::from_le_bytes(value.as_slice().try_into().expect("a number")) + 1000;
                    *value = sum.to_le_bytes().to_vec();
                }
                _ => {
                    db.put_cf(&cf, &key, b"written by Rockmill").expect("put");
                    model.insert(key, b"written by Rockmill".to_vec());
                }
            }
        }
        for n in 0..30 {
            let key = format!("key-new{n:03}").into_bytes();
            let value = n.to_string().repeat(8).into_bytes()[..8].to_vec();
            db.put_cf(&cf, &key, &value).expect("put");
            model.insert(key, value);
        }
        if !home.reverse(name) {
            db.delete_range_cf(&cf, b"key-new010", b"key-new020").expect("delete_range");
            model.retain(|k, _| !(b"key-new010".as_slice()..b"key-new020".as_slice()).contains(&k.as_slice()));
        }
        *entries = model.into_iter().collect();
        if home.reverse(name) {
            entries.reverse();
        }
    }
}

/// Writes all tables again.
fn compact_all(db: &Db, families: &[String], title: &str) {
    let mut options = CompactOptions::default();
    options.set_bottommost_level_compaction(BottommostLevelCompaction::Force);
    for name in families {
        let cf = db.cf_handle(name).expect("opened");
        db.compact_range_cf_opt(&cf, None::<&[u8]>, None::<&[u8]>, &options)
            .unwrap_or_else(|e| panic!("{title}: compact {name}: {e}"));
    }
}

/// Reads, writes and compacts one database; returns its contents after that.
fn check(home: &Home) -> BTreeMap<String, Entries> {
    let title = home.case.title();
    let mut expected = home.case.contents.clone();
    let families = Db::list_cf(&home.options("default"), DIR).unwrap_or_else(|e| panic!("{title}: {e}"));
    for family in &families {
        expected.entry(family.clone()).or_default();
    }
    let shares = |db: &Db, family: &String| {
        let live = db.live_files().unwrap_or_else(|e| panic!("{title}: {e}"));
        live.iter().any(|f| f.column_family_name == *family && !f.pieces.is_empty())
    };
    let listed: BTreeSet<&String> = families.iter().collect();
    assert_eq!(listed, expected.keys().collect(), "{title}: column families");
    home.verify_tables();
    let before = home.files();
    compare(home, &home.open(&families, true), &expected, "read-only");
    assert!(before == home.files(), "{title}: reading changed a file");
    {
        let db = home.open(&families, false);
        compare(home, &db, &expected, "as it was");
        for name in &home.case.tph {
            assert!(shares(&db, name), "{title}: no table of {name} has several files");
        }
        write(home, &db, &mut expected);
        compare(home, &db, &expected, "written");
    }
    {
        let db = home.open(&families, false);
        compare(home, &db, &expected, "written and reopened");
        compact_all(&db, &families, &title);
        compare(home, &db, &expected, "compacted");
        for name in &home.case.tph {
            let cf = db.cf_handle(name).expect("opened");
            db.make_tables_whole_cf(&cf).unwrap_or_else(|e| panic!("{title}: {name}: {e}"));
            assert!(!shares(&db, name), "{title}: {name}");
        }
    }
    if !home.case.tph.is_empty() {
        // RocksDB reads TPH tables of one file, but a build with assertions aborts at their meta block when it verifies
        // checksums, so it gets block-based tables.
        let case = Case { tph: Vec::new(), ..home.case.clone() };
        let plain = Home { case, fs: Arc::clone(&home.fs) };
        compact_all(&plain.open(&families, false), &families, &title);
    }
    home.verify_tables();
    compare(home, &home.open(&families, false), &expected, "compacted and reopened");
    expected
}

/// Opens, reads all and compacts; returns the errors, each with the step where it occurred.
fn refusals(home: &Home) -> Vec<(&'static str, rockmill::Error)> {
    let families = match Db::list_cf(&home.options("default"), DIR) {
        Ok(families) => families,
        Err(e) => return vec![("list_cf", e)],
    };
    let mut errors = Vec::new();
    match home.try_open(&families, true) {
        Err(e) => errors.push(("read-only open", e)),
        Ok(db) => {
            let cf = db.cf_handle("default").expect("opened");
            errors.extend(try_read(&db, "default").err().map(|e| ("read-only read", e)));
            for key in [b"wide".as_slice(), b"timed", b"key000001"] {
                errors.extend(db.get_cf(&cf, key).err().map(|e| ("get", e)));
            }
        }
    }
    match home.try_open(&families, false) {
        Err(e) => errors.push(("open", e)),
        Ok(db) => {
            errors.extend(try_read(&db, "default").err().map(|e| ("read", e)));
            let cf = db.cf_handle("default").expect("opened");
            let backwards = db.iterator_cf(&cf, IteratorMode::End).find_map(Result::err);
            errors.extend(backwards.map(|e| ("read backwards", e)));
            let mut options = CompactOptions::default();
            options.set_bottommost_level_compaction(BottommostLevelCompaction::Force);
            let compacted = db.compact_range_cf_opt(&cf, None::<&[u8]>, None::<&[u8]>, &options);
            errors.extend(compacted.err().map(|e| ("compact", e)));
        }
    }
    errors
}

/// For an unsupported database: every access to its contents reports that, and no table changes.
fn check_refused(home: &Home, words: &str) {
    let title = home.case.title();
    let before = home.files();
    let errors = refusals(home);
    let for_writing = errors.iter().any(|(at, _)| ["list_cf", "open", "read"].contains(at));
    let everywhere = errors.len() >= 2 || errors.iter().any(|(at, _)| *at == "list_cf");
    assert!(everywhere && for_writing, "{title}: not refused everywhere: {errors:?}");
    for (at, e) in errors {
        println!("{title}: {at}: {e}");
        let message = e.message();
        let names_file = before.keys().any(|name| message.contains(name.as_str()));
        assert!(names_file && message.contains(words), "{title}: {at}: no file, or no {words:?}, in: {e}");
        assert_eq!(e.kind(), ErrorKind::NotSupported, "{title}: {at}: {e}");
    }
    // The data is still there, for a RocksDB that knows the feature.
    let after = home.files();
    for (name, bytes) in before.iter().filter(|(name, _)| name.ends_with(".sst") || name.ends_with(".blob")) {
        assert!(after.get(name) == Some(bytes), "{title}: {name} changed");
    }
}

/// All names in RocksDB's OPTIONS file are known, and its defaults cause no warnings.
fn check_options(home: &Home) {
    let title = home.case.title();
    let mut loader = OptionsLoader::new();
    loader.file_system(Arc::clone(&home.fs) as Arc<dyn FileSystem>).ignore_unknown_options(true);
    match loader.load_latest(DIR) {
        Ok(loaded) => {
            let mut warnings: Vec<_> = loaded.warnings.iter().map(|w| format!("{title}: {w}")).collect();
            warnings.sort();
            warnings.dedup();
            for w in &warnings {
                println!("{w}");
            }
            let unknown: Vec<_> = warnings.iter().filter(|w| w.contains("not known")).collect();
            assert!(unknown.is_empty(), "{unknown:#?}");
            // Old versions had other defaults than today.
            if home.case.name == "defaults" && home.case.rocksdb().is_some_and(|v| v >= (6, 29)) {
                assert!(warnings.is_empty(), "{warnings:#?}");
            }
        }
        Err(e) if e.kind() == ErrorKind::NotFound => {
            let old = home.case.rocksdb().is_none_or(|v| v < (4, 3));
            assert!(old || home.case.is_backup || home.case.archive.contains("11.8.1-"), "{title}: {e}");
        }
        // A value that Rockmill cannot serve.
        Err(e) => assert_eq!(e.kind(), ErrorKind::NotSupported, "{title}: {e}"),
    }
}

/// Adds the commands with which RocksDB reads a database that Rockmill has changed.
fn judge_script(script: &mut Script, peer: Peer, case: &Case, path: &Path, families: &[String]) {
    script.line("reset");
    if case.ttl {
        script.line("ttl 0");
    }
    for family in families {
        let mut options = String::new();
        if let Some(length) = case.prefixes.get(family) {
            options += &format!("prefix_extractor=rocksdb.FixedPrefix.{length};");
        }
        let operator = case.operators.get(family);
        // The C API takes objects instead of names.
        if peer == Peer::Loaded {
            script.line(format!("cf {family} {options}"));
            operator.map(|operator| script.line(format!("operator {family} {operator}")));
            if case.reverse.contains(family) {
                script.line(format!("order {family} reverse"));
            }
            continue;
        }
        match operator.map(String::as_str) {
            Some("StringAppendOperator") => options += "merge_operator=stringappend;",
            Some("UInt64AddOperator") => options += "merge_operator=uint64add;",
            _ => {}
        }
        if case.reverse.contains(family) {
            options += "comparator=rocksdb.ReverseBytewiseComparator;";
        }
        script.line(format!("cf {family} {options}"));
    }
    if peer != Peer::Loaded {
        script.open(path).line("verify");
    } else {
        // Rockmill's OPTIONS files are for 7.8 and newer; before that the C API cannot load any.
        if case.rocksdb().is_some_and(|v| v >= (7, 8)) && !case.ttl {
            script.line(format!("load {}", path.display()));
        }
        script.open(path);
    }
    for family in families {
        script.line(format!("say {}/{family}", case.name)).line(format!("dump {family}"));
    }
    script.line("close");
}

/// Compares what RocksDB reads from the databases changed by Rockmill with the expected contents, in one process.
fn judge(archive: &str, driver: &Driver, left: &[(Home, BTreeMap<String, Entries>)]) {
    let dir = tempfile::tempdir().expect("a folder");
    let mut script = Script::new();
    let mut all = BTreeMap::new();
    for (home, expected) in left {
        let path = dir.path().join(&home.case.name);
        std::fs::create_dir_all(&path).expect("a folder");
        for (name, bytes) in home.files() {
            std::fs::write(path.join(name), bytes).expect("a file");
        }
        let families: Vec<String> = expected.keys().cloned().collect();
        judge_script(&mut script, driver.peer, &home.case, &path, &families);
        all.extend(expected.iter().map(|(family, entries)| (format!("{}/{family}", home.case.name), entries)));
    }
    let test = format!("{archive}, as RocksDB reads it");
    let Some(answer) = driver.answer(&test, &script) else { return };
    let mut read = 0;
    for (title, found) in answer.entries_by_title() {
        same(&format!("{test}: {title}"), all[title], &found);
        read += 1;
    }
    assert_eq!(read, all.len(), "{test}");
}

/// Where RocksDB's libraries of other releases are.
fn libraries() -> Result<PathBuf, Missing> {
    let named = std::env::var_os("ROCKMILL_ROCKSDB_LIBS").map(PathBuf::from);
    named.ok_or_else(|| Needs::Releases.because("ROCKMILL_ROCKSDB_LIBS names no libraries"))
}

/// Lets RocksDB read the databases changed by Rockmill: Debian's version, and the version that wrote them if its
/// library is available.
fn judge_all(archive: &str, left: &[(Home, BTreeMap<String, Entries>)]) {
    if left.is_empty() {
        return;
    }
    match Peer::Library.driver() {
        Ok(driver) => judge(archive, &driver, left),
        Err(missing) => skip(&format!("compat {archive}, as RocksDB reads it"), &missing),
    }
    let libraries = match libraries() {
        Ok(libraries) => libraries,
        Err(missing) => return wish(&format!("compat {archive}, as its own RocksDB reads it"), &missing),
    };
    let version = archive.split('-').nth(1).unwrap_or_default();
    // Tables of format_version 5, which Rockmill writes, are read from 6.6 on.
    if left[0].0.case.rocksdb().is_some_and(|v| v >= (6, 6)) {
        let driver = Driver::of_library(&libraries.join(format!("{version}.so"))).expect("the version's library");
        judge(&format!("{archive} with its own version"), &driver, left);
        println!("{archive}: RocksDB {version} reads what Rockmill left");
    }
}

/// Every case of an archive.
fn check_archive(archive: &str) {
    let index = archive::home().join(format!("{archive}.txt"));
    let index = std::fs::read_to_string(&index).unwrap_or_else(|e| panic!("{}: {e}", index.display()));
    let mut lines: Vec<String> = index.lines().filter(|l| !l.starts_with('#')).map(str::to_owned).collect();
    lines.sort();
    let cases = archive::cases(archive);
    let names = |case: &Case| case.contents.keys().cloned().collect::<Vec<_>>().join(" ");
    let mut found: Vec<String> = cases
        .iter()
        .map(|case| match &case.refused {
            Some(words) => format!("{} refused {words}", case.name),
            None => {
                let count = case.contents.values().map(Vec::len).sum::<usize>();
                let digest = archive::fnv1a(&case.contents_text);
                format!("{} entries {count} fnv1a {digest:016x} {}", case.name, names(case))
            }
        })
        .collect();
    found.sort();
    // Column families without entries are only in the index.
    for (line, found) in lines.iter().zip(&found) {
        let cut = |s: &str| s.split(' ').take(5).collect::<Vec<_>>().join(" ");
        assert_eq!(cut(line), cut(found), "{archive}: not what its index says");
    }
    assert_eq!(lines.len(), found.len(), "{archive}: not the cases of its index");
    let mut left = Vec::new();
    for case in &cases {
        let home = Home::new(case);
        if case.is_backup {
            home.restore();
        }
        check_options(&home);
        match &case.refused {
            Some(words) => check_refused(&home, words),
            None => {
                let expected = check(&home);
                left.push((home, expected));
            }
        }
    }
    judge_all(archive, &left);
}

/// Each available RocksDB from 6.6 on verifies and restores a backup that Rockmill made.
#[test]
fn backups_are_restored_by_other_versions() {
    let libraries = match libraries() {
        Ok(libraries) => libraries,
        Err(missing) => return skip("backups_are_restored_by_other_versions", &missing),
    };
    let dir = tempfile::tempdir().expect("a folder");
    let path = |name: &str| dir.path().join(name);
    let mut options = Options::default();
    options.create_if_missing(true);
    let db = Db::open(&options, path("db")).expect("a new database");
    let env = Env::new().expect("the system's");
    let engine = BackupEngine::open(&BackupEngineOptions::new(path("backups")).expect("options"), &env).expect("opens");
    let mut expected = Entries::new();
    for n in 0..200u32 {
        let entry = (format!("key{n:04}").into_bytes(), n.to_string().repeat(9).into_bytes());
        db.put(&entry.0, &entry.1).expect("put");
        expected.push(entry);
        if n == 70 {
            engine.create_new_backup_flush(&db, true).expect("a backup");
        }
    }
    // With data in the log that is in no table.
    engine.create_new_backup(&db).expect("a backup");
    let of_versions = archive::archives();
    let versions = of_versions.iter().filter_map(|a| a.strip_prefix("rocksdb-").filter(|v| !v.contains('-')));
    let mut tried = 0;
    for version in versions.filter(|v| !v.starts_with(['3', '4', '5']) && !v.starts_with("6.4")) {
        let driver = Driver::of_library(&libraries.join(format!("{version}.so"))).expect("the version's library");
        let (backups, to) = (path("backups"), path(version));
        let mut script = Script::new();
        for id in 1..=2 {
            script.line(format!("backup_verify {} {id}", backups.display()));
        }
        script.line(format!("restore {} {}", backups.display(), to.display()));
        script.open(&to).line("dump default");
        let answer = driver.answer(version, &script).expect("it has everything");
        same(&format!("a backup restored by RocksDB {version}"), &expected, &answer.entries());
        tried += 1;
    }
    assert!(tried >= 6, "{tried} versions");
}

/// One test for each archive, so that they run in parallel.
macro_rules! archives {
    ($($test:ident $archive:literal)*) => {
        $(#[test]
        fn $test() {
            check_archive($archive);
        })*

        #[test]
        fn every_archive_has_a_test() {
            let tested: BTreeSet<String> = [$($archive.to_owned()),*].into();
            assert_eq!(archive::archives().into_iter().collect::<BTreeSet<_>>(), tested);
        }
    };
}

archives! {
    rockmill_0_1_0 "rockmill-0.1.0"
    rockmill_0_1_0_tph "rockmill-0.1.0-tph"
    rocksdb_3_13 "rocksdb-3.13.1"
    rocksdb_4_13 "rocksdb-4.13.5"
    rocksdb_5_0 "rocksdb-5.0.1"
    rocksdb_5_18 "rocksdb-5.18.4"
    rocksdb_6_4 "rocksdb-6.4.6"
    rocksdb_6_29 "rocksdb-6.29.5"
    rocksdb_7_8 "rocksdb-7.8.3"
    rocksdb_7_10 "rocksdb-7.10.2"
    rocksdb_8_11 "rocksdb-8.11.4"
    rocksdb_9_11 "rocksdb-9.11.2"
    rocksdb_10_10 "rocksdb-10.10.1.1"
    rocksdb_11_8 "rocksdb-11.8.1"
    rocksdb_11_8_features "rocksdb-11.8.1-features"
    rocksdb_11_8_tables "rocksdb-11.8.1-tables"
}

/// Opening a database without a time to live as one with it gives an error that names the database.
#[test]
fn values_without_a_time_are_named_with_their_database() {
    let mut home = Home::new(&Case::default());
    let families = ["default".to_owned()];
    let mut options = home.options("default");
    options.create_if_missing(true);
    Db::open(&options, DIR).expect("a new database").put(b"key", b"1").expect("put");
    home.case.ttl = true;
    let db = home.open(&families, true);
    let e = db.get(b"key").expect_err("no time behind the value");
    assert!(e.message().contains(DIR) && e.message().contains("key"), "{e}");
    let e = db.iterator(IteratorMode::Start).find_map(Result::err).expect("no time behind the value");
    assert!(e.message().contains(DIR) && e.message().contains("time to live"), "{e}");
}

/// Cases with the same name have the same contents, regardless of their writer.
#[test]
fn versions_agree_about_contents() {
    let mut seen: BTreeMap<(String, String), (String, Entries)> = BTreeMap::new();
    let of_versions = archive::archives().into_iter().filter(|a| a.starts_with("rocksdb-") && !a.contains("11.8.1-"));
    for archive in of_versions {
        // That version's API could ingest less.
        let cases =
            archive::cases(&archive).into_iter().filter(|c| !(archive == "rocksdb-5.0.1" && c.name == "ingested"));
        for case in cases {
            for (family, entries) in case.contents {
                let first =
                    seen.entry((case.name.clone(), family.clone())).or_insert((archive.clone(), entries.clone()));
                same(&format!("{}/{family} of {} and {archive}", case.name, first.0), &first.1, &entries);
            }
        }
    }
    assert!(seen.len() > 60, "{} families", seen.len());
}
