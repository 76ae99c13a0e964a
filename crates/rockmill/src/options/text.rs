//! Options by RocksDB's names and as RocksDB's text: what `set_options` and option strings give, what OPTIONS files
//! hold.
//!
//! There are four kinds of options: declared and changeable now, declared and fixed while the database is open,
//! RocksDB's but not Rockmill's (`known.rs`), and unknown. The last three are refused or reported in the notes, so that
//! no option is ignored silently.

use super::declare::{Kind, TextOption};
use super::known::{self, Notes, Section, What};
use super::parse;
use super::value::Value;
use super::{BlockBasedOptions, CfOptions, DbOptions, TableKind, TphTableOptions};
use crate::error::{Error, ErrorKind, Result};
use crate::rate_limiter::{RateLimiter, RateLimiterMode};
use crate::table::Cache;

/// Names and values.
pub(crate) type Pairs = [(String, String)];

/// Which options a reader may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Allow {
    /// All of them: the database is not open.
    All,
    /// Those that an open database can change; any option that Rockmill does not have is refused.
    Mutable,
}

/// Where the options come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// The program, or its user: strings, `set_options`, a command line.
    Caller,
    /// A stored OPTIONS file, which anybody may have written. Its values have escapes. Only RocksDB's options and those
    /// of TPH tables are taken from it: options that load code or choose an engine must come from the caller.
    File,
}

fn bad_value(name: &str, value: &str) -> Error {
    Error::invalid_argument(format!("option {name:?} cannot have the value {:?}", parse::excerpt(value)))
}

/// Changes options of the database. After an error some of them may have changed, so callers pass a copy.
pub(crate) fn set_db(o: &mut DbOptions, pairs: &Pairs, allow: Allow, source: Source, notes: &mut Notes) -> Result<()> {
    for pair in pairs {
        let (name, value) = pair;
        if name == "rate_limiter_bytes_per_sec" && allow == Allow::All && source == Source::Caller {
            // RocksDB's shorthand for a limiter with its defaults; OPTIONS files have none.
            let rate = <u64 as Value>::read(value).and_then(|n| i64::try_from(n).ok());
            let rate = rate.ok_or_else(|| bad_value(name, value))?;
            let limiter = || RateLimiter::new(rate, 100_000, 10, RateLimiterMode::KWritesOnly, false);
            o.rate_limiter = (rate > 0).then(limiter);
        } else {
            set(o, DbOptions::TEXT, Section::Db, std::slice::from_ref(pair), allow, source, notes)?;
        }
    }
    Ok(())
}

/// Changes options of the kind of tables that is written; see [`set_db`].
pub(crate) fn set_table(
    o: &mut CfOptions,
    pairs: &Pairs,
    allow: Allow,
    source: Source,
    notes: &mut Notes,
) -> Result<()> {
    for pair in pairs {
        let (name, value) = pair;
        if o.table_factory == TableKind::Tph && TphTableOptions::TEXT.iter().any(|option| option.name == name) {
            let pair = std::slice::from_ref(pair);
            set(&mut o.tph, TphTableOptions::TEXT, Section::Table, pair, allow, source, notes)?;
            continue;
        }
        let o = &mut o.table;
        // RocksDB's shorthand for a cache of its own with the defaults; OPTIONS files have none.
        let shorthand = name == "block_cache" && allow == Allow::All && source == Source::Caller;
        match shorthand.then(|| capacity_of(value)).flatten() {
            Some(bytes) => o.set_block_cache(&Cache::new_lru_cache(bytes)),
            None => set(o, BlockBasedOptions::TEXT, Section::Table, std::slice::from_ref(pair), allow, source, notes)?,
        }
        o.carried.options.retain(|(kept, _)| kept != name); // as in `set_cf`
    }
    Ok(())
}

/// The bytes of a cache: `64M` or `{capacity=64M}`.
fn capacity_of(value: &str) -> Option<usize> {
    let inner = value.trim().trim_start_matches('{').trim_end_matches('}').trim().trim_end_matches(';');
    let bytes = inner.strip_prefix("capacity=").unwrap_or(inner);
    <usize as Value>::read(bytes.trim())
}

/// Changes options of a column family, and of its tables ([`set_table_factory`]); see [`set_db`].
pub(crate) fn set_cf(o: &mut CfOptions, pairs: &Pairs, allow: Allow, source: Source, notes: &mut Notes) -> Result<()> {
    for pair in pairs {
        let name = pair.0.split('.').next().unwrap_or_default();
        match name {
            TABLE_FACTORY | BLOCK_BASED_FACTORY | TPH_FACTORY => set_table_factory(o, pair, allow, source, notes)?,
            _ => {
                set(o, CfOptions::TEXT, Section::Cf, std::slice::from_ref(pair), allow, source, notes)?;
                // The new value replaces the old one, even if it says that there is no object.
                o.carried.options.retain(|(kept, _)| kept != name);
            }
        }
    }
    Ok(())
}

const TABLE_FACTORY: &str = "table_factory";
const BLOCK_BASED_FACTORY: &str = "block_based_table_factory";
pub(super) const TPH_FACTORY: &str = "tph_table_factory";

/// Takes a kind of tables with options: `table_factory=TphTable`, `table_factory={id=TphTable;piece_limit=8}`,
/// `tph_table_factory={piece_limit=8}` and the same with `block_based_table_factory`; or, with a dot, one option of the
/// present kind. Options that are not named keep their values, even if the kind changes (which it never does in an open
/// database).
fn set_table_factory(
    o: &mut CfOptions,
    (name, value): &(String, String),
    allow: Allow,
    source: Source,
    notes: &mut Notes,
) -> Result<()> {
    let (outer, inner) = name.split_once('.').unwrap_or((name, ""));
    let named = match outer {
        BLOCK_BASED_FACTORY => Some(TableKind::BlockBased),
        TPH_FACTORY => Some(TableKind::Tph),
        _ => None,
    };
    let (kind, options) = match named {
        _ if !inner.is_empty() => (named.unwrap_or(o.table_factory), vec![(inner.to_owned(), value.clone())]),
        Some(kind) => (kind, parse::pairs(value)?),
        None => {
            let (id, options) = parse::object(value)?;
            (table_kind(&id)?, options)
        }
    };
    if kind != o.table_factory && (allow == Allow::Mutable || !inner.is_empty()) {
        let tables = o.table_factory.write();
        let what =
            format!("option {name:?} is for another kind of tables than the column family writes, which is {tables}");
        return Err(Error::invalid_argument(format!("{what}; an opening with another table_factory changes it")));
    }
    o.table_factory = kind;
    set_table(o, &options, allow, source, notes)
}

/// The kind of tables that RocksDB's text calls by this name.
pub(crate) fn table_kind(name: &str) -> Result<TableKind> {
    let unknown = || {
        Error::not_supported(format!("table_factory={}: there are BlockBasedTable and TphTable", parse::excerpt(name)))
    };
    TableKind::read(name).ok_or_else(unknown)
}

fn set<O>(
    options: &mut O,
    table: &[TextOption<O>],
    section: Section,
    pairs: &Pairs,
    allow: Allow,
    source: Source,
    notes: &mut Notes,
) -> Result<()> {
    for (name, value) in pairs {
        let value = if source == Source::File { parse::unescape(value) } else { value.clone() };
        let find = |name: &str| table.iter().find(|o| o.name == name && o.kind.has_text());
        // `compression_opts.level=3` is `compression_opts={level=3}`.
        let (option, value) = match (find(name), name.split_once('.')) {
            (None, Some((outer, inner))) => (find(outer), format!("{{{inner}={value}}}")),
            (found, _) => (found, value),
        };
        let Some(option) = option else {
            match allow {
                Allow::All => notes.undeclared(section, name, &value),
                Allow::Mutable => return Err(not_changeable(table, section, name)),
            }
            continue;
        };
        if allow == Allow::Mutable && !option.kind.is_mutable() {
            return Err(not_changeable(table, section, name));
        }
        if option.kind.is_own() && source == Source::File {
            notes.add(name, &value, What::Own);
        } else if let Some(why) = known::other_value(name, &value) {
            notes.add(name, &value, What::NoEffect(why));
        } else if !(option.read)(options, &value, notes) {
            match option.kind {
                Kind::Object | Kind::MutableObject => notes.add(name, &value, What::Object),
                _ => return Err(bad_value(name, &value)),
            }
        }
    }
    Ok(())
}

fn not_changeable<O>(table: &[TextOption<O>], section: Section, name: &str) -> Error {
    // As in RocksDB: for `SetDBOptions` it is not found, for `SetOptions` it is a bad argument.
    let kind = if section == Section::Db { ErrorKind::NotFound } else { ErrorKind::InvalidArgument };
    if table.iter().any(|o| o.name == name && o.kind != Kind::Part) {
        let what = format!("option {name:?} cannot change while the database is open; give it when opening");
        return Error::new(kind, what);
    }
    if known::meaning(section, name).is_some() {
        return Error::not_supported(format!("option {name:?} has no effect in Rockmill"));
    }
    let known: Vec<&str> = table.iter().filter(|o| o.kind.is_mutable()).map(|o| o.name).collect();
    Error::new(kind, format!("option {name:?} is not known; an open database can change {}", known.join(", ")))
}

/// Refuses the options that reading noted: an open database takes no option that would have no effect.
pub(crate) fn refuse(notes: &Notes) -> Result<()> {
    match notes.list.first() {
        None => Ok(()),
        Some(n) => {
            Err(Error::invalid_argument(format!("option {:?} cannot have the value {:?} here", n.name, n.value)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::declare::TextOption;
    use super::*;

    fn read_what_was_written<O: Default>(all: &[TextOption<O>]) {
        let mut options = O::default();
        let mut notes = Notes::default();
        for option in all {
            match (option.write)(&options) {
                Some(text) => assert!((option.read)(&mut options, &text, &mut notes), "{} = {text}", option.name),
                None => assert!(!option.kind.has_text(), "{}", option.name),
            }
            assert_eq!(notes.list, [], "{}", option.name);
        }
    }

    #[test]
    fn every_option_reads_what_it_wrote() {
        read_what_was_written(DbOptions::TEXT);
        read_what_was_written(CfOptions::TEXT);
        read_what_was_written(BlockBasedOptions::TEXT);
        read_what_was_written(TphTableOptions::TEXT);
    }
}
