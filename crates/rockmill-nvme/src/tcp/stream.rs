//! The bytes of a connection, with TLS or without.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use super::tls::Session;

/// A connection, with TLS or without. One thread uses it at a time. Another one ends it by closing its socket, of which
/// it has a clone.
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

    /// The socket: for its addresses, time limits of writes, and for those who close it.
    #[must_use]
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// The name that the host has proven with TLS, on the controller's side.
    #[must_use]
    pub fn host(&self) -> Option<&str> {
        self.session.as_ref().and_then(|session| session.host())
    }

    /// True with TLS.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.session.is_some()
    }

    /// How long a read waits; not zero.
    ///
    /// # Errors
    /// The socket's.
    pub fn set_read_timeout(&mut self, limit: Duration) -> io::Result<()> {
        if self.read_timeout != Some(limit) {
            self.socket.set_read_timeout(Some(limit))?;
            self.read_timeout = Some(limit);
        }
        Ok(())
    }

    /// Reads what there is; waits for the first byte of it, with TLS at most twice as long as the limit says. What came
    /// of a record that is not complete is kept for the next read.
    ///
    /// # Errors
    /// The socket's. With TLS also bytes that the peer has not sent so (`InvalidData`), and an end of the connection
    /// that the peer has not announced (`UnexpectedEof`).
    pub fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match &mut self.session {
            None => self.socket.read(into),
            Some(session) => session.read(&self.socket, self.read_timeout, into),
        }
    }

    /// Writes some of `data`, and gives how many bytes. After an error that says that it has to wait, the next write
    /// must begin with the same bytes.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        match &mut self.session {
            None => self.socket.write(data),
            Some(session) => session.write(&self.socket, data),
        }
    }

    /// Says that nothing more is written. What the peer sends can still be read.
    ///
    /// # Errors
    /// The socket's.
    pub fn end_writing(&mut self) -> io::Result<()> {
        if let Some(session) = &mut self.session {
            session.say_end(&self.socket);
        }
        self.socket.shutdown(Shutdown::Write)
    }
}
