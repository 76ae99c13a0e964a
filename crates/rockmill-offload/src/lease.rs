//! When a worker's turn at a job is over, as a pure state machine: no sockets, no clock, no device.
//!
//! ```text
//!              Accepted          Progress (renews)
//!   Offered ───────────► Held ──────┐
//!      │                  │ ▲───────┘
//!      │                  ├── Done in time ────────────────────────► Over(Done)
//!      └──────────────────┴── anything else, or no news for too long ► Over(why)
//! ```
//!
//! A lease belongs to one job, one worker, one device and one **epoch**, a number that is never given again. What is
//! over stays over: [`Lease::on`] says once that it is, and its caller then takes the device away before it looks at
//! anything that the worker said. A result counts only if the lease ended with [`End::Done`].
//!
//! Times are since any fixed moment. What came is looked at only if it came in time.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How long a worker may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Terms {
    /// Until it accepts, and from then on from one sign of life to the next.
    pub silence_max: Duration,
    /// For the whole job, without what the store itself held it up.
    pub job_max: Duration,
}

/// What happens to a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Event {
    /// The worker of this epoch begins.
    Accepted(u64),
    /// It is alive.
    Progress(u64),
    /// It says that the job is done.
    Done(u64),
    /// It does not do the job, or could not.
    Refused(u64),
    /// What came makes no sense.
    Nonsense,
    /// The connection is lost.
    Lost,
    /// The store does not want the job any more.
    Unwanted,
    /// Nothing came; time passed.
    Time,
}

/// Why a lease is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum End {
    /// The worker says that the job is done. Everything else means that it is not.
    Done,
    /// The worker did not want it, or failed.
    Refused,
    /// The worker said what makes no sense.
    Nonsense,
    /// The connection was lost.
    Lost,
    /// The worker was silent for too long.
    Silent,
    /// The worker took too long.
    Slow,
    /// The store does not want the job any more.
    Unwanted,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Done => "it was done",
            Self::Refused => "it was refused",
            Self::Nonsense => "the worker said what makes no sense",
            Self::Lost => "the connection was lost",
            Self::Silent => "the worker was silent for too long",
            Self::Slow => "the worker took too long",
            Self::Unwanted => "the job is not wanted any more",
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum State {
    Offered,
    Held,
    Over(End),
}

/// A lease. See the module.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Lease {
    epoch: u64,
    terms: Terms,
    began: Duration,
    /// The last sign of life.
    heard: Duration,
    /// How long the store itself held the worker up.
    held_up: Duration,
    state: State,
}

impl Lease {
    /// A lease that is offered at `now`.
    #[must_use]
    pub fn new(epoch: u64, terms: Terms, now: Duration) -> Self {
        Self { epoch, terms, began: now, heard: now, held_up: Duration::ZERO, state: State::Offered }
    }

    /// Its epoch.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The store itself has held the worker up for so long, since the lease began: no part of the time that it may
    /// take.
    pub fn held_up(&mut self, all: Duration) {
        self.held_up = self.held_up.max(all);
    }

    /// Why it is over; `None` as long as it is not.
    #[must_use]
    pub fn end(&self) -> Option<End> {
        match self.state {
            State::Over(end) => Some(end),
            _ => None,
        }
    }

    /// Takes an event at `now`. `Some` exactly once: the lease is over now, and the device is to be taken away.
    pub fn on(&mut self, event: Event, now: Duration) -> Option<End> {
        if matches!(self.state, State::Over(_)) {
            return None;
        }
        let end = self.late(now).or_else(|| self.take(event, now));
        if let Some(end) = end {
            self.state = State::Over(end);
        }
        end
    }

    fn late(&self, now: Duration) -> Option<End> {
        if now.saturating_sub(self.heard) >= self.terms.silence_max {
            return Some(End::Silent);
        }
        let taken = now.saturating_sub(self.began).saturating_sub(self.held_up);
        (taken >= self.terms.job_max).then_some(End::Slow)
    }

    fn take(&mut self, event: Event, now: Duration) -> Option<End> {
        match (self.state, event) {
            (State::Offered, Event::Accepted(epoch)) if epoch == self.epoch => {
                (self.state, self.heard) = (State::Held, now);
                None
            }
            (State::Held, Event::Progress(epoch)) if epoch == self.epoch => {
                self.heard = now;
                None
            }
            (State::Held, Event::Done(epoch)) if epoch == self.epoch => Some(End::Done),
            (_, Event::Refused(epoch)) if epoch == self.epoch => Some(End::Refused),
            (_, Event::Time) => None,
            (_, Event::Lost) => Some(End::Lost),
            (_, Event::Unwanted) => Some(End::Unwanted),
            // Also what is said for another epoch: nobody who has this connection has another one.
            _ => Some(End::Nonsense),
        }
    }
}

/// Gives epochs, each once.
#[derive(Debug)]
pub struct Epochs(AtomicU64);

impl Default for Epochs {
    fn default() -> Self {
        Self(AtomicU64::new(1))
    }
}

impl Epochs {
    /// One that was not given before.
    pub fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}
