//! The nine PDUs of NVMe/TCP 1.0 ("PDU Definitions"): decoding and encoding.
//!
//! ```text
//!  byte 0    1      2     3    4              8
//!  ┌──────┬───────┬──────┬─────┬──────────────┬───────────────┬────────┬─────────┬────────┬────────┐
//!  │ type │ flags │ HLEN │ PDO │ PLEN (4)     │ of the type … │ HDGST? │ padding │ data … │ DDGST? │
//!  └──────┴───────┴──────┴─────┴──────────────┴───────────────┴────────┴─────────┴────────┴────────┘
//!  └────────────────── HLEN bytes, HDGST covers them ─────────┘                  └ PDO    └ DDGST covers the data
//! ```
//!
//! | type | PDU | direction | HLEN | digests | data |
//! |---|---|---|---|---|---|
//! | 00h | ICReq | to the controller | 128 | none | none |
//! | 01h | ICResp | to the host | 128 | none | none |
//! | 02h | H2CTermReq | to the controller | 24 | none | the header in error, 128 bytes at most |
//! | 03h | C2HTermReq | to the host | 24 | none | as above |
//! | 04h | CapsuleCmd | to the controller | 72 | both | in-capsule data |
//! | 05h | CapsuleResp | to the host | 24 | header | none |
//! | 06h | H2CData | to the controller | 24 | both | yes |
//! | 07h | C2HData | to the host | 24 | both | yes |
//! | 09h | R2T | to the host | 24 | header | none |
//!
//! A header that differs from the table is a [`PduError`], which ends the connection. A data digest that does not match
//! only fails the command, so the payload reports it ([`Payload::intact`]).

mod arriving;

use rockmill_io::aligned::{ALIGNMENT, AlignedBuf};

use crate::bytes::{array_at, put, u16_at, u32_at};
use crate::command::{Cqe, Sqe};
use crate::pdu_error::{FatalError, PduError};
pub(crate) use arriving::Arriving;

/// Length of the common header.
pub const COMMON_BYTES: usize = 8;
/// Length of each digest.
pub const DIGEST_BYTES: usize = 4;
/// Largest data alignment, in bytes.
pub const ALIGNMENT_MAX: u32 = 128;
/// Upper limit of the bytes of a faulty header that a termination request quotes.
pub const TERM_DATA_MAX: usize = 128;
/// The least that a controller must accept in one H2CData PDU (MAXH2CDATA).
pub const H2C_DATA_MIN: u32 = 4096;

/// Type numbers.
pub mod kind {
    /// Initialize Connection Request.
    pub const IC_REQ: u8 = 0x00;
    /// Initialize Connection Response.
    pub const IC_RESP: u8 = 0x01;
    /// Host to Controller Terminate Connection Request.
    pub const H2C_TERM: u8 = 0x02;
    /// Controller to Host Terminate Connection Request.
    pub const C2H_TERM: u8 = 0x03;
    /// Command Capsule.
    pub const CAPSULE_CMD: u8 = 0x04;
    /// Response Capsule.
    pub const CAPSULE_RESP: u8 = 0x05;
    /// Host to Controller Data Transfer.
    pub const H2C_DATA: u8 = 0x06;
    /// Controller to Host Data Transfer.
    pub const C2H_DATA: u8 = 0x07;
    /// Ready to Transfer.
    pub const R2T: u8 = 0x09;
}

const FLAG_HEADER_DIGEST: u8 = 1;
const FLAG_DATA_DIGEST: u8 = 2;
const FLAG_LAST: u8 = 4;
const FLAG_SUCCESS: u8 = 8;

const IC_BYTES: usize = 128;
const TERM_BYTES: usize = 24;
const CAPSULE_CMD_BYTES: usize = 72;
const SHORT_BYTES: usize = 24;

/// Which way PDUs go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the host.
    ToController,
    /// From the controller.
    ToHost,
}

/// Data of a PDU, and whether its digest matches (true if there is none).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payload<'a> {
    /// The data.
    pub bytes: &'a [u8],
    /// False if the data digest does not match.
    pub intact: bool,
}

impl<'a> Payload<'a> {
    /// Data to send.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, intact: true }
    }
}

/// ICReq: what the host proposes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct IcReq {
    /// PDU Format Version: 0 is 1.0.
    pub format: u16,
    /// Host PDU Data Alignment, in units of 4 bytes, counted from zero: the alignment of data in PDUs to the host.
    pub alignment: u8,
    /// Header digests are wanted.
    pub header_digest: bool,
    /// Data digests are wanted.
    pub data_digest: bool,
    /// Outstanding R2Ts per command, counted from zero (MAXR2T).
    pub r2t_max: u32,
}

/// ICResp: what the controller agrees to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct IcResp {
    /// PDU Format Version.
    pub format: u16,
    /// Controller PDU Data Alignment: the alignment of data in PDUs to the controller.
    pub alignment: u8,
    /// Header digests are on.
    pub header_digest: bool,
    /// Data digests are on.
    pub data_digest: bool,
    /// Most data of one H2CData PDU (MAXH2CDATA).
    pub h2c_data_max: u32,
}

/// H2CTermReq or C2HTermReq: why the sender ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TermReq<'a> {
    /// Fatal Error Status.
    pub fatal: FatalError,
    /// Fatal Error Information.
    pub information: u32,
    /// The quoted part of the header in error.
    pub header: &'a [u8],
}

/// H2CData or C2HData.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data<'a> {
    /// The command that the data belongs to (CCCID).
    pub command_id: u16,
    /// The tag of the R2T that requested the data (TTAG); reserved in C2HData.
    pub tag: u16,
    /// The offset within the command's data (DATAO).
    pub offset: u32,
    /// The last PDU of this transfer.
    pub last: bool,
    /// C2HData only: the command succeeded, and no response follows.
    pub success: bool,
    /// The data.
    pub payload: Payload<'a>,
}

/// R2T: the controller asks for data of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct R2t {
    /// The command (CCCID).
    pub command_id: u16,
    /// The tag that the data must carry (TTAG).
    pub tag: u16,
    /// From where (R2TO).
    pub offset: u32,
    /// How much (R2TL).
    pub length: u32,
}

/// Any PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pdu<'a> {
    /// Initialize Connection Request.
    IcReq(IcReq),
    /// Initialize Connection Response.
    IcResp(IcResp),
    /// Host to Controller Terminate Connection Request.
    H2cTermReq(TermReq<'a>),
    /// Controller to Host Terminate Connection Request.
    C2hTermReq(TermReq<'a>),
    /// Command Capsule, with in-capsule data or an empty payload.
    CapsuleCmd(Sqe, Payload<'a>),
    /// Response Capsule.
    CapsuleResp(Cqe),
    /// Host to Controller Data Transfer.
    H2cData(Data<'a>),
    /// Controller to Host Data Transfer.
    C2hData(Data<'a>),
    /// Ready to Transfer.
    R2t(R2t),
}

impl Pdu<'_> {
    /// Its type number.
    #[must_use]
    pub fn kind(&self) -> u8 {
        match self {
            Self::IcReq(_) => kind::IC_REQ,
            Self::IcResp(_) => kind::IC_RESP,
            Self::H2cTermReq(_) => kind::H2C_TERM,
            Self::C2hTermReq(_) => kind::C2H_TERM,
            Self::CapsuleCmd(..) => kind::CAPSULE_CMD,
            Self::CapsuleResp(_) => kind::CAPSULE_RESP,
            Self::H2cData(_) => kind::H2C_DATA,
            Self::C2hData(_) => kind::C2H_DATA,
            Self::R2t(_) => kind::R2T,
        }
    }
}

/// The table's row of a type.
struct Shape {
    direction: Direction,
    header_bytes: usize,
    header_digest: bool,
    data: bool,
}

fn shape(kind: u8) -> Option<Shape> {
    use Direction::{ToController, ToHost};
    let of = |direction, header_bytes, header_digest, data| Shape { direction, header_bytes, header_digest, data };
    Some(match kind {
        kind::IC_REQ => of(ToController, IC_BYTES, false, false),
        kind::IC_RESP => of(ToHost, IC_BYTES, false, false),
        kind::H2C_TERM => of(ToController, TERM_BYTES, false, true),
        kind::C2H_TERM => of(ToHost, TERM_BYTES, false, true),
        kind::CAPSULE_CMD => of(ToController, CAPSULE_CMD_BYTES, true, true),
        kind::CAPSULE_RESP => of(ToHost, SHORT_BYTES, true, false),
        kind::H2C_DATA => of(ToController, SHORT_BYTES, true, true),
        kind::C2H_DATA => of(ToHost, SHORT_BYTES, true, true),
        kind::R2T => of(ToHost, SHORT_BYTES, true, false),
        _ => return None,
    })
}

/// The format of PDUs in one direction of this connection: the negotiated settings, and the receiver's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Framing {
    /// Which way they go.
    pub direction: Direction,
    /// They have header digests.
    pub header_digest: bool,
    /// They have data digests.
    pub data_digest: bool,
    /// Alignment of their data in bytes: 4 to [`ALIGNMENT_MAX`].
    pub alignment: u32,
    /// Most in-capsule data that the receiver accepts.
    pub capsule_data_max: u32,
    /// Most data of an H2CData or C2HData PDU that the receiver accepts.
    pub data_max: u32,
}

/// The positions of a PDU's parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Its type number.
    pub kind: u8,
    /// Header with its digest.
    pub header_end: usize,
    /// Where the data begins.
    pub data_start: usize,
    /// Where the data ends. Its digest follows, if there is one.
    pub data_end: usize,
    /// The whole PDU (PLEN).
    pub total: usize,
}

impl Framing {
    /// The settings at the start of a connection: no digests, no alignment.
    #[must_use]
    pub fn initial(direction: Direction, capsule_data_max: u32, data_max: u32) -> Self {
        Self { direction, header_digest: false, data_digest: false, alignment: 4, capsule_data_max, data_max }
    }

    /// Size of the largest PDU that the receiver accepts, in bytes.
    #[must_use]
    pub fn pdu_bytes_max(&self) -> usize {
        ALIGNMENT_MAX as usize + self.capsule_data_max.max(self.data_max) as usize + 2 * DIGEST_BYTES
    }

    /// Checks the common header. PDUs longer than the limits are rejected.
    ///
    /// # Errors
    /// The invalid field.
    pub fn extent(&self, common: &[u8; COMMON_BYTES]) -> Result<Extent, PduError> {
        let [kind, flags, header_len, data_offset, ..] = *common;
        let total = u32_at(common, 4);
        let shape = shape(kind).ok_or_else(|| PduError::field("PDU-Type", 0, kind))?;
        if shape.direction != self.direction {
            return Err(PduError::sequence(kind));
        }
        if usize::from(header_len) != shape.header_bytes {
            return Err(PduError::field("HLEN", 2, header_len));
        }
        let digest = shape.header_digest && self.header_digest;
        if (flags & FLAG_HEADER_DIGEST != 0) != digest {
            return Err(PduError::field("FLAGS.HDGSTF", 1, flags));
        }
        let header_end = shape.header_bytes + if digest { DIGEST_BYTES } else { 0 };
        let plen = || PduError::field("PLEN", 4, total);
        let total = total as usize;
        if total < header_end {
            return Err(plen());
        }
        let bare = total == header_end;
        let terminates = matches!(kind, kind::H2C_TERM | kind::C2H_TERM);
        let data_digest = self.data_digest && shape.header_digest && shape.data && !bare;
        if shape.header_digest && (flags & FLAG_DATA_DIGEST != 0) != data_digest {
            return Err(PduError::field("FLAGS.DDGSTF", 1, flags));
        }
        if terminates {
            if total > TERM_BYTES + TERM_DATA_MAX {
                return Err(plen());
            }
            return Ok(Extent { kind, header_end, data_start: TERM_BYTES, data_end: total, total });
        }
        if bare {
            // Data PDUs without data transfer nothing, and a peer could keep a connection busy with them for ever.
            if matches!(kind, kind::H2C_DATA | kind::C2H_DATA) {
                return Err(plen());
            }
            return Ok(Extent { kind, header_end, data_start: total, data_end: total, total });
        }
        if !shape.data {
            return Err(plen());
        }
        let data_start = usize::from(data_offset);
        if data_start < header_end || !data_start.is_multiple_of(self.alignment as usize) {
            return Err(PduError::field("PDO", 3, data_offset));
        }
        let tail = if data_digest { DIGEST_BYTES } else { 0 };
        let limit = if kind == kind::CAPSULE_CMD { self.capsule_data_max } else { self.data_max };
        let length = total.checked_sub(data_start + tail).filter(|&n| n > 0).ok_or_else(plen)?;
        if length > limit as usize {
            // The limit of requested data was negotiated; for capsules it is only a size.
            let fatal = match kind {
                kind::CAPSULE_CMD => FatalError::InvalidHeaderField,
                _ => FatalError::LimitExceeded,
            };
            return Err(PduError::new(fatal, "PLEN", 4, total as u64));
        }
        Ok(Extent { kind, header_end, data_start, data_end: data_start + length, total })
    }

    /// Checks the header's digest, if there is one. `pdu` must contain the whole header.
    ///
    /// # Errors
    /// The digest does not match.
    pub fn check_header_digest(&self, extent: &Extent, pdu: &[u8]) -> Result<(), PduError> {
        let header_bytes = usize::from(pdu[2]);
        if extent.header_end == header_bytes {
            return Ok(());
        }
        let got = u32_at(pdu, header_bytes);
        if got != crc32c::crc32c(&pdu[..header_bytes]) {
            return Err(PduError::new(FatalError::HeaderDigest, "HDGST", header_bytes as u32, got));
        }
        Ok(())
    }

    /// Decodes one PDU, which must fill these bytes exactly.
    ///
    /// # Errors
    /// The invalid field.
    pub fn decode<'a>(&self, pdu: &'a [u8]) -> Result<Pdu<'a>, PduError> {
        let short = || PduError::field("PLEN", 4, pdu.len() as u64);
        let common = pdu.first_chunk().ok_or_else(short)?;
        let extent = self.extent(common)?;
        if pdu.len() != extent.total {
            return Err(short());
        }
        self.check_header_digest(&extent, pdu)?;
        let bytes = &pdu[extent.data_start..extent.data_end];
        let intact = extent.total == extent.data_end || u32_at(pdu, extent.data_end) == crc32c::crc32c(bytes);
        let payload = Payload { bytes, intact };
        let flags = pdu[1];
        Ok(match extent.kind {
            kind::IC_REQ => Pdu::IcReq(IcReq {
                format: u16_at(pdu, 8),
                alignment: alignment_at(pdu, "HPDA")?,
                header_digest: pdu[11] & 1 != 0,
                data_digest: pdu[11] & 2 != 0,
                r2t_max: u32_at(pdu, 12),
            }),
            kind::IC_RESP => Pdu::IcResp(IcResp {
                format: u16_at(pdu, 8),
                alignment: alignment_at(pdu, "CPDA")?,
                header_digest: pdu[11] & 1 != 0,
                data_digest: pdu[11] & 2 != 0,
                h2c_data_max: u32_at(pdu, 12),
            }),
            kind::H2C_TERM | kind::C2H_TERM => {
                let fatal = FatalError::from_code(u16_at(pdu, 8));
                let term = TermReq { fatal, information: u32_at(pdu, 10), header: bytes };
                if extent.kind == kind::H2C_TERM { Pdu::H2cTermReq(term) } else { Pdu::C2hTermReq(term) }
            }
            kind::CAPSULE_CMD => Pdu::CapsuleCmd(Sqe(array_at(pdu, COMMON_BYTES)), payload),
            kind::CAPSULE_RESP => Pdu::CapsuleResp(Cqe(array_at(pdu, COMMON_BYTES))),
            kind::H2C_DATA => Pdu::H2cData(data_of(pdu, flags & !FLAG_SUCCESS, bytes.len(), payload)?),
            kind::C2H_DATA => Pdu::C2hData(data_of(pdu, flags, bytes.len(), payload)?),
            _ => {
                let length = u32_at(pdu, 16);
                if length == 0 {
                    return Err(PduError::field("R2TL", 16, length));
                }
                Pdu::R2t(R2t { command_id: u16_at(pdu, 8), tag: u16_at(pdu, 10), offset: u32_at(pdu, 12), length })
            }
        })
    }

    /// Decodes the header of a data PDU whose data has not arrived: the payload is empty, and its length is in
    /// `extent`. The header's digest must have been checked.
    ///
    /// # Errors
    /// The invalid field.
    pub(crate) fn decode_head(&self, head: &[u8], extent: &Extent) -> Result<Data<'static>, PduError> {
        let hidden = if self.direction == Direction::ToController { FLAG_SUCCESS } else { 0 };
        data_of(head, head[1] & !hidden, extent.data_end - extent.data_start, Payload::new(&[]))
    }

    /// Appends a PDU. Does not check the data's length: the limits are the receiver's.
    pub fn encode(&self, pdu: &Pdu<'_>, out: &mut impl Outgoing) {
        let mut fields = [0u8; IC_BYTES - COMMON_BYTES];
        let (used, flags, data): (usize, u8, &[u8]) = match pdu {
            Pdu::IcReq(r) => {
                put_ic(&mut fields, r.format, r.alignment, (r.header_digest, r.data_digest), r.r2t_max);
                (fields.len(), 0, &[])
            }
            Pdu::IcResp(r) => {
                put_ic(&mut fields, r.format, r.alignment, (r.header_digest, r.data_digest), r.h2c_data_max);
                (fields.len(), 0, &[])
            }
            Pdu::H2cTermReq(t) | Pdu::C2hTermReq(t) => {
                put(&mut fields, 0, &t.fatal.code().to_le_bytes());
                put(&mut fields, 2, &t.information.to_le_bytes());
                (TERM_BYTES - COMMON_BYTES, 0, &t.header[..t.header.len().min(TERM_DATA_MAX)])
            }
            Pdu::CapsuleCmd(sqe, payload) => {
                put(&mut fields, 0, &sqe.0);
                (sqe.0.len(), 0, payload.bytes)
            }
            Pdu::CapsuleResp(cqe) => {
                put(&mut fields, 0, &cqe.0);
                (cqe.0.len(), 0, &[])
            }
            Pdu::H2cData(d) | Pdu::C2hData(d) => {
                let at = self.begin_data(pdu.kind(), d, d.payload.bytes.len(), out);
                out.bytes()[at.data_start..at.data_end].copy_from_slice(d.payload.bytes);
                self.finish_data(at, out.bytes());
                return;
            }
            Pdu::R2t(r) => {
                put(&mut fields, 0, &r.command_id.to_le_bytes());
                put(&mut fields, 2, &r.tag.to_le_bytes());
                put(&mut fields, 4, &r.offset.to_le_bytes());
                put(&mut fields, 8, &r.length.to_le_bytes());
                (SHORT_BYTES - COMMON_BYTES, 0, &[])
            }
        };
        let at = self.begin(pdu.kind(), flags, &fields[..used], data.len(), DataIs::Here, out);
        out.bytes()[at.data_start..at.data_end].copy_from_slice(data);
        self.finish_data(at, out.bytes());
    }

    /// Appends a data PDU with room for `length` bytes. The caller must fill in all of them, at the returned positions
    /// of `out`, before [`Self::finish_data`]: the room may contain anything before. The payload in `data` is ignored.
    pub fn begin_data(&self, kind: u8, data: &Data<'_>, length: usize, out: &mut impl Outgoing) -> Extent {
        self.begin_data_that(DataIs::Here, kind, data, length, out)
    }

    fn begin_data_that(&self, is: DataIs, kind: u8, data: &Data<'_>, length: usize, out: &mut impl Outgoing) -> Extent {
        let mut fields = [0u8; SHORT_BYTES - COMMON_BYTES];
        put(&mut fields, 0, &data.command_id.to_le_bytes());
        put(&mut fields, 2, &data.tag.to_le_bytes());
        put(&mut fields, 4, &data.offset.to_le_bytes());
        put(&mut fields, 8, &(length as u32).to_le_bytes());
        let flags = if data.last { FLAG_LAST } else { 0 } | if data.success { FLAG_SUCCESS } else { 0 };
        self.begin(kind, flags, &fields, length, is, out)
    }

    /// Appends a data PDU without its data, which is sent from elsewhere. Not for data with a digest.
    pub(crate) fn begin_apart(&self, kind: u8, data: &Data<'_>, length: usize, out: &mut impl Outgoing) {
        Self { data_digest: false, ..*self }.begin_data_that(DataIs::Elsewhere, kind, data, length, out);
    }

    /// Writes the digest after the data that [`Self::begin_data`] made room for.
    pub fn finish_data(&self, at: Extent, out: &mut [u8]) {
        if at.total > at.data_end {
            let digest = crc32c::crc32c(&out[at.data_start..at.data_end]);
            put(out, at.data_end, &digest.to_le_bytes());
        }
    }

    /// Appends everything except the data and its digest, with room for those if they are to be there. Returns
    /// positions in `out`.
    fn begin(
        &self,
        kind: u8,
        flags: u8,
        fields: &[u8],
        length: usize,
        data: DataIs,
        out: &mut impl Outgoing,
    ) -> Extent {
        let terminates = matches!(kind, kind::H2C_TERM | kind::C2H_TERM);
        let shape = shape(kind);
        let carries = shape.as_ref().is_some_and(|s| s.header_digest);
        let header_bytes = COMMON_BYTES + fields.len();
        let header_digest = carries && self.header_digest;
        let header_end = header_bytes + if header_digest { DIGEST_BYTES } else { 0 };
        let (data_start, data_digest) = match length {
            0 => (header_end, false),
            _ if terminates => (header_end, false),
            _ => (header_end.next_multiple_of(self.alignment as usize), carries && self.data_digest),
        };
        let data_end = data_start + length;
        let total = data_end + if data_digest { DIGEST_BYTES } else { 0 };
        let (start, appended) = match data {
            DataIs::Here => (out.append_pdu(total, data_start), total),
            DataIs::Elsewhere => (out.append(data_start), data_start),
        };
        let pdu = &mut out.bytes()[start..start + appended];
        pdu[0] = kind;
        pdu[1] =
            flags | if header_digest { FLAG_HEADER_DIGEST } else { 0 } | if data_digest { FLAG_DATA_DIGEST } else { 0 };
        pdu[2] = header_bytes as u8;
        pdu[3] = if length == 0 || terminates { 0 } else { data_start as u8 };
        put(pdu, 4, &(total as u32).to_le_bytes());
        put(pdu, COMMON_BYTES, fields);
        if header_digest {
            let digest = crc32c::crc32c(&pdu[..header_bytes]);
            put(pdu, header_bytes, &digest.to_le_bytes());
        }
        pdu[header_end..data_start].fill(0);
        Extent {
            kind,
            header_end: start + header_end,
            data_start: start + data_start,
            data_end: start + data_end,
            total: start + total,
        }
    }
}

/// Where the data of a PDU is that is appended.
#[derive(Clone, Copy)]
enum DataIs {
    /// After its header.
    Here,
    /// Not in the output: it is sent after it.
    Elsewhere,
}

fn put_ic(fields: &mut [u8], format: u16, alignment: u8, digests: (bool, bool), last: u32) {
    put(fields, 0, &format.to_le_bytes());
    fields[2] = alignment;
    fields[3] = u8::from(digests.0) | u8::from(digests.1) << 1;
    put(fields, 4, &last.to_le_bytes());
}

fn alignment_at(pdu: &[u8], field: &'static str) -> Result<u8, PduError> {
    if pdu[10] > 31 {
        return Err(PduError::field(field, 10, pdu[10]));
    }
    Ok(pdu[10])
}

/// The header of a data PDU with `data_bytes` bytes of data.
fn data_of<'a>(pdu: &[u8], flags: u8, data_bytes: usize, payload: Payload<'a>) -> Result<Data<'a>, PduError> {
    let (offset, length) = (u32_at(pdu, 12), u32_at(pdu, 16));
    let last = flags & FLAG_LAST != 0;
    let success = flags & FLAG_SUCCESS != 0;
    if success && !last {
        return Err(PduError::field("FLAGS.SUCCESS", 1, flags));
    }
    if !offset.is_multiple_of(4) {
        return Err(PduError::field("DATAO", 12, offset));
    }
    if length as usize != data_bytes || (!last && !length.is_multiple_of(4)) {
        return Err(PduError::field("DATAL", 16, length));
    }
    if offset.checked_add(length).is_none() {
        return Err(PduError::new(FatalError::OutOfRange, "DATAO", 12, offset));
    }
    Ok(Data { command_id: u16_at(pdu, 8), tag: u16_at(pdu, 10), offset, last, success, payload })
}

/// Where PDUs are encoded to.
pub trait Outgoing {
    /// Grows by `count` bytes of unspecified content. Returns their start.
    fn append(&mut self, count: usize) -> usize;

    /// The same for a PDU of `count` bytes whose data begins at byte `data_start` of it. An output that can choose
    /// places the data at the start of a page.
    fn append_pdu(&mut self, count: usize, data_start: usize) -> usize {
        let _ = data_start;
        self.append(count)
    }

    /// All its bytes.
    fn bytes(&mut self) -> &mut [u8];
}

impl Outgoing for Vec<u8> {
    fn append(&mut self, count: usize) -> usize {
        let start = self.len();
        self.resize(start + count, 0);
        start
    }

    fn bytes(&mut self) -> &mut [u8] {
        self
    }
}

/// Output that waits to be sent. Its memory stays initialized from one PDU to the next, so data can be read into it
/// without first writing zeros. If nothing waits, the data of the next PDU lies at the start of a page: a file that is
/// read past the page cache then needs no other buffer.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    memory: AlignedBuf,
    /// Up to here it was sent.
    sent: usize,
    /// End of the bytes to send. What follows is unused.
    end: usize,
}

impl Waiting {
    /// What is to be sent.
    pub fn unsent(&self) -> &[u8] {
        &self.memory[self.sent..self.end]
    }

    /// Tells that the first `count` bytes were sent.
    pub fn sent(&mut self, count: usize) {
        self.sent = (self.sent + count).min(self.end);
        if self.sent == self.end {
            (self.sent, self.end) = (0, 0);
        } else if self.sent > self.end / 2 {
            self.memory.copy_within(self.sent..self.end, 0);
            (self.sent, self.end) = (0, self.end - self.sent);
        }
    }

    /// Where the next PDU begins, at the earliest.
    pub fn end(&self) -> usize {
        self.end
    }

    /// Drops the bytes from `end` on. None of them may have been sent.
    pub fn truncate(&mut self, end: usize) {
        self.end = self.end.min(end).max(self.sent);
    }

    /// Bytes of memory that it has.
    pub fn memory_bytes(&self) -> usize {
        self.memory.capacity()
    }
}

impl Outgoing for Waiting {
    fn append(&mut self, count: usize) -> usize {
        let start = self.end;
        self.end += count;
        if self.memory.capacity() < self.end {
            // Doubled, so that small PDUs do not allocate each time.
            let used = start.min(self.memory.capacity());
            self.memory.grow(self.end.max(2 * self.memory.capacity()), used);
        }
        start
    }

    fn append_pdu(&mut self, count: usize, data_start: usize) -> usize {
        if self.sent == self.end && count >= ALIGNMENT {
            let before = data_start.wrapping_neg() % ALIGNMENT;
            (self.sent, self.end) = (before, before);
        }
        self.append(count)
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory
    }
}

/// What an [`Assembler`] has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filled {
    /// Not enough.
    No,
    /// A whole PDU.
    Whole,
    /// The header of a data PDU; its data comes next.
    Head(Extent),
}

/// Assembles the bytes of a stream into PDUs.
///
/// It holds one PDU, and never more than [`Framing::pdu_bytes_max`]: it checks a length before it uses it, and its
/// memory grows only as bytes arrive.
#[derive(Debug, Default)]
pub struct Assembler {
    pdu: Vec<u8>,
    extent: Option<Extent>,
    checked: bool,
}

impl Assembler {
    /// Takes bytes from the front of `bytes`. True if there is a whole PDU; false if more bytes are needed.
    ///
    /// # Errors
    /// A header that ends the connection.
    pub fn fill(&mut self, framing: &Framing, bytes: &mut &[u8]) -> Result<bool, PduError> {
        self.fill_until(framing, bytes, |extent| extent.total)
    }

    /// The same, but also stops where the data of an H2CData or C2HData PDU begins: its receiver has a place for it.
    ///
    /// # Errors
    /// A header that ends the connection.
    pub(crate) fn fill_to_data(&mut self, framing: &Framing, bytes: &mut &[u8]) -> Result<Filled, PduError> {
        let is_data = |extent: &Extent| matches!(extent.kind, kind::H2C_DATA | kind::C2H_DATA);
        let until = |extent: &Extent| if is_data(extent) { extent.data_start } else { extent.total };
        Ok(match (self.fill_until(framing, bytes, until)?, self.extent) {
            (false, _) => Filled::No,
            (true, Some(extent)) if is_data(&extent) => Filled::Head(extent),
            (true, _) => Filled::Whole,
        })
    }

    fn fill_until(
        &mut self,
        framing: &Framing,
        bytes: &mut &[u8],
        end: impl Fn(&Extent) -> usize,
    ) -> Result<bool, PduError> {
        loop {
            let wanted = match &self.extent {
                None => COMMON_BYTES,
                Some(extent) if !self.checked => extent.header_end,
                Some(extent) => end(extent),
            };
            let (taken, rest) = bytes.split_at((wanted - self.pdu.len()).min(bytes.len()));
            self.pdu.extend_from_slice(taken);
            *bytes = rest;
            if self.pdu.len() < wanted {
                return Ok(false);
            }
            match &self.extent {
                None => self.extent = Some(framing.extent(&array_at(&self.pdu, 0))?),
                Some(extent) if !self.checked => {
                    framing.check_header_digest(extent, &self.pdu)?;
                    self.checked = true;
                }
                Some(_) => return Ok(true),
            }
        }
    }

    /// Returns what there is of the PDU, and begins the next.
    pub fn take(&mut self) -> Vec<u8> {
        self.extent = None;
        self.checked = false;
        std::mem::take(&mut self.pdu)
    }

    /// Takes back memory from [`Self::take`], to use it again.
    pub fn reuse(&mut self, mut memory: Vec<u8>) {
        if self.pdu.is_empty() {
            memory.clear();
            self.pdu = memory;
        }
    }

    /// Bytes of memory that it has.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.pdu.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Old output never leaks: every byte of a PDU is written, also the padding.
    #[test]
    fn memory_that_is_used_again_shows_nothing_of_what_was_there() {
        let mut waiting = Waiting::default();
        let start = waiting.append(1 << 12);
        waiting.bytes()[start..].fill(0xdb);
        waiting.sent(1 << 12);
        assert!(waiting.unsent().is_empty());
        for alignment in [4, 64, 128] {
            let framing = Framing { alignment, data_digest: true, ..Framing::initial(Direction::ToHost, 0, 1 << 10) };
            let payload = Payload::new(&[7; 100]);
            let data = Data { command_id: 1, tag: 2, offset: 0, last: true, success: false, payload };
            let mut wanted = Vec::new();
            for pdu in [Pdu::C2hData(data), Pdu::CapsuleResp(Cqe([3; 16]))] {
                framing.encode(&pdu, &mut waiting);
                framing.encode(&pdu, &mut wanted);
            }
            assert_eq!(waiting.unsent(), wanted);
            waiting.sent(wanted.len());
        }
    }

    /// Or a file that is read past the page cache is read into another buffer first.
    #[test]
    fn data_lies_at_the_start_of_a_page_if_nothing_else_waits() {
        let mut waiting = Waiting::default();
        for (header_digest, alignment) in [(false, 4), (true, 4), (true, 128)] {
            let framing = Framing { header_digest, alignment, ..Framing::initial(Direction::ToHost, 0, 1 << 20) };
            let payload = Payload::new(&[]);
            let data = Data { command_id: 1, tag: 2, offset: 0, last: true, success: false, payload };
            let at = framing.begin_data(kind::C2H_DATA, &data, 8192, &mut waiting);
            let place = waiting.bytes()[at.data_start..].as_ptr().addr();
            assert!(place.is_multiple_of(ALIGNMENT), "{header_digest} {alignment}");
            assert_eq!(waiting.unsent().len(), at.total - (at.data_start - usize::from(waiting.unsent()[3])));
            // Taken back, and then something else is sent.
            waiting.truncate(0);
            assert!(waiting.unsent().is_empty());
            framing.encode(&Pdu::CapsuleResp(Cqe([3; 16])), &mut waiting);
            assert_eq!(waiting.unsent()[0], kind::CAPSULE_RESP);
            let all = waiting.unsent().len();
            waiting.sent(all);
        }
    }

    #[test]
    fn what_waits_is_sent_in_pieces_and_can_be_taken_back() {
        let mut waiting = Waiting::default();
        let put = |waiting: &mut Waiting, bytes: &[u8]| {
            let start = waiting.append(bytes.len());
            waiting.bytes()[start..start + bytes.len()].copy_from_slice(bytes);
            start
        };
        put(&mut waiting, b"0123456789");
        waiting.sent(4);
        let start = put(&mut waiting, b"gone");
        waiting.truncate(start);
        put(&mut waiting, b"ab");
        assert_eq!(waiting.unsent(), b"456789ab");
        waiting.sent(3);
        assert_eq!(waiting.unsent(), b"789ab");
        waiting.sent(100);
        assert_eq!(waiting.unsent(), b"");
        put(&mut waiting, b"c");
        assert_eq!((waiting.unsent(), waiting.memory_bytes() >= 12), (b"c".as_slice(), true));
    }
}
