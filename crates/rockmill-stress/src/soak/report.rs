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
    /// Compared keys, including absent ones.
    pub checked: u64,
    /// How often a whole database was compared after a start.
    pub verifications: u64,
    /// Operations that were refused under a limit.
    pub refused: u64,
    /// Starts that were refused under a limit.
    pub refused_starts: u64,
    /// Times that a limit began to hold.
    pub limited: u64,
    /// How often the store reported a background error.
    pub background_errors: u64,
    /// Times that it worked again.
    pub resumed: u64,
    /// Longest time from the lifting of a limit until then, milliseconds.
    pub resume_ms_max: u64,
    /// Longest opening of a database after a death, milliseconds.
    pub open_ms_max: u64,
    /// Times that RocksDB read a dead database.
    pub oracle_checks: u64,
    /// Of these, in a copy whose extra runs were first merged because RocksDB refused the database.
    pub oracle_downgraded: u64,
    /// Keys that were compared so.
    pub oracle_keys: u64,
    /// How often it could not, because a kill happened between the drop and the re-creation of a column family.
    pub oracle_passed_over: u64,
    /// How often `rockmill verify` found a killed database to be intact.
    pub file_checks: u64,
    /// Total number of tables with several files in killed databases.
    pub shared_tables: u64,
    /// Repairs of copies of killed databases, all of which were compared.
    pub repaired_copies: u64,
    /// Repairs of killed databases, with which the next child continued.
    pub repaired: u64,
    /// How often another process read the whole database concurrently with a child.
    pub readings: u64,
    /// Such reads that gave up because the child changed its tables too fast.
    pub readings_passed_over: u64,
    /// What was left out, and why.
    pub skipped: BTreeMap<String, Missing>,
    /// What the child used.
    pub trends: Vec<Trend>,
    /// Memory of the child at the last sample, bytes.
    pub memory_now: u64,
}

/// A run that found something wrong.
#[derive(Debug)]
pub struct Failure {
    /// What.
    pub text: String,
    /// The configuration of the child that found it, or of the previous child.
    pub configuration: String,
    /// Figures up to there.
    pub report: Report,
}
