//! The page of `rockmill bench compact`.

use std::fmt::Write;

use rockmill_page::svg::{self, Bar, RatioRow};
use rockmill_page::{document, escape};

use super::sections;
use crate::compact::{CaseReport, CompactReport, JobPair, JobRun};
use crate::outcome::MIB;
use crate::pairs::{self, median};
use crate::timeline::short;

/// The whole page.
pub(crate) fn page(report: &CompactReport) -> String {
    let names: Vec<&str> = report.sides.iter().map(|s| s.label.as_str()).collect();
    let command = format!("rockmill bench compact{}", sections::flags_html(&report.changed_flags()));
    let mut out = verdict(report);
    out += &sections::facts_of(&report.machine, &report.sides, &command, report.flags.base.repeat, "");
    out += &overview(report);
    out += &table(report);
    out += &cases(report);
    let _ = writeln!(
        out,
        "<p class=\"note\">One job each: so many overlapping tables of L0, merged into L1 by one thread. Every side and \
         repetition reads the same blocks of the disk, which are in no cache; outputs of the job before are gone and \
         the disk is synced. What each side made was compared, entry by entry, with what was written. GB are \
         10<sup>9</sup> bytes of input tables. {}</p>",
        escape(&report.counted_by())
    );
    out += &sections::settings_of(&report.sides, &report.all_flags());
    document(&format!("rockmill bench compact: {}", names.join(", ")), &out)
}

/// The verdict: a sentence for each pair of sides.
fn verdict(report: &CompactReport) -> String {
    let all: Vec<(&CaseReport, JobPair)> =
        report.cases.iter().flat_map(|c| c.pairs(report.sides.len()).into_iter().map(move |p| (c, p))).collect();
    let mut sides: Vec<(usize, usize)> = Vec::new();
    for (_, p) in &all {
        if !sides.contains(&(p.first, p.other)) {
            sides.push((p.first, p.other));
        }
    }
    let sentence = |(first, other): (usize, usize)| {
        let its = all.iter().filter(|(_, p)| (p.first, p.other) == (first, other) && !p.speedup.is_empty());
        let ratios: Vec<(String, &[f64])> = its.map(|(c, p)| (c.case.short_name(), p.speedup.as_slice())).collect();
        let names = (report.sides[first].label.as_str(), report.sides[other].label.as_str());
        sections::sentence(names, "cases", &ratios)
    };
    sides.into_iter().filter_map(sentence).map(|s| rockmill_page::verdict(&s)).collect()
}

/// Ratios of all cases.
fn overview(report: &CompactReport) -> String {
    if report.sides.len() < 2 {
        return String::new();
    }
    let mut out = String::from("<section>\n<h2>Overview</h2>\n<div class=\"charts\">\n");
    let all: Vec<(&CaseReport, JobPair)> =
        report.cases.iter().flat_map(|c| c.pairs(report.sides.len()).into_iter().map(move |p| (c, p))).collect();
    let pairs: Vec<(usize, usize)> = report
        .cases
        .first()
        .map_or(vec![], |c| c.pairs(report.sides.len()).iter().map(|p| (p.first, p.other)).collect());
    // One chart for each pair of sides, which are named in the title.
    for (first, other) in pairs {
        let (a, b) = (&report.sides[first].label, &report.sides[other].label);
        let rows = |of: fn(&JobPair) -> &Vec<f64>, more_is_better: bool| -> Vec<RatioRow> {
            let its = all.iter().filter(|(_, p)| (p.first, p.other) == (first, other));
            its.filter(|(_, p)| !of(p).is_empty())
                .map(|(case, p)| RatioRow {
                    name: case.case.short_name(),
                    winner: pairs::first_is_better(of(p), more_is_better).map(|is| if is { first } else { other }),
                    all: of(p).clone(),
                    middle: median(of(p)),
                    text: crate::compact::spread_text(of(p)),
                })
                .collect()
        };
        let speed = rows(|p| &p.speedup, true);
        let cpu = rows(|p| &p.cpu, false);
        let title = format!("Speed: {a} over {b}");
        let note = format!("right of 1: {a} is faster; in the colour of the faster");
        let _ = writeln!(out, "<div>{}</div>", svg::ratios(&title, &note, &speed));
        let title = format!("CPU time: {a} over {b}");
        let note = format!("left of 1: {a} needs less; in its colour");
        let _ = writeln!(out, "<div>{}</div>", svg::ratios(&title, &note, &cpu));
    }
    out + "</div>\n</section>\n"
}

fn table(report: &CompactReport) -> String {
    let mut out = String::from(
        "<section>\n<h2>Medians</h2>\n<div class=\"scroll\"><table>\n<thead><tr><th>case</th>\
         <th class=\"text\">store</th>\
         <th>wall s</th><th>GB/s<br>of input</th><th>CPU<br>s/GB</th><th>system<br>calls/GB</th>\
         <th>share of<br>the device</th><th>read<br>MB</th><th>written<br>MB</th><th>output<br>MB</th>\
         <th>parts by<br>engine</th></tr></thead>\n",
    );
    for case in &report.cases {
        for (side, known) in report.sides.iter().enumerate() {
            let cell = |of: &dyn Fn(&JobRun) -> f64| median(&case.values(side, of));
            let cells = [
                format!("{:.3}", cell(&|r| r.wall.as_secs_f64())),
                format!("{:.2}", cell(&|r| case.gb_per_second(r))),
                format!("{:.3}", cell(&|r| case.cpu_per_gb(r))),
                format!("{:.0}", cell(&|r| case.calls_per_gb(r))),
                format!("{:.0} %", cell(&|r| 100.0 * case.share_of_limit(r).unwrap_or(0.0))),
                format!("{:.0}", cell(&|r| r.cost.usage.device_read_bytes as f64 / MIB)),
                format!("{:.0}", cell(&|r| r.cost.usage.device_write_bytes as f64 / MIB)),
                format!("{:.0}", cell(&|r| r.job.output_bytes as f64 / MIB)),
                escape(&case.engines(side)),
            ];
            let cells: String = cells.iter().map(|c| format!("<td>{c}</td>")).collect();
            let name = if side == 0 { escape(&case.case.name()) } else { String::new() };
            let _ = writeln!(out, "<tr><td>{name}</td><td class=\"text\">{}</td>{cells}</tr>", escape(&known.label));
        }
    }
    out + "</table></div>\n</section>\n"
}

/// Bars of each case, with the device's limit among them.
fn cases(report: &CompactReport) -> String {
    let mut out =
        String::from("<section>\n<h2>Each case next to what the device allows</h2>\n<div class=\"charts\">\n");
    for case in &report.cases {
        let mut rates = Vec::new();
        for (side, known) in report.sides.iter().enumerate() {
            let rate = median(&case.values(side, &|r| case.gb_per_second(r)));
            let cpu = median(&case.values(side, &|r| case.cpu_per_gb(r)));
            let text = format!("{rate:.2}; CPU {} s/GB", short(cpu));
            rates.push(Bar { name: known.label.clone(), side, value: rate, text });
        }
        let seconds: Vec<f64> = case.limits.iter().map(|l| l.seconds).collect();
        let limit = case.input_gb() / median(&seconds).max(1e-9);
        // The last colour is no store's.
        let side = svg::COLOURS.len() - 1;
        rates.push(Bar { name: "the device".to_owned(), side, value: limit, text: format!("{limit:.2}") });
        let _ = writeln!(out, "<div>{}</div>", svg::bars(&case.case.name(), "GB of input a second", &rates));
    }
    out + "</div>\n</section>\n"
}
