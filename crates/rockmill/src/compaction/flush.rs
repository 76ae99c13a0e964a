//! Flush: immutable memtables into one L0 table, through the same resolution and output as a compaction.
//!
//! Nothing is known of older data, so tombstones of every kind are kept; versions that no snapshot can tell apart
//! are written once.

use std::sync::Arc;

use rockmill_format::edit::FileEntry;

use super::engine::Engine;
use super::filter::FilterPlan;
use super::job::{Destination, ThreadCpu, drain, sync_dir};
use super::merge::run::IteratorRun;
use super::merge::{Heads, Merger};
use super::output::{Created, remove_created};
use super::plan::{JobPlan, OutputPlan, Part, Rules};
use super::tombstones::Tombstones;
use super::{JobContext, JobStats, page_cache};
use crate::compaction_filter::TableFileCreationReason;
use crate::error::Result;
use crate::helpers::{Help, Working};
use crate::memtable::MemTable;
use crate::panics::guarded;
use crate::rate_limiter::IoPriority;
use crate::sync::atomic::{AtomicBool, Ordering};

/// Writes `memtables` (oldest first) as one L0 table, synced together with its directory; `None` when nothing
/// survives. The epoch number is the caller's to set. A closing store does not stop a flush: the data may be nowhere
/// else.
pub fn build_l0(
    memtables: &[Arc<MemTable>],
    ctx: &JobContext,
    reason: TableFileCreationReason,
) -> Result<Option<(FileEntry, JobStats)>> {
    let started = ctx.clock.monotonic_nanos();
    let cpu = ThreadCpu::now();
    let created = Created::default();
    let done = guarded("it", || write(memtables, ctx, &created, reason)).and_then(|(files, stats)| {
        sync_dir(ctx, &created)?;
        Ok((files, stats))
    });
    let (files, mut stats) = done.map_err(|e| {
        remove_created(ctx, &created);
        e.context(format_args!("flush of column family {:?}", ctx.cf_name))
    })?;
    stats.wall_micros = ctx.clock.monotonic_nanos().saturating_sub(started) / 1000;
    stats.cpu_micros += cpu.elapsed_micros();
    Ok(files.into_iter().next().map(|f| (f, stats)))
}

fn write(
    memtables: &[Arc<MemTable>],
    ctx: &JobContext,
    created: &Created,
    reason: TableFileCreationReason,
) -> Result<(Vec<FileEntry>, JobStats)> {
    let rules = Rules {
        merge_operator: ctx.cf.merge_operator.clone(),
        filter: FilterPlan::of_flush(&ctx.cf, ctx.cf_id, reason, ctx.clock.now_micros())?,
        ..Rules::new(ctx.cmp.clone(), ctx.snapshots.clone())
    };
    let output = OutputPlan {
        bytes_expected: memtables.iter().map(|m| m.data_size()).sum(),
        compression: ctx.cf.compression_per_level.first().copied().unwrap_or(ctx.cf.compression),
        page_cache: page_cache::takes_flush(&ctx.db),
        io_priority: IoPriority::High,
        ..OutputPlan::of_new_entries(&ctx.cf, 0)
    };
    let plan = JobPlan { runs: Vec::new(), rules, output, parts: vec![Part::default()] };

    let mut runs = Vec::with_capacity(memtables.len());
    for mem in memtables.iter().rev() {
        runs.push(IteratorRun::new(mem.iter())?);
    }
    let tombstones = Tombstones::of_memtables(memtables);
    let heads = Heads::new(&ctx.cmp, None);
    let merger = Merger::new(runs, ctx.cmp.clone(), heads, None, None)?;
    let engine = if plan.output.page_cache { Engine::Pread } else { Engine::of(ctx, 0) };
    ctx.engines.count_flush(engine.kind());
    let part = Part::default();
    let (_working, help) = (Working::begin(), ctx.help());
    let help = help.as_ref();
    let output = Destination { ctx, plan: &plan, part: &part, tombstones: &tombstones, created, engine: &engine, help };
    let (files, resolved) = drain(merger, &output, [&AtomicBool::new(false); 3])?;
    let input_bytes = memtables.iter().map(|m| m.data_size()).sum();
    ctx.events.progress.bytes.store(input_bytes, Ordering::Relaxed);
    let stats = JobStats {
        input_bytes,
        output_bytes: files.iter().map(|f| f.size).sum(),
        input_records: resolved.input_records,
        output_records: resolved.output_records,
        dropped: resolved,
        subcompactions: 1,
        cpu_micros: help.map_or(0, Help::micros),
        ..JobStats::default()
    };
    Ok((files, stats))
}
