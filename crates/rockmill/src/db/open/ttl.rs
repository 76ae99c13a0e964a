//! Databases whose values live for a time (RocksDB's `DBWithTTL`, utilities/ttl).
//!
//! 1. Every value and merge operand of every column family ends with the Unix time of its writing: four bytes,
//!    little-endian. Writes add it, reads take it off.
//! 2. A compaction filter removes values that are older than the column family's time to live. Until a compaction
//!    meets them, they can be read.
//! 3. The user's merge operator and compaction filter see values without the time. What is merged is as young as the
//!    merge; what a filter changes keeps its age.
//!
//! Tables that are ingested have the times already, and say so ([`VALUES_WITH_TIMES`]), or the caller does: without,
//! the last bytes of their values would be lost, or their keys could not be read.
//!
//! Nothing in the database says that it is one of these: every open must. A value whose time is before RocksDB had the
//! feature is taken for damage, which catches databases that are opened this way by mistake.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rockmill_format::batch::{BatchRecord, BatchRep, MAX_SLICE_LEN};
use rockmill_io::Clock;

use crate::compaction_filter::{
    CompactionFilter, CompactionFilterContext, CompactionFilterFactory, Decision, SharedFactory, SharedFilter,
    TableFileCreationReason,
};
use crate::db::open::start::{OpenMode, open};
use crate::db::{AsColumnFamilyRef, ColumnFamily, Db, DbInner};
use crate::error::{Error, Result};
use crate::iter::get::PinnedValue;
use crate::merge_operator::{MergeOperands, MergeOperator};
use crate::options::{CfOptions, ColumnFamilyDescriptor, ColumnFamilyTtl, DbOptions, Options};
use crate::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a time at the end of a value.
pub(crate) const STAMP_LEN: usize = 4;

/// The property of an external table whose values end with times. Nothing says it of tables that the database writes,
/// as in RocksDB; RocksDB passes over it.
pub(crate) const VALUES_WITH_TIMES: &str = "rockmill.values.with.times";

/// RocksDB takes times before this one (May 2013) for damage.
const STAMP_MIN: u32 = 1_368_146_402;

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
        let cfs = cfs.into_iter().map(|name| {
            let mut options = options.clone();
            wrap(&mut options.cf, &options.db, 0);
            ColumnFamilyDescriptor::new(name.as_ref(), options)
        });
        let mode = OpenMode { read_only: true, error_if_wal_exists, with_ttl: true };
        open(options, path.as_ref(), cfs.collect(), mode)
    }

    /// Changes the default column family's time to live; see [`Self::set_ttl_cf`].
    pub fn set_ttl(&self, ttl: Duration) -> Result<()> {
        self.set_ttl_cf(self.inner.catalog.default_cf(), ttl)
    }

    /// Changes a column family's time to live (RocksDB's `SetTtl`) for values already written too; zero keeps them
    /// for ever. Compactions that begin later go by it; it ends with the database.
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
    let seconds = Arc::new(AtomicU64::new(seconds));
    let user = match (cf.compaction_filter.take(), cf.compaction_filter_factory.take()) {
        (Some(filter), _) => User::Filter(filter),
        (None, Some(factory)) => User::Factory(factory),
        (None, None) => User::None,
    };
    let ttl = TtlFactory { seconds: Arc::clone(&seconds), clock: Arc::clone(&clock), user };
    let factory = cf.compaction_filter_factory.insert(SharedFactory::new(ttl));
    factory.time_to_live = Some(seconds);
    if let Some(user) = cf.merge_operator.take() {
        cf.merge_operator = Some(Arc::new(TtlMergeOperator { user, clock }));
    }
}

fn now(clock: &dyn Clock) -> u64 {
    clock.now_micros() / 1_000_000
}

/// A time as it stands behind a value.
fn stamp(seconds: u64) -> [u8; STAMP_LEN] {
    (seconds as u32).to_le_bytes() // RocksDB's clock wraps as well, in 2106
}

/// Name of the merge operator that takes times off, as tables have it.
pub(crate) const TTL_MERGE_OPERATOR: &str = "TtlMergeOperator";

/// The present time as it stands behind a value.
pub(crate) fn ttl_stamp(clock: &dyn Clock) -> [u8; STAMP_LEN] {
    stamp(now(clock))
}

/// A value's own bytes and its time; `None` when it is too short to have one.
pub(crate) fn split(value: &[u8]) -> Option<(&[u8], u32)> {
    value.split_last_chunk().map(|(own, time)| (own, u32::from_le_bytes(*time)))
}

/// Checks a value as it is stored; gives the length of its own bytes.
pub(crate) fn check_stamp(key: &[u8], value: &[u8]) -> Result<usize> {
    let why = match split(value) {
        Some((own, time)) if time >= STAMP_MIN => return Ok(own.len()),
        Some((_, time)) => format!("the time {time}, which is before there were any"),
        None => format!("{} bytes, which is too short for a time", value.len()),
    };
    Err(Error::corruption(format!(
        "the value of key {} ends with {why}: it is damaged, or was not written to a database with a time to live",
        key.escape_ascii()
    )))
}

/// A value that was read, without its time.
pub(crate) fn strip(key: &[u8], value: PinnedValue) -> Result<PinnedValue> {
    let own = check_stamp(key, value.as_slice())?;
    Ok(match value {
        PinnedValue::Block(block, range) => PinnedValue::Block(block, range.start..range.start + own),
        PinnedValue::Owned(mut bytes) => {
            bytes.truncate(own);
            PinnedValue::Owned(bytes)
        }
    })
}

impl DbInner {
    /// A batch with the present time behind each value and merge operand.
    pub(crate) fn stamped(&self, rep: &BatchRep) -> Result<BatchRep> {
        let time = stamp(self.now_seconds());
        let mut out = BatchRep::with_capacity(rep.len_bytes() + rep.count() as usize * STAMP_LEN);
        let mut buffer = Vec::new();
        for record in rep.iter() {
            let record = record.map_err(|e| Error::corruption(format!("write batch: {e}")))?;
            let mut with_time = |key: &[u8], value: &[u8]| {
                if value.len() > MAX_SLICE_LEN - STAMP_LEN {
                    return Err(Error::invalid_argument(format!(
                        "the value of key {} has {} bytes: with its time it would be too large",
                        key.escape_ascii(),
                        value.len()
                    )));
                }
                buffer.clear();
                buffer.extend_from_slice(value);
                buffer.extend_from_slice(&time);
                Ok(())
            };
            match record {
                BatchRecord::Put { cf, key, value } => {
                    with_time(key, value)?;
                    out.push(BatchRecord::Put { cf, key, value: &buffer });
                }
                BatchRecord::Merge { cf, key, value } => {
                    with_time(key, value)?;
                    out.push(BatchRecord::Merge { cf, key, value: &buffer });
                }
                other => out.push(other),
            }
        }
        Ok(out)
    }
}

/// What the user set.
enum User {
    None,
    Filter(SharedFilter),
    Factory(SharedFactory),
}

struct TtlFactory {
    /// 0: for ever.
    seconds: Arc<AtomicU64>,
    clock: Arc<dyn Clock>,
    user: User,
}

impl CompactionFilterFactory for TtlFactory {
    type Filter = TtlFilter;

    fn create(&mut self, context: CompactionFilterContext) -> TtlFilter {
        let user: Option<Box<dyn CompactionFilter>> = match &mut self.user {
            User::None => None,
            User::Filter(filter) => Some(Box::new(filter.clone())),
            User::Factory(factory) => {
                factory.should_filter_table_file_creation(context.reason).then(|| factory.create(context))
            }
        };
        // One moment for all of a part: its output depends on nothing else.
        let oldest = match self.seconds.load(Ordering::Acquire) {
            0 => 0,
            seconds => now(&*self.clock).saturating_sub(seconds),
        };
        TtlFilter { oldest, user }
    }

    fn should_filter_table_file_creation(&self, reason: TableFileCreationReason) -> bool {
        let user = matches!(&self.user, User::Factory(f) if f.should_filter_table_file_creation(reason));
        reason == TableFileCreationReason::Compaction || user
    }

    fn name(&self) -> &str {
        "TtlCompactionFilterFactory"
    }
}

struct TtlFilter {
    /// Values from before this time go.
    oldest: u64,
    user: Option<Box<dyn CompactionFilter>>,
}

impl TtlFilter {
    /// Has the user's filter decide on a value without its time.
    fn ask(&mut self, value: &[u8], ask: impl FnOnce(&mut Box<dyn CompactionFilter>, &[u8]) -> Decision) -> Decision {
        let (Some(user), Some((own, time))) = (&mut self.user, split(value)) else { return Decision::Keep };
        match ask(user, own) {
            Decision::Change(mut changed) => {
                changed.extend_from_slice(&time.to_le_bytes());
                Decision::Change(changed)
            }
            other => other,
        }
    }
}

impl CompactionFilter for TtlFilter {
    fn filter(&mut self, level: u32, key: &[u8], value: &[u8]) -> Decision {
        if split(value).is_some_and(|(_, time)| u64::from(time) < self.oldest) {
            return Decision::Remove;
        }
        self.ask(value, |user, own| user.filter(level, key, own))
    }

    fn filter_merge_operand(&mut self, level: u32, key: &[u8], operand: &[u8]) -> Decision {
        self.ask(operand, |user, own| user.filter_merge_operand(level, key, own))
    }

    fn name(&self) -> &str {
        self.user.as_ref().map_or("TtlCompactionFilter", |user| user.name())
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
        merged.extend_from_slice(&stamp(now(&*self.clock)));
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
    use rockmill_io::ManualClock;

    #[test]
    fn times_are_rocksdbs() {
        assert_eq!(stamp(1_700_000_000), [0x00, 0xf1, 0x53, 0x65]);
        assert_eq!(check_stamp(b"k", b"abc\x00\xf1\x53\x65").unwrap(), 3);
        let at = |time: u32| check_stamp(b"k", &time.to_le_bytes());
        assert_eq!(at(STAMP_MIN).unwrap(), 0);
        assert!(at(STAMP_MIN - 1).unwrap_err().to_string().contains("1368146401, which is before"));
        let e = check_stamp(b"key", b"abc").unwrap_err();
        assert!(e.to_string().contains("value of key key ends with 3 bytes, which is too short"), "{e}");
    }

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
        wrap(&mut o.cf, &db, 100);
        let mut factory = o.cf.compaction_filter_factory.unwrap();
        let context = CompactionFilterContext {
            is_full_compaction: true,
            is_manual_compaction: true,
            input_start_level: Some(0),
            column_family_id: 0,
            reason: TableFileCreationReason::Compaction,
            now_micros: 2_000_000_000 * 1_000_000,
        };
        let mut filter = factory.create(context);
        let mut ask = |value: &[u8]| filter.filter(0, b"k", value);
        assert_eq!(ask(&with(b"v", 1_999_999_899)), Decision::Remove);
        assert_eq!(ask(&with(b"v", 1_999_999_900)), Decision::Keep, "exactly as old as it may be");
        assert_eq!(ask(&with(b"remove", 1_999_999_950)), Decision::Remove);
        let changed = with(b"changed", 1_999_999_950);
        assert_eq!(ask(&with(b"change", 1_999_999_950)), Decision::Change(changed), "a change keeps the age");
        assert_eq!(ask(b"abc"), Decision::Keep, "no time, nothing to decide by");
        assert!(!factory.should_filter_table_file_creation(TableFileCreationReason::Flush));
    }
}
