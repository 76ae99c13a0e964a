//! The merge program in a real kernel. The committed objects match their source. A merge gives the same as a sort, also
//! when the machine is busy. Damage is found and does no harm. Programs that could do harm are refused.
//!
//! Without the right kernel or permission, each test reports that it was skipped.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rockmill_format::block::{BlockBuilder, BlockBuilderOptions, BlockEntries, BlockKind, BlockLayout};
use rockmill_format::key::{InternalKey, ValueType};
use rockmill_kernel::{BlockPlace, Driver, Instance, Job, Merge, Program, Status};
use rockmill_skip::{Needs, skip};

#[path = "program/own.rs"]
mod own;
#[path = "program/shared_ring.rs"]
mod shared_ring;

/// The driver under test: `ROCKMILL_KERNEL_DRIVER`, or `run`.
fn driver() -> Driver {
    let wanted = std::env::var("ROCKMILL_KERNEL_DRIVER").unwrap_or_else(|_| "run".to_owned());
    *Driver::ALL.iter().find(|d| d.name() == wanted).expect("ROCKMILL_KERNEL_DRIVER is run or loop")
}

fn program_of(driver: Driver) -> Arc<Program> {
    Arc::new(Program::read(driver.object(), driver.entry()).unwrap())
}

fn program() -> Arc<Program> {
    program_of(driver())
}

/// The kernel features that a driver needs.
fn needs(driver: Driver) -> Needs {
    match driver {
        Driver::Run => Needs::Kernel,
        Driver::Loop => Needs::KernelLoop,
    }
}

/// An instance; without one, reports the skip and returns `None`.
fn instance(what: &str, bytes: usize) -> Option<Instance> {
    match Instance::new(&program(), driver(), bytes) {
        Ok(instance) => Some(instance),
        Err(e) if e.log.is_empty() => {
            skip(what, &needs(driver()).because(e));
            None
        }
        Err(e) => panic!("{e}\n{}", e.log),
    }
}

#[test]
fn the_committed_object_is_what_the_source_gives() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/build-bpf");
    let built = Command::new(script).arg(out).output().unwrap();
    let said = String::from_utf8_lossy(&built.stderr).into_owned();
    if built.status.code() == Some(3) {
        skip("the_committed_object_is_what_the_source_gives", &Needs::Clang.because(said));
    } else {
        assert!(built.status.success(), "{said}");
        for (driver, name) in [(Driver::Run, "merge.bpf.o"), (Driver::Loop, "loop.bpf.o")] {
            let fresh = std::fs::read(out.join(name)).unwrap();
            let fresh = Program::read(&fresh, driver.entry()).unwrap();
            assert!(fresh == *program_of(driver), "bpf/{name} is not what its source gives: run scripts/build-bpf");
        }
        own::are_as_committed(out);
    }
}

/// Entries as internal keys and values.
type Entries = Vec<(Vec<u8>, Vec<u8>)>;

/// The blocks of a run.
fn blocks(run: &Entries, bytes: usize, restart_interval: usize) -> Vec<Vec<u8>> {
    let mut blocks = Vec::new();
    let options = || BlockBuilderOptions { restart_interval, ..Default::default() };
    let mut builder = BlockBuilder::new(options());
    let mut size = 0;
    for (key, value) in run {
        if size > bytes {
            blocks.push(std::mem::replace(&mut builder, BlockBuilder::new(options())).finish().to_vec());
            size = 0;
        }
        builder.add(key, value, None);
        size += key.len() + value.len();
    }
    if size > 0 {
        blocks.push(builder.finish().to_vec());
    }
    blocks
}

/// The output of a merge, or the damaged run and block.
struct Outcome {
    entries: Entries,
    damaged: Option<(usize, u32)>,
    hidden: u64,
    obsolete: u64,
    calls: u64,
    /// The time of the calls, without what is done here between them.
    in_calls: Duration,
    instance: Instance,
}

/// Merges runs of blocks with the program.
fn merge(instance: Instance, runs: &[Vec<Vec<u8>>], job: &Job<'_>) -> Outcome {
    let calls = instance.calls();
    let mut merge = Merge::begin(instance, job).unwrap();
    let mut next = vec![0; runs.len()];
    let mut entries = Entries::new();
    let (mut damaged, mut in_calls) = (None, Duration::ZERO);
    loop {
        for (run, blocks) in runs.iter().enumerate() {
            merge.release(run);
            while let Some(block) = blocks.get(next[run]) {
                let mut place = BlockPlace { first: 0, end: 0, restart: 0, whole: false, damaged: true };
                if let Some((first, restart, end)) = BlockLayout::parse(block).unwrap().entries_place(block) {
                    place = BlockPlace { first, end, restart, whole: false, damaged: false };
                }
                if place.damaged || place.first < place.end {
                    let Some(at) = merge.give(run, block, &[], place) else { break };
                    assert_eq!(&merge.memory()[at], &block[..]);
                }
                next[run] += 1;
            }
            if next[run] == blocks.len() {
                merge.give_last(run);
            }
        }
        let started = Instant::now();
        let status = merge.call().unwrap();
        in_calls += started.elapsed();
        for i in 0..merge.records() {
            let record = merge.record(i).expect("a record within the memory");
            assert!(!record.whole);
            let memory = merge.memory();
            entries.push((memory[record.key].to_vec(), memory[record.value].to_vec()));
        }
        match status {
            Status::Again | Status::Dry(_) => {}
            Status::End => break,
            Status::Corrupt(run, block) => {
                damaged = Some((run, block));
                break;
            }
            Status::HandOver(reason) => panic!("{reason}"),
        }
    }
    let dropped = merge.dropped();
    let instance = merge.end();
    let calls = instance.calls() - calls;
    Outcome { entries, damaged, hidden: dropped.hidden, obsolete: dropped.obsolete, calls, in_calls, instance }
}

fn key(user: &[u8], seq: u64, t: ValueType) -> Vec<u8> {
    InternalKey::new(user, seq, t).as_bytes().to_vec()
}

/// Runs of entries with keys that share a prefix; sequence numbers fall from run to run.
fn random_runs(rng: &mut fastrand::Rng, runs: usize, entries: usize, value: usize) -> Vec<Entries> {
    let universe = rng.u64(1..(runs * entries) as u64 * 2 + 2);
    random_runs_of(rng, universe, runs, entries, value)
}

/// The same with keys of so many different ones.
fn random_runs_of(rng: &mut fastrand::Rng, universe: u64, runs: usize, entries: usize, value: usize) -> Vec<Entries> {
    let mut made = Vec::new();
    for run in 0..runs {
        let mut m = std::collections::BTreeMap::new();
        for i in 0..entries {
            let user = format!("user{:08}", rng.u64(0..universe)).into_bytes();
            let seq = ((runs - run) * entries + i) as u64;
            let len = rng.usize(0..=value);
            m.insert((user, std::cmp::Reverse(seq)), vec![b'a' + (seq % 26) as u8; len]);
        }
        made.push(m.into_iter().map(|((user, seq), v)| (key(&user, seq.0, ValueType::Value), v)).collect());
    }
    made
}

/// In the order of internal keys.
fn sorted(runs: &[Entries]) -> Entries {
    let mut all: Entries = runs.concat();
    all.sort_by(|a, b| {
        let (x, y) = (a.0.split_at(a.0.len() - 8), b.0.split_at(b.0.len() - 8));
        x.0.cmp(y.0).then_with(|| y.1.iter().rev().cmp(x.1.iter().rev()))
    });
    all
}

#[test]
fn merges_are_what_a_sort_gives_for_few_runs_and_for_many() {
    let Some(mut instance) = instance("merges in the kernel beside a sort", 8 << 20) else { return };
    for seed in 0..60 {
        let mut rng = fastrand::Rng::with_seed(seed);
        // Up to 16 runs use the row of marks, more use the heap; a merge of many runs ends with the row.
        let count = *rng.choice(&[0, 1, 2, 5, 16, 17, 40]).unwrap();
        let size = rng.usize(1..400);
        let runs = random_runs(&mut rng, count, size, 60);
        let (bytes, interval) = (rng.usize(50..5000), rng.usize(1..20));
        let stored: Vec<_> = runs.iter().map(|run| blocks(run, bytes, interval)).collect();
        let job = Job { runs: count, skip: *rng.choice(&[0, 4, 5]).unwrap(), ..Job::default() };
        let done = merge(instance, &stored, &job);
        assert!(done.damaged.is_none());
        assert!(done.entries == sorted(&runs), "seed {seed}: {count} runs of {size}");
        instance = done.instance;
    }
}

#[test]
fn keys_of_every_shape_merge_like_a_sort() {
    let Some(mut instance) = instance("merges in the kernel of keys of every shape", 8 << 20) else { return };
    for seed in 0..150 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let count = rng.usize(1..20);
        let common: Vec<u8> = (0..rng.usize(0..12)).map(|_| rng.u8(..)).collect();
        // Keys of few distinct bytes, so that they share much; among them 0, the padding of short prefixes, and 255,
        // the largest.
        let mut some: Vec<u8> = (0..rng.usize(1..4)).map(|_| rng.u8(..)).collect();
        some.push(*rng.choice(&[0, 0xff]).unwrap());
        let longest = *rng.choice(&[2, 9, 20, 150]).unwrap();
        let runs: Vec<Entries> = (0..count as u64)
            .map(|run| {
                let mut keys: Vec<Vec<u8>> = (0..rng.usize(1..200))
                    .map(|_| {
                        let mut user = common.clone();
                        user.extend((0..rng.usize(0..=longest)).map(|_| *rng.choice(&some).unwrap()));
                        user
                    })
                    .collect();
                keys.sort();
                keys.dedup();
                let entry =
                    |user: Vec<u8>| (key(&user, 100 - run, ValueType::Value), vec![run as u8; rng.usize(0..300)]);
                keys.into_iter().map(entry).collect()
            })
            .collect();
        let want = sorted(&runs);
        // The common prefix of all keys, in bytes and then in bits, or a part of it.
        let user = |e: &(Vec<u8>, Vec<u8>)| e.0[..e.0.len() - 8].to_vec();
        let (first, last) = (user(&want[0]), user(&want[want.len() - 1]));
        let all = first.iter().zip(&last).take_while(|(a, b)| a == b).count();
        let skip = if rng.bool() { all } else { rng.usize(0..=all) };
        let prefix = |user: &[u8]| {
            let mut bytes = [0; 8];
            let rest = &user[skip..user.len().min(skip + 8)];
            bytes[..rest.len()].copy_from_slice(rest);
            u64::from_be_bytes(bytes)
        };
        let bits = (prefix(&first) ^ prefix(&last)).leading_zeros();
        let shift = if rng.bool() { bits } else { rng.u32(0..=bits) };
        let (bytes, interval) = (rng.usize(50..5000), rng.usize(1..20));
        let stored: Vec<_> = runs.iter().map(|run| blocks(run, bytes, interval)).collect();
        let done = merge(instance, &stored, &Job { runs: count, skip, shift, ..Job::default() });
        assert!(done.damaged.is_none());
        assert!(done.entries == want, "seed {seed}: {count} runs, skip {skip}, shift {shift}");
        instance = done.instance;
    }
}

#[test]
fn parts_begin_and_end_where_they_should() {
    let Some(mut instance) = instance("parts of merges in the kernel", 8 << 20) else { return };
    for seed in 0..40 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let runs = random_runs(&mut rng, 4, 300, 20);
        let all = sorted(&runs);
        let user = |i: usize| all[i].0[..all[i].0.len() - 8].to_vec();
        let (begin, end) = (user(rng.usize(0..400)), user(rng.usize(500..1200)));
        let stored: Vec<_> = runs.iter().map(|run| blocks(run, 300, 4)).collect();
        // Either a prefix of 0, which tells nothing, or the real one.
        let prefix = if rng.bool() { 0 } else { u64::from_be_bytes(*end[4..].first_chunk().unwrap()) };
        let job = Job { runs: 4, begin: Some(&begin), end: Some((&end, prefix)), skip: 4, ..Job::default() };
        let done = merge(instance, &stored, &job);
        let inside = |e: &&(Vec<u8>, Vec<u8>)| (&begin[..]..&end[..]).contains(&&e.0[..e.0.len() - 8]);
        let want: Entries = all.iter().filter(inside).cloned().collect();
        assert!(done.entries == want, "seed {seed}");
        instance = done.instance;
    }
}

#[test]
fn versions_that_nobody_sees_are_dropped_and_others_are_not() {
    let Some(instance) = instance("dropping in the kernel", 8 << 20) else { return };
    use ValueType::{Deletion, Merge as Operand, SingleDeletion, Value};
    // (user key, sequence number, type, whether it is kept), at the bottom and with a snapshot at 5.
    let cases: &[(&[u8], u64, ValueType, bool)] = &[
        (b"a", 9, Value, true),
        (b"a", 7, Value, false),
        (b"a", 5, Value, true),
        (b"a", 4, Deletion, false),
        (b"b", 4, Deletion, false),
        (b"b", 2, Value, false),
        (b"c", 8, Deletion, true),
        (b"c", 3, Value, true),
        (b"d", 8, Deletion, true),
        (b"d", 3, Deletion, true), // determines whether the one above is kept
        (b"e", 4, Deletion, true), // written after all: the program cannot decide about what follows
        (b"e", 3, Operand, true),
        (b"e", 2, Value, true),
        (b"f", 4, SingleDeletion, true),
        (b"f", 3, Value, true),
        (b"f", 2, Value, true),
    ];
    let run: Entries = cases.iter().map(|(k, s, t, _)| (key(k, *s, *t), b"v".to_vec())).collect();
    let stays: Vec<_> = cases.iter().filter(|c| c.3).map(|(k, s, t, _)| key(k, *s, *t)).collect();
    let stored = [blocks(&run, 40, 2)];
    let job = Job { runs: 1, snapshots: &[5], drop: true, bottommost: true, ..Job::default() };
    let done = merge(instance, &stored, &job);
    let given: Vec<_> = done.entries.iter().map(|e| e.0.clone()).collect();
    assert_eq!(given, stays);
    assert_eq!((done.hidden, done.obsolete), (3, 1));
    // Told not to, it drops nothing.
    let done = merge(done.instance, &stored, &Job { drop: false, ..job });
    assert_eq!(done.entries, run);
}

#[test]
fn a_busy_machine_changes_nothing_and_calls_stay_short() {
    let Some(instance) = instance("merges in the kernel on a busy machine", 32 << 20) else { return };
    let mut rng = fastrand::Rng::with_seed(7);
    let runs = random_runs(&mut rng, 8, 2000, 60);
    let stored: Vec<_> = runs.iter().map(|run| blocks(run, 4000, 16)).collect();
    let want = sorted(&runs);
    let stop = AtomicBool::new(false);
    let mut instance = Some(instance);
    std::thread::scope(|scope| {
        // Keeps all cores busy, so that calls are interrupted for long.
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let low = scope.spawn(|| {
            // The merging thread gets the lowest priority (`renice` by its thread's number, which needs no permission
            // to go down).
            let me = std::fs::read_link("/proc/thread-self").unwrap();
            let me = me.file_name().unwrap().to_str().unwrap().to_owned();
            let lowered = Command::new("renice").args(["-n", "19", "-p", &me]).output();
            if !lowered.is_ok_and(|o| o.status.success()) {
                let missing = Needs::Renice.because("renice cannot be run");
                skip("the lowest priority for a merge on a busy machine", &missing);
            }
            let (mut instance, mut rounds) = (instance.take().unwrap(), 0);
            let started = Instant::now();
            while rounds < 1 || started.elapsed() < Duration::from_secs(1) {
                let cpu = cpu_nanos();
                let done = merge(instance, &stored, &Job { runs: 8, skip: 4, ..Job::default() });
                assert!(done.entries == want, "round {rounds}");
                // Includes the time for filling the memory and copying records.
                let each = Duration::from_nanos((cpu_nanos() - cpu) / done.calls);
                // In an emulated machine, times mean nothing.
                let counts = std::env::var_os("ROCKMILL_NO_TIMES").is_none();
                assert!(!counts || each < Duration::from_millis(50), "{each:?} of CPU time for each call");
                (instance, rounds) = (done.instance, rounds + 1);
            }
        });
        let result = low.join();
        stop.store(true, Ordering::Relaxed);
        result.unwrap();
    });
}

/// The time per entry by the number of runs: with the row of marks, with the heap, and with the loop of
/// `examples/sums.bpf.c`, which looks at all runs for each entry (docs/notebook/compaction.md has the command). The row
/// ends at 16 runs. Without `ROCKMILL_MEASURE`, it merges little data once, and all ways must give the same output.
#[test]
fn linear_and_heap_by_runs() {
    let measures = std::env::var_os("ROCKMILL_MEASURE").is_some();
    let (of_run, rounds) = if measures { (10_000, 9) } else { (100, 1) };
    let mut instance = instance("measures merges in the kernel", 64 << 20);
    let mut scan = own::scan();
    if instance.is_none() || scan.is_none() {
        return;
    }
    println!("| runs | row of marks, ns an entry | heap | plain scan | calls |\n|---|---|---|---|---|");
    for runs in [4, 6, 8, 12, 16, 24, 32, 40] {
        let mut rng = fastrand::Rng::with_seed(runs as u64);
        // So many different keys that most are in one run alone, whatever the number of runs; of their eight digits the
        // first is 0.
        let all = random_runs_of(&mut rng, 10_000_000, runs, of_run, 60);
        let entries: usize = all.iter().map(Vec::len).sum();
        let stored: Vec<_> = all.iter().map(|run| blocks(run, 4000, 16)).collect();
        let want = sorted(&all);
        let (mut quickest, mut calls) = ([f64::INFINITY; 3], 0);
        for _ in 0..rounds {
            for (i, way) in ["row", "heap", "scan"].into_iter().enumerate() {
                let instance = if way == "scan" { &mut scan } else { &mut instance };
                let linear_max = (way == "heap").then_some(0);
                let mine = instance.take().unwrap();
                // Marks have no room for the bits of the first digit, as in a job.
                let done = merge(mine, &stored, &Job { runs, skip: 4, shift: 8, linear_max, ..Job::default() });
                let each = done.in_calls.as_nanos() as f64 / entries as f64;
                assert!(done.entries == want, "{runs} runs, {way}");
                quickest[i] = quickest[i].min(each);
                (*instance, calls) = (Some(done.instance), done.calls);
            }
        }
        // With more runs than the row has marks, the first way is the heap, too.
        let row = if runs > rockmill_kernel::merge::LINEAR_MAX as usize {
            "-".to_owned()
        } else {
            format!("{:.1}", quickest[0])
        };
        println!("| {runs} | {row} | {:.1} | {:.1} | {calls} |", quickest[1], quickest[2]);
    }
}

/// CPU time of this thread.
fn cpu_nanos() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split_whitespace().next().unwrap().parse().unwrap()
}

/// The entries that the store's own decoder finds in a block, and whether it then meets damage.
fn decoded(block: &[u8]) -> (Entries, bool) {
    let layout = BlockLayout::parse(block).unwrap();
    let mut entries = BlockEntries::new(None);
    entries.reset(layout, BlockKind::Data { global_seqno: None });
    let mut out = Entries::new();
    loop {
        match entries.fill(block) {
            Ok(false) => return (out, false),
            Err(_) => return (out, true),
            Ok(true) => {}
        }
        for i in 0..entries.len() {
            let k = entries.key(i);
            // Too short for an internal key: the program reports damage; in the store, version resolution does.
            if k.len() < 8 {
                return (out, true);
            }
            out.push((k.to_vec(), block[entries.value_range(i)].to_vec()));
        }
    }
}

#[test]
fn damaged_blocks_give_what_the_decoder_gives_and_harm_nothing() {
    let Some(mut instance) = instance("damaged blocks for the program in the kernel", 8 << 20) else { return };
    let mut damaged = 0;
    for seed in 0..1500 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let runs = random_runs(&mut rng, 2, 60, 12);
        let mut stored: Vec<_> = runs.iter().map(|run| blocks(run, 300, 4)).collect();
        let (run, block) = (0, rng.usize(0..stored[0].len()));
        let bytes = &mut stored[run][block];
        for _ in 0..rng.usize(1..4) {
            let at = rng.usize(..bytes.len());
            // Lengths that lead far away, too.
            let any = rng.u8(..);
            bytes[at] = *rng.choice(&[0, 0x7f, 0x80, 0xff, any]).unwrap();
        }
        if BlockLayout::parse(bytes).is_err() {
            continue; // found in user space, before the program sees it
        }
        // The other run's blocks, and those before and after, must not change.
        let one = [stored[run].clone()];
        let done = merge(instance, &one, &Job { runs: 1, ..Job::default() });
        let (mut want, mut bad) = (Entries::new(), None);
        for (number, block) in one[0].iter().enumerate() {
            let (entries, damage) = decoded(block);
            want.extend(entries);
            if damage {
                bad = Some(number as u32);
                break;
            }
        }
        assert!(done.entries == want, "seed {seed}");
        assert_eq!(done.damaged.is_some(), bad.is_some(), "seed {seed}");
        damaged += usize::from(bad.is_some());
        instance = done.instance;
        // Merged with others, in whatever order the damaged keys are, it must end.
        instance = merge(instance, &stored, &Job { runs: 2, drop: true, bottommost: true, ..Job::default() }).instance;
    }
    assert!(damaged > 200, "only {damaged} blocks were damaged");
}

#[test]
fn places_outside_of_a_block_and_of_the_memory_are_harmless() {
    let Some(instance) = instance("places outside of blocks for the program in the kernel", 8 << 20) else { return };
    let run: Entries =
        (0..50u64).map(|i| (key(format!("k{i:03}").as_bytes(), i, ValueType::Value), vec![7; 9])).collect();
    let block = blocks(&run, usize::MAX, 16).remove(0);
    let mut instance = instance;
    let len = block.len() as u32;
    for (first, end, restart) in [(0, u32::MAX, 0), (len, len, len), (u32::MAX, len, 0), (3, len, u32::MAX), (0, 1, 0)]
    {
        let mut merge = Merge::begin(instance, &Job { runs: 1, pass: true, ..Job::default() }).unwrap();
        let place = BlockPlace { first, end, restart, whole: true, damaged: false };
        for _ in 0..3 {
            merge.give(0, &block, &[], place).unwrap();
        }
        merge.give_last(0);
        let mut calls = 0;
        loop {
            let status = merge.call().unwrap();
            assert!((0..merge.records()).all(|i| merge.record(i).is_some()));
            calls += 1;
            if !matches!(status, Status::Again | Status::Dry(_)) || calls > 100 {
                break;
            }
        }
        instance = merge.end();
    }
}

#[test]
fn a_key_that_is_too_long_hands_the_job_over() {
    let Some(instance) = instance("long keys for the program in the kernel", 8 << 20) else { return };
    let run = vec![(key(&[b'k'; 9000], 1, ValueType::Value), Vec::new())];
    let block = blocks(&run, usize::MAX, 16).remove(0);
    let (first, restart, end) = BlockLayout::parse(&block).unwrap().entries_place(&block).unwrap();
    let mut merge = Merge::begin(instance, &Job { runs: 1, ..Job::default() }).unwrap();
    merge.give(0, &block, &[], BlockPlace { first, end, restart, whole: false, damaged: false }).unwrap();
    merge.give_last(0);
    assert_eq!(merge.call().unwrap(), Status::HandOver("a key is longer than the program takes"));
}

#[test]
fn programs_that_could_harm_are_refused() {
    if instance("programs that the verifier must refuse", 1 << 20).is_none() {
        return;
    }
    // Hand-written instructions: operation, registers (source << 4 | destination), offset, constant.
    let i = |op: u8, regs: u8, off: i16, imm: i32| {
        u64::from(op) | u64::from(regs) << 8 | u64::from(off as u16) << 16 | u64::from(imm as u32) << 32
    };
    let exit = i(0x95, 0, 0, 0);
    let zero = i(0xb7, 0, 0, 0); // r0 = 0
    let cases: &[(&str, Vec<u64>)] = &[
        // *(u64 *)(r10 - 1024) = 0: below the stack.
        ("a store outside of the stack", vec![zero, i(0x7a, 10, -1024, 0), exit]),
        // r0 = 0x1000; r0 = *(u64 *)(r0 + 0): a kernel address.
        ("a load at a number", vec![i(0xb7, 0, 0, 0x1000), i(0x79, 0, 0, 0), exit]),
        // r1 is the context, at most 64 KiB.
        ("a store before the context", vec![zero, i(0x7a, 1, -8, 0), exit]),
        ("a loop without end", vec![zero, i(0x07, 0, 0, 1), i(0x05, 0, -2, 0), exit]),
        ("an end that is not reached", vec![zero]),
    ];
    for (what, instructions) in cases {
        let program = Arc::new(Program::of_instructions(instructions.clone(), Vec::new(), "Dual MIT/GPL"));
        let refused = Instance::new(&program, Driver::Run, 1 << 20).map(drop);
        let refused = refused.expect_err(what);
        assert!(refused.reason.contains("verifier refuses"), "{what}: {refused}");
        assert!(!refused.log.is_empty(), "{what}");
    }
    // One that harms nothing is taken.
    let program = Arc::new(Program::of_instructions(vec![zero, exit], Vec::new(), "Dual MIT/GPL"));
    Instance::new(&program, Driver::Run, 1 << 20).map(drop).unwrap();
}

/// Runs this test alone, in a process without the permission to load programs.
#[test]
fn without_the_capability_its_name_is_said() {
    if std::env::var_os("ROCKMILL_TEST_NO_CAP").is_some() {
        let e = Instance::new(&program(), driver(), 1 << 20).map(drop).expect_err("CAP_BPF was given up");
        println!("told: {e}");
        return;
    }
    let me = std::env::current_exe().unwrap();
    let ran = Command::new("setpriv")
        .arg("--bounding-set=-bpf,-perfmon,-sys_admin")
        .arg(me)
        .args(["--exact", "without_the_capability_its_name_is_said", "--nocapture"])
        .env("ROCKMILL_TEST_NO_CAP", "1")
        .output();
    let ran = match ran {
        Ok(ran) => ran,
        Err(e) => return skip("a process without CAP_BPF", &Needs::Setpriv.because(e)),
    };
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    if !ran.status.success() && !said.contains("running 1 test") {
        let reason = String::from_utf8_lossy(&ran.stderr);
        return skip("a process without CAP_BPF", &Needs::Setpriv.because(reason));
    }
    assert!(ran.status.success(), "{said}{}", String::from_utf8_lossy(&ran.stderr));
    // A kernel without arenas reports that first.
    assert!(said.contains("told: no permission") && said.contains("CAP_BPF") || said.contains("Linux 6.9"), "{said}");
}

#[test]
fn a_kernel_too_old_for_the_driver_loop_is_told_what_it_lacks() {
    match Instance::new(&program_of(Driver::Loop), Driver::Loop, 1 << 20) {
        Ok(_) => skip("a kernel without io_uring's BPF operations", &Needs::NoKernelLoop.because("this one has them")),
        Err(e) => {
            assert!(e.reason.contains("the driver loop needs Linux 7.1") || e.reason.contains("permission"), "{e}")
        }
    }
}
