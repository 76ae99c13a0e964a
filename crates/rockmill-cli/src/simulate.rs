//! `rockmill simulate`: compaction strategies against a modelled device, in `rockmill_sim`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use rockmill::{Options, TableKind};
use rockmill_sim::page::About;
use rockmill_sim::{
    Adapts, AllStrategies, Comparison, Fast, FastComparison, Front, KeyOrder, Settings, Split, Triggers, Workers,
    Workload,
};

use crate::args::{TableFormatArg, parse_size};
use crate::calibrate;
use crate::error::{CliError, Result};
use crate::output::{self, Out};
use crate::progress;

/// Which keys are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Keys {
    /// Each key equally often
    Uniform,
    /// Few keys often (--theta)
    Zipfian,
    /// One key after the other
    Sequential,
}

fn split(text: &str) -> std::result::Result<Split, String> {
    let found = Split::ALL.iter().find(|(name, _)| *name == text);
    found.map(|s| s.1).ok_or_else(|| format!("{text:?} is none of store, never, idle"))
}

/// A device by its kind; the first two as scripts/bench_hybrid slows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Device {
    /// A SATA SSD: reads 530 MB/s and writes 450 MB/s at the same time, 100 us a read
    Sata,
    /// A disk: 180 MB/s each way at the same time, 1/150 s a read
    Disk,
    /// 3,000 and 2,500 MB/s, 5,000 MB/s together, 80 us a read
    Nvme,
}

impl Device {
    /// Bytes per second for reads, for writes, and in total; and microseconds of a read.
    fn figures(self) -> ([f64; 3], f64) {
        match self {
            Self::Sata => ([530e6, 450e6, 980e6], 100.0),
            Self::Disk => ([180e6, 180e6, 360e6], 1e6 / 150.0),
            Self::Nvme => ([3000e6, 2500e6, 5000e6], 80.0),
        }
    }
}

fn front(text: &str) -> std::result::Result<Front, String> {
    let found = Front::ALL.iter().find(|(name, _)| *name == text);
    found.map(|f| f.1).ok_or_else(|| format!("{text:?} is none of index, plain, rocksdb"))
}

/// Empty or full at the beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// An empty store is filled, each key written once
    Fill,
    /// A full store is written to
    Overwrite,
}

/// Run a compaction strategy against a modelled device and CPU, in virtual time
///
/// Nothing is written anywhere: tables are key ranges with sizes. Strategies and write control are the store's own, so
/// that what they do at a size, on a device or with a number of threads can be seen before there is such a machine.
/// Figures of the machine are given by flags; `--calibrate DIR` measures them below DIR with a small database, predicts
/// a second one, runs that too, and prints how far the prediction was off.
///
/// The same flags give the same output.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rockmill simulate --strategy leveled --threads 16 --data 50G
  rockmill simulate --strategy tiered --threads 16 --data 50G --report tiered.html
  rockmill simulate --data 100T --workload overwrite --write 1T --keys zipfian --rate 200M --json
  rockmill simulate --data 1T --threads 8 --cores 8 --device-write 800M --option max_bytes_for_level_base=1G
  rockmill simulate --compare --strategy df-leveled --threads 16 --data 50G --filter-bits 10
  rockmill simulate --compare --strategy all --threads 16 --data 50G --option level_compaction_dynamic_level_bytes=false
  rockmill simulate --compare --strategy all --threads 16 --data 50G --report six.html
  rockmill simulate --table-format tph --workload overwrite --data 50G --write 200G --value-size 128
  rockmill simulate --data 100G --device sata --fast-capacity 10G --cores 8 --threads 8 --report fast.html
  rockmill simulate --compare --data 100G --device sata --fast-capacity 10G --key-size 24 --value-size 1000
  rockmill simulate --calibrate /mnt/disk")]
pub struct SimulateArgs {
    /// leveled, tiered (universal compaction), df-leveled, df-tiered, classic-leveled, classic-tiered or fifo; with
    /// --compare also all, which are all of these but fifo
    #[arg(long, value_name = "NAME", default_value = "leveled")]
    pub strategy: String,
    /// Compaction threads [default: 16; 4 with --calibrate]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Parts that one job may be split into
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub subcompactions: usize,
    /// Which jobs may take a second thread that is idle: those of DF-compaction, as in the store; none; those of every
    /// strategy
    #[arg(long, value_name = "RULE", default_value = "store", value_parser = split)]
    pub split: Split,
    /// Run the strategy without and with DF-compaction, first with no job split, then with the jobs of both split over
    /// idle threads, and print both gains. With --strategy all: six strategies side by side, under both rules. With
    /// --fast-capacity: --fast-front index and rocksdb, with --compare-cores. With --report: how evenly threads are
    /// busy, over time and over levels
    #[arg(long, conflicts_with_all = ["split", "calibrate"])]
    pub compare: bool,
    /// Size of the data set, up to 100T
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "50G")]
    pub data: u64,
    /// Empty or full at the beginning
    #[arg(long, value_enum, default_value_t = Kind::Fill)]
    pub workload: Kind,
    /// How much is written to a full store [default: the data set, at most 100G]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub write: Option<u64>,
    /// Which keys are written
    #[arg(long, value_enum, default_value_t = Keys::Uniform)]
    pub keys: Keys,
    /// Exponent of --keys zipfian
    #[arg(long, value_name = "X", default_value_t = 0.99)]
    pub theta: f64,
    /// Bytes per second that are to be written [default: as many as can be]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub rate: Option<u64>,
    /// Bytes of a key
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub key_size: u64,
    /// Bytes of a value
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "1024")]
    pub value_size: u64,
    /// Stored size by uncompressed size
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    pub compression_ratio: f64,
    /// Log writes
    #[arg(long)]
    pub wal: bool,
    /// Cores, for writers and jobs together
    #[arg(long, value_name = "X", default_value_t = 16.0)]
    pub cores: f64,
    /// A device by its kind; the flags below change figures of it
    #[arg(long, value_enum, value_name = "KIND")]
    pub device: Option<Device>,
    /// Bytes per second that the device reads [default: 3000M]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, alias = "slow-read")]
    pub device_read: Option<u64>,
    /// Bytes per second that the device writes [default: 2500M]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, alias = "slow-write")]
    pub device_write: Option<u64>,
    /// Bytes per second in both directions together [default: 5000M]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub device_total: Option<u64>,
    /// Microseconds of a read before its first byte [default: 80]
    #[arg(long, value_name = "X")]
    pub device_latency: Option<f64>,
    /// A fast device in front of this one, of which this much is used. Memtables, index tables, levels and limits are
    /// sized by it, as scripts/bench_hybrid does, where --option does not say otherwise
    #[arg(long, value_name = "SIZE", value_parser = parse_size, conflicts_with = "calibrate")]
    pub fast_capacity: Option<u64>,
    /// What is on the fast device: index, the logs that index tables point to (docs/hybrid.md); plain, the WAL, L0 and
    /// L1; rocksdb, the same with RocksDB's write control
    #[arg(long, value_name = "FRONT", default_value = "index", value_parser = front, requires = "fast_capacity",
          conflicts_with = "compare")]
    pub fast_front: Front,
    /// Bytes per second that the fast device reads
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "3000M", requires = "fast_capacity")]
    pub fast_read: u64,
    /// Bytes per second that the fast device writes
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "2500M", requires = "fast_capacity")]
    pub fast_write: u64,
    /// CPU nanoseconds of an index merge for each entry
    #[arg(long, value_name = "X", default_value_t = 200.0, requires = "fast_capacity")]
    pub index_merge_ns: f64,
    /// CPU nanoseconds of a flush for each value that it reads from a log, in addition to --flush-ns-per-entry
    #[arg(long, value_name = "X", default_value_t = 400.0, requires = "fast_capacity")]
    pub read_value_ns: f64,
    /// With --compare and --fast-capacity: cores, and as many compaction threads
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "4,8,20", requires = "fast_capacity",
          requires = "compare", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub compare_cores: Vec<u16>,
    /// Cores of workers on other machines that do compactions (rockmill worker), all together; 0 for no workers
    #[arg(long, value_name = "X", default_value_t = 0.0, conflicts_with = "calibrate")]
    pub workers: f64,
    /// Bytes per second of the network to workers, each way: 10 Gb/s is 1250M
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "1250M")]
    pub network: u64,
    /// CPU that a worker's job takes here, as a part of what it takes there: docs/offload.md has what was measured
    #[arg(long, value_name = "X", default_value_t = 0.53)]
    pub worker_host_part: f64,
    /// Jobs with less input are done here
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "16M")]
    pub worker_input_min: u64,
    /// Microseconds of a sync, in addition to the time of its bytes
    #[arg(long, value_name = "X", default_value_t = 500.0)]
    pub device_sync: f64,
    /// Jobs read, merge and write one after the other, as the engine pread does
    #[arg(long)]
    pub no_overlap: bool,
    /// CPU nanoseconds of a write, of all writers together. The default is that of several writers at once, so that the
    /// tree is what limits a run; one alone takes about 2000
    #[arg(long, value_name = "X", default_value_t = 500.0)]
    pub write_ns: f64,
    /// CPU nanoseconds of a merge for each entry
    #[arg(long, value_name = "X", default_value_t = 250.0)]
    pub merge_ns_per_entry: f64,
    /// CPU nanoseconds of a merge for each stored byte
    #[arg(long, value_name = "X", default_value_t = 0.6)]
    pub merge_ns_per_byte: f64,
    /// CPU nanoseconds of a flush for each entry
    #[arg(long, value_name = "X", default_value_t = 400.0)]
    pub flush_ns_per_entry: f64,
    /// Lookups that users want each second, next to the writes
    #[arg(long, value_name = "N", default_value_t = 0.0)]
    pub reads: f64,
    /// Seeks that users want each second
    #[arg(long, value_name = "N", default_value_t = 0.0)]
    pub seeks: f64,
    /// CPU nanoseconds of a lookup or a seek
    #[arg(long, value_name = "X", default_value_t = 2000.0)]
    pub read_ns: f64,
    /// CPU nanoseconds for each table that a lookup asks, and each sorted run that a seek stands in
    #[arg(long, value_name = "X", default_value_t = 500.0)]
    pub read_run_ns: f64,
    /// Bits of filters for each key, so that a lookup reads a block of one table and not of all
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    pub filter_bits: f64,
    /// Bytes that a block takes from the device, on average; fewer than 4096 where a cache has some of them
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "4096")]
    pub read_bytes: u64,
    /// Bytes per second that writers get at the slowdown trigger, until it is known what compactions take in
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "16M")]
    pub delayed_write_rate: u64,
    /// Kind of tables; of TPH tables, what compactions leave where it is and what functions take are modelled
    #[arg(long, value_enum, default_value_t = TableFormatArg::Block)]
    pub table_format: TableFormatArg,
    /// The most files that a TPH table consists of [default: 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub piece_limit: Option<u32>,
    /// Compactions rewrite files of a TPH table above this many unused bytes, in percent of those in use [default: 20]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub garbage_percent: Option<u32>,
    /// An option of the column family, as in OPTIONS files; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    pub option: Vec<String>,
    /// Go on after the last write until no compaction is due, and say what that took
    #[arg(long)]
    pub settle: bool,
    /// Seed of the jitter in how long jobs take
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Write a page with charts to FILE
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Measure below DIR, predict a run there, and compare
    #[arg(long, value_name = "DIR", conflicts_with = "report")]
    pub calibrate: Option<PathBuf>,
}

impl SimulateArgs {
    /// As the simulator takes them.
    pub fn settings(&self) -> Result<Settings> {
        let mut options = Options::default();
        for option in &self.option {
            options = Options::from_string(&options, option)
                .map_err(|e| CliError::usage(format!("--option {option}: {}", e.message())))?;
        }
        if self.filter_bits > 0.0 {
            options.cf.table.bloom_bits_per_key = self.filter_bits;
        }
        if self.table_format == TableFormatArg::Tph {
            options.cf.table_factory = TableKind::Tph;
        }
        let tph = &mut options.cf.tph;
        for (given, option) in
            [(self.piece_limit, &mut tph.piece_limit), (self.garbage_percent, &mut tph.garbage_percent)]
        {
            if given.is_some() && options.cf.table_factory != TableKind::Tph {
                return Err(CliError::usage("--piece-limit and --garbage-percent are for --table-format=tph"));
            }
            *option = given.unwrap_or(*option);
        }
        if options.cf.compaction_style != rockmill::CompactionStyle::Level {
            return Err(CliError::usage("the compaction style is given as --strategy"));
        }
        let (device, latency) = self.device.unwrap_or(Device::Nvme).figures();
        let [read, write, total] = match self.device {
            // The defaults, in units of 1,024.
            None => [3000 << 20, 2500 << 20, 5000 << 20].map(|n: u64| n as f64),
            Some(_) => device,
        };
        let given = |flag: Option<u64>, or: f64| flag.map_or(or, |n| n as f64);
        let db = &options.db;
        let fast = self.fast_capacity.map(|capacity| Fast {
            front: self.fast_front,
            read: self.fast_read as f64,
            write: self.fast_write as f64,
            capacity,
            index_size: db.max_index_size,
            triggers: Triggers { merge: db.index_merge_trigger_num, flush_bytes: db.data_flush_trigger_size as u64 },
            adapts: Adapts { triggers: db.adaptive_index_triggers, levels: db.elastic_level_capacity },
            inline_max: db.index_inline_size as u64,
            merge_ns: self.index_merge_ns,
            read_value_ns: self.read_value_ns,
        });
        Ok(Settings {
            strategy: self.strategy.clone(),
            // What is measured must run here.
            threads: self.threads.unwrap_or(if self.calibrate.is_some() { 4 } else { 16 }),
            subcompactions: self.subcompactions,
            split: self.split,
            data_bytes: self.data,
            write_bytes: self.write.unwrap_or(0),
            workload: match self.workload {
                Kind::Fill => Workload::Fill,
                Kind::Overwrite => Workload::Overwrite,
            },
            keys: match self.keys {
                Keys::Uniform => KeyOrder::Uniform,
                Keys::Zipfian => KeyOrder::Zipfian(self.theta),
                Keys::Sequential => KeyOrder::Sequential,
            },
            ingest_rate: self.rate.unwrap_or(0),
            key_bytes: self.key_size,
            value_bytes: self.value_size,
            compression_ratio: self.compression_ratio,
            wal: self.wal,
            cores: self.cores,
            device_read: given(self.device_read, read),
            device_write: given(self.device_write, write),
            device_total: given(self.device_total, total),
            device_latency: self.device_latency.unwrap_or(latency) * 1e-6,
            fast,
            workers: (self.workers != 0.0).then_some(Workers {
                cores: self.workers,
                network: self.network as f64,
                host_part: self.worker_host_part,
                input_bytes_min: self.worker_input_min as f64,
            }),
            device_sync: self.device_sync * 1e-6,
            overlap: !self.no_overlap,
            write_ns: self.write_ns,
            merge_ns_per_entry: self.merge_ns_per_entry,
            merge_ns_per_byte: self.merge_ns_per_byte,
            flush_ns_per_entry: self.flush_ns_per_entry,
            reads_per_second: self.reads,
            seeks_per_second: self.seeks,
            read_ns: self.read_ns,
            read_run_ns: self.read_run_ns,
            read_bytes: self.read_bytes,
            delayed_write_rate: self.delayed_write_rate,
            settle: self.settle,
            seed: self.seed,
            options: options.cf,
            ..Settings::default()
        })
    }
}

/// What an interruption leaves.
pub fn kept(args: &SimulateArgs) -> String {
    match &args.calibrate {
        // The databases, and the files with which the device is measured.
        Some(dir) => format!(
            "there are no results; rockmill-calibrate-{id}* and rockmill-probe-{id}* in {} may be deleted",
            dir.display(),
            id = std::process::id()
        ),
        None => "there are no results; nothing was written".to_owned(),
    }
}

/// Runs the command.
pub fn run(args: &SimulateArgs, out: &mut Out) -> Result<()> {
    if let Some(dir) = &args.calibrate {
        return calibrate::run(dir, args, out);
    }
    if args.write.is_some() && args.workload == Kind::Fill {
        return Err(CliError::usage("--write is for --workload overwrite; a fill writes --data"));
    }
    if let Some(path) = &args.report {
        let is_ours = |head: &str| head.contains("<title>rockmill simulate");
        rockmill_bench::check_output(path, is_ours).map_err(CliError::usage)?;
    }
    let bar = progress::bytes("simulating", Some(1), out.quiet);
    let tell = |written: f64, of: f64| {
        bar.set_length(of as u64);
        bar.set_position(written as u64);
    };
    if args.compare && args.fast_capacity.is_some() {
        if args.report.is_some() {
            return Err(CliError::usage("--report is not there for --compare with --fast-capacity"));
        }
        let cores: Vec<usize> = args.compare_cores.iter().map(|n| usize::from(*n)).collect();
        let all = FastComparison::run(&args.settings()?, &cores, tell);
        bar.finish_and_clear();
        let all = all.map_err(|e| CliError::usage(e.to_string()))?;
        return match out.json {
            true => out.json_object(&all.to_json()),
            false => out.text(all.to_text()),
        };
    }
    if args.compare && args.strategy == "all" {
        let all = AllStrategies::run(&args.settings()?, tell);
        bar.finish_and_clear();
        let all = all.map_err(|e| CliError::usage(e.to_string()))?;
        write_page(args, || all.to_html(&about()))?;
        return match out.json {
            true => out.json_object(&all.to_json()),
            false => out.text(all.to_text_within(out.columns())),
        };
    }
    if args.compare {
        let both = Comparison::run(&args.settings()?, tell);
        bar.finish_and_clear();
        let both = both.map_err(|e| CliError::usage(e.to_string()))?;
        write_page(args, || both.to_html(&about()))?;
        return match out.json {
            true => out.json_object(&both.to_json()),
            false => out.text(both.to_text()),
        };
    }
    let report = rockmill_sim::run_telling(&args.settings()?, tell);
    bar.finish_and_clear();
    let report = report.map_err(|e| CliError::usage(e.to_string()))?;
    write_page(args, || rockmill_sim::page::page(&report, &about()))?;
    match out.json {
        true => out.json_object(&report.to_json()),
        false => out.sentences(report.to_text()),
    }
}

/// How the report was made, for its page.
fn about() -> About {
    About { command: output::command_line(), date: rockmill_bench::today() }
}

fn write_page(args: &SimulateArgs, page: impl FnOnce() -> String) -> Result<()> {
    let Some(path) = &args.report else { return Ok(()) };
    rockmill_io::report::write(path, &page())
        .map_err(|e| CliError::io(format_args!("cannot write {}", path.display()), &e))
}
