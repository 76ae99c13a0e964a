//! `rockmill flush`: writes data that is only in the log as tables.

use std::path::PathBuf;

use clap::Args;
use rockmill::ColumnFamily;
use serde_json::json;

use crate::args::WriteArgs;
use crate::error::{CliError, Result};
use crate::output::{self, Out};
use crate::store::{OpenToWrite, all_families};

/// Write data that is only in the log as tables
///
/// Afterwards no log is needed to read the column family. Opening a database for writing does the same, unless the
/// option avoid_flush_during_recovery is stored.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rockmill flush my.db
  rockmill flush my.db --column-family sessions
  rockmill flush my.db --all-column-families")]
pub struct FlushArgs {
    /// Database directory
    pub db: PathBuf,
    /// Flush every column family
    #[arg(long)]
    pub all_column_families: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub store: WriteArgs,
}

/// Refuses a column family together with `--all-column-families`.
pub fn check_all(all: bool, family: Option<&str>) -> Result<()> {
    match family {
        Some(name) if all => {
            Err(CliError::usage(format!("--all-column-families and --column-family {name} exclude each other")))
        }
        _ => Ok(()),
    }
}

/// `rockmill flush`
pub fn run(args: &FlushArgs, family: Option<&str>, out: &mut Out) -> Result<()> {
    check_all(args.all_column_families, family)?;
    let open = OpenToWrite { path: &args.db, args: &args.store, create: false, family, fs: None };
    let (db, cf) = open.open()?;
    if args.all_column_families {
        db.flush_all()?;
    } else {
        db.flush_cf(&cf)?;
    }
    let flushed = if args.all_column_families { all_families(&db) } else { vec![cf] };
    let names: Vec<&str> = flushed.iter().map(ColumnFamily::name).collect();
    if out.json {
        return out.json_object(&json!({ "flushed": names }));
    }
    match names.as_slice() {
        [name] => out.note(format!("flushed column family {name:?}")),
        names => out.note(format!("flushed {} column families", output::count(names.len() as u64))),
    }
}
