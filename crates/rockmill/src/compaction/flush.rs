//! Flush: what a front has sealed into one L0 table, through the same resolution and output as a compaction.
//!
//! Nothing is known of older data, so tombstones of every kind are kept; versions that no snapshot can tell apart
//! are written once.

use rockmill_format::edit::FileEntry;

use super::engine::{self, Destination};
use super::job::{self, ThreadCpu};
use super::merge::run::IteratorRun;
use super::merge::{KeyPrefixes, Merger};
use super::output::{Created, OutputFiles};
use super::plan::{JobPlan, Part};
use super::spec::{JobFamily, JobSpec};
use super::tombstones::Tombstones;
use super::{JobOutput, LocalHost, MergeEngine, page_cache};
use crate::compaction_filter::TableFileCreationReason;
use crate::error::Result;
use crate::front::SealedRuns;
use crate::helpers::Working;
use crate::panics::guarded;
use crate::sync::atomic::{AtomicBool, Ordering};

/// Writes `sealed` as one L0 table, durable with its name; without one when nothing survives. The epoch number is the
/// caller's to set.
pub(crate) fn build_l0(
    sealed: &SealedRuns,
    family: &JobFamily,
    host: &mut LocalHost,
    reason: TableFileCreationReason,
) -> Result<JobOutput> {
    host.sealed = Some(sealed.clone());
    let done = job::run(&JobSpec::of_flush(sealed, family, reason, host.events.job, &host.means)?, host);
    host.sealed = None; // a host may do several flushes
    done
}

impl JobOutput {
    /// The table of a flush.
    pub(crate) fn into_table(self) -> Option<FileEntry> {
        self.files.into_iter().next()
    }
}

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
    let runs = sealed.iterators().map(IteratorRun::new).collect::<Result<Vec<_>>>()?;
    let tombstones = Tombstones::whole(sealed.range_tombstones());
    let mut merger = Merger::new(runs, cmp.clone(), KeyPrefixes::new(cmp, None), None, None)?;
    let ring = if plan.output.page_cache { None } else { engine::ring(host, 0) };
    means.engines.stats.count_flush(if ring.is_some() { MergeEngine::Uring } else { MergeEngine::Pread });
    let part = Part::default();
    let (_working, help) = (Working::begin(), means.help());
    let output = Destination { plan: &plan, part: &part, tombstones: &tombstones, created, help: help.as_ref() };
    let made = output.drain(&mut merger, ring.as_deref(), [&AtomicBool::new(false); 3])?;
    let mut output = JobOutput::default();
    output.stats.input_bytes = sealed.data_size();
    host.progress().bytes.store(output.stats.input_bytes, Ordering::Relaxed);
    output.add(made);
    Ok(output)
}
