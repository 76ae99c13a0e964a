//! With files that stand for the kernel's. `rockmill-cli` has tests with a kernel (`cli_offload/kernel_device.rs`).

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rockmill_io::SystemClock;
use rockmill_skip::{Needs, skip};

use super::*;

const SUBSYSTEM: &str = "nqn.2026-11.rockmill:job:00ff:7";
const DISK_BYTES: u64 = 1 << 20;

#[test]
fn the_kernel_gives_up_before_a_lease_ends() {
    for seconds in [4, 7, 10, 60, u64::from(u32::MAX) / 1000] {
        let silence = Duration::from_secs(seconds);
        let Times { keep_alive, io_fails_after, gives_up_after } = Times::of(silence);
        let noticed = keep_alive * 3 / 2;
        assert!(noticed + io_fails_after < silence && noticed + gives_up_after < silence, "{seconds}");
        assert!(io_fails_after < gives_up_after && io_fails_after >= Duration::from_secs(1));
        assert!(gives_up_after <= 2 * WAIT_MAX);
    }
}

fn place() -> Place {
    Place {
        address: "127.0.0.1:4420".parse().unwrap(),
        subsystem: SUBSYSTEM.to_owned(),
        name: "nqn.2026-11.rockmill:worker".to_owned(),
        host_id: [7; 16],
        auth: None,
        tls: None,
    }
}

/// Directories that stand for `/sys` and `/dev`, and a regular file for the disk.
struct Machine {
    dir: tempfile::TempDir,
}

impl Machine {
    /// `None` where files take no direct I/O.
    fn new(test: &str) -> Option<Self> {
        let machine = Self { dir: tempfile::tempdir().unwrap() };
        machine.put("sys/class/nvme/nvme7/subsysnqn", SUBSYSTEM);
        machine.put("sys/class/nvme/nvme7/delete_controller", "");
        machine.put("sys/block/nvme7n1/device/subsysnqn", SUBSYSTEM);
        for (file, value) in [("dev", "0:0"), ("stat", "3 0 8 0 2 0 16 0"), ("queue/logical_block_size", "4096")] {
            machine.put(&format!("sys/block/nvme7n1/{file}"), value);
        }
        for (file, value) in [("max_sectors_kb", "10"), ("max_segments", "100")] {
            machine.put(&format!("sys/block/nvme7n1/queue/{file}"), value);
        }
        // What is read behind the line of options is the kernel's answer.
        machine.put("dev/nvme-fabrics", "");
        drop(machine.kernel().connect(&config(&place(), Duration::from_secs(10))));
        let line = fs::read(machine.path("dev/nvme-fabrics")).unwrap().len();
        machine.put("dev/nvme-fabrics", &format!("{}instance=7,cntlid=1\n", " ".repeat(line)));
        machine.put("dev/probe", "");
        if let Err(e) = BlockDevice::open(&machine.path("dev/probe")) {
            skip(test, &Needs::DirectIo.because(e));
            return None;
        }
        Some(machine)
    }

    fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn put(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn make_disk(&self) {
        fs::File::create(self.path("dev/nvme7n1")).unwrap().set_len(DISK_BYTES).unwrap();
    }

    fn kernel(&self) -> KernelInitiator {
        KernelInitiator::at(self.path("sys"), self.path("dev"))
    }

    fn connect(&self, end: &DeviceEnd) -> io::Result<KernelDevice> {
        KernelDevice::connect(&self.kernel(), &place(), Duration::from_secs(10), end, &SystemClock::default())
    }

    fn is_deleted(&self) -> bool {
        fs::read_to_string(self.path("sys/class/nvme/nvme7/delete_controller")).unwrap() == "1"
    }
}

#[test]
fn a_device_is_read_and_written_in_commands_and_goes_at_its_end() {
    let Some(machine) = Machine::new("a_device_is_read_and_written_in_commands_and_goes_at_its_end") else { return };
    machine.make_disk();
    let device = machine.connect(&DeviceEnd::default()).unwrap();
    assert_eq!(device.bytes(), DISK_BYTES);
    let data: Vec<u8> = (0..40_960u32).map(|i| (i / 7) as u8).collect();
    device.write(4096, &data).unwrap();
    let mut back = vec![0; data.len()];
    device.read(4096, &mut back).unwrap();
    assert!(back == data);
    // 10 KiB is no multiple of a block.
    assert_eq!(device.file().unwrap().write_bytes_max, 8192);
    assert_eq!(device.counters(), DiskCounters { commands: 5, read_bytes: 4096, written_bytes: 8192 });
    assert!(!machine.is_deleted());
    device.delete().unwrap();
    assert!(machine.is_deleted());
    device.delete().unwrap();
}

#[test]
fn a_panic_and_an_end_from_outside_delete_it_too() {
    let Some(machine) = Machine::new("a_panic_and_an_end_from_outside_delete_it_too") else { return };
    machine.make_disk();
    let panics = thread::spawn({
        let device = machine.connect(&DeviceEnd::default()).unwrap();
        move || {
            let device = device;
            panic!("a job that panics, with {} bytes", device.bytes());
        }
    });
    panics.join().unwrap_err();
    assert!(machine.is_deleted());
    machine.put("sys/class/nvme/nvme7/delete_controller", "");
    let end = DeviceEnd::default();
    let device = Arc::new(machine.connect(&end).unwrap());
    end.cut();
    assert!(machine.is_deleted(), "while it is in use");
    drop(device);
    // Before there is a disk.
    machine.put("sys/class/nvme/nvme7/delete_controller", "");
    fs::remove_file(machine.path("dev/nvme7n1")).unwrap();
    let end = DeviceEnd::default();
    thread::scope(|scope| {
        let connects = scope.spawn(|| machine.connect(&end));
        thread::sleep(Duration::from_millis(50));
        end.cut();
        assert_eq!(connects.join().unwrap().unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
    });
    assert!(machine.is_deleted());
}

#[test]
fn a_device_that_cannot_be_a_job_s_is_refused_and_goes() {
    let Some(machine) = Machine::new("a_device_that_cannot_be_a_job_s_is_refused_and_goes") else { return };
    machine.make_disk();
    for (file, value, before, what) in [
        ("queue/logical_block_size", "512", "4096", "blocks of 512 bytes, where a job's device has 4096"),
        ("dev", "259:1", "0:0", "another device than the one that the kernel made"),
        ("queue/max_sectors_kb", "4", "10", "writes of at most 4096 bytes"),
        ("queue/max_segments", "many", "100", "queue/max_segments is \"many\", and no number"),
    ] {
        machine.put("sys/class/nvme/nvme7/delete_controller", "");
        machine.put(&format!("sys/block/nvme7n1/{file}"), value);
        let e = machine.connect(&DeviceEnd::default()).unwrap_err();
        assert!(e.to_string().contains(what), "{e}");
        assert!(machine.is_deleted(), "{what}");
        machine.put(&format!("sys/block/nvme7n1/{file}"), before);
    }
    // Another controller has the name by then: it is left alone.
    machine.put("sys/class/nvme/nvme7/delete_controller", "");
    machine.put("sys/class/nvme/nvme7/subsysnqn", "nqn.2026-11.example:disk");
    let e = machine.connect(&DeviceEnd::default()).unwrap_err();
    assert!(e.to_string().contains("nvme7 is gone"), "{e}");
    assert!(!machine.is_deleted());
}
