//! A store's report about its jobs: the events in its LOG, which have the same form in RocksDB and Rockmill. They show
//! that the timed work was one job with every input, and that no file was only moved.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::store::WARM_UP;

/// Marks an event's line.
const EVENT: &str = "EVENT_LOG_v1 ";

/// The compactions that a database ran since it was opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobLog {
    /// The inputs of the jobs: level and number of tables, job by job.
    pub started: Vec<Vec<(usize, usize)>>,
    /// Files moved without being read.
    pub moves: u64,
    /// Where the last job wrote.
    pub output_level: u64,
    /// Tables that it wrote.
    pub output_files: u64,
    /// Their bytes.
    pub output_bytes: u64,
    /// Entries that it read.
    pub input_records: u64,
    /// Entries that it wrote.
    pub output_records: u64,
    /// Its duration in microseconds according to the store.
    pub micros: u64,
    /// Jobs that ended.
    pub finished: u64,
}

impl JobLog {
    /// Reads the LOG of the closed database in `dir`.
    pub fn read(dir: &Path) -> Result<Self> {
        let path = dir.join("LOG");
        let text = fs::read(&path).map_err(|e| Error::io(format_args!("cannot read {}", path.display()), &e))?;
        Ok(Self::parse(&String::from_utf8_lossy(&text)))
    }

    fn parse(text: &str) -> Self {
        let mut out = Self::default();
        let mut elsewhere: Vec<u64> = Vec::new();
        // Older releases name a job's column family only in the text line before its first event.
        let told = format!("[{WARM_UP}] [JOB ");
        for line in text.lines() {
            if let Some((_, job)) = line.split_once(&told) {
                elsewhere.extend(job.split(']').next().and_then(|n| n.parse::<u64>().ok()));
            }
            let Some((_, json)) = line.split_once(EVENT) else { continue };
            let Ok(event) = serde_json::from_str::<Value>(json) else { continue };
            // Only a job's beginning names its column family.
            let job = event["job"].as_u64();
            if event["cf_name"].as_str() == Some(WARM_UP) {
                elsewhere.extend(job);
            }
            if job.is_some_and(|job| elsewhere.contains(&job)) {
                continue;
            }
            let number = |name: &str| event[name].as_u64().unwrap_or(0);
            match event["event"].as_str().unwrap_or_default() {
                "compaction_started" => {
                    let files = event.as_object().into_iter().flatten().filter_map(|(name, files)| {
                        let level = name.strip_prefix("files_L")?.parse().ok()?;
                        Some((level, files.as_array()?.len()))
                    });
                    out.started.push(files.filter(|(_, n)| *n > 0).collect());
                }
                "trivial_move" => out.moves += 1,
                "compaction_finished" => {
                    out.finished += 1;
                    out.output_level = number("output_level");
                    out.output_files = number("num_output_files");
                    out.output_bytes = number("total_output_size");
                    out.input_records = number("num_input_records");
                    out.output_records = number("num_output_records");
                    out.micros = number("compaction_time_micros");
                }
                _ => {}
            }
        }
        out
    }

    /// Refuses anything but one job of `inputs` tables of L0 into L1 that read `entries`.
    pub fn check(&self, store: &str, inputs: usize, entries: u64) -> Result<()> {
        let wrong = if self.started != [vec![(0, inputs)]] {
            format!("its jobs took {:?} (level, tables)", self.started)
        } else if self.moves > 0 {
            format!("{} files were moved", self.moves)
        } else if self.finished != 1 || self.output_level != 1 {
            format!("{} jobs ended, the last in L{}", self.finished, self.output_level)
        } else if self.input_records != entries {
            format!("the job read {} entries of {entries}", self.input_records)
        } else {
            return Ok(());
        };
        Err(Error::Run(format!("{store} did not merge {inputs} tables of L0 into L1 in one job: {wrong}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_job_is_told_from_others() {
        let started = |files: &str| {
            format!(
                "2026/11/22-00:00:00.1 7 EVENT_LOG_v1 {{\"event\": \"compaction_started\", {files}, \"score\": 1}}\n"
            )
        };
        let finished = "x EVENT_LOG_v1 {\"event\": \"compaction_finished\", \"output_level\": 1, \
            \"num_output_files\": 2, \"total_output_size\": 77, \"num_input_records\": 10, \
            \"num_output_records\": 9, \"compaction_time_micros\": 5, \"lsm_state\": [0, 2]}\n";
        let log = JobLog::parse(&(started("\"files_L0\": [3, 2]") + "a line\nEVENT_LOG_v1 no json\n" + finished));
        assert_eq!((log.output_bytes, log.output_files, log.output_records, log.micros), (77, 2, 9, 5));
        assert_eq!(log.check("s", 2, 10), Ok(()));
        let says = |log: &JobLog, inputs, entries| log.check("s", inputs, entries).expect_err("wrong").to_string();
        assert!(says(&log, 3, 10).contains("[(0, 2)]"));
        assert!(says(&log, 2, 11).contains("read 10 entries of 11"));
        let two = JobLog::parse(&(started("\"files_L0\": [3]") + &started("\"files_L0\": [2]") + finished));
        assert!(says(&two, 2, 10).contains("in one job"));
        let elsewhere = "\"job\": 7, \"cf_name\": \"warm_up\", \"files_L0\": [9, 8, 7]";
        let done = finished.replace('{', "{\"job\": 7, ");
        let warmed = started(elsewhere) + &done + &started("\"cf_name\": \"default\", \"files_L0\": [3, 2]") + finished;
        assert_eq!(JobLog::parse(&warmed).check("s", 2, 10), Ok(()));
        let before = "x [/compaction/compaction_job.cc:1991] [warm_up] [JOB 7] Compacting 3@0 files to L6\n";
        let older = before.to_owned() + &warmed.replace("\"cf_name\": \"warm_up\", ", "");
        assert_eq!(JobLog::parse(&older).check("s", 2, 10), Ok(()));
        let moved = JobLog { moves: 1, ..log.clone() };
        assert!(says(&moved, 2, 10).contains("moved"));
        assert!(says(&JobLog { finished: 0, ..log }, 2, 10).contains("0 jobs ended"));
    }
}
