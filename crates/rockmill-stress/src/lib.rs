//! Everything that tries to make the store lose data.
//!
//! [`configuration`] is the one list of what a store can be configured to: a new engine, strategy or format joins every
//! test of this crate by one line there.

#![forbid(unsafe_code)]

pub mod configuration;
