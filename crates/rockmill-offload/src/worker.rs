//! The worker's side: it listens for stores, and does the jobs that come on each connection one after another. A store
//! that wants several done at once has several connections.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;
use rockmill::internals::{JobRegistry, JobResult, JobSpec, RemoteUsage, WorkerDevice, WorkerJob, WorkerMachine};
use rockmill::{EngineParts, KernelDriver, MergeEngine};
use rockmill_io::Clock;
use rockmill_nvme::auth::{Random as _, SystemRandom};
use rockmill_nvme::kernel::{self, KernelInitiator, Owner};
use rockmill_nvme::tcp::{ClientTls, ServerTls};

use crate::channel::{Channel, LongBodies};
use crate::device::{DeviceEnd, ExternalPlace, KernelDevice, NvmeDevice, Place};
use crate::external::ExternalInputs;
use crate::message::Message;
use crate::metrics::WorkerMetrics;
use crate::pool::{Pool, Ticket};
use crate::{JOB_SUBSYSTEMS, NOT_PRIVATE, PoolConfig, Secrets, bad_configuration, check_name};

/// How often a worker looks whether it is to end, and what its stores say.
const POLL: Duration = Duration::from_millis(20);
/// How often it looks whether a job is done, in the time that the job has taken: a short one is not to wait for long.
const LOOKS: u32 = 16;
/// Connections beyond those that have a job, for stores that come or wait for their next one.
const CONNECTIONS_SPARE: usize = 64;
/// As many of these may wait for long; with more, those that have had a job are closed when it is done.
const CONNECTIONS_KEPT: usize = 32;
/// How long a connection may be without a job.
pub(crate) const KEEP: Duration = Duration::from_secs(60);
/// How often a store is told meanwhile that the worker is there: so what is between them does not forget the
/// connection, and the worker learns of stores that are gone.
const IDLE_EVERY: Duration = Duration::from_secs(10);
/// The name that a worker has where it is given none.
const NAME: &str = "nqn.2026-11.rockmill:worker";

/// Who connects a worker to the devices of its jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceKind {
    /// This process, by NVMe/TCP in user space.
    #[default]
    User,
    /// The Linux kernel, which makes a block device for each job: for the engine `kernel`. Needs root, and has no TLS
    /// and no external targets. A name is for one worker on a machine then.
    Kernel,
}

/// What a worker does, and for whom.
#[derive(Debug, Clone)]
pub struct WorkerConfig {
    /// Its name, which stores know its secret by.
    pub name: String,
    /// Its secret and those of the stores. With secrets, stores without are refused; the same for keys of TLS.
    pub secrets: Option<Secrets>,
    /// Listens for other machines without secrets.
    pub allow_unauthenticated: bool,
    /// Takes jobs of this pool, too. It must listen at an address that the pool's stores can connect to.
    pub pool: Option<PoolConfig>,
    /// Jobs at a time, of all stores; more are refused.
    pub jobs_max: usize,
    /// Threads of one job, at most.
    pub threads: usize,
    /// How it reaches the devices of its jobs.
    pub device: DeviceKind,
    /// How jobs are merged; `Auto` is `Uring`, and `Kernel` needs devices of the kernel (docs/offload.md).
    pub engine: MergeEngine,
    /// How the engine `Kernel` runs its program.
    pub kernel_driver: KernelDriver,
    /// The code that jobs may name, besides RocksDB's own.
    pub registry: JobRegistry,
    /// Is told which stores were refused, and why, one line for each, at most one in a second: they have no TLS or
    /// another key, no secret or a wrong one, or another version. And how it is connected to its pool, what an earlier
    /// worker left in the kernel, and why another engine merged than was asked for.
    pub tell: fn(&str),
}

impl Default for WorkerConfig {
    fn default() -> Self {
        Self {
            name: NAME.to_owned(),
            secrets: None,
            allow_unauthenticated: false,
            pool: None,
            jobs_max: 1,
            threads: 1,
            device: DeviceKind::User,
            engine: MergeEngine::Auto,
            kernel_driver: KernelDriver::default(),
            registry: JobRegistry::default(),
            tell: |_| {},
        }
    }
}

/// What a worker did so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WorkerCounters {
    /// Jobs whose tables were written.
    pub done: u64,
    /// Jobs that were begun and ended otherwise.
    pub failed: u64,
    /// Jobs that were refused, and connections that did not come to a job.
    pub refused: u64,
    /// Connections on which both sides came to know each other.
    pub connections: u64,
    /// Jobs of a pool that it pulled, and that their stores let it have.
    pub pulled: u64,
    /// Jobs that run now, and those that room is set aside for.
    pub running: u64,
    /// Bytes of the inputs of jobs that were done.
    pub input_bytes: u64,
    /// Bytes of the tables that they wrote.
    pub output_bytes: u64,
    /// Wall time of jobs that were done, in microseconds.
    pub job_micros: u64,
    /// CPU time of their merges, in microseconds.
    pub cpu_micros: u64,
    /// Times that jobs waited for an answer to what they sent to their devices, those included that failed later.
    pub round_trips: u64,
    /// Bytes sent to devices.
    pub sent_bytes: u64,
    /// Bytes received from devices.
    pub received_bytes: u64,
    /// How often a device was connected to again, after a connection was lost.
    pub reconnects: u64,
}

/// The counters, being counted.
#[derive(Debug, Default)]
struct Counted {
    done: AtomicU64,
    failed: AtomicU64,
    refused: AtomicU64,
    pulled: AtomicU64,
    connections: AtomicU64,
    input_bytes: AtomicU64,
    output_bytes: AtomicU64,
    job_micros: AtomicU64,
    cpu_micros: AtomicU64,
    round_trips: AtomicU64,
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
    reconnects: AtomicU64,
}

fn count(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

/// A worker. It stops when it is dropped, and its jobs end early.
#[derive(Debug)]
pub struct Worker {
    address: SocketAddr,
    shared: Arc<Shared>,
    /// Gone once it is stopped.
    pool: Option<Pool>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    config: WorkerConfig,
    tls: Option<ServerTls>,
    machine: WorkerMachine,
    /// Makes devices, where this process does not.
    kernel: Option<KernelInitiator>,
    clock: Arc<dyn Clock>,
    host_id: [u8; 16],
    /// No job is begun any more.
    drains: AtomicBool,
    /// Those that run end early.
    stops: AtomicBool,
    running: AtomicUsize,
    /// Jobs of a pool that room is set aside for, counted in `running`. True: the store has come for it.
    set_aside: Mutex<HashMap<Ticket, bool>>,
    /// Connections of stores that there are.
    open: AtomicUsize,
    /// As many specs come at a time as there are jobs at a time.
    long_bodies: Arc<LongBodies>,
    counted: Counted,
    /// When somebody was told of a store that was refused.
    told: Mutex<Option<Duration>>,
    /// Why another engine merged, as it was told last.
    told_engine: Mutex<Option<String>>,
}

impl Worker {
    /// Begins to do jobs for those who connect to `listener`.
    ///
    /// # Errors
    /// A listener that is open to other machines without secrets, keys for TLS or a pool where this was built without
    /// them, a pool whose configuration is wrong, an engine or a device that it cannot have here, no random bytes, or
    /// no thread.
    pub fn start(listener: TcpListener, config: WorkerConfig, clock: Arc<dyn Clock>) -> io::Result<Self> {
        let address = listener.local_addr()?;
        if config.secrets.is_none() && !config.allow_unauthenticated && !address.ip().is_loopback() {
            return Err(bad_configuration(NOT_PRIVATE));
        }
        check_name(&config.name).map_err(bad_configuration)?;
        if config.pool.is_some() && address.ip().is_unspecified() {
            return Err(bad_configuration(
                "with a pool, a worker listens at one address, which it tells the pool's stores: not at all of them",
            ));
        }
        let pool = config.pool.as_ref().map(|pool| Pool::start(pool, &config.name, config.tell)).transpose()?;
        let tls = config.secrets.as_ref().map_or(Ok(None), |secrets| secrets.server(&config.name))?;
        listener.set_nonblocking(true)?;
        let mut host_id = [0; 16];
        SystemRandom.fill(&mut host_id)?;
        let mut machine = WorkerMachine::new(config.registry.clone(), config.threads, Arc::clone(&clock))
            .with_kernel_driver(config.kernel_driver);
        let mut kernel = None;
        if config.device == DeviceKind::Kernel {
            machine = machine.with_kernel_devices();
            kernel = Some(kernel_initiator(&config, tls.is_some())?);
            host_id = Owner::this()?.to_id(&config.name);
        }
        let machine = machine.with_engine(config.engine).map_err(|e| bad_configuration(e.message()))?;
        let shared = Arc::new(Shared {
            long_bodies: LongBodies::new(config.jobs_max.max(1)),
            machine,
            kernel,
            config,
            tls,
            clock,
            host_id,
            drains: AtomicBool::new(false),
            stops: AtomicBool::new(false),
            running: AtomicUsize::new(0),
            set_aside: Mutex::default(),
            open: AtomicUsize::new(0),
            counted: Counted::default(),
            told: Mutex::new(None),
            told_engine: Mutex::new(None),
        });
        let me = Arc::clone(&shared);
        let thread = thread::Builder::new().name("worker-accept".into()).spawn(move || me.accept(&listener))?;
        if let Some(pool) = &pool {
            pool.work(&shared, address);
        }
        Ok(Self { address, shared, pool, thread: Some(thread) })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it did so far.
    #[must_use]
    pub fn counters(&self) -> WorkerCounters {
        self.shared.counters()
    }

    /// By which engines its jobs were merged so far.
    #[must_use]
    pub fn engine_parts(&self) -> EngineParts {
        self.shared.engine_parts()
    }

    /// Calls of the merge program in rings that read and write (engine `kernel` with the driver `loop`), and how many
    /// reads, writes and syncs these calls submitted.
    #[must_use]
    pub fn program_calls(&self) -> (u64, u64) {
        self.shared.program_calls()
    }

    /// System calls that entered rings of io_uring, with devices of the kernel.
    #[must_use]
    pub fn ring_enters(&self) -> u64 {
        self.shared.ring_enters()
    }

    /// The counters for Prometheus. What it counts stays when the worker is gone.
    #[must_use]
    pub fn metrics(&self) -> WorkerMetrics {
        WorkerMetrics::new(Arc::clone(&self.shared))
    }

    /// Refuses new jobs from here on. Those that run go on.
    pub fn drain(&self) {
        self.shared.drains.store(true, Ordering::Release);
    }

    /// Ends jobs early, and returns when none runs any more.
    pub fn stop(&mut self) {
        self.drain();
        self.shared.machine.stop();
        self.shared.stops.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // A panic of a connection's thread ended that connection.
            let _ = thread.join();
        }
        self.pool = None;
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The kernel's initiator, if it can be used as configured. What an earlier process left is removed.
fn kernel_initiator(config: &WorkerConfig, tls: bool) -> io::Result<KernelInitiator> {
    if tls {
        return Err(bad_configuration(
            "devices of the kernel are without TLS here (it would need tlshd): give secrets without keys of TLS",
        ));
    }
    kernel::check_name(&config.name)?;
    let initiator = KernelInitiator::default();
    initiator.probe(config.secrets.is_some())?;
    for name in initiator.remove_leftovers(&config.name, JOB_SUBSYSTEMS)? {
        (config.tell)(&format!("removed {name}, which a worker that is gone has left"));
    }
    Ok(initiator)
}

/// A job's device, however it is reached.
enum Connected {
    User(Arc<NvmeDevice>),
    Kernel(Arc<KernelDevice>),
}

/// One of the jobs that run.
struct Running<'a> {
    worker: &'a Shared,
    /// Of a job of a pool.
    ticket: Option<Ticket>,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.worker.set_aside.lock().remove(&ticket);
        }
        self.worker.running.fetch_sub(1, Ordering::AcqRel);
    }
}

/// What a store asks for.
struct Offer {
    epoch: u64,
    ticket: Option<Ticket>,
    subsystem: String,
    port: u16,
    silence: Duration,
    spec: Vec<u8>,
}

impl Shared {
    fn stops(&self) -> bool {
        self.stops.load(Ordering::Acquire)
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(self.clock.monotonic_nanos())
    }

    /// What was done so far.
    pub fn counters(&self) -> WorkerCounters {
        let read = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let c = &self.counted;
        WorkerCounters {
            done: read(&c.done),
            failed: read(&c.failed),
            refused: read(&c.refused),
            pulled: read(&c.pulled),
            connections: read(&c.connections),
            running: self.running.load(Ordering::Relaxed) as u64,
            input_bytes: read(&c.input_bytes),
            output_bytes: read(&c.output_bytes),
            job_micros: read(&c.job_micros),
            cpu_micros: read(&c.cpu_micros),
            round_trips: read(&c.round_trips),
            sent_bytes: read(&c.sent_bytes),
            received_bytes: read(&c.received_bytes),
            reconnects: read(&c.reconnects),
        }
    }

    /// What the engines did so far, and the merge program's calls.
    pub fn engine_parts(&self) -> EngineParts {
        self.machine.engine_parts()
    }

    /// As [`Worker::ring_enters`].
    pub fn ring_enters(&self) -> u64 {
        self.machine.ring_enters()
    }

    /// As [`Worker::program_calls`].
    pub fn program_calls(&self) -> (u64, u64) {
        self.machine.program_calls()
    }

    /// Its name, how many jobs it does at a time, and whether it begins no more.
    pub fn state(&self) -> (&str, usize, bool) {
        (&self.config.name, self.config.jobs_max, self.drains.load(Ordering::Relaxed))
    }

    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        let mut threads: Vec<JoinHandle<()>> = Vec::new();
        let most = self.config.jobs_max.saturating_add(CONNECTIONS_SPARE);
        while !self.stops() {
            threads.retain(|thread| !thread.is_finished());
            self.open.store(threads.len(), Ordering::Relaxed);
            match listener.accept() {
                Ok((stream, peer)) if threads.len() < most => {
                    let me = Arc::clone(self);
                    let serve = move || {
                        if let Err(e) = me.serve(stream) {
                            count(&me.counted.refused, 1);
                            me.tell(peer, &e);
                        }
                    };
                    threads.extend(thread::Builder::new().name("worker-job".into()).spawn(serve));
                }
                Ok(_) => {}
                // Nobody came, or there are too few descriptors.
                Err(_) => {
                    self.machine.trim();
                    self.clock.sleep(POLL);
                }
            }
        }
        for thread in threads {
            let _ = thread.join();
        }
    }

    /// Tells of a store that was refused. Others have seen themselves why their connection ended.
    fn tell(&self, peer: SocketAddr, why: &io::Error) {
        if !matches!(why.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported) {
            return;
        }
        let now = self.now();
        let mut told = self.told.lock();
        if told.is_none_or(|told| now.saturating_sub(told) >= Duration::from_secs(1)) {
            *told = Some(now);
            drop(told);
            (self.config.tell)(&format!("refused {peer}: {why}"));
        }
    }

    /// Counts one more job, if there is room for it.
    fn count_in(&self) -> bool {
        let more = |n: usize| (n < self.config.jobs_max).then_some(n + 1);
        let drains = self.drains.load(Ordering::Acquire);
        !drains && self.running.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    /// Room for one more job: what was set aside for this one, where it has a ticket.
    fn begin(&self, ticket: Option<Ticket>) -> Result<Running<'_>, &'static str> {
        let Some(ticket) = ticket else {
            let full = "it has as many jobs as it does at a time, or is about to end";
            return self.count_in().then(|| Running { worker: self, ticket: None }).ok_or(full);
        };
        match self.set_aside.lock().get_mut(&ticket) {
            Some(has_come) if !*has_come => *has_come = true,
            _ => return Err("it has set no room aside for this job of the pool, or not for so long"),
        }
        Ok(Running { worker: self, ticket: Some(ticket) })
    }

    /// True if a job would be begun now.
    #[cfg_attr(not(feature = "nats"), expect(dead_code, reason = "there is no pool"))]
    pub fn has_room(&self) -> bool {
        !self.drains.load(Ordering::Acquire) && self.running.load(Ordering::Acquire) < self.config.jobs_max
    }

    /// Sets room aside for a job of a pool. False: there is none.
    #[cfg_attr(not(feature = "nats"), expect(dead_code, reason = "there is no pool"))]
    pub fn set_aside(&self, ticket: Ticket) -> bool {
        let mut tickets = self.set_aside.lock();
        // One that is delivered twice is one job.
        let is_new = !tickets.contains_key(&ticket) && self.count_in();
        is_new && tickets.insert(ticket, false).is_none()
    }

    /// True from then on until the job is over or the room is given back.
    #[cfg_attr(not(feature = "nats"), expect(dead_code, reason = "there is no pool"))]
    pub fn is_set_aside(&self, ticket: Ticket) -> bool {
        self.set_aside.lock().contains_key(&ticket)
    }

    /// True until the store has come for it.
    #[cfg_attr(not(feature = "nats"), expect(dead_code, reason = "there is no pool"))]
    pub fn waits_for(&self, ticket: Ticket) -> bool {
        self.set_aside.lock().get(&ticket) == Some(&false)
    }

    /// Takes the room of a job back whose store has not come.
    #[cfg_attr(not(feature = "nats"), expect(dead_code, reason = "there is no pool"))]
    pub fn give_back(&self, ticket: Ticket) {
        let mut tickets = self.set_aside.lock();
        if tickets.get(&ticket) == Some(&false) {
            tickets.remove(&ticket);
            self.running.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Counts a job of a pool that is this worker's.
    #[cfg_attr(not(feature = "nats"), expect(dead_code, reason = "there is no pool"))]
    pub fn pulled(&self) {
        count(&self.counted.pulled, 1);
    }

    fn serve(&self, stream: TcpStream) -> io::Result<()> {
        let peer = stream.peer_addr()?;
        let stops = || self.stops();
        let mut channel = Channel::accept(stream, self.tls.as_ref(), Arc::clone(&self.clock), &stops)?;
        channel.share(&self.long_bodies);
        let store = channel.greet_store(&self.config.name, self.config.secrets.as_ref(), &stops)?;
        count(&self.counted.connections, 1);
        let first = channel.next(&stops)?;
        let mut goes_on = self.job(&mut channel, peer, &store, first)?;
        // From here on its end is nobody's fault.
        while goes_on && let Ok(Some(offer)) = self.next_offer(&mut channel) {
            goes_on = self.job(&mut channel, peer, &store, offer).unwrap_or(false);
        }
        Ok(())
    }

    /// The next offer on a connection that has had a job; `None` where it is not kept.
    fn next_offer(&self, channel: &mut Channel) -> io::Result<Option<Message>> {
        let (since, stops) = (self.now(), || self.stops());
        let mut told = since;
        loop {
            match channel.receive(POLL)? {
                Some(Message::Ping { number }) => channel.send(&Message::Pong { number }, &stops)?,
                // Of a job that has ended meanwhile.
                Some(Message::Cancel { .. }) => {}
                Some(offer) => return Ok(Some(offer)),
                None => {}
            }
            let now = self.now();
            let crowded = self.open.load(Ordering::Relaxed) > self.config.jobs_max.saturating_add(CONNECTIONS_KEPT);
            let ends = self.stops() || self.drains.load(Ordering::Acquire) || crowded;
            if ends || now.saturating_sub(since) >= KEEP {
                return Ok(None);
            }
            if now.saturating_sub(told) >= IDLE_EVERY {
                told = now;
                channel.send(&Message::Idle, &stops)?;
            }
        }
    }

    /// Does the job that a store offers, or says why not. True if the connection can have another one.
    fn job(&self, channel: &mut Channel, peer: SocketAddr, store: &str, offer: Message) -> io::Result<bool> {
        let Message::Offer { epoch, ticket, subsystem, port, silence_ms, external, spec } = offer else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let stops = || self.stops();
        let silence = Duration::from_millis(silence_ms.into());
        let offer = Offer { epoch, ticket, subsystem, port, silence, spec };
        let refuse = |channel: &mut Channel, reason: String| {
            count(&self.counted.refused, 1);
            Ok(channel.send(&Message::Refused { epoch, reason }, &stops).is_ok()) // nothing else depends on it
        };
        let running = match self.begin(offer.ticket) {
            Ok(running) => running,
            Err(why) => return refuse(channel, why.to_owned()),
        };
        let spec = match self.machine.accept(&offer.spec) {
            Ok(spec) => spec,
            Err(e) => return refuse(channel, e.to_string()),
        };
        channel.send(&Message::Accepted { epoch }, &stops)?;
        let mut address = peer; // whole, as a link-local one has an interface
        address.set_port(offer.port);
        let key = self.config.secrets.as_ref().and_then(|secrets| secrets.tls_key(store));
        let tls = key.map(|key| ClientTls::new(&key.psk(&self.config.name, &offer.subsystem))).transpose()?;
        let place = Place {
            address,
            tls,
            subsystem: offer.subsystem.clone(),
            name: self.config.name.clone(),
            host_id: self.host_id,
            auth: self.config.secrets.as_ref().and_then(|secrets| secrets.towards(store)),
        };
        let external = external.and_then(|inputs| self.external(inputs));
        let began = self.now();
        let done = self.work(channel, &offer, &spec, (place, external));
        let answer = done.and_then(|(result, usage)| {
            let made = result.outcome.as_ref().ok().map(|made| made.stats);
            let result = result.encode().map_err(io::Error::other)?;
            Ok((made, Message::Done { epoch, usage, result }))
        });
        let (made, answer) = answer.unwrap_or_else(|e| (None, Message::Refused { epoch, reason: e.to_string() }));
        let c = &self.counted;
        count(if made.is_some() { &c.done } else { &c.failed }, 1);
        if let Some(stats) = made {
            count(&c.input_bytes, stats.input_bytes);
            count(&c.output_bytes, stats.output_bytes);
            count(&c.cpu_micros, stats.cpu_micros);
            let micros = self.now().saturating_sub(began).as_micros();
            count(&c.job_micros, u64::try_from(micros).unwrap_or(u64::MAX));
        }
        // The store may send the next one as soon as it has the result.
        drop(running);
        // Nobody listens where the connection is what failed.
        Ok(channel.send(&answer, &stops).is_ok())
    }

    /// Where a job's inputs may be read besides; `None` where this worker has secrets, and none of that target, and
    /// where the kernel connects.
    fn external(&self, inputs: ExternalInputs) -> Option<ExternalPlace> {
        if self.kernel.is_some() {
            let what = "is not used with devices of the kernel";
            (self.config.tell)(&format!("external target {} at {}, which {what}", inputs.subsystem, inputs.address));
            return None;
        }
        let auth = self.config.secrets.as_ref().map(|secrets| secrets.towards(&inputs.subsystem));
        if matches!(auth, Some(None)) {
            let what = "is not used: this worker has secrets, and none of its subsystem's name";
            (self.config.tell)(&format!("external target {} at {}, which {what}", inputs.subsystem, inputs.address));
            return None;
        }
        let place = Place {
            address: inputs.address,
            tls: None,
            subsystem: inputs.subsystem.clone(),
            name: self.config.name.clone(),
            host_id: self.host_id,
            auth: auth.flatten(),
        };
        Some(ExternalPlace { place, inputs })
    }

    /// Does a job, and tells its store how far it is. When this returns, the connections to its device are closed.
    fn work(
        &self,
        channel: &mut Channel,
        offer: &Offer,
        spec: &JobSpec,
        places: (Place, Option<ExternalPlace>),
    ) -> io::Result<(JobResult, RemoteUsage)> {
        let job = Arc::new(WorkerJob::default());
        let end = DeviceEnd::default();
        let (ends, ended) = mpsc::channel();
        thread::scope(|scope| {
            let (device_end, handle) = (end.clone(), Arc::clone(&job));
            let merging = thread::Builder::new().name("worker-merge".into()).spawn_scoped(scope, move || {
                let done = self.merge((spec, offer.silence), places, &device_end, &handle);
                let _ = ends.send(done); // it is waited for below
            })?;
            let stops = || self.stops();
            let began = self.now();
            let mut told = began;
            let lost = loop {
                match ended.try_recv() {
                    Ok(done) => return done,
                    Err(mpsc::TryRecvError::Empty) => {}
                    Err(mpsc::TryRecvError::Disconnected) => break io::Error::other("the job was lost"),
                }
                let wait = (self.now().saturating_sub(began) / LOOKS).clamp(Duration::from_millis(1), POLL);
                match channel.receive(wait) {
                    Ok(None) if self.stops() => break io::Error::other("the worker ends"),
                    Ok(None) => {}
                    Ok(Some(_)) => break io::Error::other("the store does not want the job any more"),
                    Err(e) => break e,
                }
                if self.now().saturating_sub(told) >= offer.silence / 4 {
                    told = self.now();
                    let progress = Message::Progress { epoch: offer.epoch, bytes: job.bytes() };
                    if let Err(e) = channel.send(&progress, &stops) {
                        break e;
                    }
                }
            };
            job.cancel();
            end.cut(); // also while it is being connected to
            let _ = merging.join(); // nothing of it is used, and a panic of it ended the job, no more
            Err(lost)
        })
    }

    /// Connects to a job's device.
    fn connect(
        &self,
        (place, external): (Place, Option<ExternalPlace>),
        silence: Duration,
        end: &DeviceEnd,
    ) -> io::Result<Connected> {
        if let Some(kernel) = &self.kernel {
            let device = KernelDevice::connect(kernel, &place, silence, end, &*self.clock)?;
            return Ok(Connected::Kernel(Arc::new(device)));
        }
        let mut device = NvmeDevice::connect_cuttable(place, end.cutter.clone(), Arc::clone(&self.clock))?;
        if let Some(external) = external {
            let (address, subsystem) = (external.place.address, external.place.subsystem.clone());
            if let Err(e) = device.connect_external(external, Arc::clone(&self.clock)) {
                // The store has all of it, too.
                (self.config.tell)(&format!("external target {subsystem} at {address}, which is not used: {e}"));
            }
        }
        Ok(Connected::User(Arc::new(device)))
    }

    /// Connects to a job's device, and merges. `silence`: how long the store waits for a worker that says nothing.
    fn merge(
        &self,
        (spec, silence): (&JobSpec, Duration),
        places: (Place, Option<ExternalPlace>),
        end: &DeviceEnd,
        job: &Arc<WorkerJob>,
    ) -> io::Result<(JobResult, RemoteUsage)> {
        let (result, usage) = match self.connect(places, silence, end)? {
            Connected::User(device) => {
                let result = self.machine.run(spec, Arc::clone(&device) as Arc<dyn WorkerDevice>, job);
                count(&self.counted.reconnects, device.reconnects());
                let went = device.counters();
                let usage = RemoteUsage {
                    round_trips: went.round_trips,
                    sent_bytes: went.sent_bytes,
                    received_bytes: went.received_bytes,
                    ..RemoteUsage::default()
                };
                (result, usage)
            }
            Connected::Kernel(device) => {
                let result = self.machine.run(spec, Arc::clone(&device) as Arc<dyn WorkerDevice>, job);
                let went = device.counters();
                // What is left of it is the kernel's own.
                device.delete().unwrap_or_else(|e| (self.config.tell)(&format!("a job's device: {e}")));
                let usage = RemoteUsage {
                    round_trips: went.commands,
                    sent_bytes: went.written_bytes,
                    received_bytes: went.read_bytes,
                    ..RemoteUsage::default()
                };
                (result, usage)
            }
        };
        self.tell_engine();
        let c = &self.counted;
        count(&c.round_trips, usage.round_trips);
        count(&c.sent_bytes, usage.sent_bytes);
        count(&c.received_bytes, usage.received_bytes);
        let cpu_micros = result.outcome.as_ref().map_or(0, |made| made.stats.cpu_micros);
        Ok((result, RemoteUsage { cpu_micros, ..usage }))
    }

    /// Tells why another engine merges than was asked for, once for each reason.
    fn tell_engine(&self) {
        let reason = self.machine.handed_over();
        let mut told = self.told_engine.lock();
        if reason.is_some() && *told != reason {
            let what = reason.clone().unwrap_or_default();
            *told = reason;
            drop(told);
            (self.config.tell)(&format!("another engine merges than {}: {what}", self.config.engine));
        }
    }
}
