//! CPU, devices and the store's own numbers over time: the paper on DecouKV draws them in its Figures 11, 12 and 16.

use rockmill_page::svg::{Axis, Chart, Scale};

use super::sections::middle;
use crate::outcome::{MIB, Report};
use crate::timeline::Timeline;
use crate::usage::{self, COUNTS, DEVICES, TASK_COUNTS};

/// Charts of one benchmark, of each side's repetition with the median rate.
pub(super) fn charts(report: &Report, position: usize) -> Vec<String> {
    let draw = |title: &str, label: &'static str, of: &dyn Fn(&Timeline) -> Vec<(f64, f64)>| {
        let line = |side| middle(report, position, side).map(|o| of(&o.timeline)).unwrap_or_default();
        let lines: Vec<_> = (0..report.sides.len()).map(line).collect();
        // What lasted some seconds and was not nothing all the time.
        let points = || lines.iter().flatten();
        if lines.iter().all(|line| line.len() < 3) || points().all(|p| p.1 == 0.0) {
            return None;
        }
        let x = Axis::over("seconds since the start", Scale::Linear, points().map(|p| p.0));
        let y = Axis::over(label, Scale::Linear, points().map(|p| p.1));
        let mut chart = Chart::new(title, x, y);
        for (side, line) in lines.iter().enumerate().filter(|(_, line)| !line.is_empty()) {
            chart.line(side, line, false);
            chart.name_line(side, &report.sides[side].label);
        }
        Some(chart.finish())
    };
    let mut out = vec![draw("CPU in use", "cores", &usage::cores)];
    for (device, name) in DEVICES.iter().enumerate() {
        let name = if *name == "db" { "the database's device" } else { "the faster device" };
        for (what, (_, of)) in ["Read from", "Written to"].iter().zip(COUNTS) {
            let rate =
                |t: &Timeline| usage::of_device(t, device, of).into_iter().map(|(t, bytes)| (t, bytes / MIB)).collect();
            out.push(draw(&format!("{what} {name}"), "MB in a second", &rate));
        }
    }
    for side in 0..report.sides.len() {
        out.extend(tasks(report, position, side));
    }
    for (what, all) in [("Logs", false), ("Everything", true)] {
        let bytes = |t: &Timeline| {
            let of = |(logs, files): (u64, u64)| (if all { files } else { logs }) as f64 / MIB;
            t.samples.iter().filter_map(|s| Some((s.seconds, of(s.used.fast_bytes?)))).collect()
        };
        out.push(draw(&format!("{what} on the faster device"), "MB", &bytes));
    }
    let samples = || report.outcomes.iter().filter(|o| o.position == position).flat_map(|o| &o.timeline.samples);
    let mut names: Vec<&str> = samples().flat_map(|s| s.used.numbers.iter().map(|(name, _)| *name)).collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        let numbers = |t: &Timeline| {
            let of = |(_, n): &(&str, u64)| *n as f64;
            let found = |s: &crate::timeline::Sample| s.used.numbers.iter().find(|(of, _)| *of == name).map(of);
            t.samples.iter().filter_map(|s| Some((s.seconds, found(s)?))).collect()
        };
        out.push(draw(name, "as the store says", &numbers));
    }
    out.into_iter().flatten().collect()
}

/// What a side did in which kind of work: jobs at a time, and bytes that they took. A line for each kind.
fn tasks(report: &Report, position: usize, side: usize) -> Vec<Option<String>> {
    let Some(timeline) = middle(report, position, side).map(|o| &o.timeline) else { return vec![] };
    let names: Vec<_> = timeline.samples.last().iter().flat_map(|s| &s.used.tasks).map(|task| task.name).collect();
    let charts = [("Busy with", "jobs at a time", 1e6), ("Bytes taken by", "MB in a second", MIB)];
    let draw = |((what, label, unit), (_, of)): ((&str, &'static str, f64), (&str, _))| {
        let line = |task| usage::of_task(timeline, task, of).into_iter().map(|(t, n)| (t, n / unit)).collect();
        let lines: Vec<Vec<(f64, f64)>> = (0..names.len()).map(line).collect();
        let drawn = |line: &&Vec<(f64, f64)>| line.len() >= 3 && line.iter().any(|p| p.1 > 0.0);
        let points = || lines.iter().filter(drawn).flatten();
        points().next()?;
        let x = Axis::over("seconds since the start", Scale::Linear, points().map(|p| p.0));
        let y = Axis::over(label, Scale::Linear, points().map(|p| p.1));
        let mut chart = Chart::new(&format!("{what} each task: {}", report.sides[side].label), x, y);
        for (task, line) in lines.iter().enumerate().filter(|(_, line)| drawn(line)) {
            chart.line(task, line, false);
            chart.name_line(task, names[task]);
        }
        Some(chart.finish())
    };
    charts.into_iter().zip(TASK_COUNTS).map(draw).collect()
}
