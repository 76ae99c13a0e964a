//! The store's side: which worker gets a job, its namespace, its lease.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rockmill::internals::{CompactionWorkers, RemoteDone, RemoteJob, RemoteUsage, TakenWorker};
use rockmill::{Error, ErrorKind};
use rockmill_io::Clock;
use rockmill_nvme::auth::{Random as _, SystemRandom};
use rockmill_nvme::target::{Target, TargetConfig};
use rockmill_nvme::tcp::{ServerConfig, TcpServer};

use crate::channel::Channel;
use crate::device::NAMESPACE;
use crate::lease::{End, Epochs, Event, Lease, Terms};
use crate::message::Message;
use crate::namespace::JobNamespace;
use crate::{NOT_PRIVATE, Secrets, bad_configuration, check_name};

/// How long a connection to a worker may take to open.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How often the store is asked whether it still wants the job.
const POLL: Duration = Duration::from_millis(20);
/// Connections to a job's namespace: an admin queue, two I/O queues, and some that are about to be refused.
const CONNECTIONS_MAX: usize = 8;
/// The name that a store has where it is given none.
const NAME: &str = "nqn.2026-11.rockmill:host";

/// Which workers there are, and what they are asked to do.
#[derive(Debug, Clone)]
pub struct WorkersConfig {
    /// Where workers listen.
    pub workers: Vec<SocketAddr>,
    /// The store's name, which workers know its secret by.
    pub name: String,
    /// Its secret and those of the workers. With secrets, workers without are refused.
    pub secrets: Option<Secrets>,
    /// Uses workers on other machines without secrets. Whoever is on the network then reads and writes tables.
    pub allow_unauthenticated: bool,
    /// Smaller jobs stay here.
    pub input_bytes_min: u64,
    /// Jobs that one worker is given at a time.
    pub jobs_max: usize,
    /// A worker that says nothing for so long has lost its job.
    pub silence_max: Duration,
    /// A job may take a minute, and as long as it takes to read its inputs at this rate.
    pub bytes_per_second_min: u64,
    /// A worker that failed gets no job for so long.
    pub pause: Duration,
}

impl WorkersConfig {
    /// These workers, without secrets, with the defaults for all else.
    #[must_use]
    pub fn new(workers: Vec<SocketAddr>) -> Self {
        Self {
            workers,
            name: NAME.to_owned(),
            secrets: None,
            allow_unauthenticated: false,
            input_bytes_min: 16 << 20,
            jobs_max: 1,
            silence_max: Duration::from_secs(10),
            bytes_per_second_min: 4 << 20,
            pause: Duration::from_secs(30),
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct WorkerState {
    jobs: usize,
    /// Gets no job before.
    paused_until: Duration,
}

/// Has compactions done by workers (`rockmill::Options::set_compaction_workers`). Several databases may share one.
#[derive(Debug)]
pub struct Workers {
    config: WorkersConfig,
    clock: Arc<dyn Clock>,
    states: Mutex<Vec<WorkerState>>,
    epochs: Epochs,
}

impl Workers {
    /// Workers that are asked when there is a job. No connection is made before.
    ///
    /// # Errors
    /// A configuration that is not safe.
    pub fn new(config: WorkersConfig, clock: Arc<dyn Clock>) -> io::Result<Arc<Self>> {
        let open = config.secrets.is_none() && !config.allow_unauthenticated;
        if open && config.workers.iter().any(|worker| !worker.ip().is_loopback()) {
            return Err(bad_configuration(NOT_PRIVATE));
        }
        check_name(&config.name).map_err(bad_configuration)?;
        let states = Mutex::new(vec![WorkerState::default(); config.workers.len()]);
        Ok(Arc::new(Self { config, clock, states, epochs: Epochs::default() }))
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(self.clock.monotonic_nanos())
    }

    /// Takes the free worker with the fewest jobs, of those that are not among `tried`.
    fn choose(&self, tried: &[usize]) -> Option<Taken<'_>> {
        let now = self.now();
        let mut states = self.states.lock();
        let free = |s: &WorkerState| s.jobs < self.config.jobs_max && s.paused_until <= now;
        let all = states.iter_mut().enumerate().filter(|(i, s)| free(s) && !tried.contains(i));
        let (place, state) = all.min_by_key(|(_, s)| s.jobs)?;
        let address = *self.config.workers.get(place)?;
        state.jobs += 1;
        Some(Taken { workers: self, place, address })
    }

    fn run_on(&self, address: SocketAddr, job: &RemoteJob<'_>) -> Result<RemoteDone, Error> {
        let failed = |e: io::Error| Error::io(format_args!("worker {address}"), &e);
        let stream = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT).map_err(failed)?;
        let mut channel = Channel::new(stream, Arc::clone(&self.clock)).map_err(failed)?;
        let worker =
            channel.greet_worker(&self.config.name, self.config.secrets.as_ref(), job.is_stopped).map_err(failed)?;
        let epoch = self.epochs.next();
        let export = self.export(&channel, &worker, epoch, job).map_err(failed)?;
        let silence_ms = u32::try_from(self.config.silence_max.as_millis()).unwrap_or(u32::MAX);
        let (subsystem, port) = (export.target.config().nqn.clone(), export.server.address().port());
        let terms = Terms { silence_max: self.config.silence_max, job_max: self.job_max(job.input_bytes) };
        let mut lease = Lease::new(epoch, terms, self.now());
        let offer = Message::Offer { epoch, subsystem, port, silence_ms, spec: job.spec.to_vec() };
        channel.send(&offer, job.is_stopped).map_err(failed)?;
        drop(offer);
        let (end, said) = self.hold(&mut lease, &mut channel, job);
        // First the device: what the worker said is looked at when it can change nothing any more.
        drop(export);
        match (end, said) {
            (End::Done, Some(Said::Result(result, usage))) => {
                Ok(RemoteDone { result, worker: format!("{worker} at {address}"), usage })
            }
            (end, said) => {
                let _ = channel.send(&Message::Cancel { epoch }, job.is_stopped); // it notices by itself, too
                let why = said.and_then(|said| if let Said::Reason(why) = said { Some(why) } else { None });
                let why = why.map_or_else(String::new, |why| format!(": {why}"));
                Err(Error::new(ErrorKind::Aborted, format!("worker {worker} at {address}: {end}{why}")))
            }
        }
    }

    fn job_max(&self, input_bytes: u64) -> Duration {
        Duration::from_secs((input_bytes / self.config.bytes_per_second_min.max(1)).saturating_add(60))
    }

    /// Serves the job's device, and nothing else, to this worker, and to nobody else.
    fn export(&self, channel: &Channel, worker: &str, epoch: u64, job: &RemoteJob<'_>) -> io::Result<Export> {
        // Nobody can guess the name that was not told it, and it is never that of another job.
        let mut nonce = [0; 16];
        SystemRandom.fill(&mut nonce)?;
        let name: String = nonce.iter().map(|byte| format!("{byte:02x}")).collect();
        let policy = self.config.secrets.as_ref().map(|secrets| secrets.policy(|name| name == worker));
        let config = TargetConfig {
            hosts: Some(vec![worker.to_owned()]),
            auth: policy,
            namespaces_max: NAMESPACE,
            controllers_max: 4,
            io_queues_max: 2,
            ..TargetConfig::new(&format!("nqn.2026-11.rockmill:job:{name}:{epoch}"))
        };
        let target = Target::new(config).map_err(io::Error::other)?;
        let namespace = Arc::new(JobNamespace::new(job.device, nonce));
        target.add_namespace(NAMESPACE, namespace).map_err(io::Error::other)?;
        // Where the worker already reaches this machine, a link-local address with its interface included.
        let mut address = channel.stream().local_addr()?;
        address.set_port(0);
        let listener = TcpListener::bind(address)?;
        let limits = ServerConfig { connections_max: CONNECTIONS_MAX, ..ServerConfig::default() };
        let server = TcpServer::start(listener, Arc::clone(&target), limits, Arc::clone(&self.clock))?;
        Ok(Export { target, server })
    }

    /// Waits until the lease is over.
    fn hold(&self, lease: &mut Lease, channel: &mut Channel, job: &RemoteJob<'_>) -> (End, Option<Said>) {
        let mut said = None;
        loop {
            let event = match channel.receive(POLL) {
                _ if (job.is_stopped)() => Event::Unwanted,
                Ok(None) => Event::Time,
                Ok(Some(Message::Accepted { epoch })) => Event::Accepted(epoch),
                Ok(Some(Message::Progress { epoch, bytes })) => {
                    (job.progress)(bytes.min(job.input_bytes));
                    Event::Progress(epoch)
                }
                Ok(Some(Message::Done { epoch, usage, result })) => {
                    said = Some(Said::Result(result, usage));
                    Event::Done(epoch)
                }
                Ok(Some(Message::Refused { epoch, reason })) => {
                    said = Some(Said::Reason(reason));
                    Event::Refused(epoch)
                }
                Ok(Some(_)) => Event::Nonsense,
                Err(e) => {
                    let is_nonsense = e.kind() == io::ErrorKind::InvalidData;
                    said = Some(Said::Reason(e.to_string()));
                    if is_nonsense { Event::Nonsense } else { Event::Lost }
                }
            };
            if let Some(end) = lease.on(event, self.now()) {
                return (end, said);
            }
        }
    }
}

/// What a worker said last.
enum Said {
    Result(Vec<u8>, RemoteUsage),
    Reason(String),
}

/// A namespace that is served. When it is dropped, no command uses it any more, and no connection is left.
struct Export {
    target: Arc<Target>,
    server: TcpServer,
}

impl Drop for Export {
    fn drop(&mut self) {
        self.target.remove_namespace(NAMESPACE);
        self.server.stop();
    }
}

/// A worker that has one job more; one less when this is dropped, also where the job panicked.
#[derive(Debug)]
struct Taken<'a> {
    workers: &'a Workers,
    place: usize,
    address: SocketAddr,
}

impl Taken<'_> {
    fn change(&self, change: impl FnOnce(&mut WorkerState)) {
        if let Some(state) = self.workers.states.lock().get_mut(self.place) {
            change(state);
        }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.change(|state| state.jobs = state.jobs.saturating_sub(1));
    }
}

impl TakenWorker for Taken<'_> {
    fn place(&self) -> usize {
        self.place
    }

    fn run(&self, job: &RemoteJob<'_>) -> Result<RemoteDone, Error> {
        let done = self.workers.run_on(self.address, job);
        if done.is_err() && !(job.is_stopped)() {
            self.rejected();
        }
        done
    }

    fn rejected(&self) {
        let until = self.workers.now().saturating_add(self.workers.config.pause);
        self.change(|state| state.paused_until = until);
    }
}

impl CompactionWorkers for Workers {
    fn take(&self, input_bytes: u64, tried: &[usize]) -> Option<Box<dyn TakenWorker + '_>> {
        if input_bytes < self.config.input_bytes_min {
            return None;
        }
        Some(Box::new(self.choose(tried)?))
    }
}
