//! What stands between the two ends of connections in tests: it delays, limits the rate, cuts, holds back, shortens and
//! changes what goes by. `tc netem` needs a module that few kernels of test machines have.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// What happens to everything that goes by.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Rules {
    /// How long each piece is on its way, in each direction.
    pub delay: Duration,
    /// Bytes per second of each connection and direction; 0: no limit.
    pub rate: u64,
    /// A connection is cut after so many bytes in both directions; 0: never.
    pub bytes_max: u64,
    /// Pieces are PDUs of NVMe/TCP, not what happens to come at once.
    pub pdus: bool,
}

/// What happens once, at one piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// Its connection ends before the piece.
    Cut,
    /// Its connection ends after half of the piece.
    Shorten,
    /// Its connection ends for the side that opened it; the other side sees nothing of that.
    HalfOpen,
    /// From here on nothing goes by, on any connection, until `let_go`.
    Hold,
    /// A bit of the piece changes.
    Flip,
}

/// It ends with the process.
#[derive(Debug)]
pub(crate) struct Between {
    /// Where it stands.
    pub address: SocketAddr,
    to: Mutex<SocketAddr>,
    rules: Rules,
    event: Option<(u64, Event)>,
    pieces: AtomicU64,
    has_happened: AtomicBool,
    holds: AtomicBool,
    connections: AtomicU64,
    /// Those that are half open.
    kept: Mutex<Vec<TcpStream>>,
}

impl Between {
    /// Stands before `to`. At the piece of this number, counted from 0 over all connections, the event happens.
    pub fn before(to: SocketAddr, rules: Rules, event: Option<(u64, Event)>) -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let me = Arc::new(Self {
            address: listener.local_addr().unwrap(),
            to: Mutex::new(to),
            rules,
            event,
            pieces: AtomicU64::default(),
            has_happened: AtomicBool::default(),
            holds: AtomicBool::default(),
            connections: AtomicU64::default(),
            kept: Mutex::default(),
        });
        let all = Arc::clone(&me);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                all.connections.fetch_add(1, Ordering::Relaxed);
                let me = Arc::clone(&all);
                // A held connection is open, and nothing more.
                thread::spawn(move || {
                    me.wait();
                    let to = *me.to.lock().unwrap();
                    if let Ok(server) = TcpStream::connect(to) {
                        Self::join(&me, &client, &server);
                    }
                });
            }
        });
        me
    }

    /// New connections go there.
    pub fn lead_to(&self, to: SocketAddr) {
        *self.to.lock().unwrap() = to;
    }

    /// From here on nothing goes by.
    pub fn hold(&self) {
        self.holds.store(true, Ordering::Release);
    }

    /// What was held goes on.
    pub fn let_go(&self) {
        self.holds.store(false, Ordering::Release);
    }

    pub fn has_happened(&self) -> bool {
        self.has_happened.load(Ordering::Acquire)
    }

    /// Pieces that came so far.
    pub fn pieces(&self) -> u64 {
        self.pieces.load(Ordering::Acquire)
    }

    /// Connections that came so far.
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    fn wait(&self) {
        while self.holds.load(Ordering::Acquire) {
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn join(me: &Arc<Self>, client: &TcpStream, server: &TcpStream) {
        let carried = Arc::<AtomicU64>::default();
        for (from, to, from_client) in [(client, server, true), (server, client, false)] {
            let _ = from.set_nodelay(true);
            let (sends, pieces) = mpsc::channel();
            let (mut source, target) = (from.try_clone().unwrap(), to.try_clone().unwrap());
            let (reads, writes, carried) = (Arc::clone(me), Arc::clone(me), Arc::clone(&carried));
            let both = [client.try_clone().unwrap(), server.try_clone().unwrap()];
            thread::spawn(move || {
                let ended = reads.take(&mut source, &sends, &carried);
                drop(sends);
                match ended {
                    Ok(()) | Err(Event::Shorten) => {}
                    Err(Event::HalfOpen) => {
                        let [client, server] = both;
                        reads.kept.lock().unwrap().push(server.try_clone().unwrap());
                        let _ = client.shutdown(Shutdown::Both);
                    }
                    Err(_) => both.iter().for_each(|stream| drop(stream.shutdown(Shutdown::Both))),
                }
            });
            let is_kept = move |me: &Self| from_client && matches!(me.event, Some((_, Event::HalfOpen)));
            thread::spawn(move || {
                writes.give(target.try_clone().unwrap(), &pieces);
                if !(is_kept(&writes) && writes.has_happened()) {
                    let _ = target.shutdown(Shutdown::Both);
                }
            });
        }
    }

    /// Takes what one side sends, until it ends or an event ends it.
    fn take(&self, from: &mut TcpStream, to: &Sender<(Instant, Vec<u8>)>, carried: &AtomicU64) -> Result<(), Event> {
        loop {
            let Ok(mut piece) = self.piece(from) else { return Ok(()) };
            if piece.is_empty() {
                return Ok(());
            }
            let number = self.pieces.fetch_add(1, Ordering::AcqRel);
            let event = self.event.filter(|(at, _)| *at == number).map(|(_, event)| event);
            self.has_happened.fetch_or(event.is_some(), Ordering::AcqRel);
            match event {
                None => {}
                Some(Event::Hold) => self.hold(),
                Some(Event::Flip) => {
                    let middle = piece.len() / 2;
                    piece[middle] ^= 0x20;
                }
                Some(Event::Shorten) => {
                    piece.truncate(piece.len() / 2);
                    let _ = to.send((Instant::now(), piece));
                    return Err(Event::Shorten);
                }
                Some(event) => return Err(event),
            }
            let all = carried.fetch_add(piece.len() as u64, Ordering::AcqRel) + piece.len() as u64;
            if self.rules.bytes_max > 0 && all > self.rules.bytes_max {
                return Err(Event::Cut);
            }
            let _ = to.send((Instant::now(), piece));
        }
    }

    fn piece(&self, from: &mut TcpStream) -> io::Result<Vec<u8>> {
        if !self.rules.pdus {
            let mut piece = vec![0; 16 << 10];
            let n = from.read(&mut piece)?;
            piece.truncate(n);
            return Ok(piece);
        }
        let mut piece = vec![0; 8];
        from.read_exact(&mut piece)?;
        let length = u32::from_le_bytes([piece[4], piece[5], piece[6], piece[7]]) as usize;
        piece.resize(length.clamp(8, 16 << 20), 0);
        from.read_exact(&mut piece[8..])?;
        Ok(piece)
    }

    /// Gives on what was taken, when it is due.
    fn give(&self, mut to: TcpStream, pieces: &Receiver<(Instant, Vec<u8>)>) {
        for (since, piece) in pieces {
            thread::sleep((since + self.rules.delay).saturating_duration_since(Instant::now()));
            self.wait();
            if self.rules.rate > 0 {
                thread::sleep(Duration::from_secs_f64(piece.len() as f64 / self.rules.rate as f64));
            }
            if to.write_all(&piece).is_err() {
                return;
            }
        }
    }
}
