//! Jobs that another machine does, seen from the store: a job is laid out on a device ([`JobDevice`]), its spec says
//! where, a [`TakenWorker`] has it done, and what they give back is checked as if an enemy had sent it.
//!
//! 1. Inputs lie one after another on the device, each from a block on; outputs have room behind them, one place for
//!    each file number that is set aside. The spec has both as extents.
//! 2. The workers run the job. Whatever they say, the device is fenced after that: from then on the outputs' files are
//!    the store's alone (`compaction_workers.rs`).
//! 3. Each table is opened and read as a whole ([`Table::verify`]), and what the result says of it is compared with
//!    what it is: size, bounds, sequence numbers, times, ids, counts. It must keep to what the job may write: within
//!    the keys and sequence numbers of the inputs, in order, without overlaps.
//! 4. Where anything is wrong, all files are removed, and the caller does the job itself.
//!
//! What cannot be seen here is a worker that resolves wrongly: one that leaves an entry out and counts it as hidden.
//! Workers are trusted with that, as a disk is trusted with what it gives back.

use std::collections::HashMap;
use std::sync::Arc;

use rockmill_format::edit::FileEntry;
use rockmill_format::key::{MAX_SEQUENCE, SequenceNumber};
use rockmill_format::properties::TableProperties;
use rockmill_io::WriteOptions;

use super::file_ranges::FileRanges;
use super::objects::JobRegistry;
use super::plan::is_supported;
use super::result::JobResult;
use super::spec::{Extent, JobSpec, NumberRange};
use super::thread_cpu::ThreadCpu;
use super::unique_id::internal_unique_id;
use super::{JobHost as _, JobOutput, JobStats, LocalHost, user_key_range};
use crate::compaction_filter::TableFileCreationReason;
use crate::compaction_workers::{FencedOutput, JobDevice, RemoteDone, RemoteJob, TakenWorker, whole_blocks};
use crate::error::{Error, Result};
use crate::panics::guarded;
use crate::sync::atomic::Ordering;
use crate::table::{Table, TableSummary};
use crate::version::table_of_files;

/// File numbers that are set aside for a job, at most.
const NUMBERS_MAX: u64 = 4096;
/// Bytes that outputs may have, besides twice those of the inputs: small tables grow by filters and properties.
const ROOM_MIN: u64 = 64 << 20;
/// Seconds that the clocks of two machines may differ.
const CLOCKS_DIFFER_MAX: u64 = 3600;

/// Whether other machines can do a job like this one: a compaction of block-based tables into a level below L0, whose
/// comparator, merge operator and prefix extractor every Rockmill knows by name, and that asks no filter.
pub(crate) fn may_go(spec: &JobSpec) -> bool {
    let inputs = || spec.runs.iter().flat_map(|run| &run.files);
    spec.reason == TableFileCreationReason::Compaction
        && spec.output.level > 0
        && spec.output.format.tph.is_none()
        && spec.keep.is_empty()
        && spec.filter.is_none()
        && inputs().next().is_some()
        && inputs().all(|f| f.entry.pieces.is_empty())
        && JobRegistry::default().objects(spec).is_ok()
}

/// Has a job done elsewhere. Its tables are durable with their names, and not live. Also gives who did it, and what
/// that took; the result is in [`JobOutput`] alone.
///
/// # Errors
/// Whatever kept it from being done, or is wrong with what came back. Then nothing is left of it.
pub(crate) fn run(spec: &JobSpec, host: &LocalHost, worker: &dyn TakenWorker) -> Result<(JobOutput, RemoteDone)> {
    let (clock, cpu) = (Arc::clone(&host.means.clock), ThreadCpu::now());
    let started = clock.monotonic_nanos();
    let (laid_out, device) = lay_out(spec, host)?;
    let encoded = laid_out.encode()?;
    let is_stopped = || [host.cancelled(), &*host.means.shutdown].iter().any(|stop| stop.load(Ordering::Acquire));
    let progress = |bytes| host.progress().bytes.store(bytes, Ordering::Relaxed);
    let job = RemoteJob {
        number: spec.job,
        spec: &encoded,
        input_bytes: spec.input_bytes(),
        device: &device,
        is_stopped: &is_stopped,
        progress: &progress,
    };
    let done = guarded("a compaction elsewhere", || worker.run(&job));
    // From here on nobody but this thread can change them.
    let outputs = device.fence();
    let numbers: Vec<u64> = outputs.iter().map(|output| output.number).collect();
    let accepted = done.and_then(|mut done| {
        let result = std::mem::take(&mut done.result);
        let mut output =
            guarded("checking a compaction", || accept(&laid_out, host, outputs, &result)).map_err(|e| {
                // Or each job would be merged there in vain.
                worker.rejected();
                e.context(format_args!("worker {}", done.worker))
            })?;
        output.stats.wall_micros = clock.monotonic_nanos().saturating_sub(started) / 1000;
        output.stats.cpu_micros = cpu.elapsed_micros();
        Ok((output, done))
    });
    if accepted.is_err() {
        numbers.iter().for_each(|&number| host.remove_output(number));
        host.progress().bytes.store(0, Ordering::Relaxed);
    }
    accepted
}

/// The spec with its extents and file numbers, and the device that they are of.
fn lay_out(spec: &JobSpec, host: &LocalHost) -> Result<(JobSpec, Arc<JobDevice>)> {
    let too_large = || Error::invalid_argument("the job is too large for a device");
    let mut spec = spec.clone();
    let (mut inputs, mut end, mut mode_max) = (Vec::new(), 0u64, None::<u32>);
    for file in spec.runs.iter_mut().flat_map(|run| &mut run.files) {
        let table = host.open_input(file)?;
        let bytes = host.input_bytes(file, table.path(), false)?;
        mode_max = match (mode_max, table.mode()) {
            (Some(so_far), Some(mode)) => Some(so_far & mode),
            (so_far, mode) => so_far.or(mode),
        };
        let length = bytes.size();
        Arc::make_mut(file).extents = vec![Extent { offset: end, length }];
        inputs.push((end, bytes));
        end = end.checked_add(length).and_then(whole_blocks).ok_or_else(too_large)?;
    }
    let input_bytes = spec.input_bytes();
    let room = input_bytes.checked_mul(2).and_then(|twice| whole_blocks(twice.checked_add(ROOM_MIN)?));
    let room = room.ok_or_else(too_large)?;
    let count = (input_bytes / spec.output.file_size_target.max(1)).saturating_mul(2).saturating_add(8);
    let numbers = (0..count.min(NUMBERS_MAX)).map(|_| host.next_number()).collect::<Result<Vec<u64>>>()?;
    let behind = (numbers.len() as u64).checked_mul(room).and_then(|all| all.checked_add(end));
    behind.ok_or_else(too_large)?;
    spec.space = (0..numbers.len() as u64).map(|i| Extent { offset: end + i * room, length: room }).collect();
    spec.numbers = numbers.iter().map(|&first| NumberRange { first, count: 1 }).collect();
    spec.output.mode_max = mode_max.map(|mode| mode | 0o600);
    let (creator, mode_max) = (host.clone(), spec.output.mode_max);
    let create = move |number| {
        let options = WriteOptions { mode_max, ..WriteOptions::default() };
        creator.create_output(number, options, None).map_err(std::io::Error::other)
    };
    let device = JobDevice::new(inputs, end, &numbers, room, room, Box::new(create));
    Ok((spec, Arc::new(device)))
}

/// Makes the tables of a result durable, if they are what it says and what the job may write.
fn accept(spec: &JobSpec, host: &LocalHost, outputs: Vec<FencedOutput>, result: &[u8]) -> Result<JobOutput> {
    let result = JobResult::decode(result)?;
    if result.job != spec.job {
        return Err(Error::corruption(format!("the result of job {}", result.job)));
    }
    let mut made = result.outcome?;
    let mut outputs: HashMap<u64, FencedOutput> = outputs.into_iter().map(|output| (output.number, output)).collect();
    for entry in &made.files {
        let output = outputs.remove(&entry.number);
        let output = output.ok_or_else(|| lie(entry, "was not written"))?;
        output.finish(entry.size).map_err(|e| Error::io(format_args!("table {}", entry.number), &e))?;
    }
    for number in outputs.into_keys() {
        host.remove_output(number); // begun, and given up
    }
    let checks = Checks::new(spec, host)?;
    let mut tables = Vec::with_capacity(made.files.len());
    for (i, entry) in made.files.iter().enumerate() {
        let before = i.checked_sub(1).and_then(|i| made.files.get(i));
        tables.push(checks.table(entry, before)?);
    }
    // What the tables say of themselves, not what was sent of it.
    made.properties = tables.iter().map(|table| table.properties().clone()).collect();
    checks.counts(&mut made)?;
    host.sync_outputs()?;
    for (entry, properties) in made.files.iter().zip(&made.properties) {
        let summary = TableSummary {
            file_size: entry.size,
            smallest: entry.smallest.clone(),
            largest: entry.largest.clone(),
            smallest_seqno: entry.smallest_seqno,
            largest_seqno: entry.largest_seqno,
            properties: properties.clone(),
            tail_size: entry.tail_size,
            ..TableSummary::default()
        };
        host.output_done(entry.number, &host.output_path(entry.number), &[], &Ok(summary));
    }
    Ok(made)
}

fn lie(entry: &FileEntry, what: impl std::fmt::Display) -> Error {
    Error::corruption(format!("table {}, as the result has it, {what}", entry.number))
}

/// What the outputs of a job are checked against.
struct Checks<'a> {
    spec: &'a JobSpec,
    host: &'a LocalHost,
    /// Smallest and largest user key of the inputs.
    keys: (&'a [u8], &'a [u8]),
    /// Largest sequence number of the inputs.
    newest: SequenceNumber,
    /// Entries of the inputs, at least and at most; `None` where tables do not say.
    entries: Option<(u64, u64)>,
    /// Seconds since 1970.
    now: u64,
}

impl<'a> Checks<'a> {
    fn new(spec: &'a JobSpec, host: &'a LocalHost) -> Result<Self> {
        let inputs = || spec.runs.iter().flat_map(|run| &run.files);
        let cmp = &host.means.objects.cmp;
        let keys = user_key_range(cmp, inputs().map(|f| &f.entry));
        let mut entries = Some((0u64, 0u64));
        for file in inputs() {
            let count = host.open_input(file)?.point_entries();
            let sum = entries.zip(count);
            entries = sum.map(|((l, m), c)| (l.saturating_add(*c.start()), m.saturating_add(*c.end())));
        }
        Ok(Self {
            spec,
            host,
            keys: keys.ok_or_else(|| Error::invalid_argument("a job without inputs"))?,
            newest: inputs().map(|f| f.entry.largest_seqno).max().unwrap_or(0),
            entries,
            now: host.means.clock.now_micros() / 1_000_000,
        })
    }

    /// A table that is what the result says of it. `before`: the one before it.
    fn table(&self, entry: &FileEntry, before: Option<&FileEntry>) -> Result<Arc<Table>> {
        let path = self.host.output_path(entry.number);
        let file = self.host.means.fs.open_random(&path, false);
        let file = file.map_err(|e| Error::io(format_args!("cannot open {}", path.display()), &e))?;
        let size = file.size();
        let cmp = &self.host.means.objects.cmp;
        let table = table_of_files(vec![(path, file)], cmp, None)?;
        let (smallest_seqno, largest_seqno) = verify(&table, entry)?;
        let p = table.properties();
        self.check_owner(entry, p)?;
        self.check_times(entry, p)?;
        let (smallest, largest) = table.boundaries()?.ok_or_else(|| lie(entry, "is empty"))?;
        let below = self.spec.older.iter().flatten().flat_map(FileRanges::iter).map(|f| f.size);
        let owner = &self.spec.output.owner;
        let truth = FileEntry {
            number: entry.number,
            size,
            smallest,
            largest,
            smallest_seqno,
            largest_seqno,
            oldest_ancester_time: p.creation_time,
            file_creation_time: p.file_creation_time,
            epoch_number: self.spec.output.epoch_number,
            extra_run: self.spec.output.extra_run,
            path_id: self.spec.output.path_id,
            unique_id: internal_unique_id(&owner.db_id, &owner.db_session_id, entry.number),
            user_defined_timestamps_persisted: true,
            // Estimates, for which bounds are enough.
            tail_size: entry.tail_size.min(size),
            compensated_range_deletion_size: entry
                .compensated_range_deletion_size
                .min(below.fold(0, u64::saturating_add)),
            ..FileEntry::default()
        };
        if *entry != truth {
            return Err(lie(entry, format_args!("is {entry:?}; the table is {truth:?}")));
        }
        let outside = cmp.compare_user(entry.smallest.user_key(), self.keys.0).is_lt()
            || cmp.compare_user(entry.largest.user_key(), self.keys.1).is_gt()
            || entry.largest_seqno > self.newest;
        if outside {
            return Err(lie(entry, "has keys or sequence numbers that no input has"));
        }
        if let Some(before) = before {
            // The end of a range tombstone is not part of its table.
            let order = cmp.compare_user(before.largest.user_key(), entry.smallest.user_key());
            if order.is_gt() || (order.is_eq() && before.largest.sequence() != MAX_SEQUENCE) {
                return Err(lie(entry, "overlaps the one before"));
            }
        }
        Ok(table)
    }

    fn check_owner(&self, entry: &FileEntry, p: &TableProperties) -> Result<()> {
        let (owner, extractor) = (&self.spec.output.owner, &self.spec.output.format.prefix_extractor);
        let texts = [
            (&p.db_id, &owner.db_id),
            (&p.db_session_id, &owner.db_session_id),
            (&p.column_family_name, &owner.cf_name),
            (&p.comparator_name, &self.spec.comparator),
        ];
        let named = |name: &str, is: &str| is == name || (is.is_empty() && matches!(name, "nullptr"));
        let mine = texts.iter().all(|(is, wanted)| is == wanted)
            && named(&p.merge_operator_name, &owner.merge_operator)
            && named(&p.prefix_extractor_name, extractor)
            && p.column_family_id == u64::from(owner.cf_id)
            && p.orig_file_number == entry.number;
        if mine { Ok(()) } else { Err(lie(entry, "belongs to another database or job")) }
    }

    fn check_times(&self, entry: &FileEntry, p: &TableProperties) -> Result<()> {
        let output = &self.spec.output;
        let (written, oldest) = (p.file_creation_time, output.oldest_ancestor_time);
        let is_now = match output.reproducible {
            true => written == oldest,
            false => written.abs_diff(self.now) <= CLOCKS_DIFFER_MAX,
        };
        let is_old = p.creation_time == if oldest == 0 { written } else { oldest };
        match is_now && is_old {
            true => Ok(()),
            false => Err(lie(entry, format_args!("is of {written}, and it is {} here: clocks differ", self.now))),
        }
    }

    /// Compares what was counted with what inputs and outputs have, and bounds what cannot be compared.
    fn counts(&self, made: &mut JobOutput) -> Result<()> {
        let survived = made.properties.iter().map(|p| p.num_entries.saturating_sub(p.num_range_deletions));
        let survived = survived.fold(0, u64::saturating_add);
        let stats = &mut made.stats;
        if stats.output_records != survived {
            let said = stats.output_records;
            return Err(Error::corruption(format!("the result has {said} entries, and its tables {survived}")));
        }
        let read = stats.input_records;
        // An input that is dropped unread is not counted.
        let is_missing = |least| stats.files_covered == 0 && read < least;
        if let Some((least, most)) = self.entries
            && (read > most || is_missing(least))
        {
            return Err(Error::corruption(format!("the result counts {read} entries of inputs, which have {least}")));
        }
        let inputs = self.spec.input_bytes();
        let most = read.saturating_mul(2).max(survived);
        let bounds =
            stats.bytes_covered <= inputs && stats.files_covered <= NUMBERS_MAX && stats.subcompactions <= most;
        if !bounds || stats.dropped.counts().into_iter().any(|n| *n > most) {
            return Err(Error::corruption("the result counts more than there is"));
        }
        let output_bytes = made.files.iter().map(|f| f.size).fold(0, u64::saturating_add);
        *stats = JobStats { input_bytes: inputs - stats.bytes_covered, output_bytes, ..*stats };
        Ok(())
    }
}

/// Verifies a table, and gives the smallest and the largest sequence number in it, range tombstones included.
fn verify(table: &Table, entry: &FileEntry) -> Result<(SequenceNumber, SequenceNumber)> {
    let block_based = table.as_block_based().filter(|_| table.global_seqno().is_none());
    let block_based = block_based.ok_or_else(|| lie(entry, "is of another kind"))?;
    let (mut smallest, mut largest) = (SequenceNumber::MAX, 0);
    let mut note = |seq: SequenceNumber| (smallest, largest) = (smallest.min(seq), largest.max(seq));
    block_based.verify_each(&mut |key| {
        if !is_supported(key.value_type) {
            return Err(lie(entry, format_args!("has an entry of type {:?}", key.value_type)));
        }
        note(key.sequence);
        Ok(())
    })?;
    for (_, _, seq) in table.range_tombstones().iter().flat_map(|list| list.extremes()) {
        note(seq);
    }
    Ok((smallest, largest))
}
