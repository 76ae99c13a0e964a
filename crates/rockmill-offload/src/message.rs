//! What is said on the control channel, and how it becomes bytes.
//!
//! ```text
//!   frame     length of the body   checksum of the body   body
//!             4 bytes              4 bytes (CRC-32C)
//!   body      kind (1 byte), then the fields of the kind; texts and bytes have their length before them as a varint
//! ```
//!
//! Numbers of fixed width are little-endian. Nothing is believed: a frame's length has a bound that depends on how far
//! the peer is, and memory is taken as bytes arrive.

use std::io;

use rockmill::internals::{DeviceExtent, RemoteUsage};
use rockmill_format::FormatError;
use rockmill_format::coding::{Decoder, put_fixed32, put_fixed64, put_length_prefixed};

use crate::VERSION;
use crate::external::ExternalInputs;
use crate::pool::Ticket;

/// Bytes of a frame's head.
pub(crate) const HEAD_BYTES: usize = 8;
/// Bytes of a body until both sides know each other.
pub(crate) const HANDSHAKE_BYTES_MAX: usize = 4 << 10;
/// Bytes of a body with a spec or a result (at most 64 MiB, docs/job-spec.md).
pub(crate) const BODY_BYTES_MAX: usize = (64 << 20) + (4 << 10);
/// Bytes of a name, as NVMe's qualified names.
pub(crate) const NAME_BYTES_MAX: usize = 223;
/// Bytes of a reason.
const REASON_BYTES_MAX: usize = 1 << 10;
/// What a peer says first: that it speaks this protocol, in any version.
const MAGIC: &[u8; 8] = b"RMILLOFF";

/// A message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Message {
    /// The store's first.
    Hello { version: u32, name: String, authenticates: bool },
    /// The worker's first.
    Welcome { version: u32, name: String, authenticates: bool },
    /// A message of DH-HMAC-CHAP, in either direction.
    Auth(Vec<u8>),
    /// The store offers a job: where its namespace is served, at the address that the store has in this connection.
    /// With a ticket, the worker has set room aside for it.
    Offer {
        epoch: u64,
        ticket: Option<Ticket>,
        subsystem: String,
        port: u16,
        silence_ms: u32,
        /// Where inputs may be read besides.
        external: Option<ExternalInputs>,
        spec: Vec<u8>,
    },
    /// The worker begins.
    Accepted { epoch: u64 },
    /// The worker does not do it, or could not.
    Refused { epoch: u64, reason: String },
    /// Bytes of the inputs that are merged.
    Progress { epoch: u64, bytes: u64 },
    /// The worker is done.
    Done { epoch: u64, usage: RemoteUsage, result: Vec<u8> },
    /// The store does not want the job any more.
    Cancel { epoch: u64 },
    /// The store wants to use a connection again, and asks whether anybody is there.
    Ping { number: u64 },
    /// The answer, with the same number.
    Pong { number: u64 },
    /// The worker is there, and has no job of this connection.
    Idle,
}

fn put_text(out: &mut Vec<u8>, text: &str, most: usize) {
    put_length_prefixed(out, &text.as_bytes()[..text.floor_char_boundary(most)]);
}

fn text(d: &mut Decoder<'_>, most: usize) -> Result<String, FormatError> {
    let bytes = d.length_prefixed("text")?;
    match std::str::from_utf8(bytes) {
        Ok(text) if text.len() <= most && !text.contains(char::is_control) => Ok(text.to_owned()),
        _ => Err(d.error("a text that is too long, or none")),
    }
}

fn flag(d: &mut Decoder<'_>) -> Result<bool, FormatError> {
    match d.u8("flag")? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(d.error("a flag that is neither set nor not")),
    }
}

/// Where inputs may be read: a flag, and with it the target and the extents.
fn put_external(out: &mut Vec<u8>, external: Option<&ExternalInputs>) {
    out.push(u8::from(external.is_some()));
    let Some(ExternalInputs { address, subsystem, namespace, extents }) = external else { return };
    put_text(out, &address.to_string(), NAME_BYTES_MAX);
    put_text(out, subsystem, NAME_BYTES_MAX);
    put_fixed32(out, *namespace);
    let numbers = extents.iter().flat_map(|e| [e.offset, e.device_offset, e.len]);
    put_length_prefixed(out, &numbers.flat_map(u64::to_le_bytes).collect::<Vec<_>>());
}

fn external(d: &mut Decoder<'_>) -> Result<Option<ExternalInputs>, FormatError> {
    if !flag(d)? {
        return Ok(None);
    }
    let address = text(d, NAME_BYTES_MAX)?.parse().map_err(|_| d.error("no address"))?;
    let (subsystem, namespace) = (text(d, NAME_BYTES_MAX)?, d.fixed32("namespace")?);
    let numbers = d.length_prefixed("extents")?;
    let (whole, []) = numbers.as_chunks::<24>() else { return Err(d.error("a part of an extent")) };
    let mut extents = Vec::with_capacity(whole.len());
    for bytes in whole {
        let mut one = Decoder::new(bytes);
        let (offset, device_offset) = (one.fixed64("offset")?, one.fixed64("offset")?);
        extents.push(DeviceExtent { offset, device_offset, len: one.fixed64("length")? });
    }
    let external = ExternalInputs { address, subsystem, namespace, extents };
    if external.is_in_order() { Ok(Some(external)) } else { Err(d.error("extents in no order")) }
}

impl Message {
    /// The name of its kind, for errors: its fields may be long.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Hello { .. } => "Hello",
            Self::Welcome { .. } => "Welcome",
            Self::Auth(_) => "Auth",
            Self::Offer { .. } => "Offer",
            Self::Accepted { .. } => "Accepted",
            Self::Refused { .. } => "Refused",
            Self::Progress { .. } => "Progress",
            Self::Done { .. } => "Done",
            Self::Cancel { .. } => "Cancel",
            Self::Ping { .. } => "Ping",
            Self::Pong { .. } => "Pong",
            Self::Idle => "Idle",
        }
    }

    /// The message as a frame.
    ///
    /// # Errors
    /// It is over the bounds.
    pub fn encode(&self) -> io::Result<Vec<u8>> {
        let mut out = vec![0; HEAD_BYTES];
        match self {
            Self::Hello { version, name, authenticates } | Self::Welcome { version, name, authenticates } => {
                out.push(if matches!(self, Self::Hello { .. }) { 1 } else { 2 });
                out.extend_from_slice(MAGIC);
                put_fixed32(&mut out, *version);
                put_text(&mut out, name, NAME_BYTES_MAX);
                out.push(u8::from(*authenticates));
            }
            Self::Auth(bytes) => {
                out.push(3);
                put_length_prefixed(&mut out, bytes);
            }
            Self::Offer { epoch, ticket, subsystem, port, silence_ms, external, spec } => {
                out.push(4);
                put_fixed64(&mut out, *epoch);
                put_length_prefixed(&mut out, ticket.as_ref().map_or(&[], |ticket| &ticket.0));
                put_text(&mut out, subsystem, NAME_BYTES_MAX);
                put_fixed32(&mut out, (*port).into());
                put_fixed32(&mut out, *silence_ms);
                put_external(&mut out, external.as_ref());
                put_length_prefixed(&mut out, spec);
            }
            Self::Accepted { epoch } | Self::Cancel { epoch } => {
                out.push(if matches!(self, Self::Accepted { .. }) { 5 } else { 9 });
                put_fixed64(&mut out, *epoch);
            }
            Self::Refused { epoch, reason } => {
                out.push(6);
                put_fixed64(&mut out, *epoch);
                // Whatever an error says: it goes into a line.
                let line: String = reason.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
                put_text(&mut out, &line, REASON_BYTES_MAX);
            }
            Self::Progress { epoch, bytes } => {
                out.push(7);
                put_fixed64(&mut out, *epoch);
                put_fixed64(&mut out, *bytes);
            }
            Self::Done { epoch, usage, result } => {
                out.push(8);
                put_fixed64(&mut out, *epoch);
                let RemoteUsage { cpu_micros, round_trips, sent_bytes, received_bytes } = *usage;
                for n in [cpu_micros, round_trips, sent_bytes, received_bytes] {
                    put_fixed64(&mut out, n);
                }
                put_length_prefixed(&mut out, result);
            }
            Self::Ping { number } | Self::Pong { number } => {
                out.push(if matches!(self, Self::Ping { .. }) { 10 } else { 11 });
                put_fixed64(&mut out, *number);
            }
            Self::Idle => out.push(12),
        }
        let body = out.get(HEAD_BYTES..).unwrap_or_default();
        let length = u32::try_from(body.len()).ok().filter(|&n| n as usize <= BODY_BYTES_MAX);
        let length = length.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "a message that is too long"))?;
        let head = [length.to_le_bytes(), crc32c::crc32c(body).to_le_bytes()].concat();
        out[..HEAD_BYTES].copy_from_slice(&head); // it began with room for it
        Ok(out)
    }

    /// The message that a body is.
    ///
    /// # Errors
    /// It is none.
    pub fn decode(body: &[u8]) -> Result<Self, FormatError> {
        let mut d = Decoder::new(body);
        let message = match d.u8("kind")? {
            kind @ (1 | 2) => {
                if d.bytes(MAGIC.len(), "magic")? != MAGIC {
                    return Err(d.error("another protocol"));
                }
                let version = d.fixed32("version")?;
                if version != VERSION {
                    // What follows is that version's business: the number is enough to refuse it.
                    let (name, authenticates) = (String::new(), false);
                    return Ok(match kind {
                        1 => Self::Hello { version, name, authenticates },
                        _ => Self::Welcome { version, name, authenticates },
                    });
                }
                let name = text(&mut d, NAME_BYTES_MAX)?;
                let authenticates = flag(&mut d)?;
                match kind {
                    1 => Self::Hello { version, name, authenticates },
                    _ => Self::Welcome { version, name, authenticates },
                }
            }
            3 => Self::Auth(d.length_prefixed("message")?.to_vec()),
            4 => {
                let epoch = d.fixed64("epoch")?;
                let ticket = match d.length_prefixed("ticket")? {
                    [] => None,
                    bytes => Some(Ticket(bytes.try_into().map_err(|_| d.error("no ticket"))?)),
                };
                let subsystem = text(&mut d, NAME_BYTES_MAX)?;
                let port = u16::try_from(d.fixed32("port")?).map_err(|_| d.error("no port"))?;
                let silence_ms = d.fixed32("time")?;
                let external = external(&mut d)?;
                let spec = d.length_prefixed("spec")?.to_vec();
                Self::Offer { epoch, ticket, subsystem, port, silence_ms, external, spec }
            }
            5 => Self::Accepted { epoch: d.fixed64("epoch")? },
            6 => Self::Refused { epoch: d.fixed64("epoch")?, reason: text(&mut d, REASON_BYTES_MAX)? },
            7 => Self::Progress { epoch: d.fixed64("epoch")?, bytes: d.fixed64("bytes")? },
            8 => {
                let epoch = d.fixed64("epoch")?;
                let usage = RemoteUsage {
                    cpu_micros: d.fixed64("CPU time")?,
                    round_trips: d.fixed64("round trips")?,
                    sent_bytes: d.fixed64("bytes sent")?,
                    received_bytes: d.fixed64("bytes received")?,
                };
                Self::Done { epoch, usage, result: d.length_prefixed("result")?.to_vec() }
            }
            9 => Self::Cancel { epoch: d.fixed64("epoch")? },
            10 => Self::Ping { number: d.fixed64("number")? },
            11 => Self::Pong { number: d.fixed64("number")? },
            12 => Self::Idle,
            _ => return Err(d.error("a kind of message that is not known")),
        };
        if d.is_empty() { Ok(message) } else { Err(d.error("bytes left over")) }
    }
}
