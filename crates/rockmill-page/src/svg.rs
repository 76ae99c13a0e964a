//! Charts as SVG: axes with units, lines, areas, bars. They are written without a library, because a chart needs few
//! shapes and a page is a single file.

use std::fmt::Write;

use crate::{escape, short};

/// Colours that are distinguishable with any colour vision (after Okabe and Ito), strongest contrast first.
pub const COLOURS: [&str; 6] = ["var(--c0)", "var(--c1)", "var(--c2)", "var(--c3)", "var(--c4)", "var(--c5)"];
/// The colour of a tie.
pub const TIE: &str = "var(--tie)";
/// Dash patterns: lines differ in more than colour.
const DASHES: [&str; 6] = ["", "7 3", "2 3", "9 3 2 3", "5 5", "1 2"];
/// Shades of one hue for levels, so that their order needs no legend.
const STEPS: [&str; 7] = ["var(--l0)", "var(--l1)", "var(--l2)", "var(--l3)", "var(--l4)", "var(--l5)", "var(--l6)"];

const WIDTH: f64 = 480.0;
const HEIGHT: f64 = 286.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 62.0;
const BOTTOM: f64 = 44.0;

/// The colour of the side with this index.
pub fn colour(side: usize) -> &'static str {
    COLOURS[side % COLOURS.len()]
}

/// The colour of the level with this index.
pub fn level_colour(level: usize) -> &'static str {
    STEPS[level.min(STEPS.len() - 1)]
}

/// How an axis is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Even steps.
    Linear,
    /// Powers of ten.
    Log,
    /// Percentiles: each further nine has the same width.
    Nines,
}

/// One axis.
#[derive(Debug, Clone)]
pub struct Axis {
    /// The quantity, with its unit.
    pub label: &'static str,
    /// How it is divided.
    pub scale: Scale,
    /// Its first value.
    pub from: f64,
    /// Its last value.
    pub to: f64,
}

impl Axis {
    /// An axis with room for all values.
    pub fn over(label: &'static str, scale: Scale, values: impl Iterator<Item = f64>) -> Self {
        let (mut from, mut to) = (f64::INFINITY, f64::NEG_INFINITY);
        for v in values.filter(|v| v.is_finite() && (scale != Scale::Log || *v > 0.0)) {
            (from, to) = (from.min(v), to.max(v));
        }
        if from > to {
            (from, to) = (1.0, 10.0);
        }
        match scale {
            Scale::Linear => {
                (from, to) = (0.0, if to > 0.0 { to * 1.05 } else { 1.0 });
            }
            Scale::Log => {
                (from, to) = (10f64.powf(from.log10().floor()), 10f64.powf(to.log10().ceil()));
                if from == to {
                    to *= 10.0;
                }
            }
            Scale::Nines => {}
        }
        Self { label, scale, from, to }
    }

    /// The position of a value on the axis, from 0 to 1.
    fn place(&self, v: f64) -> f64 {
        let of = |v: f64| match self.scale {
            Scale::Linear => v,
            Scale::Log => v.max(f64::MIN_POSITIVE).log10(),
            Scale::Nines => -(1.0 - v.min(0.999_999)).log10(),
        };
        ((of(v) - of(self.from)) / (of(self.to) - of(self.from)).max(1e-12)).clamp(0.0, 1.0)
    }

    /// The values of the tick marks, with their texts.
    fn ticks(&self) -> Vec<(f64, String)> {
        match self.scale {
            Scale::Nines => {
                [(0.5, "50"), (0.9, "90"), (0.99, "99"), (0.999, "99.9"), (0.9999, "99.99"), (0.999_99, "99.999")]
                    .into_iter()
                    .filter(|(v, _)| *v >= self.from && *v <= self.to)
                    .map(|(v, text)| (v, text.to_owned()))
                    .collect()
            }
            Scale::Log => {
                let (a, b) = (self.from.log10().round() as i32, self.to.log10().round() as i32);
                let step = ((b - a) / 6).max(1);
                (a..=b).step_by(step as usize).map(|e| (10f64.powi(e), plain(10f64.powi(e)))).collect()
            }
            Scale::Linear => {
                let step = nice_step(self.to - self.from, 5.0);
                let first = (self.from / step).ceil() as i64;
                let last = (self.to / step + 1e-9).floor() as i64;
                // As many digits as the step needs: with steps of 0.05, two marks must not both be labelled 0.1.
                let digits = (-step.log10()).ceil().clamp(0.0, 9.0) as usize;
                let text = |v: f64| if step < 1.0 && v != 0.0 { format!("{v:.digits$}") } else { plain(v) };
                (first..=last).map(|i| (i as f64 * step, text(i as f64 * step))).collect()
            }
        }
    }
}

/// A number without trailing zeros after the point: 2k and not 2.0k.
fn plain(v: f64) -> String {
    let text = short(v);
    match text.split_once('.') {
        Some((whole, rest)) => {
            let digits = rest.trim_end_matches(char::is_alphabetic);
            let unit = &rest[digits.len()..];
            match digits.trim_end_matches('0') {
                "" => format!("{whole}{unit}"),
                digits => format!("{whole}.{digits}{unit}"),
            }
        }
        None => text,
    }
}

/// A step of 1, 2 or 5 times a power of ten that divides `range` into about `parts`.
fn nice_step(range: f64, parts: f64) -> f64 {
    let raw = (range / parts).max(1e-12);
    let power = 10f64.powf(raw.log10().floor());
    let step = match raw / power {
        x if x <= 1.0 => 1.0,
        x if x <= 2.0 => 2.0,
        x if x <= 5.0 => 5.0,
        _ => 10.0,
    };
    step * power
}

/// A chart under construction.
#[derive(Debug)]
pub struct Chart {
    x: Axis,
    y: Axis,
    title: String,
    legend: Vec<(String, String)>,
    body: String,
    height: f64,
    /// Height of the strips below the plot.
    below: f64,
}

impl Chart {
    /// An empty chart.
    pub fn new(title: &str, x: Axis, y: Axis) -> Self {
        Self { x, y, title: title.to_owned(), legend: vec![], body: String::new(), height: HEIGHT, below: 0.0 }
    }

    fn px(&self, v: f64) -> f64 {
        LEFT + self.x.place(v) * (WIDTH - LEFT - RIGHT)
    }

    fn py(&self, v: f64) -> f64 {
        let bottom = self.height - BOTTOM - self.below;
        bottom - self.y.place(v) * (bottom - TOP)
    }

    /// Draws a line through the points. A faint line is one of several repetitions.
    pub fn line(&mut self, side: usize, points: &[(f64, f64)], faint: bool) {
        let mut path = String::new();
        for (i, (x, y)) in points.iter().enumerate() {
            let _ = write!(path, "{}{:.1} {:.1}", if i == 0 { "M" } else { "L" }, self.px(*x), self.py(*y));
        }
        let (width, opacity) = if faint { (1.0, 0.35) } else { (2.0, 1.0) };
        let dash = if faint { "" } else { DASHES[side % DASHES.len()] };
        let _ = writeln!(
            self.body,
            "<path d=\"{path}\" fill=\"none\" style=\"stroke:{}\" stroke-width=\"{width}\" \
             stroke-opacity=\"{opacity}\" stroke-dasharray=\"{dash}\" stroke-linejoin=\"round\"/>",
            colour(side)
        );
    }

    /// Names a side's line.
    pub fn name_line(&mut self, side: usize, name: &str) {
        let swatch = format!(
            "<path d=\"M0 -4h20\" style=\"stroke:{}\" stroke-width=\"2.5\" stroke-dasharray=\"{}\"/>",
            colour(side),
            DASHES[side % DASHES.len()]
        );
        self.legend.push((name.to_owned(), swatch));
    }

    /// Draws stacked areas: for each layer its name, its colour, and its height at each x.
    pub fn stack(&mut self, xs: &[f64], layers: &[(String, &str, Vec<f64>)]) {
        let mut base = vec![0.0; xs.len()];
        for (name, fill, heights) in layers {
            let top: Vec<f64> = base.iter().zip(heights).map(|(b, h)| b + h).collect();
            let mut path = String::new();
            for (i, x) in xs.iter().enumerate() {
                let _ = write!(path, "{}{:.1} {:.1}", if i == 0 { "M" } else { "L" }, self.px(*x), self.py(top[i]));
            }
            for (i, x) in xs.iter().enumerate().rev() {
                let _ = write!(path, "L{:.1} {:.1}", self.px(*x), self.py(base[i]));
            }
            let _ = writeln!(
                self.body,
                "<path d=\"{path}Z\" style=\"fill:{fill};stroke:var(--bg)\" stroke-width=\"0.6\"/>"
            );
            self.name_area(fill, name);
            base = top;
        }
    }

    /// Reserves room for strips below the plot, before anything is drawn.
    pub fn with_strips(mut self, count: usize) -> Self {
        self.below = count as f64 * 13.0;
        self.height += self.below;
        self
    }

    /// Draws a strip below the plot: marked spans of x, each with a description.
    pub fn strip(&mut self, row: usize, side: usize, name: &str, spans: &[(f64, f64, String)]) {
        let y = self.height - BOTTOM - self.below + 4.0 + row as f64 * 13.0;
        let (left, right) = (LEFT, WIDTH - RIGHT);
        let long = name.chars().count() > 9;
        let squeeze = if long { " textLength=\"52\" lengthAdjust=\"spacingAndGlyphs\"" } else { "" };
        let _ = writeln!(
            self.body,
            "<rect x=\"{left}\" y=\"{y}\" width=\"{}\" height=\"9\" class=\"b\"/>\
             <text x=\"{}\" y=\"{}\" text-anchor=\"end\" class=\"s\"{squeeze}>{}</text>",
            right - left,
            left - 4.0,
            y + 8.0,
            escape(name)
        );
        for (from, to, what) in spans {
            let (a, b) = (self.px(*from), self.px(*to));
            let _ = writeln!(
                self.body,
                "<rect x=\"{a:.1}\" y=\"{y}\" width=\"{:.1}\" height=\"9\" style=\"fill:{}\"><title>{}</title></rect>",
                (b - a).max(1.5),
                colour(side),
                escape(what)
            );
        }
    }

    /// Names an area.
    fn name_area(&mut self, fill: &str, name: &str) {
        let swatch = format!("<rect y=\"-10\" width=\"12\" height=\"11\" style=\"fill:{fill}\"/>");
        self.legend.push((name.to_owned(), swatch));
    }

    /// The chart.
    pub fn finish(self) -> String {
        self.drawn(true)
    }

    /// The chart, with or without strips below.
    fn drawn(self, marks: bool) -> String {
        let (h, bottom) = (self.height, self.height - BOTTOM - self.below);
        let mut out = format!(
            "<svg viewBox=\"0 0 {WIDTH} {h}\" role=\"img\" aria-label=\"{0}\"><title>{0}</title>\n\
             <text x=\"0\" y=\"13\" class=\"t\">{0}</text>\n",
            escape(&self.title)
        );
        for (v, text) in self.y.ticks() {
            let y = self.py(v);
            let _ = writeln!(
                out,
                "<path d=\"M{LEFT} {y:.1}H{}\" class=\"g\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>",
                WIDTH - RIGHT,
                LEFT - 6.0,
                y + 4.0
            );
        }
        for (v, text) in self.x.ticks().into_iter().filter(|_| marks) {
            let x = self.px(v);
            let _ = writeln!(
                out,
                "<path d=\"M{x:.1} {}v4\" class=\"a\"/>\
                 <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{text}</text>",
                h - BOTTOM,
                h - BOTTOM + 17.0
            );
        }
        let _ = writeln!(
            out,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\" class=\"l\">{}</text>",
            WIDTH - RIGHT,
            h - 6.0,
            escape(self.x.label)
        );
        // About eight units for each letter at the text size of phones. A legend that is too long for one row gets two;
        // the axis label then moves up to the title.
        let wide = |(name, swatch): &(String, String)| {
            let room = if swatch.contains("<rect") { 16.0 } else { 24.0 };
            (room, room + name.chars().count() as f64 * 8.0 + 14.0)
        };
        let all: f64 = self.legend.iter().map(|entry| wide(entry).1).sum();
        let rows = if all > WIDTH { 2 } else { 1 };
        let in_row = self.legend.len().div_ceil(rows).max(1);
        let label = if rows == 1 { "x=\"0\" y=\"51\"" } else { "x=\"466\" y=\"13\" text-anchor=\"end\"" };
        let _ = writeln!(out, "<text {label} class=\"l\">{}</text>", escape(self.y.label));
        for (row, entries) in self.legend.chunks(in_row).enumerate() {
            let (mut x, y) = (0.0, 31 + 17 * row);
            // Names that are still too long are shortened, all of them equally.
            let fits = entries.iter().map(|entry| wide(entry).1).sum::<f64>() <= WIDTH;
            for entry in entries {
                let (room, all) = wide(entry);
                let each = WIDTH / entries.len() as f64;
                let (name, all) = if fits { (entry.0.clone(), all) } else { (cut(&entry.0, each - room - 8.0), each) };
                let (name, swatch) = (escape(&name), &entry.1);
                let _ = writeln!(
                    out,
                    "<g transform=\"translate({x:.0} {y})\">{swatch}<text x=\"{room}\">{name}</text></g>"
                );
                x += all;
            }
        }
        let _ = writeln!(out, "{}<path d=\"M{LEFT} {bottom}H{}\" class=\"a\"/></svg>", self.body, WIDTH - RIGHT);
        out
    }
}

/// A name for this much room, shortened if it needs more: anything outside the chart is not visible.
fn cut(name: &str, room: f64) -> String {
    const LETTER: f64 = 6.5;
    let most = (room / LETTER).max(2.0) as usize;
    match name.chars().count() > most {
        true => name.chars().take(most - 1).chain(['…']).collect(),
        false => name.to_owned(),
    }
}

/// A bar of [`bars`].
#[derive(Debug, Clone)]
pub struct Bar {
    /// What the bar shows.
    pub name: String,
    /// The side that determines its colour.
    pub side: usize,
    /// Its length.
    pub value: f64,
    /// The text after it.
    pub text: String,
}

/// Length of a bar: even the smallest value has a visible bar; zero has none.
fn length(value: f64, most: f64, room: f64) -> f64 {
    if value > 0.0 { (value / most.max(1e-12) * room).max(1.5) } else { 0.0 }
}

/// Horizontal bars with their values in words, on one scale that starts at 0.
pub fn bars(title: &str, unit: &str, all: &[Bar]) -> String {
    const ROW: f64 = 24.0;
    const NAME: f64 = 96.0;
    let most = all.iter().map(|b| b.value).fold(0.0, f64::max).max(1e-12);
    let h = 42.0 + all.len() as f64 * ROW;
    let mut out = format!(
        "<svg viewBox=\"0 0 {WIDTH} {h}\" role=\"img\" aria-label=\"{0}\"><title>{0}</title>\
         <text x=\"0\" y=\"13\" class=\"t\">{0}</text><text x=\"0\" y=\"31\" class=\"l\">{1}</text>\n",
        escape(title),
        escape(unit)
    );
    for (i, bar) in all.iter().enumerate() {
        let y = 40.0 + i as f64 * ROW;
        let width = length(bar.value, most, WIDTH - NAME - 138.0);
        let _ = writeln!(
            out,
            "<text x=\"{}\" y=\"{1}\" text-anchor=\"end\">{2}</text><text x=\"{3:.1}\" y=\"{1}\">{4}</text>",
            NAME - 8.0,
            y + 12.5,
            escape(&cut(&bar.name, NAME - 8.0)),
            NAME + width + 6.0,
            escape(&bar.text)
        );
        if width > 0.0 {
            let fill = colour(bar.side);
            let _ = writeln!(
                out,
                "<rect x=\"{NAME}\" y=\"{y}\" width=\"{width:.1}\" height=\"16\" style=\"fill:{fill}\"/>"
            );
        }
    }
    let _ = writeln!(out, "<path d=\"M{NAME} 36V{}\" class=\"a\"/></svg>", h - 2.0);
    out
}

/// Vertical bars: for each group one of each series, on one scale that starts at 0.
pub fn groups(title: &str, unit: &'static str, groups: &[String], series: &[(String, Vec<f64>)]) -> String {
    let x = Axis { label: "", scale: Scale::Linear, from: 0.0, to: 1.0 };
    let y = Axis::over(unit, Scale::Linear, series.iter().flat_map(|(_, values)| values).copied());
    let most = y.to;
    let mut chart = Chart::new(title, x, y);
    let (left, bottom) = (LEFT, HEIGHT - BOTTOM);
    let room = (WIDTH - LEFT - RIGHT) / groups.len().max(1) as f64;
    let width = room * 0.8 / series.len().max(1) as f64;
    for (g, group) in groups.iter().enumerate() {
        let from = left + room * g as f64;
        for (i, (name, values)) in series.iter().enumerate() {
            let value = values.get(g).copied().unwrap_or(0.0);
            let height = length(value, most, bottom - TOP);
            if height > 0.0 {
                let _ = writeln!(
                    chart.body,
                    "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
                     style=\"fill:{}\"><title>{}</title></rect>",
                    from + room * 0.1 + width * i as f64,
                    bottom - height,
                    colour(i),
                    escape(&format!("{name}, {group}: {value:.2}"))
                );
            }
        }
        let _ = writeln!(
            chart.body,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            from + room / 2.0,
            bottom + 17.0,
            escape(group)
        );
    }
    for (i, (name, _)) in series.iter().enumerate() {
        chart.name_area(colour(i), name);
    }
    chart.drawn(false)
}

/// A range of keys in a row of [`runs`].
#[derive(Debug, Clone, PartialEq)]
pub struct Stretch {
    /// Where it starts, from 0 to 1.
    pub from: f64,
    /// Where it ends.
    pub to: f64,
    /// Its colour, as an index for [`level_colour`]; `None` if its age is unknown.
    pub step: Option<usize>,
    /// What it is.
    pub title: String,
}

/// A row of [`runs`].
#[derive(Debug, Clone, PartialEq)]
pub struct RunRow {
    /// The run's name.
    pub name: String,
    /// The text at its end.
    pub text: String,
    /// Its ranges in the order of their keys; they do not overlap.
    pub stretches: Vec<Stretch>,
}

/// Number of colours that [`runs`] has for ages.
pub const RUN_STEPS: usize = STEPS.len();

/// Sorted runs as rows, newest at the top: which part of the keys each table of a run covers. `first` and `last`
/// describe the meaning of the first and the last colour.
pub fn runs(title: &str, note: &str, rows: &[RunRow], (first, last): (&str, &str)) -> String {
    const ROW: f64 = 18.0;
    const NAME: f64 = 92.0;
    const TEXT: f64 = 150.0;
    let width = 2.0 * WIDTH;
    let h = 58.0 + rows.len() as f64 * ROW;
    let px = |at: f64| NAME + at.clamp(0.0, 1.0) * (width - NAME - TEXT);
    let mut out = format!(
        "<svg viewBox=\"0 0 {width} {h}\" role=\"img\" aria-label=\"{0}\"><title>{0}</title>\
         <text x=\"0\" y=\"13\" class=\"t\">{0}</text><text x=\"0\" y=\"31\" class=\"l\">{1}</text>\n",
        escape(title),
        escape(note)
    );
    let legend = width - TEXT - STEPS.len() as f64 * 14.0;
    let _ = writeln!(
        out,
        "<text x=\"{:.1}\" y=\"13\" class=\"l\" text-anchor=\"end\">{}</text>\
         <text x=\"{:.1}\" y=\"13\" class=\"l\">{}</text>",
        legend - 6.0,
        escape(first),
        width - TEXT + 6.0,
        escape(last)
    );
    for (i, step) in STEPS.iter().enumerate() {
        let x = legend + i as f64 * 14.0;
        let _ = writeln!(out, "<rect x=\"{x:.1}\" y=\"3\" width=\"13\" height=\"11\" style=\"fill:{step}\"/>");
    }
    for (i, row) in rows.iter().enumerate() {
        let y = 46.0 + i as f64 * ROW;
        let _ = writeln!(
            out,
            "<text x=\"{}\" y=\"{2}\" text-anchor=\"end\">{1}</text><rect x=\"{NAME}\" y=\"{y}\" width=\"{3:.1}\" \
             height=\"13\" class=\"b\"/><text x=\"{4}\" y=\"{2}\" class=\"l\">{5}</text>",
            NAME - 8.0,
            escape(&cut(&row.name, NAME - 8.0)),
            y + 11.0,
            width - NAME - TEXT,
            width - TEXT + 6.0,
            escape(&row.text)
        );
        for stretch in &row.stretches {
            // Even the smallest table is visible, and there is a gap between neighbours if there is room.
            let (from, to) = (px(stretch.from), px(stretch.to));
            let wide = if to - from > 3.0 { to - from - 0.6 } else { (to - from).max(0.8) };
            let fill = stretch.step.map_or(TIE, level_colour);
            let _ = writeln!(
                out,
                "<rect x=\"{from:.1}\" y=\"{y}\" width=\"{wide:.1}\" height=\"13\" style=\"fill:{fill}\"><title>{}\
                 </title></rect>",
                escape(&stretch.title)
            );
        }
    }
    out + "</svg>\n"
}

/// A row of [`ratios`].
#[derive(Debug, Clone)]
pub struct RatioRow {
    /// What is compared.
    pub name: String,
    /// The better side, whose colour the row has; `None` for a tie.
    pub winner: Option<usize>,
    /// The ratio of each pair.
    pub all: Vec<f64>,
    /// Their median.
    pub middle: f64,
    /// The text at the end.
    pub text: String,
}

/// Ratios on a scale of powers of two around 1. Every pair has a tick, the median a dot, and the spread a line, all in
/// the colour of the better side.
pub fn ratios(title: &str, note: &str, rows: &[RatioRow]) -> String {
    const ROW: f64 = 26.0;
    const NAME: f64 = 150.0;
    const VALUE: f64 = 216.0;
    let far = rows.iter().flat_map(|r| &r.all).map(|x| x.max(1e-6).log2().abs()).fold(1.0, f64::max).ceil();
    let h = 78.0 + rows.len() as f64 * ROW;
    let width = WIDTH + 80.0;
    let px = |ratio: f64| {
        let place = (ratio.max(1e-6).log2() / far + 1.0) / 2.0;
        NAME + place.clamp(0.0, 1.0) * (width - NAME - VALUE)
    };
    let mut out = format!(
        "<svg viewBox=\"0 0 {width} {h}\" role=\"img\" aria-label=\"{0}\"><title>{0}</title>\
         <text x=\"0\" y=\"13\" class=\"t\">{0}</text><text x=\"0\" y=\"31\" class=\"l\">{1}</text>\n",
        escape(title),
        escape(note)
    );
    let bottom = h - 34.0;
    let step = (far as i32 / 3).max(1);
    for e in (-(far as i32)..=far as i32).filter(|e| e % step == 0) {
        let (x, class) = (px(2f64.powi(e)), if e == 0 { "one" } else { "g" });
        let text = if e < 0 { format!("1/{}", 1 << -e) } else { format!("{}", 1 << e) };
        let _ = writeln!(
            out,
            "<path d=\"M{x:.1} 40V{bottom}\" class=\"{class}\"/>\
             <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{text}</text>",
            bottom + 15.0
        );
    }
    for (i, row) in rows.iter().enumerate() {
        let y = 54.0 + i as f64 * ROW;
        let fill = row.winner.map_or(TIE, colour);
        let (least, most) = row.all.iter().fold((f64::INFINITY, 0f64), |(a, b), x| (a.min(*x), b.max(*x)));
        let _ = writeln!(
            out,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text><path d=\"M{:.1} {y}H{:.1}\" \
             style=\"stroke:{fill}\" stroke-width=\"2\"/>",
            NAME - 10.0,
            y + 4.0,
            escape(&cut(&row.name, NAME - 10.0)),
            px(least),
            px(most)
        );
        for ratio in &row.all {
            let (x, top) = (px(*ratio), y - 5.0);
            let _ = writeln!(out, "<path d=\"M{x:.1} {top}v10\" style=\"stroke:{fill}\" stroke-width=\"1.5\"/>");
        }
        let _ = writeln!(
            out,
            "<circle cx=\"{:.1}\" cy=\"{y}\" r=\"5\" style=\"fill:{fill};stroke:var(--bg)\"/><text x=\"{}\" y=\"{}\" \
             text-anchor=\"end\">{}</text>",
            px(row.middle),
            width - 2.0,
            y + 4.0,
            escape(&row.text)
        );
    }
    let _ = writeln!(
        out,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\" class=\"l\">ratio (1: a tie), powers of two</text></svg>",
        px(1.0),
        h - 4.0
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_ones_twos_and_fives() {
        assert_eq!([nice_step(10.0, 5.0), nice_step(17.0, 5.0), nice_step(0.7, 5.0)], [2.0, 5.0, 0.2]);
        let axis = Axis::over("x", Scale::Linear, [0.0, 9_500.0].into_iter());
        let texts: Vec<String> = axis.ticks().into_iter().map(|t| t.1).collect();
        assert_eq!(texts, ["0", "2k", "4k", "6k", "8k"]);
        let axis = Axis::over("x", Scale::Log, [3.0, 800.0].into_iter());
        assert_eq!((axis.from, axis.to), (1.0, 1000.0));
        assert_eq!(Axis::over("x", Scale::Log, std::iter::empty()).ticks().len(), 2, "no data is no failure");
        let axis = Axis::over("x", Scale::Linear, [0.2].into_iter());
        let texts: Vec<String> = axis.ticks().into_iter().map(|t| t.1).collect();
        assert_eq!(texts, ["0", "0.05", "0.10", "0.15", "0.20"]);
    }

    #[test]
    fn long_names_stay_inside() {
        let long = "a store with options of its own".to_owned();
        let bar = Bar { name: long.clone(), side: 0, value: 1.0, text: "1".to_owned() };
        assert!(bars("t", "s", &[bar]).contains(">a store with…</text>"));
        let series: Vec<(String, Vec<f64>)> = (0..6).map(|_| (long.clone(), vec![1.0])).collect();
        let svg = groups("t", "threads", &["L0".to_owned()], &series);
        let last = svg.matches("translate(320 31)").count() + svg.matches("translate(320 48)").count();
        assert!(last == 2 && svg.contains(">a store with option…</text>"), "{svg}");
    }

    #[test]
    fn nines_are_equally_wide() {
        let axis = Axis { label: "p", scale: Scale::Nines, from: 0.0, to: 0.9999 };
        let places: Vec<f64> = [0.9, 0.99, 0.999].map(|p| axis.place(p)).into();
        assert!((places[1] - places[0] - (places[2] - places[1])).abs() < 1e-9);
        assert_eq!(axis.ticks().iter().map(|t| t.1.as_str()).collect::<Vec<_>>(), ["50", "90", "99", "99.9", "99.99"]);
    }

    #[test]
    fn nothing_has_no_bar_and_little_has_one() {
        let bar = |name: &str, value| Bar { name: name.into(), side: 0, value, text: format!("{value}") };
        let svg = bars("t", "s", &[bar("much", 1e6), bar("little", 1.0), bar("nothing", 0.0)]);
        assert_eq!(svg.matches("<rect").count(), 2, "{svg}");
        assert!(svg.contains("width=\"1.5\"") && svg.contains(">nothing</text>"), "{svg}");
        let series = [("a".to_owned(), vec![1.0, 0.0]), ("b".to_owned(), vec![0.001, 2.0])];
        let svg = groups("t", "threads", &["L0".to_owned(), "L1".to_owned()], &series);
        // Three bars and two swatches of the legend.
        assert_eq!(svg.matches("<rect").count(), 3 + 2, "{svg}");
        assert!(svg.contains("height=\"1.5\"") && svg.contains(">L1</text>") && !svg.contains("height=\"0"), "{svg}");
    }

    #[test]
    fn a_long_legend_has_two_rows() {
        let series: Vec<(String, Vec<f64>)> = (0..6).map(|i| (format!("classic-leveled-{i}"), vec![1.0])).collect();
        let long = groups("t", "threads", &["L0".to_owned()], &series);
        let rows = |svg: &str, y: usize| svg.matches(&format!(" {y})\">")).count();
        assert_eq!((rows(&long, 31), rows(&long, 48)), (3, 3), "{long}");
        assert!(long.contains("y=\"13\" text-anchor=\"end\" class=\"l\">threads"), "{long}");
        let short = groups("t", "threads", &["L0".to_owned()], &series[..2]);
        assert_eq!((rows(&short, 31), rows(&short, 48)), (2, 0), "{short}");
    }

    #[test]
    fn runs_are_drawn_in_their_stretches() {
        let stretch = |from, to, step| Stretch { from, to, step, title: "a..b".into() };
        let of = vec![stretch(0.0, 0.5, Some(0)), stretch(0.5, 0.5, None), stretch(0.5, 1.0, Some(6))];
        let row = RunRow { name: "L1".into(), text: "3 tables".into(), stretches: of };
        let svg = runs("t", "n", &[row], ("newest", "oldest"));
        assert_eq!(svg.matches("<title>a..b</title>").count(), 3);
        assert_eq!(svg.matches("<rect").count(), STEPS.len() + 1 + 3);
        assert!(svg.contains("width=\"0.8\"") && svg.contains(&format!("fill:{TIE}")), "{svg}");
        assert!(!svg.contains("NaN") && svg.contains(">newest</text>") && svg.contains(">3 tables</text>"), "{svg}");
    }

    #[test]
    fn a_ratio_has_the_colour_of_the_better_side() {
        let row =
            |winner, middle: f64| RatioRow { name: "r".into(), winner, all: vec![middle], middle, text: "x".into() };
        let svg = ratios("t", "n", &[row(Some(0), 2.0), row(Some(1), 0.5), row(None, 1.0)]);
        for fill in [COLOURS[0], COLOURS[1], TIE] {
            assert_eq!(svg.matches(&format!("fill:{fill}")).count(), 1, "{fill}: {svg}");
        }
    }

    #[test]
    fn charts_are_drawn_inside_and_escape_names() {
        let x = Axis::over("s", Scale::Linear, [10.0].into_iter());
        let y = Axis::over("ops/s", Scale::Linear, [5.0].into_iter());
        let mut chart = Chart::new("a < b", x, y).with_strips(1);
        chart.line(0, &[(0.0, 1.0), (20.0, 9.0)], false);
        chart.name_line(0, "a&b");
        chart.strip(0, 0, "s", &[(1.0, 2.0, "L0 files".to_owned())]);
        let svg = chart.finish();
        assert!(svg.contains("a &lt; b") && svg.contains("a&amp;b") && svg.contains("L0 files"), "{svg}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }
}
