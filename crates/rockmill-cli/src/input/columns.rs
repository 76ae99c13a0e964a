//! The choice of key and value columns, and the parser of tab-separated files.

use std::io;

use super::reader::LineReader;
use super::{Record, Step};
use crate::error::{CliError, Result};

/// A column as the user specifies it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Column {
    /// Counted from 0.
    Index(usize),
    /// To be found in the header.
    Name(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum ValueChoice {
    Others,
    Row,
    Column(Column),
}

/// Key and value columns as the user specified them.
#[derive(Debug, Clone)]
pub struct ColumnChoice {
    key: Column,
    value: ValueChoice,
}

/// How a row becomes a record, once the header is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValuePlan {
    /// All columns but the key.
    Others,
    /// All columns.
    Row,
    /// This one, counted from 0.
    Column(usize),
}

/// Columns by number.
#[derive(Debug, Clone, Copy)]
pub struct ColumnPlan {
    /// Counted from 0.
    pub key: usize,
    /// The value.
    pub value: ValuePlan,
}

fn column(flag: &str, text: &str, header: bool) -> Result<Column> {
    match text.parse::<usize>() {
        Ok(0) => Err(CliError::usage(format!("{flag} 0: columns count from 1"))),
        Ok(n) => Ok(Column::Index(n - 1)),
        Err(_) if header => Ok(Column::Name(text.to_owned())),
        Err(_) => Err(CliError::usage(format!("{flag} {text:?}: columns have names only with --header"))
            .hint("add --header if the first line has the names, or give the column's number")),
    }
}

impl ColumnChoice {
    /// Takes the flags.
    pub fn new(key: Option<&str>, value: Option<&str>, whole_row: bool, header: bool) -> Result<Self> {
        let key = key.map_or(Ok(Column::Index(0)), |t| column("--key-column", t, header))?;
        let value = match value {
            _ if whole_row => ValueChoice::Row,
            Some(t) => ValueChoice::Column(column("--value-column", t, header)?),
            None => ValueChoice::Others,
        };
        Ok(Self { key, value })
    }

    /// Columns by number, given the header's names. The error tells which name is missing.
    pub fn plan(&self, names: &[String]) -> std::result::Result<ColumnPlan, String> {
        let index = |c: &Column| match c {
            Column::Index(i) => Ok(*i),
            Column::Name(name) => names
                .iter()
                .position(|n| n == name)
                .ok_or_else(|| format!("the header has no column {name:?}; it has: {}", names.join(", "))),
        };
        let value = match &self.value {
            ValueChoice::Others => ValuePlan::Others,
            ValueChoice::Row => ValuePlan::Row,
            ValueChoice::Column(c) => ValuePlan::Column(index(c)?),
        };
        Ok(ColumnPlan { key: index(&self.key)?, value })
    }
}

/// Why a row lacks a column.
pub fn too_few(columns: usize, wanted: usize) -> Step {
    let s = if columns == 1 { "" } else { "s" };
    Step::Bad(format!("the row has {columns} column{s}, column {} is wanted", wanted + 1))
}

/// Parses tab-separated rows. There is no quoting: a tab always separates.
pub struct TsvParser {
    lines: LineReader,
    choice: ColumnChoice,
    header: bool,
    plan: Option<ColumnPlan>,
    failed: bool,
}

impl TsvParser {
    /// Parses `lines`.
    pub fn new(lines: LineReader, choice: ColumnChoice, header: bool) -> Self {
        Self { lines, choice, header, plan: None, failed: false }
    }

    /// See [`super::Source::line`].
    pub fn line(&self) -> u64 {
        self.lines.number()
    }

    /// See [`super::Source::next`].
    pub fn next(&mut self, record: &mut Record) -> io::Result<Step> {
        if self.failed {
            return Ok(Step::End);
        }
        loop {
            let Some(line) = self.lines.next()? else { return Ok(Step::End) };
            if line.is_empty() {
                continue;
            }
            if let Some(plan) = self.plan {
                return Ok(split(line, plan, record));
            }
            let names: Vec<String> = if self.header {
                let line = line.strip_suffix(b"\r").unwrap_or(line);
                line.split(|&b| b == b'\t').map(|n| String::from_utf8_lossy(n).into_owned()).collect()
            } else {
                Vec::new()
            };
            match self.choice.plan(&names) {
                Ok(plan) => self.plan = Some(plan),
                Err(why) => {
                    // Without its columns, the whole file is unusable.
                    self.failed = true;
                    return Ok(Step::Bad(why));
                }
            }
            if let (false, Some(plan)) = (self.header, self.plan) {
                return Ok(split(line, plan, record));
            }
        }
    }
}

fn split(line: &[u8], plan: ColumnPlan, record: &mut Record) -> Step {
    if plan.key == 0 && plan.value == ValuePlan::Others {
        // The common case: everything before the first tab, and everything after it.
        let Some(tab) = line.iter().position(|&b| b == b'\t') else {
            return Step::Bad("the line has no tab between key and value".into());
        };
        record.key.extend_from_slice(&line[..tab]);
        record.value.extend_from_slice(&line[tab + 1..]);
        return Step::Record;
    }
    let mut columns = 0;
    let (mut key, mut value) = (false, plan.value == ValuePlan::Others);
    for (i, text) in line.split(|&b| b == b'\t').enumerate() {
        columns = i + 1;
        if i == plan.key {
            record.key.extend_from_slice(text);
            key = true;
        }
        match plan.value {
            ValuePlan::Others if i != plan.key => {
                if i > usize::from(plan.key == 0) {
                    record.value.push(b'\t');
                }
                record.value.extend_from_slice(text);
            }
            ValuePlan::Column(c) if i == c => {
                record.value.extend_from_slice(text);
                value = true;
            }
            _ => {}
        }
    }
    if plan.value == ValuePlan::Row {
        record.value.extend_from_slice(line);
        value = true;
    }
    match (key, value, plan.value) {
        (true, true, _) => Step::Record,
        (true, false, ValuePlan::Column(c)) => too_few(columns, c),
        _ => too_few(columns, plan.key),
    }
}
