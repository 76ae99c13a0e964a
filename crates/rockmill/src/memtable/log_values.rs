//! Values that stay in the log: an *index table* is a memtable that keeps where a value is instead of the value
//! (DecouKV, section 3.3).
//!
//! In place of an entry's value it has a *slot*:
//!
//! ```text
//! 0 | the value                                                  inline
//! 1 | varint64 log | varint64 offset | varint32 length | fixed32 CRC-32C of the value     in the log
//! ```
//!
//! `offset` is that of the value's first byte in the log's file; headers of the log's blocks may be between it and the
//! last byte ([`RecordPlace`]). The checksum is kept in memory because the log's own checksums cover whole fragments:
//! with it, one value can be checked without reading its neighbours.
//!
//! An index table keeps the files of its values open. So they stay readable as long as anything holds the table, even
//! after the log was deleted after a flush. This requires that a log's file is never overwritten: such logs are not
//! recycled.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use rockmill_format::batch::BatchRep;
use rockmill_format::checksum::crc32c;
use rockmill_format::coding::{MAX_VARINT32_LEN, MAX_VARINT64_LEN, fixed32_at, varint32, varint64};
use rockmill_format::key::ParsedInternalKey;
use rockmill_format::log::place::RecordPlace;
use rockmill_io::RandomAccessFile;
use rockmill_io::ring::Pieces;

use crate::error::{Error, Result};
use crate::iter::get::{GetContext, LateValue, LazyValue, ValueSource, WantedBlock};
use crate::sync::RwLock;

/// The slot's value follows.
const INLINE: u8 = 0;
/// The slot says where the value is.
const IN_LOG: u8 = 1;
/// The most bytes of an address.
const ADDRESS_MAX: usize = 1 + 2 * MAX_VARINT64_LEN + MAX_VARINT32_LEN + 4;

/// The file of a log, open for reading.
pub(crate) struct LogFile {
    number: u64,
    path: PathBuf,
    file: Arc<dyn RandomAccessFile>,
    recyclable: bool,
}

impl LogFile {
    /// The file of log `number`; `recyclable`: its records have the long headers.
    pub fn new(number: u64, path: PathBuf, file: Arc<dyn RandomAccessFile>, recyclable: bool) -> Self {
        Self { number, path, file, recyclable }
    }

    /// Its number.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Adds the file to those that are read; returns its number among them.
    pub fn add_to(&self, pieces: &mut Pieces) -> u32 {
        pieces.add_file(&self.file, &self.path, true)
    }

    /// Reads a value and checks it.
    fn read(&self, at: Address) -> Result<Vec<u8>> {
        let mut bytes = vec![0; span(self, at) as usize];
        self.read_exact(at.offset, &mut bytes)?;
        let len = join(self, at, &mut bytes)?;
        bytes.truncate(len);
        Ok(bytes)
    }

    /// Fills `buf` from `offset`.
    fn read_exact(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let n = self.file.read_at(offset, buf);
        let n = n.map_err(|e| Error::io(format_args!("cannot read {} at {offset}", self.path.display()), &e))?;
        if n < buf.len() {
            let what = format!("{}: ends at {}, inside of a value at {offset}", self.path.display(), offset + n as u64);
            return Err(Error::corruption(what));
        }
        Ok(())
    }
}

impl fmt::Debug for LogFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogFile").field("path", &self.path).finish_non_exhaustive()
    }
}

/// Where the batch that is being inserted is in the log.
#[derive(Debug, Clone)]
pub(crate) struct LoggedBatch {
    /// The log.
    pub log: Arc<LogFile>,
    /// The record that the batch is in.
    pub record: RecordPlace,
    /// Where in the record's payload the batch's records begin, in bytes.
    pub base: u64,
}

impl LoggedBatch {
    /// Where a value of the batch is; nowhere if it has no bytes.
    pub fn value(&self, batch: &BatchRep, value: &[u8]) -> Option<LoggedValue<'_>> {
        // An empty slice need not point into the batch.
        let at = (!value.is_empty()).then(|| self.base + batch.offset_in_records(value) as u64)?;
        Some(LoggedValue { log: &self.log, offset: self.record.offset_of(at) })
    }
}

/// Where a value that is being inserted is in the log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LoggedValue<'a> {
    pub log: &'a Arc<LogFile>,
    /// Offset of its first byte in the file.
    pub offset: u64,
}

/// Where a value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Address {
    pub log: u64,
    /// Offset of its first byte in the file.
    pub offset: u64,
    /// Length of the value, in bytes.
    pub len: u32,
    crc: u32,
}

/// What stands in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slot<'a> {
    Inline(&'a [u8]),
    InLog(Address),
}

impl<'a> Slot<'a> {
    /// Reads a slot that this module wrote.
    #[inline]
    pub fn read(slot: &'a [u8]) -> Self {
        match slot.split_first() {
            Some((&IN_LOG, address)) => Self::InLog(Address::read(address).expect("a slot that was written whole")),
            Some((_, value)) => Self::Inline(value),
            None => Self::Inline(&[]),
        }
    }
}

impl Address {
    fn read(bytes: &[u8]) -> Option<Self> {
        let (log, n) = varint64(bytes)?;
        let bytes = bytes.get(n..)?;
        let (offset, n) = varint64(bytes)?;
        let bytes = bytes.get(n..)?;
        let (len, n) = varint32(bytes)?;
        Some(Self { log, offset, len, crc: fixed32_at(bytes, n)? })
    }
}

/// A slot, as it is made. Addresses are made without an allocation.
pub(crate) struct SlotBuffer {
    bytes: [u8; ADDRESS_MAX],
    len: usize,
    /// The whole slot, if it is longer.
    long: Vec<u8>,
}

impl SlotBuffer {
    /// The slot.
    pub fn as_bytes(&self) -> &[u8] {
        if self.long.is_empty() { &self.bytes[..self.len] } else { &self.long }
    }

    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    fn varint(&mut self, mut v: u64) {
        while v >= 0x80 {
            self.push(&[v as u8 | 0x80]);
            v >>= 7;
        }
        self.push(&[v as u8]);
    }
}

/// The logs that the values of an index table are in.
#[derive(Debug)]
pub(crate) struct LogValues {
    /// Values of up to this many bytes are kept inline.
    inline_max: usize,
    /// There are few, since a new log is begun when an index table is full.
    files: RwLock<Vec<Arc<LogFile>>>,
}

impl LogValues {
    /// For an empty index table, which keeps values of up to `inline_max` bytes inline.
    pub fn new(inline_max: usize) -> Self {
        Self { inline_max, files: RwLock::default() }
    }

    /// For an index table that has the entries of several: the logs of all of them. `None` without any.
    pub fn of_all<'a>(all: impl Iterator<Item = &'a Self>) -> Option<Self> {
        all.fold(None, |sum: Option<Self>, one| {
            let sum = sum.unwrap_or_else(|| Self::new(one.inline_max));
            one.files.read().iter().for_each(|file| sum.hold(file));
            Some(sum)
        })
    }

    /// The slot of a value, which is in the log at `at`, or in none.
    pub fn slot(&self, value: &[u8], at: Option<LoggedValue<'_>>) -> SlotBuffer {
        let mut slot = SlotBuffer { bytes: [0; ADDRESS_MAX], len: 0, long: Vec::new() };
        match at {
            Some(at) if value.len() > self.inline_max => {
                self.hold(at.log);
                slot.push(&[IN_LOG]);
                slot.varint(at.log.number);
                slot.varint(at.offset);
                slot.varint(value.len() as u64);
                slot.push(&crc32c(value).to_le_bytes());
            }
            _ if value.len() < ADDRESS_MAX => {
                slot.push(&[INLINE]);
                slot.push(value);
            }
            _ => slot.long = [&[INLINE], value].concat(),
        }
        slot
    }

    /// Keeps a log's file open.
    fn hold(&self, log: &Arc<LogFile>) {
        let held = |files: &[Arc<LogFile>]| files.iter().rev().any(|f| f.number == log.number);
        if held(&self.files.read()) {
            return;
        }
        let mut files = self.files.write();
        if !held(&files) {
            files.push(Arc::clone(log));
        }
    }

    /// The log of an address.
    pub fn file(&self, log: u64) -> Result<Arc<LogFile>> {
        let files = self.files.read();
        let file = files.iter().find(|f| f.number == log);
        file.cloned().ok_or_else(|| Error::corruption(format!("an index table lacks log {log:06}, where a value is")))
    }

    /// The numbers of the logs.
    #[cfg(test)]
    pub fn numbers(&self) -> Vec<u64> {
        self.files.read().iter().map(|f| f.number).collect()
    }

    /// Reads a value from its log, and checks it.
    pub fn read(&self, at: Address) -> Result<Vec<u8>> {
        self.file(at.log)?.read(at)
    }
}

/// A value in a log, for a lookup.
pub(super) struct ValueInLog<'a> {
    values: &'a LogValues,
    at: Address,
}

impl LazyValue for ValueInLog<'_> {
    fn read(&self) -> Result<Vec<u8>> {
        self.values.read(self.at)
    }

    fn later(&self) -> Result<Box<dyn LateValue>> {
        Ok(Box::new(LateLogValue { log: self.values.file(self.at.log)?, at: self.at }))
    }
}

/// A value that is read together with others; it keeps its log open.
struct LateLogValue {
    log: Arc<LogFile>,
    at: Address,
}

impl LateValue for LateLogValue {
    fn wanted(&self) -> WantedBlock {
        let (file, path) = (Arc::clone(&self.log.file), self.log.path.clone());
        WantedBlock { file, path, offset: self.at.offset, len: span(&self.log, self.at) as usize, grows: true }
    }

    fn join(&self, mut bytes: Vec<u8>) -> Result<Vec<u8>> {
        let len = join(&self.log, self.at, &mut bytes)?;
        bytes.truncate(len);
        Ok(bytes)
    }

    fn read(&self) -> Result<Vec<u8>> {
        self.log.read(self.at)
    }
}

impl LogValues {
    /// Offers an entry with this slot to a lookup; true when older entries are wanted.
    #[inline]
    pub fn offer(&self, key: ParsedInternalKey<'_>, slot: &[u8], ctx: &mut GetContext<'_>) -> bool {
        match Slot::read(slot) {
            Slot::Inline(value) => ctx.offer(key, ValueSource::Bytes(value)),
            Slot::InLog(at) => ctx.offer(key, ValueSource::Lazy(&ValueInLog { values: self, at })),
        }
    }
}

fn place(log: &LogFile) -> RecordPlace {
    RecordPlace { start: 0, recyclable: log.recyclable }
}

/// Bytes of the file that a value takes, headers included.
pub(crate) fn span(log: &LogFile, at: Address) -> u64 {
    place(log).span(at.offset, at.len.into())
}

/// Removes headers from the bytes read for a value, and checks the value; returns its length.
pub(crate) fn join(log: &LogFile, at: Address, bytes: &mut [u8]) -> Result<usize> {
    let len = place(log).join(at.offset, bytes);
    if len != at.len as usize || crc32c(&bytes[..len]) != at.crc {
        return Err(Error::corruption(format!(
            "{}: the value of {} bytes at {} is not what was written",
            log.path.display(),
            at.len,
            at.offset
        )));
    }
    Ok(len)
}
