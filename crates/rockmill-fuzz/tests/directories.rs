//! Random directories, harmed by `rockmill_fuzz::hostile`. The test performs every operation that the library has for a
//! directory. Nothing outside the directory may change, and nothing may hang, panic, or take memory beyond a bound.
//!
//! Prints its seed; `ROCKMILL_SEED` repeats a run, `ROCKMILL_FUZZ_SECONDS` makes it longer.

use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use rockmill::backup::{BackupEngine, BackupEngineOptions};
use rockmill::merge_operator::StringAppendOperator;
use rockmill::{Checkpoint, Db, Env, IteratorMode, Options, OptionsLoader};
use rockmill_fuzz::hostile::Hostile;
use rockmill_fuzz::memory::{self, Counted};
use rockmill_fuzz::mutate::Dice;
use rockmill_fuzz::{crafted, fixtures};

#[global_allocator]
static ALLOCATOR: Counted = Counted;

/// Limit for the memory of a case in bytes; its files have far fewer.
const MEMORY: usize = 48 << 20;
/// Limit for the processor time of a case, for all its threads together; debug builds are slow.
const TIME: Duration = Duration::from_secs(40);
/// After this wall-clock time, a case is assumed to hang.
const HANG: Duration = Duration::from_secs(120);

fn options() -> Options {
    let mut options = Options::default();
    options.set_merge_operator_object(Arc::new(StringAppendOperator::default()));
    options
}

/// The stored options, without paths that lead out of the directory: what a program does that opens other people's
/// data.
fn kept_inside(mut options: Options, dir: &Path) -> Options {
    let paths = options.values().into_iter().filter(|o| o.name == "wal_dir" || o.name == "db_log_dir");
    let out = |path: &str| !path.is_empty() && Db::check_stored_path(&Options::default(), dir, path).is_err();
    let leads_out: Vec<String> = paths.filter(|o| out(&o.value)).map(|o| o.name.to_string()).collect();
    for name in leads_out {
        match &*name {
            "wal_dir" => options.set_wal_dir(""),
            _ => options.set_db_log_dir(""),
        }
    }
    options
}

/// Performs every operation on a directory. Errors are valid answers.
fn operate(dice: &mut Dice<'_>, root: &Path) {
    let (dir, backups) = (root.join("db"), root.join("backups"));
    let given = match OptionsLoader::new().load_latest(&dir) {
        Ok(loaded) if dice.once_in(2) => kept_inside(loaded.options, &dir),
        _ => options(),
    };
    let names = Db::list_cf(&given, &dir).unwrap_or_else(|_| vec!["default".to_owned(), "other".to_owned()]);
    let read = |db: &Db| {
        for name in db.cf_names() {
            let Some(cf) = db.cf_handle(&name) else { continue };
            let _ = db.iterator_cf(&cf, IteratorMode::Start).take(10_000).filter_map(Result::ok).count();
            let _ = db.get_cf(&cf, b"key0001");
        }
        let _ = db.property_value("rocksdb.stats");
    };
    let _ = Db::open_cf_for_read_only(&given, &dir, &names, false).map(|db| read(&db));
    if let Ok(db) = Db::open_cf_as_secondary(&given, &dir, root.join("made/secondary"), &names) {
        read(&db);
        let _ = db.try_catch_up_with_primary();
        read(&db);
    }
    let engine = BackupEngineOptions::new(&backups).and_then(|o| BackupEngine::open(&o, &Env::new()?));
    if let Ok(db) = Db::open_cf(&given, &dir, &names) {
        read(&db);
        let _ = db.put(b"new", b"new").and_then(|()| db.flush());
        let _ = db.compact_range(None::<&[u8]>, None::<&[u8]>);
        let _ = Checkpoint::new(&db).and_then(|c| c.create_checkpoint(root.join("made/checkpoint")));
        if let Ok(engine) = &engine {
            let _ = engine.create_new_backup(&db);
        }
        let _ = db.wait_for_background_work();
    }
    if let Ok(engine) = &engine {
        for backup in engine.get_backup_info() {
            let _ = engine.verify_backup_with_checksum(backup.backup_id);
        }
        let to = root.join("made/restored");
        let _ = engine.restore_from_latest_backup(&to, &to, &Default::default());
        let _ = engine.purge_old_backups(1);
    }
    let _ = Db::repair(&options(), &dir);
    let _ = Db::open_cf_for_read_only(&options(), &dir, &names, false).map(|db| read(&db));
}

/// Runs one case. Returns the harm to the directory, and the broken promises, if any.
fn case(seed: u64) -> (String, Vec<String>) {
    let bytes = seed.to_le_bytes();
    let mut dice = Dice::new(&bytes);
    let root = tempfile::tempdir().expect("a directory");
    let hostile = Hostile::new(&mut dice, root.path());
    let mut broken = Vec::new();
    if std::panic::catch_unwind(AssertUnwindSafe(|| operate(&mut dice, root.path()))).is_err() {
        broken.push("a panic".to_owned());
    }
    broken.extend(hostile.broken());
    (hostile.what, broken)
}

#[test]
fn operations_on_a_hostile_directory_change_nothing_outside_of_it() {
    let given = std::env::var("ROCKMILL_SEED").ok().and_then(|s| s.parse().ok());
    let seconds = std::env::var("ROCKMILL_FUZZ_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(10.0);
    let _ = (fixtures::all(), fixtures::backups(), crafted::databases());
    let (tell, done) = mpsc::channel();
    let (ask, todo) = mpsc::channel::<u64>();
    let panics = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&panics);
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let thread = std::thread::current();
        if !thread.name().is_none_or(|name| name == "cases" || name.starts_with("rockmill")) {
            return default(info); // this test's own
        }
        if let Ok(mut all) = seen.lock() {
            all.push(info.to_string());
        }
    }));
    let run = move || {
        for seed in todo {
            let (start, before) = (memory::start(), memory::processor_time());
            let (what, broken) = case(seed);
            let busy = memory::processor_time().zip(before).map(|(after, before)| after.saturating_sub(before));
            if tell.send((what, broken, memory::since(start).peak, busy.unwrap_or_default())).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("cases".to_owned()).spawn(run).expect("a thread");
    let mut rng = fastrand::Rng::with_seed(given.unwrap_or_else(|| fastrand::u64(..)));
    let mut most = (0, Duration::ZERO);
    let (end, mut count, mut all) = (Instant::now() + Duration::from_secs_f64(seconds), 0, Vec::new());
    while Instant::now() < end && all.len() < 20 {
        let seed = if count == 0 { given.unwrap_or_else(|| rng.u64(..)) } else { rng.u64(..) };
        ask.send(seed).expect("the thread");
        let Ok((what, mut broken, peak, busy)) = done.recv_timeout(HANG) else {
            println!("ROCKMILL_SEED={seed}: no end after {HANG:?}");
            eprintln!("ROCKMILL_SEED={seed}: no end after {HANG:?}");
            std::process::abort(); // the thread cannot be stopped
        };
        if peak > MEMORY {
            broken.push(format!("{peak} bytes of memory, at most {MEMORY}"));
        }
        if busy > TIME {
            broken.push(format!("{busy:?} of the processor, at most {TIME:?}"));
        }
        (most.0, most.1) = (peak.max(most.0), busy.max(most.1));
        broken.append(&mut panics.lock().expect("the list of panics"));
        if !broken.is_empty() {
            all.push(format!("ROCKMILL_SEED={seed}: {what}\n  {}", broken.join("\n  ")));
        }
        count += 1;
    }
    println!("{count} directories, at most {} MiB of memory and {:?} of the processor", most.0 >> 20, most.1);
    assert!(all.is_empty(), "{} directories broke a promise:\n{}", all.len(), all.join("\n"));
}
