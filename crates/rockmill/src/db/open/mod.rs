//! How a database is opened.
//!
//! | file | what happens there |
//! |---|---|
//! | `start.rs` | opening, creating, destroying |
//! | `recovery.rs` | what the WALs have becomes memtables |
//! | `log.rs` | what the info log begins with |
//! | `secondary.rs` | instances that follow another process's database |
//! | `ttl.rs` | values with a time to live |
//! | `wal_owner.rs` | whose a WAL directory is |

pub(crate) mod log;
pub(crate) mod recovery;
pub(crate) mod secondary;
pub(crate) mod start;
pub(crate) mod ttl;
pub(crate) mod wal_owner;
