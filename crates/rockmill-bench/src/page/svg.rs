//! Charts as SVG: axes with units, lines, areas, bars. Written by hand, because a chart needs few shapes and a page
//! that is one file needs no library.

use std::fmt::Write;

use rockmill_format::printable;

use crate::timeline::short;

/// Colours that people with any colour vision tell apart (Okabe and Ito), strongest contrast on white first.
pub(super) const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#8f3f71", "#a67c00", "#3b3b3b"];
/// Lines differ in more than colour.
const DASHES: [&str; 6] = ["", "7 3", "2 3", "9 3 2 3", "5 5", "1 2"];
/// Steps of one hue, for levels: order is seen without a legend.
const STEPS: [&str; 7] = ["#08306b", "#08519c", "#2171b5", "#4292c6", "#6baed6", "#9ecae1", "#c6dbef"];

const WIDTH: f64 = 480.0;
const HEIGHT: f64 = 286.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 62.0;
const BOTTOM: f64 = 44.0;

/// The colour of the side with this index.
pub(super) fn colour(side: usize) -> &'static str {
    COLOURS[side % COLOURS.len()]
}

/// The step of the level with this index.
pub(super) fn level_colour(level: usize) -> &'static str {
    STEPS[level.min(STEPS.len() - 1)]
}

/// Text with what HTML would take for markup made harmless.
pub(super) fn escape(text: &str) -> String {
    printable::lines(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// How an axis is divided.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Scale {
    /// Even steps.
    Linear,
    /// Powers of ten.
    Log,
    /// Percentiles: each nine as wide as the one before.
    Nines,
}

/// One axis.
#[derive(Clone)]
pub(super) struct Axis {
    /// What it shows, with the unit.
    pub label: &'static str,
    pub scale: Scale,
    pub from: f64,
    pub to: f64,
}

impl Axis {
    /// An axis that has room for all values.
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

    /// Where a value is, from 0 to 1.
    fn place(&self, v: f64) -> f64 {
        let of = |v: f64| match self.scale {
            Scale::Linear => v,
            Scale::Log => v.max(f64::MIN_POSITIVE).log10(),
            Scale::Nines => -(1.0 - v.min(0.999_999)).log10(),
        };
        ((of(v) - of(self.from)) / (of(self.to) - of(self.from)).max(1e-12)).clamp(0.0, 1.0)
    }

    /// Values with a mark, and its text.
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
                let text = |v: f64| if step < 1.0 && v != 0.0 { format!("{v:.1}") } else { plain(v) };
                (first..=last).map(|i| (i as f64 * step, text(i as f64 * step))).collect()
            }
        }
    }
}

/// A number without digits that say nothing: 2k and not 2.0k.
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

/// A chart that is being drawn.
pub(super) struct Chart {
    x: Axis,
    y: Axis,
    title: String,
    legend: Vec<(String, String)>,
    body: String,
    height: f64,
    /// Height that strips below the plot take.
    below: f64,
}

impl Chart {
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

    /// A line through the points. A faint one is one of several repetitions.
    pub fn line(&mut self, side: usize, points: &[(f64, f64)], faint: bool) {
        let mut path = String::new();
        for (i, (x, y)) in points.iter().enumerate() {
            let _ = write!(path, "{}{:.1} {:.1}", if i == 0 { "M" } else { "L" }, self.px(*x), self.py(*y));
        }
        let (width, opacity) = if faint { (1.0, 0.35) } else { (2.0, 1.0) };
        let dash = if faint { "" } else { DASHES[side % DASHES.len()] };
        let _ = writeln!(
            self.body,
            "<path d=\"{path}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{width}\" stroke-opacity=\"{opacity}\" \
             stroke-dasharray=\"{dash}\" stroke-linejoin=\"round\"/>",
            colour(side)
        );
    }

    /// Names a side's line.
    pub fn name_line(&mut self, side: usize, name: &str) {
        let swatch = format!(
            "<path d=\"M0 -4h20\" stroke=\"{}\" stroke-width=\"2.5\" stroke-dasharray=\"{}\"/>",
            colour(side),
            DASHES[side % DASHES.len()]
        );
        self.legend.push((name.to_owned(), swatch));
    }

    /// Areas one on the other: for each layer its name, its colour, and its height at each x.
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
            let _ = writeln!(self.body, "<path d=\"{path}Z\" fill=\"{fill}\" stroke=\"#fff\" stroke-width=\"0.6\"/>");
            let swatch = format!("<rect y=\"-10\" width=\"12\" height=\"11\" fill=\"{fill}\"/>");
            self.legend.push((name.clone(), swatch));
            base = top;
        }
    }

    /// Makes room for strips below the plot, before anything is drawn.
    pub fn with_strips(mut self, count: usize) -> Self {
        self.below = count as f64 * 13.0;
        self.height += self.below;
        self
    }

    /// A strip below the plot: spans of x that are marked, with what to say of each.
    pub fn strip(&mut self, row: usize, side: usize, name: &str, spans: &[(f64, f64, String)]) {
        let y = self.height - BOTTOM - self.below + 4.0 + row as f64 * 13.0;
        let (left, right) = (LEFT, WIDTH - RIGHT);
        let long = name.chars().count() > 9;
        let squeeze = if long { " textLength=\"52\" lengthAdjust=\"spacingAndGlyphs\"" } else { "" };
        let _ = writeln!(
            self.body,
            "<rect x=\"{left}\" y=\"{y}\" width=\"{}\" height=\"9\" fill=\"#f0f0f0\"/>\
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
                "<rect x=\"{a:.1}\" y=\"{y}\" width=\"{:.1}\" height=\"9\" fill=\"{}\"><title>{}</title></rect>",
                (b - a).max(1.5),
                colour(side),
                escape(what)
            );
        }
    }

    /// The chart.
    pub fn finish(self) -> String {
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
                "<path d=\"M{LEFT} {y:.1}H{}\" class=\"g\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>",
                WIDTH - RIGHT,
                LEFT - 6.0,
                y + 4.0
            );
        }
        for (v, text) in self.x.ticks() {
            let x = self.px(v);
            let _ = writeln!(
                out,
                "<path d=\"M{x:.1} {}v4\" class=\"a\"/><text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{text}</text>",
                h - BOTTOM,
                h - BOTTOM + 17.0
            );
        }
        let _ = writeln!(
            out,
            "<text x=\"0\" y=\"51\" class=\"l\">{}</text><text x=\"{}\" y=\"{}\" text-anchor=\"end\" class=\"l\">{}</text>",
            escape(self.y.label),
            WIDTH - RIGHT,
            h - 6.0,
            escape(self.x.label)
        );
        let mut x = 0.0;
        for (name, swatch) in &self.legend {
            let room = if swatch.contains("<rect") { 16.0 } else { 24.0 };
            let _ = writeln!(
                out,
                "<g transform=\"translate({x:.0} 31)\">{swatch}<text x=\"{room}\">{}</text></g>",
                escape(name)
            );
            // About eight units a letter at the size that phones get.
            x += room + name.chars().count() as f64 * 8.0 + 14.0;
        }
        let _ = writeln!(out, "{}<path d=\"M{LEFT} {bottom}H{}\" class=\"a\"/></svg>", self.body, WIDTH - RIGHT);
        out
    }
}

/// One bar of [`bars`]: name, side, value, and the text beside it.
pub(super) struct Bar {
    pub name: String,
    pub side: usize,
    pub value: f64,
    pub text: String,
}

/// Bars from the left, with their values in words, on one scale that begins at 0.
pub(super) fn bars(title: &str, unit: &str, all: &[Bar]) -> String {
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
        let width = bar.value / most * (WIDTH - NAME - 138.0);
        let _ = writeln!(
            out,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text><rect x=\"{NAME}\" y=\"{y}\" width=\"{width:.1}\" \
             height=\"16\" fill=\"{}\"/><text x=\"{:.1}\" y=\"{}\">{}</text>",
            NAME - 8.0,
            y + 12.5,
            escape(&bar.name),
            colour(bar.side),
            NAME + width + 6.0,
            y + 12.5,
            escape(&bar.text)
        );
    }
    let _ = writeln!(out, "<path d=\"M{NAME} 36V{}\" class=\"a\"/></svg>", h - 2.0);
    out
}

/// One row of [`ratios`].
pub(super) struct RatioRow {
    pub name: String,
    pub side: usize,
    pub all: Vec<f64>,
    pub middle: f64,
    pub text: String,
}

/// Ratios on a scale of powers of two around 1: every pair a tick, a dot at the median, a line over the spread.
pub(super) fn ratios(title: &str, note: &str, rows: &[RatioRow]) -> String {
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
            "<path d=\"M{x:.1} 40V{bottom}\" class=\"{class}\"/><text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{text}\
             </text>",
            bottom + 15.0
        );
    }
    for (i, row) in rows.iter().enumerate() {
        let y = 54.0 + i as f64 * ROW;
        let fill = colour(row.side);
        let (least, most) = row.all.iter().fold((f64::INFINITY, 0f64), |(a, b), x| (a.min(*x), b.max(*x)));
        let _ = writeln!(
            out,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text><path d=\"M{:.1} {y}H{:.1}\" stroke=\"{fill}\" \
             stroke-width=\"2\"/>",
            NAME - 10.0,
            y + 4.0,
            escape(&row.name),
            px(least),
            px(most)
        );
        for ratio in &row.all {
            let _ =
                writeln!(out, "<path d=\"M{:.1} {}v10\" stroke=\"{fill}\" stroke-width=\"1.5\"/>", px(*ratio), y - 5.0);
        }
        let _ = writeln!(
            out,
            "<circle cx=\"{:.1}\" cy=\"{y}\" r=\"5\" fill=\"{fill}\" stroke=\"#fff\"/><text x=\"{}\" y=\"{}\" \
             text-anchor=\"end\">{}</text>",
            px(row.middle),
            width - 2.0,
            y + 4.0,
            escape(&row.text)
        );
    }
    let _ = writeln!(
        out,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\" class=\"l\">ratio (1 = equal), powers of two</text></svg>",
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
    }

    #[test]
    fn nines_are_equally_wide() {
        let axis = Axis { label: "p", scale: Scale::Nines, from: 0.0, to: 0.9999 };
        let places: Vec<f64> = [0.9, 0.99, 0.999].map(|p| axis.place(p)).into();
        assert!((places[1] - places[0] - (places[2] - places[1])).abs() < 1e-9);
        assert_eq!(axis.ticks().iter().map(|t| t.1.as_str()).collect::<Vec<_>>(), ["50", "90", "99", "99.9", "99.99"]);
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
