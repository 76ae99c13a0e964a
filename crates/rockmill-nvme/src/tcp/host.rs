//! A host over TCP.

use std::io::{self, ErrorKind};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rockmill_io::Clock;

use super::{ClientTls, Stream};
use crate::initiator::{Admin, Controller, HostConfig, HostError, Io, Link, Queue, QueueConfig};

/// Time limit for opening a connection, and for each answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a write waits before the host reads what has arrived: the peer may not read until then.
const WRITE_PATIENCE: Duration = Duration::from_millis(20);
/// Bytes of one read.
const READ_BYTES: usize = 256 << 10;

/// Traffic of a host's connections so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// How often the host sent something and waited for the answer. Commands sent together count once; a write that
    /// waits for an R2T counts twice.
    pub round_trips: u64,
    /// Bytes sent, including headers and digests, but not those of TCP.
    pub sent_bytes: u64,
    /// Bytes received.
    pub received_bytes: u64,
}

impl LinkCounters {
    /// The sum of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            round_trips: self.round_trips.saturating_add(other.round_trips),
            sent_bytes: self.sent_bytes.saturating_add(other.sent_bytes),
            received_bytes: self.received_bytes.saturating_add(other.received_bytes),
        }
    }
}

/// Counters shared by several links.
#[derive(Debug, Default)]
struct Counted {
    round_trips: AtomicU64,
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
}

impl Counted {
    fn read(&self) -> LinkCounters {
        let [round_trips, sent_bytes, received_bytes] =
            [&self.round_trips, &self.sent_bytes, &self.received_bytes].map(|n| n.load(Ordering::Relaxed));
        LinkCounters { round_trips, sent_bytes, received_bytes }
    }
}

/// Closes connections while other threads use them: their pending and later calls fail.
#[derive(Debug, Default)]
pub struct Cutter(Vec<TcpStream>);

impl Cutter {
    /// Adds a link's connection.
    ///
    /// # Errors
    /// No file descriptor is available.
    pub fn add(&mut self, link: &TcpLink) -> io::Result<()> {
        self.0.push(link.stream.socket().try_clone()?);
        Ok(())
    }

    /// The same once more, for another thread.
    ///
    /// # Errors
    /// There are too few descriptors.
    pub fn try_clone(&self) -> io::Result<Self> {
        self.0.iter().map(TcpStream::try_clone).collect::<io::Result<_>>().map(Self)
    }

    /// Closes them.
    pub fn cut(&self) {
        for stream in &self.0 {
            let _ = stream.shutdown(Shutdown::Both); // an error means that it is closed already
        }
    }
}

/// The connection of one queue.
#[derive(Debug)]
pub struct TcpLink {
    stream: Stream,
    queue: Queue,
    buffer: Vec<u8>,
    clock: Arc<dyn Clock>,
    counted: Arc<Counted>,
}

impl TcpLink {
    /// Opens a connection, with TLS if there is a key.
    ///
    /// # Errors
    /// As [`TcpStream::connect_timeout`] and [`ClientTls::connect`].
    pub fn open(
        address: SocketAddr,
        config: QueueConfig,
        tls: Option<&ClientTls>,
        clock: Arc<dyn Clock>,
    ) -> io::Result<Self> {
        let socket = TcpStream::connect_timeout(&address, ANSWER_TIMEOUT)?;
        socket.set_nodelay(true)?;
        let mut stream = match tls {
            Some(tls) => tls.connect(socket, ANSWER_TIMEOUT, &|| false, &clock)?,
            None => Stream::plain(socket),
        };
        stream.set_read_timeout(ANSWER_TIMEOUT)?;
        stream.socket().set_write_timeout(Some(WRITE_PATIENCE))?;
        let (queue, buffer) = (Queue::new(config), vec![0; READ_BYTES]);
        Ok(Self { stream, queue, buffer, clock, counted: Arc::default() })
    }

    /// Traffic of this link and of the other links of the same host.
    #[must_use]
    pub fn counters(&self) -> LinkCounters {
        self.counted.read()
    }

    fn receive(&mut self) -> io::Result<()> {
        match self.stream.read(&mut self.buffer)? {
            0 => Err(io::Error::new(ErrorKind::UnexpectedEof, "the controller closed the connection")),
            n => {
                self.counted.received_bytes.fetch_add(n as u64, Ordering::Relaxed);
                self.queue.receive(&self.buffer[..n]);
                if self.queue.end().is_some() {
                    // Tells the peer why, if possible. The caller gets the original error.
                    let _ = self.stream.write(self.queue.output());
                }
                Ok(())
            }
        }
    }

    /// The write made no progress: reads what is available, if anything.
    fn make_room(&mut self) -> io::Result<()> {
        self.stream.set_read_timeout(WRITE_PATIENCE)?;
        let received = self.receive();
        self.stream.set_read_timeout(ANSWER_TIMEOUT)?;
        match received {
            Err(e) if waits(&e) => Ok(()),
            other => other,
        }
    }
}

/// True for a socket's timeout, or an interrupted call.
pub(super) fn waits(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

impl Link for TcpLink {
    fn queue(&mut self) -> &mut Queue {
        &mut self.queue
    }

    fn exchange(&mut self) -> io::Result<()> {
        let since = self.clock.monotonic_nanos();
        if !self.queue.output().is_empty() {
            self.counted.round_trips.fetch_add(1, Ordering::Relaxed);
        }
        while !self.queue.output().is_empty() {
            match self.stream.write(self.queue.output()) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => {
                    self.counted.sent_bytes.fetch_add(n as u64, Ordering::Relaxed);
                    self.queue.sent(n);
                }
                Err(e) if waits(&e) => {
                    let waited = Duration::from_nanos(self.clock.monotonic_nanos().saturating_sub(since));
                    if waited > ANSWER_TIMEOUT {
                        return Err(io::Error::new(ErrorKind::TimedOut, "the controller takes nothing"));
                    }
                    self.make_room()?;
                }
                Err(e) => {
                    // The peer may have sent a reason before it closed the connection.
                    let _ = self.make_room();
                    return Err(e);
                }
            }
        }
        loop {
            match self.receive() {
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if waits(&e) => {
                    return Err(io::Error::new(ErrorKind::TimedOut, "the controller does not answer"));
                }
                other => return other,
            }
        }
    }

    fn pause(&mut self) {
        self.clock.sleep(Duration::from_millis(1));
    }
}

/// A controller over TCP: its admin queue, kept alive by a thread, and its I/O queues.
#[derive(Debug)]
pub struct TcpHost {
    address: SocketAddr,
    tls: Option<ClientTls>,
    clock: Arc<dyn Clock>,
    controller: Controller,
    counted: Arc<Counted>,
    shared: Arc<Shared>,
    keeper: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    admin: Mutex<Admin<TcpLink>>,
    stop: Mutex<bool>,
    stopped: Condvar,
}

impl TcpHost {
    /// Connects the admin queue, and waits until the controller is ready.
    ///
    /// # Errors
    /// The reason why it failed.
    pub fn connect(address: SocketAddr, config: HostConfig, clock: Arc<dyn Clock>) -> Result<Self, HostError> {
        Self::connect_with(address, config, None, clock)
    }

    /// The same, with TLS on every connection if there is a key.
    ///
    /// # Errors
    /// The reason why it failed.
    pub fn connect_with(
        address: SocketAddr,
        config: HostConfig,
        tls: Option<ClientTls>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, HostError> {
        let keep_alive = Duration::from_millis(config.keep_alive_ms.into());
        let link = TcpLink::open(address, config.queue, tls.as_ref(), Arc::clone(&clock)).map_err(HostError::Io)?;
        let counted = Arc::clone(&link.counted);
        let admin = Admin::connect(link, config)?;
        let controller = admin.controller().clone();
        let shared = Arc::new(Shared { admin: Mutex::new(admin), stop: Mutex::new(false), stopped: Condvar::new() });
        let keeper = (!keep_alive.is_zero()).then(|| {
            let shared = Arc::clone(&shared);
            thread::Builder::new().name("nvme-keep-alive".into()).spawn(move || keep(&shared, keep_alive))
        });
        let keeper = keeper.transpose().map_err(HostError::Io)?;
        Ok(Self { address, tls, clock, controller, counted, shared, keeper })
    }

    /// What went over all its connections.
    #[must_use]
    pub fn counters(&self) -> LinkCounters {
        self.counted.read()
    }

    /// What is known of the controller.
    #[must_use]
    pub fn controller(&self) -> &Controller {
        &self.controller
    }

    /// Does something with the admin queue.
    pub fn admin<T>(&self, body: impl FnOnce(&mut Admin<TcpLink>) -> T) -> T {
        body(&mut self.shared.admin.lock())
    }

    /// Opens a connection for I/O queue `queue`, 1 or more.
    ///
    /// # Errors
    /// The reason why it failed.
    pub fn io_queue(&self, queue: u16) -> Result<Io<TcpLink>, HostError> {
        self.io_queue_with(queue, |_| {})
    }

    /// The same with what `change` makes of the queue's configuration: without data digests, for data that its reader
    /// checks anyway, or without data in capsules, for writes whose order counts (docs/offload.md).
    ///
    /// # Errors
    /// Why that failed.
    pub fn io_queue_with(&self, queue: u16, change: impl FnOnce(&mut QueueConfig)) -> Result<Io<TcpLink>, HostError> {
        let mut config = self.controller.queue_config();
        change(&mut config);
        let clock = Arc::clone(&self.clock);
        let mut link = TcpLink::open(self.address, config, self.tls.as_ref(), clock).map_err(HostError::Io)?;
        link.counted = Arc::clone(&self.counted);
        Io::connect(link, &self.controller, queue)
    }
}

/// Sends Keep Alive twice per timeout, until it is stopped or the connection is lost. The next call on the connection
/// reports the loss.
fn keep(shared: &Shared, keep_alive: Duration) {
    let mut stop = shared.stop.lock();
    while !*stop {
        if shared.stopped.wait_for(&mut stop, keep_alive / 2).timed_out() {
            drop(stop);
            if shared.admin.lock().keep_alive().is_err() {
                return;
            }
            stop = shared.stop.lock();
        }
    }
}

impl Drop for TcpHost {
    fn drop(&mut self) {
        *self.shared.stop.lock() = true;
        self.shared.stopped.notify_all();
        if let Some(keeper) = self.keeper.take() {
            // If the thread panicked, the controller was not kept alive; nothing more can be done here.
            let _ = keeper.join();
        }
    }
}
