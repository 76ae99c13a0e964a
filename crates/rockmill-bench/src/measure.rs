//! What the kernel knows of this process, read from /proc: no privilege and no foreign code needed.

use std::fs;
use std::time::Duration;

/// Units of the CPU times in /proc: Linux gives user space 100 a second on every architecture.
const TICKS_PER_SECOND: u64 = 100;

/// What the process used since it started. Differences of two of these belong to a phase.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProcessUsage {
    /// CPU time outside the kernel, all threads, to the nearest 10 ms.
    pub user: Duration,
    /// CPU time in the kernel.
    pub system: Duration,
    /// Most memory resident at any time so far, in bytes.
    pub peak_rss_bytes: u64,
    /// Bytes that the process made the device read.
    pub device_read_bytes: u64,
    /// Bytes that the process made the device write.
    pub device_write_bytes: u64,
    /// Read calls.
    pub read_calls: u64,
    /// Write calls.
    pub write_calls: u64,
}

impl ProcessUsage {
    /// The use so far. What the machine does not tell (no Linux, hidden /proc) stays 0.
    pub fn now() -> Self {
        let text = |name: &str| fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
        let (stat, status, io) = (text("stat"), text("status"), text("io"));
        // The command's name is in parentheses and may hold anything: fields are counted from behind it.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks = |field: usize| {
            let n: u64 = fields.get(field).and_then(|t| t.parse().ok()).unwrap_or(0);
            Duration::from_millis(n * (1000 / TICKS_PER_SECOND))
        };
        Self {
            user: ticks(11),
            system: ticks(12),
            peak_rss_bytes: 1024 * number_after(&status, "VmHWM:"),
            device_read_bytes: number_after(&io, "read_bytes:"),
            device_write_bytes: number_after(&io, "write_bytes:"),
            read_calls: number_after(&io, "syscr:"),
            write_calls: number_after(&io, "syscw:"),
        }
    }

    /// What was used since `before`. The peak is not a sum: it stays the process's.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            user: self.user.saturating_sub(before.user),
            system: self.system.saturating_sub(before.system),
            peak_rss_bytes: self.peak_rss_bytes,
            device_read_bytes: self.device_read_bytes.saturating_sub(before.device_read_bytes),
            device_write_bytes: self.device_write_bytes.saturating_sub(before.device_write_bytes),
            read_calls: self.read_calls.saturating_sub(before.read_calls),
            write_calls: self.write_calls.saturating_sub(before.write_calls),
        }
    }
}

/// The number of the line that begins with `label`; 0 if there is none.
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
    }
}
