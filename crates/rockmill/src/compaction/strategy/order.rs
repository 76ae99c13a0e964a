//! Which jobs may run at the same time, and which must commit before which.
//!
//! *Depth* says where a sorted run lies: files of L0 from the newest on, then of each level its extra runs from the
//! newest on and its base run. For one user key, smaller depths have newer data. A job takes files from some depths and
//! writes to one that is not shallower than any of them. It keeps the invariant if it leaves nothing older behind. That
//! is so if each file between its inputs and its output that shares keys with a shallower input
//!
//! - is an input too, or
//! - is an input of a running job whose output lies deeper than this one's: then that job must commit first, and this
//!   one *needs* it.
//!
//! No other rule is needed for the order of commits. Say jobs J and Q run, neither needs the other, and they share
//! keys. If Q's data is newer, J's inputs lie deeper than Q's output (otherwise Q would have left them behind), and J
//! moves them deeper still. So newer data stays above older data whichever commits first, and even if the other one
//! never commits. Two jobs that write to the same run must not share keys, because tables of a run do not overlap: the
//! second has to start later, or write to a run of its own.

use std::collections::HashSet;
use std::sync::Arc;

use rockmill_format::{InternalKey, InternalKeyComparator};

use super::inputs::{Files, compare_boundaries, overlapping_of_run};
use super::{Running, RunningCompactions};
use crate::sync::atomic::Ordering as Atomic;
use crate::version::{FileMeta, SortedRun, Version};

/// The position of a run; larger is deeper, and older for one user key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Depth {
    level: usize,
    /// In L0 the place of the file, which is a run of its own; in deeper levels the complement of the run's id.
    age: u64,
}

impl Depth {
    /// Of a run of a level below L0.
    pub(super) fn of_run(level: usize, run: u64) -> Self {
        Self { level, age: !run }
    }
}

/// A range of keys, widened as files are added. If a file ends with the exclusive end of a range tombstone, a file that
/// begins at that key shares no key with it.
struct Range<'v> {
    version: &'v Version,
    bounds: Option<(&'v InternalKey, &'v InternalKey)>,
}

impl<'v> Range<'v> {
    fn add(&mut self, f: &'v FileMeta) {
        let compare = |a, b| compare_boundaries(&self.version.cmp, a, b);
        let (s, l) = (&f.entry.smallest, &f.entry.largest);
        self.bounds = Some(match self.bounds {
            None => (s, l),
            Some((a, b)) => (if compare(s, a).is_lt() { s } else { a }, if compare(l, b).is_gt() { l } else { b }),
        });
    }

    /// Files of a sorted run that share keys with it.
    fn within<'p>(&self, place: &SortedRun<'p>) -> &'p [Arc<FileMeta>] {
        let Some((s, l)) = self.bounds else { return &[] };
        overlapping_of_run(&self.version.cmp, place.files, Some(s), Some(l))
    }
}

impl Running {
    fn depth(&self) -> Depth {
        // The position of an output in L0 does not matter: it is never deeper than what another job writes.
        if self.output_level == 0 {
            Depth { level: 0, age: 0 }
        } else {
            Depth::of_run(self.output_level, self.output_run)
        }
    }
}

impl RunningCompactions {
    /// The running jobs that must commit before a job with these inputs and this output. `None`: it must not run now,
    /// because it would leave older data above its output, or write where another job does.
    pub(super) fn depends_on<'v>(
        &self,
        version: &'v Version,
        inputs: &'v [(usize, Files)],
        output_level: usize,
        output_run: u64,
    ) -> Option<Vec<u64>> {
        self.depends_on_beside(version, inputs, output_level, output_run, &[])
    }

    /// The same for a job that replaces the running ones with these numbers, and has their inputs.
    pub(super) fn depends_on_beside(
        &self,
        version: &Version,
        inputs: &[(usize, Files)],
        output_level: usize,
        output_run: u64,
        itself: &[u64],
    ) -> Option<Vec<u64>> {
        let taken: HashSet<u64> = inputs.iter().flat_map(|(_, files)| files).map(|f| f.number()).collect();
        let l0 = version.levels.first().map_or(&[][..], |l| &l.base);
        let output = match output_level {
            0 => Depth { level: 0, age: l0.iter().rposition(|f| taken.contains(&f.number()))? as u64 },
            level => Depth::of_run(level, output_run),
        };
        let mut depends_on = Vec::new();
        let mut range = Range { version, bounds: None };
        for (rank, place) in version.sorted_runs().enumerate() {
            let here = match place.level {
                0 => Depth { level: 0, age: rank as u64 },
                level => Depth::of_run(level, place.run),
            };
            if here > output {
                break;
            }
            let inside = |f: &&Arc<FileMeta>| !taken.contains(&f.number());
            if here < output {
                self.gone_by_then(range.within(&place).iter().filter(inside), output, &mut depends_on)?;
            }
            match place.files {
                [f] if place.level == 0 && taken.contains(&f.number()) => range.add(f),
                _ if place.level == 0 => {}
                _ => {
                    let of_place = |f: &&Arc<FileMeta>| f.entry.extra_run == place.run;
                    let level = inputs.iter().filter(|(level, _)| *level == place.level);
                    level.flat_map(|(_, files)| files).filter(of_place).for_each(|f| range.add(f));
                }
            }
            if here == output {
                // Tables of a run must not overlap, even if an output bridges a gap between inputs.
                self.gone_by_then(range.within(&place).iter().filter(inside), output, &mut depends_on)?;
            }
        }
        let (smallest, largest) = range.bounds.map(|(s, l)| (s.user_key(), l.user_key()))?;
        let crosses = |r: &Running| {
            let same_run = r.output_level == output_level && r.output_run == output_run;
            output_level > 0 && (same_run || r.shuts(output_level)) && r.touches(&version.cmp, smallest, largest)
        };
        if self.running.iter().filter(|r| !itself.contains(&r.number)).any(crosses) {
            return None;
        }
        depends_on.sort_unstable();
        depends_on.dedup();
        Some(depends_on)
    }

    /// Adds the jobs that will have taken `files` deeper than `output`; `None` if one of them stays.
    fn gone_by_then<'f>(
        &self,
        files: impl Iterator<Item = &'f Arc<FileMeta>>,
        output: Depth,
        depends_on: &mut Vec<u64>,
    ) -> Option<()> {
        for f in files {
            depends_on.push(self.taker(f).filter(|r| r.depth() > output)?.number);
        }
        Some(())
    }

    /// The running job that has a file as input.
    fn taker(&self, f: &FileMeta) -> Option<&Running> {
        if !f.being_compacted.load(Atomic::Acquire) {
            return None;
        }
        // The last one, because a file that moved may be input to the next job before the first one has ended.
        self.running.iter().rfind(|r| r.inputs.contains(&f.number()))
    }

    /// True when a running job takes the file deeper than into this run.
    pub(super) fn leaves_for_below(&self, f: &FileMeta, level: usize, run: u64) -> bool {
        self.taker(f).is_some_and(|r| r.depth() > Depth::of_run(level, run))
    }

    /// True when a running job takes the file of an extra run into the base run of its level, or deeper.
    pub(super) fn leaves_extra_runs(&self, f: &FileMeta, level: usize) -> bool {
        self.taker(f).is_some_and(|r| r.depth() >= Depth::of_run(level, 0))
    }

    /// Ids of the extra runs of a level that running jobs will write between these keys.
    pub(super) fn runs_to_come<'r>(
        &'r self,
        cmp: &'r InternalKeyComparator,
        level: usize,
        begin: &'r [u8],
        end: &'r [u8],
    ) -> impl Iterator<Item = u64> + 'r {
        let touched = move |r: &&Running| {
            cmp.compare_user(&r.largest, begin).is_ge() && cmp.compare_user(&r.smallest, end).is_le()
        };
        let runs = self.running.iter().filter(move |r| r.output_level == level && r.output_run > 0);
        runs.filter(touched).map(|r| r.output_run)
    }

    /// The largest id of the extra runs of a level that running jobs will write; 0 without any.
    pub(super) fn newest_run_to_come(&self, level: usize) -> u64 {
        self.running.iter().filter(|r| r.output_level == level).map(|r| r.output_run).max().unwrap_or(0)
    }

    /// True while a running job will write an extra run.
    pub fn writes_extra_runs(&self) -> bool {
        self.running.iter().any(|r| r.output_run > 0)
    }

    /// Extra runs of a level that running jobs will write, and that `live` does not name.
    pub(super) fn new_runs_to_come(&self, level: usize, live: impl Fn(u64) -> bool) -> usize {
        let runs = self.running.iter().filter(|r| r.output_level == level && r.output_run > 0).map(|r| r.output_run);
        runs.filter(|run| !live(*run)).collect::<HashSet<_>>().len()
    }

    /// True while a running job starts in `level`, whether it writes deeper or not.
    pub(super) fn begins_in(&self, level: usize) -> bool {
        self.running.iter().any(|r| r.start_level == level)
    }

    /// True while a running job reads `level` and writes deeper.
    pub(super) fn leaves_level(&self, level: usize) -> bool {
        self.running.iter().any(|r| r.start_level == level && r.output_level > level)
    }
}
