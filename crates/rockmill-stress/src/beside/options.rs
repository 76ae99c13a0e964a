//! A configuration's options for RocksDB: the values that Rockmill would write into an OPTIONS file.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use rockmill::Options;
use rockmill_rocksdb::store::{self as rocksdb, Kept, Open};
use rockmill_rocksdb::{DbOptions, Library};

use super::store::Said;
use crate::kinds::Kind;

/// Options that are objects or paths, or that are set in another way. RocksDB supports direct reads only if the file
/// system does, which a test's file system may not.
const NOT_TOLD: &[&str] = &[
    "comparator",
    "merge_operator",
    "compaction_filter",
    "compaction_filter_factory",
    "table_factory",
    "memtable_factory",
    "create_if_missing",
    "create_missing_column_families",
    "use_direct_reads",
    "use_direct_io_for_flush_and_compaction",
    "wal_dir",
    "db_log_dir",
    "wal_filter",
    "statistics",
    "row_cache",
    "env",
    "file_checksum_gen_factory",
    "sst_partitioner_factory",
    "block_cache",
    "persistent_cache",
    "flush_block_policy_factory",
];

/// What a library is, found by trying.
pub(super) struct Peer {
    pub library: Arc<Library>,
    /// Major and minor.
    pub version: (u32, u32),
    /// Unsupported options, and how often each was omitted.
    pub left_out: Mutex<BTreeMap<String, u64>>,
    tried: Mutex<HashMap<String, bool>>,
}

impl Peer {
    /// Finds the version by creating a database at an unused path, which is removed again.
    ///
    /// # Errors
    /// Why the library cannot be used.
    pub fn new(library: Arc<Library>, scratch: &Path) -> Result<Self, String> {
        std::fs::create_dir_all(scratch).map_err(|e| format!("{}: {e}", scratch.display()))?;
        let options = library.options("create_if_missing=true", false)?;
        let families = vec![("default".to_owned(), library.options("", false)?)];
        drop(rocksdb::Store::open(&options, scratch, &families, Open::Plain)?);
        let version = written_by(scratch).ok_or("RocksDB wrote no OPTIONS file that says its version")?;
        std::fs::remove_dir_all(scratch).map_err(|e| format!("{}: {e}", scratch.display()))?;
        Ok(Self { library, version, left_out: Mutex::default(), tried: Mutex::default() })
    }

    /// The newest format of tables that it reads.
    pub fn format_max(&self) -> &'static str {
        match self.version {
            v if v >= (10, 4) => "7",
            v if v >= (8, 6) => "6",
            _ => "5",
        }
    }

    /// True if the library takes the text.
    fn takes(&self, text: &str) -> bool {
        *self.tried.lock().entry(text.to_owned()).or_insert_with(|| self.library.options(text, false).is_ok())
    }

    /// The options as texts, without those that the library does not support.
    pub fn texts(&self, options: &Options) -> Texts {
        let (mut plain, mut table) = (Vec::new(), Vec::new());
        for value in options.values() {
            if !value.in_files || NOT_TOLD.contains(&value.name) {
                continue;
            }
            let (name, text) = (value.name, &value.value);
            let braced = text.starts_with('{') || !text.contains([';', '=']);
            let pair = if braced { format!("{name}={text}") } else { format!("{name}={{{text}}}") };
            let of_table = value.section.starts_with("TableOptions");
            let alone = if of_table { format!("block_based_table_factory={{{pair}}}") } else { pair.clone() };
            match self.takes(&alone) {
                true if of_table => table.push(pair),
                true => plain.push(pair),
                false => *self.left_out.lock().entry(pair).or_default() += 1,
            }
        }
        plain.push(format!("block_based_table_factory={{{}}}", table.join(";")));
        Texts { text: plain.join(";") }
    }

    /// Notes something that was passed over.
    pub fn leave_out(&self, what: impl Into<String>) {
        *self.left_out.lock().entry(what.into()).or_default() += 1;
    }
}

/// The version in a directory's OPTIONS file.
fn written_by(dir: &Path) -> Option<(u32, u32)> {
    for entry in std::fs::read_dir(dir).ok()?.flatten() {
        if !entry.file_name().to_string_lossy().starts_with("OPTIONS-") {
            continue;
        }
        let text = std::fs::read_to_string(entry.path()).ok()?;
        let version = text.lines().find_map(|l| l.trim().strip_prefix("rocksdb_version="))?;
        let mut parts = version.split('.').map(|n| n.parse().ok());
        return Some((parts.next()??, parts.next()??));
    }
    None
}

/// Options as RocksDB's text.
#[derive(Debug, Clone)]
pub(super) struct Texts {
    text: String,
}

impl Texts {
    /// Of the database.
    ///
    /// # Errors
    /// RocksDB's.
    pub fn db(&self, library: &Arc<Library>, create: bool) -> Said<DbOptions> {
        let create = format!("create_if_missing={create};create_missing_column_families={create};");
        Ok(library.options(&(create + &self.text), false)?)
    }

    /// Of a column family of this kind.
    ///
    /// # Errors
    /// RocksDB's.
    pub fn family(&self, library: &Arc<Library>, kind: Kind) -> Said<DbOptions> {
        let more = match kind {
            Kind::Merging => ";merge_operator=stringappend",
            Kind::Counting => ";merge_operator=uint64add",
            Kind::Reversed => ";comparator=rocksdb.ReverseBytewiseComparator",
            // Not used in these histories: a comparator that is not a C function, and an order that RocksDB does not
            // support.
            Kind::Folded | Kind::Hashed => {
                return Err("Not implemented: a comparator of the tests' own".to_owned().into());
            }
            Kind::Plain | Kind::Filtered | Kind::Single | Kind::Expiring => "",
        };
        let options = library.options(&(self.text.clone() + more), false)?;
        match kind {
            Kind::Filtered => options.set_compaction_filter(filtered)?,
            Kind::Expiring => options.set_compaction_filter(expiring)?,
            _ => {}
        }
        Ok(options)
    }
}

/// What the filter of [`Kind::Filtered`] does.
fn filtered(value: &[u8]) -> Kept {
    kept(Kind::Filtered, value)
}

/// What the filter of [`Kind::Expiring`] does.
fn expiring(value: &[u8]) -> Kept {
    kept(Kind::Expiring, value)
}

fn kept(kind: Kind, value: &[u8]) -> Kept {
    match kind.settled(value) {
        None => Kept::Nothing,
        Some(rest) if rest.len() == value.len() => Kept::All,
        Some(rest) => Kept::After(value.len() - rest.len()),
    }
}
