//! A host and a target in one process; the test controls the wire between them.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rockmill_nvme::initiator::{Admin, HostConfig, Io, Link, Queue, QueueConfig};
use rockmill_nvme::target::{Connection, MemoryNamespace, Target, TargetConfig};

pub const NQN: &str = "nqn.2026-11.test:store";
pub const BLOCK: usize = 512;

/// A clock that several parts share.
pub type Now = Rc<Cell<Duration>>;

/// A change of the bytes on their way.
pub type Damage = Rc<dyn Fn(&mut Vec<u8>, bool)>;

/// A host's queue, and the target's connection that it talks to.
pub struct Wire {
    pub queue: Queue,
    pub connection: Connection,
    pub now: Now,
    /// Bytes that go at once.
    pub cut: usize,
    /// Changes bytes on their way; true for those to the target.
    pub damage: Option<Damage>,
}

impl Wire {
    pub fn new(target: &Arc<Target>, config: QueueConfig, now: &Now, cut: usize) -> Self {
        let connection = target.accept(now.get());
        Self { queue: Queue::new(config), connection, now: Rc::clone(now), cut, damage: None }
    }

    /// Moves all pending bytes. Returns how many.
    pub fn turn(&mut self) -> usize {
        let mut moved = 0;
        loop {
            let before = moved;
            let mut out = self.queue.output().to_vec();
            self.queue.sent(out.len());
            moved += out.len();
            if let Some(damage) = &self.damage {
                damage(&mut out, true);
            }
            for mut piece in out.chunks(self.cut) {
                while !piece.is_empty() && !self.connection.is_ended() {
                    // Pieces of an odd length go to their places, as from a socket.
                    let in_place = self.cut % 2 == 1;
                    let taken = match self.connection.data_room().filter(|_| in_place) {
                        Some(room) => {
                            let taken = room.len().min(piece.len());
                            room[..taken].copy_from_slice(&piece[..taken]);
                            self.connection.data_received(taken);
                            taken
                        }
                        None => self.connection.receive(piece, self.now.get()),
                    };
                    piece = &piece[taken..];
                    moved += self.back();
                }
            }
            moved += self.back();
            if moved == before {
                self.connection.poll(self.now.get());
                moved += self.back();
                return moved;
            }
        }
    }

    fn back(&mut self) -> usize {
        let mut out = self.connection.output().to_vec();
        let n = out.len();
        self.connection.sent(n);
        if let Some(damage) = &self.damage {
            damage(&mut out, false);
        }
        for piece in out.chunks(self.cut) {
            self.queue.receive(piece);
        }
        n
    }
}

impl Link for Wire {
    fn queue(&mut self) -> &mut Queue {
        &mut self.queue
    }

    fn exchange(&mut self) -> io::Result<()> {
        match self.turn() {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            _ => Ok(()),
        }
    }
}

/// What a test begins with.
pub struct Bench {
    pub target: Arc<Target>,
    /// Namespace 1: 8,192 blocks of 512 bytes.
    pub disk: Arc<MemoryNamespace>,
    /// Namespace 3, read only: 64 blocks of 4,096 bytes.
    pub fixed: Arc<MemoryNamespace>,
    pub now: Now,
    pub host: HostConfig,
    pub cut: usize,
}

impl Bench {
    pub fn new() -> Self {
        Self::with(TargetConfig::new(NQN))
    }

    pub fn with(config: TargetConfig) -> Self {
        let target = Target::new(config).unwrap();
        let disk = Arc::new(MemoryNamespace::new(BLOCK as u32, 8192, false));
        let fixed = Arc::new(MemoryNamespace::new(4096, 64, true));
        fixed.fill(|i| (i / 4096) as u8);
        target.add_namespace(1, disk.clone()).unwrap();
        target.add_namespace(3, fixed.clone()).unwrap();
        let host = HostConfig {
            subsystem: NQN.into(),
            host: "nqn.2026-11.test:host".into(),
            host_id: [9; 16],
            keep_alive_ms: 0,
            auth: None,
            queue: QueueConfig::default(),
        };
        Self { target, disk, fixed, now: Rc::default(), host, cut: usize::MAX }
    }

    pub fn wire(&self, config: QueueConfig) -> Wire {
        Wire::new(&self.target, config, &self.now, self.cut)
    }

    pub fn admin(&self) -> Admin<Wire> {
        Admin::connect(self.wire(self.host.queue), self.host.clone()).unwrap()
    }

    pub fn io(&self, admin: &Admin<Wire>, queue: u16) -> Io<Wire> {
        Io::connect(self.wire(admin.controller().queue_config()), admin.controller(), queue).unwrap()
    }
}

pub fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(seed);
    std::iter::repeat_with(|| rng.u8(..)).take(bytes).collect()
}
