//! The same job through NFS and on local files: the tables must be the same, byte for byte.
//!
//! Tables have the time at which they were written. So the job is done twice again, as one that is `reproducible`.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rockmill::MergeEngine;
use rockmill::internals::{JobRegistry, JobResult, JobSpec, WorkerDevice, WorkerJob, WorkerMachine};
use rockmill_format::filename;
use rockmill_io::SystemClock;

use super::NfsWorker;
use super::device::{Place, place_of, places};
use crate::error::{Error, Result};

/// Where both put their tables.
const DIRS: [&str; 2] = ["check-nfs", "check-here"];
/// Bytes that are compared at once.
const PIECE: usize = 1 << 20;

/// A device of local files.
#[derive(Debug)]
struct LocalDevice {
    places: Vec<Place>,
    files: Vec<File>,
}

impl LocalDevice {
    fn open(root: &Path, places: Vec<Place>) -> io::Result<Self> {
        let file = |place: &Place| {
            let path = root.join(place.path.trim_start_matches('/'));
            if place.writes { File::create(path) } else { File::open(path) }
        };
        Ok(Self { files: places.iter().map(file).collect::<io::Result<_>>()?, places })
    }

    fn file(&self, offset: u64) -> io::Result<(&File, u64)> {
        let found = place_of(&self.places, offset);
        let found = found.and_then(|(i, place)| Some((self.files.get(i)?, offset - place.offset)));
        found.ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }
}

impl WorkerDevice for LocalDevice {
    fn bytes(&self) -> u64 {
        u64::MAX
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let (file, at) = self.file(offset)?;
        let mut done = 0;
        while let Some(rest) = into.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match file.read_at(rest, at + done as u64)? {
                0 => {
                    rest.fill(0); // an input ends within its last block
                    break;
                }
                n => done += n,
            }
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let (file, at) = self.file(offset)?;
        file.write_all_at(data, at)
    }
}

/// Does the job of this spec both ways, with the inputs in the directory `inputs` of the export, and compares.
pub fn verify(worker: &NfsWorker, spec: &[u8], root: &Path, inputs: &str) -> Result<()> {
    let mut spec = JobSpec::decode(spec)?;
    spec.output.reproducible = true;
    let failed = |e: io::Error| Error::io("comparing with NFS", &e);
    let [theirs, ours] = DIRS.map(|dir| root.join(dir));
    for dir in [&theirs, &ours] {
        fs::create_dir_all(dir).map_err(failed)?;
    }
    let (inputs, [nfs, here]) = (format!("/{inputs}"), DIRS.map(|dir| format!("/{dir}")));
    let (result, _) = worker.run(&inputs, &nfs, &spec.encode()?).map_err(failed)?;
    let through_nfs = JobResult::decode(&result)?.outcome?;
    let device = LocalDevice::open(root, places(&spec, &inputs, &here)).map_err(failed)?;
    let machine = WorkerMachine::new(JobRegistry::default(), 1, Arc::new(SystemClock::default()));
    let machine = machine.with_engine(MergeEngine::Pread)?;
    let local = machine.run(&spec, Arc::new(device), &Arc::new(WorkerJob::default())).outcome?;
    if through_nfs.files != local.files || local.files.is_empty() {
        return Err(Error::Run("through NFS a job has other tables than without it".to_owned()));
    }
    for entry in &local.files {
        let name = filename::table(entry.number);
        if !same(&theirs.join(&name), &ours.join(&name), entry.size).map_err(failed)? {
            return Err(Error::Run(format!("through NFS {name} has other bytes than without it")));
        }
    }
    for dir in [theirs, ours] {
        fs::remove_dir_all(dir).map_err(failed)?;
    }
    Ok(())
}

/// Whether two files are the same in their first `size` bytes.
fn same(a: &PathBuf, b: &PathBuf, size: u64) -> io::Result<bool> {
    let (a, b) = (File::open(a)?, File::open(b)?);
    let (mut left, mut right) = (vec![0; PIECE], vec![0; PIECE]);
    let mut at = 0;
    while at < size {
        let piece = usize::try_from(size - at).map_or(PIECE, |rest| rest.min(PIECE));
        let (left, right) = (&mut left[..piece], &mut right[..piece]);
        a.read_exact_at(left, at)?;
        b.read_exact_at(right, at)?;
        if left != right {
            return Ok(false);
        }
        at += piece as u64;
    }
    Ok(true)
}
