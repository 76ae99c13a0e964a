//! parking_lot's locks and the standard library's threads, over shuttle's.
//!
//! 1. Waits with a time limit never time out: a thread that is never notified would sleep for ever, which the tester
//!    reports as a deadlock. In the store, time limits are only a safety net, so a missing notification is found.
//! 2. There is no poisoning, as in parking_lot.

use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use shuttle::sync;

/// See [`parking_lot::Mutex`].
#[derive(Debug, Default)]
pub struct Mutex<T: ?Sized>(sync::Mutex<T>);

/// See [`parking_lot::MutexGuard`].
#[derive(Debug)]
pub struct MutexGuard<'a, T: ?Sized> {
    mutex: &'a sync::Mutex<T>,
    /// `None` only inside [`Condvar::wait`] and [`MutexGuard::unlocked`].
    guard: Option<sync::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    /// A lock around a value.
    pub const fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    /// The value.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits for the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard { mutex: &self.0, guard: Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)) }
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let guard = match self.0.try_lock() {
            Ok(guard) => guard,
            Err(std::sync::TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(std::sync::TryLockError::WouldBlock) => return None,
        };
        Some(MutexGuard { mutex: &self.0, guard: Some(guard) })
    }

    /// The value; no other thread can hold the lock.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> MutexGuard<'_, T> {
    /// Calls `f` without the lock.
    pub fn unlocked<U>(guard: &mut Self, f: impl FnOnce() -> U) -> U {
        guard.guard = None;
        let done = f();
        guard.guard = Some(guard.mutex.lock().unwrap_or_else(PoisonError::into_inner));
        done
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // invariant: the guard is there whenever its owner has it
        self.guard.as_ref().unwrap()
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // invariant: as above
        self.guard.as_mut().unwrap()
    }
}

/// See [`parking_lot::RwLock`].
#[derive(Debug, Default)]
pub struct RwLock<T: ?Sized>(sync::RwLock<T>);

/// See [`parking_lot::RwLockReadGuard`].
pub type RwLockReadGuard<'a, T> = sync::RwLockReadGuard<'a, T>;
/// See [`parking_lot::RwLockWriteGuard`].
pub type RwLockWriteGuard<'a, T> = sync::RwLockWriteGuard<'a, T>;

impl<T> RwLock<T> {
    /// A lock around a value.
    pub const fn new(value: T) -> Self {
        Self(sync::RwLock::new(value))
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Waits until nobody writes.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until nobody reads or writes.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See [`parking_lot::Condvar`].
#[derive(Debug, Default)]
pub struct Condvar(sync::Condvar);

/// See [`parking_lot::WaitTimeoutResult`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitTimeoutResult;

impl WaitTimeoutResult {
    /// Never: see the module's text.
    pub fn timed_out(&self) -> bool {
        false
    }
}

impl Condvar {
    /// A condition that nobody waits for.
    pub const fn new() -> Self {
        Self(sync::Condvar::new())
    }

    /// Gives the lock back until somebody notifies.
    pub fn wait<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>)
    where
        T: Sized,
    {
        if let Some(held) = guard.guard.take() {
            guard.guard = Some(self.0.wait(held).unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// The same: no time passes.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _: Duration) -> WaitTimeoutResult {
        self.wait(guard);
        WaitTimeoutResult
    }

    /// The same.
    pub fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, _: Instant) -> WaitTimeoutResult {
        self.wait(guard);
        WaitTimeoutResult
    }

    /// Wakes one of those who wait.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all who wait.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// See [`std::thread`].
pub mod thread {
    use std::io;

    pub use shuttle::thread::{
        JoinHandle, Scope, ScopedJoinHandle, Thread, ThreadId, current, park, scope, sleep, spawn, yield_now,
    };

    /// See [`std::thread::Builder`].
    #[derive(Debug, Default)]
    pub struct Builder(Option<String>);

    impl Builder {
        /// Of a thread without a name.
        pub fn new() -> Self {
            Self::default()
        }

        /// Gives it a name.
        pub fn name(self, name: String) -> Self {
            Self(Some(name))
        }

        /// Starts it.
        pub fn spawn<T: Send + 'static>(self, f: impl FnOnce() -> T + Send + 'static) -> io::Result<JoinHandle<T>> {
            let builder = shuttle::thread::Builder::new();
            match self.0 {
                Some(name) => builder.name(name).spawn(f),
                None => builder.spawn(f),
            }
        }

        /// Starts it in a scope.
        pub fn spawn_scoped<'scope, 'env, T: Send + 'scope>(
            self,
            scope: &'scope Scope<'scope, 'env>,
            f: impl FnOnce() -> T + Send + 'scope,
        ) -> io::Result<ScopedJoinHandle<'scope, T>> {
            Ok(scope.spawn(f))
        }
    }
}
