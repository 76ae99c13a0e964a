//! Flush: what a front has sealed into one L0 table, through the same resolution and output as a compaction.
//!
//! Nothing is known of older data, so tombstones of every kind are kept; versions that no snapshot can tell apart
//! are written once.

use rockmill_format::edit::FileEntry;

use super::engine::{self, Destination};
use super::job::{ThreadCpu, sync_dir};
use super::merge::run::IteratorRun;
use super::merge::{Heads, Merger};
use super::output::{Created, remove_created};
use super::plan::{JobPlan, Part};
use super::spec::{JobFamily, JobSpec};
use super::tombstones::Tombstones;
use super::{JobContext, JobStats, MergeEngine, page_cache};
use crate::compaction_filter::TableFileCreationReason;
use crate::error::Result;
use crate::front::SealedRuns;
use crate::helpers::Working;
use crate::panics::guarded;
use crate::sync::atomic::{AtomicBool, Ordering};

/// Writes `sealed` as one L0 table, synced together with its directory; `None` when nothing
/// survives. The epoch number is the caller's to set. A closing store does not stop a flush: the data may be nowhere
/// else.
pub(crate) fn build_l0(
    sealed: &SealedRuns,
    family: &JobFamily,
    ctx: &JobContext,
    reason: TableFileCreationReason,
) -> Result<Option<(FileEntry, JobStats)>> {
    run(&JobSpec::of_flush(sealed, family, reason, ctx)?, sealed, ctx)
}

/// Runs the spec of a flush; `sealed` is what it names.
pub(crate) fn run(spec: &JobSpec, sealed: &SealedRuns, ctx: &JobContext) -> Result<Option<(FileEntry, JobStats)>> {
    let started = ctx.clock.monotonic_nanos();
    let cpu = ThreadCpu::now();
    let leased = (!spec.numbers.is_empty()).then(|| ctx.with_numbers(spec.leased_numbers()));
    let ctx = leased.as_ref().unwrap_or(ctx);
    let created = Created::default();
    let done = guarded("it", || write(spec, sealed, ctx, &created)).and_then(|(files, stats)| {
        sync_dir(ctx, &created)?;
        Ok((files, stats))
    });
    let (files, mut stats) = done.map_err(|e| {
        remove_created(ctx, &created);
        e.context(spec.what())
    })?;
    stats.wall_micros = ctx.clock.monotonic_nanos().saturating_sub(started) / 1000;
    stats.cpu_micros += cpu.elapsed_micros();
    Ok(files.into_iter().next().map(|f| (f, stats)))
}

fn write(
    spec: &JobSpec,
    sealed: &SealedRuns,
    ctx: &JobContext,
    created: &Created,
) -> Result<(Vec<FileEntry>, JobStats)> {
    let mut plan = JobPlan::new(spec, ctx)?;
    plan.output.page_cache = page_cache::takes_flush(&ctx.db);
    let cmp = &plan.rules.cmp;
    let runs = sealed.iterators().map(IteratorRun::new).collect::<Result<Vec<_>>>()?;
    let tombstones = Tombstones::whole(sealed.range_tombstones());
    let heads = Heads::new(cmp, None);
    let merger = Merger::new(runs, cmp.clone(), heads, None, None)?;
    let ring = if plan.output.page_cache { None } else { engine::ring(ctx, 0) };
    ctx.engines.stats.count_flush(if ring.is_some() { MergeEngine::Uring } else { MergeEngine::Pread });
    let part = Part::default();
    let (_working, help) = (Working::begin(), ctx.help());
    let help = help.as_ref();
    let output = Destination { ctx, plan: &plan, part: &part, tombstones: &tombstones, created, help };
    let made = output.drain(merger, ring.as_deref(), [&AtomicBool::new(false); 3])?;
    let input_bytes = sealed.data_size();
    ctx.events.progress.bytes.store(input_bytes, Ordering::Relaxed);
    let stats = JobStats {
        input_bytes,
        output_bytes: made.files.iter().map(|f| f.size).sum(),
        input_records: made.stats.input_records,
        output_records: made.stats.output_records,
        dropped: made.stats,
        subcompactions: 1,
        cpu_micros: made.cpu_micros,
        ..JobStats::default()
    };
    Ok((made.files, stats))
}
