//! Intra-DF compaction: merges the outputs of finished jobs that may not commit yet.
//!
//! While one job takes long, the jobs that need it finish one after another and wait. When it commits, so do they, and
//! all their extra runs become live at once. The bound on a level's runs (`df::runs_max`) counts them even before that,
//! and when it is reached, nothing leaves the level above. So if as many of them as make a merge due (`df::runs_due`)
//! have keys in common, they are merged into one run, which commits in their place.
//!
//! *Which may be merged.* The merged run is what a single job with the inputs of all of them would have written into
//! the oldest one's run. So the rule of `order.rs`, applied to these inputs, says whether that is allowed: no newer
//! data, live or of another job, may come to lie below it. What another job waits for is then at least as deep as it
//! was.
//!
//! *What it may drop.* There is older data of its keys below its parts, and in the jobs that they wait for, so no
//! tombstone is dropped.

use std::collections::HashSet;
use std::sync::Arc;

use super::df::runs_due;
use super::inputs::{Files, Picker, key_range, total_bytes};
use super::{Running, RunningCompactions};
use crate::compaction::Compaction;
use crate::event_listener::CompactionReason;
use crate::options::CfOptions;
use crate::version::{FileMeta, Version};

/// The output of a finished job, or of several that were merged, that may not commit yet.
#[derive(Debug, Clone)]
pub struct PendingRun {
    /// The number of the job.
    pub number: u64,
    /// The jobs that it needs.
    pub depends_on: Vec<u64>,
    /// Inputs of the job; of all jobs if several were merged.
    pub inputs: Vec<(usize, Files)>,
    /// Where its tables go.
    pub level: usize,
    /// The extra run of that level.
    pub run: u64,
    /// Its tables, by key: durable, and not live.
    pub tables: Files,
}

/// Runs that are to become one.
#[derive(Debug)]
pub struct IntraDf {
    /// The jobs, by number.
    pub numbers: Vec<u64>,
    /// The merge: its inputs are tables that are not live.
    pub compaction: Compaction,
    /// Its place in the order of issue, from [`RunningCompactions::start_merge`] on.
    number: u64,
    /// Keys of the jobs' inputs and tables.
    smallest: Vec<u8>,
    largest: Vec<u8>,
}

/// Chooses pending runs to be merged, if enough runs of a level have keys in common. The caller registers it with
/// [`RunningCompactions::start_merge`] before anything else is picked.
pub fn pick(
    version: &Arc<Version>,
    options: &CfOptions,
    running: &RunningCompactions,
    pending: &[PendingRun],
) -> Option<IntraDf> {
    pick_of(version, options, running, pending, runs_due(options))
}

/// The same for at least `due` runs.
pub fn pick_of(
    version: &Arc<Version>,
    options: &CfOptions,
    running: &RunningCompactions,
    pending: &[PendingRun],
    due: usize,
) -> Option<IntraDf> {
    let due = due.max(2);
    if pending.len() < due {
        return None;
    }
    let picker = Picker::new(version, options, running);
    let mut levels: Vec<usize> = pending.iter().map(|p| p.level).collect();
    levels.sort_unstable();
    levels.dedup();
    levels.into_iter().filter(|level| *level > 0).find_map(|level| {
        let of_level = |p: &&PendingRun| p.level == level && p.run > 0 && !p.tables.is_empty();
        let mut runs: Vec<&PendingRun> = pending.iter().filter(of_level).collect();
        runs.sort_by_key(|p| std::cmp::Reverse(p.run));
        (0..runs.len()).find_map(|first| picker.merge_from(&runs[first..], due))
    })
}

impl Picker<'_> {
    /// The newest of `runs` (newest first) with older ones that touch its keys, if there are enough of them.
    fn merge_from(&self, runs: &[&PendingRun], due: usize) -> Option<IntraDf> {
        let (newest, older) = runs.split_first()?;
        let mut group = vec![*newest];
        let mut bytes = total_bytes(&newest.tables);
        for run in older {
            let (s, l) = key_range(self.cmp(), group.iter().flat_map(|p| &p.tables))?;
            let (s, l) = (Some(s.user_key()), Some(l.user_key()));
            if !run.tables.iter().any(|f| self.version.touches(f, s, l)) {
                continue;
            }
            bytes += total_bytes(&run.tables);
            if bytes > self.max_compaction_bytes() {
                break;
            }
            group.push(run);
        }
        while group.len() >= due {
            if let Some(merge) = self.intra_df(&group) {
                return Some(merge);
            }
            group.pop();
        }
        None
    }

    fn intra_df(&self, group: &[&PendingRun]) -> Option<IntraDf> {
        let oldest = group.last()?;
        let (level, run) = (oldest.level, oldest.run);
        let mut numbers: Vec<u64> = group.iter().map(|p| p.number).collect();
        numbers.sort_unstable();
        let inputs: Vec<(usize, Files)> = group.iter().flat_map(|p| p.inputs.iter().cloned()).collect();
        let known: HashSet<u64> = group.iter().flat_map(|p| &p.depends_on).chain(&numbers).copied().collect();
        let depends_on = self.running.depends_on_beside(self.version, &inputs, level, run, &numbers)?;
        // It must not wait for anything that its parts do not wait for, or a failure elsewhere would make them fail,
        // too.
        if depends_on.iter().any(|n| !known.contains(n)) {
            return None;
        }
        let tables = group.iter().map(|p| (level, p.tables.clone())).collect();
        let mut compaction = self.build(CompactionReason::IntraDf, tables, level, true);
        compaction.output_run = run;
        (compaction.bottommost, compaction.trivial_move) = (false, false);
        self.fit_extra_run(&mut compaction);
        let all: Vec<&Arc<FileMeta>> =
            inputs.iter().flat_map(|(_, f)| f).chain(group.iter().flat_map(|p| &p.tables)).collect();
        let (s, l) = key_range(self.cmp(), all.iter().copied())?;
        let (smallest, largest) = (s.user_key().to_vec(), l.user_key().to_vec());
        Some(IntraDf { numbers, compaction, number: 0, smallest, largest })
    }
}

impl RunningCompactions {
    /// Notes that pending runs are being merged. The merge gets a number; no job depends on it, since its parts still
    /// exist.
    pub fn start_merge(&mut self, merge: &mut IntraDf) {
        merge.number = self.next_number();
        let (number, c) = (merge.number, &merge.compaction);
        self.running.push(Running {
            number,
            inputs: HashSet::new(),
            threads: 1,
            start_level: c.output_level,
            output_level: c.output_level,
            output_run: c.output_run,
            passes: None,
            smallest: merge.smallest.clone(),
            largest: merge.largest.clone(),
        });
    }

    /// Notes that the merge has ended. With `done` its jobs will write one run from now on.
    pub fn finish_merge(&mut self, merge: &IntraDf, done: bool) {
        self.running.retain(|r| r.number != merge.number);
        let oldest = merge.numbers.first().copied().unwrap_or_default();
        // From now on the output of these jobs is somewhere else.
        self.index.get_mut().forget();
        for r in self.running.iter_mut().filter(|r| done && merge.numbers.contains(&r.number)) {
            r.number = oldest;
            r.output_run = merge.compaction.output_run;
            r.smallest.clone_from(&merge.smallest);
            r.largest.clone_from(&merge.largest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compaction::strategy::testing::{TreeSpec, numbers};
    use crate::compaction::strategy::{Moment, pick as pick_job};

    const MB: u64 = 1 << 20;

    fn options() -> CfOptions {
        CfOptions {
            compaction_downforce: true,
            level_compaction_dynamic_level_bytes: false,
            max_bytes_for_level_base: 100 * MB,
            level0_file_num_compaction_trigger: 2,
            ..CfOptions::default()
        }
    }

    /// L0 has eight tables, which make four jobs; each needs those before it.
    fn jobs(cursors: &mut RunningCompactions) -> (Arc<Version>, Vec<(Compaction, Vec<u64>)>) {
        let mut t = TreeSpec::new(4).file(1, "a", "z", 99 * MB);
        for _ in 0..8 {
            t = t.file(0, "c", "w", MB);
        }
        let v = t.build();
        let next = |cursors: &mut RunningCompactions| {
            let c = pick_job(&v, &options(), cursors, &Moment::default()).unwrap();
            let depends_on = cursors.start(&c).depends_on;
            (c, depends_on)
        };
        let jobs = (0..4).map(|_| next(cursors)).collect();
        (v, jobs)
    }

    /// What the job with this number wrote: a table with a number of its own.
    fn output(jobs: &[(Compaction, Vec<u64>)], number: u64) -> PendingRun {
        let (c, depends_on) = &jobs[number as usize - 1];
        let mut t = TreeSpec::new(4);
        for _ in 0..100 + number {
            t = t.file(3, "a", "a", 1);
        }
        let v = t.file(1, "c", "w", MB).in_run(c.output_run).build();
        PendingRun {
            number,
            depends_on: depends_on.clone(),
            inputs: c.inputs.clone(),
            level: 1,
            run: c.output_run,
            tables: v.levels[1].run(c.output_run).to_vec(),
        }
    }

    #[test]
    fn as_many_as_are_due_become_one_run_in_the_place_of_the_oldest() {
        let mut cursors = RunningCompactions::new();
        let (v, jobs) = jobs(&mut cursors);
        let pending = [2, 3, 4].map(|n| output(&jobs, n));
        assert_eq!(pending.iter().map(|p| p.run).collect::<Vec<_>>(), [2, 3, 4]);
        assert!(pick(&v, &options(), &cursors, &pending[..1]).is_none());
        let mut merge = pick(&v, &options(), &cursors, &pending).unwrap();
        assert_eq!(merge.numbers, [2, 3, 4]);
        let c = &merge.compaction;
        let inputs: Vec<_> = c.inputs.iter().map(|(level, files)| (*level, numbers(files))).collect();
        assert_eq!(inputs, [(1, vec![105]), (1, vec![104]), (1, vec![103])], "newest first");
        assert_eq!((c.output_level, c.output_run, c.bottommost, c.trivial_move), (1, 2, false, false));

        cursors.start_merge(&mut merge);
        assert_eq!(cursors.runs_to_come(&v.cmp, 1, b"d", b"e").max(), Some(4));
        cursors.finish_merge(&merge, true);
        let mut runs: Vec<u64> = cursors.runs_to_come(&v.cmp, 1, b"d", b"e").collect();
        runs.dedup();
        assert_eq!(runs, [1, 2], "there is room again");
        // A job that needs one of them now needs the merged one.
        let depends_on = cursors.depends_on(&v, &[(0, v.levels[0].base[..1].to_vec())], 1, 9);
        assert!(depends_on.is_some_and(|n| !n.contains(&3) && !n.contains(&4)));
    }

    #[test]
    fn a_run_that_is_not_there_yet_is_not_passed_by() {
        let mut cursors = RunningCompactions::new();
        let (v, jobs) = jobs(&mut cursors);
        // The third still runs, and its output comes between those of the second and the fourth.
        let pending = [2, 4].map(|n| output(&jobs, n));
        assert!(pick(&v, &options(), &cursors, &pending).is_none());
        let pending = [3, 4].map(|n| output(&jobs, n));
        assert_eq!(pick(&v, &options(), &cursors, &pending).unwrap().numbers, [3, 4]);
    }

    #[test]
    fn runs_without_a_key_in_common_are_left_alone() {
        let mut cursors = RunningCompactions::new();
        let (v, jobs) = jobs(&mut cursors);
        let mut pending = [2, 3].map(|n| output(&jobs, n));
        let apart = TreeSpec::new(4).file(1, "x", "y", MB).in_run(3).build();
        pending[1].tables = apart.levels[1].run(3).to_vec();
        assert!(pick(&v, &options(), &cursors, &pending).is_none());
    }
}
