//! Perfect hash functions as bytes: each key of a fixed set gets its own slot.
//!
//! A function is built from the 64-bit hashes of the keys and is then a string of bytes, which [`PerfectHash`] reads in
//! place. It stores no keys: an absent key also gets a slot, which belongs to another key or to none. To recognise
//! absent keys, a table stores a signature with each slot.
//!
//! ```
//! use rockmill_phash::{Builder, PerfectHash, hash_key};
//!
//! let keys = ["apple", "pear", "plum"];
//! let hashes: Vec<u64> = keys.iter().map(|key| hash_key(key.as_bytes(), 7)).collect();
//! let bytes = Builder::new().seed(7).build(&hashes)?;
//!
//! let function = PerfectHash::open(&bytes[..]).expect("what was built opens");
//! let mut slots: Vec<usize> = hashes.iter().map(|&hash| function.slot(hash)).collect();
//! assert!(slots.iter().all(|&slot| slot < function.slot_count()));
//! slots.sort();
//! slots.dedup();
//! assert_eq!(slots.len(), keys.len());
//! # Ok::<(), rockmill_phash::BuildError>(())
//! ```
//!
//! There are three kinds (`docs/phash.md` specifies the bytes of the default, `cphash.rs` those of the others):
//!
//! - [`Kind::Pilot`], the default: one byte for each bucket of about three keys, 1 % of the slots empty. A lookup reads
//!   one byte that depends on the key.
//! - [`Kind::CpHash`]: CompassDB's CPHash, with 10 % of the slots empty, and [`Kind::Chd`], for comparison.
//!
//! The bytes depend only on the set of hashes, the kind and the seed, and not on the order of the hashes, the number of
//! threads or the processor's instructions.
//!
//! Whoever knows the seed can choose keys that have no function. Building then fails after a bounded time;
//! [`Builder::seed`] explains how to prevent it.
//!
//! There is no I/O and no clock. Only one module, for AVX2, has `unsafe`. Opening hostile bytes either fails, or
//! returns a function whose slots are below its [`slot_count`](PerfectHash::slot_count), which is at most 256 for each
//! byte.
#![deny(unsafe_code)]

mod build;
mod cphash;
mod error;
mod header;
mod mix;
mod partition;
mod pilot;
mod reader;
#[allow(unsafe_code)]
mod simd;

pub use build::{Builder, Kind};
pub use error::{BuildError, OpenError};
pub use mix::hash_key;
pub use reader::PerfectHash;
