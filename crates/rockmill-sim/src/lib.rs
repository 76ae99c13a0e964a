//! A discrete-event simulation of the store's write side and of its effect on reads: the store's own strategies and
//! write control run against a modelled device and CPU, in virtual time. Use it to plan deployments, and to try
//! strategies at sizes that no available machine can hold.
//!
//! A run, file by file:
//!
//! 1. [`settings`] describes what is simulated, and refuses invalid settings.
//! 2. [`keys`] models which keys are written: the contents of a full memtable, and the result of merging tables. A
//!    table is a key range with a number of entries; there is no data.
//! 3. [`tree`] keeps the tree as the store's `Version`, so that it can use the store's `pick`
//!    (`rockmill::internals::simulation`). [`pieces`] models which files TPH tables share, and what jobs write of them.
//! 4. [`share`] divides the device and the cores among the running jobs. [`fast`] models a fast device in front: logs
//!    and index tables, or L0, L1 and the WAL; for the latter, [`peer`] can slow down writers as RocksDB does.
//! 5. [`engine`] processes the events: a memtable is full, a job ends, a sample is due.
//! 6. [`reads`] computes the cost of reads.
//! 7. [`limits`] determines what limited the writers.
//! 8. [`report`] and [`page`] present the results; [`compare`] compares a strategy with and without DF-compaction, and
//!    [`balance`] shows how evenly threads were busy.
//!
//! Separately, [`interleave`] tests strategies with random interleavings of jobs over small trees with contents, and
//! shrinks failures.
//!
//! Runs are deterministic: the same settings and seed give the same report, byte for byte.

#![forbid(unsafe_code)]

pub mod balance;
pub mod compare;
pub mod engine;
pub mod fast;
pub mod interleave;
pub mod keys;
pub mod limits;
pub mod page;
pub mod peer;
pub mod pieces;
pub mod reads;
pub mod report;
pub mod settings;
pub mod share;
pub mod tree;

pub use compare::{AllStrategies, Comparison};
pub use engine::{run, run_telling};
pub use fast::{Fast, FastComparison, Front};
pub use limits::{Limit, Limits};
pub use report::Report;
pub use rockmill::internals::simulation::{Adapts, Triggers};
pub use settings::{KeyOrder, Manner, Settings, SettingsError, Split, Workers, Workload};
