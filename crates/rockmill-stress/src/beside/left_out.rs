//! A table of what is not tested with a version of RocksDB because it is known to behave differently or not to support
//! it, with the reason for each.

use crate::configuration::Configuration;
use crate::history::Step;

/// A version of RocksDB: major and minor.
type Version = (u32, u32);

/// Later than any version.
const ALWAYS: Version = (u32::MAX, 0);

/// A change of options.
struct Set {
    name: &'static str,
    /// Changes to one of these values; if there are none, to any value.
    values: &'static [&'static str],
    /// Before this version.
    before: Version,
    /// Only under this choice of an axis.
    under: Option<(&'static str, &'static str)>,
    why: &'static str,
}

/// A choice of a configuration that is replaced with another one.
struct Instead {
    axis: &'static str,
    choice: &'static str,
    other: &'static str,
    /// Before this version.
    before: Version,
    why: &'static str,
}

const INSTEAD: &[Instead] = &[
    Instead {
        axis: "stalls",
        choice: "often",
        other: "seldom",
        before: ALWAYS,
        why: "RocksDB's manual compactions wait until no writer is slowed, which may be never",
    },
    Instead {
        axis: "flush",
        choice: "atomic",
        other: "each",
        before: (8, 0),
        why: "two atomic flushes at once mix up their reasons, which older versions assert they do not",
    },
];

/// The configuration as this version of RocksDB supports it. Calls `left_out` for each omission.
pub(super) fn replaced(mut one: Configuration, version: Version, left_out: impl Fn(String)) -> Configuration {
    for instead in INSTEAD {
        if one.get(instead.axis) == instead.choice
            && version < instead.before
            && let Ok(other) = one.clone().with(instead.axis, instead.other)
        {
            left_out(format!("{}={} ({})", instead.axis, instead.choice, instead.why));
            one = other;
        }
    }
    one
}

const FULL: &str = "SetOptions does not adjust it, and a new memtable is full at once: RocksDB asserts that none is";

const SETS: &[Set] = &[
    Set { name: "compaction_style", values: &[], before: ALWAYS, under: None, why: "RocksDB's is fixed once open" },
    Set { name: "compaction_downforce", values: &[], before: ALWAYS, under: None, why: "Rockmill's own" },
    Set { name: "compaction_classic", values: &[], before: ALWAYS, under: None, why: "Rockmill's own" },
    Set { name: "tph_table_factory", values: &[], before: ALWAYS, under: None, why: "Rockmill's own" },
    Set {
        name: "level0_slowdown_writes_trigger",
        values: &[],
        before: ALWAYS,
        under: None,
        why: "RocksDB's manual compactions wait until no writer is slowed, which may be never",
    },
    Set { name: "write_buffer_size", values: &["0", "8192"], before: ALWAYS, under: None, why: FULL },
    // The first block of a memtable is an eighth of the memtable size at open.
    Set { name: "write_buffer_size", values: &["20000"], before: ALWAYS, under: Some(("memtable", "1m")), why: FULL },
    Set { name: "memtable_prefix_bloom_size_ratio", values: &["3", "-3"], before: ALWAYS, under: None, why: FULL },
    Set {
        name: "max_write_buffer_number",
        values: &["0"],
        before: ALWAYS,
        under: None,
        why: "SetOptions does not adjust it, and RocksDB stops its writers for ever",
    },
    Set {
        name: "max_bytes_for_level_base",
        values: &["0"],
        before: ALWAYS,
        under: None,
        why: "SetOptions does not adjust it, and RocksDB asserts that the target of the base level is above 0",
    },
    Set {
        name: "delayed_write_rate",
        values: &["0"],
        before: ALWAYS,
        under: None,
        why: "RocksDB divides by a quarter of it when writers are slowed, which ends the process",
    },
    Set {
        name: "block_based_table_factory",
        values: &["{partition_filters=true}"],
        before: ALWAYS,
        under: None,
        why: "SetOptions does not adjust it: without a partitioned index RocksDB's flushes use a null pointer",
    },
    Set {
        name: "block_based_table_factory",
        values: &[
            "{filter_policy=bloomfilter:8:false}",
            "{block_size=0;block_restart_interval=0;index_block_restart_interval=0}",
        ],
        before: (9, 8),
        under: None,
        why: "older versions change block_size and block_restart_interval alone",
    },
];

/// The name of a step that is omitted for this version of RocksDB, with the reason.
pub(super) fn left_out(step: &Step, configuration: &Configuration, version: Version) -> Option<String> {
    match step {
        Step::SetOptions(_, name, value) | Step::SetDbOptions(name, value) => {
            let found = SETS.iter().find(|set| {
                set.name == name
                    && (set.values.is_empty() || set.values.contains(&value.as_str()))
                    && version < set.before
                    && set.under.is_none_or(|(axis, choice)| configuration.get(axis) == choice)
            })?;
            Some(format!("set {name} {value} ({})", found.why))
        }
        _ => None,
    }
}
