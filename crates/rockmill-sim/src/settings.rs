//! What is simulated.

use std::fmt;

use rockmill::{CfOptions, CompactionStyle, Options};

/// Which keys are written.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum KeyOrder {
    /// Each key equally often, in random order.
    Uniform,
    /// A Zipfian distribution with this exponent, spread over the whole key space (YCSB's scrambled Zipfian).
    Zipfian(f64),
    /// One key behind the other.
    Sequential,
}

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workload {
    /// An empty store is filled; each key is written once.
    Fill,
    /// A full store is overwritten: each write chooses a key at random.
    Overwrite,
}

/// Which jobs may be split over idle threads (at most two, as in DF-compaction).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// As in the store: jobs of DF-compaction.
    Store,
    /// None. `subcompactions` applies in any case.
    Never,
    /// Jobs of every strategy, by the same rule.
    Idle,
}

impl Split {
    /// All, and their names.
    pub const ALL: [(&'static str, Self); 3] = [("store", Self::Store), ("never", Self::Never), ("idle", Self::Idle)];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|s| s.1 == self).map_or("", |s| s.0)
    }
}

/// The variant of a strategy, in addition to the compaction style.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// As RocksDB has it.
    Usual,
    /// With DF-compaction.
    DownForce,
    /// Classic: one job per level, and none into a full level.
    Classic,
}

impl Manner {
    /// All.
    pub const ALL: [Self; 3] = [Self::Usual, Self::DownForce, Self::Classic];

    /// Sets the options that say so.
    pub fn set(self, options: &mut CfOptions) {
        options.compaction_downforce = self == Self::DownForce;
        options.compaction_classic = self == Self::Classic;
    }
}

/// Machines that do compactions (docs/offload.md).
#[derive(Debug, Clone, PartialEq)]
pub struct Workers {
    /// Their cores in total.
    pub cores: f64,
    /// Bytes per second of the network, each way.
    pub network: f64,
    /// CPU that such a job takes on the host, as a fraction of its CPU on the worker: blocks are sent, tables received,
    /// written and checked.
    pub host_part: f64,
    /// Jobs with fewer bytes of input run on the host.
    pub input_bytes_min: f64,
}

/// All inputs of a run. Sizes in bytes, times in seconds unless the name says otherwise. The defaults are for four
/// threads and writers with 2 us per entry. The command's defaults are 16 threads and 0.5 us, so that the tree is the
/// limit.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Name of the strategy; see [`Settings::STRATEGIES`].
    pub strategy: String,
    /// Compaction threads.
    pub threads: usize,
    /// Threads that one job may be split over.
    pub subcompactions: usize,
    /// Which jobs idle threads help.
    pub split: Split,
    /// Size of the data set, uncompressed.
    pub data_bytes: u64,
    /// Uncompressed bytes to write; for [`Workload::Fill`], the data set.
    pub write_bytes: u64,
    /// What is done.
    pub workload: Workload,
    /// Which keys.
    pub keys: KeyOrder,
    /// Bytes per second that writers want to write; 0: as fast as possible.
    pub ingest_rate: u64,
    /// Bytes of a key.
    pub key_bytes: u64,
    /// Bytes of a value.
    pub value_bytes: u64,
    /// Stored size by uncompressed size.
    pub compression_ratio: f64,
    /// Everything is logged.
    pub wal: bool,
    /// Cores for writers and background jobs together.
    pub cores: f64,
    /// Bytes per second that the device reads.
    pub device_read: f64,
    /// Bytes per second that the device writes.
    pub device_write: f64,
    /// Bytes per second in both directions together.
    pub device_total: f64,
    /// Seconds that a read takes before its first byte.
    pub device_latency: f64,
    /// Seconds that a sync of a file takes, in addition to the time of its bytes.
    pub device_sync: f64,
    /// Bytes that a job without overlap reads at once.
    pub readahead: u64,
    /// Jobs read, merge and write at the same time (io_uring), instead of one after the other (pread).
    pub overlap: bool,
    /// CPU nanoseconds per write, for all writers together.
    pub write_ns: f64,
    /// CPU nanoseconds of a merge per input entry.
    pub merge_ns_per_entry: f64,
    /// CPU nanoseconds of a merge per stored input byte.
    pub merge_ns_per_byte: f64,
    /// CPU nanoseconds of a flush per entry.
    pub flush_ns_per_entry: f64,
    /// Lookups per second that users want, in addition to the writes.
    pub reads_per_second: f64,
    /// Seeks per second that users want.
    pub seeks_per_second: f64,
    /// CPU nanoseconds of a lookup or a seek, independent of the tree.
    pub read_ns: f64,
    /// The same per table that a lookup searches, and per run that a seek positions in.
    pub read_run_ns: f64,
    /// Average bytes read from the device per block: less than its size if a cache has some blocks.
    pub read_bytes: u64,
    /// The delayed write rate, in bytes per second.
    pub delayed_write_rate: u64,
    /// Seconds between samples; 0 chooses.
    pub sample_every: f64,
    /// Continue after the last write until nothing is due, and report what that took.
    pub settle: bool,
    /// A fast device in front of this one.
    pub fast: Option<crate::fast::Fast>,
    /// Other machines do compactions.
    pub workers: Option<Workers>,
    /// Seed of the jitter in the duration of jobs.
    pub seed: u64,
    /// The column family's options.
    pub options: CfOptions,
}

/// Why settings are invalid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingsError(pub String);

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SettingsError {}

/// Most tables of a simulated tree's last level, according to the settings chosen for it: `target_file_size_multiplier`
/// makes tables larger, and jobs may have correspondingly many bytes. It has little effect on the results
/// (docs/compaction.md), but a large effect on the time that a simulation takes.
pub const TABLES_MAX: u64 = 1 << 12;

impl Default for Settings {
    fn default() -> Self {
        Self {
            strategy: "leveled".to_owned(),
            threads: 4,
            subcompactions: 1,
            split: Split::Store,
            data_bytes: 50 << 30,
            write_bytes: 0,
            workload: Workload::Fill,
            keys: KeyOrder::Uniform,
            ingest_rate: 0,
            key_bytes: 16,
            value_bytes: 1024,
            compression_ratio: 1.0,
            wal: false,
            cores: 16.0,
            device_read: 3.0e9,
            device_write: 2.5e9,
            device_total: 5.0e9,
            device_latency: 80e-6,
            device_sync: 500e-6,
            readahead: 2 << 20,
            overlap: true,
            write_ns: 2_000.0,
            merge_ns_per_entry: 250.0,
            merge_ns_per_byte: 0.6,
            flush_ns_per_entry: 400.0,
            reads_per_second: 0.0,
            seeks_per_second: 0.0,
            read_ns: 2_000.0,
            read_run_ns: 500.0,
            read_bytes: 4096,
            delayed_write_rate: 16 << 20,
            sample_every: 0.0,
            settle: false,
            fast: None,
            workers: None,
            seed: 1,
            options: Options::default().cf,
        }
    }
}

impl Settings {
    /// Strategies by name: style and manner.
    pub const STRATEGIES: [(&'static str, CompactionStyle, Manner); 7] = [
        ("leveled", CompactionStyle::Level, Manner::Usual),
        ("tiered", CompactionStyle::Universal, Manner::Usual),
        ("df-leveled", CompactionStyle::Level, Manner::DownForce),
        ("df-tiered", CompactionStyle::Universal, Manner::DownForce),
        ("classic-leveled", CompactionStyle::Level, Manner::Classic),
        ("classic-tiered", CompactionStyle::Universal, Manner::Classic),
        ("fifo", CompactionStyle::Fifo, Manner::Usual),
    ];

    /// Bytes of an entry as written.
    pub fn entry_bytes(&self) -> f64 {
        (self.key_bytes + self.value_bytes) as f64
    }

    /// Compressed bytes of an entry in a table, with its sequence number and type.
    pub fn stored_entry_bytes(&self) -> f64 {
        (self.entry_bytes() + 8.0) * self.compression_ratio
    }

    /// Keys of the data set.
    pub fn key_count(&self) -> f64 {
        (self.data_bytes as f64 / self.entry_bytes()).max(1.0)
    }

    /// Checks all settings and chooses unset ones; returns notes for the user about the choices.
    ///
    /// # Errors
    /// The first invalid setting.
    pub fn complete(&mut self) -> Result<Vec<String>, SettingsError> {
        let bad = |what: String| Err(SettingsError(what));
        let Some((_, style, manner)) = Self::STRATEGIES.iter().find(|s| s.0 == self.strategy) else {
            let known: Vec<&str> = Self::STRATEGIES.iter().map(|s| s.0).collect();
            return bad(format!("there is no strategy {:?}; there are {}", self.strategy, known.join(", ")));
        };
        self.options.compaction_style = *style;
        manner.set(&mut self.options);
        let positive = [
            ("cores", self.cores),
            ("device read", self.device_read),
            ("device write", self.device_write),
            ("device total", self.device_total),
            ("compression ratio", self.compression_ratio),
        ];
        if let Some((name, value)) = positive.into_iter().find(|(_, v)| !v.is_finite() || *v <= 0.0) {
            return bad(format!("{name} is {value}; it must be above 0"));
        }
        let costs = [
            ("latency", self.device_latency),
            ("sync time", self.device_sync),
            ("write ns", self.write_ns),
            ("merge ns per entry", self.merge_ns_per_entry),
            ("merge ns per byte", self.merge_ns_per_byte),
            ("flush ns per entry", self.flush_ns_per_entry),
            ("reads per second", self.reads_per_second),
            ("seeks per second", self.seeks_per_second),
            ("read ns", self.read_ns),
            ("read ns per run", self.read_run_ns),
            ("sample interval", self.sample_every),
        ];
        if let Some((name, value)) = costs.into_iter().find(|(_, v)| !v.is_finite() || *v < 0.0) {
            return bad(format!("{name} is {value}; it must not be below 0"));
        }
        if self.write_ns <= 0.0 && self.ingest_rate == 0 {
            return bad("writers that cost nothing need an ingest rate".to_owned());
        }
        if self.threads == 0 || self.threads > 1024 || self.subcompactions == 0 || self.subcompactions > 1024 {
            return bad("threads and subcompactions must be 1 to 1024".to_owned());
        }
        if let Some(fast) = &self.fast {
            fast.check(self)?;
        }
        if let Some(w) = &self.workers
            && !(w.cores > 0.0 && w.cores.is_finite() && w.network > 0.0 && (0.0..=100.0).contains(&w.host_part))
        {
            return bad("workers need cores and a network above 0, and a part of the host of 0 to 100".to_owned());
        }
        if self.key_bytes == 0 {
            return bad("keys must have at least one byte".to_owned());
        }
        if let KeyOrder::Zipfian(theta) = self.keys
            && !(0.1..=1.5).contains(&theta)
        {
            return bad(format!("the Zipfian exponent is {theta}; it must be 0.1 to 1.5"));
        }
        if self.workload == Workload::Fill && !matches!(self.keys, KeyOrder::Uniform | KeyOrder::Sequential) {
            return bad("a fill writes each key once: keys are uniform or sequential".to_owned());
        }
        if self.workload == Workload::Overwrite && self.keys == KeyOrder::Sequential {
            return bad("an overwrite chooses keys anew each time: keys are uniform or zipfian".to_owned());
        }
        if !(1 << 20..=100 << 40).contains(&self.data_bytes) {
            return bad(format!(
                "the data set has {}; it must have 1M to 100T",
                crate::report::size(self.data_bytes as f64)
            ));
        }
        if self.workload == Workload::Fill {
            self.write_bytes = self.data_bytes;
        } else if self.write_bytes == 0 {
            self.write_bytes = self.data_bytes.min(100 << 30);
        }
        let mut notes = crate::fast::size_up(self);
        let tables = |o: &CfOptions| {
            let o_mult = u64::from(o.target_file_size_multiplier.max(1).unsigned_abs());
            let steps = if o.dynamic_sizes() { 4 } else { 5 };
            self.data_bytes / o.target_file_size_base.max(1).saturating_mul(o_mult.saturating_pow(steps)).max(1)
        };
        let given = self.options.target_file_size_multiplier;
        while tables(&self.options) > TABLES_MAX && self.options.target_file_size_multiplier < 8 {
            self.options.target_file_size_multiplier = self.options.target_file_size_multiplier.max(1) + 1;
        }
        if self.options.target_file_size_multiplier != given {
            let o = &mut self.options;
            let mut note = format!(
                "target_file_size_multiplier={}, so that the tree has some {} tables in its last level",
                o.target_file_size_multiplier,
                tables(o)
            );
            if o.max_compaction_bytes == 0 {
                let table = self.data_bytes / tables(o).max(1);
                o.max_compaction_bytes = table.saturating_mul(25);
                note += &format!("; max_compaction_bytes={}, for 25 of them", o.max_compaction_bytes);
            }
            notes.push(note);
        }
        if tables(&self.options) > 64 * TABLES_MAX {
            return bad(format!("some {} tables are too many: choose larger ones", tables(&self.options)));
        }
        let memtable = self.options.write_buffer_size as f64;
        if self.write_bytes as f64 / memtable > 4e6 {
            return bad(format!(
                "{:.0} memtables are too many: choose larger ones",
                self.write_bytes as f64 / memtable
            ));
        }
        rockmill::internals::simulation::check_options(&self.options)
            .map_err(|e| SettingsError(e.message().to_owned()))?;
        Ok(notes)
    }
}

/// The options that determine how tables are counted.
trait DynamicSizes {
    fn dynamic_sizes(&self) -> bool;
}

impl DynamicSizes for CfOptions {
    fn dynamic_sizes(&self) -> bool {
        self.level_compaction_dynamic_level_bytes && self.compaction_style == CompactionStyle::Level
    }
}
