//! The engine `kernel`: an eBPF program merges (crate `rockmill-kernel`). `no_kernel.rs` stands in for this folder
//! where the Cargo feature `kernel` is off.
//!
//! - [`pool`]: what a database has of it: its program, and instances that run programs;
//! - [`program`]: which program merges, and what of a job's rules it takes over;
//! - [`stream`]: the merge as a stream of entries;
//! - [`order`]: what shows that a user's program orders as it should.

use rockmill_io::ring::BatchIo;
use rockmill_kernel::{Driver, Instance, MergeObject, Pool, Refusal, Unavailable};

use program::Binding;
use stream::KernelStream;

use super::{MergeEngine, PartEnd, PartEngine, PartJob, RingUse, uring};
use crate::compaction::JobMeans;
use crate::compaction::merge::feed::{self, BlockFeed};
use crate::compaction::merge::ring_feed;
use crate::error::Result;
use crate::options::{DbOptions, KernelDriver};

mod order;
mod pool;
mod program;
mod stream;

pub(crate) use pool::KernelPool;
pub(crate) use program::InUse;

/// Reads the program that the options name.
pub(super) fn read_named(db: &DbOptions) -> Result<InUse> {
    Ok(InUse { object: program::named(db)?, driver: db.kernel_driver })
}

/// What is done entry by entry, this engine never does: counts that, where the options ask for it.
pub(super) fn note_scans(means: &JobMeans) {
    if means.db.merge_engine == MergeEngine::Kernel {
        let reason = "TPH tables are merged entry by entry".to_owned();
        means.engines.stats.hand_over(MergeEngine::Kernel, reason, &means.log);
    }
}

pub(super) struct Kernel;

impl PartEngine for Kernel {
    fn kind(&self) -> MergeEngine {
        MergeEngine::Kernel
    }

    fn run(&self, job: &PartJob<'_>) -> Result<PartEnd> {
        let host = job.output.host();
        let means = host.means();
        let pool = &means.engines.kernel;
        let object = pool.object();
        let binding = match object.as_ref().map(|object| Binding::new(object, job.output.plan, means)) {
            Ok(Ok(binding)) => binding,
            Ok(Err(reason)) => return Ok(PartEnd::HandOver(reason)),
            Err(_) => Binding::default(), // `KernelPool::instance` says why
        };
        let Ok(mut instance) = pool.instance(object, &means.db, &means.engines.stats, &means.log) else {
            return Ok(PartEnd::Missing);
        };
        let ring = uring::ring(host, RingUse { runs: job.runs_read(), ..RingUse::default() });
        let io = ring.as_deref();
        // What is read and written goes with the calls that merge.
        let shared = io.filter(|_| instance.driver() == Driver::Loop);
        let before = shared.map(|io| (io, instance.calls(), io.counts().by_program));
        if let Some(Err(e)) = shared.map(|io| instance.attach_to(io)) {
            let line = format!("driver loop does not read and write with the calls that merge: {e}");
            pool.say_once(&means.log, line);
        }
        let (end, mut instance) = match io {
            None => merge(job, feed::feeds(job.map, host, job.output.help), None, instance, &binding),
            Some(io) => match ring_feed::feeds(job.map, io, host, job.output.help) {
                Ok(feeds) => merge(job, feeds, Some(io), instance, &binding),
                Err(e) => (Err(e), instance),
            },
        };
        if let Some((io, calls, operations)) = before.filter(|_| instance.shares_ring()) {
            pool.count_ring_calls(instance.calls() - calls, io.counts().by_program - operations);
        }
        instance.detach();
        pool.keep(instance, &*means.clock);
        end
    }
}

/// Has the instance merge what the feeds give; it comes back, however that ends.
fn merge<F: BlockFeed>(
    job: &PartJob<'_>,
    feeds: Vec<F>,
    io: Option<&BatchIo>,
    instance: Instance,
    binding: &Binding,
) -> (Result<PartEnd>, Instance) {
    let mut stream = match KernelStream::new(job, feeds, instance, binding) {
        Ok(stream) => stream,
        Err(Refusal { reason, instance }) => return (Ok(PartEnd::HandOver(reason)), *instance),
    };
    let made = stream.start().and_then(|()| job.output.drain(&mut stream, io, job.stop));
    let (instance, dropped, hand_over) = stream.end();
    let end = match (made, hand_over) {
        (Ok(mut made), _) => {
            // What the program dropped was read, too.
            made.stats.input_records += dropped.hidden + dropped.obsolete + dropped.combined;
            made.stats.merged += dropped.combined;
            made.stats.hidden += dropped.hidden;
            made.stats.obsolete += dropped.obsolete;
            made.stats.filtered += dropped.filtered;
            Ok(PartEnd::Done(made))
        }
        (Err(_), Some(reason)) => Ok(PartEnd::HandOver(reason)),
        (Err(e), None) => Err(e),
    };
    (end, instance)
}

impl From<KernelDriver> for Driver {
    fn from(driver: KernelDriver) -> Self {
        match driver {
            KernelDriver::Run => Self::Run,
            KernelDriver::Loop => Self::Loop,
        }
    }
}

/// Whether the engine `kernel` is available with this driver. Needs the Cargo feature `kernel`.
///
/// # Errors
/// Why it is not, in one line: a capability or a newer kernel that it needs, or what the verifier has against the
/// program.
pub fn probe_kernel_engine(driver: KernelDriver) -> std::result::Result<(), Unavailable> {
    let pool = Pool::shared();
    let object = MergeObject::built_in();
    let object = object.map_err(|e| Unavailable { reason: e.to_string(), log: String::new() })?;
    let driver = driver.into();
    pool.take(object.program(driver)?, driver, pool::MEMORY_MIN).map(|instance| pool.put(instance, 0, 0))
}
