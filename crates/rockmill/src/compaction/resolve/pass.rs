//! Whole blocks that pass: those in which every entry survives unchanged.

use rockmill_format::key::{TAG_LEN, ValueType, tag, user_key};

use super::{MergeStream, Resolver};
use crate::compaction::plan::Rules;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::atomic::Ordering;
use crate::table::{Census, WholeBlock};

/// True if blocks may pass in a job under `rules`: nothing in it looks at single values.
pub(in crate::compaction) fn may_pass(rules: &Rules, any_range_tombstones: bool) -> bool {
    rules.filter.is_none() && !any_range_tombstones
}

impl<S: MergeStream> Resolver<'_, S> {
    /// If the input offers a whole block whose entries all survive unchanged, offers it to `take`. The entries of a
    /// block that is not taken come one by one. False when there is no block: the input has ended.
    pub fn pass_block(&mut self, take: impl FnOnce(&WholeBlock<'_>, &Census) -> Result<bool>) -> Result<bool> {
        let Some(block) = self.input.block() else { return Ok(false) };
        let taken = match census(&block, self.rules) {
            Some(census) => take(&block, &census)?,
            None => false,
        };
        if taken {
            let entries = block.entries;
            self.key.set(entries.key(entries.len().saturating_sub(1)));
            let n = entries.len() as u64;
            // As if the last entry had just left: further versions of its user key may come.
            let seq = tag(&self.key) >> 8;
            self.has_user_key = true;
            self.emitted = true;
            self.stripe = Some(self.rules.stripe(seq).0);
            self.open_operand = false;
            self.zeroed = self.rules.bottommost && seq <= self.earliest_snapshot;
            self.ask_filter = false;
            self.replaced = None;
            self.stats.input_records += n;
            self.stats.output_records += n;
            self.stats.blocks_passed += 1;
            if self.stop.iter().any(|s| s.load(Ordering::Acquire)) {
                return Err(Error::new(ErrorKind::ShutdownInProgress, "it was stopped"));
            }
        }
        self.input.take_block(taken)?;
        Ok(true)
    }
}

/// The sums of a block whose entries all survive unchanged, whatever is around it: plain values, one version of each
/// user key, with sequence numbers that do not change. `None` for any other block.
fn census(block: &WholeBlock<'_>, rules: &Rules) -> Option<Census> {
    let entries = block.entries;
    let mut sums = Census { smallest_seqno: u64::MAX, ..Census::default() };
    let zeroed = if rules.bottommost { rules.earliest_snapshot() } else { 0 };
    let (mut before, mut prefix_before): (&[u8], u64) = (&[], 0);
    for i in 0..entries.len() {
        let (key, prefix) = (entries.key(i), entries.prefix(i));
        let (tag, user_key) = (tag(key), user_key(key));
        let seq = tag >> 8;
        if tag as u8 != ValueType::Value as u8 || key.len() < TAG_LEN || (seq <= zeroed && seq != 0) {
            return None;
        }
        if i > 0 && prefix <= prefix_before && user_key <= before {
            return None;
        }
        (before, prefix_before) = (user_key, prefix);
        sums.key_bytes += key.len() as u64;
        sums.value_bytes += entries.value_range(i).len() as u64;
        sums.smallest_seqno = sums.smallest_seqno.min(seq);
        sums.largest_seqno = sums.largest_seqno.max(seq);
    }
    Some(sums)
}
