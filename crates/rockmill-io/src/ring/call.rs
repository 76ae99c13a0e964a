//! Plain calls with the interface of a queue: used where there is no io_uring, and in memory.
//!
//! Reads are done when they are waited for, so that each goes to memory that is about to be used. Before that the
//! kernel is told that they will come (`prefetch`), which for buffered files is readahead. Writes are done at once, in
//! order.
//!
//! The memory file system uses other orders, so that tests meet completions in every order.

use super::queue::{Action, Done, Op, Queue, QueueCounts, Target};
use std::collections::VecDeque;
use std::io;

/// In which order operations are done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallOrder {
    /// Writes at once, reads when they are waited for.
    OnDemand,
    /// The oldest first, when anything is waited for.
    Oldest,
    /// The newest first.
    Newest,
    /// Any, by chance from this seed.
    Random(u64),
}

/// Operations to be done by plain calls.
#[derive(Debug)]
pub(crate) struct CallQueue {
    depth: usize,
    order: CallOrder,
    waiting: VecDeque<Op>,
    ready: Vec<Done>,
    /// Results stand for those of a ring.
    raw: bool,
    counts: QueueCounts,
}

impl CallQueue {
    pub(crate) fn new(depth: usize, order: CallOrder, raw: bool) -> Self {
        let counts = QueueCounts::default();
        Self { depth: depth.max(1), order, waiting: VecDeque::new(), ready: Vec::new(), raw, counts }
    }

    fn carry_out(&mut self, mut op: Op) -> Done {
        self.counts.enters += 1;
        let result = op.call();
        Done { op, result, raw: self.raw, bypassed: false }
    }

    /// Which waiting operation is next.
    fn choose(&mut self, wanted: u64) -> Option<usize> {
        let last = self.waiting.len().checked_sub(1)?;
        Some(match &mut self.order {
            CallOrder::OnDemand => self.waiting.iter().position(|op| op.token == wanted).unwrap_or(0),
            CallOrder::Oldest => 0,
            CallOrder::Newest => last,
            CallOrder::Random(state) => {
                *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (*state >> 33) as usize % (last + 1)
            }
        })
    }
}

impl Queue for CallQueue {
    fn depth(&self) -> usize {
        self.depth
    }

    fn push(&mut self, op: Op) {
        self.counts.operations += 1;
        if self.order != CallOrder::OnDemand {
            self.waiting.push_back(op);
            return;
        }
        if op.action == Action::Read {
            if let Target::Read(file) = &op.file.target {
                file.prefetch(op.offset, op.range.len() as u64);
            }
            self.waiting.push_back(op);
        } else {
            let done = self.carry_out(op);
            self.ready.push(done);
        }
    }

    fn submit(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn reap(&mut self, wait: usize, wanted: u64, done: &mut Vec<Done>) -> io::Result<()> {
        done.append(&mut self.ready);
        if wait > 0
            && done.is_empty()
            && let Some(next) = self.choose(wanted)
            && let Some(op) = self.waiting.remove(next)
        {
            let outcome = self.carry_out(op);
            done.push(outcome);
        }
        Ok(())
    }

    fn unsubmitted(&self) -> usize {
        0
    }

    fn counts(&self) -> QueueCounts {
        self.counts
    }
}
