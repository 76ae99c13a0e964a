//! A discrete-event simulation of the store's writing side, and of what it costs readers: the store's own strategies
//! and write control, against a modelled device and CPU, in virtual time. It is how a deployment is planned, and how
//! strategies are tried at sizes that no machine at hand can hold.
//!
//! How a run goes, by file:
//!
//! 1. [`settings`] says what is simulated and refuses what makes no sense.
//! 2. [`keys`] models which keys are written: what a memtable holds when it is full, and what is left when tables are
//!    merged. A table is a key range with a number of entries; there is no data.
//! 3. [`tree`] keeps the tree as the store's `Version`, so that its `pick` (`rockmill::internals::simulation`) is asked
//!    as by the store.
//!    [`pieces`] says what TPH tables share, and what jobs write of them.
//! 4. [`share`] divides the device and the cores among the jobs that run.
//!    [`fast`] is what a fast device in front holds: logs and index tables, or L0, L1 and the WAL, whose writers
//!    [`peer`] may slow as RocksDB does.
//! 5. [`engine`] goes from event to event: a memtable is full, a job ends, a sample is due.
//! 6. [`reads`] says what a tree costs those who read it.
//! 7. [`limits`] says what kept writers from writing more.
//! 8. [`report`] and [`page`] say what came out; [`compare`] does it for a strategy with and without DF-compaction, and
//!    [`balance`] says how evenly threads were busy.
//!
//! Apart from that, [`interleave`] takes strategies through random interleavings of jobs over small trees with
//! contents, and shrinks what fails.
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
pub use rockmill::internals::simulation::Triggers;
pub use settings::{KeyOrder, Manner, Settings, SettingsError, Split, Workers, Workload};
