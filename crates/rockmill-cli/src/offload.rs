//! Compactions on other machines: `rockmill worker`, and the options of commands that use workers.

use std::io::{ErrorKind, Write as _};
use std::net::{SocketAddr, TcpListener, ToSocketAddrs as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::{Args, ValueEnum};
use rockmill::{KernelDriver, MergeEngine, Options};
use rockmill_io::{Clock, SystemClock};
use rockmill_offload::{
    Check, DeviceKind, ExternalTarget, MetricsServer, PoolConfig, PoolCredentials, Secrets, Worker, WorkerConfig,
    Workers, WorkersConfig,
};
use serde_json::json;

use crate::args::{DriverArg, EngineArg, parse_size};
use crate::error::{CliError, Result};
use crate::interrupt;
use crate::output::{self, Out};
use crate::worker_config;

/// How long a worker waits for its jobs before it ends.
const DRAIN_SECONDS: u64 = 60;

/// Do compactions of databases on other machines
///
/// Stores send jobs (--compaction-workers of load, compact and others). The worker reads the inputs' blocks and writes
/// the outputs' blocks over NVMe/TCP, in what the store exports for this job alone. It needs no disk. On SIGTERM or
/// Ctrl-C it begins no more jobs, and ends when those that run are done, or after a minute.
///
/// Without secrets it listens for this machine only. Secrets authenticate, and with keys of TLS in the same file all is
/// encrypted: docs/offload.md. --make-secrets writes a pair of such files.
///
/// With --pool it takes jobs of a pool, too: stores put them into a queue of a NATS server, and whichever worker has
/// room takes one.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  rockmill worker --listen 127.0.0.1:4421
  rockmill worker --make-secrets .
  rockmill worker --listen 10.0.0.7:4421 --secrets worker.secrets --jobs 2 --threads 4
  rockmill worker --listen 127.0.0.1:4421 --engine pread
  rockmill worker --listen 127.0.0.1:4421 --device kernel --engine kernel --kernel-driver loop
  rockmill worker --listen 127.0.0.1:4421 --metrics 127.0.0.1:9421
  rockmill worker --listen 10.0.0.7:4421 --secrets worker.secrets --pool nats://10.0.0.5:4222
  rockmill worker --config /etc/rockmill/worker.conf

A file of --config has one flag a line, without the dashes: listen = 10.0.0.7:4421. Empty lines and lines
starting with # are ignored. The command line takes precedence.")]
pub struct WorkerArgs {
    /// Address and port
    #[arg(long, value_name = "ADDR", required_unless_present_any = ["config", "make_secrets"])]
    pub listen: Option<String>,
    /// File with these flags, for what is not given here
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Write new secrets to DIR/worker.secrets and DIR/host.secrets, with a key of TLS if this program has TLS, and do
    /// nothing else
    #[arg(long, value_name = "DIR")]
    #[arg(conflicts_with_all = ["listen", "config", "secrets", "metrics", "pool", "allow_unauthenticated"])]
    pub make_secrets: Option<PathBuf>,
    /// Name that stores know the worker's secret by [default: nqn.2026-11.rockmill:worker]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// File with the worker's secret and those of stores; nobody else may read it
    #[arg(long, value_name = "FILE")]
    pub secrets: Option<PathBuf>,
    /// Listen for other machines without secrets: anyone who connects can run jobs
    #[arg(long)]
    pub allow_unauthenticated: bool,
    /// Jobs at a time [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub jobs: Option<u16>,
    /// Threads of one job [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Who connects to jobs' devices [default: user]
    #[arg(long, value_name = "WHO")]
    pub device: Option<DeviceArg>,
    /// How jobs are merged: uring has several reads and writes outstanding while it merges, pread one; kernel needs
    /// --device kernel [default: uring]
    #[arg(long, value_name = "ENGINE")]
    pub engine: Option<EngineArg>,
    /// How the engine kernel runs its program [default: run]
    #[arg(long, value_name = "DRIVER")]
    pub kernel_driver: Option<DriverArg>,
    /// Address and port where Prometheus gets its counters (GET /metrics), without secrets
    #[arg(long, value_name = "ADDR")]
    pub metrics: Option<String>,
    /// NATS servers of the pool that it takes jobs of, too. --listen is then the address that stores connect to
    #[arg(long, value_name = "URL,...", value_delimiter = ',')]
    pub pool: Vec<String>,
    /// The pool's queue, as its stores name it [default: default]
    #[arg(long, value_name = "NAME")]
    pub pool_queue: Option<String>,
    /// File with what the pool's server asks for: `token TOKEN` or `user NAME PASSWORD`; nobody else may read it
    #[arg(long, value_name = "FILE")]
    pub pool_credentials: Option<PathBuf>,
    /// File with the certificates that the server's must come from, in place of the system's
    #[arg(long, value_name = "FILE")]
    pub pool_ca: Option<PathBuf>,
}

/// Who connects a worker to the devices of its jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DeviceArg {
    /// This process, by NVMe/TCP in user space
    User,
    /// The Linux kernel, as a block device for each job; needs root and the kernel's module nvme-tcp, without TLS
    Kernel,
}

/// Who does compactions besides this process.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Store options (not given: as stored in the database, in a new one as shown)")]
pub struct OffloadArgs {
    /// Workers (`rockmill worker`) that do large compactions; what fails there is done here
    #[arg(long, value_name = "ADDR,...", value_delimiter = ',', group = "who_compacts")]
    pub compaction_workers: Vec<String>,
    /// In place of them, NATS servers of a pool of workers (`rockmill worker --pool`)
    #[arg(long, value_name = "URL,...", value_delimiter = ',', group = "who_compacts")]
    pub compaction_pool: Vec<String>,
    /// The pool's queue, as its workers name it [default: default]
    #[arg(long, value_name = "NAME", requires = "compaction_pool")]
    pub pool_queue: Option<String>,
    /// File with what the pool's server asks for: `token TOKEN` or `user NAME PASSWORD`; nobody else may read it
    #[arg(long, value_name = "FILE", requires = "compaction_pool")]
    pub pool_credentials: Option<PathBuf>,
    /// File with the certificates that the server's must come from, in place of the system's
    #[arg(long, value_name = "FILE", requires = "compaction_pool")]
    pub pool_ca: Option<PathBuf>,
    /// How long a compaction waits for a worker of the pool, before it is done here [default: 2]
    #[arg(long, value_name = "SECONDS", requires = "compaction_pool")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub pool_wait: Option<u32>,
    /// File with the store's secret and those of workers; nobody else may read it
    #[arg(long, value_name = "FILE", requires = "who_compacts")]
    pub worker_secrets: Option<PathBuf>,
    /// Use workers on other machines without secrets: anyone on the network can read and change tables
    #[arg(long, requires = "who_compacts")]
    pub allow_unauthenticated_workers: bool,
    /// Smaller compactions are done here [default: 16M]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, requires = "who_compacts")]
    pub worker_input_min: Option<u64>,
    /// How many compactions each worker of the list gets at a time; as `rockmill worker --jobs` of these workers
    /// [default: 1]
    #[arg(long, value_name = "N", requires = "compaction_workers", conflicts_with = "compaction_pool")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub worker_jobs: Option<u32>,
    /// So many compactions run here before others go to workers [default: 0]
    #[arg(long, value_name = "N", requires = "who_compacts", value_parser = clap::value_parser!(u16).range(0..=1024))]
    pub compactions_here_first: Option<u16>,
    /// What is read of the tables that workers wrote: all, or all but the data and a part of that, as 10% [default:
    /// all]
    #[arg(long, value_name = "all|N%", requires = "who_compacts")]
    pub worker_check: Option<Check>,
    /// Workers read inputs at this target of NVMe/TCP, not here: it exports DEVICE, which the tables are on, from byte
    /// START of the namespace on
    #[arg(long, value_name = "ADDR,SUBSYSTEM,NSID,DEVICE[,START]", requires = "who_compacts")]
    pub external_target: Option<ExternalTarget>,
}

impl WorkerArgs {
    /// These arguments, completed from the file of `--config`.
    fn with_file(&self) -> Result<Self> {
        let Self { listen, config, make_secrets, name, secrets, allow_unauthenticated, .. } = self.clone();
        let Self { jobs, threads, device, engine, kernel_driver, metrics, .. } = self.clone();
        let Self { pool, pool_queue, pool_credentials, pool_ca, .. } = self.clone();
        let Some(path) = &config else { return Ok(self.clone()) };
        let file: Self = worker_config::read(path, &["config", "make-secrets"])?;
        Ok(Self {
            listen: listen.or(file.listen),
            name: name.or(file.name),
            secrets: secrets.or(file.secrets),
            allow_unauthenticated: allow_unauthenticated || file.allow_unauthenticated,
            jobs: jobs.or(file.jobs),
            threads: threads.or(file.threads),
            device: device.or(file.device),
            engine: engine.or(file.engine),
            kernel_driver: kernel_driver.or(file.kernel_driver),
            metrics: metrics.or(file.metrics),
            pool: if pool.is_empty() { file.pool } else { pool },
            pool_queue: pool_queue.or(file.pool_queue),
            pool_credentials: pool_credentials.or(file.pool_credentials),
            pool_ca: pool_ca.or(file.pool_ca),
            config,
            make_secrets,
        })
    }
}

fn clock() -> Arc<dyn Clock> {
    Arc::new(SystemClock::default())
}

fn resolve(address: &str) -> Result<SocketAddr> {
    let found = address.to_socket_addrs().map(|mut all| all.next());
    match found {
        Ok(Some(found)) => Ok(found),
        Ok(None) => Err(CliError::usage(format!("{address:?} is not an address"))),
        Err(e) => {
            Err(CliError::usage(format!("{address:?} is not an address: {e}")).hint("for example 127.0.0.1:4421"))
        }
    }
}

/// Reads a file of secrets; refuses one that others may read.
fn read_secrets(path: &Path) -> Result<Secrets> {
    let text = read_private(path)?;
    Secrets::parse(&text).map_err(|e| CliError::data(format!("{}: {e}", path.display())))
}

/// A pool as the command line has it. `None`: there is none, and nothing of one is given.
fn pool(
    servers: &[String],
    queue: Option<&String>,
    credentials: Option<&PathBuf>,
    ca: Option<&PathBuf>,
) -> Result<Option<PoolConfig>> {
    if servers.is_empty() {
        // For a file of flags: the command line of stores knows itself what needs what.
        return match queue.is_some() || credentials.is_some() || ca.is_some() {
            true => Err(CliError::usage("--pool-queue, --pool-credentials and --pool-ca need --pool")),
            false => Ok(None),
        };
    }
    let mut pool = PoolConfig::new(servers.to_vec());
    if let Some(queue) = queue {
        pool.queue.clone_from(queue);
    }
    if let Some(path) = credentials {
        let parsed = read_private(path)?.parse::<PoolCredentials>();
        pool.credentials = Some(parsed.map_err(|e| CliError::data(format!("{}: {e}", path.display())))?);
    }
    pool.ca = ca.cloned();
    Ok(Some(pool))
}

/// Reads a file that nobody else may read.
fn read_private(path: &Path) -> Result<String> {
    let shown = path.display();
    rockmill_offload::read_private(path).map_err(|e| match e.kind() {
        ErrorKind::PermissionDenied if e.raw_os_error().is_none() => {
            CliError::usage(format!("{shown}: {e}")).hint(format!("chmod 600 {shown}"))
        }
        _ => CliError::io(&shown, &e),
    })
}

/// Writes a file of secrets for each side.
fn make_secrets(dir: &Path, worker: &str, out: &mut Out) -> Result<()> {
    let store = WorkersConfig::new(Vec::new()).name;
    let texts = Secrets::generate(&store, worker).map_err(|e| CliError::usage(format!("--make-secrets: {e}")))?;
    let paths = ["host.secrets", "worker.secrets"].map(|name| dir.join(name));
    // A new file next to an old one would be useless.
    if let Some(path) = paths.iter().find(|path| path.symlink_metadata().is_ok()) {
        return Err(CliError::usage(format!("{} already exists", path.display())).hint("give another directory"));
    }
    let mut made = Vec::new();
    for (path, text) in paths.into_iter().zip(texts) {
        let new = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        new.and_then(|mut file| file.write_all(text.as_bytes())).map_err(|e| CliError::io(path.display(), &e))?;
        made.push(path.display().to_string());
    }
    if !rockmill_offload::TLS {
        output::tell(
            "note: without keys of TLS, since this program was built without it (the feature `tls`): both sides \
                      authenticate, and nothing is encrypted",
        );
    }
    match out.json {
        true => out.json_object(&json!({ "host": made[0], "worker": made[1] })),
        false => made.iter().try_for_each(|path| out.line(path)),
    }
}

/// Applies the command line's worker options.
pub fn set_workers(options: &mut Options, args: &OffloadArgs) -> Result<()> {
    let pool =
        pool(&args.compaction_pool, args.pool_queue.as_ref(), args.pool_credentials.as_ref(), args.pool_ca.as_ref())?;
    if args.compaction_workers.is_empty() && pool.is_none() {
        return Ok(());
    }
    let flag = if pool.is_some() { "--compaction-pool" } else { "--compaction-workers" };
    let workers = args.compaction_workers.iter().map(|address| resolve(address)).collect::<Result<Vec<_>>>()?;
    let mut config = WorkersConfig::new(workers);
    config.pool = pool;
    config.pool_wait = args.pool_wait.map_or(config.pool_wait, |seconds| Duration::from_secs(seconds.into()));
    config.secrets = args.worker_secrets.as_deref().map(read_secrets).transpose()?;
    config.allow_unauthenticated = args.allow_unauthenticated_workers;
    config.input_bytes_min = args.worker_input_min.unwrap_or(config.input_bytes_min);
    config.jobs_max = args.worker_jobs.map_or(config.jobs_max, |n| n as usize);
    config.here_first = args.compactions_here_first.unwrap_or(0).into();
    config.check = args.worker_check.unwrap_or_default();
    if let Some(target) = &args.external_target {
        let device = &target.device;
        rockmill_io::block_device_number(device).map_err(|e| {
            CliError::usage(format!("--external-target: {}: {e}", device.display()))
                .hint("name the device with the database's file system, as `df` shows it")
        })?;
    }
    config.external = args.external_target.clone();
    let workers = Workers::new(config, clock()).map_err(|e| {
        let wrong = CliError::usage(format!("{flag}: {e}"));
        match args.compaction_pool.is_empty() {
            true => wrong.hint("give --worker-secrets, or --allow-unauthenticated-workers"),
            false => wrong,
        }
    })?;
    options.set_compaction_workers(workers);
    Ok(())
}

/// `rockmill worker`
pub fn worker(args: &WorkerArgs, out: &mut Out) -> Result<()> {
    if let Some(dir) = &args.make_secrets {
        return make_secrets(dir, args.name.as_deref().unwrap_or(&WorkerConfig::default().name), out);
    }
    let args = &args.with_file()?;
    let Some(listen) = &args.listen else {
        return Err(CliError::usage("neither --listen nor the file of --config says where to listen")
            .hint("for example listen = 127.0.0.1:4421"));
    };
    let address = resolve(listen)?;
    let metrics_address = args.metrics.as_deref().map(resolve).transpose()?;
    let mut config = WorkerConfig {
        secrets: args.secrets.as_deref().map(read_secrets).transpose()?,
        allow_unauthenticated: args.allow_unauthenticated,
        pool: pool(&args.pool, args.pool_queue.as_ref(), args.pool_credentials.as_ref(), args.pool_ca.as_ref())?,
        jobs_max: args.jobs.unwrap_or(1).into(),
        threads: args.threads.unwrap_or(1).into(),
        device: match args.device {
            Some(DeviceArg::Kernel) => DeviceKind::Kernel,
            Some(DeviceArg::User) | None => DeviceKind::User,
        },
        engine: args.engine.map_or(MergeEngine::Auto, EngineArg::engine),
        kernel_driver: args.kernel_driver.map_or_else(KernelDriver::default, DriverArg::driver),
        tell: output::tell,
        ..WorkerConfig::default()
    };
    if let Some(name) = &args.name {
        config.name.clone_from(name);
    }
    let running = Arc::new(Mutex::new(None::<Worker>));
    let ends = Arc::clone(&running);
    interrupt::on_end(move || {
        let Some(mut worker) = ends.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        worker.drain();
        let clock = clock();
        let until = clock.monotonic_nanos().saturating_add(DRAIN_SECONDS * 1_000_000_000);
        while worker.counters().running > 0 && clock.monotonic_nanos() < until {
            clock.sleep(Duration::from_millis(20));
        }
        worker.stop();
        let counters = worker.counters();
        output::tell(&format!(
            "{} done, {} failed, {} refused",
            output::plural(counters.done, "job"),
            counters.failed,
            counters.refused
        ));
    });
    let listen_at = |address: SocketAddr| {
        TcpListener::bind(address).map_err(|e| CliError::io(format_args!("cannot listen at {address}"), &e))
    };
    let listener = listen_at(address)?;
    let (engine, device) = (config.engine, config.device);
    let started = Worker::start(listener, config, clock());
    let worker = started.map_err(|e| match engine {
        MergeEngine::Kernel if device == DeviceKind::User => CliError::usage(format!("--engine {engine}: {e}")),
        MergeEngine::Kernel => CliError::usage(format!("--device kernel --engine {engine}: {e}")),
        _ if device == DeviceKind::Kernel => CliError::usage(format!("--device kernel: {e}")),
        _ if !args.pool.is_empty() => CliError::usage(format!("--listen {address}: {e}")),
        _ => CliError::usage(format!("--listen {address}: {e}")).hint("give --secrets, or --allow-unauthenticated"),
    })?;
    let address = worker.address();
    let serve_metrics = |address: SocketAddr| {
        let server = MetricsServer::start(listen_at(address)?, worker.metrics(), clock());
        server.map_err(|e| CliError::io(format_args!("--metrics {address}"), &e))
    };
    let metrics = metrics_address.map(serve_metrics).transpose()?;
    *running.lock().unwrap_or_else(PoisonError::into_inner) = Some(worker);
    let metrics_at = metrics.as_ref().map(|server| format!("http://{}/metrics", server.address()));
    match (out.json, metrics_at) {
        (true, at) => out.json_object(&json!({ "listening": address.to_string(), "metrics": at }))?,
        (false, at) => {
            out.line(format!("listening at {address}"))?;
            at.map_or(Ok(()), |at| out.line(format!("metrics at {at}")))?;
        }
    }
    out.flush()?;
    loop {
        std::thread::park(); // until a signal ends the process
    }
}
