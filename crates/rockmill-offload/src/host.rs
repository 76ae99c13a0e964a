//! The store's side: which worker gets a job, its namespace, its lease.

use std::cell::Cell;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rockmill::internals::{
    CompactionWorkers, JobCode, JobRegistry, RemoteDone, RemoteJob, RemoteUsage, TableCheck, TakenWorker,
};
use rockmill::{Error, ErrorKind};
use rockmill_io::Clock;
use rockmill_nvme::auth::{Random as _, SystemRandom};
use rockmill_nvme::target::{Target, TargetConfig};
use rockmill_nvme::tcp::{ClientTls, ServerConfig, ServerTls, TcpServer};

use crate::channel::Channel;
use crate::check::Check;
use crate::device::{NAMESPACE, READ_QUEUES};
use crate::external::{External, ExternalInputs, ExternalTarget};
use crate::lease::{End, Epochs, Event, Lease, Terms};
use crate::message::Message;
use crate::namespace::JobNamespace;
use crate::pool::{Answer, Came, Offered, Pool, Ticket};
use crate::{JOB_SUBSYSTEMS, NOT_PRIVATE, PoolConfig, Secrets, bad_configuration, check_name};

/// How long a connection to a worker may take to open.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a connection is kept after a job. Workers close theirs later ([`crate::worker::KEEP`]).
const KEEP: Duration = Duration::from_secs(45);
/// How long the worker of a kept connection may take to say that it is there.
const PING_TIMEOUT: Duration = Duration::from_secs(2);
/// How often the store is asked whether it still wants the job.
const POLL: Duration = Duration::from_millis(20);
/// Connections to a job's namespace: an admin queue, three I/O queues, and some that are about to be refused.
const CONNECTIONS_MAX: usize = 8;
/// Bytes of the largest read of a worker that is answered in one piece.
const READ_BYTES: u32 = 1 << 20;
/// Bytes of the largest write: that of the largest command.
const WRITE_BYTES: u32 = 1 << 20;
/// The name that a store has where it is given none.
const NAME: &str = "nqn.2026-11.rockmill:host";

/// Which workers there are, and what they are asked to do.
#[derive(Debug, Clone)]
pub struct WorkersConfig {
    /// Where workers listen.
    pub workers: Vec<SocketAddr>,
    /// In place of these, whichever worker of this pool has room.
    pub pool: Option<PoolConfig>,
    /// How long a job waits for a worker of the pool, the connection to the pool's server included. If none comes, the
    /// job is done here, and the pool is left alone for `pause`.
    pub pool_wait: Duration,
    /// The store's name, which workers know its secret by.
    pub name: String,
    /// Its secret and those of the workers. With secrets, workers without are refused; the same for keys of TLS.
    pub secrets: Option<Secrets>,
    /// Uses workers on other machines without secrets. Whoever is on the network then reads and writes tables.
    pub allow_unauthenticated: bool,
    /// Smaller jobs stay here.
    pub input_bytes_min: u64,
    /// So many compactions run here before others go to workers: with idle cores here, a worker gains nothing.
    pub here_first: usize,
    /// Jobs that one worker of the list is given at a time. One of a pool says itself when it has room.
    pub jobs_max: usize,
    /// A worker that says nothing for so long has lost its job.
    pub silence_max: Duration,
    /// A job may take a minute, and as long as it takes to read its inputs at this rate.
    pub bytes_per_second_min: u64,
    /// A worker that failed gets no job for so long.
    pub pause: Duration,
    /// What is read of the tables that come back.
    pub check: Check,
    /// Workers read inputs at this target of NVMe/TCP, which exports the block device with the store's tables. Not
    /// with keys of TLS. Reads are not slowed there by what slows them here (rate limiter, pacing).
    pub external: Option<ExternalTarget>,
    /// The code that all these workers have, besides RocksDB's own: jobs that call other code are done here. It is what
    /// the workers have as `WorkerConfig::registry`; only names and options of it are used.
    pub registry: JobRegistry,
}

impl WorkersConfig {
    /// The workers of a pool, without secrets, with the defaults for all else.
    #[must_use]
    pub fn of_pool(pool: PoolConfig) -> Self {
        Self { pool: Some(pool), ..Self::new(Vec::new()) }
    }

    /// These workers, without secrets, with the defaults for all else.
    #[must_use]
    pub fn new(workers: Vec<SocketAddr>) -> Self {
        Self {
            workers,
            pool: None,
            pool_wait: Duration::from_secs(2),
            name: NAME.to_owned(),
            secrets: None,
            allow_unauthenticated: false,
            input_bytes_min: 16 << 20,
            here_first: 0,
            jobs_max: 1,
            silence_max: Duration::from_secs(10),
            bytes_per_second_min: 4 << 20,
            pause: Duration::from_secs(30),
            check: Check::All,
            external: None,
            registry: JobRegistry::default(),
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct WorkerState {
    address: SocketAddr,
    jobs: usize,
    /// Gets no job before.
    paused_until: Duration,
    /// Which key of TLS was its, when it was connected to last.
    key: usize,
}

impl WorkerState {
    fn new(address: SocketAddr) -> Self {
        Self { address, jobs: 0, paused_until: Duration::ZERO, key: 0 }
    }
}

/// The place of a job's worker for as long as nobody of the pool has taken the job.
const NOBODY: usize = usize::MAX;

/// Has compactions done by workers (`rockmill::Options::set_compaction_workers`). Several databases may share one.
#[derive(Debug)]
pub struct Workers {
    config: WorkersConfig,
    /// Empty without TLS.
    tls: Vec<(String, ClientTls)>,
    clock: Arc<dyn Clock>,
    /// Those of the list; those of the pool that have had a job, in the order in which they came.
    states: Mutex<Vec<WorkerState>>,
    /// Connections that no job uses now, the latest last.
    kept: Mutex<Vec<Kept>>,
    epochs: Epochs,
    pool: Option<Pool>,
    /// The pool is asked for nothing before.
    pool_paused_until: Mutex<Duration>,
    external: Option<External>,
    /// No worker is sent to the external target before.
    external_paused_until: Mutex<Duration>,
}

/// A connection to a worker that both sides know each other on, between two jobs.
#[derive(Debug)]
struct Kept {
    /// The worker's place.
    place: usize,
    /// Its name.
    worker: String,
    channel: Channel,
    /// Since when no job has used it.
    since: Duration,
}

impl Workers {
    /// Workers that are asked when there is a job. No connection to one is made before; that to the server of a pool is
    /// begun.
    ///
    /// # Errors
    /// A configuration that is not safe, keys for TLS or a pool where this was built without them, or an external
    /// target whose device is none.
    pub fn new(config: WorkersConfig, clock: Arc<dyn Clock>) -> io::Result<Arc<Self>> {
        let external = config.external.clone().map(External::new).transpose()?;
        Self::with_external(config, external, clock)
    }

    pub(crate) fn with_external(
        config: WorkersConfig,
        external: Option<External>,
        clock: Arc<dyn Clock>,
    ) -> io::Result<Arc<Self>> {
        let open = config.secrets.is_none() && !config.allow_unauthenticated;
        if open && config.workers.iter().any(|worker| !worker.ip().is_loopback()) {
            return Err(bad_configuration(NOT_PRIVATE));
        }
        check_name(&config.name).map_err(bad_configuration)?;
        if config.pool.is_some() && !config.workers.is_empty() {
            return Err(bad_configuration("workers are those of a list or those of a pool, not both"));
        }
        let tls = config.secrets.as_ref().map_or(Ok(Vec::new()), |secrets| secrets.clients(&config.name))?;
        if let Some(target) = &config.external {
            if !tls.is_empty() {
                return Err(bad_configuration(
                    "an external target is read without TLS: leave out the target, or the keys of TLS",
                ));
            }
            if open && !target.address.ip().is_loopback() {
                return Err(bad_configuration(NOT_PRIVATE));
            }
        }
        // Nobody is told: each job's line in the store's log says what is wrong.
        let pool = config.pool.as_ref().map(|pool| Pool::start(pool, &config.name, |_| {})).transpose()?;
        let states = Mutex::new(config.workers.iter().map(|&address| WorkerState::new(address)).collect());
        Ok(Arc::new(Self {
            config,
            tls,
            clock,
            states,
            kept: Mutex::default(),
            epochs: Epochs::default(),
            pool,
            pool_paused_until: Mutex::default(),
            external,
            external_paused_until: Mutex::default(),
        }))
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
        state.jobs += 1;
        Some(Taken { workers: self, place, address: state.address })
    }

    /// Takes the worker of the pool that listens there, unless it may have no job, or not this one.
    fn choose_of_pool(&self, address: SocketAddr, tried: &[usize]) -> Option<Taken<'_>> {
        let open = self.config.secrets.is_none() && !self.config.allow_unauthenticated;
        if open && !address.ip().is_loopback() {
            return None;
        }
        let now = self.now();
        let mut states = self.states.lock();
        let place = states.iter().position(|state| state.address == address).unwrap_or(states.len());
        if place == states.len() {
            states.push(WorkerState::new(address));
        }
        let state = states.get_mut(place).filter(|s| s.paused_until <= now && !tried.contains(&place))?;
        state.jobs += 1;
        Some(Taken { workers: self, place, address })
    }

    /// Waits until a worker of the pool takes a job that is published.
    fn wait_for_pool(
        &self,
        pool: &Pool,
        offered: &Offered,
        tried: &[usize],
        job: &RemoteJob<'_>,
    ) -> Result<Taken<'_>, Error> {
        let (since, most) = (self.now(), self.config.pool_wait);
        let failed = |why: String| Error::new(ErrorKind::Aborted, format!("pool of workers: {why}"));
        let mut others = 0u64;
        while !(job.is_stopped)() {
            let left = most.saturating_sub(self.now().saturating_sub(since));
            if left.is_zero() {
                let why = match (pool.why(), others) {
                    (why, _) if !why.is_empty() => format!(": {why}"),
                    (_, 0) => String::new(),
                    (_, n) => format!("; {n} times one asked that failed lately, or needs secrets to be used"),
                };
                return Err(failed(format!("no worker took the job in {most:?}{why}")));
            }
            match offered.next(left.min(POLL)) {
                None => {}
                Some(Came::Failed(why)) => return Err(failed(why)),
                Some(Came::Slot(address, answer)) => match self.choose_of_pool(address, tried) {
                    Some(taken) => {
                        answer(Answer::Yes);
                        return Ok(taken);
                    }
                    None => {
                        others += 1;
                        answer(Answer::Other);
                    }
                },
            }
        }
        Err(failed("the job is not wanted any more".to_owned()))
    }

    /// Connects, with TLS if there are keys. An address does not say whose it is: the keys are tried in turn, beginning
    /// with the one that was the worker's before.
    fn connect(&self, place: usize, address: SocketAddr, job: &RemoteJob<'_>) -> io::Result<Channel> {
        let open = || TcpStream::connect_timeout(&address, CONNECT_TIMEOUT);
        if self.tls.is_empty() {
            return Channel::new(open()?, Arc::clone(&self.clock));
        }
        let first = self.states.lock().get(place).map_or(0, |state| state.key);
        let mut refused = None;
        for key in (0..self.tls.len()).map(|i| (first + i) % self.tls.len()) {
            let Some(peer) = self.tls.get(key) else { break };
            match Channel::connect(open()?, peer, Arc::clone(&self.clock), job.is_stopped) {
                Err(e) if e.kind() == io::ErrorKind::PermissionDenied => refused = Some(e),
                Err(e) => return Err(e),
                Ok(channel) => {
                    if let Some(state) = self.states.lock().get_mut(place) {
                        state.key = key;
                    }
                    return Ok(channel);
                }
            }
        }
        Err(refused.unwrap_or_else(|| io::ErrorKind::PermissionDenied.into()))
    }

    /// A kept connection to this worker that still works. Nothing of the job has been said on it, so that one that is
    /// broken costs a new connection, and no lease.
    fn take_kept(&self, place: usize, job: &RemoteJob<'_>) -> Option<(Channel, String)> {
        loop {
            let mut kept = self.kept.lock();
            let now = self.now();
            let outdated: Vec<Kept> = kept.extract_if(.., |kept| now.saturating_sub(kept.since) >= KEEP).collect();
            let last = kept.iter().rposition(|kept| kept.place == place).map(|i| kept.remove(i));
            drop(kept);
            drop(outdated); // closed without the lock
            let Kept { mut channel, worker, .. } = last?;
            if channel.ping(self.epochs.next(), PING_TIMEOUT, job.is_stopped).is_ok() {
                return Some((channel, worker));
            }
            // Others to it are as old: the worker, or the way to it, is gone.
            self.forget(place);
        }
    }

    /// Closes the connections to a worker that no job uses.
    fn forget(&self, place: usize) {
        let gone: Vec<Kept> = self.kept.lock().extract_if(.., |kept| kept.place == place).collect();
        drop(gone);
    }

    /// Keeps a connection for the next job. A worker has no more of them than it had jobs at once.
    fn keep(&self, place: usize, worker: String, channel: Channel) {
        if channel.is_clean() {
            self.kept.lock().push(Kept { place, worker, channel, since: self.now() });
        }
    }

    fn run_on(
        &self,
        place: usize,
        address: SocketAddr,
        ticket: Option<Ticket>,
        job: &RemoteJob<'_>,
    ) -> Result<RemoteDone, Error> {
        let failed = |e: io::Error| Error::io(format_args!("worker {address}"), &e);
        let (mut channel, worker) = match self.take_kept(place, job) {
            Some(kept) => kept,
            None => {
                let mut channel = self.connect(place, address, job).map_err(failed)?;
                let (own, secrets) = (&self.config.name, self.config.secrets.as_ref());
                let worker = channel.greet_worker(own, secrets, job.is_stopped).map_err(failed)?;
                (channel, worker)
            }
        };
        let epoch = self.epochs.next();
        let export = self.export(&channel, &worker, epoch, job).map_err(failed)?;
        let silence_ms = u32::try_from(self.config.silence_max.as_millis()).unwrap_or(u32::MAX);
        let (subsystem, port) = (export.target.config().nqn.clone(), export.server.address().port());
        let terms = Terms { silence_max: self.config.silence_max, job_max: self.job_max(job.input_bytes) };
        let mut lease = Lease::new(epoch, terms, self.now());
        let (external, note) = self.external_inputs(job);
        let (sent, spec) = (external.clone(), job.spec.to_vec());
        let offer = Message::Offer { epoch, ticket, subsystem, port, silence_ms, external: sent, spec };
        channel.send(&offer, job.is_stopped).map_err(failed)?;
        drop(offer);
        let (end, said) = self.hold(&mut lease, &mut channel, job);
        // First the device: what the worker said is looked at when it can change nothing any more.
        drop(export);
        let name = format!("{worker} at {address}{note}");
        if external.is_some() && !matches!(end, End::Done | End::Refused) {
            self.leave_external();
        }
        match (end, said) {
            (End::Done, Some(Said::Result(result, usage))) => {
                // With this the worker has said all that it says of the job.
                self.keep(place, worker, channel);
                if let Some((target, inputs)) = self.external.as_ref().zip(external.as_ref()) {
                    target.check(inputs, job.device).map_err(|e| {
                        self.leave_external();
                        Error::io(format_args!("worker {name}"), &e)
                    })?;
                }
                Ok(RemoteDone { result, worker: name, usage })
            }
            (end, said) => {
                match end {
                    End::Refused => self.keep(place, worker, channel),
                    // It notices by itself, too, as this connection ends.
                    _ => drop(channel.send(&Message::Cancel { epoch }, job.is_stopped)),
                }
                let why = said.and_then(|said| if let Said::Reason(why) = said { Some(why) } else { None });
                let why = why.map_or_else(String::new, |why| format!(": {why}"));
                Err(Error::new(ErrorKind::Aborted, format!("worker {name}: {end}{why}")))
            }
        }
    }

    /// Gives a worker no job for a while.
    fn leave(&self, place: usize) {
        self.forget(place);
        let until = self.now().saturating_add(self.config.pause);
        if let Some(state) = self.states.lock().get_mut(place) {
            state.paused_until = until;
        }
    }

    /// What a worker made was refused, or it could not make it: it gets no job for a while. Where it read may be why.
    fn reject(&self, place: usize) {
        self.leave(place);
        if self.external.is_some() {
            self.leave_external();
        }
    }

    /// Sends no worker to the external target for a while.
    fn leave_external(&self) {
        *self.external_paused_until.lock() = self.now().saturating_add(self.config.pause);
    }

    /// Where a worker may read the job's inputs besides, and what the log is told of it.
    fn external_inputs(&self, job: &RemoteJob<'_>) -> (Option<ExternalInputs>, String) {
        let Some(external) = &self.external else { return (None, String::new()) };
        if *self.external_paused_until.lock() > self.now() {
            return (None, " (not at the external target: a job failed with it lately)".to_owned());
        }
        match external.inputs(job.device) {
            Ok(inputs) => (Some(inputs), " with the external target".to_owned()),
            Err(e) => (None, format!(" (not at the external target: {e})")),
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
            // One for each connection: of those that have not authenticated, the oldest gives way.
            controllers_max: CONNECTIONS_MAX as u16,
            io_queues_max: READ_QUEUES + 1,
            // It would take a place without authentication.
            discovery: false,
            write_zeroes: false, // no table needs it
            // All that a command reads is one read of the host's: past the page cache nothing is read ahead.
            c2h_data_max: READ_BYTES,
            // All data of a write is asked for at once, so that writes end in the order of their commands: several are
            // outstanding, and an output takes them from front to back.
            r2t_bytes_max: WRITE_BYTES,
            // It is read into its place in one piece.
            h2c_data_max: WRITE_BYTES,
            ..TargetConfig::new(&format!("{JOB_SUBSYSTEMS}{name}:{epoch}"))
        };
        // The key of this job's connections is of its subsystem's name: that of another job is another one.
        let key = self.config.secrets.as_ref().and_then(|secrets| secrets.tls_key(worker));
        let tls = key.map(|key| ServerTls::new(vec![key.psk(worker, &config.nqn)])).transpose()?;
        let target = Target::new(config).map_err(io::Error::other)?;
        let namespace = Arc::new(JobNamespace::new(job.device, nonce));
        target.add_namespace(NAMESPACE, namespace).map_err(io::Error::other)?;
        // Where the worker already reaches this machine, a link-local address with its interface included.
        let mut address = channel.stream().local_addr()?;
        address.set_port(0);
        let listener = TcpListener::bind(address)?;
        let limits = ServerConfig { connections_max: CONNECTIONS_MAX, ..ServerConfig::default() };
        let server = TcpServer::start_with(listener, Arc::clone(&target), limits, tls, Arc::clone(&self.clock))?;
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
            lease.held_up(job.device.held());
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

impl Taken<'_> {
    fn run_with(&self, ticket: Option<Ticket>, job: &RemoteJob<'_>) -> Result<RemoteDone, Error> {
        let done = self.workers.run_on(self.place, self.address, ticket, job);
        if done.is_err() && !(job.is_stopped)() {
            self.workers.leave(self.place);
        }
        done
    }
}

impl TakenWorker for Taken<'_> {
    fn place(&self) -> usize {
        self.place
    }

    fn run(&self, job: &RemoteJob<'_>) -> Result<RemoteDone, Error> {
        self.run_with(None, job)
    }

    fn check(&self) -> TableCheck {
        self.workers.config.check.of_job()
    }

    fn rejected(&self) {
        self.workers.reject(self.place);
    }
}

/// A worker of the pool, which is only known once it has taken the job.
#[derive(Debug)]
struct TakenOfPool<'a> {
    workers: &'a Workers,
    pool: &'a Pool,
    tried: Vec<usize>,
    place: Cell<usize>,
}

impl TakenWorker for TakenOfPool<'_> {
    fn place(&self) -> usize {
        self.place.get()
    }

    fn run(&self, job: &RemoteJob<'_>) -> Result<RemoteDone, Error> {
        let offered = self.pool.offer(job.input_bytes);
        let offered = offered.map_err(|e| Error::io(format_args!("pool of workers"), &e))?;
        let taken = self.workers.wait_for_pool(self.pool, &offered, &self.tried, job);
        if taken.is_err() && !(job.is_stopped)() {
            *self.workers.pool_paused_until.lock() = self.workers.now().saturating_add(self.workers.config.pause);
        }
        let taken = taken?;
        self.place.set(taken.place);
        // The message stays the worker's until this is over, whatever the server does.
        taken.run_with(Some(offered.ticket()), job)
    }

    fn check(&self) -> TableCheck {
        self.workers.config.check.of_job()
    }

    fn rejected(&self) {
        self.workers.reject(self.place.get());
    }
}

impl CompactionWorkers for Workers {
    fn here_first(&self) -> usize {
        self.config.here_first
    }

    fn take(&self, input_bytes: u64, tried: &[usize]) -> Option<Box<dyn TakenWorker + '_>> {
        if input_bytes < self.config.input_bytes_min {
            return None;
        }
        let Some(pool) = &self.pool else {
            return Some(Box::new(self.choose(tried)?));
        };
        if tried.contains(&NOBODY) || *self.pool_paused_until.lock() > self.now() {
            return None;
        }
        Some(Box::new(TakenOfPool { workers: self, pool, tried: tried.to_vec(), place: Cell::new(NOBODY) }))
    }

    fn knows(&self, code: JobCode<'_>) -> bool {
        self.config.registry.knows(code)
    }
}
