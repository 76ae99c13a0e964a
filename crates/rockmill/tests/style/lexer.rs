//! Splits Rust source into code and comments, line by line, so that rules about code do not apply to text.

/// One source line: its code with the contents of strings blanked, and its comments.
#[derive(Debug, Default, Clone)]
pub struct Line {
    /// Code; string and character literals keep their quotes only.
    pub code: String,
    /// Text of the comments on this line, with their slashes.
    pub comment: String,
    /// True inside a `#[cfg(test)]` item.
    pub test: bool,
}

enum State {
    Code,
    LineComment,
    BlockComment(usize),
    Str,
    RawStr(usize),
}

/// Lexes a file.
pub fn lines(source: &str) -> Vec<Line> {
    let mut out = vec![Line::default()];
    let mut state = State::Code;
    let chars: Vec<char> = source.chars().collect();
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let mut i = 0;
    while i < chars.len() {
        let c = chars[i];
        if c == '\n' {
            if matches!(state, State::LineComment) {
                state = State::Code;
            }
            out.push(Line::default());
            i += 1;
            continue;
        }
        let line = out.last_mut().expect("never empty");
        match state {
            State::Code => {
                let word_before = line.code.chars().last().is_some_and(|p| p.is_alphanumeric() || p == '_');
                if c == '/' && at(i + 1) == '/' {
                    state = State::LineComment;
                    continue;
                }
                if c == '/' && at(i + 1) == '*' {
                    state = State::BlockComment(1);
                    i += 2;
                    continue;
                }
                let raw = match c {
                    'r' if !word_before => Some(i + 1),
                    'b' | 'c' if !word_before && at(i + 1) == 'r' => Some(i + 2),
                    _ => None,
                };
                if let Some(start) = raw {
                    let hashes = (start..).take_while(|&j| at(j) == '#').count();
                    if at(start + hashes) == '"' {
                        line.code.push('"');
                        state = State::RawStr(hashes);
                        i = start + hashes + 1;
                        continue;
                    }
                }
                if c == '"' {
                    line.code.push('"');
                    state = State::Str;
                    i += 1;
                    continue;
                }
                if c == '\'' {
                    // A character literal, or else a lifetime.
                    let end = if at(i + 1) == '\\' {
                        (i + 3..i + 12).find(|&j| at(j) == '\'')
                    } else {
                        (at(i + 2) == '\'').then_some(i + 2)
                    };
                    if let Some(end) = end {
                        line.code.push_str("''");
                        i = end + 1;
                        continue;
                    }
                }
                line.code.push(c);
                i += 1;
            }
            State::LineComment => {
                line.comment.push(c);
                i += 1;
            }
            State::BlockComment(depth) => {
                if c == '*' && at(i + 1) == '/' {
                    state = if depth == 1 { State::Code } else { State::BlockComment(depth - 1) };
                    i += 2;
                } else if c == '/' && at(i + 1) == '*' {
                    state = State::BlockComment(depth + 1);
                    i += 2;
                } else {
                    line.comment.push(c);
                    i += 1;
                }
            }
            State::Str => {
                if c == '\\' && at(i + 1) != '\n' {
                    i += 2;
                } else {
                    if c == '"' {
                        line.code.push('"');
                        state = State::Code;
                    }
                    i += 1;
                }
            }
            State::RawStr(hashes) => {
                if c == '"' && (0..hashes).all(|k| at(i + 1 + k) == '#') {
                    line.code.push('"');
                    state = State::Code;
                    i += 1 + hashes;
                } else {
                    i += 1;
                }
            }
        }
    }
    mark_tests(&mut out);
    out
}

/// Marks the lines of `#[cfg(test)]` items: from the attribute to the item's closing brace or semicolon.
fn mark_tests(lines: &mut [Line]) {
    let mut i = 0;
    while i < lines.len() {
        let code = lines[i].code.trim();
        let attribute = code.starts_with("#[cfg(test)]") || code.starts_with("#[cfg(all(test");
        if !attribute {
            i += 1;
            continue;
        }
        let mut depth = 0usize;
        let mut opened = false;
        'item: while i < lines.len() {
            lines[i].test = true;
            // The attribute's own parentheses and brackets do not count: only braces do.
            for c in lines[i].code.chars() {
                match c {
                    '{' => {
                        depth += 1;
                        opened = true;
                    }
                    '}' => {
                        depth = depth.saturating_sub(1);
                        if depth == 0 && opened {
                            i += 1;
                            break 'item;
                        }
                    }
                    ';' if depth == 0 => {
                        i += 1;
                        break 'item;
                    }
                    _ => {}
                }
            }
            i += 1;
        }
    }
}

/// True when `word` stands in `text` with no letter, digit or underscore beside it.
pub fn has_word(text: &str, word: &str) -> bool {
    let part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    text.match_indices(word)
        .any(|(at, _)| !part(text[..at].chars().next_back()) && !part(text[at + word.len()..].chars().next()))
}

#[test]
fn the_lexer_tells_code_from_text() {
    let source = "let a = \"unsafe // no\"; // unsafe here\nlet c = '\"'; unsafe {}\nlet r = r#\"un\"safe\"#; /* a /* b \
                  */ c */ f::<'x>();\n#[cfg(test)]\nmod tests {\n  fn f() { g(\"}\") }\n}\nfn h() {}\n";
    let lines = lines(source);
    assert_eq!(lines[0].code, "let a = \"\"; ");
    assert_eq!(lines[0].comment, "// unsafe here");
    assert_eq!(lines[1].code, "let c = ''; unsafe {}");
    assert_eq!(lines[2].code, "let r = \"\";  f::<'x>();");
    let tests: Vec<bool> = lines.iter().map(|l| l.test).collect();
    assert_eq!(tests, [false, false, false, true, true, true, true, false, false]);
    assert!(has_word("a unsafe{", "unsafe") && !has_word("unsafe_code", "unsafe"));
}
