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

use rockmill_io::FileLock;

use crate::sync::Mutex;

/// Locks of directories, held as long as the database is open.
#[derive(Debug, Default)]
pub(crate) struct DirLocks {
    db: Mutex<Option<Box<dyn FileLock>>>,
    /// Of a WAL directory of its own.
    wal_dir: Mutex<Option<Box<dyn FileLock>>>,
}

impl DirLocks {
    /// The database's directory, if it is locked at all.
    pub fn hold(&self, lock: Option<Box<dyn FileLock>>) {
        *self.db.lock() = lock;
    }

    /// A WAL directory of its own.
    pub fn hold_wal_dir(&self, lock: Box<dyn FileLock>) {
        *self.wal_dir.lock() = Some(lock);
    }

    /// The database is closed.
    pub fn let_go(&self) {
        self.wal_dir.lock().take();
        self.db.lock().take();
    }
}
