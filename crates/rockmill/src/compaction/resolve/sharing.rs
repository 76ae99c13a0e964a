//! What a compaction has to know if its outputs keep using files of its inputs (TPH tables): which survivors may stay
//! where they are, and which user keys are gone although those files have entries of them.

use std::collections::VecDeque;

use rockmill_format::InternalKeyComparator;
use rockmill_format::key::{ValueType, tag, user_key};
use rockmill_format::key_buffer::KeyBuffer;

use super::{MergeStream, Resolver};
use crate::error::Result;
use crate::table::{Leaves, Origin};

/// User keys that leave something, in order.
type Keys = VecDeque<(Vec<u8>, Leaves)>;

/// See the module's text.
pub(super) struct Sharing {
    /// The user key whose entries are being left, and what it leaves.
    group: (Vec<u8>, Leaves),
    /// The user key of the last survivor, and of the one before it.
    survived: KeyBuffer,
    before: KeyBuffer,
    any_survived: bool,
    /// User keys of which no entry survived.
    gone: Keys,
    /// User keys that have a placeholder, whatever became of their other entries.
    placeholders: Keys,
}

impl Sharing {
    pub fn new() -> Self {
        Self {
            group: (Vec::new(), Leaves::Nothing),
            survived: KeyBuffer::new(),
            before: KeyBuffer::new(),
            any_survived: false,
            gone: Keys::new(),
            placeholders: Keys::new(),
        }
    }

    /// An entry of `key` is left.
    fn left(&mut self, key: &[u8], leaves: Leaves) {
        if leaves == Leaves::Nothing {
            return;
        }
        if self.group.0 != key {
            self.end_group();
            self.group.0.clear();
            self.group.0.extend_from_slice(key);
        }
        self.group.1 = leaves;
    }

    fn end_group(&mut self) {
        let leaves = std::mem::replace(&mut self.group.1, Leaves::Nothing);
        if leaves != Leaves::Nothing && !self.is_survivor(&self.group.0) {
            self.gone.push_back((self.group.0.clone(), leaves));
        }
    }

    fn is_survivor(&self, key: &[u8]) -> bool {
        self.any_survived && *self.survived == *key
    }

    /// An entry of `key` survives.
    #[inline]
    pub fn survives(&mut self, key: &[u8]) {
        if self.group.1 != Leaves::Nothing && self.group.0 != key {
            self.end_group();
        }
        std::mem::swap(&mut self.survived, &mut self.before);
        self.survived.set(key);
        self.any_survived = true;
    }

    /// The next deleted user key before the last survivor, or all remaining ones at the end.
    fn next_gone(&mut self, at_end: bool, cmp: &InternalKeyComparator) -> Option<(Vec<u8>, Leaves)> {
        if at_end {
            self.end_group();
        }
        loop {
            let (gone, placeholder) = (self.gone.front(), self.placeholders.front());
            let of_gone = match (gone, placeholder) {
                (None, None) => return None,
                (Some(a), Some(b)) => cmp.compare_user(&a.0, &b.0).is_le(),
                (a, _) => a.is_some(),
            };
            let first = if of_gone { gone } else { placeholder }?;
            let order = cmp.compare_user(&first.0, &self.survived);
            // Keys before the previous survivor were taken then.
            let survived = self.any_survived && (order.is_eq() || *first.0 == *self.before);
            if !at_end && !survived && order.is_gt() {
                return None;
            }
            let first = if of_gone { self.gone.pop_front() } else { self.placeholders.pop_front() };
            if !survived {
                return first;
            }
        }
    }
}

impl<S: MergeStream> Resolver<'_, S> {
    /// Called before the first survivor: outputs may keep using files of the inputs.
    pub fn share(&mut self) -> Result<()> {
        self.sharing = Some(Sharing::new());
        self.pass_placeholders()
    }

    /// Notes what the current entry leaves, before it is left.
    #[inline]
    pub(super) fn note_left(&mut self) {
        if self.sharing.is_some() {
            self.note_left_in_files();
        }
    }

    #[inline(never)]
    fn note_left_in_files(&mut self) {
        if let Some(sharing) = &mut self.sharing
            && self.input.valid()
        {
            sharing.left(user_key(self.input.key()), self.input.leaves());
        }
    }

    /// Iterates over placeholders.
    #[inline]
    pub(super) fn pass_placeholders(&mut self) -> Result<()> {
        if self.sharing.is_some() { self.pass_placeholders_in_files() } else { Ok(()) }
    }

    #[inline(never)]
    fn pass_placeholders_in_files(&mut self) -> Result<()> {
        let Some(sharing) = &mut self.sharing else { return Ok(()) };
        while self.input.valid() && tag(self.input.key()) as u8 == ValueType::Placeholder as u8 {
            sharing.placeholders.push_back((user_key(self.input.key()).to_vec(), self.input.leaves()));
            self.input.advance()?;
        }
        Ok(())
    }

    /// Finds out whether the current entry, which survives, may stay where it is: nothing of it has changed
    /// (`is_input`), and no newer version of its user key survives, which a new file would have without it.
    #[inline(never)]
    pub(super) fn may_stay(&mut self, is_input: bool) -> bool {
        self.origin = None;
        if is_input && !self.emitted {
            self.origin = self.input.origin().filter(|origin| origin.alone);
        }
        self.origin.is_some()
    }

    /// Where the current survivor is, if it may stay there.
    #[inline]
    pub fn origin(&self) -> Option<Origin> {
        if !self.on_current {
            return None;
        }
        debug_assert!(self.origin.is_none() || (self.new_user_key && *self.key == *self.input.key()));
        self.origin
    }

    /// Bytes of the value of a survivor that may stay where it is.
    #[inline]
    pub fn kept_value_len(&self) -> usize {
        self.input.value_len()
    }

    /// The deleted user keys up to the current survivor, or all remaining ones after the last survivor.
    #[inline]
    pub fn next_gone(&mut self, at_end: bool) -> Option<(Vec<u8>, Leaves)> {
        let (sharing, cmp) = (self.sharing.as_mut()?, &self.rules.cmp);
        let none = sharing.gone.is_empty() && sharing.placeholders.is_empty();
        if none && !at_end { None } else { sharing.next_gone(at_end, cmp) }
    }
}
