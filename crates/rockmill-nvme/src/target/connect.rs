//! Fabrics commands: Connect creates a controller or adds a queue to one; properties configure it.

use std::sync::Arc;
use std::time::Duration;

use super::authentication::Authentication;
use super::connection::{Connection, Done, Queue, in_capsule};
use super::controller::{Controller, keep_alive};
use super::{ADMIN_ENTRIES, Registry, Target};
use crate::command::{FABRICS, Sqe};
use crate::fabrics::{
    AUTHENTICATION_REQUIRED, CONNECT_DATA_BYTES, Capabilities, Configuration, Connect, ConnectData, DISCOVERY_NQN,
    DYNAMIC_CONTROLLER, VERSION, fctype, invalid_parameter, property, property_is_wide,
};
use crate::identify::ControllerKind;
use crate::status::Status;

/// The status of a refused Connect, and the result with the place of the error.
type Refusal = (Status, u64);

/// Refuses a parameter of the command, by its offset.
fn in_command(offset: u16) -> Refusal {
    (Status::CONNECT_INVALID_PARAMETERS, invalid_parameter(offset, false))
}

/// Refuses a parameter of the data, by its offset.
fn in_data(offset: u16) -> Refusal {
    (Status::CONNECT_INVALID_PARAMETERS, invalid_parameter(offset, true))
}

const QUEUE_AT: u16 = 42;
const SIZE_AT: u16 = 44;
const KEEP_ALIVE_AT: u16 = 48;

impl Connection {
    /// Handles a command on a connection without a queue: only Connect is allowed.
    pub(super) fn first_command(&mut self, sqe: &Sqe, data: &[u8], now: Duration) -> Result<Done, Status> {
        if sqe.opcode() != FABRICS || sqe.fabrics_type() != fctype::CONNECT {
            return Err(Status::COMMAND_SEQUENCE_ERROR);
        }
        let connect = Connect::decode(sqe);
        if connect.format != 0 {
            return Err(Status::CONNECT_INCOMPATIBLE_FORMAT);
        }
        let data = in_capsule(sqe, data, CONNECT_DATA_BYTES as u32)?;
        let data: &[u8; CONNECT_DATA_BYTES] = data.try_into().map_err(|_| Status::SGL_LENGTH_INVALID)?;
        let data = ConnectData::decode(data).map_err(in_data).and_then(|data| match &self.names {
            Some((host, _)) if *host != data.host => Err((Status::CONNECT_INVALID_HOST, 0)),
            Some((_, subsystem)) if *subsystem != data.subsystem => Err(in_data(ConnectData::SUBSYSTEM_AT)),
            _ => Ok(data),
        });
        match data.and_then(|data| self.target.connect(&connect, data, now)) {
            Ok(queue) => {
                let result = u64::from(queue.controller.id);
                let required = if queue.is_authenticated() { 0 } else { AUTHENTICATION_REQUIRED };
                self.queue = Some(queue);
                Ok(Done::Result(result | required))
            }
            Err((status, result)) => {
                self.complete(sqe, status, result);
                Ok(Done::Later)
            }
        }
    }

    /// A Fabrics command after Connect.
    pub(super) fn fabrics(&mut self, sqe: &Sqe, data: &[u8]) -> Result<Done, Status> {
        let Some(queue) = &self.queue else { return Err(Status::COMMAND_SEQUENCE_ERROR) };
        match sqe.fabrics_type() {
            fctype::AUTHENTICATION_SEND => self.authentication_send(sqe, data),
            fctype::AUTHENTICATION_RECEIVE => self.authentication_receive(sqe),
            _ if !queue.is_authenticated() => Err(Status::AUTHENTICATION_REQUIRED),
            fctype::CONNECT => Err(Status::COMMAND_SEQUENCE_ERROR),
            fctype::PROPERTY_GET if queue.id == 0 => {
                let wide = property_is_wide(sqe).ok_or(Status::INVALID_FIELD)?;
                let state = queue.controller.state.lock();
                Ok(Done::Result(match (sqe.dword(11), wide) {
                    (property::CAP, true) => self.target.capabilities().encode(),
                    (property::VS, false) => u64::from(VERSION),
                    (property::CC, false) => u64::from(state.configuration.0),
                    (property::CSTS, false) => u64::from(state.status),
                    _ => return Err(Status::INVALID_FIELD),
                }))
            }
            fctype::PROPERTY_SET if queue.id == 0 => {
                // The others are read only.
                if (sqe.dword(11), property_is_wide(sqe)) != (property::CC, Some(false)) {
                    return Err(Status::INVALID_FIELD);
                }
                if queue.controller.configure(Configuration(sqe.dword(12))) {
                    self.target.flush_all()?;
                }
                Ok(Done::Result(0))
            }
            // Properties are the admin queue's.
            _ => Err(Status::INVALID_FIELD),
        }
    }
}

impl Target {
    fn capabilities(&self) -> Capabilities {
        Capabilities { queue_entries_max: self.config.queue_entries_max - 1, timeout: 30 }
    }

    /// Makes completed writes to all namespaces durable.
    pub(super) fn flush_all(&self) -> Result<(), Status> {
        self.namespace_ids().into_iter().try_for_each(|id| {
            let done = self.with_namespace(id, |n| if n.read_only() { Ok(()) } else { n.flush() });
            // A namespace that was removed meanwhile does not matter.
            if done == Err(Status::INVALID_NAMESPACE) { Ok(()) } else { done }
        })
    }

    /// Connects a queue, whose host may still have to authenticate.
    fn connect(&self, connect: &Connect, data: ConnectData, now: Duration) -> Result<Queue, Refusal> {
        let policy = self.config.auth.as_ref().filter(|_| data.subsystem != DISCOVERY_NQN);
        if policy.is_some_and(|policy| !policy.hosts.contains_key(&data.host)) {
            return Err((Status::CONNECT_INVALID_HOST, 0));
        }
        let names = (data.host.clone(), data.subsystem.clone());
        let mut queue = self.connect_unproven(connect, data, now)?;
        queue.authentication = policy.map(|policy| Authentication::new(Arc::clone(policy), names.0, names.1));
        Ok(queue)
    }

    fn connect_unproven(&self, connect: &Connect, data: ConnectData, now: Duration) -> Result<Queue, Refusal> {
        let kind = match data.subsystem.as_str() {
            DISCOVERY_NQN if self.config.discovery => ControllerKind::Discovery,
            name if name == self.config.nqn => ControllerKind::Io,
            _ => return Err(in_data(ConnectData::SUBSYSTEM_AT)),
        };
        if self.config.hosts.as_ref().is_some_and(|hosts| !hosts.contains(&data.host)) {
            return Err((Status::CONNECT_INVALID_HOST, 0));
        }
        let entries_max = match connect.queue {
            0 => self.config.queue_entries_max.max(ADMIN_ENTRIES),
            _ => self.config.queue_entries_max,
        };
        if connect.size == 0 || connect.size >= entries_max {
            return Err(in_command(SIZE_AT));
        }
        let entries = connect.size + 1;
        let host = (data.host, data.host_id);
        let mut registry = self.registry.lock();
        if connect.queue == 0 {
            if data.controller != DYNAMIC_CONTROLLER {
                return Err(in_data(ConnectData::CONTROLLER_AT));
            }
            let keep_alive = keep_alive(connect.keep_alive_ms);
            if keep_alive > self.config.keep_alive_max {
                return Err(in_command(KEEP_ALIVE_AT));
            }
            let controller = registry.make(self.config.controllers_max, kind, host)?;
            let mut state = controller.state.lock();
            state.keep_alive = keep_alive;
            state.heard = now;
            drop(state);
            return Ok(Queue::new(controller, 0, entries, !connect.no_flow_control));
        }
        let controller = registry.controllers.get(&data.controller).map(Arc::clone);
        drop(registry);
        let controller = controller.ok_or_else(|| in_data(ConnectData::CONTROLLER_AT))?;
        if controller.kind != kind {
            return Err(in_data(ConnectData::SUBSYSTEM_AT));
        }
        if controller.host != host {
            return Err(in_data(ConnectData::HOST_AT));
        }
        if kind == ControllerKind::Discovery || connect.queue > self.config.io_queues_max {
            return Err(in_command(QUEUE_AT));
        }
        if !controller.is_ready() {
            return Err((Status::COMMAND_SEQUENCE_ERROR, 0));
        }
        let mut state = controller.state.lock();
        if state.configuration.shutdown() != 0 || !state.queues.insert(connect.queue) {
            return Err((Status::COMMAND_SEQUENCE_ERROR, 0));
        }
        // With the lock held, so that the epoch is the one whose list has this queue.
        let queue = Queue::new(Arc::clone(&controller), connect.queue, entries, !connect.no_flow_control);
        drop(state);
        Ok(queue)
    }
}

impl Registry {
    /// Creates a controller. Ids are given out in turn, so none is reused soon.
    fn make(
        &mut self,
        controllers_max: u16,
        kind: ControllerKind,
        host: (String, [u8; 16]),
    ) -> Result<Arc<Controller>, Refusal> {
        if self.controllers.len() >= usize::from(controllers_max) {
            return Err((Status::CONNECT_CONTROLLER_BUSY, 0));
        }
        // FFF0h and above are reserved. There are more ids than controllers, so the loop ends.
        loop {
            self.last = if self.last >= 0xffef { 1 } else { self.last + 1 };
            if !self.controllers.contains_key(&self.last) {
                break;
            }
        }
        let controller = Arc::new(Controller::new(self.last, kind, host));
        self.controllers.insert(self.last, Arc::clone(&controller));
        Ok(controller)
    }
}
