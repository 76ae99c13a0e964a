//! `rockmill backup`, `checkpoint` and `repair`, as a user runs them.

mod cli_support;

use cli_support::{Sandbox, flip};
use serde_json::Value;

#[test]
fn backups_are_made_listed_checked_restored_and_deleted() {
    let s = Sandbox::new();
    s.database("db", 2000);
    let first = s.ok(&["scan", "db"]);
    let text = s.ok(&["backup", "create", "db", "backups", "--note", "the first", "--threads", "3"]);
    assert!(text.starts_with("backup 1: ") && text.contains("copied"), "{text}");
    s.ok(&["put", "db", "key000001", "changed"]);
    let second = s.ok(&["scan", "db"]);
    let v = s.json(&["backup", "create", "db", "backups"]);
    assert_eq!(v["id"], 2);
    assert!(v["new_bytes"].as_u64() < v["bytes"].as_u64(), "incremental: {v}");

    let text = s.ok(&["backup", "list", "backups"]);
    assert!(text.lines().count() == 2 && text.contains("the first") && text.contains(" UTC "), "{text}");
    assert!(s.ok(&["backup", "list", "backups", "--files"]).contains("shared_checksum/"));
    let v = s.json(&["backup", "list", "backups", "--files"]);
    assert_eq!(v["backups"][0]["note"], "the first");
    let files = v["backups"][1]["file_list"].as_array().expect("files").clone();
    assert!(files.iter().any(|f| f["backups"] == 2), "{v}");
    assert_eq!(s.ok(&["backup", "verify", "backups"]), "backup 1: sound\nbackup 2: sound\n");
    assert_eq!(s.ok(&["backup", "verify", "backups", "--quick", "--quiet"]), "");

    let text = s.ok(&["backup", "restore", "backups", "db", "--id", "1"]);
    assert!(text.starts_with("restored backup 1 ("), "{text}");
    assert_eq!(s.ok(&["scan", "db"]), first);
    for keep in ["none", "session", "checksum"] {
        assert_eq!(s.json(&["backup", "restore", "backups", "db", "--keep", keep])["restored"], 2);
        assert_eq!(s.ok(&["scan", "db"]), second);
        s.ok(&["verify", "db"]);
    }
    s.ok(&["backup", "restore", "backups", "elsewhere"]);
    assert_eq!(s.ok(&["scan", "elsewhere"]), second);

    // Damage: found, named, and restored nowhere.
    let table = files.iter().filter_map(|f| f["path"].as_str()).find(|p| p.contains("shared_checksum")).expect("one");
    flip(&s.path(&format!("backups/{table}")), 40);
    let done = s.run(&["backup", "verify", "backups"]).fails(1, &["backup", "cannot be used"]);
    assert!(done.text().contains(table), "{}", done.text());
    let done = s.run(&["backup", "verify", "backups", "--json"]);
    let v: Value = serde_json::from_slice(&done.stdout).expect("JSON");
    assert_eq!((done.code, v["ok"].clone()), (1, Value::from(false)));
    s.run(&["backup", "restore", "backups", "db"]).fails(3, &[table, "damaged"]);
    assert_eq!(s.ok(&["scan", "db"]), second, "untouched");
    flip(&s.path(&format!("backups/{table}")), 40);

    assert_eq!(s.ok(&["backup", "delete", "backups", "1"]), "deleted backup 1\n");
    s.ok(&["backup", "create", "db", "backups"]);
    assert_eq!(s.json(&["backup", "purge", "backups", "--keep", "1"])["left"], serde_json::json!([3]));
    s.ok(&["backup", "verify", "backups"]);
}

#[test]
fn bad_calls_say_what_is_wrong() {
    let s = Sandbox::new();
    s.database("db", 10);
    s.run(&["backup", "list", "nowhere"]).fails(1, &["nowhere", "no backup directory", "hint: "]);
    s.run(&["backup", "delete", "nowhere", "1"]).fails(1, &["nowhere"]);
    assert!(!s.path("nowhere").exists(), "a mistyped name must not become a directory");
    s.run(&["backup", "create", "missing", "backups"]).fails(3, &["missing", "no such directory"]);
    s.run(&["backup", "create", "db", "db"]).fails(2, &["the database's own"]);
    s.ok(&["backup", "create", "db", "backups"]);
    s.run(&["backup", "verify", "backups", "--id", "9"]).fails(1, &["no backup 9"]);
    s.run(&["backup", "restore", "backups", "db", "--id", "9"]).fails(1, &["no backup 9"]);
    s.run(&["backup", "purge", "backups"]).fails(2, &["--keep"]);
    s.run(&["backup", "restore", "backups", "db", "--rate", "fast"]).fails(2, &["fast"]);
    s.run(&["checkpoint", "db", "backups"]).fails(2, &["backups", "exists"]);
    s.run(&["repair", "missing"]).fails(2, &["missing"]);
    std::fs::create_dir(s.path("empty")).expect("made");
    s.run(&["repair", "empty"]).fails(2, &["nothing to repair"]);
    for help in [&["backup", "create", "--help"][..], &["checkpoint", "--help"], &["repair", "--help"]] {
        assert!(s.ok(help).contains("Examples:"), "{help:?}");
    }
}

#[test]
fn a_checkpoint_is_a_database() {
    let s = Sandbox::new();
    s.database("db", 500);
    let before = s.ok(&["scan", "db"]);
    assert_eq!(s.ok(&["checkpoint", "db", "copy"]), "made checkpoint copy\n");
    s.ok(&["delete", "db", "key000001"]);
    assert_eq!(s.ok(&["scan", "copy"]), before);
    s.ok(&["verify", "copy"]);
    assert_eq!(s.json(&["checkpoint", "db", "second", "--keep-log", "1G"])["checkpoint"], "second");
}

#[test]
fn a_repaired_database_verifies() {
    let s = Sandbox::new();
    s.database("db", 4000);
    s.ok(&["create-cf", "db", "other", "--reverse-order"]);
    s.ok(&["put", "db", "a", "1", "--column-family", "other"]);
    let before = s.ok(&["scan", "db"]);
    for file in s.files("db", "") {
        let name = file.file_name().expect("a name").to_string_lossy().into_owned();
        if name.starts_with("MANIFEST") || name == "CURRENT" {
            std::fs::remove_file(file).expect("removed");
        }
    }
    s.run(&["scan", "db"]).fails(3, &["CURRENT is missing", "rockmill repair"]);
    let text = s.ok(&["repair", "db"]);
    for words in ["the MANIFEST was not whole", "repaired: column families default", "kept", "old files are in db/lost"]
    {
        assert!(text.contains(words), "no {words:?} in\n{text}");
    }
    assert_eq!(s.ok(&["scan", "db"]), before);
    s.ok(&["verify", "db"]);
    // A damaged table is reported; the rest is recovered.
    let table = s.files("db", ".sst").pop().expect("a table");
    flip(&table, 100);
    let v = s.json(&["repair", "db"]);
    assert_eq!((&v["tables_damaged"], &v["manifest_damage"]), (&Value::from(1), &Value::Null), "{v}");
    assert_eq!(v["damaged"][0]["file"], table.file_name().expect("a name").to_string_lossy().into_owned());
    s.ok(&["verify", "db"]);
}

/// If something is missing or damaged, the hint names the command that helps.
#[test]
fn hints_name_the_command_that_helps() {
    let s = Sandbox::new();
    s.run(&["put", "new", "k", "v"]).fails(3, &["no such directory", "--create"]);
    s.run(&["get", "new", "k"]).fails(3, &["no such directory", "load"]);
    s.database("db", 500);
    s.ok(&["backup", "create", "db", "backups"]);
    let manifest = s.files("db", "").into_iter().find(|f| f.display().to_string().contains("MANIFEST")).expect("one");
    std::fs::remove_file(manifest).expect("removed");
    for command in ["get", "put", "delete"] {
        let args = ["db", "k", "v"];
        let args: Vec<&str> =
            [command].into_iter().chain(args[..if command == "put" { 3 } else { 2 }].to_vec()).collect();
        s.run(&args).fails(3, &["MANIFEST", "rockmill repair"]);
    }
    let table = s.files("backups/shared_checksum", ".sst").pop().expect("a table");
    flip(&table, 100);
    s.run(&["backup", "restore", "backups", "db"]).fails(3, &["damaged", "rockmill backup verify"]);
    s.run(&["backup", "restore", "backups", "other"]).fails(3, &["damaged", "rockmill backup verify"]);
    assert!(!s.path("other").exists(), "a failed restore left something");
}

#[test]
fn a_restore_replaces_another_database_only_by_force() {
    let s = Sandbox::new();
    s.database("db", 500);
    let all = s.ok(&["scan", "db"]);
    s.ok(&["backup", "create", "db", "backups"]);
    s.ok(&["put", "other", "precious", "1", "--create"]);
    s.run(&["backup", "restore", "backups", "other"]).fails(2, &["not the one of the backup", "--force"]);
    assert_eq!(s.ok(&["get", "other", "precious"]), "1");
    s.ok(&["delete", "db", "key000001"]);
    s.ok(&["backup", "restore", "backups", "db"]);
    assert_eq!(s.ok(&["scan", "db"]), all);
    s.ok(&["backup", "restore", "backups", "other", "--force"]);
    assert_eq!(s.ok(&["scan", "other"]), all);
}

/// The commands find the WALs in the directory of the database's options.
#[test]
fn wals_elsewhere_are_verified_and_repaired_and_not_shared_with_a_checkpoint() {
    let s = Sandbox::new();
    let wals = s.path("wals").display().to_string();
    let option = format!("wal_dir={wals}");
    s.ok(&["put", "db", "a", "flushed", "--create", "--option", &option]);
    s.ok(&["put", "db", "b", "logged"]);
    s.ok(&["checkpoint", "db", "copy", "--keep-log", "1G"]);
    s.ok(&["put", "copy", "b", "another"]);
    assert_eq!(s.ok(&["get", "db", "b"]), "logged");
    s.ok(&["put", "db", "c", "logged"]);
    assert_eq!(s.json(&["verify", "db"])["wal_records"], 1);
    let wal = s.files("wals", ".log").pop().expect("a WAL");
    flip(&wal, 12);
    assert!(s.run(&["verify", "db"]).fails(1, &["1 problem"]).text().contains(".log"));
    flip(&wal, 12);
    std::fs::rename(s.path("wals"), s.path("away")).expect("a rename");
    assert!(s.run(&["verify", "db"]).fails(1, &["1 problem"]).text().contains("were not checked"));
    let text = s.ok(&["repair", "db"]);
    assert!(text.contains("not read: the WALs in") && text.contains("--wal-dir"), "{text}");
    std::fs::rename(s.path("away"), s.path("wals")).expect("a rename");
    assert_eq!(s.ok(&["get", "db", "c"]), "logged");
    let v = s.json(&["repair", "db", "--wal-dir", &wals]);
    assert_eq!((&v["wals"], &v["wal_entries"]), (&Value::from(1), &Value::from(1)), "{v}");
    assert_eq!(s.ok(&["get", "db", "c"]), "logged");
}

#[test]
fn a_checkpoint_leaves_a_database_alone_that_has_its_temporary_name() {
    let s = Sandbox::new();
    s.database("db", 500);
    s.ok(&["put", "x.tmp", "precious", "1", "--create"]);
    s.ok(&["checkpoint", "db", "x"]);
    assert_eq!(s.ok(&["get", "x.tmp", "precious"]), "1");
    assert_eq!(s.ok(&["scan", "x"]), s.ok(&["scan", "db"]));
}

/// Lookups next to a writer that constantly flushes and compacts find the entries that existed before they began.
#[test]
fn reading_commands_beside_a_busy_writer_find_what_is_there() {
    let s = Sandbox::new();
    let mut options = rockmill::Options::default();
    options.create_if_missing(true);
    options.set_level_zero_file_num_compaction_trigger(2);
    let db = rockmill::Db::open(&options, s.path("db")).expect("opens");
    (0..500).for_each(|i| db.put(format!("key{i:04}"), "value").expect("a write"));
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0u64.. {
                if stop.load(std::sync::atomic::Ordering::Relaxed) {
                    break;
                }
                db.put(format!("other{n:06}"), "x").and_then(|()| db.flush()).expect("a flush");
                // At hundreds of flushes per second, a reader needs a moment in which the tables do not change.
                std::thread::sleep(std::time::Duration::from_millis(3));
            }
        });
        let all = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for i in 0..10 {
                assert_eq!(s.ok(&["get", "db", &format!("key{:04}", i * 49)]), "value");
                assert!(s.ok(&["scan", "db"]).lines().count() >= 500);
                assert!(s.ok(&["stats", "db"]).contains("column family default"));
                assert_eq!(s.ok(&["list-cf", "db"]).trim(), "default");
                s.ok(&["verify", "db"]);
            }
        }));
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        all.unwrap_or_else(|e| std::panic::resume_unwind(e));
    });
}
