//! Compactions that another machine does, if the options name such machines and the job can be sent.

use crate::compaction::elsewhere;
use crate::compaction::spec::JobSpec;
use crate::compaction::{Compaction, JobOutput, LocalHost};
use crate::compaction_workers::RemoteDone;
use crate::db::DbInner;
use crate::db::catalog::column_family::CfData;
use crate::db::report::stats::count;
use crate::info_log::{log_info, log_warn};
use crate::sync::atomic::Ordering;

/// The most workers that are asked to do one job, one after another.
const ATTEMPTS_MAX: usize = 2;

impl DbInner {
    /// Runs a compaction on another machine, or on a second one if the first fails. `None`: it must be done here, and
    /// nothing is left of the attempts.
    pub(super) fn compact_elsewhere(
        &self,
        cf: &CfData,
        compaction: &Compaction,
        spec: &JobSpec,
        host: &LocalHost,
    ) -> Option<JobOutput> {
        let workers = self.opts.compaction_workers.as_deref()?;
        // What finished jobs wait to commit is merged while they wait: not for long.
        if compaction.is_intra_df() {
            return None;
        }
        let (name, number, bytes) = (&cf.name, spec.job, spec.input_bytes());
        let stays = |why: String| log_info!(self.log, "[{name}] [JOB {number}] Not offered to a worker: {why}");
        if let Err(why) = elsewhere::may_go(spec, |code| workers.knows(code)) {
            stays(why);
            return None;
        }
        let mut tried = Vec::new();
        let mut taken = workers.take(bytes, &tried);
        // Opens the inputs, so only if there is a worker.
        if taken.is_some()
            && let Err(why) = elsewhere::inputs_may_go(spec, host)
        {
            stays(why);
            return None;
        }
        while let Some(worker) = taken {
            let e = match elsewhere::run(spec, host, &*worker) {
                Ok((output, done)) => {
                    self.done_elsewhere(cf, spec, &output, &done);
                    return Some(output);
                }
                Err(e) => e,
            };
            tried.push(worker.place());
            drop(worker);
            let is_stopped = [&host.cancelled, &host.means.shutdown].iter().any(|stop| stop.load(Ordering::Acquire));
            let is_last = is_stopped || tried.len() >= ATTEMPTS_MAX;
            taken = if is_last { None } else { workers.take(bytes, &tried) };
            match &taken {
                Some(_) => {
                    count(&self.stats.compactions_offered_again, 1);
                    log_warn!(
                        self.log,
                        "[{name}] [JOB {number}] Not done by a worker, and offered to another one: {e}"
                    );
                }
                None => {
                    count(&self.stats.compactions_returned, 1);
                    log_warn!(self.log, "[{name}] [JOB {number}] Not done by a worker, and done here: {e}");
                }
            }
        }
        None
    }

    /// Counts and logs a job that another machine did.
    fn done_elsewhere(&self, cf: &CfData, spec: &JobSpec, output: &JobOutput, done: &RemoteDone) {
        let (name, number, bytes, usage) = (&cf.name, spec.job, spec.input_bytes(), &done.usage);
        count(&self.stats.compactions_elsewhere, 1);
        count(&self.stats.elsewhere_read_bytes, output.stats.input_bytes);
        count(&self.stats.elsewhere_cpu_micros, usage.cpu_micros);
        count(&self.stats.elsewhere_round_trips, usage.round_trips);
        count(&self.stats.elsewhere_wire_bytes, usage.sent_bytes.saturating_add(usage.received_bytes));
        let (tables, stats) = (output.files.len(), &output.stats);
        log_info!(
            self.log,
            "[{name}] [JOB {number}] Done by worker {}: {bytes} bytes into {tables} tables of {} bytes in {} us; there {} \
             us of CPU, {} round trips, {} bytes sent and {} received",
            done.worker,
            stats.output_bytes,
            stats.wall_micros,
            usage.cpu_micros,
            usage.round_trips,
            usage.sent_bytes,
            usage.received_bytes
        );
    }
}
