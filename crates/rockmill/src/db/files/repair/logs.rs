//! Turns WALs into tables.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use rockmill_format::batch::BatchRep;
use rockmill_format::edit::FileEntry;
use rockmill_format::key::{ParsedInternalKey, VALUE_TYPE_FOR_SEEK};
use rockmill_format::log::{DamageKind, LogEvent, LogReader};
use rockmill_format::{InternalKey, SequenceNumber, ValueType};
use rockmill_io::FileSystem;

use super::RepairReport;
use crate::compaction::describe::JobFamily;
use crate::compaction::{LocalHost, job};
use crate::error::{Error, Result};
use crate::event_listener::TableFileCreationReason;
use crate::front::{CHECK_EVERY, LooseBuffer, entry_of};
use crate::version::LogSource;

/// Whether an entry is in a memtable already.
#[derive(PartialEq, Eq)]
enum There {
    No,
    Same,
    /// Its key and sequence number are, with another update.
    Other,
}

/// A column family that log data goes into.
pub(super) struct Target {
    family: JobFamily,
    host: LocalHost,
    /// Data of WALs below this one is in tables, all of which are sound.
    pub log_number: u64,
    /// First and last sequence numbers of tables that hold all that WALs have of these.
    pub in_tables: Vec<(u64, u64)>,
    pub tables: Vec<FileEntry>,
    buffer: LooseBuffer,
}

impl Target {
    pub fn new(family: JobFamily, host: LocalHost, log_number: u64) -> Self {
        Self { family, host, log_number, in_tables: Vec::new(), tables: Vec::new(), buffer: LooseBuffer::default() }
    }

    fn wants(&self, wal: u64, seq: SequenceNumber) -> bool {
        self.log_number <= wal && !self.in_tables.iter().any(|&(first, last)| first <= seq && seq <= last)
    }

    fn insert(&mut self, seq: SequenceNumber, value_type: ValueType, key: &[u8], value: &[u8]) {
        let (cmp, options) = (&self.host.means.objects.cmp, &*self.family.options);
        self.buffer.insert((cmp, options), seq, value_type, key, value);
    }

    /// What the memtable has of a key with this sequence number.
    fn there(&self, seq: SequenceNumber, value_type: ValueType, key: &[u8], value: &[u8]) -> There {
        let Some(mut at) = self.buffer.iter() else { return There::No };
        if value_type == ValueType::RangeDeletion {
            return There::Other; // they are not found by key and number
        }
        at.seek(InternalKey::new(key, seq, VALUE_TYPE_FOR_SEEK).as_bytes());
        let found = at.valid().then(|| ParsedInternalKey::parse(at.key()).ok()).flatten();
        match found.filter(|f| f.sequence == seq && self.host.means.objects.cmp.compare_user(f.user_key, key).is_eq()) {
            Some(found) if found.value_type == value_type && at.value() == value => There::Same,
            Some(_) => There::Other,
            None => There::No,
        }
    }

    fn flush(&mut self) -> Result<()> {
        let Some(runs) = self.buffer.take() else { return Ok(()) };
        let reason = TableFileCreationReason::Recovery;
        if let Some(entry) = job::build_l0(&runs, &self.family, &mut self.host, reason)?.into_table() {
            self.tables.push(entry);
        }
        Ok(())
    }
}

/// Puts the data of the WALs into tables of the column families. Damaged records are skipped and counted.
pub(super) fn convert(
    fs: &dyn FileSystem,
    wals: &[(u64, std::path::PathBuf)],
    targets: &mut BTreeMap<u32, Target>,
    dropped: &dyn Fn(u32) -> bool,
    report: &mut RepairReport,
) -> Result<()> {
    let mut progress = Progress::default();
    for (number, path) in wals {
        convert_one(fs, *number, path, targets, dropped, &mut progress, report)?;
        report.wals_converted += 1;
    }
    targets.values_mut().try_for_each(Target::flush)
}

/// The column families that updates in these WALs are of.
pub(super) fn column_families(fs: &dyn FileSystem, wals: &[(u64, std::path::PathBuf)]) -> BTreeSet<u32> {
    let mut out = BTreeSet::new();
    for (number, path) in wals {
        let Ok(file) = fs.open_sequential(path) else { continue };
        let mut reader = LogReader::new(LogSource::new(file), *number);
        let mut record = Vec::new();
        while let Ok(event) = reader.next_record(&mut record) {
            match event {
                LogEvent::End { .. } => break,
                LogEvent::Damage { .. } => {}
                LogEvent::Record { .. } => {
                    if let Ok((_, records)) = rockmill_format::batch::decode(&record) {
                        out.extend(records.flatten().filter_map(|r| r.column_family()));
                    }
                }
            }
        }
    }
    out
}

/// How far the WALs have been read, all of them together.
#[derive(Default)]
struct Progress {
    /// After the largest sequence number.
    next: SequenceNumber,
    /// Bytes of records since memtables were last looked at for whether they are full.
    unchecked: usize,
}

fn convert_one(
    fs: &dyn FileSystem,
    number: u64,
    path: &Path,
    targets: &mut BTreeMap<u32, Target>,
    dropped: &dyn Fn(u32) -> bool,
    progress: &mut Progress,
    report: &mut RepairReport,
) -> Result<()> {
    let file = match fs.open_sequential(path) {
        Ok(file) => file,
        Err(e) => {
            report.damaged.push((super::name_of(path), e.to_string()));
            return Ok(());
        }
    };
    let mut reader = LogReader::new(LogSource::new(file), number);
    let mut record = Vec::new();
    let mut doubtful: Vec<(String, u64)> = Vec::new();
    loop {
        let event = match reader.next_record(&mut record) {
            Ok(event) => event,
            Err(e) => {
                report.damaged.push((super::name_of(path), e.to_string()));
                return Ok(());
            }
        };
        match event {
            LogEvent::End { .. } => return Ok(()),
            LogEvent::Damage { kind: DamageKind::Unsupported, error, .. } => return Err(Error::format(path, &error)),
            // Every log that ends with a crash, and every recycled one, ends like this: nothing acknowledged is lost.
            LogEvent::Damage { kind: DamageKind::CutTail | DamageKind::OldRecord { .. }, .. } => {}
            // If the log ended inside a record of the file's earlier use, the old bytes look like damage. They are
            // damage only if the log continues after them.
            LogEvent::Damage { kind: DamageKind::BadFragment { recycled: true }, error, dropped } => {
                doubtful.push((error.to_string(), dropped));
            }
            LogEvent::Damage { error, dropped, .. } => {
                report.wal_bytes_lost += dropped;
                report.damaged.push((super::name_of(path), error.to_string()));
            }
            LogEvent::Record { offset } => {
                for (error, dropped) in doubtful.drain(..) {
                    report.wal_bytes_lost += dropped;
                    report.damaged.push((super::name_of(path), error));
                }
                let batch = match BatchRep::from_bytes(std::mem::take(&mut record)) {
                    Ok(batch) => batch,
                    Err(e) => {
                        report.damaged.push((super::name_of(path), format!("record at offset {offset}: {e}")));
                        continue;
                    }
                };
                // A batch is all or nothing.
                if let Some(e) = batch.iter().find_map(std::result::Result::err) {
                    let error = Error::format(path, &e);
                    if error.kind() == crate::error::ErrorKind::NotSupported {
                        return Err(error);
                    }
                    report.wal_bytes_lost += batch.len_bytes() as u64;
                    report.damaged.push((super::name_of(path), format!("record at offset {offset}: {e}")));
                } else {
                    apply(&batch, number, targets, dropped, progress, report)?;
                }
                record = batch.into_bytes();
            }
        }
    }
}

fn apply(
    batch: &BatchRep,
    number: u64,
    targets: &mut BTreeMap<u32, Target>,
    dropped: &dyn Fn(u32) -> bool,
    progress: &mut Progress,
    report: &mut RepairReport,
) -> Result<()> {
    let mut seq = batch.sequence();
    // The same numbers once more, perhaps with other updates: no memtable gets an entry twice.
    let repeats = seq < progress.next;
    for record in batch.iter() {
        let record = record.map_err(|e| Error::corruption(e.to_string()))?;
        let Some((cf, value_type, key, value)) = entry_of(&record) else { continue };
        match targets.get_mut(&cf) {
            Some(target) if target.wants(number, seq) => {
                let there = if repeats { target.there(seq, value_type, key, value) } else { There::No };
                if there == There::Other {
                    target.flush()?;
                }
                if there != There::Same {
                    target.insert(seq, value_type, key, value);
                }
                report.wal_entries += 1;
            }
            Some(_) => {}
            None if dropped(cf) => {}
            None => report.entries_without_column_family += 1,
        }
        seq += 1;
    }
    progress.next = progress.next.max(seq);
    report.last_sequence = report.last_sequence.max(seq.saturating_sub(1));
    progress.unchecked += batch.len_bytes();
    if progress.unchecked < CHECK_EVERY {
        return Ok(());
    }
    progress.unchecked = 0;
    for target in targets.values_mut() {
        if target.buffer.memory_usage() >= target.family.options.write_buffer_size.max(CHECK_EVERY) {
            target.flush()?;
        }
    }
    Ok(())
}
