//! The bytes of a connection, with TLS or without.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd as _;
use std::time::Duration;

use super::tls::Session;

/// A connection, with TLS or without. One thread uses it at a time. Another thread can end it by shutting down a clone
/// of its socket.
#[derive(Debug)]
pub struct Stream {
    socket: TcpStream,
    /// What the socket was told last.
    read_timeout: Option<Duration>,
    session: Option<Box<Session>>,
}

impl Stream {
    /// One without TLS.
    #[must_use]
    pub fn plain(socket: TcpStream) -> Self {
        Self { socket, read_timeout: None, session: None }
    }

    #[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "there is no session"))]
    pub(super) fn with(socket: TcpStream, session: Session) -> Self {
        Self { socket, read_timeout: None, session: Some(Box::new(session)) }
    }

    /// The socket: for its addresses, its write timeout, and to shut it down.
    #[must_use]
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// The host's name as authenticated by TLS; on the controller's side.
    #[must_use]
    pub fn host(&self) -> Option<&str> {
        self.session.as_ref().and_then(|session| session.host())
    }

    /// The subsystem's name that the host's key is for; on the controller's side.
    #[must_use]
    pub fn subsystem(&self) -> Option<&str> {
        self.session.as_ref().and_then(|session| session.subsystem())
    }

    /// True with TLS.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.session.is_some()
    }

    /// Sets how long a read waits; not zero.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn set_read_timeout(&mut self, limit: Duration) -> io::Result<()> {
        if self.read_timeout != Some(limit) {
            self.socket.set_read_timeout(Some(limit))?;
            self.read_timeout = Some(limit);
        }
        Ok(())
    }

    /// Reads the available bytes, and waits for the first one; with TLS for up to twice the timeout. An incomplete
    /// record is kept for the next read.
    ///
    /// # Errors
    /// Those of the socket. With TLS also corrupt or forged bytes (`InvalidData`), and an end of the connection that
    /// the peer did not announce (`UnexpectedEof`).
    pub fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match &mut self.session {
            None => self.socket.read(into),
            Some(session) => session.read(&self.socket, self.read_timeout, into),
        }
    }

    /// Writes some of `data`, and returns how many bytes. After an error that asks to wait, the next write must begin
    /// with the same bytes.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        match &mut self.session {
            None => self.socket.write(data),
            Some(session) => session.write(&self.socket, data),
        }
    }

    /// The same, where more follows at once.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(super) fn write_more(&mut self, data: &[u8]) -> io::Result<usize> {
        match &mut self.session {
            None => rockmill_io::send_more(self.socket.as_fd(), data),
            Some(session) => session.write(&self.socket, data),
        }
    }

    /// Announces that nothing more is written. What the peer sends can still be read.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn end_writing(&mut self) -> io::Result<()> {
        if let Some(session) = &mut self.session {
            session.say_end(&self.socket);
        }
        self.socket.shutdown(Shutdown::Write)
    }
}
