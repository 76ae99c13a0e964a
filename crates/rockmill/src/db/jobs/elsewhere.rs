//! Compactions that another machine does, where the options name such and the job is one that can be sent.

use crate::compaction::elsewhere;
use crate::compaction::spec::JobSpec;
use crate::compaction::{Compaction, JobOutput, LocalHost};
use crate::db::DbInner;
use crate::db::catalog::column_family::CfData;
use crate::db::report::stats::count;
use crate::info_log::{log_info, log_warn};

impl DbInner {
    /// Has a compaction done on another machine. `None`: it is to be done here, and nothing is left of the attempt.
    pub(super) fn compact_elsewhere(
        &self,
        cf: &CfData,
        compaction: &Compaction,
        spec: &JobSpec,
        host: &LocalHost,
    ) -> Option<JobOutput> {
        let workers = self.opts.compaction_workers.as_deref()?;
        let bytes = spec.input_bytes();
        // What finished jobs wait to commit is merged while they wait: not for long.
        if compaction.is_intra_df() || !elsewhere::may_go(spec) || !workers.wants(bytes) {
            return None;
        }
        let (name, number) = (&cf.name, spec.job);
        match elsewhere::run(spec, host, workers) {
            Ok((output, worker)) => {
                count(&self.stats.compactions_elsewhere, 1);
                count(&self.stats.elsewhere_read_bytes, output.stats.input_bytes);
                let (tables, micros) = (output.files.len(), output.stats.wall_micros);
                log_info!(
                    self.log,
                    "[{name}] [JOB {number}] Done by worker {worker}: {bytes} bytes into {tables} tables of {} bytes in \
                     {micros} us",
                    output.stats.output_bytes
                );
                Some(output)
            }
            Err(e) => {
                count(&self.stats.compactions_returned, 1);
                log_warn!(self.log, "[{name}] [JOB {number}] Not done by a worker, and done here: {e}");
                None
            }
        }
    }
}
