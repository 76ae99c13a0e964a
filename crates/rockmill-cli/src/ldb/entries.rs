//! `ldb`'s `dump` and `idump`, in `ldb`'s form.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Args;
use rockmill::{Db, ReadOptions};
use serde_json::json;

use crate::args::ReadArgs;
use crate::error::Result;
use crate::hex::HexArgs;
use crate::output::{self, Out};
use crate::scan::{self, AppendBytes};
use crate::store;

/// What of the entries is printed.
#[derive(Debug, Args)]
pub struct Shown {
    /// The most entries to print
    #[arg(long, alias = "max_keys", value_name = "N")]
    pub max_keys: Option<u64>,
    /// Print only how many there are
    #[arg(long, alias = "count_only")]
    pub count_only: bool,
    /// Print the number and bytes of entries by the part of their keys before the first DELIM [default: .]
    #[arg(long, value_name = "DELIM", num_args = 0..=1, require_equals = true, default_missing_value = ".")]
    pub count_delim: Option<char>,
    /// Print statistics of the column family first
    #[arg(long)]
    pub stats: bool,
}

/// Print every entry, in `ldb`'s form
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rockmill --db=my.db dump --from=user:1000 --to=user:2000
  rockmill --db=my.db dump --count_delim=:")]
pub struct DumpEntriesArgs {
    /// Database directory
    pub db: PathBuf,
    /// First key
    #[arg(long, value_name = "KEY")]
    pub from: Option<OsString>,
    /// End of the range; the key itself is not printed
    #[arg(long, value_name = "KEY")]
    pub to: Option<OsString>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub hex: HexArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub shown: Shown,
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
    #[command(flatten)]
    #[allow(missing_docs)]
    pub hex: HexArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub shown: Shown,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub store: ReadArgs,
}

/// Counts entries, and sums up those whose keys begin alike.
struct Counter<'a> {
    shown: &'a Shown,
    found: u64,
    /// The part of the keys before the delimiter; how many follow each other, and their bytes.
    prefix: Vec<u8>,
    alike: u64,
    bytes: u64,
}

impl<'a> Counter<'a> {
    fn new(shown: &'a Shown) -> Self {
        Self { shown, found: 0, prefix: Vec::new(), alike: 0, bytes: 0 }
    }

    /// True if another entry is wanted.
    fn wants_more(&self) -> bool {
        self.found < self.shown.max_keys.unwrap_or(u64::MAX)
    }

    /// Counts an entry; true if it is to be printed.
    fn count(&mut self, key: &[u8], value: &[u8], out: &mut Out) -> Result<bool> {
        self.found += 1;
        let Some(delim) = self.shown.count_delim else { return Ok(!self.shown.count_only) };
        let mut end = [0; 4];
        let end = delim.encode_utf8(&mut end).as_bytes();
        let prefix = key.windows(end.len()).position(|w| w == end).map_or(key, |at| &key[..at]);
        if self.alike > 0 && self.prefix != prefix {
            self.print_prefix(out)?;
            (self.alike, self.bytes) = (0, 0);
        }
        self.prefix.clear();
        self.prefix.extend_from_slice(prefix);
        self.alike += 1;
        self.bytes += (key.len() + value.len()) as u64;
        Ok(false)
    }

    fn print_prefix(&self, out: &mut Out) -> Result<()> {
        if out.json {
            let mut entry = output::entry_json(&self.prefix, None);
            entry["count"] = json!(self.alike);
            entry["bytes"] = json!(self.bytes);
            return out.json_line(&entry);
        }
        let mut line = Vec::new();
        scan::append_as(false, out.is_terminal())(&mut line, &self.prefix);
        line.extend_from_slice(format!(" => count:{}\tsize:{}\n", self.alike, self.bytes).as_bytes());
        out.bytes(&line)
    }

    /// Prints the last lines; `what` was counted.
    fn end(&self, what: &str, out: &mut Out) -> Result<()> {
        match (self.shown.count_delim, out.json) {
            (Some(_), _) => self.print_prefix(out),
            (None, true) if self.shown.count_only => out.json_object(&json!({ "count": self.found })),
            (None, true) => Ok(()),
            (None, false) => out.line(format!("{what} in range: {}", self.found)),
        }
    }
}

/// Opens the database, and prints its statistics if they are wanted.
fn open(db: &Path, store: &ReadArgs, shown: &Shown, family: Option<&str>, out: &mut Out) -> Result<Db> {
    let db = store::open_to_read(db, store, None, Some(family.unwrap_or("default")))?;
    if shown.stats && !out.json {
        let cf = store::family(&db, family)?;
        out.line(db.property_value_cf(&cf, "rocksdb.stats")?.unwrap_or_default())?;
    }
    Ok(db)
}

/// In the hexadecimal form of `ldb dump`, or as `scan` prints it.
fn append_as(hex: bool, terminal: bool) -> AppendBytes {
    if !hex {
        return scan::append_as(false, terminal);
    }
    |line, bytes| {
        line.extend_from_slice(b"0x");
        line.extend_from_slice(output::hex(bytes).to_ascii_uppercase().as_bytes());
    }
}

/// `rockmill --db=DIR dump`
pub fn dump(args: &DumpEntriesArgs, family: Option<&str>, out: &mut Out) -> Result<()> {
    let key =
        |what, arg: &Option<OsString>| arg.as_ref().map(|key| store::bytes_arg(what, key, args.hex.keys())).transpose();
    let mut options = ReadOptions::default();
    if let Some(from) = key("--from", &args.from)? {
        options.set_iterate_lower_bound(from);
    }
    if let Some(to) = key("--to", &args.to)? {
        options.set_iterate_upper_bound(to);
    }
    options.fill_cache(false);
    let db = open(&args.db, &args.store, &args.shown, family, out)?;
    let cf = store::family(&db, family)?;
    let terminal = out.is_terminal();
    let (append_key, append_value) = (append_as(args.hex.keys(), terminal), append_as(args.hex.values(), terminal));
    let mut counter = Counter::new(&args.shown);
    let mut line = Vec::new();
    let mut entries = db.raw_iterator_cf_opt(&cf, options);
    entries.seek_to_first();
    while counter.wants_more()
        && let Some((key, value)) = entries.item()
    {
        if counter.count(key, value, out)? {
            if out.json {
                out.json_line(&output::entry_json(key, Some(value)))?;
            } else {
                line.clear();
                append_key(&mut line, key);
                line.extend_from_slice(b" ==> ");
                append_value(&mut line, value);
                line.push(b'\n');
                out.bytes(&line)?;
            }
        }
        entries.next();
    }
    entries.status()?;
    counter.end("Keys", out)
}

/// `rockmill idump`
pub fn idump(args: &IdumpArgs, family: Option<&str>, out: &mut Out) -> Result<()> {
    let key = |what, arg: &Option<OsString>| {
        arg.as_ref().map(|key| store::bytes_arg(what, key, args.input_key_hex)).transpose()
    };
    let (from, to) = (key("--from", &args.from)?, key("--to", &args.to)?);
    let db = open(&args.db, &args.store, &args.shown, family, out)?;
    let cf = store::family(&db, family)?;
    let append = scan::Append::new(args.hex, out.is_terminal());
    let mut versions = db.key_versions_cf(&cf, from.as_deref(), to.as_deref())?;
    let mut counter = Counter::new(&args.shown);
    let mut line = Vec::new();
    while counter.wants_more()
        && let Some(version) = versions.next().transpose()?
    {
        if !counter.count(&version.user_key, &version.value, out)? {
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
        (append.key)(&mut line, &version.user_key);
        line.extend_from_slice(format!("' seq:{}, type:{} => ", version.sequence, version.value_type).as_bytes());
        (append.value)(&mut line, &version.value);
        line.push(b'\n');
        out.bytes(&line)?;
    }
    counter.end("Internal keys", out)
}
