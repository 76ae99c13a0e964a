//! What `compact_range` would do: its first jobs as plans and SST-Maps, made as the jobs themselves make them, without
//! doing the work and without reading a block of data.

use std::sync::Arc;

use crate::compaction::Compaction;
use crate::compaction::plan::JobPlan;
use crate::compaction::spec::{JobSpec, SpecFile};
use crate::compaction::sst_map::SstMap;
use crate::compaction::strategy::aging::Moment;
use crate::compaction::strategy::manual::{ManualPick, ManualStep, ManualWalk};
use crate::compaction::tombstones::Tombstones;
use crate::compaction_filter::TableFileCreationReason;
use crate::db::{AsColumnFamilyRef, CfState, Db};
use crate::error::{Error, Result};
use crate::options::{CfOptions, CompactOptions};

/// What a manual compaction would do now.
#[derive(Debug, Default)]
pub struct CompactionExplanation {
    /// The jobs of its first step, by key. Those of later steps depend on what these write.
    pub jobs: Vec<ExplainedJob>,
    /// The later steps that find something, as the tree is now.
    pub later: Vec<LaterStep>,
    /// Entries in memtables. They would be flushed into L0 first, and are not part of any job here.
    pub unflushed_entries: u64,
    /// Running compactions hold tables that the next job of the first step needs, so it would wait for them.
    pub waits: bool,
}

/// One job.
#[derive(Debug)]
pub struct ExplainedJob {
    /// The picked job.
    pub compaction: Compaction,
    /// What would be done; `None` if the tables are only moved to another level, or deleted.
    pub work: Option<ExplainedWork>,
}

/// The inputs of a job, the rules of its merge, and its outputs.
#[derive(Debug)]
pub struct ExplainedWork {
    /// Runs, rules, outputs and parts.
    pub plan: JobPlan,
    /// For each part, every block that it reads.
    pub maps: Vec<SstMap>,
    /// Input tables that range tombstones of newer ones delete as a whole: they are not read.
    pub covered: Vec<Arc<SpecFile>>,
    /// Input tables with range tombstones.
    pub tables_with_tombstones: usize,
}

/// A step of the walk down the tree that is not planned yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaterStep {
    /// The level that it reads from.
    pub level: usize,
    /// The level that it writes to; the same level if that is rewritten.
    pub output_level: usize,
    /// Tables of the range that are in the level now; more come from above.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
}

/// What [`Db::compact_range_cf_opt`] with these arguments would do now, without doing it: a
/// database that was opened for reading can be asked, too. Tables that are open are not read; others are opened for
/// their indexes.
///
/// # Errors
/// If the end is before the start, or if a table cannot be opened.
pub fn explain_compact_range_cf_opt<S: AsRef<[u8]>, E: AsRef<[u8]>>(
    db: &Db,
    cf: &impl AsColumnFamilyRef,
    start: Option<S>,
    end: Option<E>,
    options: &CompactOptions,
) -> Result<CompactionExplanation> {
    let (db, cf) = (&db.inner, &cf.as_cf().data);
    db.check_family(cf)?;
    let (start, end) = (start.as_ref().map(AsRef::as_ref), end.as_ref().map(AsRef::as_ref));
    if let (Some(s), Some(e)) = (start, end)
        && cf.cmp.compare_user(s, e).is_gt()
    {
        return Err(Error::invalid_argument("compact_range: the end comes before the start"));
    }
    let mut out = CompactionExplanation::default();
    let mut picked = Vec::new();
    {
        let state = db.state.lock();
        let Some(c) = state.family(cf.id) else { return Ok(out) };
        out.unflushed_entries = c.front().active_stats().entries + c.front().sealed_stats().entries;
        let cf_options = cf.options.load();
        let next_file = db.files.numbers().next();
        let bottommost = options.bottommost_level_compaction;
        let mut walk = ManualWalk::new(c.version(), start, end, bottommost, next_file);
        while let Some(step) = walk.next_step(c.version(), &cf_options) {
            // A first step that finds nothing hands on to the next one.
            if picked.is_empty() && !out.waits {
                let moment = Moment { now: db.now_seconds(), ..Moment::default() };
                (picked, out.waits) = pick_step(c, &cf_options, &step, &moment, start, end);
                continue;
            }
            let mut files = c.version().overlapping(step.level, start, end);
            files.retain(|f| f.number() < step.file_number_limit);
            if !files.is_empty() {
                let bytes = files.iter().map(|f| f.size()).sum();
                let (level, output_level) = (step.level, step.output_level);
                out.later.push(LaterStep { level, output_level, files: files.len(), bytes });
            }
        }
    }
    let threads = match options.max_subcompactions {
        0 => db.live().max_subcompactions.max(1) as usize,
        n => n as usize,
    };
    let family = db.job_family(cf);
    let host = db.job_host(cf, &family, 0, TableFileCreationReason::Compaction);
    for compaction in picked {
        let work = match compaction.trivial_move || compaction.deletion {
            true => None,
            false => {
                let host = host.clone().with_inputs(&compaction);
                let spec = JobSpec::of_compaction(&compaction, &family, 0, &host.means)?;
                let mut plan = JobPlan::new(&spec, &host)?;
                let (tombstones, covered) = Tombstones::gather(&mut plan, &host)?;
                plan.split(threads, &host)?;
                let maps = plan.parts.iter().map(|part| SstMap::new(&plan, part, &host)).collect::<Result<_>>()?;
                Some(ExplainedWork { plan, maps, covered, tables_with_tombstones: tombstones.tables() })
            }
        };
        out.jobs.push(ExplainedJob { compaction, work });
    }
    Ok(out)
}

/// The jobs of a step, up to one that a running job blocks; true if there is such a one.
fn pick_step(
    c: &CfState,
    options: &CfOptions,
    step: &ManualStep,
    moment: &Moment,
    start: Option<&[u8]>,
    end: Option<&[u8]>,
) -> (Vec<Compaction>, bool) {
    let mut picked = Vec::new();
    let mut from = start.map(<[u8]>::to_vec);
    loop {
        match step.pick(c.version(), options, c.jobs().running(), moment, from.as_deref(), end) {
            ManualPick::None => return (picked, false),
            ManualPick::Conflict => return (picked, true),
            ManualPick::First(compaction) => {
                picked.push(*compaction);
                return (picked, false);
            }
            ManualPick::Pick(compaction, next) => {
                picked.push(*compaction);
                let Some(next) = next else { return (picked, false) };
                from = Some(next);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rockmill_io::{CountingFileSystem, MemFileSystem};

    use super::*;
    use crate::options::{BottommostLevelCompaction, Options};

    fn filled(options: &Options) -> Db {
        let db = Db::open(options, Path::new("/db")).unwrap();
        for round in 0..3 {
            for i in (round..3000).step_by(2) {
                db.put(format!("key{i:05}"), format!("{round} {}", "v".repeat(i % 80))).unwrap();
            }
            db.flush().unwrap();
        }
        db
    }

    /// The job then does what the plan says, and making the plan reads nothing.
    #[test]
    fn a_plan_is_what_is_done_and_costs_no_io() {
        let fs = CountingFileSystem::new(Arc::new(MemFileSystem::new()));
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_disable_auto_compactions(true);
        options.set_compression_type(crate::CompressionType::None);
        options.set_target_file_size_base(30 << 10);
        options.set_max_subcompactions(3);
        options.set_file_system(Arc::new(fs.clone()));
        let db = filled(&options);
        db.put("unflushed", "x").unwrap();
        let cf = db.default_cf();
        let ask = |from: Option<&str>, to: Option<&str>, how| {
            let mut options = CompactOptions::default();
            options.set_bottommost_level_compaction(how);
            explain_compact_range_cf_opt(&db, &cf, from, to, &options)
        };
        let force = BottommostLevelCompaction::ForceOptimized;
        // Tables that were not read yet are opened.
        drop(ask(None, None, force).unwrap());
        // The thread that flushed may still remove its WAL meanwhile: a plan that does I/O itself always shows some.
        let ask_counted = |_| {
            let before = fs.counts();
            let plan = ask(None, None, force).unwrap();
            ((fs.counts() - before).calls() == 0).then_some(plan)
        };
        let plan = (0..100).find_map(ask_counted).expect("no I/O");
        assert_eq!((plan.jobs.len(), plan.unflushed_entries, plan.waits), (1, 1, false));
        assert_eq!(plan.later, []);
        let work = plan.jobs[0].work.as_ref().expect("overlapping tables are merged");
        assert_eq!(work.plan.runs.len(), 3);
        assert_eq!(work.maps.len(), work.plan.parts.len());
        assert!(work.maps.len() > 1, "{:?}", work.plan.parts);
        let numbers = |run: usize| work.plan.runs[run].files.iter().map(|f| f.number()).collect::<Vec<_>>();
        assert!(numbers(0) > numbers(1) && numbers(1) > numbers(2), "newest first");
        // Parts meet within blocks: those are in both maps.
        let tables: u64 = plan.jobs[0].compaction.input_bytes();
        let mapped: u64 = work.maps.iter().map(SstMap::bytes).sum();
        assert!(mapped > tables / 2 && mapped < tables + tables / 2, "{mapped} of {tables}");
        let planned = (plan.jobs[0].compaction.output_level, work.plan.parts.len() as u64);
        drop(plan);

        db.compact_range(None::<&str>, None::<&str>).unwrap();
        let used: Vec<usize> =
            db.level_stats(&cf).iter().enumerate().filter(|(_, l)| l.files > 0).map(|(i, _)| i).collect();
        assert_eq!(used, [planned.0]);
        assert!(planned.1 >= 2);

        // Everything is in the last level: rewritten if asked for, and only what the range holds.
        assert!(ask(None, None, BottommostLevelCompaction::Skip).unwrap().jobs.is_empty());
        let all = ask(None, None, force).unwrap().jobs;
        assert_eq!((all[0].compaction.start_level(), all[0].compaction.output_level), (6, 6));
        let some = ask(Some("key00000"), Some("key00001"), force).unwrap().jobs;
        assert!(some[0].compaction.input_bytes() < all[0].compaction.input_bytes());
        let error = ask(Some("b"), Some("a"), force).expect_err("turned around").to_string();
        assert!(error.contains("end comes before"), "{error}");
    }

    #[test]
    fn a_database_that_is_only_read_explains_itself() {
        let fs = Arc::new(MemFileSystem::new());
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_disable_auto_compactions(true);
        options.set_level_compaction_dynamic_level_bytes(false);
        options.set_file_system(fs);
        let db = filled(&options);
        let cf = db.default_cf();
        db.compact_range(None::<&str>, None::<&str>).unwrap();
        db.put("key00001", "again").unwrap();
        db.flush().unwrap();
        drop((cf, db));
        let db = Db::open_for_read_only(&options, "/db", false).unwrap();
        let cf = db.default_cf();
        let mut how = CompactOptions::default();
        how.set_bottommost_level_compaction(BottommostLevelCompaction::Force);
        let plan = explain_compact_range_cf_opt(&db, &cf, None::<&str>, None::<&str>, &how).unwrap();
        assert_eq!((plan.jobs[0].compaction.start_level(), plan.jobs[0].compaction.output_level), (0, 1));
        assert_eq!(plan.jobs[0].work.as_ref().map(|w| w.plan.runs.len()), Some(2));
        assert_eq!(plan.later.iter().map(|l| (l.level, l.output_level, l.files)).collect::<Vec<_>>(), [(1, 1, 1)]);
    }
}
