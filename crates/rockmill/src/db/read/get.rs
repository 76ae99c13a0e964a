//! Point lookups: memtables, then L0 newest to oldest, then one table of each deeper level.

use std::ops::Deref;
use std::sync::Arc;

use rockmill_format::SequenceNumber;
use rockmill_format::key::{TAG_LEN, VALUE_TYPE_FOR_SEEK, pack_tag};

use crate::db::catalog::column_family::CfData;
use crate::db::catalog::super_version::SuperVersion;
use crate::db::catalog::value_times;
use crate::db::read::snapshot::HeldSnapshot;
use crate::db::{AsColumnFamilyRef, Db, DbInner, Snapshot};
use crate::error::Result;
use crate::iter::get::{GetContext, GetState, PinnedValue};
use crate::options::setters::setters;
use crate::perf_context::{self as perf, PerfMetric};
use crate::statistics::{Histogram, MaybeStatistics, Ticker};
use crate::table::{Table, TableReadOptions};
use crate::version::{FileMeta, first_reaching};

/// How a read is done (`rocksdb::ReadOptions`).
#[derive(Debug, Clone, Default)]
pub struct ReadOptions {
    pub(crate) snapshot: Option<Arc<HeldSnapshot>>,
    pub(crate) skip_checksums: bool,
    pub(crate) dont_fill_cache: bool,
    pub(crate) lower: Option<Vec<u8>>,
    pub(crate) upper: Option<Vec<u8>>,
    pub(crate) prefix: Option<Vec<u8>>,
    pub(crate) readahead: usize,
    pub(crate) cache_only: bool,
    pub(crate) async_io: bool,
    pub(crate) total_order_seek: bool,
    pub(crate) prefix_same_as_start: bool,
    pub(crate) auto_prefix_mode: bool,
}

impl ReadOptions {
    pub(crate) fn table(&self) -> TableReadOptions {
        TableReadOptions {
            verify_checksums: !self.skip_checksums,
            fill_cache: !self.dont_fill_cache,
            readahead: self.readahead,
            cache_only: self.cache_only,
            async_io: self.async_io,
        }
    }
}

setters! {
    impl ReadOptions;

    /// Checks the checksum of blocks that are read from a file; on by default.
    set_verify_checksums(verify: bool) skip_checksums = !verify;
    /// Keeps blocks that are read from a file in the block cache; on by default.
    fill_cache(fill: bool) dont_fill_cache = !fill;
    /// Iterators see no key before this one.
    set_iterate_lower_bound(key: impl Into<Vec<u8>>) lower = Some(key.into());
    /// Iterators see no key from this one on.
    set_iterate_upper_bound(key: impl Into<Vec<u8>>) upper = Some(key.into());
    /// Iterators see keys with this prefix only. With the bytewise order this sets both bounds; with others the keys
    /// are filtered.
    set_iterate_prefix(prefix: impl Into<Vec<u8>>) prefix = Some(prefix.into());
    /// Bytes that iterators read ahead; 0 (the default) grows with sequential use.
    set_readahead_size(bytes: usize) readahead;
    /// Iterators that go forward through much data without the page cache (`use_direct_reads`) read the next bytes
    /// through io_uring while they go through the previous ones; off by default. A seek reads the blocks that it needs
    /// from several sorted runs at once; without the page cache it does so even if this option is off. Without io_uring
    /// the option changes nothing.
    set_async_io(async_io: bool) async_io;
    /// Answers from memtables and the block cache only; `Incomplete` where a file would be read.
    set_cache_only(cache_only: bool) cache_only;
    /// With a prefix extractor: iterators give all keys in order, as they do without one. When it is off (the default),
    /// a seek may skip tables whose filter does not have the prefix of its target, and then the iterator ends with that
    /// prefix.
    set_total_order_seek(total_order: bool) total_order_seek;
    /// With a prefix extractor: iterators end where the prefix of the seek's target ends, wherever the bounds are. A
    /// seek to the first key counts as a seek to the lower bound, and a seek to the last key as one to the upper bound,
    /// although that is exclusive; without a bound, the prefix of the key found counts. A target without a prefix sets
    /// no end.
    set_prefix_same_as_start(same: bool) prefix_same_as_start;
    /// With a prefix extractor: iterators give all keys in order, and filters are used only where the upper bound shows
    /// that this changes nothing.
    set_auto_prefix_mode(auto: bool) auto_prefix_mode;
}

/// A value read without copying it out of its cached block (`rocksdb::DBPinnableSlice`).
#[derive(Debug, Clone)]
pub struct DbPinnableSlice {
    value: PinnedValue,
}

impl Deref for DbPinnableSlice {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.value.as_slice()
    }
}

impl AsRef<[u8]> for DbPinnableSlice {
    fn as_ref(&self) -> &[u8] {
        self.value.as_slice()
    }
}

/// Keys up to this length are looked up without an allocation.
const LOOKUP_INLINE: usize = 120;

/// A user key with the sequence number that a read may see: sorts before every visible entry of the key.
pub(crate) struct LookupKey {
    inline: [u8; LOOKUP_INLINE + TAG_LEN],
    heap: Vec<u8>,
    len: usize,
}

impl LookupKey {
    pub fn new(user_key: &[u8], seq: SequenceNumber) -> Self {
        let mut k = Self { inline: [0; LOOKUP_INLINE + TAG_LEN], heap: Vec::new(), len: user_key.len() + TAG_LEN };
        let tag = pack_tag(seq, VALUE_TYPE_FOR_SEEK).to_le_bytes();
        if user_key.len() <= LOOKUP_INLINE {
            k.inline[..user_key.len()].copy_from_slice(user_key);
            k.inline[user_key.len()..k.len].copy_from_slice(&tag);
        } else {
            k.heap.reserve_exact(k.len);
            k.heap.extend_from_slice(user_key);
            k.heap.extend_from_slice(&tag);
        }
        k
    }

    pub fn as_bytes(&self) -> &[u8] {
        if self.heap.is_empty() { &self.inline[..self.len] } else { &self.heap }
    }
}

/// Where in a version a lookup is: the next table to ask.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LookupPosition {
    /// Its level.
    level: usize,
    /// Its sorted run among those of the level that have files, newest first.
    run: usize,
    /// Its number in the run, or in L0.
    file: usize,
}

impl DbInner {
    /// The value of `key` as `options` see it.
    pub fn get(&self, cf: &CfData, key: &[u8], options: &ReadOptions) -> Result<Option<PinnedValue>> {
        self.get_at(cf, key, options, options.snapshot.as_deref())
    }

    /// The same as `snapshot` sees it, whatever snapshot the options have.
    fn get_at(
        &self,
        cf: &CfData,
        key: &[u8],
        options: &ReadOptions,
        snapshot: Option<&HeldSnapshot>,
    ) -> Result<Option<PinnedValue>> {
        if self.counts_reads() {
            self.get_counted(cf, key, options, snapshot)
        } else {
            self.get_one::<false>(cf, key, options, snapshot)
        }
    }

    /// True if statistics or a performance context count what reads do.
    #[inline]
    fn counts_reads(&self) -> bool {
        self.opts.statistics.is_some() || perf::counting()
    }

    /// A lookup, alone or one of several. With `COUNTED` false, the statistics code is compiled out.
    #[inline]
    fn get_one<const COUNTED: bool>(
        &self,
        cf: &CfData,
        key: &[u8],
        options: &ReadOptions,
        snapshot: Option<&HeldSnapshot>,
    ) -> Result<Option<PinnedValue>> {
        let current = cf.current.load();
        let seq = self.read_sequence(snapshot)?;
        self.get_in::<COUNTED>(cf, &current, key, seq, options)
    }

    fn get_counted(
        &self,
        cf: &CfData,
        key: &[u8],
        options: &ReadOptions,
        snapshot: Option<&HeldSnapshot>,
    ) -> Result<Option<PinnedValue>> {
        let (statistics, clock) = (&self.opts.statistics, &*self.opts.clock);
        let began = statistics.start(clock);
        let found = self.get_one::<true>(cf, key, options, snapshot);
        statistics.stop(Histogram::DbGet, clock, began);
        statistics.add(Ticker::NumberKeysRead, 1);
        if let Ok(Some(value)) = &found {
            let bytes = value.as_slice().len() as u64;
            statistics.add(Ticker::BytesRead, bytes);
            statistics.record(Histogram::BytesPerRead, bytes);
            perf::count(PerfMetric::GetReadBytes, bytes);
        }
        found
    }

    fn get_in<const COUNTED: bool>(
        &self,
        cf: &CfData,
        current: &SuperVersion,
        key: &[u8],
        seq: SequenceNumber,
        options: &ReadOptions,
    ) -> Result<Option<PinnedValue>> {
        let lookup = LookupKey::new(key, seq);
        let ikey = lookup.as_bytes();
        let mut ctx = GetContext::new(key);
        if !self.get_from_memory::<COUNTED>(current, ikey, &mut ctx) {
            let _timer = COUNTED.then(|| perf::time(PerfMetric::GetFromOutputFilesTime));
            let hit =
                self.get_from_tables(cf, current, ikey, options.table(), &mut ctx, &mut LookupPosition::default())?;
            if COUNTED && let Some(hit) = hit {
                self.count_hit(hit, &ctx);
            }
        }
        self.conclude(cf, key, ctx)
    }

    /// Asks the memtables; true if they have the answer.
    #[inline]
    pub(crate) fn get_from_memory<const COUNTED: bool>(
        &self,
        current: &SuperVersion,
        ikey: &[u8],
        ctx: &mut GetContext<'_>,
    ) -> bool {
        let timer = COUNTED.then(|| perf::time(PerfMetric::GetFromMemtableTime));
        let asked = current.front.get(ikey, ctx);
        drop(timer);
        let in_memory = ctx.is_done();
        if COUNTED {
            perf::count(PerfMetric::GetFromMemtableCount, asked);
            self.opts.statistics.add(if in_memory { Ticker::MemtableHit } else { Ticker::MemtableMiss }, 1);
        }
        in_memory
    }

    /// The end of a lookup.
    #[inline]
    pub(crate) fn conclude(&self, cf: &CfData, key: &[u8], ctx: GetContext<'_>) -> Result<Option<PinnedValue>> {
        let value = ctx.finish(cf.merge_operator.as_deref())?;
        match value {
            Some(value) if self.opened.with_ttl() => {
                value_times::strip(key, value).map(Some).map_err(|e| e.context(self.path.display()))
            }
            value => Ok(value),
        }
    }

    /// Returns the ticker of the level in which the search ended; `None` if the lookup waits for a block, and then
    /// continues from `place` when it is called again.
    pub(crate) fn get_from_tables(
        &self,
        cf: &CfData,
        current: &SuperVersion,
        ikey: &[u8],
        ro: TableReadOptions,
        ctx: &mut GetContext<'_>,
        place: &mut LookupPosition,
    ) -> Result<Option<Ticker>> {
        let version = &*current.version;
        let key = ctx.user_key;
        let from = *place;
        if from.level == 0 {
            for (i, f) in version.levels[0].base.iter().enumerate().skip(from.file) {
                let inside = cf.cmp.compare_user(f.smallest_user_key(), key).is_le()
                    && cf.cmp.compare_user(key, f.largest_user_key()).is_le();
                if inside {
                    self.with_table(cf, f, |t| t.get(ikey, ro, ctx))?;
                    if ctx.is_done() {
                        return Ok(Some(Ticker::GetHitL0));
                    }
                    if ctx.is_waiting() {
                        *place = LookupPosition { level: 0, run: 0, file: i };
                        return Ok(None);
                    }
                }
            }
        }
        let below = version.levels.iter().enumerate().skip(from.level.max(1));
        for (level, tables) in below.filter(|(_, tables)| !tables.is_empty()) {
            for (run, files) in tables.runs().enumerate() {
                // Versions of one key may be in neighbouring files that share it as a boundary.
                let mut i = match (level, run).cmp(&(from.level, from.run)) {
                    std::cmp::Ordering::Less => continue,
                    std::cmp::Ordering::Equal => from.file,
                    std::cmp::Ordering::Greater => first_reaching(&cf.cmp, files, ikey),
                };
                while let Some(f) = files.get(i) {
                    if cf.cmp.compare_user(f.smallest_user_key(), key).is_gt() {
                        break;
                    }
                    self.with_table(cf, f, |t| t.get(ikey, ro, ctx))?;
                    if ctx.is_done() {
                        return Ok(Some(if level == 1 { Ticker::GetHitL1 } else { Ticker::GetHitL2AndUp }));
                    }
                    if ctx.is_waiting() {
                        *place = LookupPosition { level, run, file: i };
                        return Ok(None);
                    }
                    if cf.cmp.compare_user(f.largest_user_key(), key).is_ne() {
                        break;
                    }
                    i += 1;
                }
            }
        }
        Ok(Some(Ticker::GetHitL2AndUp))
    }

    pub(crate) fn count_multi_get(&self, values: &[Result<Option<Vec<u8>>>]) {
        if !self.counts_reads() {
            return;
        }
        let found = || values.iter().filter_map(|v| v.as_ref().ok()?.as_ref());
        let bytes = found().map(|v| v.len() as u64).sum();
        perf::count(PerfMetric::MultigetReadBytes, bytes);
        if let Some(s) = &self.opts.statistics {
            s.add_all([
                (Ticker::NumberMultigetCalls, 1),
                (Ticker::NumberMultigetKeysRead, values.len() as u64),
                (Ticker::NumberMultigetKeysFound, found().count() as u64),
                (Ticker::NumberMultigetBytesRead, bytes),
            ]);
            s.record(Histogram::BytesPerMultiget, bytes);
        }
    }

    /// A table gave the value, not only a tombstone.
    #[inline]
    pub(crate) fn count_hit(&self, ticker: Ticker, ctx: &GetContext<'_>) {
        if matches!(ctx.state, GetState::Found(_) | GetState::MergeDone(..)) {
            self.opts.statistics.add(ticker, 1);
        }
    }

    #[inline]
    fn with_table<R>(&self, cf: &CfData, f: &Arc<FileMeta>, use_it: impl FnOnce(&Table) -> Result<R>) -> Result<R> {
        let open = f.table.load();
        match open.as_ref() {
            Some(t) => {
                f.touch();
                use_it(t)
            }
            None => use_it(&*self.readers.tables.table(cf, f)?),
        }
    }
}

impl Db {
    fn read(&self, cf: &impl AsColumnFamilyRef, key: &[u8], options: &ReadOptions) -> Result<Option<PinnedValue>> {
        let cf = &cf.as_cf().data;
        self.inner.check_family(cf)?;
        self.inner.get(cf, key, options)
    }

    /// The value of `key`.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        self.get_opt(key, &ReadOptions::default())
    }

    /// The value of `key`.
    pub fn get_opt(&self, key: impl AsRef<[u8]>, options: &ReadOptions) -> Result<Option<Vec<u8>>> {
        Ok(self.read(self.inner.catalog.default_cf(), key.as_ref(), options)?.map(PinnedValue::into_vec))
    }

    /// The value of `key` in a column family.
    pub fn get_cf(&self, cf: &impl AsColumnFamilyRef, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        self.get_cf_opt(cf, key, &ReadOptions::default())
    }

    /// The value of `key` in a column family.
    pub fn get_cf_opt(
        &self,
        cf: &impl AsColumnFamilyRef,
        key: impl AsRef<[u8]>,
        options: &ReadOptions,
    ) -> Result<Option<Vec<u8>>> {
        Ok(self.read(cf, key.as_ref(), options)?.map(PinnedValue::into_vec))
    }

    /// The value of `key`, not copied when it stands in a cached block.
    pub fn get_pinned(&self, key: impl AsRef<[u8]>) -> Result<Option<DbPinnableSlice>> {
        self.get_pinned_opt(key, &ReadOptions::default())
    }

    /// The value of `key`, not copied when it stands in a cached block.
    pub fn get_pinned_opt(&self, key: impl AsRef<[u8]>, options: &ReadOptions) -> Result<Option<DbPinnableSlice>> {
        Ok(self.read(self.inner.catalog.default_cf(), key.as_ref(), options)?.map(|value| DbPinnableSlice { value }))
    }

    /// The value of `key` in a column family, not copied when it stands in a cached block.
    pub fn get_pinned_cf(&self, cf: &impl AsColumnFamilyRef, key: impl AsRef<[u8]>) -> Result<Option<DbPinnableSlice>> {
        self.get_pinned_cf_opt(cf, key, &ReadOptions::default())
    }

    /// The value of `key` in a column family, not copied when it stands in a cached block.
    pub fn get_pinned_cf_opt(
        &self,
        cf: &impl AsColumnFamilyRef,
        key: impl AsRef<[u8]>,
        options: &ReadOptions,
    ) -> Result<Option<DbPinnableSlice>> {
        Ok(self.read(cf, key.as_ref(), options)?.map(|value| DbPinnableSlice { value }))
    }

    /// False when `key` is certainly not in the database; true when it may be.
    pub fn key_may_exist(&self, key: impl AsRef<[u8]>) -> bool {
        let mut options = ReadOptions::default();
        options.set_cache_only(true);
        match self.get_opt(key, &options) {
            Ok(value) => value.is_some(),
            Err(_) => true,
        }
    }
}

impl Snapshot<'_> {
    /// The value of `key` as the snapshot sees it.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        self.get_in(self.db.catalog.default_cf(), key.as_ref())
    }

    /// The value of `key` in a column family as the snapshot sees it.
    pub fn get_cf(&self, cf: &impl AsColumnFamilyRef, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        self.get_in(cf, key.as_ref())
    }

    fn get_in(&self, cf: &impl AsColumnFamilyRef, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.db.check_family(&cf.as_cf().data)?;
        let value = self.db.get_at(&cf.as_cf().data, key, &ReadOptions::default(), Some(&self.held));
        Ok(value?.map(PinnedValue::into_vec))
    }
}
