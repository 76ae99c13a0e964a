//! The time from one open of the database to the next.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};

use rockmill::{
    BottommostLevelCompaction, CfOptions, ColumnFamily, CompactOptions, CompactionStyle, Db, DbRawIterator, ErrorKind,
    FlushOptions, Options, ReadOptions, Snapshot, TableKind, UniversalCompactOptions, WriteBatch, WriteOptions,
};

use super::{Done, Failure, Run, Span, Trouble, Verdict};
use crate::contents::Difference;
use crate::history::{Bottom, How, Key, Step, Update, Writer};
use crate::kinds::{Kind, Slot, family_name, key_bytes};
use crate::model::Family;
use crate::place::TestDir;

/// Updates in a batch of a concurrent writer.
pub(crate) const TOGETHER: usize = 3;

fn options_of(how: How) -> WriteOptions {
    let mut options = WriteOptions::default();
    options.set_sync(how.sync);
    options.disable_wal(how.disable_wal);
    options.set_no_slowdown(how.no_slowdown);
    options.set_low_pri(how.low_pri);
    options
}

/// Writes; if the write is refused because it would have to wait, retries with waiting.
fn write_at_last(db: &Db, batch: &WriteBatch, mut options: WriteOptions) -> rockmill::Result<()> {
    match db.write_opt(batch, &options) {
        Err(e) if options.no_slowdown && e.kind() == ErrorKind::Incomplete => {
            options.set_no_slowdown(false);
            db.write_opt(batch, &options)
        }
        done => done,
    }
}

/// True if a strategy may be refused: FIFO compaction, which has one level, excludes both options; these exclude each
/// other; and settings of universal compaction have no meaning in a classic strategy.
fn may_refuse_strategy(now: &CfOptions, name: &str, value: &str) -> bool {
    let fifo = now.compaction_style == CompactionStyle::Fifo;
    let chosen = now.compaction_options_universal != UniversalCompactOptions::default();
    match name {
        "compaction_downforce" => value == "true" && (fifo || now.compaction_classic),
        "compaction_classic" => value == "true" && (fifo || now.compaction_downforce || chosen),
        "compaction_style" => now.compaction_classic && chosen,
        _ => false,
    }
}

/// A snapshot of a history.
pub(super) struct Held<'db> {
    /// Every other snapshot has no handle: only its options hold it.
    pub handle: Option<Snapshot<'db>>,
    pub options: ReadOptions,
}

impl<'db> Held<'db> {
    fn new(id: u8, db: &'db Db) -> Self {
        let handle = db.snapshot();
        let mut options = ReadOptions::default();
        options.set_snapshot(&handle);
        Self { handle: id.is_multiple_of(2).then_some(handle), options }
    }
}

/// An open database, and what lives as long.
pub(super) struct Session<'r, 'a, 'db> {
    pub run: &'r mut Run<'a>,
    pub db: &'db Db,
    pub snapshots: BTreeMap<u8, Held<'db>>,
    pub iterators: BTreeMap<u8, (Kind, DbRawIterator<'db>)>,
    /// A secondary instance, with the births of the column families that it follows.
    pub secondary: Option<(Db, BTreeMap<Slot, usize>)>,
    /// The sequence number of the mark.
    pub marked: u64,
    /// Deletions of files are off.
    kept: bool,
}

impl<'r, 'a, 'db> Session<'r, 'a, 'db> {
    pub fn new(run: &'r mut Run<'a>, db: &'db Db) -> Self {
        Self {
            run,
            db,
            snapshots: BTreeMap::new(),
            iterators: BTreeMap::new(),
            secondary: None,
            marked: 0,
            kept: false,
        }
    }

    pub fn place(&self) -> &TestDir {
        &self.run.place
    }

    /// The options of the configuration that is open, as it was opened.
    pub fn options(&self) -> Options {
        self.run.options()
    }

    /// The column family of a slot, which exists according to the model.
    pub fn family(&self, slot: Slot) -> Result<(Arc<Family>, ColumnFamily), Trouble> {
        let family = self.run.model.state.get(&slot).cloned();
        let family = family.ok_or_else(|| Trouble::Test(format!("the model has no column family {slot}")))?;
        let name = family_name(slot, family.kind);
        let handle = self.db.cf_handle(&name);
        let handle = handle.ok_or_else(|| Difference::new(format!("column family {name}"), "is missing"))?;
        Ok((family, handle))
    }

    pub fn handle(&self, slot: Slot) -> Result<ColumnFamily, Trouble> {
        self.family(slot).map(|(_, handle)| handle)
    }

    /// Runs steps up to the next reopen; returns its index, or the number of steps.
    pub fn run(mut self, steps: &[Step], mut at: usize) -> Result<usize, Failure> {
        while at < steps.len() && !matches!(steps[at], Step::Reopen(_)) {
            let admitted = self.run.model.admit(&steps[at]);
            let Some(step) = admitted else {
                self.run.model.pass();
                self.end(at, None, 0);
                at += 1;
                continue;
            };
            self.run.observer.before(at, &step);
            match self.step(&step) {
                Ok(seen) => {
                    self.run.model.apply(&step);
                    self.end(at, Some(&step), seen);
                }
                Err(trouble) => {
                    let failure = self.run.failure(at, &step.to_string(), trouble);
                    match self.run.observer.failed(&failure, Some(self.db)) {
                        Verdict::Stop => return Err(failure),
                        Verdict::Again => {
                            self.run.passed_over = true;
                            continue;
                        }
                        Verdict::Took => {
                            self.run.passed_over = true;
                            self.run.model.apply(&step);
                            self.end(at, Some(&step), 0);
                        }
                        Verdict::Pass => {
                            self.run.passed_over = true;
                            self.run.model.pass();
                            self.end(at, None, 0);
                        }
                    }
                }
            }
            at += 1;
        }
        for (id, snapshot) in &self.snapshots {
            while let Err(trouble) = self.check_snapshot(*id, snapshot) {
                let failure = self.run.failure(at, &format!("check @{id} at the close"), trouble);
                self.run.passed_over = true;
                match self.run.observer.failed(&failure, Some(self.db)) {
                    Verdict::Stop => return Err(failure),
                    Verdict::Pass | Verdict::Took => break,
                    Verdict::Again => {}
                }
            }
        }
        if let Some(error) = self.db.background_error() {
            let failure = self.run.failure(at, "close", Trouble::Failed(error));
            if self.run.observer.failed(&failure, Some(self.db)) == Verdict::Stop {
                return Err(failure);
            }
            self.run.passed_over = true;
        }
        Ok(at)
    }

    fn end(&mut self, at: usize, what: Option<&Step>, seen: u64) {
        self.run.seen.push(seen);
        let durable = what.is_some_and(|step| self.makes_durable(step));
        self.run.observer.after(&Done { step: at, what, durable, model: &self.run.model });
    }

    /// True if a power cut after this step loses nothing written before it.
    fn makes_durable(&self, step: &Step) -> bool {
        let unlogged = self.run.model.unlogged;
        match step {
            Step::Write(how, _) => how.sync && !unlogged,
            Step::FlushWal(sync) => *sync && !unlogged,
            Step::Flush(slots, wait) => slots.is_empty() && *wait,
            Step::Checkpoint(flush) => *flush,
            _ => false,
        }
    }

    /// Runs one valid step; returns a hash of its results.
    fn step(&mut self, step: &Step) -> Result<u64, Trouble> {
        match step {
            Step::Write(how, updates) => self.write(*how, updates)?,
            Step::Together(writers) => self.write_together(writers)?,
            Step::Get(slot, key, view) => return self.get(*slot, *key, *view),
            Step::MultiGet(view, keys) => return self.multi_get(*view, keys),
            Step::Walk(slot, view, bounds, moves) => return self.walk(*slot, *view, bounds, moves),
            Step::Prefix(slot, key) => self.prefix(*slot, *key)?,
            Step::Check(view) => return self.check(*view),
            Step::Snapshot(id) => drop(self.snapshots.insert(*id, Held::new(*id, self.db))),
            Step::Release(id) => {
                if let Some(snapshot) = self.snapshots.remove(id) {
                    self.check_snapshot(*id, &snapshot)?;
                }
            }
            Step::Iterator(id, slot, bounds) => self.hold(*id, *slot, bounds)?,
            Step::Move(id, moves) => return self.move_held(*id, moves),
            Step::Close(id) => drop(self.iterators.remove(id)),
            Step::Flush(slots, wait) => self.flush(slots, *wait)?,
            Step::Compact(slot, from, to, bottom, exclusive) => {
                self.compact(*slot, *from, *to, *bottom, *exclusive)?;
            }
            Step::Refit(slot) => self.refit(*slot)?,
            Step::Wait => self.db.wait_for_background_work()?,
            Step::SetOptions(slot, name, value) => self.set_options(*slot, name, value)?,
            Step::SetDbOptions(name, value) => self.db.set_db_options(&[(name, value)])?,
            Step::Ingest(moved, files) => self.ingest(*moved, files)?,
            Step::Copy(from, to, moved) => self.copy(*from, *to, *moved)?,
            Step::Checkpoint(flush) => self.checkpoint(*flush)?,
            Step::Backup(flush) => self.backup(*flush)?,
            Step::Secondary => self.secondary()?,
            Step::Create(slot, kind) => {
                let options = kind.options(&self.options());
                self.place().create_family(self.db, &family_name(*slot, *kind), &options)?;
            }
            Step::Drop(slot) => {
                let name = self.handle(*slot)?.name().to_owned();
                self.db.drop_cf(&name)?;
            }
            Step::FlushWal(sync) => self.db.flush_wal(*sync)?,
            Step::Mark => self.marked = self.db.latest_sequence_number(),
            Step::Updates => self.updates()?,
            Step::DeleteFiles(slot, from, to) => self.delete_files(*slot, *from, *to)?,
            Step::KeepFiles(on) => self.keep_files(*on)?,
            Step::Inspect(slot) => self.inspect(*slot)?,
            // The model never admits the last ones here.
            Step::Reopen(_) | Step::Behind(_) | Step::SamePrefix(..) | Step::Wrong(_) | Step::Age => {}
        }
        Ok(0)
    }

    fn write(&self, how: How, updates: &[Update]) -> Result<(), Trouble> {
        let mut options = options_of(how);
        loop {
            let done =
                if how.alone { self.write_alone(&options, updates) } else { self.write_batch(&options, updates) };
            match done {
                // It would have had to wait; retries with waiting.
                Err(Trouble::Failed(e)) if options.no_slowdown && e.kind() == ErrorKind::Incomplete => {
                    options.no_slowdown = false;
                }
                done => return done,
            }
        }
    }

    /// Several threads at once, each with its own keys.
    fn write_together(&mut self, writers: &[Writer]) -> Result<(), Trouble> {
        let mut all = Vec::new();
        for Writer { how, updates } in writers {
            let batches = updates.chunks(TOGETHER).map(|some| self.batch(some));
            all.push((options_of(*how), batches.collect::<Result<Vec<WriteBatch>, Trouble>>()?));
        }
        let (db, clock, order) = (self.db, self.run.observer.clock(), AtomicUsize::new(0));
        let all_there = Barrier::new(all.len());
        let write = |options: WriteOptions, batch: &WriteBatch| -> rockmill::Result<Span> {
            let begun = (clock(), order.fetch_add(1, Ordering::SeqCst));
            write_at_last(db, batch, options)?;
            let ended = (clock(), order.fetch_add(1, Ordering::SeqCst));
            Ok(Span { at: (begun.0, ended.0), order: (begun.1, ended.1) })
        };
        let done: Vec<_> = std::thread::scope(|scope| {
            let (write, all_there) = (&write, &all_there);
            let begin = |(options, batches): (WriteOptions, Vec<WriteBatch>)| {
                scope.spawn(move || {
                    all_there.wait();
                    batches.iter().map(|batch| write(options, batch)).collect::<rockmill::Result<Vec<_>>>()
                })
            };
            let threads: Vec<_> = all.into_iter().map(begin).collect();
            threads.into_iter().map(|t| t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
        });
        let batches = done.into_iter().collect::<rockmill::Result<Vec<_>>>()?;
        self.run.observer.wrote_together(writers, batches);
        Ok(())
    }

    fn write_batch(&self, options: &WriteOptions, updates: &[Update]) -> Result<(), Trouble> {
        Ok(self.db.write_opt(&self.batch(updates)?, options)?)
    }

    fn batch(&self, updates: &[Update]) -> Result<WriteBatch, Trouble> {
        let mut batch = WriteBatch::new();
        for update in updates {
            match update {
                Update::Put(slot, key, value) => {
                    let (family, cf) = self.family(*slot)?;
                    batch.put_cf(&cf, key_bytes(*key), family.kind.value_bytes(*value));
                }
                Update::Merge(slot, key, value) => {
                    let (family, cf) = self.family(*slot)?;
                    batch.merge_cf(&cf, key_bytes(*key), family.kind.value_bytes(*value));
                }
                Update::Delete(slot, key) => batch.delete_cf(&self.handle(*slot)?, key_bytes(*key)),
                Update::SingleDelete(slot, key) => batch.single_delete_cf(&self.handle(*slot)?, key_bytes(*key)),
                Update::DeleteRange(slot, from, to) => {
                    let (family, cf) = self.family(*slot)?;
                    let (from, to) = Family::ordered(family.kind, *from, *to);
                    batch.delete_range_cf(&cf, from, to);
                }
                Update::LogData(seed) => batch.put_log_data(seed.to_le_bytes()),
            }
        }
        Ok(batch)
    }

    /// With the calls for single updates, if they exist with these options.
    fn write_alone(&self, options: &WriteOptions, updates: &[Update]) -> Result<(), Trouble> {
        let plain = !options.sync && !options.disable_wal && !options.no_slowdown && !options.low_pri;
        for update in updates {
            match update {
                Update::Put(slot, key, value) => {
                    let (family, cf) = self.family(*slot)?;
                    self.db.put_cf_opt(&cf, key_bytes(*key), family.kind.value_bytes(*value), options)?;
                }
                Update::Delete(slot, key) => self.db.delete_cf_opt(&self.handle(*slot)?, key_bytes(*key), options)?,
                Update::Merge(slot, key, value) if plain => {
                    let (family, cf) = self.family(*slot)?;
                    self.db.merge_cf(&cf, key_bytes(*key), family.kind.value_bytes(*value))?;
                }
                Update::SingleDelete(slot, key) if plain => {
                    self.db.single_delete_cf(&self.handle(*slot)?, key_bytes(*key))?;
                }
                Update::DeleteRange(slot, from, to) if plain => {
                    let (family, cf) = self.family(*slot)?;
                    let (from, to) = Family::ordered(family.kind, *from, *to);
                    self.db.delete_range_cf(&cf, from, to)?;
                }
                other => self.write_batch(options, std::slice::from_ref(other))?,
            }
        }
        Ok(())
    }

    fn flush(&self, slots: &[Slot], wait: bool) -> Result<(), Trouble> {
        if slots.is_empty() && wait {
            return Ok(self.db.flush_all()?);
        }
        let mut handles = Vec::new();
        for slot in slots {
            handles.push(self.handle(*slot)?);
        }
        if slots.is_empty() {
            for &slot in self.run.model.state.keys() {
                handles.push(self.handle(slot)?);
            }
        }
        let mut options = FlushOptions::default();
        options.set_wait(wait);
        Ok(self.db.flush_cfs_opt(&handles, &options)?)
    }

    fn compact(
        &self,
        slot: Slot,
        from: Option<Key>,
        to: Option<Key>,
        bottom: Bottom,
        exclusive: bool,
    ) -> Result<(), Trouble> {
        let (family, cf) = self.family(slot)?;
        let mut options = CompactOptions::default();
        options.set_bottommost_level_compaction(match bottom {
            Bottom::Filtered => BottommostLevelCompaction::IfHaveCompactionFilter,
            Bottom::Skip => BottommostLevelCompaction::Skip,
            Bottom::Force => BottommostLevelCompaction::Force,
            Bottom::ForceOptimized => BottommostLevelCompaction::ForceOptimized,
        });
        options.set_exclusive_manual_compaction(exclusive);
        let (from, to) = match (from, to) {
            (Some(from), Some(to)) => {
                let (from, to) = Family::ordered(family.kind, from, to);
                (Some(from), Some(to))
            }
            (from, to) => (from.map(key_bytes), to.map(key_bytes)),
        };
        self.db.compact_range_cf_opt(&cf, from.as_deref(), to.as_deref(), &options)?;
        // FIFO compaction leaves tables as they are.
        let fifo = self.db.get_options_cf(&cf).cf.compaction_style == CompactionStyle::Fifo;
        if bottom == Bottom::Force && !fifo {
            self.check_filtered(slot, from.as_deref(), to.as_deref())?;
        }
        Ok(())
    }

    fn refit(&self, slot: Slot) -> Result<(), Trouble> {
        let mut options = CompactOptions::default();
        options.set_change_level(true);
        options.set_exclusive_manual_compaction(true);
        match self.db.compact_range_cf_opt(&self.handle(slot)?, None::<&[u8]>, None::<&[u8]>, &options) {
            // Other compactions may have filled levels between.
            Err(e) if matches!(e.kind(), ErrorKind::NotSupported | ErrorKind::Incomplete) => Ok(()),
            done => Ok(done?),
        }
    }

    fn set_options(&self, slot: Slot, name: &str, value: &str) -> Result<(), Trouble> {
        let (family, cf) = self.family(slot)?;
        let now = self.db.get_options_cf(&cf);
        // Options common to both kinds of tables apply to the kind that is written.
        let tph = now.cf.table_factory == TableKind::Tph;
        let name = if tph && name == "block_based_table_factory" { "tph_table_factory" } else { name };
        match self.db.set_options_cf(&cf, &[(name, value)]) {
            // An open column family keeps its kind.
            Err(e) if !tph && name == "tph_table_factory" => match e.kind() {
                ErrorKind::InvalidArgument => Ok(()),
                _ => Err(e.into()),
            },
            // Keys with the same prefix are not adjacent there.
            Err(e) if name == "prefix_extractor" && family.kind == Kind::Hashed => match e.kind() {
                ErrorKind::InvalidArgument => Ok(()),
                _ => Err(e.into()),
            },
            Err(e) if may_refuse_strategy(&now.cf, name, value) => match e.kind() {
                ErrorKind::InvalidArgument | ErrorKind::NotSupported => Ok(()),
                _ => Err(e.into()),
            },
            done => Ok(done?),
        }
    }

    fn keep_files(&mut self, on: bool) -> Result<(), Trouble> {
        if on != self.kept {
            if on {
                self.db.disable_file_deletions()?;
            } else {
                self.db.enable_file_deletions()?;
            }
            self.kept = on;
        }
        Ok(())
    }

    fn delete_files(&self, slot: Slot, from: Key, to: Key) -> Result<(), Trouble> {
        let (family, cf) = self.family(slot)?;
        let (from, to) = Family::ordered(family.kind, from, to);
        self.db.delete_files_in_ranges_cf(&cf, &[(Some(&from), Some(&to))], false)?;
        // Entries that the deleted tables had hidden reappear within the range; deletes them, too.
        Ok(self.db.delete_range_cf(&cf, from, to)?)
    }

    /// Checks properties and other metadata: they must exist and be plausible.
    fn inspect(&self, slot: Slot) -> Result<(), Trouble> {
        let (_, cf) = self.family(slot)?;
        let wrong = |what: String| Err(Trouble::Wrong(Difference::new("properties", what)));
        for name in ["rocksdb.stats", "rocksdb.levelstats", "rocksdb.sstables", "rocksdb.cfstats"] {
            if self.db.property_value_cf(&cf, name)?.is_none_or(|text| text.is_empty()) {
                return wrong(format!("{name} is empty"));
            }
        }
        for name in ["rocksdb.estimate-num-keys", "rocksdb.cur-size-all-mem-tables", "rocksdb.num-live-versions"] {
            if self.db.property_int_value_cf(&cf, name)?.is_none() {
                return wrong(format!("{name} is missing"));
            }
        }
        let snapshots = self.db.property_int_value("rocksdb.num-snapshots")?;
        // The store's own calls may temporarily have some.
        if snapshots.is_none_or(|n| n < self.snapshots.len() as u64) {
            return wrong(format!("there are {snapshots:?} snapshots, and {} are held", self.snapshots.len()));
        }
        for file in self.db.live_files()? {
            if file.size == 0 {
                return wrong(format!("live file {file:?} is empty"));
            }
        }
        let _ = self.db.get_column_family_metadata_cf(&cf);
        self.place().fs.free_space(&self.place().root)?;
        Ok(())
    }
}
