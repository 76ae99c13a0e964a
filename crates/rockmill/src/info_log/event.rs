//! Events as JSON, in the form that RocksDB's tools read: `{"time_micros": 1, "event": "flush_started"}`.

use std::borrow::Cow;
use std::fmt::Write as _;

use rockmill_format::printable;
use rockmill_io::Clock;

/// A JSON object under construction.
pub(crate) struct Event {
    text: String,
}

impl Event {
    /// An event at the current time.
    pub fn new(clock: &dyn Clock) -> Self {
        Self { text: format!("{{\"time_micros\": {}", clock.now_micros()) }
    }

    /// An event of a background job.
    pub fn of_job(clock: &dyn Clock, job: u64, kind: &str) -> Self {
        Self::new(clock).number("job", job).text("event", kind)
    }

    fn key(&mut self, key: &str) {
        let _ = write!(self.text, ", \"{key}\": ");
    }

    /// A number.
    #[must_use]
    pub fn number(mut self, key: &str, value: impl std::fmt::Display) -> Self {
        self.key(key);
        let _ = write!(self.text, "{value}");
        self
    }

    /// A text.
    #[must_use]
    pub fn text(mut self, key: &str, value: &str) -> Self {
        self.key(key);
        self.string(value);
        self
    }

    /// A list of numbers.
    #[must_use]
    pub fn numbers<T: std::fmt::Display>(mut self, key: &str, values: impl IntoIterator<Item = T>) -> Self {
        self.key(key);
        self.text.push('[');
        for (i, value) in values.into_iter().enumerate() {
            let _ = write!(self.text, "{}{value}", if i > 0 { ", " } else { "" });
        }
        self.text.push(']');
        self
    }

    /// An object; its members are written by `inner`.
    #[must_use]
    pub fn object(mut self, key: &str, inner: impl FnOnce(Self) -> Self) -> Self {
        self.key(key);
        let within = inner(Self { text: String::new() }).text;
        let _ = write!(self.text, "{{{}}}", within.strip_prefix(", ").unwrap_or(&within));
        self
    }

    /// The object as text, in one line without characters that a terminal interprets.
    pub fn finish(mut self) -> String {
        self.text.push('}');
        match printable::json(&self.text) {
            Cow::Borrowed(_) => self.text,
            Cow::Owned(text) => text,
        }
    }

    fn string(&mut self, value: &str) {
        self.text.push('"');
        for c in value.chars() {
            match c {
                '"' => self.text.push_str("\\\""),
                '\\' => self.text.push_str("\\\\"),
                c if (c as u32) < 0x20 => {
                    let _ = write!(self.text, "\\u{:04x}", c as u32);
                }
                c => self.text.push(c),
            }
        }
        self.text.push('"');
    }
}
