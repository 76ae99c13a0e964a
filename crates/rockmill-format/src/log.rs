//! The record log that WAL and MANIFEST share (RocksDB `db/log_format.h`): 32 KiB blocks, records split into
//! fragments, each with a masked CRC-32C; the recyclable form carries the log's number.
//!
//! ```text
//! legacy:      u32 masked crc | u16 length | u8 type |                  payload      crc over type, payload
//! recyclable:  u32 masked crc | u16 length | u8 type | u32 log number | payload      crc over type, number, payload
//! ```
//!
//! How reading goes:
//! 1. Blocks are read whole. A header never crosses a block's end: fewer bytes than a header are padding.
//! 2. Fragments are checked one by one and joined (full, or first, middles, last).
//! 3. Everything that is not a good fragment becomes a [`LogEvent::Damage`] with its [`DamageKind`]; reading can
//!    continue after it. [`RecoveryMode::action`] decides what the event means, so the reader itself does not depend on
//!    the mode.
//!
//! Invariant: a record is delivered only if all its fragments stood in order with right checksums and this log's
//! number.

pub mod place;
pub mod scan;

use crate::checksum::{crc32c, crc32c_extend, mask, unmask};
use crate::coding::fixed32_at;
use crate::error::FormatError;

/// Block size, in bytes.
pub const BLOCK_SIZE: usize = 32 * 1024;
/// Header of a fragment, in bytes.
pub const HEADER_LEN: usize = 7;
/// Header of a recyclable fragment, in bytes.
pub const RECYCLABLE_HEADER_LEN: usize = 11;

/// Fragment types on disk (RocksDB `log::RecordType`).
mod kind {
    /// Space allocated ahead and never written.
    pub const ZERO: u8 = 0;
    pub const FULL: u8 = 1;
    pub const FIRST: u8 = 2;
    pub const MIDDLE: u8 = 3;
    pub const LAST: u8 = 4;
    /// Added to the four above in recyclable logs.
    pub const RECYCLABLE_STEP: u8 = 4;
    pub const RECYCLABLE_FULL: u8 = 5;
    pub const RECYCLABLE_LAST: u8 = 8;
    pub const SET_COMPRESSION: u8 = 9;
    /// From here on the lowest bit says whether the header is the recyclable one.
    pub const TIMESTAMP_SIZE: u8 = 10;
    pub const RECYCLABLE_TIMESTAMP_SIZE: u8 = 11;
    pub const PREDECESSOR_INFO: u8 = 130;
    pub const RECYCLABLE_PREDECESSOR_INFO: u8 = 131;
    /// Types with this bit may be skipped by readers that do not know them.
    pub const SAFE_TO_IGNORE: u8 = 0x80;
}

/// Turns records into log bytes. It does no I/O: each call appends to a buffer that the caller writes out.
#[derive(Debug)]
pub struct LogEncoder {
    /// Low half of the log's number, for recyclable headers.
    log_number: Option<u32>,
    /// Where in its block the next byte lands; at most [`BLOCK_SIZE`].
    block_offset: usize,
    /// CRC over the type (and the log number) of full, first, middle and last, so that each fragment starts there.
    header_crc: [u32; 4],
}

impl LogEncoder {
    /// An encoder at `block_offset` (file length modulo the block size) of log `log_number`; `recyclable` writes
    /// the long headers.
    pub fn new(log_number: u64, recyclable: bool, block_offset: usize) -> Self {
        // RocksDB keeps the low 32 bits only.
        let log_number = recyclable.then_some(log_number as u32);
        let header_crc = [kind::FULL, kind::FIRST, kind::MIDDLE, kind::LAST].map(|t| match log_number {
            None => crc32c(&[t]),
            Some(n) => crc32c_extend(crc32c(&[t + kind::RECYCLABLE_STEP]), &n.to_le_bytes()),
        });
        Self { log_number, block_offset: block_offset % BLOCK_SIZE, header_crc }
    }

    /// Where in its block the next record starts, in bytes.
    pub fn block_offset(&self) -> usize {
        self.block_offset
    }

    /// The records have the long headers of files that may be used again.
    pub fn is_recyclable(&self) -> bool {
        self.log_number.is_some()
    }

    /// Appends `record` to `out`, fragmented.
    pub fn add_record(&mut self, record: &[u8], out: &mut Vec<u8>) {
        let header_len = if self.log_number.is_some() { RECYCLABLE_HEADER_LEN } else { HEADER_LEN };
        // Room for one more fragment than blocks touched, and for the padding.
        out.reserve(record.len() + (record.len() / (BLOCK_SIZE - header_len) + 3) * header_len);
        let mut rest = record;
        let mut first = true;
        loop {
            let left_in_block = BLOCK_SIZE - self.block_offset;
            if left_in_block < header_len {
                out.resize(out.len() + left_in_block, 0);
                self.block_offset = 0;
            }
            let room = BLOCK_SIZE - self.block_offset - header_len;
            let (fragment, after) = rest.split_at(rest.len().min(room));
            let t = match (first, after.is_empty()) {
                (true, true) => kind::FULL,
                (true, false) => kind::FIRST,
                (false, false) => kind::MIDDLE,
                (false, true) => kind::LAST,
            };
            self.emit(t, fragment, out);
            rest = after;
            first = false;
            // An empty record still has one (empty, full) fragment.
            if rest.is_empty() {
                return;
            }
        }
    }

    fn emit(&mut self, t: u8, fragment: &[u8], out: &mut Vec<u8>) {
        let crc = mask(crc32c_extend(self.header_crc[usize::from(t - 1)], fragment));
        let len = (fragment.len() as u16).to_le_bytes();
        let c = crc.to_le_bytes();
        match self.log_number {
            None => {
                out.extend_from_slice(&[c[0], c[1], c[2], c[3], len[0], len[1], t]);
                self.block_offset += HEADER_LEN;
            }
            Some(n) => {
                let n = n.to_le_bytes();
                let t = t + kind::RECYCLABLE_STEP;
                out.extend_from_slice(&[c[0], c[1], c[2], c[3], len[0], len[1], t, n[0], n[1], n[2], n[3]]);
                self.block_offset += RECYCLABLE_HEADER_LEN;
            }
        }
        out.extend_from_slice(fragment);
        self.block_offset += fragment.len();
    }
}

/// How much damage a log may have and still be read (RocksDB's `WALRecoveryMode`). These four are final, so code that
/// matches a mode has to decide about each of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RecoveryMode {
    /// A cut-off last record is ignored (it is what a crash leaves); all other damage is an error. MANIFESTs are
    /// read in this mode too.
    TolerateCorruptedTailRecords,
    /// Any damage is an error.
    AbsoluteConsistency,
    /// Reading stops at the first damage; what came before is a consistent point in time. The default.
    #[default]
    PointInTime,
    /// Damaged records are left out, everything readable is kept.
    SkipAnyCorruptedRecords,
}

/// What recovery does next; [`RecoveryMode::action`] decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecoveryAction {
    /// Apply the record that was read.
    Replay,
    /// Pass over this and read on in the same log.
    Skip,
    /// Read no more of this log.
    Stop {
        /// Records may be missing from here on. The next logs are replayed only if one begins with exactly the next
        /// sequence number (then nothing is missing after all, and the mark is lifted); a log that does not is
        /// left out. If none continues, no column family may have tables from logs newer than this one.
        hole: bool,
    },
    /// Recovery fails with the event's error.
    Fail,
}

impl RecoveryMode {
    /// What RocksDB's `DBImpl::RecoverLogFiles` would do at this event in this mode.
    pub fn action(self, event: &LogEvent) -> RecoveryAction {
        use RecoveryAction::{Fail, Replay, Skip, Stop};
        let kind = match event {
            LogEvent::Record { .. } => return Replay,
            LogEvent::End { .. } => return Stop { hole: false },
            LogEvent::Damage { kind, .. } => *kind,
        };
        match (kind, self) {
            (DamageKind::Unsupported, _) => Fail,
            (DamageKind::CutTail, Self::AbsoluteConsistency) => Fail,
            (DamageKind::CutTail, Self::PointInTime) => Stop { hole: true },
            (DamageKind::CutTail, _) => Stop { hole: false },

            (DamageKind::OldRecord { .. }, Self::PointInTime) => Stop { hole: true },
            (DamageKind::OldRecord { .. }, Self::SkipAnyCorruptedRecords) => Skip,
            (DamageKind::OldRecord { in_record: true }, Self::AbsoluteConsistency) => Fail,
            (DamageKind::OldRecord { .. }, _) => Stop { hole: false },

            // The rest of a recycled log is whatever the earlier log left, so a bad checksum there is its end.
            (DamageKind::BadFragment { recycled: true }, Self::TolerateCorruptedTailRecords) => Stop { hole: false },
            (DamageKind::BadFragment { .. } | DamageKind::BrokenRecord, mode) => mode.corruption(),
        }
    }

    /// What to do when a record's bytes are whole but do not decode or apply (a bad write batch).
    ///
    /// One difference from RocksDB: an unsupported feature fails in every mode. RocksDB's `SkipAnyCorruptedRecords`
    /// would leave the batch out, which loses data that is there.
    pub fn action_on_error(self, error: &FormatError) -> RecoveryAction {
        match error {
            FormatError::Unsupported { .. } => RecoveryAction::Fail,
            FormatError::Corruption { .. } => self.corruption(),
        }
    }

    fn corruption(self) -> RecoveryAction {
        match self {
            Self::TolerateCorruptedTailRecords | Self::AbsoluteConsistency => RecoveryAction::Fail,
            Self::PointInTime => RecoveryAction::Stop { hole: true },
            Self::SkipAnyCorruptedRecords => RecoveryAction::Skip,
        }
    }
}

/// Where the block that holds `offset` begins.
pub fn block_start(offset: u64) -> u64 {
    offset - offset % BLOCK_SIZE as u64
}

/// Source of log bytes, so that decoding stays free of I/O: fill `buf` from the next position, return the count,
/// which is short only at the end of the file.
pub trait ReadBlock {
    /// Error of the source.
    type Error;
    /// Reads up to `buf.len()` bytes.
    fn read_block(&mut self, buf: &mut [u8]) -> Result<usize, Self::Error>;
}

/// Bytes in memory are a source.
impl ReadBlock for &[u8] {
    type Error = std::convert::Infallible;

    fn read_block(&mut self, buf: &mut [u8]) -> Result<usize, Self::Error> {
        let n = self.len().min(buf.len());
        let (now, later) = self.split_at(n);
        buf[..n].copy_from_slice(now);
        *self = later;
        Ok(n)
    }
}

/// What sort of damage an event reports; the recovery modes treat each differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DamageKind {
    /// The file ends inside a header, a fragment or a fragmented record: what a crash during a write leaves. The next
    /// event is the end.
    CutTail,
    /// A fragment that belongs to an earlier log in the same, recycled file: the normal end of a recycled log.
    OldRecord {
        /// It is where the rest of a fragmented record should be, so that record was truncated.
        in_record: bool,
    },
    /// Wrong checksum or impossible length; the rest of the block is passed over.
    BadFragment {
        /// The log has recyclable headers.
        recycled: bool,
    },
    /// Good fragments in the wrong order, or of an unknown type: a part of a record is missing.
    BrokenRecord,
    /// The log needs a feature that Rockmill does not have (compressed WAL, user-defined timestamps).
    Unsupported,
}

/// What [`LogReader::next_record`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogEvent {
    /// A whole record is in the buffer; it began at this offset of the file.
    Record {
        /// Offset of the first fragment's header.
        offset: u64,
    },
    /// Damage, and how many bytes were passed over because of it. Reading can go on.
    Damage {
        /// What sort it is.
        kind: DamageKind,
        /// What is wrong and where (offset in the file).
        error: FormatError,
        /// Bytes dropped.
        dropped: u64,
    },
    /// End of the log.
    End {
        /// False when the log ends inside a record (what a crash leaves); a [`DamageKind::CutTail`] came just before.
        clean: bool,
    },
}

/// Reads records back. It reports damage as events; what they mean under each recovery mode is
/// [`RecoveryMode::action`]'s part.
pub struct LogReader<R> {
    source: R,
    log_number: u32,
    block: Box<[u8]>,
    /// Bytes of `block` that hold data.
    len: usize,
    /// Next unread byte of `block`; at most `len`.
    pos: usize,
    /// File offset of `block[0]`.
    block_start: u64,
    /// The last read was short: `block` is the last one.
    eof: bool,
    /// A recyclable header was seen.
    recycled: bool,
    first_record_read: bool,
    cut: bool,
    /// Bytes to pass over in the first block.
    start_in_block: usize,
    /// Where the first zeros were that stood in place of a fragment.
    zeros_at: Option<u64>,
    /// No fragment came since zeros in a log with long headers.
    in_zeros: bool,
    /// The file may be longer than the written data.
    space_ahead: bool,
    /// The last bad fragment has bytes other than zeros after it in its block.
    more_behind_damage: bool,
    /// Where in `block` the last damage begins, and whether it is inside a fragmented record.
    damage: (usize, bool),
}

/// What a disk writes at once at least.
const SECTOR: usize = 512;

const BEHIND_ZEROS: &str = "zeros, and more of the log behind them";

/// A fragment whose header and checksum are right. The payload is `block[start..end]`.
struct Fragment {
    kind: u8,
    start: usize,
    end: usize,
}

/// The data at the current position.
enum Physical {
    Fragment(Fragment),
    /// Only the end is left.
    Eof,
    /// Zeros up to the block's end.
    Zeros,
    /// Damage of this sort, described, and the bytes it takes from the block.
    Bad(DamageKind, String, usize),
}

impl<R: ReadBlock> LogReader<R> {
    /// A reader of log `log_number` (fragments of a recycled log with another number end the log).
    pub fn new(source: R, log_number: u64) -> Self {
        Self {
            source,
            log_number: log_number as u32,
            block: vec![0; BLOCK_SIZE].into_boxed_slice(),
            len: 0,
            pos: 0,
            block_start: 0,
            eof: false,
            recycled: false,
            first_record_read: false,
            cut: false,
            start_in_block: 0,
            zeros_at: None,
            in_zeros: false,
            space_ahead: true,
            more_behind_damage: false,
            damage: (0, false),
        }
    }

    /// A reader that begins at `offset`, where a record ended or the log begins: [`Self::offset`] of an earlier reader;
    /// `recycled` is its [`Self::is_recycled`]. `source` must stand at the beginning of the block that holds `offset`:
    /// at [`block_start`].
    pub fn resume(source: R, log_number: u64, offset: u64, recycled: bool) -> Self {
        let block_start = block_start(offset);
        let start_in_block = (offset - block_start) as usize;
        Self { block_start, start_in_block, recycled, ..Self::new(source, log_number) }
    }

    /// For a file that is never made longer ahead of what is written to it, a MANIFEST: zeros are passed over with the
    /// rest of their block, and are damage in a fragmented record.
    #[must_use]
    pub fn without_space_ahead(self) -> Self {
        Self { space_ahead: false, ..self }
    }

    /// File offset of the next unread byte: after a record, where it ends.
    pub fn offset(&self) -> u64 {
        self.block_start + self.pos as u64
    }

    /// Where the bytes come from.
    pub fn source(&self) -> &R {
        &self.source
    }

    /// The same, to do more with it than read: its place must stay.
    pub fn source_mut(&mut self) -> &mut R {
        &mut self.source
    }

    /// True once a recyclable header was seen.
    pub fn is_recycled(&self) -> bool {
        self.recycled
    }

    /// Where zeros were first found instead of a fragment: allocated space that was never written, or a lost sector. If
    /// the log continues after them, they are damage.
    pub fn zeros_at(&self) -> Option<u64> {
        self.zeros_at
    }

    /// After a bad fragment with a short header: true if its block has bytes other than zeros after it, which were
    /// skipped together with it. A fragment that a writer is just writing has only zeros after it.
    pub fn has_more_behind_damage(&self) -> bool {
        self.more_behind_damage
    }

    /// After damage in a recycled log: true if it is in a record of this log, not in an earlier log's remains after the
    /// end. Such a record was truncated or damaged.
    pub fn damage_is_ours(&self) -> bool {
        let (at, in_record) = self.damage;
        in_record || self.block.get(at..self.len).is_some_and(|rest| self.own_header(rest))
    }

    /// After damage in a recycled log: true if there is a whole fragment of this log anywhere after it. Then the damage
    /// is not the end of the log. Nothing can be read after this call.
    pub fn goes_on_after_damage(&mut self) -> Result<bool, R::Error> {
        let mut from = self.damage.0 + 1;
        loop {
            let block = self.block.get(..self.len).unwrap_or(&[]);
            for at in from..block.len() {
                let rest = &block[at..];
                if self.own_header(rest) {
                    let length = usize::from(u16::from_le_bytes([rest[4], rest[5]]));
                    let fragment = rest.get(..RECYCLABLE_HEADER_LEN + length);
                    if fragment.is_some_and(|f| fixed32_at(f, 0).map(unmask) == Some(crc32c(&f[6..]))) {
                        return Ok(true);
                    }
                }
            }
            if self.eof {
                return Ok(false);
            }
            self.next_block()?;
            from = 0;
        }
    }

    /// True if `bytes` begin as a fragment of this log does, with a long header.
    fn own_header(&self, bytes: &[u8]) -> bool {
        bytes.get(6).is_some_and(|&t| is_recyclable(t)) && fixed32_at(bytes, HEADER_LEN) == Some(self.log_number)
    }

    /// The next record into `record` (replaced). After [`LogEvent::End`] it stays at the end.
    pub fn next_record(&mut self, record: &mut Vec<u8>) -> Result<LogEvent, R::Error> {
        record.clear();
        // Where the fragmented record in `record` began. Every return leaves no record half read.
        let mut started: Option<u64> = None;
        loop {
            let physical = self.physical()?;
            let at = self.offset();
            let fragment = match physical {
                // Nothing of it is lost: the next call reads it.
                Physical::Fragment(_) if std::mem::take(&mut self.in_zeros) => {
                    return Ok(self.damage(DamageKind::BrokenRecord, BEHIND_ZEROS, at, record.len()));
                }
                Physical::Fragment(f) => f,
                Physical::Eof => {
                    if started.is_some() {
                        let what = "the log ends inside a fragmented record";
                        return Ok(self.damage(DamageKind::CutTail, what, at, record.len()));
                    }
                    return Ok(LogEvent::End { clean: !self.cut });
                }
                Physical::Zeros => {
                    self.zeros_at.get_or_insert(at);
                    if !self.space_ahead {
                        self.pos = self.len;
                        if started.is_some() {
                            let what = "zeros where a fragmented record should go on";
                            return Ok(self.damage(DamageKind::BrokenRecord, what, at, record.len()));
                        }
                    } else if self.recycled {
                        // The zeros may be an earlier log's, and so may the bytes after them: a fragment of this log
                        // decides.
                        self.in_zeros = true;
                        self.pos = self.len;
                    } else if self.goes_on_behind_zeros(self.pos)? {
                        return Ok(self.damage(DamageKind::BrokenRecord, BEHIND_ZEROS, at, record.len()));
                    }
                    continue;
                }
                Physical::Bad(DamageKind::BadFragment { recycled: false }, what, taken) if self.space_ahead => {
                    let (dropped, torn) = (taken + record.len(), self.torn_before());
                    self.more_behind_damage = self.is_more_behind_fragment();
                    match torn {
                        Some(end) if !self.goes_on_behind_zeros(end)? => {
                            let what = "the log ends inside a fragment, zeros are behind it";
                            return Ok(self.damage(DamageKind::CutTail, what, at, dropped));
                        }
                        Some(_) => {}
                        None => self.pos += taken,
                    }
                    return Ok(self.damage(DamageKind::BadFragment { recycled: false }, what, at, dropped));
                }
                Physical::Bad(kind, what, taken) => {
                    self.damage = (self.pos, started.is_some());
                    self.pos += taken;
                    let kind = match kind {
                        DamageKind::OldRecord { .. } => DamageKind::OldRecord { in_record: started.is_some() },
                        kind => kind,
                    };
                    return Ok(self.damage(kind, what, at, taken + record.len()));
                }
            };
            let payload = &self.block[fragment.start..fragment.end];
            let t = match fragment.kind {
                t @ kind::RECYCLABLE_FULL..=kind::RECYCLABLE_LAST => t - kind::RECYCLABLE_STEP,
                t => t,
            };
            match t {
                kind::FULL | kind::FIRST => {
                    // Old writers could leave an empty first fragment at a block's end and start over; that is no
                    // damage. The fragment at hand is read again by the next call.
                    if started.is_some() && !record.is_empty() {
                        let what = "a fragmented record has no end";
                        return Ok(self.damage(DamageKind::BrokenRecord, what, at, record.len()));
                    }
                    record.clear();
                    record.extend_from_slice(payload);
                    self.pos = fragment.end;
                    if t == kind::FULL {
                        self.first_record_read = true;
                        return Ok(LogEvent::Record { offset: at });
                    }
                    started = Some(at);
                }
                kind::MIDDLE | kind::LAST => {
                    let taken = payload.len();
                    let Some(offset) = started else {
                        self.pos = fragment.end;
                        let what = "a fragmented record has no start";
                        return Ok(self.damage(DamageKind::BrokenRecord, what, at, taken));
                    };
                    record.extend_from_slice(payload);
                    self.pos = fragment.end;
                    if t == kind::LAST {
                        self.first_record_read = true;
                        return Ok(LogEvent::Record { offset });
                    }
                }
                t => {
                    let what = match t {
                        // Four bytes: RocksDB's CompressionType.
                        kind::SET_COMPRESSION if payload != [0; 4] => Err("compressed WAL (wal_compression)"),
                        kind::TIMESTAMP_SIZE | kind::RECYCLABLE_TIMESTAMP_SIZE => {
                            Err("user-defined timestamps in the WAL")
                        }
                        kind::SET_COMPRESSION | kind::PREDECESSOR_INFO | kind::RECYCLABLE_PREDECESSOR_INFO => Ok(None),
                        t if t & kind::SAFE_TO_IGNORE != 0 => Ok(None),
                        t => Ok(Some(format!("unknown log record type {t}"))),
                    };
                    let taken = payload.len();
                    self.pos = fragment.end;
                    match what {
                        Err(feature) => {
                            return Ok(LogEvent::Damage {
                                kind: DamageKind::Unsupported,
                                error: FormatError::unsupported(feature),
                                dropped: (taken + record.len()) as u64,
                            });
                        }
                        Ok(Some(what)) => {
                            return Ok(self.damage(DamageKind::BrokenRecord, what, at, taken + record.len()));
                        }
                        Ok(None) if started.is_some() => {
                            let what = "a fragmented record is interrupted by another record";
                            return Ok(self.damage(DamageKind::BrokenRecord, what, at, record.len()));
                        }
                        Ok(None) => {}
                    }
                }
            }
        }
    }

    /// True if the block has bytes other than zeros from `from` on. Then the next block with such bytes is read.
    fn goes_on_behind_zeros(&mut self, from: usize) -> Result<bool, R::Error> {
        let is_zero = |bytes: Option<&[u8]>| bytes.is_none_or(|bytes| bytes.iter().all(|&b| b == 0));
        let here = !is_zero(self.block.get(from..self.len));
        self.pos = self.len;
        while !here && !self.eof {
            self.next_block()?;
            if !is_zero(self.block.get(self.pos..self.len)) {
                return Ok(true);
            }
            self.pos = self.len;
        }
        Ok(here)
    }

    /// True if the block has bytes other than zeros after the fragment at the current position, according to its
    /// header.
    fn is_more_behind_fragment(&self) -> bool {
        let rest = self.block.get(self.pos..self.len).unwrap_or(&[]);
        let length = rest.get(4..6).map_or(0, |at| usize::from(u16::from_le_bytes([at[0], at[1]])));
        rest.get(HEADER_LEN + length..).is_some_and(|behind| behind.iter().any(|&b| b != 0))
    }

    /// Where zeros begin in the block, if the damaged fragment at the present position can be one of which a write kept
    /// the beginning alone: from a sector's beginning on it is zeros, as is the rest of the block.
    fn torn_before(&self) -> Option<usize> {
        let rest = self.block.get(self.pos..self.len)?;
        let zeros = self.pos + rest.iter().rposition(|&b| b != 0)? + 1;
        let length = usize::from(u16::from_le_bytes([*rest.get(4)?, *rest.get(5)?]));
        (zeros.next_multiple_of(SECTOR) < self.pos + HEADER_LEN + length).then_some(zeros)
    }

    fn damage(
        &mut self,
        kind: DamageKind,
        what: impl Into<std::borrow::Cow<'static, str>>,
        at: u64,
        dropped: usize,
    ) -> LogEvent {
        self.cut |= kind == DamageKind::CutTail;
        LogEvent::Damage { kind, error: FormatError::corruption(what, at), dropped: dropped as u64 }
    }

    /// Checks the data at the current position; consumes only padding.
    fn physical(&mut self) -> Result<Physical, R::Error> {
        loop {
            let rest = self.block.get(self.pos..self.len).unwrap_or(&[]);
            if rest.len() < HEADER_LEN {
                if !self.eof {
                    self.next_block()?;
                    continue;
                }
                return Ok(self.short_header(rest.len()));
            }
            let length = usize::from(u16::from_le_bytes([rest[4], rest[5]]));
            let t = rest[6];
            let recyclable = is_recyclable(t);
            let header_len = if recyclable { RECYCLABLE_HEADER_LEN } else { HEADER_LEN };
            if recyclable {
                if self.first_record_read && !self.recycled {
                    let what = "a recyclable fragment in a log that began with legacy ones";
                    return Ok(self.bad_fragment(what));
                }
                self.recycled = true;
                if rest.len() < RECYCLABLE_HEADER_LEN {
                    // Padding at a full block's end, else cut off.
                    if !self.eof {
                        self.next_block()?;
                        continue;
                    }
                    return Ok(self.short_header(rest.len()));
                }
            }
            let Some(fragment) = rest.get(..header_len + length) else {
                if self.eof {
                    let what = format!("the log ends inside a fragment of {length} bytes");
                    return Ok(Physical::Bad(DamageKind::CutTail, what, rest.len()));
                }
                return Ok(self.bad_fragment("a fragment reaches over its block's end"));
            };
            if recyclable && fixed32_at(fragment, HEADER_LEN) != Some(self.log_number) {
                let what = "a fragment of an earlier log in this recycled file";
                return Ok(Physical::Bad(DamageKind::OldRecord { in_record: false }, what.into(), fragment.len()));
            }
            if t == kind::ZERO && length == 0 {
                if self.recycled && rest.len() < RECYCLABLE_HEADER_LEN && !self.eof {
                    self.next_block()?; // padding
                    continue;
                }
                return Ok(Physical::Zeros);
            }
            let stored = fixed32_at(fragment, 0).map(unmask);
            if stored != Some(crc32c(&fragment[6..])) {
                return Ok(self.bad_fragment("log fragment checksum mismatch"));
            }
            return Ok(Physical::Fragment(Fragment {
                kind: t,
                start: self.pos + header_len,
                end: self.pos + header_len + length,
            }));
        }
    }

    fn next_block(&mut self) -> Result<(), R::Error> {
        let n = self.source.read_block(&mut self.block)?.min(BLOCK_SIZE);
        self.block_start += self.len as u64;
        self.len = n;
        self.pos = std::mem::take(&mut self.start_in_block).min(n);
        self.eof = n < BLOCK_SIZE;
        Ok(())
    }

    fn short_header(&self, left: usize) -> Physical {
        match left {
            0 => Physical::Eof,
            _ => Physical::Bad(DamageKind::CutTail, "the log ends inside a fragment's header".into(), left),
        }
    }

    /// The length itself may be wrong, so nothing up to the block's end can be trusted.
    fn bad_fragment(&self, what: &str) -> Physical {
        let kind = DamageKind::BadFragment { recycled: self.recycled };
        Physical::Bad(kind, what.to_owned(), self.len - self.pos)
    }
}

/// Which types have the long header. RocksDB means the lowest bit to say so from 10 on, but its readers go by the types
/// they know; stale bytes in a recycled file can look like any other type, so doing more would change where logs end.
fn is_recyclable(t: u8) -> bool {
    matches!(
        t,
        kind::RECYCLABLE_FULL
            ..=kind::RECYCLABLE_LAST | kind::RECYCLABLE_TIMESTAMP_SIZE | kind::RECYCLABLE_PREDECESSOR_INFO
    )
}

#[cfg(test)]
mod tests;
