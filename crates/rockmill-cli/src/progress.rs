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

/// The style of a template, where BAR is the bar, in a terminal of this many columns.
fn style(template: &str, columns: u16) -> ProgressStyle {
    // In a narrow terminal, the bar takes the columns that the figures leave, so that the line is not wrapped.
    let bar = if columns >= WIDE { "{bar:30.cyan/black.bright}" } else { "{wide_bar:.cyan/black.bright}" };
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
    // If the total is not known yet, the bar must not look complete.
    let total = total.map(|bytes| bytes.max(1));
    let bar = ProgressBar::with_draw_target(total, target(quiet)).with_prefix(shown_name(&what.into()));
    bar.set_style(bytes_style(total.is_some(), columns()));
    if shown(quiet) {
        bar.enable_steady_tick(Duration::from_millis(200));
    }
    bar
}

fn bytes_style(has_total: bool, columns: u16) -> ProgressStyle {
    let template = match has_total {
        true => {
            "{prefix} {percent:>3}% BAR {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} left {eta}  {msg}"
        }
        false => "{prefix} {spinner:.cyan} {binary_bytes} {binary_bytes_per_sec} {elapsed}  {msg}",
    };
    style(template, columns)
}

/// A bar over `total` things.
pub fn count(what: impl Into<Cow<'static, str>>, total: u64, quiet: bool) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), target(quiet)).with_prefix(shown_name(&what.into()));
    bar.set_style(count_style(columns()));
    bar
}

fn count_style(columns: u16) -> ProgressStyle {
    let template = match columns >= WIDE_WITH_WORDS {
        true => "{prefix} {percent:>3}% BAR {human_pos}/{human_len} left {eta}  {msg}",
        false => "{prefix} {percent:>3}% BAR {human_pos}/{human_len} left {eta}",
    };
    style(template, columns)
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

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use indicatif::TermLike;

    use super::*;

    /// A terminal that remembers what is written to it.
    #[derive(Debug, Clone)]
    struct Terminal {
        columns: u16,
        written: Arc<Mutex<Vec<String>>>,
    }

    impl TermLike for Terminal {
        fn width(&self) -> u16 {
            self.columns
        }

        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn write_line(&self, text: &str) -> io::Result<()> {
            self.write_str(text)
        }

        fn write_str(&self, text: &str) -> io::Result<()> {
            self.written.lock().expect("no panic").push(text.to_owned());
            Ok(())
        }

        fn clear_line(&self) -> io::Result<()> {
            Ok(())
        }

        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A bar in the middle of its work, as a terminal shows it, without colours.
    fn drawn(
        columns: u16,
        style: ProgressStyle,
        total: Option<u64>,
        prefix: &'static str,
        message: &'static str,
    ) -> String {
        let terminal = Terminal { columns, written: Arc::default() };
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::term_like(Box::new(terminal.clone())));
        bar.set_style(style);
        bar.set_prefix(prefix);
        bar.set_message(message);
        bar.set_position(total.unwrap_or(123 << 30) / 2);
        bar.tick();
        let written = terminal.written.lock().expect("no panic");
        let line = written.iter().rfind(|text| text.contains(prefix)).expect("a line");
        let colour_ends = |part: &str| part.split_once('m').map_or(String::new(), |(_, text)| text.to_owned());
        let mut parts = line.split('\x1b');
        parts.next().unwrap_or_default().to_owned() + &parts.map(colour_ends).collect::<String>()
    }

    #[test]
    fn bars_fit_the_terminal() {
        let words = "12 deaths, 123,456,789 ops, 123,456,789 keys compared, 123.4 MiB of memory";
        for columns in [80, WIDE - 1, WIDE, WIDE_WITH_WORDS - 1, WIDE_WITH_WORDS, 200] {
            for line in [
                drawn(columns, bytes_style(true, columns), Some(876 << 30), "load", "123,456,789 records"),
                drawn(columns, bytes_style(true, columns), Some(876 << 30), "compact", "876.5 GiB written"),
                drawn(columns, bytes_style(false, columns), None, "load", "123,456,789 records"),
                drawn(columns, count_style(columns), Some(123_456), "stress", words),
            ] {
                assert!(line.chars().count() <= usize::from(columns), "{columns} columns: {line:?}");
            }
        }
    }

    #[test]
    fn a_bar_leaves_room_for_its_figures() {
        let bar = |columns, message| drawn(columns, bytes_style(true, columns), Some(2 << 30), "load", message);
        let filled = |line: &str| line.chars().filter(|c| "━╸─".contains(*c)).count();
        let (narrow, wide) = (bar(80, "12 records"), bar(WIDE, "12 records"));
        assert!(narrow.contains(" 50% ") && narrow.contains("1.00 GiB/2.00 GiB") && filled(&narrow) > 5, "{narrow}");
        assert_eq!(filled(&wide), 30, "{wide}");
        let count = |columns| drawn(columns, count_style(columns), Some(60), "stress", "3 deaths");
        assert!(!count(80).contains("deaths") && count(WIDE_WITH_WORDS).contains("deaths"));
    }
}
