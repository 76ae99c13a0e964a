//! Checks the operations of every workload with a store that only records them.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::runner::run_threads;
use crate::store::{Sought, Store};

/// Remembers a digest of all operations; the order within a thread counts, the order among threads does not.
#[derive(Default)]
struct NoteTaker {
    digest: AtomicU64,
    operations: AtomicU64,
    first: Mutex<Vec<String>>,
}

struct Notes<'a> {
    store: &'a NoteTaker,
    digest: u64,
}

impl Notes<'_> {
    fn note(&mut self, what: &str, key: &[u8], rest: &[u8]) {
        for byte in what.bytes().chain(key.iter().copied()).chain(rest.iter().copied()) {
            self.digest = (self.digest ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        self.store.operations.fetch_add(1, Ordering::Relaxed);
        let mut first = self.store.first.lock().expect("no panics");
        if first.len() < 40 {
            first.push(format!("{what} {} {}", key.escape_ascii(), rest.len()));
        }
    }
}

impl Drop for Notes<'_> {
    fn drop(&mut self) {
        self.store.digest.fetch_add(self.digest, Ordering::Relaxed);
    }
}

impl Store for NoteTaker {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(Notes { store: self, digest: 0xcbf2_9ce4_8422_2325 }))
    }
    fn flush(&self) -> Result<()> {
        Ok(())
    }
    fn compact(&self) -> Result<()> {
        Ok(())
    }
    fn wait_for_compaction(&self) -> Result<()> {
        Ok(())
    }
    fn stats(&self) -> Result<String> {
        Ok(String::new())
    }
    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

impl Session for Notes<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) {
        self.note("put", key, value);
    }
    fn delete(&mut self, key: &[u8]) {
        self.note("delete", key, &[]);
    }
    fn merge(&mut self, key: &[u8], operand: &[u8]) -> Result<()> {
        self.note("merge", key, operand);
        Ok(())
    }
    fn commit(&mut self) -> Result<()> {
        self.note("commit", &[], &[]);
        Ok(())
    }
    fn get(&mut self, key: &[u8], value: &mut dyn FnMut(&[u8])) -> Result<bool> {
        self.note("get", key, &[]);
        // Some keys exist, always the same ones.
        let there = key.iter().map(|b| u64::from(*b)).sum::<u64>() % 4 > 0;
        if there {
            value(&[7; 50]);
        }
        Ok(there)
    }
    fn multi_get(&mut self, keys: &[Vec<u8>]) -> Result<(u64, u64)> {
        keys.iter().for_each(|key| self.note("multiget", key, &[]));
        Ok((1, 50))
    }
    fn seek(&mut self, key: &[u8], entries: u64) -> Result<Sought> {
        self.note("seek", key, &entries.to_le_bytes());
        Ok(Sought { found: true, entries, bytes: 66 * entries })
    }
    fn scan(&mut self, reverse: bool, visit: &mut dyn FnMut(u64) -> Result<bool>) -> Result<()> {
        self.note(if reverse { "scan back" } else { "scan" }, &[], &[]);
        while visit(66)? {}
        Ok(())
    }
}

fn flags(seed: u64, threads: usize) -> Flags {
    Flags {
        num: 500,
        seed,
        threads,
        batch_size: 3,
        value_size: 40,
        seek_nexts: 4,
        mix_get_ratio: 0.5,
        mix_put_ratio: 0.3,
        mix_seek_ratio: 0.2,
        key_dist_a: 0.002_312,
        key_dist_b: 0.3467,
        keyrange_num: 5,
        keyrange_dist_a: 14.18,
        keyrange_dist_b: -2.917,
        keyrange_dist_c: 0.0164,
        keyrange_dist_d: -0.080_82,
        fieldcount: 3,
        fieldlength: 20,
        quiet: true,
        ..Flags::default()
    }
}

/// The digest of a workload's operations, and the first of them.
fn operations(workload: Workload, flags: &Flags) -> (u64, u64, Vec<String>) {
    let store = NoteTaker::default();
    run_threads(workload, flags, &store, flags.seed + 1, "test").expect("it runs");
    let first = store.first.lock().expect("no panics").clone();
    (store.digest.load(Ordering::Relaxed), store.operations.load(Ordering::Relaxed), first)
}

fn threaded() -> impl Iterator<Item = Workload> {
    Workload::ALL.iter().map(|(w, _)| *w).filter(|w| w.is_threaded())
}

/// All except those with a writer that runs until the readers end.
fn repeatable() -> impl Iterator<Item = Workload> {
    threaded().filter(|w| w.thread_count(1) == 1)
}

#[test]
fn the_same_seed_gives_the_same_operations() {
    for workload in repeatable() {
        for threads in [1, 3] {
            let (digest, count, first) = operations(workload, &flags(42, threads));
            assert!(count > 0, "{}: no operations", workload.name());
            let (again, ..) = operations(workload, &flags(42, threads));
            assert_eq!(digest, again, "{} with {threads} threads: {first:?}", workload.name());
        }
    }
}

#[test]
fn another_seed_gives_other_operations() {
    // These three have nothing to draw.
    let fixed = [Workload::FillSeq, Workload::ReadSeq, Workload::ReadReverse];
    for workload in repeatable().filter(|w| !fixed.contains(w)) {
        let (a, b) = (operations(workload, &flags(42, 1)), operations(workload, &flags(43, 1)));
        let same = a.0 == b.0;
        // A load inserts the same records for every seed.
        assert_eq!(same, workload == Workload::YcsbLoad, "{}: {:?}", workload.name(), a.2);
    }
}

/// The operations of a seed are part of a figure's meaning: a change must be intended, and mentioned in the changelog.
#[test]
fn operations_are_those_of_earlier_versions() {
    let digests: Vec<String> = repeatable()
        .map(|w| {
            let (digest, count, _) = operations(w, &flags(42, 1));
            format!("{} {count} {digest:016x}", w.name())
        })
        .collect();
    let known = include_str!("workload_digests.txt");
    assert_eq!(digests.join("\n"), known.trim(), "left: now, right: src/workload_digests.txt");
}

#[test]
fn ycsb_mixes_operations_as_its_workloads_say() {
    let f = Flags { num: 2000, operationcount: 20_000, requestdistribution: String::new(), ..flags(1, 2) };
    let shares = |w: Workload| {
        let store = NoteTaker::default();
        let (record, ..) = run_threads(w, &f, &store, 5, "test").expect("it runs");
        assert_eq!(record.ops, 20_000, "{}", w.name());
        OpKind::ALL.map(|k| (100.0 * record.of_kind(k) as f64 / record.ops as f64).round() as u32)
    };
    let of = |all: [u32; 10], kind: OpKind| all[kind as usize];
    let near = |share: u32, wanted: u32| share.abs_diff(wanted) <= 1;
    let a = shares(Workload::YcsbA);
    assert!(near(of(a, OpKind::Read), 50) && near(of(a, OpKind::Update), 50), "{a:?}");
    let b = shares(Workload::YcsbB);
    assert!(near(of(b, OpKind::Read), 95) && near(of(b, OpKind::Update), 5), "{b:?}");
    assert_eq!(of(shares(Workload::YcsbC), OpKind::Read), 100);
    let d = shares(Workload::YcsbD);
    assert!(near(of(d, OpKind::Read), 95) && near(of(d, OpKind::Insert), 5), "{d:?}");
    let e = shares(Workload::YcsbE);
    assert!(near(of(e, OpKind::Scan), 95) && near(of(e, OpKind::Insert), 5), "{e:?}");
    let f = shares(Workload::YcsbF);
    assert!(near(of(f, OpKind::Read), 50) && near(of(f, OpKind::Update), 50), "{f:?}");
}

#[test]
fn nutanix_mixes_operations_as_its_name_says() {
    let store = NoteTaker::default();
    let f = Flags { reads: 20_000, minscanlength: 2, maxscanlength: 9, ..flags(1, 2) };
    let (record, ..) = run_threads(Workload::Nutanix, &f, &store, 5, "test").expect("it runs");
    let share = |kind| (100.0 * record.of_kind(kind) as f64 / record.ops as f64).round() as u64;
    let all = [OpKind::Write, OpKind::Read, OpKind::Scan].map(share);
    assert!(all.iter().zip([57, 41, 2]).all(|(share, wanted)| share.abs_diff(wanted) <= 1), "{all:?}");
    let mean = record.scanned as f64 / record.of_kind(OpKind::Scan) as f64;
    assert!((5.0..6.0).contains(&mean), "{mean}");
}

#[test]
fn ycsb_loads_every_record_once_whatever_the_threads() {
    let (one, three) = (flags(1, 1), flags(1, 3));
    let keys = |f: &Flags| {
        let store = NoteTaker::default();
        run_threads(Workload::YcsbLoad, &Flags { num: 12, ..f.clone() }, &store, 5, "test").expect("it runs");
        let mut all = store.first.into_inner().expect("no panics");
        all.retain(|n| n.starts_with("put"));
        all.sort();
        all
    };
    assert_eq!(keys(&one).len(), 12);
    assert_eq!(keys(&one), keys(&three));
    assert!(keys(&one).iter().all(|k| k.starts_with("put user")));
}

#[test]
fn a_warm_up_is_not_counted() {
    let f = Flags { warmup: 1, reads: 50, ..flags(1, 2) };
    let store = NoteTaker::default();
    let (record, ..) = run_threads(Workload::ReadRandom, &f, &store, 5, "test").expect("it runs");
    assert_eq!(record.ops, 100);
    assert!(store.operations.into_inner() > 1000, "the warm-up read");
    assert!(record.elapsed < Duration::from_secs(1), "{:?}", record.elapsed);
}
