//! The device of a job, from the worker's side.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rockmill::internals::{DEVICE_BLOCK, WorkerDevice};
use rockmill_io::Clock;
use rockmill_nvme::auth::HostAuth;
use rockmill_nvme::initiator::{HostConfig, HostError, Io, NamespaceInfo, QueueConfig};
use rockmill_nvme::tcp::{Cutter, LinkCounters, TcpHost, TcpLink};

/// The only namespace of a job's subsystem.
pub(crate) const NAMESPACE: u32 = 1;
/// Keep Alive Timeout.
const KEEP_ALIVE_MS: u32 = 10_000;

/// A namespace that another machine serves.
#[derive(Debug)]
pub(crate) struct NvmeDevice {
    namespace: NamespaceInfo,
    /// Data of one command, at most.
    transfer_max: usize,
    reads: Mutex<Io<TcpLink>>,
    writes: Mutex<Io<TcpLink>>,
    /// A connection was lost, so that nothing more is asked: each call would wait for an answer anew.
    lost: AtomicBool,
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
}

fn failed(e: HostError) -> io::Error {
    match e {
        HostError::Io(e) => e,
        e => io::Error::other(e.to_string()),
    }
}

impl NvmeDevice {
    /// Connects.
    ///
    /// # Errors
    /// Why that failed.
    pub fn connect(place: Place, clock: Arc<dyn Clock>) -> io::Result<Self> {
        let config = HostConfig {
            subsystem: place.subsystem,
            host: place.name,
            host_id: place.host_id,
            keep_alive_ms: KEEP_ALIVE_MS,
            auth: place.auth,
            queue: QueueConfig::default(),
        };
        let host = TcpHost::connect(place.address, config, clock).map_err(failed)?;
        let namespace = host.admin(|admin| admin.set_queues(2).and_then(|_| admin.namespace(NAMESPACE)));
        let namespace = namespace.map_err(failed)?;
        if namespace.block_bytes as usize != DEVICE_BLOCK {
            return Err(io::Error::other(format!("blocks of {} bytes", namespace.block_bytes)));
        }
        let reads = Mutex::new(host.io_queue(1).map_err(failed)?);
        let writes = Mutex::new(host.io_queue(2).map_err(failed)?);
        let transfer_max = (host.controller().transfer_max() as usize).max(DEVICE_BLOCK);
        Ok(Self { namespace, transfer_max, reads, writes, lost: AtomicBool::new(false), host })
    }

    /// What ends its connections while others use it.
    ///
    /// # Errors
    /// There are too few descriptors.
    pub fn cutter(&self) -> io::Result<Cutter> {
        let mut cutter = Cutter::default();
        cutter.add(self.reads.lock().link())?;
        cutter.add(self.writes.lock().link())?;
        self.host.admin(|admin| cutter.add(admin.link()))?;
        Ok(cutter)
    }

    /// What went over its connections.
    pub fn counters(&self) -> LinkCounters {
        self.host.counters()
    }

    /// Asks something of a queue, unless a connection was lost before.
    fn ask<T>(
        &self,
        queue: &Mutex<Io<TcpLink>>,
        body: impl FnOnce(&mut Io<TcpLink>) -> Result<T, HostError>,
    ) -> io::Result<T> {
        let mut queue = queue.lock();
        if self.lost.load(Ordering::Acquire) {
            return Err(io::Error::new(io::ErrorKind::NotConnected, "a connection to the store was lost before"));
        }
        let done = body(&mut queue);
        if matches!(done, Err(HostError::Io(_) | HostError::Ended(_))) {
            self.lost.store(true, Ordering::Release);
        }
        done.map_err(failed)
    }
}

impl WorkerDevice for NvmeDevice {
    fn bytes(&self) -> u64 {
        self.namespace.blocks.saturating_mul(DEVICE_BLOCK as u64)
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.ask(&self.reads, |reads| reads.read(&self.namespace, offset / DEVICE_BLOCK as u64, into))
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.ask(&self.writes, |writes| {
            let mut at = offset;
            // One command after another: an output takes what comes in order alone.
            for piece in data.chunks(self.transfer_max) {
                writes.write(&self.namespace, at / DEVICE_BLOCK as u64, piece, false)?;
                at += piece.len() as u64;
            }
            Ok(())
        })
    }
}
