//! The expected-state file: for each key, the last acknowledged operation, and operations that may or may not have
//! happened since.
//!
//! ```text
//! 0      "RMSTATE2"  seed (8)  keys (4)  column families, counters included (4)
//! 4096   slots of 32 bytes, by column family, then by key:
//!        0  operation that touched the key last (8)
//!        8  acknowledged version (4), or a counter's count
//!        12 newest version that was begun (4)
//!        16 flags (1), zeros (3)
//!        20 version with which a deletion was begun last (4), 0 for none
//!        24 number that the next operation had when this one had returned (8), 0 where it has not
//! ```
//!
//! Numbers are little-endian. A slot never crosses a page, and is written with one positioned write: a kill leaves
//! either the old or the new slot. Nothing is synced; the file need not survive a crash of the machine.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::settings::Settings;

const MAGIC: &[u8; 8] = b"RMSTATE2";
/// Where slots begin, in bytes.
pub const SLOTS_AT: u64 = 4096;
/// Bytes of a slot.
pub const SLOT_BYTES: u64 = 32;
/// Keys that share a lock.
const STRIPE_KEYS: u32 = 16;

/// The acknowledged state has the key.
const PRESENT: u8 = 1;
/// An operation was begun and not acknowledged.
const PENDING: u8 = 2;
/// Such an operation would remove the key.
const MAY_BE_GONE: u8 = 4;
/// Several such operations: the last one failed before this one began.
const MIXED: u8 = 8;

/// What an operation does to a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// A put, also one that is ingested.
    Put,
    /// A merge that makes it this version.
    Merge,
    /// Deletions of any kind.
    Delete,
    /// One more on a counter.
    Count,
}

/// What is known of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Slot {
    /// The operation that touched it last.
    pub op: u64,
    /// The acknowledged version; for counters the count.
    pub acked: u32,
    /// The newest version begun.
    pub latest: u32,
    /// The newest version that is a deletion, or 0.
    gone: u32,
    /// Operations with this number and above began after `op` had returned; 0 if it has not returned, or that is
    /// unknown.
    pub ended: u64,
    flags: u8,
}

/// The outcome of an operation, as far as one key shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It happened.
    New,
    /// It did not.
    Old,
    /// The key looks the same either way.
    Either,
}

impl Slot {
    /// The slot once the operation has begun.
    #[must_use]
    pub fn begun(mut self, op: u64, change: Change) -> Self {
        if self.flags & PENDING != 0 {
            self.flags |= MIXED;
        }
        self.flags |= PENDING | if change == Change::Delete { MAY_BE_GONE } else { 0 };
        self.op = op;
        self.ended = 0;
        self.latest += 1;
        if change == Change::Delete {
            self.gone = self.latest;
        }
        self
    }

    /// The slot with the known order of operations: those from this number on began later.
    #[must_use]
    pub fn ended_before(mut self, next_op: u64) -> Self {
        self.ended = next_op;
        self
    }

    /// The slot once the operation has returned. Earlier failed operations are thereby resolved: a store that accepts
    /// writes again has discarded refused ones.
    #[must_use]
    pub fn done(mut self, change: Change) -> Self {
        self.flags = if change == Change::Delete { 0 } else { PRESENT };
        if change == Change::Count {
            self.acked += 1;
            self.latest = self.acked;
        } else {
            self.acked = self.latest;
        }
        self
    }

    /// The slot after the actual contents were found.
    #[must_use]
    pub fn settled(mut self, found: Option<u32>, counter: bool) -> Self {
        if counter {
            self.acked = found.unwrap_or(0);
            self.latest = self.acked;
        } else if let Some(version) = found {
            self.acked = version;
        } else if self.is_pending() {
            self.acked = self.latest;
        }
        self.flags = if found.is_some() { PRESENT } else { 0 };
        self.gone = 0;
        self
    }

    /// The acknowledged state has the key.
    pub fn is_present(&self) -> bool {
        self.flags & PRESENT != 0
    }

    /// Something was begun and not acknowledged.
    pub fn is_pending(&self) -> bool {
        self.flags & PENDING != 0
    }

    /// Exactly one operation is unknown.
    pub fn has_one_pending(&self) -> bool {
        self.flags & (PENDING | MIXED) == PENDING
    }

    /// What is acknowledged: a version, or nothing.
    pub fn exact(&self) -> Option<u32> {
        self.is_present().then_some(self.acked)
    }

    /// After a death: may this be there?
    pub fn allows(&self, found: Option<u32>) -> bool {
        found == self.exact()
            || self.is_pending()
                && match found {
                    Some(version) => self.acked < version && version <= self.latest,
                    None => self.flags & MAY_BE_GONE != 0,
                }
    }

    /// With concurrent writers: whether this may be read, given the slot before and after the read.
    pub fn allows_between(before: &Self, after: &Self, found: Option<u32>) -> bool {
        match found {
            Some(version) => found == before.exact() || (before.acked < version && version <= after.latest),
            // A deletion was begun after the acknowledged version.
            None => !before.is_present() || after.gone > before.acked,
        }
    }

    /// The effect of the last operation on the key; `None` if several are unknown.
    pub fn effect(&self) -> Option<Option<u32>> {
        match self.is_pending() {
            false => Some(self.exact()),
            true if !self.has_one_pending() => None,
            true if self.flags & MAY_BE_GONE != 0 => Some(None),
            true => Some(Some(self.latest)),
        }
    }

    /// The outcome of the operation in the slot.
    pub fn outcome(&self, found: Option<u32>) -> Outcome {
        if !self.is_pending() {
            return Outcome::New;
        }
        match (found, self.exact()) {
            (None, None) if self.flags & MAY_BE_GONE != 0 => Outcome::Either,
            (found, exact) if found == exact => Outcome::Old,
            _ => Outcome::New,
        }
    }

    /// In words.
    pub fn describe(&self, counter: bool) -> String {
        let what = if counter { "a count of" } else { "version" };
        let mut text = match self.exact() {
            Some(version) => format!("{what} {version}"),
            None => format!("nothing (as of {what} {})", self.acked),
        };
        if self.is_pending() {
            let or = if self.flags & MAY_BE_GONE != 0 { " or nothing" } else { "" };
            text.push_str(&format!(", or up to {what} {}{or} (begun and not acknowledged)", self.latest));
        }
        text
    }

    fn encode(&self) -> [u8; SLOT_BYTES as usize] {
        let mut out = [0; SLOT_BYTES as usize];
        out[..8].copy_from_slice(&self.op.to_le_bytes());
        out[8..12].copy_from_slice(&self.acked.to_le_bytes());
        out[12..16].copy_from_slice(&self.latest.to_le_bytes());
        out[16] = self.flags;
        out[20..24].copy_from_slice(&self.gone.to_le_bytes());
        out[24..].copy_from_slice(&self.ended.to_le_bytes());
        out
    }

    fn decode(bytes: &[u8]) -> Self {
        let four = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let eight = |at: usize| u64::from(four(at + 4)) << 32 | u64::from(four(at));
        let (gone, ended) = (four(20), eight(24));
        Self { op: eight(0), acked: four(8), latest: four(12), gone, ended, flags: bytes[16] }
    }
}

/// Locks over keys that an operation writes.
pub type Held<'a> = Vec<RwLockWriteGuard<'a, ()>>;

/// The file, its contents in memory, and the keys' locks.
#[derive(Debug)]
pub struct Expected {
    file: File,
    slots: Vec<Mutex<Slot>>,
    stripes: Vec<RwLock<()>>,
    keys: u32,
    families: usize,
    next_op: AtomicU64,
}

fn header(settings: &Settings) -> [u8; 24] {
    let mut out = [0; 24];
    out[..8].copy_from_slice(MAGIC);
    out[8..16].copy_from_slice(&settings.seed.to_le_bytes());
    out[16..20].copy_from_slice(&settings.keys.to_le_bytes());
    out[20..24].copy_from_slice(&(settings.families as u32 + 1).to_le_bytes());
    out
}

/// Size of the file of such a run in bytes.
pub fn file_bytes(settings: &Settings) -> u64 {
    SLOTS_AT + SLOT_BYTES * u64::from(settings.keys) * (settings.families as u64 + 1)
}

/// Creates the file of an empty database.
///
/// # Errors
/// Those of the file system.
pub fn create(path: &Path, settings: &Settings) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create_new(true).open(path)?;
    // Real zeros, so that later writes need no space.
    let zeros = vec![0; 64 << 10];
    let mut at = 0;
    while at < file_bytes(settings) {
        let len = (file_bytes(settings) - at).min(zeros.len() as u64);
        file.write_all_at(&zeros[..len as usize], at)?;
        at += len;
    }
    file.write_all_at(&header(settings), 0)
}

impl Expected {
    /// Reads the file.
    ///
    /// # Errors
    /// It cannot be read, or belongs to another run.
    pub fn open(path: &Path, settings: &Settings) -> Result<Self, String> {
        let failed = |e: io::Error| format!("cannot read the expected state {}: {e}", path.display());
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(failed)?;
        let mut bytes = vec![0; file_bytes(settings) as usize];
        file.read_exact_at(&mut bytes, 0).map_err(failed)?;
        if bytes[..24] != header(settings) {
            return Err(format!("{} is no expected state of this run", path.display()));
        }
        let slots: Vec<Slot> = bytes[SLOTS_AT as usize..].chunks_exact(SLOT_BYTES as usize).map(Slot::decode).collect();
        let next_op = slots.iter().map(|s| s.op).max().unwrap_or(0) + 1;
        let (keys, families) = (settings.keys, settings.families + 1);
        let stripes = keys.div_ceil(STRIPE_KEYS) as usize * families;
        Ok(Self {
            file,
            slots: slots.into_iter().map(Mutex::new).collect(),
            stripes: (0..stripes).map(|_| RwLock::default()).collect(),
            keys,
            families,
            next_op: AtomicU64::new(next_op),
        })
    }

    /// Keys of each column family.
    pub fn keys(&self) -> u32 {
        self.keys
    }

    /// Column families, counters included (the last one).
    pub fn families(&self) -> usize {
        self.families
    }

    /// True for the column family of counters.
    pub fn is_counter(&self, family: usize) -> bool {
        family + 1 == self.families
    }

    /// A number for a new operation.
    pub fn new_op(&self) -> u64 {
        self.next_op.fetch_add(1, Ordering::Relaxed)
    }

    /// The number that the next operation will have.
    pub fn next_op(&self) -> u64 {
        self.next_op.load(Ordering::Relaxed)
    }

    fn index(&self, family: usize, key: u32) -> usize {
        family * self.keys as usize + key as usize
    }

    /// What is known of a key.
    pub fn slot(&self, family: usize, key: u32) -> Slot {
        *self.slots[self.index(family, key)].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The slots of a range of keys.
    pub fn slots(&self, family: usize, keys: Range<u32>) -> Vec<Slot> {
        keys.map(|key| self.slot(family, key)).collect()
    }

    /// Replaces the slot of a key, in memory and in the file.
    ///
    /// # Errors
    /// Those of the file system: the run then cannot continue.
    pub fn set(&self, family: usize, key: u32, slot: Slot) -> Result<(), String> {
        let index = self.index(family, key);
        *self.slots[index].lock().unwrap_or_else(PoisonError::into_inner) = slot;
        let at = SLOTS_AT + SLOT_BYTES * index as u64;
        self.file.write_all_at(&slot.encode(), at).map_err(|e| format!("cannot write the expected state: {e}"))
    }

    fn stripes_of(&self, family: usize, keys: &Range<u32>) -> Range<usize> {
        let first = self.keys.div_ceil(STRIPE_KEYS) as usize * family;
        first + (keys.start / STRIPE_KEYS) as usize..first + keys.end.div_ceil(STRIPE_KEYS) as usize
    }

    /// Locks these keys exclusively. A thread that holds locks must not take more.
    pub fn lock(&self, places: &[(usize, Range<u32>)]) -> Held<'_> {
        let mut all: Vec<usize> = places.iter().flat_map(|(family, keys)| self.stripes_of(*family, keys)).collect();
        // In one order for everybody.
        all.sort_unstable();
        all.dedup();
        all.into_iter().map(|at| self.stripes[at].write().unwrap_or_else(PoisonError::into_inner)).collect()
    }

    /// Keeps writers from these keys.
    pub fn lock_shared(&self, family: usize, keys: &Range<u32>) -> Vec<RwLockReadGuard<'_, ()>> {
        let stripes = self.stripes_of(family, keys);
        stripes.map(|at| self.stripes[at].read().unwrap_or_else(PoisonError::into_inner)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> Settings {
        Settings { keys: 40, families: 2, ..Settings::default() }
    }

    #[test]
    fn the_file_has_what_was_set() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("expected");
        create(&path, &small()).expect("the file");
        let slot = Slot::default().begun(9, Change::Put).done(Change::Put);
        Expected::open(&path, &small()).expect("opens").set(2, 39, slot).expect("a write");
        let again = Expected::open(&path, &small()).expect("opens");
        assert_eq!(again.slot(2, 39), slot);
        assert_eq!(again.slot(2, 38), Slot::default());
        assert_eq!(again.new_op(), 10);
        let other = Settings { seed: 1, ..small() };
        assert!(Expected::open(&path, &other).expect_err("another run").contains("no expected state"));
    }

    #[test]
    fn a_slot_allows_what_may_be_and_nothing_else() {
        let put = Slot::default().begun(1, Change::Put).done(Change::Put);
        assert!(put.allows(Some(1)) && !put.allows(None) && !put.allows(Some(2)));
        let again = put.begun(2, Change::Put);
        assert!(again.allows(Some(1)) && again.allows(Some(2)) && !again.allows(None) && !again.allows(Some(3)));
        assert_eq!((again.outcome(Some(1)), again.outcome(Some(2))), (Outcome::Old, Outcome::New));
        let gone = put.begun(3, Change::Delete);
        assert!(gone.allows(Some(1)) && gone.allows(None) && !gone.allows(Some(3)));
        assert_eq!(gone.settled(None, false).exact(), None);
        assert_eq!(gone.settled(Some(1), false).exact(), Some(1));
        assert_eq!(gone.settled(Some(1), false).latest, 2, "a version is never given twice");
        assert_eq!(gone.done(Change::Delete).exact(), None);
        // One failed, then another one began: either is allowed; after the second one is acknowledged, only that one.
        let mixed = gone.begun(4, Change::Put);
        assert!(mixed.allows(Some(1)) && mixed.allows(None) && mixed.allows(Some(3)) && !mixed.has_one_pending());
        let done = mixed.done(Change::Put);
        assert!(done.allows(Some(3)) && !done.allows(None) && !done.allows(Some(1)));
    }

    #[test]
    fn a_counter_counts_what_was_acknowledged() {
        let one = Slot::default().begun(1, Change::Count).done(Change::Count);
        let failed = one.begun(2, Change::Count);
        assert!(failed.allows(Some(1)) && failed.allows(Some(2)) && !failed.allows(Some(3)) && !failed.allows(None));
        let next = failed.begun(3, Change::Count).done(Change::Count);
        assert!(next.allows(Some(2)) && !next.allows(Some(3)), "what was refused must not come back");
        assert_eq!(failed.settled(Some(2), true).exact(), Some(2));
        let none = Slot::default().begun(4, Change::Count).settled(None, true);
        assert_eq!(none.begun(5, Change::Count).done(Change::Count).exact(), Some(1));
    }

    #[test]
    fn reads_beside_writers_are_bounded() {
        let before = Slot::default().begun(1, Change::Put).done(Change::Put);
        let after = before.begun(2, Change::Put).done(Change::Put).begun(3, Change::Put);
        for (found, allowed) in [(Some(1), true), (Some(2), true), (Some(3), true), (Some(4), false)] {
            assert_eq!(Slot::allows_between(&before, &after, found), allowed, "{found:?}");
        }
        assert!(!Slot::allows_between(&before, &before, None));
        // Puts never remove the key, however many began; a deletion may have been the last operation, also between
        // puts.
        assert!(!Slot::allows_between(&before, &before.begun(2, Change::Put), None));
        assert!(!Slot::allows_between(&before, &after, None));
        let deleted = before.begun(2, Change::Delete);
        let again = deleted.done(Change::Delete).begun(3, Change::Put).done(Change::Put);
        assert!(Slot::allows_between(&before, &deleted, None) && Slot::allows_between(&before, &again, None));
        assert!(!Slot::allows_between(&again, &again.begun(4, Change::Merge), None), "the deletion was before");
        // A refused operation did not happen, and must not happen later.
        let refused = deleted.settled(Some(1), false);
        assert!(!Slot::allows_between(&refused, &refused.begun(5, Change::Put), None));
        assert!(!Slot::allows_between(&after, &after, Some(1)), "older than what was acknowledged");
    }
}
