//! Log pages (NVMe Base 1.4, "Get Log Page command": "Error Information", "SMART / Health Information"; NVMe over
//! Fabrics 1.1, "Discovery Log Page").

use crate::bytes::{nqn_at, put, put_nqn, put_padded, text_at, u16_at, u32_at, u64_at};
use crate::status::Status;

/// Bytes of an entry of the error log.
pub const ERROR_ENTRY_BYTES: usize = 64;
/// Bytes of the SMART log.
pub const SMART_BYTES: usize = 512;
/// Bytes of the head of the discovery log, and of each of its entries.
pub const DISCOVERY_ENTRY_BYTES: usize = 1024;
/// Most entries of a discovery log that a host reads.
pub const DISCOVERY_ENTRIES_MAX: u64 = 1024;

/// A command that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorEntry {
    /// The entry's number, from 1; 0 for an unused entry.
    pub count: u64,
    /// Queue.
    pub queue: u16,
    /// Command id.
    pub command_id: u16,
    /// How it ended.
    pub status: Status,
    /// First block.
    pub block: u64,
    /// Namespace.
    pub namespace: u32,
}

impl ErrorEntry {
    /// As it is sent.
    #[must_use]
    pub fn encode(&self) -> [u8; ERROR_ENTRY_BYTES] {
        let mut b = [0; ERROR_ENTRY_BYTES];
        put(&mut b, 0, &self.count.to_le_bytes());
        put(&mut b, 8, &self.queue.to_le_bytes());
        put(&mut b, 10, &self.command_id.to_le_bytes());
        put(&mut b, 12, &(self.status.bits() << 1).to_le_bytes());
        // Not about a field of the command (FFFFh).
        put(&mut b, 14, &[0xff, 0xff]);
        put(&mut b, 16, &self.block.to_le_bytes());
        put(&mut b, 24, &self.namespace.to_le_bytes());
        // The transport: TCP.
        b[29] = TRANSPORT_TCP;
        b
    }

    /// From what was received.
    #[must_use]
    pub fn decode(b: &[u8; ERROR_ENTRY_BYTES]) -> Self {
        Self {
            count: u64_at(b, 0),
            queue: u16_at(b, 8),
            command_id: u16_at(b, 10),
            status: Status::from_bits(u16_at(b, 12) >> 1),
            block: u64_at(b, 16),
            namespace: u32_at(b, 24),
        }
    }
}

/// SMART / Health Information: the fields that have a meaning without a physical device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SmartLog {
    /// Data read, in units of 1,000 times 512 bytes, rounded up.
    pub units_read: u64,
    /// Data written, in the same units.
    pub units_written: u64,
    /// Read commands.
    pub reads: u64,
    /// Write commands.
    pub writes: u64,
    /// Total entries written to the error log.
    pub errors: u64,
}

impl SmartLog {
    /// As it is sent.
    #[must_use]
    pub fn encode(&self) -> [u8; SMART_BYTES] {
        let mut b = [0; SMART_BYTES];
        // Full spare capacity, and room temperature: 293 K.
        put(&mut b, 1, &293u16.to_le_bytes());
        b[3] = 100;
        put(&mut b, 32, &self.units_read.to_le_bytes());
        put(&mut b, 48, &self.units_written.to_le_bytes());
        put(&mut b, 64, &self.reads.to_le_bytes());
        put(&mut b, 80, &self.writes.to_le_bytes());
        put(&mut b, 176, &self.errors.to_le_bytes());
        b
    }

    /// From what was received.
    #[must_use]
    pub fn decode(b: &[u8; SMART_BYTES]) -> Self {
        Self {
            units_read: u64_at(b, 32),
            units_written: u64_at(b, 48),
            reads: u64_at(b, 64),
            writes: u64_at(b, 80),
            errors: u64_at(b, 176),
        }
    }
}

/// Transport type: TCP.
pub const TRANSPORT_TCP: u8 = 3;

/// Whether hosts of a subsystem use TLS 1.3 (TREQ and, for TCP, SECTYPE of the entry).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Security {
    /// There is no TLS.
    #[default]
    None,
    /// They may.
    Tls13Offered,
    /// They must.
    Tls13Required,
}

impl Security {
    /// Where an entry has the transport's own fields (TSAS). SECTYPE is the first byte of TCP's.
    const SECTYPE_AT: usize = 768;
    const SECTYPE_TLS13: u8 = 2;

    /// TREQ and SECTYPE.
    fn encode(self) -> (u8, u8) {
        match self {
            Self::None => (2, 0),
            Self::Tls13Offered => (2, Self::SECTYPE_TLS13),
            Self::Tls13Required => (1, Self::SECTYPE_TLS13),
        }
    }

    fn decode(treq: u8, sectype: u8) -> Self {
        // The other bits of TREQ are about other things.
        match (sectype, treq & 3) {
            (Self::SECTYPE_TLS13, 1) => Self::Tls13Required,
            (Self::SECTYPE_TLS13, _) => Self::Tls13Offered,
            _ => Self::None,
        }
    }
}

/// An entry of the discovery log: where a subsystem is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveryEntry {
    /// Transport type; 3 is TCP.
    pub transport: u8,
    /// Address family: 1 is IPv4, 2 IPv6.
    pub family: u8,
    /// 1 is another discovery service, 2 a subsystem with namespaces, 3 this discovery service.
    pub subsystem_kind: u8,
    /// Port id.
    pub port: u16,
    /// Most entries of the admin queue (ASQSZ).
    pub admin_entries: u16,
    /// TCP port, as text.
    pub service: String,
    /// The subsystem's name.
    pub subsystem: String,
    /// Address, as text.
    pub address: String,
    /// Whether its hosts use TLS. A host that reads the log decides what it does about it.
    pub security: Security,
}

impl DiscoveryEntry {
    /// As it is sent.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut b = vec![0; DISCOVERY_ENTRY_BYTES];
        b[0] = self.transport;
        b[1] = self.family;
        b[2] = self.subsystem_kind;
        (b[3], b[Security::SECTYPE_AT]) = self.security.encode();
        put(&mut b, 4, &self.port.to_le_bytes());
        put(&mut b, 6, &crate::fabrics::DYNAMIC_CONTROLLER.to_le_bytes());
        put(&mut b, 8, &self.admin_entries.to_le_bytes());
        put_padded(&mut b, 32, 32, &self.service);
        put_nqn(&mut b, 256, &self.subsystem);
        put_padded(&mut b, 512, 256, &self.address);
        b
    }

    /// Decodes received data; `None` if the name is invalid.
    #[must_use]
    pub fn decode(b: &[u8; DISCOVERY_ENTRY_BYTES]) -> Option<Self> {
        Some(Self {
            transport: b[0],
            family: b[1],
            subsystem_kind: b[2],
            port: u16_at(b, 4),
            admin_entries: u16_at(b, 8),
            service: text_at(b, 32, 32),
            subsystem: nqn_at(b, 256)?,
            address: text_at(b, 512, 256),
            security: match b[0] {
                TRANSPORT_TCP => Security::decode(b[3], b[Security::SECTYPE_AT]),
                _ => Security::None,
            },
        })
    }
}

/// The head of the discovery log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiscoveryHead {
    /// Changes whenever the entries change: a reader that sees two values starts again.
    pub generation: u64,
    /// Entries that follow.
    pub entries: u64,
}

impl DiscoveryHead {
    /// Encodes the log: record format 0.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut b = vec![0; DISCOVERY_ENTRY_BYTES];
        put(&mut b, 0, &self.generation.to_le_bytes());
        put(&mut b, 8, &self.entries.to_le_bytes());
        b
    }

    /// Decodes received data; `None` for another record format.
    #[must_use]
    pub fn decode(b: &[u8]) -> Option<Self> {
        if b.len() < 18 || u16_at(b, 16) != 0 {
            return None;
        }
        Some(Self { generation: u64_at(b, 0), entries: u64_at(b, 8) })
    }
}
