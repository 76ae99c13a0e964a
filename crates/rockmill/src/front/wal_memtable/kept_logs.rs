//! Logs that stay in use after a recovery are durable before anything builds on them.
//!
//! What recovery read came from the page cache, and the process that wrote it may have died before a sync. If nothing
//! is done, the next synced write returns with less than all of its predecessors on the disk. `fdatasync` alone is not
//! enough. Where a write-back failed before, the kernel keeps the pages, takes them for written, and reports the
//! failure once: to the process that died, to a sync of ours, or to nobody. A later sync succeeds and does nothing.
//!
//! So each log is synced, and then the device is asked: direct reads of all of it, several large ones in flight and of
//! several logs, are compared with what was replayed. If they agree, the log is durable and stays as it is. If not, or
//! where direct reads may be served from the page cache ([`RandomAccessFile::reads_device`]), the log is written anew
//! in place, with the same bytes, and synced: pages that were written to are dirty again. One that has a second name is
//! not written to: then what logs hold is written as tables.
//!
//! What was replayed, not what is cached now, is what the device must have: a page that was taken for written may have
//! left the cache since, and would then read as on the device. Recovery therefore keeps a hash of each block it read.
//!
//! A log that was replayed does not change until recovery is over. So a thread compares it while later ones are
//! replayed ([`ReplayedLogs`]), and an opening takes as long as the longer of the two instead of their sum.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rockmill_format::log::{BLOCK_SIZE, ReadBlock, block_start};
use rockmill_io::error::is_not_plain;
use rockmill_io::ring::{BatchIo, BatchKind, BatchLimits, ReadOptions, ReadPlan, Span};
use rockmill_io::{EntryKind, FileSystem, RandomAccessFile, WriteOptions};

use crate::error::{Error, Result};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::has_ended;
use crate::sync::thread::{self, JoinHandle};
use crate::version::{BlockHashes, LogSource};

/// Bytes of one direct read.
const SPAN_BYTES: u64 = 1 << 20;
/// Logs that are read at once.
const LOGS_AT_ONCE: usize = 4;
/// Direct reads in flight.
const READS_IN_FLIGHT: usize = 12;
/// Memory of these, and of one more of each log that is being compared.
const READ_MEMORY: usize = (READS_IN_FLIGHT + LOGS_AT_ONCE + 1) << 20;
/// Up to here, of all logs together, setting up a ring takes longer than plain calls do, and a thread saves nothing.
const PLAIN_BYTES_MAX: u64 = 4 << 20;

/// A log as it was replayed.
#[derive(Clone)]
pub(super) struct Replayed {
    pub number: u64,
    pub path: PathBuf,
    /// Of all that was read of it.
    pub hashes: BlockHashes,
}

/// A log as it was replayed, and whether the device is known to have it; `None` if that was not asked yet.
pub(super) type AskedLog = (Replayed, Option<bool>);

/// The logs that were replayed and may be kept, some of which a thread compares with the device meanwhile.
#[derive(Default)]
pub(super) struct ReplayedLogs {
    asked: Vec<AskedLog>,
    asking: Option<Asking>,
    /// Those that no thread has taken.
    later: Vec<Replayed>,
}

/// A thread that compares logs with the device. It gives the answers in their order.
struct Asking {
    logs: Arc<Vec<Replayed>>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<bool>>,
}

impl ReplayedLogs {
    /// Adds the next one.
    pub fn add(&mut self, log: Replayed) {
        self.later.push(log);
    }

    /// Gives all that no thread has taken yet to a new one, if the last one has ended and they are long enough. They
    /// must not change from here on: not be cut, nor written to.
    pub fn ask(&mut self, fs: &Arc<dyn FileSystem>) {
        let busy = self.asking.as_ref().is_some_and(|asking| !has_ended(&asking.thread));
        if busy || self.later.iter().map(|log| log.hashes.bytes()).sum::<u64>() <= PLAIN_BYTES_MAX {
            return;
        }
        self.take_answer();
        let logs = Arc::new(std::mem::take(&mut self.later));
        let stop = Arc::new(AtomicBool::new(false));
        let (fs, of, stopped) = (Arc::clone(fs), Arc::clone(&logs), Arc::clone(&stop));
        let ask = move || on_device(&*fs, &of.iter().collect::<Vec<_>>(), &stopped);
        match thread::Builder::new().name("rockmill:logs".to_owned()).spawn(ask) {
            Ok(thread) => self.asking = Some(Asking { logs, stop, thread }),
            // Without a thread they are compared at the end.
            Err(_) => self.later = Arc::unwrap_or_clone(logs),
        }
    }

    /// Waits for the thread, if there is one, and notes what it found.
    fn take_answer(&mut self) {
        let Some(Asking { logs, thread, .. }) = self.asking.take() else { return };
        // If it panicked, nothing is known: its logs are written anew.
        let known = thread.join().unwrap_or_default().into_iter().chain(std::iter::repeat(false));
        self.asked.extend(Arc::unwrap_or_clone(logs).into_iter().zip(known.map(Some)));
    }

    /// All of them from number `oldest` on, by number. Waits for the thread.
    pub fn finish(mut self, oldest: u64) -> Vec<AskedLog> {
        self.take_answer();
        let mut all = std::mem::take(&mut self.asked);
        all.extend(std::mem::take(&mut self.later).into_iter().map(|log| (log, None)));
        all.retain(|(log, _)| log.number >= oldest);
        all.sort_by_key(|(log, _)| log.number);
        all
    }
}

impl Drop for ReplayedLogs {
    /// The answers are not wanted: the opening has failed, or keeps no logs. No read outlives it.
    fn drop(&mut self) {
        if let Some(asking) = self.asking.take() {
            asking.stop.store(true, Ordering::Relaxed); // the join orders it
            let _ = asking.thread.join();
        }
    }
}

/// Cuts a log off at `end`, behind its last whole record: what a power cut left of the next one goes, for the next
/// recovery would take it for the end of all that is known. False where the log is not the database's alone.
///
/// The caller has found nothing in later logs, so what a recovery finds is the same before the cut and after it,
/// whichever of both a crash leaves.
///
/// # Errors
/// The log cannot be cut, or reads differently than when it was replayed.
pub(super) fn cut(fs: &dyn FileSystem, log: &mut Replayed, end: u64) -> Result<bool> {
    let failed = |e: io::Error| Error::io(format_args!("cannot cut WAL {}", log.path.display()), &e);
    let entry = fs.entry(&log.path).map_err(failed)?;
    if !entry.is_some_and(|entry| entry.kind == EntryKind::File && !entry.shared) {
        return Ok(false);
    }
    let begin = block_start(end);
    let mut block = vec![0; BLOCK_SIZE];
    let read = LogSource::open(fs, &log.path, end).and_then(|mut source| source.read_block(&mut block));
    let read = read.map_err(failed)?;
    if !log.hashes.agree(begin, &block[..read]) {
        return Err(failed(differs()));
    }
    fs.truncate(&log.path, end).map_err(failed)?;
    log.hashes.cut(end, &block[..(end - begin) as usize]);
    Ok(true)
}

fn differs() -> io::Error {
    io::Error::other("it reads differently the second time; nothing was changed")
}

/// What became of logs that are kept.
pub(super) struct Durable {
    /// Number and length of each.
    pub logs: Vec<(u64, u64)>,
    /// The numbers of those that were written anew.
    pub anew: Vec<u64>,
}

/// Makes logs durable with the contents that were replayed; those that the device is known to have already are. `None`
/// where one that would have to be written anew is not the database's alone.
///
/// # Errors
/// A log that cannot be written anew, or that reads differently than when it was replayed.
pub(super) fn make_durable(fs: &dyn FileSystem, logs: &[AskedLog]) -> Result<Option<Durable>> {
    let mut durable = Durable { logs: Vec::with_capacity(logs.len()), anew: Vec::new() };
    let unknown: Vec<&Replayed> = logs.iter().filter(|(_, known)| known.is_none()).map(|(log, _)| log).collect();
    let mut answers = on_device(fs, &unknown, &AtomicBool::new(false)).into_iter();
    for (log, known) in logs {
        let mut size = log.hashes.bytes();
        if !known.unwrap_or_else(|| answers.next().unwrap_or(false)) {
            let written = match write_anew(fs, &log.path, &log.hashes) {
                Err(e) if is_not_plain(&e) => return Ok(None),
                written => written,
            };
            size = written.map_err(|e| Error::io(format_args!("cannot keep WAL {}", log.path.display()), &e))?;
            durable.anew.push(log.number);
        }
        durable.logs.push((log.number, size));
    }
    Ok(Some(durable))
}

/// Of each log: whether the device is known to have what was replayed, and all of it. Ends early once `stop` is set;
/// the rest is then not known.
fn on_device(fs: &dyn FileSystem, logs: &[&Replayed], stop: &AtomicBool) -> Vec<bool> {
    let bytes = logs.iter().map(|log| log.hashes.bytes()).sum::<u64>();
    let kind = if bytes <= PLAIN_BYTES_MAX { BatchKind::Pread } else { BatchKind::Auto };
    let limits = BatchLimits {
        memory_bytes: READ_MEMORY,
        depth: READS_IN_FLIGHT as u32,
        huge_pages: false,
        register: false,
        ..BatchLimits::default()
    };
    let mut known = vec![false; logs.len()];
    let Ok(io) = fs.batch_io(kind, &limits) else { return known };
    for (logs, known) in logs.chunks(LOGS_AT_ONCE).zip(known.chunks_mut(LOGS_AT_ONCE)) {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let files: Vec<_> = logs.iter().map(|log| open_synced(fs, log)).collect();
        let asked: Vec<_> = logs.iter().zip(&files).filter_map(|(log, file)| Some((*log, file.as_ref()?))).collect();
        let Ok(mut same) = compare(&io, &asked, stop).map(Vec::into_iter) else { continue };
        for (known, file) in known.iter_mut().zip(&files) {
            // That reads cannot be direct may have been found out only now.
            *known = file.as_ref().is_some_and(|file| same.next().unwrap_or(false) && file.reads_device());
        }
    }
    known
}

/// Syncs a log and opens it for direct reads; `None` where that says nothing about the device.
///
/// The sync comes first: a direct read has dirty pages written, but nobody would ask the device to keep them.
fn open_synced(fs: &dyn FileSystem, log: &Replayed) -> Option<Arc<dyn RandomAccessFile>> {
    // A sync that fails may be told of an old failure, or of a new one. Either way the log is written anew.
    fs.sync_file(&log.path).ok()?;
    let file = fs.open_random(&log.path, true).ok()?;
    // A longer one has bytes that recovery had no use for. Nobody compares them, so nobody knows them.
    (file.reads_device() && file.size() == log.hashes.bytes()).then_some(file)
}

/// Reads logs directly, and compares them with what was replayed.
fn compare(io: &BatchIo, logs: &[(&Replayed, &Arc<dyn RandomAccessFile>)], stop: &AtomicBool) -> io::Result<Vec<bool>> {
    let mut plan = ReadPlan::new();
    for (log, file) in logs {
        let (number, size) = (plan.add_file(Arc::clone(file), &log.path), log.hashes.bytes());
        let span = |offset| Span { file: number, offset, len: (size - offset).min(SPAN_BYTES) as u32 };
        plan.add_run((0..size).step_by(SPAN_BYTES as usize).map(span).collect());
    }
    let depth = READS_IN_FLIGHT / logs.len().max(1);
    let mut stream = io.read(plan, ReadOptions { depth, memory_bytes: READ_MEMORY, throttle: None })?;
    let mut same = vec![true; logs.len()];
    let mut unfinished: Vec<usize> = (0..logs.len()).collect();
    while !unfinished.is_empty() {
        if stop.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        unfinished.retain(|&run| {
            let window = match stream.next(run) {
                Ok(Some(window)) => window,
                Ok(None) => return false,
                // Written anew, the place may be readable again.
                Err(_) => {
                    same[run] = false;
                    return false;
                }
            };
            same[run] = logs[run].0.hashes.agree(window.span().offset, &window);
            if !same[run] {
                drop(window);
                stream.skip_rest(run);
            }
            same[run]
        });
    }
    Ok(same)
}

/// Overwrites a log with what it holds and syncs it; gives its length. Whatever of that a crash keeps, the bytes are
/// the same. They must be those that were replayed, and what was not replayed is read twice: a bit that flipped on the
/// way would stay.
fn write_anew(fs: &dyn FileSystem, path: &Path, replayed: &BlockHashes) -> io::Result<u64> {
    let mut first = LogSource::new(fs.open_sequential(path)?);
    let mut second = None;
    let mut to = fs.reuse(path, path, WriteOptions::default())?;
    let (mut buf, mut again) = (vec![0; BLOCK_SIZE], vec![0; BLOCK_SIZE]);
    loop {
        let at = first.end();
        let n = first.read_block(&mut buf)?;
        if n == 0 {
            break;
        }
        let same = if at < replayed.bytes() {
            replayed.agree(at, &buf[..n])
        } else {
            let second = match &mut second {
                Some(second) => second,
                none => none.insert(LogSource::open(fs, path, at)?),
            };
            second.read_block(&mut again[..n])? == n && buf[..n] == again[..n]
        };
        if !same {
            return Err(differs());
        }
        to.append(&buf[..n])?;
    }
    if to.len() < replayed.bytes() {
        return Err(differs());
    }
    to.sync()?;
    to.close()?;
    Ok(to.len())
}
