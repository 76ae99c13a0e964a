//! A pool of workers that a store does not know before. The queue of jobs, and which worker takes one, are a NATS
//! server's business (JetStream); here is what both sides say through it. docs/offload.md has the argument why nothing
//! that the server does, or fails to do, can harm a database.
//!
//! ```text
//!   store                            NATS server                         worker
//!
//!   job TICKET BYTES INBOX ───────►  queue ──── when it is pulled ─────► has room: sets it aside
//!        ◄──────────────────────── slot ADDRESS ──────────────────────── asks at the inbox
//!   yes | no | other ──────────────────────────────────────────────────► keeps the room, or gives it back
//!   connects to ADDRESS as to any worker, and has the ticket in its offer; the message is the worker's until it ends
//! ```

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use rockmill_nvme::auth::{Random as _, SystemRandom};

use crate::{VERSION, bad_configuration};

#[cfg_attr(not(feature = "nats"), path = "pool/no_nats.rs")]
mod nats;

pub(crate) use nats::{Offered, Pool};

/// Bytes of a queue's name.
const QUEUE_BYTES_MAX: usize = 32;
/// Bytes of an inbox's name. The client's have 29.
const INBOX_BYTES_MAX: usize = 128;
/// What inboxes begin with. A worker answers nowhere else, whatever a message says.
const INBOX: &str = "_INBOX.";

/// Where a pool's NATS server is, and which queue of it is the pool's.
#[derive(Debug, Clone)]
pub struct PoolConfig {
    /// Servers of one NATS system, as `nats://10.0.0.5:4222`, or `tls://` in place of that.
    pub servers: Vec<String>,
    /// The queue: its stores and workers meet. Letters, digits, `-` and `_`.
    pub queue: String,
    /// What the server asks for.
    pub credentials: Option<PoolCredentials>,
    /// A file of certificates in PEM form that the server's must come from, in place of the system's.
    pub ca: Option<PathBuf>,
    /// A worker that pulled a job and says nothing for so long has lost it: the server gives it to another one. The
    /// first store or worker that uses a queue sets it for all.
    pub lease: Duration,
}

/// How a store or a worker shows a NATS server who it is.
#[derive(Clone, PartialEq, Eq)]
pub enum PoolCredentials {
    /// A token that all have.
    Token(String),
    /// A name and its password.
    User(String, String),
}

impl fmt::Debug for PoolCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Token(_) => f.write_str("Token(..)"),
            Self::User(name, _) => write!(f, "User({name:?}, ..)"),
        }
    }
}

impl FromStr for PoolCredentials {
    type Err = io::Error;

    /// Reads `token TOKEN` or `user NAME PASSWORD`. Empty lines and lines starting with `#` are ignored.
    fn from_str(text: &str) -> io::Result<Self> {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let words: Vec<&str> = lines.flat_map(str::split_whitespace).collect();
        match *words {
            ["token", token] => Ok(Self::Token(token.to_owned())),
            ["user", name, password] => Ok(Self::User(name.to_owned(), password.to_owned())),
            _ => Err(bad_configuration("credentials of a pool are one line: `token TOKEN` or `user NAME PASSWORD`")),
        }
    }
}

impl PoolConfig {
    /// The pool of these servers with the queue `default`, without credentials.
    #[must_use]
    pub fn new(servers: Vec<String>) -> Self {
        let lease = Duration::from_secs(10);
        Self { servers, queue: "default".to_owned(), credentials: None, ca: None, lease }
    }

    /// The servers, each with what says how to connect.
    ///
    /// # Errors
    /// What is wrong with the configuration.
    fn checked(&self) -> io::Result<&[String]> {
        if self.servers.is_empty() {
            return Err(bad_configuration(
                "a pool needs the address of a NATS server, for example nats://10.0.0.5:4222",
            ));
        }
        for server in &self.servers {
            let place = ["nats://", "tls://"].iter().find_map(|scheme| server.strip_prefix(scheme));
            let Some(place) = place.filter(|place| !place.is_empty()) else {
                return Err(bad_configuration(format!(
                    "{server:?} is not the address of a NATS server: nats://HOST:PORT or tls://HOST:PORT"
                )));
            };
            // Other users of a machine see the command lines of all.
            if place.contains('@') {
                return Err(bad_configuration("credentials of a pool go into a file, not into the server's address"));
            }
        }
        let is_named = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        if !(1..=QUEUE_BYTES_MAX).contains(&self.queue.len()) || !self.queue.chars().all(is_named) {
            return Err(bad_configuration(format!(
                "{:?} is no name of a queue: 1 to {QUEUE_BYTES_MAX} letters, digits, '-' and '_'",
                self.queue
            )));
        }
        if self.lease < Duration::from_secs(1) || self.lease > Duration::from_secs(3600) {
            return Err(bad_configuration("the lease of a pool is a second to an hour"));
        }
        Ok(&self.servers)
    }

    /// The name of the queue's stream. Those who speak another version meet elsewhere.
    #[cfg_attr(not(feature = "nats"), expect(dead_code, reason = "there is no server"))]
    fn stream(&self) -> String {
        format!("rockmill-{}-{VERSION}", self.queue)
    }

    /// The subject that jobs are published under.
    #[cfg_attr(not(feature = "nats"), expect(dead_code, reason = "there is no server"))]
    fn subject(&self) -> String {
        format!("rockmill.{}.{VERSION}", self.queue)
    }
}

/// What tells a job that was published from all others, and which room of a worker is its.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Ticket(pub [u8; 16]);

impl Ticket {
    /// One that nobody can guess.
    ///
    /// # Errors
    /// The system has no random bytes.
    #[cfg_attr(not(feature = "nats"), expect(dead_code, reason = "there is no server"))]
    pub fn random() -> io::Result<Self> {
        let mut bytes = [0; 16];
        SystemRandom.fill(&mut bytes)?;
        Ok(Self(bytes))
    }
}

/// A job in the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct QueuedJob {
    pub ticket: Ticket,
    /// Bytes of its inputs, for those who look at the queue.
    pub bytes: u64,
    /// Where its store listens for workers that have room.
    pub inbox: String,
}

#[cfg_attr(not(any(feature = "nats", test)), expect(dead_code, reason = "there is no server"))]
impl QueuedJob {
    /// The job as a text.
    pub fn to_text(&self) -> String {
        let ticket: String = self.ticket.0.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("job {ticket} {} {}", self.bytes, self.inbox)
    }

    /// The job that a text is. Nothing of it is believed: the inbox is one.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let words: Vec<&str> = std::str::from_utf8(text).ok()?.split(' ').collect();
        let ["job", ticket, bytes, inbox] = *words else { return None };
        let is_hex = ticket.len() == 32 && ticket.bytes().all(|b| b.is_ascii_hexdigit());
        let ticket = u128::from_str_radix(ticket, 16).ok().filter(|_| is_hex)?;
        let name = inbox.strip_prefix(INBOX).filter(|_| inbox.len() <= INBOX_BYTES_MAX)?;
        let is_one = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'.');
        let job = Self { ticket: Ticket(ticket.to_be_bytes()), bytes: bytes.parse().ok()?, inbox: inbox.to_owned() };
        is_one.then_some(job)
    }
}

/// What a store says to a worker that has room for its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It connects.
    Yes,
    /// The job is another worker's, or not wanted any more.
    No,
    /// The job is to go to another worker: this one failed lately, or may not be used.
    Other,
}

#[cfg_attr(not(any(feature = "nats", test)), expect(dead_code, reason = "there is no server"))]
impl Answer {
    /// The answer as a text.
    pub fn to_text(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::No => "no",
            Self::Other => "other",
        }
    }

    /// The answer that a text is.
    pub fn parse(text: &[u8]) -> Option<Self> {
        [Self::Yes, Self::No, Self::Other].into_iter().find(|answer| answer.to_text().as_bytes() == text)
    }
}

/// What a worker asks.
#[cfg_attr(not(any(feature = "nats", test)), expect(dead_code, reason = "there is no server"))]
pub(crate) fn slot_to_text(address: SocketAddr) -> String {
    format!("slot {address}")
}

/// The address that a worker says it listens at.
#[cfg_attr(not(any(feature = "nats", test)), expect(dead_code, reason = "there is no server"))]
pub(crate) fn parse_slot(text: &[u8]) -> Option<SocketAddr> {
    let address = std::str::from_utf8(text).ok()?.strip_prefix("slot ")?.parse::<SocketAddr>().ok()?;
    (!address.ip().is_unspecified() && address.port() != 0).then_some(address)
}

/// What comes to a store that waits for a worker.
#[cfg_attr(not(feature = "nats"), expect(dead_code, reason = "there is no server"))]
pub(crate) enum Came {
    /// A worker that has room. What it is told ends the wait.
    Slot(SocketAddr, Box<dyn FnOnce(Answer) + Send>),
    /// The job could not be published.
    Failed(String),
}
