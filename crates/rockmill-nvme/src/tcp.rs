//! A thin layer of sockets for both sides: the standard library's blocking sockets, with time limits, and one thread
//! per connection of a server. A driver over io_uring (through `rockmill-io`) would use the same state machines.

mod cutter;
mod host;
mod server;
mod stream;
#[cfg_attr(not(feature = "tls"), path = "tcp/no_tls.rs")]
mod tls;

pub use cutter::Cutter;
pub use host::{LinkCounters, Reconnect, TcpHost, TcpLink};
pub use server::{ServerConfig, TcpServer};
pub use stream::Stream;
pub use tls::{ClientTls, ServerTls};
