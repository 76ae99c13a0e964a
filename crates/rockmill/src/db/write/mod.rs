//! The write path: from a batch to the front (`front/`), which makes it durable and findable.
//!
//! | file | what happens there |
//! |---|---|
//! | `api.rs` | what users call: single updates and batches, checked |
//! | `batch.rs` | batches of updates |
//! | `group.rs` | how a batch gets in: its group is logged, inserted and made visible |
//! | `queue.rs` | who leads a group, and in which order groups become visible |
//! | `turn.rs`, `commit_delay.rs` | how long a writer goes on before others run; what a synced group waits for |
//! | `switch.rs` | what the leader does between groups: memtables that are full, writers that must wait |
//! | `pressure.rs` | what slows writers and what jobs get of the device: observed, and obeyed |
//! | `wal_iterator.rs` | updates read back from the logs |

mod api;
pub(crate) mod batch;
pub(crate) mod commit_delay;
pub(crate) mod group;
pub(crate) mod pressure;
pub(crate) mod queue;
pub(crate) mod switch;
pub(crate) mod turn;
pub(crate) mod wal_iterator;
