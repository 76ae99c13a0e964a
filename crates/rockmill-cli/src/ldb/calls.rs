//! `ldb`'s commands that are no others' aliases: `deleterange`, `batchput`, `approxsize`, `get_property`,
//! `idump`.
//!
//! They are for scripts that exist. So no help lists them; docs/rocksdb.md does.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use rockmill::{Range, WriteBatch};
use serde_json::json;

use crate::args::{DeleteArgs, DurabilityArgs, ReadArgs, Switch, WriteArgs};
use crate::error::{CliError, Result};
use crate::kv;
use crate::output::{self, Out};
use crate::scan;
use crate::store::{self, OpenToWrite};

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
    #[command(hide = true)]
    Idump(IdumpArgs),
}

/// Does what a call asks for.
pub fn run(call: &LdbCall, family: Option<&str>, out: &mut Out) -> Result<()> {
    match call {
        LdbCall::DeleteRange(args) => delete_range(args, family, out),
        LdbCall::BatchPut(args) => batch_put(args, family, out),
        LdbCall::ApproxSize(args) => approx_size(args, family, out),
        LdbCall::GetProperty(args) => get_property(args, family, out),
        LdbCall::Idump(args) => idump(args, family, out),
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

/// Print every version of every key that is stored, deletions included
#[derive(Debug, Args)]
#[command(after_help = "\
Types: 0 a deletion, 1 a value, 2 a merge operand, 7 a single deletion.
Versions that a range deletion hides are not printed.

Examples:
  rockmill --db=my.db idump --from=user:1000 --to=user:2000 --hex
  rockmill --db=my.db idump --count_only")]
pub struct IdumpArgs {
    /// Database directory
    pub db: PathBuf,
    /// First key
    #[arg(long, value_name = "KEY")]
    pub from: Option<OsString>,
    /// End of the range; the key itself is not printed
    #[arg(long, value_name = "KEY")]
    pub to: Option<OsString>,
    /// --from and --to are hexadecimal
    #[arg(long, alias = "input_key_hex")]
    pub input_key_hex: bool,
    /// Print keys and values as hexadecimal
    #[arg(long)]
    pub hex: bool,
    /// The most versions to print
    #[arg(long, alias = "max_keys", value_name = "N")]
    pub max_keys: Option<u64>,
    /// Print only how many there are
    #[arg(long, alias = "count_only")]
    pub count_only: bool,
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

/// `rockmill batchput`
fn batch_put(args: &BatchPutArgs, family: Option<&str>, out: &mut Out) -> Result<()> {
    if !args.pairs.len().is_multiple_of(2) {
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

/// `rockmill idump`, in `ldb`'s form
fn idump(args: &IdumpArgs, family: Option<&str>, out: &mut Out) -> Result<()> {
    let key = |what, arg: &Option<OsString>| {
        arg.as_ref().map(|key| store::bytes_arg(what, key, args.input_key_hex)).transpose()
    };
    let (from, to) = (key("--from", &args.from)?, key("--to", &args.to)?);
    let db = store::open_to_read(&args.db, &args.store, None, Some(family.unwrap_or("default")))?;
    let cf = store::family(&db, family)?;
    let append = scan::append_as(args.hex, out.is_terminal());
    let mut versions = db.key_versions_cf(&cf, from.as_deref(), to.as_deref())?;
    let mut found = 0u64;
    let mut line = Vec::new();
    while found < args.max_keys.unwrap_or(u64::MAX)
        && let Some(version) = versions.next().transpose()?
    {
        found += 1;
        if args.count_only {
            continue;
        }
        if out.json {
            let mut entry = output::entry_json(&version.user_key, Some(&version.value));
            entry["sequence"] = json!(version.sequence);
            entry["type"] = json!(version.value_type);
            out.json_line(&entry)?;
            continue;
        }
        line.clear();
        line.push(b'\'');
        append(&mut line, &version.user_key);
        line.extend_from_slice(format!("' seq:{}, type:{} => ", version.sequence, version.value_type).as_bytes());
        append(&mut line, &version.value);
        line.push(b'\n');
        out.bytes(&line)?;
    }
    match (args.count_only, out.json) {
        (true, true) => out.json_object(&json!({ "count": found })),
        (false, true) => Ok(()),
        (_, false) => out.line(format!("Internal keys in range: {found}")),
    }
}
