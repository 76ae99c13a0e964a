//! Our initiator against the kernel's target.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rockmill_io::Clock;
use rockmill_nvme::auth::Secret;
use rockmill_nvme::command::EVENT_NAMESPACES;
use rockmill_nvme::fabrics::{DISCOVERY_NQN, property};
use rockmill_nvme::identify::{ControllerKind, Descriptor};
use rockmill_nvme::initiator::{HostConfig, Link, QueueConfig};
use rockmill_nvme::logs::Security;
use rockmill_nvme::status::Status;
use rockmill_nvme::tcp::{Reconnect, TcpHost};

use crate::between::{Between, Event, Rules};
use crate::common::pattern;
use crate::kernel::{NVMET, clock, kernel, put, until};

pub const SUBSYSTEM: &str = "nqn.2026-11.test:kernel";
const PORT: u16 = 14_420;
const NGUID: &str = "11223344-5566-7788-99aa-bbccddeeff01";

/// A subsystem of the kernel on a port; its namespace 1 is a file of 16 MiB.
pub struct Subsystem {
    pub file: PathBuf,
    root: PathBuf,
    port: PathBuf,
}

impl Subsystem {
    pub fn new() -> Self {
        Self::with(&[])
    }

    /// The same with these attributes of the port.
    pub fn with(more: &[(&str, &str)]) -> Self {
        let (root, port) = (Path::new(NVMET).join("subsystems").join(SUBSYSTEM), Path::new(NVMET).join("ports/1"));
        let file = std::env::current_dir().unwrap().join("nvmet-disk");
        let me = Self { file, root, port };
        fs::write(&me.file, vec![0; 16 << 20]).unwrap();
        fs::create_dir(&me.root).unwrap();
        put(me.root.join("attr_allow_any_host"), "1");
        me.add_namespace(1, NGUID);
        fs::create_dir(&me.port).unwrap();
        let attributes =
            [("addr_trtype", "tcp"), ("addr_adrfam", "ipv4"), ("addr_traddr", "127.0.0.1"), ("addr_trsvcid", "14420")];
        for (attribute, value) in attributes.iter().chain(more) {
            put(me.port.join(attribute), value);
        }
        me.come_back();
        me
    }

    /// Serves it on the port.
    pub fn come_back(&self) {
        symlink(&self.root, self.port.join("subsystems").join(SUBSYSTEM)).unwrap();
    }

    /// Serves it no more; connections end.
    #[cfg(feature = "tls")]
    pub fn leave(&self) {
        fs::remove_file(self.port.join("subsystems").join(SUBSYSTEM)).unwrap();
    }

    /// Allows only this host to connect, with these secrets.
    pub fn require(&self, host: &str, secrets: (&Secret, Option<&Secret>), hash: &str, group: &str) -> Required {
        let path = Path::new(NVMET).join("hosts").join(host);
        fs::create_dir(&path).unwrap();
        put(path.join("dhchap_key"), &secrets.0.to_text());
        if let Some(controller) = secrets.1 {
            put(path.join("dhchap_ctrl_key"), &controller.to_text());
        }
        put(path.join("dhchap_hash"), hash);
        put(path.join("dhchap_dhgroup"), group);
        put(self.root.join("attr_allow_any_host"), "0");
        let allowed = self.root.join("allowed_hosts").join(host);
        symlink(&path, &allowed).unwrap();
        Required { path, allowed }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn add_namespace(&self, id: u32, nguid: &str) {
        let namespace = self.root.join(format!("namespaces/{id}"));
        fs::create_dir(&namespace).unwrap();
        put(namespace.join("device_path"), self.file.to_str().unwrap());
        put(namespace.join("device_nguid"), nguid);
        put(namespace.join("buffered_io"), "1");
        put(namespace.join("enable"), "1");
    }

    pub fn remove_namespace(&self, id: u32) {
        let namespace = self.root.join(format!("namespaces/{id}"));
        let _ = fs::write(namespace.join("enable"), "0");
        let _ = fs::remove_dir(namespace);
    }
}

/// A host that the kernel's target knows. Dropping this removes it.
pub struct Required {
    path: PathBuf,
    allowed: PathBuf,
}

impl Drop for Required {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.allowed);
        let _ = fs::remove_dir(&self.path);
    }
}

impl Drop for Subsystem {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.port.join("subsystems").join(SUBSYSTEM));
        let _ = fs::remove_dir(&self.port);
        self.remove_namespace(1);
        let _ = fs::remove_dir(&self.root);
        let _ = fs::remove_file(&self.file);
    }
}

pub fn address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], PORT))
}

pub fn config(subsystem: &str, queue: QueueConfig) -> HostConfig {
    HostConfig {
        subsystem: subsystem.into(),
        host: "nqn.2026-11.test:host".into(),
        host_id: *b"\x51rockmill-host-1",
        keep_alive_ms: 5000,
        auth: None,
        queue,
    }
}

pub fn connect(subsystem: &str, queue: QueueConfig) -> TcpHost {
    TcpHost::connect(address(), config(subsystem, queue), clock()).unwrap()
}

#[test]
fn the_kernel_s_discovery_log_names_its_subsystem() {
    let Some(_alone) = kernel("the_kernel_s_discovery_log_names_its_subsystem") else { return };
    let _subsystem = Subsystem::new();
    let host = connect(DISCOVERY_NQN, QueueConfig::default());
    assert_eq!(host.controller().identity.kind, ControllerKind::Discovery);
    let log = host.admin(|admin| admin.discovery_log()).unwrap();
    let entry = log.iter().find(|e| e.subsystem == SUBSYSTEM).unwrap_or_else(|| panic!("{log:?}"));
    assert_eq!((entry.transport, entry.family, entry.subsystem_kind), (3, 1, 2));
    assert_eq!((entry.address.as_str(), entry.service.as_str()), ("127.0.0.1", "14420"));
    assert_eq!(entry.security, Security::None);
    host.admin(|admin| admin.shut_down()).unwrap();
}

#[test]
fn our_host_uses_the_kernel_s_target() {
    let Some(_alone) = kernel("our_host_uses_the_kernel_s_target") else { return };
    let subsystem = Subsystem::new();
    for i in 0..4u64 {
        let queue = QueueConfig {
            header_digest: i & 1 != 0,
            data_digest: i & 2 != 0,
            no_flow_control: i != 3,
            ..QueueConfig::default()
        };
        let host = connect(SUBSYSTEM, queue);
        assert_eq!(host.controller().identity.subsystem, SUBSYSTEM);
        assert_eq!(host.admin(|admin| admin.property(property::CSTS, false)).unwrap(), 1);
        assert_eq!(host.admin(|admin| admin.namespaces()).unwrap(), [1]);
        let disk = host.admin(|admin| admin.namespace(1)).unwrap();
        assert_eq!((disk.blocks * u64::from(disk.block_bytes), disk.read_only), (16 << 20, false));
        let descriptors = host.admin(|admin| admin.descriptors(1)).unwrap();
        let nguid: u128 = u128::from_str_radix(&NGUID.replace('-', ""), 16).unwrap();
        assert!(descriptors.contains(&Descriptor::Nguid(nguid.to_be_bytes())), "{descriptors:?}");
        assert_eq!(host.admin(|admin| admin.set_queues(4)).unwrap(), 4);
        thread::scope(|scope| {
            for q in 1..=4u16 {
                let host = &host;
                scope.spawn(move || {
                    let mut io = host.io_queue(q).unwrap();
                    let part = 4 << 20;
                    let at = |n: u64| (u64::from(q - 1) * part as u64 + n) / u64::from(disk.block_bytes);
                    let data = pattern(i * 100 + u64::from(q), part);
                    // In the capsule, also as much as it holds (16 KiB), by an R2T, and in several commands at once.
                    let ends = [4096, 16_384, 32_768, 53_248, 1 << 20, part];
                    for (start, end) in std::iter::once(0).chain(ends).zip(ends) {
                        let written = io.write(&disk, at(start as u64), &data[start..end], end == part);
                        let queue = io.link().queue();
                        let left = (queue.outstanding(), queue.output().len());
                        written.unwrap_or_else(|e| panic!("case {i}, queue {q}, {start}..{end}: {e}; left {left:?}"));
                    }
                    let mut back = vec![0; part];
                    io.read(&disk, at(0), &mut back).unwrap();
                    assert!(back == data, "queue {q}");
                    io.flush(1).unwrap();
                });
            }
        });
        let mut all: Vec<u8> = (1..=4).flat_map(|q| pattern(i * 100 + q, 4 << 20)).collect();
        assert!(fs::read(&subsystem.file).unwrap() == all);
        let mut io = host.io_queue(5).unwrap();
        let block = disk.block_bytes as usize;
        io.write_zeroes(&disk, 2, 3).unwrap();
        all[2 * block..5 * block].fill(0);
        io.flush(1).unwrap();
        assert!(fs::read(&subsystem.file).unwrap() == all);
        let beyond = io.read(&disk, disk.blocks, &mut vec![0; block]).unwrap_err();
        assert!(matches!(beyond.status(), Some(Status::LBA_OUT_OF_RANGE | Status::CAPACITY_EXCEEDED)), "{beyond}");
        // The kernel counts the keep alive timeout in seconds: its value is no less than the requested one.
        assert!(host.admin(|admin| admin.keep_alive_ms()).unwrap() >= 5000);
        host.admin(|admin| admin.keep_alive()).unwrap();
        assert!(!host.admin(|admin| admin.abort(0, 7)).unwrap());
        host.admin(|admin| admin.smart()).unwrap();
        host.admin(|admin| admin.shut_down()).unwrap();
    }
}

/// A connection to the kernel's target is lost in the middle of a write, and when nothing is outstanding.
#[test]
fn our_host_connects_to_the_kernel_s_target_again() {
    let Some(_alone) = kernel("our_host_connects_to_the_kernel_s_target_again") else { return };
    let subsystem = Subsystem::new();
    let terms = Reconnect {
        loss_timeout: Duration::from_secs(30),
        delay: Duration::from_millis(50),
        useless_max: 3,
        while_refused: true,
    };
    let rules = Rules { pdus: true, ..Rules::default() };
    let open = |between: &Between| {
        let host = TcpHost::connect(between.address, config(SUBSYSTEM, QueueConfig::default()), clock()).unwrap();
        let disk = host.admin(|admin| admin.namespace(1)).unwrap();
        host.admin(|admin| admin.set_queues(1)).unwrap();
        let io = host.io_queue(1).unwrap();
        (host, disk, io)
    };
    // PDUs until the queue is open.
    let between = Between::before(address(), rules, None);
    let (host, ..) = open(&between);
    let before = between.pieces();
    host.admin(|admin| admin.shut_down()).unwrap();
    for (after, event) in [(3, Event::Cut), (8, Event::Shorten), (13, Event::Cut)] {
        let between = Between::before(address(), rules, Some((before + after, event)));
        let (host, disk, mut io) = open(&between);
        let data = pattern(after, 8 << 20);
        while let Err(e) = io.write(&disk, 0, &data, false) {
            assert!(e.is_lost(), "{e}");
            let lost = io.link().association();
            host.reconnect(lost, &terms, |admin| admin.set_queues(1).map(drop)).unwrap();
            io = host.io_queue(1).unwrap();
        }
        assert!(between.has_happened() && host.reconnects() == 1, "{event:?}: {}", host.reconnects());
        let mut back = vec![0; data.len()];
        io.read(&disk, 0, &mut back).unwrap();
        assert!(back == data, "{event:?}");
        io.flush(1).unwrap();
        assert!(fs::read(&subsystem.file).unwrap()[..data.len()] == data);
        host.admin(|admin| admin.shut_down()).unwrap();
    }
}

#[test]
fn the_kernel_tells_our_host_of_namespaces_that_come() {
    let Some(_alone) = kernel("the_kernel_tells_our_host_of_namespaces_that_come") else { return };
    let subsystem = Subsystem::new();
    let host = connect(SUBSYSTEM, QueueConfig::default());
    host.admin(|admin| admin.want_events(EVENT_NAMESPACES)).unwrap();
    subsystem.add_namespace(9, "11223344-5566-7788-99aa-bbccddeeff09");
    let mut event = None;
    until("an event", || {
        host.admin(|admin| {
            admin.keep_alive().unwrap();
            event = admin.event().unwrap();
        });
        event.is_some()
    });
    let event = event.unwrap();
    assert_eq!((event.kind, event.information, event.page), (2, 0, 4));
    assert_eq!(host.admin(|admin| admin.changed_namespaces()).unwrap(), [9]);
    assert_eq!(host.admin(|admin| admin.namespaces()).unwrap(), [1, 9]);
    subsystem.remove_namespace(9);
    assert_eq!(host.admin(|admin| admin.namespaces()).unwrap(), [1]);
}

#[test]
fn what_the_kernel_refuses_is_said() {
    let Some(_alone) = kernel("what_the_kernel_refuses_is_said") else { return };
    let subsystem = Subsystem::new();
    let clock: Arc<dyn Clock> = clock();
    let refused = |subsystem: &str| {
        let config = config(subsystem, QueueConfig::default());
        TcpHost::connect(address(), config, Arc::clone(&clock)).unwrap_err()
    };
    assert_eq!(refused("nqn.2026-11.test:none").status(), Some(Status::CONNECT_INVALID_PARAMETERS));
    put(subsystem.root().join("attr_allow_any_host"), "0");
    assert_eq!(refused(SUBSYSTEM).status(), Some(Status::CONNECT_INVALID_HOST));
}
