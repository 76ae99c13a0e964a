//! An index table's entries in order, with their values: for a flush, which reads them all.
//!
//! In key order the values are anywhere in the logs. So a window of entries is looked through first, and its values are
//! read in the order of their places, those that stand close together at once (DecouKV, section 3.4, data flush).

use std::ops::Range;

use super::SealedTable;
use super::log_values::{Address, LogFile, Slot, join, span};
use crate::error::Result;
use crate::iter::InternalIterator;

/// Bytes of values that the windows of a flush hold at most, together, if each has more than one entry.
const WINDOW_BYTES: usize = 8 << 20;
/// Of one at least.
const WINDOW_BYTES_MIN: usize = 256 << 10;
/// Entries of a window at most.
const WINDOW_ENTRIES: usize = 64 << 10;
/// Bytes between two values that are read with them rather than left out by a read of its own.
const GAP_MAX: u64 = 4 << 10;
/// Bytes of one read at most, if it is of more than one value.
const READ_MAX: u64 = 1 << 20;

/// An iterator over an index table's entries, with slots for values.
pub(super) trait SlotIterator: InternalIterator + 'static {
    /// Another at the same place.
    fn copy(&self) -> Self;
}

/// See the module's text.
pub(super) struct ReadAhead<E> {
    table: SealedTable,
    /// The present entry.
    entries: E,
    /// Bytes of values that the window holds at most.
    window_bytes: usize,
    /// The window, from its first entry on: where in `values` the value is, `None` where it is inline.
    window: Vec<Option<Range<usize>>>,
    values: Vec<u8>,
    /// The present entry's place in the window.
    at: usize,
    status: Result<()>,
}

/// A value that a window needs.
struct Wanted {
    /// Its place in the window.
    entry: usize,
    at: Address,
    /// Bytes of the file, headers included.
    span: u64,
}

impl<E: SlotIterator> ReadAhead<E> {
    /// Over all of the table's `entries`, from none; one of so many that are read together.
    pub fn new(table: SealedTable, entries: E, together: usize) -> Self {
        let window_bytes = (WINDOW_BYTES / together.max(1)).max(WINDOW_BYTES_MIN);
        Self { table, entries, window_bytes, window: Vec::new(), values: Vec::new(), at: 0, status: Ok(()) }
    }

    /// Goes elsewhere: a new window begins there.
    fn go(&mut self, go: impl FnOnce(&mut E)) {
        go(&mut self.entries);
        (self.at, self.status) = (0, Ok(()));
        self.window.clear();
        self.status = self.fill();
    }

    /// Reads the values of the entries from the present one on.
    fn fill(&mut self) -> Result<()> {
        let table = self.table.clone();
        let Some(values) = table.log_values() else { return Ok(()) };
        (self.at, self.window, self.values) = (0, Vec::new(), std::mem::take(&mut self.values));
        self.values.clear();
        let (mut wanted, mut bytes) = (Vec::new(), 0);
        let mut ahead = self.entries.copy();
        while ahead.valid() && self.window.len() < WINDOW_ENTRIES {
            if let Slot::InLog(at) = Slot::read(ahead.value()) {
                if bytes > 0 && bytes + at.len as usize > self.window_bytes {
                    break;
                }
                bytes += at.len as usize;
                wanted.push(Wanted { entry: self.window.len(), at, span: 0 });
            }
            self.window.push(None);
            ahead.next();
        }
        wanted.sort_unstable_by_key(|w| (w.at.log, w.at.offset));
        let mut read = Vec::new();
        let mut rest = &mut wanted[..];
        while let Some(first) = rest.first() {
            let log = values.file(first.at.log)?;
            let of_log = rest.partition_point(|w| w.at.log == first.at.log);
            let (these, others) = rest.split_at_mut(of_log);
            these.iter_mut().for_each(|w| w.span = span(&log, w.at));
            self.read_log(&log, these, &mut read)?;
            rest = others;
        }
        Ok(())
    }

    /// Reads values of one log, which are in the order of their places.
    fn read_log(&mut self, log: &LogFile, mut wanted: &[Wanted], read: &mut Vec<u8>) -> Result<()> {
        while let Some(first) = wanted.first() {
            let begin = first.at.offset;
            let (mut end, mut n) = (begin + first.span, 1);
            for w in &wanted[1..] {
                let to = end.max(w.at.offset + w.span);
                if w.at.offset > end + GAP_MAX || to - begin > READ_MAX {
                    break;
                }
                (end, n) = (to, n + 1);
            }
            read.clear();
            read.resize((end - begin) as usize, 0);
            log.read_exact(begin, read)?;
            let (these, others) = wanted.split_at(n);
            for w in these {
                let from = (w.at.offset - begin) as usize;
                let to = self.values.len();
                self.values.extend_from_slice(&read[from..from + w.span as usize]);
                let len = join(log, w.at, &mut self.values[to..])?;
                self.values.truncate(to + len);
                self.window[w.entry] = Some(to..to + len);
            }
            wanted = others;
        }
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
        self.entries.next();
        self.at += 1;
        if self.at >= self.window.len() && self.entries.valid() {
            self.status = self.fill();
        }
    }
    fn prev(&mut self) {
        self.go(E::prev);
    }
    fn key(&self) -> &[u8] {
        self.entries.key()
    }
    fn value(&self) -> &[u8] {
        match self.window.get(self.at) {
            Some(Some(range)) => &self.values[range.clone()],
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
