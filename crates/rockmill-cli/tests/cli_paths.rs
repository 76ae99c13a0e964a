//! Paths that a database's files name: they lead no command out of the directory, unless a flag says so.

mod cli_support;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use cli_support::{ROCKMILL, Sandbox};
use rockmill_skip::{Needs, skip};

/// A user that owns nothing else.
const NOBODY: u32 = 65534;

/// Puts a line into the database's section of its newest OPTIONS file.
fn plant(s: &Sandbox, db: &str, line: &str) {
    let entries = fs::read_dir(s.path(db)).expect("a database").map(|e| e.expect("an entry").path());
    let file = entries.filter(|p| p.to_string_lossy().contains("OPTIONS-")).max().expect("an OPTIONS file");
    let text = fs::read_to_string(&file).expect("read");
    let name = line.split_once('=').expect("an option").0;
    let kept: Vec<&str> = text.lines().filter(|l| !l.trim().starts_with(&format!("{name}="))).collect();
    let text = kept.join("\n").replacen("[DBOptions]", &format!("[DBOptions]\n  {line}"), 1);
    fs::write(&file, text + "\n").expect("written");
}

/// Every entry of a directory with its time and contents.
fn state(dir: &Path) -> Vec<(PathBuf, i64, i64, Option<Vec<u8>>)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir).expect("listed") {
        let path = entry.expect("an entry").path();
        let meta = fs::symlink_metadata(&path).expect("there");
        all.push((
            path.clone(),
            meta.mtime(),
            meta.mtime_nsec(),
            meta.is_file().then(|| fs::read(&path).expect("read")),
        ));
    }
    all.sort();
    all
}

/// Commands that open `db` to read it.
const READ: [&[&str]; 5] =
    [&["get", "db", "a"], &["scan", "db"], &["stats", "db"], &["verify", "db"], &["compact", "db", "--explain"]];
/// Commands that open it to write.
const WRITE: [&[&str]; 11] = [
    &["put", "db", "b", "2"],
    &["delete", "db", "a"],
    &["load", "db", "rows.tsv"],
    &["ingest", "db", "rows.sst"],
    &["compact", "db"],
    &["downgrade", "db"],
    &["create-cf", "db", "more"],
    &["drop-cf", "db", "other"],
    &["backup", "create", "db", "backups"],
    &["checkpoint", "db", "copy"],
    &["repair", "db"],
];

fn as_user(s: &Sandbox, user: Option<u32>, args: &[&str]) -> std::io::Result<(i32, String)> {
    let mut command = Command::new("timeout");
    command.args(["120", ROCKMILL]).args(args).current_dir(s.dir.path());
    if let Some(user) = user {
        command.uid(user).gid(user);
    }
    let done = command.output()?;
    Ok((done.status.code().unwrap_or(-1), String::from_utf8_lossy(&done.stderr).into_owned()))
}

fn give(path: &Path, user: u32) {
    chown(path, Some(user), Some(user)).expect("given away");
    if path.is_dir() {
        fs::read_dir(path).expect("listed").for_each(|e| give(&e.expect("an entry").path(), user));
    }
}

/// Numbered logs and tables of somebody else are neither read, moved nor deleted, and nothing is made beside them.
fn nothing_outside(user: Option<u32>) {
    let s = Sandbox::new();
    let outside = s.path("outside");
    fs::create_dir(&outside).expect("made");
    for name in ["000001.log", "000099.log", "000005.sst", "precious"] {
        fs::write(outside.join(name), "precious").expect("written");
    }
    s.file("rows.tsv", "x\t1\n");
    s.ok(&["write-sst", "rows.sst", "rows.tsv"]);
    let there = outside.display().to_string();
    let before = state(&outside);
    for option in ["wal_dir", "db_log_dir"] {
        for path in [&there, "outside", "db/../outside", "DB/link", "DB/../outside/new"] {
            let _ = fs::remove_dir_all(s.path("db"));
            s.ok(&["put", "db", "a", "1", "--create"]);
            s.ok(&["create-cf", "db", "other"]);
            symlink(&outside, s.path("db/link")).expect("linked");
            plant(&s, "db", &format!("{option}={}", path.replace("DB", &s.path("db").display().to_string())));
            if let Some(user) = user {
                fs::set_permissions(s.dir.path(), fs::Permissions::from_mode(0o755)).expect("a mode");
                give(&s.path("db"), user);
                give(&outside, user);
            }
            for args in READ.iter().chain(&WRITE) {
                // A place for logs is of no interest to who writes none.
                let passes = option == "db_log_dir" && (READ.contains(args) || args[0] == "repair");
                // A directory that is not there has no WALs, which the report says.
                let passes = passes || args[0] == "repair" && path.ends_with("new");
                let passes = passes || args[0] == "verify" && path.ends_with("new");
                let (code, said) = match as_user(&s, user, args) {
                    Ok(done) => done,
                    Err(e) => {
                        let missing = Needs::Root.because(format!("another user cannot start the command: {e}"));
                        return skip("a_stored_path_leads_no_command_out_of_the_directory", &missing);
                    }
                };
                if !passes {
                    assert_ne!(code, 0, "{option}={path}: {args:?} went on");
                    assert!(said.contains(option) && said.contains("--trust-paths"), "{args:?}: {said}");
                    assert!(said.contains(&format!("--{}", option.replace('_', "-"))), "{args:?}: {said}");
                }
                assert_eq!(state(&outside), before, "{option}={path}: {args:?}");
                assert!(!s.path("copy").exists() && !s.path("backups").exists(), "{option}={path}: {args:?}");
            }
            for args in [&["options", "db"][..], &["list-cf", "db"], &["dump", "db/CURRENT"]] {
                s.ok(args);
            }
            assert!(as_user(&s, None, &["dump", "db"]).expect("run").0 != 0);
            assert_eq!(state(&outside), before, "{option}={path}");
        }
    }
}

#[test]
fn a_stored_path_leads_no_command_out_of_the_directory() {
    nothing_outside(None);
    if fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0) {
        nothing_outside(Some(NOBODY));
    } else {
        let missing = Needs::Root.because("the test runs commands as two users");
        skip("a_stored_path_leads_no_command_out_of_the_directory", &missing);
    }
}

/// WALs and logs elsewhere that are the database's own: any of three flags, for every command; and places inside of the
/// directory need none.
#[test]
fn a_place_outside_is_one_flag_away() {
    let s = Sandbox::new();
    let (wals, logs) = (s.path("wals").display().to_string(), s.path("logs").display().to_string());
    s.ok(&["put", "db", "a", "1", "--create", "--wal-dir", "wals", "--db-log-dir", "logs"]);
    assert!(s.files("logs", "LOG").len() == 1 && !s.files("wals", ".log").is_empty());
    let wal_option = format!("wal_dir={wals}");
    let log_option = format!("db_log_dir={logs}");
    let both = ["--wal-dir", &wals, "--db-log-dir", &logs];
    let named = ["--option", &wal_option, "--option", &log_option];
    for flags in [&both[..], &named, &["--trust-paths"]] {
        s.ok(&[&["put", "db", "a", "2"], flags].concat());
        assert_eq!(s.ok(&[&["get", "db", "a"], flags].concat()), "2");
        assert_eq!(s.ok(&[&["scan", "db"], flags].concat()), "a\t2\n");
        s.ok(&[&["compact", "db"], flags].concat());
    }
    for flags in [&["--wal-dir", "wals", "--db-log-dir", "logs"][..], &["--trust-paths"]] {
        s.ok(&[&["create-cf", "db", "other"], flags].concat());
        s.ok(&[&["drop-cf", "db", "other"], flags].concat());
        s.ok(&[&["backup", "create", "db", "backups"], flags].concat());
        s.ok(&[&["checkpoint", "db", "copy"], flags].concat());
        assert_eq!(s.ok(&["get", "copy", "a", "--db-log-dir", "logs"]), "2");
        fs::remove_dir_all(s.path("copy")).expect("removed");
        s.ok(&[&["verify", "db"], &flags[..flags.len().min(2)]].concat());
        s.ok(&[&["repair", "db"], &flags[..flags.len().min(2)]].concat());
        assert_eq!(s.ok(&["get", "db", "a", "--wal-dir", "wals"]), "2");
    }
    // Inside, and the directory itself by other names.
    for path in [s.path("own/wals"), s.path("own"), PathBuf::from("own/wals")] {
        s.ok(&["put", "own", "k", "v", "--create"]);
        plant(&s, "own", &format!("wal_dir={}", path.display()));
        s.ok(&["put", "own", "k", "w"]);
        assert_eq!(s.ok(&["get", "own", "k"]), "w");
        s.ok(&["verify", "own"]);
        fs::remove_dir_all(s.path("own")).expect("removed");
    }
}
