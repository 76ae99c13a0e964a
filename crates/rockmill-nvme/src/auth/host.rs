//! The host's side of an exchange.

use std::sync::Arc;

use super::message::{Message, group, hash};
use super::{
    AuthError, CONTROLLER_ROLE, Failure, Group, HOST_ROLE, Hash, Hidden, KeyPair, Proof, Random, Secret, SystemRandom,
    augmented, bytes, key_pair, sequence,
};

/// What a host authenticates with.
#[derive(Clone, Debug)]
pub struct HostAuth {
    /// The host's secret, which the controller knows.
    pub secret: Secret,
    /// The controller's secret, if the controller must authenticate, too.
    pub controller: Option<Secret>,
    /// Hashes that may be used.
    pub hashes: Vec<Hash>,
    /// Groups that may be used.
    pub groups: Vec<Group>,
    /// Where challenges and private keys come from.
    pub random: Arc<dyn Random>,
}

impl HostAuth {
    /// Allows every hash and every group that has an exchange.
    #[must_use]
    pub fn new(secret: Secret, controller: Option<Secret>) -> Self {
        let (hashes, groups) = (Hash::ALL.to_vec(), Group::ALL.to_vec());
        Self { secret, controller, hashes, groups, random: Arc::new(SystemRandom) }
    }
}

#[derive(Debug)]
enum Await {
    Challenge,
    Success { hash: Hash, sequence: u32, challenge: Option<Vec<u8>>, shared: Option<Hidden> },
    Nothing,
}

/// One exchange of a host.
#[derive(Debug)]
pub struct HostExchange<'a> {
    auth: &'a HostAuth,
    host: &'a str,
    subsystem: &'a str,
    transaction: u16,
    state: Await,
}

impl<'a> HostExchange<'a> {
    /// Creates an exchange between a host and a subsystem with these names.
    #[must_use]
    pub fn new(auth: &'a HostAuth, host: &'a str, subsystem: &'a str, transaction: u16) -> Self {
        Self { auth, host, subsystem, transaction, state: Await::Challenge }
    }

    /// The first message to send.
    #[must_use]
    pub fn negotiate(&self) -> Vec<u8> {
        let hashes = self.auth.hashes.iter().take(30).map(|h| h.code()).collect();
        let groups = self.auth.groups.iter().take(30).map(|g| g.code()).collect();
        Message::Negotiate { secure_channel: 0, hashes, groups }.encode(self.transaction)
    }

    /// The message that reports a failure; `None` if the controller reported it.
    #[must_use]
    pub fn failure(&self, error: AuthError) -> Option<Vec<u8>> {
        let own = !matches!(error, AuthError::Refused(_));
        own.then(|| Message::Failure2(error.failure()).encode(self.transaction))
    }

    /// Processes a received message. Returns the message to send next; `None` when the exchange is complete.
    ///
    /// # Errors
    /// The exchange failed: see [`Self::failure`].
    pub fn received(&mut self, message: &[u8]) -> Result<Option<Vec<u8>>, AuthError> {
        let (transaction, message) = Message::decode(message)?;
        if let Message::Failure1(failure) = message {
            return Err(AuthError::Refused(failure));
        }
        if transaction != self.transaction {
            return Err(AuthError::Unusable(Failure::Payload, "another transaction"));
        }
        match (std::mem::replace(&mut self.state, Await::Nothing), message) {
            (Await::Challenge, Message::Challenge { sequence, hash: h, group: g, challenge, public }) => {
                self.reply(sequence, hash(h)?, group(g)?, &challenge, &public).map(Some)
            }
            (Await::Success { hash, sequence, challenge, shared }, Message::Success1 { response, .. }) => {
                let Some((secret, challenge)) = self.auth.controller.as_ref().zip(challenge) else {
                    // The controller was not asked to authenticate.
                    return match response {
                        None => Ok(None),
                        Some(_) => Err(AuthError::Unusable(Failure::Payload, "a response to no challenge")),
                    };
                };
                let proof = self.proof(sequence, CONTROLLER_ROLE, (self.subsystem, self.host));
                let challenge = augmented(hash, shared.as_ref(), &challenge);
                let good = response.is_some_and(|r| {
                    r.len() == hash.bytes() && hash.is_mac(&secret.of(self.subsystem), &proof.parts(&challenge), &r)
                });
                if !good {
                    return Err(AuthError::Mismatch);
                }
                Ok(Some(Message::Success2.encode(self.transaction)))
            }
            _ => Err(AuthError::Unusable(Failure::Message, "a message that may not come now")),
        }
    }

    /// True once no more messages are expected.
    #[must_use]
    pub fn is_done(&self) -> bool {
        matches!(self.state, Await::Nothing)
    }

    fn proof<'b>(&self, sequence: u32, role: &'static [u8], names: (&'b str, &'b str)) -> Proof<'b> {
        let (sequence, transaction) = (sequence.to_le_bytes(), self.transaction.to_le_bytes());
        Proof { sequence, transaction, role, prover: names.0, other: names.1 }
    }

    fn reply(
        &mut self,
        controller_sequence: u32,
        hash: Hash,
        group: Group,
        challenge: &[u8],
        public: &[u8],
    ) -> Result<Vec<u8>, AuthError> {
        if !self.auth.hashes.contains(&hash) {
            return Err(AuthError::Unusable(Failure::Hash, "a hash that was not offered"));
        }
        if !self.auth.groups.contains(&group) {
            return Err(AuthError::Unusable(Failure::Group, "a group that was not offered"));
        }
        if challenge.len() != hash.bytes() || public.len() != group.bytes() {
            return Err(AuthError::Unusable(Failure::Payload, "another length than its hash or group has"));
        }
        let random = &self.auth.random;
        let keys = key_pair(group, random)?;
        let shared = KeyPair::shared(&keys.private, group, public)?;
        let proof = self.proof(controller_sequence, HOST_ROLE, (self.host, self.subsystem));
        let first = augmented(hash, shared.as_ref(), challenge);
        let response = hash.mac(&self.auth.secret.of(self.host), &proof.parts(&first));
        let (own, own_sequence) = match &self.auth.controller {
            Some(_) => (Some(bytes(random, hash.bytes())?), sequence(random)?),
            None => (None, 0),
        };
        self.state = Await::Success { hash, sequence: own_sequence, challenge: own.clone(), shared };
        let reply = Message::Reply { sequence: own_sequence, response, challenge: own, public: keys.public };
        Ok(reply.encode(self.transaction))
    }
}
