//! Detects steps that hang.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::history::Step;
use crate::replay::Observer;

/// The running step, and its start.
#[derive(Debug, Clone)]
pub struct Now {
    /// Place in the history.
    pub step: usize,
    /// Its text.
    pub text: String,
    since: Instant,
}

/// Records the running step. Clones share the record.
#[derive(Debug, Clone, Default)]
pub struct Watch {
    now: Arc<Mutex<Option<Now>>>,
}

impl Watch {
    /// The step that has been running for longer than this.
    pub fn stuck(&self, longer_than: Duration) -> Option<Now> {
        self.now.lock().clone().filter(|now| now.since.elapsed() > longer_than)
    }

    /// Watches from a separate thread: calls `hangs` once a step takes longer than `limit`.
    pub fn guard(&self, limit: Duration, hangs: impl FnOnce(&Now) + Send + 'static) {
        let watch = self.clone();
        std::thread::spawn(move || {
            loop {
                std::thread::sleep(limit.min(Duration::from_secs(1)));
                if let Some(now) = watch.stuck(limit) {
                    return hangs(&now);
                }
            }
        });
    }

    /// Nothing is being done.
    pub fn rest(&self) {
        *self.now.lock() = None;
    }
}

impl Observer for Watch {
    fn before(&mut self, step: usize, what: &Step) {
        *self.now.lock() = Some(Now { step, text: what.to_string(), since: Instant::now() });
    }
}
