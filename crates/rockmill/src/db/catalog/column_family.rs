//! Column families: the handle users hold, and the state behind it.

use std::sync::{Arc, Weak};

use rockmill_format::InternalKeyComparator;

use crate::db::catalog::super_version::SuperVersion;
use crate::error::{Error, ErrorKind};
use crate::merge_operator::MergeOperator;
use crate::options::CfOptions;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{ArcSwap, Mutex};
use crate::version::{PurgeQueue, TableDirs, Version};

/// What readers and writers of a column family share. The mutable rest is under the database's lock.
pub(crate) struct CfData {
    pub id: u32,
    pub name: String,
    /// The opening that it belongs to ([`Opened::number`](crate::db::open::Opened::number)).
    pub opening: u64,
    /// Replaced whole by `set_options`.
    pub options: ArcSwap<CfOptions>,
    pub cmp: InternalKeyComparator,
    /// The comparator of the options. No call changes it; it is here so that reads need not load the options.
    pub merge_operator: Option<Arc<dyn MergeOperator>>,
    /// What a reader sees; replaced whole when a memtable or the version changes.
    pub current: ArcSwap<SuperVersion>,
    /// Seconds that values live, in a database with a time to live; 0 for ever.
    pub time_to_live: Option<Arc<AtomicU64>>,
    pub dropped: AtomicBool,
    /// Receives its tables after their last use; it knows their directories.
    pub purge: Arc<PurgeQueue>,
    pub published: Published,
}

/// The versions that were published to readers so far.
#[derive(Default)]
pub(crate) struct Published {
    /// Former versions that are still in use. A leaf lock.
    versions: Mutex<Vec<Weak<Version>>>,
    /// How often `current` was replaced.
    times: AtomicU64,
}

impl CfData {
    /// Notes that what readers see was replaced; `version` is part of it.
    pub fn note_published(&self, version: &Arc<Version>) {
        self.published.times.fetch_add(1, Ordering::Relaxed);
        let mut versions = self.published.versions.lock();
        if versions.last().is_none_or(|last| last.as_ptr() != Arc::as_ptr(version)) {
            versions.retain(|v| v.strong_count() > 0);
            versions.push(Arc::downgrade(version));
        }
    }

    /// Versions that are current or in use.
    pub fn live_versions(&self) -> Vec<Arc<Version>> {
        self.published.versions.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// How often what readers see was replaced.
    pub fn super_version_number(&self) -> u64 {
        self.published.times.load(Ordering::Relaxed)
    }

    /// The directories of its tables.
    pub fn dirs(&self) -> &TableDirs {
        self.purge.dirs()
    }

    pub fn is_dropped(&self) -> bool {
        self.dropped.load(Ordering::Acquire)
    }

    /// The error of a call on it after it was dropped.
    pub fn dropped_error(&self) -> Error {
        Error::new(ErrorKind::ColumnFamilyDropped, format!("column family {:?} was dropped", self.name))
    }
}

/// A column family of an open database. Cheap to clone; stays usable for reads after the family is dropped.
///
/// It belongs only to the [`Db`](crate::Db) that returned it: a call that gets a handle of another database, or of an
/// earlier opening of the same database, refuses it with `InvalidArgument`. A [`WriteBatch`](crate::WriteBatch) with
/// such a handle is refused when it is written.
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
