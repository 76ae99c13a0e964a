//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::backup::{BackupArgs, CheckpointArgs};
use crate::downgrade::DowngradeArgs;
use crate::families::{CreateCfArgs, DropCfArgs, ListCfArgs};
use crate::flush::FlushArgs;
use crate::hex::HexArgs;
use crate::kv::{MergeArgs, MultiGetArgs};
use crate::ldb::calls::LdbCall;
use crate::offload::{OffloadArgs, WorkerArgs};
use crate::prompt::ShellArgs;
use crate::repair::RepairArgs;
use crate::set_options::SetOptionsArgs;
use crate::shell::{CompletionsArgs, LAST, ManPagesArgs};
use crate::simulate::SimulateArgs;
use crate::stress::{ChildArgs, StressArgs};
use crate::top::{self, TopArgs};

const EXIT_CODES: &str = "\
Exit codes:
  0  done; everything found and in order
  1  key not found, or verify found problems
  2  wrong call: unknown flag, bad hex, unknown column family, unusable option
  3  I/O error, damaged file, locked database, bad input data

Sizes take the suffixes K, M, G and T (powers of 1024): --write-buffer-size 64M.

Examples:
  rockmill load words.db /usr/share/dict/words --format lines
  rockmill get words.db 000000000042
  rockmill scan words.db --limit 5
  rockmill stats words.db
  rockmill compact words.db && rockmill verify words.db";

/// Work with Rockmill and RocksDB databases: load, read, write, compact and check them.
#[derive(Debug, Parser)]
#[command(name = "rockmill", version, after_help = EXIT_CODES, max_term_width = 100)]
pub struct Cli {
    /// Print JSON instead of text, errors included
    #[arg(long, global = true, display_order = LAST)]
    pub json: bool,
    /// Column family to work on [default: default]
    #[arg(long, global = true, value_name = "NAME", display_order = LAST + 1)]
    pub column_family: Option<String>,
    /// Print no progress and no summaries
    #[arg(long, short, global = true, display_order = LAST + 2)]
    pub quiet: bool,
    #[command(subcommand)]
    #[allow(missing_docs)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
#[allow(missing_docs)]
pub enum Command {
    Load(LoadArgs),
    WriteSst(WriteSstArgs),
    #[command(alias = "ingest_extern_sst")]
    Ingest(IngestArgs),
    Put(PutArgs),
    Merge(MergeArgs),
    Get(GetArgs),
    MultiGet(MultiGetArgs),
    Delete(DeleteArgs),
    Scan(ScanArgs),
    Stats(StatsArgs),
    Top(TopArgs),
    Flush(FlushArgs),
    Compact(CompactArgs),
    Downgrade(DowngradeArgs),
    #[command(alias = "checkconsistency")]
    Verify(VerifyArgs),
    #[command(aliases = ["manifest_dump", "dump_wal"])]
    Dump(DumpArgs),
    Options(OptionsArgs),
    SetOptions(SetOptionsArgs),
    #[command(alias = "list_column_families")]
    ListCf(ListCfArgs),
    #[command(alias = "create_column_family")]
    CreateCf(CreateCfArgs),
    #[command(alias = "drop_column_family")]
    DropCf(DropCfArgs),
    Backup(BackupArgs),
    Checkpoint(CheckpointArgs),
    Repair(RepairArgs),
    #[command(alias = "query")]
    Shell(ShellArgs),
    Stress(Box<StressArgs>),
    Simulate(Box<SimulateArgs>),
    Worker(WorkerArgs),
    Completions(CompletionsArgs),
    ManPages(ManPagesArgs),
    #[command(hide = true)]
    StressChild(ChildArgs),
    #[command(flatten)]
    Ldb(LdbCall),
    /// Measure Rockmill and other stores on the same work, with db_bench's and YCSB's workloads
    #[command(disable_help_flag = true)]
    Bench {
        /// db_bench's flags: rockmill bench --help shows them
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "FLAG")]
        flags: Vec<OsString>,
    },
}

/// On or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)]
pub enum Switch {
    On,
    Off,
}

/// Compression of table blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)]
pub enum CompressionArg {
    None,
    Snappy,
    Lz4,
    Zstd,
    Zlib,
}

/// Checksum of table blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)]
pub enum ChecksumArg {
    Crc32c,
    Xxhash64,
    Xxh3,
}

/// Kind of tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TableFormatArg {
    /// Block-based tables, which RocksDB reads
    Block,
    /// TPH tables: a perfect hash of all keys; Rockmill's own, RocksDB refuses the database
    Tph,
}

/// How compactions read and merge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EngineArg {
    /// The best one that the machine allows
    Auto,
    /// Positioned reads, merge in user space
    Pread,
    /// io_uring: reads and writes in flight while the merge goes on
    Uring,
    /// An eBPF program merges inside the kernel; needs CAP_BPF and Linux 6.9
    Kernel,
}

/// How the engine `kernel` runs its program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DriverArg {
    /// A system call for each output buffer (Linux 6.9)
    Run,
    /// Inside io_uring's wait (Linux 7.1)
    Loop,
}

/// Format of a file to load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FormatArg {
    /// Columns between tabs, no quoting (.tsv, .tab)
    Tsv,
    /// Comma-separated, quoted as RFC 4180 has it (.csv)
    Csv,
    /// One JSON object a line (.jsonl, .ndjson)
    Jsonl,
    /// Any lines (.txt, .log, .lines)
    Lines,
}

/// Bytes with a suffix.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let bad = || format!("{text:?} is not a size: use a number of bytes, or one with K, M, G or T (for example 64M)");
    let lower = text.trim().to_ascii_lowercase();
    let body = lower.strip_suffix("ib").or_else(|| lower.strip_suffix('b')).unwrap_or(&lower);
    let (number, shift) = match body.char_indices().last() {
        Some((at, 'k')) => (&body[..at], 10),
        Some((at, 'm')) => (&body[..at], 20),
        Some((at, 'g')) => (&body[..at], 30),
        Some((at, 't')) => (&body[..at], 40),
        _ => (body, 0),
    };
    if number.is_empty() || !number.bytes().all(|b| b.is_ascii_digit()) {
        return Err(bad());
    }
    number.parse::<u64>().ok().and_then(|n| n.checked_mul(1 << shift)).ok_or_else(bad)
}

/// Where options without a flag come from.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Stored options and directories")]
pub struct StoredArgs {
    /// Take the options of this OPTIONS file instead of the database's own
    #[arg(long = "options", value_name = "FILE")]
    pub options_file: Option<PathBuf>,
    /// Set an option by RocksDB's name; may be repeated (`rockmill options DB` lists them)
    #[arg(long = "option", value_name = "NAME=VALUE")]
    pub option: Vec<String>,
    /// Take the defaults instead of the options that the database has stored
    #[arg(long, conflicts_with = "options_file")]
    pub ignore_stored_options: bool,
    /// Directory of the WALs [default: as stored, if it is in the database's directory or belongs to it]
    #[arg(long, value_name = "DIR")]
    pub wal_dir: Option<PathBuf>,
    /// Directory of the WALs on a faster device; values stay there until they are flushed in large runs
    #[arg(long, value_name = "DIR", conflicts_with = "wal_dir")]
    pub fast_path: Option<PathBuf>,
    /// The most bytes of WALs, with values that stay in them [default: 1G with --fast-path, otherwise off]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub fast_capacity: Option<u64>,
    /// Directories of the tables, in the same order at every opening: {{path=DIR;target_size=SIZE}:{path=DIR}}
    #[arg(long, value_name = "PATHS")]
    pub db_paths: Option<String>,
    /// Directories of the tables of the column families, instead of those
    #[arg(long, value_name = "PATHS")]
    pub cf_paths: Option<String>,
    /// Follow stored paths out of the database's directory: trusts the author of its OPTIONS file
    #[arg(long)]
    pub trust_paths: bool,
    /// Values carry the time of their writing (RocksDB's DBWithTTL, `ldb --ttl`); compactions remove those that are
    /// older than SECONDS [default: 0, none]
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "0")]
    pub ttl: Option<u64>,
}

impl StoredArgs {
    /// For commands without flags for options of the store.
    pub fn alone(&self) -> WriteArgs {
        WriteArgs { stored: self.clone(), ..WriteArgs::default() }
    }
}

/// Options of reads.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Store options")]
pub struct ReadArgs {
    /// Read tables past the page cache (O_DIRECT)
    #[arg(long)]
    pub direct: bool,
    /// Block cache
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "32M")]
    pub cache_size: u64,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub stored: StoredArgs,
}

/// The kind of tables of a column family, and what only TPH tables have.
#[derive(Debug, Clone, Copy, Default, Args)]
#[command(next_help_heading = "Store options (not given: as stored in the database, in a new one as shown)")]
pub struct TableArgs {
    /// Kind of tables; those of the other kind that are there stay until compactions rewrite them [new: block]
    #[arg(long, value_enum)]
    pub table_format: Option<TableFormatArg>,
    /// The most files that a TPH table consists of [new: 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub piece_limit: Option<u32>,
    /// Compactions rewrite files of a TPH table above this many unused bytes, in percent of those in use [new: 20]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub garbage_percent: Option<u32>,
}

/// Options of tables and of the tree, for commands that write. Those that are not given are as the database has them
/// stored, in a new database RocksDB's defaults; what is given is stored.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Store options (not given: as stored in the database, in a new one as shown)")]
pub struct WriteArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub tables: TableArgs,
    /// Compression of blocks written [new: snappy]
    #[arg(long, value_enum)]
    pub compression: Option<CompressionArg>,
    /// The compression library's level
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub compression_level: Option<i32>,
    /// Compression of the deepest level, if it should differ
    #[arg(long, value_enum)]
    pub bottommost_compression: Option<CompressionArg>,
    /// Bits per key of Bloom filters; 0 writes none, 10 is a good choice; TPH tables have none [new: 0]
    #[arg(long, value_name = "BITS")]
    pub bloom_bits: Option<f64>,
    /// Uncompressed size of data blocks [new: 4K]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub block_size: Option<u64>,
    /// Format of tables: 5 (RocksDB 6.6 reads it), 6 (8.6) or 7 (10.4) [new: 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(5..=7))]
    pub format_version: Option<i32>,
    /// Checksum of blocks [new: xxh3]
    #[arg(long, value_enum)]
    pub checksum: Option<ChecksumArg>,
    /// Size of a memtable [new: 64M]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub write_buffer_size: Option<u64>,
    /// Memtables before writers stop [new: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(2..=64))]
    pub write_buffers: Option<i32>,
    /// Size of tables [new: 64M]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub target_file_size: Option<u64>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub shape: ShapeArgs,
    /// L0 tables that start a compaction [new: 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..=1000))]
    pub l0_trigger: Option<i32>,
    /// Flushes and compactions that run at once, and parts that one compaction is split into [new: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..=1024))]
    pub threads: Option<i32>,
    /// How compactions read and merge [default: auto]
    #[arg(long, value_enum)]
    pub engine: Option<EngineArg>,
    /// How the engine kernel runs its program [default: run]
    #[arg(long, value_enum)]
    pub kernel_driver: Option<DriverArg>,
    /// Your own compiled merge program for the engine kernel [default: builtin]
    #[arg(long, value_name = "PATH")]
    pub kernel_program: Option<PathBuf>,
    /// Read and write tables past the page cache (O_DIRECT)
    #[arg(long)]
    pub direct: bool,
    /// Block cache [default: 32M]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub cache_size: Option<u64>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub offload: OffloadArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub stored: StoredArgs,
}

/// How writes are made durable.
#[derive(Debug, Clone, Copy, Args)]
pub struct DurabilityArgs {
    /// Write-ahead log; off is faster, and everything is flushed to tables before the command reports success
    #[arg(long, value_enum, default_value = "on")]
    pub wal: Switch,
    /// Wait for the disk after each batch (the WAL survives a power failure)
    #[arg(long)]
    pub sync: bool,
}

/// How records are found in files.
#[derive(Debug, Args)]
#[command(next_help_heading = "Input")]
pub struct InputArgs {
    /// Format of the files [default: by extension]
    #[arg(long, value_enum)]
    pub format: Option<FormatArg>,
    /// tsv, csv: the first line has the columns' names
    #[arg(long)]
    pub header: bool,
    /// tsv, csv: column with the key, by number from 1 or, with --header, by name [default: 1]
    #[arg(long, value_name = "COLUMN")]
    pub key_column: Option<String>,
    /// tsv, csv: column with the value [default: all other columns, joined as they were]
    #[arg(long, value_name = "COLUMN", conflicts_with = "whole_row")]
    pub value_column: Option<String>,
    /// tsv, csv: the value is the whole row, key included
    #[arg(long)]
    pub whole_row: bool,
    /// jsonl: field with the key, dots go into objects (user.id); lines: `number` (the default: line numbers of 12
    /// digits, the line is the value) or `line` (the line is the key, its number the value)
    #[arg(long, value_name = "FIELD|number|line")]
    pub key: Option<String>,
    /// jsonl: field with the value [default: the whole line]
    #[arg(long, value_name = "FIELD")]
    pub value: Option<String>,
    /// Keys and values in the input are hexadecimal, as `scan --hex` prints them
    #[arg(long)]
    pub hex: bool,
    /// Leave out lines that cannot be read, and count them, instead of stopping
    #[arg(long)]
    pub skip_bad: bool,
}

/// Load files into a database; creates the database, and the column family, if missing
///
/// The format is known from a file's extension or given by --format. A record whose key exists already replaces the old
/// one. A file - is standard input. Strings in jsonl become their characters; numbers and everything else are taken as
/// they are in the line.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rockmill load packages.db packages.tsv
  rockmill load users.db users.csv --header --key-column email
  rockmill load events.db events.jsonl --key user.id --value payload
  rockmill load words.db /usr/share/dict/words --format lines --key line
  rockmill load big.db part-*.tsv --wal=off --threads 4 --compression zstd
  rockmill scan old.db --hex | rockmill load new.db - --format tsv --hex")]
pub struct LoadArgs {
    /// Database directory
    pub db: PathBuf,
    /// Files to load; - is standard input
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    /// Records in a batch (all of a batch is written or nothing); a batch also ends at 8 MiB
    #[arg(long, value_name = "N", default_value_t = 1000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub batch: u64,
    /// Print `acked N` after each batch: N records are written so far
    #[arg(long)]
    pub ack: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub durability: DurabilityArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub input: InputArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub store: WriteArgs,
}

/// Write a table of sorted records, to be ingested
///
/// Keys must rise from record to record, over all files; --sort sorts them in memory first, and of records with the
/// same key the last counts. The formats are those of `load`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rockmill write-sst words.sst words.tsv && rockmill ingest words.db words.sst --move
  rockmill write-sst users.sst users.csv --header --key-column email --sort
  rockmill scan old.db --hex | rockmill write-sst all.sst - --format tsv --hex --compression zstd")]
pub struct WriteSstArgs {
    /// Table to write; a file that is there is refused
    pub table: PathBuf,
    /// Files with the records; - is standard input
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    /// Read everything first and sort it
    #[arg(long)]
    pub sort: bool,
    /// Replace a file that is there
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub input: InputArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub store: WriteArgs,
}

/// Make tables of `write-sst` (or of RocksDB's SstFileWriter) part of a database
///
/// All of them are ingested, or none. Their entries are newer than those in the database; of files that overlap each
/// other, later ones are newer.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rockmill ingest my.db batch1.sst batch2.sst
  rockmill ingest my.db batch.sst --move --column-family events
  rockmill ingest new.db batch.sst --create
  rockmill ingest my.db history.sst --ingest-behind --option allow_ingest_behind=true")]
pub struct IngestArgs {
    /// Database directory
    pub db: PathBuf,
    /// Tables
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    /// Link the files into the database and remove their old names, instead of copying them
    #[arg(long = "move")]
    pub move_files: bool,
    /// Put them below everything else: keys in the database keep their values
    #[arg(long)]
    pub ingest_behind: bool,
    /// Read and check every block first
    #[arg(long)]
    pub verify: bool,
    /// Create the database, and the column family, if missing
    #[arg(long)]
    pub create: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub store: WriteArgs,
}

/// Set a key to a value
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rockmill put my.db greeting 'hello world'
  rockmill put my.db --hex 00ff 68656c6c6f
  rockmill put my.db picture - < picture.png
  rockmill put my.db --sync -- -key-with-a-dash value")]
pub struct PutArgs {
    /// Database directory
    pub db: PathBuf,
    /// Key
    pub key: OsString,
    /// Value; - reads it from standard input, as it is
    pub value: OsString,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub hex: HexArgs,
    /// Create the database if it is missing
    #[arg(long)]
    pub create: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub durability: DurabilityArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub store: WriteArgs,
}

/// Print the value of a key
///
/// The value is printed as it is, byte for byte; on a terminal a newline follows. Exit code 1 if the key is not there.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rockmill get my.db greeting
  rockmill get my.db picture > picture.png
  rockmill get my.db --hex 00ff
  rockmill get my.db greeting --json
  rockmill get my.db user:7 --column-family sessions")]
pub struct GetArgs {
    /// Database directory
    pub db: PathBuf,
    /// Key
    pub key: OsString,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub hex: HexArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub store: ReadArgs,
}

/// Delete keys, or all keys of a range
///
/// Deleting a key that does not exist is not an error.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rockmill delete my.db greeting
  rockmill delete my.db key1 key2 key3
  rockmill delete my.db --from user:1000 --to user:2000
  rockmill delete my.db --hex 00ff")]
pub struct DeleteArgs {
    /// Database directory
    pub db: PathBuf,
    /// Keys
    #[arg(required_unless_present = "from", conflicts_with_all = ["from", "to"])]
    pub keys: Vec<OsString>,
    /// Delete all keys from this one on (one range deletion, whatever the number of keys) ...
    #[arg(long, value_name = "KEY", requires = "to")]
    pub from: Option<OsString>,
    /// ... up to this one, which stays
    #[arg(long, value_name = "KEY", requires = "from")]
    pub to: Option<OsString>,
    /// Keys are hexadecimal
    #[arg(long, aliases = ["key-hex", "key_hex"])]
    pub hex: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub durability: DurabilityArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub store: WriteArgs,
}

/// Print entries in key order
///
/// Prints one line for each entry: key, tab, value, as they are; with --hex both as hexadecimal, with --json one object
/// per line.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rockmill scan my.db --limit 10
  rockmill scan my.db --prefix user: --keys-only
  rockmill scan my.db --from a --to b --reverse
  rockmill scan my.db --count
  rockmill scan my.db --hex > copy.tsv")]
pub struct ScanArgs {
    /// Database directory
    pub db: PathBuf,
    /// First key (in --reverse scans still the smaller end)
    #[arg(long, value_name = "KEY")]
    pub from: Option<OsString>,
    /// End of the range; the key itself is left out
    #[arg(long, value_name = "KEY")]
    pub to: Option<OsString>,
    /// Only keys that begin with this
    #[arg(long, value_name = "KEY")]
    pub prefix: Option<OsString>,
    /// The most entries to print
    #[arg(long, value_name = "N", alias = "max_keys")]
    pub limit: Option<u64>,
    /// From the last key to the first
    #[arg(long)]
    pub reverse: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub hex: HexArgs,
    /// Leave the values out
    #[arg(long, alias = "no_value")]
    pub keys_only: bool,
    /// Print the number of entries only
    #[arg(long)]
    pub count: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub store: ReadArgs,
}

/// Show levels, amplification, memtables and caches
///
/// Opens the database for reading; another process may have it open. docs/tuning.md explains the figures.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rockmill stats my.db
  rockmill stats my.db --column-family sessions
  rockmill stats my.db --watch
  rockmill stats my.db --report tree.html
  rockmill stats my.db --prometheus > my.db.prom
  rockmill stats my.db --json | jq '.column_families[0].levels'")]
pub struct StatsArgs {
    /// Database directory
    pub db: PathBuf,
    /// Every SECONDS [default: 1], show what the process that has it open does, as `rockmill top` does
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "1")]
    #[arg(value_parser = top::parse_seconds)]
    pub watch: Option<f64>,
    /// Print the text that Prometheus reads: from the process that has it open, if that writes a status file, otherwise
    /// from this command's own opening
    #[arg(long, conflicts_with = "watch")]
    pub prometheus: bool,
    /// Write a page with the tree as a picture, too: levels, sorted runs, ages of tables, what overlaps what
    #[arg(long, value_name = "FILE", conflicts_with_all = ["watch", "prometheus"])]
    pub report: Option<PathBuf>,
    /// The file that the process writes its status to [default: STATUS in the database directory]
    #[arg(long, value_name = "FILE")]
    pub status_file: Option<PathBuf>,
    /// Levels that the tree may have, L1 and deeper sized as these options say
    #[command(flatten)]
    pub shape: ShapeArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub store: ReadArgs,
}

/// The tree's shape: what levels should hold, and what their scores are computed against.
#[derive(Debug, Clone, Copy, Default, Args)]
#[command(next_help_heading = "Store options (not given: as stored in the database, in a new one as shown)")]
pub struct ShapeArgs {
    /// Size of the base level (the first below L0 that holds tables) [new: 256M]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub level_base_size: Option<u64>,
    /// How much larger each level is than the one above [new: 10]
    #[arg(long, value_name = "N")]
    pub level_multiplier: Option<f64>,
}

/// What a compaction does with tables that are already in the deepest level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BottommostArg {
    /// Rewrite them, so that all tables have the options given; not those that this command has written already
    ForceOptimized,
    /// Rewrite all of them, even those that this command has just written
    Force,
    /// Leave them if nothing is above them
    Skip,
}

/// How much `compact --explain` shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExplainArg {
    /// Jobs with their tables and parts
    Jobs,
    /// Every block of every input, too
    Blocks,
}

/// Compact a database, or a range of keys, down to its deepest level
///
/// Flushes memtables first. Tables are written with the options that the database has stored; those given here
/// replace them and are stored.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rockmill compact my.db
  rockmill compact my.db --all-column-families
  rockmill compact my.db --from user:1000 --to user:2000
  rockmill compact my.db --threads 4 --compression zstd --bloom-bits 10
  rockmill compact my.db --engine pread --threads 2 --json
  rockmill compact my.db --explain
  rockmill compact copy.db --reproducible --engine pread && sha256sum copy.db/*.sst")]
pub struct CompactArgs {
    /// Database directory
    pub db: PathBuf,
    /// First key
    #[arg(long, value_name = "KEY")]
    pub from: Option<OsString>,
    /// Last key
    #[arg(long, value_name = "KEY")]
    pub to: Option<OsString>,
    /// --from and --to are hexadecimal
    #[arg(long, aliases = ["key-hex", "key_hex"])]
    pub hex: bool,
    /// Compact every column family, one after the other; the options given are for all of them
    #[arg(long, conflicts_with_all = ["from", "to", "explain"])]
    pub all_column_families: bool,
    /// Tables in the deepest level
    #[arg(long, value_enum, default_value = "force-optimized")]
    pub bottommost: BottommostArg,
    /// Show the first jobs (inputs, parts, rules, outputs) without doing anything; `blocks` lists every block, too
    #[arg(long, value_enum, value_name = "WHAT", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "jobs", conflicts_with = "reproducible")]
    pub explain: Option<ExplainArg>,
    /// Write the same bytes whenever this is run on a copy of the database, with any engine: tables get fixed ids and
    /// the times of their data. For comparisons, not for a database in use
    #[arg(long)]
    pub reproducible: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub store: WriteArgs,
}

/// Where a database's files are, for commands that do not open it.
#[derive(Debug, Args)]
pub struct DirArgs {
    /// Directory of the WALs [default: what the database's OPTIONS file says]
    #[arg(long, value_name = "DIR")]
    pub wal_dir: Option<PathBuf>,
    /// Directories of the tables, as the database is opened with: {{path=DIR;target_size=SIZE}:{path=DIR}}
    #[arg(long, value_name = "PATHS")]
    pub db_paths: Option<String>,
    /// Directories of the tables of the column families, instead of those
    #[arg(long, value_name = "PATHS")]
    pub cf_paths: Option<String>,
}

/// Check every file of a database without changing it
///
/// Checks the MANIFEST, every table (each block's checksum, order of keys, filter, counts; size, key range and sequence
/// numbers against the MANIFEST), levels (no overlap inside one; newer versions of a key never below older ones), every
/// WAL record, missing files. Files that do not belong to the database are reported, but are not a problem. Exit code 0
/// only if all checks pass.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rockmill verify my.db
  rockmill verify my.db --json
  rockmill verify my.db --quiet && echo sound")]
pub struct VerifyArgs {
    /// Database directory
    pub db: PathBuf,
    /// Read tables without the page cache (O_DIRECT), so that the disk itself is checked
    #[arg(long)]
    pub direct: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub dirs: DirArgs,
}

/// Show what is in one file: a table, a WAL, a MANIFEST or CURRENT
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rockmill dump my.db/000012.sst
  rockmill dump my.db/000012.sst --entries --limit 20
  rockmill dump my.db/000014.log --hex
  rockmill dump my.db/MANIFEST-000005 --json
  rockmill dump my.db/CURRENT")]
pub struct DumpArgs {
    /// The file
    pub file: PathBuf,
    /// Tables: print every version of every key
    #[arg(long)]
    pub entries: bool,
    /// The most entries or records, and blocks of a table's index
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    /// Print keys and values as hexadecimal, in full
    #[arg(long)]
    pub hex: bool,
    /// What the file is, if its name does not say
    #[arg(long = "type", value_enum)]
    pub file_type: Option<FileTypeArg>,
}

/// What a file to dump is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)]
pub enum FileTypeArg {
    Sst,
    Wal,
    Manifest,
    Current,
}

/// Show the options that a database has stored
///
/// Every option with its value; `*` marks those that are not Rockmill's defaults. Below, what of the file has no effect
/// in Rockmill. With --option the options are shown as commands with the same flag would take them.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rockmill options my.db
  rockmill options my.db --changed
  rockmill options my.db --column-family sessions --json
  rockmill options my.db --changed --option compression=kZSTD")]
pub struct OptionsArgs {
    /// Database directory
    pub db: PathBuf,
    /// Only options that are not the defaults
    #[arg(long)]
    pub changed: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub stored: StoredArgs,
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn the_command_line_is_consistent() {
        crate::shell::command().debug_assert();
    }

    #[test]
    fn sizes_have_suffixes() {
        assert_eq!(parse_size("0"), Ok(0));
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("4k"), Ok(4096));
        assert_eq!(parse_size("64M"), Ok(64 << 20));
        assert_eq!(parse_size("1GiB"), Ok(1 << 30));
        assert_eq!(parse_size("2TB"), Ok(2 << 40));
        for bad in ["", "k", "-1", "1.5G", "1X", "99999999999T", "1 0", "é"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }
}
