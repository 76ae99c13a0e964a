//! Diffie-Hellman in the groups of RFC 7919.

use crypto_bigint::modular::{BoxedMontyForm, BoxedMontyParams};
use crypto_bigint::{BoxedUint, Odd};

use super::primes;

/// Bytes of a private key. RFC 7919 requires 400 bits for the largest group, fewer for the others.
pub(super) const PRIVATE_BYTES: usize = 64;

/// A group for the Diffie-Hellman exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    /// No exchange. An eavesdropper can test guessed secrets offline, so a weak secret is lost.
    Null,
    /// ffdhe2048.
    Ffdhe2048,
    /// ffdhe3072.
    Ffdhe3072,
    /// ffdhe4096.
    Ffdhe4096,
    /// ffdhe6144.
    Ffdhe6144,
    /// ffdhe8192.
    Ffdhe8192,
}

impl Group {
    /// All groups with an exchange, in the order in which they are offered: 3072 bits first, for 128 bits of strength.
    pub const ALL: [Self; 5] = [Self::Ffdhe3072, Self::Ffdhe2048, Self::Ffdhe4096, Self::Ffdhe6144, Self::Ffdhe8192];

    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Null => 0,
            Self::Ffdhe2048 => 1,
            Self::Ffdhe3072 => 2,
            Self::Ffdhe4096 => 3,
            Self::Ffdhe6144 => 4,
            Self::Ffdhe8192 => 5,
        }
    }

    pub(crate) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().chain([Self::Null]).find(|g| g.code() == code)
    }

    /// Bytes of a public value; 0 without an exchange.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::Null => 0,
            Self::Ffdhe2048 => 256,
            Self::Ffdhe3072 => 384,
            Self::Ffdhe4096 => 512,
            Self::Ffdhe6144 => 768,
            Self::Ffdhe8192 => 1024,
        }
    }

    fn prime(self) -> Option<Odd<BoxedUint>> {
        let hexadecimal = match self {
            Self::Null => return None,
            Self::Ffdhe2048 => primes::FFDHE2048,
            Self::Ffdhe3072 => primes::FFDHE3072,
            Self::Ffdhe4096 => primes::FFDHE4096,
            Self::Ffdhe6144 => primes::FFDHE6144,
            Self::Ffdhe8192 => primes::FFDHE8192,
        };
        Odd::new(BoxedUint::from_be_hex(hexadecimal, self.bits()).into_option()?).into_option()
    }

    fn bits(self) -> u32 {
        self.bytes() as u32 * 8
    }

    /// `base` to the power of a private key, as long as the prime. Empty without an exchange.
    fn power(self, base: &BoxedUint, private: &[u8]) -> Vec<u8> {
        let Some(prime) = self.prime() else { return Vec::new() };
        // The time may depend on the prime only.
        let params = BoxedMontyParams::new_vartime(prime);
        let base = BoxedMontyForm::new(base.clone(), &params);
        let private = BoxedUint::from_be_slice_truncated(private, PRIVATE_BYTES as u32 * 8);
        base.pow(&private).retrieve().to_be_bytes().into_vec()
    }

    /// The public value of a private key.
    pub(super) fn public(self, private: &[u8]) -> Vec<u8> {
        let mut two = vec![0; self.bytes()];
        two.last_mut().into_iter().for_each(|b| *b = 2);
        match BoxedUint::from_be_slice(&two, self.bits()) {
            Ok(two) => self.power(&two, private),
            Err(_) => Vec::new(),
        }
    }

    /// The shared secret. `None` for a value that no honest peer sends: one of another length, or 0, 1, p - 1 and
    /// above, for which the secret would be one of few.
    pub(super) fn shared(self, private: &[u8], peer: &[u8]) -> Option<Vec<u8>> {
        if self == Self::Null || peer.len() != self.bytes() {
            return None;
        }
        let base = BoxedUint::from_be_slice(peer, self.bits()).ok()?;
        let one = BoxedUint::one_with_precision(self.bits());
        let prime = self.prime()?;
        let last = prime.wrapping_sub(&one);
        if base <= one || base >= last {
            return None;
        }
        Some(self.power(&base, private))
    }
}
