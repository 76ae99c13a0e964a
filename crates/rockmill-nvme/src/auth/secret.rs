//! Secrets in the form that all tools exchange them in: `DHHC-1:HH:BASE64:`.

use std::fmt;

use super::{AuthError, Hash, Random};

/// A secret of a host or a controller.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    key: Vec<u8>,
    hash: Option<Hash>,
}

/// What is wrong with the text of a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecretError(&'static str);

impl fmt::Display for SecretError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not a secret for DH-HMAC-CHAP: {}", self.0)
    }
}

impl std::error::Error for SecretError {}

impl Secret {
    /// From text, as `nvme gen-dhchap-key` writes it.
    ///
    /// # Errors
    /// What is wrong with it. The text is not repeated.
    pub fn parse(text: &str) -> Result<Self, SecretError> {
        let wrong = SecretError;
        let rest = text.strip_prefix("DHHC-1:").ok_or(wrong("it does not begin with DHHC-1:"))?;
        let (hash, rest) = rest.split_once(':').ok_or(wrong("a colon is missing"))?;
        let base64 = rest.strip_suffix(':').ok_or(wrong("the colon at its end is missing"))?;
        let hash = match hash {
            "00" => None,
            "01" => Some(Hash::Sha256),
            "02" => Some(Hash::Sha384),
            "03" => Some(Hash::Sha512),
            _ => return Err(wrong("its hash is none of 00, 01, 02, 03")),
        };
        let bytes = decode_base64(base64).ok_or(wrong("it is no base64"))?;
        let (key, sum) = bytes.split_last_chunk().ok_or(wrong("it is too short"))?;
        if !matches!(key.len(), 32 | 48 | 64) {
            return Err(wrong("it has not 32, 48 or 64 bytes"));
        }
        if hash.is_some_and(|h| h.bytes() != key.len()) {
            return Err(wrong("it has another length than its hash"));
        }
        if crc32(key) != u32::from_le_bytes(*sum) {
            return Err(wrong("its checksum is another"));
        }
        Ok(Self { key: key.to_vec(), hash })
    }

    /// A new secret of 32 bytes, or as many as `hash` has, which then makes another secret of it for each name.
    ///
    /// # Errors
    /// There are no random bytes.
    pub fn generate(hash: Option<Hash>, random: &dyn Random) -> Result<Self, AuthError> {
        let mut key = vec![0; hash.map_or(32, Hash::bytes)];
        random.fill(&mut key).map_err(|_| AuthError::Random)?;
        Ok(Self { key, hash })
    }

    /// As text. Whoever has it is the host or the controller.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut bytes = self.key.clone();
        bytes.extend(crc32(&self.key).to_le_bytes());
        format!("DHHC-1:{:02}:{}:", self.hash.map_or(0, Hash::code), encode_base64(&bytes))
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

/// CRC-32 as Ethernet has it.
pub(crate) fn crc32(bytes: &[u8]) -> u32 {
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

/// `None` for other characters, a wrong length, or bits that are left over.
pub(crate) fn decode_base64(text: &str) -> Option<Vec<u8>> {
    // Longer than the longest secret: nothing to look at.
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
