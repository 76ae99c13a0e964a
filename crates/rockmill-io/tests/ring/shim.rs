//! The real ring with manipulated completions.

use super::job;
use super::places::on_disk;
use rockmill_io::error::raw_os_error;
use rockmill_io::ring::{BatchKind, Tamper};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Operations of one job.
fn operations(place: &super::places::Place) -> u64 {
    let io = place.io(&job::limits());
    let count = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&count);
    io.set_shim(Box::new(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        Tamper::No
    }))
    .unwrap();
    job::run(place, &io, true).unwrap();
    count.load(Ordering::Relaxed)
}

#[test]
fn completions_that_are_short_interrupted_refused_or_late_change_nothing() {
    for kind in [BatchKind::Uring, BatchKind::Pread] {
        for place in on_disk(kind) {
            let wanted = job::prepare(&place);
            let operations = operations(&place);
            let tampers = [
                Tamper::Short(1),
                Tamper::Short(4096),
                Tamper::Short(9000),
                Tamper::Refuse(libc::EAGAIN),
                Tamper::Refuse(libc::EINTR),
                Tamper::Refuse(libc::ENOMEM),
                Tamper::Refuse(libc::ECANCELED),
                Tamper::Refuse(libc::EINVAL),
                Tamper::Refuse(libc::EOPNOTSUPP),
                Tamper::Late(5),
            ];
            for (i, tamper) in tampers.into_iter().enumerate() {
                for n in ((i as u64) % 4..operations - 1).step_by(4) {
                    let io = place.io(&job::limits());
                    io.set_shim(Box::new(move |op| if op.number == n { tamper } else { Tamper::No })).unwrap();
                    let name = format!("{}, {tamper:?} at {n}", place.name);
                    job::run(&place, &io, false).unwrap_or_else(|e| panic!("{name}: {e}"));
                    job::check(&place, &wanted, &name);
                }
                // All of them, as far as the job can end.
                if let Tamper::Short(most) = tamper
                    && most > 1
                {
                    let io = place.io(&job::limits());
                    io.set_shim(Box::new(move |_| tamper)).unwrap();
                    job::run(&place, &io, false).unwrap();
                    job::check(&place, &wanted, "all short");
                    let counts = io.counts();
                    assert!(counts.retries + counts.plain_calls > 0, "{counts:?}");
                }
            }
        }
    }
}

#[test]
fn an_interruption_that_is_told_of_work_that_was_done_does_no_harm() {
    for place in on_disk(BatchKind::Uring) {
        let wanted = job::prepare(&place);
        for errno in [libc::EAGAIN, libc::EINTR, libc::ECANCELED] {
            let io = place.io(&job::limits());
            io.set_shim(Box::new(move |op| if op.number % 3 == 0 { Tamper::FailAfter(errno) } else { Tamper::No }))
                .unwrap();
            job::run(&place, &io, false).unwrap();
            job::check(&place, &wanted, &format!("errno {errno}"));
        }
    }
}

#[test]
fn each_failure_of_the_ring_comes_out_once_with_file_and_offset() {
    for place in on_disk(BatchKind::Uring) {
        job::prepare(&place);
        let operations = operations(&place);
        for n in 0..operations {
            let io = place.io(&job::limits());
            let tamper = if n % 2 == 0 { Tamper::Refuse(libc::EIO) } else { Tamper::FailAfter(libc::EIO) };
            io.set_shim(Box::new(move |op| if op.number == n { tamper } else { Tamper::No })).unwrap();
            let e = job::run(&place, &io, true).expect_err("a failure was lost");
            assert_eq!(raw_os_error(&e), Some(libc::EIO), "{e}");
            let text = e.to_string();
            let named = text.contains("read at ") || text.contains("write at ") || text.contains("fdatasync ");
            assert!(named && text.contains(".sst"), "operation {n}: {text}");
            assert_eq!(io.free_bytes(), io.facts().memory_bytes, "operation {n}: memory is missing");
        }
    }
}

#[test]
fn a_sync_that_did_not_happen_is_done_and_one_that_failed_is_not() {
    for place in on_disk(BatchKind::Uring) {
        job::prepare(&place);
        for errno in [libc::EINTR, libc::EAGAIN, libc::ECANCELED, libc::EINVAL] {
            let io = place.io(&job::limits());
            let mut armed = true;
            io.set_shim(Box::new(move |op| match op.sync && std::mem::take(&mut armed) {
                true => Tamper::Refuse(errno),
                false => Tamper::No,
            }))
            .unwrap();
            job::run(&place, &io, true).unwrap();
        }
        for errno in [libc::EIO, libc::ENOMEM, libc::ENOSPC, libc::EDQUOT] {
            let io = place.io(&job::limits());
            let mut armed = true;
            io.set_shim(Box::new(move |op| match op.sync && std::mem::take(&mut armed) {
                true => Tamper::FailAfter(errno),
                false => Tamper::No,
            }))
            .unwrap();
            let e = job::run(&place, &io, true).unwrap_err();
            assert_eq!(raw_os_error(&e), Some(errno), "{e}");
        }
    }
}
