//! The cost of recoveries in calls, bytes and time, and its limits.

use std::fmt;
use std::time::Duration;

use rockmill_io::IoCounts;

use crate::files::LogBytes;

/// One recovery.
#[derive(Debug, Clone, Copy)]
pub struct Cost {
    /// What it had to read.
    pub logs: LogBytes,
    /// What it did.
    pub io: IoCounts,
    /// How long it took.
    pub time: Duration,
}

/// Calls of a recovery without any log or table (locks, CURRENT, MANIFEST, OPTIONS, LOG, the first WAL), and of the
/// first compactions, which begin before an opening returns.
const CALLS_FIXED: u64 = 800;
/// Calls for each existing table and each table that the recovery writes: opening, footer, properties, index, filter.
const CALLS_PER_TABLE: u64 = 24;
/// Calls for each sector of log: a read of a log's block, and at most one table if memory is short.
const CALLS_PER_SECTOR: u64 = 24;
/// Bytes read or written without any log: options, the MANIFEST's beginning.
const BYTES_FIXED: u64 = 512 << 10;
/// Bytes for each table: footer, properties, index, filter, dictionary, its entry in the new MANIFEST, and the first
/// compactions, which begin before an open returns.
const BYTES_PER_TABLE: u64 = 32 << 10;

impl Cost {
    /// Checks that the recovery's cost is explained by the data that it had to read.
    ///
    /// # Errors
    /// The exceeded limit.
    pub fn check(&self, families: u64) -> Result<(), String> {
        let LogBytes { wals, manifest, tables, wal_files, tails } = self.logs;
        let tables = tables + families;
        let calls =
            CALLS_FIXED + CALLS_PER_TABLE * tables + 4 * wal_files + CALLS_PER_SECTOR * ((wals + manifest) >> 9);
        if self.io.calls() > calls {
            return Err(format!("a recovery made {} calls, expected at most {calls}: {self:?}", self.io.calls()));
        }
        // Each log is read once, or twice if it ends in damage; a recycled one is then also searched for records after
        // the damage. Its contents are written as tables.
        let read = BYTES_FIXED + BYTES_PER_TABLE * tables + tails + 4 * (wals + manifest);
        if self.io.read_bytes > read {
            return Err(format!("a recovery read {} bytes, expected at most {read}: {self:?}", self.io.read_bytes));
        }
        let written = BYTES_FIXED + BYTES_PER_TABLE * tables + 2 * (wals + manifest);
        if self.io.write_bytes > written {
            return Err(format!(
                "a recovery wrote {} bytes, expected at most {written}: {self:?}",
                self.io.write_bytes
            ));
        }
        Ok(())
    }
}

/// Many of them.
#[derive(Debug, Clone, Default)]
pub struct Costs {
    calls: Vec<u64>,
    read: Vec<u64>,
    written: Vec<u64>,
    micros: Vec<u64>,
    logs: Vec<u64>,
}

impl Costs {
    /// Adds one.
    pub fn add(&mut self, cost: &Cost) {
        self.calls.push(cost.io.calls());
        self.read.push(cost.io.read_bytes);
        self.written.push(cost.io.write_bytes);
        self.micros.push(cost.time.as_micros() as u64);
        self.logs.push(cost.logs.wals + cost.logs.manifest);
    }

    /// Adds others.
    pub fn join(&mut self, others: Costs) {
        let Costs { calls, read, written, micros, logs } = others;
        self.calls.extend(calls);
        self.read.extend(read);
        self.written.extend(written);
        self.micros.extend(micros);
        self.logs.extend(logs);
    }
}

impl fmt::Display for Costs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [
            ("log bytes", &self.logs),
            ("calls", &self.calls),
            ("bytes read", &self.read),
            ("bytes written", &self.written),
            ("microseconds", &self.micros),
        ];
        write!(f, "{} recoveries (median, 99 %, most):", self.calls.len())?;
        for (name, values) in all {
            let mut values = values.clone();
            values.sort_unstable();
            let at = |percent: usize| values.get((values.len() * percent / 100).min(values.len().saturating_sub(1)));
            let at = |percent| at(percent).copied().unwrap_or(0);
            write!(f, " {name} {} {} {};", at(50), at(99), at(100))?;
        }
        Ok(())
    }
}
