//! A host over TCP.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rockmill_io::Clock;

use super::cutter::Cuttable;
use super::{ClientTls, Cutter, Stream};
use crate::initiator::{Admin, Controller, HostConfig, HostError, Io, Link, Queue, QueueConfig};
use crate::status::Status;

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
/// How often it is checked whether a wait for the next attempt to connect was cut.
const WAIT_POLL: Duration = Duration::from_millis(20);
/// The answer to a Keep Alive may take this long, however short the timeout is.
const KEEP_ALIVE_MIN: Duration = Duration::from_secs(1);
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
    /// Its place in the cutter.
    _cuttable: Option<Cuttable>,
    /// Answers that had arrived when the current wait began.
    answers: u64,
    /// When the current wait began: each answer begins a new one.
    waits_since: Duration,
    /// Time limit for each answer without its data.
    answer_timeout: Duration,
    /// The number of its host's association.
    association: u64,
    /// Set when more answers than these have come: the association was of use.
    useful: Option<(u64, Arc<AtomicBool>)>,
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
        let cuttable = cutter.map(|cutter| cutter.take(&socket)).transpose()?;
        socket.set_nodelay(true)?;
        let is_cut = || cutter.is_some_and(Cutter::is_cut);
        let mut stream = match tls {
            Some(tls) => tls.connect(socket, within(ANSWER_TIMEOUT)?, &is_cut, &clock)?,
            None => Stream::plain(socket),
        };
        stream.set_read_timeout(POLL)?;
        stream.socket().set_write_timeout(Some(WRITE_PATIENCE))?;
        let (queue, buffer, waits_since) = (Queue::new(config), vec![0; READ_BYTES], now());
        Ok(Self {
            stream,
            queue,
            buffer,
            clock,
            counted: Arc::default(),
            cutter: cutter.cloned(),
            _cuttable: cuttable,
            answers: 0,
            waits_since,
            answer_timeout: ANSWER_TIMEOUT,
            association: 0,
            useful: None,
        })
    }

    /// The number of the association with the controller that it belongs to, for [`TcpHost::reconnect`].
    #[must_use]
    pub fn association(&self) -> u64 {
        self.association
    }

    /// Fails if the controller is late: it must answer one of the outstanding commands within a time that depends on
    /// their data. Bytes alone do not count: with a byte now and then it could hold the host for ever.
    fn check_time(&self, what: &str) -> io::Result<()> {
        let now = self.now();
        let seconds = self.queue.outstanding_bytes() / BYTES_PER_SECOND_MIN;
        if now.saturating_sub(self.waits_since) > self.answer_timeout + Duration::from_secs(seconds) {
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
                if let Some((before, useful)) = &self.useful
                    && self.queue.answers() > *before
                {
                    useful.store(true, Ordering::Relaxed);
                }
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

/// How a host connects to a controller again whose connections were lost, and when it gives up.
#[derive(Debug, Clone, Copy)]
pub struct Reconnect {
    /// It gives up after this time without success (Linux: `ctrl_loss_tmo`).
    pub loss_timeout: Duration,
    /// It waits this long before each attempt (Linux: `reconnect_delay`).
    pub delay: Duration,
    /// It gives up after this many associations in a row without an answer to a command of an I/O queue.
    pub useless_max: u32,
    /// It also tries again while nobody listens at the address.
    pub while_refused: bool,
}

impl Reconnect {
    /// True if another attempt may succeed after this error.
    #[must_use]
    pub fn may_pass(&self, e: &HostError) -> bool {
        let refused = matches!(e, HostError::Io(e) if e.kind() == ErrorKind::ConnectionRefused);
        // The controllers of lost connections end when their hosts have been silent for too long.
        let is_full = e.status() == Some(Status::CONNECT_CONTROLLER_BUSY);
        is_full || e.is_lost() && (self.while_refused || !refused)
    }
}

/// A controller over TCP: its admin queue, kept alive by a thread, and its I/O queues.
///
/// The admin queue and the I/O queues that belong to it are an *association*. If one of its connections is lost, all of
/// it is: [`reconnect`](Self::reconnect) begins a new one, under the same names.
#[derive(Debug)]
pub struct TcpHost {
    place: Place,
    /// Ends all connections.
    cutter: Cutter,
    association: Mutex<Association>,
}

/// What it takes to connect.
#[derive(Debug)]
struct Place {
    address: SocketAddr,
    config: HostConfig,
    tls: Option<ClientTls>,
    clock: Arc<dyn Clock>,
    counted: Arc<Counted>,
}

#[derive(Debug)]
struct Association {
    /// How many there were before.
    number: u64,
    controller: Controller,
    /// Ends its connections.
    cutter: Cutter,
    shared: Arc<Shared>,
    keeper: Option<JoinHandle<()>>,
    /// A command of an I/O queue was answered.
    useful: Arc<AtomicBool>,
    /// Associations in a row before this one that were not useful.
    useless: u32,
    /// There is no other one after it.
    is_last: bool,
}

#[derive(Debug)]
struct Shared {
    admin: Mutex<Admin<TcpLink>>,
    stop: Mutex<bool>,
    stopped: Condvar,
}

impl Association {
    fn connect(place: &Place, cutter: Cutter, number: u64) -> Result<Self, HostError> {
        let keep_alive = Duration::from_millis(place.config.keep_alive_ms.into());
        let (config, tls, clock) = (&place.config, place.tls.as_ref(), Arc::clone(&place.clock));
        let mut link = TcpLink::open(place.address, config.queue, tls, Some(&cutter), clock).map_err(HostError::Io)?;
        link.counted = Arc::clone(&place.counted);
        link.association = number;
        let admin = Admin::connect(link, config.clone())?;
        let controller = admin.controller().clone();
        let shared = Arc::new(Shared { admin: Mutex::new(admin), stop: Mutex::new(false), stopped: Condvar::new() });
        let keeper = (!keep_alive.is_zero()).then(|| {
            let (shared, cutter) = (Arc::clone(&shared), cutter.clone());
            thread::Builder::new().name("nvme-keep-alive".into()).spawn(move || keep(&shared, &cutter, keep_alive))
        });
        let keeper = keeper.transpose().map_err(HostError::Io)?;
        let useful = Arc::default();
        Ok(Self { number, controller, cutter, shared, keeper, useful, useless: 0, is_last: false })
    }

    /// Ends the thread that keeps it alive.
    fn stop(&mut self) {
        *self.shared.stop.lock() = true;
        self.shared.stopped.notify_all();
        if let Some(keeper) = self.keeper.take() {
            // If the thread panicked, the controller was not kept alive; nothing more can be done here.
            let _ = keeper.join();
        }
    }
}

impl Drop for Association {
    fn drop(&mut self) {
        self.stop();
    }
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
        let (place, cutter) =
            (Place { address, config, tls, clock, counted: Arc::default() }, cutter.unwrap_or_default());
        let association = Mutex::new(Association::connect(&place, cutter.child(), 0)?);
        Ok(Self { place, cutter, association })
    }

    /// What went over all its connections, those included that were lost.
    #[must_use]
    pub fn counters(&self) -> LinkCounters {
        self.place.counted.read()
    }

    /// What is known of the controller.
    #[must_use]
    pub fn controller(&self) -> Controller {
        self.association.lock().controller.clone()
    }

    /// How often it has connected again.
    #[must_use]
    pub fn reconnects(&self) -> u64 {
        self.association.lock().number
    }

    /// Does something with the admin queue.
    pub fn admin<T>(&self, body: impl FnOnce(&mut Admin<TcpLink>) -> T) -> T {
        let shared = Arc::clone(&self.association.lock().shared);
        body(&mut shared.admin.lock())
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
        let association = self.association.lock();
        let (number, controller) = (association.number, association.controller.clone());
        let (cutter, useful) = (association.cutter.clone(), Arc::clone(&association.useful));
        drop(association);
        let mut config = controller.queue_config();
        change(&mut config);
        let Place { address, tls, clock, .. } = &self.place;
        let link = TcpLink::open(*address, config, tls.as_ref(), Some(&cutter), Arc::clone(clock));
        let mut link = link.map_err(HostError::Io)?;
        link.counted = Arc::clone(&self.place.counted);
        link.association = number;
        let mut io = Io::connect(link, &controller, queue)?;
        let link = io.link();
        link.useful = Some((link.queue.answers(), useful));
        Ok(io)
    }

    /// Connects to the controller again, after the loss of a connection of association `lost`
    /// ([`TcpLink::association`]): its other connections are cut, and a new one begins, with the same names, keys and
    /// secrets. `prepare` does what must be done with the admin queue before the I/O queues are opened again: they are
    /// the caller's, as are commands that were not answered. Returns the number of the new association. If another
    /// thread has begun one meanwhile, this does nothing else.
    ///
    /// # Errors
    /// The reason of the last attempt. The host is then of no more use.
    pub fn reconnect(
        &self,
        lost: u64,
        terms: &Reconnect,
        prepare: impl Fn(&mut Admin<TcpLink>) -> Result<(), HostError>,
    ) -> Result<u64, HostError> {
        let given_up = || HostError::Io(io::Error::new(ErrorKind::NotConnected, "the controller was given up before"));
        let mut association = self.association.lock();
        if association.is_last {
            return Err(given_up());
        }
        if association.number != lost {
            return Ok(association.number);
        }
        association.is_last = true; // unless it succeeds
        association.cutter.cut();
        association.stop();
        let useless = if association.useful.load(Ordering::Relaxed) { 0 } else { association.useless + 1 };
        if useless >= terms.useless_max {
            return Err(HostError::Answer("its connections end before it answers a command, time and again"));
        }
        let until = self.now() + terms.loss_timeout;
        loop {
            self.wait(terms.delay.min(until.saturating_sub(self.now())))?;
            let cutter = self.cutter.child();
            cutter.set_limit(Some(until));
            let next = Association::connect(&self.place, cutter.clone(), lost + 1).and_then(|next| {
                prepare(&mut next.shared.admin.lock())?;
                Ok(next)
            });
            match next {
                Ok(mut next) => {
                    cutter.set_limit(None);
                    next.useless = useless;
                    *association = next;
                    return Ok(lost + 1);
                }
                Err(e) if !terms.may_pass(&e) || self.now() >= until || self.cutter.is_cut() => return Err(e),
                Err(_) => {}
            }
        }
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(self.place.clock.monotonic_nanos())
    }

    /// Waits before an attempt.
    fn wait(&self, delay: Duration) -> Result<(), HostError> {
        let until = self.now() + delay;
        loop {
            if self.cutter.is_cut() {
                let why = "the connection is no longer wanted";
                return Err(HostError::Io(io::Error::new(ErrorKind::ConnectionAborted, why)));
            }
            match until.saturating_sub(self.now()) {
                left if left.is_zero() => return Ok(()),
                left => self.place.clock.sleep(left.min(WAIT_POLL)),
            }
        }
    }
}

/// Sends Keep Alive twice per timeout, until it is stopped or gets no answer within the timeout: then it cuts the
/// controller's connections, which may be half open. The next call on each reports the loss.
fn keep(shared: &Shared, cutter: &Cutter, keep_alive: Duration) {
    let mut stop = shared.stop.lock();
    while !*stop {
        if shared.stopped.wait_for(&mut stop, keep_alive / 2).timed_out() {
            drop(stop);
            let mut admin = shared.admin.lock();
            admin.link().answer_timeout = keep_alive.clamp(KEEP_ALIVE_MIN, ANSWER_TIMEOUT);
            let kept = admin.keep_alive();
            admin.link().answer_timeout = ANSWER_TIMEOUT;
            drop(admin);
            if kept.is_err() {
                return cutter.cut();
            }
            stop = shared.stop.lock();
        }
    }
}
