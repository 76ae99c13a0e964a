//! Lines from a terminal: `rustyline` edits them, and keeps the history.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;

use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::DefaultHistory;
use rustyline::validate::Validator;
use rustyline::{Config, Context, Helper};

use super::{COMMANDS, OWN};
use crate::error::{CliError, Result};
use crate::output;

/// Lines of history that are kept.
const HISTORY_MAX: usize = 1000;

/// What somebody at the terminal did.
pub enum Asked {
    /// A line.
    Line(String),
    /// Ctrl-C: the line is discarded.
    Dropped,
    /// Ctrl-D on an empty line, or the terminal was closed.
    End,
}

/// A line editor with history.
pub struct Editor {
    editor: rustyline::Editor<Commands, DefaultHistory>,
    /// `None`: the history is not saved.
    file: Option<PathBuf>,
}

impl Editor {
    /// Loads the history of earlier runs, if requested and readable.
    pub fn new(keep_history: bool) -> Result<Self> {
        let config = Config::builder().max_history_size(HISTORY_MAX).and_then(|c| c.history_ignore_dups(true));
        let config = config.map_err(|e| no_terminal(&e))?.history_ignore_space(true).build();
        let mut editor = rustyline::Editor::with_config(config).map_err(|e| no_terminal(&e))?;
        editor.set_helper(Some(Commands));
        let file = if keep_history { history_file() } else { None };
        if let Some(file) = file.as_ref().filter(|f| f.exists())
            && let Err(e) = editor.load_history(file)
        {
            output::tell(&format!("warning: no history: cannot read {}: {e}", file.display()));
        }
        Ok(Self { editor, file })
    }

    /// Asks for a line.
    pub fn ask(&mut self, prompt: &str) -> Result<Asked> {
        let line = match self.editor.readline(prompt) {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => return Ok(Asked::Dropped),
            Err(ReadlineError::Eof) => return Ok(Asked::End),
            Err(e) => return Err(no_terminal(&e)),
        };
        if !line.trim().is_empty() && self.editor.add_history_entry(&line).is_ok_and(|added| added) {
            self.keep();
        }
        Ok(Asked::Line(line))
    }

    /// Adds the last line to the file before it runs, so that a line that ends the shell is kept, too. If that is
    /// impossible, the shell reports it once and works without a history.
    fn keep(&mut self) {
        let Some(file) = &self.file else { return };
        if let Some(folder) = file.parent() {
            // If this fails, the file cannot be written either, and that error names it.
            let _ = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        }
        if let Err(e) = self.editor.append_history(file) {
            output::tell(&format!("warning: the history is not kept: {}: {e}", file.display()));
            self.file = None;
        }
    }
}

fn no_terminal(e: &ReadlineError) -> CliError {
    CliError::usage(format!("cannot use the terminal: {e}"))
}

/// The history file, if there is a home directory.
fn history_file() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let state = set("XDG_STATE_HOME").or_else(|| Some(set("HOME")?.join(".local").join("state")))?;
    Some(state.join("rockmill").join("history"))
}

/// Completes the first word of a line to a command.
struct Commands;

impl Helper for Commands {}
impl Highlighter for Commands {}
impl Validator for Commands {}
impl Hinter for Commands {
    type Hint = String;
}

impl Completer for Commands {
    type Candidate = String;

    fn complete(&self, line: &str, at: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<String>)> {
        let begun = line[..at].trim_start();
        let start = at - begun.len();
        if begun.contains(char::is_whitespace) {
            return Ok((at, Vec::new()));
        }
        let fitting = COMMANDS.iter().chain(&OWN).filter(|name| name.starts_with(begun));
        Ok((start, fitting.map(|name| format!("{name} ")).collect()))
    }
}
