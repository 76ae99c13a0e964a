//! Flush: writes the memtables that a front has sealed as one L0 table, with the same resolution and output as a
//! compaction. `job.rs` runs it like any spec.
//!
//! Nothing is known of older data, so tombstones of every kind are kept; versions that no snapshot can tell apart
//! are written once.

use rockmill_io::ring::BatchIo;

use super::engine::{self, Destination, RingUse};
use super::merge::run::IteratorRun;
use super::merge::{KeyPrefixes, Merger};
use super::output::{Created, OutputFiles};
use super::plan::JobPlan;
use super::spec::{JobSpec, Part};
use super::thread_cpu::ThreadCpu;
use super::tombstones::Tombstones;
use super::{JobOutput, MergeEngine, page_cache};
use crate::error::Result;
use crate::front::ReadMeans;
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
    let reading = sealed.read_memory();
    // Readers that use the ring must be dropped before the ring.
    let ring = if plan.output.page_cache && reading == 0 {
        None
    } else {
        engine::ring(host, RingUse { bytes: reading, ..RingUse::default() })
    };
    let reads = sealed.begin_reads(ReadMeans {
        ring: ring.as_deref(),
        fs: &*means.fs,
        memory: ring.as_deref().map_or(means.db.compaction_io_memory, memory_beside_writer),
        // Shares of the device are about that with the tables.
        limit: means.limit(IoPriority::High).filter(|l| l.limiter.mode().limits_reads()),
        counted: means.engines.rings.count(0),
    })?;
    let runs = sealed.iterators(&reads).map(IteratorRun::new).collect::<Result<Vec<_>>>()?;
    let tombstones = Tombstones::whole(sealed.range_tombstones());
    let mut merger = Merger::new(runs, cmp.clone(), KeyPrefixes::new(cmp, None), None, None)?;
    means.engines.stats.count_flush(if ring.is_some() { MergeEngine::Uring } else { MergeEngine::Pread });
    let part = Part::default();
    let (_working, help) = (Working::begin(), means.help());
    let output = Destination { plan: &plan, part: &part, tombstones: &tombstones, created, help: help.as_ref() };
    let made = output.drain(&mut merger, ring.as_deref(), [&AtomicBool::new(false); 3])?;
    means.engines.stats.count_log_reads(reads.counts());
    let mut output = JobOutput::default();
    output.stats.input_bytes = sealed.data_size();
    host.progress().bytes.store(output.stats.input_bytes, Ordering::Relaxed);
    output.add(made);
    Ok(output)
}

/// The ring's memory for reads: what the writer of a table leaves, or half of all memory if that is more.
fn memory_beside_writer(ring: &BatchIo) -> usize {
    let limits = ring.limits();
    limits.memory_bytes.saturating_sub(limits.memory_for(None, 0)).max(limits.memory_bytes / 2)
}
