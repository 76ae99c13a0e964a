//! The initiator against the target, in one process: every command, every way to split the stream, and errors.

mod common;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use common::{BLOCK, Bench, NQN, pattern};
use rockmill_nvme::command::{self, EVENT_DISCOVERY, EVENT_NAMESPACES, Sgl, Sqe, admin, feature, log_page};
use rockmill_nvme::fabrics::{
    Connect, ConnectData, DISCOVERY_NQN, DYNAMIC_CONTROLLER, VERSION, property, property_get, property_set,
};
use rockmill_nvme::identify::{ControllerKind, Descriptor};
use rockmill_nvme::initiator::{Admin, AdminEvent, Command, End, HostError, Io, Link, NamespaceInfo};
use rockmill_nvme::logs::{DiscoveryEntry, Security};
use rockmill_nvme::pdu_error::FatalError;
use rockmill_nvme::status::Status;
use rockmill_nvme::target::{MemoryNamespace, Namespace, Target, TargetConfig};

fn status<T: std::fmt::Debug>(result: Result<T, HostError>) -> Status {
    result.unwrap_err().status().expect("a status")
}

/// Records which blocks are written, in their order.
#[derive(Debug, Default)]
struct Noted(std::sync::Mutex<Vec<(u64, usize)>>);

impl Namespace for Noted {
    fn block_bytes(&self) -> u32 {
        4096
    }
    fn blocks(&self) -> u64 {
        1 << 20
    }
    fn read_only(&self) -> bool {
        false
    }
    fn nguid(&self) -> [u8; 16] {
        [1; 16]
    }
    fn read(&self, first: u64, into: &mut [u8]) -> Result<(), Status> {
        into.fill(first as u8);
        Ok(())
    }
    fn write(&self, first: u64, from: &[u8]) -> Result<(), Status> {
        self.0.lock().unwrap().push((first, from.len()));
        Ok(())
    }
    fn write_zeroes(&self, _: u64, _: u32) -> Result<(), Status> {
        Ok(())
    }
    fn flush(&self) -> Result<(), Status> {
        Ok(())
    }
}

/// What a worker of compactions needs (docs/offload.md): writes that are outstanding together, large and small, are
/// done in the order of their commands, where no data goes in capsules and one R2T asks for all of a write.
#[test]
fn outstanding_writes_are_done_in_their_order() {
    for cut in [usize::MAX, 1000, 7] {
        let mut bench = Bench::with(TargetConfig { r2t_bytes_max: 1 << 20, ..TargetConfig::new(NQN) });
        bench.cut = cut;
        let noted = Arc::new(Noted::default());
        bench.target.add_namespace(2, noted.clone()).unwrap();
        let mut admin = bench.admin();
        let info = admin.namespace(2).unwrap();
        let mut config = admin.controller().queue_config();
        config.in_capsule_max = 0;
        let mut io = Io::connect(bench.wire(config), admin.controller(), 1).unwrap();
        // More data in total than the target has room for.
        let blocks = [256, 1, 2, 256, 256, 1, 256, 256, 255, 1, 1];
        let (mut begun, mut wanted, mut first) = (Vec::new(), Vec::new(), 0);
        for count in blocks {
            begun.push(io.begin_write(&info, first, vec![7; count * 4096]).unwrap());
            wanted.push((first, count * 4096));
            first += count as u64;
        }
        let read = io.begin_read(&info, 9, 4096).unwrap();
        assert_eq!(io.room(), usize::from(config.entries) - 1 - blocks.len() - 1);
        while !begun.is_empty() {
            io.advance().unwrap();
            begun.retain(|&id| {
                io.ended("Write", id).is_none_or(|done| done.map(|data| assert!(data.is_empty())).is_err())
            });
        }
        assert!(*noted.0.lock().unwrap() == wanted, "{cut}");
        assert_eq!(io.ended("Read", read).unwrap().unwrap(), [9; 4096]);
        assert!(io.ended("Read", read).is_none(), "once");
        // Not whole blocks, none at all, too many.
        for bytes in [100, 0, (1 << 20) + 4096] {
            assert!(matches!(io.begin_read(&info, 0, bytes), Err(HostError::Buffer { .. })), "{bytes}");
            assert!(matches!(io.begin_write(&info, 0, vec![0; bytes]), Err(HostError::Buffer { .. })), "{bytes}");
        }
        let read_behind = io.begin_read(&info, 1 << 20, 4096).unwrap();
        io.advance().unwrap();
        assert_eq!(status(io.ended("Read", read_behind).unwrap()), Status::LBA_OUT_OF_RANGE);
    }
}

/// A controller that is reset between the header of a write's data and the data itself has no such write any more.
#[test]
fn data_that_comes_after_a_reset_is_not_written() {
    for in_place in [true, false] {
        let bench = Bench::with(TargetConfig { in_capsule_max: 0, ..TargetConfig::new(NQN) });
        let mut admin = bench.admin();
        let disk = admin.namespace(1).unwrap();
        let mut config = admin.controller().queue_config();
        (config.in_capsule_max, config.header_digest, config.data_digest) = (0, false, false);
        let mut io = Io::connect(bench.wire(config), admin.controller(), 1).unwrap();
        let data = pattern(7, 8 * BLOCK);
        io.begin_write(&disk, 0, data.clone()).unwrap();
        let link = io.link();
        let command = link.queue.output().to_vec();
        link.queue.sent(command.len());
        link.connection.receive(&command, Duration::ZERO);
        let r2t = link.connection.output().to_vec();
        link.connection.sent(r2t.len());
        link.queue.receive(&r2t);
        let pdu = link.queue.output().to_vec();
        // Its header, and a part.
        link.connection.receive(&pdu[..24 + 100], Duration::ZERO);
        admin.call("", Command::new(property_set(property::CC, false, 0))).unwrap();
        let rest = &pdu[24 + 100..];
        if in_place {
            link.connection.data_room().unwrap().copy_from_slice(rest);
            link.connection.data_received(rest.len());
        } else {
            link.connection.receive(rest, Duration::ZERO);
        }
        assert!(bench.disk.contents()[..data.len()].iter().all(|&byte| byte == 0), "written");
        assert!(link.connection.is_ended());
    }
}

/// Data of a write has a place as soon as its header has come; its digest counts, wherever it was read to.
#[test]
fn data_of_a_write_has_a_place_that_ends_with_its_pdu() {
    let config = TargetConfig { h2c_data_max: 4096, in_capsule_max: 0, ..TargetConfig::new(NQN) };
    let bench = Bench::with(config);
    let mut admin = bench.admin();
    let disk = admin.namespace(1).unwrap();
    let mut config = admin.controller().queue_config();
    (config.in_capsule_max, config.header_digest, config.data_digest) = (0, true, true);
    for damaged in [false, true] {
        let mut io = Io::connect(bench.wire(config), admin.controller(), 1 + u16::from(damaged)).unwrap();
        let data = pattern(u64::from(damaged), 6000 / BLOCK * BLOCK);
        let id = io.begin_write(&disk, 64 * u64::from(damaged), data.clone()).unwrap();
        let link = io.link();
        assert!(!link.connection.expects_data() && link.connection.data_room().is_none());
        // The command, its R2T, and then the data, in two PDUs.
        let send = |queue: &mut rockmill_nvme::initiator::Queue| {
            let sent = queue.output().to_vec();
            queue.sent(sent.len());
            sent
        };
        let command = send(&mut link.queue);
        link.connection.receive(&command, Duration::ZERO);
        assert!(link.connection.expects_data());
        let r2t = link.connection.output().to_vec();
        link.connection.sent(r2t.len());
        link.queue.receive(&r2t);
        let mut pdus = send(&mut link.queue);
        if damaged {
            let last = pdus.len() - 5; // of the data
            pdus[last] ^= 1;
        }
        let mut rest = pdus.as_slice();
        for room in [4096, data.len() - 4096] {
            // 24 bytes and a digest.
            link.connection.receive(&rest[..28], Duration::ZERO);
            rest = &rest[28..];
            for part in [100, room - 100] {
                let place = link.connection.data_room().unwrap();
                assert!(place.len() >= part);
                place[..part].copy_from_slice(&rest[..part]);
                link.connection.data_received(part);
                rest = &rest[part..];
            }
            assert!(link.connection.data_room().is_none(), "its digest comes next");
            link.connection.receive(&rest[..4], Duration::ZERO);
            rest = &rest[4..];
        }
        assert!(rest.is_empty() && !link.connection.expects_data());
        io.advance().unwrap();
        let done = io.ended("Write", id).unwrap().map(drop);
        let start = 64 * usize::from(damaged) * BLOCK;
        let is_there = bench.disk.contents()[start..start + data.len()] == data;
        match damaged {
            false => assert!(done.is_ok() && is_there),
            true => {
                assert_eq!(status(done).code(), Status::TRANSIENT_TRANSPORT_ERROR);
                assert!(!is_there);
            }
        }
    }
}

/// Every operation of a host, with checks of the results.
fn whole_session(bench: &Bench) {
    let mut admin = bench.admin();
    let controller = admin.controller().identity.clone();
    assert_eq!(controller.subsystem, NQN);
    assert_eq!(controller.kind, ControllerKind::Io);
    assert_eq!(admin.property(property::VS, false).unwrap(), u64::from(VERSION));
    assert_eq!(admin.property(property::CSTS, false).unwrap(), 1);
    assert_eq!(admin.set_queues(4).unwrap(), 4);
    assert_eq!(admin.set_queues(60_000).unwrap(), bench.target.config().io_queues_max);
    assert_eq!(admin.namespaces().unwrap(), [1, 3]);
    let disk = admin.namespace(1).unwrap();
    assert_eq!(disk, NamespaceInfo { id: 1, block_bytes: 512, blocks: 8192, read_only: false });
    let fixed = admin.namespace(3).unwrap();
    assert_eq!(fixed, NamespaceInfo { id: 3, block_bytes: 4096, blocks: 64, read_only: true });
    assert_eq!(admin.descriptors(1).unwrap(), [Descriptor::Nguid(bench.disk.nguid())]);
    admin.keep_alive().unwrap();

    let mut io = bench.io(&admin, 1);
    let before = bench.disk.flushes();
    // In the capsule; with one R2T; in several commands with several R2Ts.
    for (seed, first, blocks) in [(1, 0, 1), (2, 7, 40), (3, 100, 5000)] {
        let data = pattern(seed, blocks * BLOCK);
        io.write(&disk, first, &data, false).unwrap();
        let mut back = vec![0; data.len()];
        io.read(&disk, first, &mut back).unwrap();
        assert!(back == data);
        assert!(bench.disk.contents()[first as usize * BLOCK..][..data.len()] == data);
    }
    assert_eq!(bench.disk.flushes(), before);
    io.write(&disk, 8191, &pattern(4, BLOCK), true).unwrap();
    assert_eq!(bench.disk.flushes(), before + 1);
    io.flush(1).unwrap();
    io.flush(command::ALL_NAMESPACES).unwrap();
    assert_eq!(bench.disk.flushes(), before + 3);
    io.write_zeroes(&disk, 2, 6000).unwrap();
    assert!(bench.disk.contents()[2 * BLOCK..6002 * BLOCK].iter().all(|&b| b == 0));
    let mut block = [0; 4096];
    io.read(&fixed, 63, &mut block).unwrap();
    assert_eq!(block, [63; 4096]);
    assert_eq!(status(io.write(&fixed, 0, &block, false)), Status::NAMESPACE_WRITE_PROTECTED);

    let smart = admin.smart().unwrap();
    assert!(smart.reads >= 3 && smart.writes >= 4 && smart.units_read >= 6, "{smart:?}");
    let errors = admin.error_log(64).unwrap();
    assert_eq!(errors.len(), 1);
    assert_eq!((errors[0].count, errors[0].queue, errors[0].namespace), (1, 1, 3));
    assert_eq!(errors[0].status.code(), Status::NAMESPACE_WRITE_PROTECTED);
    admin.shut_down().unwrap();
    assert!(io.flush(1).is_err());
}

#[test]
fn a_session_with_every_digest_flow_control_and_alignment() {
    for i in 0..16u8 {
        let mut config = TargetConfig::new(NQN);
        config.alignment = if i & 8 == 0 { 0 } else { 31 };
        let mut bench = Bench::with(config);
        bench.host.queue.header_digest = i & 1 != 0;
        bench.host.queue.data_digest = i & 2 != 0;
        bench.host.queue.no_flow_control = i & 4 != 0;
        bench.host.queue.alignment = if i & 8 == 0 { 0 } else { 15 };
        whole_session(&bench);
    }
}

#[test]
fn a_session_cut_into_pieces_of_any_size() {
    for cut in [1, 2, 3, 7, 8, 23, 24, 72, 1000, 4096] {
        let mut bench = Bench::new();
        bench.cut = cut;
        whole_session(&bench);
    }
}

#[test]
fn a_session_with_the_smallest_limits() {
    let mut config = TargetConfig::new(NQN);
    config.queue_entries_max = 3;
    config.in_capsule_max = 0;
    config.h2c_data_max = 4096;
    config.c2h_data_max = 1;
    config.r2t_bytes_max = 2052;
    config.transfer_shift = 1;
    config.write_buffer_max = 8192;
    config.output_max = 0;
    let mut bench = Bench::with(config);
    bench.host.queue.entries = 3;
    whole_session(&bench);
}

/// Linux's target never requests data that would have fitted its capsule, whatever the host prefers.
#[test]
fn what_fits_the_controller_s_capsule_goes_there() {
    let mut config = TargetConfig::new(NQN);
    config.in_capsule_max = 32_768;
    let mut bench = Bench::with(config);
    for wanted in [0, 8192, u32::MAX] {
        bench.host.queue.in_capsule_max = wanted;
        let admin = bench.admin();
        let mut io = bench.io(&admin, 1);
        for (bytes, in_capsule) in [(512, true), (32_768, true), (33_280, false)] {
            let write = command::write(1, 0, bytes as u32 / 512, false);
            let queue = io.link().queue();
            queue.submit(Command::writing(write, pattern(5, bytes))).unwrap();
            let sent = queue.output().len();
            assert_eq!(sent >= bytes, in_capsule, "{bytes} bytes: {sent}");
            queue.sent(sent);
        }
    }
}

/// A short exchange that is cut once, at every byte of either direction.
#[test]
fn a_stream_cut_at_every_byte() {
    let bench = Bench::new();
    let mut at = 0;
    loop {
        let mut wire = bench.wire(bench.host.queue);
        // The stream to the target stops after `at` bytes; the rest follows when nothing else moves.
        let passed = Rc::new(Cell::new(0usize));
        let held = Rc::new(std::cell::RefCell::new(Vec::new()));
        let (p, h) = (Rc::clone(&passed), Rc::clone(&held));
        wire.damage = Some(Rc::new(move |bytes: &mut Vec<u8>, to_target| {
            if to_target {
                let before = p.get();
                p.set(before + bytes.len());
                if before <= at && at < before + bytes.len() {
                    h.borrow_mut().extend(bytes.drain(at - before..));
                } else if !h.borrow().is_empty() {
                    let late: Vec<u8> = h.borrow_mut().drain(..).chain(bytes.drain(..)).collect();
                    *bytes = late;
                }
            }
        }));
        let held_back = Held { wire, held };
        let mut admin = Admin::connect(held_back, bench.host.clone()).unwrap();
        let _ = admin.keep_alive();
        if passed.get() <= at {
            break;
        }
        at += 1;
    }
    assert!(at > 1500, "{at}");
}

/// A wire that releases held-back bytes when nothing else moves.
struct Held {
    wire: common::Wire,
    held: Rc<std::cell::RefCell<Vec<u8>>>,
}

impl Link for Held {
    fn queue(&mut self) -> &mut rockmill_nvme::initiator::Queue {
        self.wire.queue()
    }

    fn exchange(&mut self) -> std::io::Result<()> {
        let moved = self.wire.turn();
        let late = std::mem::take(&mut *self.held.borrow_mut());
        let now = self.wire.now.get();
        let mut rest = &late[..];
        while !rest.is_empty() {
            let taken = self.wire.connection.receive(rest, now);
            assert!(taken > 0);
            rest = &rest[taken..];
            moved_back(&mut self.wire);
        }
        if moved == 0 && late.is_empty() { Err(std::io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
    }
}

fn moved_back(wire: &mut common::Wire) {
    let out = wire.connection.output().to_vec();
    wire.connection.sent(out.len());
    wire.queue.receive(&out);
}

#[test]
fn several_queues_of_one_controller_see_one_disk() {
    let bench = Bench::new();
    let mut admin = bench.admin();
    let disk = admin.namespace(1).unwrap();
    let mut queues: Vec<_> = (1..=4).map(|q| bench.io(&admin, q)).collect();
    for (i, io) in queues.iter_mut().enumerate() {
        io.write(&disk, i as u64 * 8, &[i as u8 + 1; 8 * BLOCK], false).unwrap();
    }
    for io in &mut queues {
        let mut all = vec![0; 32 * BLOCK];
        io.read(&disk, 0, &mut all).unwrap();
        assert!(all.chunks(8 * BLOCK).enumerate().all(|(i, c)| c.iter().all(|&b| b == i as u8 + 1)));
    }
    // A queue number that is taken; then free again.
    let controller = admin.controller().clone();
    let again = |n| Io::connect(bench.wire(controller.queue_config()), &controller, n).map(drop);
    assert_eq!(status(again(3)), Status::COMMAND_SEQUENCE_ERROR);
    queues.remove(2);
    again(3).unwrap();
    // A reset ends all queues, and new queues may have any number.
    admin.call("", Command::new(property_set(property::CC, false, 0))).unwrap();
    assert_eq!(admin.property(property::CSTS, false).unwrap(), 0);
    assert!(queues[0].flush(1).is_err());
    assert_eq!(status(again(1)), Status::COMMAND_SEQUENCE_ERROR);
    admin.call("", Command::new(property_set(property::CC, false, 0x46_0001))).unwrap();
    again(1).unwrap();
    assert_eq!(bench.target.controllers(), 1);
    drop(admin);
    assert_eq!(bench.target.controllers(), 0);
}

#[test]
fn commands_that_cannot_be_done_say_why() {
    let bench = Bench::new();
    let mut admin = bench.admin();
    let disk = admin.namespace(1).unwrap();
    let mut io = bench.io(&admin, 1);
    let mut nvm = |sqe: Sqe, bytes: u32| {
        let command = if bytes == 0 { Command::new(sqe) } else { Command::reading(sqe, bytes) };
        status(io.call("", command))
    };
    assert_eq!(nvm(Sqe::new(0x55, 1), 0), Status::INVALID_OPCODE);
    assert_eq!(nvm(command::keep_alive(), 0), Status::INVALID_OPCODE);
    assert_eq!(nvm(command::read(2, 0, 1), 512), Status::INVALID_NAMESPACE);
    assert_eq!(nvm(command::read(0, 0, 1), 512), Status::INVALID_NAMESPACE);
    assert_eq!(nvm(command::read(1, 8192, 1), 512), Status::LBA_OUT_OF_RANGE);
    assert_eq!(nvm(command::read(1, 8191, 2), 1024), Status::LBA_OUT_OF_RANGE);
    assert_eq!(nvm(command::read(1, u64::MAX, 2), 1024), Status::LBA_OUT_OF_RANGE);
    assert_eq!(nvm(command::read(1, 0, 2), 512), Status::SGL_LENGTH_INVALID);
    assert_eq!(nvm(command::read(1, 0, 4096), 2 << 20), Status::INVALID_FIELD);
    assert_eq!(nvm(command::write_zeroes(1, 8000, 200), 0), Status::LBA_OUT_OF_RANGE);
    assert_eq!(nvm(command::write_zeroes(3, 0, 1), 0), Status::NAMESPACE_WRITE_PROTECTED);
    assert_eq!(nvm(command::flush(9), 0), Status::INVALID_NAMESPACE);
    assert_eq!(nvm(property_get(property::CAP, true), 0), Status::INVALID_FIELD);
    let mut without_sgl = command::flush(1);
    without_sgl.0[1] = 0;
    assert_eq!(nvm(without_sgl, 0), Status::INVALID_FIELD);
    let write = |sqe, bytes: usize| Command::writing(sqe, vec![1; bytes]);
    assert_eq!(status(io.call("", write(command::write(1, 0, 2, false), 512))), Status::SGL_LENGTH_INVALID);
    assert_eq!(status(io.call("", write(command::write(1, 0, 2, false), 65_536))), Status::SGL_LENGTH_INVALID);
    assert_eq!(status(io.call("", write(command::read(1, 0, 2), 1024))), Status::INVALID_FIELD);
    assert_eq!(status(io.call("", write(command::write(1, 8190, 32, false), 16_384))), Status::LBA_OUT_OF_RANGE);
    assert!(matches!(io.read(&disk, 0, &mut [0; 100]), Err(HostError::Buffer { bytes: 100, block_bytes: 512 })));
    for (fault, retry) in [(Status::UNRECOVERED_READ_ERROR, false), (Status::INTERNAL_ERROR, true)] {
        bench.disk.set_fault(Some(fault));
        match io.read(&disk, 0, &mut vec![0; 1 << 20]).unwrap_err() {
            HostError::Status { status, .. } => assert_eq!((status.code(), status.is_final()), (fault, !retry)),
            other => panic!("{other}"),
        }
    }
    bench.disk.set_fault(None);
    io.read(&disk, 0, &mut vec![0; 1 << 20]).unwrap();

    let mut call = |sqe: Sqe, bytes: u32| {
        let command = if bytes == 0 { Command::new(sqe) } else { Command::reading(sqe, bytes) };
        status(admin.call("", command))
    };
    assert_eq!(call(Sqe::new(admin::IDENTIFY, 0).with_dword(10, 0x40), 4096), Status::INVALID_FIELD);
    assert_eq!(call(command::identify(0, 0), 4096), Status::INVALID_NAMESPACE);
    assert_eq!(call(command::identify(0, 5000), 4096), Status::INVALID_NAMESPACE);
    assert_eq!(call(command::identify(2, 0xffff_fffe), 4096), Status::INVALID_NAMESPACE);
    assert_eq!(call(command::identify(3, 2), 4096), Status::INVALID_NAMESPACE);
    assert_eq!(call(command::identify(1, 0), 512), Status::SGL_LENGTH_INVALID);
    assert_eq!(call(command::get_log_page(0x55, 0, 0, 512, false), 512), Status::INVALID_LOG_PAGE);
    assert_eq!(call(command::get_log_page(log_page::DISCOVERY, 0, 0, 512, false), 512), Status::INVALID_LOG_PAGE);
    assert_eq!(call(command::get_log_page(log_page::SMART, 1, 0, 512, false), 512), Status::INVALID_FIELD);
    assert_eq!(call(command::get_log_page(log_page::SMART, 0, 2, 512, false), 512), Status::INVALID_FIELD);
    assert_eq!(call(command::get_log_page(log_page::SMART, 0, 516, 512, false), 512), Status::INVALID_FIELD);
    assert_eq!(call(command::get_log_page(log_page::SMART, 0, 0, 2 << 20, false), 2 << 20), Status::INVALID_FIELD);
    assert_eq!(call(command::set_features(0x55, 0), 0), Status::INVALID_FIELD);
    assert_eq!(call(command::get_features(0x55), 0), Status::INVALID_FIELD);
    assert_eq!(call(command::set_features(feature::QUEUES, 0xffff), 0), Status::INVALID_FIELD);
    assert_eq!(call(command::set_features(feature::QUEUES, 1), 0), Status::COMMAND_SEQUENCE_ERROR);
    assert_eq!(call(command::set_features(feature::VOLATILE_WRITE_CACHE, 0), 0), Status::FEATURE_NOT_CHANGEABLE);
    assert_eq!(call(command::set_features(feature::KEEP_ALIVE, u32::MAX), 0), Status::KEEP_ALIVE_INVALID);
    let saved = command::set_features(feature::KEEP_ALIVE, 0);
    assert_eq!(call(saved.with_dword(10, saved.dword(10) | 1 << 31), 0), Status::FEATURE_NOT_SAVEABLE);
    assert_eq!(call(property_get(0x10, false), 0), Status::INVALID_FIELD);
    assert_eq!(call(property_get(property::CAP, false), 0), Status::INVALID_FIELD);
    assert_eq!(call(property_set(property::VS, false, 0), 0), Status::INVALID_FIELD);
    let connect = Connect { format: 0, queue: 0, size: 31, no_flow_control: true, keep_alive_ms: 0 };
    assert_eq!(call(connect.encode(), 0), Status::COMMAND_SEQUENCE_ERROR);
    assert_eq!(call(Sqe::new(0x10, 0), 0), Status::INVALID_OPCODE);
    // Newest first, and no more than the log has room for.
    let errors = admin.error_log(64).unwrap();
    assert!(errors.windows(2).all(|w| w[0].count == w[1].count + 1));
    assert_eq!(errors[0].status.code(), Status::INVALID_OPCODE);
    // Not enabled: nothing but Fabrics commands.
    admin.call("", Command::new(property_set(property::CC, false, 0))).unwrap();
    assert_eq!(status(admin.keep_alive()), Status::COMMAND_SEQUENCE_ERROR);
    // Entry sizes that there are not.
    admin.call("", Command::new(property_set(property::CC, false, 0x36_0001))).unwrap();
    assert_eq!(admin.property(property::CSTS, false).unwrap(), 2);
}

#[test]
fn a_connect_that_is_refused_says_which_parameter() {
    let mut config = TargetConfig::new(NQN);
    config.hosts = Some(vec!["nqn.2026-11.test:host".into()]);
    config.controllers_max = 1;
    let bench = Bench::with(config);
    let good = Connect { format: 0, queue: 0, size: 31, no_flow_control: true, keep_alive_ms: 0 };
    let data = ConnectData {
        host_id: [9; 16],
        controller: DYNAMIC_CONTROLLER,
        subsystem: NQN.into(),
        host: "nqn.2026-11.test:host".into(),
    };
    let refused = |connect: Connect, data: ConnectData| {
        let mut wire = bench.wire(bench.host.queue);
        wire.turn();
        let id = wire.queue.submit(Command::writing(connect.encode(), data.encode())).unwrap();
        wire.turn();
        let done = wire.queue.take(id).unwrap();
        (done.status.code(), done.result)
    };
    let parameter = |offset: u64, in_data: u64| (Status::CONNECT_INVALID_PARAMETERS, offset | in_data << 16);
    let with = |change: &dyn Fn(&mut ConnectData)| {
        let mut data = data.clone();
        change(&mut data);
        data
    };
    assert_eq!(refused(Connect { format: 1, ..good }, data.clone()), (Status::CONNECT_INCOMPATIBLE_FORMAT, 0));
    assert_eq!(refused(Connect { size: 0, ..good }, data.clone()), parameter(44, 0));
    assert_eq!(refused(Connect { size: 128, ..good }, data.clone()), parameter(44, 0));
    assert_eq!(refused(Connect { keep_alive_ms: u32::MAX, ..good }, data.clone()), parameter(48, 0));
    assert_eq!(refused(good, with(&|d| d.controller = 1)), parameter(16, 1));
    assert_eq!(refused(good, with(&|d| d.subsystem = "nqn.other".into())), parameter(256, 1));
    assert_eq!(refused(good, with(&|d| d.subsystem.clear())), parameter(256, 1));
    assert_eq!(refused(good, with(&|d| d.host.clear())), parameter(512, 1));
    assert_eq!(refused(good, with(&|d| d.host = "nqn.x".into())), (Status::CONNECT_INVALID_HOST, 0));
    let admin = bench.admin();
    assert_eq!(refused(good, data.clone()), (Status::CONNECT_CONTROLLER_BUSY, 0));
    let io = Connect { queue: 1, ..good };
    let id = admin.controller().identity.controller;
    assert_eq!(refused(io, with(&|d| d.controller = id + 1)), parameter(16, 1));
    assert_eq!(refused(io, with(&|d| (d.controller, d.host_id) = (id, [8; 16]))), parameter(512, 1));
    assert_eq!(refused(Connect { queue: 17, ..good }, with(&|d| d.controller = id)), parameter(42, 0));
    assert_eq!(refused(io, with(&|d| d.controller = id)), (Status::SUCCESS, id.into()));
    // Anything before Connect.
    let mut wire = bench.wire(bench.host.queue);
    wire.turn();
    let id = wire.queue.submit(Command::new(command::keep_alive())).unwrap();
    wire.turn();
    assert_eq!(wire.queue.take(id).unwrap().status.code(), Status::COMMAND_SEQUENCE_ERROR);
}

#[test]
fn discovery_tells_where_subsystems_are_and_when_that_changes() {
    let mut bench = Bench::new();
    bench.host.subsystem = DISCOVERY_NQN.into();
    let securities = [Security::None, Security::Tls13Offered, Security::Tls13Required];
    let entry = |port: u16| DiscoveryEntry {
        transport: 3,
        family: 1,
        subsystem_kind: 2,
        port,
        admin_entries: 32,
        service: "4420".into(),
        subsystem: NQN.into(),
        address: "192.0.2.7".into(),
        security: securities[usize::from(port) % 3],
    };
    bench.target.set_discovery(vec![entry(1), entry(2), entry(3)]);
    let mut admin = bench.admin();
    assert_eq!(admin.controller().identity.kind, ControllerKind::Discovery);
    assert_eq!(admin.discovery_log().unwrap(), [entry(1), entry(2), entry(3)]);
    admin.want_events(EVENT_DISCOVERY).unwrap();
    assert_eq!(admin.event().unwrap(), None);
    bench.target.set_discovery(vec![entry(5)]);
    admin.link().turn();
    let told = AdminEvent { kind: 2, information: 0xf0, page: log_page::DISCOVERY };
    assert_eq!(admin.event().unwrap(), Some(told));
    assert_eq!(admin.discovery_log().unwrap(), [entry(5)]);
    // TREQ and SECTYPE, as the specification numbers them.
    let bytes = securities.map(|security| DiscoveryEntry { security, ..entry(1) }.encode());
    assert_eq!(bytes.map(|bytes| (bytes[3], bytes[768])), [(2, 0), (2, 2), (1, 2)]);
    assert_eq!(status(admin.namespaces()), Status::INVALID_FIELD);
    assert_eq!(status(admin.smart()), Status::INVALID_LOG_PAGE);
    assert_eq!(status(admin.set_queues(1)), Status::INVALID_FIELD);
    let wire = bench.wire(bench.host.queue);
    assert_eq!(status(Io::connect(wire, admin.controller(), 1).map(drop)), Status::CONNECT_INVALID_PARAMETERS);
}

#[test]
fn events_come_once_until_their_page_is_read_and_can_be_aborted() {
    let bench = Bench::new();
    let mut admin = bench.admin();
    let add = |id| bench.target.add_namespace(id, Arc::new(MemoryNamespace::new(512, 1, false)));
    admin.want_events(EVENT_NAMESPACES).unwrap();
    add(7).unwrap();
    add(8).unwrap();
    admin.keep_alive().unwrap();
    let told = AdminEvent { kind: 2, information: 0, page: log_page::CHANGED_NAMESPACES };
    assert_eq!(admin.event().unwrap(), Some(told));
    add(9).unwrap();
    admin.keep_alive().unwrap();
    assert_eq!(admin.event().unwrap(), None);
    assert_eq!(admin.changed_namespaces().unwrap(), [7, 8, 9]);
    assert_eq!(admin.namespaces().unwrap(), [1, 3, 7, 8, 9]);
    assert!(bench.target.remove_namespace(8));
    assert!(!bench.target.remove_namespace(8));
    admin.keep_alive().unwrap();
    assert_eq!(admin.event().unwrap(), Some(told));
    assert!(admin.cancel_events().unwrap());
    assert!(!admin.abort(0, 3).unwrap() && !admin.abort(1, 0).unwrap());
    // Four may be outstanding; the fifth is one too many, and two with the same id conflict.
    let ids: Vec<_> =
        (0..5).map(|_| admin.link().queue().submit(Command::new(command::async_event())).unwrap()).collect();
    admin.link().turn();
    let last = admin.link().queue().take(ids[4]).unwrap();
    assert_eq!(last.status.code(), Status::ASYNC_EVENT_LIMIT_EXCEEDED);
    assert!(ids[..4].iter().all(|&id| admin.link().queue().take(id).is_none()));
}

#[test]
fn a_silent_host_loses_its_controller_with_all_queues() {
    let mut bench = Bench::new();
    bench.host.keep_alive_ms = 1_950;
    let mut admin = bench.admin();
    assert_eq!(admin.keep_alive_ms().unwrap(), 2_000);
    let mut io = bench.io(&admin, 1);
    for _ in 0..5 {
        bench.now.set(bench.now.get() + Duration::from_millis(1_900));
        admin.keep_alive().unwrap();
        io.flush(1).unwrap();
    }
    bench.now.set(bench.now.get() + Duration::from_millis(2_001));
    // Commands of I/O queues do not count as Keep Alive.
    io.flush(1).unwrap();
    admin.link().turn();
    assert!(admin.link().connection.is_ended());
    assert!(io.flush(1).is_err() && io.link().connection.is_ended());
    assert_eq!(bench.target.controllers(), 0);
    // A connection without a Connect command does not stay for ever either.
    let mut wire = bench.wire(bench.host.queue);
    wire.turn();
    assert!(!wire.connection.is_ended());
    bench.now.set(bench.now.get() + Duration::from_millis(10_001));
    wire.turn();
    assert!(wire.connection.is_ended());
}

#[test]
fn nothing_is_written_to_a_namespace_that_was_taken_away() {
    let bench = Bench::new();
    let mut admin = bench.admin();
    let disk = admin.namespace(1).unwrap();
    let mut io = bench.io(&admin, 1);
    // Its data is requested, and arrives after the namespace is removed.
    let wire = io.link();
    let command = Command::writing(command::write(1, 0, 64, false), vec![0xee; 64 * BLOCK]);
    let id = wire.queue.submit(command).unwrap();
    let capsule = wire.queue.output().to_vec();
    wire.queue.sent(capsule.len());
    wire.connection.receive(&capsule, Duration::ZERO);
    assert!(!wire.connection.output().is_empty());
    assert!(bench.target.remove_namespace(1));
    wire.turn();
    assert_eq!(wire.queue.take(id).unwrap().status.code(), Status::INVALID_NAMESPACE);
    assert!(bench.disk.contents().iter().all(|&b| b == 0));
    assert_eq!(status(io.read(&disk, 0, &mut [0; BLOCK])), Status::INVALID_NAMESPACE);
    // The same id with fewer blocks, or another block size, is another namespace.
    bench.target.add_namespace(1, Arc::new(MemoryNamespace::new(512, 8, false))).unwrap();
    assert_eq!(status(io.write(&disk, 0, &[1; 64 * BLOCK], false)), Status::LBA_OUT_OF_RANGE);
}

#[test]
fn damaged_data_fails_the_command_and_a_damaged_header_the_connection() {
    let bench = Bench::new();
    let mut admin = bench.admin();
    let disk = admin.namespace(1).unwrap();
    bench.disk.fill(|i| i as u8);
    let before = bench.disk.contents();
    for (to_target, in_data) in [(true, true), (false, true), (true, false), (false, false)] {
        let mut io = bench.io(&admin, 1);
        // The last byte of a PDU with data belongs to the data digest; the tenth from the start is in every header.
        io.link().damage = Some(Rc::new(move |bytes: &mut Vec<u8>, to| {
            let at = if in_data { bytes.len().wrapping_sub(1) } else { 9 };
            if to == to_target && bytes.len() > 600 {
                bytes[at] ^= 0x10;
            }
        }));
        let (short, long) = (vec![7; 2 * BLOCK], vec![7; 32 * BLOCK]);
        let mut block = vec![0; 2 * BLOCK];
        let results = match to_target {
            true => vec![io.write(&disk, 0, &short, false), io.write(&disk, 0, &long, false)],
            false => vec![io.read(&disk, 0, &mut block)],
        };
        for result in results {
            match result.unwrap_err() {
                HostError::Status { status, .. } if in_data => {
                    assert_eq!(status.code(), Status::TRANSIENT_TRANSPORT_ERROR);
                }
                HostError::Ended(End::Terminated { fatal, .. }) if to_target && !in_data => {
                    assert_eq!(fatal, FatalError::HeaderDigest);
                }
                HostError::Ended(End::Protocol(e)) if !to_target && !in_data => {
                    assert_eq!(e.fatal, FatalError::HeaderDigest);
                }
                other => panic!("{to_target} {in_data}: {other}"),
            }
        }
        assert!(bench.disk.contents() == before);
    }
}

#[test]
fn a_target_that_uses_no_digests_is_no_target_for_a_host_that_wants_them() {
    let mut config = TargetConfig::new(NQN);
    config.data_digest = false;
    let mut bench = Bench::with(config);
    match Admin::connect(bench.wire(bench.host.queue), bench.host.clone()).err().unwrap() {
        HostError::Ended(End::Protocol(e)) => {
            assert_eq!((e.fatal, e.field), (FatalError::UnsupportedParameter, "DGST"));
        }
        other => panic!("{other}"),
    }
    bench.host.queue.data_digest = false;
    whole_session(&bench);
}

#[test]
fn a_configuration_or_namespace_that_makes_no_sense_is_refused() {
    let refused = |change: fn(&mut TargetConfig)| {
        let mut config = TargetConfig::new(NQN);
        change(&mut config);
        Target::new(config).unwrap_err()
    };
    for (what, why) in [
        (refused(|c| c.nqn.clear()), "nqn"),
        (refused(|c| c.queue_entries_max = 1), "queue_entries_max"),
        (refused(|c| c.h2c_data_max = 4092), "h2c_data_max"),
        (refused(|c| c.write_buffer_max = 4096), "write_buffer_max"),
        (refused(|c| c.alignment = 32), "alignment"),
        (refused(|c| c.in_capsule_max = 8), "in_capsule_max"),
    ] {
        assert!(what.starts_with(why), "{what}");
    }
    let bench = Bench::new();
    let add = |id, block, blocks| bench.target.add_namespace(id, Arc::new(MemoryNamespace::new(block, blocks, false)));
    assert!(add(0, 512, 1).is_err() && add(1, 512, 1).is_err() && add(2000, 512, 1).is_err());
    assert!(add(2, 500, 1).is_err() && add(2, 1 << 17, 1).is_err() && add(2, 512, 0).is_err());
    add(2, 65_536, 1).unwrap();
    let sgl = Sqe::new(0, 0).with_sgl(Sgl::Other { kind: 0x10 }).sgl();
    assert_eq!(sgl, Sgl::Other { kind: 0x10 });
}
