//! What is said through a pool, and pools that are refused. No server is needed for that.

use std::net::TcpStream;

use super::*;
use crate::message::Message;
use crate::pool::{Answer, QueuedJob, Ticket, parse_slot, slot_to_text};

#[test]
fn texts_of_a_pool_come_back_as_they_were_and_others_are_refused() {
    let ticket = Ticket(std::array::from_fn(|i| (i * 17) as u8));
    let job = QueuedJob { ticket, bytes: u64::MAX, inbox: "_INBOX.aB3.xyz".to_owned() };
    let text = job.to_text();
    assert_eq!(text, "job 00112233445566778899aabbccddeeff 18446744073709551615 _INBOX.aB3.xyz");
    assert_eq!(QueuedJob::parse(text.as_bytes()), Some(job));
    let long = format!("job {} 1 _INBOX.{}", "0".repeat(32), "a".repeat(200));
    let none = [
        "",
        "job",
        "job 00112233445566778899aabbccddeeff 1 ",
        "job 00112233445566778899aabbccddeef 1 _INBOX.a",
        "job +0112233445566778899aabbccddeeff 1 _INBOX.a",
        "job 00112233445566778899aabbccddeeff -1 _INBOX.a",
        "job 00112233445566778899aabbccddeeff 1 _INBOX.a b",
        // A worker says nothing to the server's own subjects, nor to many at once.
        "job 00112233445566778899aabbccddeeff 1 $JS.API.STREAM.DELETE.all",
        "job 00112233445566778899aabbccddeeff 1 _INBOX.",
        "job 00112233445566778899aabbccddeeff 1 _INBOX.>",
        "job 00112233445566778899aabbccddeeff 1 _INBOX.a*",
        "job 00112233445566778899aabbccddeeff 1 _INBOX.a\r\nPUB x 0",
        &long,
    ];
    for text in none {
        assert_eq!(QueuedJob::parse(text.as_bytes()), None, "{text:?}");
    }
    assert_eq!(QueuedJob::parse(b"job \xff"), None);
    for address in ["10.0.0.7:4421", "[fe80::1]:1"] {
        let address: SocketAddr = address.parse().unwrap();
        assert_eq!(parse_slot(slot_to_text(address).as_bytes()), Some(address));
    }
    for text in ["", "slot", "slot host:1", "slot 10.0.0.7", "slot 10.0.0.7:0", "slot 0.0.0.0:1", "slot [::]:1"] {
        assert_eq!(parse_slot(text.as_bytes()), None, "{text:?}");
    }
    for answer in [Answer::Yes, Answer::No, Answer::Other] {
        assert_eq!(Answer::parse(answer.to_text().as_bytes()), Some(answer));
    }
    assert_eq!(Answer::parse(b"yes "), None);
}

#[test]
fn credentials_of_a_pool_are_one_line() {
    let token: PoolCredentials = "# ours\n\n  token abc \n".parse().unwrap();
    assert_eq!(token, PoolCredentials::Token("abc".to_owned()));
    let user: PoolCredentials = "user store s3cret".parse().unwrap();
    assert_eq!(user, PoolCredentials::User("store".to_owned(), "s3cret".to_owned()));
    // They are in no error and no log.
    assert!(!format!("{token:?} {user:?}").contains("abc") && !format!("{user:?}").contains("s3cret"));
    for text in ["", "token", "token a b", "user a", "password x", "token a\ntoken b"] {
        let e = text.parse::<PoolCredentials>().unwrap_err();
        assert!(e.to_string().contains("`user NAME PASSWORD`"), "{e}");
    }
}

#[test]
fn pools_that_cannot_be_meant_are_refused() {
    let pool = || PoolConfig::new(vec!["nats://127.0.0.1:4222".to_owned()]);
    let of = |servers: &[&str]| PoolConfig { servers: servers.iter().map(|s| (*s).to_owned()).collect(), ..pool() };
    let cases = [
        (of(&[]), "needs the address"),
        (of(&["127.0.0.1:4222"]), "nats://HOST:PORT"),
        (of(&["nats://a", "http://b"]), "\"http://b\""),
        (of(&["nats://"]), "nats://HOST:PORT"),
        (of(&["nats://me:secret@10.0.0.5"]), "go into a file"),
        (PoolConfig { queue: String::new(), ..pool() }, "name of a queue"),
        (PoolConfig { queue: "a.b".to_owned(), ..pool() }, "name of a queue"),
        (PoolConfig { queue: ">".to_owned(), ..pool() }, "name of a queue"),
        (PoolConfig { queue: "a".repeat(33), ..pool() }, "name of a queue"),
        (PoolConfig { lease: Duration::from_millis(999), ..pool() }, "lease"),
        (PoolConfig { lease: Duration::from_secs(3601), ..pool() }, "lease"),
    ];
    for (pool, says) in cases {
        let store = Workers::new(WorkersConfig::of_pool(pool.clone()), clock()).unwrap_err();
        let worker = Worker::start(listener(), WorkerConfig { pool: Some(pool), ..WorkerConfig::default() }, clock());
        for e in [store, worker.unwrap_err()] {
            assert!(e.kind() == std::io::ErrorKind::InvalidInput && e.to_string().contains(says), "{says}: {e}");
            assert!(!e.to_string().contains("secret"), "{e}");
        }
    }
    let both = WorkersConfig { pool: Some(pool()), ..config(&["127.0.0.1:1".parse().unwrap()]) };
    let e = Workers::new(both, clock()).unwrap_err();
    assert!(e.to_string().contains("not both"), "{e}");
    // Nobody can connect to that.
    let config = || WorkerConfig { pool: Some(pool()), allow_unauthenticated: true, ..WorkerConfig::default() };
    let e = Worker::start(TcpListener::bind("0.0.0.0:0").unwrap(), config(), clock()).unwrap_err();
    assert!(e.to_string().contains("listens at one address"), "{e}");
    if !crate::NATS {
        let e = Workers::new(WorkersConfig::of_pool(pool()), clock()).unwrap_err();
        assert!(e.kind() == std::io::ErrorKind::Unsupported && e.to_string().contains("feature `nats`"), "{e}");
        let e = Worker::start(listener(), config(), clock()).unwrap_err();
        assert!(e.to_string().contains("feature `nats`"), "{e}");
    }
}

/// Room is set aside by the pool alone: a ticket that nobody gave out is none.
#[test]
fn a_ticket_that_is_not_known_is_refused() {
    let worker = worker(WorkerConfig::default());
    let mut channel = Channel::new(TcpStream::connect(worker.address()).unwrap(), clock()).unwrap();
    channel.greet_worker(HOST, None, &|| false).unwrap();
    let (subsystem, ticket) = ("nqn.2026-11.rockmill:job:test".to_owned(), Some(Ticket([1; 16])));
    let offer =
        Message::Offer { epoch: 1, ticket, subsystem, port: 1, silence_ms: 200, external: None, spec: Vec::new() };
    channel.tell(&offer).unwrap();
    let Message::Refused { epoch: 1, reason } = next(&mut channel) else { panic!("no refusal") };
    assert!(reason.contains("set no room aside"), "{reason}");
    assert_eq!(worker.counters().running, 0);
}
