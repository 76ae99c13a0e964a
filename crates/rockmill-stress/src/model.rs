//! The expected contents: ordered maps by column family.
//!
//! A [`Model`] follows a history. It determines which steps are valid ([`Model::admit`]), what they change, and the
//! results of reads. Its states share common parts, so many can be kept.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use rockmill_format::comparator::search_key;

use crate::cursor::Cursor;
use crate::history::{Bounds, External, Key, Reopen, Step, Update, View, Writer};
use crate::kinds::{Kind, Slot, Value, key_bytes};

/// Keys and values by bytes.
pub type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// A column family.
#[derive(Debug, Clone)]
pub struct Family {
    /// Its meaning.
    pub kind: Kind,
    /// The step that created it, which distinguishes it from one that was dropped and created again.
    pub born: usize,
    /// In bytewise order; values as they were written.
    entries: BTreeMap<Vec<u8>, Arc<[u8]>>,
    /// Order-independent hash of the entries, after all filters.
    hash: u64,
    /// In [`Kind::Single`]: keys that were put since their last single delete, and whether more than once.
    put: BTreeMap<Vec<u8>, bool>,
}

fn entry_hash(kind: Kind, key: &[u8], value: &[u8]) -> u64 {
    let Some(value) = kind.settled(value) else { return 0 };
    let mut hasher = DefaultHasher::new();
    (key, value).hash(&mut hasher);
    hasher.finish()
}

/// A hash of entries that does not depend on their order.
pub(crate) fn hash_of<'a>(kind: Kind, entries: impl IntoIterator<Item = (&'a [u8], &'a [u8])>) -> u64 {
    entries.into_iter().fold(0, |sum: u64, (key, value)| sum.wrapping_add(entry_hash(kind, key, value)))
}

impl Family {
    pub(crate) fn new(kind: Kind, born: usize) -> Self {
        Self { kind, born, entries: BTreeMap::new(), hash: 0, put: BTreeMap::new() }
    }

    fn set(&mut self, key: &[u8], value: Option<Vec<u8>>) {
        let old = match value {
            Some(value) => {
                self.hash = self.hash.wrapping_add(entry_hash(self.kind, key, &value));
                self.entries.insert(key.to_vec(), value.into())
            }
            None => self.entries.remove(key),
        };
        if let Some(old) = old {
            self.hash = self.hash.wrapping_sub(entry_hash(self.kind, key, &old));
        }
    }

    /// The value of a key, as written.
    pub fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.entries.get(key).map(|value| &**value)
    }

    /// The value of a key after filters.
    pub fn settled(&self, key: &[u8]) -> Option<&[u8]> {
        self.get(key).and_then(|value| self.kind.settled(value))
    }

    /// All keys in the column family's order, after filters.
    pub fn sorted(&self) -> Vec<(&[u8], &[u8])> {
        let all = self.entries.iter().filter_map(|(k, v)| Some((&**k, self.kind.settled(v)?)));
        match self.kind {
            Kind::Reversed => all.rev().collect(),
            Kind::Hashed => {
                let mut all: Vec<_> = all.collect();
                all.sort_by_cached_key(|(key, _)| (search_key(key), *key));
                all
            }
            _ => all.collect(),
        }
    }

    /// A hash of what [`Self::sorted`] gives.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// The keys of two numbers in the column family's order.
    pub fn ordered(kind: Kind, a: u16, b: u16) -> (Vec<u8>, Vec<u8>) {
        let (a, b) = (key_bytes(a), key_bytes(b));
        if kind.order(&a, &b).is_le() { (a, b) } else { (b, a) }
    }

    /// Deletes from `from` to before `to`, in the column family's order.
    fn delete_range(&mut self, from: &[u8], to: &[u8], end_too: bool) {
        let inside = |k: &[u8]| {
            let at_end = k == to;
            let within = self.kind.order(k, from).is_ge() && self.kind.order(k, to).is_le();
            within && (!at_end || (end_too && from != to))
        };
        let gone: Vec<Vec<u8>> = self.entries.keys().filter(|k| inside(k)).cloned().collect();
        gone.iter().for_each(|key| self.set(key, None));
    }

    /// Replaces the contents from `low` to `high`, both included, with these entries: how often these keys were put is
    /// unknown from then on.
    pub(crate) fn adopt(&mut self, low: &[u8], high: &[u8], entries: &Pairs) {
        let inside = |key: &[u8]| key >= low && key <= high;
        let gone: Vec<Vec<u8>> = self.entries.keys().filter(|key| inside(key)).cloned().collect();
        gone.iter().for_each(|key| self.set(key, None));
        for (key, value) in entries.iter().filter(|(key, _)| inside(key)) {
            self.set(key, Some(value.clone()));
            if self.kind == Kind::Single {
                self.put.insert(key.clone(), true);
            }
        }
        self.put.iter_mut().filter(|(key, _)| inside(key)).for_each(|(_, more)| *more = true);
    }

    fn put(&mut self, key: &[u8], value: Vec<u8>) {
        if self.kind == Kind::Single {
            self.put.entry(key.to_vec()).and_modify(|more| *more = true).or_insert(false);
        }
        self.set(key, Some(value));
    }

    fn merge(&mut self, key: &[u8], operand: &[u8], planted: Option<Planted>) {
        let existing = if planted == Some(Planted::MergeReplaces) { None } else { self.get(key) };
        let value = self.kind.merged(existing, operand);
        self.set(key, Some(value));
    }
}

/// The column families at one moment.
pub type State = BTreeMap<Slot, Arc<Family>>;

/// A deliberate mistake in a model, to check that it is found and that the finding shrinks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planted {
    /// A range delete also deletes the key at its end.
    RangeTakesItsEnd,
    /// A merge discards the previous value.
    MergeReplaces,
    /// A snapshot sees later writes.
    SnapshotMoves,
}

/// What must be seen.
#[derive(Debug, Clone, Default)]
pub struct Model {
    /// The column families.
    pub state: State,
    /// What snapshots see.
    pub snapshots: BTreeMap<u8, State>,
    /// Where iterators are that stay.
    pub iterators: BTreeMap<u8, Cursor>,
    /// The state at [`Step::Mark`], unless something has happened since that is not in WALs.
    pub mark: Option<State>,
    /// Something was written without a WAL, and not everything has been flushed since.
    pub unlogged: bool,
    /// The database has a time to live: no ingestions, and no secondaries.
    pub ttl: bool,
    /// The history also runs on RocksDB: features of only one of the two are skipped.
    pub beside: bool,
    /// Steps seen, those passed over included.
    pub steps: usize,
    planted: Option<Planted>,
}

impl Model {
    /// A database with only its default column family.
    pub fn new() -> Self {
        Self { state: State::from([(0, Arc::new(Family::new(Kind::Plain, 0)))]), ..Self::default() }
    }

    /// One with a mistake.
    pub fn with_mistake(planted: Planted) -> Self {
        Self { planted: Some(planted), ..Self::new() }
    }

    /// The same, of a database with or without a time to live.
    #[must_use]
    pub fn with_ttl(mut self, ttl: bool) -> Self {
        self.ttl = ttl;
        self
    }

    /// Applies a step; returns its valid part, or `None` if nothing of it is valid.
    pub fn step(&mut self, step: &Step) -> Option<Step> {
        let admitted = self.admit(step);
        if let Some(step) = &admitted {
            self.apply(step);
        } else {
            self.pass();
        }
        admitted
    }

    /// Counts a step that was not done.
    pub fn pass(&mut self) {
        self.steps += 1;
    }

    /// The column families that a view sees and that still exist.
    pub fn seen(&self, view: View) -> Option<State> {
        let Some(id) = view.snapshot else { return Some(self.state.clone()) };
        let mut then = self.snapshots.get(&id)?.clone();
        if self.planted == Some(Planted::SnapshotMoves) {
            then = self.state.clone();
        }
        then.retain(|slot, family| self.state.get(slot).is_some_and(|now| now.born == family.born));
        Some(then)
    }

    fn kind(&self, slot: Slot) -> Option<Kind> {
        self.state.get(&slot).map(|family| family.kind)
    }

    /// The valid part of a step now: a step that violates no contract, whatever came before it.
    pub fn admit(&self, step: &Step) -> Option<Step> {
        let there = |slot: &Slot| self.state.contains_key(slot);
        let sees = |slot: &Slot, view: View| self.seen(view).is_some_and(|state| state.contains_key(slot));
        let whole = |ok: bool| ok.then(|| step.clone());
        if self.ttl && matches!(step, Step::Copy(..) | Step::Secondary | Step::Updates) {
            return None;
        }
        let ours = matches!(step, Step::Copy(..) | Step::Backup(_) | Step::Secondary | Step::KeepFiles(_));
        if self.beside && ours {
            return None;
        }
        match step {
            Step::Write(how, updates) => {
                let updates = self.admit_updates(updates);
                let any = updates.iter().any(|u| !matches!(u, Update::LogData(_)));
                any.then_some(Step::Write(*how, updates))
            }
            Step::Together(writers) => self.admit_writers(writers).map(Step::Together),
            Step::Behind(files) => {
                // For single-delete keys, it is then unknown when they were put; and a filter may remove entries that
                // hide older ones.
                let odd = |kind: Kind| kind == Kind::Single || kind.is_filtered();
                let mut files = self.admit_files(files);
                files.retain(|file| self.kind(file.slot).is_some_and(|kind| !odd(kind)));
                (self.beside && !self.ttl && !files.is_empty()).then_some(Step::Behind(files))
            }
            Step::SamePrefix(slot, view, ..) => whole(self.beside && sees(slot, *view)),
            Step::Wrong(_) => whole(self.beside),
            Step::Age => whole(self.beside && self.ttl),
            Step::Get(slot, _, view) | Step::Walk(slot, view, ..) => whole(sees(slot, *view)),
            Step::MultiGet(view, keys) => {
                let seen = self.seen(*view)?;
                let keys = keys.iter().filter(|(slot, _)| seen.contains_key(slot)).copied().collect();
                Some(Step::MultiGet(*view, keys))
            }
            Step::Check(view) => whole(self.seen(*view).is_some()),
            Step::Snapshot(id) => whole(!self.snapshots.contains_key(id)),
            Step::Release(id) => whole(self.snapshots.contains_key(id)),
            Step::Iterator(id, slot, _) => whole(!self.iterators.contains_key(id) && there(slot)),
            Step::Move(id, _) | Step::Close(id) => whole(self.iterators.contains_key(id)),
            Step::Flush(slots, wait) => {
                let left: Vec<Slot> = slots.iter().filter(|slot| there(slot)).copied().collect();
                (slots.is_empty() || !left.is_empty()).then_some(Step::Flush(left, *wait))
            }
            Step::Prefix(slot, _)
            | Step::Compact(slot, ..)
            | Step::Refit(slot)
            | Step::SetOptions(slot, ..)
            | Step::Inspect(slot) => whole(there(slot)),
            Step::Ingest(moved, files) => {
                let files = self.admit_files(files);
                (!files.is_empty()).then_some(Step::Ingest(*moved, files))
            }
            // An export of nothing cannot be imported.
            Step::Copy(from, to, _) => {
                let anything = self.state.get(from).is_some_and(|family| !family.sorted().is_empty());
                whole(anything && *to != 0 && !there(to))
            }
            Step::Create(_, Kind::Folded | Kind::Hashed) if self.beside => None,
            Step::Create(slot, _) => whole(*slot != 0 && !there(slot)),
            Step::Drop(slot) => whole(*slot != 0 && there(slot)),
            Step::Updates => whole(self.mark.is_some()),
            // The tables depend on the configuration, and all readers see the deletion.
            Step::DeleteFiles(slot, ..) => {
                let may = self.kind(*slot).is_some_and(Kind::deletes_ranges);
                whole(may && self.snapshots.is_empty() && self.iterators.is_empty())
            }
            Step::Secondary => whole(!self.unlogged),
            Step::Wait
            | Step::SetDbOptions(..)
            | Step::Checkpoint(_)
            | Step::Backup(_)
            | Step::FlushWal(_)
            | Step::Mark
            | Step::KeepFiles(_)
            | Step::Reopen(_) => whole(true),
        }
    }

    /// The valid part of concurrent writes: updates of keys that no other thread has, and no ranges.
    fn admit_writers(&self, writers: &[Writer]) -> Option<Vec<Writer>> {
        let mut owners: BTreeMap<(Slot, Key), usize> = BTreeMap::new();
        let mut out = Vec::new();
        for (n, Writer { how, updates }) in writers.iter().enumerate() {
            let mut own = |update: &Update| match update {
                Update::Put(slot, key, _)
                | Update::Merge(slot, key, _)
                | Update::Delete(slot, key)
                | Update::SingleDelete(slot, key) => *owners.entry((*slot, *key)).or_insert(n) == n,
                Update::DeleteRange(..) | Update::LogData(_) => false,
            };
            let updates: Vec<Update> = updates.iter().filter(|update| own(update)).cloned().collect();
            let updates = self.admit_updates(&updates);
            if !updates.is_empty() {
                out.push(Writer { how: *how, updates });
            }
        }
        (!out.is_empty()).then_some(out)
    }

    /// The updates of a batch that violate no contract.
    fn admit_updates(&self, updates: &[Update]) -> Vec<Update> {
        // The effects of earlier updates of the batch on keys for single deletes.
        let mut put: BTreeMap<(Slot, Vec<u8>), Option<bool>> = BTreeMap::new();
        let mut out = Vec::new();
        for update in updates {
            let ok = match update {
                Update::Put(slot, key, _) | Update::SingleDelete(slot, key) => match self.kind(*slot) {
                    Some(Kind::Single) => {
                        let key = key_bytes(*key);
                        let before = put.get(&(*slot, key.clone())).copied();
                        let before = before.unwrap_or_else(|| self.state[slot].put.get(&key).copied());
                        let is_put = matches!(update, Update::Put(..));
                        let ok = is_put || before == Some(false);
                        if ok {
                            put.insert((*slot, key), is_put.then_some(before.is_some()));
                        }
                        ok
                    }
                    kind => kind.is_some() && matches!(update, Update::Put(..)),
                },
                Update::Delete(slot, _) => self.kind(*slot).is_some_and(|kind| kind != Kind::Single),
                Update::DeleteRange(slot, from, to) => self.kind(*slot).is_some_and(Kind::deletes_ranges) && from != to,
                Update::Merge(slot, ..) => self.kind(*slot).is_some_and(Kind::merges),
                Update::LogData(_) => true,
            };
            if ok {
                out.push(update.clone());
            }
        }
        out
    }

    /// The files that can be made and ingested; each contains a key only once.
    fn admit_files(&self, files: &[External]) -> Vec<External> {
        let mut out = Vec::new();
        for file in files {
            let Some(kind) = self.kind(file.slot) else { continue };
            let mut keys = Vec::new();
            let mut updates = Vec::new();
            for update in &file.updates {
                let (key, ok) = match update {
                    Update::Put(_, key, _) => (*key, true),
                    Update::Merge(_, key, _) => (*key, kind.merges()),
                    Update::Delete(_, key) => (*key, kind != Kind::Single),
                    Update::SingleDelete(..) | Update::DeleteRange(..) | Update::LogData(_) => continue,
                };
                if ok && !keys.contains(&key) {
                    keys.push(key);
                    updates.push(update.clone());
                }
            }
            let range = file.range.filter(|(from, to)| from != to && kind.deletes_ranges());
            if range.is_some() || !updates.is_empty() {
                out.push(External { slot: file.slot, range, updates });
            }
        }
        out
    }

    /// Does an admitted step.
    pub fn apply(&mut self, step: &Step) {
        match step {
            Step::Write(how, updates) => {
                updates.iter().for_each(|update| self.update(update));
                if how.disable_wal {
                    self.unlogged = true;
                    self.mark = None;
                }
            }
            Step::Together(writers) => {
                writers.iter().flat_map(|writer| &writer.updates).for_each(|update| self.update(update));
                let unlogged = writers.iter().any(|writer| writer.how.disable_wal);
                self.unlogged |= unlogged;
                // Their order in the WAL is unknown.
                if self.beside || unlogged {
                    self.mark = None;
                }
            }
            Step::Behind(_) => self.mark = None,
            Step::Snapshot(id) => drop(self.snapshots.insert(*id, self.state.clone())),
            Step::Release(id) => drop(self.snapshots.remove(id)),
            Step::Iterator(id, slot, bounds) => {
                let cursor = self.cursor(*slot, View::default(), bounds);
                self.iterators.insert(*id, cursor.unwrap_or_default());
            }
            Step::Move(id, moves) => {
                if let Some(cursor) = self.iterators.get_mut(id) {
                    moves.iter().for_each(|m| cursor.go(*m));
                }
            }
            Step::Close(id) => drop(self.iterators.remove(id)),
            Step::Flush(slots, true) if slots.is_empty() => self.unlogged = false,
            Step::Checkpoint(true) => self.unlogged = false,
            Step::Ingest(_, files) => {
                for file in files {
                    if let Some((from, to)) = file.range {
                        self.update(&Update::DeleteRange(file.slot, from, to));
                    }
                    file.updates.iter().for_each(|update| self.update(update));
                }
                self.mark = None;
            }
            Step::Copy(from, to, _) => {
                if let Some(family) = self.state.get(from) {
                    let copy = Family { born: self.steps + 1, ..Family::clone(family) };
                    self.state.insert(*to, Arc::new(copy));
                }
                self.mark = None;
            }
            Step::Create(slot, kind) => {
                self.state.insert(*slot, Arc::new(Family::new(*kind, self.steps + 1)));
                self.mark = None;
            }
            Step::Drop(slot) => {
                self.state.remove(slot);
                self.mark = None;
            }
            Step::Mark => self.mark = Some(self.state.clone()),
            Step::DeleteFiles(slot, from, to) => {
                self.update(&Update::DeleteRange(*slot, *from, *to));
                self.mark = None;
            }
            Step::Reopen(_) => {
                self.closed();
            }
            Step::Get(..)
            | Step::MultiGet(..)
            | Step::Walk(..)
            | Step::Prefix(..)
            | Step::Check(_)
            | Step::Flush(..)
            | Step::Compact(..)
            | Step::Refit(_)
            | Step::Wait
            | Step::SetOptions(..)
            | Step::SetDbOptions(..)
            | Step::Checkpoint(_)
            | Step::Backup(_)
            | Step::Secondary
            | Step::FlushWal(_)
            | Step::Updates
            | Step::KeepFiles(_)
            | Step::Inspect(_)
            | Step::SamePrefix(..)
            | Step::Wrong(_)
            | Step::Age => {}
        }
        self.steps += 1;
    }

    /// Closes the handle: drops its snapshots, iterators and marks. Data without a WAL is flushed.
    pub fn closed(&mut self) {
        self.snapshots.clear();
        self.iterators.clear();
        self.mark = None;
        self.unlogged = false;
    }

    /// One update, whose contract holds.
    pub fn update(&mut self, update: &Update) {
        let planted = self.planted;
        let slot = match update {
            Update::Put(slot, ..)
            | Update::Merge(slot, ..)
            | Update::Delete(slot, _)
            | Update::SingleDelete(slot, _)
            | Update::DeleteRange(slot, ..) => *slot,
            Update::LogData(_) => return,
        };
        let Some(family) = self.state.get_mut(&slot) else { return };
        let family = Arc::make_mut(family);
        let bytes = |value: &Value, kind: Kind| kind.value_bytes(*value);
        match update {
            Update::Put(_, key, value) => family.put(&key_bytes(*key), bytes(value, family.kind)),
            Update::Merge(_, key, value) => family.merge(&key_bytes(*key), &bytes(value, family.kind), planted),
            Update::Delete(_, key) => family.set(&key_bytes(*key), None),
            Update::SingleDelete(_, key) => {
                let key = key_bytes(*key);
                family.put.remove(&key);
                family.set(&key, None);
            }
            Update::DeleteRange(_, from, to) => {
                let (from, to) = Family::ordered(family.kind, *from, *to);
                family.delete_range(&from, &to, planted == Some(Planted::RangeTakesItsEnd));
            }
            Update::LogData(_) => {}
        }
    }

    /// An iterator over a column family; `None` if the view does not see the column family.
    pub fn cursor(&self, slot: Slot, view: View, bounds: &Bounds) -> Option<Cursor> {
        Some(Cursor::new(self.seen(view)?.get(&slot)?, bounds))
    }
}

/// Applies updates from a WAL to column families, with raw bytes.
#[derive(Debug)]
pub struct ByBytes {
    /// The column families.
    pub state: State,
}

impl ByBytes {
    fn family(&mut self, slot: Slot) -> Option<&mut Family> {
        self.state.get_mut(&slot).map(Arc::make_mut)
    }

    /// A new value.
    pub fn put(&mut self, slot: Slot, key: &[u8], value: &[u8]) {
        if let Some(family) = self.family(slot) {
            family.put(key, value.to_vec());
        }
    }

    /// An operand.
    pub fn merge(&mut self, slot: Slot, key: &[u8], operand: &[u8]) {
        if let Some(family) = self.family(slot) {
            family.merge(key, operand, None);
        }
    }

    /// A deletion of either kind.
    pub fn delete(&mut self, slot: Slot, key: &[u8]) {
        if let Some(family) = self.family(slot) {
            family.set(key, None);
        }
    }

    /// A deletion of a range.
    pub fn delete_range(&mut self, slot: Slot, from: &[u8], to: &[u8]) {
        if let Some(family) = self.family(slot) {
            family.delete_range(from, to, false);
        }
    }
}

impl Reopen {
    /// True where the configuration may become another.
    pub fn changes_configuration(self) -> bool {
        self == Self::Next
    }
}
