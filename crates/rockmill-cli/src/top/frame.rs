//! A frame of `rockmill top`: lines of text with a style for each part. Rates are computed from two observations of the
//! database.

use std::borrow::Cow;
use std::fmt::Write as _;

use rockmill::DbSummary;
use rockmill_format::printable;
use serde_json::Value;

use super::metrics::{Metrics, label, percentile};
use super::source::{Files, Process, Seen};
use crate::output;

/// Columns of a line's title.
const TITLE: usize = 11;
/// Narrower screens cut lines off.
const WIDTH_MIN: usize = 20;
/// From this width on, the table of levels shows bars of their sizes.
const WIDE: usize = 110;

/// The style of a part of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    Plain,
    /// Headings.
    Bold,
    /// What is less important.
    Dim,
    /// What needs attention.
    Alarm,
}

/// A line in parts.
pub type Line = Vec<(Style, String)>;

/// A frame as text: with the escape sequences of styles, or without any.
pub fn text(lines: &[Line], width: usize, styled: bool) -> Vec<String> {
    lines.iter().map(|line| line_text(line, width, styled)).collect()
}

fn line_text(line: &Line, width: usize, styled: bool) -> String {
    // Names in it are untrusted: escapes them, so that they cannot control the terminal.
    let line: Vec<(Style, Cow<'_, str>)> = line.iter().map(|(s, part)| (*s, printable::line(part))).collect();
    let mut left = width.max(WIDTH_MIN);
    let mut out = String::new();
    let all: usize = line.iter().map(|(_, part)| part.chars().count()).sum();
    let cut = all > left;
    if cut {
        left -= 1;
    }
    for (style, part) in &line {
        let shown: String = part.chars().take(left).collect();
        left -= shown.chars().count();
        let code = match style {
            Style::Plain => "",
            Style::Bold => "\x1b[1m",
            Style::Dim => "\x1b[2m",
            Style::Alarm => "\x1b[1;31m",
        };
        if styled && !code.is_empty() && !shown.is_empty() {
            let _ = write!(out, "{code}{shown}\x1b[0m");
        } else {
            out.push_str(&shown);
        }
    }
    if cut {
        out.push('…');
    }
    out
}

/// Changes per second between two observations.
struct Rates<'a> {
    before: Option<&'a Metrics>,
    now: &'a Metrics,
    seconds: f64,
}

impl Rates<'_> {
    fn added(&self, name: &str) -> f64 {
        let before = self.before.map_or(0.0, |m| m.sum(name));
        (self.now.sum(name) - before).max(0.0)
    }

    fn each_second(&self, name: &str) -> f64 {
        self.added(name) / self.seconds
    }

    fn of(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let before = self.before.and_then(|m| m.of(name, labels)).unwrap_or(0.0);
        (self.now.of(name, labels).unwrap_or(0.0) - before).max(0.0) / self.seconds
    }

    fn has(&self, name: &str) -> bool {
        self.now.get(name).is_some()
    }
}

/// A rate per second: `950`, `12.3k`, `4.56M`.
fn rate(n: f64) -> String {
    match n {
        n if n < 10.0 && n > 0.0 => format!("{n:.1}"),
        n if n < 999.5 => format!("{n:.0}"),
        n if n < 999_500.0 => format!("{:.1}k", n / 1e3),
        n => format!("{:.2}M", n / 1e6),
    }
}

fn bytes(n: f64) -> String {
    output::size(n.max(0.0) as u64)
}

/// Microseconds: `12 us`, `1.2 ms`, `3.4 s`.
fn micros(n: f64) -> String {
    match n {
        n if n < 1e3 => format!("{n:.0} us"),
        n if n < 1e6 => format!("{:.1} ms", n / 1e3),
        n => format!("{:.1} s", n / 1e6),
    }
}

fn duration(seconds: f64) -> String {
    let s = seconds.max(0.0) as u64;
    match s {
        0..60 => format!("{s} s"),
        60..3600 => format!("{} min {} s", s / 60, s % 60),
        3600..86_400 => format!("{} h {} min", s / 3600, s / 60 % 60),
        _ => format!("{} d {} h", s / 86_400, s / 3600 % 24),
    }
}

fn plain(text: impl Into<String>) -> Line {
    vec![(Style::Plain, text.into())]
}

fn titled(title: &str, text: impl Into<String>) -> Line {
    vec![(Style::Bold, format!("{title:<TITLE$}")), (Style::Plain, text.into())]
}

/// A bar of `width` characters, of which the fraction `share` is filled.
fn bar(share: f64, width: usize) -> String {
    let full = ((share.clamp(0.0, 1.0) * width as f64).round() as usize).min(width);
    "█".repeat(full) + &"░".repeat(width - full)
}

/// The whole frame.
pub fn frame(db: &str, before: Option<&Seen>, now: &Seen, width: usize) -> Vec<Line> {
    let mut lines = Vec::new();
    let earlier = before.filter(|b| b.at < now.at);
    let seconds = earlier.map(|b| now.at - b.at);
    let uptime = now.live.as_ref().and_then(|m| m.get("rockmill_uptime_seconds"));
    let who = match (&now.process, now.live.as_ref(), &now.files) {
        (Some(p), ..) => format!("open in process {}", p.pid),
        (None, Some(_), _) => "open in another process".to_owned(),
        (None, None, _) => "no visible process has it open".to_owned(),
    };
    let up = uptime.map_or_else(String::new, |s| format!(", for {}", duration(s)));
    lines.push(vec![(Style::Bold, format!("rockmill top  {db}")), (Style::Dim, format!("   {who}{up}"))]);
    if let Some(p) = &now.process {
        lines.push(process_line(earlier.and_then(|b| b.process.as_ref()), p, seconds));
    }
    lines.push(Line::new());
    if let Some(m) = &now.live {
        let before = earlier.and_then(|b| b.live.as_ref());
        let seconds = before.and(seconds).or(uptime).unwrap_or(1.0).max(0.001);
        live(&Rates { before, now: m, seconds }, width, &mut lines);
    } else if let Some(files) = &now.files {
        from_files(files, &now.why, width, &mut lines);
    }
    lines.into_iter().flat_map(|line| folded(line, width)).collect()
}

/// Splits a titled line that is wider than the screen into several; they continue below its text.
fn folded(line: Line, width: usize) -> Vec<Line> {
    let all: usize = line.iter().map(|(_, part)| part.chars().count()).sum();
    let (Some(title), Some(room_max)) = (line.first(), width.checked_sub(TITLE)) else { return vec![line] };
    if all <= width || title.0 != Style::Bold || title.1.chars().count() != TITLE || room_max < TITLE {
        return vec![line];
    }
    let mut out = Vec::new();
    let (mut now, mut room) = (vec![title.clone()], room_max);
    for (style, text) in line.iter().skip(1) {
        for piece in pieces(text) {
            if piece.trim_end().chars().count() > room && now.len() > 1 {
                out.push(ended(std::mem::replace(&mut now, plain(" ".repeat(TITLE)))));
                room = room_max;
            }
            let piece = if now.len() == 1 { piece.trim_start() } else { piece };
            room = room.saturating_sub(piece.chars().count());
            if !piece.is_empty() {
                now.push((*style, piece.to_owned()));
            }
        }
    }
    out.push(ended(now));
    out
}

/// A line without trailing blanks.
fn ended(mut line: Line) -> Line {
    if let Some((_, last)) = line.last_mut() {
        last.truncate(last.trim_end().len());
    }
    line
}

/// Splits a text where a line may end: after a comma, a semicolon, a colon or a gap.
fn pieces(text: &str) -> Vec<&str> {
    let (mut out, mut begin) = (Vec::new(), 0);
    for (at, _) in text.match_indices(' ') {
        let (before, after) = (&text[..at], &text[at + 1..]);
        if (before.ends_with([',', ';', ':']) || before.ends_with("  ")) && !after.starts_with(' ') {
            out.push(&text[begin..=at]);
            begin = at + 1;
        }
    }
    out.push(&text[begin..]);
    out
}

fn process_line(before: Option<&Process>, now: &Process, seconds: Option<f64>) -> Line {
    let mut text = String::new();
    if let (Some(before), Some(seconds)) = (before.filter(|b| b.pid == now.pid), seconds) {
        let each =
            |now: Option<u64>, before: Option<u64>| Some(bytes(now?.saturating_sub(before?) as f64 / seconds) + "/s");
        let _ = write!(text, "cpu {:.0} %   ", (now.cpu_seconds - before.cpu_seconds) / seconds * 100.0);
        let _ = write!(text, "memory {}", bytes(now.memory_bytes as f64));
        if let (Some(read), Some(written)) =
            (each(now.read_bytes, before.read_bytes), each(now.written_bytes, before.written_bytes))
        {
            let _ = write!(text, "   devices: read {read}, write {written}");
        }
    } else {
        let _ = write!(text, "memory {}", bytes(now.memory_bytes as f64));
    }
    titled("process", text)
}

fn live(r: &Rates<'_>, width: usize, lines: &mut Vec<Line>) {
    let groups = r.each_second("rockmill_writes_by_self_total");
    let writes = groups + r.each_second("rockmill_writes_by_other_total");
    lines.push(titled(
        "writes",
        format!(
            "{}/s, {} keys/s, {}/s   log {}/s, {} syncs/s",
            rate(writes),
            rate(r.each_second("rockmill_keys_written_total")),
            bytes(r.each_second("rockmill_bytes_written_total")),
            bytes(r.each_second("rockmill_wal_bytes_total")),
            rate(r.each_second("rockmill_wal_syncs_total")),
        ),
    ));
    let statistics = r.has("rocksdb_number_keys_read_total");
    if statistics {
        lines.push(titled(
            "reads",
            format!(
                "{} keys/s, {} seeks/s, {} steps/s, {}/s",
                rate(r.each_second("rocksdb_number_keys_read_total")),
                rate(r.each_second("rocksdb_number_db_seek_total")),
                rate(r.each_second("rocksdb_number_db_next_total") + r.each_second("rocksdb_number_db_prev_total")),
                bytes(r.each_second("rocksdb_bytes_read_total") + r.each_second("rocksdb_db_iter_bytes_read_total")),
            ),
        ));
    }
    lines.push(stall_line(r));
    lines.push(titled(
        "jobs",
        format!(
            "flush {}/s   compact {}/s in, {}/s out   pending {}",
            bytes(r.each_second("rockmill_flush_bytes_total")),
            bytes(r.each_second("rockmill_compact_read_bytes_total")),
            bytes(r.each_second("rockmill_compact_write_bytes_total")),
            bytes(r.now.sum("rocksdb_estimate_pending_compaction_bytes")),
        ),
    ));
    lines.push(cache_line(r));
    let parts = r.now.all("rockmill_memory_bytes");
    let total: f64 = parts.iter().map(|(_, n)| n).sum();
    let part = |name: &str| bytes(r.now.of("rockmill_memory_bytes", &[("part", name)]).unwrap_or(0.0));
    lines.push(titled(
        "memory",
        format!(
            "{}: memtables {}, cache {}, indexes and filters {}",
            bytes(total),
            part("memtables"),
            part("block cache"),
            part("indexes and filters of open tables"),
        ),
    ));
    if statistics {
        latencies(r, lines);
    } else {
        lines.push(vec![
            (Style::Bold, format!("{:<TITLE$}", "latencies")),
            (Style::Dim, "reads and latencies are counted with Options::enable_statistics".to_owned()),
        ]);
    }
    lines.push(Line::new());
    levels(r, width, lines);
    lines.push(Line::new());
    jobs(&r.now.jobs, width, lines);
}

fn stall_line(r: &Rates<'_>) -> Line {
    let waited = r.each_second("rockmill_stall_micros_total") / 1e4;
    let reasons = r.now.all("rockmill_write_stall");
    let reason = reasons.iter().find(|(_, on)| *on == 1.0).and_then(|(l, _)| label(l, "reason")).unwrap_or("none");
    let stopped = r.now.get("rocksdb_is_write_stopped") == Some(1.0);
    let allowed = r.now.get("rocksdb_actual_delayed_write_rate").unwrap_or(0.0);
    let longest = micros(r.now.get("rockmill_longest_stall_micros").unwrap_or(0.0));
    // Several writers wait at once.
    let time = format!("   writers waited {waited:.0} % of the time; longest wait {longest}");
    let (style, text) = match (stopped, reason) {
        (true, _) => (Style::Alarm, format!("STOPPED: {reason}")),
        (false, "none") => (Style::Plain, "none".to_owned()),
        (false, _) if allowed > 0.0 => (Style::Alarm, format!("slowed to {}/s: {reason}", bytes(allowed))),
        (false, _) => (Style::Alarm, format!("slowed: {reason}")),
    };
    vec![(Style::Bold, format!("{:<TITLE$}", "stalls")), (style, text), (Style::Plain, time)]
}

fn cache_line(r: &Rates<'_>) -> Line {
    // Column families that share a cache have the same numbers, so one of them is enough.
    let of_first = |name: &str, m: &Metrics| m.all(name).first().map_or(0.0, |(_, n)| *n);
    let added = |name: &str| of_first(name, r.now) - r.before.map_or(0.0, |m| of_first(name, m));
    let (hits, misses) = (added("rockmill_block_cache_hits_total"), added("rockmill_block_cache_misses_total"));
    let asked = hits + misses;
    let share = match asked > 0.0 {
        true => format!("{:.1} % hits of {} blocks/s", hits / asked * 100.0, rate(asked / r.seconds)),
        false => "no lookups".to_owned(),
    };
    titled(
        "cache",
        format!(
            "{share}   {} of {}",
            bytes(of_first("rocksdb_block_cache_usage", r.now)),
            bytes(of_first("rocksdb_block_cache_capacity", r.now)),
        ),
    )
}

fn latencies(r: &Rates<'_>, lines: &mut Vec<Line>) {
    let mut shown = Vec::new();
    for (what, name) in [
        ("get", "rocksdb_db_get_micros"),
        ("multi-get", "rocksdb_db_multiget_micros"),
        ("seek", "rocksdb_db_seek_micros"),
        ("write", "rocksdb_db_write_micros"),
    ] {
        let before = r.before.map(|m| m.buckets(name)).unwrap_or_default();
        let now = r.now.buckets(name);
        let at = |share: f64| percentile(&before, &now, share);
        if let (Some(half), Some(most), Some(nearly)) = (at(0.5), at(0.99), at(0.999)) {
            shown.push(format!("{what:<9} {:>8} {:>8} {:>8}", micros(half), micros(most), micros(nearly)));
        }
    }
    lines.push(vec![
        (Style::Bold, format!("{:<TITLE$}", "latencies")),
        (
            Style::Dim,
            if shown.is_empty() { "no calls".to_owned() } else { format!("{:>18} {:>8} {:>8}", "p50", "p99", "p99.9") },
        ),
    ]);
    lines.extend(shown.into_iter().map(|s| plain(format!("{:<TITLE$}{s}", ""))));
}

/// A row of the table of levels.
struct Row {
    name: String,
    files: f64,
    bytes: f64,
    target: Option<f64>,
    score: Option<f64>,
    busy: f64,
    read: Option<f64>,
    written: Option<f64>,
}

fn table(family: &str, rows: &[Row], rates: bool, width: usize, lines: &mut Vec<Line>) {
    let mut head = format!("{:<6}{:>9}{:>11}", "level", "tables", "size");
    if rates {
        let _ = write!(head, "{:>11}{:>7}{:>6}{:>13}{:>13}", "target", "score", "busy", "read/s", "written/s");
    }
    lines.push(vec![(Style::Bold, head), (Style::Dim, format!("   {family}"))]);
    let largest = rows.iter().map(|row| row.bytes).fold(1.0, f64::max);
    for row in rows {
        let mut line = vec![(
            Style::Plain,
            format!("{:<6}{:>9}{:>11}", row.name, output::count(row.files as u64), bytes(row.bytes)),
        )];
        if rates {
            let target = row.target.map_or_else(|| "-".to_owned(), bytes);
            let score = row.score.unwrap_or(0.0);
            line.push((Style::Plain, format!("{target:>11}")));
            line.push((if score >= 1.0 { Style::Bold } else { Style::Plain }, format!("{score:>7.2}")));
            let speed = |n: Option<f64>| match n {
                Some(n) if n > 0.0 => format!("{}/s", bytes(n)),
                _ => "-".to_owned(),
            };
            let busy = if row.busy > 0.0 { output::count(row.busy as u64) } else { "-".to_owned() };
            line.push((Style::Plain, format!("{busy:>6}{:>13}{:>13}", speed(row.read), speed(row.written))));
        }
        let taken: usize = line.iter().map(|(_, part)| part.chars().count()).sum();
        if width >= WIDE && taken + 24 <= width {
            let room = (width - taken - 4).min(80);
            line.push((Style::Dim, format!("   {}", bar(row.bytes / largest, room))));
        }
        lines.push(line);
    }
}

fn levels(r: &Rates<'_>, width: usize, lines: &mut Vec<Line>) {
    let mut families: Vec<&str> = Vec::new();
    for (labels, _) in r.now.all("rocksdb_num_files_at_level") {
        let cf = label(labels, "cf").unwrap_or_default();
        if !families.contains(&cf) {
            families.push(cf);
        }
    }
    for (i, cf) in families.iter().enumerate() {
        let level_count = r.now.all("rocksdb_num_files_at_level").iter().filter(|(l, _)| label(l, "cf") == Some(cf));
        let mut rows = Vec::new();
        for level in 0..level_count.count() {
            let level = level.to_string();
            let labels = [("cf", *cf), ("level", level.as_str())];
            let of = |name: &str| r.now.of(name, &labels);
            rows.push(Row {
                name: format!("L{level}"),
                files: of("rocksdb_num_files_at_level").unwrap_or(0.0),
                bytes: of("rockmill_level_bytes").unwrap_or(0.0),
                target: of("rockmill_level_target_bytes"),
                score: of("rockmill_level_score"),
                busy: of("rockmill_level_compacting_files").unwrap_or(0.0),
                read: Some(r.of("rockmill_level_read_bytes_total", &labels)),
                written: Some(r.of("rockmill_level_written_bytes_total", &labels)),
            });
        }
        let used = rows.iter().rposition(|row| row.files > 0.0 || row.target.is_some()).map_or(1, |last| last + 1);
        rows.truncate(used);
        // Levels between L0 and the base level are intentionally empty.
        rows.retain(|row| row.name == "L0" || row.files > 0.0 || row.target.is_some());
        let keys = r.now.of("rocksdb_estimate_num_keys", &[("cf", cf)]).unwrap_or(0.0);
        let memory = r.now.of("rocksdb_cur_size_all_mem_tables", &[("cf", cf)]).unwrap_or(0.0);
        let shown = output::escape(cf.as_bytes(), 40);
        if i > 0 {
            lines.push(Line::new());
        }
        let about = format!("about {}", output::plural(keys as u64, "key"));
        lines.push(vec![
            (Style::Bold, format!("column family {shown}")),
            (Style::Plain, format!("   {about}, memtables {}", bytes(memory))),
        ]);
        table("", &rows, true, width, lines);
    }
}

fn jobs(jobs: &[Value], width: usize, lines: &mut Vec<Line>) {
    if jobs.is_empty() {
        lines.push(vec![(Style::Bold, "no jobs run".to_owned())]);
        return;
    }
    lines.push(vec![(Style::Bold, format!("{} running", output::plural(jobs.len() as u64, "job")))]);
    for j in jobs {
        let number = |name: &str| j.get(name).and_then(Value::as_u64);
        let from = number("start_level").map_or_else(|| "memtables".to_owned(), |l| format!("L{l}"));
        let to = number("output_level").unwrap_or(0);
        let (done, total) = (number("bytes_done").unwrap_or(0), number("bytes_total").unwrap_or(0));
        let share = done as f64 / total.max(1) as f64;
        let cf = output::escape(j.get("cf_name").and_then(Value::as_str).unwrap_or_default().as_bytes(), 40);
        let room = if width >= WIDE { 40 } else { 12 };
        let parts = number("parts").unwrap_or(0);
        let parts = if parts > 1 { format!(", {parts} parts") } else { String::new() };
        lines.push(plain(format!(
            "{:>6}  {:<15} {} {:>4.0} % of {:>9}  {:>6.1} s  {cf}{parts}",
            number("job").unwrap_or(0),
            format!("{from} to L{to}"),
            bar(share, room),
            share * 100.0,
            output::size(total),
            number("micros").unwrap_or(0) as f64 / 1e6,
        )));
    }
}

fn from_files(files: &Files, why: &str, width: usize, lines: &mut Vec<Line>) {
    for f in &files.families {
        table(&format!("column family {}", output::escape(f.name.as_bytes(), 40)), &rows(f), false, width, lines);
        lines.push(Line::new());
    }
    if let Some(told) = &files.told {
        match told.running.as_deref() {
            Some([]) => lines.push(vec![(Style::Bold, "no jobs run".to_owned())]),
            Some(jobs) => {
                lines.push(vec![(Style::Bold, format!("{} running", output::plural(jobs.len() as u64, "job")))]);
                lines.extend(jobs.iter().map(|job| plain(format!("  {}", job.line()))));
            }
            None => {}
        }
        lines.push(titled("ended", told.ended.line()));
    }
    if let Some((first, rest)) = files.dumped.split_first() {
        lines.push(Line::new());
        lines.push(vec![(Style::Bold, "last statistics in LOG".to_owned()), (Style::Dim, format!(", {first}"))]);
        lines.extend(rest.iter().map(|l| plain(format!("  {l}"))));
    }
    lines.push(Line::new());
    lines.push(vec![(Style::Dim, format!("from MANIFEST and LOG, since {why}"))]);
    let hint = "rates, stalls, latencies: open it with Options::set_status_file(\"STATUS\")";
    lines.push(vec![(Style::Dim, hint.to_owned())]);
    lines.push(vec![(Style::Dim, "(rockmill bench: --options_string=status_file=STATUS --statistics)".to_owned())]);
}

fn rows(f: &DbSummary) -> Vec<Row> {
    let row = |(level, &(files, bytes)): (usize, &(u64, u64))| Row {
        name: format!("L{level}"),
        files: files as f64,
        bytes: bytes as f64,
        target: None,
        score: None,
        busy: 0.0,
        read: None,
        written: None,
    };
    let all: Vec<Row> = f.level_files.iter().enumerate().map(row).collect();
    all.into_iter().filter(|r| r.files > 0.0 || r.name == "L0").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_continue_below_their_text() {
        let line = titled("writes", "12.3k/s, 45.6k keys/s, 7.8 MiB/s   log 9.1 MiB/s, 10 syncs/s");
        assert_eq!(folded(line.clone(), 80), std::slice::from_ref(&line), "it fits");
        let shown = text(&folded(line.clone(), 48), 48, false);
        assert_eq!(shown, ["writes     12.3k/s, 45.6k keys/s, 7.8 MiB/s", "           log 9.1 MiB/s, 10 syncs/s"]);
        // Nothing is lost if each piece fits.
        let words = |lines: &[Line], width| text(lines, width, false).concat().replace(' ', "");
        for width in 25..70 {
            let all = words(std::slice::from_ref(&line), 200);
            assert_eq!(words(&folded(line.clone(), width), width), all, "{width}");
        }
        assert_eq!(folded(line.clone(), 21), [line]);
        let head = vec![(Style::Bold, "level".to_owned()), (Style::Dim, "x".repeat(99))];
        assert_eq!(folded(head.clone(), 80).len(), 1, "only titled lines");
    }

    #[test]
    fn stalls_keep_their_styles() {
        let line = vec![
            (Style::Bold, format!("{:<TITLE$}", "stalls")),
            (Style::Alarm, "STOPPED: too many".to_owned()),
            (Style::Plain, "   writers waited 99 % of the time; longest wait 1.2 s".to_owned()),
        ];
        let lines = folded(line, 50);
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert_eq!(lines[0][1], (Style::Alarm, "STOPPED: ".to_owned()));
        assert_eq!(lines[1][1], (Style::Plain, "writers waited 99 % of the time;".to_owned()));
    }
}
