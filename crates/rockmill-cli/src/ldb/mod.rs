//! Calls in the style of RocksDB's `ldb`: `rockmill --db=my.db get KEY`.
//!
//! Commands and options have `ldb`'s names as aliases (`args.rs`), and `calls.rs` has the commands that `rockmill` has
//! in a different form or not at all. Here the directory that `--db` names becomes the first argument of the command.

pub mod calls;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;

use clap::Command;

/// Options of all commands whose value is the next argument, which is therefore not a command's name.
const WITH_VALUE: [&str; 2] = ["--column-family", "--column_family"];

/// Moves the directory of `--db=DIR` or `--db DIR` to the place after the command's name. Other calls are not changed;
/// the parser checks them.
pub fn directory_in_place(mut args: Vec<OsString>, command: &Command) -> Vec<OsString> {
    // Everything after -- is a key or a value.
    let end = args.iter().position(|a| a == "--").unwrap_or(args.len());
    let Some((option, dir, taken)) =
        args[..end].iter().enumerate().skip(1).find_map(|(i, a)| match a.as_bytes().strip_prefix(b"--db=") {
            Some(dir) => Some((i, OsStr::from_bytes(dir).to_owned(), 1)),
            None if a == "--db" && i + 1 < end => Some((i, args[i + 1].clone(), 2)),
            None => None,
        })
    else {
        return args;
    };
    let names_command = |i: usize| {
        let free = !(option..option + taken).contains(&i) && !WITH_VALUE.iter().any(|o| args[i - 1] == *o);
        free && command.find_subcommand(&args[i]).is_some_and(takes_directory)
    };
    let Some(name) = (1..end).find(|&i| names_command(i)) else { return args };
    args.insert(name + 1, dir);
    let option = if option > name { option + 1 } else { option };
    args.drain(option..option + taken);
    args
}

/// True if the first argument of a command is the database.
fn takes_directory(command: &Command) -> bool {
    command.get_positionals().next().is_some_and(|first| first.get_id() == "db")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(line: &str) -> String {
        let args = line.split(' ').map(OsString::from).collect();
        let placed = directory_in_place(args, &crate::shell::command());
        placed.join(OsStr::new(" ")).into_string().expect("text")
    }

    #[test]
    fn the_directory_follows_the_command() {
        assert_eq!(placed("rockmill --db=d get k"), "rockmill get d k");
        assert_eq!(placed("rockmill --db d get k"), "rockmill get d k");
        assert_eq!(placed("rockmill get --db=d k"), "rockmill get d k");
        assert_eq!(placed("rockmill scan --max_keys=5 --db d"), "rockmill scan d --max_keys=5");
        assert_eq!(placed("rockmill --column_family get --db=d get k"), "rockmill --column_family get get d k");
        assert_eq!(placed("rockmill list_column_families --db=d"), "rockmill list_column_families d");
    }

    #[test]
    fn other_calls_stay_as_they_are() {
        for line in ["rockmill get d k", "rockmill --db=d", "rockmill put d k -- --db=v", "rockmill dump f --db=d"] {
            assert_eq!(placed(line), line);
        }
        assert_eq!(placed("rockmill get --db"), "rockmill get --db", "without a value");
    }
}
