//! The result of a runner as plain data: the tables that it wrote, with everything that the commit needs to know about
//! them, and its counters; or the error that ended the job, which then leaves nothing behind.
//!
//! docs/job-spec.md has the encoding byte by byte.

use rockmill_format::edit::FileEntry;
use rockmill_format::properties::TableProperties;

use super::wire::{self, Coded, Coder, Item, Message, TEXT_BYTES_MAX};
use super::{JobOutput, JobStats};
use crate::error::{Error, ErrorKind, Result};

/// How a job ended.
#[derive(Debug, Clone, PartialEq)]
pub struct JobResult {
    /// The job's number, as in its spec.
    pub job: u64,
    /// The output of the job.
    pub outcome: Result<JobOutput>,
}

/// Tags of fields, in their order in the message.
pub(super) mod tag {
    pub const JOB: u32 = 1;
    pub const ERROR: u32 = 2;
    pub const STATS: u32 = 3;
    /// One for each table.
    pub const TABLE: u32 = 4;
}

impl JobResult {
    /// The result as bytes. An error message that is too long is cut off at the end.
    ///
    /// # Errors
    /// If the result exceeds the bounds of the encoding.
    pub fn encode(&self) -> Result<Vec<u8>> {
        wire::encode(self)
    }

    /// The result that these bytes are.
    ///
    /// # Errors
    /// `Corruption` that says what is wrong and at which offset; `NotSupported` for what a newer version wrote.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        wire::decode(bytes)
    }
}

impl Message for JobResult {
    const NAME: &'static str = "job result";
    const MAGIC: &'static [u8; 8] = b"RMILLRES";
    const VERSION: u32 = 1;
    const TAG_MAX: u32 = tag::TABLE;
    const REQUIRED: &'static [u32] = &[tag::JOB];
    const ONE_OF: &'static [u32] = &[tag::ERROR, tag::STATS];
    const LISTS: &'static [u32] = &[tag::TABLE];

    fn blank() -> Self {
        Self { job: 0, outcome: Ok(JobOutput::default()) }
    }

    fn field<C: Coder>(&mut self, tag: u32, c: &mut C) -> Coded {
        match (tag, &mut self.outcome) {
            (tag::JOB, _) => c.field(true, |c| c.number("job number", &mut self.job)),
            (tag::ERROR, outcome) => c.field(outcome.is_err(), |c| error(c, outcome)),
            (tag::STATS, Ok(output)) => c.field(true, |c| stats(c, &mut output.stats)),
            (tag::TABLE, Ok(JobOutput { files, properties, .. })) => {
                let mut tables: Vec<_> = match C::READS {
                    true => Vec::new(),
                    false => files.drain(..).zip(properties.drain(..)).collect(),
                };
                c.each(&mut tables, table)?;
                files.extend(tables.iter().map(|(file, _)| file.clone()));
                properties.extend(tables.into_iter().map(|(_, properties)| properties));
                Ok(())
            }
            (_, Ok(_)) => Ok(()),
            (_, Err(_)) => c.check(!C::READS, || "more than the error with which the job ended".to_owned()),
        }
    }

    fn check(&self) -> std::result::Result<(), String> {
        match &self.outcome {
            Ok(output) if output.files.len() != output.properties.len() => {
                Err("tables without their properties".to_owned())
            }
            _ => Ok(()),
        }
    }
}

/// By number. New ones are added after these.
const KINDS: [ErrorKind; 16] = [
    ErrorKind::Unknown,
    ErrorKind::NotFound,
    ErrorKind::Corruption,
    ErrorKind::NotSupported,
    ErrorKind::InvalidArgument,
    ErrorKind::IOError,
    ErrorKind::MergeInProgress,
    ErrorKind::Incomplete,
    ErrorKind::ShutdownInProgress,
    ErrorKind::TimedOut,
    ErrorKind::Aborted,
    ErrorKind::Busy,
    ErrorKind::Expired,
    ErrorKind::TryAgain,
    ErrorKind::CompactionTooLarge,
    ErrorKind::ColumnFamilyDropped,
];

fn error<C: Coder>(c: &mut C, outcome: &mut Result<JobOutput>) -> Coded {
    let known = outcome.as_ref().err();
    let (mut kind, mut message) =
        known.map_or((ErrorKind::Unknown, String::new()), |e| (e.kind(), e.message().to_owned()));
    message.truncate(message.floor_char_boundary(TEXT_BYTES_MAX));
    let mut number = known.and_then(Error::os_error).and_then(|n| u32::try_from(n).ok()).unwrap_or(0);
    c.one_of("kind of error", &mut kind, &KINDS)?;
    c.number32("number of the system's error", &mut number)?;
    c.text("error's message", &mut message)?;
    let error = Error::new(kind, message);
    // What to do about a full disk depends on it.
    *outcome = Err(match i32::try_from(number) {
        Ok(number) if number > 0 => error.with_os_error(number),
        _ => error,
    });
    Ok(())
}

fn stats<C: Coder>(c: &mut C, s: &mut JobStats) -> Coded {
    let JobStats { input_bytes, output_bytes, input_records, output_records, wall_micros, cpu_micros, .. } = s;
    for n in [input_bytes, output_bytes, input_records, output_records, wall_micros, cpu_micros] {
        c.number("statistics", n)?;
    }
    for n in [&mut s.subcompactions, &mut s.files_covered, &mut s.bytes_covered] {
        c.number("statistics", n)?;
    }
    s.dropped.counts().into_iter().try_for_each(|n| c.number("statistics", n))
}

fn table<C: Coder>(c: &mut C, (file, properties): &mut (FileEntry, TableProperties)) -> Coded {
    let mut files = match C::READS {
        true => Vec::new(),
        false => vec![std::mem::take(file)],
    };
    c.files("the table", 0, &mut files)?;
    c.check(!C::READS || files.len() == 1, || format!("{} files where one table is", files.len()))?;
    *file = files.pop().unwrap_or_default();
    c.take_room("the table's properties", Item::PROPERTIES, 1)?;
    let mut block = if C::READS { Vec::new() } else { properties.encode_block() };
    c.bytes("the table's properties", &mut block)?;
    if C::READS {
        let start = c.offset() - block.len() as u64;
        *properties = TableProperties::decode_block(&block).map_err(|e| e.at(start))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
