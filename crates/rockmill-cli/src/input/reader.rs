//! Bytes and lines of an input file.

use std::cell::Cell;
use std::io::{self, BufRead, BufReader, Read};
use std::rc::Rc;

/// Longest line, or quoted CSV row, in bytes. A file without line ends is probably not text, and must not be read into
/// memory as a whole.
const LINE_LEN_MAX: u64 = 1 << 30;

/// Bytes read from the file at once.
const BUFFER_LEN: usize = 256 << 10;

/// What some programs put before text.
pub const UTF8_BOM: &[u8] = b"\xef\xbb\xbf";

/// Counts the bytes taken from a file, and bounds those taken for one record.
pub struct Metered {
    inner: Box<dyn Read>,
    bytes: Rc<Cell<u64>>,
    /// The limit of the current record.
    limit: u64,
}

impl Metered {
    /// Reads `inner`, counting into `bytes`.
    pub fn new(inner: Box<dyn Read>, bytes: Rc<Cell<u64>>) -> Self {
        Self { inner, bytes, limit: LINE_LEN_MAX }
    }

    /// Begins a record, which may take the next [`LINE_LEN_MAX`] bytes.
    pub fn record_begins(&mut self) {
        self.limit = self.bytes.get().saturating_add(LINE_LEN_MAX);
    }
}

impl Read for Metered {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.bytes.get() >= self.limit {
            return Err(line_too_long());
        }
        let n = self.inner.read(buf)?;
        self.bytes.set(self.bytes.get() + n as u64);
        Ok(n)
    }
}

#[cold]
fn line_too_long() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the line is longer than 1 GiB: is this a text file?")
}

/// Reads lines.
pub struct LineReader {
    input: BufReader<Metered>,
    line: Vec<u8>,
    number: u64,
}

impl LineReader {
    /// Reads lines of `input`.
    pub fn new(input: Metered) -> Self {
        Self { input: BufReader::with_capacity(BUFFER_LEN, input), line: Vec::new(), number: 0 }
    }

    /// The next line, without its end; `None` at the end of the file.
    pub fn next(&mut self) -> io::Result<Option<&[u8]>> {
        self.line.clear();
        self.input.get_mut().record_begins();
        if self.input.read_until(b'\n', &mut self.line)? == 0 {
            return Ok(None);
        }
        self.number += 1;
        let mut line = self.line.strip_suffix(b"\n").unwrap_or(&self.line);
        if self.number == 1 {
            line = line.strip_prefix(UTF8_BOM).unwrap_or(line);
        }
        Ok(Some(line))
    }

    /// Number of the last line, from 1.
    pub fn number(&self) -> u64 {
        self.number
    }
}
