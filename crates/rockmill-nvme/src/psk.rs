//! Pre-shared keys of TLS: their text form for exchange between tools, `NVMeTLSkey-1:HH:BASE64:`, and the keys derived
//! for a connection (NVMe/TCP Transport 1.0, "PSK Interchange Format", "TLS PSK and PSK Identity Derivation").
//!
//! ```text
//!   configured PSK ── HKDF, "HostNQN", the host's name ──► retained PSK ── HKDF, "nvme-tls-psk", digest ──► TLS PSK
//!                                                               └── HMAC of both names ──► digest ──► identity
//! ```
//!
//! This module has no TLS and needs no feature. Identities are of version 1: they include a digest of the names under
//! the key, so two keys for the same names have different identities.

use std::fmt;

use crate::auth::secret::{KeyForm, encode_base64};
use crate::auth::{AuthError, Hash, Random};

const FORM: KeyForm = KeyForm {
    prefix: "NVMeTLSkey-1:",
    hashes: &[Hash::Sha256, Hash::Sha384],
    other_prefix: "it does not begin with NVMeTLSkey-1:",
    other_hash: "its hash is none of 00, 01, 02",
    other_length: "it has not 32 or 48 bytes",
};

/// A key configured on both sides: the *configured PSK*.
#[derive(Clone, PartialEq, Eq)]
pub struct TlsKey {
    key: Vec<u8>,
    /// `None`: the key is used as it is, without deriving another one per host.
    hash: Option<Hash>,
}

/// Why the text of a key is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TlsKeyError(&'static str);

impl fmt::Display for TlsKeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not a key for TLS: {}", self.0)
    }
}

impl std::error::Error for TlsKeyError {}

impl TlsKey {
    /// Parses the text form, as `nvme gen-tls-key` writes it.
    ///
    /// # Errors
    /// The text is invalid. The error does not quote it.
    pub fn parse(text: &str) -> Result<Self, TlsKeyError> {
        let (key, hash) = FORM.parse(text).map_err(TlsKeyError)?;
        Ok(Self { key, hash })
    }

    /// Generates a new key for SHA-256.
    ///
    /// # Errors
    /// The source of randomness fails.
    pub fn generate(random: &dyn Random) -> Result<Self, AuthError> {
        let mut key = vec![0; Hash::Sha256.bytes()];
        random.fill(&mut key).map_err(|_| AuthError::Random)?;
        Ok(Self { key, hash: Some(Hash::Sha256) })
    }

    /// The text form. Keep it secret: anyone who has it can act as either side.
    #[must_use]
    pub fn to_text(&self) -> String {
        FORM.text(&self.key, self.hash)
    }

    /// The hash of the key's cipher suite.
    #[must_use]
    pub fn hash(&self) -> Hash {
        self.hash.unwrap_or(if self.key.len() == Hash::Sha256.bytes() { Hash::Sha256 } else { Hash::Sha384 })
    }

    /// The key for connections of this host to this subsystem.
    #[must_use]
    pub fn psk(&self, host: &str, subsystem: &str) -> Psk {
        let hash = self.hash();
        let retained = match self.hash {
            None => self.key.clone(),
            Some(_) => expand(hash, &extract(hash, &self.key), "HostNQN", host.as_bytes()),
        };
        let names = [host.as_bytes(), b" ", subsystem.as_bytes(), b" NVMe-over-Fabrics"];
        let digest = encode_base64(&hash.mac(&retained, &names));
        let code = hash.code();
        Psk {
            key: tls_psk(hash, &retained, &digest),
            identity: format!("NVMe1R{code:02} {host} {subsystem} {digest}"),
            host: host.to_owned(),
            hash,
        }
    }
}

impl fmt::Debug for TlsKey {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsKey").field("bytes", &self.key.len()).field("hash", &self.hash).finish_non_exhaustive()
    }
}

/// A key as TLS uses it, for one host and one subsystem.
#[derive(Clone, PartialEq, Eq)]
pub struct Psk {
    identity: String,
    key: Vec<u8>,
    host: String,
    hash: Hash,
}

impl Psk {
    /// The key's name, which is sent in plain text.
    #[must_use]
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// The key itself. Keep it secret: anyone who has it can act as either side.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// The host's name.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The hash of the key's cipher suite.
    #[must_use]
    pub fn hash(&self) -> Hash {
        self.hash
    }
}

impl fmt::Debug for Psk {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Psk").field("identity", &self.identity).finish_non_exhaustive()
    }
}

/// Derives the TLS PSK from a retained PSK and the digest of its identity.
fn tls_psk(hash: Hash, retained: &[u8], digest: &str) -> Vec<u8> {
    let context = format!("{:02} {digest}", hash.code());
    expand(hash, &extract(hash, retained), "nvme-tls-psk", context.as_bytes())
}

/// HKDF-Extract without a salt (RFC 5869).
fn extract(hash: Hash, key: &[u8]) -> Vec<u8> {
    hash.mac(&vec![0; hash.bytes()], &[key])
}

/// HKDF-Expand-Label (RFC 8446) with the hash's length as output length: one block.
fn expand(hash: Hash, key: &[u8], label: &str, context: &[u8]) -> Vec<u8> {
    const PREFIX: &str = "tls13 ";
    // Lengths are truncated only for names of more than 255 bytes, whose identities no connection accepts.
    let [bytes, label_bytes, context_bytes] = [hash.bytes(), PREFIX.len() + label.len(), context.len()];
    let head = [0, bytes as u8, label_bytes as u8];
    hash.mac(key, &[&head, PREFIX.as_bytes(), label.as_bytes(), &[context_bytes as u8], context, &[1]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::SystemRandom;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
    }

    const KEY: &str = "5512dbb6737d0106f65975b773dfb011ffc344bcf442e2dd6d8bc4870b5d5b03";
    const TEXT_00: &str = "NVMeTLSkey-1:00:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
    const TEXT_01: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
    const TEXT_02: &str = "NVMeTLSkey-1:02:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwP/w0S89ELi3W2LxIcLXVsDn8kXZQ==:";

    /// The keys and identities of libnvme's own tests.
    #[test]
    fn keys_and_identities_are_those_of_libnvme() {
        for text in [TEXT_00, TEXT_01, TEXT_02] {
            let key = TlsKey::parse(text).unwrap();
            assert_eq!(key.to_text(), text);
            assert!(hex(&key.key).starts_with(KEY));
        }
        let identity = |text: &str| {
            let psk = TlsKey::parse(text).unwrap().psk("nqn.psk-test-host", "nqn.psk-test-subsys");
            psk.identity().to_owned()
        };
        let names = "nqn.psk-test-host nqn.psk-test-subsys";
        assert_eq!(identity(TEXT_01), format!("NVMe1R01 {names} iSbjiStwJ/1TrTvDlt2fjFmzvsytOJelidNnA+X5lEU="));
        let digest = "QhW2+Rp6RzHlNtCslyRxMnwJ11tKKhz8JCAQpQ+XUD8f9td1VeH5h53yz2wKJG1a";
        assert_eq!(identity(TEXT_02), format!("NVMe1R02 {names} {digest}"));
    }

    /// The Linux kernel's own test of the steps after the retained PSK.
    #[test]
    fn digests_and_keys_of_tls_are_those_of_the_kernel() {
        let retained = "1733c59fa7f48fcf37f5f26fc4ff0268ad4f78e030f4f3b0bfd1d47e7bb1447a";
        let digest = "OldoKuTfKddMuyCznAZojkWD7P4D9/AtzDzLimtOxqI=";
        let psk = TlsKey { key: bytes(retained), hash: None }.psk("hostnqn", "subsysnqn");
        assert_eq!(psk.identity(), format!("NVMe1R01 hostnqn subsysnqn {digest}"));
        assert_eq!(hex(psk.key()), "3c17da628474a04d2247c4cab47968c915388193f7c071bd9489cc3666cd7cc8");
        let retained = "f14b2dd3234c459694d3bc63f8968bd6b37c2c6de849e22e\
                        118749001ce4bbe8640b9e3a748cb11ce4b1d71d359cce39";
        let psk = TlsKey { key: bytes(retained), hash: None }.psk("hostnqn", "subsysnqn");
        assert!(psk.identity().ends_with(" cffMWk8TSS7HOQebjgYEIkrPrjWPV4JE5cdPB8WhEvY4JBW5YynKyv66XscN4A9n"));
        let wanted = "2774753233537b3fa50eb7d16a8e43457d85f4906c005b22\
                      36616c5d80939d0898fff15bb8b77119d2be0aac423e7590";
        assert_eq!((hex(psk.key()).as_str(), psk.hash()), (wanted, Hash::Sha384));
    }

    /// From the configured PSK to the TLS PSK, against an independent computation (Python's `hmac`).
    #[test]
    fn a_key_of_tls_is_what_was_computed_elsewhere() {
        let psk = TlsKey::parse(TEXT_01).unwrap().psk("nqn.psk-test-host", "nqn.psk-test-subsys");
        assert_eq!(hex(psk.key()), "8fc3c0badfd4c0c66fa3ca33aadd0314f85536cc9bc47338b60f3e6e563786ca");
        let psk = TlsKey::parse(TEXT_02).unwrap().psk("nqn.psk-test-host", "nqn.psk-test-subsys");
        let wanted = "a2b2f943f479fc682555cec89857c80ed004ce92f32a973d\
                      5764155bb7e36b17a85368a0666d250afac9282dda2e62ca";
        assert_eq!(hex(psk.key()), wanted);
    }

    #[test]
    fn text_that_is_no_key_is_refused_and_not_repeated() {
        let flipped = TEXT_01.replacen("VR", "VS", 1);
        for (text, says) in [
            ("", "begin with"),
            ("DHHC-1:01:VRLb:", "begin with"),
            ("NVMeTLSkey-2:01:VRLb:", "begin with"),
            ("NVMeTLSkey-1:01", "colon"),
            (&TEXT_01[..TEXT_01.len() - 1], "colon"),
            ("NVMeTLSkey-1:03:VRLb:", "hash"),
            ("NVMeTLSkey-1:01:!!!!:", "base64"),
            ("NVMeTLSkey-1:01:AAAA:", "too short"),
            ("NVMeTLSkey-1:01:AAAAAAAA:", "32 or 48"),
            (&TEXT_01.replacen(":01:", ":02:", 1), "length"),
            (&flipped, "checksum"),
        ] {
            let e = TlsKey::parse(text).unwrap_err().to_string();
            assert!(e.contains(says) && !e.contains("VRLb"), "{text}: {e}");
        }
        let key = TlsKey::generate(&SystemRandom).unwrap();
        assert_eq!(TlsKey::parse(&key.to_text()).unwrap(), key);
        assert!(key != TlsKey::generate(&SystemRandom).unwrap());
        let shown = format!("{key:?} {:?}", key.psk("a", "b"));
        assert!(!shown.contains(&hex(&key.key)) && !shown.contains(&format!("{:?}", key.key)), "{shown}");
    }
}
