//! Workers over TLS: who has which key, what can be read and changed on the way, and what becomes of the tables.

use std::collections::BTreeSet;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use rockmill::internals::WorkerDevice;
use rockmill_nvme::psk::TlsKey;
use rockmill_nvme::tcp::ClientTls;
use rockmill_skip::{Needs, program, skip};

use super::remembers::done_twice;
use super::*;
use crate::device::{NvmeDevice, Place};

fn key() -> TlsKey {
    TlsKey::generate(&SystemRandom).unwrap()
}

/// A pair of secrets with a key.
fn tls_secrets() -> (Secrets, Secrets) {
    let [store, worker] = Secrets::generate(HOST, WORKER).unwrap();
    (Secrets::parse(&store).unwrap(), Secrets::parse(&worker).unwrap())
}

/// The same secrets with another key, or none.
fn with_key(secrets: &Secrets, peer: &str, key: Option<TlsKey>) -> Secrets {
    secrets.clone().with_tls(key.into_iter().map(|key| (peer.to_owned(), key)).collect()).unwrap()
}

fn worker_with(secrets: &Secrets) -> Worker {
    worker(WorkerConfig { secrets: Some(secrets.clone()), ..WorkerConfig::default() })
}

fn config_with(secrets: &Secrets, workers: &[SocketAddr]) -> WorkersConfig {
    WorkersConfig { secrets: Some(secrets.clone()), ..config(workers) }
}

/// Compacts a database once; gives how many jobs were done elsewhere and here, and what the log says of the latter.
fn run_logged(config: WorkersConfig) -> (u64, u64, String) {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(&options(config), dir.path()).unwrap();
    let all = fill(&db, 1);
    compact(&db);
    assert!(contents(&db) == all);
    let counters = db.counters();
    drop(db); // which writes what the log still gathers
    let log = std::fs::read_to_string(dir.path().join("LOG")).unwrap();
    let said: Vec<&str> = log.lines().filter(|line| line.contains("Not done by a worker")).collect();
    (counters.compactions_elsewhere, counters.compactions_returned, said.join("\n"))
}

#[test]
fn a_worker_over_tls_does_the_compactions_of_a_database() {
    let (of_host, of_worker) = tls_secrets();
    let worker = worker_with(&of_worker);
    let (elsewhere, returned) = run_database(config_with(&of_host, &[worker.address()]));
    assert!(elsewhere > 0 && returned == 0, "{elsewhere} done elsewhere, {returned} came back");
    assert_eq!(worker.counters().done, elsewhere);
}

/// Keys for SHA-384 in the files, with one for SHA-256, and the longest names.
#[test]
fn keys_for_sha384_work_together_with_others() {
    let [own, of_worker] = [0; 2].map(|_| Secret::generate(None, &SystemRandom).unwrap());
    let [host, name] = ["h", "w"].map(|letter| letter.repeat(90));
    let long = TlsKey::generate_sha384(&SystemRandom).unwrap();
    let other = Secret::generate(None, &SystemRandom).unwrap().to_text();
    let text = |own: &Secret, peer: &str, secret: &Secret| {
        let lines = format!(
            "self {}\n{peer} {} {}\nother {other} {}\n",
            own.to_text(),
            secret.to_text(),
            long.to_text(),
            key().to_text()
        );
        Some(Secrets::parse(&lines).unwrap())
    };
    let secrets = text(&of_worker, &host, &own);
    let worker = worker(WorkerConfig { name: name.clone(), secrets, ..WorkerConfig::default() });
    let secrets = text(&own, &name, &of_worker);
    let (elsewhere, returned) = run_database(WorkersConfig { name: host, secrets, ..config(&[worker.address()]) });
    assert!(elsewhere > 0 && returned == 0, "{elsewhere} done elsewhere, {returned} came back");
}

#[test]
fn one_side_with_tls_refuses_one_without_or_with_another_key_and_says_why() {
    let (of_host, of_worker) = tls_secrets();
    let plain = |secrets: &Secrets, peer: &str| with_key(secrets, peer, None);
    let cases = [
        (plain(&of_host, WORKER), of_worker.clone(), "it speaks TLS alone"),
        (of_host.clone(), plain(&of_worker, HOST), "the peer has no key for TLS"),
        (with_key(&of_host, WORKER, Some(key())), of_worker.clone(), "the peer does not know this key for TLS"),
    ];
    static TOLD: Mutex<String> = Mutex::new(String::new());
    let tells = ["the store has no TLS", "this worker has no key for it", "no key for TLS that is known here"];
    for ((host, theirs, says), tells) in cases.into_iter().zip(tells) {
        TOLD.lock().clear();
        let tell = |line: &str| TOLD.lock().push_str(line);
        let worker = worker(WorkerConfig { secrets: Some(theirs), tell, ..WorkerConfig::default() });
        let (elsewhere, returned, said) = run_logged(config_with(&host, &[worker.address()]));
        assert!(elsewhere == 0 && returned > 0, "{says}: {elsewhere} done elsewhere, {returned} came back");
        assert!(said.contains(says), "{says}: {said}");
        for _ in 0..500 {
            if worker.counters().refused > 0 && !TOLD.lock().is_empty() {
                break;
            }
            thread::sleep(Duration::from_millis(10));
        }
        assert!(worker.counters().refused > 0);
        let told = TOLD.lock();
        assert!(told.starts_with("refused 127.0.0.1:") && told.contains(tells), "{tells}: {told}");
    }
    // The keys are the same, and one secret is another: TLS does not stand in for it.
    let text = |own: &Secret, peer: &str, secret: &Secret, key: &TlsKey| {
        let lines = format!("self {}\n{peer} {} {}\n", own.to_text(), secret.to_text(), key.to_text());
        Secrets::parse(&lines).unwrap()
    };
    let [a, b, c] = [0; 3].map(|_| Secret::generate(Some(Hash::Sha256), &SystemRandom).unwrap());
    let key = key();
    let worker = worker_with(&text(&b, HOST, &c, &key));
    let (elsewhere, _, said) = run_logged(config_with(&text(&a, WORKER, &b, &key), &[worker.address()]));
    assert!(elsewhere == 0 && said.contains("authentication"), "{elsewhere} {said}");
}

/// An address does not say whose key is its: they are tried, and the one that fitted is the first next time.
#[test]
fn a_store_finds_the_key_of_each_worker() {
    let own = Secret::generate(None, &SystemRandom).unwrap();
    let names = ["nqn.test:a", "nqn.test:b", "nqn.test:c"];
    let (mut peers, mut keys, mut workers) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
    for name in names {
        let (secret, key) = (Secret::generate(None, &SystemRandom).unwrap(), key());
        let theirs = Secrets::new(secret.clone(), BTreeMap::from([(HOST.to_owned(), own.clone())])).unwrap();
        let theirs = with_key(&theirs, HOST, Some(key.clone()));
        workers.push(worker(WorkerConfig { name: name.to_owned(), secrets: Some(theirs), ..WorkerConfig::default() }));
        peers.insert(name.to_owned(), secret);
        keys.insert(name.to_owned(), key);
    }
    let secrets = Secrets::new(own, peers).unwrap().with_tls(keys).unwrap();
    for worker in workers.iter().rev() {
        let (elsewhere, returned) = run_database(config_with(&secrets, &[worker.address()]));
        assert!(elsewhere > 0 && returned == 0, "{elsewhere} done elsewhere, {returned} came back");
        // At most twice before the first job.
        assert!(worker.counters().refused <= 2, "{:?}", worker.counters());
    }
}

/// Who has a key for one name has not another name.
#[test]
fn a_store_has_the_name_that_its_key_is_for() {
    let (of_host, of_worker) = tls_secrets();
    let worker = worker_with(&of_worker);
    let key = of_host.tls_key(WORKER).unwrap();
    let tls = (WORKER.to_owned(), ClientTls::new(&key.psk(HOST, WORKER)).unwrap());
    let connect = || TcpStream::connect(worker.address()).unwrap();
    let mut channel = Channel::connect(connect(), &tls, clock(), &|| false).unwrap();
    let e = channel.greet_worker("nqn.test:another", Some(&of_host), &|| false).unwrap_err();
    // It has closed the connection.
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    assert!(matches!(e.kind(), UnexpectedEof | ConnectionReset | BrokenPipe), "{e:?}");
    // And a worker under a name that is not its key's.
    let tls = ("nqn.test:expected".to_owned(), tls.1);
    let mut channel = Channel::connect(connect(), &tls, clock(), &|| false).unwrap();
    let e = channel.greet_worker(HOST, Some(&of_host), &|| false).unwrap_err();
    assert!(e.kind() == io::ErrorKind::PermissionDenied && e.to_string().contains("nqn.test:expected"), "{e}");
}

#[test]
fn each_peer_of_a_file_has_a_key_or_none_has() {
    let [a, b, c] = [0; 3].map(|_| Secret::generate(None, &SystemRandom).unwrap().to_text());
    let key = key().to_text();
    Secrets::parse(&format!("self {a}\nw {b} {key}\nv {c}\t {key} \n")).unwrap();
    let long = "n".repeat(200);
    for (text, says) in [
        (format!("self {a}\nw {b} {key}\nv {c}"), "\"v\" has no key"),
        (format!("self {a} {key}\nw {b}"), "line 1"),
        (format!("self {a}\nw {b} {key} more"), "line 2"),
        (format!("self {a}\nw {b} NVMeTLSkey-1:01:AAAA:"), "line 2"),
        (format!("self {a}\n{long} {b} {key}"), "too long"),
    ] {
        let e = Secrets::parse(&text).unwrap_err();
        assert!(e.contains(says) && !e.contains(&key[20..30]) && !e.contains(&a[10..20]), "{says}: {e}");
    }
    let (of_host, _) = tls_secrets();
    let e = of_host.clone().with_tls(BTreeMap::from([("x".to_owned(), TlsKey::parse(&key).unwrap())])).unwrap_err();
    assert!(e.contains("no peer"), "{e}");
    let config = WorkersConfig { name: long.clone(), secrets: Some(of_host), ..WorkersConfig::new(vec![]) };
    assert_eq!(Workers::new(config, clock()).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    Secrets::generate(&long, WORKER).unwrap_err();
}

/// What stands before a port, and sees and changes what goes by.
#[derive(Default)]
struct Between {
    seen: Mutex<Vec<u8>>,
    count: AtomicU64,
    /// The byte that changes, of all of both directions.
    changes: Option<u64>,
}

impl Between {
    fn pass(&self, mut from: TcpStream, mut to: TcpStream) -> io::Result<()> {
        let mut buffer = vec![0; 64 << 10];
        loop {
            let n = from.read(&mut buffer)?;
            if n == 0 {
                return Ok(());
            }
            let bytes = &mut buffer[..n];
            self.seen.lock().extend_from_slice(bytes);
            let before = self.count.fetch_add(n as u64, Ordering::Relaxed);
            if let Some(at) = self.changes.and_then(|at| at.checked_sub(before)).filter(|at| *at < n as u64) {
                bytes[at as usize] ^= 0x20;
            }
            to.write_all(bytes)?;
        }
    }

    fn before(self: &Arc<Self>, to: SocketAddr) -> SocketAddr {
        let (listener, me) = (listener(), Arc::clone(self));
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(to) else { continue };
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (from, to, me) = (from.try_clone().unwrap(), to.try_clone().unwrap(), Arc::clone(&me));
                    thread::spawn(move || {
                        let both = [from.try_clone().unwrap(), to.try_clone().unwrap()];
                        let _ = me.pass(from, to);
                        both.iter().for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
                    });
                }
            }
        });
        address
    }
}

/// Takes an offer over TLS, or without it, and connects to its device through what stands between.
fn take(
    channel: &Channel,
    secrets: Option<&Secrets>,
    between: impl FnOnce(SocketAddr) -> SocketAddr,
) -> io::Result<(Channel, rogues::Job)> {
    let socket = channel.stream().try_clone()?;
    let tls = secrets.and_then(|secrets| secrets.server(WORKER).unwrap());
    let mut channel = Channel::accept(socket, tls.as_ref(), clock(), &|| false)?;
    let store = channel.greet_store(WORKER, secrets, &|| false)?;
    let Message::Offer { epoch, subsystem, port, spec, .. } = channel.next(&|| false)? else { panic!("no offer") };
    channel.tell(&Message::Accepted { epoch })?;
    let tls = secrets.and_then(|secrets| {
        let key = secrets.tls_key(&store)?;
        Some(ClientTls::new(&key.psk(WORKER, &subsystem)).unwrap())
    });
    let place = Place {
        address: between(SocketAddr::from(([127, 0, 0, 1], port))),
        subsystem,
        name: WORKER.to_owned(),
        host_id: [3; 16],
        auth: secrets.and_then(|secrets| secrets.towards(&store)),
        tls,
    };
    let device = NvmeDevice::connect(place, clock())?;
    Ok((channel, rogues::Job { epoch, spec, device }))
}

/// The tables of the store are, byte for byte, what a merge of the same blocks without a network writes. Nothing of
/// them, and nothing of the spec, can be read on the way; without TLS all of it can.
#[test]
fn tables_are_the_same_bytes_and_nobody_reads_along() {
    let (of_host, of_worker) = tls_secrets();
    for secrets in [Some((of_host, of_worker)), None] {
        let (of_host, of_worker) = secrets.unzip();
        let encrypted = of_host.is_some();
        let (control, data) = (Arc::<Between>::default(), Arc::<Between>::default());
        let made = Arc::new(Mutex::new(Vec::new()));
        let (seen, makes) = (Arc::clone(&data), Arc::clone(&made));
        let rogue = Rogue::start(move |channel| {
            let (mut channel, job) = take(&channel, of_worker.as_ref(), |to| seen.before(to)).unwrap();
            let epoch = job.epoch;
            let (result, outputs) = done_twice(job);
            makes.lock().extend(outputs);
            channel.tell(&rogues::done(epoch, &result)).unwrap();
        });
        let dir = tempfile::tempdir().unwrap();
        let address = control.before(rogue.address);
        let mut options = options(WorkersConfig { secrets: of_host, ..config(&[address]) });
        options.set_compression_type(rockmill::CompressionType::None);
        let db = Db::open(&options, dir.path()).unwrap();
        let marker = "what nobody may read on its way";
        for round in 0..3 {
            for i in 0..2000 {
                db.put(format!("a key that is a secret {i:05}").as_bytes(), format!("{marker} {round} {i}").as_bytes())
                    .unwrap();
            }
            db.flush().unwrap();
        }
        compact(&db);
        let counters = db.counters();
        assert_eq!((counters.compactions_elsewhere, counters.compactions_returned), (1, 0));
        let live: BTreeSet<String> = db.live_files().unwrap().into_iter().map(|file| file.name).collect();
        let made = made.lock();
        assert!(!live.is_empty() && live.len() <= made.len(), "{live:?} of {}", made.len());
        for name in &live {
            let table = std::fs::read(dir.path().join(name.trim_start_matches('/'))).unwrap();
            let is_made = made.iter().any(|output| output.get(..table.len()).is_some_and(|output| output == table));
            assert!(is_made, "{name}");
        }
        let has = |seen: &Between, part: &str| seen.seen.lock().windows(part.len()).any(|w| w == part.as_bytes());
        assert_eq!(has(&data, marker), !encrypted);
        assert_eq!(has(&control, "a key that is a secret"), !encrypted, "the spec has bounds");
    }
}

/// A byte that changes on either way ends its connection, and the job, which another worker does, or the store: nothing
/// is lost. Where the side that found it closes the connection before the other one hears why, that one connects again.
#[test]
fn a_byte_that_changed_on_its_way_costs_nothing_but_time() {
    let (of_host, of_worker) = tls_secrets();
    let good = worker_with(&of_worker);
    // The control channel: in its handshake, and later.
    for at in [30, 400, 1500, 3000] {
        let between = Arc::new(Between { changes: Some(at), ..Between::default() });
        let address = between.before(good.address());
        let (elsewhere, returned) = run_database(config_with(&of_host, &[address]));
        assert!(elsewhere + returned > 0 && returned <= 1, "byte {at}: {elsewhere} elsewhere, {returned} here");
        assert!(between.count.load(Ordering::Relaxed) > at, "byte {at} did not go by");
    }
    // The device's: of what is read, and of what is written.
    for at in [700, 100_000, 900_000] {
        let theirs = of_worker.clone();
        let failed = Arc::new(AtomicU64::new(0));
        let fails = Arc::clone(&failed);
        let rogue = Rogue::start(move |channel| {
            let between = Arc::new(Between { changes: Some(at), ..Between::default() });
            match take(&channel, Some(&theirs), |to| between.before(to)) {
                Ok((mut channel, job)) => {
                    let device = Arc::new(job.device);
                    let result = rogues::work(&job.spec, Arc::clone(&device) as Arc<dyn WorkerDevice>);
                    if result.outcome.is_ok() {
                        assert!(device.reconnects() > 0, "byte {at}");
                        channel.tell(&rogues::done(job.epoch, &result)).unwrap();
                        return;
                    }
                }
                Err(e) => assert_ne!(e.kind(), io::ErrorKind::NotFound, "{e}"),
            }
            fails.fetch_add(1, Ordering::Relaxed);
        });
        let counters = run_counted(config_with(&of_host, &[rogue.address, good.address()]));
        let n = counters.compactions_elsewhere;
        assert!(n > 0 && counters.compactions_returned == 0, "byte {at}: {counters:?}");
        assert_eq!(counters.compactions_offered_again, failed.load(Ordering::Relaxed), "byte {at}");
    }
}

/// A connection that ends without a word is made again, with TLS and authentication, and the job goes on.
#[test]
fn a_job_over_tls_whose_connections_are_cut_goes_on() {
    use between::{Event, Rules};
    let (of_host, of_worker) = tls_secrets();
    let (cut, pieces) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    // True if the event happened.
    let run = |at: u64, event: Event| {
        let happened = Arc::new(AtomicBool::new(false));
        let (theirs, again, all, seen) =
            (of_worker.clone(), Arc::clone(&cut), Arc::clone(&pieces), Arc::clone(&happened));
        let rogue = Rogue::start(move |channel| {
            let mut way = None;
            let (mut channel, job) = take(&channel, Some(&theirs), |to| {
                let between = between::Between::before(to, Rules::default(), Some((at, event)));
                way.insert(between).address
            })
            .unwrap();
            let device = Arc::new(job.device);
            let result = rogues::work(&job.spec, Arc::clone(&device) as Arc<dyn WorkerDevice>);
            let way = way.unwrap();
            seen.fetch_or(way.has_happened(), Ordering::Relaxed);
            all.store(way.pieces(), Ordering::Relaxed);
            again.fetch_add(device.reconnects(), Ordering::Relaxed);
            channel.tell(&rogues::done(job.epoch, &result)).unwrap();
        });
        let (elsewhere, returned) = run_database(config_with(&of_host, &[rogue.address]));
        assert!(elsewhere > 0 && returned == 0, "{event:?} at {at}: {elsewhere} elsewhere, {returned} here");
        happened.load(Ordering::Relaxed)
    };
    assert!(!run(u64::MAX, Event::Cut), "it only counts the pieces");
    let events = [(2, Event::Cut), (50, Event::Cut), (60, Event::Shorten), (70, Event::HalfOpen)];
    for (percent, event) in events {
        // How many pieces there are depends on what comes at once: with fewer than before the event may be too late.
        let mut at = pieces.load(Ordering::Relaxed) * percent / 100;
        while !run(at, event) {
            assert!(at > 0, "{event:?} does not happen");
            at /= 2;
        }
    }
    assert!(cut.load(Ordering::Relaxed) > 1);
}

/// What a worker of an earlier job has opens nothing of a later one, whoever it tells.
#[test]
fn the_key_of_a_job_is_of_no_use_for_another_one() {
    let (of_host, of_worker) = tls_secrets();
    let earlier: Arc<Mutex<Option<String>>> = Arc::default();
    let tried = Arc::new(AtomicU64::new(0));
    let tries = Arc::clone(&tried);
    let rogue = Rogue::start(move |channel| {
        let tls = of_worker.server(WORKER).unwrap().unwrap();
        let mut channel =
            Channel::accept(channel.stream().try_clone().unwrap(), Some(&tls), clock(), &|| false).unwrap();
        let store = channel.greet_store(WORKER, Some(&of_worker), &|| false).unwrap();
        let Message::Offer { epoch, subsystem, port, .. } = next(&mut channel) else { panic!("no offer") };
        channel.tell(&Message::Accepted { epoch }).unwrap();
        let connect = |of: &str| {
            let key = of_worker.tls_key(&store).unwrap();
            let place = Place {
                address: SocketAddr::from(([127, 0, 0, 1], port)),
                subsystem: subsystem.clone(), // what it is told now, with the key of what it was told then
                name: WORKER.to_owned(),
                host_id: [3; 16],
                auth: of_worker.towards(&store),
                tls: Some(ClientTls::new(&key.psk(WORKER, of)).unwrap()),
            };
            NvmeDevice::connect(place, clock())
        };
        if let Some(earlier) = earlier.lock().replace(subsystem.clone()) {
            let e = connect(&earlier).unwrap_err();
            assert!(e.to_string().contains("does not know this key"), "{e}");
            connect(&subsystem).unwrap();
            tries.fetch_add(1, Ordering::Relaxed);
        }
    });
    for _ in 0..2 {
        let (elsewhere, returned) = run_database(config_with(&of_host, &[rogue.address]));
        assert!(elsewhere == 0 && returned > 0);
    }
    assert!(tried.load(Ordering::Relaxed) > 0);
}

/// OpenSSL's own client, with the key as `nvme gen-tls-key` would have it derived.
#[test]
fn openssl_s_client_connects_to_a_worker() {
    let client = match program("openssl", Needs::OpenSsl) {
        Ok(client) => client,
        Err(missing) => return skip("openssl_s_client_connects_to_a_worker", &missing),
    };
    let (of_host, of_worker) = tls_secrets();
    let worker = worker_with(&of_worker);
    let connect = |psk: &rockmill_nvme::psk::Psk, version: &str| {
        let hex: String = psk.key().iter().map(|byte| format!("{byte:02x}")).collect();
        let done = std::process::Command::new(&client)
            .args(["s_client", "-connect", &worker.address().to_string(), version])
            .args(["-psk", &hex, "-psk_identity", psk.identity()])
            .stdin(std::process::Stdio::null())
            .output()
            .unwrap();
        format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr))
    };
    let psk = of_host.tls_key(WORKER).unwrap().psk(HOST, WORKER);
    let said = connect(&psk, "-tls1_3");
    assert!(said.contains("Reused, TLSv1.3, Cipher is TLS_AES_128_GCM_SHA256"), "{said}");
    assert!(said.contains("no peer certificate available"), "{said}");
    for (psk, version) in [(key().psk(HOST, WORKER), "-tls1_3"), (psk, "-tls1_2")] {
        let said = connect(&psk, version);
        assert!(!said.contains("Reused") && said.contains("alert"), "{said}");
    }
}
