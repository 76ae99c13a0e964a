//! Calls in the style of RocksDB's `ldb`, compared with the real one where it is there.

mod cli_support;

use std::process::Command;

use cli_support::Sandbox;
use rockmill_skip::{Needs, skip};

/// What the real `ldb` prints; `None` if it is not there, which `test` then says.
fn ldb(s: &Sandbox, test: &str, args: &[&str]) -> Option<String> {
    match rockmill_skip::program("ldb", Needs::Ldb) {
        Ok(ldb) => {
            let done = Command::new(ldb).args(args).current_dir(s.dir.path()).output().expect("ldb runs");
            // With --ttl 7.8 says that it cannot, does it, and fails.
            assert!(done.status.success() || args.contains(&"--ttl"), "ldb {args:?}: {done:?}");
            Some(String::from_utf8_lossy(&done.stdout).into_owned())
        }
        Err(missing) => {
            skip(test, &missing);
            None
        }
    }
}

/// A database with some keys in two column families, and nothing in memtables.
fn some(s: &Sandbox) {
    s.ok(&["--db=db", "--create_if_missing", "batchput", "a:1", "x", "a:2", "yy", "b:1", "z", "c", "0"]);
    s.ok(&["--db=db", "create_column_family", "more"]);
    s.ok(&["--db=db", "--column_family=more", "put", "q", "1"]);
    s.ok(&["--db=db", "flush"]);
    s.ok(&["--db=db", "flush", "--column_family=more"]);
}

#[test]
fn entries_are_printed_as_ldb_prints_them() {
    let s = Sandbox::new();
    some(&s);
    assert_eq!(
        s.ok(&["--db=db", "dump", "--from=a:2", "--to=c"]),
        "a:2 ==> yy\nb:1 ==> z\nKeys in range: 2\n",
        "without the end of the range"
    );
    assert_eq!(s.ok(&["--db=db", "dump", "--count_only"]), "Keys in range: 4\n");
    assert_eq!(s.ok(&["--db=db", "dump", "--count_delim=:", "--json"]).lines().count(), 3);
    for call in [
        &["--db=db", "dump"][..],
        &["--db=db", "dump", "--hex", "--max_keys=2"],
        &["--db=db", "dump", "--key_hex", "--from=0x613a32"],
        &["--db=db", "dump", "--value_hex", "--to=b"],
        &["--db=db", "dump", "--column_family=more"],
        &["--db=db", "dump", "--count_delim=:"],
        &["--db=db", "dump", "--count_delim"],
        &["--db=db", "idump", "--count_delim=:"],
        &["--db=db", "idump", "--max_keys=2"],
        &["--db=db", "list_live_files_metadata"],
        &["--db=db", "list_live_files_metadata", "--sort_by_filename"],
        &["--db=db", "file_checksum_dump", "--hex"],
        &["--db=db", "get", "0x613a31", "--key_hex", "--value_hex"],
        &["--db=db", "list_column_families"],
    ] {
        let ours = s.ok(call);
        let Some(theirs) = ldb(&s, "entries_are_printed_as_ldb_prints_them", call) else { return };
        match call[1] {
            // Ours has no newline, the hexadecimal of both no prefix, and one line for each column family.
            "get" => assert_eq!(format!("0x{}", ours.trim()), theirs.trim().to_ascii_lowercase()),
            "list_column_families" => {
                assert!(ours.lines().all(|name| theirs.contains(name)), "{theirs}");
            }
            // In an order of its own.
            "file_checksum_dump" => {
                let sorted = |text: &str| {
                    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
                    lines.sort_unstable();
                    lines
                };
                assert_eq!(sorted(&ours), sorted(&theirs));
            }
            _ => assert_eq!(ours, theirs, "{call:?}"),
        }
    }
    assert!(s.ok(&["--db=db", "dump", "--stats", "--count_only"]).contains("Compaction Stats [default]"));
}

#[test]
fn hexadecimal_is_for_keys_values_or_both() {
    let s = Sandbox::new();
    s.ok(&["--db=db", "put", "--create_if_missing", "--key_hex", "0x00ff", "text"]);
    assert_eq!(s.ok(&["--db=db", "get", "--key_hex", "0x00FF"]), "text");
    assert_eq!(s.ok(&["--db=db", "get", "--hex", "00ff"]), "74657874\n");
    assert_eq!(s.ok(&["--db=db", "scan", "--key_hex"]), "00ff\ttext\n");
    assert_eq!(s.ok(&["--db=db", "scan", "--hex"]), "00ff\t74657874\n");
    assert_eq!(s.ok(&["--db=db", "multi_get", "--key_hex", "00ff"]), "00ff\ttext\n");
    s.ok(&["--db=db", "batchput", "--value_hex", "k", "6869"]);
    assert_eq!(s.ok(&["--db=db", "get", "k", "--hex=false"]), "hi");
    s.ok(&["--db=db", "delete", "--key_hex", "00ff"]);
    s.ok(&["--db=db", "singledelete", "--key_hex", "6b"]);
    assert_eq!(s.ok(&["--db=db", "scan", "--count"]), "0\n");
}

/// `--backup_dir`, `--checkpoint_dir` and `--path` are arguments without a name here.
#[test]
fn copies_and_files_are_named_by_flags() {
    let s = Sandbox::new();
    some(&s);
    s.ok(&["--db=db", "backup", "--backup_dir=copies", "--num_threads=2"]);
    s.ok(&["--db=again", "restore", "--backup_dir=copies"]);
    assert_eq!(s.ok(&["--db=again", "get", "c"]), "0");
    s.ok(&["--db=db", "checkpoint", "--checkpoint_dir=point"]);
    assert_eq!(s.ok(&["--db=point", "get", "c"]), "0");
    if ldb(&s, "copies_and_files_are_named_by_flags", &["--db=theirs", "restore", "--backup_dir=copies"]).is_some() {
        assert_eq!(s.ok(&["--db=theirs", "get", "c"]), "0");
    }
    let manifest = s.ok(&["--db=db", "manifest_dump", "--verbose"]);
    assert!(manifest.contains("leveldb.BytewiseComparator"), "{manifest}");
    let name = s.ok(&["dump", "db/CURRENT"]);
    let path = format!("--path=db/{}", name.trim());
    assert_eq!(s.ok(&["manifest_dump", &path]), manifest);
    let table = s.files("db", ".sst").first().expect("a table").display().to_string();
    assert_eq!(s.ok(&["dump", &format!("--path={table}")]), s.ok(&["dump", &table]));
    let wal = s.files("db", ".log").first().expect("a WAL").display().to_string();
    s.ok(&["--db=db", "dump_wal", &format!("--walfile={wal}"), "--header", "--print_value"]);
}

/// Flags that set options, and `change_compaction_style`.
#[test]
fn options_have_ldbs_names() {
    let s = Sandbox::new();
    let put = ["--db=db", "put", "--create_if_missing", "a", "1"];
    let flags = [
        "--auto_compaction=false",
        "--compression_type=lz4",
        "--file_size=1048576",
        "--fix_prefix_len=3",
        "--compression_max_dict_bytes=4096",
        "--bloom_bits=14",
    ];
    s.ok(&[&put[..], &flags].concat());
    let changed = s.ok(&["options", "db", "--changed"]);
    for option in [
        "disable_auto_compactions",
        "kLZ4Compression",
        "target_file_size_base",
        "FixedPrefix.3",
        "max_dict_bytes=4096",
        "bloomfilter:14",
    ] {
        assert!(changed.contains(option), "{option}:\n{changed}");
    }
    assert_eq!(s.ok(&["--db=db", "--try_load_options", "get", "a"]), "1");
    s.ok(&["--db=db", "change_compaction_style", "--old_compaction_style=0", "--new_compaction_style=1"]);
    assert!(s.ok(&["options", "db", "--changed"]).contains("kCompactionStyleUniversal"));
    s.run(&["--db=db", "reduce_levels", "--new_levels=3"]).fails(2, &["reduce_levels is not there", "hint: "]);
    s.run(&["--db=db", "get", "a", "--use_txn"]).fails(2, &["--use_txn is not there", "transactions"]);
    let json = s.run(&["--db=db", "get", "a", "--use_txn", "--json"]);
    assert!(json.code == 2 && json.stderr.starts_with('{'), "{}", json.stderr);
}

/// Values of such a database end with the time of their writing.
#[test]
fn values_with_a_time_to_live_are_read_and_written() {
    const TEST: &str = "values_with_a_time_to_live_are_read_and_written";
    let s = Sandbox::new();
    s.ok(&["--db=db", "put", "--create_if_missing", "--ttl", "a", "1"]);
    assert_eq!(s.ok(&["--db=db", "get", "a", "--ttl"]), "1");
    // In hex, because bytes of the time may be no text.
    let with_time = s.ok(&["--db=db", "get", "a", "--value_hex"]);
    let with_time = with_time.trim_end();
    assert!(with_time.starts_with("31") && with_time.len() == 2 * 5, "the value and its time: {with_time}");
    s.ok(&["--db=db", "batchput", "--ttl", "b", "2"]);
    if ldb(&s, TEST, &["--db=db", "put", "--ttl", "c", "3"]).is_some() {
        assert_eq!(s.ok(&["--db=db", "scan", "--ttl"]), "a\t1\nb\t2\nc\t3\n");
        let theirs = ldb(&s, TEST, &["--db=db", "dump", "--ttl"]).expect("it is there");
        assert_eq!(s.ok(&["--db=db", "dump", "--ttl"]), theirs);
    }
    s.ok(&["create-cf", "db", "more", "--ttl"]);
    s.ok(&["put", "db", "d", "4", "--column-family", "more", "--ttl=3600"]);
    s.ok(&["compact", "db", "--ttl=3600", "--all-column-families"]);
    assert_eq!(s.ok(&["get", "db", "d", "--column-family", "more", "--ttl"]), "4");
}
