//! put, get and delete.

use std::io::Read;

use serde_json::json;

use crate::args::{DeleteArgs, GetArgs, PutArgs, Switch};
use crate::error::{CliError, Result};
use crate::output::{self, Out};
use crate::store::{self, OpenToWrite};

/// Longest value taken from standard input, in bytes: what a write batch can hold.
const VALUE_LEN_MAX: u64 = u32::MAX as u64;

/// Longest key shown in a message, in bytes.
const SHOWN_LEN_MAX: usize = 100;

/// `rockmill put`
pub fn put(args: &PutArgs, family: Option<&str>, out: &mut Out) -> Result<()> {
    let key = store::bytes_arg("key", &args.key, args.hex)?;
    let value =
        if args.value == "-" { stdin_value(args.hex)? } else { store::bytes_arg("value", &args.value, args.hex)? };
    let options = store::durability(args.durability)?;
    let open = OpenToWrite { path: &args.db, args: &args.store, create: args.create, family, fs: None };
    let (db, cf) = open.open().map_err(|e| match e.hint.as_deref() {
        Some(store::CREATE_HINT) => e.hint("--create makes a new database there"),
        _ => e,
    })?;
    db.put_cf_opt(&cf, &key, &value, &options)?;
    if args.durability.wal == Switch::Off {
        db.flush_cf(&cf)?;
    }
    if out.json {
        out.json_object(&json!({ "written": 1 }))?;
    }
    Ok(())
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
    let key = store::bytes_arg("key", &args.key, args.hex)?;
    let db = store::open_to_read(&args.db, &args.store, None, Some(family.unwrap_or("default")))?;
    let cf = store::family(&db, family)?;
    let Some(value) = db.get_pinned_cf(&cf, &key)? else {
        return Err(CliError::not_found(format!("key {} not found", output::escape(&key, SHOWN_LEN_MAX))));
    };
    if out.json {
        return out.json_object(&output::entry_json(&key, Some(&value)));
    }
    if args.hex {
        return out.line(output::hex(&value));
    }
    // Piped on, the value is all there is. Before people's eyes the prompt should not stick to it, and the terminal
    // must not take orders from it.
    if out.is_terminal() { out.line(output::escape(&value, usize::MAX)) } else { out.bytes(&value) }
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
    let mut batch = rockmill::WriteBatch::new();
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
