//! One JSON object a line.

use std::io;

use serde_json::Value;

use super::reader::LineReader;
use super::{Record, Step};

/// Parses objects.
pub struct JsonlParser {
    lines: LineReader,
    key: String,
    value: Option<String>,
}

impl JsonlParser {
    /// Takes the fields `key` and `value` (the whole line without one) from each line.
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
        let object: Value = match serde_json::from_slice(line) {
            Ok(object) => object,
            Err(e) => return Ok(Step::Bad(format!("not JSON: {}", short(&e)))),
        };
        match field(&object, &self.key) {
            None => return Ok(Step::Bad(format!("the object has no field {}", self.key))),
            Some(Value::String(s)) => record.key.extend_from_slice(s.as_bytes()),
            Some(v @ (Value::Number(_) | Value::Bool(_))) => record.key.extend_from_slice(v.to_string().as_bytes()),
            Some(_) => {
                let key = &self.key;
                return Ok(Step::Bad(format!("the field {key} is no string, number or boolean and can be no key")));
            }
        }
        match &self.value {
            None => record.value.extend_from_slice(line),
            Some(name) => match field(&object, name) {
                None => return Ok(Step::Bad(format!("the object has no field {name}"))),
                Some(Value::String(s)) => record.value.extend_from_slice(s.as_bytes()),
                Some(v) => record.value.extend_from_slice(v.to_string().as_bytes()),
            },
        }
        Ok(Step::Record)
    }
}

/// serde_json counts lines of the text it was given, which is always one here.
fn short(e: &serde_json::Error) -> String {
    let text = e.to_string();
    match text.rsplit_once(" at line 1 column ") {
        Some((what, column)) => format!("{what} at column {column}"),
        None => text,
    }
}

/// The field `path`: one of that very name first, else dots go into objects and numbers into lists.
fn field<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    if let Some(v) = object.get(path) {
        return Some(v);
    }
    let mut at = object;
    for name in path.split('.') {
        at = match at {
            Value::Array(list) => list.get(name.parse::<usize>().ok()?)?,
            other => other.get(name)?,
        };
    }
    Some(at)
}
