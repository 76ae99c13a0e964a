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

/// Time limit for a TCP connection. It cannot be cut before it is open.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for a TLS handshake, and for each answer without its data.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// The lowest rate at which data may move.
const BYTES_PER_SECOND_MIN: u64 = 1 << 20;
/// How long a read waits before the time is checked.
const POLL: Duration = Duration::from_millis(200);
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

/// Ends the connections of a host while other threads use or open them: their pending and later calls fail. Clones
/// share the connections.
#[derive(Debug, Clone, Default)]
pub struct Cutter(Arc<Mutex<Connections>>);

#[derive(Debug, Default)]
struct Connections {
    sockets: Vec<TcpStream>,
    is_cut: bool,
    limit: Option<Duration>,
}

impl Cutter {
    /// Sets the time, on the host's monotonic clock, after which calls on the connections fail: for example while they
    /// are being opened. `None` removes the limit.
    pub fn set_limit(&self, at: Option<Duration>) {
        self.0.lock().limit = at;
    }

    /// Ends the connections. No more can be opened.
    pub fn cut(&self) {
        let mut connections = self.0.lock();
        connections.is_cut = true;
        for socket in connections.sockets.drain(..) {
            let _ = socket.shutdown(Shutdown::Both); // an error means that it is closed already
        }
    }

    fn is_cut(&self) -> bool {
        self.0.lock().is_cut
    }

    /// The time left until the limit.
    fn left(&self, now: Duration) -> Duration {
        self.0.lock().limit.map_or(Duration::MAX, |limit| limit.saturating_sub(now))
    }

    /// Takes a connection before anything is sent on it.
    fn take(&self, socket: &TcpStream) -> io::Result<()> {
        let mut connections = self.0.lock();
        if connections.is_cut {
            return Err(io::Error::new(ErrorKind::ConnectionAborted, "the connection is no longer wanted"));
        }
        connections.sockets.push(socket.try_clone()?);
        Ok(())
    }
}

fn late(what: &str) -> io::Error {
    io::Error::new(ErrorKind::TimedOut, what.to_owned())
}

/// The connection of one queue.
#[derive(Debug)]
pub struct TcpLink {
    stream: Stream,
    queue: Queue,
    buffer: Vec<u8>,
    clock: Arc<dyn Clock>,
    counted: Arc<Counted>,
    cutter: Option<Cutter>,
    /// Answers that had arrived when the current wait began.
    answers: u64,
    /// When the current wait began: each answer begins a new one.
    waits_since: Duration,
}

impl TcpLink {
    /// Opens a connection, with TLS if there is a key. `cutter` can end it from the start.
    ///
    /// # Errors
    /// As [`TcpStream::connect_timeout`] and [`ClientTls::connect`]; or the connection was cut.
    pub fn open(
        address: SocketAddr,
        config: QueueConfig,
        tls: Option<&ClientTls>,
        cutter: Option<&Cutter>,
        clock: Arc<dyn Clock>,
    ) -> io::Result<Self> {
        let now = || Duration::from_nanos(clock.monotonic_nanos());
        let within = |limit: Duration| match cutter.map_or(limit, |cutter| cutter.left(now()).min(limit)) {
            left if left.is_zero() => Err(late("the connection is not open in time")),
            left => Ok(left),
        };
        let socket = TcpStream::connect_timeout(&address, within(CONNECT_TIMEOUT)?)?;
        if let Some(cutter) = cutter {
            cutter.take(&socket)?;
        }
        socket.set_nodelay(true)?;
        let is_cut = || cutter.is_some_and(Cutter::is_cut);
        let mut stream = match tls {
            Some(tls) => tls.connect(socket, within(ANSWER_TIMEOUT)?, &is_cut, &clock)?,
            None => Stream::plain(socket),
        };
        stream.set_read_timeout(POLL)?;
        stream.socket().set_write_timeout(Some(WRITE_PATIENCE))?;
        let (queue, buffer, waits_since) = (Queue::new(config), vec![0; READ_BYTES], now());
        let cutter = cutter.cloned();
        Ok(Self { stream, queue, buffer, clock, counted: Arc::default(), cutter, answers: 0, waits_since })
    }

    /// Fails if the controller is late: it must answer one of the outstanding commands within a time that depends on
    /// their data. Bytes alone do not count: with a byte now and then it could hold the host for ever.
    fn check_time(&self, what: &str) -> io::Result<()> {
        let now = self.now();
        let seconds = self.queue.outstanding_bytes() / BYTES_PER_SECOND_MIN;
        if now.saturating_sub(self.waits_since) > ANSWER_TIMEOUT + Duration::from_secs(seconds) {
            return Err(late(what));
        }
        match self.cutter.as_ref().is_some_and(|cutter| cutter.left(now).is_zero()) {
            true => Err(late("the controller is not ready in time")),
            false => Ok(()),
        }
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
        self.stream.set_read_timeout(POLL)?;
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
        if self.answers != self.queue.answers() {
            (self.answers, self.waits_since) = (self.queue.answers(), self.now());
        }
        if !self.queue.output().is_empty() {
            self.counted.round_trips.fetch_add(1, Ordering::Relaxed);
        }
        while !self.queue.output().is_empty() {
            self.check_time("the controller takes what it is sent too slowly")?;
            match self.stream.write(self.queue.output()) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => {
                    self.counted.sent_bytes.fetch_add(n as u64, Ordering::Relaxed);
                    self.queue.sent(n);
                }
                Err(e) if waits(&e) => self.make_room()?,
                Err(e) => {
                    // The peer may have sent a reason before it closed the connection.
                    let _ = self.make_room();
                    return Err(e);
                }
            }
        }
        loop {
            self.check_time("the controller does not answer in time")?;
            match self.receive() {
                Err(e) if waits(&e) => {}
                other => return other,
            }
        }
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(self.clock.monotonic_nanos())
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
    cutter: Option<Cutter>,
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
        Self::connect_cuttable(address, config, tls, None, clock)
    }

    /// The same. `cutter` can end all its connections, and sets a time limit for them, from the start of the first one.
    /// It keeps their sockets: they are closed when it is gone, or when it cuts them.
    ///
    /// # Errors
    /// The reason why it failed.
    pub fn connect_cuttable(
        address: SocketAddr,
        config: HostConfig,
        tls: Option<ClientTls>,
        cutter: Option<Cutter>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, HostError> {
        let keep_alive = Duration::from_millis(config.keep_alive_ms.into());
        let link = TcpLink::open(address, config.queue, tls.as_ref(), cutter.as_ref(), Arc::clone(&clock));
        let link = link.map_err(HostError::Io)?;
        let counted = Arc::clone(&link.counted);
        let admin = Admin::connect(link, config)?;
        let controller = admin.controller().clone();
        let shared = Arc::new(Shared { admin: Mutex::new(admin), stop: Mutex::new(false), stopped: Condvar::new() });
        let keeper = (!keep_alive.is_zero()).then(|| {
            let shared = Arc::clone(&shared);
            thread::Builder::new().name("nvme-keep-alive".into()).spawn(move || keep(&shared, keep_alive))
        });
        let keeper = keeper.transpose().map_err(HostError::Io)?;
        Ok(Self { address, tls, cutter, clock, controller, counted, shared, keeper })
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
        let link = TcpLink::open(self.address, config, self.tls.as_ref(), self.cutter.as_ref(), clock);
        let mut link = link.map_err(HostError::Io)?;
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
