//! A merge operator must be the one for which its operands were written: tables record its name.
//!
//! 1. A table that holds operands and names another operator than the column family has is refused when it is opened:
//!    by the first read or compaction that meets it.
//! 2. An open checks some tables of each column family that has an operator, the newest ones first, so that a wrong
//!    operator is nearly always found at once. It does not open all of them, since there may be many.
//! 3. Without an operator every table opens, and reading a key with operands fails.

use std::sync::Arc;

use rockmill_format::properties::EXTERNAL_VERSION;

use crate::db::DbInner;
use crate::error::{Error, ErrorKind, Result};
use crate::merge_operator::{self, MergeOperator};
use crate::table::Table;

/// The most tables of a column family that an open checks.
const TABLES_MAX: usize = 64;

/// Earlier names of RocksDB's operators.
const FORMER: &[(&str, &str)] = &[("Merge By TTL", "TtlMergeOperator")];

/// The operator of a column family, as far as its tables are concerned.
pub(crate) struct ExpectedOperator {
    column_family: String,
    operator: Arc<dyn MergeOperator>,
}

/// The name that the operator called `stored` has today.
fn known_as(stored: &str) -> String {
    if let Some((_, now)) = FORMER.iter().find(|(former, _)| *former == stored) {
        return (*now).to_owned();
    }
    merge_operator::by_name(stored).map_or_else(|| stored.to_owned(), |o| o.name().to_owned())
}

impl ExpectedOperator {
    pub fn new(column_family: &str, operator: Arc<dyn MergeOperator>) -> Self {
        Self { column_family: column_family.to_owned(), operator }
    }

    /// Refuses a table with operands of another operator.
    pub fn check(&self, table: &Table) -> Result<()> {
        let (operator, properties) = (&self.operator, table.properties());
        let stored = properties.merge_operator_name.as_str();
        // RocksDB writes "nullptr" for none.
        if properties.num_merge_operands == 0 || matches!(stored, "" | "nullptr") || stored == operator.name() {
            return Ok(());
        }
        if known_as(stored) == known_as(operator.name()) {
            return Ok(());
        }
        // RocksDB's table writers do not know about a time to live: such a table names the user's operator, and its
        // operands end with times. A table that the database wrote names the operator that wraps it, or was written
        // without times.
        let outside = properties.other.contains_key(EXTERNAL_VERSION);
        if outside && operator.wraps().is_some_and(|inner| known_as(stored) == known_as(inner)) {
            return Ok(());
        }
        Err(Error::invalid_argument(format!(
            "column family {:?}: the merge operator {:?} is given, and the table holds {} operands of {stored:?}; open \
             the database with that operator (or with none, which reads no such key)",
            self.column_family,
            operator.name(),
            properties.num_merge_operands
        )))
    }
}

impl DbInner {
    /// Looks at tables of column families with operators; see the module.
    pub fn check_table_operators(&self) -> Result<()> {
        let opened: Vec<_> = {
            let state = self.state.lock();
            let with = state.families().filter(|c| c.cf().merge_operator.is_some());
            with.map(|c| (Arc::clone(c.cf()), Arc::clone(c.version()))).collect()
        };
        for (cf, version) in opened {
            for file in version.levels.iter().flatten().take(TABLES_MAX) {
                match self.readers.tables().table(&cf, file) {
                    Err(e) if e.kind() == ErrorKind::InvalidArgument => return Err(e),
                    // Anything else that is wrong with a table is reported by the reads that need it.
                    _ => {}
                }
            }
        }
        Ok(())
    }
}
