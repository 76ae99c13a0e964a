//! The measurements of a function, and the table that shows them. `compare/`, for functions of other crates, also uses
//! this file as a module.

use std::hint::black_box;
use std::time::Instant;

/// Number of lookups timed together.
const LOOKUPS: usize = 2_000_000;

/// Numbers of keys: those on the command line, or else three.
pub fn counts() -> Vec<usize> {
    let counts: Vec<usize> = std::env::args().skip(1).filter_map(|arg| arg.parse().ok()).collect();
    if counts.is_empty() { vec![10_000, 1_000_000, 10_000_000] } else { counts }
}

/// The table's head.
pub fn print_head() {
    println!(
        "| kind | keys | build, 1 thread, ns/key | 2 threads | bits/key | slots/key | alone, ns | in a loop | many |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
}

/// The input for building functions.
pub struct Keys {
    /// Random, and the same in each run.
    pub hashes: Vec<u64>,
    /// Some of them, in the order of the lookups.
    looked_up: Vec<u64>,
}

/// The costs of building a function.
pub struct Built<'a> {
    pub name: &'a str,
    /// Nanoseconds with one thread and with two.
    pub nanos: [f64; 2],
    pub bits: usize,
    pub slots: usize,
}

impl Keys {
    pub fn new(count: usize) -> Self {
        let mut rng = fastrand::Rng::with_seed(13);
        let hashes: Vec<u64> = (0..count).map(|_| rng.u64(..)).collect();
        let looked_up = (0..LOOKUPS).map(|_| *rng.choice(&hashes).expect("keys")).collect();
        Self { hashes, looked_up }
    }

    /// The fewest nanoseconds of several builds with one thread and with two. The caller keeps the function built last,
    /// with one thread.
    pub fn build(&self, mut build: impl FnMut(&[u64], usize)) -> [f64; 2] {
        let times = (20_000_000 / self.hashes.len()).clamp(1, 10);
        let two = fastest(times, || build(&self.hashes, 2));
        [fastest(times, || build(&self.hashes, 1)), two]
    }

    /// Measures the lookups of a function, and prints its row.
    pub fn print_row(&self, built: &Built<'_>, slot: impl Fn(u64) -> usize, many: impl Fn(&[u64], &mut [usize])) {
        let keys = self.hashes.len() as f64;
        let [one, two] = built.nanos.map(|nanos| nanos / keys);
        let mut seen = vec![false; built.slots];
        for &hash in &self.hashes {
            assert!(!std::mem::replace(&mut seen[slot(hash)], true), "two keys have one slot");
        }

        let lookups = self.looked_up.len() as f64;
        let alone = fastest(3, || {
            // A slot is below 2^60, so this adds only the dependence.
            let _: usize = self.looked_up.iter().fold(0, |last, &hash| slot(black_box(hash + (last as u64 >> 60))));
        });
        let looped = fastest(3, || {
            black_box(self.looked_up.iter().map(|&hash| slot(hash)).fold(0, usize::wrapping_add));
        });
        let mut slots = [0; 1024];
        let all = fastest(3, || {
            for some in self.looked_up.chunks(slots.len()) {
                many(some, &mut slots);
                black_box(&slots);
            }
        });
        println!(
            "| {} | {} | {one:.1} | {two:.1} | {:.2} | {:.3} | {:.1} | {:.1} | {:.1} |",
            built.name,
            self.hashes.len(),
            built.bits as f64 / keys,
            built.slots as f64 / keys,
            alone / lookups,
            looped / lookups,
            all / lookups
        );
    }
}

/// The fewest nanoseconds of several calls.
fn fastest(times: usize, mut work: impl FnMut()) -> f64 {
    let mut least = f64::MAX;
    for _ in 0..times {
        let start = Instant::now();
        work();
        least = least.min(start.elapsed().as_nanos() as f64);
    }
    least
}
