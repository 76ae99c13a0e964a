//! Tests that try to make the store lose data.
//!
//! | module | what is in it |
//! |---|---|
//! | [`configuration`] | the list of configurations: a new engine or format joins all tests with one line |
//! | [`history`], [`generate`] | operations on a database, as plain data; random histories from a seed |
//! | [`model`], [`kinds`], [`cursor`] | the expected contents |
//! | [`place`], [`replay`] | runs a history on a database, and compares |
//! | [`case`], [`shrink`] | a history with its configurations; shrinking a failing one |
//! | [`metamorphic`], [`watch`] | one history with many configurations; hanging steps |
//! | [`beside`] | histories on Rockmill and on RocksDB at once, with the same results |
//! | [`cli`] | the `rockmill-stress` command |
//! | [`crash`] | power cuts at every recorded point of a history, in the recoveries too |
//! | [`faults`] | each I/O call of a history fails once |
//! | [`files`] | which files a database must have, and no others |
//! | [`contents`] | the contents of a database, and the matching moment of a history |
//! | [`workers`] | a worker of this process, which configurations may leave compactions to |
//! | [`soak`] | real kills on the real file system: `rockmill stress` |

#![forbid(unsafe_code)]

pub mod beside;
pub mod case;
pub mod cli;
pub mod configuration;
pub mod contents;
pub mod crash;
pub mod cursor;
pub mod events;
pub mod faults;
pub mod files;
pub mod generate;
pub mod history;
pub mod kinds;
pub mod metamorphic;
pub mod model;
pub mod place;
pub mod replay;

pub mod shrink;
pub mod soak;
pub mod watch;
pub mod workers;
