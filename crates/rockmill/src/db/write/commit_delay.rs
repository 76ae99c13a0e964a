//! When a group that needs a sync begins (like PostgreSQL's `commit_delay`, but set automatically).
//!
//! Writers that sync, and come back at once with the next write, fall into two parties: while one party is synced, the
//! other queues up. Then each group has half of the writers, and each write waits for two syncs. If a group waits until
//! the writers of the group before have come back, it has all of them. That pays if they come back within the time of a
//! sync. If waking all of them takes longer, two parties are better, because one wakes up while the other is synced.
//!
//! So a group waits as long as writers keep coming: each time an eighth of a sync for the next one, and at most until
//! one sync after the last sync ended. If this did not pay, the next groups do not wait. There is no leader during the
//! wait. The last writer to come becomes the leader, because it is awake; the first one sleeps like the others, and
//! leads only when the time is over.
//!
//! Times are of the machine's clock and not of the database's, because threads sleep by it.

use std::time::{Duration, Instant};

/// A group waits this part of a sync for the next writer. Simulated (`groups_that_wait_sync_more_writers`, syncs of 0.8
/// ms): a fourth or a sixteenth instead changes what 2 to 64 writers sync by at most 4 %, except a sixteenth for 4
/// writers that take 50 us to come back (-17 %). Without waits, 2 to 16 such writers sync half as much, and no number
/// of writers syncs more than 4 % more.
const WAIT_PART: u32 = 8;
/// After waits that did not pay, at most this many groups begin without a wait. Simulated: half or twice as many
/// changes less than 0.5 %; with one, 64 writers that take longer than a sync to come back sync 5 % less.
const SKIPS_MAX: u32 = 64;
/// The schedule explorer has no time, so there every group that may wait does so once.
const TIMELESS: bool = cfg!(rockmill_shuttle);

/// Measurements of earlier synced groups.
#[derive(Debug, Default)]
pub(crate) struct CommitDelay {
    /// How many there were.
    synced: u64,
    /// How many writers the last one had.
    released: usize,
    /// When it was synced.
    last: Option<Instant>,
    /// How long a sync takes: a moving average.
    sync: Duration,
    /// How many waits in a row did not pay.
    vain: u32,
    /// How many groups are still to begin without a wait.
    skips: u32,
}

/// How many writers a group waits for, and how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Company {
    /// How many writers are expected.
    expected: usize,
    /// How many of them have been seen.
    seen: usize,
    /// The end of the last sync.
    last: Instant,
    sync: Duration,
    /// When the wait for the next one ends, once a writer sleeps until then.
    until: Option<Instant>,
}

impl Company {
    /// True if all have come.
    pub fn is_whole(&self, present: usize) -> bool {
        present >= self.expected
    }

    /// Until when a writer that begins to sleep at `now` should sleep.
    pub fn sleep(&mut self, now: Instant) -> Instant {
        *self.until.get_or_insert_with(|| (now + self.sync / WAIT_PART).min(self.last + self.sync))
    }

    /// True if a writer sleeps until the time is over.
    pub fn has_sleeper(&self) -> bool {
        self.until.is_some()
    }

    /// After a sleep: true if the group should wait once more.
    pub fn waits_on(&mut self, present: usize, now: Instant) -> bool {
        if TIMELESS {
            return false;
        }
        if self.until.is_some_and(|until| now < until) {
            return true; // it was woken
        }
        let came = present > self.seen;
        (self.seen, self.until) = (present, None);
        came && !self.is_whole(present) && now < self.last + self.sync
    }

    /// True if a group of `present` writers that begins now syncs more of them per time than groups of half of them
    /// without a wait.
    fn pays(&self, present: usize, now: Instant) -> bool {
        if TIMELESS {
            return true;
        }
        let round = self.sync + now.saturating_duration_since(self.last);
        2 * self.sync.as_nanos() * present as u128 >= round.as_nanos() * self.expected as u128
    }
}

impl CommitDelay {
    /// How many groups were synced. A writer that noted a smaller number has been waiting since before the last sync
    /// ended.
    pub fn synced(&self) -> u64 {
        self.synced
    }

    /// Notes that a group of `writers` was synced now, which took `took`.
    pub fn has_synced(&mut self, writers: usize, took: Duration, now: Instant) {
        self.synced += 1;
        (self.released, self.last) = (writers, Some(now));
        self.sync = if self.sync.is_zero() { took } else { (7 * self.sync + took) / 8 };
    }

    /// Which writers a group should wait for, if any. It has `present` writers, of which `earlier` were there before
    /// the last sync ended.
    pub fn company(&mut self, present: usize, earlier: usize, now: Instant) -> Option<Company> {
        let (expected, last) = (self.released + earlier, self.last?);
        if present >= expected || (now >= last + self.sync && !TIMELESS) {
            return None;
        }
        if self.skips > 0 {
            self.skips -= 1;
            return None;
        }
        Some(Company { expected, seen: present, last, sync: self.sync, until: None })
    }

    /// A group that has waited starts, with `present` writers.
    pub fn has_waited(&mut self, company: Company, present: usize, now: Instant) {
        if company.pays(present, now) {
            (self.vain, self.skips) = (0, 0);
        } else {
            self.vain += 1;
            self.skips = SKIPS_MAX.min(1 << self.vain.min(31));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYNC: Duration = Duration::from_micros(800);

    #[test]
    fn writers_of_the_group_before_are_waited_for() {
        let (mut delay, now) = (CommitDelay::default(), Instant::now());
        assert_eq!(delay.company(1, 0, now), None, "nothing is known");
        delay.has_synced(1, SYNC, now);
        assert_eq!(delay.company(1, 0, now), None, "a writer alone is itself the group before");
        // Three have waited while one was synced.
        let mut company = delay.company(3, 3, now).unwrap();
        assert_eq!(company.expected, 4);
        assert!(!company.is_whole(3) && company.is_whole(4));
        let until = company.sleep(now);
        assert_eq!(until, now + SYNC / 8);
        assert!(company.waits_on(3, now), "it was woken");
        assert!(!company.waits_on(3, until), "nobody came");
        // Others may come one after another, until a sync would have been complete.
        let mut company = delay.company(1, 3, now).unwrap();
        for (present, part) in [(2, 1), (3, 2)] {
            company.sleep(now + SYNC * part / 10);
            assert!(company.waits_on(present, now + SYNC * (part + 2) / 10));
        }
        company.sleep(now + SYNC * 9 / 10);
        assert_eq!(company.until, Some(now + SYNC));
        assert!(!company.waits_on(4, now + SYNC), "all are there, and it is late");
        delay.has_synced(4, SYNC, now);
        assert_eq!(delay.company(1, 0, now).map(|c| c.expected), Some(4), "the first to come back");
        assert_eq!(delay.company(4, 0, now), None, "all are there");
        assert_eq!(delay.company(1, 0, now + SYNC), None, "the others have gone");
    }

    #[test]
    fn who_waits_in_vain_tries_less_and_less_often() {
        let (mut delay, now) = (CommitDelay::default(), Instant::now());
        delay.has_synced(8, SYNC, now);
        let mut tries = 0;
        for _ in 0..10_000 {
            if let Some(company) = delay.company(1, 0, now) {
                tries += 1;
                delay.has_waited(company, 5, now + SYNC / 2);
            }
        }
        assert!((100..200).contains(&tries), "{tries}");
        let company = loop {
            if let Some(company) = delay.company(1, 0, now) {
                break company;
            }
        };
        delay.has_waited(company, 7, now + SYNC / 2);
        assert!(delay.company(1, 0, now).is_some(), "it paid, and the next one tries");
    }

    /// Simulates `n` writers, with or without waits, that need `back` to return, and longer the more of them are woken.
    /// Returns synced writes per second.
    fn synced(waits: bool, n: usize, back: Duration) -> f64 {
        let (began, mut rng, mut delay) = (Instant::now(), fastrand::Rng::with_seed(7), CommitDelay::default());
        let (mut now, mut synced) = (began, 0);
        let mut coming = vec![now; n];
        let mut queue: Vec<Instant> = Vec::new();
        while now < began + Duration::from_secs(5) {
            coming.sort();
            now = now.max(if queue.is_empty() { coming[0] } else { now });
            let here = coming.partition_point(|at| *at <= now);
            queue.extend(coming.drain(..here));
            let earlier = queue.iter().filter(|at| delay.last.is_some_and(|last| **at < last)).count();
            let company = delay.company(queue.len(), earlier, now).filter(|_| waits);
            if let Some(mut company) = company {
                while !company.is_whole(queue.len()) {
                    let until = company.sleep(now);
                    if coming.first().is_some_and(|at| *at < until) {
                        queue.push(coming.remove(0));
                        now = now.max(queue[queue.len() - 1]);
                    } else {
                        now = now.max(until);
                        if !company.waits_on(queue.len(), now) {
                            break;
                        }
                    }
                }
                delay.has_waited(company, queue.len(), now);
            }
            let took = SYNC.mul_f64(0.7 + 0.6 * rng.f64());
            now += took;
            delay.has_synced(queue.len(), took, now);
            synced += queue.len();
            for i in 1..=queue.len() as u32 {
                coming.push(now + i * Duration::from_micros(5) + back.mul_f64(-(1.0 - rng.f64()).ln()));
            }
            queue.clear();
        }
        synced as f64 / (now - began).as_secs_f64()
    }

    #[test]
    fn groups_that_wait_sync_more_writers() {
        if TIMELESS {
            return;
        }
        for (n, back, at_least) in [(2, 0, 1.8), (4, 50, 1.5), (16, 100, 1.2), (64, 100, 1.0), (8, 3000, 0.95)] {
            let [with, without] = [true, false].map(|waits| synced(waits, n, Duration::from_micros(back)));
            assert!(with > at_least * without, "{n} writers, {back} us: {with} and {without} a second");
        }
    }
}
