//! Measures the writes and syncs of a table file.

use std::io;
use std::sync::Arc;

use rockmill_io::{Ahead, WritableFile};

use super::{Histogram, Statistics};
use crate::perf_context::now_nanos;

/// A file whose calls are measured.
#[derive(Debug)]
pub(crate) struct MeasuredFile {
    file: Box<dyn WritableFile>,
    statistics: Arc<Statistics>,
    write: Histogram,
    sync: Histogram,
    /// When a sync was begun that is not over.
    syncing: Option<u64>,
}

impl MeasuredFile {
    /// `file`, measured where statistics are on; `write` and `sync` are what a write and a sync count as.
    pub fn wrap(
        file: Box<dyn WritableFile>,
        statistics: Option<&Arc<Statistics>>,
        write: Histogram,
        sync: Histogram,
    ) -> Box<dyn WritableFile> {
        match statistics {
            Some(s) => Box::new(Self { file, statistics: Arc::clone(s), write, sync, syncing: None }),
            None => file,
        }
    }

    /// A call that may write: counted only if it did.
    fn write<T>(&mut self, call: impl FnOnce(&mut dyn WritableFile) -> T) -> T {
        let (before, writes) = (now_nanos(), self.file.kernel_writes());
        let done = call(&mut *self.file);
        if self.file.kernel_writes() != writes {
            let micros = now_nanos().saturating_sub(before) / 1000;
            self.statistics.record_time(Histogram::SstWriteMicros, micros);
            self.statistics.record_time(self.write, micros);
        }
        done
    }

    fn synced(&self, before: u64) {
        self.statistics.record_time(self.sync, now_nanos().saturating_sub(before) / 1000);
    }
}

impl WritableFile for MeasuredFile {
    fn append(&mut self, data: &[u8]) -> io::Result<()> {
        self.write(|f| f.append(data))
    }

    fn append_and_flush(&mut self, data: &[u8]) -> io::Result<()> {
        self.write(|f| f.append_and_flush(data))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.write(|f| f.flush())
    }

    fn sync(&mut self) -> io::Result<()> {
        if self.syncing.is_none() {
            self.flush()?;
        }
        let before = self.syncing.take().unwrap_or_else(now_nanos);
        let done = self.file.sync();
        self.synced(before);
        done
    }

    fn begin_sync(&mut self) -> io::Result<bool> {
        let before = now_nanos();
        let done = self.write(|f| f.begin_sync());
        match done {
            Ok(false) => self.syncing = Some(before),
            Ok(true) | Err(_) => self.synced(before),
        }
        done
    }

    fn poll_sync(&mut self) -> io::Result<bool> {
        let done = self.file.poll_sync();
        if !matches!(done, Ok(false))
            && let Some(before) = self.syncing.take()
        {
            self.synced(before);
        }
        done
    }

    fn extend_ahead(&mut self, how: Ahead) {
        self.file.extend_ahead(how);
    }

    fn close(&mut self) -> io::Result<()> {
        self.write(|f| f.close())
    }

    fn len(&self) -> u64 {
        self.file.len()
    }

    fn write_backs(&self) -> u64 {
        self.file.write_backs()
    }

    fn kernel_writes(&self) -> u64 {
        self.file.kernel_writes()
    }
}
