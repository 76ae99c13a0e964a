//! Runs one job: engine → resolution → output, split over threads where it is large.
//!
//! 1. The plan is made from the spec. Range tombstones of all inputs are gathered, newest first; an input that they
//!    delete as a whole, for every snapshot, is dropped unread.
//! 2. What is left is split into parts at keys from the inputs' indexes, unless the spec has parts. Tombstones may
//!    reach over every part.
//! 3. Each part merges its runs, resolves and writes its own tables. Parts share nothing but the shutdown flag.
//! 4. When all parts are done, the entries read are compared with what the tables' properties promise, and the
//!    directory is synced. Only then may the caller commit.
//!
//! Whatever goes wrong in any part, a panic included, every table written is removed and the first error is returned.

use super::engine::{Destination, PartEnd, PartJob, PartOutput, in_order};
use super::merge::Heads;
use super::output::{Created, remove_created};
use super::plan::{JobPlan, Part};
use super::spec::JobSpec;
use super::sst_map::SstMap;
use super::tombstones::Tombstones;
use super::{JobContext, JobOutput};
use crate::error::{Error, ErrorKind, Result};
use crate::helpers::Working;
use crate::panics::guarded;
use crate::statistics::{Histogram, MaybeStatistics};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};

/// Runs a compaction that is not a trivial move. The tables it returns are synced, and so is the directory.
pub fn run(spec: &JobSpec, ctx: &JobContext) -> Result<JobOutput> {
    let started = ctx.clock.monotonic_nanos();
    let leased = (!spec.numbers.is_empty()).then(|| ctx.with_numbers(spec.leased_numbers()));
    let ctx = leased.as_ref().unwrap_or(ctx);
    let what = || spec.what();
    let mut plan = JobPlan::new(spec, ctx).map_err(|e| e.context(what()))?;
    let (tombstones, dead) = Tombstones::gather(&mut plan, ctx).map_err(|e| e.context(what()))?;
    let setup = ctx.db.statistics.start(&*ctx.clock);
    if spec.parts.is_empty() {
        plan.split(spec.parts_max, ctx).map_err(|e| e.context(what()))?;
    }
    ctx.db.statistics.stop(Histogram::SubcompactionSetupTime, &*ctx.clock, setup);

    // What each part created.
    let created: Vec<Created> = plan.parts.iter().map(|_| Created::default()).collect();
    let done = run_parts(&plan, &tombstones, ctx, &created).and_then(|parts| {
        check_record_count(&plan, &parts, ctx)?;
        // Once, if there is a file.
        created.iter().find(|part| !part.lock().is_empty()).map_or(Ok(()), |part| sync_dir(ctx, part))?;
        Ok(parts)
    });
    let parts = done.map_err(|e| {
        created.iter().for_each(|part| drop(remove_created(ctx, part)));
        e.context(what())
    })?;

    let mut output = JobOutput::default();
    let stats = &mut output.stats;
    stats.files_covered = dead.len() as u64;
    stats.bytes_covered = dead.iter().map(|f| f.size()).sum();
    stats.input_bytes = spec.input_bytes().saturating_sub(stats.bytes_covered);
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

fn run_parts(
    plan: &JobPlan,
    tombstones: &Tombstones,
    ctx: &JobContext,
    created: &[Created],
) -> Result<Vec<PartOutput>> {
    // Set by the first part that fails, so that the others end early.
    let stop = AtomicBool::new(false);
    let failed: Mutex<Option<Error>> = Mutex::new(None);
    let run_one = |(part, created): (&Part, &Created)| {
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
    let parts: Vec<(&Part, &Created)> = plan.parts.iter().zip(created).collect();
    let outputs: Vec<Option<PartOutput>> = match parts.as_slice() {
        // In order, so that the numbers of their files are the same each time.
        parts if plan.output.reproducible => parts.iter().copied().map(run_one).collect(),
        [first, rest @ ..] => crate::sync::thread::scope(|scope| {
            let run_one = &run_one;
            let spawned: Vec<_> = rest
                .iter()
                .map(|&part| {
                    let name = "rockmill:subcomp".to_owned();
                    let thread =
                        crate::sync::thread::Builder::new().name(name).spawn_scoped(scope, move || run_one(part));
                    thread.map_err(|_| part)
                })
                .collect();
            let mut outputs = vec![run_one(*first)];
            for thread in spawned {
                outputs.push(match thread {
                    Ok(handle) => handle.join().unwrap_or(None),
                    Err(part) => run_one(part), // there is no thread for it
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

/// Lets one engine after another try the part, until one has done it.
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
    let (_working, help) = (Working::begin(), ctx.help());
    let stop = [&*ctx.shutdown, &*ctx.cancelled, stop];
    // File numbers that an engine gave back, for the next one: with `reproducible` its tables are those that any engine
    // writes, their numbers included, and numbers that were set aside for the job are no more than it needs.
    let mut given_back = Vec::new();
    for engine in in_order(ctx.db.merge_engine) {
        let same_numbers = (!given_back.is_empty()).then(|| ctx.with_numbers(given_back.clone()));
        let to = same_numbers.as_ref().unwrap_or(ctx);
        let output = Destination { ctx: to, plan, part, tombstones, created, help: help.as_ref() };
        match engine.run(&PartJob { output, map: &map, heads, range, stop })? {
            PartEnd::Done(made) => {
                ctx.engines.stats.count(engine.kind());
                return Ok(made);
            }
            PartEnd::HandOver(reason) => {
                ctx.engines.stats.hand_over(engine.kind(), reason, &ctx.events.log);
                let numbers = remove_created(ctx, created);
                if plan.output.reproducible || plan.leased {
                    given_back = numbers;
                }
            }
            PartEnd::Missing => {}
        }
    }
    // `pread` is always there.
    Err(Error::new(ErrorKind::Aborted, "no merge engine did the part"))
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
