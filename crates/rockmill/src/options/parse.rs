//! The syntax of RocksDB's option text: `a=1;b={c=2;d=3};e=x:y`, escapes, comments.

use std::fmt::Write as _;

use crate::error::{Error, Result};

/// The most bytes of a value in a message.
const EXCERPT_BYTES: usize = 200;
/// Characters that are written after a backslash in a file.
const SPECIAL: [char; 5] = ['\\', '#', ':', '\r', '\n'];

/// Escapes a text for a file.
pub(crate) fn escape(raw: &str) -> String {
    let mut out = String::with_capacity(raw.len());
    for c in raw.chars() {
        if SPECIAL.contains(&c) {
            out.push('\\');
        }
        out.push(match c {
            '\n' => 'n',
            '\r' => 'r',
            other => other,
        });
    }
    out
}

/// The text that was given to [`escape`].
pub(crate) fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            // A backslash at the end is dropped.
            '\\' => match chars.next() {
                Some('n') => out.push('\n'),
                Some('r') => out.push('\r'),
                Some(other) => out.push(other),
                None => {}
            },
            other => out.push(other),
        }
    }
    out
}

/// A line without its comment and without white space at its ends.
pub(crate) fn without_comment(line: &str) -> &str {
    let mut escaped = false;
    let end = line.char_indices().find(|&(_, c)| {
        let found = c == '#' && !escaped;
        escaped = c == '\\';
        found
    });
    line[..end.map_or(line.len(), |(at, _)| at)].trim()
}

/// The text without the braces around all of it.
pub(crate) fn without_braces(text: &str) -> &str {
    let text = text.trim();
    // Where the braces that the text begins with close, the outermost first. One pass finds all of them, as there may
    // be many.
    let (mut closes, mut open, mut leading) = (Vec::new(), Vec::new(), true);
    for (at, c) in text.char_indices() {
        match c {
            '{' => {
                open.push(leading.then_some(closes.len()));
                if leading {
                    closes.push(None);
                }
            }
            '}' => {
                leading = false;
                if let Some(Some(which)) = open.pop() {
                    closes[which] = Some(at);
                }
            }
            c if c.is_whitespace() => {}
            _ => leading = false,
        }
    }
    let (mut from, mut to) = (0, text.len());
    for close in closes {
        let inner = text[from..to].trim_start();
        from = to - inner.len();
        to = from + inner.trim_end().len();
        if close.is_none_or(|close| close + 1 != to) {
            break;
        }
        (from, to) = (from + 1, to - 1);
    }
    text[from..to].trim()
}

/// The start of a text, short enough for a message.
pub(crate) fn excerpt(text: &str) -> &str {
    &text[..text.floor_char_boundary(EXCERPT_BYTES)]
}

/// The position of the closing brace for one that was opened before `text`.
fn closing_brace(text: &str) -> Option<usize> {
    let mut open = 1_usize;
    for (at, c) in text.char_indices() {
        match c {
            '{' => open += 1,
            '}' => open -= 1,
            _ => {}
        }
        if open == 0 {
            return Some(at);
        }
    }
    None
}

/// Splits `text` after its first value: returns the value without braces, and what follows the delimiter (`None` at the
/// end).
fn next_value(text: &str, delimiter: char) -> Result<(&str, Option<&str>)> {
    let text = text.trim_start();
    let Some(inner) = text.strip_prefix('{') else {
        return Ok(match text.split_once(delimiter) {
            Some((value, rest)) => (value.trim_end(), Some(rest)),
            None => (text.trim_end(), None),
        });
    };
    let Some(end) = closing_brace(inner) else {
        return Err(Error::invalid_argument(format!("a brace is not closed in {:?}", excerpt(text))));
    };
    let rest = inner[end + 1..].trim_start();
    match rest.strip_prefix(delimiter) {
        Some(rest) => Ok((inner[..end].trim(), Some(rest))),
        None if rest.is_empty() => Ok((inner[..end].trim(), None)),
        None => {
            Err(Error::invalid_argument(format!("{:?} follows a closing brace; {delimiter:?} should", excerpt(rest))))
        }
    }
}

/// Names and values of `a=1;b={c=2}`: braces around a value are taken off.
pub(crate) fn pairs(text: &str) -> Result<Vec<(String, String)>> {
    let mut out = Vec::new();
    let mut rest = Some(without_braces(text));
    while let Some(text) = rest.map(str::trim_start).filter(|t| !t.is_empty()) {
        let Some(at) = text.find(['=', '{', '}', ';']).filter(|&at| text[at..].starts_with('=')) else {
            return Err(Error::invalid_argument(format!("a name and `=` are expected at {:?}", excerpt(text))));
        };
        let name = text[..at].trim();
        if name.is_empty() {
            return Err(Error::invalid_argument(format!("a name is missing before {:?}", &text[at..])));
        }
        let (value, after) = next_value(&text[at + 1..], ';')?;
        out.push((name.to_owned(), value.to_owned()));
        rest = after;
    }
    Ok(out)
}

/// Elements of `x:y:{z=1}`; none of an empty text.
pub(crate) fn list(text: &str) -> Result<Vec<String>> {
    elements(without_braces(text))
}

/// The same for a text without outer braces: any braces belong to an element.
pub(crate) fn elements(text: &str) -> Result<Vec<String>> {
    let mut out = Vec::new();
    let text = text.trim();
    let mut rest = Some(text).filter(|t| !t.is_empty());
    while let Some(text) = rest {
        let (value, after) = next_value(text, ':')?;
        out.push(value.to_owned());
        rest = after;
    }
    Ok(out)
}

/// The name in the text of an object: `name`, or `{id=name;...}` with or without its braces; and its properties.
pub(crate) fn object(text: &str) -> Result<(String, Vec<(String, String)>)> {
    let text = without_braces(text);
    if !text.contains('=') {
        return Ok((text.to_owned(), Vec::new()));
    }
    let mut all = pairs(text)?;
    match all.iter().position(|(name, _)| name == "id") {
        Some(at) => Ok((all.remove(at).1, all)),
        None => Err(Error::invalid_argument(format!("{:?} has properties and no id", excerpt(text)))),
    }
}

/// `{a=1;b=2;}` of these names and values.
pub(crate) fn braced<'a>(pairs: impl IntoIterator<Item = (&'a str, String)>) -> String {
    let mut out = String::from("{");
    for (name, value) in pairs {
        let _ = write!(out, "{name}={value};"); // writing to a String cannot fail
    }
    out.push('}');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(list: &[(&str, &str)]) -> Vec<(String, String)> {
        list.iter().map(|&(n, v)| (n.to_owned(), v.to_owned())).collect()
    }

    #[test]
    fn escapes_go_both_ways() {
        for raw in ["", "plain", "a:b#c\\d", "two\nlines\r", "ü\\", "\\n"] {
            assert_eq!(unescape(&escape(raw)), raw);
        }
        assert_eq!(escape("a:b#c\\d\n"), "a\\:b\\#c\\\\d\\n");
        assert_eq!(unescape("end\\"), "end");
    }

    #[test]
    fn comments_end_lines() {
        assert_eq!(without_comment("  a=1  # why"), "a=1");
        assert_eq!(without_comment("a=\\#1 # two # three"), "a=\\#1");
        assert_eq!(without_comment("# all"), "");
        assert_eq!(without_comment("ü=ö#"), "ü=ö");
    }

    #[test]
    fn pairs_nest() {
        assert_eq!(pairs("").unwrap(), of(&[]));
        assert_eq!(pairs(" a = 1 ;b=2; ").unwrap(), of(&[("a", "1"), ("b", "2")]));
        assert_eq!(pairs("{{a=1}}").unwrap(), of(&[("a", "1")]));
        assert_eq!(pairs("a={b={c=1;d=2};e=3;};f=").unwrap(), of(&[("a", "b={c=1;d=2};e=3;"), ("f", "")]));
        assert_eq!(pairs("a=x=y").unwrap(), of(&[("a", "x=y")]));
        assert_eq!(pairs("a={}").unwrap(), of(&[("a", "")]));
        for bad in ["a", "=1", "a=1;b", "a={b=1", "a={b}c", "{", ";a=1", "{a=1}{b=2}", "a}=1"] {
            assert!(pairs(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn braces_around_all_of_it_are_taken_off() {
        // One pair after another.
        let plainly = |text: &str| {
            let mut text = text.trim();
            while let Some(inner) = text.strip_prefix('{')
                && closing_brace(inner).is_some_and(|end| end + 1 == inner.len())
            {
                text = inner[..inner.len() - 1].trim();
            }
            text.to_owned()
        };
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..20_000 {
            let text: String = (0..rng.usize(..12)).map(|_| *rng.choice(&['{', '}', 'a', ' ']).unwrap()).collect();
            assert_eq!(without_braces(&text), plainly(&text), "{text:?}");
        }
        // The time is linear in the number of braces: removed pair by pair, this would take minutes.
        let (open, close) = ("{".repeat(1_000_000), "}".repeat(1_000_000));
        assert_eq!(without_braces(&format!("{open}a{close}")), "a");
        let refused = pairs(&format!("a={open}")).unwrap_err();
        assert!(refused.message().len() < 1000, "{}", refused.message().len());
    }

    #[test]
    fn lists_and_objects() {
        assert_eq!(list("").unwrap(), Vec::<String>::new());
        assert_eq!(list("a:b").unwrap(), ["a", "b"]);
        assert_eq!(list("{{t=1;a=2}:{t=3}}").unwrap(), ["t=1;a=2", "t=3"]);
        assert_eq!(object("name").unwrap(), ("name".to_owned(), vec![]));
        let (name, properties) = object("{id=StringAppendOperator;delimiter=:;}").unwrap();
        assert_eq!((name.as_str(), properties), ("StringAppendOperator", of(&[("delimiter", ":")])));
        assert!(object("a=1").is_err());
        assert_eq!(braced([("a", "1".to_owned()), ("b", "{}".to_owned())]), "{a=1;b={};}");
    }
}
