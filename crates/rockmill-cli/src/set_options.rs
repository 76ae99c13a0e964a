//! `rockmill set-options`: changes the options that a database has stored.

use std::path::PathBuf;

use clap::Args;
use rockmill::{DEFAULT_COLUMN_FAMILY_NAME, OptionValue};
use serde_json::{Value, json};

use crate::args::StoredArgs;
use crate::error::{CliError, Result};
use crate::output::{self, Out};
use crate::store::{self, OpenToWrite};

/// Change options that a database has stored
///
/// Options have RocksDB's names; `rockmill options DB` lists them. Options of tables apply to tables that are written
/// from now on. No other process may have the database open.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rockmill set-options my.db write_buffer_size=128M max_background_jobs=4
  rockmill set-options my.db compression=kZSTD --column-family sessions
  rockmill set-options my.db table_factory.block_size=16K table_factory.filter_policy=bloomfilter:10:false --json")]
pub struct SetOptionsArgs {
    /// Database directory
    pub db: PathBuf,
    /// Options and their new values
    #[arg(required = true, value_name = "NAME=VALUE")]
    pub options: Vec<String>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub stored: StoredArgs,
}

/// The value of an option.
fn value<'v>(values: &'v [OptionValue], name: &str) -> Option<&'v str> {
    values.iter().find(|o| o.name == name).map(|o| o.value.as_str())
}

/// `rockmill set-options`
pub fn run(args: &SetOptionsArgs, family: Option<&str>, out: &mut Out) -> Result<()> {
    let name = family.unwrap_or(DEFAULT_COLUMN_FAMILY_NAME);
    let stored = StoredArgs { option: [&args.stored.option[..], &args.options].concat(), ..args.stored.clone() };
    let store = stored.alone();
    let before = store::stored_options(&args.db, &args.stored)?.family(name);
    let wanted = store::with_named(&before, &stored)?.values();
    // Flags that tell where the database's files are must not be stored; only options set here are.
    let without = store::with_named(&before, &args.stored)?.values();
    let new = |o: &&OptionValue| value(&without, o.name) != Some(o.value.as_str());
    if let Some(option) = wanted.iter().filter(new).find(|o| !o.in_files) {
        return Err(CliError::usage(format!("{} is not among the options that a database stores", option.name))
            .hint("give it at each opening: --option in the commands, Options in a program"));
    }
    let open = OpenToWrite { path: &args.db, args: &store, create: false, family, fs: None };
    // Every open for writing stores the current options.
    drop(open.open()?);
    let after = store::stored_options(&args.db, &StoredArgs::default())?.family(name).values();

    let before = before.values();
    let changed: Vec<(&str, &str, &str)> = after
        .iter()
        .filter_map(|o| value(&before, o.name).map(|old| (o.name, old, o.value.as_str())))
        .filter(|(_, old, new)| old != new)
        .collect();
    for option in wanted.iter().filter(new) {
        // The store adjusts values that are out of range.
        if let Some(now) = value(&after, option.name)
            && now != option.value
        {
            output::tell(&format!("note: {}={} was adjusted to {now}", option.name, option.value));
        }
    }
    if out.json {
        let changed: Vec<Value> =
            changed.iter().map(|(name, old, new)| json!({ "name": name, "old": old, "new": new })).collect();
        return out.json_object(&json!({ "column_family": name, "changed": changed }));
    }
    if changed.is_empty() {
        return out.note("nothing changed");
    }
    changed.iter().try_for_each(|(name, old, new)| out.line(format!("{name}: {old} -> {new}")))
}
