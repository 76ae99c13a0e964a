//! What an iterator must show.

use crate::history::{Bounds, Move};
use crate::kinds::{Kind, key_bytes};
use crate::model::{Family, Pairs};

/// An iterator over a column family as it was at one moment. Entries that a filter may have removed are skipped.
#[derive(Debug, Clone, Default)]
pub struct Cursor {
    entries: Pairs,
    kind: Kind,
    at: Option<usize>,
}

/// The bytes that keys of a [`Bounds::prefix`] begin with.
pub fn prefix_bytes((key, len): (u16, u8)) -> Vec<u8> {
    let mut bytes = key_bytes(key);
    bytes.truncate(usize::from(len));
    bytes
}

impl Cursor {
    /// Over what the bounds leave.
    pub fn new(family: &Family, bounds: &Bounds) -> Self {
        let kind = family.kind;
        let lower = bounds.lower.map(key_bytes);
        let upper = bounds.upper.map(key_bytes);
        let prefix = bounds.prefix.map(prefix_bytes);
        let before = |a: &[u8], b: &[u8]| kind.order(a, b).is_lt();
        let inside = |key: &[u8]| {
            lower.as_ref().is_none_or(|low| !before(key, low))
                && upper.as_ref().is_none_or(|high| before(key, high))
                && prefix.as_ref().is_none_or(|prefix| key.starts_with(prefix))
        };
        let all = family.sorted().into_iter().filter(|(key, _)| inside(key));
        Self { entries: all.map(|(k, v)| (k.to_vec(), v.to_vec())).collect(), kind, at: None }
    }

    /// Where it is.
    pub fn item(&self) -> Option<(&[u8], &[u8])> {
        self.at.map(|at| (&*self.entries[at].0, &*self.entries[at].1))
    }

    /// Moves the iterator; an invalid iterator stays invalid until it seeks.
    pub fn go(&mut self, to: Move) {
        let kind = self.kind;
        let reaches = |entry: &[u8], key: &[u8]| kind.order(entry, key).is_ge();
        let last = self.entries.len().checked_sub(1);
        match to {
            Move::First => self.at = last.map(|_| 0),
            Move::Last => self.at = last,
            Move::Seek(key) => {
                let key = key_bytes(key);
                self.at = self.entries.iter().position(|(k, _)| reaches(k, &key));
            }
            Move::SeekForPrev(key) => {
                let key = key_bytes(key);
                self.at = self.entries.iter().rposition(|(k, _)| *k == key || !reaches(k, &key));
            }
            Move::Next(n) => {
                self.at = self.at.map(|at| at + usize::from(n)).filter(|at| *at < self.entries.len());
            }
            Move::Prev(n) => self.at = self.at.and_then(|at| at.checked_sub(usize::from(n))),
        }
    }
}
