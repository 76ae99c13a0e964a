//! Groups keys by segment, and builds segments on several threads.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::build::Job;
use crate::mix::mix;

/// Number of keys for which another thread is worthwhile.
pub(crate) const KEYS_PER_THREAD_MIN: usize = 20_000;

/// The mixed hashes by segment: each thread's part of the input is in a separate list, sorted by segment.
pub(crate) struct Partition {
    lists: Vec<List>,
}

struct List {
    mixed: Vec<u64>,
    /// The start of each segment; one more entry than segments.
    starts: Vec<usize>,
}

impl Partition {
    /// Mixes the hashes of a job and sorts them by segment.
    pub(crate) fn new(job: &Job<'_>, segments: usize, segment_of: impl Fn(u64) -> usize + Sync) -> Self {
        let threads = job.threads.min(job.hashes.len() / KEYS_PER_THREAD_MIN).max(1);
        let chunk = job.hashes.len().div_ceil(threads).max(1);
        let sort = |hashes: &[u64]| {
            let mut starts = vec![0; segments + 1];
            if segments == 1 {
                starts[1] = hashes.len();
                return List { mixed: hashes.iter().map(|&hash| mix(hash, job.salt)).collect(), starts };
            }
            for &hash in hashes {
                starts[segment_of(mix(hash, job.salt)) + 1] += 1;
            }
            for i in 1..starts.len() {
                starts[i] += starts[i - 1];
            }
            let mut mixed = vec![0; hashes.len()];
            let mut next = starts.clone();
            for &hash in hashes {
                let x = mix(hash, job.salt);
                let at = &mut next[segment_of(x)];
                mixed[*at] = x;
                *at += 1;
            }
            List { mixed, starts }
        };
        let parts = if threads == 1 { vec![job.hashes] } else { job.hashes.chunks(chunk).collect() };
        Self { lists: on_threads(parts, sort) }
    }

    /// The keys of a segment, one slice for each list.
    pub(crate) fn segment(&self, segment: usize) -> impl Iterator<Item = &[u64]> + Clone {
        self.lists.iter().map(move |list| &list.mixed[list.starts[segment]..list.starts[segment + 1]])
    }

    /// Number of keys of a segment.
    pub(crate) fn len(&self, segment: usize) -> usize {
        self.segment(segment).map(<[u64]>::len).sum()
    }
}

/// Runs `work` for ranges of consecutive segments, on as many threads as the job may use. The results are in order; the
/// first error in that order is returned.
pub(crate) fn in_parallel<P: Send, R: Send, E: Send>(
    job: &Job<'_>,
    segments: usize,
    mut split: impl FnMut(Range<usize>) -> P,
    work: impl Fn(Range<usize>, P) -> Result<R, E> + Sync,
) -> Result<Vec<R>, E> {
    let threads = job.threads.min(segments).min(job.hashes.len() / KEYS_PER_THREAD_MIN).max(1);
    let ranges = (0..threads).map(|t| segments * t / threads..segments * (t + 1) / threads);
    let parts = ranges.map(|range| (range.clone(), split(range))).collect();
    on_threads(parts, |(range, part)| work(range, part)).into_iter().collect()
}

/// Runs each of `parts` on its own thread, the first ones on the calling thread. The results are in order.
fn on_threads<P: Send, R: Send>(parts: Vec<P>, work: impl Fn(P) -> R + Sync) -> Vec<R> {
    if parts.len() <= 1 {
        return parts.into_iter().map(work).collect();
    }
    let others = parts.len() - 1;
    let done: Mutex<Vec<Option<R>>> = Mutex::new(parts.iter().map(|_| None).collect());
    let left = Mutex::new(parts.into_iter().enumerate());
    let take = || locked(&left).next();
    let work = || {
        while let Some((i, part)) = take() {
            let result = work(part);
            locked(&done)[i] = Some(result);
        }
    };
    thread::scope(|scope| {
        for _ in 0..others {
            // If a thread cannot be started, the others do its part.
            let _ = thread::Builder::new().name("perfect-hash".to_owned()).spawn_scoped(scope, work);
        }
        work();
    });
    done.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().flatten().collect()
}

/// Locks and ignores poisoning: nothing reads the data after a panic, because the panic continues in the thread that
/// started the work.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
