//! Short and long help, shell completions, and man pages.

use std::io::Write as _;
use std::path::PathBuf;

use clap::{Arg, Args, Command, CommandFactory, ValueHint};
use clap_complete::Shell;
use clap_mangen::Man;
use serde_json::json;

use crate::args::Cli;
use crate::error::{CliError, Result};
use crate::output::{self, Out};

/// There are many options under these headings, they are the same in most commands, and they are seldom needed:
/// `--help` shows them, `-h` does not.
const LONG_HEADINGS: [&str; 2] = ["Store options", "Stored options"];

/// Where options of all commands are listed: after a command's own, which clap counts from 0.
pub const LAST: usize = 900;

/// Options of [`InputArgs`](crate::args::InputArgs) that most calls need.
const INPUT: [&str; 7] = ["format", "header", "key_column", "value_column", "key", "value", "skip_bad"];

/// Commands with many options: `-h` shows only those that most calls need.
const SHORT: [(&str, &[&str]); 4] = [
    ("load", &["wal", "sync"]),
    ("write-sst", &["sort", "force"]),
    ("stress", &["duration", "scenario", "config", "kill_every", "threads", "keys", "limit", "verify", "seed", "keep"]),
    (
        "simulate",
        &[
            "strategy",
            "threads",
            "data",
            "workload",
            "write",
            "rate",
            "value_size",
            "device",
            "option",
            "compare",
            "settle",
            "report",
        ],
    ),
];

/// Commands for a whole database, or for none: `--column-family` does not apply to them.
const WITHOUT_FAMILY: [&str; 19] = [
    "top",
    "downgrade",
    "verify",
    "dump",
    "list-cf",
    "create-cf",
    "drop-cf",
    "backup",
    "checkpoint",
    "repair",
    "stress",
    "simulate",
    "worker",
    "completions",
    "man-pages",
    "stress-child",
    "dump-manifest",
    "list-live-files-metadata",
    "file-checksum-dump",
];

/// What `-h` ends with.
const SEE_HELP: &str = "--help has examples, and every option";

/// Print completions for a shell
///
/// bash, zsh, fish, elvish and powershell use such a script to complete commands, options and values. The shell reads
/// it when it starts.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rockmill completions bash > ~/.local/share/bash-completion/completions/rockmill
  rockmill completions zsh > ~/.zfunc/_rockmill
  rockmill completions fish > ~/.config/fish/completions/rockmill.fish")]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub shell: Shell,
}

/// Write the man pages into a directory
///
/// rockmill.1 and one page for each command, rockmill-load.1 and so on. The directory is made if it is missing.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rockmill man-pages ~/.local/share/man/man1 && man rockmill-load")]
pub struct ManPagesArgs {
    /// Where the pages go
    #[arg(value_hint = ValueHint::DirPath)]
    pub dir: PathBuf,
}

/// The command line with short help (`-h`), long help (`--help`), and the spellings of RocksDB's tools.
pub fn command() -> Command {
    with_underscores(shorten(hide_family(Cli::command())))
}

/// True if `--column-family` does not apply to this command.
pub fn takes_no_family(command: &str) -> bool {
    WITHOUT_FAMILY.contains(&command)
}

/// Hides `--column-family` in the help of commands to which it does not apply. They still accept it, as RocksDB's tools
/// do.
fn hide_family(command: Command) -> Command {
    let Some(family) = command.get_arguments().find(|a| a.get_id() == "column_family").cloned() else { return command };
    // An option of all commands is not added to a command that has an option of the same name.
    command.mut_subcommands(|c| if takes_no_family(c.get_name()) { c.arg(family.clone().hide(true)) } else { c })
}

/// Accepts names with underscores, as `ldb` and `db_bench` spell them: `--write_buffer_size` for `--write-buffer-size`,
/// `multi_get` for `multi-get`.
fn with_underscores(command: Command) -> Command {
    let other = |name: &str| name.contains('-').then(|| name.replace('-', "_"));
    let command = command.mut_args(|a| match a.get_long().and_then(other) {
        Some(alias) => a.alias(alias),
        None => a,
    });
    let command = match other(command.get_name()) {
        Some(alias) => command.alias(alias),
        None => command,
    };
    command.mut_subcommands(with_underscores)
}

/// Omits examples and rarely needed options from `-h`.
fn shorten(command: Command) -> Command {
    let long = |a: &Arg| a.get_help_heading().is_some_and(|h| LONG_HEADINGS.iter().any(|l| h.starts_with(l)));
    let short = SHORT.iter().find(|(name, _)| *name == command.get_name()).map(|(_, options)| *options);
    let listed = |name: &str, of: &[&str]| of.contains(&name) || INPUT.contains(&name);
    let seldom = |a: &Arg| short.is_some_and(|s| !a.is_positional() && !listed(a.get_id().as_str(), s));
    let command = command.mut_args(|a| if long(&a) || seldom(&a) { a.hide_short_help(true) } else { a });
    let command = match command.get_after_help().cloned() {
        Some(examples) => command.after_long_help(examples).after_help(SEE_HELP),
        None => command,
    };
    command.mut_subcommands(shorten)
}

/// `rockmill completions`
pub fn completions(args: &CompletionsArgs, out: &mut Out) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command(), "rockmill", &mut script);
    out.bytes(&script)
}

/// `rockmill man-pages`
pub fn man_pages(args: &ManPagesArgs, out: &mut Out) -> Result<()> {
    let shown = args.dir.display();
    std::fs::create_dir_all(&args.dir).map_err(|e| CliError::io(format_args!("cannot make {shown}"), &e))?;
    let mut root = command();
    root.build();
    let mut pages = Vec::new();
    gather(&root, "rockmill", &mut pages);
    for (name, page) in &pages {
        let path = args.dir.join(format!("{name}.1"));
        std::fs::write(&path, page).map_err(|e| CliError::io(format_args!("cannot write {}", path.display()), &e))?;
    }
    if out.json {
        let names: Vec<&str> = pages.iter().map(|(name, _)| name.as_str()).collect();
        return out.json_object(&json!({ "directory": shown.to_string(), "pages": names }));
    }
    out.note(format!("{} in {shown}", output::plural(pages.len() as u64, "page")))
}

/// The man pages of a command and all of its subcommands, with their names.
fn gather(command: &Command, name: &str, pages: &mut Vec<(String, Vec<u8>)>) {
    if let Ok(page) = page(command) {
        pages.push((name.to_owned(), page));
    }
    let below = command.get_subcommands().filter(|c| !c.is_hide_set() && c.get_name() != "help");
    for c in below {
        gather(c, &format!("{name}-{}", c.get_name()), pages);
    }
}

fn page(command: &Command) -> std::io::Result<Vec<u8>> {
    let man = Man::new(command.clone()).source(concat!("rockmill ", env!("CARGO_PKG_VERSION")));
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.get_subcommands().any(|c| !c.is_hide_set()) {
        man.render_subcommands_section(&mut page)?;
    }
    // Written here because clap_mangen would join the lines of examples into a paragraph.
    let text = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
    for part in text.split("\n\n") {
        let (heading, lines) = match part.split_once(":\n") {
            Some((heading, lines)) if !heading.contains('\n') => (heading.to_uppercase(), lines),
            _ => ("NOTES".to_owned(), part),
        };
        if lines.is_empty() {
            continue;
        }
        writeln!(page, ".SH {heading}\n.nf")?;
        for line in lines.lines() {
            // A backslash begins an escape, and a line that begins with a dot or an apostrophe is a roff request.
            writeln!(page, "\\&{}", line.trim_start().replace('\\', "\\e").replace('-', "\\-"))?;
        }
        writeln!(page, ".fi")?;
    }
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(command: &Command, below: &str) {
        for option in command.get_arguments().filter_map(Arg::get_long).filter(|long| long.contains('-')) {
            let spelled = option.replace('-', "_");
            let found =
                command.get_arguments().any(|a| a.get_all_aliases().is_some_and(|all| all.contains(&&*spelled)));
            assert!(found, "{below} --{spelled}");
        }
        for c in command.get_subcommands() {
            let name = c.get_name();
            let spelled = name.replace('-', "_");
            assert!(command.find_subcommand(&spelled).is_some(), "{below} {spelled}");
            check(c, &format!("{below} {name}"));
        }
    }

    /// One style of flags, and db_bench's spelling of each.
    #[test]
    fn every_name_may_be_written_with_underscores() {
        check(&command(), "rockmill");
    }
}
