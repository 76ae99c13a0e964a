//! The only implementation of a front: a write-ahead log makes writes durable, memtables make them findable.
//!
//! | file | what is there |
//! |---|---|
//! | `wal.rs` | the log in use, and those that were left and are not yet durable |
//! | `wal_files.rs` | obsolete logs: deleted, archived, used again; which there are |
//! | `device_space.rs` | what the fast device has left for logs |
//! | `logs.rs` | which logs are live, which may go, and what has to be flushed first |
//! | `family.rs` | the memtables of a column family, and what is asked of their flush |
//! | `view.rs` | memtables as readers, writers and a flush hold them |
//! | `sealed_reads.rs` | how a flush reads values that are in logs |
//! | `index_merge.rs` | full index tables that wait become one |
//! | `memory.rs` | where their memory comes from, and what bounds it |
//! | `recovery.rs` | what logs hold comes back into memtables |
//! | `kept_logs.rs` | logs that stay in use after a recovery are made durable |
//! | `follow.rs` | memtables of those who only read logs |

pub(crate) mod device_space;
pub(crate) mod family;
pub(crate) mod follow;
pub(crate) mod index_merge;
mod kept_logs;
pub(crate) mod logs;
pub(crate) mod memory;
pub(crate) mod recovery;
pub(crate) mod sealed_reads;
pub(crate) mod view;
pub(crate) mod wal;
pub(crate) mod wal_files;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rockmill_format::batch::BatchRep;
use rockmill_format::log::RecoveryMode;
use rockmill_format::{SequenceNumber, filename};
use rockmill_io::{Clock, FileSystem, WriteOptions};

use self::device_space::DeviceSpace;
use self::family::FamilyFront;
use self::logs::{LogRelease, LogTurn};
use self::memory::FrontMemory;
use self::wal::{Follows, Wal, WalKind, WalWriter};
use self::wal_files::{Retention, misses_logs, wal_dir_of};
use crate::error::{Error, Result};
use crate::front::LogFailure;
use crate::info_log::Alarm;
use crate::memtable::log_values::LoggedBatch;
use crate::options::DbOptions;
use crate::sync::MutexGuard;
use crate::sync::atomic::{AtomicBool, Ordering};

/// See the module's text. What column families have of it is in [`FamilyFront`](family::FamilyFront), and the list of
/// logs in [`Logs`](logs::Logs): both are guarded by the database's lock.
pub(crate) struct WalMemtable {
    fs: Arc<dyn FileSystem>,
    clock: Arc<dyn Clock>,
    /// Where the logs are.
    dir: PathBuf,
    /// Records gather in memory until a flush of the log (`manual_wal_flush`).
    gathers: bool,
    /// Logs may be longer than their contents, with zeros behind them.
    extends: bool,
    /// A log that is left says which one comes after it.
    chained: bool,
    retention: Retention,
    wal: Wal,
    memory: FrontMemory,
    device: DeviceSpace,
    /// There were writes without the log since the last flush of everything.
    unlogged: AtomicBool,
}

/// True for the modes in which a log may end in a partial record, whatever follows that.
fn takes_torn_ends(mode: RecoveryMode) -> bool {
    matches!(mode, RecoveryMode::PointInTime | RecoveryMode::SkipAnyCorruptedRecords)
}

/// The log in use, for the write leader.
pub(crate) struct LogLead<'a> {
    wal: &'a Wal,
    current: MutexGuard<'a, Option<WalWriter>>,
}

impl LogLead<'_> {
    fn writer(&mut self) -> Result<&mut WalWriter> {
        self.current.as_mut().ok_or_else(Error::closing)
    }

    /// Appends a batch and, unless records gather in memory, writes it to the kernel. Returns the bytes that it took.
    pub fn append(&mut self, batch: &BatchRep) -> Result<u64> {
        let writer = self.writer()?;
        let bytes = writer.add_batch(batch)?;
        let size = writer.size();
        self.wal.set_size(size);
        Ok(bytes)
    }

    /// The same for what `fill` puts into an empty batch, numbered from `first`.
    pub fn append_group(&mut self, first: SequenceNumber, fill: impl FnOnce(&mut BatchRep)) -> Result<u64> {
        let writer = self.writer()?;
        let bytes = writer.add_group(first, fill)?;
        let size = writer.size();
        self.wal.set_size(size);
        Ok(bytes)
    }

    /// Makes everything so far durable, the logs before this one first.
    pub fn sync(&mut self) -> Result<()> {
        self.wal.sync_left()?;
        self.writer()?.sync()
    }

    /// Where the values of what was appended last are, if they stay in the log.
    pub fn values_of_last(&self) -> Option<LoggedBatch> {
        self.current.as_ref().and_then(WalWriter::values_of_last)
    }

    /// Notes that everything appended so far counts, because its writers are told that they succeeded.
    pub fn acknowledge(&mut self) {
        self.current.iter_mut().for_each(WalWriter::acknowledge);
    }
}

/// The log. Everything here that changes which log is in use, or what is in it, is for the write leader.
impl WalMemtable {
    /// Without a log, as yet. `alarm` is rung when memory should be made ready.
    pub fn new(options: &DbOptions, path: &Path, alarm: &Arc<Alarm>) -> Self {
        Self {
            fs: Arc::clone(&options.fs),
            clock: Arc::clone(&options.clock),
            dir: wal_dir_of(options, path),
            gathers: options.manual_wal_flush,
            extends: options.allow_fallocate && takes_torn_ends(options.wal_recovery_mode),
            chained: misses_logs(options, path),
            retention: Retention::of(options),
            wal: Wal::default(),
            memory: FrontMemory::new(options, alarm),
            device: DeviceSpace::default(),
            unlogged: AtomicBool::new(false),
        }
    }

    /// The log in use; `None` when the database is being closed, or a group that failed has taken it away.
    pub fn lead(&self) -> Option<LogLead<'_>> {
        let current = self.wal.lead();
        current.is_some().then_some(LogLead { wal: &self.wal, current })
    }

    /// Number of the log in use; 0 before there is one.
    pub fn log_number(&self) -> u64 {
        self.wal.number()
    }

    /// Bytes in the log in use.
    pub fn log_size(&self) -> u64 {
        self.wal.size()
    }

    /// The most bytes of logs, of which they have `held`, and whether the device is what bounds them; for logs with
    /// values.
    pub fn log_capacity(&self, held: u64) -> (u64, bool) {
        let given = self.memory.index().map_or(u64::MAX, |index| index.capacity.saturating_sub(self.stuck_bytes()));
        let device = self.device.limit(held);
        (given.min(device), device < given)
    }

    /// Asks how much space the device has. Logs have `held`.
    pub fn look_at_device(&self, held: u64) {
        let free = self.fs.free_space(&self.dir).ok();
        self.device.looked(held, free.map(|free| free.saturating_add(self.archived_bytes())));
    }

    /// What is known of the device's space.
    pub fn device(&self) -> &DeviceSpace {
        &self.device
    }

    /// The last append found no space, nothing of it is left, and it may be tried again.
    pub fn append_was_undone(&self) -> bool {
        self.wal.lead().as_ref().is_some_and(WalWriter::was_undone)
    }

    /// What has to be flushed so that logs can be deleted, if all together are too large: the one in use is longer than
    /// [`Logs::room`](logs::Logs::room).
    pub fn release_logs<'a>(
        &self,
        room: u64,
        families: impl Iterator<Item = (u32, &'a mut FamilyFront)>,
    ) -> Option<LogRelease> {
        // If logs stop writers, the earlier ones may have taken all the room: then nothing is written to this one.
        let size = self.log_size();
        let large = size > room || size == room && self.memory.index().is_some();
        large.then(|| LogRelease::of_oldest(families))
    }

    /// Sets the size beyond which [`Self::log_is_large`] is true.
    pub fn set_log_room(&self, bytes: u64) {
        self.wal.set_room(bytes);
    }

    /// True when it may be that all logs together are too large.
    #[inline]
    pub fn log_is_large(&self) -> bool {
        self.wal.is_large()
    }

    /// Notes that something is written without the log.
    pub fn note_unlogged(&self) {
        self.unlogged.store(true, Ordering::Release);
    }

    /// True when something was written without the log, and not everything was flushed since.
    pub fn has_unlogged(&self) -> bool {
        self.unlogged.load(Ordering::Acquire)
    }

    /// The same for a caller that begins to flush everything, and calls [`Self::note_unlogged`] if that fails.
    pub fn take_unlogged(&self) -> bool {
        self.unlogged.swap(false, Ordering::AcqRel)
    }

    /// The memory that memtables take.
    pub fn memory(&self) -> &FrontMemory {
        &self.memory
    }

    /// A log that is synced is made longer ahead of its contents ([`WalWriter::sync`]). Space that is only reserved, as
    /// RocksDB does, saves extents on ext4 (1 instead of 9 for 60 MB next to another file) and an eighth of the sectors
    /// of synced writes, but no write and no flush of the device: each append makes the file longer, and that is
    /// journaled.
    ///
    /// This is not done if the next opening, maybe RocksDB's, treats anything except a whole record at a log's end as
    /// damage: after a power cut, a torn record would be followed by zeros. Nor is it done if values stay in the log,
    /// whose length counts against the fast device's capacity.
    ///
    /// A failure leaves no file: neither the new one, which no record names, nor the one that was to be reused, which
    /// would not be used for a later log any more.
    fn create_log(&self, live: &DbOptions, number: u64, recycle: Option<u64>) -> Result<WalWriter> {
        let options = WriteOptions {
            bytes_per_sync: live.wal_bytes_per_sync,
            strict_bytes_per_sync: live.strict_bytes_per_sync,
            buffer_size: live.writable_file_max_buffer_size,
            ..WriteOptions::default()
        };
        let kind = WalKind {
            recyclable: self.retention.recycles(),
            gathers: self.gathers,
            extends: self.extends && self.memory.index().is_none(),
        };
        let made = WalWriter::create(&self.fs, &self.dir, number, options, recycle, kind).and_then(|mut log| {
            if self.memory.index().is_some() {
                // An orphan is removed at the next open.
                log.keep_values(&*self.fs).inspect_err(|_| _ = self.fs.remove(&self.log_path(number)))?;
            }
            Ok(log)
        });
        // If the creation failed, whatever has the new file's name is not removed: it may be a device, which belongs to
        // somebody else.
        made.inspect_err(|_| _ = recycle.map(|old| self.fs.remove(&self.log_path(old))))
    }

    /// The first log of an opening. It continues where recovered ones end, if some are kept.
    pub fn open_log(&self, live: &DbOptions, number: u64, follows: Option<Follows>) -> Result<()> {
        let mut wal = self.create_log(live, number, None)?;
        if let Some(follows) = follows {
            wal.follow_recovered(follows);
        }
        self.wal.begin(&mut self.wal.lead(), wal);
        Ok(())
    }

    /// Begins a log unless the present one is empty. `next`: the first sequence number that no group has. `live`: the
    /// options as they are now. `number` gives the new one's.
    pub fn begin_log(
        &self,
        next: SequenceNumber,
        live: &DbOptions,
        number: impl FnOnce() -> u64,
    ) -> std::result::Result<LogTurn, LogFailure> {
        let mut current = self.wal.lead();
        if let Some(w) = current.as_mut() {
            // The switch leads to tables, which may have sequence numbers that no log has.
            let marked = w.mark_end(next);
            if marked.is_ok() && w.is_unused() {
                return Ok(LogTurn::Stays(w.number));
            }
            // Records gathered in memory must reach the file before the next log has any.
            let written = marked.and_then(|()| w.flush());
            written.map_err(|error| LogFailure { what: "a write to the WAL", error, changed: true })?;
        }
        let number = number();
        let fresh = self.create_log(live, number, self.wal.take_for_reuse());
        let mut fresh = fresh.map_err(|error| LogFailure { what: "the creation of a WAL", error, changed: false })?;
        if let Some(before) = current.as_mut() {
            let named = if self.chained { before.precede(number) } else { Ok(()) };
            // A full device has no space for that record. Nothing of it is left then, and the log goes without.
            let named = named.or_else(|e| if before.was_undone() { Ok(()) } else { Err(e) });
            if let Err(error) = named.and_then(|()| before.sync_cut()) {
                // The record may still be in the file, and the next opening looks for the log that it names. So that
                // log stays, but empty: closing it cuts off old contents of a reused file.
                let _ = fresh.close();
                return Err(LogFailure { what: "a write to the WAL", error, changed: true });
            }
            fresh.follow(before);
        }
        let left = self.wal.begin(&mut current, fresh);
        let left_bytes = left.as_ref().map(WalWriter::size);
        if let Some(old) = left {
            self.wal.leave(old);
        }
        Ok(LogTurn::Begins { number, left_bytes })
    }

    /// Leaves a log whose end is unknown and begins another. The old one, without records that were not acknowledged,
    /// stays until everything is in tables. A failure changes nothing, so that it can be tried again.
    pub fn abandon_log(&self, live: &DbOptions, number: impl FnOnce() -> u64) -> Result<LogTurn> {
        let mut current = self.wal.lead();
        if let Some(w) = &*current
            && w.is_unused()
        {
            // It is from an earlier try, or from a switch just before a left log could not be synced.
            self.wal.abandon_left();
            return Ok(LogTurn::Stays(w.number));
        }
        let number = number();
        let fresh = self.create_log(live, number, None)?;
        // The old one is cut before the new one is in use.
        if let Some(old) = &*current
            && let Err(e) = self.cut(old)
        {
            drop(fresh);
            let _ = self.fs.remove(&self.log_path(number)); // an orphan is removed at the next open
            return Err(e);
        }
        self.wal.abandon_left();
        let old = self.wal.begin(&mut current, fresh);
        Ok(LogTurn::Begins { number, left_bytes: old.map(|w| w.good()) })
    }

    /// Cuts a log back to what was acknowledged. A record of a write that failed must not come back, neither in a
    /// recovery nor for readers of the archive.
    fn cut(&self, wal: &WalWriter) -> Result<()> {
        let (path, size) = (self.log_path(wal.number), wal.good());
        // Gathered records may never have reached the file.
        let there = self.fs.file_size(&path);
        let there = there.map_err(|e| Error::io(format_args!("cannot look at {}", path.display()), &e))?;
        if there > size {
            let cut = self.fs.truncate(&path, size);
            cut.map_err(|e| Error::io(format_args!("cannot cut {}", path.display()), &e))?;
        }
        Ok(())
    }

    /// The log after its first `size` bytes does not count after all: that part is cut off, and nothing more is written
    /// to the log. Returns the length that counts, and whether the file was cut; `None` if the log was taken away
    /// already.
    pub fn take_back(&self, size: u64) -> Option<(u64, Result<()>)> {
        let mut current = self.wal.lead();
        let mut old = current.take()?;
        old.take_back(size);
        let cut = old.flush().and_then(|()| self.cut(&old));
        let size = old.good();
        drop((old, current));
        self.wal.set_size(size);
        Some((size, cut))
    }

    /// Nothing may be written after what the log may contain now.
    pub fn fail_log(&self) {
        self.wal.lead().iter_mut().for_each(WalWriter::set_failed);
    }

    /// Writes gathered records to the kernel, so that they survive the process; with `sync`, makes everything so far
    /// durable. With `begin`, a log without records first gets the record that says which log it follows.
    pub fn flush_log(&self, sync: bool, begin: bool) -> Result<()> {
        let Some(mut log) = self.lead() else { return Err(Error::closing()) };
        let writer = log.writer()?;
        let begun = if begin { writer.begin_records() } else { Ok(()) };
        self.wal.set_size(writer.size());
        begun?;
        match sync {
            true => log.sync()?,
            false => writer.flush()?,
        }
        if begin {
            log.acknowledge();
        }
        Ok(())
    }

    /// Writes gathered records to the kernel. Returns the number of the log in use and its length without records that
    /// do not count; `None` without a log.
    pub fn flush_in_use(&self) -> Result<Option<(u64, u64)>> {
        match self.wal.lead().as_mut() {
            Some(w) => w.flush().map(|()| Some((w.number, w.good()))),
            None => Ok(None),
        }
    }

    /// Makes the logs before the one in use durable. Any thread may.
    pub fn sync_left(&self) -> Result<()> {
        self.wal.sync_left()
    }

    /// Closes the log in use and those left, and writes gathered records. Not durable without a sync before.
    pub fn close(&self) -> Result<()> {
        let closed = self.wal.lead().take().map_or(Ok(()), |mut wal| wal.close());
        self.wal.close_left().and(closed)
    }

    /// Where the logs are.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where a log is while it is not archived.
    pub fn log_path(&self, number: u64) -> PathBuf {
        self.dir.join(filename::wal(number))
    }
}

#[cfg(test)]
mod tests {
    use rockmill_format::batch::BatchRecord;
    use rockmill_io::{MemFileSystem, OpKind};

    use super::*;
    use crate::info_log::InfoLog;

    /// A front with a file that may be used again, the obsolete log 1, and records in log 2. `chained`: as on a fast
    /// path, whose logs say which comes next; there no file is used again, since opening sees to that.
    fn with_obsolete_log(fs: &MemFileSystem, chained: bool) -> (WalMemtable, DbOptions) {
        let mut options = DbOptions { fs: Arc::new(fs.clone()), recycle_log_file_num: 1, ..DbOptions::default() };
        if chained {
            (options.fast_path, options.fast_capacity) = (PathBuf::from("/fast"), 1 << 20);
        }
        let front = WalMemtable::new(&options, Path::new("/db"), InfoLog::default().alarm());
        fs.create_dir(front.dir(), true).expect("a directory");
        front.open_log(&options, 1, None).expect("a log");
        for number in [2, 3] {
            let mut batch = BatchRep::default();
            batch.push(BatchRecord::Put { cf: 0, key: b"key", value: &[b'v'; 5000] });
            batch.set_sequence(number);
            let mut lead = front.lead().expect("a log");
            lead.append(&batch).expect("an append");
            lead.acknowledge();
            drop(lead);
            if number == 2 {
                front.begin_log(number, &options, || number).expect("a log");
                front.retire_logs(&[1], || true);
            }
        }
        (front, options)
    }

    /// Names and lengths of the logs that there are.
    fn lengths(fs: &MemFileSystem, front: &WalMemtable) -> Vec<(String, u64)> {
        let mut names = fs.list_dir(front.dir()).expect("a list");
        names.sort();
        names.into_iter().map(|n| (n.clone(), fs.file_size(&front.dir().join(n)).expect("a length"))).collect()
    }

    fn fail(fs: &MemFileSystem, kind: OpKind, name: &'static str) {
        let hit = move |op: &rockmill_io::Op| op.kind == kind && op.path.ends_with(name);
        fs.set_fault(Box::new(move |op| hit(op).then(|| std::io::Error::from_raw_os_error(5))));
    }

    /// It must be there, since the record that names it may be in the file of the log before. Its space is not lost.
    #[test]
    fn a_log_that_could_not_be_named_is_left_empty() {
        let fs = MemFileSystem::new();
        let (front, options) = with_obsolete_log(&fs, true);
        assert!(lengths(&fs, &front).iter().all(|(_, bytes)| *bytes > 5000), "{:?}", lengths(&fs, &front));
        fail(&fs, OpKind::Write, "000002.log");
        let failed = front.begin_log(4, &options, || 3).expect_err("a failed write");
        assert_eq!(failed.what, "a write to the WAL");
        fs.clear_fault();
        let left = lengths(&fs, &front);
        assert_eq!((left[1].0.as_str(), left[1].1, left.len()), ("000003.log", 0, 2), "{left:?}");
        assert!(left[0].0 == "000002.log" && left[0].1 > 5000);
        assert_eq!(front.log_number(), 2);
    }

    /// Nothing of an append that finds no space stays in the file, and a full device has no space for the record that
    /// names the next log: then the log is left without one, and its length is durable.
    #[test]
    fn an_append_without_space_is_undone_and_a_log_is_left_all_the_same() {
        let fs = MemFileSystem::new();
        let (front, options) = with_obsolete_log(&fs, true);
        let (path, next) = (front.log_path(2), front.log_path(3));
        let size = fs.file_size(&path).expect("a length");
        let mut batch = BatchRep::default();
        batch.push(BatchRecord::Put { cf: 0, key: b"key", value: &[b'w'; 40_000] });
        batch.set_sequence(4);
        let append = || front.lead().expect("a log").append(&batch);
        for free in [0, 9, 35_000] {
            fs.set_free_space_in(front.dir(), Some(free)).expect("a directory");
            assert!(append().expect_err("no space").is_no_space());
            assert!(front.append_was_undone(), "{free}");
            assert_eq!((fs.file_size(&path).expect("a length"), front.log_size()), (size, size), "{free}");
        }
        fs.set_free_space_in(front.dir(), Some(9)).expect("a directory");
        assert!(matches!(front.begin_log(4, &options, || 3), Ok(LogTurn::Begins { number: 3, .. })));
        assert_eq!(fs.file_size(&path).expect("a length"), size);
        fs.sync_dir(Path::new("/")).expect("a sync");
        let cut = fs.crash_image(rockmill_io::CrashMode::SyncedOnly);
        assert_eq!(cut.file_size(&path).expect("a length"), size);
        fs.set_free_space_in(front.dir(), None).expect("a directory");
        append().expect("there is space");
        assert!(!front.append_was_undone() && fs.file_size(&next).expect("a length") > 40_000);
        // Not after another failure, and not where the log has no values.
        fail(&fs, OpKind::Write, "000003.log");
        assert!(append().is_err() && !front.append_was_undone());
        fs.clear_fault();
        assert!(append().is_err() && !front.append_was_undone(), "the file has failed");
        let fs = MemFileSystem::new();
        let (front, _) = with_obsolete_log(&fs, false);
        fs.set_free_space_in(front.dir(), Some(9)).expect("a directory");
        assert!(front.lead().expect("a log").append(&batch).is_err() && !front.append_was_undone());
    }

    /// Whatever fails in the creation of a log, neither it nor the file that it was to be made of takes space.
    #[test]
    fn a_log_that_could_not_be_made_leaves_nothing() {
        let cases = [(OpKind::Reuse, "000001.log"), (OpKind::SyncDir, "db"), (OpKind::SyncDir, "fast")];
        for (kind, name) in cases.into_iter().chain([(OpKind::OpenRandom, "000003.log")]) {
            for recycled in [true, false] {
                let fs = MemFileSystem::new();
                let (front, options) = with_obsolete_log(&fs, name == "fast" || kind == OpKind::OpenRandom);
                if !recycled {
                    let obsolete = front.wal.take_for_reuse().expect("an obsolete log");
                    fs.remove(&front.log_path(obsolete)).expect("a removal");
                }
                let kind = if kind == OpKind::Reuse && !recycled { OpKind::Create } else { kind };
                fail(&fs, kind, if kind == OpKind::Create { "000003.log" } else { name });
                let failed = front.begin_log(4, &options, || 3).expect_err("a failed creation");
                assert_eq!(failed.what, "the creation of a WAL", "{kind:?}");
                fs.clear_fault();
                let left = lengths(&fs, &front);
                assert!(left.len() == 1 && left[0].0 == "000002.log", "{kind:?}, recycled: {recycled}: {left:?}");
                // The next try is as the first.
                assert!(
                    matches!(front.begin_log(4, &options, || 4), Ok(LogTurn::Begins { number: 4, .. })),
                    "{kind:?}"
                );
            }
        }
    }
}
