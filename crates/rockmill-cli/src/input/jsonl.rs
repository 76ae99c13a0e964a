//! One JSON object a line.
//!
//! Strings are unescaped. Everything else is taken from the line byte for byte: numbers of any size and precision keep
//! their digits, so `1.10` does not become `1.1`, and nested values keep their order and spaces.

use std::collections::BTreeMap;
use std::io;

use serde_json::value::RawValue;

use super::reader::LineReader;
use super::{Record, Step};

/// Parses objects.
pub struct JsonlParser {
    lines: LineReader,
    key: String,
    value: Option<String>,
}

impl JsonlParser {
    /// Takes the fields `key` and `value` (if `None`, the whole line) from each line.
    pub fn new(lines: LineReader, key: String, value: Option<String>) -> Self {
        Self { lines, key, value }
    }

    /// See [`super::Source::line`].
    pub fn line(&self) -> u64 {
        self.lines.number()
    }

    /// See [`super::Source::next`].
    pub fn next(&mut self, record: &mut Record) -> io::Result<Step> {
        let line = loop {
            match self.lines.next()?.map(<[u8]>::trim_ascii) {
                None => return Ok(Step::End),
                Some([]) => {}
                Some(line) => break line,
            }
        };
        Ok(take(line, &self.key, self.value.as_deref(), record).unwrap_or_else(Step::Bad))
    }
}

/// Takes the fields `key` and `value` of a line; the error describes what is wrong with it.
fn take(line: &[u8], key: &str, value: Option<&str>, record: &mut Record) -> Result<Step, String> {
    let not_json = |e: serde_json::Error| format!("not JSON: {}", short(&e));
    let object: &RawValue = serde_json::from_slice(line).map_err(not_json)?;
    let found = |name: &str| field(object, name).map_err(not_json)?.ok_or(format!("the object has no field {name}"));
    let text = found(key)?;
    // The first character tells the type.
    if matches!(text.get().as_bytes().first(), None | Some(b'{' | b'[' | b'n')) {
        return Err(format!("the field {key} is not a string, number or boolean, so it cannot be a key"));
    }
    append(text, &mut record.key).map_err(not_json)?;
    match value {
        None => record.value.extend_from_slice(line),
        Some(name) => append(found(name)?, &mut record.value).map_err(not_json)?,
    }
    Ok(Step::Record)
}

/// Appends the unescaped string, or the text of any other value.
fn append(value: &RawValue, out: &mut Vec<u8>) -> serde_json::Result<()> {
    let text = value.get();
    if text.starts_with('"') {
        out.extend_from_slice(serde_json::from_str::<String>(text)?.as_bytes());
    } else {
        out.extend_from_slice(text.as_bytes());
    }
    Ok(())
}

/// Drops serde_json's line number, which is always 1 here.
fn short(e: &serde_json::Error) -> String {
    let text = e.to_string();
    match text.rsplit_once(" at line 1 column ") {
        Some((what, column)) => format!("{what} at column {column}"),
        None => text,
    }
}

/// The field `path`: first a field with exactly this name; otherwise dots lead into objects and numbers into lists.
fn field<'a>(object: &'a RawValue, path: &str) -> serde_json::Result<Option<&'a RawValue>> {
    if let Some(value) = member(object, path)? {
        return Ok(Some(value));
    }
    let mut at = object;
    for name in path.split('.') {
        match member(at, name)? {
            Some(value) => at = value,
            None => return Ok(None),
        }
    }
    Ok(Some(at))
}

/// A member of an object, or the element of a list with this number.
fn member<'a>(value: &'a RawValue, name: &str) -> serde_json::Result<Option<&'a RawValue>> {
    match value.get().as_bytes().first() {
        Some(b'{') => Ok(serde_json::from_str::<BTreeMap<String, &RawValue>>(value.get())?.remove(name)),
        Some(b'[') => {
            let list: Vec<&RawValue> = serde_json::from_str(value.get())?;
            Ok(name.parse::<usize>().ok().and_then(|at| list.get(at).copied()))
        }
        _ => Ok(None),
    }
}
