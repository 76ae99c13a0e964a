//! The command line of `rockmill bench compact`: lists that define the cases, and otherwise the flags of `rockmill
//! bench`, so that every setting of a store can be set for all sides or for one (`--peer NAME,FLAG=VALUE`).

use crate::error::{Error, Result};
use crate::flags::{Command, Flags};
use crate::peers::escape;
use crate::peers::rockmill::engine;

/// What the command line asks for.
#[derive(Debug, Clone)]
pub enum CompactCommand {
    /// Print the help text.
    Help,
    /// Run the cases.
    Run(Box<CompactFlags>),
}

/// One input to be merged.
#[derive(Debug, Clone, PartialEq)]
pub struct Case {
    /// Bytes of a value.
    pub value_size: usize,
    /// Tables in L0, all overlapping.
    pub inputs: usize,
    /// Bits per key of the Bloom filter; 0 none.
    pub bloom_bits: f64,
    /// Compression of blocks, as `--compression_type` names it.
    pub compression: String,
}

impl Case {
    /// A readable name, the same in every report.
    pub fn name(&self) -> String {
        let size = match self.value_size {
            n if n >= 1024 && n % 1024 == 0 => format!("{} KiB", n / 1024),
            n => format!("{n} B"),
        };
        let bloom = match self.bloom_bits {
            bits if bits > 0.0 => format!("Bloom {bits}"),
            _ => "no Bloom".to_owned(),
        };
        format!("{size}, {} inputs, {bloom}, {}", self.inputs, self.compression)
    }

    /// The same, shortened.
    pub(crate) fn short_name(&self) -> String {
        let bloom = if self.bloom_bits > 0.0 { format!(", B{}", self.bloom_bits) } else { String::new() };
        let name = self.name();
        let size = name.split(',').next().unwrap_or_default();
        format!("{size} x{}{bloom}, {}", self.inputs, self.compression)
    }
}

/// The flags of a run.
#[derive(Debug, Clone)]
pub struct CompactFlags {
    /// The flags that `rockmill bench` has, too; settings that a case determines are replaced in [`Self::of_case`].
    pub base: Flags,
    /// Sizes of values.
    pub values: Vec<usize>,
    /// Numbers of input tables.
    pub inputs: Vec<usize>,
    /// Bits per key of Bloom filters.
    pub bloom: Vec<f64>,
    /// Compressions.
    pub compression: Vec<String>,
    /// Keys and values of all inputs together, in MiB.
    pub mb: u64,
    /// Rockmill's engines, each a side.
    pub engines: Vec<String>,
    /// Milliseconds to wait before each job: a disk with burst credit earns some.
    pub pause_ms: u64,
    /// Let each store merge small tables of another column family before the job.
    pub warm_up: bool,
}

/// Default seed of the inputs.
const SEED: u64 = 42;

/// The flags of this command only: name, default, description.
const OWN: [(&str, &str, &str); 8] = [
    ("values", "128,1024,4096", "Sizes of values, in bytes."),
    ("inputs", "4,8,16", "Numbers of overlapping tables in L0 that one job merges."),
    ("bloom", "0,10", "Bits per key of Bloom filters; 0: none."),
    ("compression", "none,lz4", "Compressions of blocks, of inputs and outputs."),
    ("mb", "512", "MiB of keys and values in all inputs together."),
    (
        "engines",
        "uring,pread",
        "Rockmill's engines, each a side: auto, pread, uring, kernel; pread-blocks (a call for each block), kernel-loop.",
    ),
    ("pause_ms", "0", "Milliseconds to wait before each job (disks with burst credit)."),
    ("warm_up", "1", "1: before the job, each store merges as many small tables of another column family; 0: not."),
];

/// Settings before the command line is read: both sides at their best for one job with one thread.
const DEFAULTS: [&str; 13] = [
    "--repeat=5",
    "--norockmill",
    "--use_direct_reads",
    "--use_direct_io_for_flush_and_compaction",
    "--compaction_readahead_size=2097152",
    "--disable_auto_compactions",
    "--disable_wal",
    "--level_compaction_dynamic_level_bytes=false",
    "--max_background_jobs=1",
    "--subcompactions=1",
    "--level0_slowdown_writes_trigger=100000",
    "--level0_stop_writes_trigger=100000",
    "--format_version=5",
];

/// The option that excludes Rockmill's helper threads from a job.
const ONE_THREAD: &str = "compaction_helper_threads=0";

/// Flags of `rockmill bench` that a case determines, and their replacements.
const DECIDED: [(&str, &str); 12] = [
    ("value_size", "--values"),
    ("bloom_bits", "--bloom"),
    ("compression_type", "--compression"),
    ("num", "--mb"),
    ("benchmarks", "nothing"),
    ("rockmill", "--engines"),
    ("engine", "--engines"),
    ("use_existing_db", "nothing"),
    ("disable_auto_compactions", "nothing"),
    ("level_compaction_dynamic_level_bytes", "nothing"),
    ("write_buffer_size", "nothing"),
    ("num_levels", "nothing"),
];

impl CompactFlags {
    /// Reads a command line without the words before the flags. Later flags win.
    pub fn parse(args: impl IntoIterator<Item = String>) -> Result<CompactCommand> {
        let mut own: Vec<String> = OWN.iter().map(|(_, default, _)| (*default).to_owned()).collect();
        let mut rest: Vec<String> = DEFAULTS.iter().map(|f| (*f).to_owned()).collect();
        let mut args = args.into_iter();
        while let Some(arg) = args.next() {
            let body = arg.strip_prefix("--").or_else(|| arg.strip_prefix('-')).unwrap_or_default();
            let (name, value) = match body.split_once('=') {
                Some((name, value)) => (name.replace('-', "_"), Some(value.to_owned())),
                None => (body.replace('-', "_"), None),
            };
            let bare = name.strip_prefix("no").unwrap_or(&name);
            if matches!(name.as_str(), "help" | "h") {
                return Ok(CompactCommand::Help);
            } else if let Some(i) = OWN.iter().position(|(n, ..)| *n == name) {
                let value = value.or_else(|| args.next());
                own[i] = value.ok_or_else(|| Error::Usage(format!("--{name} wants a value")))?;
            } else if let Some((_, instead)) = DECIDED.iter().find(|(n, _)| *n == name || *n == bare) {
                let instead = match *instead {
                    "nothing" => "it is the same in every case".to_owned(),
                    flag => format!("give {flag}"),
                };
                return Err(Error::Usage(format!("--{name} is not for `bench compact`: {instead}")));
            } else {
                rest.push(arg);
            }
        }
        let Command::Run(base) = Flags::parse_unchecked(rest)? else { return Ok(CompactCommand::Help) };
        let mut flags = Self {
            base: *base,
            values: list("values", &own[0])?,
            inputs: list("inputs", &own[1])?,
            bloom: list("bloom", &own[2])?,
            compression: list("compression", &own[3])?,
            mb: one("mb", &own[4])?,
            engines: list("engines", &own[5])?,
            pause_ms: one("pause_ms", &own[6])?,
            warm_up: one::<u8>("warm_up", &own[7])? != 0,
        };
        if flags.base.seed == 0 {
            flags.base.seed = SEED; // the same inputs in every run
        }
        flags.check()?;
        Ok(CompactCommand::Run(Box::new(flags)))
    }

    fn check(&self) -> Result<()> {
        let bad = |what: String| Err(Error::Usage(what));
        if self.base.db.is_empty() {
            return bad("--db=DIRECTORY is missing: a new or empty directory for the inputs and outputs".to_owned());
        }
        if self.base.repeat < 1 {
            return bad("--repeat must be at least 1".to_owned());
        }
        if let Some(n) = self.values.iter().find(|n| !(1..=16 << 20).contains(*n)) {
            return bad(format!("--values: {n} bytes; 1 to 16777216"));
        }
        if let Some(n) = self.inputs.iter().find(|n| !(2..=256).contains(*n)) {
            return bad(format!("--inputs: {n} tables; 2 to 256"));
        }
        if let Some(n) = self.bloom.iter().find(|n| !(0.0..=100.0).contains(*n)) {
            return bad(format!("--bloom: {n} bits per key; 0 to 100"));
        }
        for name in &self.engines {
            engine(spec_of(name).0).map_err(|_| engine_error(name))?;
        }
        for case in self.cases() {
            if self.entries_of(&case) / (case.inputs as u64) < 1 {
                return bad(format!("--mb={}: not one entry for each input of {:?}", self.mb, case.name()));
            }
        }
        Ok(())
    }

    /// Every combination, in the order of the lists.
    pub fn cases(&self) -> Vec<Case> {
        let mut out = Vec::new();
        for &value_size in &self.values {
            for &inputs in &self.inputs {
                for &bloom_bits in &self.bloom {
                    for compression in &self.compression {
                        out.push(Case { value_size, inputs, bloom_bits, compression: compression.clone() });
                    }
                }
            }
        }
        out
    }

    /// Entries of a case, the same number in each input.
    pub fn entries_of(&self, case: &Case) -> u64 {
        let inputs = case.inputs as u64;
        (self.mb << 20) / (self.base.key_size + case.value_size) as u64 / inputs * inputs
    }

    /// The flags of the sides that run a case.
    pub fn of_case(&self, case: &Case) -> Flags {
        let mut flags = self.base.clone();
        // The comparison is for one thread: no idle core helps with compression.
        let text = match flags.options_string.as_str() {
            "" => ONE_THREAD.to_owned(),
            given => format!("{ONE_THREAD};{given}"),
        };
        let own = self.engines.iter().map(|name| {
            let (engine, settings, options) = spec_of(name);
            let text = escape(&[text.as_str(), options].join(if options.is_empty() { "" } else { ";" }));
            format!("rockmill,label={name},engine={engine}{settings},options_string={text}")
        });
        flags.peer.0 = own.chain(flags.peer.0).collect();
        self.decide(case, &mut flags);
        flags.use_existing_db = true;
        flags
    }

    /// The flags of the side that writes a case's inputs into `dir`.
    pub fn of_writer(&self, case: &Case, dir: &str) -> Flags {
        let is_rocksdb = |spec: &&String| spec.split([',', '=']).next() == Some("rocksdb");
        let spec = self.base.peer.0.iter().find(is_rocksdb).map_or("rockmill", String::as_str);
        let mut flags = self.base.clone();
        flags.peer.0 = vec![spec.to_owned()];
        flags.db = dir.to_owned();
        self.decide(case, &mut flags);
        // Only explicit flushes happen: an input is one memtable.
        let input_bytes = (self.mb << 20) as usize / case.inputs;
        let entry_overhead = 200 * (self.entries_of(case) as usize / case.inputs);
        flags.write_buffer_size = 2 * (input_bytes + entry_overhead) + (32 << 20);
        flags
    }

    fn decide(&self, case: &Case, flags: &mut Flags) {
        flags.value_size = case.value_size;
        flags.bloom_bits = case.bloom_bits;
        flags.compression_type.clone_from(&case.compression);
        flags.num = self.entries_of(case) as i64;
    }
}

/// The meaning of a name in `--engines`: an engine, settings of its side, and options of its store.
pub(super) fn spec_of(name: &str) -> (&str, &'static str, &'static str) {
    match name {
        BY_BLOCK => ("pread", ",compaction_readahead_size=0", ""),
        KERNEL_LOOP => ("kernel", "", "kernel_driver=loop"),
        other => (other, "", ""),
    }
}

/// `pread` with a call for each block.
const BY_BLOCK: &str = "pread-blocks";
/// `kernel` with its driver `loop`.
const KERNEL_LOOP: &str = "kernel-loop";

fn engine_error(name: &str) -> Error {
    match engine(name) {
        Err(Error::Usage(text)) => {
            Error::Usage(text.replace("--engine=", "--engines: ") + ", " + BY_BLOCK + ", " + KERNEL_LOOP)
        }
        _ => Error::Usage(format!("--engines: {name}")),
    }
}

fn list<T: std::str::FromStr>(name: &str, text: &str) -> Result<Vec<T>> {
    text.split(',').map(|part| one(name, part.trim())).collect()
}

fn one<T: std::str::FromStr>(name: &str, text: &str) -> Result<T> {
    let bad = || Error::Usage(format!("--{name}: {text:?} is not a valid value"));
    if text.is_empty() {
        return Err(bad());
    }
    text.parse().map_err(|_| bad())
}

/// Every setting of a run without flags.
pub(super) fn default_settings() -> Vec<(String, String)> {
    let own = OWN.iter().map(|(name, default, _)| ((*name).to_owned(), (*default).to_owned()));
    let set = DEFAULTS.iter().map(|f| (*f).to_owned());
    let base = match Flags::parse_unchecked(set) {
        Ok(Command::Run(base)) => base.settings(),
        _ => vec![],
    };
    let common = base.into_iter().map(|(name, value)| match name {
        "seed" => (name.to_owned(), SEED.to_string()),
        _ => (name.to_owned(), value),
    });
    own.chain(common).collect()
}

/// The help text.
pub(crate) fn help(program: &str) -> String {
    let mut text = format!(
        "{program} compact: several overlapping tables of L0 merged into L1 by one job of one thread, Rockmill's\n\
         engines and RocksDB in turn on copies of the same database.\n\n\
         Example:\n\
         \x20 {program} compact --db=bench-db --peer rocksdb --values=1024 --inputs=8 --report page.html\n\n\
         Flags (lists are separated by commas; every combination is a case):\n",
    );
    for (name, default, what) in OWN {
        text += &format!("  --{name} (default {default})\n      {what}\n");
    }
    text += &format!(
        "\nAnd those of `{program}` (see `{program} --help`): --db, --peer, --repeat, --json, --report, --seed,\n\
         --compression_ratio, and every setting of a store, as target_file_size_base or block_size. Set \
         beforehand:\n"
    );
    for flag in DEFAULTS {
        text += &format!("  {flag}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<CompactFlags> {
        match CompactFlags::parse(line.split_whitespace().map(str::to_owned))? {
            CompactCommand::Run(f) => Ok(*f),
            CompactCommand::Help => Err(Error::Usage("help".to_owned())),
        }
    }

    #[track_caller]
    fn error(line: &str) -> String {
        parse(&format!("--db=d {line}")).expect_err("a bad command line").to_string()
    }

    #[test]
    fn lists_become_cases() {
        let f = parse("--db=d --values=128,1024 --inputs 4 --bloom=0,10 --compression=none --mb=8 --repeat=3").unwrap();
        let names: Vec<String> = f.cases().iter().map(Case::name).collect();
        let wanted = [
            "128 B, 4 inputs, no Bloom, none",
            "128 B, 4 inputs, Bloom 10, none",
            "1 KiB, 4 inputs, no Bloom, none",
            "1 KiB, 4 inputs, Bloom 10, none",
        ];
        assert_eq!(names, wanted);
        assert_eq!((f.base.repeat, f.entries_of(&f.cases()[0])), (3, (8 << 20) / 144 / 4 * 4));
        let of = f.of_case(&f.cases()[3]);
        assert_eq!((of.value_size, of.bloom_bits, of.use_direct_reads), (1024, 10.0, true));
        let wanted = |name| format!("rockmill,label={name},engine={name},options_string=compaction_helper_threads=0");
        assert_eq!(of.peer.0, ["uring", "pread"].map(wanted));
        let f = parse("--db=d --engines=pread-blocks,kernel-loop").unwrap();
        let threads = "options_string=compaction_helper_threads=0";
        let wanted = [
            format!("rockmill,label=pread-blocks,engine=pread,compaction_readahead_size=0,{threads}"),
            format!("rockmill,label=kernel-loop,engine=kernel,{threads};kernel_driver=loop"),
        ];
        assert_eq!(f.of_case(&f.cases()[0]).peer.0, wanted);
        assert_eq!(parse("--db=d").unwrap().cases().len(), 36);
        let f = parse("--db=d --options_string=db_log_dir=a,b").unwrap();
        let wanted = |name| {
            let text = "compaction_helper_threads=0;db_log_dir=a\\,b";
            format!("rockmill,label={name},engine={name},options_string={text}")
        };
        assert_eq!(f.of_case(&f.cases()[0]).peer.0, ["uring", "pread"].map(wanted));
    }

    #[test]
    fn a_rocksdb_writes_the_inputs_if_there_is_one() {
        let writer = |line: &str| {
            let f = parse(&format!("--db=d {line}")).unwrap();
            f.of_writer(&f.cases()[0], "there").peer.0.concat()
        };
        assert_eq!(writer(""), "rockmill");
        assert_eq!(writer("--peer rockmill,label=x --peer rocksdb=/a.so,label=y"), "rocksdb=/a.so,label=y");
    }

    #[test]
    fn bad_command_lines_say_what_is_wrong() {
        assert!(parse("--mb=1").expect_err("no --db").to_string().contains("--db"));
        assert!(error("--engines=magic").contains("--engines: magic: there are auto, pread, uring"));
        assert!(error("--inputs=1").contains("2 to 256"));
        assert!(error("--values=0").contains("--values"));
        assert!(error("--values=").contains("--values"));
        assert!(error("--bloom=x").contains("--bloom"));
        assert!(error("--mb=0").contains("not one entry"));
        assert!(error("--value_size=7").contains("give --values"));
        assert!(error("--nouse_existing_db").contains("the same in every case"));
        assert!(error("--block_siz=7").contains("did you mean --block_size"));
        assert!(error("--repeat=0").contains("at least 1"));
        assert!(error("fillseq").contains("flags begin with --"));
        assert!(help("rockmill bench").contains("--engines (default uring,pread)"));
    }
}
