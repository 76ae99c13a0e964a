//! PDUs against hand-written bytes, and every error that a header can have.

use rockmill_nvme::command::{self, Cqe, Sgl, Sqe};
use rockmill_nvme::fabrics::Connect;
use rockmill_nvme::pdu::{Assembler, Data, Direction, Framing, IcReq, IcResp, Payload, Pdu, R2t, TermReq};
use rockmill_nvme::pdu_error::FatalError;
use rockmill_nvme::status::Status;

fn framing(direction: Direction, header_digest: bool, data_digest: bool, alignment: u32) -> Framing {
    Framing { direction, header_digest, data_digest, alignment, capsule_data_max: 8192, data_max: 131_072 }
}

/// Name, framing and bytes of each entry of the file.
fn known() -> Vec<(String, Framing, Vec<u8>)> {
    let mut out: Vec<(String, Framing, Vec<u8>)> = Vec::new();
    for line in include_str!("known_pdus.txt").lines().filter(|l| !l.starts_with('#')) {
        let mut words = line.split_whitespace().peekable();
        let Some(&first) = words.peek() else { continue };
        let is_bytes = first.split('*').next().is_some_and(|w| w.len() == 2 && u8::from_str_radix(w, 16).is_ok());
        if !is_bytes {
            let words: Vec<&str> = words.collect();
            let digests = if words.len() == 3 { words[1] } else { "" };
            let alignment = words[words.len() - 1].parse().unwrap();
            let f = framing(Direction::ToHost, digests.contains("header"), digests.contains("data"), alignment);
            out.push((first.to_owned(), f, Vec::new()));
            continue;
        }
        let bytes = &mut out.last_mut().expect("a name before bytes").2;
        for word in words {
            let (byte, times) = word.split_once('*').unwrap_or((word, "1"));
            let byte = u8::from_str_radix(byte, 16).unwrap();
            bytes.extend(std::iter::repeat_n(byte, times.parse().unwrap()));
        }
        let (_, framing, bytes) = out.last_mut().unwrap();
        // Even types go to the controller.
        framing.direction = if bytes[0].is_multiple_of(2) { Direction::ToController } else { Direction::ToHost };
    }
    out
}

#[test]
fn known_bytes_are_what_they_should_be_in_both_directions() {
    let known = known();
    assert_eq!(known.len(), 12);
    let connect_data = [0xab; 1024];
    for (name, framing, bytes) in &known {
        let expected = match name.as_str() {
            "icreq" => Pdu::IcReq(IcReq { header_digest: true, data_digest: true, ..IcReq::default() }),
            "icresp" => {
                Pdu::IcResp(IcResp { alignment: 3, data_digest: true, h2c_data_max: 131_072, ..IcResp::default() })
            }
            "h2cterm" => Pdu::H2cTermReq(TermReq {
                fatal: FatalError::InvalidHeaderField,
                information: 2,
                header: &[5, 0, 0x19, 0, 0x18, 0, 0, 0],
            }),
            "c2hterm" => {
                Pdu::C2hTermReq(TermReq { fatal: FatalError::HeaderDigest, information: 0x1234_5678, header: &[] })
            }
            "keepalive" => Pdu::CapsuleCmd(command::keep_alive().with_command_id(0x1122), Payload::new(&[])),
            "connect" => {
                let connect = Connect { format: 0, queue: 2, size: 31, no_flow_control: true, keep_alive_ms: 5_000 };
                let sqe = connect.encode().with_command_id(5).with_sgl(Sgl::InCapsule { offset: 0, length: 1024 });
                assert_eq!(Connect::decode(&sqe), connect);
                Pdu::CapsuleCmd(sqe, Payload::new(&connect_data))
            }
            "write" => {
                let sqe = command::write(1, 16, 1, false).with_command_id(2);
                Pdu::CapsuleCmd(sqe.with_sgl(Sgl::InCapsule { offset: 0, length: 4 }), Payload::new(&[0, 1, 2, 3]))
            }
            "capsuleresp" => Pdu::CapsuleResp(Cqe::new(3, Status::INVALID_NAMESPACE.do_not_retry(), 1, 5)),
            "capsuleresp_digest" => Pdu::CapsuleResp(Cqe::new(3, Status::SUCCESS, 1, 5)),
            "h2cdata" => Pdu::H2cData(Data {
                command_id: 7,
                tag: 0x2a,
                offset: 4096,
                last: true,
                success: false,
                payload: Payload::new(&[0xde, 0xad, 0xbe, 0xef, 0, 0xff]),
            }),
            "c2hdata" => Pdu::C2hData(Data {
                command_id: 7,
                tag: 0,
                offset: 512,
                last: true,
                success: true,
                payload: Payload::new(&[1, 2, 3, 4, 5, 6, 7, 8]),
            }),
            "r2t" => Pdu::R2t(R2t { command_id: 7, tag: 0x2a, offset: 4096, length: 8192 }),
            other => panic!("{other}"),
        };
        assert_eq!(framing.decode(bytes), Ok(expected), "{name}");
        let mut encoded = Vec::new();
        framing.encode(&expected, &mut encoded);
        assert_eq!(&encoded, bytes, "{name}");
    }
}

/// An invalid header is reported with field, offset and status, at whichever byte the stream is split.
#[test]
fn a_wrong_field_is_named_with_its_offset_and_status() {
    use FatalError::{HeaderDigest, InvalidHeaderField, LimitExceeded, OutOfRange, SequenceError};
    let known = known();
    let of = |name: &str| known.iter().find(|k| k.0 == name).unwrap().clone();
    // Entry, byte, its new value, then the expected error.
    let cases: &[(&str, usize, u8, FatalError, &str, u32)] = &[
        ("icreq", 0, 0x08, InvalidHeaderField, "PDU-Type", 0),
        ("icreq", 0, 0x0a, InvalidHeaderField, "PDU-Type", 0),
        ("icreq", 0, 0x01, SequenceError, "PDU-Type", 0),
        ("icreq", 2, 0x7f, InvalidHeaderField, "HLEN", 2),
        ("icreq", 4, 0x7f, InvalidHeaderField, "PLEN", 4),
        ("icreq", 5, 0x01, InvalidHeaderField, "PLEN", 4),
        ("icreq", 1, 0x01, InvalidHeaderField, "FLAGS.HDGSTF", 1),
        ("icreq", 10, 32, InvalidHeaderField, "HPDA", 10),
        ("icresp", 10, 255, InvalidHeaderField, "CPDA", 10),
        ("h2cterm", 4, 0x17, InvalidHeaderField, "PLEN", 4),
        ("h2cterm", 4, 0x99, InvalidHeaderField, "PLEN", 4),
        ("connect", 3, 0x47, InvalidHeaderField, "PDO", 3),
        ("connect", 3, 0x4a, InvalidHeaderField, "PDO", 3),
        ("connect", 6, 0xff, InvalidHeaderField, "PLEN", 4),
        ("connect", 7, 0xff, InvalidHeaderField, "PLEN", 4),
        ("connect", 1, 0x02, InvalidHeaderField, "FLAGS.DDGSTF", 1),
        ("write", 1, 0x02, InvalidHeaderField, "FLAGS.HDGSTF", 1),
        ("write", 1, 0x01, InvalidHeaderField, "FLAGS.DDGSTF", 1),
        ("write", 4, 0x50, InvalidHeaderField, "PLEN", 4),
        ("write", 20, 0x01, HeaderDigest, "HDGST", 72),
        ("write", 72, 0x00, HeaderDigest, "HDGST", 72),
        ("capsuleresp", 4, 0x19, InvalidHeaderField, "PLEN", 4),
        ("capsuleresp_digest", 12, 0xff, HeaderDigest, "HDGST", 24),
        ("h2cdata", 3, 0x3c, InvalidHeaderField, "PDO", 3),
        ("h2cdata", 3, 0x18, InvalidHeaderField, "PDO", 3),
        ("h2cdata", 6, 0x03, LimitExceeded, "PLEN", 4),
        ("h2cdata", 4, 0x1c, InvalidHeaderField, "FLAGS.DDGSTF", 1),
        ("h2cdata", 9, 0x01, HeaderDigest, "HDGST", 24),
        ("r2t", 24, 0x01, HeaderDigest, "HDGST", 24),
        ("r2t", 2, 0x19, InvalidHeaderField, "HLEN", 2),
    ];
    for (name, at, value, fatal, field, offset) in cases {
        let (_, framing, mut bytes) = of(name);
        // Extra bytes, in case the changed length is believed.
        assert_ne!(bytes[*at], *value, "{name}");
        bytes[*at] = *value;
        bytes.resize(bytes.len() + 64, 0);
        for cut in [1, 3, 8, bytes.len()] {
            let mut assembler = Assembler::default();
            let mut found = None;
            for piece in bytes.chunks(cut) {
                let mut piece = piece;
                match assembler.fill(&framing, &mut piece) {
                    Ok(true) => found = framing.decode(&assembler.take()).err(),
                    Ok(false) => continue,
                    Err(e) => found = Some(e),
                }
                break;
            }
            let e = found.unwrap_or_else(|| panic!("{name}, byte {at} = {value:#x}: taken"));
            assert_eq!((e.fatal, e.field, e.offset), (*fatal, *field, *offset), "{name}, byte {at} = {value:#x}");
            let information = match fatal {
                InvalidHeaderField => *offset,
                HeaderDigest => e.value as u32,
                _ => 0,
            };
            assert_eq!(e.information(), information);
        }
    }
    // Without digests, so that changed bytes reach the checks after them.
    let plain = framing(Direction::ToController, false, false, 4);
    let data = |offset: u32, last: bool| {
        let payload = Payload::new(&[1, 2, 3, 4, 5, 6]);
        let mut bytes = Vec::new();
        plain.encode(&Pdu::H2cData(Data { command_id: 1, tag: 2, offset, last, success: false, payload }), &mut bytes);
        plain.decode(&bytes).map(drop).map_err(|e| (e.fatal, e.field))
    };
    assert_eq!(data(8, true), Ok(()));
    assert_eq!(data(8, false), Err((InvalidHeaderField, "DATAL")));
    assert_eq!(data(2, true), Err((InvalidHeaderField, "DATAO")));
    assert_eq!(data(u32::MAX - 3, true), Err((OutOfRange, "DATAO")));
}

#[test]
fn a_data_digest_that_does_not_match_is_no_error_of_the_pdu() {
    for (name, framing, mut bytes) in known().into_iter().filter(|k| ["write", "h2cdata", "c2hdata"].contains(&&*k.0)) {
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        let intact = match framing.decode(&bytes) {
            Ok(Pdu::CapsuleCmd(_, payload)) => payload.intact,
            Ok(Pdu::H2cData(data) | Pdu::C2hData(data)) => data.payload.intact,
            other => panic!("{name}: {other:?}"),
        };
        assert!(!intact, "{name}");
    }
}

#[test]
fn what_is_encoded_is_decoded_with_every_digest_and_alignment() {
    let mut rng = fastrand::Rng::with_seed(11);
    for (header, data, units) in (0..128).map(|i| (i & 1 != 0, i & 2 != 0, i / 4)) {
        let length = rng.usize(1..2000) * 4;
        let bytes: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(length).collect();
        let sqe = Sqe(std::array::from_fn(|_| rng.u8(..)));
        let of = |payload| Data { command_id: 3, tag: 4, offset: 8, last: true, success: false, payload };
        for direction in [Direction::ToController, Direction::ToHost] {
            let framing = framing(direction, header, data, (units + 1) * 4);
            let pdus = match direction {
                Direction::ToController => vec![
                    Pdu::CapsuleCmd(sqe, Payload::new(&[])),
                    Pdu::CapsuleCmd(sqe, Payload::new(&bytes)),
                    Pdu::H2cData(of(Payload::new(&bytes))),
                ],
                Direction::ToHost => vec![
                    Pdu::CapsuleResp(Cqe::new(9, Status::LBA_OUT_OF_RANGE, 1 << 40, 2)),
                    Pdu::R2t(R2t { command_id: 1, tag: 2, offset: 3, length: 4 }),
                    Pdu::C2hData(of(Payload::new(&bytes))),
                ],
            };
            // All of them in one stream, split anywhere.
            let mut stream = Vec::new();
            pdus.iter().for_each(|pdu| framing.encode(pdu, &mut stream));
            let (mut assembler, mut got, mut rest) = (Assembler::default(), 0, &stream[..]);
            while !rest.is_empty() {
                let (mut piece, later) = rest.split_at(rng.usize(1..=rest.len()));
                while assembler.fill(&framing, &mut piece).unwrap() {
                    assert_eq!(framing.decode(&assembler.take()), Ok(pdus[got]));
                    got += 1;
                }
                assert!(piece.is_empty());
                rest = later;
            }
            assert_eq!(got, pdus.len());
        }
    }
}
