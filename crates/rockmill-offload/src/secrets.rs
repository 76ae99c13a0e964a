//! Who knows which secret: a file that both sides of a connection have, each its own.

use std::collections::BTreeMap;
use std::sync::Arc;

use rockmill_nvme::auth::{AuthPolicy, HostAuth, HostSecrets, Secret};

use crate::check_name;

/// The word before one's own secret.
const OWN: &str = "self";

/// One's own secret, and those of the peers by their names. Each side always proves that it knows its secret, on the
/// control channel and on each connection of NVMe/TCP.
///
/// As text, a line for each, with its name or `self` before it; empty lines and lines from `#` on say nothing:
///
/// ```text
/// self DHHC-1:01:…:
/// nqn.2026-11.rockmill:worker DHHC-1:01:…:
/// ```
#[derive(Debug, Clone)]
pub struct Secrets {
    own: Secret,
    peers: BTreeMap<String, Secret>,
}

impl Secrets {
    /// These secrets.
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
        Ok(Self { own, peers })
    }

    /// Reads the text form.
    ///
    /// # Errors
    /// The line that is wrong, without what it says.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (mut own, mut peers) = (None, BTreeMap::new());
        for (i, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = |what: &str| format!("line {}: {what}", i + 1);
            let (name, secret) = line.split_once(char::is_whitespace).ok_or_else(|| wrong("no name and secret"))?;
            let secret = Secret::parse(secret.trim()).map_err(|e| wrong(&e.to_string()))?;
            check_name(name).map_err(|e| wrong(&e))?;
            let twice = match name {
                OWN => own.replace(secret).is_some(),
                name => peers.insert(name.to_owned(), secret).is_some(),
            };
            if twice {
                return Err(wrong("a name that was there before"));
            }
        }
        Self::new(own.ok_or_else(|| format!("there is no line with `{OWN}`"))?, peers)
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
