//! Iterators over user keys. They read the internal entries of every run, and return the newest visible version of each
//! key that is not deleted.

use std::fmt;
use std::sync::Arc;

use rockmill_format::key::{self, MAX_SEQUENCE, ParsedInternalKey, VALUE_TYPE_FOR_SEEK, append_internal_key};
use rockmill_format::{InternalKeyComparator, SequenceNumber, ValueType};

use crate::compaction_filter::ttl::STAMP_LEN;
use crate::db::catalog::super_version::SuperVersion;
use crate::db::catalog::value_times::check_stamp;
use crate::db::read::iterator_counts::{IteratorCounts, Move};
use crate::db::read::prefix_scan::PrefixScan;
use crate::db::read::range_view::RangeView;
use crate::db::read::tables::CfTables;
use crate::db::{AsColumnFamilyRef, Db, DbInner, ReadOptions, Snapshot};
use crate::error::{Error, Result};
use crate::iter::level::LevelIterator;
use crate::iter::merging::MergingIterator;
use crate::iter::prefix_seek::PrefixSeek;
use crate::iter::{EmptyIterator, InternalIterator};
use crate::merge_operator::{self, MergeOperator, OperandList};
use crate::perf_context::{self as perf, PerfMetric, Timer};
use crate::statistics::{Histogram, MaybeStatistics, Started};
use crate::table::TableReadOptions;
use crate::version::TableSource;

/// Entries of one user key stepped over one by one before a seek is tried (RocksDB's
/// `max_sequential_skip_in_iterations`).
const SKIPS_MAX: usize = 8;

/// Which way an iterator goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Direction {
    Forward,
    Reverse,
}

/// Where an iterator starts, and which way it goes (`rocksdb::IteratorMode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IteratorMode<'a> {
    /// From the first key forward.
    Start,
    /// From the last key backward.
    End,
    /// From this key (or the next one in the direction).
    From(&'a [u8], Direction),
}

/// An iterator that is moved by hand (`rocksdb::DBRawIterator`). It sees the database as it was when it was made.
///
/// When it is not valid, `status` says whether it reached the end or met an error.
pub struct DbRawIterator<'a> {
    iter: Box<dyn InternalIterator>,
    view: RangeView,
    cmp: InternalKeyComparator,
    seq: SequenceNumber,
    lower: Option<Vec<u8>>,
    upper: Option<Vec<u8>>,
    /// Only keys with this prefix, for orders in which bounds cannot say it.
    filter: Option<Vec<u8>>,
    /// With a prefix extractor.
    prefix: Option<Box<PrefixScan>>,
    direction: Direction,
    valid: bool,
    /// The current entry is in `saved_key` and `saved_value`; otherwise `iter` is on it.
    saved: bool,
    /// Forward: the key whose older versions are being stepped over. With `saved`, the current key.
    saved_key: Vec<u8>,
    /// With `saved`, the current value.
    saved_value: Vec<u8>,
    operator: Option<Arc<dyn MergeOperator>>,
    operands: OperandList,
    target: Vec<u8>,
    /// Values may have to be made ready before they are read.
    prepares: bool,
    /// Bytes at the end of each value that are the time of its writing.
    stamp_len: usize,
    status: Result<()>,
    counts: IteratorCounts,
    /// Keeps what `iter` reads alive, and the database open.
    _pin: (Arc<SuperVersion>, &'a DbInner),
}

impl DbInner {
    pub(crate) fn raw_iterator(
        self: &Arc<Self>,
        cf: &impl AsColumnFamilyRef,
        options: &ReadOptions,
    ) -> DbRawIterator<'_> {
        let refused = self.check_family(&cf.as_cf().data).err();
        let cf = if refused.is_none() { &cf.as_cf().data } else { &self.catalog.default_cf().data };
        let current = cf.current.load_full();
        let (seq, refused) = match (refused, self.read_sequence(options.snapshot.as_deref())) {
            (None, Ok(seq)) => (seq, None),
            (Some(e), _) | (None, Err(e)) => (0, Some(e)),
        };
        let tables = Arc::new(CfTables::new(self, cf));
        let ro = options.table();
        let (lower, upper, filter) = bounds(options, &cf.cmp);
        let prefix = PrefixScan::new(tables.prefix_extractor(), options, upper.as_ref(), cf.cmp.is_bytewise());
        let reads = self.seek_reads(&tables, options);
        let tables: Arc<dyn TableSource> = tables;
        let by_prefix = prefix.as_ref().map(|p| Arc::clone(p.seek()));
        let mut children = sorted_runs(&current, &tables, ro, &cf.cmp, by_prefix);
        if let Some(e) = refused {
            children = vec![Box::new(EmptyIterator::with_error(e))];
        }
        let view = RangeView::new(&current, cf.cmp.clone(), seq, tables);
        DbRawIterator {
            iter: MergingIterator::boxed(children, cf.cmp.clone(), reads),
            view,
            cmp: cf.cmp.clone(),
            seq,
            lower,
            upper,
            filter,
            prefix,
            direction: Direction::Forward,
            valid: false,
            saved: false,
            saved_key: Vec::new(),
            saved_value: Vec::new(),
            operator: cf.merge_operator.clone(),
            operands: OperandList::default(),
            target: Vec::new(),
            prepares: current.front.has_values_in_logs(),
            stamp_len: if self.opened.with_ttl() { STAMP_LEN } else { 0 },
            status: Ok(()),
            counts: IteratorCounts::new(self.opts.statistics.as_ref()),
            _pin: (current, self),
        }
    }
}

/// An iterator for each sorted run of a column family: memtables, files of L0, runs of the levels below. With a prefix
/// seek they skip what cannot have the prefix.
pub(crate) fn sorted_runs(
    current: &Arc<SuperVersion>,
    tables: &Arc<dyn TableSource>,
    ro: TableReadOptions,
    cmp: &InternalKeyComparator,
    by_prefix: Option<Arc<PrefixSeek>>,
) -> Vec<Box<dyn InternalIterator>> {
    let mut runs: Vec<Box<dyn InternalIterator>> = Vec::new();
    runs.extend(current.front.iterators(by_prefix.as_ref()));
    for place in current.version.sorted_runs() {
        let tables = Arc::clone(tables);
        let run = if place.level == 0 {
            // Each file of L0 is a run of its own, opened when it is first needed.
            LevelIterator::new(place.files.to_vec(), tables, ro, cmp.clone())
        } else {
            LevelIterator::of_run(Arc::clone(&current.version), place.level, place.run, tables, ro)
        };
        runs.push(Box::new(run.by_prefix(by_prefix.clone())));
    }
    runs
}

/// Lower and upper bound, and for orders in which bounds cannot say it, the prefix that keys must have.
type Bounds = (Option<Vec<u8>>, Option<Vec<u8>>, Option<Vec<u8>>);

fn bounds(options: &ReadOptions, cmp: &InternalKeyComparator) -> Bounds {
    let (mut lower, mut upper) = (options.lower.clone(), options.upper.clone());
    let Some(prefix) = &options.prefix else { return (lower, upper, None) };
    if !cmp.is_bytewise() {
        return (lower, upper, Some(prefix.clone()));
    }
    if lower.as_ref().is_none_or(|l| l < prefix) {
        lower = Some(prefix.clone());
    }
    if let Some(end) = after_prefix(prefix)
        && upper.as_ref().is_none_or(|u| *u > end)
    {
        upper = Some(end);
    }
    (lower, upper, None)
}

/// The first key, in bytewise order, after every key with this prefix; `None` if there is none.
fn after_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&b| b != 0xff)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

impl DbRawIterator<'_> {
    /// True on an entry.
    pub fn valid(&self) -> bool {
        self.valid
    }

    /// The error that ended the iteration, if one did.
    pub fn status(&self) -> Result<()> {
        self.status.clone()?;
        self.iter.status()
    }

    /// The current key.
    pub fn key(&self) -> Option<&[u8]> {
        self.valid.then(|| self.current_key())
    }

    /// The current value.
    pub fn value(&self) -> Option<&[u8]> {
        self.valid.then(|| self.current_value())
    }

    /// The current key and value.
    pub fn item(&self) -> Option<(&[u8], &[u8])> {
        self.valid.then(|| (self.current_key(), self.current_value()))
    }

    #[inline]
    fn current_key(&self) -> &[u8] {
        if self.saved { &self.saved_key } else { key::user_key(self.iter.key()) }
    }

    #[inline]
    fn current_value(&self) -> &[u8] {
        let stored = self.stored_value();
        &stored[..stored.len().saturating_sub(self.stamp_len)]
    }

    #[inline]
    fn stored_value(&self) -> &[u8] {
        if self.saved { &self.saved_value } else { self.iter.value() }
    }

    /// Refuses a current value that has no sound time.
    #[inline]
    fn check_stamp(&mut self) {
        if self.stamp_len > 0
            && self.valid
            && let Err(e) = check_stamp(self.current_key(), self.stored_value())
        {
            self.fail(e.context(self._pin.1.path.display()));
        }
    }

    /// To the first key.
    pub fn seek_to_first(&mut self) {
        let began = self.begin_seek();
        self.restart(Direction::Forward);
        if let Some(p) = &mut self.prefix {
            p.begin_first(self.lower.as_deref());
        }
        match self.lower.take() {
            Some(lower) => {
                self.seek_internal(&lower, MAX_SEQUENCE);
                self.lower = Some(lower);
            }
            None => self.iter.seek_to_first(),
        }
        self.moved();
        self.find_next(false);
        self.found();
        self.sought(began);
    }

    /// To the last key.
    pub fn seek_to_last(&mut self) {
        let began = self.begin_seek();
        self.restart(Direction::Reverse);
        if let Some(p) = &mut self.prefix {
            p.begin_last(self.upper.as_deref());
        }
        self.move_to_last();
        self.moved();
        self.find_prev();
        self.found();
        self.sought(began);
    }

    fn move_to_last(&mut self) {
        match self.upper.take() {
            Some(upper) => {
                // The entry before every version of the bound.
                self.seek_before(&upper);
                self.upper = Some(upper);
            }
            None => self.iter.seek_to_last(),
        }
    }

    /// To the first key at or after `key`.
    pub fn seek(&mut self, key: impl AsRef<[u8]>) {
        let began = self.begin_seek();
        self.restart(Direction::Forward);
        let key = key.as_ref();
        let below = |lower: &Vec<u8>| self.cmp.compare_user(key, lower).is_lt();
        let lower = if self.lower.as_ref().is_some_and(below) { self.lower.take() } else { None };
        let target = lower.as_deref().unwrap_or(key);
        if let Some(p) = &mut self.prefix {
            p.begin_from(key, target);
        }
        // The newest version of a key that may be seen: versions newer than the snapshot are passed over.
        self.seek_internal(target, self.seq);
        if lower.is_some() {
            self.lower = lower;
        }
        self.moved();
        self.find_next(false);
        self.sought(began);
    }

    /// To the last key at or before `key`.
    pub fn seek_for_prev(&mut self, key: impl AsRef<[u8]>) {
        let key = key.as_ref();
        let began = self.begin_seek();
        self.restart(Direction::Reverse);
        let past_upper = self.upper.as_ref().is_some_and(|u| self.cmp.compare_user(key, u).is_ge());
        if let Some(p) = &mut self.prefix {
            // The bound may have another prefix than the key.
            p.begin(key, !past_upper);
        }
        if past_upper {
            self.move_to_last();
        } else {
            self.target.clear();
            append_internal_key(&mut self.target, key, 0, ValueType::Deletion);
            self.iter.seek_for_prev(&self.target);
        }
        self.moved();
        self.find_prev();
        self.sought(began);
    }

    /// To the next key.
    pub fn next(&mut self) {
        if !self.valid {
            return;
        }
        if self.direction == Direction::Reverse {
            // `iter` is before all entries of the current key: go to the first entry after them.
            self.direction = Direction::Forward;
            let key = std::mem::take(&mut self.saved_key);
            self.seek_internal(&key, 0);
            self.saved_key = key;
        } else if !self.saved {
            self.saved_key.clear();
            self.saved_key.extend_from_slice(key::user_key(self.iter.key()));
            self.iter.next();
        }
        if !self.counts.wanted() {
            return self.find_next(true);
        }
        let timer = perf::time(PerfMetric::FindNextUserEntryTime);
        self.find_next(true);
        drop(timer);
        self.counts.moved(Move::Next, self.found_bytes());
    }

    /// To the key before.
    pub fn prev(&mut self) {
        if !self.valid {
            return;
        }
        if self.direction == Direction::Forward {
            self.direction = Direction::Reverse;
            let key = self.current_key().to_vec();
            self.seek_before(&key);
        }
        self.find_prev();
        if self.counts.wanted() {
            self.counts.moved(Move::Prev, self.found_bytes());
        }
    }

    /// Called when a seek begins; the result is for [`Self::sought`].
    #[inline]
    fn begin_seek(&self) -> (Started, Timer) {
        (self.counts.statistics().start_now(), perf::time(PerfMetric::SeekInternalSeekTime))
    }

    /// Called when a seek is done.
    #[inline]
    fn sought(&mut self, (began, timer): (Started, Timer)) {
        drop(timer);
        self.counts.statistics().stop_now(Histogram::DbSeek, began);
        if self.counts.wanted() {
            self.counts.moved(Move::Seek, self.found_bytes());
        }
    }

    /// Bytes of the entry that a call came to.
    #[inline]
    fn found_bytes(&self) -> Option<usize> {
        self.valid.then(|| self.current_key().len() + self.current_value().len())
    }

    /// The runs were moved by a seek of the user's.
    #[inline]
    fn moved(&mut self) {
        if let Some(p) = &mut self.prefix {
            p.moved();
        }
    }

    /// The seek found the current key, if there is one.
    fn found(&mut self) {
        if let Some(mut p) = self.prefix.take() {
            if self.valid {
                p.found(self.current_key());
            }
            self.prefix = Some(p);
        }
    }

    fn restart(&mut self, direction: Direction) {
        self.direction = direction;
        self.valid = false;
        self.status = Ok(());
    }

    fn fail(&mut self, e: Error) {
        self.valid = false;
        self.status = Err(e);
    }

    /// Makes the value of `iter` ready; after an error there is no current entry.
    #[inline]
    fn prepare(&mut self) -> bool {
        !self.prepares || self.iter.prepare_value() || self.unprepared()
    }

    #[cold]
    fn unprepared(&mut self) -> bool {
        let failed = self.iter.status().err();
        self.fail(failed.unwrap_or_else(|| Error::corruption("a value could not be read")));
        false
    }

    /// Puts `iter` on the first entry of `user_key` with a sequence number of at most `seq` or, if there is none, on
    /// the next entry after it.
    fn seek_internal(&mut self, user_key: &[u8], seq: SequenceNumber) {
        self.target.clear();
        let t = if seq == 0 { ValueType::Deletion } else { VALUE_TYPE_FOR_SEEK };
        append_internal_key(&mut self.target, user_key, seq, t);
        self.iter.seek(&self.target);
    }

    /// Puts `iter` on the last entry before every version of `user_key`.
    fn seek_before(&mut self, user_key: &[u8]) {
        self.target.clear();
        append_internal_key(&mut self.target, user_key, MAX_SEQUENCE, ValueType::Max);
        self.iter.seek_for_prev(&self.target);
    }

    /// From where `iter` is, forward to the newest visible version of a live key. With `skipping`, entries of
    /// `saved_key` are older versions of what was returned or deleted.
    fn find_next(&mut self, skipping: bool) {
        self.find_next_entry(skipping);
        self.check_stamp();
    }

    fn find_next_entry(&mut self, mut skipping: bool) {
        self.valid = false;
        self.saved = false;
        let mut skipped = 0;
        // The key of the last seek from here.
        let mut sought = None;
        while self.iter.valid() {
            let parsed = match ParsedInternalKey::parse(self.iter.key()) {
                Ok(p) => p,
                Err(e) => return self.fail(in_file(&*self.iter, Error::corruption(e.to_string()))),
            };
            let user_key = parsed.user_key;
            if self.upper.as_ref().is_some_and(|u| self.cmp.compare_user(user_key, u).is_ge()) {
                return;
            }
            if self.prefix.as_ref().is_some_and(|p| p.is_past(user_key)) {
                return;
            }
            if skipping && self.cmp.compare_user(user_key, &self.saved_key).is_le() {
                skipped += 1;
                self.counts.passed += 1;
                if skipped > SKIPS_MAX {
                    skipped = 0;
                    self.counts.reseek();
                    if let Err(e) = self.check_forward(&mut sought, &self.saved_key, true) {
                        return self.fail(e);
                    }
                    let key = std::mem::take(&mut self.saved_key);
                    self.seek_internal(&key, 0);
                    self.saved_key = key;
                    // The oldest possible version itself, if it is there, is still the same key.
                    if self.iter.valid() && key::user_key(self.iter.key()) == &self.saved_key[..] {
                        self.iter.next();
                    }
                } else {
                    self.iter.next();
                }
                continue;
            }
            if parsed.sequence > self.seq {
                skipped += 1;
                self.counts.passed_recent += 1;
                if skipped > SKIPS_MAX {
                    skipped = 0;
                    self.counts.reseek();
                    let key = user_key.to_vec();
                    if let Err(e) = self.check_forward(&mut sought, &key, false) {
                        return self.fail(e);
                    }
                    self.seek_internal(&key, self.seq);
                } else {
                    self.iter.next();
                }
                continue;
            }
            skipped = 0;
            let covered = match self.view.covers(user_key, parsed.sequence) {
                Ok(c) => c,
                Err(e) => return self.fail(e),
            };
            let filtered = self.filter.as_ref().is_some_and(|p| !user_key.starts_with(p));
            match parsed.value_type {
                ValueType::Value if !covered && !filtered => {
                    self.valid = self.prepare();
                    return;
                }
                ValueType::Merge if !covered && !filtered => return self.merge_forward(),
                ValueType::Value | ValueType::Merge | ValueType::Deletion | ValueType::SingleDeletion => {
                    self.counts.passed += 1;
                    if parsed.value_type != ValueType::Value {
                        self.counts.passed_deletes += 1;
                    }
                    self.saved_key.clear();
                    self.saved_key.extend_from_slice(user_key);
                    skipping = true;
                    self.iter.next();
                }
                other => return self.fail(in_file(&*self.iter, unexpected(other))),
            }
        }
    }

    /// Checks that seeks which skip entries go forward; otherwise a table whose keys are out of order would make the
    /// iterator loop for ever. A seek must go to a later key than the last one did, or from a key's newest visible
    /// version to after its oldest (`past`).
    #[cold]
    fn check_forward(&self, last: &mut Option<(Vec<u8>, bool)>, key: &[u8], past: bool) -> Result<()> {
        if let Some((last_key, last_past)) = last
            && self.cmp.compare_user(key, last_key).then(past.cmp(last_past)).is_le()
        {
            return Err(in_file(&*self.iter, Error::corruption("keys are out of order")));
        }
        *last = Some((key.to_vec(), past));
        Ok(())
    }

    /// `iter` stands on the newest operand of a key: merges it with the older ones and what they apply to.
    #[cold]
    fn merge_forward(&mut self) {
        self.saved_key.clear();
        self.saved_key.extend_from_slice(key::user_key(self.iter.key()));
        self.operands.clear();
        let mut has_base = false;
        while self.iter.valid() {
            let parsed = match ParsedInternalKey::parse(self.iter.key()) {
                Ok(p) => p,
                Err(e) => return self.fail(in_file(&*self.iter, Error::corruption(e.to_string()))),
            };
            if self.cmp.compare_user(parsed.user_key, &self.saved_key).is_ne() {
                break;
            }
            match self.view.covers(parsed.user_key, parsed.sequence) {
                Ok(false) => {}
                Ok(true) => break,
                Err(e) => return self.fail(e),
            }
            match parsed.value_type {
                ValueType::Merge => {
                    if !self.prepare() {
                        return;
                    }
                    self.counts.merged += 1;
                    self.operands.push(self.iter.value());
                }
                ValueType::Value => {
                    if !self.prepare() {
                        return;
                    }
                    has_base = true;
                    break;
                }
                ValueType::Deletion | ValueType::SingleDeletion => break,
                other => return self.fail(in_file(&*self.iter, unexpected(other))),
            }
            self.iter.next();
        }
        // The base may be after the entry that could not be read.
        if !has_base && self.iter.status().is_err() {
            return;
        }
        let base = has_base.then(|| self.iter.value());
        let merged = merge(self.operator.as_deref(), &self.saved_key, base, &self.operands.reversed());
        self.return_merged(merged);
    }

    fn return_merged(&mut self, merged: Result<Vec<u8>>) {
        match merged {
            Ok(value) => {
                self.saved_value = value;
                self.saved = true;
                self.valid = true;
            }
            Err(e) => self.fail(e),
        }
    }

    /// From where `iter` is, backward to the newest visible version of a live key; leaves `iter` before all of its
    /// versions.
    fn find_prev(&mut self) {
        self.find_prev_entry();
        self.check_stamp();
    }

    fn find_prev_entry(&mut self) {
        self.valid = false;
        self.saved = true;
        // What the newest visible version seen so far of `saved_key` is; `None` while there is no candidate.
        let mut candidate: Option<ValueType> = None;
        // With operands: `saved_value` is what they apply to.
        let mut has_base = false;
        while self.iter.valid() {
            let parsed = match ParsedInternalKey::parse(self.iter.key()) {
                Ok(p) => p,
                Err(e) => return self.fail(in_file(&*self.iter, Error::corruption(e.to_string()))),
            };
            let user_key = parsed.user_key;
            if candidate.is_some() && self.cmp.compare_user(user_key, &self.saved_key).is_lt() {
                break;
            }
            if self.lower.as_ref().is_some_and(|l| self.cmp.compare_user(user_key, l).is_lt()) {
                break;
            }
            if self.prefix.as_ref().is_some_and(|p| p.is_past(user_key)) {
                break;
            }
            if parsed.sequence <= self.seq {
                let covered = match self.view.covers(user_key, parsed.sequence) {
                    Ok(c) => c,
                    Err(e) => return self.fail(e),
                };
                let filtered = self.filter.as_ref().is_some_and(|p| !user_key.starts_with(p));
                match parsed.value_type {
                    ValueType::Value if !covered && !filtered => {
                        candidate = Some(ValueType::Value);
                        self.saved_key.clear();
                        self.saved_key.extend_from_slice(user_key);
                        if !self.prepare() {
                            return;
                        }
                        self.saved_value.clear();
                        self.saved_value.extend_from_slice(self.iter.value());
                        has_base = true;
                        self.operands.clear();
                    }
                    ValueType::Merge if !covered && !filtered => {
                        if candidate.is_none() {
                            self.saved_key.clear();
                            self.saved_key.extend_from_slice(user_key);
                            has_base = false;
                            self.operands.clear();
                        }
                        candidate = Some(ValueType::Merge);
                        if !self.prepare() {
                            return;
                        }
                        self.operands.push(self.iter.value());
                    }
                    ValueType::Value | ValueType::Merge | ValueType::Deletion | ValueType::SingleDeletion => {
                        self.counts.passed += 1;
                        self.counts.passed_deletes += u64::from(parsed.value_type != ValueType::Value);
                        candidate = None;
                    }
                    other => return self.fail(in_file(&*self.iter, unexpected(other))),
                }
            }
            self.iter.prev();
        }
        match candidate {
            // An error below would hide a newer version of the key.
            Some(_) if self.iter.status().is_err() => {}
            Some(ValueType::Merge) => {
                let operator = self.operator.as_deref();
                let base = has_base.then_some(&self.saved_value[..]);
                let merged = merge(operator, &self.saved_key, base, &self.operands.pushed());
                self.return_merged(merged);
            }
            Some(_) => self.valid = true,
            None => {}
        }
    }
}

/// The value that `operands`, oldest first, make of `base`.
fn merge(operator: Option<&dyn MergeOperator>, key: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> Result<Vec<u8>> {
    let operator = operator.ok_or_else(|| merge_operator::missing(key))?;
    merge_operator::full_merge(operator, key, base, operands)
}

fn unexpected(t: ValueType) -> Error {
    match t.unsupported_feature() {
        Some(feature) => Error::not_supported(format!("the value uses {feature}")),
        None => Error::corruption(format!("unexpected value type {t:?} in an iterator")),
    }
}

/// Says in which file the entry is that `e` is about.
#[cold]
pub(crate) fn in_file(iter: &dyn InternalIterator, e: Error) -> Error {
    match iter.file() {
        Some(file) => e.context(file.display()),
        None => e,
    }
}

impl fmt::Debug for DbRawIterator<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.key().map(|key| key.escape_ascii().to_string());
        f.debug_struct("DbRawIterator").field("key", &key).field("status", &self.status()).finish_non_exhaustive()
    }
}

/// A key and its value.
pub type KeyValue = (Box<[u8]>, Box<[u8]>);

/// An iterator over keys and values (`rocksdb::DBIterator`). An error is its last item.
#[derive(Debug)]
pub struct DbIterator<'a> {
    raw: DbRawIterator<'a>,
    direction: Direction,
    fresh: bool,
    failed: bool,
}

impl<'a> DbIterator<'a> {
    fn new(mut raw: DbRawIterator<'a>, mode: IteratorMode<'_>) -> Self {
        let direction = match mode {
            IteratorMode::Start => {
                raw.seek_to_first();
                Direction::Forward
            }
            IteratorMode::End => {
                raw.seek_to_last();
                Direction::Reverse
            }
            IteratorMode::From(key, Direction::Forward) => {
                raw.seek(key);
                Direction::Forward
            }
            IteratorMode::From(key, Direction::Reverse) => {
                raw.seek_for_prev(key);
                Direction::Reverse
            }
        };
        Self { raw, direction, fresh: true, failed: false }
    }
}

impl Iterator for DbIterator<'_> {
    type Item = Result<KeyValue>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        if !std::mem::replace(&mut self.fresh, false) {
            match self.direction {
                Direction::Forward => self.raw.next(),
                Direction::Reverse => self.raw.prev(),
            }
        }
        if let Some((k, v)) = self.raw.item() {
            return Some(Ok((k.into(), v.into())));
        }
        self.failed = true; // the end, or the error that is given once
        self.raw.status().err().map(Err)
    }
}

impl Db {
    /// Iterates over the default column family.
    pub fn iterator(&self, mode: IteratorMode<'_>) -> DbIterator<'_> {
        self.iterator_opt(mode, ReadOptions::default())
    }

    /// Iterates over the default column family.
    pub fn iterator_opt(&self, mode: IteratorMode<'_>, options: ReadOptions) -> DbIterator<'_> {
        DbIterator::new(self.raw_iterator_opt(options), mode)
    }

    /// Iterates over a column family.
    pub fn iterator_cf(&self, cf: &impl AsColumnFamilyRef, mode: IteratorMode<'_>) -> DbIterator<'_> {
        self.iterator_cf_opt(cf, ReadOptions::default(), mode)
    }

    /// Iterates over a column family.
    pub fn iterator_cf_opt(
        &self,
        cf: &impl AsColumnFamilyRef,
        options: ReadOptions,
        mode: IteratorMode<'_>,
    ) -> DbIterator<'_> {
        DbIterator::new(self.raw_iterator_cf_opt(cf, options), mode)
    }

    /// Iterates over the keys of the default column family that begin with `prefix`; see
    /// [`Self::prefix_iterator_cf`].
    pub fn prefix_iterator(&self, prefix: impl AsRef<[u8]>) -> DbIterator<'_> {
        self.prefix_iterator_cf(self.inner.catalog.default_cf(), prefix)
    }

    /// Iterates, from `prefix` on, over the keys of a column family that have the same prefix according to its prefix
    /// extractor. If there is no extractor, if it gives `prefix` no prefix, or if the order is not bytewise: over the
    /// keys that begin with `prefix`.
    pub fn prefix_iterator_cf(&self, cf: &impl AsColumnFamilyRef, prefix: impl AsRef<[u8]>) -> DbIterator<'_> {
        let (prefix, data) = (prefix.as_ref(), &cf.as_cf().data);
        let mut options = ReadOptions::default();
        let in_domain = data.options.load().prefix_extractor.as_ref().is_some_and(|e| e.prefix(prefix).is_some());
        if in_domain && data.cmp.is_bytewise() {
            options.set_prefix_same_as_start(true);
            return self.iterator_cf_opt(cf, options, IteratorMode::From(prefix, Direction::Forward));
        }
        options.set_iterate_prefix(prefix);
        self.iterator_cf_opt(cf, options, IteratorMode::Start)
    }

    /// An iterator over the default column family that is moved by hand.
    pub fn raw_iterator(&self) -> DbRawIterator<'_> {
        self.raw_iterator_opt(ReadOptions::default())
    }

    /// An iterator over the default column family that is moved by hand.
    pub fn raw_iterator_opt(&self, options: ReadOptions) -> DbRawIterator<'_> {
        self.inner.raw_iterator(self.inner.catalog.default_cf(), &options)
    }

    /// An iterator over a column family that is moved by hand.
    pub fn raw_iterator_cf(&self, cf: &impl AsColumnFamilyRef) -> DbRawIterator<'_> {
        self.raw_iterator_cf_opt(cf, ReadOptions::default())
    }

    /// An iterator over a column family that is moved by hand.
    pub fn raw_iterator_cf_opt(&self, cf: &impl AsColumnFamilyRef, options: ReadOptions) -> DbRawIterator<'_> {
        self.inner.raw_iterator(cf, &options)
    }
}

impl Db {
    /// Iterates over the default column family as `snapshot` sees it.
    pub fn snapshot_iterator(&self, snapshot: &Snapshot<'_>, mode: IteratorMode<'_>) -> DbIterator<'_> {
        let mut options = ReadOptions::default();
        options.set_snapshot(snapshot);
        self.iterator_opt(mode, options)
    }
}
