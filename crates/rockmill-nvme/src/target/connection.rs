//! The transport of a connection: PDUs in both directions, the data of writes, and the dispatch of commands.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::Target;
use super::authentication::Authentication;
use super::controller::Controller;
use crate::command::{Cqe, FABRICS, FABRICS_CAPSULE_DATA, Sgl, Sqe};
use crate::fabrics::NO_FLOW_CONTROL;
use crate::pdu::{
    Assembler, Data, Direction, Framing, IcReq, IcResp, Payload, Pdu, R2t, TERM_DATA_MAX, TermReq, Waiting,
};
use crate::pdu_error::{FatalError, PduError};
use crate::status::Status;

/// Where a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// It waits for ICReq.
    Initialize,
    /// Commands may come.
    Ready,
    /// Nothing more is read. Pending output is still sent.
    Ended,
}

/// The queue that a connection carries.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) controller: Arc<Controller>,
    /// The controller's epoch when it was connected.
    pub(super) epoch: u64,
    pub(super) id: u16,
    pub(super) entries: u16,
    pub(super) flow_control: bool,
    /// Where the submission queue's head is.
    pub(super) head: u16,
    writes: VecDeque<PendingWrite>,
    buffered: usize,
    /// Memory of a completed write, for the next one.
    spare: Vec<u8>,
    next_tag: u16,
    /// Event requests that wait for events.
    pub(super) events: VecDeque<Sqe>,
    /// `None` where hosts need not authenticate.
    pub(super) authentication: Option<Authentication>,
}

/// A write whose data comes in separate PDUs.
#[derive(Debug)]
struct PendingWrite {
    sqe: Sqe,
    length: u32,
    tag: u16,
    /// The data received so far, from the beginning.
    data: Vec<u8>,
    /// There is room for all of its data, so the target asks for it.
    has_room: bool,
    received: u32,
    /// The end of the requested data.
    asked: u32,
    /// A data digest did not match.
    broken: bool,
}

/// Memory of a waiting write in addition to its data.
pub(super) const WRITE_BYTES: usize = size_of::<PendingWrite>();

/// What becomes of a command.
#[derive(Debug)]
pub(super) enum Done {
    /// It is complete, with this result.
    Result(u64),
    /// Send this data to the host, then the completion.
    Data(Vec<u8>),
    /// Already answered, or answered later.
    Later,
}

impl Queue {
    pub(super) fn new(controller: Arc<Controller>, id: u16, entries: u16, flow_control: bool) -> Self {
        let epoch = controller.epoch();
        Self {
            controller,
            epoch,
            id,
            entries,
            flow_control,
            head: 0,
            writes: VecDeque::new(),
            buffered: 0,
            spare: Vec::new(),
            next_tag: 0,
            events: VecDeque::new(),
            authentication: None,
        }
    }

    pub(super) fn is_authenticated(&self) -> bool {
        self.authentication.as_ref().is_none_or(|a| a.passed)
    }

    fn has_command(&self, id: u16) -> bool {
        self.writes.iter().any(|w| w.sqe.command_id() == id) || self.events.iter().any(|e| e.command_id() == id)
    }

    fn tag(&mut self) -> u16 {
        // There are fewer writes than tags, so the loop ends.
        loop {
            self.next_tag = self.next_tag.wrapping_add(1);
            if !self.writes.iter().any(|w| w.tag == self.next_tag) {
                return self.next_tag;
            }
        }
    }
}

/// One connection of a host, as a state machine: bytes and times in, bytes out.
#[derive(Debug)]
pub struct Connection {
    pub(super) target: Arc<Target>,
    phase: Phase,
    opened: Duration,
    assembler: Assembler,
    incoming: Framing,
    pub(super) outgoing: Framing,
    pub(super) output: Waiting,
    pub(super) queue: Option<Queue>,
    /// The only host that may connect, and the only subsystem that it may connect to.
    pub(super) names: Option<(String, String)>,
    error: Option<PduError>,
}

impl Connection {
    pub(super) fn new(target: Arc<Target>, now: Duration) -> Self {
        let config = target.config();
        let capsule = FABRICS_CAPSULE_DATA.max(config.in_capsule_max);
        let data = config.h2c_data_max;
        Self {
            phase: Phase::Initialize,
            opened: now,
            assembler: Assembler::default(),
            incoming: Framing::initial(Direction::ToController, capsule, data),
            outgoing: Framing::initial(Direction::ToHost, 0, 0),
            output: Waiting::default(),
            queue: None,
            names: None,
            error: None,
            target,
        }
    }

    /// Lets only this host connect, and only to this subsystem: the transport has authenticated both names.
    pub fn only(&mut self, host: &str, subsystem: &str) {
        self.names = Some((host.to_owned(), subsystem.to_owned()));
    }

    /// Takes bytes that arrived at `now`. Returns how many were taken: fewer than all if answers must be sent first
    /// ([`Self::wants_input`]), or if the connection ended.
    pub fn receive(&mut self, bytes: &[u8], now: Duration) -> usize {
        let mut rest = bytes;
        while !rest.is_empty() && self.wants_input() {
            let framing = self.incoming;
            match self.assembler.fill(&framing, &mut rest) {
                Ok(false) => break,
                Ok(true) => {
                    let pdu = self.assembler.take();
                    if let Err(e) = framing.decode(&pdu).and_then(|decoded| self.handle(&decoded, now)) {
                        self.fail(e, &pdu);
                    }
                    self.assembler.reuse(pdu);
                }
                Err(e) => {
                    let header = self.assembler.take();
                    self.fail(e, &header);
                }
            }
        }
        bytes.len() - rest.len()
    }

    /// True if it takes bytes now.
    #[must_use]
    pub fn wants_input(&self) -> bool {
        self.phase != Phase::Ended && self.output().len() <= self.target.config().output_max
    }

    /// What is to be sent.
    #[must_use]
    pub fn output(&self) -> &[u8] {
        self.output.unsent()
    }

    /// Tells that the first `count` bytes of the output were sent.
    pub fn sent(&mut self, count: usize) {
        self.output.sent(count);
    }

    /// True if the connection should be closed after its output is sent.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.phase == Phase::Ended
    }

    /// The host's protocol violation, if that ended the connection.
    #[must_use]
    pub fn error(&self) -> Option<&PduError> {
        self.error.as_ref()
    }

    /// The queue that the connection carries; `None` until Connect succeeds.
    #[must_use]
    pub fn queue_id(&self) -> Option<u16> {
        self.queue.as_ref().map(|q| q.id)
    }

    /// True if it carries a queue, and its host has authenticated where that is demanded.
    #[must_use]
    pub fn is_authenticated(&self) -> bool {
        self.queue.as_ref().is_some_and(Queue::is_authenticated)
    }

    /// Memory in bytes that it uses for its host: never more than [`TargetConfig::connection_bytes_max`].
    ///
    /// [`TargetConfig::connection_bytes_max`]: super::TargetConfig::connection_bytes_max
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let queue = self.queue.as_ref().map_or(0, |q| {
            let writes: usize = q.writes.iter().map(|w| w.data.capacity()).sum();
            let authentication = q.authentication.as_ref().map_or(0, Authentication::memory_bytes);
            writes
                + q.spare.capacity()
                + q.writes.capacity() * WRITE_BYTES
                + q.events.capacity() * size_of::<Sqe>()
                + authentication
        });
        self.assembler.memory_bytes() + self.output.memory_bytes() + queue
    }

    /// Handles time limits and changes made by other connections. Ends the connection if its host was silent for too
    /// long, if its controller is gone or was reset, or if no Connect came. Reports events. Call it a few times per
    /// second.
    pub fn poll(&mut self, now: Duration) {
        let late = now.saturating_sub(self.opened) > self.target.config().handshake_timeout;
        if late && self.queue.as_ref().is_none_or(|q| !q.is_authenticated()) {
            self.end();
        }
        let Some(queue) = &self.queue else { return };
        if queue.id == 0 && queue.controller.is_silent(now) {
            self.end();
            return;
        }
        if !self.end_if_stale() {
            self.tell_events();
        }
    }

    /// Ends an I/O queue whose controller is gone or was reset. True if there is nothing more to do.
    fn end_if_stale(&mut self) -> bool {
        let stale = self.queue.as_ref().is_some_and(|q| match q.id {
            0 => q.controller.is_gone(),
            _ => q.epoch != q.controller.epoch(),
        });
        if stale {
            self.end();
        }
        stale
    }

    /// Stops reading, and leaves the controller.
    fn end(&mut self) {
        self.phase = Phase::Ended;
        let Some(queue) = self.queue.take() else { return };
        if queue.id == 0 {
            queue.controller.end();
            self.target.registry.lock().controllers.remove(&queue.controller.id);
        } else {
            let mut state = queue.controller.state.lock();
            // After a reset, another connection may have the same queue number.
            if queue.epoch == queue.controller.epoch() {
                state.queues.remove(&queue.id);
            }
        }
    }

    /// Tells the host the error, and ends the connection. `pdu` is the received part of the PDU.
    fn fail(&mut self, e: PduError, pdu: &[u8]) {
        let header = &pdu[..pdu.len().min(TERM_DATA_MAX)];
        let term = TermReq { fatal: e.fatal, information: e.information(), header };
        self.outgoing.encode(&Pdu::C2hTermReq(term), &mut self.output);
        self.error = Some(e);
        self.end();
    }

    fn handle(&mut self, pdu: &Pdu<'_>, now: Duration) -> Result<(), PduError> {
        match (self.phase, pdu) {
            // The host ends the connection and reads no more, so there is no answer.
            (_, Pdu::H2cTermReq(_)) => self.end(),
            (Phase::Initialize, Pdu::IcReq(request)) => self.initialize(request)?,
            (Phase::Ready, Pdu::CapsuleCmd(sqe, payload)) => self.command(sqe, *payload, now)?,
            (Phase::Ready, Pdu::H2cData(data)) => self.data(data)?,
            _ => return Err(PduError::sequence(pdu.kind())),
        }
        Ok(())
    }

    fn initialize(&mut self, request: &IcReq) -> Result<(), PduError> {
        if request.format != 0 {
            return Err(PduError::new(FatalError::UnsupportedParameter, "PFV", 8, request.format));
        }
        let config = self.target.config();
        let response = IcResp {
            format: 0,
            alignment: config.alignment,
            header_digest: request.header_digest && config.header_digest,
            data_digest: request.data_digest && config.data_digest,
            h2c_data_max: config.h2c_data_max,
        };
        self.outgoing.encode(&Pdu::IcResp(response), &mut self.output);
        for (framing, alignment) in [(&mut self.incoming, response.alignment), (&mut self.outgoing, request.alignment)]
        {
            framing.header_digest = response.header_digest;
            framing.data_digest = response.data_digest;
            framing.alignment = (u32::from(alignment) + 1) * 4;
        }
        self.phase = Phase::Ready;
        Ok(())
    }

    fn command(&mut self, sqe: &Sqe, payload: Payload<'_>, now: Duration) -> Result<(), PduError> {
        if self.end_if_stale() {
            return Ok(());
        }
        let mut conflict = false;
        if let Some(queue) = &mut self.queue {
            queue.head = (queue.head + 1) % queue.entries;
            conflict = queue.has_command(sqe.command_id());
            // Bounds the commands that wait for data, even if the host ignores the queue's size.
            if queue.writes.len() >= usize::from(queue.entries) {
                return Err(PduError::new(FatalError::LimitExceeded, "CID", 10, sqe.command_id()));
            }
        }
        let done = if !payload.intact {
            Err(Status::TRANSIENT_TRANSPORT_ERROR)
        } else if !sqe.flags_are_right() {
            Err(Status::INVALID_FIELD)
        } else if conflict {
            Err(Status::COMMAND_ID_CONFLICT)
        } else {
            self.execute(sqe, payload.bytes, now)
        };
        match done {
            Ok(Done::Later) => {}
            Ok(Done::Result(result)) => self.complete(sqe, Status::SUCCESS, result),
            Ok(Done::Data(data)) => self.send(sqe, &data),
            Err(status) => self.complete(sqe, status, 0),
        }
        let refused = |q: &Queue| q.authentication.as_ref().is_some_and(Authentication::ends_connection);
        if self.queue.as_ref().is_some_and(refused) {
            self.end();
            return Ok(());
        }
        // Also serves writes that waited for room, and events that a command caused.
        self.ask_for_data();
        self.tell_events();
        Ok(())
    }

    fn execute(&mut self, sqe: &Sqe, data: &[u8], now: Duration) -> Result<Done, Status> {
        let Some(queue) = &self.queue else { return self.first_command(sqe, data, now) };
        if sqe.opcode() == FABRICS {
            return self.fabrics(sqe, data);
        }
        if !queue.is_authenticated() {
            return Err(Status::AUTHENTICATION_REQUIRED);
        }
        if !queue.controller.is_ready() {
            return Err(Status::COMMAND_SEQUENCE_ERROR);
        }
        if queue.id == 0 { self.admin(sqe, data, now) } else { self.io(sqe, data) }
    }

    /// Sends a completion; a failure goes to the error log.
    pub(super) fn complete(&mut self, sqe: &Sqe, status: Status, result: u64) {
        let mut head = NO_FLOW_CONTROL;
        let mut status = status;
        if let Some(queue) = &self.queue {
            if queue.flow_control {
                head = queue.head;
            }
            if !status.is_success() && status.code() != Status::ABORT_REQUESTED {
                queue.controller.failed(queue.id, sqe, status);
                status = status.with_more();
            }
        }
        let transient = [
            Status::TRANSIENT_TRANSPORT_ERROR,
            Status::INTERNAL_ERROR,
            Status::NAMESPACE_NOT_READY,
            Status::COMMAND_INTERRUPTED,
            Status::ABORT_REQUESTED,
            Status::CONNECT_CONTROLLER_BUSY,
        ];
        if !status.is_success() && !transient.contains(&status.code()) {
            status = status.do_not_retry();
        }
        self.outgoing.encode(&Pdu::CapsuleResp(Cqe::new(sqe.command_id(), status, result, head)), &mut self.output);
    }

    /// Sends data of a command, then its completion. The host's buffer must have the same length.
    fn send(&mut self, sqe: &Sqe, data: &[u8]) {
        match sqe.sgl() {
            Sgl::Transport { length } if length as usize == data.len() => {}
            Sgl::Transport { .. } => return self.complete(sqe, Status::SGL_LENGTH_INVALID, 0),
            _ => return self.complete(sqe, Status::SGL_TYPE_INVALID, 0),
        }
        let data = Data {
            command_id: sqe.command_id(),
            tag: 0,
            offset: 0,
            last: true,
            success: false,
            payload: Payload::new(data),
        };
        self.outgoing.encode(&Pdu::C2hData(data), &mut self.output);
        self.complete(sqe, Status::SUCCESS, 0);
    }

    /// Queues a write whose data must be requested.
    pub(super) fn await_data(&mut self, sqe: &Sqe, length: u32) -> Done {
        if let Some(queue) = &mut self.queue {
            let tag = queue.tag();
            queue.writes.push_back(PendingWrite {
                sqe: *sqe,
                length,
                tag,
                data: Vec::new(),
                has_room: false,
                received: 0,
                asked: 0,
                broken: false,
            });
        }
        Done::Later
    }

    /// Sends an R2T for each write without an open one, in order, while there is room.
    fn ask_for_data(&mut self) {
        let config = self.target.config();
        let Some(queue) = &mut self.queue else { return };
        for write in &mut queue.writes {
            if write.asked > write.received {
                continue;
            }
            if !write.has_room {
                if queue.buffered + write.length as usize > config.write_buffer_max {
                    return;
                }
                queue.buffered += write.length as usize;
                write.has_room = true;
                let length = write.length as usize;
                // Only memory of the exact size; otherwise many small writes could hold the memory of large ones.
                if queue.spare.capacity() == length {
                    write.data = std::mem::take(&mut queue.spare);
                    write.data.clear();
                } else {
                    write.data = Vec::with_capacity(length);
                }
            }
            let length = (write.length - write.received).min(config.r2t_bytes_max);
            write.asked = write.received + length;
            let r2t = R2t { command_id: write.sqe.command_id(), tag: write.tag, offset: write.received, length };
            self.outgoing.encode(&Pdu::R2t(r2t), &mut self.output);
        }
    }

    fn data(&mut self, data: &Data<'_>) -> Result<(), PduError> {
        if self.end_if_stale() {
            return Ok(());
        }
        let no_tag = || PduError::field("TTAG", 10, data.tag);
        let queue = self.queue.as_mut().ok_or_else(no_tag)?;
        let at = queue.writes.iter().position(|w| w.tag == data.tag && w.asked > w.received).ok_or_else(no_tag)?;
        let write = &mut queue.writes[at];
        if write.sqe.command_id() != data.command_id {
            return Err(PduError::field("CCCID", 8, data.command_id));
        }
        if data.offset != write.received {
            return Err(PduError::new(FatalError::OutOfRange, "DATAO", 12, data.offset));
        }
        // Cannot overflow: the decoder checked it.
        let end = data.offset + data.payload.bytes.len() as u32;
        if end > write.asked {
            return Err(PduError::new(FatalError::OutOfRange, "DATAL", 16, data.payload.bytes.len() as u64));
        }
        if data.last != (end == write.asked) {
            return Err(PduError::field("FLAGS.LAST_PDU", 1, u8::from(data.last)));
        }
        write.broken |= !data.payload.intact;
        // The check above made sure that data arrives in order.
        write.data.extend_from_slice(data.payload.bytes);
        write.received = end;
        if end == write.length
            && let Some(write) = queue.writes.remove(at)
        {
            queue.buffered -= write.length as usize;
            let done = match write.broken {
                true => Err(Status::TRANSIENT_TRANSPORT_ERROR),
                false => self.write(&write.sqe, &write.data),
            };
            self.complete(&write.sqe, done.err().unwrap_or(Status::SUCCESS), 0);
            if let Some(queue) = &mut self.queue {
                queue.spare = write.data;
            }
        }
        self.ask_for_data();
        Ok(())
    }

    /// Answers event requests as long as there are events.
    fn tell_events(&mut self) {
        while let Some(queue) = &mut self.queue
            && !queue.events.is_empty()
            && let Some(result) = queue.controller.event()
            && let Some(request) = queue.events.pop_front()
        {
            self.complete(&request, Status::SUCCESS, result);
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.end();
    }
}

/// In-capsule data of a command that sends `wanted` bytes.
pub(super) fn in_capsule<'a>(sqe: &Sqe, data: &'a [u8], wanted: u32) -> Result<&'a [u8], Status> {
    let Sgl::InCapsule { offset, length } = sqe.sgl() else { return Err(Status::SGL_TYPE_INVALID) };
    if length != wanted {
        return Err(Status::SGL_LENGTH_INVALID);
    }
    let start = usize::try_from(offset).map_err(|_| Status::SGL_OFFSET_INVALID)?;
    let end = start.checked_add(length as usize).ok_or(Status::SGL_OFFSET_INVALID)?;
    data.get(start..end).ok_or(Status::SGL_OFFSET_INVALID)
}
