//! Memtables for code that reads logs and writes none: an instance that follows another process's database, and repair.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use rockmill_format::batch::{self, BatchRep};
use rockmill_format::log::place::RecordPlace;
use rockmill_format::log::{DamageKind, LogEvent, LogReader};
use rockmill_format::{InternalKeyComparator, SequenceNumber, ValueType};

use super::WalMemtable;
use super::memory::{BufferLimit, FrontMemory, IndexTables};
use super::view::{FrontView, SealedRuns};
use super::wal::open_values;
use super::wal_files::wal_numbers;
use crate::error::{Error, Result};
use crate::front::entry_of;
use crate::iter::InternalIterator;
use crate::memtable::log_values::{LogFile, LoggedBatch};
use crate::memtable::{MemTable, SealedTable};
use crate::options::CfOptions;
use crate::version::LogSource;

/// Data that was read from the logs of a followed database and is in none of its tables.
///
/// With index tables, values stay in the logs, which are kept open as long as a memtable has addresses in them: the
/// primary may delete them. Those of recycled files are in memory, since the primary may overwrite such files.
#[derive(Default)]
pub(crate) struct Followed {
    /// How values that stay in logs are indexed, if they do.
    index: Option<IndexTables>,
    families: BTreeMap<u32, FollowedFamily>,
    /// How far each log was read.
    read: BTreeMap<u64, ReadLog>,
    /// The MANIFEST says that logs below this hold nothing that is not in tables.
    bound: u64,
}

/// How far a log was read.
#[derive(Debug, Clone, Default)]
struct ReadLog {
    /// Where the last record that was applied ends.
    end: u64,
    /// The file is a recycled one.
    recycled: bool,
    /// The last update that was applied.
    last_sequence: SequenceNumber,
    /// The open file, if values stay there.
    values: Option<Arc<LogFile>>,
}

/// Where reading a log stopped.
enum Progress {
    /// The log no longer exists.
    Gone,
    /// Where the primary is writing, or an earlier log's records begin.
    End,
    /// There is damage after the record that ends here, and more of the log after that.
    Damaged(u64, Error),
}

/// A column family of it.
///
/// A memtable that readers have is only ever appended to, above the sequence number they may see. After a change of
/// tables entries go into a new one, so that readers of the old tables do not see what came after them.
struct FollowedFamily {
    cmp: InternalKeyComparator,
    options: Arc<CfOptions>,
    /// Logs below this hold nothing for the column family.
    log_number: u64,
    /// Oldest first, each with the log whose entries it holds.
    memtables: Vec<(u64, Arc<MemTable>)>,
    /// The tables are not those that readers have.
    tables_changed: bool,
    /// The newest memtable is not one that readers have.
    unpublished: bool,
    newest_id: u64,
}

impl Followed {
    /// Of a database whose values stay in logs as the options of `front` say.
    pub fn new(front: &WalMemtable) -> Self {
        Self { index: front.memory().index().copied(), ..Self::default() }
    }

    /// Adds a column family for which logs below `log_number` hold nothing.
    pub fn add_family(&mut self, id: u32, cmp: InternalKeyComparator, options: Arc<CfOptions>, log_number: u64) {
        let family = FollowedFamily {
            cmp,
            options,
            log_number,
            memtables: Vec::new(),
            tables_changed: true,
            unpublished: false,
            newest_id: 1,
        };
        self.families.insert(id, family);
    }

    /// The column family was dropped.
    pub fn drop_family(&mut self, id: u32) {
        self.families.remove(&id);
    }

    /// The MANIFEST says that logs below `bound` hold nothing that is not in tables.
    pub fn raise_bound(&mut self, bound: u64) {
        self.bound = self.bound.max(bound);
    }

    /// The MANIFEST says that logs below `log` hold nothing for a column family.
    pub fn raise_log_number(&mut self, id: u32, log: u64) {
        if let Some(family) = self.families.get_mut(&id) {
            family.log_number = family.log_number.max(log);
        }
    }

    /// A column family's tables are not those that readers have.
    pub fn tables_changed(&mut self, id: u32) {
        if let Some(family) = self.families.get_mut(&id) {
            family.tables_changed = true;
        }
    }

    fn oldest_log(&self) -> u64 {
        self.families.values().map(|f| f.log_number).min().map_or(u64::MAX, |oldest| oldest.max(self.bound))
    }

    /// Forgets data that is in tables.
    pub fn forget_flushed(&mut self) {
        for family in self.families.values_mut() {
            // The log number of a column family without data is not advanced.
            let needed = family.log_number.max(self.bound);
            family.memtables.retain(|(log, _)| *log >= needed);
        }
        let oldest = self.oldest_log();
        self.read.retain(|&n, _| n >= oldest);
    }

    /// Forgets what was read of a log from which the primary has cut records since, and of all later ones: they are
    /// read again.
    pub fn forget_cut(&mut self, front: &WalMemtable) -> Result<()> {
        let mut cut = None;
        for (&number, log) in &self.read {
            let path = front.log_path(number);
            match front.fs.file_size(&path) {
                Ok(size) if size < log.end => {
                    cut = Some(number);
                    break;
                }
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::NotFound => {} // then the MANIFEST says why
                Err(e) => return Err(Error::io(format_args!("cannot look at WAL {}", path.display()), &e)),
            }
        }
        if let Some(cut) = cut {
            self.read.retain(|&n, _| n < cut);
            for family in self.families.values_mut() {
                family.memtables.retain(|(log, _)| *log < cut);
            }
        }
        Ok(())
    }

    /// The newest update that was read.
    pub fn last_sequence(&self) -> SequenceNumber {
        self.read.values().map(|log| log.last_sequence).max().unwrap_or(0)
    }

    /// Reads new data. False if a log was deleted after its name was read.
    pub fn read(&mut self, front: &WalMemtable) -> Result<bool> {
        let list = || {
            let names = front.fs.list_dir(&front.dir);
            names.map_err(|e| Error::io(format_args!("cannot list {}", front.dir.display()), &e))
        };
        // Listing a directory is not atomic: the list may have the newest log and lack the one before it if both were
        // made meanwhile. Logs older than the newest one of the first list existed when the second listing began.
        let newest = wal_numbers(&list()?).last().copied().unwrap_or(0);
        let oldest = self.oldest_log();
        for number in wal_numbers(&list()?).into_iter().filter(|&n| n >= oldest && n <= newest) {
            if !self.read_log(front, number)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// In a log that is longer than its contents, a record that is being written is visible in part: it looks like
    /// damage with nothing after it. Data read a moment later may follow it. So the log is read twice before damage is
    /// believed.
    fn read_log(&mut self, front: &WalMemtable, number: u64) -> Result<bool> {
        let mut damaged_at = None;
        loop {
            match self.read_log_on(front, number)? {
                Progress::Gone => return Ok(false),
                Progress::End => return Ok(true),
                Progress::Damaged(at, error) if damaged_at == Some(at) => return Err(error),
                Progress::Damaged(at, _) => damaged_at = Some(at),
            }
        }
    }

    fn read_log_on(&mut self, front: &WalMemtable, number: u64) -> Result<Progress> {
        let path = front.log_path(number);
        let mut log = self.read.get(&number).cloned().unwrap_or_default();
        let source = match LogSource::open(&*front.fs, &path, log.end) {
            Ok(source) => source,
            // The MANIFEST need not have grown: for an idle column family it names older logs than are needed.
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Progress::Gone),
            Err(e) => return Err(Error::io(format_args!("cannot open WAL {}", path.display()), &e)),
        };
        let mut reader = LogReader::resume(source, number, log.end, log.recycled);
        let mut record = Vec::new();
        let mut damage = None;
        loop {
            let event = reader
                .next_record(&mut record)
                .map_err(|e| Error::io(format_args!("cannot read WAL {}", path.display()), &e))?;
            if let Some(error) = damage.take()
                && !matches!(event, LogEvent::End { .. })
            {
                return Ok(Progress::Damaged(log.end, error));
            }
            match event {
                LogEvent::Record { offset } => {
                    if self.index.is_some() && log.values.is_none() && !reader.is_recycled() {
                        match open_values(&*front.fs, &path, number, false) {
                            Ok(file) => log.values = Some(file),
                            Err(e) if e.is_missing_file() => return Ok(Progress::Gone),
                            Err(e) => return Err(e),
                        }
                    }
                    let at = log.values.as_ref().map(|file| LoggedBatch {
                        log: Arc::clone(file),
                        record: RecordPlace { start: offset, recyclable: false },
                        base: batch::HEADER_LEN as u64,
                    });
                    let last;
                    let applied = self.apply_batch(number, record, at.as_ref());
                    (record, last) = applied.map_err(|e| Error::format(&path, &e))?;
                    log.last_sequence = log.last_sequence.max(last);
                    (log.end, log.recycled) = (reader.offset(), reader.is_recycled());
                    self.read.insert(number, log.clone());
                }
                // The primary is writing here, or the rest is from an earlier log: new records are read next time.
                LogEvent::End { .. }
                | LogEvent::Damage {
                    kind:
                        DamageKind::CutTail | DamageKind::OldRecord { .. } | DamageKind::BadFragment { recycled: true },
                    ..
                } => return Ok(Progress::End),
                LogEvent::Damage { kind: DamageKind::Unsupported, error, .. } => {
                    return Err(Error::format(&path, &error));
                }
                LogEvent::Damage { error, .. } => {
                    let error = Error::format(&path, &error);
                    if reader.has_more_behind_damage() {
                        return Ok(Progress::Damaged(log.end, error));
                    }
                    damage = Some(error);
                }
            }
        }
    }

    /// Applies a record of log `number`, and gives its buffer back, and the number of its last update. `at`: where it
    /// is, if its values stay there.
    fn apply_batch(
        &mut self,
        number: u64,
        record: Vec<u8>,
        at: Option<&LoggedBatch>,
    ) -> rockmill_format::Result<(Vec<u8>, SequenceNumber)> {
        let batch = BatchRep::from_bytes(record)?;
        // The whole batch is checked before any of it is applied.
        for r in batch.iter() {
            r?;
        }
        let mut seq = batch.sequence();
        for r in batch.iter() {
            let Some((id, t, key, value)) = entry_of(&r?) else { continue };
            if let Some(family) = self.families.get_mut(&id)
                && family.log_number <= number
            {
                let at = at.and_then(|at| at.value(&batch, value));
                family.memtable(number, self.index).add_logged(seq, t, key, value, at);
            }
            seq += 1;
        }
        Ok((batch.into_bytes(), seq.saturating_sub(1)))
    }

    /// What readers of a column family should see with its present tables, and the log number that goes with it; `None`
    /// if there is no such column family.
    pub fn publish(&mut self, id: u32) -> Option<(FrontView, u64)> {
        let family = self.families.get_mut(&id)?;
        (family.tables_changed, family.unpublished) = (false, false);
        Some((family.view(self.index), family.log_number))
    }
}

impl FollowedFamily {
    /// The memtable for an entry of log `log`.
    fn memtable(&mut self, log: u64, index: Option<IndexTables>) -> Arc<MemTable> {
        if let Some((its, newest)) = self.memtables.last()
            && *its == log
            && (self.unpublished || !self.tables_changed)
        {
            return Arc::clone(newest);
        }
        let fresh = self.fresh(index);
        self.memtables.push((log, Arc::clone(&fresh)));
        self.unpublished = true;
        fresh
    }

    fn fresh(&mut self, index: Option<IndexTables>) -> Arc<MemTable> {
        self.newest_id += 1;
        FrontMemory::of_reader(index).memtable(self.newest_id, &self.cmp, &self.options)
    }

    fn view(&mut self, index: Option<IndexTables>) -> FrontView {
        let mut all = self.memtables.iter().rev().map(|(_, mem)| Arc::clone(mem));
        let limit = BufferLimit::of(None, &self.options);
        match all.next() {
            Some(newest) => FrontView::new(newest, all.map(SealedTable::Plain).collect(), limit),
            None => FrontView::new(self.fresh(index), Vec::new(), limit),
        }
    }
}

/// Entries that are gathered to become a table, outside of any open store.
#[derive(Default)]
pub(crate) struct LooseBuffer {
    mem: Option<Arc<MemTable>>,
}

impl LooseBuffer {
    /// Adds an entry. All of them are of one column family.
    pub fn insert(
        &mut self,
        (cmp, options): (&InternalKeyComparator, &CfOptions),
        seq: SequenceNumber,
        value_type: ValueType,
        key: &[u8],
        value: &[u8],
    ) {
        let mem = self.mem.get_or_insert_with(|| FrontMemory::default().memtable(1, cmp, options));
        mem.add(seq, value_type, key, value);
    }

    /// Over its point entries; `None` without any entry.
    pub fn iter(&self) -> Option<Box<dyn InternalIterator>> {
        self.mem.as_ref().map(MemTable::iter)
    }

    /// Bytes allocated.
    pub fn memory_usage(&self) -> usize {
        self.mem.as_ref().map_or(0, |mem| mem.memory_usage())
    }

    /// Takes the entries; `None` without any.
    pub fn take(&mut self) -> Option<SealedRuns> {
        self.mem.take().map(|mem| SealedRuns::new(vec![mem]))
    }
}
