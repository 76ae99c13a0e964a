//! The preferred request sizes of the device behind a file, from the kernel's description of it.

use std::fs;
use std::path::{Path, PathBuf};

/// Requests that are large enough to be worth their overhead and small enough to be in flight together.
const REQUEST_BYTES_MIN: usize = 128 << 10;
const REQUEST_BYTES_MAX: usize = 1 << 20;

/// Read size that measured best on NVMe disks; larger ones gain nothing and need more memory.
const REQUEST_BYTES_USUAL: usize = 256 << 10;

/// The properties of a block device that matter for reads and writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceFacts {
    /// Its name in `/sys/block`, for people.
    pub name: String,
    /// Largest request that goes to it in one piece (`max_sectors_kb`), in bytes.
    pub request_bytes_max: usize,
    /// The request size that the device prefers (`optimal_io_size`), in bytes; 0 if it names none.
    pub optimal_bytes: usize,
    /// True for a disk with a moving head, and for many virtual disks that have none.
    pub rotational: bool,
}

impl DeviceFacts {
    /// The device with this number, from the tree below `sys` (`/sys`). `None` when it is none of one device: a
    /// network, memory or layered file system.
    pub fn of_device(sys: &Path, major: u32, minor: u32) -> Option<Self> {
        let link = sys.join(format!("dev/block/{major}:{minor}"));
        let mut dir: PathBuf = fs::canonicalize(link).ok()?;
        if !dir.join("queue").is_dir() {
            // A partition has no such entry; its disk's directory has it.
            dir.pop();
        }
        let queue = dir.join("queue");
        let number = |name: &str| fs::read_to_string(queue.join(name)).ok()?.trim().parse::<usize>().ok();
        Some(Self {
            name: dir.file_name()?.to_string_lossy().into_owned(),
            request_bytes_max: number("max_sectors_kb")?.checked_mul(1024)?,
            optimal_bytes: number("optimal_io_size").unwrap_or(0),
            rotational: number("rotational") == Some(1),
        })
    }

    /// Bytes to read at once: 256 KiB, unless the device takes less in one piece or likes more. Without facts, 256 KiB.
    pub fn read_bytes(facts: Option<&Self>) -> usize {
        let Some(facts) = facts else { return REQUEST_BYTES_USUAL };
        // `rotational` is not used: virtual disks report it whatever is behind them.
        let wanted = REQUEST_BYTES_USUAL.max(facts.optimal_bytes).min(facts.request_bytes_max);
        wanted.clamp(REQUEST_BYTES_MIN, REQUEST_BYTES_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree like /sys with one disk and one partition.
    fn sys(max_kb: &str, optimal: &str, rotational: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let disk = root.path().join("devices/pci/vda");
        fs::create_dir_all(disk.join("queue")).unwrap();
        fs::create_dir_all(disk.join("vda1")).unwrap();
        fs::create_dir_all(root.path().join("dev/block")).unwrap();
        fs::write(disk.join("queue/max_sectors_kb"), format!("{max_kb}\n")).unwrap();
        fs::write(disk.join("queue/optimal_io_size"), format!("{optimal}\n")).unwrap();
        fs::write(disk.join("queue/rotational"), format!("{rotational}\n")).unwrap();
        std::os::unix::fs::symlink("../../devices/pci/vda", root.path().join("dev/block/254:0")).unwrap();
        std::os::unix::fs::symlink("../../devices/pci/vda/vda1", root.path().join("dev/block/254:1")).unwrap();
        root
    }

    #[test]
    fn a_partition_has_its_disks_limits() {
        let root = sys("1280", "0", "0");
        let disk = DeviceFacts::of_device(root.path(), 254, 0).unwrap();
        assert_eq!(disk.request_bytes_max, 1280 << 10);
        assert_eq!(DeviceFacts::of_device(root.path(), 254, 1), Some(disk));
        assert_eq!(DeviceFacts::of_device(root.path(), 254, 2), None);
        let no_number = sys("many", "0", "0");
        assert_eq!(DeviceFacts::of_device(no_number.path(), 254, 0), None);
    }

    #[test]
    fn reads_are_as_large_as_the_device_takes_and_likes_within_bounds() {
        let read = |max: &str, optimal: &str| {
            let root = sys(max, optimal, "1");
            DeviceFacts::read_bytes(DeviceFacts::of_device(root.path(), 254, 0).as_ref())
        };
        assert_eq!(DeviceFacts::read_bytes(None), 256 << 10);
        assert_eq!(read("4096", "0"), 256 << 10);
        assert_eq!(read("192", "0"), 192 << 10);
        assert_eq!(read("4", "0"), 128 << 10, "a device of tiny requests");
        assert_eq!(read("4096", "524288"), 512 << 10);
        assert_eq!(read("1048576", "1073741824"), 1 << 20);
    }
}
