//! Workers whose devices are the kernel's (`--device kernel`), with each engine, also that of the kernel. They need
//! root and a kernel with NVMe over TCP: `scripts/test-nvme` runs them in a guest that has both.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rockmill::{Db, IteratorMode, KernelDriver, Options, probe_kernel_engine};
use rockmill_io::SystemClock;
use rockmill_offload::{Secrets, Workers, WorkersConfig};

use super::*;

/// How the names of jobs' subsystems begin.
const JOBS: &str = "nqn.2026-11.rockmill:job:";
/// Longer than anything takes in a machine emulated in software.
const PATIENCE: Duration = Duration::from_secs(120);

/// Locks the kernel's initiator for this test; the test is skipped without one.
fn kernel(test: &str) -> Option<MutexGuard<'static, ()>> {
    static ALONE: Mutex<()> = Mutex::new(());
    let file = "/dev/nvme-fabrics";
    if let Err(e) = fs::OpenOptions::new().read(true).write(true).open(file) {
        skip(test, &Needs::NvmeKernel.because(format!("{file}: {e} (scripts/test-nvme has a kernel with it)")));
        return None;
    }
    Some(ALONE.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The kernel's controllers of jobs: their names and states.
fn controllers() -> Vec<(String, String)> {
    let all = fs::read_dir("/sys/class/nvme").expect("a kernel with NVMe").map(|e| e.expect("an entry").path());
    let says = |path: &Path, what: &str| fs::read_to_string(path.join(what)).unwrap_or_default().trim_end().to_owned();
    let of_jobs = all.filter(|path| says(path, "subsysnqn").starts_with(JOBS));
    of_jobs.map(|path| (path.display().to_string(), says(&path, "state"))).collect()
}

#[track_caller]
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < PATIENCE, "waited {PATIENCE:?} for this: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// A worker with devices of the kernel's, and its metrics.
struct KernelWorker {
    worker: Worker,
    metrics: String,
}

impl KernelWorker {
    fn start(dir: &Path, args: &[&str]) -> Self {
        let all = [&["--device", "kernel", "--metrics", "127.0.0.1:0"], args].concat();
        let (worker, lines) = Worker::start_with_lines(dir, &all, 2);
        let metrics = lines[0].strip_prefix("metrics at http://").and_then(|at| at.strip_suffix("/metrics"));
        Self { metrics: metrics.expect("an address").to_owned(), worker }
    }

    fn metric(&self, name: &str) -> u64 {
        let mut asks = TcpStream::connect(&self.metrics).expect("it listens");
        asks.write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n").expect("it is asked");
        let mut page = String::new();
        asks.read_to_string(&mut page).expect("it answers");
        let name = format!("rockmill_worker_{name} ");
        let value = page.lines().find_map(|line| line.strip_prefix(&name));
        value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name}in {page}"))
    }

    fn signal(&self, signal: &str) {
        let id = self.worker.child.as_ref().expect("it runs").id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().expect("kill").success());
    }

    /// Kills it, and gives what it has said.
    fn kill(mut self) -> String {
        let mut child = self.worker.child.take().expect("it runs");
        child.kill().expect("it is killed");
        let said = child.wait_with_output().expect("it ends");
        String::from_utf8_lossy(&said.stderr).into_owned()
    }
}

fn copy(s: &Sandbox, from: &str, to: &str) {
    let (from, to) = (s.path(from), s.path(to));
    fs::create_dir(&to).expect("a folder");
    for entry in fs::read_dir(from).expect("a database") {
        let entry = entry.expect("an entry");
        fs::copy(entry.path(), to.join(entry.file_name())).expect("a copy");
    }
}

fn tables(s: &Sandbox, db: &str) -> Vec<Vec<u8>> {
    let all = fs::read_dir(s.path(db)).expect("a database").map(|entry| entry.expect("an entry").path());
    let all = all.filter(|path| path.extension().is_some_and(|name| name == "sst"));
    let mut all: Vec<Vec<u8>> = all.map(|path| fs::read(path).expect("a table")).collect();
    all.sort();
    all
}

/// Each engine, on one thread and on two, writes what is written without a worker, byte for byte; and by the worker's
/// counters it was that engine, and with the driver `loop` a program that submitted reads and writes.
#[test]
fn each_engine_merges_on_devices_of_the_kernel() {
    const TEST: &str = "each_engine_merges_on_devices_of_the_kernel";
    let Some(_alone) = kernel(TEST) else { return };
    let s = Sandbox::new();
    filled(&s, "db");
    copy(&s, "db", "here");
    let reproducible = ["--reproducible", "--target-file-size", "100K"];
    s.ok(&[&["compact", "here"][..], &reproducible].concat());
    let wanted = tables(&s, "here");
    assert!(wanted.len() > 2, "{} tables", wanted.len());
    let run: &[&str] = &["--engine", "kernel", "--kernel-driver", "run"];
    let looped: &[&str] = &["--engine", "kernel", "--kernel-driver", "loop"];
    for (name, args, driver) in [
        ("pread", &["--engine", "pread"][..], None),
        ("uring", &["--engine", "uring"], None),
        ("uring", &["--threads", "2"], None),
        ("kernel", run, Some(KernelDriver::Run)),
        ("kernel", looped, Some(KernelDriver::Loop)),
        ("kernel", &[looped, &["--threads", "2"]].concat(), Some(KernelDriver::Loop)),
    ] {
        if let Some(Err(e)) = driver.map(probe_kernel_engine) {
            let needs = if driver == Some(KernelDriver::Loop) { Needs::KernelLoop } else { Needs::Kernel };
            skip(TEST, &needs.because(e));
            continue;
        }
        let worker = KernelWorker::start(s.dir.path(), args);
        let db = args.concat().replace("--", "");
        copy(&s, "db", &db);
        let workers = ["--compaction-workers", &worker.worker.address, "--worker-input-min", "0"];
        s.ok(&[&["compact", &db][..], &reproducible, &workers].concat());
        let said = log(&s, &db);
        assert!(said.contains("Done by worker") && !said.contains("Not done by a worker"), "{args:?}: {said}");
        assert!(tables(&s, &db) == wanted, "{args:?}: other bytes");
        let parts = ["pread", "uring", "kernel", "handed_over"].map(|by| worker.metric(&format!("parts_{by}_total")));
        let places = ["pread", "uring", "kernel"].map(|by| by == name);
        assert_eq!(parts.map(|n| n > 0), [places[0], places[1], places[2], false], "{args:?}: {parts:?}");
        let [calls, operations, enters, asked, received, sent] =
            ["program_calls", "program_operations", "ring_enters", "round_trips", "received_bytes", "sent_bytes"]
                .map(|what| worker.metric(&format!("{what}_total")));
        println!(
            "{args:?}: {parts:?} parts, the program called {calls} times, which submitted {operations} operations; \
             rings entered {enters} times, {asked} commands, {received} bytes read, {sent} written"
        );
        assert_eq!(enters > 0, name != "pread", "{args:?}");
        let in_program = driver == Some(KernelDriver::Loop);
        assert_eq!((calls > 0, operations > 0), (in_program, in_program), "{args:?}");
        let bytes: usize = wanted.iter().map(Vec::len).sum();
        assert!(sent >= bytes as u64 && received > 0 && asked > wanted.len() as u64, "{args:?}");
        assert_eq!(controllers(), [], "{args:?}: nothing is left");
        assert_eq!(worker.kill(), "", "{args:?}");
    }
}

/// A key that is too long for the program, after several tables: what the program wrote stays unused, and the next
/// engine takes the next places.
#[test]
fn what_the_program_hands_over_is_done_by_the_same_worker() {
    const TEST: &str = "what_the_program_hands_over_is_done_by_the_same_worker";
    let Some(_alone) = kernel(TEST) else { return };
    for driver in [KernelDriver::Run, KernelDriver::Loop] {
        if let Err(e) = probe_kernel_engine(driver) {
            let needs = if driver == KernelDriver::Loop { Needs::KernelLoop } else { Needs::Kernel };
            skip(TEST, &needs.because(e));
            continue;
        }
        let s = Sandbox::new();
        let worker = KernelWorker::start(s.dir.path(), &["--engine", "kernel", "--kernel-driver", driver.name()]);
        let config = WorkersConfig {
            input_bytes_min: 0,
            ..WorkersConfig::new(vec![worker.worker.address.parse().expect("an address")])
        };
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_disable_auto_compactions(true);
        options.set_target_file_size_base(100_000);
        options.set_compaction_workers(Workers::new(config, Arc::new(SystemClock::default())).expect("workers"));
        let db = Db::open(&options, s.path("db")).expect("it opens");
        for round in 0..2 {
            for i in 0..5000 {
                db.put(format!("key {i:06}"), format!("{round} {i}").repeat(10)).expect("a write");
            }
            db.put([b'l'; 9000], "too long").expect("a write");
            db.flush().expect("a table");
        }
        let before = SlowJob::read(&db);
        compact(&db);
        let counters = db.counters();
        assert_eq!((counters.compactions_elsewhere, counters.compactions_returned), (1, 0), "{driver}: {counters:?}");
        assert!(SlowJob::read(&db) == before, "{driver}");
        let parts = ["kernel", "handed_over"].map(|by| worker.metric(&format!("parts_{by}_total")));
        assert_eq!(parts, [0, 1], "{driver}");
        assert_eq!(controllers(), [], "{driver}");
        drop(db);
        s.ok(&["verify", "db"]);
        let said = worker.kill();
        assert!(said.contains("a key is longer"), "{driver}: {said}");
    }
}

/// The kernel proves who it is with the worker's secret, and asks the store for its own.
#[test]
fn the_kernel_has_the_secrets_of_its_worker() {
    let Some(_alone) = kernel("the_kernel_has_the_secrets_of_its_worker") else { return };
    let s = Sandbox::new();
    let made = Secrets::generate("nqn.2026-11.rockmill:host", "nqn.2026-11.rockmill:worker").expect("secrets");
    for (name, text) in ["host.secrets", "worker.secrets"].into_iter().zip(made) {
        // Without keys of TLS.
        let lines = text.lines().map(|line| line.split(' ').take(2).collect::<Vec<_>>().join(" ") + "\n");
        s.file(name, lines.collect::<String>());
        fs::set_permissions(s.path(name), fs::Permissions::from_mode(0o600)).expect("they are private");
    }
    filled(&s, "db");
    let wanted = s.ok(&["scan", "db"]);
    let worker = KernelWorker::start(s.dir.path(), &["--secrets", "worker.secrets"]);
    let compact = ["compact", "db", "--compaction-workers", &worker.worker.address, "--worker-input-min", "0"];
    s.ok(&[&compact[..], &["--worker-secrets", "host.secrets"]].concat());
    let said = log(&s, "db");
    assert!(said.contains("Done by worker") && !said.contains("Not done by a worker"), "{said}");
    assert!(s.ok(&["scan", "db"]) == wanted);
    s.ok(&["verify", "db"]);
    assert_eq!(worker.metric("jobs_done_total"), 1);
    assert_eq!(controllers(), []);
}

/// A database whose next compaction takes many seconds, since its writes are slow.
struct SlowJob {
    dir: tempfile::TempDir,
    contents: Vec<(Vec<u8>, Vec<u8>)>,
}

impl SlowJob {
    fn options() -> Options {
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_disable_auto_compactions(true);
        options
    }

    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let db = Db::open(&Self::options(), dir.path()).expect("it opens");
        let mut rng = fastrand::Rng::with_seed(5);
        for _ in 0..3 {
            for _ in 0..4000 {
                let value: Vec<u8> = (0..200).map(|_| rng.u8(..)).collect();
                db.put(format!("key {:06}", rng.u32(0..9000)), value).expect("a write");
            }
            db.flush().expect("a table");
        }
        let contents = Self::read(&db);
        Self { dir, contents }
    }

    fn read(db: &Db) -> Vec<(Vec<u8>, Vec<u8>)> {
        db.iterator(IteratorMode::Start).map(|e| e.expect("an entry")).map(|(k, v)| (k.to_vec(), v.to_vec())).collect()
    }

    /// Opens it with this worker, which is given up when it has said nothing for so long.
    fn open(&self, worker: &KernelWorker, silence_max: Duration) -> Db {
        let address = worker.worker.address.parse().expect("an address");
        let new = WorkersConfig::new(vec![address]);
        let config = WorkersConfig { input_bytes_min: 0, pause: Duration::ZERO, silence_max, ..new };
        let mut options = Self::options();
        options.set_ratelimiter(200_000, 10_000, 10);
        let clock = Arc::new(SystemClock::default());
        options.set_compaction_workers(Workers::new(config, clock).expect("workers"));
        Db::open(&options, self.dir.path()).expect("it opens")
    }

    fn is_whole(&self, db: &Db) {
        assert!(Self::read(db) == self.contents);
    }
}

fn compact(db: &Db) {
    db.compact_range(None::<&[u8]>, None::<&[u8]>).expect("a compaction");
}

/// Until a device of the kernel's is written to.
fn until_it_writes() {
    until("a device that is written to", || {
        let disks = fs::read_dir("/sys/block").expect("devices").map(|e| e.expect("an entry").path());
        let is_of_job =
            |disk: &Path| fs::read_to_string(disk.join("device/subsysnqn")).is_ok_and(|name| name.starts_with(JOBS));
        let asked = |disk: &Path| {
            let inflight = fs::read_to_string(disk.join("inflight")).unwrap_or_default();
            inflight.split_whitespace().nth(1).is_some_and(|writes| writes != "0")
        };
        disks.into_iter().any(|disk| is_of_job(&disk) && asked(&disk))
    });
}

#[test]
fn what_a_killed_worker_leaves_is_removed_when_the_next_one_starts() {
    let Some(_alone) = kernel("what_a_killed_worker_leaves_is_removed_when_the_next_one_starts") else { return };
    let (s, job) = (Sandbox::new(), SlowJob::new());
    let worker = KernelWorker::start(s.dir.path(), &[]);
    let db = job.open(&worker, Duration::from_secs(10));
    thread::scope(|scope| {
        let compacts = scope.spawn(|| compact(&db));
        until_it_writes();
        worker.kill();
        assert_eq!(controllers().len(), 1, "it belongs to the kernel");
        let next = KernelWorker::start(s.dir.path(), &[]);
        assert_eq!(controllers(), [], "the next worker listens, and nothing is left");
        compacts.join().expect("it ends");
        let said = next.kill();
        assert!(said.contains("removed nvme") && said.contains("which a worker that is gone has left"), "{said}");
    });
    let counters = db.counters();
    assert_eq!((counters.compactions_elsewhere, counters.compactions_returned), (0, 1), "{counters:?}");
    job.is_whole(&db);
}

#[test]
fn a_lease_that_ends_ends_the_device_and_the_worker_goes_on() {
    let Some(_alone) = kernel("a_lease_that_ends_ends_the_device_and_the_worker_goes_on") else { return };
    let (s, job) = (Sandbox::new(), SlowJob::new());
    let worker = KernelWorker::start(s.dir.path(), &["--engine", "pread"]);
    let db = job.open(&worker, Duration::from_secs(10));
    thread::scope(|scope| {
        let compacts = scope.spawn(|| compact(&db));
        until_it_writes();
        worker.signal("-STOP");
        // It says nothing any more, so the host does the job. The kernel goes on by itself, and gives up.
        compacts.join().expect("it ends");
        until("no controller", || controllers().is_empty());
        worker.signal("-CONT");
    });
    let counters = db.counters();
    assert_eq!((counters.compactions_elsewhere, counters.compactions_returned), (0, 1), "{counters:?}");
    job.is_whole(&db);
    until("a worker that is free", || worker.metric("jobs_running") == 0);
    assert_eq!(worker.metric("jobs_failed_total"), 1);
    drop(db);
    // The next job is its.
    let db = job.open(&worker, Duration::from_secs(60));
    db.put("key 000001", "another").and_then(|()| db.flush()).expect("a table");
    compact(&db);
    let counters = db.counters();
    assert_eq!((counters.compactions_elsewhere, counters.compactions_returned), (1, 0), "{counters:?}");
    assert_eq!(controllers(), []);
}

#[test]
fn what_devices_of_the_kernel_cannot_have_is_refused() {
    let s = Sandbox::new();
    let worker = |args: &[&str]| s.run(&[&["worker", "--listen", "127.0.0.1:0", "--device", "kernel"], args].concat());
    worker(&["--name", "a,transport=rdma"]).fails(2, &["--device kernel", "letters, digits and .:-_"]);
    s.run(&["worker", "--listen", "127.0.0.1:0", "--device", "disk"]).fails(2, &["user", "kernel"]);
    s.file("w.conf", "listen = 127.0.0.1:0\nname = a b\ndevice = kernel\nengine = kernel\nkernel-driver = loop\n");
    s.run(&["worker", "--config", "w.conf"]).fails(2, &["--device kernel --engine kernel", "letters, digits and .:-_"]);
    if rockmill_offload::TLS {
        s.ok(&["worker", "--make-secrets", "."]);
        worker(&["--secrets", "worker.secrets"]).fails(2, &["--device kernel", "without TLS", "tlshd"]);
    }
    if !Path::new("/dev/nvme-fabrics").exists() {
        worker(&[]).fails(2, &["--device kernel", "modprobe nvme-tcp"]);
    }
}
