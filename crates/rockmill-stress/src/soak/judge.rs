//! Compares the contents of a database with the expected contents.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use super::expected::{Expected, Outcome, Slot};
use super::settings::Settings;
use super::value;

/// Most problems that are described; further ones are only counted.
const SHOWN_MAX: usize = 8;

/// An entry, or the error that ended the read.
pub type Entry = Result<(Vec<u8>, Vec<u8>), String>;

/// What a comparison found.
#[derive(Debug, Default)]
pub struct Findings {
    /// Checked keys, including absent ones.
    pub checked: u64,
    shown: Vec<String>,
    total: u64,
}

impl Findings {
    /// Notes that something is wrong.
    pub fn add(&mut self, text: String) {
        self.total += 1;
        if self.shown.len() < SHOWN_MAX {
            self.shown.push(text);
        }
    }

    /// The number of checked keys, or a description of all problems.
    ///
    /// # Errors
    /// The description.
    pub fn verdict(self, what: &str) -> Result<u64, String> {
        if self.total == 0 {
            return Ok(self.checked);
        }
        let more = self.total - self.shown.len() as u64;
        let more = if more > 0 { format!("\n  and {more} more") } else { String::new() };
        let problems = if self.total == 1 { "problem" } else { "problems" };
        Err(format!("{what}: {} {problems}\n  {}{more}", self.total, self.shown.join("\n  ")))
    }
}

/// A column family's name.
pub fn family_name(settings: &Settings, family: usize) -> String {
    match family {
        0 => "default".to_owned(),
        f if f == settings.families => "counters".to_owned(),
        f => format!("family{f}"),
    }
}

/// "column family f, key k", for messages.
pub fn place(settings: &Settings, family: usize, key: u32) -> String {
    let text = value::key(settings, family, key);
    let text = String::from_utf8(text).unwrap_or_else(|e| format!("0x{}", value::hex(e.as_bytes())));
    format!("column family {} (number {family}), key {text} (number {key})", family_name(settings, family))
}

/// A readable description of the contents found.
pub fn found_text(settings: &Settings, family: usize, found: Option<u32>) -> String {
    match found {
        None => "nothing".to_owned(),
        Some(count) if family == settings.families => format!("a count of {count}"),
        Some(version) => format!("version {version}"),
    }
}

/// Goes through the entries of a column family between two keys, in order. `each` gets the found version of every key,
/// and returns the expected contents if that is wrong.
pub fn compare(
    settings: &Settings,
    family: usize,
    keys: Range<u32>,
    entries: impl Iterator<Item = Entry>,
    findings: &mut Findings,
    mut each: impl FnMut(u32, Option<u32>) -> Result<(), String>,
) {
    let mut next = keys.start;
    let mut tell = |key: u32, found: Option<u32>, findings: &mut Findings| {
        findings.checked += 1;
        if let Err(expected) = each(key, found) {
            let (place, found) = (place(settings, family, key), found_text(settings, family, found));
            findings.add(format!("{place}: expected {expected}, found {found}"));
        }
    };
    for entry in entries {
        let (key, bytes) = match entry {
            Ok(entry) => entry,
            Err(e) => {
                findings.add(format!("column family {}: {e}", family_name(settings, family)));
                return;
            }
        };
        let Some(number) = value::number_of(settings, family, &key).filter(|n| *n < settings.keys) else {
            let (name, key) = (family_name(settings, family), value::hex(&key));
            findings.add(format!("column family {name}: expected no key 0x{key}, which nobody wrote, and found it"));
            continue;
        };
        if number < next || number >= keys.end {
            let place = place(settings, family, number);
            findings.add(format!("{place}: found where keys from number {next} below {} belong", keys.end));
            continue;
        }
        for absent in next..number {
            tell(absent, None, findings);
        }
        next = number + 1;
        match value::version_of(settings, family, number, &bytes) {
            Ok(version) => tell(number, Some(version), findings),
            Err(what) => {
                let place = place(settings, family, number);
                findings.add(format!("{place}: expected a value of this key, found {what}"));
            }
        }
    }
    for absent in next..keys.end {
        tell(absent, None, findings);
    }
}

/// Collects the outcomes of operations over many keys.
#[derive(Debug, Default)]
pub struct Groups {
    /// Operations that were under way.
    open: HashSet<u64>,
    /// By operation: a key with its effect, and one without.
    seen: HashMap<u64, [Option<(usize, u32)>; 2]>,
}

impl Groups {
    /// The operations that are in progress according to the expected state.
    pub fn of(expected: &Expected) -> Self {
        let mut open = HashSet::new();
        for family in 0..expected.families() {
            for key in 0..expected.keys() {
                let slot = expected.slot(family, key);
                if slot.has_one_pending() {
                    open.insert(slot.op);
                }
            }
        }
        Self { open, seen: HashMap::new() }
    }

    /// Notes what one key tells.
    pub fn note(&mut self, family: usize, key: u32, slot: &Slot, found: Option<u32>) {
        let usable = slot.has_one_pending() || !slot.is_pending();
        if !usable || !self.open.contains(&slot.op) {
            return;
        }
        let at = match slot.outcome(found) {
            Outcome::New => 0,
            Outcome::Old => 1,
            Outcome::Either => return,
        };
        self.seen.entry(slot.op).or_default()[at].get_or_insert((family, key));
    }

    /// All or nothing, for each.
    pub fn judge(&self, settings: &Settings, findings: &mut Findings) {
        for (op, seen) in &self.seen {
            if let [Some(new), Some(old)] = seen {
                findings.add(format!(
                    "operation {op} is there in part: expected all of it or nothing, found it in {} and not in {}",
                    place(settings, new.0, new.1),
                    place(settings, old.0, old.1)
                ));
            }
        }
    }
}

/// Collects the outcomes of operations in a copy made between two reads of the expected state: each operation must be
/// in it completely or not at all, and the copy must show a consistent state.
#[derive(Debug, Default)]
pub struct Moment {
    /// By operation.
    seen: HashMap<u64, InCopy>,
}

/// An operation as a copy shows it.
#[derive(Debug, Default)]
struct InCopy {
    /// A key with its effect, and one without.
    at: [Option<(usize, u32)>; 2],
    /// Operations from this number on began after it had returned; 0 if that is unknown.
    ended: u64,
}

impl Moment {
    /// Records what one key shows about the last operation on it, as of the second read.
    pub fn note(&mut self, family: usize, key: u32, before: &Slot, after: &Slot, found: Option<u32>) {
        let Some(effect) = after.effect() else { return };
        let at = match effect {
            // Other operations may also have deleted the previous version.
            None if found.is_none() => {
                let one = !before.is_pending() && before.is_present() && after.latest == before.latest + 1;
                if !one {
                    return;
                }
                0
            }
            effect if effect == found => 0,
            _ => 1,
        };
        let seen = self.seen.entry(after.op).or_default();
        seen.at[at].get_or_insert((family, key));
        seen.ended = after.ended;
    }

    /// Checks that each is complete or absent, and that none exists that began after a missing one had returned.
    pub fn judge(&self, settings: &Settings, findings: &mut Findings) {
        let place = |at: &(usize, u32)| place(settings, at.0, at.1);
        for (op, seen) in &self.seen {
            if let [Some(new), Some(old)] = &seen.at {
                let (new, old) = (place(new), place(old));
                findings.add(format!(
                    "operation {op} is in the copy in part: expected all of it or nothing, found it in {new} and not \
                     in {old}"
                ));
            }
        }
        let newest = self.seen.iter().filter(|(_, seen)| seen.at[0].is_some()).max_by_key(|(op, _)| **op);
        let Some((newest, InCopy { at: [Some(there), _], .. })) = newest else { return };
        for (op, seen) in &self.seen {
            if let [None, Some(old)] = &seen.at
                && seen.ended != 0
                && seen.ended <= *newest
            {
                let (old, there) = (place(old), place(there));
                findings.add(format!(
                    "the copy is no single moment: expected operation {op} in {old}, which had returned before \
                     operation {newest} began, found the latter in {there} and not the former"
                ));
            }
        }
    }
}

/// Compares a copy of a database, given by the entries of each column family, with two reads of the expected state.
///
/// # Errors
/// A description of the problems.
pub fn judge_copy(
    what: &str,
    settings: &Settings,
    (before, after): (&[Vec<Slot>], &[Vec<Slot>]),
    mut entries: impl FnMut(usize) -> Vec<Entry>,
) -> Result<u64, String> {
    let (mut findings, mut moment) = (Findings::default(), Moment::default());
    for family in 0..before.len() {
        let (counter, entries) = (family == settings.families, entries(family));
        compare(settings, family, 0..settings.keys, entries.into_iter(), &mut findings, |key, found| {
            let (before, after) = (&before[family][key as usize], &after[family][key as usize]);
            let (found, tells) = value::unfiltered_between(settings, family, before, after, found);
            if !Slot::allows_between(before, after, found) {
                return Err(super::reads::between(before, after, counter));
            }
            if tells && before != after {
                moment.note(family, key, before, after, found);
            }
            Ok(())
        });
    }
    moment.judge(settings, &mut findings);
    findings.verdict(what)
}

/// Compares a whole closed database, given by a reader for each column family, with the expected state.
///
/// # Errors
/// A description of the problems.
pub fn judge_dead<I: Iterator<Item = Entry>>(
    what: &str,
    settings: &Settings,
    expected: &Expected,
    mut entries: impl FnMut(usize) -> Result<I, String>,
    mut settle: impl FnMut(usize, u32, Option<u32>),
) -> Result<u64, String> {
    let mut groups = Groups::of(expected);
    let mut findings = Findings::default();
    for family in 0..expected.families() {
        let counter = expected.is_counter(family);
        compare(settings, family, 0..expected.keys(), entries(family)?, &mut findings, |key, found| {
            let slot = expected.slot(family, key);
            let (found, tells) = value::unfiltered(settings, family, &slot, found);
            if !slot.allows(found) {
                return Err(slot.describe(counter));
            }
            if tells {
                groups.note(family, key, &slot, found);
            }
            settle(family, key, found);
            Ok(())
        });
    }
    groups.judge(settings, &mut findings);
    findings.verdict(what)
}

#[cfg(test)]
mod tests {
    use super::super::expected::{self, Change};
    use super::*;

    fn state(settings: &Settings) -> (tempfile::TempDir, Expected) {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("expected");
        expected::create(&path, settings).expect("the file");
        let expected = Expected::open(&path, settings).expect("opens");
        (dir, expected)
    }

    fn judged(settings: &Settings, expected: &Expected, found: &[(usize, u32, u32)]) -> Result<u64, String> {
        let entries = |family: usize| {
            let of = found.iter().filter(move |f| f.0 == family);
            Ok(of.map(move |f| Ok((value::key(settings, f.0, f.1), value::value(settings, f.0, f.1, f.2)))))
        };
        judge_dead("test", settings, expected, entries, |_, _, _| ())
    }

    #[test]
    fn loss_is_named_with_key_expected_and_found() {
        let settings = Settings { keys: 20, families: 1, ..Settings::default() };
        let (_dir, expected) = state(&settings);
        for key in [3, 5] {
            expected.set(0, key, Slot::default().begun(1, Change::Put).done(Change::Put)).expect("set");
        }
        assert_eq!(judged(&settings, &expected, &[(0, 3, 1), (0, 5, 1)]), Ok(40));
        let e = judged(&settings, &expected, &[(0, 3, 1)]).expect_err("key 5 is lost");
        assert!(e.contains("key key0000000005..... (number 5): expected version 1, found nothing"), "{e}");
        let e = judged(&settings, &expected, &[(0, 3, 1), (0, 4, 1), (0, 5, 1)]).expect_err("key 4 came back");
        assert!(e.contains("(number 4): expected nothing (as of version 0), found version 1"), "{e}");
        let e = judged(&settings, &expected, &[(0, 5, 1), (0, 3, 1)]).expect_err("no order");
        assert!(e.contains("(number 3): found where keys from number 6"), "{e}");
    }

    /// A copy of keys 3 and 5 of the first column family, made between two reads.
    fn copied(before: [Slot; 2], after: [Slot; 2], found: [Option<u32>; 2]) -> Result<u64, String> {
        let settings = Settings { keys: 20, families: 1, ..Settings::default() };
        let all = |slots: [Slot; 2]| {
            let mut all = vec![vec![Slot::default(); 20]; 2];
            (all[0][3], all[0][5]) = (slots[0], slots[1]);
            all
        };
        let entry = |key: u32, version| Ok((value::key(&settings, 0, key), value::value(&settings, 0, key, version)));
        let entries = |family: usize| {
            let there = [(3, found[0]), (5, found[1])].into_iter().filter(|_| family == 0);
            there.filter_map(|(key, version)| Some(entry(key, version?))).collect()
        };
        judge_copy("copy", &settings, (&all(before), &all(after)), entries)
    }

    #[test]
    fn half_of_a_batch_in_a_copy_is_seen() {
        let put = |slot: Slot, op| slot.begun(op, Change::Put).done(Change::Put);
        let before = [put(Slot::default(), 1), put(Slot::default(), 2)];
        let after = [put(before[0], 7).ended_before(8), put(before[1], 7).ended_before(8)];
        assert!(copied(before, after, [Some(1), Some(1)]).is_ok());
        assert!(copied(before, after, [Some(2), Some(2)]).is_ok());
        let e = copied(before, after, [Some(2), Some(1)]).expect_err("half");
        assert!(e.contains("operation 7 is in the copy in part"), "{e}");
        // Each key alone is allowed, which an earlier version of this check accepted.
        assert!((0..2).all(|n| Slot::allows_between(&before[n], &after[n], Some(2 - n as u32))));
        // Also while the batch is in progress, and if half of it deletes.
        let begun = [before[0].begun(7, Change::Put), before[1].begun(7, Change::Delete)];
        assert!(copied(before, begun, [Some(2), None]).is_ok());
        assert!(copied(before, begun, [Some(1), Some(1)]).is_ok());
        for half in [[Some(1), None], [Some(2), Some(1)]] {
            let e = copied(before, begun, half).expect_err("half");
            assert!(e.contains("operation 7 is in the copy in part"), "{e}");
        }
    }

    #[test]
    fn a_copy_of_two_moments_is_seen() {
        let put = |slot: Slot, op| slot.begun(op, Change::Put).done(Change::Put);
        let before = [put(Slot::default(), 1), put(Slot::default(), 2)];
        // Operation 7 had returned when 8 began.
        let after = [put(before[0], 7).ended_before(8), put(before[1], 8).ended_before(9)];
        for found in [[Some(1), Some(1)], [Some(2), Some(1)], [Some(2), Some(2)]] {
            assert!(copied(before, after, found).is_ok(), "{found:?}");
        }
        let e = copied(before, after, [Some(1), Some(2)]).expect_err("the later one without the earlier one");
        assert!(e.contains("no single moment") && e.contains("operation 7"), "{e}");
        // If it had not returned by then, any order would be allowed.
        let after = [put(before[0], 7).ended_before(9), put(before[1], 8).ended_before(9)];
        assert!(copied(before, after, [Some(1), Some(2)]).is_ok());
    }

    #[test]
    fn half_of_a_batch_is_seen() {
        let settings = Settings { keys: 20, families: 2, ..Settings::default() };
        let (_dir, expected) = state(&settings);
        for (family, key) in [(0, 3), (1, 5)] {
            expected.set(family, key, Slot::default().begun(7, Change::Put)).expect("set");
        }
        assert!(judged(&settings, &expected, &[]).is_ok());
        assert!(judged(&settings, &expected, &[(0, 3, 1), (1, 5, 1)]).is_ok());
        let e = judged(&settings, &expected, &[(1, 5, 1)]).expect_err("half");
        assert!(e.contains("operation 7 is there in part"), "{e}");
        // One of its keys is already acknowledged, so all must exist.
        expected.set(0, 3, expected.slot(0, 3).done(Change::Put)).expect("set");
        let e = judged(&settings, &expected, &[(0, 3, 1)]).expect_err("half");
        assert!(e.contains("operation 7 is there in part"), "{e}");
    }
}
