//! The driver `loop` in the ring of the reads: its program submits the reads and waits for them. Failed reads give the
//! same errors as without it.

use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use rockmill_io::ring::{BatchIo, BatchKind, BatchLimits, ReadOptions, ReadPlan, ReadStream, Tamper, Window, coalesce};
use rockmill_io::{FileSystem, PosixFileSystem, RandomAccessFile};
use tempfile::TempDir;

use super::*;

/// Runs in files, one block after the other.
struct Files {
    folder: TempDir,
    /// The path of each file, and the places of its blocks.
    runs: Vec<(PathBuf, Vec<(u64, u32)>)>,
    sorted: Entries,
}

impl Files {
    fn new(name: &str, rng: &mut fastrand::Rng, runs: usize, entries: usize) -> Self {
        let folder = tempfile::Builder::new().prefix(name).tempdir().unwrap();
        let lists = random_runs(rng, runs, entries, 300);
        let write = |(i, list): (usize, &Entries)| {
            let path = folder.path().join(format!("run{i}"));
            let mut file = std::fs::File::create(&path).unwrap();
            let (mut places, mut at) = (Vec::new(), 0u64);
            for block in blocks(list, 2000, 16) {
                file.write_all(&block).unwrap();
                places.push((at, block.len() as u32));
                at += block.len() as u64;
            }
            (path, places)
        };
        let runs = lists.iter().enumerate().map(write).collect();
        Self { runs, sorted: sorted(&lists), folder }
    }

    /// Begins to read them through `io`, in spans of `span` bytes.
    fn read(&self, io: &BatchIo, span: usize, open: impl Fn(&Path) -> Arc<dyn RandomAccessFile>) -> ReadStream {
        let mut plan = ReadPlan::new();
        for (path, places) in &self.runs {
            let number = plan.add_file(open(path), path);
            plan.add_run(coalesce(number, places.iter().copied(), span));
        }
        io.read(plan, ReadOptions::default()).unwrap()
    }
}

fn direct(path: &Path) -> Arc<dyn RandomAccessFile> {
    PosixFileSystem::default().open_random(path, true).unwrap()
}

/// A ring; without one, reports the skip and returns `None`.
fn ring() -> Option<BatchIo> {
    let limits = BatchLimits { memory_bytes: 8 << 20, huge_pages: false, ..BatchLimits::default() };
    match PosixFileSystem::default().batch_io(BatchKind::Uring, &limits) {
        Ok(io) => Some(io),
        Err(e) => {
            skip("a program in a ring", &Needs::Uring.because(e));
            None
        }
    }
}

/// An instance whose driver can run in a shared ring.
fn attachable(what: &str) -> Option<Instance> {
    if driver() == Driver::Run {
        skip(what, &Needs::KernelLoop.because("the driver run is in no ring"));
        return None;
    }
    instance(what, 4 << 20)
}

/// The output of a merge, and how often only user space could continue because the program had nothing to wait for.
#[derive(Debug, Default)]
struct Merged {
    entries: Entries,
    calls: u64,
    waits: u64,
}

/// Merges a stream's blocks as the store does: takes windows that have arrived, and lets the program wait for the
/// others.
fn merge_stream(instance: &mut Option<Instance>, files: &Files, stream: &mut ReadStream) -> io::Result<Merged> {
    let taken = instance.take().unwrap();
    let before = taken.calls();
    let runs = files.runs.len();
    let mut merge = Merge::begin(taken, &Job { runs, ..Job::default() }).unwrap();
    let mut next = vec![0; runs];
    let mut windows: Vec<Option<Window>> = (0..runs).map(|_| None).collect();
    let mut merged = Merged::default();
    let mut status = Status::Again;
    let mut waited = None;
    let done = loop {
        let mut failed = None;
        for run in 0..runs {
            merge.release(run);
            let places = &files.runs[run].1;
            while let Some(&(at, len)) = places.get(next[run]) {
                let here = windows[run].as_ref().is_some_and(|w| w.span().offset + u64::from(w.span().len) > at);
                if !here {
                    let urgent = status == Status::Dry(run) && waited == Some(run);
                    if !stream.is_ready(run) && !urgent {
                        break;
                    }
                    if urgent && !stream.is_ready(run) {
                        merged.waits += 1;
                    }
                    windows[run] = None;
                    match stream.next(run) {
                        Ok(window) => windows[run] = window,
                        Err(e) => {
                            failed = Some(e);
                            break;
                        }
                    }
                }
                let window = windows[run].as_ref().expect("a window");
                let start = (at - window.span().offset) as usize;
                let block = &window[start..start + len as usize];
                let (first, restart, end) = BlockLayout::parse(block).unwrap().entries_place(block).unwrap();
                let place = BlockPlace { first, end, restart, whole: false, damaged: false };
                if merge.give(run, block, &[], place).is_none() {
                    break;
                }
                next[run] += 1;
            }
            if next[run] == places.len() {
                merge.give_last(run);
            }
        }
        if let Some(e) = failed {
            break Err(e);
        }
        merge.await_transfers((0..runs).filter_map(|run| stream.awaited(run)));
        let last = status;
        status = merge.call().unwrap();
        waited = match (last, status) {
            (Status::Dry(a), Status::Dry(b)) if a == b && merge.records() == 0 => Some(a),
            _ => None,
        };
        for i in 0..merge.records() {
            let record = merge.record(i).expect("a record within the memory");
            let memory = merge.memory();
            merged.entries.push((memory[record.key].to_vec(), memory[record.value].to_vec()));
        }
        match status {
            Status::Again | Status::Dry(_) => {}
            Status::End => break Ok(merged),
            other => panic!("{other:?}"),
        }
    };
    let taken = merge.end();
    let calls = taken.calls() - before;
    *instance = Some(taken);
    done.map(|merged| Merged { calls, ..merged })
}

#[test]
fn reads_cost_no_call_of_their_own() {
    let Some(instance) = attachable("a program that reads") else { return };
    let Some(io) = ring() else { return };
    let mut rng = fastrand::Rng::with_seed(1);
    let mut instance = Some(instance);
    for (runs, entries, span) in [(1, 4000, 64 << 10), (4, 4000, 64 << 10), (7, 1500, 16 << 10), (20, 600, 8 << 10)] {
        let files = Files::new("shared-ring", &mut rng, runs, entries);
        instance.as_mut().unwrap().attach_to(&io).unwrap();
        let before = io.counts();
        let mut stream = files.read(&io, span, direct);
        let merged = merge_stream(&mut instance, &files, &mut stream).unwrap();
        drop(stream);
        instance.as_mut().unwrap().detach();
        let after = io.counts();
        assert!(merged.entries == files.sorted, "{runs} runs: other entries");
        let (operations, enters) = (after.operations - before.operations, after.enters - before.enters);
        println!("{runs} runs: {enters} enters, {} calls, {operations} reads, {} waits", merged.calls, merged.waits);
        assert_eq!(after.by_program - before.by_program, operations, "{runs} runs: reads of others");
        assert_eq!((enters, merged.waits), (merged.calls, 0), "{runs} runs: the ring was entered for more than calls");
        assert!(operations > runs as u64 && enters < 4 + operations / runs as u64, "{runs} runs: {enters} calls");
    }
}

#[test]
fn reads_that_come_short_or_late_or_are_interrupted_change_nothing() {
    let Some(instance) = attachable("reads that go wrong in a program's ring") else { return };
    let Some(io) = ring() else { return };
    let mut instance = Some(instance);
    for seed in 0..24 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let files = Files::new("tampered", &mut rng, 4, 1200);
        let chance = Mutex::new(fastrand::Rng::with_seed(seed));
        io.set_shim(Box::new(move |op| {
            let mut rng = chance.lock().unwrap();
            let interrupted = *rng.choice(&[libc::EINTR, libc::EAGAIN, libc::ECANCELED]).unwrap();
            match rng.u8(0..8) {
                0 => Tamper::Short(rng.usize(1..op.len.max(2))),
                1 => Tamper::FailAfter(interrupted),
                2 => Tamper::Refuse(interrupted),
                3 => Tamper::Late(rng.u32(1..6)),
                _ => Tamper::No,
            }
        }))
        .unwrap();
        instance.as_mut().unwrap().attach_to(&io).unwrap();
        let mut stream = files.read(&io, 16 << 10, direct);
        let merged = merge_stream(&mut instance, &files, &mut stream).unwrap();
        drop(stream);
        instance.as_mut().unwrap().detach();
        assert!(merged.entries == files.sorted, "seed {seed}: other entries");
    }
}

type Open = dyn Fn(&Path) -> Arc<dyn RandomAccessFile>;

/// A file whose descriptor cannot be read from.
#[derive(Debug)]
struct WriteOnly(std::fs::File, u64);

impl RandomAccessFile for WriteOnly {
    fn read_at(&self, _offset: u64, _buf: &mut [u8]) -> io::Result<usize> {
        Err(io::Error::from_raw_os_error(libc::EBADF))
    }
    fn size(&self) -> u64 {
        self.1
    }
    fn prefetch(&self, _offset: u64, _len: u64) {}
    fn is_direct(&self) -> bool {
        false
    }
    fn raw_fd(&self) -> Option<i32> {
        Some(self.0.as_raw_fd())
    }
}

/// Files that end early, files that cannot be read, and a device that fails give the same messages with the program in
/// the ring.
#[test]
fn reads_that_fail_say_the_same_as_without_a_program() {
    let Some(instance) = attachable("reads that fail in a program's ring") else { return };
    let mut instance = Some(instance);
    let short = |path: &Path| {
        let file = direct(path);
        // The file was longer when it was opened.
        let len = file.size() / 2;
        std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(len).unwrap();
        file
    };
    let closed = |path: &Path| {
        let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        let len = file.metadata().unwrap().len();
        Arc::new(WriteOnly(file, len)) as Arc<dyn RandomAccessFile>
    };
    let cases: [(&str, &Open, i32); 3] =
        [("the file ends at", &short, 0), ("os error 9", &closed, 0), ("os error 5", &direct, libc::EIO)];
    for (what, open, errno) in cases {
        let mut said = Vec::new();
        for shared in [false, true] {
            let Some(io) = ring() else { return };
            let files = Files::new("failing", &mut fastrand::Rng::with_seed(3), 3, 1200);
            let broken = files.folder.path().join("run1");
            if errno != 0 {
                let broken = broken.clone();
                io.set_shim(Box::new(move |op| match op.path == broken && op.offset > 100_000 {
                    true => Tamper::Refuse(errno),
                    false => Tamper::No,
                }))
                .unwrap();
            }
            if shared {
                instance.as_mut().unwrap().attach_to(&io).unwrap();
            }
            let opened = |path: &Path| if path == broken { open(path) } else { direct(path) };
            let mut stream = files.read(&io, 16 << 10, opened);
            let error = match shared {
                true => merge_stream(&mut instance, &files, &mut stream).unwrap_err(),
                false => loop {
                    match stream.next(1) {
                        Ok(Some(_)) => {}
                        Ok(None) => panic!("{what}: nothing failed"),
                        Err(e) => break e,
                    }
                },
            };
            assert!(error.to_string().contains(&broken.display().to_string()), "{what}: {error}");
            assert!(error.to_string().contains(what), "{what}: {error}");
            said.push((error.kind(), error.to_string().split(" from ").next().unwrap().to_owned()));
            drop(stream);
            instance = instance.map(|mut instance| {
                instance.detach();
                instance
            });
            assert!(io.is_idle(), "{what}: something was left in the ring");
            assert_eq!(std::fs::read_dir(files.folder.path()).unwrap().count(), 3);
        }
        assert_eq!(said[0], said[1], "{what}");
    }
}

#[test]
fn a_ring_has_one_program_and_is_whole_when_that_left() {
    let plain = BatchIo::plain(&BatchLimits { memory_bytes: 1 << 20, ..BatchLimits::default() }, None).unwrap();
    assert!(plain.program_slot(None).unwrap_err().to_string().contains("no ring"));
    let Some(mut one) = attachable("two programs in a ring") else { return };
    let Some(mut two) = attachable("two programs in a ring") else { return };
    let Some(io) = ring() else { return };
    one.attach_to(&io).unwrap();
    assert!(one.shares_ring() && !two.shares_ring());
    let refused = two.attach_to(&io).unwrap_err().to_string();
    assert!(refused.contains("has a program already"), "{refused}");
    let other = io.clone();
    let elsewhere = std::thread::spawn(move || other.claim(1 << 20).map(drop)).join().unwrap();
    assert!(elsewhere.is_err(), "a ring went to another thread with its program");
    one.detach();
    two.attach_to(&io).unwrap();
    two.detach();
    // Works as if there had never been a failure.
    let mut rng = fastrand::Rng::with_seed(5);
    let files = Files::new("left", &mut rng, 2, 500);
    let mut stream = files.read(&io, 16 << 10, direct);
    while stream.next(0).unwrap().is_some() {}
    while stream.next(1).unwrap().is_some() {}
    assert_eq!(io.counts().by_program, 0);
}
