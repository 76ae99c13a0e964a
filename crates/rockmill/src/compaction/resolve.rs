//! Resolution: decides which versions of each user key survive (RocksDB's `CompactionIterator`).
//!
//! Snapshots cut the sequence numbers into stripes; readers can tell two versions apart only if they lie in different
//! stripes. The versions of a user key come newest first, and for each:
//!
//! 1. A version is dropped if a newer one is in the same stripe, unless that newer one is a merge operand, which needs
//!    all older entries down to the first value or tombstone.
//! 2. A single delete and the put right after it in its stripe are dropped together. One without a partner is dropped
//!    if no older data can exist and every reader sees it.
//! 3. A tombstone that every reader sees is dropped if no deeper level can hold the key. At the bottommost level, one
//!    that only newer snapshots see is dropped, too, if no older version of the key is left.
//! 4. A version under a range tombstone of its stripe is dropped.
//! 5. What survives at the bottommost level and is seen by every reader gets sequence number 0, which compresses
//!    better and lets tables skip comparisons.
//!
//! With a merge operator, the operands of a stripe become one entry if possible (`operands`); without one they all
//! survive, down to their base.
//!
//! Before all that, a compaction filter is asked about the newest version of a user key, if it is a value, no matter
//! which readers see it. If the filter removes it, it becomes a tombstone with the same sequence number. The filter is
//! asked about operands while they are gathered.

use rockmill_format::key::{ParsedInternalKey, SequenceNumber, TAG_LEN, ValueType, user_key};
use rockmill_format::key_buffer::KeyBuffer;

use operands::Operands;
use sharing::Sharing;

use super::Stop;
use super::filter::{FilterPlan, PartFilter};
use super::merge::MergeStream;
use super::plan::{Rules, is_supported};
use super::tombstones::Tombstones;
use crate::compaction_filter::Decision;
use crate::error::{Error, ErrorKind, Result};
use crate::range_del::CompactionRangeDel;
use crate::sync::atomic::Ordering;
use crate::table::Origin;

mod operands;
pub(super) mod pass;
mod sharing;

/// The usual type.
const VALUE: u8 = ValueType::Value as u8;

/// Entries between two checks of the stop flags.
const STOP_CHECK_ENTRIES: u64 = 1024;

/// What happened to the entries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ResolveStats {
    /// Read.
    pub input_records: u64,
    /// Survived.
    pub output_records: u64,
    /// Dropped because of a newer version; includes partners of single deletes.
    pub hidden: u64,
    /// Tombstones dropped because nothing older exists.
    pub obsolete: u64,
    /// Of them, those above the bottommost level.
    pub obsolete_above: u64,
    /// Dropped under a range tombstone.
    pub range_deleted: u64,
    /// Merge operands and bases that went into another entry.
    pub merged: u64,
    /// Values and merge operands that a compaction filter removed or skipped.
    pub filtered: u64,
    /// Blocks whose entries all survived, copied unchanged.
    pub blocks_passed: u64,
}

impl ResolveStats {
    /// Every count, in the order of the encoding of a job's result.
    pub fn counts(&mut self) -> [&mut u64; 9] {
        let Self {
            input_records,
            output_records,
            hidden,
            obsolete,
            obsolete_above,
            range_deleted,
            merged,
            filtered,
            blocks_passed,
        } = self;
        [
            input_records,
            output_records,
            hidden,
            obsolete,
            obsolete_above,
            range_deleted,
            merged,
            filtered,
            blocks_passed,
        ]
    }

    /// Adds those of another part of the job.
    pub fn add(&mut self, mut other: Self) {
        for (sum, n) in self.counts().into_iter().zip(other.counts()) {
            *sum += *n;
        }
    }
}

/// The surviving entries of a merge.
pub struct Resolver<'a, S> {
    input: &'a mut S,
    rules: &'a Rules,
    range_del: CompactionRangeDel,
    stop: Stop<'a>,
    below: BelowCursors,
    earliest_snapshot: SequenceNumber,
    stats: ResolveStats,
    /// The current entry's internal key: a copy, because its tag may change and the input may move ahead.
    key: KeyBuffer,
    /// `key` holds a user key of which more versions may come.
    has_user_key: bool,
    /// A version of that user key survived.
    emitted: bool,
    /// The current survivor is the first of its user key: a file may end before it.
    new_user_key: bool,
    /// Newest stripe of the user key that a version was seen in; `None` before the first.
    stripe: Option<SequenceNumber>,
    /// The last survivor is a merge operand that still needs its base.
    open_operand: bool,
    /// A version of the user key got sequence number 0.
    zeroed: bool,
    operands: Operands<'a>,
    /// The current survivor's value is in `operands`.
    left_operand: bool,
    filter: Option<PartFilter>,
    /// The filter was not yet asked about a version of the user key.
    ask_filter: bool,
    /// The value that the filter gave the current entry.
    replaced: Option<Vec<u8>>,
    /// The input stands on the current entry and must be moved before the next.
    on_current: bool,
    /// Outputs may keep using files of the inputs.
    sharing: Option<Sharing>,
    /// Where the current entry is, if it may stay there; meaningful with `on_current`.
    origin: Option<Origin>,
}

impl<'a, S: MergeStream> Resolver<'a, S> {
    /// Resolves the entries of `input`. It ends with an error if one of `stop` is set: the store closes, or another
    /// part of the job failed.
    pub fn new(input: &'a mut S, rules: &'a Rules, tombstones: &Tombstones, stop: Stop<'a>) -> Result<Self> {
        Ok(Self {
            input,
            rules,
            range_del: tombstones.cursor(rules),
            stop,
            below: BelowCursors::new(rules),
            earliest_snapshot: rules.earliest_snapshot(),
            stats: ResolveStats::default(),
            key: KeyBuffer::new(),
            has_user_key: false,
            emitted: false,
            new_user_key: true,
            stripe: None,
            open_operand: false,
            zeroed: false,
            operands: Operands::new(rules.merge_operator.as_deref()),
            left_operand: false,
            filter: rules.filter.as_ref().map(FilterPlan::begin).transpose()?,
            ask_filter: false,
            replaced: None,
            on_current: false,
            sharing: None,
            origin: None,
        })
    }

    /// The current survivor's internal key.
    #[inline]
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// The current survivor's value.
    #[inline]
    pub fn value(&self) -> &[u8] {
        // After the input has moved on, only merged values and tombstones (which have no value) are still to be
        // returned.
        if self.on_current {
            self.replaced.as_deref().unwrap_or_else(|| self.input.value())
        } else if self.left_operand {
            self.operands.value()
        } else {
            &[]
        }
    }

    /// True when the current survivor's user key is not that of the one before.
    #[inline]
    pub fn is_new_user_key(&self) -> bool {
        self.new_user_key
    }

    /// Counters so far.
    pub fn stats(&self) -> ResolveStats {
        self.stats
    }

    #[inline]
    fn advance(&mut self) -> Result<()> {
        self.note_left();
        self.advance_from_survivor()
    }

    /// The same where the current entry survives: nothing is gone.
    #[inline]
    fn advance_from_survivor(&mut self) -> Result<()> {
        self.input.advance()?;
        self.pass_placeholders()
    }

    /// Counts an entry read, and now and then checks whether the store closes.
    #[inline]
    fn count(&mut self) -> Result<()> {
        self.stats.input_records += 1;
        let look = self.stats.input_records.is_multiple_of(STOP_CHECK_ENTRIES);
        if look && self.stop.iter().any(|s| s.load(Ordering::Acquire)) {
            return Err(Error::new(ErrorKind::ShutdownInProgress, "it was stopped"));
        }
        Ok(())
    }

    #[inline]
    fn user_key(&self) -> &[u8] {
        user_key(&self.key)
    }

    /// True when the input's user key is the current one.
    #[inline(always)]
    fn same_user_key(&self) -> bool {
        self.rules.cmp.compare_user(self.user_key(), user_key(self.input.key())).is_eq()
    }

    fn set_tag(&mut self, seq: SequenceNumber, t: ValueType) {
        self.key.set_tag(seq, t);
    }

    /// To the next survivor; false at the end.
    pub fn next_survivor(&mut self) -> Result<bool> {
        if std::mem::take(&mut self.on_current) {
            self.advance_from_survivor()?;
        } else if std::mem::take(&mut self.left_operand) && self.operands.waiting() {
            self.next_operand();
            self.left_operand = true;
            return Ok(self.emit());
        }
        while self.input.valid() {
            self.count()?;
            self.replaced = None;
            let ikey = self.input.key();
            let Some((seq, mut value_type)) = parse_key(ikey) else { return Err(refuse(self.input)) };
            if !self.input.surely_new_user_key() && self.has_user_key && self.same_user_key() {
                self.set_tag(seq, value_type);
            } else {
                self.key.set(ikey);
                self.has_user_key = true;
                self.stripe = None;
                self.open_operand = false;
                self.zeroed = false;
                self.emitted = false;
                self.ask_filter = self.filter.is_some();
            }
            let ask = std::mem::take(&mut self.ask_filter) && value_type == ValueType::Value;
            if ask && !self.input.filter_kept() {
                match self.filter_value(seq)? {
                    Some(filtered) => value_type = filtered,
                    None => continue,
                }
            }
            let (stripe, older_snapshot) = self.rules.stripe(seq);
            let hidden = self.stripe.is_some_and(|newest| newest <= stripe);
            self.stripe = Some(stripe);

            if value_type == ValueType::SingleDeletion {
                if self.single_deletion(seq, older_snapshot)? {
                    return Ok(self.emit());
                }
                continue;
            }
            if hidden && !self.open_operand {
                self.stats.hidden += 1;
                self.advance()?;
                continue;
            }
            if value_type == ValueType::Deletion {
                if seq <= self.earliest_snapshot && self.no_older_data() {
                    self.stats.obsolete += 1;
                    self.stats.obsolete_above += u64::from(!self.rules.bottommost);
                    self.open_operand = false;
                    self.advance()?;
                    continue;
                }
                if self.rules.bottommost {
                    if self.bottommost_deletion(older_snapshot)? {
                        return Ok(self.emit());
                    }
                    continue;
                }
            }
            if value_type == ValueType::Merge
                && let Some(operator) = self.operands.operator
            {
                self.open_operand = false;
                if self.merge_operands(operator, seq, older_snapshot)? {
                    self.left_operand = true;
                    return Ok(self.emit());
                }
                // The filter removed all operands: the older entries count as if the operands had never existed.
                self.stripe = None;
                self.ask_filter = self.filter.is_some();
                continue;
            }
            if self.covers(seq) {
                self.stats.range_deleted += 1;
                self.open_operand = false;
                self.advance()?;
                continue;
            }
            self.open_operand = value_type == ValueType::Merge;
            self.zero_sequence(seq, value_type, self.replaced.is_none());
            self.on_current = true;
            return Ok(self.emit());
        }
        Ok(false)
    }

    /// True when a range tombstone hides version `seq` of the current user key.
    #[inline]
    fn covers(&mut self, seq: SequenceNumber) -> bool {
        self.range_del.covers(user_key(&self.key), seq)
    }

    /// Asks the filter about the current entry, a value. Returns its type from now on, or `None` if it and following
    /// entries were skipped.
    fn filter_value(&mut self, seq: SequenceNumber) -> Result<Option<ValueType>> {
        let Some(filter) = &mut self.filter else { return Ok(Some(ValueType::Value)) };
        let user_key = user_key(&self.key);
        let tombstone = match filter.value(user_key, self.input.value())? {
            Decision::Keep => return Ok(Some(ValueType::Value)),
            Decision::Change(value) => {
                self.replaced = Some(value);
                return Ok(Some(ValueType::Value));
            }
            Decision::RemoveAndSkipUntil(until) => {
                if self.rules.cmp.compare_user(&until, user_key).is_le() {
                    return Ok(Some(ValueType::Value));
                }
                self.skip_until(&until)?;
                return Ok(None);
            }
            Decision::Remove => ValueType::Deletion,
            Decision::Purge => ValueType::SingleDeletion,
        };
        self.stats.filtered += 1;
        self.replaced = Some(Vec::new());
        self.set_tag(seq, tombstone);
        Ok(Some(tombstone))
    }

    /// Drops the current entry, which is counted, and every one before user key `until`.
    fn skip_until(&mut self, until: &[u8]) -> Result<()> {
        self.stats.filtered += 1;
        self.advance()?;
        while self.input.valid() {
            parse(self.input)?;
            if self.rules.cmp.compare_user(user_key(self.input.key()), until).is_ge() {
                break;
            }
            self.count()?;
            self.stats.filtered += 1;
            self.advance()?;
        }
        Ok(())
    }

    /// At the bottommost level, sets the sequence number of a value that every reader sees to 0.
    #[inline]
    fn zero_sequence(&mut self, seq: SequenceNumber, value_type: ValueType, is_input: bool) {
        let zeroed = self.rules.bottommost && seq <= self.earliest_snapshot && value_type == ValueType::Value;
        // An entry that may stay in its file is not changed.
        if self.sharing.is_some() && self.may_stay(is_input) {
            return;
        }
        if zeroed {
            self.set_tag(0, ValueType::Value);
            self.zeroed = true;
        }
    }

    /// Hands the entry in `key` out.
    #[inline]
    fn emit(&mut self) -> bool {
        self.new_user_key = !std::mem::replace(&mut self.emitted, true);
        self.stats.output_records += 1;
        if let Some(sharing) = &mut self.sharing {
            sharing.survives(user_key(&self.key));
        }
        true
    }

    /// A single delete: looks at the entry after it. True if it survives; the input is then past it.
    fn single_deletion(&mut self, seq: SequenceNumber, older_snapshot: SequenceNumber) -> Result<bool> {
        self.open_operand = false;
        self.advance()?;
        let next = if self.input.valid() {
            let entry = parse(self.input)?;
            self.same_user_key().then_some(entry)
        } else {
            None
        };
        let Some((next_seq, next_type)) = next else {
            if (seq <= self.earliest_snapshot && self.no_older_data()) || self.zeroed {
                self.stats.obsolete += 1;
                return Ok(false);
            }
            return Ok(true);
        };
        if !self.zeroed {
            // Without an older snapshot that is 0, and so is the number of a put that was at the bottom.
            if older_snapshot != 0 && next_seq <= older_snapshot {
                return Ok(true); // an older snapshot sees the put: both stay
            }
            if matches!(next_type, ValueType::SingleDeletion | ValueType::Deletion) {
                // This violates the contract of single deletes; the newer tombstone adds nothing to the older one. The
                // older one must not count as hidden by it.
                self.stats.obsolete += 1;
                self.stripe = None;
                return Ok(false);
            }
        }
        self.count()?;
        self.stats.hidden += 2;
        self.advance()?;
        Ok(false)
    }

    /// A tombstone at the bottommost level that not every reader sees: older versions in its stripe are dropped, and if
    /// nothing of the key remains, so is the tombstone. True if it survives; the input is then past it.
    fn bottommost_deletion(&mut self, older_snapshot: SequenceNumber) -> Result<bool> {
        self.open_operand = false;
        self.advance()?;
        while self.input.valid() {
            let (seq, _) = parse(self.input)?;
            if !self.same_user_key() {
                break;
            }
            if older_snapshot != 0 && seq <= older_snapshot {
                return Ok(true);
            }
            self.count()?;
            self.stats.hidden += 1;
            self.advance()?;
        }
        self.stats.obsolete += 1;
        Ok(false)
    }

    /// True when no level below the output can hold the current user key.
    fn no_older_data(&mut self) -> bool {
        self.rules.bottommost || !self.below.may_hold(user_key(&self.key), self.rules)
    }
}

/// Sequence number and type of the input's entry.
fn parse(input: &impl MergeStream) -> Result<(SequenceNumber, ValueType)> {
    parse_key(input.key()).ok_or_else(|| refuse(input))
}

/// The same of an internal key; `None` if this store does not compact entries of its type.
#[inline(always)]
fn parse_key(ikey: &[u8]) -> Option<(SequenceNumber, ValueType)> {
    let tag = u64::from_le_bytes(*ikey.last_chunk::<TAG_LEN>()?);
    // The most common types first.
    let value_type = match tag as u8 {
        VALUE => ValueType::Value,
        other => ValueType::from_u8(other).filter(|t| is_supported(*t))?,
    };
    Some((tag >> 8, value_type))
}

#[cold]
fn refuse(input: &impl MergeStream) -> Error {
    let e = match ParsedInternalKey::parse(input.key()) {
        Ok(entry) => match entry.value_type.unsupported_feature() {
            Some(feature) => Error::not_supported(format!("an entry to compact uses {feature}")),
            None => Error::corruption(format!("an entry of type {:?} does not belong in a table", entry.value_type)),
        },
        Err(e) => Error::corruption(format!("a bad internal key of {} bytes in a compaction: {e}", input.key().len())),
    };
    match input.file() {
        Some(file) => e.context(file.display()),
        None => e,
    }
}

/// Positions in the levels below the output; they only move forward, as the keys do.
struct BelowCursors {
    at: Vec<usize>,
}

impl BelowCursors {
    fn new(rules: &Rules) -> Self {
        Self { at: vec![0; rules.below.as_ref().map_or(0, Vec::len)] }
    }

    /// True when a file below has `user_key` in its range.
    fn may_hold(&mut self, user_key: &[u8], rules: &Rules) -> bool {
        let Some(below) = &rules.below else { return true };
        for (files, at) in below.iter().zip(&mut self.at) {
            while let Some(f) = files.get(*at) {
                if rules.cmp.compare_user(user_key, f.largest).is_gt() {
                    *at += 1;
                    continue;
                }
                if rules.cmp.compare_user(user_key, f.smallest).is_ge() {
                    return true;
                }
                break;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests;
