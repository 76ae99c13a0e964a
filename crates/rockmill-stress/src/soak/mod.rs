//! Real kills: the store on the real file system, under load, killed again and again, and checked after each death.
//!
//! 1. The parent ([`parent`]) starts a child: the same program again. The child ([`child`]) opens the database,
//!    compares all of it with the expected-state file, and then runs threads of random operations ([`work`]).
//! 2. Before an operation begins, each key that it touches is marked in that file ([`expected`]); when it has returned,
//!    the keys' new versions are. The file is written with positioned writes: what is in the page cache outlives the
//!    process, so after a kill it says what was acknowledged, and what may or may not have happened.
//! 3. The parent kills the child at a random moment (SIGKILL) and starts it again, perhaps under another configuration.
//!    Sometimes RocksDB reads the dead database first ([`oracle`]), or it is repaired ([`mend`]). While the child
//!    works, the parent reads the database as another process would ([`beside`]). It takes room, file handles or memory
//!    away and gives them back ([`limits`]), and watches what the child uses ([`sample`]).
//!
//! A key has one writer at a time (locks over ranges of keys), so that at most one operation is unknown for each key,
//! and reads under the lock know exactly what must be there. Of what was under way at a kill, an operation over many
//! keys must be there whole or not at all.
//!
//! Some keys are never overwritten, merged or deleted in the plain way: they are for single deletions, whose meaning
//! RocksDB leaves undefined elsewhere.
//!
//! What this proves nothing about: power cuts, since the page cache lives on. Writes with `disable_wal` are not made;
//! under `manual_wal_flush` a write counts as acknowledged once a `flush_wal` behind it has returned.

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
