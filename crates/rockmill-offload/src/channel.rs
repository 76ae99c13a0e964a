//! Messages over a socket, and how both sides come to know each other.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use rockmill_io::Clock;
use rockmill_nvme::auth::{ControllerExchange, HostExchange, Step};

use crate::message::{BODY_BYTES_MAX, HANDSHAKE_BYTES_MAX, HEAD_BYTES, Message};
use crate::{Secrets, VERSION};

/// How long a peer may take for each step until both sides know each other, and to take a short message.
const STEP_TIMEOUT: Duration = Duration::from_secs(10);
/// How slowly a peer may take a longer one. Without it, one that takes a byte now and then would hold a thread for
/// ever.
const SEND_BYTES_PER_SECOND_MIN: u64 = 1 << 20;
/// How long a write waits before the time is looked at.
const POLL: Duration = Duration::from_millis(100);
/// Bytes of one read.
const READ_BYTES: usize = 64 << 10;

/// Says that nobody waits for a connection any more.
pub(crate) type Stopped<'a> = &'a dyn Fn() -> bool;

/// A connection that carries messages.
#[derive(Debug)]
pub(crate) struct Channel {
    stream: TcpStream,
    clock: Arc<dyn Clock>,
    received: Vec<u8>,
    buffer: Vec<u8>,
    body_max: usize,
}

fn nonsense(what: impl Into<String>) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what.into())
}

fn not_wanted() -> io::Error {
    io::Error::new(ErrorKind::ConnectionAborted, "it is not wanted any more")
}

fn waits(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

impl Channel {
    /// Takes a socket that has just been connected.
    ///
    /// # Errors
    /// The socket's.
    pub fn new(stream: TcpStream, clock: Arc<dyn Clock>) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(POLL))?;
        let (received, buffer) = (Vec::new(), vec![0; READ_BYTES]);
        Ok(Self { stream, clock, received, buffer, body_max: HANDSHAKE_BYTES_MAX })
    }

    /// The socket, for its addresses.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(self.clock.monotonic_nanos())
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The connection is lost, the peer takes it too slowly, or the message has to wait and `is_stopped`.
    pub fn send(&mut self, message: &Message, is_stopped: Stopped<'_>) -> io::Result<()> {
        let frame = message.encode()?;
        let (mut rest, since) = (&*frame, self.now());
        let limit = STEP_TIMEOUT + Duration::from_secs(frame.len() as u64 / SEND_BYTES_PER_SECOND_MIN);
        while !rest.is_empty() {
            match self.stream.write(rest) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => rest = rest.get(n..).unwrap_or_default(),
                Err(e) if waits(&e) => {}
                Err(e) => return Err(e),
            }
            if !rest.is_empty() && is_stopped() {
                return Err(not_wanted());
            }
            if !rest.is_empty() && self.now().saturating_sub(since) > limit {
                return Err(io::Error::new(ErrorKind::TimedOut, "the peer takes what it is sent too slowly"));
            }
        }
        Ok(())
    }

    /// Takes what is only taken of a peer that is known.
    #[cfg(test)]
    pub fn allow_long_messages(&mut self) {
        self.body_max = BODY_BYTES_MAX;
    }

    /// Bytes of memory for what was received.
    #[cfg(test)]
    pub fn memory(&self) -> usize {
        self.received.capacity()
    }

    /// Sends a message that is wanted in any case.
    #[cfg(test)]
    pub fn tell(&mut self, message: &Message) -> io::Result<()> {
        self.send(message, &|| false)
    }

    /// The next message; `None` if none is complete within `wait`.
    ///
    /// # Errors
    /// The connection is lost, or what came is no message (`InvalidData`).
    pub fn receive(&mut self, wait: Duration) -> io::Result<Option<Message>> {
        let since = self.now();
        loop {
            if let Some(message) = self.take()? {
                return Ok(Some(message));
            }
            let left = wait.saturating_sub(self.now().saturating_sub(since));
            if left.is_zero() {
                return Ok(None);
            }
            self.stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
            match self.stream.read(&mut self.buffer) {
                Ok(0) => return Err(io::Error::new(ErrorKind::UnexpectedEof, "the peer closed the connection")),
                Ok(n) => self.received.extend_from_slice(&self.buffer[..n]),
                Err(e) if waits(&e) => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// A message that is complete.
    fn take(&mut self) -> io::Result<Option<Message>> {
        let Some((head, rest)) = self.received.split_first_chunk::<HEAD_BYTES>() else { return Ok(None) };
        let [a, b, c, d, e, f, g, h] = *head;
        let (length, checksum) = (u32::from_le_bytes([a, b, c, d]) as usize, u32::from_le_bytes([e, f, g, h]));
        if length > self.body_max {
            return Err(nonsense(format!("a message of {length} bytes")));
        }
        let Some(body) = rest.get(..length) else { return Ok(None) };
        if crc32c::crc32c(body) != checksum {
            return Err(nonsense("a message whose checksum is wrong"));
        }
        let message = Message::decode(body).map_err(|e| nonsense(e.to_string()))?;
        self.received.drain(..HEAD_BYTES + length);
        self.received.shrink_to(READ_BYTES); // a spec or a result is large, and what follows it is not
        Ok(Some(message))
    }

    /// The message that must come next.
    ///
    /// # Errors
    /// As [`receive`](Self::receive); nothing comes for too long, or `is_stopped` says that it is not wanted any more.
    pub fn next(&mut self, is_stopped: Stopped<'_>) -> io::Result<Message> {
        let since = self.now();
        while !is_stopped() {
            if let Some(message) = self.receive(POLL)? {
                return Ok(message);
            }
            if self.now().saturating_sub(since) >= STEP_TIMEOUT {
                return Err(io::Error::new(ErrorKind::TimedOut, "the peer does not answer"));
            }
        }
        Err(not_wanted())
    }

    fn next_auth(&mut self, is_stopped: Stopped<'_>) -> io::Result<Vec<u8>> {
        match self.next(is_stopped)? {
            Message::Auth(bytes) => Ok(bytes),
            other => Err(nonsense(format!("{other:?} in place of authentication"))),
        }
    }

    /// Greets a worker, and has both sides prove who they are, where this one has secrets. Gives the worker's name.
    ///
    /// # Errors
    /// The connection's, another version, a worker that is not known or does not authenticate (`PermissionDenied`).
    pub fn greet_worker(
        &mut self,
        own: &str,
        secrets: Option<&Secrets>,
        is_stopped: Stopped<'_>,
    ) -> io::Result<String> {
        let authenticates = secrets.is_some();
        self.send(&Message::Hello { version: VERSION, name: own.to_owned(), authenticates }, is_stopped)?;
        let Message::Welcome { version, name, authenticates: asks } = self.next(is_stopped)? else {
            return Err(nonsense("no welcome"));
        };
        check_versions(version)?;
        if asks != authenticates {
            return Err(refused(if asks { "the worker asks for a secret" } else { "the worker has no secret" }));
        }
        if let Some(secrets) = secrets {
            let auth = secrets.towards(&name).ok_or_else(|| refused(format!("no secret of worker {name:?}")))?;
            let mut exchange = HostExchange::new(&auth, own, &name, 1);
            self.send(&Message::Auth(exchange.negotiate()), is_stopped)?;
            while !exchange.is_done() {
                let message = self.next_auth(is_stopped)?;
                match exchange.received(&message) {
                    Ok(Some(answer)) => self.send(&Message::Auth(answer), is_stopped)?,
                    Ok(None) => {}
                    Err(e) => {
                        if let Some(told) = exchange.failure(e) {
                            let _ = self.send(&Message::Auth(told), is_stopped); // the failure is what counts
                        }
                        return Err(refused(format!("authentication: {e}")));
                    }
                }
            }
        }
        self.body_max = BODY_BYTES_MAX;
        Ok(name)
    }

    /// Answers a store, and has both sides prove who they are, where this one has secrets. Gives the store's name.
    ///
    /// # Errors
    /// The connection's, another version, a store that is not known or does not authenticate (`PermissionDenied`).
    pub fn greet_store(&mut self, own: &str, secrets: Option<&Secrets>, is_stopped: Stopped<'_>) -> io::Result<String> {
        let Message::Hello { version, name, authenticates: offers } = self.next(is_stopped)? else {
            return Err(nonsense("no greeting"));
        };
        // The other side has to know, too.
        let authenticates = secrets.is_some();
        self.send(&Message::Welcome { version: VERSION, name: own.to_owned(), authenticates }, is_stopped)?;
        check_versions(version)?;
        if offers != authenticates {
            return Err(refused("only one side has secrets"));
        }
        if let Some(secrets) = secrets {
            let mut exchange = ControllerExchange::new(secrets.policy(|_| true), name.clone(), own.to_owned());
            loop {
                let message = self.next_auth(is_stopped)?;
                let step = exchange.received(&message);
                if let Some(answer) = exchange.fetch() {
                    self.send(&Message::Auth(answer), is_stopped)?;
                }
                match step {
                    Step::Continues => {}
                    Step::Authenticated => break,
                    Step::Failed => return Err(refused(format!("{name:?} has not proven who it is"))),
                }
            }
        }
        self.body_max = BODY_BYTES_MAX;
        Ok(name)
    }
}

fn refused(what: impl Into<String>) -> io::Error {
    io::Error::new(ErrorKind::PermissionDenied, what.into())
}

fn check_versions(theirs: u32) -> io::Result<()> {
    match theirs == VERSION {
        true => Ok(()),
        false => Err(io::Error::new(ErrorKind::Unsupported, format!("version {theirs}, here it is {VERSION}"))),
    }
}
