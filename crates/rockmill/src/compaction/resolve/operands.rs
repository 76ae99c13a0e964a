//! Merge operands of one stripe, merged as far as their history is known (RocksDB's `MergeHelper`).
//!
//! 1. Operands are gathered, newest first, down to the stripe's end. The first value, tombstone, or entry under a
//!    range tombstone among them is their base: a full merge makes one value of all, with the newest operand's sequence
//!    number, and this value hides all older entries of the stripe.
//! 2. If the key's entries end without a base and nothing older can exist elsewhere, they are merged without a base
//!    value.
//! 3. Otherwise a partial merge makes one operand of them, again with the newest one's sequence number. If the operator
//!    has no partial merge, the operands are kept one by one.
//!
//! The compaction filter is asked about operands that no snapshot sees, even under a range tombstone, because it may
//! skip the entries after them. As in RocksDB, it is not asked about the base.

use rockmill_format::key::{SequenceNumber, ValueType, user_key};

use super::{Resolver, parse};
use crate::compaction::merge::MergeStream;
use crate::compaction_filter::Decision;
use crate::error::Result;
use crate::merge_operator::{MergeOperator, OperandList, full_merge, partial_merge};

/// Operands being merged, and those that wait to leave.
#[derive(Default)]
pub(super) struct Operands<'a> {
    /// The column family's operator.
    pub operator: Option<&'a dyn MergeOperator>,
    /// Newest first.
    list: OperandList,
    /// Sequence number of each.
    sequences: Vec<SequenceNumber>,
    /// The next of `list` to leave unmerged.
    next: usize,
    /// Result of a merge.
    merged: Vec<u8>,
}

impl<'a> Operands<'a> {
    /// None yet.
    pub fn new(operator: Option<&'a dyn MergeOperator>) -> Self {
        Self { operator, ..Self::default() }
    }

    /// The value of the survivor that left last.
    pub fn value(&self) -> &[u8] {
        match self.next.checked_sub(1) {
            Some(i) => self.list.get(i),
            None => &self.merged,
        }
    }

    /// True when an operand waits to leave unmerged.
    #[inline]
    pub fn waiting(&self) -> bool {
        self.next < self.list.len()
    }

    fn push(&mut self, operand: &[u8], seq: SequenceNumber) {
        self.list.push(operand);
        self.sequences.push(seq);
    }

    /// Forgets the operands and the value.
    fn clear(&mut self) {
        self.list.clear();
        self.sequences.clear();
        self.next = 0;
        self.merged.clear();
    }

    fn result(&mut self, merged: Vec<u8>) {
        self.clear();
        self.merged = merged;
    }
}

/// What lies under the operands.
enum Base {
    /// It is the input's current entry: a value, or an entry that leaves no value.
    Found { value: bool },
    /// Nothing: the older entries are under a range tombstone.
    Hidden,
    /// The key has no older entry in the input.
    End,
    /// The rest of the key belongs to an older snapshot.
    Snapshot,
    /// The filter skipped the rest of the key, operands included.
    Skipped,
}

impl<S: MergeStream> Resolver<'_, S> {
    /// On entry, the input is on the newest operand of a stripe, which is counted and in `key`. Leaves the survivor's
    /// type and sequence number in `key`, its value in `operands`, and the input after the merged entries. Returns
    /// false if the filter left no operand; the input is then after all of them.
    pub(super) fn merge_operands(
        &mut self,
        operator: &dyn MergeOperator,
        seq: SequenceNumber,
        older_snapshot: SequenceNumber,
    ) -> Result<bool> {
        self.operands.clear();
        let base = self.gather(seq, older_snapshot)?;
        let Some(&seq) = self.operands.sequences.first() else { return Ok(false) };
        let base_is_known = match base {
            Base::Found { .. } | Base::Hidden => true,
            Base::End => self.no_older_data(),
            Base::Snapshot | Base::Skipped => false,
        };
        let user_key = user_key(&self.key);
        let operands = self.operands.list.reversed();
        if base_is_known {
            let existing = matches!(base, Base::Found { value: true }).then(|| self.input.value());
            let merged = full_merge(operator, user_key, existing, &operands)?;
            drop(operands);
            self.stats.merged += self.operands.list.len() as u64 - 1;
            self.operands.result(merged);
            if matches!(base, Base::Found { .. }) {
                self.count()?;
                self.stats.merged += 1;
                self.advance()?;
            }
            self.set_tag(seq, ValueType::Value);
            self.zero_sequence(seq, ValueType::Value, false);
            return Ok(true);
        }
        let merged = if operands.len() > 1 { partial_merge(operator, user_key, &operands)? } else { None };
        drop(operands);
        match merged {
            Some(merged) => {
                self.stats.merged += self.operands.list.len() as u64 - 1;
                self.operands.result(merged);
            }
            None => self.operands.next = 1,
        }
        self.set_tag(seq, ValueType::Merge);
        Ok(true)
    }

    /// Gathers the operands of the stripe. The first one, with `seq`, stands at the input and is counted.
    fn gather(&mut self, seq: SequenceNumber, older_snapshot: SequenceNumber) -> Result<Base> {
        // A range tombstone hides the rest of the stripe, and a hidden entry is no base.
        let mut covered = false;
        let mut next = Some(seq);
        while let Some(seq) = next {
            if !self.take_operand(seq, &mut covered)? {
                return Ok(Base::Skipped);
            }
            if !self.input.valid() {
                break;
            }
            let (seq, value_type) = parse(self.input)?;
            if !self.same_user_key() {
                break;
            }
            if older_snapshot != 0 && seq <= older_snapshot {
                return Ok(if covered { Base::Hidden } else { Base::Snapshot });
            }
            if value_type != ValueType::Merge {
                let value = value_type == ValueType::Value && !self.covers(seq);
                return Ok(Base::Found { value });
            }
            self.count()?;
            next = Some(seq);
        }
        Ok(if covered { Base::Hidden } else { Base::End })
    }

    /// Adds the operand at the input, which is counted, unless the filter or a range tombstone removes it, and moves
    /// on. Returns false if the filter skipped the rest of the key; the operands gathered so far are then dropped too.
    fn take_operand(&mut self, seq: SequenceNumber, covered: &mut bool) -> Result<bool> {
        let decision = match &mut self.filter {
            Some(filter) if seq > self.rules.latest_snapshot() => {
                filter.operand(user_key(&self.key), self.input.value())?
            }
            _ => Decision::Keep,
        };
        if let Decision::RemoveAndSkipUntil(until) = &decision
            && self.rules.cmp.compare_user(until, self.user_key()).is_gt()
        {
            self.stats.filtered += self.operands.list.len() as u64;
            self.operands.clear();
            self.skip_until(until)?;
            return Ok(false);
        }
        *covered = *covered || self.covers(seq);
        if *covered {
            self.stats.range_deleted += 1;
        } else {
            match decision {
                Decision::Change(operand) => self.operands.push(&operand, seq),
                Decision::Remove | Decision::Purge => self.stats.filtered += 1,
                Decision::Keep | Decision::RemoveAndSkipUntil(_) => self.operands.push(self.input.value(), seq),
            }
        }
        self.advance()?;
        Ok(true)
    }

    /// Lets the next unmerged operand leave.
    pub(super) fn next_operand(&mut self) {
        let seq = self.operands.sequences.get(self.operands.next).copied().unwrap_or_default();
        self.operands.next += 1;
        self.set_tag(seq, ValueType::Merge);
    }
}
