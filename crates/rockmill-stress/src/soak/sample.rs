//! Samples the resource usage of a process over time, and checks whether it grows.

use std::path::Path;

use super::limits::BALLAST;

/// Bytes of a block as the file system counts them.
const BLOCK_BYTES: u64 = 512;

/// The first line of a file of samples.
pub const SAMPLES_HEAD: &str = "seconds\tlife\tmemory\thandles\tthreads\tdisk\n";

/// One sample of the child and its database.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// Seconds since the run began.
    pub at: f64,
    /// Which child.
    pub life: u64,
    /// Resident memory, bytes.
    pub memory: u64,
    /// Open file handles.
    pub handles: u64,
    /// Threads.
    pub threads: u64,
    /// Bytes on disk.
    pub disk: u64,
}

/// Disk usage of a directory's files in bytes, without ballast.
pub fn disk_bytes(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let mut total = 0;
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let Ok(meta) = entry.metadata() else { continue };
        if meta.is_dir() {
            total += disk_bytes(&entry.path());
        } else if entry.file_name() != BALLAST {
            total += meta.blocks() * BLOCK_BYTES;
        }
    }
    total
}

/// Samples a process; `None` if the system does not tell, or the process is gone.
pub fn look(pid: u32, db: &Path, at: f64, life: u64) -> Option<Sample> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let field = |name: &str| {
        let line = status.lines().find_map(|l| l.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    let handles = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count() as u64;
    let memory = field("VmRSS:")? << 10;
    Some(Sample { at, life, memory, handles, threads: field("Threads:")?, disk: disk_bytes(db) })
}

/// Quantities that may grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// Resident memory.
    Memory,
    /// File handles.
    Handles,
    /// Threads.
    Threads,
    /// Bytes on disk.
    Disk,
}

impl What {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Memory, Self::Handles, Self::Threads, Self::Disk];

    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Handles => "file handles",
            Self::Threads => "threads",
            Self::Disk => "disk",
        }
    }

    /// It is counted in bytes.
    pub fn is_bytes(self) -> bool {
        matches!(self, Self::Memory | Self::Disk)
    }

    fn of(self, sample: &Sample) -> f64 {
        let amount = match self {
            Self::Memory => sample.memory,
            Self::Handles => sample.handles,
            Self::Threads => sample.threads,
            Self::Disk => sample.disk,
        };
        amount as f64
    }

    /// Growth over the fitted time that still counts as flat: an amount, or a fraction of the mean, whichever is more.
    fn flat(self) -> (f64, f64) {
        match self {
            Self::Memory => (f64::from(16 << 20), 0.10),
            Self::Handles => (16.0, 0.25),
            // Copies of the database are opened now and then, with their own threads.
            Self::Threads => (8.0, 0.25),
            Self::Disk => (f64::from(32 << 20), 0.25),
        }
    }
}

/// How one of them went.
#[derive(Debug, Clone, PartialEq)]
pub struct Trend {
    /// Which.
    pub what: What,
    /// Samples that the line is fitted through.
    pub samples: usize,
    /// Seconds from the first of them to the last.
    pub seconds: f64,
    /// Least, mean and most.
    pub least: f64,
    /// See `least`.
    pub mean: f64,
    /// See `least`.
    pub most: f64,
    /// Slope of the fitted line, per hour.
    pub per_hour: f64,
    /// Long enough to be judged.
    pub judged: bool,
    /// The fitted growth exceeds the allowed one.
    pub grew: bool,
}

/// When a trend is judged.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Judging {
    /// Samples of the first seconds of a life are ignored.
    pub warm_up: f64,
    /// Fewer seconds than this after the warm-up are not judged.
    pub seconds_min: f64,
}

impl Judging {
    /// How long a life must be to be judged, with a small margin.
    pub fn needs(&self) -> std::time::Duration {
        std::time::Duration::from_secs_f64((self.warm_up + self.seconds_min) * 1.1)
    }
}

/// Fits a line through samples of one thing.
fn fit(what: What, samples: &[&Sample], judging: Judging) -> Option<Trend> {
    let (first, last) = (samples.first()?, samples.last()?);
    let n = samples.len() as f64;
    let values = || samples.iter().map(|s| what.of(s));
    let mean = values().sum::<f64>() / n;
    let mean_at = samples.iter().map(|s| s.at).sum::<f64>() / n;
    let spread: f64 = samples.iter().map(|s| (s.at - mean_at).powi(2)).sum();
    let slope = match spread > 0.0 {
        true => samples.iter().map(|s| (s.at - mean_at) * (what.of(s) - mean)).sum::<f64>() / spread,
        false => 0.0,
    };
    let seconds = last.at - first.at;
    let (amount, part) = what.flat();
    let judged = seconds >= judging.seconds_min && samples.len() >= 10;
    Some(Trend {
        what,
        samples: samples.len(),
        seconds,
        least: values().fold(f64::INFINITY, f64::min),
        mean,
        most: values().fold(0.0, f64::max),
        per_hour: slope * 3600.0,
        judged,
        grew: judged && slope * seconds > amount.max(part * mean),
    })
}

/// The trends of a run: for the disk, of the whole run; for process resources, of a child in which they grew, or of the
/// one that lived longest.
pub fn trends(samples: &[Sample], judging: Judging) -> Vec<Trend> {
    let mut lives: Vec<&[Sample]> = samples.chunk_by(|a, b| a.life == b.life).collect();
    lives.sort_by(|a, b| length(b).total_cmp(&length(a)));
    let of_what = |what: What| {
        let parts = if what == What::Disk { vec![samples] } else { lives.clone() };
        let mut all = parts.into_iter().filter_map(|part| trend(what, part, judging));
        let longest = all.next()?;
        if longest.grew {
            return Some(longest);
        }
        Some(all.find(|other| other.grew).unwrap_or(longest))
    };
    What::ALL.into_iter().filter_map(of_what).collect()
}

/// The trend of a life, or of a whole run.
fn trend(what: What, of: &[Sample], judging: Judging) -> Option<Trend> {
    let start = of.first()?.at;
    let warm: Vec<&Sample> = of.iter().filter(|s| s.at - start >= judging.warm_up).collect();
    // A short run is all warm-up; then all of it is shown, and reported as too short.
    let warm = if warm.len() < 2 { of.iter().collect() } else { warm };
    fit(what, &warm, judging)
}

fn length(samples: &[Sample]) -> f64 {
    samples.last().map_or(0.0, |l| l.at - samples[0].at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at: f64, memory: u64) -> Sample {
        Sample { at, life: 1, memory, handles: 30, threads: 12, disk: 1 << 30 }
    }

    const JUDGING: Judging = Judging { warm_up: 30.0, seconds_min: 60.0 };

    #[test]
    fn growth_is_seen_and_a_warm_up_is_not() {
        let flat: Vec<_> = (0..300).map(|s| sample(f64::from(s), (100 + s.min(20) as u64 * 5) << 20)).collect();
        assert!(trends(&flat, JUDGING).iter().all(|t| t.judged && !t.grew), "{:?}", trends(&flat, JUDGING));
        let leak: Vec<_> = (0..300).map(|s| sample(f64::from(s), (100 << 20) + ((s as u64) << 18))).collect();
        let found = trends(&leak, JUDGING);
        assert!(found[0].grew && found[0].what == What::Memory, "{found:?}");
        assert!((found[0].per_hour - 900.0 * f64::from(1 << 20)).abs() < 1e6, "{}", found[0].per_hour);
        assert!(found[1..].iter().all(|t| !t.grew));
        // Also in a life other than the longest one.
        let later = flat.iter().map(|s| Sample { at: s.at + 1000.0, life: 2, ..*s });
        let both: Vec<_> = leak[..250].iter().copied().chain(later).collect();
        assert!(trends(&both, JUDGING)[0].grew, "{:?}", trends(&both, JUDGING)[0]);
        // The same leak in a short life is not judged.
        assert!(trends(&leak[..50], JUDGING).iter().all(|t| !t.judged && !t.grew));
    }

    #[test]
    fn this_process_can_be_looked_at() {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::write(dir.path().join("file"), vec![1; 100_000]).expect("a file");
        std::fs::write(dir.path().join(BALLAST), vec![1; 1_000_000]).expect("a file");
        match look(std::process::id(), dir.path(), 0.0, 1) {
            Some(s) => {
                assert!(s.memory > 1 << 20 && s.handles > 2 && s.threads > 0, "{s:?}");
                assert!((100_000..300_000).contains(&s.disk), "{s:?}");
            }
            None => {
                rockmill_skip::skip("this_process_can_be_looked_at", &rockmill_skip::Needs::Proc.because("no /proc"))
            }
        }
    }
}
