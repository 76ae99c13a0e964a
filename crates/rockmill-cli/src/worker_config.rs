//! The file of `rockmill worker --config`: the names of the command's flags, one per line.
//!
//! ```text
//! # comment
//! listen = 10.0.0.7:4421
//! jobs = 2
//! allow-unauthenticated = true
//! ```
//!
//! A value is the rest of its line, without surrounding blanks; there is no quoting. A flag without a value is `true`
//! or `false`. The command line overrides the file.

use std::collections::BTreeMap;
use std::path::Path;

use clap::builder::Resettable;
use clap::{ArgAction, Args, Command, FromArgMatches, Id};

use crate::error::{CliError, Result};

/// Reads such a file: the flags of `A` except those of `not`. Each line is parsed separately, as on the command line.
///
/// # Errors
/// The file cannot be read, or a line is invalid; the message suggests a correction.
pub fn read<A: Args + FromArgMatches>(path: &Path, not: &[&str]) -> Result<A> {
    let text = std::fs::read_to_string(path).map_err(|e| CliError::io(path.display(), &e))?;
    parse(&text, &path.display().to_string(), not)
}

fn parse<A: Args + FromArgMatches>(text: &str, shown: &str, not: &[&str]) -> Result<A> {
    let command = A::augment_args(Command::new("worker").no_binary_name(true).disable_help_flag(true));
    // Each line is parsed alone, so flags that other flags require need not be on it.
    let command = command.mut_args(|arg| arg.required(false).required_unless_present(Resettable::<Id>::Reset));
    let flags = command.get_arguments().filter_map(|arg| Some((arg.get_long()?, arg.get_action())));
    let flags: BTreeMap<&str, &ArgAction> = flags.filter(|(name, _)| !not.contains(name)).collect();
    let (mut seen, mut args) = (BTreeMap::new(), Vec::new());
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong = |what: String| CliError::usage(format!("{shown}:{number}: {what}"));
        let Some((name, value)) = line.split_once('=').map(|(name, value)| (name.trim(), value.trim())) else {
            return Err(wrong(format!("{line:?} has no = between a name and its value")));
        };
        let Some(action) = flags.get(name) else {
            let near = rockmill_bench::nearest(name, flags.keys().copied());
            let hint = near.map_or_else(
                || format!("there are {}", flags.keys().copied().collect::<Vec<_>>().join(", ")),
                |near| format!("did you mean {near}?"),
            );
            return Err(wrong(format!("there is no {name:?}")).hint(hint));
        };
        if let Some(before) = seen.insert(name, number) {
            return Err(wrong(format!("{name} is in line {before}, too")));
        }
        let arg = match (action, value) {
            (ArgAction::SetTrue, "true") => format!("--{name}"),
            (ArgAction::SetTrue, "false") => continue,
            (ArgAction::SetTrue, _) => return Err(wrong(format!("{name} is true or false, not {value:?}"))),
            _ => format!("--{name}={value}"),
        };
        if let Err(e) = command.clone().try_get_matches_from([&arg]) {
            let said = e.to_string();
            let said = said.lines().next().unwrap_or_default();
            return Err(wrong(said.strip_prefix("error: ").unwrap_or(said).to_owned()));
        }
        args.push(arg);
    }
    let parsed = command.try_get_matches_from(args).and_then(|matches| A::from_arg_matches(&matches));
    parsed.map_err(|e| CliError::usage(format!("{shown}: {e}")))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[derive(Debug, Args, PartialEq, Eq, Default)]
    struct Flags {
        #[arg(long, required_unless_present = "config")]
        listen: Option<String>,
        #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
        jobs: Option<u16>,
        #[arg(long)]
        allow_all: bool,
        #[arg(long)]
        config: Option<PathBuf>,
    }

    fn flags(text: &str) -> Result<Flags> {
        parse(text, "w.conf", &["config"])
    }

    #[test]
    fn each_line_is_a_flag() {
        let text = "# a comment\n\n listen = here:1 = 2 # no comment\njobs=3\r\nallow-all = true\n";
        let listen = Some("here:1 = 2 # no comment".to_owned());
        assert_eq!(flags(text).unwrap(), Flags { listen, jobs: Some(3), allow_all: true, config: None });
        assert_eq!(flags("allow-all = false").unwrap(), Flags::default());
        assert_eq!(flags("").unwrap(), Flags::default());
    }

    #[test]
    fn a_line_that_is_wrong_is_named() {
        for (text, message, hint) in [
            ("\nlistn = x", "w.conf:2: there is no \"listn\"", "did you mean listen?"),
            ("config = x", "w.conf:1: there is no \"config\"", ""),
            ("zzzzzzzz = x", "w.conf:1: there is no \"zzzzzzzz\"", "there are allow-all, jobs, listen"),
            ("jobs", "w.conf:1: \"jobs\" has no =", ""),
            ("jobs = 1\n#\njobs = 2", "w.conf:3: jobs is in line 1, too", ""),
            ("jobs = many", "w.conf:1: invalid value 'many' for '--jobs", ""),
            ("jobs = 0", "w.conf:1: invalid value '0' for '--jobs", ""),
            ("jobs =", "w.conf:1: ", ""),
            ("allow-all = yes", "w.conf:1: allow-all is true or false, not \"yes\"", ""),
        ] {
            let e = flags(text).unwrap_err();
            assert!(e.message.starts_with(message), "{text:?}: {}", e.message);
            assert!(e.hint.as_deref().unwrap_or_default().starts_with(hint), "{text:?}: {:?}", e.hint);
        }
    }
}
