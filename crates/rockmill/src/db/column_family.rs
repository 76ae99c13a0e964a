//! Column families: the handle users hold, and the state behind it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use rockmill_format::InternalKeyComparator;

use super::super_version::SuperVersion;
use super::ttl::ColumnFamilyTtl;
use crate::merge_operator::MergeOperator;
use crate::options::{CfOptions, Options};

/// Name of the column family that every database has.
pub const DEFAULT_COLUMN_FAMILY_NAME: &str = "default";

/// What readers and writers of a column family share. The mutable rest is under the database's lock.
pub(crate) struct CfData {
    pub id: u32,
    pub name: String,
    /// Replaced whole by `set_options`.
    pub options: ArcSwap<CfOptions>,
    pub cmp: InternalKeyComparator,
    /// That of the options: no call changes it, and reads need it without a look at them.
    pub merge_operator: Option<Arc<dyn MergeOperator>>,
    /// What a reader sees; replaced whole when a memtable or the version changes.
    pub current: ArcSwap<SuperVersion>,
    pub dropped: AtomicBool,
}

impl CfData {
    pub fn is_dropped(&self) -> bool {
        self.dropped.load(Ordering::Acquire)
    }
}

/// A column family of an open database. Cheap to clone; stays usable for reads after the family is dropped.
#[derive(Clone)]
pub struct ColumnFamily {
    pub(crate) data: Arc<CfData>,
}

impl ColumnFamily {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.data.name
    }

    /// Its id in the database.
    pub fn id(&self) -> u32 {
        self.data.id
    }
}

impl std::fmt::Debug for ColumnFamily {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ColumnFamily({}, {:?})", self.data.id, self.data.name)
    }
}

/// Anything that names a column family in a call (`rocksdb::AsColumnFamilyRef`).
pub trait AsColumnFamilyRef {
    /// The handle.
    fn as_cf(&self) -> &ColumnFamily;
}

impl AsColumnFamilyRef for ColumnFamily {
    fn as_cf(&self) -> &ColumnFamily {
        self
    }
}

impl<T: AsColumnFamilyRef + ?Sized> AsColumnFamilyRef for &T {
    fn as_cf(&self) -> &ColumnFamily {
        (**self).as_cf()
    }
}

impl<T: AsColumnFamilyRef + ?Sized> AsColumnFamilyRef for Arc<T> {
    fn as_cf(&self) -> &ColumnFamily {
        (**self).as_cf()
    }
}

/// A column family's name and options, to open it with.
#[derive(Debug, Clone)]
pub struct ColumnFamilyDescriptor {
    pub(crate) name: String,
    pub(crate) options: Options,
    /// Counts in opens with a time to live only.
    pub(crate) ttl: ColumnFamilyTtl,
}

impl ColumnFamilyDescriptor {
    /// Opens (or, with `create_missing_column_families`, creates) `name` with `options`; only their column family
    /// part counts.
    pub fn new(name: impl Into<String>, options: Options) -> Self {
        Self { name: name.into(), options, ttl: ColumnFamilyTtl::Disabled }
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The options; only their column family part counts.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The options, to change them.
    pub fn options_mut(&mut self) -> &mut Options {
        &mut self.options
    }
}
