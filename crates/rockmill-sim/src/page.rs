//! A report as one page with charts: no scripts, nothing from elsewhere.

use std::fmt::Write as _;

use rockmill_format::printable;

use crate::balance;
use crate::report::{Report, Sample};

const STYLE: &str = "\
body { margin: 24px auto; max-width: 1000px; padding: 0 16px; font: 15px/1.5 system-ui, sans-serif; color: #1b1b1b; }
h1 { font-size: 22px; } h2 { font-size: 15px; margin: 24px 0 4px; }
pre { background: #f6f6f6; padding: 12px; overflow-x: auto; font-size: 13px; }
svg { width: 100%; height: auto; font: 12px system-ui, sans-serif; }
";

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 180.0;
const LEFT: f64 = 70.0;
const BOTTOM: f64 = 22.0;
const COLOURS: [&str; 8] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999", "#000000"];

/// The page.
pub fn page(report: &Report) -> String {
    let s = &report.settings;
    let title = format!("rockmill simulate: {}, {} threads", s.strategy, s.threads);
    let mut body = format!("<h1>{}</h1>\n<pre>{}</pre>\n", escape(&title), escape(&report.to_text()));
    let mb = f64::from(1 << 20);
    type Figure = (&'static str, fn(&Sample) -> f64, f64);
    let lines: [Figure; 8] = [
        ("Written by users, MiB/s", |p| p.write_rate, mb),
        ("Part of the time that writers were delayed or stopped, percent", |p| p.stalled, 0.01),
        ("Sorted runs (read amplification)", |p| p.runs, 1.0),
        ("A lookup where nobody else reads, microseconds", |p| p.lookup, 1e-6),
        ("A seek where nobody else reads, microseconds", |p| p.seek, 1e-6),
        ("Space amplification", |p| p.space, 1.0),
        ("Write amplification until then", |p| p.write_amplification, 1.0),
        ("Compaction debt, MiB", |p| p.debt, mb),
    ];
    for (name, value, unit) in lines {
        let values: Vec<f64> = report.samples.iter().map(|p| value(p) / unit).collect();
        body += &chart(name, report, &[(String::new(), values)]);
    }
    body += &chart("Busy compaction threads by start level", report, &busy_by_level(report));
    if report.fast.is_some() {
        let gib = f64::from(1 << 30);
        let by = |of: &dyn Fn(&Sample) -> [f64; 4], unit: f64| -> Vec<(String, Vec<f64>)> {
            let line = |task: usize| report.samples.iter().map(|p| of(p)[task] / unit).collect();
            crate::fast::TASKS.iter().enumerate().map(|(i, name)| ((*name).to_owned(), line(i))).collect()
        };
        body += &chart("Cores in use by task", report, &by(&|p| p.used.cpu, 1.0));
        body += &chart("Fast device by task, MiB/s", report, &by(&|p| p.used.fast, mb));
        body += &chart("Slow device by task, MiB/s", report, &by(&|p| p.used.slow, mb));
        let held = report.samples.iter().map(|p| p.fast_bytes / gib).collect();
        body += &chart("On the fast device, GiB", report, &[(String::new(), held)]);
        if report.samples.iter().any(|p| p.triggers.flush_bytes > 0) {
            let merge = report.samples.iter().map(|p| p.triggers.merge as f64).collect();
            let flush = report.samples.iter().map(|p| p.triggers.flush_bytes as f64 / mb).collect();
            body += &chart("Index tables of a tier that are merged (IMTN)", report, &[(String::new(), merge)]);
            body += &chart("Index tables that are flushed, MiB of memory (DFTS)", report, &[(String::new(), flush)]);
            let why = ["a core was short", "the device was", "neither for a minute"];
            let of = |i: usize| report.samples.iter().map(|p| p.changes[i] as f64).collect();
            let changes = [0, 1, 2].map(|i| (why[i].to_owned(), of(i)));
            body += &chart("Changes of IMTN and DFTS until then, by the reason", report, &changes);
        }
    }
    whole(&title, &body)
}

/// Strategies side by side: for each rule how evenly their threads were busy, and then each by level over time.
pub fn compared(text: &str, groups: &[(String, Vec<&Report>)]) -> String {
    let threads = groups.iter().flat_map(|(_, reports)| reports).map(|r| r.settings.threads).max().unwrap_or(0);
    let title = format!("rockmill simulate: strategies side by side, {threads} threads");
    let mut body = format!("<h1>{}</h1>\n<pre>{}</pre>\n", escape(&title), escape(text));
    for (rule, reports) in groups {
        let lines: Vec<Line> = reports
            .iter()
            .map(|r| {
                // A step at each number of threads.
                let parts = balance::at_most(r);
                let steps = parts.iter().enumerate().flat_map(|(n, part)| {
                    let n = n as f64;
                    [(n, part * 100.0), (n + 1.0, part * 100.0)]
                });
                (r.settings.strategy.clone(), steps.collect())
            })
            .collect();
        let end = threads as f64 + 1.0;
        let name = format!("Percent of the time that at most so many threads were busy ({rule})");
        body += &plot(&name, &lines, end, &|at| format!("{at:.0}"));
        let levels = balance::levels(reports);
        let mut names: Vec<String> = levels.iter().map(|l| format!("L{l}")).collect();
        names.push("all levels".to_owned());
        let of = |r: &&Report| {
            let busy = levels.iter().map(|&l| r.busy[l]).chain([r.parallelism()]);
            (r.settings.strategy.clone(), busy.collect())
        };
        let bars: Vec<(String, Vec<f64>)> = reports.iter().map(of).collect();
        body += &grouped(&format!("Busy threads by start level, on average ({rule})"), &names, &bars);
        for r in reports {
            let name = format!("{}: busy compaction threads by start level ({rule})", r.settings.strategy);
            body += &chart(&name, r, &busy_by_level(r));
        }
    }
    whole(&title, &body)
}

fn busy_by_level(report: &Report) -> Vec<(String, Vec<f64>)> {
    let levels = (0..report.busy.len()).filter(|&l| report.busy[l] > 0.0);
    levels.map(|l| (format!("from L{l}"), report.samples.iter().map(|p| p.busy[l]).collect())).collect()
}

fn whole(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{}</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n{body}</body>\n</html>\n",
        escape(title)
    )
}

/// A name, and points.
type Line = (String, Vec<(f64, f64)>);

fn chart(name: &str, report: &Report, series: &[(String, Vec<f64>)]) -> String {
    let at = |values: &[f64]| report.samples.iter().map(|p| p.seconds).zip(values.iter().copied()).collect();
    let lines: Vec<Line> = series.iter().map(|(label, values)| (label.clone(), at(values))).collect();
    let end = report.samples.last().map_or(1.0, |p| p.seconds).max(1e-9);
    plot(name, &lines, end, &crate::report::time)
}

fn plot(name: &str, lines: &[Line], end: f64, label_of: &dyn Fn(f64) -> String) -> String {
    let top = top(lines.iter().flat_map(|(_, points)| points).map(|p| p.1));
    let x = |at: f64| LEFT + at / end * (WIDTH - LEFT - 10.0);
    let y = |value: f64| (HEIGHT - BOTTOM) * (1.0 - value / top) + 4.0;
    let mut out = begin(name, top);
    for (part, anchor) in [(0.0, "start"), (0.5, "middle"), (1.0, "end")] {
        let (at, label) = (x(end * part), label_of(end * part));
        let _ = writeln!(out, "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"{anchor}\">{label}</text>", HEIGHT - 4.0);
    }
    for (i, (_, points)) in lines.iter().enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        let points: Vec<String> = points.iter().map(|(at, v)| format!("{:.1},{:.1}", x(*at), y(*v))).collect();
        let points = points.join(" ");
        let _ = writeln!(out, "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\" points=\"{points}\"/>");
    }
    legend(&mut out, lines.iter().map(|(label, _)| label.as_str()));
    out + "</svg>\n"
}

/// Bars: for each group one of each series.
fn grouped(name: &str, groups: &[String], series: &[(String, Vec<f64>)]) -> String {
    let top = top(series.iter().flat_map(|(_, values)| values).copied());
    let room = (WIDTH - LEFT - 10.0) / groups.len().max(1) as f64;
    let width = room * 0.8 / series.len().max(1) as f64;
    let mut out = begin(name, top);
    for (g, group) in groups.iter().enumerate() {
        let left = LEFT + room * g as f64;
        for (i, (_, values)) in series.iter().enumerate() {
            let height = values.get(g).map_or(0.0, |v| v / top) * (HEIGHT - BOTTOM);
            let _ = writeln!(
                out,
                "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{}\"/>",
                left + room * 0.1 + width * i as f64,
                HEIGHT - BOTTOM + 4.0 - height,
                COLOURS[i % COLOURS.len()]
            );
        }
        let (at, y) = (left + room / 2.0, HEIGHT - 4.0);
        let _ = writeln!(out, "<text x=\"{at:.1}\" y=\"{y}\" text-anchor=\"middle\">{}</text>", escape(group));
    }
    legend(&mut out, series.iter().map(|(label, _)| label.as_str()));
    out + "</svg>\n"
}

fn top(values: impl Iterator<Item = f64>) -> f64 {
    let top = values.fold(0.0, f64::max);
    if top > 0.0 { top * 1.05 } else { 1.0 }
}

/// A chart with its lines for values, up to `top`.
fn begin(name: &str, top: f64) -> String {
    let mut out = format!("<h2>{}</h2>\n<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">\n", escape(name));
    for part in [0.0, 0.5, 1.0] {
        let at = (HEIGHT - BOTTOM) * (1.0 - part) + 4.0;
        let _ = writeln!(
            out,
            "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - 10.0,
            LEFT - 6.0,
            at + 4.0,
            number(top * part)
        );
    }
    out
}

fn legend<'a>(out: &mut String, labels: impl Iterator<Item = &'a str>) {
    let mut at = LEFT + 10.0;
    for (i, label) in labels.enumerate().filter(|(_, label)| !label.is_empty()) {
        let colour = COLOURS[i % COLOURS.len()];
        let _ = writeln!(out, "<text x=\"{at}\" y=\"16\" fill=\"{colour}\">{}</text>", escape(label));
        at += 24.0 + 7.0 * label.chars().count() as f64;
    }
}

fn number(v: f64) -> String {
    if v >= 100.0 || v == 0.0 { format!("{v:.0}") } else { format!("{v:.2}") }
}

fn escape(text: &str) -> String {
    printable::lines(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A line of blocks for a terminal, as high as the values are.
pub fn sparkline(values: &[f64], columns: usize) -> String {
    let blocks: Vec<char> = "▁▂▃▄▅▆▇█".chars().collect();
    let per_column = values.len().div_ceil(columns.max(1)).max(1);
    let means: Vec<f64> = values.chunks(per_column).map(|c| c.iter().sum::<f64>() / c.len() as f64).collect();
    let top = means.iter().copied().fold(0.0, f64::max);
    let block = |v: f64| if top > 0.0 { ((v / top * 7.0).round() as usize).min(7) } else { 0 };
    means.into_iter().map(|v| blocks[block(v)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_as_high_as_values() {
        assert_eq!(sparkline(&[0.0, 1.0, 2.0, 7.0], 10), "▁▂▃█");
        assert_eq!(sparkline(&[0.0, 0.0], 1), "▁");
        assert_eq!(sparkline(&[1.0, 3.0, 2.0, 2.0], 2), "██");
    }

    #[test]
    fn a_page_has_all_charts_and_no_script() {
        let settings = crate::Settings { data_bytes: 1 << 30, ..crate::Settings::default() };
        let page = page(&crate::run(&settings).unwrap());
        assert_eq!(page.matches("<svg").count(), 9);
        assert!(page.matches("<polyline").count() >= 9 && !page.contains("<script") && !page.contains("NaN"));
    }

    #[test]
    fn strategies_stand_side_by_side() {
        let mut settings = crate::Settings { data_bytes: 1 << 30, threads: 4, ..crate::Settings::default() };
        settings.options.write_buffer_size = 16 << 20;
        let all = crate::AllStrategies::run(&settings, |_, _| {}).unwrap();
        let page = all.to_html();
        // By either rule: parts of the time, means by level, and six strategies over time.
        assert_eq!(page.matches("<svg").count(), 2 * 8);
        assert!(!page.contains("<script") && !page.contains("NaN"), "{page}");
        for name in crate::AllStrategies::NAMES {
            assert!(
                page.matches(&format!(">{name}</text>")).count() >= 4,
                "{name} is named in both charts of each rule"
            );
        }
        assert_eq!(page.matches("all levels</text>").count(), 2);
    }
}
