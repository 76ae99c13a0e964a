//! Nanoseconds for each insert and lookup of the memtable, compared with crossbeam's skip map.
//!
//! `cargo run --release --example memtable_bench [entries] [value bytes]`

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use crossbeam_skiplist::SkipMap;
use rockmill::internals::{GetContext, MemTable};
use rockmill_format::key::{InternalKey, MAX_SEQUENCE, VALUE_TYPE_FOR_SEEK};
use rockmill_format::{InternalKeyComparator, ValueType};

const ARENA_BLOCK: usize = 1 << 20;

/// db_bench's keys: the number as eight big-endian bytes, padded with `0` to 16.
fn key(i: u64) -> [u8; 16] {
    let mut k = [b'0'; 16];
    k[..8].copy_from_slice(&i.to_be_bytes());
    k
}

/// Wall time and, if the kernel reports it, CPU time of the calling thread: on a busy machine, the latter is the
/// relevant one.
struct Clock {
    wall: Instant,
    cpu: Option<u64>,
}

impl Clock {
    fn start() -> Self {
        Self { cpu: Self::cpu_ns(), wall: Instant::now() }
    }

    fn cpu_ns() -> Option<u64> {
        std::fs::read_to_string("/proc/thread-self/schedstat").ok()?.split(' ').next()?.parse().ok()
    }

    fn report(self, what: &str, n: usize) {
        let wall = self.wall.elapsed().as_nanos() as f64 / n as f64;
        let cpu = Self::cpu_ns().zip(self.cpu).map(|(now, then)| (now - then) as f64 / n as f64);
        println!("{what:<40} {wall:>8.0} ns wall {:>8.0} ns CPU", cpu.unwrap_or(f64::NAN));
    }
}

fn memtable() -> Arc<MemTable> {
    Arc::new(MemTable::new(1, InternalKeyComparator::default(), ARENA_BLOCK))
}

fn main() {
    let mut args = std::env::args().skip(1).map(|a| a.parse().expect("a number"));
    let n: usize = args.next().unwrap_or(500_000);
    let value = vec![b'v'; args.next().unwrap_or(100)];
    println!("{n} entries, keys of 16 bytes, values of {} bytes", value.len());
    let mut rng = fastrand::Rng::with_seed(1);
    let random: Vec<u64> = (0..n).map(|_| rng.u64(0..n as u64)).collect();

    let m = memtable();
    let start = Clock::start();
    for (seq, &i) in random.iter().enumerate() {
        m.add(seq as u64 + 1, ValueType::Value, &key(i), &value);
    }
    start.report("memtable: insert, random", n);
    println!("{:<44} {:>8} MiB", "memtable: memory", m.memory_usage() >> 20);

    let mut found = 0;
    let start = Clock::start();
    for _ in 0..n {
        let k = key(rng.u64(0..n as u64));
        let ikey = InternalKey::new(&k, MAX_SEQUENCE, VALUE_TYPE_FOR_SEEK);
        let mut ctx = GetContext::new(&k);
        m.get(ikey.as_bytes(), &mut ctx);
        found += usize::from(black_box(ctx.is_done()));
    }
    start.report("memtable: get, random", n);
    println!("{:<44} {found:>8}", "memtable: found");

    let mut it = m.iter();
    let start = Clock::start();
    it.seek_to_first();
    let mut bytes = 0;
    while it.valid() {
        bytes += it.key().len() + it.value().len();
        it.next();
    }
    start.report("memtable: iterate", n);
    black_box(bytes);

    let m = memtable();
    let start = Clock::start();
    for i in 0..n as u64 {
        m.add(i + 1, ValueType::Value, &key(i), &value);
    }
    start.report("memtable: insert, sequential", n);

    for threads in [2, 4] {
        let m = memtable();
        let start = Clock::start();
        std::thread::scope(|s| {
            for t in 0..threads {
                let (m, random, value) = (&m, &random, &value);
                s.spawn(move || {
                    for j in (t..n).step_by(threads) {
                        m.add(j as u64 + 1, ValueType::Value, &key(random[j]), value);
                    }
                });
            }
        });
        // The CPU time would be the waiting thread's, which is not a useful figure.
        Clock { cpu: None, ..start }.report(&format!("memtable: insert, random, {threads} threads"), n);
    }

    let map: SkipMap<[u8; 24], Vec<u8>> = SkipMap::new();
    let internal = |i: u64, seq: u64| {
        let mut k = [0; 24];
        k[..16].copy_from_slice(&key(i));
        k[16..].copy_from_slice(&(u64::MAX - seq).to_be_bytes());
        k
    };
    let start = Clock::start();
    for (seq, &i) in random.iter().enumerate() {
        map.insert(internal(i, seq as u64 + 1), value.clone());
    }
    start.report("crossbeam-skiplist: insert, random", n);
    let start = Clock::start();
    for _ in 0..n {
        let k = internal(rng.u64(0..n as u64), u64::MAX);
        let value = map.lower_bound(std::ops::Bound::Included(&k)).map(|e| e.value().clone());
        black_box(value);
    }
    start.report("crossbeam-skiplist: get, random", n);
}
