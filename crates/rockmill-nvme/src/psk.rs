//! Pre-shared keys of TLS: their text form for exchange between tools, `NVMeTLSkey-1:HH:BASE64:`, and the keys derived
//! for a connection (NVMe/TCP Transport 1.0, "PSK Interchange Format", "TLS PSK and PSK Identity Derivation").
//!
//! ```text
//!   configured PSK ── HKDF, "HostNQN", the host's name ──► retained PSK ── HKDF, "nvme-tls-psk", digest ──► TLS PSK
//!                                                               └── HMAC of both names ──► digest ──► identity
//! ```
//!
//! This module has no TLS and needs no feature. Identities are of version 1 unless asked otherwise: they include a
//! digest of the names under the key, so two keys for the same names have different identities. [`Derivation`] has the
//! other ways from a configured key to a connection's, which tools of Linux have.

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

/// How the key of a connection and its identity come from a configured key. Both sides must do the same, or TLS refuses
/// the key. Linux keeps keys and identities as they are given to it: nvme-cli derives them, with its library libnvme.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Derivation {
    /// As specified, with an identity of version 1: the names and a digest of them under the key. nvme-cli of 2026 does
    /// this.
    #[default]
    V1,
    /// As specified at first, with an identity of version 0: only the names. Two keys for the same names are told apart
    /// only when one fails.
    V0,
    /// [`V1`](Self::V1) by older versions of libnvme, such as Debian 13's (1.13): HKDF-Expand-Label without the lengths
    /// of label and context, and with the bytes of the result's length swapped. Newer nvme-cli does it with `--compat`.
    OldV1,
    /// [`V0`](Self::V0) by such a libnvme.
    OldV0,
}

impl Derivation {
    /// All of them. A target can have a key by each for the same names, except for both `V0` and `OldV0`: their
    /// identities are the same.
    pub const ALL: [Self; 4] = [Self::V1, Self::V0, Self::OldV1, Self::OldV0];

    fn version(self) -> u8 {
        u8::from(matches!(self, Self::V1 | Self::OldV1))
    }

    /// HKDF-Expand-Label (RFC 8446) with the hash's length as output length: one block.
    fn expand(self, hash: Hash, key: &[u8], label: &str, context: &[u8]) -> Vec<u8> {
        const PREFIX: &str = "tls13 ";
        // Lengths are truncated only for names of more than 255 bytes, whose identities no connection accepts.
        let [bytes, label_bytes, context_bytes] =
            [hash.bytes() as u8, (PREFIX.len() + label.len()) as u8, context.len() as u8];
        let (prefix, label) = (PREFIX.as_bytes(), label.as_bytes());
        match self {
            Self::V1 | Self::V0 => {
                hash.mac(key, &[&[0, bytes, label_bytes], prefix, label, &[context_bytes], context, &[1]])
            }
            Self::OldV1 | Self::OldV0 => hash.mac(key, &[&[bytes, 0], prefix, label, context, &[1]]),
        }
    }
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
        Self::generate_for(Hash::Sha256, random)
    }

    /// Generates a new key for SHA-384, which makes connections use AES with keys of 256 bits.
    ///
    /// # Errors
    /// The source of randomness fails.
    pub fn generate_sha384(random: &dyn Random) -> Result<Self, AuthError> {
        Self::generate_for(Hash::Sha384, random)
    }

    fn generate_for(hash: Hash, random: &dyn Random) -> Result<Self, AuthError> {
        let mut key = vec![0; hash.bytes()];
        random.fill(&mut key).map_err(|_| AuthError::Random)?;
        Ok(Self { key, hash: Some(hash) })
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

    /// The key for connections of this host to this subsystem, with an identity of version 1.
    #[must_use]
    pub fn psk(&self, host: &str, subsystem: &str) -> Psk {
        self.psk_by(Derivation::V1, host, subsystem)
    }

    /// The same, derived in another way: for peers that know no better.
    #[must_use]
    pub fn psk_by(&self, derivation: Derivation, host: &str, subsystem: &str) -> Psk {
        let hash = self.hash();
        let retained = match self.hash {
            None => self.key.clone(),
            Some(_) => derivation.expand(hash, &extract(hash, &self.key), "HostNQN", host.as_bytes()),
        };
        let code = hash.code();
        let named = format!("NVMe{}R{code:02} {host} {subsystem}", derivation.version());
        let (identity, context) = if derivation.version() == 0 {
            (named.clone(), named)
        } else {
            let names = [host.as_bytes(), b" ", subsystem.as_bytes(), b" NVMe-over-Fabrics"];
            let digest = encode_base64(&hash.mac(&retained, &names));
            (format!("{named} {digest}"), format!("{code:02} {digest}"))
        };
        let key = derivation.expand(hash, &extract(hash, &retained), "nvme-tls-psk", context.as_bytes());
        Psk { key, identity, host: host.to_owned(), subsystem: subsystem.to_owned(), hash }
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
    subsystem: String,
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

    /// The subsystem's name.
    #[must_use]
    pub fn subsystem(&self) -> &str {
        &self.subsystem
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

/// HKDF-Extract without a salt (RFC 5869).
fn extract(hash: Hash, key: &[u8]) -> Vec<u8> {
    hash.mac(&vec![0; hash.bytes()], &[key])
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

    /// Version 0 against the same computation; the old ways against it and, for the identity, nvme-cli 2.13 with
    /// libnvme 1.13.
    #[test]
    fn other_derivations_are_what_tools_have() {
        let key = TlsKey::parse(TEXT_01).unwrap();
        let names = "nqn.psk-test-host nqn.psk-test-subsys";
        let old = format!("NVMe1R01 {names} 66GuqV08TsAGII39teWUfwQwizjv06Jy8jOcX3NAAzM=");
        for (derivation, identity, wanted) in [
            (
                Derivation::V0,
                format!("NVMe0R01 {names}"),
                "05c6503551ad136e6ee32e6eeb3f6d500b69701d84ec71e328f65c7f51566f68",
            ),
            (Derivation::OldV1, old, "b9f5ab2a41ba6e72a23a12066302a2f775fa6c0942c8e0b18ca8ac07edf305e2"),
            (
                Derivation::OldV0,
                format!("NVMe0R01 {names}"),
                "09fb1983ac6d6d0353e7cae4f23daddd651c367fa347c59d9cf6936f5a83eafb",
            ),
        ] {
            let psk = key.psk_by(derivation, "nqn.psk-test-host", "nqn.psk-test-subsys");
            assert_eq!((psk.identity(), hex(psk.key()).as_str()), (identity.as_str(), wanted), "{derivation:?}");
            assert_eq!((psk.host(), psk.subsystem()), ("nqn.psk-test-host", "nqn.psk-test-subsys"));
        }
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
        let long = TlsKey::generate_sha384(&SystemRandom).unwrap();
        assert_eq!((TlsKey::parse(&long.to_text()).unwrap(), long.hash()), (long, Hash::Sha384));
        let key = TlsKey::generate(&SystemRandom).unwrap();
        assert_eq!((TlsKey::parse(&key.to_text()).unwrap(), key.hash()), (key.clone(), Hash::Sha256));
        assert!(key != TlsKey::generate(&SystemRandom).unwrap());
        let shown = format!("{key:?} {:?}", key.psk("a", "b"));
        assert!(!shown.contains(&hex(&key.key)) && !shown.contains(&format!("{:?}", key.key)), "{shown}");
    }
}
