//! The order in which jobs of a column family commit. A pure structure: no files, no clock, no lock of its own.
//!
//! A job may be picked while another one still holds tables that lie between its inputs and its output
//! (`strategy/order.rs` says when): it counts on the other one to have taken them further down by the time that it
//! commits. So it must not commit first, or newer data would lie below older data; and if the other one fails, it must
//! not commit at all. Everything else may commit as soon as it is done, since places in the tree, not times of
//! commits, say what is newer: a level's extra runs have ids that were given out when their jobs were issued.
//!
//! Contract, all of it under the lock that picks are made under:
//!
//! 1. [`issue`](CommitQueue::issue) right after the pick, with the numbers of the jobs that it needs.
//! 2. [`finished`](CommitQueue::finished) when its output is durable; [`failed`](CommitQueue::failed) when it ended in
//!    any other way, also when the write of its edit failed.
//! 3. After either of them, and after [`committed`](CommitQueue::committed): [`turn`](CommitQueue::turn) until there is
//!    nothing more. [`Step::Commit`]: write the edit, outside of the lock if that suits, then call `committed`, once
//!    the new version is in place. [`Step::Drop`]: remove the outputs; the job is no longer in the queue.
//! 4. A job that runs may look at [`is_doomed`](CommitQueue::is_doomed) now and then and end early.
//!
//! A job's inputs stay busy until it has left the queue: who frees them earlier lets another job have them.
//!
//! What waits and is finished may be merged with its neighbour, so that readers do not get ever more runs once the job
//! in front commits (*intra-DF*): [`begin_merge`](CommitQueue::begin_merge), then
//! [`merged`](CommitQueue::merged) or [`merge_failed`](CommitQueue::merge_failed).

use std::collections::HashSet;

use super::strategy::Issued;

/// What to do next; see [`CommitQueue::turn`].
#[derive(Debug, PartialEq, Eq)]
pub enum Step<T> {
    /// Make this job's output live, then call [`CommitQueue::committed`].
    Commit(u64, T),
    /// This job's output must never be live, as a job that it needed failed.
    Drop(u64, T),
}

/// Jobs that were issued and have neither committed nor failed, with what they are to commit.
#[derive(Debug)]
pub struct CommitQueue<T> {
    /// In the order in which they were issued.
    jobs: Vec<Job<T>>,
}

#[derive(Debug)]
struct Job<T> {
    number: u64,
    /// Jobs that must have committed first.
    needs: Vec<u64>,
    /// A job that it needs has failed.
    doomed: bool,
    stage: Stage<T>,
}

#[derive(Debug)]
enum Stage<T> {
    Running,
    Finished(T),
    /// Finished, and being merged with another one.
    Merging(T),
    Committing,
}

impl<T> Default for CommitQueue<T> {
    fn default() -> Self {
        Self { jobs: Vec::new() }
    }
}

impl<T> CommitQueue<T> {
    /// Without jobs.
    pub fn new() -> Self {
        Self::default()
    }

    /// A job begins, with the number and the needs that [`CompactionCursors::start`] gave it. What it needs must be in
    /// the queue: who picks a job looks at the running jobs and at the queue under one lock.
    ///
    /// [`CompactionCursors::start`]: super::strategy::CompactionCursors::start
    pub fn issue(&mut self, job: Issued) {
        let Issued { number, mut needs } = job;
        needs.retain(|n| self.job(*n).is_some());
        let doomed = needs.iter().any(|n| self.is_doomed(*n));
        self.jobs.push(Job { number, needs, doomed, stage: Stage::Running });
    }

    /// The job's output is durable. It waits until [`turn`](Self::turn) gives it out.
    pub fn finished(&mut self, number: u64, output: T) {
        if let Some(job) = self.job_mut(number) {
            job.stage = Stage::Finished(output);
        }
    }

    /// The next job that can commit, or that must be dropped; those dropped first, then by age.
    pub fn turn(&mut self) -> Option<Step<T>> {
        let finished = |job: &Job<T>| matches!(job.stage, Stage::Finished(_));
        if let Some(i) = self.jobs.iter().position(|j| j.doomed && finished(j)) {
            let job = self.jobs.remove(i);
            let Stage::Finished(output) = job.stage else { return None };
            return Some(Step::Drop(job.number, output));
        }
        let job = self.jobs.iter_mut().find(|j| finished(j) && j.needs.is_empty())?;
        match std::mem::replace(&mut job.stage, Stage::Committing) {
            Stage::Finished(output) => Some(Step::Commit(job.number, output)),
            _ => None,
        }
    }

    /// The job's output is live: those that needed it need it no longer.
    pub fn committed(&mut self, number: u64) {
        self.jobs.retain(|j| j.number != number);
        for job in &mut self.jobs {
            job.needs.retain(|n| *n != number);
        }
    }

    /// The job ended without output, or its output could not be made live. All that need it, and those that need
    /// these, are doomed; the others go on.
    pub fn failed(&mut self, number: u64) {
        self.jobs.retain(|j| j.number != number);
        let mut gone = HashSet::from([number]);
        // A job needs only older ones: one pass in order of age reaches all.
        for job in &mut self.jobs {
            if job.needs.iter().any(|n| gone.contains(n)) {
                job.doomed = true;
                gone.insert(job.number);
            }
        }
    }

    /// True when a job that this one needs has failed, so that its output will be dropped.
    pub fn is_doomed(&self, number: u64) -> bool {
        self.job(number).is_some_and(|j| j.doomed)
    }

    /// Jobs that are finished and wait, oldest first, with what they are to commit.
    pub fn waiting(&self) -> impl Iterator<Item = (u64, &T)> {
        self.jobs.iter().filter_map(|j| match &j.stage {
            Stage::Finished(output) if !j.doomed => Some((j.number, output)),
            _ => None,
        })
    }

    /// True when the job, which may be running, finished or committing, needs another one that has not committed.
    pub fn needs_others(&self, number: u64) -> bool {
        self.job(number).is_some_and(|j| !j.needs.is_empty())
    }

    /// Jobs in the queue.
    pub fn len(&self) -> usize {
        self.jobs.len()
    }

    /// True without jobs.
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Both jobs are finished and wait: from now on neither commits before [`merged`](Self::merged) or
    /// [`merge_failed`](Self::merge_failed). What they are to commit, the older one's first; `None` if one of them
    /// does not wait. The caller knows that the runs of the two are neighbours: that no run, be it live or of another
    /// job in the queue, lies between them and shares keys with them.
    pub fn begin_merge(&mut self, older: u64, newer: u64) -> Option<(&T, &T)> {
        let waits = |n: u64| {
            let job = self.job(n)?;
            (!job.doomed && matches!(job.stage, Stage::Finished(_)) && !job.needs.is_empty()).then_some(())
        };
        if older >= newer {
            return None;
        }
        waits(older)?;
        waits(newer)?;
        for number in [older, newer] {
            let job = self.job_mut(number)?;
            job.stage = match std::mem::replace(&mut job.stage, Stage::Running) {
                Stage::Finished(output) => Stage::Merging(output),
                stage => stage,
            };
        }
        Some((self.merging(older)?, self.merging(newer)?))
    }

    /// The merge of the two has ended: one job is left, which has the older one's number, needs what both needed, and
    /// is to commit `output`, the inputs of both included. What the two were to commit comes back: their outputs are
    /// to be removed.
    pub fn merged(&mut self, older: u64, newer: u64, output: T) -> Option<(T, T)> {
        let at = self.jobs.iter().position(|j| j.number == newer)?;
        let second = self.jobs.remove(at);
        let first = self.job_mut(older)?;
        first.doomed |= second.doomed;
        first.needs.extend(second.needs);
        first.needs.retain(|n| *n != older);
        first.needs.sort_unstable();
        first.needs.dedup();
        let was = std::mem::replace(&mut first.stage, Stage::Finished(output));
        for job in self.jobs.iter_mut().filter(|j| j.needs.contains(&newer)) {
            job.needs.retain(|n| *n != newer && *n != older);
            job.needs.push(older);
        }
        match (was, second.stage) {
            (Stage::Merging(a), Stage::Merging(b)) => Some((a, b)),
            _ => None,
        }
    }

    /// The merge that these jobs were in came to nothing: both wait as before.
    pub fn merge_failed(&mut self, older: u64, newer: u64) {
        for number in [older, newer] {
            if let Some(job) = self.job_mut(number) {
                job.stage = match std::mem::replace(&mut job.stage, Stage::Running) {
                    Stage::Merging(output) => Stage::Finished(output),
                    stage => stage,
                };
            }
        }
    }

    fn merging(&self, number: u64) -> Option<&T> {
        match &self.job(number)?.stage {
            Stage::Merging(output) => Some(output),
            _ => None,
        }
    }

    fn job(&self, number: u64) -> Option<&Job<T>> {
        self.jobs.iter().find(|j| j.number == number)
    }

    fn job_mut(&mut self, number: u64) -> Option<&mut Job<T>> {
        self.jobs.iter_mut().find(|j| j.number == number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers count from 1.
    fn issue(q: &mut CommitQueue<&'static str>, number: u64, needs: &[u64]) -> u64 {
        q.issue(Issued { number, needs: needs.to_vec() });
        number
    }

    fn steps(q: &mut CommitQueue<&'static str>) -> Vec<Step<&'static str>> {
        std::iter::from_fn(|| q.turn()).collect()
    }

    #[test]
    fn what_needs_nothing_commits_at_once_and_the_rest_in_order() {
        let mut q = CommitQueue::new();
        let a = issue(&mut q, 1, &[]);
        let b = issue(&mut q, 2, &[a]);
        let c = issue(&mut q, 3, &[b]);
        let free = issue(&mut q, 4, &[]);
        q.finished(c, "c");
        q.finished(free, "free");
        q.finished(b, "b");
        assert_eq!(steps(&mut q), [Step::Commit(free, "free")]);
        q.finished(a, "a");
        assert_eq!(steps(&mut q), [Step::Commit(a, "a")], "b waits until a's version is in place");
        q.committed(a);
        assert_eq!(steps(&mut q), [Step::Commit(b, "b")]);
        q.committed(b);
        assert_eq!(steps(&mut q), [Step::Commit(c, "c")]);
        q.committed(c);
        q.committed(free);
        assert!(q.is_empty());
        let late = issue(&mut q, 5, &[a]);
        assert!(!q.needs_others(late), "a has committed");
    }

    #[test]
    fn a_failure_dooms_those_that_need_it_and_no_others() {
        let mut q = CommitQueue::new();
        let a = issue(&mut q, 1, &[]);
        let b = issue(&mut q, 2, &[a]);
        let c = issue(&mut q, 3, &[b]);
        let other = issue(&mut q, 4, &[]);
        let behind = issue(&mut q, 5, &[other]);
        q.finished(b, "b");
        q.finished(behind, "behind");
        q.failed(a);
        assert!(q.is_doomed(b) && q.is_doomed(c) && !q.is_doomed(other) && !q.is_doomed(behind));
        assert_eq!(steps(&mut q), [Step::Drop(b, "b")]);
        let late = issue(&mut q, 6, &[c]);
        assert!(q.is_doomed(late), "it counts on a job that is doomed");
        q.finished(c, "c");
        q.finished(other, "other");
        assert_eq!(steps(&mut q), [Step::Drop(c, "c"), Step::Commit(other, "other")]);
        q.failed(other); // its edit could not be written
        assert_eq!(steps(&mut q), [Step::Drop(behind, "behind")]);
        q.failed(late);
        assert!(q.is_empty());
    }

    #[test]
    fn finished_neighbours_become_one() {
        let mut q = CommitQueue::new();
        let p = issue(&mut q, 1, &[]);
        let a = issue(&mut q, 2, &[p]);
        let b = issue(&mut q, 3, &[a, p]);
        let c = issue(&mut q, 4, &[b]);
        q.finished(a, "a");
        assert!(q.begin_merge(a, b).is_none(), "b still runs");
        q.finished(b, "b");
        assert_eq!(q.begin_merge(a, b), Some((&"a", &"b")));
        assert!(q.begin_merge(a, b).is_none());
        q.finished(p, "p");
        assert_eq!(steps(&mut q), [Step::Commit(p, "p")]);
        q.committed(p);
        assert_eq!(steps(&mut q), [], "they are being merged");
        assert_eq!(q.merged(a, b, "ab"), Some(("a", "b")));
        q.finished(c, "c");
        assert_eq!(steps(&mut q), [Step::Commit(a, "ab")]);
        q.committed(a);
        assert_eq!(steps(&mut q), [Step::Commit(c, "c")], "c needs the job that b went into");
    }

    #[test]
    fn a_merge_that_fails_leaves_both_and_a_doomed_one_is_dropped_whole() {
        let mut q = CommitQueue::new();
        let p = issue(&mut q, 1, &[]);
        let a = issue(&mut q, 2, &[p]);
        let b = issue(&mut q, 3, &[p]);
        q.finished(a, "a");
        q.finished(b, "b");
        assert!(q.begin_merge(a, b).is_some());
        q.merge_failed(a, b);
        assert_eq!(q.waiting().collect::<Vec<_>>(), [(a, &"a"), (b, &"b")]);
        assert!(q.begin_merge(a, b).is_some());
        q.failed(p);
        assert_eq!(steps(&mut q), []);
        q.merged(a, b, "ab");
        assert_eq!(steps(&mut q), [Step::Drop(a, "ab")]);
        assert!(q.is_empty());
    }
}
