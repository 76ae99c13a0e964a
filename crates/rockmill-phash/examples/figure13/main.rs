//! The costs of functions by kind and number of keys: the comparison of CompassDB's Figure 13, plus lookups.
//!
//!     cargo run --locked --release -p rockmill-phash --example figure13 -- [KEYS...]
//!
//! prints a table in Markdown; the default numbers of keys are 10,000, 1 million and 10 million. Keys are random 64-bit
//! hashes. Each build is repeated (ten times for few keys, once for 100 million), and the fastest counts. Lookups are
//! for random keys of the set: *alone*, each waits for the previous one; *in a loop*, independent calls of `slot`;
//! *many*, `slots` with 1,024 at a time. The example checks that every slot has one key. It compares the crate's own
//! functions with PTHash; `compare/` measures those of other crates in the same way.

mod measure;
mod pthash;

use measure::{Built, Keys};
use pthash::{PtHash, SETTINGS};
use rockmill_phash::{Builder, Kind, PerfectHash};

fn main() {
    measure::print_head();
    for count in measure::counts() {
        let keys = Keys::new(count);
        for kind in Kind::ALL {
            let mut bytes = Vec::new();
            let nanos = keys.build(|hashes, threads| {
                let builder = Builder::new().kind(kind).threads(threads);
                bytes = builder.build(hashes).expect("random hashes have a function");
            });
            let function = PerfectHash::open(&bytes[..]).expect("what was built opens");
            let many = |some: &[u64], slots: &mut [usize]| function.slots(some, slots);
            let built = Built { name: kind.name(), nanos, bits: 8 * bytes.len(), slots: function.slot_count() };
            keys.print_row(&built, |hash| function.slot(hash), many);
        }
        for setting in SETTINGS {
            let mut function = None;
            // The lookups use the function built last, which has one part.
            let nanos = keys.build(|hashes, threads| function = Some(PtHash::build(setting, hashes, threads)));
            let function = function.expect("built");
            let slot = |hash| function.slot(hash);
            let many = |some: &[u64], slots: &mut [usize]| {
                slots.iter_mut().zip(some).for_each(|(slot, &hash)| *slot = function.slot(hash));
            };
            keys.print_row(&Built { name: setting.name, nanos, bits: function.bits(), slots: count }, slot, many);
        }
    }
}
