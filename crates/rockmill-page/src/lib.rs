//! Reports as pages with charts: a single file each, without scripts or external resources. A page follows the reader's
//! light or dark scheme and prints in the light one.
//!
//! Colours are CSS variables (`style.css` has their values for both schemes), so charts need not know the scheme.

#![forbid(unsafe_code)]

pub mod svg;

use std::fmt::Write as _;

use rockmill_format::printable;

const STYLE: &str = include_str!("style.css");

/// A page with this title and body. `title` is text, `body` is HTML.
pub fn document(title: &str, body: &str) -> String {
    let title = escape(title);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n{body}</main>\n</body>\n</html>\n"
    )
}

/// Escapes characters that HTML would interpret as markup.
pub fn escape(text: &str) -> String {
    printable::lines(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The sentence at the top of a page that states the result. `text` is text.
pub fn verdict(text: &str) -> String {
    format!("<p class=\"verdict\">{}</p>\n", escape(text))
}

/// How the page was made: a line of facts in small print, then the command. Both are text.
pub fn facts(line: &str, command: &str) -> String {
    format!("<p class=\"note\">{}</p>\n<p><code>{}</code></p>\n", escape(line), escape(command))
}

/// A table: headings, and rows with as many cells. The first column and those in `text` are words, the others numbers.
/// All are text.
pub fn table(heads: &[&str], text: &[usize], rows: &[Vec<String>]) -> String {
    let mut out = format!(
        "<div class=\"scroll\"><table>\n<thead><tr>{}</tr></thead>\n",
        cells("th", heads.iter().copied(), text)
    );
    for row in rows {
        let _ = writeln!(out, "<tr>{}</tr>", cells("td", row.iter().map(String::as_str), text));
    }
    out + "</table></div>\n"
}

fn cells<'a>(tag: &str, all: impl Iterator<Item = &'a str>, text: &[usize]) -> String {
    let class = |i: usize| if text.contains(&i) { " class=\"text\"" } else { "" };
    all.enumerate().map(|(i, cell)| format!("<{tag}{}>{}</{tag}>", class(i), escape(cell))).collect()
}

/// A number in about four characters: 950, 1.5k, 23k, 4.2M.
pub fn short(n: f64) -> String {
    match n.abs() {
        x if x >= 1e9 => format!("{:.1}G", n / 1e9),
        x if x >= 1e6 => format!("{:.1}M", n / 1e6),
        x if x >= 1e4 => format!("{:.0}k", n / 1e3),
        x if x >= 1e3 => format!("{:.1}k", n / 1e3),
        x if x >= 100.0 || x == 0.0 => format!("{n:.0}"),
        x if x >= 1.0 => format!("{n:.1}"),
        _ => format!("{n:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_have_both_schemes_and_no_scripts() {
        let page = document("a < b", &(verdict("x & y") + &facts("today", "rockmill \"x\"")));
        for part in ["<title>a &lt; b</title>", "x &amp; y", "&quot;x&quot;"] {
            assert!(page.contains(part), "{part}: {page}");
        }
        assert!(page.contains("prefers-color-scheme: dark") && !page.contains("<script"));
        // Every colour in use has a value in both schemes.
        let (light, dark) = STYLE.split_once("@media screen and (prefers-color-scheme: dark)").expect("two schemes");
        let used: Vec<&str> = STYLE.split("var(").skip(1).filter_map(|rest| rest.split(')').next()).collect();
        for name in used.into_iter().chain(svg::COLOURS.iter().map(|c| &c[4..c.len() - 1])) {
            assert!(light.contains(&format!("{name}:")) && dark.contains(&format!("{name}:")), "{name}");
        }
    }

    #[test]
    fn tables_escape_their_cells() {
        let t = table(&["a", "b"], &[1], &[vec!["<x>".to_owned(), "1".to_owned()]]);
        assert!(t.contains("<th>a</th><th class=\"text\">b</th>"), "{t}");
        assert!(t.contains("<td>&lt;x&gt;</td><td class=\"text\">1</td>"), "{t}");
    }

    #[test]
    fn numbers_are_short() {
        let all = [0.0, 0.25, 9.0, 123.0, 1500.0, 23_000.0, 4_200_000.0, 7e9].map(short);
        assert_eq!(all, ["0", "0.25", "9.0", "123", "1.5k", "23k", "4.2M", "7.0G"]);
    }
}
