//! Hostile peers of NVMe over TCP: bytes as PDUs, hosts that attack a target, controllers that attack a host.
//!
//! `nvme_target` and `nvme_initiator` take a script: one byte selects the peer's next step, and the following bytes are
//! its parameters. So inputs pass the digests and reach states that random bytes do not. One kind of step sends bytes
//! unchanged.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rockmill_nvme::auth::{
    AuthPolicy, ControllerExchange, Group, HostAuth, HostExchange, HostSecrets, MESSAGE_BYTES_MAX, Random, Secret,
};
use rockmill_nvme::command::{self, ALL_NAMESPACES, Cqe, Sgl, Sqe, nvm};
use rockmill_nvme::fabrics::{
    Connect, ConnectData, DYNAMIC_CONTROLLER, authentication_receive, authentication_send, property, property_set,
};
use rockmill_nvme::initiator::{Admin, Command, HostConfig, Io, Link, Queue, QueueConfig};
use rockmill_nvme::pdu::{Assembler, Data, Direction, Extent, Framing, IcReq, IcResp, Payload, Pdu, R2t, TermReq};
use rockmill_nvme::pdu_error::FatalError;
use rockmill_nvme::status::Status;
use rockmill_nvme::target::{Connection, MemoryNamespace, Target, TargetConfig};

const NQN: &str = "nqn.2026-11.test:store";
const HOST: &str = "nqn.2026-11.test:host";

/// A script's bytes, followed by zeros.
struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    fn is_done(&self) -> bool {
        self.0.is_empty()
    }

    fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        let taken = self.bytes(N);
        out[..taken.len()].copy_from_slice(taken);
        out
    }

    fn u8(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }
}

/// Corrects the digests of all PDUs that have them.
fn mend(framing: &Framing, bytes: &mut [u8]) {
    let mut rest = bytes;
    while let Some(common) = rest.first_chunk::<8>() {
        let Ok(Extent { header_end, data_start, data_end, total, .. }) = framing.extent(common) else { return };
        if total > rest.len() {
            return;
        }
        let header = usize::from(rest[2]);
        if header_end > header {
            let digest = crc32c::crc32c(&rest[..header]);
            rest[header..header_end].copy_from_slice(&digest.to_le_bytes());
        }
        if total > data_end {
            let digest = crc32c::crc32c(&rest[data_start..data_end]);
            rest[data_end..total].copy_from_slice(&digest.to_le_bytes());
        }
        rest = rest.split_at_mut(total).1;
    }
}

/// The same PDU, regardless of whether its data digest was correct.
fn intact(pdu: Pdu<'_>) -> Pdu<'_> {
    match pdu {
        Pdu::CapsuleCmd(sqe, payload) => Pdu::CapsuleCmd(sqe, Payload::new(payload.bytes)),
        Pdu::H2cData(d) => Pdu::H2cData(Data { payload: Payload::new(d.payload.bytes), ..d }),
        Pdu::C2hData(d) => Pdu::C2hData(Data { payload: Payload::new(d.payload.bytes), ..d }),
        other => other,
    }
}

/// A stream of PDUs, assembled from pieces. The first byte selects their required format, the second how the stream is
/// cut.
pub fn pdu(data: &[u8]) {
    let mut script = Script(data);
    let (choice, cut) = (script.u8(), usize::from(script.u8()) + 1);
    let framing = Framing {
        direction: if choice & 1 == 0 { Direction::ToController } else { Direction::ToHost },
        header_digest: choice & 2 != 0,
        data_digest: choice & 4 != 0,
        alignment: (u32::from(choice >> 3) + 1) * 4,
        capsule_data_max: 8192,
        data_max: 16_384,
    };
    let mut mended = script.0.to_vec();
    mend(&framing, &mut mended);
    for stream in [script.0, &mended] {
        let mut assembler = Assembler::default();
        'stream: for mut piece in stream.chunks(cut) {
            while !piece.is_empty() {
                match assembler.fill(&framing, &mut piece) {
                    Ok(false) => break,
                    Ok(true) => {}
                    Err(_) => break 'stream,
                }
                // A growing vector may have twice the capacity of its contents.
                assert!(assembler.memory_bytes() <= 2 * framing.pdu_bytes_max().max(8));
                let pdu = assembler.take();
                assert!(pdu.len() <= framing.pdu_bytes_max().max(152));
                let Ok(decoded) = framing.decode(&pdu) else { break 'stream };
                let mut again = Vec::new();
                framing.encode(&decoded, &mut again);
                let decoded_again = framing.decode(&again).expect("what is written is read");
                assert_eq!(decoded_again, intact(decoded));
                assembler.reuse(pdu);
            }
        }
    }
}

/// Random bytes that are the same in each run.
#[derive(Debug)]
struct Known;

impl Random for Known {
    fn fill(&self, into: &mut [u8]) -> io::Result<()> {
        into.fill(0x5a);
        Ok(())
    }
}

fn secret() -> Secret {
    Secret::parse("DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:").expect("a secret")
}

/// A target's side of authentication, without Diffie-Hellman, which is slow and adds no states.
fn policy() -> Arc<AuthPolicy> {
    let secrets = HostSecrets { host: secret(), controller: Some(secret()) };
    let mut policy = AuthPolicy::new([(HOST.to_owned(), secrets)].into());
    policy.groups = vec![Group::Null];
    policy.random = Arc::new(Known);
    Arc::new(policy)
}

/// Authentication messages to either side. The first byte selects the side; each message is preceded by its length.
pub fn auth(data: &[u8]) {
    let mut script = Script(data);
    let choice = script.u8();
    let _ = Secret::parse(&String::from_utf8_lossy(data));
    let mut host_auth = HostAuth::new(secret(), (choice & 2 != 0).then(secret));
    host_auth.groups = vec![Group::Null];
    host_auth.random = Arc::new(Known);
    let mut host = HostExchange::new(&host_auth, HOST, NQN, 7);
    let mut controller = ControllerExchange::new(policy(), HOST.into(), NQN.into());
    while !script.is_done() {
        let length = usize::from(script.u16()) % (2 * MESSAGE_BYTES_MAX);
        let message = script.bytes(length);
        if choice & 1 == 0 {
            match host.received(message) {
                Ok(answer) => assert!(answer.is_none_or(|a| a.len() <= MESSAGE_BYTES_MAX)),
                Err(e) => assert!(host.failure(e).is_none_or(|m| m.len() == 8)),
            }
            // A peer that does not know the secret is never accepted: the received messages come only from the script.
            continue;
        }
        controller.received(message);
        assert!(controller.fetchable().is_none_or(|n| n <= MESSAGE_BYTES_MAX));
        controller.fetch();
    }
}

/// A target with limits small enough to be reached.
fn target(authenticates: bool) -> (Arc<Target>, Arc<MemoryNamespace>) {
    let mut config = TargetConfig::new(NQN);
    config.auth = authenticates.then(policy);
    config.queue_entries_max = 8;
    config.h2c_data_max = 4096;
    config.transfer_shift = 2;
    config.write_buffer_max = 32 << 10;
    config.output_max = 8 << 10;
    config.r2t_bytes_max = 4096;
    let target = Target::new(config).expect("a configuration");
    let fixed = Arc::new(MemoryNamespace::new(4096, 8, true));
    fixed.fill(|i| (i / 4096) as u8);
    target.add_namespace(1, Arc::new(MemoryNamespace::new(512, 256, false))).expect("a namespace");
    target.add_namespace(3, fixed.clone()).expect("a namespace");
    (target, fixed)
}

/// A connection, and what its peer has seen.
struct Victim {
    connection: Connection,
    now: Duration,
    bound: usize,
    framing: Framing,
    answers: Assembler,
    asked: Vec<R2t>,
}

impl Victim {
    fn new(target: &Arc<Target>) -> Self {
        Self {
            connection: target.accept(Duration::ZERO),
            now: Duration::ZERO,
            bound: target.config().connection_bytes_max(),
            framing: Framing::initial(Direction::ToController, 0, 0),
            answers: Assembler::default(),
            asked: Vec::new(),
        }
    }

    /// True if all bytes were accepted.
    fn feed(&mut self, bytes: &[u8]) -> bool {
        let mut rest = bytes;
        while !rest.is_empty() && self.connection.wants_input() {
            let taken = self.connection.receive(rest, self.now);
            assert!(taken > 0, "it wants input and takes none");
            rest = &rest[taken..];
            let memory = self.connection.memory_bytes();
            assert!(memory <= self.bound, "{memory} bytes of {}", self.bound);
        }
        rest.is_empty()
    }

    fn send(&mut self, pdu: &Pdu<'_>) {
        let mut bytes = Vec::new();
        self.framing.encode(pdu, &mut bytes);
        // A peer that does not read loses what it sends.
        if !self.feed(&bytes) {
            self.read();
        }
    }

    /// Reads the answers. A target's output is always valid, whatever its input was.
    fn read(&mut self) {
        let out = self.connection.output().to_vec();
        self.connection.sent(out.len());
        let mut framing = Framing { direction: Direction::ToHost, data_max: u32::MAX, ..self.framing };
        let mut rest = &out[..];
        while self.answers.fill(&framing, &mut rest).expect("what a target sends is right") {
            let pdu = self.answers.take();
            match framing.decode(&pdu).expect("what a target sends is right") {
                Pdu::R2t(r2t) => self.asked.push(r2t),
                Pdu::IcResp(response) => {
                    for framing in [&mut self.framing, &mut framing] {
                        framing.header_digest = response.header_digest;
                        framing.data_digest = response.data_digest;
                    }
                }
                _ => {}
            }
        }
    }

    fn begin(&mut self, queue: u16, controller: u16, digests: u8, no_flow_control: bool) {
        let (header_digest, data_digest) = (digests & 1 != 0, digests & 2 != 0);
        self.send(&Pdu::IcReq(IcReq { header_digest, data_digest, ..IcReq::default() }));
        self.read();
        let connect = Connect { format: 0, queue, size: 7, no_flow_control, keep_alive_ms: 0 };
        let data = ConnectData { host_id: [9; 16], controller, subsystem: NQN.into(), host: HOST.into() };
        let sqe = connect.encode().with_sgl(Sgl::InCapsule { offset: 0, length: 1024 });
        self.send(&Pdu::CapsuleCmd(sqe, Payload::new(&data.encode())));
        if queue == 0 {
            let enable = property_set(property::CC, false, 0x46_0001);
            self.send(&Pdu::CapsuleCmd(enable, Payload::new(&[])));
        }
        self.read();
        assert_eq!(self.connection.queue_id(), Some(queue));
    }

    fn step(&mut self, script: &mut Script<'_>) {
        let what = script.u8();
        match what % 10 {
            0 => {
                let count = usize::from(script.u8()) + 1;
                self.feed(script.bytes(count));
            }
            1 => {
                let sqe = Sqe(script.array());
                let length = usize::from(script.u16()) % 9000;
                self.send(&Pdu::CapsuleCmd(sqe, Payload::new(&vec![what; length])));
            }
            2..=4 => {
                let (sqe, length) = some_command(script);
                self.send(&Pdu::CapsuleCmd(sqe, Payload::new(&vec![what; length])));
            }
            5 if !self.asked.is_empty() => {
                let at = usize::from(script.u8()) % self.asked.len();
                let R2t { command_id, tag, offset, length } = self.asked.swap_remove(at);
                let data = vec![what; length as usize];
                let payload = Payload::new(&data);
                self.send(&Pdu::H2cData(Data { command_id, tag, offset, last: true, success: false, payload }));
            }
            5 | 6 => {
                let (command_id, tag, offset) = (script.u16(), script.u16(), script.u32());
                let data = vec![what; usize::from(script.u16()) % 5000];
                let (last, payload) = (what & 0x80 != 0, Payload::new(&data));
                self.send(&Pdu::H2cData(Data { command_id, tag, offset, last, success: false, payload }));
            }
            7 => {
                self.now += Duration::from_millis(u64::from(script.u16()));
                self.connection.poll(self.now);
            }
            8 => self.read(),
            _ => match script.u8() % 7 {
                3 | 4 => {
                    let length = usize::from(script.u8());
                    let message = script.bytes(length);
                    let sgl = Sgl::InCapsule { offset: 0, length: message.len() as u32 };
                    let sqe = authentication_send(message.len() as u32).with_sgl(sgl);
                    self.send(&Pdu::CapsuleCmd(sqe, Payload::new(message)));
                }
                5 | 6 => {
                    let length = 1024;
                    let sqe = authentication_receive(length).with_sgl(Sgl::Transport { length });
                    self.send(&Pdu::CapsuleCmd(sqe, Payload::new(&[])));
                }
                0 => self.send(&Pdu::IcReq(IcReq::default())),
                1 => self.send(&Pdu::H2cTermReq(TermReq {
                    fatal: FatalError::SequenceError,
                    information: 0,
                    header: &[],
                })),
                _ => {
                    let r2t = R2t { command_id: script.u16(), tag: script.u16(), offset: 0, length: 4 };
                    self.send(&Pdu::R2t(r2t));
                }
            },
        }
        let memory = self.connection.memory_bytes();
        assert!(memory <= self.bound, "{memory} bytes of {}", self.bound);
    }
}

/// A command with mostly valid fields, and the length of its data.
fn some_command(script: &mut Script<'_>) -> (Sqe, usize) {
    const OPCODES: [u8; 14] = [0x00, 0x01, 0x01, 0x02, 0x08, 0x06, 0x09, 0x0a, 0x0c, 0x18, 0x7f, 0x08, 0x02, 0x01];
    let [opcode, namespace, id, first, count, sgl, length] = script.array();
    let namespace = match namespace % 6 {
        0..=2 => 1,
        3 => 3,
        4 => ALL_NAMESPACES,
        _ => u32::from(namespace),
    };
    let mut sqe = Sqe::new(OPCODES[usize::from(opcode) % OPCODES.len()], namespace).with_command_id(id.into());
    sqe = sqe.with_qword(10, u64::from(first)).with_dword(12, u32::from(count % 40));
    let length = match length % 4 {
        0 => (u32::from(count % 40) + 1) * 512,
        1 => 4096,
        2 => 512,
        _ => u32::from(length),
    };
    match sgl % 8 {
        0..=4 => (sqe.with_sgl(Sgl::Transport { length }), 0),
        5 | 6 => (sqe.with_sgl(Sgl::InCapsule { offset: 0, length }), length.min(8192) as usize),
        _ => (sqe.with_dword(10, script.u32()).with_dword(11, script.u32()), 0),
    }
}

/// The steps of a host against a target. The first byte determines the state of the connection when the script starts.
pub fn target_script(data: &[u8]) {
    let mut script = Script(data);
    let choice = script.u8();
    let (target, fixed) = target(choice & 32 != 0);
    let mut admin = Victim::new(&target);
    let mut io = None;
    if choice & 1 == 0 {
        admin.begin(0, DYNAMIC_CONTROLLER, choice >> 1, choice & 8 != 0);
        // An admin queue without permissions enables no controller, so it has no other queues.
        if choice & 48 == 0 {
            let mut queue = Victim::new(&target);
            queue.begin(1, 1, choice >> 1, choice & 8 != 0);
            io = Some(queue);
        }
    }
    while !script.is_done() {
        // Both queues of a controller, in turns that the script chooses.
        match &mut io {
            Some(io) if script.0[0] & 0x40 == 0 => io.step(&mut script),
            _ => admin.step(&mut script),
        }
    }
    let _ = (admin.read(), io.as_mut().map(Victim::read));
    drop((admin, io));
    assert_eq!(target.controllers(), 0);
    assert!(fixed.contents().chunks(4096).enumerate().all(|(i, block)| block.iter().all(|&b| b == i as u8)));
}

/// The steps of a controller against a queue of a host with outstanding commands.
pub fn initiator_script(data: &[u8]) {
    let mut script = Script(data);
    let choice = script.u8();
    let config = QueueConfig {
        entries: 8,
        header_digest: choice & 1 != 0,
        data_digest: choice & 2 != 0,
        alignment: 0,
        no_flow_control: choice & 4 != 0,
        in_capsule_max: 4096,
        c2h_data_max: 16_384,
    };
    let mut queue = Queue::new(config);
    let mut framing = Framing::initial(Direction::ToHost, 0, 0);
    let (mut wanted, mut given) = (vec![0; 8], 0usize);
    if choice & 8 == 0 {
        let response = IcResp {
            header_digest: config.header_digest,
            data_digest: config.data_digest,
            h2c_data_max: 4096,
            ..IcResp::default()
        };
        let mut bytes = Vec::new();
        framing.encode(&Pdu::IcResp(response), &mut bytes);
        queue.receive(&bytes);
        assert!(queue.is_ready());
        framing = Framing { header_digest: config.header_digest, data_digest: config.data_digest, ..framing };
    }
    while !script.is_done() {
        let what = script.u8();
        let mut bytes = Vec::new();
        let id = u16::from(script.u8() % 9);
        let mut send = |pdu: Pdu<'_>| framing.encode(&pdu, &mut bytes);
        match what % 8 {
            0 => {
                let length = u32::from(script.u16() % 32 + 1) * 512;
                let command = match what / 8 % 4 {
                    0 | 1 => Command::reading(command::read(1, 0, length / 512), length),
                    2 => Command::writing(command::write(1, 0, length / 512, false), vec![7; length as usize]),
                    _ => Command::new(command::flush(1)),
                };
                let reads = what / 8 % 4 < 2;
                if let Ok(id) = queue.submit(command) {
                    wanted[usize::from(id)] = if reads { length as usize } else { 0 };
                    given += length as usize + 256;
                }
            }
            1 => send(Pdu::CapsuleResp(Cqe::new(id, Status::from_bits(script.u16()), script.u32().into(), 0))),
            2 => send(Pdu::CapsuleResp(Cqe::new(id, Status::SUCCESS, 0, 0))),
            3 | 4 => {
                let (offset, count) = (u32::from(script.u8()) * 512, usize::from(script.u8() % 33));
                let data = vec![what; count * 512];
                let (last, success) = (what & 0x80 != 0, what & 0xc0 == 0xc0);
                send(Pdu::C2hData(Data {
                    command_id: id,
                    tag: 0,
                    offset,
                    last,
                    success,
                    payload: Payload::new(&data),
                }));
            }
            5 => {
                let (offset, length) = (u32::from(script.u8()) * 512, u32::from(script.u16()) * 4);
                send(Pdu::R2t(R2t { command_id: id, tag: what.into(), offset, length }));
            }
            6 => match script.u8() % 3 {
                0 => send(Pdu::IcResp(IcResp::default())),
                1 => send(Pdu::R2t(R2t { command_id: id, tag: 0, offset: script.u32(), length: script.u32() })),
                _ => {
                    let fatal = FatalError::from_code(script.u16());
                    send(Pdu::C2hTermReq(TermReq { fatal, information: script.u32(), header: &[1; 20] }));
                }
            },
            _ => {
                let count = usize::from(script.u8()) + 1;
                bytes = script.bytes(count).to_vec();
            }
        }
        let taken = queue.receive(&bytes);
        assert!(taken == bytes.len() || queue.end().is_some());
        assert!(queue.outstanding() < 8);
        // The host sends the given data once, and the reason at its end; and a header for each 4 bytes if it is asked
        // for them that way.
        assert!(queue.output().len() <= 128 + 10 * given + 256, "{} for {given}", queue.output().len());
        for id in 0..8u16 {
            if let Some(done) = queue.take(id) {
                let wanted = wanted[usize::from(id)];
                assert_eq!(done.data.len(), if done.status.is_success() { wanted } else { 0 });
            }
        }
    }
}

/// A controller that answers every command of a host with data and results from a script.
struct Liar<'a> {
    queue: Queue,
    script: Script<'a>,
    commands: Assembler,
    framing: Framing,
}

impl<'a> Liar<'a> {
    fn new(script: &'a [u8]) -> Self {
        let config = QueueConfig { header_digest: false, data_digest: false, ..QueueConfig::default() };
        let framing = Framing::initial(Direction::ToController, 1 << 20, 0);
        Self { queue: Queue::new(config), script: Script(script), commands: Assembler::default(), framing }
    }

    fn answer(&mut self, sqe: &Sqe, out: &mut Vec<u8>) {
        let framing = Framing::initial(Direction::ToHost, 0, 0);
        let id = sqe.command_id();
        let length = match sqe.sgl() {
            Sgl::Transport { length } if sqe.opcode() != nvm::WRITE => length as usize,
            _ => 0,
        };
        let what = self.script.u8();
        let status = if what & 7 == 7 { Status::from_bits(self.script.u16()) } else { Status::SUCCESS };
        // Most results let the host continue: ready, shut down, a controller with this id.
        let result = if what & 8 == 0 { 0x0000_0009 } else { u64::from(self.script.u32()) };
        if length > 0 && status.is_success() {
            let count = usize::from(self.script.u16());
            let mut data = vec![0; length];
            // In most cases, the fields that a host requires.
            if sqe.opcode() == 0x06 && what & 16 == 0 && length == 4096 {
                data[78] = 9;
                data[536] = 1;
                data[768..771].copy_from_slice(b"nqn");
                data[1792] = 4;
                data[1796] = 1;
            }
            // Patches: offset and new bytes.
            for _ in 0..count % 20 {
                let at = usize::from(self.script.u16()) % length;
                data[at] = self.script.u8();
            }
            let payload = Payload::new(&data);
            let data = Data { command_id: id, tag: 0, offset: 0, last: true, success: false, payload };
            framing.encode(&Pdu::C2hData(data), out);
        }
        framing.encode(&Pdu::CapsuleResp(Cqe::new(id, status, result, 0)), out);
    }
}

impl Link for Liar<'_> {
    fn queue(&mut self) -> &mut Queue {
        &mut self.queue
    }

    fn exchange(&mut self) -> io::Result<()> {
        if self.script.is_done() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let sent = self.queue.output().to_vec();
        self.queue.sent(sent.len());
        let (mut rest, mut out) = (&sent[..], Vec::new());
        while self.commands.fill(&self.framing, &mut rest).expect("what a host sends is right") {
            let pdu = self.commands.take();
            match self.framing.decode(&pdu).expect("what a host sends is right") {
                Pdu::IcReq(_) => {
                    let response = IcResp { h2c_data_max: 4096, ..IcResp::default() };
                    Framing::initial(Direction::ToHost, 0, 0).encode(&Pdu::IcResp(response), &mut out);
                }
                Pdu::CapsuleCmd(sqe, _) => self.answer(&sqe, &mut out),
                _ => {}
            }
        }
        if out.is_empty() {
            // The host waits for something that this controller does not send on its own.
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.queue.receive(&out);
        Ok(())
    }
}

/// All calls of a host, answered by a controller that lies.
pub fn host_script(data: &[u8]) {
    let script = Script(data);
    let (first, second) = script.0.split_at(script.0.len() / 2);
    let config = HostConfig {
        subsystem: NQN.into(),
        host: HOST.into(),
        host_id: [9; 16],
        keep_alive_ms: 0,
        auth: None,
        queue: QueueConfig { header_digest: false, data_digest: false, ..QueueConfig::default() },
    };
    let Ok(mut admin) = Admin::connect(Liar::new(first), config) else { return };
    let controller = admin.controller().clone();
    assert!(controller.transfer_max() >= 4096 && controller.transfer_max() <= 1 << 20);
    let _ = admin.set_queues(4);
    let _ = admin.namespaces();
    let _ = admin.changed_namespaces();
    let _ = admin.descriptors(1);
    let _ = admin.error_log(64);
    let _ = admin.smart();
    let _ = admin.discovery_log();
    let found = admin.namespace(1);
    let _ = admin.want_events(u32::MAX);
    let _ = admin.keep_alive();
    let _ = admin.event();
    let _ = admin.cancel_events();
    if let Ok(namespace) = found
        && let Ok(mut io) = Io::connect(Liar::new(second), &controller, 1)
    {
        let mut buffer = vec![0; namespace.block_bytes.min(1 << 20) as usize];
        let _ = io.read(&namespace, 0, &mut buffer);
        let _ = io.write(&namespace, 0, &buffer, true);
        let _ = io.write_zeroes(&namespace, 0, 100_000);
        let _ = io.flush(1);
    }
    let _ = admin.shut_down();
}

/// Initial scripts: the steps of a correct host and a correct controller, and a few forbidden ones.
pub fn seeds(target: &str) -> Vec<Vec<u8>> {
    let mut out: Vec<Vec<u8>> = Vec::new();
    match target {
        "nvme_pdu" => {
            for choice in [0u8, 1, 6, 7, 0x18, 0x1f] {
                out.push([&[choice, 40], &stream(choice)[..]].concat());
            }
        }
        "nvme_target" => {
            for choice in [0u8, 1, 6, 8, 16, 30, 32] {
                let mut script = vec![choice];
                for n in 0..12u8 {
                    // A write, its data, a read, answers, time; then each kind of step.
                    script.extend([2, 1, 0, n, 0, 7, 0, 0, 8, 5, 0, 2, 3, 0, n + 100, 0, 7, 0, 0, 8, 7, 10, 0]);
                    script.extend([n]);
                    script.extend((0..24).map(|i| i * n));
                }
                out.push(script);
            }
        }
        "nvme_auth" => {
            let mut host_auth = HostAuth::new(secret(), Some(secret()));
            host_auth.groups = vec![Group::Null];
            host_auth.random = Arc::new(Known);
            let mut host = HostExchange::new(&host_auth, HOST, NQN, 7);
            let mut controller = ControllerExchange::new(policy(), HOST.into(), NQN.into());
            let (mut to_host, mut to_controller) = (vec![2], vec![3]);
            let add = |script: &mut Vec<u8>, message: &[u8]| {
                script.extend((message.len() as u16).to_le_bytes());
                script.extend(message);
            };
            let mut next = Some(host.negotiate());
            while let Some(message) = next.take() {
                add(&mut to_controller, &message);
                controller.received(&message);
                if let Some(answer) = controller.fetch() {
                    add(&mut to_host, &answer);
                    next = host.received(&answer).unwrap_or(None);
                }
            }
            out.extend([to_host, to_controller]);
        }
        "nvme_initiator" => {
            for choice in [0u8, 3, 4, 7, 8] {
                let mut script = vec![choice];
                for id in 0..6u8 {
                    // A read with its data, a write with its R2T, a flush; each kind of step.
                    script
                        .extend([0, 0, 1, 0, 0x83, id, 0, 2, 2, id, 16, 0, 9, 0, 5, id, 0, 0, 20, 2, id, 24, 0, 0, 0]);
                    script.extend([id, id, id, id, id, id]);
                }
                out.push(script);
            }
        }
        _ => {
            for choice in [0u8, 1, 16] {
                let mut script = vec![choice];
                script.extend((0..400u32).map(|i| if i % 7 == 0 { (i / 3) as u8 } else { 0 }));
                out.push(script);
                out.push([&[choice], &[0; 300][..]].concat());
            }
        }
    }
    out
}

/// A PDU of each kind.
fn stream(choice: u8) -> Vec<u8> {
    let to_host = choice & 1 != 0;
    let framing = Framing {
        direction: if to_host { Direction::ToHost } else { Direction::ToController },
        header_digest: choice & 2 != 0,
        data_digest: choice & 4 != 0,
        alignment: (u32::from(choice >> 3) + 1) * 4,
        capsule_data_max: 8192,
        data_max: 16_384,
    };
    let bytes = [choice; 64];
    let payload = Payload::new(&bytes);
    let data = Data { command_id: 3, tag: 4, offset: 8, last: true, success: to_host, payload };
    let term = TermReq { fatal: FatalError::OutOfRange, information: 7, header: &bytes };
    let pdus = if to_host {
        vec![
            Pdu::IcResp(IcResp { h2c_data_max: 4096, ..IcResp::default() }),
            Pdu::CapsuleResp(Cqe::new(3, Status::SUCCESS, 7, 1)),
            Pdu::C2hData(data),
            Pdu::R2t(R2t { command_id: 3, tag: 4, offset: 0, length: 64 }),
            Pdu::C2hTermReq(term),
        ]
    } else {
        vec![
            Pdu::IcReq(IcReq::default()),
            Pdu::CapsuleCmd(command::flush(1), Payload::new(&[])),
            Pdu::CapsuleCmd(command::write(1, 0, 1, false), payload),
            Pdu::H2cData(data),
            Pdu::H2cTermReq(term),
        ]
    };
    let mut out = Vec::new();
    pdus.iter().for_each(|pdu| framing.encode(pdu, &mut out));
    out
}
