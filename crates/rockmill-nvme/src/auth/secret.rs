//! Secrets in their text form for exchange between tools: `DHHC-1:HH:BASE64:`.

use std::fmt;

use super::{AuthError, Hash, Random};

/// A secret of a host or a controller.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    key: Vec<u8>,
    hash: Option<Hash>,
}

/// Why the text of a secret is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecretError(&'static str);

impl fmt::Display for SecretError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not a secret for DH-HMAC-CHAP: {}", self.0)
    }
}

impl std::error::Error for SecretError {}

impl Secret {
    /// Parses the text form, as `nvme gen-dhchap-key` writes it.
    ///
    /// # Errors
    /// The text is invalid. The error does not quote it.
    pub fn parse(text: &str) -> Result<Self, SecretError> {
        let (key, hash) = FORM.parse(text).map_err(SecretError)?;
        Ok(Self { key, hash })
    }

    /// Generates a secret of 32 bytes, or of the length of `hash`, which then derives a separate secret for each name.
    ///
    /// # Errors
    /// The source of randomness fails.
    pub fn generate(hash: Option<Hash>, random: &dyn Random) -> Result<Self, AuthError> {
        let mut key = vec![0; hash.map_or(32, Hash::bytes)];
        random.fill(&mut key).map_err(|_| AuthError::Random)?;
        Ok(Self { key, hash })
    }

    /// The text form. Keep it secret: anyone who has it can act as its owner.
    #[must_use]
    pub fn to_text(&self) -> String {
        FORM.text(&self.key, self.hash)
    }

    /// The key of this name.
    pub(super) fn of(&self, name: &str) -> Vec<u8> {
        match self.hash {
            None => self.key.clone(),
            Some(hash) => hash.mac(&self.key, &[name.as_bytes(), b"NVMe-over-Fabrics"]),
        }
    }
}

impl fmt::Debug for Secret {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret").field("bytes", &self.key.len()).field("hash", &self.hash).finish_non_exhaustive()
    }
}

const FORM: KeyForm = KeyForm {
    prefix: "DHHC-1:",
    hashes: &[Hash::Sha256, Hash::Sha384, Hash::Sha512],
    other_prefix: "it does not begin with DHHC-1:",
    other_hash: "its hash is none of 00, 01, 02, 03",
    other_length: "it has not 32, 48 or 64 bytes",
};

/// The text form of secrets and TLS keys: a prefix, the hash, and base64 of the key and its CRC-32. Includes the error
/// messages for invalid texts.
pub(crate) struct KeyForm {
    pub prefix: &'static str,
    /// The hashes that it may name. A key is as long as one of them.
    pub hashes: &'static [Hash],
    pub other_prefix: &'static str,
    pub other_hash: &'static str,
    pub other_length: &'static str,
}

impl KeyForm {
    /// The key and its hash.
    pub fn parse(&self, text: &str) -> Result<(Vec<u8>, Option<Hash>), &'static str> {
        let rest = text.strip_prefix(self.prefix).ok_or(self.other_prefix)?;
        let (hash, rest) = rest.split_once(':').ok_or("a colon is missing")?;
        let base64 = rest.strip_suffix(':').ok_or("the colon at its end is missing")?;
        let hash = match hash.as_bytes() {
            b"00" => None,
            [b'0', digit] => {
                let of_digit = |hash: &&Hash| b'0' + hash.code() == *digit;
                Some(*self.hashes.iter().find(of_digit).ok_or(self.other_hash)?)
            }
            _ => return Err(self.other_hash),
        };
        let bytes = decode_base64(base64).ok_or("it is no base64")?;
        let (key, sum) = bytes.split_last_chunk().ok_or("it is too short")?;
        if !self.hashes.iter().any(|h| h.bytes() == key.len()) {
            return Err(self.other_length);
        }
        if hash.is_some_and(|h| h.bytes() != key.len()) {
            return Err("it has another length than its hash");
        }
        if crc32(key) != u32::from_le_bytes(*sum) {
            return Err("its checksum is another");
        }
        Ok((key.to_vec(), hash))
    }

    /// The text of a key.
    pub fn text(&self, key: &[u8], hash: Option<Hash>) -> String {
        let bytes = [key, &crc32(key).to_le_bytes()].concat();
        format!("{}{:02}:{}:", self.prefix, hash.map_or(0, Hash::code), encode_base64(&bytes))
    }
}

/// CRC-32 as Ethernet has it.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 0 { crc >> 1 } else { crc >> 1 ^ 0xedb8_8320 };
    !bytes.iter().fold(u32::MAX, |crc, &b| (0..8).fold(crc ^ u32::from(b), step))
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

pub(crate) fn encode_base64(bytes: &[u8]) -> String {
    let mut out = String::new();
    for group in bytes.chunks(3) {
        let bits = (0..3).fold(0u32, |bits, i| bits << 8 | u32::from(*group.get(i).unwrap_or(&0)));
        for i in 0..4 {
            let sextet = (bits >> (18 - 6 * i) & 63) as usize;
            out.push(if i <= group.len() { char::from(ALPHABET[sextet]) } else { '=' });
        }
    }
    out
}

/// `None` for other characters, a wrong length, or leftover bits.
fn decode_base64(text: &str) -> Option<Vec<u8>> {
    // Longer than the longest secret: not worth decoding.
    if text.len() > 128 || !text.len().is_multiple_of(4) {
        return None;
    }
    let digits = text.trim_end_matches('=');
    if text.len() - digits.len() > 2 {
        return None;
    }
    let (mut out, mut bits, mut count) = (Vec::new(), 0u32, 0);
    for c in digits.bytes() {
        bits = bits << 6 | ALPHABET.iter().position(|&a| a == c)? as u32;
        count += 6;
        if count >= 8 {
            count -= 8;
            out.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    (bits == 0).then_some(out)
}
