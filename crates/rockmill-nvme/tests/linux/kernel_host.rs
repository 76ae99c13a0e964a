//! The kernel's initiator and nvme-cli against our target.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use rockmill_nvme::logs::{DiscoveryEntry, Security, TRANSPORT_TCP};
use rockmill_nvme::status::Status;
use rockmill_nvme::target::{MemoryNamespace, Namespace, Target, TargetConfig};
use rockmill_nvme::tcp::{ServerConfig, ServerTls, TcpServer};
use rockmill_skip::Needs;

use crate::common::{NQN, pattern};
use crate::kernel::{Direct, KernelController, clock, device, find_device, kernel, program, run, until};

pub const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:5d1b0b9e-6b6c-4c53-8a52-0d3a1b7a7d11";
pub const HOST_ID: &str = "5d1b0b9e-6b6c-4c53-8a52-0d3a1b7a7d11";

/// A target with a disk of 16 MiB, blocks of `block` bytes.
pub struct Served {
    pub target: Arc<Target>,
    pub disk: Arc<MemoryNamespace>,
    pub server: TcpServer,
}

impl Served {
    pub fn new(block: u32) -> Self {
        Self::with(TargetConfig::new(NQN), block)
    }

    pub fn with(config: TargetConfig, block: u32) -> Self {
        Self::with_tls(config, block, None)
    }

    /// The same, with TLS if there are keys.
    pub fn with_tls(config: TargetConfig, block: u32, tls: Option<ServerTls>) -> Self {
        let target = Target::new(config).unwrap();
        // The kernel requires a globally unique value, different also from those of deleted namespaces.
        let nguid = fastrand::u128(1..).to_be_bytes();
        let disk = Arc::new(MemoryNamespace::new(block, (16 << 20) / block as usize, false).with_nguid(nguid));
        target.add_namespace(1, disk.clone()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let served = Arc::clone(&target);
        let server = TcpServer::start_with(listener, served, ServerConfig::default(), tls, clock()).unwrap();
        Self { target, disk, server }
    }

    /// Lists the subsystem in its discovery log, as one that requires TLS.
    pub fn announce(&self) {
        self.target.set_discovery(vec![DiscoveryEntry {
            transport: TRANSPORT_TCP,
            family: 1,
            subsystem_kind: 2,
            port: 1,
            admin_entries: 32,
            service: self.server.address().port().to_string(),
            subsystem: NQN.into(),
            address: "127.0.0.1".into(),
            security: Security::Tls13Required,
        }]);
    }

    /// Serves again where it was, after it was stopped.
    pub fn start_again(&mut self, tls: Option<ServerTls>) {
        let listener = TcpListener::bind(self.server.address()).unwrap();
        let target = Arc::clone(&self.target);
        self.server = TcpServer::start_with(listener, target, ServerConfig::default(), tls, clock()).unwrap();
    }

    /// The options that the kernel needs to find it.
    pub fn options(&self, more: &str) -> String {
        let port = self.server.address().port();
        format!(
            "transport=tcp,traddr=127.0.0.1,trsvcid={port},nqn={NQN},hostnqn={HOST},hostid={HOST_ID},\
             keep_alive_tmo=10,reconnect_delay=1{more}"
        )
    }

    pub fn connect(&self, more: &str) -> KernelController {
        let controller = KernelController::connect(&self.options(more)).unwrap();
        controller.until_live();
        controller
    }

    pub fn device(&self) -> Direct {
        Direct::open(&device(self.disk.nguid()))
    }
}

/// Writes, reads and flushes in several sizes from several threads, and checks the target's contents.
pub fn exercise(served: &Served, seed: u64) {
    let disk = served.device();
    let flushes = served.disk.flushes();
    let part = 4 << 20;
    thread::scope(|scope| {
        for n in 0..4u64 {
            let disk = &disk;
            scope.spawn(move || {
                let data = pattern(seed + n, part);
                let mut at = 0;
                // In the capsule, at its limit, with one R2T, with several H2CData PDUs, and the kernel's longest
                // transfer.
                for size in [4096, 8192, 12_288, 65_536, 1 << 20].iter().cycle() {
                    let piece = &data[at..(at + size).min(part)];
                    disk.write(n * part as u64 + at as u64, piece);
                    at += piece.len();
                    if at == part {
                        break;
                    }
                }
                assert!(disk.read(n * part as u64, part) == data, "thread {n}");
            });
        }
    });
    disk.sync();
    assert!(served.disk.flushes() > flushes);
    let all: Vec<u8> = (0..4).flat_map(|n| pattern(seed + n, part)).collect();
    assert!(served.disk.contents() == all);
}

#[test]
fn the_kernel_writes_and_reads_with_and_without_digests_and_flow_control() {
    let Some(_alone) = kernel("the_kernel_writes_and_reads_with_and_without_digests_and_flow_control") else { return };
    let cases =
        [(512, ""), (512, ",hdr_digest"), (4096, ",data_digest,disable_sqflow"), (4096, ",hdr_digest,data_digest")];
    for (i, (block, digests)) in cases.into_iter().enumerate() {
        let served = Served::new(block);
        let controller = served.connect(&format!(",nr_io_queues=2,nr_write_queues=2{digests}"));
        assert_eq!(controller.attribute("model"), "Rockmill NVMe/TCP target");
        // On two processors: two queues for reads, two for writes, and the admin queue.
        assert_eq!(controller.attribute("queue_count"), "5");
        exercise(&served, i as u64 * 10);
        drop(controller);
        until("the controller's end", || served.target.controllers() == 0);
    }
}

#[test]
fn the_kernel_with_a_target_of_the_smallest_limits() {
    let Some(_alone) = kernel("the_kernel_with_a_target_of_the_smallest_limits") else { return };
    let mut config = TargetConfig::new(NQN);
    config.queue_entries_max = 4;
    config.in_capsule_max = 0;
    config.h2c_data_max = 4096;
    config.c2h_data_max = 4096;
    config.r2t_bytes_max = 8192;
    config.transfer_shift = 2;
    config.write_buffer_max = 16_384;
    // The kernel accepts only the smallest alignment.
    config.io_queues_max = 1;
    let served = Served::with(config, 512);
    let controller = served.connect(",nr_io_queues=2,hdr_digest,data_digest");
    assert_eq!(controller.attribute("queue_count"), "2");
    exercise(&served, 100);
}

#[test]
fn the_kernel_reconnects_after_a_reset_and_after_the_target_was_away() {
    let Some(_alone) = kernel("the_kernel_reconnects_after_a_reset_and_after_the_target_was_away") else { return };
    let mut served = Served::new(4096);
    let controller = served.connect(",nr_io_queues=2,ctrl_loss_tmo=60");
    exercise(&served, 200);
    controller.reset();
    exercise(&served, 300);
    served.server.stop();
    until("the kernel to notice", || controller.attribute("state") == "connecting");
    served.start_again(None);
    controller.until_live();
    exercise(&served, 400);
    until("the old controllers' end", || served.target.controllers() == 1);
}

#[test]
fn the_kernel_has_a_file_system_on_our_target() {
    const TEST: &str = "the_kernel_has_a_file_system_on_our_target";
    let Some(_alone) = kernel(TEST) else { return };
    let Some(mkfs) = program(TEST, "mkfs.ext4", Needs::NvmeKernel) else { return };
    let served = Served::new(4096);
    let place = Path::new("/tmp/nvme-mount");
    fs::create_dir_all(place).unwrap();
    let files: Vec<Vec<u8>> = (0..20).map(|n| pattern(n, 1000 * (n as usize + 1) * 7)).collect();
    {
        let _controller = served.connect(",nr_io_queues=2,data_digest");
        let device = device(served.disk.nguid());
        run(mkfs, &["-q", "-F", device.to_str().unwrap()]);
        run("mount", &["-t", "ext4", device.to_str().unwrap(), place.to_str().unwrap()]);
        files.iter().enumerate().for_each(|(n, bytes)| fs::write(place.join(n.to_string()), bytes).unwrap());
        run("umount", &[place.to_str().unwrap()]);
    }
    // Another controller, another device, the same bytes.
    let _controller = served.connect(",nr_io_queues=1,hdr_digest");
    let device = device(served.disk.nguid());
    run("mount", &["-t", "ext4", "-o", "ro", device.to_str().unwrap(), place.to_str().unwrap()]);
    files.iter().enumerate().for_each(|(n, bytes)| assert!(fs::read(place.join(n.to_string())).unwrap() == *bytes));
    run("umount", &[place.to_str().unwrap()]);
}

#[test]
fn the_kernel_sees_namespaces_come_and_go_and_refusals() {
    let Some(_alone) = kernel("the_kernel_sees_namespaces_come_and_go_and_refusals") else { return };
    let served = Served::new(512);
    let _controller = served.connect(",nr_io_queues=1");
    let disk = served.device();
    let nguid = fastrand::u128(1..).to_be_bytes();
    let fixed = Arc::new(MemoryNamespace::new(4096, 64, true).with_nguid(nguid));
    fixed.fill(|i| (i / 4096) as u8);
    served.target.add_namespace(7, fixed).unwrap();
    let second = device(nguid);
    let name = second.file_name().unwrap().to_str().unwrap();
    until("a device that is read only", || crate::kernel::text(format!("/sys/block/{name}/ro")) == "1");
    let bytes = std::process::Command::new("dd")
        .args([&format!("if={}", second.display()), "bs=4096", "skip=63", "count=1"])
        .output()
        .unwrap()
        .stdout;
    assert_eq!(bytes, [63; 4096]);
    assert!(served.target.remove_namespace(7));
    until("the device to go", || find_device(nguid).is_none());
    // A failed write is reported, and the next succeeds.
    served.disk.set_fault(Some(Status::WRITE_FAULT));
    assert!(disk.try_write(0, &[1; 4096]).is_err());
    served.disk.set_fault(None);
    disk.write(0, &[2; 4096]);
    assert_eq!(disk.read(0, 4096), [2; 4096]);
}

#[test]
fn nvme_cli_discovers_connects_and_reads_every_log() {
    const TEST: &str = "nvme_cli_discovers_connects_and_reads_every_log";
    let Some(_alone) = kernel(TEST) else { return };
    let Some(nvme) = program(TEST, "nvme", Needs::NvmeCli) else { return };
    let served = Served::new(512);
    let port = served.server.address().port().to_string();
    served.announce();
    let to = ["-t", "tcp", "-a", "127.0.0.1", "-s", &port, "-q", HOST, "-I", HOST_ID];
    let nvme = |first: &[&str]| run(&nvme, first);
    let found = nvme(&[&["discover"], &to[..]].concat());
    assert!(found.contains(&format!("subnqn:  {NQN}")) && found.contains("subtype: nvme subsystem"), "{found}");
    assert!(found.contains(&format!("trsvcid: {port}")) && found.contains("Records 1"), "{found}");
    assert!(found.contains("treq:    required") && found.contains("sectype: tls13"), "{found}");
    nvme(&[&["connect", "-n", NQN, "-g", "-G", "-i", "2"], &to[..]].concat());
    let disk = device(served.disk.nguid());
    let disk = disk.to_str().unwrap();
    let controller = nvme(&["id-ctrl", disk]);
    for line in
        ["mn        : Rockmill NVMe/TCP target", "cntrltype : 1", "mdts      : 8", &format!("subnqn    : {NQN}")]
    {
        assert!(controller.contains(line), "{line}: {controller}");
    }
    assert!(nvme(&["list-ns", disk]).contains("[   0]:0x1"));
    let namespace = nvme(&["id-ns", disk]);
    assert!(namespace.contains("nsze    : 0x8000"), "{namespace}");
    assert!(nvme(&["ns-descs", disk]).contains("nguid"));
    let data = pattern(9, 4096);
    fs::write("/tmp/nvme-data", &data).unwrap();
    nvme(&["write", disk, "-s", "16", "-c", "7", "-z", "4096", "-d", "/tmp/nvme-data"]);
    assert!(served.disk.contents()[16 * 512..24 * 512] == data);
    let read = nvme(&["read", disk, "-s", "16", "-c", "7", "-z", "4096", "-d", "/tmp/nvme-back"]);
    assert!(fs::read("/tmp/nvme-back").unwrap() == data, "{read}");
    nvme(&["write-zeroes", disk, "-s", "17", "-c", "2"]);
    assert!(served.disk.contents()[17 * 512..20 * 512].iter().all(|&b| b == 0));
    assert_ne!(served.disk.contents()[20 * 512..21 * 512], [0; 512]);
    let flushes = served.disk.flushes();
    nvme(&["flush", disk, "-n", "1"]);
    assert_eq!(served.disk.flushes(), flushes + 1);
    let smart = nvme(&["smart-log", disk]);
    assert!(smart.contains("available_spare"), "{smart}");
    let errors = nvme(&["error-log", disk, "-e", "4"]);
    assert!(errors.contains("error_count"), "{errors}");
    // Number of Queues, Keep Alive Timer, Asynchronous Events, Volatile Write Cache.
    for feature in ["7", "0xf", "0xb", "6"] {
        nvme(&["get-feature", disk, "-f", feature]);
    }
    let (controller, _) = disk.rsplit_once('n').unwrap();
    let property = nvme(&["get-property", controller, "--offset=0x8"]);
    assert!(property.contains("10400"), "{property}");
    assert!(nvme(&["list-subsys"]).contains("live"));
    assert!(nvme(&["disconnect", "-n", NQN]).contains("disconnected 1 controller"));
    until("the controller's end", || served.target.controllers() == 0);
}
