//! Runs one job: engine → resolution → output, split over threads where it is large.
//!
//! 1. The plan is made from the picked compaction. Range tombstones of all inputs are gathered, newest first; an input
//!    that they delete as a whole, for every snapshot, is dropped unread.
//! 2. What is left is split into parts at keys from the inputs' indexes. Tombstones may reach over every part.
//! 3. Each part merges its runs, resolves and writes its own tables. Parts share nothing but the shutdown flag.
//! 4. When all parts are done, the entries read are compared with what the tables' properties promise, and the
//!    directory is synced. Only then may the caller commit.
//!
//! Whatever goes wrong in any part, a panic included, every table written is removed and the first error is returned.

use std::cell::RefCell;
use std::rc::Rc;

use rockmill_format::edit::FileEntry;

use super::engine::Engine;
use super::merge::feed::{BlockFeed, PreadFeed};
use super::merge::kernel::{KernelJob, KernelStream, Left};
use super::merge::ring_feed;
use super::merge::run::TableRun;
use super::merge::{Heads, MergeStream, Merger};
use super::merge_program::{self, Fit};
use super::output::{Created, Outputs, remove_created};
use super::plan::{JobPlan, Part};
use super::resolve::pass::may_pass;
use super::resolve::{ResolveStats, Resolver};
use super::sst_map::SstMap;
use super::tombstones::Tombstones;
use super::{Compaction, JobContext, JobOutput, KernelDriver, MergeEngine, Stop};
use crate::error::{Error, ErrorKind, Result};
use crate::helpers::{Help, Working};
use crate::panics::guarded;
use crate::statistics::{Histogram, MaybeStatistics};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};

/// What one part made.
#[derive(Default)]
struct PartOutput {
    files: Vec<FileEntry>,
    stats: ResolveStats,
    cpu_micros: u64,
}

/// Runs a compaction that is not a trivial move. The tables it returns are synced, and so is the directory.
pub fn run(compaction: &Compaction, ctx: &JobContext) -> Result<JobOutput> {
    let started = ctx.clock.monotonic_nanos();
    let threads = match compaction.subcompactions_max {
        0 => ctx.db.max_subcompactions as usize,
        // What its caller says; else what the strategy found idle, or the options say.
        n if compaction.reason == super::CompactionReason::ManualCompaction => n,
        n => n.max(ctx.db.max_subcompactions as usize),
    };
    let what = || format!("compaction of level {} into level {}", compaction.start_level(), compaction.output_level);
    let mut plan = JobPlan::new(compaction, ctx).map_err(|e| e.context(what()))?;
    let (tombstones, dead) = Tombstones::gather(&mut plan, ctx).map_err(|e| e.context(what()))?;
    let setup = ctx.db.statistics.start(&*ctx.clock);
    plan.split(threads, ctx).map_err(|e| e.context(what()))?;
    ctx.db.statistics.stop(Histogram::SubcompactionSetupTime, &*ctx.clock, setup);

    let created = Created::default();
    let done = run_parts(&plan, &tombstones, ctx, &created).and_then(|parts| {
        check_record_count(&plan, &parts, ctx)?;
        sync_dir(ctx, &created)?;
        Ok(parts)
    });
    let parts = done.map_err(|e| {
        remove_created(ctx, &created);
        e.context(what())
    })?;

    let mut output = JobOutput::default();
    let stats = &mut output.stats;
    stats.files_covered = dead.len() as u64;
    stats.bytes_covered = dead.iter().map(|f| f.size()).sum();
    stats.input_bytes = compaction.input_bytes() - stats.bytes_covered;
    stats.subcompactions = parts.len() as u64;
    for part in parts {
        stats.input_records += part.stats.input_records;
        stats.output_records += part.stats.output_records;
        stats.dropped.add(&part.stats);
        stats.cpu_micros += part.cpu_micros;
        stats.output_bytes += part.files.iter().map(|f| f.size).sum::<u64>();
        output.files.extend(part.files);
    }
    stats.wall_micros = ctx.clock.monotonic_nanos().saturating_sub(started) / 1000;
    Ok(output)
}

fn run_parts(plan: &JobPlan, tombstones: &Tombstones, ctx: &JobContext, created: &Created) -> Result<Vec<PartOutput>> {
    // Set by the first part that fails, so that the others end early.
    let stop = AtomicBool::new(false);
    let failed: Mutex<Option<Error>> = Mutex::new(None);
    let run_one = |part: &Part| {
        let cpu = ThreadCpu::now();
        let result = guarded("it", || run_part(plan, part, tombstones, ctx, created, &stop));
        match result {
            Ok(mut output) => {
                output.cpu_micros += cpu.elapsed_micros();
                Some(output)
            }
            Err(e) => {
                stop.store(true, Ordering::Release);
                failed.lock().get_or_insert(e);
                None
            }
        }
    };
    let outputs: Vec<Option<PartOutput>> = match plan.parts.as_slice() {
        // In order, so that the numbers of their files are the same each time.
        parts if ctx.db.reproducible => parts.iter().map(run_one).collect(),
        [first, rest @ ..] => crate::sync::thread::scope(|scope| {
            let run_one = &run_one;
            let spawned: Vec<_> = rest
                .iter()
                .map(|part| {
                    let name = "rockmill:subcomp".to_owned();
                    let thread =
                        crate::sync::thread::Builder::new().name(name).spawn_scoped(scope, move || run_one(part));
                    thread.map_err(|_| part)
                })
                .collect();
            let mut outputs = vec![run_one(first)];
            for thread in spawned {
                outputs.push(match thread {
                    Ok(handle) => handle.join().unwrap_or(None),
                    Err(part) => run_one(part), // no thread to be had: do it here
                });
            }
            outputs
        }),
        [] => Vec::new(),
    };
    if let Some(e) = failed.into_inner() {
        return Err(e);
    }
    outputs.into_iter().collect::<Option<Vec<_>>>().ok_or_else(|| Error::new(ErrorKind::Aborted, "a part was lost"))
}

fn run_part(
    plan: &JobPlan,
    part: &Part,
    tombstones: &Tombstones,
    ctx: &JobContext,
    created: &Created,
    stop: &AtomicBool,
) -> Result<PartOutput> {
    ctx.events.progress.parts.fetch_add(1, Ordering::Relaxed);
    let cmp = &plan.rules.cmp;
    let files = || plan.runs.iter().flat_map(|r| &r.files);
    let smallest = files().map(|f| f.smallest_user_key()).min_by(|a, b| cmp.compare_user(a, b));
    let largest = files().map(|f| f.largest_user_key()).max_by(|a, b| cmp.compare_user(a, b));
    let range = smallest.zip(largest);
    let heads = Heads::new(cmp, range);
    let map = SstMap::new(plan, part, ctx)?;
    let engine = Engine::of(ctx, map.runs.iter().filter(|r| !r.files.is_empty()).count());
    let (_working, help) = (Working::begin(), ctx.help());
    let stop = [&*ctx.shutdown, &*ctx.cancelled, stop];
    let again;
    let mut ctx = ctx;
    if ctx.db.merge_engine == MergeEngine::Kernel {
        let local = Created::default();
        let _merged = Merged { local: &local, created };
        let output = Destination { ctx, plan, part, tombstones, created: &local, engine: &engine, help: help.as_ref() };
        if let Some((files, stats)) = in_kernel(&map, heads, range, &output, stop)? {
            ctx.engines.count(MergeEngine::Kernel);
            return Ok(PartOutput { files, stats, cpu_micros: help.map_or(0, |h| h.micros()) });
        }
        let taken = local.lock().clone();
        remove_created(ctx, &local);
        if ctx.db.reproducible && !taken.is_empty() {
            // The tables are those that any engine writes, their numbers included.
            again = ctx.with_numbers(taken);
            ctx = &again;
        }
    }
    ctx.engines.count(engine.kind());
    let output = Destination { ctx, plan, part, tombstones, created, engine: &engine, help: help.as_ref() };
    let (files, stats) = match engine.io() {
        None => {
            let count = map.runs.len();
            let feeds = map.runs.into_iter().map(|run| PreadFeed::new(run, ctx, help.as_ref(), count)).collect();
            merge_feeds(feeds, heads, range, &output, stop)?
        }
        Some(io) => merge_feeds(ring_feed::feeds(map, io, ctx, help.as_ref(), None)?, heads, range, &output, stop)?,
    };
    Ok(PartOutput { files, stats, cpu_micros: help.map_or(0, |h| h.micros()) })
}

/// Hands the names of files that one try created to the job, however it ends.
struct Merged<'a> {
    local: &'a Created,
    created: &'a Created,
}

impl Drop for Merged<'_> {
    fn drop(&mut self) {
        self.created.lock().append(&mut self.local.lock());
    }
}

/// Lets the kernel merge a part. `None` when another engine has to do it, which is counted and logged.
fn in_kernel(
    map: &SstMap,
    heads: Heads,
    range: Option<(&[u8], &[u8])>,
    output: &Destination<'_>,
    stop: Stop<'_>,
) -> Result<Option<(Vec<FileEntry>, ResolveStats)>> {
    let Destination { ctx, plan, part, help, engine, .. } = *output;
    // Where there is none, asking for a machine says so.
    let fit = merge_program::object(&ctx.db).map(|object| merge_program::fit(&object, &plan.rules, ctx));
    let fit = match fit.unwrap_or_else(|_| Ok(Fit::default())) {
        Ok(fit) => fit,
        Err(reason) => {
            ctx.engines.hand_over(ctx, &reason);
            return Ok(None);
        }
    };
    let Ok(mut machine) = ctx.engines.machine(&ctx.db, &ctx.events.log) else { return Ok(None) };
    // What is read and written goes with the calls that merge.
    let ring = engine.io().filter(|_| machine.driver() == KernelDriver::Loop);
    let before = ring.map(|io| (io.counts().by_program, machine.calls()));
    if let Some(Err(e)) = ring.map(|io| machine.sit_in(io)) {
        let log = &ctx.events.log;
        ctx.engines.say_once(log, format!("driver loop does not read and write with the calls that merge: {e}"));
    }
    let passing = may_pass(&plan.rules, !output.tombstones.is_empty());
    let end_head = heads.of_end(range, part.end.as_deref());
    let job = KernelJob { part, rules: &plan.rules, fit: &fit, heads, end_head, passing, stop };
    let left = Rc::new(RefCell::new(Left::default()));
    let merged = match engine.io() {
        None => {
            let runs = map.runs.len();
            let feeds = map.runs.iter().map(|run| PreadFeed::new(run.clone(), ctx, help, runs)).collect();
            KernelStream::new(feeds, machine, job, &left).and_then(|stream| drain(stream, output, stop))
        }
        Some(io) => match ring_feed::feeds(map.clone(), io, ctx, help, machine.io_memory()) {
            Ok(feeds) => KernelStream::new(feeds, machine, job, &left).and_then(|stream| drain(stream, output, stop)),
            Err(e) => {
                left.borrow_mut().machine = Some(machine);
                Err(e)
            }
        },
    };
    let mut left = left.borrow_mut();
    ctx.engines.add_in_place(left.blocks_in_place);
    if let Some(mut machine) = left.machine.take() {
        if let Some((io, (operations, calls))) = ring.zip(before).filter(|_| machine.is_seated()) {
            ctx.engines.add_by_program(machine.calls() - calls, io.counts().by_program - operations);
        }
        machine.leave();
        ctx.engines.keep(machine, &*ctx.clock);
    }
    match (merged, &left.hand_over) {
        (Ok((files, mut stats)), _) => {
            // What the program dropped was read, too.
            let dropped = left.dropped;
            stats.input_records += dropped.hidden + dropped.obsolete;
            stats.hidden += dropped.hidden;
            stats.obsolete += dropped.obsolete;
            stats.filtered += dropped.filtered;
            Ok(Some((files, stats)))
        }
        (Err(_), Some(reason)) => {
            ctx.engines.hand_over(ctx, reason);
            Ok(None)
        }
        (Err(e), None) => Err(e),
    }
}

/// Merges what the feeds give.
fn merge_feeds<F: BlockFeed>(
    feeds: Vec<F>,
    heads: Heads,
    range: Option<(&[u8], &[u8])>,
    output: &Destination<'_>,
    stop: Stop<'_>,
) -> Result<(Vec<FileEntry>, ResolveStats)> {
    let (cmp, part) = (&output.plan.rules.cmp, output.part);
    let passing = may_pass(&output.plan.rules, !output.tombstones.is_empty());
    let mut runs = Vec::with_capacity(feeds.len());
    for feed in feeds {
        runs.push(TableRun::new(feed, part.begin.as_deref(), heads, cmp, passing)?);
    }
    let merger = Merger::new(runs, cmp.clone(), heads, range, part.end.as_deref())?;
    drain(merger, output, stop)
}

/// Where a part's output goes, and what it must be.
pub(super) struct Destination<'a> {
    pub ctx: &'a JobContext,
    pub plan: &'a JobPlan,
    pub part: &'a Part,
    pub tombstones: &'a Tombstones,
    pub created: &'a Created,
    pub engine: &'a Engine,
    /// Who may compress and decompress.
    pub help: Option<&'a Help>,
}

/// Resolves a merge and writes what survives. Shared with flush.
pub(super) fn drain<S: MergeStream>(
    merger: S,
    output: &Destination<'_>,
    stop: Stop<'_>,
) -> Result<(Vec<FileEntry>, ResolveStats)> {
    let Destination { ctx, plan, part, tombstones, created, engine, help } = *output;
    let io = engine.io().filter(|_| !plan.output.page_cache);
    let mut outputs = Outputs::new(ctx, &plan.output, &plan.rules, tombstones, part, created, io);
    outputs.set_help(help);
    let mut resolver = Resolver::new(merger, &plan.rules, tombstones, stop)?;
    loop {
        while resolver.next_survivor()? {
            outputs.add(resolver.key(), resolver.value(), resolver.is_new_user_key())?;
        }
        if !resolver.pass_block(|block, census| outputs.pass_block(block, census))? {
            break;
        }
    }
    let stats = resolver.stats();
    Ok((outputs.finish()?, stats))
}

/// Every entry that the tables' properties count must have been read: a merge that missed some would lose data.
fn check_record_count(plan: &JobPlan, parts: &[PartOutput], ctx: &JobContext) -> Result<()> {
    if !ctx.db.paranoid_checks {
        return Ok(());
    }
    let (mut least, mut most) = (0u64, 0u64);
    let mut paths = Vec::new();
    for f in plan.runs.iter().flat_map(|r| &r.files) {
        let table = ctx.tables.table(f)?;
        let Some(count) = table.point_entries() else { return Ok(()) };
        least = least.saturating_add(*count.start());
        most = most.saturating_add(*count.end());
        paths.push(table.path().display().to_string());
    }
    let read: u64 = parts.iter().map(|p| p.stats.input_records).sum();
    if !(least..=most).contains(&read) {
        return Err(Error::corruption(format!(
            "{read} entries were read where the properties of {} count {least}; nothing was changed",
            paths.join(", ")
        )));
    }
    Ok(())
}

/// Makes the names of new files durable.
pub(super) fn sync_dir(ctx: &JobContext, created: &Created) -> Result<()> {
    if created.lock().is_empty() {
        return Ok(());
    }
    let dir = &ctx.dir;
    ctx.fs.sync_dir(dir).map_err(|e| Error::io(format_args!("cannot sync directory {}", dir.display()), &e))
}

/// CPU time of the current thread, from the kernel's scheduler statistics.
pub(super) struct ThreadCpu(Option<u64>);

impl ThreadCpu {
    pub fn now() -> Self {
        Self(thread_cpu_nanos())
    }

    /// Microseconds since; 0 where the kernel does not say.
    pub fn elapsed_micros(&self) -> u64 {
        match (self.0, thread_cpu_nanos()) {
            (Some(before), Some(now)) => now.saturating_sub(before) / 1000,
            _ => 0,
        }
    }
}

fn thread_cpu_nanos() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests;
