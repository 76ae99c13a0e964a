//! RocksDB's on-disk formats as pure functions: bytes in, bytes out.
//!
//! No I/O, no clocks, no `unsafe`. Every decoder takes untrusted bytes and returns a value or a [`FormatError`] with
//! the problem and its offset. None panics, and none allocates more than a small multiple of its input.
//! `docs/format.md` describes each byte.
#![forbid(unsafe_code)]

pub mod batch;
pub mod block;
pub mod checksum;
pub mod coding;
pub mod comparator;
pub mod compression;
pub mod edit;
pub mod error;
pub mod filename;
pub mod filter;
pub mod footer;
pub mod hash;
pub mod key;
pub mod key_buffer;
pub mod log;
pub mod printable;
pub mod properties;
pub mod slice_transform;

pub use comparator::{Comparator, InternalKeyComparator};
pub use error::{FormatError, Result};
pub use key::{InternalKey, MAX_SEQUENCE, ParsedInternalKey, SequenceNumber, ValueType};
pub use slice_transform::SliceTransform;
