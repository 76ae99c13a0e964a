//! Histories with TPH tables have tables of several files, in each of the three ways in which histories are done, and
//! with other strategies: without them, they would not test the special features of such tables.
//!
//! `ROCKMILL_SEED` sets the seed. A single test in its own process, because the count is per process.

use rockmill_stress::configuration::Configuration;
use rockmill_stress::crash::{self, Points, Promise};
use rockmill_stress::events::tables_of_several_files;
use rockmill_stress::faults;
use rockmill_stress::generate::{Profile, generate};
use rockmill_stress::metamorphic::{Medium, cases};
use rockmill_stress::replay::Silent;

/// Random, except for TPH tables of up to 16 files, and with levels that compactions use.
fn with_tph(configurations: &mut [Configuration]) {
    with(configurations, "leveled");
}

fn with(configurations: &mut [Configuration], strategy: &str) {
    for c in configurations {
        *c = c.clone().with_all(&format!("table=tph-16,files=small,memtable=16k,strategy={strategy}")).unwrap();
    }
}

#[test]
fn histories_with_tph_tables_have_tables_of_several_files() {
    let set = std::env::var("ROCKMILL_SEED").ok().and_then(|s| s.parse().ok());
    let seed: u64 = set.unwrap_or_else(|| fastrand::u64(..1 << 32));
    println!("ROCKMILL_SEED={seed}");
    let mut before = 0;
    let mut more = |what: &str| {
        let now = tables_of_several_files();
        println!("{what}: {} tables with several files", now - before);
        assert!(now > before, "{what}: no table had several files");
        before = now;
    };

    let mut rng = fastrand::Rng::with_seed(seed);
    let mut configurations: Vec<_> = (0..3).map(|_| Configuration::random(&mut rng)).collect();
    with_tph(&mut configurations);
    let history = generate(seed, 1500, &Profile::everything());
    for case in cases(&history, &configurations, false) {
        Medium::Memory.run(&case, &mut Silent).unwrap_or_else(|failure| panic!("{failure}"));
    }
    more("metamorphic");
    for strategy in ["tiered", "df-leveled"] {
        let mut configurations: Vec<_> = (0..2).map(|_| Configuration::random(&mut rng)).collect();
        with(&mut configurations, strategy);
        for case in cases(&history, &configurations, false) {
            Medium::Memory.run(&case, &mut Silent).unwrap_or_else(|failure| panic!("{failure}"));
        }
        more(strategy);
    }

    // Histories with the normal promise.
    let plan = |seed| crash::Plan::random(seed, 250, Points::About(10));
    for mut plan in (seed..).map(plan).filter(|plan| plan.promise == Promise::Logged).take(3) {
        with_tph(&mut plan.configurations);
        plan.save = Some(std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("crash-tph-{}", plan.seed)));
        crash::run(&plan).unwrap_or_else(|e| panic!("{e}"));
    }
    more("power cuts");

    for n in 0..3 {
        let mut plan = faults::Plan::random(seed + n, 60, Points::About(10));
        with_tph(&mut plan.configurations);
        faults::run(&plan).unwrap_or_else(|e| panic!("{e}"));
    }
    more("failing calls");
}
