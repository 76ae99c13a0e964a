//! Messages as bytes, and how both sides come to know each other.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rockmill::internals::DeviceExtent;

use super::*;
use crate::VERSION;
use crate::channel::LongBodies;
use crate::external::ExternalInputs;
use crate::message::HEAD_BYTES;
use crate::pool::Ticket;

fn usage() -> RemoteUsage {
    RemoteUsage { cpu_micros: 1, round_trips: u64::MAX, sent_bytes: 3, received_bytes: 4 }
}

fn offer(ticket: Option<Ticket>) -> Message {
    let (subsystem, spec) = ("nqn.2026-11.rockmill:ärger".to_owned(), vec![9; 300]);
    let external = ticket.is_some().then(|| ExternalInputs {
        address: "[fe80::1%3]:4420".parse().unwrap(),
        subsystem: subsystem.clone(),
        namespace: 7,
        extents: (0..9)
            .map(|i| DeviceExtent { offset: i * 8192, device_offset: !8191 - i * 4096, len: 4096 })
            .collect(),
    });
    Message::Offer { epoch: u64::MAX, ticket, subsystem, port: 65535, silence_ms: 10_000, external, spec }
}

fn samples() -> Vec<Message> {
    let name = || "nqn.2026-11.rockmill:ärger".to_owned();
    vec![
        Message::Hello { version: VERSION, name: name(), authenticates: true },
        Message::Welcome { version: VERSION, name: name(), authenticates: false },
        Message::Auth(vec![1, 2, 3]),
        offer(None),
        Message::Accepted { epoch: 1 },
        Message::Refused { epoch: 2, reason: "no".to_owned() },
        Message::Progress { epoch: 3, bytes: u64::MAX },
        Message::Done { epoch: 4, usage: usage(), result: vec![8; 70_000] },
        Message::Cancel { epoch: 5 },
        Message::Ping { number: u64::MAX },
        Message::Pong { number: 6 },
        Message::Idle,
        offer(Some(Ticket([7; 16]))),
    ]
}

#[test]
fn messages_come_back_as_they_were_and_damaged_ones_are_refused() {
    let mut rng = fastrand::Rng::with_seed(3);
    for message in samples() {
        let frame = message.encode().unwrap();
        let body = &frame[HEAD_BYTES..];
        assert_eq!(Message::decode(body).unwrap(), message);
        for cut in 0..body.len().min(200) {
            Message::decode(&body[..cut]).unwrap_err();
        }
        Message::decode(&[body, &[0]].concat()).unwrap_err();
        for _ in 0..500 {
            let mut body = body[..body.len().min(400)].to_vec();
            for _ in 0..rng.usize(1..4) {
                let at = rng.usize(..body.len());
                body[at] = rng.u8(..);
            }
            let _ = Message::decode(&body); // no panic, and no memory that the bytes only promise
        }
    }
    let reason = "a\nb\u{1b}[2J".to_owned() + &"ä".repeat(2000);
    let frame = Message::Refused { epoch: 1, reason }.encode().unwrap();
    let Message::Refused { reason, .. } = Message::decode(&frame[HEAD_BYTES..]).unwrap() else { panic!() };
    assert!(reason.starts_with("a b [2J") && reason.len() <= 1024);
}

/// Both ends of a connection.
fn pair() -> (Channel, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (Channel::new(listener.accept().unwrap().0, clock()).unwrap(), theirs)
}

#[test]
fn a_channel_takes_pieces_and_refuses_what_is_no_message() {
    let (mut channel, mut theirs) = pair();
    let frames: Vec<u8> = samples()[..3].iter().flat_map(|message| message.encode().unwrap()).collect();
    for piece in frames.chunks(5) {
        theirs.write_all(piece).unwrap();
    }
    assert_eq!(samples()[..3].iter().map(|_| next(&mut channel)).collect::<Vec<_>>(), samples()[..3]);
    assert_eq!(channel.receive(Duration::from_millis(5)).unwrap(), None);
    // Too long for a peer that is not known yet.
    theirs.write_all(&samples()[7].encode().unwrap()).unwrap();
    assert_eq!(channel.receive(Duration::from_secs(10)).unwrap_err().kind(), ErrorKind::InvalidData);
    let (mut channel, mut theirs) = pair();
    let mut frame = samples()[0].encode().unwrap();
    *frame.last_mut().unwrap() ^= 1;
    theirs.write_all(&frame).unwrap();
    assert_eq!(channel.receive(Duration::from_secs(10)).unwrap_err().kind(), ErrorKind::InvalidData);
    let (mut channel, theirs) = pair();
    drop(theirs);
    assert_eq!(channel.receive(Duration::from_secs(10)).unwrap_err().kind(), ErrorKind::UnexpectedEof);
}

/// What both sides get of a greeting.
fn greet(host: Option<&Secrets>, worker: Option<&Secrets>) -> [Result<String, ErrorKind>; 2] {
    let (mut mine, theirs) = pair();
    let mut theirs = Channel::new(theirs, clock()).unwrap();
    thread::scope(|scope| {
        let answered = scope.spawn(move || {
            let got = theirs.greet_store(WORKER, worker, &|| false).map_err(|e| e.kind());
            drop(theirs);
            got
        });
        let got = mine.greet_worker(HOST, host, &|| false).map_err(|e| e.kind());
        drop(mine);
        [got, answered.join().unwrap()]
    })
}

#[test]
fn both_sides_prove_who_they_are_or_nothing_begins() {
    assert_eq!(greet(None, None), [Ok(WORKER.to_owned()), Ok(HOST.to_owned())]);
    let (host, worker) = secrets();
    assert_eq!(greet(Some(&host), Some(&worker)), [Ok(WORKER.to_owned()), Ok(HOST.to_owned())]);
    let (other_host, other_worker) = secrets();
    for [mine, theirs] in [
        [Some(&host), None],
        [None, Some(&worker)],
        [Some(&other_host), Some(&worker)],
        [Some(&host), Some(&other_worker)],
    ] {
        let got = greet(mine, theirs);
        assert!(got.iter().all(Result::is_err), "{got:?}");
        assert!(got.contains(&Err(ErrorKind::PermissionDenied)), "{got:?}");
    }
    // One secret of the two is right: the worker knows the host's, and not its own.
    let text = |secret: &Secret| secret.to_text();
    let [a, b, c] = [0; 3].map(|_| Secret::generate(Some(Hash::Sha384), &SystemRandom).unwrap());
    let file = |own: &Secret, name: &str, peer: &Secret| {
        Secrets::parse(&format!("# both\nself {}\n\n{name} {}\n", text(own), text(peer))).unwrap()
    };
    let (host, worker, half) = (file(&a, WORKER, &b), file(&b, HOST, &a), file(&c, HOST, &a));
    assert!(greet(Some(&host), Some(&worker)).iter().all(Result::is_ok));
    let got = greet(Some(&host), Some(&half));
    assert_eq!(got[0], Err(ErrorKind::PermissionDenied), "{got:?}");
}

#[test]
fn a_file_of_secrets_says_which_line_is_wrong() {
    let [a, b] = [0; 2].map(|_| Secret::generate(None, &SystemRandom).unwrap().to_text());
    Secrets::parse(&format!("self {a}\nw {b}")).unwrap();
    let wrong = [
        (format!("self {a}"), "no peer"),
        (format!("w {b}"), "self"),
        (format!("self {a}\nw {b}\nw {b}"), "line 3"),
        (format!("self {a}\nself {b}"), "line 2"),
        (format!("self {a}\nw"), "line 2"),
        (format!("self {a}\nw DHHC-1:nonsense"), "line 2"),
        (format!("self {a}\nw {a}"), "one's own"),
    ];
    for (text, says) in wrong {
        let e = Secrets::parse(&text).unwrap_err();
        assert!(e.contains(says) && !e.contains(&a[10..20]), "{e}");
    }
}

#[test]
fn other_machines_are_used_only_with_secrets_or_where_that_is_allowed() {
    let far = WorkersConfig::new(vec!["192.0.2.1:4421".parse().unwrap()]);
    assert_eq!(Workers::new(far.clone(), clock()).unwrap_err().kind(), ErrorKind::InvalidInput);
    Workers::new(WorkersConfig { secrets: Some(secrets().0), ..far.clone() }, clock()).unwrap();
    Workers::new(WorkersConfig { allow_unauthenticated: true, ..far }, clock()).unwrap();
    let everywhere = || TcpListener::bind("0.0.0.0:0").unwrap();
    let e = Worker::start(everywhere(), WorkerConfig::default(), clock()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidInput);
    let config = WorkerConfig { secrets: Some(secrets().1), ..WorkerConfig::default() };
    Worker::start(everywhere(), config, clock()).unwrap();
}

#[test]
fn another_version_is_refused_by_both_sides() {
    for (version, wanted) in [(VERSION + 1, ErrorKind::Unsupported), (0, ErrorKind::Unsupported)] {
        let (mut channel, theirs) = pair();
        let mut theirs = Channel::new(theirs, clock()).unwrap();
        theirs.tell(&Message::Hello { version, name: HOST.to_owned(), authenticates: false }).unwrap();
        assert_eq!(channel.greet_store(WORKER, None, &|| false).unwrap_err().kind(), wanted);
        // It is told which version there is.
        let Message::Welcome { version: told, .. } = next(&mut theirs) else { panic!() };
        assert_eq!(told, VERSION);
        let (mut channel, theirs) = pair();
        let mut theirs = Channel::new(theirs, clock()).unwrap();
        theirs.tell(&Message::Welcome { version, name: WORKER.to_owned(), authenticates: false }).unwrap();
        assert_eq!(channel.greet_worker(HOST, None, &|| false).unwrap_err().kind(), wanted);
    }
}

#[test]
fn a_greeting_of_a_later_version_may_say_more() {
    for kind in [1, 2] {
        let mut body = vec![kind];
        body.extend_from_slice(b"RMILLOFF");
        body.extend_from_slice(&(VERSION + 1).to_le_bytes());
        body.extend_from_slice(&[0xff; 40]);
        let message = Message::decode(&body).unwrap();
        let (Message::Hello { version, .. } | Message::Welcome { version, .. }) = message else { panic!() };
        assert_eq!(version, VERSION + 1);
    }
}

/// A clock on which a second passes with each look.
#[derive(Debug, Default)]
struct Hurried(AtomicU64);

impl Clock for Hurried {
    fn now_micros(&self) -> u64 {
        self.monotonic_nanos() / 1000
    }

    fn monotonic_nanos(&self) -> u64 {
        self.0.fetch_add(1_000_000_000, Ordering::Relaxed)
    }

    fn sleep(&self, _: Duration) {}
}

#[test]
fn a_peer_that_takes_little_now_and_then_does_not_hold_a_sender_for_ever() {
    let large = Message::Auth(vec![7; 32 << 20]);
    let (channel, mut theirs) = pair();
    let mut channel = Channel::new(channel.stream().try_clone().unwrap(), Arc::new(Hurried::default())).unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let ends = Arc::clone(&is_over);
    let takes = thread::spawn(move || {
        let mut buffer = [0; 4096];
        while !ends.load(Ordering::Acquire) && theirs.read(&mut buffer).is_ok_and(|n| n > 0) {
            thread::sleep(Duration::from_millis(10));
        }
    });
    assert_eq!(channel.tell(&large).unwrap_err().kind(), ErrorKind::TimedOut);
    is_over.store(true, Ordering::Release);
    takes.join().unwrap();
    // And one that is not wanted any more ends at once; a short message goes out all the same.
    let (mut channel, theirs) = pair();
    assert_eq!(channel.send(&large, &|| true).unwrap_err().kind(), ErrorKind::ConnectionAborted);
    drop(theirs);
    let (mut channel, theirs) = pair();
    channel.send(&Message::Cancel { epoch: 3 }, &|| true).unwrap();
    let mut theirs = Channel::new(theirs, clock()).unwrap();
    assert_eq!(next(&mut theirs), Message::Cancel { epoch: 3 });
}

#[test]
fn a_large_message_does_not_keep_its_memory() {
    let (mut channel, theirs) = pair();
    channel.allow_long_messages();
    let mut theirs = Channel::new(theirs, clock()).unwrap();
    let large = Message::Auth(vec![7; 8 << 20]);
    let sender = thread::spawn(move || theirs.tell(&large).map(|()| theirs));
    assert!(matches!(next(&mut channel), Message::Auth(bytes) if bytes.len() == 8 << 20));
    drop(sender.join().unwrap().unwrap());
    assert!(channel.memory() < 1 << 20, "{}", channel.memory());
}

#[test]
fn long_messages_take_turns_where_many_may_send_them() {
    let places = LongBodies::new(1);
    let sharing = || {
        let (mut channel, theirs) = pair();
        channel.allow_long_messages();
        channel.share(&places);
        (channel, theirs)
    };
    let (mut first, mut to_first) = sharing();
    let (mut second, mut to_second) = sharing();
    let frame = Message::Auth(vec![7; 8 << 20]).encode().unwrap();
    let (begin, rest) = frame.split_at(4 << 20);
    let (some, short) = (Duration::from_millis(300), Duration::from_millis(10));
    thread::scope(|scope| {
        let (goes_on, waits) = std::sync::mpsc::channel();
        scope.spawn(move || {
            to_first.write_all(begin).unwrap();
            waits.recv().unwrap();
            to_first.write_all(rest).unwrap();
            waits.recv().unwrap(); // and stays connected
        });
        scope.spawn(|| to_second.write_all(&frame).unwrap());
        while first.memory() < 4 << 20 {
            assert_eq!(first.receive(some).unwrap(), None);
        }
        assert_eq!(second.receive(some).unwrap(), None);
        assert!(second.memory() < 1 << 20, "{}", second.memory());
        goes_on.send(()).unwrap();
        assert!(matches!(next(&mut first), Message::Auth(_)));
        // Until the next one is asked for, somebody has it.
        assert_eq!(second.receive(some).unwrap(), None);
        assert!(second.memory() < 1 << 20, "{}", second.memory());
        assert_eq!(first.receive(short).unwrap(), None);
        assert!(matches!(next(&mut second), Message::Auth(_)));
        goes_on.send(()).unwrap();
    });
    // One that does not go on loses its place.
    drop((first, second));
    let (slow, mut to_slow) = pair();
    let mut slow = Channel::new(slow.stream().try_clone().unwrap(), Arc::new(Hurried::default())).unwrap();
    slow.allow_long_messages();
    slow.share(&places);
    to_slow.write_all(&frame[..100]).unwrap();
    let late = (0..1000).find_map(|_| slow.receive(Duration::from_millis(1100)).err()).expect("it is given up");
    assert_eq!(late.kind(), ErrorKind::TimedOut);
    drop(slow);
    let (mut third, mut to_third) = sharing();
    thread::scope(|scope| {
        scope.spawn(|| to_third.write_all(&frame).unwrap());
        assert!(matches!(next(&mut third), Message::Auth(_)));
    });
}

/// An error names a message, and does not repeat what its peer sent.
#[test]
fn errors_do_not_grow_with_what_was_sent() {
    let (mut channel, theirs) = pair();
    channel.allow_long_messages();
    let mut theirs = Channel::new(theirs, clock()).unwrap();
    let sender = thread::spawn(move || theirs.tell(&Message::Auth(vec![7; 4 << 20])).map(|()| theirs));
    let e = channel.ping(7, Duration::from_secs(10), &|| false).unwrap_err();
    assert_eq!((e.kind(), e.to_string().as_str()), (ErrorKind::InvalidData, "Auth in place of an answer"));
    drop(sender.join().unwrap().unwrap());
}

#[test]
fn names_that_cannot_be_sent_are_refused() {
    let long = "n".repeat(224);
    for name in ["", "a\nb", &long] {
        let config = WorkersConfig { name: name.to_owned(), ..WorkersConfig::new(vec![]) };
        assert_eq!(Workers::new(config, clock()).unwrap_err().kind(), ErrorKind::InvalidInput);
        let config = WorkerConfig { name: name.to_owned(), ..WorkerConfig::default() };
        assert_eq!(Worker::start(listener(), config, clock()).unwrap_err().kind(), ErrorKind::InvalidInput);
        let [a, b] = [0; 2].map(|_| Secret::generate(None, &SystemRandom).unwrap());
        Secrets::new(a, BTreeMap::from([(name.to_owned(), b)])).unwrap_err();
    }
    let a = Secret::generate(None, &SystemRandom).unwrap();
    let e = Secrets::new(a.clone(), BTreeMap::from([(HOST.to_owned(), a.clone())])).unwrap_err();
    assert!(e.contains("one's own"), "{e}");
    Secrets::new(a, BTreeMap::new()).unwrap_err();
}
