//! The machine that a figure belongs to.

use std::fs;
use std::path::Path;
use std::time::SystemTime;

use serde_json::{Value, json};

/// Hardware, system and date.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Machine {
    /// Seconds since 1970 at the start.
    pub unix_seconds: u64,
    /// The processor as it calls itself.
    pub processor: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// The kernel's version.
    pub kernel: String,
    /// The database's file system, and its device.
    pub file_system: String,
    /// The one-minute load average at the start.
    pub load: f64,
}

impl Machine {
    /// This machine; `db` is where the databases will be.
    pub fn here(db: &Path) -> Self {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let after = |text: &str, label: &str| {
            let line = text.lines().find_map(|l| l.strip_prefix(label))?;
            Some(line.trim_start_matches([' ', '\t', ':']).trim().to_owned())
        };
        let memory = after(&text("/proc/meminfo"), "MemTotal").unwrap_or_default();
        let kib: u64 = memory.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0);
        Self {
            unix_seconds: SystemTime::UNIX_EPOCH.elapsed().map_or(0, |d| d.as_secs()),
            processor: after(&text("/proc/cpuinfo"), "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            cores: std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
            memory_bytes: kib << 10,
            kernel: text("/proc/sys/kernel/osrelease").trim().to_owned(),
            file_system: file_system(&text("/proc/self/mounts"), db),
            load: text("/proc/loadavg").split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0.0),
        }
    }

    /// One line for people.
    pub fn to_text(&self) -> String {
        format!(
            "{}; {}, {} cores, {:.0} GiB; Linux {}; {}; load {:.2}",
            self.date(),
            self.processor,
            self.cores,
            self.memory_bytes as f64 / f64::from(1 << 30),
            self.kernel,
            self.file_system,
            self.load
        )
    }

    /// The day, as year-month-day in UTC.
    pub fn date(&self) -> String {
        date(self.unix_seconds)
    }

    /// As JSON.
    pub fn to_json(&self) -> Value {
        json!({
            "date": self.date(),
            "unix_seconds": self.unix_seconds,
            "processor": self.processor,
            "cores": self.cores,
            "memory_bytes": self.memory_bytes,
            "kernel": self.kernel,
            "file_system": self.file_system,
            "load_at_start": self.load,
        })
    }
}

/// Type and source of the mount that `path` is in: the one with the longest prefix.
fn file_system(mounts: &str, path: &Path) -> String {
    let there = path.ancestors().find(|p| p.exists()).unwrap_or(Path::new("."));
    let there = if there.as_os_str().is_empty() { Path::new(".") } else { there };
    let Ok(there) = there.canonicalize() else { return "unknown".to_owned() };
    let of = |line: &str| {
        let mut fields = line.split(' ').map(str::to_owned);
        Some((fields.next()?, fields.next()?, fields.next()?))
    };
    let covering = mounts.lines().filter_map(of).filter(|(_, at, _)| there.starts_with(at));
    covering
        .max_by_key(|(_, at, _)| at.len())
        .map_or("unknown".to_owned(), |(from, _, kind)| format!("{kind} on {from}"))
}

/// Today, as year-month-day in UTC.
pub fn today() -> String {
    date(SystemTime::UNIX_EPOCH.elapsed().map_or(0, |d| d.as_secs()))
}

fn date(unix_seconds: u64) -> String {
    let (year, month, day) = civil(unix_seconds / 86_400);
    format!("{year}-{month:02}-{day:02}")
}

/// Year, month and day of a day number since 1970-01-01, in the proleptic Gregorian calendar.
fn civil(days: u64) -> (u64, u64, u64) {
    // Years that begin in March end with the leap day: months then have a pattern of 153 days in five.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_of_known_days() {
        for (days, date) in
            [(0, (1970, 1, 1)), (11_016, (2000, 2, 29)), (19_723, (2024, 1, 1)), (20_778, (2026, 11, 21))]
        {
            assert_eq!(civil(days), date, "{days}");
        }
    }

    #[test]
    fn this_machine_is_known() {
        let m = Machine::here(Path::new("."));
        assert!(m.cores > 0 && m.memory_bytes > 1 << 20 && !m.kernel.is_empty(), "{m:?}");
        let mounts = "dev / ext4 rw\nother /no/such xfs rw\n";
        assert_eq!(file_system(mounts, Path::new("/no-db-here")), "ext4 on dev");
    }
}
