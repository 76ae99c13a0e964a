//! The contents of a database as seen by Rockmill, `ldb` and `sst_dump`, and comparisons that report the first
//! difference instead of printing megabytes.

use std::path::Path;

use rockmill::{ColumnFamilyDescriptor, Db, IteratorMode, Options, ReadOptions};

use super::ops::Contents;
use super::{from_hex, run_tool, to_hex};

/// Keys and values in order.
pub type Entries = Vec<(Vec<u8>, Vec<u8>)>;

/// A model's entries.
pub fn entries(contents: &Contents) -> Entries {
    contents.iter().map(|(k, v)| (k.clone(), v.clone())).collect()
}

/// Panics naming the first difference.
#[track_caller]
pub fn same(what: &str, expected: &Entries, found: &Entries) {
    let show = |e: Option<&(Vec<u8>, Vec<u8>)>| match e {
        None => "nothing".to_owned(),
        Some((k, v)) => {
            let mut value = to_hex(v);
            value.truncate(60);
            format!("key {} value ({} bytes) {value}", to_hex(k), v.len())
        }
    };
    let at = expected.iter().zip(found).position(|(a, b)| a != b);
    let at = at.or((expected.len() != found.len()).then(|| expected.len().min(found.len())));
    if let Some(at) = at {
        panic!(
            "{what}: entry {at} differs ({} expected, {} found)\n  expected: {}\n  found:    {}",
            expected.len(),
            found.len(),
            show(expected.get(at)),
            show(found.get(at))
        );
    }
}

/// Opens a database with all its column families, each with these options.
#[track_caller]
pub fn open_all(options: &Options, path: &Path) -> Db {
    try_open_all(options, path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The same, for databases that may not open.
pub fn try_open_all(options: &Options, path: &Path) -> rockmill::Result<Db> {
    let families = Db::list_cf(options, path)?;
    let descriptors = families.into_iter().map(|name| ColumnFamilyDescriptor::new(name, options.clone()));
    Db::open_cf_descriptors(options, path, descriptors)
}

/// Reads the contents with Rockmill, and checks that all ways of reading agree: forwards, backwards, by key.
#[track_caller]
pub fn read(db: &Db, family: &str) -> Entries {
    try_read(db, family).unwrap_or_else(|e| panic!("reading {family}: {e}"))
}

/// The same, for databases that may be damaged: the first error of any read.
#[track_caller]
pub fn try_read(db: &Db, family: &str) -> rockmill::Result<Entries> {
    let cf = db.cf_handle(family).unwrap_or_else(|| panic!("no column family {family}"));
    let mut forwards = Entries::new();
    for entry in db.iterator_cf(&cf, IteratorMode::Start) {
        let (key, value) = entry?;
        forwards.push((key.into_vec(), value.into_vec()));
    }
    let mut backwards = Entries::new();
    for entry in db.iterator_cf(&cf, IteratorMode::End) {
        let (key, value) = entry?;
        backwards.push((key.into_vec(), value.into_vec()));
    }
    backwards.reverse();
    same("backwards against forwards", &forwards, &backwards);
    // About a thousand lookups, and as many of absent keys.
    for (key, value) in forwards.iter().step_by(forwards.len() / 1000 + 1) {
        let found = db.get_cf(&cf, key)?;
        assert_eq!(found.as_ref(), Some(value), "get of {} differs from the iterator", to_hex(key));
        let absent = [key.as_slice(), b"\0absent"].concat();
        assert_eq!(db.get_cf(&cf, &absent)?, None, "get of the absent {}", to_hex(&absent));
    }
    Ok(forwards)
}

/// What Rockmill sees through a snapshot.
#[track_caller]
pub fn read_at(db: &Db, family: &str, snapshot: &rockmill::Snapshot<'_>) -> Entries {
    let cf = db.cf_handle(family).unwrap_or_else(|| panic!("no column family {family}"));
    let mut options = ReadOptions::default();
    options.set_snapshot(snapshot);
    let mut out = Entries::new();
    for entry in db.iterator_cf_opt(&cf, options, IteratorMode::Start) {
        let (key, value) = entry.unwrap_or_else(|e| panic!("reading {family} at a snapshot: {e}"));
        out.push((key.into_vec(), value.into_vec()));
    }
    for (key, value) in out.iter().step_by(out.len() / 200 + 1) {
        let mut options = ReadOptions::default();
        options.set_snapshot(snapshot);
        let found = db.get_cf_opt(&cf, key, &options).unwrap_or_else(|e| panic!("get at a snapshot: {e}"));
        assert_eq!(found.as_ref(), Some(value), "get of {} at a snapshot differs", to_hex(key));
    }
    out
}

/// What `ldb scan` prints.
pub fn ldb_scan(ldb: &Path, db: &Path, family: &str) -> Result<Entries, String> {
    let args = [&format!("--db={}", db.display()), &format!("--column_family={family}"), "--hex", "scan"];
    let mut out = Entries::new();
    for line in run_tool(ldb, &args)?.lines() {
        let Some((key, value)) = line.split_once(" : ") else { continue };
        let bare = |s: &str| s.trim().trim_start_matches("0x").to_owned();
        let (key, value) = (bare(key), bare(value));
        out.push((
            from_hex(if key.is_empty() { "-" } else { &key }),
            from_hex(if value.is_empty() { "-" } else { &value }),
        ));
    }
    Ok(out)
}

/// An entry of a table as `sst_dump` prints it: user key, sequence number, type, value.
pub type TableEntry = (Vec<u8>, u64, u8, Vec<u8>);

/// What `sst_dump --command=scan` prints of one table.
pub fn sst_scan(sst_dump: &Path, table: &Path) -> Result<Vec<TableEntry>, String> {
    let out = run_tool(sst_dump, &[&format!("--file={}", table.display()), "--command=scan", "--output_hex"])?;
    let mut entries = Vec::new();
    // 'HEX' seq:N, type:T => HEX
    for line in out.lines().filter(|l| l.starts_with('\'')) {
        let parse = || {
            let (key, rest) = line.strip_prefix('\'')?.split_once("' seq:")?;
            let (seq, rest) = rest.split_once(", type:")?;
            let (kind, value) = rest.split_once(" =>")?;
            let hex = |s: &str| from_hex(if s.is_empty() { "-" } else { s });
            Some((hex(key), seq.parse().ok()?, kind.parse().ok()?, hex(value.trim())))
        };
        entries.push(parse().ok_or_else(|| format!("sst_dump printed an unknown line: {line}"))?);
    }
    Ok(entries)
}
