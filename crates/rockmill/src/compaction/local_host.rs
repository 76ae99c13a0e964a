//! The store as the host of its own jobs ([`JobHost`]).

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rockmill_format::edit::TablePiece;
use rockmill_format::filename;
use rockmill_io::ring::{BatchIo, DeviceFacts};
use rockmill_io::{RandomAccessFile, WritableFile, WriteOptions};

use super::Compaction;
use super::events::JobEvents;
use super::host::{JobHost, JobMeans, JobProgress, create_file};
use super::spec::SpecFile;
use crate::error::{Error, Result};
use crate::front::SealedRuns;
use crate::sync::atomic::AtomicBool;
use crate::table::{Table, TableSummary};
use crate::version::{FileMeta, TableSource};

/// The host of one job: files of a directory, and tables that it may have open.
#[derive(Clone)]
pub(crate) struct LocalHost {
    /// The means of the job; its file system has the files.
    pub means: JobMeans,
    /// Directory of the outputs.
    pub dir: PathBuf,
    /// Inputs that the store knows, by file number. Others are opened as the spec describes them.
    pub inputs: Arc<HashMap<u64, Arc<FileMeta>>>,
    /// Opens tables.
    pub tables: Arc<dyn TableSource>,
    /// What a flush reads.
    pub sealed: Option<SealedRuns>,
    /// Gives the next unused file number.
    pub new_file_number: Arc<dyn Fn() -> Result<u64> + Send + Sync>,
    /// Set when the job's output can no longer become live.
    pub cancelled: Arc<AtomicBool>,
    /// Where events go.
    pub events: JobEvents,
}

impl LocalHost {
    /// The same, for a host that knows the inputs of this compaction.
    #[must_use]
    pub fn with_inputs(self, compaction: &Compaction) -> Self {
        let inputs = compaction.input_files().map(|f| (f.number(), Arc::clone(f))).collect();
        Self { inputs: Arc::new(inputs), ..self }
    }
}

impl JobHost for LocalHost {
    fn means(&self) -> &JobMeans {
        &self.means
    }

    fn open_input(&self, file: &SpecFile) -> Result<Arc<Table>> {
        match self.inputs.get(&file.number()) {
            Some(known) => self.tables.table(known),
            None => self.tables.table(&Arc::new(FileMeta::new(file.entry.clone(), Arc::default()))),
        }
    }

    fn input_bytes(&self, _: &SpecFile, path: &Path, direct: bool) -> Result<Arc<dyn RandomAccessFile>> {
        let cannot = |e| Error::io(format_args!("cannot open {} for a compaction", path.display()), &e);
        self.means.fs.open_random(path, direct).map_err(cannot)
    }

    fn memtables(&self, ids: &[u64]) -> Result<SealedRuns> {
        let missing = || Error::invalid_argument(format!("memtables {ids:?} are not those of the flush"));
        self.sealed.clone().filter(|sealed| sealed.ids().eq(ids.iter().copied())).ok_or_else(missing)
    }

    fn next_number(&self) -> Result<u64> {
        (self.new_file_number)()
    }

    fn output_path(&self, number: u64) -> PathBuf {
        self.dir.join(filename::table(number))
    }

    fn create_output(
        &self,
        number: u64,
        options: WriteOptions,
        ring: Option<&BatchIo>,
    ) -> Result<Box<dyn WritableFile>> {
        let path = self.output_path(number);
        create_file(&*self.means.fs, &path, options, ring)
            .map_err(|e| Error::io(format_args!("cannot create table {}", path.display()), &e))
    }

    fn sync_outputs(&self) -> Result<()> {
        let cannot = |e| Error::io(format_args!("cannot sync directory {}", self.dir.display()), &e);
        self.means.fs.sync_dir(&self.dir).map_err(cannot)
    }

    fn remove_output(&self, number: u64) {
        self.events.new_tables.lock().remove(&number);
        let _ = self.means.fs.remove(&self.output_path(number)); // else an orphan, which the next open removes
    }

    fn cancelled(&self) -> &AtomicBool {
        &self.cancelled
    }

    fn progress(&self) -> &Arc<JobProgress> {
        &self.events.progress
    }

    fn output_done(&self, number: u64, path: &Path, pieces: &[TablePiece], done: &Result<TableSummary>) {
        self.events.tell(&self.means, number, path, pieces, done);
    }

    fn device(&self) -> Option<DeviceFacts> {
        self.means.engines.rings.device(&*self.means.fs, &self.dir)
    }
}
