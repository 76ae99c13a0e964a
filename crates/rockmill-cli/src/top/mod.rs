//! `rockmill top` and `rockmill stats --watch`: show the activity of a database that another process has open.
//!
//! | file | what happens there |
//! |---|---|
//! | `source.rs` | observations of the database: its status file, or its MANIFEST and its info log |
//! | `metrics.rs` | the parser of the status file |
//! | `frame.rs` | lines of text, from two observations |
//! | `screen.rs` | taking over the terminal, and restoring it |
//!
//! The process is not contacted, and the database is not opened. The only cost for the process is the status file,
//! which it writes if its options say so.

mod frame;
mod metrics;
mod screen;
mod source;

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use clap::Args;

pub use screen::give_back as give_screen_back;
pub use source::{status_path, status_text};

use crate::error::{CliError, Result};
use crate::output::Out;
use crate::{interrupt, store};
use screen::Screen;
use source::Seen;

/// Width of a frame that is not printed to a terminal, unless COLUMNS is set.
const COLUMNS: usize = 100;
/// How often the screen's size is checked.
const RESIZE: Duration = Duration::from_millis(250);

/// Watch what a database does while another process has it open
///
/// Shows levels, running jobs, stalls and their reason, cache, rates and latencies, every second; q ends it. All
/// figures are available if the process opened the database with Options::set_status_file("STATUS"). Without that file,
/// and for RocksDB's processes, the levels are from the MANIFEST, and jobs and the last statistics from the info log.
/// The database is not opened.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rockmill top my.db
  rockmill top my.db --every 5
  rockmill top my.db --once
  rockmill top my.db --status-file /run/app/my.db.prom")]
pub struct TopArgs {
    /// Database directory
    pub db: PathBuf,
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = parse_seconds)]
    pub every: f64,
    /// Measure twice, print one frame, and end
    #[arg(long)]
    pub once: bool,
    /// The file that the process writes its status to [default: STATUS in the database directory]
    #[arg(long, value_name = "FILE")]
    pub status_file: Option<PathBuf>,
}

/// Seconds between two looks.
pub fn parse_seconds(text: &str) -> std::result::Result<f64, String> {
    match text.parse::<f64>() {
        Ok(s) if (0.1..=86_400.0).contains(&s) => Ok(s),
        _ => Err(format!("{text:?} is not a number of seconds from 0.1 to 86400")),
    }
}

/// `rockmill top`
pub fn run(args: &TopArgs, out: &mut Out) -> Result<()> {
    store::check_is_database(&args.db)?;
    if out.json {
        return Err(CliError::usage("top prints no JSON")
            .hint("`rockmill stats DB --json` or `rockmill stats DB --prometheus` are for programs"));
    }
    let status = status_path(&args.db, args.status_file.as_ref());
    let view = View { db: &args.db, status: &status, every: Duration::from_secs_f64(args.every) };
    match (args.once, out.is_terminal() && std::io::stdin().is_terminal()) {
        (true, _) => view.print(out, Some(1)),
        (false, false) => view.print(out, None),
        (false, true) => view.show(),
    }
}

struct View<'a> {
    db: &'a Path,
    status: &'a Path,
    every: Duration,
}

impl View<'_> {
    fn look(&self) -> Result<Seen> {
        source::look(self.db, self.status)
    }

    fn frame(&self, before: &Seen, now: &Seen, width: usize) -> Vec<frame::Line> {
        frame::frame(&self.db.display().to_string(), Some(before), now, width)
    }

    /// Prints frames one after the other.
    fn print(&self, out: &mut Out, frames: Option<u64>) -> Result<()> {
        let given = std::env::var("COLUMNS").ok().and_then(|c| c.parse().ok());
        let width = if out.is_terminal() { Screen::size().0 } else { given.unwrap_or(COLUMNS) };
        let mut before = self.look()?;
        let mut printed = 0;
        while frames != Some(printed) {
            std::thread::sleep(self.every);
            let now = self.look()?;
            if printed > 0 {
                out.line("")?;
            }
            for line in frame::text(&self.frame(&before, &now, width), width, false) {
                out.line(line)?;
            }
            out.flush()?;
            before = now;
            printed += 1;
        }
        Ok(())
    }

    /// Shows frames on the whole screen until a key ends it.
    fn show(&self) -> Result<()> {
        let mut before = self.look()?;
        interrupt::on_end(give_screen_back);
        let no_screen = |e: std::io::Error| CliError::io("cannot use the terminal", &e);
        let screen = Screen::take().map_err(no_screen)?;
        // A first frame immediately, then rates as soon as there are two observations.
        let mut now = self.look()?;
        loop {
            self.draw(&screen, &before, &now).map_err(no_screen)?;
            if self.wait(&screen, &before, &now)? {
                return Ok(());
            }
            let next = self.look()?;
            // If the status file was not written again, there is nothing new.
            if next.at > now.at {
                before = std::mem::replace(&mut now, next);
            }
        }
    }

    /// Waits until the next observation is due; true if a key ended the view.
    fn wait(&self, screen: &Screen, before: &Seen, now: &Seen) -> Result<bool> {
        let (began, mut size) = (Instant::now(), Screen::size());
        while let Some(left) = self.every.checked_sub(began.elapsed()).filter(|left| !left.is_zero()) {
            match screen.keys().recv_timeout(left.min(RESIZE)) {
                // q, Q, Ctrl-C, Ctrl-D
                Ok(b'q' | b'Q' | 3 | 4) => return Ok(true),
                Ok(b' ' | b'\r') => return Ok(false),
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(true),
            }
            if Screen::size() != size {
                size = Screen::size();
                self.draw(screen, before, now).map_err(|e| CliError::io("cannot use the terminal", &e))?;
            }
        }
        Ok(false)
    }

    fn draw(&self, screen: &Screen, before: &Seen, now: &Seen) -> std::io::Result<()> {
        let (width, height) = Screen::size();
        let mut lines = frame::text(&self.frame(before, now, width), width, true);
        if lines.len() + 1 > height {
            let more = lines.len() + 2 - height.max(2);
            lines.truncate(height.saturating_sub(2));
            lines.push(format!("\x1b[2m{more} more lines: make the window higher\x1b[0m"));
        }
        lines.resize(height.saturating_sub(1), String::new());
        lines.push(format!("\x1b[2mq quits; every {} s\x1b[0m", self.every.as_secs_f64()));
        screen.draw(&lines)
    }
}
