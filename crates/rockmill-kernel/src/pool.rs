//! Machines that no merge uses, for the whole process: the verifier takes its time over a program, and memory has to be
//! made present, so that a merge should not wait for either each time.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::machine::{Driver, Machine, Unavailable};
use crate::object::Program;

/// Idle machines. They go when the last handle does.
#[derive(Debug, Default)]
pub struct Pool {
    idle: Mutex<Vec<Machine>>,
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

    /// A machine that runs `program`, an idle one or a new one.
    ///
    /// # Errors
    /// As [`Machine::new`].
    pub fn take(&self, program: &Arc<Program>, driver: Driver, bytes: usize) -> Result<Machine, Unavailable> {
        let kept = {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            let fits = |m: &Machine| m.program() == program && m.driver() == driver && m.asked_bytes() == bytes;
            idle.iter().position(fits).map(|i| idle.swap_remove(i))
        };
        match kept {
            Some(machine) => Ok(machine),
            None => Machine::new(program, driver, bytes),
        }
    }

    /// Keeps a machine for the next merge.
    pub fn put(&self, machine: Machine) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(machine);
    }

    /// Lets go of idle machines with this program, which was replaced.
    pub fn forget(&self, program: &Arc<Program>) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|m| m.program() != program);
    }

    /// Idle machines with this program.
    pub fn idle(&self, program: &Arc<Program>) -> usize {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.iter().filter(|m| m.program() == program).count()
    }

    /// Bytes of memory of idle machines.
    pub fn idle_bytes(&self) -> usize {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).iter().map(Machine::memory_bytes).sum()
    }
}
