//! Both sides in one process, over sockets; and what comes of a worker that does what it should not.

#[allow(dead_code, reason = "tests of other crates use it, too")]
mod between;
mod connections;
mod databases;
mod external;
mod leases;
mod messages;
#[cfg(feature = "nats")]
mod nats;
mod network;
mod pools;
#[cfg(any(feature = "tls", feature = "nats"))]
mod remembers;
mod rogues;
#[cfg(feature = "tls")]
mod tls;
mod workers;

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rockmill::internals::RemoteUsage;
use rockmill::{Db, DbCounters, IteratorMode, Options};
use rockmill_io::{Clock, SystemClock};
use rockmill_nvme::auth::{Hash, Secret, SystemRandom};

use crate::channel::Channel;
use crate::message::Message;
use crate::{Check, PoolConfig, PoolCredentials, Secrets, Worker, WorkerConfig, Workers, WorkersConfig};

const HOST: &str = "nqn.2026-11.rockmill:host";
const WORKER: &str = "nqn.2026-11.rockmill:worker";

fn clock() -> Arc<dyn Clock> {
    Arc::new(SystemClock::default())
}

fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

fn worker(config: WorkerConfig) -> Worker {
    Worker::start(listener(), config, clock()).unwrap()
}

/// A pair of secrets, as each side has them.
fn secrets() -> (Secrets, Secrets) {
    let [host, worker] = [0; 2].map(|_| Secret::generate(Some(Hash::Sha256), &SystemRandom).unwrap());
    let of_host = Secrets::new(host.clone(), BTreeMap::from([(WORKER.to_owned(), worker.clone())])).unwrap();
    (of_host, Secrets::new(worker, BTreeMap::from([(HOST.to_owned(), host)])).unwrap())
}

/// Every job goes to these, and what fails is not held against them.
fn config(workers: &[SocketAddr]) -> WorkersConfig {
    WorkersConfig { input_bytes_min: 0, pause: Duration::ZERO, ..WorkersConfig::new(workers.to_vec()) }
}

fn options(config: WorkersConfig) -> Options {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_disable_auto_compactions(true);
    options.set_write_buffer_size(256 << 10);
    options.set_target_file_size_base(200 << 10);
    options.set_compaction_workers(Workers::new(config, clock()).unwrap());
    options
}

type Contents = BTreeMap<Vec<u8>, Vec<u8>>;

fn contents(db: &Db) -> Contents {
    db.iterator(IteratorMode::Start).map(|entry| entry.unwrap()).map(|(k, v)| (k.to_vec(), v.to_vec())).collect()
}

/// Writes some tables that overlap, with tombstones, and gives what there is then.
fn fill(db: &Db, seed: u64) -> Contents {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut all = Contents::new();
    for round in 0..4 {
        for _ in 0..3000 {
            let key = format!("key {:06}", rng.u32(0..8000)).into_bytes();
            if rng.u8(0..10) == 0 {
                db.delete(&key).unwrap();
                all.remove(&key);
            } else {
                let value: Vec<u8> = (0..rng.usize(20..120)).map(|_| rng.u8(..)).collect();
                db.put(&key, &value).unwrap();
                all.insert(key, value);
            }
        }
        if round == 2 {
            let (from, to) = (b"key 002000".to_vec(), b"key 002500".to_vec());
            let mut batch = rockmill::WriteBatch::default();
            batch.delete_range(&from, &to);
            db.write(&batch).unwrap();
            all.retain(|key, _| *key < from || *key >= to);
        }
        db.flush().unwrap();
    }
    all
}

fn compact(db: &Db) {
    db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
}

/// Every table in the directory is one of the database's.
fn nothing_is_left(db: &Db, dir: &Path) {
    let live: Vec<String> = db.live_files().unwrap().into_iter().map(|f| f.name).collect();
    let tables = || {
        let names = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.ends_with(".sst")).collect::<Vec<_>>()
    };
    // What was replaced goes a little later.
    for _ in 0..500 {
        if tables().len() == live.len() {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("{:?} where {live:?} are live", tables());
}

/// Fills a database, compacts it with these workers, and checks everything; gives how many jobs were done elsewhere,
/// and how many came back.
fn run_database(config: WorkersConfig) -> (u64, u64) {
    let counters = run_counted(config);
    (counters.compactions_elsewhere, counters.compactions_returned)
}

/// The same; gives all counters of the database.
fn run_counted(config: WorkersConfig) -> DbCounters {
    let dir = tempfile::tempdir().unwrap();
    let options = options(config);
    let db = Db::open(&options, dir.path()).unwrap();
    let all = fill(&db, 1);
    compact(&db);
    assert!(contents(&db) == all);
    nothing_is_left(&db, dir.path());
    let counters = db.counters();
    drop(db);
    let db = Db::open(&options, dir.path()).unwrap();
    assert!(contents(&db) == all);
    nothing_is_left(&db, dir.path());
    counters
}

/// Another kind of worker: does what `act` does with each store that connects, until it is dropped.
struct Rogue {
    address: SocketAddr,
    stop: Arc<std::sync::atomic::AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Rogue {
    fn start(act: impl Fn(Channel) + Send + 'static) -> Self {
        let listener = listener();
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        let stop = Arc::<std::sync::atomic::AtomicBool>::default();
        let stops = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            while !stops.load(std::sync::atomic::Ordering::Acquire) {
                match listener.accept() {
                    Ok((stream, _)) => act(Channel::new(stream, clock()).unwrap()),
                    Err(_) => thread::sleep(Duration::from_millis(5)),
                }
            }
        });
        Self { address, stop, thread: Some(thread) }
    }
}

impl Drop for Rogue {
    fn drop(&mut self) {
        self.stop.store(true, std::sync::atomic::Ordering::Release);
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || thread::panicking(), "a rogue's own check failed");
    }
}

/// The next message, which must come.
fn next(channel: &mut Channel) -> Message {
    channel.receive(Duration::from_secs(10)).unwrap().expect("a message")
}
