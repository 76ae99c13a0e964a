//! Databases whose values expire (RocksDB's `DBWithTTL`, utilities/ttl).
//!
//! 1. Every value and merge operand of every column family ends with the Unix time of its writing: four bytes,
//!    little-endian. Writes add it, reads take it off.
//! 2. A compaction filter removes values that are older than the column family's time to live. Until a compaction
//!    meets them, they can be read.
//! 3. The user's merge operator and compaction filter see values without the time. A merged value gets the time of the
//!    merge; a value that a filter changes keeps its time.
//!
//! Values of ingested tables must have the times already, and the tables (`VALUES_WITH_TIMES` of
//! `catalog/value_times.rs`) or the caller must say so. Otherwise the last bytes of values would be lost, or keys could
//! not be read.
//!
//! Nothing in the database says that its values have times: every open must say it. A value whose time is before
//! RocksDB had the feature is treated as damage, which catches databases that are opened this way by mistake.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rockmill_io::Clock;

use crate::compaction_filter::ttl::{User, factory, split};
use crate::db::catalog::value_times::{TTL_MERGE_OPERATOR, stamp_now};
use crate::db::open::start::{OpenMode, open};
use crate::db::{AsColumnFamilyRef, ColumnFamily, Db};
use crate::error::{Error, Result};
use crate::merge_operator::{MergeOperands, MergeOperator};
use crate::options::{CfOptions, ColumnFamilyDescriptor, ColumnFamilyTtl, DbOptions, Options};
use crate::sync::atomic::Ordering;

impl ColumnFamilyTtl {
    /// Seconds; 0 for ever.
    fn seconds(self, of_db: Duration) -> u64 {
        match self {
            Self::Disabled => 0,
            Self::Duration(d) => d.as_secs(),
            Self::SameAsDb => of_db.as_secs(),
        }
    }
}

impl ColumnFamilyDescriptor {
    /// As [`Self::new`], with a time to live, for [`Db::open_cf_descriptors_with_ttl`].
    pub fn new_with_ttl(name: impl Into<String>, options: Options, ttl: ColumnFamilyTtl) -> Self {
        Self { ttl, ..Self::new(name, options) }
    }

    /// The time to live.
    pub fn ttl(&self) -> ColumnFamilyTtl {
        self.ttl
    }
}

impl Db {
    /// Opens a database whose values are removed by compactions when they are older than `ttl` (whole seconds; zero
    /// keeps them for ever). Once written this way, it must always be opened this way, by RocksDB too (`DBWithTTL`,
    /// `ldb --ttl`).
    pub fn open_with_ttl(options: &Options, path: impl AsRef<Path>, ttl: Duration) -> Result<Self> {
        Self::open_cf_with_ttl(options, path, [crate::db::DEFAULT_COLUMN_FAMILY_NAME], ttl)
    }

    /// Opens a database with these column families, all with the same options and time to live; see
    /// [`Self::open_with_ttl`].
    pub fn open_cf_with_ttl(
        options: &Options,
        path: impl AsRef<Path>,
        cfs: impl IntoIterator<Item = impl AsRef<str>>,
        ttl: Duration,
    ) -> Result<Self> {
        let same = ColumnFamilyTtl::SameAsDb;
        let cfs = cfs.into_iter().map(|n| ColumnFamilyDescriptor::new_with_ttl(n.as_ref(), options.clone(), same));
        Self::open_cf_descriptors_with_ttl(options, path, cfs, ttl)
    }

    /// Opens a database with these column families and their times to live, `ttl` for those that say
    /// [`ColumnFamilyTtl::SameAsDb`]; see [`Self::open_with_ttl`].
    pub fn open_cf_descriptors_with_ttl(
        options: &Options,
        path: impl AsRef<Path>,
        cfs: impl IntoIterator<Item = ColumnFamilyDescriptor>,
        ttl: Duration,
    ) -> Result<Self> {
        let cfs = cfs.into_iter().map(|mut d| {
            wrap(&mut d.options.cf, &options.db, d.ttl.seconds(ttl));
            d
        });
        open(options, path.as_ref(), cfs.collect(), OpenMode { with_ttl: true, ..OpenMode::default() })
    }

    /// Creates a column family with a time to live, in a database that was opened with one
    /// (`CreateColumnFamilyWithTtl`).
    pub fn create_cf_with_ttl(&self, name: impl AsRef<str>, options: &Options, ttl: Duration) -> Result<ColumnFamily> {
        if !self.inner.opened.with_ttl {
            return Err(self.not_with_ttl());
        }
        let mut options = options.clone();
        wrap(&mut options.cf, &self.inner.opts, ttl.as_secs());
        self.create_wrapped_cf(name.as_ref(), &options)
    }

    /// Opens a database with a time to live for reading; see [`Self::open_with_ttl`] and
    /// [`Self::open_for_read_only`].
    pub fn open_with_ttl_for_read_only(
        options: &Options,
        path: impl AsRef<Path>,
        error_if_wal_exists: bool,
    ) -> Result<Self> {
        Self::open_cf_with_ttl_for_read_only(
            options,
            path,
            [crate::db::DEFAULT_COLUMN_FAMILY_NAME],
            error_if_wal_exists,
        )
    }

    /// Opens some column families of a database with a time to live for reading; see [`Self::open_with_ttl`] and
    /// [`Self::open_for_read_only`].
    pub fn open_cf_with_ttl_for_read_only(
        options: &Options,
        path: impl AsRef<Path>,
        cfs: impl IntoIterator<Item = impl AsRef<str>>,
        error_if_wal_exists: bool,
    ) -> Result<Self> {
        let cfs = cfs.into_iter().map(|name| ColumnFamilyDescriptor::new(name.as_ref(), options.clone()));
        Self::open_cf_descriptors_with_ttl_read_only(options, path, cfs, error_if_wal_exists)
    }

    /// As [`Self::open_cf_with_ttl_for_read_only`], with options for each column family.
    pub fn open_cf_descriptors_with_ttl_read_only(
        options: &Options,
        path: impl AsRef<Path>,
        cfs: impl IntoIterator<Item = ColumnFamilyDescriptor>,
        error_if_wal_exists: bool,
    ) -> Result<Self> {
        let cfs = cfs.into_iter().map(|mut d| {
            wrap(&mut d.options.cf, &options.db, 0);
            d
        });
        let mode = OpenMode { read_only: true, error_if_wal_exists, with_ttl: true };
        open(options, path.as_ref(), cfs.collect(), mode)
    }

    /// Changes the default column family's time to live; see [`Self::set_ttl_cf`].
    pub fn set_ttl(&self, ttl: Duration) -> Result<()> {
        self.set_ttl_cf(self.inner.catalog.default_cf(), ttl)
    }

    /// Changes a column family's time to live (RocksDB's `SetTtl`), for values already written as well; zero keeps them
    /// for ever. It applies to compactions that begin later, until the database is closed.
    pub fn set_ttl_cf(&self, cf: &impl AsColumnFamilyRef, ttl: Duration) -> Result<()> {
        self.inner.check_family(&cf.as_cf().data)?;
        match &cf.as_cf().data.time_to_live {
            Some(seconds) => seconds.store(ttl.as_secs(), Ordering::Release),
            None => return Err(self.not_with_ttl()),
        }
        Ok(())
    }

    /// A column family's time to live, zero for ever (RocksDB's `GetTtl`).
    pub fn ttl_cf(&self, cf: &impl AsColumnFamilyRef) -> Result<Duration> {
        self.inner.check_family(&cf.as_cf().data)?;
        let seconds = cf.as_cf().data.time_to_live.as_ref().ok_or_else(|| self.not_with_ttl())?;
        Ok(Duration::from_secs(seconds.load(Ordering::Acquire)))
    }

    fn not_with_ttl(&self) -> Error {
        Error::invalid_argument(format!(
            "{}: was not opened with a time to live; use Db::open_with_ttl",
            self.path().display()
        ))
    }
}

/// Puts the filter and operator that know of times around the user's.
pub(crate) fn wrap(cf: &mut CfOptions, db: &DbOptions, seconds: u64) {
    let clock = Arc::clone(&db.clock);
    let user = match (cf.compaction_filter.take(), cf.compaction_filter_factory.take()) {
        (Some(filter), _) => User::Filter(filter),
        (None, Some(factory)) => User::Factory(factory),
        (None, None) => User::None,
    };
    cf.compaction_filter_factory = Some(factory(seconds, user));
    if let Some(user) = cf.merge_operator.take() {
        cf.merge_operator = Some(Arc::new(TtlMergeOperator { user, clock }));
    }
}

/// The user's operator for values with times.
struct TtlMergeOperator {
    user: Arc<dyn MergeOperator>,
    clock: Arc<dyn Clock>,
}

impl TtlMergeOperator {
    fn merge(
        &self,
        operands: &MergeOperands<'_>,
        merge: impl FnOnce(&MergeOperands<'_>) -> Option<Vec<u8>>,
    ) -> Option<Vec<u8>> {
        let own: Option<Vec<&[u8]>> = operands.iter().map(|o| split(o).map(|(own, _)| own)).collect();
        let mut merged = merge(&MergeOperands::new(&own?))?;
        merged.extend_from_slice(&stamp_now(&*self.clock));
        Some(merged)
    }
}

impl MergeOperator for TtlMergeOperator {
    fn name(&self) -> &str {
        TTL_MERGE_OPERATOR
    }

    fn wraps(&self) -> Option<&str> {
        Some(self.user.name())
    }

    fn full_merge(&self, key: &[u8], existing: Option<&[u8]>, operands: &MergeOperands<'_>) -> Option<Vec<u8>> {
        let existing = match existing {
            Some(value) => Some(split(value)?.0),
            None => None,
        };
        self.merge(operands, |operands| self.user.full_merge(key, existing, operands))
    }

    fn partial_merge(&self, key: &[u8], operands: &MergeOperands<'_>) -> Option<Vec<u8>> {
        self.merge(operands, |operands| self.user.partial_merge(key, operands))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compaction_filter::ttl::factory_with;
    use crate::compaction_filter::{
        CompactionFilter as _, CompactionFilterContext, CompactionFilterFactory as _, Decision, TableFileCreationReason,
    };
    use crate::db::catalog::value_times::stamp;
    use rockmill_io::ManualClock;

    #[test]
    fn old_values_go_and_the_users_filter_sees_no_times() {
        let clock: Arc<dyn Clock> = Arc::new(ManualClock::new(2_000_000_000 * 1_000_000));
        let with = |value: &[u8], time: u64| [value, &stamp(time)[..]].concat();
        let mut o = Options::default();
        o.set_compaction_filter("user", |_, _, value| match value {
            b"change" => Decision::Change(b"changed".to_vec()),
            b"remove" => Decision::Remove,
            _ => Decision::Keep,
        });
        let db = DbOptions { clock, ..DbOptions::default() };
        let user = o.cf.compaction_filter.clone().unwrap();
        wrap(&mut o.cf, &db, 100);
        let mut factory = o.cf.compaction_filter_factory.unwrap();
        let context = CompactionFilterContext {
            is_full_compaction: true,
            is_manual_compaction: true,
            input_start_level: Some(0),
            column_family_id: 0,
            reason: TableFileCreationReason::Compaction,
            now_micros: 2_000_000_000 * 1_000_000,
            options: String::new(),
        };
        let mut filter = factory.create(context.clone());
        let mut ask = |value: &[u8]| filter.filter(0, b"k", value);
        assert_eq!(ask(&with(b"v", 1_999_999_899)), Decision::Remove);
        assert_eq!(ask(&with(b"v", 1_999_999_900)), Decision::Keep, "exactly as old as it may be");
        assert_eq!(ask(&with(b"remove", 1_999_999_950)), Decision::Remove);
        let changed = with(b"changed", 1_999_999_950);
        assert_eq!(ask(&with(b"change", 1_999_999_950)), Decision::Change(changed), "a change keeps the age");
        assert_eq!(ask(b"abc"), Decision::Keep, "no time, nothing to decide by");
        // A job keeps the time to live that it began with.
        let options = factory.option_text();
        assert_eq!(options, "seconds=100;filter=\"user\"");
        factory.time_to_live.as_ref().unwrap().store(10, Ordering::Release);
        assert_eq!(factory.option_text(), "seconds=10;filter=\"user\"");
        let mut of = |options: &str| {
            let mut filter = factory.create(CompactionFilterContext { options: options.into(), ..context.clone() });
            filter.filter(0, b"k", &with(b"v", 1_999_999_950))
        };
        assert_eq!((of(&options), of("")), (Decision::Keep, Decision::Remove));
        assert!(!factory.should_filter_table_file_creation(TableFileCreationReason::Flush));
        // Another process makes it from its text, where it has the user's filter; and goes by the time of the job.
        let mut there = factory_with(&options, &[user], &[]).expect("the same factory");
        let mut of = |now_micros: u64| {
            let context = CompactionFilterContext { now_micros, options: options.clone(), ..context.clone() };
            there.create(context).filter(0, b"k", &with(b"v", 1_999_999_950))
        };
        assert_eq!((of(2_000_000_050_000_000), of(2_000_000_051_000_000)), (Decision::Keep, Decision::Remove));
        assert!(factory_with(&options, &[], &[]).is_none(), "without the user's filter");
        for options in ["", "seconds=", "seconds=x", "seconds=1;", "seconds=1;filter=\"other\"", "seconds=1;options=a"]
        {
            assert!(factory_with(options, &[], &[]).is_none(), "{options}");
        }
        assert_eq!(factory_with("seconds=0", &[], &[]).expect("for ever").option_text(), "seconds=0");
    }
}
