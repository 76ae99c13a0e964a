//! Authentication commands, and what a queue may do before authentication.

use std::sync::Arc;

use super::connection::{Connection, Done, in_capsule};
use crate::auth::{AuthPolicy, ControllerExchange, Step};
use crate::command::Sqe;
use crate::fabrics::authentication_bytes;
use crate::status::Status;

/// The longest buffer that a host may provide for a message.
const RECEIVE_BYTES_MAX: u32 = 8192;

/// The state of a queue's authentication.
#[derive(Debug)]
pub(super) struct Authentication {
    policy: Arc<AuthPolicy>,
    host: String,
    subsystem: String,
    exchange: ControllerExchange,
    /// It has, once at least.
    pub(super) passed: bool,
    /// The exchange is over; the host's next message begins another.
    over: bool,
    failed: bool,
}

impl Authentication {
    pub(super) fn new(policy: Arc<AuthPolicy>, host: String, subsystem: String) -> Self {
        let exchange = ControllerExchange::new(Arc::clone(&policy), host.clone(), subsystem.clone());
        Self { policy, host, subsystem, exchange, passed: false, over: false, failed: false }
    }

    /// True if it failed and the host was told why.
    pub(super) fn ends_connection(&self) -> bool {
        self.failed && self.exchange.fetchable().is_none()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.exchange.fetchable().unwrap_or(0)
    }

    fn received(&mut self, message: &[u8]) {
        if self.over && self.exchange.fetchable().is_none() {
            self.exchange =
                ControllerExchange::new(Arc::clone(&self.policy), self.host.clone(), self.subsystem.clone());
            self.over = false;
        }
        match self.exchange.received(message) {
            Step::Continues => {}
            Step::Authenticated => (self.passed, self.over) = (true, true),
            Step::Failed => self.failed = true,
        }
    }
}

impl Connection {
    /// Authentication Send.
    pub(super) fn authentication_send(&mut self, sqe: &Sqe, data: &[u8]) -> Result<Done, Status> {
        let bytes = authentication_bytes(sqe).filter(|&n| n > 0).ok_or(Status::INVALID_FIELD)?;
        let message = in_capsule(sqe, data, bytes)?;
        self.authentication()?.received(message);
        Ok(Done::Result(0))
    }

    /// Authentication Receive.
    pub(super) fn authentication_receive(&mut self, sqe: &Sqe) -> Result<Done, Status> {
        let room = authentication_bytes(sqe).filter(|&n| n > 0 && n <= RECEIVE_BYTES_MAX);
        let room = room.ok_or(Status::INVALID_FIELD)? as usize;
        let exchange = &mut self.authentication()?.exchange;
        if exchange.fetchable().is_some_and(|bytes| bytes > room) {
            return Err(Status::INVALID_FIELD);
        }
        let mut message = exchange.fetch().ok_or(Status::COMMAND_SEQUENCE_ERROR)?;
        message.resize(room, 0);
        Ok(Done::Data(message))
    }

    fn authentication(&mut self) -> Result<&mut Authentication, Status> {
        let queue = self.queue.as_mut().ok_or(Status::COMMAND_SEQUENCE_ERROR)?;
        queue.authentication.as_mut().ok_or(Status::INVALID_FIELD)
    }
}
