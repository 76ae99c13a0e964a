//! Column families as they are named when a database is opened.

use super::Options;
use std::time::Duration;

/// Name of the column family that every database has.
pub const DEFAULT_COLUMN_FAMILY_NAME: &str = "default";

/// How long values of a column family live (`rocksdb::ColumnFamilyTtl`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ColumnFamilyTtl {
    /// For ever.
    #[default]
    Disabled,
    /// For this long, in whole seconds; zero means for ever.
    Duration(Duration),
    /// As given to the open of the database.
    SameAsDb,
}

/// A column family's name and options, to open it with.
#[derive(Debug, Clone)]
pub struct ColumnFamilyDescriptor {
    pub(crate) name: String,
    pub(crate) options: Options,
    /// Used only by opens with a time to live.
    pub(crate) ttl: ColumnFamilyTtl,
}

impl ColumnFamilyDescriptor {
    /// Opens (or, with `create_missing_column_families`, creates) `name` with `options`; only their column family
    /// part counts.
    pub fn new(name: impl Into<String>, options: Options) -> Self {
        Self { name: name.into(), options, ttl: ColumnFamilyTtl::Disabled }
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The options; only their column family part counts.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The options, to change them.
    pub fn options_mut(&mut self) -> &mut Options {
        &mut self.options
    }
}
