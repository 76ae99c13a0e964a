//! Whole input blocks on their way into a table.

use super::{Grandparents, Outputs, subtree_of};
use crate::error::Result;
use crate::table::{Census, WholeBlock};
use rockmill_format::key::user_key;

impl Outputs<'_> {
    /// Copies `block` unchanged, if no table ends in it or before it and the table takes it. Otherwise does nothing and
    /// returns false.
    pub fn pass_block(&mut self, block: &WholeBlock<'_>, census: &Census) -> Result<bool> {
        let last = block.entries.key(block.entries.len().saturating_sub(1));
        let bits = self.plan.subtree_bits;
        let splits = self.splits_at(last) || (bits > 0 && subtree_of(user_key(last), bits) != self.subtree);
        let Some(open) = &mut self.open else { return Ok(false) };
        if self.plan.level > 0 {
            if splits || self.grandparents.may_cross(user_key(last)) {
                return Ok(false);
            }
            let ends = |size: u64| size.saturating_add(block.data.len() as u64) >= self.plan.file_size_max;
            if ends(open.builder.file_size_most()) && ends(open.builder.file_size_settled()) {
                return Ok(false);
            }
        }
        open.builder.pass_block(block, census)
    }
}

impl Grandparents<'_> {
    /// False only if [`Self::advance`] to `key` certainly passes no boundary.
    fn may_cross(&self, key: &[u8]) -> bool {
        let Some(f) = self.files.get(self.at) else { return false };
        let next = if self.in_gap { f.smallest } else { f.largest };
        !self.started || self.rules.cmp.compare_user(key, next).is_ge()
    }
}
