//! Pieces of files at scattered places, read as one batch: values that an index points to, blocks of many lookups.
//!
//! 1. Pieces are requested in the order in which they are wanted, and are one after another in one buffer.
//! 2. They are read in the order of their places, through one stream. Those that are close together are read together;
//!    a piece longer than a span is read in several spans, so that a stream's memory is bounded whatever the pieces
//!    are.
//! 3. [`take`](Pieces::take) copies what was read to where it belongs, a few spans at a time: reads go on while the
//!    caller does something else in between. Copied data stays in the buffer after the stream's memory is freed.

use super::stream::{self, ReadOptions, ReadPlan, ReadStream, Span};
use super::{BatchIo, Window};
use crate::fs::RandomAccessFile;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes of one read at most.
const SPAN_BYTES: u64 = 64 << 10;

/// A file that pieces are of.
#[derive(Debug)]
struct File {
    file: Arc<dyn RandomAccessFile>,
    path: PathBuf,
    grows: bool,
}

#[derive(Debug, Clone, Copy)]
struct Piece {
    file: u32,
    offset: u64,
    len: usize,
    /// Its position in the buffer.
    to: usize,
}

impl Piece {
    fn end(&self) -> u64 {
        self.offset.saturating_add(self.len as u64)
    }
}

/// See the module's text.
#[derive(Debug, Default)]
pub struct Pieces {
    files: Vec<File>,
    /// In the order of the requests.
    pieces: Vec<Piece>,
    /// Their numbers in the order of their places.
    order: Vec<u32>,
    /// Of those in `order`, the first that may have bytes to come.
    first: usize,
    buffer: Vec<u8>,
    /// Bytes of all pieces.
    bytes: usize,
    stream: Option<ReadStream>,
    /// The number of reads, and how many were taken.
    spans: usize,
    taken: usize,
}

impl Pieces {
    /// Bytes that a stream needs for this many reads of pieces in flight, in addition to the one that is being taken.
    pub fn memory_in_flight(reads: usize) -> usize {
        reads.saturating_add(1).saturating_mul(stream::slot_bytes(SPAN_BYTES as usize))
    }

    /// Memory that they have, without that of reads in flight.
    pub fn memory_bytes(&self) -> usize {
        let places = self.pieces.capacity() * size_of::<Piece>() + self.order.capacity() * size_of::<u32>();
        self.buffer.capacity() + places
    }

    /// Forgets everything but the buffer's memory, of which it keeps up to `keep` bytes.
    pub fn clear(&mut self, keep: usize) {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.truncate(keep);
        buffer.shrink_to(keep);
        let (mut pieces, mut order) = (std::mem::take(&mut self.pieces), std::mem::take(&mut self.order));
        pieces.clear();
        order.clear();
        *self = Self { buffer, pieces, order, ..Self::default() };
    }

    /// Adds a file; `path` is for error messages, `grows` as in [`ReadPlan::add_growing_file`]. Gives its number.
    pub fn add_file(&mut self, file: &Arc<dyn RandomAccessFile>, path: &Path, grows: bool) -> u32 {
        self.files.push(File { file: Arc::clone(file), path: path.to_path_buf(), grows });
        (self.files.len() - 1) as u32
    }

    /// Requests `len` bytes at `offset` of a file that was added. Returns the piece's number.
    pub fn add(&mut self, file: u32, offset: u64, len: usize) -> usize {
        debug_assert!((file as usize) < self.files.len());
        self.pieces.push(Piece { file, offset, len, to: self.bytes });
        self.bytes += len;
        self.pieces.len() - 1
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.pieces.len()
    }

    /// True without any.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Bytes of all of them.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Reads that they are read with, once they are begun.
    pub fn reads(&self) -> usize {
        self.spans
    }

    /// Of these, those that were not taken yet.
    pub fn reads_left(&self) -> usize {
        self.spans - self.taken
    }

    /// Begins to read all of them; once. Pieces with at most `gap_max` bytes between them are read together. Gives the
    /// bytes that will be read.
    ///
    /// # Errors
    /// If the pieces together have too many bytes.
    pub fn begin(&mut self, io: &BatchIo, options: ReadOptions, gap_max: u64) -> io::Result<u64> {
        let too_many = |_| io::Error::new(io::ErrorKind::InvalidInput, "too many pieces to be read at once");
        self.order.extend(0..u32::try_from(self.pieces.len()).map_err(too_many)?);
        let pieces = &self.pieces;
        let place = |n: &u32| pieces.get(*n as usize).map(|p| (p.file, p.offset));
        self.order.sort_unstable_by_key(place);
        let mut plan = ReadPlan::new();
        for File { file, path, grows } in &self.files {
            let file = Arc::clone(file);
            if *grows {
                plan.add_growing_file(file, path)
            } else {
                plan.add_file(file, path)
            };
        }
        let mut spans = Vec::new();
        let mut range: Option<(u32, u64, u64)> = None;
        let sorted = self.order.iter().filter_map(|n| pieces.get(*n as usize)).filter(|p| p.len > 0);
        for piece in sorted {
            match &mut range {
                Some((file, _, end)) if *file == piece.file && piece.offset <= end.saturating_add(gap_max) => {
                    *end = piece.end().max(*end);
                }
                _ => push(&mut spans, range.replace((piece.file, piece.offset, piece.end()))),
            }
        }
        push(&mut spans, range);
        if self.buffer.len() < self.bytes {
            self.buffer.resize(self.bytes, 0);
        }
        self.spans = spans.len();
        if spans.is_empty() {
            return Ok(0);
        }
        plan.add_run(spans);
        let bytes = plan.bytes();
        self.stream = Some(io.read(plan, options)?);
        Ok(bytes)
    }

    /// Waits for the next `reads` of those that are left, or for all where that is less.
    ///
    /// # Errors
    /// A read that failed; it names the file and the offset. Nothing more is read then.
    pub fn take(&mut self, reads: usize) -> io::Result<()> {
        for _ in 0..reads.min(self.reads_left()) {
            let next = self.stream.as_mut().map_or(Ok(None), |stream| stream.next(0));
            let window = next.and_then(|window| window.ok_or_else(|| io::Error::other("nothing is being read")));
            match window {
                Ok(window) => self.put(&window),
                Err(e) => {
                    self.stream = None;
                    return Err(e);
                }
            }
            self.taken += 1;
        }
        if self.reads_left() == 0 {
            self.stream = None;
        }
        Ok(())
    }

    /// Waits for all that are left.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub fn finish(&mut self) -> io::Result<()> {
        self.take(self.reads_left())
    }

    /// A piece's bytes. Bytes of reads that were not taken are undefined.
    pub fn piece(&self, number: usize) -> &[u8] {
        let piece = self.pieces.get(number);
        piece.and_then(|p| self.buffer.get(p.to..p.to + p.len)).unwrap_or(&[])
    }

    /// The same, to be changed in place.
    pub fn piece_mut(&mut self, number: usize) -> &mut [u8] {
        let piece = self.pieces.get(number).copied();
        piece.and_then(|p| self.buffer.get_mut(p.to..p.to + p.len)).unwrap_or(&mut [])
    }

    /// Copies the data in a window to its pieces.
    fn put(&mut self, window: &Window) {
        let Span { file, offset: begin, len } = window.span();
        let end = begin + u64::from(len);
        let Self { pieces, order, buffer, first, .. } = self;
        let mut all_before = true;
        for n in &order[*first..] {
            let piece = pieces[*n as usize];
            if (piece.file, piece.offset) >= (file, end) {
                break;
            }
            let (from, to) = (piece.offset.max(begin), piece.end().min(end));
            if piece.file == file && from < to {
                let at = piece.to + (from - piece.offset) as usize;
                let part = &window[(from - begin) as usize..(to - begin) as usize];
                buffer[at..at + part.len()].copy_from_slice(part);
            }
            // Pieces may lie within others, so those before an unfinished one are checked again.
            all_before &= (piece.file, piece.end()) <= (file, end);
            *first += usize::from(all_before);
        }
    }
}

/// Adds the spans of a range.
fn push(spans: &mut Vec<Span>, range: Option<(u32, u64, u64)>) {
    let Some((file, mut offset, end)) = range else { return };
    while offset < end {
        let len = (end - offset).min(SPAN_BYTES);
        spans.push(Span { file, offset, len: len as u32 });
        offset += len;
    }
}
