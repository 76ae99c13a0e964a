//! Stored paths that lead out of a directory: commands stay inside unless the command line says otherwise.

mod cli_support;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use cli_support::{Done, Sandbox};

/// Every file below a directory.
fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut out = BTreeMap::new();
    for entry in fs::read_dir(dir).expect("listed") {
        let path = entry.expect("an entry").path();
        match path.is_dir() {
            true => out.extend(contents(&path)),
            false => drop(out.insert(path.clone(), fs::read(&path).expect("read"))),
        }
    }
    out
}

fn is_options(path: &Path) -> bool {
    path.to_string_lossy().contains("OPTIONS-")
}

fn is_info_log(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("LOG"))
}

/// Adds a line to the section of database options in the newest OPTIONS file.
fn plant(s: &Sandbox, db: &str, line: &str) {
    let file = s.files(db, "").into_iter().rfind(|p| is_options(p)).expect("options");
    let text = fs::read_to_string(&file).expect("text");
    let name = line.split_once('=').expect("name=value").0;
    let kept: Vec<&str> = text.lines().filter(|l| !l.trim().starts_with(&format!("{name}="))).collect();
    let text = kept.join("\n").replacen("[DBOptions]", &format!("[DBOptions]\n  {line}"), 1);
    fs::write(file, text + "\n").expect("written");
}

/// Commands that open a database with its stored options. The first ones only read.
const COMMANDS: [&[&str]; 14] = [
    &["get", "db", "key000001"],
    &["scan", "db", "--limit", "1"],
    &["stats", "db"],
    &["put", "db", "a", "1"],
    &["delete", "db", "a"],
    &["load", "db", "rows.csv", "--format", "csv"],
    &["ingest", "db", "t.sst"],
    &["compact", "db"],
    &["downgrade", "db"],
    &["create-cf", "db", "new"],
    &["drop-cf", "db", "other"],
    &["checkpoint", "db", "copy"],
    &["backup", "create", "db", "backups"],
    &["put", "db", "b", "1", "--create"],
];
const READERS: usize = 3;

#[test]
fn no_command_follows_a_stored_wal_dir_out_of_the_directory() {
    let s = Sandbox::new();
    s.file("rows.csv", "k,v\n");
    s.ok(&["write-sst", "t.sst", "rows.csv", "--format", "csv"]);
    // WALs of another database, made by a store that does not record their owner; and WALs of one of ours.
    for (outside, owned) in [("outside", false), ("owned", true)] {
        s.ok(&["put", "theirs", "precious", "1", "--create", "--option", &format!("wal_dir={outside}")]);
        if !owned {
            fs::remove_file(s.path("outside/WAL_OWNER")).expect("removed");
        }
        let outside = s.path(outside);
        s.database("db", 200);
        s.ok(&["create-cf", "db", "other"]);
        // The other database's marker may be written here.
        if owned {
            fs::copy(s.path("theirs/WAL_OWNER"), s.path("db/WAL_OWNER")).expect("copied");
        }
        fs::remove_dir_all(s.path("theirs")).expect("removed");
        plant(&s, "db", &format!("wal_dir={}", outside.display()));
        let before = (contents(&outside), contents(&s.path("db")));
        for command in COMMANDS {
            let done: Done = s.run(command);
            let text = done.stderr;
            assert!(done.code != 0 && text.contains("wal_dir") && text.contains("--wal-dir"), "{command:?}: {text}");
            assert!(
                text.contains("--trust-paths") && text.contains(&*outside.to_string_lossy()),
                "{command:?}: {text}"
            );
            assert_eq!(contents(&outside), before.0, "{command:?}");
            assert_eq!(contents(&s.path("db")), before.1, "{command:?}");
        }
        let found = s.run(&["verify", "db"]).fails(1, &["problem"]).text();
        assert!(found.contains("the WALs were not checked") && found.contains("--wal-dir"), "{found}");
        s.ok(&["options", "db"]);
        s.ok(&["list-cf", "db"]);
        assert!(s.ok(&["repair", "db"]).contains("not read: the WALs in"));
        assert_eq!(contents(&outside), before.0, "repair");
        // An explicit WAL directory is accepted.
        if !owned {
            s.ok(&["get", "db", "key000001", "--option", "wal_dir="]);
            // But WALs that the MANIFEST does not know still belong to another database.
            for command in [&["get", "db", "key000001"][..], &["put", "db", "a", "1"], &["compact", "db"]] {
                for flags in [&["--trust-paths"][..], &["--wal-dir", "outside"]] {
                    s.run(&[command, flags].concat()).fails(2, &["holds WALs", "`rockmill repair --wal-dir`"]);
                    assert_eq!(contents(&outside), before.0, "{command:?}");
                }
            }
            fs::create_dir(s.path("empty")).expect("made");
            plant(&s, "db", &format!("wal_dir={}", s.path("empty").display()));
            s.ok(&["get", "db", "key000001", "--trust-paths"]);
            s.ok(&["put", "db", "a", "1", "--trust-paths"]);
        }
        fs::remove_dir_all(s.path("db")).expect("removed");
    }
}

/// Without the stored options, only the database's own files tell where its WALs are. RocksDB does not create
/// WAL_OWNER.
#[test]
fn a_database_is_not_opened_without_its_wals_because_its_options_are_left_out() {
    let s = Sandbox::new();
    s.ok(&["put", "db", "k", "v", "--create", "--option", "wal_dir=wals"]);
    s.file(
        "OPTIONS",
        fs::read(s.files("db", "").into_iter().rfind(|p| is_options(p)).expect("options")).expect("text"),
    );
    let text = fs::read_to_string(s.path("OPTIONS")).expect("text").replace("wal_dir=", "#");
    s.file("OPTIONS", text.lines().filter(|l| !l.contains('#')).collect::<Vec<_>>().join("\n") + "\n");
    for owned in [true, false] {
        if !owned {
            for dir in ["db", "wals"] {
                fs::remove_file(s.path(dir).join("WAL_OWNER")).expect("removed");
            }
        }
        for command in COMMANDS.iter().filter(|c| !["load", "ingest", "create-cf", "drop-cf"].contains(&c[0])) {
            for flags in [&["--ignore-stored-options"][..], &["--options", "OPTIONS"]] {
                let before = (contents(&s.path("wals")), contents(&s.path("db")));
                let done = s.run(&[*command, flags].concat());
                let told = ["WALs", "wals", "--wal-dir"].iter().all(|what| done.stderr.contains(what));
                assert!(done.code >= 2 && told, "{command:?}: {}", done.stderr);
                assert_eq!((contents(&s.path("wals")), contents(&s.path("db"))), before, "{command:?}");
            }
        }
        let found = s.ok(&["get", "db", "k", "--ignore-stored-options", "--wal-dir", "wals"]);
        assert_eq!(found.trim(), "v");
    }
}

/// If the WAL directory is lost, the data in tables is still accessible with the options that the error message names.
#[test]
fn a_database_whose_wals_are_lost_is_opened_by_options_that_say_so() {
    let s = Sandbox::new();
    s.ok(&["put", "db", "a", "1", "--create", "--option", "wal_dir=wals"]);
    // This open writes the contents of the WALs as a table.
    s.ok(&["put", "db", "b", "2"]);
    fs::rename(s.path("wals"), s.path("away")).expect("a rename");
    let here = ["--option", "wal_dir="];
    let lost = ["--option", "wal_dir=", "--option", "wal_recovery_mode=kSkipAnyCorruptedRecords"];
    for command in [&["get", "db", "a"][..], &["put", "db", "c", "3"]] {
        let before = contents(&s.path("db")).into_iter().filter(|(path, _)| !is_info_log(path));
        let before: BTreeMap<_, _> = before.collect();
        assert!(s.run(command).code >= 2, "{command:?}: done");
        let done = s.run(&[command, &here].concat());
        let told = ["wals", ".log", "mounted", "kSkipAnyCorruptedRecords"];
        assert!(done.code >= 2 && told.iter().all(|what| done.stderr.contains(what)), "{}", done.stderr);
        let mut after = contents(&s.path("db"));
        after.retain(|path, _| !is_info_log(path));
        assert!(after == before, "{command:?} changed something");
    }
    assert_eq!(s.ok(&[&["get", "db", "a"][..], &lost].concat()), "1");
    s.ok(&[&["put", "db", "c", "3"][..], &lost].concat());
    // From here on nobody is asked.
    assert_eq!(s.ok(&["get", "db", "a"]), "1");
    assert_eq!(s.ok(&["get", "db", "c"]), "3");
    assert!(s.run(&["get", "db", "b"]).code != 0, "it was in the WALs alone");
}

#[test]
fn a_directory_that_a_stored_path_names_is_not_made() {
    let s = Sandbox::new();
    s.file("rows.csv", "k,v\n");
    s.ok(&["write-sst", "t.sst", "rows.csv", "--format", "csv"]);
    for option in ["wal_dir", "db_log_dir"] {
        s.database("db", 200);
        s.ok(&["create-cf", "db", "other"]);
        let outside = s.path("outside");
        plant(&s, "db", &format!("{option}={}", outside.display()));
        for (i, command) in COMMANDS.iter().enumerate() {
            let done = s.run(command);
            // Reading writes no log.
            let reads = option == "db_log_dir" && i < READERS;
            assert_eq!(done.code == 0, reads, "{option}, {command:?}: {}", done.stderr);
            assert!(reads || done.stderr.contains(option), "{option}, {command:?}: {}", done.stderr);
            assert!(!outside.exists(), "{option}, {command:?}");
        }
        // The writing commands first: they create it.
        for command in COMMANDS.into_iter().rev() {
            s.ok(&[command, &["--trust-paths"]].concat());
        }
        assert!(outside.exists(), "{option}");
        for made in ["db", "copy", "backups", "outside"] {
            fs::remove_dir_all(s.path(made)).expect("removed");
        }
    }
}

#[test]
fn paths_within_the_directory_and_those_that_agree_need_no_flag() {
    let s = Sandbox::new();
    let inside = s.path("db/wals").display().to_string();
    s.ok(&["put", "db", "a", "1", "--create", "--option", &format!("wal_dir={inside}")]);
    s.ok(&["put", "db", "b", "2"]);
    assert_eq!(s.ok(&["get", "db", "a"]), "1");
    // With another name of the directory, and with a relative one.
    std::os::unix::fs::symlink("db", s.path("linked")).expect("a link");
    assert_eq!(s.ok(&["get", "linked", "b"]), "2");
    // A link within the directory leads out of it.
    fs::rename(s.path("db/wals"), s.path("away")).expect("a rename");
    std::os::unix::fs::symlink("../away", s.path("db/wals")).expect("a link");
    fs::remove_file(s.path("away/WAL_OWNER")).expect("removed");
    s.run(&["get", "db", "b"]).fails(3, &["wal_dir", "--wal-dir"]);
    assert_eq!(s.ok(&["get", "db", "b", "--wal-dir", "away"]), "2");
    s.ok(&["put", "db", "c", "3", "--wal-dir", "away"]);
    // From here on it is stored, and the directory says whose it is.
    assert_eq!(s.ok(&["get", "db", "b"]), "2");
    assert_eq!(s.ok(&["get", "db", "c"]), "3");
    s.ok(&["verify", "db"]);
    // A moved database is not the one that the WAL directory names: needs the flag once, then no more.
    fs::rename(s.path("db"), s.path("moved")).expect("a rename");
    s.run(&["put", "moved", "d", "4"]).fails(3, &["wal_dir", "--wal-dir"]);
    s.ok(&["put", "moved", "d", "4", "--trust-paths"]);
    assert_eq!(s.ok(&["get", "moved", "c"]), "3");
}

/// Copying a database file by file also copies the marker of the WALs' owner.
#[test]
fn a_copy_made_file_by_file_does_not_take_the_originals_wals() {
    let s = Sandbox::new();
    s.ok(&["put", "db", "a", "1", "--create", "--option", &format!("wal_dir={}", s.path("wals").display())]);
    let copied = std::process::Command::new("cp").args(["-a", "db", "copy"]).current_dir(s.dir.path()).status();
    assert!(copied.expect("cp").success());
    let before = contents(&s.path("wals"));
    for command in [&["put", "copy", "b", "2", "--trust-paths"][..], &["get", "copy", "a", "--trust-paths"]] {
        let text = s.run(command).fails(2, &["copy of it"]).stderr;
        assert!(text.contains("wal_dir of its own"), "{text}");
        assert_eq!(contents(&s.path("wals")), before, "{command:?}");
    }
    assert!(s.ok(&["repair", "copy"]).contains("not read: the WALs in"));
    assert_eq!(contents(&s.path("wals")), before);
    assert_eq!(s.ok(&["get", "db", "a"]), "1");
}

/// Tables in two directories: every command that gets both finds them; without them, it reports what is missing.
#[test]
fn commands_are_told_where_tables_are() {
    let s = Sandbox::new();
    let paths = "{{path=fast;target_size=1}:{path=slow}}";
    s.file("rows.csv", (0..2000).map(|i| format!("k{i:05},value {i}\n")).collect::<String>());
    s.ok(&["load", "db", "rows.csv", "--format", "csv", "--db-paths", paths]);
    s.ok(&["compact", "db", "--db-paths", paths, "--option", "disable_auto_compactions=true"]);
    s.ok(&["put", "db", "k", "v", "--db_paths", paths]);
    assert!(!s.files("fast", ".sst").is_empty() && s.files("db", ".sst").is_empty());
    assert_eq!(s.ok(&["get", "db", "k00007", "--db-paths", paths]).trim(), "value 7");
    let tables = s.files("fast", ".sst").len() + s.files("slow", ".sst").len();
    let done = s.json(&["verify", "db", "--db-paths", paths]);
    assert_eq!((done["ok"].as_bool(), done["tables"].as_u64()), (Some(true), Some(tables as u64)), "{done}");
    s.ok(&["stats", "db", "--db-paths", paths]);
    // A stray table is reported, and so is one in the wrong place.
    s.file("slow/999999.sst", "stray");
    let done = s.ok(&["verify", "db", "--db-paths", paths]);
    assert!(done.contains("999999.sst") && done.contains("orphan"), "{done}");
    let done = s.run(&["get", "db", "k"]);
    assert!(done.code != 0 && done.stderr.contains("missing"), "{}", done.stderr);
    let done = s.run(&["verify", "db"]);
    assert!(done.code == 1 && done.text().contains("missing"), "{}", done.text());
    s.run(&["get", "db", "k", "--db-paths", "fast"]).fails(2, &["--db-paths"]);
    // None of it is stored, and such an entry in the file is ignored.
    for file in s.files("db", "").iter().filter(|p| is_options(p)) {
        let text = fs::read_to_string(file).expect("text");
        assert!(!text.contains("paths"), "{text}");
        fs::write(file, text.replace("[DBOptions]", &format!("[DBOptions]\n  db_paths={paths}"))).expect("written");
    }
    let done = s.run(&["put", "db", "a", "1", "--db-paths", paths]);
    assert!(done.code != 0 && done.stderr.contains("db_paths"), "{}", done.stderr);
    let flags = ["--ignore-stored-options", "--db-paths", paths];
    assert_eq!(s.ok(&[&["get", "db", "k"], &flags[..]].concat()).trim(), "v");
    fs::remove_file(s.path("db/CURRENT")).expect("removed");
    s.ok(&["repair", "db", "--db-paths", paths]);
    assert_eq!(s.ok(&[&["get", "db", "k00007"], &flags[..]].concat()).trim(), "value 7");
}

/// Values exist only in logs on another device: every command finds them, by flag or by the stored options, and copies
/// do not need that device.
#[test]
fn commands_know_a_database_with_a_fast_path() {
    let s = Sandbox::new();
    let fast = ["--fast-path", "fast", "--fast-capacity", "8M"];
    let all = |command: &[&'static str]| -> Vec<&'static str> { [command, &fast].concat() };
    s.file("rows.csv", (0..2000).map(|i| format!("k{i:05},value {i} {}\n", "x".repeat(200))).collect::<String>());
    s.ok(&all(&["load", "db", "rows.csv", "--format", "csv", "--batch", "20"]));
    let logs = s.files("fast", ".log");
    let log = logs.iter().find(|log| fs::metadata(log).is_ok_and(|m| m.len() > 0)).expect("a log with records");
    let log = log.strip_prefix(s.path("")).expect("in the sandbox").display().to_string();
    assert!(s.files("db", ".sst").is_empty() && s.files("db", ".log").is_empty(), "something was flushed");
    let value = |found: String| assert!(found.starts_with("value 1234 x"), "{found}");
    value(s.ok(&all(&["get", "db", "k01234"])));
    value(s.ok(&["get", "db", "k01234"]));
    assert_eq!(s.ok(&all(&["scan", "db", "--count"])).trim(), "2000");
    let done = s.json(&["verify", "db"]);
    assert!(done["ok"] == true && done["wal_records"].as_u64() > Some(10), "{done}");
    assert!(s.ok(&["dump", &log]).contains("'k00000'"));
    s.ok(&all(&["stats", "db"]));
    // Changes a bit of a value that is in no table.
    let sound = fs::read(s.path(&log)).expect("read");
    let mut damaged = sound.clone();
    damaged[sound.len() / 2] ^= 1;
    fs::write(s.path(&log), damaged).expect("written");
    let done = s.run(&["verify", "db"]);
    assert!(done.code == 1 && done.text().contains(".log"), "{}", done.text());
    fs::write(s.path(&log), sound).expect("written");
    // Copies are databases without a second device.
    s.ok(&all(&["checkpoint", "db", "copy"]));
    s.ok(&all(&["backup", "create", "db", "backups"]));
    s.ok(&["backup", "restore", "backups", "restored"]);
    for copy in ["copy", "restored"] {
        value(s.ok(&["get", copy, "k01234"]));
        assert_eq!(s.ok(&["scan", copy, "--count"]).trim(), "2000", "{copy}");
    }
    // Only the logs have the last loaded entries.
    s.file("more.csv", "k99999,more\n");
    s.ok(&all(&["load", "db", "more.csv", "--format", "csv"]));
    fs::remove_file(s.path("db/CURRENT")).expect("removed");
    s.ok(&["repair", "db"]);
    assert_eq!(s.ok(&["get", "db", "k99999"]), "more");
    assert_eq!(s.ok(&all(&["scan", "db", "--count"])).trim(), "2001");
}
