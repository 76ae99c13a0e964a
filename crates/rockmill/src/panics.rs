//! Turns panics of jobs and of users' code into errors, so that the store can report them and become read-only.

use std::any::Any;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::{Error, ErrorKind, Result};

/// A panic's words.
fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message").to_owned()
}

/// Runs `call`; returns the message if it panics.
#[inline]
pub(crate) fn in_words<T>(call: impl FnOnce() -> T) -> std::result::Result<T, String> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|panic| words(&*panic))
}

/// Runs `call`; if it panics, returns an error that says that `what` panicked.
#[inline]
pub(crate) fn caught<T>(what: impl Display, call: impl FnOnce() -> T) -> Result<T> {
    in_words(call).map_err(|words| Error::new(ErrorKind::Aborted, format!("{what} panicked: {words}")))
}

/// [`caught`], of what may also fail.
pub(crate) fn guarded<T>(what: impl Display, call: impl FnOnce() -> Result<T>) -> Result<T> {
    caught(what, call).and_then(|done| done)
}
