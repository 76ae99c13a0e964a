//! `rockmill scan`: entries in key order.

use rockmill::ReadOptions;
use serde_json::json;

use crate::args::ScanArgs;
use crate::error::Result;
use crate::hex::HexArgs;
use crate::output::{self, Out};
use crate::store;

/// Readahead size in bytes: a scan reads every block in its range.
const READAHEAD: usize = 1 << 20;

/// `rockmill scan`
pub fn run(args: &ScanArgs, family: Option<&str>, out: &mut Out) -> Result<()> {
    let key = |what: &str, arg: &Option<_>| {
        arg.as_ref().map(|a: &std::ffi::OsString| store::bytes_arg(what, a, args.hex.keys())).transpose()
    };
    let mut options = ReadOptions::default();
    if let Some(from) = key("--from", &args.from)? {
        options.set_iterate_lower_bound(from);
    }
    if let Some(to) = key("--to", &args.to)? {
        options.set_iterate_upper_bound(to);
    }
    if let Some(prefix) = key("--prefix", &args.prefix)? {
        options.set_iterate_prefix(prefix);
    }
    let limit = args.limit.unwrap_or(u64::MAX);
    // A few entries are probably in the same block; for more, large reads pay off.
    if limit > 1000 {
        options.set_readahead_size(READAHEAD);
    }
    options.fill_cache(false);

    let db = store::open_to_read(&args.db, &args.store, None, Some(family.unwrap_or("default")))?;
    let cf = store::family(&db, family)?;
    let mut iter = db.raw_iterator_cf_opt(&cf, options);
    let mut found = 0u64;
    let mut line = Vec::new();
    let append = Append::new(args.hex, out.is_terminal());
    if limit > 0 {
        if args.reverse { iter.seek_to_last() } else { iter.seek_to_first() }
    }
    while found < limit
        && let Some((key, value)) = iter.item()
    {
        found += 1;
        if !args.count {
            if out.json {
                out.json_line(&output::entry_json(key, (!args.keys_only).then_some(value)))?;
            } else {
                line.clear();
                entry_line(&mut line, key, (!args.keys_only).then_some(value), append);
                out.bytes(&line)?;
            }
        }
        if found < limit {
            if args.reverse { iter.prev() } else { iter.next() }
        }
    }
    iter.status()?;
    match (args.count, out.json) {
        (true, true) => out.json_object(&json!({ "count": found })),
        (true, false) => out.line(found.to_string()),
        (false, _) => Ok(()),
    }
}

/// Appends bytes to a line.
pub type AppendBytes = fn(&mut Vec<u8>, &[u8]);

/// How keys and values are printed.
#[derive(Clone, Copy)]
pub struct Append {
    /// Appends a key.
    pub key: AppendBytes,
    /// Appends a value.
    pub value: AppendBytes,
}

impl Append {
    /// As the flags say, to a terminal or not.
    pub fn new(hex: HexArgs, terminal: bool) -> Self {
        Self { key: append_as(hex.keys(), terminal), value: append_as(hex.values(), terminal) }
    }
}

/// In hexadecimal; raw for a pipe; or escaped for a terminal, so that it cannot control the terminal.
pub fn append_as(hex: bool, terminal: bool) -> AppendBytes {
    match (hex, terminal) {
        (true, _) => output::append_hex,
        (false, false) => |line, bytes| line.extend_from_slice(bytes),
        (false, true) => |line, bytes| line.extend_from_slice(output::escape(bytes, usize::MAX).as_bytes()),
    }
}

/// Key, tab, value, and the line's end.
pub fn entry_line(line: &mut Vec<u8>, key: &[u8], value: Option<&[u8]>, append: Append) {
    (append.key)(line, key);
    if let Some(value) = value {
        line.push(b'\t');
        (append.value)(line, value);
    }
    line.push(b'\n');
}
