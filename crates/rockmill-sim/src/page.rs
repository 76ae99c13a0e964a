//! A report as one page with charts, in the style that all pages of Rockmill share.

use rockmill_page::svg::{self, Axis, Chart, Scale};
use rockmill_page::{document, escape, facts, verdict};

use crate::balance;
use crate::report::{Report, Sample, size};
use crate::settings::Settings;

/// How a report was made, for its page.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct About {
    /// The command.
    pub command: String,
    /// The day.
    pub date: String,
}

/// The page.
pub fn page(report: &Report, about: &About) -> String {
    let s = &report.settings;
    let title = format!("rockmill simulate: {}, {} threads", s.strategy, s.threads);
    let mut body = verdict(&report.verdict()) + &facts(&modelled(s, about), &about.command);
    let mib = f64::from(1 << 20);
    type Figure = (&'static str, &'static str, fn(&Sample) -> f64, f64);
    let lines: [Figure; 8] = [
        ("Written by users", "MiB/s", |p| p.write_rate, mib),
        ("Writers delayed or stopped", "percent of the time", |p| p.stalled, 0.01),
        ("Read amplification", "sorted runs", |p| p.runs, 1.0),
        ("A lookup where nobody else reads", "microseconds", |p| p.lookup, 1e-6),
        ("A seek where nobody else reads", "microseconds", |p| p.seek, 1e-6),
        ("Space amplification", "bytes of tables for each byte of live data", |p| p.space, 1.0),
        ("Write amplification until then", "bytes written for each byte of users", |p| p.write_amplification, 1.0),
        ("Compaction debt", "MiB", |p| p.debt, mib),
    ];
    let mut charts = Vec::new();
    for (title, unit, value, scale) in lines {
        let values: Vec<f64> = report.samples.iter().map(|p| value(p) / scale).collect();
        charts.push(chart(title, unit, report, &[(String::new(), values)]));
    }
    charts.push(busy_by_level("Busy compaction threads by start level", report, busy_most(report)));
    if report.fast.is_some() {
        let gib = f64::from(1 << 30);
        let by = |of: &dyn Fn(&Sample) -> [f64; 4], scale: f64| -> Vec<(String, Vec<f64>)> {
            let line = |task: usize| report.samples.iter().map(|p| of(p)[task] / scale).collect();
            crate::fast::TASKS.iter().enumerate().map(|(i, name)| ((*name).to_owned(), line(i))).collect()
        };
        charts.push(chart("Cores in use by task", "cores", report, &by(&|p| p.used.cpu, 1.0)));
        charts.push(chart("Fast device by task", "MiB/s", report, &by(&|p| p.used.fast, mib)));
        charts.push(chart("Slow device by task", "MiB/s", report, &by(&|p| p.used.slow, mib)));
        let held = report.samples.iter().map(|p| p.fast_bytes / gib).collect();
        charts.push(chart("On the fast device", "GiB", report, &[(String::new(), held)]));
        if report.samples.iter().any(|p| p.triggers.flush_bytes > 0) {
            let merge = report.samples.iter().map(|p| p.triggers.merge as f64).collect();
            let flush = report.samples.iter().map(|p| p.triggers.flush_bytes as f64 / mib).collect();
            let (tables, memory) =
                ("Index tables of a tier that are merged (IMTN)", "Index tables that are flushed (DFTS)");
            charts.push(chart(tables, "tables", report, &[(String::new(), merge)]));
            charts.push(chart(memory, "MiB of memory", report, &[(String::new(), flush)]));
            let why = ["a core was short", "the device was", "neither for a minute"];
            let of = |i: usize| report.samples.iter().map(|p| p.changes[i] as f64).collect();
            let changes = [0, 1, 2].map(|i| (why[i].to_owned(), of(i)));
            charts.push(chart("Changes of IMTN and DFTS until then", "changes, by the reason", report, &changes));
        }
    }
    body += &grid(&charts);
    body += &words(&report.to_text());
    document(&title, &body)
}

/// Strategies side by side: for each rule, how evenly their threads were busy, and then each strategy by level over
/// time.
pub fn compared(result: &str, text: &str, groups: &[(String, Vec<&Report>)], about: &About) -> String {
    let reports = || groups.iter().flat_map(|(_, reports)| reports);
    let threads = reports().map(|r| r.settings.threads).max().unwrap_or(0);
    let title = format!("rockmill simulate: strategies side by side, {threads} threads");
    let mut body = verdict(result);
    if let Some(first) = reports().next() {
        body += &facts(&modelled(&first.settings, about), &about.command);
    }
    for (rule, reports) in groups {
        body += &format!("<h2>{}</h2>\n", escape(rule));
        let end = threads as f64 + 1.0;
        let x = Axis { label: "threads busy, at most", scale: Scale::Linear, from: 0.0, to: end };
        let y = Axis { label: "percent of the time", scale: Scale::Linear, from: 0.0, to: 100.0 };
        let mut at_most = Chart::new("Threads that were busy", x, y);
        for (i, r) in reports.iter().enumerate() {
            // A step at each number of threads.
            let parts = balance::at_most(r);
            let steps = parts.iter().enumerate().flat_map(|(n, part)| {
                let n = n as f64;
                [(n, part * 100.0), (n + 1.0, part * 100.0)]
            });
            at_most.line(i, &steps.collect::<Vec<_>>(), false);
            at_most.name_line(i, &r.settings.strategy);
        }
        let levels = balance::levels(reports);
        let mut names: Vec<String> = levels.iter().map(|l| format!("L{l}")).collect();
        names.push("all levels".to_owned());
        let of = |r: &&Report| {
            let busy = levels.iter().map(|&l| r.busy[l]).chain([r.parallelism()]);
            (r.settings.strategy.clone(), busy.collect())
        };
        let bars: Vec<(String, Vec<f64>)> = reports.iter().map(of).collect();
        let means = svg::groups("Busy threads by start level", "threads, on average", &names, &bars);
        let mut charts = vec![at_most.finish(), means];
        // One scale for all, so that they can be compared.
        let most = reports.iter().map(|r| busy_most(r)).fold(0.0, f64::max);
        for r in reports {
            charts.push(busy_by_level(&format!("{}: busy threads by start level", r.settings.strategy), r, most));
        }
        body += &grid(&charts);
    }
    body += &words(text);
    document(&title, &body)
}

/// The date, and the modelled machine.
fn modelled(s: &Settings, about: &About) -> String {
    let fast = s.fast.as_ref().map_or_else(String::new, |fast| {
        let (read, write, capacity) = (size(fast.read), size(fast.write), size(fast.capacity as f64));
        format!("; {capacity} of a fast device in front of it, which reads {read}/s and writes {write}/s")
    });
    let workers = s.workers.as_ref().map_or_else(String::new, |w| {
        format!("; workers with {} cores behind a network of {}/s each way", w.cores, size(w.network))
    });
    format!(
        "{}; modelled, in virtual time: {} cores; a device that reads {}/s and writes {}/s, {}/s together, {:.0} us for \
         each read, {:.0} us for each sync{fast}{workers}",
        about.date,
        s.cores,
        size(s.device_read),
        size(s.device_write),
        size(s.device_total),
        s.device_latency * 1e6,
        s.device_sync * 1e6
    )
}

fn grid(charts: &[String]) -> String {
    let charts: String = charts.iter().map(|c| format!("<div>{c}</div>\n")).collect();
    format!("<div class=\"charts\">\n{charts}</div>\n")
}

/// The report's text, as on the terminal.
fn words(text: &str) -> String {
    format!("<h2>In words</h2>\n<pre>{}</pre>\n", escape(text))
}

/// A suitable unit of virtual time for the run: its name, and its length in seconds.
fn clock(report: &Report) -> (&'static str, f64) {
    match report.samples.last().map_or(0.0, |p| p.seconds) {
        s if s < 300.0 => ("virtual seconds", 1.0),
        s if s < 14_400.0 => ("virtual minutes", 60.0),
        _ => ("virtual hours", 3600.0),
    }
}

/// The most threads that were busy in a sample.
fn busy_most(report: &Report) -> f64 {
    report.samples.iter().map(|p| p.busy.iter().sum()).fold(0.0, f64::max)
}

/// Threads by level over time, on a scale that reaches to `most`.
fn busy_by_level(title: &str, report: &Report, most: f64) -> String {
    let (label, unit) = clock(report);
    let xs: Vec<f64> = report.samples.iter().map(|p| p.seconds / unit).collect();
    let levels = (0..report.busy.len()).filter(|&l| report.busy[l] > 0.0);
    let of = |l: usize| -> Vec<f64> { report.samples.iter().map(|p| p.busy.get(l).copied().unwrap_or(0.0)).collect() };
    let layers: Vec<(String, &str, Vec<f64>)> =
        levels.map(|l| (format!("L{l}"), svg::level_colour(l), of(l))).collect();
    let x = Axis::over(label, Scale::Linear, xs.iter().copied());
    let y = Axis::over("threads", Scale::Linear, [most].into_iter());
    let mut chart = Chart::new(title, x, y);
    chart.stack(&xs, &layers);
    chart.finish()
}

fn chart(title: &str, unit: &'static str, report: &Report, series: &[(String, Vec<f64>)]) -> String {
    let (label, seconds) = clock(report);
    let x = Axis::over(label, Scale::Linear, report.samples.iter().map(|p| p.seconds / seconds));
    let y = Axis::over(unit, Scale::Linear, series.iter().flat_map(|(_, values)| values).copied());
    let mut chart = Chart::new(title, x, y);
    for (i, (name, values)) in series.iter().enumerate() {
        let at = report.samples.iter().map(|p| p.seconds / seconds);
        let points: Vec<(f64, f64)> = at.zip(values.iter().copied()).collect();
        chart.line(i, &points, false);
        if !name.is_empty() {
            chart.name_line(i, name);
        }
    }
    chart.finish()
}

/// A line of block characters for a terminal, with heights that show the values.
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
        let about = About { command: "rockmill simulate --data 1G".to_owned(), date: "2026-11-27".to_owned() };
        let report = crate::run(&settings).unwrap();
        let table = report.to_text().split("\n\n").find(|part| part.contains("own runs")).map(str::to_owned).unwrap();
        assert!(table.lines().count() > 1 && table.lines().all(|l| l.chars().count() <= 80), "{table}");
        let page = page(&report, &about);
        assert_eq!(page.matches("<svg").count(), 9);
        assert!(page.matches("<path d=\"M").count() >= 9 && !page.contains("<script") && !page.contains("NaN"));
        for part in ["--data 1G", "2026-11-27; modelled", &escape(&report.verdict())] {
            assert!(page.contains(part), "{part}: {page}");
        }
    }

    #[test]
    fn strategies_stand_side_by_side() {
        let mut settings = crate::Settings { data_bytes: 1 << 30, threads: 4, ..crate::Settings::default() };
        settings.options.write_buffer_size = 16 << 20;
        let all = crate::AllStrategies::run(&settings, |_, _| {}).unwrap();
        // A terminal with 80 columns gets three strategies in a row: those of each kind of tree.
        let narrow = all.to_text_within(80);
        assert!(narrow.lines().all(|l| l.chars().count() <= 80 || l.starts_with("note: ")), "{narrow}");
        assert_eq!(narrow.matches("classic-leveled         leveled      df-leveled\n").count(), 2 * 2, "{narrow}");
        assert!(all.to_text().lines().any(|l| l.chars().count() > 100), "{}", all.to_text());
        let page = all.to_html(&About::default());
        assert!(page.contains("class=\"verdict\">") && page.contains("takes in the most"), "{page}");
        // For each rule: fractions of the time, means by level, and six strategies over time.
        assert_eq!(page.matches("<svg").count(), 2 * 8);
        assert!(!page.contains("<script") && !page.contains("NaN"), "{page}");
        for name in crate::AllStrategies::NAMES {
            assert!(
                page.matches(&format!(">{name}</text>")).count() >= 4,
                "{name} is named in both charts of each rule"
            );
        }
        assert_eq!(page.matches("all levels</text>").count(), 2);
        assert!(
            page.contains("<h2>No job is split</h2>") && page.contains("<h2>Jobs are split over idle threads</h2>")
        );
    }
}
