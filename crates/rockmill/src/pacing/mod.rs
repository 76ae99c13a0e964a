//! What slows writers, and what flushes, compactions and reads get of the device.
//!
//! | file | what it decides |
//! |---|---|
//! | `decide.rs` | everything that holds until the tree or the memtables change: from observed to orders, pure |
//! | `write_control.rs` | how a tree is to slow writers, and how a writer waits |
//! | `rate_control.rs` | the rate that compactions can take in |
//! | `flush_pace.rs` | how fast memtables may fill while a flush is in flight |
//! | `flush_bound.rs` | whether writers wait for flushes rather than for compactions |
//! | `give_way.rs` | when compactions let a flush go first at the device |
//! | `reads_first.rs` | what compactions that nobody waits for leave of the device to reads |
//!
//! `file.rs` is where a table's bytes wait for the last two and for the rate limiter.

pub(crate) mod decide;
pub(crate) mod file;
pub(crate) mod flush_bound;
pub(crate) mod flush_pace;
pub(crate) mod give_way;
pub(crate) mod rate_control;
pub(crate) mod reads_first;
pub(crate) mod write_control;
