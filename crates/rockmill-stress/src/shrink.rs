//! Makes a failing case small: fewer steps, fewer and plainer configurations, simpler steps.
//!
//! 1. Steps after the failing one are removed.
//! 2. Configurations: one instead of many, each axis at its default.
//! 3. Delta debugging: removes halves of the steps, then quarters, down to single steps.
//! 4. Each step is tried in simpler forms: fewer updates, moves and bounds, smaller numbers.
//! 5. All again from 2, until nothing changes.
//!
//! The case must still fail in the same way ([`Way`]), but not necessarily at the same place.

use crate::case::Case;
use crate::configuration::Configuration;
use crate::history::{Bottom, Bounds, External, How, Key, Move, Step, Update, View, Writer};
use crate::kinds::Value;
use crate::replay::{Failure, Trouble};

/// How a case fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    /// It shows what it must not.
    Wrong,
    /// A call fails with an error of this kind.
    Failed(rockmill::ErrorKind),
    /// Something panics.
    Panicked,
    /// The test itself could not go on.
    Test,
}

impl From<&Failure> for Way {
    fn from(failure: &Failure) -> Self {
        match &failure.trouble {
            Trouble::Wrong(_) => Self::Wrong,
            Trouble::Failed(error) => Self::Failed(error.kind()),
            Trouble::Panicked(_) => Self::Panicked,
            Trouble::Test(_) => Self::Test,
        }
    }
}

/// Shrinks with a bound on tries.
pub struct Shrinker<'f> {
    /// Does a case; says how it fails.
    pub fails: &'f mut dyn FnMut(&Case) -> Option<Failure>,
    /// Cases done at most.
    pub tries_max: usize,
    /// Cases done.
    pub tries: usize,
    /// Told of each smaller case that fails.
    pub progress: &'f mut dyn FnMut(&Case, usize),
}

impl Shrinker<'_> {
    /// The smallest case found that fails like this one; `None` if this one does not fail.
    pub fn shrink(&mut self, case: &Case) -> Option<(Case, Failure)> {
        let failure = (self.fails)(case)?;
        self.tries += 1;
        let way = Way::from(&failure);
        let mut best = (case.clone(), failure);
        self.cut_tail(&mut best, &way);
        loop {
            let before = best.0.clone();
            self.plainer_configurations(&mut best, &way);
            self.fewer_steps(&mut best, &way);
            self.simpler_steps(&mut best, &way);
            if best.0 == before || self.tries >= self.tries_max {
                return Some(best);
            }
        }
    }

    /// Accepts a case if it fails in the same way.
    fn try_case(&mut self, case: Case, best: &mut (Case, Failure), way: &Way) -> bool {
        if self.tries >= self.tries_max || case == best.0 {
            return false;
        }
        self.tries += 1;
        match (self.fails)(&case) {
            Some(failure) if Way::from(&failure) == *way => {
                *best = (case, failure);
                (self.progress)(&best.0, self.tries);
                true
            }
            _ => false,
        }
    }

    fn cut_tail(&mut self, best: &mut (Case, Failure), way: &Way) {
        let mut case = best.0.clone();
        case.history.steps.truncate(best.1.step + 1);
        self.try_case(case, best, way);
    }

    fn plainer_configurations(&mut self, best: &mut (Case, Failure), way: &Way) {
        self.try_case(Case { ttl: false, ..best.0.clone() }, best, way);
        self.try_case(Case { own_wals: false, ..best.0.clone() }, best, way);
        if best.0.configurations.len() > 1 {
            let mut singles = vec![Configuration::default()];
            singles.extend(best.0.configurations.clone());
            for single in singles {
                let case = Case { configurations: vec![single], ..best.0.clone() };
                if self.try_case(case, best, way) {
                    break;
                }
            }
        }
        let mut at = 0;
        while at < best.0.configurations.len() {
            let mut case = best.0.clone();
            case.configurations.remove(at);
            if case.configurations.is_empty() || !self.try_case(case, best, way) {
                at += 1;
            }
        }
        for at in 0..best.0.configurations.len() {
            for plainer in best.0.configurations[at].plainer() {
                let mut case = best.0.clone();
                // Cases accepted since may have made this one obsolete.
                let Ok(next) = case.configurations[at].clone().with(plainer.0, plainer.1) else { continue };
                case.configurations[at] = next;
                self.try_case(case, best, way);
            }
        }
    }

    fn fewer_steps(&mut self, best: &mut (Case, Failure), way: &Way) {
        let mut size = best.0.history.steps.len().div_ceil(2).max(1);
        loop {
            // From the end, because later steps depend on earlier ones.
            let mut end = best.0.history.steps.len();
            while end > 0 {
                let start = end.saturating_sub(size);
                let mut case = best.0.clone();
                case.history.steps.drain(start..end.min(case.history.steps.len()));
                self.try_case(case, best, way);
                end = start;
            }
            if size == 1 {
                return;
            }
            size = size.div_ceil(2);
        }
    }

    fn simpler_steps(&mut self, best: &mut (Case, Failure), way: &Way) {
        let mut at = 0;
        while at < best.0.history.steps.len() {
            let simpler = simpler(&best.0.history.steps[at]);
            let mut found = false;
            for step in simpler {
                let mut case = best.0.clone();
                case.history.steps[at] = step;
                if self.try_case(case, best, way) {
                    found = true;
                    break;
                }
            }
            if !found {
                at += 1;
            }
        }
    }
}

/// The list without one part: halves first, single elements last.
fn without_parts<T: Clone>(all: &[T]) -> Vec<Vec<T>> {
    let mut out = Vec::new();
    let mut size = all.len().div_ceil(2);
    while size > 0 && all.len() > 1 {
        for start in (0..all.len()).step_by(size) {
            let mut less = all.to_vec();
            less.drain(start..(start + size).min(all.len()));
            out.push(less);
        }
        size = if size == 1 { 0 } else { size.div_ceil(2) };
    }
    out
}

/// Each element in simpler forms.
fn with_each<T: Clone>(all: &[T], simpler: impl Fn(&T) -> Vec<T>) -> Vec<Vec<T>> {
    let mut out = Vec::new();
    for (n, one) in all.iter().enumerate() {
        for other in simpler(one) {
            let mut list = all.to_vec();
            list[n] = other;
            out.push(list);
        }
    }
    out
}

fn smaller_keys(key: Key) -> Vec<Key> {
    // Keys from 4 on are regular; those before are unusual.
    if key <= 4 { Vec::new() } else { [4, 4 + (key - 4) / 2, key - 1].into_iter().filter(|k| *k < key).collect() }
}

fn smaller_values(value: Value) -> Vec<Value> {
    let mut out = Vec::new();
    if value.len > 0 {
        out.push(Value { len: 0, ..value });
        out.push(Value { len: value.len / 2, ..value });
    }
    if value.seed > 7 {
        // A filter's decision depends on the seed's last two bits.
        out.push(Value { seed: 4 + value.seed % 4, ..value });
    }
    out
}

fn simpler_update(update: &Update) -> Vec<Update> {
    let keys = |key: Key, make: &dyn Fn(Key) -> Update| smaller_keys(key).into_iter().map(make).collect::<Vec<_>>();
    let values = |v: Value, make: &dyn Fn(Value) -> Update| smaller_values(v).into_iter().map(make).collect::<Vec<_>>();
    match *update {
        Update::Put(slot, key, v) => {
            let mut all = values(v, &|v| Update::Put(slot, key, v));
            all.extend(keys(key, &|key| Update::Put(slot, key, v)));
            all
        }
        Update::Merge(slot, key, v) => {
            let mut all = values(v, &|v| Update::Merge(slot, key, v));
            all.extend(keys(key, &|key| Update::Merge(slot, key, v)));
            all.push(Update::Put(slot, key, v));
            all
        }
        Update::Delete(slot, key) => keys(key, &|key| Update::Delete(slot, key)),
        Update::SingleDelete(slot, key) => keys(key, &|key| Update::SingleDelete(slot, key)),
        Update::DeleteRange(slot, from, to) => {
            let mut all = keys(from, &|from| Update::DeleteRange(slot, from, to));
            all.extend(keys(to, &|to| Update::DeleteRange(slot, from, to)));
            all
        }
        Update::LogData(_) => Vec::new(),
    }
}

fn simpler_move(to: &Move) -> Vec<Move> {
    match *to {
        Move::First | Move::Last => Vec::new(),
        Move::Seek(key) => {
            let mut all = vec![Move::First];
            all.extend(smaller_keys(key).into_iter().map(Move::Seek));
            all
        }
        Move::SeekForPrev(key) => {
            let mut all = vec![Move::Last];
            all.extend(smaller_keys(key).into_iter().map(Move::SeekForPrev));
            all
        }
        Move::Next(n) if n > 1 => vec![Move::Next(1), Move::Next(n - 1)],
        Move::Prev(n) if n > 1 => vec![Move::Prev(1), Move::Prev(n - 1)],
        Move::Next(_) | Move::Prev(_) => Vec::new(),
    }
}

fn simpler_bounds(bounds: &Bounds) -> Vec<Bounds> {
    let mut out = Vec::new();
    if *bounds != Bounds::default() {
        out.push(Bounds::default());
        out.push(Bounds { lower: None, ..*bounds });
        out.push(Bounds { upper: None, ..*bounds });
        out.push(Bounds { prefix: None, ..*bounds });
        out.push(Bounds { auto_prefix: false, readahead: 0, ..*bounds });
    }
    out.retain(|b| b != bounds);
    out
}

fn simpler_files(files: &[External]) -> Vec<Vec<External>> {
    let mut out = without_parts(files);
    out.extend(with_each(files, |file| {
        let mut all = Vec::new();
        if file.range.is_some() {
            all.push(External { range: None, ..file.clone() });
        }
        let mut updates = without_parts(&file.updates);
        updates.extend(with_each(&file.updates, simpler_update));
        all.extend(updates.into_iter().map(|updates| External { updates, ..file.clone() }));
        all
    }));
    out
}

/// Simpler forms of a step, the simplest first.
fn simpler(step: &Step) -> Vec<Step> {
    let mut out: Vec<Step> = Vec::new();
    let now = View::default();
    match step {
        Step::Write(how, updates) => {
            out.extend(without_parts(updates).into_iter().map(|u| Step::Write(*how, u)));
            let plain = How::default();
            for how in [plain, How { disable_wal: how.disable_wal, ..plain }] {
                out.push(Step::Write(how, updates.clone()));
            }
            out.extend(with_each(updates, simpler_update).into_iter().map(|u| Step::Write(*how, u)));
        }
        Step::Together(writers) => {
            out.extend(without_parts(writers).into_iter().map(Step::Together));
            let fewer = with_each(writers, |writer| {
                let Writer { how, updates } = writer;
                let mut all = Vec::new();
                if *how != How::default() {
                    all.push(Writer { how: How::default(), updates: updates.clone() });
                }
                let mut less = without_parts(updates);
                less.extend(with_each(updates, simpler_update));
                all.extend(less.into_iter().map(|updates| Writer { how: *how, updates }));
                all
            });
            out.extend(fewer.into_iter().map(Step::Together));
            let one = writers.iter().flat_map(|writer| writer.updates.clone()).collect();
            out.push(Step::Write(How::default(), one));
        }
        Step::Get(slot, key, view) => {
            out.push(Step::Get(*slot, *key, now));
            out.extend(smaller_keys(*key).into_iter().map(|key| Step::Get(*slot, key, *view)));
        }
        Step::MultiGet(view, keys) => {
            out.push(Step::MultiGet(now, keys.clone()));
            out.extend(without_parts(keys).into_iter().map(|keys| Step::MultiGet(*view, keys)));
        }
        Step::Walk(slot, view, bounds, moves) => {
            out.push(Step::Walk(*slot, now, *bounds, moves.clone()));
            out.extend(simpler_bounds(bounds).into_iter().map(|b| Step::Walk(*slot, *view, b, moves.clone())));
            let mut less = without_parts(moves);
            less.extend(with_each(moves, simpler_move));
            out.extend(less.into_iter().map(|moves| Step::Walk(*slot, *view, *bounds, moves)));
        }
        Step::Iterator(id, slot, bounds) => {
            out.extend(simpler_bounds(bounds).into_iter().map(|b| Step::Iterator(*id, *slot, b)));
        }
        Step::Move(id, moves) => {
            let mut less = without_parts(moves);
            less.extend(with_each(moves, simpler_move));
            out.extend(less.into_iter().map(|moves| Step::Move(*id, moves)));
        }
        Step::Flush(slots, wait) => {
            out.extend(without_parts(slots).into_iter().map(|slots| Step::Flush(slots, *wait)));
            out.push(Step::Flush(slots.clone(), true));
        }
        Step::Compact(slot, from, to, bottom, exclusive) => {
            out.push(Step::Compact(*slot, None, None, Bottom::default(), false));
            out.push(Step::Compact(*slot, None, *to, *bottom, *exclusive));
            out.push(Step::Compact(*slot, *from, None, *bottom, *exclusive));
            out.push(Step::Compact(*slot, *from, *to, Bottom::default(), *exclusive));
            out.push(Step::Compact(*slot, *from, *to, *bottom, false));
        }
        Step::Ingest(moved, files) => {
            out.push(Step::Ingest(false, files.clone()));
            out.extend(simpler_files(files).into_iter().map(|files| Step::Ingest(*moved, files)));
        }
        Step::Behind(files) => out.extend(simpler_files(files).into_iter().map(Step::Behind)),
        Step::SamePrefix(slot, view, bounds, moves) => {
            out.push(Step::SamePrefix(*slot, now, *bounds, moves.clone()));
            out.extend(simpler_bounds(bounds).into_iter().map(|b| Step::SamePrefix(*slot, *view, b, moves.clone())));
            let less = without_parts(moves);
            out.extend(less.into_iter().map(|moves| Step::SamePrefix(*slot, *view, *bounds, moves)));
        }
        Step::Copy(from, to, true) => out.push(Step::Copy(*from, *to, false)),
        Step::Reopen(_) => out.push(Step::Reopen(crate::history::Reopen::Same)),
        _ => {}
    }
    out.retain(|other| other != step);
    out
}
