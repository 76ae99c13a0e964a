//! Runs worth having, by name.

use std::time::Duration;

use super::limits::Limit;
use super::parent::{Choice, Plan};
use super::settings::{ACTS, Act};

/// A run by name.
pub struct Scenario {
    /// What it is called.
    pub name: &'static str,
    /// What it tries.
    pub about: &'static str,
    /// Makes a plan of defaults this run's.
    pub apply: fn(&mut Plan),
}

fn random(plan: &mut Plan, fixed: &[(&str, &str)]) {
    plan.choice = fixed.iter().fold(Choice::random(), |c, (axis, choice)| c.or_fixed(axis, choice));
}

fn share(plan: &mut Plan, act: Act, share: f64) {
    for (known, shared) in ACTS.iter().zip(&mut plan.settings.shares) {
        if known.0 == act {
            *shared = share;
        }
    }
}

/// A limit, with a database small enough to fit into it.
fn limited(plan: &mut Plan, limit: Limit, keys: u32) {
    random(plan, &[]);
    plan.limit = Some(limit);
    plan.settings.keys = keys;
    plan.settings.families = 2;
    plan.kill_every = Some(Duration::from_secs(6));
}

/// All of them.
pub const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "kills",
        about: "deaths every two seconds, another configuration for each life",
        apply: |p| {
            random(p, &[]);
            p.kill_every = Some(Duration::from_secs(2));
        },
    },
    Scenario {
        name: "wals",
        about: "the same with WALs in a directory of their own",
        apply: |p| {
            random(p, &[]);
            p.kill_every = Some(Duration::from_secs(2));
            p.settings.own_wals = true;
        },
    },
    Scenario {
        name: "hashed",
        about: "the same with a column family in the order of a hash, which RocksDB cannot check",
        apply: |p| {
            random(p, &[]);
            p.kill_every = Some(Duration::from_secs(2));
            p.settings.families = 4;
            p.settings.hash_range = true;
        },
    },
    Scenario {
        name: "rocksdb",
        about: "the same in formats that RocksDB 6.6 and later reads, which checks after every third death",
        apply: |p| {
            random(p, &[("format", "5")]);
            p.kill_every = Some(Duration::from_secs(2));
            p.check_every = 3;
        },
    },
    Scenario {
        name: "recovery",
        about: "deaths soon after the start: many while the database is being recovered",
        apply: |p| {
            random(p, &[]);
            p.kill_every = Some(Duration::from_millis(150));
            p.check_every = 25;
        },
    },
    Scenario {
        name: "synced",
        about: "every write is synced",
        apply: |p| {
            random(p, &[]);
            p.settings.sync_every = 1;
        },
    },
    Scenario {
        name: "large",
        about: "few keys, values of up to 64 KiB",
        apply: |p| {
            random(p, &[("memtable", "1m"), ("files", "large")]);
            p.settings.keys = 1000;
            (p.settings.value_min, p.settings.value_max) = (1 << 10, 64 << 10);
        },
    },
    Scenario {
        name: "copies",
        about: "many ingestions, checkpoints, backups, cleared column families and manual compactions",
        apply: |p| {
            random(p, &[]);
            p.settings.keys = 5000;
            for (act, part) in [(Act::Ingest, 2.0), (Act::Checkpoint, 0.2), (Act::Backup, 0.2), (Act::Clear, 0.02)] {
                share(p, act, part);
            }
            share(p, Act::Compact, 0.2);
            p.settings.own_wals = true;
        },
    },
    Scenario {
        name: "fsize",
        about: "files may not grow beyond 512 KiB, now and then",
        apply: |p| {
            limited(p, Limit::Fsize(512 << 10), 4000);
            p.choice = p.choice.clone().or_fixed("memtable", "1m").or_fixed("files", "large");
            p.settings.value_max = 2000;
        },
    },
    Scenario {
        name: "space",
        about: "a file system of 64 MiB that is full now and then",
        apply: |p| limited(p, Limit::Space(64 << 20), 5000),
    },
    Scenario { name: "files", about: "40 file handles, now and then", apply: |p| limited(p, Limit::Files(40), 20_000) },
    Scenario {
        name: "memory",
        about: "512 MiB of memory, and something that eats it",
        apply: |p| {
            limited(p, Limit::Memory(512 << 20), 20_000);
            p.kill_every = None;
        },
    },
    Scenario {
        name: "soak",
        about: "no deaths: memory, handles, threads and disk must stay as they are",
        apply: |p| {
            p.choice = Choice::default().or_fixed("memtable", "1m").or_fixed("files", "large");
            p.kill_every = None;
        },
    },
];

/// The scenario of this name.
///
/// # Errors
/// Unknown name; the message lists the known ones.
pub fn by_name(name: &str) -> Result<&'static Scenario, String> {
    let known = || SCENARIOS.iter().map(|s| s.name).collect::<Vec<_>>().join(", ");
    SCENARIOS.iter().find(|s| s.name == name).ok_or_else(|| format!("no scenario {name:?}: there are all, {}", known()))
}
