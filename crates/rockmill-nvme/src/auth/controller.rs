//! The controller's side of an exchange.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::message::Message;
use super::{
    AuthError, CONTROLLER_ROLE, Failure, Group, HOST_ROLE, Hash, Hidden, KeyPair, Proof, Random, Secret, SystemRandom,
    augmented, bytes, key_pair, sequence,
};

/// A host's secret, and the subsystem's secret for this host.
#[derive(Clone, Debug)]
pub struct HostSecrets {
    /// What the host proves.
    pub host: Secret,
    /// The controller's secret, for hosts that ask it to authenticate; without it, such hosts are refused.
    pub controller: Option<Secret>,
}

/// Which hosts may connect, and how they authenticate.
#[derive(Clone, Debug)]
pub struct AuthPolicy {
    /// By the host's name.
    pub hosts: BTreeMap<String, HostSecrets>,
    /// Allowed hashes, in order of preference.
    pub hashes: Vec<Hash>,
    /// Allowed groups, in order of preference.
    pub groups: Vec<Group>,
    /// Where challenges and private keys come from.
    pub random: Arc<dyn Random>,
}

impl AuthPolicy {
    /// Allows every hash and every group that has an exchange.
    #[must_use]
    pub fn new(hosts: BTreeMap<String, HostSecrets>) -> Self {
        let (hashes, groups) = (Hash::ALL.to_vec(), Group::ALL.to_vec());
        Self { hosts, hashes, groups, random: Arc::new(SystemRandom) }
    }
}

#[derive(Debug)]
enum State {
    /// Waits for Negotiate.
    Idle,
    /// The host fetched the challenge; waits for Reply.
    Challenged(Box<Challenged>),
    /// Waits for Success2.
    Proven,
    Done,
    Failed,
}

#[derive(Debug)]
struct Challenged {
    hash: Hash,
    group: Group,
    sequence: u32,
    challenge: Vec<u8>,
    private: Hidden,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It goes on.
    Continues,
    /// The host is authenticated. It may still have a message to fetch.
    Authenticated,
    /// Authentication failed. A message tells the reason; then the connection ends.
    Failed,
}

/// One exchange of a controller.
#[derive(Debug)]
pub struct ControllerExchange {
    policy: Arc<AuthPolicy>,
    host: String,
    subsystem: String,
    transaction: u16,
    state: State,
    /// The message that the host fetches next.
    answer: Option<Vec<u8>>,
}

impl ControllerExchange {
    /// Creates an exchange between a host and a subsystem with these names.
    #[must_use]
    pub fn new(policy: Arc<AuthPolicy>, host: String, subsystem: String) -> Self {
        Self { policy, host, subsystem, transaction: 0, state: State::Idle, answer: None }
    }

    /// The message that the host fetches; `None` if there is none now.
    pub fn fetch(&mut self) -> Option<Vec<u8>> {
        self.answer.take()
    }

    /// Length of the message that the host would fetch.
    #[must_use]
    pub fn fetchable(&self) -> Option<usize> {
        self.answer.as_ref().map(Vec::len)
    }

    /// Takes a message of the host.
    pub fn received(&mut self, message: &[u8]) -> Step {
        match self.take(message) {
            Ok(step) => step,
            Err(error) => {
                self.state = State::Failed;
                let told = Message::Failure1(error.failure()).encode(self.transaction);
                self.answer = (!matches!(error, AuthError::Refused(_))).then_some(told);
                Step::Failed
            }
        }
    }

    fn take(&mut self, message: &[u8]) -> Result<Step, AuthError> {
        let (transaction, message) = Message::decode(message)?;
        if let Message::Failure2(failure) = message {
            return Err(AuthError::Refused(failure));
        }
        if self.answer.is_some() {
            return Err(AuthError::Unusable(Failure::Message, "the last answer was not fetched"));
        }
        let state = std::mem::replace(&mut self.state, State::Failed);
        if matches!(state, State::Idle) {
            self.transaction = transaction;
        } else if transaction != self.transaction {
            return Err(AuthError::Unusable(Failure::Payload, "another transaction"));
        }
        match (state, message) {
            (State::Idle, Message::Negotiate { secure_channel, hashes, groups }) => {
                self.challenge(secure_channel, &hashes, &groups)?;
                Ok(Step::Continues)
            }
            (State::Challenged(challenged), Message::Reply { sequence, response, challenge, public }) => {
                self.check(&challenged, sequence, &response, challenge, &public)
            }
            (State::Proven, Message::Success2) => {
                self.state = State::Done;
                Ok(Step::Authenticated)
            }
            _ => Err(AuthError::Unusable(Failure::Message, "a message that may not come now")),
        }
    }

    fn challenge(&mut self, secure_channel: u8, hashes: &[u8], groups: &[u8]) -> Result<(), AuthError> {
        if secure_channel != 0 {
            return Err(AuthError::Unusable(Failure::Concatenation, "a secure channel is wanted"));
        }
        let policy = &self.policy;
        let hash = policy.hashes.iter().find(|h| hashes.contains(&h.code())).copied();
        let hash = hash.ok_or(AuthError::Unusable(Failure::Hash, "no hash that both have"))?;
        let group = policy.groups.iter().find(|g| groups.contains(&g.code())).copied();
        let group = group.ok_or(AuthError::Unusable(Failure::Group, "no group that both have"))?;
        let (keys, sequence) = (key_pair(group, &policy.random)?, sequence(&policy.random)?);
        let challenge = bytes(&policy.random, hash.bytes())?;
        let message = Message::Challenge {
            sequence,
            hash: hash.code(),
            group: group.code(),
            challenge: challenge.clone(),
            public: keys.public,
        };
        self.answer = Some(message.encode(self.transaction));
        let private = keys.private;
        self.state = State::Challenged(Box::new(Challenged { hash, group, sequence, challenge, private }));
        Ok(())
    }

    fn check(
        &mut self,
        challenged: &Challenged,
        sequence: u32,
        response: &[u8],
        challenge: Option<Vec<u8>>,
        public: &[u8],
    ) -> Result<Step, AuthError> {
        let Challenged { hash, group, .. } = *challenged;
        if response.len() != hash.bytes() || public.len() != group.bytes() {
            return Err(AuthError::Unusable(Failure::Payload, "another length than its hash or group has"));
        }
        let shared = KeyPair::shared(&challenged.private, group, public)?;
        let secrets = self.policy.hosts.get(&self.host).ok_or(AuthError::Mismatch)?;
        let transaction = self.transaction.to_le_bytes();
        let of_host = Proof {
            sequence: challenged.sequence.to_le_bytes(),
            transaction,
            role: HOST_ROLE,
            prover: &self.host,
            other: &self.subsystem,
        };
        let first = augmented(hash, shared.as_ref(), &challenged.challenge);
        if !hash.is_mac(&secrets.host.of(&self.host), &of_host.parts(&first), response) {
            return Err(AuthError::Mismatch);
        }
        let hash_bytes = hash.bytes() as u8;
        let Some(challenge) = challenge else {
            self.answer = Some(Message::Success1 { response: None, hash_bytes }.encode(self.transaction));
            self.state = State::Done;
            return Ok(Step::Authenticated);
        };
        // With a reflected challenge, the host's own answer could pass for the controller's, if the roles did not
        // differ.
        if sequence == 0 || challenge == challenged.challenge {
            return Err(AuthError::Unusable(
                Failure::Payload,
                "a challenge without a sequence number, or a reflected one",
            ));
        }
        let secret = secrets.controller.as_ref().ok_or(AuthError::Mismatch)?;
        let of_controller = Proof {
            sequence: sequence.to_le_bytes(),
            transaction,
            role: CONTROLLER_ROLE,
            prover: &self.subsystem,
            other: &self.host,
        };
        let second = augmented(hash, shared.as_ref(), &challenge);
        let response = hash.mac(&secret.of(&self.subsystem), &of_controller.parts(&second));
        self.answer = Some(Message::Success1 { response: Some(response), hash_bytes }.encode(self.transaction));
        self.state = State::Proven;
        Ok(Step::Continues)
    }
}
