//! Runs jobs of other machines: the other side of `elsewhere.rs`.
//!
//! A worker has a spec that another machine sent, and a device ([`WorkerDevice`]) with the extents that the spec names.
//! It has no directory, and no file numbers except those that are set aside.
//!
//! | engine | reads | writes |
//! |---|---|---|
//! | `uring` | several spans of each input run are with the device, ahead of the merge | several of 1 MiB |
//! | `pread` | one after another, when the merge comes to them | one of 1 MiB |
//!
//! There are two kinds of devices:
//!
//! - One of NVMe/TCP in user space has no descriptor that a ring of io_uring could take. So `uring` is the store's
//!   engine with all that is above the ring: the read plan, windows that the merge uses in place, writers with several
//!   writes in flight; operations go to the device ([`WorkerDevice::begin`], `carried.rs` in `rockmill-io`). The engine
//!   `kernel` merges what a ring has read, so it cannot be used.
//! - One of the kernel's is a file ([`WorkerDevice::file`]), and each input and output a part of it. All engines are
//!   the store's own. The kernel sends commands in any order, and an output takes writes only from front to back, so
//!   each output has one write in flight.
//!
//! Neither takes an output twice. Where an engine hands a part over, the next one leaves the tables of the first alone,
//! and takes the next numbers and their places (`outputs_begin_again`); the other machine removes what the result does
//! not name.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rockmill_format::filename;
use rockmill_io::ring::{BatchIo, Carried, CarriedFiles, DeviceFacts};
use rockmill_io::{
    Clock, CountingFileSystem, FileSystem, PositionedFile, PosixFileSystem, RandomAccessFile, WritableFile,
    WriteOptions,
};

use super::host::{JobHost, JobMeans, JobProgress};
use super::objects::JobRegistry;
use super::result::JobResult;
use super::spec::{Extent, JobSpec, SpecFile};
use super::{EngineParts, JobOutput, MergeEngine, SharedEngines, job};
use crate::compaction_workers::{DEVICE_BLOCK, whole_blocks};
use crate::error::{Error, ErrorKind, Result};
use crate::options::{DbOptions, KernelDriver};
use crate::panics::guarded;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::table::Table;
use crate::version::table_of_files;

/// Bytes of one write.
const WRITE_BYTES: usize = 1 << 20;
/// Bytes of one read, where the engine reads ahead.
const READ_BYTES: usize = 512 << 10;
/// Bytes of a block.
const BLOCK: u64 = DEVICE_BLOCK as u64;
/// Why jobs are not merged in the kernel.
const NO_KERNEL: &str = "the engine kernel needs a device of the kernel's (rockmill worker --device kernel), and this \
                         worker reaches a store's device over NVMe/TCP in user space: take that, or uring or pread";

/// The device of a job, from the worker's side: whole blocks, from several threads at once.
pub trait WorkerDevice: Send + Sync + fmt::Debug {
    /// Bytes of the device.
    fn bytes(&self) -> u64;

    /// Fills a buffer of whole blocks.
    ///
    /// # Errors
    /// The device is gone, or whatever kept it from reading.
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()>;

    /// Writes whole blocks; complete when this returns.
    ///
    /// # Errors
    /// The device is gone, or whatever kept it from writing.
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()>;

    /// Its file, if it is a block device of the kernel's: rings read and write by the descriptor then, and
    /// [`begin`](Self::begin) is never called.
    fn file(&self) -> Option<DeviceFile> {
        None
    }

    /// Begins an operation, which ends by [`DeviceOp::done`], in any thread. Writes arrive in the order in which they
    /// were begun. A device that takes one thing at a time does it before this returns.
    fn begin(&self, mut op: DeviceOp) {
        let offset = op.offset;
        let result = match op.reads {
            true => self.read(offset, op.memory()),
            false => self.write(offset, op.memory()),
        };
        op.done(result);
    }
}

/// A device that is a file of the kernel's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceFile {
    /// Its descriptor, opened without the page cache. The device keeps it open.
    pub fd: i32,
    /// Bytes of one write, at most, and 8 KiB at least: what the kernel sends as one command. Parts of a longer one
    /// would arrive in any order.
    pub write_bytes_max: usize,
}

/// An operation that a device has begun, with its memory: whole blocks. Dropping it fails it.
#[derive(Debug)]
pub struct DeviceOp {
    op: Carried,
    /// True for a read, false for a write.
    pub reads: bool,
    /// Where on the device.
    pub offset: u64,
}

impl DeviceOp {
    /// Where the bytes of a read go, or the bytes that a write takes.
    pub fn memory(&mut self) -> &mut [u8] {
        self.op.memory()
    }

    /// Ends it.
    pub fn done(mut self, result: io::Result<()>) {
        let bytes = self.op.memory().len();
        self.op.done(result.map(|()| bytes));
    }
}

/// Runs the jobs of other machines.
#[derive(Clone)]
pub struct WorkerMachine {
    /// The code that jobs may name, besides RocksDB's own.
    pub registry: JobRegistry,
    /// The most threads of one job.
    pub threads: usize,
    engine: MergeEngine,
    driver: KernelDriver,
    /// Counts what rings do, where devices are files.
    on_files: Option<Arc<CountingFileSystem>>,
    /// Makes rings. One for all jobs, or none would have the ring of an earlier one.
    files: Arc<dyn FileSystem>,
    clock: Arc<dyn Clock>,
    engines: Arc<SharedEngines>,
    shutdown: Arc<AtomicBool>,
}

impl fmt::Debug for WorkerMachine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { registry, threads, engine, .. } = self;
        f.debug_struct("WorkerMachine")
            .field("registry", registry)
            .field("threads", threads)
            .field("engine", engine)
            .finish_non_exhaustive()
    }
}

/// A job while it runs, for others.
#[derive(Debug, Default)]
pub struct WorkerJob {
    cancelled: AtomicBool,
    progress: Arc<JobProgress>,
}

impl WorkerJob {
    /// Ends the job early.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
    }

    /// Bytes of the inputs that are merged.
    pub fn bytes(&self) -> u64 {
        self.progress.bytes.load(Ordering::Relaxed)
    }
}

impl WorkerMachine {
    /// A machine that knows this code and does each job with this many threads.
    pub fn new(registry: JobRegistry, threads: usize, clock: Arc<dyn Clock>) -> Self {
        Self {
            registry,
            threads: threads.max(1),
            engine: MergeEngine::Auto,
            driver: KernelDriver::default(),
            on_files: None,
            files: Arc::new(CarriedFiles),
            clock,
            engines: Arc::default(),
            shutdown: Arc::default(),
        }
    }

    /// The same for devices that are files of the kernel's ([`WorkerDevice::file`]).
    pub fn with_kernel_devices(self) -> Self {
        let files = Arc::new(CountingFileSystem::new(Arc::new(PosixFileSystem::new())));
        Self { on_files: Some(Arc::clone(&files)), files, ..self }
    }

    /// The same with this driver of the engine `kernel`, before [`with_engine`](Self::with_engine).
    pub fn with_kernel_driver(self, driver: KernelDriver) -> Self {
        Self { driver, ..self }
    }

    /// The same with this engine; `auto` is `uring`.
    ///
    /// # Errors
    /// `NotSupported` for the engine `kernel`, and why: devices are no files, or what this machine lacks.
    pub fn with_engine(self, engine: MergeEngine) -> Result<Self> {
        let machine = Self { engine, ..self };
        match engine {
            MergeEngine::Kernel if machine.on_files.is_none() => Err(Error::not_supported(NO_KERNEL)),
            MergeEngine::Kernel => {
                machine.engines.probe_kernel(&machine.db_options()).map_err(Error::not_supported)?;
                Ok(machine)
            }
            MergeEngine::Auto | MergeEngine::Uring | MergeEngine::Pread => Ok(machine),
        }
    }

    fn db_options(&self) -> DbOptions {
        DbOptions { merge_engine: self.engine, kernel_driver: self.driver, ..DbOptions::default() }
    }

    /// What the engines did so far.
    pub fn engine_parts(&self) -> EngineParts {
        self.engines.stats.counts()
    }

    /// Calls of the merge program in rings that read and write (driver `loop`), and how many reads, writes and syncs
    /// these calls submitted.
    pub fn program_calls(&self) -> (u64, u64) {
        self.engines.program_calls()
    }

    /// System calls that entered rings of io_uring; 0 where devices are no files.
    pub fn ring_enters(&self) -> u64 {
        self.on_files.as_ref().map_or(0, |files| files.counts().ring_enters)
    }

    /// Why another engine did the last part that another one did than was asked for.
    pub fn handed_over(&self) -> Option<String> {
        let stats = &self.engines.stats;
        let kernel = || stats.missing(MergeEngine::Kernel).filter(|_| self.engine == MergeEngine::Kernel);
        let uring = || stats.missing(MergeEngine::Uring).filter(|_| self.engine != MergeEngine::Pread);
        stats.handed_over().1.or_else(kernel).or_else(uring)
    }

    /// Frees memory of reads and writes that no job has used for a while. To be called now and then.
    pub fn trim(&self) {
        self.engines.trim(&*self.clock);
    }

    /// Ends all jobs early, and those that begin later.
    pub fn stop(&self) {
        self.shutdown.store(true, Ordering::Release);
    }

    /// Decodes a spec, if it is a job that this machine does.
    ///
    /// # Errors
    /// Why it does not: bytes that are no spec, code that it does not know, or a job of a kind that it does not do.
    pub fn accept(&self, encoded: &[u8]) -> Result<JobSpec> {
        let spec = JobSpec::decode(encoded)?;
        self.registry.objects(&spec)?;
        let inputs = || spec.runs.iter().flat_map(|run| &run.files);
        let further = |number| spec.further.iter().find(|f| f.number == number).map(|f| bytes_of(&f.extents));
        let has_further = |f: &SpecFile| f.entry.pieces.iter().all(|p| further(p.number) == Some(p.size));
        let is_whole = |f: &SpecFile| !f.extents.is_empty() && bytes_of(&f.extents) == f.entry.size && has_further(f);
        let on_device = inputs().all(|f| is_whole(f));
        let places = spec.numbers.iter().map(|range| range.count).fold(0, u64::saturating_add);
        let has_room = places == spec.space.len() as u64
            && spec.space.iter().all(|e| e.offset.is_multiple_of(BLOCK) && e.length.is_multiple_of(BLOCK));
        match on_device && has_room && spec.memtables.is_empty() {
            true => Ok(spec),
            false => Err(Error::not_supported("a job that is not all on its device")),
        }
    }

    /// Does a job that [`accept`](Self::accept) took.
    pub fn run(&self, spec: &JobSpec, device: Arc<dyn WorkerDevice>, handle: &Arc<WorkerJob>) -> JobResult {
        let outcome = guarded("the job", || self.try_run(spec, device, handle));
        JobResult { job: spec.job, outcome }
    }

    fn try_run(&self, spec: &JobSpec, device: Arc<dyn WorkerDevice>, handle: &Arc<WorkerJob>) -> Result<JobOutput> {
        job::run(spec, &self.host(spec, device, handle)?)
    }

    /// The host of a job.
    pub(super) fn host(
        &self,
        spec: &JobSpec,
        device: Arc<dyn WorkerDevice>,
        handle: &Arc<WorkerJob>,
    ) -> Result<DeviceHost> {
        let db = self.db_options();
        let objects = self.registry.objects(spec)?;
        let fs = Arc::clone(&self.files);
        Ok(DeviceHost {
            means: JobMeans {
                engines: Arc::clone(&self.engines),
                shutdown: Arc::clone(&self.shutdown),
                parallel_parts_max: self.threads,
                ..JobMeans::new(objects, db, fs, Arc::clone(&self.clock))
            },
            device,
            further: spec
                .further
                .iter()
                .map(|f| (PathBuf::from(filename::table(f.number)), f.extents.clone()))
                .collect(),
            places: spec.leased_numbers().into_iter().zip(spec.space.iter().copied()).collect(),
            open: Mutex::default(),
            handle: Arc::clone(handle),
        })
    }
}

fn bytes_of(extents: &[Extent]) -> u64 {
    extents.iter().map(|extent| extent.length).fold(0, u64::saturating_add)
}

/// The host of one job, which has a device and nothing else.
pub(super) struct DeviceHost {
    means: JobMeans,
    device: Arc<dyn WorkerDevice>,
    /// Where further files of inputs are, by path.
    further: HashMap<PathBuf, Vec<Extent>>,
    /// Where outputs go, by number.
    places: HashMap<u64, Extent>,
    /// Inputs that are open, by number.
    open: Mutex<HashMap<u64, Arc<Table>>>,
    handle: Arc<WorkerJob>,
}

impl JobHost for DeviceHost {
    fn means(&self) -> &JobMeans {
        &self.means
    }

    fn open_input(&self, file: &SpecFile) -> Result<Arc<Table>> {
        // Kept because each part asks for it, and opening a table reads from the other machine.
        if let Some(table) = self.open.lock().get(&file.number()) {
            return Ok(Arc::clone(table));
        }
        let mut files = Vec::with_capacity(1 + file.entry.pieces.len());
        for path in file.entry.files().map(|f| self.output_path(f.number)) {
            let bytes = self.input_bytes(file, &path, false)?;
            files.push((path, bytes));
        }
        let table = table_of_files(files, &self.means.objects.cmp, Some(file.entry.largest_seqno))?;
        self.open.lock().insert(file.number(), Arc::clone(&table));
        Ok(table)
    }

    fn input_bytes(&self, file: &SpecFile, path: &Path, direct: bool) -> Result<Arc<dyn RandomAccessFile>> {
        let own = (path == self.output_path(file.number())).then_some(&file.extents);
        let end = |e: &Extent| e.offset.checked_add(e.length).and_then(whole_blocks);
        let is_there =
            |extents: &&Vec<Extent>| extents.iter().all(|e| end(e).is_some_and(|end| end <= self.device.bytes()));
        let Some(extents) = own.or_else(|| self.further.get(path)).filter(is_there) else {
            let what = format!("{} of table {} is not on the device", path.display(), file.number());
            return Err(Error::invalid_argument(what));
        };
        Ok(Arc::new(DeviceInput { device: Arc::clone(&self.device), extents: extents.clone(), direct }))
    }

    fn next_number(&self) -> Result<u64> {
        let places = self.places.len();
        let what = format!("the job needs more tables than the {places} that its device has room for");
        Err(Error::new(ErrorKind::Aborted, what))
    }

    fn output_path(&self, number: u64) -> PathBuf {
        PathBuf::from(filename::table(number))
    }

    fn create_output(
        &self,
        number: u64,
        options: WriteOptions,
        ring: Option<&BatchIo>,
    ) -> Result<Box<dyn WritableFile>> {
        let place = self.places.get(&number);
        let place = *place.ok_or_else(|| Error::invalid_argument(format!("there is no room for table {number}")))?;
        let device = Arc::clone(&self.device);
        if let Some(ring) = ring {
            // 0 is the ring's own choice.
            let asked = if options.buffer_size == 0 { WRITE_BYTES } else { options.buffer_size };
            let options = match device.file() {
                Some(file) => WriteOptions { buffer_size: asked.min(file.write_bytes_max), ..options },
                None => options,
            };
            let output = PlacedOutput { device, place, path: self.output_path(number) };
            let writer = ring.writer(Arc::new(output), options);
            return Ok(Box::new(writer.map_err(|e| Error::io(format_args!("cannot create table {number}"), &e))?));
        }
        Ok(Box::new(DeviceOutput { device, place, written: 0, buffer: Vec::new(), len: 0, is_complete: false }))
    }

    fn sync_outputs(&self) -> Result<()> {
        Ok(()) // the other machine does
    }

    fn remove_output(&self, _: u64) {
        // The other machine removes outputs: those that the result does not name.
    }

    fn outputs_begin_again(&self) -> bool {
        false // the device takes each from front to back, once
    }

    fn cancelled(&self) -> &AtomicBool {
        &self.handle.cancelled
    }

    fn progress(&self) -> &Arc<JobProgress> {
        &self.handle.progress
    }

    fn device(&self) -> Option<DeviceFacts> {
        Some(DeviceFacts {
            name: "the store's".to_owned(),
            request_bytes_max: WRITE_BYTES,
            optimal_bytes: READ_BYTES,
            rotational: false,
        })
    }
}

/// An input in extents of the device.
#[derive(Debug)]
struct DeviceInput {
    device: Arc<dyn WorkerDevice>,
    extents: Vec<Extent>,
    /// For a ring, which reads whole blocks then.
    direct: bool,
}

impl DeviceInput {
    /// The extent, where there is one that begins with a block, as stores lay inputs out. What follows it up to the
    /// next block can be read, too.
    fn extent(&self) -> Option<&Extent> {
        self.extents.first().filter(|extent| self.extents.len() == 1 && extent.offset.is_multiple_of(BLOCK))
    }

    /// Reads any range of the device.
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let (before, len) = (offset % BLOCK, into.len() as u64);
        if before == 0 && len.is_multiple_of(BLOCK) {
            return self.device.read(offset, into);
        }
        let start = offset - before;
        let whole = whole_blocks(before + len).and_then(|n| usize::try_from(n).ok());
        let mut blocks = vec![0; whole.ok_or(io::ErrorKind::InvalidInput)?];
        self.device.read(start, &mut blocks)?;
        // invariant: the blocks begin `before` bytes earlier, and end no earlier than the range.
        into.copy_from_slice(&blocks[before as usize..before as usize + into.len()]);
        Ok(())
    }
}

impl RandomAccessFile for DeviceInput {
    fn read_at(&self, mut offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        for extent in &self.extents {
            let len = extent.length.saturating_sub(offset).min((buf.len() - done) as u64) as usize;
            if len > 0 {
                self.read(extent.offset + offset, &mut buf[done..done + len])?;
                done += len;
            }
            offset = offset.saturating_sub(extent.length);
        }
        Ok(done)
    }

    fn size(&self) -> u64 {
        bytes_of(&self.extents)
    }

    fn prefetch(&self, _offset: u64, _len: u64) {}

    fn is_direct(&self) -> bool {
        self.direct && self.extent().is_some()
    }

    fn raw_fd(&self) -> Option<i32> {
        Some(self.device.file().filter(|_| self.is_direct())?.fd)
    }

    fn fd_offset(&self) -> u64 {
        self.extent().map_or(0, |extent| extent.offset)
    }

    fn carry(&self, mut op: Carried) -> Option<Carried> {
        let (at, len) = (op.offset(), op.memory().len() as u64);
        let whole = at.is_multiple_of(BLOCK) && len.is_multiple_of(BLOCK) && len > 0;
        let inside = |extent: &&Extent| at.checked_add(len).is_some_and(|end| Some(end) <= whole_blocks(extent.length));
        let offset = self.extent().filter(inside).and_then(|extent| extent.offset.checked_add(at));
        match offset.filter(|_| whole) {
            Some(offset) => self.device.begin(DeviceOp { op, reads: true, offset }),
            None => return Some(op),
        }
        None
    }
}

/// An output that a ring's writer writes: whole blocks, from front to back, several writes in flight.
#[derive(Debug)]
struct PlacedOutput {
    device: Arc<dyn WorkerDevice>,
    place: Extent,
    path: PathBuf,
}

impl PlacedOutput {
    /// Where a write goes on the device.
    fn offset(&self, at: u64, len: usize) -> io::Result<u64> {
        let end = at.checked_add(len as u64).filter(|&end| end <= self.place.length);
        let offset = end.and_then(|_| self.place.offset.checked_add(at));
        offset.ok_or_else(|| io::ErrorKind::StorageFull.into())
    }
}

impl PositionedFile for PlacedOutput {
    fn path(&self) -> &Path {
        &self.path
    }

    fn is_direct(&self) -> bool {
        true
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<usize> {
        self.device.write(self.offset(offset, data.len())?, data).map(|()| data.len())
    }

    fn cut(&self, _len: u64) -> io::Result<()> {
        Ok(()) // the result says how much of the last block belongs to the file
    }

    fn sync(&self) -> io::Result<()> {
        Ok(()) // the other machine does
    }

    fn close(&self) -> io::Result<()> {
        Ok(())
    }

    fn in_order(&self) -> bool {
        self.device.file().is_some()
    }

    fn bytes_max(&self) -> u64 {
        self.place.length
    }

    fn raw_fd(&self) -> Option<i32> {
        self.device.file().map(|file| file.fd)
    }

    fn fd_offset(&self) -> u64 {
        self.place.offset
    }

    fn carry(&self, mut op: Carried) -> Option<Carried> {
        let len = op.memory().len();
        match self.offset(op.offset(), len) {
            Ok(offset) => self.device.begin(DeviceOp { op, reads: false, offset }),
            Err(e) => op.done(Err(e)),
        }
        None
    }
}

/// An output, written from front to back in whole blocks; the remainder waits for more data or for the end.
#[derive(Debug)]
struct DeviceOutput {
    device: Arc<dyn WorkerDevice>,
    place: Extent,
    written: u64,
    buffer: Vec<u8>,
    len: u64,
    /// The last block is written.
    is_complete: bool,
}

impl DeviceOutput {
    fn write_out(&mut self) -> io::Result<()> {
        let bytes = self.buffer.len() as u64;
        let at = self.place.offset.checked_add(self.written);
        let at = at.filter(|_| self.place.length.saturating_sub(self.written) >= bytes);
        self.device.write(at.ok_or(io::ErrorKind::StorageFull)?, &self.buffer)?;
        self.written += bytes;
        self.buffer.clear();
        Ok(())
    }
}

impl WritableFile for DeviceOutput {
    fn append(&mut self, mut data: &[u8]) -> io::Result<()> {
        if self.is_complete && !data.is_empty() {
            return Err(io::Error::other("an output is complete once it is synced"));
        }
        self.len += data.len() as u64;
        while !data.is_empty() {
            let (now, later) = data.split_at(data.len().min(WRITE_BYTES - self.buffer.len()));
            self.buffer.extend_from_slice(now);
            data = later;
            if self.buffer.len() == WRITE_BYTES {
                self.write_out()?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(()) // nobody reads it before its end
    }

    fn sync(&mut self) -> io::Result<()> {
        if !self.is_complete && !self.buffer.is_empty() {
            self.buffer.resize(self.buffer.len().next_multiple_of(DEVICE_BLOCK), 0);
            self.write_out()?;
        }
        self.is_complete = true;
        Ok(())
    }

    fn close(&mut self) -> io::Result<()> {
        self.sync()
    }

    fn len(&self) -> u64 {
        self.len
    }
}
