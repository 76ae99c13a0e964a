//! A target over TCP: one thread accepts connections, and each connection has a thread.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rockmill_io::Clock;

use super::host::waits;
use super::{ServerTls, Stream};
use crate::target::{Connection, Target};

/// How often a connection checks the time, and the server checks for new connections.
const POLL: Duration = Duration::from_millis(20);
/// The same for new connections at the start and just after one arrived: a host opens several, one after the other.
const POLL_FIRST: Duration = Duration::from_millis(1);
/// Bytes of one read.
const READ_BYTES: usize = 256 << 10;
/// The same where data of a write may come, which is read to where it is written from: its PDU's header, and not much
/// of the data.
const HEADER_READ_BYTES: usize = 512;
/// How long an ended connection waits for its host to close it, so that the host can read the reason.
const LINGER: Duration = Duration::from_secs(1);

/// Limits of a server.
#[derive(Clone, Copy, Debug)]
pub struct ServerConfig {
    /// Most concurrent connections. A further one takes the place of the oldest one whose host has not connected a
    /// queue, or not authenticated; without such a connection, it is closed immediately.
    pub connections_max: usize,
    /// A host that receives none of its answers for this long counts as lost.
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
    /// Serves a target on a listener.
    ///
    /// # Errors
    /// The listener has no address, or no thread can be started.
    pub fn start(
        listener: TcpListener,
        target: Arc<Target>,
        config: ServerConfig,
        clock: Arc<dyn Clock>,
    ) -> io::Result<Self> {
        Self::start_with(listener, target, config, None, clock)
    }

    /// The same, with TLS on every connection if there are keys: hosts without a key are disconnected. A host can
    /// connect only under the name, and only to the subsystem, that its key is for.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with(
        listener: TcpListener,
        target: Arc<Target>,
        config: ServerConfig,
        tls: Option<ServerTls>,
        clock: Arc<dyn Clock>,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        // A blocking accept would keep the server from stopping.
        listener.set_nonblocking(true)?;
        let stop = Arc::new(AtomicBool::new(false));
        let server = Serving { target, config, tls, clock, stop: Arc::clone(&stop) };
        let thread = thread::Builder::new().name("nvme-accept".into()).spawn(move || server.accept(&listener))?;
        Ok(Self { address, stop, thread: Some(thread) })
    }

    /// Its address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Closes all connections. Returns when all of their threads have ended.
    pub fn stop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // A panic of a connection's thread is not passed on.
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
    tls: Option<ServerTls>,
    clock: Arc<dyn Clock>,
    stop: Arc<AtomicBool>,
}

/// A connection that is served.
struct Served {
    thread: JoinHandle<()>,
    socket: TcpStream,
    /// Its host has a queue and is authenticated.
    is_known: Arc<AtomicBool>,
}

/// Ends the oldest connection whose host is not known. False if there is none.
fn give_way(connections: &mut Vec<Served>) -> bool {
    let Some(oldest) = connections.iter().position(|c| !c.is_known.load(Ordering::Acquire)) else { return false };
    let oldest = connections.remove(oldest);
    let _ = oldest.socket.shutdown(Shutdown::Both); // an error means that it is closed already
    // It ends at once: its thread only waits for the host. So there are never more than the limit.
    let _ = oldest.thread.join();
    true
}

impl Serving {
    fn stops(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(self.clock.monotonic_nanos())
    }

    fn accept(&self, listener: &TcpListener) {
        let mut connections: Vec<Served> = Vec::new();
        let mut pause = POLL_FIRST;
        while !self.stops() {
            connections.retain(|c| !c.thread.is_finished());
            let accepted = listener.accept();
            pause = if accepted.is_ok() { POLL_FIRST } else { (pause * 2).min(POLL) };
            match accepted {
                Ok((stream, _)) => {
                    if connections.len() < self.config.connections_max || give_way(&mut connections) {
                        connections.extend(self.begin(stream).ok());
                    }
                }
                // No new connection, or its host left before the accept, or no descriptor is available.
                Err(_) => self.clock.sleep(pause),
            }
        }
        for connection in connections {
            let _ = connection.thread.join();
        }
    }

    fn begin(&self, stream: TcpStream) -> io::Result<Served> {
        let (me, socket, is_known) = (self.clone(), stream.try_clone()?, Arc::<AtomicBool>::default());
        let known = Arc::clone(&is_known);
        // If its socket fails, the connection ends, and its host notices.
        let serve = move || drop(me.serve(stream, &known));
        let thread = thread::Builder::new().name("nvme-connection".into()).spawn(serve)?;
        Ok(Served { thread, socket, is_known })
    }

    fn serve(&self, socket: TcpStream, is_known: &AtomicBool) -> io::Result<()> {
        // A host's users come first: a message that arrives must not take the core from a thread that reads or writes.
        rockmill_io::stand_back();
        // Some systems let it inherit the non-blocking mode, with which the loop below would spin.
        socket.set_nonblocking(false)?;
        socket.set_nodelay(true)?;
        // The memory of TLS counts too.
        let mut connection = self.target.accept(self.now());
        let mut stream = match &self.tls {
            Some(tls) => {
                let limit = self.target.config().handshake_timeout;
                tls.accept(socket, &[], limit, &|| self.stops(), &self.clock)?
            }
            None => Stream::plain(socket),
        };
        if let (Some(host), Some(subsystem)) = (stream.host(), stream.subsystem()) {
            connection.only(host, subsystem);
        }
        if !stream.is_encrypted() {
            connection.send_files();
        }
        stream.set_read_timeout(POLL)?;
        stream.socket().set_write_timeout(Some(POLL))?;
        let mut buffer = vec![0; READ_BYTES];
        while !self.stops() {
            self.send(&mut stream, &mut connection)?;
            if connection.is_ended() {
                return self.linger(stream, &mut buffer);
            }
            let most = if connection.expects_data() { HEADER_READ_BYTES } else { READ_BYTES };
            let (read, is_data) = match connection.data_room() {
                Some(room) => (stream.read(room), true),
                None => (stream.read(&mut buffer[..most]), false),
            };
            match read {
                Ok(0) => return Ok(()),
                Ok(n) if is_data => connection.data_received(n),
                Ok(n) => {
                    let mut rest = &buffer[..n];
                    while !rest.is_empty() && !connection.is_ended() {
                        let taken = connection.receive(rest, self.now());
                        rest = &rest[taken..];
                        // Before the host learns it.
                        is_known.store(connection.is_authenticated(), Ordering::Release);
                        self.send(&mut stream, &mut connection)?;
                    }
                }
                Err(e) if waits(&e) => {}
                Err(e) => return Err(e),
            }
            connection.poll(self.now());
            is_known.store(connection.is_authenticated(), Ordering::Release);
        }
        Ok(())
    }

    fn send(&self, stream: &mut Stream, connection: &mut Connection) -> io::Result<()> {
        let mut progress = self.now();
        while !connection.output().is_empty() || connection.file().is_some() {
            // Also while the host takes its answers: they may be many.
            if self.stops() {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            match Self::send_some(stream, connection) {
                Ok(()) => progress = self.now(),
                Err(e) if waits(&e) => {
                    connection.poll(self.now());
                    if self.now().saturating_sub(progress) > self.config.stall_timeout {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// One call on the socket, or a file that cannot be sent is read instead.
    fn send_some(stream: &mut Stream, connection: &mut Connection) -> io::Result<()> {
        let sent = match (connection.output(), connection.file()) {
            ([], _) => {
                return match connection.send_file(stream.socket()) {
                    Ok(n) if n > 0 => Ok(()),
                    // The socket takes nothing now. A timeout would be the file's.
                    Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Err(e),
                    // It has ended, or failed, or the socket has, which the next write tells.
                    _ => connection.read_file(),
                };
            }
            (output, None) => stream.write(output)?,
            (output, Some(_)) => stream.write_more(output)?,
        };
        if sent == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        connection.sent(sent);
        Ok(())
    }

    /// Closing a socket with unread bytes resets the connection, and the host would not get the reason.
    fn linger(&self, mut stream: Stream, buffer: &mut [u8]) -> io::Result<()> {
        stream.end_writing()?;
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
