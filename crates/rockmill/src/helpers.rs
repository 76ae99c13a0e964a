//! Helper threads: where cores are idle, they take pieces of work off the threads that flush and compact.
//!
//! 1. A job's thread hands pieces (blocks to compress or to decompress) to an [`Ahead`], in order, and takes them back
//!    in this order, done.
//! 2. Helpers of the database take pieces that nobody has begun. The thread that takes a piece back before anybody has
//!    begun it does it itself, and while the next one is at work elsewhere it does a later one: it waits only when
//!    there is nothing left to do. So nothing depends on whether a helper comes, and no result on who did the work.
//! 3. A core is idle when fewer threads do background work, of all databases of the process, than there are cores.
//!    Threads of the program itself are not counted: nothing tells what they do.
//!
//! Helpers are started when they are first wanted and end when the database is closed.
//!
//! Work that cannot be cut into such pieces is done by threads that its owner starts, and that end with it: the same
//! rules say how many ([`Help::extra`]).

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use crate::error::Result;
use crate::panics::guarded;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::thread::JoinHandle;
use crate::sync::{Condvar, Mutex};

/// A piece of work.
pub(crate) trait Piece: Send + 'static {
    /// Does it. What goes wrong is told to the thread that takes the piece back, and so is a panic.
    fn run(&mut self) -> Result<()>;
}

/// The helper threads of a database.
#[derive(Default)]
pub(crate) struct Helpers {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Signalled when there is a piece to do.
    wake: Condvar,
    /// Helpers that wait, or are about to.
    sleeping: AtomicUsize,
    /// Helpers that were started.
    started: AtomicUsize,
    /// Helpers that do a piece.
    busy: AtomicUsize,
    /// Threads that jobs have started themselves ([`Help::extra`]).
    extra: AtomicUsize,
    /// Pieces that helpers did.
    done: AtomicU64,
}

#[derive(Default)]
struct State {
    /// Everything that may have pieces to do.
    aheads: Vec<Arc<dyn Offers>>,
    /// Where the next look begins, so that each has its turn.
    next: usize,
    closed: bool,
}

/// Where helpers find pieces.
trait Offers: Send + Sync {
    /// There are pieces that nobody has begun, and another helper may take one.
    fn wants_help(&self) -> bool;
    /// Does one of them; false when there is none any more.
    fn help(&self) -> bool;
    /// Help is for idle cores only.
    fn idle_only(&self) -> bool;
    /// How many threads may help whoever it is, those that [`Help::extra`] allowed included.
    fn most_of_all(&self) -> usize;
}

impl fmt::Debug for Helpers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let started = self.shared.started.load(Ordering::Relaxed);
        f.debug_struct("Helpers").field("started", &started).finish_non_exhaustive()
    }
}

impl Helpers {
    /// Help for one part of a job, as the option `compaction_helper_threads` has it: -1 where cores are idle, 0 none,
    /// otherwise so many threads at most, idle cores or not.
    pub fn help(self: &Arc<Self>, option: i32) -> Option<Help> {
        let (most, idle_only) = match usize::try_from(option) {
            Ok(most) => (most, false),
            Err(_) => (cores().saturating_sub(1), true),
        };
        (most > 0).then(|| Help {
            helpers: Arc::clone(self),
            most,
            most_of_all: most,
            idle_only,
            nanos: Arc::default(),
        })
    }

    /// Pieces that helpers did.
    #[cfg(test)]
    pub fn done(&self) -> u64 {
        self.shared.done.load(Ordering::Relaxed)
    }

    /// Ends the threads, when they have done what they are at. Jobs that still run go on without.
    pub fn close(&self) {
        self.shared.state.lock().closed = true;
        self.shared.wake.notify_all();
        for thread in self.threads.lock().drain(..) {
            let _ = thread.join();
        }
    }

    /// A piece was handed over: wakes a helper, or starts one, if there may be another.
    fn call(&self, most: usize) {
        let shared = &self.shared;
        if shared.sleeping.load(Ordering::SeqCst) > 0 {
            // Whoever looked before the piece was there waits by now.
            drop(shared.state.lock());
            shared.wake.notify_one();
        } else if shared.started.load(Ordering::Relaxed) < most {
            self.start(most);
        }
    }

    #[cold]
    fn start(&self, most: usize) {
        let mut threads = self.threads.lock();
        if self.shared.state.lock().closed || threads.len() >= most {
            return;
        }
        let (shared, name) = (Arc::clone(&self.shared), format!("rockmill:help{}", threads.len()));
        // If a thread cannot be started, the work is done without it.
        if let Ok(thread) = crate::sync::thread::Builder::new().name(name).spawn(move || helper(&shared)) {
            threads.push(thread);
            self.shared.started.store(threads.len(), Ordering::Relaxed);
        }
    }
}

impl Drop for Helpers {
    fn drop(&mut self) {
        self.close();
    }
}

/// A helper thread.
fn helper(shared: &Shared) {
    loop {
        let (ahead, working) = {
            let mut state = shared.state.lock();
            shared.sleeping.fetch_add(1, Ordering::SeqCst);
            let found = loop {
                if state.closed {
                    shared.sleeping.fetch_sub(1, Ordering::SeqCst);
                    return;
                }
                let others = shared.busy.load(Ordering::Relaxed) + shared.extra.load(Ordering::Relaxed);
                if let Some(found) = state.pick(others) {
                    break found;
                }
                shared.wake.wait(&mut state);
            };
            shared.sleeping.fetch_sub(1, Ordering::SeqCst);
            found
        };
        shared.busy.fetch_add(1, Ordering::Relaxed);
        if ahead.help() {
            shared.done.fetch_add(1, Ordering::Relaxed);
        }
        shared.busy.fetch_sub(1, Ordering::Relaxed);
        drop(working);
    }
}

impl State {
    /// Something that wants help which may be given now, next to so many others who help. Where nothing may, whoever
    /// owns the pieces does them.
    fn pick(&mut self, others: usize) -> Option<(Arc<dyn Offers>, Working)> {
        let count = self.aheads.len();
        for i in 0..count {
            let at = (self.next + i) % count;
            let ahead = &self.aheads[at];
            if ahead.wants_help()
                && others < ahead.most_of_all()
                && let Some(working) = if ahead.idle_only() { Working::if_idle() } else { Some(Working::begin()) }
            {
                self.next = at + 1;
                return Some((Arc::clone(ahead), working));
            }
        }
        None
    }
}

/// The help that a part of a job may have.
#[derive(Clone)]
pub(crate) struct Help {
    helpers: Arc<Helpers>,
    /// Threads that help it at most.
    most: usize,
    /// Threads that help at most, whoever it is.
    most_of_all: usize,
    idle_only: bool,
    /// Time that helpers spent on it.
    nanos: Arc<AtomicU64>,
}

impl Help {
    /// The same with so many threads at most.
    pub fn at_most(mut self, threads: usize) -> Option<Self> {
        self.most = self.most.min(threads);
        (self.most > 0).then_some(self)
    }

    /// Threads that help at most.
    pub fn most(&self) -> usize {
        self.most
    }

    /// True when pieces that are handed over now may find a helper.
    #[inline]
    pub fn is_there(&self) -> bool {
        !self.idle_only || is_idle() || self.helpers.shared.busy.load(Ordering::Relaxed) > 0
    }

    /// How many threads the caller may start for work of its own, `want` at most: they count as helpers until the
    /// result is dropped, and the time until then as theirs.
    pub fn extra(&self, want: usize) -> ExtraThreads {
        let shared = &self.helpers.shared;
        let more = |n| (n + shared.busy.load(Ordering::Relaxed) < self.most_of_all).then_some(n + 1);
        let next = || {
            shared.extra.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
            let working = if self.idle_only { Working::if_idle() } else { Some(Working::begin()) };
            if working.is_none() {
                shared.extra.fetch_sub(1, Ordering::Relaxed);
            }
            working
        };
        // A schedule explorer does not see them.
        let want = if cfg!(rockmill_shuttle) { 0 } else { want.min(self.most) };
        let working = std::iter::from_fn(next).take(want).collect();
        ExtraThreads { help: self.clone(), working, began: crate::perf_context::now_nanos() }
    }

    /// Microseconds that helpers have spent.
    pub fn micros(&self) -> u64 {
        self.nanos.load(Ordering::Relaxed) / 1000
    }
}

/// What [`Help::extra`] allows.
pub(crate) struct ExtraThreads {
    help: Help,
    working: Vec<Working>,
    began: u64,
}

impl ExtraThreads {
    /// How many.
    pub fn count(&self) -> usize {
        self.working.len()
    }
}

impl Drop for ExtraThreads {
    fn drop(&mut self) {
        let threads = self.working.len();
        self.help.helpers.shared.extra.fetch_sub(threads, Ordering::Relaxed);
        let nanos = crate::perf_context::now_nanos().saturating_sub(self.began);
        self.help.nanos.fetch_add(nanos * threads as u64, Ordering::Relaxed);
    }
}

/// Pieces of work that are done ahead of the thread which needs them, taken back in the order they were handed over.
pub(crate) struct Ahead<T: Piece> {
    help: Help,
    shared: Arc<AheadShared<T>>,
    offers: Arc<dyn Offers>,
}

struct AheadShared<T> {
    pieces: Mutex<Pieces<T>>,
    /// Signalled when the piece that the owner waits for is done.
    done: Condvar,
    /// Pieces that nobody has begun.
    waiting: AtomicUsize,
    /// Helpers at work on it. Changes under the lock of `pieces` only.
    helping: AtomicUsize,
    most: usize,
    most_of_all: usize,
    idle_only: bool,
    nanos: Arc<AtomicU64>,
}

struct Pieces<T> {
    /// Number of the first in `places`.
    first: u64,
    places: VecDeque<PieceState<T>>,
    owner_waits: bool,
}

enum PieceState<T> {
    Waiting(T),
    Begun,
    Done(T, Result<()>),
}

impl<T: Piece> Pieces<T> {
    /// Takes the first piece that nobody has begun, with its number.
    fn begin(&mut self) -> Option<(u64, T)> {
        let at = self.places.iter().position(|p| matches!(p, PieceState::Waiting(_)))?;
        match std::mem::replace(&mut self.places[at], PieceState::Begun) {
            PieceState::Waiting(piece) => Some((self.first + at as u64, piece)),
            other => {
                self.places[at] = other;
                None
            }
        }
    }

    fn end(&mut self, number: u64, piece: T, result: Result<()>) {
        let at = number.checked_sub(self.first).and_then(|at| usize::try_from(at).ok());
        if let Some(place) = at.and_then(|at| self.places.get_mut(at)) {
            *place = PieceState::Done(piece, result);
        }
    }
}

impl<T: Piece> Offers for AheadShared<T> {
    fn wants_help(&self) -> bool {
        // Against `Ahead::push`, which counts a piece before it looks whether a helper sleeps.
        self.waiting.load(Ordering::SeqCst) > 0 && self.helping.load(Ordering::Relaxed) < self.most
    }

    fn help(&self) -> bool {
        let (number, mut piece) = {
            let mut pieces = self.pieces.lock();
            let Some(begun) = pieces.begin() else { return false };
            self.helping.fetch_add(1, Ordering::Relaxed);
            begun
        };
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        let began = crate::perf_context::now_nanos();
        let result = guarded("a helper thread", || piece.run());
        self.nanos.fetch_add(crate::perf_context::now_nanos().saturating_sub(began), Ordering::Relaxed);
        let mut pieces = self.pieces.lock();
        self.helping.fetch_sub(1, Ordering::Relaxed);
        pieces.end(number, piece, result);
        if std::mem::take(&mut pieces.owner_waits) {
            self.done.notify_one();
        }
        true
    }

    fn idle_only(&self) -> bool {
        self.idle_only
    }

    fn most_of_all(&self) -> usize {
        self.most_of_all
    }
}

impl<T: Piece> Ahead<T> {
    /// Nothing handed over yet.
    pub fn new(help: &Help) -> Self {
        let shared = Arc::new(AheadShared {
            pieces: Mutex::new(Pieces { first: 0, places: VecDeque::new(), owner_waits: false }),
            done: Condvar::new(),
            waiting: AtomicUsize::new(0),
            helping: AtomicUsize::new(0),
            most: help.most,
            most_of_all: help.most_of_all,
            idle_only: help.idle_only,
            nanos: Arc::clone(&help.nanos),
        });
        let offers: Arc<dyn Offers> = Arc::clone(&shared) as _;
        help.helpers.shared.state.lock().aheads.push(Arc::clone(&offers));
        Self { help: help.clone(), shared, offers }
    }

    /// Pieces that were handed over and not taken back.
    pub fn len(&self) -> usize {
        self.shared.pieces.lock().places.len()
    }

    /// Hands a piece over.
    pub fn push(&mut self, piece: T) {
        self.shared.waiting.fetch_add(1, Ordering::SeqCst);
        self.shared.pieces.lock().places.push_back(PieceState::Waiting(piece));
        if !self.help.idle_only || is_idle() {
            self.help.helpers.call(self.help.most);
        }
    }

    /// Takes the first piece back, done; `None` when there is none.
    pub fn take(&mut self) -> Option<Result<T>> {
        let mut pieces = self.shared.pieces.lock();
        loop {
            match pieces.places.front()? {
                PieceState::Done(..) => return pieces.pop(),
                _ => match pieces.begin() {
                    Some((number, mut piece)) => {
                        drop(pieces);
                        self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
                        let result = piece.run();
                        pieces = self.shared.pieces.lock();
                        pieces.end(number, piece, result);
                    }
                    None => {
                        pieces.owner_waits = true;
                        self.shared.done.wait(&mut pieces);
                    }
                },
            }
        }
    }

    /// The same if it is done already.
    pub fn take_done(&mut self) -> Option<Result<T>> {
        let mut pieces = self.shared.pieces.lock();
        match pieces.places.front()? {
            PieceState::Done(..) => pieces.pop(),
            _ => None,
        }
    }
}

impl<T> Pieces<T> {
    fn pop(&mut self) -> Option<Result<T>> {
        match self.places.pop_front()? {
            PieceState::Done(piece, result) => {
                self.first += 1;
                Some(result.map(|()| piece))
            }
            other => {
                self.places.push_front(other);
                None
            }
        }
    }
}

impl<T: Piece> Drop for Ahead<T> {
    /// What nobody has begun is dropped; what a helper is at is waited for, so that nothing goes on behind the job.
    fn drop(&mut self) {
        self.help.helpers.shared.state.lock().aheads.retain(|a| !Arc::ptr_eq(a, &self.offers));
        let mut pieces = self.shared.pieces.lock();
        pieces.places.clear();
        pieces.first = u64::MAX; // what ends now is dropped where it ends
        while self.shared.helping.load(Ordering::Relaxed) > 0 {
            pieces.owner_waits = true;
            self.shared.done.wait(&mut pieces);
        }
    }
}

/// A thread that does background work now.
pub(crate) struct Working(());

#[cfg(not(rockmill_shuttle))]
mod count {
    use super::{AtomicUsize, Ordering, Working};
    use std::sync::OnceLock;

    /// Threads of the process that do background work, helpers included. Only a hint: it orders nothing.
    static WORKING: AtomicUsize = AtomicUsize::new(0);

    /// Cores that the process may use.
    pub fn cores() -> usize {
        static CORES: OnceLock<usize> = OnceLock::new();
        *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get))
    }

    /// There are cores that no background work uses.
    #[inline]
    pub fn is_idle() -> bool {
        WORKING.load(Ordering::Relaxed) < cores()
    }

    impl Working {
        /// The calling thread begins.
        pub fn begin() -> Self {
            WORKING.fetch_add(1, Ordering::Relaxed);
            Self(())
        }

        /// The same if there is a core for it.
        pub fn if_idle() -> Option<Self> {
            let more = |n| (n < cores()).then_some(n + 1);
            WORKING.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok().map(|_| Self(()))
        }
    }

    impl Drop for Working {
        fn drop(&mut self) {
            WORKING.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// A schedule explorer's runs must not depend on the machine, nor on the run before: no core is idle there.
#[cfg(rockmill_shuttle)]
mod count {
    use super::Working;

    pub fn cores() -> usize {
        1
    }

    pub fn is_idle() -> bool {
        false
    }

    impl Working {
        pub fn begin() -> Self {
            Self(())
        }

        pub fn if_idle() -> Option<Self> {
            None
        }
    }
}

use count::{cores, is_idle};

#[cfg(all(test, not(rockmill_shuttle)))]
mod tests;
