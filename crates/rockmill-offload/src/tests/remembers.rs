//! A device that remembers what a worker did with it, so that the same can be done again without a network.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use rockmill::MergeEngine;
use rockmill::internals::{DEVICE_BLOCK, JobRegistry, JobResult, WorkerDevice, WorkerMachine};
use rockmill_io::ManualClock;

use super::{clock, rogues};
use crate::device::NvmeDevice;

/// A device that remembers what was read of it and written to it; without the other one it gives back what was read.
#[derive(Debug, Default)]
pub(super) struct Remembers {
    pub behind: Option<NvmeDevice>,
    pub bytes: u64,
    pub read: Mutex<BTreeMap<u64, Vec<u8>>>,
    pub written: Mutex<BTreeMap<u64, Vec<u8>>>,
}

impl WorkerDevice for Remembers {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let mut read = self.read.lock();
        if let Some(behind) = &self.behind {
            behind.read(offset, into)?;
            for (i, block) in into.chunks(DEVICE_BLOCK).enumerate() {
                read.insert(offset + (i * DEVICE_BLOCK) as u64, block.to_vec());
            }
            return Ok(());
        }
        for (i, block) in into.chunks_mut(DEVICE_BLOCK).enumerate() {
            let known = read.get(&(offset + (i * DEVICE_BLOCK) as u64)).ok_or(io::ErrorKind::NotFound)?;
            block.copy_from_slice(known);
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        for (i, block) in data.chunks(DEVICE_BLOCK).enumerate() {
            self.written.lock().insert(offset + (i * DEVICE_BLOCK) as u64, block.to_vec());
        }
        self.behind.as_ref().map_or(Ok(()), |behind| behind.write(offset, data))
    }
}

/// Does a job twice: on its device, and then of the blocks that it read, without a network. Both write the same bytes.
/// The result is the first one's, the outputs are the second one's.
pub(super) fn done_twice(job: rogues::Job) -> (JobResult, Vec<Vec<u8>>) {
    // By an engine whose reads are the same each time, those of the first run are all that the second one has; by a
    // clock that stands still, both write the same time into their tables.
    let stopped = Arc::new(ManualClock::new(clock().now_micros()));
    let machine = WorkerMachine::new(JobRegistry::default(), 1, stopped).with_engine(MergeEngine::Pread).unwrap();
    let spec = machine.accept(&job.spec).unwrap();
    let bytes = job.device.bytes();
    let there = Arc::new(Remembers { behind: Some(job.device), bytes, ..Remembers::default() });
    let result = machine.run(&spec, Arc::clone(&there) as Arc<dyn WorkerDevice>, &Arc::default());
    let read = Mutex::new(std::mem::take(&mut *there.read.lock()));
    let here = Arc::new(Remembers { bytes, read, ..Remembers::default() });
    let again = machine.run(&spec, Arc::clone(&here) as Arc<dyn WorkerDevice>, &Arc::default());
    again.outcome.unwrap();
    assert!(*here.written.lock() == *there.written.lock());
    let written = outputs(&here.written.lock());
    (result, written)
}

/// What lies together of what was written: the outputs.
fn outputs(written: &BTreeMap<u64, Vec<u8>>) -> Vec<Vec<u8>> {
    let mut out: Vec<(u64, Vec<u8>)> = Vec::new();
    for (at, block) in written {
        match out.last_mut() {
            Some((from, all)) if *from + all.len() as u64 == *at => all.extend_from_slice(block),
            _ => out.push((*at, block.clone())),
        }
    }
    out.into_iter().map(|(_, all)| all).collect()
}
