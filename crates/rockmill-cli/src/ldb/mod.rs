//! Calls in the style of RocksDB's `ldb`: `rockmill --db=my.db get KEY`.
//!
//! | file | what it has |
//! |---|---|
//! | `flags.rs` | flags with another name here, and what is refused |
//! | `calls.rs` | commands that `rockmill` has in another form or not at all |
//! | `entries.rs` | of these, `dump` and `idump` |
//! | `files.rs` | of these, the ones about files |
//!
//! Here such a call is translated into one of ours: the directory that `--db` names becomes the first argument of the
//! command. A call without `--db`, or a flag that names a file instead, is not changed. Names of commands and flags
//! that differ only a little are aliases (`args.rs`).

pub mod calls;
mod entries;
mod files;
mod flags;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;

use clap::Command;

use crate::error::{CliError, Result};
use flags::Flag;

/// Options of all commands whose value is the next argument, which is therefore not a command's name.
const WITH_VALUE: [&str; 2] = ["--column-family", "--column_family"];
/// Options of all commands; they may stand before the command's name.
const GLOBAL: [&str; 3] = ["--json", "--quiet", "-q"];
/// Flags that name a file instead of a database.
const FILES: [&str; 2] = ["--path", "--walfile"];
/// `ldb`'s commands that have another name here, or none if they take another argument.
const TRANSLATED: [&str; 3] = ["restore", "change_compaction_style", "change-compaction-style"];

/// An `ldb` command line in parts.
struct Call {
    db: Option<OsString>,
    /// What stands before the command's name, and after it.
    before: Vec<OsString>,
    after: Vec<OsString>,
    /// Arguments without a name that flags have named.
    places: Vec<OsString>,
}

impl Call {
    /// Takes the arguments of the command at `name` apart.
    fn new(args: &[OsString], name: usize, command: &str) -> Result<Self> {
        let mut call = Self { db: None, before: vec![args[0].clone()], after: Vec::new(), places: Vec::new() };
        let mut i = 1;
        while let Some(arg) = args.get(i) {
            let at = i;
            i += 1;
            if at == name {
                continue;
            }
            let is_global = GLOBAL.iter().any(|g| arg == g) || WITH_VALUE.iter().any(|w| starts(arg, w));
            let target = if at < name && is_global { &mut call.before } else { &mut call.after };
            if let Some(dir) = arg.as_bytes().strip_prefix(b"--db=") {
                call.db = Some(OsStr::from_bytes(dir).to_owned());
            } else if arg == "--db" && i < args.len() {
                call.db = Some(args[i].clone());
                i += 1;
            } else if WITH_VALUE.iter().any(|w| arg == w) {
                target.push(arg.clone());
                target.extend(args.get(i).cloned());
                i += 1;
            } else {
                match flags::translate(command, arg)? {
                    Flag::Is(arg) => target.push(arg),
                    Flag::Place(arg) => call.places.push(arg),
                    Flag::Done => {}
                }
            }
        }
        Ok(call)
    }

    /// True if an argument has no name.
    fn has_words(&self) -> bool {
        self.after.iter().any(|arg| !starts(arg, "-"))
    }
}

/// Translates a call in `ldb`'s style. Others are not changed; the parser checks them.
pub fn translate(args: Vec<OsString>, command: &Command) -> Result<Vec<OsString>> {
    // Everything after -- is a key or a value.
    let end = args.iter().position(|a| a == "--").unwrap_or(args.len());
    let is_value = |i: usize| WITH_VALUE.iter().any(|o| args[i - 1] == *o) || args[i - 1] == "--db";
    let instead_of = |arg: &OsStr| flags::instead_of(&arg.to_str()?.replace('-', "_"));
    let names_command = |i: &usize| {
        let arg = &args[*i];
        let ours = command.find_subcommand(arg).is_some() || TRANSLATED.iter().any(|t| arg == t);
        !is_value(*i) && (ours || instead_of(arg).is_some())
    };
    let Some(at) = (1..end).find(names_command) else { return Ok(args) };
    let name = args[at].to_string_lossy().replace('-', "_");
    if let Some(instead) = instead_of(&args[at]) {
        return Err(CliError::usage(format!("ldb's {name} is not there")).hint(instead));
    }
    let names_file = |arg: &OsString| FILES.iter().any(|f| starts(arg, &format!("{f}=")));
    let has_db = args[1..end].iter().enumerate().any(|(i, a)| starts(a, "--db=") || (a == "--db" && i + 2 < end));
    if !has_db && !args[1..end].iter().any(names_file) {
        return Ok(args);
    }
    let call = Call::new(&args[..end], at, &name)?;
    let same = || vec![args[at].clone()];
    let (words, db_at_end): (Vec<OsString>, bool) = match name.as_str() {
        "dump" | "manifest_dump" | "dump_wal" if !call.places.is_empty() => (vec!["dump".into()], false),
        "dump" if !call.has_words() => (vec!["dump-entries".into()], false),
        "manifest_dump" if !call.has_words() => (vec!["dump-manifest".into()], false),
        "backup" if !call.has_words() => (vec!["backup".into(), "create".into()], false),
        "restore" => (vec!["backup".into(), "restore".into()], true),
        "change_compaction_style" => (vec!["set-options".into()], false),
        "load" if !call.has_words() => {
            return Err(CliError::usage("ldb's load without a file is not there").hint(
                "`rockmill load DB FILE` reads tsv, csv, jsonl and lines; `rockmill load DB - --format tsv` reads \
                 keys and values with a tab between them from standard input",
            ));
        }
        _ if command.find_subcommand(&args[at]).is_some_and(takes_directory) => (same(), false),
        _ => return Ok(args),
    };
    // A dump of one file needs no database.
    let db = call.db.filter(|_| words != ["dump"]);
    let (first, last) = if db_at_end { (None, db) } else { (db, None) };
    let parts = call.before.into_iter().chain(words).chain(first).chain(call.places).chain(last).chain(call.after);
    Ok(parts.chain(args[end..].iter().cloned()).collect())
}

fn starts(arg: &OsStr, with: &str) -> bool {
    arg.as_bytes().starts_with(with.as_bytes())
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
        let placed = translate(args, &crate::shell::command()).expect("a call");
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

    #[test]
    fn names_of_ldb_become_ours() {
        for (ldb, ours) in [
            ("rockmill --db=d --create_if_missing put a 1", "rockmill put d --create a 1"),
            ("rockmill --db=d --json get a --key_hex", "rockmill --json get d a --key-hex"),
            ("rockmill --db=d get a --hex=true --value_hex=false", "rockmill get d a --hex"),
            ("rockmill --db=d dump --count_only", "rockmill dump-entries d --count_only"),
            ("rockmill dump --path=d/1.sst --hex", "rockmill dump d/1.sst --hex"),
            ("rockmill --db=d manifest_dump --verbose", "rockmill dump-manifest d"),
            ("rockmill manifest_dump --path=d/MANIFEST-5", "rockmill dump d/MANIFEST-5"),
            ("rockmill --db=d dump_wal --walfile=d/4.log --header --print_value", "rockmill dump d/4.log"),
            ("rockmill --db=d checkpoint --checkpoint_dir=c", "rockmill checkpoint d c"),
            ("rockmill --db=d backup --backup_dir=b --num_threads=3", "rockmill backup create d b --threads=3"),
            ("rockmill --db=d restore --backup_dir=b", "rockmill backup restore b d"),
            ("rockmill --db=d ingest_extern_sst t.sst --move_files", "rockmill ingest_extern_sst d t.sst --move"),
            (
                "rockmill --db=d change_compaction_style --old_compaction_style=0 --new_compaction_style=1",
                "rockmill set-options d compaction_style=kCompactionStyleUniversal",
            ),
            ("rockmill --db=d compact --compression_type=no", "rockmill compact d --option=compression=kNoCompression"),
            ("rockmill --db=d put --file_size=9 a 1", "rockmill put d --option=target_file_size_base=9 a 1"),
            (
                "rockmill --db=d put --auto_compaction=false a 1 --fix_prefix_len=3",
                "rockmill put d --option=disable_auto_compactions=true a 1 --option=prefix_extractor=fixed:3",
            ),
            ("rockmill --db=d --try_load_options get a", "rockmill get d a"),
            ("rockmill --db=d --try_load_options=false get a", "rockmill get d --ignore-stored-options a"),
            ("rockmill --db=d put a 1 -- --db=x --key_hex", "rockmill put d a 1 -- --db=x --key_hex"),
        ] {
            assert_eq!(placed(ldb), ours);
        }
    }

    #[test]
    fn what_is_not_there_is_refused_with_what_to_use() {
        for (line, message, hint) in [
            ("rockmill --db=d reduce_levels --new_levels=3", "reduce_levels is not there", "compact"),
            ("rockmill write_extern_sst t.sst", "write_extern_sst is not there", "write-sst"),
            ("rockmill --db=d get a --secondary_path=s", "--secondary_path is not there", "take no lock"),
            ("rockmill --db=d scan --timestamp", "--timestamp is not there", "open_with_ttl"),
            ("rockmill --db=d load", "load without a file", "--format tsv"),
            ("rockmill --db=d put a 1 --file_size=big", "--file_size=big: not a value", ""),
            ("rockmill --db=d put a 1 --compression_type=best", "not a value", ""),
            ("rockmill --db=d backup --backup_dir", "--backup_dir=PATH", ""),
            ("rockmill --db=d ingest_extern_sst t --allow_global_seqno=false", "always on", ""),
            ("rockmill --db=d change_compaction_style --new_compaction_style=2", "not a value", "1 universal"),
        ] {
            let args = line.split(' ').map(OsString::from).collect();
            let refused = translate(args, &crate::shell::command()).expect_err(line);
            assert!(refused.message.contains(message), "{line}: {refused}");
            assert!(refused.hint.unwrap_or_default().contains(hint), "{line}");
            assert_eq!(refused.code, crate::error::EXIT_USAGE);
        }
    }
}
