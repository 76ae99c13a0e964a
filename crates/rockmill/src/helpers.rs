//! Helper threads. When cores are idle, they do pieces of the work of threads that flush and compact.
//!
//! 1. A job's thread hands pieces of work (blocks to compress or decompress) to an [`Ahead`], in order, and takes the
//!    finished pieces back in the same order.
//! 2. The database's helpers take pieces that are not begun yet. If the job's thread wants a piece that no helper has
//!    begun, it does that piece itself. If a helper is still working on it, the thread does a later piece meanwhile. It
//!    waits only when there is nothing left to do. So no job depends on a helper, and no result depends on which thread
//!    did the work.
//! 3. A core counts as idle while fewer threads do background work, for all databases of the process, than there are
//!    cores. The program's own threads are not counted, because it is not known what they do.
//!
//! A helper is started when it is first wanted, and ends when the database is closed.
//!
//! Work that cannot be cut into such pieces is done by threads that its owner starts and that end with the work. The
//! same rules limit how many there may be ([`Help::extra`]).

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
    /// Does the work. An error or a panic is reported to the thread that takes the piece back.
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
    /// How many helpers wait, or are about to.
    sleeping: AtomicUsize,
    /// How many helpers were started.
    started: AtomicUsize,
    /// How many helpers are doing a piece.
    busy: AtomicUsize,
    /// How many threads jobs have started themselves ([`Help::extra`]).
    extra: AtomicUsize,
    /// How many pieces helpers did.
    done: AtomicU64,
}

#[derive(Default)]
struct State {
    /// All that may have pieces to do.
    aheads: Vec<Arc<dyn Offers>>,
    /// Where the next search begins, so that each gets its turn.
    next: usize,
    closed: bool,
}

/// Where helpers find pieces of work.
trait Offers: Send + Sync {
    /// True if there are pieces that are not begun, and another helper may take one.
    fn wants_help(&self) -> bool;
    /// Does one of them; false if there is none any more.
    fn help(&self) -> bool;
    /// True if only idle cores may help.
    fn idle_only(&self) -> bool;
    /// How many threads may help all jobs of the database together, including those that [`Help::extra`] allowed.
    fn most_of_all(&self) -> usize;
}

impl fmt::Debug for Helpers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let started = self.shared.started.load(Ordering::Relaxed);
        f.debug_struct("Helpers").field("started", &started).finish_non_exhaustive()
    }
}

impl Helpers {
    /// Help for one part of a job, by the option `compaction_helper_threads`: -1 for idle cores, 0 for none, otherwise
    /// at most this many threads, whether cores are idle or not.
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

    /// How many pieces helpers did.
    #[cfg(test)]
    pub fn done(&self) -> u64 {
        self.shared.done.load(Ordering::Relaxed)
    }

    /// Ends the threads after their present pieces. Jobs that still run continue without helpers.
    pub fn close(&self) {
        self.shared.state.lock().closed = true;
        self.shared.wake.notify_all();
        for thread in self.threads.lock().drain(..) {
            let _ = thread.join();
        }
    }

    /// Called when a piece was handed over: wakes a helper, or starts one if there may be another.
    fn call(&self, most: usize) {
        let shared = &self.shared;
        if shared.sleeping.load(Ordering::SeqCst) > 0 {
            // After this, a helper that looked before the piece was there is waiting, and will be woken.
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
    /// Finds pieces for a helper, while `others` threads help already. If there are none that may have help now, their
    /// owners do them.
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
    /// The most threads that help this part.
    most: usize,
    /// The most threads that help all jobs of the database together.
    most_of_all: usize,
    idle_only: bool,
    /// Time that helpers spent on this part.
    nanos: Arc<AtomicU64>,
}

impl Help {
    /// The same with at most this many threads.
    pub fn at_most(mut self, threads: usize) -> Option<Self> {
        self.most = self.most.min(threads);
        (self.most > 0).then_some(self)
    }

    /// The most threads that help this part.
    pub fn most(&self) -> usize {
        self.most
    }

    /// True if a piece that is handed over now may find a helper.
    #[inline]
    pub fn is_there(&self) -> bool {
        !self.idle_only || is_idle() || self.helpers.shared.busy.load(Ordering::Relaxed) > 0
    }

    /// How many threads the caller may start for its own work, at most `want`. They count as helpers until the result
    /// is dropped, and the time until then counts as theirs.
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
        // The schedule explorer would not see these threads.
        let want = if cfg!(rockmill_shuttle) { 0 } else { want.min(self.most) };
        let working = std::iter::from_fn(next).take(want).collect();
        ExtraThreads { help: self.clone(), working, began: crate::perf_context::now_nanos() }
    }

    /// Microseconds that helpers spent on this part.
    pub fn micros(&self) -> u64 {
        self.nanos.load(Ordering::Relaxed) / 1000
    }
}

/// The threads that [`Help::extra`] allows.
pub(crate) struct ExtraThreads {
    help: Help,
    working: Vec<Working>,
    began: u64,
}

impl ExtraThreads {
    /// How many threads.
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

/// Pieces of work that are done before the thread needs them, and taken back in the order in which they were handed
/// over.
pub(crate) struct Ahead<T: Piece> {
    help: Help,
    shared: Arc<AheadShared<T>>,
    offers: Arc<dyn Offers>,
}

struct AheadShared<T> {
    pieces: Mutex<Pieces<T>>,
    /// Signalled when the piece that the owner waits for is finished.
    done: Condvar,
    /// How many pieces are not begun.
    waiting: AtomicUsize,
    /// How many helpers are at work on these pieces. It changes only under the lock of `pieces`.
    helping: AtomicUsize,
    most: usize,
    most_of_all: usize,
    idle_only: bool,
    nanos: Arc<AtomicU64>,
}

struct Pieces<T> {
    /// The number of the first piece in `places`.
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
    /// Takes the first piece that is not begun, with its number.
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
        // Pairs with `Ahead::push`, which counts a piece before it checks whether a helper sleeps.
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
    /// An empty queue of pieces.
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

    /// How many pieces were handed over and not taken back yet.
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

    /// Takes the first piece back when it is finished; `None` if there is none.
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

    /// The same, but only if it is finished already.
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
    /// Drops the pieces that are not begun, and waits for those that helpers are doing, so that no work goes on after
    /// the job.
    fn drop(&mut self) {
        self.help.helpers.shared.state.lock().aheads.retain(|a| !Arc::ptr_eq(a, &self.offers));
        let mut pieces = self.shared.pieces.lock();
        pieces.places.clear();
        pieces.first = u64::MAX; // pieces that end from now on are dropped
        while self.shared.helping.load(Ordering::Relaxed) > 0 {
            pieces.owner_waits = true;
            self.shared.done.wait(&mut pieces);
        }
    }
}

/// Counts a thread that does background work, until it is dropped.
pub(crate) struct Working(());

#[cfg(not(rockmill_shuttle))]
mod count {
    use super::{AtomicUsize, Ordering, Working};
    use std::sync::OnceLock;

    /// How many threads of the process do background work, helpers included. This is only a hint: it orders nothing.
    static WORKING: AtomicUsize = AtomicUsize::new(0);

    /// How many cores the process may use.
    pub fn cores() -> usize {
        static CORES: OnceLock<usize> = OnceLock::new();
        *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get))
    }

    /// True if there are cores that no background work uses.
    #[inline]
    pub fn is_idle() -> bool {
        WORKING.load(Ordering::Relaxed) < cores()
    }

    impl Working {
        /// Counts the calling thread.
        pub fn begin() -> Self {
            WORKING.fetch_add(1, Ordering::Relaxed);
            Self(())
        }

        /// The same, but only if a core is idle.
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

/// Under the schedule explorer no core is idle, because its runs must not depend on the machine or on earlier runs.
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
