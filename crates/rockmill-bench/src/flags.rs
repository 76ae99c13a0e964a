//! The command line, in the syntax of gflags, which db_bench uses: `--name=value`, `-name=value`, `--name value`; for
//! switches also `--name` and `--noname`. Dashes in names may stand for underscores.

use std::path::{Path, PathBuf};

use rockmill_io::DeviceModel;

use crate::error::{Error, Result};

/// What the command line asks for.
#[derive(Debug, Clone)]
pub enum Command {
    /// Print the help text.
    Help,
    /// Print its most needed part.
    ShortHelp,
    /// Run benchmarks.
    Run(Box<Flags>),
}

/// A type of flag.
trait Value: Sized + ToString {
    /// What help calls the type.
    const NAME: &'static str;
    /// May stand without a value.
    const SWITCH: bool = false;
    fn read(text: &str) -> Option<Self>;
    /// Sets another value; all kinds except lists drop the previous one.
    fn assign(&mut self, text: &str) -> bool {
        Self::read(text).map(|value| *self = value).is_some()
    }
}

/// A flag that may be given several times.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct List(pub Vec<String>);

impl std::fmt::Display for List {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.join(" "))
    }
}

impl Value for List {
    const NAME: &'static str = "string, may be repeated";
    fn read(text: &str) -> Option<Self> {
        Some(Self(vec![text.to_owned()]))
    }
    fn assign(&mut self, text: &str) -> bool {
        self.0.push(text.to_owned());
        true
    }
}

/// A switch that is on if it is worth its cost, unless the command line decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Auto {
    /// On if peers are compared or a report is written.
    Auto,
    /// On.
    On,
    /// Off.
    Off,
}

impl std::fmt::Display for Auto {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::On => "true",
            Self::Off => "false",
        })
    }
}

impl Value for Auto {
    const NAME: &'static str = "bool or auto";
    const SWITCH: bool = true;
    fn read(text: &str) -> Option<Self> {
        match text {
            "auto" => Some(Self::Auto),
            _ => bool::read(text).map(|on| if on { Self::On } else { Self::Off }),
        }
    }
}

macro_rules! numbers {
    ($($t:ty, $name:literal);*) => {
        $(impl Value for $t {
            const NAME: &'static str = $name;
            fn read(text: &str) -> Option<Self> {
                text.parse().ok()
            }
        })*
    };
}

numbers!(i32, "int32"; u32, "uint32"; i64, "int64"; u64, "uint64"; usize, "uint64"; f64, "double");

impl Value for bool {
    const NAME: &'static str = "bool";
    const SWITCH: bool = true;
    fn read(text: &str) -> Option<Self> {
        match text.to_ascii_lowercase().as_str() {
            "" | "1" | "true" | "t" | "yes" | "y" => Some(true),
            "0" | "false" | "f" | "no" | "n" => Some(false),
            _ => None,
        }
    }
}

/// Bytes, optionally with a suffix K, M, G or T.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Size(pub u64);

impl std::fmt::Display for Size {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl Value for Size {
    const NAME: &'static str = "size";
    fn read(text: &str) -> Option<Self> {
        let units = ['K', 'M', 'G', 'T'];
        let unit = units.iter().position(|unit| text.ends_with([*unit, unit.to_ascii_lowercase()]));
        let (digits, shift) = match unit {
            Some(i) => (&text[..text.len() - 1], 10 * (i as u32 + 1)),
            None => (text, 0),
        };
        digits.parse::<u64>().ok()?.checked_mul(1 << shift).map(Self)
    }
}

impl Value for String {
    const NAME: &'static str = "string";
    fn read(text: &str) -> Option<Self> {
        Some(text.to_owned())
    }
}

/// Declares the flags once: their fields, defaults, parsing, help text and JSON.
macro_rules! flags {
    ($($help:literal $name:ident: $t:ty = $default:expr;)*) => {
        /// The flags of a run. Names, meanings and defaults are db_bench's (RocksDB 7.8) unless the text says
        /// otherwise.
        // A help text's brackets are no links.
        #[allow(rustdoc::broken_intra_doc_links)]
        #[derive(Debug, Clone, PartialEq)]
        pub struct Flags {
            $(#[doc = $help] pub $name: $t,)*
        }

        impl Default for Flags {
            fn default() -> Self {
                Self { $($name: $default,)* }
            }
        }

        impl Flags {
            /// True for a flag that may be given without a value; `None` if there is no such flag.
            fn is_switch(name: &str) -> Option<bool> {
                match name {
                    $(stringify!($name) => Some(<$t as Value>::SWITCH),)*
                    _ => None,
                }
            }

            /// Changes one flag by its name.
            pub(crate) fn set(&mut self, name: &str, text: &str) -> Result<()> {
                match name {
                    $(stringify!($name) => {
                        if !<$t as Value>::assign(&mut self.$name, text) {
                            let kind = <$t as Value>::NAME;
                            return Err(Error::Usage(format!("--{name}={text}: not a value of type {kind}")));
                        }
                    })*
                    _ => return Err(unknown(name)),
                }
                Ok(())
            }

            /// Every flag's name, type, default and help text.
            fn all() -> Vec<(&'static str, &'static str, String, &'static str)> {
                let default = Self::default();
                vec![$((stringify!($name), <$t as Value>::NAME, default.$name.to_string(), $help)),*]
            }

            /// Every flag's name and value: the settings to report with each figure.
            pub fn settings(&self) -> Vec<(&'static str, String)> {
                vec![$((stringify!($name), self.$name.to_string())),*]
            }
        }
    };
}

flags! {
    "What to run, in this order, separated by commas." benchmarks: String =
        "fillseq,fillrandom,overwrite,readrandom,readseq,seekrandom".to_owned();
    "Directory of the database: new, empty, or made by this command, which then empties it." db: String = String::new();
    "Keep the existing database, whoever made it; benchmarks that need a fresh one are skipped." use_existing_db: bool =
        false;
    "Keys in the database, and operations of a benchmark." num: i64 = 1_000_000;
    "Read operations; negative: num." reads: i64 = -1;
    "Write operations; negative: num." writes: i64 = -1;
    "Seconds that random benchmarks run; 0: num, reads or writes decide." duration: u64 = 0;
    "Threads that run each benchmark at once." threads: usize = 1;
    "Seed of the operations; 0 takes the time." seed: u64 = 0;
    "Bytes of a key." key_size: usize = 16;
    "Bytes of a value." value_size: usize = 100;
    "Values compress to about this part of their size." compression_ratio: f64 = 0.5;
    "fillrandom, overwrite: percent of the writes that go to hot_keys; 0: all keys are written alike (not in db_bench)."
        hot_writes: f64 = 0.0;
    "Percent of the keys that hot_writes go to, the first ones in order (not in db_bench)." hot_keys: f64 = 5.0;
    "Entries of a write batch." batch_size: usize = 1;
    "Steps after each seek of seekrandom." seek_nexts: u64 = 0;
    "Bytes per second that the writer beside readers may write; 0: no limit." benchmark_write_rate_limit: u64 = 0;
    "Delete operations; negative: num." deletes: i64 = -1;
    "Distinct keys of mergerandom; negative: num." merge_keys: i64 = -1;
    "Percent of reads in readrandomwriterandom." readwritepercent: u32 = 90;
    "Distance between the keys of one batch of multireadrandom; 0: random keys." multiread_stride: u64 = 0;
    "Use RocksDB's batched MultiGet in multireadrandom (Rockmill has one call)." multiread_batched: bool = false;
    "Reads per second of all threads; 0: no limit." benchmark_read_rate_limit: u64 = 0;
    "Operations per second of all threads, latencies counted from when each was due (YCSB's target); 0: no limit."
        target: u64 = 0;
    "Seconds that each thread runs a benchmark before it counts; not for fills (not in db_bench)." warmup: u64 = 0;

    "Another store to measure on the same work: NAME[=LIBRARY][,FLAG=VALUE...]; NAME is rockmill, rocksdb, and as \
     built fjall, redb, lmdb (not in db_bench)." peer: List = List::default();
    "Measure Rockmill; --norockmill leaves only the peers (not in db_bench)." rockmill: bool = true;
    "same: every side as the flags say; best: then as each store's documentation recommends (not in db_bench)."
        settings: String = "same".to_owned();
    "Options added last, in RocksDB's text form: name=value;... (not in db_bench)." options_string: String =
        String::new();
    "Times that each side runs all benchmarks, the sides in turn, another first each time (not in db_bench)." repeat: usize = 1;
    "Time every operation and print the distribution; auto: with --peer or --report." histogram: Auto = Auto::Auto;
    "Scan each database at the end, to know its space amplification; auto: with --peer or --report (not in db_bench)."
        measure_space: Auto = Auto::Auto;
    "Measure the device before each repetition; auto: with --peer or --report (not in db_bench)."
        measure_device: Auto = Auto::Auto;
    "Milliseconds between samples of throughput, stalls and levels (not in db_bench)." sample_ms: u64 = 250;
    "Collect statistics; the workload stats prints them." statistics: bool = false;
    "Write the results to this file (not in db_bench)." json: String = String::new();
    "Write a page with charts to this file (not in db_bench)." report: String = String::new();
    "Print no progress (not in db_bench)." quiet: bool = false;

    "mixgraph: part of gets." mix_get_ratio: f64 = 1.0;
    "mixgraph: part of puts." mix_put_ratio: f64 = 0.0;
    "mixgraph: part of seeks." mix_seek_ratio: f64 = 0.0;
    "mixgraph: longest scan." mix_max_scan_len: i64 = 10_000;
    "mixgraph: largest value." mix_max_value_size: i64 = 1024;
    "mixgraph: a of the keys' hotness a*x^b; 0: uniform." key_dist_a: f64 = 0.0;
    "mixgraph: b of the keys' hotness." key_dist_b: f64 = 0.0;
    "mixgraph: a of the key ranges' hotness a*exp(b*x)+c*exp(d*x)." keyrange_dist_a: f64 = 0.0;
    "mixgraph: b of the same." keyrange_dist_b: f64 = 0.0;
    "mixgraph: c of the same." keyrange_dist_c: f64 = 0.0;
    "mixgraph: d of the same." keyrange_dist_d: f64 = 0.0;
    "mixgraph: key ranges." keyrange_num: i64 = 1;
    "mixgraph: theta of the values' Pareto distribution." value_theta: f64 = 0.0;
    "mixgraph: k of the same." value_k: f64 = 0.2615;
    "mixgraph: sigma of the same." value_sigma: f64 = 25.45;
    "mixgraph: theta of the scans' Pareto distribution." iter_theta: f64 = 0.0;
    "mixgraph: k of the same." iter_k: f64 = 2.517;
    "mixgraph: sigma of the same." iter_sigma: f64 = 14.236;

    "YCSB: records loaded; negative: num." recordcount: i64 = -1;
    "YCSB: operations of all threads together; negative: reads, or num." operationcount: i64 = -1;
    "YCSB: fields of a record." fieldcount: usize = 10;
    "YCSB: bytes of a field, or the most for uniform and zipfian." fieldlength: usize = 100;
    "YCSB: constant, uniform or zipfian." fieldlengthdistribution: String = "constant".to_owned();
    "YCSB: updates write every field, without reading the record first." writeallfields: bool = false;
    "YCSB: zipfian, latest or uniform; empty: the workload's own." requestdistribution: String = String::new();
    "YCSB: shortest scan." minscanlength: u64 = 1;
    "YCSB: longest scan." maxscanlength: u64 = 100;
    "YCSB: uniform or zipfian." scanlengthdistribution: String = "uniform".to_owned();
    "YCSB: hashed or ordered." insertorder: String = "hashed".to_owned();
    "YCSB: digits of a key's number at least." zeropadding: usize = 1;

    "Write without a WAL." disable_wal: bool = false;
    "Make every write durable before it returns." sync: bool = false;
    "Bytes of a memtable." write_buffer_size: usize = 64 << 20;
    "Memtables, the active one included." max_write_buffer_number: i32 = 2;
    "Immutable memtables that a flush waits for." min_write_buffer_number_to_merge: i32 = 1;
    "Members of a write group insert at the same time." allow_concurrent_memtable_write: bool = true;
    "Flushes and compactions at once." max_background_jobs: i32 = 2;
    "Threads that one compaction may be split over." subcompactions: u32 = 1;
    "Compact only when told." disable_auto_compactions: bool = false;
    "Bytes that a compaction reads at once (db_bench 7.8: 0, RocksDB's own default since 8: 2 MiB)."
        compaction_readahead_size: usize = 2 << 20;
    "How compactions read and merge: auto, pread, uring or kernel; an unavailable engine is refused (not in \
     db_bench)." engine: String = "auto".to_owned();
    "L0 files that start a compaction." level0_file_num_compaction_trigger: i32 = 4;
    "L0 files that slow writers." level0_slowdown_writes_trigger: i32 = 20;
    "L0 files that stop writers." level0_stop_writes_trigger: i32 = 36;
    "Bytes per second that writers may write when delayed." delayed_write_rate: u64 = 8 << 20;
    "Compaction debt that slows writers, in bytes." soft_pending_compaction_bytes_limit: u64 = 64 << 30;
    "Compaction debt that stops writers, in bytes." hard_pending_compaction_bytes_limit: u64 = 128 << 30;
    "Levels of the tree." num_levels: i32 = 7;
    "Column families; a key is in one by its hash." num_column_families: usize = 1;
    "Databases in the process; a key is in one by its hash. 0 and 1: one." num_multi_db: usize = 0;
    "Bytes of a table." target_file_size_base: u64 = 64 << 20;
    "How much larger tables are one level deeper." target_file_size_multiplier: i32 = 1;
    "Bytes of the base level." max_bytes_for_level_base: u64 = 256 << 20;
    "How much larger a level is than the one above." max_bytes_for_level_multiplier: f64 = 10.0;
    "Size levels from the last one up (db_bench 7.8: false)." level_compaction_dynamic_level_bytes: bool = true;

    "uint64add, stringappend or max; mergerandom wants one." merge_operator: String = String::new();

    "Rockmill's kind of tables: block (block-based, as RocksDB's) or tph; other stores have their own (not in db_bench)."
        table_format: String = "block".to_owned();
    "tph: files that a table consists of at most (not in db_bench)." piece_limit: u32 = 16;
    "tph: unused bytes of a table, in percent of those in use, from which on its files are rewritten (not in db_bench)."
        garbage_percent: u32 = 20;
    "Rockmill orders keys by a hash of them, and cuts tables at fixed places of its range (not in db_bench)."
        hash_range: bool = false;
    "Bytes of a data block." block_size: usize = 4096;
    "Entries between restart points of data blocks." block_restart_interval: i32 = 16;
    "Format of tables written." format_version: i32 = 5;
    "Checksum of blocks: 0 none, 1 crc32c, 2 xxHash, 3 xxHash64, 4 XXH3." checksum_type: i32 = 4;
    "Check block checksums on reads." verify_checksum: bool = true;
    "Scans read the next bytes while they go through those before, past the page cache (Rockmill alone)."
        async_io: bool = false;
    "Bits per key of the Bloom filter; 0 or less: no filter." bloom_bits: f64 = -1.0;
    "Bytes of the block cache; 0 or less: none (db_bench 7.8: 8 MiB)." cache_size: i64 = 32 << 20;
    "none, snappy, zlib, lz4, lz4hc or zstd." compression_type: String = "snappy".to_owned();
    "Tables kept open; -1: all." open_files: i32 = -1;

    "Read tables past the page cache." use_direct_reads: bool = false;
    "Flush and compact past the page cache." use_direct_io_for_flush_and_compaction: bool = false;
    "Bytes gathered before a table write goes to the kernel." writable_file_max_buffer_size: usize = 1 << 20;
    "Bytes after which write-back of a table is started; 0: off." bytes_per_sync: u64 = 0;
    "Bytes after which write-back of the WAL is started; 0: off." wal_bytes_per_sync: u64 = 0;
    "Use fsync instead of fdatasync." use_fsync: bool = false;
    "Bytes per second that the device reads, such as 300M: Rockmill's files are slowed to it; 0: as it is (not in \
     db_bench)." device_read: Size = Size(0);
    "The same for what is written (not in db_bench)." device_write: Size = Size(0);
    "The same for both together (not in db_bench)." device_total: Size = Size(0);
    "Microseconds of each read and sync of the slowed device, on top of its bytes (not in db_bench)."
        device_latency_us: u64 = 0;
    "Directory on a faster device. Rockmill: its logs, which keep the values of the newest data (fast_capacity above \
     0). RocksDB, and Rockmill with a fast_capacity of 0: wal_dir, L0 and L1 by db_paths (not in db_bench)."
        fast_path: String = String::new();
    "Bytes of logs in fast_path at most, such as 1G (Rockmill alone)." fast_capacity: Size = Size(0);
    "Workers (rockmill worker) that do large compactions, ADDR,ADDR (Rockmill alone)."
        compaction_workers: String = String::new();
    "File of secrets that this side has for the workers." worker_secrets: String = String::new();
    "Use workers on other machines without secrets: anyone on the network can read and change tables."
        allow_unauthenticated: bool = false;
    "Jobs that a worker is given at a time." worker_jobs: usize = 1;
    "Compactions with fewer bytes of input are done here." worker_input_min: Size = Size(16 << 20);
    "This many compactions run here before others go to workers." worker_here_first: usize = 0;
    "Operations that the slowed device does at a time; 0: any number (not in db_bench)." device_queue: usize = 0;
    "Bytes of the files of the benchmark device (not in db_bench)." device_bytes: u64 = 256 << 20;
}

impl Flags {
    /// Reads a command line without the program's name. Later flags win.
    pub fn parse(args: impl IntoIterator<Item = String>) -> Result<Command> {
        let command = Self::parse_unchecked(args)?;
        if let Command::Run(flags) = &command {
            flags.check()?;
        }
        Ok(command)
    }

    /// Reads a command line whose flags may not be complete for a run.
    pub(crate) fn parse_unchecked(args: impl IntoIterator<Item = String>) -> Result<Command> {
        let mut flags = Self::default();
        let mut args = args.into_iter().peekable();
        while let Some(arg) = args.next() {
            let Some(body) = arg.strip_prefix("--").or_else(|| arg.strip_prefix('-')) else {
                return Err(Error::Usage(format!("{arg:?}: flags begin with --")));
            };
            match body {
                "help" => return Ok(Command::Help),
                "h" => return Ok(Command::ShortHelp),
                _ => {}
            }
            let (name, value) = match body.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (body, None),
            };
            let name = name.replace('-', "_");
            match (Self::is_switch(&name), value) {
                (_, Some(value)) => flags.set(&name, &value)?,
                (Some(true), None) => flags.set(&name, "true")?,
                (Some(false), None) => match args.next() {
                    Some(value) => flags.set(&name, &value)?,
                    None => return Err(Error::Usage(format!("--{name} wants a value"))),
                },
                (None, None) => {
                    // --nosync, and --no-sync.
                    let switch = name.strip_prefix("no").map(|n| n.trim_start_matches('_'));
                    match switch.filter(|n| Self::is_switch(n) == Some(true)) {
                        Some(switch) => flags.set(switch, "false")?,
                        None => return Err(unknown(&name)),
                    }
                }
            }
        }
        Ok(Command::Run(Box::new(flags)))
    }

    /// Refuses what no run could do.
    pub(crate) fn check(&self) -> Result<()> {
        let bad = |what: &str| Err(Error::Usage(what.to_owned()));
        if self.num < 1 {
            return bad("--num must be at least 1");
        }
        if self.key_size < 1 {
            return bad("--key_size must be at least 1");
        }
        if self.key_size < 8 && self.num > 1 << (8 * self.key_size) {
            return bad("--num is more than there are keys of --key_size bytes");
        }
        if self.threads < 1 || self.threads > 4096 {
            return bad("--threads must be 1 to 4096");
        }
        if self.batch_size < 1 {
            return bad("--batch_size must be at least 1");
        }
        if self.num_column_families < 1 || self.num_column_families > 4096 || self.num_multi_db > 256 {
            return bad("--num_column_families must be 1 to 4096, --num_multi_db at most 256");
        }
        if !(0.0..=1.0).contains(&self.compression_ratio) {
            return bad("--compression_ratio must be 0 to 1");
        }
        if !(0.0..=100.0).contains(&self.hot_writes) || !(0.0..=100.0).contains(&self.hot_keys) {
            return bad("--hot_writes and --hot_keys must be 0 to 100");
        }
        if self.repeat < 1 {
            return bad("--repeat must be at least 1");
        }
        if self.readwritepercent > 100 {
            return bad("--readwritepercent must be 0 to 100");
        }
        if self.sample_ms < 10 {
            return bad("--sample_ms must be at least 10");
        }
        if !self.rockmill && self.peer.0.is_empty() {
            return bad("--norockmill without --peer leaves nothing to measure");
        }
        if !["block", "tph"].contains(&self.table_format.as_str()) {
            return bad("--table_format must be block or tph");
        }
        if !(1..=1024).contains(&self.piece_limit) || self.garbage_percent > 1000 {
            return bad("--piece_limit must be 1 to 1024, --garbage_percent at most 1000");
        }
        self.check_ycsb()?;
        if self.fast_path.is_empty() && self.fast_capacity.0 > 0 {
            return bad("--fast_capacity wants a --fast_path");
        }
        let workers = !self.compaction_workers.is_empty();
        if !workers && (self.allow_unauthenticated || !self.worker_secrets.is_empty()) {
            return bad("--worker_secrets and --allow_unauthenticated are for --compaction_workers, which is missing");
        }
        if self.worker_jobs < 1 {
            return bad("--worker_jobs must be at least 1");
        }
        if !self.fast_path.is_empty() && self.num_multi_db > 1 {
            return bad("--fast_path is one database's: --num_multi_db=1");
        }
        if self.sync && self.disable_wal {
            return bad("--sync asks for a durable WAL and --disable_wal for none");
        }
        if self.db.is_empty() {
            return bad("--db=DIRECTORY is missing: the directory that the benchmark may fill");
        }
        Ok(())
    }

    /// The modelled device for Rockmill's files.
    pub(crate) fn device_model(&self) -> DeviceModel {
        DeviceModel {
            read_bytes_per_second: self.device_read.0,
            write_bytes_per_second: self.device_write.0,
            total_bytes_per_second: self.device_total.0,
            latency: std::time::Duration::from_micros(self.device_latency_us),
            queue_depth: self.device_queue,
        }
    }

    /// The paths of tables without index tables: L0 and L1 on the faster device, the others in `dir`; empty if all are
    /// in `dir`. A level is in the first path if it and all levels above it fit, and L0 counts as large as L1, so twice
    /// the base size is room for exactly these two (RocksDB's `LevelCompactionBuilder::GetPathId`).
    pub(crate) fn table_paths(&self, dir: &Path) -> Vec<(PathBuf, u64)> {
        match self.fast_path.is_empty() || self.fast_capacity.0 > 0 {
            true => vec![],
            false => vec![
                (Path::new(&self.fast_path).join("tables"), 2 * self.max_bytes_for_level_base),
                (dir.to_owned(), u64::MAX),
            ],
        }
    }

    fn check_ycsb(&self) -> Result<()> {
        let one_of = |flag: &str, value: &str, all: &[&str]| match all.contains(&value) {
            true => Ok(()),
            false => Err(Error::Usage(format!("--{flag}={value}: {}", all.join(", ")))),
        };
        one_of("fieldlengthdistribution", &self.fieldlengthdistribution, &["constant", "uniform", "zipfian"])?;
        one_of("requestdistribution", &self.requestdistribution, &["", "zipfian", "latest", "uniform"])?;
        one_of("scanlengthdistribution", &self.scanlengthdistribution, &["uniform", "zipfian"])?;
        one_of("insertorder", &self.insertorder, &["hashed", "ordered"])?;
        if self.fieldcount < 1 || self.fieldlength < 1 || self.recordcount == 0 {
            return Err(Error::Usage("--fieldcount, --fieldlength and --recordcount must be at least 1".to_owned()));
        }
        if self.minscanlength < 1 || self.maxscanlength < self.minscanlength {
            return Err(Error::Usage("--minscanlength must be 1 to --maxscanlength".to_owned()));
        }
        Ok(())
    }

    /// True if sides are compared or a report is written: expensive measurements are then done, unless a flag says
    /// otherwise.
    fn in_depth(&self, flag: Auto) -> bool {
        match flag {
            Auto::On => true,
            Auto::Off => false,
            Auto::Auto => !self.peer.0.is_empty() || !self.report.is_empty(),
        }
    }

    /// Every operation is timed.
    pub fn timed(&self) -> bool {
        self.in_depth(self.histogram)
    }

    /// The databases are scanned at the end.
    pub fn measures_space(&self) -> bool {
        self.in_depth(self.measure_space)
    }

    /// The device is measured with the stores.
    pub fn measures_device(&self) -> bool {
        self.in_depth(self.measure_device)
    }

    fn or_num(&self, n: i64) -> u64 {
        if n < 0 { self.num as u64 } else { n as u64 }
    }

    /// Delete operations of each thread.
    pub fn deletes(&self) -> u64 {
        self.or_num(self.deletes)
    }

    /// Distinct keys of mergerandom.
    pub fn merge_keys(&self) -> u64 {
        self.or_num(self.merge_keys).max(1)
    }

    /// Operations of each thread in workloads that read and write: the larger of the two numbers.
    pub fn read_writes(&self) -> u64 {
        self.or_num(self.reads.max(self.writes))
    }

    /// Records of YCSB.
    pub fn records(&self) -> u64 {
        self.or_num(self.recordcount)
    }

    /// Operations of YCSB, of all threads.
    pub fn operations(&self) -> u64 {
        if self.operationcount < 0 { self.reads() } else { self.operationcount as u64 }
    }

    /// Write operations of each thread.
    pub fn writes(&self) -> u64 {
        if self.writes < 0 { self.num as u64 } else { self.writes as u64 }
    }

    /// Read operations of each thread.
    pub fn reads(&self) -> u64 {
        if self.reads < 0 { self.num as u64 } else { self.reads as u64 }
    }
}

fn unknown(name: &str) -> Error {
    match nearest(name, Flags::all().into_iter().map(|f| f.0)) {
        Some(known) => Error::Usage(format!("there is no flag --{name}; did you mean --{known}?")),
        None => Error::Usage(format!("there is no flag --{name}")),
    }
}

/// The known name most similar to an unknown one, if any is similar enough.
pub fn nearest<'k>(name: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    let near = known.into_iter().min_by_key(|known| distance(name, known))?;
    (distance(name, near) <= 1 + near.len() / 3).then_some(near)
}

/// Edit distance: insertions, deletions and replacements that turn `a` into `b`.
pub(crate) fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = i;
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

/// What the program does, in one line.
const ABOUT: &str = "db_bench's and YCSB's workloads on Rockmill and other stores, with db_bench's flags";

/// Flags that most runs need: the short help has only these.
const SHORT: [&str; 20] = [
    "benchmarks",
    "db",
    "use_existing_db",
    "num",
    "duration",
    "threads",
    "key_size",
    "value_size",
    "compression_ratio",
    "peer",
    "options_string",
    "repeat",
    "histogram",
    "json",
    "report",
    "disable_wal",
    "sync",
    "cache_size",
    "compression_type",
    "use_direct_reads",
];

/// The short help text.
pub(crate) fn short_help(program: &str) -> String {
    let mut text = format!(
        "{program}: {ABOUT}\n\n\
         Usage: {program} --db=DIRECTORY [FLAGS]\n\
         \x20      {program} compact --help    one compaction, by Rockmill's engines and RocksDB\n\
         \x20      {program} offload --help    one compaction, here and by a worker\n\n\
         Flags:\n"
    );
    for (name, _, default, help) in Flags::all().into_iter().filter(|flag| SHORT.contains(&flag.0)) {
        let default = match default.as_str() {
            "" | "false" => String::new(),
            shown => format!(" [default: {shown}]"),
        };
        text += &format!("  --{name:<18} {}{default}\n", help.replace(" (not in db_bench)", ""));
    }
    text + "\nIn names - and _ are the same. --help has examples, and every option\n"
}

/// The help text.
pub(crate) fn help(program: &str) -> String {
    let mut text = format!(
        "{program}: {ABOUT}\n\n\
         Examples:\n\
         \x20 {program} --db=bench-db --benchmarks=fillrandom --value_size=1000 --disable_wal\n\
         \x20 {program} --db=bench-db --use_existing_db --benchmarks=readrandom,stats --histogram\n\n\
         Benchmarks:\n"
    );
    for (name, what) in crate::workload::descriptions() {
        text += &format!("  {name:<18} {what}\n");
    }
    text += "\nFlags (in names - and _ are the same, and --noNAME turns a bool off):\n";
    for (name, kind, default, help) in Flags::all() {
        let shown = if default.is_empty() { "\"\"" } else { &default };
        text += &format!("  --{name} ({kind}, default {shown})\n      {help}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Flags> {
        let args = format!("--db=d {line}");
        match Flags::parse(args.split_whitespace().map(str::to_owned))? {
            Command::Run(f) => Ok(*f),
            Command::Help | Command::ShortHelp => Err(Error::Usage("help".to_owned())),
        }
    }

    #[track_caller]
    fn error(line: &str) -> String {
        parse(line).expect_err("a bad command line").to_string()
    }

    #[test]
    fn every_form_of_a_flag_is_read() {
        let f = parse("--num=5 -reads=6 --value_size 7 --key-size=9 --sync --nouse_fsync --histogram=1").unwrap();
        assert_eq!((f.num, f.reads, f.value_size, f.key_size), (5, 6, 7, 9));
        assert!(f.sync && !f.use_fsync && f.timed());
        assert!(!parse("").unwrap().timed(), "as in db_bench");
        assert!(parse("--peer x --peer=y").unwrap().timed(), "with peers it is worth its cost");
        assert!(!parse("--peer x --nohistogram").unwrap().timed());
        assert_eq!(parse("--peer x --peer=y").unwrap().peer.0, ["x", "y"]);
        assert!(!parse("--disable_wal=1 --disable_wal=false").unwrap().disable_wal, "the later one wins");
        assert_eq!(parse("--num=5").unwrap().reads(), 5, "reads follow num");
    }

    #[test]
    fn every_flag_may_be_written_with_dashes() {
        for (name, kind, default, _) in Flags::all() {
            let dashed = name.replace('_', "-");
            let spelled = |name: &str| {
                let given = [format!("--{name}={default}")];
                // Lists have no default, and some flags only work with others: what matters is that the name is known.
                Flags::parse_unchecked(given).map(|_| ()).map_err(|e| e.to_string())
            };
            assert_eq!(spelled(&dashed), spelled(name));
            assert!(spelled(&dashed).is_ok(), "{dashed}: {:?}", spelled(&dashed));
            if kind.starts_with("bool") {
                for off in [format!("--no{name}"), format!("--no-{dashed}"), format!("--no{dashed}")] {
                    assert!(Flags::parse_unchecked([off.clone()]).is_ok(), "{off}");
                }
            }
        }
        let f = parse("--no-sync --no-use-fsync --fast-path /fast --fast_capacity 1G").unwrap();
        assert_eq!((f.sync, f.use_fsync, f.fast_path.as_str(), f.fast_capacity.0), (false, false, "/fast", 1 << 30));
    }

    #[test]
    fn bad_command_lines_say_what_is_wrong() {
        assert!(error("--valu_size=1").contains("did you mean --value_size?"));
        assert!(error("--zzzzzzzzzzzzzz=1").contains("there is no flag"));
        assert!(error("--num=ten").contains("not a value of type int64"));
        assert!(error("--num").contains("wants a value"));
        assert!(error("fillseq").contains("flags begin with --"));
        assert!(error("--num=0").contains("at least 1"));
        assert!(error("--key_size=1 --num=300").contains("more than there are keys"));
        assert!(error("--sync --disable_wal").contains("durable"));
        assert!(error("--compression_ratio=2").contains("0 to 1"));
        assert!(error("--table_format=plain").contains("block or tph"));
        assert!(error("--worker_secrets=s").contains("--compaction_workers, which is missing"));
        assert!(error("--allow_unauthenticated").contains("--compaction_workers, which is missing"));
        assert!(error("--piece_limit=0").contains("1 to 1024"));
        assert!(error("--garbage_percent=1001").contains("at most 1000"));
        assert!(Flags::parse([]).expect_err("no --db").to_string().contains("--db"));
    }

    #[test]
    fn help_names_every_flag_and_workload() {
        assert!(matches!(Flags::parse(["--help".to_owned()]), Ok(Command::Help)));
        let text = help("rockmill bench");
        for (name, ..) in Flags::all() {
            assert!(text.contains(&format!("--{name} (")), "{name}");
        }
        assert!(text.contains("readwhilewriting"));
    }

    #[test]
    fn short_help_has_the_flags_of_most_runs() {
        assert!(matches!(Flags::parse(["-h".to_owned()]), Ok(Command::ShortHelp)));
        let text = short_help("rockmill-bench");
        for name in SHORT {
            assert!(text.contains(&format!("  --{name} ")), "{name}:\n{text}");
        }
        assert!(text.lines().count() <= 40 && !text.contains("write_buffer_size"), "{text}");
    }

    #[test]
    fn help_names_the_program_as_it_was_called() {
        for (program, other) in [("rockmill bench", "rockmill-bench"), ("rockmill-bench", "rockmill bench")] {
            let (short, long) = (short_help(program), help(program));
            let (compact, offload) = (crate::compact::help(program), crate::offload::help(program));
            for text in [short, long, compact, offload] {
                assert!(text.starts_with(program) && !text.contains(other), "{text}");
            }
        }
    }

    #[test]
    fn distances() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("same", "same"), 0);
    }
}
