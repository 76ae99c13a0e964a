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
//!
//! If a connection is lost, all connections to that controller are made anew, and what was not answered is asked again,
//! in its order: for some seconds, and as long as the job's lease lives (the worker cuts the device otherwise). The
//! store takes a write that it has already taken as done.

mod kernel;
mod pump;

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use parking_lot::Mutex;
use rockmill::internals::{DEVICE_BLOCK, DeviceOp, WorkerDevice};
use rockmill_io::Clock;
use rockmill_nvme::auth::HostAuth;
use rockmill_nvme::initiator::{HostConfig, HostError, NamespaceInfo, QueueConfig};
use rockmill_nvme::tcp::{ClientTls, Cutter, LinkCounters, TcpHost};

pub(crate) use kernel::{DeviceEnd, KernelDevice};
use pump::{Line, Pump, Pumps, RECONNECT, Request, Split, Work, failed, lost};

use crate::external::ExternalInputs;

/// The only namespace of a job's subsystem.
pub(crate) const NAMESPACE: u32 = 1;
/// Queues for reads, which are asked in turn.
pub(crate) const READ_QUEUES: u16 = 2;
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
    host: Arc<TcpHost>,
}

/// A target that has inputs, too.
#[derive(Debug)]
struct External {
    inputs: ExternalInputs,
    block_bytes: u64,
    transfer_max: usize,
    reads: Pumps,
    host: Arc<TcpHost>,
}

impl External {
    fn connect(external: ExternalPlace, cutter: &Cutter, clock: Arc<dyn Clock>) -> io::Result<Self> {
        let ExternalPlace { place, inputs } = external;
        let config = place.host_config();
        let host = TcpHost::connect_cuttable(place.address, config, place.tls, Some(cutter.clone()), clock);
        let host = Arc::new(host.map_err(failed)?);
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
        let transfer_max = (host.controller().transfer_max() as usize).max(DEVICE_BLOCK);
        let line = Line { host: Arc::clone(&host), namespace, queues, queue: 1, change: without_data_digests };
        let reads = Pumps::start("nvme-external", &line, queues, &Arc::default()).map_err(failed)?;
        Ok(Self { inputs, block_bytes, transfer_max, reads, host })
    }
}

/// A part of a read: which queue is asked for it, from which block on, and how many bytes.
struct Piece<'a> {
    pump: &'a Pump,
    first: u64,
    bytes: usize,
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

/// Each block of a table has a checksum, which whoever reads it for a job compares: to compute another one of all that
/// is read would cost the store as much again. What is written has digests, since a store may look at a part of that
/// alone.
fn without_data_digests(queue: &mut QueueConfig) {
    queue.data_digest = false;
}

/// Data in a capsule would overtake what the store still has to ask for.
fn without_data_in_capsules(queue: &mut QueueConfig) {
    queue.in_capsule_max = 0;
}

impl NvmeDevice {
    /// Connects. `cutter` ends the connections, also before all are open.
    ///
    /// # Errors
    /// Why that failed.
    pub fn connect_cuttable(place: Place, cutter: Cutter, clock: Arc<dyn Clock>) -> io::Result<Self> {
        // One limit for all connections and what is asked until they are ready: each step has a limit of its own, and
        // a store decides how many steps there are.
        let now = || Duration::from_nanos(clock.monotonic_nanos());
        let until = now() + CONNECT_TIMEOUT;
        cutter.set_limit(Some(until));
        loop {
            match Self::connect_once(&place, &cutter, Arc::clone(&clock)) {
                // A connection was lost again before the device was there.
                Err(e) if RECONNECT.may_pass(&e) && now() < until && !cutter.is_cut() => clock.sleep(RECONNECT.delay),
                connected => {
                    cutter.set_limit(None);
                    return connected.map_err(failed);
                }
            }
        }
    }

    fn connect_once(place: &Place, cutter: &Cutter, clock: Arc<dyn Clock>) -> Result<Self, HostError> {
        let config = place.host_config();
        let host = TcpHost::connect_cuttable(place.address, config, place.tls.clone(), Some(cutter.clone()), clock);
        let host = Arc::new(host?);
        let queues = READ_QUEUES + 1;
        let namespace = host.admin(|admin| admin.set_queues(queues).and_then(|_| admin.namespace(NAMESPACE)))?;
        if namespace.block_bytes as usize != DEVICE_BLOCK {
            return Err(HostError::Answer("blocks of another size than a job's device has"));
        }
        let is_lost = Arc::<AtomicBool>::default();
        let line = Line { host: Arc::clone(&host), namespace, queues, queue: queues, change: without_data_in_capsules };
        let read_line = Line { change: without_data_digests, ..line.clone() };
        let reads = Pumps::start("nvme-reads", &read_line, READ_QUEUES, &is_lost)?;
        let io = line.open()?;
        let writes = Pump::start("nvme-writes", line, io, &is_lost).map_err(HostError::Io)?;
        let transfer_max = (host.controller().transfer_max() as usize).max(DEVICE_BLOCK);
        Ok(Self { namespace, transfer_max, reads, writes, external: None, cutter: cutter.clone(), host })
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

    /// How often it has connected again.
    pub fn reconnects(&self) -> u64 {
        self.host.reconnects() + self.external.as_ref().map_or(0, |e| e.host.reconnects())
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
