//! CPU, devices and the store's own numbers over time: the paper on DecouKV draws them in its Figures 11, 12 and 16.

use rockmill::properties;
use rockmill_page::svg::{Axis, Chart, Scale};

use super::sections::middle;
use crate::outcome::{MIB, Report};
use crate::timeline::{Sample, Timeline};
use crate::usage::{self, COUNTS, DEVICES, TASK_COUNTS};

/// Counts of changes of index tables' triggers, with the resource that was short.
const CHANGES: [(&str, &str); 3] = [
    (properties::INDEX_SCHEDULE_CHANGES_CORE, "a core"),
    (properties::INDEX_SCHEDULE_CHANGES_DEVICE, "the device"),
    (properties::INDEX_SCHEDULE_CHANGES_IDLE, "nothing"),
];

/// Charts of one benchmark, for each side's repetition with the median rate.
pub(super) fn charts(report: &Report, position: usize) -> Vec<String> {
    let draw = |title: &str, label: &'static str, of: &dyn Fn(&Timeline) -> Vec<(f64, f64)>| {
        let line = |side| middle(report, position, side).map(|o| of(&o.timeline)).unwrap_or_default();
        let lines: Vec<_> = (0..report.sides.len()).map(line).collect();
        // Lines that last some seconds and are not always zero.
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
    names.retain(|name| CHANGES.iter().all(|(of, _)| of != name));
    for name in names {
        out.push(draw(name, "as the store says", &|t| numbers(t, name)));
    }
    for side in 0..report.sides.len() {
        let Some(timeline) = middle(report, position, side).map(|o| &o.timeline) else { continue };
        let title = format!("Why index tables' triggers changed: {}", report.sides[side].label);
        let lines = CHANGES.map(|(name, what)| (what, numbers(timeline, name)));
        out.push(of_each(&title, "changes until then, by what was short", &lines));
    }
    out.into_iter().flatten().collect()
}

/// What the store said of itself.
fn numbers(timeline: &Timeline, name: &str) -> Vec<(f64, f64)> {
    let found = |s: &Sample| s.used.numbers.iter().find(|(of, _)| *of == name).map(|(_, n)| *n as f64);
    timeline.samples.iter().filter_map(|s| Some((s.seconds, found(s)?))).collect()
}

/// A chart of the lines that are not zero throughout, if there are any.
fn of_each(title: &str, label: &'static str, lines: &[(&str, Vec<(f64, f64)>)]) -> Option<String> {
    let drawn = |line: &[(f64, f64)]| line.len() >= 3 && line.iter().any(|p| p.1 > 0.0);
    let points = || lines.iter().filter(|(_, line)| drawn(line)).flat_map(|(_, line)| line);
    points().next()?;
    let x = Axis::over("seconds since the start", Scale::Linear, points().map(|p| p.0));
    let y = Axis::over(label, Scale::Linear, points().map(|p| p.1));
    let mut chart = Chart::new(title, x, y);
    for (place, (name, line)) in lines.iter().enumerate().filter(|(_, (_, line))| drawn(line)) {
        chart.line(place, line, false);
        chart.name_line(place, name);
    }
    Some(chart.finish())
}

/// A side's activity by kind of work: concurrent jobs, and their input bytes. One line per kind.
fn tasks(report: &Report, position: usize, side: usize) -> Vec<Option<String>> {
    let Some(timeline) = middle(report, position, side).map(|o| &o.timeline) else { return vec![] };
    let names: Vec<_> = timeline.samples.last().iter().flat_map(|s| &s.used.tasks).map(|task| task.name).collect();
    let charts = [("Busy with", "jobs at a time", 1e6), ("Bytes taken by", "MB in a second", MIB)];
    let draw = |((what, label, unit), (_, of)): ((&str, &'static str, f64), (&str, _))| {
        let line = |task| usage::of_task(timeline, task, of).into_iter().map(|(t, n)| (t, n / unit)).collect();
        let lines: Vec<(&str, Vec<(f64, f64)>)> = names.iter().enumerate().map(|(n, name)| (*name, line(n))).collect();
        of_each(&format!("{what} each task: {}", report.sides[side].label), label, &lines)
    };
    charts.into_iter().zip(TASK_COUNTS).map(draw).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_have_a_line_for_each_reason_that_there_was() {
        let sample = |seconds: u32, core| {
            let mut sample = Sample { seconds: seconds.into(), ..Sample::default() };
            sample.used.numbers = vec![(CHANGES[0].0, core), (CHANGES[1].0, 0)];
            sample
        };
        let timeline = Timeline { samples: vec![sample(0, 0), sample(1, 1), sample(2, 3)] };
        let lines = CHANGES.map(|(name, what)| (what, numbers(&timeline, name)));
        assert_eq!(lines[0].1, [(0.0, 0.0), (1.0, 1.0), (2.0, 3.0)]);
        let chart = of_each("why", "changes", &lines).expect("a chart");
        assert!(chart.contains("a core") && !chart.contains("the device") && !chart.contains("nothing"), "{chart}");
        assert_eq!(of_each("why", "changes", &lines[1..]), None);
    }
}
