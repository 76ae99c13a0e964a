//! The whole store under a tester that chooses which thread goes on at every lock, atomic and wait (shuttle).
//!
//! Runs only when built with `--cfg rockmill_shuttle`: see `scripts/sanitize schedules`.
#![cfg(rockmill_shuttle)]

#[path = "schedules/disk.rs"]
mod disk;
#[path = "schedules/explore.rs"]
mod explore;
#[path = "schedules/store.rs"]
mod store;
