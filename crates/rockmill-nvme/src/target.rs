//! The target: a subsystem with namespaces, the controllers that hosts create, and one state machine per connection.
//!
//! ```text
//!  Target ── namespaces ── Slot ── dyn Namespace        shared by all connections
//!    │  └─── controllers ── Controller                  one for each host that connected an admin queue
//!    └ accept ─► Connection (admin queue) ─┐
//!    └ accept ─► Connection (I/O queue 1) ─┼─ of one controller
//!    └ accept ─► Connection (I/O queue 2) ─┘
//! ```
//!
//! A [`Connection`] takes bytes and times, and returns bytes. It uses no socket and no clock. Connections on different
//! threads share the controller and the target. Their locks are held for table look-ups, never during I/O, with one
//! exception: a namespace's lock ([`Target::remove_namespace`]).
//!
//! The configuration bounds the memory of a connection:
//!
//! | memory | bound |
//! |---|---|
//! | the PDU that is being received, without requested data | twice the largest: `in_capsule_max`, 8 KiB at least |
//! | requested data of writes | `write_buffer_max`, in whole pages: an R2T is sent only when there is room |
//! | memory of the last write, kept for the next one | the largest transfer |
//! | answers that the host has not received | `output_max` and one answer: with more, nothing is read |
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
pub use namespace::{FilePart, MemoryNamespace, Namespace};

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

/// Entries that an admin queue may have, regardless of the configuration: the least that the specification allows
/// (ASQSZ).
const ADMIN_ENTRIES: u16 = 32;
/// Largest block of a namespace.
pub const BLOCK_BYTES_MAX: u32 = 65_536;

/// What a target offers, and its memory limits.
#[derive(Clone, Debug)]
pub struct TargetConfig {
    /// The subsystem's qualified name.
    pub nqn: String,
    /// Serial number, up to 20 ASCII characters.
    pub serial: String,
    /// Names of hosts that may connect; `None` for any.
    pub hosts: Option<Vec<String>>,
    /// Hosts that may connect after they authenticate; `None` for no authentication. The discovery service never asks
    /// for it.
    pub auth: Option<Arc<AuthPolicy>>,
    /// Most entries of an I/O queue: 2 to 4,096. An admin queue may always have 32.
    pub queue_entries_max: u16,
    /// Most I/O queues of a controller: 1 to 1,024.
    pub io_queues_max: u16,
    /// Controllers at once, at most.
    pub controllers_max: u16,
    /// Largest namespace id.
    pub namespaces_max: u32,
    /// Most in-capsule data of I/O queues: a multiple of 16.
    pub in_capsule_max: u32,
    /// Most data of one PDU from the host: a multiple of 4, at least 4 KiB.
    pub h2c_data_max: u32,
    /// Most data of one PDU to the host; rounded down to whole blocks, but at least one.
    pub c2h_data_max: u32,
    /// Most data that one R2T asks for: a multiple of 4.
    pub r2t_bytes_max: u32,
    /// Largest transfer of a command, as a power of two of 4 KiB: 1 to 10.
    pub transfer_shift: u8,
    /// Most data of writes that a connection buffers: at least the largest transfer.
    pub write_buffer_max: usize,
    /// Bytes of unsent answers at which a connection stops reading.
    pub output_max: usize,
    /// Alignment of data in PDUs from the host, in units of 4 bytes, counted from zero: up to 31 (CPDA).
    pub alignment: u8,
    /// Hosts may connect to the discovery service.
    pub discovery: bool,
    /// Write Zeroes is a command that there is.
    pub write_zeroes: bool,
    /// Use header digests if the host asks for them.
    pub header_digest: bool,
    /// Use data digests if the host asks for them.
    pub data_digest: bool,
    /// The longest keep alive timeout.
    pub keep_alive_max: Duration,
    /// Time limit for a connection's Connect command and the authentication of its host.
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
            discovery: true,
            write_zeroes: true,
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

    /// Most memory in bytes that a connection uses for its host. A growing buffer may be twice as large as its
    /// contents.
    #[must_use]
    pub fn connection_bytes_max(&self) -> usize {
        let pdu = self.in_capsule_max.max(FABRICS_CAPSULE_DATA) as usize + 256;
        let pieces = self.transfer_max() as usize / (self.c2h_data_max as usize).clamp(512, 1 << 20) + 1;
        let entries = usize::from(self.queue_entries_max.max(ADMIN_ENTRIES));
        // One answer: the largest transfer with the headers of its PDUs, and an R2T for each waiting write.
        let answer = self.transfer_max() as usize + pieces * 256 + (entries + 8) * 32;
        let waiting = entries.next_power_of_two() * connection::WRITE_BYTES + 16 * crate::command::SQE_BYTES;
        let auth = 2 * crate::auth::MESSAGE_BYTES_MAX;
        let kept = self.transfer_max() as usize;
        // Memory of answers begins within a page.
        let answer = answer + rockmill_io::aligned::ALIGNMENT;
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

/// A namespace id and its namespace. A command holds the lock shared while it uses the namespace.
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
    /// The setting that is out of its range.
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

    /// Accepts a connection that a host opened at `now`. Times count from any fixed moment, the same for all
    /// connections.
    #[must_use]
    pub fn accept(self: &Arc<Self>, now: Duration) -> Connection {
        Connection::new(Arc::clone(self), now)
    }

    /// Attaches a namespace to all present and future controllers.
    ///
    /// # Errors
    /// The id or the namespace is invalid; the message says why.
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

    /// Removes a namespace. It waits for the commands that use it; on return none does, and none will. Later commands
    /// for it fail, also writes whose data is still in transit. False if there is no such namespace.
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

    /// Calls `body` with a namespace that cannot be removed meanwhile.
    fn with_namespace<T>(&self, id: u32, body: impl FnOnce(&dyn Namespace) -> Result<T, Status>) -> Result<T, Status> {
        let slot = self.namespaces.read().get(&id).map(Arc::clone).ok_or(Status::INVALID_NAMESPACE)?;
        let namespace = slot.namespace.read();
        body(namespace.as_deref().ok_or(Status::INVALID_NAMESPACE)?)
    }

    fn namespace_ids(&self) -> Vec<u32> {
        self.namespaces.read().keys().copied().collect()
    }
}
