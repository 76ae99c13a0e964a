//! The merge engines: how the blocks of a part of a job are read, and how they are merged.
//!
//! An engine is a `PartEngine`. It is given a `PartJob` and ends as a `PartEnd` says. `job.rs` tries the engines of
//! `in_order` one after another, until one has done the part; the last one always does.
//!
//! | engine | reads and writes | merges | needs |
//! |---|---|---|---|
//! | `pread` | one plain call after another | this process | nothing |
//! | `uring` | a ring, several spans of each run in flight | this process | io_uring |
//! | `kernel` | as `uring`, or as `pread` without a ring | an eBPF program | feature `kernel`, Linux 6.9, CAP_BPF |
//!
//! All of them write the same bytes, because they share everything after the merge (`Destination::drain`).
//!
//! [`SharedEngines`] is what the jobs of a database share: counters of the engines, and objects that take long to make.

use std::sync::Arc;

use rockmill_io::Clock;
use rockmill_io::ring::BatchIo;

use super::merge::feed::BlockFeed;
use super::merge::ring_scan::{RingReads, lanes};
use super::merge::run::TableRun;
use super::merge::scan_run::ScanRun;
use super::merge::{KeyPrefixes, MergeStream, Merger};
use super::output::{Created, Outputs, Tables};
use super::plan::JobPlan;
use super::resolve::pass::may_pass;
use super::resolve::{ResolveStats, Resolver};
use super::spec::Part;
use super::sst_map::SstMap;
use super::tombstones::Tombstones;
use super::{JobHost, JobOutput, MergeEngine, Stop};
use crate::error::Result;
use crate::helpers::{Help, Helpers};
use crate::info_log::InfoLog;
use crate::options::DbOptions;
use crate::options::engine::{OPTIONS, PROGRAM, empty_if_built_in};
use crate::options::text::Pairs;

#[cfg(feature = "kernel")]
pub(crate) mod kernel;
#[cfg(not(feature = "kernel"))]
#[path = "no_kernel.rs"]
pub(crate) mod kernel;
mod pread;
mod rings;
mod stats;
mod uring;

use rings::LookupRings;
pub(crate) use rings::{LOOKUP_MEMORY, LentRing};
pub use stats::EngineParts;
use stats::EngineStats;
use uring::JobRings;
pub(super) use uring::{RingUse, ring};

/// One way to do a part of a job.
pub(super) trait PartEngine: Sync {
    /// Which it is.
    fn kind(&self) -> MergeEngine;

    /// Merges the part, and writes what survives.
    ///
    /// # Errors
    /// Only errors that another engine would meet as well: damage, a failed read or write, a stop.
    fn run(&self, job: &PartJob<'_>) -> Result<PartEnd>;
}

/// How an engine ended.
pub(super) enum PartEnd {
    /// The part is done.
    Done(PartOutput),
    /// Another engine has to start the part again, for this reason. The tables that this one wrote are in `created`.
    #[cfg_attr(not(any(feature = "kernel", test)), expect(dead_code, reason = "the other engines do every part"))]
    HandOver(String),
    /// The engine is not available, and nothing was begun. Why is in [`EngineStats`].
    Missing,
}

/// The engines that may do a part, in the order in which they are tried, if this one is asked for.
pub(super) fn in_order(asked: MergeEngine) -> &'static [&'static dyn PartEngine] {
    match asked {
        MergeEngine::Pread => &[&pread::Pread],
        MergeEngine::Auto | MergeEngine::Uring => &[&uring::Uring, &pread::Pread],
        MergeEngine::Kernel => &[&kernel::Kernel, &uring::Uring, &pread::Pread],
    }
}

/// One part of a job.
pub(super) struct PartJob<'a> {
    /// Where surviving entries go.
    pub output: Destination<'a>,
    /// What is read.
    pub map: &'a SstMap,
    /// How prefixes of the job's keys are taken.
    pub prefixes: KeyPrefixes,
    /// Smallest and largest user key of the job.
    pub range: Option<(&'a [u8], &'a [u8])>,
    pub stop: Stop<'a>,
}

impl PartJob<'_> {
    /// Runs that have something to read.
    fn runs_read(&self) -> usize {
        self.map.runs.iter().filter(|run| !run.files.is_empty()).count()
    }

    /// Whole blocks may pass.
    fn passing(&self) -> bool {
        may_pass(&self.output.plan.rules, !self.output.tombstones.is_empty())
    }

    /// Merges the entries of the feeds in this process. With `io`, tables are written through it.
    fn merge<F: BlockFeed>(&self, feeds: Vec<F>, io: Option<&BatchIo>) -> Result<PartEnd> {
        let Destination { plan, part, .. } = self.output;
        let cmp = &plan.rules.cmp;
        let mut runs = Vec::with_capacity(feeds.len());
        for feed in feeds {
            runs.push(TableRun::new(feed, part.begin.as_deref(), self.prefixes, cmp, self.passing())?);
        }
        let mut merger = Merger::new(runs, cmp.clone(), self.prefixes, self.range, part.end.as_deref())?;
        self.output.drain(&mut merger, io, self.stop).map(PartEnd::Done)
    }
}

/// Where a part's output goes, and its required form. A flush is one part.
#[derive(Clone, Copy)]
pub(super) struct Destination<'a> {
    pub plan: &'a JobPlan,
    pub part: &'a Part,
    pub tombstones: &'a Tombstones,
    /// The host, and what it was asked to create.
    pub created: &'a Created<'a>,
    /// Who may compress, decompress and build functions.
    pub help: Option<&'a Help>,
}

/// What one part made.
#[derive(Debug, Default)]
pub(super) struct PartOutput {
    pub tables: Tables,
    pub stats: ResolveStats,
    /// Of helpers; the caller adds its own.
    pub cpu_micros: u64,
}

impl JobOutput {
    /// Adds what the next part made.
    pub(super) fn add(&mut self, part: PartOutput) {
        let stats = &mut self.stats;
        stats.input_records += part.stats.input_records;
        stats.output_records += part.stats.output_records;
        stats.dropped.add(part.stats);
        stats.cpu_micros += part.cpu_micros;
        stats.subcompactions += 1;
        self.files.extend(part.tables.0);
        self.properties.extend(part.tables.1);
    }
}

impl Destination<'_> {
    /// Whose job it is.
    pub fn host(&self) -> &dyn JobHost {
        self.created.files.host
    }

    /// Where survivors go. With `io`, tables are written through it, unless the plan has them in the page cache.
    fn outputs<'a>(&'a self, io: Option<&'a BatchIo>, stop: Stop<'a>) -> Outputs<'a> {
        let Self { plan, part, tombstones, created, help } = *self;
        let io = io.filter(|_| !plan.output.page_cache);
        let mut outputs = Outputs::new(&plan.output, &plan.rules, tombstones, part, created, io, stop);
        outputs.set_help(help);
        outputs
    }

    /// Resolves a merge and writes what survives, through `io` if it is given. This is the loop of nearly all jobs. It
    /// is separate from [`Self::drain_sharing`], so that the resolver has one caller for each stream and is inlined
    /// into it.
    pub fn drain(&self, merged: &mut impl MergeStream, io: Option<&BatchIo>, stop: Stop<'_>) -> Result<PartOutput> {
        let mut outputs = self.outputs(io, stop);
        let mut resolver = Resolver::new(merged, &self.plan.rules, self.tombstones, stop)?;
        loop {
            while resolver.next_survivor()? {
                outputs.add(resolver.key(), resolver.value(), resolver.is_new_user_key())?;
            }
            if !resolver.pass_block(|block, census| outputs.pass_block(block, census))? {
                break;
            }
        }
        self.made(resolver.stats(), outputs)
    }

    /// The same if the outputs may keep using files of the inputs.
    fn drain_sharing(&self, merged: &mut impl MergeStream, io: Option<&BatchIo>, stop: Stop<'_>) -> Result<PartOutput> {
        let mut outputs = self.outputs(io, stop);
        let mut resolver = Resolver::new(merged, &self.plan.rules, self.tombstones, stop)?;
        resolver.share()?;
        outputs.share(self.plan);
        loop {
            let more = resolver.next_survivor()?;
            while let Some((user_key, leaves)) = resolver.next_gone(!more) {
                outputs.gone(&user_key, leaves);
            }
            if !more {
                break;
            }
            let (key, new) = (resolver.key(), resolver.is_new_user_key());
            let origin = resolver.origin();
            if let Some(origin) = origin
                && outputs.keep(key, resolver.kept_value_len(), new, origin)?
            {
                continue;
            }
            // If it could have stayed, its table is already chosen.
            outputs.add(key, resolver.value(), new && origin.is_none())?;
        }
        self.made(resolver.stats(), outputs)
    }

    fn made(&self, stats: ResolveStats, outputs: Outputs<'_>) -> Result<PartOutput> {
        Ok(PartOutput { tables: outputs.finish()?, stats, cpu_micros: self.help.map_or(0, Help::micros) })
    }
}

/// This many files of a table share the read memory of one run. Together they supply the merge as one run does, and one
/// read in flight for each of them equals the four of a run.
const LANES_OF_A_RUN: usize = 4;

/// The runs that a ring has memory for if tables consist of several files. A file read from the page cache takes
/// little.
fn runs_of(plan: &JobPlan, part: &Part) -> usize {
    let lanes = lanes(plan, part);
    if plan.cached { lanes } else { lanes.div_ceil(LANES_OF_A_RUN).max(lanes.min(plan.runs.len())) }
}

/// Does a part of a job entry by entry, because not all inputs are block-based tables, or because outputs keep using
/// some of them. If there is a ring, inputs and outputs go through it.
pub(super) fn run_scans(
    output: Destination<'_>,
    prefixes: KeyPrefixes,
    range: Option<(&[u8], &[u8])>,
    stop: Stop<'_>,
) -> Result<PartOutput> {
    let (plan, part, host) = (output.plan, output.part, output.host());
    // Read data must be dropped before the ring.
    let ring = ring(host, RingUse { runs: runs_of(plan, part), cached: plan.cached, bytes: 0 });
    let reads = ring.as_deref().map(|io| RingReads::begin(plan, part, io, host)).transpose()?;
    let run = |run| ScanRun::new(run, plan, part, host, reads.as_ref());
    let runs = plan.runs.iter().map(run).collect::<Result<Vec<_>>>()?;
    let mut merger = Merger::new(runs, plan.rules.cmp.clone(), prefixes, range, part.end.as_deref())?;
    let stats = &host.means().engines.stats;
    let done = match plan.is_sharing() {
        true => output.drain_sharing(&mut merger, ring.as_deref(), stop)?,
        false => output.drain(&mut merger, ring.as_deref(), stop)?,
    };
    kernel::note_scans(host.means());
    stats.count(if ring.is_some() { MergeEngine::Uring } else { MergeEngine::Pread });
    Ok(done)
}

/// What the jobs of a database share.
#[derive(Debug, Default)]
pub struct SharedEngines {
    /// What the engines did.
    pub(crate) stats: EngineStats,
    /// Threads that compress and decompress for jobs.
    pub(crate) helpers: Arc<Helpers>,
    /// Rings of jobs.
    pub(crate) rings: JobRings,
    /// Rings of lookups.
    pub(crate) lookups: LookupRings,
    /// The program and the instances of the engine `kernel`.
    pub(in crate::compaction) kernel: kernel::KernelPool,
}

/// What options ask of the engines: read and checked, but not yet in effect.
pub(crate) struct Prepared(kernel::InUse);

impl SharedEngines {
    /// Reads what the options name, so that an open with something bad fails before it changes anything. The built-in
    /// program becomes the empty path.
    pub(crate) fn read(db: &mut DbOptions) -> Result<Prepared> {
        empty_if_built_in(&mut db.kernel_merge_program);
        kernel::read_named(db).map(Prepared)
    }

    /// Takes what was read for an opened database. The log says if the engine that its options ask for is missing.
    pub(crate) fn open(&self, read: Prepared, db: &DbOptions, log: &InfoLog) -> Result<()> {
        self.kernel.open(read.0, db, &self.stats, log)
    }

    /// Checks what `options`, which are in `changed` already, change about the engines. [`Self::take`] puts it into
    /// effect.
    pub(crate) fn prepare(&self, changed: &mut DbOptions, options: &Pairs, log: &InfoLog) -> Result<Prepared> {
        empty_if_built_in(&mut changed.kernel_merge_program);
        let any = |of: &[&str]| options.iter().any(|(name, _)| of.contains(&name.as_str()));
        self.kernel.prepare(changed, any(&[PROGRAM]), any(&OPTIONS), log).map(Prepared)
    }

    /// Puts what was prepared into effect.
    pub(crate) fn take(&self, prepared: Prepared) {
        self.kernel.take(prepared.0);
    }

    /// Lets the kernel verify the built-in program, where these options ask for the engine `kernel`.
    ///
    /// # Errors
    /// Why it is not available.
    pub(crate) fn probe_kernel(&self, db: &DbOptions) -> std::result::Result<(), String> {
        let opened =
            kernel::read_named(db).and_then(|read| self.kernel.open(read, db, &self.stats, &InfoLog::default()));
        opened.map_err(|e| e.message().to_owned())?;
        self.kernel.describe(db, &self.stats).map(drop)
    }

    /// Calls of the merge program in rings that read and write, and the operations that these calls submitted.
    pub(crate) fn program_calls(&self) -> (u64, u64) {
        self.kernel.ring_calls()
    }

    /// Bytes that merge programs work on, in the whole process.
    pub(crate) fn program_memory_bytes(&self) -> usize {
        self.kernel.memory_bytes()
    }

    /// Which engine is used with these options, and why not the one that they ask for (`rockmill.merge-engine`).
    pub(crate) fn describe(&self, db: &DbOptions) -> String {
        let mut want = String::new();
        match db.merge_engine {
            MergeEngine::Pread => return MergeEngine::Pread.to_string(),
            MergeEngine::Auto | MergeEngine::Uring => {}
            MergeEngine::Kernel => match self.kernel.describe(db, &self.stats) {
                Ok(mut text) => {
                    if let (parts @ 1.., Some(reason)) = self.stats.handed_over() {
                        text += &format!("; job parts handed to another engine: {parts}, the last one for {reason}");
                    }
                    return text;
                }
                Err(reason) => want = format!(", for want of kernel: {reason}"),
            },
        }
        // What a job has met says more than a check now.
        let missing = self.stats.missing(MergeEngine::Uring).or_else(|| {
            let probe = db.fs.batch_probe();
            (!probe.available).then_some(probe.reason)
        });
        match missing {
            None => format!("{}{want}", MergeEngine::Uring),
            Some(reason) => format!("{}, for want of uring: {reason}{want}", MergeEngine::Pread),
        }
    }

    /// Frees rings and instances that were not used for a while.
    pub(crate) fn trim(&self, clock: &dyn Clock) {
        self.rings.trim(clock);
        self.lookups.trim(clock);
        self.kernel.trim(clock);
    }

    /// Ends helper threads and frees jobs' rings. Lookups may continue.
    pub(crate) fn close(&self) {
        self.helpers.close();
        self.rings.close();
    }

    /// Bytes set up for reads and writes in flight, of jobs and of lookups, rings that wait for the next ones included.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.rings.memory_bytes() + self.lookups.memory_bytes()
    }
}
