//! The worker of a run: a separate process, or one that is already running.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rockmill_offload::{Secrets, WorkerConfig, WorkersConfig};

use super::flags::OffloadFlags;
use crate::error::{Error, Result};

/// Name of the program with the subcommand `worker`.
const PROGRAM: &str = "rockmill";

/// A worker. Dropping it ends a process that was started for it.
#[derive(Debug)]
pub struct WorkerProcess {
    child: Option<Child>,
    address: SocketAddr,
    /// What this side has for it.
    secrets: Option<Secrets>,
}

impl WorkerProcess {
    /// Starts `PROGRAM worker` as the flags have it.
    pub fn start(program: &Path, flags: &OffloadFlags) -> Result<Self> {
        let mut command = Command::new(program);
        command.args(["worker", "--listen", &flags.worker_listen.to_string()]);
        command.args(["--threads", &flags.threads.to_string(), "--engine", flags.worker_engine.name()]);
        if flags.tls {
            command.args(["--secrets", "/dev/stdin"]).stdin(Stdio::piped());
        } else {
            command.stdin(Stdio::null());
            if flags.allow_unauthenticated {
                command.arg("--allow-unauthenticated");
            }
        }
        let spawned = command.stdout(Stdio::piped()).spawn();
        let child = spawned.map_err(|e| Error::io(format_args!("cannot start {}", program.display()), &e))?;
        // From here on it ends with this.
        let mut started = Self { child: None, address: SocketAddr::from(([127, 0, 0, 1], 0)), secrets: None };
        let child = started.child.insert(child);
        if let Some(mut stdin) = child.stdin.take() {
            let (store, worker) = (WorkersConfig::new(Vec::new()).name, WorkerConfig::default().name);
            let [ours, theirs] = Secrets::generate(&store, &worker).map_err(Error::Run)?;
            stdin.write_all(theirs.as_bytes()).map_err(|e| Error::io("the worker", &e))?;
            started.secrets = Some(Secrets::parse(&ours).map_err(Error::Run)?);
        }
        let mut line = String::new();
        if let Some(stdout) = &mut child.stdout {
            BufReader::new(stdout).read_line(&mut line).map_err(|e| Error::io("the worker", &e))?;
        }
        let address = line.trim_end().strip_prefix("listening at ").and_then(|address| address.parse().ok());
        started.address =
            address.ok_or_else(|| Error::Run(format!("{} says {line:?} in place of an address", program.display())))?;
        Ok(started)
    }

    /// One that listens somewhere.
    pub fn elsewhere(address: &str) -> Result<Self> {
        let found = address.to_socket_addrs().ok().and_then(|mut all| all.next());
        let address = found.ok_or_else(|| Error::Usage(format!("--worker={address} is not an address and port")))?;
        Ok(Self { child: None, address, secrets: None })
    }

    /// This side's secrets; `None` without TLS.
    pub fn secrets(&self) -> Option<&Secrets> {
        self.secrets.as_ref()
    }

    /// Its number among the machine's processes, if it was started here.
    pub fn id(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // It has no state that an orderly end would save. An error means that it has already ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The program with the subcommand, as `--worker_program` names it. Without a name, this program, or the one in the
/// same directory.
pub(super) fn program(given: &str) -> Result<PathBuf> {
    match given {
        "" => beside(&std::env::current_exe().map_err(|e| Error::io("this program's own path", &e))?),
        given => Ok(PathBuf::from(given)),
    }
}

/// The program with the subcommand: this one, or the one in the same directory.
fn beside(own: &Path) -> Result<PathBuf> {
    if own.file_stem().is_some_and(|name| name == PROGRAM) {
        return Ok(own.to_owned());
    }
    // Tests and examples are one folder deeper.
    let folders = own.ancestors().skip(1).take(2);
    let found = folders.map(|folder| folder.join(PROGRAM)).find(|path| path.is_file());
    found.ok_or_else(|| Error::Usage(format!("there is no program {PROGRAM} next to this one: give --worker_program")))
}
