//! The device of a job as a namespace.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rockmill::internals::{DEVICE_BLOCK, JobDevice};
use rockmill_nvme::status::Status;
use rockmill_nvme::target::{FilePart, Namespace};

/// What a worker gets to see of a store.
#[derive(Debug)]
pub(crate) struct JobNamespace {
    device: Arc<JobDevice>,
    nguid: [u8; 16],
    /// An input could not be sent as a file.
    cannot_send: Arc<AtomicBool>,
}

impl JobNamespace {
    pub fn new(device: &Arc<JobDevice>, nguid: [u8; 16]) -> Self {
        Self { device: Arc::clone(device), nguid, cannot_send: Arc::default() }
    }
}

fn status(e: &io::Error, otherwise: Status) -> Status {
    match e.kind() {
        io::ErrorKind::PermissionDenied => Status::ACCESS_DENIED.do_not_retry(),
        io::ErrorKind::InvalidInput => Status::LBA_OUT_OF_RANGE.do_not_retry(),
        io::ErrorKind::StorageFull => Status::CAPACITY_EXCEEDED.do_not_retry(),
        _ => otherwise,
    }
}

/// Offset of a block. The target has checked that it is inside.
fn offset(first: u64) -> u64 {
    first.saturating_mul(DEVICE_BLOCK as u64)
}

impl Namespace for JobNamespace {
    fn block_bytes(&self) -> u32 {
        DEVICE_BLOCK as u32
    }

    fn blocks(&self) -> u64 {
        self.device.bytes() / DEVICE_BLOCK as u64
    }

    fn read_only(&self) -> bool {
        false // the part with the inputs is: the device sees to it
    }

    fn nguid(&self) -> [u8; 16] {
        self.nguid
    }

    fn read(&self, first: u64, into: &mut [u8]) -> Result<(), Status> {
        self.device.read(offset(first), into).map_err(|e| status(&e, Status::UNRECOVERED_READ_ERROR))
    }

    /// What is sent after the end of a lease is a table's, which never changes and was the worker's to read.
    fn file_part(&self, first: u64, bytes: u32) -> Option<FilePart> {
        if self.cannot_send.load(Ordering::Relaxed) {
            return None;
        }
        let (file, offset) = self.device.input_file(offset(first), bytes.into())?;
        Some(FilePart { file, offset, bytes, has_failed: Arc::clone(&self.cannot_send) })
    }

    fn write(&self, first: u64, from: &[u8]) -> Result<(), Status> {
        self.device.write(offset(first), from).map_err(|e| status(&e, Status::WRITE_FAULT))
    }

    fn write_zeroes(&self, _: u64, _: u32) -> Result<(), Status> {
        Err(Status::INVALID_FIELD.do_not_retry()) // no table needs it
    }

    fn flush(&self) -> Result<(), Status> {
        Ok(()) // the store syncs what it takes
    }
}
