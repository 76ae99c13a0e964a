//! Faults in memory: each call of a job failing, short or late in turn, and crash images.

use super::job;
use super::places::in_memory;
use rockmill_io::error::{is_out_of_space, raw_os_error};
use rockmill_io::ring::{CallOrder, ReadOptions, ReadPlan, Span};
use rockmill_io::{CrashMode, Fault, FileSystem, OpKind, WritableFile, WriteOptions};
use std::io;
use std::time::Duration;

const ORDERS: [CallOrder; 4] = [CallOrder::Oldest, CallOrder::Newest, CallOrder::Random(3), CallOrder::Random(4)];

#[test]
fn each_call_that_fails_once_fails_the_job_with_its_file_and_offset() {
    for (i, order) in ORDERS.into_iter().enumerate() {
        let (place, fs) = in_memory(order, i % 2 == 0);
        let wanted = job::prepare(&place);
        let before = fs.calls();
        job::run(&place, &place.io(&job::limits()), true).unwrap();
        let calls = fs.calls() - before;
        assert!(calls > 20, "{calls}");
        for n in 0..calls {
            let io = place.io(&job::limits());
            fs.fail_once_after(n, libc::EIO);
            let result = job::run(&place, &io, true);
            fs.clear_fault();
            let e = result.expect_err("the job went on as if nothing had happened");
            assert_eq!(raw_os_error(&e), Some(libc::EIO), "call {n}: {e}");
            let text = e.to_string();
            assert!(text.contains(".sst"), "{text}");
            assert!(!text.contains("earlier failure"), "call {n}: the failure itself was lost: {text}");
            let whole = ["open for reading ", "create ", "cut ", "fdatasync ", "close "];
            let placed = text.contains("read at ") || text.contains("write at ");
            assert!(placed || whole.iter().any(|call| text.starts_with(call)), "{text}");
            assert_eq!(io.free_bytes(), io.facts().memory_bytes, "call {n}: memory is missing");
        }
        job::run(&place, &place.io(&job::limits()), true).unwrap();
        job::check(&place, &wanted, &place.name);
    }
}

#[test]
fn what_a_ring_may_say_of_an_operation_that_is_to_be_tried_again_is_tried_again() {
    for (i, order) in ORDERS.into_iter().enumerate() {
        let (place, fs) = in_memory(order, i % 2 == 0);
        let wanted = job::prepare(&place);
        let transfer = |kind| matches!(kind, OpKind::ReadAt | OpKind::Write);
        let before = (fs.calls_of(OpKind::ReadAt), fs.calls_of(OpKind::Write));
        job::run(&place, &place.io(&job::limits()), true).unwrap();
        let transfers = fs.calls_of(OpKind::ReadAt) + fs.calls_of(OpKind::Write) - before.0 - before.1;
        for errno in [libc::EAGAIN, libc::EINTR, libc::ENOMEM, libc::ECANCELED, libc::EINVAL] {
            for n in (0..transfers).step_by(3) {
                let io = place.io(&job::limits());
                let mut seen = 0;
                fs.set_hook(Box::new(move |op| {
                    seen += u64::from(transfer(op.kind));
                    let fail = transfer(op.kind) && seen == n + 1;
                    if fail { Fault::Error(io::Error::from_raw_os_error(errno)) } else { Fault::None }
                }));
                let result = job::run(&place, &io, true);
                fs.clear_fault();
                result.unwrap_or_else(|e| panic!("errno {errno} at transfer {n}: {e}"));
                job::check(&place, &wanted, &format!("errno {errno} at transfer {n}"));
                let counts = io.counts();
                assert!(counts.retries + counts.plain_calls > 0, "{counts:?}");
            }
        }
    }
}

#[test]
fn an_operation_that_is_to_be_tried_again_for_ever_fails_in_the_end() {
    for errno in [libc::EAGAIN, libc::EINTR, libc::ENOMEM, libc::ECANCELED] {
        for kind in [OpKind::ReadAt, OpKind::Write] {
            let (place, fs) = in_memory(CallOrder::Random(1), true);
            job::prepare(&place);
            let io = place.io(&job::limits());
            fs.set_fault(Box::new(move |op| (op.kind == kind).then(|| io::Error::from_raw_os_error(errno))));
            let e = job::run(&place, &io, true).unwrap_err();
            assert_eq!(raw_os_error(&e), Some(errno), "{e}");
        }
    }
}

#[test]
fn short_and_late_transfers_change_nothing() {
    for (i, order) in ORDERS.into_iter().enumerate() {
        let (place, fs) = in_memory(order, i % 2 == 1);
        let wanted = job::prepare(&place);
        for most in [1, 511, 4096, 5000, 20_000] {
            let io = place.io(&job::limits());
            // Each third transfer, including retries.
            let mut seen = 0;
            fs.set_hook(Box::new(move |op| match op.kind {
                OpKind::ReadAt | OpKind::Write => {
                    seen += 1;
                    if seen % 3 == 0 { Fault::Short(most) } else { Fault::None }
                }
                _ => Fault::None,
            }));
            job::run(&place, &io, true).unwrap();
            fs.clear_fault();
            job::check(&place, &wanted, &format!("{} short: {most}", place.name));
            assert!(io.counts().retries > 0);
        }
        // All transfers, to the end, in steps of slightly more than a sector.
        fs.set_hook(Box::new(|op| match op.kind {
            OpKind::ReadAt | OpKind::Write => Fault::Short(4100),
            _ => Fault::None,
        }));
        job::run(&place, &place.io(&job::limits()), true).unwrap();
        job::check(&place, &wanted, "all short");
        fs.set_hook(Box::new(
            |op| {
                if op.number % 7 == 0 { Fault::Delay(Duration::from_micros(200)) } else { Fault::None }
            },
        ));
        job::run(&place, &place.io(&job::limits()), true).unwrap();
        job::check(&place, &wanted, "late");
    }
}

#[test]
fn a_bit_that_flips_on_the_way_arrives_flipped() {
    let (place, fs) = in_memory(CallOrder::Oldest, false);
    place.fs.write_all(&place.path("0.sst"), &[0; 100]).unwrap();
    let path = place.path("0.sst");
    let mut plan = ReadPlan::new();
    let file = plan.add_file(place.fs.open_random(&path, false).unwrap(), &path);
    plan.add_run(vec![Span { file, offset: 0, len: 100 }]);
    fs.set_hook(Box::new(|op| if op.kind == OpKind::ReadAt { Fault::FlipBit(9) } else { Fault::None }));
    let mut stream = place.io(&job::limits()).read(plan, ReadOptions::default()).unwrap();
    assert_eq!(stream.next(0).unwrap().unwrap()[1], 2);
}

#[test]
fn a_full_disk_is_told_as_such_and_once() {
    let (place, fs) = in_memory(CallOrder::Random(5), true);
    let wanted = job::prepare(&place);
    for free in [0, 1, 100_000, 300_000] {
        fs.set_free_space(Some(free));
        let e = job::run(&place, &place.io(&job::limits()), true).unwrap_err();
        assert!(is_out_of_space(&e), "{e}");
        assert!(e.to_string().contains("out.sst"), "{e}");
        place.fs.remove(&place.path("out.sst")).unwrap();
    }
    fs.set_free_space(None);
    job::run(&place, &place.io(&job::limits()), true).unwrap();
    job::check(&place, &wanted, "with room again");
}

#[test]
fn a_failed_sync_is_never_followed_by_one_that_works() {
    for begin in [false, true] {
        for errno in [libc::EIO, libc::ENOMEM, libc::ENOSPC] {
            let (place, fs) = in_memory(CallOrder::Random(6), true);
            let io = place.io(&job::limits());
            let mut writer = io.create(&*place.fs, &place.path("out.sst"), place.options()).unwrap();
            writer.append(&[7; 100_000]).unwrap();
            let mut armed = true;
            fs.set_fault(Box::new(move |op| {
                let fail = op.kind == OpKind::Sync && std::mem::take(&mut armed);
                fail.then(|| io::Error::from_raw_os_error(errno))
            }));
            let e = match begin {
                true => writer.begin_sync().and_then(|_| writer.sync()).unwrap_err(),
                false => writer.sync().unwrap_err(),
            };
            assert_eq!(raw_os_error(&e), Some(errno), "{e}");
            assert!(e.to_string().contains("fdatasync") && e.to_string().contains("out.sst"), "{e}");
            for again in [writer.poll_sync().map(drop), writer.begin_sync().map(drop), writer.sync(), writer.close()] {
                assert!(again.unwrap_err().to_string().contains("earlier failure"));
            }
        }
    }
}

#[test]
fn what_was_synced_survives_a_power_cut_at_any_later_point() {
    for direct in [false, true] {
        let (place, fs) = in_memory(CallOrder::Random(8), direct);
        place.fs.sync_dir("/".as_ref()).unwrap();
        fs.start_recording();
        let io = place.io(&job::limits());
        let path = place.path("out.sst");
        let options = WriteOptions { buffer_size: 8192, ..place.options() };
        let mut writer = io.create(&*place.fs, &path, options).unwrap();
        place.fs.sync_dir(&place.root).unwrap();
        let mut synced = Vec::new();
        let mut wanted = Vec::new();
        for i in 0..30u8 {
            let piece = vec![i; 3000];
            writer.append(&piece).unwrap();
            wanted.extend_from_slice(&piece);
            if i % 5 == 4 {
                match i % 2 {
                    0 => writer.sync().unwrap(),
                    _ => {
                        writer.begin_sync().unwrap();
                        while !writer.poll_sync().unwrap() {
                            // In memory, operations are executed when they are waited for.
                            writer.sync().unwrap();
                        }
                    }
                }
                synced.push((fs.recorded(), wanted.len()));
            }
        }
        writer.close().unwrap();
        for point in 0..=fs.recorded() {
            let promised = synced.iter().rev().find(|(at, _)| *at <= point).map_or(0, |(_, len)| *len);
            for mode in [CrashMode::SyncedOnly, CrashMode::Hostile(point as u64), CrashMode::KeepAll] {
                let image = fs.crash_image_at(point, mode).unwrap();
                let found = image.read_to_vec(&path).unwrap_or_default();
                assert!(found.len() >= promised, "{} of {promised} bytes at point {point}", found.len());
                assert!(found[..promised] == wanted[..promised], "point {point}, {mode:?}");
            }
        }
    }
}
