//! Numbers of files: none is given twice.

use std::sync::Arc;

use crate::error::Result;
use crate::sync::atomic::{AtomicU64, Ordering};

/// The numbers of one database's files.
#[derive(Debug)]
pub(crate) struct FileNumbers {
    next: Arc<AtomicU64>,
    first: AtomicU64,
}

impl FileNumbers {
    /// The next one is `next`.
    pub fn new(next: u64) -> Self {
        Self { next: Arc::new(AtomicU64::new(next)), first: AtomicU64::new(u64::MAX) }
    }

    /// A number that was never used.
    pub fn take(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// A function that takes numbers, for a job.
    pub fn taker(&self) -> Arc<dyn Fn() -> Result<u64> + Send + Sync> {
        let next = Arc::clone(&self.next);
        Arc::new(move || Ok(next.fetch_add(1, Ordering::Relaxed)))
    }

    /// The one that is taken next.
    pub fn next(&self) -> u64 {
        self.next.load(Ordering::Acquire)
    }

    /// `number` is or was in use: no number up to it will be given.
    pub fn pass(&self, number: u64) {
        self.next.fetch_max(number.saturating_add(1), Ordering::AcqRel);
    }

    /// Files that background threads write have numbers from this one on.
    pub fn first(&self) -> u64 {
        self.first.load(Ordering::Acquire)
    }

    /// Background threads begin.
    pub fn begin(&self) {
        self.first.store(self.next(), Ordering::Release);
    }
}
