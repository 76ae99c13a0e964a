//! Commands of the admin queue.

use std::time::Duration;

use super::connection::{Connection, Done, Queue};
use super::controller::{Controller, ERROR_ENTRIES, KEEP_ALIVE_UNIT, keep_alive};
use crate::command::{
    ALL_NAMESPACES, CQE_BYTES, EVENT_DISCOVERY, EVENT_NAMESPACES, SQE_BYTES, Sqe, admin, cns, feature, log_page,
    log_page_bytes,
};
use crate::fabrics::{DISCOVERY_NQN, VERSION};
use crate::identify::{
    ControllerKind, Descriptor, IDENTIFY_BYTES, IdentifyController, IdentifyNamespace, OPTIONAL_WRITE_ZEROES,
    SGLS_IN_CAPSULE, encode_descriptors, encode_namespace_list,
};
use crate::logs::DiscoveryHead;
use crate::status::Status;

/// Most event requests that may be outstanding.
pub(super) const EVENT_REQUESTS_MAX: usize = 4;
/// The highest namespace id that a list may be asked for from.
const LIST_FROM_MAX: u32 = 0xffff_fffd;

impl Connection {
    pub(super) fn admin(&mut self, sqe: &Sqe, data: &[u8], now: Duration) -> Result<Done, Status> {
        let Some(queue) = &mut self.queue else { return Err(Status::COMMAND_SEQUENCE_ERROR) };
        // No admin command here sends data.
        if !data.is_empty() {
            return Err(Status::INVALID_FIELD);
        }
        let discovery = queue.controller.kind == ControllerKind::Discovery;
        match sqe.opcode() {
            admin::IDENTIFY => self.identify(sqe, discovery).map(Done::Data),
            admin::GET_LOG_PAGE => self.log_page(sqe, discovery).map(Done::Data),
            admin::KEEP_ALIVE => {
                queue.controller.state.lock().heard = now;
                Ok(Done::Result(0))
            }
            admin::ASYNC_EVENT => {
                if queue.events.len() == EVENT_REQUESTS_MAX {
                    return Err(Status::ASYNC_EVENT_LIMIT_EXCEEDED);
                }
                queue.events.push_back(*sqe);
                Ok(Done::Later)
            }
            admin::ABORT => Ok(self.abort(sqe)),
            admin::SET_FEATURES => self.set_features(sqe, discovery, now),
            admin::GET_FEATURES => self.get_features(sqe, discovery),
            _ => Err(Status::INVALID_OPCODE),
        }
    }

    fn identify(&self, sqe: &Sqe, discovery: bool) -> Result<Vec<u8>, Status> {
        let Some(queue) = &self.queue else { return Err(Status::COMMAND_SEQUENCE_ERROR) };
        let id = sqe.namespace();
        match sqe.dword(10) as u8 {
            cns::CONTROLLER => Ok(self.controller_data(queue).encode()),
            _ if discovery => Err(Status::INVALID_FIELD),
            cns::NAMESPACE => {
                if id == 0 || id > self.target.config().namespaces_max {
                    return Err(Status::INVALID_NAMESPACE);
                }
                let data = self.target.with_namespace(id, |namespace| {
                    Ok(IdentifyNamespace {
                        blocks: namespace.blocks(),
                        block_shift: namespace.block_bytes().trailing_zeros() as u8,
                        read_only: namespace.read_only(),
                        shared: true,
                        nguid: namespace.nguid(),
                    }
                    .encode())
                });
                // For a namespace that is not attached, the data is zeros.
                Ok(data.unwrap_or_else(|_| vec![0; IDENTIFY_BYTES]))
            }
            cns::ACTIVE_NAMESPACES => {
                if id > LIST_FROM_MAX {
                    return Err(Status::INVALID_NAMESPACE);
                }
                Ok(encode_namespace_list(self.target.namespace_ids().into_iter().filter(|&n| n > id)))
            }
            cns::DESCRIPTORS => {
                let nguid = self.target.with_namespace(id, |namespace| Ok(namespace.nguid()))?;
                Ok(encode_descriptors(&[Descriptor::Nguid(nguid)]))
            }
            _ => Err(Status::INVALID_FIELD),
        }
    }

    fn controller_data(&self, queue: &Queue) -> IdentifyController {
        let config = self.target.config();
        let io = queue.controller.kind == ControllerKind::Io;
        IdentifyController {
            serial: config.serial.clone(),
            model: "Rockmill NVMe/TCP target".to_owned(),
            firmware: env!("CARGO_PKG_VERSION").to_owned(),
            transfer_shift: config.transfer_shift,
            controller: queue.controller.id,
            version: VERSION,
            events: if io { EVENT_NAMESPACES } else { EVENT_DISCOVERY },
            kind: queue.controller.kind,
            aborts: 3,
            async_events: EVENT_REQUESTS_MAX as u8 - 1,
            error_entries: ERROR_ENTRIES as u8 - 1,
            keep_alive_unit: (KEEP_ALIVE_UNIT.as_millis() / 100) as u16,
            commands_max: config.queue_entries_max,
            namespaces: if io { config.namespaces_max } else { 0 },
            optional: if io && config.write_zeroes { OPTIONAL_WRITE_ZEROES } else { 0 },
            write_cache: io,
            subsystem: if io { config.nqn.clone() } else { DISCOVERY_NQN.to_owned() },
            command_capsule: (SQE_BYTES as u32 + config.in_capsule_max) / 16,
            response_capsule: CQE_BYTES as u32 / 16,
            sgls: SGLS_IN_CAPSULE,
        }
    }

    fn log_page(&self, sqe: &Sqe, discovery: bool) -> Result<Vec<u8>, Status> {
        let Some(queue) = &self.queue else { return Err(Status::COMMAND_SEQUENCE_ERROR) };
        let (bytes, offset) = (log_page_bytes(sqe), sqe.qword(12));
        if bytes > u64::from(self.target.config().transfer_max()) || !offset.is_multiple_of(4) {
            return Err(Status::INVALID_FIELD);
        }
        let retain = sqe.dword(10) & 1 << 15 != 0;
        let controller = &queue.controller;
        let page = match sqe.dword(10) as u8 {
            log_page::DISCOVERY if discovery => self.discovery_page(controller, retain),
            _ if discovery => return Err(Status::INVALID_LOG_PAGE),
            log_page::ERROR => controller.error_log(),
            // The page is the controller's: namespaces have none of their own.
            log_page::SMART if !matches!(sqe.namespace(), 0 | ALL_NAMESPACES) => return Err(Status::INVALID_FIELD),
            log_page::SMART => controller.smart().encode().to_vec(),
            log_page::CHANGED_NAMESPACES => encode_namespace_list(controller.changed_namespaces(retain)),
            _ => return Err(Status::INVALID_LOG_PAGE),
        };
        // The error log always has its full length; unused entries are zeros.
        let length = if sqe.dword(10) as u8 == log_page::ERROR { ERROR_ENTRIES * 64 } else { page.len() };
        let start = usize::try_from(offset).ok().filter(|&o| o <= length).ok_or(Status::INVALID_FIELD)?;
        let mut data = page.get(start..).unwrap_or_default().to_vec();
        data.resize(bytes as usize, 0);
        Ok(data)
    }

    fn discovery_page(&self, controller: &Controller, retain: bool) -> Vec<u8> {
        controller.discovery_read(retain);
        let log = self.target.discovery.lock();
        let mut page = DiscoveryHead { generation: log.generation, entries: log.entries.len() as u64 }.encode();
        log.entries.iter().for_each(|entry| page.extend(entry.encode()));
        page
    }

    /// Only event requests can be aborted. Other commands of this queue are complete when Abort comes, except writes
    /// that wait for their data; for all of these the result says "not aborted".
    fn abort(&mut self, sqe: &Sqe) -> Done {
        let (queue_id, command_id) = (sqe.dword(10) as u16, (sqe.dword(10) >> 16) as u16);
        let aborted = self.queue.as_mut().filter(|_| queue_id == 0).and_then(|queue| {
            let at = queue.events.iter().position(|e| e.command_id() == command_id)?;
            queue.events.remove(at)
        });
        match aborted {
            Some(event) => {
                self.complete(&event, Status::ABORT_REQUESTED, 0);
                Done::Result(0)
            }
            None => Done::Result(1),
        }
    }

    fn set_features(&self, sqe: &Sqe, discovery: bool, now: Duration) -> Result<Done, Status> {
        let Some(queue) = &self.queue else { return Err(Status::COMMAND_SEQUENCE_ERROR) };
        if sqe.dword(10) & 1 << 31 != 0 {
            return Err(Status::FEATURE_NOT_SAVEABLE);
        }
        let value = sqe.dword(11);
        let mut state = queue.controller.state.lock();
        match sqe.dword(10) as u8 {
            feature::KEEP_ALIVE => {
                let wanted = keep_alive(value);
                if wanted > self.target.config().keep_alive_max {
                    return Err(Status::KEEP_ALIVE_INVALID);
                }
                state.keep_alive = wanted;
                state.heard = now;
                Ok(Done::Result(0))
            }
            feature::ASYNC_EVENTS => {
                state.events = value;
                Ok(Done::Result(0))
            }
            feature::QUEUES if !discovery => {
                if value & 0xffff == 0xffff || value >> 16 == 0xffff {
                    return Err(Status::INVALID_FIELD);
                }
                if !state.queues.is_empty() {
                    return Err(Status::COMMAND_SEQUENCE_ERROR);
                }
                Ok(Done::Result(self.queues_granted()))
            }
            feature::VOLATILE_WRITE_CACHE if !discovery => Err(Status::FEATURE_NOT_CHANGEABLE),
            _ => Err(Status::INVALID_FIELD),
        }
    }

    /// All queues, regardless of the request: the host may use fewer.
    fn queues_granted(&self) -> u64 {
        let granted = u64::from(self.target.config().io_queues_max - 1);
        granted | granted << 16
    }

    fn get_features(&self, sqe: &Sqe, discovery: bool) -> Result<Done, Status> {
        let Some(queue) = &self.queue else { return Err(Status::COMMAND_SEQUENCE_ERROR) };
        let state = queue.controller.state.lock();
        Ok(Done::Result(match sqe.dword(10) as u8 {
            feature::KEEP_ALIVE => u64::try_from(state.keep_alive.as_millis()).unwrap_or(u64::MAX),
            feature::ASYNC_EVENTS => u64::from(state.events),
            feature::QUEUES if !discovery => self.queues_granted(),
            feature::VOLATILE_WRITE_CACHE if !discovery => 1,
            _ => return Err(Status::INVALID_FIELD),
        }))
    }
}
