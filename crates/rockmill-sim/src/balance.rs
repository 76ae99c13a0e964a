//! How evenly compaction threads were busy, over time and over levels, for several strategies side by side (figures 7,
//! 8 and 9 of the paper on DF-compaction).

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::report::{Report, round};

/// Fraction of the time in which at most 0, 1, 2, … compaction threads were busy.
pub fn at_most(report: &Report) -> Vec<f64> {
    let mut sum = 0.0;
    let parts = report.busy_share.iter().map(|share| {
        sum += share;
        f64::min(sum, 1.0)
    });
    parts.collect()
}

/// Levels from which any of these runs had compactions.
pub fn levels(reports: &[&Report]) -> Vec<usize> {
    let most = reports.iter().map(|r| r.busy.len()).max().unwrap_or(0);
    (0..most).filter(|&l| reports.iter().any(|r| r.busy.get(l).is_some_and(|b| *b > 0.0))).collect()
}

/// Columns of a row's title, in tables with a column for each strategy.
pub(crate) const TITLE: usize = 31;
/// Columns of each strategy, after a space.
pub(crate) const CELL: usize = 15;

/// As readable text, with a column for each strategy.
pub fn to_text(reports: &[&Report]) -> String {
    let mut out = String::new();
    let Some(threads) = reports.iter().map(|r| r.settings.threads).max() else { return out };
    let mut row = |name: &str, cell: &dyn Fn(&Report) -> String| {
        let _ = write!(out, "{name:<TITLE$}");
        for r in reports {
            let _ = write!(out, " {:>CELL$}", cell(r));
        }
        out.push('\n');
    };
    row("busy threads: mean, deviation", &|r| r.settings.strategy.clone());
    for level in levels(reports) {
        row(&format!("from L{level}"), &|r| format!("{:.2} {:>6.2}", r.busy[level], r.busy_spread[level]));
    }
    row("all levels", &|r| format!("{:.2} {:>6.2}", r.parallelism(), r.parallelism_spread()));
    row("levels at once", &|r| format!("{:.2}", r.levels_at_once));
    row("more than 3/4 busy, % of time", &|r| format!("{:.1}", r.busy_over(r.most_threads()) * 100.0));
    let parts: Vec<Vec<f64>> = reports.iter().map(|r| at_most(r)).collect();
    // Nothing changes beyond the largest number of threads.
    let all = |n: usize| parts.iter().all(|p| p.get(n).is_none_or(|part| *part >= 0.999_95));
    let end = (0..=threads).find(|n| all(*n)).unwrap_or(threads);
    for n in 0..=end {
        let name = format!("at most {n} busy, % of time");
        row(&name, &|r| format!("{:.1}", at_most(r).get(n).map_or(100.0, |part| part * 100.0)));
    }
    out
}

/// For programs, of one strategy.
pub fn to_json(report: &Report) -> Value {
    let rounded = |all: &[f64]| all.iter().map(|v| round(*v)).collect::<Vec<_>>();
    json!({
        "busy_threads_deviation": round(report.parallelism_spread()),
        "busy_threads_deviation_by_level": rounded(&report.busy_spread),
        "busy_threads_at_most_share_of_time": rounded(&at_most(report)),
        "levels_at_once": round(report.levels_at_once),
        "over_three_quarters_busy": round(report.busy_over(report.most_threads())),
        "compaction_write_bytes_by_level": report.written.iter().map(|w| json!({
            "new_runs": round(w.new_runs), "base": round(w.base), "own": round(w.own),
        })).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Settings, Split, run};

    fn of(strategy: &str) -> Report {
        let mut s = Settings { strategy: strategy.to_owned(), data_bytes: 2 << 30, ..Settings::default() };
        (s.threads, s.split, s.overlap, s.merge_ns_per_byte) = (8, Split::Never, false, 1.6);
        (s.options.write_buffer_size, s.options.target_file_size_base) = (8 << 20, 8 << 20);
        s.options.max_bytes_for_level_base = 32 << 20;
        run(&s).unwrap()
    }

    /// Means, deviations and fractions of time are consistent: each can be computed from the others.
    #[test]
    fn figures_of_busy_threads_agree() {
        let (leveled, df) = (of("leveled"), of("df-leveled"));
        for r in [&leveled, &df] {
            let parts = at_most(r);
            assert_eq!(parts.len(), 9);
            assert!(parts.windows(2).all(|p| p[0] <= p[1]) && (parts[8] - 1.0).abs() < 1e-9, "{parts:?}");
            assert!((r.busy_over(3) - (1.0 - parts[3])).abs() < 1e-9);
            // The mean is the sum, over all numbers of threads, of the fraction of time in which more threads were
            // busy.
            let mean: f64 = parts.iter().map(|p| 1.0 - p).sum();
            assert!((mean - r.parallelism()).abs() < 1e-6, "{mean} {}", r.parallelism());
            // If levels were independent, their variances would add up. At most, the deviations add up.
            assert!(r.parallelism_spread() <= r.busy_spread.iter().sum::<f64>() + 1e-9);
            assert!(r.levels_at_once <= r.jobs_at_once + 1e-9 && r.levels_at_once > 0.0);
            let written: f64 = r.written.iter().map(|w| w.new_runs + w.base + w.own).sum();
            assert!((written / r.compacted_bytes - 1.0).abs() < 1e-9, "{written} {}", r.compacted_bytes);
        }
        let extra: f64 = df.written.iter().map(|w| w.new_runs).sum();
        assert!(extra > leveled.written.iter().map(|w| w.new_runs).sum::<f64>(), "extra runs are new ones");
        let text = to_text(&[&leveled, &df]);
        for words in ["from L0", "all levels", "levels at once", "more than 3/4 busy", "at most 0 busy"] {
            assert!(text.contains(words), "{text}");
        }
        let last = text.lines().last().unwrap_or_default();
        assert!(last.trim_end().ends_with("100.0           100.0"), "{text}");
    }
}
