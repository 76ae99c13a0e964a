//! Statistics, listeners and the info log as options.

use std::path::Path;
use std::sync::Arc;

use super::{DbOptions, Options};
use crate::event_listener::EventListener;
use crate::info_log::{InfoLogger, LogSettings};
use crate::statistics::{Histogram, HistogramData, StatsLevel, Ticker};

impl Options {
    /// Collects counters and histograms from here on. Clones of these options, and databases opened with them, share
    /// them.
    pub fn enable_statistics(&mut self) {
        self.db.statistics = Some(Arc::default());
    }

    /// Sets how much is collected; does nothing where statistics are not enabled.
    pub fn set_statistics_level(&self, level: StatsLevel) {
        if let Some(s) = &self.db.statistics {
            s.set_level(level);
        }
    }

    /// All counters and histograms in RocksDB's text form; `None` where statistics are not enabled.
    pub fn get_statistics(&self) -> Option<String> {
        self.db.statistics.as_ref().map(ToString::to_string)
    }

    /// The value of a counter; 0 if statistics are not enabled.
    pub fn get_ticker_count(&self, ticker: Ticker) -> u64 {
        self.db.statistics.as_ref().map_or(0, |s| s.ticker_count(ticker))
    }

    /// A histogram; an empty one if statistics are not enabled.
    pub fn get_histogram_data(&self, histogram: Histogram) -> HistogramData {
        self.db.statistics.as_ref().map(|s| s.histogram_data(histogram)).unwrap_or_default()
    }

    /// Adds a listener to the database's events.
    pub fn add_event_listener(&mut self, listener: impl EventListener + 'static) {
        self.db.listeners.push(Arc::new(listener));
    }

    /// Sends the lines of the info log to `logger` instead of the file LOG.
    pub fn set_info_logger(&mut self, logger: InfoLogger) {
        self.db.info_logger = Some(logger);
    }

    /// Puts the info log into this directory, under a name made of the database's path. An open creates the directory
    /// and removes old logs of that name from it. For options that come from a file, see
    /// [`crate::Db::check_stored_path`].
    pub fn set_db_log_dir(&mut self, path: impl AsRef<Path>) {
        self.db.db_log_dir = path.as_ref().to_owned();
    }
}

impl DbOptions {
    /// Those of them that are the info log's.
    pub(crate) fn log_settings(&self) -> LogSettings {
        LogSettings {
            fs: Arc::clone(&self.fs),
            clock: Arc::clone(&self.clock),
            db_log_dir: self.db_log_dir.clone(),
            info_logger: self.info_logger.clone(),
            info_log_level: self.info_log_level,
            max_log_file_size: self.max_log_file_size,
            log_file_time_to_roll: self.log_file_time_to_roll,
            keep_log_file_num: self.keep_log_file_num,
        }
    }
}
