//! Options by RocksDB's names and as RocksDB's text: what `set_options` takes.
//!
//! An option is one of three: changeable, fixed while the database is open, or not known. The latter two are refused
//! by name, so that no option is passed over silently.

use super::CfOptions;
use super::declare::Kind;
use crate::error::{Error, Result};

/// Changes options of an open column family. On an error some of `options` may have changed: give it a copy.
pub(crate) fn set_mutable(options: &mut CfOptions, changes: &[(&str, &str)]) -> Result<()> {
    for &(name, value) in changes {
        let (name, value) = (name.trim(), value.trim());
        let changeable = |k: Kind| matches!(k, Kind::Mutable | Kind::Own);
        match CfOptions::TEXT.iter().find(|o| o.name == name) {
            Some(o) if changeable(o.kind) => {
                if !(o.read)(options, value) {
                    return Err(Error::invalid_argument(format!("option {name:?} cannot have the value {value:?}")));
                }
            }
            Some(_) => {
                return Err(Error::invalid_argument(format!(
                    "option {name:?} cannot change while the database is open; give it when opening"
                )));
            }
            None => {
                let known: Vec<&str> = CfOptions::TEXT.iter().filter(|o| changeable(o.kind)).map(|o| o.name).collect();
                return Err(Error::invalid_argument(format!(
                    "option {name:?} is not known to set_options, which changes {}",
                    known.join(", ")
                )));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::declare::{Kind, TextOption};
    use super::super::{BlockBasedOptions, DbOptions};
    use super::*;

    fn read_what_was_written<O: Default>(all: &[TextOption<O>]) {
        let mut options = O::default();
        for option in all {
            match (option.write)(&options) {
                Some(text) => assert!((option.read)(&mut options, &text), "{} = {text}", option.name),
                None => assert!(matches!(option.kind, Kind::Part | Kind::Hidden), "{}", option.name),
            }
        }
    }

    #[test]
    fn every_option_reads_what_it_wrote() {
        read_what_was_written(DbOptions::TEXT);
        read_what_was_written(CfOptions::TEXT);
        read_what_was_written(BlockBasedOptions::TEXT);
    }
}
