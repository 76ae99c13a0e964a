//! Which program the engine `kernel` merges with: the built-in one, or a user's (`kernel_merge_program`).
//!
//! 1. An open, or `set_options`, reads the file and has the kernel look at it. Only then does it take effect; what is
//!    no program leaves the one before in its place.
//! 2. The options of a job hold the object, so that a job ends with the program that it began with. Machines of a
//!    program that was replaced are let go when they come back.
//! 3. A program orders as one comparator and filters as one compaction filter. A column family with another comparator
//!    is merged by another engine; one with another filter, or none, by the program without its filter.

use std::path::PathBuf;
use std::sync::Arc;

use rockmill_format::InternalKeyComparator;
use rockmill_kernel::{FilterJob, MergeObject, Program, Unavailable};

use super::engine::{Engines, kernel_size};
use super::plan::Rules;
use super::{JobContext, MergeEngine};
use crate::error::{Error, Result};
use crate::info_log::{InfoLog, log_at, log_info};
use crate::options::DbOptions;

/// The name of the built-in program, beside the empty one.
const BUILT_IN: &str = "builtin";

/// Longer than any object that the kernel takes.
const OBJECT_BYTES_MAX: u64 = 64 << 20;

/// Reads what `kernel_merge_program` names into the options; `builtin` becomes an empty path.
pub(crate) fn load(db: &mut DbOptions) -> Result<()> {
    let path = &db.kernel_merge_program;
    if path.as_os_str().is_empty() || path.as_os_str() == BUILT_IN {
        db.kernel_merge_program = PathBuf::new();
        db.kernel_program = None;
        return Ok(());
    }
    let bad = |what: String| Error::invalid_argument(format!("kernel_merge_program {}: {what}", path.display()));
    let bytes = match &db.kernel_program_bytes {
        Some((name, object)) if name == path => object.to_vec(),
        _ => db.fs.read_small(path, OBJECT_BYTES_MAX).map_err(|e| bad(format!("cannot be read: {e}")))?,
    };
    let object = MergeObject::read(path.display().to_string(), &bytes).map_err(|e| bad(e.to_string()))?;
    db.kernel_program = Some(Arc::new(object));
    Ok(())
}

/// The object that the options name.
pub(super) fn object(db: &DbOptions) -> std::result::Result<Arc<MergeObject>, Unavailable> {
    match &db.kernel_program {
        Some(object) => Ok(Arc::clone(object)),
        None => MergeObject::built_in().map_err(|e| Unavailable { reason: e.to_string(), log: String::new() }),
    }
}

/// How a program does a job.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fit {
    /// Where it comes from.
    pub origin: String,
    /// It orders by itself, and this is the order that it should have.
    pub order: Option<InternalKeyComparator>,
    /// Its filter is asked.
    pub filter: Option<FilterJob>,
}

/// How `object` does a job under `rules`; why it cannot, otherwise.
pub(super) fn fit(object: &MergeObject, rules: &Rules, ctx: &JobContext) -> std::result::Result<Fit, String> {
    let (cmp, origin) = (&rules.cmp, object.origin());
    let name = cmp.user_comparator().name();
    let order = match object.comparator() {
        None if cmp.is_bytewise() => None,
        None => return Err(format!("keys in the order of {name}")),
        Some(own) if own == name => Some(cmp.clone()),
        Some(own) => {
            return Err(format!("keys in the order of {name}, where the program {origin} has that of {own}"));
        }
    };
    let mut filter = None;
    if let (Some(own), Some(wanted)) = (object.filter(), &rules.filter) {
        if own == wanted.name() {
            filter = Some(wanted.kernel_job());
        } else {
            let (cf, wanted) = (&ctx.cf_name, wanted.name());
            ctx.engines.say_once(
                &ctx.events.log,
                format!(
                    "merge program {origin} filters as {own}, and column family {cf:?} has {wanted}: it filters by \
                     itself"
                ),
            );
        }
    }
    Ok(Fit { origin: origin.to_owned(), order, filter })
}

impl Engines {
    /// Has the kernel look at the program that the options name, and keeps the machine for the next job.
    ///
    /// # Errors
    /// The program is refused, or there is no kernel that could look at it.
    pub(crate) fn check_program(&self, db: &DbOptions, log: &InfoLog) -> Result<()> {
        self.try_program(db, log).map_err(|e| refused(db, &e))
    }

    /// The same when a database is opened: that the kernel runs no such programs is no error, as it is none without
    /// a program of one's own.
    pub(crate) fn check_program_at_open(&self, db: &DbOptions, log: &InfoLog) -> Result<()> {
        if db.kernel_program.is_none() || db.merge_engine != MergeEngine::Kernel {
            return Ok(());
        }
        match self.try_program(db, log) {
            Err(e) if !e.log.is_empty() => Err(refused(db, &e)),
            _ => Ok(()),
        }
    }

    fn try_program(&self, db: &DbOptions, log: &InfoLog) -> std::result::Result<(), Unavailable> {
        let object = object(db)?;
        let machine = self.pool().take(object.program(db.kernel_driver)?, db.kernel_driver, kernel_size(db));
        let machine = machine.inspect_err(|e| {
            for line in e.log.lines() {
                log_at!(log, Debug, "verifier: {line}");
            }
        })?;
        let verified = machine.verified_instructions().unwrap_or(0);
        log_info!(log, "merge program {object}, driver {}: the verifier went over {verified} steps", db.kernel_driver);
        self.keep(machine, &*db.clock);
        Ok(())
    }

    /// Lets go of machines with a program that was replaced: of the idle ones now, of the others when they come back.
    pub(crate) fn replaced(&self, before: &DbOptions, now: &DbOptions) {
        let programs = |db: &DbOptions| -> Vec<Arc<Program>> {
            object(db).and_then(|o| o.program(db.kernel_driver).map(Arc::clone)).into_iter().collect()
        };
        let (before, now) = (programs(before), programs(now));
        let mut retired = self.retired.lock();
        retired.retain(|program| !now.contains(program));
        for program in before.into_iter().filter(|program| !now.contains(program)) {
            self.pool().forget(&program);
            if !retired.contains(&program) {
                retired.push(program);
            }
        }
    }
}

fn refused(db: &DbOptions, e: &Unavailable) -> Error {
    Error::invalid_argument(format!("kernel_merge_program {}: {e}", db.kernel_merge_program.display()))
}
