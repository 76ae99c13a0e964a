//! Any lines: the line number is the key and the line the value, or vice versa.

use std::io::{self, Write};

use super::reader::LineReader;
use super::{Record, Step};

/// What the key of a line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineKey {
    /// The line's number with 12 digits, so that keys sort in the order of lines.
    Number,
    /// The line.
    Line,
}

/// Parses lines.
pub struct LinesParser {
    lines: LineReader,
    key: LineKey,
    before: u64,
}

impl LinesParser {
    /// Numbers lines from `before` + 1, so that several files do not overwrite each other.
    pub fn new(lines: LineReader, key: LineKey, before: u64) -> Self {
        Self { lines, key, before }
    }

    /// See [`super::Source::line`].
    pub fn line(&self) -> u64 {
        self.lines.number()
    }

    /// See [`super::Source::next`].
    pub fn next(&mut self, record: &mut Record) -> io::Result<Step> {
        loop {
            let number = self.before + self.lines.number() + 1;
            let Some(line) = self.lines.next()? else { return Ok(Step::End) };
            match self.key {
                LineKey::Number => {
                    write!(record.key, "{number:012}")?;
                    record.value.extend_from_slice(line);
                }
                // An empty line is not an item.
                LineKey::Line if line.is_empty() => continue,
                LineKey::Line => {
                    record.key.extend_from_slice(line);
                    write!(record.value, "{number}")?;
                }
            }
            return Ok(Step::Record);
        }
    }
}
