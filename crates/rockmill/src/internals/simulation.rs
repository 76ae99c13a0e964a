//! The parts of the store that a simulator needs, as the store itself uses them: the strategies, the shape of a tree,
//! and the rules that slow down writers. All of it is pure: no I/O, no clock.
//!
//! A simulator makes a [`Version`] of [`FileMeta`]s that have sizes and boundary keys but no data. Then it
//!
//! 1. asks [`pick`] for a job while it has a free thread, passes it to [`RunningCompactions::start`], and passes the
//!    result to [`CommitQueue::issue`]; for TPH tables, [`files_to_keep`] tells which files a job's outputs continue to
//!    use;
//! 2. calls [`CommitQueue::finished`] when the job is done in simulated time; when the queue returns it, calls
//!    [`RunningCompactions::finish`], makes the next version, and picks again;
//! 3. if [`pick`] finds nothing, asks [`pick_intra_df`] for pending runs to merge, passes them to
//!    [`CommitQueue::begin_merge`] and [`RunningCompactions::start_merge`], and at the end to [`CommitQueue::merged`]
//!    and [`RunningCompactions::finish_merge`];
//! 4. stops its writers as [`decide`] says, and slows them down by a [`RateControl`], which gets [`Orders::tree`], and,
//!    while a flush is in flight, by the flush's [`allowance`]; passes the result of [`is_flush_bound`] on why they
//!    wait ([`FlushBound`]) to [`RunningCompactions::set_flush_bound`], and whether they are idle ([`Lull`]) to
//!    [`RunningCompactions::set_writers_at_work`];
//! 5. if values stay in logs, merges and flushes index tables by [`Orders::schedules`].

pub use crate::compaction::Compaction;
pub use crate::compaction::commit::{CommitQueue, MergeTicket, Step, Ticket};
pub use crate::compaction::pieces::{KeptFile, files_to_keep};
pub use crate::compaction::strategy::aging::Moment;
pub use crate::compaction::strategy::df::{runs_due, split_over_idle};
pub use crate::compaction::strategy::intra::{IntraDf, PendingRun, pick as pick_intra_df, pick_of as pick_intra_df_of};
pub use crate::compaction::strategy::manual::{ManualPick, ManualStep, StepKind};
pub use crate::compaction::strategy::refit::pick as pick_refit;
pub use crate::compaction::strategy::score::{LevelScores, level_scores};
pub use crate::compaction::strategy::{Issued, RunningCompactions, pick};
pub use crate::db::files::ingest::deepest_place;
pub use crate::event_listener::CompactionReason;
pub use crate::pacing::common::JOB_BYTES_PER_SECOND_MIN;
pub use crate::pacing::decide::{
    Allowance, FamilyNow, FlushQueue, FullMemtables, LogsNow, MemtablesNow, OneSchedule, Orders, StoreNow, allowance,
    decide, is_flush_bound, is_flush_due,
};
pub use crate::pacing::flush_bound::{FlushBound, FlushWaits};
pub use crate::pacing::flush_pace::{FlushPace, OneFlush};
pub use crate::pacing::index_tables::{Adapts, IndexQueues, IndexSchedule, ScheduleChange, Short, Triggers};
pub use crate::pacing::lull::Lull;
pub use crate::pacing::rate_control::RateControl;
pub use crate::pacing::write_control::{StallReason, TreeLoad, WriteControl};
pub use crate::table::TphSettings;
pub use crate::version::{ExtraRun, FileMeta, Level, PurgeQueue, SortedRun, Version, VersionBuilder};

use crate::error::Result;
use crate::options::CfOptions;

/// Refuses options with which no column family can be opened.
///
/// # Errors
/// `InvalidArgument`, with the option's name.
pub fn check_options(options: &CfOptions) -> Result<()> {
    crate::options::check::check_cf_options("default", options)
}

/// Unused bytes of a full memtable with one writer. Its arena has just begun a block, with which it has the allowed
/// size, or up to one block more; this is the mean of both (`front/wal_memtable/memory.rs`, `memtable/arena.rs`).
pub fn memtable_left_over(options: &CfOptions) -> usize {
    let step = crate::memtable::arena_step(options.write_buffer_size, options.arena_block_size);
    crate::memtable::block_of_arena(options.write_buffer_size, step) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_memtable_is_full_when_what_is_said_to_be_left_over_is() {
        for mib in [2usize, 4, 16] {
            let dir = tempfile::tempdir().unwrap();
            let mut options = crate::Options::default();
            options.create_if_missing(true);
            options.set_write_buffer_size(mib << 20);
            options.set_disable_auto_compactions(true);
            options.set_compression_type(crate::CompressionType::None);
            let db = crate::Db::open(&options, dir.path()).unwrap();
            let mut key = 0u64;
            while db.counters().flushes < 2 {
                db.put(key.to_be_bytes(), [1; 1000]).unwrap();
                key += 1;
                assert!(key < 100_000, "two memtables of {mib} MiB are not flushed");
                if key.is_multiple_of(256) {
                    db.wait_for_background_work().unwrap();
                }
            }
            let c = db.counters();
            // An entry's overhead is the eight bytes of its tag in a table, and about forty bytes in a memtable.
            let filled = c.flush_bytes as f64 / c.flushes as f64 / 1016.0 * 1048.0;
            let (all, left_over) = ((mib << 20) as f64, memtable_left_over(&options.cf) as f64);
            // None, or one block.
            let expected = (all - left_over * 2.0) * 0.97..all * 1.03;
            assert!(expected.contains(&filled), "{mib} MiB: {filled}, expected {expected:?}");
        }
    }
}
