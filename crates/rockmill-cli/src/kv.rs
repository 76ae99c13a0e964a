//! put, merge, get, multi-get and delete.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::path::PathBuf;

use clap::Args;
use rockmill::WriteBatch;
use serde_json::{Value, json};

use crate::args::{DeleteArgs, DurabilityArgs, GetArgs, PutArgs, ReadArgs, Switch, WriteArgs};
use crate::error::{CliError, Result};
use crate::hex::HexArgs;
use crate::output::{self, Out};
use crate::scan;
use crate::store::{self, OpenToWrite};

/// Longest value accepted from standard input, in bytes: the limit of a write batch.
const VALUE_LEN_MAX: u64 = u32::MAX as u64;

/// Longest key shown in a message, in bytes.
const SHOWN_LEN_MAX: usize = 100;

/// Most keys named in a message.
const SHOWN_KEYS_MAX: usize = 10;

/// Merge an operand into the value of a key
///
/// The column family's merge operator says what that means: RocksDB's uint64add adds a little-endian number of eight
/// bytes, stringappend appends after a comma, max keeps the larger one. `--option merge_operator=NAME` sets one and
/// stores it; later commands take it from there.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rockmill merge my.db tags red --option merge_operator=stringappend
  rockmill merge my.db tags blue
  rockmill merge my.db --hex 686974 0100000000000000 --column-family counters --option merge_operator=uint64add")]
pub struct MergeArgs {
    /// Database directory
    pub db: PathBuf,
    /// Key
    pub key: OsString,
    /// Operand; - reads it from standard input, as it is
    pub operand: OsString,
    /// Key and operand are hexadecimal
    #[arg(long)]
    pub hex: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub durability: DurabilityArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub store: WriteArgs,
}

/// Print the values of several keys, read together
///
/// Prints one line for each key that exists, in the order given: key, tab, value, as scan prints them. With --json, one
/// object per line for every key, with `found`. Exit code 1 if a key does not exist.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rockmill multi-get my.db user:1 user:2 user:3
  rockmill multi-get my.db --hex 00ff 0100
  rockmill multi-get my.db user:1 user:2 --column-family sessions --json")]
pub struct MultiGetArgs {
    /// Database directory
    pub db: PathBuf,
    /// Keys
    #[arg(required = true, value_name = "KEY")]
    pub keys: Vec<OsString>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub hex: HexArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub store: ReadArgs,
}

/// `rockmill put`
pub fn put(args: &PutArgs, family: Option<&str>, out: &mut Out) -> Result<()> {
    let key = store::bytes_arg("key", &args.key, args.hex.keys())?;
    let value = value_arg("value", &args.value, args.hex.values())?;
    let options = store::durability(args.durability)?;
    let open = OpenToWrite { path: &args.db, args: &args.store, create: args.create, family, fs: None };
    let (db, cf) = open.open().map_err(how_to_create)?;
    db.put_cf_opt(&cf, &key, &value, &options)?;
    if args.durability.wal == Switch::Off {
        db.flush_cf(&cf)?;
    }
    if out.json {
        out.json_object(&json!({ "written": 1 }))?;
    }
    Ok(())
}

/// Adds a hint to the error for a missing database: how this command creates one.
pub fn how_to_create(e: CliError) -> CliError {
    match e.hint.as_deref() {
        Some(store::CREATE_HINT) => e.hint("--create makes a new database there"),
        _ => e,
    }
}

/// `rockmill merge`
pub fn merge(args: &MergeArgs, family: Option<&str>, out: &mut Out) -> Result<()> {
    let key = store::bytes_arg("key", &args.key, args.hex)?;
    let operand = value_arg("operand", &args.operand, args.hex)?;
    let options = store::durability(args.durability)?;
    let open = OpenToWrite { path: &args.db, args: &args.store, create: false, family, fs: None };
    let (db, cf) = open.open()?;
    if db.get_options_cf(&cf).cf.merge_operator.is_none() {
        // The store would keep the operand, but later refuse to read the key.
        return Err(CliError::usage(format!("column family {:?} has no merge operator that is known here", cf.name()))
            .hint("--option merge_operator=NAME sets uint64add, stringappend or max; a program has its own"));
    }
    let mut batch = WriteBatch::new();
    batch.merge_cf(&cf, &key, &operand);
    db.write_opt(&batch, &options)?;
    if args.durability.wal == Switch::Off {
        db.flush_cf(&cf)?;
    }
    if out.json {
        out.json_object(&json!({ "merged": 1 }))?;
    }
    Ok(())
}

/// A value given as an argument, or read from standard input.
fn value_arg(what: &str, arg: &OsStr, is_hex: bool) -> Result<Vec<u8>> {
    if arg == "-" { stdin_value(is_hex) } else { store::bytes_arg(what, arg, is_hex) }
}

fn stdin_value(is_hex: bool) -> Result<Vec<u8>> {
    let mut value = Vec::new();
    let read = std::io::stdin().lock().take(VALUE_LEN_MAX + 1).read_to_end(&mut value);
    read.map_err(|e| CliError::io("cannot read the value from standard input", &e))?;
    if value.len() as u64 > VALUE_LEN_MAX {
        return Err(CliError::usage("the value on standard input is longer than 4 GiB"));
    }
    if !is_hex {
        return Ok(value);
    }
    output::unhex(value.trim_ascii()).ok_or_else(|| CliError::usage("the value on standard input is not hexadecimal"))
}

/// `rockmill get`
pub fn get(args: &GetArgs, family: Option<&str>, out: &mut Out) -> Result<()> {
    let key = store::bytes_arg("key", &args.key, args.hex.keys())?;
    let db = store::open_to_read(&args.db, &args.store, None, Some(family.unwrap_or("default")))?;
    let cf = store::family(&db, family)?;
    let Some(value) = db.get_pinned_cf(&cf, &key)? else {
        return Err(CliError::not_found(format!("key {} not found", output::escape(&key, SHOWN_LEN_MAX))));
    };
    if out.json {
        return out.json_object(&output::entry_json(&key, Some(&value)));
    }
    if args.hex.values() {
        return out.line(output::hex(&value));
    }
    // To a pipe, prints only the value. On a terminal, a newline separates it from the prompt, and escaping keeps it
    // from controlling the terminal.
    if out.is_terminal() { out.line(output::escape(&value, usize::MAX)) } else { out.bytes(&value) }
}

/// `rockmill multi-get`
pub fn multi_get(args: &MultiGetArgs, family: Option<&str>, out: &mut Out) -> Result<()> {
    let key = |arg: &OsString| store::bytes_arg("key", arg, args.hex.keys());
    let keys: Vec<Vec<u8>> = args.keys.iter().map(key).collect::<Result<_>>()?;
    let db = store::open_to_read(&args.db, &args.store, None, Some(family.unwrap_or("default")))?;
    let cf = store::family(&db, family)?;
    let append = scan::Append::new(args.hex, out.is_terminal());
    let mut missing = Vec::new();
    let mut line = Vec::new();
    for (key, value) in keys.iter().zip(db.multi_get_cf(keys.iter().map(|key| (&cf, key)))) {
        let value = value?;
        if value.is_none() {
            missing.push(output::escape(key, SHOWN_LEN_MAX));
        }
        match (&value, out.json) {
            (_, true) => {
                let mut entry = output::entry_json(key, value.as_deref());
                entry["found"] = Value::from(value.is_some());
                out.json_line(&entry)?;
            }
            (Some(value), false) => {
                line.clear();
                scan::entry_line(&mut line, key, Some(value), append);
                out.bytes(&line)?;
            }
            (None, false) => {}
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    let more = if missing.len() > SHOWN_KEYS_MAX { ", ..." } else { "" };
    let named = missing[..missing.len().min(SHOWN_KEYS_MAX)].join(", ");
    let of = output::plural(keys.len() as u64, "key");
    Err(CliError::not_found(format!("{} of {of} not found: {named}{more}", missing.len())))
}

/// `rockmill delete`
pub fn delete(args: &DeleteArgs, family: Option<&str>, out: &mut Out) -> Result<()> {
    let bytes = |arg| store::bytes_arg("key", arg, args.hex);
    let keys: Vec<Vec<u8>> = args.keys.iter().map(|k| bytes(k)).collect::<Result<_>>()?;
    let range = match (&args.from, &args.to) {
        (Some(from), Some(to)) => Some((bytes(from)?, bytes(to)?)),
        _ => None,
    };
    let options = store::durability(args.durability)?;
    let open = OpenToWrite { path: &args.db, args: &args.store, create: false, family, fs: None };
    let (db, cf) = open.open()?;
    let mut batch = WriteBatch::new();
    for key in &keys {
        batch.delete_cf(&cf, key);
    }
    if let Some((from, to)) = &range {
        batch.delete_range_cf(&cf, from, to);
    }
    db.write_opt(&batch, &options)?;
    if args.durability.wal == Switch::Off {
        db.flush_cf(&cf)?;
    }
    if out.json {
        out.json_object(&json!({ "deleted_keys": keys.len(), "deleted_ranges": usize::from(range.is_some()) }))?;
    }
    Ok(())
}
