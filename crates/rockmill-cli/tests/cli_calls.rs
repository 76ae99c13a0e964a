//! Help, usage errors, exit codes, locks and pipes.

mod cli_support;

use std::io::Read;
use std::process::{Command, Stdio};

use cli_support::{ROCKMILL, Sandbox};
use rockmill_skip::{Needs, skip};
use serde_json::Value;

const COMMANDS: [&str; 19] = [
    "load",
    "put",
    "merge",
    "get",
    "multi-get",
    "delete",
    "scan",
    "stats",
    "flush",
    "compact",
    "downgrade",
    "verify",
    "dump",
    "set-options",
    "list-cf",
    "create-cf",
    "drop-cf",
    "shell",
    "stress",
];

#[test]
fn every_command_has_help_with_an_example() {
    let s = Sandbox::new();
    let top = s.ok(&["--help"]);
    assert!(top.contains("Exit codes:") && top.contains("Examples:"), "{top}");
    for command in COMMANDS {
        assert!(top.contains(&format!("  {command} ")), "{command} is not listed:\n{top}");
        let help = s.ok(&[command, "--help"]);
        assert!(help.contains("Examples:"), "{help}");
        assert!(help.contains(&format!("  rockmill {command} ")), "{help}");
        for global in ["--json", "--quiet"] {
            assert!(help.contains(global), "{command} --help has no {global}");
        }
        let whole = ["downgrade", "verify", "dump", "list-cf", "create-cf", "drop-cf", "stress"].contains(&command);
        let family = help.contains("--column-family <NAME>");
        assert_ne!(family, whole, "{command} works on a column family, or on the whole database");
        // What a command has of its own comes before what all of them have.
        let options =
            help.split("\nOptions:\n").nth(1).and_then(|t| t.split("\n\n  -h, --help").next()).expect("options");
        let common = options.split("      --json").nth(1).expect("--json");
        assert!(common.matches("\n      --").count() <= usize::from(family), "{command}:\n{options}");
        assert!(help.lines().all(|l| l.chars().count() <= 120), "{help}");
    }
    assert!(s.ok(&["--version"]).starts_with("rockmill "));
}

/// RocksDB's tools take the option everywhere, so it is no error: but nobody must think that it was obeyed.
#[test]
fn an_option_that_does_not_apply_is_said_to_be_ignored() {
    let s = Sandbox::new();
    s.ok(&["put", "db", "k", "v", "--create"]);
    for call in [&["verify", "db"][..], &["list-cf", "db"], &["backup", "create", "db", "to"]] {
        let done = s.run(&[call, &["--column-family", "other"]].concat());
        let said = format!("note: --column-family other is ignored: it does not apply to {}", call[0]);
        assert!(done.code == 0 && done.stderr.contains(&said), "{call:?}: {}", done.stderr);
        assert!(!s.run(call).stderr.contains("ignored"), "{call:?}");
    }
}

/// `--db=DIR`, `ldb`'s names of commands and options, and `db_bench`'s underscores.
#[test]
fn calls_in_the_style_of_rocksdbs_tools_are_understood() {
    let s = Sandbox::new();
    s.ok(&["put", "--db=db", "k1", "v1", "--create", "--write_buffer_size=1M"]);
    s.ok(&["--db", "db", "put", "k2", "v2"]);
    assert_eq!(s.ok(&["--db=db", "get", "k1"]), "v1");
    assert_eq!(s.ok(&["--db=db", "scan", "--max_keys=1", "--no_value"]), "k1\n");
    assert!(s.ok(&["multi_get", "--db=db", "k1", "k2"]).contains("v2"));
    s.ok(&["create_column_family", "--db=db", "sessions"]);
    assert!(s.ok(&["list_column_families", "--db=db"]).contains("sessions"));
    s.ok(&["put", "--db=db", "--column_family=sessions", "s", "1"]);
    assert_eq!(s.ok(&["--column_family", "sessions", "--db=db", "get", "s"]), "1");
    s.ok(&["drop_column_family", "--db=db", "sessions"]);
    s.ok(&["checkconsistency", "--db=db"]);
    s.ok(&["--db=db", "batchput", "k3", "v3", "k4", "v4"]);
    s.run(&["--db=db", "batchput", "k3", "v3", "k4"]).fails(2, &["\"k4\" has no value"]);
    s.run(&["--db=none", "batchput", "k3", "v3"]).fails(3, &["none: no such directory", "--create"]);
    s.ok(&["--db=new", "batchput", "--create_if_missing", "k", "v"]);
    s.ok(&["--db=db", "deleterange", "k2", "k4"]);
    assert_eq!(s.ok(&["--db=db", "scan", "--no_value"]), "k1\nk4\n");
    s.ok(&["--db=db", "flush"]);
    let bytes: u64 = s.ok(&["--db=db", "approxsize", "--from=k", "--to=l"]).trim().parse().expect("a number");
    assert!(bytes > 0);
    assert_eq!(s.ok(&["--db=db", "approxsize", "--from=l", "--to=m"]), "0\n");
    let levels = s.ok(&["--db=db", "get_property", "rocksdb.num-files-at-level0"]);
    assert!(levels.starts_with("rocksdb.num-files-at-level0: ") && levels.ends_with('\n'), "{levels}");
    s.run(&["--db=db", "get_property", "rocksdb.nothing"]).fails(1, &["\"rocksdb.nothing\" not found"]);
    s.run(&["--db=db"]).fails(2, &["--db"]);
}

/// Like `ldb idump`, which prints the same lines where it is there.
#[test]
fn every_version_is_printed_as_ldb_prints_it() {
    let s = Sandbox::new();
    for (key, value) in [("a", "1"), ("b", "1"), ("b", "2"), ("c", "1"), ("d", "1"), ("e", "1")] {
        s.ok(&["put", "db", key, value, "--create", "--option", "disable_auto_compactions=true"]);
    }
    s.ok(&["--db=db", "delete", "c"]);
    s.ok(&["--db=db", "deleterange", "d", "e"]);
    s.ok(&["--db=db", "put", "d", "2"]);
    let lines = s.ok(&["--db=db", "idump"]);
    let versions = [
        "'a' seq:1, type:1 => 1",
        "'b' seq:3, type:1 => 2",
        "'b' seq:2, type:1 => 1",
        "'c' seq:7, type:0 => ",
        "'c' seq:4, type:1 => 1",
        "'d' seq:9, type:1 => 2",
        "'e' seq:6, type:1 => 1",
        "Internal keys in range: 7",
    ];
    assert_eq!(lines.lines().collect::<Vec<_>>(), versions);
    let some = s.ok(&["--db=db", "idump", "--from=0x62", "--to=64", "--input_key_hex", "--hex", "--max_keys=1"]);
    assert_eq!(some, "'62' seq:3, type:1 => 32\nInternal keys in range: 1\n");
    assert_eq!(s.ok(&["--db=db", "idump", "--count_only"]), "Internal keys in range: 7\n");
    let json: Value = serde_json::from_str(&s.ok(&["--db=db", "idump", "--json", "--from=e"])).expect("an object");
    assert_eq!((json["sequence"].as_u64(), json["type"].as_u64()), (Some(6), Some(1)), "{json}");
    s.run(&["--db=db", "idump", "--from=x", "--input_key_hex"]).fails(2, &["--from \"x\" is not hexadecimal"]);
    match rockmill_skip::program("ldb", Needs::Ldb) {
        Ok(ldb) => {
            let done =
                Command::new(ldb).args(["--db=db", "idump"]).current_dir(s.dir.path()).output().expect("ldb runs");
            assert_eq!(String::from_utf8_lossy(&done.stdout), lines, "{done:?}");
        }
        Err(missing) => skip("every_version_is_printed_as_ldb_prints_it", &missing),
    }
}

#[test]
fn wrong_calls_are_told_apart_from_failures() {
    let s = Sandbox::new();
    s.run(&["scan", "db", "--bogus"]).fails(2, &["--bogus"]);
    s.run(&["frobnicate"]).fails(2, &["frobnicate"]);
    s.run(&["get", "db"]).fails(2, &["<KEY>"]);
    assert_eq!(s.run(&[]).code, 2);
    let json = s.run(&["scan", "db", "--bogus", "--json"]);
    assert_eq!(json.code, 2);
    let e: Value = serde_json::from_str(&json.stderr).expect("an error object");
    assert_eq!(e["error"]["kind"], "Usage");

    s.ok(&["put", "db", "k", "v", "--create"]);
    s.run(&["get", "db", "--hex", "xyz"]).fails(2, &["\"xyz\" is not hexadecimal", "hint: "]);
    s.run(&["scan", "db", "--hex", "--from", "0"]).fails(2, &["--from \"0\" is not hexadecimal"]);
    // What was most likely meant is named: flags, commands and options.
    s.run(&["scan", "db", "--limt", "1"]).fails(2, &["--limt", "'--limit'"]);
    s.run(&["veriffy", "db"]).fails(2, &["'verify'"]);
    s.run(&["put", "db", "k", "v", "--option", "write_bufer_size=1M"])
        .fails(2, &["\"write_bufer_size\" is not known", "did you mean write_buffer_size?"]);
    s.run(&["put", "db", "k", "v", "--option", "zzz=1"]).fails(2, &["\"zzz\" is not known"]);
    s.run(&["put", "db", "k", "v", "--bloom-bits", "1000"]).fails(2, &["--bloom-bits"]);
    s.run(&["put", "db", "k", "v", "--format-version", "4"]).fails(2, &["--format-version"]);
}

#[test]
fn what_is_no_database_is_named() {
    let s = Sandbox::new();
    std::fs::create_dir(s.path("empty")).expect("made");
    s.file("file", "x");
    for command in [&["get", "DB", "k"][..], &["scan", "DB"], &["stats", "DB"], &["compact", "DB"], &["verify", "DB"]] {
        let with = |db: &str| s.run(&command.iter().map(|a| if *a == "DB" { db } else { *a }).collect::<Vec<_>>());
        with("missing").fails(3, &["missing: no such directory", "hint: "]);
        with("empty").fails(3, &["empty is not a database", "CURRENT"]);
        with("file").fails(3, &["file is a file"]);
    }
    s.run(&["put", "missing", "k", "v"]).fails(3, &["no such directory"]);
    assert!(!s.path("missing").exists());
    let json = s.run(&["verify", "missing", "--json"]);
    let e: Value = serde_json::from_str(&json.stderr).expect("an error object");
    assert!(e["error"]["hint"].is_string());
}

#[test]
fn a_locked_database_can_be_read_and_not_written() {
    let s = Sandbox::new();
    s.ok(&["put", "db", "k", "v", "--create"]);
    let holder = rockmill::Db::open(&rockmill::Options::default(), s.path("db")).expect("opens");
    for command in [&["put", "db", "k", "w"][..], &["delete", "db", "k"], &["compact", "db"], &["create-cf", "db", "x"]]
    {
        s.run(command).fails(3, &["open elsewhere", "held by process", "hint: close the other process"]);
    }
    let json = s.run(&["put", "db", "k", "w", "--json"]);
    let e: Value = serde_json::from_str(&json.stderr).expect("an error object");
    assert_eq!(e["error"]["kind"], "Busy");
    assert_eq!(s.ok(&["get", "db", "k"]), "v");
    assert_eq!(s.ok(&["scan", "db"]), "k\tv\n");
    s.ok(&["stats", "db"]);
    s.ok(&["verify", "db"]);
    drop(holder);
    s.ok(&["put", "db", "k", "w"]);
}

#[test]
fn an_unknown_comparator_is_refused_by_name() {
    let s = Sandbox::new();
    #[derive(Debug)]
    struct ByLength;
    impl rockmill_format::Comparator for ByLength {
        fn name(&self) -> &str {
            "test.ByLength"
        }
        fn compare(&self, a: &[u8], b: &[u8]) -> std::cmp::Ordering {
            a.len().cmp(&b.len()).then_with(|| a.cmp(b))
        }
        fn find_shortest_separator(&self, _: &mut Vec<u8>, _: &[u8]) {}
        fn find_short_successor(&self, _: &mut Vec<u8>) {}
    }
    {
        let mut options = rockmill::Options::default();
        options.create_if_missing(true);
        let db = rockmill::Db::open(&options, s.path("db")).expect("opens");
        db.put("k", "v").expect("written");
        options.set_comparator_object(std::sync::Arc::new(ByLength));
        let cf = db.create_cf("lengths", &options).expect("made");
        db.put_cf(&cf, "long", "v").expect("written");
    }
    assert_eq!(s.ok(&["get", "db", "k"]), "v", "other column families can still be read");
    s.run(&["get", "db", "long", "--column-family", "lengths"]).fails(3, &["test.ByLength", "\"lengths\""]);
    s.run(&["put", "db", "k", "w"]).fails(3, &["test.ByLength"]);
    s.run(&["verify", "db"]).fails(3, &["test.ByLength"]);
    assert_eq!(s.ok(&["list-cf", "db"]), "default\nlengths\n");
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let s = Sandbox::new();
    s.database("db", 20_000);
    let mut child = Command::new(ROCKMILL)
        .args(["scan", "db"])
        .current_dir(s.dir.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut first = [0; 10];
    child.stdout.take().expect("a pipe").read_exact(&mut first).expect("some output"); // and the pipe closes
    let output = child.wait_with_output().expect("ends");
    assert_eq!(&first, b"key000000\t");
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn nothing_moves_on_a_screen_that_is_none() {
    let s = Sandbox::new();
    let file = s.file("in.tsv", "a\t1\n".repeat(10_000));
    for command in [&["load", "db", &file][..], &["verify", "db"], &["compact", "db"], &["stats", "db"]] {
        let done = s.run(command);
        assert!(!done.text().contains('\u{1b}') && !done.stderr.contains('\u{1b}'), "{command:?}");
        done.ok();
    }
}
