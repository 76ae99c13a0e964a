//! What readers see of a set of internal entries: a slow and simple model that jobs are compared with.

use std::collections::BTreeSet;

use rockmill_format::ValueType;

/// One version: user key, sequence number, type, value.
pub(crate) type Entry = (Vec<u8>, u64, ValueType, Vec<u8>);

/// A range tombstone: begin, end, sequence number.
pub(crate) type Range = (Vec<u8>, Vec<u8>, u64);

/// Everything in the database, in no order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Model {
    pub entries: Vec<Entry>,
    pub ranges: Vec<Range>,
}

/// What a reader finds: merge operands newest first, and the value under them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Seen {
    pub operands: Vec<Vec<u8>>,
    pub base: Option<Vec<u8>>,
}

impl Model {
    /// Both together.
    pub(crate) fn plus(mut self, other: &Model) -> Model {
        self.entries.extend(other.entries.iter().cloned());
        self.ranges.extend(other.ranges.iter().cloned());
        self
    }

    /// What a reader at `snapshot` finds for `key`.
    pub(crate) fn seen(&self, key: &[u8], snapshot: u64) -> Seen {
        let covered = |r: &&Range| r.2 <= snapshot && r.0.as_slice() <= key && key < r.1.as_slice();
        let tombstone = self.ranges.iter().filter(covered).map(|r| r.2).max().unwrap_or(0);
        let mut versions: Vec<&Entry> = self.entries.iter().filter(|e| e.0 == key && e.1 <= snapshot).collect();
        versions.sort_by_key(|e| std::cmp::Reverse(e.1));
        let mut seen = Seen::default();
        for (_, seq, value_type, value) in versions {
            if *seq < tombstone {
                break;
            }
            match value_type {
                ValueType::Merge => seen.operands.push(value.clone()),
                ValueType::Value => {
                    seen.base = Some(value.clone());
                    break;
                }
                _ => break,
            }
        }
        seen
    }

    /// All user keys.
    pub(crate) fn keys(&self) -> BTreeSet<Vec<u8>> {
        self.entries.iter().map(|e| e.0.clone()).collect()
    }

    /// Panics unless both show the same to every reader.
    pub(crate) fn assert_same(&self, other: &Model, snapshots: &[u64], what: &str) {
        let keys: BTreeSet<_> = self.keys().into_iter().chain(other.keys()).collect();
        for snapshot in snapshots.iter().copied().chain([u64::MAX]) {
            for key in &keys {
                let (a, b) = (self.seen(key, snapshot), other.seen(key, snapshot));
                assert_eq!(a, b, "{what}: key {key:?} at snapshot {snapshot}");
            }
        }
    }
}

/// A random history with sequence numbers after `last_seq`. Keys are one byte; those from 200 on are written and
/// single-deleted in turn, as the contract of single deletes requires (`alive` remembers which of them are written);
/// the others get everything else.
pub(crate) fn random_history(
    rng: &mut fastrand::Rng,
    last_seq: &mut u64,
    writes: usize,
    alive: &mut [bool; 256],
) -> Model {
    let mut m = Model::default();
    for _ in 0..writes {
        *last_seq += 1;
        let seq = *last_seq;
        let value = seq.to_string().into_bytes();
        if rng.u8(0..4) == 0 {
            let k = rng.u8(200..210);
            let alive = &mut alive[k as usize];
            let value_type = if *alive { ValueType::SingleDeletion } else { ValueType::Value };
            m.entries.push((vec![k], seq, value_type, if *alive { Vec::new() } else { value }));
            *alive = !*alive;
            continue;
        }
        let k = rng.u8(100..130);
        match rng.u8(0..10) {
            0 => {
                let end = rng.u8(k + 1..140);
                m.ranges.push((vec![k], vec![end], seq));
            }
            1 | 2 => m.entries.push((vec![k], seq, ValueType::Deletion, Vec::new())),
            3 | 4 => m.entries.push((vec![k], seq, ValueType::Merge, value)),
            _ => m.entries.push((vec![k], seq, ValueType::Value, value)),
        }
    }
    m
}
