//! `rockmill shell`: runs lines as commands on one database, with a history.
//!
//! | file | what happens there |
//! |---|---|
//! | `editor.rs` | line editing on a terminal: completion and the history's file, with `rustyline` |
//! | `words.rs` | splitting a line into words, as a Unix shell does |
//!
//! A line is a call of `rockmill` without the program's name and the database. It opens the database, does its work and
//! closes it again. Nothing stays open between two lines, so other processes can use the database in the meantime.

mod editor;
mod words;

use std::ffi::OsString;
use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::{Args, FromArgMatches as _};
use rockmill_format::printable;

use crate::args::{self, Cli};
use crate::error::{CliError, EXIT_OK, Result};
use crate::output::{self, Out};
use crate::store;
use editor::{Asked, Editor};

/// Commands that are allowed in a line: those whose first argument is the database.
const COMMANDS: [&str; 20] = [
    "get",
    "multi-get",
    "scan",
    "put",
    "merge",
    "delete",
    "stats",
    "top",
    "flush",
    "compact",
    "verify",
    "options",
    "set-options",
    "list-cf",
    "create-cf",
    "drop-cf",
    "checkpoint",
    "load",
    "ingest",
    "downgrade",
];
/// What the shell does itself.
const OWN: [&str; 3] = ["help", "use", "exit"];

/// Type commands on one database, line by line
///
/// A line is a command of rockmill without the program's name and the database: `get KEY`, `scan --limit 5`, `stats`.
/// Words are quoted as in a Unix shell. `use NAME` switches to another column family, and `use` alone back to the
/// default one. The up and down keys go through the history, Ctrl-R searches it, tab completes a command, and `exit` or
/// Ctrl-D ends the shell. Ctrl-C drops the line; while a command runs, it ends the shell too.
///
/// If standard input or output is no terminal, lines are read from standard input. The first line that fails ends the
/// shell with the exit code of its command.
#[derive(Debug, Args)]
#[command(after_help = "\
The history is in ~/.local/state/rockmill/history (or below XDG_STATE_HOME), and only its owner can read it. It contains
the lines as typed, with their keys and values. A line that begins with a space is not kept.

Examples:
  rockmill shell my.db
  printf 'put ada 1815\\nget ada\\n' | rockmill shell my.db
  rockmill shell my.db --no-history")]
pub struct ShellArgs {
    /// Database directory
    pub db: PathBuf,
    /// Neither read nor write the history file
    #[arg(long)]
    pub no_history: bool,
}

/// State that is kept from line to line.
struct Shell<'a> {
    db: &'a Path,
    family: Option<String>,
}

/// What follows a line.
enum Done {
    /// Another line.
    Next,
    /// The end of the shell.
    End,
}

/// `rockmill shell`
pub fn run(args: &ShellArgs, family: Option<&str>, out: &mut Out) -> Result<()> {
    store::check_is_database(&args.db)?;
    let mut shell = Shell { db: &args.db, family: family.map(str::to_owned) };
    if !(io::stdin().is_terminal() && out.is_terminal()) {
        let mut line = String::new();
        loop {
            line.clear();
            // Line by line, because a command may read standard input as well.
            let read = io::stdin().read_line(&mut line).map_err(|e| CliError::io("cannot read standard input", &e))?;
            if read == 0 || matches!(shell.line(&line, out)?, Done::End) {
                return Ok(());
            }
        }
    }
    let mut editor = Editor::new(!args.no_history)?;
    out.line("help lists the commands; exit or Ctrl-D ends")?;
    loop {
        out.flush()?;
        let line = match editor.ask(&shell.prompt())? {
            Asked::Line(line) => line,
            Asked::Dropped => continue,
            Asked::End => return Ok(()),
        };
        match shell.line(&line, out) {
            Ok(Done::Next) => {}
            Ok(Done::End) => break,
            Err(e) => {
                out.flush()?;
                output::tell(&format!("error: {}", e.message));
                if let Some(hint) = &e.hint {
                    output::tell(&format!("hint: {hint}"));
                }
            }
        }
    }
    Ok(())
}

impl Shell<'_> {
    /// Runs a line.
    fn line(&mut self, line: &str, out: &mut Out) -> Result<Done> {
        let words = words::split(line).map_err(CliError::usage)?;
        let Some((first, rest)) = words.split_first() else { return Ok(Done::Next) };
        match (first.as_str(), rest) {
            (word, _) if word.starts_with('#') => return Ok(Done::Next),
            ("exit" | "quit", []) => return Ok(Done::End),
            ("help", []) => {
                for names in COMMANDS.chunks(COMMANDS.len().div_ceil(3)) {
                    out.line(format!("  {}", names.join(", ")))?;
                }
                out.line("COMMAND -h lists what a command takes")?;
                out.line("use NAME switches to another column family, use alone to the default one")?;
                out.line("exit or Ctrl-D ends the shell")?;
                return Ok(Done::Next);
            }
            ("use", names @ ([] | [_])) => {
                let family = names.first().cloned();
                if let Some(name) = &family {
                    let known = store::families(self.db)?;
                    if !known.iter().any(|f| f.name == *name) {
                        return Err(store::unknown_family(name, &known));
                    }
                }
                self.family = family;
                return Ok(Done::Next);
            }
            _ => {}
        }
        if !COMMANDS.contains(&first.as_str()) {
            let near = rockmill_bench::nearest(first, COMMANDS.iter().chain(&OWN).copied());
            let hint =
                near.map_or_else(|| "help lists the commands".to_owned(), |near| format!("did you mean {near}?"));
            return Err(CliError::usage(format!("{first:?} is not a command of the shell")).hint(hint));
        }
        let mut call: Vec<OsString> = vec!["rockmill".into(), first.into()];
        call.push(self.db.as_os_str().to_owned());
        if let Some(name) = &self.family
            && !crate::shell::takes_no_family(first)
            && !rest.iter().any(|word| word.replace('_', "-").starts_with("--column-family"))
        {
            call.extend(["--column-family".into(), name.into()]);
        }
        call.extend(rest.iter().map(OsString::from));
        let parsed = without_directory().try_get_matches_from(&call).and_then(|m| Cli::from_arg_matches(&m));
        let cli = match parsed {
            Ok(cli) => cli,
            // Help is no error.
            Err(e) if e.exit_code() == i32::from(EXIT_OK) => {
                // The usage names even an argument that is hidden.
                let help = e.render().to_string().replace("Usage: rockmill ", "Usage: ").replacen(" <DB>", "", 1);
                out.text(help)?;
                return Ok(Done::Next);
            }
            Err(e) => {
                let text = e.render().to_string();
                let message = text.split("\n\n").next().unwrap_or_default().trim();
                let message = message.strip_prefix("error: ").unwrap_or(message);
                return Err(CliError::usage(message).hint(format!("{first} -h shows what it takes")));
            }
        };
        // A live view has a thread that reads keys, which would also read those of the next line. So it runs in its own
        // process, with which the thread ends.
        if is_live(&cli.command) && io::stdin().is_terminal() && out.is_terminal() {
            out.flush()?;
            let cannot = |e: &io::Error| CliError::io("cannot start rockmill", e);
            let program = std::env::current_exe().map_err(|e| cannot(&e))?;
            let mut view = Command::new(program);
            view.args(&call[1..]).status().map_err(|e| cannot(&e))?;
            return Ok(Done::Next);
        }
        let (json, quiet) = (out.json, out.quiet);
        (out.json, out.quiet) = (json || cli.json, quiet || cli.quiet);
        let done = crate::dispatch(&cli, out);
        (out.json, out.quiet) = (json, quiet);
        done.map(|()| Done::Next)
    }

    /// The prompt before a line on the terminal.
    fn prompt(&self) -> String {
        let name = self.db.file_name().unwrap_or(self.db.as_os_str()).to_string_lossy();
        let prompt = match &self.family {
            Some(family) => format!("{name}/{family}> "),
            None => format!("{name}> "),
        };
        printable::line(&prompt).into_owned()
    }
}

/// The command line without the directory in its help: a line of the shell does not have it.
fn without_directory() -> clap::Command {
    let hidden = |a: clap::Arg| if a.get_id() == "db" { a.hide(true) } else { a };
    crate::shell::command().mut_subcommands(|command| command.mut_args(hidden))
}

/// True for a full-screen view.
fn is_live(command: &args::Command) -> bool {
    match command {
        args::Command::Top(top) => !top.once,
        args::Command::Stats(stats) => stats.watch.is_some(),
        _ => false,
    }
}
