//! Which program the engine `kernel` merges with, the built-in one or a user's (`kernel_merge_program`), and what of a
//! job it does.
//!
//! A program orders as one comparator, filters as one compaction filter and combines operands as one merge operator. A
//! column family with another comparator is merged by another engine; one with another filter or operator, or none, by
//! the program without its own. What a program gives that has an order or a merge loop of its own is compared with the
//! store's order, entry by entry. The settings of a filter or operator count as much as its name: with another
//! delimiter, an operator makes other values.

use std::sync::Arc;

use rockmill_format::InternalKeyComparator;
use rockmill_kernel::{FilterJob, MergeObject, Program, Unavailable};

use crate::compaction::JobMeans;
use crate::compaction::plan::JobPlan;
use crate::error::{Error, Result};
use crate::options::engine::PROGRAM;
use crate::options::{DbOptions, KernelDriver};

/// Longer than any object that the kernel takes.
const OBJECT_BYTES_MAX: u64 = 64 << 20;

/// The program that merges, and how it is run.
#[derive(Debug, Clone, Default)]
pub(crate) struct InUse {
    /// A user's; `None`: the built-in one.
    pub(super) object: Option<Arc<MergeObject>>,
    pub(super) driver: KernelDriver,
}

impl InUse {
    pub(super) fn object(&self) -> std::result::Result<Arc<MergeObject>, Unavailable> {
        match &self.object {
            Some(object) => Ok(Arc::clone(object)),
            None => MergeObject::built_in().map_err(|e| Unavailable { reason: e.to_string(), log: String::new() }),
        }
    }

    /// What is loaded of it.
    pub(super) fn program(&self) -> Option<Arc<Program>> {
        self.object().ok()?.program(self.driver.into()).ok().map(Arc::clone)
    }
}

/// Reads the program that the options name; `None`: the built-in one.
pub(super) fn named(db: &DbOptions) -> Result<Option<Arc<MergeObject>>> {
    let path = &db.kernel_merge_program;
    if path.as_os_str().is_empty() {
        return Ok(None);
    }
    let bad = |what: String| Error::invalid_argument(format!("{PROGRAM} {}: {what}", path.display()));
    let bytes = match &db.kernel_program_bytes {
        Some((name, object)) if name == path => object.to_vec(),
        _ => db.fs.read_small(path, OBJECT_BYTES_MAX).map_err(|e| bad(format!("cannot be read: {e}")))?,
    };
    let object = MergeObject::read(path.display().to_string(), &bytes).map_err(|e| bad(e.to_string()))?;
    Ok(Some(Arc::new(object)))
}

/// What a program takes over of a job's rules.
#[derive(Debug, Default)]
pub(super) struct Binding {
    /// Where it comes from.
    pub origin: String,
    /// Its order is not known to be right, and this is the one that it should have.
    pub order: Option<InternalKeyComparator>,
    /// Its comparator is its own.
    pub own_order: bool,
    /// Its filter is asked.
    pub filter: Option<FilterJob>,
    /// It combines operands.
    pub combines: bool,
}

impl Binding {
    /// How `object` does a job; why it cannot, otherwise.
    pub fn new(object: &MergeObject, plan: &JobPlan, means: &JobMeans) -> std::result::Result<Self, String> {
        let (rules, origin) = (&plan.rules, object.origin());
        let cmp = &rules.cmp;
        let name = cmp.user_comparator().name();
        let order = match object.comparator() {
            None if cmp.is_bytewise() => object.has_own_loop().then(|| cmp.clone()),
            None => return Err(format!("keys in the order of {name}")),
            Some(own) if own == name => Some(cmp.clone()),
            Some(own) => {
                return Err(format!("keys in the order of {name}, where the program {origin} has that of {own}"));
            }
        };
        let mut filter = None;
        if let (Some(own), Some(wanted)) = (object.filter(), &rules.filter) {
            let wanted_text = wanted.text();
            if own == wanted_text {
                filter = Some(FilterJob { level: wanted.level, now_micros: wanted.now_micros });
            } else {
                let cf = &plan.output.owner.cf_name;
                let line = format!(
                    "merge program {origin} filters as {own}, and column family {cf:?} has {wanted_text}: it filters \
                     by itself"
                );
                means.engines.kernel.say_once(&means.log, line);
            }
        }
        let mut combines = false;
        if let (Some(own), Some(wanted)) = (object.merge_operator(), &rules.merge_operator) {
            let wanted = wanted.option_text();
            if own == wanted {
                // A filter may be asked about any operand.
                combines = rules.filter.is_none();
            } else {
                let cf = &plan.output.owner.cf_name;
                let line = format!(
                    "merge program {origin} combines operands as {own}, and column family {cf:?} has {wanted}: the \
                     store merges them"
                );
                means.engines.kernel.say_once(&means.log, line);
            }
        }
        let own_order = object.comparator().is_some();
        Ok(Self { origin: origin.to_owned(), order, own_order, filter, combines })
    }
}
