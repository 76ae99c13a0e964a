//! Fabrics commands and the properties of a controller (NVMe over Fabrics 1.1, "Fabrics Commands": "Connect",
//! "Property Get", "Property Set"; NVMe Base 1.4, "Controller Registers").

use crate::bytes::{array_at, nqn_at, put, put_nqn, u16_at, u32_at};
use crate::command::{FABRICS, Sqe};

/// Types of Fabrics commands (FCTYPE).
pub mod fctype {
    /// Property Set.
    pub const PROPERTY_SET: u8 = 0x00;
    /// Connect.
    pub const CONNECT: u8 = 0x01;
    /// Property Get.
    pub const PROPERTY_GET: u8 = 0x04;
    /// Authentication Send.
    pub const AUTHENTICATION_SEND: u8 = 0x05;
    /// Authentication Receive.
    pub const AUTHENTICATION_RECEIVE: u8 = 0x06;
}

/// Offsets of properties.
pub mod property {
    /// Controller Capabilities, 8 bytes.
    pub const CAP: u32 = 0x00;
    /// Version, 4 bytes.
    pub const VS: u32 = 0x08;
    /// Controller Configuration, 4 bytes.
    pub const CC: u32 = 0x14;
    /// Controller Status, 4 bytes.
    pub const CSTS: u32 = 0x1c;
}

/// The name of the discovery service.
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// Bytes of the data of a Connect command.
pub const CONNECT_DATA_BYTES: usize = 1024;
/// The controller id that asks for a new controller.
pub const DYNAMIC_CONTROLLER: u16 = 0xffff;
/// SQHD in the response to Connect if the submission queue has no flow control.
pub const NO_FLOW_CONTROL: u16 = 0xffff;
/// The version that is reported: 1.4.
pub const VERSION: u32 = 0x0001_0400;

/// A Connect command: makes this connection carry one queue of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connect {
    /// Record format; 0.
    pub format: u16,
    /// The queue: 0 is the admin queue, and creates the controller.
    pub queue: u16,
    /// Entries of the submission queue minus one (SQSIZE).
    pub size: u16,
    /// The host asks for no flow control of the submission queue (CATTR bit 2).
    pub no_flow_control: bool,
    /// Keep Alive Timeout; 0 for none.
    pub keep_alive_ms: u32,
}

impl Connect {
    /// As a command.
    #[must_use]
    pub fn encode(&self) -> Sqe {
        let mut sqe = fabrics(fctype::CONNECT);
        put(&mut sqe.0, 40, &self.format.to_le_bytes());
        put(&mut sqe.0, 42, &self.queue.to_le_bytes());
        put(&mut sqe.0, 44, &self.size.to_le_bytes());
        sqe.0[46] = if self.no_flow_control { 1 << 2 } else { 0 };
        put(&mut sqe.0, 48, &self.keep_alive_ms.to_le_bytes());
        sqe
    }

    /// From a command.
    #[must_use]
    pub fn decode(sqe: &Sqe) -> Self {
        Self {
            format: u16_at(&sqe.0, 40),
            queue: u16_at(&sqe.0, 42),
            size: u16_at(&sqe.0, 44),
            no_flow_control: sqe.0[46] & 1 << 2 != 0,
            keep_alive_ms: u32_at(&sqe.0, 48),
        }
    }
}

/// The data of a Connect command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectData {
    /// Host Identifier.
    pub host_id: [u8; 16],
    /// The controller id, or [`DYNAMIC_CONTROLLER`] for a new controller.
    pub controller: u16,
    /// The subsystem.
    pub subsystem: String,
    /// The host's name.
    pub host: String,
}

impl ConnectData {
    /// Offset of the controller id, for the result of a refusal.
    pub const CONTROLLER_AT: u16 = 16;
    /// Where the subsystem's name stands.
    pub const SUBSYSTEM_AT: u16 = 256;
    /// Where the host's name stands.
    pub const HOST_AT: u16 = 512;

    /// As it is sent.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; CONNECT_DATA_BYTES];
        put(&mut out, 0, &self.host_id);
        put(&mut out, usize::from(Self::CONTROLLER_AT), &self.controller.to_le_bytes());
        put_nqn(&mut out, usize::from(Self::SUBSYSTEM_AT), &self.subsystem);
        put_nqn(&mut out, usize::from(Self::HOST_AT), &self.host);
        out
    }

    /// Decodes received data.
    ///
    /// # Errors
    /// The offset of the invalid field.
    pub fn decode(bytes: &[u8; CONNECT_DATA_BYTES]) -> Result<Self, u16> {
        let name = |at: u16| nqn_at(bytes, usize::from(at)).ok_or(at);
        Ok(Self {
            host_id: array_at(bytes, 0),
            controller: u16_at(bytes, usize::from(Self::CONTROLLER_AT)),
            subsystem: name(Self::SUBSYSTEM_AT)?,
            host: name(Self::HOST_AT)?,
        })
    }
}

/// The result of a refused Connect: the place of the refused parameter.
#[must_use]
pub fn invalid_parameter(offset: u16, in_data: bool) -> u64 {
    u64::from(offset) | u64::from(in_data) << 16
}

/// In the result of Connect: the host has to authenticate (AUTHREQ, ATR).
pub const AUTHENTICATION_REQUIRED: u64 = 1 << 17;
/// In the result of Connect: the host has to authenticate and then set up a secure channel (AUTHREQ, ASCR).
pub const SECURE_CHANNEL_REQUIRED: u64 = 1 << 18;
/// Security Protocol (SECP) and its specifics for authentication, as bytes 41 to 43 of the command have them.
const AUTHENTICATION_PROTOCOL: [u8; 3] = [1, 1, 0xe9];

/// Authentication Send of a message of `bytes` bytes.
#[must_use]
pub fn authentication_send(bytes: u32) -> Sqe {
    authentication(fctype::AUTHENTICATION_SEND, bytes)
}

/// Authentication Receive of a message of up to `bytes` bytes.
#[must_use]
pub fn authentication_receive(bytes: u32) -> Sqe {
    authentication(fctype::AUTHENTICATION_RECEIVE, bytes)
}

fn authentication(kind: u8, bytes: u32) -> Sqe {
    let mut sqe = fabrics(kind).with_dword(11, bytes);
    put(&mut sqe.0, 41, &AUTHENTICATION_PROTOCOL);
    sqe
}

/// Length of an authentication command's message; `None` for another protocol.
#[must_use]
pub fn authentication_bytes(sqe: &Sqe) -> Option<u32> {
    (sqe.0[41..44] == AUTHENTICATION_PROTOCOL).then(|| sqe.dword(11))
}

fn fabrics(kind: u8) -> Sqe {
    Sqe::new(FABRICS, u32::from(kind))
}

/// Property Get; `wide` for properties of 8 bytes.
#[must_use]
pub fn property_get(offset: u32, wide: bool) -> Sqe {
    fabrics(fctype::PROPERTY_GET).with_dword(10, u32::from(wide)).with_dword(11, offset)
}

/// Property Set.
#[must_use]
pub fn property_set(offset: u32, wide: bool, value: u64) -> Sqe {
    fabrics(fctype::PROPERTY_SET).with_dword(10, u32::from(wide)).with_dword(11, offset).with_qword(12, value)
}

/// True if a Property command has a size of 8 bytes, false for 4; `None` for an invalid size.
#[must_use]
pub fn property_is_wide(sqe: &Sqe) -> Option<bool> {
    match sqe.0[40] & 7 {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

/// Controller Capabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Most entries of a queue, minus one (MQES).
    pub queue_entries_max: u16,
    /// Time until the controller is ready, in units of 500 ms (TO).
    pub timeout: u8,
}

impl Capabilities {
    /// The property: queues are contiguous (CQR), the NVM command set, pages of 4 KiB.
    #[must_use]
    pub fn encode(self) -> u64 {
        u64::from(self.queue_entries_max) | 1 << 16 | u64::from(self.timeout) << 24 | 1 << 37
    }

    /// From the property.
    #[must_use]
    pub fn decode(value: u64) -> Self {
        Self { queue_entries_max: value as u16, timeout: (value >> 24) as u8 }
    }
}

/// Controller Configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Configuration(pub u32);

impl Configuration {
    /// Enabled, with entries of 64 and 16 bytes, pages of 4 KiB and the NVM command set.
    pub const ENABLED: Self = Self(1 | 6 << 16 | 4 << 20);
    /// The same, and a request for a normal shutdown.
    pub const SHUTDOWN: Self = Self(Self::ENABLED.0 | 1 << 14);

    /// Enable (EN).
    #[must_use]
    pub fn enable(self) -> bool {
        self.0 & 1 != 0
    }

    /// Shutdown Notification (SHN): 0 none, 1 normal, 2 abrupt.
    #[must_use]
    pub fn shutdown(self) -> u32 {
        self.0 >> 14 & 3
    }

    /// True if command set, page size, arbitration and entry sizes are supported.
    #[must_use]
    pub fn is_supported(self) -> bool {
        self.0 & 0x3ff0 == 0 && self.0 >> 16 & 0xff == 0x46
    }
}

/// Controller Status: ready (RDY).
pub const STATUS_READY: u32 = 1;
/// Controller Status: fatal (CFS).
pub const STATUS_FATAL: u32 = 1 << 1;
/// Controller Status: shutdown is complete (SHST).
pub const STATUS_SHUT_DOWN: u32 = 2 << 2;
