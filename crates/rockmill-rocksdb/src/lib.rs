//! RocksDB's library, loaded at run time, behind safe types. `rockmill-bench` measures Rockmill against it, and
//! `rockmill-stress beside` compares the two call by call.
//!
//! | module | what is in it |
//! |---|---|
//! | `ffi` | loading, options, and a database with one column family, as a benchmark uses it |
//! | [`store`] | a database with all calls of a random history: column families, snapshots, iterators, ... |
//!
//! All of this crate's `unsafe` is in these two. Both rely on the library's functions having the signatures of
//! RocksDB's `c.h`. For the functions in use, these are the same from 7.8 to 11.8.

mod ffi;
pub mod store;
mod system;
mod types;

pub use ffi::{Batch, Db, DbOptions, Iter, Library, Multi};
pub use system::{find, load_system};
