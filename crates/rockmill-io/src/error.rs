//! I/O errors that name the call and the path, and still tell their kind and `errno`.
//!
//! `std::io::Error` either holds an `errno` or a message. [`path_error`] wraps the first into the second: the
//! [`io::Error`] that results prints as "fdatasync /db/000012.log: No space left on device (os error 28)", keeps
//! [`io::Error::kind`], and [`raw_os_error`] finds the number again, through any depth of wrapping.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A failed call on a path. Lives inside an [`io::Error`]; clones share the cause.
#[derive(Debug, Clone)]
pub struct PathError {
    operation: Cow<'static, str>,
    path: PathBuf,
    cause: Arc<io::Error>,
}

impl PathError {
    /// What was tried, in words or by its system call's name.
    pub fn operation(&self) -> &str {
        &self.operation
    }

    /// Where.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the system (or the fault injector) answered.
    pub fn cause(&self) -> &io::Error {
        &self.cause
    }
}

impl fmt::Display for PathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.operation, self.path.display(), self.cause)
    }
}

impl Error for PathError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.cause)
    }
}

/// Wraps `cause` so that it names the operation and the path. The kind stays.
pub fn path_error(operation: impl Into<Cow<'static, str>>, path: &Path, cause: io::Error) -> io::Error {
    let kind = cause.kind();
    let error = PathError { operation: operation.into(), path: path.to_path_buf(), cause: Arc::new(cause) };
    io::Error::new(kind, error)
}

/// Another error of the same kind and words, in which [`raw_os_error`] finds the same number: [`io::Error`] is not
/// [`Clone`].
pub fn copy(error: &io::Error) -> io::Error {
    fn sharing<E: Error + Clone + Send + Sync + 'static>(error: &io::Error) -> Option<io::Error> {
        let inner = error.get_ref()?.downcast_ref::<E>()?;
        Some(io::Error::new(error.kind(), inner.clone()))
    }
    if let Some(code) = error.raw_os_error() {
        return io::Error::from_raw_os_error(code);
    }
    let ours = sharing::<PathError>(error).or_else(|| sharing::<Shared>(error));
    let ours = ours.or_else(|| sharing::<EarlierFailure>(error)).or_else(|| sharing::<NotPlain>(error));
    ours.unwrap_or_else(|| io::Error::new(error.kind(), error.to_string()))
}

/// The `errno` at the bottom of an error, however often it was wrapped.
pub fn raw_os_error(error: &io::Error) -> Option<i32> {
    if let Some(code) = error.raw_os_error() {
        return Some(code);
    }
    let mut next: Option<&(dyn Error + 'static)> = error.get_ref().map(|e| e as &(dyn Error + 'static));
    while let Some(e) = next {
        if let Some(io_error) = e.downcast_ref::<io::Error>() {
            return raw_os_error(io_error);
        }
        next = e.source();
    }
    None
}

/// True when an error says that the disk, the quota or the file size limit is used up: room can be made and the call
/// tried again, on a new file.
pub fn is_out_of_space(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge)
        || matches!(raw_os_error(error), Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG))
}

/// Why a name was refused: what is under it is not what a database's files are.
#[derive(Debug, Clone)]
struct NotPlain(String);

impl fmt::Display for NotPlain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for NotPlain {}

/// An error that says what is under a name where a regular file, or a directory, of the database's should be.
pub(crate) fn not_plain(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, NotPlain(what.into()))
}

/// The same of a file that is to be written over.
pub(crate) fn has_other_names() -> io::Error {
    not_plain("the file has other names, under which somebody may need what it holds")
}

/// True when a call was refused because of what is under the name: a link, a pipe, a device, a file with other names.
pub fn is_not_plain(error: &io::Error) -> bool {
    let mut next: Option<&(dyn Error + 'static)> = error.get_ref().map(|e| e as &(dyn Error + 'static));
    while let Some(e) = next {
        if e.is::<NotPlain>() {
            return true;
        }
        next = match e.downcast_ref::<io::Error>() {
            Some(inner) => inner.get_ref().map(|e| e as &(dyn Error + 'static)),
            None => e.source(),
        };
    }
    false
}

/// The first failure of a file being written; every later call on that file gets it again.
///
/// After a failed write the file's tail is unknown, and after a failed fsync the kernel may have dropped the dirty
/// pages and answer the next fsync with success. So neither is ever tried again.
#[derive(Debug, Default)]
pub(crate) struct FirstFailure(Option<Arc<io::Error>>);

impl FirstFailure {
    /// Refuses when something failed before.
    #[inline]
    pub(crate) fn check(&self) -> io::Result<()> {
        match &self.0 {
            None => Ok(()),
            Some(first) => Err(Self::again(first)),
        }
    }

    /// True when what failed first had no space.
    pub(crate) fn is_out_of_space(&self) -> bool {
        self.0.as_ref().is_some_and(|first| is_out_of_space(first))
    }

    /// Passes a result on, and keeps the error if it is the first.
    #[inline]
    pub(crate) fn note<T>(&mut self, result: io::Result<T>) -> io::Result<T> {
        match result {
            Ok(value) => Ok(value),
            Err(error) => Err(self.keep(error)),
        }
    }

    #[cold]
    fn keep(&mut self, error: io::Error) -> io::Error {
        if self.0.is_some() {
            return error;
        }
        // Two owners of one error: the caller and this file.
        let shared = Arc::new(error);
        self.0 = Some(Arc::clone(&shared));
        io::Error::new(shared.kind(), Shared(shared))
    }

    #[cold]
    fn again(first: &Arc<io::Error>) -> io::Error {
        io::Error::new(first.kind(), EarlierFailure(Arc::clone(first)))
    }
}

/// The first failure as the caller gets it.
#[derive(Debug, Clone)]
struct Shared(Arc<io::Error>);

impl fmt::Display for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for Shared {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.0)
    }
}

/// A call refused because of an earlier failure on the same file.
#[derive(Debug, Clone)]
struct EarlierFailure(Arc<io::Error>);

impl fmt::Display for EarlierFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "file not usable after an earlier failure: {}", self.0)
    }
}

impl Error for EarlierFailure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrapping_keeps_kind_and_errno() {
        let inner = path_error("write", Path::new("/db/1.log"), io::Error::from_raw_os_error(libc::ENOSPC));
        let outer = path_error("flush memtable to", Path::new("/db"), inner);
        assert_eq!(outer.kind(), io::ErrorKind::StorageFull);
        assert_eq!(raw_os_error(&outer), Some(libc::ENOSPC));
        assert!(is_out_of_space(&outer));
        let text = outer.to_string();
        assert!(text.contains("flush memtable to /db: write /db/1.log: "), "{text}");
    }

    #[test]
    fn copies_say_the_same() {
        let mut failure = FirstFailure::default();
        let full = || io::Error::from_raw_os_error(libc::ENOSPC);
        let shared = failure.note::<()>(Err(path_error("write", Path::new("f"), full()))).unwrap_err();
        let again = failure.check().unwrap_err();
        for error in [full(), path_error("write", Path::new("f"), full()), shared, again] {
            let copy = copy(&error);
            assert_eq!((copy.kind(), copy.to_string()), (error.kind(), error.to_string()));
            assert_eq!(raw_os_error(&copy), Some(libc::ENOSPC), "{error}");
        }
        assert!(is_not_plain(&copy(&not_plain("a link"))));
        let words = copy(&io::Error::new(io::ErrorKind::TimedOut, "too late"));
        assert_eq!((words.kind(), words.to_string()), (io::ErrorKind::TimedOut, "too late".to_owned()));
    }

    #[test]
    fn quota_and_file_size_limits_count_as_out_of_space_and_eio_does_not() {
        for code in [libc::ENOSPC, libc::EDQUOT, libc::EFBIG] {
            assert!(is_out_of_space(&path_error("write", Path::new("f"), io::Error::from_raw_os_error(code))));
        }
        assert!(!is_out_of_space(&path_error("write", Path::new("f"), io::Error::from_raw_os_error(libc::EIO))));
        assert_eq!(raw_os_error(&io::Error::other("no number")), None);
    }

    #[test]
    fn the_first_failure_is_repeated_in_words_and_number() {
        let mut failure = FirstFailure::default();
        failure.check().unwrap();
        let first = path_error("fdatasync", Path::new("x.sst"), io::Error::from_raw_os_error(libc::EIO));
        let passed = failure.note::<()>(Err(first)).unwrap_err();
        assert_eq!(raw_os_error(&passed), Some(libc::EIO));
        assert!(passed.to_string().starts_with("fdatasync x.sst: "), "{passed}");
        let _ = failure.note::<()>(Err(io::Error::from_raw_os_error(libc::ENOSPC)));
        let again = failure.check().unwrap_err();
        assert_eq!(raw_os_error(&again), Some(libc::EIO), "a later error took the place of the first");
        assert!(again.to_string().contains("earlier failure: fdatasync x.sst"), "{again}");
    }
}
