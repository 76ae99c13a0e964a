//! Messages over a socket, and how both sides come to know each other.

use std::io::{self, ErrorKind};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rockmill_io::Clock;
use rockmill_nvme::auth::{ControllerExchange, HostExchange, Step};
use rockmill_nvme::tcp::{ClientTls, ServerTls, Stream};

use crate::message::{BODY_BYTES_MAX, HANDSHAKE_BYTES_MAX, HEAD_BYTES, Message};
use crate::{Secrets, VERSION};

/// How long a peer may take for each step until both sides know each other, and to take a short message.
const STEP_TIMEOUT: Duration = Duration::from_secs(10);
/// How slowly a peer may take or send a longer one. Without it, one that takes a byte now and then would hold a thread
/// for ever.
const BYTES_PER_SECOND_MIN: u64 = 1 << 20;
/// Longer bodies wait for a place ([`LongBodies`]).
const LONG_BODY_BYTES: usize = 1 << 20;
/// How long a write waits before the time is looked at.
const POLL: Duration = Duration::from_millis(100);
/// How often it is looked whether an answer is still wanted.
const PING_POLL: Duration = Duration::from_millis(20);
/// Bytes of one read.
const READ_BYTES: usize = 64 << 10;
/// Bytes that tell TLS from a message.
const TLS_HEAD_BYTES: usize = 3;
/// What a worker without TLS answers to that, so that the store learns why: the alert `access_denied`.
const TLS_ALERT: [u8; 7] = [21, 3, 3, 0, 2, 2, 49];
/// What a worker with TLS tells a store without.
const NEEDS_TLS: &str = "it speaks TLS alone: give the store's file of secrets the key for TLS, too";

/// Says that nobody waits for a connection any more.
pub(crate) type Stopped<'a> = &'a dyn Fn() -> bool;

/// Limits how many long messages are in memory at a time, on a side that many peers send to.
#[derive(Debug)]
pub(crate) struct LongBodies(AtomicUsize);

impl LongBodies {
    /// Places for this many at a time.
    pub fn new(places: usize) -> Arc<Self> {
        Arc::new(Self(AtomicUsize::new(places)))
    }
}

/// The place of a long message, from its head until the next message is asked for.
#[derive(Debug)]
struct Place {
    of: Arc<LongBodies>,
    since: Duration,
    is_complete: bool,
}

impl Place {
    fn take(of: &Arc<LongBodies>, since: Duration) -> Option<Self> {
        let fewer = |n: usize| n.checked_sub(1);
        of.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, fewer).ok()?;
        Some(Self { of: Arc::clone(of), since, is_complete: false })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.of.0.fetch_add(1, Ordering::AcqRel);
    }
}

/// How long a message of this many bytes may take.
fn time_for(bytes: usize) -> Duration {
    STEP_TIMEOUT + Duration::from_secs(bytes as u64 / BYTES_PER_SECOND_MIN)
}

/// A connection that carries messages.
#[derive(Debug)]
pub(crate) struct Channel {
    stream: Stream,
    /// The peer whose key TLS was begun with, on the side that connected.
    peer: Option<String>,
    clock: Arc<dyn Clock>,
    received: Vec<u8>,
    buffer: Vec<u8>,
    body_max: usize,
    /// Where long messages need a place.
    long_bodies: Option<Arc<LongBodies>>,
    place: Option<Place>,
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
    /// Takes a socket that has just been connected, without TLS.
    ///
    /// # Errors
    /// The socket's.
    pub fn new(socket: TcpStream, clock: Arc<dyn Clock>) -> io::Result<Self> {
        Self::over(Stream::plain(prepared(socket)?), clock)
    }

    fn over(stream: Stream, clock: Arc<dyn Clock>) -> io::Result<Self> {
        stream.socket().set_write_timeout(Some(POLL))?;
        let (received, buffer) = (Vec::new(), vec![0; READ_BYTES]);
        let body_max = HANDSHAKE_BYTES_MAX;
        Ok(Self { stream, peer: None, clock, received, buffer, body_max, long_bodies: None, place: None })
    }

    /// Takes a socket that has just been connected to a worker, and begins TLS with the key of `peer`.
    ///
    /// # Errors
    /// The socket's; the worker refuses TLS, or this key (`PermissionDenied`).
    pub fn connect(
        socket: TcpStream,
        (peer, tls): &(String, ClientTls),
        clock: Arc<dyn Clock>,
        is_stopped: Stopped<'_>,
    ) -> io::Result<Self> {
        let stream = tls.connect(prepared(socket)?, STEP_TIMEOUT, is_stopped, &clock)?;
        Ok(Self { peer: Some(peer.clone()), ..Self::over(stream, clock)? })
    }

    /// Takes a socket of a store that has just connected, with TLS if this side has keys.
    ///
    /// # Errors
    /// The socket's; one side alone has TLS, or their keys are not the same.
    pub fn accept(
        socket: TcpStream,
        tls: Option<&ServerTls>,
        clock: Arc<dyn Clock>,
        is_stopped: Stopped<'_>,
    ) -> io::Result<Self> {
        let mut channel = Self::new(socket, Arc::clone(&clock))?;
        let since = channel.now();
        while channel.received.len() < TLS_HEAD_BYTES {
            channel.read(POLL)?;
            if is_stopped() {
                return Err(not_wanted());
            }
            if channel.now().saturating_sub(since) >= STEP_TIMEOUT {
                return Err(io::Error::new(ErrorKind::TimedOut, "the store says nothing"));
            }
        }
        match (tls, begins_tls(&channel.received)) {
            (None, false) => Ok(channel),
            (Some(tls), true) => {
                let socket = channel.stream.socket().try_clone()?;
                let stream = tls.accept(socket, &channel.received, STEP_TIMEOUT, is_stopped, &clock)?;
                Self::over(stream, clock)
            }
            // They are told, as far as they can be.
            (Some(_), false) => {
                channel.send(&Message::Refused { epoch: 0, reason: NEEDS_TLS.to_owned() }, is_stopped)?;
                Err(refused("the store has no TLS"))
            }
            (None, true) => {
                channel.stream.write(&TLS_ALERT)?;
                Err(refused("the store has TLS, and this worker has no key for it"))
            }
        }
    }

    /// The socket, for its addresses.
    pub fn stream(&self) -> &TcpStream {
        self.stream.socket()
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
        let limit = time_for(frame.len());
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

    /// From here on long messages wait until one of these places is free.
    pub fn share(&mut self, long_bodies: &Arc<LongBodies>) {
        self.long_bodies = Some(Arc::clone(long_bodies));
    }

    /// Takes what is only taken of a peer that is known.
    #[cfg(test)]
    pub fn allow_long_messages(&mut self) {
        self.body_max = BODY_BYTES_MAX;
    }

    /// Bytes of memory for what was received.
    #[cfg(any(test, feature = "internals"))]
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
        // What the last message had is used or refused by now.
        self.place.take_if(|place| place.is_complete);
        loop {
            if let Some(message) = self.take()? {
                return Ok(Some(message));
            }
            let left = wait.saturating_sub(self.now().saturating_sub(since));
            if left.is_zero() {
                return Ok(None);
            }
            match self.may_read()? {
                true => self.read(left)?,
                false => self.clock.sleep(left.min(PING_POLL)),
            }
        }
    }

    /// False while a long message has no place.
    ///
    /// # Errors
    /// It has one, and its peer is too slow: others wait for the place.
    fn may_read(&mut self) -> io::Result<bool> {
        let (Some(all), Some(head)) = (&self.long_bodies, self.received.first_chunk()) else { return Ok(true) };
        let length = u32::from_le_bytes(*head) as usize;
        if length <= LONG_BODY_BYTES {
            return Ok(true);
        }
        let now = self.now();
        match &self.place {
            Some(place) if now.saturating_sub(place.since) > time_for(length) => {
                Err(io::Error::new(ErrorKind::TimedOut, "the peer sends too slowly"))
            }
            Some(_) => Ok(true),
            None => {
                self.place = Place::take(all, now);
                Ok(self.place.is_some())
            }
        }
    }

    /// Reads what there is; nothing is no error.
    fn read(&mut self, wait: Duration) -> io::Result<()> {
        self.stream.set_read_timeout(wait.max(Duration::from_millis(1)))?;
        match self.stream.read(&mut self.buffer) {
            Ok(0) => return Err(io::Error::new(ErrorKind::UnexpectedEof, "the peer closed the connection")),
            Ok(n) => self.received.extend_from_slice(&self.buffer[..n]),
            Err(e) if waits(&e) => {}
            Err(e) => return Err(e),
        }
        Ok(())
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
        self.place.iter_mut().for_each(|place| place.is_complete = true);
        self.received.drain(..HEAD_BYTES + length);
        self.received.shrink_to(READ_BYTES); // a spec or a result is large, and what follows it is not
        Ok(Some(message))
    }

    /// True if nothing was received that was not taken: another job may use the connection.
    pub fn is_clean(&self) -> bool {
        self.received.is_empty()
    }

    /// Whether the peer of a connection that was not used for a while still answers, within `limit`. What it said
    /// meanwhile is that it is there.
    ///
    /// # Errors
    /// It is not, or it says something else.
    pub fn ping(&mut self, number: u64, limit: Duration, is_stopped: Stopped<'_>) -> io::Result<()> {
        let since = self.now();
        self.send(&Message::Ping { number }, is_stopped)?;
        while !is_stopped() {
            match self.receive(PING_POLL)? {
                Some(Message::Pong { number: answered }) if answered == number => return Ok(()),
                Some(Message::Idle) | None => {}
                Some(other) => return Err(nonsense(format!("{} in place of an answer", other.kind()))),
            }
            if self.now().saturating_sub(since) >= limit {
                return Err(io::Error::new(ErrorKind::TimedOut, "the peer does not answer"));
            }
        }
        Err(not_wanted())
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
            other => Err(nonsense(format!("{} in place of authentication", other.kind()))),
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
        let (version, name, asks) = match self.next(is_stopped)? {
            Message::Welcome { version, name, authenticates } => (version, name, authenticates),
            Message::Refused { reason, .. } => return Err(refused(format!("it refuses: {reason}"))),
            _ => return Err(nonsense("no welcome")),
        };
        check_versions(version)?;
        check_peer(self.peer.as_deref(), &name)?;
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
        check_peer(self.stream.host(), &name)?;
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

/// A record of a handshake, of a version 3.1 or later. As the length of a message that would be more than a greeting
/// may have.
fn begins_tls(received: &[u8]) -> bool {
    matches!(received, [22, 3, minor, ..] if *minor != 0)
}

/// A socket as channels want it: what a listener does not wait for its connections do.
fn prepared(socket: TcpStream) -> io::Result<TcpStream> {
    socket.set_nonblocking(false)?;
    socket.set_nodelay(true)?;
    Ok(socket)
}

/// A peer has the name whose key it has.
fn check_peer(proven: Option<&str>, says: &str) -> io::Result<()> {
    match proven.is_none_or(|proven| proven == says) {
        true => Ok(()),
        false => Err(refused(format!("it has the key for TLS of {proven:?}, and says that it is {says:?}"))),
    }
}

fn refused(what: impl Into<String>) -> io::Error {
    io::Error::new(ErrorKind::PermissionDenied, what.into())
}

fn check_versions(theirs: u32) -> io::Result<()> {
    match theirs == VERSION {
        true => Ok(()),
        false => {
            let what = format!("it speaks version {theirs} of the control channel, and this side {VERSION}");
            Err(io::Error::new(ErrorKind::Unsupported, format!("{what}: install the same Rockmill on both")))
        }
    }
}
