//! Runs a job: engine → resolution → output, split over threads if it is large.
//!
//! 1. The plan is made from the spec. Range tombstones of all inputs are gathered, newest first; an input that they
//!    delete as a whole, for every snapshot, is dropped unread.
//! 2. What is left is split into parts at keys from the inputs' indexes, unless the spec has parts. Tombstones may
//!    reach over every part.
//! 3. Each part merges its runs, resolves and writes its own tables. Parts share nothing but the shutdown flag. There
//!    may be more of them than threads: each thread takes the next one that is left.
//! 4. When all parts are done, the entries read are compared with what the tables' properties promise, and the host
//!    makes the tables durable with their names. Only then may the caller commit.
//!
//! If anything goes wrong in any part, even a panic, every table written is removed and the first error is returned. A
//! flush (`flush.rs`) is one part, whose input the host has in memory.

use rockmill_format::edit::FileEntry;

use super::describe::JobFamily;
use super::engine::{self, Destination, PartEnd, PartEngine, PartJob, PartOutput, in_order};
use super::merge::KeyPrefixes;
use super::output::{Created, OutputFiles};
use super::plan::JobPlan;
use super::spec::{JobSpec, Part};
use super::sst_map::SstMap;
use super::thread_cpu::ThreadCpu;
use super::tombstones::Tombstones;
use super::{JobHost, JobOutput, LocalHost, flush, user_key_range};
use crate::compaction_filter::TableFileCreationReason;
use crate::error::{Error, ErrorKind, Result};
use crate::front::SealedRuns;
use crate::helpers::Working;
use crate::panics::guarded;
use crate::statistics::{Histogram, MaybeStatistics};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::thread;

/// Runs a job; its spec may come from anywhere. The tables that it returns are durable with their names, and not live.
///
/// # Errors
/// Whatever kept the job from being done. Nothing is left of it then.
pub(crate) fn run(spec: &JobSpec, host: &dyn JobHost) -> Result<JobOutput> {
    run_by(spec, host, in_order(host.means().db.merge_engine))
}

/// The same, where each part of a compaction is done by the first of these engines that can.
fn run_by(spec: &JobSpec, host: &dyn JobHost, engines: &[&dyn PartEngine]) -> Result<JobOutput> {
    let clock = &*host.means().clock;
    let started = clock.monotonic_nanos();
    let files = OutputFiles::new(host, spec.reason, spec.leased_numbers());
    let done = match spec.reason {
        TableFileCreationReason::Compaction => compact(spec, &files, engines),
        TableFileCreationReason::Flush | TableFileCreationReason::Recovery => flush::flush(spec, &files),
    };
    let mut output = done.map_err(|e| e.context(spec.what()))?;
    output.stats.output_bytes = output.files.iter().map(|f| f.size).sum();
    output.stats.wall_micros = clock.monotonic_nanos().saturating_sub(started) / 1000;
    Ok(output)
}

/// Describes and runs a flush: writes `sealed` as one L0 table, durable with its name; no table if nothing survives.
/// The caller sets the epoch number.
pub(crate) fn build_l0(
    sealed: &SealedRuns,
    family: &JobFamily,
    host: &mut LocalHost,
    reason: TableFileCreationReason,
) -> Result<JobOutput> {
    host.sealed = Some(sealed.clone());
    let done = run(&JobSpec::of_flush(sealed, family, reason, host.events.job, &host.means)?, host);
    host.sealed = None; // a host may do several flushes
    done
}

impl JobOutput {
    /// The table of a flush.
    pub(crate) fn into_table(self) -> Option<FileEntry> {
        self.files.into_iter().next()
    }
}

fn compact(spec: &JobSpec, files: &OutputFiles<'_>, engines: &[&dyn PartEngine]) -> Result<JobOutput> {
    let (host, means) = (files.host, files.host.means());
    let mut plan = JobPlan::new(spec, host)?;
    let (tombstones, dead) = Tombstones::gather(&mut plan, host)?;
    let setup = means.db.statistics.start(&*means.clock);
    if spec.parts.is_empty() {
        plan.split(spec.parts_max, host)?;
    }
    means.db.statistics.stop(Histogram::SubcompactionSetupTime, &*means.clock, setup);

    let threads = match plan.output.reproducible {
        // In order, so that the numbers of their files are the same each time.
        true => 1,
        false => spec.parts_max.min(means.parallel_parts_max).clamp(1, plan.parts.len().max(1)),
    };
    let created: Vec<Created<'_>> = plan.parts.iter().map(|_| Created::new(files)).collect();
    let done = run_parts(&plan, &tombstones, &created, threads, engines).and_then(|parts| {
        check_record_count(&plan, &parts, host)?;
        // Once, if there is a file.
        if parts.iter().any(|part| !part.tables.0.is_empty()) { host.sync_outputs().map(|()| parts) } else { Ok(parts) }
    });
    let parts = done.inspect_err(|_| created.iter().for_each(Created::remove))?;

    let mut output = JobOutput::default();
    let stats = &mut output.stats;
    stats.files_covered = dead.len() as u64;
    stats.bytes_covered = dead.iter().map(|f| f.size()).sum();
    stats.input_bytes = spec.input_bytes().saturating_sub(stats.bytes_covered);
    parts.into_iter().for_each(|part| output.add(part));
    Ok(output)
}

/// Does all parts, up to the given number at a time.
fn run_parts(
    plan: &JobPlan,
    tombstones: &Tombstones,
    created: &[Created<'_>],
    threads: usize,
    engines: &[&dyn PartEngine],
) -> Result<Vec<PartOutput>> {
    // Set by the first part that fails, so that the others end early.
    let stop = AtomicBool::new(false);
    let failed: Mutex<Option<Error>> = Mutex::new(None);
    let next = AtomicUsize::new(0);
    let done: Vec<Mutex<Option<PartOutput>>> = plan.parts.iter().map(|_| Mutex::new(None)).collect();
    // One thread, until no part is left.
    let work = || {
        while !stop.load(Ordering::Acquire) {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some(((part, created), done)) = plan.parts.get(i).zip(created.get(i)).zip(done.get(i)) else { return };
            let cpu = ThreadCpu::now();
            match guarded("it", || run_part(plan, part, tombstones, created, &stop, engines)) {
                Ok(mut output) => {
                    output.cpu_micros += cpu.elapsed_micros();
                    *done.lock() = Some(output);
                }
                Err(e) => {
                    failed.lock().get_or_insert(e); // before others see that they are to stop
                    stop.store(true, Ordering::Release);
                }
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            // If a thread cannot be started, the others do its parts.
            let _ = thread::Builder::new().name("rockmill:subcomp".to_owned()).spawn_scoped(scope, work);
        }
        work();
    });
    if let Some(e) = failed.into_inner() {
        return Err(e);
    }
    let done = done.into_iter().map(Mutex::into_inner).collect::<Option<Vec<_>>>();
    done.ok_or_else(|| Error::new(ErrorKind::Aborted, "a part was lost"))
}

/// Lets one engine after another try the part, until one has done it.
fn run_part(
    plan: &JobPlan,
    part: &Part,
    tombstones: &Tombstones,
    created: &Created<'_>,
    stop: &AtomicBool,
    engines: &[&dyn PartEngine],
) -> Result<PartOutput> {
    let host = created.files.host;
    let means = host.means();
    host.progress().parts.fetch_add(1, Ordering::Relaxed);
    let cmp = &plan.rules.cmp;
    let range = user_key_range(cmp, plan.runs.iter().flat_map(|r| &r.files).map(|f| &f.entry));
    let prefixes = KeyPrefixes::new(cmp, range);
    let (_working, help) = (Working::begin(), means.help());
    let stop = [&*means.shutdown, host.cancelled(), stop];
    let output = Destination { plan, part, tombstones, created, help: help.as_ref() };
    if plan.by_entries {
        return engine::run_scans(output, prefixes, range, stop);
    }
    let map = SstMap::new(plan, part, host)?;
    let mut handed_over = None;
    for engine in engines {
        let with_reason = |e: Error| match &handed_over {
            Some(why) => e.context(why),
            None => e,
        };
        match engine.run(&PartJob { output, map: &map, prefixes, range, stop }).map_err(with_reason)? {
            PartEnd::Done(made) => {
                means.engines.stats.count(engine.kind());
                return Ok(made);
            }
            PartEnd::HandOver(reason) => {
                let why = format!("a part that merge engine {} handed over ({reason})", engine.kind());
                means.engines.stats.hand_over(engine.kind(), reason, &means.log);
                begin_again(plan, created).map_err(|e| e.context(&why))?;
                // Otherwise the tables of this engine still use up numbers and room, which the next one may lack.
                handed_over = (!host.outputs_begin_again()).then_some(why);
            }
            PartEnd::Missing => {}
        }
    }
    // `pread` is always available.
    Err(Error::new(ErrorKind::Aborted, "no merge engine did the part"))
}

/// Removes the tables of an engine that handed its part over.
fn begin_again(plan: &JobPlan, created: &Created<'_>) -> Result<()> {
    let reproducible = plan.output.reproducible;
    match created.files.host.outputs_begin_again() {
        // With `reproducible`, the next engine's tables must be those that any engine writes, with the same numbers;
        // and no more numbers are set aside for the job than it needs.
        true if reproducible || plan.leased => created.give_back(),
        false if reproducible && !created.is_empty() => {
            let what = "it cannot begin again: its tables must have the same numbers in each run (reproducible), and \
                        the job's device takes each of them only once";
            return Err(Error::not_supported(what));
        }
        // The next engine takes the next numbers, as far as they and the room reach.
        _ => created.remove(),
    }
    Ok(())
}

/// Every entry that the tables' properties count must have been read: a merge that missed some would lose data.
fn check_record_count(plan: &JobPlan, parts: &[PartOutput], host: &dyn JobHost) -> Result<()> {
    if !host.means().db.paranoid_checks {
        return Ok(());
    }
    let (mut least, mut most) = (0u64, 0u64);
    let mut paths = Vec::new();
    for f in plan.runs.iter().flat_map(|r| &r.files) {
        let table = host.open_input(f)?;
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

#[cfg(test)]
mod tests;
