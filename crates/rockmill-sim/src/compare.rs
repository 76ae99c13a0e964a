//! Compares a strategy with and without DF-compaction, with the same rule for splitting jobs.
//!
//! In the store, DF-compaction splits jobs over idle threads, and other strategies do not. A direct comparison would
//! use different rules: part of DF-compaction's gain would come from splitting. So both are run twice: without
//! splitting, which shows the gain of DF-compaction alone, and with the jobs of both split by its rule.
//!
//! [`AllStrategies`] does the same with the six strategies of the paper on DF-compaction side by side.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::balance::{CELL, TITLE};
use crate::engine::run_telling;
use crate::page::About;
use crate::report::{Report, size};
use crate::settings::{Settings, SettingsError, Split};

/// Four runs.
#[derive(Debug, Clone)]
pub struct Comparison {
    /// The rule, the strategy without DF-compaction, and the one with it.
    pub runs: Vec<(Split, Report, Report)>,
}

impl Comparison {
    /// The strategies of a pair.
    fn pair(strategy: &str) -> Option<(&'static str, &'static str)> {
        match strategy {
            "leveled" | "df-leveled" => Some(("leveled", "df-leveled")),
            "tiered" | "df-tiered" => Some(("tiered", "df-tiered")),
            _ => None,
        }
    }

    /// Runs the strategy of `settings` without and with DF-compaction, whichever of the two it names.
    ///
    /// # Errors
    /// The settings are invalid, or the strategy has no DF-compaction variant.
    pub fn run(settings: &Settings, mut tell: impl FnMut(f64, f64)) -> Result<Self, SettingsError> {
        let Some((plain, df)) = Self::pair(&settings.strategy) else {
            let what = "there is no DF-compaction of it to compare with; there is of leveled and of tiered";
            return Err(SettingsError(format!("strategy {}: {what}", settings.strategy)));
        };
        let mut of = |strategy: &str, split| {
            let settings = Settings { strategy: strategy.to_owned(), split, ..settings.clone() };
            run_telling(&settings, &mut tell)
        };
        let mut runs = Vec::new();
        for split in [Split::Never, Split::Idle] {
            runs.push((split, of(plain, split)?, of(df, split)?));
        }
        Ok(Self { runs })
    }

    /// As JSON: for each rule, both reports and the ratios of their figures.
    pub fn to_json(&self) -> Value {
        let mut all = serde_json::Map::new();
        for (split, plain, df) in &self.runs {
            let ratios =
                figures(plain).map(|f| (f.name.to_owned(), json!(crate::report::round((f.of)(df) / (f.of)(plain)))));
            let of = json!({
                plain.settings.strategy.as_str(): plain.to_json(), df.settings.strategy.as_str(): df.to_json(),
                "df_by_plain": ratios.collect::<serde_json::Map<_, _>>(),
            });
            all.insert(format!("split_{}", split.name()), of);
        }
        Value::Object(all)
    }

    /// As one page with charts.
    pub fn to_html(&self, about: &About) -> String {
        let groups: Vec<_> = self.runs.iter().map(|(split, plain, df)| (heading(*split), vec![plain, df])).collect();
        crate::page::compared(&self.verdict(), &self.to_text(), &groups, about)
    }

    /// What came out, in a sentence.
    pub fn verdict(&self) -> String {
        let Some((_, plain, df)) = self.runs.first() else { return String::new() };
        let (a, b) = (&plain.settings.strategy, &df.settings.strategy);
        let part = |(split, plain, df): &(Split, Report, Report)| {
            format!("{:.2} times as much {}", df.throughput() / plain.throughput().max(1e-9), where_rule(*split))
        };
        let parts: Vec<String> = self.runs.iter().map(part).collect();
        format!("Compared with {a}, {b} takes in {}.", parts.join(", and "))
    }

    /// For people.
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        if let Some((_, first, _)) = self.runs.first() {
            for note in &first.notes {
                let _ = writeln!(out, "note: {note}");
            }
            let _ = writeln!(out, "{} written, {} threads", size(first.user_bytes), first.settings.threads);
        }
        for (split, plain, df) in &self.runs {
            let rule = rule(*split, "both");
            let (a, b) = (&plain.settings.strategy, &df.settings.strategy);
            let _ = writeln!(out, "\n{rule:<TITLE$} {a:>CELL$} {b:>CELL$} {:>8}", "ratio");
            for f in figures(plain) {
                let (x, y) = ((f.of)(plain), (f.of)(df));
                let _ = writeln!(out, "{:<TITLE$} {x:>CELL$.2} {y:>CELL$.2} {:>8.2}", f.title, y / x);
            }
            let _ = writeln!(out, "{:<TITLE$} {:>CELL$} {:>CELL$}", "limited most by", most(plain), most(df));
            out += &crate::balance::to_text(&[plain, df]);
            for r in [plain, df].into_iter().filter(|r| r.wedged) {
                let _ = writeln!(out, "{}: writers stood still, and nothing could release them", r.settings.strategy);
            }
        }
        out
    }
}

/// The rule as the end of a sentence.
fn where_rule(split: Split) -> &'static str {
    if split == Split::Never { "where no job is split" } else { "where jobs are split over idle threads" }
}

/// The rule as a heading.
fn heading(split: Split) -> String {
    let words = if split == Split::Never { "No job is split" } else { "Jobs are split over idle threads" };
    words.to_owned()
}

/// A readable description of the two rules.
fn rule(split: Split, sides: &str) -> String {
    if split == Split::Never { "no job is split".to_owned() } else { format!("jobs of {sides} over idle threads") }
}

/// The six strategies of the paper on DF-compaction, with both rules.
#[derive(Debug, Clone)]
pub struct AllStrategies {
    /// The rule, and a report for each of [`AllStrategies::NAMES`].
    pub runs: Vec<(Split, Vec<Report>)>,
}

impl AllStrategies {
    /// In the order of the columns: for each kind of tree, the classic strategy, RocksDB's, and DF-compaction.
    pub const NAMES: [&'static str; 6] =
        ["classic-leveled", "leveled", "df-leveled", "classic-tiered", "tiered", "df-tiered"];

    /// Runs them all; the strategy of `settings` does not matter.
    ///
    /// # Errors
    /// The settings are invalid.
    pub fn run(settings: &Settings, mut tell: impl FnMut(f64, f64)) -> Result<Self, SettingsError> {
        let mut runs = Vec::new();
        for split in [Split::Never, Split::Idle] {
            let mut reports = Vec::new();
            for strategy in Self::NAMES {
                let settings = Settings { strategy: strategy.to_owned(), split, ..settings.clone() };
                reports.push(run_telling(&settings, &mut tell)?);
            }
            runs.push((split, reports));
        }
        Ok(Self { runs })
    }

    /// As JSON: for each rule, the report of each strategy.
    pub fn to_json(&self) -> Value {
        let of = |reports: &[Report]| -> serde_json::Map<String, Value> {
            reports.iter().map(|r| (r.settings.strategy.clone(), r.to_json())).collect()
        };
        let all = self.runs.iter().map(|(split, reports)| (format!("split_{}", split.name()), of(reports).into()));
        Value::Object(all.collect())
    }

    /// As one page with charts.
    pub fn to_html(&self, about: &About) -> String {
        let groups: Vec<_> =
            self.runs.iter().map(|(split, reports)| (heading(*split), reports.iter().collect())).collect();
        crate::page::compared(&self.verdict(), &self.to_text(), &groups, about)
    }

    /// What came out, in a sentence.
    pub fn verdict(&self) -> String {
        let part = |(split, reports): &(Split, Vec<Report>)| {
            let by = |a: &&Report, b: &&Report| a.throughput().total_cmp(&b.throughput());
            let (most, least) = (reports.iter().max_by(by)?, reports.iter().min_by(by)?);
            let of = |r: &Report| format!("{} ({}/s)", r.settings.strategy, size(r.throughput()));
            Some(format!("{} takes in the most and {} the least {}", of(most), of(least), where_rule(*split)))
        };
        let parts: Vec<String> = self.runs.iter().filter_map(part).collect();
        format!("{}.", parts.join("; "))
    }

    /// For people.
    pub fn to_text(&self) -> String {
        self.to_text_within(usize::MAX)
    }

    /// The same with as many strategies side by side as fit into `columns`, but at least one.
    pub fn to_text_within(&self, columns: usize) -> String {
        let mut out = String::new();
        if let Some(first) = self.runs.first().and_then(|(_, reports)| reports.first()) {
            for note in &first.notes {
                let _ = writeln!(out, "note: {note}");
            }
            let _ = writeln!(out, "{} written, {} threads", size(first.user_bytes), first.settings.threads);
        }
        let in_row = (columns.saturating_sub(TITLE) / (CELL + 1)).max(1);
        for (split, all) in &self.runs {
            for reports in all.chunks(in_row) {
                out += &Self::rows(*split, reports);
            }
            for r in all.iter().filter(|r| r.wedged) {
                let _ = writeln!(out, "{}: writers stood still, and nothing could release them", r.settings.strategy);
            }
        }
        out
    }

    /// A table with a column for each report.
    fn rows(split: Split, reports: &[Report]) -> String {
        let mut out = String::new();
        let mut row = |name: &str, cell: &dyn Fn(&Report) -> String| {
            let _ = write!(out, "{name:<TITLE$}");
            for r in reports {
                let _ = write!(out, " {:>CELL$}", cell(r));
            }
            out.push('\n');
        };
        row(&rule(split, "all"), &|r| r.settings.strategy.clone());
        for f in reports.first().into_iter().flat_map(figures) {
            row(f.title, &|r| format!("{:.2}", (f.of)(r)));
        }
        row("limited most by", &most);
        format!("\n{out}{}", crate::balance::to_text(&reports.iter().collect::<Vec<_>>()))
    }
}

/// A figure that is compared.
struct Figure {
    name: &'static str,
    title: &'static str,
    of: fn(&Report) -> f64,
}

const MIB: f64 = (1u64 << 20) as f64;

static FIGURES: [Figure; 11] = [
    Figure { name: "throughput", title: "written by users, MiB/s", of: |r| r.throughput() / MIB },
    Figure { name: "busy_threads", title: "busy threads", of: Report::parallelism },
    Figure { name: "jobs_at_once", title: "compactions at once", of: |r| r.jobs_at_once },
    Figure { name: "write_amplification", title: "write amplification", of: Report::write_amplification },
    Figure { name: SETTLED, title: "the same until nothing is due", of: settled },
    Figure { name: "space", title: "space amplification", of: |r| r.space },
    Figure { name: "runs", title: "sorted runs", of: |r| r.runs },
    Figure { name: "lookup_tables", title: "tables that a lookup asks", of: |r| r.lookup_tables },
    Figure { name: "lookup", title: "a lookup, microseconds", of: |r| r.lookup_seconds * 1e6 },
    Figure { name: "seek", title: "a seek, microseconds", of: |r| r.seek_seconds * 1e6 },
    Figure { name: "stalled", title: "stopped or delayed, % of time", of: stalled },
];

/// Those that a run has.
fn figures(r: &Report) -> impl Iterator<Item = &'static Figure> + use<> {
    let settled = r.settled.is_some();
    FIGURES.iter().filter(move |f| f.name != SETTLED || settled)
}

/// The figure that only runs that continue after the last write have.
const SETTLED: &str = "settled";

/// The main limit of a run, and its percentage of the time.
fn most(r: &Report) -> String {
    r.limits.largest().first().map_or_else(String::new, |(l, part)| format!("{} {:.0} %", l.name(), part * 100.0))
}

/// 0 if the run ended with the last write.
fn settled(r: &Report) -> f64 {
    r.settled.as_ref().map_or(0.0, |s| s.write_amplification)
}

fn stalled(r: &Report) -> f64 {
    (r.stopped_seconds + r.delayed_seconds) / r.seconds.max(1e-9) * 100.0
}
