//! The device of a job, from the worker's side.
//!
//! ```text
//!   threads that merge                    a thread for each queue              the store
//!
//!   read, write, begin ── requests ─────► commands, as many as the ──────────► JobNamespace
//!                      ◄─ results ─────── queue takes, in their order ◄───────
//! ```
//!
//! Two queues, each with a connection, are for reads, so that the store reads for one while it sends for the other. A
//! third one is for writes. Each belongs to one thread, which sends what is asked while it waits for earlier answers.
//! So several commands are outstanding, whoever asks, and what comes is taken from the socket while others merge.
//!
//! Writes arrive in the order in which they were begun, because outputs take them from front to back: the queue of
//! writes has no data in capsules, so the store asks for the data of each (R2T), in the order of the commands and for
//! all of it at once (`TargetConfig::r2t_bytes_max`), and each R2T is answered in its turn. A store that did otherwise
//! would refuse a write, and the job would fail.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rockmill::internals::{DEVICE_BLOCK, DeviceOp, WorkerDevice};
use rockmill_io::Clock;
use rockmill_nvme::auth::HostAuth;
use rockmill_nvme::initiator::{HostConfig, HostError, Io, NamespaceInfo, QueueConfig};
use rockmill_nvme::tcp::{ClientTls, Cutter, LinkCounters, TcpHost, TcpLink};

use crate::external::ExternalInputs;

/// The only namespace of a job's subsystem.
pub(crate) const NAMESPACE: u32 = 1;
/// Queues for reads, which are asked in turn.
pub(crate) const READ_QUEUES: u16 = 2;
/// Pieces of memory that a queue keeps, each of the length of a command at most.
const SPARES_MAX: usize = 8;
/// Time limit for connecting to a device.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// The same for a target that the store does not need.
const EXTERNAL_TIMEOUT: Duration = Duration::from_secs(5);
/// Keep Alive Timeout.
const KEEP_ALIVE_MS: u32 = 10_000;

/// A namespace that another machine serves.
#[derive(Debug)]
pub(crate) struct NvmeDevice {
    namespace: NamespaceInfo,
    /// Data of one command, at most.
    transfer_max: usize,
    reads: Pumps,
    writes: Pump,
    external: Option<External>,
    /// All its connections.
    cutter: Cutter,
    /// Keeps the controller.
    host: TcpHost,
}

/// A target that has inputs, too.
#[derive(Debug)]
struct External {
    inputs: ExternalInputs,
    block_bytes: u64,
    transfer_max: usize,
    reads: Pumps,
    host: TcpHost,
}

impl External {
    fn connect(external: ExternalPlace, cutter: &Cutter, clock: Arc<dyn Clock>) -> io::Result<Self> {
        let ExternalPlace { place, inputs } = external;
        let config = place.host_config();
        let host = TcpHost::connect_cuttable(place.address, config, place.tls, Some(cutter.clone()), clock);
        let host = host.map_err(failed)?;
        let id = inputs.namespace;
        let (queues, namespace) = host
            .admin(|admin| admin.set_queues(READ_QUEUES).and_then(|queues| Ok((queues, admin.namespace(id)?))))
            .map_err(failed)?;
        let block_bytes = u64::from(namespace.block_bytes);
        if block_bytes == 0 || !(DEVICE_BLOCK as u64).is_multiple_of(block_bytes) {
            return Err(io::Error::other(format!("blocks of {block_bytes} bytes")));
        }
        let bytes = namespace.blocks.saturating_mul(block_bytes);
        if inputs.extents.iter().any(|e| e.device_offset.saturating_add(e.len) > bytes) {
            return Err(io::Error::other(format!("a namespace of {bytes} bytes, which ends before the tables do")));
        }
        let queues = READ_QUEUES.min(queues).max(1);
        let reads = (1..=queues).map(|queue| host.io_queue_with(queue, |queue| queue.data_digest = false));
        let reads = reads.collect::<Result<Vec<_>, _>>().map_err(failed)?;
        let transfer_max = (host.controller().transfer_max() as usize).max(DEVICE_BLOCK);
        let reads = Pumps::start("nvme-external", reads, namespace, &Arc::default())?;
        Ok(Self { inputs, block_bytes, transfer_max, reads, host })
    }
}

/// A part of a read: which queue is asked for it, from which block on, and how many bytes.
struct Piece<'a> {
    pump: &'a Pump,
    first: u64,
    bytes: usize,
}

/// An operation that takes several commands.
#[derive(Debug)]
struct Split {
    /// `None` once it is over: the first failure ends it.
    op: Option<DeviceOp>,
    left: usize,
}

impl Split {
    /// A piece of a read has come.
    fn took(split: &Mutex<Self>, at: usize, result: io::Result<Vec<u8>>) {
        let mut state = split.lock();
        state.left = state.left.saturating_sub(1);
        let is_last = state.left == 0;
        let Some(op) = &mut state.op else { return };
        let taken = result.and_then(|data| {
            let part = op.memory().get_mut(at..).and_then(|memory| memory.get_mut(..data.len()));
            part.ok_or(io::ErrorKind::UnexpectedEof)?.copy_from_slice(&data);
            Ok(())
        });
        let ended = if is_last || taken.is_err() { state.op.take() } else { None };
        drop(state);
        if let Some(op) = ended {
            op.done(taken);
        }
    }
}

/// A target that has inputs, too.
#[derive(Debug)]
pub(crate) struct ExternalPlace {
    pub place: Place,
    pub inputs: ExternalInputs,
}

/// Who connects, and to what.
#[derive(Debug)]
pub(crate) struct Place {
    pub address: SocketAddr,
    pub subsystem: String,
    /// The worker's name.
    pub name: String,
    pub host_id: [u8; 16],
    pub auth: Option<HostAuth>,
    pub tls: Option<ClientTls>,
}

impl Place {
    fn host_config(&self) -> HostConfig {
        // What TLS carries it has sealed already.
        let digests = self.tls.is_none();
        HostConfig {
            subsystem: self.subsystem.clone(),
            host: self.name.clone(),
            host_id: self.host_id,
            keep_alive_ms: KEEP_ALIVE_MS,
            auth: self.auth.clone(),
            queue: QueueConfig { header_digest: digests, data_digest: digests, ..QueueConfig::default() },
        }
    }
}

fn failed(e: HostError) -> io::Error {
    match e {
        HostError::Io(e) => e,
        e => io::Error::other(e.to_string()),
    }
}

/// What a call gets whose connection was lost before.
fn lost() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "a connection to the store was lost before")
}

/// What a queue is asked: one command.
#[derive(Debug)]
struct Request {
    /// Its first block.
    first: u64,
    work: Work,
}

/// Where a caller that waits gets the data of a read, or nothing of a write; with it the number of the piece.
type Reply = mpsc::Sender<(usize, io::Result<Vec<u8>>)>;

#[derive(Debug)]
enum Work {
    Op(DeviceOp),
    /// A part of a read that begins `at` bytes into it.
    Part {
        of: Arc<Mutex<Split>>,
        at: usize,
        bytes: usize,
    },
    Read {
        bytes: usize,
        piece: usize,
        reply: Reply,
    },
    Write {
        data: Vec<u8>,
        piece: usize,
        reply: Reply,
    },
}

impl Request {
    fn begin(&mut self, io: &mut Io<TcpLink>, namespace: &NamespaceInfo, spare: &mut Spare) -> Result<u16, HostError> {
        let first = self.first;
        match &mut self.work {
            Work::Op(op) if op.reads => io.begin_read_into(namespace, first, spare.of(op.memory().len())),
            Work::Op(op) => {
                let mut data = spare.0.pop().unwrap_or_default();
                data.clear();
                data.extend_from_slice(op.memory());
                io.begin_write(namespace, first, data)
            }
            Work::Read { bytes, .. } | Work::Part { bytes, .. } => {
                io.begin_read_into(namespace, first, spare.of(*bytes))
            }
            Work::Write { data, .. } => io.begin_write(namespace, first, std::mem::take(data)),
        }
    }

    /// Tells who asked. Memory that nobody needs any more is kept.
    fn ended(self, result: Result<Vec<u8>, HostError>, spare: &mut Spare) {
        match (self.work, result) {
            (Work::Op(mut op), Ok(data)) => {
                let is_whole = !op.reads || op.memory().len() == data.len();
                if op.reads && is_whole {
                    op.memory().copy_from_slice(&data);
                }
                op.done(if is_whole { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) });
                spare.keep(data);
            }
            (Work::Write { piece, reply, .. }, Ok(data)) => {
                spare.keep(data);
                drop(reply.send((piece, Ok(Vec::new()))));
            }
            (work, result) => Self { first: self.first, work }.end(result),
        }
    }

    fn end(self, result: Result<Vec<u8>, HostError>) {
        let result = result.map_err(failed);
        match self.work {
            Work::Op(mut op) => {
                let reads = op.reads;
                let taken = result.and_then(|data| match op.memory() {
                    memory if reads && memory.len() != data.len() => Err(io::ErrorKind::UnexpectedEof.into()),
                    memory if reads => {
                        memory.copy_from_slice(&data);
                        Ok(())
                    }
                    _ => Ok(()),
                });
                op.done(taken);
            }
            Work::Part { of, at, bytes } => {
                let whole = |data: Vec<u8>| match data.len() == bytes {
                    true => Ok(data),
                    false => Err(io::ErrorKind::UnexpectedEof.into()),
                };
                Split::took(&of, at, result.and_then(whole));
            }
            // Nobody waits for it any more where an earlier piece failed.
            Work::Read { piece, reply, .. } | Work::Write { piece, reply, .. } => drop(reply.send((piece, result))),
        }
    }
}

/// Memory of commands that have ended: the next ones have none made and cleared for them.
#[derive(Debug, Default)]
struct Spare(Vec<Vec<u8>>);

impl Spare {
    /// Memory of so many bytes, with anything in it.
    fn of(&mut self, bytes: usize) -> Vec<u8> {
        let mut memory = self.0.pop().unwrap_or_default();
        memory.resize(bytes, 0);
        memory
    }

    fn keep(&mut self, memory: Vec<u8>) {
        if self.0.len() < SPARES_MAX {
            self.0.push(memory);
        }
    }
}

/// What is asked of a queue, until its thread takes it.
#[derive(Debug, Default)]
struct Requests {
    state: Mutex<Waiting>,
    more: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    requests: VecDeque<Request>,
    /// The thread takes no more.
    over: bool,
}

impl Requests {
    /// Asks for something. What is not taken any more fails.
    fn ask(&self, request: Request) {
        let mut state = self.state.lock();
        if state.over {
            drop(state);
            return request.end(Err(HostError::Io(lost())));
        }
        state.requests.push_back(request);
        self.more.notify_one();
    }

    /// The next requests, `most` at most; none where there are none and `busy`. `None` once it is over.
    fn take(&self, most: usize, busy: bool) -> Option<Vec<Request>> {
        let mut state = self.state.lock();
        while state.requests.is_empty() && !busy && !state.over {
            self.more.wait(&mut state);
        }
        if state.over {
            return None;
        }
        let most = most.min(state.requests.len());
        Some(state.requests.drain(..most).collect())
    }

    /// No more is taken, and what waits fails.
    fn close(&self) {
        let mut state = self.state.lock();
        state.over = true;
        self.more.notify_all();
        let left = std::mem::take(&mut state.requests);
        drop(state);
        left.into_iter().for_each(|request| request.end(Err(HostError::Io(lost()))));
    }
}

/// Says that a queue's thread has ended, also where it panicked: nobody is to wait for it.
struct Closes<'a>(&'a Requests, &'a AtomicBool);

impl Drop for Closes<'_> {
    fn drop(&mut self) {
        self.1.store(true, Ordering::Release);
        self.0.close();
    }
}

/// An I/O queue, and the thread that has it.
#[derive(Debug)]
struct Pump {
    requests: Arc<Requests>,
    thread: Option<JoinHandle<()>>,
}

impl Pump {
    /// Once `is_lost` is set, nothing is asked any more: each call would wait for an answer anew.
    fn start(name: &str, mut io: Io<TcpLink>, namespace: NamespaceInfo, is_lost: &Arc<AtomicBool>) -> io::Result<Self> {
        let requests = Arc::<Requests>::default();
        let (mine, is_lost) = (Arc::clone(&requests), Arc::clone(is_lost));
        let run = move || {
            let mut begun = Vec::new();
            let closes = Closes(&mine, &is_lost);
            let end = pump(&mut io, &namespace, &mine, &mut begun, &is_lost);
            drop(closes);
            let why = end.err().map_or_else(lost, failed);
            for (_, request) in begun {
                request.end(Err(HostError::Io(io::Error::new(why.kind(), why.to_string()))));
            }
        };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(run)?;
        Ok(Self { requests, thread: Some(thread) })
    }
}

/// Some queues for the same, which are asked in turn.
#[derive(Debug)]
struct Pumps {
    all: Vec<Pump>,
    asked: AtomicUsize,
}

impl Pumps {
    fn start(
        name: &str,
        queues: Vec<Io<TcpLink>>,
        namespace: NamespaceInfo,
        is_lost: &Arc<AtomicBool>,
    ) -> io::Result<Self> {
        let all = queues.into_iter().map(|io| Pump::start(name, io, namespace, is_lost));
        Ok(Self { all: all.collect::<io::Result<_>>()?, asked: AtomicUsize::new(0) })
    }

    fn next(&self) -> &Pump {
        // invariant: there is one at least, as there was a queue.
        &self.all[self.asked.fetch_add(1, Ordering::Relaxed) % self.all.len()]
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        self.requests.close();
        if let Some(thread) = self.thread.take() {
            // What it had begun failed when it panicked.
            let _ = thread.join();
        }
    }
}

/// Keeps as many requests outstanding as the queue takes, until there are no more or the connection is lost. `begun`
/// is what is outstanding.
fn pump(
    io: &mut Io<TcpLink>,
    namespace: &NamespaceInfo,
    requests: &Requests,
    begun: &mut Vec<(u16, Request)>,
    is_lost: &AtomicBool,
) -> Result<(), HostError> {
    let mut spare = Spare::default();
    while let Some(next) = requests.take(io.room(), !begun.is_empty()) {
        for mut request in next {
            if is_lost.load(Ordering::Acquire) {
                request.end(Err(HostError::Io(lost())));
                continue;
            }
            match request.begin(io, namespace, &mut spare) {
                Ok(id) => begun.push((id, request)),
                Err(e @ HostError::Ended(_)) => {
                    request.end(Err(HostError::Io(lost())));
                    return Err(e); // and what was not begun fails as it is dropped
                }
                Err(e) => request.end(Err(e)),
            }
        }
        if begun.is_empty() {
            continue;
        }
        io.advance()?;
        let mut i = 0;
        while let Some(&(id, _)) = begun.get(i) {
            match io.ended_reusing("a command of a job", id) {
                Some(result) => begun.remove(i).1.ended(result, &mut spare),
                None => i += 1,
            }
        }
    }
    Ok(())
}

impl NvmeDevice {
    /// Connects. `cutter` ends the connections, also before all are open.
    ///
    /// # Errors
    /// Why that failed.
    pub fn connect_cuttable(place: Place, cutter: Cutter, clock: Arc<dyn Clock>) -> io::Result<Self> {
        // One limit for all connections and what is asked until they are ready: each step has a limit of its own, and
        // a store decides how many steps there are.
        cutter.set_limit(Some(Duration::from_nanos(clock.monotonic_nanos()) + CONNECT_TIMEOUT));
        let config = place.host_config();
        let host = TcpHost::connect_cuttable(place.address, config, place.tls, Some(cutter.clone()), clock);
        let host = host.map_err(failed)?;
        let namespace = host.admin(|admin| admin.set_queues(READ_QUEUES + 1).and_then(|_| admin.namespace(NAMESPACE)));
        let namespace = namespace.map_err(failed)?;
        if namespace.block_bytes as usize != DEVICE_BLOCK {
            return Err(io::Error::other(format!("blocks of {} bytes", namespace.block_bytes)));
        }
        // Each block of a table has a checksum, which whoever reads it for a job compares: to compute another one of
        // all that is read would cost the store as much again. What is written has digests, since a store may look at
        // a part of that alone.
        let mut reads = Vec::new();
        for queue in 1..=READ_QUEUES {
            reads.push(host.io_queue_with(queue, |queue| queue.data_digest = false).map_err(failed)?);
        }
        // Data in a capsule would overtake what the store still has to ask for.
        let writes = host.io_queue_with(READ_QUEUES + 1, |queue| queue.in_capsule_max = 0).map_err(failed)?;
        cutter.set_limit(None);
        let transfer_max = (host.controller().transfer_max() as usize).max(DEVICE_BLOCK);
        let is_lost = Arc::<AtomicBool>::default();
        let reads = Pumps::start("nvme-reads", reads, namespace, &is_lost)?;
        let writes = Pump::start("nvme-writes", writes, namespace, &is_lost)?;
        Ok(Self { namespace, transfer_max, reads, writes, external: None, cutter, host })
    }

    /// Reads inputs from another target from here on, as far as it has them.
    ///
    /// # Errors
    /// Why that is not possible; all is read from the store then.
    pub fn connect_external(&mut self, external: ExternalPlace, clock: Arc<dyn Clock>) -> io::Result<()> {
        self.cutter.set_limit(Some(Duration::from_nanos(clock.monotonic_nanos()) + EXTERNAL_TIMEOUT));
        let connected = External::connect(external, &self.cutter, clock);
        self.cutter.set_limit(None);
        self.external = Some(connected?);
        Ok(())
    }

    /// The commands of a read, in order.
    fn pieces(&self, offset: u64, bytes: usize) -> Vec<Piece<'_>> {
        let (mut at, end, mut pieces) = (offset, offset.saturating_add(bytes as u64), Vec::new());
        while at < end {
            let left = usize::try_from(end - at).unwrap_or(usize::MAX);
            let found = self.external.as_ref().and_then(|e| Some((e, e.inputs.find(at)?)));
            let piece = match found {
                Some((external, (place, there))) => Piece {
                    pump: external.reads.next(),
                    first: place / external.block_bytes,
                    bytes: left.min(external.transfer_max).min(usize::try_from(there).unwrap_or(usize::MAX)),
                },
                None => {
                    let next = self.external.as_ref().and_then(|e| e.inputs.next(at)).unwrap_or(end).min(end);
                    let here = usize::try_from(next - at).unwrap_or(usize::MAX);
                    Piece {
                        pump: self.reads.next(),
                        first: Self::first(at),
                        bytes: left.min(self.transfer_max).min(here),
                    }
                }
            };
            at = at.saturating_add(piece.bytes as u64);
            pieces.push(piece);
        }
        pieces
    }

    /// Connects, for tests that cut nothing.
    #[cfg(test)]
    pub fn connect(place: Place, clock: Arc<dyn Clock>) -> io::Result<Self> {
        Self::connect_cuttable(place, Cutter::default(), clock)
    }

    /// What went over its connections.
    pub fn counters(&self) -> LinkCounters {
        let (own, external) = (self.host.counters(), self.external.as_ref().map(|e| e.host.counters()));
        external.map_or(own, |other| own.and(other))
    }

    /// Waits for so many pieces; gives each that was read to `take`.
    fn wait(
        pieces: usize,
        replies: &mpsc::Receiver<(usize, io::Result<Vec<u8>>)>,
        mut take: impl FnMut(usize, &[u8]),
    ) -> io::Result<()> {
        for _ in 0..pieces {
            let (piece, result) = replies.recv().map_err(|_| lost())?;
            take(piece, &result?);
        }
        Ok(())
    }

    fn first(offset: u64) -> u64 {
        offset / DEVICE_BLOCK as u64
    }
}

impl Drop for NvmeDevice {
    fn drop(&mut self) {
        // No thread waits for an answer that nobody wants.
        self.cutter.cut();
    }
}

impl WorkerDevice for NvmeDevice {
    fn bytes(&self) -> u64 {
        self.namespace.blocks.saturating_mul(DEVICE_BLOCK as u64)
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let (reply, replies) = mpsc::channel();
        let (mut at, mut places) = (0, Vec::new());
        for (piece, Piece { pump, first, bytes }) in self.pieces(offset, into.len()).into_iter().enumerate() {
            pump.requests.ask(Request { first, work: Work::Read { bytes, piece, reply: reply.clone() } });
            places.push(at..at + bytes);
            at += bytes;
        }
        drop(reply); // what is left of it are the requests'
        Self::wait(places.len(), &replies, |piece, data| {
            let to = places.get(piece).and_then(|place| into.get_mut(place.clone()));
            if let Some(to) = to.filter(|to| to.len() == data.len()) {
                to.copy_from_slice(data);
            }
        })
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let (reply, replies) = mpsc::channel();
        let (mut at, most) = (offset, self.transfer_max);
        for (piece, data) in data.chunks(most).enumerate() {
            let work = Work::Write { data: data.to_vec(), piece, reply: reply.clone() };
            self.writes.requests.ask(Request { first: Self::first(at), work });
            at += data.len() as u64;
        }
        drop(reply);
        Self::wait(data.len().div_ceil(most), &replies, |_, _| {})
    }

    fn begin(&self, mut op: DeviceOp) {
        let (offset, bytes) = (op.offset, op.memory().len());
        if !op.reads {
            if bytes <= self.transfer_max {
                return self.writes.requests.ask(Request { first: Self::first(offset), work: Work::Op(op) });
            }
            // Longer than a command, which only a block is that is longer than what is gathered.
            let result = self.write(offset, op.memory());
            return op.done(result);
        }
        let pieces = self.pieces(offset, bytes);
        if let [Piece { pump, first, .. }] = *pieces.as_slice() {
            return pump.requests.ask(Request { first, work: Work::Op(op) });
        }
        let split = Arc::new(Mutex::new(Split { op: Some(op), left: pieces.len() }));
        let mut at = 0;
        for Piece { pump, first, bytes } in pieces {
            pump.requests.ask(Request { first, work: Work::Part { of: Arc::clone(&split), at, bytes } });
            at += bytes;
        }
    }
}
