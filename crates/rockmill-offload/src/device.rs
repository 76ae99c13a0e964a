//! The device of a job, from the worker's side.
//!
//! ```text
//!   threads that merge                    a thread for each queue              the store
//!
//!   read, write, begin ── requests ─────► commands, as many as the ──────────► JobNamespace
//!                      ◄─ results ─────── queue takes, in their order ◄───────
//! ```
//!
//! One queue and connection is for reads, another one for writes. Each belongs to one thread, which sends what is asked
//! while it waits for earlier answers: so several commands are outstanding, whoever asks, and what comes is taken from
//! the socket while others merge.
//!
//! Writes arrive in the order in which they were begun, because outputs take them from front to back: the queue of
//! writes has no data in capsules, so the store asks for the data of each (R2T), in the order of the commands and for
//! all of it at once (`TargetConfig::r2t_bytes_max`), and each R2T is answered in its turn. A store that did otherwise
//! would refuse a write, and the job would fail.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rockmill::internals::{DEVICE_BLOCK, DeviceOp, WorkerDevice};
use rockmill_io::Clock;
use rockmill_nvme::auth::HostAuth;
use rockmill_nvme::initiator::{HostConfig, HostError, Io, NamespaceInfo, QueueConfig};
use rockmill_nvme::tcp::{ClientTls, Cutter, LinkCounters, TcpHost, TcpLink};

/// The only namespace of a job's subsystem.
pub(crate) const NAMESPACE: u32 = 1;
/// Time limit for connecting to a device.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Keep Alive Timeout.
const KEEP_ALIVE_MS: u32 = 10_000;

/// A namespace that another machine serves.
#[derive(Debug)]
pub(crate) struct NvmeDevice {
    namespace: NamespaceInfo,
    /// Data of one command, at most.
    transfer_max: usize,
    reads: Pump,
    writes: Pump,
    /// All its connections.
    cutter: Cutter,
    /// Keeps the controller.
    host: TcpHost,
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
    Read { bytes: usize, piece: usize, reply: Reply },
    Write { data: Vec<u8>, piece: usize, reply: Reply },
}

impl Request {
    fn begin(&mut self, io: &mut Io<TcpLink>, namespace: &NamespaceInfo) -> Result<u16, HostError> {
        let first = self.first;
        match &mut self.work {
            Work::Op(op) if op.reads => io.begin_read(namespace, first, op.memory().len()),
            Work::Op(op) => io.begin_write(namespace, first, op.memory().to_vec()),
            Work::Read { bytes, .. } => io.begin_read(namespace, first, *bytes),
            Work::Write { data, .. } => io.begin_write(namespace, first, std::mem::take(data)),
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
            // Nobody waits for it any more where an earlier piece failed.
            Work::Read { piece, reply, .. } | Work::Write { piece, reply, .. } => drop(reply.send((piece, result))),
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
    while let Some(next) = requests.take(io.room(), !begun.is_empty()) {
        for mut request in next {
            if is_lost.load(Ordering::Acquire) {
                request.end(Err(HostError::Io(lost())));
                continue;
            }
            match request.begin(io, namespace) {
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
            match io.ended("a command of a job", id) {
                Some(result) => begun.remove(i).1.end(result),
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
        // What TLS carries it has sealed already.
        let digests = place.tls.is_none();
        let config = HostConfig {
            subsystem: place.subsystem,
            host: place.name,
            host_id: place.host_id,
            keep_alive_ms: KEEP_ALIVE_MS,
            auth: place.auth,
            queue: QueueConfig { header_digest: digests, data_digest: digests, ..QueueConfig::default() },
        };
        let host = TcpHost::connect_cuttable(place.address, config, place.tls, Some(cutter.clone()), clock);
        let host = host.map_err(failed)?;
        let namespace = host.admin(|admin| admin.set_queues(2).and_then(|_| admin.namespace(NAMESPACE)));
        let namespace = namespace.map_err(failed)?;
        if namespace.block_bytes as usize != DEVICE_BLOCK {
            return Err(io::Error::other(format!("blocks of {} bytes", namespace.block_bytes)));
        }
        // Each block of a table has a checksum, which whoever reads it for a job compares: to compute another one of
        // all that is read would cost the store as much again. What is written has digests, since a store may look at
        // a part of that alone.
        let reads = host.io_queue_with(1, |queue| queue.data_digest = false).map_err(failed)?;
        // Data in a capsule would overtake what the store still has to ask for.
        let writes = host.io_queue_with(2, |queue| queue.in_capsule_max = 0).map_err(failed)?;
        cutter.set_limit(None);
        let transfer_max = (host.controller().transfer_max() as usize).max(DEVICE_BLOCK);
        let is_lost = Arc::<AtomicBool>::default();
        let reads = Pump::start("nvme-reads", reads, namespace, &is_lost)?;
        let writes = Pump::start("nvme-writes", writes, namespace, &is_lost)?;
        Ok(Self { namespace, transfer_max, reads, writes, cutter, host })
    }

    /// Connects, for tests that cut nothing.
    #[cfg(test)]
    pub fn connect(place: Place, clock: Arc<dyn Clock>) -> io::Result<Self> {
        Self::connect_cuttable(place, Cutter::default(), clock)
    }

    /// What went over its connections.
    pub fn counters(&self) -> LinkCounters {
        self.host.counters()
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
        let (mut at, most) = (offset, self.transfer_max);
        for (piece, bytes) in into.chunks(most).map(<[u8]>::len).enumerate() {
            let work = Work::Read { bytes, piece, reply: reply.clone() };
            self.reads.requests.ask(Request { first: Self::first(at), work });
            at += bytes as u64;
        }
        drop(reply); // what is left of it are the requests'
        Self::wait(into.len().div_ceil(most), &replies, |piece, data| {
            if let Some(to) = into.chunks_mut(most).nth(piece).and_then(|to| to.get_mut(..data.len())) {
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
        if bytes <= self.transfer_max {
            let queue = if op.reads { &self.reads } else { &self.writes };
            return queue.requests.ask(Request { first: Self::first(offset), work: Work::Op(op) });
        }
        // Longer than a command, which only a block is that is longer than a read ahead.
        let result = match op.reads {
            true => self.read(offset, op.memory()),
            false => self.write(offset, op.memory()),
        };
        op.done(result);
    }
}
