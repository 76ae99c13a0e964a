//! put, get, delete, scan, load and the column family commands, as a user runs them.

mod cli_support;

use cli_support::Sandbox;
use serde_json::Value;

#[test]
fn put_get_and_delete() {
    let s = Sandbox::new();
    s.ok(&["put", "db", "greeting", "hello", "--create"]);
    s.ok(&["put", "db", "--hex", "00ff", "0a00ff", "--sync"]);
    assert_eq!(s.ok(&["get", "db", "greeting"]), "hello", "a piped value is the value and nothing else");
    assert_eq!(s.ok(&["get", "db", "--hex", "00ff"]), "0a00ff\n");
    s.ok(&["put", "db", "greeting", "hi", "--wal=off"]);
    assert_eq!(s.ok(&["get", "db", "greeting"]), "hi", "without a WAL the write is in a table when the command ends");
    s.run_with_input(&["put", "db", "picture", "-"], b"\x89PNG\r\n\x00\xff").ok();
    assert_eq!(s.run(&["get", "db", "picture"]).stdout, b"\x89PNG\r\n\x00\xff");
    s.ok(&["put", "db", "--", "-dash", "-value"]);
    assert_eq!(s.ok(&["get", "db", "--", "-dash"]), "-value");

    let v = s.json(&["get", "db", "--hex", "00ff"]);
    assert_eq!(v["key_hex"], "00ff");
    assert_eq!(v["key"], Value::Null, "no UTF-8, no text");
    assert_eq!(v["value_hex"], "0a00ff");

    s.ok(&["delete", "db", "greeting", "not there"]);
    s.run(&["get", "db", "greeting"]).fails(1, &["key greeting not found"]);
    let json = s.run(&["get", "db", "greeting", "--json"]);
    assert_eq!(json.code, 1);
    let e: Value = serde_json::from_str(&json.stderr).expect("an error object");
    assert_eq!(e["error"]["kind"], "NotFound");
    assert!(e["error"]["message"].as_str().is_some_and(|m| m.contains("greeting")));
}

#[test]
fn scans_have_bounds_prefixes_limits_and_directions() {
    let s = Sandbox::new();
    let file = s.file("in.tsv", "a1\t1\na2\t2\nb1\t3\nb2\t4\nc\t5\n");
    s.ok(&["load", "db", &file]);
    let scan = |flags: &[&str]| s.ok(&[&["scan", "db"], flags].concat());
    assert_eq!(scan(&[]), "a1\t1\na2\t2\nb1\t3\nb2\t4\nc\t5\n");
    assert_eq!(scan(&["--from", "a2", "--to", "b2"]), "a2\t2\nb1\t3\n");
    assert_eq!(scan(&["--prefix", "b"]), "b1\t3\nb2\t4\n");
    assert_eq!(scan(&["--prefix", "b", "--reverse"]), "b2\t4\nb1\t3\n");
    assert_eq!(scan(&["--reverse", "--limit", "2"]), "c\t5\nb2\t4\n");
    assert_eq!(scan(&["--from", "a2", "--to", "b2", "--reverse", "--keys-only"]), "b1\na2\n");
    assert_eq!(scan(&["--prefix", "b", "--from", "b2"]), "b2\t4\n");
    assert_eq!(scan(&["--hex", "--limit", "1"]), "6131\t31\n");
    assert_eq!(scan(&["--hex", "--from", "63"]), "63\t35\n");
    assert_eq!(scan(&["--limit", "0"]), "");
    assert_eq!(scan(&["--count"]), "5\n");
    assert_eq!(s.json(&["scan", "db", "--count", "--prefix", "a"])["count"], 2);
    let lines = scan(&["--json", "--from", "b"]);
    let keys: Vec<Value> =
        lines.lines().map(|l| serde_json::from_str::<Value>(l).expect("an object a line")["key"].clone()).collect();
    assert_eq!(keys, ["b1", "b2", "c"]);
}

#[test]
fn deleting_a_range_leaves_its_end() {
    let s = Sandbox::new();
    let file = s.file("in.tsv", "a\t1\nb\t2\nc\t3\nd\t4\n");
    s.ok(&["load", "db", &file]);
    s.ok(&["delete", "db", "--from", "b", "--to", "d"]);
    assert_eq!(s.ok(&["scan", "db"]), "a\t1\nd\t4\n");
    s.run(&["delete", "db", "--from", "z", "--to", "a"]).fails(2, &["end comes before the start"]);
    s.run(&["delete", "db"]).fails(2, &[]);
    s.run(&["delete", "db", "--from", "a"]).fails(2, &["--to"]);
}

#[test]
fn a_scan_in_hexadecimal_copies_any_database() {
    let seed = 20_260_101;
    eprintln!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let s = Sandbox::new();
    let mut want = std::collections::BTreeMap::new();
    let mut text = String::new();
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    for _ in 0..3000 {
        let key: Vec<u8> = (0..rng.usize(0..6)).map(|_| *rng.choice(b"\0\t\n\xff\"a").expect("a byte")).collect();
        let value: Vec<u8> = (0..rng.usize(0..20)).map(|_| rng.u8(..)).collect();
        text.push_str(&format!("{}\t{}\n", hex(&key), hex(&value)));
        want.insert(key, value);
    }
    let file = s.file("in.txt", &text);
    s.ok(&["load", "a", &file, "--format", "tsv", "--hex", "--batch", "7"]);
    let scanned = s.ok(&["scan", "a", "--hex"]);
    let expected: String = want.iter().map(|(k, v)| format!("{}\t{}\n", hex(k), hex(v))).collect();
    assert_eq!(scanned, expected);
    s.run_with_input(&["load", "b", "-", "--format", "tsv", "--hex", "--quiet"], scanned.as_bytes()).ok();
    assert_eq!(s.ok(&["scan", "b", "--hex"]), expected);
    let backwards: String = scanned.lines().rev().map(|l| format!("{l}\n")).collect();
    assert_eq!(s.ok(&["scan", "b", "--hex", "--reverse"]), backwards);
}

#[test]
fn load_reports_what_it_did() {
    let s = Sandbox::new();
    let file = s.file("in.csv", "id,name\n1,Ada\n2,Alan\n3,Grace\n");
    let flags = ["load", "db", &file, "--header", "--key-column", "name", "--value-column", "id", "--batch", "2"];
    let v = s.json(&flags);
    assert_eq!(v["records"], 3);
    assert_eq!(v["bytes"], 12 + 3);
    assert_eq!(v["skipped"], 0);
    assert!(v["seconds"].as_f64().is_some_and(|t| t > 0.0));
    assert_eq!(s.ok(&["get", "db", "Alan"]), "2");

    let acks = s.ok(&[&flags[..], &["--ack", "--quiet"]].concat());
    assert_eq!(acks, "acked 2\nacked 3\n");
    let text = s.ok(&flags);
    assert!(text.starts_with("loaded 3 records (15 B) in "), "{text}");
    assert_eq!(s.ok(&[&flags[..], &["--quiet"]].concat()), "");

    let jsonl = s.file("in.jsonl", "{\"user\":{\"id\":9},\"v\":[1]}\n");
    s.ok(&["load", "unlogged", &jsonl, "--key", "user.id", "--wal=off"]);
    assert_eq!(s.ok(&["get", "unlogged", "9"]), "{\"user\":{\"id\":9},\"v\":[1]}");
    assert_eq!(s.files("unlogged", ".sst").len(), 1, "without a WAL the data is in a table when load is done");

    let (a, b) = (s.file("a.txt", "one\ntwo\n"), s.file("b.txt", "three\n"));
    s.ok(&["load", "lines", &a, &b]);
    assert_eq!(s.ok(&["scan", "lines"]), "000000000001\tone\n000000000002\ttwo\n000000000003\tthree\n");
}

#[test]
fn bad_lines_stop_a_load_or_are_counted() {
    let s = Sandbox::new();
    let file = s.file("in.tsv", "a\t1\nb\t2\nno tab\nc\t3\n");
    let flags = ["load", "db", &file, "--batch", "1"];
    s.run(&flags).fails(3, &["in.tsv:3: ", "no tab", "hint: ", "--skip-bad", "2 records were written"]);
    assert_eq!(s.ok(&["scan", "db", "--keys-only"]), "a\nb\n", "what stood before the bad line is there");
    let done = s.run(&[&flags[..], &["--skip-bad"]].concat());
    assert_eq!(done.code, 0);
    assert!(done.stderr.contains("warning: in.tsv:3: "), "{}", done.stderr);
    assert!(done.text().contains("1 bad line left out"), "{}", done.text());
    assert_eq!(s.ok(&["scan", "db", "--keys-only"]), "a\nb\nc\n");
    let v: Value = serde_json::from_str(&s.run(&[&flags[..], &["--skip-bad", "--json", "--quiet"]].concat()).ok())
        .expect("an object");
    assert_eq!(v["skipped"], 1);

    let hex = s.file("hex.tsv", "61\t62\nxyz\t00\n");
    s.run(&["load", "db", &hex, "--hex"]).fails(3, &["hex.tsv:2: the key \"xyz\" is not hexadecimal"]);
    let json = s.file("x.jsonl", "{\"k\":1}\n{broken\n");
    s.run(&["load", "db", &json, "--key", "k"]).fails(3, &["x.jsonl:2: not JSON"]);
}

#[test]
fn load_refuses_what_it_cannot_mean() {
    let s = Sandbox::new();
    let file = s.file("in.dat", "a\t1\n");
    s.run(&["load", "db", &file]).fails(2, &["does not tell its format", "hint: give --format"]);
    s.run(&["load", "db", "-"]).fails(2, &["standard input", "hint: give --format"]);
    let packed = s.file("x.tsv.gz", "packed");
    s.run(&["load", "db", &packed]).fails(2, &["is compressed", "zcat"]);
    s.run(&["load", "db", "missing"]).fails(3, &["cannot open missing", "No such file"]);
    s.run(&["load", "db", "missing.tsv"]).fails(3, &["cannot open missing.tsv", "No such file"]);
    s.run(&["load", "db", &file, "--format", "jsonl"]).fails(2, &["--key FIELD"]);
    s.run(&["load", "db", &file, "--format", "lines", "--header"]).fails(2, &["--header is for tsv and csv"]);
    s.run(&["load", "db", &file, "--format", "tsv", "--sync", "--wal=off"]).fails(2, &["--sync needs the write-ahead"]);
    s.run(&["load", "db", &file, "--format", "tsv", "--batch", "0"]).fails(2, &["--batch"]);
    s.run(&["load", "db", &file, "--format", "tsv", "--write-buffer-size", "12Q"]).fails(2, &["12Q"]);
    assert!(!s.path("db").exists(), "a refused load makes no database");

    // Neither a directory of other files nor one without its CURRENT is made a database.
    std::fs::create_dir(s.path("home")).expect("made");
    s.file("home/notes.txt", "mine");
    s.run(&["load", "home", &file, "--format", "tsv"]).fails(3, &["files that are not a database's", "notes.txt"]);
    s.database("old", 2000);
    let before = s.files("old", "");
    std::fs::remove_file(s.path("old/CURRENT")).expect("removed");
    s.run(&["load", "old", &file, "--format", "tsv"]).fails(3, &["no file CURRENT"]);
    assert_eq!(s.files("old", "").len(), before.len() - 1, "nothing that was there is lost");
}

#[test]
fn column_families_are_made_used_and_dropped() {
    let s = Sandbox::new();
    s.ok(&["put", "db", "k", "default value", "--create"]);
    s.ok(&["create-cf", "db", "sessions"]);
    s.ok(&["create-cf", "db", "newest", "--reverse-order"]);
    s.ok(&["put", "db", "k", "session value", "--column-family", "sessions"]);
    assert_eq!(s.ok(&["get", "db", "k"]), "default value");
    assert_eq!(s.ok(&["get", "db", "k", "--column-family", "sessions"]), "session value");
    s.ok(&["create-cf", "db", "hashed", "--hash-range", "--table-format", "tph"]);
    s.ok(&["put", "db", "k", "value by hash", "--column-family", "hashed"]);
    s.ok(&["compact", "db", "--column-family", "hashed", "--quiet"]);
    assert_eq!(s.ok(&["get", "db", "k", "--column-family", "hashed"]), "value by hash");
    assert_eq!(s.json(&["list-cf", "db"])["column_families"][3]["comparator"], "rockmill.HashRangeComparator");
    s.ok(&["verify", "db"]);
    s.run(&["downgrade", "db"]).fails(2, &["\"hashed\" is in the order of its keys' hashes"]);
    s.ok(&["drop-cf", "db", "hashed"]);
    assert_eq!(s.ok(&["list-cf", "db"]), "default\nsessions\nnewest\n");
    let v = s.json(&["list-cf", "db"]);
    assert_eq!(v["column_families"][2]["comparator"], "rocksdb.ReverseBytewiseComparator");

    let file = s.file("in.tsv", "a\t1\nab\t2\nb\t3\n");
    s.ok(&["load", "db", &file, "--column-family", "newest"]);
    let scan = |flags: &[&str]| s.ok(&[&["scan", "db", "--keys-only", "--column-family", "newest"], flags].concat());
    assert_eq!(scan(&[]), "b\nab\na\n");
    assert_eq!(scan(&["--prefix", "a"]), "ab\na\n");
    assert_eq!(scan(&["--from", "ab", "--reverse"]), "a\nab\n");
    s.ok(&["compact", "db", "--column-family", "newest", "--quiet"]);
    assert_eq!(scan(&[]), "b\nab\na\n");
    s.ok(&["verify", "db"]);
    s.ok(&["load", "db", &file, "--column-family", "made by load"]);
    assert_eq!(s.ok(&["scan", "db", "--count", "--column-family", "made by load"]), "3\n");

    s.run(&["get", "db", "k", "--column-family", "nope"]).fails(2, &["\"nope\" does not exist", "there are: default,"]);
    s.run(&["put", "db", "k", "v", "--column-family", "nope"]).fails(2, &["\"nope\" does not exist"]);
    s.run(&["create-cf", "db", "sessions"]).fails(2, &["already exists"]);
    s.run(&["drop-cf", "db", "default"]).fails(2, &["cannot be dropped"]);
    s.ok(&["drop-cf", "db", "sessions"]);
    s.run(&["get", "db", "k", "--column-family", "sessions"]).fails(2, &["does not exist"]);
}

#[test]
fn tables_are_written_and_ingested() {
    let s = Sandbox::new();
    let sorted = s.file("sorted.tsv", "a\t1\nb\t2\nc\t3\n");
    let unsorted = s.file("unsorted.tsv", "d\t5\nb\told\nb\tnew\n");
    let table = s.path("t.sst").display().to_string();
    let made = s.json(&["write-sst", &table, &sorted]);
    assert_eq!((made["records"].as_u64(), made["largest_key"].as_str()), (Some(3), Some("c")));
    s.run(&["ingest", "db", &table]).fails(3, &["db"]);
    let done = s.json(&["ingest", "db", &table, "--create"]);
    assert_eq!((done["ingested"].as_u64(), done["files"][0]["level"].as_u64()), (Some(1), Some(6)));
    assert_eq!(s.ok(&["scan", "db"]), "a\t1\nb\t2\nc\t3\n");
    let before = std::fs::read(&table).expect("the table");
    s.run(&["write-sst", &table, &unsorted, "--sort"]).fails(2, &["t.sst already exists", "--force"]);
    s.run(&["write-sst", &unsorted, &table, "--format", "tsv"]).fails(2, &["unsorted.tsv already exists"]);
    assert_eq!(std::fs::read(&table).expect("the table"), before, "nothing was touched");
    s.run(&["write-sst", &table, &unsorted, "--force"]).fails(3, &["unsorted.tsv:2", "\"b\"", "--sort"]);
    assert!(!std::path::Path::new(&table).exists(), "no half table is left");
    s.ok(&["write-sst", &table, &unsorted, "--sort", "--compression", "zstd"]);
    s.ok(&["ingest", "db", &table, "--move", "--verify"]);
    assert!(!std::path::Path::new(&table).exists());
    assert_eq!(s.ok(&["scan", "db"]), "a\t1\nb\tnew\nc\t3\nd\t5\n");
    s.ok(&["verify", "db"]);
    s.run(&["ingest", "db", &sorted]).fails(3, &["sorted.tsv"]);
    s.run(&["ingest", "db", "absent.sst"]).fails(3, &["absent.sst"]);

    let again = s.file("again.sst", "an old file");
    s.ok(&["write-sst", &again, &sorted, "--force"]);

    // Ingested behind everything else, and into a column family.
    s.ok(&["write-sst", &table, &sorted]);
    s.run(&["ingest", "db", &table, "--ingest-behind"]).fails(2, &["allow_ingest_behind=true"]);
    let behind = ["--ingest-behind", "--option", "allow_ingest_behind=true"];
    s.ok(&["put", "behind", "b", "mine", "--create", "--option", "allow_ingest_behind=true"]);
    s.ok(&[&["ingest", "behind", &table][..], &behind].concat());
    assert_eq!(s.ok(&["scan", "behind"]), "a\t1\nb\tmine\nc\t3\n");
    s.ok(&["ingest", "db", &table, "--column-family", "other", "--create"]);
    assert_eq!(s.ok(&["scan", "db", "--column-family", "other", "--count"]), "3\n");
}

#[test]
fn a_quote_that_nothing_closes_is_refused_with_its_line() {
    let s = Sandbox::new();
    let rows: String = (0..5000).map(|i| format!("k{i:04},v{i}\n")).collect();
    for (name, text, line) in [
        ("row.csv", format!("a,1\r\nb,\"2\n3\"\r\nc,\"open\n{rows}"), 4),
        ("last.csv", "a,1\nb,\"open".to_owned(), 2),
        ("doubled.csv", "a,1\nb,\"open\"\"\n".to_owned(), 2),
        ("key.csv", "\u{feff}\"a,1\nb,2\n".to_owned(), 1),
        ("within.csv", "a,1\nb,\"x\ny\",\"z\nc,3\n".to_owned(), 3),
    ] {
        let file = s.file(name, text);
        let place = format!("{file}:{line}: the quote that opens a field on this line is never closed");
        let load = ["load", "db", &file, "--batch", "1"];
        for flags in [&load[..], &["load", "db", &file, "--skip-bad"], &["write-sst", "t", &file]] {
            s.run(flags).fails(3, &[&place]);
        }
    }
    assert_eq!(s.ok(&["scan", "db"]), "a\t1\nb\t2\n3\n", "rows before the quote, and no other");
    // Quotes that do not quote a field.
    let file = s.file("sound.csv", "a,\"1\"\"2\"\nb,3\" wide\nc,\"4\"\n\"d\",\"\"");
    s.ok(&["load", "sound", &file]);
    assert_eq!(s.ok(&["scan", "sound"]), "a\t1\"2\nb\t3\" wide\nc\t4\nd\t\n");
}

#[test]
fn numbers_of_jsonl_keep_their_text() {
    let s = Sandbox::new();
    let keys = [
        "18446744073709551616",
        "18446744073709551617",
        "340282366920938463463374607431768211456",
        "1.1",
        "1.10",
        "1e400",
        "-0",
        "0.1000000000000000055511151231257827",
        "true",
        "\"a\\u00e4\"",
    ];
    let line = |key: &str| format!("{{\"k\": {key}, \"v\": {{\"z\": 1.10, \"a\": [1E2, null]}}, \"n\": null}}\n");
    let file = s.file("n.jsonl", keys.map(line).concat());
    assert_eq!(s.json(&["load", "db", &file, "--key", "k"])["records"], keys.len());
    assert_eq!(s.ok(&["scan", "db", "--count"]), format!("{}\n", keys.len()));
    for key in &keys[..9] {
        assert_eq!(s.ok(&["get", "db", "--", key]).trim(), line(key).trim());
    }
    assert_eq!(s.ok(&["get", "db", "aä"]).trim(), line(keys[9]).trim());
    // A value that is not a string is taken as its text; nested fields are found by name and number.
    for (field, value) in [("v", "{\"z\": 1.10, \"a\": [1E2, null]}"), ("v.z", "1.10"), ("v.a.0", "1E2"), ("n", "null")]
    {
        s.ok(&["load", field, &file, "--key", "k", "--value", field]);
        assert_eq!(s.ok(&["get", field, "1.10"]), value, "{field}");
    }
    for key in ["null", "{}", "[1]"] {
        let file = s.file("bad.jsonl", line(key));
        s.run(&["load", "db", &file, "--key", "k"]).fails(3, &["bad.jsonl:1", "cannot be a key"]);
    }
    let file = s.file("bad.jsonl", "{\"k\": 01}\n");
    s.run(&["load", "db", &file, "--key", "k"]).fails(3, &["bad.jsonl:1: not JSON"]);
}

#[test]
fn a_load_whose_output_is_closed_is_no_success() {
    use std::io::{BufRead, BufReader, Read};
    use std::process::{Command, Stdio};
    let s = Sandbox::new();
    let rows: String = (0..50_000).map(|i| format!("key{i:06}\t{i}\n")).collect();
    let file = s.file("in.tsv", rows);
    let mut child = Command::new(cli_support::ROCKMILL)
        .args(["load", "db", &file, "--ack", "--batch", "2"])
        .current_dir(s.dir.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    let mut first = String::new();
    let mut stdout = BufReader::new(child.stdout.take().expect("a pipe"));
    stdout.read_line(&mut first).expect("a line");
    assert_eq!(first, "acked 2\n");
    drop(stdout);
    let mut stderr = String::new();
    child.stderr.take().expect("a pipe").read_to_string(&mut stderr).expect("text");
    assert_eq!(child.wait().expect("it ends").code(), Some(3), "{stderr}");
    let count = s.ok(&["scan", "db", "--count"]);
    let count: u64 = count.trim().parse().expect("a number");
    assert!((2..50_000).contains(&count), "{count}");
    assert!(stderr.contains("standard output was closed before the command ended"), "{stderr}");
    let said = stderr.replace(',', "");
    assert!(said.contains(&format!("{count} records were written before this")), "{count}: {stderr}");

    // A command that only prints ends successfully when its reader does.
    let mut child = Command::new(cli_support::ROCKMILL)
        .args(["scan", "db"])
        .current_dir(s.dir.path())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the command starts");
    drop(child.stdout.take());
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
}

#[test]
fn writing_leaves_names_of_unknown_objects_in_the_options_file() {
    let s = Sandbox::new();
    s.ok(&["put", "db", "k", "1", "--create"]);
    s.ok(&["create-cf", "db", "second"]);
    let names = [
        ("merge_operator=nullptr", "merge_operator=own.Concat"),
        ("compaction_filter_factory=nullptr", "compaction_filter_factory=own.Factory"),
        ("prefix_extractor=nullptr", "prefix_extractor=own.Prefix"),
    ];
    let newest =
        || s.files("db", "").into_iter().filter(|f| f.to_string_lossy().contains("/OPTIONS-")).max().expect("one");
    let text = std::fs::read_to_string(newest()).expect("text");
    let text = names.iter().fold(text, |text, (none, own)| text.replace(none, own));
    std::fs::write(newest(), &text).expect("written");
    let table = s.file("one.tsv", "a\t1\n");
    for line in [
        &["put", "db", "k", "2"][..],
        &["delete", "db", "nothing"],
        &["load", "db", &table, "--column-family", "second"],
        &["compact", "db", "--quiet"],
        &["create-cf", "db", "third"],
        &["drop-cf", "db", "third"],
        &["downgrade", "db"],
    ] {
        let before = newest();
        s.ok(line);
        assert_ne!(newest(), before, "{line:?} opens the database, which stores its options");
        let text = std::fs::read_to_string(newest()).expect("text");
        for (_, own) in names {
            assert_eq!(text.lines().filter(|l| l.trim() == own).count(), 2, "{line:?}: {own} in {text}");
        }
    }
    assert_eq!(s.ok(&["get", "db", "k"]), "2");
}
