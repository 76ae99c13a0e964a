//! Connections that are kept from one job to the next, and what becomes of those that broke meanwhile.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

use super::*;
use crate::VERSION;

/// A connection that is open, and whether bytes on it are swallowed.
type Open = (TcpStream, Arc<AtomicBool>);

/// Hands bytes on between stores and a worker, until it is told to cut what is open, or to swallow it from then on.
struct Relay {
    address: SocketAddr,
    open: Arc<Mutex<Vec<Open>>>,
}

impl Relay {
    fn before(worker: SocketAddr) -> Self {
        let listener = listener();
        let address = listener.local_addr().unwrap();
        let open = Arc::<Mutex<Vec<(TcpStream, Arc<AtomicBool>)>>>::default();
        let all = Arc::clone(&open);
        // It ends with the process.
        thread::spawn(move || {
            for store in listener.incoming().flatten() {
                let Ok(worker) = TcpStream::connect(worker) else { return };
                let swallows = Arc::<AtomicBool>::default();
                for (from, to) in [(&store, &worker), (&worker, &store)] {
                    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    all.lock().push((from.try_clone().unwrap(), Arc::clone(&swallows)));
                    let swallows = Arc::clone(&swallows);
                    thread::spawn(move || {
                        let mut buffer = [0; 4096];
                        while let Ok(n @ 1..) = io::Read::read(&mut from, &mut buffer) {
                            if !swallows.load(Ordering::Acquire) && io::Write::write_all(&mut to, &buffer[..n]).is_err()
                            {
                                break;
                            }
                        }
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
            }
        });
        Self { address, open }
    }

    fn cut(&self) {
        self.open.lock().drain(..).for_each(|(stream, _)| drop(stream.shutdown(Shutdown::Both)));
    }

    /// What is open stays open, and nothing comes through any more.
    fn swallow(&self) {
        self.open.lock().drain(..).for_each(|(_, swallows)| swallows.store(true, Ordering::Release));
    }
}

/// A database with a job to be done, again and again.
struct Jobs {
    dir: tempfile::TempDir,
    db: Db,
    done: u64,
}

impl Jobs {
    fn new(workers: &Arc<Workers>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut options = options(config(&[]));
        options.set_compaction_workers(Arc::clone(workers) as _);
        let db = Db::open(&options, dir.path()).unwrap();
        Self { dir, db, done: 0 }
    }

    /// Has some more done, and gives how many were done elsewhere and how many here.
    fn run(&mut self) -> (u64, u64) {
        let before = self.db.counters();
        self.done += 1;
        let all = fill(&self.db, self.done);
        compact(&self.db);
        // What is left of earlier rounds is deleted or written again, or stays.
        assert!(all.iter().all(|(key, value)| self.db.get(key).unwrap().as_deref() == Some(value)));
        let after = self.db.counters();
        let elsewhere = after.compactions_elsewhere - before.compactions_elsewhere;
        (elsewhere, after.compactions_returned - before.compactions_returned)
    }

    /// Waits until the log says this: it is written now and then.
    #[track_caller]
    fn logs(&self, what: &str) {
        let log = || std::fs::read_to_string(self.dir.path().join("LOG")).unwrap();
        let said = (0..500).any(|_| {
            let is_said = log().contains(what);
            if !is_said {
                thread::sleep(Duration::from_millis(10));
            }
            is_said
        });
        assert!(said, "{what}: {}", log());
    }
}

fn workers(addresses: &[SocketAddr]) -> Arc<Workers> {
    Workers::new(WorkersConfig { jobs_max: 3, ..config(addresses) }, clock()).unwrap()
}

#[test]
fn a_connection_has_one_job_after_another() {
    let (of_host, of_worker) = secrets();
    let worker = worker(WorkerConfig { jobs_max: 3, secrets: Some(of_worker), ..WorkerConfig::default() });
    let config = WorkersConfig { jobs_max: 3, secrets: Some(of_host), ..config(&[worker.address()]) };
    let workers = Workers::new(config, clock()).unwrap();
    let mut jobs = Jobs::new(&workers);
    for _ in 0..4 {
        let (elsewhere, returned) = jobs.run();
        assert!(elsewhere > 0 && returned == 0, "{elsewhere} done elsewhere, {returned} came back");
    }
    let counters = worker.counters();
    assert!(counters.done >= 4 && counters.connections == 1 && counters.refused == 0, "{counters:?}");
    // Several at once, of several databases: as many connections as there were jobs at once.
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut jobs = Jobs::new(&workers);
                for _ in 0..3 {
                    let (elsewhere, returned) = jobs.run();
                    assert!(elsewhere > 0 && returned == 0, "{elsewhere} done elsewhere, {returned} came back");
                }
            });
        }
    });
    let counters = worker.counters();
    assert!(counters.done >= 13 && (1..=3).contains(&counters.connections), "{counters:?}");
}

#[test]
fn a_kept_connection_that_broke_is_made_again_and_no_job_is_lost() {
    let worker = worker(WorkerConfig { jobs_max: 3, ..WorkerConfig::default() });
    let relay = Relay::before(worker.address());
    let mut jobs = Jobs::new(&workers(&[relay.address]));
    let mut run = || {
        let (elsewhere, returned) = jobs.run();
        assert!(elsewhere > 0 && returned == 0, "{elsewhere} done elsewhere, {returned} came back");
        worker.counters().connections
    };
    assert_eq!((run(), run()), (1, 1));
    relay.cut();
    assert_eq!((run(), run()), (2, 2));
    // Nobody says that this one is broken.
    relay.swallow();
    let since = Instant::now();
    assert_eq!((run(), run()), (3, 3));
    assert!(since.elapsed() < Duration::from_secs(20), "{:?}", since.elapsed());
}

/// One that drains closes what it keeps; the next job is offered on a new connection, and refused.
#[test]
fn a_worker_that_drains_keeps_no_connection() {
    let worker = worker(WorkerConfig::default());
    let mut jobs = Jobs::new(&workers(&[worker.address()]));
    assert!(jobs.run().0 > 0);
    worker.drain();
    let (elsewhere, returned) = jobs.run();
    assert!(elsewhere == 0 && returned > 0, "{elsewhere} done elsewhere, {returned} came back");
    jobs.logs("is about to end");
}

/// A worker that says more of a job than that it is done has a new connection for the next one.
#[test]
fn what_is_said_after_a_job_does_not_reach_the_next_one() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let epochs = Arc::clone(&seen);
    let rogue = Rogue::start(move |mut channel| {
        let job = rogues::take(&mut channel);
        epochs.lock().push(job.epoch);
        let result = rogues::work(&job.spec, Arc::new(job.device));
        channel.tell(&rogues::done(job.epoch, &result)).unwrap();
        for _ in 0..3 {
            let _ = channel.tell(&rogues::done(job.epoch, &result));
            thread::sleep(Duration::from_millis(10));
        }
        // The store may ask whether it is there; whatever it hears, it is no answer.
        let _ = channel.receive(Duration::from_millis(500));
    });
    let mut jobs = Jobs::new(&workers(&[rogue.address]));
    for _ in 0..3 {
        let (elsewhere, returned) = jobs.run();
        assert!(elsewhere > 0 && returned == 0, "{elsewhere} done elsewhere, {returned} came back");
    }
    drop(jobs);
    let epochs = seen.lock().clone();
    assert!(epochs.len() >= 3 && epochs.is_sorted_by(|a, b| a < b), "{epochs:?}");
}

/// Both sides say which versions they speak.
#[test]
fn another_version_is_told() {
    let rogue = Rogue::start(|mut channel| {
        let _ = next(&mut channel);
        let name = WORKER.to_owned();
        let _ = channel.tell(&Message::Welcome { version: VERSION + 1, name, authenticates: false });
    });
    let mut jobs = Jobs::new(&workers(&[rogue.address]));
    let (elsewhere, returned) = jobs.run();
    assert!(elsewhere == 0 && returned > 0, "{elsewhere} done elsewhere, {returned} came back");
    let told = format!("it speaks version {} of the control channel, and this side {VERSION}", VERSION + 1);
    jobs.logs(&told);
    // A worker tells it, too, and a store of another version learns which one the worker has.
    static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let tell: fn(&str) = |line| TOLD.lock().push(line.to_owned());
    let worker = worker(WorkerConfig { tell, ..WorkerConfig::default() });
    let mut store = Channel::new(TcpStream::connect(worker.address()).unwrap(), clock()).unwrap();
    store.tell(&Message::Hello { version: 1, name: HOST.to_owned(), authenticates: false }).unwrap();
    assert!(matches!(next(&mut store), Message::Welcome { version: VERSION, .. }));
    let told = format!("it speaks version 1 of the control channel, and this side {VERSION}");
    for _ in 0..1000 {
        if TOLD.lock().iter().any(|line| line.contains(&told)) {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("{:?}", TOLD.lock());
}

#[test]
fn a_ping_is_answered_or_not() {
    let pair = || {
        let listener = listener();
        let theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mine = listener.accept().unwrap().0;
        [mine, theirs].map(|socket| Channel::new(socket, clock()).unwrap())
    };
    let ping = |answers: Vec<Message>| {
        let [mut mine, mut theirs] = pair();
        thread::scope(|scope| {
            let answered = scope.spawn(move || {
                assert_eq!(next(&mut theirs), Message::Ping { number: 7 });
                answers.iter().for_each(|answer| theirs.tell(answer).unwrap());
                theirs
            });
            let pinged = mine.ping(7, Duration::from_millis(300), &|| false).map_err(|e| e.kind());
            drop(answered.join().unwrap());
            (pinged, mine.is_clean())
        })
    };
    let (idle, pong) = (|| Message::Idle, |number| Message::Pong { number });
    assert_eq!(ping(vec![pong(7)]), (Ok(()), true));
    assert_eq!(ping(vec![idle(), idle(), pong(7)]), (Ok(()), true));
    assert_eq!(ping(vec![pong(6)]).0, Err(io::ErrorKind::InvalidData));
    assert_eq!(ping(vec![Message::Cancel { epoch: 1 }]).0, Err(io::ErrorKind::InvalidData));
    assert_eq!(ping(vec![]).0, Err(io::ErrorKind::TimedOut));
}
