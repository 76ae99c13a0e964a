//! Updates read back from the WALs, archived ones included: what replication reads.

use std::collections::VecDeque;
use std::sync::Arc;

use rockmill_format::SequenceNumber;
use rockmill_format::batch::BatchRep;
use rockmill_format::filename;
use rockmill_format::log::{LogEvent, LogReader};
use rockmill_io::FileSystem;

use crate::db::{Db, WriteBatch};
use crate::error::{Error, ErrorKind, Result};
use crate::front::{ARCHIVE, Follows, Precedes, WalFile};
use crate::statistics::{MaybeStatistics, Ticker};
use crate::version::LogSource;

/// Batches in the order in which they were written, each with the sequence number of its first update
/// (`rocksdb::DBWALIterator`).
///
/// It ends where the database was when the iterator was made; to continue, make a new one from the last sequence number
/// seen. It also ends after an error.
pub struct DBWALIterator {
    fs: Arc<dyn FileSystem>,
    /// Still to be read, oldest first, each with the sequence number from which on its updates do not count.
    files: VecDeque<(WalFile, SequenceNumber)>,
    reader: Option<LogReader<LogSource>>,
    /// The file that `reader` reads, and its limit.
    current: Option<(WalFile, SequenceNumber)>,
    /// The WAL of the last batch that counted.
    last_wal: u64,
    /// The WAL that the present one says it follows.
    follows: Option<Follows>,
    since: SequenceNumber,
    /// Newest sequence number of the database when the iterator was made.
    last: SequenceNumber,
    /// Sequence number after the last batch that ends after `since`; `None` before one.
    next: Option<SequenceNumber>,
    failed: Option<Error>,
}

impl std::fmt::Debug for DBWALIterator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DBWALIterator").field("since", &self.since).field("next", &self.next).finish_non_exhaustive()
    }
}

impl DBWALIterator {
    /// The error that ended the iteration, if one did.
    pub fn status(&self) -> Result<()> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Opens the next file, or skips it; false if there is none.
    fn open_next(&mut self) -> Result<bool> {
        let Some((mut file, limit)) = self.files.pop_front() else { return Ok(false) };
        let opened = self.fs.open_sequential(&file.path).or_else(|e| {
            if e.kind() != std::io::ErrorKind::NotFound {
                return Err(e);
            }
            // Archived since it was listed.
            let name = filename::wal(file.log_number);
            file.path = file.path.with_file_name(ARCHIVE).join(name);
            self.fs.open_sequential(&file.path)
        });
        let source = match opened {
            // Deleted since it was listed, as its data is in tables: the updates begin with a later file.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound && self.next.is_none() => return Ok(true),
            opened => opened.map_err(|e| Error::io(format_args!("cannot open WAL {}", file.path.display()), &e))?,
        };
        self.reader = Some(LogReader::new(LogSource::new(source), file.log_number));
        self.current = Some((file, limit));
        self.follows = None;
        Ok(true)
    }

    fn advance(&mut self) -> Result<Option<(SequenceNumber, WriteBatch)>> {
        let mut record = Vec::new();
        while self.next.unwrap_or(self.since + 1) <= self.last {
            let Some(reader) = &mut self.reader else {
                if self.open_next()? {
                    continue;
                }
                break;
            };
            let Some((file, limit)) = &self.current else { break };
            let (path, number, limit) = (file.path.display(), file.log_number, *limit);
            let event = reader.next_record(&mut record);
            match event.map_err(|e| Error::io(format_args!("cannot read WAL {path}"), &e))? {
                LogEvent::Record { .. } => {
                    let batch = BatchRep::from_bytes(std::mem::take(&mut record))
                        .map_err(|e| Error::corruption(format!("WAL {path}: {e}")))?;
                    let (first, end) = (batch.sequence(), batch.sequence() + u64::from(batch.count()));
                    if batch.count() == 0 {
                        if let Some(follows) = Follows::read(&batch) {
                            self.follows = Some(follows);
                        } else if Precedes::read(&batch).is_none() && first > self.since && first <= limit {
                            // Log data of a user's, without an update.
                            return Ok(Some((first, WriteBatch::from_rep(batch))));
                        }
                        continue;
                    }
                    if first >= limit {
                        self.reader = None;
                        continue;
                    }
                    if end <= self.since {
                        continue;
                    }
                    if first > self.last {
                        return Ok(None); // written since
                    }
                    if let Some(next) = self.next
                        && next != first
                    {
                        let here = Some(Follows { wal: self.last_wal, end: next });
                        let why = if number == self.last_wal || self.follows == here {
                            "no WAL has those between: they were written with disable_wal, or are of ingested tables"
                        } else {
                            "those between were written with disable_wal, are of ingested tables, or their WAL is gone"
                        };
                        return Err(Error::corruption(format!(
                            "WAL {path}: the updates go on at sequence number {first}, expected {next}: {why}; take a \
                             checkpoint for what is missing, and go on after it"
                        )));
                    }
                    (self.next, self.last_wal) = (Some(end), number);
                    if first > self.since {
                        return Ok(Some((first, WriteBatch::from_rep(batch))));
                    }
                }
                // The end, or where another thread is writing; if records are missing, the next file shows it.
                LogEvent::Damage { .. } | LogEvent::End { .. } => self.reader = None,
            }
        }
        let next = self.next.unwrap_or(self.since + 1);
        if next <= self.last {
            return Err(Error::new(
                ErrorKind::TryAgain,
                format!("the WALs end before sequence number {next}, and the database is at {}", self.last),
            ));
        }
        Ok(None)
    }
}

impl Iterator for DBWALIterator {
    type Item = Result<(u64, WriteBatch)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed.is_some() {
            return None;
        }
        let next = self.advance();
        if let Err(e) = &next {
            self.failed = Some(e.clone());
        }
        next.transpose()
    }
}

impl Db {
    /// All WAL files: archived ones, then live ones, each by number (RocksDB's `GetSortedWalFiles`). Files without an
    /// update are left out.
    pub fn get_sorted_wal_files(&self) -> Result<Vec<WalFile>> {
        self.inner.front.sorted_wal_files()
    }

    /// The batches written after sequence number `seq`, from the WALs; a batch that begins at or before it is left out.
    /// It begins with the first batch that still exists: compare its sequence number with `seq + 1`. WALs exist until
    /// their data is in tables, and longer with `set_wal_ttl_seconds` or `set_wal_size_limit_mb`.
    ///
    /// A `seq` beyond the newest is `NotFound`. If updates are missing in between (they were written with
    /// `disable_wal`, or belong to ingested tables), the iterator ends with `Corruption`; if they are missing at the
    /// end, it ends with `TryAgain`. A WAL that is deleted between two updates ends it with an `IOError`, and one that
    /// is used again meanwhile (`recycle_log_file_num`) with `Corruption`. Records that `manual_wal_flush` keeps in
    /// memory are not included yet. Updates that a recovery left out, because something before them was lost, are not
    /// included either.
    pub fn get_updates_since(&self, seq: u64) -> Result<DBWALIterator> {
        let db = &self.inner;
        db.opts.statistics.add(Ticker::GetUpdatesSinceCalls, 1);
        let last = db.last_sequence();
        if seq > last {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("sequence number {seq} is not written yet; the newest is {last}"),
            ));
        }
        let mut files = VecDeque::new();
        // An earlier WAL ends where a later one begins. Any records that it has from there on were left out by a
        // recovery: they were after a hole, and their sequence numbers were used again.
        let mut limit = SequenceNumber::MAX;
        for file in db.front.sorted_wal_files()?.into_iter().rev() {
            if file.start_sequence < limit {
                let start = file.start_sequence;
                files.push_front((file, std::mem::replace(&mut limit, start)));
            }
        }
        // Skips the files before the last one that begins at or before the first wanted number.
        while files.get(1).is_some_and(|(f, _)| f.start_sequence <= seq.saturating_add(1)) {
            files.pop_front();
        }
        Ok(DBWALIterator {
            fs: Arc::clone(&db.opts.fs),
            files,
            reader: None,
            current: None,
            last_wal: 0,
            follows: None,
            since: seq,
            last,
            next: None,
            failed: None,
        })
    }
}
