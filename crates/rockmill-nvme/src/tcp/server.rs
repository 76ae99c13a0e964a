//! A target over TCP: a thread that accepts, and one for each connection.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rockmill_io::Clock;

use super::host::waits;
use crate::target::{Connection, Target};

/// How often a connection looks at the time, and the server for new ones.
const POLL: Duration = Duration::from_millis(20);
/// The same for new ones at first, and after one came: a host opens several, each when the one before is there.
const POLL_FIRST: Duration = Duration::from_millis(1);
/// Bytes of one read.
const READ_BYTES: usize = 256 << 10;
/// How long a connection that ended waits for its host to close it, so that it can still read why.
const LINGER: Duration = Duration::from_secs(1);

/// Limits of a server.
#[derive(Clone, Copy, Debug)]
pub struct ServerConfig {
    /// Connections at once; more are closed at once.
    pub connections_max: usize,
    /// A host that takes none of its answers for this long is lost.
    pub stall_timeout: Duration,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self { connections_max: 256, stall_timeout: Duration::from_secs(30) }
    }
}

/// A server. It stops when it is dropped.
#[derive(Debug)]
pub struct TcpServer {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl TcpServer {
    /// Serves a target at a listener.
    ///
    /// # Errors
    /// The listener has no address, or there is no thread to be had.
    pub fn start(
        listener: TcpListener,
        target: Arc<Target>,
        config: ServerConfig,
        clock: Arc<dyn Clock>,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        // Accepting must not keep it from stopping.
        listener.set_nonblocking(true)?;
        let stop = Arc::new(AtomicBool::new(false));
        let server = Serving { target, config, clock, stop: Arc::clone(&stop) };
        let thread = thread::Builder::new().name("nvme-accept".into()).spawn(move || server.accept(&listener))?;
        Ok(Self { address, stop, thread: Some(thread) })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Closes all connections. Returns when none is served any more.
    pub fn stop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // A connection's panic is not this thread's; there is none to hand on.
            let _ = thread.join();
        }
    }
}

impl Drop for TcpServer {
    fn drop(&mut self) {
        self.stop();
    }
}

#[derive(Clone)]
struct Serving {
    target: Arc<Target>,
    config: ServerConfig,
    clock: Arc<dyn Clock>,
    stop: Arc<AtomicBool>,
}

impl Serving {
    fn stops(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(self.clock.monotonic_nanos())
    }

    fn accept(&self, listener: &TcpListener) {
        let mut threads: Vec<JoinHandle<()>> = Vec::new();
        let mut pause = POLL_FIRST;
        while !self.stops() {
            threads.retain(|t| !t.is_finished());
            let accepted = listener.accept();
            pause = if accepted.is_ok() { POLL_FIRST } else { (pause * 2).min(POLL) };
            match accepted {
                Ok((stream, _)) if threads.len() < self.config.connections_max => {
                    let me = self.clone();
                    // A connection whose socket fails is over; its host sees that.
                    let serve = move || drop(me.serve(stream));
                    threads.extend(thread::Builder::new().name("nvme-connection".into()).spawn(serve));
                }
                Ok(_) => {}
                // Nobody came, or a host left before it was accepted, or there are too few descriptors.
                Err(_) => self.clock.sleep(pause),
            }
        }
        for thread in threads {
            let _ = thread.join();
        }
    }

    fn serve(&self, mut stream: TcpStream) -> io::Result<()> {
        // Not inherited everywhere, but where it is, the loop below would spin.
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(POLL))?;
        stream.set_write_timeout(Some(POLL))?;
        let mut connection = self.target.accept(self.now());
        let mut buffer = vec![0; READ_BYTES];
        while !self.stops() {
            self.send(&mut stream, &mut connection)?;
            if connection.is_ended() {
                return self.linger(stream, &mut buffer);
            }
            match stream.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(n) => {
                    let mut rest = &buffer[..n];
                    while !rest.is_empty() && !connection.is_ended() {
                        let taken = connection.receive(rest, self.now());
                        rest = &rest[taken..];
                        self.send(&mut stream, &mut connection)?;
                    }
                }
                Err(e) if waits(&e) => {}
                Err(e) => return Err(e),
            }
            connection.poll(self.now());
        }
        Ok(())
    }

    fn send(&self, stream: &mut TcpStream, connection: &mut Connection) -> io::Result<()> {
        let mut progress = self.now();
        while !connection.output().is_empty() {
            match stream.write(connection.output()) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    connection.sent(n);
                    progress = self.now();
                }
                Err(e) if waits(&e) => {
                    connection.poll(self.now());
                    if self.stops() || self.now().saturating_sub(progress) > self.config.stall_timeout {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Closing a socket with unread bytes resets it, and the host would not learn why.
    fn linger(&self, mut stream: TcpStream, buffer: &mut [u8]) -> io::Result<()> {
        stream.shutdown(Shutdown::Write)?;
        let since = self.now();
        while !self.stops() && self.now().saturating_sub(since) < LINGER {
            match stream.read(buffer) {
                Ok(0) => return Ok(()),
                Err(e) if !waits(&e) => return Err(e),
                _ => {}
            }
        }
        Ok(())
    }
}
