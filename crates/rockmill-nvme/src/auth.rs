//! In-band authentication: DH-HMAC-CHAP (NVMe Base 2.0, "NVMe In-band Authentication"; first in TP 8006).
//!
//! ```text
//!  host                                                             controller
//!   Connect                                               ───────►  result says that authentication is required
//!   Send     Negotiate: hashes and groups                 ───────►
//!   Receive                                               ◄───────  Challenge: C1, S1, hash, group, g^y
//!   Send     Reply: R1 = MAC(Kh, C1 …), g^x, maybe C2     ───────►  checks R1
//!   Receive  checks R2                                    ◄───────  Success1: maybe R2 = MAC(Kc, C2 …)
//!   Send     Success2, if there was a C2                  ───────►
//! ```
//!
//! Each side knows a secret of each name and proves it; neither is sent. With a group, the secret of a Diffie-Hellman
//! exchange goes into the challenges, so that an eavesdropper cannot test guessed secrets offline. Every queue of a
//! host authenticates separately. The data that follows is neither encrypted nor protected: that needs TLS.
//!
//! [`HostExchange`] and [`ControllerExchange`] are the two sides of one exchange as state machines over messages. They
//! are deterministic except for the [`Random`] that they are given.

mod controller;
mod group;
mod host;
mod message;
mod primes;
pub(crate) mod secret;

pub use controller::{AuthPolicy, ControllerExchange, HostSecrets, Step};
pub use group::Group;
pub use host::{HostAuth, HostExchange};
pub use message::Failure;
pub use secret::{Secret, SecretError};

use std::fmt;
use std::io;
use std::sync::Arc;

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256, Sha384, Sha512};

/// Longest message in bytes: a reply with the largest hash and group.
pub const MESSAGE_BYTES_MAX: usize = 2048;

/// A hash function of the exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hash {
    /// SHA-256.
    Sha256,
    /// SHA-384.
    Sha384,
    /// SHA-512.
    Sha512,
}

impl Hash {
    /// All, the longest first.
    pub const ALL: [Self; 3] = [Self::Sha512, Self::Sha384, Self::Sha256];

    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Sha256 => 1,
            Self::Sha384 => 2,
            Self::Sha512 => 3,
        }
    }

    pub(crate) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|h| h.code() == code)
    }

    /// Bytes of its result.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }

    fn digest(self, bytes: &[u8]) -> Vec<u8> {
        match self {
            Self::Sha256 => Sha256::digest(bytes).to_vec(),
            Self::Sha384 => Sha384::digest(bytes).to_vec(),
            Self::Sha512 => Sha512::digest(bytes).to_vec(),
        }
    }

    /// The HMAC of the concatenated parts.
    pub(crate) fn mac(self, key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
        match self {
            Self::Sha256 => mac::<Hmac<Sha256>>(key, parts).finalize().into_bytes().to_vec(),
            Self::Sha384 => mac::<Hmac<Sha384>>(key, parts).finalize().into_bytes().to_vec(),
            Self::Sha512 => mac::<Hmac<Sha512>>(key, parts).finalize().into_bytes().to_vec(),
        }
    }

    /// True if this is the HMAC of the concatenated parts. Takes constant time.
    fn is_mac(self, key: &[u8], parts: &[&[u8]], of: &[u8]) -> bool {
        match self {
            Self::Sha256 => mac::<Hmac<Sha256>>(key, parts).verify_slice(of).is_ok(),
            Self::Sha384 => mac::<Hmac<Sha384>>(key, parts).verify_slice(of).is_ok(),
            Self::Sha512 => mac::<Hmac<Sha512>>(key, parts).verify_slice(of).is_ok(),
        }
    }
}

fn mac<M: Mac + KeyInit>(key: &[u8], parts: &[&[u8]]) -> M {
    // invariant: HMAC takes keys of any length.
    let mut mac = <M as KeyInit>::new_from_slice(key).expect("a key of any length");
    parts.iter().for_each(|part| mac.update(part));
    mac
}

/// Where challenges and private keys come from.
pub trait Random: Send + Sync + fmt::Debug {
    /// Fills the buffer with unpredictable bytes.
    ///
    /// # Errors
    /// The source of randomness fails.
    fn fill(&self, into: &mut [u8]) -> io::Result<()>;
}

/// The operating system's.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemRandom;

impl Random for SystemRandom {
    fn fill(&self, into: &mut [u8]) -> io::Result<()> {
        getrandom::fill(into).map_err(io::Error::from)
    }
}

/// Why an exchange failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthError {
    /// The peer ended it.
    Refused(Failure),
    /// The peer's message cannot be used; the peer is told why.
    Unusable(Failure, &'static str),
    /// The peer does not know the secret.
    Mismatch,
    /// No random bytes.
    Random,
}

impl fmt::Display for AuthError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(why) => write!(f, "the peer refused: {why}"),
            Self::Unusable(why, what) => write!(f, "{why}: {what}"),
            Self::Mismatch => f.write_str("the peer does not know the secret"),
            Self::Random => f.write_str("there are no random bytes"),
        }
    }
}

impl std::error::Error for AuthError {}

impl AuthError {
    /// What the peer is told.
    pub(crate) fn failure(self) -> Failure {
        match self {
            Self::Unusable(failure, _) => failure,
            _ => Failure::Failed,
        }
    }
}

/// Bytes that must not appear in a log.
#[derive(Default)]
struct Hidden(Vec<u8>);

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

/// A private key and the public value to send; both empty without a group.
#[derive(Debug, Default)]
struct KeyPair {
    private: Hidden,
    public: Vec<u8>,
}

impl KeyPair {
    /// The shared secret; `None` without a group.
    fn shared(private: &Hidden, group: Group, peer: &[u8]) -> Result<Option<Hidden>, AuthError> {
        if group == Group::Null {
            return Ok(None);
        }
        let shared = group.shared(&private.0, peer).map(|secret| Some(Hidden(secret)));
        shared.ok_or(AuthError::Unusable(Failure::Group, "a public value that cannot be used"))
    }
}

fn key_pair(group: Group, random: &Arc<dyn Random>) -> Result<KeyPair, AuthError> {
    if group == Group::Null {
        return Ok(KeyPair::default());
    }
    let private = bytes(random, group::PRIVATE_BYTES)?;
    let public = group.public(&private);
    Ok(KeyPair { private: Hidden(private), public })
}

fn bytes(random: &Arc<dyn Random>, count: usize) -> Result<Vec<u8>, AuthError> {
    let mut out = vec![0; count];
    random.fill(&mut out).map_err(|_| AuthError::Random)?;
    Ok(out)
}

/// A sequence number: any but zero.
fn sequence(random: &Arc<dyn Random>) -> Result<u32, AuthError> {
    let mut out = [0; 4];
    random.fill(&mut out).map_err(|_| AuthError::Random)?;
    Ok(u32::from_le_bytes(out).max(1))
}

/// The challenge as it goes into a response: with a group, its HMAC under the hash of the shared secret.
fn augmented(hash: Hash, shared: Option<&Hidden>, challenge: &[u8]) -> Vec<u8> {
    match shared {
        Some(shared) => hash.mac(&hash.digest(&shared.0), &[challenge]),
        None => challenge.to_vec(),
    }
}

/// The inputs of a response's HMAC, except the challenge. The prover's name comes first.
struct Proof<'a> {
    sequence: [u8; 4],
    transaction: [u8; 2],
    role: &'static [u8],
    prover: &'a str,
    other: &'a str,
}

impl Proof<'_> {
    fn parts<'b>(&'b self, challenge: &'b [u8]) -> [&'b [u8]; 8] {
        // The zero between the names: no secure channel concatenation (SC_C).
        [
            challenge,
            &self.sequence,
            &self.transaction,
            &[0],
            self.role,
            self.prover.as_bytes(),
            &[0],
            self.other.as_bytes(),
        ]
    }
}

/// Of the host's response.
const HOST_ROLE: &[u8] = b"HostHost";
/// Of the controller's response.
const CONTROLLER_ROLE: &[u8] = b"Controller";

#[cfg(test)]
mod tests;
