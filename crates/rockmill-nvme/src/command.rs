//! Submission and completion entries, and the commands of both command sets that are used here (NVMe Base 1.4,
//! "Submission Queue Entry", "Completion Queue Entry", "Admin Command Set", "NVM Command Set").
//!
//! ```text
//!  submission entry, 64 bytes                          completion entry, 16 bytes
//!   0  opcode                                           0  result (8 bytes)
//!   1  flags: fused 1:0, PSDT 7:6 (01b: SGL)            8  SQHD
//!   2  command id                                      10  queue id (reserved in fabrics)
//!   4  namespace id (fabrics: FCTYPE in byte 4)        12  command id
//!  24  SGL descriptor: address 8, length 4, -, type    14  status, phase in bit 0
//!  40  CDW10 … CDW15
//! ```

use crate::bytes::{put, u16_at, u32_at, u64_at};
use crate::status::Status;

/// Bytes of a submission entry.
pub const SQE_BYTES: usize = 64;
/// Bytes of a completion entry.
pub const CQE_BYTES: usize = 16;
/// The namespace id that stands for all namespaces.
pub const ALL_NAMESPACES: u32 = 0xffff_ffff;

/// Opcodes of the admin command set.
pub mod admin {
    /// Get Log Page.
    pub const GET_LOG_PAGE: u8 = 0x02;
    /// Identify.
    pub const IDENTIFY: u8 = 0x06;
    /// Abort.
    pub const ABORT: u8 = 0x08;
    /// Set Features.
    pub const SET_FEATURES: u8 = 0x09;
    /// Get Features.
    pub const GET_FEATURES: u8 = 0x0a;
    /// Asynchronous Event Request.
    pub const ASYNC_EVENT: u8 = 0x0c;
    /// Keep Alive.
    pub const KEEP_ALIVE: u8 = 0x18;
}

/// Opcodes of the NVM command set.
pub mod nvm {
    /// Flush.
    pub const FLUSH: u8 = 0x00;
    /// Write.
    pub const WRITE: u8 = 0x01;
    /// Read.
    pub const READ: u8 = 0x02;
    /// Write Zeroes.
    pub const WRITE_ZEROES: u8 = 0x08;
}

/// The opcode of all Fabrics commands.
pub const FABRICS: u8 = 0x7f;

/// In-capsule data that every controller accepts for Fabrics commands and for all commands of an admin queue.
pub const FABRICS_CAPSULE_DATA: u32 = 8192;

/// The data structure that an Identify command asks for (CNS).
pub mod cns {
    /// One namespace.
    pub const NAMESPACE: u8 = 0x00;
    /// The controller.
    pub const CONTROLLER: u8 = 0x01;
    /// Active namespace ids above the given one.
    pub const ACTIVE_NAMESPACES: u8 = 0x02;
    /// Identification descriptors of a namespace.
    pub const DESCRIPTORS: u8 = 0x03;
}

/// Log page identifiers.
pub mod log_page {
    /// Error Information.
    pub const ERROR: u8 = 0x01;
    /// SMART / Health Information.
    pub const SMART: u8 = 0x02;
    /// Changed Namespace List.
    pub const CHANGED_NAMESPACES: u8 = 0x04;
    /// Discovery.
    pub const DISCOVERY: u8 = 0x70;
}

/// Feature identifiers.
pub mod feature {
    /// Volatile Write Cache.
    pub const VOLATILE_WRITE_CACHE: u8 = 0x06;
    /// Number of Queues.
    pub const QUEUES: u8 = 0x07;
    /// Asynchronous Event Configuration.
    pub const ASYNC_EVENTS: u8 = 0x0b;
    /// Keep Alive Timer.
    pub const KEEP_ALIVE: u8 = 0x0f;
}

/// Asynchronous Event Configuration: notices of changed namespaces.
pub const EVENT_NAMESPACES: u32 = 1 << 8;
/// Asynchronous Event Configuration: notices of a changed discovery log.
pub const EVENT_DISCOVERY: u32 = 1 << 31;

/// PSDT in the flags: an SGL describes the data, as NVMe over Fabrics requires.
const FLAGS_SGL: u8 = 0x40;
const FLAGS_SGL_MASK: u8 = 0xc0;

/// SGL descriptor type and subtype: data block, in the capsule.
const SGL_IN_CAPSULE: u8 = 0x01;
/// SGL descriptor type and subtype: transport data block.
const SGL_TRANSPORT: u8 = 0x5a;

/// Where the data of a command is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sgl {
    /// In the capsule, from this offset.
    InCapsule {
        /// Offset from the start of the in-capsule data.
        offset: u64,
        /// Bytes.
        length: u32,
    },
    /// In PDUs of its own.
    Transport {
        /// Bytes.
        length: u32,
    },
    /// A descriptor that NVMe/TCP does not use.
    Other {
        /// Its type and subtype.
        kind: u8,
    },
}

/// A submission entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sqe(pub [u8; SQE_BYTES]);

impl Sqe {
    /// A command without data.
    #[must_use]
    pub fn new(opcode: u8, namespace: u32) -> Self {
        let mut sqe = Self([0; SQE_BYTES]);
        sqe.0[0] = opcode;
        sqe.0[1] = FLAGS_SGL;
        put(&mut sqe.0, 4, &namespace.to_le_bytes());
        sqe.with_sgl(Sgl::Transport { length: 0 })
    }

    /// The opcode.
    #[must_use]
    pub fn opcode(&self) -> u8 {
        self.0[0]
    }

    /// True if the command is not fused and an SGL describes its data.
    #[must_use]
    pub fn flags_are_right(&self) -> bool {
        self.0[1] & FLAGS_SGL_MASK == FLAGS_SGL && self.0[1] & 3 == 0
    }

    /// The command id.
    #[must_use]
    pub fn command_id(&self) -> u16 {
        u16_at(&self.0, 2)
    }

    /// The same with another command id.
    #[must_use]
    pub fn with_command_id(mut self, id: u16) -> Self {
        put(&mut self.0, 2, &id.to_le_bytes());
        self
    }

    /// The namespace id.
    #[must_use]
    pub fn namespace(&self) -> u32 {
        u32_at(&self.0, 4)
    }

    /// The type of a Fabrics command (FCTYPE).
    #[must_use]
    pub fn fabrics_type(&self) -> u8 {
        self.0[4]
    }

    /// Where its data is.
    #[must_use]
    pub fn sgl(&self) -> Sgl {
        let length = u32_at(&self.0, 32);
        match self.0[39] {
            SGL_IN_CAPSULE => Sgl::InCapsule { offset: u64_at(&self.0, 24), length },
            SGL_TRANSPORT => Sgl::Transport { length },
            kind => Sgl::Other { kind },
        }
    }

    /// The same with its data elsewhere.
    #[must_use]
    pub fn with_sgl(mut self, sgl: Sgl) -> Self {
        let (address, length, kind) = match sgl {
            Sgl::InCapsule { offset, length } => (offset, length, SGL_IN_CAPSULE),
            Sgl::Transport { length } => (0, length, SGL_TRANSPORT),
            Sgl::Other { kind } => (0, 0, kind),
        };
        put(&mut self.0, 24, &address.to_le_bytes());
        put(&mut self.0, 32, &length.to_le_bytes());
        put(&mut self.0, 36, &[0, 0, 0, kind]);
        self
    }

    /// Command double word `n`, 10 to 15.
    #[must_use]
    pub fn dword(&self, n: usize) -> u32 {
        u32_at(&self.0, n * 4)
    }

    /// Double words `n` and `n + 1` as one.
    #[must_use]
    pub fn qword(&self, n: usize) -> u64 {
        u64_at(&self.0, n * 4)
    }

    /// The same command with one double word replaced.
    #[must_use]
    pub fn with_dword(mut self, n: usize, value: u32) -> Self {
        put(&mut self.0, n * 4, &value.to_le_bytes());
        self
    }

    /// The same command with two double words replaced.
    #[must_use]
    pub fn with_qword(mut self, n: usize, value: u64) -> Self {
        put(&mut self.0, n * 4, &value.to_le_bytes());
        self
    }
}

/// A completion entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cqe(pub [u8; CQE_BYTES]);

impl Cqe {
    /// The completion of a command.
    #[must_use]
    pub fn new(command_id: u16, status: Status, result: u64, head: u16) -> Self {
        let mut cqe = Self([0; CQE_BYTES]);
        put(&mut cqe.0, 0, &result.to_le_bytes());
        put(&mut cqe.0, 8, &head.to_le_bytes());
        put(&mut cqe.0, 12, &command_id.to_le_bytes());
        put(&mut cqe.0, 14, &(status.bits() << 1).to_le_bytes());
        cqe
    }

    /// The command's result: the first double word for most commands, both for Property Get.
    #[must_use]
    pub fn result(&self) -> u64 {
        u64_at(&self.0, 0)
    }

    /// Submission queue head pointer (SQHD).
    #[must_use]
    pub fn head(&self) -> u16 {
        u16_at(&self.0, 8)
    }

    /// The command that is complete.
    #[must_use]
    pub fn command_id(&self) -> u16 {
        u16_at(&self.0, 12)
    }

    /// How it ended.
    #[must_use]
    pub fn status(&self) -> Status {
        Status::from_bits(u16_at(&self.0, 14) >> 1)
    }
}

/// Identify: reads the 4,096 bytes of data structure `cns`.
#[must_use]
pub fn identify(cns: u8, namespace: u32) -> Sqe {
    Sqe::new(admin::IDENTIFY, namespace).with_dword(10, u32::from(cns))
}

/// Get Log Page: `bytes` (a multiple of 4) of page `id` from `offset` on. With `retain`, its event stays pending.
#[must_use]
pub fn get_log_page(id: u8, namespace: u32, offset: u64, bytes: u32, retain: bool) -> Sqe {
    let dwords = (bytes / 4).saturating_sub(1);
    Sqe::new(admin::GET_LOG_PAGE, namespace)
        .with_dword(10, u32::from(id) | u32::from(retain) << 15 | (dwords & 0xffff) << 16)
        .with_dword(11, dwords >> 16)
        .with_qword(12, offset)
}

/// Bytes that a Get Log Page command asks for.
#[must_use]
pub fn log_page_bytes(sqe: &Sqe) -> u64 {
    let dwords = u64::from(sqe.dword(10) >> 16) | u64::from(sqe.dword(11) & 0xffff) << 16;
    (dwords + 1) * 4
}

/// Set Features, for all namespaces and not saved.
#[must_use]
pub fn set_features(id: u8, value: u32) -> Sqe {
    Sqe::new(admin::SET_FEATURES, 0).with_dword(10, u32::from(id)).with_dword(11, value)
}

/// Get Features: the current value.
#[must_use]
pub fn get_features(id: u8) -> Sqe {
    Sqe::new(admin::GET_FEATURES, 0).with_dword(10, u32::from(id))
}

/// Abort of a command of a queue.
#[must_use]
pub fn abort(queue: u16, command_id: u16) -> Sqe {
    Sqe::new(admin::ABORT, 0).with_dword(10, u32::from(queue) | u32::from(command_id) << 16)
}

/// Asynchronous Event Request.
#[must_use]
pub fn async_event() -> Sqe {
    Sqe::new(admin::ASYNC_EVENT, 0)
}

/// Keep Alive.
#[must_use]
pub fn keep_alive() -> Sqe {
    Sqe::new(admin::KEEP_ALIVE, 0)
}

/// Most blocks of one command: the field has 16 bits and counts from zero.
pub const BLOCKS_MAX: u32 = 1 << 16;
/// Force Unit Access in CDW12 of Read and Write.
pub const FORCE_UNIT_ACCESS: u32 = 1 << 30;

fn blocks(opcode: u8, namespace: u32, first: u64, count: u32) -> Sqe {
    let count = count.clamp(1, BLOCKS_MAX) - 1;
    Sqe::new(opcode, namespace).with_qword(10, first).with_dword(12, count)
}

/// Read of `count` blocks, 1 to [`BLOCKS_MAX`].
#[must_use]
pub fn read(namespace: u32, first: u64, count: u32) -> Sqe {
    blocks(nvm::READ, namespace, first, count)
}

/// Write of `count` blocks, 1 to [`BLOCKS_MAX`]; with `durable`, it completes only when they are on stable storage.
#[must_use]
pub fn write(namespace: u32, first: u64, count: u32, durable: bool) -> Sqe {
    let sqe = blocks(nvm::WRITE, namespace, first, count);
    if durable { sqe.with_dword(12, sqe.dword(12) | FORCE_UNIT_ACCESS) } else { sqe }
}

/// Write Zeroes over `count` blocks, 1 to [`BLOCKS_MAX`].
#[must_use]
pub fn write_zeroes(namespace: u32, first: u64, count: u32) -> Sqe {
    blocks(nvm::WRITE_ZEROES, namespace, first, count)
}

/// Flush of a namespace.
#[must_use]
pub fn flush(namespace: u32) -> Sqe {
    Sqe::new(nvm::FLUSH, namespace)
}

/// First block and count of Read, Write and Write Zeroes.
#[must_use]
pub fn block_range(sqe: &Sqe) -> (u64, u32) {
    (sqe.qword(10), (sqe.dword(12) & 0xffff) + 1)
}
