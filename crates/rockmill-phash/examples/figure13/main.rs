//! What functions cost, by kind and number of keys: the comparison of CompassDB's Figure 13, with lookups.
//!
//!     cargo run --locked --release -p rockmill-phash --example figure13 -- [KEYS...]
//!
//! prints a table in Markdown; without numbers of keys, of 10,000, 1 million and 10 million. Keys are random 64-bit
//! hashes. Each build is repeated (ten times for few keys, once for 100 million) and the fastest counts. Lookups are of
//! random keys that are there: *alone*, each waits for the one before it; *in a loop*, independent calls of `slot`;
//! *many*, `slots` with 1,024 at a time. Every slot is checked to have one key. PTHash stands beside the crate's own
//! functions.

mod pthash;

use std::hint::black_box;
use std::time::Instant;

use pthash::{PtHash, SETTINGS};
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
        let times = (20_000_000 / keys).clamp(1, 10);
        for kind in Kind::ALL {
            let mut bytes = Vec::new();
            let built = [2, 1].map(|threads| {
                let builder = Builder::new().kind(kind).threads(threads);
                fastest(times, || bytes = builder.build(&hashes).expect("random hashes have a function"))
            });
            let function = PerfectHash::open(&bytes[..]).expect("what was built opens");
            let many = |some: &[u64], slots: &mut [usize]| function.slots(some, slots);
            let bits = 8 * bytes.len();
            let slots = function.slot_count();
            row(kind.name(), &hashes, &looked_up, built, bits, slots, |hash| function.slot(hash), many);
        }
        for setting in SETTINGS {
            let mut function = None;
            // Measured is the last, of one part.
            let built = [2, 1].map(|t| fastest(times, || function = Some(PtHash::build(setting, &hashes, t))));
            let function = function.expect("built");
            let slot = |hash| function.slot(hash);
            let many = |some: &[u64], slots: &mut [usize]| {
                slots.iter_mut().zip(some).for_each(|(slot, &hash)| *slot = function.slot(hash));
            };
            row(setting.name, &hashes, &looked_up, built, function.bits(), keys, slot, many);
        }
    }
}

/// Measures the lookups of a function, which took `built` to build with two threads and with one.
#[expect(clippy::too_many_arguments, reason = "all that a function is here")]
fn row(
    name: &str,
    hashes: &[u64],
    looked_up: &[u64],
    built: [f64; 2],
    bits: usize,
    slot_count: usize,
    slot: impl Fn(u64) -> usize,
    many: impl Fn(&[u64], &mut [usize]),
) {
    let keys = hashes.len() as f64;
    let [two, one] = built.map(|nanos| nanos / keys);
    let mut seen = vec![false; slot_count];
    for &hash in hashes {
        assert!(!std::mem::replace(&mut seen[slot(hash)], true), "two keys have one slot");
    }

    let lookups = looked_up.len() as f64;
    let alone = fastest(3, || {
        // A slot is below 2^60, so that nothing is added but the dependence.
        let _: usize = looked_up.iter().fold(0, |last, &hash| slot(black_box(hash + (last as u64 >> 60))));
    });
    let looped = fastest(3, || {
        black_box(looked_up.iter().map(|&hash| slot(hash)).fold(0, usize::wrapping_add));
    });
    let mut slots = [0; 1024];
    let all = fastest(3, || {
        for some in looked_up.chunks(slots.len()) {
            many(some, &mut slots);
            black_box(&slots);
        }
    });
    println!(
        "| {name} | {} | {one:.1} | {two:.1} | {:.2} | {:.3} | {:.1} | {:.1} | {:.1} |",
        hashes.len(),
        bits as f64 / keys,
        slot_count as f64 / keys,
        alone / lookups,
        looped / lookups,
        all / lookups
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
