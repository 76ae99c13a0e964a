//! The worker of a run: a process of its own, or one that somebody else started.

use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::error::{Error, Result};

/// Name of the program with the subcommand `worker`.
const PROGRAM: &str = "rockmill";

/// A worker. A process that was started for this is ended when it is dropped.
#[derive(Debug)]
pub struct WorkerProcess {
    child: Option<Child>,
    address: SocketAddr,
}

impl WorkerProcess {
    /// Starts `PROGRAM worker` at a port of this machine. Without a name it is this program, or the one beside it.
    pub fn start(program: &str, threads: u16) -> Result<Self> {
        let program = match program {
            "" => beside(&std::env::current_exe().map_err(|e| Error::io("this program's own path", &e))?)?,
            given => PathBuf::from(given),
        };
        let mut child = Command::new(&program)
            .args(["worker", "--listen", "127.0.0.1:0", "--threads", &threads.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| Error::io(format_args!("cannot start {}", program.display()), &e))?;
        let mut line = String::new();
        if let Some(stdout) = &mut child.stdout {
            BufReader::new(stdout).read_line(&mut line).map_err(|e| Error::io("the worker", &e))?;
        }
        let address = line.trim_end().strip_prefix("listening at ").and_then(|address| address.parse().ok());
        // From here on it ends with this.
        let mut started = Self { child: Some(child), address: SocketAddr::from(([127, 0, 0, 1], 0)) };
        started.address =
            address.ok_or_else(|| Error::Run(format!("{} says {line:?} in place of an address", program.display())))?;
        Ok(started)
    }

    /// One that listens somewhere.
    pub fn elsewhere(address: &str) -> Result<Self> {
        let found = address.to_socket_addrs().ok().and_then(|mut all| all.next());
        let address = found.ok_or_else(|| Error::Usage(format!("--worker={address} is no address and port")))?;
        Ok(Self { child: None, address })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // It has no state that an orderly end would save. One that ended by itself is what is wanted.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The program with the subcommand: this one, or its neighbour.
fn beside(own: &Path) -> Result<PathBuf> {
    if own.file_stem().is_some_and(|name| name == PROGRAM) {
        return Ok(own.to_owned());
    }
    // Tests and examples are one folder deeper.
    let folders = own.ancestors().skip(1).take(2);
    let found = folders.map(|folder| folder.join(PROGRAM)).find(|path| path.is_file());
    found.ok_or_else(|| Error::Usage(format!("there is no program {PROGRAM} beside this one: give --worker_program")))
}
