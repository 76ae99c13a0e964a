//! Finds the RocksDB library of this machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::ffi::Library;

/// Directories in which a distribution may install a library that the loader does not find by its bare name.
const LIBRARY_DIRS: [&str; 5] =
    ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib"];

/// Loads the library at `path`, or else the installed one.
///
/// # Errors
/// Why no library could be loaded.
pub fn find(path: Option<&Path>) -> Result<Arc<Library>, String> {
    match path {
        Some(path) => Library::load(path).map_err(|e| format!("{}: {e}", path.display())),
        None => load_system(),
    }
}

/// Loads the installed library.
///
/// # Errors
/// Why no library could be loaded.
pub fn load_system() -> Result<Arc<Library>, String> {
    let first = match Library::load(Path::new("librocksdb.so")) {
        Ok(library) => return Ok(library),
        Err(e) => e,
    };
    // Without the -dev package there is no librocksdb.so, only names with a version at the end.
    let mut found: Vec<PathBuf> = LIBRARY_DIRS
        .iter()
        .filter_map(|dir| fs::read_dir(dir).ok())
        .flatten()
        .filter_map(|e| Some(e.ok()?.path()))
        .filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("librocksdb.so.")))
        .collect();
    found.sort();
    match found.last() {
        Some(path) => Library::load(path).map_err(|e| format!("{}: {e}", path.display())),
        None => Err(first),
    }
}
