//! Building the output: tables, where they end, and their entries in the MANIFEST.
//!
//! Where a table ends (RocksDB's `CompactionOutputs::ShouldStopBefore`), always between two user keys:
//!
//! 1. at its largest size;
//! 2. where a file of the level below begins or ends, if one of three things holds: with what it overlaps there, the
//!    table would be too much for one later compaction; it would step over a file below that it could leave alone; or
//!    it has reached a part of its target size (from 50 % up, more for each boundary already passed);
//! 3. with the priority `kRoundRobin`, at the output level's cursor;
//! 4. in the order by search key, instead of 2, where a subtree ends (`subtrees.rs`).
//!
//! A table's range tombstones are cut to the user keys [its first, the next table's first), and its largest key says
//! that the end is not part of it, so that neighbours never overlap and no tombstone loses coverage.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;

use rockmill_format::edit::{FileEntry, TablePiece};
use rockmill_format::key::{InternalKey, user_key};
use rockmill_format::properties::TableProperties;
use rockmill_io::ring::BatchIo;
use rockmill_io::{WritableFile, WriteOptions};

use super::file_ranges::{FileRange, FileRanges};
use super::plan::{JobPlan, Rules};
use super::spec::{OutputPlan, Part};
use super::subtrees::subtree_of;
use super::tombstones::{Tombstones, for_file};
use super::unique_id::internal_unique_id;
use super::{JobHost, JobMeans, Stop};
use crate::compaction_filter::TableFileCreationReason;
use crate::error::{Error, ErrorKind, Result};
use crate::helpers::Help;
use crate::pacing::file::{Gate, JobFile, Measures};
use crate::range_del::CompactionRangeDel;
use crate::statistics::Histogram;
use crate::sync::Mutex;
use crate::sync::atomic::Ordering;
use crate::table::{
    KeptPiece, Leaves, Origin, PieceUse, SyncingTable, TableBuilder, TableBuilderOptions, TableSummary,
};

mod pass;

/// No space is reserved for a table that is expected to be smaller: there would be no second write to wait for the
/// first.
pub(super) const PREALLOCATE_MIN: u64 = 4 << 20;

/// Largest step in which space for a table is reserved.
const PREALLOCATE_MAX: u64 = 1 << 30;

/// Space to reserve for a table of at most so many bytes: some are larger.
pub(super) fn space_for(largest: u64) -> u64 {
    largest.saturating_add(largest / 10).min(PREALLOCATE_MAX)
}

/// Tables that may wait to be durable while the next is written: syncs overlap the merge, and a failure is noticed
/// before much more is done.
const SYNCING_MAX: usize = 2;

/// What the parts of a job share to make their outputs: the host, and the numbers that the spec sets aside.
pub(super) struct OutputFiles<'a> {
    pub host: &'a dyn JobHost,
    reason: TableFileCreationReason,
    set_aside: Mutex<VecDeque<u64>>,
}

impl<'a> OutputFiles<'a> {
    /// For a job with this reason. The numbers `set_aside` are used in this order, then the host is asked for more.
    pub fn new(host: &'a dyn JobHost, reason: TableFileCreationReason, set_aside: Vec<u64>) -> Self {
        Self { host, reason, set_aside: Mutex::new(set_aside.into()) }
    }
}

/// The files that one part of a job created, so that they can be removed when it fails.
pub(super) struct Created<'a> {
    pub files: &'a OutputFiles<'a>,
    numbers: Mutex<Vec<u64>>,
    /// Numbers of removed files, which are used again.
    given_back: Mutex<VecDeque<u64>>,
}

impl<'a> Created<'a> {
    pub fn new(files: &'a OutputFiles<'a>) -> Self {
        Self { files, numbers: Mutex::default(), given_back: Mutex::default() }
    }

    /// A number for a new file. It is noted before the file exists, so that the file is removed whatever happens.
    fn next_number(&self) -> Result<u64> {
        let known = self.given_back.lock().pop_front().or_else(|| self.files.set_aside.lock().pop_front());
        let number = known.map_or_else(|| self.files.host.next_number(), Ok)?;
        self.numbers.lock().push(number);
        Ok(number)
    }

    /// Removes the files of a part that failed. What cannot be removed is an orphan that the next open removes.
    pub fn remove(&self) {
        self.numbers.lock().drain(..).for_each(|number| self.files.host.remove_output(number));
    }

    /// True until there is a file.
    pub fn is_empty(&self) -> bool {
        self.numbers.lock().is_empty()
    }

    /// Removes the files of a part that another engine begins again; that engine gets their numbers.
    pub fn give_back(&self) {
        *self.given_back.lock() = self.numbers.lock().iter().copied().collect();
        self.remove();
    }
}

/// The tables of one part of a job.
pub(super) struct Outputs<'a> {
    plan: &'a OutputPlan,
    rules: &'a Rules,
    range_del: CompactionRangeDel,
    part: &'a Part,
    created: &'a Created<'a>,
    /// What tables are written through; the file system's own files without.
    io: Option<&'a BatchIo>,
    /// Who may compress and build functions.
    help: Option<Help>,
    /// Ends what takes long.
    stop: Stop<'a>,
    made: Tables,
    open: Option<Open>,
    /// Tables that are complete but may not be durable, oldest first.
    syncing: VecDeque<Syncing>,
    grandparents: Grandparents<'a>,
    /// The subtree that the last user key was in.
    subtree: u32,
    /// Where a table must still end ([`OutputPlan::split_key`]).
    split_key: Option<&'a [u8]>,
    /// The files of the inputs that tables may keep using.
    pieces: Arc<[KeptPiece]>,
    /// The tables of these, and which of them the last entry was in.
    bases: Bases<'a>,
}

/// The tables whose files outputs keep using. An output stays within one of them if it can, so that it has the files of
/// only one.
#[derive(Default)]
struct Bases<'a> {
    /// First user key and bytes of each, by key.
    tables: &'a [(Vec<u8>, u64)],
    /// The first one after the current key.
    next: usize,
}

impl Bases<'_> {
    /// Moves on to a user key; true where that steps over the beginning of a table.
    fn advance(&mut self, key: &[u8], rules: &Rules) -> bool {
        let before = self.next;
        while self.tables.get(self.next).is_some_and(|(first, _)| rules.cmp.compare_user(key, first).is_ge()) {
            self.next += 1;
        }
        self.next != before
    }

    /// Size at which an output ends inside of the current table: a table that has become too large is split into two
    /// halves.
    fn size_max(&self, target: u64) -> u64 {
        let size = self.next.checked_sub(1).and_then(|i| self.tables.get(i)).map_or(0, |(_, size)| *size);
        if size > target.saturating_add(target / 2) { (size / 2).max(target) } else { target.saturating_mul(2) }
    }
}

/// Tables in key order, and what each says of itself.
pub(super) type Tables = (Vec<FileEntry>, Vec<TableProperties>);

/// A table that waits to be durable.
struct Syncing {
    number: u64,
    path: PathBuf,
    pieces: Vec<TablePiece>,
    summary: TableSummary,
    file: SyncingTable,
}

/// The table being written.
struct Open {
    builder: TableBuilder,
    number: u64,
    path: PathBuf,
    /// User key from which its tombstones hold; `None` from the beginning.
    lower: Option<Vec<u8>>,
}

impl<'a> Outputs<'a> {
    pub fn new(
        plan: &'a OutputPlan,
        rules: &'a Rules,
        tombstones: &Tombstones,
        part: &'a Part,
        created: &'a Created<'a>,
        io: Option<&'a BatchIo>,
        stop: Stop<'a>,
    ) -> Self {
        let grandparents = Grandparents::new(&plan.grandparents, rules);
        let range_del = tombstones.cursor(rules);
        Self {
            plan,
            rules,
            range_del,
            part,
            created,
            io,
            help: None,
            stop,
            made: Tables::default(),
            open: None,
            syncing: VecDeque::new(),
            grandparents,
            subtree: 0,
            split_key: plan.split_key.as_ref().map(InternalKey::as_bytes),
            pieces: Arc::new([]),
            bases: Bases::default(),
        }
    }

    /// Lets tables keep using files of the inputs.
    pub fn share(&mut self, plan: &'a JobPlan) {
        self.pieces = Arc::clone(&plan.pieces);
        if self.plan.subtree_bits == 0 {
            self.bases.tables = &plan.bases;
        }
    }

    /// Lets helpers compress and build functions.
    pub fn set_help(&mut self, help: Option<&Help>) {
        self.help = help.cloned();
    }

    /// Adds a surviving entry. `new_user_key`: it is the first of its user key.
    #[inline]
    pub fn add(&mut self, ikey: &[u8], value: &[u8], new_user_key: bool) -> Result<()> {
        self.table_for(ikey, new_user_key)?.add(ikey, value)
    }

    /// Adds a surviving entry, the only one of its user key, that stays where it is. False if its table, which is open
    /// now, cannot refer to it there: then it must be added.
    pub fn keep(&mut self, ikey: &[u8], value_len: usize, new_user_key: bool, origin: Origin) -> Result<bool> {
        self.table_for(ikey, new_user_key)?.keep(ikey, value_len, origin)
    }

    /// Notes that a user key after the last survivor is deleted, and the entries that it leaves in files that tables
    /// keep using.
    pub fn gone(&mut self, user_key: &[u8], leaves: Leaves) {
        // No lookup before a table's first entry reads its files.
        let Some(open) = &mut self.open else { return };
        match leaves {
            Leaves::Nothing => {}
            Leaves::Entries => open.builder.gone(user_key, None),
            Leaves::Placeholder(piece) => open.builder.gone(user_key, Some(piece)),
        }
    }

    /// The table for the next entry; starts one if none is open.
    // Inlined into the loop of a compaction, although those that share files call it as well.
    #[inline(always)]
    fn table_for(&mut self, ikey: &[u8], new_user_key: bool) -> Result<&mut TableBuilder> {
        if new_user_key && self.plan.level > 0 && self.ends_before(ikey) {
            self.close(Some(user_key(ikey)))?;
            self.grandparents.restart(user_key(ikey));
        }
        let open = match &mut self.open {
            Some(open) => open,
            none => {
                let lower =
                    if self.made.0.is_empty() { self.part.begin.clone() } else { Some(user_key(ikey).to_vec()) };
                let open = open_table(self.plan, self.rules, self.created, self.io, lower, &self.pieces)?;
                let open = none.insert(open);
                open.builder.set_help(self.help.as_ref());
                open
            }
        };
        Ok(&mut open.builder)
    }

    /// Ends the last table and returns all of them.
    pub fn finish(mut self) -> Result<Tables> {
        if self.open.is_none() && self.made.0.is_empty() && self.has_tombstones()? {
            let lower = self.part.begin.clone();
            self.open = Some(open_table(self.plan, self.rules, self.created, self.io, lower, &self.pieces)?);
        }
        self.close(None)?;
        self.settle(0)?;
        Ok(std::mem::take(&mut self.made))
    }

    fn host(&self) -> &'a dyn JobHost {
        self.created.files.host
    }

    fn has_tombstones(&self) -> Result<bool> {
        let mut any = false;
        let (lower, upper) = (self.part.begin.as_deref(), self.part.end.as_deref());
        for_file(&self.range_del, lower, upper, self.rules, |_, _, _| {
            any = true;
            Ok(())
        })?;
        Ok(any)
    }

    #[inline(always)]
    fn ends_before(&mut self, ikey: &[u8]) -> bool {
        let mut crossed = self.grandparents.advance(user_key(ikey));
        // It was passed before there was a table, so the table begins after it.
        let mut split = self.splits_at(ikey);
        if split {
            self.split_key = None;
        }
        if self.plan.subtree_bits > 0 {
            let subtree = subtree_of(user_key(ikey), self.plan.subtree_bits);
            split |= std::mem::replace(&mut self.subtree, subtree) != subtree;
        }
        let sharing = !self.bases.tables.is_empty();
        crossed.begins_base = sharing && self.bases.advance(user_key(ikey), self.rules);
        let Some(open) = &self.open else { return false };
        if split {
            return true;
        }
        // No smaller one ends here: see `Bases::size_max`.
        let (at_boundary, size_max) = match sharing {
            true => (crossed.begins_base, self.plan.file_size_target),
            false => (crossed.boundaries > 0, self.plan.file_size_max),
        };
        let most = open.builder.file_size_most();
        if !at_boundary && most < size_max {
            return false;
        }
        // While other threads compress blocks, the size is determined only when it matters: a larger table never ends
        // later.
        let least = open.builder.file_size_estimate();
        if !self.ends_at_size(most, crossed) {
            return false;
        }
        if least == most || self.ends_at_size(least, crossed) {
            return true;
        }
        let size = self.open.as_mut().map_or(most, |open| open.builder.file_size_settled());
        self.ends_at_size(size, crossed)
    }

    /// True if an entry is the first one at or after the key at which a table must end.
    #[inline]
    fn splits_at(&self, ikey: &[u8]) -> bool {
        self.split_key.is_some_and(|at| self.rules.cmp.compare(ikey, at).is_ge())
    }

    #[inline]
    fn ends_at_size(&self, size: u64, crossed: Crossed) -> bool {
        if !self.bases.tables.is_empty() {
            let target = self.plan.file_size_target;
            return (crossed.begins_base && size >= target / 4) || size >= self.bases.size_max(target);
        }
        size >= self.plan.file_size_max || (crossed.boundaries > 0 && self.ends_at_boundary(size, crossed))
    }

    /// Decides at a boundary of a file below.
    fn ends_at_boundary(&self, size: u64, crossed: Crossed) -> bool {
        let (plan, below) = (self.plan, &self.grandparents);
        if below.overlapped.saturating_add(size) > plan.grandparent_overlap_max {
            return true;
        }
        // A whole file below is between the last entry and this one: keep it out of later compactions.
        let skippable = if below.in_gap { 2 } else { 3 };
        if crossed.boundaries >= skippable && crossed.bytes > plan.file_size_target / 8 {
            return true;
        }
        let percent = 50 + (below.boundaries * 5).min(40);
        size >= plan.file_size_target.div_ceil(100).saturating_mul(percent)
    }

    /// Ends the current table. `next`: the first user key of the next one.
    fn close(&mut self, next: Option<&[u8]>) -> Result<()> {
        let Some(mut open) = self.open.take() else { return Ok(()) };
        let mut dead_below = 0;
        if !self.range_del.is_empty() {
            let upper = next.or(self.part.end.as_deref());
            let (builder, rules) = (&mut open.builder, self.rules);
            for_file(&self.range_del, open.lower.as_deref(), upper, rules, |begin, end, seq| {
                dead_below = bytes_below(begin, end, rules).saturating_add(dead_below);
                builder.add_range_tombstone(begin, end, seq)
            })?;
        }
        let Open { builder, number, path, .. } = open;
        let stop = self.stop;
        let (summary, file) = match builder.finish_without_waiting(&|| stop.iter().any(|s| s.load(Ordering::Acquire))) {
            Ok(done) => done,
            Err(e) => {
                let failed = Err(e.context(path.display()));
                self.host().output_done(number, &path, &[], &failed);
                return failed.map(drop);
            }
        };
        let mut entry = file_entry(self.plan, number, &summary);
        entry.compensated_range_deletion_size = dead_below;
        let pieces = entry.pieces.clone();
        self.made.0.push(entry);
        self.made.1.push(summary.properties.clone());
        self.syncing.push_back(Syncing { number, path, pieces, summary, file });
        self.settle(SYNCING_MAX)
    }

    /// Makes waiting tables durable, until at most `left` of them wait.
    fn settle(&mut self, left: usize) -> Result<()> {
        while let Some(first) = self.syncing.front_mut() {
            let synced = first.file.is_synced();
            if matches!(synced, Ok(false)) && self.syncing.len() <= left {
                break;
            }
            let Some(Syncing { number, path, pieces, summary, file }) = self.syncing.pop_front() else { break };
            let done = synced.and_then(|_| file.wait()).map(|()| summary).map_err(|e| e.context(path.display()));
            self.host().output_done(number, &path, &pieces, &done);
            done?;
        }
        Ok(())
    }
}

impl Drop for Outputs<'_> {
    /// Outputs that are not durable yet do not count: the job failed.
    fn drop(&mut self) {
        let host = self.host();
        for Syncing { number, path, .. } in self.syncing.drain(..) {
            let failed = Err(Error::new(ErrorKind::Aborted, "the job failed before the table was durable"));
            host.output_done(number, &path, &[], &failed);
        }
    }
}

/// Bytes of the files below the output that a tombstone covers completely, and which it will free.
fn bytes_below(begin: &[u8], end: &[u8], rules: &Rules) -> u64 {
    let cmp = &rules.cmp;
    let under =
        |f: &FileRange<'_>| cmp.compare_user(f.smallest, begin).is_ge() && cmp.compare_user(f.largest, end).is_lt();
    rules.below.iter().flatten().flat_map(FileRanges::iter).filter(under).map(|f| f.size).fold(0, u64::saturating_add)
}

/// What a step over keys crossed in the level below.
#[derive(Clone, Copy, Default)]
struct Crossed {
    /// Begins and ends of files.
    boundaries: u64,
    /// Bytes of files entered.
    bytes: u64,
    /// The beginning of a table whose files outputs keep using.
    begins_base: bool,
}

/// Position in the level below the output.
struct Grandparents<'a> {
    files: &'a FileRanges,
    rules: &'a Rules,
    /// The file at or after the current key.
    at: usize,
    /// The current key is before that file.
    in_gap: bool,
    started: bool,
    /// Bytes of files that the current output overlaps.
    overlapped: u64,
    /// Boundaries that the current output passed.
    boundaries: u64,
}

impl<'a> Grandparents<'a> {
    fn new(files: &'a FileRanges, rules: &'a Rules) -> Self {
        Self { files, rules, at: 0, in_gap: true, started: false, overlapped: 0, boundaries: 0 }
    }

    /// Moves on to a key.
    #[inline]
    fn advance(&mut self, key: &[u8]) -> Crossed {
        let mut crossed = Crossed::default();
        let cmp = &self.rules.cmp;
        while let Some(f) = self.files.get(self.at) {
            if self.in_gap {
                if cmp.compare_user(key, f.smallest).is_lt() {
                    break;
                }
                self.in_gap = false;
                crossed.bytes += f.size;
            } else {
                let past = cmp.compare_user(key, f.largest);
                // If several files have the key, stay in the last one.
                let next_has_it =
                    || self.files.get(self.at + 1).is_some_and(|n| cmp.compare_user(key, n.smallest).is_ge());
                if past.is_lt() || (past.is_eq() && !next_has_it()) {
                    break;
                }
                self.in_gap = true;
                self.at += 1;
            }
            crossed.boundaries += 1;
        }
        if !self.started {
            self.started = true;
            self.overlapped = self.overlapped_at(key);
            return Crossed::default();
        }
        self.overlapped += crossed.bytes;
        self.boundaries += crossed.boundaries;
        crossed
    }

    /// A new output begins at `key`.
    fn restart(&mut self, key: &[u8]) {
        self.boundaries = 0;
        self.overlapped = self.overlapped_at(key);
    }

    /// Bytes of the files that hold `key`.
    fn overlapped_at(&self, key: &[u8]) -> u64 {
        if self.in_gap {
            return 0;
        }
        let holds = |f: &FileRange<'_>| self.rules.cmp.compare_user(key, f.largest).is_le();
        let up_to_here = (0..self.files.len().min(self.at + 1)).rev().filter_map(|i| self.files.get(i));
        up_to_here.take_while(holds).map(|f| f.size).sum()
    }
}

/// Begins a table.
fn open_table(
    plan: &OutputPlan,
    rules: &Rules,
    created: &Created<'_>,
    io: Option<&BatchIo>,
    lower: Option<Vec<u8>>,
    pieces: &Arc<[KeptPiece]>,
) -> Result<Open> {
    let OutputFiles { host, reason, .. } = *created.files;
    let means = host.means();
    let number = created.next_number()?;
    let path = host.output_path(number);
    let largest = match plan.file_size_max {
        _ if !means.db.allow_fallocate => 0,
        u64::MAX if plan.bytes_expected < PREALLOCATE_MIN => 0,
        u64::MAX => plan.bytes_expected,
        max => max,
    };
    let preallocate = space_for(largest);
    let limit = means.limit(plan.io_priority).filter(|l| l.limiter.mode().limits_writes());
    let buffer_size = means.db.writable_file_max_buffer_size;
    let chunk = limit.as_ref().map(|l| l.chunk(buffer_size));
    let options = WriteOptions {
        mode_max: plan.mode_max,
        // Through the page cache, a thread of the kernel would do a ring's writes one after another, which costs more
        // than plain calls; so plain calls are used there.
        direct: !plan.page_cache && (io.is_some() || means.db.use_direct_io_for_flush_and_compaction),
        buffer_size: chunk.unwrap_or(buffer_size),
        bytes_per_sync: means.db.bytes_per_sync,
        strict_bytes_per_sync: means.db.strict_bytes_per_sync,
        preallocate,
    };
    let file = host.create_output(number, options, io)?;
    // A rate limiter has its own priorities.
    let gives_way = reason == TableFileCreationReason::Compaction && means.db.rate_limiter.is_none();
    let way = gives_way.then(|| Gate::FlushPriority(Arc::clone(&means.flush_priority), Arc::clone(&means.shutdown)));
    let gates = [means.device_share.clone().map(Gate::DeviceShare), way];
    let limit = limit.zip(chunk);
    let (write, sync) = match reason {
        TableFileCreationReason::Flush => (Histogram::FileWriteFlushMicros, Histogram::TableSyncMicros),
        TableFileCreationReason::Recovery => (Histogram::FileWriteDbOpenMicros, Histogram::TableSyncMicros),
        TableFileCreationReason::Compaction => {
            (Histogram::FileWriteCompactionMicros, Histogram::CompactionOutfileSyncMicros)
        }
    };
    let measures = means.db.statistics.as_ref();
    let measures = measures.map(|s| Measures { statistics: Arc::clone(s), write, sync });
    let file: Box<dyn WritableFile> = match limit.is_none() && measures.is_none() && gates.iter().all(Option::is_none) {
        true => file,
        false => Box::new(JobFile::new(file, gates.into_iter().flatten(), limit, measures)),
    };
    let builder = TableBuilder::new(table_options(means, plan, rules, number, path.clone(), pieces), file);
    Ok(Open { builder, number, path, lower })
}

fn table_options(
    means: &JobMeans,
    plan: &OutputPlan,
    rules: &Rules,
    number: u64,
    path: PathBuf,
    pieces: &Arc<[KeptPiece]>,
) -> TableBuilderOptions {
    let now = match plan.reproducible {
        true => plan.oldest_ancestor_time,
        false => means.clock.now_micros() / 1_000_000,
    };
    let owner = &plan.owner;
    let properties = TableProperties {
        column_family_id: u64::from(owner.cf_id),
        column_family_name: owner.cf_name.clone(),
        creation_time: if plan.oldest_ancestor_time == 0 { now } else { plan.oldest_ancestor_time },
        file_creation_time: now,
        orig_file_number: number,
        db_id: owner.db_id.clone(),
        db_session_id: owner.db_session_id.clone(),
        merge_operator_name: owner.merge_operator.clone(),
        ..TableProperties::default()
    };
    TableBuilderOptions {
        cmp: rules.cmp.clone(),
        tph: plan.format.tph,
        pieces: Arc::clone(pieces),
        replaced: Arc::clone(&plan.replaced),
        block_based: plan.format.block_based.clone(),
        compression: plan.compression,
        compression_opts: plan.compression_opts.clone(),
        target_file_size: if plan.file_size_target == u64::MAX { 0 } else { plan.file_size_target },
        prefix_extractor: means.objects.prefix_extractor.clone(),
        properties,
        path,
        statistics: means.db.statistics.clone(),
    }
}

fn file_entry(plan: &OutputPlan, number: u64, summary: &TableSummary) -> FileEntry {
    // A file that a table keeps using stays where it is.
    let path_of = |number| plan.piece_paths.get(&number).copied().unwrap_or(0);
    let piece = |p: &PieceUse| TablePiece { number: p.number, size: p.size, live: p.live, path_id: path_of(p.number) };
    FileEntry {
        number,
        size: summary.file_size,
        smallest: summary.smallest.clone(),
        largest: summary.largest.clone(),
        smallest_seqno: summary.smallest_seqno,
        largest_seqno: summary.largest_seqno,
        oldest_ancester_time: summary.properties.creation_time,
        file_creation_time: summary.properties.file_creation_time,
        epoch_number: plan.epoch_number,
        extra_run: plan.extra_run,
        path_id: plan.path_id,
        pieces: summary.pieces.iter().map(piece).collect(),
        unique_id: internal_unique_id(&plan.owner.db_id, &plan.owner.db_session_id, number),
        tail_size: summary.tail_size,
        user_defined_timestamps_persisted: true,
        ..FileEntry::default()
    }
}
