//! Hostile bytes, into the target and into the initiator: no panic, no memory beyond the bound, no endless work.

mod common;

use std::time::Duration;

use common::{Bench, NQN, Wire};
use rockmill_nvme::command::{self, ALL_NAMESPACES, FABRICS, Sgl, Sqe, admin, nvm};
use rockmill_nvme::fabrics::{Connect, ConnectData, DYNAMIC_CONTROLLER};
use rockmill_nvme::initiator::{Admin, Command, Io, Link};
use rockmill_nvme::pdu::{Assembler, Data, Direction, Framing, IcReq, Payload, Pdu, R2t, TermReq};
use rockmill_nvme::pdu_error::FatalError;
use rockmill_nvme::target::{Connection, TargetConfig};

fn seed() -> u64 {
    let seed = std::env::var("ROCKMILL_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    println!("ROCKMILL_SEED={seed}");
    seed
}

/// Limits small enough to be reached.
fn small() -> TargetConfig {
    let mut config = TargetConfig::new(NQN);
    config.queue_entries_max = 16;
    config.h2c_data_max = 4096;
    config.transfer_shift = 2;
    config.write_buffer_max = 32 << 10;
    config.output_max = 8 << 10;
    config.r2t_bytes_max = 4096;
    config
}

/// Gives bytes to a connection, and checks its bounds. With `reads`, the attacker reads the answers, which are the
/// result.
fn feed(connection: &mut Connection, bytes: &[u8], bound: usize, reads: bool) -> Vec<u8> {
    let mut answers = Vec::new();
    let mut rest = bytes;
    let mut turns = 0;
    while !rest.is_empty() && !connection.is_ended() {
        let taken = connection.receive(rest, Duration::ZERO);
        rest = &rest[taken..];
        assert!(connection.memory_bytes() <= bound, "{} bytes of {bound}", connection.memory_bytes());
        if reads {
            answers.extend(connection.output());
            connection.sent(connection.output().len());
        } else if taken == 0 {
            assert!(!connection.wants_input());
            break;
        }
        turns += 1;
        assert!(turns <= bytes.len() + 16, "no progress");
    }
    answers
}

/// The R2Ts among answers.
fn r2ts(framing: &Framing, answers: &[u8]) -> Vec<R2t> {
    let framing = Framing { direction: Direction::ToHost, data_max: u32::MAX, ..*framing };
    let (mut assembler, mut rest, mut out) = (Assembler::default(), answers, Vec::new());
    while assembler.fill(&framing, &mut rest).expect("what a target sends is right") {
        if let Pdu::R2t(r2t) = framing.decode(&assembler.take()).expect("what a target sends is right") {
            out.push(r2t);
        }
    }
    out
}

fn pick<T: Copy>(rng: &mut fastrand::Rng, from: &[T]) -> T {
    from[rng.usize(..from.len())]
}

/// A random command; most of its fields are plausible.
fn some_command(rng: &mut fastrand::Rng) -> Sqe {
    let any = rng.u8(..);
    let opcode = pick(
        rng,
        &[
            nvm::FLUSH,
            nvm::WRITE,
            nvm::READ,
            nvm::WRITE_ZEROES,
            admin::GET_LOG_PAGE,
            admin::IDENTIFY,
            admin::ABORT,
            admin::SET_FEATURES,
            admin::GET_FEATURES,
            admin::ASYNC_EVENT,
            admin::KEEP_ALIVE,
            FABRICS,
            any,
        ],
    );
    let any = rng.u32(..);
    let namespace = pick(rng, &[0, 1, 1, 1, 3, 4, 2, 0x04, ALL_NAMESPACES, any]);
    let mut sqe = Sqe::new(opcode, namespace).with_command_id(rng.u16(..24));
    let any = [rng.u64(..64), rng.u64(..8192), rng.u64(..)];
    sqe = sqe.with_qword(10, pick(rng, &[0, 1, any[0], any[1], any[2]]));
    let any = [rng.u32(..32), rng.u32(..)];
    sqe = sqe.with_dword(12, pick(rng, &[0, 7, 31, any[0], any[1]]));
    let any = [rng.u32(..20_000), rng.u32(..)];
    let length = pick(rng, &[0, 512, 4096, 16_384, any[0], any[1]]);
    let (_, count) = command::block_range(&sqe);
    let length = if rng.bool() { count.saturating_mul(512) } else { length };
    let sgls = [
        Sgl::Transport { length },
        Sgl::Transport { length },
        Sgl::InCapsule { offset: 0, length },
        Sgl::InCapsule { offset: rng.u64(..), length: rng.u32(..) },
        Sgl::Other { kind: rng.u8(..) },
    ];
    sqe = sqe.with_sgl(pick(rng, &sgls));
    if rng.u8(..) < 8 {
        sqe.0[rng.usize(..64)] = rng.u8(..);
    }
    sqe
}

fn some_pdu(rng: &mut fastrand::Rng, framing: &Framing, out: &mut Vec<u8>) {
    let any = rng.usize(..9000);
    let bytes: Vec<u8> = vec![rng.u8(..); pick(rng, &[0, 4, 512, 1024, 4096, any])];
    let payload = Payload::new(&bytes);
    match rng.u8(..100) {
        0..25 => {
            // A valid write, so that the target asks for its data.
            let (first, count) = (rng.u64(..8000), rng.u32(1..=32));
            let sqe = command::write(1, first, count, rng.bool()).with_command_id(rng.u16(..24));
            let sqe = sqe.with_sgl(Sgl::Transport { length: count * 512 });
            framing.encode(&Pdu::CapsuleCmd(sqe, Payload::new(&[])), out);
        }
        25..92 => {
            let sqe = some_command(rng);
            let none = matches!(sqe.sgl(), Sgl::Transport { .. }) && rng.u8(..10) > 0;
            framing.encode(&Pdu::CapsuleCmd(sqe, if none { Payload::new(&[]) } else { payload }), out);
        }
        92..95 => {
            let (command_id, tag) = (rng.u16(..24), rng.u16(..24));
            let any = rng.u32(..);
            let offset = pick(rng, &[0, 4096, any]);
            let data = Data { command_id, tag, offset, last: rng.bool(), success: rng.bool(), payload };
            framing.encode(&Pdu::H2cData(data), out);
        }
        95 => framing.encode(&Pdu::IcReq(IcReq::default()), out),
        96 => {
            let term = TermReq { fatal: FatalError::SequenceError, information: 0, header: &bytes };
            framing.encode(&Pdu::H2cTermReq(term), out);
        }
        97 => framing.encode(&Pdu::R2t(R2t { command_id: 0, tag: 0, offset: 0, length: 4 }), out),
        _ => out.extend(std::iter::repeat_with(|| rng.u8(..)).take(30)),
    }
}

/// A connection that carries a queue, and the format of the host's PDUs on it.
fn connected(bench: &Bench, rng: &mut fastrand::Rng) -> (Connection, Framing, Option<Admin<Wire>>) {
    let admin = rng.bool().then(|| bench.admin());
    let controller = admin.as_ref().map_or(DYNAMIC_CONTROLLER, |a| a.controller().identity.controller);
    let mut connection = bench.target.accept(Duration::ZERO);
    let mut framing = Framing::initial(Direction::ToController, 0, 0);
    let (header_digest, data_digest) = (rng.bool(), rng.bool());
    let mut bytes = Vec::new();
    framing.encode(&Pdu::IcReq(IcReq { header_digest, data_digest, ..IcReq::default() }), &mut bytes);
    framing = Framing { header_digest, data_digest, ..framing };
    let queue = u16::from(admin.is_some());
    let connect = Connect { format: 0, queue, size: 15, no_flow_control: rng.bool(), keep_alive_ms: 0 };
    let data = ConnectData { host_id: [9; 16], controller, subsystem: NQN.into(), host: bench.host.host.clone() };
    let sqe = connect.encode().with_sgl(Sgl::InCapsule { offset: 0, length: 1024 });
    framing.encode(&Pdu::CapsuleCmd(sqe, Payload::new(&data.encode())), &mut bytes);
    if queue == 0 {
        let enable = rockmill_nvme::fabrics::property_set(0x14, false, 0x46_0001);
        framing.encode(&Pdu::CapsuleCmd(enable, Payload::new(&[])), &mut bytes);
    }
    feed(&mut connection, &bytes, usize::MAX, true);
    assert_eq!(connection.queue_id(), Some(queue));
    (connection, framing, admin)
}

#[test]
fn bytes_by_chance_do_nothing_to_a_target() {
    let mut rng = fastrand::Rng::with_seed(seed());
    let bench = Bench::with(small());
    let bound = bench.target.config().connection_bytes_max();
    for _ in 0..3000 {
        let mut connection = bench.target.accept(Duration::ZERO);
        let length = rng.usize(1..600);
        let mut bytes: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(length).collect();
        if rng.bool() {
            // A header with a valid type and length.
            let (kind, header) = pick(&mut rng, &[(0, 128), (4, 72), (6, 24), (2, 24)]);
            bytes[0] = kind;
            if bytes.len() > 8 {
                bytes[1..8].copy_from_slice(&[0, header, 0, header, 0, 0, 0]);
            }
        }
        feed(&mut connection, &bytes, bound, true);
    }
    assert_eq!(bench.target.controllers(), 0);
}

#[test]
fn commands_and_data_by_chance_keep_to_the_bounds() {
    let mut rng = fastrand::Rng::with_seed(seed());
    let bench = Bench::with(small());
    let bound = bench.target.config().connection_bytes_max();
    let (mut most, mut pdus, mut written) = (0, 0, 0);
    for _ in 0..1500 {
        let (mut connection, framing, admin) = connected(&bench, &mut rng);
        let reads = rng.u8(..4) > 0;
        let mut asked = Vec::new();
        for _ in 0..rng.usize(1..80) {
            let mut bytes = Vec::new();
            if !asked.is_empty() && rng.u8(..3) > 0 {
                // Requested data, in any order of the commands.
                let R2t { command_id, tag, offset, length } = asked.swap_remove(rng.usize(..asked.len()));
                let data = vec![rng.u8(..); length as usize];
                let payload = Payload::new(&data);
                let data = Data { command_id, tag, offset, last: true, success: false, payload };
                framing.encode(&Pdu::H2cData(data), &mut bytes);
                written += 1;
            } else {
                some_pdu(&mut rng, &framing, &mut bytes);
            }
            if rng.u8(..60) == 0 {
                let at = rng.usize(..bytes.len());
                bytes[at] ^= 1 << rng.u8(..8);
            }
            let answers = feed(&mut connection, &bytes, bound, reads);
            asked.extend(r2ts(&framing, &answers));
            connection.poll(Duration::ZERO);
            most = most.max(connection.memory_bytes());
            pdus += 1;
            if connection.is_ended() || !connection.wants_input() {
                break;
            }
        }
        drop(connection);
        drop(admin);
        assert_eq!(bench.target.controllers(), 0);
    }
    println!("{pdus} PDUs, {written} of them data that was asked for; {most} bytes of {bound}");
    assert!(written > 100);
    // Shows that the test comes near the bound.
    assert!(most > bench.target.config().write_buffer_max);
    // The read-only namespace is unchanged.
    assert!(bench.fixed.contents().chunks(4096).enumerate().all(|(i, c)| c.iter().all(|&b| b == i as u8)));
}

/// If a host asks for much and reads nothing, the target stops reading from it, and uses no more memory than the bound.
#[test]
fn a_host_that_takes_no_answers_fills_no_memory() {
    let bench = Bench::with(small());
    let config = bench.target.config().clone();
    let mut rng = fastrand::Rng::with_seed(1);
    let (mut connection, framing, admin) = loop {
        let all = connected(&bench, &mut rng);
        if all.2.is_some() {
            break all;
        }
    };
    let mut stream = Vec::new();
    for i in 0..10_000u16 {
        let sqe = match i % 4 {
            0 if i < 60 => command::write(1, 0, 32, false).with_sgl(Sgl::Transport { length: 16_384 }),
            _ => command::read(1, 0, 32).with_sgl(Sgl::Transport { length: 16_384 }),
        };
        framing.encode(&Pdu::CapsuleCmd(sqe.with_command_id(i), Payload::new(&[])), &mut stream);
    }
    let mut taken = 0;
    while connection.wants_input() {
        taken += connection.receive(&stream[taken..], Duration::ZERO);
    }
    assert!(taken < stream.len() / 100, "{taken}");
    assert!(connection.memory_bytes() <= config.connection_bytes_max());
    assert_eq!(connection.receive(&stream[taken..], Duration::ZERO), 0);
    // Once the host reads, everything continues, until more writes wait for data than the queue has entries.
    feed(&mut connection, &stream[taken..], config.connection_bytes_max(), true);
    assert!(!connection.is_ended(), "{:?}", connection.error());
    drop(admin);
}

/// A target that sends arbitrary answers to a host with all kinds of commands outstanding.
#[test]
fn a_hostile_controller_does_nothing_to_a_host() {
    let mut rng = fastrand::Rng::with_seed(seed());
    let bench = Bench::new();
    for round in 0..2000 {
        let mut admin = bench.admin();
        let disk = admin.namespace(1).unwrap();
        let mut io = bench.io(&admin, 1);
        for _ in 0..rng.usize(1..5) {
            let command = match rng.u8(..3) {
                0 => Command::reading(command::read(1, 0, 32), 16_384),
                1 => Command::writing(command::write(1, 0, 32, false), vec![1; 16_384]),
                _ => Command::new(command::flush(1)),
            };
            io.link().queue().submit(command).unwrap();
        }
        // Real answers with random damage; then answers that no controller would send.
        let damage = fastrand::Rng::with_seed(rng.u64(..));
        let damage = std::cell::RefCell::new(damage);
        io.link().damage = Some(std::rc::Rc::new(move |bytes: &mut Vec<u8>, to_target| {
            let rng = &mut *damage.borrow_mut();
            if !to_target && !bytes.is_empty() && rng.bool() {
                let at = rng.usize(..bytes.len());
                bytes[at] ^= 1 << rng.u8(..8);
            }
        }));
        io.link().turn();
        let _ = io.read(&disk, 0, &mut vec![0; 4096]);
        let queue = io.link().queue();
        let mut bytes = Vec::new();
        let framing = Framing { header_digest: true, data_digest: true, ..Framing::initial(Direction::ToHost, 0, 0) };
        let data = vec![5; rng.usize(1..40) * 512];
        let any = rng.u32(..);
        let (command_id, tag, offset) = (rng.u16(..8), rng.u16(..), pick(&mut rng, &[0, 512, any]));
        let payload = Payload::new(&data);
        match round % 3 {
            0 => framing.encode(&Pdu::R2t(R2t { command_id, tag, offset, length: rng.u32(1..) }), &mut bytes),
            1 => {
                let data = Data { command_id, tag, offset, last: rng.bool(), success: rng.bool(), payload };
                framing.encode(&Pdu::C2hData(data), &mut bytes);
            }
            _ => bytes = std::iter::repeat_with(|| rng.u8(..)).take(100).collect(),
        }
        queue.receive(&bytes);
        // The host's output is bounded by the commands that it was given.
        assert!(queue.output().len() < 5 * 20_000);
        drop::<Io<Wire>>(io);
    }
}
