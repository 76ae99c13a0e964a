//! The baseline of `rockmill bench offload`: a worker that reads and writes the store's files through NFS.
//!
//! ```text
//!   this process: the store       nfs-ganesha             `nfs-worker`, another process
//!
//!   lays the job out  ──────────────────────── spec ────► the same merge, over NfsDevice
//!                                 reads inputs ◄───────── libnfs, two connections
//!                                 writes outputs ◄──────
//!   takes the files as they are ◄────────── result ────── commits each file once
//!   checks, commits
//! ```
//!
//! The job, its spec, the merge and its engines, the check and the commit are those of a worker over NVMe/TCP. What NFS
//! does not need is left out: the store serves no namespace, and the outputs are where the worker wrote them. Nothing
//! keeps such a worker from writing later, so this is for measurements alone.
//!
//! The server is whoever exports the directory `--db` with NFS version 3; `scripts/bench_offload_nfs` starts one.

mod device;
mod files;
mod libnfs;
mod process;
mod verify;

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rockmill::internals::{
    CompactionWorkers, DEVICE_BLOCK, JobResult, JobSpec, RemoteDone, RemoteJob, TableCheck, TakenWorker,
};
use rockmill::{Error as StoreError, ErrorKind};
use rockmill_format::filename;
use rockmill_io::FileSystem;
use rockmill_io::sync::Mutex;

use crate::error::Result;
use files::AdoptingFiles;
pub(crate) use process::serve;
pub use process::{NfsWorker, Start};

/// Gives the jobs of one database to a worker that reads and writes through NFS.
#[derive(Debug)]
pub struct NfsWorkers {
    worker: Arc<NfsWorker>,
    /// The directory that is exported, as this process knows it.
    root: PathBuf,
    /// The database's directory in it.
    name: String,
    check: TableCheck,
    files: AdoptingFiles,
    /// The spec of the last job.
    last: Mutex<Vec<u8>>,
}

impl NfsWorkers {
    /// For the database `name` in the directory that is exported.
    pub fn new(worker: &Arc<NfsWorker>, root: &Path, name: &str, check: TableCheck) -> Arc<Self> {
        Arc::new(Self {
            worker: Arc::clone(worker),
            root: root.to_path_buf(),
            name: name.to_owned(),
            check,
            files: AdoptingFiles::default(),
            last: Mutex::default(),
        })
    }

    /// The file system that the database is to have: it takes a file that the worker wrote for one that it was asked to
    /// make.
    pub fn file_system(&self) -> Arc<dyn FileSystem> {
        Arc::new(self.files.clone())
    }

    /// Does the last job twice, here and through NFS, with its inputs in another directory, and compares the tables
    /// byte by byte.
    ///
    /// # Errors
    /// What differs, or failed.
    pub fn verify(&self, inputs: &str) -> Result<()> {
        verify::verify(&self.worker, &self.last.lock(), &self.root, inputs)
    }

    fn done(&self, job: &RemoteJob<'_>) -> std::io::Result<RemoteDone> {
        *self.last.lock() = job.spec.to_vec();
        let dir = format!("/{}", self.name);
        let (result, usage) = self.worker.run(&dir, &dir, job.spec)?;
        let spec = JobSpec::decode(job.spec).map_err(std::io::Error::other)?;
        let made = JobResult::decode(&result).and_then(|result| result.outcome).map_err(std::io::Error::other)?;
        for place in device::places(&spec, "", "").iter().filter(|place| place.writes) {
            let Some(entry) = made.files.iter().find(|entry| entry.number == place.number) else { continue };
            // The store appends the last block, and so learns of the file, which has all before it.
            let before = entry.size.saturating_sub(1) / DEVICE_BLOCK as u64 * DEVICE_BLOCK as u64;
            let name = filename::table(entry.number);
            let mut last = vec![0; DEVICE_BLOCK];
            File::open(self.root.join(&self.name).join(&name))?.read_exact_at(&mut last, before)?;
            self.files.adopt(&name, before);
            job.device.write(place.offset, &last)?;
        }
        Ok(RemoteDone { result, worker: "over NFS".to_owned(), usage })
    }
}

impl CompactionWorkers for NfsWorkers {
    fn take(&self, _input_bytes: u64, tried: &[usize]) -> Option<Box<dyn TakenWorker + '_>> {
        tried.is_empty().then(|| Box::new(Taken(self)) as _)
    }
}

#[derive(Debug)]
struct Taken<'a>(&'a NfsWorkers);

impl TakenWorker for Taken<'_> {
    fn place(&self) -> usize {
        0
    }

    fn run(&self, job: &RemoteJob<'_>) -> std::result::Result<RemoteDone, StoreError> {
        self.0.done(job).map_err(|e| StoreError::new(ErrorKind::Aborted, format!("worker over NFS: {e}")))
    }

    fn rejected(&self) {}

    fn check(&self) -> TableCheck {
        self.0.check
    }
}
