//! The page with charts.

mod compact;
mod sections;
mod usage;

use std::fmt::Write;

use rockmill_page::{document, escape};

use crate::outcome::Report;
use crate::pairs;

pub(crate) use compact::page as compact_page;

/// The whole page.
pub(crate) fn page(report: &Report) -> String {
    let names: Vec<&str> = report.sides.iter().map(|s| s.label.as_str()).collect();
    let mut out = sections::verdict(report);
    out += &sections::facts(report);
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
