//! `ldb`'s commands that are no others' aliases: `deleterange`, `batchput`, `approxsize`, `get_property`.
//!
//! They are for scripts that exist. So no help lists them; docs/rocksdb.md does.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use rockmill::{Range, WriteBatch};
use serde_json::json;

use crate::args::{DeleteArgs, DurabilityArgs, ReadArgs, Switch, WriteArgs};
use crate::error::{CliError, Result};
use crate::kv;
use crate::output::Out;
use crate::store::{self, OpenToWrite};

/// Delete all keys of a range: `delete --from A --to B`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rockmill --db=my.db deleterange user:1000 user:2000")]
pub struct DeleteRangeArgs {
    /// Database directory
    pub db: PathBuf,
    /// First key
    pub from: OsString,
    /// End of the range; the key itself stays
    pub to: OsString,
    /// The keys are hexadecimal
    #[arg(long)]
    pub hex: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub durability: DurabilityArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub store: WriteArgs,
}

/// Set several keys, all of them or none
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rockmill --db=my.db batchput ada 1815 alan 1912")]
pub struct BatchPutArgs {
    /// Database directory
    pub db: PathBuf,
    /// Keys, each with its value behind it
    #[arg(required = true, value_names = ["KEY", "VALUE"], num_args = 2..)]
    pub pairs: Vec<OsString>,
    /// Keys and values are hexadecimal
    #[arg(long)]
    pub hex: bool,
    /// Create the database if it is missing
    #[arg(long, alias = "create_if_missing")]
    pub create: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub durability: DurabilityArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub store: WriteArgs,
}

/// Print about how many bytes of tables the keys of a range take
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rockmill --db=my.db approxsize --from=user:1000 --to=user:2000")]
pub struct ApproxSizeArgs {
    /// Database directory
    pub db: PathBuf,
    /// First key
    #[arg(long, value_name = "KEY")]
    pub from: OsString,
    /// End of the range
    #[arg(long, value_name = "KEY")]
    pub to: OsString,
    /// The keys are hexadecimal
    #[arg(long)]
    pub hex: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub store: ReadArgs,
}

/// Print a property of the database
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rockmill --db=my.db get_property rocksdb.estimate-num-keys
  rockmill --db=my.db get_property rocksdb.levelstats")]
pub struct GetPropertyArgs {
    /// Database directory
    pub db: PathBuf,
    /// The property's name
    pub property: String,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub store: ReadArgs,
}

/// `rockmill deleterange`
pub fn delete_range(args: &DeleteRangeArgs, family: Option<&str>, out: &mut Out) -> Result<()> {
    let args = DeleteArgs {
        db: args.db.clone(),
        keys: Vec::new(),
        from: Some(args.from.clone()),
        to: Some(args.to.clone()),
        hex: args.hex,
        durability: args.durability,
        store: args.store.clone(),
    };
    kv::delete(&args, family, out)
}

/// `rockmill batchput`
pub fn batch_put(args: &BatchPutArgs, family: Option<&str>, out: &mut Out) -> Result<()> {
    if args.pairs.len() % 2 != 0 {
        let last = args.pairs.last().map(|key| key.display().to_string()).unwrap_or_default();
        return Err(CliError::usage(format!("key {last:?} has no value behind it")));
    }
    let bytes = |what, arg| store::bytes_arg(what, arg, args.hex);
    let pairs: Vec<_> = args
        .pairs
        .chunks_exact(2)
        .map(|pair| Ok((bytes("key", &pair[0])?, bytes("value", &pair[1])?)))
        .collect::<Result<_>>()?;
    let options = store::durability(args.durability)?;
    let open = OpenToWrite { path: &args.db, args: &args.store, create: args.create, family, fs: None };
    let (db, cf) = open.open().map_err(kv::how_to_create)?;
    let mut batch = WriteBatch::new();
    for (key, value) in &pairs {
        batch.put_cf(&cf, key, value);
    }
    db.write_opt(&batch, &options)?;
    if args.durability.wal == Switch::Off {
        db.flush_cf(&cf)?;
    }
    if out.json {
        out.json_object(&json!({ "written": pairs.len() }))?;
    }
    Ok(())
}

/// `rockmill approxsize`
pub fn approx_size(args: &ApproxSizeArgs, family: Option<&str>, out: &mut Out) -> Result<()> {
    let from = store::bytes_arg("key", &args.from, args.hex)?;
    let to = store::bytes_arg("key", &args.to, args.hex)?;
    let db = store::open_to_read(&args.db, &args.store, None, Some(family.unwrap_or("default")))?;
    let cf = store::family(&db, family)?;
    let bytes = db.get_approximate_sizes_cf(&cf, &[Range::new(&from, &to)]).first().copied().unwrap_or(0);
    if out.json {
        return out.json_object(&json!({ "bytes": bytes }));
    }
    out.line(bytes.to_string())
}

/// `rockmill get_property`
pub fn get_property(args: &GetPropertyArgs, family: Option<&str>, out: &mut Out) -> Result<()> {
    let db = store::open_to_read(&args.db, &args.store, None, Some(family.unwrap_or("default")))?;
    let cf = store::family(&db, family)?;
    let name = &args.property;
    let Some(value) = db.property_value_cf(&cf, name)? else {
        return Err(CliError::not_found(format!("property {name:?} not found"))
            .hint("names are RocksDB's, such as rocksdb.stats and rocksdb.estimate-num-keys, or begin with rockmill."));
    };
    if out.json {
        return out.json_object(&json!({ "property": name, "value": value }));
    }
    out.line(format!("{name}: {}", value.trim_end()))
}
