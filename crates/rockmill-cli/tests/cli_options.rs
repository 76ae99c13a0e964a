//! The options that a database has stored, on the command line.

mod cli_support;

use cli_support::Sandbox;

/// The value of an option, as `rockmill options --json` shows it.
fn value(s: &Sandbox, db: &str, family: &str, name: &str) -> String {
    let shown = s.json(&["options", db, "--column-family", family]);
    let all = shown["options"].as_array().expect("options");
    let found = all.iter().find(|o| o["name"] == name).unwrap_or_else(|| panic!("no option {name}"));
    found["value"].as_str().expect("a text").to_owned()
}

/// The newest OPTIONS file.
fn options_file(s: &Sandbox, db: &str) -> std::path::PathBuf {
    let entries = std::fs::read_dir(s.path(db)).expect("a database").map(|e| e.expect("an entry").path());
    entries.filter(|p| p.to_string_lossy().contains("OPTIONS-")).max().expect("an OPTIONS file")
}

#[test]
fn what_a_load_gives_later_commands_keep() {
    let s = Sandbox::new();
    let rows: String = (0..2000).map(|i| format!("key{i:05}\tvalue {i}\n")).collect();
    s.file("rows.tsv", rows);
    let flags = ["--compression", "zstd", "--bloom-bits", "10", "--block-size", "16K", "--threads", "3"];
    s.ok(&[&["load", "a.db", "rows.tsv"][..], &flags].concat());
    s.ok(&["create-cf", "a.db", "other"]);
    s.ok(&["put", "a.db", "k", "v"]);
    s.ok(&["compact", "a.db"]);
    assert_eq!(value(&s, "a.db", "default", "compression"), "kZSTD");
    assert_eq!(value(&s, "a.db", "default", "filter_policy"), "bloomfilter:10:false");
    assert_eq!(value(&s, "a.db", "default", "block_size"), "16384");
    assert_eq!(value(&s, "a.db", "default", "max_subcompactions"), "3");
    assert_eq!(value(&s, "a.db", "other", "compression"), "kSnappyCompression");
    let table = s.files("a.db", ".sst").pop().expect("a table");
    let dump = s.ok(&["dump", table.to_str().unwrap()]);
    assert!(dump.contains("ZSTD"), "{}", dump);

    // A flag overrides the stored option and is stored; RocksDB's names do the same.
    s.ok(&["compact", "a.db", "--compression", "lz4", "--option", "level0_stop_writes_trigger=50"]);
    assert_eq!(value(&s, "a.db", "default", "compression"), "kLZ4Compression");
    assert_eq!(value(&s, "a.db", "default", "level0_stop_writes_trigger"), "50");
    s.ok(&["put", "a.db", "--ignore-stored-options", "k", "v"]);
    assert_eq!(value(&s, "a.db", "default", "compression"), "kSnappyCompression");
}

#[test]
fn options_of_one_database_make_another() {
    let s = Sandbox::new();
    s.ok(&["put", "a.db", "--create", "k", "v", "--option", "merge_operator=uint64add", "--l0-trigger", "9"]);
    let file = options_file(&s, "a.db");
    s.ok(&["put", "b.db", "--create", "--options", file.to_str().unwrap(), "k", "v"]);
    assert_eq!(value(&s, "b.db", "default", "merge_operator"), "UInt64AddOperator");
    assert_eq!(value(&s, "b.db", "default", "level0_file_num_compaction_trigger"), "9");
    let shown = s.ok(&["options", "b.db", "--changed"]);
    assert!(shown.contains("* merge_operator=UInt64AddOperator") && !shown.contains("write_buffer_size"), "{shown}");
    let tried = s.ok(&["options", "b.db", "--option", "compression=kZSTD"]);
    assert!(tried.contains("* compression=kZSTD"), "{}", tried);
}

#[test]
fn the_kind_of_tables_is_chosen_and_stays() {
    let s = Sandbox::new();
    s.ok(&["put", "a.db", "--create", "k", "v", "--table-format", "tph", "--piece-limit=8", "--block-size", "8K"]);
    s.ok(&["put", "a.db", "k2", "v"]);
    let kind = |db: &str, family: &str| value(&s, db, family, "table_factory");
    assert_eq!(kind("a.db", "default"), "TphTable");
    let shown = s.ok(&["options", "a.db", "--changed"]);
    for line in
        ["* table_factory=TphTable", "[TableOptions/TphTable \"default\"]", "* piece_limit=8", "* block_size=8192"]
    {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    assert!(!shown.contains("garbage_percent"), "{shown}");
    s.ok(&["compact", "a.db", "--garbage-percent", "50", "--option", "table_factory.piece_limit=4"]);
    assert_eq!(value(&s, "a.db", "default", "garbage_percent"), "50");
    assert_eq!(value(&s, "a.db", "default", "piece_limit"), "4");
    // Another column family has its own kind, and each can be changed back.
    s.ok(&["create-cf", "a.db", "other"]);
    s.ok(&["create-cf", "a.db", "third", "--table-format", "tph", "--garbage_percent=0"]);
    assert_eq!((kind("a.db", "other"), kind("a.db", "third")), ("BlockBasedTable".into(), "TphTable".into()));
    assert_eq!(value(&s, "a.db", "third", "garbage_percent"), "0");
    s.ok(&["put", "a.db", "k", "v", "--column-family", "other", "--table_format=tph"]);
    assert_eq!(kind("a.db", "other"), "TphTable");
    s.ok(&["compact", "a.db", "--table-format=block"]);
    assert_eq!((kind("a.db", "default"), kind("a.db", "other")), ("BlockBasedTable".into(), "TphTable".into()));
    assert_eq!(value(&s, "a.db", "default", "block_size"), "8192");
    assert_eq!(s.ok(&["get", "a.db", "k2"]).trim(), "v");

    s.run(&["put", "a.db", "k", "v", "--piece-limit", "4"]).fails(2, &["--piece-limit", "--table-format=tph"]);
    s.run(&["put", "a.db", "k", "v", "--table-format", "plain"]).fails(2, &["block", "tph"]);
    s.run(&["put", "a.db", "k", "v", "--table-format=tph", "--piece-limit", "0"]).fails(2, &["1..=1024"]);
    s.run(&["put", "a.db", "k", "v", "--table-format=tph", "--garbage-percent", "1001"]).fails(2, &["0..=1000"]);
    let help = s.ok(&["compact", "--help"]);
    assert!(help.contains("--table-format <TABLE_FORMAT>") && help.contains("perfect hash"), "{help}");
}

/// A directory may be untrusted: no command loads a program because its OPTIONS file asks for it.
#[test]
fn no_command_takes_an_engine_or_a_program_from_a_stored_file() {
    let s = Sandbox::new();
    s.ok(&["put", "a.db", "--create", "k", "v"]);
    s.ok(&["put", "a.db", "k2", "v"]);
    let file = options_file(&s, "a.db");
    let sound = std::fs::read_to_string(&file).unwrap();
    let evil = s.file("evil.o", "not even a program");
    let hostile = format!("[DBOptions]\n  merge_engine=kernel\n  kernel_merge_program={evil}");
    let hostile = sound.replace("[DBOptions]", &hostile);
    std::fs::write(&file, &hostile).unwrap();
    let commands: [&[&str]; 8] = [
        &["get", "a.db", "k"],
        &["scan", "a.db"],
        &["put", "a.db", "k", "v"],
        &["compact", "a.db"],
        &["compact", "a.db", "--explain"],
        &["options", "a.db"],
        &["repair", "a.db"],
        &["checkpoint", "a.db", "c.db"],
    ];
    for command in commands {
        let out = s.run(command);
        let said = format!("{}{}", out.text(), out.stderr);
        // It is refused by name, or the command needs no options; the program's file is never opened.
        assert!(!said.contains("not a program") && !said.contains("evil.o: "), "{command:?}: {said}");
        std::fs::write(&file, &hostile).unwrap();
    }
    for command in &commands[2..4] {
        s.run(command).fails(2, &["\"merge_engine\"", "Rockmill's own", "--ignore-stored-options"]);
        s.ok(&[*command, &["--ignore-stored-options"]].concat());
        std::fs::write(options_file(&s, "a.db"), &hostile).unwrap();
    }
    // The same for an OPTIONS file given by name.
    let file = options_file(&s, "a.db");
    s.run(&["put", "b.db", "--create", "--options", file.to_str().unwrap(), "k", "v"]).fails(2, &["\"merge_engine\""]);
}

#[test]
fn what_is_wrong_with_options_is_said() {
    let s = Sandbox::new();
    s.ok(&["put", "a.db", "--create", "k", "v"]);
    s.run(&["put", "a.db", "k", "v", "--option", "nonsense"]).fails(2, &["NAME=VALUE"]);
    s.run(&["put", "a.db", "k", "v", "--option", "nonsense=1"]).fails(2, &["nonsense"]);
    s.run(&["put", "a.db", "k", "v", "--option", "two_write_queues=true"]).fails(2, &["no effect"]);
    s.run(&["options", "missing.db"]).fails(3, &["no such directory"]);
    s.run(&["options", "a.db", "--options", "missing"]).fails(3, &["missing"]);
    let file = options_file(&s, "a.db");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("[DBOptions]", "[DBOptions]\n  two_write_queues=true")).unwrap();
    let shown = s.ok(&["options", "a.db"]);
    assert!(shown.contains("not used: two_write_queues=true"), "{shown}");
    std::fs::write(&file, text.replace("[DBOptions]", "[DBOptions]\n  a_new_option=1")).unwrap();
    s.run(&["put", "a.db", "k", "w"]).fails(2, &["--ignore-stored-options"]);
    let read = s.run(&["get", "a.db", "k"]);
    assert!(read.code == 0 && read.stderr.contains("a_new_option"), "{}", read.stderr);
    s.ok(&["put", "a.db", "k", "w", "--ignore-stored-options"]);
    s.ok(&["put", "a.db", "k", "x"]);
}

/// A fast device in front of a slow one: the report shows the use of both, and `--compare` has a line for each number
/// of cores.
#[test]
fn a_fast_device_is_simulated_and_compared() {
    let s = Sandbox::new();
    let device = ["simulate", "--data", "1G", "--device", "sata", "--fast-capacity", "100M", "--cores", "4"];
    let v = s.json(&device);
    let fast = &v["fast_device"];
    let of = |name: &str| fast[name].as_f64().expect("a number");
    assert!(of("fast_bytes_most") <= of("capacity") * 1.001 && of("fast_write_amplification") >= 1.0, "{fast}");
    let sample = &v["samples"][3];
    for name in ["fast_bytes", "index_merge_trigger", "data_flush_trigger_size"] {
        assert!(sample[name].as_f64().is_some_and(|n| n > 0.0), "{name}: {sample}");
    }
    let text = s.ok(&[&device[..], &["--fast-front", "rocksdb", "--report", "fast.html"]].concat());
    for words in ["write by device", "fast bytes", "level0_stop_writes_trigger=7"] {
        assert!(text.contains(words), "{text}");
    }
    let page = std::fs::read_to_string(s.path("fast.html")).expect("the page");
    assert!(page.contains("On the fast device") && page.contains("GiB") && page.contains("Slow device by task"));
    let both = s.ok(&[&device[..7], &["--compare", "--compare-cores", "2,4"]].concat());
    assert!(both.contains("| 2 |") && both.contains("| 4 |") && both.contains("index, rocksdb"), "{both}");
    let help = s.ok(&["simulate", "--help"]);
    assert!(help.contains("--fast-capacity") && help.contains("simulate --compare --data"), "{help}");
}

/// `rockmill simulate` needs no database: the same flags give the same figures, and invalid settings are refused.
#[test]
fn simulations_are_repeatable_and_bad_ones_are_refused() {
    let s = Sandbox::new();
    let args = ["simulate", "--strategy", "tiered", "--data", "1G", "--threads", "2", "--report", "page.html"];
    let first = s.json(&args);
    assert_eq!(first, s.json(&args));
    assert!(first["write_amplification"].as_f64().expect("a number") > 1.0, "{first}");
    assert_eq!(first["busy_threads_by_level"].as_array().map(Vec::len), Some(7));
    let page = std::fs::read_to_string(s.path("page.html")).expect("the page");
    assert!(page.contains("<svg") && page.contains("tiered, 2 threads"));
    // How the report was made, and its results.
    assert!(page.contains("rockmill simulate --strategy tiered --data 1G"), "{page}");
    assert!(page.contains("modelled, in virtual time") && page.contains("class=\"verdict\">tiered with 2 threads"));
    let text = s.ok(&args[..7]);
    let words = ["throughput", "write amplification", "space amplification", "sorted runs", "a lookup", "a seek"];
    for words in words.into_iter().chain(["limited by"]) {
        assert!(text.contains(words), "{text}");
    }
    let limits = first["limited_by"].as_object().expect("a map");
    let all: f64 = limits.values().map(|part| part.as_f64().expect("a number")).sum();
    assert!((all - 1.0).abs() < 0.01 && limits.contains_key("writers"), "{first}");
    // The gains of DF-compaction and of splitting jobs, separately.
    let both = s.ok(&["simulate", "--compare", "--data", "1G", "--threads", "4", "--filter-bits", "10"]);
    for words in ["no job is split", "jobs of both over idle threads", "df-leveled", "a seek, microseconds"] {
        assert!(both.contains(words), "{both}");
    }
    // With the defaults, the strategy is the limit, not the writer.
    let default = s.json(&["simulate", "--compare", "--data", "20G"]);
    let gain = default["split_idle"]["df_by_plain"]["throughput"].as_f64().expect("a number");
    let writers = |strategy: &str| default["split_idle"][strategy]["limited_by"]["writers"].as_f64().expect("a number");
    println!("{gain} {} {}", writers("leveled"), writers("df-leveled"));
    assert!(gain > 1.2 && writers("leveled") < 0.5 && writers("df-leveled") < 0.5, "{gain}");
    let six =
        ["simulate", "--compare", "--strategy", "all", "--data", "512M", "--threads", "4", "--report", "six.html"];
    let six = s.ok(&six);
    let words = ["jobs of all over idle threads", "classic-leveled", "df-leveled", "classic-tiered", "df-tiered"];
    for words in words.into_iter().chain(["from L0", "levels at once", "more than 3/4 busy", "at most 1 busy"]) {
        assert!(six.contains(words), "{six}");
    }
    // How evenly threads are busy: for each of the two rules a chart of all strategies, their means by level, and one
    // chart per strategy.
    let page = std::fs::read_to_string(s.path("six.html")).expect("the page");
    assert_eq!(page.matches("<svg").count(), 16);
    let overwrite = ["simulate", "--data", "1G", "--workload", "overwrite", "--rate", "20M"];
    let tph = s.json(&[&overwrite[..], &["--table_format=tph", "--piece-limit", "8", "--garbage-percent=50"]].concat());
    assert_eq!((&tph["piece_limit"], &tph["garbage_percent"]), (&8.into(), &50.into()));
    let written = |v: &serde_json::Value| v["write_amplification"].as_f64().expect("a number");
    assert!(written(&tph) < written(&s.json(&overwrite)), "{tph}");
    for (args, words) in [
        (&["--piece-limit", "4"][..], "--table-format=tph"),
        (&["--table-format", "tph", "--piece-limit", "0"], "1..=1024"),
        (&["--strategy", "magic"], "there are leveled, tiered, df-leveled, df-tiered, classic-leveled"),
        (&["--data", "200T"], "1M to 100T"),
        (&["--threads", "0"], "threads"),
        (&["--write", "1G"], "--workload overwrite"),
        (&["--option", "no_such=1"], "no_such"),
        (&["--option", "compaction_style=kCompactionStyleUniversal"], "--strategy"),
        (&["--option", "num_levels=65"], "num_levels"),
        (&["--keys", "zipfian"], "a fill writes each key once"),
        (&["--split", "always"], "none of store, never, idle"),
        (&["--compare", "--split", "idle"], "cannot be used with"),
        (&["--compare", "--strategy", "fifo"], "fifo: there is no DF-compaction of it"),
        (&["--cores", "0"], "cores"),
        (&["--report", "/no/such/dir/p.html", "--data", "1M"], "/no/such/dir/p.html"),
        (&["--fast-capacity", "0"], "the fast device has 0 bytes; it must have 16M at least"),
        (&["--fast-capacity", "1G", "--fast-read", "0"], "fast read is 0; it must be above 0"),
        (&["--fast-capacity", "1G", "--fast-front", "levels"], "none of index, plain, rocksdb"),
        (&["--fast-capacity", "1G", "--fast-front", "plain", "--strategy", "tiered"], "front plain: L0 and L1"),
        (&["--fast-capacity", "1G", "--index-merge-ns=-1"], "index merge ns is -1"),
        (&["--fast-capacity", "1G", "--compare", "--compare-cores", "0"], "1..=1024"),
        (&["--fast-capacity", "1G", "--compare", "--fast-front", "plain"], "cannot be used with"),
        (&["--fast-capacity", "1G", "--compare", "--report", "p.html"], "--report is not there"),
        (&["--fast-capacity", "1G", "--option", "max_index_size=1K"], "max_index_size"),
        (&["--fast-front", "rocksdb"], "--fast-capacity"),
        (&["--compare", "--compare-cores", "4"], "--fast-capacity"),
        (&["--device", "floppy"], "sata, disk, nvme"),
    ] {
        let done = s.run(&[&["simulate"], args].concat());
        assert!(done.code != 0 && done.stderr.contains(words), "{args:?}: {} {}", done.code, done.stderr);
    }
}
