//! Transfers: operations that are brought to their end, whatever the kernel does with each try.
//!
//! 1. `start` hands an operation to the queue and gives a token.
//! 2. Each completion is examined: the transfer is complete; or it continues (after a short transfer, an interruption,
//!    an unrequested cancellation, a shortage of memory); or a plain call is made because the ring cannot do it; or it
//!    has failed.
//! 3. `wait` gives the memory and the outcome, once for each token. The failure names the file and the offset.
//!
//! Invariants: a token is given out once and taken once; the number of tries is bounded, and the last is a plain call,
//! which the ring's problems do not affect.

use super::arena::Lease;
#[cfg(feature = "program")]
use super::program_slot::CompletionPlaces;
use super::queue::{Action, BatchFile, Done, Op, Queue, QueueCounts};
use super::shim::{Shim, ShimQueue};
use super::{BatchObserver, Registered};
use crate::aligned::align_down;
use crate::error::{path_error, raw_os_error};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Tries through the ring before a plain call.
const TRIES_MAX: u32 = 16;

/// Name of one transfer.
pub(crate) type Token = u64;

/// What to transfer.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) file: Arc<BatchFile>,
    pub(crate) action: Action,
    pub(crate) offset: u64,
    pub(crate) lease: Option<Lease>,
    /// The part of the lease that is transferred to or from `offset`.
    pub(crate) range: Range<usize>,
    /// Bytes that must arrive: less than the range if the range extends beyond the file's end.
    pub(crate) needed: usize,
}

/// How a transfer ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) lease: Option<Lease>,
    /// Whether the needed bytes have arrived, or the error.
    pub(crate) result: io::Result<()>,
}

/// A transfer that is not over.
#[derive(Debug)]
struct Running {
    file: Arc<BatchFile>,
    action: Action,
    offset: u64,
    range: Range<usize>,
    needed: usize,
    /// Bytes that are through.
    done: usize,
    tries: u32,
    /// Nobody waits for it.
    orphan: bool,
}

/// What a thread has in flight.
#[derive(Debug)]
pub(crate) struct Transfers {
    queue: Box<dyn Queue>,
    in_queue: usize,
    next: Token,
    running: BTreeMap<Token, Running>,
    ended: BTreeMap<Token, Ended>,
    /// Operations that wait for a place in the queue, or for another to free memory.
    waiting: VecDeque<Op>,
    done: Vec<Done>,
    /// Set when the queue itself failed: it accepts nothing more.
    broken: Option<Arc<io::Error>>,
    observers: Vec<Arc<dyn BatchObserver>>,
    /// Number of calls that entered the ring, as reported to observers.
    enters_told: u64,
    retries: u64,
    plain_calls: u64,
    /// Streams that have reads to begin.
    readers: usize,
    /// A write was left to the next entry into the kernel.
    write_waits: bool,
}

impl Transfers {
    pub(crate) fn new(queue: Box<dyn Queue>) -> Self {
        Self {
            queue,
            in_queue: 0,
            next: 0,
            running: BTreeMap::new(),
            ended: BTreeMap::new(),
            waiting: VecDeque::new(),
            done: Vec::new(),
            broken: None,
            observers: Vec::new(),
            enters_told: 0,
            retries: 0,
            plain_calls: 0,
            readers: 0,
            write_waits: false,
        }
    }

    pub(crate) fn observe(&mut self, observer: Arc<dyn BatchObserver>) {
        self.observers.push(observer);
    }

    /// Puts a shim between this and the queue. Only while nothing is in flight.
    pub(crate) fn set_shim(&mut self, shim: Shim) -> io::Result<()> {
        if self.in_queue > 0 || !self.waiting.is_empty() {
            return Err(io::Error::other("operations are in flight"));
        }
        let nothing = Box::new(super::call::CallQueue::new(1, super::CallOrder::OnDemand, false));
        let queue = std::mem::replace(&mut self.queue, nothing);
        self.queue = Box::new(ShimQueue::new(queue, shim));
        Ok(())
    }

    pub(crate) fn depth(&self) -> usize {
        self.queue.depth()
    }

    pub(crate) fn counts(&self) -> QueueCounts {
        self.queue.counts()
    }

    pub(crate) fn retries(&self) -> u64 {
        self.retries
    }

    pub(crate) fn plain_calls(&self) -> u64 {
        self.plain_calls
    }

    /// True when nothing of any stream or file is left in it: no operation, no outcome that was not taken, no failure
    /// of the queue itself.
    pub(crate) fn is_idle(&self) -> bool {
        let nothing = self.running.is_empty() && self.ended.is_empty() && self.waiting.is_empty();
        nothing && self.in_queue == 0 && self.readers == 0 && self.broken.is_none()
    }

    /// Makes the calling thread the one that starts transfers. Only while [`is_idle`](Self::is_idle).
    pub(crate) fn claim(&mut self, anew: bool) -> io::Result<Option<Registered>> {
        if !self.is_idle() {
            return Err(io::Error::other("operations are in flight, or were when the ring failed"));
        }
        self.write_waits = false;
        self.queue.claim(anew)
    }

    pub(crate) fn register(&mut self, files: &[Arc<BatchFile>]) {
        self.queue.register(files);
    }

    pub(crate) fn unregister(&mut self, files: &[Arc<BatchFile>]) {
        self.queue.unregister(files);
    }

    /// Makes place for a program in the ring.
    #[cfg(feature = "program")]
    pub(crate) fn open_slot(&mut self, completions: Option<CompletionPlaces>) -> io::Result<i32> {
        self.queue.open_slot(completions)
    }

    #[cfg(feature = "program")]
    pub(crate) fn close_slot(&mut self) {
        self.queue.close_slot();
    }

    /// Lets the program in the ring do its work; everything that was begun is handed over by it.
    #[cfg(feature = "program")]
    pub(crate) fn enter_program(&mut self, control: u32, awaited: &[Token]) -> io::Result<u32> {
        if self.broken.is_some() {
            return Err(self.broken_error());
        }
        self.fill();
        self.write_waits = false;
        let steps = self.queue.enter_program(control, awaited);
        self.tell_enters();
        self.poll();
        steps
    }

    /// Starts a transfer. Its operation may not be submitted to the kernel yet when this returns: see
    /// [`flush`](Self::flush).
    pub(crate) fn start(&mut self, transfer: Transfer) -> Token {
        let token = self.next;
        self.next += 1;
        let Transfer { file, action, offset, lease, range, needed } = transfer;
        let known = Running {
            file: Arc::clone(&file),
            action,
            offset,
            range: range.clone(),
            needed,
            done: 0,
            tries: 0,
            orphan: false,
        };
        self.running.insert(token, known);
        self.waiting.push_back(Op { token, file, action, offset, lease, range });
        self.fill();
        token
    }

    /// Moves waiting operations into the queue.
    fn fill(&mut self) {
        while self.in_queue < self.queue.depth()
            && let Some(op) = self.waiting.pop_front()
        {
            if self.broken.is_some() {
                self.finish_broken(op);
                continue;
            }
            self.in_queue += 1;
            self.queue.push(op);
        }
    }

    /// Submits the operations that were started.
    pub(crate) fn flush(&mut self) {
        self.fill();
        self.write_waits = false;
        if self.broken.is_none()
            && let Err(e) = self.queue.submit()
        {
            self.fail_queue(e);
        }
        self.tell_enters();
    }

    /// Tells observers of calls that no file has seen.
    fn tell_enters(&mut self) {
        let enters = self.queue.counts().ring_enters;
        if enters > self.enters_told {
            self.observers.iter().for_each(|observer| observer.entered(enters - self.enters_told));
            self.enters_told = enters;
        }
    }

    /// Hands a write on: now, or where a stream is being read, with its next reads. `others` is how many writes of the
    /// same file are with the device: with two, it has enough to do until the stream has to wait or has gathered a
    /// batch; with fewer, the stream's next step hands it on.
    pub(crate) fn flush_write(&mut self, others: usize) {
        if self.readers == 0 || self.in_queue == self.queue.unsubmitted() {
            self.flush();
        } else {
            self.write_waits |= others < 2;
        }
    }

    /// Submits the gathered operations if they are at least `batch` or include a write.
    pub(crate) fn flush_batch(&mut self, batch: usize) {
        if self.write_waits || self.queue.unsubmitted() >= batch {
            self.flush();
        }
    }

    /// A stream begins (`true`) or has begun its last read.
    pub(crate) fn count_reader(&mut self, begins: bool) {
        self.readers = if begins { self.readers + 1 } else { self.readers.saturating_sub(1) };
    }

    /// Takes completed operations, without waiting.
    pub(crate) fn poll(&mut self) {
        self.reap(0, Token::MAX);
    }

    /// True when waiting for it would not take time.
    pub(crate) fn is_ended(&self, token: Token) -> bool {
        self.ended.contains_key(&token)
    }

    /// Waits for the oldest write that is not through, whosever it is, and leaves its outcome for its owner. False when
    /// there is none.
    pub(crate) fn await_write(&mut self) -> bool {
        let oldest = self.running.iter().find(|(_, running)| running.action == Action::Write);
        let Some(token) = oldest.map(|(token, _)| *token) else { return false };
        while self.broken.is_none() && self.running.contains_key(&token) {
            self.reap(1, token);
        }
        self.broken.is_none()
    }

    /// Waits for a transfer and gives its outcome.
    pub(crate) fn wait(&mut self, token: Token) -> Ended {
        loop {
            if let Some(ended) = self.ended.remove(&token) {
                return ended;
            }
            if self.broken.is_some() || !self.running.contains_key(&token) {
                // Its operation stays with the queue, which gives its memory up only when that is safe.
                let result = match self.running.remove(&token) {
                    Some(running) => Err(named(running.offset, &running, self.broken_error())),
                    None => Err(io::Error::other("this transfer was taken before")),
                };
                return Ended { lease: None, result };
            }
            self.reap(1, token);
        }
    }

    /// Waits until all of these are complete, together and not one by one. The caller must then fetch their outcomes.
    pub(crate) fn await_all(&mut self, tokens: &VecDeque<Token>) {
        while self.broken.is_none()
            && let Some(first) = tokens.iter().find(|token| self.running.contains_key(token)).copied()
        {
            let running = tokens.iter().filter(|token| self.running.contains_key(token)).count();
            self.reap(running, first);
        }
    }

    /// Nobody will wait for this one: its outcome is dropped.
    pub(crate) fn abandon(&mut self, token: Token) {
        if self.ended.remove(&token).is_none()
            && let Some(running) = self.running.get_mut(&token)
        {
            running.orphan = true;
        }
    }

    /// Waits for everything that was abandoned.
    pub(crate) fn settle(&mut self) {
        while self.broken.is_none()
            && let Some(token) = self.running.iter().find_map(|(token, running)| running.orphan.then_some(*token))
        {
            self.reap(1, token);
        }
    }

    fn reap(&mut self, wait: usize, wanted: Token) {
        self.fill();
        if self.broken.is_some() {
            return;
        }
        self.write_waits &= wait == 0;
        let mut done = std::mem::take(&mut self.done);
        let result = self.queue.reap(wait, wanted, &mut done);
        self.tell_enters();
        self.in_queue -= done.len();
        for done in done.drain(..) {
            self.look_at(done);
        }
        self.done = done;
        if let Err(e) = result {
            self.fail_queue(e);
        }
        self.fill();
    }

    #[cold]
    fn fail_queue(&mut self, error: io::Error) {
        let message = format!("the ring failed: {error}");
        self.broken = Some(Arc::new(io::Error::new(error.kind(), message)));
        while let Some(op) = self.waiting.pop_front() {
            self.finish_broken(op);
        }
    }

    fn finish_broken(&mut self, op: Op) {
        let error = self.broken_error();
        self.end(op, Err(error));
    }

    fn broken_error(&self) -> io::Error {
        match &self.broken {
            Some(broken) => io::Error::new(broken.kind(), Arc::clone(broken)),
            None => io::Error::other("the ring failed"),
        }
    }

    fn end(&mut self, op: Op, result: io::Result<()>) {
        let Some(running) = self.running.remove(&op.token) else { return };
        if !running.orphan {
            let result = result.map_err(|e| named(op.offset, &running, e));
            // The owner does not need written data any more; dropping its lease frees the memory for the next buffer.
            let lease = op.lease.filter(|_| op.action == Action::Read);
            self.ended.insert(op.token, Ended { lease, result });
        }
    }

    /// Decides what becomes of a transfer after one try.
    fn look_at(&mut self, done: Done) {
        let Done { mut op, result, raw, bypassed } = done;
        if bypassed {
            let bytes = *result.as_ref().unwrap_or(&0) as u64;
            self.observers.iter().for_each(|observer| tell(&**observer, op.action, bytes));
        }
        let Some(running) = self.running.get_mut(&op.token) else { return };
        running.tries += 1;
        // A layer below may have requested less.
        op.range.end = running.range.end;
        let transfers = matches!(op.action, Action::Read | Action::Write);
        match result {
            Ok(_) if !transfers => self.end(op, Ok(())),
            Ok(n) => {
                let reached = (op.range.start - running.range.start) + n.min(op.range.len());
                let before = running.done;
                running.done = running.done.max(reached);
                if running.done >= running.needed {
                    return self.end(op, Ok(()));
                }
                if n == 0 {
                    let kind = match op.action {
                        Action::Read => io::ErrorKind::UnexpectedEof,
                        _ => io::ErrorKind::WriteZero,
                    };
                    return self.end(op, Err(kind.into()));
                }
                // A direct transfer continues from the start of a sector.
                let from = match op.file.is_direct() {
                    true => align_down(running.done as u64) as usize,
                    false => running.done,
                };
                // Progress restarts the count. Less than a sector is no progress, because the ring cannot continue from
                // there.
                running.tries = 0;
                let (start, end) = (running.range.start + from, running.range.end);
                op.offset = running.offset + from as u64;
                op.range = start..end;
                if running.done == before {
                    return self.call(op);
                }
                self.again(op);
            }
            Err(e) if raw => {
                // A failed sync is never tried again, but one that did not happen is.
                let again = match raw_os_error(&e) {
                    Some(libc::EINTR | libc::EAGAIN | libc::ECANCELED) => Again::Ring,
                    // Memory comes free when another operation is done.
                    Some(libc::ENOMEM) if transfers && self.in_queue > 0 => Again::Ring,
                    Some(libc::ENOMEM) if transfers => Again::Call,
                    // What the ring does not do here, a plain call may.
                    Some(libc::EINVAL | libc::EOPNOTSUPP | libc::ENOSYS | libc::EFAULT) => Again::Call,
                    _ => Again::No,
                };
                match again {
                    Again::Ring if running.tries < TRIES_MAX => self.again(op),
                    Again::Ring | Again::Call => self.call(op),
                    Again::No => self.end(op, Err(e)),
                }
            }
            Err(e) => self.end(op, Err(e)),
        }
    }

    fn again(&mut self, op: Op) {
        self.retries += 1;
        self.waiting.push_back(op);
    }

    /// Does the rest by plain calls.
    #[cold]
    fn call(&mut self, mut op: Op) {
        let Some(running) = self.running.get_mut(&op.token) else { return };
        let needed_end = running.range.start + running.needed;
        let mut calls = 0;
        let result = loop {
            calls += 1;
            match op.call() {
                Ok(_) if !matches!(op.action, Action::Read | Action::Write) => break Ok(()),
                Ok(n) => {
                    let n = n.min(op.range.len());
                    if op.range.start + n >= needed_end {
                        break Ok(());
                    }
                    if n == 0 {
                        let eof = op.action == Action::Read;
                        break Err(if eof { io::ErrorKind::UnexpectedEof } else { io::ErrorKind::WriteZero }.into());
                    }
                    // Files take any alignment in a plain call.
                    op.offset += n as u64;
                    op.range.start += n;
                }
                // Interruptions were the file's own matter.
                Err(e) => break Err(e),
            }
        };
        self.plain_calls += calls;
        self.end(op, result);
    }
}

/// What to do after a failed try.
enum Again {
    Ring,
    Call,
    No,
}

fn tell(observer: &dyn BatchObserver, action: Action, bytes: u64) {
    match action {
        Action::Read => observer.read(bytes),
        Action::Write => observer.written(bytes),
        Action::Sync => observer.synced(),
        Action::StartWriteBack(_) => observer.write_back(),
        Action::AwaitWriteBack(_) => {}
    }
}

/// An error that names the file and the offset. A plain call has named them itself.
#[cold]
fn named(at: u64, running: &Running, error: io::Error) -> io::Error {
    if error.get_ref().is_some_and(|inner| inner.is::<crate::error::PathError>()) {
        return error;
    }
    let path = running.file.path();
    match running.action {
        Action::Read if error.kind() == io::ErrorKind::UnexpectedEof => {
            let end = running.offset + running.done as u64;
            let wanted = running.offset + running.needed as u64;
            let what = format!("the file ends at {end}, bytes up to {wanted} were expected");
            path_error(format!("read at {} from", running.offset), path, io::Error::new(error.kind(), what))
        }
        Action::Read => path_error(format!("read at {at} from"), path, error),
        Action::Write => path_error(format!("write at {at} to"), path, error),
        Action::Sync => path_error("fdatasync", path, error),
        Action::StartWriteBack(_) => path_error(format!("start write-back at {at} of"), path, error),
        Action::AwaitWriteBack(_) => path_error(format!("await write-back at {at} of"), path, error),
    }
}
