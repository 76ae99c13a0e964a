//! Power cuts and failing calls, a sample of them; `rockmill-stress crash` and `faults` do it for long.
//!
//! `ROCKMILL_SEED` sets the seed.

use rockmill_stress::crash::{self, Points};
use rockmill_stress::faults;

fn seed() -> u64 {
    let set = std::env::var("ROCKMILL_SEED").ok().and_then(|s| s.parse().ok());
    let seed = set.unwrap_or_else(|| fastrand::u64(..1 << 32));
    println!("ROCKMILL_SEED={seed}");
    seed
}

#[test]
fn power_cuts_leave_what_was_acknowledged_and_a_prefix() {
    let seed = seed();
    let mut sum = crash::Report::default();
    for n in 0..4 {
        let mut plan = crash::Plan::random(seed + n, 250, Points::About(120));
        plan.save = Some(std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("crash-{}", seed + n)));
        sum.join(crash::run(&plan).unwrap_or_else(|e| panic!("{e}")));
    }
    println!("{sum}");
    assert!(sum.double > 0 && sum.gone_on > 0 && sum.lost > 0, "{sum}");
}

#[test]
fn a_failed_call_is_told_and_loses_nothing() {
    let seed = seed();
    let mut sum = faults::Report::default();
    for n in 0..4 {
        let plan = faults::Plan::random(seed + n, 60, Points::About(80));
        sum.join(faults::run(&plan).unwrap_or_else(|e| panic!("{e}")));
    }
    println!("{sum}");
    assert!(sum.told > 0 && sum.background > 0, "{sum}");
    assert!(sum.silent < sum.faults, "{sum}");
}
