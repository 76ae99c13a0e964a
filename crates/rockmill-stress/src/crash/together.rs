//! The possible states after a power cut during a step in which several threads write at once, each to its own keys.
//!
//! - For a writer with a WAL, a prefix of its complete batches: at least those that were synced and had returned, and
//!   all that had returned if only the process died.
//! - For a writer without a WAL, a prefix for each column family, or a common prefix if they are flushed together.
//! - For two writers of the same kind: if a returned batch of one is missing, no batch of the other that began later
//!   may exist, because there is one WAL, and a memtable has everything before its last update.

use std::collections::{BTreeSet, HashMap};

use crate::contents::Contents;
use crate::history::{How, Update, Writer};
use crate::kinds::{Slot, key_bytes};
use crate::model::Model;
use crate::replay::{Span, TOGETHER};

/// A step of several writers.
#[derive(Debug)]
pub(super) struct Together {
    threads: Vec<Thread>,
}

#[derive(Debug)]
struct Thread {
    how: How,
    batches: Vec<Batch>,
}

#[derive(Debug)]
struct Batch {
    updates: Vec<Update>,
    span: Span,
}

/// A cut of the power.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cut {
    /// When.
    pub point: usize,
    /// Only the process dies, and the kernel keeps everything in a WAL.
    pub keeps: bool,
    /// All column families are flushed together.
    pub atomic: bool,
}

/// Batches of which a prefix is there.
struct Strand<'a> {
    how: How,
    /// The column family that goes by itself.
    slot: Option<Slot>,
    batches: Vec<&'a Batch>,
    /// For each number of batches, whether exactly this many may exist.
    may: Vec<bool>,
    /// How many are there, at least.
    count: usize,
}

/// A column family and a key that an update changes.
fn changed(update: &Update) -> Option<(Slot, Vec<u8>)> {
    match update {
        Update::Put(slot, key, _)
        | Update::Merge(slot, key, _)
        | Update::Delete(slot, key)
        | Update::SingleDelete(slot, key) => Some((*slot, key_bytes(*key))),
        Update::DeleteRange(..) | Update::LogData(_) => None,
    }
}

impl Batch {
    /// Its changes of a column family, or of all.
    fn within(&self, slot: Option<Slot>) -> impl Iterator<Item = &Update> {
        self.updates
            .iter()
            .filter(move |update| changed(update).is_some_and(|(changed, _)| slot.is_none_or(|slot| slot == changed)))
    }
}

impl Strand<'_> {
    /// The least allowed number of batches, from this number on.
    fn least(&self, from: usize) -> Option<usize> {
        (from..self.may.len()).find(|n| self.may[*n])
    }

    fn is_like(&self, other: &Strand<'_>) -> bool {
        self.how.disable_wal == other.how.disable_wal && self.slot == other.slot
    }

    /// How many of these must exist because of another writer's existing batches.
    fn needed_by(&self, other: &Strand<'_>) -> usize {
        match other.count.checked_sub(1) {
            Some(last) if self.is_like(other) => {
                let begun = other.batches[last].span.order.0;
                self.batches.partition_point(|batch| batch.span.order.1 < begun)
            }
            _ => 0,
        }
    }
}

impl Together {
    /// For these writers, with the times of their batches.
    pub fn new(writers: &[Writer], spans: &[Vec<Span>]) -> Self {
        let thread = |(writer, spans): (&Writer, &Vec<Span>)| {
            let updates = writer.updates.chunks(TOGETHER).map(<[Update]>::to_vec);
            let batches = updates.zip(spans).map(|(updates, span)| Batch { updates, span: *span }).collect();
            Thread { how: writer.how, batches }
        };
        Self { threads: writers.iter().zip(spans).map(thread).collect() }
    }

    /// True if a synced batch had returned at this moment: everything before this step is durable.
    pub fn is_synced(&self, point: usize) -> bool {
        let synced = self.threads.iter().filter(|thread| thread.how.sync);
        synced.flat_map(|thread| &thread.batches).any(|batch| batch.span.at.1 <= point)
    }

    /// True when something has no WAL.
    pub fn is_unlogged(&self) -> bool {
        self.threads.iter().any(|thread| thread.how.disable_wal)
    }

    /// Determines which part of this step exists: returns the model with it, and whether anything exists; `None` if the
    /// contents are not allowed. `before` is the model before the step; keys for which `anything` is true are ignored.
    pub fn left(
        &self,
        contents: &Contents,
        before: &Model,
        cut: Cut,
        anything: &dyn Fn(Slot, &[u8]) -> bool,
    ) -> Vec<(Model, bool)> {
        let there: HashMap<(Slot, &[u8]), &[u8]> = contents.entries().map(|(slot, k, v)| ((slot, k), v)).collect();
        let is_there = |model: &Model, slot: Slot, key: &[u8]| {
            let wanted = model.state.get(&slot).and_then(|family| family.settled(key));
            anything(slot, key) || wanted == there.get(&(slot, key)).copied()
        };
        let mut strands: Vec<Strand<'_>> =
            self.threads.iter().flat_map(|thread| thread.strands(before, cut, &is_there)).collect();
        if !settle(&mut strands) || strands.iter().all(|strand| strand.count == strand.batches.len()) {
            return Vec::new();
        }
        let mut model = before.clone();
        for strand in &strands {
            let batches = strand.batches[..strand.count].iter();
            batches.flat_map(|batch| batch.within(strand.slot)).for_each(|update| model.update(update));
        }
        vec![(model, strands.iter().any(|strand| strand.count > 0))]
    }
}

impl Thread {
    fn strands(&self, before: &Model, cut: Cut, is_there: &dyn Fn(&Model, Slot, &[u8]) -> bool) -> Vec<Strand<'_>> {
        let updates = || self.batches.iter().flat_map(|batch| &batch.updates);
        let slots: BTreeSet<Option<Slot>> = match self.how.disable_wal && !cut.atomic {
            true => updates().filter_map(changed).map(|(slot, _)| Some(slot)).collect(),
            false => BTreeSet::from([None]),
        };
        slots.into_iter().map(|slot| self.strand(slot, before, cut, is_there)).collect()
    }

    fn strand(
        &self,
        slot: Option<Slot>,
        before: &Model,
        cut: Cut,
        is_there: &dyn Fn(&Model, Slot, &[u8]) -> bool,
    ) -> Strand<'_> {
        let batches: Vec<&Batch> = self.batches.iter().filter(|batch| batch.within(slot).next().is_some()).collect();
        let keys: BTreeSet<_> = batches.iter().flat_map(|b| b.within(slot)).filter_map(changed).collect();
        let stays = !self.how.disable_wal && (cut.keeps || self.how.sync);
        let told = if stays { batches.partition_point(|batch| batch.span.at.1 <= cut.point) } else { 0 };
        let begun = batches.partition_point(|batch| batch.span.at.0 < cut.point).max(told);
        let mut model = before.clone();
        let mut may = Vec::with_capacity(batches.len() + 1);
        for count in 0..=batches.len() {
            if let Some(batch) = count.checked_sub(1).map(|last| batches[last]) {
                batch.within(slot).for_each(|update| model.update(update));
            }
            let fits = || keys.iter().all(|(slot, key)| is_there(&model, *slot, key));
            may.push((told..=begun).contains(&count) && fits());
        }
        Strand { how: self.how, slot, batches, may, count: 0 }
    }
}

/// Finds the least allowed number of batches of each writer; false if there is none. The requirements for one writer
/// only grow with the others' batches, so no solution is missed.
fn settle(strands: &mut [Strand<'_>]) -> bool {
    loop {
        let mut changed = false;
        for n in 0..strands.len() {
            let needed = strands.iter().map(|other| strands[n].needed_by(other)).max().unwrap_or(0);
            let Some(least) = strands[n].least(needed.max(strands[n].count)) else { return false };
            changed |= std::mem::replace(&mut strands[n].count, least) != least;
        }
        if !changed {
            return true;
        }
    }
}

#[cfg(test)]
mod tests {
    use rockmill_io::MemFileSystem;

    use super::*;
    use crate::case::Case;
    use crate::configuration::Configuration;
    use crate::history::{History, Step};
    use crate::place::TestDir;
    use crate::replay::Silent;

    const BASE: &str = "create 1 merging\nwrite put:0:10=1/5";
    /// The first has two batches.
    const STEP: &str = "together by sync put:0:10=2/5 put:0:11=3/5 put:1:11=4/5 put:0:12=5/5 \
        by put:0:20=6/5 put:1:20=7/5 by no-wal put:0:30=8/5 put:1:30=9/5";

    fn steps(text: &str) -> Vec<Step> {
        text.parse::<History>().unwrap().steps
    }

    /// The step: the batches of the first writer, then of the second, then of the third, each in ten changes.
    fn step() -> Together {
        let Some(Step::Together(writers)) = steps(STEP).pop() else { panic!("no such step") };
        let span = |n: usize| Span { at: (10 * n, 10 * n + 10), order: (2 * n, 2 * n + 1) };
        Together::new(&writers, &[vec![span(0), span(1)], vec![span(2)], vec![span(3)]])
    }

    /// The allowed states at a moment at which these updates exist.
    fn left(updates: &str, point: usize, keeps: bool) -> Vec<(Model, bool)> {
        let text = if updates.is_empty() { BASE.to_owned() } else { format!("{BASE}\nwrite {updates}") };
        let place = TestDir::in_memory(&MemFileSystem::new());
        let case =
            Case { configurations: Vec::new(), ttl: false, own_wals: false, history: History { steps: steps(&text) } };
        case.run(&place, &mut Silent).unwrap();
        let contents = Contents::read(&place.open(&Configuration::default()).unwrap()).unwrap();
        let mut before = Model::new();
        steps(BASE).iter().for_each(|step| drop(before.step(step)));
        let left = step().left(&contents, &before, Cut { point, keeps, atomic: false }, &|_, _| false);
        for (model, _) in &left {
            let mut wanted = Model::new();
            steps(&text).iter().for_each(|step| drop(wanted.step(step)));
            let hashes = |model: &Model| model.state.values().map(|family| family.hash()).collect::<Vec<_>>();
            assert_eq!(hashes(model), hashes(&wanted), "{updates}");
        }
        left
    }

    const FIRST: &str = "put:0:10=2/5 put:0:11=3/5 put:1:11=4/5";
    const SECOND: &str = "put:0:12=5/5";
    const OTHER: &str = "put:0:20=6/5 put:1:20=7/5";

    #[test]
    fn what_was_synced_is_there() {
        assert!(matches!(left("", 9, false)[..], [(_, false)]));
        assert!(left("", 10, false).is_empty(), "it had returned");
        assert!(matches!(left(FIRST, 10, false)[..], [(_, true)]));
        assert!(matches!(left(FIRST, 19, false)[..], [(_, true)]));
        assert!(left(FIRST, 20, false).is_empty(), "the second had returned");
        assert!(left(&format!("{FIRST} {SECOND}"), 10, false).is_empty(), "the second had not begun");
        assert!(step().is_synced(10) && !step().is_synced(9) && step().is_unlogged());
    }

    #[test]
    fn what_has_a_wal_is_whole_and_in_order() {
        let all = format!("{FIRST} {SECOND}");
        assert_eq!(left(&all, 40, false).len(), 1, "not synced, and not there");
        assert!(left(&all, 40, true).is_empty(), "the process died alone");
        assert_eq!(left(&format!("{all} {OTHER}"), 40, true).len(), 1);
        assert!(left(&format!("{all} put:0:20=6/5"), 40, false).is_empty(), "half a batch");
        assert!(left("put:0:10=2/5", 5, false).is_empty(), "a third of one");
        assert!(left(OTHER, 9, false).is_empty(), "it had not begun");
    }

    #[test]
    fn nothing_is_there_that_began_when_what_is_not_there_had_returned() {
        // As if nobody had been synced.
        let mut step = step();
        step.threads.iter_mut().for_each(|thread| thread.how = How::default());
        let cut = Cut { point: 40, keeps: false, atomic: false };
        let fits = |counts: [usize; 3]| {
            let mut strands: Vec<_> =
                step.threads.iter().flat_map(|thread| thread.strands(&Model::new(), cut, &|_, _, _| true)).collect();
            for (strand, count) in strands.iter_mut().zip(counts) {
                strand.may.iter_mut().enumerate().for_each(|(n, may)| *may = n == count);
            }
            settle(&mut strands)
        };
        assert!(fits([0, 0, 0]) && fits([1, 0, 0]) && fits([2, 0, 0]) && fits([2, 1, 0]) && fits([2, 1, 1]));
        assert!(!fits([1, 1, 0]) && !fits([0, 1, 0]) && !fits([2, 0, 1]) && !fits([0, 0, 1]));
    }

    #[test]
    fn what_has_no_wal_goes_by_column_family() {
        let all = format!("{FIRST} {SECOND} {OTHER}");
        for some in ["", "put:0:30=8/5", "put:1:30=9/5"] {
            assert_eq!(left(&format!("{all} {some}"), 40, true).len(), 1, "{some}");
        }
        assert!(left(&format!("{all} put:0:30=8/5 put:1:30=9/5"), 40, true).is_empty(), "all of the step is there");
    }
}
