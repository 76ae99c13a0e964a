//! Reads of the child's threads. Under the locks, reads must find exactly the acknowledged version. With concurrent
//! writers, the version must be between what was acknowledged before the read began and what was begun before it ended.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rockmill::{ColumnFamily, Comparator as _, HashRangeComparator, ReadOptions};

use super::expected::Slot;
use super::judge::{self, Entry, Findings};
use super::value::{self, Kind};
use super::work::{Done, Trouble, Worker};

/// Keys of one iteration at most.
const ITERATE_MAX: u32 = 400;
/// Most keys that are looked up in one call.
const MULTI_MAX: usize = 20;

/// How an iteration goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Forward,
    Backward,
}

impl Worker<'_, '_> {
    /// The version that a lookup found.
    fn version(&self, family: usize, key: u32, found: Option<Vec<u8>>) -> Result<Option<u32>, Trouble> {
        let version = |bytes: Vec<u8>| {
            value::version_of(self.shared.settings, family, key, &bytes).map_err(|what| {
                let place = judge::place(self.shared.settings, family, key);
                Trouble::Wrong(format!("{place}: expected a value of this key, found {what}"))
            })
        };
        found.map(version).transpose()
    }

    /// The found version, corrected for filters: see [`value::unfiltered`].
    fn unfiltered(&self, family: usize, slot: &Slot, found: Option<u32>) -> Option<u32> {
        value::unfiltered(self.shared.settings, family, slot, found).0
    }

    /// The same beside writers: see [`value::unfiltered_between`].
    fn unfiltered_between(&self, family: usize, before: &Slot, after: &Slot, found: Option<u32>) -> Option<u32> {
        value::unfiltered_between(self.shared.settings, family, before, after, found).0
    }

    fn wrong(&self, family: usize, key: u32, expected: &str, found: Option<u32>) -> Trouble {
        let settings = self.shared.settings;
        let found = judge::found_text(settings, family, found);
        Trouble::Wrong(format!("{}: expected {expected}, found {found}", judge::place(settings, family, key)))
    }

    fn checked(&self, keys: u64) {
        self.shared.counts.checked.fetch_add(keys, Ordering::Relaxed);
    }

    fn get(&mut self, cf: &ColumnFamily, family: usize, key: u32) -> Result<Option<u32>, Trouble> {
        let db = self.shared.db;
        let found = match self.rng.u8(..3) {
            0 => db.get_pinned_cf(cf, self.key(family, key)).map(|v| v.map(|v| v.to_vec())),
            _ => db.get_cf(cf, self.key(family, key)),
        };
        let found = found.map_err(|e| self.shared.trouble("get", &e))?;
        self.version(family, key, found)
    }

    /// A lookup.
    pub fn read(&mut self) -> Done {
        let (family, key) = (self.rng.usize(..self.shared.expected.families()), self.any_key());
        let expected = self.shared.expected;
        let counter = expected.is_counter(family);
        if self.rng.bool() {
            let _held = expected.lock_shared(family, &(key..key + 1));
            let cf = self.shared.family(family);
            let found = self.get(&cf, family, key)?;
            let slot = expected.slot(family, key);
            if self.unfiltered(family, &slot, found) != slot.exact() {
                return Err(self.wrong(family, key, &slot.describe(counter), found));
            }
        } else {
            // In this order, a column family that is cleared in between looks like one that is cleared during the read.
            let before = expected.slot(family, key);
            let cf = self.shared.family(family);
            let found = self.get(&cf, family, key)?;
            let after = expected.slot(family, key);
            let seen = self.unfiltered_between(family, &before, &after, found);
            if !Slot::allows_between(&before, &after, seen) {
                return Err(self.wrong(family, key, &between(&before, &after, counter), found));
            }
        }
        self.checked(1);
        Ok(())
    }

    /// Many lookups in one call.
    pub fn multi_read(&mut self) -> Done {
        let expected = self.shared.expected;
        let places: Vec<(usize, u32)> = (0..self.rng.usize(2..=MULTI_MAX))
            .map(|_| (self.rng.usize(..expected.families()), self.any_key()))
            .collect();
        let before: Vec<Slot> = places.iter().map(|p| expected.slot(p.0, p.1)).collect();
        let cfs: Vec<ColumnFamily> = places.iter().map(|p| self.shared.family(p.0)).collect();
        let found = self.shared.db.multi_get_cf(cfs.iter().zip(places.iter().map(|p| self.key(p.0, p.1))));
        if found.len() != places.len() {
            return Err(Trouble::Wrong(format!("multi_get: {} keys, {} answers", places.len(), found.len())));
        }
        for ((&(family, key), before), found) in places.iter().zip(before).zip(found) {
            let found = found.map_err(|e| self.shared.trouble("multi_get", &e))?;
            let found = self.version(family, key, found)?;
            let after = expected.slot(family, key);
            let seen = self.unfiltered_between(family, &before, &after, found);
            if !Slot::allows_between(&before, &after, seen) {
                let text = between(&before, &after, expected.is_counter(family));
                return Err(self.wrong(family, key, &text, found));
            }
        }
        self.checked(places.len() as u64);
        Ok(())
    }

    /// Options of an iterator that must see every key, regardless of the configured prefixes.
    fn read_options(&mut self) -> ReadOptions {
        let mut options = ReadOptions::default();
        if self.rng.bool() {
            options.set_total_order_seek(true);
        } else {
            options.set_auto_prefix_mode(true);
        }
        options
    }

    /// Entries of a range of keys, in order, in whatever direction they are read.
    fn entries(
        &self,
        (family, cf): (usize, &ColumnFamily),
        keys: &Range<u32>,
        way: Way,
        bounds: bool,
        mut options: ReadOptions,
    ) -> Result<Vec<Entry>, Trouble> {
        let (start, end) = (self.key(family, keys.start), self.key(family, keys.end));
        let outside = |key: &[u8]| match Kind::of(self.shared.settings, family) {
            Kind::Reversed => key > &start[..] || key <= &end[..],
            Kind::Hashed => {
                HashRangeComparator.compare(key, &start).is_lt() || HashRangeComparator.compare(key, &end).is_ge()
            }
            _ => key < &start[..] || key >= &end[..],
        };
        if bounds {
            options.set_iterate_lower_bound(start.clone());
            options.set_iterate_upper_bound(end.clone());
        }
        let mut iter = self.shared.db.raw_iterator_cf_opt(cf, options);
        let mut out = Vec::new();
        match (way, bounds) {
            (Way::Forward, true) => iter.seek_to_first(),
            (Way::Forward, false) => iter.seek(&start),
            (Way::Backward, true) => iter.seek_to_last(),
            (Way::Backward, false) => {
                iter.seek_for_prev(&end);
                if iter.key() == Some(&end[..]) {
                    iter.prev();
                }
            }
        }
        while let Some((key, value)) = iter.item() {
            if !bounds && outside(key) {
                break;
            }
            out.push(Ok((key.to_vec(), value.to_vec())));
            match way {
                Way::Forward => iter.next(),
                Way::Backward => iter.prev(),
            }
        }
        iter.status().map_err(|e| self.shared.trouble("iterator", &e))?;
        if way == Way::Backward {
            out.reverse();
        }
        Ok(out)
    }

    /// An iterator beside writers.
    pub fn iterate(&mut self) -> Done {
        let expected = self.shared.expected;
        let (family, keys) = (self.rng.usize(..expected.families()), self.any_range(ITERATE_MAX));
        let way = if self.rng.u8(..3) == 0 { Way::Backward } else { Way::Forward };
        let before = expected.slots(family, keys.clone());
        let cf = self.shared.family(family);
        let bounds = self.rng.bool();
        let options = self.read_options();
        let entries = self.entries((family, &cf), &keys, way, bounds, options)?;
        let counter = expected.is_counter(family);
        let mut findings = Findings::default();
        judge::compare(self.shared.settings, family, keys.clone(), entries.into_iter(), &mut findings, |key, found| {
            let before = &before[(key - keys.start) as usize];
            let after = expected.slot(family, key);
            let allowed = Slot::allows_between(before, &after, self.unfiltered_between(family, before, &after, found));
            if allowed { Ok(()) } else { Err(between(before, &after, counter)) }
        });
        self.checked(findings.verdict(&format!("{way:?} iteration over keys {keys:?}"))?);
        Ok(())
    }

    /// Checks that a snapshot does not change while writers continue.
    pub fn snapshot(&mut self) -> Done {
        let expected = self.shared.expected;
        let (family, keys) = (self.rng.usize(..expected.families()), self.any_range(ITERATE_MAX));
        let (cf, snapshot, slots) = {
            let _held = expected.lock_shared(family, &keys);
            (self.shared.family(family), self.shared.db.snapshot(), expected.slots(family, keys.clone()))
        };
        for round in 0..2 {
            let way = if self.rng.bool() { Way::Backward } else { Way::Forward };
            let mut options = self.read_options();
            options.set_snapshot(&snapshot);
            let bounds = self.rng.bool();
            let entries = self.entries((family, &cf), &keys, way, bounds, options)?;
            let mut findings = Findings::default();
            let settings = self.shared.settings;
            judge::compare(settings, family, keys.clone(), entries.into_iter(), &mut findings, |key, found| {
                let slot = &slots[(key - keys.start) as usize];
                let right = self.unfiltered(family, slot, found) == slot.exact();
                if right { Ok(()) } else { Err(slot.describe(expected.is_counter(family))) }
            });
            self.checked(findings.verdict(&format!("snapshot, round {round}, keys {keys:?}"))?);
            for _ in 0..10 {
                let key = self.rng.u32(keys.clone());
                let found = snapshot.get_cf(&cf, self.key(family, key)).map_err(|e| self.shared.trouble("get", &e))?;
                let found = self.version(family, key, found)?;
                let slot = &slots[(key - keys.start) as usize];
                if self.unfiltered(family, slot, found) != slot.exact() {
                    return Err(self.wrong(family, key, &slot.describe(expected.is_counter(family)), found));
                }
            }
            std::thread::sleep(Duration::from_millis(self.rng.u64(..20)));
        }
        Ok(())
    }
}

/// Describes what may be read with concurrent writers.
pub fn between(before: &Slot, after: &Slot, counter: bool) -> String {
    let mut text = before.describe(counter);
    if before != after {
        text.push_str(&format!(", up to {}", after.describe(counter)));
    }
    text
}
