//! What there is: the tree's versions, column families, options.
//!
//! | file | what happens there |
//! |---|---|
//! | `install.rs` | edits go to the MANIFEST, versions become current |
//! | `column_family.rs`, `families.rs` | handles; families made and dropped |
//! | `file_numbers.rs` | numbers of files |
//! | `set_options.rs`, `options_file.rs` | options that change while the database is open; OPTIONS files |
//! | `merge_names.rs` | whether a table's merge operator is the one given |

pub(crate) mod column_family;
pub(crate) mod families;
pub(crate) mod file_numbers;
pub(crate) mod install;
pub(crate) mod merge_names;
pub(crate) mod options_file;
pub(crate) mod set_options;
