//! `kill -9` of the worker and of the host at every step of a lease, and writes that arrive after its end.
//!
//! A proxy between both sees each message of the control channel, and each byte of the device's connections. A first
//! run records this traffic. Then the job runs once for each recorded point and each side: the proxy kills the side
//! when it has received that point's data, before it forwards it.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Child;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rockmill::{Db, Options};
use rockmill_io::SystemClock;
use rockmill_offload::{Workers, WorkersConfig};

use super::*;

const HELLO: u8 = 1;
const WELCOME: u8 = 2;
const OFFER: u8 = 4;
const ACCEPTED: u8 = 5;
const PROGRESS: u8 = 7;
const DONE: u8 = 8;

/// A point in the course of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Point {
    /// The message of this kind.
    Message(u8),
    /// This many bytes of the device's connections, in both directions together.
    Bytes(u64),
}

/// The traffic, and the action at a point.
#[derive(Default)]
struct Course {
    messages: Mutex<Vec<u8>>,
    bytes: AtomicU64,
    point: Option<Point>,
    /// Done once, at the point.
    act: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    acted: AtomicBool,
    /// From the point on, nothing is forwarded until this is released.
    holds: bool,
    let_go: AtomicBool,
}

impl Course {
    fn act(&self) {
        if let Some(act) = self.act.lock().expect("no panic").take() {
            // Set before the action: a thread that waits for the end of the killed process reads it.
            self.acted.store(true, Ordering::Release);
            act();
        }
        while self.holds && !self.let_go.load(Ordering::Acquire) {
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn message(&self, kind: u8) {
        if kind != PROGRESS {
            self.messages.lock().expect("no panic").push(kind);
        }
        if self.point == Some(Point::Message(kind)) || self.acted.load(Ordering::Acquire) {
            self.act();
        }
    }

    fn bytes(&self, n: usize) {
        let all = self.bytes.fetch_add(n as u64, Ordering::AcqRel) + n as u64;
        let is_here = matches!(self.point, Some(Point::Bytes(at)) if all >= at);
        if is_here || self.acted.load(Ordering::Acquire) {
            self.act();
        }
    }
}

/// CRC-32C, as frames have it.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

/// Puts itself between the worker and the device that an offer names.
fn redirect(course: &Arc<Course>, body: &mut [u8]) {
    // Kind and epoch, then the ticket and the name, each behind its length.
    let behind = |at: usize| at + 1 + usize::from(body[at]);
    let at = behind(behind(1 + 8));
    let port = u16::from_le_bytes([body[at], body[at + 1]]);
    let course = Arc::clone(course);
    let address = listen(move |worker| {
        if let Ok(host) = TcpStream::connect(("127.0.0.1", port)) {
            for (from, to) in [(&worker, &host), (&host, &worker)] {
                let course = Arc::clone(&course);
                pump(from, to, move |mut from, mut to| {
                    let mut buffer = vec![0; 16 << 10];
                    loop {
                        let n = from.read(&mut buffer)?;
                        if n == 0 {
                            return Ok(());
                        }
                        course.bytes(n);
                        to.write_all(&buffer[..n])?;
                    }
                });
            }
        }
    });
    body[at..at + 2].copy_from_slice(&address.port().to_le_bytes());
}

/// Accepts connections as long as the test runs.
fn listen(act: impl Fn(TcpStream) + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || listener.incoming().flatten().for_each(act));
    address
}

/// Forwards data from one side; then both end.
fn pump(
    from: &TcpStream,
    to: &TcpStream,
    body: impl FnOnce(TcpStream, TcpStream) -> std::io::Result<()> + Send + 'static,
) {
    let [mine, theirs] = [from, to].map(|stream| stream.try_clone().expect("a descriptor"));
    let [from, to] = [from, to].map(|stream| stream.try_clone().expect("a descriptor"));
    thread::spawn(move || {
        let _ = body(mine, theirs); // a dead side is expected here
        for stream in [from, to] {
            let _ = stream.shutdown(Shutdown::Both);
        }
    });
}

/// The address of a proxy in front of the worker.
fn proxy(worker: &str, course: &Arc<Course>) -> SocketAddr {
    let (worker, course) = (worker.to_owned(), Arc::clone(course));
    listen(move |host| {
        let Ok(worker) = TcpStream::connect(&worker) else { return };
        for (from, to) in [(&host, &worker), (&worker, &host)] {
            let course = Arc::clone(&course);
            pump(from, to, move |mut from, mut to| {
                loop {
                    let mut head = [0; 8];
                    from.read_exact(&mut head)?;
                    let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
                    assert!(length <= 64 << 20, "a message of {length} bytes");
                    let mut body = vec![0; length];
                    from.read_exact(&mut body)?;
                    course.message(body[0]);
                    if body[0] == OFFER {
                        redirect(&course, &mut body);
                    }
                    head[4..].copy_from_slice(&crc32c(&body).to_le_bytes());
                    to.write_all(&[&head[..], &body].concat())?;
                }
            });
        }
    })
}

/// A database with tables to compact, and its contents. Each test gets a copy.
struct Base {
    s: Sandbox,
    contents: String,
}

impl Base {
    fn new() -> Self {
        let s = Sandbox::new();
        let mut rng = fastrand::Rng::with_seed(5);
        for (file, keys) in [("a.tsv", 0..4000), ("b.tsv", 2000..6000)] {
            let mut row = |key: u32| {
                let value: String = (0..100).map(|_| rng.alphanumeric()).collect();
                format!("key{:07}\t{value}\n", u64::from(key) * 7919 % 100_003)
            };
            s.file(file, keys.map(&mut row).collect::<String>());
        }
        for file in ["a.tsv", "b.tsv"] {
            s.ok(&["load", "base", file, "--option", "disable_auto_compactions=true"]);
            s.ok(&["flush", "base", "--option", "disable_auto_compactions=true"]);
        }
        let contents = s.ok(&["scan", "base"]);
        Self { s, contents }
    }

    fn copy(&self, name: &str) {
        let to = self.s.path(name);
        let _ = std::fs::remove_dir_all(&to);
        std::fs::create_dir(&to).expect("a folder");
        for entry in std::fs::read_dir(self.s.path("base")).expect("the base") {
            let entry = entry.expect("an entry");
            std::fs::copy(entry.path(), to.join(entry.file_name())).expect("a copy");
        }
    }

    /// Checks that nothing is lost, and that after an open all files belong to the database.
    #[track_caller]
    fn check(&self, name: &str, what: &str) {
        self.s.ok(&["verify", name]);
        assert!(self.s.ok(&["scan", name]) == self.contents, "{what}: other contents");
        let mut options = Options::default();
        options.set_disable_auto_compactions(true);
        let db = Db::open(&options, self.s.path(name)).expect("it opens");
        let live = db.live_files().expect("its tables").len();
        for _ in 0..500 {
            if self.s.files(name, ".sst").len() == live {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        panic!("{what}: {:?} where {live} tables are live", self.s.files(name, ".sst"));
    }
}

/// A compaction in another process.
fn compact(base: &Base, name: &str, workers: &str) -> Child {
    Command::new(ROCKMILL)
        .args(["compact", name, "--worker-input-min", "0", "--compaction-workers", workers])
        .current_dir(base.s.dir.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the command starts")
}

/// Waits for a process without holding the lock, so that another thread can kill it. True if it succeeded.
fn ended(child: &Mutex<Option<Child>>) -> bool {
    for _ in 0..6000 {
        let status = child.lock().expect("no panic").as_mut().expect("it was started").try_wait();
        if let Some(status) = status.expect("a status") {
            return status.success();
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("it does not end");
}

type Victim = Arc<Mutex<Option<Child>>>;

/// Kills a process as soon as it exists.
fn kills(victim: &Victim) -> Box<dyn FnOnce() + Send> {
    let victim = Arc::clone(victim);
    Box::new(move || {
        loop {
            if let Some(child) = &mut *victim.lock().expect("no panic") {
                let _ = child.kill(); // it may have ended by itself
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
    })
}

/// The traffic of an undisturbed job: messages, and bytes of the device's connections.
fn recorded(base: &Base) -> (Vec<u8>, u64) {
    let worker = Worker::start(base.s.dir.path(), &[]);
    let course = Arc::new(Course::default());
    base.copy("recorded");
    let mut child = compact(base, "recorded", &proxy(&worker.address, &course).to_string());
    assert!(child.wait().expect("it ends").success());
    assert!(log(&base.s, "recorded").contains("Done by worker"));
    base.check("recorded", "nothing happened");
    let messages = course.messages.lock().expect("no panic").clone();
    (messages, course.bytes.load(Ordering::Acquire))
}

/// The points of a job, from a recorded one.
fn points(messages: &[u8], bytes: u64) -> Vec<Point> {
    assert_eq!(messages, [HELLO, WELCOME, OFFER, ACCEPTED, DONE]);
    assert!(bytes > 500_000, "{bytes}");
    let (before, after) = messages.split_at(4);
    let parts = [1, bytes / 5, bytes * 2 / 5, bytes * 3 / 5, bytes * 4 / 5, bytes * 9 / 10].map(Point::Bytes);
    let as_points = |kinds: &[u8]| kinds.iter().map(|kind| Point::Message(*kind)).collect::<Vec<_>>();
    [as_points(before), parts.to_vec(), as_points(after)].concat()
}

#[test]
fn a_worker_that_is_killed_at_any_step_costs_nothing_but_time() {
    let base = Base::new();
    let (messages, bytes) = recorded(&base);
    for point in points(&messages, bytes) {
        let what = format!("the worker was killed at {point:?}");
        let mut worker = Worker::start(base.s.dir.path(), &[]);
        let victim = Victim::default();
        let act = Mutex::new(Some(kills(&victim)));
        let course = Arc::new(Course { point: Some(point), act, ..Course::default() });
        let address = worker.address.clone();
        *victim.lock().expect("no panic") = worker.child.take();
        base.copy("db");
        let host = Mutex::new(Some(compact(&base, "db", &proxy(&address, &course).to_string())));
        assert!(ended(&host), "{what}: the compaction failed");
        assert!(course.acted.load(Ordering::Acquire), "{what}: it was not");
        assert!(!ended(&victim), "{what}: it lives");
        let said = log(&base.s, "db");
        // A worker that has already sent its result is done.
        let is_done = point == Point::Message(DONE);
        assert_eq!(said.contains("Done by worker"), is_done, "{what}: {said}");
        assert_eq!(said.contains("Not done by a worker, and done here"), !is_done, "{what}: {said}");
        base.check("db", &what);
    }
}

#[test]
fn a_host_that_is_killed_at_any_step_loses_and_leaves_nothing() {
    let base = Base::new();
    let (messages, bytes) = recorded(&base);
    // Two jobs at a time: if jobs of dead hosts were not abandoned, there would soon be no room.
    let worker = Worker::start(base.s.dir.path(), &["--jobs", "2"]);
    for point in points(&messages, bytes) {
        let what = format!("the host was killed at {point:?}");
        let victim = Victim::default();
        let act = Mutex::new(Some(kills(&victim)));
        let course = Arc::new(Course { point: Some(point), act, ..Course::default() });
        base.copy("db");
        let child = compact(&base, "db", &proxy(&worker.address, &course).to_string());
        *victim.lock().expect("no panic") = Some(child);
        assert!(!ended(&victim), "{what}: it lives");
        assert!(course.acted.load(Ordering::Acquire), "{what}: it was not");
        base.check("db", &what);
        // The next host gets the same job done by the same worker.
        let next = Mutex::new(Some(compact(&base, "db", &worker.address)));
        assert!(ended(&next), "{what}: the next compaction failed");
        assert!(log(&base.s, "db").contains("Done by worker"), "{what}: {}", log(&base.s, "db"));
        base.check("db", &what);
    }
}

/// What the host's directory shows between a worker's result and its commit.
#[derive(Debug, Clone, Copy)]
enum Sign {
    /// So many outputs have their final length: the host took them away from the worker, and checks them.
    Finished(usize),
    /// The manifest has grown: the result is committed, and the inputs are to be deleted.
    Committed,
}

/// The files of a directory, with their lengths.
fn lengths(dir: &Path) -> BTreeMap<PathBuf, u64> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| Some((entry.path(), entry.metadata().ok()?.len()))).collect()
}

impl Sign {
    fn is_there(self, dir: &Path, before: &BTreeMap<PathBuf, u64>) -> bool {
        let now = lengths(dir);
        let named = |path: &Path, part: &str| path.file_name().is_some_and(|n| n.to_string_lossy().contains(part));
        match self {
            // A worker writes whole blocks.
            Self::Finished(count) => {
                let outputs = now.iter().filter(|(path, length)| named(path, ".sst") && *length % 4096 != 0);
                outputs.filter(|(path, _)| before.get(*path).is_none_or(|old| old % 4096 == 0)).count() >= count
            }
            Self::Committed => now
                .iter()
                .any(|(path, length)| named(path, "MANIFEST-") && before.get(path).is_some_and(|b| b < length)),
        }
    }
}

/// The worker is done, and the host dies before or just after it has committed: the next open removes what is left.
#[test]
fn a_host_that_is_killed_between_a_result_and_its_commit_loses_and_leaves_nothing() {
    let base = Base::new();
    let worker = Worker::start(base.s.dir.path(), &["--jobs", "2"]);
    let compact = |workers: &str| {
        let args = ["compact", "db", "--worker-input-min", "0", "--target-file-size", "100K", "--compaction-workers"];
        let mut command = Command::new(ROCKMILL);
        command.args(args).arg(workers).current_dir(base.s.dir.path());
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the command starts")
    };
    base.copy("db");
    assert!(compact(&worker.address).wait().expect("it ends").success());
    let outputs = base.s.files("db", ".sst").len();
    let inputs = base.s.files("base", ".sst").len();
    assert!(outputs > 3, "{outputs} outputs");
    let (mut before_commit, mut killed) = (0, 0);
    for sign in (1..=outputs).map(Sign::Finished).chain([Sign::Committed]) {
        let what = format!("the host was killed at {sign:?}");
        let victim = Victim::default();
        let (dir, theirs) = (base.s.path("db"), Arc::clone(&victim));
        let watches: Box<dyn FnOnce() + Send> = Box::new(move || {
            let before = lengths(&dir);
            thread::spawn(move || {
                // As often as possible: the time between two signs is short.
                while !sign.is_there(&dir, &before) {
                    let mut child = theirs.lock().expect("no panic");
                    if child.as_mut().is_some_and(|child| !matches!(child.try_wait(), Ok(None))) {
                        return;
                    }
                }
                kills(&theirs)();
            });
        });
        let point = Some(Point::Message(DONE));
        let course = Arc::new(Course { point, act: Mutex::new(Some(watches)), ..Course::default() });
        base.copy("db");
        *victim.lock().expect("no panic") = Some(compact(&proxy(&worker.address, &course).to_string()));
        killed += u32::from(!ended(&victim));
        assert!(course.acted.load(Ordering::Acquire), "{what}: there was no result");
        let left = base.s.files("db", ".sst").len();
        let mut options = Options::default();
        options.set_disable_auto_compactions(true);
        let db = Db::open(&options, base.s.path("db")).expect("it opens");
        let live = db.live_files().expect("its tables").len();
        drop(db);
        before_commit += u32::from(live == inputs && left > inputs);
        base.check("db", &what);
        // The next host gets the job done.
        let mut next = compact(&worker.address);
        assert!(next.wait().expect("it ends").success(), "{what}: the next compaction failed");
        base.check("db", &what);
    }
    // The last one may have ended by itself.
    assert!(killed as usize >= outputs, "{killed} of {} were killed", outputs + 1);
    assert!(before_commit > 1, "{before_commit} of {outputs} were killed before the commit, with outputs left");
}

/// From some point on, nothing is forwarded between both sides. The host abandons the job and does it itself. The
/// worker's data arrives only afterwards, when other files have replaced its targets.
#[test]
fn what_arrives_when_the_lease_is_over_changes_nothing() {
    let base = Base::new();
    let (messages, bytes) = recorded(&base);
    let worker = Worker::start(base.s.dir.path(), &["--jobs", "20"]);
    let clock = || Arc::new(SystemClock::default());
    for point in points(&messages, bytes).into_iter().filter(|point| matches!(point, Point::Bytes(_))) {
        let what = format!("nothing arrived from {point:?} on");
        let act: Box<dyn FnOnce() + Send> = Box::new(|| {});
        let act = Mutex::new(Some(act));
        let course = Arc::new(Course { point: Some(point), act, holds: true, ..Course::default() });
        base.copy("db");
        let workers = WorkersConfig {
            input_bytes_min: 0,
            silence_max: Duration::from_secs(1),
            ..WorkersConfig::new(vec![proxy(&worker.address, &course)])
        };
        let mut options = Options::default();
        options.set_disable_auto_compactions(true);
        options.set_compaction_workers(Workers::new(workers, clock()).expect("workers"));
        let db = Db::open(&options, base.s.path("db")).expect("it opens");
        db.compact_range(None::<&[u8]>, None::<&[u8]>).expect("a compaction");
        let counters = db.counters();
        assert_eq!((counters.compactions_elsewhere, counters.compactions_returned), (0, 1), "{what}");
        let tables = || {
            let all = base.s.files("db", ".sst").into_iter();
            all.map(|path| (path.clone(), std::fs::read(path).expect("a table"))).collect::<Vec<_>>()
        };
        let live = db.live_files().expect("its tables").len();
        while tables().len() != live {
            thread::sleep(Duration::from_millis(5)); // replaced files are deleted a little later
        }
        let before = tables();
        course.let_go.store(true, Ordering::Release);
        thread::sleep(Duration::from_millis(300));
        assert!(before == tables(), "{what}: a late write changed a table");
        drop(db);
        base.check("db", &what);
    }
}
