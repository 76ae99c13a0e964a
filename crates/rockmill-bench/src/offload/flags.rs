//! The command line of `rockmill bench offload`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

use rockmill::MergeEngine;
use rockmill_offload::{Check, ExternalTarget};

use crate::error::{Error, Result};

/// The request of the command line.
#[derive(Debug, Clone)]
pub enum OffloadCommand {
    /// Print the help text.
    Help,
    /// Run.
    Run(Box<OffloadFlags>),
}

/// The flags of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OffloadFlags {
    /// A new or empty directory for inputs and outputs.
    pub db: String,
    /// Sizes of jobs: MiB of keys and values in all inputs together.
    pub mb: Vec<u64>,
    /// Bytes of a value.
    pub value_size: usize,
    /// Tables in L0, all overlapping.
    pub inputs: usize,
    /// Compression of blocks: `none`, `lz4`, `zstd`.
    pub compression: String,
    /// How often each job runs locally and on the worker.
    pub repeat: usize,
    /// Threads that the worker uses for a job.
    pub threads: u16,
    /// Address of a worker that is already running; empty to start one.
    pub worker: String,
    /// The program with the subcommand `worker`; empty for this one.
    pub worker_program: String,
    /// Where the worker that is started listens; port 0 is a free one.
    pub worker_listen: SocketAddr,
    /// How the workers that are started merge.
    pub worker_engine: MergeEngine,
    /// What is verified of the worker's tables: `all`, or a share of the data such as `10%`.
    pub check: Check,
    /// The worker may be on another machine without secrets.
    pub allow_unauthenticated: bool,
    /// The worker started here and this side use secrets and TLS.
    pub tls: bool,
    /// A target that exports the device with the directory, which the worker reads inputs at; `None`: here.
    pub external_target: Option<ExternalTarget>,
    /// The directory as a server of NFS exports it; empty to leave NFS out.
    pub nfs: String,
    /// The process of that server; 0 if its CPU time is not to be counted.
    pub nfs_server: u32,
    /// File for the results as JSON; empty for none.
    pub json: String,
}

/// Where a worker that is started listens by default.
const LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Name, default, description.
const FLAGS: [(&str, &str, &str); 18] = [
    ("db", "", "A new or empty directory for inputs and outputs; needed."),
    ("mb", "4,16,64,256", "Sizes of jobs: MiB of keys and values in all inputs together."),
    ("value_size", "1024", "Bytes of a value."),
    ("inputs", "4", "Overlapping tables in L0 that the job merges."),
    ("compression", "lz4", "Compression of blocks, of inputs and outputs: none, lz4, zstd."),
    ("repeat", "3", "Times that each job is done here and by the worker, in turn."),
    ("threads", "1", "Threads of the worker for a job."),
    ("worker", "", "Address and port of a worker that runs already; without it one is started on this machine."),
    ("worker_program", "", "The program that has the subcommand `worker`, where it is not this one."),
    ("worker_listen", "127.0.0.1:0", "Address and port at which the worker that is started listens; 0: a free port."),
    ("worker_engine", "auto", "How the workers that are started merge: auto, uring, pread."),
    ("check", "all", "What is read of the worker's tables: all, or all but the data and a part of that, as 10%."),
    ("allow_unauthenticated", "0", "1: the worker may be on another machine; anyone on the network can read the data."),
    ("tls", "0", "1: the worker that is started has secrets and TLS, and so has this side."),
    ("external_target", "", "Where the worker reads inputs: ADDR,SUBSYSTEM,NSID,DEVICE[,START]; here, if it is empty."),
    ("nfs", "", "Does each job through NFS, too: nfs://HOST/DB?nfsport=PORT&mountport=PORT, which exports --db."),
    ("nfs_server", "0", "Number of the process of that server, whose CPU time is counted."),
    ("json", "", "File for the results as JSON."),
];

fn one<T: FromStr>(name: &str, text: &str) -> Result<T> {
    text.trim().parse().map_err(|_| Error::Usage(format!("--{name}: {text:?} is not a valid value")))
}

impl OffloadFlags {
    /// Reads a command line without the words before the flags. Later flags win.
    ///
    /// # Errors
    /// The invalid part of the command line.
    pub fn parse(args: impl IntoIterator<Item = String>) -> Result<OffloadCommand> {
        let mut values: Vec<String> = FLAGS.iter().map(|(_, default, _)| (*default).to_owned()).collect();
        let mut args = args.into_iter();
        while let Some(arg) = args.next() {
            let body = arg.strip_prefix("--").or_else(|| arg.strip_prefix('-'));
            let body = body.ok_or_else(|| Error::Usage(format!("{arg:?}: flags begin with --")))?;
            let (name, value) = match body.split_once('=') {
                Some((name, value)) => (name.replace('-', "_"), Some(value.to_owned())),
                None => (body.replace('-', "_"), None),
            };
            if matches!(name.as_str(), "help" | "h") {
                return Ok(OffloadCommand::Help);
            }
            let place = FLAGS.iter().zip(&mut values).find(|((known, ..), _)| *known == name);
            let Some((_, place)) = place else {
                let near = crate::flags::nearest(&name, FLAGS.iter().map(|(known, ..)| *known));
                let near = near.map_or_else(String::new, |near| format!(": did you mean --{near}?"));
                return Err(Error::Usage(format!("there is no --{name}{near}")));
            };
            *place = value.or_else(|| args.next()).ok_or_else(|| Error::Usage(format!("--{name} wants a value")))?;
        }
        let [
            db,
            mb,
            value_size,
            inputs,
            compression,
            repeat,
            threads,
            worker,
            program,
            listen,
            engine,
            check,
            allow,
            tls,
            external,
            nfs,
            nfs_server,
            json,
        ] = <[String; 18]>::try_from(values).map_err(|_| Error::Usage("flags".to_owned()))?;
        let worker_engine = MergeEngine::ALL.into_iter().find(|known| known.name() == engine);
        let worker_engine = worker_engine.filter(|engine| *engine != MergeEngine::Kernel);
        let flags = Self {
            mb: mb.split(',').map(|size| one("mb", size)).collect::<Result<_>>()?,
            value_size: one("value_size", &value_size)?,
            inputs: one("inputs", &inputs)?,
            repeat: one("repeat", &repeat)?,
            threads: one("threads", &threads)?,
            allow_unauthenticated: one::<u8>("allow_unauthenticated", &allow)? != 0,
            tls: one::<u8>("tls", &tls)? != 0,
            db,
            compression,
            worker,
            worker_program: program,
            worker_listen: one("worker_listen", &listen)?,
            worker_engine: worker_engine
                .ok_or_else(|| Error::Usage(format!("--worker_engine: {engine}: there are auto, uring, pread")))?,
            external_target: match external.as_str() {
                "" => None,
                text => Some(text.parse().map_err(|e| Error::Usage(format!("--external_target: {e}")))?),
            },
            check: check.parse().map_err(|e| Error::Usage(format!("--check: {e}")))?,
            nfs,
            nfs_server: one("nfs_server", &nfs_server)?,
            json,
        };
        flags.check()?;
        Ok(OffloadCommand::Run(Box::new(flags)))
    }

    fn check(&self) -> Result<()> {
        let bad = |what: String| Err(Error::Usage(what));
        if self.db.is_empty() {
            return bad("--db=DIRECTORY is missing: a new or empty directory for inputs and outputs".to_owned());
        }
        if self.repeat < 1 || self.threads < 1 {
            return bad("--repeat and --threads must be at least 1".to_owned());
        }
        if self.tls && !rockmill_offload::TLS {
            return bad("--tls: this program was built without TLS (the feature `tls`)".to_owned());
        }
        if self.tls && !self.worker.is_empty() {
            return bad("--tls is for the worker that is started here, without --worker".to_owned());
        }
        if !self.worker.is_empty() && self.worker_listen != LISTEN {
            return bad("--worker_listen is for the worker that is started here, without --worker".to_owned());
        }
        if !self.worker_listen.ip().is_loopback() && !self.tls && !self.allow_unauthenticated {
            let at = self.worker_listen;
            return bad(format!("--worker_listen={at} is open to a network: add --tls=1 or --allow_unauthenticated=1"));
        }
        if !self.worker.is_empty() && self.worker_engine != MergeEngine::Auto {
            return bad("--worker_engine is for workers that are started here, without --worker".to_owned());
        }
        if self.nfs_server != 0 && self.nfs.is_empty() {
            return bad("--nfs_server is the server's of --nfs, which is missing".to_owned());
        }
        if !self.nfs.is_empty() && !self.nfs.starts_with("nfs://") {
            return bad(format!("--nfs: {}: it is nfs://HOST/DIRECTORY?nfsport=PORT&mountport=PORT", self.nfs));
        }
        if let Some(mb) = self.mb.iter().find(|mb| !(1..=1 << 20).contains(*mb)) {
            return bad(format!("--mb: {mb}; 1 to 1048576"));
        }
        if compression_name(&self.compression).is_none() {
            return bad(format!("--compression: {}: there are none, lz4, zstd", self.compression));
        }
        Ok(())
    }

    /// The flags of `bench compact` whose only case is the job of this size.
    pub(super) fn of_size(&self, mb: u64) -> Vec<String> {
        vec![
            format!("--db={}", self.db),
            format!("--mb={mb}"),
            format!("--values={}", self.value_size),
            format!("--inputs={}", self.inputs),
            format!("--compression={}", self.compression),
            "--bloom=10".to_owned(),
            "--engines=pread".to_owned(),
        ]
    }

    /// The store's options, the same for local and offloaded jobs.
    pub(super) fn options_text(&self) -> String {
        format!(
            "disable_auto_compactions=true;level_compaction_dynamic_level_bytes=false;compaction_helper_threads=0;\
             compression={};block_based_table_factory={{filter_policy=bloomfilter:10:false}}",
            compression_name(&self.compression).unwrap_or("kNoCompression")
        )
    }
}

fn compression_name(flag: &str) -> Option<&'static str> {
    match flag {
        "none" => Some("kNoCompression"),
        "lz4" => Some("kLZ4Compression"),
        "zstd" => Some("kZSTD"),
        _ => None,
    }
}

/// The help text.
pub(crate) fn help(program: &str) -> String {
    let mut text = format!(
        "{program} offload: one compaction of overlapping tables of L0 into L1, done here and by a worker in turn.\n\n\
         Without --worker it starts `rockmill worker` on this machine. Both then share its cores, so that seconds say\n\
         little about two machines; CPU of the host, round trips and bytes do.\n\n\
         With --nfs a third worker does each job, which reads and writes the same files through NFS\n\
         (scripts/bench_offload_nfs starts a server for that, and puts a link between host and worker).\n\n\
         Example:\n\
         \x20 {program} offload --db=bench-db --mb=16,64 --json=offload.json\n\n\
         Flags:\n",
    );
    for (name, default, what) in FLAGS {
        let default = if default.is_empty() { String::new() } else { format!(" (default {default})") };
        text += &format!("  --{name}{default}\n      {what}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<OffloadFlags> {
        match OffloadFlags::parse(line.split_whitespace().map(str::to_owned))? {
            OffloadCommand::Run(flags) => Ok(*flags),
            OffloadCommand::Help => Err(Error::Usage("help".to_owned())),
        }
    }

    #[test]
    fn flags_are_read() {
        let flags = parse("--db=d --mb=1,8 --value-size 100 --compression=zstd --allow_unauthenticated=1").unwrap();
        assert_eq!((flags.mb.as_slice(), flags.value_size, flags.repeat), ([1, 8].as_slice(), 100, 3));
        assert!(flags.allow_unauthenticated && flags.options_text().contains("compression=kZSTD;"));
        assert!(flags.of_size(8).contains(&"--mb=8".to_owned()));
        assert_eq!(parse("--help").unwrap_err().to_string(), Error::Usage("help".to_owned()).to_string());
        assert!(help("rockmill bench").contains("--mb (default 4,16,64,256)"));
    }

    #[test]
    fn bad_command_lines_say_what_is_wrong() {
        for (line, says) in [
            ("--mb=1", "--db"),
            ("--db=d --mb=0", "1 to"),
            ("--db=d --mb=x", "--mb"),
            ("--db=d --repeat=0", "at least 1"),
            ("--db=d --compression=rar", "none, lz4, zstd"),
            ("--db=d --check=10", "0% to 100%"),
            ("--db=d --mbs=4", "there is no --mbs"),
            ("--db=d --tls=1 --worker=127.0.0.1:1", "--tls"),
            ("--db=d --nfs=host:/d", "nfs://"),
            ("--db=d --nfs_server=7", "--nfs, which is missing"),
            ("--db=d --worker_engine=kernel", "auto, uring, pread"),
            ("--db=d --worker_engine=pread --worker=127.0.0.1:1", "--worker_engine"),
            ("--db=d --worker_listen=here", "--worker_listen"),
            ("--db=d --worker_listen=10.0.0.2:0 --worker=127.0.0.1:1", "without --worker"),
            ("--db=d --worker_listen=0.0.0.0:0", "--allow_unauthenticated=1"),
            ("--db=d --json", "wants a value"),
            ("db", "begin with --"),
        ] {
            let e = parse(line).expect_err(line).to_string();
            assert!(e.contains(says), "{line}: {e}");
        }
    }
}
