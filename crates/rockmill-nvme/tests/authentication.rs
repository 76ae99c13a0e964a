//! DH-HMAC-CHAP between the initiator and the target: what is allowed before it, and what ends a connection.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use common::{BLOCK, Bench, NQN, pattern};
use rockmill_nvme::auth::{
    AuthError, AuthPolicy, Group, Hash, HostAuth, HostExchange, HostSecrets, Secret, SystemRandom,
};
use rockmill_nvme::command;
use rockmill_nvme::fabrics::{
    AUTHENTICATION_REQUIRED, Connect, ConnectData, DISCOVERY_NQN, DYNAMIC_CONTROLLER, authentication_receive,
    authentication_send, property, property_get,
};
use rockmill_nvme::initiator::{Admin, Command, Completion, HostError, Io};
use rockmill_nvme::status::Status;
use rockmill_nvme::target::TargetConfig;

const HOST: &str = "nqn.2026-11.test:host";

fn secret() -> Secret {
    Secret::generate(Some(Hash::Sha256), &SystemRandom).unwrap()
}

/// A target that knows one host, and the host.
fn bench(controller: bool) -> Bench {
    let (host, controller) = (secret(), controller.then(secret));
    let secrets = HostSecrets { host: host.clone(), controller: controller.clone() };
    let mut policy = AuthPolicy::new(BTreeMap::from([(HOST.to_owned(), secrets)]));
    policy.groups = vec![Group::Null, Group::Ffdhe2048];
    let mut config = TargetConfig::new(NQN);
    config.auth = Some(Arc::new(policy));
    let mut bench = Bench::with(config);
    let mut auth = HostAuth::new(host, controller);
    auth.groups = vec![Group::Ffdhe2048, Group::Null];
    bench.host.auth = Some(auth);
    bench
}

/// A connection with a queue whose host has not authenticated.
fn unproven(bench: &Bench) -> common::Wire {
    let mut wire = bench.wire(bench.host.queue);
    let connect = Connect { format: 0, queue: 0, size: 31, no_flow_control: true, keep_alive_ms: 0 };
    let data = ConnectData {
        host_id: bench.host.host_id,
        controller: DYNAMIC_CONTROLLER,
        subsystem: NQN.into(),
        host: HOST.into(),
    };
    wire.turn();
    let done = call(&mut wire, Command::writing(connect.encode(), data.encode())).unwrap();
    assert_eq!(done.result & AUTHENTICATION_REQUIRED, AUTHENTICATION_REQUIRED);
    wire
}

/// `None` if the connection ended before there was an answer.
fn call(wire: &mut common::Wire, command: Command) -> Option<Completion> {
    let id = wire.queue.submit(command).ok()?;
    wire.turn();
    wire.queue.take(id)
}

fn send(message: Vec<u8>) -> Command {
    Command::writing(authentication_send(message.len() as u32), message)
}

fn receive(bytes: u32) -> Command {
    Command::reading(authentication_receive(bytes), bytes)
}

#[test]
fn every_queue_of_a_host_proves_itself() {
    for both in [false, true] {
        let bench = bench(both);
        let mut admin = bench.admin();
        let disk = admin.namespace(1).unwrap();
        for queue in 1..=3 {
            let mut io = bench.io(&admin, queue);
            let data = pattern(queue.into(), 40 * BLOCK);
            io.write(&disk, 0, &data, false).unwrap();
            let mut back = vec![0; data.len()];
            io.read(&disk, 0, &mut back).unwrap();
            assert!(back == data);
        }
        assert_eq!(admin.error_log(64).unwrap(), []);
        // The discovery service asks for nothing.
        let mut host = bench.host.clone();
        host.subsystem = DISCOVERY_NQN.into();
        host.auth = None;
        Admin::connect(bench.wire(host.queue), host).unwrap().discovery_log().unwrap();
    }
}

#[test]
fn without_the_secret_nothing_is_done() {
    let mut bench = bench(true);
    let admin = bench.admin();
    let good = bench.host.auth.clone();
    let refused =
        |bench: &Bench| Admin::connect(bench.wire(bench.host.queue), bench.host.clone()).map(drop).unwrap_err();
    bench.host.auth = Some(HostAuth::new(secret(), None));
    let e = refused(&bench);
    assert!(matches!(e, HostError::Authentication(AuthError::Refused(_))), "{e}");
    bench.host.auth = None;
    let e = refused(&bench);
    assert!(matches!(e, HostError::Answer(_)), "{e}");
    // Every I/O queue of an authenticated host must authenticate, too.
    let controller = admin.controller().clone();
    let mut wire = bench.wire(controller.queue_config());
    wire.turn();
    let id = controller.identity.controller;
    let connect = Connect { format: 0, queue: 1, size: 7, no_flow_control: true, keep_alive_ms: 0 };
    let data = ConnectData { host_id: [9; 16], controller: id, subsystem: NQN.into(), host: HOST.into() };
    let done = call(&mut wire, Command::writing(connect.encode(), data.encode())).unwrap();
    assert_eq!(done.result, u64::from(id) | AUTHENTICATION_REQUIRED);
    let before = bench.disk.contents();
    let write = Command::writing(command::write(1, 0, 1, false), vec![7; BLOCK]);
    assert_eq!(call(&mut wire, write).unwrap().status.code(), Status::AUTHENTICATION_REQUIRED);
    let long = Command::writing(command::write(1, 0, 64, false), vec![7; 64 * BLOCK]);
    assert_eq!(call(&mut wire, long).unwrap().status.code(), Status::AUTHENTICATION_REQUIRED);
    let read = Command::reading(command::read(1, 0, 1), 512);
    assert_eq!(call(&mut wire, read).unwrap().status.code(), Status::AUTHENTICATION_REQUIRED);
    assert!(bench.disk.contents() == before);
    bench.host.auth = good;
    bench.host.host.push_str("-unknown");
    assert_eq!(refused(&bench).status(), Some(Status::CONNECT_INVALID_HOST));
}

#[test]
fn before_it_there_are_no_properties_and_after_a_failure_no_connection() {
    let bench = bench(false);
    let mut wire = unproven(&bench);
    let done = call(&mut wire, Command::new(property_get(property::CAP, true))).unwrap();
    assert_eq!(done.status.code(), Status::AUTHENTICATION_REQUIRED);
    let done = call(&mut wire, Command::new(command::keep_alive())).unwrap();
    assert_eq!(done.status.code(), Status::AUTHENTICATION_REQUIRED);
    // Nothing to fetch yet.
    assert_eq!(call(&mut wire, receive(2048)).unwrap().status.code(), Status::COMMAND_SEQUENCE_ERROR);
    let mut other = Command::new(authentication_send(0));
    assert_eq!(call(&mut wire, other.clone()).unwrap().status.code(), Status::INVALID_FIELD);
    other.sqe.0[43] = 0;
    assert_eq!(call(&mut wire, other).unwrap().status.code(), Status::INVALID_FIELD);
    let auth = HostAuth::new(secret(), None);
    let mut host = HostExchange::new(&auth, HOST, NQN, 7);
    assert!(call(&mut wire, send(host.negotiate())).unwrap().status.is_success());
    // Too short for the challenge, which stays available.
    assert_eq!(call(&mut wire, receive(64)).unwrap().status.code(), Status::INVALID_FIELD);
    let challenge = call(&mut wire, receive(2048)).unwrap().data;
    let reply = host.received(&challenge).unwrap().unwrap();
    assert!(call(&mut wire, send(reply)).unwrap().status.is_success());
    assert!(!wire.connection.is_ended());
    let failure = call(&mut wire, receive(2048)).unwrap().data;
    assert!(matches!(host.received(&failure), Err(AuthError::Refused(_))));
    assert!(wire.connection.is_ended());
    assert_eq!(bench.target.controllers(), 0);
}

#[test]
fn a_host_that_does_not_authenticate_in_time_is_disconnected() {
    let bench = bench(false);
    let mut wire = unproven(&bench);
    bench.now.set(Duration::from_secs(9));
    wire.turn();
    assert!(!wire.connection.is_ended());
    bench.now.set(Duration::from_secs(11));
    wire.turn();
    assert!(wire.connection.is_ended());
    assert_eq!(bench.target.controllers(), 0);
    // One that did stays.
    let mut admin = bench.admin();
    bench.now.set(Duration::from_secs(100));
    admin.link().turn();
    admin.keep_alive().unwrap();
}

#[test]
fn a_host_with_a_secret_wants_a_target_that_asks_for_it() {
    let mut bench = Bench::new();
    bench.host.auth = Some(HostAuth::new(secret(), None));
    let e = Admin::connect(bench.wire(bench.host.queue), bench.host.clone()).map(drop).unwrap_err();
    assert_eq!(e.status(), Some(Status::INVALID_FIELD));
}

#[test]
fn a_queue_may_authenticate_again_and_loses_its_connection_if_it_cannot() {
    let bench = bench(false);
    let admin = bench.admin();
    let mut io: Io<common::Wire> = bench.io(&admin, 1);
    let good = bench.host.auth.clone().unwrap();
    for (auth, stays) in [(good, true), (HostAuth::new(secret(), None), false)] {
        let wire = io.link();
        let mut host = HostExchange::new(&auth, HOST, NQN, 99);
        call(wire, send(host.negotiate())).unwrap();
        // Commands go on meanwhile.
        assert!(call(wire, Command::new(command::flush(1))).unwrap().status.is_success());
        let challenge = call(wire, receive(2048)).unwrap().data;
        let reply = host.received(&challenge).unwrap().unwrap();
        call(wire, send(reply)).unwrap();
        let answer = call(wire, receive(2048)).unwrap().data;
        assert_eq!(host.received(&answer).is_ok(), stays);
        assert_eq!(wire.connection.is_ended(), !stays);
    }
}
