//! Identify data structures (NVMe Base 1.4, "Identify command"; NVMe over Fabrics 1.1, "Identify Controller Data
//! Structure - Fabrics"). Each is 4,096 bytes; the fields here are those that an NVMe/TCP controller must set or that
//! the host uses.

use crate::bytes::{array_at, nqn_at, put, put_nqn, put_padded, text_at, u16_at, u32_at, u64_at};

/// Bytes of every Identify data structure.
pub const IDENTIFY_BYTES: usize = 4096;

/// The controller's type (CNTRLTYPE).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControllerKind {
    /// It has I/O queues.
    Io,
    /// It has the discovery log, and no I/O queues.
    Discovery,
}

/// Identify Controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentifyController {
    /// Serial number, 20 characters.
    pub serial: String,
    /// Model number, 40 characters.
    pub model: String,
    /// Firmware revision, 8 characters.
    pub firmware: String,
    /// Largest transfer as a power of two of pages of 4 KiB; 0 for no limit (MDTS).
    pub transfer_shift: u8,
    /// Controller id.
    pub controller: u16,
    /// Version.
    pub version: u32,
    /// Optional asynchronous events (OAES).
    pub events: u32,
    /// What kind.
    pub kind: ControllerKind,
    /// Most concurrent Abort commands, minus one (ACL).
    pub aborts: u8,
    /// Most outstanding Asynchronous Event Requests, minus one (AERL).
    pub async_events: u8,
    /// Entries of the error log, minus one (ELPE).
    pub error_entries: u8,
    /// Granularity of the keep alive timer in units of 100 ms (KAS).
    pub keep_alive_unit: u16,
    /// Most outstanding commands of a queue (MAXCMD).
    pub commands_max: u16,
    /// Largest namespace id (NN).
    pub namespaces: u32,
    /// Optional NVM commands: bit 3 is Write Zeroes (ONCS).
    pub optional: u16,
    /// There is a volatile write cache (VWC).
    pub write_cache: bool,
    /// The subsystem's name.
    pub subsystem: String,
    /// Bytes of an I/O queue's command capsule, in units of 16 (IOCCSZ).
    pub command_capsule: u32,
    /// Bytes of a response capsule, in units of 16 (IORCSZ).
    pub response_capsule: u32,
    /// SGL support (SGLS).
    pub sgls: u32,
}

/// ONCS: Write Zeroes.
pub const OPTIONAL_WRITE_ZEROES: u16 = 1 << 3;
/// SGLS: SGLs and offsets into the capsule are supported.
pub const SGLS_IN_CAPSULE: u32 = 1 | 1 << 20;

impl IdentifyController {
    /// As it is sent.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut b = vec![0; IDENTIFY_BYTES];
        put_padded(&mut b, 4, 20, &self.serial);
        put_padded(&mut b, 24, 40, &self.model);
        put_padded(&mut b, 64, 8, &self.firmware);
        b[77] = self.transfer_shift;
        put(&mut b, 78, &self.controller.to_le_bytes());
        put(&mut b, 80, &self.version.to_le_bytes());
        put(&mut b, 92, &self.events.to_le_bytes());
        b[111] = match self.kind {
            ControllerKind::Io => 1,
            ControllerKind::Discovery => 2,
        };
        b[258] = self.aborts;
        b[259] = self.async_events;
        // Log pages can be read from an offset (LPA bit 2).
        b[261] = 1 << 2;
        b[262] = self.error_entries;
        put(&mut b, 320, &self.keep_alive_unit.to_le_bytes());
        // Entries of 64 and 16 bytes, required and largest.
        b[512] = 0x66;
        b[513] = 0x44;
        put(&mut b, 514, &self.commands_max.to_le_bytes());
        put(&mut b, 516, &self.namespaces.to_le_bytes());
        put(&mut b, 520, &self.optional.to_le_bytes());
        // Flush accepts the namespace id that stands for all (VWC bits 2:1).
        b[525] = 6 | u8::from(self.write_cache);
        put(&mut b, 536, &self.sgls.to_le_bytes());
        put_nqn(&mut b, 768, &self.subsystem);
        put(&mut b, 1792, &self.command_capsule.to_le_bytes());
        put(&mut b, 1796, &self.response_capsule.to_le_bytes());
        // Dynamic controllers (FCATT bit 0 clear), one SGL descriptor per command (MSDBD).
        b[1803] = 1;
        b
    }

    /// Decodes received data; `None` if the name is invalid.
    #[must_use]
    pub fn decode(b: &[u8; IDENTIFY_BYTES]) -> Option<Self> {
        Some(Self {
            serial: text_at(b, 4, 20),
            model: text_at(b, 24, 40),
            firmware: text_at(b, 64, 8),
            transfer_shift: b[77],
            controller: u16_at(b, 78),
            version: u32_at(b, 80),
            events: u32_at(b, 92),
            kind: if b[111] == 2 { ControllerKind::Discovery } else { ControllerKind::Io },
            aborts: b[258],
            async_events: b[259],
            error_entries: b[262],
            keep_alive_unit: u16_at(b, 320),
            commands_max: u16_at(b, 514),
            namespaces: u32_at(b, 516),
            optional: u16_at(b, 520),
            write_cache: b[525] & 1 != 0,
            sgls: u32_at(b, 536),
            subsystem: nqn_at(b, 768)?,
            command_capsule: u32_at(b, 1792),
            response_capsule: u32_at(b, 1796),
        })
    }
}

/// Identify Namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct IdentifyNamespace {
    /// Blocks; 0 if the namespace does not exist (NSZE).
    pub blocks: u64,
    /// Block size as a power of two (LBADS).
    pub block_shift: u8,
    /// It is write protected (NSATTR bit 0).
    pub read_only: bool,
    /// It may be attached to several controllers (NMIC bit 0).
    pub shared: bool,
    /// Namespace Globally Unique Identifier; zeros for none.
    pub nguid: [u8; 16],
}

impl IdentifyNamespace {
    /// As it is sent.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut b = vec![0; IDENTIFY_BYTES];
        for at in [0, 8, 16] {
            put(&mut b, at, &self.blocks.to_le_bytes());
        }
        b[30] = u8::from(self.shared);
        b[99] = u8::from(self.read_only);
        put(&mut b, 104, &self.nguid);
        // A single format: no metadata, this block size.
        b[130] = self.block_shift;
        b
    }

    /// Decodes received data; `None` if the block size is too large for any machine.
    #[must_use]
    pub fn decode(b: &[u8; IDENTIFY_BYTES]) -> Option<Self> {
        let format = usize::from(b[26] & 0xf);
        let block_shift = b[128 + 4 * format + 2];
        let blocks = u64_at(b, 0);
        if blocks != 0 && !(9..=30).contains(&block_shift) {
            return None;
        }
        Some(Self { blocks, block_shift, read_only: b[99] & 1 != 0, shared: b[30] & 1 != 0, nguid: array_at(b, 104) })
    }
}

/// Most namespace ids in one list.
pub const NAMESPACE_LIST_MAX: usize = IDENTIFY_BYTES / 4;

/// A namespace list: ids in ascending order, ended by 0. Ids after the first [`NAMESPACE_LIST_MAX`] are omitted.
#[must_use]
pub fn encode_namespace_list(ids: impl IntoIterator<Item = u32>) -> Vec<u8> {
    let mut b = vec![0; IDENTIFY_BYTES];
    for (i, id) in ids.into_iter().take(NAMESPACE_LIST_MAX).enumerate() {
        put(&mut b, 4 * i, &id.to_le_bytes());
    }
    b
}

/// The ids of a namespace list.
#[must_use]
pub fn decode_namespace_list(b: &[u8; IDENTIFY_BYTES]) -> Vec<u32> {
    (0..NAMESPACE_LIST_MAX).map(|i| u32_at(b, 4 * i)).take_while(|&id| id != 0).collect()
}

/// A namespace identification descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Descriptor {
    /// IEEE Extended Unique Identifier (type 1).
    Eui64([u8; 8]),
    /// Namespace Globally Unique Identifier (type 2).
    Nguid([u8; 16]),
    /// Universally unique identifier (type 3).
    Uuid([u8; 16]),
    /// Command Set Identifier (type 4).
    CommandSet(u8),
}

/// Descriptors as they are sent.
#[must_use]
pub fn encode_descriptors(descriptors: &[Descriptor]) -> Vec<u8> {
    let mut b = Vec::new();
    for descriptor in descriptors {
        let (kind, id): (u8, &[u8]) = match descriptor {
            Descriptor::Eui64(id) => (1, id),
            Descriptor::Nguid(id) => (2, id),
            Descriptor::Uuid(id) => (3, id),
            Descriptor::CommandSet(id) => (4, std::slice::from_ref(id)),
        };
        b.extend([kind, id.len() as u8, 0, 0]);
        b.extend(id);
    }
    b.resize(IDENTIFY_BYTES, 0);
    b
}

/// Decodes received descriptors; skips unknown types. `None` if a length is wrong.
#[must_use]
pub fn decode_descriptors(b: &[u8; IDENTIFY_BYTES]) -> Option<Vec<Descriptor>> {
    let mut out = Vec::new();
    let mut at = 0;
    while at + 4 <= b.len() && b[at + 1] != 0 {
        let (kind, id) = (b[at], b.get(at + 4..at + 4 + usize::from(b[at + 1]))?);
        match kind {
            1 => out.push(Descriptor::Eui64(id.try_into().ok()?)),
            2 => out.push(Descriptor::Nguid(id.try_into().ok()?)),
            3 => out.push(Descriptor::Uuid(id.try_into().ok()?)),
            4 => out.push(Descriptor::CommandSet(*id.first()?)),
            _ => {}
        }
        at += 4 + id.len();
    }
    Some(out)
}
