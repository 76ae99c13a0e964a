//! RocksDB's library, loaded at run time, behind safe types: what Rockmill is measured against (`rockmill-bench`) and
//! compared with, call by call (`rockmill-stress beside`).
//!
//! | module | what is in it |
//! |---|---|
//! | `ffi` | loading, options, and a database with one column family, as a benchmark uses it |
//! | [`store`] | a database with everything that a random history does: column families, snapshots, iterators, ... |
//!
//! All of this crate's `unsafe` is in these two. Both trust that the library's functions have the signatures of
//! RocksDB's `c.h`, which are the same from 7.8 to 11.8 for those used.

mod ffi;
pub mod store;
mod system;
mod types;

pub use ffi::{Batch, Db, DbOptions, Iter, Library, Multi};
pub use system::{find, load_system};
