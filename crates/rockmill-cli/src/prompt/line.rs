//! Editing a line at a terminal: bytes in, a text with a cursor out.
//!
//! This is a pure state machine, so tests need no terminal. Every character counts as one column.

use rockmill_format::printable;

/// What a key led to.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// The line is not complete.
    More,
    /// The line is complete.
    Line(String),
    /// The end of the input: Ctrl-D on an empty line.
    End,
}

/// The bytes read so far of a key that has several.
#[derive(Debug, PartialEq, Eq)]
enum Pending {
    Nothing,
    /// ESC.
    Escape,
    /// ESC [ or ESC O, and the last digit after it.
    Sequence(u8),
    /// The first bytes of a character, and how many it has in all.
    Character(Vec<u8>, usize),
}

/// A line and the lines before it.
#[derive(Debug)]
pub struct Line<'a> {
    text: Vec<char>,
    at: usize,
    history: &'a [String],
    /// Index of the line of the history that is shown; the history's length if none is.
    shown: usize,
    /// What was typed before the user went into the history.
    kept: Vec<char>,
    pending: Pending,
}

impl<'a> Line<'a> {
    /// An empty line.
    pub fn new(history: &'a [String]) -> Self {
        let shown = history.len();
        Self { text: Vec::new(), at: 0, history, shown, kept: Vec::new(), pending: Pending::Nothing }
    }

    /// Takes the next byte from the terminal. Tab completes to one of `commands`.
    pub fn byte(&mut self, byte: u8, commands: &[&str]) -> Step {
        match std::mem::replace(&mut self.pending, Pending::Nothing) {
            Pending::Nothing => return self.key(byte, commands),
            Pending::Escape if byte == b'[' || byte == b'O' => self.pending = Pending::Sequence(0),
            Pending::Escape => {}
            Pending::Sequence(_) if byte.is_ascii_digit() => self.pending = Pending::Sequence(byte),
            // Further parameters are ignored.
            Pending::Sequence(digit) if (0x20..0x40).contains(&byte) => self.pending = Pending::Sequence(digit),
            Pending::Sequence(digit) => self.sequence(digit, byte),
            Pending::Character(mut bytes, all) => {
                bytes.push(byte);
                match std::str::from_utf8(&bytes) {
                    Ok(text) => text.chars().for_each(|c| self.insert(c)),
                    Err(_) if bytes.len() < all => self.pending = Pending::Character(bytes, all),
                    Err(_) => {}
                }
            }
        }
        Step::More
    }

    fn key(&mut self, byte: u8, commands: &[&str]) -> Step {
        const fn ctrl(letter: u8) -> u8 {
            letter & 0x1f
        }
        const BACKSPACE: u8 = 0x7f;
        const ESCAPE: u8 = 0x1b;
        match byte {
            b'\r' | b'\n' => return Step::Line(self.text.iter().collect()),
            b if b == ctrl(b'D') && self.text.is_empty() => return Step::End,
            b if b == ctrl(b'D') => self.delete(),
            b if b == ctrl(b'C') => {
                self.set(Vec::new());
                self.shown = self.history.len();
            }
            b if b == ctrl(b'A') => self.at = 0,
            b if b == ctrl(b'E') => self.at = self.text.len(),
            b if b == ctrl(b'B') => self.at = self.at.saturating_sub(1),
            b if b == ctrl(b'F') => self.at = (self.at + 1).min(self.text.len()),
            b if b == ctrl(b'P') => self.look(-1),
            b if b == ctrl(b'N') => self.look(1),
            b if b == ctrl(b'K') => self.text.truncate(self.at),
            b if b == ctrl(b'U') => {
                self.text.drain(..self.at);
                self.at = 0;
            }
            b if b == ctrl(b'W') => {
                let before = &self.text[..self.at];
                let word = before.iter().rposition(|c| *c != ' ').map_or(0, |end| end + 1);
                let begin = before[..word].iter().rposition(|c| *c == ' ').map_or(0, |blank| blank + 1);
                self.text.drain(begin..self.at);
                self.at = begin;
            }
            b if (b == ctrl(b'H') || b == BACKSPACE) && self.at > 0 => {
                self.at -= 1;
                self.text.remove(self.at);
            }
            b'\t' => self.complete(commands),
            ESCAPE => self.pending = Pending::Escape,
            0..0x20 => {}
            0x20..0x7f => self.insert(char::from(byte)),
            0xc0..0xe0 => self.pending = Pending::Character(vec![byte], 2),
            0xe0..0xf0 => self.pending = Pending::Character(vec![byte], 3),
            0xf0..0xf8 => self.pending = Pending::Character(vec![byte], 4),
            _ => {}
        }
        Step::More
    }

    /// The end of ESC [: arrows, home, end, delete.
    fn sequence(&mut self, digit: u8, byte: u8) {
        match (digit, byte) {
            (_, b'A') => self.look(-1),
            (_, b'B') => self.look(1),
            (_, b'C') => self.at = (self.at + 1).min(self.text.len()),
            (_, b'D') => self.at = self.at.saturating_sub(1),
            (_, b'H') | (b'1' | b'7', b'~') => self.at = 0,
            (_, b'F') | (b'4' | b'8', b'~') => self.at = self.text.len(),
            (b'3', b'~') => self.delete(),
            _ => {}
        }
    }

    fn insert(&mut self, c: char) {
        self.text.insert(self.at, c);
        self.at += 1;
    }

    fn delete(&mut self) {
        if self.at < self.text.len() {
            self.text.remove(self.at);
        }
    }

    fn set(&mut self, text: Vec<char>) {
        self.at = text.len();
        self.text = text;
    }

    /// Moves through the history. After its newest line comes what was typed before.
    fn look(&mut self, by: isize) {
        let to = self.shown.saturating_add_signed(by).min(self.history.len());
        if to == self.shown {
            return;
        }
        if self.shown == self.history.len() {
            self.kept = std::mem::take(&mut self.text);
        }
        self.shown = to;
        let text = match self.history.get(to) {
            Some(line) => line.chars().collect(),
            None => std::mem::take(&mut self.kept),
        };
        self.set(text);
    }

    /// Completes the first word as far as all commands that begin with it agree.
    fn complete(&mut self, commands: &[&str]) {
        let word: String = self.text[..self.at].iter().collect();
        if word.contains(' ') || self.at < self.text.len() {
            return;
        }
        let mut all = commands.iter().filter(|c| c.starts_with(&word));
        let Some(first) = all.next() else { return };
        let common = |a: usize, c: &&str| first.bytes().zip(c.bytes()).take(a).take_while(|(x, y)| x == y).count();
        let (mut length, mut only) = (first.len(), true);
        for c in all {
            (length, only) = (common(length, c), false);
        }
        let rest: Vec<char> = first[word.len()..length.max(word.len())].chars().collect();
        rest.into_iter().for_each(|c| self.insert(c));
        if only {
            self.insert(' ');
        }
    }

    /// The part of the line that fits into `columns`, and the cursor's place in it. A character that the terminal would
    /// act upon is shown as a question mark.
    pub fn shown(&self, columns: usize) -> (String, usize) {
        let from = (self.at + 1).saturating_sub(columns);
        let safe = |c: &char| match printable::line(c.encode_utf8(&mut [0; 4])) {
            std::borrow::Cow::Borrowed(_) => *c,
            std::borrow::Cow::Owned(_) => '?',
        };
        (self.text[from..].iter().take(columns).map(safe).collect(), self.at - from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMANDS: [&str; 4] = ["get", "set-options", "stats", "scan"];

    fn typed(line: &mut Line<'_>, keys: &[u8]) -> Step {
        let mut step = Step::More;
        for key in keys {
            step = line.byte(*key, &COMMANDS);
        }
        step
    }

    fn after(history: &[String], keys: &[u8]) -> (String, usize) {
        let mut line = Line::new(history);
        assert_eq!(typed(&mut line, keys), Step::More);
        line.shown(80)
    }

    #[test]
    fn keys_edit_the_line() {
        assert_eq!(after(&[], b"get ada"), ("get ada".to_owned(), 7));
        assert_eq!(after(&[], b"get ada\x1b[D\x1b[D\x7f"), ("get da".to_owned(), 4));
        assert_eq!(after(&[], b"get ada\x01x"), ("xget ada".to_owned(), 1));
        assert_eq!(after(&[], b"get ada\x17"), ("get ".to_owned(), 4));
        assert_eq!(after(&[], b"get ada \x17\x17"), (String::new(), 0));
        assert_eq!(after(&[], b"get\x01\x0b"), (String::new(), 0));
        assert_eq!(after(&[], b"\x7f\x08a"), ("a".to_owned(), 1), "nothing is before the beginning");
        assert_eq!(after(&[], b"abc\x1b[H\x1b[3~\x1b[Fd"), ("bcd".to_owned(), 3));
        assert_eq!(after(&[], "gét ö".as_bytes()), ("gét ö".to_owned(), 5));
        assert_eq!(after(&[], b"get\x03x"), ("x".to_owned(), 1), "Ctrl-C begins anew");
        let mut line = Line::new(&[]);
        assert_eq!(typed(&mut line, b"get a\r"), Step::Line("get a".to_owned()));
        assert_eq!(typed(&mut Line::new(&[]), b"\x04"), Step::End);
        assert_eq!(after(&[], b"ab\x01\x04"), ("b".to_owned(), 0), "in a line, Ctrl-D deletes");
        // Bytes that are no text, and unknown sequences, do nothing.
        assert_eq!(after(&[], b"a\xff\xc3(\x1b[99;3Zb\x1bOPc"), ("abc".to_owned(), 3));
    }

    #[test]
    fn history_is_looked_through_and_left() {
        let history = ["one".to_owned(), "two".to_owned()];
        assert_eq!(after(&history, b"x\x1b[A").0, "two");
        assert_eq!(after(&history, b"x\x1b[A\x1b[A\x1b[A").0, "one");
        assert_eq!(after(&history, b"x\x1b[A\x1b[A\x1b[B\x1b[B").0, "x", "what was written comes back");
        assert_eq!(after(&history, b"\x10\x10\x0e!").0, "two!");
        assert_eq!(after(&[], b"x\x1b[A\x1b[B").0, "x");
    }

    #[test]
    fn tab_completes_commands() {
        assert_eq!(after(&[], b"g\t").0, "get ");
        assert_eq!(after(&[], b"s\t").0, "s", "nothing in common");
        assert_eq!(after(&[], b"st\t").0, "stats ");
        assert_eq!(after(&[], b"zz\t").0, "zz");
        assert_eq!(after(&[], b"get s\t").0, "get s", "arguments are not completed");
    }

    #[test]
    fn long_lines_are_shown_around_the_cursor() {
        let mut line = Line::new(&[]);
        typed(&mut line, b"0123456789");
        assert_eq!(line.shown(4), ("789".to_owned(), 3));
        typed(&mut line, b"\x01");
        assert_eq!(line.shown(4), ("0123".to_owned(), 0));
        let mut line = Line::new(&[]);
        typed(&mut line, "a\u{202e}b".as_bytes());
        assert_eq!(line.shown(9), ("a?b".to_owned(), 3), "no text turns the terminal's direction");
    }
}
