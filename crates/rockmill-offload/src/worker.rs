//! The worker's side: it listens for stores, and does one job for each connection.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rockmill::internals::{JobRegistry, JobResult, JobSpec, WorkerDevice, WorkerJob, WorkerMachine};
use rockmill_io::Clock;
use rockmill_nvme::auth::{Random as _, SystemRandom};

use crate::channel::Channel;
use crate::device::{NvmeDevice, Place};
use crate::message::Message;
use crate::{NOT_PRIVATE, Secrets};

/// How often a worker looks whether it is to end, and what its stores say.
const POLL: Duration = Duration::from_millis(20);
/// Connections beyond those that have a job.
const CONNECTIONS_SPARE: usize = 16;
/// The name that a worker has where it is given none.
const NAME: &str = "nqn.2026-11.rockmill:worker";

/// What a worker does, and for whom.
#[derive(Debug, Clone)]
pub struct WorkerConfig {
    /// Its name, which stores know its secret by.
    pub name: String,
    /// Its secret and those of the stores. With secrets, stores without are refused.
    pub secrets: Option<Secrets>,
    /// Listens for other machines without secrets.
    pub allow_unauthenticated: bool,
    /// Jobs at a time, of all stores; more are refused.
    pub jobs_max: usize,
    /// Threads of one job, at most.
    pub threads: usize,
    /// The code that jobs may name, besides RocksDB's own.
    pub registry: JobRegistry,
}

impl Default for WorkerConfig {
    fn default() -> Self {
        Self {
            name: NAME.to_owned(),
            secrets: None,
            allow_unauthenticated: false,
            jobs_max: 1,
            threads: 1,
            registry: JobRegistry::default(),
        }
    }
}

/// What a worker did so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WorkerCounters {
    /// Jobs whose result was sent.
    pub done: u64,
    /// Jobs that were begun and ended otherwise.
    pub failed: u64,
    /// Jobs that were refused, and connections that did not come to a job.
    pub refused: u64,
    /// Jobs that run now.
    pub running: u64,
}

/// A worker. It stops when it is dropped, and its jobs end early.
#[derive(Debug)]
pub struct Worker {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    config: WorkerConfig,
    machine: WorkerMachine,
    clock: Arc<dyn Clock>,
    host_id: [u8; 16],
    /// No job is begun any more.
    drains: AtomicBool,
    /// Those that run end early.
    stops: AtomicBool,
    running: AtomicUsize,
    done: AtomicU64,
    failed: AtomicU64,
    refused: AtomicU64,
}

impl Worker {
    /// Begins to do jobs for those who connect to `listener`.
    ///
    /// # Errors
    /// A listener that is open to other machines without secrets, no random bytes, or no thread.
    pub fn start(listener: TcpListener, config: WorkerConfig, clock: Arc<dyn Clock>) -> io::Result<Self> {
        let address = listener.local_addr()?;
        if config.secrets.is_none() && !config.allow_unauthenticated && !address.ip().is_loopback() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, NOT_PRIVATE));
        }
        listener.set_nonblocking(true)?;
        let mut host_id = [0; 16];
        SystemRandom.fill(&mut host_id)?;
        let shared = Arc::new(Shared {
            machine: WorkerMachine::new(config.registry.clone(), config.threads, Arc::clone(&clock)),
            config,
            clock,
            host_id,
            drains: AtomicBool::new(false),
            stops: AtomicBool::new(false),
            running: AtomicUsize::new(0),
            done: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        });
        let me = Arc::clone(&shared);
        let thread = thread::Builder::new().name("worker-accept".into()).spawn(move || me.accept(&listener))?;
        Ok(Self { address, shared, thread: Some(thread) })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it did so far.
    #[must_use]
    pub fn counters(&self) -> WorkerCounters {
        let Shared { running, done, failed, refused, .. } = &*self.shared;
        let [done, failed, refused] = [done, failed, refused].map(|n| n.load(Ordering::Relaxed));
        WorkerCounters { done, failed, refused, running: running.load(Ordering::Relaxed) as u64 }
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
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop();
    }
}

/// One of the jobs that run.
struct Running<'a>(&'a Shared);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::AcqRel);
    }
}

/// What a store asks for.
struct Offer {
    epoch: u64,
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

    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        let mut threads: Vec<JoinHandle<()>> = Vec::new();
        let most = self.config.jobs_max.saturating_add(CONNECTIONS_SPARE);
        while !self.stops() {
            threads.retain(|thread| !thread.is_finished());
            match listener.accept() {
                Ok((stream, _)) if threads.len() < most => {
                    let me = Arc::clone(self);
                    let serve = move || {
                        if me.serve(stream).is_err() {
                            me.refused.fetch_add(1, Ordering::Relaxed); // the store sees that itself
                        }
                    };
                    threads.extend(thread::Builder::new().name("worker-job".into()).spawn(serve));
                }
                Ok(_) => {}
                // Nobody came, or there are too few descriptors.
                Err(_) => self.clock.sleep(POLL),
            }
        }
        for thread in threads {
            let _ = thread.join();
        }
    }

    /// Room for one more job.
    fn begin(&self) -> Option<Running<'_>> {
        if self.drains.load(Ordering::Acquire) {
            return None;
        }
        let more = |n: usize| (n < self.config.jobs_max).then_some(n + 1);
        self.running.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok().map(|_| Running(self))
    }

    fn serve(&self, stream: TcpStream) -> io::Result<()> {
        let peer = stream.peer_addr()?.ip();
        let mut channel = Channel::new(stream, Arc::clone(&self.clock))?;
        let stops = || self.stops();
        let store = channel.greet_store(&self.config.name, self.config.secrets.as_ref(), &stops)?;
        let Message::Offer { epoch, subsystem, port, silence_ms, spec } = channel.next(&stops)? else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let silence = Duration::from_millis(silence_ms.into());
        let offer = Offer { epoch, subsystem, port, silence, spec };
        let refuse = |channel: &mut Channel, reason: String| {
            self.refused.fetch_add(1, Ordering::Relaxed);
            channel.send(&Message::Refused { epoch, reason })
        };
        let Some(running) = self.begin() else {
            return refuse(&mut channel, "it has as many jobs as it does at a time, or is about to end".to_owned());
        };
        let spec = match self.machine.accept(&offer.spec) {
            Ok(spec) => spec,
            Err(e) => return refuse(&mut channel, e.to_string()),
        };
        channel.send(&Message::Accepted { epoch })?;
        let place = Place {
            address: SocketAddr::new(peer, offer.port),
            subsystem: offer.subsystem.clone(),
            name: self.config.name.clone(),
            host_id: self.host_id,
            auth: self.config.secrets.as_ref().and_then(|secrets| secrets.towards(&store)),
        };
        let done = NvmeDevice::connect(place, Arc::clone(&self.clock))
            .and_then(|device| self.work(&mut channel, &offer, &spec, Arc::new(device)));
        let answer = done.and_then(|result| result.encode().map_err(io::Error::other));
        let counter = if answer.is_ok() { &self.done } else { &self.failed };
        counter.fetch_add(1, Ordering::Relaxed);
        // The store may send the next one as soon as it has the result.
        drop(running);
        // Nobody listens where the connection is what failed.
        let _ = channel.send(&match answer {
            Ok(result) => Message::Done { epoch, result },
            Err(e) => Message::Refused { epoch, reason: e.to_string() },
        });
        Ok(())
    }

    /// Does a job, and tells its store how far it is.
    fn work(
        &self,
        channel: &mut Channel,
        offer: &Offer,
        spec: &JobSpec,
        device: Arc<dyn WorkerDevice>,
    ) -> io::Result<JobResult> {
        let job = Arc::new(WorkerJob::default());
        let (ends, ended) = mpsc::channel();
        thread::scope(|scope| {
            let (machine, handle) = (&self.machine, Arc::clone(&job));
            thread::Builder::new().name("worker-merge".into()).spawn_scoped(scope, move || {
                let _ = ends.send(machine.run(spec, device, &handle)); // it is waited for below
            })?;
            let mut told = self.now();
            let lost = loop {
                match ended.try_recv() {
                    Ok(result) => return Ok(result),
                    Err(mpsc::TryRecvError::Empty) => {}
                    Err(mpsc::TryRecvError::Disconnected) => break io::Error::other("the job was lost"),
                }
                match channel.receive(POLL) {
                    Ok(None) if self.stops() => break io::Error::other("the worker ends"),
                    Ok(None) => {}
                    Ok(Some(_)) => break io::Error::other("the store does not want the job any more"),
                    Err(e) => break e,
                }
                if self.now().saturating_sub(told) >= offer.silence / 4 {
                    told = self.now();
                    if let Err(e) = channel.send(&Message::Progress { epoch: offer.epoch, bytes: job.bytes() }) {
                        break e;
                    }
                }
            };
            job.cancel();
            let _ = ended.recv(); // nothing of it is used
            Err(lost)
        })
    }
}
