//! Compares sides: medians, and the ratios pair by pair, because the speed of a shared machine varies.

use serde_json::{Value, json};

use crate::outcome::{MIB, Outcome, Report, SpaceUse, latency_numbers};
use crate::store::OpKind;
use crate::tables;
use crate::timeline::short;
use crate::workload::Workload;

/// A ratio this close to 1 is a tie, however narrow its spread is.
const TIE_WITHIN: f64 = 0.02;

/// One figure of one benchmark, for the first side and another.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// The benchmark.
    pub workload: Workload,
    /// Its place in the list of benchmarks.
    pub position: usize,
    /// The figure.
    pub measure: String,
    /// More is better.
    pub more_is_better: bool,
    /// The first side's name.
    pub first: String,
    /// The other's.
    pub other: String,
    /// The first side's median.
    pub first_median: f64,
    /// The other's.
    pub other_median: f64,
    /// First divided by other, pair by pair, in the order of repetitions.
    pub ratios: Vec<f64>,
}

impl Comparison {
    /// Median, smallest and largest ratio.
    pub fn spread(&self) -> (f64, f64, f64) {
        let least = self.ratios.iter().copied().fold(f64::INFINITY, f64::min);
        let most = self.ratios.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        (median(&self.ratios), least, most)
    }

    /// True if neither side can be called better: the spread includes 1, or the median is too close to it.
    pub fn is_tie(&self) -> bool {
        first_is_better(&self.ratios, self.more_is_better).is_none()
    }

    pub(crate) fn to_json(&self) -> Value {
        let (middle, least, most) = self.spread();
        json!({
            "benchmark": self.workload.name(),
            "position": self.position,
            "measure": self.measure,
            "first": self.first,
            "other": self.other,
            "first_median": self.first_median,
            "other_median": self.other_median,
            "ratio_median": middle,
            "ratio_least": least,
            "ratio_most": most,
            "ratios": self.ratios,
        })
    }
}

/// The median: the middle value, or the mean of the two middle ones; 0 if empty.
pub(crate) fn median(all: &[f64]) -> f64 {
    let mut all = all.to_vec();
    all.sort_by(f64::total_cmp);
    match all.len() {
        0 => 0.0,
        n if n % 2 == 1 => all[n / 2],
        n => f64::midpoint(all[n / 2 - 1], all[n / 2]),
    }
}

/// A figure for comparing two sides: name, whether more is better, and how to compute it.
type Measure = (String, bool, Box<dyn Fn(&Outcome) -> Option<f64>>);

fn measures(sample: &Outcome) -> Vec<Measure> {
    let positive = |x: f64| (x > 0.0).then_some(x);
    let mut all: Vec<Measure> = vec![
        ("ops/s".into(), true, Box::new(move |o| positive(o.ops_per_second()))),
        ("cpu s".into(), false, Box::new(move |o| positive((o.cost.usage.user + o.cost.usage.system).as_secs_f64()))),
        ("memory MB".into(), false, Box::new(move |o| positive(o.memory_bytes() as f64 / MIB))),
        ("device read MB".into(), false, Box::new(move |o| positive(o.cost.usage.device_read_bytes as f64 / MIB))),
        ("device written MB".into(), false, Box::new(move |o| positive(o.cost.usage.device_write_bytes as f64 / MIB))),
        ("system calls".into(), false, Box::new(move |o| positive(o.cost.calls.total() as f64))),
        ("stalled s".into(), false, Box::new(move |o| positive(o.stalls.micros() as f64 / 1e6))),
    ];
    for (kind, _) in sample.record.latencies().filter(|(kind, _)| *kind != OpKind::Job) {
        for name in ["mean", "p50", "p99", "p99.9"] {
            let of = move |o: &Outcome| {
                let (_, h) = o.record.latencies().find(|(k, _)| *k == kind)?;
                latency_numbers(h).into_iter().find(|(n, _)| *n == name).map(|(_, x)| x)
            };
            all.push((format!("{} {name} us", kind.name()), false, Box::new(of)));
        }
    }
    all
}

/// The benchmarks of a run with figures, in order: the index in the list, and one outcome as an example.
pub(crate) fn benchmarks(report: &Report) -> Vec<(usize, &Outcome)> {
    let mut out: Vec<(usize, &Outcome)> = Vec::new();
    for o in report.outcomes.iter().filter(|o| o.stats.is_none() && o.device.is_none()) {
        if out.iter().all(|(position, _)| *position != o.position) {
            out.push((o.position, o));
        }
    }
    out
}

/// Values of a figure of one side in the order of repetitions.
pub(crate) fn values(
    report: &Report,
    position: usize,
    side: usize,
    of: &dyn Fn(&Outcome) -> Option<f64>,
) -> Vec<Option<f64>> {
    let its = report.outcomes.iter().filter(|o| o.position == position && o.side == side);
    its.map(of).collect()
}

/// Every comparison of the first side with each other.
pub fn comparisons(report: &Report) -> Vec<Comparison> {
    let mut out = Vec::new();
    for (position, example) in benchmarks(report) {
        // The remaining work depends on the end of the previous benchmark, not on the store's speed.
        if example.workload == Workload::WaitForCompaction {
            continue;
        }
        for other in 1..report.sides.len() {
            for (measure, more_is_better, of) in measures(example) {
                let (a, b) = (values(report, position, 0, &*of), values(report, position, other, &*of));
                let pairs: Vec<(f64, f64)> = a.iter().zip(&b).filter_map(|(a, b)| Some(((*a)?, (*b)?))).collect();
                if pairs.is_empty() {
                    continue;
                }
                let (first, others): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
                out.push(Comparison {
                    workload: example.workload,
                    position,
                    measure,
                    more_is_better,
                    first: report.sides[0].label.clone(),
                    other: report.sides[other].label.clone(),
                    first_median: median(&first),
                    other_median: median(&others),
                    ratios: pairs.iter().map(|(a, b)| a / b).collect(),
                });
            }
        }
    }
    out
}

impl Report {
    /// The table at the end: each side's medians, then the ratios.
    pub fn table(&self) -> String {
        let mut text = String::from("------------------------------------------------\n");
        if self.flags.repeat > 1 {
            text +=
                &format!("Medians of {} repetitions, the sides in turn, another first in each.\n", self.flags.repeat);
        }
        let heads = [
            "benchmark",
            "store",
            "ops/s",
            "p50 us",
            "p99 us",
            "p99.9 us",
            "max us",
            "cpu s",
            "memory MB",
            "read MB",
            "written MB",
            "stalled s",
            "calls/op",
        ];
        let mut rows = Vec::new();
        for (position, example) in benchmarks(self) {
            for (side, known) in self.sides.iter().enumerate() {
                let cell = |of: &dyn Fn(&Outcome) -> Option<f64>| {
                    let all: Vec<f64> = values(self, position, side, of).into_iter().flatten().collect();
                    if all.is_empty() { "-".to_owned() } else { short(median(&all)) }
                };
                let latency = |index: usize| {
                    cell(&move |o: &Outcome| {
                        let (kind, h) = o.record.latencies().next()?;
                        (kind != OpKind::Job).then(|| latency_numbers(h)[index].1)
                    })
                };
                let u = |of: fn(&Outcome) -> f64| cell(&move |o: &Outcome| Some(of(o)));
                rows.push(vec![
                    example.workload.name().to_owned(),
                    known.label.clone(),
                    u(Outcome::ops_per_second),
                    latency(1),
                    latency(3),
                    latency(4),
                    latency(6),
                    u(|o| (o.cost.usage.user + o.cost.usage.system).as_secs_f64()),
                    u(|o| o.memory_bytes() as f64 / MIB),
                    u(|o| o.cost.usage.device_read_bytes as f64 / MIB),
                    u(|o| o.cost.usage.device_write_bytes as f64 / MIB),
                    u(|o| o.stalls.micros() as f64 / 1e6),
                    u(|o| o.cost.calls.total() as f64 / o.record.ops.max(1) as f64),
                ]);
            }
        }
        text += &format!("{}\n", tables::text(&heads, 2, &rows));
        let (latencies, others): (Vec<_>, Vec<_>) =
            comparisons(self).into_iter().partition(|c| c.measure.ends_with(" us"));
        if !others.is_empty() {
            // With two sides it is always the same two.
            let two = self.sides.len() == 2;
            let mut heads = vec!["benchmark", "figure", "of", "median", "spread", ""];
            let mut rows = Vec::new();
            for c in others.iter().chain(latencies.iter().filter(|c| c.measure.contains(" p99 "))) {
                let (middle, least, most) = c.spread();
                let mut row = vec![
                    c.workload.name().to_owned(),
                    c.measure.clone(),
                    format!("{} / {}", c.first, c.other),
                    format!("{middle:.2}"),
                    format!("{least:.2}..{most:.2}"),
                    verdict(c).to_owned(),
                ];
                if two {
                    row.remove(2);
                }
                rows.push(row);
            }
            let of = match two {
                true => format!(" {} over {}", self.sides[0].label, self.sides[1].label),
                false => String::new(),
            };
            if two {
                heads.remove(2);
            }
            let table = tables::text(&heads, if two { 2 } else { 3 }, &rows);
            text += &format!("\nRatios pair by pair:{of}\n{table}\n");
        }
        for (side, known) in self.sides.iter().enumerate() {
            let its = || self.spaces.iter().filter(|s| s.side == side);
            if its().next().is_none() {
                continue;
            }
            let middle = |of: &dyn Fn(&SpaceUse) -> f64| median(&its().map(of).collect::<Vec<_>>());
            text += &format!(
                "{}: {:.0} entries, {:.1} MB of keys and values, {:.1} MB of files: space amplification {:.2}\n",
                known.label,
                middle(&|s| s.entries as f64),
                middle(&|s| s.bytes as f64 / MIB),
                middle(&|s| s.file_bytes as f64 / MIB),
                middle(&SpaceUse::amplification)
            );
        }
        text
    }
}

/// What a ratio says, in a word.
pub(crate) fn verdict(c: &Comparison) -> &'static str {
    let (middle, ..) = c.spread();
    match () {
        () if c.ratios.len() < 2 => "one pair",
        () if c.is_tie() => "tie",
        () if (middle > 1.0) == c.more_is_better => "better",
        () => "worse",
    }
}

/// True if the first side is better by these ratios (first divided by other); `None` for a tie.
pub(crate) fn first_is_better(ratios: &[f64], more_is_better: bool) -> Option<bool> {
    let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    let most = ratios.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let middle = median(ratios);
    let tie = ratios.is_empty() || (least <= 1.0 && most >= 1.0) || (middle - 1.0).abs() < TIE_WITHIN;
    (!tie).then_some((middle > 1.0) == more_is_better)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::flags::Flags;
    use crate::machine::Machine;
    use crate::outcome::SideReport;
    use crate::record::{Done, Recorder};

    /// Operations in a second, by side and repetition.
    fn report(rates: &[[u64; 3]]) -> Report {
        let side = |i: usize| SideReport { label: format!("s{i}"), version: "1".into(), ..SideReport::default() };
        let mut outcomes = Vec::new();
        for repetition in 0..3 {
            for (index, rates) in rates.iter().enumerate() {
                let mut o = Outcome::new(Workload::ReadRandom, index, repetition, 1);
                o.record = Recorder::new(true);
                (0..rates[repetition]).for_each(|_| o.record.finished(Done::read(1)));
                o.record.elapsed = Duration::from_secs(1);
                outcomes.push(o);
            }
        }
        Report {
            machine: Machine::default(),
            flags: Flags { repeat: 3, ..Flags::default() },
            sides: (0..rates.len()).map(side).collect(),
            outcomes,
            spaces: vec![],
            devices: vec![],
            caches: None,
            calls_not_by_tracepoints: None,
        }
    }

    #[test]
    fn ratios_are_of_pairs_and_not_of_medians() {
        let r = report(&[[100, 400, 30], [50, 100, 60]]);
        let all = comparisons(&r);
        let c = all.iter().find(|c| c.measure == "ops/s").expect("the rate");
        assert_eq!(c.ratios, [2.0, 4.0, 0.5]);
        assert_eq!((c.first_median, c.other_median), (100.0, 60.0));
        assert_eq!(c.spread(), (2.0, 0.5, 4.0));
        assert!(c.is_tie() && verdict(c) == "tie");
        assert!(all.iter().any(|c| c.measure == "read p99 us"));
        let table = r.table();
        assert!(table.contains("0.50..4.00") && table.contains("readrandom"), "{table}");
    }

    #[test]
    fn verdicts_know_which_way_is_better() {
        let r = report(&[[100, 110, 120], [50, 50, 50], [200, 230, 240]]);
        let all = comparisons(&r);
        let verdicts: Vec<&str> = all.iter().filter(|c| c.measure == "ops/s").map(verdict).collect();
        assert_eq!(verdicts, ["better", "worse"]);
        let near = report(&[[101, 101, 101], [100, 100, 100]]);
        let all = comparisons(&near);
        let c = all.iter().find(|c| c.measure == "ops/s").expect("the rate");
        assert!(c.is_tie() && verdict(c) == "tie", "one percent is a tie");
        assert_eq!(first_is_better(&[0.5], false), Some(true), "half of the time");
        assert_eq!(first_is_better(&[], true), None);
    }

    #[test]
    fn medians() {
        assert_eq!([median(&[]), median(&[3.0]), median(&[4.0, 1.0]), median(&[9.0, 1.0, 5.0])], [0.0, 3.0, 2.5, 5.0]);
    }
}
