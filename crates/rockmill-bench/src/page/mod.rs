//! The page with charts: one file, no scripts, nothing from elsewhere. It prints as it looks.

mod compact;
mod sections;
mod svg;
mod usage;

use std::fmt::Write;

use crate::outcome::Report;
use crate::pairs;
use svg::escape;

const STYLE: &str = include_str!("style.css");

pub(crate) use compact::page as compact_page;

/// The whole page.
pub(crate) fn page(report: &Report) -> String {
    let names: Vec<&str> = report.sides.iter().map(|s| s.label.as_str()).collect();
    let mut out = sections::facts(report);
    out += &sections::overview(report);
    for (position, example) in pairs::benchmarks(report) {
        let _ = writeln!(out, "<section>\n<h2>{}</h2>", escape(example.workload.name()));
        out += &sections::benchmark(report, position, example);
        out += "</section>\n";
    }
    out += &sections::amplification(report);
    out += &sections::device(report);
    out += &sections::settings(report);
    document(&format!("rockmill bench: {}", names.join(", ")), &out)
}

/// A page of its own with this title and body.
fn document(title: &str, body: &str) -> String {
    let title = escape(title);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n{body}</main>\n</body>\n</html>\n"
    )
}
