//! The queue of jobs that are to commit, by itself: jobs that end well or not, merges of what waits, edits that cannot
//! be written, all at the same time, as the store drives it (`db/ordered_commit.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rockmill::simulation::{CommitQueue, Issued, Step, Ticket};
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::Mutex;
use shuttle::sync::atomic::Ordering;
use shuttle::thread;

use crate::explore::explore;

/// Jobs by what they need.
const JOBS: [(u64, &[u64]); 6] = [(1, &[]), (2, &[1]), (3, &[1, 2]), (4, &[]), (5, &[3, 4]), (6, &[1])];

/// An output is the jobs that it is of.
#[derive(Default)]
struct World {
    queue: CommitQueue<Vec<u64>>,
    live: BTreeSet<u64>,
    failed: BTreeSet<u64>,
    dropped: BTreeSet<u64>,
    /// Of each job those that were merged with it.
    merged: BTreeMap<u64, Vec<u64>>,
}

fn sometimes(one_in: u32) -> bool {
    thread_rng().gen_range(0..one_in) == 0
}

/// What whoever ended something does: commits and drops what can be.
fn take_turns(world: &Mutex<World>) {
    loop {
        let step = world.lock().expect("the lock").queue.turn();
        match step {
            None => return,
            Some(Step::Drop(_, jobs)) => world.lock().expect("the lock").dropped.extend(jobs),
            Some(Step::Commit(ticket, jobs)) => {
                // The edit is written outside of the lock.
                thread::yield_now();
                let mut w = world.lock().expect("the lock");
                for needed in JOBS.iter().filter(|j| jobs.contains(&j.0)).flat_map(|j| j.1) {
                    assert!(
                        jobs.contains(needed) || w.live.contains(needed),
                        "{jobs:?} before {needed}, of {:?}",
                        w.live
                    );
                }
                if sometimes(8) {
                    w.failed.extend(jobs);
                    w.queue.failed(ticket);
                } else {
                    w.live.extend(jobs);
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
    for _ in 0..2 {
        thread::yield_now();
        fails |= ticket.doomed().load(Ordering::Acquire);
    }
    let mut w = world.lock().expect("the lock");
    if fails {
        w.failed.insert(number);
        w.queue.failed(ticket);
    } else {
        w.queue.finished(ticket, vec![number]).expect("it was issued here");
    }
    drop(w);
    take_turns(world);
}

/// What waits is merged, all of it or two.
fn merge(world: &Mutex<World>) {
    for _ in 0..4 {
        let ticket = {
            let mut w = world.lock().expect("the lock");
            let mut waiting: Vec<u64> = w.queue.waiting().map(|(number, ..)| number).collect();
            if waiting.len() > 2 && sometimes(2) {
                waiting.remove(thread_rng().gen_range(0..waiting.len()));
            }
            w.queue.begin_merge(&waiting)
        };
        thread::yield_now();
        let Some(ticket) = ticket else { continue };
        let fails = sometimes(4) || ticket.doomed().load(Ordering::Acquire);
        thread::yield_now();
        let mut w = world.lock().expect("the lock");
        if fails {
            w.queue.merge_failed(ticket);
        } else {
            let mut jobs = Vec::new();
            let done = w.queue.merged(ticket, (), |parts, ()| {
                jobs = parts.concat();
                jobs.clone()
            });
            for &job in jobs.iter().filter(|_| done.is_ok()) {
                w.merged.insert(job, jobs.clone());
            }
        }
        drop(w);
        take_turns(world);
    }
}

/// Nothing is lost, nothing waits for ever, no output is live before what it needs; and a job is dropped only where one
/// failed that it, or one that it was merged with, needed.
#[test]
fn outputs_wait_are_merged_and_end_in_any_order() {
    explore(|| {
        let world = Arc::new(Mutex::new(World::default()));
        let tickets: Vec<Ticket> = {
            let mut w = world.lock().expect("the lock");
            JOBS.iter()
                .map(|(number, needs)| w.queue.issue(Issued { number: *number, needs: needs.to_vec() }))
                .collect()
        };
        let mut threads = Vec::new();
        for ticket in tickets {
            let world = Arc::clone(&world);
            threads.push(thread::spawn(move || run(&world, ticket)));
        }
        for _ in 0..2 {
            let world = Arc::clone(&world);
            threads.push(thread::spawn(move || merge(&world)));
        }
        for t in threads {
            t.join().expect("a thread");
        }
        let w = world.lock().expect("the lock");
        assert!(w.queue.is_empty(), "{:?}", w.queue);
        for (number, _) in JOBS {
            let ends = [&w.live, &w.failed, &w.dropped].iter().filter(|s| s.contains(&number)).count();
            assert_eq!(ends, 1, "job {number} ended {ends} times");
        }
        for number in &w.dropped {
            let with = w.merged.get(number).cloned().unwrap_or_else(|| vec![*number]);
            let needed = JOBS.iter().filter(|j| with.contains(&j.0)).flat_map(|j| j.1);
            let gone = |n: &u64| w.failed.contains(n) || w.dropped.contains(n);
            assert!(needed.into_iter().any(gone), "job {number} was dropped for nothing");
        }
    });
}
