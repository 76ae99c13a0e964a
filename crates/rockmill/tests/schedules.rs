//! The whole store with a tester that chooses the next thread at every lock, atomic and wait (shuttle), if built with
//! `--cfg rockmill_shuttle`; and a small database in Miri. `scripts/sanitize` runs both.

#[cfg(rockmill_shuttle)]
#[path = "schedules/commits.rs"]
mod commits;
#[cfg(rockmill_shuttle)]
#[path = "schedules/disk.rs"]
mod disk;
#[cfg(rockmill_shuttle)]
#[path = "schedules/explore.rs"]
mod explore;
#[cfg(rockmill_shuttle)]
#[path = "schedules/hybrid.rs"]
mod hybrid;
#[cfg(rockmill_shuttle)]
#[path = "schedules/index_merge.rs"]
mod index_merge;
#[cfg(miri)]
#[path = "schedules/small.rs"]
mod small;
#[cfg(rockmill_shuttle)]
#[path = "schedules/store.rs"]
mod store;
#[cfg(rockmill_shuttle)]
#[path = "schedules/tph.rs"]
mod tph;
