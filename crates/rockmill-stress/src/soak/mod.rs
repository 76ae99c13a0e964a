//! Real kills: the store on the real file system, under load, killed again and again, and checked after each death.
//!
//! 1. The parent ([`parent`]) starts a child: the same program again. The child ([`child`]) opens the database,
//!    compares all of it with the expected-state file, and then runs threads with random operations ([`work`]).
//! 2. Before an operation begins, each key that it touches is marked in that file ([`expected`]); when it has returned,
//!    the keys' new versions are. The file is written with positioned writes. The page cache survives the process, so
//!    after a kill the file tells what was acknowledged, and what may or may not have happened.
//! 3. The parent kills the child at a random moment (SIGKILL) and starts it again, perhaps under another configuration.
//!    Sometimes RocksDB first reads the closed database ([`oracle`]), or it is repaired ([`mend`]). While the child
//!    works, the parent reads the database as another process ([`beside`]). It limits disk space, file handles or
//!    memory and lifts the limits again ([`limits`]), and samples the child's resource usage ([`sample`]).
//!
//! A key has one writer at a time (with locks over ranges of keys). So at most one operation is unknown for each key,
//! and reads under the lock know exactly what to expect. An operation over many keys that was interrupted by a kill
//! must exist completely or not at all.
//!
//! Some keys are never overwritten, merged or deleted normally: they are for single deletions, whose effect on other
//! keys RocksDB leaves undefined.
//!
//! This does not test power cuts, because the page cache survives. There are no writes with `disable_wal`; with
//! `manual_wal_flush`, a write counts as acknowledged once a later `flush_wal` has returned.

pub mod beside;
pub mod child;
pub mod expected;
pub mod extras;
pub mod judge;
pub mod limits;
pub mod mend;
pub mod oracle;
pub mod parent;
pub mod reads;
pub mod report;
pub mod sample;
pub mod scenario;
pub mod settings;
pub mod value;
pub mod work;
