//! The settings of a run, shared by parent and child: a text file next to the database.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// What a thread can do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Act {
    /// A lookup.
    Read,
    /// Many lookups in one call.
    MultiRead,
    /// An iterator over a range of keys, in either direction.
    Iterate,
    /// A snapshot that is read twice while writes continue.
    Snapshot,
    /// One key.
    Write,
    /// Several keys of several column families, all or nothing.
    Batch,
    /// One key; sometimes a single deletion, where RocksDB allows it.
    Delete,
    /// A stretch of keys.
    RangeDelete,
    /// A counter, or a value with the operator `max`.
    Merge,
    /// A table made outside, with several keys.
    Ingest,
    /// A checkpoint, opened and compared.
    Checkpoint,
    /// A backup, now and then restored and compared.
    Backup,
    /// A flush of one or all column families.
    Flush,
    /// A manual compaction.
    Compact,
    /// A column family dropped and created again.
    Clear,
}

/// Every act, its name in the settings file, and its default share (they add up to 100).
pub const ACTS: [(Act, &str, f64); 15] = [
    (Act::Read, "reads", 33.0),
    (Act::MultiRead, "multi-reads", 4.0),
    (Act::Iterate, "iterations", 8.0),
    (Act::Snapshot, "snapshots", 1.0),
    (Act::Write, "writes", 30.0),
    (Act::Batch, "batches", 7.0),
    (Act::Delete, "deletes", 9.0),
    (Act::RangeDelete, "range-deletes", 0.8),
    (Act::Merge, "merges", 7.0),
    (Act::Ingest, "ingests", 0.06),
    (Act::Checkpoint, "checkpoints", 0.01),
    (Act::Backup, "backups", 0.01),
    (Act::Flush, "flushes", 0.1),
    (Act::Compact, "compactions", 0.018),
    (Act::Clear, "clears", 0.002),
];

/// What a child must know.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// All random choices follow from it, but not the interleaving of threads.
    pub seed: u64,
    /// Threads that run operations.
    pub threads: usize,
    /// Keys in each column family.
    pub keys: u32,
    /// Column families with values; one more has counters.
    pub families: usize,
    /// Least bytes of a value.
    pub value_min: u32,
    /// Most bytes of a value.
    pub value_max: u32,
    /// One of this many writes of a thread is synced; 0 for none.
    pub sync_every: u64,
    /// Shares of the acts, as in [`ACTS`].
    pub shares: [f64; ACTS.len()],
    /// WALs are in a separate directory.
    pub own_wals: bool,
    /// The last column family with values is in the order of a hash.
    pub hash_range: bool,
    /// A deliberate leak in the harness, in bytes per operation, with which a test checks that the soak fails.
    pub leak: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            seed: 0,
            threads: 8,
            keys: 20_000,
            families: 3,
            value_min: 20,
            value_max: 400,
            sync_every: 1000,
            shares: ACTS.map(|a| a.2),
            own_wals: false,
            hash_range: false,
            leak: 0,
        }
    }
}

impl Settings {
    /// Checks the settings.
    ///
    /// # Errors
    /// The invalid value, and the allowed ones.
    pub fn check(&self) -> Result<(), String> {
        let bad = |text: &str| Err(text.to_owned());
        match self {
            s if s.threads == 0 || s.threads > 1024 => bad("threads: 1 to 1024"),
            s if s.keys < 16 || s.keys > 100_000_000 => bad("keys: 16 to 100,000,000"),
            s if s.families == 0 || s.families > 100 => bad("column families: 1 to 100"),
            // `default` keeps the order of bytes.
            s if s.hash_range && s.families < 2 => bad("the order of a hash: 2 column families or more"),
            s if s.value_min < super::value::LEN_MIN => bad("values: 16 bytes or more"),
            s if s.value_max < s.value_min || s.value_max > 16 << 20 => bad("values: SMALLEST-LARGEST, at most 16 MiB"),
            s if s.shares.iter().any(|p| !p.is_finite() || *p < 0.0) => bad("shares of operations: 0 or more"),
            s if s.shares.iter().sum::<f64>() <= 0.0 => bad("shares of operations: at least one above 0"),
            _ => Ok(()),
        }
    }

    /// The settings file's text.
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        let _ = writeln!(out, "seed={}\nthreads={}\nkeys={}", self.seed, self.threads, self.keys);
        let _ = writeln!(out, "families={}\nvalue-min={}", self.families, self.value_min);
        let _ = writeln!(out, "value-max={}\nsync-every={}\nleak={}", self.value_max, self.sync_every, self.leak);
        let _ = writeln!(out, "own-wals={}\nhash-range={}", u8::from(self.own_wals), u8::from(self.hash_range));
        for ((_, name, _), share) in ACTS.iter().zip(self.shares) {
            let _ = writeln!(out, "{name}={share}");
        }
        out
    }

    /// The reverse of [`Self::to_text`].
    ///
    /// # Errors
    /// The invalid line.
    pub fn from_text(text: &str) -> Result<Self, String> {
        let mut new = Self::default();
        for line in text.lines().filter(|l| !l.is_empty()) {
            let bad = || format!("{line:?} is no setting");
            let (name, value) = line.split_once('=').ok_or_else(bad)?;
            let number = || value.parse::<u64>().map_err(|_| bad());
            let narrow = || value.parse::<u32>().map_err(|_| bad());
            match name {
                "seed" => new.seed = number()?,
                "threads" => new.threads = narrow()? as usize,
                "keys" => new.keys = narrow()?,
                "families" => new.families = narrow()? as usize,
                "value-min" => new.value_min = narrow()?,
                "value-max" => new.value_max = narrow()?,
                "sync-every" => new.sync_every = number()?,
                "leak" => new.leak = narrow()? as usize,
                "own-wals" => new.own_wals = narrow()? != 0,
                "hash-range" => new.hash_range = narrow()? != 0,
                _ => {
                    let at = ACTS.iter().position(|(_, known, _)| *known == name).ok_or_else(bad)?;
                    new.shares[at] = value.parse().map_err(|_| bad())?;
                }
            }
        }
        new.check().map(|()| new)
    }

    /// Something to do next.
    pub fn choose(&self, rng: &mut fastrand::Rng) -> Act {
        let mut left = rng.f64() * self.shares.iter().sum::<f64>();
        for ((act, _, _), share) in ACTS.iter().zip(self.shares) {
            left -= share;
            if left < 0.0 {
                return *act;
            }
        }
        Act::Read
    }
}

/// The run's own files: `NAME.stress` next to the database `NAME`.
#[derive(Debug, Clone)]
pub struct Paths {
    /// The database.
    pub db: PathBuf,
    /// Everything else.
    pub home: PathBuf,
}

impl Paths {
    /// Those of a database.
    pub fn of(db: &Path) -> Self {
        let mut name = db.file_name().unwrap_or_default().to_owned();
        name.push(".stress");
        Self { db: db.to_owned(), home: db.with_file_name(name) }
    }

    /// Something in the run's own directory.
    pub fn own(&self, name: &str) -> PathBuf {
        self.home.join(name)
    }

    /// The settings.
    pub fn settings(&self) -> PathBuf {
        self.own("settings")
    }

    /// WALs that are not in the database's directory.
    pub fn wals(&self) -> PathBuf {
        self.own("wals")
    }

    /// The expected state.
    pub fn expected(&self) -> PathBuf {
        self.own("expected")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_settings_gives_them_back() {
        let mut settings = Settings { seed: 7, keys: 99, own_wals: true, hash_range: true, ..Settings::default() };
        settings.shares[3] = 0.25;
        assert_eq!(Settings::from_text(&settings.to_text()), Ok(settings));
        assert!(Settings::from_text("keys=1").unwrap_err().contains("keys"));
        assert!(Settings::from_text("colour=red").unwrap_err().contains("colour"));
        let total: f64 = ACTS.iter().map(|a| a.2).sum();
        assert!((total - 100.0).abs() < 1e-9, "{total}");
    }

    #[test]
    fn what_is_done_follows_the_shares() {
        let mut settings = Settings { shares: [0.0; ACTS.len()], ..Settings::default() };
        settings.shares[0] = 1.0;
        settings.shares[5] = 3.0;
        let mut rng = fastrand::Rng::with_seed(1);
        let batches = (0..4000).filter(|_| settings.choose(&mut rng) == Act::Batch).count();
        assert!((2800..3200).contains(&batches), "{batches}");
    }
}
