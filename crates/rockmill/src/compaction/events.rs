//! What a job tells of while it runs: the tables that it writes.

use std::path::Path;
use std::sync::Arc;

use rockmill_format::properties::TableProperties;

use super::LocalHost;
use crate::error::{Error, Result};
use crate::event_listener::{TableFileCreationInfo, TableFileCreationReason};
use crate::info_log::Event;
use crate::sync::Mutex;
use crate::sync::atomic::AtomicU64;
use crate::table::TableSummary;
use crate::version::{NewTable, NewTables, TableNumbers};

/// How far a job is.
#[derive(Debug, Default)]
pub struct JobProgress {
    /// Of its input, as it is stored, what the merge has taken.
    pub(crate) bytes: AtomicU64,
    /// Parts that have begun.
    pub(crate) parts: AtomicU64,
}

/// Where a job's events go.
#[derive(Debug, Clone)]
pub struct JobEvents {
    /// The job's number.
    pub(crate) job: u64,
    /// Name of the column family.
    pub(crate) cf_name: String,
    pub(crate) reason: TableFileCreationReason,
    pub(crate) progress: Arc<JobProgress>,
    /// For the version that they will be part of.
    pub(crate) new_tables: Arc<NewTables>,
    /// Where listeners may not be called yet: what they are to be told.
    pub(crate) told_later: Option<Arc<Mutex<Vec<TableFileCreationInfo>>>>,
}

impl Default for JobEvents {
    fn default() -> Self {
        let (cf_name, reason) = (String::new(), TableFileCreationReason::Compaction);
        Self { job: 0, cf_name, reason, progress: Arc::default(), new_tables: Arc::default(), told_later: None }
    }
}

impl LocalHost {
    /// Logs a table that was written, or could not be, and tells the listeners.
    pub(super) fn tell(&self, number: u64, path: &Path, done: &Result<TableSummary>) {
        let JobEvents { job, cf_name, reason, .. } = &self.events;
        let (log, db) = (&self.means.log, &self.means.db);
        if let Ok(summary) = done {
            let numbers = TableNumbers::of(&summary.properties);
            self.events.new_tables.lock().insert(number, NewTable { numbers, open: None });
        }
        if let Ok(summary) = done
            && log.wants(crate::info_log::LogLevel::Info)
        {
            log.event(
                Event::new(&*self.means.clock)
                    .text("cf_name", cf_name)
                    .number("job", job)
                    .text("event", "table_file_creation")
                    .number("file_number", number)
                    .number("file_size", summary.file_size)
                    .number("smallest_seqno", summary.smallest_seqno)
                    .number("largest_seqno", summary.largest_seqno)
                    .object("table_properties", |e| properties(e, &summary.properties)),
            );
        }
        if db.listeners.is_empty() {
            return;
        }
        let info = TableFileCreationInfo {
            db_name: self.dir.clone(),
            cf_name: cf_name.clone(),
            file_path: path.to_owned(),
            job_id: *job,
            reason: *reason,
            file_size: done.as_ref().map_or(0, |s| s.file_size),
            table_properties: done.as_ref().map(|s| s.properties.clone()).unwrap_or_default(),
            status: done.as_ref().map(drop).map_err(Error::clone),
        };
        match &self.events.told_later {
            Some(infos) => infos.lock().push(info),
            None => db.listeners.notify(log, |l| l.on_table_file_created(&info)),
        }
    }
}

fn properties(event: Event, p: &TableProperties) -> Event {
    let average = |bytes: u64| bytes.checked_div(p.num_entries).unwrap_or(0);
    event
        .number("data_size", p.data_size)
        .number("index_size", p.index_size)
        .number("index_partitions", p.index_partitions)
        .number("top_level_index_size", p.top_level_index_size)
        .number("index_key_is_user_key", p.index_key_is_user_key)
        .number("index_value_is_delta_encoded", p.index_value_is_delta_encoded)
        .number("filter_size", p.filter_size)
        .number("raw_key_size", p.raw_key_size)
        .number("raw_average_key_size", average(p.raw_key_size))
        .number("raw_value_size", p.raw_value_size)
        .number("raw_average_value_size", average(p.raw_value_size))
        .number("num_data_blocks", p.num_data_blocks)
        .number("num_entries", p.num_entries)
        .number("num_filter_entries", p.num_filter_entries)
        .number("num_deletions", p.num_deletions)
        .number("num_merge_operands", p.num_merge_operands)
        .number("num_range_deletions", p.num_range_deletions)
        .number("format_version", p.format_version)
        .text("filter_policy", &p.filter_policy_name)
        .text("column_family_name", &p.column_family_name)
        .number("column_family_id", p.column_family_id)
        .text("comparator", &p.comparator_name)
        .text("merge_operator", &p.merge_operator_name)
        .text("prefix_extractor_name", &p.prefix_extractor_name)
        .text("compression", &p.compression_name)
        .number("creation_time", p.creation_time)
        .number("file_creation_time", p.file_creation_time)
        .text("db_id", &p.db_id)
        .text("db_session_id", &p.db_session_id)
        .number("orig_file_number", p.orig_file_number)
}
