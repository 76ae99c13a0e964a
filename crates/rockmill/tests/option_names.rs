//! Names of objects in OPTIONS files, which tools without these objects must keep there.

mod oracle;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use oracle::{run_tool, tool};
use rockmill::merge_operator::MaxOperator;
use rockmill::{CompactionDecision, Db, MergeOperands, Options, OptionsLoader, SliceTransform};
use rockmill_io::{FileSystem, MemFileSystem};
use rockmill_skip::skip;

fn options_files(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
    let mut files: Vec<PathBuf> =
        entries.filter(|p| p.file_name().unwrap().to_string_lossy().starts_with("OPTIONS-")).collect();
    files.sort();
    files
}

/// Objects that only the owner of a database has: a tool that opens it without them keeps their names in the file.
fn with_own_objects() -> Options {
    let mut o = Options::default();
    o.create_if_missing(true);
    o.set_merge_operator_associative("own.Concat", |_: &[u8], old: Option<&[u8]>, operands: &MergeOperands<'_>| {
        let mut value = old.unwrap_or_default().to_vec();
        operands.iter().for_each(|operand| value.extend_from_slice(operand));
        Some(value)
    });
    o.set_compaction_filter("own.Keep", |_, _, _| CompactionDecision::Keep);
    o.set_prefix_extractor(SliceTransform::create("own.Prefix", |key| &key[..key.len().min(2)], None));
    o
}

#[test]
fn objects_that_are_not_given_keep_their_names_in_the_options_file() {
    const TEST: &str = "objects_that_are_not_given_keep_their_names_in_the_options_file";
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let db = Db::open(&with_own_objects(), &path).unwrap();
    db.merge("m", "1").unwrap();
    db.flush().unwrap();
    drop(db);
    // Two that Rockmill never makes, as RocksDB writes them, and a filter that Rockmill reads but does not write.
    let file = options_files(&path).pop().unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    let text = text
        .replace("[CFOptions \"default\"]", "[CFOptions \"default\"]\n  sst_partitioner_factory={id=own.Parts;len=3;}")
        .replace("filter_policy=nullptr", "filter_policy=ribbonfilter:10:2");
    std::fs::write(&file, text).unwrap();
    let names = [
        "merge_operator=own.Concat",
        "compaction_filter=own.Keep",
        "prefix_extractor=own.Prefix",
        "sst_partitioner_factory={id=own.Parts;len=3;}",
        "filter_policy=ribbonfilter:10:2",
    ];
    let missing = || -> Vec<&str> {
        let text = std::fs::read_to_string(options_files(&path).pop().unwrap()).unwrap();
        names.into_iter().filter(|name| !text.lines().any(|line| line.trim() == *name)).collect()
    };
    assert_eq!(missing(), [""; 0], "the case is made");

    for round in 0..3 {
        let loaded = OptionsLoader::new().load_latest(&path).unwrap();
        assert!(loaded.warnings.iter().any(|w| w.value == "own.Concat"), "{:?}", loaded.warnings);
        let db = Db::open_cf_descriptors(&loaded.options, &path, loaded.column_families).unwrap();
        db.put("k", round.to_string()).unwrap();
        db.set_options(&[("level0_file_num_compaction_trigger", "9")]).unwrap();
        drop(db);
        assert_eq!(missing(), [""; 0], "round {round}");
    }
    if let Ok(ldb) = tool("ldb").inspect_err(|e| skip(TEST, e)) {
        let db = format!("--db={}", path.display());
        assert_eq!(run_tool(&ldb, &[db.as_str(), "--try_load_options", "get", "k"]).unwrap().trim(), "2");
    }

    // Their owner finds the database unchanged; another operator is still refused.
    let mut other = with_own_objects();
    other.set_merge_operator_object(Arc::new(MaxOperator));
    let e = Db::open(&other, &path).unwrap_err();
    assert!(e.message().contains("own.Concat"), "{e}");
    let db = Db::open(&with_own_objects(), &path).unwrap();
    db.merge("m", "2").unwrap();
    assert_eq!(db.get("m").unwrap().as_deref(), Some(&b"12"[..]));
    drop(db);

    // An explicit setting counts, also an explicit "none".
    let loaded = OptionsLoader::new().load_latest(&path).unwrap();
    let db = Db::open_cf_descriptors(&loaded.options, &path, loaded.column_families).unwrap();
    db.set_options(&[("prefix_extractor", "nullptr")]).unwrap();
    drop(db);
    assert!(missing().contains(&"prefix_extractor=own.Prefix"));
}

/// Options of earlier versions may be in files and strings. They have no effect, and are not written again.
#[test]
fn options_that_are_gone_are_taken_and_do_nothing() {
    let gone = [("kernel_reads_in_place", "true"), ("compaction_io_sqpoll_idle_ms", "50")];
    let dir = tempfile::tempdir().unwrap();
    let mut o = Options::default();
    o.create_if_missing(true);
    drop(Db::open(&o, dir.path()).unwrap());
    let newest = || options_files(dir.path()).pop().unwrap();
    let lines: String = gone.iter().map(|(name, value)| format!("\n  {name}={value}")).collect();
    let text = std::fs::read_to_string(newest()).unwrap().replace("[DBOptions]", &format!("[DBOptions]{lines}"));
    std::fs::write(newest(), text).unwrap();

    let loaded = OptionsLoader::new().load_latest(dir.path()).unwrap();
    assert_eq!(loaded.warnings, []);
    let db = Db::open_cf_descriptors(&loaded.options, dir.path(), loaded.column_families).unwrap();
    let written = std::fs::read_to_string(newest()).unwrap();
    for (name, value) in gone {
        assert!(!written.contains(name), "{written}");
        Options::from_string(&Options::default(), &format!("{name}={value}")).unwrap();
        // Changing such an option of an open database is an error, because nothing would change.
        let e = db.set_db_options(&[(name, value)]).unwrap_err();
        assert!(e.message().contains(&format!("option {name:?} has no effect")), "{e}");
    }
}

/// Owners with some of their objects and tools without any open a database in turn: its OPTIONS file names the last
/// owner's objects, and explicit settings since then.
#[test]
fn names_in_the_options_file_are_the_last_owners() {
    const OBJECTS: [&str; 3] = ["merge_operator", "compaction_filter", "prefix_extractor"];
    let (mut tools, seed) = (0, 20_261_123);
    let mut rng = fastrand::Rng::with_seed(seed);
    for history in 0..40 {
        let fs = MemFileSystem::new();
        let path = Path::new("/db");
        let newest = || -> String {
            let names = fs.list_dir(path).unwrap();
            let newest = names.into_iter().filter(|n| n.starts_with("OPTIONS-") && !n.ends_with("tmp")).max().unwrap();
            String::from_utf8(fs.read_to_vec(&path.join(newest)).unwrap()).unwrap()
        };
        let mut expected: Option<[&str; 3]> = None;
        for step in 0..12 {
            let db = match expected {
                Some(_) if rng.bool() => {
                    tools += 1;
                    let mut loader = OptionsLoader::new();
                    loader.file_system(Arc::new(fs.clone()));
                    if rng.bool() {
                        loader.merge_operator(with_own_objects().cf.merge_operator.unwrap());
                    }
                    let loaded = loader.load_latest(path).unwrap();
                    Db::open_cf_descriptors(&loaded.options, path, loaded.column_families).unwrap()
                }
                _ => {
                    let (mut o, all) = (Options::default(), with_own_objects());
                    o.create_if_missing(true);
                    o.set_file_system(Arc::new(fs.clone()));
                    let mut names = ["nullptr"; 3];
                    if rng.bool() {
                        (o.cf.merge_operator, names[0]) = (all.cf.merge_operator, "own.Concat");
                    }
                    if rng.bool() {
                        (o.cf.compaction_filter, names[1]) = (all.cf.compaction_filter, "own.Keep");
                    }
                    if rng.bool() {
                        (o.cf.prefix_extractor, names[2]) = (all.cf.prefix_extractor, "own.Prefix");
                    }
                    expected = Some(names);
                    Db::open(&o, path).unwrap()
                }
            };
            let said = match rng.u8(..4) {
                0 => Some(("capped:3", "rocksdb.CappedPrefix.3")),
                1 => Some(("nullptr", "nullptr")),
                2 => {
                    db.set_options(&[("level0_file_num_compaction_trigger", "7")]).unwrap();
                    None
                }
                _ => None,
            };
            if let (Some((text, name)), Some(names)) = (said, &mut expected) {
                db.set_options(&[("prefix_extractor", text)]).unwrap();
                names[2] = name;
            }
            drop(db);
            let text = newest();
            for (option, name) in OBJECTS.iter().zip(expected.unwrap()) {
                let line = format!("{option}={name}");
                let stands = text.lines().any(|l| l.trim() == line);
                assert!(stands, "seed {seed}, history {history}, step {step}: no {line} in {text}");
            }
        }
    }
    assert!(tools > 100, "{tools}");
}
