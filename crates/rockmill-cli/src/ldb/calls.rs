//! `ldb`'s commands that are not aliases of ours. They are for existing scripts, so help does not list them;
//! docs/rocksdb.md does.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use rockmill::{Range, WriteBatch};
use serde_json::json;

use crate::args::{DeleteArgs, DurabilityArgs, ReadArgs, Switch, WriteArgs};
use crate::error::{CliError, Result};
use crate::hex::HexArgs;
use crate::kv;
use crate::output::Out;
use crate::store::{self, OpenToWrite};

use super::entries::{self, DumpEntriesArgs, IdumpArgs};
use super::files::{self, DumpManifestArgs, FileChecksumArgs, LiveFilesArgs};

/// One of these commands.
#[derive(Debug, Subcommand)]
#[allow(missing_docs)]
pub enum LdbCall {
    #[command(hide = true, alias = "deleterange")]
    DeleteRange(DeleteRangeArgs),
    #[command(hide = true, alias = "batchput")]
    BatchPut(BatchPutArgs),
    #[command(hide = true, alias = "approxsize")]
    ApproxSize(ApproxSizeArgs),
    #[command(hide = true)]
    GetProperty(GetPropertyArgs),
    #[command(hide = true, alias = "singledelete")]
    SingleDelete(SingleDeleteArgs),
    #[command(hide = true)]
    Idump(IdumpArgs),
    #[command(hide = true)]
    DumpEntries(DumpEntriesArgs),
    #[command(hide = true)]
    ListLiveFilesMetadata(LiveFilesArgs),
    #[command(hide = true)]
    FileChecksumDump(FileChecksumArgs),
    #[command(hide = true)]
    DumpManifest(DumpManifestArgs),
}

impl LdbCall {
    /// True if it only prints.
    pub fn only_shows(&self) -> bool {
        !matches!(self, Self::DeleteRange(_) | Self::BatchPut(_) | Self::SingleDelete(_))
    }
}

/// Runs a call.
pub fn run(call: &LdbCall, family: Option<&str>, out: &mut Out) -> Result<()> {
    match call {
        LdbCall::DeleteRange(args) => delete_range(args, family, out),
        LdbCall::BatchPut(args) => batch_put(args, family, out),
        LdbCall::ApproxSize(args) => approx_size(args, family, out),
        LdbCall::GetProperty(args) => get_property(args, family, out),
        LdbCall::SingleDelete(args) => single_delete(args, family, out),
        LdbCall::Idump(args) => entries::idump(args, family, out),
        LdbCall::DumpEntries(args) => entries::dump(args, family, out),
        LdbCall::ListLiveFilesMetadata(args) => files::list_live_files(args, out),
        LdbCall::FileChecksumDump(args) => files::file_checksums(args, out),
        LdbCall::DumpManifest(args) => files::dump_manifest(args, out),
    }
}

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
    #[arg(long, aliases = ["key-hex", "key_hex"])]
    pub hex: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub durability: DurabilityArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub store: WriteArgs,
}

/// Delete a key that was set only once since it was last deleted
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rockmill --db=my.db singledelete user:1000")]
pub struct SingleDeleteArgs {
    /// Database directory
    pub db: PathBuf,
    /// Key
    pub key: OsString,
    /// The key is hexadecimal
    #[arg(long, aliases = ["key-hex", "key_hex"])]
    pub hex: bool,
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
    /// Keys, each followed by its value
    #[arg(required = true, value_names = ["KEY", "VALUE"], num_args = 2..)]
    pub pairs: Vec<OsString>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub hex: HexArgs,
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
    #[arg(long, aliases = ["key-hex", "key_hex"])]
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
fn delete_range(args: &DeleteRangeArgs, family: Option<&str>, out: &mut Out) -> Result<()> {
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

/// `rockmill singledelete`
fn single_delete(args: &SingleDeleteArgs, family: Option<&str>, out: &mut Out) -> Result<()> {
    let key = store::bytes_arg("key", &args.key, args.hex)?;
    let open = OpenToWrite { path: &args.db, args: &args.store, create: false, family, fs: None };
    let (db, cf) = open.open()?;
    db.single_delete_cf(&cf, &key)?;
    if out.json {
        out.json_object(&json!({ "deleted_keys": 1 }))?;
    }
    Ok(())
}

/// `rockmill batchput`
fn batch_put(args: &BatchPutArgs, family: Option<&str>, out: &mut Out) -> Result<()> {
    if !args.pairs.len().is_multiple_of(2) {
        let last = args.pairs.last().map(|key| key.display().to_string()).unwrap_or_default();
        return Err(CliError::usage(format!("key {last:?} has no value")));
    }
    let pairs: Vec<_> = args
        .pairs
        .chunks_exact(2)
        .map(|pair| {
            let key = store::bytes_arg("key", &pair[0], args.hex.keys())?;
            Ok((key, store::bytes_arg("value", &pair[1], args.hex.values())?))
        })
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
fn approx_size(args: &ApproxSizeArgs, family: Option<&str>, out: &mut Out) -> Result<()> {
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
fn get_property(args: &GetPropertyArgs, family: Option<&str>, out: &mut Out) -> Result<()> {
    let db = store::open_to_read(&args.db, &args.store, None, Some(family.unwrap_or("default")))?;
    let cf = store::family(&db, family)?;
    let name = &args.property;
    let Some(value) = db.property_value_cf(&cf, name)? else {
        return Err(CliError::not_found(format!("property {name:?} not found")).hint(
            "names are RocksDB's, such as rocksdb.stats and rocksdb.estimate-num-keys, or begin with rockmill.",
        ));
    };
    if out.json {
        return out.json_object(&json!({ "property": name, "value": value }));
    }
    out.line(format!("{name}: {}", value.trim_end()))
}
