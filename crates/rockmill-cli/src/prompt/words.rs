//! Splits a line into words as a Unix shell does: at blanks, except within quotes or after a backslash.

/// Splits a line into words.
///
/// # Errors
/// An unclosed quote, or a backslash at the end.
pub fn split(line: &str) -> Result<Vec<String>, String> {
    let (mut words, mut word, mut any) = (Vec::new(), String::new(), false);
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match c {
            '\'' | '"' => {
                any = true;
                loop {
                    match chars.next() {
                        None => return Err(format!("the quote {c} is not closed")),
                        Some(end) if end == c => break,
                        Some('\\') if c == '"' => word.push(escaped(chars.next())?),
                        Some(other) => word.push(other),
                    }
                }
            }
            '\\' => {
                any = true;
                word.push(escaped(chars.next())?);
            }
            c if c.is_whitespace() => {
                if any {
                    words.push(std::mem::take(&mut word));
                }
                any = false;
            }
            c => {
                any = true;
                word.push(c);
            }
        }
    }
    if any {
        words.push(word);
    }
    Ok(words)
}

fn escaped(c: Option<char>) -> Result<char, String> {
    c.ok_or_else(|| "nothing follows the backslash at the end of the line".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_a_shells() {
        let of = |line: &str| split(line).expect("words");
        assert_eq!(of("  get   ada "), ["get", "ada"]);
        assert_eq!(of(r#"put 'a b' "c \"d\"" e\ f"#), ["put", "a b", "c \"d\"", "e f"]);
        assert_eq!(of("put k ''"), ["put", "k", ""]);
        assert_eq!(of("a'b'\"c\""), ["abc"]);
        assert!(of("").is_empty() && of("  \t").is_empty());
        assert!(split("get 'ada").is_err() && split("get \"ada").is_err() && split("get ada\\").is_err());
    }
}
