//! The time of an index merge, and of lookups and scans before and after it.
//!
//! `cargo run --release --example index_merge_bench [millions] [memtables] [threads] [keys: number, user, order]`
//!
//! Values have 20 bytes, like addresses in a log. Keys have 24 bytes: `number` starts with a random number of eight
//! bytes, `user` is `user` and decimal digits, `order` uses an order that has no prefixes.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use rockmill::internals::{GetContext, MemTable, MemTableFilter, MergePlan, MergedMemTable, SealedTable};
use rockmill_format::comparator::FnComparator;
use rockmill_format::key::{InternalKey, MAX_SEQUENCE, VALUE_TYPE_FOR_SEEK};
use rockmill_format::{InternalKeyComparator, ValueType};

/// Repetitions of each measurement.
const RUNS: usize = 5;
/// Lookups of each run.
const LOOKUPS: usize = 300_000;

fn key(i: u64, kind: &str) -> [u8; 24] {
    let mut key = [b'0'; 24];
    if kind == "user" {
        key[..4].copy_from_slice(b"user");
        key[4..].copy_from_slice(format!("{i:020}").as_bytes());
    } else {
        key[..8].copy_from_slice(&i.to_be_bytes());
    }
    key
}

/// Nanoseconds for each of `n`, of the fastest of several runs, because other processes use the machine too.
fn report(what: &str, n: usize, mut run: impl FnMut()) {
    let time = |_| {
        let start = Instant::now();
        run();
        start.elapsed().as_nanos()
    };
    let best = (0..RUNS).map(time).min().unwrap_or(0);
    println!("{what:<44} {:>8.1} ns", best as f64 / n as f64);
}

fn lookups(what: &str, tables: &[SealedTable], n: u64, present: bool, kind: &str) {
    let mut rng = fastrand::Rng::with_seed(7);
    report(what, LOOKUPS, || {
        let mut found = 0;
        for _ in 0..LOOKUPS {
            // Keys are even.
            let k = key(rng.u64(0..n) * 2 + u64::from(!present), kind);
            let ikey = InternalKey::new(&k, MAX_SEQUENCE, VALUE_TYPE_FOR_SEEK);
            let mut ctx = GetContext::new(&k);
            for table in tables {
                table.get(ikey.as_bytes(), &mut ctx);
                if ctx.is_done() {
                    break;
                }
            }
            found += usize::from(black_box(ctx.is_done()));
        }
        assert_eq!(found, if present { LOOKUPS } else { 0 });
    });
}

fn scan(what: &str, table: &SealedTable) {
    report(what, table.num_entries() as usize, || {
        let (mut it, mut bytes) = (table.iter(), 0);
        it.seek_to_first();
        while it.valid() {
            bytes += it.key().len() + it.value().len();
            it.next();
        }
        black_box(bytes);
    });
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, or: f64| args.get(at).map_or(or, |a| a.parse().expect("a number"));
    let (n, count, threads) = ((number(0, 0.5) * 1e6) as u64, number(1, 2.0) as u64, number(2, 1.0) as usize);
    let kind = args.get(3).map_or("number", |a| a);
    let cmp = if kind == "order" {
        InternalKeyComparator::new(Arc::new(FnComparator::new("bench", Box::new(|a: &[u8], b: &[u8]| a.cmp(b)))))
    } else {
        InternalKeyComparator::default()
    };
    println!("{n} entries in {count} memtables, {threads} threads, keys: {kind}");

    let mut order: Vec<u64> = (0..n).collect();
    fastrand::Rng::with_seed(1).shuffle(&mut order);
    let fill = |id: u64, of: &mut dyn Iterator<Item = (usize, &u64)>| {
        let table = MemTable::new(id, cmp.clone(), 1 << 20);
        for (seq, i) in of {
            table.add(seq as u64 + 1, ValueType::Value, &key(i * 2, kind), &[b'v'; 20]);
        }
        SealedTable::Plain(Arc::new(table))
    };
    let each = n.div_ceil(count) as usize;
    let inputs: Vec<SealedTable> = (0..count)
        .rev()
        .map(|id| fill(id, &mut order.iter().enumerate().skip(id as usize * each).take(each)))
        .collect();
    let one = fill(1, &mut order.iter().enumerate());

    let build = |inputs: &[SealedTable]| {
        let filter = MemTableFilter::default();
        let plan = MergePlan {
            visible: MAX_SEQUENCE,
            snapshots: &[],
            threads,
            filter: &filter,
            manager: None,
            stop: &|| false,
        };
        SealedTable::Merged(Arc::new(MergedMemTable::build(inputs, &plan).expect("a merge").expect("its result").0))
    };
    report("merge", n as usize, || drop(black_box(build(&inputs))));
    let merged = build(&inputs);
    if count > 2 {
        let (new, old) = inputs.split_at(inputs.len() / 2);
        let halves = [build(new), build(old)];
        report("merge of two merged", n as usize, || drop(black_box(build(&halves))));
    }
    let SealedTable::Merged(table) = &merged else { unreachable!("it was merged") };
    println!("{:<44} {:>8.2}", "own bytes an entry", table.own_memory_usage() as f64 / n as f64);
    println!("{:<44} {:>8.2}", "skip list bytes an entry", one.memory_usage() as f64 / n as f64);

    for (what, tables) in
        [("one skip list", &[one][..]), ("the skip lists", &inputs[..]), ("merged", std::slice::from_ref(&merged))]
    {
        lookups(&format!("{what}: get, present"), tables, n, true, kind);
        lookups(&format!("{what}: get, absent"), tables, n, false, kind);
        scan(&format!("{what}: scan (the first)"), &tables[0]);
    }
}
