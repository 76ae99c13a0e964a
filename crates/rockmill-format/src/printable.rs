//! Text from others made safe to show: names, keys, paths and messages without characters that a terminal acts upon.
//!
//! A terminal obeys commands in the text that it shows: escape sequences rename its window, move its cursor and send
//! input to the shell. C1 controls begin such sequences without an escape. Marks of direction show text in another
//! order than it has. A line break makes a line that looks as if the program had printed it. All of them become `\xNN`.

use std::borrow::Cow;
use std::fmt::{self, Write};

/// True for a character that is not printed unchanged.
fn acts(c: char) -> bool {
    // Beside the controls: marks of direction, overrides, isolates, and Unicode's own line breaks.
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// True if the text has a character that [`acts`], other than those that `kept` names.
fn any_acts(text: &str, kept: &[char]) -> bool {
    // Most text is ASCII without controls: that is seen without decoding it.
    let plain = text.bytes().all(|b| matches!(b, b' '..=b'~'));
    !plain && text.chars().any(|c| acts(c) && !kept.contains(&c))
}

fn push(out: &mut impl Write, c: char) -> fmt::Result {
    match c {
        '\n' => out.write_str("\\n"),
        '\t' => out.write_str("\\t"),
        '\r' => out.write_str("\\r"),
        c if acts(c) => c.encode_utf8(&mut [0; 4]).bytes().try_for_each(|b| write!(out, "\\x{b:02x}")),
        c => out.write_char(c),
    }
}

fn without<'a>(text: &'a str, kept: &[char]) -> Cow<'a, str> {
    if !any_acts(text, kept) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        // Writing into a string cannot fail.
        let _ = if kept.contains(&c) { out.write_char(c) } else { push(&mut out, c) };
    }
    Cow::Owned(out)
}

/// The text as one line that no terminal acts upon. A backslash stays one: the result is for people.
pub fn line(text: &str) -> Cow<'_, str> {
    without(text, &[])
}

/// The text with its line breaks and tabs, but without anything else that a terminal acts upon.
pub fn lines(text: &str) -> Cow<'_, str> {
    without(text, &['\n', '\t'])
}

/// Bytes in readable form: text unchanged, the rest as `\xNN`, a backslash doubled; shortened if longer than `len_max`
/// bytes.
pub fn bytes(bytes: &[u8], len_max: usize) -> String {
    let shown = bytes.get(..len_max).unwrap_or(bytes);
    let mut out = String::with_capacity(shown.len() + 8);
    for chunk in shown.utf8_chunks() {
        for c in chunk.valid().chars() {
            let _ = if c == '\\' { out.write_str("\\\\") } else { push(&mut out, c) };
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

/// JSON with those characters as `\uNNNN`, which is the same JSON, because they occur only in its strings.
pub fn json(text: &str) -> Cow<'_, str> {
    // Line breaks and tabs can only be between values: within strings JSON escapes them.
    if !any_acts(text, &['\n', '\t']) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        let _ = match c {
            c if acts(c) && !matches!(c, '\n' | '\t') => write!(out, "\\u{:04x}", u32::from(c)),
            c => out.write_char(c),
        };
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_is_borrowed() {
        for text in ["", "a b\\c~", "käse ∞"] {
            assert!(matches!(line(text), Cow::Borrowed(t) if t == text), "{text}");
            assert!(matches!(lines(text), Cow::Borrowed(t) if t == text), "{text}");
            assert!(matches!(json(text), Cow::Borrowed(t) if t == text), "{text}");
        }
        assert!(matches!(lines("a\n\tb"), Cow::Borrowed("a\n\tb")));
    }

    #[test]
    fn nothing_that_a_terminal_acts_upon_passes() {
        let hostile = "\x1b]0;x\x07\x1b[2J\r\n\t\u{7f}\u{9b}31m\u{202e}\u{2066}\u{2028}\u{200f}\u{61c}\0";
        for shown in [line(hostile).into_owned(), bytes(hostile.as_bytes(), 999)] {
            assert!(!shown.chars().any(acts), "{shown:?}");
            assert!(shown.starts_with("\\x1b]0;x\\x07\\x1b[2J\\r\\n\\t\\x7f\\xc2\\x9b31m\\xe2\\x80\\xae"), "{shown}");
        }
        assert_eq!(lines("a\x1b\n\u{9b}"), "a\\x1b\n\\xc2\\x9b");
        assert_eq!(json("{\"\u{9b}\u{202e}\":\n1}"), "{\"\\u009b\\u202e\":\n1}");
    }

    #[test]
    fn bytes_show_every_byte_once() {
        assert_eq!(bytes("aä\n\\\u{1}".as_bytes(), 99), "aä\\n\\\\\\x01");
        assert_eq!(bytes(b"\xff\x00a", 99), "\\xff\\x00a");
        assert_eq!(bytes(b"abcdef", 3), "abc... (6 bytes)");
    }
}
