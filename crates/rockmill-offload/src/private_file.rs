//! Files of secrets.

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// Reads a text that nobody but its owner may read.
///
/// # Errors
/// The system's errors; or `PermissionDenied` without an OS error number if others may read or change the file.
pub fn read_private(path: &Path) -> io::Result<String> {
    if std::fs::metadata(path)?.permissions().mode() & 0o077 != 0 {
        let what = "others may read or change these secrets";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
    }
    std::fs::read_to_string(path)
}
