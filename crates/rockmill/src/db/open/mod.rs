//! How a database is opened.
//!
//! | file | what happens there |
//! |---|---|
//! | `start.rs` | opening, creating, destroying |
//! | `recovery.rs` | what the WALs have becomes memtables |
//! | `log.rs` | what the info log begins with |
//! | `secondary.rs` | instances that follow another process's database |
//! | `take_over.rs` | WALs in another directory than the last opening had them in |
//! | `ttl.rs` | databases whose values live for a time |
//! | `wal_owner.rs` | whose a WAL directory is, and when a database is opened without the one that it had |
//! | `wal_note.rs` | the file that says so |

pub(crate) mod log;
pub(crate) mod recovery;
pub(crate) mod secondary;
pub(crate) mod start;
mod take_over;
pub(crate) mod ttl;
pub(crate) mod wal_note;
pub(crate) mod wal_owner;

use rockmill_io::FileLock;

use crate::sync::{Mutex, RwLockReadGuard};
use secondary::Following;
use wal_note::OwnNote;

/// One opening of a database.
pub(crate) struct Opened {
    /// Distinguishes it from all other openings in the process: handles of column families carry it.
    number: u64,
    read_only: bool,
    /// Values carry the time of their writing (`catalog/value_times.rs`).
    with_ttl: bool,
    db_id: String,
    session_id: String,
    locks: DirLocks,
    /// What it notes about its WALs if they are outside of the database's directory.
    note: OwnNote,
    /// What makes it a secondary instance, if it is one.
    following: Following,
}

impl Opened {
    /// Nothing is written to the database.
    pub fn read_only(&self) -> bool {
        self.read_only
    }

    /// Values carry the time of their writing.
    #[inline]
    pub fn with_ttl(&self) -> bool {
        self.with_ttl
    }

    /// Distinguishes it from all other openings.
    #[inline]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The database's id.
    pub fn db_id(&self) -> &str {
        &self.db_id
    }

    /// The opening's id.
    pub fn session_id(&self) -> &str {
        &self.session_id
    }

    /// What it notes about its WALs. Every new MANIFEST and OPTIONS file must be noted before it counts.
    pub fn note(&self) -> &OwnNote {
        &self.note
    }

    /// It follows another process's database.
    pub fn is_secondary(&self) -> bool {
        self.following.is_one()
    }

    /// Keeps a secondary from catching up while the result lives, because its snapshots hold nothing back.
    pub fn hold_still(&self) -> Option<RwLockReadGuard<'_, ()>> {
        self.following.hold_still()
    }

    /// The database is closed: others may open it.
    pub fn let_go(&self) {
        self.locks.wal_dir.lock().take();
        self.locks.db.lock().take();
    }
}

/// Locks of directories, held as long as the database is open.
#[derive(Debug, Default)]
struct DirLocks {
    db: Mutex<Option<Box<dyn FileLock>>>,
    /// Of a WAL directory of its own.
    wal_dir: Mutex<Option<Box<dyn FileLock>>>,
}
