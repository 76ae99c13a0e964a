//! Sockets for both sides, thinly: blocking ones of the standard library, with time limits, and one thread for each
//! connection of a server. Sockets of io_uring come later, through `rockmill-io`, behind the same state machines.

mod host;
mod server;

pub use host::{Cutter, LinkCounters, TcpHost, TcpLink};
pub use server::{ServerConfig, TcpServer};
