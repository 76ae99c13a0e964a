//! The parts of the page.

use std::fmt::Write;

use hdrhistogram::Histogram;
use rockmill_page::escape;
use rockmill_page::svg::{self, Axis, Bar, Chart, RatioRow, Scale};

use crate::device::DeviceLimits;
use crate::flags::Flags;
use crate::machine::Machine;
use crate::outcome::{MIB, Outcome, Report, SideReport, latency_numbers};
use crate::pairs::{self, Comparison, median};
use crate::settings;
use crate::store::OpKind;
use crate::timeline::{Sample, Timeline, mean_jobs, short};

/// Most points of a line that can be distinguished.
const POINTS_MAX: usize = 600;
/// Quantiles of a latency curve.
const QUANTILES: [f64; 19] = [
    0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995, 0.9998, 0.9999, 0.999_95, 0.999_98,
    0.999_99, 0.999_995, 0.999_999,
];

/// Where, when, what: the machine, the stores, the command.
pub(super) fn facts(report: &Report) -> String {
    let command = format!("rockmill bench{}", flags_html(&changed_flags(&report.flags)));
    let lines = match report.flags.repeat % 2 {
        0 => "; bold lines are the slower of the two repetitions in the middle, where tables have the mean of both",
        _ => "; bold lines are the repetition with the median rate",
    };
    let lines = format!("{lines}; bold lines of latencies are medians, as in the tables");
    let mut out = facts_of(&report.machine, &report.sides, &command, report.flags.repeat, &lines);
    if let Some(caches) = &report.caches {
        let _ = writeln!(out, "<p class=\"note\">Page cache: {}.</p>", escape(&caches.to_text()));
    }
    out
}

/// The same for any run: `command` is HTML.
pub(super) fn facts_of(
    machine: &Machine,
    sides: &[SideReport],
    command: &str,
    repeat: usize,
    of_lines: &str,
) -> String {
    let mut out = format!("<p class=\"note\">{}</p>\n<ul class=\"stores\">\n", escape(&machine.to_text()));
    for (i, side) in sides.iter().enumerate() {
        let _ = writeln!(
            out,
            "<li><span class=\"key\" style=\"background:{}\"></span><b>{}</b> {} <span class=\"note\">{}</span></li>",
            svg::colour(i),
            escape(&side.label),
            escape(&side.version),
            escape(&side.all_notes().join("; "))
        );
    }
    out += "</ul>\n";
    for warning in sides.iter().filter_map(SideReport::engine_warning) {
        let _ = writeln!(out, "<p class=\"warn\">{}</p>", escape(&warning));
    }
    let cores = machine.cores as f64;
    if machine.load > cores * 0.5 {
        let _ = writeln!(
            out,
            "<p class=\"warn\">The machine was busy when this run began: load {:.1} on {cores} cores. Times are not to be \
             quoted; counts are.</p>",
            machine.load
        );
    }
    let _ = writeln!(out, "<p><code>{command}</code></p>");
    let note = match repeat {
        1 => "One repetition: differences of some percent mean nothing.".to_owned(),
        n => format!("{n} repetitions, the stores in turn, another first in each{of_lines}."),
    };
    let _ = writeln!(out, "<p class=\"note\">{note}</p>");
    out
}

/// The verdict: a sentence for each side that the first is compared with, or the rates of a single side.
pub(super) fn verdict(report: &Report) -> String {
    let all = pairs::comparisons(report);
    let rates = || all.iter().filter(|c| c.measure == "ops/s");
    let mut out = String::new();
    for other in report.sides.iter().skip(1) {
        let its = rates().filter(|c| c.other == other.label);
        let ratios: Vec<(String, &[f64])> = its.map(|c| (c.workload.name().to_owned(), c.ratios.as_slice())).collect();
        let names = (report.sides[0].label.as_str(), other.label.as_str());
        out += &sentence(names, "benchmarks", &ratios).map_or_else(String::new, |s| rockmill_page::verdict(&s));
    }
    if let [side] = &report.sides[..] {
        let rate = |(position, example): (usize, &Outcome)| {
            let all = pairs::values(report, position, 0, &|o: &Outcome| Some(o.ops_per_second()));
            let all: Vec<f64> = all.into_iter().flatten().collect();
            format!("{} {} ops/s", example.workload.name(), short(median(&all)))
        };
        let rates: Vec<String> = pairs::benchmarks(report).into_iter().map(rate).collect();
        if !rates.is_empty() {
            out += &rockmill_page::verdict(&format!("{}: {}.", side.label, rates.join(", ")));
        }
    }
    out
}

/// A sentence about which side is faster; `None` without figures. Each name has its speed ratios, first divided by
/// other.
pub(super) fn sentence((first, other): (&str, &str), what: &str, all: &[(String, &[f64])]) -> Option<String> {
    let (mut faster, mut ties, mut slower) = (Vec::new(), Vec::new(), Vec::new());
    for (name, ratios) in all {
        let of = match pairs::first_is_better(ratios, true) {
            Some(true) => &mut faster,
            Some(false) => &mut slower,
            None => &mut ties,
        };
        of.push((name.as_str(), median(ratios)));
    }
    let range = |all: &[(&str, f64)]| {
        let least = all.iter().map(|x| x.1).fold(f64::INFINITY, f64::min);
        let most = all.iter().map(|x| x.1).fold(f64::NEG_INFINITY, f64::max);
        if all.len() > 1 { format!("{least:.2} to {most:.2} times") } else { format!("{most:.2} times") }
    };
    let names = |all: &[(&str, f64)]| all.iter().map(|x| x.0).collect::<Vec<_>>().join(", ");
    let mut parts = Vec::new();
    if !faster.is_empty() {
        parts.push(format!("faster in {} of {} {what} ({} the speed)", faster.len(), all.len(), range(&faster)));
    }
    if !slower.is_empty() {
        parts.push(format!(
            "slower in {} of {} ({}: {} the speed)",
            slower.len(),
            all.len(),
            names(&slower),
            range(&slower)
        ));
    }
    if !ties.is_empty() {
        parts.push(format!("a tie in {} of {} ({})", ties.len(), all.len(), names(&ties)));
    }
    (!parts.is_empty()).then(|| format!("{first} compared with {other}: {}.", parts.join("; ")))
}

/// Flags as the page shows them.
pub(super) fn flags_html(flags: &[String]) -> String {
    flags.iter().map(|f| format!(" <span class=\"flag\">{}</span>", escape(f))).collect()
}

fn changed_flags(flags: &Flags) -> Vec<String> {
    let defaults = Flags::default().settings();
    let mut out: Vec<String> = flags.peer.0.iter().map(|p| format!("--peer {p}")).collect();
    for ((name, value), (_, default)) in flags.settings().iter().zip(&defaults) {
        if value != default && !matches!(*name, "peer" | "json" | "report") {
            out.push(format!("--{name}={value}"));
        }
    }
    out
}

/// Every benchmark in a table, and the ratios.
pub(super) fn overview(report: &Report) -> String {
    let mut out = String::from("<section>\n<h2>Overview</h2>\n");
    let all = pairs::comparisons(report);
    let rates: Vec<&Comparison> = all.iter().filter(|c| c.measure == "ops/s").collect();
    if !rates.is_empty() {
        let many = report.sides.len() > 2;
        let row = |c: &&Comparison| {
            let (middle, least, most) = c.spread();
            let other = report.sides.iter().position(|s| s.label == c.other).unwrap_or(0);
            let numbers = format!("{middle:.2} ({least:.2}..{most:.2})");
            RatioRow {
                // With several peers the benchmark is named once.
                name: if many && other > 1 { String::new() } else { c.workload.name().to_owned() },
                winner: pairs::first_is_better(&c.ratios, true).map(|first| if first { 0 } else { other }),
                all: c.ratios.clone(),
                middle,
                text: if many { format!("{} {numbers}", c.other) } else { numbers },
            }
        };
        let rows: Vec<RatioRow> = rates.iter().map(row).collect();
        let first = &report.sides[0].label;
        let title = match (&report.sides[..], many) {
            ([_, other], false) => format!("Operations per second: {first} over {}", other.label),
            _ => format!("Operations per second: {first} over the others"),
        };
        let note = "right of 1: the first is faster; ticks: pairs, dot: median; in the colour of the faster";
        let _ = writeln!(out, "<div class=\"wide\">{}</div>", svg::ratios(&title, note, &rows));
    }
    out += &table(report);
    out + "</section>\n"
}

fn table(report: &Report) -> String {
    let mut out = String::from(
        "<div class=\"scroll\"><table>\n<thead><tr><th>benchmark</th><th class=\"text\">store</th>\
         <th>ops/s</th><th>p50<br>µs</th><th>p99<br>µs</th><th>p99.9<br>µs</th><th>max<br>µs</th>\
         <th>CPU<br>user s</th><th>CPU<br>kernel s</th>\
         <th>memory<br>MB</th><th>read<br>MB</th><th>written<br>MB</th><th>stalled<br>s</th><th>calls<br>per op</th>\
         <th>switches<br>per op</th></tr></thead>\n",
    );
    for (position, example) in pairs::benchmarks(report) {
        for (side, known) in report.sides.iter().enumerate() {
            let cell = |of: &dyn Fn(&Outcome) -> Option<f64>| {
                let all: Vec<f64> = pairs::values(report, position, side, of).into_iter().flatten().collect();
                if all.is_empty() { "–".to_owned() } else { short(median(&all)) }
            };
            let latency = |index: usize| {
                cell(&move |o: &Outcome| {
                    let (kind, h) = o.record.latencies().next()?;
                    (kind != OpKind::Job).then(|| latency_numbers(h)[index].1)
                })
            };
            let u = |of: fn(&Outcome) -> f64| cell(&move |o: &Outcome| Some(of(o)));
            let cells = [
                u(Outcome::ops_per_second),
                latency(1),
                latency(3),
                latency(4),
                latency(6),
                u(|o| o.cost.usage.user.as_secs_f64()),
                u(|o| o.cost.usage.system.as_secs_f64()),
                u(|o| o.memory_bytes() as f64 / MIB),
                u(|o| o.cost.usage.device_read_bytes as f64 / MIB),
                u(|o| o.cost.usage.device_write_bytes as f64 / MIB),
                u(|o| o.stalls.micros() as f64 / 1e6),
                u(|o| o.cost.calls.total() as f64 / o.record.ops.max(1) as f64),
                u(|o| {
                    let u = &o.cost.usage;
                    (u.voluntary_switches + u.involuntary_switches) as f64 / o.record.ops.max(1) as f64
                }),
            ];
            let cells: String = cells.iter().map(|c| format!("<td>{c}</td>")).collect();
            let _ = writeln!(
                out,
                "<tr><td>{}</td><td class=\"text\">{}</td>{cells}</tr>",
                escape(example.workload.name()),
                escape(&known.label)
            );
        }
    }
    let counted: Vec<&str> = report.outcomes.iter().map(|o| o.cost.calls.counted_by).collect();
    let mut by: Vec<&str> = counted.into_iter().filter(|c| !c.is_empty()).collect();
    by.sort_unstable();
    by.dedup();
    let _ = writeln!(
        out,
        "</table></div>\n<p class=\"note\">Latencies are of the first kind of operation. Memory: the peak above what was \
         resident before the store was opened. Read and written: what the process made the device do. System calls \
         counted by {}.</p>",
        escape(&by.join(" and "))
    );
    out
}

/// The outcome of the repetition with the median rate.
pub(super) fn middle(report: &Report, position: usize, side: usize) -> Option<&Outcome> {
    let mut all: Vec<&Outcome> = report.outcomes.iter().filter(|o| o.position == position && o.side == side).collect();
    all.sort_by(|a, b| a.ops_per_second().total_cmp(&b.ops_per_second()));
    all.get(all.len().saturating_sub(1) / 2).copied()
}

/// The median of a figure over the repetitions, as in the table.
fn median_of(report: &Report, position: usize, side: usize, of: &dyn Fn(&Outcome) -> f64) -> Option<f64> {
    let all: Vec<f64> =
        pairs::values(report, position, side, &|o: &Outcome| Some(of(o))).into_iter().flatten().collect();
    (!all.is_empty()).then(|| median(&all))
}

/// Charts of one benchmark.
pub(super) fn benchmark(report: &Report, position: usize, example: &Outcome) -> String {
    let mut charts = Vec::new();
    if example.workload.is_threaded() {
        charts.push(throughput(report, position));
    }
    for (kind, _) in example.record.latencies().filter(|(kind, _)| *kind != OpKind::Job) {
        charts.push(latencies(report, position, kind));
    }
    charts.extend((0..report.sides.len()).filter_map(|side| levels(report, position, side)));
    charts.extend((0..report.sides.len()).filter_map(|side| running_jobs(report, position, side)));
    charts.extend(threads_at_a_time(report, position));
    charts.extend(super::usage::charts(report, position));
    charts.push(elapsed(report, position, example));
    charts.push(costs(report, position, !example.workload.is_threaded()));
    let charts: String = charts.iter().filter(|c| !c.is_empty()).map(|c| format!("<div>{c}</div>\n")).collect();
    format!("<div class=\"charts\">\n{charts}</div>\n{}", stalls(report, position))
}

/// Operations per second between samples, thinned out.
fn rates(timeline: &Timeline) -> Vec<(f64, f64)> {
    let step = timeline.samples.len().div_ceil(POINTS_MAX).max(1);
    let (mut then, mut ops) = (0.0, 0);
    let mut out = Vec::new();
    for (i, s) in timeline.samples.iter().enumerate() {
        let last = i + 1 == timeline.samples.len();
        // The remainder at the end is too short for a rate.
        if (i + 1) % step == 0 && !(last && !out.is_empty() && s.seconds - then < 0.05) {
            let rate = s.ops.saturating_sub(ops) as f64 / (s.seconds - then).max(1e-9);
            if out.is_empty() {
                out.push((0.0, rate));
            }
            out.push((s.seconds, rate));
            (then, ops) = (s.seconds, s.ops);
        }
    }
    out
}

fn throughput(report: &Report, position: usize) -> String {
    let of = |side: usize| report.outcomes.iter().filter(move |o| o.position == position && o.side == side);
    /// Each repetition's line.
    type Lines = Vec<(usize, Vec<(f64, f64)>)>;
    let lines: Vec<Lines> =
        (0..report.sides.len()).map(|s| of(s).map(|o| (o.repetition, rates(&o.timeline))).collect()).collect();
    let points = || lines.iter().flatten().flat_map(|(_, l)| l);
    let x = Axis::over("seconds since the start", Scale::Linear, points().map(|p| p.0));
    let y = Axis::over("operations per second", Scale::Linear, points().map(|p| p.1));
    let stalled: Vec<usize> = (0..report.sides.len()).filter(|s| of(*s).any(|o| o.stalls.micros() > 0)).collect();
    let title = match stalled.len() {
        0 => "Throughput over time",
        _ => "Throughput over time; strips: writers held back",
    };
    let mut chart = Chart::new(title, x, y).with_strips(stalled.len());
    for (side, all) in lines.iter().enumerate() {
        let bold = middle(report, position, side).map(|o| o.repetition);
        for (repetition, line) in all {
            chart.line(side, line, Some(*repetition) != bold);
        }
        chart.name_line(side, &report.sides[side].label);
    }
    for (row, side) in stalled.iter().enumerate() {
        let Some(o) = middle(report, position, *side) else { continue };
        let (mut then, mut before) = (0.0, 0);
        let mut spans = Vec::new();
        for s in &o.timeline.samples {
            let added = s.stall_micros.saturating_sub(before);
            if added > 0 {
                // As wide as the duration of the stall, at the end of the sample that showed it.
                let held = (added as f64 / 1e6).min(s.seconds - then);
                let why = if s.reason.is_empty() { "writers held back" } else { &s.reason };
                spans.push((
                    s.seconds - held,
                    s.seconds,
                    format!("{why}: {:.3} s until {:.2} s", added as f64 / 1e6, s.seconds),
                ));
            }
            (then, before) = (s.seconds, s.stall_micros);
        }
        chart.strip(row, *side, &report.sides[*side].label, &spans);
    }
    chart.finish()
}

/// Quantiles of latencies, and their microseconds.
type Curve = Vec<(f64, f64)>;

fn curve(latencies: &Histogram<u64>) -> Curve {
    // A quantile is meaningful only if some operations are above it.
    let known = QUANTILES.iter().filter(|q| (1.0 - **q) * latencies.len() as f64 >= 2.0);
    known.map(|q| (*q, latencies.value_at_quantile(*q) as f64 / 1e3)).collect()
}

/// Like the table: for each quantile the median over the repetitions, as far as all of them have it.
fn median_curve(all: &[&Curve]) -> Curve {
    let known = all.iter().map(|line| line.len()).min().unwrap_or(0);
    let middle = |i: usize| {
        let of: Vec<(f64, f64)> = all.iter().filter_map(|line| line.get(i).copied()).collect();
        let values: Vec<f64> = of.iter().map(|p| p.1).collect();
        of.first().map(|p| (p.0, median(&values)))
    };
    (0..known).filter_map(middle).collect()
}

fn latencies(report: &Report, position: usize, kind: OpKind) -> String {
    let mut lines = Vec::new();
    for side in 0..report.sides.len() {
        for o in report.outcomes.iter().filter(|o| o.position == position && o.side == side) {
            let Some((_, h)) = o.record.latencies().find(|(k, _)| *k == kind) else { continue };
            lines.push((side, curve(h)));
        }
    }
    let points = || lines.iter().flat_map(|(_, l)| l);
    let to = points().map(|p| p.0).fold(0.9, f64::max);
    let x = Axis { label: "percentile", scale: Scale::Nines, from: 0.0, to };
    let y = Axis::over("microseconds", Scale::Log, points().map(|p| p.1));
    let mut chart = Chart::new(&format!("Latency of each {}", kind.name()), x, y);
    for side in 0..report.sides.len() {
        let its: Vec<&Curve> = lines.iter().filter(|(s, _)| *s == side).map(|(_, line)| line).collect();
        for line in its.iter().filter(|_| its.len() > 1) {
            chart.line(side, line, true);
        }
        let line = median_curve(&its);
        if !line.is_empty() {
            chart.line(side, &line, false);
        }
    }
    for (side, known) in report.sides.iter().enumerate() {
        chart.name_line(side, &known.label);
    }
    chart.finish()
}

fn levels(report: &Report, position: usize, side: usize) -> Option<String> {
    let o = middle(report, position, side)?;
    let samples: Vec<(f64, &Vec<u64>)> =
        o.timeline.samples.iter().filter_map(|s| Some((s.seconds, s.levels.as_ref()?))).collect();
    let depth = samples.iter().map(|(_, l)| l.len()).max()?;
    let used: Vec<usize> =
        (0..depth).filter(|i| samples.iter().any(|(_, l)| l.get(*i).is_some_and(|b| *b > 0))).collect();
    // A tree that does not change is only mentioned in the table.
    if used.is_empty() || samples.len() < 3 || samples.windows(2).all(|w| w[0].1 == w[1].1) {
        return None;
    }
    let xs: Vec<f64> = samples.iter().map(|(t, _)| *t).collect();
    let height =
        |i: usize| -> Vec<f64> { samples.iter().map(|(_, l)| l.get(i).copied().unwrap_or(0) as f64 / MIB).collect() };
    // The deepest level at the bottom, as in the tree.
    let layers: Vec<(String, &str, Vec<f64>)> =
        used.iter().rev().map(|i| (format!("L{i}"), svg::level_colour(*i), height(*i))).collect();
    let sums = samples.iter().map(|(_, l)| l.iter().sum::<u64>() as f64 / MIB);
    let x = Axis::over("seconds since the start", Scale::Linear, xs.iter().copied());
    let y = Axis::over("MB in tables", Scale::Linear, sums);
    let mut chart = Chart::new(&format!("Levels of the tree: {}", report.sides[side].label), x, y);
    chart.stack(&xs, &layers);
    Some(chart.finish())
}

/// Jobs at a time, by the level that they begin at (DownForce's Figure 8 counts them so).
fn running_jobs(report: &Report, position: usize, side: usize) -> Option<String> {
    let samples = &middle(report, position, side)?.timeline.samples;
    let places = samples.iter().map(|s| s.jobs.len()).max()?;
    if samples.len() < 3 || samples.iter().all(|s| s.jobs.iter().all(|n| *n == 0)) {
        return None;
    }
    let some: Vec<&[Sample]> = samples.chunks(samples.len().div_ceil(POINTS_MAX)).collect();
    let xs: Vec<f64> = some.iter().filter_map(|s| Some(s.last()?.seconds)).collect();
    let means: Vec<Vec<f64>> = some.iter().map(|s| mean_jobs(s, places)).collect();
    let name = |place: usize| place.checked_sub(1).map_or("flushes".to_owned(), |level| format!("from L{level}"));
    let fill = |place: usize| place.checked_sub(1).map_or(svg::colour(1), svg::level_colour);
    let layers: Vec<(String, &str, Vec<f64>)> = (0..places)
        .filter(|place| means.iter().any(|m| m[*place] > 0.0))
        .map(|place| (name(place), fill(place), means.iter().map(|m| m[place]).collect()))
        .collect();
    let x = Axis::over("seconds since the start", Scale::Linear, xs.iter().copied());
    let y = Axis::over("jobs at a time", Scale::Linear, means.iter().map(|m| m.iter().sum()));
    let mut chart = Chart::new(&format!("Jobs that run: {}", report.sides[side].label), x, y);
    chart.stack(&xs, &layers);
    Some(chart.finish())
}

/// The fraction of samples in which at most this many threads compacted (DownForce's Figure 7).
fn threads_at_a_time(report: &Report, position: usize) -> Option<String> {
    let of = |side: usize| {
        let timeline = &middle(report, position, side)?.timeline;
        let parts = timeline.threads_at_most();
        // A side without compactions, or with very few samples, is omitted.
        (parts.len() > 1 && timeline.samples.len() >= 3).then_some((side, parts))
    };
    let sides: Vec<(usize, Vec<f64>)> = (0..report.sides.len()).filter_map(of).collect();
    let most = sides.iter().map(|(_, parts)| parts.len()).max()?;
    let x = Axis::over("compaction threads at a time, at most", Scale::Linear, [most as f64].into_iter());
    let y = Axis { label: "percent of the samples", scale: Scale::Linear, from: 0.0, to: 100.0 };
    let mut chart = Chart::new("Compaction threads", x, y);
    for (side, parts) in &sides {
        let step = |(n, part): (usize, &f64)| [(n as f64, part * 100.0), (n as f64 + 1.0, part * 100.0)];
        let line: Vec<(f64, f64)> = parts.iter().enumerate().flat_map(step).chain([(most as f64, 100.0)]).collect();
        chart.line(*side, &line, false);
        chart.name_line(*side, &report.sides[*side].label);
    }
    Some(chart.finish())
}

fn costs(report: &Report, position: usize, job: bool) -> String {
    let mut all = Vec::new();
    for (side, known) in report.sides.iter().enumerate() {
        let unit = if job { "s" } else { "µs" };
        let cpu = |o: &Outcome| {
            let scale = if job { 1.0 } else { 1e6 / o.record.ops.max(1) as f64 };
            (o.cost.usage.user + o.cost.usage.system).as_secs_f64() * scale
        };
        let Some(value) = median_of(report, position, side, &cpu) else { continue };
        let kernel = median_of(report, position, side, &kernel_share).unwrap_or(0.0);
        let text = format!("{} {unit} ({kernel:.0} % kernel)", short(value));
        all.push(Bar { name: known.label.clone(), side, value, text });
    }
    let (title, unit) = match job {
        true => ("CPU time", "seconds of all threads"),
        false => ("CPU time for each operation", "microseconds of all threads, background work included"),
    };
    svg::bars(title, unit, &all)
}

/// The benchmark's duration in seconds, which is clearer than a job's rate.
fn elapsed(report: &Report, position: usize, example: &Outcome) -> String {
    if example.workload.is_threaded() {
        return String::new();
    }
    let bar = |(side, known): (usize, &SideReport)| {
        let seconds = median_of(report, position, side, &|o: &Outcome| o.record.elapsed.as_secs_f64())?;
        Some(Bar { name: known.label.clone(), side, value: seconds, text: format!("{} s", short(seconds)) })
    };
    let all: Vec<Bar> = report.sides.iter().enumerate().filter_map(bar).collect();
    svg::bars("Time", "seconds", &all)
}

fn kernel_share(o: &Outcome) -> f64 {
    let u = &o.cost.usage;
    100.0 * u.system.as_secs_f64() / (u.user + u.system).as_secs_f64().max(1e-9)
}

/// What held writers back, in words.
fn stalls(report: &Report, position: usize) -> String {
    let mut out = String::new();
    for (side, known) in report.sides.iter().enumerate() {
        let Some(o) = middle(report, position, side).filter(|o| o.stalls.micros() > 0) else { continue };
        let reasons: Vec<String> =
            o.stalls.by_reason.iter().map(|(r, n)| format!("{r} {:.2} s", *n as f64 / 1e6)).collect();
        let counts: Vec<String> = o.stalls.counts.iter().map(|(r, n)| format!("{r} {n} times")).collect();
        let _ = writeln!(
            out,
            "<p class=\"note\"><b>{}</b> held writers back for {:.2} s ({:.2} s of it stopped): {}.</p>",
            escape(&known.label),
            o.stalls.micros() as f64 / 1e6,
            o.stalls.stopped_micros as f64 / 1e6,
            escape(&[reasons, counts].concat().join(", "))
        );
    }
    out
}

/// A bar's length and its text. The bar is as long as the text says: 0.00 has none, however little the others have.
fn two_decimals(v: f64) -> (f64, String) {
    ((v * 100.0).round() / 100.0, format!("{v:.2}"))
}

/// Write, read and space amplification of each side, over all benchmarks of a repetition.
pub(super) fn amplification(report: &Report) -> String {
    let sides = || report.sides.iter().enumerate();
    let over = |side: usize, of: &dyn Fn(&Outcome) -> (f64, f64)| {
        let per_repetition = |r: usize| {
            let its = report.outcomes.iter().filter(|o| o.side == side && o.repetition == r);
            let (device, user) = its.map(of).fold((0.0, 0.0), |a, b| (a.0 + b.0, a.1 + b.1));
            (user > 0.0).then_some(device / user)
        };
        let all: Vec<f64> = (0..report.flags.repeat).filter_map(per_repetition).collect();
        (!all.is_empty()).then(|| median(&all))
    };
    let write = |o: &Outcome| (o.cost.usage.device_write_bytes as f64, (o.record.wrote + o.background.wrote) as f64);
    // Only benchmarks that read and do not write, because reads of compactions are not for users.
    let read = |o: &Outcome| match o.record.wrote + o.background.wrote {
        0 => (o.cost.usage.device_read_bytes as f64, o.record.read as f64),
        _ => (0.0, 0.0),
    };
    let space = |side: usize| {
        let all: Vec<f64> =
            report.spaces.iter().filter(|s| s.side == side).map(crate::outcome::SpaceUse::amplification).collect();
        (!all.is_empty()).then(|| median(&all))
    };
    let chart = |title: &str, unit: &str, of: &dyn Fn(usize) -> Option<f64>| {
        let bar = |(side, known): (usize, &SideReport)| {
            let (value, text) = two_decimals(of(side)?);
            Some(Bar { name: known.label.clone(), side, value, text })
        };
        let all: Vec<Bar> = sides().filter_map(bar).collect();
        if all.is_empty() { String::new() } else { format!("<div>{}</div>\n", svg::bars(title, unit, &all)) }
    };
    let charts = [
        chart("Write amplification", "bytes written to the device for each byte that users wrote", &|s| {
            over(s, &write)
        }),
        chart("Read amplification", "bytes read from the device for each byte that readers got", &|s| over(s, &read)),
        chart("Space amplification", "bytes of files for each byte of keys and values", &space),
    ];
    format!("<section>\n<h2>Amplification</h2>\n<div class=\"charts\">\n{}</div>\n</section>\n", charts.concat())
}

/// The device's limits, and how near each benchmark came.
pub(super) fn device(report: &Report) -> String {
    if report.devices.is_empty() {
        return String::new();
    }
    let of = |f: fn(&DeviceLimits) -> f64| median(&report.devices.iter().map(f).collect::<Vec<_>>());
    let (write, read) = (of(|d| d.sequential_write), of(|d| d.sequential_read.max(d.sequential_read_deep)));
    let mut out = format!(
        "<section>\n<h2>The device in the same run</h2>\n<p>1 MiB writes in order {:.0} MB/s; 1 MiB reads in order {:.0} \
         MB/s, eight at once {:.0} MB/s; random 4 KiB reads {:.0} a second ({:.0} µs each), 32 at \
         once {:.0} a second.{}</p>\n\
         <div class=\"scroll\"><table>\n<thead><tr><th>benchmark</th><th class=\"text\">store</th>\
         <th>MB/s<br>read</th><th>share of<br>the device</th><th>MB/s<br>written</th>\
         <th>share of<br>the device</th></tr></thead>\n",
        write / MIB,
        of(|d| d.sequential_read) / MIB,
        of(|d| d.sequential_read_deep) / MIB,
        of(|d| d.random_reads),
        1e6 / of(|d| d.random_reads).max(1e-9),
        of(|d| d.random_reads_deep),
        if report.devices.iter().all(|d| d.direct) { "" } else { " Direct I/O was refused: the page cache took part." }
    );
    for (position, example) in pairs::benchmarks(report) {
        for (side, known) in report.sides.iter().enumerate() {
            let rate = |of: fn(&Outcome) -> u64| {
                let per_second = move |o: &Outcome| of(o) as f64 / o.record.elapsed.as_secs_f64().max(1e-9);
                median_of(report, position, side, &per_second)
            };
            let Some(r) = rate(|o| o.cost.usage.device_read_bytes) else { continue };
            let w = rate(|o| o.cost.usage.device_write_bytes).unwrap_or(0.0);
            let _ = writeln!(
                out,
                "<tr><td>{}</td><td class=\"text\">{}</td><td>{:.1}</td><td>{:.0} %</td><td>{:.1}</td><td>{:.0} %</td></tr>",
                escape(example.workload.name()),
                escape(&known.label),
                r / MIB,
                100.0 * r / read.max(1e-9),
                w / MIB,
                100.0 * w / write.max(1e-9)
            );
        }
    }
    out + "</table></div>\n</section>\n"
}

/// Settings of the stores: first differences, then all.
pub(super) fn settings(report: &Report) -> String {
    let flags: Vec<(String, String)> = report.flags.settings().into_iter().map(|(n, v)| (n.to_owned(), v)).collect();
    settings_of(&report.sides, &flags)
}

/// Options of two sides, with the value of each.
fn differences_table(first: &str, other: &str, all: &[(String, String, String)]) -> String {
    let mut out = format!(
        "<div class=\"scroll\"><table><thead><tr><th>option</th><th class=\"text\">{}</th>\
         <th class=\"text\">{}</th></tr></thead>\n",
        escape(first),
        escape(other)
    );
    for (name, a, b) in all {
        let (name, a, b) = (escape(name), escape(&settings::in_words(a)), escape(&settings::in_words(b)));
        let _ = writeln!(out, "<tr><td>{name}</td><td class=\"value\">{a}</td><td class=\"value\">{b}</td></tr>");
    }
    out + "</table></div>\n"
}

/// The same for any run.
pub(super) fn settings_of(sides: &[SideReport], flags: &[(String, String)]) -> String {
    let mut out = String::from("<section>\n<h2>Settings</h2>\n");
    if let [first, others @ ..] = sides {
        for other in others {
            // As the text has it: a warning where somebody set it.
            let (chosen, set): (Vec<_>, Vec<_>) = settings::differences(&first.settings, &other.settings)
                .into_iter()
                .partition(|(name, a, b)| settings::is_chosen(name, a, b));
            for (class, what, all) in [
                ("warn", "Options that both have, at different values:", set),
                ("note", "What one of them leaves to the store, by 0 or default:", chosen),
            ] {
                if !all.is_empty() {
                    let _ = writeln!(out, "<p class=\"{class}\">{what}</p>");
                    out += &differences_table(&first.label, &other.label, &all);
                }
            }
        }
    }
    let details = |title: &str, all: &[(String, String)]| {
        let rows: String = all
            .iter()
            .map(|(n, v)| (escape(n), escape(&settings::in_words(v))))
            .map(|(n, v)| format!("<tr><td>{n}</td><td class=\"value\">{v}</td></tr>\n"))
            .collect();
        format!(
            "<details><summary>{}</summary><div class=\"scroll\"><table>\n{rows}</table></div></details>\n",
            escape(title)
        )
    };
    for side in sides {
        out += &details(&format!("Everything that {} says it has", side.label), &side.settings);
    }
    out += &details("Flags of the run", flags);
    out + "</section>\n"
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::record::{Done, Recorder};
    use crate::workload::Workload;

    #[test]
    fn the_medians_line_and_the_table_agree() {
        for repetitions in [1, 2, 3] {
            let outcome = |repetition: usize| {
                let mut o = Outcome::new(Workload::ReadRandom, 0, repetition, 1);
                o.record = Recorder::new(true);
                for i in 0..4000 {
                    let micros = (i % 1000 + 1) * (1 + 7 * (repetition as u64 + 1) % 5);
                    o.record.starts(Instant::now() - Duration::from_micros(micros));
                    o.record.finished(Done::read(1));
                }
                o.record.elapsed = Duration::from_secs(1);
                o
            };
            let report = Report {
                machine: Machine::default(),
                flags: Flags::default(),
                sides: vec![SideReport { label: "a".to_owned(), ..SideReport::default() }],
                outcomes: (0..repetitions).map(outcome).collect(),
                spaces: vec![],
                devices: vec![],
                caches: None,
                calls_not_by_tracepoints: None,
            };
            let table = table(&report);
            let row = table.split("<td class=\"text\">a</td><td>").nth(1).expect("the side's row");
            let cells: Vec<&str> = row.split("</td><td>").collect();
            let of = |o: &Outcome| curve(o.record.latencies().next().expect("every operation is timed").1);
            let curves: Vec<Curve> = report.outcomes.iter().map(of).collect();
            let line = median_curve(&curves.iter().collect::<Vec<_>>());
            for (cell, quantile) in [(1, 0.5), (2, 0.99), (3, 0.999)] {
                let (_, micros) = line.iter().find(|point| point.0 == quantile).expect("a point of the line");
                assert_eq!(cells[cell], short(*micros), "quantile {quantile} of {repetitions} repetitions: {row}");
            }
        }
    }

    #[test]
    fn what_a_store_chooses_itself_is_no_warning() {
        let side = |label: &str, settings: &[(&str, &str)]| SideReport {
            label: label.to_owned(),
            settings: settings.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect(),
            ..SideReport::default()
        };
        let chosen = [
            side("a", &[("arena_block_size", "0"), ("num_levels", "7")]),
            side("b", &[("arena_block_size", "1048576"), ("num_levels", "7")]),
        ];
        let page = settings_of(&chosen, &[]);
        assert!(page.contains("leaves to the store") && !page.contains("class=\"warn\""), "{page}");
        let set = [side("a", &[("num_levels", "7")]), side("b", &[("num_levels", "6")])];
        let page = settings_of(&set, &[]);
        assert!(page.contains("class=\"warn\"") && !page.contains("leaves to the store"), "{page}");
        assert!(page.contains("<td>num_levels</td><td class=\"value\">7</td><td class=\"value\">6</td>"), "{page}");
    }

    #[test]
    fn what_is_shown_as_nothing_has_no_bar() {
        assert_eq!(two_decimals(0.0004), (0.0, "0.00".to_owned()));
        assert_eq!(two_decimals(1.562), (1.56, "1.56".to_owned()));
        let bars: Vec<Bar> = [0.0004, 0.0]
            .map(two_decimals)
            .map(|(value, text)| Bar { name: "a".to_owned(), side: 0, value, text })
            .to_vec();
        assert!(!svg::bars("Read amplification", "bytes", &bars).contains("<rect"));
    }
}
