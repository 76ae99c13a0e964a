//! Every fuzz target on its corpus and on randomly damaged copies of it: no panic in any thread, no hang, no memory
//! beyond a bound. Prints its seed; `ROCKMILL_SEED` repeats a run, `ROCKMILL_FUZZ_SECONDS` makes it longer, and
//! `ROCKMILL_FUZZ_TRACE=1` names each case before it runs (for those that end the process).

use std::io::Write as _;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::time::{Duration, Instant};

use rockmill::internals::{JobResult, JobSpec};
use rockmill_fuzz::memory::{self, Counted};
use rockmill_fuzz::mutate::{self, Dice};
use rockmill_fuzz::{Body, TARGETS, decoders, fixtures, job_specs, room_of, seeds};

#[global_allocator]
static ALLOCATOR: Counted = Counted;

/// The thread that runs inputs.
const CASES: &str = "cases";
/// After this wall-clock time, an input is assumed to hang. Debug builds on busy machines are slow.
const HANG: Duration = Duration::from_secs(120);

fn seconds(share: f64) -> Duration {
    let all = std::env::var("ROCKMILL_FUZZ_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(10.0);
    Duration::from_secs_f64(all * share)
}

fn seed() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    *SEED.get_or_init(|| {
        let given = std::env::var("ROCKMILL_SEED").ok().and_then(|s| s.parse().ok());
        let seed = given.unwrap_or_else(|| fastrand::u64(..));
        println!("seed {seed} (ROCKMILL_SEED repeats it)");
        seed
    })
}

/// The panics in any thread since the list was last emptied.
fn panics() -> &'static Mutex<Vec<String>> {
    static PANICS: OnceLock<Mutex<Vec<String>>> = OnceLock::new();
    PANICS.get_or_init(|| {
        let default = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let thread = std::thread::current();
            if !thread.name().is_none_or(|name| name == CASES || name.starts_with("rockmill")) {
                return default(info); // a test's own
            }
            let trace = std::backtrace::Backtrace::force_capture().to_string();
            let ours = trace.lines().filter(|l| l.contains("rockmill")).take(14).collect::<Vec<_>>().join("\n");
            if let Ok(mut all) = panics().lock() {
                all.push(format!("{info}\n{ours}"));
            }
        }));
        Mutex::default()
    })
}

/// Memory is measured for the whole process, so one case runs at a time.
fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A thread that runs cases one after another, so that a hang is detected.
struct Runner {
    cases: mpsc::Sender<(Body, Arc<Vec<u8>>)>,
    done: mpsc::Receiver<(memory::Use, Duration)>,
}

impl Runner {
    fn new() -> Self {
        let (cases, todo) = mpsc::channel::<(Body, Arc<Vec<u8>>)>();
        let (tell, done) = mpsc::channel();
        let run = move || {
            for (body, input) in todo {
                let start = memory::start();
                let (clock, before) = (Instant::now(), memory::processor_time());
                let _ = std::panic::catch_unwind(AssertUnwindSafe(|| body(&input)));
                let used = memory::since(start);
                let busy = memory::processor_time().zip(before).map(|(after, before)| after.saturating_sub(before));
                if tell.send((used, busy.unwrap_or_else(|| clock.elapsed()))).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().name(CASES.into()).spawn(run).expect("a thread");
        Self { cases, done }
    }

    /// Runs one input; `None` if it broke no promise.
    fn run(&self, name: &str, body: Body, input: &Arc<Vec<u8>>, room: usize) -> Option<String> {
        if std::env::var_os("ROCKMILL_FUZZ_TRACE").is_some() {
            let path = keep(name, input);
            let _ = writeln!(std::io::stderr(), "{}", path.display());
        }
        panics().lock().expect("the list of panics").clear();
        self.cases.send((body, Arc::clone(input))).expect("the runner");
        let Ok((used, busy)) = self.done.recv_timeout(HANG) else {
            let path = keep(name, input);
            println!("{name}: no end after {HANG:?}: {}", path.display());
            let _ = writeln!(std::io::stderr(), "{name}: no end after {HANG:?}: {}", path.display());
            // The thread cannot be stopped.
            std::process::abort();
        };
        let size = input.len() + room;
        let mut broken = std::mem::take(&mut *panics().lock().expect("the list of panics"));
        broken.extend(memory::beyond(size, used, busy));
        (!broken.is_empty()).then(|| format!("{name}: {}\n{}", keep(name, input).display(), broken.join("\n")))
    }
}

/// Writes an input to a file where it can be found again.
fn keep(name: &str, input: &[u8]) -> PathBuf {
    let dir = root().join("target/hostile").join(name);
    let path = dir.join(format!("{:016x}", rockmill_format::hash::hash64(input)));
    let _ = std::fs::create_dir_all(&dir).and_then(|()| std::fs::write(&path, input));
    path
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("two folders below the root")
}

/// The committed inputs of a target.
fn corpus(name: &str) -> Vec<Vec<u8>> {
    let mut paths: Vec<_> = std::fs::read_dir(root().join("fuzz/corpus").join(name))
        .map(|dir| dir.filter_map(|e| e.ok().map(|e| e.path())).collect())
        .unwrap_or_default();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).expect("an input")).collect()
}

fn report(broken: Vec<String>) {
    assert!(broken.is_empty(), "{} inputs broke a promise:\n{}", broken.len(), broken.join("\n\n"));
}

/// Targets that open databases: they are slow, even for the smallest input.
fn is_slow(name: &str) -> bool {
    matches!(
        name,
        "database"
            | "ingest"
            | "import"
            | "backup"
            | "write_batch"
            | "manifest"
            | "backup_meta"
            | "tombstones"
            | "operands"
    )
}

#[test]
fn decoders_take_any_bytes() {
    let _alone = alone();
    let mut rng = fastrand::Rng::with_seed(seed());
    let runner = Runner::new();
    let mut broken = Vec::new();
    let targets: Vec<_> = TARGETS.iter().filter(|(name, _)| *name != "database").collect();
    let _ = (fixtures::all(), fixtures::backups());
    for &&(name, body) in &targets {
        let committed = corpus(name);
        println!("{name}: {} inputs of the corpus", committed.len());
        assert!(!committed.is_empty(), "no corpus of {name}");
        let mut inputs = committed.clone();
        inputs.extend(seeds::of(name));
        let room = room_of(name);
        for input in &committed {
            broken.extend(runner.run(name, body, &Arc::new(input.clone()), room));
        }
        let end = Instant::now() + seconds(0.5 / targets.len() as f64);
        let mut count = 0u64;
        while Instant::now() < end && broken.len() < 20 {
            let mut input = rng.choice(&inputs).expect("not empty").clone();
            let other = rng.choice(&inputs).expect("not empty");
            let choices = rng.u64(..).to_le_bytes();
            mutate::mutate(&mut Dice::new(&choices), &mut input, other);
            broken.extend(runner.run(name, body, &Arc::new(input), room));
            count += 1;
        }
        println!("{name}: {count} mutations{}", if is_slow(name) { " (whole databases)" } else { "" });
    }
    report(broken);
}

#[test]
fn whole_databases_with_damaged_files() {
    let _alone = alone();
    let mut rng = fastrand::Rng::with_seed(seed() ^ 1);
    let runner = Runner::new();
    let (name, body) = *TARGETS.iter().find(|(name, _)| *name == "database").expect("the target");
    let room = room_of(name);
    let mut inputs = corpus(name);
    let mut broken = Vec::new();
    let end = Instant::now() + seconds(0.5);
    let mut count = 0u64;
    while (Instant::now() < end || !inputs.is_empty()) && broken.len() < 20 {
        let input = inputs.pop().unwrap_or_else(|| rng.u64(..).to_le_bytes().to_vec());
        broken.extend(runner.run(name, body, &Arc::new(input), room));
        count += 1;
    }
    println!("{count} databases");
    report(broken);
}

/// Specs and results are written exactly as they were in the past. A change needs a new version of the encoding.
#[test]
fn job_specs_and_results_are_written_as_before() {
    let committed = corpus("job_spec");
    for encoded in job_specs::all() {
        assert!(committed.contains(&encoded), "a spec of {} bytes is not in the corpus", encoded.len());
        assert_eq!(JobSpec::decode(&encoded).and_then(|spec| spec.encode()), Ok(encoded));
    }
    let committed = corpus("job_result");
    for encoded in job_specs::results() {
        assert!(committed.contains(&encoded), "a result of {} bytes is not in the corpus", encoded.len());
        assert_eq!(JobResult::decode(&encoded).and_then(|result| result.encode()), Ok(encoded));
    }
}

/// An item of a list takes more memory than its bytes in a message: lists have their own limit.
#[test]
fn long_lists_of_jobs_take_no_more_memory_than_they_may() {
    let _alone = alone();
    let (mut read, mut refused) = (0, 0);
    job_specs::each_long_list(|what, message| {
        let start = memory::start();
        let spec = JobSpec::decode(message);
        let decoding = memory::since(start);
        let is_over = spec.is_err_and(|e| e.message().contains("bytes of memory"));
        let start = memory::start();
        decoders::job_spec(message);
        let all = memory::since(start);
        println!("{what}: {} bytes, refused {is_over}: {} and {} bytes", message.len(), decoding.peak, all.peak);
        (read, refused) = (read + usize::from(!is_over), refused + usize::from(is_over));
        for used in [decoding, all] {
            let broken = memory::beyond(message.len(), used, Duration::ZERO);
            assert!(broken.is_empty(), "{what}: {broken:?}");
        }
    });
    assert_eq!((read, refused), (12, 11));
}

/// The fixtures themselves are sound: otherwise the tests above would show nothing.
#[test]
fn fixtures_are_sound() {
    let _alone = alone();
    let mut read = 0;
    for fixture in fixtures::all() {
        let fs = fixtures::file_system(&fixture.files);
        let options = fixtures::options(&fs);
        let Some(written) = &fixture.written else { continue };
        let names = rockmill::Db::list_cf(&options, fixtures::DIR).expect(&fixture.name);
        let db = rockmill::Db::open_cf(&options, fixtures::DIR, &names).expect(&fixture.name);
        for name in &names {
            let cf = db.cf_handle(name).expect("opened");
            for entry in db.iterator_cf(&cf, rockmill::IteratorMode::Start) {
                let (key, value) = entry.expect(&fixture.name);
                read += 1;
                for part in value.split(|&b| b == b',') {
                    assert!(written.contains(&(name.clone(), key.to_vec(), part.to_vec())));
                }
            }
        }
    }
    assert!(read > 200, "{read} entries");
    for (name, _) in TARGETS {
        assert!(!seeds::of(name).is_empty(), "no seeds of {name}");
    }
}
