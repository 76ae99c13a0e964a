//! One queue of a host over one connection: takes commands and bytes, returns completions and bytes.

use std::fmt;

use crate::command::{FABRICS, FABRICS_CAPSULE_DATA, Sgl, Sqe};
use crate::pdu::{
    Assembler, Data, Direction, Framing, H2C_DATA_MIN, IcReq, IcResp, Payload, Pdu, R2t, TERM_DATA_MAX, TermReq,
    Waiting,
};
use crate::pdu_error::{FatalError, PduError};
use crate::status::Status;

/// The settings that a queue proposes, and its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueConfig {
    /// Entries of the submission queue, at least 2. One command fewer may be outstanding.
    pub entries: u16,
    /// Header digests, or no connection.
    pub header_digest: bool,
    /// Data digests, or no connection.
    pub data_digest: bool,
    /// Alignment of data in PDUs to the host, in units of 4 bytes, counted from zero: up to 31 (HPDA).
    pub alignment: u8,
    /// The Connect command asks for no flow control. The controller may then omit responses to reads.
    pub no_flow_control: bool,
    /// Writes up to this length are sent in the capsule. A controller may expect this for all that fit; see
    /// `Controller::queue_config`.
    pub in_capsule_max: u32,
    /// Most data of one PDU from the controller.
    pub c2h_data_max: u32,
}

impl Default for QueueConfig {
    fn default() -> Self {
        Self {
            entries: 32,
            header_digest: true,
            data_digest: true,
            alignment: 0,
            no_flow_control: true,
            in_capsule_max: 8192,
            c2h_data_max: 4 << 20,
        }
    }
}

/// Data of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// It has none.
    None,
    /// This many bytes come from the controller.
    ToHost(u32),
    /// As many bytes as there are here come from the controller, into this memory.
    Into(Vec<u8>),
    /// These bytes go to the controller; less than 4 GiB.
    ToController(Vec<u8>),
}

/// A command with its data. The queue sets command id and SGL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// The submission entry.
    pub sqe: Sqe,
    /// Its data.
    pub transfer: Transfer,
}

impl Command {
    /// A command without data.
    #[must_use]
    pub fn new(sqe: Sqe) -> Self {
        Self { sqe, transfer: Transfer::None }
    }

    /// A command that gets `bytes` bytes.
    #[must_use]
    pub fn reading(sqe: Sqe, bytes: u32) -> Self {
        Self { sqe, transfer: Transfer::ToHost(bytes) }
    }

    /// A command that gets as many bytes as this memory has; what is in it does not matter.
    #[must_use]
    pub fn reading_into(sqe: Sqe, memory: Vec<u8>) -> Self {
        Self { sqe, transfer: Transfer::Into(memory) }
    }

    /// A command that sends data.
    #[must_use]
    pub fn writing(sqe: Sqe, data: Vec<u8>) -> Self {
        Self { sqe, transfer: Transfer::ToController(data) }
    }
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Its status. A data digest that does not match is a transient transport error, regardless of the controller's
    /// status.
    pub status: Status,
    /// What it returns.
    pub result: u64,
    /// Data from the controller; empty unless the command succeeded.
    pub data: Vec<u8>,
    /// The memory that data to the controller were in, for the next command; empty if they were sent in the capsule.
    pub sent: Vec<u8>,
}

/// Why a command was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubmitError {
    /// The connection is not initialized yet.
    NotReady,
    /// The queue is full: entries minus one commands are outstanding or not yet taken.
    Full,
    /// The connection ended.
    Ended,
}

impl fmt::Display for SubmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotReady => "the connection is not initialized yet",
            Self::Full => "the queue is full",
            Self::Ended => "the connection ended",
        })
    }
}

impl std::error::Error for SubmitError {}

/// Why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The controller violated the protocol.
    Protocol(PduError),
    /// The controller ended it.
    Terminated {
        /// Its reason.
        fatal: FatalError,
        /// What it says about that.
        information: u32,
    },
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Protocol(e) => write!(f, "the controller sent a PDU that is wrong: {e}"),
            Self::Terminated { fatal, information } => {
                write!(f, "the controller ended the connection: {fatal}, information {information:#x}")
            }
        }
    }
}

#[derive(Debug)]
enum Slot {
    Free,
    Pending(Pending),
    Done(Completion),
}

#[derive(Debug)]
struct Pending {
    /// Data to the controller; empty if it was sent in the capsule.
    outgoing: Vec<u8>,
    sent: usize,
    incoming: Vec<u8>,
    received: usize,
    /// The last data PDU has arrived.
    last: bool,
    broken: bool,
}

/// One queue of a host.
#[derive(Debug)]
pub struct Queue {
    config: QueueConfig,
    ready: bool,
    end: Option<End>,
    assembler: Assembler,
    incoming: Framing,
    outgoing: Framing,
    h2c_data_max: u32,
    output: Waiting,
    slots: Vec<Slot>,
    next: usize,
    answers: u64,
}

impl Queue {
    /// Creates a queue whose output begins with ICReq.
    #[must_use]
    pub fn new(config: QueueConfig) -> Self {
        let outgoing = Framing::initial(Direction::ToController, 0, 0);
        let mut output = Waiting::default();
        let request = IcReq {
            format: 0,
            alignment: config.alignment.min(31),
            header_digest: config.header_digest,
            data_digest: config.data_digest,
            r2t_max: 0,
        };
        outgoing.encode(&Pdu::IcReq(request), &mut output);
        Self {
            config,
            ready: false,
            end: None,
            assembler: Assembler::default(),
            incoming: Framing::initial(Direction::ToHost, 0, config.c2h_data_max),
            outgoing,
            h2c_data_max: H2C_DATA_MIN,
            output,
            slots: (1..config.entries.max(2)).map(|_| Slot::Free).collect(),
            next: 0,
            answers: 0,
        }
    }

    /// Its configuration.
    #[must_use]
    pub fn config(&self) -> &QueueConfig {
        &self.config
    }

    /// True once the controller has accepted the connection.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.ready && self.end.is_none()
    }

    /// Why it ended, if it did.
    #[must_use]
    pub fn end(&self) -> Option<&End> {
        self.end.as_ref()
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

    /// Commands that are outstanding.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.slots.iter().filter(|s| matches!(s, Slot::Pending(_))).count()
    }

    /// Bytes of data of the outstanding commands, in both directions.
    #[must_use]
    pub fn outstanding_bytes(&self) -> u64 {
        let bytes = |slot: &Slot| match slot {
            Slot::Pending(pending) => pending.outgoing.len() as u64 + pending.incoming.len() as u64,
            _ => 0,
        };
        self.slots.iter().map(bytes).sum()
    }

    /// How many answers were complete so far: that to the connection's first PDU, and those to commands.
    #[must_use]
    pub fn answers(&self) -> u64 {
        self.answers
    }

    /// Number of commands that it would accept now.
    #[must_use]
    pub fn room(&self) -> usize {
        self.slots.iter().filter(|s| matches!(s, Slot::Free)).count()
    }

    /// Submits a command. Returns its id, with which the caller takes the completion.
    ///
    /// # Errors
    /// The reason why the command was not accepted.
    pub fn submit(&mut self, command: Command) -> Result<u16, SubmitError> {
        if self.end.is_some() {
            return Err(SubmitError::Ended);
        }
        if !self.ready {
            return Err(SubmitError::NotReady);
        }
        let n = self.slots.len();
        let free = (0..n).map(|i| (self.next + i) % n).find(|&i| matches!(self.slots[i], Slot::Free));
        let at = free.ok_or(SubmitError::Full)?;
        // Ids are used in turn, so that a late answer is unlikely to match a newer command.
        self.next = (at + 1) % n;
        let id = at as u16;
        let mut pending =
            Pending { outgoing: Vec::new(), sent: 0, incoming: Vec::new(), received: 0, last: false, broken: false };
        let mut sqe = command.sqe.with_command_id(id);
        let mut capsule = Vec::new();
        // Data of Fabrics commands always goes in the capsule, even if an I/O queue takes no other data there.
        let fabrics = if sqe.opcode() == FABRICS { FABRICS_CAPSULE_DATA } else { 0 };
        let in_capsule_max = self.config.in_capsule_max.max(fabrics);
        match command.transfer {
            Transfer::None => {}
            Transfer::ToHost(length) => {
                sqe = sqe.with_sgl(Sgl::Transport { length });
                pending.incoming = vec![0; length as usize];
            }
            Transfer::Into(memory) => {
                sqe = sqe.with_sgl(Sgl::Transport { length: memory.len() as u32 });
                pending.incoming = memory;
            }
            Transfer::ToController(data) if data.len() <= in_capsule_max as usize => {
                sqe = sqe.with_sgl(Sgl::InCapsule { offset: 0, length: data.len() as u32 });
                capsule = data;
            }
            Transfer::ToController(data) => {
                sqe = sqe.with_sgl(Sgl::Transport { length: data.len() as u32 });
                pending.outgoing = data;
            }
        }
        self.outgoing.encode(&Pdu::CapsuleCmd(sqe, Payload::new(&capsule)), &mut self.output);
        self.slots[at] = Slot::Pending(pending);
        Ok(id)
    }

    /// Takes the completion of a command, which frees its id.
    pub fn take(&mut self, id: u16) -> Option<Completion> {
        let slot = self.slots.get_mut(usize::from(id)).filter(|s| matches!(s, Slot::Done(_)))?;
        match std::mem::replace(slot, Slot::Free) {
            Slot::Done(completion) => Some(completion),
            _ => None,
        }
    }

    /// Takes back the memory of an outstanding command, whose connection was lost: its data to the controller, unless
    /// they were sent in the capsule, or the memory for data from it.
    pub fn take_back(&mut self, id: u16) -> Option<Vec<u8>> {
        let slot = self.slots.get_mut(usize::from(id)).filter(|s| matches!(s, Slot::Pending(_)))?;
        match std::mem::replace(slot, Slot::Free) {
            Slot::Pending(pending) if pending.outgoing.is_empty() => Some(pending.incoming),
            Slot::Pending(pending) => Some(pending.outgoing),
            _ => None,
        }
    }

    /// Takes bytes from the controller. Returns how many were taken: all, unless the connection ended.
    pub fn receive(&mut self, bytes: &[u8]) -> usize {
        let mut rest = bytes;
        while !rest.is_empty() && self.end.is_none() {
            let framing = self.incoming;
            match self.assembler.fill(&framing, &mut rest) {
                Ok(false) => break,
                Ok(true) => {
                    let pdu = self.assembler.take();
                    if let Err(e) = framing.decode(&pdu).and_then(|decoded| self.handle(&decoded)) {
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

    fn fail(&mut self, e: PduError, pdu: &[u8]) {
        let header = &pdu[..pdu.len().min(TERM_DATA_MAX)];
        let term = TermReq { fatal: e.fatal, information: e.information(), header };
        self.outgoing.encode(&Pdu::H2cTermReq(term), &mut self.output);
        self.end = Some(End::Protocol(e));
    }

    fn handle(&mut self, pdu: &Pdu<'_>) -> Result<(), PduError> {
        match pdu {
            Pdu::C2hTermReq(term) => {
                self.end = Some(End::Terminated { fatal: term.fatal, information: term.information });
                Ok(())
            }
            Pdu::IcResp(response) if !self.ready => self.initialized(response),
            Pdu::CapsuleResp(cqe) if self.ready => {
                let (status, result) = (cqe.status(), cqe.result());
                let id = cqe.command_id();
                let pending = self.pending(id, 20)?;
                let short = pending.received < pending.incoming.len() || pending.sent < pending.outgoing.len();
                if status.is_success() && short {
                    // Success without the data is an error.
                    return Err(PduError::sequence(pdu.kind()));
                }
                self.finish(id, status, result);
                Ok(())
            }
            Pdu::C2hData(data) if self.ready => self.data(data),
            Pdu::R2t(r2t) if self.ready => self.send_data(r2t),
            _ => Err(PduError::sequence(pdu.kind())),
        }
    }

    fn initialized(&mut self, response: &IcResp) -> Result<(), PduError> {
        if response.format != 0 {
            return Err(PduError::new(FatalError::UnsupportedParameter, "PFV", 8, response.format));
        }
        let digests = |r: (bool, bool)| u8::from(r.0) | u8::from(r.1) << 1;
        let got = digests((response.header_digest, response.data_digest));
        // Fewer digests than requested is an error, too: a host that asks for them must not continue without.
        if got != digests((self.config.header_digest, self.config.data_digest)) {
            return Err(PduError::new(FatalError::UnsupportedParameter, "DGST", 11, got));
        }
        if response.h2c_data_max < H2C_DATA_MIN {
            return Err(PduError::field("MAXH2CDATA", 12, response.h2c_data_max));
        }
        self.h2c_data_max = response.h2c_data_max & !3;
        let alignments = [(&mut self.incoming, self.config.alignment), (&mut self.outgoing, response.alignment)];
        for (framing, alignment) in alignments {
            framing.header_digest = response.header_digest;
            framing.data_digest = response.data_digest;
            framing.alignment = (u32::from(alignment.min(31)) + 1) * 4;
        }
        self.ready = true;
        self.answers += 1;
        Ok(())
    }

    /// The outstanding command with this id; `offset` is where the id is in the PDU.
    fn pending(&mut self, id: u16, offset: u32) -> Result<&mut Pending, PduError> {
        match self.slots.get_mut(usize::from(id)) {
            Some(Slot::Pending(pending)) => Ok(pending),
            _ => Err(PduError::field("CCCID", offset, id)),
        }
    }

    fn finish(&mut self, id: u16, status: Status, result: u64) {
        let slot = &mut self.slots[usize::from(id)];
        if let Slot::Pending(pending) = slot {
            let broken = pending.broken && status.is_success();
            let status = if broken { Status::TRANSIENT_TRANSPORT_ERROR } else { status };
            let data = if status.is_success() { std::mem::take(&mut pending.incoming) } else { Vec::new() };
            let sent = std::mem::take(&mut pending.outgoing);
            *slot = Slot::Done(Completion { status, result, data, sent });
            self.answers += 1;
        }
    }

    fn data(&mut self, data: &Data<'_>) -> Result<(), PduError> {
        let no_flow_control = self.config.no_flow_control;
        let pending = self.pending(data.command_id, 8)?;
        let (start, bytes) = (data.offset as usize, data.payload.bytes);
        // In their order, each byte once.
        if start != pending.received || pending.last {
            return Err(PduError::new(FatalError::OutOfRange, "DATAO", 12, data.offset));
        }
        let length = pending.incoming.len();
        let room = pending.incoming.get_mut(start..start + bytes.len());
        let room = room.ok_or_else(|| PduError::new(FatalError::OutOfRange, "DATAL", 16, bytes.len() as u64))?;
        room.copy_from_slice(bytes);
        pending.received += bytes.len();
        pending.last = data.last;
        pending.broken |= !data.payload.intact;
        if data.success {
            // Allowed only without flow control (no head to report), and after all of the data.
            if !no_flow_control || pending.received != length {
                return Err(PduError::field("FLAGS.SUCCESS", 1, u8::from(data.success)));
            }
            self.finish(data.command_id, Status::SUCCESS, 0);
        }
        Ok(())
    }

    /// Answers an R2T at once, so a command never has more than one open.
    fn send_data(&mut self, r2t: &R2t) -> Result<(), PduError> {
        let (piece_max, outgoing) = (self.h2c_data_max as usize, self.outgoing);
        let mut output = std::mem::take(&mut self.output);
        let done = self.pending(r2t.command_id, 8).and_then(|pending| {
            let start = r2t.offset as usize;
            if start != pending.sent {
                return Err(PduError::new(FatalError::OutOfRange, "R2TO", 12, r2t.offset));
            }
            let end = start + r2t.length as usize;
            let bytes = pending.outgoing.get(start..end);
            let bytes = bytes.ok_or_else(|| PduError::new(FatalError::OutOfRange, "R2TL", 16, r2t.length))?;
            if !r2t.length.is_multiple_of(4) && end != pending.outgoing.len() {
                return Err(PduError::field("R2TL", 16, r2t.length));
            }
            let mut offset = start;
            for piece in bytes.chunks(piece_max) {
                let data = Data {
                    command_id: r2t.command_id,
                    tag: r2t.tag,
                    offset: offset as u32,
                    last: offset + piece.len() == end,
                    success: false,
                    payload: Payload::new(piece),
                };
                outgoing.encode(&Pdu::H2cData(data), &mut output);
                offset += piece.len();
            }
            pending.sent = end;
            Ok(())
        });
        self.output = output;
        done
    }
}
