//! Synchronization of the store's threads: [`rockmill_io::sync`], and atomically replaced pointers.
//!
//! Normally these come from arc-swap, parking_lot and the standard library. Under `--cfg rockmill_shuttle`, the tester
//! may switch to another thread at every operation.

pub(crate) use rockmill_io::sync::{
    Backoff, Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, atomic, has_ended, thread,
    thread_local,
};

#[cfg(not(rockmill_shuttle))]
pub use arc_swap::{ArcSwap, ArcSwapOption, Guard};
#[cfg(rockmill_shuttle)]
pub use explored::{ArcSwap, ArcSwapOption, Guard};

/// One holder's share of a sum to which many threads add, for example of memory that is counted while it is in use.
#[derive(Debug)]
pub(crate) struct Share {
    sum: std::sync::Arc<atomic::AtomicUsize>,
    part: usize,
}

impl Share {
    /// Nothing, so far, of `sum`.
    pub fn of(sum: &std::sync::Arc<atomic::AtomicUsize>) -> Self {
        Self { sum: std::sync::Arc::clone(sum), part: 0 }
    }

    /// Makes it `part`.
    pub fn set(&mut self, part: usize) {
        self.sum.fetch_add(part, atomic::Ordering::Relaxed);
        self.sum.fetch_sub(self.part, atomic::Ordering::Relaxed);
        self.part = part;
    }

    /// A new share of the same sum, 0 at first.
    pub fn another(&self) -> Self {
        Self::of(&self.sum)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// A number that is unique in this process. It implies no memory order, so the tester need not switch threads here.
pub(crate) fn unique_number() -> u64 {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

/// A small number for the calling thread, from 1 on.
#[cfg(not(rockmill_shuttle))]
#[inline]
pub(crate) fn thread_number() -> usize {
    use std::cell::Cell;
    static NEXT: atomic::AtomicUsize = atomic::AtomicUsize::new(1);
    std::thread_local!(static NUMBER: Cell<usize> = const { Cell::new(0) });
    NUMBER.with(|number| {
        let mut n = number.get();
        if n == 0 {
            // Relaxed: only uniqueness matters, and not even that for correctness.
            n = NEXT.fetch_add(1, atomic::Ordering::Relaxed);
            number.set(n);
        }
        n
    })
}

/// A small number for the calling thread, from 1 on; the same in each repetition of a run.
#[cfg(rockmill_shuttle)]
pub(crate) fn thread_number() -> usize {
    usize::from(thread::current().id()) + 1
}

#[cfg(rockmill_shuttle)]
mod explored {
    use std::ops::Deref;
    use std::sync::{Arc, Mutex, PoisonError};

    use super::atomic::{AtomicBool, Ordering};

    /// See [`arc_swap::ArcSwap`].
    pub type ArcSwap<T> = Swap<Arc<T>>;
    /// See [`arc_swap::ArcSwapOption`].
    pub type ArcSwapOption<T> = Swap<Option<Arc<T>>>;

    /// A pointer that is replaced whole.
    #[derive(Debug, Default)]
    pub struct Swap<P> {
        /// Accessed before each operation, so that the tester can switch threads there.
        point: AtomicBool,
        /// Never held over such a point.
        pointer: Mutex<P>,
    }

    /// See [`arc_swap::Guard`].
    #[derive(Debug)]
    pub struct Guard<P>(P);

    impl<P> Deref for Guard<P> {
        type Target = P;

        fn deref(&self) -> &P {
            &self.0
        }
    }

    impl<T> Swap<Arc<T>> {
        /// Begins with a pointer to `value`.
        pub fn from_pointee(value: T) -> Self {
            Self { point: AtomicBool::default(), pointer: Mutex::new(Arc::new(value)) }
        }
    }

    impl<T> Swap<Option<Arc<T>>> {
        /// Begins with no pointer.
        pub fn empty() -> Self {
            Self { point: AtomicBool::default(), pointer: Mutex::new(None) }
        }
    }

    impl<P: Clone> Swap<P> {
        /// Begins with a pointer.
        pub fn new(pointer: P) -> Self {
            Self { point: AtomicBool::default(), pointer: Mutex::new(pointer) }
        }

        /// The pointer now.
        pub fn load(&self) -> Guard<P> {
            Guard(self.load_full())
        }

        /// The pointer now.
        pub fn load_full(&self) -> P {
            self.point.load(Ordering::SeqCst);
            self.pointer.lock().unwrap_or_else(PoisonError::into_inner).clone()
        }

        /// Replaces the pointer; the old one is dropped outside of the lock.
        pub fn store(&self, pointer: P) {
            drop(self.swap(pointer));
        }

        /// Replaces the pointer, and returns the old one.
        pub fn swap(&self, pointer: P) -> P {
            self.point.load(Ordering::SeqCst);
            std::mem::replace(&mut *self.pointer.lock().unwrap_or_else(PoisonError::into_inner), pointer)
        }
    }
}
