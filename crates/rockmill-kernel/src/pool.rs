//! Idle instances of the whole process. Verifying a program and faulting its memory in takes time, so merges use
//! instances again.
//!
//! Each user of the pool has a number ([`Pool::user`]) and its own clock. A user frees the instances that it gave back
//! and that stayed idle for a while ([`Pool::trim`]). It also takes over the instances of users that have left.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::instance::{Driver, Instance, Sums, Unavailable};
use crate::object::Program;

/// Idle instances. They are freed with the last handle.
#[derive(Debug, Default)]
pub struct Pool {
    idle: Mutex<Vec<Idle>>,
    /// Totals of all instances from this pool, including those in use.
    sums: Arc<Sums>,
    users: AtomicU64,
}

/// An instance that nobody has.
#[derive(Debug)]
struct Idle {
    instance: Instance,
    /// The user that gave it back; 0 after that user has left.
    user: u64,
    /// When, by that user's clock.
    since: u64,
}

static SHARED: Mutex<Weak<Pool>> = Mutex::new(Weak::new());

impl Pool {
    /// The process's pool.
    pub fn shared() -> Arc<Self> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        shared.upgrade().unwrap_or_else(|| {
            let new = Arc::new(Self::default());
            *shared = Arc::downgrade(&new);
            new
        })
    }

    /// Takes an idle instance that runs `program` on `bytes` bytes of memory, or creates one.
    ///
    /// # Errors
    /// As [`Instance::new`].
    pub fn take(&self, program: &Arc<Program>, driver: Driver, bytes: usize) -> Result<Instance, Unavailable> {
        let kept = {
            let mut idle = self.all_idle();
            idle.iter().position(|i| runs(&i.instance, program, driver, bytes)).map(|at| idle.swap_remove(at).instance)
        };
        match kept {
            Some(instance) => Ok(instance),
            None => Instance::new(program, driver, bytes).map(|instance| instance.counted(&self.sums)),
        }
    }

    /// A number for a new user of the pool; never 0.
    pub fn user(&self) -> u64 {
        self.users.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Keeps an instance for the next merge. `user` gives it back at `now`, in nanoseconds of its clock.
    pub fn put(&self, instance: Instance, user: u64, now: u64) {
        self.all_idle().push(Idle { instance, user, since: now });
    }

    /// Frees idle instances with this program, which was replaced.
    pub fn forget(&self, program: &Arc<Program>) {
        let gone: Vec<Idle> = self.all_idle().extract_if(.., |i| i.instance.program() == program).collect();
        drop(gone);
    }

    /// Idle instances with this program.
    pub fn idle(&self, program: &Arc<Program>) -> usize {
        self.all_idle().iter().filter(|i| i.instance.program() == program).count()
    }

    /// Frees what `user` gave back at least `idle_nanos` ago, by its clock, if it is still idle.
    pub fn trim(&self, user: u64, now: u64, idle_nanos: u64) {
        let mut idle = self.all_idle();
        for left in idle.iter_mut().filter(|i| i.user == 0) {
            (left.user, left.since) = (user, now);
        }
        let old = |i: &mut Idle| i.user == user && now.saturating_sub(i.since) >= idle_nanos;
        let gone: Vec<Idle> = idle.extract_if(.., old).collect();
        drop(idle);
        drop(gone);
    }

    /// `user` leaves: its idle instances pass to the next user that calls [`Self::trim`].
    pub fn leave(&self, user: u64) {
        for left in self.all_idle().iter_mut().filter(|i| i.user == user) {
            left.user = 0;
        }
    }

    /// Bytes of memory of all instances, idle or in use.
    pub fn bytes(&self) -> usize {
        self.sums.bytes.load(Ordering::Relaxed)
    }

    /// Calls of programs so far.
    pub fn calls(&self) -> u64 {
        self.sums.calls.load(Ordering::Relaxed)
    }

    fn all_idle(&self) -> MutexGuard<'_, Vec<Idle>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn runs(m: &Instance, program: &Arc<Program>, driver: Driver, bytes: usize) -> bool {
    m.program() == program && m.driver() == driver && m.asked() == bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_are_kept_for_a_while_and_their_memory_is_counted() {
        const BYTES: usize = 1 << 20;
        let program = Arc::new(Program::read(Driver::Run.object(), Driver::Run.entry()).unwrap());
        let pool = Pool::default();
        let take = || pool.take(&program, Driver::Run, BYTES);
        let first = match take() {
            Ok(instance) => instance,
            Err(e) => return rockmill_skip::skip("a pool of instances", &rockmill_skip::Needs::Kernel.because(e)),
        };
        let memory = first.memory_bytes();
        let (a, b) = (pool.user(), pool.user());
        let second = take().unwrap();
        assert_eq!((pool.bytes(), memory >= BYTES), (2 * memory, true));
        pool.put(first, a, 100);
        pool.put(second, b, 5);
        // Another user's clock does not apply to it.
        pool.trim(b, 14, 10);
        pool.trim(a, 109, 10);
        assert_eq!(pool.bytes(), 2 * memory, "an instance went early");
        pool.trim(a, 110, 10);
        assert_eq!(pool.bytes(), memory, "an idle instance stayed");
        // The other instance is taken; no new one is created. Then a user gives it back and leaves.
        let again = take().unwrap();
        assert_eq!(pool.bytes(), memory);
        pool.put(again, b, 20);
        pool.leave(b);
        pool.trim(a, 1000, 10);
        assert_eq!(pool.bytes(), memory, "what was left goes after its while, not at once");
        pool.trim(a, 1010, 10);
        assert_eq!(pool.bytes(), 0);
    }
}
