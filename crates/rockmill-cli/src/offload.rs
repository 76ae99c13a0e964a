//! Compactions on other machines: `rockmill worker`, and the options of commands that have compactions done by workers.

use std::net::{SocketAddr, TcpListener, ToSocketAddrs as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::Args;
use rockmill::Options;
use rockmill_io::{Clock, SystemClock};
use rockmill_offload::{MetricsServer, Secrets, Worker, WorkerConfig, Workers, WorkersConfig};
use serde_json::json;

use crate::args::parse_size;
use crate::error::{CliError, Result};
use crate::interrupt;
use crate::output::{self, Out};

/// How long a worker that is to end waits for its jobs.
const DRAIN_SECONDS: u64 = 60;

/// Do compactions of databases on other machines
///
/// Stores send jobs (--compaction-workers of load, compact and others). The worker reads the inputs' blocks and writes
/// the outputs' blocks over NVMe/TCP, in what the store exports for this job alone. It needs no disk. On SIGTERM or
/// Ctrl-C it begins no more jobs, and ends when those that run are done, or after a minute.
///
/// Without secrets it listens for this machine only. Secrets authenticate, and nothing is encrypted: docs/offload.md.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rockmill worker --listen 127.0.0.1:4421
  rockmill worker --listen 10.0.0.7:4421 --secrets worker.secrets --jobs 2 --threads 4
  rockmill worker --listen 127.0.0.1:4421 --metrics 127.0.0.1:9421")]
pub struct WorkerArgs {
    /// Address and port
    #[arg(long, value_name = "ADDR")]
    pub listen: String,
    /// Name that stores know the worker's secret by [default: nqn.2026-11.rockmill:worker]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// File with the worker's secret and those of stores; nobody else may read it
    #[arg(long, value_name = "FILE")]
    pub secrets: Option<PathBuf>,
    /// Listen for other machines without secrets: whoever connects may have jobs done
    #[arg(long)]
    pub allow_unauthenticated: bool,
    /// Jobs at a time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub jobs: u16,
    /// Threads of one job
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: u16,
    /// Address and port where Prometheus gets its counters (GET /metrics), without secrets
    #[arg(long, value_name = "ADDR")]
    pub metrics: Option<String>,
}

/// Who does compactions besides this process.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Store options (not given: as stored in the database, in a new one as shown)")]
pub struct OffloadArgs {
    /// Workers (`rockmill worker`) that do large compactions; what fails there is done here
    #[arg(long, value_name = "ADDR,...", value_delimiter = ',')]
    pub compaction_workers: Vec<String>,
    /// File with the store's secret and those of workers; nobody else may read it
    #[arg(long, value_name = "FILE", requires = "compaction_workers")]
    pub worker_secrets: Option<PathBuf>,
    /// Use workers on other machines without secrets: whoever is on the network can read and change tables
    #[arg(long, requires = "compaction_workers")]
    pub allow_unauthenticated_workers: bool,
    /// Smaller compactions are done here [default: 16M]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, requires = "compaction_workers")]
    pub worker_input_min: Option<u64>,
}

fn clock() -> Arc<dyn Clock> {
    Arc::new(SystemClock::default())
}

fn resolve(address: &str) -> Result<SocketAddr> {
    let found = address.to_socket_addrs().map(|mut all| all.next());
    match found {
        Ok(Some(found)) => Ok(found),
        Ok(None) => Err(CliError::usage(format!("{address:?} is no address"))),
        Err(e) => Err(CliError::usage(format!("{address:?} is no address: {e}")).hint("for example 127.0.0.1:4421")),
    }
}

/// Reads a file of secrets, which nobody else may read.
fn read_secrets(path: &Path) -> Result<Secrets> {
    let shown = path.display();
    let mode = std::fs::metadata(path).map_err(|e| CliError::io(&shown, &e))?.permissions().mode();
    if mode & 0o077 != 0 {
        return Err(CliError::usage(format!("{shown}: others may read or change these secrets"))
            .hint(format!("chmod 600 {shown}")));
    }
    let text = std::fs::read_to_string(path).map_err(|e| CliError::io(&shown, &e))?;
    Secrets::parse(&text).map_err(|e| CliError::data(format!("{shown}: {e}")))
}

/// Sets what the command line says of workers.
pub fn set_workers(options: &mut Options, args: &OffloadArgs) -> Result<()> {
    if args.compaction_workers.is_empty() {
        return Ok(());
    }
    let workers = args.compaction_workers.iter().map(|address| resolve(address)).collect::<Result<Vec<_>>>()?;
    let mut config = WorkersConfig::new(workers);
    config.secrets = args.worker_secrets.as_deref().map(read_secrets).transpose()?;
    config.allow_unauthenticated = args.allow_unauthenticated_workers;
    config.input_bytes_min = args.worker_input_min.unwrap_or(config.input_bytes_min);
    let workers = Workers::new(config, clock()).map_err(|e| {
        CliError::usage(format!("--compaction-workers: {e}"))
            .hint("give --worker-secrets, or --allow-unauthenticated-workers")
    })?;
    options.set_compaction_workers(workers);
    Ok(())
}

/// `rockmill worker`
pub fn worker(args: &WorkerArgs, out: &mut Out) -> Result<()> {
    let address = resolve(&args.listen)?;
    let metrics_address = args.metrics.as_deref().map(resolve).transpose()?;
    let mut config = WorkerConfig {
        secrets: args.secrets.as_deref().map(read_secrets).transpose()?,
        allow_unauthenticated: args.allow_unauthenticated,
        jobs_max: args.jobs.into(),
        threads: args.threads.into(),
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
    let started = Worker::start(listener, config, clock());
    let worker = started.map_err(|e| {
        CliError::usage(format!("--listen {address}: {e}")).hint("give --secrets, or --allow-unauthenticated")
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
