//! The commit queue alone: jobs begin while others succeed or fail, waiting outputs are merged, and edits cannot be
//! written, all at the same time and as the store drives it (`db/jobs/ordered_commit.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rockmill::internals::simulation::{CommitQueue, Issued, Step, Ticket};
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::Mutex;
use shuttle::sync::atomic::Ordering;
use shuttle::thread;

use crate::explore::explore;

/// Jobs and the jobs that they depend on, if those are still in the queue when they begin.
const JOBS: [(u64, &[u64]); 8] =
    [(1, &[]), (2, &[1]), (3, &[1, 2]), (4, &[]), (5, &[3, 4]), (6, &[1]), (7, &[1, 2]), (8, &[1, 6])];

/// An output is represented by its jobs.
#[derive(Default)]
struct World {
    queue: CommitQueue<Vec<u64>>,
    /// What each job needs that has begun.
    depends_on: BTreeMap<u64, Vec<u64>>,
    live: BTreeSet<u64>,
    failed: BTreeSet<u64>,
    dropped: BTreeSet<u64>,
    /// For each job, the jobs that were merged with it.
    merged: BTreeMap<u64, Vec<u64>>,
    /// Merges that go on.
    merging: Vec<Vec<u64>>,
}

impl World {
    fn has_ended(&self, number: u64) -> bool {
        [&self.live, &self.failed, &self.dropped].iter().any(|s| s.contains(&number))
    }

    /// Begins a job, as a pick does: it depends only on jobs in the queue.
    fn issue(&mut self, number: u64, depends_on: &[u64]) -> Ticket {
        let depends_on: Vec<u64> = depends_on.iter().copied().filter(|n| !self.has_ended(*n)).collect();
        self.depends_on.insert(number, depends_on.clone());
        // Several merged jobs are known by the oldest one's number.
        let known = |n: u64| self.merged.get(&n).and_then(|with| with.iter().min()).copied().unwrap_or(n);
        let depends_on = depends_on.into_iter().map(known).collect();
        self.queue.issue(Issued { number, depends_on })
    }

    fn needed(&self, jobs: &[u64]) -> Vec<u64> {
        jobs.iter().flat_map(|j| &self.depends_on[j]).copied().collect()
    }

    /// True if an order exists in which all can commit: no merge waits for itself.
    fn can_all_commit(&self) -> bool {
        let begun = self.depends_on.keys().copied().filter(|job| !self.has_ended(*job));
        let mut groups: Vec<BTreeSet<u64>> = begun.map(|job| BTreeSet::from([job])).collect();
        for with in self.merged.values().chain(&self.merging) {
            let (one, mut others): (Vec<_>, Vec<_>) =
                groups.into_iter().partition(|g| with.iter().any(|job| g.contains(job)));
            others.push(one.into_iter().flatten().collect());
            groups = others;
        }
        loop {
            let there: BTreeSet<u64> = groups.iter().flatten().copied().collect();
            let waits = |g: &BTreeSet<u64>| {
                g.iter().flat_map(|job| &self.depends_on[job]).any(|n| there.contains(n) && !g.contains(n))
            };
            let before = groups.len();
            groups.retain(waits);
            if groups.len() == before {
                return groups.is_empty();
            }
        }
    }

    /// Records the end of jobs; each job ends exactly once.
    fn end(&mut self, jobs: &[u64], how: impl Fn(&mut Self) -> &mut BTreeSet<u64>) {
        for &job in jobs {
            assert!(!self.has_ended(job), "job {job} ends twice");
            how(self).insert(job);
        }
    }
}

fn sometimes(one_in: u32) -> bool {
    thread_rng().gen_range(0..one_in) == 0
}

/// After each end: commits and drops all jobs that can be.
fn take_turns(world: &Mutex<World>) {
    loop {
        let step = {
            let mut w = world.lock().expect("the lock");
            let step = w.queue.turn();
            if let Some(Step::Drop(_, jobs)) = &step {
                // It has left the queue: no job may depend on it from now on.
                w.end(jobs, |w| &mut w.dropped);
            }
            step
        };
        match step {
            None => return,
            Some(Step::Drop(..)) => {}
            Some(Step::Commit(ticket, jobs)) => {
                // The edit is written outside of the lock.
                thread::yield_now();
                let mut w = world.lock().expect("the lock");
                for needed in w.needed(&jobs) {
                    let there = jobs.contains(&needed) || w.live.contains(&needed);
                    assert!(there, "{jobs:?} before {needed}, of {:?}", w.live);
                }
                if sometimes(8) {
                    w.end(&jobs, |w| &mut w.failed);
                    w.queue.failed(ticket);
                } else {
                    w.end(&jobs, |w| &mut w.live);
                    w.queue.committed(ticket);
                }
            }
        }
    }
}

/// A job runs, and looks at its flag.
fn run(world: &Mutex<World>, ticket: Ticket) {
    let number = ticket.number();
    let mut fails = sometimes(5);
    // The first one often takes long, so that the others wait.
    for _ in 0..if number == 1 { thread_rng().gen_range(2..20) } else { 2 } {
        thread::yield_now();
        fails |= ticket.cancelled().load(Ordering::Acquire);
    }
    let mut w = world.lock().expect("the lock");
    if fails {
        w.end(&[number], |w| &mut w.failed);
        w.queue.failed(ticket);
    } else {
        w.queue.finished(ticket, vec![number]).expect("it was issued here");
    }
    drop(w);
    take_turns(world);
}

/// Merges all or some of the waiting outputs.
fn merge(world: &Mutex<World>) {
    for _ in 0..6 {
        let begun = {
            let mut w = world.lock().expect("the lock");
            let mut waiting: Vec<u64> = w.queue.waiting().map(|(number, ..)| number).collect();
            // Also selections that omit one in between.
            while waiting.len() > 2 && sometimes(2) {
                waiting.remove(thread_rng().gen_range(0..waiting.len()));
            }
            let parts = w.queue.waiting().filter(|(number, ..)| waiting.contains(number));
            let read: Vec<u64> = parts.flat_map(|(_, _, jobs)| jobs.clone()).collect();
            let ticket = w.queue.begin_merge(&waiting);
            if ticket.is_some() {
                w.merging.push(read.clone());
                assert!(w.can_all_commit(), "a merge of {waiting:?} waits for itself");
            }
            ticket.map(|ticket| (ticket, read))
        };
        thread::yield_now();
        let Some((ticket, read)) = begun else { continue };
        let fails = sometimes(4) || ticket.cancelled().load(Ordering::Acquire);
        thread::yield_now();
        let mut w = world.lock().expect("the lock");
        w.merging.retain(|other| *other != read);
        if fails {
            w.queue.merge_failed(ticket);
        } else {
            let cancelled = Arc::clone(ticket.cancelled());
            let done = w.queue.merged(ticket, read.clone(), |parts, read| {
                assert_eq!(parts.concat(), read, "what is joined is what was read");
                read
            });
            match done {
                Ok(()) => w.merged.extend(read.iter().map(|job| (*job, read.clone()))),
                Err(_) => assert!(cancelled.load(Ordering::Acquire), "a merge is undone that nobody told to end"),
            }
        }
        drop(w);
        take_turns(world);
    }
}

/// Nothing is lost, nothing waits for ever, and no output becomes live before its dependencies. A job is dropped only
/// if a job failed on which it, or a job merged with it, depends.
#[test]
fn outputs_wait_are_merged_and_end_in_any_order() {
    explore(|| {
        let world = Arc::new(Mutex::new(World::default()));
        let mut threads = Vec::new();
        // They begin one after the other, later ones while earlier ones end.
        for (number, depends_on) in JOBS {
            let ticket = world.lock().expect("the lock").issue(number, depends_on);
            let world = Arc::clone(&world);
            let merges = Arc::clone(&world);
            threads.push(thread::spawn(move || run(&world, ticket)));
            if [2, 4].contains(&number) {
                threads.push(thread::spawn(move || merge(&merges)));
            }
            if number > 3 || sometimes(4) {
                thread::yield_now();
            }
        }
        for t in threads {
            t.join().expect("a thread");
        }
        let w = world.lock().expect("the lock");
        assert!(w.queue.is_empty(), "{:?}", w.queue);
        for (number, _) in JOBS {
            assert!(w.has_ended(number), "job {number} never ends");
        }
        for number in &w.dropped {
            let with = w.merged.get(number).cloned().unwrap_or_else(|| vec![*number]);
            let gone = |n: u64| w.failed.contains(&n) || w.dropped.contains(&n);
            assert!(w.needed(&with).into_iter().any(gone), "job {number} was dropped for nothing");
        }
    });
}
