//! What stands in place of NATS where this crate is built without it: nothing of it can be made.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::{Came, PoolConfig, Ticket};
use crate::worker::Shared;

/// A pool, of which there is none.
#[derive(Debug)]
pub(crate) struct Pool(Infallible);

impl Pool {
    /// Fails.
    ///
    /// # Errors
    /// That this was built without NATS, or what is wrong with the configuration.
    pub fn start(config: &PoolConfig, _: &str, _: fn(&str)) -> io::Result<Self> {
        config.checked()?;
        let missing = "this program was built without NATS, which pools of workers need (the feature `nats`)";
        Err(io::Error::new(io::ErrorKind::Unsupported, missing))
    }

    pub fn offer(&self, _: u64) -> io::Result<Offered> {
        match self.0 {}
    }

    pub fn why(&self) -> String {
        match self.0 {}
    }

    pub fn work(&self, _: &Arc<Shared>, _: SocketAddr) {
        match self.0 {}
    }
}

/// A job that is published, of which there is none.
#[derive(Debug)]
pub(crate) struct Offered(Infallible);

impl Offered {
    pub fn ticket(&self) -> Ticket {
        match self.0 {}
    }

    pub fn next(&self, _: Duration) -> Option<Came> {
        match self.0 {}
    }
}
