//! Options by RocksDB's names and as RocksDB's text: what `set_options` takes.
//!
//! An option is one of three: mutable (its field is here), fixed while the database is open, or not known. The latter
//! two are refused by name, so that no option is passed over silently.

mod value;

use value::Value;

use crate::error::{Error, Result};
use crate::options::CfOptions;

/// Reads a value into its field; `false` if it is no value of the field's type.
type Set = fn(&mut CfOptions, &str) -> bool;

fn put<T: Value>(field: &mut T, text: &str) -> bool {
    T::read(text).map(|value| *field = value).is_some()
}

macro_rules! fields {
    ($($name:ident),* $(,)?) => {
        [$((stringify!($name), |o, text| put(&mut o.$name, text))),*]
    };
}

/// Options of column families that may change while the database is open.
static MUTABLE: [(&str, Set); 17] = fields![
    arena_block_size,
    bottommost_compression,
    compression,
    compression_per_level,
    disable_auto_compactions,
    hard_pending_compaction_bytes_limit,
    level0_file_num_compaction_trigger,
    level0_slowdown_writes_trigger,
    level0_stop_writes_trigger,
    max_bytes_for_level_base,
    max_bytes_for_level_multiplier,
    max_compaction_bytes,
    max_write_buffer_number,
    soft_pending_compaction_bytes_limit,
    target_file_size_base,
    target_file_size_multiplier,
    write_buffer_size,
];

/// Options that only an open sets.
const FIXED: [&str; 7] = [
    "comparator",
    "compression_opts",
    "level_compaction_dynamic_level_bytes",
    "merge_operator",
    "min_write_buffer_number_to_merge",
    "num_levels",
    "table_factory",
];

/// Changes options of an open column family. On an error some of `options` may have changed: give it a copy.
pub(crate) fn set_mutable(options: &mut CfOptions, changes: &[(&str, &str)]) -> Result<()> {
    for &(name, value) in changes {
        let (name, value) = (name.trim(), value.trim());
        let Some((_, set)) = MUTABLE.iter().find(|(n, _)| *n == name) else {
            let why = if FIXED.contains(&name) {
                "cannot change while the database is open; give it when opening".to_owned()
            } else {
                let known: Vec<&str> = MUTABLE.iter().map(|(n, _)| *n).collect();
                format!("is not known to set_options, which changes {}", known.join(", "))
            };
            return Err(Error::invalid_argument(format!("option {name:?} {why}")));
        };
        if !set(options, value) {
            return Err(Error::invalid_argument(format!("option {name:?} cannot have the value {value:?}")));
        }
    }
    Ok(())
}
