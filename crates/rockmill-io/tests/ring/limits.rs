//! Ends, threads, memory, counts, and machines that refuse.

use super::job;
use super::places::{everywhere, have_ring, on_disk, pattern, real_dir, small};
use super::read;
use rockmill_io::ring::{BatchKind, BatchLimits, ReadOptions, Span, coalesce};
use rockmill_io::{CountingFileSystem, FileSystem, MemFileSystem, PosixFileSystem, WritableFile, WriteOptions};
use rockmill_skip::{Needs, skip};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The variable that names the role of a test's child process.
const CHILD: &str = "ROCKMILL_RING_CHILD";

#[test]
fn everything_may_be_dropped_with_operations_in_flight() {
    everywhere(|place| {
        read::files(place, &[1_000_000, 1_000_000]);
        let mut rng = fastrand::Rng::with_seed(5);
        for round in 0..25 {
            let io = place.io(&small());
            let mut plan = read::plan(place, 2);
            for file in 0..2 {
                plan.add_run(coalesce(file, (0..250).map(|i| (i * 4000, 4000)), 40_000));
            }
            let mut stream = io.read(plan, ReadOptions { depth: 8, ..ReadOptions::default() }).unwrap();
            let kept = (0..rng.usize(0..4)).filter_map(|_| stream.next(rng.usize(0..2)).unwrap()).collect::<Vec<_>>();
            if round % 3 == 0 {
                stream.skip_rest(0);
                assert!(stream.next(0).unwrap().is_none());
            }
            let options = WriteOptions { buffer_size: 64 << 10, ..place.options() };
            let mut writer = io.create(&*place.fs, &place.path("out.sst"), options).unwrap();
            writer.append(&pattern(rng.usize(0..500_000), 1)).unwrap();
            if round % 4 == 0 {
                writer.begin_sync().unwrap();
            }
            // Any of the handles may be the last.
            match round % 3 {
                0 => drop((writer, stream, io)),
                1 => drop((io, writer, stream)),
                _ => {
                    drop((stream, writer));
                    let windows: usize = kept.iter().map(|window| window.len()).sum();
                    assert_eq!(windows, kept.len() * 40_000);
                    drop(kept);
                    assert_eq!(io.free_bytes(), io.facts().memory_bytes, "{}", place.name);
                }
            }
        }
    });
}

#[test]
fn files_are_written_from_the_same_buffers_while_those_before_are_synced() {
    everywhere(|place| {
        let io = place.io(&small());
        let options = WriteOptions { buffer_size: 64 << 10, ..place.options() };
        let mut syncing: Vec<Box<dyn WritableFile>> = Vec::new();
        let mut free = Vec::new();
        for file in 0..6 {
            let path = place.path(&format!("{file}.sst"));
            let mut writer = io.create(&*place.fs, &path, options).unwrap();
            // A part of the last buffer is still in flight with all the others when the next file begins.
            writer.append(&pattern(600_000 + file, 1)).unwrap();
            free.push(io.free_bytes());
            if writer.begin_sync().unwrap() {
                writer.close().unwrap();
            } else {
                syncing.push(Box::new(writer));
            }
        }
        assert!(free.iter().all(|f| *f == free[0]), "{}: {free:?}", place.name);
        for mut file in syncing {
            file.sync().unwrap();
            file.close().unwrap();
        }
        assert_eq!(io.free_bytes(), io.facts().memory_bytes, "{}", place.name);
        for file in 0..6 {
            let path = place.path(&format!("{file}.sst"));
            let wanted = pattern(600_000 + file, 1);
            let mut found = vec![0; place.fs.file_size(&path).unwrap() as usize];
            let reader = place.fs.open_random(&path, false).unwrap();
            assert_eq!(reader.read_at(0, &mut found).unwrap(), wanted.len());
            assert!(found == wanted, "{}: file {file}", place.name);
        }
    });
}

#[test]
fn windows_may_go_to_other_threads_and_rings_may_not() {
    for place in on_disk(BatchKind::Uring) {
        let data = read::files(&place, &[400_000]);
        let io = place.io(&small());
        let mut plan = read::plan(&place, 1);
        plan.add_run(coalesce(0, (0..100).map(|i| (i * 4000, 4000)), 40_000));
        let mut stream = io.read(plan, ReadOptions::default()).unwrap();
        let windows: Vec<_> = (0..3).map(|_| stream.next(0).unwrap().unwrap()).collect();
        let sum = |bytes: &[u8]| bytes.iter().map(|b| u64::from(*b)).sum::<u64>();
        let sums: Vec<u64> =
            windows.into_iter().map(|window| std::thread::spawn(move || sum(&window)).join().unwrap()).collect();
        let wanted: Vec<u64> = (0..3).map(|i| sum(&data[0][i * 40_000..(i + 1) * 40_000])).collect();
        assert_eq!(sums, wanted);
        // The stream itself in another thread: available data may be returned, then an error with the reason.
        let error = std::thread::spawn(move || {
            let error = (0..10).find_map(|_| stream.next(0).err());
            drop(stream);
            error
        })
        .join()
        .unwrap();
        let error = error.expect("a ring was used by a thread that is not its own").to_string();
        assert!(error.contains("only by the thread that made it"), "{error}");
        // Here it is still the owner's.
        drop(io);
    }
}

#[test]
fn memory_stays_within_what_was_given() {
    everywhere(|place| {
        read::files(place, &[3_000_000; 4]);
        let limits = BatchLimits { memory_bytes: 1 << 20, ..small() };
        let io = place.io(&limits);
        let mut plan = read::plan(place, 4);
        for file in 0..4 {
            // One span too large for any slot of the arena, among small ones.
            let large = [Span { file, offset: 400_000, len: 2_500_000 }];
            let small = |from: u64| coalesce(file, (0..10).map(move |i| (from + i * 4000, 4000)), 16_000);
            plan.add_run(small(0).into_iter().chain(large).chain(small(2_900_000)).collect());
        }
        let mut stream = io.read(plan, ReadOptions::default()).unwrap();
        let mut open = [true; 4];
        while open.contains(&true) {
            for (run, open) in open.iter_mut().enumerate() {
                *open &= stream.next(run).unwrap().is_some();
            }
        }
        // The arena, the same again for large spans, and the span that was needed immediately.
        let most = 2 * limits.memory_bytes + 2_500_000 + 3 * 4096;
        assert!(stream.memory_bytes_max() <= most, "{} of {most}", stream.memory_bytes_max());
        assert!(stream.memory_bytes() <= limits.memory_bytes, "{}", stream.memory_bytes());
    });
}

#[test]
fn a_small_arena_is_enough_for_anything() {
    everywhere(|place| {
        let wanted = job::prepare(place);
        for memory_bytes in [1, 50_000, 200_000, 700_000] {
            for depth in [1, 2, 5] {
                let io = place.io(&BatchLimits { memory_bytes, depth, ..job::limits() });
                job::run(place, &io, false).unwrap();
                job::check(place, &wanted, &format!("{memory_bytes} bytes, depth {depth}"));
            }
        }
    });
}

#[test]
fn the_pace_is_asked_for_every_byte_before_it_moves() {
    everywhere(|place| {
        let data = read::files(place, &[300_000]);
        let io = place.io(&small());
        let asked = Arc::new(AtomicU64::new(0));
        let mut plan = read::plan(place, 1);
        plan.add_run(coalesce(0, (0..75).map(|i| (i * 4000, 4000)), 16_000));
        let counted = Arc::clone(&asked);
        let throttle = Box::new(move |bytes| {
            counted.fetch_add(bytes, Ordering::Relaxed);
        });
        let options = ReadOptions { throttle: Some(throttle), ..ReadOptions::default() };
        let mut stream = io.read(plan, options).unwrap();
        let mut writer = io.create(&*place.fs, &place.path("out.sst"), place.options()).unwrap();
        while let Some(window) = stream.next(0).unwrap() {
            writer.append(&window).unwrap();
        }
        writer.sync().unwrap();
        writer.close().unwrap();
        assert!(place.fs.read_to_vec(&place.path("out.sst")).unwrap() == data[0]);
        // Once for each byte, plus alignment at the end.
        let asked = asked.load(Ordering::Relaxed);
        assert!((300_000..300_000 + 4096).contains(&asked), "{asked}, {}", place.name);
        assert!((300_000..300_000 + 4096).contains(&stream.bytes_read()), "bytes were read twice");
    });
}

#[test]
fn a_file_system_that_counts_sees_what_the_ring_does() {
    let dir = real_dir();
    let mut all: Vec<(Arc<dyn FileSystem>, &Path, BatchKind)> = vec![
        (Arc::new(MemFileSystem::new()), Path::new("/"), BatchKind::Uring),
        (Arc::new(MemFileSystem::new()), Path::new("/"), BatchKind::Pread),
        (Arc::new(PosixFileSystem::default()), dir.path(), BatchKind::Pread),
    ];
    if have_ring() {
        all.push((Arc::new(PosixFileSystem::default()), dir.path(), BatchKind::Uring));
    }
    for (inner, root, kind) in all {
        let fs = CountingFileSystem::new(inner);
        let (input, output) = (root.join("in"), root.join("out"));
        fs.write_all(&input, &pattern(200_000, 1)).unwrap();
        let before = fs.counts();
        let io = fs.batch_io(kind, &small()).unwrap();
        let mut plan = rockmill_io::ring::ReadPlan::new();
        let file = plan.add_file(fs.open_random(&input, false).unwrap(), &input);
        plan.add_run(coalesce(file, (0..50).map(|i| (i * 4000, 4000)), 40_000));
        let mut stream = io.read(plan, ReadOptions::default()).unwrap();
        let options = WriteOptions { buffer_size: 50_000, ..WriteOptions::default() };
        let mut writer = io.create(&fs, &output, options).unwrap();
        while let Some(window) = stream.next(0).unwrap() {
            writer.append(&window).unwrap();
        }
        writer.sync().unwrap();
        writer.close().unwrap();
        let counts = fs.counts() - before;
        assert_eq!((counts.opens, counts.syncs, counts.closes), (2, 1, 1), "{kind}: {counts:?}");
        assert_eq!((counts.read_bytes, counts.write_bytes), (200_000, 200_000), "{kind}: {counts:?}");
        assert!(counts.reads >= 5 && counts.writes >= 4, "{kind}: {counts:?}");
        // A ring's transfers do not count as calls; entering the ring does, and equals the ring's own count.
        let transfers = counts.ring_reads + counts.ring_writes + counts.ring_syncs;
        let real = io.facts().kind == BatchKind::Uring && !io.facts().flags.is_empty();
        assert_eq!((transfers > 0, counts.ring_enters > 0), (real, real), "{kind}: {counts:?}");
        if real {
            assert_eq!(counts.ring_enters, io.counts().enters);
            assert_eq!(transfers, counts.reads + counts.writes + counts.syncs, "{counts:?}");
        }
        let others = counts.opens + counts.prefetches + counts.closes + counts.metadata;
        let plain = counts.reads + counts.writes + counts.syncs + counts.write_backs - transfers;
        assert_eq!(counts.calls(), others + plain + counts.ring_enters, "{counts:?}");
    }
}

#[test]
fn a_ring_has_what_was_asked_for_and_works_without() {
    for place in on_disk(BatchKind::Uring) {
        let wanted = job::prepare(&place);
        let limits = job::limits();
        let variants = [
            ("registered", limits.clone()),
            ("not registered", BatchLimits { register: false, ..limits.clone() }),
            ("huge pages", BatchLimits { huge_pages: true, ..limits.clone() }),
            ("idle priority", BatchLimits { io_priority: 3 << 13, ..limits.clone() }),
        ];
        for (name, limits) in variants {
            let io = place.io(&limits);
            job::run(&place, &io, false).unwrap();
            job::check(&place, &wanted, name);
            let (facts, counts) = (io.facts(), io.counts());
            println!("{name}: {facts:?}, {counts:?}");
            if !limits.register {
                assert_eq!((facts.registered_bytes, counts.fixed), (0, 0));
                assert!(facts.not_registered.as_ref().unwrap().contains("not asked for"));
            } else if facts.registered_bytes == facts.memory_bytes {
                assert!(facts.registered_files && facts.not_registered.is_none(), "{facts:?}");
                assert_eq!(counts.fixed, counts.operations, "{name}");
            }
            assert_eq!(counts.plain_calls, 0, "{name}");
            assert!(counts.enters < counts.operations, "nothing was submitted together: {counts:?}");
        }
    }
}

#[test]
fn a_refused_ring_is_told_and_plain_calls_do_the_work() {
    let fs = MemFileSystem::new();
    fs.refuse_rings(Some("switched off for the test"));
    assert_eq!(fs.batch_probe().reason, "switched off for the test");
    let io = fs.batch_io(BatchKind::Auto, &small()).unwrap();
    assert_eq!(io.facts().kind, BatchKind::Pread);
    assert_eq!(io.facts().fallback.as_deref(), Some("switched off for the test"));
    let e = fs.batch_io(BatchKind::Uring, &small()).unwrap_err();
    assert!(e.to_string().contains("switched off"), "{e}");
    fs.refuse_rings(None);
    assert_eq!(fs.batch_io(BatchKind::Auto, &small()).unwrap().facts().kind, BatchKind::Uring);
}

/// Runs this test binary's `child` under some other program. Returns its output, or `None` if it cannot be run.
fn child(part: &str, program: &str, args: &[&str]) -> Option<String> {
    let this = std::env::current_exe().unwrap();
    let out = Command::new(program)
        .args(args)
        .arg(this)
        .args(["--exact", "limits::child_process", "--nocapture"])
        .env(CHILD, part)
        .output();
    let out = match out {
        Ok(out) => out,
        Err(e) => {
            skip("rings in a restricted process", &Needs::Setpriv.because(format!("{program}: {e}")));
            return None;
        }
    };
    let text = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    if !text.contains("child began") {
        let reason = format!("{program} {args:?} cannot be used here: {text}");
        skip("rings in a restricted process", &Needs::Setpriv.because(reason));
        return None;
    }
    assert!(out.status.success() && text.contains("child ended"), "{text}");
    Some(text)
}

/// Does nothing by itself; the tests below run it in a restricted process.
#[test]
fn child_process() {
    let Ok(part) = std::env::var(CHILD) else { return };
    println!("child began");
    let fs = PosixFileSystem::default();
    let io = fs.batch_io(BatchKind::Auto, &BatchLimits { huge_pages: false, ..BatchLimits::default() }).unwrap();
    println!("{:?}", io.facts());
    match part.as_str() {
        "memlock" => {
            // With very little memory, not even the ring itself can be created.
            let facts = io.facts();
            let why = match facts.kind {
                BatchKind::Uring => {
                    assert!(facts.registered_bytes < facts.memory_bytes);
                    facts.not_registered.clone().unwrap()
                }
                _ => facts.fallback.clone().unwrap(),
            };
            assert!(why.contains("limit on locked memory"), "{why}");
        }
        _ => {
            assert_eq!(io.facts().kind, BatchKind::Pread);
            let why = io.facts().fallback.clone().unwrap();
            assert!(why.contains("seccomp"), "{why}");
            assert_eq!(fs.batch_probe().reason, why);
            let e = fs.batch_io(BatchKind::Uring, &small()).unwrap_err();
            assert_eq!(e.to_string(), why);
        }
    }
    let kind = io.facts().kind;
    for place in on_disk(kind) {
        let wanted = job::prepare(&place);
        job::run(&place, &place.io(&BatchLimits { memory_bytes: 8 << 20, ..job::limits() }), true).unwrap();
        job::check(&place, &wanted, &place.name);
    }
    println!("child ended");
}

#[test]
fn with_little_lockable_memory_part_of_the_arena_or_none_is_registered() {
    if !have_ring() {
        return;
    }
    // Privileged processes have no limit, so the privilege is dropped first.
    for (bytes, some) in [("3000000", true), ("65536", false)] {
        let memlock = format!("--memlock={bytes}:{bytes}");
        let args = ["--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock", "prlimit", &memlock];
        let Some(text) = child("memlock", "setpriv", &args) else { return };
        assert_eq!(!text.contains("registered_bytes: 0"), some, "{text}");
    }
}

#[test]
fn where_a_filter_forbids_rings_the_reason_is_named_and_plain_calls_do_the_work() {
    // io_uring_setup is number 425 everywhere; a filter of four instructions answers EPERM.
    let filter = "import ctypes, struct, sys, os\n\
        code = [(0x20, 0, 0, 0), (0x15, 0, 1, 425), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7fff0000)]\n\
        prog = b''.join(struct.pack('HBBI', *i) for i in code)\n\
        buf = ctypes.create_string_buffer(prog)\n\
        class Prog(ctypes.Structure): _fields_ = [('len', ctypes.c_ushort), ('filter', ctypes.c_void_p)]\n\
        fprog = Prog(len(code), ctypes.addressof(buf))\n\
        libc = ctypes.CDLL(None, use_errno=True)\n\
        assert libc.prctl(38, 1, 0, 0, 0) == 0\n\
        assert libc.prctl(22, 2, ctypes.byref(fprog), 0, 0) == 0, ctypes.get_errno()\n\
        os.execv(sys.argv[1], sys.argv[1:])\n";
    child("seccomp", "python3", &["-c", filter]);
}

#[test]
fn spans_are_as_large_as_the_device_likes_and_as_memory_allows() {
    let fs = MemFileSystem::new();
    let limits = BatchLimits { memory_bytes: 20 << 20, huge_pages: false, ..BatchLimits::default() };
    let ring = fs.batch_io(BatchKind::Uring, &limits).unwrap();
    assert_eq!(ring.span_bytes(None, 1), 256 << 10);
    assert_eq!(ring.span_bytes(None, 16), 256 << 10, "three for each of 16 runs in two thirds of the arena");
    assert_eq!(ring.span_bytes(None, 32), 144_179 / 4096 * 4096);
    assert_eq!(ring.span_bytes(None, 1000), 64 << 10);
    let plain = fs.batch_io(BatchKind::Pread, &limits).unwrap();
    assert_eq!(plain.span_bytes(None, 1), 2 << 20);
    assert_eq!(plain.span_bytes(None, 9), 1 << 20);
    assert_eq!(plain.span_bytes(None, 1000), 256 << 10);
    println!("{:?}", PosixFileSystem::default().device(real_dir().path()));
}
