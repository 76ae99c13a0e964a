//! Jobs that another machine does, seen from the store: a job is laid out on a device ([`JobDevice`]), its spec says
//! where, a [`TakenWorker`] does it, and its results are checked as if an enemy had sent them.
//!
//! 1. Inputs lie one after another on the device, each from a block on; outputs have room after them, one place for
//!    each file number that is set aside. The spec has both as extents.
//! 2. The workers run the job. Whatever they say, the device is fenced after that: from then on the outputs' files are
//!    the store's alone (`compaction_workers.rs`).
//! 3. Each table is opened and read ([`TableCheck`]: as a whole, or all but the data and a sample of that), and what
//!    the result says of it is compared with what it is: size, bounds, sequence numbers, times, ids, counts. It must
//!    keep to what the job may write: within the keys and sequence numbers of the inputs, in order, without overlaps.
//! 4. Where anything is wrong, all files are removed, and the caller does the job itself.
//!
//! These checks cannot detect a worker that resolves wrongly, for example one that leaves an entry out and counts it as
//! hidden. Workers are trusted with that, as a disk is trusted to return what was written.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use rockmill_format::ValueType;
use rockmill_format::compression::compression_name;
use rockmill_format::edit::{FileEntry, TablePiece};
use rockmill_format::key::{MAX_SEQUENCE, ParsedInternalKey, SequenceNumber};
use rockmill_format::properties::{INDEX_TYPE, IndexType, TableProperties};
use rockmill_io::{RandomAccessFile, WriteOptions};

use super::file_ranges::FileRanges;
use super::objects::JobRegistry;
use super::output::{PREALLOCATE_MIN, space_for};
use super::pieces::KeptFile;
use super::plan::{JobPlan, is_supported};
use super::result::JobResult;
use super::spec::{Extent, FurtherFile, JobSpec, NumberRange, SpecFile};
use super::thread_cpu::ThreadCpu;
use super::tombstones::Tombstones;
use super::unique_id::internal_unique_id;
use super::{JobHost as _, JobMeans, JobOutput, JobStats, LocalHost, page_cache, user_key_range};
use crate::compaction_filter::TableFileCreationReason;
use crate::compaction_workers::{
    FencedOutput, JobCode, JobDevice, RemoteDone, RemoteJob, TableCheck, TakenWorker, whole_blocks,
};
use crate::error::{Error, Result};
use crate::options::DbOptions;
use crate::pacing::file::Gate;
use crate::pacing::job_device::JobDevicePace;
use crate::panics::guarded;
use crate::rate_limiter::IoPriority;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::table::{BlockBasedTable, BlockSample, KeptPiece, PieceUse, Table, TableSummary, TphTable};
use crate::version::table_of_files;

/// Bytes of an output after which its write-back is begun, where `bytes_per_sync` does not say.
const WRITE_BACK_BYTES: u64 = 4 << 20;

/// The most file numbers that are set aside for a job.
const NUMBERS_MAX: u64 = 4096;
/// Outputs may have this many bytes in addition to twice those of the inputs: small tables grow by filters and
/// properties.
const ROOM_MIN: u64 = 64 << 20;
/// Bytes of an output that are gathered before they are written, at most.
const WRITE_BUFFER_BYTES: usize = 64 << 10;
/// Makes the samples of a job's tables differ.
const SEED_STEP: u64 = 0x9e37_79b9_7f4a_7c15;
/// Seconds that the clocks of two machines may differ.
const CLOCKS_DIFFER_MAX: u64 = 3600;

/// Whether other machines can do a job like this one: a compaction into a level below L0, whose code (comparator, merge
/// operator, prefix extractor, filter) every Rockmill has by these names, or all workers have, as `knows` says.
///
/// # Errors
/// Why not, for the log.
pub(crate) fn may_go(spec: &JobSpec, knows: impl Fn(JobCode<'_>) -> bool) -> std::result::Result<(), String> {
    let reasons = [
        (spec.reason != TableFileCreationReason::Compaction, "it is no compaction"),
        (spec.output.level == 0, "it compacts into L0"),
        (spec.runs.iter().all(|run| run.files.is_empty()), "it has no input"),
    ];
    if let Some((_, why)) = reasons.iter().find(|(is_so, _)| *is_so) {
        return Err((*why).to_owned());
    }
    let own = JobRegistry::default();
    match spec.code().find(|&code| !own.knows(code) && !knows(code)) {
        Some(code) => Err(format!("workers are not known to have {code}")),
        None => Ok(()),
    }
}

/// Whether other machines can read the inputs of a job: damage on the network must not go unnoticed, and what a worker
/// reads has no checksums but those of the tables.
///
/// # Errors
/// Why not, for the log.
pub(crate) fn inputs_may_go(spec: &JobSpec, host: &LocalHost) -> std::result::Result<(), String> {
    for file in spec.runs.iter().flat_map(|run| &run.files) {
        let table = host.open_input(file).map_err(|e| e.to_string())?;
        if !table.has_checksums() {
            return Err(format!("table {} has no checksums", file.number()));
        }
    }
    Ok(())
}

/// Has a job done on another machine. Its tables are durable with their names, and not live. Also returns which machine
/// did it and what that took; the result is only in [`JobOutput`].
///
/// # Errors
/// Whatever kept it from being done, or is wrong with the results. Nothing is left of the job then.
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
    // From here on only this thread can change them.
    let outputs = device.fence();
    let numbers: Vec<u64> = outputs.iter().map(|output| output.number).collect();
    let accepted = done.and_then(|mut done| {
        let result = std::mem::take(&mut done.result);
        let mut output = guarded("checking a compaction", || accept(&laid_out, host, outputs, &result, worker.check()))
            .map_err(|e| {
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
    let mut further = BTreeMap::new();
    let mut lay = |bytes: Arc<dyn RandomAccessFile>| {
        let extent = Extent { offset: end, length: bytes.size() };
        inputs.push((end, bytes));
        end = end.checked_add(extent.length).and_then(whole_blocks).ok_or_else(too_large)?;
        Ok::<_, Error>(extent)
    };
    for file in spec.runs.iter_mut().flat_map(|run| &mut run.files) {
        let table = host.open_input(file)?;
        let size = file.entry.files().map(|f| f.size).fold(0, u64::saturating_add);
        let direct = page_cache::worker_reads_past(&host.means.db, &table, size);
        mode_max = match (mode_max, table.mode()) {
            (Some(so_far), Some(mode)) => Some(so_far & mode),
            (so_far, mode) => so_far.or(mode),
        };
        let own = lay(host.input_bytes(file, table.path(), direct)?)?;
        // Several tables may have the same file.
        for (piece, path) in file.entry.pieces.iter().zip(table.file_paths().into_iter().skip(1)) {
            if let Entry::Vacant(new) = further.entry(piece.number) {
                new.insert(lay(host.input_bytes(file, path, direct)?)?);
            }
        }
        Arc::make_mut(file).extents = vec![own];
    }
    let on_device = |(number, extent)| FurtherFile { number, extents: vec![extent] };
    spec.further = further.into_iter().map(on_device).collect();
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
    let (creator, priority) = (host.clone(), spec.output.io_priority);
    // A job whose inputs are smaller than one table writes less than that.
    let largest = spec.output.file_size_target.min(input_bytes);
    let options = write_options(&host.means.db, largest, spec.output.mode_max);
    let reserved = SpaceToReserve::new(room);
    let create = move |number| {
        let options = WriteOptions { preallocate: reserved.take(options.preallocate), ..options };
        creator.create_output(number, options, None).map_err(std::io::Error::other)
    };
    let device = JobDevice::new(inputs, end, &numbers, room, room, Box::new(create));
    Ok((spec, Arc::new(device.with_pace(pace(&host.means, priority)))))
}

/// What may be reserved for all outputs together: as much as they may have, or a worker that begins many would take the
/// disk from the store.
struct SpaceToReserve(AtomicU64);

impl SpaceToReserve {
    fn new(bytes: u64) -> Self {
        Self(AtomicU64::new(bytes))
    }

    /// So many bytes for one more output; 0 if they are not left.
    fn take(&self, bytes: u64) -> u64 {
        let taken = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes));
        if taken.is_ok() { bytes } else { 0 }
    }
}

/// How outputs are written that have about `largest` bytes at most.
fn write_options(db: &DbOptions, largest: u64, mode_max: Option<u32>) -> WriteOptions {
    WriteOptions {
        mode_max,
        // Otherwise they stay in the page cache until they are checked.
        direct: db.use_direct_io_for_flush_and_compaction,
        // A worker writes large pieces: none is copied into a buffer before, unless the device wants it aligned.
        buffer_size: if db.use_direct_io_for_flush_and_compaction { 0 } else { WRITE_BUFFER_BYTES },
        // They are synced one after the other when the worker is done, so the device begins before.
        bytes_per_sync: if db.bytes_per_sync == 0 { WRITE_BACK_BYTES } else { db.bytes_per_sync },
        strict_bytes_per_sync: db.strict_bytes_per_sync,
        // As for tables that are written here: the file system spends less on each page.
        preallocate: if db.allow_fallocate && largest >= PREALLOCATE_MIN { space_for(largest) } else { 0 },
    }
}

/// What holds a worker up: all that holds up a job that is done here.
fn pace(means: &JobMeans, priority: IoPriority) -> JobDevicePace {
    let share = means.device_share.clone().map(Gate::DeviceShare);
    // A rate limiter has priorities of its own.
    let gives_way = means.db.rate_limiter.is_none();
    let way = gives_way.then(|| Gate::FlushPriority(Arc::clone(&means.flush_priority), Arc::clone(&means.shutdown)));
    JobDevicePace {
        read_limit: means.limit(IoPriority::Low).filter(|l| l.limiter.mode().limits_reads()),
        write_limit: means.limit(priority).filter(|l| l.limiter.mode().limits_writes()),
        read_gates: share.clone().into_iter().collect(),
        write_gates: share.into_iter().chain(way).collect(),
        clock: Arc::clone(&means.clock),
        held: Mutex::default(),
    }
}

/// Makes the tables of a result durable, if they are what it says and what the job may write.
fn accept(
    spec: &JobSpec,
    host: &LocalHost,
    outputs: Vec<FencedOutput>,
    result: &[u8],
    check: TableCheck,
) -> Result<JobOutput> {
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
    let checks = Checks::new(spec, host, check)?;
    let mut tables = Vec::with_capacity(made.files.len());
    for (i, entry) in made.files.iter().enumerate() {
        let before = i.checked_sub(1).and_then(|i| made.files.get(i));
        tables.push(checks.table(entry, before)?);
    }
    // The tables' own properties, not what was sent.
    made.properties = tables.iter().map(|table| table.properties().clone()).collect();
    checks.counts(&mut made)?;
    host.sync_outputs()?;
    for ((entry, properties), table) in made.files.iter().zip(&made.properties).zip(&tables) {
        let summary = TableSummary {
            pieces: table.further_files().to_vec(),
            file_size: entry.size,
            smallest: entry.smallest.clone(),
            largest: entry.largest.clone(),
            smallest_seqno: entry.smallest_seqno,
            largest_seqno: entry.largest_seqno,
            properties: properties.clone(),
            tail_size: entry.tail_size,
        };
        host.output_done(entry.number, &host.output_path(entry.number), &entry.pieces, &Ok(summary));
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
    check: TableCheck,
    /// Smallest and largest user key of the inputs.
    keys: (&'a [u8], &'a [u8]),
    /// Largest sequence number of the inputs.
    newest: SequenceNumber,
    /// Files that outputs may keep using, by number; several if several inputs have one.
    kept: HashMap<u64, Vec<KeptInput>>,
    /// Seconds since 1970.
    now: u64,
}

/// A file of an input that outputs may keep using.
struct KeptInput {
    path: PathBuf,
    piece: KeptPiece,
    path_id: u32,
}

impl<'a> Checks<'a> {
    fn new(spec: &'a JobSpec, host: &'a LocalHost, check: TableCheck) -> Result<Self> {
        let inputs = || spec.runs.iter().flat_map(|run| &run.files);
        let cmp = &host.means.objects.cmp;
        let keys = user_key_range(cmp, inputs().map(|f| &f.entry));
        let mut kept = HashMap::<u64, Vec<KeptInput>>::new();
        for file in inputs() {
            let table = host.open_input(file)?;
            let may = |piece: &KeptPiece| spec.keep.contains(&KeptFile { table: file.number(), file: piece.number });
            let pieces = if spec.keep.is_empty() { Vec::new() } else { table.kept_pieces(file.number()) };
            for ((piece, path), known) in pieces.into_iter().zip(table.file_paths()).zip(file.entry.files()) {
                if may(&piece) {
                    let (number, path, path_id) = (piece.number, path.to_owned(), known.path_id);
                    kept.entry(number).or_default().push(KeptInput { path, piece, path_id });
                }
            }
        }
        Ok(Self {
            spec,
            host,
            check,
            keys: keys.ok_or_else(|| Error::invalid_argument("a job without inputs"))?,
            newest: inputs().map(|f| f.entry.largest_seqno).max().unwrap_or(0),
            kept,
            now: host.means.clock.now_micros() / 1_000_000,
        })
    }

    /// A table that matches its description in the result. `before`: the table before it.
    fn table(&self, entry: &FileEntry, before: Option<&FileEntry>) -> Result<Arc<Table>> {
        let path = self.host.output_path(entry.number);
        let file = self.host.means.fs.open_random(&path, false);
        let file = file.map_err(|e| Error::io(format_args!("cannot open {}", path.display()), &e))?;
        let size = file.size();
        let cmp = &self.host.means.objects.cmp;
        let mut files = vec![(path, file)];
        for piece in &entry.pieces {
            let kept = self.kept.get(&piece.number).and_then(|kept| kept.first());
            let kept =
                kept.ok_or_else(|| lie(entry, format_args!("has the file {}, which it may not", piece.number)))?;
            let file = self.host.means.fs.open_random(&kept.path, false);
            let file = file.map_err(|e| Error::io(format_args!("cannot open {}", kept.path.display()), &e))?;
            files.push((kept.path.clone(), file));
        }
        let table = table_of_files(files, cmp, None)?;
        let pieces = self.pieces(entry, &table)?;
        // The format first: without checksums the rest would say little.
        let (smallest_seqno, largest_seqno) = match (self.spec.output.format.tph, table.as_tph()) {
            (None, None) => {
                let own = table.as_block_based().filter(|_| table.global_seqno().is_none());
                let own = own.ok_or_else(|| lie(entry, "is of another kind"))?;
                self.check_format(entry, own)?;
                verify(&table, own, entry, self.check)?
            }
            (Some(_), Some(tph)) => {
                self.check_format(entry, tph.own_file())?;
                self.verify_tph(tph, entry)?
            }
            _ => return Err(lie(entry, "is of another kind")),
        };
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
            pieces,
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

    /// The further files of a table, as its head lists them: each is one that it may keep, with nothing of it that the
    /// input did not have.
    fn pieces(&self, entry: &FileEntry, table: &Table) -> Result<Vec<TablePiece>> {
        let cmp = &self.host.means.objects.cmp;
        let within = |kept: &KeptPiece, used: &PieceUse| {
            kept.bounds.as_ref().is_none_or(|(first, last)| {
                cmp.compare_user(&used.bounds.0, first).is_ge() && cmp.compare_user(&used.bounds.1, last).is_le()
            })
        };
        let listed = table.further_files().iter().map(|used| {
            let kept = self.kept.get(&used.number).into_iter().flatten();
            let known = kept.filter(|kept| kept.piece.size == used.size && kept.piece.blocks == used.blocks);
            match known.filter(|kept| within(&kept.piece, used)).map(|kept| kept.path_id).next() {
                Some(path_id) => Ok(TablePiece { number: used.number, size: used.size, live: used.live, path_id }),
                None => Err(lie(entry, format_args!("has a part of the file {} that it may not", used.number))),
            }
        });
        listed.collect()
    }

    /// Verifies a TPH table: its own file as a block-based table, and in full all files and the function. Gives the
    /// smallest and the largest sequence number of what counts; of a sample, those that the result says, within what
    /// the inputs have.
    fn verify_tph(&self, table: &TphTable, entry: &FileEntry) -> Result<(SequenceNumber, SequenceNumber)> {
        let own = table.own_file();
        own.verify_layout()?;
        let (mut smallest, mut largest) = (SequenceNumber::MAX, 0);
        let has_others = !entry.pieces.is_empty();
        let mut visit = |key: &ParsedInternalKey<'_>| {
            if has_others && key.value_type == ValueType::Placeholder {
                return Ok(());
            }
            if !is_supported(key.value_type) {
                return Err(lie(entry, format_args!("has an entry of type {:?}", key.value_type)));
            }
            (smallest, largest) = (smallest.min(key.sequence), largest.max(key.sequence));
            Ok(())
        };
        match self.check {
            TableCheck::All => table.verify_each(&mut visit)?,
            TableCheck::Sample { percent, seed } => {
                let seed = seed ^ entry.number.wrapping_mul(SEED_STEP);
                own.verify_sample(BlockSample { percent, seed }, &mut visit)?;
            }
        }
        for (_, _, seq) in table.range_tombstones().iter().flat_map(|list| list.extremes()) {
            (smallest, largest) = (smallest.min(seq), largest.max(seq));
        }
        let said = (entry.smallest_seqno, entry.largest_seqno);
        match self.check {
            // As where there is no entry.
            TableCheck::All if smallest == SequenceNumber::MAX => Ok((0, largest)),
            TableCheck::All => Ok((smallest, largest)),
            TableCheck::Sample { .. } if said.0 <= smallest && largest <= said.1 => Ok(said),
            TableCheck::Sample { .. } => Err(lie(entry, format_args!("has entries {smallest} to {largest}"))),
        }
    }

    /// Checks that a table is written as the spec says: a table of this job that is written here differs in nothing.
    fn check_format(&self, entry: &FileEntry, own: &BlockBasedTable) -> Result<()> {
        let (output, format) = (&self.spec.output, &self.spec.output.format.block_based);
        let (footer, p) = (own.footer(), own.properties());
        let names = [true, false].map(|used| compression_name(format.format_version, output.compression, used));
        let index = if format.two_level_index { IndexType::TwoLevelIndexSearch } else { IndexType::BinarySearch };
        let mut filtering = TableProperties::default();
        filtering.set_filtering(format.whole_key_filtering, !output.format.prefix_extractor.is_empty());
        let restarts = [format.block_restart_interval, format.index_block_restart_interval].map(|n| n as u64);
        let is_as_wanted = [
            ("checksum", footer.checksum == format.checksum),
            ("format_version", footer.format_version == format.format_version),
            ("format_version", p.format_version == u64::from(format.format_version)),
            ("compression", names.contains(&p.compression_name)),
            ("compression", p.compression_options == output.compression_opts.property()),
            ("filter", p.filter_policy_name.is_empty() == (format.bloom_bits_per_key <= 0.0)),
            ("filter", filtering.other.iter().all(|(name, value)| p.other.get(name) == Some(value))),
            ("index type", p.other.get(INDEX_TYPE).is_some_and(|is| **is == (index as u32).to_le_bytes())),
            ("restart interval", [p.data_block_restart_interval, p.index_block_restart_interval] == restarts),
        ];
        match is_as_wanted.iter().find(|(_, is)| !is) {
            Some((what, _)) => Err(lie(entry, format_args!("is of another format: {what}"))),
            None => Ok(()),
        }
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

    /// The least and the greatest possible number of entries of some inputs; `None` if tables do not say.
    fn entries(&self, is_read: impl Fn(&&Arc<SpecFile>) -> bool) -> Result<Option<(u64, u64)>> {
        let mut sum = Some((0u64, 0u64));
        for file in self.spec.runs.iter().flat_map(|run| &run.files).filter(is_read) {
            let count = self.host.open_input(file)?.point_entries();
            sum = sum.zip(count).map(|((l, m), c)| (l.saturating_add(*c.start()), m.saturating_add(*c.end())));
        }
        Ok(sum)
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
        // Inputs that range tombstones of others delete as a whole are not read, and their entries not counted.
        let dead = match stats.files_covered {
            0 => Vec::new(),
            _ => Tombstones::gather(&mut JobPlan::new(self.spec, self.host)?, self.host)?.1,
        };
        let (files, bytes) = (dead.len() as u64, dead.iter().map(|f| f.size()).sum::<u64>());
        if (stats.files_covered, stats.bytes_covered) != (files, bytes) {
            let (said, said_bytes) = (stats.files_covered, stats.bytes_covered);
            let is = format_args!("{files} with {bytes} bytes");
            return Err(Error::corruption(format!(
                "the result counts {said} inputs with {said_bytes} bytes that range tombstones delete, which are {is}"
            )));
        }
        let is_read = |file: &&Arc<SpecFile>| dead.iter().all(|d| d.number() != file.number());
        if let Some((least, most)) = self.entries(is_read)?
            && !(least..=most).contains(&read)
        {
            return Err(Error::corruption(format!("the result counts {read} entries of inputs, which have {least}")));
        }
        let inputs = self.spec.input_bytes();
        let most = read.saturating_mul(2).max(survived);
        if stats.subcompactions > most || stats.dropped.counts().into_iter().any(|n| *n > most) {
            return Err(Error::corruption("the result counts more than there is"));
        }
        let output_bytes = made.files.iter().map(|f| f.size).fold(0, u64::saturating_add);
        *stats = JobStats { input_bytes: inputs.saturating_sub(stats.bytes_covered), output_bytes, ..*stats };
        Ok(())
    }
}

/// Verifies a table, and gives the smallest and the largest sequence number in it, range tombstones included: those of
/// its entries, or, where only some are read, those that its properties say and that the entries keep to.
fn verify(
    table: &Table,
    block_based: &BlockBasedTable,
    entry: &FileEntry,
    check: TableCheck,
) -> Result<(SequenceNumber, SequenceNumber)> {
    block_based.verify_layout()?;
    let (mut smallest, mut largest) = (SequenceNumber::MAX, 0);
    let mut visit = |key: &ParsedInternalKey<'_>| {
        if !is_supported(key.value_type) {
            return Err(lie(entry, format_args!("has an entry of type {:?}", key.value_type)));
        }
        (smallest, largest) = (smallest.min(key.sequence), largest.max(key.sequence));
        Ok(())
    };
    match check {
        TableCheck::All => block_based.verify_each(&mut visit)?,
        TableCheck::Sample { percent, seed } => {
            // Or a block of one number would be looked at in all of a job's tables or in none.
            let seed = seed ^ entry.number.wrapping_mul(SEED_STEP);
            block_based.verify_sample(BlockSample { percent, seed }, &mut visit)?;
        }
    }
    for (_, _, seq) in table.range_tombstones().iter().flat_map(|list| list.extremes()) {
        (smallest, largest) = (smallest.min(seq), largest.max(seq));
    }
    // What the properties say covers range tombstones, too, and is there unless a table has nothing else.
    let p = table.properties();
    let (least, most) = match (p.key_smallest_seqno, p.key_largest_seqno) {
        (Some(least), Some(most)) => (least, most),
        _ if p.num_data_blocks == 0 => return Ok((smallest, largest)),
        _ => return Err(lie(entry, "does not say the sequence numbers of its entries")),
    };
    let is_true = match check {
        TableCheck::All => (least, most) == (smallest, largest),
        TableCheck::Sample { .. } => least <= smallest && largest <= most,
    };
    match is_true {
        true => Ok((least, most)),
        false => {
            let what = format_args!("has entries {smallest} to {largest}, where its properties say {least} to {most}");
            Err(lie(entry, what))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn space_is_reserved_as_for_tables_that_are_written_here() {
        let mut db = DbOptions::default();
        let space = |db: &DbOptions, largest| write_options(db, largest, None).preallocate;
        assert_eq!(space(&db, 64 << 20), space_for(64 << 20));
        assert!(space(&db, 64 << 20) > 64 << 20, "some are a little larger");
        assert_eq!(space(&db, PREALLOCATE_MIN - 1), 0, "it is written at once");
        db.allow_fallocate = false;
        assert_eq!(space(&db, 64 << 20), 0);
    }

    #[test]
    fn no_more_is_reserved_than_a_job_may_write() {
        let reserved = SpaceToReserve::new(100);
        assert_eq!([40, 40, 40, 20, 1].map(|bytes| reserved.take(bytes)), [40, 40, 0, 20, 0]);
    }
}
