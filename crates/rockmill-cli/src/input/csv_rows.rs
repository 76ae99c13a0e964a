//! Comma-separated files, quoted as RFC 4180 has it.

use std::io::{self, Read};

use csv::{ByteRecord, ReaderBuilder, WriterBuilder};

use super::columns::{ColumnChoice, ColumnPlan, ValuePlan, too_few};
use super::reader::{Metered, UTF8_BOM};
use super::{Record, Step};

/// Follows the quotes of a file while it is read: the `csv` crate treats an unclosed quote as a field that extends to
/// the end of the file.
struct Quotes {
    input: Metered,
    state: State,
    /// The line that is being read, from 1.
    line: u64,
    /// The line on which the last quote opened.
    opened: u64,
    at_end: bool,
}

/// The reader's position in a row.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// This many bytes of a byte order mark were read.
    Begin(usize),
    /// At the beginning of a field: a quote here opens a quoted field.
    FieldStart,
    Plain,
    Quoted,
    /// After a quote within a quoted field: it ends the field, unless another quote follows.
    Quote,
}

impl Quotes {
    fn new(input: Metered) -> Self {
        Self { input, state: State::Begin(0), line: 1, opened: 0, at_end: false }
    }

    fn follow(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.state = match (self.state, byte) {
                (State::Begin(n), _) if UTF8_BOM.get(n) == Some(&byte) => State::Begin(n + 1),
                (State::Begin(_) | State::FieldStart, b'"') => {
                    self.opened = self.line;
                    State::Quoted
                }
                (State::Quoted, b'"') => State::Quote,
                (State::Quoted, _) | (State::Quote, b'"') => State::Quoted,
                (_, b',' | b'\n' | b'\r') => State::FieldStart,
                _ => State::Plain,
            };
            self.line += u64::from(byte == b'\n');
        }
    }

    /// The line of the unclosed quote, at the end of the file.
    fn open_at_end(&self) -> Option<u64> {
        (self.at_end && self.state == State::Quoted).then_some(self.opened)
    }
}

impl Read for Quotes {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.input.read(buf)?;
        self.at_end = n == 0 && !buf.is_empty();
        self.follow(&buf[..n]);
        Ok(n)
    }
}

/// Parses rows.
pub struct CsvParser {
    reader: csv::Reader<Quotes>,
    row: ByteRecord,
    choice: ColumnChoice,
    header: bool,
    plan: Option<ColumnPlan>,
    failed: bool,
    line: u64,
}

impl CsvParser {
    /// Parses `input`.
    pub fn new(input: Metered, choice: ColumnChoice, header: bool) -> Self {
        // Rows may have different lengths; only missing key or value columns are errors.
        let reader = ReaderBuilder::new().has_headers(false).flexible(true).from_reader(Quotes::new(input));
        Self { reader, row: ByteRecord::new(), choice, header, plan: None, failed: false, line: 0 }
    }

    /// See [`super::Source::line`].
    pub fn line(&self) -> u64 {
        self.line
    }

    /// Reads a row; false at the end.
    fn read_row(&mut self) -> io::Result<bool> {
        self.reader.get_mut().input.record_begins();
        let first = self.line == 0;
        let any = self.reader.read_byte_record(&mut self.row).map_err(io::Error::from)?;
        if any {
            self.line = self.row.position().map_or(self.line, csv::Position::line);
            if let Some(line) = self.reader.get_ref().open_at_end() {
                self.line = line;
                let what =
                    "the quote that opens a field on this line is never closed: all that follows would be its text";
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
        }
        if first && let Some(name) = self.row.get(0).and_then(|n| n.strip_prefix(b"\xef\xbb\xbf")) {
            let columns: Vec<Vec<u8>> =
                std::iter::once(name).chain(self.row.iter().skip(1)).map(<[u8]>::to_vec).collect();
            self.row = ByteRecord::from(columns);
        }
        Ok(any)
    }

    /// See [`super::Source::next`].
    pub fn next(&mut self, record: &mut Record) -> io::Result<Step> {
        if self.failed || !self.read_row()? {
            return Ok(Step::End);
        }
        let plan = match self.plan {
            Some(plan) => plan,
            None => {
                let name = |n: &[u8]| String::from_utf8_lossy(n).into_owned();
                let names: Vec<String> = if self.header { self.row.iter().map(name).collect() } else { Vec::new() };
                let plan = match self.choice.plan(&names) {
                    Ok(plan) => plan,
                    Err(why) => {
                        self.failed = true;
                        return Ok(Step::Bad(why));
                    }
                };
                self.plan = Some(plan);
                if self.header && !self.read_row()? {
                    return Ok(Step::End);
                }
                plan
            }
        };
        let Some(key) = self.row.get(plan.key) else { return Ok(too_few(self.row.len(), plan.key)) };
        record.key.extend_from_slice(key);
        match plan.value {
            ValuePlan::Column(c) => match self.row.get(c) {
                Some(value) => record.value.extend_from_slice(value),
                None => return Ok(too_few(self.row.len(), c)),
            },
            // A single other column is the value itself; several are written as a row again, quoted where necessary.
            ValuePlan::Others if self.row.len() == 2 => {
                record.value.extend_from_slice(self.row.get(1 - plan.key).unwrap_or_default());
            }
            ValuePlan::Others if self.row.len() == 1 => {}
            ValuePlan::Others => {
                let others = self.row.iter().enumerate().filter(|(i, _)| *i != plan.key).map(|(_, text)| text);
                write_row(others, &mut record.value)?;
            }
            ValuePlan::Row => write_row(self.row.iter(), &mut record.value)?,
        }
        Ok(Step::Record)
    }
}

/// Appends a row without a line end.
fn write_row<'a>(columns: impl Iterator<Item = &'a [u8]>, out: &mut Vec<u8>) -> io::Result<()> {
    let mut writer = WriterBuilder::new().buffer_capacity(1 << 10).from_writer(&mut *out);
    writer.write_record(columns).map_err(io::Error::from)?;
    writer.flush()?;
    drop(writer);
    if out.last() == Some(&b'\n') {
        out.pop();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io::Cursor;
    use std::rc::Rc;

    use super::*;

    /// The rows that the `csv` crate reads, and the line with an open quote that [`Quotes`] saw meanwhile.
    fn read(text: &str) -> (Vec<ByteRecord>, Option<u64>) {
        let input = Metered::new(Box::new(Cursor::new(text.as_bytes().to_vec())), Rc::new(Cell::new(0)));
        let mut reader =
            ReaderBuilder::new().has_headers(false).flexible(true).buffer_capacity(3).from_reader(Quotes::new(input));
        let rows = reader.byte_records().map(|row| row.expect("a row")).collect();
        (rows, reader.get_ref().open_at_end())
    }

    /// The crate itself shows whether a quote is open at the end: one more line end is then text, not the end of a row.
    #[test]
    fn quotes_are_followed_as_the_csv_crate_reads_them() {
        let seed = 20_261_122;
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut open, mut closed) = (0, 0);
        for round in 0..20_000 {
            let mut text = if rng.u8(..8) == 0 { "\u{feff}".to_owned() } else { String::new() };
            (0..rng.usize(..14))
                .for_each(|_| text.push(*rng.choice(&['"', '"', ',', '\n', '\r', 'a', ' ']).unwrap_or(&'a')));
            let (rows, line) = read(&text);
            let (longer, _) = read(&format!("{text}\n"));
            assert_eq!(line.is_some(), rows != longer, "seed {seed}, round {round}: {text:?}");
            let lines = text.matches('\n').count() as u64 + 1;
            assert!(line.is_none_or(|line| (1..=lines).contains(&line)), "{text:?}: {line:?}");
            *(if line.is_some() { &mut open } else { &mut closed }) += 1;
        }
        assert!(open > 1000 && closed > 1000, "{open} {closed}");
    }
}
