//! The front: the part of the store that takes writes before they are in tables.
//!
//! It takes a group of writes, makes it durable and findable, answers reads of data that is in no table yet, and hands
//! that data over, sorted, to a flush. Writers, readers and flushes call the methods below and know nothing else about
//! it: where data is durable, and in which memory it is, is internal to the front. There is one implementation, a
//! write-ahead log and memtables (`wal_memtable/`).
//!
//! # What a front promises
//!
//! - **Order.** Groups are appended by one leader at a time, in the order of their sequence numbers. They may be
//!   inserted at the same time; the write queue makes them visible in their order.
//! - **Durability.** Appended records survive the process, and with `sync` the machine, once the leader has
//!   acknowledged them (with `manual_wal_flush`, once the log was flushed). With `disable_wal` nothing is appended, and
//!   inserted entries are lost with the process.
//! - **Prefix.** After a crash of the machine a prefix of the appended groups comes back, over all column families: no
//!   group without all groups before it. A group comes back whole or not at all.
//! - **Visibility.** An entry can be found from its insertion on, by reads that may see its sequence number, in every
//!   [`FrontView`] of that time. A later view leaves it out once the version that goes with the view has the entry's
//!   table.
//! - **Failure.** After a failed append or sync nothing more is appended to that log. Records whose writers got an
//!   error are cut off before another log begins, so that they cannot come back. If values stay in the log, an append
//!   that found no space is cut off at once, and may be tried again ([`Front::append_was_undone`]).
//!
//! # Its parts
//!
//! | type | of what | guarded by |
//! |---|---|---|
//! | [`Front`] | the store: the log in use, files, memory | the write leader, where it changes the log |
//! | [`Logs`] | the store: which logs there are, which may go | `state` |
//! | [`FamilyFront`] | a column family: what is in no table, and its flush | `state` |
//! | [`FrontView`] | a column family, as readers and writers hold it | nothing: all that changes are insertions |
//! | [`SealedRuns`] | a column family: what a flush writes, and reads it with | nothing: it does not change |
//!
//! # What it does
//!
//! 1. **Take a group.** [`Front::lead`], then `append`, `sync`, `acknowledge`; then [`FrontView::insert`] for each
//!    entry. A group that panics after the append is undone by [`Front::take_back`] with the length from before. Both
//!    steps stand in one place, `DbInner::write_group` of `db/write/group.rs`.
//! 2. **Find.** [`FrontView::get`], `iterators`, `range_tombstones`.
//! 3. **Seal and hand over.** When it is time: [`FamilyFront::is_full`], [`Front::release_logs`],
//!    [`FrontMemory::family_to_seal`], which the leader asks in `db/write/switch.rs`. [`Front::begin_log`] and
//!    [`FamilyFront::seal`]; a flush takes ([`FamilyFront::take_sealed`]) and lets go ([`FamilyFront::flushed`]).
//!    Index tables that wait may become one meanwhile ([`FamilyFront::take_merge`], [`IndexMerge`],
//!    [`FamilyFront::merged`]).
//! 4. **Recover.** [`Front::recover`] replays what is durable and in no table, into what the store gives
//!    ([`RecoveryHost`]). An instance that follows another process's database reads on in [`Followed`].
//! 5. **Keep and delete logs.** [`Logs`] says which may go, [`Front::retire_logs`] lets them go.
//! 6. **Account for memory.** [`FrontMemory`]; [`BufferStats`] of a family.
//!
//! # Who knows that logs are files
//!
//! - An opening: which database the directory of the logs belongs to (`db/open/wal_owner.rs`), which logs must be
//!   recovered, and that a new database has none (`db/open/start.rs`); the info log names them (`db/open/log.rs`).
//! - Repair, checkpoints, backups and `Db::get_updates_since` read or copy logs themselves. Each needs something
//!   different: the data between damaged records, the first bytes of files, whole batches for users.
//!
//! They share only the names of logs and their format, which `rockmill-format` has, and the logs' directories, which
//! are in `wal_files.rs`. An interface here would only repeat these. A front without a WAL needs its own version of
//! these operations, or refuses them.
//!
//! # Other fronts
//!
//! With `fast_capacity` values stay in the log, and memtables hold only their places ([`LoggedBatch`]): the same front
//! with other memtables. Full memtables are then bounded by the logs (`LogsNow`), and by the memory of all memtables.
//!
//! A second front would be a folder next to `wal_memtable/` with the same five types, and the types that their methods
//! use. Which front a database has is known when it is opened, so the five would then become enums, matched once for a
//! group, a lookup, a seek or a flush. The other names below are values and traits, and those of `wal_files.rs` are
//! about files.

mod wal_memtable;

use rockmill_format::ValueType;
use rockmill_format::batch::BatchRecord;

pub(crate) use wal_memtable::WalMemtable as Front;
pub(crate) use wal_memtable::family::{FamilyFront, WritersNow};
pub(crate) use wal_memtable::follow::{Followed, LooseBuffer};
pub(crate) use wal_memtable::index_merge::{IndexMerge, MergeMeans};
pub(crate) use wal_memtable::logs::{LogRelease, Logs};
pub(crate) use wal_memtable::memory::FrontMemory;
pub(crate) use wal_memtable::recovery::{CHECK_EVERY, KeptLogs, RecoveryHost, RecoveryPlan};
pub(crate) use wal_memtable::sealed_reads::ReadMeans;
pub(crate) use wal_memtable::view::{FrontView, SealedRuns};
pub(crate) use wal_memtable::wal::{Follows, Precedes};
pub(crate) use wal_memtable::wal_files::{
    ARCHIVE, Retired, destroy_wals, has_updates, misses_logs, wal_dir_of, wal_numbers,
};
pub use wal_memtable::wal_files::{WalFile, WalFileType};

use crate::error::Error;
pub(crate) use crate::memtable::log_read_ahead::LogReadCounts;
pub(crate) use crate::memtable::log_values::LoggedBatch;

/// Entries in memory that are in no table, in numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct BufferStats {
    /// Bytes allocated.
    pub memory: u64,
    /// Internal key and value bytes.
    pub data_size: u64,
    /// Point entries and range tombstones.
    pub entries: u64,
    /// Deletions of all kinds.
    pub deletes: u64,
    /// Range tombstones.
    pub range_deletes: u64,
}

impl std::iter::Sum for BufferStats {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |a, b| Self {
            memory: a.memory + b.memory,
            data_size: a.data_size + b.data_size,
            entries: a.entries + b.entries,
            deletes: a.deletes + b.deletes,
            range_deletes: a.range_deletes + b.range_deletes,
        })
    }
}

/// Describes a sealed memtable, for listeners.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SealedInfo {
    /// Its number: later ones of the column family have larger ones.
    pub id: u64,
    /// The smallest sequence number in it.
    pub first_sequence: u64,
    /// What it holds.
    pub stats: BufferStats,
}

/// A log could not be used: what failed, for a message, and why.
#[derive(Debug)]
pub(crate) struct LogFailure {
    /// "a write to the WAL", for example.
    pub what: &'static str,
    /// Why.
    pub error: Error,
    /// The log in use may have something at its end that does not count.
    pub changed: bool,
}

/// Column family, entry type, key and value of a record that changes something.
pub(crate) fn entry_of<'a>(record: &BatchRecord<'a>) -> Option<(u32, ValueType, &'a [u8], &'a [u8])> {
    Some(match *record {
        BatchRecord::Put { cf, key, value } => (cf, ValueType::Value, key, value),
        BatchRecord::Delete { cf, key } => (cf, ValueType::Deletion, key, &[][..]),
        BatchRecord::SingleDelete { cf, key } => (cf, ValueType::SingleDeletion, key, &[][..]),
        BatchRecord::Merge { cf, key, value } => (cf, ValueType::Merge, key, value),
        BatchRecord::DeleteRange { cf, begin, end } => (cf, ValueType::RangeDeletion, begin, end),
        BatchRecord::LogData(_) | BatchRecord::Noop => return None,
    })
}
