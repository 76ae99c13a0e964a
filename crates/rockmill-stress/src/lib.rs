//! Everything that tries to make the store lose data.
//!
//! | module | what is in it |
//! |---|---|
//! | [`configuration`] | the one list of configurations: a new engine or format joins all tests by one line |
//! | [`history`], [`generate`] | what is done with a database, as plain data; random histories from a seed |
//! | [`model`], [`kinds`], [`cursor`] | what must be seen |
//! | [`place`], [`replay`] | does a history with a database, and compares |
//! | [`case`], [`shrink`] | a history with its configurations; making one that fails small |
//! | [`metamorphic`], [`watch`] | one history under many configurations; steps that hang |
//! | [`beside`] | histories on Rockmill and on RocksDB at once, which must show the same |
//! | [`cli`] | the `rockmill-stress` command |
//! | [`crash`] | power cuts at every recorded point of a history, in the recoveries too |
//! | [`faults`] | each I/O call of a history fails once |
//! | [`files`] | which files a database must have, and no others |
//! | [`contents`] | what a database shows, and which moment of a history that is |
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
