//! Background work: flushes, compactions, in which order they become live, and recovery from errors.
//!
//! | file | what happens there |
//! |---|---|
//! | `threads.rs` | the threads: what they wait for, and when they end |
//! | `flush.rs` | which memtables become tables together, the tables, their commit |
//! | `compact.rs` | which compaction is next, and its work |
//! | `ordered_commit.rs` | when what a compaction wrote becomes live |
//! | `manual.rs`, `refit.rs` | what users ask for: `flush`, `compact_range`, levels that move |
//! | `extra_runs.rs` | extra runs made for tests |
//! | `error_recovery.rs` | background errors, and how the store resumes |
//! | `running.rs`, `timer.rs` | which jobs run; what is done now and then |

pub(crate) mod compact;
pub(crate) mod error_recovery;
#[cfg(feature = "internals")]
pub(crate) mod extra_runs;
pub(crate) mod flush;
pub(crate) mod manual;
pub(crate) mod ordered_commit;
pub(crate) mod refit;
pub(crate) mod running;
pub(crate) mod threads;
pub(crate) mod timer;
