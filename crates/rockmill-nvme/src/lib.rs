//! NVMe over TCP in user space: both sides as state machines, and sockets for both.
//!
//! ```text
//!   a host                                                         a target
//!
//!   initiator::Admin, Io   connect, identify, read, write …        target::Target     namespaces, controllers
//!        │ Link                                                         │ accept
//!   initiator::Queue       commands ⇄ PDUs                         target::Connection PDUs ⇄ commands ─► Namespace
//!        │                                                              │
//!   ─────┴──────────────── bytes and times, nothing else ───────────────┴─────
//!        │                                                              │
//!   tcp::TcpLink           std sockets                             tcp::TcpServer     std sockets, threads
//!        └───────────────────────────── TCP ────────────────────────────┘
//!
//!   pdu        the nine PDUs, digests, alignment      pdu_error   what ends a connection, and how the peer is told
//!   command    submission and completion entries      status      how commands end, by name
//!   fabrics    Connect, properties                    identify, logs   data of Identify and Get Log Page
//!   auth       DH-HMAC-CHAP                           psk        keys of TLS, as NVMe has them
//!   kernel     the Linux kernel's initiator in place of ours, through its files
//! ```
//!
//! The state machines know no socket and no clock: tests run both in one process, split the stream at any byte, and set
//! the time themselves. `tcp` is a thin driver over blocking sockets; a driver over io_uring (through `rockmill-io`)
//! would use the same state machines. The target copies no data: it reads into its output, writes from where the
//! socket's bytes went, both in whole pages of memory, or has the kernel send a file.
//!
//! ```
//! use std::net::TcpListener;
//! use std::sync::Arc;
//!
//! use rockmill_io::SystemClock;
//! use rockmill_nvme::initiator::{HostConfig, QueueConfig};
//! use rockmill_nvme::target::{MemoryNamespace, Target, TargetConfig};
//! use rockmill_nvme::tcp::{ServerConfig, TcpHost, TcpServer};
//!
//! let target = Target::new(TargetConfig::new("nqn.2026-11.example:tables"))?;
//! target.add_namespace(1, Arc::new(MemoryNamespace::new(4096, 64, false)))?;
//! let clock = Arc::new(SystemClock::default());
//! let listener = TcpListener::bind("127.0.0.1:0")?;
//! let server = TcpServer::start(listener, target, ServerConfig::default(), clock.clone())?;
//!
//! let config = HostConfig {
//!     subsystem: "nqn.2026-11.example:tables".into(),
//!     host: "nqn.2026-11.example:worker".into(),
//!     host_id: [7; 16],
//!     keep_alive_ms: 5_000,
//!     auth: None,
//!     queue: QueueConfig::default(),
//! };
//! let host = TcpHost::connect(server.address(), config, clock)?;
//! let namespace = host.admin(|admin| admin.namespace(1))?;
//! let mut queue = host.io_queue(1)?;
//! queue.write(&namespace, 3, &[42; 8192], true)?;
//! let mut block = [0; 4096];
//! queue.read(&namespace, 4, &mut block)?;
//! assert_eq!(block, [42; 4096]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What the specifications say, and where
//!
//! Sections are named by their titles: their numbers differ between revisions.
//!
//! | here | specification |
//! |---|---|
//! | [`pdu`], [`pdu_error`] | NVMe/TCP Transport 1.0: "PDU Definitions", "Transport Error Handling" |
//! | [`target::Connection`], [`initiator::Queue`] | NVMe/TCP 1.0: "Connection Establishment", "Data Transfer Model" |
//! | [`fabrics`] | NVMe over Fabrics 1.1: "Connect Command and Response", "Property Get", "Property Set" |
//! | [`logs::DiscoveryEntry`] | NVMe over Fabrics 1.1: "Discovery Log Page" |
//! | [`command`] | NVMe Base 1.4: "Submission Queue Entry", "Completion Queue Entry", the two command sets |
//! | [`status`] | NVMe Base 1.4: "Status Field"; NVMe over Fabrics 1.1: "Fabrics Command Specific Status" |
//! | [`identify`] | NVMe Base 1.4: "Identify Command"; NVMe over Fabrics 1.1: "Identify Controller Data Structure" |
//! | [`logs`] | NVMe Base 1.4: "Get Log Page Command" |
//! | [`psk`], `tcp` | NVMe/TCP Transport 1.0: "Transport Security" |
//! | [`auth`] | NVMe Base 2.0: "NVMe In-band Authentication"; NVMe over Fabrics: TP 8006 |
//! | properties, keep alive | NVMe Base 1.4: "Controller Registers", "Keep Alive" |
//!
//! # Errors
//!
//! - A malformed PDU ends its connection with H2CTermReq or C2HTermReq: status, field and offset are in
//!   [`pdu_error::PduError`].
//! - A data digest that does not match fails the command, with Transient Transport Error; nothing is written.
//! - Any other error is the status of its command. The target's error log keeps the last 64.
//!
//! # Not implemented yet
//!
//! - TLS with keys derived during authentication ("secure channel concatenation").
//! - A host that reads in the discovery log that an entry requires TLS does not use TLS by itself.
//! - Sockets through io_uring: measured, and not worth it (`docs/notebook/offload.md`).
//! - The Disconnect command, Reservations, Dataset Management, Compare, Write Uncorrectable, Verify, fused commands.
//! - Aborting anything but event requests: Abort answers that the command was not aborted, which the specification
//!   allows. An operation that a namespace has begun cannot be cancelled.
//! - The Firmware Slot log page, which the base specification requires of a 1.4 controller; also mandatory features
//!   that have no meaning without a physical device (Arbitration, Power Management, Temperature Threshold, Error
//!   Recovery, Write Atomicity).
//! - Metadata and protection information, zoned and key-value command sets, asymmetric access (ANA).
//! - More than one R2T of a command at once: the host says so (MAXR2T), and the target never asks for more.
//! - Tests with other implementations, except Wireshark's dissector and, in part, the Linux kernel's and nvme-cli:
//!   `docs/offload.md` has the results.
#![deny(unsafe_code)]

pub mod auth;
mod bytes;
pub mod command;
pub mod fabrics;
pub mod identify;
pub mod initiator;
pub mod kernel;
pub mod logs;
pub mod pdu;
pub mod pdu_error;
pub mod psk;
pub mod status;
pub mod target;
pub mod tcp;
