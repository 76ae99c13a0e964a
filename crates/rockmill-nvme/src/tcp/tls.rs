//! TLS 1.3 with a pre-shared key, by OpenSSL: one version, one cipher suite for a key, always with a Diffie-Hellman
//! exchange, and no certificates, tickets or early data.
//!
//! OpenSSL sees no socket: it takes what was received from a buffer and leaves what is to be sent in another one. So
//! this module controls time limits, the end of connections and the memory used.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use openssl::error::ErrorStack;
use openssl::ssl::{
    ErrorCode, Ssl, SslContext, SslContextBuilder, SslMethod, SslOptions, SslSessionCacheMode, SslStream,
    SslVerifyMode, SslVersion,
};
use rockmill_io::Clock;

use super::host::waits;
use super::stream::Stream;
use crate::psk::Psk;

#[allow(unsafe_code, reason = "functions of OpenSSL that the crate openssl does not have")]
mod psk_session;

use psk_session::Suite;

/// Longest identity in bytes. Many peers have room for this many and a terminating zero, as OpenSSL's own callbacks do,
/// and some ways to derive a key have one byte for its length.
const IDENTITY_BYTES_MAX: usize = 255;
/// Bytes of one receive.
const RECEIVE_BYTES: usize = 64 << 10;
/// Most of the caller's bytes that are encrypted at once before they are sent.
const WRITE_BYTES: usize = 64 << 10;
/// Most bytes of records that wait to be sent: those of one write, and those of the handshake or an alert.
const OUTGOING_BYTES_MAX: usize = 2 * WRITE_BYTES;
/// How often a handshake checks the time.
const POLL: Duration = Duration::from_millis(20);
/// OpenSSL adds this to the number of an alert from the peer.
const ALERT: i32 = 1000;

/// What OpenSSL reads from and writes to.
#[derive(Default)]
struct Buffers {
    /// Grows to the size of a receive at the first one.
    incoming: Vec<u8>,
    filled: usize,
    taken: usize,
    outgoing: Vec<u8>,
    sent: usize,
    /// The peer closed the connection.
    ended: bool,
}

impl Read for Buffers {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let there = self.incoming.get(self.taken..self.filled).unwrap_or_default();
        if there.is_empty() && !self.ended {
            return Err(ErrorKind::WouldBlock.into());
        }
        let n = there.len().min(into.len());
        if let (Some(from), Some(to)) = (there.get(..n), into.get_mut(..n)) {
            to.copy_from_slice(from);
        }
        self.taken += n;
        Ok(n)
    }
}

impl Write for Buffers {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if self.outgoing.len() + data.len() > OUTGOING_BYTES_MAX {
            return Err(io::Error::new(ErrorKind::OutOfMemory, "the peer asks for more than it takes"));
        }
        self.outgoing.extend_from_slice(data);
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Buffers {
    /// Sends what there is to send.
    fn send(&mut self, mut socket: &TcpStream) -> io::Result<()> {
        while let Some(rest) = self.outgoing.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match socket.write(rest)? {
                0 => return Err(ErrorKind::WriteZero.into()),
                n => self.sent += n,
            }
        }
        self.outgoing.clear();
        self.sent = 0;
        Ok(())
    }

    /// Receives once, if the buffer is empty.
    fn receive(&mut self, mut socket: &TcpStream) -> io::Result<()> {
        if self.taken < self.filled {
            return Ok(());
        }
        self.incoming.resize(RECEIVE_BYTES, 0);
        (self.taken, self.filled) = (0, 0);
        self.filled = socket.read(&mut self.incoming)?;
        self.ended |= self.filled == 0;
        Ok(())
    }
}

/// The state of TLS on a connection.
pub(super) struct Session {
    ssl: SslStream<Buffers>,
    clock: Arc<dyn Clock>,
    /// The caller's bytes that are encrypted, but not yet all sent.
    owed: usize,
    /// On the controller's side: the key that the peer names.
    key: Option<Arc<Psk>>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("key", &self.key).finish_non_exhaustive()
    }
}

impl Session {
    /// Creates a session that offers this key, or else waits for a peer that names one, and whose peer has already sent
    /// `received`.
    fn new(context: &SslContext, psk: Option<&Arc<Psk>>, received: &[u8], clock: &Arc<dyn Clock>) -> io::Result<Self> {
        let mut ssl = Ssl::new(context)?;
        if let Some(psk) = psk {
            psk_session::offer(&mut ssl, psk)?;
            ssl.set_connect_state();
        } else {
            ssl.set_accept_state();
        }
        let buffers = Buffers { incoming: received.to_vec(), filled: received.len(), ..Buffers::default() };
        Ok(Self { ssl: SslStream::new(ssl, buffers)?, clock: Arc::clone(clock), owed: 0, key: None })
    }

    pub fn host(&self) -> Option<&str> {
        self.key.as_ref().map(|psk| psk.host())
    }

    pub fn subsystem(&self) -> Option<&str> {
        self.key.as_ref().map(|psk| psk.subsystem())
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(self.clock.monotonic_nanos())
    }

    /// Performs the handshake. After it, each side knows that the other one has the pre-shared key.
    fn shake_hands(&mut self, socket: &TcpStream, limit: Duration, is_stopped: &dyn Fn() -> bool) -> io::Result<()> {
        socket.set_read_timeout(Some(POLL))?;
        socket.set_write_timeout(Some(POLL))?;
        let since = self.now();
        let mut done = false;
        loop {
            if !done {
                match self.ssl.do_handshake() {
                    Ok(()) => done = true,
                    Err(e) if e.code() == ErrorCode::WANT_READ => {}
                    Err(e) => {
                        let _ = self.ssl.get_mut().send(socket); // an alert, if it can still be sent
                        return Err(failure(&e));
                    }
                }
            }
            let moved = match self.ssl.get_mut().send(socket) {
                Ok(()) if done => return self.check(),
                Ok(()) => self.ssl.get_mut().receive(socket),
                Err(e) => Err(e),
            };
            moved.or_else(|e| if waits(&e) { Ok(()) } else { Err(e) })?;
            if is_stopped() {
                return Err(io::Error::new(ErrorKind::ConnectionAborted, "it is not wanted any more"));
            }
            if self.now().saturating_sub(since) >= limit {
                return Err(io::Error::new(ErrorKind::TimedOut, "the peer does not go on with the TLS handshake"));
            }
        }
    }

    /// Whatever was negotiated: without the key and its cipher suite, the peer is not authenticated.
    fn check(&self) -> io::Result<()> {
        let ssl = self.ssl.ssl();
        let suite = psk_session::chosen(ssl).map(|chosen| chosen.suite().name());
        let is_good = ssl.version2() == Some(SslVersion::TLS1_3) && ssl.session_reused();
        let has_suite = suite.is_some() && ssl.current_cipher().map(|cipher| cipher.name()) == suite;
        match is_good && has_suite && ssl.peer_certificate().is_none() {
            true => Ok(()),
            false => Err(refused("TLS without the pre-shared key")),
        }
    }

    /// The time limit of the socket is `limit`.
    pub fn read(&mut self, socket: &TcpStream, limit: Option<Duration>, into: &mut [u8]) -> io::Result<usize> {
        let since = self.now();
        let mut is_first = true;
        loop {
            match self.ssl.ssl_read(into) {
                Ok(n) => return Ok(n + self.read_more(into.get_mut(n..).unwrap_or_default())),
                Err(e) if e.code() == ErrorCode::ZERO_RETURN => return Ok(0),
                Err(e) if e.code() == ErrorCode::WANT_READ => {}
                Err(e) => {
                    let _ = self.ssl.get_mut().send(socket); // why, if it can still be said
                    return Err(failure(&e));
                }
            }
            // A peer that sends a byte now and then must not block the caller beyond its time limit.
            let is_over = limit.is_some_and(|limit| self.now().saturating_sub(since) >= limit);
            if is_over && !is_first {
                return Err(ErrorKind::WouldBlock.into());
            }
            is_first = false;
            // TLS's own answers; a waiting write also sends them.
            if self.owed == 0 {
                let sent = self.ssl.get_mut().send(socket);
                sent.or_else(|e| if waits(&e) { Ok(()) } else { Err(e) })?;
            }
            self.ssl.get_mut().receive(socket)?;
        }
    }

    /// Takes what else has been received, without waiting. The next read reports any error in it.
    fn read_more(&mut self, into: &mut [u8]) -> usize {
        let mut filled = 0;
        while let Some(rest) = into.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match self.ssl.ssl_read(rest) {
                Ok(n) => filled += n,
                Err(_) => break,
            }
        }
        filled
    }

    pub fn write(&mut self, socket: &TcpStream, data: &[u8]) -> io::Result<usize> {
        let data = data.get(..WRITE_BYTES).unwrap_or(data);
        if self.owed == 0 && !data.is_empty() {
            // The buffer takes all of it.
            self.owed = self.ssl.ssl_write(data).map_err(|e| failure(&e))?;
        }
        self.ssl.get_mut().send(socket)?;
        Ok(std::mem::take(&mut self.owed).min(data.len()))
    }

    /// Tells the peer that nothing more comes, if the socket accepts that at once.
    pub fn say_end(&mut self, socket: &TcpStream) {
        // The connection ends in any case.
        let _ = self.ssl.shutdown();
        let _ = self.ssl.get_mut().send(socket);
    }
}

fn refused(what: impl Into<String>) -> io::Error {
    io::Error::new(ErrorKind::PermissionDenied, what.into())
}

/// OpenSSL's error, shortened. If the peer refused, the kind is `PermissionDenied`.
fn failure(e: &openssl::ssl::Error) -> io::Error {
    if let Some(e) = e.io_error() {
        return io::Error::new(e.kind(), e.to_string());
    }
    let first = e.ssl_error().and_then(|stack| stack.errors().first());
    let reason = first.and_then(|e| e.reason()).unwrap_or("the connection ended").to_owned();
    match first.map(|e| e.reason_code()) {
        // The alerts for: an unknown key and no certificate, or no cipher suite in common; a different key; no key at
        // all, as a worker sends it.
        Some(code) if code == ALERT + 40 => {
            refused(format!("the peer does not know this key for TLS, or not its cipher suite ({reason})"))
        }
        Some(code) if code == ALERT + 47 => refused(format!("the peer has another key for TLS ({reason})")),
        Some(code) if code == ALERT + 49 => refused(format!("the peer has no key for TLS ({reason})")),
        Some(code) if code > ALERT => refused(format!("the peer ends TLS: {reason}")),
        Some(_) if reason != "unexpected eof while reading" => {
            io::Error::new(ErrorKind::InvalidData, format!("TLS: {reason}"))
        }
        _ => io::Error::new(ErrorKind::UnexpectedEof, "the peer closed the connection without a word of TLS"),
    }
}

/// Refuses a key whose identity is too long.
fn check_key(psk: &Psk) -> io::Result<()> {
    let len = psk.identity().len();
    if len > IDENTITY_BYTES_MAX {
        let what = format!("names that are too long for TLS, {len} bytes together");
        return Err(io::Error::new(ErrorKind::InvalidInput, what));
    }
    Ok(())
}

/// What both sides have in common, with the cipher suites of these keys.
fn context<'a>(psks: impl Iterator<Item = &'a Arc<Psk>>) -> Result<SslContextBuilder, ErrorStack> {
    let suites: BTreeSet<&str> = psks.map(|psk| Suite::of(psk.hash()).name()).collect();
    let mut context = SslContext::builder(SslMethod::tls())?;
    context.set_min_proto_version(Some(SslVersion::TLS1_3))?;
    context.set_max_proto_version(Some(SslVersion::TLS1_3))?;
    context.set_ciphersuites(&suites.into_iter().collect::<Vec<_>>().join(":"))?;
    // Each connection proves the key anew.
    context.set_session_cache_mode(SslSessionCacheMode::OFF);
    context.set_options(SslOptions::NO_TICKET);
    context.set_num_tickets(0)?;
    Ok(context)
}

/// TLS of the connecting side: a host in NVMe/TCP.
#[derive(Clone)]
pub struct ClientTls {
    context: SslContext,
    psk: Arc<Psk>,
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientTls")
    }
}

impl ClientTls {
    /// Uses this key, with the cipher suite of its hash: `TLS_AES_128_GCM_SHA256` or `TLS_AES_256_GCM_SHA384`.
    ///
    /// # Errors
    /// The names are too long, or OpenSSL fails.
    pub fn new(psk: &Psk) -> io::Result<Self> {
        check_key(psk)?;
        let psk = Arc::new(psk.clone());
        let mut context = context(std::iter::once(&psk))?;
        // No certificate is trusted, so none is accepted.
        context.set_verify(SslVerifyMode::PEER);
        psk_session::let_offer(&mut context);
        Ok(Self { context: context.build(), psk })
    }

    /// Begins TLS on a connection that was just opened, and returns once the peer has proven that it knows the key.
    ///
    /// # Errors
    /// The peer does not use TLS, has another key, or refuses this one (`PermissionDenied`); it takes longer than
    /// `limit`; or `is_stopped` says that the connection is no longer wanted.
    pub fn connect(
        &self,
        socket: TcpStream,
        limit: Duration,
        is_stopped: &dyn Fn() -> bool,
        clock: &Arc<dyn Clock>,
    ) -> io::Result<Stream> {
        let mut session = Session::new(&self.context, Some(&self.psk), &[], clock)?;
        session.shake_hands(&socket, limit, is_stopped)?;
        Ok(Stream::with(socket, session))
    }
}

/// TLS of the accepting side: a controller in NVMe/TCP.
#[derive(Clone)]
pub struct ServerTls(SslContext);

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerTls")
    }
}

impl ServerTls {
    /// Uses these keys, of either hash: a host names the one that it has, and gets that key's cipher suite.
    ///
    /// # Errors
    /// As [`ClientTls::new`], and if two different keys have the same identity.
    pub fn new(psks: Vec<Psk>) -> io::Result<Self> {
        let mut known: BTreeMap<Vec<u8>, Arc<Psk>> = BTreeMap::new();
        for psk in psks {
            check_key(&psk)?;
            let identity = psk.identity().as_bytes().to_vec();
            if known.get(&identity).is_some_and(|before| **before != psk) {
                let what = format!("two keys for TLS with the identity {:?}", psk.identity());
                return Err(io::Error::new(ErrorKind::InvalidInput, what));
            }
            known.insert(identity, Arc::new(psk));
        }
        let mut context = context(known.values())?;
        psk_session::accept(&mut context, known)?;
        Ok(Self(context.build()))
    }

    /// Begins TLS on a connection that was just accepted, from which `received` was already read. Returns once the peer
    /// has proven that it knows a key.
    ///
    /// # Errors
    /// As [`ClientTls::connect`].
    pub fn accept(
        &self,
        socket: TcpStream,
        received: &[u8],
        limit: Duration,
        is_stopped: &dyn Fn() -> bool,
        clock: &Arc<dyn Clock>,
    ) -> io::Result<Stream> {
        let mut session = Session::new(&self.0, None, received, clock)?;
        let done = session.shake_hands(&socket, limit, is_stopped);
        let chosen = psk_session::chosen(session.ssl.ssl()).cloned();
        done.map_err(|e| match &chosen {
            _ if e.kind() != ErrorKind::InvalidData => e,
            None => refused(format!("the peer has no key for TLS that is known here ({e})")),
            Some(chosen) => {
                let (host, suite) = (chosen.psk.host(), chosen.suite().name());
                let what = match chosen.has_suite {
                    true => "its key for TLS is another, or used with another hash".to_owned(),
                    false => format!("does not offer {suite}, which its key for TLS needs"),
                };
                refused(format!("the peer says that it is {host:?}, and {what} ({e})"))
            }
        })?;
        session.key = chosen.map(|chosen| chosen.psk);
        Ok(Stream::with(socket, session))
    }
}
