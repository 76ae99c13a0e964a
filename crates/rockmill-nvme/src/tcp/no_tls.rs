//! Replaces TLS in builds without it: types that cannot be constructed.

use std::convert::Infallible;
use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use rockmill_io::Clock;

use super::stream::Stream;
use crate::psk::Psk;

fn missing<T>() -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "this program was built without TLS (the feature `tls`)"))
}

/// The state of TLS on a connection; never exists.
#[derive(Debug)]
pub(super) struct Session(Infallible);

impl Session {
    pub fn host(&self) -> Option<&str> {
        match self.0 {}
    }

    pub fn subsystem(&self) -> Option<&str> {
        match self.0 {}
    }

    pub fn read(&mut self, _: &TcpStream, _: Option<Duration>, _: &mut [u8]) -> io::Result<usize> {
        match self.0 {}
    }

    pub fn write(&mut self, _: &TcpStream, _: &[u8]) -> io::Result<usize> {
        match self.0 {}
    }

    pub fn say_end(&mut self, _: &TcpStream) {
        match self.0 {}
    }
}

/// TLS of those that connect.
#[derive(Clone, Debug)]
pub struct ClientTls(Infallible);

impl ClientTls {
    /// Fails.
    ///
    /// # Errors
    /// Always: this build has no TLS.
    pub fn new(_: &Psk) -> io::Result<Self> {
        missing()
    }

    /// Cannot be called.
    ///
    /// # Errors
    /// None.
    pub fn connect(&self, _: TcpStream, _: Duration, _: &dyn Fn() -> bool, _: &Arc<dyn Clock>) -> io::Result<Stream> {
        match self.0 {}
    }
}

/// TLS of the accepting side.
#[derive(Clone, Debug)]
pub struct ServerTls(Infallible);

impl ServerTls {
    /// Fails.
    ///
    /// # Errors
    /// Always: this build has no TLS.
    pub fn new(_: Vec<Psk>) -> io::Result<Self> {
        missing()
    }

    /// Cannot be called.
    ///
    /// # Errors
    /// None.
    pub fn accept(
        &self,
        _: TcpStream,
        _: &[u8],
        _: Duration,
        _: &dyn Fn() -> bool,
        _: &Arc<dyn Clock>,
    ) -> io::Result<Stream> {
        match self.0 {}
    }
}
