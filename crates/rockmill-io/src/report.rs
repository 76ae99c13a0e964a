//! Report files, with names from a command line. They are not database files: an existing file is overwritten, and
//! `/dev/stdout` is allowed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use crate::posix::{clear_nonblock, effective_user};

/// Limit of followed links, as in the kernel.
const LINKS_MAX: usize = 40;

/// Opens a report for writing, empty. A link with this name, and links that it leads to, are followed only if root or
/// the process's user created them: in a directory that others may write to, anyone could have placed a link where a
/// report is expected. The directories of the path are the caller's responsibility. A pipe must have a reader.
///
/// # Errors
/// The file cannot be made or opened; `PermissionDenied` if the name is someone else's link.
pub fn create(path: &Path) -> io::Result<File> {
    // Names in /dev and /proc belong to the system, regardless of the apparent owner of their links in a container.
    let is_systems = |name: &Path| name.starts_with("/dev") || name.starts_with("/proc");
    let (mut name, mut links) = (path.to_path_buf(), 0);
    while !is_systems(&name) {
        let Ok(there) = fs::symlink_metadata(&name) else { break };
        if !there.is_symlink() {
            break;
        }
        if ![0, effective_user()].contains(&there.uid()) || links == LINKS_MAX {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!("it is a symbolic link of user {}, which is not followed: give another name", there.uid()),
            ));
        }
        let to = fs::read_link(&name)?;
        name = name.parent().map_or_else(|| to.clone(), |dir| dir.join(&to));
        links += 1;
    }
    // A link created after this check is not followed either.
    let follow = if links == 0 && !is_systems(path) { libc::O_NOFOLLOW } else { 0 };
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o644);
    let file = options.custom_flags(follow | libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    clear_nonblock(&file)?;
    Ok(file)
}

/// Writes a whole report.
///
/// # Errors
/// As [`create`]; the text cannot be written.
pub fn write(path: &Path, text: &str) -> io::Result<()> {
    create(path)?.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{lchown, symlink};

    use super::*;

    #[test]
    fn a_report_goes_through_no_link_of_another_user() {
        let dir = tempfile::tempdir().unwrap();
        let (report, link) = (dir.path().join("report"), dir.path().join("link"));
        write(&report, "a long first report").unwrap();
        write(&report, "second").unwrap();
        assert_eq!(fs::read_to_string(&report).unwrap(), "second");
        symlink(&report, &link).unwrap();
        write(&link, "one's own link").unwrap();
        assert_eq!(fs::read_to_string(&report).unwrap(), "one's own link");
        // As if another user had created it, if the test may do that.
        if lchown(&link, Some(65534), Some(65534)).is_ok() {
            let e = write(&link, "x").unwrap_err();
            assert!(e.to_string().contains("link of user 65534"), "{e}");
            assert_eq!(fs::read_to_string(&report).unwrap(), "one's own link");
            let own = dir.path().join("own");
            symlink("link", &own).unwrap();
            assert!(write(&own, "x").unwrap_err().to_string().contains("link of user 65534"));
        }
        let pipe = dir.path().join("pipe");
        if std::process::Command::new("mkfifo").arg(&pipe).status().is_ok_and(|s| s.success()) {
            write(&pipe, "nobody reads").unwrap_err();
        }
        write(Path::new("/dev/null"), "no file").unwrap();
        write(dir.path(), "a directory").unwrap_err();
    }
}
