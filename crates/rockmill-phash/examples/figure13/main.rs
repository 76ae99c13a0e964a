//! What functions cost, by kind and number of keys: the comparison of CompassDB's Figure 13, with lookups.
//!
//!     cargo run --locked --release -p rockmill-phash --example figure13 -- [KEYS...]
//!
//! prints a table in Markdown; without numbers of keys, of 10,000, 1 million and 10 million. Keys are random 64-bit
//! hashes. Each build is repeated (ten times for few keys, once for 100 million) and the fastest counts. Lookups are of
//! random keys that are there: *alone*, each waits for the one before it; *in a loop*, independent calls of `slot`;
//! *many*, `slots` with 1,024 at a time. Every slot is checked to have one key.

use std::hint::black_box;
use std::time::Instant;

use rockmill_phash::{Builder, Kind, PerfectHash};

/// Lookups that are timed at once.
const LOOKUPS: usize = 2_000_000;

fn main() {
    let counts: Vec<usize> = std::env::args().skip(1).filter_map(|arg| arg.parse().ok()).collect();
    println!(
        "| kind | keys | build, 1 thread, ns/key | 2 threads | bits/key | slots/key | alone, ns | in a loop | many |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for keys in if counts.is_empty() { vec![10_000, 1_000_000, 10_000_000] } else { counts } {
        let mut rng = fastrand::Rng::with_seed(13);
        let hashes: Vec<u64> = (0..keys).map(|_| rng.u64(..)).collect();
        let looked_up: Vec<u64> = (0..LOOKUPS).map(|_| *rng.choice(&hashes).expect("keys")).collect();
        for kind in Kind::ALL {
            row(kind, &hashes, &looked_up);
        }
    }
}

fn row(kind: Kind, hashes: &[u64], looked_up: &[u64]) {
    let keys = hashes.len() as f64;
    let times = (20_000_000 / hashes.len()).clamp(1, 10);
    let mut bytes = Vec::new();
    let [one, two] = [1, 2].map(|threads| {
        let builder = Builder::new().kind(kind).threads(threads);
        fastest(times, || bytes = builder.build(hashes).expect("random hashes have a function")) / keys
    });
    let function = PerfectHash::open(&bytes[..]).expect("what was built opens");

    let mut seen = vec![false; function.slot_count()];
    for &hash in hashes {
        assert!(!std::mem::replace(&mut seen[function.slot(hash)], true), "two keys have one slot");
    }

    let lookups = looked_up.len() as f64;
    let alone = fastest(3, || {
        // A slot is below 2^60, so that nothing is added but the dependence.
        let _: usize = looked_up.iter().fold(0, |last, &hash| function.slot(black_box(hash + (last as u64 >> 60))));
    });
    let looped = fastest(3, || {
        black_box(looked_up.iter().map(|&hash| function.slot(hash)).fold(0, usize::wrapping_add));
    });
    let mut slots = [0; 1024];
    let many = fastest(3, || {
        for some in looked_up.chunks(slots.len()) {
            function.slots(some, &mut slots);
            black_box(&slots);
        }
    });
    println!(
        "| {} | {} | {one:.1} | {two:.1} | {:.2} | {:.3} | {:.1} | {:.1} | {:.1} |",
        kind.name(),
        hashes.len(),
        8.0 * bytes.len() as f64 / keys,
        function.slot_count() as f64 / keys,
        alone / lookups,
        looped / lookups,
        many / lookups
    );
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
