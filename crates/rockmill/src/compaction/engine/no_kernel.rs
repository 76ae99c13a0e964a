//! Replaces the engine `kernel` if the Cargo feature of this name is off: the engine is missing, and this is reported
//! in the same way as on a machine that cannot run it.

use rockmill_io::Clock;

use super::{EngineStats, MergeEngine, PartEnd, PartEngine, PartJob};
use crate::compaction::JobMeans;
use crate::error::{Error, Result};
use crate::info_log::InfoLog;
use crate::options::DbOptions;
use crate::options::engine::PROGRAM;

/// Why.
const MISSING: &str = "this build has no engine kernel, which the Cargo feature `kernel` of the crate rockmill brings";

pub(super) struct Kernel;

impl PartEngine for Kernel {
    fn kind(&self) -> MergeEngine {
        MergeEngine::Kernel
    }

    fn run(&self, job: &PartJob<'_>) -> Result<PartEnd> {
        let means = job.output.host().means();
        note(&means.engines.stats, &means.log);
        Ok(PartEnd::Missing)
    }
}

fn note(stats: &EngineStats, log: &InfoLog) {
    stats.note(MergeEngine::Kernel, Some(MISSING.to_owned()), log);
}

/// Parts that are done entry by entry: if the options ask for the engine, it is missing here as for other parts.
pub(super) fn note_scans(means: &JobMeans) {
    if means.db.merge_engine == MergeEngine::Kernel {
        note(&means.engines.stats, &means.log);
    }
}

/// No program can be read; without the engine it does not matter which one is named.
pub(super) fn read_named(_: &DbOptions) -> Result<InUse> {
    Ok(InUse)
}

/// Nothing.
#[derive(Debug, Default)]
pub(crate) struct KernelPool;

/// The built-in program.
pub(crate) struct InUse;

impl KernelPool {
    /// Says that the engine is missing, if the options of an opened database ask for it.
    pub fn open(&self, _: InUse, db: &DbOptions, stats: &EngineStats, log: &InfoLog) -> Result<()> {
        if db.merge_engine == MergeEngine::Kernel {
            note(stats, log);
        }
        Ok(())
    }

    /// Refuses a user's program, because it cannot be checked.
    pub fn prepare(&self, changed: &DbOptions, named: bool, _: bool, _: &InfoLog) -> Result<InUse> {
        let path = &changed.kernel_merge_program;
        if named && !path.as_os_str().is_empty() {
            return Err(Error::invalid_argument(format!("{PROGRAM} {}: {MISSING}", path.display())));
        }
        Ok(InUse)
    }

    pub fn take(&self, _: InUse) {}

    pub fn describe(&self, _: &DbOptions, _: &EngineStats) -> std::result::Result<String, String> {
        Err(MISSING.to_owned())
    }

    pub fn memory_bytes(&self) -> usize {
        0
    }

    pub fn ring_calls(&self) -> (u64, u64) {
        (0, 0)
    }

    pub fn trim(&self, _: &dyn Clock) {}
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use rockmill_io::{FileSystem, MemFileSystem};

    use super::*;
    use crate::properties::MERGE_ENGINE;
    use crate::{Db, Options};

    #[test]
    fn a_build_without_the_engine_says_so_and_auto_does_the_work() {
        let fs = MemFileSystem::new();
        let mut o = Options::default();
        o.create_if_missing(true);
        o.set_file_system(Arc::new(fs.clone()));
        o.set_merge_engine(MergeEngine::Kernel);
        o.db.kernel_merge_program = "/missing.o".into();
        let db = Db::open(&o, "/db").unwrap();
        let said = || db.property_value(MERGE_ENGINE).unwrap().unwrap();
        assert!(said().ends_with(&format!("for want of kernel: {MISSING}")), "{}", said());
        for round in [b"1", b"2"] {
            db.put("a", round).unwrap();
            db.put("b", round).unwrap();
            db.flush().unwrap();
        }
        db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
        let parts = db.engine_parts();
        assert!(parts.pread + parts.uring > 0 && parts.kernel + parts.handed_over == 0, "{parts:?}");
        let e = db.set_options(&[("kernel_merge_program", "/mine.o")]).unwrap_err();
        assert!(e.message().contains(&format!("kernel_merge_program /mine.o: {MISSING}")), "{e}");
        db.set_options(&[("kernel_merge_program", "builtin")]).unwrap();
        assert!(said().contains(MISSING));
        db.set_db_options(&[("merge_engine", "pread")]).unwrap();
        assert_eq!(said(), "pread");
        drop(db);
        let log = String::from_utf8(fs.read_to_vec(Path::new("/db/LOG")).unwrap()).unwrap();
        assert_eq!(log.matches("merge engine kernel is not available, auto does its work").count(), 1, "{log}");
    }
}
