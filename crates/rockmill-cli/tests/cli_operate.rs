//! merge, multi-get, flush, set-options, and compactions of all column families.

mod cli_support;

use cli_support::Sandbox;
use serde_json::Value;

/// The value of an option, as `rockmill options --json` shows it.
fn option(s: &Sandbox, family: &str, name: &str) -> String {
    let shown = s.json(&["options", "db", "--column-family", family]);
    let all = shown["options"].as_array().expect("options");
    let found = all.iter().find(|o| o["name"] == name).unwrap_or_else(|| panic!("no option {name}"));
    found["value"].as_str().expect("a text").to_owned()
}

/// Files and bytes of the log that the last run left.
fn log_bytes(s: &Sandbox) -> u64 {
    s.files("db", ".log").iter().map(|f| f.metadata().expect("a file").len()).sum()
}

#[test]
fn merge_needs_an_operator_and_keeps_it() {
    let s = Sandbox::new();
    s.ok(&["put", "db", "--create", "other", "v"]);
    s.run(&["merge", "db", "tags", "red"]).fails(2, &["has no merge operator", "hint: ", "stringappend"]);
    s.run(&["get", "db", "tags"]).fails(1, &["not found"]);

    s.ok(&["merge", "db", "tags", "red", "--option", "merge_operator=stringappend"]);
    s.ok(&["merge", "db", "tags", "blue", "--sync"]);
    s.ok(&["merge", "db", "tags", "green", "--wal=off"]);
    assert_eq!(s.ok(&["get", "db", "tags"]), "red,blue,green", "the operator is stored");
    s.run_with_input(&["merge", "db", "piped", "-"], b"a\0b").ok();
    assert_eq!(s.run(&["get", "db", "piped"]).stdout, b"a\0b");

    s.ok(&["create-cf", "db", "counters"]);
    let add = ["merge", "db", "--column-family", "counters", "--hex", "686974", "0200000000000000"];
    s.run(&add).fails(2, &["\"counters\" has no merge operator"]);
    s.ok(&[&add[..], &["--option", "merge_operator=uint64add"]].concat());
    assert_eq!(s.json(&add)["merged"], 1);
    assert_eq!(s.ok(&["get", "db", "--column-family", "counters", "--hex", "686974"]), "0400000000000000\n");
    s.run(&["merge", "db", "--hex", "xyz", "00"]).fails(2, &["\"xyz\" is not hexadecimal"]);
    s.run(&["merge", "missing", "k", "v"]).fails(3, &["no such directory"]);
}

#[test]
fn multi_get_prints_what_is_there_and_names_the_rest() {
    let s = Sandbox::new();
    s.file("in.tsv", "a\t1\nb\t2\nc\t3\n");
    s.ok(&["load", "db", "in.tsv"]);
    assert_eq!(s.ok(&["multi-get", "db", "c", "a"]), "c\t3\na\t1\n", "in the order given");
    assert_eq!(s.ok(&["multi-get", "db", "--hex", "61"]), "61\t31\n");

    let some = s.run(&["multi-get", "db", "b", "x", "a", "y"]);
    assert_eq!(some.text(), "b\t2\na\t1\n");
    some.fails(1, &["2 of 4 keys not found: x, y"]);
    s.run(&["multi-get", "db", "z"]).fails(1, &["1 of 1 key not found: z"]);

    let lines = s.run(&["multi-get", "db", "b", "x", "--json"]);
    assert_eq!(lines.code, 1);
    let all: Vec<Value> = lines.text().lines().map(|l| serde_json::from_str(l).expect("an object a line")).collect();
    assert!(all[0]["key"] == "b" && all[0]["value"] == "2" && all[0]["found"] == true, "{}", all[0]);
    assert!(all[1]["key"] == "x" && all[1]["value"].is_null() && all[1]["found"] == false, "{}", all[1]);
    assert_eq!(all.len(), 2);
    let e: Value = serde_json::from_str(&lines.stderr).expect("an error object");
    assert_eq!(e["error"]["kind"], "NotFound");

    s.run(&["multi-get", "db"]).fails(2, &["<KEY>"]);
    s.run(&["multi-get", "db", "a", "--column-family", "no"]).fails(2, &["\"no\" does not exist"]);
}

#[test]
fn flush_leaves_nothing_in_the_log() {
    let s = Sandbox::new();
    // Otherwise each open for writing would do the same.
    let keep = ["--option", "avoid_flush_during_recovery=true", "--option", "avoid_flush_during_shutdown=true"];
    s.ok(&[&["put", "db", "--create", "k", "v"][..], &keep].concat());
    s.ok(&["create-cf", "db", "other"]);
    s.ok(&["put", "db", "k2", "v2", "--column-family", "other"]);
    assert!(s.files("db", ".sst").is_empty() && log_bytes(&s) > 0, "the options leave the writes in the log");

    assert_eq!(s.ok(&["flush", "db"]), "flushed column family \"default\"\n");
    assert_eq!(s.files("db", ".sst").len(), 1);
    assert_eq!(s.ok(&["flush", "db", "--all-column-families"]), "flushed 2 column families\n");
    assert_eq!(s.files("db", ".sst").len(), 2);
    let names: Vec<Value> = vec!["default".into(), "other".into()];
    assert_eq!(s.json(&["flush", "db", "--all-column-families"])["flushed"], Value::from(names));
    assert_eq!(s.json(&["flush", "db", "--column-family", "other"])["flushed"][0], "other");
    assert_eq!(s.files("db", ".sst").len(), 2, "there was nothing more to flush");
    assert_eq!(s.ok(&["multi-get", "db", "k"]), "k\tv\n");
    assert_eq!(s.ok(&["get", "db", "k2", "--column-family", "other"]), "v2");

    let both = ["--all-column-families", "--column-family", "other"];
    for command in ["flush", "compact"] {
        s.run(&[&[command, "db"][..], &both].concat()).fails(2, &["exclude each other"]);
    }
}

#[test]
fn options_are_set_and_stored() {
    let s = Sandbox::new();
    s.ok(&["put", "db", "--create", "k", "v"]);
    s.ok(&["create-cf", "db", "other"]);
    let set = ["set-options", "db", "write_buffer_size=128M", "max_background_jobs=4"];
    let text = s.ok(&set);
    assert!(text.contains("write_buffer_size: 67108864 -> 134217728\n"), "{text}");
    assert!(text.contains("max_background_jobs: 2 -> 4\n"), "{text}");
    assert_eq!(text.lines().count(), 2, "{text}");
    assert_eq!(s.ok(&set), "nothing changed\n");
    assert_eq!(option(&s, "default", "write_buffer_size"), "134217728");
    assert_eq!(option(&s, "other", "write_buffer_size"), "67108864", "it is the column family's");
    s.ok(&["put", "db", "k", "w"]);
    assert_eq!(option(&s, "default", "max_background_jobs"), "4", "the next writer keeps it");

    let v = s.json(&["set-options", "db", "compression=kZSTD", "--column-family", "other"]);
    assert_eq!(v["column_family"], "other");
    let changed = v["changed"].as_array().expect("a list");
    assert_eq!(changed.len(), 1, "{v}");
    assert!(changed[0]["name"] == "compression" && changed[0]["new"] == "kZSTD", "{v}");

    let text = s.ok(&["set-options", "db", "table_factory.block_size=16K"]);
    assert_eq!(text, "block_size: 4096 -> 16384\n");

    let refused = |option: &str, words: &[&str]| s.run(&["set-options", "db", option]).fails(2, words);
    refused("write_bufer_size=1", &["is not known", "did you mean write_buffer_size?"]);
    refused("block_size=16K", &["is not known", "did you mean table_factory.block_size?"]);
    refused("write_buffer_size", &["NAME=VALUE is expected"]);
    refused("write_buffer_size=many", &["write_buffer_size=many"]);
    refused("merge_engine=pread", &["merge_engine is not among the options that a database stores", "hint: "]);
    s.run(&["set-options", "db"]).fails(2, &["<NAME=VALUE>"]);
    assert_eq!(option(&s, "default", "write_buffer_size"), "134217728", "what is refused changes nothing");
}

#[test]
fn all_column_families_are_compacted_in_turn() {
    let s = Sandbox::new();
    s.database("db", 2000);
    s.ok(&["create-cf", "db", "other"]);
    let rows: String = (0..500).map(|i| format!("k{i:04}\tv\n")).collect();
    s.file("rows.tsv", rows);
    s.ok(&["load", "db", "rows.tsv", "--column-family", "other"]);
    s.ok(&["load", "db", "rows.tsv", "--column-family", "other"]);

    let v = s.json(&["compact", "db", "--all-column-families", "--compression", "zstd"]);
    let all = v["column_families"].as_array().expect("a list");
    let names: Vec<&Value> = all.iter().map(|f| &f["column_family"]).collect();
    assert_eq!(names, [&Value::from("default"), &Value::from("other")]);
    for family in all {
        let levels = family["levels_after"].as_array().expect("levels");
        let used: Vec<&Value> = levels.iter().filter(|l| l["files"] != 0).collect();
        assert_eq!(used.len(), 1, "{family}");
        assert!(family["output_bytes"].as_u64().is_some_and(|n| n > 0), "{family}");
    }
    for family in ["default", "other"] {
        assert_eq!(option(&s, family, "compression"), "kZSTD", "flags are for all of them");
    }
    let text = s.ok(&["compact", "db", "--all-column-families"]);
    assert!(text.contains("column family \"default\":\n") && text.contains("column family \"other\":\n"), "{text}");
    assert_eq!(s.ok(&["scan", "db", "--count"]), "2000\n");
    assert_eq!(s.ok(&["scan", "db", "--count", "--column-family", "other"]), "500\n");
    s.ok(&["verify", "db"]);
    s.run(&["compact", "db", "--all-column-families", "--from", "a"]).fails(2, &["--from"]);
}
