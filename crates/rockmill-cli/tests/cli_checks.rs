//! stats, compact, verify and dump, on intact and on damaged databases.

mod cli_support;

use std::path::Path;
use std::sync::Arc;

use cli_support::{Sandbox, flip};
use rockmill::internals::{ManifestWriter, current_manifest, for_each_edit, merge_into_extra_run};
use rockmill_format::edit::TablePiece;
use rockmill_format::filename::{self, FileType};
use rockmill_io::{FileSystem, PosixFileSystem};
use rockmill_skip::{Needs, skip};
use serde_json::Value;

#[test]
fn stats_show_the_levels() {
    let s = Sandbox::new();
    s.database("db", 8000);
    let v = s.json(&["stats", "db"]);
    let family = &v["column_families"][0];
    assert_eq!(family["name"], "default");
    let levels = v["levels"].as_array().expect("levels");
    assert_eq!(levels.len(), 7);
    assert_eq!(family["levels"], v["levels"]);
    let sum = |name: &str| levels.iter().map(|l| l[name].as_u64().expect("a number")).sum::<u64>();
    let on_disk: u64 = s.files("db", ".sst").iter().map(|p| p.metadata().expect("there").len()).sum();
    assert_eq!(sum("bytes"), on_disk);
    assert_eq!(sum("files"), s.files("db", ".sst").len() as u64);
    assert_eq!(sum("entries") + family["memtable_entries"].as_u64().expect("a number"), 8000);
    assert!(family["space_amplification"].as_f64().is_some_and(|a| a >= 1.0));
    assert_eq!(family["estimated_keys"], 8000);
    let memory = |part: &str| v["memory_bytes"][part].as_u64().expect("a number");
    assert_eq!(memory("memtables"), family["memtable_bytes"].as_u64().expect("a number"));
    assert!(memory("total") >= memory("memtables") + memory("table_readers"));

    let text = s.ok(&["stats", "db"]);
    for word in ["column family default", "Level", "Files", "Score", "Debt", "L0", "L6", "space amplification"] {
        assert!(text.contains(word), "no {word} in\n{text}");
    }
    assert!(text.contains("memory of this command "), "{text}");
    // The load's log shows its flushes, and that nothing failed.
    let ended = |what: &str| v["ended_jobs"][what].as_u64().expect("a number");
    assert!(ended("flushes") > 0, "{v}");
    for what in ["flushes_failed", "compactions_failed", "compactions_dropped"] {
        assert_eq!(ended(what), 0, "{v}");
    }
    assert!(text.contains("ended, by the info log: "), "{text}");
    // Jobs are those of a process that has it open.
    assert_eq!(v["running_jobs"], Value::Null);
    let open = rockmill::Db::open(&rockmill::Options::default(), s.path("db")).expect("opens");
    assert_eq!(s.json(&["stats", "db"])["running_jobs"].as_array().map(Vec::len), Some(0));
    assert!(s.ok(&["stats", "db"]).contains("another process has the database open; it runs 0 jobs now"));
    drop(open);

    // The same with a picture of the tree; it overwrites an existing page, but no other file.
    let report = |file: &str| s.run(&["stats", "db", "--report", file]);
    assert!(report("tree.html").ok().contains("column family default"));
    let page = std::fs::read_to_string(s.path("tree.html")).expect("a page");
    for part in ["<svg", "rockmill stats db --report tree.html", "key000000 to key007999", "no level is due", "newest"]
    {
        assert!(page.contains(part), "no {part} in\n{page}");
    }
    assert!(!page.contains("<script") && !page.contains("http"), "{page}");
    report("tree.html").ok();
    s.file("thesis.html", "mine");
    report("thesis.html").fails(2, &["holds something else"]);
    s.run(&["stats", "db", "--report", "tree.html", "--prometheus"]).fails(2, &["--prometheus"]);

    let empty = s.file("empty.tsv", "");
    s.ok(&["load", "empty", &empty]);
    assert_eq!(s.json(&["stats", "empty"])["column_families"][0]["space_amplification"], 1.0);
}

#[test]
fn compact_measures_itself_and_keeps_the_contents() {
    let s = Sandbox::new();
    s.database("db", 8000);
    s.ok(&["delete", "db", "key000007", "key004000"]);
    let before = s.ok(&["scan", "db"]);
    let v = s.json(&["compact", "db", "--engine", "pread", "--threads", "2", "--compression", "zstd"]);
    assert_eq!(v["engine"], "pread");
    for name in ["input_bytes", "output_bytes", "wall_seconds", "cpu_seconds", "syscalls", "jobs"] {
        assert!(v[name].as_f64().is_some_and(|n| n > 0.0), "{name} in {v}");
    }
    let files = |levels: &Value| -> Vec<u64> {
        levels.as_array().expect("levels").iter().map(|l| l["files"].as_u64().expect("a number")).collect()
    };
    assert!(files(&v["levels_before"])[0] > 0, "the flushed memtable is in L0: {v}");
    let after = files(&v["levels_after"]);
    assert_eq!(after[..6], [0; 6], "{v}");
    assert!(after[6] > 0);
    assert_eq!(s.ok(&["scan", "db"]), before);
    let stats = s.json(&["stats", "db"]);
    assert_eq!(stats["levels"][6]["entries"], 7998);
    assert_eq!(stats["levels"][6]["deletions"], 0);
    s.ok(&["verify", "db"]);

    let text = s.ok(&["compact", "db"]);
    assert!(text.starts_with("compacted ") && text.contains("\nafter:  L6 "), "{text}");
    assert_eq!(s.ok(&["compact", "db", "--bottommost", "skip"]), "nothing to compact\n");
    s.ok(&["compact", "db", "--from", "key000100", "--to", "key000200"]);
    s.run(&["compact", "db", "--from", "b", "--to", "a"]).fails(2, &["end comes before the start"]);
    assert_eq!(s.ok(&["scan", "db"]), before);
}

#[test]
fn verify_finds_nothing_in_a_sound_database_and_changes_nothing() {
    let s = Sandbox::new();
    s.database("db", 8000);
    let listing = |s: &Sandbox| -> Vec<_> {
        let modified = |p: &std::path::PathBuf| p.metadata().expect("there").modified().expect("a time");
        s.files("db", "").into_iter().map(|p| (modified(&p), p)).collect()
    };
    let before = listing(&s);
    let text = s.ok(&["verify", "db"]);
    assert!(text.ends_with("all sound\n"), "{text}");
    let v = s.json(&["verify", "db", "--direct"]);
    assert_eq!(v["ok"], true);
    assert_eq!(v["problems"], serde_json::json!([]));
    assert_eq!(v["tables"], s.files("db", ".sst").len());
    assert!(v["wal_records"].as_u64().is_some_and(|n| n > 0), "{v}");
    assert_eq!(s.ok(&["verify", "db", "--quiet"]), "");
    assert_eq!(listing(&s), before);
}

#[test]
fn verify_finds_every_flipped_bit_of_a_table() {
    let seed = 7;
    eprintln!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let s = Sandbox::new();
    s.database("db", 2000);
    s.ok(&["compact", "db", "--compression", "none", "--bloom-bits", "10"]);
    let table = s.files("db", ".sst").pop().expect("a table");
    let sound = std::fs::read(&table).expect("read");
    for _ in 0..12 {
        // The footer of format_version 5 has no checksum of its own, and some of its bytes are padding.
        let at = rng.u64(0..sound.len() as u64 - 53);
        flip(&table, at);
        let done = s.run(&["verify", "db"]).fails(1, &["problem"]);
        let name = table.file_name().expect("a name").to_string_lossy().into_owned();
        assert!(done.text().contains("problem: ") && done.text().contains(&name), "bit at {at}: {}", done.text());
        std::fs::write(&table, &sound).expect("written");
    }
    s.ok(&["verify", "db"]);
}

/// Makes the database's MANIFEST name `piece` as an additional file of its first table.
fn add_piece(dir: &Path, piece: TablePiece) {
    let fs: Arc<dyn FileSystem> = Arc::new(PosixFileSystem::default());
    let number = current_manifest(&*fs, dir).expect("a MANIFEST");
    let (old, mut edits) = (dir.join(filename::manifest(number)), Vec::new());
    for_each_edit(&*fs, &old, &mut |edit| {
        edits.push(edit);
        Ok(())
    })
    .expect("sound");
    let live: Vec<u64> = std::fs::read_dir(dir)
        .expect("there")
        .filter_map(|e| match filename::parse(&e.ok()?.file_name().to_string_lossy())? {
            FileType::Table(n) => Some(n),
            _ => None,
        })
        .collect();
    // A table that a compaction moved to another level appears again, with the same files.
    let files = || edits.iter().flat_map(|e| &e.new_files).map(|(_, f)| f.number);
    let table = files().find(|number| live.contains(number)).expect("a table");
    let files = edits.iter_mut().flat_map(|e| &mut e.new_files).map(|(_, f)| f);
    files.filter(|f| f.number == table).for_each(|f| f.pieces.push(piece));
    let next = edits.iter().filter_map(|e| e.next_file_number).max().expect("a number");
    ManifestWriter::create(&fs, dir, next - 1, &edits).expect("written");
    std::fs::remove_file(old).expect("removed");
}

#[test]
fn verify_and_dump_know_the_pieces_of_tables() {
    let s = Sandbox::new();
    s.database("db", 3000);
    let (path, bytes) = (s.path("db/000001.sst"), b"no table of its own");
    std::fs::write(&path, bytes).expect("written");
    add_piece(&s.path("db"), TablePiece { number: 1, size: bytes.len() as u64, live: 7, path_id: 0 });
    // The piece belongs to the database; the error is that it is not a table.
    let done = s.run(&["verify", "db", "--json"]);
    let v: Value = serde_json::from_str(&done.text()).expect("an object");
    assert!(done.code == 1 && v["warnings"].as_array().is_some_and(Vec::is_empty), "{v}");
    assert!(v["problems"].as_array().is_some_and(|all| all.len() == 1), "{v}");
    let message = v["problems"][0]["message"].as_str().expect("text");
    assert!(message.contains("bad table magic number") && message.contains("000001.sst"), "{message}");
    let manifest = s.files("db", "").into_iter().find(|p| p.to_string_lossy().contains("MANIFEST")).expect("there");
    let text = s.ok(&["dump", &manifest.to_string_lossy()]);
    assert!(text.contains(r#"pieces [{"number":1,"size":19,"live":7}]"#), "{text}");
    std::fs::write(&path, "cut").expect("written");
    let done = s.run(&["verify", "db"]).fails(1, &[]);
    assert!(done.text().contains("000001.sst: has 3 bytes, the MANIFEST says 19"), "{}", done.text());
    std::fs::remove_file(&path).expect("removed");
    let done = s.run(&["verify", "db"]).fails(1, &[]);
    assert!(done.text().contains("000001.sst: missing"), "{}", done.text());
}

#[test]
fn verify_names_what_is_missing_cut_or_left_over() {
    let s = Sandbox::new();
    s.database("db", 3000);
    let tables = s.files("db", ".sst");
    let sound = std::fs::read(&tables[0]).expect("read");

    std::fs::write(s.path("db/009999.sst"), b"left over").expect("written");
    let v = s.json(&["verify", "db"]);
    assert_eq!(v["ok"], true, "an orphan is no problem");
    assert_eq!(v["warnings"][0]["file"], "009999.sst");
    std::fs::remove_file(s.path("db/009999.sst")).expect("removed");

    std::fs::write(&tables[0], &sound[..sound.len() - 1]).expect("written");
    let done = s.run(&["verify", "db"]).fails(1, &[]);
    assert!(done.text().contains("bytes, the MANIFEST says"), "{}", done.text());
    std::fs::remove_file(&tables[0]).expect("removed");
    let done = s.run(&["verify", "db", "--json"]);
    assert_eq!(done.code, 1);
    let v: Value = serde_json::from_str(&done.text()).expect("an object");
    assert_eq!(v["ok"], false);
    assert!(v["problems"][0]["message"].as_str().is_some_and(|m| m.starts_with("missing")), "{v}");
    std::fs::write(&tables[0], &sound).expect("written");

    // A record in the middle of the WAL.
    let wal = s.files("db", ".log").pop().expect("a WAL");
    let bytes = std::fs::read(&wal).expect("read");
    assert!(bytes.len() > 1000, "the test needs a WAL with something in it");
    flip(&wal, 20);
    let done = s.run(&["verify", "db"]).fails(1, &[]);
    assert!(done.text().contains("offset 0"), "{}", done.text());
    // A truncated last record is normal after a crash.
    std::fs::write(&wal, &bytes[..bytes.len() - 3]).expect("written");
    let text = s.ok(&["verify", "db"]);
    assert!(text.contains("warning: ") && text.contains("ends inside a record"), "{text}");
    std::fs::write(&wal, &bytes).expect("written");

    let manifest = s.files("db", "").into_iter().find(|p| p.to_string_lossy().contains("MANIFEST")).expect("there");
    flip(&manifest, 30);
    s.run(&["verify", "db"]).fails(1, &["1 problem found"]);
    flip(&manifest, 30);
    std::fs::write(s.path("db/CURRENT"), b"nonsense").expect("written");
    let done = s.run(&["verify", "db"]).fails(1, &[]);
    assert!(done.text().contains("CURRENT"), "{}", done.text());
}

#[test]
fn dump_shows_each_kind_of_file() {
    let s = Sandbox::new();
    // Few tables, so that no compaction removes the range deletion before the test sees it.
    let file = s.file("in.tsv", (0..500).map(|i| format!("key{i:03}\tvalue {i}\n")).collect::<String>());
    s.ok(&["load", "db", &file, "--wal=off"]);
    s.ok(&["delete", "db", "--from", "key001", "--to", "key003", "--wal=off"]);
    s.ok(&["put", "db", "logged", "\u{e4}"]);
    let name = |p: &std::path::Path| p.to_string_lossy().into_owned();

    let current = s.ok(&["dump", "db/CURRENT"]);
    assert!(current.starts_with("MANIFEST-"), "{current}");
    let manifest = format!("db/{}", current.trim_end());
    let text = s.ok(&["dump", &manifest]);
    assert!(text.contains("comparator leveldb.BytewiseComparator") && text.contains("  add    L"), "{text}");
    let v = s.json(&["dump", &manifest]);
    let files: usize =
        v["edits"].as_array().expect("edits").iter().filter_map(|e| e["new_files"].as_array()).map(Vec::len).sum();
    assert!(files > 0, "{v}");
    assert_eq!(v["count"], v["edits"].as_array().expect("edits").len());

    let wal = name(s.files("db", ".log").last().expect("a WAL"));
    let text = s.ok(&["dump", &wal]);
    assert!(text.contains("Put 'logged' => '\u{e4}'"), "{text}");
    let v = s.json(&["dump", &wal]);
    let update = &v["records"][0]["updates"][0];
    assert_eq!(
        (&update["kind"], &update["key"], &update["value_hex"]),
        (&"Put".into(), &"logged".into(), &"c3a4".into())
    );
    assert!(s.ok(&["dump", &wal, "--hex"]).contains("6c6f67676564"));

    let mut tombstones = 0;
    for table in s.files("db", ".sst") {
        let text = s.ok(&["dump", &name(&table)]);
        for word in ["Footer", "format_version 5", "Properties", "rocksdb.num.entries", "Index: "] {
            assert!(text.contains(word), "no {word} in\n{text}");
        }
        let v = s.json(&["dump", &name(&table), "--entries"]);
        let entries = v["entries"].as_array().expect("entries").len();
        let tombs = v["range_deletions"].as_array().expect("tombstones").len();
        tombstones += tombs;
        let says = v["properties"]["rocksdb.num.entries"].as_str().expect("a count");
        assert_eq!((entries + tombs).to_string(), says, "range deletions count as entries");
        let some = s.json(&["dump", &name(&table), "--entries", "--limit", "1"]);
        assert_eq!(some["entries"].as_array().expect("entries").len(), entries.min(1));
    }
    assert_eq!(tombstones, 1);
    let table = name(&s.files("db", ".sst")[0]);
    let lines = s.ok(&["dump", &table, "--entries", "--limit", "3"]);
    assert_eq!(lines.lines().filter(|l| l.contains(" => ")).count(), 3, "{lines}");

    s.run(&["dump", "db"]).fails(2, &["is a directory"]);
    s.run(&["dump", "db/nope.sst"]).fails(3, &["No such file"]);
    s.run(&["dump", "db/IDENTITY"]).fails(2, &["plain text"]);
    let odd = s.file("odd", b"not anything");
    s.run(&["dump", &odd]).fails(2, &["--type"]);
    s.run(&["dump", &odd, "--type", "sst"]).fails(3, &["not an SST file"]);
    std::fs::copy(&table, s.path("renamed")).expect("copied");
    assert!(s.ok(&["dump", "renamed"]).contains("Footer"), "a table is known by its end");
}

#[test]
fn dump_shows_what_is_left_of_a_damaged_table() {
    let s = Sandbox::new();
    s.database("db", 1000);
    s.ok(&["compact", "db", "--compression", "none"]);
    let table = s.files("db", ".sst").pop().expect("a table");
    flip(&table, 100);
    let name = table.to_string_lossy().into_owned();
    let done = s.run(&["dump", &name, "--entries"]).fails(3, &["damaged at one place"]);
    assert!(done.text().contains("DAMAGED: block checksum mismatch"), "{}", done.text());
    assert!(done.text().contains("'key000999'"), "what is sound is still shown");
    let done = s.run(&["dump", &name, "--entries", "--json"]);
    assert_eq!(done.code, 3);
    let v: Value = serde_json::from_str(&done.text()).expect("still one object");
    assert_eq!(v["damage"][0]["offset"], 0);

    // Truncated anywhere: an error, never a panic.
    let bytes = std::fs::read(&table).expect("read");
    for len in [0, 1, 52, 53, 500, bytes.len() / 2, bytes.len() - 1] {
        std::fs::write(&table, &bytes[..len]).expect("written");
        s.run(&["dump", &name, "--entries"]).fails(3, &[]);
    }
}

/// Every file below a directory, with its bytes.
fn contents(dir: &std::path::Path) -> std::collections::BTreeMap<std::path::PathBuf, Vec<u8>> {
    let mut all = std::collections::BTreeMap::new();
    for entry in std::fs::read_dir(dir).expect("a directory").flatten() {
        let path = entry.path();
        if path.is_dir() {
            all.extend(contents(&path));
        } else {
            all.insert(path.clone(), std::fs::read(&path).expect("a file"));
        }
    }
    all
}

#[test]
fn a_benchmark_empties_nothing_that_it_did_not_make() {
    let s = Sandbox::new();
    s.database("db", 300);
    s.file("thesis.html", "<title>My thesis</title>");
    s.file("notes.json", "{}");
    std::fs::create_dir(s.path("peers")).expect("a directory");
    std::fs::rename(s.path("db"), s.path("peers/rockmill-2")).expect("moved");
    s.database("db", 200);
    std::fs::create_dir(s.path("plain")).expect("a directory");
    s.file("plain/precious", "x");
    let before = contents(s.dir.path());
    let say = "no benchmark made it";
    let fills = ["--benchmarks=fillseq", "--num=50", "--quiet"];
    for flags in [
        &["--db=db"][..],
        &["--db=db", "--benchmarks=overwrite"],
        &["--db=db", "--benchmarks=readrandom"],
        &["--db=plain"],
        &["--db=peers", "--peer=rockmill"],
        &["--db=new", "--options_string=wal_dir=db"],
    ] {
        s.run(&[&["bench"][..], &fills, flags].concat()).fails(2, &[say, "choose another"]);
    }
    s.run(&["bench", "--db=db", "--peer=rockmill"]).fails(2, &["is a database that no benchmark made"]);
    s.run(&["bench", "compact", "--db=db", "--mb=1", "--engines=pread"]).fails(2, &["was not made by"]);
    for flags in [["--db=new", "--report=thesis.html"], ["--db=new", "--json=notes.json"]] {
        s.run(&[&["bench"][..], &fills, &flags].concat()).fails(2, &["holds something else than such results"]);
        let compact = ["bench", "compact", "--mb=1", "--engines=pread"];
        s.run(&[&compact[..], &flags].concat()).fails(2, &["holds something else than such results"]);
    }
    let simulate = ["simulate", "--strategy", "leveled", "--data", "1G"];
    s.run(&[&simulate[..], &["--report", "thesis.html"]].concat()).fails(2, &["holds something else"]);
    s.run(&["stress", "new-stress", "--samples", "thesis.html"]).fails(2, &["holds something else"]);
    s.run(&["stress", "db"]).fails(2, &["is of no stress run"]);
    s.run(&["stress", "plain"]).fails(2, &["is of no stress run"]);
    assert_eq!(contents(s.dir.path()), before, "every file is as it was");

    // With `--use_existing_db` it reads and writes, but deletes nothing, and does not mark the directory as its own.
    s.ok(&["bench", "--db=db", "--use_existing_db", "--benchmarks=fillseq,readrandom", "--num=50", "--quiet"]);
    assert_eq!(s.ok(&["scan", "db", "--count"]), "200\n");
    s.run(&[&["bench", "--db=db"][..], &fills].concat()).fails(2, &[say]);
    for _ in 0..2 {
        s.ok(&[&["bench", "--db=both", "--peer=rockmill"][..], &fills, &["--nomeasure_device"]].concat());
        s.ok(&[&["bench", "--db=both"][..], &fills].concat());
    }
    // It empties directories that it created or found empty: alone, with peers, with WALs elsewhere.
    std::fs::create_dir(s.path("mine")).expect("a directory");
    for _ in 0..2 {
        let more = ["--db=mine", "--report=r.html", "--json=r.json", "--options_string=wal_dir=wals"];
        s.ok(&[&["bench"][..], &fills, &more].concat());
        s.ok(&[&["bench", "--db=mine", "--peer=rockmill"][..], &fills, &["--nomeasure_device"]].concat());
    }
    s.ok(&["verify", "mine", "--quiet"]);
}

#[test]
fn bench_takes_db_benchs_flags_and_writes_its_files() {
    let s = Sandbox::new();
    let line = ["bench", "--db=bench-db", "--benchmarks=fillseq,readrandom,ycsb-c", "--num=300", "--recordcount=1"];
    let text = s.ok(&[&line[..], &["--json=b.json", "--report=b.html", "--nomeasure_device"]].concat());
    assert!(text.contains("fillseq      : ") && text.contains("(300 of 300 found)"), "{text}");
    let read = |name: &str| std::fs::read_to_string(s.path(name)).expect(name);
    let v: Value = serde_json::from_str(&read("b.json")).expect("JSON");
    assert_eq!(v["results"].as_array().map(Vec::len), Some(3));
    assert!(read("b.html").contains("<svg") && read("b.html").trim_end().ends_with("</html>"));
    assert!(s.ok(&["bench", "--help"]).contains("--peer"));
    s.run(&["bench", "--db=other", "--benchmarks=fillsek"]).fails(2, &["did you mean fillseq?"]);
    assert!(!s.path("other").exists());
}

/// Names and contents of a database's tables.
fn tables(s: &Sandbox, db: &str) -> Vec<(String, Vec<u8>)> {
    let name = |p: &std::path::PathBuf| p.file_name().expect("a name").to_string_lossy().into_owned();
    s.files(db, ".sst").iter().map(|p| (name(p), std::fs::read(p).expect("readable"))).collect()
}

fn copy(s: &Sandbox, from: &str, to: &str) {
    std::fs::create_dir(s.path(to)).expect("a new directory");
    for file in s.files(from, "") {
        std::fs::copy(&file, s.path(to).join(file.file_name().expect("a name"))).expect("a copy");
    }
}

/// A database with overlapping L0 tables that have every key twice, and with some data in the WAL.
fn overlapping(s: &Sandbox) {
    let text: String = (0..8000).map(|i| format!("key{i:06}\tvalue {i} {}\n", "x".repeat(i % 90))).collect();
    let file = s.file("twice.tsv", text);
    for _ in 0..2 {
        let l0 = ["--l0-trigger", "100", "--target-file-size", "64K", "--write-buffer-size", "64K"];
        s.ok(&[&["load", "db", &file, "--compression", "none", "--batch", "50"][..], &l0].concat());
    }
}

#[test]
fn compact_explains_itself_without_doing_anything() {
    let s = Sandbox::new();
    overlapping(&s);
    let before = (tables(&s, "db"), s.files("db", ""));
    let v = s.json(&["compact", "db", "--explain", "--threads", "3", "--bloom-bits", "10"]);
    assert_eq!(before, (tables(&s, "db"), s.files("db", "")), "nothing changes");
    assert!(v["unflushed_entries"].as_u64().is_some_and(|n| n > 0), "{v}");
    let job = &v["jobs"][0];
    assert_eq!(
        (&job["level"], &job["output_level"], &job["trivial_move"]),
        (&0.into(), &6.into(), &false.into()),
        "{v}"
    );
    let parts = job["parts"].as_array().expect("parts");
    assert_eq!((parts.len(), &parts[0]["begin"], &parts[2]["end"]), (3, &Value::Null, &Value::Null), "{v}");
    assert_eq!(parts[0]["end"], parts[1]["begin"]);
    assert!(parts[0]["map"].is_null(), "blocks are for those who ask");
    let runs = job["runs"].as_array().expect("runs");
    let files = || runs.iter().flat_map(|r| r["files"].as_array().expect("files"));
    assert!(runs.len() > 10 && runs.iter().all(|r| r["level"] == 0), "{v}");
    assert_eq!(files().map(|f| f["bytes"].as_u64().expect("bytes")).sum::<u64>(), job["input_bytes"]);
    assert_eq!(job["rules"]["bottommost"], true);
    assert_eq!(job["output"]["file_size_target"], 64 << 10);

    // Every block of the tables, in order, is in the map.
    let v = s.json(&["compact", "db", "--explain=blocks", "--threads", "1"]);
    let part = &v["jobs"][0]["parts"][0];
    let mapped: Vec<(u64, u64)> = part["map"]
        .as_array()
        .expect("a map")
        .iter()
        .flat_map(|r| r["files"].as_array().expect("files"))
        .flat_map(|f| f["blocks"].as_array().expect("blocks"))
        .map(|b| (b[0].as_u64().expect("offset"), b[1].as_u64().expect("size")))
        .collect();
    assert_eq!(Some(mapped.len() as u64), part["blocks"].as_u64());
    let table = files().next().expect("a table")["file"].as_str().expect("a name").to_owned();
    let dumped = s.json(&["dump", &format!("db/{table}")]);
    let blocks = dumped["index"].as_array().map(|blocks| blocks.len() as u64);
    assert_eq!(blocks, files().next().expect("a table")["blocks"].as_u64(), "{dumped}");

    let text = s.ok(&["compact", "db", "--explain", "--engine", "pread", "--threads", "1"]);
    for words in
        ["first: ", "job 1 of 1: L0 into L6", "  run 1: L0", "  part 1 of 1: keys all", "  rules: ", "engine: pread"]
    {
        assert!(text.contains(words), "no {words:?} in\n{text}");
    }
    s.ok(&["compact", "db", "--quiet"]);
    assert!(s.ok(&["compact", "db", "--explain", "--bottommost", "skip"]).starts_with("nothing to compact"));
    let text = s.ok(&["compact", "db", "--explain=blocks", "--from", "key000100", "--to", "key000200"]);
    assert!(text.contains("job 1 of 1: L6 into L6") && text.contains("run 1 0"), "{text}");
    s.run(&["compact", "db", "--explain", "--from", "b", "--to", "a"]).fails(2, &["end comes before the start"]);
    s.run(&["compact", "db", "--explain", "--reproducible"]).fails(2, &["cannot be used with"]);
    s.run(&["compact", "db", "--explain=everything"]).fails(2, &["jobs, blocks"]);
}

#[test]
fn reproducible_compactions_of_copies_give_the_same_tables() {
    let s = Sandbox::new();
    overlapping(&s);
    s.ok(&["delete", "db", "key000007", "key004000"]);
    for (name, engine, reproducible) in
        [("a", "pread", true), ("b", "pread", true), ("c", "auto", true), ("d", "pread", false)]
    {
        copy(&s, "db", name);
        let args = ["compact", name, "--engine", engine, "--threads", "3", "--bloom-bits", "10", "--reproducible"];
        s.ok(&args[..args.len() - usize::from(!reproducible)]);
        s.ok(&["verify", name]);
    }
    let first = tables(&s, "a");
    assert!(first.len() > 3, "parts of a job are among them");
    assert_eq!(first, tables(&s, "b"));
    assert_eq!(first, tables(&s, "c"));
    assert_ne!(first, tables(&s, "d"), "ids and times are otherwise those of the run");
    assert_eq!(s.ok(&["scan", "a"]), s.ok(&["scan", "d"]));
    // Again on the result: the same.
    for name in ["a", "c"] {
        s.ok(&["compact", name, "--reproducible", "--compression", "zstd"]);
    }
    assert_eq!(tables(&s, "a"), tables(&s, "c"));
    assert_ne!(first, tables(&s, "a"));
}

#[test]
fn compact_takes_a_merge_program_and_says_what_is_wrong_with_one() {
    let s = Sandbox::new();
    let one = s.file("one.tsv", "key\tvalue\n");
    s.ok(&["load", "db", &one]);
    s.ok(&["create-cf", "db", "back", "--reverse-order"]);
    let text: String = (0..8000).map(|i| format!("key{i:06}\tvalue {i} {}\n", "x".repeat(i % 90))).collect();
    let file = s.file("twice.tsv", text);
    for _ in 0..2 {
        let l0 = ["--l0-trigger", "100", "--target-file-size", "64K", "--write-buffer-size", "64K"];
        s.ok(&[&["load", "db", &file, "--column-family", "back", "--compression", "none", "--batch", "50"][..], &l0]
            .concat());
    }
    let bpf = |name: &str| format!("{}/../rockmill-kernel/bpf/{name}", env!("CARGO_MANIFEST_DIR"));
    let compact = |name: &str, engine: &[&str]| {
        copy(&s, "db", name);
        let args =
            [&["compact", name, "--column-family", "back", "--reproducible", "--threads", "3"][..], engine].concat();
        let said = s.json(&args)["engine_note"].as_str().unwrap_or_default().to_owned();
        (tables(&s, name), said)
    };
    let (pread, _) = compact("a", &["--engine", "pread"]);
    let program = bpf("examples/reverse.bpf.o");
    let (kernel, said) = compact("b", &["--engine", "kernel", "--kernel-program", &program]);
    assert!(pread.len() > 3 && pread == kernel, "{said}");
    if said.contains("for want of kernel") {
        skip("a merge program of one's own in the kernel", &Needs::Kernel.because(said));
    } else {
        let want = format!("driver run, program {program} (comparator rocksdb.ReverseBytewiseComparator)");
        assert_eq!(said, want);
        let (built_in, said) = compact("c", &["--engine", "kernel"]);
        assert!(said.contains("another engine: ") && said.contains("keys in the order of rocksdb.Reverse"), "{said}");
        assert!(pread == built_in);
    }
    for (name, why) in [("none.o", "No such file"), ("merge.h", "no 64-bit little-endian ELF file for BPF")] {
        let path = bpf(name);
        let why = [format!("kernel_merge_program {path}: "), why.to_owned()];
        s.run(&["compact", "db", "--kernel-program", &path]).fails(2, &[&why[0], &why[1]]);
    }
}

#[test]
fn downgrade_merges_extra_runs_and_nothing_else() {
    let s = Sandbox::new();
    s.database("db", 4000);
    let before = s.ok(&["scan", "db"]);
    assert!(s.ok(&["downgrade", "db"]).contains("no extra runs"));
    let open = || {
        let mut o = rockmill::Options::default();
        o.set_disable_auto_compactions(true);
        rockmill::Db::open(&o, s.path("db")).expect("opens")
    };
    let db = open();
    let cf = db.cf_handle("default").expect("there is one");
    db.compact_range(None::<&str>, None::<&str>).expect("one run");
    for key in ["a-new-key", "another"] {
        db.put(key, "value").expect("a write");
        db.flush().expect("a flush");
        merge_into_extra_run(&db, &cf, &[0], 6).expect("a run");
    }
    db.delete("a-new-key").expect("a write");
    db.delete("another").expect("a write");
    drop((cf, db));
    let stats = s.json(&["stats", "db"]);
    assert_eq!(stats["levels"][6]["extra_runs"], 2);
    s.ok(&["verify", "db"]);
    // Engines also write the same tables from extra runs.
    for (name, engine) in [("a", "pread"), ("b", "auto"), ("c", "kernel")] {
        copy(&s, "db", name);
        s.ok(&["compact", name, "--engine", engine, "--threads", "2", "--reproducible"]);
        assert_eq!(s.json(&["stats", name])["levels"][6]["extra_runs"], 0);
        assert_eq!(s.ok(&["scan", name]), before);
        assert_eq!(tables(&s, "a"), tables(&s, name), "{engine}");
    }
    let done = s.json(&["downgrade", "db"]);
    assert_eq!(done["extra_runs"], 2);
    assert!(done["extra_run_bytes"].as_u64().is_some_and(|b| b > 0), "{done}");
    assert_eq!(s.json(&["stats", "db"])["levels"][6]["extra_runs"], 0);
    s.ok(&["verify", "db"]);
    assert_eq!(s.ok(&["scan", "db"]), before);
    s.run(&["downgrade", "nowhere"]).fails(3, &["nowhere"]);
    s.run(&["downgrade"]).fails(2, &["<DB>"]);
}

/// A database with one TPH table of two files.
fn tph_database(s: &Sandbox) -> rockmill::Db {
    let mut o = rockmill::Options::default();
    o.create_if_missing(true);
    o.set_disable_auto_compactions(true);
    o.set_tph_table_factory(&rockmill::TphTableOptions::default());
    let db = rockmill::Db::open(&o, s.path("db")).expect("opens");
    for (keys, value) in [(0..500, "first"), (200..210, "second")] {
        keys.for_each(|n| db.put(format!("key{n:03}"), value).expect("a write"));
        db.flush().expect("a flush");
        db.compact_range(None::<&str>, None::<&str>).expect("a compaction");
    }
    assert!(db.live_files().expect("sound tables").iter().any(|f| !f.pieces.is_empty()));
    db
}

/// The newest file is the head: it has the function, and refers to the other file for the rest.
#[test]
fn dump_shows_what_makes_a_file_the_head_of_a_table() {
    let s = Sandbox::new();
    drop(tph_database(&s));
    let mut tables = s.files("db", ".sst");
    let (head, other) = (tables.pop().expect("a table"), tables.pop().expect("a further file"));
    let [name, other] = [&head, &other].map(|p| p.to_string_lossy().into_owned());
    let text = s.ok(&["dump", &name]);
    for says in ["TPH table of 2 files: 500 user keys, 500 entries", "function pilot of 500 keys: ", "in use"] {
        assert!(text.contains(says), "no {says} in\n{text}");
    }
    let v = s.json(&["dump", &name]);
    let tph = &v["tph"];
    assert_eq!((&tph["user_keys"], &tph["function"]["keys"]), (&500.into(), &500.into()), "{tph}");
    assert_eq!(tph["files"].as_array().map(Vec::len), Some(1), "{tph}");
    let file = &tph["files"][0];
    assert!(other.ends_with(&format!("{:06}.sst", file["number"].as_u64().expect("a number"))), "{file} is {other}");
    assert_eq!((&file["first"], &file["last"]), (&"key000".into(), &"key499".into()), "{file}");
    assert!(tph["replaced"].as_array().is_some_and(|all| !all.is_empty()), "{tph}");
    assert!(tph["function"]["slots"].as_u64() >= Some(500), "{tph}");
    // If that is damaged, the rest is still shown.
    let at = v["metaindex"]["rockmill.tph"]["offset"].as_u64().expect("an offset");
    flip(&head, at + 9);
    let done = s.run(&["dump", &name]).fails(3, &["damaged at one place"]);
    assert!(done.text().contains("DAMAGED: ") && done.text().contains("Index: "), "{}", done.text());
}

/// TPH tables become block-based tables for RocksDB, also in the OPTIONS file.
#[test]
fn downgrade_leaves_a_database_whose_options_rocksdb_loads() {
    let s = Sandbox::new();
    let db = tph_database(&s);
    let text = db.property_value("rocksdb.stats").expect("a property").expect("text");
    assert!(text.contains(" keys of open tables, ") && text.contains("Pieces: 1 tables"), "{text}");
    drop(db);
    let family = &s.json(&["stats", "db"])["column_families"][0];
    assert_eq!((&family["pieces"]["tables"], &family["tph_index"]["keys"]), (&1.into(), &500.into()), "{family}");
    // Few keys take more per key because of rounding.
    assert!(family["tph_index"]["bytes_per_key"].as_f64().is_some_and(|b| b > 2.0 && b < 8.0), "{family}");
    assert!(s.ok(&["stats", "db"]).contains("index of TPH tables: "));
    let before = s.ok(&["scan", "db"]);
    s.ok(&["downgrade", "db"]);
    s.ok(&["verify", "db"]);
    assert_eq!(s.json(&["stats", "db"])["column_families"][0]["pieces"], serde_json::Value::Null);
    assert_eq!(s.ok(&["scan", "db"]), before);
    let test = "downgrade_leaves_a_database_whose_options_rocksdb_loads";
    let ldb = match rockmill_skip::program("ldb", Needs::Ldb) {
        Ok(ldb) => ldb,
        Err(missing) => return skip(test, &missing),
    };
    let db = format!("--db={}", s.path("db").display());
    let out = std::process::Command::new(ldb).args([&db, "--try_load_options", "scan"]).output();
    let out = out.expect("ldb runs");
    let lines = String::from_utf8_lossy(&out.stdout).lines().filter(|l| l.starts_with("key")).count();
    assert_eq!((out.status.success(), lines), (true, 500), "{out:?}");
}

/// If compactions keep up, the bytes that they write do not depend on the machine's speed, so the model must predict
/// them.
#[test]
fn a_paced_run_writes_what_was_predicted() {
    let s = Sandbox::new();
    let v = s.json(&["simulate", "--calibrate", "."]);
    let figures = v["figures"].as_array().expect("figures");
    let error = |name: &str| {
        let figure = figures.iter().find(|f| f["figure"] == name).unwrap_or_else(|| panic!("no {name} in {v}"));
        figure["error_percent"].as_f64().expect("a number")
    };
    println!("calibration: {v}");
    for (name, bound) in [("paced: write amplification", 25.0), ("paced: flushed, MiB", 10.0)] {
        assert!(error(name).abs() < bound, "{name}: {v}");
    }
    assert!(s.files(".", ".tmp").is_empty() && std::fs::read_dir(s.dir.path()).expect("there").next().is_none());
}

#[test]
fn verify_says_what_is_wrong_with_the_stored_options() {
    let s = Sandbox::new();
    s.database("db", 10);
    let path =
        s.files("db", "").into_iter().filter(|p| p.display().to_string().contains("OPTIONS-")).max().expect("one");
    let text = std::fs::read_to_string(&path).expect("read");
    let with = |line: &str| {
        let name = |l: &str| l.trim().split('=').next().map(str::to_owned);
        let others: Vec<&str> = text.lines().filter(|l| name(l) != name(line)).collect();
        std::fs::write(&path, others.join("\n").replacen("[DBOptions]", &format!("[DBOptions]\n  {line}"), 1))
    };
    for (line, says) in [
        ("merge_engine=kernel", "cannot be used"),
        ("db_log_dir=/somewhere/else", "leads out"),
        ("max_background_jobs=many", "cannot be used"),
        ("keep_log_file_num=0", "keep_log_file_num must be at least 1"),
    ] {
        with(line).expect("written");
        let v = s.json(&["verify", "db"]);
        assert_eq!(v["ok"], true, "the data are sound");
        let message = v["warnings"][0]["message"].as_str().unwrap_or_default();
        assert!(message.contains(says), "{line}: {v}");
    }
    std::fs::write(&path, &text).expect("written");
    assert_eq!(s.json(&["verify", "db"])["warnings"].as_array().map(Vec::len), Some(0));
}
