//! Full-screen use of the terminal: takes it over, draws, and always restores it.

use std::io::{self, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};

use crossterm::terminal;

/// The alternate screen without a cursor, and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[2J";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// The screen is taken.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// The screen, until this is dropped.
pub struct Screen {
    keys: Receiver<u8>,
}

impl Screen {
    /// Takes the screen.
    pub fn take() -> io::Result<Self> {
        terminal::enable_raw_mode()?;
        TAKEN.store(true, Ordering::SeqCst);
        write(ENTER)?;
        let (send, keys) = mpsc::channel();
        std::thread::spawn(move || {
            for key in io::Read::bytes(io::stdin()).map_while(Result::ok) {
                if send.send(key).is_err() {
                    break;
                }
            }
        });
        Ok(Self { keys })
    }

    /// Columns and rows.
    pub fn size() -> (usize, usize) {
        let (columns, rows) = terminal::size().unwrap_or((80, 24));
        (usize::from(columns).max(1), usize::from(rows).max(1))
    }

    /// Pressed keys; disconnected when there can be no more.
    pub fn keys(&self) -> &Receiver<u8> {
        &self.keys
    }

    /// Shows lines, from the top.
    pub fn draw(&self, lines: &[String]) -> io::Result<()> {
        let mut text = "\x1b[H".to_owned();
        for (i, line) in lines.iter().enumerate() {
            if i > 0 {
                text.push_str("\r\n");
            }
            text.push_str(line);
            text.push_str("\x1b[K");
        }
        text.push_str("\x1b[J");
        write(&text)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

/// Restores the screen if it was taken over. For panics and signals.
pub fn give_back() {
    if TAKEN.swap(false, Ordering::SeqCst) {
        let _ = write(LEAVE);
        let _ = terminal::disable_raw_mode();
    }
}

fn write(text: &str) -> io::Result<()> {
    // Does not use the standard library's handle: the command holds its lock, and a panic or a signal can occur on any
    // thread.
    let mut terminal = std::fs::OpenOptions::new().write(true).open("/dev/tty")?;
    terminal.write_all(text.as_bytes())
}
