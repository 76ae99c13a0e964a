//! Checks that a program with its own key order or merge loop orders keys as the store's comparator does.
//!
//! The entries of each run come in the run's order, and all of them come (they are counted), but for versions that the
//! merge itself, byte for byte, finds to be older than another of the same user key; of those, the program's own loop
//! is believed. So it is enough that each entry comes after the one before, and that runs end where they should.

use std::cmp::Ordering::{Equal, Less};

use rockmill_format::InternalKeyComparator;
use rockmill_format::key::{TAG_LEN, tag, user_key};

use super::program::Binding;
use crate::compaction::spec::Part;

/// See the module.
pub(super) struct OrderCheck {
    cmp: InternalKeyComparator,
    /// The program's.
    origin: String,
    /// The internal key before; empty at first.
    last: Vec<u8>,
    begin: Option<Vec<u8>>,
    end: Option<Vec<u8>>,
}

impl OrderCheck {
    pub fn new(cmp: &InternalKeyComparator, binding: &Binding, part: &Part) -> Self {
        Self {
            cmp: cmp.clone(),
            origin: binding.origin.clone(),
            last: Vec::new(),
            begin: part.begin.clone(),
            end: part.end.clone(),
        }
    }

    /// Where the part begins, and in which order.
    pub fn begin(&self) -> Option<(InternalKeyComparator, Vec<u8>)> {
        self.begin.clone().map(|begin| (self.cmp.clone(), begin))
    }

    /// `key` is the entry before the next one.
    pub fn stand_on(&mut self, key: &[u8]) {
        self.last.clear();
        self.last.extend_from_slice(key);
    }

    /// Whether `key`, which must not come before the last one, has another user key.
    pub fn follows(&self, key: &[u8]) -> Result<bool, String> {
        if key.len() < TAG_LEN {
            return Ok(false); // resolution says what it is
        }
        if self.end.as_ref().is_some_and(|end| self.cmp.compare_user(user_key(key), end).is_ge()) {
            return Err(self.disorder(key, "at or behind the part's end"));
        }
        if self.last.len() < TAG_LEN {
            return Ok(true);
        }
        match self.cmp.compare_user(user_key(&self.last), user_key(key)) {
            Less => Ok(true),
            Equal if tag(&self.last) >= tag(key) => Ok(false),
            _ => Err(self.disorder(key, &format!("behind {}", user_key(&self.last).escape_ascii()))),
        }
    }

    /// Whether a run may end at `key`.
    pub fn is_behind(&self, key: &[u8]) -> Result<(), String> {
        match &self.end {
            Some(end) if self.cmp.compare_user(user_key(key), end).is_ge() => Ok(()),
            _ => Err(self.disorder(key, "at its end")),
        }
    }

    /// Why a run that is not read to its end is not at its end.
    pub fn unread(&self) -> String {
        format!("the program {} ended before a run did", self.origin)
    }

    #[cold]
    fn disorder(&self, key: &[u8], place: &str) -> String {
        let (name, key) = (self.cmp.user_comparator().name(), user_key(key).escape_ascii());
        format!("the program {} does not order as {name} does: it has key {key} {place}", self.origin)
    }
}

#[cfg(test)]
mod tests {
    use rockmill_format::key::{InternalKey, ValueType};

    use super::*;

    #[test]
    fn what_an_order_must_not_do_is_found() {
        let part = Part { end: Some(b"m".to_vec()), ..Part::default() };
        let cmp = InternalKeyComparator::default();
        let binding = Binding { origin: "x.o".to_owned(), order: Some(cmp.clone()), ..Binding::default() };
        let mut check = OrderCheck::new(&cmp, &binding, &part);
        let key = |user: &[u8], seq| InternalKey::new(user, seq, ValueType::Value).as_bytes().to_vec();
        assert_eq!(check.follows(&key(b"c", 5)), Ok(true), "the first of all");
        check.stand_on(&key(b"c", 5));
        assert_eq!(check.follows(&key(b"d", 9)), Ok(true));
        assert_eq!(check.follows(&key(b"c", 4)), Ok(false), "an older version");
        assert_eq!(check.follows(&key(b"c", 5)), Ok(false), "twice");
        let said = |said: Result<bool, String>| said.unwrap_err();
        let does_not = "the program x.o does not order as leveldb.BytewiseComparator does: it has key ";
        assert_eq!(said(check.follows(&key(b"c", 6))), format!("{does_not}c behind c"), "a newer version");
        assert_eq!(said(check.follows(&key(b"b", 1))), format!("{does_not}b behind c"));
        assert_eq!(said(check.follows(&key(b"m", 1))), format!("{does_not}m at or behind the part's end"));
        assert_eq!(check.is_behind(&key(b"m", 1)), Ok(()));
        assert_eq!(check.is_behind(&key(b"l", 1)), Err(format!("{does_not}l at its end")));
        // Without an end, a run ends where it has nothing left.
        check.end = None;
        assert_eq!(check.is_behind(&key(b"z", 1)), Err(format!("{does_not}z at its end")));
    }
}
