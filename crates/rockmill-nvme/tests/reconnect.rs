//! A host whose connections are cut, shortened, half open or held back connects again, within its bounds.

mod common;

#[path = "../../rockmill-offload/src/tests/between.rs"]
#[allow(dead_code, reason = "each test program uses a part of it")]
mod between;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use between::{Between, Event, Rules};
use common::{BLOCK, Bench, pattern};
use rockmill_io::{Clock, SystemClock};
use rockmill_nvme::auth::{AuthPolicy, Group, Hash, HostAuth, HostSecrets, Secret, SystemRandom};
use rockmill_nvme::initiator::{Admin, HostConfig, HostError, Io, NamespaceInfo};
use rockmill_nvme::psk::TlsKey;
use rockmill_nvme::status::Status;
use rockmill_nvme::target::{Target, TargetConfig};
use rockmill_nvme::tcp::{ClientTls, Cutter, Reconnect, ServerConfig, ServerTls, TcpHost, TcpLink, TcpServer};

const TERMS: Reconnect = Reconnect {
    loss_timeout: Duration::from_secs(10),
    delay: Duration::from_millis(10),
    useless_max: 3,
    while_refused: false,
};
const PDUS: Rules = Rules { delay: Duration::ZERO, rate: 0, bytes_max: 0, pdus: true };

fn clock() -> Arc<dyn Clock> {
    Arc::new(SystemClock::default())
}

/// A target behind a server, and how a host connects to it.
struct Served {
    bench: Bench,
    server: TcpServer,
    config: HostConfig,
    tls: Option<ClientTls>,
}

/// With secrets on both sides or none, and with TLS or without.
fn served(has_secrets: bool, has_tls: bool) -> Served {
    let [host, subsystem] = [0; 2].map(|_| Secret::generate(Some(Hash::Sha256), &SystemRandom).unwrap());
    let mut bench = Bench::new();
    let name = bench.host.host.clone();
    if has_secrets {
        let secrets = HostSecrets { host: host.clone(), controller: Some(subsystem.clone()) };
        let mut policy = AuthPolicy::new(BTreeMap::from([(name.clone(), secrets)]));
        policy.groups = vec![Group::Null]; // the others take long where nothing is optimized
        bench = Bench::with(TargetConfig { auth: Some(Arc::new(policy)), ..TargetConfig::new(common::NQN) });
    }
    let mut config = bench.host.clone();
    config.auth = has_secrets.then(|| {
        let mut auth = HostAuth::new(host, Some(subsystem));
        auth.groups = vec![Group::Null];
        auth
    });
    let psk = has_tls.then(|| TlsKey::generate(&SystemRandom).unwrap().psk(&name, common::NQN));
    let keys = psk.clone().map(|psk| ServerTls::new(vec![psk]).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = Arc::clone(&bench.target);
    let server = TcpServer::start_with(listener, target, ServerConfig::default(), keys, clock()).unwrap();
    Served { bench, server, config, tls: psk.map(|psk| ClientTls::new(&psk).unwrap()) }
}

impl Served {
    fn connect(&self, between: &Between, cutter: Option<Cutter>) -> Result<TcpHost, HostError> {
        TcpHost::connect_cuttable(between.address, self.config.clone(), self.tls.clone(), cutter, clock())
    }
}

/// A host that does everything again that a lost connection kept it from.
struct Again<'a> {
    served: &'a Served,
    between: &'a Between,
    host: Option<TcpHost>,
    io: Option<Io<TcpLink>>,
}

impl Again<'_> {
    fn queue(&mut self) -> Result<(&mut Io<TcpLink>, NamespaceInfo), HostError> {
        if self.host.is_none() {
            self.host = Some(self.served.connect(self.between, None)?);
        }
        let host = self.host.as_ref().unwrap();
        let disk = host.admin(|admin| admin.namespace(1))?;
        if self.io.is_none() {
            self.io = Some(host.io_queue(1)?);
        }
        Ok((self.io.as_mut().unwrap(), disk))
    }

    fn until_done(&mut self, mut work: impl FnMut(&mut Io<TcpLink>, &NamespaceInfo) -> Result<(), HostError>) {
        for _ in 0..5 {
            match self.queue().and_then(|(io, disk)| work(io, &disk)) {
                Ok(()) => return,
                Err(e) => assert!(e.is_lost(), "{e}"),
            }
            self.io = None;
            if let Some(host) = &self.host {
                let lost = host.reconnects();
                assert_eq!(host.reconnect(lost, &TERMS, |admin| admin.set_queues(1).map(drop)).unwrap(), lost + 1);
                // Another thread that lost a queue of the same association.
                assert_eq!(host.reconnect(lost, &TERMS, |_| panic!("not again")).unwrap(), lost + 1);
            }
        }
        panic!("it does not end");
    }
}

/// Writes, makes durable and reads back; every piece may be the one at which something happens.
fn script(served: &Served, event: Option<(u64, Event)>, rules: Rules) -> (u64, u64) {
    let between = Between::before(served.server.address(), rules, event);
    let data = pattern(7, 64 * BLOCK);
    served.bench.disk.fill(|_| 0);
    let mut again = Again { served, between: &between, host: None, io: None };
    again.until_done(|io, disk| io.write(disk, 8, &data[..8 * BLOCK], false));
    again.until_done(|io, disk| io.write(disk, 16, &data[8 * BLOCK..], false)); // longer than a capsule
    again.until_done(|io, _| io.flush(1));
    let mut back = vec![0; data.len()];
    again.until_done(|io, disk| io.read(disk, 8, &mut back));
    assert!(back == data, "{event:?}");
    assert_eq!(served.bench.disk.contents()[8 * BLOCK..72 * BLOCK], data);
    assert_eq!(between.has_happened(), event.is_some(), "{event:?}");
    (between.pieces(), again.host.unwrap().reconnects())
}

fn every_pdu(has_secrets: bool, events: &[Event]) {
    let served = served(has_secrets, false);
    let (all, none) = script(&served, None, PDUS);
    assert!(all > 20 && none == 0, "{all} PDUs, {none} times again");
    for &event in events {
        let mut reconnects = 0;
        for at in 0..all {
            // Anew: a target without keep-alive keeps controllers whose connections are half open.
            reconnects += script(&self::served(has_secrets, false), Some((at, event)), PDUS).1;
        }
        assert!(reconnects > all / 2 && reconnects <= all, "{event:?}: {reconnects} of {all}");
    }
}

#[test]
fn a_connection_that_is_cut_at_any_pdu_is_made_again() {
    every_pdu(false, &[Event::Cut, Event::Shorten, Event::HalfOpen]);
}

#[test]
fn a_host_that_connects_again_authenticates_again() {
    every_pdu(true, &[Event::Cut]);
}

#[test]
fn with_tls_too() {
    if !cfg!(feature = "tls") {
        return;
    }
    let (served, rules) = (served(true, true), Rules::default());
    let (all, _) = script(&served, None, rules);
    for at in 0..all {
        for event in [Event::Cut, Event::Shorten] {
            // How many pieces there are depends on what comes at once.
            let between = Between::before(served.server.address(), rules, Some((at, event)));
            let mut again = Again { served: &served, between: &between, host: None, io: None };
            let data = pattern(at, 32 * BLOCK);
            again.until_done(|io, disk| io.write(disk, 8, &data, false));
            let mut back = vec![0; data.len()];
            again.until_done(|io, disk| io.read(disk, 8, &mut back));
            assert!(back == data, "{event:?} at {at}");
        }
    }
}

/// Only what keeps a connection alive can tell that nothing comes any more.
#[test]
fn a_half_open_connection_is_noticed_within_the_keep_alive_timeout() {
    let mut served = served(false, false);
    served.config.keep_alive_ms = 1000;
    let between = Between::before(served.server.address(), PDUS, None);
    let host = served.connect(&between, None).unwrap();
    let disk = host.admin(|admin| admin.namespace(1)).unwrap();
    let mut io = host.io_queue(1).unwrap();
    between.hold();
    let since = Instant::now();
    let e = io.read(&disk, 0, &mut [0; BLOCK]).unwrap_err();
    assert!(e.is_lost() && since.elapsed() < Duration::from_secs(10), "{e} after {:?}", since.elapsed());
    // Nothing goes by as yet: the first attempts do not succeed.
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(300));
            between.let_go();
        });
        host.reconnect(io.link().association(), &TERMS, |_| Ok(())).unwrap();
    });
    host.io_queue(1).unwrap().read(&disk, 0, &mut [0; BLOCK]).unwrap();
    // What is kept alive stays.
    thread::sleep(Duration::from_millis(2500));
    host.io_queue(2).unwrap().read(&disk, 0, &mut [0; BLOCK]).unwrap();
    assert_eq!(host.reconnects(), 1);
}

#[test]
fn a_host_gives_up_in_time_and_once() {
    let mut served = served(false, false);
    let address = served.server.address();
    let direct = Between::before(address, PDUS, None);
    let host = |cutter: &Cutter| {
        TcpHost::connect_cuttable(address, served.config.clone(), None, Some(cutter.clone()), clock()).unwrap()
    };
    let (refused, waits, cut) = (host(&Cutter::default()), host(&Cutter::default()), Cutter::default());
    let is_cut = host(&cut);
    let through = served.connect(&direct, None).unwrap();
    served.server.stop();
    let patient = Reconnect { while_refused: true, loss_timeout: Duration::from_millis(500), ..TERMS };
    let timed = |host: &TcpHost, terms: &Reconnect| {
        let since = Instant::now();
        let e = host.reconnect(0, terms, |_| Ok(())).unwrap_err();
        (e, since.elapsed())
    };
    let (e, took) = timed(&refused, &TERMS);
    assert!(matches!(&e, HostError::Io(e) if e.kind() == ErrorKind::ConnectionRefused), "{e}");
    assert!(took < Duration::from_secs(3), "{took:?}");
    let (e, took) = timed(&waits, &patient);
    assert!(e.is_lost() && took >= patient.loss_timeout && took < Duration::from_secs(8), "{e} after {took:?}");
    // Connections that come and end at once are lost ones.
    let (e, took) = timed(&through, &Reconnect { while_refused: false, ..patient });
    assert!(e.is_lost() && took >= patient.loss_timeout, "{e} after {took:?}");
    // Whoever comes later does not wait once more.
    for host in [&refused, &waits, &through] {
        let (e, took) = timed(host, &Reconnect { loss_timeout: Duration::from_secs(100), ..patient });
        assert!(e.to_string().contains("given up before") && took < Duration::from_secs(3), "{e} after {took:?}");
    }
    thread::scope(|scope| {
        let long = Reconnect { loss_timeout: Duration::from_secs(100), delay: Duration::from_secs(50), ..patient };
        let gives_up = scope.spawn(move || timed(&is_cut, &long));
        thread::sleep(Duration::from_millis(100));
        cut.cut();
        let (e, took) = gives_up.join().unwrap();
        assert!(e.to_string().contains("no longer wanted") && took < Duration::from_secs(5), "{e} after {took:?}");
    });
}

/// A controller that is full may have room soon; another subsystem never is the one that it was.
#[test]
fn what_a_controller_refuses_is_not_tried_again() {
    let served = served(false, false);
    let between = Between::before(served.server.address(), PDUS, None);
    let host = served.connect(&between, None).unwrap();
    let other = Target::new(TargetConfig::new("nqn.2026-11.test:other")).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = TcpServer::start(listener, other, ServerConfig::default(), clock()).unwrap();
    between.lead_to(server.address());
    let before = between.connections();
    let e = host.reconnect(0, &TERMS, |_| Ok(())).unwrap_err();
    assert_eq!(e.status(), Some(Status::CONNECT_INVALID_PARAMETERS), "{e}");
    assert_eq!(between.connections(), before + 1);
    // A refusal of the caller's.
    between.lead_to(served.server.address());
    let host = served.connect(&between, None).unwrap();
    let e = host.reconnect(0, &TERMS, |_| Err(HostError::Answer("another one"))).unwrap_err();
    assert!(e.to_string().contains("another one"), "{e}");
}

#[test]
fn a_full_target_is_tried_until_it_has_room() {
    let bench = Bench::with(TargetConfig { controllers_max: 1, ..TargetConfig::new(common::NQN) });
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let config = ServerConfig::default();
    let server = TcpServer::start(listener, Arc::clone(&bench.target), config, clock()).unwrap();
    let served = Served { config: HostConfig { keep_alive_ms: 1000, ..bench.host.clone() }, bench, server, tls: None };
    // The target does not see that the connection is lost, until it was silent for too long.
    let between = Between::before(served.server.address(), PDUS, Some((40, Event::HalfOpen)));
    let host = served.connect(&between, None).unwrap();
    while host.admin(|admin| admin.keep_alive()).is_ok() {}
    host.reconnect(0, &TERMS, |_| Ok(())).unwrap();
    assert!(between.connections() > 3, "{} connections", between.connections());
    host.io_queue(1).unwrap().flush(1).unwrap();
}

/// A connection that always ends in the middle of the same command is of no use.
#[test]
fn connections_that_bring_no_answer_are_made_only_so_often() {
    let served = served(false, false);
    let between = Between::before(served.server.address(), Rules { bytes_max: 64 << 10, ..PDUS }, None);
    let host = served.connect(&between, None).unwrap();
    let disk = host.admin(|admin| admin.namespace(1)).unwrap();
    let mut large = vec![0; 512 * BLOCK];
    let mut rounds = 0;
    loop {
        let lost = host.reconnects();
        let e = host.io_queue(1).unwrap().read(&disk, 0, &mut large).unwrap_err();
        assert!(e.is_lost(), "{e}");
        match host.reconnect(lost, &TERMS, |_| Ok(())) {
            Ok(_) => rounds += 1,
            Err(e) => {
                assert!(e.to_string().contains("time and again"), "{e}");
                break;
            }
        }
    }
    assert_eq!(rounds, TERMS.useless_max - 1);
    // With an answer in between it goes on.
    let host = served.connect(&between, None).unwrap();
    for _ in 0..5 {
        let lost = host.reconnects();
        let mut io = host.io_queue(1).unwrap();
        io.read(&disk, 0, &mut [0; BLOCK]).unwrap();
        io.read(&disk, 0, &mut large).unwrap_err();
        host.reconnect(lost, &TERMS, |_| Ok(())).unwrap();
    }
}

/// blktests nvme/048, "Test queue count changes on reconnect": the new association has as many queues as the target
/// grants then, and no more.
#[test]
fn blktests_048_queue_count_changes_on_reconnect() {
    let serve = |queues: u16| {
        let target = Target::new(TargetConfig { io_queues_max: queues, ..TargetConfig::new(common::NQN) }).unwrap();
        target.add_namespace(1, Bench::new().disk.clone()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        TcpServer::start(listener, target, ServerConfig::default(), clock()).unwrap()
    };
    let servers = [serve(2), serve(1), serve(3)];
    let between = Between::before(servers[0].address(), PDUS, None);
    let host = TcpHost::connect(between.address, Bench::new().host, clock()).unwrap();
    assert_eq!(host.admin(|admin| admin.set_queues(4)).unwrap(), 2);
    for (lost, (server, queues)) in servers[1..].iter().zip([1, 3]).enumerate() {
        between.lead_to(server.address());
        let granted = Cell::new(0);
        let prepare = |admin: &mut Admin<TcpLink>| admin.set_queues(4).map(|queues| granted.set(queues));
        host.reconnect(lost as u64, &TERMS, prepare).unwrap();
        assert_eq!(granted.get(), queues);
        let mut all: Vec<_> = (1..=queues).map(|queue| host.io_queue(queue).unwrap()).collect();
        all.iter_mut().for_each(|io| io.flush(1).unwrap());
        let e = host.io_queue(queues + 1).unwrap_err();
        assert_eq!(e.status(), Some(Status::CONNECT_INVALID_PARAMETERS), "{e}");
    }
}

/// blktests nvme/040, "test nvme fabrics controller reset/disconnect operation during I/O".
#[test]
fn blktests_040_controller_reset_and_disconnect_during_io() {
    let served = served(false, false);
    let between = Between::before(served.server.address(), PDUS, None);
    let cutter = Cutter::default();
    let host = served.connect(&between, Some(cutter.clone())).unwrap();
    let disk = host.admin(|admin| admin.namespace(1)).unwrap();
    let (resets, done) = (20, AtomicU64::new(0));
    thread::scope(|scope| {
        for queue in [1, 2] {
            let (host, disk, done, cutter) = (&host, &disk, &done, &cutter);
            scope.spawn(move || {
                let first = u64::from(queue) * 1024;
                let mut round = 0;
                while !cutter.is_cut() {
                    // It may be reset just now.
                    let Ok(mut io) = host.io_queue(queue) else { continue };
                    loop {
                        let data = pattern(round, 64 * BLOCK);
                        let mut back = vec![0; data.len()];
                        let written =
                            io.write(disk, first, &data, false).and_then(|()| io.read(disk, first, &mut back));
                        match written {
                            Ok(()) => assert!(back == data, "queue {queue}, round {round}"),
                            Err(e) => {
                                assert!(e.is_lost(), "{e}");
                                break;
                            }
                        }
                        round += 1;
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                    if host.reconnect(io.link().association(), &TERMS, |_| Ok(())).is_err() {
                        return;
                    }
                }
            });
        }
        for lost in 0..resets {
            thread::sleep(Duration::from_millis(20));
            host.reconnect(lost, &TERMS, |_| Ok(())).unwrap();
        }
        cutter.cut();
    });
    assert!(host.reconnects() >= resets && done.load(Ordering::Relaxed) > 0, "{done:?}");
    drop(host);
    for _ in 0..3000 {
        if served.bench.target.controllers() == 0 {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("{} controllers are left", served.bench.target.controllers());
}

/// blktests nvme/031, "test deletion of NVMeOF controllers immediately after setup".
#[test]
fn blktests_031_controllers_are_deleted_immediately_after_setup() {
    let served = served(false, false);
    let between = Between::before(served.server.address(), PDUS, None);
    for round in 0..20 {
        let host = served.connect(&between, None).unwrap();
        let io = (round % 2 == 0).then(|| host.io_queue(1).unwrap());
        if round % 3 == 0 {
            host.admin(|admin| admin.shut_down()).unwrap();
        }
        drop(host);
        drop(io);
    }
    for _ in 0..3000 {
        if served.bench.target.controllers() == 0 {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("{} controllers are left", served.bench.target.controllers());
}
