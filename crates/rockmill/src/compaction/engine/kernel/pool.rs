//! A database's part of the engine `kernel`: its program, and its share of the process's instances.
//!
//! An open or `set_options` reads the program's file and lets the kernel verify it. Only then does the program take
//! effect; an invalid program does not replace the previous one. A running part keeps the instance that it began with.
//! Instances with a replaced program are freed when they are given back.

use std::fmt::Write as _;
use std::sync::Arc;

use rockmill_io::Clock;
use rockmill_kernel::{Instance, MergeObject, Pool, Program, Unavailable};

use super::program::{InUse, named};
use crate::compaction::MergeEngine;
use crate::compaction::engine::{EngineStats, PROGRAM};
use crate::error::{Error, Result};
use crate::info_log::{InfoLog, log_at, log_info, log_warn};
use crate::options::DbOptions;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};

/// The least memory that a merge in the kernel needs.
pub(super) const MEMORY_MIN: usize = 4 << 20;

/// How long an idle instance is kept.
const IDLE_NANOS: u64 = 60_000_000_000;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct KernelPool {
    /// The process's instances; set once this database has used one.
    instances: Mutex<Option<Instances>>,
    in_use: Mutex<InUse>,
    /// Replaced programs, whose instances are not kept.
    retired: Mutex<Vec<Arc<Program>>>,
    /// Calls of the program in rings that read and write, and the reads and writes that these calls submitted.
    ring_calls: [AtomicU64; 2],
    /// What the log was told last.
    said: Mutex<Option<String>>,
}

/// The process's instances, and this database's number among their users.
#[derive(Debug)]
struct Instances {
    pool: Arc<Pool>,
    user: u64,
}

impl Default for Instances {
    fn default() -> Self {
        let pool = Pool::shared();
        let user = pool.user();
        Self { pool, user }
    }
}

impl Drop for Instances {
    fn drop(&mut self) {
        self.pool.leave(self.user);
    }
}

impl KernelPool {
    /// Takes the program that was read for an opened database. If its options ask for the engine, the program is
    /// loaded, so that the log can report what will be used. It is not an error if the kernel cannot run such programs.
    pub fn open(&self, read: InUse, db: &DbOptions, stats: &EngineStats, log: &InfoLog) -> Result<()> {
        let own = read.object.clone();
        *self.in_use.lock() = read;
        if db.merge_engine != MergeEngine::Kernel {
            return Ok(());
        }
        if let Some(own) = own
            && let Err(e) = self.try_out(&own, db, log)
            && !e.log.is_empty()
        {
            return Err(refused(db, &e));
        }
        if let Ok(instance) = self.instance(self.object(), db, stats, log) {
            self.keep(instance, &*db.clock);
        }
        Ok(())
    }

    /// Reads and checks the program of changed options, if they name one. If another option of the engine changes
    /// (`engine`), checks the program in use again. [`Self::take`] makes the result take effect.
    ///
    /// # Errors
    /// It is not a program, the kernel refuses it, or the kernel does not support such programs.
    pub fn prepare(&self, changed: &DbOptions, is_named: bool, engine: bool, log: &InfoLog) -> Result<InUse> {
        let object = if is_named { named(changed)? } else { self.in_use.lock().object.clone() };
        match &object {
            Some(own) if is_named || engine && changed.merge_engine == MergeEngine::Kernel => {
                self.try_out(own, changed, log).map_err(|e| refused(changed, &e))?;
            }
            None if is_named => log_info!(log, "merge program builtin"),
            _ => {}
        }
        Ok(InUse { object, driver: changed.kernel_driver })
    }

    /// Makes a program take effect. Instances of the previous one are freed: idle ones now, others when they are given
    /// back.
    pub fn take(&self, next: InUse) {
        let now = next.program();
        let before = std::mem::replace(&mut *self.in_use.lock(), next).program();
        let mut retired = self.retired.lock();
        retired.retain(|program| Some(program) != now.as_ref());
        if let Some(program) = before.filter(|program| Some(program) != now.as_ref()) {
            self.shared().forget(&program);
            if !retired.contains(&program) {
                retired.push(program);
            }
        }
    }

    /// How the engine runs, or why it does not.
    pub fn describe(&self, db: &DbOptions, stats: &EngineStats) -> std::result::Result<String, String> {
        if let Some(reason) = stats.missing(MergeEngine::Kernel) {
            return Err(reason);
        }
        let mut text = format!("{}, driver {}", MergeEngine::Kernel, db.kernel_driver);
        if let Some(own) = &self.in_use.lock().object {
            let _ = write!(text, ", program {own}");
        }
        if let (calls @ 1.., operations) = self.ring_calls() {
            let _ = write!(text, "; {calls} calls of it handed over {operations} reads and writes");
        }
        Ok(text)
    }

    /// Bytes of memory that this process's databases share with merge programs, including idle instances; 0 if this
    /// database does not use them.
    pub fn memory_bytes(&self) -> usize {
        self.instances.lock().as_ref().map_or(0, |instances| instances.pool.bytes())
    }

    /// Frees instances that were idle for a while.
    pub fn trim(&self, clock: &dyn Clock) {
        if let Some(Instances { pool, user }) = &*self.instances.lock() {
            pool.trim(*user, clock.monotonic_nanos(), IDLE_NANOS);
        }
    }

    /// The program for parts that begin now.
    pub(super) fn object(&self) -> std::result::Result<Arc<MergeObject>, Unavailable> {
        self.in_use.lock().object()
    }

    /// An instance for one part, kept from an earlier part or loaded now. If there is none, the reason is recorded.
    pub(super) fn instance(
        &self,
        object: std::result::Result<Arc<MergeObject>, Unavailable>,
        db: &DbOptions,
        stats: &EngineStats,
        log: &InfoLog,
    ) -> std::result::Result<Instance, Unavailable> {
        let made = object.and_then(|object| self.load(&object, db));
        let missing = made.as_ref().err().map(|e| e.reason.clone());
        if stats.note(MergeEngine::Kernel, missing, log)
            && let Err(e) = &made
        {
            log_verifier(log, e);
        }
        made
    }

    /// Keeps an instance for the next part, unless its program was replaced meanwhile.
    pub(super) fn keep(&self, instance: Instance, clock: &dyn Clock) {
        if !self.retired.lock().contains(instance.program())
            && let Some(Instances { pool, user }) = &*self.instances.lock()
        {
            pool.put(instance, *user, clock.monotonic_nanos());
        }
    }

    /// Counts calls of the program in a ring that reads and writes, and the operations that these calls submitted.
    pub(super) fn count_ring_calls(&self, calls: u64, operations: u64) {
        self.ring_calls[0].fetch_add(calls, Ordering::Relaxed);
        self.ring_calls[1].fetch_add(operations, Ordering::Relaxed);
    }

    /// Calls of the program in rings that read and write (driver `loop`), and how many reads, writes and syncs these
    /// calls submitted.
    pub(in crate::compaction) fn ring_calls(&self) -> (u64, u64) {
        let [calls, operations] = &self.ring_calls;
        (calls.load(Ordering::Relaxed), operations.load(Ordering::Relaxed))
    }

    /// Writes a line to the log if it differs from the previous one.
    pub(super) fn say_once(&self, log: &InfoLog, line: String) {
        let before = self.said.lock().replace(line.clone());
        if before.as_ref() != Some(&line) {
            log_warn!(log, "{line}");
        }
    }

    /// The instances of the process.
    fn shared(&self) -> Arc<Pool> {
        Arc::clone(&self.instances.lock().get_or_insert_with(Instances::default).pool)
    }

    fn load(&self, object: &MergeObject, db: &DbOptions) -> std::result::Result<Instance, Unavailable> {
        let (driver, bytes) = (db.kernel_driver.into(), db.compaction_io_memory.max(MEMORY_MIN));
        self.shared().take(object.program(driver)?, driver, bytes)
    }

    /// Lets the kernel verify a program, and keeps the instance for the next part.
    fn try_out(&self, object: &MergeObject, db: &DbOptions, log: &InfoLog) -> std::result::Result<(), Unavailable> {
        let instance = self.load(object, db).inspect_err(|e| log_verifier(log, e))?;
        let verified = instance.verified_instructions().unwrap_or(0);
        log_info!(log, "merge program {object}, driver {}: the verifier went over {verified} steps", db.kernel_driver);
        self.keep(instance, &*db.clock);
        Ok(())
    }
}

#[cfg(test)]
impl KernelPool {
    /// Merges with this program from now on.
    pub(in crate::compaction) fn set_object(&self, object: Option<Arc<MergeObject>>) {
        self.in_use.lock().object = object;
    }

    /// Merges with the program of another database from now on.
    pub(in crate::compaction) fn set_object_of(&self, other: &Self) {
        self.set_object(other.in_use.lock().object.clone());
    }
}

fn log_verifier(log: &InfoLog, e: &Unavailable) {
    for line in e.log.lines() {
        log_at!(log, Debug, "verifier: {line}");
    }
}

fn refused(db: &DbOptions, e: &Unavailable) -> Error {
    Error::invalid_argument(format!("{PROGRAM} {}: {e}", db.kernel_merge_program.display()))
}
