//! Merge operands of one stripe: brought together as far as their history is known (RocksDB's `MergeHelper`).
//!
//! 1. Operands are gathered, newest first, down to the stripe's end. The first value, tombstone, or entry under a
//!    range tombstone among them is their base: a full merge makes a value of all, with the newest operand's sequence
//!    number, and whatever of the stripe is older hides behind it.
//! 2. Where the key's entries end without a base and nothing older can exist elsewhere, the base is nothing.
//! 3. Otherwise a partial merge makes one operand of them, again with the newest one's sequence number. An operator
//!    that has no partial merge gets them back one by one.

use rockmill_format::key::{SequenceNumber, TAG_LEN, ValueType};

use super::{Resolver, parse};
use crate::compaction::merge::MergeStream;
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

impl Operands<'_> {
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
    /// It stands at the input: a value, or something that leaves none.
    Found { value: bool },
    /// The key has no older entry in the input.
    End,
    /// The rest of the key belongs to an older snapshot.
    Snapshot,
}

impl<S: MergeStream> Resolver<'_, S> {
    /// The input stands on the newest operand of a stripe, counted and in `key`. Leaves the survivor's type and
    /// sequence number in `key`, its value in `operands`, and the input behind what was merged.
    pub(super) fn merge_operands(
        &mut self,
        operator: &dyn MergeOperator,
        seq: SequenceNumber,
        older_snapshot: SequenceNumber,
    ) -> Result<()> {
        self.operands.clear();
        self.operands.list.push(self.input.value());
        self.operands.sequences.push(seq);
        self.advance()?;
        let base = self.gather(older_snapshot)?;
        let base_is_known = match base {
            Base::Found { .. } => true,
            Base::End => self.no_older_data(),
            Base::Snapshot => false,
        };
        let user_len = self.key.len().saturating_sub(TAG_LEN);
        let user_key = &self.key[..user_len];
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
            self.zero_sequence(seq, ValueType::Value);
            return Ok(());
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
        Ok(())
    }

    /// Gathers further operands of the stripe.
    fn gather(&mut self, older_snapshot: SequenceNumber) -> Result<Base> {
        while self.input.valid() {
            let entry = parse(&self.input)?;
            if !self.same_user_key(entry.user_key) {
                return Ok(Base::End);
            }
            let (seq, value_type) = (entry.sequence, entry.value_type);
            if older_snapshot != 0 && seq <= older_snapshot {
                return Ok(Base::Snapshot);
            }
            let user_len = self.key.len().saturating_sub(TAG_LEN);
            let covered = self.range_del.covers(&self.key[..user_len], seq);
            if covered || value_type != ValueType::Merge {
                return Ok(Base::Found { value: !covered && value_type == ValueType::Value });
            }
            self.count()?;
            self.operands.list.push(self.input.value());
            self.operands.sequences.push(seq);
            self.advance()?;
        }
        Ok(Base::End)
    }

    /// Lets the next unmerged operand leave.
    pub(super) fn next_operand(&mut self) {
        let seq = self.operands.sequences.get(self.operands.next).copied().unwrap_or_default();
        self.operands.next += 1;
        self.set_tag(seq, ValueType::Merge);
    }
}
