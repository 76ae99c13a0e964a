//! What a simulator of the store needs: the strategies, the shape of a tree, and the rules that slow writers, as the
//! store itself uses them. All of it is pure: no I/O, no clock.
//!
//! **Unstable.** This module is for `rockmill-sim`; names and shapes change without notice.
//!
//! A simulator makes a [`Version`] of [`FileMeta`]s that have sizes and boundary keys and no data, and then
//!
//! 1. asks [`pick`] for a job as long as it has a thread for one, gives it to [`CompactionCursors::start`], and what
//!    comes back to [`CommitQueue::issue`];
//! 2. when the job is done in its own time, calls [`CommitQueue::finished`]; when the queue gives it out, calls
//!    [`CompactionCursors::finish`], makes the next version, picks again;
//! 3. where [`pick`] finds nothing, asks [`pick_intra_df`] for pending runs to be merged, which it gives to
//!    [`CommitQueue::begin_merge`] and [`CompactionCursors::start_merge`], and at the end to [`CommitQueue::merged`]
//!    and [`CompactionCursors::finish_merge`];
//! 4. slows its writers by [`write_control`] and [`write_stop`] of [`level_scores`], and a [`RateControl`], and
//!    tells [`CompactionCursors::set_sparing`] what [`FlushBound`] makes of why they wait.

pub use crate::compaction::commit::{CommitQueue, MergeTicket, Step, Ticket};
pub use crate::compaction::strategy::aging::Moment;
pub use crate::compaction::strategy::df::runs_due;
pub use crate::compaction::strategy::intra::{IntraDf, PendingRun, pick as pick_intra_df, pick_of as pick_intra_df_of};
pub use crate::compaction::strategy::score::{LevelScores, level_scores};
pub use crate::compaction::strategy::{CompactionCursors, Issued, pick};
pub use crate::compaction::{Compaction, CompactionReason};
pub use crate::db::{FlushBound, RateControl, StallReason, WriteControl, write_control, write_stop};
pub use crate::version::{ExtraRun, FileMeta, Level, Place, PurgeQueue, Version, VersionBuilder};

use crate::error::Result;
use crate::options::CfOptions;

/// Refuses options that no column family is opened with.
///
/// # Errors
/// `InvalidArgument`, with the option's name.
pub fn check_options(options: &CfOptions) -> Result<()> {
    crate::db::check_cf_options("default", options)
}
