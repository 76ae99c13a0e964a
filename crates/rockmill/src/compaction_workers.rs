//! Compactions on other machines: the store's interface to the code that sends jobs there, and the device that it lends
//! for a job.
//!
//! The store uses no sockets. It describes a job as data with one device (`compaction/elsewhere.rs`), and passes it to
//! [`CompactionWorkers`]; the crate `rockmill-offload` implements that over NVMe/TCP. The store does not trust results:
//! it checks them as if an attacker had sent them. If a check fails, it does the job itself.
//!
//! **A job's device** ([`JobDevice`]) is all that a worker sees of the store:
//!
//! ```text
//!  offset 0                              outputs_at
//!  | input | pad | input | pad | ...     | room for output 0 | room for output 1 | ...
//!    read only                             from front to back; cannot be read
//! ```
//!
//! Outputs are the final table files, so nothing is copied. The device holds them under a lock that every write takes.
//! [`JobDevice::fence`] removes them permanently: when it returns, no write is in progress, and later writes find no
//! file. A file cannot be put back.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use rockmill_format::checksum::crc32c;
use rockmill_io::{FileExtent, RandomAccessFile, WritableFile};

use crate::error::Result;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};

/// Block size of a device in bytes: offsets and lengths are multiples of it.
pub const DEVICE_BLOCK: usize = 4096;
/// Writes that a device remembers, so that a worker that lost its connection can issue them again: as many as a queue
/// can have outstanding (`TargetConfig::queue_entries_max` of `rockmill-nvme`).
const REMEMBERED_WRITES: usize = 128;

/// Sends compactions to other machines.
pub trait CompactionWorkers: Send + Sync + fmt::Debug {
    /// Reserves a free worker for a job that reads `input_bytes` bytes, until the result is dropped. `tried`: places of
    /// workers that failed at the same job. `None`: the job should be done here. Must be quick.
    fn take(&self, input_bytes: u64, tried: &[usize]) -> Option<Box<dyn TakenWorker + '_>>;

    /// How many compactions run here before others are offered to workers; 0 for none. A worker costs the network, and
    /// the store a part of the CPU that the job would take here, so it gains nothing while cores here are idle.
    fn here_first(&self) -> usize {
        0
    }

    /// Whether all workers have this code, in addition to what every Rockmill has. Jobs that call other code are done
    /// here.
    fn knows(&self, code: JobCode<'_>) -> bool {
        let _ = code;
        false
    }
}

/// Code that a job calls by name, and that not every Rockmill has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobCode<'a> {
    /// An order of keys, by its name.
    Comparator(&'a str),
    /// A merge operator, by its [`option_text`](crate::MergeOperator::option_text).
    MergeOperator(&'a str),
    /// A compaction filter.
    Filter {
        /// Its name.
        name: &'a str,
        /// Its [`option_text`](crate::CompactionFilter::option_text).
        options: &'a str,
    },
    /// A factory of compaction filters.
    FilterFactory {
        /// Its name.
        name: &'a str,
        /// Its [`option_text`](crate::CompactionFilterFactory::option_text) when the job was made.
        options: &'a str,
    },
    /// A prefix extractor, by its name.
    PrefixExtractor(&'a str),
}

impl fmt::Display for JobCode<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, name, options) = match *self {
            Self::Comparator(name) => ("comparator", name, ""),
            Self::MergeOperator(text) => ("merge operator", text, ""),
            Self::Filter { name, options } => ("compaction filter", name, options),
            Self::FilterFactory { name, options } => ("compaction filter of the factory", name, options),
            Self::PrefixExtractor(name) => ("prefix extractor", name, ""),
        };
        write!(f, "the {what} {name:?}")?;
        if options.is_empty() { Ok(()) } else { write!(f, " with the options {options:?}") }
    }
}

/// A worker that is reserved for one job.
pub trait TakenWorker: fmt::Debug {
    /// Its place in the list of workers. Asked after the job: which worker does it may be found out only then.
    fn place(&self) -> usize;

    /// Runs the job on the worker. When this returns, the device must no longer be in use; the store fences it in any
    /// case.
    ///
    /// # Errors
    /// The reason why the job was not done.
    fn run(&self, job: &RemoteJob<'_>) -> Result<RemoteDone>;

    /// Its result was rejected: it should get no jobs for a while.
    fn rejected(&self);

    /// How to check the tables of its job. Asked only after the worker can no longer change them.
    fn check(&self) -> TableCheck {
        TableCheck::All
    }
}

/// How much of a worker's tables the store reads before it accepts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TableCheck {
    /// Every block and every entry.
    #[default]
    All,
    /// Everything except the data blocks, and a sample of these, including the first and the last one.
    Sample {
        /// Percentage of a table's data blocks, rounded up to whole blocks.
        percent: u8,
        /// Selects the blocks. A worker must not be able to predict it.
        seed: u64,
    },
}

/// A job to be done elsewhere.
pub struct RemoteJob<'a> {
    /// Its number in the log.
    pub number: u64,
    /// The job's encoded spec (docs/job-spec.md). Its extents refer to the device.
    pub spec: &'a [u8],
    /// Bytes of its inputs.
    pub input_bytes: u64,
    /// Inputs, and room for outputs.
    pub device: &'a Arc<JobDevice>,
    /// True when the job is no longer wanted.
    pub is_stopped: &'a (dyn Fn() -> bool + Sync),
    /// Called with the number of input bytes merged so far.
    pub progress: &'a (dyn Fn(u64) + Sync),
}

impl fmt::Debug for RemoteJob<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, spec, input_bytes, device, .. } = self;
        f.debug_struct("RemoteJob")
            .field("number", number)
            .field("spec", &spec.len())
            .field("input_bytes", input_bytes)
            .field("device", device)
            .finish_non_exhaustive()
    }
}

/// What came of a job elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteDone {
    /// Its result, encoded (docs/job-spec.md).
    pub result: Vec<u8>,
    /// Who did it, for the log.
    pub worker: String,
    /// The costs that the worker reports. They are only counted; nothing else depends on them.
    pub usage: RemoteUsage,
}

/// A job's use of the worker and of the network.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RemoteUsage {
    /// CPU time of the threads that merged, in microseconds, with their reads and writes.
    pub cpu_micros: u64,
    /// How often the worker sent something to the job's device and waited for the answer.
    pub round_trips: u64,
    /// Bytes that it sent there, without TCP's headers.
    pub sent_bytes: u64,
    /// Bytes that it received from there.
    pub received_bytes: u64,
}

/// Creates the file of an output, by its number.
pub(crate) type CreateOutput = Box<dyn Fn(u64) -> io::Result<Box<dyn WritableFile>> + Send + Sync>;

/// Delays a worker's reads and writes in favour of work that has priority in the store.
pub(crate) trait DevicePace: Send + Sync {
    /// Returns when this many bytes may be read.
    fn read(&self, bytes: u64);

    /// Returns when this many bytes may be written.
    fn write(&self, bytes: u64);

    /// The total time of these delays so far.
    fn held(&self) -> Duration;
}

/// A part of the inputs that lies in one piece on a block device. Whole blocks, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceExtent {
    /// Where it begins in the [`JobDevice`].
    pub offset: u64,
    /// Where it begins on the block device.
    pub device_offset: u64,
    /// Its bytes.
    pub len: u64,
}

/// The part of the store that a worker sees during a job; see the module.
pub struct JobDevice {
    /// Where each begins, rising.
    inputs: Vec<(u64, Arc<dyn RandomAccessFile>)>,
    outputs_at: u64,
    /// Bytes of the device for each output.
    output_bytes: u64,
    outputs: u64,
    /// Most bytes of all outputs together.
    room: u64,
    create: CreateOutput,
    pace: Option<Box<dyn DevicePace>>,
    /// `None` once fenced.
    open: Mutex<Option<Written>>,
    /// Set before the outputs are taken, so that reads also end.
    fenced: AtomicBool,
}

#[derive(Debug)]
struct Written {
    outputs: Vec<Output>,
    bytes: u64,
    /// The last writes, oldest first.
    last: VecDeque<WriteDone>,
}

/// A write that was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct WriteDone {
    offset: u64,
    len: u64,
    checksum: u32,
}

#[derive(Debug)]
struct Output {
    number: u64,
    file: Option<Box<dyn WritableFile>>,
    /// The last block, not yet written: the result tells how much of it belongs to the file.
    last: Vec<u8>,
    /// Bytes taken.
    taken: u64,
}

/// The file of an output to which the worker can no longer write.
#[derive(Debug)]
pub(crate) struct FencedOutput {
    /// Its number.
    pub number: u64,
    file: Box<dyn WritableFile>,
    last: Vec<u8>,
}

impl FencedOutput {
    /// Makes the file `size` bytes long and durable, and closes it.
    ///
    /// # Errors
    /// The worker wrote a different number of blocks, or the file system failed.
    pub fn finish(mut self, size: u64) -> io::Result<()> {
        let rest = size.checked_sub(self.file.len()).and_then(|rest| usize::try_from(rest).ok());
        let Some(rest) = rest.and_then(|rest| self.last.get(..rest)).filter(|rest| !rest.is_empty()) else {
            let written = self.file.len() + self.last.len() as u64;
            return Err(invalid(format!("a size of {size} bytes, of which {written} were written in whole blocks")));
        };
        self.file.append(rest)?;
        self.file.sync()?;
        self.file.close()
    }
}

fn invalid(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what.into())
}

fn is_whole(n: u64) -> bool {
    n.is_multiple_of(DEVICE_BLOCK as u64)
}

/// The next multiple of a block.
pub(crate) fn whole_blocks(bytes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(DEVICE_BLOCK as u64)
}

impl JobDevice {
    /// Creates a device with these inputs, each at its offset, in ascending order. From `outputs_at` on, it has
    /// `output_bytes` bytes for each of `numbers`; all outputs together may have `room` bytes.
    pub(crate) fn new(
        inputs: Vec<(u64, Arc<dyn RandomAccessFile>)>,
        outputs_at: u64,
        numbers: &[u64],
        output_bytes: u64,
        room: u64,
        create: CreateOutput,
    ) -> Self {
        let output = |&number: &u64| Output { number, file: None, last: Vec::new(), taken: 0 };
        let written = Written { outputs: numbers.iter().map(output).collect(), bytes: 0, last: VecDeque::new() };
        Self {
            inputs,
            outputs_at,
            output_bytes,
            outputs: numbers.len() as u64,
            room,
            create,
            pace: None,
            open: Mutex::new(Some(written)),
            fenced: AtomicBool::new(false),
        }
    }

    /// Asks before each read and write.
    pub(crate) fn with_pace(self, pace: impl DevicePace + 'static) -> Self {
        Self { pace: Some(Box::new(pace)), ..self }
    }

    /// How long the store itself has delayed reads and writes so far, which is not the worker's fault.
    pub fn held(&self) -> Duration {
        self.pace.as_ref().map_or(Duration::ZERO, |pace| pace.held())
    }

    /// Bytes of the device.
    pub fn bytes(&self) -> u64 {
        self.outputs_at.saturating_add(self.outputs.saturating_mul(self.output_bytes))
    }

    /// Where outputs begin; everything before is read-only.
    pub fn outputs_at(&self) -> u64 {
        self.outputs_at
    }

    /// True once reads and writes are refused.
    pub fn is_fenced(&self) -> bool {
        self.fenced.load(Ordering::Acquire)
    }

    /// Where the inputs lie on the block device of this number (`st_dev`), for a worker that reads them there. They
    /// stay there as long as nothing moves them: ask again after the job, and take its result only if the answer is the
    /// same.
    ///
    /// # Errors
    /// Why they cannot be read there: they are on another device, or see [`RandomAccessFile::extents`].
    pub fn input_extents(&self, device: u64) -> io::Result<Vec<DeviceExtent>> {
        let no = |what: &str| io::Error::new(io::ErrorKind::Unsupported, what.to_owned());
        let mut all = Vec::new();
        for (at, file) in &self.inputs {
            let of_file = file.extents()?;
            if of_file.device != device {
                return Err(no("an input is on another device"));
            }
            let end = whole_blocks(file.size()).unwrap_or(u64::MAX);
            for FileExtent { offset, device_offset, len } in of_file.extents {
                let len = len.min(end.saturating_sub(offset));
                if ![offset, device_offset, len].into_iter().all(is_whole) {
                    return Err(no("the file system has blocks that are smaller than 4 KiB"));
                }
                if len > 0 {
                    all.push(DeviceExtent { offset: at.saturating_add(offset), device_offset, len });
                }
            }
        }
        Ok(all)
    }

    /// Reads whole blocks of the inputs.
    ///
    /// # Errors
    /// The device is fenced, the range is not whole blocks or not within the inputs, or the file system failed.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        if self.is_fenced() {
            return Err(fenced());
        }
        let end = offset.checked_add(into.len() as u64).filter(|&end| end <= self.outputs_at);
        let Some(end) = end.filter(|_| is_whole(offset) && is_whole(into.len() as u64)) else {
            return Err(invalid("a read of no whole blocks, or of what is no input"));
        };
        if let Some(pace) = &self.pace {
            pace.read(into.len() as u64);
        }
        // The buffer is filled up to here. Only the parts that no input covers are set to zeros.
        let mut filled = 0;
        let first = self.inputs.partition_point(|(at, _)| *at <= offset).saturating_sub(1);
        for (at, file) in self.inputs.get(first..).unwrap_or_default().iter().take_while(|(at, _)| *at < end) {
            let (from, to) = (offset.max(*at), end.min(at.saturating_add(file.size())));
            if from >= to {
                continue;
            }
            // invariant: both are within the range that `into` is for, and inputs do not overlap.
            let (start, piece_end) = ((from - offset) as usize, (to - offset) as usize);
            into[filled..start].fill(0);
            let piece = &mut into[start..piece_end];
            if file.read_at(from - at, piece)? != piece.len() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            filled = piece_end;
        }
        into[filled..].fill(0);
        Ok(())
    }

    /// The file that has all of these blocks, and where in it they begin, if the file can be sent without reading it
    /// ([`RandomAccessFile::sends`]). `None`: [`Self::read`] tells more. Counts as a read.
    pub fn input_file(&self, offset: u64, bytes: u64) -> Option<(Arc<dyn RandomAccessFile>, u64)> {
        let end = offset.checked_add(bytes).filter(|_| !self.is_fenced())?;
        let (at, file) = self.inputs.get(self.inputs.partition_point(|(at, _)| *at <= offset).checked_sub(1)?)?;
        if end > at.saturating_add(file.size()) || !file.sends() {
            return None;
        }
        if let Some(pace) = &self.pace {
            pace.read(bytes);
        }
        Some((Arc::clone(file), offset - at))
    }

    /// Appends whole blocks to one output: `offset` is where the last write to it ended. One of the last writes that
    /// comes once more, with the same bytes, succeeds and changes nothing: a worker whose connection was lost does not
    /// know which of its writes were taken.
    ///
    /// # Errors
    /// The device is fenced, the range is invalid, there is no more room, or the file system failed.
    pub fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let len = data.len() as u64;
        if data.is_empty() || !is_whole(offset) || !is_whole(len) {
            return Err(invalid("a write of no whole blocks"));
        }
        if let Some(pace) = self.pace.as_ref().filter(|_| !self.is_fenced()) {
            pace.write(len);
        }
        let done = WriteDone { offset, len, checksum: crc32c(data) };
        // Held during the write, so that a fence waits for it.
        let mut open = self.open.lock();
        let written = open.as_mut().ok_or_else(fenced)?;
        let Some(place) = offset.checked_sub(self.outputs_at) else {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "a write to an input"));
        };
        let (index, at) = (place / self.output_bytes, place % self.output_bytes);
        let output = usize::try_from(index).ok().and_then(|i| written.outputs.get_mut(i));
        let output = output.ok_or_else(|| invalid("a write behind the end"))?;
        if at < output.taken && written.last.contains(&done) {
            return Ok(());
        }
        if at != output.taken || self.output_bytes - at < len {
            return Err(invalid("a write to an output that is not where the last one ended, or behind its room"));
        }
        if self.room.saturating_sub(written.bytes) < len {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "more than the job may write"));
        }
        let file = match &mut output.file {
            Some(file) => file,
            none => none.insert((self.create)(output.number)?),
        };
        file.append(&output.last)?;
        let (before, last) = data.split_at(data.len() - DEVICE_BLOCK);
        file.append(before)?;
        output.last.clear();
        output.last.extend_from_slice(last);
        output.taken += len;
        written.bytes += len;
        if written.last.len() == REMEMBERED_WRITES {
            written.last.pop_front();
        }
        written.last.push_back(done);
        Ok(())
    }

    /// Takes all outputs that were written to. When this returns, reads and writes are refused, and no write to a file
    /// is in progress. Only the first call returns outputs.
    pub(crate) fn fence(&self) -> Vec<FencedOutput> {
        self.fenced.store(true, Ordering::Release);
        let written = self.open.lock().take();
        let outputs = written.map_or_else(Vec::new, |written| written.outputs).into_iter();
        outputs.filter_map(|o| Some(FencedOutput { number: o.number, file: o.file?, last: o.last })).collect()
    }
}

fn fenced() -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, "the job is over")
}

impl fmt::Debug for JobDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobDevice")
            .field("inputs", &self.inputs.len())
            .field("outputs_at", &self.outputs_at)
            .field("outputs", &self.outputs)
            .field("fenced", &self.is_fenced())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rockmill_io::{FileSystem, MemFileSystem};

    use super::*;

    const BLOCK: u64 = DEVICE_BLOCK as u64;

    /// Two inputs of 5,000 and 100 bytes, and room for two outputs of four blocks each, five blocks in all.
    fn device(fs: &MemFileSystem) -> JobDevice {
        fs.create_dir(Path::new("/db"), true).unwrap();
        let input = |name: &str, len: usize| {
            let path = Path::new("/db").join(name);
            fs.write_all(&path, &vec![7; len]).unwrap();
            fs.open_random(&path, false).unwrap()
        };
        let inputs = vec![(0, input("a", 5000)), (2 * BLOCK, input("b", 100))];
        let files = fs.clone();
        let create = move |number: u64| files.create(&Path::new("/db").join(number.to_string()), Default::default());
        JobDevice::new(inputs, 3 * BLOCK, &[41, 43], 4 * BLOCK, 5 * BLOCK, Box::new(create))
    }

    #[test]
    fn inputs_are_read_only_and_end_in_zeros() {
        let fs = MemFileSystem::new();
        let device = device(&fs);
        assert_eq!(device.bytes(), 11 * BLOCK);
        let mut all = vec![1; 3 * DEVICE_BLOCK];
        device.read(0, &mut all).unwrap();
        let wanted = |i: usize| if i < 5000 || (8192..8292).contains(&i) { 7 } else { 0 };
        assert!(all.iter().enumerate().all(|(i, &b)| b == wanted(i)));
        let mut last = vec![1; DEVICE_BLOCK];
        device.read(2 * BLOCK, &mut last).unwrap();
        assert_eq!(last, all[2 * DEVICE_BLOCK..]);
        for (offset, len) in [(0, 100), (1, 4096), (3 * BLOCK, 4096), (2 * BLOCK, 8192), (u64::MAX - 4095, 4096)] {
            device.read(offset, &mut vec![0; len]).unwrap_err();
        }
        let e = device.write(BLOCK, &[0; DEVICE_BLOCK]).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::PermissionDenied);
    }

    /// Counts what it is asked.
    #[derive(Clone, Default)]
    struct Counting(Arc<Mutex<(u64, u64)>>);

    impl DevicePace for Counting {
        fn read(&self, bytes: u64) {
            self.0.lock().0 += bytes;
        }

        fn write(&self, bytes: u64) {
            self.0.lock().1 += bytes;
        }

        fn held(&self) -> Duration {
            Duration::from_secs(self.0.lock().0)
        }
    }

    #[test]
    fn the_pace_is_asked_before_each_read_and_write() {
        let fs = MemFileSystem::new();
        let pace = Counting::default();
        let device = device(&fs).with_pace(pace.clone());
        device.read(0, &mut [0; 2 * DEVICE_BLOCK]).unwrap();
        device.write(3 * BLOCK, &[0; DEVICE_BLOCK]).unwrap();
        let held = device.held();
        assert_eq!((*pace.0.lock(), held), ((2 * BLOCK, BLOCK), Duration::from_secs(2 * BLOCK)));
        device.fence();
        device.read(0, &mut [0; DEVICE_BLOCK]).unwrap_err();
        device.write(4 * BLOCK, &[0; DEVICE_BLOCK]).unwrap_err();
        assert_eq!(*pace.0.lock(), (2 * BLOCK, BLOCK), "what is over waits for nothing");
    }

    #[test]
    fn inputs_are_sent_as_files_where_one_has_all_the_blocks() {
        let fs = MemFileSystem::new();
        let pace = Counting::default();
        let device = device(&fs).with_pace(pace.clone());
        let (file, at) = device.input_file(0, BLOCK).unwrap();
        assert_eq!((file.size(), at), (5000, 0));
        // Its end, the next input, the gap between them, what is no input, and no range.
        for (first, blocks) in [(BLOCK, 1), (0, 2), (0, 3), (2 * BLOCK, 1), (3 * BLOCK, 1), (u64::MAX - 4095, 1)] {
            assert!(device.input_file(first, blocks * BLOCK).is_none(), "{first} {blocks}");
        }
        let (file, at) = device.input_file(4096, 904).unwrap();
        assert_eq!((file.size(), at), (5000, 4096));
        assert_eq!(pace.0.lock().0, BLOCK + 904, "a rate limiter counts what is sent");
        device.fence();
        assert!(device.input_file(0, BLOCK).is_none());
    }

    #[test]
    fn outputs_are_written_from_front_to_back_within_their_room() {
        let fs = MemFileSystem::new();
        let device = device(&fs);
        let block = vec![3; DEVICE_BLOCK];
        let at = |output: u64, block: u64| (3 + 4 * output + block) * BLOCK;
        device.write(at(0, 1), &block).unwrap_err();
        device.write(at(0, 0), &block[1..]).unwrap_err();
        device.write(at(0, 0), &[]).unwrap_err();
        device.write(at(0, 0), &[block.clone(), block.clone()].concat()).unwrap();
        device.write(at(0, 0), &block).unwrap_err();
        device.write(at(0, 2), &block).unwrap();
        device.write(at(2, 0), &block).unwrap_err();
        device.write(u64::MAX - (BLOCK - 1), &block).unwrap_err();
        // Beyond the end of its own room, and beyond that of all outputs.
        device.write(at(0, 3), &[block.clone(), block.clone()].concat()).unwrap_err();
        device.write(at(1, 0), &[block.clone(), block.clone(), block.clone()].concat()).unwrap_err();
        device.write(at(1, 0), &block).unwrap();
        let outputs = device.fence();
        assert_eq!(outputs.iter().map(|o| o.number).collect::<Vec<_>>(), [41, 43]);
        let sizes = [2 * BLOCK + 1, BLOCK];
        for (output, size) in outputs.into_iter().zip(sizes) {
            let path = Path::new("/db").join(output.number.to_string());
            output.finish(size).unwrap();
            assert_eq!(fs.read_to_vec(&path).unwrap(), vec![3; size as usize]);
        }
    }

    #[test]
    fn a_write_that_comes_once_more_is_done_already() {
        let fs = MemFileSystem::new();
        let device = device(&fs);
        let blocks = |n: usize, byte: u8| vec![byte; n * DEVICE_BLOCK];
        let at = |output: u64, block: u64| (3 + 4 * output + block) * BLOCK;
        device.write(at(0, 0), &blocks(2, 1)).unwrap();
        device.write(at(0, 2), &blocks(1, 2)).unwrap();
        device.write(at(1, 0), &blocks(2, 3)).unwrap(); // and now there is no more room
        for _ in 0..2 {
            device.write(at(0, 0), &blocks(2, 1)).unwrap();
            device.write(at(0, 2), &blocks(1, 2)).unwrap();
            device.write(at(1, 0), &blocks(2, 3)).unwrap();
        }
        // Not the same place, length or bytes.
        device.write(at(0, 1), &blocks(2, 1)).unwrap_err();
        device.write(at(0, 0), &blocks(1, 1)).unwrap_err();
        device.write(at(0, 0), &blocks(2, 4)).unwrap_err();
        device.write(at(0, 2), &blocks(1, 1)).unwrap_err();
        let outputs = device.fence();
        // What is fenced is refused, also if it was taken before.
        assert_eq!(device.write(at(0, 0), &blocks(2, 1)).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        let wanted = [[blocks(2, 1), blocks(1, 2)].concat(), blocks(2, 3)];
        for (output, wanted) in outputs.into_iter().zip(wanted) {
            let path = Path::new("/db").join(output.number.to_string());
            output.finish(wanted.len() as u64).unwrap();
            assert!(fs.read_to_vec(&path).unwrap() == wanted);
        }
    }

    #[test]
    fn only_the_last_writes_are_remembered() {
        let fs = MemFileSystem::new();
        fs.create_dir(Path::new("/db"), true).unwrap();
        let files = fs.clone();
        let create = move |number: u64| files.create(&Path::new("/db").join(number.to_string()), Default::default());
        let device = JobDevice::new(Vec::new(), 0, &[41], 1 << 30, 1 << 30, Box::new(create));
        let block = [5; DEVICE_BLOCK];
        for i in 0..=REMEMBERED_WRITES as u64 {
            device.write(i * BLOCK, &block).unwrap();
        }
        device.write(BLOCK, &block).unwrap();
        device.write(0, &block).unwrap_err();
        let written = device.open.lock().as_ref().map(|written| written.last.len());
        assert_eq!(written, Some(REMEMBERED_WRITES));
    }

    #[test]
    fn a_size_that_was_not_written_is_refused() {
        for size in [0, BLOCK, 2 * BLOCK + 1, u64::MAX] {
            let fs = MemFileSystem::new();
            let device = device(&fs);
            device.write(3 * BLOCK, &[3; 2 * DEVICE_BLOCK]).unwrap();
            device.fence().pop().unwrap().finish(size).unwrap_err();
        }
    }

    #[test]
    fn after_a_fence_nothing_is_read_or_written_and_nothing_more_is_given() {
        let fs = MemFileSystem::new();
        let device = device(&fs);
        device.write(3 * BLOCK, &[3; DEVICE_BLOCK]).unwrap();
        let outputs = device.fence();
        for offset in [0, 3 * BLOCK, 4 * BLOCK, 7 * BLOCK] {
            let late = [device.write(offset, &[9; DEVICE_BLOCK]), device.read(offset, &mut [0; DEVICE_BLOCK])];
            assert!(late.iter().all(|l| l.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::PermissionDenied)));
        }
        assert!(device.fence().is_empty());
        for output in outputs {
            output.finish(10).unwrap();
        }
        assert_eq!(fs.read_to_vec(Path::new("/db/41")).unwrap(), [3; 10]);
        assert!(!fs.exists(Path::new("/db/43")).unwrap());
    }
}
