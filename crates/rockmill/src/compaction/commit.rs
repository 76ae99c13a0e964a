//! The order in which jobs of a column family commit. A pure structure: no files, no clock, no lock of its own.
//!
//! A job may be picked while another one still holds tables that lie between its inputs and its output
//! (`strategy/order.rs` says when): it *needs* the other one to move them further down first. So it must not commit
//! first, or newer data would lie below older data; and if the other one fails, it must not commit at all. All other
//! jobs may commit as soon as they are done, because places in the tree, not commit times, determine what is newer: a
//! level's extra runs have ids that were given out when their jobs were issued.
//!
//! Contract, all of it under the lock that picks are made under:
//!
//! 1. [`issue`](CommitQueue::issue) right after the pick, with the numbers of the jobs that it needs. The thread that
//!    does the job gets a [`Ticket`], and gives it back at the end: only a job that is in the queue can end, and only
//!    once.
//! 2. [`finished`](CommitQueue::finished) when its output is durable; [`failed`](CommitQueue::failed) when it ended in
//!    any other way, also when the write of its edit failed.
//! 3. After either of them, and after [`committed`](CommitQueue::committed): [`turn`](CommitQueue::turn) until there is
//!    nothing more. [`Step::Commit`]: write the edit, outside of the lock if that suits, then call `committed`, once
//!    the new version is in place. [`Step::Drop`]: remove the outputs; the job is no longer in the queue.
//! 4. A running job checks its ticket's [`cancelled`](Ticket::cancelled) now and then. If it is set, a job that it
//!    needs has failed, and it ends early.
//!
//! A job's inputs must stay busy until it has left the queue, so that no other job takes them.
//!
//! Finished jobs that wait may be merged, so that readers do not get more and more runs once the job in front commits
//! (*intra-DF*, `strategy/intra.rs` says when): [`begin_merge`](CommitQueue::begin_merge), then
//! [`merged`](CommitQueue::merged) or [`merge_failed`](CommitQueue::merge_failed). Until then none of the parts
//! commits, and none is dropped.

use std::collections::HashSet;
use std::sync::Arc;

use super::strategy::Issued;
use crate::sync::atomic::{AtomicBool, Ordering};

/// What to do next; see [`CommitQueue::turn`].
#[derive(Debug)]
pub enum Step<T> {
    /// Make this output live, then call [`CommitQueue::committed`], or [`CommitQueue::failed`].
    Commit(Ticket, T),
    /// The output of the job with this number must never become live, because a job that it needed failed.
    Drop(u64, T),
}

/// A job's place in a queue. Its holder must report the job's end to the queue.
#[derive(Debug)]
#[must_use = "the queue waits for the job's end for ever"]
pub struct Ticket {
    number: u64,
    cancelled: Arc<AtomicBool>,
}

impl Ticket {
    /// The job's number.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Set when the output can no longer become live because a job that this one needs has failed: this job should end
    /// early.
    pub fn cancelled(&self) -> &Arc<AtomicBool> {
        &self.cancelled
    }
}

/// A merge of finished jobs. Its holder must report its end.
#[derive(Debug)]
#[must_use = "the jobs that it merges wait for ever"]
pub struct MergeTicket {
    /// Numbers of the jobs, oldest first.
    numbers: Vec<u64>,
    cancelled: Arc<AtomicBool>,
}

impl MergeTicket {
    /// Numbers of the jobs that are merged, oldest first.
    pub fn numbers(&self) -> &[u64] {
        &self.numbers
    }

    /// Set when one of the jobs can no longer become live: the merge should end early.
    pub fn cancelled(&self) -> &Arc<AtomicBool> {
        &self.cancelled
    }
}

/// The ticket is of another queue: the job is not in this one, and its output is returned.
#[derive(Debug)]
pub struct Unknown<T> {
    /// The job's number.
    pub number: u64,
    /// What it would have committed.
    pub output: T,
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
    depends_on: Vec<u64>,
    /// A job that it needs has failed.
    cancelled: Arc<AtomicBool>,
    stage: Stage<T>,
}

#[derive(Debug)]
enum Stage<T> {
    Running,
    Finished(T),
    /// Finished, and being merged with others.
    Merging(T, Merge),
    Committing,
}

/// Which merge: its flag says, and is set when one of its jobs is cancelled.
#[derive(Debug)]
struct Merge {
    cancelled: Arc<AtomicBool>,
}

impl<T> Job<T> {
    fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    /// It is finished, and may commit only after others.
    fn waits(&self) -> bool {
        !self.is_cancelled() && matches!(self.stage, Stage::Finished(_)) && !self.depends_on.is_empty()
    }
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

    /// A job begins, with the number and the needs that [`RunningCompactions::start`] gave it. The jobs that it needs
    /// must be in the queue: a pick looks at the running jobs and at the queue under one lock.
    ///
    /// [`RunningCompactions::start`]: super::strategy::RunningCompactions::start
    pub fn issue(&mut self, job: Issued) -> Ticket {
        let Issued { number, mut depends_on } = job;
        depends_on.retain(|n| self.job(*n).is_some());
        let cancelled = depends_on.iter().any(|n| self.job(*n).is_some_and(Job::is_cancelled));
        let cancelled = Arc::new(AtomicBool::new(cancelled));
        self.jobs.push(Job { number, depends_on, cancelled: Arc::clone(&cancelled), stage: Stage::Running });
        Ticket { number, cancelled }
    }

    /// The job's output is durable. It waits until [`turn`](Self::turn) gives it out.
    ///
    /// # Errors
    /// The output, if the ticket is of another queue: the caller must remove it, or it is leaked.
    pub fn finished(&mut self, ticket: Ticket, output: T) -> Result<(), Unknown<T>> {
        let number = ticket.number;
        match self.job_mut(number) {
            Some(job) if Arc::ptr_eq(&job.cancelled, &ticket.cancelled) => {
                job.stage = Stage::Finished(output);
                Ok(())
            }
            _ => Err(Unknown { number, output }),
        }
    }

    /// The next job that can commit, or that must be dropped; those dropped first, then by age.
    pub fn turn(&mut self) -> Option<Step<T>> {
        let finished = |job: &Job<T>| matches!(job.stage, Stage::Finished(_));
        if let Some(i) = self.jobs.iter().position(|j| j.is_cancelled() && finished(j)) {
            let job = self.jobs.remove(i);
            let Stage::Finished(output) = job.stage else { return None };
            return Some(Step::Drop(job.number, output));
        }
        let job = self.jobs.iter_mut().find(|j| finished(j) && j.depends_on.is_empty())?;
        match std::mem::replace(&mut job.stage, Stage::Committing) {
            Stage::Finished(output) => {
                Some(Step::Commit(Ticket { number: job.number, cancelled: Arc::clone(&job.cancelled) }, output))
            }
            _ => None,
        }
    }

    /// The job's output is live: jobs that needed it no longer wait for it.
    pub fn committed(&mut self, ticket: Ticket) {
        self.remove(&ticket);
        for job in &mut self.jobs {
            job.depends_on.retain(|n| *n != ticket.number);
        }
    }

    /// The job ended without output, or its output could not be made live. All jobs that need it, directly or through
    /// others, are cancelled; the rest continue.
    pub fn failed(&mut self, ticket: Ticket) {
        self.remove(&ticket);
        let mut gone = vec![ticket.number];
        while let Some(number) = gone.pop() {
            for job in self.jobs.iter().filter(|j| j.depends_on.contains(&number)) {
                if !job.cancelled.swap(true, Ordering::AcqRel) {
                    gone.push(job.number);
                }
                if let Stage::Merging(_, merge) = &job.stage {
                    merge.cancelled.store(true, Ordering::Release);
                }
            }
        }
    }

    /// Jobs that are finished and wait, oldest first, with the jobs that they need and with what they are to commit.
    pub fn waiting(&self) -> impl Iterator<Item = (u64, &[u64], &T)> {
        self.jobs.iter().filter(|j| j.waits()).filter_map(|j| match &j.stage {
            Stage::Finished(output) => Some((j.number, &j.depends_on[..], output)),
            _ => None,
        })
    }

    /// Everything that is finished and not live: what [`waiting`](Self::waiting) gives, what is being merged, and what
    /// is to be dropped.
    pub fn pending(&self) -> impl Iterator<Item = (u64, &T)> {
        self.jobs.iter().filter_map(|j| match &j.stage {
            Stage::Finished(output) | Stage::Merging(output, _) => Some((j.number, output)),
            _ => None,
        })
    }

    /// Jobs in the queue.
    pub fn len(&self) -> usize {
        self.jobs.len()
    }

    /// True while there are jobs that can no longer become live. A job that needs one of them would not become live,
    /// either.
    pub fn has_cancelled(&self) -> bool {
        self.jobs.iter().any(Job::is_cancelled)
    }

    /// True without jobs.
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// The outputs of these jobs are going to be merged: from now on none of them commits before
    /// [`merged`](Self::merged) or [`merge_failed`](Self::merge_failed). `None` if one of them does not wait, or if one
    /// that is not among them needs one of them and is needed by another: neither it nor the merged job could ever
    /// commit. The caller knows by the order of runs that the outputs may become one.
    pub fn begin_merge(&mut self, numbers: &[u64]) -> Option<MergeTicket> {
        let mut numbers = numbers.to_vec();
        numbers.sort_unstable();
        numbers.dedup();
        let waits = |n: &u64| self.job(*n).is_some_and(Job::waits);
        if numbers.len() < 2 || !numbers.iter().all(waits) || self.would_need_itself(&numbers) {
            return None;
        }
        let cancelled = Arc::new(AtomicBool::new(false));
        for job in self.jobs.iter_mut().filter(|j| numbers.contains(&j.number)) {
            job.stage = match std::mem::replace(&mut job.stage, Stage::Running) {
                Stage::Finished(output) => Stage::Merging(output, Merge { cancelled: Arc::clone(&cancelled) }),
                stage => stage,
            };
        }
        Some(MergeTicket { numbers, cancelled })
    }

    /// True if one of `group` needs, through other jobs, another one of them. Jobs that are being merged count as one.
    fn would_need_itself(&self, group: &[u64]) -> bool {
        let mut seen = HashSet::new();
        let of_group = self.jobs.iter().filter(|j| group.contains(&j.number));
        let mut next: Vec<u64> = of_group.flat_map(|j| &j.depends_on).filter(|n| !group.contains(n)).copied().collect();
        while let Some(number) = next.pop() {
            if group.contains(&number) {
                return true;
            }
            let Some(job) = self.job(number).filter(|_| seen.insert(number)) else { continue };
            next.extend(&job.depends_on);
            if let Stage::Merging(_, merge) = &job.stage {
                let flag = &merge.cancelled;
                let with = |j: &&Job<T>| matches!(&j.stage, Stage::Merging(_, m) if Arc::ptr_eq(&m.cancelled, flag));
                next.extend(self.jobs.iter().filter(with).map(|j| j.number));
            }
        }
        false
    }

    /// The merge has ended, and its output is durable: one job is left, which has the oldest one's number, needs what
    /// all needed, and commits what `join` makes of all that they were to commit, oldest first.
    ///
    /// # Errors
    /// `output`, which must be removed: one of the jobs will never be live. The others wait as before.
    pub fn merged<U>(&mut self, ticket: MergeTicket, output: U, join: impl FnOnce(Vec<T>, U) -> T) -> Result<(), U> {
        let of_merge = |j: &Job<T>| {
            let same = |m: &Merge| Arc::ptr_eq(&m.cancelled, &ticket.cancelled);
            !j.is_cancelled() && matches!(&j.stage, Stage::Merging(_, m) if same(m))
        };
        let Some(oldest) = ticket.numbers.first().copied() else { return Err(output) };
        if self.jobs.iter().filter(|j| of_merge(j)).count() != ticket.numbers.len() {
            self.merge_failed(ticket);
            return Err(output);
        }
        let (mut parts, mut depends_on) = (Vec::new(), Vec::new());
        for job in self.jobs.iter_mut().filter(|j| ticket.numbers.contains(&j.number)) {
            if let Stage::Merging(part, _) = std::mem::replace(&mut job.stage, Stage::Running) {
                parts.push(part);
            }
            depends_on.append(&mut job.depends_on);
        }
        self.jobs.retain(|j| j.number == oldest || !ticket.numbers.contains(&j.number));
        depends_on.retain(|n| !ticket.numbers.contains(n));
        depends_on.sort_unstable();
        depends_on.dedup();
        for job in &mut self.jobs {
            if job.number == oldest {
                job.depends_on = std::mem::take(&mut depends_on);
                continue;
            }
            let before = job.depends_on.len();
            job.depends_on.retain(|n| !ticket.numbers.contains(n));
            if job.depends_on.len() < before {
                job.depends_on.push(oldest);
            }
        }
        let whole = join(parts, output);
        if let Some(job) = self.job_mut(oldest) {
            job.stage = Stage::Finished(whole);
        }
        Ok(())
    }

    /// The merge failed: its jobs wait as before.
    pub fn merge_failed(&mut self, ticket: MergeTicket) {
        for job in self.jobs.iter_mut().filter(|j| ticket.numbers.contains(&j.number)) {
            job.stage = match std::mem::replace(&mut job.stage, Stage::Running) {
                Stage::Merging(output, _) => Stage::Finished(output),
                stage => stage,
            };
        }
    }

    fn remove(&mut self, ticket: &Ticket) {
        self.jobs.retain(|j| !Arc::ptr_eq(&j.cancelled, &ticket.cancelled));
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

    type Queue = CommitQueue<&'static str>;

    /// Numbers count from 1.
    fn issue(q: &mut Queue, number: u64, depends_on: &[u64]) -> Ticket {
        q.issue(Issued { number, depends_on: depends_on.to_vec() })
    }

    /// What turns give: (number, output, whether it is to commit), and the tickets of these.
    fn steps(q: &mut Queue) -> (Vec<(u64, &'static str, bool)>, Vec<Ticket>) {
        let (mut said, mut tickets) = (Vec::new(), Vec::new());
        while let Some(step) = q.turn() {
            said.push(match step {
                Step::Commit(ticket, output) => {
                    let number = ticket.number();
                    tickets.push(ticket);
                    (number, output, true)
                }
                Step::Drop(number, output) => (number, output, false),
            });
        }
        (said, tickets)
    }

    /// Commits whatever can, until nothing can; in which order.
    fn commit_all(q: &mut Queue) -> Vec<(u64, &'static str, bool)> {
        let mut all = Vec::new();
        loop {
            let (said, tickets) = steps(q);
            if said.is_empty() {
                return all;
            }
            all.extend(said);
            tickets.into_iter().for_each(|t| q.committed(t));
        }
    }

    fn join(parts: Vec<&'static str>, whole: &'static str) -> &'static str {
        assert_eq!(parts.concat(), whole, "oldest first");
        whole
    }

    #[test]
    fn what_needs_nothing_commits_at_once_and_the_rest_in_order() {
        let mut q = Queue::new();
        let a = issue(&mut q, 1, &[]);
        let b = issue(&mut q, 2, &[1]);
        let c = issue(&mut q, 3, &[2]);
        let free = issue(&mut q, 4, &[]);
        q.finished(c, "c").unwrap();
        q.finished(free, "free").unwrap();
        q.finished(b, "b").unwrap();
        let (said, free) = steps(&mut q);
        assert_eq!(said, [(4, "free", true)]);
        q.finished(a, "a").unwrap();
        let (said, a) = steps(&mut q);
        assert_eq!(said, [(1, "a", true)], "b waits until a's version is in place");
        a.into_iter().chain(free).for_each(|t| q.committed(t));
        assert_eq!(commit_all(&mut q), [(2, "b", true), (3, "c", true)]);
        assert!(q.is_empty());
        let late = issue(&mut q, 5, &[1]);
        q.finished(late, "late").unwrap();
        assert_eq!(q.waiting().count(), 0, "what it needed has committed");
    }

    #[test]
    fn a_failure_dooms_those_that_need_it_and_no_others() {
        let mut q = Queue::new();
        let a = issue(&mut q, 1, &[]);
        let b = issue(&mut q, 2, &[1]);
        let c = issue(&mut q, 3, &[2]);
        let other = issue(&mut q, 4, &[]);
        let behind = issue(&mut q, 5, &[4]);
        let flags = [&b, &c, &other, &behind].map(|t| Arc::clone(t.cancelled()));
        q.finished(b, "b").unwrap();
        q.finished(behind, "behind").unwrap();
        q.failed(a);
        assert_eq!(flags.map(|f| f.load(Ordering::Acquire)), [true, true, false, false]);
        assert_eq!(steps(&mut q).0, [(2, "b", false)]);
        let late = issue(&mut q, 6, &[3]);
        assert!(q.has_cancelled() && late.cancelled().load(Ordering::Acquire), "it counts on a job that is cancelled");
        q.finished(c, "c").unwrap();
        q.finished(other, "other").unwrap();
        let (said, other) = steps(&mut q);
        assert_eq!(said, [(3, "c", false), (4, "other", true)]);
        other.into_iter().for_each(|t| q.failed(t)); // its edit could not be written
        assert_eq!(steps(&mut q).0, [(5, "behind", false)]);
        q.failed(late);
        assert!(q.is_empty() && !q.has_cancelled());
    }

    #[test]
    fn an_output_with_a_ticket_of_another_queue_comes_back() {
        let (mut q, mut other) = (Queue::new(), Queue::new());
        let here = issue(&mut q, 1, &[]);
        let there = issue(&mut other, 1, &[]);
        let Unknown { number, output } = q.finished(there, "there").unwrap_err();
        assert_eq!((number, output), (1, "there"));
        q.finished(here, "here").unwrap();
        assert_eq!(commit_all(&mut q), [(1, "here", true)]);
    }

    #[test]
    fn finished_neighbours_become_one() {
        let mut q = Queue::new();
        let p = issue(&mut q, 1, &[]);
        let a = issue(&mut q, 2, &[1]);
        let b = issue(&mut q, 3, &[2, 1]);
        let d = issue(&mut q, 4, &[1]);
        let c = issue(&mut q, 5, &[3]);
        q.finished(a, "a").unwrap();
        assert!(q.begin_merge(&[2, 3, 4]).is_none(), "b and d still run");
        q.finished(b, "b").unwrap();
        q.finished(d, "d").unwrap();
        let merge = q.begin_merge(&[4, 3, 2]).unwrap();
        assert!(q.begin_merge(&[2, 3]).is_none());
        assert_eq!((q.waiting().count(), q.pending().count()), (0, 3));
        q.finished(p, "p").unwrap();
        assert_eq!(commit_all(&mut q), [(1, "p", true)], "the others are being merged");
        q.merged(merge, "abd", join).unwrap();
        q.finished(c, "c").unwrap();
        assert_eq!(commit_all(&mut q), [(2, "abd", true), (5, "c", true)], "c needs the job that b went into");
        assert!(q.is_empty());
    }

    #[test]
    fn a_merge_that_fails_leaves_its_parts() {
        let mut q = Queue::new();
        let p = issue(&mut q, 1, &[]);
        for (number, name) in [(2, "a"), (3, "b")] {
            let job = issue(&mut q, number, &[1]);
            q.finished(job, name).unwrap();
        }
        let merge = q.begin_merge(&[2, 3]).unwrap();
        q.merge_failed(merge);
        assert_eq!(q.waiting().collect::<Vec<_>>(), [(2, &[1][..], &"a"), (3, &[1][..], &"b")]);
        q.finished(p, "p").unwrap();
        assert_eq!(commit_all(&mut q), [(1, "p", true), (2, "a", true), (3, "b", true)]);
    }

    /// Of two that are merged one needs a job that fails: the merge is to end early, and only that one is dropped.
    #[test]
    fn a_merge_with_a_doomed_part_is_undone() {
        let mut q = Queue::new();
        let p = issue(&mut q, 1, &[]);
        let r = issue(&mut q, 2, &[]);
        let a = issue(&mut q, 3, &[1]);
        let b = issue(&mut q, 4, &[1, 2]);
        q.finished(a, "a").unwrap();
        q.finished(b, "b").unwrap();
        let merge = q.begin_merge(&[3, 4]).unwrap();
        let cancelled = Arc::clone(merge.cancelled());
        q.failed(r);
        assert!(cancelled.load(Ordering::Acquire));
        assert_eq!(steps(&mut q).0, [], "while tables are read they are not dropped");
        assert_eq!(q.merged(merge, "ab", join), Err("ab"));
        assert_eq!(steps(&mut q).0, [(4, "b", false)]);
        q.finished(p, "p").unwrap();
        assert_eq!(commit_all(&mut q), [(1, "p", true), (3, "a", true)]);
        assert!(q.is_empty());
    }

    /// b needs c, which needs a: were a and b one, it would need c and c it.
    #[test]
    fn a_merge_that_would_wait_for_itself_is_refused() {
        let mut q = Queue::new();
        let p = issue(&mut q, 1, &[]);
        for (number, depends_on, name) in [(2, &[1][..], "a"), (3, &[2], "c"), (4, &[1, 3], "b"), (5, &[1, 2], "d")] {
            let job = issue(&mut q, number, depends_on);
            q.finished(job, name).unwrap();
        }
        assert!(q.begin_merge(&[2, 4]).is_none());
        let merge = q.begin_merge(&[2, 3, 4]).unwrap();
        q.merge_failed(merge);
        // Through a merge in progress: c and d become one, which needs a and which b needs.
        let merge = q.begin_merge(&[3, 5]).unwrap();
        assert!(q.begin_merge(&[2, 4]).is_none());
        q.merged(merge, "cd", join).unwrap();
        q.finished(p, "p").unwrap();
        assert_eq!(commit_all(&mut q), [(1, "p", true), (2, "a", true), (3, "cd", true), (4, "b", true)]);
    }
}
