//! An index table's entries in order, with their values: for a flush, which reads them all.
//!
//! In key order the values are scattered over the logs. So a window of entries is collected first, and its values are
//! read in the order of their positions, values close to each other with one read, as one batch with many reads in
//! flight (DecouKV, section 3.4, data flush). While the values of one window are used, those of the next one are read.

use std::sync::Arc;

use rockmill_io::ring::{BatchIo, Pieces, ReadOptions};

use super::SealedTable;
use super::log_values::{Address, LogFile, Slot, join, span};
use crate::error::{Error, Result};
use crate::iter::InternalIterator;
use crate::sync::{Mutex, Share};

/// The most bytes of values that all windows of a flush hold together, for up to 32 tables, if each window has more
/// than one entry.
const WINDOW_BYTES: usize = 8 << 20;
/// The least bytes of one window.
const WINDOW_BYTES_MIN: usize = 128 << 10;
/// The most entries of a window.
const WINDOW_ENTRIES: usize = 32 << 10;
/// If at most this many bytes are between two values, one read gets both.
const GAP_MAX: u64 = 4 << 10;
/// Reads that a flush has in flight.
pub(crate) const READS_IN_FLIGHT: usize = 64;
/// Of these, the least for each table; from 33 tables on this adds up to more.
const READS_IN_FLIGHT_MIN: usize = 2;
/// Entries of a window between two checks of how far the next one's reads are.
const PACE_STEP: usize = 16;

/// Waits until this many bytes may be read.
pub(crate) type Throttle = Arc<dyn Fn(u64) + Send + Sync>;

/// How a flush reads values that are in logs.
#[derive(Clone)]
pub(crate) struct LogReads {
    /// The ring that it reads through, which is the flushing thread's.
    pub io: BatchIo,
    /// Is asked before each read.
    pub throttle: Option<Throttle>,
    /// How many tables are read at once.
    pub together: usize,
    /// Bytes that their reads in flight may have in all, of what `io` has.
    pub memory: usize,
    /// Where the memory of windows is counted.
    pub windows: Arc<Share>,
    /// What was read.
    pub counts: Arc<Mutex<LogReadCounts>>,
}

/// Values read from logs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LogReadCounts {
    /// Values.
    pub values: u64,
    /// Reads that they were read with.
    pub reads: u64,
    /// Bytes of these, including the gaps between values that are read together.
    pub bytes: u64,
}

/// Reads in flight for each table, by the number of tables.
fn depth(together: usize) -> usize {
    (READS_IN_FLIGHT / together.max(1)).max(READS_IN_FLIGHT_MIN)
}

impl LogReads {
    /// Bytes that keep the intended number of reads in flight, for this many tables.
    pub fn memory_for(together: usize) -> usize {
        together.saturating_mul(Pieces::memory_in_flight(depth(together)))
    }

    fn options(&self) -> ReadOptions {
        let depth = depth(self.together);
        // The writer of the table has its memory once it has begun, and nothing more may be kept free for it. 0 would
        // say that.
        let memory_bytes = (self.memory / self.together.max(1)).max(1);
        let throttle =
            self.throttle.clone().map(|throttle| Box::new(move |bytes| throttle(bytes)) as Box<dyn FnMut(u64) + Send>);
        ReadOptions { depth, memory_bytes, throttle }
    }

    /// Bytes of values in a window; each table has two.
    fn window_bytes(&self) -> usize {
        (WINDOW_BYTES / 2 / self.together.max(1)).max(WINDOW_BYTES_MIN)
    }
}

/// An iterator over an index table's entries, with slots for values.
pub(super) trait SlotIterator: InternalIterator + 'static {
    /// Another at the same place.
    fn copy(&self) -> Self;
}

/// Entries in a row, and their values.
#[derive(Default)]
struct Window {
    /// For each entry: the index of its value's piece, `None` if the value is inline.
    entries: Vec<Option<u32>>,
    pieces: Pieces,
    /// The logs of the pieces, in the order of their numbers there.
    logs: Vec<Arc<LogFile>>,
}

impl Window {
    fn memory_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Option<u32>>() + self.pieces.memory_bytes()
    }

    /// Requests a value.
    fn add(&mut self, table: &SealedTable, at: Address) -> Result<()> {
        let known = self.logs.iter().rposition(|log| log.number() == at.log);
        let number = match known {
            Some(number) => number as u32,
            None => {
                let values = table.log_values();
                let values = values.ok_or_else(|| Error::corruption("a memtable without logs has an address"))?;
                let log = values.file(at.log)?;
                let number = log.add_to(&mut self.pieces);
                self.logs.push(log);
                number
            }
        };
        let piece = self.pieces.add(number, at.offset, span(&self.logs[number as usize], at) as usize);
        self.entries.push(Some(piece as u32));
        Ok(())
    }
}

/// See the module's text.
pub(super) struct ReadAhead<E> {
    table: SealedTable,
    reads: LogReads,
    /// The present entry.
    entries: E,
    /// The first entry that is in no window.
    ahead: E,
    /// The window with the present entry.
    now: Window,
    /// The next one, whose values are being read.
    next: Window,
    /// The present entry's place in its window.
    at: usize,
    /// The length of its value, if that was in a log.
    len: usize,
    /// The memory of both windows.
    counted: Share,
    status: Result<()>,
}

/// A failed read of a value.
fn failed(e: &std::io::Error) -> Error {
    match e.kind() {
        std::io::ErrorKind::UnexpectedEof => Error::corruption(format!("a log lacks a value: {e}")),
        _ => Error::io("cannot read values that are in logs", e),
    }
}

impl<E: SlotIterator> ReadAhead<E> {
    /// Over all of the table's `entries`, from none.
    pub fn new(table: SealedTable, entries: E, reads: LogReads) -> Self {
        let (now, next, ahead) = (Window::default(), Window::default(), entries.copy());
        let counted = reads.windows.another();
        Self { table, reads, entries, ahead, now, next, at: 0, len: 0, counted, status: Ok(()) }
    }

    /// Continues elsewhere: a new window starts there.
    fn go(&mut self, go: impl FnOnce(&mut E)) {
        go(&mut self.entries);
        self.ahead = self.entries.copy();
        self.status = self.begin_next().and_then(|()| self.turn());
    }

    /// Begins to read the values of the next window.
    fn begin_next(&mut self) -> Result<()> {
        let (table, most) = (&self.table, self.reads.window_bytes());
        let window = &mut self.next;
        window.entries.clear();
        window.logs.clear();
        window.pieces.clear(2 * most);
        while self.ahead.valid() && window.entries.len() < WINDOW_ENTRIES {
            match Slot::read(self.ahead.value()) {
                Slot::InLog(at) => {
                    let bytes = window.pieces.bytes();
                    if bytes > 0 && bytes + at.len as usize > most {
                        break;
                    }
                    window.add(table, at)?;
                }
                Slot::Inline(_) => window.entries.push(None),
            }
            self.ahead.next();
        }
        let bytes = window.pieces.begin(&self.reads.io, self.reads.options(), GAP_MAX);
        self.counted.set(self.now.memory_bytes() + self.next.memory_bytes());
        let (bytes, window) = (bytes.map_err(|e| failed(&e))?, &self.next);
        let mut counts = self.reads.counts.lock();
        counts.values += window.pieces.len() as u64;
        counts.reads += window.pieces.reads() as u64;
        counts.bytes += bytes;
        Ok(())
    }

    /// Continues with the next window, and begins the one after it.
    fn turn(&mut self) -> Result<()> {
        self.next.pieces.finish().map_err(|e| failed(&e))?;
        std::mem::swap(&mut self.now, &mut self.next);
        self.at = 0;
        self.begin_next()?;
        self.check()
    }

    /// Advances the next window as far as this one is.
    fn keep_pace(&mut self) -> Result<()> {
        let pieces = &mut self.next.pieces;
        let due = pieces.reads() * self.at / self.now.entries.len().max(1);
        let taken = pieces.reads() - pieces.reads_left();
        pieces.take(due.saturating_sub(taken)).map_err(|e| failed(&e))
    }

    /// Takes headers out of the present entry's value, and checks it.
    fn check(&mut self) -> Result<()> {
        let Some(Some(piece)) = self.now.entries.get(self.at) else { return Ok(()) };
        let Slot::InLog(at) = Slot::read(self.entries.value()) else { return Ok(()) };
        let log = self.now.logs.iter().rfind(|log| log.number() == at.log);
        let log = log.ok_or_else(|| Error::corruption("a window lacks the log of a value"))?;
        self.len = join(log, at, self.now.pieces.piece_mut(*piece as usize))?;
        Ok(())
    }
}

impl<E: SlotIterator> InternalIterator for ReadAhead<E> {
    fn valid(&self) -> bool {
        self.status.is_ok() && self.entries.valid()
    }
    fn seek_to_first(&mut self) {
        self.go(E::seek_to_first);
    }
    fn seek_to_last(&mut self) {
        self.go(E::seek_to_last);
    }
    fn seek(&mut self, target: &[u8]) {
        self.go(|entries| entries.seek(target));
    }
    fn seek_for_prev(&mut self, target: &[u8]) {
        self.go(|entries| entries.seek_for_prev(target));
    }
    fn next(&mut self) {
        if !self.valid() {
            return;
        }
        self.entries.next();
        self.at += 1;
        self.status = match self.at < self.now.entries.len() {
            true if self.at.is_multiple_of(PACE_STEP) => self.keep_pace().and_then(|()| self.check()),
            true => self.check(),
            false if self.entries.valid() => self.turn(),
            false => Ok(()),
        };
    }
    fn prev(&mut self) {
        self.go(E::prev);
    }
    fn key(&self) -> &[u8] {
        self.entries.key()
    }
    fn value(&self) -> &[u8] {
        match self.now.entries.get(self.at) {
            Some(Some(piece)) => self.now.pieces.piece(*piece as usize).get(..self.len).unwrap_or(&[]),
            _ => match Slot::read(self.entries.value()) {
                Slot::Inline(value) => value,
                Slot::InLog(_) => &[], // not valid
            },
        }
    }
    fn status(&self) -> Result<()> {
        self.status.clone()
    }
}
