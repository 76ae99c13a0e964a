//! list-cf, create-cf and drop-cf.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use rockmill::Options;
use rockmill_format::comparator::{HashRangeComparator, ReverseBytewiseComparator};
use serde_json::{Value, json};

use crate::args::{StoredArgs, TableArgs};
use crate::error::{CliError, Result};
use crate::output::Out;
use crate::store::{self, OpenToWrite};

/// List the column families of a database
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rockmill list-cf my.db
  rockmill list-cf my.db --json")]
pub struct ListCfArgs {
    /// Database directory
    pub db: PathBuf,
}

/// Create a column family
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rockmill create-cf my.db sessions
  rockmill create-cf my.db events --reverse-order
  rockmill create-cf my.db users --table-format tph
  rockmill create-cf my.db sessions --table-format tph --hash-range")]
pub struct CreateCfArgs {
    /// Database directory
    pub db: PathBuf,
    /// Its name
    pub name: String,
    /// Order keys from the largest to the smallest (RocksDB's ReverseBytewiseComparator)
    #[arg(long, conflicts_with = "hash_range")]
    pub reverse_order: bool,
    /// Order keys by a hash of them: for lookups and many writes; RocksDB refuses the database
    #[arg(long)]
    pub hash_range: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub tables: TableArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub stored: StoredArgs,
}

/// Drop a column family with everything in it
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rockmill drop-cf my.db sessions")]
pub struct DropCfArgs {
    /// Database directory
    pub db: PathBuf,
    /// Its name
    pub name: String,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub stored: StoredArgs,
}

/// `rockmill list-cf`
pub fn list(args: &ListCfArgs, out: &mut Out) -> Result<()> {
    let families = store::families(&args.db)?;
    if out.json {
        let all: Vec<Value> = families
            .iter()
            .map(|f| json!({ "id": f.id, "name": f.name, "comparator": f.comparator, "levels": f.levels }))
            .collect();
        return out.json_object(&json!({ "column_families": all }));
    }
    families.iter().try_for_each(|f| out.line(&f.name))
}

/// `rockmill create-cf`
pub fn create(args: &CreateCfArgs, out: &mut Out) -> Result<()> {
    if args.name.is_empty() {
        return Err(CliError::usage("a column family needs a name"));
    }
    let mut options = Options::default();
    store::set_tables(&mut options, args.tables)?;
    let store = args.stored.alone();
    let open = OpenToWrite { path: &args.db, args: &store, create: false, family: None, fs: None };
    let (db, _) = open.open()?;
    if args.reverse_order {
        options.set_comparator_object(Arc::new(ReverseBytewiseComparator));
    }
    if args.hash_range {
        options.set_comparator_object(Arc::new(HashRangeComparator));
    }
    let cf = store::create_cf(&db, &args.name, &options, &args.stored)?;
    if out.json {
        return out.json_object(&json!({ "created": cf.name(), "id": cf.id() }));
    }
    out.note(format!("created column family {:?} (id {})", cf.name(), cf.id()))
}

/// `rockmill drop-cf`
pub fn drop(args: &DropCfArgs, out: &mut Out) -> Result<()> {
    let store = args.stored.alone();
    let open = OpenToWrite { path: &args.db, args: &store, create: false, family: Some(&args.name), fs: None };
    let (db, _) = open.open()?;
    db.drop_cf(&args.name)?;
    if out.json {
        return out.json_object(&json!({ "dropped": args.name }));
    }
    out.note(format!("dropped column family {:?}", args.name))
}
