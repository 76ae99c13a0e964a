//! Compactions on other machines, over NVMe/TCP (docs/offload.md).
//!
//! ```text
//!   the store                                                       a worker
//!
//!   Workers ──────────────── control channel: spec, progress, result ───────────── Worker
//!     │ lease                                                                        │
//!   JobNamespace ─ Target ── NVMe/TCP: blocks of inputs and outputs ─── initiator ─ NvmeDevice
//!     │                                                                              │
//!   JobDevice (in `rockmill`)                                            WorkerMachine (in `rockmill`)
//! ```
//!
//! | module | what is there |
//! |---|---|
//! | `lease` | when a job of a worker is over, as a pure state machine |
//! | `message` | what is said on the control channel, and how it becomes bytes |
//! | `channel` | messages over a socket; both sides prove who they are |
//! | `secrets` | who knows which secret |
//! | `namespace`, `device` | a job's device as a namespace, and from the other side, by this process or the kernel |
//! | `external` | inputs that are read at a target that is not the store's |
//! | `host`, `worker` | both sides |
//! | `pool` | workers that a store does not know before: found through a NATS server |
//! | `check` | what the store reads of a worker's tables |
//! | `metrics` | what a worker counts, for Prometheus |
//!
//! The store does not depend on this crate: it asks a trait (`Options::set_compaction_workers`), which [`Workers`]
//! implements.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use rockmill_io::SystemClock;
//! use rockmill_offload::{Workers, WorkersConfig};
//!
//! let mut config = WorkersConfig::new(vec!["127.0.0.1:4421".parse()?]);
//! config.input_bytes_min = 64 << 20;
//! let mut options = rockmill::Options::default();
//! options.set_compaction_workers(Workers::new(config, Arc::new(SystemClock::default()))?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod channel;
mod check;
mod device;
mod external;
mod host;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod hostile;
pub mod lease;
mod message;
mod metrics;
mod namespace;
mod pool;
mod private_file;
mod secrets;
mod worker;

use std::io;

/// True where this crate is built with the feature `tls`. Without it, files of secrets with keys of TLS are refused.
pub const TLS: bool = cfg!(feature = "tls");

/// True where this crate is built with the feature `nats`. Without it, pools of workers are refused.
pub const NATS: bool = cfg!(feature = "nats");

pub use check::Check;
pub use external::ExternalTarget;
pub use host::{Workers, WorkersConfig};
pub use metrics::{MetricsServer, WorkerMetrics};
pub use pool::{PoolConfig, PoolCredentials};
pub use private_file::read_private;
pub use secrets::Secrets;
pub use worker::{DeviceKind, Worker, WorkerConfig, WorkerCounters};

/// The version of the control channel that this crate speaks. Both sides need the same.
pub const VERSION: u32 = 5;

/// How the names of jobs' subsystems begin.
const JOB_SUBSYSTEMS: &str = "nqn.2026-11.rockmill:job:";

/// What is wrong with an address without secrets.
const NOT_PRIVATE: &str = "without secrets, only addresses of this machine are used, unless it is allowed expressly";

fn bad_configuration(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what.into())
}

/// Refuses a name that cannot be sent as it is: what both sides prove depends on each byte of it.
fn check_name(name: &str) -> Result<(), String> {
    match (1..=message::NAME_BYTES_MAX).contains(&name.len()) && !name.contains(char::is_control) {
        true => Ok(()),
        false => Err(format!("a name has 1 to {} bytes without control characters", message::NAME_BYTES_MAX)),
    }
}

#[cfg(test)]
mod tests;
