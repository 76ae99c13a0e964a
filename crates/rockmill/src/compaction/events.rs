//! What a job reports while it runs: the tables that it writes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rockmill_format::edit::TablePiece;
use rockmill_format::properties::TableProperties;

use super::host::{JobMeans, JobProgress};
use crate::error::{Error, Result};
use crate::event_listener::{TableFileCreationInfo, TableFileCreationReason};
use crate::info_log::Event;
use crate::sync::Mutex;
use crate::table::TableSummary;
use crate::version::{NewTable, NewTables, TableNumbers};

/// Where a job's events go.
#[derive(Debug, Clone)]
pub struct JobEvents {
    /// The job's number.
    pub(crate) job: u64,
    /// The database's directory.
    pub(crate) db_name: PathBuf,
    /// Name of the column family.
    pub(crate) cf_name: String,
    pub(crate) reason: TableFileCreationReason,
    pub(crate) progress: Arc<JobProgress>,
    /// For the version that they will be part of.
    pub(crate) new_tables: Arc<NewTables>,
    /// If listeners may not be called yet: the events for them.
    pub(crate) deferred: Option<Arc<Mutex<Vec<TableFileCreationInfo>>>>,
}

impl Default for JobEvents {
    fn default() -> Self {
        let (cf_name, reason) = (String::new(), TableFileCreationReason::Compaction);
        let db_name = PathBuf::new();
        Self { job: 0, db_name, cf_name, reason, progress: Arc::default(), new_tables: Arc::default(), deferred: None }
    }
}

impl JobEvents {
    /// Logs a table that was written, or could not be, and tells the listeners.
    pub(super) fn tell(
        &self,
        means: &JobMeans,
        number: u64,
        path: &Path,
        pieces: &[TablePiece],
        done: &Result<TableSummary>,
    ) {
        let Self { job, cf_name, reason, .. } = self;
        let (log, listeners) = (&means.log, &means.db.listeners);
        if let Ok(summary) = done {
            let numbers = TableNumbers::of(&summary.properties);
            let new = NewTable { numbers, files: 1 + pieces.len(), open: None };
            self.new_tables.lock().insert(number, new);
        }
        if let Ok(summary) = done
            && log.wants(crate::info_log::LogLevel::Info)
        {
            let mut event = Event::new(&*means.clock)
                .text("cf_name", cf_name)
                .number("job", job)
                .text("event", "table_file_creation")
                .number("file_number", number)
                .number("file_size", summary.file_size)
                .number("smallest_seqno", summary.smallest_seqno)
                .number("largest_seqno", summary.largest_seqno);
            if !pieces.is_empty() {
                event = event
                    .numbers("pieces", pieces.iter().map(|piece| piece.number))
                    .number("live_piece_size", pieces.iter().map(|piece| piece.live).fold(0, u64::saturating_add));
            }
            log.event(event.object("table_properties", |e| properties(e, &summary.properties)));
        }
        if listeners.is_empty() {
            return;
        }
        let info = TableFileCreationInfo {
            db_name: self.db_name.clone(),
            cf_name: cf_name.clone(),
            file_path: path.to_owned(),
            job_id: *job,
            reason: *reason,
            file_size: done.as_ref().map_or(0, |s| s.file_size),
            pieces: pieces.to_vec(),
            table_properties: done.as_ref().map(|s| s.properties.clone()).unwrap_or_default(),
            status: done.as_ref().map(drop).map_err(Error::clone),
        };
        match &self.deferred {
            Some(infos) => infos.lock().push(info),
            None => listeners.notify(log, |l| l.on_table_file_created(&info)),
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

#[cfg(test)]
mod tests {
    use rockmill_io::{FileSystem, ManualClock, MemFileSystem};

    use super::*;
    use crate::Options;
    use crate::compaction::objects::JobObjects;
    use crate::compaction::{JobHost, LocalHost};
    use crate::event_listener::EventListener;
    use crate::info_log::{InfoLog, InfoLogger, LogLevel};
    use crate::table::Table;
    use crate::version::{FileMeta, TableSource};

    struct NoTables;

    impl TableSource for NoTables {
        fn table(&self, file: &Arc<FileMeta>) -> Result<Arc<Table>> {
            Err(Error::corruption(format!("{file:?}")))
        }
    }

    /// The pieces that it was told of.
    #[derive(Default)]
    struct Told(Mutex<Vec<Vec<TablePiece>>>);

    impl EventListener for Arc<Told> {
        fn on_table_file_created(&self, info: &TableFileCreationInfo) {
            self.0.lock().push(info.pieces.clone());
        }
    }

    #[test]
    fn the_log_and_listeners_are_told_of_pieces() {
        let (lines, told) = (Arc::new(Mutex::new(String::new())), Arc::<Told>::default());
        let fs: Arc<dyn FileSystem> = Arc::new(MemFileSystem::new());
        let mut options = Options::default();
        options.set_file_system(Arc::clone(&fs));
        let log = Arc::clone(&lines);
        options.set_info_logger(InfoLogger::new_callback_logger(LogLevel::Info, move |_, line| {
            log.lock().push_str(line);
        }));
        options.add_event_listener(Arc::clone(&told));
        let log = InfoLog::begin(&options.db.log_settings(), Path::new("/db"));
        let means = JobMeans::new(JobObjects::default(), options.db, fs, Arc::new(ManualClock::new(1)));
        let host = LocalHost {
            means: JobMeans { log, ..means },
            dir: "/db".into(),
            inputs: Arc::default(),
            tables: Arc::new(NoTables),
            sealed: None,
            new_file_number: Arc::new(|| Ok(1)),
            cancelled: Arc::default(),
            events: JobEvents::default(),
        };
        let pieces =
            [(7, 100, 60), (5, 90, 90)].map(|(number, size, live)| TablePiece { number, size, live, path_id: 0 });
        for pieces in [&pieces[..], &[]] {
            host.output_done(9, Path::new("/db/000009.sst"), pieces, &Ok(TableSummary::default()));
            let text = std::mem::take(&mut *lines.lock());
            assert_eq!(text.contains(r#""pieces": [7, 5], "live_piece_size": 150, "#), !pieces.is_empty(), "{text}");
            assert_eq!(text.contains("piece"), !pieces.is_empty(), "{text}");
        }
        assert_eq!(*told.0.lock(), [pieces.to_vec(), Vec::new()]);
    }
}
