//! The target: a subsystem with namespaces, controllers that hosts make, and one state machine for each connection.
//!
//! ```text
//!  Target ── namespaces ── Slot ── dyn Namespace        shared by all connections
//!    │  └─── controllers ── Controller                  one for each host that connected an admin queue
//!    └ accept ─► Connection (admin queue) ─┐
//!    └ accept ─► Connection (I/O queue 1) ─┼─ of one controller
//!    └ accept ─► Connection (I/O queue 2) ─┘
//! ```
//!
//! A [`Connection`] takes bytes and times and gives bytes. It knows no socket and no clock. Connections of different
//! threads meet in the controller and the target, whose locks are held for table look-ups, never during I/O; a
//! namespace is the exception ([`Target::remove_namespace`]).
//!
//! What one connection may take of memory is bounded by its configuration:
//!
//! | memory | bound |
//! |---|---|
//! | a PDU that is being put together | twice the largest PDU: `h2c_data_max` or `in_capsule_max`, 8 KiB at least |
//! | data of writes that is asked for | `write_buffer_max`: an R2T is sent when there is room, not before |
//! | memory of the last write, kept for the next one | the largest transfer |
//! | answers that the host does not take | `output_max` and one answer: nothing is read while there is more |
//! | commands that wait for data | the queue's entries |
//! | event requests | 4 |

mod admin;
mod authentication;
mod connect;
mod connection;
mod controller;
mod io;
mod namespace;

pub use connection::Connection;
pub use namespace::{MemoryNamespace, Namespace};

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};

use crate::auth::AuthPolicy;
use crate::command::FABRICS_CAPSULE_DATA;
use crate::logs::DiscoveryEntry;
use crate::pdu::H2C_DATA_MIN;
use crate::status::Status;
use controller::Controller;

/// Entries that an admin queue may have, whatever else is configured: the least that the specification allows (ASQSZ).
const ADMIN_ENTRIES: u16 = 32;
/// Largest block of a namespace.
pub const BLOCK_BYTES_MAX: u32 = 65_536;

/// What a target offers and how much memory it spends.
#[derive(Clone, Debug)]
pub struct TargetConfig {
    /// The subsystem's qualified name.
    pub nqn: String,
    /// Serial number, up to 20 ASCII characters.
    pub serial: String,
    /// Names of hosts that may connect; `None` for any.
    pub hosts: Option<Vec<String>>,
    /// Hosts that may connect when they have proven who they are; `None` for no authentication. Of the discovery
    /// service nobody is asked for it.
    pub auth: Option<Arc<AuthPolicy>>,
    /// Entries of an I/O queue, at most: 2 to 4,096. An admin queue may have 32 in any case.
    pub queue_entries_max: u16,
    /// I/O queues of a controller, at most: 1 to 1,024.
    pub io_queues_max: u16,
    /// Controllers at once, at most.
    pub controllers_max: u16,
    /// Largest namespace id.
    pub namespaces_max: u32,
    /// In-capsule data of I/O queues, at most: a multiple of 16.
    pub in_capsule_max: u32,
    /// Data of one PDU from the host, at most: a multiple of 4, 4 KiB at least.
    pub h2c_data_max: u32,
    /// Data of one PDU to the host, at most; rounded down to whole blocks, one at least.
    pub c2h_data_max: u32,
    /// Data that one R2T asks for, at most: a multiple of 4.
    pub r2t_bytes_max: u32,
    /// Largest transfer of a command, as a power of two of 4 KiB: 1 to 10.
    pub transfer_shift: u8,
    /// Data of writes in a connection's memory, at most: a largest transfer at least.
    pub write_buffer_max: usize,
    /// Answers that a connection holds before it reads no more.
    pub output_max: usize,
    /// Where data in PDUs from the host begins, in units of 4 bytes, 0 for one: up to 31 (CPDA).
    pub alignment: u8,
    /// Header digests are used where the host wants them.
    pub header_digest: bool,
    /// Data digests are used where the host wants them.
    pub data_digest: bool,
    /// The longest keep alive timeout.
    pub keep_alive_max: Duration,
    /// How long a connection may take until its Connect command succeeds and its host is authenticated.
    pub handshake_timeout: Duration,
}

impl TargetConfig {
    /// The defaults, for this subsystem.
    #[must_use]
    pub fn new(nqn: &str) -> Self {
        Self {
            nqn: nqn.to_owned(),
            serial: "rockmill".to_owned(),
            hosts: None,
            auth: None,
            queue_entries_max: 128,
            io_queues_max: 16,
            controllers_max: 64,
            namespaces_max: 1024,
            in_capsule_max: 8192,
            h2c_data_max: 128 << 10,
            c2h_data_max: 128 << 10,
            r2t_bytes_max: 1 << 20,
            transfer_shift: 8,
            write_buffer_max: 4 << 20,
            output_max: 1 << 20,
            alignment: 0,
            header_digest: true,
            data_digest: true,
            keep_alive_max: Duration::from_secs(3600),
            handshake_timeout: Duration::from_secs(10),
        }
    }

    /// Bytes of the largest transfer.
    #[must_use]
    pub fn transfer_max(&self) -> u32 {
        4096 << self.transfer_shift
    }

    /// Bytes of memory that a connection takes for its host, at most. Buffers that grow may be twice what is in them.
    #[must_use]
    pub fn connection_bytes_max(&self) -> usize {
        let pdu = self.h2c_data_max.max(self.in_capsule_max).max(FABRICS_CAPSULE_DATA) as usize + 256;
        let pieces = self.transfer_max() as usize / (self.c2h_data_max as usize).clamp(512, 1 << 20) + 1;
        let entries = usize::from(self.queue_entries_max.max(ADMIN_ENTRIES));
        // One answer: the largest transfer with the headers of its PDUs, and an R2T for each write that waits.
        let answer = self.transfer_max() as usize + pieces * 256 + (entries + 8) * 32;
        let waiting = entries.next_power_of_two() * connection::WRITE_BYTES + 16 * crate::command::SQE_BYTES;
        let auth = 2 * crate::auth::MESSAGE_BYTES_MAX;
        let kept = self.transfer_max() as usize;
        2 * (pdu + self.output_max + answer) + self.write_buffer_max + kept + 2 * waiting + auth
    }

    /// What is out of its range.
    fn check(&self) -> Result<(), &'static str> {
        let good = [
            (!self.nqn.is_empty() && self.nqn.len() <= crate::bytes::NQN_BYTES_MAX, "nqn: 1 to 223 bytes"),
            (self.serial.is_ascii(), "serial: ASCII"),
            ((2..=4096).contains(&self.queue_entries_max), "queue_entries_max: 2 to 4,096"),
            ((1..=1024).contains(&self.io_queues_max), "io_queues_max: 1 to 1,024"),
            ((1..=0xffef).contains(&self.controllers_max), "controllers_max: 1 to 65,519"),
            ((1..=1 << 20).contains(&self.namespaces_max), "namespaces_max: 1 to 1,048,576"),
            (self.in_capsule_max.is_multiple_of(16) && self.in_capsule_max <= 1 << 20, "in_capsule_max: 16 n, 1 MiB"),
            (self.h2c_data_max.is_multiple_of(4) && self.h2c_data_max >= H2C_DATA_MIN, "h2c_data_max: 4 n, 4 KiB"),
            (self.h2c_data_max <= 16 << 20, "h2c_data_max: 16 MiB at most"),
            (self.r2t_bytes_max.is_multiple_of(4) && self.r2t_bytes_max > 0, "r2t_bytes_max: 4 n"),
            ((1..=10).contains(&self.transfer_shift), "transfer_shift: 1 to 10"),
            (self.write_buffer_max >= self.transfer_max() as usize, "write_buffer_max: a largest transfer"),
            (self.alignment <= 31, "alignment: 0 to 31"),
        ];
        good.iter().find(|(good, _)| !good).map_or(Ok(()), |(_, what)| Err(*what))
    }
}

/// A namespace id with what it stands for. The lock is held, shared, while a command uses the namespace.
#[derive(Debug)]
struct Slot {
    namespace: RwLock<Option<Arc<dyn Namespace>>>,
}

#[derive(Debug, Default)]
struct Registry {
    controllers: BTreeMap<u16, Arc<Controller>>,
    last: u16,
}

#[derive(Debug, Default)]
struct DiscoveryLog {
    generation: u64,
    entries: Vec<DiscoveryEntry>,
}

/// A subsystem and its discovery service.
#[derive(Debug)]
pub struct Target {
    config: TargetConfig,
    namespaces: RwLock<BTreeMap<u32, Arc<Slot>>>,
    registry: Mutex<Registry>,
    discovery: Mutex<DiscoveryLog>,
}

impl Target {
    /// A target without namespaces.
    ///
    /// # Errors
    /// What is out of its range.
    pub fn new(config: TargetConfig) -> Result<Arc<Self>, &'static str> {
        config.check()?;
        Ok(Arc::new(Self {
            config,
            namespaces: RwLock::default(),
            registry: Mutex::default(),
            discovery: Mutex::default(),
        }))
    }

    /// Its configuration.
    #[must_use]
    pub fn config(&self) -> &TargetConfig {
        &self.config
    }

    /// A connection that a host opened at `now`. Times are since any fixed moment, the same for all connections.
    #[must_use]
    pub fn accept(self: &Arc<Self>, now: Duration) -> Connection {
        Connection::new(Arc::clone(self), now)
    }

    /// Attaches a namespace to every controller, present and later ones.
    ///
    /// # Errors
    /// What is wrong with the id or the namespace.
    pub fn add_namespace(&self, id: u32, namespace: Arc<dyn Namespace>) -> Result<(), &'static str> {
        let block = namespace.block_bytes();
        if id == 0 || id > self.config.namespaces_max {
            return Err("namespace id: 1 to namespaces_max");
        }
        if !block.is_power_of_two() || !(512..=BLOCK_BYTES_MAX).contains(&block) {
            return Err("block size: a power of two from 512 to 65,536");
        }
        if namespace.blocks() == 0 || namespace.blocks().checked_mul(u64::from(block)).is_none() {
            return Err("blocks: at least one, and less than 2^64 bytes");
        }
        let mut namespaces = self.namespaces.write();
        if namespaces.contains_key(&id) {
            return Err("namespace id: taken");
        }
        namespaces.insert(id, Arc::new(Slot { namespace: RwLock::new(Some(namespace)) }));
        drop(namespaces);
        self.namespace_changed(id);
        Ok(())
    }

    /// Takes a namespace away. When this returns, no command uses it, and none will: it waits for those that do.
    /// Commands for it fail from now on, also writes whose data is still under way. False if there is none.
    pub fn remove_namespace(&self, id: u32) -> bool {
        let Some(slot) = self.namespaces.write().remove(&id) else { return false };
        *slot.namespace.write() = None;
        self.namespace_changed(id);
        true
    }

    /// What the discovery service tells hosts.
    pub fn set_discovery(&self, entries: Vec<DiscoveryEntry>) {
        let mut discovery = self.discovery.lock();
        discovery.generation += 1;
        discovery.entries = entries;
        drop(discovery);
        for controller in self.registry.lock().controllers.values() {
            controller.discovery_changed();
        }
    }

    /// Controllers that hosts have.
    #[must_use]
    pub fn controllers(&self) -> usize {
        self.registry.lock().controllers.len()
    }

    fn namespace_changed(&self, id: u32) {
        for controller in self.registry.lock().controllers.values() {
            controller.namespace_changed(id);
        }
    }

    /// Does something with a namespace that stays there meanwhile.
    fn with_namespace<T>(&self, id: u32, body: impl FnOnce(&dyn Namespace) -> Result<T, Status>) -> Result<T, Status> {
        let slot = self.namespaces.read().get(&id).map(Arc::clone).ok_or(Status::INVALID_NAMESPACE)?;
        let namespace = slot.namespace.read();
        body(namespace.as_deref().ok_or(Status::INVALID_NAMESPACE)?)
    }

    fn namespace_ids(&self) -> Vec<u32> {
        self.namespaces.read().keys().copied().collect()
    }
}
