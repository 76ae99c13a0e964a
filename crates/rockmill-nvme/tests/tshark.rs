//! Wireshark's dissector on our traffic: it recognizes each PDU and its type, finds all digests valid, and reports
//! nothing malformed.

mod common;

use std::cell::RefCell;
use std::fmt::Write as _;
use std::process::Command as Process;
use std::rc::Rc;

use common::{BLOCK, Bench, pattern};
use rockmill_nvme::initiator::{Admin, Io};
use rockmill_nvme::pdu::{Assembler, Direction, Framing};
use rockmill_skip::{Needs, skip};

/// The bytes of one connection in the order in which they were sent; true for those to the target.
type Recorded = Rc<RefCell<Vec<(bool, Vec<u8>)>>>;

/// Runs a session, and records each connection.
fn session(header_digest: bool, data_digest: bool) -> Vec<Recorded> {
    let mut bench = Bench::new();
    bench.host.queue.header_digest = header_digest;
    bench.host.queue.data_digest = data_digest;
    let all = RefCell::new(Vec::new());
    let wire = |config| {
        let mut wire = bench.wire(config);
        let recorded = Recorded::default();
        all.borrow_mut().push(Rc::clone(&recorded));
        wire.damage = Some(Rc::new(move |bytes: &mut Vec<u8>, to_target| {
            if !bytes.is_empty() {
                recorded.borrow_mut().push((to_target, bytes.clone()));
            }
        }));
        wire
    };
    let mut admin = Admin::connect(wire(bench.host.queue), bench.host.clone()).unwrap();
    let disk = admin.namespace(1).unwrap();
    admin.namespaces().unwrap();
    admin.smart().unwrap();
    admin.keep_alive().unwrap();
    let mut io = Io::connect(wire(admin.controller().queue_config()), admin.controller(), 1).unwrap();
    // In the capsule, with one R2T, with several commands and PDUs.
    for (seed, blocks) in [(1, 2), (2, 64), (3, 4000)] {
        let data = pattern(seed, blocks * BLOCK);
        io.write(&disk, 0, &data, false).unwrap();
        let mut back = vec![0; data.len()];
        io.read(&disk, 0, &mut back).unwrap();
        assert!(back == data);
    }
    io.write_zeroes(&disk, 0, 8).unwrap();
    io.flush(1).unwrap();
    let _ = io.read(&disk, 1 << 40, &mut [0; BLOCK]);
    admin.shut_down().unwrap();
    drop((io, admin));
    all.into_inner()
}

/// The types of all PDUs of a connection, those to the target first.
fn types(recorded: &Recorded, digests: (bool, bool)) -> Vec<u8> {
    let mut out = Vec::new();
    for to_target in [true, false] {
        let direction = if to_target { Direction::ToController } else { Direction::ToHost };
        let mut framing = Framing::initial(direction, 1 << 20, 4 << 20);
        let (mut assembler, stream) = (Assembler::default(), recorded.borrow());
        for (_, bytes) in stream.iter().filter(|(to, _)| *to == to_target) {
            let mut rest = &bytes[..];
            while assembler.fill(&framing, &mut rest).unwrap() {
                let pdu = assembler.take();
                out.push(framing.decode(&pdu).unwrap().kind());
                (framing.header_digest, framing.data_digest) = digests;
            }
        }
    }
    out.sort_unstable();
    out
}

/// A capture file, each connection with a port of its own.
fn capture(connections: &[Recorded]) -> Vec<u8> {
    // Little endian, version 2.4, packets of any length, raw IP.
    let mut out = vec![0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 101, 0, 0, 0];
    let mut time = 0u32;
    let mut packet = |to_target: bool, port: u16, numbers: (u32, u32), flags: u8, data: &[u8]| {
        let length = 40 + data.len() as u32;
        let (source, target) = if to_target { (port, 4420) } else { (4420, port) };
        let (from, to) = if to_target { (1, 2) } else { (2, 1) };
        let mut ip = vec![0x45, 0];
        ip.extend((length as u16).to_be_bytes());
        ip.extend([0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, from, 10, 0, 0, to]);
        ip.extend(u16::to_be_bytes(source));
        ip.extend(u16::to_be_bytes(target));
        ip.extend(numbers.0.to_be_bytes());
        ip.extend(numbers.1.to_be_bytes());
        ip.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
        time += 1;
        for word in [time / 1_000_000, time % 1_000_000, length, length] {
            out.extend(word.to_le_bytes());
        }
        out.extend(ip);
        out.extend(data);
    };
    for (port, recorded) in (50_000u16..).zip(connections) {
        let (mut host, mut target) = (1u32, 1u32);
        packet(true, port, (0, 0), 2, &[]);
        packet(false, port, (0, 1), 0x12, &[]);
        packet(true, port, (1, 1), 0x10, &[]);
        for (to_target, bytes) in recorded.borrow().iter() {
            for piece in bytes.chunks(60_000) {
                let numbers = if *to_target { (host, target) } else { (target, host) };
                packet(*to_target, port, numbers, 0x18, piece);
                let next = if *to_target { &mut host } else { &mut target };
                *next += piece.len() as u32;
            }
        }
    }
    out
}

/// Sorted values of a field, of all PDUs of a packet and of all packets.
fn values(lines: &str, column: usize) -> Vec<u8> {
    let fields = lines.lines().filter_map(|line| line.split('\t').nth(column));
    let mut out: Vec<u8> = fields
        .flat_map(|f| f.split(',').filter(|v| !v.is_empty()).map(str::to_owned).collect::<Vec<_>>())
        .map(|v| v.strip_prefix("0x").map_or_else(|| v.parse().unwrap(), |h| u8::from_str_radix(h, 16).unwrap()))
        .collect();
    out.sort_unstable();
    out
}

#[test]
fn tshark_reads_all_that_we_send() {
    const TEST: &str = "tshark_reads_all_that_we_send";
    let tshark = match rockmill_skip::program("tshark", Needs::Tshark) {
        Ok(tshark) => tshark,
        Err(missing) => return skip(TEST, &missing),
    };
    let scratch = tempfile::tempdir().unwrap();
    let place = scratch.path().join("capture");
    for digests in [(false, false), (true, false), (false, true), (true, true)] {
        let connections = session(digests.0, digests.1);
        assert_eq!(connections.len(), 2);
        std::fs::write(&place, capture(&connections)).unwrap();
        let mut tshark = Process::new(&tshark);
        tshark.args(["-n", "-r"]).arg(&place).args(["-d", "tcp.port==4420,nvme-tcp", "-T", "fields"]);
        // It checks digests only if told to.
        tshark.args(["-o", "nvme-tcp.check_hdgst:TRUE", "-o", "nvme-tcp.check_ddgst:TRUE"]);
        for field in ["nvme-tcp.type", "nvme-tcp.hdgst.status", "nvme-tcp.ddgst.status", "_ws.malformed", "_ws.expert"]
        {
            tshark.args(["-e", field]);
        }
        let out = tshark.output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let said = String::from_utf8(out.stdout).unwrap();
        let mut sent: Vec<u8> = connections.iter().flat_map(|c| types(c, digests)).collect();
        sent.sort_unstable();
        let count = |of: &[u8]| {
            let mut text = String::new();
            of.chunk_by(|a, b| a == b).for_each(|c| write!(text, "{} of type {}, ", c.len(), c[0]).unwrap());
            text
        };
        let seen = values(&said, 0);
        assert_eq!(count(&seen), count(&sent), "digests {digests:?}");
        // 1 is right, 0 is wrong.
        for (on, column) in [(digests.0, 1), (digests.1, 2)] {
            let seen = values(&said, column);
            assert!(seen.iter().all(|&s| s == 1) && seen.is_empty() != on, "digests {digests:?}: {}", count(&seen));
        }
        assert!(said.lines().all(|l| l.split('\t').nth(3).is_none_or(str::is_empty)), "malformed: {said}");
    }
}
