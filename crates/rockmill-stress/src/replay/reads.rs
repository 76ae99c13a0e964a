//! Reads, each compared with the model; different ways to read the same are compared with each other.

use rockmill::{
    AsColumnFamilyRef, ColumnFamily, Db, DbRawIterator, ErrorKind, IteratorMode, ReadOptions, WriteBatchIteratorCf,
};

use super::session::{Held, Session};
use super::{Trouble, hash_one};
use crate::contents::{Difference, matches, matches_state, same, scan, shown};
use crate::cursor::{Cursor, prefix_bytes};
use crate::history::{Bounds, Key, Move, View};
use crate::kinds::{Kind, Slot, family_name, key_bytes};
use crate::model::{ByBytes, State};

fn wrong<T>(place: impl Into<String>, what: String) -> Result<T, Trouble> {
    Err(Trouble::Wrong(Difference::new(place, what)))
}

fn shown_value(value: Option<&[u8]>) -> String {
    value.map_or_else(|| "nothing".to_owned(), shown)
}

impl<'db> Session<'_, '_, 'db> {
    /// Options of a read in a view.
    fn read_options(&self, view: View) -> ReadOptions {
        let held = view.snapshot.and_then(|id| self.snapshots.get(&id));
        held.map(|held| held.options.clone()).unwrap_or_default()
    }

    fn seen(&self, view: View) -> State {
        self.run.model.seen(view).unwrap_or_default()
    }

    pub fn get(&self, slot: Slot, key: Key, view: View) -> Result<u64, Trouble> {
        let (_, cf) = self.family(slot)?;
        let state = self.seen(view);
        let Some(family) = state.get(&slot) else { return Ok(0) };
        let (kind, bytes) = (family.kind, key_bytes(key));
        let want = family.settled(&bytes);
        let options = self.read_options(view);
        let check = |got: Option<&[u8]>, how: &str| {
            let got = got.and_then(|v| kind.settled(v));
            let name = family_name(slot, kind);
            let text = || format!("{how} of {} gives {}", shown(&bytes), shown_value(got));
            if got == want { Ok(()) } else { wrong(name, format!("{}, must be {}", text(), shown_value(want))) }
        };
        let asked = kind.asked(&bytes);
        check(self.db.get_cf_opt(&cf, &asked, &options)?.as_deref(), "get")?;
        check(self.db.get_pinned_cf_opt(&cf, &asked, &options)?.as_deref(), "get_pinned")?;
        if let Some(snapshot) = view.snapshot.and_then(|id| self.snapshots.get(&id)?.handle.as_ref()) {
            check(snapshot.get_cf(&cf, &asked)?.as_deref(), "get of the snapshot")?;
        }
        if slot == 0 && view.snapshot.is_none() && want.is_some() && !self.db.key_may_exist(&bytes) {
            return wrong(family_name(slot, kind), format!("key_may_exist denies {}", shown(&bytes)));
        }
        Ok(hash_one(want))
    }

    pub fn multi_get(&self, view: View, keys: &[(Slot, Key)]) -> Result<u64, Trouble> {
        let mut handles = Vec::new();
        for (slot, key) in keys {
            let (family, cf) = self.family(*slot)?;
            let key = key_bytes(*key);
            handles.push((cf, family.kind.asked(&key), key));
        }
        let state = self.seen(view);
        let asked = handles.iter().map(|(cf, asked, _)| (cf, asked));
        let got = self.db.multi_get_cf_opt(asked, &self.read_options(view));
        let mut all = Vec::new();
        for ((slot, _), ((_, _, key), got)) in keys.iter().zip(handles.iter().zip(got)) {
            let Some(family) = state.get(slot) else { continue };
            let (got, want) = (got?, family.settled(key));
            let got = got.as_deref().and_then(|v| family.kind.settled(v));
            if got != want {
                let (got, want) = (shown_value(got), shown_value(want));
                let what = format!("multi_get of {} gives {got}, must be {want}", shown(key));
                return wrong(family_name(*slot, family.kind), what);
            }
            all.push(want);
        }
        Ok(hash_one(all))
    }

    fn iterator_options(&self, view: View, bounds: &Bounds) -> ReadOptions {
        let mut options = self.read_options(view);
        if let Some(key) = bounds.lower {
            options.set_iterate_lower_bound(key_bytes(key));
        }
        if let Some(key) = bounds.upper {
            options.set_iterate_upper_bound(key_bytes(key));
        }
        if let Some(prefix) = bounds.prefix {
            options.set_iterate_prefix(prefix_bytes(prefix));
        }
        // In total order, regardless of prefix filters.
        if bounds.auto_prefix {
            options.set_auto_prefix_mode(true);
        } else {
            options.set_total_order_seek(true);
        }
        options.set_readahead_size(bounds.readahead as usize);
        // Has an effect only if tables are read past the page cache and the window is large.
        options.set_async_io(bounds.readahead >= 100_000);
        options
    }

    pub fn walk(&self, slot: Slot, view: View, bounds: &Bounds, moves: &[Move]) -> Result<u64, Trouble> {
        let (family, cf) = self.family(slot)?;
        let Some(mut cursor) = self.run.model.cursor(slot, view, bounds) else { return Ok(0) };
        self.walk_in_prefixes(slot, view, bounds, moves)?;
        let mut iterator = self.db.raw_iterator_cf_opt(&cf, self.iterator_options(view, bounds));
        go_together(&family_name(slot, family.kind), family.kind, &mut iterator, &mut cursor, moves)
    }

    /// The seeks among the moves with `prefix_same_as_start`: each returns keys with the prefix of its target,
    /// regardless of the bounds.
    fn walk_in_prefixes(&self, slot: Slot, view: View, bounds: &Bounds, moves: &[Move]) -> Result<(), Trouble> {
        let (family, cf) = self.family(slot)?;
        let options = self.db.get_options_cf(&cf);
        let Some(extractor) = &options.cf.prefix_extractor else { return Ok(()) };
        let state = self.seen(view);
        let Some(then) = state.get(&slot).filter(|_| family.kind.is_bytewise()) else { return Ok(()) };
        let (lower, upper) = (bounds.lower.map(key_bytes), bounds.upper.map(key_bytes));
        let mut read = self.iterator_options(view, &Bounds { prefix: None, ..*bounds });
        read.set_total_order_seek(false);
        read.set_prefix_same_as_start(true);
        let mut iterator = self.db.raw_iterator_cf_opt(&cf, read);
        for to in moves {
            let (target, forward) = match *to {
                Move::Seek(key) => (key_bytes(key), true),
                Move::SeekForPrev(key) => (key_bytes(key), false),
                _ => continue,
            };
            let Some(prefix) = extractor.prefix(&target) else { continue };
            let mut want = then.sorted();
            want.retain(|(key, _)| {
                let inside = lower.as_deref().is_none_or(|l| *key >= l) && upper.as_deref().is_none_or(|u| *key < u);
                let reached = if forward { *key >= &*target } else { *key <= &*target };
                inside && reached && extractor.prefix(key) == Some(prefix)
            });
            if forward {
                iterator.seek(&target);
            } else {
                iterator.seek_for_prev(&target);
                want.reverse();
            }
            let mut got = Vec::new();
            while let Some((key, value)) = iterator.item() {
                if let Some(value) = family.kind.settled(value) {
                    got.push((key.to_vec(), value.to_vec()));
                }
                if forward { iterator.next() } else { iterator.prev() }
            }
            iterator.status()?;
            let place = format!("{}, {to:?} in its prefix, {bounds:?}", family_name(slot, family.kind));
            same(&place, &got, &want)?;
        }
        Ok(())
    }

    pub fn hold(&mut self, id: u8, slot: Slot, bounds: &Bounds) -> Result<(), Trouble> {
        let (family, cf) = self.family(slot)?;
        let iterator = self.db.raw_iterator_cf_opt(&cf, self.iterator_options(View::default(), bounds));
        self.iterators.insert(id, (family.kind, iterator));
        Ok(())
    }

    pub fn move_held(&mut self, id: u8, moves: &[Move]) -> Result<u64, Trouble> {
        let Some((kind, iterator)) = self.iterators.get_mut(&id) else { return Ok(0) };
        // A copy, because the model itself moves at the end of the step.
        let Some(mut cursor) = self.run.model.iterators.get(&id).cloned() else { return Ok(0) };
        go_together(&format!("iterator {id}"), *kind, iterator, &mut cursor, moves)
    }

    /// The keys that share a prefix, through filters.
    pub fn prefix(&self, slot: Slot, key: Key) -> Result<(), Trouble> {
        let (family, cf) = self.family(slot)?;
        let from = key_bytes(key);
        let options = self.db.get_options_cf(&cf);
        let Some(extractor) = &options.cf.prefix_extractor else { return Ok(()) };
        let Some(prefix) = extractor.prefix(&from) else { return Ok(()) };
        // Other orders may separate the keys of a prefix.
        if !family.kind.is_bytewise() {
            return Ok(());
        }
        let mut want = family.sorted();
        want.retain(|(k, _)| *k >= &*from && extractor.prefix(k) == Some(prefix));
        let mut got = Vec::new();
        for entry in self.db.prefix_iterator_cf(&cf, &from) {
            let (key, value) = entry?;
            if let Some(value) = family.kind.settled(&value) {
                got.push((key.into_vec(), value.to_vec()));
            }
        }
        Ok(same(&format!("{}, prefix {}", family_name(slot, family.kind), shown(prefix)), &got, &want)?)
    }

    /// Every table with keys from `from` to `to` was rewritten: no entries remain that a filter should have removed or
    /// changed.
    pub fn check_filtered(&self, slot: Slot, from: Option<&[u8]>, to: Option<&[u8]>) -> Result<(), Trouble> {
        let (family, cf) = self.family(slot)?;
        let kind = family.kind;
        if !kind.is_filtered() {
            return Ok(());
        }
        let mut options = ReadOptions::default();
        options.set_total_order_seek(true);
        for entry in self.db.iterator_cf_opt(&cf, options, IteratorMode::Start) {
            let (key, value) = entry?;
            let inside = from.is_none_or(|from| *key >= *from) && to.is_none_or(|to| *key <= *to);
            if inside && kind.settled(&value) != Some(&value[..]) {
                let what = format!("{}={}", shown(&key), shown(&value));
                return wrong(family_name(slot, kind), format!("{what} outlives a compaction whose filter takes it"));
            }
        }
        Ok(())
    }

    pub fn check(&self, view: View) -> Result<u64, Trouble> {
        let Some(id) = view.snapshot else {
            matches(self.db, &self.run.model)?;
            return Ok(hash_one(self.run.model.state.values().map(|family| family.hash()).collect::<Vec<_>>()));
        };
        if let Some(snapshot) = self.snapshots.get(&id) {
            self.check_snapshot(id, snapshot)?;
        }
        Ok(hash_one(self.seen(view).values().map(|family| family.hash()).collect::<Vec<_>>()))
    }

    pub fn check_snapshot(&self, id: u8, snapshot: &Held<'db>) -> Result<(), Trouble> {
        let state = self.seen(View { snapshot: Some(id) });
        Ok(matches_state(self.db, &state, Some(&snapshot.options), &format!("snapshot {id}, "))?)
    }

    /// The WALs' updates since the mark, applied to the contents at the mark, must give the current contents.
    pub fn updates(&self) -> Result<(), Trouble> {
        let Some(then) = self.run.model.mark.clone() else { return Ok(()) };
        self.db.flush_wal(false)?;
        let updates = self.db.get_updates_since(self.marked)?;
        let recycled = self.run.configuration().get("wal") == "recycled";
        let mut apply = Apply { db: self.db, state: ByBytes { state: then }, unknown: None };
        let mut next = self.marked + 1;
        for update in updates {
            let (sequence, batch) = match update {
                Ok(update) => update,
                // Their WALs went with the memtables.
                Err(e) if e.kind() == ErrorKind::TryAgain && next == self.marked + 1 => return Ok(()),
                // Or went just now.
                Err(e) if e.is_missing_file() => return Ok(()),
                // Or their files are written anew.
                Err(e) if recycled && matches!(e.kind(), ErrorKind::TryAgain | ErrorKind::Corruption) => return Ok(()),
                Err(e) => return Err(e.into()),
            };
            if batch.is_empty() {
                continue; // log data of the listener's
            }
            if sequence != next {
                if next == self.marked + 1 && sequence > next {
                    return Ok(()); // the WALs before are gone
                }
                return wrong("updates", format!("a batch begins at {sequence}, the one before ended before {next}"));
            }
            next += batch.len() as u64;
            batch.iterate_cf(&mut apply);
        }
        if next != self.db.latest_sequence_number() + 1 {
            let newest = self.db.latest_sequence_number();
            return wrong("updates", format!("they end before {next}, the newest is {newest}"));
        }
        if let Some(id) = apply.unknown {
            return wrong("updates", format!("one is of column family {id}, which is not there"));
        }
        for (slot, family) in &self.run.model.state {
            if apply.state.state.get(slot).is_none_or(|got| got.hash() != family.hash()) {
                return wrong("updates", format!("they give something else in {}", family_name(*slot, family.kind)));
            }
        }
        Ok(())
    }
}

/// Applies a batch to states by the ids of column families.
struct Apply<'d> {
    db: &'d Db,
    state: ByBytes,
    unknown: Option<u32>,
}

impl Apply<'_> {
    fn slot(&mut self, id: u32) -> Slot {
        let of = |(slot, family): (&Slot, &std::sync::Arc<crate::model::Family>)| {
            let handle: Option<ColumnFamily> = self.db.cf_handle(&family_name(*slot, family.kind));
            handle.filter(|handle| handle.as_cf().id() == id).map(|_| *slot)
        };
        let found = self.state.state.iter().find_map(of);
        if found.is_none() {
            self.unknown = Some(id);
        }
        found.unwrap_or(Slot::MAX)
    }
}

impl WriteBatchIteratorCf for Apply<'_> {
    fn put_cf(&mut self, cf_id: u32, key: &[u8], value: &[u8]) {
        let slot = self.slot(cf_id);
        self.state.put(slot, key, value);
    }

    fn delete_cf(&mut self, cf_id: u32, key: &[u8]) {
        let slot = self.slot(cf_id);
        self.state.delete(slot, key);
    }

    fn merge_cf(&mut self, cf_id: u32, key: &[u8], value: &[u8]) {
        let slot = self.slot(cf_id);
        self.state.merge(slot, key, value);
    }

    fn delete_range_cf(&mut self, cf_id: u32, begin: &[u8], end: &[u8]) {
        let slot = self.slot(cf_id);
        self.state.delete_range(slot, begin, end);
    }
}

/// Moves an iterator and its model in parallel, and compares after each move.
fn go_together(
    place: &str,
    kind: Kind,
    iterator: &mut DbRawIterator<'_>,
    cursor: &mut Cursor,
    moves: &[Move],
) -> Result<u64, Trouble> {
    let single = moves.iter().flat_map(|&m| match m {
        Move::Next(n) => vec![Move::Next(1); usize::from(n)],
        Move::Prev(n) => vec![Move::Prev(1); usize::from(n)],
        other => vec![other],
    });
    let mut seen = Vec::new();
    for (n, to) in single.enumerate() {
        let mut forward = true;
        match to {
            Move::First => iterator.seek_to_first(),
            Move::Last => {
                iterator.seek_to_last();
                forward = false;
            }
            Move::Seek(key) => iterator.seek(key_bytes(key)),
            Move::SeekForPrev(key) => {
                iterator.seek_for_prev(key_bytes(key));
                forward = false;
            }
            // From nowhere there is no way.
            Move::Next(_) if iterator.valid() => iterator.next(),
            Move::Prev(_) if iterator.valid() => {
                iterator.prev();
                forward = false;
            }
            Move::Next(_) | Move::Prev(_) => {}
        }
        // Skips entries that a filter may have removed.
        while iterator.value().is_some_and(|value| kind.settled(value).is_none()) {
            if forward { iterator.next() } else { iterator.prev() }
        }
        iterator.status()?;
        cursor.go(to);
        let got = iterator.item().map(|(k, v)| (k, kind.settled(v).unwrap_or(v)));
        let want = cursor.item();
        if got != want {
            let text = |e: Option<(&[u8], &[u8])>| {
                e.map_or_else(|| "nowhere".to_owned(), |(k, v)| format!("at {}={}", shown(k), shown(v)))
            };
            return wrong(place, format!("after move {n} ({to}) it is {}, must be {}", text(got), text(want)));
        }
        seen.push(hash_one(want));
    }
    Ok(hash_one(seen))
}

/// All entries of a column family of a copy, read forwards.
pub(super) fn all_of(db: &Db, cf: &ColumnFamily, kind: Kind) -> Result<crate::model::Pairs, Trouble> {
    Ok(scan(db, cf, kind, None, rockmill::IteratorMode::Start)?)
}
