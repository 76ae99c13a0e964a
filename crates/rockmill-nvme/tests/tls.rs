//! Both sides over TLS; peers without it, without the key, or with weaker settings; and changed bytes.
#![cfg(feature = "tls")]

mod common;

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use common::{BLOCK, Bench, NQN, pattern};
use openssl::ssl::{Ssl, SslContext, SslContextBuilder, SslMethod, SslStream, SslVerifyMode, SslVersion};
use rockmill_io::{Clock, SystemClock};
use rockmill_nvme::auth::{Hash, SystemRandom};
use rockmill_nvme::fabrics::DISCOVERY_NQN;
use rockmill_nvme::initiator::{HostConfig, HostError};
use rockmill_nvme::psk::{Derivation, Psk, TlsKey};
use rockmill_nvme::status::Status;
use rockmill_nvme::target::TargetConfig;
use rockmill_nvme::tcp::{ClientTls, ServerConfig, ServerTls, Stream, TcpHost, TcpServer};
use rockmill_skip::{Needs, skip};
use tempfile::TempDir;

const HOST: &str = "nqn.2026-11.test:host";

fn clock() -> Arc<dyn Clock> {
    Arc::new(SystemClock::default())
}

fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

fn key() -> TlsKey {
    TlsKey::generate(&SystemRandom).unwrap()
}

fn key_of(hash: Hash) -> TlsKey {
    match hash {
        Hash::Sha256 => key(),
        _ => TlsKey::generate_sha384(&SystemRandom).unwrap(),
    }
}

struct Served {
    bench: Bench,
    server: TcpServer,
    key: TlsKey,
}

fn served(bench: Bench) -> Served {
    served_with(bench, key())
}

fn served_with(bench: Bench, key: TlsKey) -> Served {
    let tls = ServerTls::new(vec![key.psk(HOST, NQN)]).unwrap();
    let target = Arc::clone(&bench.target);
    let server = TcpServer::start_with(listener(), target, ServerConfig::default(), Some(tls), clock()).unwrap();
    Served { bench, server, key }
}

impl Served {
    fn connect(&self, address: SocketAddr, psk: Option<&Psk>) -> Result<TcpHost, HostError> {
        let tls = psk.map(|psk| ClientTls::new(psk).unwrap());
        TcpHost::connect_with(address, self.bench.host.clone(), tls, clock())
    }

    fn host(&self, address: SocketAddr) -> TcpHost {
        self.connect(address, Some(&self.key.psk(HOST, NQN))).unwrap()
    }
}

/// A proxy between both sides, which sees and changes the bytes of all connections.
#[derive(Default)]
struct Between {
    seen: Mutex<Vec<u8>>,
    count: AtomicU64,
    /// The number of the byte to change.
    changes: Option<u64>,
    /// Forwards one byte at a time.
    drips: AtomicBool,
}

impl Between {
    fn pass(&self, mut from: TcpStream, mut to: TcpStream) -> std::io::Result<()> {
        let mut buffer = vec![0; 64 << 10];
        loop {
            let n = from.read(&mut buffer)?;
            if n == 0 {
                return Ok(());
            }
            let bytes = &mut buffer[..n];
            self.seen.lock().unwrap().extend_from_slice(bytes);
            let before = self.count.fetch_add(n as u64, Ordering::Relaxed);
            if let Some(at) = self.changes.and_then(|at| at.checked_sub(before)).filter(|at| *at < n as u64) {
                bytes[at as usize] ^= 0x10;
            }
            if self.drips.load(Ordering::Relaxed) {
                for byte in bytes {
                    to.write_all(&[*byte])?;
                    thread::sleep(Duration::from_millis(3));
                }
            } else {
                to.write_all(bytes)?;
            }
        }
    }
}

/// Puts the proxy before `to`; returns the address to connect to.
fn between(to: SocketAddr, course: &Arc<Between>) -> SocketAddr {
    let (listener, course) = (listener(), Arc::clone(course));
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let Ok(server) = TcpStream::connect(to) else { continue };
            for (from, to) in [(&client, &server), (&server, &client)] {
                to.set_nodelay(true).unwrap();
                let (from, to, course) = (from.try_clone().unwrap(), to.try_clone().unwrap(), Arc::clone(&course));
                thread::spawn(move || {
                    let both = [from.try_clone().unwrap(), to.try_clone().unwrap()];
                    let _ = course.pass(from, to);
                    both.iter().for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
                });
            }
        }
    });
    address
}

fn has(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

#[test]
fn several_queues_write_and_read_at_once_and_nobody_reads_along() {
    let marker = b"what nobody may read on its way";
    for encrypted in [true, false] {
        let bench = Bench::new();
        let plain = TcpServer::start(listener(), Arc::clone(&bench.target), ServerConfig::default(), clock()).unwrap();
        let served = served(bench);
        let course = Arc::new(Between::default());
        let server = if encrypted { served.server.address() } else { plain.address() };
        let address = between(server, &course);
        let psk = served.key.psk(HOST, NQN);
        let host = served.connect(address, encrypted.then_some(&psk)).unwrap();
        assert_eq!(host.admin(|admin| admin.set_queues(3)).unwrap(), 3);
        let disk = host.admin(|admin| admin.namespace(1)).unwrap();
        thread::scope(|scope| {
            for q in 1..=3u16 {
                let host = &host;
                scope.spawn(move || {
                    let mut io = host.io_queue(q).unwrap();
                    let first = u64::from(q - 1) * 2048;
                    for round in 0..3 {
                        let mut data = pattern(u64::from(q) * 100 + round, 2048 * BLOCK);
                        data[5000..5000 + marker.len()].copy_from_slice(marker);
                        io.write(&disk, first, &data, round == 2).unwrap();
                        let mut back = vec![0; data.len()];
                        io.read(&disk, first, &mut back).unwrap();
                        assert!(back == data, "queue {q}, round {round}");
                    }
                });
            }
        });
        let seen = course.seen.lock().unwrap();
        assert!(seen.len() > 3 * 3 * 2 * 2048 * BLOCK, "{}", seen.len());
        assert_eq!(has(&seen, marker), !encrypted);
    }
}

/// Neither side may wait for the other to read first, however small the socket buffers are.
#[test]
fn reads_and_writes_larger_than_all_buffers_do_not_block_each_other() {
    use rockmill_nvme::command::{read, write};
    use rockmill_nvme::initiator::{Command, Link};
    let mut config = TargetConfig::new(NQN);
    config.output_max = 4096;
    let mut bench = Bench::with(config);
    bench.host.queue.entries = 128;
    let served = served(bench);
    let host = served.host(served.server.address());
    let disk = host.admin(|admin| admin.namespace(1)).unwrap();
    let mut io = host.io_queue(1).unwrap();
    let link = io.link();
    let mut ids = Vec::new();
    for i in 0..60 {
        let sqe = read(1, 0, 2048);
        ids.push(link.queue().submit(Command::reading(sqe, 1 << 20)).unwrap());
        let data = vec![i as u8; 1 << 20];
        ids.push(link.queue().submit(Command::writing(write(1, 2048, 2048, false), data)).unwrap());
    }
    for id in ids {
        let done = loop {
            match link.queue().take(id) {
                Some(done) => break done,
                None => link.exchange().unwrap(),
            }
        };
        assert!(done.status.is_success());
    }
    let mut last = vec![0; 1 << 20];
    io.read(&disk, 2048, &mut last).unwrap();
    assert!(last.iter().all(|&b| b == 59));
}

#[track_caller]
fn is_io(got: Result<TcpHost, HostError>, kind: ErrorKind, says: &str) {
    match got {
        Err(HostError::Io(e)) => assert!(e.kind() == kind && e.to_string().contains(says), "{:?}: {e}", e.kind()),
        Err(e) => panic!("{e}"),
        Ok(_) => panic!("it was let in"),
    }
}

#[test]
fn a_host_without_the_key_does_not_get_in() {
    let served = served(Bench::new());
    let address = served.server.address();
    let connect = |psk: Option<&Psk>| served.connect(address, psk);
    // Another key; the right key for another host or subsystem, as a worker of an earlier job has it; and no key.
    for psk in [
        key().psk(HOST, NQN),
        served.key.psk("nqn.2026-11.test:other", NQN),
        served.key.psk(HOST, "nqn.2026-11.test:earlier"),
    ] {
        is_io(connect(Some(&psk)), ErrorKind::PermissionDenied, "not know this key");
    }
    connect(None).map(drop).unwrap_err();
    assert_eq!(served.bench.target.controllers(), 0);
    connect(Some(&served.key.psk(HOST, NQN))).unwrap();
}

/// The identity is not secret; the key is.
#[test]
fn the_right_identity_with_another_key_does_not_get_in() {
    let served = served(Bench::new());
    let psk = served.key.psk(HOST, NQN);
    for (bytes, is_let_in) in [(psk.key().to_vec(), true), (vec![7; 32], false)] {
        let (identity, bytes) = (psk.identity().to_owned(), bytes);
        let done = client(served.server.address(), move |context| {
            context.set_min_proto_version(Some(SslVersion::TLS1_3)).unwrap();
            with_psk(context, identity.clone(), bytes.clone());
        });
        assert_eq!(done.is_ok(), is_let_in, "{:?}", done.err());
        if let Ok(ssl) = done {
            let ssl = ssl.ssl();
            assert_eq!(ssl.version2(), Some(SslVersion::TLS1_3));
            assert_eq!(ssl.current_cipher().unwrap().name(), "TLS_AES_128_GCM_SHA256");
            // Authenticated by the key, without a certificate, and with a Diffie-Hellman exchange.
            assert!(ssl.session_reused() && ssl.peer_certificate().is_none() && ssl.peer_tmp_key().is_ok());
        }
    }
    let since = Instant::now();
    while served.bench.target.controllers() > 0 {
        assert!(since.elapsed() < Duration::from_secs(30));
        thread::sleep(Duration::from_millis(10));
    }
}

fn with_psk(context: &mut SslContextBuilder, identity: String, psk: Vec<u8>) {
    context.set_psk_client_callback(move |_, _, name, key| {
        name[..identity.len()].copy_from_slice(identity.as_bytes());
        name[identity.len()] = 0;
        key[..psk.len()].copy_from_slice(&psk);
        Ok(psk.len())
    });
}

/// A plain OpenSSL client with any settings.
fn client(address: SocketAddr, set: impl FnOnce(&mut SslContextBuilder)) -> Result<SslStream<TcpStream>, String> {
    let mut context = SslContext::builder(SslMethod::tls_client()).unwrap();
    context.set_verify(SslVerifyMode::NONE);
    set(&mut context);
    let socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut stream = SslStream::new(Ssl::new(&context.build()).unwrap(), socket).unwrap();
    stream.connect().map_err(|e| e.to_string())?;
    Ok(stream)
}

#[test]
fn older_versions_other_suites_and_no_key_are_refused() {
    let served = served(Bench::new());
    let psk = served.key.psk(HOST, NQN);
    let refused = |what: &str, set: &dyn Fn(&mut SslContextBuilder)| {
        let got = client(served.server.address(), |context| {
            with_psk(context, psk.identity().to_owned(), psk.key().to_vec());
            set(context);
        });
        assert!(got.is_err(), "{what} was let in");
    };
    refused("TLS 1.2", &|context| {
        context.set_max_proto_version(Some(SslVersion::TLS1_2)).unwrap();
        context.set_cipher_list("PSK").unwrap();
    });
    refused("another suite", &|context| context.set_ciphersuites("TLS_CHACHA20_POLY1305_SHA256").unwrap());
    let no_key = client(served.server.address(), |context| {
        context.set_min_proto_version(Some(SslVersion::TLS1_3)).unwrap();
    });
    assert!(no_key.is_err());
}

/// Runs a controller that answers once with `answer`; returns the error of a host with a key.
fn against(answer: impl FnOnce(TcpStream) + Send + 'static) -> Result<TcpHost, HostError> {
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let answers = thread::spawn(move || answer(listener.accept().unwrap().0));
    let tls = ClientTls::new(&key().psk(HOST, NQN)).unwrap();
    let got = TcpHost::connect_with(address, Bench::new().host, Some(tls), clock());
    answers.join().unwrap();
    got
}

/// An impostor of the controller has no key. A certificate does not help it.
#[test]
fn a_host_with_a_key_refuses_a_controller_without() {
    use openssl::asn1::Asn1Time;
    use openssl::ec::{EcGroup, EcKey};
    use openssl::hash::MessageDigest;
    use openssl::nid::Nid;
    use openssl::pkey::PKey;
    use openssl::x509::{X509, X509NameBuilder};
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
    let own = PKey::from_ec_key(EcKey::generate(&group).unwrap()).unwrap();
    let mut name = X509NameBuilder::new().unwrap();
    name.append_entry_by_text("CN", "127.0.0.1").unwrap();
    let name = name.build();
    let mut certificate = X509::builder().unwrap();
    certificate.set_version(2).unwrap();
    certificate.set_subject_name(&name).unwrap();
    certificate.set_issuer_name(&name).unwrap();
    certificate.set_pubkey(&own).unwrap();
    certificate.set_not_before(&Asn1Time::days_from_now(0).unwrap()).unwrap();
    certificate.set_not_after(&Asn1Time::days_from_now(1).unwrap()).unwrap();
    certificate.sign(&own, MessageDigest::sha256()).unwrap();
    let certificate = certificate.build();
    let got = against(move |socket| {
        let mut context = SslContext::builder(SslMethod::tls_server()).unwrap();
        context.set_certificate(&certificate).unwrap();
        context.set_private_key(&own).unwrap();
        let mut stream = SslStream::new(Ssl::new(&context.build()).unwrap(), socket).unwrap();
        assert!(stream.accept().and_then(|()| stream.ssl_read(&mut [0; 100])).is_err());
    });
    is_io(got, ErrorKind::InvalidData, "certificate verify failed");
    // A controller without TLS, and one that closes the connection.
    let got = against(|mut socket| {
        let mut hello = [0; 100];
        socket.read_exact(&mut hello).unwrap();
        let _ = socket.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    });
    is_io(got, ErrorKind::InvalidData, "wrong version number");
    let got = against(|mut socket| socket.read_exact(&mut [0; 100]).unwrap());
    assert!(matches!(got, Err(HostError::Io(_))), "{:?}", got.err());
}

/// Any byte of any connection: of the handshake, or of the data in either direction.
#[test]
fn a_byte_that_changed_on_its_way_ends_the_connection() {
    for at in [3, 60, 400, 700, 1500, 60_000, 200_000, 700_000, 1_500_000] {
        let mut config = TargetConfig::new(NQN);
        config.handshake_timeout = Duration::from_secs(2); // in case a length becomes too large
        let served = served(Bench::with(config));
        let course = Arc::new(Between { changes: Some(at), ..Between::default() });
        let address = between(served.server.address(), &course);
        let all = || -> Result<(), HostError> {
            let host = served.connect(address, Some(&served.key.psk(HOST, NQN)))?;
            let disk = host.admin(|admin| admin.namespace(1))?;
            let mut io = host.io_queue(1)?;
            for round in 0..3 {
                let data = pattern(round, 1024 * BLOCK);
                io.write(&disk, 0, &data, false)?;
                let mut back = vec![0; data.len()];
                io.read(&disk, 0, &mut back)?;
                assert!(back == data, "byte {at}: what was read was another");
            }
            Ok(())
        };
        let e = all().expect_err("it was not seen");
        assert!(matches!(e, HostError::Io(_)), "byte {at}: {e}");
        // The data written before consists of whole, correct blocks.
        let there = served.bench.disk.contents()[..1024 * BLOCK].to_vec();
        let sent: Vec<Vec<u8>> = (0..3).map(|round| pattern(round, 1024 * BLOCK)).collect();
        for (i, block) in there.chunks(BLOCK).enumerate() {
            let at = i * BLOCK..(i + 1) * BLOCK;
            let is_known = block.iter().all(|b| *b == 0) || sent.iter().any(|data| data[at.clone()] == *block);
            assert!(is_known, "byte changed, block {i} is nothing that was sent");
        }
    }
}

#[test]
fn a_host_has_the_name_that_its_key_is_for() {
    let key = key();
    let other = "nqn.2026-11.test:other";
    let bench = Bench::new();
    let tls = ServerTls::new(vec![key.psk(HOST, NQN), key.psk(other, NQN)]).unwrap();
    let target = Arc::clone(&bench.target);
    let server = TcpServer::start_with(listener(), target, ServerConfig::default(), Some(tls), clock()).unwrap();
    let connect = |name: &str| {
        let tls = ClientTls::new(&key.psk(name, NQN)).unwrap();
        TcpHost::connect_with(server.address(), bench.host.clone(), Some(tls), clock())
    };
    connect(HOST).unwrap();
    assert_eq!(connect(other).unwrap_err().status(), Some(Status::CONNECT_INVALID_HOST));
}

#[test]
fn a_host_connects_to_the_subsystem_that_its_key_is_for() {
    let key = key();
    let bench = Bench::new();
    let psks = vec![key.psk(HOST, NQN), key.psk(HOST, DISCOVERY_NQN)];
    let tls = ServerTls::new(psks).unwrap();
    let target = Arc::clone(&bench.target);
    let server = TcpServer::start_with(listener(), target, ServerConfig::default(), Some(tls), clock()).unwrap();
    for (to, is_for) in [(NQN, NQN), (DISCOVERY_NQN, DISCOVERY_NQN), (NQN, DISCOVERY_NQN), (DISCOVERY_NQN, NQN)] {
        let tls = ClientTls::new(&key.psk(HOST, is_for)).unwrap();
        let config = HostConfig { subsystem: to.into(), ..bench.host.clone() };
        let got = TcpHost::connect_with(server.address(), config, Some(tls), clock());
        match to == is_for {
            true => drop(got.unwrap()),
            false => assert_eq!(got.unwrap_err().status(), Some(Status::CONNECT_INVALID_PARAMETERS)),
        }
    }
}

/// Every way to derive a key works, of either hash, if both sides do the same.
#[test]
fn other_derivations_of_keys_work_and_do_not_mix() {
    let keys = [key(), key_of(Hash::Sha384)];
    for key in &keys {
        for (theirs, ours) in Derivation::ALL.into_iter().flat_map(|a| Derivation::ALL.map(|b| (a, b))) {
            let bench = Bench::new();
            let tls = ServerTls::new(keys.iter().map(|key| key.psk_by(ours, HOST, NQN)).collect()).unwrap();
            let target = Arc::clone(&bench.target);
            let config = ServerConfig::default();
            let server = TcpServer::start_with(listener(), target, config, Some(tls), clock()).unwrap();
            let tls = ClientTls::new(&key.psk_by(theirs, HOST, NQN)).unwrap();
            let got = TcpHost::connect_with(server.address(), bench.host.clone(), Some(tls), clock());
            assert_eq!(got.is_ok(), theirs == ours, "{:?}: {theirs:?} and {ours:?}", key.hash());
        }
    }
    let [key, _] = keys;
    // One identity, two keys: which one a host means cannot be known.
    let both = |a: Derivation, b: Derivation| ServerTls::new(vec![key.psk_by(a, HOST, NQN), key.psk_by(b, HOST, NQN)]);
    let e = both(Derivation::V0, Derivation::OldV0).unwrap_err();
    assert!(e.kind() == ErrorKind::InvalidInput && e.to_string().contains("NVMe0R01"), "{e}");
    both(Derivation::V0, Derivation::V0).unwrap();
    both(Derivation::V1, Derivation::OldV1).unwrap();
}

/// A peer that sends nothing, nonsense, or a byte now and then: `handshake_timeout` ends it.
#[test]
fn slow_handshakes_end_and_nonsense_does_no_harm() {
    let mut config = TargetConfig::new(NQN);
    config.handshake_timeout = Duration::from_millis(500);
    let served = served(Bench::with(config));
    let address = served.server.address();
    let ended = |mut socket: TcpStream, what: &str| {
        let since = Instant::now();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut answer = Vec::new();
        // A reset is an end too.
        let _ = socket.read_to_end(&mut answer);
        assert!(since.elapsed() < Duration::from_secs(15), "{what} took {:?}", since.elapsed());
        assert!(answer.len() < 100, "{what}: {answer:?}");
    };
    ended(TcpStream::connect(address).unwrap(), "silence");
    let mut rng = fastrand::Rng::with_seed(7);
    for round in 0..40 {
        let mut socket = TcpStream::connect(address).unwrap();
        let mut bytes: Vec<u8> = (0..rng.usize(1..40_000)).map(|_| rng.u8(..)).collect();
        if round % 2 == 0 {
            // Looks like a ClientHello at first, but its length is false.
            let head = [22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3];
            let n = head.len().min(bytes.len());
            bytes[..n].copy_from_slice(&head[..n]);
        }
        let _ = socket.write_all(&bytes);
        ended(socket, "nonsense");
    }
    let mut dripping = TcpStream::connect(address).unwrap();
    let since = Instant::now();
    let head = [22, 3, 1, 0x40, 0].into_iter().chain(std::iter::repeat(1));
    for byte in head {
        if dripping.write_all(&[byte]).is_err() {
            break;
        }
        assert!(since.elapsed() < Duration::from_secs(15), "it is still there");
        thread::sleep(Duration::from_millis(20));
    }
    served.host(address);
}

/// Two ends of a connection with TLS; the second is the host's.
fn pair(through: Option<&Arc<Between>>) -> (Stream, Stream) {
    let key = key();
    let listener = listener();
    let there = listener.local_addr().unwrap();
    let address = through.map_or(there, |course| between(there, course));
    let psk = key.psk(HOST, NQN);
    let tls = ServerTls::new(vec![psk.clone()]).unwrap();
    let limit = Duration::from_secs(20);
    let accepts = thread::spawn(move || {
        let socket = listener.accept().unwrap().0;
        tls.accept(socket, &[], limit, &|| false, &clock()).unwrap()
    });
    let socket = TcpStream::connect(address).unwrap();
    let client = ClientTls::new(&psk).unwrap().connect(socket, limit, &|| false, &clock()).unwrap();
    let server = accepts.join().unwrap();
    assert_eq!((server.host(), client.host()), (Some(HOST), None));
    assert!(server.is_encrypted() && client.is_encrypted());
    (server, client)
}

/// A record that arrives byte by byte blocks no reader beyond the limit, and is complete in the end.
#[test]
fn a_read_that_waited_goes_on_where_it_was() {
    let course = Arc::new(Between::default());
    let (mut server, mut client) = pair(Some(&course));
    course.drips.store(true, Ordering::Relaxed);
    client.set_read_timeout(Duration::from_millis(30)).unwrap();
    let data = pattern(1, 400);
    assert_eq!(server.write(&data).unwrap(), data.len());
    let (mut got, mut waited, mut buffer) = (Vec::new(), 0, [0; 1000]);
    while got.len() < data.len() {
        let since = Instant::now();
        match client.read(&mut buffer) {
            Ok(n) => got.extend_from_slice(&buffer[..n]),
            Err(e) => {
                assert!(matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{e}");
                waited += 1;
            }
        }
        assert!(since.elapsed() < Duration::from_secs(1), "{:?}", since.elapsed());
    }
    assert!(got == data && waited > 3, "it waited {waited} times");
}

#[test]
fn an_end_that_was_announced_is_told_from_one_that_was_not() {
    let (mut server, mut client) = pair(None);
    server.write(b"last words").unwrap();
    server.end_writing().unwrap();
    let mut buffer = [0; 100];
    client.set_read_timeout(Duration::from_secs(20)).unwrap();
    assert_eq!(client.read(&mut buffer).unwrap(), 10);
    assert_eq!(client.read(&mut buffer).unwrap(), 0);
    // The other direction is still open.
    client.write(b"an answer").unwrap();
    server.set_read_timeout(Duration::from_secs(20)).unwrap();
    assert_eq!(server.read(&mut buffer).unwrap(), 9);
    let (server, mut client) = pair(None);
    drop(server);
    client.set_read_timeout(Duration::from_secs(20)).unwrap();
    assert_eq!(client.read(&mut buffer).unwrap_err().kind(), ErrorKind::UnexpectedEof);
}

/// With a peer that reads nothing, writes report that they have to wait, and continue when it reads.
#[test]
fn a_write_that_waited_goes_on_where_it_was() {
    let (mut server, mut client) = pair(None);
    let data = pattern(3, 40 << 20);
    server.socket().set_write_timeout(Some(Duration::from_millis(20))).unwrap();
    let (mut rest, mut waited) = (&data[..], 0);
    let mut reader = None;
    while !rest.is_empty() {
        match server.write(rest) {
            Ok(n) => rest = &rest[n..],
            Err(e) => {
                assert!(matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{e}");
                waited += 1;
            }
        }
        if waited == 3 && reader.is_none() {
            let mut client = std::mem::replace(&mut client, pair(None).1);
            let bytes = data.len();
            reader = Some(thread::spawn(move || {
                let (mut all, mut buffer) = (Vec::new(), vec![0; 100_000]);
                client.set_read_timeout(Duration::from_secs(20)).unwrap();
                while all.len() < bytes {
                    let n = client.read(&mut buffer).unwrap();
                    all.extend_from_slice(&buffer[..n]);
                }
                all
            }));
        }
    }
    assert!(waited >= 3);
    assert!(reader.unwrap().join().unwrap() == data);
}

#[test]
fn names_that_are_too_long_are_refused() {
    for hash in [Hash::Sha256, Hash::Sha384] {
        let e = ServerTls::new(vec![key_of(hash).psk(&"h".repeat(120), &"s".repeat(120))]).unwrap_err();
        assert!(e.kind() == ErrorKind::InvalidInput && e.to_string().contains("too long"), "{e}");
        ClientTls::new(&key_of(hash).psk(&"h".repeat(80), &"s".repeat(80))).unwrap();
    }
    ClientTls::new(&key().psk(&"h".repeat(100), &"s".repeat(100))).unwrap();
}

const HASHES: [(Hash, &str); 2] = [(Hash::Sha256, "TLS_AES_128_GCM_SHA256"), (Hash::Sha384, "TLS_AES_256_GCM_SHA384")];

/// What a connection to the target must be able to do.
fn use_it(host: &TcpHost, seed: u64) {
    let disk = host.admin(|admin| admin.namespace(1)).unwrap();
    let mut io = host.io_queue(1).unwrap();
    let data = pattern(seed, 2048 * BLOCK);
    io.write(&disk, 0, &data, false).unwrap();
    let mut back = vec![0; data.len()];
    io.read(&disk, 0, &mut back).unwrap();
    assert!(back == data);
}

/// A target knows keys of both hashes for the same names, in any order.
#[test]
fn keys_of_both_hashes_work_with_one_target() {
    let keys = HASHES.map(|(hash, _)| key_of(hash));
    let mut psks = keys.clone().map(|key| key.psk(HOST, NQN));
    for _ in 0..2 {
        psks.reverse();
        let bench = Bench::new();
        let tls = ServerTls::new(psks.to_vec()).unwrap();
        let target = Arc::clone(&bench.target);
        let server = TcpServer::start_with(listener(), target, ServerConfig::default(), Some(tls), clock()).unwrap();
        for (i, psk) in psks.iter().enumerate() {
            let tls = ClientTls::new(psk).unwrap();
            let host = TcpHost::connect_with(server.address(), bench.host.clone(), Some(tls), clock()).unwrap();
            use_it(&host, i as u64);
        }
        // A client that prefers the other suite, and names a key that is not for it.
        let short = psks.iter().find(|psk| psk.hash() == Hash::Sha256).unwrap();
        let stream = client(server.address(), |context| {
            context.set_ciphersuites("TLS_AES_256_GCM_SHA384:TLS_AES_128_GCM_SHA256").unwrap();
            with_psk(context, short.identity().to_owned(), short.key().to_vec());
        });
        assert_eq!(stream.unwrap().ssl().current_cipher().unwrap().name(), "TLS_AES_128_GCM_SHA256");
    }
}

#[test]
fn a_key_of_one_hash_does_not_get_in_where_another_is_known() {
    for (known, _) in HASHES {
        let served = served_with(Bench::new(), key_of(known));
        for (offered, _) in HASHES {
            let psk = key_of(offered).psk(HOST, NQN);
            let got = served.connect(served.server.address(), Some(&psk));
            is_io(got, ErrorKind::PermissionDenied, "not know this key");
        }
        assert_eq!(served.bench.target.controllers(), 0);
        use_it(&served.host(served.server.address()), 1);
    }
}

/// OpenSSL's own programs, with a key in the form that they take for any hash: a session in a file.
struct Programs {
    openssl: PathBuf,
    place: TempDir,
}

impl Programs {
    fn find(test: &str) -> Option<Self> {
        let openssl = rockmill_skip::program("openssl", Needs::OpenSsl).map_err(|missing| skip(test, &missing)).ok()?;
        Some(Self { openssl, place: tempfile::tempdir().unwrap() })
    }

    /// `openssl s_client` or `s_server`.
    fn run(&self, name: &str, hash: Hash, identity: &str, key: &[u8], more: &[&str]) -> Command {
        // SSL_SESSION in DER: version 1; TLS 1.3; the suite; no session ID; the key; it expires after two hours.
        let mut fields = vec![2, 1, 1, 2, 2, 3, 4, 4, 2, 0x13, if hash == Hash::Sha256 { 1 } else { 2 }, 4, 0];
        fields.extend([4, key.len() as u8]);
        fields.extend_from_slice(key);
        fields.extend([0xa2, 4, 2, 2, 0x1c, 0x20]);
        let der = [&[0x30, fields.len() as u8], &fields[..]].concat();
        let text = openssl::base64::encode_block(&der);
        let form = "SSL SESSION PARAMETERS";
        let lines: Vec<&str> = text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
        let file = self.place.path().join(format!("{name}-{}", fastrand::u64(..)));
        std::fs::write(&file, format!("-----BEGIN {form}-----\n{}\n-----END {form}-----\n", lines.join("\n"))).unwrap();
        let mut command = Command::new(&self.openssl);
        command.args([name, "-tls1_3", "-psk_identity", identity, "-psk_session"]).arg(file).args(more);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// What `openssl s_client` says.
    fn client(&self, to: SocketAddr, hash: Hash, identity: &str, key: &[u8], more: &[&str]) -> String {
        let to = to.to_string();
        let mut command = self.run("s_client", hash, identity, key, &[&["-connect", &to], more].concat());
        let done = command.stdin(Stdio::null()).output().unwrap();
        format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr))
    }
}

/// `openssl s_server`; ends when it is dropped.
struct OtherServer {
    program: Child,
    address: String,
    /// Kept, since the program would be killed by a write to nobody.
    _said: BufReader<ChildStdout>,
}

impl OtherServer {
    fn start(mut command: Command) -> Self {
        let mut program = command.args(["-nocert", "-accept", "127.0.0.1:0"]).stdin(Stdio::piped()).spawn().unwrap();
        let (mut said, mut line) = (BufReader::new(program.stdout.take().unwrap()), String::new());
        while !line.starts_with("ACCEPT ") {
            line.clear();
            assert!(said.read_line(&mut line).unwrap() > 0, "openssl s_server has ended");
        }
        let address = line.trim_start_matches("ACCEPT ").trim().to_owned();
        Self { program, address, _said: said }
    }
}

impl Drop for OtherServer {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

/// Accepts one connection with these keys, and tells how that went.
fn accepting(psks: Vec<Psk>) -> (SocketAddr, thread::JoinHandle<io::Result<Stream>>) {
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let tls = ServerTls::new(psks).unwrap();
    let accepts = move || {
        let socket = listener.accept().unwrap().0;
        tls.accept(socket, &[], Duration::from_secs(20), &|| false, &clock())
    };
    (address, thread::spawn(accepts))
}

#[test]
fn openssl_s_client_gets_the_suite_of_its_key() {
    let Some(programs) = Programs::find("openssl_s_client_gets_the_suite_of_its_key") else { return };
    let psks = HASHES.map(|(hash, _)| key_of(hash).psk(HOST, NQN));
    for ((hash, suite), psk) in HASHES.into_iter().zip(&psks) {
        let go = |identity: &str, key: &[u8], more: &[&str]| {
            let (address, accepts) = accepting(psks.to_vec());
            let said = programs.client(address, hash, identity, key, more);
            (said, accepts.join().unwrap())
        };
        // The suites that it has, each of both preferred, and the right one alone.
        let [a, b] = HASHES.map(|(_, suite)| suite);
        for suites in [None, Some(format!("{a}:{b}")), Some(format!("{b}:{a}")), Some(suite.to_owned())] {
            let more: Vec<&str> = suites.iter().flat_map(|suites| ["-ciphersuites", suites]).collect();
            let (said, accepted) = go(psk.identity(), psk.key(), &more);
            assert!(said.contains(&format!("Reused, TLSv1.3, Cipher is {suite}")), "{suites:?}: {said}");
            assert!(said.contains("no peer certificate available"), "{said}");
            assert_eq!(accepted.unwrap().host(), Some(HOST));
        }
        let refused = |identity: &str, key: &[u8], more: &[&str], says: &str| {
            let (said, accepted) = go(identity, key, more);
            assert!(!said.contains("Reused") && said.contains("alert"), "{says}: {said}");
            let e = accepted.unwrap_err();
            assert!(e.kind() == ErrorKind::PermissionDenied && e.to_string().contains(says), "{says}: {e}");
        };
        let wrong = vec![7; psk.key().len()];
        refused(psk.identity(), &wrong, &[], "its key for TLS is another");
        refused(key_of(hash).psk(HOST, NQN).identity(), psk.key(), &[], "no key for TLS that is known here");
        // The other hash's identity, with this key: the identity chooses the hash, and the client has another one.
        let other = psks.iter().find(|psk| psk.hash() != hash).unwrap();
        refused(other.identity(), psk.key(), &["-ciphersuites", suite], "which its key for TLS needs");
        refused(other.identity(), psk.key(), &[], "its key for TLS is another");
        let other_suite = HASHES.iter().find(|(_, other)| *other != suite).unwrap().1;
        refused(psk.identity(), psk.key(), &["-ciphersuites", other_suite], suite);
    }
}

#[test]
fn our_side_connects_to_openssl_s_server() {
    let Some(programs) = Programs::find("our_side_connects_to_openssl_s_server") else { return };
    for (hash, suite) in HASHES {
        let psk = key_of(hash).psk(HOST, NQN);
        let other = HASHES.iter().find(|(other, _)| *other != hash).unwrap().1;
        let connect = |identity: &str, key: &[u8], more: &[&str]| {
            let server = OtherServer::start(programs.run("s_server", hash, identity, key, more));
            let socket = TcpStream::connect(&server.address).unwrap();
            let tls = ClientTls::new(&psk).unwrap();
            tls.connect(socket, Duration::from_secs(20), &|| false, &clock()).map(drop)
        };
        for more in [&[][..], &["-ciphersuites", suite]] {
            connect(psk.identity(), psk.key(), more).unwrap();
        }
        // A group of the server's that the first ClientHello has no share of: a HelloRetryRequest.
        connect(psk.identity(), psk.key(), &["-groups", "P-384"]).unwrap();
        for (what, got, says) in [
            ("another key", connect(psk.identity(), &vec![7; psk.key().len()], &[]), "has another key"),
            ("another identity", connect("other", psk.key(), &[]), "not know this key"),
            ("another suite", connect(psk.identity(), psk.key(), &["-ciphersuites", other]), "or not its cipher suite"),
        ] {
            let e = got.expect_err(what);
            assert!(e.kind() == ErrorKind::PermissionDenied && e.to_string().contains(says), "{what}: {e}");
        }
    }
}
