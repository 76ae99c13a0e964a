//! What a run came to.

use std::collections::BTreeMap;

use rockmill_skip::Missing;

use super::sample::Trend;

/// Figures of a run, so far or at its end.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Seconds.
    pub seconds: f64,
    /// Children that were started.
    pub lives: u64,
    /// Children that were killed with SIGKILL.
    pub kills: u64,
    /// Of those, before they had opened and compared the database.
    pub kills_in_recovery: u64,
    /// Children that ended for want of memory.
    pub memory_deaths: u64,
    /// Configurations that were used.
    pub configurations: usize,
    /// Operations that came to an end.
    pub ops: u64,
    /// Of those, writes.
    pub writes: u64,
    /// Keys that were compared with what must be there, absent ones too.
    pub checked: u64,
    /// Times that a whole database was compared after a start.
    pub verifications: u64,
    /// Operations that were refused under a limit.
    pub refused: u64,
    /// Starts that were refused under a limit.
    pub refused_starts: u64,
    /// Times that a limit began to hold.
    pub limited: u64,
    /// Times that the store reported a background error.
    pub background_errors: u64,
    /// Times that it worked again.
    pub resumed: u64,
    /// Longest time from the lifting of a limit until then, milliseconds.
    pub resume_ms_max: u64,
    /// Longest opening of a database after a death, milliseconds.
    pub open_ms_max: u64,
    /// Times that RocksDB read a dead database.
    pub oracle_checks: u64,
    /// Of these, in a copy whose extra runs were merged before: RocksDB refused the database.
    pub oracle_downgraded: u64,
    /// Keys that were compared so.
    pub oracle_keys: u64,
    /// Times that it could not, because a kill had met a column family between its drop and its new beginning.
    pub oracle_passed_over: u64,
    /// Times that `rockmill verify` found a dead database in order.
    pub file_checks: u64,
    /// Tables of several files that dead databases had then, all together.
    pub shared_tables: u64,
    /// Repairs of copies of dead databases, all of which were compared.
    pub repaired_copies: u64,
    /// Repairs of dead databases, with which the next child went on.
    pub repaired: u64,
    /// Times that another process read the whole database beside a child.
    pub readings: u64,
    /// Such readings that gave up, because the child changed its tables too fast.
    pub readings_passed_over: u64,
    /// What was left out, and why.
    pub skipped: BTreeMap<String, Missing>,
    /// What the child used.
    pub trends: Vec<Trend>,
    /// Memory of the child at the last look, bytes.
    pub memory_now: u64,
}

/// A run that found something wrong.
#[derive(Debug)]
pub struct Failure {
    /// What.
    pub text: String,
    /// The configuration of the child that found it, or that came before.
    pub configuration: String,
    /// Figures up to there.
    pub report: Report,
}
