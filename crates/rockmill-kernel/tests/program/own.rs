//! Programs of users: an order, filters and a merge of operands of their own.

use rockmill_kernel::{FilterJob, MergeObject};

use super::*;

const REVERSE: &[u8] = include_bytes!("../../bpf/examples/reverse.bpf.o");
const EXPIRE: &[u8] = include_bytes!("../../bpf/examples/expire.bpf.o");
const COUNTERS: &[u8] = include_bytes!("../../bpf/examples/counters.bpf.o");
const ALL: &[u8] = include_bytes!("../../bpf/tests/all.bpf.o");
const LIAR: &[u8] = include_bytes!("../../bpf/tests/liar.bpf.o");
const SLOW: &[u8] = include_bytes!("../../bpf/tests/slow.bpf.o");
const ENDLESS: &[u8] = include_bytes!("../../bpf/tests/endless.bpf.o");

/// All by their file names in `bpf`.
const OWN: [(&str, &[u8]); 7] = [
    ("examples/reverse.bpf.o", REVERSE),
    ("examples/expire.bpf.o", EXPIRE),
    ("examples/counters.bpf.o", COUNTERS),
    ("tests/all.bpf.o", ALL),
    ("tests/liar.bpf.o", LIAR),
    ("tests/endless.bpf.o", ENDLESS),
    ("tests/slow.bpf.o", SLOW),
];

const SUMS: &[u8] = include_bytes!("../../bpf/examples/sums.bpf.o");
const IDLE: &[u8] = include_bytes!("../../bpf/tests/idle.bpf.o");
const UNMERGED: &[u8] = include_bytes!("../../bpf/tests/unmerged.bpf.o");

/// Those with a merge loop of their own.
const OWN_LOOPS: [(&str, &[u8]); 3] =
    [("examples/sums.bpf.o", SUMS), ("tests/idle.bpf.o", IDLE), ("tests/unmerged.bpf.o", UNMERGED)];

/// Whether those in `dir` are the committed ones.
pub(super) fn are_as_committed(dir: &std::path::Path) {
    for (name, committed) in OWN.into_iter().chain(OWN_LOOPS) {
        let fresh = std::fs::read(dir.join(name)).unwrap();
        let fresh = MergeObject::read(name, &fresh).unwrap();
        let committed = MergeObject::read(name, committed).unwrap();
        assert!(fresh == committed, "bpf/{name} is not what its source gives: run scripts/build-bpf");
    }
}

/// An instance with a user's program; `None`, and a line that says so, where there is none.
fn own(what: &str, object: &[u8]) -> Option<Instance> {
    // What is missing for any program is said by the built-in one.
    instance(what, 1 << 20)?;
    let object = MergeObject::read("own.o", object).unwrap();
    let instance = object.check(driver(), 64 << 20).unwrap_or_else(|e| panic!("{e}\n{}", e.log));
    println!("{what}: the verifier went over {:?} instructions", instance.verified_instructions());
    Some(instance)
}

/// A program that looks at all runs for each entry.
pub(super) fn scan() -> Option<Instance> {
    own("a merge loop of its own in the kernel", SUMS)
}

/// A merge of one run, at its end, with its records still there.
fn merged(instance: Instance, run: &Entries, job: &Job) -> Merge {
    let mut merge = Merge::begin(instance, job).unwrap();
    for block in blocks(run, 90, 2) {
        let (first, restart, end) = BlockLayout::parse(&block).unwrap().entries_place(&block).unwrap();
        merge.give(0, &block, &[], BlockPlace { first, end, restart, whole: false, damaged: false }).unwrap();
    }
    merge.give_last(0);
    assert_eq!(merge.call().unwrap(), Status::End);
    merge
}

#[test]
fn a_reverse_order_merges_as_a_sort() {
    let Some(mut instance) = own("a reverse order in the kernel", REVERSE) else { return };
    let user = |k: &[u8]| k[..k.len() - 8].to_vec();
    for seed in 0..40 {
        let mut rng = fastrand::Rng::with_seed(seed);
        // Up to 4 runs in one way, above in another.
        let count = *rng.choice(&[0, 1, 2, 4, 5, 9, 20]).unwrap();
        let size = rng.usize(1..200);
        let mut runs = random_runs(&mut rng, count, size, 60);
        for run in &mut runs {
            run.reverse();
            run.chunk_by_mut(|a, b| user(&a.0) == user(&b.0)).for_each(<[_]>::reverse);
        }
        let stored: Vec<_> = runs.iter().map(|run| blocks(run, 300, 4)).collect();
        let mut all = runs.concat();
        let number = |k: &[u8]| u64::from_le_bytes(*k.last_chunk().unwrap());
        all.sort_by_key(|(k, _)| (std::cmp::Reverse(user(k)), std::cmp::Reverse(number(k))));
        let end = (seed % 2 == 0 && all.len() > 20).then(|| user(&all[all.len() / 2].0));
        if let Some(end) = &end {
            all.retain(|(k, _)| user(k) > *end);
        }
        let job = Job { runs: count, own_order: true, end: end.as_deref().map(|e| (e, 0)), ..Job::default() };
        let done = merge(instance, &stored, &job);
        assert!(done.entries == all, "seed {seed}: {count} runs of {size}");
        instance = done.instance;
    }
}

#[test]
fn a_filter_removes_what_has_expired_and_says_what_it_was_asked() {
    use ValueType::{Deletion, Merge as Operand, Value};
    let Some(instance) = own("a filter in the kernel", EXPIRE) else { return };
    let at = |second: u64| [&second.to_be_bytes()[..], b"value"].concat();
    // (user key, sequence number, type, value), and what is given with a snapshot at 5, at the bottom: type, whether
    // its value stays, whether the filter keeps it.
    type Given = Option<(ValueType, bool, bool)>;
    type Case<'a> = (&'a [u8], u64, ValueType, Vec<u8>, Given);
    let cases: &[Case<'_>] = &[
        (b"a", 9, Value, at(1001), Some((Value, true, true))),
        (b"a", 8, Value, at(1), None), // hidden, and not asked about
        (b"b", 9, Value, at(1000), Some((Deletion, false, false))), // a snapshot may see what is behind
        (b"b", 4, Value, at(2000), Some((Value, true, false))),
        (b"c", 4, Value, at(999), None), // gone, and all behind it
        (b"c", 3, Value, at(2000), None),
        (b"d", 4, Value, at(1), Some((Deletion, false, false))), // given after all
        (b"d", 3, Operand, at(1), Some((Operand, true, false))),
        (b"e", 4, Value, b"short".to_vec(), Some((Value, true, true))),
        (b"f", 4, Value, at(0), Some((Value, true, true))),
        (b"g", 7, Operand, at(1), Some((Operand, true, false))), // nobody asks the program about these
        (b"g", 6, Value, at(1), Some((Value, true, false))),
        (b"h", 4, Deletion, Vec::new(), None),
    ];
    let run: Entries = cases.iter().map(|(k, s, t, v, _)| (key(k, *s, *t), v.clone())).collect();
    let given: Vec<_> = cases
        .iter()
        .filter_map(|(k, s, _, v, given)| {
            let (t, value, kept) = (*given)?;
            Some((key(k, *s, t), if value { v.clone() } else { Vec::new() }, kept))
        })
        .collect();
    let filter = Some(FilterJob { level: 0, now_micros: 1_000_999_999 });
    let job = Job { runs: 1, snapshots: &[5], drop: true, bottommost: true, filter, ..Job::default() };
    let merge = merged(instance, &run, &job);
    let records = (0..merge.records()).map(|i| {
        let record = merge.record(i).unwrap();
        (merge.memory()[record.key].to_vec(), merge.memory()[record.value].to_vec(), record.kept)
    });
    assert_eq!(records.collect::<Vec<_>>(), given);
    let dropped = merge.dropped();
    assert_eq!((dropped.hidden, dropped.obsolete, dropped.filtered), (2, 2, 3));
    // Not told to ask, it removes nothing.
    let done = super::merge(merge.end(), &[blocks(&run, 90, 2)], &Job { runs: 1, ..Job::default() });
    assert!(done.entries == run);
}

#[test]
fn operands_of_one_user_key_and_stripe_become_their_sum() {
    use ValueType::{Deletion, Merge as Operand, Value};
    let Some(instance) = own("counters in the kernel", COUNTERS) else { return };
    let n = |n: u64| n.to_le_bytes().to_vec();
    // (user key, sequence number, type, value), and the value that is given with a snapshot at 5.
    type Case<'a> = (&'a [u8], u64, ValueType, Vec<u8>, Option<Vec<u8>>);
    let cases: &[Case<'_>] = &[
        (b"a", 9, Operand, n(1), Some(n(6))),
        (b"a", 8, Operand, n(2), None),
        (b"a", 6, Operand, n(3), None),
        (b"a", 5, Operand, n(10), Some(n(30))), // the snapshot sees these
        (b"a", 4, Operand, n(20), None),
        (b"a", 3, Value, n(100), Some(n(100))), // what a base is, resolution says
        (b"b", 9, Value, n(1), Some(n(1))),
        (b"b", 8, Operand, n(2), Some(n(2))), // hidden: nobody sums these
        (b"b", 7, Operand, n(3), Some(n(3))),
        (b"c", 9, Operand, b"abc".to_vec(), Some(n(5))),
        (b"c", 8, Operand, n(5), None),
        (b"d", 9, Operand, b"abc".to_vec(), Some(b"abc".to_vec())),
        (b"e", 9, Deletion, Vec::new(), Some(Vec::new())),
        (b"e", 8, Operand, n(u64::MAX), Some(n(u64::MAX))),
        (b"f", 9, Operand, n(u64::MAX), Some(n(1))), // around the end of the numbers
        (b"f", 8, Operand, n(2), None),
    ];
    let run: Entries = cases.iter().map(|(k, s, t, v, _)| (key(k, *s, *t), v.clone())).collect();
    let given: Entries = cases.iter().filter_map(|(k, s, t, _, v)| Some((key(k, *s, *t), v.clone()?))).collect();
    let job = Job { runs: 1, snapshots: &[5], combine: true, ..Job::default() };
    let merge = merged(instance, &run, &job);
    let records = (0..merge.records()).map(|i| {
        let record = merge.record(i).unwrap();
        (merge.memory()[record.key].to_vec(), merge.memory()[record.value].to_vec())
    });
    assert_eq!(records.collect::<Entries>(), given);
    assert_eq!((merge.dropped().combined, merge.dropped().hidden), (5, 0));
    // Not told to combine, it gives all as it is.
    let done = super::merge(merge.end(), &[blocks(&run, 90, 2)], &Job { runs: 1, ..Job::default() });
    assert!(done.entries == run);
}

/// With an order of its own, a program may meet a user key in other bytes. What the store makes of the versions behind
/// that one is not known here: a single delete, say, takes only one of them with it.
#[test]
fn operands_behind_their_user_key_in_other_bytes_stay_as_they_are() {
    use ValueType::{Merge as Operand, SingleDeletion, Value};
    let Some(instance) = own("an order, a filter and a merge of operands in the kernel", ALL) else { return };
    // (user key, sequence number, type, value), and the value that is given.
    type Case<'a> = (&'a [u8], u64, ValueType, &'a [u8], Option<&'a [u8]>);
    let cases: &[Case<'_>] = &[
        (b"K", 9, Value, b"value", Some(b"value")),
        (b"k", 8, Operand, b"b", Some(b"b")),
        (b"k", 7, Operand, b"a", Some(b"a")),
        (b"L", 9, SingleDeletion, b"", Some(b"")),
        (b"l", 8, Operand, b"b", Some(b"b")),
        (b"l", 7, Operand, b"a", Some(b"a")),
        (b"M", 9, Operand, b"c", Some(b"c")),
        (b"m", 8, Operand, b"b", Some(b"b")),
        (b"m", 7, Operand, b"a", Some(b"a")),
        (b"n", 9, Operand, b"c", Some(b"a,b,c")),
        (b"n", 8, Operand, b"b", None),
        (b"n", 7, Operand, b"a", None),
        (b"N", 6, Operand, b"z", Some(b"z")),
        (b"o", 9, Operand, &[b'c'; 40], Some(&[b'c'; 40])), // too long together
        (b"o", 8, Operand, &[b'b'; 30], Some(b"a,bbbbbbbbbbbbbbbbbbbbbbbbbbbbbb")),
        (b"o", 7, Operand, b"a", None),
    ];
    let run: Entries = cases.iter().map(|(k, s, t, v, _)| (key(k, *s, *t), v.to_vec())).collect();
    let given = cases.iter().filter_map(|(k, s, t, _, v)| Some((key(k, *s, *t), (*v)?.to_vec())));
    let job = Job { runs: 1, own_order: true, drop: true, combine: true, ..Job::default() };
    let done = merge(instance, &[blocks(&run, 90, 2)], &job);
    assert_eq!(done.entries, given.collect::<Entries>());
}

/// A key with more operands than a call has room for sums: what one call gave, the next one does not touch.
#[test]
fn operands_of_more_than_a_call_lose_nothing() {
    let Some(mut instance) = own("many operands in the kernel", COUNTERS) else { return };
    for runs in [1, 3, 20] {
        let count = 60_000u64;
        let stored: Vec<_> = (0..runs)
            .map(|run| {
                let mine = (0..count).rev().filter(|seq| seq % runs == run);
                let run: Entries = mine
                    .map(|seq| (key(b"counter", seq + 1, ValueType::Merge), (seq + 1).to_le_bytes().to_vec()))
                    .collect();
                blocks(&run, 4000, 16)
            })
            .collect();
        let job = Job { runs: runs as usize, combine: true, ..Job::default() };
        let done = merge(instance, &stored, &job);
        let number = |v: &[u8]| u64::from_le_bytes(*v.first_chunk().unwrap());
        let sum: u64 = done.entries.iter().map(|(_, v)| number(v)).sum();
        assert_eq!(sum, count * (count + 1) / 2, "{runs} runs");
        assert!((1..200).contains(&done.entries.len()), "{runs} runs: {} operands are left", done.entries.len());
        instance = done.instance;
    }
}

#[test]
fn a_users_function_that_might_not_end_is_refused() {
    if instance("a loop without end in a user's filter", 1 << 20).is_none() {
        return;
    }
    let refused = MergeObject::read("endless.o", ENDLESS).unwrap().check(driver(), 1 << 20).unwrap_err();
    assert!(refused.reason.contains("the kernel's verifier refuses the merge program"), "{refused}");
    assert!(refused.log.contains("processed "), "{}", refused.log);
    println!("{refused}");
}

#[test]
fn a_users_function_that_takes_its_time_makes_no_call_long() {
    let Some(instance) = own("a slow filter in the kernel", SLOW) else { return };
    let mut rng = fastrand::Rng::with_seed(3);
    let runs = random_runs(&mut rng, 2, 3000, 20);
    let stored: Vec<_> = runs.iter().map(|run| blocks(run, 4000, 16)).collect();
    let job = Job { runs: 2, filter: Some(FilterJob::default()), ..Job::default() };
    let cpu = cpu_nanos();
    let done = merge(instance, &stored, &job);
    assert!(done.entries == sorted(&runs));
    let each = Duration::from_nanos((cpu_nanos() - cpu) / done.calls);
    println!("{} calls of {each:?}", done.calls);
    // All of it in one call takes more than a tenth of a second.
    let counts = std::env::var_os("ROCKMILL_NO_TIMES").is_none();
    assert!(!counts || each < Duration::from_millis(50), "{each:?} of CPU time for each call");
}

/// The loop of `examples/sums.bpf.c`: it merges as a sort, gives records again where a call had no room for more, and
/// goes on where blocks come late.
#[test]
fn a_loop_of_its_own_merges_as_a_sort() {
    let Some(mut instance) = own("a merge loop of its own in the kernel", SUMS) else { return };
    for seed in 0..40 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let count = *rng.choice(&[0, 1, 2, 5, 17, 40]).unwrap();
        let size = rng.usize(1..300);
        let runs = random_runs(&mut rng, count, size, 60);
        let (bytes, interval) = (rng.usize(50..5000), rng.usize(1..20));
        let stored: Vec<_> = runs.iter().map(|run| blocks(run, bytes, interval)).collect();
        let mut all = sorted(&runs);
        let user = |k: &[u8]| k[..k.len() - 8].to_vec();
        let end = (seed % 2 == 0 && all.len() > 20).then(|| user(&all[all.len() / 2].0));
        if let Some(end) = &end {
            all.retain(|(k, _)| user(k) < *end);
        }
        let end = end.as_deref().map(|e| (e, 0));
        let job = Job { runs: count, skip: *rng.choice(&[0, 4, 5]).unwrap(), end, ..Job::default() };
        let done = merge(instance, &stored, &job);
        assert!(done.entries == all, "seed {seed}: {count} runs of {size}");
        instance = done.instance;
    }
}

#[test]
fn a_loop_of_its_own_sums_operands_and_the_value_below_them() {
    use ValueType::{Deletion, Merge as Operand, SingleDeletion, Value};
    let Some(instance) = own("counters in a merge loop of its own", SUMS) else { return };
    let n = |n: u64| n.to_le_bytes().to_vec();
    // (user key, sequence number, type, value), and what is given with a snapshot at 5: its type and value.
    type Case<'a> = (&'a [u8], u64, ValueType, Vec<u8>, Option<(ValueType, Vec<u8>)>);
    let cases: &[Case<'_>] = &[
        (b"a", 9, Operand, n(1), Some((Value, n(106)))), // a value now
        (b"a", 8, Operand, n(5), None),
        (b"a", 7, Value, n(100), None),
        (b"a", 6, Value, n(7), Some((Value, n(7)))), // hidden, which the store finds
        (b"b", 9, Operand, n(1), Some((Operand, n(3)))),
        (b"b", 8, Operand, n(2), None),
        (b"b", 5, Value, n(100), Some((Value, n(100)))), // the snapshot sees it
        (b"c", 9, Operand, n(1), Some((Operand, n(1)))),
        (b"c", 8, Deletion, Vec::new(), Some((Deletion, Vec::new()))),
        (b"d", 9, SingleDeletion, Vec::new(), Some((SingleDeletion, Vec::new()))),
        (b"d", 8, Operand, n(1), Some((Operand, n(1)))), // for the store
        (b"d", 7, Operand, n(2), Some((Operand, n(2)))),
        (b"e", 9, Operand, b"abc".to_vec(), Some((Value, n(0)))),
        (b"e", 8, Value, b"none".to_vec(), None),
        (b"f", 9, Operand, n(u64::MAX), Some((Operand, n(1)))),
        (b"f", 8, Operand, n(2), None),
        (b"g", 9, Operand, n(4), Some((Operand, n(4)))),
    ];
    let run: Entries = cases.iter().map(|(k, s, t, v, _)| (key(k, *s, *t), v.clone())).collect();
    let given = cases.iter().filter_map(|(k, s, _, _, given)| given.clone().map(|(t, v)| (key(k, *s, t), v)));
    let job = Job { runs: 1, snapshots: &[5], combine: true, ..Job::default() };
    let merge = merged(instance, &run, &job);
    let records = (0..merge.records()).map(|i| {
        let record = merge.record(i).unwrap();
        (merge.memory()[record.key].to_vec(), merge.memory()[record.value].to_vec())
    });
    assert_eq!(records.collect::<Entries>(), given.collect::<Entries>());
    assert_eq!(merge.dropped(), rockmill_kernel::Dropped { combined: 5, ..Default::default() });
    // Not told to combine, it gives all as it is.
    let done = super::merge(merge.end(), &[blocks(&run, 90, 2)], &Job { runs: 1, ..Job::default() });
    assert!(done.entries == run);
}

#[test]
fn a_loop_of_its_own_that_does_not_get_on_is_given_up() {
    let Some(mut instance) = own("a merge loop that does not get on", IDLE) else { return };
    for snapshots in [&[][..], &[5]] {
        let mut merge = Merge::begin(instance, &Job { runs: 1, snapshots, ..Job::default() }).unwrap();
        let run = vec![(key(b"a", 1, ValueType::Value), b"v".to_vec())];
        for block in blocks(&run, 90, 2) {
            let (first, restart, end) = BlockLayout::parse(&block).unwrap().entries_place(&block).unwrap();
            merge.give(0, &block, &[], BlockPlace { first, end, restart, whole: false, damaged: false }).unwrap();
        }
        let calls = (0..1000).take_while(|_| matches!(merge.call().unwrap(), Status::Again | Status::Dry(0))).count();
        assert_eq!(calls, 100, "{snapshots:?}");
        assert_eq!(merge.call().unwrap(), Status::HandOver("the program makes no progress"));
        instance = merge.end();
    }
}

/// What the verifier goes over for each program, and how long that takes: once for each arena, whatever the number of
/// runs of a merge (the paper on Resystance has a program for each number). `--nocapture` shows the table.
#[test]
fn the_verifier_goes_over_few_instructions_of_each_program() {
    let Some(built_in) = instance("what the verifier goes over", 1 << 20) else { return };
    drop(built_in);
    println!("| program | instructions | steps of the verifier | ms |\n|---|---|---|---|");
    let own = OWN.into_iter().chain(OWN_LOOPS).filter(|(name, _)| name.starts_with("examples/"));
    let own = own.map(|(name, object)| (name, Arc::new(MergeObject::read(name, object).unwrap())));
    for (name, object) in [("built in", MergeObject::built_in().unwrap())].into_iter().chain(own) {
        let started = Instant::now();
        let instance = object.check(driver(), 1 << 20).unwrap_or_else(|e| panic!("{e}\n{}", e.log));
        let (took, steps) = (started.elapsed(), instance.verified_instructions().unwrap());
        let length = object.program(driver()).unwrap().instructions().len();
        println!("| {name} | {length} | {steps} | {} |", took.as_millis());
        // The kernel refuses a program at a million.
        assert!(steps < 500_000, "{name}: {steps}");
    }
}

#[test]
fn both_drivers_are_in_one_object() {
    for (name, object) in OWN_LOOPS {
        let object = MergeObject::read(name, object).unwrap();
        for driver in Driver::ALL {
            assert!(object.has_own_loop() && object.program(driver).is_ok(), "{name} {driver}");
        }
    }
    for (name, object) in OWN {
        let object = MergeObject::read(name, object).unwrap();
        for driver in Driver::ALL {
            assert!(object.program(driver).unwrap().instructions().len() > 500, "{name} {driver}");
        }
    }
}
