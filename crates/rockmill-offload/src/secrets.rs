//! Who knows which secret: a file that both sides of a connection have, each its own.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use rockmill_nvme::auth::{AuthPolicy, Hash, HostAuth, HostSecrets, Secret, SystemRandom};
use rockmill_nvme::psk::TlsKey;
use rockmill_nvme::tcp::{ClientTls, ServerTls};

use crate::{bad_configuration, check_name};

/// The word before one's own secret.
const OWN: &str = "self";
/// Bytes of a name with TLS. The identity of a key has two of them, or one and the name of a job's subsystem, which is
/// shorter; with a key for SHA-384 these are exactly the 255 bytes that an identity may have.
const TLS_NAME_BYTES_MAX: usize = 90;

/// One's own secret, and those of the peers by their names. Each side always proves that it knows its secret, on the
/// control channel and on each connection of NVMe/TCP. With keys of TLS, one for each peer, all of these connections
/// are encrypted, and peers without TLS are refused.
///
/// As text, a line for each, with its name or `self` before it, and the key of TLS that both have after the secret of a
/// peer; empty lines and lines starting with `#` are ignored:
///
/// ```text
/// self DHHC-1:01:…:
/// nqn.2026-11.rockmill:worker DHHC-1:01:…: NVMeTLSkey-1:01:…:
/// ```
#[derive(Debug, Clone)]
pub struct Secrets {
    own: Secret,
    peers: BTreeMap<String, Secret>,
    /// Empty, or one for each peer.
    tls: BTreeMap<String, TlsKey>,
}

impl Secrets {
    /// These secrets, without TLS.
    ///
    /// # Errors
    /// There is no peer, a name is none, or a peer has one's own secret: then either side could answer for the other.
    pub fn new(own: Secret, peers: BTreeMap<String, Secret>) -> Result<Self, String> {
        if peers.is_empty() {
            return Err("there is no peer".to_owned());
        }
        peers.keys().try_for_each(|name| check_name(name))?;
        if peers.values().any(|peer| *peer == own) {
            return Err("a peer has one's own secret: each side needs one of its own".to_owned());
        }
        Ok(Self { own, peers, tls: BTreeMap::new() })
    }

    /// With these keys of TLS, by the names of the peers. None at all is without TLS.
    ///
    /// # Errors
    /// A peer has none and another one does, a key is no peer's, or a name is too long for TLS.
    pub fn with_tls(self, keys: BTreeMap<String, TlsKey>) -> Result<Self, String> {
        if let Some(name) = keys.keys().find(|name| !self.peers.contains_key(*name)) {
            return Err(format!("a key for TLS of {name:?}, which is no peer"));
        }
        let lacks = self.peers.keys().find(|name| !keys.contains_key(*name));
        if let Some(name) = lacks.filter(|_| !keys.is_empty()) {
            return Err(format!("{name:?} has no key for TLS, and another peer has one: all have one, or none has"));
        }
        keys.keys().try_for_each(|name| check_tls_name(name))?;
        Ok(Self { tls: keys, ..self })
    }

    /// New secrets for a store and a worker that know each other by these names, with a key of TLS where this crate has
    /// it ([`crate::TLS`]): the text of the store's file, and that of the worker's.
    ///
    /// # Errors
    /// A name is none, or too long for TLS; there are no random bytes.
    pub fn generate(store: &str, worker: &str) -> Result<[String; 2], String> {
        for name in [store, worker] {
            check_name(name)?;
            check_tls_name(name)?;
        }
        let secret = || Secret::generate(Some(Hash::Sha256), &SystemRandom).map_err(|e| e.to_string());
        let (of_store, of_worker) = (secret()?, secret()?);
        let key = match crate::TLS {
            true => format!(" {}", TlsKey::generate(&SystemRandom).map_err(|e| e.to_string())?.to_text()),
            false => String::new(),
        };
        let file = |own: &Secret, peer: &str, secret: &Secret| {
            format!("{OWN} {}\n{peer} {}{key}\n", own.to_text(), secret.to_text())
        };
        Ok([file(&of_store, worker, &of_worker), file(&of_worker, store, &of_store)])
    }

    /// Reads the text form.
    ///
    /// # Errors
    /// The line that is wrong, without what it says.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (mut own, mut peers, mut tls) = (None, BTreeMap::new(), BTreeMap::new());
        for (i, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = |what: &str| format!("line {}: {what}", i + 1);
            let (name, secret) = line.split_once(char::is_whitespace).ok_or_else(|| wrong("no name and secret"))?;
            let (secret, key) = secret.trim().split_once(char::is_whitespace).unwrap_or((secret.trim(), ""));
            let secret = Secret::parse(secret).map_err(|e| wrong(&e.to_string()))?;
            check_name(name).map_err(|e| wrong(&e))?;
            if !key.is_empty() {
                let key = TlsKey::parse(key.trim()).map_err(|e| wrong(&e.to_string()))?;
                tls.insert(name.to_owned(), key);
            }
            let twice = match name {
                OWN if !key.is_empty() => return Err(wrong("a key for TLS belongs to a peer, and both have it")),
                OWN => own.replace(secret).is_some(),
                name => peers.insert(name.to_owned(), secret).is_some(),
            };
            if twice {
                return Err(wrong("a name that was there before"));
            }
        }
        Self::new(own.ok_or_else(|| format!("there is no line with `{OWN}`"))?, peers)?.with_tls(tls)
    }

    /// The key of TLS that this side and `peer` have.
    pub(crate) fn tls_key(&self, peer: &str) -> Option<&TlsKey> {
        self.tls.get(peer)
    }

    /// TLS of this side where it connects, by the names of those it may connect to; empty without TLS.
    pub(crate) fn clients(&self, own: &str) -> io::Result<Vec<(String, ClientTls)>> {
        if self.tls.is_empty() {
            return Ok(Vec::new());
        }
        check_tls_name(own).map_err(bad_configuration)?;
        self.tls.iter().map(|(peer, key)| Ok((peer.clone(), ClientTls::new(&key.psk(own, peer))?))).collect()
    }

    /// TLS of this side where peers connect to it.
    pub(crate) fn server(&self, own: &str) -> io::Result<Option<ServerTls>> {
        if self.tls.is_empty() {
            return Ok(None);
        }
        check_tls_name(own).map_err(bad_configuration)?;
        ServerTls::new(self.tls.iter().map(|(peer, key)| key.psk(peer, own)).collect()).map(Some)
    }

    /// What this side, the one that connects, proves to `peer`, and asks of it; `None` for one that is not known.
    pub(crate) fn towards(&self, peer: &str) -> Option<HostAuth> {
        Some(HostAuth::new(self.own.clone(), Some(self.peers.get(peer)?.clone())))
    }

    /// What this side, the one that is connected to, asks of `peers`, and proves to them.
    pub(crate) fn policy<'a>(&'a self, names: impl Fn(&str) -> bool + 'a) -> Arc<AuthPolicy> {
        let known = self.peers.iter().filter(|(name, _)| names(name));
        let secrets = |peer: &Secret| HostSecrets { host: peer.clone(), controller: Some(self.own.clone()) };
        Arc::new(AuthPolicy::new(known.map(|(name, peer)| (name.clone(), secrets(peer))).collect()))
    }
}

fn check_tls_name(name: &str) -> Result<(), String> {
    match name.len() <= TLS_NAME_BYTES_MAX {
        true => Ok(()),
        false => Err(format!("{name:?} is too long for TLS, where names have at most {TLS_NAME_BYTES_MAX} bytes")),
    }
}
