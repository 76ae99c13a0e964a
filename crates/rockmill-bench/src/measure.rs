//! The cost of a phase: CPU, memory, bytes, switches and system calls, from the kernel's own counts.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::kernel::{self, SyscallCounters};

/// Unit of the kernel's transfer counts, regardless of the device's sector size.
const SECTOR_BYTES: u64 = 512;

/// The process's resource use since its start. The difference of two of these belongs to a phase.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProcessUsage {
    /// CPU time outside the kernel, all threads.
    pub user: Duration,
    /// CPU time in the kernel.
    pub system: Duration,
    /// How often a thread waited and gave up its core.
    pub voluntary_switches: u64,
    /// How often a core was taken from a thread.
    pub involuntary_switches: u64,
    /// Peak resident memory of the phase in bytes; of the whole process so far if the phase's is unknown.
    pub peak_rss_bytes: u64,
    /// Memory resident now.
    pub rss_bytes: u64,
    /// Bytes that the process made the device read.
    pub device_read_bytes: u64,
    /// Bytes that the process made the device write.
    pub device_write_bytes: u64,
    /// Read calls (of the kinds that /proc counts).
    pub read_calls: u64,
    /// Write calls.
    pub write_calls: u64,
}

impl ProcessUsage {
    /// The use so far. Values that the machine does not provide (not Linux, hidden /proc) stay 0.
    pub fn now() -> Self {
        let text = |name: &str| fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
        let (status, io, used) = (text("status"), text("io"), kernel::resource_use());
        Self {
            user: used.user,
            system: used.system,
            voluntary_switches: used.voluntary_switches,
            involuntary_switches: used.involuntary_switches,
            peak_rss_bytes: 1024 * number_after(&status, "VmHWM:"),
            rss_bytes: 1024 * number_after(&status, "VmRSS:"),
            device_read_bytes: number_after(&io, "read_bytes:"),
            device_write_bytes: number_after(&io, "write_bytes:"),
            read_calls: number_after(&io, "syscr:"),
            write_calls: number_after(&io, "syscw:"),
        }
    }

    /// The use since `before`. The peak is not a sum and stays unchanged.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            user: self.user.saturating_sub(before.user),
            system: self.system.saturating_sub(before.system),
            voluntary_switches: self.voluntary_switches.saturating_sub(before.voluntary_switches),
            involuntary_switches: self.involuntary_switches.saturating_sub(before.involuntary_switches),
            peak_rss_bytes: self.peak_rss_bytes,
            rss_bytes: self.rss_bytes,
            device_read_bytes: self.device_read_bytes.saturating_sub(before.device_read_bytes),
            device_write_bytes: self.device_write_bytes.saturating_sub(before.device_write_bytes),
            read_calls: self.read_calls.saturating_sub(before.read_calls),
            write_calls: self.write_calls.saturating_sub(before.write_calls),
        }
    }
}

/// The CPU time of a process and all its threads so far, to a hundredth of a second; `None` if there is no such
/// process.
pub(crate) fn cpu_of(process: u32) -> Option<Duration> {
    cpu_in_stat(&fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
}

/// Of a line of /proc/PID/stat. Its second field, a name in brackets, may have blanks and brackets.
fn cpu_in_stat(stat: &str) -> Option<Duration> {
    /// The unit that Linux has for programs on all its platforms but two that are gone.
    const TICK: Duration = Duration::from_millis(10);
    let (_, fields) = stat.rsplit_once(')')?;
    let mut times = fields.split_whitespace().skip(11).take(2).map(str::parse::<u32>);
    let (user, system) = (times.next()?.ok()?, times.next()?.ok()?);
    Some(TICK * user.checked_add(system)?)
}

/// Resets the peak of resident memory. False if the kernel does not allow it.
pub fn reset_peak_memory() -> bool {
    fs::write("/proc/self/clear_refs", "5").is_ok()
}

/// Bytes that a block device has read and written since the machine started, by all processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceBytes {
    /// Bytes read.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
    /// Milliseconds that it had something to do.
    pub busy_millis: u64,
}

/// The kernel's directory of the block device of `path`, or of its nearest existing parent; `None` if it is not a block
/// device.
pub(crate) fn device_entry(path: &Path) -> Option<PathBuf> {
    let there = path.ancestors().find(|p| p.exists()).unwrap_or(Path::new("."));
    let there = if there.as_os_str().is_empty() { Path::new(".") } else { there };
    let (major, minor) = device_numbers(fs::metadata(there).ok()?.dev());
    Some(PathBuf::from(format!("/sys/dev/block/{major}:{minor}"))).filter(|entry| entry.exists())
}

impl DeviceBytes {
    /// The counts of the device of `path`, or of its nearest existing parent; `None` if it is not a block device or the
    /// machine hides it.
    pub fn now(path: &Path) -> Option<Self> {
        Self::parse(&fs::read_to_string(device_entry(path)?.join("stat")).ok()?)
    }

    fn parse(stat: &str) -> Option<Self> {
        let fields: Vec<u64> = stat.split_whitespace().map_while(|f| f.parse().ok()).collect();
        Some(Self {
            read: fields.get(2)? * SECTOR_BYTES,
            written: fields.get(6)? * SECTOR_BYTES,
            busy_millis: *fields.get(9)?,
        })
    }

    /// What was transferred since `before`.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            read: self.read.saturating_sub(before.read),
            written: self.written.saturating_sub(before.written),
            busy_millis: self.busy_millis.saturating_sub(before.busy_millis),
        }
    }

    /// The counts without those of `other`, a device on top of this one whose transfers all go through this one.
    pub(crate) fn without(&self, other: &Self) -> Self {
        Self { busy_millis: self.busy_millis, ..self.since(other) }
    }
}

/// Major and minor number, as glibc packs them.
fn device_numbers(dev: u64) -> (u64, u64) {
    let major = ((dev >> 8) & 0xfff) | ((dev >> 32) & !0xfff);
    let minor = (dev & 0xff) | ((dev >> 12) & !0xff);
    (major, minor)
}

/// Bytes of the files below `dir`, and their disk usage.
pub fn space_of(dir: &Path) -> (u64, u64) {
    let Ok(entries) = fs::read_dir(dir) else { return (0, 0) };
    let of = |entry: fs::DirEntry| match entry.metadata() {
        Ok(m) if m.is_dir() => space_of(&entry.path()),
        Ok(m) => (m.len(), m.blocks() * SECTOR_BYTES),
        Err(_) => (0, 0),
    };
    entries.filter_map(Result::ok).map(of).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
}

/// System calls of a phase, and the source of the counts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Calls {
    /// By name; empty if nobody counted.
    pub counts: Vec<(&'static str, u64)>,
    /// The source of the counts: the kernel's tracepoints, the store's I/O layer, or `/proc/self/io`.
    pub counted_by: &'static str,
}

impl Calls {
    /// Counts by the kernel's tracepoints.
    pub const TRACEPOINTS: &str = "kernel tracepoints";
    /// Counts by the store's I/O layer.
    pub const IO_LAYER: &str = "the store's I/O layer";
    /// Counts of reads and writes only.
    pub const PROC: &str = "/proc/self/io (reads and writes only)";

    /// The counts since `before`, from the same source.
    pub fn since(&self, before: &Self) -> Self {
        let of = |name: &str| before.counts.iter().find(|(n, _)| *n == name).map_or(0, |(_, n)| *n);
        let counts = self.counts.iter().map(|(name, n)| (*name, n.saturating_sub(of(name)))).collect();
        Self { counts, counted_by: self.counted_by }
    }

    /// All calls together.
    pub fn total(&self) -> u64 {
        match self.counts.iter().find(|(name, _)| *name == "all") {
            Some((_, n)) => *n,
            None => self.counts.iter().map(|(_, n)| n).sum(),
        }
    }
}

/// All measurements before or after a phase.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// The process.
    pub usage: ProcessUsage,
    /// The database's device, with the transfers of all processes.
    pub device: Option<DeviceBytes>,
    /// System calls.
    pub calls: Calls,
}

impl Snapshot {
    /// The current state. `of_store` are the counts of the store's own I/O layer.
    pub fn now(dir: &Path, counters: Option<&SyscallCounters>, of_store: Option<Vec<(&'static str, u64)>>) -> Self {
        let usage = ProcessUsage::now();
        let calls = match (counters, of_store) {
            (Some(counters), _) => Calls { counts: counters.read(), counted_by: Calls::TRACEPOINTS },
            (None, Some(counts)) => Calls { counts, counted_by: Calls::IO_LAYER },
            (None, None) => {
                let counts = vec![("read", usage.read_calls), ("write", usage.write_calls)];
                Calls { counts, counted_by: Calls::PROC }
            }
        };
        Self { usage, device: DeviceBytes::now(dir), calls }
    }

    /// The differences to `before`.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            usage: self.usage.since(&before.usage),
            device: self.device.zip(before.device).map(|(now, then)| now.since(&then)),
            calls: self.calls.since(&before.calls),
        }
    }
}

/// The number in the line that begins with `label`; 0 if there is none.
fn number_after(text: &str, label: &str) -> u64 {
    let line = text.lines().find_map(|l| l.strip_prefix(label));
    line.and_then(|l| l.split_whitespace().next()).and_then(|n| n.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found_by_their_label_at_the_start() {
        let io = "rchar: 5\nwchar: 6\nread_bytes: 4096\ncancelled_write_bytes: 7\nwrite_bytes: 8192\n";
        assert_eq!(number_after(io, "read_bytes:"), 4096);
        assert_eq!(number_after(io, "write_bytes:"), 8192, "not the cancelled ones");
        assert_eq!(number_after("VmHWM:\t  120 kB\n", "VmHWM:"), 120);
        assert_eq!(number_after("", "VmHWM:"), 0);
    }

    #[test]
    fn cpu_time_of_a_process_is_found_behind_any_name() {
        let stat = "7 (a b) (c)) S 1 7 7 0 -1 4194560 1 0 0 0 120 34 0 0 20 0 1 0 9 10 11\n";
        assert_eq!(cpu_in_stat(stat), Some(Duration::from_millis(1540)));
        assert_eq!(cpu_in_stat("7 (a) S 1"), None);
        assert_eq!(cpu_in_stat(""), None);
    }

    #[test]
    fn memory_and_cpu_of_this_process_are_seen() {
        let before = ProcessUsage::now();
        assert!(before.peak_rss_bytes > 100_000, "{before:?}");
        let mut block = vec![1u8; 64 << 20];
        let mut sum = 0u64;
        let start = std::time::Instant::now();
        while start.elapsed() < Duration::from_millis(60) {
            block.iter_mut().step_by(512).for_each(|b| *b = b.wrapping_add(1));
            sum += u64::from(std::hint::black_box(&block)[0]);
        }
        let after = ProcessUsage::now();
        assert!(after.peak_rss_bytes >= 64 << 20, "{after:?} {sum}");
        let used = after.since(&before);
        assert!(used.user + used.system >= Duration::from_millis(10), "{used:?}");
        drop(block);
        if !reset_peak_memory() {
            let missing = rockmill_skip::Needs::Proc.because("the peak of memory cannot be reset here");
            return rockmill_skip::skip("the peak of memory between two runs", &missing);
        }
        let reset = ProcessUsage::now();
        assert!(reset.peak_rss_bytes + (32 << 20) < after.peak_rss_bytes, "{reset:?}");
    }

    #[test]
    fn a_devices_line_is_read_by_its_fields() {
        let d = DeviceBytes::parse(" 10 2 100 7 20 3 200 9 0 1 1\n");
        assert_eq!(d, Some(DeviceBytes { read: 51_200, written: 102_400, busy_millis: 1 }));
        assert_eq!(DeviceBytes::parse("garbage"), None);
        assert_eq!(device_numbers(0xfe00), (254, 0));
    }

    #[test]
    fn calls_are_subtracted_by_name() {
        let before = Calls { counts: vec![("all", 10), ("read", 4)], counted_by: Calls::TRACEPOINTS };
        let after = Calls { counts: vec![("all", 30), ("read", 9), ("write", 2)], counted_by: Calls::TRACEPOINTS };
        let d = after.since(&before);
        assert_eq!(d.counts, [("all", 20), ("read", 5), ("write", 2)]);
        assert_eq!(d.total(), 20);
    }

    #[test]
    fn files_are_measured_by_what_they_take() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("sub")).unwrap();
        fs::write(dir.path().join("sub/a"), vec![1; 100_000]).unwrap();
        let (files, disk) = space_of(dir.path());
        assert_eq!(files, 100_000);
        assert!(disk < 300_000, "{disk}");
    }
}
