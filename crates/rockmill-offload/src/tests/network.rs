//! Jobs over a network that cuts, shortens, holds back, delays and limits what goes by. Whatever it does, the job is
//! done once, and its tables are those of a compaction on the host, byte for byte.

use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rockmill::MergeEngine;
use rockmill::internals::{JobRegistry, WorkerDevice, WorkerMachine};

use super::between::{Between, Event, Rules};
use super::rogues::{self, take};
use super::*;

const PDUS: Rules = Rules { delay: Duration::ZERO, rate: 0, bytes_max: 0, pdus: true };

/// A clock that is so many times as fast.
#[derive(Debug)]
pub(super) struct Fast(pub u32, pub SystemClock);

impl Clock for Fast {
    fn now_micros(&self) -> u64 {
        self.1.now_micros()
    }

    fn monotonic_nanos(&self) -> u64 {
        self.1.monotonic_nanos() * u64::from(self.0)
    }

    fn sleep(&self, duration: Duration) {
        self.1.sleep(duration / self.0);
    }
}

/// Stands before a worker, and between it and the devices of its jobs.
struct Front {
    address: SocketAddr,
    ways: Arc<Ways>,
}

struct Ways {
    worker: SocketAddr,
    rules: Rules,
    event: Option<(u64, Event)>,
    /// At the first message of this kind, nothing goes by any more, on either way.
    holds_at: Option<&'static str>,
    holds: AtomicBool,
    has_held: AtomicBool,
    /// The ways to the devices.
    devices: Mutex<Vec<Arc<Between>>>,
}

impl Front {
    /// The event is one of the device's way.
    fn before(worker: SocketAddr, rules: Rules, event: Option<(u64, Event)>) -> Self {
        Self::start(worker, rules, event, None)
    }

    /// It ends with the process.
    fn start(worker: SocketAddr, rules: Rules, event: Option<(u64, Event)>, holds_at: Option<&'static str>) -> Self {
        let (holds, has_held, devices) = Default::default();
        let ways = Arc::new(Ways { worker, rules, event, holds_at, holds, has_held, devices });
        let (listener, all) = (listener(), Arc::clone(&ways));
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for store in listener.incoming().flatten() {
                let ways = Arc::clone(&all);
                thread::spawn(move || ways.carry(store));
            }
        });
        Self { address, ways }
    }

    fn device(&self) -> Arc<Between> {
        Arc::clone(self.ways.devices.lock().last().expect("a job"))
    }

    fn let_go(&self) {
        self.ways.holds.store(false, Ordering::Release);
        self.ways.devices.lock().iter().for_each(|device| device.let_go());
    }
}

impl Ways {
    fn wait(&self) {
        while self.holds.load(Ordering::Acquire) {
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Carries messages until one side ends.
    fn carry(&self, store: TcpStream) -> Option<()> {
        let worker = TcpStream::connect(self.worker).ok()?;
        let [mut store, mut worker] = [store, worker].map(|stream| Channel::new(stream, clock()).unwrap());
        store.allow_long_messages();
        worker.allow_long_messages();
        loop {
            for from_store in [true, false] {
                let (from, to) = if from_store { (&mut store, &mut worker) } else { (&mut worker, &mut store) };
                let Some(mut message) = from.receive(Duration::from_millis(3)).ok()? else { continue };
                if self.holds_at == Some(message.kind()) && !self.has_held.swap(true, Ordering::AcqRel) {
                    self.devices.lock().iter().for_each(|device| device.hold());
                    self.holds.store(true, Ordering::Release);
                }
                self.wait();
                if let Message::Offer { port, .. } = &mut message {
                    let device = SocketAddr::from(([127, 0, 0, 1], *port));
                    let between = Between::before(device, self.rules, self.event);
                    *port = between.address.port();
                    self.devices.lock().push(between);
                }
                to.tell(&message).ok()?;
            }
        }
    }
}

/// A database with one job to be done, what is in it, and the tables that the host makes of it.
struct Base {
    dir: tempfile::TempDir,
    contents: Contents,
    wanted: Vec<Vec<u8>>,
}

/// What came of the job.
struct Outcome {
    elsewhere: u64,
    returned: u64,
    log: String,
}

fn tables(dir: &Path) -> Vec<Vec<u8>> {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let names = names.filter(|path| path.extension().is_some_and(|extension| extension == "sst"));
    let mut all: Vec<_> = names.map(|path| std::fs::read(path).unwrap()).collect();
    all.sort();
    all
}

fn copy(from: &Path) -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.path().join(entry.file_name())).unwrap();
    }
    to
}

impl Base {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(&options(config(&[])), dir.path()).unwrap();
        let contents = fill(&db, 1);
        drop(db);
        let mut base = Self { dir, contents, wanted: Vec::new() };
        let here = base.open(config(&[]), clock());
        compact(&here.1);
        nothing_is_left(&here.1, here.0.path());
        base.wanted = tables(here.0.path());
        assert!(base.wanted.len() > 2);
        base
    }

    fn open(&self, config: WorkersConfig, clock: Arc<dyn Clock>) -> (tempfile::TempDir, Db) {
        let mut options = options(config.clone());
        options.set_compaction_workers(Workers::new(config, clock).unwrap());
        options.set_reproducible(true);
        let dir = copy(self.dir.path());
        let db = Db::open(&options, dir.path()).unwrap();
        (dir, db)
    }

    fn run(&self, config: WorkersConfig) -> Outcome {
        self.run_at(config, clock())
    }

    fn run_at(&self, config: WorkersConfig, clock: Arc<dyn Clock>) -> Outcome {
        let (dir, db) = self.open(config, clock);
        compact(&db);
        self.ended(&dir, db)
    }

    /// The contents are the right ones, and nothing else is there. The first to do the job writes the right tables; in
    /// those of a second one the files have other numbers.
    fn ended(&self, dir: &tempfile::TempDir, db: Db) -> Outcome {
        nothing_is_left(&db, dir.path());
        let counters = db.counters();
        let is_first = counters.compactions_returned + counters.compactions_offered_again == 0;
        assert!(!is_first || tables(dir.path()) == self.wanted, "other tables");
        assert!(contents(&db) == self.contents, "other contents");
        drop(db); // which writes what the log still gathers
        let log = std::fs::read_to_string(dir.path().join("LOG")).unwrap();
        Outcome { elsewhere: counters.compactions_elsewhere, returned: counters.compactions_returned, log }
    }
}

/// So many places of all, spread, beginning with this one.
fn spread(first: u64, all: u64, count: u64) -> impl Iterator<Item = u64> {
    (first..all).step_by(usize::try_from((all / count).max(1)).unwrap())
}

#[test]
fn a_job_whose_connections_are_cut_goes_on_and_writes_the_same_tables() {
    let base = Base::new();
    for (engine, threads) in [(MergeEngine::Uring, 2), (MergeEngine::Pread, 1)] {
        let worker = worker(WorkerConfig { engine, threads, ..WorkerConfig::default() });
        let front = Front::before(worker.address(), PDUS, None);
        let done = base.run(config(&[front.address]));
        assert_eq!((done.elsewhere, done.returned), (1, 0), "{}", done.log);
        let all = front.device().pieces();
        assert!(all > 50, "{all} PDUs");
        let mut cuts = 0;
        for (first, event) in [(0, Event::Cut), (1, Event::Shorten), (2, Event::HalfOpen)] {
            for at in spread(first, all, 16) {
                let front = Front::before(worker.address(), PDUS, Some((at, event)));
                let done = base.run(config(&[front.address]));
                assert_eq!((done.elsewhere, done.returned), (1, 0), "{event:?} at {at} of {all}: {}", done.log);
                cuts += u64::from(front.device().has_happened());
            }
        }
        // Those before the first queue was there are made again without that.
        let counters = worker.counters();
        assert!(counters.reconnects > cuts / 3 && counters.reconnects <= cuts, "{cuts} cuts, {counters:?}");
        assert_eq!((counters.failed, counters.refused), (0, 0));
    }
}

/// Cuts again and again, each after some more bytes. One write at a time, so that each connection has room for one.
#[test]
fn a_job_goes_on_through_many_cuts_as_long_as_it_gets_on() {
    let base = Base::new();
    let (of_host, of_worker) = secrets();
    let worker = WorkerConfig { secrets: Some(of_worker), engine: MergeEngine::Pread, ..WorkerConfig::default() };
    let worker = super::worker(worker);
    let with = |rules: Rules| {
        let front = Front::before(worker.address(), rules, None);
        base.run(WorkersConfig { secrets: Some(of_host.clone()), ..config(&[front.address]) })
    };
    let done = with(Rules { bytes_max: 300 << 10, ..PDUS });
    assert_eq!((done.elsewhere, done.returned), (1, 0), "{}", done.log);
    let counters = worker.counters();
    assert!(counters.reconnects > 1, "{counters:?}");
    // Where no command ever ends, the job is given up.
    let done = with(Rules { bytes_max: 20 << 10, ..PDUS });
    assert_eq!((done.elsewhere, done.returned), (0, 1), "{}", done.log);
    assert!(done.log.contains("time and again"), "{}", done.log);
}

/// The device's way alone is held back: the worker notices that by itself, and tells; the control channel is as it was.
#[test]
fn a_device_that_nothing_comes_from_any_more_is_given_up_in_its_time() {
    let base = Base::new();
    // All the worker's times are a tenth: those of keeping alive, of answers, and of connecting again.
    let fast = Arc::new(Fast(10, SystemClock::default()));
    let worker = Worker::start(listener(), WorkerConfig::default(), fast).unwrap();
    let recorded = Front::before(worker.address(), PDUS, None);
    base.run(config(&[recorded.address]));
    for at in spread(40, recorded.device().pieces(), 3) {
        let front = Front::before(worker.address(), PDUS, Some((at, Event::Hold)));
        // Its store hears of it ten times as often as it has to.
        let done = base.run(WorkersConfig { silence_max: Duration::from_secs(60), ..config(&[front.address]) });
        assert_eq!((done.elsewhere, done.returned), (0, 1), "PDU {at}: {}", done.log);
        front.let_go();
    }
}

/// For a while nothing comes through at all. If that is shorter than the lease's limit, nobody else notices.
#[test]
fn a_short_partition_only_costs_its_time() {
    let base = Base::new();
    let worker = worker(WorkerConfig::default());
    let front = Front::before(worker.address(), PDUS, Some((60, Event::Hold)));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !front.ways.devices.lock().last().is_some_and(|device| device.has_happened()) {
                thread::sleep(Duration::from_millis(2));
            }
            thread::sleep(Duration::from_secs(1));
            front.let_go();
        });
        let done = base.run(config(&[front.address]));
        assert_eq!((done.elsewhere, done.returned), (1, 0), "{}", done.log);
    });
    assert_eq!(worker.counters().reconnects, 0);
}

/// In each phase of a job nothing comes through any more, on both ways. The host gives the job up and does it itself; a
/// worker that is not cut off gets it, where there is one. What arrives when the job is over changes nothing.
#[test]
fn a_partition_in_any_phase_has_the_job_done_once() {
    let base = Base::new();
    for has_another in [false, true] {
        for phase in ["Hello", "Welcome", "Offer", "Accepted", "Progress", "Done"] {
            // Greetings have a limit of their own: all times are a quarter.
            let fast = || Arc::new(Fast(4, SystemClock::default()));
            let worker = Worker::start(listener(), WorkerConfig::default(), fast()).unwrap();
            let another = Worker::start(listener(), WorkerConfig::default(), fast()).unwrap();
            // There is progress only in a job that takes its time.
            let delay = Duration::from_millis(if phase == "Progress" { 30 } else { 0 });
            let front = Front::start(worker.address(), Rules { delay, ..PDUS }, None, Some(phase));
            let mut config = WorkersConfig { silence_max: Duration::from_secs(3), ..config(&[front.address]) };
            if has_another {
                config.workers.push(another.address());
            }
            let (dir, db) = base.open(config, fast());
            compact(&db);
            assert!(front.ways.has_held.load(Ordering::Acquire), "{phase} did not come");
            nothing_is_left(&db, dir.path());
            let before = tables(dir.path());
            front.let_go();
            thread::sleep(Duration::from_millis(200));
            assert!(before == tables(dir.path()), "{phase}: a late write changed a table");
            let done = base.ended(&dir, db);
            let wanted = if has_another { (1, 0) } else { (0, 1) };
            assert_eq!((done.elsewhere, done.returned), wanted, "{phase}: {}", done.log);
        }
    }
}

#[test]
fn a_job_over_a_link_with_a_delay_or_a_low_rate_is_done_elsewhere() {
    let base = Base::new();
    let worker = worker(WorkerConfig::default());
    let delay = Duration::from_millis(50);
    for rules in [Rules { delay, ..Rules::default() }, Rules { rate: 1 << 20, ..Rules::default() }] {
        let front = Front::before(worker.address(), rules, None);
        let done = base.run(config(&[front.address]));
        assert_eq!((done.elsewhere, done.returned), (1, 0), "{rules:?}: {}", done.log);
    }
    assert_eq!(worker.counters().reconnects, 0);
}

/// A bit that changes is found by a digest, or by a checksum of what was read: the job is done again, or goes on.
#[test]
fn a_bit_that_changes_is_found() {
    let base = Base::new();
    let worker = worker(WorkerConfig::default());
    let recorded = Front::before(worker.address(), PDUS, None);
    base.run(config(&[recorded.address]));
    let all = recorded.device().pieces();
    let mut failed = 0;
    for at in spread(3, all, 20) {
        let front = Front::before(worker.address(), PDUS, Some((at, Event::Flip)));
        let done = base.run(config(&[front.address]));
        assert_eq!(done.elsewhere + done.returned, 1, "PDU {at}: {}", done.log);
        failed += done.returned;
    }
    assert!(failed > 10, "{failed} failed");
}

/// A worker that lives and gets nowhere: `bytes_per_second_min` says how long its job may take.
#[test]
fn a_worker_that_is_too_slow_loses_its_job() {
    let base = Base::new();
    let rogue = Rogue::start(|mut channel| {
        let job = take(&mut channel);
        let place = first_output(&job.spec);
        job.device.write(place, &[1; 4096]).unwrap();
        loop {
            let _ = channel.tell(&Message::Progress { epoch: job.epoch, bytes: 1 });
            if !matches!(channel.receive(Duration::from_millis(20)), Ok(None)) {
                return assert!(job.device.write(place + 4096, &[1; 4096]).is_err(), "a late write");
            }
        }
    });
    let timed = |bytes_per_second_min: u64| {
        let fast = Arc::new(Fast(50, SystemClock::default()));
        let config =
            WorkersConfig { bytes_per_second_min, silence_max: Duration::from_secs(500), ..config(&[rogue.address]) };
        let since = fast.monotonic_nanos();
        let done = base.run_at(config, Arc::clone(&fast) as Arc<dyn Clock>);
        assert_eq!((done.elsewhere, done.returned), (0, 1), "{}", done.log);
        assert!(done.log.contains("took too long"), "{}", done.log);
        Duration::from_nanos(fast.monotonic_nanos() - since).as_secs()
    };
    let input = base.input_bytes();
    let (at_once, slowly) = (timed(u64::MAX), timed(input / 100));
    assert!(at_once >= 60, "{at_once} s");
    assert!(slowly >= 160, "{slowly} s");
}

impl Base {
    fn input_bytes(&self) -> u64 {
        tables(self.dir.path()).iter().map(|table| table.len() as u64).sum()
    }
}

/// A worker that is told to end finishes what it has, and takes nothing else.
#[test]
fn a_worker_that_drains_finishes_its_job_and_refuses_others() {
    let base = Base::new();
    let worker = worker(WorkerConfig { jobs_max: 4, ..WorkerConfig::default() });
    let front = Front::before(worker.address(), PDUS, Some((60, Event::Hold)));
    let (first, second) = thread::scope(|scope| {
        let first = scope.spawn(|| base.run(config(&[front.address])));
        while !front.ways.devices.lock().last().is_some_and(|device| device.has_happened()) {
            thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(worker.counters().running, 1);
        worker.drain();
        let second = base.run(config(&[worker.address()]));
        front.let_go();
        (first.join().unwrap(), second)
    });
    assert_eq!((first.elsewhere, first.returned), (1, 0), "{}", first.log);
    assert_eq!((second.elsewhere, second.returned), (0, 1), "{}", second.log);
    assert!(second.log.contains("about to end"), "{}", second.log);
    let counters = worker.counters();
    assert_eq!((counters.done, counters.refused, counters.running), (1, 1, 0));
}

/// What is over is over, also for one that connects again.
#[test]
fn nobody_connects_again_to_a_job_that_is_over() {
    let base = Base::new();
    let tried = Arc::<AtomicBool>::default();
    let tries = Arc::clone(&tried);
    let rogue = Rogue::start(move |mut channel| {
        let job = take(&mut channel);
        let (device, place) = (Arc::new(job.device), first_output(&job.spec));
        let result = rogues::work(&job.spec, Arc::clone(&device) as Arc<dyn WorkerDevice>);
        channel.tell(&rogues::done(job.epoch, &result)).unwrap();
        // Until the store has taken the namespace away.
        while device.read(0, &mut [0; 4096]).is_ok() {}
        let e = device.write(place, &[0; 4096]).unwrap_err();
        assert_eq!(device.reconnects(), 0, "{e}");
        tries.store(true, Ordering::Release);
    });
    let done = base.run(config(&[rogue.address]));
    assert_eq!((done.elsewhere, done.returned), (1, 0), "{}", done.log);
    drop(rogue);
    assert!(tried.load(Ordering::Acquire));
}

/// Where the first output of a job begins.
fn first_output(spec: &[u8]) -> u64 {
    let spec = WorkerMachine::new(JobRegistry::default(), 1, clock()).accept(spec).unwrap();
    spec.space.first().unwrap().offset
}
