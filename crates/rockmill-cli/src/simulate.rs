//! `rockmill simulate`: compaction strategies against a modelled device, in `rockmill_sim`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use rockmill::{Options, TableKind};
use rockmill_sim::{Comparison, KeyOrder, Settings, Split, Workload};

use crate::args::{TableFormatArg, parse_size};
use crate::calibrate;
use crate::error::{CliError, Result};
use crate::output::Out;
use crate::progress;

/// Which keys are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Keys {
    /// Each key equally often
    Uniform,
    /// Few keys often (--theta)
    Zipfian,
    /// One key behind the other
    Sequential,
}

fn split(text: &str) -> std::result::Result<Split, String> {
    let found = Split::ALL.iter().find(|(name, _)| *name == text);
    found.map(|s| s.1).ok_or_else(|| format!("{text:?} is none of store, never, idle"))
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
  rockmill simulate --table-format tph --workload overwrite --data 50G --write 200G --value-size 128
  rockmill simulate --calibrate /mnt/disk")]
pub struct SimulateArgs {
    /// leveled, tiered (universal compaction), df-leveled, df-tiered or fifo
    #[arg(long, value_name = "NAME", default_value = "leveled")]
    pub strategy: String,
    /// Compaction threads
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub threads: usize,
    /// Parts that one job may be split into
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub subcompactions: usize,
    /// Which jobs may take a second thread that is idle: those of DF-compaction, as in the store; none; those of every
    /// strategy
    #[arg(long, value_name = "RULE", default_value = "store", value_parser = split)]
    pub split: Split,
    /// Run the strategy without and with DF-compaction, first with no job split, then with the jobs of both split over
    /// idle threads, and print both gains
    #[arg(long, conflicts_with_all = ["split", "report", "calibrate"])]
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
    /// Bytes per second that the device reads
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "3000M")]
    pub device_read: u64,
    /// Bytes per second that the device writes
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "2500M")]
    pub device_write: u64,
    /// Bytes per second in both directions together
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "5000M")]
    pub device_total: u64,
    /// Microseconds of a read before its first byte
    #[arg(long, value_name = "X", default_value_t = 80.0)]
    pub device_latency: f64,
    /// Microseconds of a sync, beside the bytes
    #[arg(long, value_name = "X", default_value_t = 500.0)]
    pub device_sync: f64,
    /// Jobs read, merge and write one after the other, as the engine pread does
    #[arg(long)]
    pub no_overlap: bool,
    /// CPU nanoseconds of a write
    #[arg(long, value_name = "X", default_value_t = 2000.0)]
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
    /// Lookups that users want each second, beside the writes
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
    #[arg(long, value_enum, alias = "table_format", default_value_t = TableFormatArg::Block)]
    pub table_format: TableFormatArg,
    /// Files that a TPH table consists of at most [default: 16]
    #[arg(long, value_name = "N", alias = "piece_limit", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub piece_limit: Option<u32>,
    /// Unused bytes of a TPH table, in percent of those in use, from which on compactions rewrite its files [default:
    /// 20]
    #[arg(long, value_name = "N", alias = "garbage_percent", value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub garbage_percent: Option<u32>,
    /// An option of the column family, as in OPTIONS files; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    pub option: Vec<String>,
    /// Of jitter in how long jobs take
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Write a page with charts
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
        Ok(Settings {
            strategy: self.strategy.clone(),
            threads: self.threads,
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
            device_read: self.device_read as f64,
            device_write: self.device_write as f64,
            device_total: self.device_total as f64,
            device_latency: self.device_latency * 1e-6,
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
            seed: self.seed,
            options: options.cf,
            ..Settings::default()
        })
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
    if args.compare {
        let both = Comparison::run(&args.settings()?, tell);
        bar.finish_and_clear();
        let both = both.map_err(|e| CliError::usage(e.to_string()))?;
        return match out.json {
            true => out.json_object(&both.to_json()),
            false => out.text(both.to_text()),
        };
    }
    let report = rockmill_sim::run_telling(&args.settings()?, tell);
    bar.finish_and_clear();
    let report = report.map_err(|e| CliError::usage(e.to_string()))?;
    if let Some(path) = &args.report {
        let page = rockmill_sim::page::page(&report);
        rockmill_io::report::write(path, &page)
            .map_err(|e| CliError::io(format_args!("cannot write {}", path.display()), &e))?;
    }
    match out.json {
        true => out.json_object(&report.to_json()),
        false => out.text(report.to_text()),
    }
}
