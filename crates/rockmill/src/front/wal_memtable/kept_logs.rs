//! Logs that stay in use after a recovery are durable before anything builds on them.
//!
//! Recovery read the logs from the page cache, and the process that wrote them may have died before a sync. Without
//! further measures, the next synced write would return although not all earlier writes are on the disk. `fdatasync`
//! alone is not enough. After a failed write-back, the kernel keeps the pages, considers them written, and reports the
//! failure once: to the process that died, to a sync of ours, or to nobody. A later sync succeeds and does nothing.
//!
//! So each log is synced, and then the device is asked: the whole log is read directly, with several large reads of
//! several logs in flight, and compared with what was replayed. If they agree, the log is durable and stays as it is.
//! If not, or if direct reads may be served from the page cache ([`RandomAccessFile::reads_device`]), the log is
//! rewritten in place with the same bytes, and synced: writing makes the pages dirty again. If a log cannot be
//! rewritten (a copy-on-write file system may be full), or has a second name, the data of all logs is written as tables
//! instead. Whatever part of it was rewritten, its bytes are the same, and flushes check each value that they read.
//!
//! The device must have what was replayed, not what is cached now: a page that was considered written may have left the
//! cache since, and would then be read from the device. Recovery therefore keeps a hash of each block that it read.
//!
//! A log that was replayed does not change until recovery is over. So a thread compares it while later ones are
//! replayed ([`ReplayedLogs`]), and an opening takes as long as the longer of the two, not their sum.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rockmill_format::log::{BLOCK_SIZE, ReadBlock, block_start};
use rockmill_io::ring::{BatchIo, BatchKind, BatchLimits, ReadOptions, ReadPlan, Span};
use rockmill_io::{EntryKind, FileSystem, RandomAccessFile, WriteOptions};

use crate::error::Error;
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
/// If all logs together have at most this many bytes, setting up a ring takes longer than plain calls, and a thread
/// saves nothing.
const PLAIN_BYTES_MAX: u64 = 4 << 20;

/// A log as it was replayed.
#[derive(Clone)]
pub(super) struct Replayed {
    pub number: u64,
    pub path: PathBuf,
    /// Hashes of everything that was read of it.
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

    /// Gives all logs that no thread has taken yet to a new thread, if the last one has ended and they are long enough.
    /// From here on they must not be cut or written to.
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

    /// Waits for the thread, if there is one, and records its results.
    fn take_answer(&mut self) {
        let Some(Asking { logs, thread, .. }) = self.asking.take() else { return };
        // If it panicked, nothing is known: its logs are rewritten.
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

/// Why logs are not kept.
pub(super) enum NotKept {
    /// One cannot be cut or rewritten, so what they hold is to be written as tables.
    Tables(Error),
    /// One reads differently than when it was replayed: the opening fails.
    Differs(Error),
}

impl NotKept {
    fn of(what: &str, log: &Replayed, error: &io::Error) -> Self {
        let differs = error.get_ref().is_some_and(|e| e.is::<Differs>());
        let error = Error::io(format_args!("cannot {what} WAL {}", log.path.display()), error);
        if differs { Self::Differs(error) } else { Self::Tables(error) }
    }
}

/// A log reads differently than when it was replayed.
#[derive(Debug)]
struct Differs;

impl fmt::Display for Differs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it reads differently the second time; nothing was changed")
    }
}

impl std::error::Error for Differs {}

fn differs() -> io::Error {
    io::Error::other(Differs)
}

/// Cuts a log off at `end`, after its last whole record: a partial record that a power cut left must be removed,
/// because the next recovery would take it for the end of all data.
///
/// The caller has found nothing in later logs, so what a recovery finds is the same before the cut and after it,
/// whichever of both a crash leaves.
///
/// # Errors
/// The log cannot be cut, for example since it has other names, or reads differently than when it was replayed.
pub(super) fn cut(fs: &dyn FileSystem, log: &mut Replayed, end: u64) -> std::result::Result<(), NotKept> {
    let cut = |log: &mut Replayed| {
        let entry = fs.entry(&log.path)?;
        if !entry.is_some_and(|entry| entry.kind == EntryKind::File && !entry.shared) {
            return Err(io::Error::other("it is not a file with one name"));
        }
        let begin = block_start(end);
        let mut block = vec![0; BLOCK_SIZE];
        let read = LogSource::open(fs, &log.path, end)?.read_block(&mut block)?;
        if !log.hashes.agree(begin, &block[..read]) {
            return Err(differs());
        }
        fs.truncate(&log.path, end)?;
        log.hashes.cut(end, &block[..(end - begin) as usize]);
        Ok(())
    };
    cut(log).map_err(|e| NotKept::of("cut", log, &e))
}

/// The result for logs that are kept.
pub(super) struct Durable {
    /// Number and length of each.
    pub logs: Vec<(u64, u64)>,
    /// The numbers of those that were rewritten.
    pub anew: Vec<u64>,
}

/// Makes logs durable with the contents that were replayed; nothing is done for those that the device is known to have.
///
/// # Errors
/// A log that would have to be rewritten and cannot be, for example since it has other names, or that reads differently
/// than when it was replayed.
pub(super) fn make_durable(fs: &dyn FileSystem, logs: &[AskedLog]) -> std::result::Result<Durable, NotKept> {
    let mut durable = Durable { logs: Vec::with_capacity(logs.len()), anew: Vec::new() };
    let unknown: Vec<&Replayed> = logs.iter().filter(|(_, known)| known.is_none()).map(|(log, _)| log).collect();
    let mut answers = on_device(fs, &unknown, &AtomicBool::new(false)).into_iter();
    for (log, known) in logs {
        let mut size = log.hashes.bytes();
        if !known.unwrap_or_else(|| answers.next().unwrap_or(false)) {
            size = write_anew(fs, &log.path, &log.hashes).map_err(|e| NotKept::of("rewrite", log, &e))?;
            durable.anew.push(log.number);
        }
        durable.logs.push((log.number, size));
    }
    Ok(durable)
}

/// For each log: whether the device is known to have all of what was replayed. Ends early once `stop` is set; the rest
/// is then not known.
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
            // It may have turned out only now that reads cannot be direct.
            *known = file.as_ref().is_some_and(|file| same.next().unwrap_or(false) && file.reads_device());
        }
    }
    known
}

/// Syncs a log and opens it for direct reads; `None` if that proves nothing about the device.
///
/// The sync comes first: a direct read makes the kernel write dirty pages, but does not make the device keep them
/// durably.
fn open_synced(fs: &dyn FileSystem, log: &Replayed) -> Option<Arc<dyn RandomAccessFile>> {
    // A failed sync may report an old failure or a new one. Either way the log is rewritten.
    fs.sync_file(&log.path).ok()?;
    let file = fs.open_random(&log.path, true).ok()?;
    // A longer log has bytes that recovery did not use. They are not compared, so it is not known whether the device
    // has them.
    (file.reads_device() && file.size() == log.hashes.bytes()).then_some(file)
}

/// Reads logs directly, and compares them with the replayed data.
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
                // After it is rewritten, the place may be readable again.
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

/// Overwrites a log with its own contents and syncs it; returns its length. Whatever part of that survives a crash, the
/// bytes are the same. They must be those that were replayed, and bytes that were not replayed are read twice, because
/// a bit that flipped on the way would stay.
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
