//! Whole files: copies, files of others, what is left of a database.
//!
//! | file | what happens there |
//! |---|---|
//! | `checkpoint.rs` | checkpoints; deletions held off |
//! | `export.rs` | column families exported and imported |
//! | `ingest/` | tables that others wrote become part of the database |
//! | `delete_files.rs` | whole tables deleted by key range |
//! | `live_files.rs` | which files there are |
//! | `repair/` | databases out of what is left of them |

pub(crate) mod checkpoint;
pub(crate) mod delete_files;
pub(crate) mod export;
pub(crate) mod ingest;
pub(crate) mod live_files;
pub(crate) mod repair;
