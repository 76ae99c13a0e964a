//! A ring that moves from job to job and from thread to thread, also after failed jobs.

use super::job;
use super::places::{everywhere, on_disk, small};
use rockmill_io::WritableFile;
use rockmill_io::error::raw_os_error;
use rockmill_io::ring::{BatchIo, BatchKind, BatchLimits, ReadOptions, ReadPlan, Span, Tamper};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// In a thread of its own.
fn elsewhere<T: Send>(f: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(f).join().unwrap())
}

/// A job in its own thread, which claims the ring.
fn job_elsewhere(place: &super::places::Place, io: BatchIo, memory: usize) -> (BatchIo, io::Result<()>) {
    elsewhere(|| {
        let io = io.claim(memory).unwrap();
        let result = job::run(place, &io, true);
        (io, result)
    })
}

#[test]
fn a_ring_goes_from_thread_to_thread_with_its_memory() {
    everywhere(|place| {
        let wanted = job::prepare(place);
        let mut io = place.io(&BatchLimits { memory_ready: 1 << 20, ..job::limits() });
        assert_eq!(io.facts().memory_bytes, 1 << 20);
        let mut operations = 0;
        for (round, memory) in [0, 0, 3 << 19, 0, 7 << 20, 0].into_iter().enumerate() {
            let (claimed, result) = job_elsewhere(place, io, memory);
            result.unwrap();
            job::check(place, &wanted, &format!("{}, round {round}", place.name));
            // Counts go on.
            assert!(claimed.counts().operations > operations);
            operations = claimed.counts().operations;
            let ready = [1 << 20, 3 << 19, 2 << 20][round / 2];
            assert_eq!((claimed.facts().memory_bytes, claimed.is_idle()), (ready, true), "round {round}");
            io = claimed;
        }
        // And back: a thread that already has the ring needs no new one.
        io = io.claim(0).unwrap().claim(1 << 20).unwrap();
        job::run(place, &io, true).unwrap();
        job::check(place, &wanted, "at home");
        if place.kind == BatchKind::Uring && io.facts().registered_bytes > 0 {
            assert!(io.counts().fixed > 0);
        }
    });
}

#[test]
fn a_ring_is_as_new_after_each_job_that_failed_was_late_or_cut_short() {
    for place in on_disk(BatchKind::Uring) {
        let wanted = job::prepare(&place);
        let mut io = place.io(&job::limits());
        // Counts down to the operation that fails.
        let left = Arc::new(AtomicI64::new(i64::MAX));
        let to_go = Arc::clone(&left);
        io.set_shim(Box::new(move |op| match to_go.fetch_sub(1, Ordering::Relaxed) {
            0 if op.number % 2 == 0 => Tamper::Refuse(libc::EIO),
            0 => Tamper::FailAfter(libc::EIO),
            // Others are still in flight when the job fails, and complete while it cleans up.
            n if n < 3 => Tamper::Late(4),
            n if n < 5 => Tamper::Short(5000),
            _ => Tamper::No,
        }))
        .unwrap();
        let (mut n, mut failures) = (0, 0);
        loop {
            left.store(n, Ordering::Relaxed);
            let (failed, result) = job_elsewhere(&place, io, 0);
            assert!(failed.is_idle(), "after {result:?} at operation {n}");
            let over = left.load(Ordering::Relaxed) >= 0;
            if let Err(e) = result {
                failures += 1;
                assert_eq!(raw_os_error(&e), Some(libc::EIO), "{e}");
            }
            left.store(i64::MAX, Ordering::Relaxed);
            let (used, result) = job_elsewhere(&place, failed, 0);
            result.unwrap_or_else(|e| panic!("{}, after a failure at operation {n}: {e}", place.name));
            job::check(&place, &wanted, &format!("{}, after a failure at operation {n}", place.name));
            io = used;
            if over {
                break;
            }
            n += 1;
        }
        assert!(n > 10 && failures == n, "{failures} of {n} failed");
    }
}

#[test]
fn a_ring_that_somebody_still_uses_is_not_handed_on() {
    everywhere(|place| {
        job::prepare(place);
        let path = place.path("0.sst");
        let open = |io: &BatchIo| {
            let mut plan = ReadPlan::new();
            let file = plan.add_file(place.fs.open_random(&path, place.direct).unwrap(), &path);
            plan.add_run(vec![Span { file, offset: 0, len: 9000 }, Span { file, offset: 9000, len: 70 }]);
            io.read(plan, ReadOptions::default()).unwrap()
        };
        // A read in flight, a separate window, a file that is being written.
        let io = place.io(&small());
        let stream = open(&io);
        let e = io.clone().claim(0).unwrap_err();
        assert!(e.to_string().contains("in use"), "{e}");
        drop(stream);
        assert!(io.is_idle());
        let window = open(&io).next(0).unwrap().unwrap();
        assert!(!io.is_idle() && io.clone().claim(0).is_err());
        drop(window);
        let mut writer = io.create(&*place.fs, &place.path("w"), place.options()).unwrap();
        writer.append(b"some").unwrap();
        assert!(!io.is_idle() && io.clone().claim(0).is_err());
        writer.close().unwrap();
        drop(writer);
        io.claim(0).unwrap();
    });
}
