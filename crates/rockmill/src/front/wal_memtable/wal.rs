//! Writing the write-ahead log (WAL).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rockmill_format::SequenceNumber;
use rockmill_format::batch::{self, BatchRecord, BatchRep};
use rockmill_format::filename;
use rockmill_format::log::place::RecordPlace;
use rockmill_format::log::{BLOCK_SIZE, LogEncoder};
use rockmill_io::error::{is_not_plain, is_out_of_space};
use rockmill_io::{Ahead, FileSystem, WritableFile, WriteOptions};

use crate::error::{Error, Result};
use crate::memtable::log_values::{LogFile, LoggedBatch};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard};

/// A WAL file that is being written.
#[derive(Debug)]
pub(crate) struct WalWriter {
    file: Box<dyn WritableFile>,
    encoder: LogEncoder,
    path: PathBuf,
    pub number: u64,
    /// Encoded bytes of the record that is being written. A field, so that its memory is used again.
    buffer: Vec<u8>,
    /// The batches of a group as one batch. A field, so that its memory is used again.
    merged: Option<BatchRep>,
    /// True while something in the file is not durable.
    unsynced: bool,
    /// Keep records in the file's buffer until `flush` (the option `manual_wal_flush`).
    gathers: bool,
    /// The file may be reused for a later WAL, so its records have the long headers.
    recyclable: bool,
    /// How the file is currently made longer than its contents, from the first sync on; `None` if it never is.
    ahead: Option<Ahead>,
    /// The durable length, and how many bytes recent syncs made durable, on average.
    synced: (u64, u64),
    /// A call on the file failed, so nothing more may be written to it.
    failed: bool,
    /// The last append found no space, and nothing of it is left: it may be tried again.
    undone: bool,
    /// Something was cut off since the last sync.
    cut: bool,
    /// Length up to the end of the last acknowledged record, in bytes.
    good: u64,
    /// The sequence number after the last update in this WAL.
    end: Option<SequenceNumber>,
    /// Which WAL this one follows; written before its first record.
    follows: Option<Follows>,
    /// The file to read values from, if values stay in the log.
    values: Option<Arc<LogFile>>,
    /// Where the last record begins.
    last_record: u64,
}

/// How a WAL is written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WalKind {
    /// With the long headers of files that may be reused.
    pub recyclable: bool,
    /// Records are kept in the file's buffer until `flush`.
    pub gathers: bool,
    /// The file may be longer than its contents; the rest is zeros.
    pub extends: bool,
}

/// How a synced log is made longer than its contents. This depends on how many bytes one sync makes durable.
///
/// A sync that makes a file longer, or that writes to a block for the first time, also waits for the file system's
/// journal. Measured on ext4 and a virtual NVMe disk on 26 November 2026: time of a synced append in us (median, 99th
/// percentile), and what it wrote to the device:
///
/// | bytes | as it is | space allocated, 1 MiB | zeros, 64 KiB |
/// |---|---|---|---|
/// | 1,100 | 193, 381; 9.3 KB | 116, 224; 6.4 KB | 128, 344; 6.5 KB |
/// | 3,500 | 224, 375; 11.7 KB | 170, 261; 11.1 KB | 135, 351; 11.3 KB |
/// | 12,000 | 265, 460; 20 KB | 212, 278; 20 KB | 126, 395; 28 KB |
/// | 110,000 | 312, 415; 118 KB | 299, 414; 118 KB | 175, 532; 202 KB |
///
/// (The machine was quieter for the second column; the medians of the first were 175, 171, 202 and 312 in the same
/// minutes.) More zeros at once made the 99th percentile worse: 448 us with 128 KiB for 12,000 bytes.
fn ahead_of(bytes_per_sync: u64) -> Ahead {
    match bytes_per_sync {
        ..=ZEROS_MAX => Ahead::Zeros(64 << 10),
        _ => Ahead::Allocated(1 << 20),
    }
}

/// After this many bytes without a sync, a log is no longer made longer than its contents, until the next sync.
const UNSYNCED_MAX: u64 = 1 << 20;

/// With more bytes than this for each sync, zeros are no longer cheap: they would add too much to what the device
/// writes.
const ZEROS_MAX: u64 = 16 << 10;

/// The first record of a WAL that follows another one: a write batch without updates, whose log data names the WAL
/// before and the sequence number at which that one ends.
///
/// A power cut may destroy the unsynced end of a WAL and leave a later WAL whole. If what is left ends between two
/// records, nothing else in the files shows the loss. Gaps in the sequence numbers do not, because writes without a WAL
/// leave gaps as well. With this record, recovery can tell. RocksDB ignores log data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Follows {
    /// Number of the WAL before. In a WAL's last record it is the WAL's own number, which says that later sequence
    /// numbers were used without it ([`WalWriter::mark_end`]).
    pub wal: u64,
    pub end: SequenceNumber,
}

/// Begins the log data of [`Follows`].
const FOLLOWS_MAGIC: &[u8; 16] = b"rockmill.follows";

impl Follows {
    fn record(self) -> BatchRep {
        let mut data = FOLLOWS_MAGIC.to_vec();
        data.extend_from_slice(&self.wal.to_le_bytes());
        data.extend_from_slice(&self.end.to_le_bytes());
        let mut rep = BatchRep::default();
        rep.push(BatchRecord::LogData(&data));
        rep.set_sequence(self.end);
        rep
    }

    /// What a WAL's record says, if it is of this kind.
    pub fn read(batch: &BatchRep) -> Option<Self> {
        if batch.count() != 0 {
            return None;
        }
        let Some(Ok(BatchRecord::LogData(data))) = batch.iter().next() else { return None };
        let (wal, end) = data.strip_prefix(FOLLOWS_MAGIC)?.split_at_checked(8)?;
        Some(Self { wal: u64::from_le_bytes(wal.try_into().ok()?), end: u64::from_le_bytes(end.try_into().ok()?) })
    }
}

/// The last record of a WAL that is followed by another one: a write batch without updates, whose log data names the
/// next WAL.
///
/// The next WAL's name is durable before this record is written, and that file is deleted only when the MANIFEST says
/// that neither WAL is needed. So if it is missing, it was lost. This covers the newest WAL, which no later one names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Precedes(pub u64);

/// Begins the log data of [`Precedes`].
const PRECEDES_MAGIC: &[u8; 17] = b"rockmill.precedes";

impl Precedes {
    /// The record, with the sequence number after the last update.
    fn record(self, end: SequenceNumber) -> BatchRep {
        let mut data = PRECEDES_MAGIC.to_vec();
        data.extend_from_slice(&self.0.to_le_bytes());
        let mut rep = BatchRep::default();
        rep.push(BatchRecord::LogData(&data));
        rep.set_sequence(end);
        rep
    }

    /// What a WAL's record says, if it is of this kind.
    pub fn read(batch: &BatchRep) -> Option<Self> {
        if batch.count() != 0 {
            return None;
        }
        let Some(Ok(BatchRecord::LogData(data))) = batch.iter().next() else { return None };
        Some(Self(u64::from_le_bytes(data.strip_prefix(PRECEDES_MAGIC)?.try_into().ok()?)))
    }
}

/// Opens a log to read values from.
pub(super) fn open_values(fs: &dyn FileSystem, path: &Path, number: u64, recyclable: bool) -> Result<Arc<LogFile>> {
    let file = fs.open_random(path, false);
    let file = file.map_err(|e| Error::io(format_args!("cannot open {}", path.display()), &e))?;
    Ok(Arc::new(LogFile::new(number, path.to_owned(), file, recyclable)))
}

/// Buffers larger than this are freed after use, so that one huge batch does not keep its memory for ever.
const BUFFER_KEEP_BYTES: usize = 1 << 20;

impl WalWriter {
    /// Creates the file and makes its name durable, so that a synced record in it can be found after a power cut.
    pub fn create(
        fs: &Arc<dyn FileSystem>,
        dir: &Path,
        number: u64,
        options: WriteOptions,
        recycle: Option<u64>,
        kind: WalKind,
    ) -> Result<Self> {
        let path = dir.join(filename::wal(number));
        let file = match recycle {
            Some(old) => {
                let old = dir.join(filename::wal(old));
                match fs.reuse(&old, &path, options) {
                    // The file has a second name, under which its contents must stay.
                    Err(e) if is_not_plain(&e) => fs.remove(&old).and_then(|()| fs.create(&path, options)),
                    reused => reused,
                }
            }
            None => fs.create(&path, options),
        };
        let file = file.map_err(|e| Error::io(format_args!("cannot create {}", path.display()), &e))?;
        fs.sync_dir(dir).map_err(|e| {
            let _ = fs.remove(&path); // if this fails, the next open removes it
            Error::io(format_args!("cannot sync {}", dir.display()), &e)
        })?;
        let encoder = LogEncoder::new(number, kind.recyclable, 0);
        let buffer = Vec::new();
        Ok(Self {
            file,
            encoder,
            path,
            number,
            buffer,
            unsynced: false,
            gathers: kind.gathers,
            ahead: kind.extends.then_some(Ahead::No),
            synced: (0, 0),
            recyclable: kind.recyclable,
            merged: None,
            failed: false,
            undone: false,
            cut: false,
            good: 0,
            end: None,
            follows: None,
            values: None,
            last_record: 0,
        })
    }

    /// Opens the file for reading, because values stay in it.
    pub fn keep_values(&mut self, fs: &dyn FileSystem) -> Result<()> {
        self.values = Some(open_values(fs, &self.path, self.number, self.recyclable)?);
        Ok(())
    }

    /// Where the values of the last record are, if they can be read from the file.
    pub fn values_of_last(&self) -> Option<LoggedBatch> {
        let log = Arc::clone(self.values.as_ref().filter(|_| !self.gathers)?);
        let record = RecordPlace { start: self.last_record, recyclable: self.recyclable };
        Some(LoggedBatch { log, record, base: batch::HEADER_LEN as u64 })
    }

    /// Notes that this WAL, which is still empty, begins where `before` ends.
    pub fn follow(&mut self, before: &WalWriter) {
        self.follows = before.end.map(|end| Follows { wal: before.number, end });
    }

    /// Notes that this WAL, which is still empty, begins where a recovered one ends.
    pub fn follow_recovered(&mut self, follows: Follows) {
        self.follows = Some(follows);
    }

    /// Writes which WAL this one follows, if it has no record yet. Sequence numbers that are used without a WAL from
    /// here on come after this record, so what is missing at the end of the WAL before is no loss.
    pub fn begin_records(&mut self) -> Result<()> {
        let Some(follows) = self.follows.take() else { return Ok(()) };
        self.add_batch(&follows.record()).map(drop)
    }

    /// If sequence numbers before `next` were used without this WAL, writes that it ends there: tables with those
    /// numbers are not newer than this WAL. A flush of such tables makes this record durable first.
    ///
    /// Only files that may be reused need this. Old bytes after the last record of such a file look like a hole, and
    /// the next WAL, which would tell the difference, may still be empty after a power cut.
    pub fn mark_end(&mut self, next: SequenceNumber) -> Result<()> {
        let end = self.end.or(self.follows.map(|f| f.end));
        if !self.recyclable || end.is_none_or(|end| end >= next) {
            return Ok(());
        }
        self.add_batch(&Follows { wal: self.number, end: next }.record()).map(drop)?;
        self.acknowledge();
        Ok(())
    }

    /// Writes that the WAL `next`, whose name is durable, comes after this one; only if this one has records.
    pub fn precede(&mut self, next: u64) -> Result<()> {
        let Some(end) = self.end else { return Ok(()) };
        self.add_batch(&Precedes(next).record(end))?;
        self.flush()?;
        self.acknowledge();
        Ok(())
    }

    /// Appends a batch and hands it to the kernel, so that it survives the death of the process; with `gathers` it
    /// stays in the buffer.
    ///
    /// # Errors
    /// The append fails. If values stay in the file and there was no space, nothing of the batch is in the file
    /// afterwards ([`Self::was_undone`]); after other failures nothing more may be written to it.
    pub fn add_batch(&mut self, batch: &BatchRep) -> Result<u64> {
        self.buffer.clear();
        let before = (self.size(), self.end, self.follows, self.last_record);
        self.undone = false;
        if let Some(follows) = self.follows.take() {
            self.encoder.add_record(follows.record().as_bytes(), &mut self.buffer);
        }
        self.last_record = self.file.len() + self.buffer.len() as u64;
        self.encoder.add_record(batch.as_bytes(), &mut self.buffer);
        self.end = Some(batch.sequence() + u64::from(batch.count()));
        self.unsynced = true;
        let n = self.buffer.len() as u64;
        if self.ahead.is_some_and(|how| how != Ahead::No) && self.last_record - self.synced.0 > UNSYNCED_MAX {
            self.stop_looking_ahead();
        }
        let done = if self.gathers { self.file.append(&self.buffer) } else { self.file.append_and_flush(&self.buffer) };
        if self.buffer.capacity() > BUFFER_KEEP_BYTES {
            self.buffer = Vec::new();
        }
        done.map(|()| n).map_err(|e| match is_out_of_space(&e) && self.undo(before) {
            true => self.error("write", &e),
            false => self.failure("write", &e),
        })
    }

    /// Cuts off what a failed append left and forgets it, so that the file can be used as before; false if that cannot
    /// be done. Only if values stay in the file: only then can a flush make space for another try.
    fn undo(&mut self, (size, end, follows, last_record): (u64, Option<SequenceNumber>, Option<Follows>, u64)) -> bool {
        if self.values.is_none() || self.gathers || self.file.undo_append(size).is_err() {
            return false;
        }
        self.encoder = LogEncoder::new(self.number, self.recyclable, (size % BLOCK_SIZE as u64) as usize);
        (self.end, self.follows, self.last_record) = (end, follows, last_record);
        (self.undone, self.cut) = (true, true);
        true
    }

    /// The last append found no space, nothing of it is left, and it may be tried again.
    pub fn was_undone(&self) -> bool {
        self.undone && !self.failed
    }

    /// If something was cut off, makes the length durable: another log is about to begin, and after a power cut a part
    /// of a record must not stand before what that one has.
    pub fn sync_cut(&mut self) -> Result<()> {
        if self.cut { self.sync() } else { Ok(()) }
    }

    /// The same for the batch that `fill` makes, whose first sequence number is `first`.
    pub fn add_group(&mut self, first: SequenceNumber, fill: impl FnOnce(&mut BatchRep)) -> Result<u64> {
        let mut merged = self.merged.take().unwrap_or_default();
        merged.clear();
        fill(&mut merged);
        merged.set_sequence(first);
        let done = self.add_batch(&merged);
        if merged.len_bytes() <= BUFFER_KEEP_BYTES {
            self.merged = Some(merged);
        }
        done
    }

    /// Hands the buffer's contents to the kernel.
    pub fn flush(&mut self) -> Result<()> {
        self.file.flush().map_err(|e| self.failure("write", &e))
    }

    /// Makes everything appended durable.
    pub fn sync(&mut self) -> Result<()> {
        if !self.unsynced {
            return Ok(());
        }
        self.file.sync().map_err(|e| self.failure("sync", &e))?;
        (self.unsynced, self.cut) = (false, false);
        self.look_ahead();
        Ok(())
    }

    /// Called when so much was appended since the last sync that there may not be another one.
    fn stop_looking_ahead(&mut self) {
        self.file.extend_ahead(Ahead::No);
        self.ahead = Some(Ahead::No);
    }

    /// Prepares for the next sync: a log that was synced once will most likely be synced again.
    fn look_ahead(&mut self) {
        let Some(now) = self.ahead else { return };
        let (before, average) = self.synced;
        let bytes = self.size() - before;
        let average = if before == 0 { bytes } else { (7 * average + bytes) / 8 };
        self.synced = (self.size(), average);
        let wanted = ahead_of(average);
        if wanted != now {
            self.file.extend_ahead(wanted);
            self.ahead = Some(wanted);
        }
    }

    /// Notes that everything appended so far counts. What a failed write or sync leaves after this does not.
    pub fn acknowledge(&mut self) {
        self.good = self.size();
    }

    /// Notes that only the first `size` bytes count after all.
    pub fn take_back(&mut self, size: u64) {
        self.good = self.good.min(size);
    }

    /// Notes that nothing more may be written to the file.
    pub fn set_failed(&mut self) {
        self.failed = true;
    }

    /// Length up to the last record that counts, in bytes.
    pub fn good(&self) -> u64 {
        self.good
    }

    /// Closes the file; not durable without `sync` before.
    pub fn close(&mut self) -> Result<()> {
        self.file.close().map_err(|e| self.failure("close", &e))
    }

    fn failure(&mut self, call: &str, e: &std::io::Error) -> Error {
        self.failed = true;
        self.error(call, e)
    }

    fn error(&self, call: &str, e: &std::io::Error) -> Error {
        Error::io(format_args!("cannot {call} {}", self.path.display()), e)
    }

    /// True if nothing was written to it, and no write failed.
    pub fn is_unused(&self) -> bool {
        self.size() == 0 && !self.failed
    }

    pub fn size(&self) -> u64 {
        self.file.len()
    }
}

/// The WAL in use, and the *left* WALs: those before it that are not durable yet.
///
/// A writer never waits here for I/O that it did not ask for. Each left WAL is synced under a lock of its own, which is
/// taken only to make that WAL durable or to delete it.
#[derive(Debug, Default)]
pub(crate) struct Wal {
    /// The file in use. Only the write leader takes this lock (and closing), so there is never a wait for it.
    current: Mutex<Option<WalWriter>>,
    /// Number of `current`.
    number: AtomicU64,
    /// Number of the first WAL of this opening; 0 before there is one.
    first: AtomicU64,
    /// Length of `current`, in bytes.
    size: AtomicU64,
    /// Above this size, the write leader checks whether all WALs together are too large.
    room: AtomicU64,
    /// The left WALs, oldest first. They must be durable before a synced write returns.
    left: Mutex<Vec<Arc<LeftWal>>>,
    /// Obsolete files kept for reuse.
    recycle: Mutex<Vec<u64>>,
}

/// A WAL that is no longer written to.
#[derive(Debug)]
struct LeftWal {
    number: u64,
    /// Length of its contents, in bytes. The file may be longer while it is open.
    size: u64,
    /// `None` once it is closed; the file may then be deleted or reused.
    file: Mutex<Option<WalWriter>>,
}

impl Wal {
    /// The file in use, for the write leader.
    pub fn lead(&self) -> MutexGuard<'_, Option<WalWriter>> {
        self.current.lock()
    }

    /// Number of the WAL in use; 0 before there is one.
    pub fn number(&self) -> u64 {
        self.number.load(Ordering::Acquire)
    }

    /// Bytes in the WAL in use.
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// Length of an open WAL's contents, in bytes; `None` if it is closed. The file itself may be longer, or may lack
    /// what is still in memory.
    pub fn size_of_open(&self, number: u64) -> Option<u64> {
        // The length first. If a new WAL begins in between, the length is the old one's, which is too large for the new
        // one but never too small.
        let (written, in_use) = (self.size(), self.number());
        if number == in_use {
            return Some(written);
        }
        self.left.lock().iter().find(|w| w.number == number).map(|w| w.size)
    }

    /// Notes the WAL's length after a write by the leader.
    pub fn set_size(&self, bytes: u64) {
        self.size.store(bytes, Ordering::Release);
    }

    /// Sets the size beyond which [`Self::is_large`] is true.
    pub fn set_room(&self, bytes: u64) {
        self.room.store(bytes, Ordering::Relaxed);
    }

    /// True if all WALs together may be too large.
    #[inline]
    pub fn is_large(&self) -> bool {
        self.size() > self.room.load(Ordering::Relaxed)
    }

    /// Makes `fresh` the WAL in use and returns the previous one.
    pub fn begin(&self, current: &mut Option<WalWriter>, fresh: WalWriter) -> Option<WalWriter> {
        let _ = self.first.compare_exchange(0, fresh.number, Ordering::AcqRel, Ordering::Acquire);
        self.number.store(fresh.number, Ordering::Release);
        self.size.store(fresh.size(), Ordering::Release);
        current.replace(fresh)
    }

    /// Adds a WAL to those that are left.
    pub fn leave(&self, old: WalWriter) {
        let (number, size) = (old.number, old.size());
        self.left.lock().push(Arc::new(LeftWal { number, size, file: Mutex::new(Some(old)) }));
    }

    /// Makes the WALs before the one in use durable, oldest first, and closes them.
    pub fn sync_left(&self) -> Result<()> {
        loop {
            let Some(oldest) = self.left.lock().first().map(Arc::clone) else { return Ok(()) };
            {
                let mut file = oldest.file.lock();
                if let Some(w) = file.as_mut() {
                    w.sync()?;
                    // The data is durable. A failed close is reported once, and stops no later flush.
                    let closed = w.close();
                    *file = None;
                    closed?;
                }
            }
            self.left.lock().retain(|w| !Arc::ptr_eq(w, &oldest));
        }
    }

    /// Closes the left WALs without a sync.
    pub fn close_left(&self) -> Result<()> {
        let left = std::mem::take(&mut *self.left.lock());
        let mut done = Ok(());
        for mut log in left.iter().filter_map(|w| w.file.lock().take()) {
            done = done.and(log.close());
        }
        done
    }

    /// Closes WALs whose data is durable in tables, so that they need no sync. Nothing uses their files after this.
    pub fn forget(&self, numbers: &[u64]) {
        let gone: Vec<Arc<LeftWal>> = {
            let mut left = self.left.lock();
            left.extract_if(.., |w| numbers.contains(&w.number)).collect()
        };
        for w in gone {
            if let Some(mut file) = w.file.lock().take() {
                let _ = file.close();
            }
        }
    }

    /// Drops all left WALs without a sync, because their data will be written as tables. Their files stay.
    pub fn abandon_left(&self) {
        for w in std::mem::take(&mut *self.left.lock()) {
            w.file.lock().take();
        }
    }

    /// Keeps an obsolete file for reuse if fewer than `limit` are kept.
    ///
    /// Only files of this opening are kept. An earlier opening may have written records without a log number, and these
    /// would look like records of the WAL that reuses the file (RocksDB's `MinLogNumberToRecycle`).
    pub fn keep_for_reuse(&self, number: u64, limit: usize) -> bool {
        let mut recycle = self.recycle.lock();
        let keep = recycle.len() < limit && number >= self.first.load(Ordering::Acquire);
        if keep {
            recycle.push(number);
        }
        keep
    }

    /// Takes an obsolete file to reuse.
    pub fn take_for_reuse(&self) -> Option<u64> {
        self.recycle.lock().pop()
    }
}

#[cfg(test)]
mod tests {
    use rockmill_io::{MemFileSystem, OpKind};

    use super::*;

    #[test]
    fn a_log_that_cannot_be_closed_is_told_once_it_is_durable() {
        let mem = MemFileSystem::new();
        let fs: Arc<dyn FileSystem> = Arc::new(mem.clone());
        fs.create_dir(Path::new("/db"), true).expect("a directory");
        let wal = Wal::default();
        let kind = WalKind { recyclable: false, gathers: false, extends: false };
        for number in [1, 2] {
            let log = WalWriter::create(&fs, Path::new("/db"), number, WriteOptions::default(), None, kind);
            wal.leave(log.expect("a log"));
        }
        let failed = |op: &rockmill_io::Op| op.kind == OpKind::Close && op.path.ends_with("000001.log");
        mem.set_fault(Box::new(move |op| failed(op).then(|| std::io::Error::from_raw_os_error(5))));
        assert!(wal.sync_left().expect_err("a failed close").to_string().contains("cannot close /db/000001.log"));
        wal.sync_left().expect("both are durable");
        assert!(wal.left.lock().is_empty());
    }

    #[test]
    fn what_is_in_an_open_log_is_known_where_its_file_is_longer() {
        let mem = MemFileSystem::new();
        let fs: Arc<dyn FileSystem> = Arc::new(mem.clone());
        fs.create_dir(Path::new("/db"), true).expect("a directory");
        let wal = Wal::default();
        let kind = WalKind { recyclable: false, gathers: false, extends: true };
        let begin = |number| {
            let log = WalWriter::create(&fs, Path::new("/db"), number, WriteOptions::default(), None, kind);
            if let Some(left) = wal.begin(&mut wal.lead(), log.expect("a log")) {
                wal.leave(left);
            }
        };
        begin(1);
        for _ in 0..3 {
            let mut current = wal.lead();
            let log = current.as_mut().expect("a log");
            log.add_batch(&Precedes(9).record(1)).expect("a record");
            log.sync().expect("a sync");
            wal.set_size(log.size());
        }
        let (size, file) = (wal.size(), || mem.file_size(Path::new("/db/000001.log")).expect("its length"));
        assert!(file() > size, "{} {size}", file());
        assert_eq!(wal.size_of_open(1), Some(size));
        begin(2);
        assert_eq!((wal.size_of_open(1), wal.size_of_open(2)), (Some(size), Some(0)));
        assert!(file() > size);
        wal.sync_left().expect("a sync");
        assert_eq!((wal.size_of_open(1), file()), (None, size));
    }

    #[test]
    fn what_a_wal_follows_is_read_back_and_is_no_update() {
        let follows = Follows { wal: 12, end: 345 };
        let record = follows.record();
        assert_eq!(Follows::read(&record), Some(follows));
        assert_eq!((record.count(), record.sequence()), (0, 345));

        let mut other = BatchRep::default();
        assert_eq!(Follows::read(&other), None, "an empty batch");
        other.push(BatchRecord::LogData(b"rockmill.follows and more"));
        assert_eq!(Follows::read(&other), None, "log data of a user");
        assert_eq!(Precedes::read(&record), None);
        let precedes = Precedes(77).record(345);
        assert_eq!((Precedes::read(&precedes), Follows::read(&precedes)), (Some(Precedes(77)), None));
        assert_eq!((precedes.count(), precedes.sequence()), (0, 345));
        let mut update = record;
        update.push(BatchRecord::Delete { cf: 0, key: b"k" });
        assert_eq!(Follows::read(&update), None, "an update");
    }
}
