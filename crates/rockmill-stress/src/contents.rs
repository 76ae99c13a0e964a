//! The contents of a database, and their comparison with a model.

use std::collections::BTreeMap;
use std::fmt;

use rockmill::{AsColumnFamilyRef, Db, IteratorMode, ReadOptions};

use crate::history::Step;
use crate::kinds::{Kind, Slot, family_name, key_bytes, named_family};
use crate::model::{Family, Model, Pairs, State, hash_of};

/// Something that a database shows and should not, or vice versa.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The column family, or other place.
    pub place: String,
    /// What is wrong there.
    pub what: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}

impl Difference {
    pub(crate) fn new(place: impl Into<String>, what: impl Into<String>) -> Self {
        Self { place: place.into(), what: what.into() }
    }

    fn failed(place: &str, error: &rockmill::Error) -> Self {
        Self::new(place, format!("cannot be read: {error}"))
    }
}

/// Bytes for people, not too many.
pub(crate) fn shown(bytes: &[u8]) -> String {
    const MAX: usize = 48;
    let cut = if bytes.len() > MAX { format!("... ({} bytes)", bytes.len()) } else { String::new() };
    format!("{}{cut}", bytes[..bytes.len().min(MAX)].escape_ascii())
}

fn item(entry: Option<(&[u8], &[u8])>) -> String {
    entry.map_or_else(|| "the end".to_owned(), |(k, v)| format!("{}={}", shown(k), shown(v)))
}

/// Compares entries with the expected ones.
pub(crate) fn same(place: &str, got: &[(Vec<u8>, Vec<u8>)], want: &[(&[u8], &[u8])]) -> Result<(), Difference> {
    let got_at = |n: usize| got.get(n).map(|(k, v)| (&**k, &**v));
    let want_at = |n: usize| want.get(n).copied();
    match (0..got.len().max(want.len())).find(|&n| got_at(n) != want_at(n)) {
        None => Ok(()),
        Some(n) => {
            let (g, w) = (item(got_at(n)), item(want_at(n)));
            let counts = format!("{} entries of {}", got.len(), want.len());
            Err(Difference::new(place, format!("entry {n} is {g}, must be {w} ({counts})")))
        }
    }
}

/// All entries of a column family in one direction, without those that a filter may have removed. `read` may have a
/// snapshot.
pub(crate) fn scan(
    db: &Db,
    cf: &impl AsColumnFamilyRef,
    kind: Kind,
    read: Option<&ReadOptions>,
    mode: IteratorMode<'_>,
) -> Result<Pairs, rockmill::Error> {
    let mut options = read.cloned().unwrap_or_default();
    options.set_total_order_seek(true);
    let mut out = Vec::new();
    for entry in db.iterator_cf_opt(cf, options, mode) {
        let (key, value) = entry?;
        if let Some(value) = kind.settled(&value) {
            out.push((key.to_vec(), value.to_vec()));
        }
    }
    Ok(out)
}

/// True if a database has the right contents in these column families, in both directions. Others may exist.
pub(crate) fn matches_state(db: &Db, state: &State, read: Option<&ReadOptions>, what: &str) -> Result<(), Difference> {
    for (&slot, family) in state {
        let name = family_name(slot, family.kind);
        let place = format!("{what}column family {name}");
        let Some(cf) = db.cf_handle(&name) else { return Err(Difference::new(place, "is missing")) };
        let want = family.sorted();
        let failed = |e: rockmill::Error| Difference::failed(&place, &e);
        let got = scan(db, &cf, family.kind, read, IteratorMode::Start).map_err(failed)?;
        same(&place, &got, &want)?;
        let mut got = scan(db, &cf, family.kind, read, IteratorMode::End).map_err(failed)?;
        got.reverse();
        same(&format!("{place}, backward"), &got, &want)?;
    }
    Ok(())
}

/// Checks that a database equals a model: the same column families, and the same entries in both directions.
///
/// # Errors
/// The first difference.
pub fn matches(db: &Db, model: &Model) -> Result<(), Difference> {
    let want: Vec<String> = {
        let mut names: Vec<_> = model.state.iter().map(|(&slot, family)| family_name(slot, family.kind)).collect();
        names.sort();
        names
    };
    let got = db.cf_names();
    if got != want {
        return Err(Difference::new("column families", format!("are {got:?}, must be {want:?}")));
    }
    matches_state(db, &model.state, None, "")
}

/// Everything that a database shows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Contents {
    /// By slot: the kind, the entries in order, their hash.
    families: BTreeMap<Slot, (Kind, Pairs, u64)>,
}

impl Contents {
    /// Reads it all, in both directions, which must agree.
    ///
    /// # Errors
    /// A read fails, or the directions differ.
    pub fn read(db: &Db) -> Result<Self, Difference> {
        let mut families = BTreeMap::new();
        for name in db.cf_names() {
            let place = format!("column family {name}");
            let Some((slot, kind)) = named_family(&name) else {
                return Err(Difference::new(place, "is none that a history makes"));
            };
            let Some(cf) = db.cf_handle(&name) else { continue };
            let failed = |e: rockmill::Error| Difference::failed(&place, &e);
            let entries = scan(db, &cf, kind, None, IteratorMode::Start).map_err(failed)?;
            let mut backward = scan(db, &cf, kind, None, IteratorMode::End).map_err(failed)?;
            backward.reverse();
            let borrowed: Vec<_> = entries.iter().map(|(k, v)| (&**k, &**v)).collect();
            same(&format!("{place}, backward"), &backward, &borrowed)?;
            let hash = hash_of(kind, borrowed);
            families.insert(slot, (kind, entries, hash));
        }
        Ok(Self { families })
    }

    /// The hash of the entries of a slot's column family, if it exists; the same as [`Family::hash`].
    pub(crate) fn hash(&self, slot: Slot) -> Option<u64> {
        self.families.get(&slot).map(|(_, _, hash)| *hash)
    }

    /// All entries, by column family.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (Slot, &[u8], &[u8])> {
        self.families.iter().flat_map(|(slot, (_, entries, _))| entries.iter().map(|(k, v)| (*slot, &**k, &**v)))
    }

    /// A description of the first difference from another database's contents.
    pub fn compare(&self, other: &Contents) -> String {
        for (slot, (kind, want, _)) in &self.families {
            let place = format!("column family {}", family_name(*slot, *kind));
            let Some((_, got, _)) = other.families.get(slot) else { return format!("{place} is missing") };
            let want: Vec<_> = want.iter().map(|(k, v)| (&**k, &**v)).collect();
            if let Err(difference) = same(&place, got, &want) {
                return difference.to_string();
            }
        }
        format!("there are {} column families, must be {}", other.families.len(), self.families.len())
    }

    fn is(&self, slot: Slot, family: &Family) -> bool {
        self.families.get(&slot).is_some_and(|(kind, _, hash)| *kind == family.kind && *hash == family.hash())
    }

    /// A description of the first difference from a state.
    fn difference(&self, state: &State) -> Difference {
        for (&slot, family) in state {
            let place = format!("column family {}", family_name(slot, family.kind));
            let Some((_, entries, _)) = self.families.get(&slot) else { return Difference::new(place, "is missing") };
            if let Err(difference) = same(&place, entries, &family.sorted()) {
                return difference;
            }
        }
        match self.families.keys().find(|slot| !state.contains_key(slot)) {
            Some(extra) => Difference::new("column families", format!("number {extra} should not be there")),
            None => Difference::new("all", "is as it was at a moment that is over, or had not come"),
        }
    }

    /// Finds the state that a database shows after a crash: the state after `done` of the steps, with `durable <= done
    /// <= started`. `base` is the state before the first of `steps`.
    ///
    /// Column families are created and dropped durably at the end of their step, whatever happens to earlier unsynced
    /// writes: one that is created (or imported) later may exist in its initial state, and one that is dropped later
    /// may be missing. The same holds for tables deleted by range: any contents are allowed within the range then, and
    /// the returned model has what was found.
    ///
    /// # Errors
    /// The difference from the most similar state.
    pub fn find(
        &self,
        base: &Model,
        steps: &[Step],
        durable: usize,
        started: usize,
    ) -> Result<(usize, Model), Difference> {
        self.find_partly(base, steps, durable, started, |_, _, _| None).map(|(done, model, _)| (done, model))
    }

    /// The same, if some steps may exist partly. For each begun step, `part` gets its number, the model before it, and
    /// a function that tells whether any contents are allowed for a key. For a step that may be partial, it returns the
    /// allowed partial states; the result for the found state is returned.
    ///
    /// # Errors
    /// The difference from the most similar state.
    pub fn find_partly(
        &self,
        base: &Model,
        steps: &[Step],
        durable: usize,
        started: usize,
        part: impl Fn(usize, &Model, &dyn Fn(Slot, &[u8]) -> bool) -> Option<Vec<(Model, bool)>>,
    ) -> Result<(usize, Model, bool), Difference> {
        let started = started.min(steps.len());
        let mut model = base.clone();
        steps.iter().take(durable).for_each(|step| drop(model.step(step)));
        // The changes of column families in between.
        let first = model.clone();
        let torn: Vec<(usize, Slot, Vec<u8>, Vec<u8>)> = steps[..started]
            .iter()
            .enumerate()
            .skip(durable)
            .filter_map(|(n, step)| match step {
                Step::DeleteFiles(slot, a, b) => {
                    let (a, b) = (key_bytes(*a), key_bytes(*b));
                    Some((n + 1, *slot, a.clone().min(b.clone()), a.max(b)))
                }
                _ => None,
            })
            .collect();
        let mut born: Vec<(usize, Slot, std::sync::Arc<Family>)> = Vec::new();
        let mut gone: Vec<(usize, Slot)> = Vec::new();
        let mut ahead = model.clone();
        for (n, step) in steps.iter().enumerate().take(started).skip(durable) {
            let before = ahead.state.clone();
            ahead.step(step);
            for (&slot, family) in &ahead.state {
                if before.get(&slot).is_none_or(|old| old.born != family.born) {
                    born.push((n + 1, slot, std::sync::Arc::clone(family)));
                }
            }
            let left = before.keys().filter(|slot| !ahead.state.contains_key(slot));
            gone.extend(left.map(|&slot| (n + 1, slot)));
        }
        let mut nearest: Option<(usize, usize, Model)> = None;
        for done in durable..=started {
            if done > durable {
                model.step(&steps[done - 1]);
            }
            let anything = |slot: Slot, key: &[u8]| {
                let within = |low: &[u8], high: &[u8]| low <= key && key <= high;
                gone.iter().any(|&(at, s)| at > done && s == slot)
                    || torn.iter().any(|(at, s, low, high)| *at > done && *s == slot && within(low, high))
            };
            let parts = if done < started { part(done, &model, &anything) } else { None };
            for (mut model, is_part) in parts.unwrap_or_else(|| vec![(model.clone(), false)]) {
                for (_, slot, low, high) in torn.iter().filter(|(at, ..)| *at > done) {
                    if let (Some(family), Some((_, entries, _))) = (model.state.get_mut(slot), self.families.get(slot))
                        && family.kind.deletes_ranges()
                    {
                        std::sync::Arc::make_mut(family).adopt(low, high, entries);
                    }
                }
                let wrong_there = model.state.iter().filter(|&(&slot, family)| {
                    !self.is(slot, family)
                        && !(gone.iter().any(|&(at, s)| s == slot && at > done)
                            && (!self.families.contains_key(&slot)
                                || born.iter().any(|(at, s, f)| *s == slot && *at > done && self.is(slot, f))))
                });
                let wrong_extra = self.families.keys().filter(|slot| {
                    !model.state.contains_key(slot)
                        && !born.iter().any(|(at, s, f)| s == *slot && *at > done && self.is(*s, f))
                });
                let wrong = wrong_there.count() + wrong_extra.count();
                if wrong == 0 {
                    return Ok((done, model, is_part));
                }
                if nearest.as_ref().is_none_or(|(least, ..)| wrong < *least) {
                    nearest = Some((wrong, done, model));
                }
            }
        }
        let (_, done, state) = nearest.unwrap_or((0, durable, first));
        let mut difference = self.difference(&state.state);
        difference.what += &format!(
            "; no state after {durable} (durable) to {started} (begun) steps is what is there, the nearest is after \
             {done}"
        );
        Err(difference)
    }

    /// Finds a state for each column family separately: without a WAL, each has its flushed data, and they are flushed
    /// at different times. `base` is the state before the first of `steps`.
    ///
    /// # Errors
    /// The first column family whose contents match no state between `durable` and `started`.
    pub fn find_each(&self, base: &Model, steps: &[Step], started: usize) -> Result<(), Difference> {
        let mut model = base.clone();
        let mut states = vec![model.state.clone()];
        for step in &steps[..started.min(steps.len())] {
            model.step(step);
            states.push(model.state.clone());
        }
        let slots = self.families.keys().chain(states.iter().flat_map(|state| state.keys()));
        for slot in slots.copied().collect::<std::collections::BTreeSet<Slot>>() {
            let fits = |state: &State| match state.get(&slot) {
                Some(family) => self.is(slot, family),
                None => !self.families.contains_key(&slot),
            };
            if !states.iter().any(fits) {
                let mut difference = match states[0].get(&slot) {
                    Some(family) => self.difference(&State::from([(slot, std::sync::Arc::clone(family))])),
                    None => Difference::new(format!("column family {slot}"), "is not as it ever was"),
                };
                difference.what += &format!("; it shows none of {} moments, this was the first", states.len());
                return Err(difference);
            }
        }
        Ok(())
    }

    /// The model to continue with: `found` with later created and dropped column families.
    pub fn settle(&self, found: &Model, steps: &[Step], done: usize, started: usize) -> Model {
        let mut model = found.clone();
        let mut ahead = found.clone();
        for step in steps.iter().take(started).skip(done) {
            let before = ahead.state.clone();
            ahead.step(step);
            for (&slot, family) in &ahead.state {
                let born = before.get(&slot).is_none_or(|old| old.born != family.born);
                // It may have replaced a dropped one.
                let taken = model.state.get(&slot).is_some_and(|there| self.is(slot, there));
                if born && !taken && self.is(slot, family) {
                    model.state.insert(slot, std::sync::Arc::clone(family));
                }
            }
        }
        model.state.retain(|slot, _| self.families.contains_key(slot));
        model.closed();
        model
    }
}

#[cfg(test)]
mod tests {
    use rockmill_io::MemFileSystem;

    use super::*;
    use crate::case::Case;
    use crate::history::History;
    use crate::place::TestDir;
    use crate::replay::Silent;

    const STEPS: &str = "create 1 merging\n\
        write put:0:10=1/5 merge:1:10=2/3\n\
        write delete:0:10 put:0:11=3/4\n\
        create 6 plain\n\
        write put:6:10=4/4\n\
        drop 1\n\
        write put:0:12=5/5\n";

    fn steps(text: &str) -> Vec<Step> {
        text.parse::<History>().unwrap().steps
    }

    /// What a database shows after these steps.
    fn after(steps: &[Step]) -> Contents {
        let place = TestDir::in_memory(&MemFileSystem::new());
        let case = Case {
            configurations: Vec::new(),
            ttl: false,
            own_wals: false,
            history: History { steps: steps.to_vec() },
        };
        case.run(&place, &mut Silent).unwrap();
        Contents::read(&place.open(&crate::configuration::Configuration::default()).unwrap()).unwrap()
    }

    #[test]
    fn each_moment_is_found_and_no_older_one_than_is_durable() {
        let all = steps(STEPS);
        for done in 0..=all.len() {
            let contents = after(&all[..done]);
            let (found, model) = contents.find(&Model::new(), &all, 0, all.len()).unwrap();
            let goes_on = contents.settle(&model, &all, found, all.len());
            assert!(found <= done && goes_on.state.len() == contents.families.len(), "{found} for {done}");
            assert!(goes_on.state.iter().all(|(&slot, family)| contents.is(slot, family)), "{found} for {done}");
            assert_eq!(contents.find(&Model::new(), &all, done, done).unwrap().0, done);
            if matches!(all.get(done), Some(Step::Write(..))) {
                // The write is durable and not there.
                let e = contents.find(&Model::new(), &all, done + 1, all.len()).unwrap_err();
                assert!(e.what.contains("durable"), "{e}");
            }
        }
    }

    #[test]
    fn a_batch_in_half_is_no_moment() {
        let all = steps(STEPS);
        let mut half = all.clone();
        half[1] = "write put:0:10=1/5".parse().unwrap();
        let e = after(&half[..2]).find(&Model::new(), &all, 0, all.len()).unwrap_err();
        assert!(e.to_string().contains("column family"), "{e}");
    }

    #[test]
    fn a_later_write_without_an_earlier_one_is_no_moment() {
        let all = steps(STEPS);
        let mut holes = all.clone();
        holes.remove(2);
        assert!(after(&holes).find(&Model::new(), &all, 0, all.len()).is_err());
    }

    #[test]
    fn column_families_come_and_go_durably_whatever_is_lost_before() {
        let all = steps(STEPS);
        // Nothing was written, but column family 6 was created, and 1 was dropped.
        let odd = steps("create 6 plain");
        let contents = after(&odd);
        let (found, model) = contents.find(&Model::new(), &all, 0, all.len()).unwrap();
        assert!(found <= 1, "{found}");
        let goes_on = contents.settle(&model, &all, found, all.len());
        assert_eq!(goes_on.state.keys().copied().collect::<Vec<_>>(), [0, 6]);
        // Not before its creation was begun, and not with contents that it never had.
        assert!(contents.find(&Model::new(), &all, 0, 3).is_err());
        let odd = steps("create 6 plain\nwrite put:6:11=9/9");
        assert!(after(&odd).find(&Model::new(), &all, 0, all.len()).is_err());
    }
}
