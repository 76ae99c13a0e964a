//! WAL recovery: acknowledged data that is in no table is put back into memtables.

use std::sync::Arc;

use rockmill_format::batch::{self, BatchRep};
use rockmill_format::log::place::RecordPlace;
use rockmill_format::log::{DamageKind, LogEvent, LogReader, RecoveryAction, RecoveryMode};
use rockmill_format::{FormatError, SequenceNumber};

use super::WalMemtable;
use super::kept_logs::{self, Durable, NotKept, Replayed, ReplayedLogs};
use super::wal::{Follows, Precedes, open_values};
use crate::error::{Error, Result};
use crate::memtable::log_values::{LogFile, LoggedBatch};
use crate::version::{BlockHashes, LogSource};

/// The store whose logs are replayed.
pub(crate) trait RecoveryHost {
    /// No new file gets a number up to this one.
    fn pass_number(&self, number: u64);

    /// Gives each entry of a batch of log `log`, all of whose records are sound, to its column family's
    /// [`replay`](super::family::FamilyFront::replay). Entries of dropped column families are skipped. `at`: where the
    /// batch is, if its values can stay there. Returns the sequence number after the batch.
    fn replay(&self, log: u64, batch: &BatchRep, at: Option<&LoggedBatch>) -> rockmill_format::Result<SequenceNumber>;

    /// Seals full index tables. All later entries are in log `log` and later ones, which hold nothing of what is
    /// sealed: otherwise a table would be flushed while its log continues, and the end of that log would be replayed
    /// again.
    fn seal_full(&self, log: u64);

    /// Writes what is full as tables; true if anything was.
    fn flush_full(&self) -> Result<bool>;

    /// After a hole in log `hole`: refuses a column family that needs later logs only, if its tables hold entries from
    /// sequence number `next` on.
    fn check_tables_not_ahead(&self, hole: u64, next: SequenceNumber) -> Result<()>;

    /// The oldest log whose data is in memory, and in no table.
    fn oldest_log(&self) -> Option<u64>;
}

/// How logs are replayed.
#[derive(Debug, Clone)]
pub(crate) struct RecoveryPlan {
    /// What is done where a log is damaged.
    pub mode: RecoveryMode,
    /// The MANIFEST says that logs below this hold nothing that is not in tables.
    pub bound: u64,
    /// No column family has data in logs below this that is not in tables.
    pub oldest: u64,
    /// The sequence number after the last that the MANIFEST counted.
    pub next: SequenceNumber,
    /// What is full is written as tables. Not so where the database is only read.
    pub flush_full: bool,
    /// Data should stay in memory, and its logs be kept with it, if possible.
    pub keep_logs: bool,
    /// Logs that must exist, and with them all logs that logs name. `None` if that is not known: then a missing log may
    /// never have existed.
    pub expected: Option<Vec<u64>>,
}

impl RecoveryPlan {
    /// Logs are kept unless something found in them prevents it.
    fn may_keep(&self) -> bool {
        self.flush_full && self.keep_logs
    }
}

/// The result of recovery.
pub(crate) struct Recovered {
    /// The newest sequence number that was replayed, if one was.
    pub last_sequence: Option<SequenceNumber>,
    /// Logs whose data is to stay in memory.
    pub kept: Option<KeptLogs>,
    /// Why none are kept although nothing that was replayed prevents it.
    pub not_kept: Option<Error>,
}

/// The state of replaying the WALs.
struct Replay {
    /// Sequence number after the last record replayed; before there is one, after the last that the MANIFEST counted.
    next: SequenceNumber,
    /// A WAL ended in a hole (point-in-time recovery): later ones count only if they continue exactly there.
    hole: Option<u64>,
    /// There may be no hole: after the end of a whole recycled WAL come bytes of its earlier use, which look like an
    /// old record, or like damage if the end is inside one.
    hole_is_doubtful: bool,
    /// A recycled WAL ended at a place that may be damaged; for modes that rely on nothing being missing.
    doubtful_end: Option<u64>,
    /// Something was replayed.
    any: bool,
    /// The WAL of the last record replayed; files without a record count for nothing.
    last_wal: u64,
    /// WALs below this hold nothing that is not in tables, and may be gone.
    oldest: u64,
    /// Something was damaged or missing, or a memtable was written as a table: so the WALs and the memtables do not
    /// hold the same.
    irregular: bool,
    /// A record that a power cut tore, if nothing else is irregular: it can be cut off.
    torn: Option<TornEnd>,
    /// Bytes of records since it was last checked whether memtables are full.
    unchecked: usize,
    /// What was read, of logs that may be kept.
    logs: ReplayedLogs,
    /// Logs that others name.
    named: Vec<u64>,
}

/// A log ends with a partial record, and no later log has a record.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TornEnd {
    /// The log's number.
    pub log: u64,
    /// Where the last whole record ends.
    pub end: u64,
}

/// Whether memtables are full is checked after this many bytes of records, not after each record, and smaller ones are
/// not checked, so that a table has at least this much, whatever the options say. This is RocksDB's minimum for
/// `write_buffer_size`.
pub(crate) const CHECK_EVERY: usize = 64 << 10;

/// Logs that stay in use after a recovery.
pub(crate) struct KeptLogs {
    /// Number and length, oldest first.
    pub logs: Vec<(u64, u64)>,
    /// The numbers of those that had to be rewritten to be durable.
    pub anew: Vec<u64>,
    /// What was cut off.
    pub torn: Option<TornEnd>,
    /// Where the last of them ends.
    pub follows: Follows,
}

impl WalMemtable {
    /// Replays every log of `logs` (ascending) that may hold data that is in no table.
    ///
    /// With `keep_logs`, returns those whose data is to stay in memtables, if that is possible: no memtable was full,
    /// no log was damaged except at the end of all records, and no log that has to be cut or rewritten has a second
    /// name.
    pub fn recover(&self, host: &impl RecoveryHost, logs: &[u64], plan: &RecoveryPlan) -> Result<Recovered> {
        // A WAL below `oldest` that still exists may have lost its unsynced end: it says nothing about others.
        let oldest = plan.oldest;
        let expected = plan.expected.iter().flatten().map(|&n| (n, "the MANIFEST or WAL_OWNER"));
        let lacks_expected = self.lacks_a_log(logs, plan, expected)?;
        logs.iter().filter(|&&n| n >= plan.bound && n < oldest).try_for_each(|&n| self.refuse_transactions(n))?;
        let mut replay = Replay {
            next: plan.next,
            hole: None,
            hole_is_doubtful: false,
            doubtful_end: None,
            any: false,
            last_wal: 0,
            oldest,
            irregular: lacks_expected,
            torn: None,
            unchecked: 0,
            logs: ReplayedLogs::default(),
            named: Vec::new(),
        };
        for &number in logs.iter().filter(|&&n| n >= oldest) {
            host.pass_number(number);
            if plan.flush_full {
                host.seal_full(number);
            }
            let hashes = self.replay_wal(host, number, &mut replay, plan)?;
            if plan.may_keep() {
                replay.logs.add(Replayed { number, path: self.log_path(number), hashes });
                // A torn log is cut first, and after anything irregular no log is kept.
                if replay.torn.is_none() && !replay.irregular {
                    replay.logs.ask(&self.fs);
                }
            }
        }
        // A hole does not explain a missing file. Recovery may go on without it. Then everything is written as tables
        // and the logs go, also those that name it: the next opening assumes that each log which is named was there.
        replay.irregular |= self.lacks_a_log(logs, plan, replay.named.iter().map(|&n| (n, "another WAL")))?;
        if let Some(at) = replay.hole {
            // If it is doubtful whether there is a hole, tables must prove it, by an update that is after the point in
            // time. (Updates that were never in a WAL are behind a later one that says where this one ends.) RocksDB
            // would refuse a database that lost nothing.
            host.check_tables_not_ahead(at, if replay.hole_is_doubtful { replay.next } else { 0 })?;
        }
        let keep = plan.may_keep() && !replay.irregular && replay.any;
        let follows = Follows { wal: replay.last_wal, end: replay.next };
        let (last_sequence, oldest) = (replay.any.then(|| replay.next - 1), host.oldest_log());
        let (mut kept, mut not_kept) = (None, None);
        if keep {
            // Their data must be durable before anything that is written and synced from now on.
            let mut read = replay.logs.finish(oldest.unwrap_or(u64::MAX));
            // Whether the power fails before or after this, the next recovery finds the same records.
            let torn = replay.torn.and_then(|torn| {
                let mut logs = read.iter_mut().map(|(log, _)| log);
                Some((torn, logs.find(|log| log.number == torn.log)?))
            });
            let cut = torn.map_or(Ok(()), |(torn, log)| kept_logs::cut(&*self.fs, log, torn.end));
            match cut.and_then(|()| kept_logs::make_durable(&*self.fs, &read)) {
                Ok(Durable { logs, anew }) => kept = Some(KeptLogs { logs, anew, torn: replay.torn, follows }),
                Err(NotKept::Tables(e)) => not_kept = Some(e),
                Err(NotKept::Differs(e)) => return Err(e),
            }
        }
        Ok(Recovered { last_sequence, kept, not_kept })
    }

    /// Looks for a log that is named and missing. `named` has the number and what names it. Fails if that log is known
    /// to have existed; otherwise returns whether one is missing.
    ///
    /// A log's name is durable before anything names it, and a log is deleted only when the MANIFEST says that it is
    /// not needed, which is below `oldest`. Only a copy may lack a log that was never lost: copies have no empty logs.
    fn lacks_a_log<'a>(
        &self,
        logs: &[u64],
        plan: &RecoveryPlan,
        named: impl Iterator<Item = (u64, &'a str)>,
    ) -> Result<bool> {
        let mut named = named.filter(|(n, _)| *n >= plan.oldest && logs.binary_search(n).is_err());
        let Some((number, by)) = named.next() else { return Ok(false) };
        // That mode accepts whatever exists.
        if plan.expected.is_none() || plan.mode == RecoveryMode::SkipAnyCorruptedRecords {
            return Ok(true);
        }
        Err(Error::corruption(format!(
            "{}: this WAL is missing, and {by} says that it was there: what it held may be in no table. Bring it back; \
             if it is lost, open the database once with `wal_dir` alone, without a fast path, which goes on without it \
             and without what came after it, or, where tables have some of that, with the recovery mode \
             SkipAnyCorruptedRecords",
            self.log_path(number).display()
        )))
    }

    /// Refuses a WAL that the MANIFEST keeps although all its updates are in tables, if it has a transaction that was
    /// prepared: opening would remove that WAL, and the transaction with it.
    fn refuse_transactions(&self, number: u64) -> Result<()> {
        let path = self.log_path(number);
        let failed = |e| Error::io(format_args!("cannot read WAL {}", path.display()), &e);
        let mut reader = LogReader::new(LogSource::new(self.fs.open_sequential(&path).map_err(failed)?), number);
        let mut record = Vec::new();
        loop {
            match reader.next_record(&mut record).map_err(failed)? {
                LogEvent::Record { .. } => {}
                // RocksDB skips zeros. After other damage, RocksDB would find nothing either.
                LogEvent::Damage { kind: DamageKind::BrokenRecord, .. } => continue,
                LogEvent::Damage { .. } | LogEvent::End { .. } => break,
            }
            let Ok((_, records)) = batch::decode(&record) else { continue };
            for e in records.filter_map(std::result::Result::err) {
                if matches!(&e, FormatError::Unsupported { feature } if feature == batch::TWO_PHASE_COMMIT) {
                    let hint = "commit or roll back the transactions that were prepared with RocksDB, and close it";
                    return Err(Error::format(&path, &e).context(hint));
                }
            }
        }
        Ok(())
    }

    /// Replays a log. Returns the hashes of what was read of it, if it may be kept.
    fn replay_wal(
        &self,
        host: &impl RecoveryHost,
        number: u64,
        replay: &mut Replay,
        plan: &RecoveryPlan,
    ) -> Result<BlockHashes> {
        let path = self.log_path(number);
        let mode = plan.mode;
        let file = self
            .fs
            .open_sequential(&path)
            .map_err(|e| Error::io(format_args!("cannot open WAL {}", path.display()), &e))?;
        let source = if plan.may_keep() { LogSource::with_hashes(file) } else { LogSource::new(file) };
        let mut reader = LogReader::new(source, number);
        let mut record = Vec::new();
        let mut first = true;
        let mut end = 0; // of the last record
        let mut values: Option<Arc<LogFile>> = None;
        loop {
            let event = reader
                .next_record(&mut record)
                .map_err(|e| Error::io(format_args!("cannot read WAL {}", path.display()), &e))?;
            let mut action = mode.action(&event);
            let mut failure = match &event {
                LogEvent::Damage { error, .. } => Some(error.clone()),
                _ => None,
            };
            match &event {
                LogEvent::Damage { kind: DamageKind::CutTail, .. }
                    if replay.torn.is_none() && !reader.is_recycled() =>
                {
                    replay.torn = Some(TornEnd { log: number, end });
                }
                LogEvent::Damage { .. } => replay.irregular = true,
                // The torn record was before this one, so the log must not be cut there.
                LogEvent::Record { .. } => replay.irregular |= replay.torn.is_some(),
                LogEvent::End { .. } => {}
            }
            if failure.is_some() && plan.flush_full {
                // Data lost here is gone for good, because the WAL will be deleted. (A reader next to a writer may see
                // it change.)
                reader.source_mut().check_again(&*self.fs, &path)?;
            }
            if let LogEvent::Damage { kind, error, .. } = &event
                && (matches!(kind, DamageKind::OldRecord { .. } | DamageKind::BadFragment { recycled: true })
                    || (*kind == DamageKind::CutTail && reader.is_recycled()))
                && matches!(mode, RecoveryMode::TolerateCorruptedTailRecords | RecoveryMode::AbsoluteConsistency)
            {
                // It was written under another mode, or by RocksDB: what looks damaged is most often the end.
                let torn = reader.damage_is_ours();
                let goes_on = reader.goes_on_after_damage();
                if goes_on.map_err(|e| Error::io(format_args!("cannot read WAL {}", path.display()), &e))? {
                    let what = format!("{error}; whole records of this WAL stand behind it");
                    failure = Some(FormatError::corruption(what, 0));
                    action = RecoveryAction::Fail;
                } else if torn && mode == RecoveryMode::AbsoluteConsistency {
                    action = RecoveryAction::Fail;
                } else {
                    action = RecoveryAction::Stop { hole: false };
                    replay.doubtful_end = Some(number);
                }
            }
            if action == RecoveryAction::Replay {
                // For a reader, the files belong to another process. It may overwrite recycled ones with other logs. It
                // may delete any others, which stay readable once they are open. If it cuts off what it never
                // acknowledged, the reader has an address of nothing, and gets an error where it would see that value.
                let stays = plan.flush_full || !reader.is_recycled();
                if self.memory.index().is_some() && stays && values.is_none() {
                    values = Some(open_values(&*self.fs, &path, number, reader.is_recycled())?);
                }
                let at = match (&event, &values) {
                    (&LogEvent::Record { offset }, Some(log)) => Some(LoggedBatch {
                        log: Arc::clone(log),
                        record: RecordPlace { start: offset, recyclable: reader.is_recycled() },
                        base: batch::HEADER_LEN as u64,
                    }),
                    _ => None,
                };
                match replay_record(host, mode, (number, at.as_ref()), &mut record, &mut first, replay) {
                    Ok(Applied::Yes) => end = reader.offset(),
                    // This WAL does not continue where the hole is: all of it is after the point in time.
                    Ok(Applied::BehindHole) => return Ok(BlockHashes::default()),
                    Err(e) => {
                        replay.irregular = true;
                        action = mode.action_on_error(&e);
                        failure = Some(e);
                    }
                }
            }
            match action {
                RecoveryAction::Replay | RecoveryAction::Skip => {}
                RecoveryAction::Stop { hole } => {
                    if hole {
                        replay.hole = Some(number);
                        replay.hole_is_doubtful = reader.is_recycled() && replay.last_wal == number;
                    }
                    return Ok(reader.source_mut().take_hashes());
                }
                RecoveryAction::Fail => {
                    let e = failure.unwrap_or_else(|| FormatError::corruption("damaged record", 0));
                    return Err(Error::format(&path, &e).context(format_args!("WAL recovery ({mode:?})")));
                }
            }
            replay.unchecked += record.len();
            if plan.flush_full && replay.unchecked >= CHECK_EVERY {
                replay.unchecked = 0;
                replay.irregular |= host.flush_full()?;
            }
        }
    }
}

fn replay_record(
    host: &impl RecoveryHost,
    mode: RecoveryMode,
    (number, at): (u64, Option<&LoggedBatch>),
    record: &mut Vec<u8>,
    first: &mut bool,
    replay: &mut Replay,
) -> std::result::Result<Applied, FormatError> {
    let batch = BatchRep::from_bytes(std::mem::take(record))?;
    let sequence = batch.sequence();
    replay.named.extend(Precedes::read(&batch).map(|next| next.0));
    if *first {
        *first = false;
        replay.named.extend(Follows::read(&batch).map(|follows| follows.wal));
        // The WAL before this one lost its end between two records, or is lost as a whole. All records after that are
        // after the hole, whatever their sequence numbers: `next` may come from the MANIFEST and count updates that
        // only that WAL had.
        if let Some(follows) = Follows::read(&batch)
            && follows.wal >= replay.oldest
            && (replay.last_wal != follows.wal || replay.next != follows.end)
        {
            replay.irregular = true;
            match mode {
                RecoveryMode::PointInTime => {
                    if replay.hole.is_none() {
                        replay.hole = Some(follows.wal);
                        replay.hole_is_doubtful = false;
                    }
                    return Ok(Applied::BehindHole);
                }
                RecoveryMode::AbsoluteConsistency => {
                    return Err(FormatError::corruption(
                        format!("WAL {:06}.log, which this one follows, has lost its end", follows.wal),
                        0,
                    ));
                }
                // The end of the previous one could not be distinguished from damage. This shows that it was damage.
                RecoveryMode::TolerateCorruptedTailRecords if replay.doubtful_end == Some(follows.wal) => {
                    return Err(FormatError::corruption(
                        format!(
                            "WAL {:06}.log, which this one follows, is damaged: it lacks records up to sequence \
                             number {}",
                            follows.wal, follows.end
                        ),
                        0,
                    ));
                }
                // These two modes accept whatever exists.
                RecoveryMode::TolerateCorruptedTailRecords | RecoveryMode::SkipAnyCorruptedRecords => {}
            }
        }
        if replay.hole.is_some() {
            if !replay.any || sequence != replay.next {
                return Ok(Applied::BehindHole);
            }
            replay.hole = None;
        }
    }
    // The whole batch is checked before any of it is applied: batches are all or nothing.
    for r in batch.iter() {
        r?;
    }
    replay.next = host.replay(number, &batch, at)?;
    replay.any = true;
    replay.last_wal = number;
    *record = batch.into_bytes();
    Ok(Applied::Yes)
}

enum Applied {
    Yes,
    BehindHole,
}
