//! With files that stand for the kernel's. `tests/linux` and `rockmill-cli` have tests with a kernel.

use super::*;
use crate::auth::{Hash, SystemRandom};

const HOST: &str = "nqn.2026-11.rockmill:worker";
const JOB: &str = "nqn.2026-11.rockmill:job:";

fn config() -> KernelConfig {
    KernelConfig {
        address: "10.0.0.5:4420".parse().unwrap(),
        subsystem: format!("{JOB}00ff:7"),
        host: HOST.to_owned(),
        host_id: [0xab; 16],
        secrets: None,
        queues: (2, 1),
        digests: true,
        keep_alive: Duration::from_millis(3500),
        io_fails_after: Duration::from_millis(200),
        gives_up_after: Duration::from_secs(5),
    }
}

/// Directories that stand for `/sys` and `/dev`.
struct Machine {
    dir: tempfile::TempDir,
}

impl Machine {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        ["sys/class/nvme", "sys/block", "dev"].iter().for_each(|d| fs::create_dir_all(dir.path().join(d)).unwrap());
        Self { dir }
    }

    fn kernel(&self) -> KernelInitiator {
        KernelInitiator::at(self.dir.path().join("sys"), self.dir.path().join("dev"))
    }

    fn put(&self, path: &str, text: &str) {
        let path = self.dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn has(&self, path: &str) -> String {
        fs::read_to_string(self.dir.path().join(path)).unwrap()
    }

    fn controller(&self, name: &str, subsystem: &str, host: &str, id: [u8; 16]) {
        let values = [("subsysnqn", subsystem), ("hostnqn", host), ("hostid", &id_text(id))];
        for (attribute, value) in values {
            self.put(&format!("sys/class/nvme/{name}/{attribute}"), &format!("{value}\n"));
        }
        self.put(&format!("sys/class/nvme/{name}/delete_controller"), "");
    }

    fn is_deleted(&self, name: &str) -> bool {
        self.has(&format!("sys/class/nvme/{name}/delete_controller")) == "1"
    }
}

#[test]
fn the_line_of_options_has_everything_and_nothing_can_be_put_into_it() {
    let id = "abababab-abab-abab-abab-abababababab";
    let mut config = config();
    assert_eq!(
        config.line().unwrap(),
        format!(
            "transport=tcp,traddr=10.0.0.5,trsvcid=4420,nqn={JOB}00ff:7,hostnqn={HOST},hostid={id},nr_io_queues=2,\
             keep_alive_tmo=3,reconnect_delay=1,ctrl_loss_tmo=5,fast_io_fail_tmo=1,nr_write_queues=1,hdr_digest,\
             data_digest"
        )
    );
    let [host, controller] = [0; 2].map(|_| Secret::generate(Some(Hash::Sha256), &SystemRandom).unwrap());
    config.secrets = Some((host.clone(), Some(controller.clone())));
    config.address = "[fe80::1%3]:4420".parse().unwrap();
    (config.queues, config.digests) = ((0, 0), false);
    let line = config.line().unwrap();
    assert!(line.contains("traddr=fe80::1%3,trsvcid=4420,") && line.contains("nr_io_queues=1,"), "{line}");
    assert!(!line.contains("digest") && !line.contains("nr_write_queues"), "{line}");
    let end = format!(",dhchap_secret={},dhchap_ctrl_secret={}", host.to_text(), controller.to_text());
    assert!(line.ends_with(&end));
    for name in ["", "a,transport=rdma", "a b", "a\n", "é", &"x".repeat(224)] {
        for of_host in [true, false] {
            let mut config = config.clone();
            *(if of_host { &mut config.host } else { &mut config.subsystem }) = name.to_owned();
            assert_eq!(config.line().unwrap_err().kind(), io::ErrorKind::InvalidInput, "{name:?}");
        }
    }
}

#[test]
fn what_the_kernel_lacks_is_named() {
    let machine = Machine::new();
    let said = |secrets| machine.kernel().probe(secrets).map_err(|e| e.to_string());
    assert!(said(false).unwrap_err().contains("modprobe nvme-tcp"));
    machine.put("dev/nvme-fabrics", "transport=%s,fast_io_fail_tmo=%d\n");
    said(false).unwrap();
    assert!(said(true).unwrap_err().contains("dhchap_ctrl_secret"));
    machine.put("dev/nvme-fabrics", "transport=%s,fast_io_fail_tmo=%d,dhchap_secret=%s,dhchap_ctrl_secret=%s\n");
    said(true).unwrap();
    machine.put("dev/nvme-fabrics", "transport=%s\n");
    assert!(said(false).unwrap_err().contains("fast_io_fail_tmo"));
}

#[test]
fn an_owner_is_known_by_its_id() {
    let this = Owner::this().unwrap();
    assert_eq!(Owner::parse(&id_text(this.to_id(HOST))), Some(this));
    // A second host of this process.
    let other = this.to_id("nqn.2026-11.rockmill:other");
    assert_eq!(Owner::parse(&id_text(other)), Some(this));
    assert_ne!(other, this.to_id(HOST));
    assert!(!this.is_gone());
    assert!(Owner { began: this.began - 1, ..this }.is_gone(), "the number was another process's before");
    assert!(Owner { process: 0x7fff_ffff, ..this }.is_gone());
    assert!(!Owner { namespace: 1, process: 0x7fff_ffff, ..this }.is_gone(), "nobody here can know");
    assert_eq!(Owner::parse("no id"), None);
    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let of_child = Owner { process: child.id(), began: Owner::began(child.id()).unwrap(), ..this };
    assert!(!of_child.is_gone());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(of_child.is_gone());
}

#[test]
fn only_what_a_process_that_is_gone_has_left_is_removed() {
    let machine = Machine::new();
    let this = Owner::this().unwrap();
    let gone = Owner { began: this.began - 1, ..this };
    let elsewhere = Owner { namespace: 1, ..gone };
    machine.controller("nvme0", &format!("{JOB}1:1"), HOST, gone.to_id(HOST));
    machine.controller("nvme1", &format!("{JOB}2:1"), HOST, this.to_id(HOST));
    machine.controller("nvme2", &format!("{JOB}3:1"), HOST, elsewhere.to_id(HOST));
    machine.controller("nvme3", "nqn.2026-11.example:disk", HOST, gone.to_id(HOST));
    machine.controller("nvme4", &format!("{JOB}4:1"), "nqn.2026-11.rockmill:other", gone.to_id(HOST));
    machine.controller("nvme5", &format!("{JOB}5:1"), HOST, gone.to_id(HOST));
    // A disk of the machine itself says nothing of a host.
    machine.put("sys/class/nvme/nvme6/model", "disk");
    let mut removed = machine.kernel().remove_leftovers(HOST, JOB).unwrap();
    removed.sort();
    assert_eq!(removed, ["nvme0", "nvme5"]);
    for (name, wanted) in [("nvme0", true), ("nvme1", false), ("nvme2", false), ("nvme3", false), ("nvme4", false)] {
        assert_eq!(machine.is_deleted(name), wanted, "{name}");
    }
    // No class at all: nothing is left.
    let nothing = KernelInitiator::at("/nowhere/sys", "/nowhere/dev");
    assert!(nothing.remove_leftovers(HOST, JOB).unwrap().is_empty());
}

#[test]
fn a_disk_is_found_by_the_name_of_its_subsystem() {
    let machine = Machine::new();
    let subsystem = config().subsystem;
    machine.controller("nvme7", &subsystem, HOST, [0; 16]);
    let controller = machine.kernel().controller("nvme7").unwrap();
    assert_eq!(controller.disk(&subsystem).unwrap(), None);
    for (name, of) in
        [("sda", subsystem.as_str()), ("nvme7c7n1", &subsystem), ("nvme0n1", "nqn.other"), ("nvme7n1", &subsystem)]
    {
        machine.put(&format!("sys/block/{name}/device/subsysnqn"), &format!("{of}\n"));
    }
    assert_eq!(controller.disk(&subsystem).unwrap(), None, "its file is not there yet");
    machine.put("dev/nvme7n1", "");
    assert_eq!(controller.disk(&subsystem).unwrap(), None, "nothing is known of it yet");
    let facts = [("dev", "259:5"), ("queue/max_sectors_kb", "1280"), ("queue/max_segments", "257")];
    for (file, value) in facts.into_iter().chain([("queue/logical_block_size", "4096")]) {
        machine.put(&format!("sys/block/nvme7n1/{file}"), &format!("{value}\n"));
    }
    machine.put("sys/block/nvme7n1/queue/max_segments", "many\n");
    assert!(controller.disk(&subsystem).unwrap_err().to_string().contains("no number"));
    machine.put("sys/block/nvme7n1/queue/max_segments", "257\n");
    let disk = controller.disk(&subsystem).unwrap().unwrap();
    let path = machine.dir.path().join("dev/nvme7n1");
    assert_eq!(disk, KernelDisk { path, numbers: (259, 5), block_bytes: 4096, command_bytes: 257 * 4096 });
    assert_eq!(controller.counters(&disk), DiskCounters::default());
    machine.put("sys/block/nvme7n1/stat", "  10  1  2048  3  5  2  4096  9  0 11 12\n");
    let counted = DiskCounters { commands: 15, read_bytes: 1 << 20, written_bytes: 2 << 20 };
    assert_eq!(controller.counters(&disk), counted);
    assert_eq!(controller.name(), "nvme7");
    assert!(!machine.is_deleted("nvme7"));
    drop(controller);
    assert!(machine.is_deleted("nvme7"));
}

#[test]
fn secrets_are_hidden_from_other_users() {
    let machine = Machine::new();
    machine.controller("nvme3", &format!("{JOB}9:9"), HOST, [1; 16]);
    machine.kernel().hide_secrets("nvme3").unwrap(); // has none
    machine.put("sys/class/nvme/nvme3/dhchap_secret", "DHHC-1:00:it:");
    machine.kernel().hide_secrets("nvme3").unwrap();
    let file = std::fs::metadata(machine.dir.path().join("sys/class/nvme/nvme3/dhchap_secret")).unwrap();
    assert_eq!(file.permissions().mode() & 0o777, 0o600);
}

#[test]
fn another_process_with_the_same_name_is_named() {
    let machine = Machine::new();
    machine.controller("nvme3", &format!("{JOB}9:9"), HOST, [1; 16]);
    // Nothing that is written to it becomes a controller.
    machine.put("dev/nvme-fabrics", "");
    let e = machine.kernel().connect(&config()).unwrap_err();
    assert!(e.to_string().contains("does not say as what"), "{e}");
    let e = machine.kernel().refused(&config(), &io::ErrorKind::InvalidInput.into());
    assert!(e.to_string().contains("nvme3 is connected as nqn.2026-11.rockmill:worker by another process"), "{e}");
    let same = KernelConfig { host_id: [1; 16], ..config() };
    let e = machine.kernel().refused(&same, &io::ErrorKind::ConnectionRefused.into());
    assert!(e.to_string().contains("the kernel's log says why"), "{e}");
}
