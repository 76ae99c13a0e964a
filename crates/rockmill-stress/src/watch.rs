//! A watch over steps that do not end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::history::Step;
use crate::replay::Observer;

/// The step that is being done, and since when.
#[derive(Debug, Clone)]
pub struct Now {
    /// Place in the history.
    pub step: usize,
    /// Its text.
    pub text: String,
    since: Instant,
}

/// Notes what is being done. Clones note in the same place.
#[derive(Debug, Clone, Default)]
pub struct Watch {
    now: Arc<Mutex<Option<Now>>>,
}

impl Watch {
    /// The step that has been going on for this long.
    pub fn stuck(&self, longer_than: Duration) -> Option<Now> {
        self.now.lock().clone().filter(|now| now.since.elapsed() > longer_than)
    }

    /// Looks on from a thread of its own: calls `hangs` once a step takes longer than `limit`.
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
