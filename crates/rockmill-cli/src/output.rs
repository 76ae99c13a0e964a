//! What the command prints: bytes as they are, as hexadecimal, as escapes, or as JSON.

use std::fmt::Write as _;
use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};

use serde_json::{Map, Value, json};

use crate::error::{CliError, Result};

/// Standard output with a buffer, and the choices that hold for all commands.
pub struct Out {
    writer: BufWriter<StdoutLock<'static>>,
    /// Print JSON.
    pub json: bool,
    /// Print no progress and no summaries.
    pub quiet: bool,
}

impl Out {
    /// Takes standard output.
    pub fn new(json: bool, quiet: bool) -> Self {
        Self { writer: BufWriter::with_capacity(64 << 10, io::stdout().lock()), json, quiet }
    }

    /// True when people look at standard output.
    pub fn is_terminal(&self) -> bool {
        io::stdout().is_terminal()
    }

    /// Prints bytes as they are.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.writer.write_all(bytes).map_err(|e| CliError::output(&e))
    }

    /// Prints a line of text.
    pub fn line(&mut self, text: impl AsRef<str>) -> Result<()> {
        self.bytes(text.as_ref().as_bytes())?;
        self.bytes(b"\n")
    }

    /// Prints a line for people: nothing with `--quiet`.
    pub fn note(&mut self, text: impl AsRef<str>) -> Result<()> {
        if self.quiet { Ok(()) } else { self.line(text) }
    }

    /// Prints a JSON value in one line.
    pub fn json_line(&mut self, value: &Value) -> Result<()> {
        self.line(value.to_string())
    }

    /// Prints a JSON value over several lines: one object that is the whole output.
    pub fn json_object(&mut self, value: &Value) -> Result<()> {
        let text = serde_json::to_string_pretty(value).unwrap_or_else(|_| value.to_string());
        self.line(text)
    }

    /// Hands everything to whoever reads.
    pub fn flush(&mut self) -> Result<()> {
        self.writer.flush().map_err(|e| CliError::output(&e))
    }
}

/// A list inside one JSON object, printed as it comes rather than gathered: `{"a":1,"NAME":[item,item]}`.
pub struct JsonList {
    any: bool,
}

impl JsonList {
    /// Prints the object's first fields and opens the list.
    pub fn open(out: &mut Out, head: &Map<String, Value>, name: &str) -> Result<Self> {
        let mut text = Value::Object(head.clone()).to_string();
        text.pop();
        if !head.is_empty() {
            text.push(',');
        }
        let _ = write!(text, "{}:[", Value::from(name));
        out.bytes(text.as_bytes())?;
        Ok(Self { any: false })
    }

    /// Prints one item.
    pub fn item(&mut self, out: &mut Out, value: &Value) -> Result<()> {
        out.bytes(if self.any { b",\n" } else { b"\n" })?;
        self.any = true;
        out.bytes(value.to_string().as_bytes())
    }

    /// Closes the list and the object, with its last fields.
    pub fn close(self, out: &mut Out, tail: &Map<String, Value>) -> Result<()> {
        out.bytes(b"\n]")?;
        for (name, value) in tail {
            out.bytes(format!(",{}:{value}", Value::from(name.as_str())).as_bytes())?;
        }
        out.bytes(b"}\n")
    }
}

/// Lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    let mut out = Vec::with_capacity(bytes.len() * 2);
    append_hex(&mut out, bytes);
    String::from_utf8(out).unwrap_or_default()
}

/// Appends lower-case hexadecimal.
pub fn append_hex(out: &mut Vec<u8>, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    out.reserve(bytes.len() * 2);
    for b in bytes {
        out.push(DIGITS[usize::from(b >> 4)]);
        out.push(DIGITS[usize::from(b & 15)]);
    }
}

/// Bytes from hexadecimal of either case, with or without `0x` before it; `None` when it is none.
pub fn unhex(text: &[u8]) -> Option<Vec<u8>> {
    let text = text.strip_prefix(b"0x").or_else(|| text.strip_prefix(b"0X")).unwrap_or(text);
    if !text.len().is_multiple_of(2) {
        return None;
    }
    let digit = |b: u8| match b {
        b'0'..=b'9' => Some(b - b'0'),
        b'a'..=b'f' => Some(b - b'a' + 10),
        b'A'..=b'F' => Some(b - b'A' + 10),
        _ => None,
    };
    text.as_chunks::<2>().0.iter().map(|[a, b]| Some(digit(*a)? << 4 | digit(*b)?)).collect()
}

/// Bytes for people: text as it is, the rest as `\xNN`; shortened when longer than `len_max` bytes.
pub fn escape(bytes: &[u8], len_max: usize) -> String {
    let shown = bytes.get(..len_max).unwrap_or(bytes);
    let mut out = String::with_capacity(shown.len() + 8);
    for chunk in shown.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\t' => out.push_str("\\t"),
                '\r' => out.push_str("\\r"),
                c if c.is_control() => {
                    let mut buf = [0; 4];
                    for b in c.encode_utf8(&mut buf).bytes() {
                        let _ = write!(out, "\\x{b:02x}");
                    }
                }
                c => out.push(c),
            }
        }
        for b in chunk.invalid() {
            let _ = write!(out, "\\x{b:02x}");
        }
    }
    if shown.len() < bytes.len() {
        let _ = write!(out, "... ({} bytes)", bytes.len());
    }
    out
}

/// Adds `name` (as text, if it is text) and `name_hex` to a JSON object.
pub fn put_bytes(map: &mut Map<String, Value>, name: &str, bytes: &[u8]) {
    let text = std::str::from_utf8(bytes).ok().map_or(Value::Null, Value::from);
    map.insert(name.into(), text);
    map.insert(format!("{name}_hex"), Value::from(hex(bytes)));
}

/// An entry as a JSON object.
pub fn entry_json(key: &[u8], value: Option<&[u8]>) -> Value {
    let mut map = Map::new();
    put_bytes(&mut map, "key", key);
    if let Some(value) = value {
        put_bytes(&mut map, "value", value);
    }
    Value::Object(map)
}

/// Bytes for people: `1.5 GiB`.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    // The next unit already from 999.95 on, so that no figure takes five digits.
    while value >= 999.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// A count for people: `1,234,567`.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// A number of things: `1 file`, `1,200 files`.
pub fn plural(n: u64, thing: &str) -> String {
    format!("{} {thing}{}", count(n), if n == 1 { "" } else { "s" })
}

/// Seconds for people: `3.21 s`, `4 min 5 s`.
pub fn seconds(s: f64) -> String {
    if s < 120.0 { format!("{s:.2} s") } else { format!("{} min {} s", s as u64 / 60, s as u64 % 60) }
}

/// A number rounded to so many decimals, for JSON that people read too.
pub fn round(v: f64, decimals: i32) -> f64 {
    let scale = 10f64.powi(decimals);
    (v * scale).round() / scale
}

/// The error as `--json` prints it.
pub fn error_json(e: &CliError) -> Value {
    let mut error = json!({ "kind": e.kind, "message": e.message });
    if let Some(hint) = &e.hint {
        error["hint"] = Value::from(hint.as_str());
    }
    json!({ "error": error })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_goes_both_ways() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(unhex(hex(&all).as_bytes()), Some(all.clone()));
        assert_eq!(unhex(hex(&all).to_uppercase().as_bytes()), Some(all));
        assert_eq!(unhex(b"0x6B65"), Some(b"ke".to_vec()));
        assert_eq!(unhex(b""), Some(vec![]));
        for bad in ["6", "6g", "0x6", "+1", " 61"] {
            assert_eq!(unhex(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn escapes_show_every_byte_once() {
        assert_eq!(escape("aä\n\\\u{1}".as_bytes(), 99), "aä\\n\\\\\\x01");
        assert_eq!(escape(b"\xff\x00a", 99), "\\xff\\x00a");
        assert_eq!(escape(b"abcdef", 3), "abc... (6 bytes)");
    }

    #[test]
    fn figures_for_people() {
        assert_eq!(size(0), "0 B");
        assert_eq!(size(1023), "1.0 KiB");
        assert_eq!(size(1536), "1.5 KiB");
        assert_eq!(size(3 << 30), "3.0 GiB");
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(plural(1, "file"), "1 file");
        assert_eq!(plural(1200, "file"), "1,200 files");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(seconds(61.5), "61.50 s");
        assert_eq!(seconds(185.0), "3 min 5 s");
    }
}
