//! Progress bars: on standard error, and only on a terminal.

use std::borrow::Cow;
use std::io::IsTerminal;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rockmill_format::printable;

/// Redraws per second: enough for a smooth display, at negligible cost.
const REDRAWS_PER_SECOND: u8 = 10;
/// How often [`beside`] moves its bar.
const SHOW_EVERY: Duration = Duration::from_millis(200);

fn shown(quiet: bool) -> bool {
    !quiet && std::io::stderr().is_terminal()
}

/// A bar's label may be a file name: escapes it, so that it cannot control the terminal.
fn shown_name(what: &str) -> String {
    printable::line(what).into_owned()
}

/// Number of columns from which a bar of 30 has room next to its figures.
const WIDE: u16 = 110;
/// Number of columns from which words have room next to a bar and a count.
const WIDE_WITH_WORDS: u16 = 150;

/// Columns of the terminal.
fn columns() -> u16 {
    crossterm::terminal::size().map_or(80, |(columns, _)| columns)
}

/// The style of a template, where BAR is the bar.
fn style(template: &str) -> ProgressStyle {
    // In a narrow terminal, the bar takes the columns that the figures leave, so that the line is not wrapped.
    let bar = if columns() >= WIDE { "{bar:30.cyan/black.bright}" } else { "{wide_bar:.cyan/black.bright}" };
    // The templates are constants of this file; an invalid one results in a plain bar.
    let style = ProgressStyle::with_template(&template.replace("BAR", bar));
    style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("━╸─")
}

fn target(quiet: bool) -> ProgressDrawTarget {
    if shown(quiet) { ProgressDrawTarget::stderr_with_hz(REDRAWS_PER_SECOND) } else { ProgressDrawTarget::hidden() }
}

/// A bar over `total` bytes with rate and remaining time; without a total (standard input), it shows only the bytes so
/// far.
pub fn bytes(what: impl Into<Cow<'static, str>>, total: Option<u64>, quiet: bool) -> ProgressBar {
    // A total that is not known yet is not one of which all is done.
    let total = total.map(|bytes| bytes.max(1));
    let bar = ProgressBar::with_draw_target(total, target(quiet)).with_prefix(shown_name(&what.into()));
    bar.set_style(match total {
        Some(_) => style(
            "{prefix} {percent:>3}% BAR {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} left {eta}  {msg}",
        ),
        None => style("{prefix} {spinner:.cyan} {binary_bytes} {binary_bytes_per_sec} {elapsed}  {msg}"),
    });
    if shown(quiet) {
        bar.enable_steady_tick(Duration::from_millis(200));
    }
    bar
}

/// A bar over `total` things.
pub fn count(what: impl Into<Cow<'static, str>>, total: u64, quiet: bool) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), target(quiet)).with_prefix(shown_name(&what.into()));
    bar.set_style(match columns() >= WIDE_WITH_WORDS {
        true => style("{prefix} {percent:>3}% BAR {human_pos}/{human_len} left {eta}  {msg}"),
        false => style("{prefix} {percent:>3}% BAR {human_pos}/{human_len} left {eta}"),
    });
    bar
}

/// Runs `work` while another thread regularly calls `show` to update the bar; at the end, the bar is removed.
pub fn beside<T>(bar: &ProgressBar, show: impl Fn(&ProgressBar) + Send, work: impl FnOnce() -> T) -> T {
    if bar.is_hidden() {
        return work();
    }
    let (stop, stopped) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while stopped.recv_timeout(SHOW_EVERY) == Err(RecvTimeoutError::Timeout) {
                show(bar);
            }
        });
        let done = work();
        drop(stop);
        bar.finish_and_clear();
        done
    })
}
