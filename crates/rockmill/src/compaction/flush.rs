//! Flush: what a front has sealed into one L0 table, through the same resolution and output as a compaction. `job.rs`
//! runs it as it runs any spec.
//!
//! Nothing is known of older data, so tombstones of every kind are kept; versions that no snapshot can tell apart
//! are written once.

use std::sync::Arc;

use rockmill_io::ring::{BatchIo, BatchKind, BatchLimits};

use super::engine::{self, Destination, RingUse};
use super::merge::run::IteratorRun;
use super::merge::{KeyPrefixes, Merger};
use super::output::{Created, OutputFiles};
use super::plan::{JobPlan, Part};
use super::spec::JobSpec;
use super::thread_cpu::ThreadCpu;
use super::tombstones::Tombstones;
use super::{JobHost, JobOutput, MergeEngine, page_cache};
use crate::error::{Error, Result};
use crate::front::{LogReads, READS_IN_FLIGHT, SealedRuns, Throttle};
use crate::helpers::Working;
use crate::panics::guarded;
use crate::rate_limiter::IoPriority;
use crate::sync::atomic::{AtomicBool, Ordering};

/// Runs the spec of a flush. A closing store does not stop it: the data may be nowhere else.
pub(super) fn flush(spec: &JobSpec, files: &OutputFiles<'_>) -> Result<JobOutput> {
    let cpu = ThreadCpu::now();
    let created = Created::new(files);
    let written = guarded("it", || write(spec, &created)).and_then(|output| {
        if !output.files.is_empty() {
            files.host.sync_outputs()?;
        }
        Ok(output)
    });
    let mut output = written.inspect_err(|_| created.remove())?;
    output.stats.cpu_micros += cpu.elapsed_micros();
    Ok(output)
}

fn write(spec: &JobSpec, created: &Created<'_>) -> Result<JobOutput> {
    let host = created.files.host;
    let means = host.means();
    let sealed = host.memtables(&spec.memtables)?;
    let mut plan = JobPlan::new(spec, host)?;
    plan.output.page_cache = page_cache::takes_flush(&means.db);
    let cmp = &plan.rules.cmp;
    let in_logs = sealed.with_values_in_logs();
    let reading = LogReads::memory_for(in_logs);
    // What reads through it goes before it does.
    let ring = if plan.output.page_cache && in_logs == 0 {
        None
    } else {
        engine::ring(host, RingUse { bytes: reading, ..RingUse::default() })
    };
    // Windows are counted as they grow, a ring's memory with the rings.
    let _counted = means.engines.rings.count(if ring.is_none() { plain_read_memory(host, reading) } else { 0 });
    let reads = if in_logs > 0 { Some(log_reads(host, ring.as_deref(), in_logs)?) } else { None };
    let runs = sealed.iterators(reads.as_ref()).map(IteratorRun::new).collect::<Result<Vec<_>>>()?;
    let tombstones = Tombstones::whole(sealed.range_tombstones());
    let mut merger = Merger::new(runs, cmp.clone(), KeyPrefixes::new(cmp, None), None, None)?;
    means.engines.stats.count_flush(if ring.is_some() { MergeEngine::Uring } else { MergeEngine::Pread });
    let part = Part::default();
    let (_working, help) = (Working::begin(), means.help());
    let output = Destination { plan: &plan, part: &part, tombstones: &tombstones, created, help: help.as_ref() };
    let made = output.drain(&mut merger, ring.as_deref(), [&AtomicBool::new(false); 3])?;
    reads.iter().for_each(|reads| means.engines.stats.count_log_reads(*reads.counts.lock()));
    let mut output = JobOutput::default();
    output.stats.input_bytes = sealed.data_size();
    host.progress().bytes.store(output.stats.input_bytes, Ordering::Relaxed);
    output.add(made);
    Ok(output)
}

/// What a ring may have for reads: what the writer of a table leaves, or half where that is more.
fn memory_beside_writer(ring: &BatchIo) -> usize {
    let limits = ring.limits();
    limits.memory_bytes.saturating_sub(limits.memory_for(None, 0)).max(limits.memory_bytes / 2)
}

/// Memory of plain reads in flight that want `wanted` bytes: no more than a ring may have, and enough for one table.
fn plain_read_memory(host: &dyn JobHost, wanted: usize) -> usize {
    wanted.min(host.means().db.compaction_io_memory.max(LogReads::memory_for(1)))
}

/// How the values of so many index tables are read: through `ring`, or by plain calls.
fn log_reads(host: &dyn JobHost, ring: Option<&BatchIo>, together: usize) -> Result<LogReads> {
    let means = host.means();
    let wanted = LogReads::memory_for(together);
    let plain_memory = plain_read_memory(host, wanted);
    let plain = || {
        // Pages that are not used are not there.
        let limits = BatchLimits {
            memory_bytes: plain_memory,
            depth: READS_IN_FLIGHT as u32,
            huge_pages: false,
            register: false,
            ..BatchLimits::default()
        };
        let io = means.fs.batch_io(BatchKind::Pread, &limits);
        io.map_err(|e| Error::io("cannot read values that are in logs", &e))
    };
    let io = ring.map_or_else(plain, |ring| Ok(ring.clone()))?;
    // Shares of the device are about that with the tables.
    let limit = means.limit(IoPriority::High).filter(|l| l.limiter.mode().limits_reads());
    let throttle = limit.map(|limit| Arc::new(move |bytes| limit.request(bytes)) as Throttle);
    let memory = ring.map_or(plain_memory, |ring| wanted.min(memory_beside_writer(ring)));
    let windows = Arc::new(means.engines.rings.count(0));
    Ok(LogReads { io, throttle, together, memory, windows, counts: Arc::default() })
}
