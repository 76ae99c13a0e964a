//! The initiator: a [`Queue`] as a state machine, and a host's calls over it.
//!
//! ```text
//!  Admin, Io         calls: connect, identify, read, write …; straight-line code over a Link
//!    │  Link         moves bytes of one Queue: sockets (tcp), or a target in the same process (tests)
//!  Queue             commands and bytes in, completions and bytes out: no sockets, no clock
//! ```

mod host;
mod queue;

pub use host::{Admin, AdminEvent, Controller, HostConfig, HostError, Io, Link, NamespaceInfo};
pub use queue::{Command, Completion, End, Queue, QueueConfig, SubmitError, Transfer};
