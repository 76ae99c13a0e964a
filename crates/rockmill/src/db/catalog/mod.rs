//! What exists: the tree's versions, column families, options.
//!
//! | file | what happens there |
//! |---|---|
//! | `install.rs` | edits go to the MANIFEST, versions become current |
//! | `column_family.rs`, `families.rs` | handles; families made and dropped |
//! | `super_version.rs` | what a read looks at: what is in no table, and the tables, of one moment |
//! | `value_times.rs` | values that end with the time of their writing |
//! | `set_options.rs`, `options_file.rs` | options that change while the database is open; OPTIONS files |
//! | `table_paths.rs` | the directories of tables, which of them an opening finds, and whose they are |
//! | `merge_names.rs` | whether a table's merge operator is the one given |

pub(crate) mod column_family;
pub(crate) mod families;
pub(crate) mod install;
pub(crate) mod merge_names;
pub(crate) mod options_file;
pub(crate) mod set_options;
pub(crate) mod super_version;
pub(crate) mod table_paths;
pub(crate) mod value_times;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::options::DbOptions;
use crate::sync::{ArcSwap, Guard, Mutex, MutexGuard};
use crate::version::ManifestWriter;
use column_family::ColumnFamily;

/// What exists, and the files that record it.
pub(crate) struct Catalog {
    /// Readers and writers find column families here without a lock.
    families: ArcSwap<CfMap>,
    default_cf: ColumnFamily,
    /// Replaced whole by `set_db_options`.
    options: ArcSwap<DbOptions>,
    /// Held during a change of options or column families, until the OPTIONS file has it.
    options_turn: Mutex<()>,
    /// Held during a change of the tree, until its edit is durable. `None` until the database is open.
    manifest: Mutex<Option<ManifestWriter>>,
}

impl Catalog {
    /// For a database that is being opened with these options; its column families are not published yet.
    pub fn new(default_cf: ColumnFamily, options: &DbOptions) -> Self {
        Self {
            families: ArcSwap::default(),
            default_cf,
            options: ArcSwap::from_pointee(options.clone()),
            options_turn: Mutex::new(()),
            manifest: Mutex::new(None),
        }
    }

    /// The column families.
    #[inline]
    pub fn families(&self) -> Guard<Arc<CfMap>> {
        self.families.load()
    }

    /// The one that is always there.
    #[inline]
    pub fn default_cf(&self) -> &ColumnFamily {
        &self.default_cf
    }

    /// The options as they are now.
    #[inline]
    pub fn options(&self) -> Guard<Arc<DbOptions>> {
        self.options.load()
    }

    /// Locks options and column families for a change.
    pub fn options_turn(&self) -> MutexGuard<'_, ()> {
        self.options_turn.lock()
    }

    /// Locks the tree for a change.
    pub fn lock_manifest(&self) -> MutexGuard<'_, Option<ManifestWriter>> {
        self.manifest.lock()
    }
}

/// Column families by name and by id.
#[derive(Default)]
pub(crate) struct CfMap {
    by_name: BTreeMap<String, ColumnFamily>,
    /// A tree map: writes look up the column family of each record, and there are usually few.
    by_id: BTreeMap<u32, ColumnFamily>,
}

impl CfMap {
    /// The one with this id.
    #[inline]
    pub fn get(&self, id: u32) -> Option<&ColumnFamily> {
        self.by_id.get(&id)
    }

    /// The one with this name.
    pub fn named(&self, name: &str) -> Option<&ColumnFamily> {
        self.by_name.get(name)
    }

    /// All of them, by name.
    pub fn all(&self) -> impl Iterator<Item = &ColumnFamily> {
        self.by_name.values()
    }
}
