//! Ends connections that other threads use or open.

use std::io::{self, ErrorKind};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

/// Ends the connections of a host while other threads use or open them: their pending and later calls fail. Clones
/// share the connections.
#[derive(Debug, Clone, Default)]
pub struct Cutter(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    parent: Option<Cutter>,
    connections: Mutex<Connections>,
}

#[derive(Debug, Default)]
struct Connections {
    sockets: Vec<(u64, TcpStream)>,
    next: u64,
    children: Vec<Weak<Shared>>,
    is_cut: bool,
    limit: Option<Duration>,
}

/// A connection that a cutter can end. The cutter forgets it when this is dropped.
#[derive(Debug)]
pub(super) struct Cuttable {
    cutter: Cutter,
    id: u64,
}

impl Drop for Cuttable {
    fn drop(&mut self) {
        // Its clone of the socket would keep the connection open.
        self.cutter.0.connections.lock().sockets.retain(|(id, _)| *id != self.id);
    }
}

impl Cutter {
    /// Sets the time, on the host's monotonic clock, after which calls on the connections fail: for example while they
    /// are being opened. `None` removes the limit.
    pub fn set_limit(&self, at: Option<Duration>) {
        self.0.connections.lock().limit = at;
    }

    /// Ends the connections. No more can be opened.
    pub fn cut(&self) {
        let mut connections = self.0.connections.lock();
        connections.is_cut = true;
        for (_, socket) in connections.sockets.drain(..) {
            let _ = socket.shutdown(Shutdown::Both); // an error means that it is closed already
        }
        let children = std::mem::take(&mut connections.children);
        drop(connections);
        children.iter().filter_map(Weak::upgrade).for_each(|child| Self(child).cut());
    }

    /// A cutter of a part of the connections, which this one cuts, too.
    pub(super) fn child(&self) -> Self {
        let mut connections = self.0.connections.lock();
        let own = Connections { is_cut: connections.is_cut, ..Connections::default() };
        let child = Arc::new(Shared { parent: Some(self.clone()), connections: Mutex::new(own) });
        connections.children.retain(|child| child.strong_count() > 0);
        connections.children.push(Arc::downgrade(&child));
        Self(child)
    }

    /// True once the connections were ended.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.0.connections.lock().is_cut
    }

    /// The time left until the limit.
    pub(super) fn left(&self, now: Duration) -> Duration {
        let own = self.0.connections.lock().limit.map_or(Duration::MAX, |limit| limit.saturating_sub(now));
        self.0.parent.as_ref().map_or(own, |parent| parent.left(now).min(own))
    }

    /// Takes a connection before anything is sent on it.
    pub(super) fn take(&self, socket: &TcpStream) -> io::Result<Cuttable> {
        let mut connections = self.0.connections.lock();
        if connections.is_cut {
            return Err(io::Error::new(ErrorKind::ConnectionAborted, "the connection is no longer wanted"));
        }
        let id = connections.next;
        connections.next += 1;
        connections.sockets.push((id, socket.try_clone()?));
        Ok(Cuttable { cutter: self.clone(), id })
    }
}
