//! Pools through a real NATS server: two workers and stores, workers that die with a job, servers that are gone, mute
//! or ask for something, and what comes twice or too late.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use parking_lot::Mutex;
use rockmill_skip::{Missing, Needs, program, skip};

use super::remembers::done_twice;
use super::*;
use crate::VERSION;
use crate::pool::{QueuedJob, slot_to_text};

/// Where the server is: installed, which is not on everybody's path, or where `scripts/setup` unpacks it.
fn binary() -> Result<PathBuf, Missing> {
    let unpacked = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/nats/usr/sbin/nats-server");
    let there = [PathBuf::from("/usr/sbin/nats-server"), unpacked].into_iter().find(|path| path.is_file());
    there.map_or_else(|| program("nats-server", Needs::NatsServer), Ok)
}

/// A NATS server with JetStream, and these lines in its configuration. It is killed when it is dropped.
struct Server {
    dir: tempfile::TempDir,
    port: u16,
    child: Option<Child>,
}

impl Server {
    /// `None`: there is no server here, which has been said.
    fn start(test: &str, lines: &str) -> Option<Self> {
        if let Err(missing) = binary() {
            skip(test, &missing);
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let port = listener().local_addr().unwrap().port();
        let store = dir.path().join("js");
        let config = format!("listen: \"127.0.0.1:{port}\"\njetstream {{ store_dir: {store:?} }}\n{lines}\n");
        std::fs::write(dir.path().join("nats.conf"), config).unwrap();
        let mut server = Self { dir, port, child: None };
        server.run();
        Some(server)
    }

    fn run(&mut self) {
        let mut command = Command::new(binary().unwrap());
        command.arg("-c").arg(self.dir.path().join("nats.conf")).arg("-l").arg(self.dir.path().join("log"));
        self.child = Some(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        let log = || std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
        until("the server is ready", || log().contains("Server is ready"));
    }

    /// SIGKILL.
    fn kill(&mut self) {
        let mut child = self.child.take().expect("it runs");
        child.kill().unwrap();
        child.wait().unwrap();
        std::fs::remove_file(self.dir.path().join("log")).unwrap();
    }

    fn pool(&self) -> PoolConfig {
        let lease = Duration::from_secs(1);
        PoolConfig { lease, ..PoolConfig::new(vec![format!("nats://127.0.0.1:{}", self.port)]) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[track_caller]
fn until(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..2000 {
        if is_so() {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("{what}: not within 20 s");
}

/// A client of NATS that knows nothing of ours: the protocol is lines.
struct Raw {
    stream: BufReader<TcpStream>,
}

impl Raw {
    fn connect(server: &Server) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut raw = Self { stream: BufReader::new(stream) };
        raw.say("CONNECT {\"verbose\":false,\"headers\":true,\"no_responders\":true}\r\nSUB _INBOX.raw 1\r\n");
        raw
    }

    fn say(&mut self, text: &str) {
        self.stream.get_mut().write_all(text.as_bytes()).unwrap();
    }

    /// The next message.
    fn next(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.stream.read_line(&mut line).unwrap() > 0, "the server closed the connection");
            let words: Vec<&str> = line.split_whitespace().collect();
            let length = match words.first() {
                Some(&"PING") => {
                    self.say("PONG\r\n");
                    continue;
                }
                Some(&("MSG" | "HMSG")) => words.last().unwrap().parse::<usize>().unwrap(),
                _ => continue,
            };
            let mut body = vec![0; length + 2];
            self.stream.read_exact(&mut body).unwrap();
            return String::from_utf8(body[..length].to_vec()).unwrap();
        }
    }

    /// Publishes, with an answer to be sent to this client.
    fn ask(&mut self, subject: &str, text: &str) {
        self.say(&format!("PUB {subject} _INBOX.raw {}\r\n{text}\r\n", text.len()));
    }

    /// What the server says of the consumer of all workers.
    fn consumer(&mut self) -> String {
        self.ask(&format!("$JS.API.CONSUMER.INFO.rockmill-default-{VERSION}.workers"), "");
        self.next()
    }

    /// Pulls a job, as a worker does.
    fn pull(&mut self) -> QueuedJob {
        let question = "{\"batch\":1,\"expires\":15000000000}";
        self.ask(&format!("$JS.API.CONSUMER.MSG.NEXT.rockmill-default-{VERSION}.workers"), question);
        let text = self.next();
        QueuedJob::parse(text.as_bytes()).unwrap_or_else(|| panic!("no job: {text:?}"))
    }

    /// Says that there is a worker with room for it; gives what the store says.
    fn offer_room(&mut self, job: &QueuedJob, address: SocketAddr) -> String {
        self.ask(&job.inbox, &slot_to_text(address));
        self.next()
    }
}

/// The number of this name in an answer of the server's.
fn number(answer: &str, name: &str) -> Option<u64> {
    let rest = answer.split_once(&format!("\"{name}\":"))?.1;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

fn pool_worker(pool: PoolConfig) -> Worker {
    worker(WorkerConfig { pool: Some(pool), ..WorkerConfig::default() })
}

/// All jobs go to the pool, and wait for as long as a test may take.
fn pool_config(pool: PoolConfig) -> WorkersConfig {
    WorkersConfig { pool: Some(pool), pool_wait: Duration::from_secs(20), ..config(&[]) }
}

/// A worker that has made the queue and its consumer, and takes no job.
fn idle_worker(server: &Server, raw: &mut Raw) -> Worker {
    let worker = pool_worker(server.pool());
    worker.drain();
    let raw = Mutex::new(raw);
    until("there is a consumer", || raw.lock().consumer().contains("\"ack_wait\":1000000000"));
    worker
}

/// Compacts a database once; gives its counters, and what its log says of jobs that came back.
fn run_logged(config: WorkersConfig) -> (DbCounters, String) {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(&options(config), dir.path()).unwrap();
    let all = fill(&db, 1);
    compact(&db);
    assert!(contents(&db) == all);
    nothing_is_left(&db, dir.path());
    let counters = db.counters();
    drop(db); // which writes what the log still gathers
    let log = std::fs::read_to_string(dir.path().join("LOG")).unwrap();
    let said: Vec<&str> = log.lines().filter(|line| line.contains("Not done by a worker")).collect();
    (counters, said.join("\n"))
}

#[test]
fn two_workers_do_the_jobs_of_three_stores_and_nothing_is_left_in_the_queue() {
    let Some(server) = Server::start("two_workers_of_a_pool", "") else { return };
    let (of_host, of_worker) = secrets();
    let secrets = Some(of_worker);
    let workers = [0; 2].map(|_| {
        worker(WorkerConfig { pool: Some(server.pool()), secrets: secrets.clone(), ..WorkerConfig::default() })
    });
    let stores = [0; 3].map(|_| {
        let config = WorkersConfig { secrets: Some(of_host.clone()), ..pool_config(server.pool()) };
        thread::spawn(|| run_counted(config))
    });
    let counters = stores.map(|store| store.join().unwrap());
    let elsewhere: u64 = counters.iter().map(|c| c.compactions_elsewhere).sum();
    for c in &counters {
        assert!(c.compactions_elsewhere > 0 && c.compactions_returned == 0, "{c:?}");
        assert_eq!(c.compactions_offered_again, 0);
    }
    let [a, b] = workers.each_ref().map(Worker::counters);
    assert_eq!((a.done + b.done, a.pulled + b.pulled), (elsewhere, elsewhere), "{a:?} {b:?}");
    assert_eq!((a.failed + b.failed, a.refused + b.refused, a.running + b.running), (0, 0, 0));
    // As the server has it, each was acknowledged once, or taken back by its store.
    let raw = Mutex::new(Raw::connect(&server));
    until("the queue is empty", || {
        let info = raw.lock().consumer();
        number(&info, "num_pending") == Some(0) && number(&info, "num_ack_pending") == Some(0)
    });
}

/// The test's own worker records what it read. A merge of that without a network writes the tables that the store has.
#[test]
fn tables_are_the_same_bytes_as_without_a_pool() {
    let Some(server) = Server::start("tables_of_a_pool_are_the_same_bytes", "") else { return };
    let made = Arc::new(Mutex::new(Vec::new()));
    let makes = Arc::clone(&made);
    let rogue = Rogue::start(move |mut channel| {
        let job = rogues::take(&mut channel);
        let epoch = job.epoch;
        let (result, outputs) = done_twice(job);
        makes.lock().extend(outputs);
        channel.tell(&rogues::done(epoch, &result)).unwrap();
    });
    let mut raw = Raw::connect(&server);
    let _idle = idle_worker(&server, &mut raw);
    let pulls = thread::spawn({
        let address = rogue.address;
        move || {
            let job = raw.pull();
            let said = raw.offer_room(&job, address);
            // The same message, delivered to somebody else in the meantime: the job has its worker.
            (said, raw.offer_room(&job, address))
        }
    });
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(&options(pool_config(server.pool())), dir.path()).unwrap();
    for round in 0..3 {
        for i in 0..2000 {
            db.put(format!("key {i:05}").as_bytes(), format!("value {round} {i}").as_bytes()).unwrap();
        }
        db.flush().unwrap();
    }
    compact(&db);
    assert_eq!(pulls.join().unwrap().0, "yes");
    let counters = db.counters();
    assert_eq!((counters.compactions_elsewhere, counters.compactions_returned), (1, 0));
    let (live, made) = (db.live_files().unwrap(), made.lock());
    assert!(!live.is_empty());
    for file in &live {
        let table = std::fs::read(dir.path().join(file.name.trim_start_matches('/'))).unwrap();
        let is_made = made.iter().any(|output| output.get(..table.len()).is_some_and(|output| output == table));
        assert!(is_made, "{}", file.name);
    }
}

/// A worker that dies after it has pulled a job and before it has said so: the server gives the job to another one when
/// the lease is over. It comes back to life too late: nobody listens to it.
#[test]
fn a_job_that_was_pulled_and_forgotten_is_delivered_again() {
    let Some(server) = Server::start("a_pulled_job_is_delivered_again", "") else { return };
    let mut raw = Raw::connect(&server);
    let idle = idle_worker(&server, &mut raw);
    let config = pool_config(server.pool());
    let store = thread::spawn(|| run_counted(config));
    let job = raw.pull();
    drop(idle);
    let worker = pool_worker(server.pool());
    let counters = store.join().unwrap();
    assert!(counters.compactions_elsewhere > 0, "{counters:?}");
    assert_eq!((counters.compactions_returned, counters.compactions_offered_again), (0, 0));
    assert_eq!(worker.counters().done, counters.compactions_elsewhere);
    let said = raw.offer_room(&job, worker.address());
    assert!(said.starts_with("NATS/1.0 503"), "{said:?}");
}

/// The environment variable of the worker in another process: its server's port.
const CHILD: &str = "ROCKMILL_POOL_CHILD";

/// No test by itself: a worker in another process.
#[test]
fn child() {
    let Ok(port) = std::env::var(CHILD) else { return };
    let pool =
        PoolConfig { lease: Duration::from_secs(1), ..PoolConfig::new(vec![format!("nats://127.0.0.1:{port}")]) };
    let _worker = pool_worker(pool);
    loop {
        thread::park();
    }
}

/// A worker that is killed with a job, with SIGKILL: the store sees it, publishes the job again with another epoch, and
/// another worker does it. One result is committed.
#[test]
fn a_worker_that_is_killed_with_a_job_costs_nothing_but_time() {
    let Some(server) = Server::start("a_worker_of_a_pool_is_killed", "") else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut slow = options(pool_config(server.pool()));
    // So that a job takes longer than a lease.
    slow.set_ratelimiter(200 << 10, 10_000, 10);
    let all = {
        let db = Db::open(&options(config(&[])), dir.path()).unwrap();
        fill(&db, 1)
    };
    let me = std::env::current_exe().unwrap();
    let mut child = Command::new(me);
    let child = child.args(["--exact", "tests::nats::child"]).env(CHILD, server.port.to_string());
    let mut child = child.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    let db = Arc::new(Db::open(&slow, dir.path()).unwrap());
    let files = || {
        std::fs::read_dir(dir.path())
            .unwrap()
            .filter(|e| e.as_ref().unwrap().path().extension().is_some_and(|e| e == "sst"))
            .count()
    };
    let before = files();
    let compacts = thread::spawn({
        let db = Arc::clone(&db);
        move || compact(&db)
    });
    let raw = Mutex::new(Raw::connect(&server));
    until("the worker has a job, and writes", || files() > before);
    assert_eq!(number(&raw.lock().consumer(), "num_ack_pending"), Some(1));
    child.kill().unwrap();
    child.wait().unwrap();
    let worker = pool_worker(server.pool());
    compacts.join().unwrap();
    let counters = db.counters();
    assert_eq!((counters.compactions_offered_again, counters.compactions_returned), (1, 0), "{counters:?}");
    assert!(counters.compactions_elsewhere > 0 && worker.counters().done == counters.compactions_elsewhere);
    assert!(contents(&db) == all);
    nothing_is_left(&db, dir.path());
    // The message of the first time is gone, too: nobody is to do it once more.
    until("the queue is empty", || {
        let info = raw.lock().consumer();
        number(&info, "num_pending") == Some(0) && number(&info, "num_ack_pending") == Some(0)
    });
    // Two messages. On a machine too busy to renew a lease of a second one is delivered again, which harms nobody.
    assert!(number(&raw.lock().consumer(), "consumer_seq") >= Some(2));
}

/// Who says that it has room, and has not, or may not be used, is one attempt at most.
#[test]
fn workers_that_are_none_cost_an_attempt() {
    let Some(server) = Server::start("workers_of_a_pool_that_are_none", "") else { return };
    let mut raw = Raw::connect(&server);
    let idle = idle_worker(&server, &mut raw);
    let config = WorkersConfig { pause: Duration::from_secs(3600), ..pool_config(server.pool()) };
    let store = thread::spawn(|| run_counted(config));
    let job = raw.pull();
    // Not without secrets. What is no address is not answered.
    assert_eq!(raw.offer_room(&job, "10.0.0.7:4421".parse().unwrap()), "other");
    raw.say(&format!("PUB {} _INBOX.raw 7\r\nnothing\r\n", job.inbox));
    // Nobody listens there.
    let gone = listener().local_addr().unwrap();
    assert_eq!(raw.offer_room(&job, gone), "yes");
    drop(idle);
    // The job comes again, as another one; and the same worker is not taken for it.
    let again = raw.pull();
    assert_ne!(again.ticket, job.ticket);
    assert_eq!(raw.offer_room(&again, gone), "other");
    let worker = pool_worker(server.pool());
    let counters = store.join().unwrap();
    assert_eq!((counters.compactions_offered_again, counters.compactions_returned), (1, 0), "{counters:?}");
    assert_eq!(worker.counters().done, counters.compactions_elsewhere);
}

/// A message in the queue that is no job, or that its store does not want any more, is removed.
#[test]
fn nonsense_in_the_queue_is_removed() {
    let Some(server) = Server::start("nonsense_in_the_queue_of_a_pool", "") else { return };
    let mut raw = Raw::connect(&server);
    drop(idle_worker(&server, &mut raw));
    let stale = format!("job {} 1 _INBOX.nobody", "0".repeat(32));
    for text in ["nonsense", "", &stale, "job x 1 $JS.API.STREAM.DELETE.all"] {
        raw.ask(&format!("rockmill.default.{VERSION}"), text);
        assert!(raw.next().contains("\"seq\":"));
    }
    static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let tell = |line: &str| TOLD.lock().push(line.to_owned());
    let worker = worker(WorkerConfig { pool: Some(server.pool()), tell, ..WorkerConfig::default() });
    let raw = Mutex::new(raw);
    until("the queue is empty", || {
        let info = raw.lock().consumer();
        number(&info, "num_pending") == Some(0) && number(&info, "num_ack_pending") == Some(0)
    });
    assert_eq!(TOLD.lock().iter().filter(|line| line.contains("is no job")).count(), 3, "{:?}", TOLD.lock());
    assert_eq!((worker.counters().pulled, worker.counters().running), (0, 0));
}

/// A server that is not there, one that says nothing, and one without JetStream: the job waits for no longer than it
/// may, and the next ones do not wait.
#[test]
fn without_a_server_the_store_does_its_jobs_itself() {
    let Some(server) = Server::start("a_store_without_a_server", "") else { return };
    let none = listener().local_addr().unwrap();
    let mute = listener();
    let plain = tempfile::tempdir().unwrap();
    let port = listener().local_addr().unwrap().port();
    let mut without = Command::new(binary().unwrap());
    let without = without.args(["-a", "127.0.0.1", "-p", &port.to_string()]).arg("-l").arg(plain.path().join("log"));
    let mut without = without.stderr(Stdio::null()).spawn().unwrap();
    let log = || std::fs::read_to_string(plain.path().join("log")).unwrap_or_default();
    until("the server is ready", || log().contains("Server is ready"));
    let wait = Duration::from_millis(800);
    let cases = [
        (none, "cannot connect to the NATS server"),
        (mute.local_addr().unwrap(), "not connected to the NATS server yet"),
        (SocketAddr::from(([127, 0, 0, 1], port)), "the NATS server has no stream"),
        // It is there, and no worker is.
        (SocketAddr::from(([127, 0, 0, 1], server.port)), "no worker took the job in 800ms"),
    ];
    for (address, says) in cases {
        let pool = PoolConfig::new(vec![format!("nats://{address}")]);
        let pause = Duration::from_secs(3600);
        let config = WorkersConfig { pool_wait: wait, pause, ..pool_config(pool) };
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(&options(config), dir.path()).unwrap();
        fill(&db, 1);
        let began = Instant::now();
        compact(&db);
        db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
        assert!(began.elapsed() < wait + Duration::from_secs(5), "{says}: {:?}", began.elapsed());
        let counters = db.counters();
        assert_eq!((counters.compactions_elsewhere, counters.compactions_returned), (0, 1), "{says}");
        drop(db);
        let log = std::fs::read_to_string(dir.path().join("LOG")).unwrap();
        let said: Vec<&str> = log.lines().filter(|line| line.contains("Not done by a worker")).collect();
        assert!(said.len() == 1 && said[0].contains(says), "{says}: {said:?}");
    }
    without.kill().unwrap();
    without.wait().unwrap();
}

/// The server is killed while a worker has a job: the job is done. Then jobs stay here. It comes back with nothing of
/// what it had: store and worker make what they need.
#[test]
fn a_server_that_is_killed_and_comes_back() {
    let Some(mut server) = Server::start("the_server_of_a_pool_is_killed", "") else { return };
    let worker = pool_worker(server.pool());
    let dir = tempfile::tempdir().unwrap();
    let all = {
        let db = Db::open(&options(config(&[])), dir.path()).unwrap();
        fill(&db, 1)
    };
    let mut slow = options(WorkersConfig { pool_wait: Duration::from_secs(1), ..pool_config(server.pool()) });
    slow.set_ratelimiter(200 << 10, 10_000, 10);
    let db = Arc::new(Db::open(&slow, dir.path()).unwrap());
    let compacts = thread::spawn({
        let db = Arc::clone(&db);
        move || compact(&db)
    });
    until("the worker has a job", || worker.counters().pulled == 1);
    server.kill();
    compacts.join().unwrap();
    let counters = db.counters();
    assert!(counters.compactions_elsewhere == 1 && worker.counters().done == 1, "{counters:?}");
    assert!(contents(&db) == all);
    let (after, _) = run_logged(WorkersConfig { pool_wait: Duration::from_millis(300), ..pool_config(server.pool()) });
    assert!(after.compactions_elsewhere == 0 && after.compactions_returned > 0, "{after:?}");
    server.run();
    // The worker notices after some seconds that the server is there again.
    until("a job is done by the worker again", || {
        let counters = run_counted(pool_config(server.pool()));
        counters.compactions_elsewhere > 0 && counters.compactions_returned == 0
    });
    assert_eq!(worker.counters().running, 0);
}

#[test]
fn a_server_that_asks_for_credentials() {
    // With no more rights than docs/offload.md asks for.
    let publish = "[\"$JS.API.>\", \"$JS.ACK.>\", \"rockmill.>\", \"_INBOX.>\"]";
    let rights = format!("permissions: {{ publish: {publish}, subscribe: \"_INBOX.>\" }}");
    let lines = format!("authorization {{ users: [ {{ user: store, password: s3cret, {rights} }} ] }}");
    let Some(server) = Server::start("a_server_that_asks_for_credentials", &lines) else { return };
    let with = |credentials: &str| PoolConfig { credentials: credentials.parse().ok(), ..server.pool() };
    static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let tell = |line: &str| TOLD.lock().push(line.to_owned());
    for wrong in ["", "user store wrong", "token s3cret"] {
        TOLD.lock().clear();
        let worker = worker(WorkerConfig { pool: Some(with(wrong)), tell, ..WorkerConfig::default() });
        until("the worker says so", || TOLD.lock().iter().any(|line| line.contains("authorization violation")));
        let config = WorkersConfig { pool_wait: Duration::from_secs(1), ..pool_config(with(wrong)) };
        let (counters, said) = run_logged(config);
        assert!(counters.compactions_elsewhere == 0 && counters.compactions_returned > 0, "{counters:?}");
        assert!(said.contains("authorization violation") && !said.contains("s3cret"), "{said}");
        assert_eq!(worker.counters().pulled, 0);
    }
    let right = "user store s3cret";
    let worker = pool_worker(with(right));
    let counters = run_counted(pool_config(with(right)));
    assert!(counters.compactions_elsewhere > 0 && counters.compactions_returned == 0, "{counters:?}");
    assert_eq!(worker.counters().pulled, counters.compactions_elsewhere);
}

#[test]
fn a_server_with_tls() {
    let name = "a_server_of_a_pool_with_tls";
    let openssl = match program("openssl", Needs::OpenSsl) {
        Ok(openssl) => openssl,
        Err(missing) => return skip(name, &missing),
    };
    let keys = tempfile::tempdir().unwrap();
    let at = |file: &str| keys.path().join(file).to_str().unwrap().to_owned();
    std::fs::write(at("ext"), "subjectAltName = IP:127.0.0.1\nbasicConstraints = CA:FALSE\n").unwrap();
    let files = ["ca", "ca.key", "cert", "key", "csr", "ext"].map(at);
    let [ca, cakey, cert, key, csr, ext] = files.each_ref().map(String::as_str);
    let new = ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=ours"];
    for args in [
        [&new[..], &["-x509", "-days", "2", "-keyout", cakey, "-out", ca]].concat(),
        [&new[..], &["-keyout", key, "-out", csr]].concat(),
        [&["x509", "-req", "-days", "2", "-in", csr, "-out", cert][..], &["-extfile", ext, "-CAcreateserial"]].concat(),
    ] {
        let mut command = Command::new(&openssl);
        command.args(&args);
        if args.contains(&"-extfile") {
            command.args(["-CA", ca, "-CAkey", cakey]);
        }
        let done = command.output().unwrap();
        assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
    }
    let lines = format!("tls {{ cert_file: {cert:?}, key_file: {key:?} }}");
    let Some(server) = Server::start(name, &lines) else { return };
    let servers = vec![format!("tls://127.0.0.1:{}", server.port)];
    let right = PoolConfig { servers: servers.clone(), ca: Some(ca.into()), ..server.pool() };
    let _worker = pool_worker(right.clone());
    let counters = run_counted(pool_config(right));
    assert!(counters.compactions_elsewhere > 0 && counters.compactions_returned == 0, "{counters:?}");
    // A certificate that nobody here vouches for.
    for servers in [servers, server.pool().servers] {
        let pool = PoolConfig { servers, ..server.pool() };
        let wait = Duration::from_secs(1);
        let (counters, said) = run_logged(WorkersConfig { pool_wait: wait, ..pool_config(pool) });
        assert!(counters.compactions_elsewhere == 0 && counters.compactions_returned > 0, "{counters:?}");
        assert!(said.contains("cannot connect to the NATS server"), "{said}");
    }
    let pool = PoolConfig { ca: Some(at("none").into()), ..server.pool() };
    let e = Workers::new(WorkersConfig::of_pool(pool), clock()).unwrap_err();
    assert!(e.to_string().contains("none"), "{e}");
}
