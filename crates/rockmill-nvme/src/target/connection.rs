//! The transport of a connection: PDUs in both directions, the data of writes, and the dispatch of commands.

use std::collections::VecDeque;
use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use rockmill_io::aligned::{AlignedBuf, align_up};

use super::Target;
use super::authentication::Authentication;
use super::controller::Controller;
use super::namespace::FilePart;
use crate::command::{Cqe, FABRICS, FABRICS_CAPSULE_DATA, Sgl, Sqe};
use crate::fabrics::NO_FLOW_CONTROL;
use crate::pdu::{
    Arriving, Assembler, Data, Direction, Extent, Filled, Framing, IcReq, IcResp, Outgoing as _, Payload, Pdu, R2t,
    TERM_DATA_MAX, TermReq, Waiting, kind,
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
    spare: AlignedBuf,
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
    /// Memory of the data, of which the first `received` bytes have come.
    data: AlignedBuf,
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
            spare: AlignedBuf::empty(),
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
    /// The data PDU that is being received, and the tag of its write.
    arriving: Option<(u16, Arriving)>,
    /// Data may be sent as parts of files.
    pub(super) sends_files: bool,
    /// What is to be sent after the output. Nothing more is put into the output until then.
    pub(super) file: Option<FilePart>,
}

/// Bytes of memory for a write of this length.
fn memory_of(length: u32) -> usize {
    align_up(length.into()) as usize
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
            arriving: None,
            sends_files: false,
            file: None,
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
            if let Some(room) = self.data_room() {
                let (taken, left) = rest.split_at(room.len().min(rest.len()));
                room[..taken.len()].copy_from_slice(taken);
                rest = left;
                self.data_received(taken.len());
                continue;
            }
            if self.arriving.is_some() {
                self.finish_data(&mut rest);
                continue;
            }
            let framing = self.incoming;
            match self.assembler.fill_to_data(&framing, &mut rest) {
                Ok(Filled::No) => break,
                Ok(filled) => {
                    let pdu = self.assembler.take();
                    let handled = match filled {
                        Filled::Head(extent) => {
                            framing.decode_head(&pdu, &extent).and_then(|data| self.begin_data(&data, &extent))
                        }
                        _ => framing.decode(&pdu).and_then(|decoded| self.handle(&decoded, now)),
                    };
                    if let Err(e) = handled {
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

    /// Where the next bytes of the stream belong, if they are data of a write: who reads them there, and tells it by
    /// [`Self::data_received`], saves a copy. [`Self::receive`] takes them, too.
    pub fn data_room(&mut self) -> Option<&mut [u8]> {
        let (tag, arriving) = self.arriving.as_ref().filter(|(_, arriving)| arriving.data() > 0)?;
        let write = self.queue.as_mut()?.writes.iter_mut().find(|w| w.tag == *tag)?;
        let start = write.received as usize;
        write.data.get_mut(start..start + arriving.data())
    }

    /// Tells that the first `count` bytes of [`Self::data_room`] were read from the stream.
    pub fn data_received(&mut self, count: usize) {
        if let Some((tag, arriving)) = &mut self.arriving
            && let Some(queue) = &mut self.queue
            && let Some(write) = queue.writes.iter_mut().find(|w| w.tag == *tag)
        {
            let start = write.received as usize;
            let count = count.min(arriving.data());
            arriving.came(&write.data[start..start + count]);
            write.received += count as u32;
        }
        self.finish_data(&mut &[][..]);
    }

    /// True if the target has asked for data: the next PDU may be its, and whoever reads more than its header from the
    /// stream has to copy the data.
    #[must_use]
    pub fn expects_data(&self) -> bool {
        self.queue.as_ref().is_some_and(|q| q.writes.iter().any(|w| w.asked > w.received))
    }

    /// True if it takes bytes now.
    #[must_use]
    pub fn wants_input(&self) -> bool {
        self.phase != Phase::Ended && self.file.is_none() && self.output().len() <= self.target.config().output_max
    }

    /// Lets it send data that a namespace has in a file as a part of that file ([`Self::file`]): only for a transport
    /// that can, without TLS.
    pub(crate) fn send_files(&mut self) {
        self.sends_files = true;
    }

    /// What is to be sent after all of the [`output`](Self::output), if anything is.
    pub(crate) fn file(&self) -> Option<&FilePart> {
        self.file.as_ref()
    }

    /// Sends some of that.
    ///
    /// # Errors
    /// As [`RandomAccessFile::send_to`](rockmill_io::RandomAccessFile::send_to).
    pub(crate) fn send_file(&mut self, socket: &TcpStream) -> io::Result<usize> {
        let Some(part) = &mut self.file else { return Ok(0) };
        let sent = part.send(socket)?;
        if part.bytes == 0 {
            self.file = None;
        }
        Ok(sent)
    }

    /// Reads what is left of that into the output: it cannot be sent in the other way.
    ///
    /// # Errors
    /// It cannot be read, either. The host was promised the data, so the connection must end. The kind of error never is
    /// one of those after which one tries again.
    pub(crate) fn read_file(&mut self) -> io::Result<()> {
        let Some(part) = self.file.take() else { return Ok(()) };
        let start = self.output.append_pdu(part.bytes as usize, 0);
        part.read(&mut self.output.bytes()[start..start + part.bytes as usize]).map_err(|e| {
            // Nothing of what was there before goes out.
            self.output.truncate(start);
            io::Error::other(e)
        })
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
                data: AlignedBuf::empty(),
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
                if queue.buffered + memory_of(write.length) > config.write_buffer_max {
                    return;
                }
                queue.buffered += memory_of(write.length);
                write.has_room = true;
                // Only memory of the exact size; otherwise many small writes could hold the memory of large ones.
                write.data = match queue.spare.capacity() == memory_of(write.length) {
                    true => std::mem::take(&mut queue.spare),
                    false => AlignedBuf::with_capacity(write.length as usize),
                };
            }
            let length = (write.length - write.received).min(config.r2t_bytes_max);
            write.asked = write.received + length;
            let r2t = R2t { command_id: write.sqe.command_id(), tag: write.tag, offset: write.received, length };
            self.outgoing.encode(&Pdu::R2t(r2t), &mut self.output);
        }
    }

    /// Takes the header of a data PDU.
    fn begin_data(&mut self, data: &Data<'_>, extent: &Extent) -> Result<(), PduError> {
        if self.phase != Phase::Ready {
            return Err(PduError::sequence(kind::H2C_DATA));
        }
        if self.end_if_stale() {
            return Ok(());
        }
        let no_tag = || PduError::field("TTAG", 10, data.tag);
        let queue = self.queue.as_mut().ok_or_else(no_tag)?;
        let write = queue.writes.iter().find(|w| w.tag == data.tag && w.asked > w.received).ok_or_else(no_tag)?;
        if write.sqe.command_id() != data.command_id {
            return Err(PduError::field("CCCID", 8, data.command_id));
        }
        // In their order, each byte once.
        if data.offset != write.received {
            return Err(PduError::new(FatalError::OutOfRange, "DATAO", 12, data.offset));
        }
        let arriving = Arriving::new(extent);
        // Cannot overflow: the decoder checked it.
        let end = data.offset + arriving.data() as u32;
        if end > write.asked {
            return Err(PduError::new(FatalError::OutOfRange, "DATAL", 16, arriving.data() as u64));
        }
        if data.last != (end == write.asked) {
            return Err(PduError::field("FLAGS.LAST_PDU", 1, u8::from(data.last)));
        }
        self.arriving = Some((data.tag, arriving));
        Ok(())
    }

    /// Takes the digest of a data PDU whose data has come, and ends it. Executes its write if that has all its data.
    fn finish_data(&mut self, rest: &mut &[u8]) {
        let Some((tag, intact)) = self.arriving.as_mut().and_then(|(tag, a)| Some((*tag, a.finish(rest)?))) else {
            return;
        };
        self.arriving = None;
        // Between header and data the controller may have been reset: its blocks may be another one's by now.
        if self.end_if_stale() {
            return;
        }
        let Some(queue) = &mut self.queue else { return };
        let Some(at) = queue.writes.iter().position(|w| w.tag == tag) else { return };
        let write = &mut queue.writes[at];
        write.broken |= !intact;
        if write.received == write.length
            && let Some(write) = queue.writes.remove(at)
        {
            queue.buffered -= memory_of(write.length);
            let done = match write.broken {
                true => Err(Status::TRANSIENT_TRANSPORT_ERROR),
                false => self.write(&write.sqe, &write.data[..write.length as usize]),
            };
            self.complete(&write.sqe, done.err().unwrap_or(Status::SUCCESS), 0);
            if let Some(queue) = &mut self.queue {
                queue.spare = write.data;
            }
        }
        self.ask_for_data();
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
