//! Measures the writes and syncs of a table file.

use std::io;
use std::sync::Arc;

use rockmill_io::WritableFile;

use super::{Histogram, Statistics};
use crate::perf::now_nanos;

/// A file whose calls are measured.
#[derive(Debug)]
pub(crate) struct MeasuredFile {
    file: Box<dyn WritableFile>,
    statistics: Arc<Statistics>,
    write: Histogram,
    sync: Histogram,
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
            Some(s) => Box::new(Self { file, statistics: Arc::clone(s), write, sync }),
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
        self.flush()?;
        let before = now_nanos();
        let done = self.file.sync();
        self.statistics.record_time(self.sync, now_nanos().saturating_sub(before) / 1000);
        done
    }

    fn close(&mut self) -> io::Result<()> {
        self.write(|f| f.close())
    }

    fn len(&self) -> u64 {
        self.file.len()
    }

    fn kernel_writes(&self) -> u64 {
        self.file.kernel_writes()
    }
}
