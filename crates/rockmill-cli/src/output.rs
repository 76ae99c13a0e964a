//! The command's output: raw bytes, hexadecimal, escaped text, or JSON.

use std::fmt::Write as _;
use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};

use rockmill_format::printable;
use serde_json::{Map, Value, json};

pub use rockmill_format::printable::bytes as escape;

use crate::error::{CliError, Result};

/// Narrower terminals wrap lines themselves.
const COLUMNS_MIN: usize = 20;

/// Buffered standard output, and the options that apply to all commands.
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

    /// True if standard output is a terminal.
    pub fn is_terminal(&self) -> bool {
        io::stdout().is_terminal()
    }

    /// Columns available for a table: those of the terminal; otherwise there is no limit.
    pub fn columns(&self) -> usize {
        columns(self.is_terminal()).unwrap_or(usize::MAX)
    }

    /// Prints bytes unchanged: the caller's output, or values for a pipe.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.writer.write_all(bytes).map_err(|e| CliError::output(&e))
    }

    /// Prints one line of text that may contain any names: line breaks and control characters are escaped.
    pub fn line(&mut self, text: impl AsRef<str>) -> Result<()> {
        self.bytes(printable::line(text.as_ref()).as_bytes())?;
        self.bytes(b"\n")
    }

    /// Prints a text with line breaks, such as a table or a report. Names in it must not contain line breaks.
    pub fn text(&mut self, text: impl AsRef<str>) -> Result<()> {
        self.bytes(printable::lines(text.as_ref()).as_bytes())
    }

    /// Prints a line of information, unless `--quiet` is given.
    pub fn note(&mut self, text: impl AsRef<str>) -> Result<()> {
        if self.quiet { Ok(()) } else { self.sentence(text) }
    }

    /// Prints lines of words, each as [`sentence`](Self::sentence) does.
    pub fn sentences(&mut self, text: impl AsRef<str>) -> Result<()> {
        text.as_ref().lines().try_for_each(|line| self.sentence(line))
    }

    /// Prints a line of words. In a narrower terminal it takes several lines, which end between words.
    pub fn sentence(&mut self, text: impl AsRef<str>) -> Result<()> {
        match columns(self.is_terminal()) {
            Some(width) => self.text(wrapped(&printable::line(text.as_ref()), width) + "\n"),
            None => self.line(text),
        }
    }

    /// Prints a JSON value in one line.
    pub fn json_line(&mut self, value: &Value) -> Result<()> {
        self.json_text(&value.to_string())
    }

    fn json_text(&mut self, text: &str) -> Result<()> {
        self.bytes(printable::json(text).as_bytes())?;
        self.bytes(b"\n")
    }

    /// Prints a JSON value over several lines: one object that is the whole output.
    pub fn json_object(&mut self, value: &Value) -> Result<()> {
        let text = serde_json::to_string_pretty(value).unwrap_or_else(|_| value.to_string());
        self.json_text(&text)
    }

    /// Flushes everything to the reader.
    pub fn flush(&mut self) -> Result<()> {
        self.writer.flush().map_err(|e| CliError::output(&e))
    }
}

/// Columns of the terminal, if the output goes to one.
fn columns(is_terminal: bool) -> Option<usize> {
    let (columns, _) = is_terminal.then(crossterm::terminal::size)?.ok()?;
    Some(usize::from(columns)).filter(|columns| *columns >= COLUMNS_MIN)
}

/// Splits a line between words into pieces of at most `width` columns. All pieces except the first are indented. A
/// wider word stays whole, and the terminal wraps it.
fn wrapped(line: &str, width: usize) -> String {
    const INDENT: &str = "  ";
    let indent = line.len() - line.trim_start().len();
    let mut out = line[..indent].to_owned();
    let mut at = indent;
    for (i, word) in line[indent..].split(' ').enumerate() {
        let wide = word.chars().count();
        if i > 0 && at + 1 + wide > width {
            let _ = write!(out, "\n{}{INDENT}{word}", &line[..indent]);
            at = indent + INDENT.len() + wide;
        } else {
            out.push_str(if i > 0 { " " } else { "" });
            out.push_str(word);
            at += usize::from(i > 0) + wide;
        }
    }
    out
}

/// A list inside one JSON object, printed item by item without collecting it: `{"a":1,"NAME":[item,item]}`.
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
        out.bytes(printable::json(&text).as_bytes())?;
        Ok(Self { any: false })
    }

    /// Prints one item.
    pub fn item(&mut self, out: &mut Out, value: &Value) -> Result<()> {
        out.bytes(if self.any { b",\n" } else { b"\n" })?;
        self.any = true;
        out.bytes(printable::json(&value.to_string()).as_bytes())
    }

    /// Closes the list and the object, with its last fields.
    pub fn close(self, out: &mut Out, tail: &Map<String, Value>) -> Result<()> {
        out.bytes(b"\n]")?;
        for (name, value) in tail {
            out.bytes(printable::json(&format!(",{}:{value}", Value::from(name.as_str()))).as_bytes())?;
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

/// Decodes hexadecimal in upper or lower case, with or without `0x`; `None` if it is not hexadecimal.
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
    // From 999.95 on, uses the next unit, so that no figure has five digits.
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

/// A count with its noun: `1 file`, `1,200 files`, `2 entries`, `3 keys`.
pub fn plural(n: u64, thing: &str) -> String {
    let number = count(n);
    match thing.strip_suffix('y') {
        _ if n == 1 => format!("{number} {thing}"),
        Some(stem) if !stem.ends_with(['a', 'e', 'o']) => format!("{number} {stem}ies"),
        _ => format!("{number} {thing}s"),
    }
}

/// The command line of this process, quoted for a shell.
pub fn command_line() -> String {
    let quoted = |word: &str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_=+./:,@%".contains(c);
        match !word.is_empty() && word.chars().all(plain) {
            true => word.to_owned(),
            false => format!("'{}'", word.replace('\'', "'\\''")),
        }
    };
    let words = std::env::args_os().skip(1).map(|word| quoted(&word.to_string_lossy()));
    std::iter::once("rockmill".to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}

/// Seconds as text: `3.21 s`, `4 min 5 s`.
pub fn seconds(s: f64) -> String {
    if s < 120.0 { format!("{s:.2} s") } else { format!("{} min {} s", s as u64 / 60, s as u64 % 60) }
}

/// A number rounded to this many decimals, for readable JSON.
pub fn round(v: f64, decimals: i32) -> f64 {
    let scale = 10f64.powi(decimals);
    (v * scale).round() / scale
}

/// The text of an error or a warning for standard error: control characters are escaped, and lines after the first are
/// indented, so that none looks like another message.
pub fn message(text: &str) -> String {
    let text = printable::lines(text);
    let mut out = String::with_capacity(text.len());
    for (i, line) in text.split('\n').enumerate() {
        match (i, line.is_empty() || line.starts_with("  ")) {
            (0, _) => {}
            (_, true) => out.push('\n'),
            (_, false) => out.push_str("\n  "),
        }
        out.push_str(line);
    }
    out
}

/// Prints a note, a warning or an error on standard error; a failure of that cannot be reported. In a terminal, lines
/// end between words.
pub fn tell(text: &str) {
    let mut text = message(text);
    if let Some(width) = columns(io::stderr().is_terminal()) {
        text = text.split('\n').map(|line| wrapped(line, width)).collect::<Vec<_>>().join("\n");
    }
    let _ = writeln!(io::stderr(), "{text}");
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
    fn lines_end_between_words() {
        assert_eq!(wrapped("one two three", 13), "one two three");
        assert_eq!(wrapped("one two three", 12), "one two\n  three");
        assert_eq!(wrapped("  one two three", 9), "  one two\n    three");
        assert_eq!(wrapped("a much-too-long-word b", 8), "a\n  much-too-long-word\n  b");
        assert_eq!(wrapped("a  b", 80), "a  b", "gaps stay");
        assert_eq!(wrapped("", 80), "");
        let long = "space amplification 1.00; a lookup searches at most 0 sorted runs; compression ratio -";
        assert!(wrapped(long, 80).lines().all(|line| line.len() <= 80));
        assert_eq!(wrapped(long, 80).replace("\n  ", " "), long, "nothing is lost");
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
        assert_eq!((plural(1, "entry"), plural(2, "entry")), ("1 entry".to_owned(), "2 entries".to_owned()));
        assert_eq!((plural(1, "key"), plural(0, "key")), ("1 key".to_owned(), "0 keys".to_owned()));
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(seconds(61.5), "61.50 s");
        assert_eq!(seconds(185.0), "3 min 5 s");
    }
}
