//! The merge program of an open database is replaced; what is no program changes nothing.

use std::path::Path;
use std::sync::mpsc;

use rockmill_kernel::{MergeObject, Pool};

use super::own::{COUNTERS, EXPIRE, Expire, ExpireBefore, REVERSE, SUMS};
use super::*;
use crate::compaction_filter::{CompactionFilter, CompactionFilterContext, CompactionFilterFactory, Decision};
use crate::error::ErrorKind;
use crate::merge_operator::UInt64AddOperator;
use crate::{Db, LogLevel, Options};

const ENDLESS: &[u8] = include_bytes!("../../../../../../rockmill-kernel/bpf/tests/endless.bpf.o");

/// The job's clock.
const NOW: u64 = 1_700_000_000;

fn options() -> Options {
    let mut o = Options::default();
    o.create_if_missing(true);
    o.set_clock(Arc::new(ManualClock::new(NOW * 1_000_000)));
    o.set_merge_engine(MergeEngine::Kernel);
    o.set_compaction_filter_factory(Expire);
    o.set_disable_auto_compactions(true);
    o
}

/// Two overlapping tables of values, half of which have expired, and the whole merged; how many are left.
fn merged(db: &Db, round: u64) -> usize {
    for table in 0..2u64 {
        for i in 0..100u64 {
            let expires = if i % 2 == 0 { NOW + 1 } else { NOW - round };
            db.put(format!("{round}-{i:03}-{}", i + table), expires.to_be_bytes()).unwrap();
        }
        db.flush().unwrap();
    }
    db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
    db.iterator(crate::IteratorMode::Start).filter(|e| e.as_ref().unwrap().0.starts_with(&[b'0' + round as u8])).count()
}

fn engine(db: &Db) -> String {
    db.property_value("rockmill.merge-engine").unwrap().unwrap()
}

/// The program `expire` under another licence, so that its instances are one test's alone.
fn expire_under(licence: &[u8; 12]) -> Vec<u8> {
    let mut bytes = EXPIRE.to_vec();
    let at = bytes.windows(12).position(|w| w == b"Dual MIT/GPL").unwrap();
    bytes[at..at + 12].copy_from_slice(licence);
    bytes
}

/// Idle instances of a program.
fn idle(object: &[u8]) -> usize {
    let object = MergeObject::read("own.o", object).unwrap();
    Pool::shared().idle(object.program(rockmill_kernel::Driver::Run).unwrap())
}

fn set(db: &Db, path: &Path) -> Result<()> {
    db.set_options(&[("kernel_merge_program", path.to_str().unwrap())])
}

#[test]
fn a_program_is_replaced_while_the_database_is_open() {
    if !kernel_is_there() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let expire = dir.path().join("expire.o");
    let bytes = expire_under(b"Dual BSD/GPL");
    std::fs::write(&expire, &bytes).unwrap();
    let path = dir.path().join("db");
    let db = Db::open(&options(), &path).unwrap();
    assert_eq!(engine(&db), "kernel, driver run");
    assert_eq!(merged(&db, 1), 100);
    set(&db, &expire).unwrap();
    let text = format!("kernel, driver run, program {} (filter rockmill.Expire)", expire.display());
    assert_eq!(engine(&db), text);
    assert!(db.property_value("rocksdb.stats").unwrap().unwrap().contains(&text));
    assert_eq!(db.get_options().db.kernel_merge_program, expire);
    // The file is not looked at again.
    std::fs::remove_file(&expire).unwrap();
    assert_eq!(merged(&db, 2), 100);
    assert!(idle(&bytes) > 0);
    db.set_db_options(&[("kernel_merge_program", "builtin")]).unwrap();
    assert_eq!((engine(&db), idle(&bytes)), ("kernel, driver run".to_owned(), 0));
    assert_eq!(merged(&db, 3), 100);
    drop(db);
    let log = std::fs::read_to_string(path.join("LOG")).unwrap();
    assert!(log.contains("expire.o (filter rockmill.Expire), driver run: the verifier went over"), "{log}");
    assert!(log.contains("merge program builtin"));
    // It is Rockmill's own: RocksDB would not know it.
    let names = std::fs::read_dir(&path).unwrap().map(|e| e.unwrap().path());
    let stored: Vec<_> = names.filter(|p| p.to_str().unwrap().contains("OPTIONS")).collect();
    assert!(stored.iter().all(|p| !std::fs::read_to_string(p).unwrap().contains("kernel_merge")), "{stored:?}");
}

/// Counters are read as they were written, whichever program merged them, while they are exchanged.
#[test]
fn a_program_that_sums_counters_comes_and_goes_while_the_database_is_open() {
    if !kernel_is_there() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let counters = dir.path().join("counters.o");
    std::fs::write(&counters, COUNTERS).unwrap();
    let mut o = Options::default();
    o.create_if_missing(true);
    o.set_merge_engine(MergeEngine::Kernel);
    o.set_merge_operator_object(Arc::new(UInt64AddOperator));
    o.set_disable_auto_compactions(true);
    let db = Db::open(&o, dir.path().join("db")).unwrap();
    let mut sums = [0u64; 50];
    let mut snapshots = Vec::new();
    for round in 0..6u64 {
        let program = if round % 2 == 0 { counters.as_path() } else { Path::new("builtin") };
        set(&db, program).unwrap();
        let named = engine(&db).contains("counters.o (merge operator UInt64AddOperator)");
        assert_eq!(named, round % 2 == 0, "{}", engine(&db));
        for table in 0..3u64 {
            for (i, sum) in sums.iter_mut().enumerate() {
                for n in 0..5 {
                    let add = round * 1000 + table * 100 + n;
                    db.merge(format!("counter{i:03}"), add.to_le_bytes()).unwrap();
                    *sum += add;
                }
            }
            if table == 1 {
                snapshots.push((db.snapshot(), sums));
            }
            db.flush().unwrap();
        }
        db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
        let number = |v: Option<Vec<u8>>| u64::from_le_bytes(v.unwrap().try_into().unwrap());
        for (i, sum) in sums.iter().enumerate() {
            let key = format!("counter{i:03}");
            assert_eq!(number(db.get(&key).unwrap()), *sum, "round {round}");
            for (snapshot, sums) in &snapshots {
                assert_eq!(number(snapshot.get(&key).unwrap()), sums[i], "round {round}");
            }
        }
    }
    assert_eq!(db.engine_parts().handed_over, 0, "no part went to another engine");
}

/// The tables of a database, by name.
fn tables(dir: &Path) -> std::collections::BTreeMap<String, Vec<u8>> {
    let files = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
    let tables = files.filter(|p| p.extension().is_some_and(|e| e == "sst"));
    tables.map(|p| (p.file_name().unwrap().to_str().unwrap().to_owned(), std::fs::read(p).unwrap())).collect()
}

/// Programs with the built-in loop and with one of their own replace each other. The tables are, byte for byte, those
/// of a database that the twin alone merges.
#[test]
fn the_merge_is_replaced_as_a_whole_while_the_database_is_open() {
    if !kernel_is_there() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let programs = [("sums.o", SUMS), ("counters.o", COUNTERS), ("builtin", &[])].map(|(name, bytes)| {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        if bytes.is_empty() { Path::new("builtin").to_owned() } else { path }
    });
    let open = |name: &str, engine| {
        let mut o = Options::default();
        o.create_if_missing(true);
        o.set_clock(Arc::new(ManualClock::new(NOW * 1_000_000)));
        o.set_reproducible(true);
        o.set_merge_engine(engine);
        o.set_kernel_driver(kernel_driver());
        o.set_merge_operator_object(Arc::new(UInt64AddOperator));
        o.set_disable_auto_compactions(true);
        Db::open(&o, dir.path().join(name)).unwrap()
    };
    let (db, twin) = (open("db", MergeEngine::Kernel), open("twin", MergeEngine::Pread));
    let mut rng = fastrand::Rng::with_seed(1);
    let mut snapshots = Vec::new();
    for round in 0..9 {
        for db in [&db, &twin] {
            // Each change takes a file number, for OPTIONS.
            set(db, &programs[round % 3]).unwrap();
        }
        let named = ["sums.o (own loop, merge operator UInt64AddOperator)", "counters.o (merge operator", ""];
        let (engine, is_named) = (engine(&db), round % 3 < 2);
        assert!(engine.contains(named[round % 3]) && engine.contains("program") == is_named, "{engine}");
        for _ in 0..3 {
            for _ in 0..500 {
                let (key, number) = (format!("counter{:03}", rng.u32(0..150)), rng.u64(0..1000).to_le_bytes());
                let kind = rng.u8(0..20);
                for db in [&db, &twin] {
                    match kind {
                        0 => db.delete(&key).unwrap(),
                        1..5 => db.put(&key, number).unwrap(),
                        _ => db.merge(&key, number).unwrap(),
                    }
                }
            }
            if rng.bool() {
                snapshots.extend([db.snapshot(), twin.snapshot()]);
            }
            for db in [&db, &twin] {
                db.flush().unwrap();
            }
        }
        for db in [&db, &twin] {
            db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
        }
        let [ours, twins] = ["db", "twin"].map(|name| tables(&dir.path().join(name)));
        assert!(!ours.is_empty() && ours == twins, "round {round}: {:?}, {:?}", ours.keys(), twins.keys());
    }
    assert_eq!(db.engine_parts().handed_over, 0, "no part went to another engine");
}

#[test]
fn what_is_no_program_is_refused_and_the_one_before_stays() {
    if !kernel_is_there() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let expire = file("expire.o", EXPIRE);
    let mut other = REVERSE.to_vec();
    let at = other.windows(8).position(|w| w == b"rocksdb.").unwrap();
    other[at - 4] = 77;
    let bad = [
        (dir.path().join("missing.o"), "No such file"),
        (file("garbage.o", &[0x5a; 10_000]), "no 64-bit little-endian ELF file for BPF"),
        (file("short.o", &EXPIRE[..2000]), "not a program that can be loaded"),
        (file("empty.o", b""), "no 64-bit little-endian ELF file for BPF"),
        (file("version.o", &other), "it was made for version 77 of the interface"),
        (file("endless.o", ENDLESS), "the kernel's verifier refuses the merge program"),
    ];
    let mut o = options();
    o.set_kernel_merge_program(&expire);
    o.set_log_level(LogLevel::Debug);
    let db = Db::open(&o, dir.path().join("db")).unwrap();
    let before = engine(&db);
    assert!(before.contains("expire.o (filter rockmill.Expire)"), "{before}");
    for (i, (path, why)) in bad.iter().enumerate() {
        let e = match i % 2 {
            // Nothing else changes either.
            0 => db.set_options(&[("kernel_merge_program", path.to_str().unwrap()), ("write_buffer_size", "77777")]),
            _ => db.set_db_options(&[("kernel_merge_program", path.to_str().unwrap()), ("max_background_jobs", "7")]),
        };
        let e = e.expect_err(why);
        let named = format!("kernel_merge_program {}: ", path.display());
        assert!(e.message().contains(&named) && e.message().contains(why), "{e}");
        assert_eq!(e.kind(), ErrorKind::InvalidArgument);
        assert_eq!(engine(&db), before);
        let now = db.get_options();
        assert!(now.cf.write_buffer_size != 77777 && now.db.max_background_jobs != 7);
        // An open is as strict.
        let mut o = options();
        o.set_kernel_merge_program(path);
        let e = Db::open(&o, dir.path().join("other")).map(drop).expect_err(why);
        assert!(e.message().contains(&named) && e.message().contains(why), "{e}");
    }
    assert_eq!((merged(&db, 1), engine(&db)), (100, before));
    drop(db);
    let log = std::fs::read_to_string(dir.path().join("db/LOG")).unwrap();
    assert!(!log.contains("another engine"), "{log}");
    // What the verifier said of the endless one is there, each line of it, for those who want it.
    assert!(log.matches("verifier: ").count() > 2, "{log}");
    // With another engine, the kernel is not asked at open; as soon as the engine is to be used, it is.
    let mut o = options();
    o.set_merge_engine(MergeEngine::Pread);
    o.set_kernel_merge_program(&bad[5].0);
    let db = Db::open(&o, dir.path().join("pread")).unwrap();
    let e = db.set_options(&[("merge_engine", "kernel")]).expect_err("a program that is refused");
    assert!(e.message().contains("verifier refuses"), "{e}");
    assert_eq!(engine(&db), "pread");
    db.set_options(&[("merge_engine", "kernel"), ("kernel_merge_program", "")]).unwrap();
    assert_eq!(engine(&db), "kernel, driver run");
    // The log is whole when the database is closed.
    drop(db);
    let log = std::fs::read_to_string(dir.path().join("pread/LOG")).unwrap();
    assert!(!log.contains("verifier: "), "only at level debug: {log}");
    // One that came as bytes is there by its name.
    let mut o = options();
    o.set_kernel_merge_program_object("mine", EXPIRE);
    let db = Db::open(&o, dir.path().join("bytes")).unwrap();
    let given = engine(&db);
    assert!(given.contains("mine (filter rockmill.Expire)"), "{given}");
    db.set_options(&[("kernel_merge_program", "builtin")]).unwrap();
    assert_eq!(engine(&db), "kernel, driver run");
    db.set_options(&[("kernel_merge_program", "mine")]).unwrap();
    assert_eq!((engine(&db), merged(&db, 2)), (given, 100));
    let e = db.set_options(&[("kernel_merge_program", "yours")]).expect_err("neither a name nor a file");
    assert!(e.message().contains("No such file"), "{e}");
}

/// [`Expire`], which stops at an operand until it may go on.
struct Waiting(mpsc::Sender<()>, Arc<Mutex<mpsc::Receiver<()>>>);

struct WaitingFilter(ExpireBefore, mpsc::Sender<()>, Arc<Mutex<mpsc::Receiver<()>>>);

impl CompactionFilterFactory for Waiting {
    type Filter = WaitingFilter;

    fn create(&mut self, context: CompactionFilterContext) -> WaitingFilter {
        WaitingFilter(Expire.create(context), self.0.clone(), Arc::clone(&self.1))
    }

    fn name(&self) -> &str {
        Expire.name()
    }
}

impl CompactionFilter for WaitingFilter {
    fn filter(&mut self, level: u32, key: &[u8], value: &[u8]) -> Decision {
        self.0.filter(level, key, value)
    }

    fn filter_merge_operand(&mut self, _: u32, _: &[u8], _: &[u8]) -> Decision {
        self.1.send(()).unwrap();
        let _ = self.2.lock().recv();
        Decision::Keep
    }

    fn name(&self) -> &str {
        self.0.name()
    }
}

#[test]
fn a_job_that_runs_ends_with_the_program_that_it_began_with() {
    if !kernel_is_there() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let expire = dir.path().join("expire.o");
    let bytes = expire_under(b"Dual MPL/GPL");
    std::fs::write(&expire, &bytes).unwrap();
    let ((reached, at_operand), (go_on, may_go)) = (mpsc::channel(), mpsc::channel());
    let mut o = options();
    o.set_compaction_filter_factory(Waiting(reached, Arc::new(Mutex::new(may_go))));
    o.set_merge_operator_associative("append", |_, _, operands| Some(operands.iter().flatten().copied().collect()));
    o.set_kernel_merge_program(&expire);
    let db = Db::open(&o, dir.path().join("db")).unwrap();
    db.merge("0-first", b"operand").unwrap();
    std::thread::scope(|scope| {
        let job = scope.spawn(|| merged(&db, 1));
        at_operand.recv().unwrap();
        assert_eq!(idle(&bytes), 0);
        set(&db, Path::new("builtin")).unwrap();
        assert_eq!(engine(&db), "kernel, driver run");
        drop(go_on);
        assert_eq!(job.join().unwrap(), 100);
    });
    // Its instance came back, to be let go.
    assert_eq!((idle(&bytes), engine(&db)), (0, "kernel, driver run".to_owned()));
}

/// Run it without CAP_BPF: `setpriv --bounding-set=-bpf,-sys_admin`.
#[test]
fn where_the_kernel_runs_no_programs_an_open_does_without_and_a_change_is_refused() {
    if kernel_is_there() {
        return skip("a program of one's own where the kernel runs none", &Needs::NoKernel.because("this one does"));
    }
    let dir = tempfile::tempdir().unwrap();
    let expire = dir.path().join("expire.o");
    std::fs::write(&expire, EXPIRE).unwrap();
    let mut o = options();
    o.set_kernel_merge_program(&expire);
    let db = Db::open(&o, dir.path().join("db")).unwrap();
    let before = engine(&db);
    assert!(before.contains("for want of kernel: "), "{before}");
    assert_eq!(merged(&db, 1), 100, "the filter of the same name does it");
    let e = set(&db, &expire).expect_err("nobody can look at it");
    assert!(e.message().contains(&format!("kernel_merge_program {}: ", expire.display())), "{e}");
    let e = set(&db, &dir.path().join("missing.o")).expect_err("a missing file");
    assert!(e.message().contains("No such file"), "{e}");
    set(&db, Path::new("builtin")).unwrap();
    assert_eq!(engine(&db), before);
}
