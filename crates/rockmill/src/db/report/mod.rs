//! What users can ask about the store, and what listeners and the info log are told.
//!
//! | file | what happens there |
//! |---|---|
//! | `events.rs` | who tells listeners, and what goes to LOG |
//! | `stats.rs`, `stats_text.rs` | what is always counted; its text |
//! | `properties.rs`, `summary.rs` | properties by name; a database that is not open, in brief |
//! | `approximate_sizes.rs`, `memory_usage.rs` | sizes of key ranges; memory by what has it |
//! | `explain.rs` | what a compaction would do |

pub(crate) mod approximate_sizes;
pub(crate) mod events;
pub(crate) mod explain;
pub(crate) mod memory_usage;
pub(crate) mod properties;
pub(crate) mod stats;
pub(crate) mod stats_text;
pub(crate) mod summary;
