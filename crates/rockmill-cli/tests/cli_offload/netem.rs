//! Host and worker in separate network namespaces. On the link between them `tc netem` delays, reorders, loses, repeats
//! and damages packets, or lets none through. The kernel's own TCP has to cope with that.
//!
//! Each test makes its two namespaces, and then runs itself once more, as a process in the host's namespace: the
//! database is opened there. `rockmill worker` runs in the other one. A second link, on which nothing is disturbed,
//! leads to the worker's metrics. `scripts/test-nvme` runs these tests, because few kernels have `sch_netem`.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use rockmill::{Db, IteratorMode, Options, WriteBatch};
use rockmill_io::SystemClock;
use rockmill_offload::{Workers, WorkersConfig};

use super::namespaces::{HOST, Network, WORKER, run};
use super::*;

/// In the environment of a test that runs in the host's namespace: the name of the worker's.
const INSIDE: &str = "ROCKMILL_NETEM_WORKER";
/// The same: where the databases are that all tests begin with.
const BASE: &str = "ROCKMILL_NETEM_BASE";
/// Addresses of the link that nothing disturbs.
const WATCH_HOST: &str = "10.203.78.1";
const WATCH_WORKER: &str = "10.203.78.2";
/// A test that takes longer is ended.
const TEST_MAX: Duration = Duration::from_secs(240);
/// Longer than anything takes that has no limit of its own, also in a machine emulated in software.
const PATIENCE: Duration = Duration::from_secs(60);
/// A host has given up a worker that it has not heard of for so long. It is the default.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// A link that is as fast as it can be, one on which a job's output takes eight seconds, and one that is cut.
const WHOLE: &str = "rate 10gbit";
const SLOW: &str = "rate 500kbit";
const CUT: &str = "rate 500kbit loss 100%";
/// A job is interrupted when its worker has sent so many bytes, a fifth of what it sends.
const SENT_BEFORE: u64 = 100_000;
const BOTH: [Side; 2] = [Side::Worker, Side::Host];

/// Whose packets are disturbed: those that this side sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Host,
    Worker,
}

/// The link, seen from the host's namespace.
struct Link {
    /// The worker's namespace.
    worker: String,
}

impl Link {
    fn tc(&self, side: Side, args: &str) -> Result<String, String> {
        let namespace = if side == Side::Worker { vec!["-n", &self.worker] } else { Vec::new() };
        run("tc", &namespace.into_iter().chain(args.split_whitespace()).collect::<Vec<_>>())
    }

    /// Disturbs what these sides send, in the words of `tc netem`. What was set before and is not named may remain.
    fn set(&self, sides: &[Side], how: &str) {
        for side in sides {
            self.tc(*side, &format!("qdisc replace dev link0 root netem {how}")).expect("netem");
        }
        if how == WHOLE {
            self.forget_neighbours();
        }
    }

    /// A side that asked for the other one's hardware address in vain, a moment ago, would say "no route to host" to
    /// whoever connects now, instead of asking again.
    fn forget_neighbours(&self) {
        for namespace in [&[][..], &["-n", &self.worker]] {
            run("ip", &[namespace, &["neigh", "flush", "dev", "link0"]].concat()).expect("neighbours are forgotten");
        }
    }

    /// Ends all disturbances.
    fn clear(&self) {
        for side in BOTH {
            self.tc(side, "qdisc del dev link0 root").expect("there was one");
        }
        self.forget_neighbours();
    }
}

fn connect(network: &Network) -> Result<(), String> {
    network.make()?;
    network.join("link0", HOST, WORKER)?;
    network.join("watch0", WATCH_HOST, WATCH_WORKER)?;
    for namespace in [&network.host, &network.worker] {
        // Packets as they would be on a wire, not 64 KiB in one.
        run("ip", &["-n", namespace, "link", "set", "link0", "gso_max_segs", "1"])?;
        run("tc", &["-n", namespace, "qdisc", "add", "dev", "link0", "root", "netem", "delay", "1ms", "loss", "1%"])?;
        run("tc", &["-n", namespace, "qdisc", "del", "dev", "link0", "root"])?;
    }
    // On a slow link, what a worker says is not to wait for seconds until its data is through.
    let short = "echo 4096 16384 32768 >/proc/sys/net/ipv4/tcp_wmem";
    run("ip", &["netns", "exec", &network.worker, "sh", "-c", short])?;
    Ok(())
}

/// Runs the body of a test in the host's namespace; the test is skipped where there is no netem.
fn between_two_networks(test: &str, body: fn(&Link)) {
    if let Ok(worker) = std::env::var(INSIDE) {
        thread::spawn(|| {
            thread::sleep(TEST_MAX);
            eprintln!("the test has not ended in {TEST_MAX:?}");
            std::process::abort();
        });
        return body(&Link { worker });
    }
    let network = Network::empty(test);
    if let Err(e) = connect(&network) {
        return skip(test, &Needs::Netem.because(e));
    }
    let (me, base) = (std::env::current_exe().expect("this program"), Base::make_once());
    let out = Command::new("ip")
        .args(["netns", "exec", &network.host])
        .arg(me)
        .args(["--exact", &format!("netem::{test}"), "--nocapture", "--test-threads=1"])
        .env(INSIDE, &network.worker)
        .env(BASE, base.path())
        .stdin(Stdio::null())
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&out.stdout);
    println!("{said}{}", String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success() && said.contains("test result: ok. 1 passed"), "{test}: {}", out.status);
}

/// Waits for something that must come.
#[track_caller]
fn until(what: &str, limit: Duration, mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < limit, "waited {limit:?} for this: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// A network namespace as the kernel describes it, by a process in it.
#[derive(Debug, Clone, Copy)]
struct Kernel(u32);

impl Kernel {
    /// This process's.
    fn here() -> Self {
        Self(std::process::id())
    }

    fn file(self, name: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/net/{name}", self.0)).expect("a file of the kernel's")
    }

    /// A counter of TCP.
    fn counter(self, name: &str) -> u64 {
        let text = ["snmp", "netstat"].map(|file| self.file(file)).concat();
        let lines: Vec<&str> = text.lines().collect();
        for pair in lines.chunks(2).filter(|pair| pair[0].starts_with("Tcp")) {
            let mut counters = pair[0].split(' ').zip(pair[1].split(' '));
            if let Some((_, value)) = counters.find(|(known, _)| *known == name) {
                return value.parse().expect("a number");
            }
        }
        panic!("the kernel has no counter {name}");
    }

    /// Bytes that it has sent over the link.
    fn sent(self) -> u64 {
        let text = self.file("dev");
        let line = text.lines().find_map(|line| line.trim().strip_prefix("link0:")).expect("the link");
        line.split_whitespace().nth(8).and_then(|bytes| bytes.parse().ok()).expect("bytes")
    }

    /// Connections to or from the worker's port that it takes for open.
    fn open_connections(self, port: u16) -> usize {
        let port = format!(":{port:04X}");
        let is_open = |line: &&str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            words.get(3) == Some(&"01") && words[1..3].iter().any(|address| address.ends_with(&port))
        };
        self.file("tcp").lines().filter(is_open).count()
    }
}

/// A worker in its namespace, with room for one job.
struct FarWorker {
    worker: Worker,
    /// Where its metrics are.
    metrics: String,
    kernel: Kernel,
}

impl FarWorker {
    fn start(link: &Link) -> Self {
        let mut child = Command::new("ip")
            .args(["netns", "exec", &link.worker, ROCKMILL, "worker", "--allow-unauthenticated"])
            .args(["--listen", &format!("{WORKER}:0"), "--metrics", &format!("{WATCH_WORKER}:0")])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the worker starts");
        let mut lines = BufReader::new(child.stdout.as_mut().expect("a pipe")).lines();
        let mut line = |before: &str| {
            let line = lines.next().expect("a line").expect("a line");
            line.strip_prefix(before).unwrap_or_else(|| panic!("{line:?}")).to_owned()
        };
        let address = line("listening at ");
        let metrics = line("metrics at http://").trim_end_matches("/metrics").to_owned();
        drop(lines);
        let kernel = Kernel(child.id()); // `ip` has become the worker
        Self { worker: Worker { child: Some(child), address }, metrics, kernel }
    }

    fn port(&self) -> u16 {
        self.worker.address.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port")
    }

    fn metric(&self, name: &str) -> u64 {
        let mut asks = TcpStream::connect(&self.metrics).expect("it listens");
        asks.set_read_timeout(Some(PATIENCE)).expect("a limit");
        asks.write_all(b"GET /metrics HTTP/1.1\r\nHost: there\r\n\r\n").expect("it is asked");
        let mut page = String::new();
        asks.read_to_string(&mut page).expect("it answers");
        let name = format!("rockmill_worker_{name} ");
        let value = page.lines().find_map(|line| line.strip_prefix(&name));
        value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name}in {page}"))
    }

    fn is_free(&self) -> bool {
        self.metric("jobs_running") == 0
    }

    /// A host's workers: this one. What fails is not held against it.
    fn workers(&self, silence_max: Duration) -> Arc<Workers> {
        let address = self.worker.address.parse().expect("an address");
        let config = WorkersConfig { silence_max, ..of_host(address) };
        Workers::new(config, Arc::new(SystemClock::default())).expect("workers")
    }
}

fn of_host(worker: std::net::SocketAddr) -> WorkersConfig {
    let pause = Duration::ZERO;
    WorkersConfig { input_bytes_min: 0, pause, allow_unauthenticated: true, ..WorkersConfig::new(vec![worker]) }
}

/// A database with one job to be done, what is in it, and the tables that the host makes of it.
struct Base {
    dir: PathBuf,
    contents: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Without a worker, or with one that does the job.
    wanted: Vec<Vec<u8>>,
    /// After a worker that failed. The files have other numbers then, which are in the tables, too.
    wanted_second: Vec<Vec<u8>>,
}

/// Who does a job in the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Worker,
    Host,
}

fn names(dir: &Path) -> Vec<String> {
    let all = std::fs::read_dir(dir).expect("a database");
    let mut all: Vec<_> = all.map(|e| e.expect("an entry").file_name().into_string().expect("a name")).collect();
    all.sort();
    all
}

fn tables(dir: &Path) -> Vec<Vec<u8>> {
    let all = names(dir).into_iter().filter(|name| name.ends_with(".sst"));
    let mut all: Vec<_> = all.map(|name| std::fs::read(dir.join(name)).expect("a table")).collect();
    all.sort();
    all
}

fn compact(db: &Db) {
    db.compact_range(None::<&[u8]>, None::<&[u8]>).expect("a compaction");
}

impl Base {
    /// The contents, and the batches that make them, each for a table.
    fn contents() -> (BTreeMap<Vec<u8>, Vec<u8>>, [WriteBatch; 3]) {
        let (mut rng, mut contents) = (fastrand::Rng::with_seed(1), BTreeMap::new());
        let batches = [0; 3].map(|_| {
            let mut batch = WriteBatch::default();
            for _ in 0..2500 {
                let key = format!("key {:06}", rng.u32(0..6000)).into_bytes();
                if rng.u8(0..10) == 0 {
                    batch.delete(&key);
                    contents.remove(&key);
                } else {
                    let value: Vec<u8> = (0..rng.usize(40..180)).map(|_| rng.u8(..)).collect();
                    batch.put(&key, &value);
                    contents.insert(key, value);
                }
            }
            batch
        });
        (contents, batches)
    }

    /// Makes the databases, for all tests that run at this time.
    fn make_once() -> Arc<tempfile::TempDir> {
        static MADE: Mutex<Weak<tempfile::TempDir>> = Mutex::new(Weak::new());
        let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
        made.upgrade().unwrap_or_else(|| {
            let dir = Arc::new(tempfile::tempdir().expect("a folder"));
            Self::make(dir.path());
            *made = Arc::downgrade(&dir);
            dir
        })
    }

    fn make(dir: &Path) {
        let db = Db::open(&Self::options(None), dir.join("base")).expect("it opens");
        for batch in &Self::contents().1 {
            db.write(batch).expect("it is written");
            db.flush().expect("a table");
        }
        drop(db);
        // Nobody listens at this port.
        let config = of_host("127.0.0.1:1".parse().expect("an address"));
        let nobody = Workers::new(config, Arc::new(SystemClock::default())).expect("workers");
        for (name, workers) in [("first", None), ("second", Some(&nobody))] {
            let db = Self::copy(&dir.join("base"), &dir.join(name), workers);
            compact(&db);
            assert_eq!(db.counters().compactions_returned, u64::from(workers.is_some()));
            Self::nothing_is_left(&dir.join(name), &db);
        }
    }

    /// What was made, in a test that runs inside.
    fn new() -> Self {
        let dir = PathBuf::from(std::env::var_os(BASE).expect("where it was made"));
        let [wanted, wanted_second] = ["first", "second"].map(|name| tables(&dir.join(name)));
        assert!(wanted.len() > 2, "{} tables", wanted.len());
        Self { dir: dir.join("base"), contents: Self::contents().0, wanted, wanted_second }
    }

    fn options(workers: Option<&Arc<Workers>>) -> Options {
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_disable_auto_compactions(true);
        options.set_target_file_size_base(200 << 10);
        options.set_reproducible(true);
        if let Some(workers) = workers {
            options.set_compaction_workers(Arc::clone(workers) as _);
        }
        options
    }

    /// Opens a copy.
    fn open(&self, workers: Option<&Arc<Workers>>) -> (tempfile::TempDir, Db) {
        let to = tempfile::tempdir().expect("a folder");
        let db = Self::copy(&self.dir, to.path(), workers);
        (to, db)
    }

    fn copy(from: &Path, to: &Path, workers: Option<&Arc<Workers>>) -> Db {
        std::fs::create_dir_all(to).expect("a folder");
        for name in names(from) {
            std::fs::copy(from.join(&name), to.join(&name)).expect("a copy");
        }
        Db::open(&Self::options(workers), to).expect("it opens")
    }

    /// Every file is one of the database's.
    fn nothing_is_left(dir: &Path, db: &Db) {
        let live: Vec<String> =
            db.live_files().expect("its tables").iter().map(|f| f.name.trim_start_matches('/').to_owned()).collect();
        let known = ["CURRENT", "IDENTITY", "LOCK", "LOG", "MANIFEST-", "OPTIONS-"];
        let is_left = |name: &String| {
            !known.iter().any(|known| name.starts_with(known)) && !name.ends_with(".log") && !live.contains(name)
        };
        // What was replaced is deleted a little later.
        until("no file but the database's own", PATIENCE, || !names(dir).iter().any(is_left));
    }

    /// Checks everything of a job, and returns what the database's log says of it.
    fn check(&self, what: &str, (dir, db): (tempfile::TempDir, Db), by: By) -> String {
        Self::nothing_is_left(dir.path(), &db);
        let counters = db.counters();
        drop(db); // which writes what the log still gathers
        let log = std::fs::read_to_string(dir.path().join("LOG")).expect("a log");
        let log: String =
            log.lines().filter(|line| line.contains("by worker") || line.contains("by a worker")).collect();
        println!("{what}: {log}");
        let went = (counters.compactions_elsewhere, counters.compactions_returned, counters.compactions_offered_again);
        assert_eq!(went, if by == By::Worker { (1, 0, 0) } else { (0, 1, 0) }, "{what}: {log}");
        let wanted = if by == By::Worker { &self.wanted } else { &self.wanted_second };
        assert!(&tables(dir.path()) == wanted, "{what}: other tables");
        let db = Db::open(&Self::options(None), dir.path()).expect("it opens again");
        let all = db.iterator(IteratorMode::Start).map(|entry| entry.expect("an entry"));
        let all: BTreeMap<_, _> = all.map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
        assert!(all == self.contents, "{what}: other contents");
        for (key, value) in &self.contents {
            assert!(db.get(key).expect("a read").as_ref() == Some(value), "{what}: {}", String::from_utf8_lossy(key));
        }
        Self::nothing_is_left(dir.path(), &db);
        log
    }

    /// A job that goes well.
    fn job(&self, what: &str, workers: &Arc<Workers>) {
        let (dir, db) = self.open(Some(workers));
        compact(&db);
        self.check(what, (dir, db), By::Worker);
    }

    /// Does something in the middle of a job, and returns when the job has ended.
    fn in_the_middle(&self, link: &Link, worker: &FarWorker, db: &Db, act: impl FnOnce()) {
        link.set(&[Side::Worker], SLOW);
        let before = worker.kernel.sent();
        thread::scope(|scope| {
            scope.spawn(|| compact(db));
            until("a part of a job", PATIENCE, || worker.kernel.sent() >= before + SENT_BEFORE);
            act();
        });
    }
}

/// A link, a worker, and a host that has just had one job done by it.
struct Pair<'a> {
    link: &'a Link,
    base: Base,
    worker: FarWorker,
    workers: Arc<Workers>,
    /// When the last partition began.
    parted: Cell<Instant>,
}

impl<'a> Pair<'a> {
    fn start(link: &'a Link) -> Self {
        let (base, worker) = (Base::new(), FarWorker::start(link));
        link.set(&BOTH, WHOLE);
        let workers = worker.workers(SILENCE_MAX);
        base.job("before", &workers);
        Self { link, base, worker, workers, parted: Cell::new(Instant::now()) }
    }

    /// A partition in the middle of a job. Returns the database when the host has done the job itself, and the link is
    /// as it was made by then.
    fn lose(&self, sides: &[Side], what: &str) -> (tempfile::TempDir, Db) {
        let (dir, db) = self.base.open(Some(&self.workers));
        self.base.in_the_middle(self.link, &self.worker, &db, || {
            self.link.set(sides, CUT);
            self.parted.set(Instant::now());
            assert!(!self.worker.is_free(), "{what}: the job had ended before");
        });
        let took = self.parted.get().elapsed();
        assert!(took < SILENCE_MAX + PATIENCE, "{what}: {took:?}");
        (dir, db)
    }

    /// The link is whole again: what was sent before arrives now, and changes nothing. Then the worker has a job again.
    fn mend(&self, what: &str, (dir, db): (tempfile::TempDir, Db)) {
        let before = tables(dir.path());
        self.link.set(&BOTH, WHOLE);
        until("room for a job", PATIENCE, || self.worker.is_free());
        thread::sleep(Duration::from_millis(300));
        assert!(before == tables(dir.path()), "{what}: a late write changed a table");
        let log = self.base.check(what, (dir, db), By::Host);
        assert!(log.contains("the worker was silent for too long"), "{what}: {log}");
        self.base.job("after", &self.workers);
    }
}

/// TCP mends what these do.
#[test]
fn a_link_that_loses_repeats_reorders_and_damages_packets() {
    between_two_networks("a_link_that_loses_repeats_reorders_and_damages_packets", |link| {
        let (base, worker) = (Base::new(), FarWorker::start(link));
        let kernels = [Kernel::here(), worker.kernel];
        for (how, counter) in [
            ("delay 20ms 10ms reorder 25% 50%", "TCPOFOQueue"),
            ("delay 1ms loss 3%", "RetransSegs"),
            ("delay 1ms duplicate 20%", "TCPDSACKOldSent"),
            ("delay 1ms corrupt 5%", "InCsumErrors"),
        ] {
            link.set(&BOTH, how);
            let before = kernels.map(|kernel| kernel.counter(counter));
            // Each with a connection of its own.
            base.job(how, &worker.workers(SILENCE_MAX));
            let happened = [0, 1].map(|i| kernels[i].counter(counter) - before[i]);
            println!("{how}: {counter} of host and worker {happened:?}");
            assert!(happened.iter().all(|n| *n > 0), "{how}: nothing of that happened: {happened:?}");
            link.clear();
        }
        assert_eq!((worker.metric("jobs_failed_total"), worker.metric("reconnects_total")), (0, 0));
    });
}

/// Bytes change that TCP does not check: a veth link carries no checksums, so the kernel takes changed packets for
/// right.
#[test]
fn damage_that_tcp_does_not_see_is_found() {
    between_two_networks("damage_that_tcp_does_not_see_is_found", |link| {
        let (base, worker) = (Base::new(), FarWorker::start(link));
        for side in BOTH {
            let damage = "matchall action gact pass random determ pipe 40 action pedit munge offset 700 u8 invert";
            let made = link.tc(side, "qdisc add dev link0 clsact");
            let made = made.and_then(|_| link.tc(side, &format!("filter add dev link0 egress {damage}")));
            if let Err(e) = made {
                return skip("damage_that_tcp_does_not_see_is_found", &Needs::Netem.because(e));
            }
            let (dir, db) = base.open(Some(&worker.workers(SILENCE_MAX)));
            compact(&db);
            let said = base.check(&format!("damage in what the {side:?} sends"), (dir, db), By::Host);
            // The data digest of a write; the checksum of a block that was read.
            let found = if side == Side::Worker { "Transient Transport Error" } else { "checksum" };
            assert!(said.contains(found), "{side:?}: {said}");
            link.tc(side, "qdisc del dev link0 clsact").expect("it was there");
            until("room for a job", PATIENCE, || worker.is_free());
        }
        base.job("after", &worker.workers(SILENCE_MAX));
    });
}

#[test]
fn a_partition_that_outlasts_the_lease() {
    between_two_networks("a_partition_that_outlasts_the_lease", |link| {
        let pair = Pair::start(link);
        let lost = pair.lose(&BOTH, "a partition");
        let refused = Kernel::here().counter("OutRsts");
        pair.mend("a partition", lost);
        // The worker's kernel has sent the job's data on, and the host's says that nobody is there.
        until("late packets, which the host refuses", PATIENCE, || Kernel::here().counter("OutRsts") > refused);
        assert_eq!(pair.worker.metric("jobs_failed_total"), 1);
    });
}

/// To the worker a host that vanishes, without a last packet, is a partition that does not end.
#[test]
fn a_host_that_vanishes_in_a_job_frees_the_worker() {
    between_two_networks("a_host_that_vanishes_in_a_job_frees_the_worker", |link| {
        let pair = Pair::start(link);
        let lost = pair.lose(&BOTH, "a long partition");
        // A Keep Alive every 5 seconds, 10 seconds for its answer, 20 seconds to connect again, and 5 for the last try.
        let left = (pair.parted.get() + Duration::from_secs(45)).saturating_duration_since(Instant::now());
        until("room for a job, during the partition", left, || pair.worker.is_free());
        assert_eq!(pair.worker.metric("jobs_failed_total"), 1);
        pair.mend("a long partition", lost);
    });
}

#[test]
fn a_partition_of_one_direction() {
    between_two_networks("a_partition_of_one_direction", |link| {
        let pair = Pair::start(link);
        let lost = pair.lose(&[Side::Worker], "nothing from the worker");
        // It hears that the host does not want the job any more.
        until("room for a job, during the partition", PATIENCE, || pair.worker.is_free());
        pair.mend("nothing from the worker", lost);
        // Where nothing is acknowledged, the worker's TCP soon sends nothing new.
        let lost = pair.lose(&[Side::Host], "nothing from the host");
        pair.mend("nothing from the host", lost);
    });
}

#[test]
fn a_partition_that_is_shorter_than_the_lease() {
    between_two_networks("a_partition_that_is_shorter_than_the_lease", |link| {
        let mut pair = Pair::start(link);
        let short = |pair: &Pair<'_>, what: &str, lasts: Duration| {
            let (dir, db) = pair.base.open(Some(&pair.workers));
            pair.base.in_the_middle(link, &pair.worker, &db, || {
                link.set(&BOTH, CUT);
                thread::sleep(lasts);
                assert!(!pair.worker.is_free(), "{what}: the job had ended before");
                link.set(&BOTH, WHOLE);
            });
            pair.base.check(what, (dir, db), By::Worker);
        };
        // On this slow link TCP may send again only seconds after the partition: the lease must outlast that.
        pair.workers = pair.worker.workers(2 * SILENCE_MAX);
        short(&pair, "two seconds", Duration::from_secs(2));
        let before = pair.worker.metric("reconnects_total");
        // Longer than a Keep Alive, and shorter than the time for connecting again.
        pair.workers = pair.worker.workers(PATIENCE);
        short(&pair, "twenty seconds", Duration::from_secs(20));
        assert!(pair.worker.metric("reconnects_total") > before);
        assert_eq!(pair.worker.metric("jobs_failed_total"), 0);
    });
}

/// A peer that vanishes while no job runs leaves a connection open on the other side. Each side finds out by itself.
#[test]
fn a_connection_that_is_half_open_between_two_jobs_is_found_on_both_sides() {
    between_two_networks("a_connection_that_is_half_open_between_two_jobs_is_found_on_both_sides", |link| {
        let pair = Pair::start(link);
        let (base, worker) = (&pair.base, &pair.worker);
        let open = || [Kernel::here(), worker.kernel].map(|kernel| kernel.open_connections(worker.port()));
        assert_eq!(open(), [1, 1]);
        link.set(&BOTH, CUT);
        let idle = Instant::now();
        // The host asks whether the worker is there before it offers a job.
        let (dir, db) = base.open(Some(&pair.workers));
        compact(&db);
        let took = idle.elapsed();
        assert!(took < Duration::from_secs(30), "{took:?}");
        let said = base.check("a half-open connection", (dir, db), By::Host);
        assert!(!said.contains("silent"), "it costs no lease: {said}");
        assert_eq!(open()[0], 0);
        // The worker closes a connection that has had no job for a minute, and is free for others all the time.
        assert_eq!((open()[1], worker.is_free()), (1, true));
        until("the end of the worker's connection", Duration::from_secs(90), || open()[1] == 0);
        link.set(&BOTH, WHOLE);
        base.job("after", &pair.workers);
        assert_eq!(worker.metric("connections_total"), 2);
    });
}
