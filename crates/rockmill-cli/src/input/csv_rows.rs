//! Comma-separated files, quoted as RFC 4180 has it.

use std::io;

use csv::{ByteRecord, ReaderBuilder, WriterBuilder};

use super::columns::{ColumnChoice, ColumnPlan, ValuePlan, too_few};
use super::reader::Metered;
use super::{Record, Step};

/// Parses rows.
pub struct CsvParser {
    reader: csv::Reader<Metered>,
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
        // Rows of different lengths are judged by the columns that are wanted, not refused as such.
        let reader = ReaderBuilder::new().has_headers(false).flexible(true).from_reader(input);
        Self { reader, row: ByteRecord::new(), choice, header, plan: None, failed: false, line: 0 }
    }

    /// See [`super::Source::line`].
    pub fn line(&self) -> u64 {
        self.line
    }

    /// Reads a row; false at the end.
    fn read_row(&mut self) -> io::Result<bool> {
        self.reader.get_mut().record_begins();
        let first = self.line == 0;
        let any = self.reader.read_byte_record(&mut self.row).map_err(io::Error::from)?;
        if any {
            self.line = self.row.position().map_or(self.line, csv::Position::line);
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
            // One other column is the value itself; several are a row again, quoted where they must be.
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
