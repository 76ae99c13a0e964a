//! The messages of DH-HMAC-CHAP ("DH-HMAC-CHAP Protocol"): decoding and encoding. All begin with type, id, two bytes,
//! and the transaction's number.

use std::fmt;

use super::{AuthError, Group, Hash};
use crate::bytes::{put, u16_at, u32_at};

const COMMON: u8 = 0;
const DHCHAP: u8 = 1;
const NEGOTIATE: u8 = 0;
const CHALLENGE: u8 = 1;
const REPLY: u8 = 2;
const SUCCESS1: u8 = 3;
const SUCCESS2: u8 = 4;
const FAILURE2: u8 = 0xf0;
const FAILURE1: u8 = 0xf1;

/// The authentication protocol of the only descriptor that is offered.
const PROTOCOL_DHCHAP: u8 = 1;
const HEAD: usize = 16;
const DESCRIPTOR: usize = 64;
/// Where the groups are in a descriptor's list.
const GROUPS_AT: usize = 30;

/// Why an exchange failed, as reported to the peer ("AUTH_Failure", reason code explanation).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The response was wrong, or the peer is unknown.
    Failed,
    /// No protocol that both have.
    Protocol,
    /// One side wants a secure channel after the exchange.
    Concatenation,
    /// No hash that both have.
    Hash,
    /// No common group, or an unusable public value.
    Group,
    /// A field of a message has an invalid value.
    Payload,
    /// A message that is not allowed now.
    Message,
    /// A reason without a name.
    Other(u8),
}

impl Failure {
    fn code(self) -> u8 {
        match self {
            Self::Failed => 1,
            Self::Protocol => 2,
            Self::Concatenation => 3,
            Self::Hash => 4,
            Self::Group => 5,
            Self::Payload => 6,
            Self::Message => 7,
            Self::Other(code) => code,
        }
    }

    fn from_code(code: u8) -> Self {
        use Failure::{Concatenation, Failed, Group, Hash, Message, Payload, Protocol};
        let all = [Failed, Protocol, Concatenation, Hash, Group, Payload, Message];
        all.into_iter().find(|f| f.code() == code).unwrap_or(Self::Other(code))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed => f.write_str("authentication failed"),
            Self::Protocol => f.write_str("authentication protocol not usable"),
            Self::Concatenation => f.write_str("secure channel concatenation mismatch"),
            Self::Hash => f.write_str("hash function not usable"),
            Self::Group => f.write_str("DH group not usable"),
            Self::Payload => f.write_str("incorrect payload"),
            Self::Message => f.write_str("incorrect protocol message"),
            Self::Other(code) => write!(f, "reason {code:#x}"),
        }
    }
}

/// A message of either side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    Negotiate { secure_channel: u8, hashes: Vec<u8>, groups: Vec<u8> },
    Challenge { sequence: u32, hash: u8, group: u8, challenge: Vec<u8>, public: Vec<u8> },
    Reply { sequence: u32, response: Vec<u8>, challenge: Option<Vec<u8>>, public: Vec<u8> },
    Success1 { response: Option<Vec<u8>>, hash_bytes: u8 },
    Success2,
    Failure1(Failure),
    Failure2(Failure),
}

fn payload(what: &'static str) -> AuthError {
    AuthError::Unusable(Failure::Payload, what)
}

impl Message {
    /// Decodes a message and its transaction number. Checks lengths, not values.
    pub(super) fn decode(bytes: &[u8]) -> Result<(u16, Self), AuthError> {
        if bytes.len() < 8 {
            return Err(payload("it is too short"));
        }
        // As long as the longest fixed part; missing bytes are zeros.
        let mut head = [0; HEAD];
        let n = bytes.len().min(HEAD);
        head[..n].copy_from_slice(&bytes[..n]);
        let part = |at: usize, count: usize| bytes.get(at..at + count).ok_or(payload("it is too short"));
        let message = match (head[0], head[1]) {
            (COMMON, NEGOTIATE) => {
                let descriptor = part(8, DESCRIPTOR)?;
                let (hashes, groups) = (usize::from(descriptor[2]), usize::from(descriptor[3]));
                if head[7] == 0 || descriptor[0] != PROTOCOL_DHCHAP {
                    return Err(AuthError::Unusable(Failure::Protocol, "it does not offer DH-HMAC-CHAP"));
                }
                let list = |at: usize, count: usize| descriptor.get(4 + at..4 + at + count);
                let lists = list(0, hashes).filter(|_| hashes <= GROUPS_AT).zip(list(GROUPS_AT, groups));
                let (hashes, groups) = lists.ok_or(payload("a list is too long"))?;
                Self::Negotiate { secure_channel: head[6], hashes: hashes.to_vec(), groups: groups.to_vec() }
            }
            (DHCHAP, CHALLENGE) => {
                let (hash_bytes, public_bytes) = (usize::from(head[6]), usize::from(u16_at(&head, 10)));
                Self::Challenge {
                    sequence: u32_at(&head, 12),
                    hash: head[8],
                    group: head[9],
                    challenge: part(HEAD, hash_bytes)?.to_vec(),
                    public: part(HEAD + hash_bytes, public_bytes)?.to_vec(),
                }
            }
            (DHCHAP, REPLY) => {
                let (hash_bytes, public_bytes) = (usize::from(head[6]), usize::from(u16_at(&head, 10)));
                let challenge = part(HEAD + hash_bytes, hash_bytes)?;
                Self::Reply {
                    sequence: u32_at(&head, 12),
                    response: part(HEAD, hash_bytes)?.to_vec(),
                    challenge: (head[8] != 0).then(|| challenge.to_vec()),
                    public: part(HEAD + 2 * hash_bytes, public_bytes)?.to_vec(),
                }
            }
            (DHCHAP, SUCCESS1) => {
                let response = if head[8] == 0 { None } else { Some(part(HEAD, head[6].into())?.to_vec()) };
                Self::Success1 { response, hash_bytes: head[6] }
            }
            (DHCHAP, SUCCESS2) => Self::Success2,
            (COMMON, FAILURE1) => Self::Failure1(Failure::from_code(part(0, 8)?[7])),
            (COMMON, FAILURE2) => Self::Failure2(Failure::from_code(part(0, 8)?[7])),
            _ => return Err(AuthError::Unusable(Failure::Message, "there is no such message")),
        };
        Ok((u16_at(&head, 4), message))
    }

    pub(super) fn encode(&self, transaction: u16) -> Vec<u8> {
        let mut out = vec![0; HEAD];
        let (kind, id) = match self {
            Self::Negotiate { secure_channel, hashes, groups } => {
                out.resize(8 + DESCRIPTOR, 0);
                out[6] = *secure_channel;
                out[7] = 1;
                out[8] = PROTOCOL_DHCHAP;
                out[10] = hashes.len() as u8;
                out[11] = groups.len() as u8;
                put(&mut out, 12, hashes);
                put(&mut out, 12 + GROUPS_AT, groups);
                (COMMON, NEGOTIATE)
            }
            Self::Challenge { sequence, hash, group, challenge, public } => {
                out[6] = challenge.len() as u8;
                out[8] = *hash;
                out[9] = *group;
                put(&mut out, 10, &(public.len() as u16).to_le_bytes());
                put(&mut out, 12, &sequence.to_le_bytes());
                out.extend(challenge.iter().chain(public));
                (DHCHAP, CHALLENGE)
            }
            Self::Reply { sequence, response, challenge, public } => {
                out[6] = response.len() as u8;
                out[8] = u8::from(challenge.is_some());
                put(&mut out, 10, &(public.len() as u16).to_le_bytes());
                put(&mut out, 12, &sequence.to_le_bytes());
                out.extend(response);
                match challenge {
                    Some(challenge) => out.extend(challenge),
                    None => out.resize(out.len() + response.len(), 0),
                }
                out.extend(public);
                (DHCHAP, REPLY)
            }
            Self::Success1 { response, hash_bytes } => {
                out[6] = *hash_bytes;
                out[8] = u8::from(response.is_some());
                out.extend(response.iter().flatten());
                (DHCHAP, SUCCESS1)
            }
            Self::Success2 => (DHCHAP, SUCCESS2),
            Self::Failure1(failure) | Self::Failure2(failure) => {
                // Reason 1: authentication failure.
                out.truncate(8);
                out[6] = 1;
                out[7] = failure.code();
                (COMMON, if matches!(self, Self::Failure1(_)) { FAILURE1 } else { FAILURE2 })
            }
        };
        out[0] = kind;
        out[1] = id;
        put(&mut out, 4, &transaction.to_le_bytes());
        out
    }
}

/// Decodes a hash code; the error is sent to the peer.
pub(super) fn hash(code: u8) -> Result<Hash, AuthError> {
    Hash::from_code(code).ok_or(AuthError::Unusable(Failure::Hash, "an unknown hash"))
}

pub(super) fn group(code: u8) -> Result<Group, AuthError> {
    Group::from_code(code).ok_or(AuthError::Unusable(Failure::Group, "an unknown group"))
}
