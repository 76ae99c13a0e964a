//! Metrics: the text for Prometheus compared with `prometheus-client`, and the status file.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prometheus_client::encoding::prometheus_text;
use prometheus_client::registry::Registry;
use rockmill::statistics::{Histogram, Ticker};
use rockmill::{Db, MetricValue, Options, PrometheusCollector};

fn options() -> Options {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.create_missing_column_families(true);
    options.enable_statistics();
    options
}

/// A database with two column families, tables in two levels, and reads that were counted.
fn database(path: &Path) -> Arc<Db> {
    let db = Db::open_cf(&options(), path, ["default", "a \"b\"\\"]).expect("opens");
    let cf = db.cf_handle("a \"b\"\\").expect("made");
    for i in 0..200u32 {
        db.put(i.to_be_bytes(), [7; 100]).expect("written");
        db.put_cf(&cf, i.to_be_bytes(), [7; 100]).expect("written");
    }
    db.flush().expect("flushed");
    db.compact_range(None::<&[u8]>, None::<&[u8]>).expect("compacted");
    db.put("k", "v").expect("written");
    db.flush().expect("flushed");
    for i in 0..200u32 {
        assert!(db.get(i.to_be_bytes()).expect("read").is_some());
    }
    Arc::new(db)
}

/// Samples of a text by name and labels, without those that depend on time.
fn samples(text: &str) -> BTreeMap<String, f64> {
    let lines = text.lines().filter(|l| !l.starts_with('#') && !l.contains("_seconds"));
    let all = lines.map(|l| {
        let (name, value) = l.rsplit_once(' ').unwrap_or_else(|| panic!("no sample: {l}"));
        (name.to_owned(), value.parse().unwrap_or_else(|_| panic!("no number: {l}")))
    });
    all.collect()
}

fn types(text: &str) -> Vec<&str> {
    text.lines().filter(|l| l.starts_with("# TYPE ")).collect()
}

#[test]
fn the_text_is_what_prometheus_client_writes() {
    let home = tempfile::tempdir().expect("a directory");
    let db = database(&home.path().join("db"));
    let mut registry = Registry::default();
    registry.register_collector(Box::new(PrometheusCollector::new(&db)));
    let (mut ours, mut theirs) = (String::new(), String::new());
    let (mut a, mut b, mut differ) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
    // Between both looks a thread of the store may let go of a version.
    for _ in 0..100 {
        theirs.clear();
        prometheus_text::encode(&mut theirs, &registry).expect("into memory");
        ours = db.prometheus_text();
        (a, b) = (samples(&ours), samples(&theirs));
        differ = a.clone().into_iter().filter(|(k, v)| b.get(k) != Some(v)).collect();
        if differ.is_empty() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(differ.is_empty(), "theirs has other values for {differ:?}");
    assert_eq!(a.len(), b.len());
    assert!(a.len() > 300, "{} samples", a.len());
    assert_eq!(types(&ours), types(&theirs));

    drop(db);
    let mut none = String::new();
    prometheus_text::encode(&mut none, &registry).expect("into memory");
    assert!(samples(&none).is_empty(), "the collector does not keep a database open");
}

#[test]
fn the_figures_are_the_databases() {
    let home = tempfile::tempdir().expect("a directory");
    let db = database(&home.path().join("db"));
    let text = db.prometheus_text();
    let all = samples(&text);
    assert_eq!(all["rockmill_keys_written_total"], 401.0);
    assert_eq!(all["rocksdb_number_keys_read_total"], 200.0);
    assert_eq!(all["rocksdb_db_get_micros_count"], 200.0);
    assert_eq!(all["rocksdb_db_get_micros_bucket{le=\"+Inf\"}"], 200.0);
    assert_eq!(all["rocksdb_num_files_at_level{cf=\"default\",level=\"0\"}"], 1.0);
    assert_eq!(all["rockmill_write_stall{reason=\"none\"}"], 1.0);
    assert!(all.contains_key("rocksdb_estimate_num_keys{cf=\"a \\\"b\\\"\\\\\"}"), "{text}");
    // Every ticker and histogram of RocksDB's has its name.
    for name in Ticker::iter().map(|t| t.name()) {
        let name = format!("{}_total", name.replace(['.', '-', ' '], "_"));
        assert!(all.contains_key(&name), "no {name}");
    }
    for name in Histogram::iter().map(|h| h.name()) {
        assert!(all.contains_key(&format!("{}_count", name.replace(['.', '-', ' '], "_"))), "no {name}");
    }
    // Buckets only rise, and the last has all values.
    for metric in db.metrics() {
        for sample in &metric.samples {
            let MetricValue::Histogram { buckets, .. } = &sample.value else { continue };
            assert!(buckets.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1), "{}: {buckets:?}", metric.name);
        }
    }

    let without = Options::default();
    drop(db);
    let db = Db::open_cf(&without, home.path().join("db"), ["default", "a \"b\"\\"]).expect("opens");
    assert!(!db.prometheus_text().contains("rocksdb_db_get_micros"), "statistics are off");
}

fn wait_for(what: &str, is: impl Fn() -> bool) {
    let began = Instant::now();
    while !is() {
        assert!(began.elapsed() < Duration::from_secs(30), "{what} did not happen");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn the_status_file_is_written_anew_and_goes() {
    let home = tempfile::tempdir().expect("a directory");
    let path = home.path().join("db");
    let mut o = options();
    drop(Db::open_cf(&o, &path, ["default"]).expect("opens"));
    let names = |dir: &Path| {
        let entries = std::fs::read_dir(dir).expect("a directory").flatten();
        entries.map(|e| e.file_name().into_string().expect("a name")).filter(|n| n.contains("STATUS")).collect()
    };
    let none: Vec<String> = names(&path);
    assert!(none.is_empty(), "nothing is written that was not asked for: {none:?}");

    o.set_status_file("STATUS");
    let db = Db::open(&o, &path).expect("opens");
    let read = || std::fs::read_to_string(path.join("STATUS")).unwrap_or_default();
    wait_for("a status file", || read().ends_with("# EOF\n"));
    db.put("k", "v").expect("written");
    wait_for("the key in the status file", || read().contains("\nrockmill_keys_written_total 1\n"));

    // It may move while the database is open, and a path may be absolute.
    let other = home.path().join("elsewhere.prom");
    db.set_db_options(&[("status_file", other.to_str().expect("text"))]).expect("set");
    wait_for("the other file", || std::fs::read_to_string(&other).is_ok_and(|t| t.ends_with("# EOF\n")));
    wait_for("the end of the first one", || !path.join("STATUS").exists());
    drop(db);
    assert!(!other.exists(), "a closed database has no status");
    assert!(names(&path).is_empty());

    // If the file cannot be written, that is logged, and writers are not affected.
    o.set_status_file("no/such/directory/STATUS");
    let db = Db::open(&o, &path).expect("opens");
    let log = || std::fs::read_to_string(path.join("LOG")).unwrap_or_default();
    wait_for("a line in LOG", || log().contains("the status file cannot be written"));
    db.put("k", "w").expect("written");
    drop(db);
    assert_eq!(log().matches("the status file cannot be written").count(), 1, "said once");

    // An existing file that is not a status file is neither replaced nor removed. A status file left by a process is.
    for (name, kept) in [("notes.txt", true), ("IDENTITY", true), ("left", false)] {
        let file = path.join(name);
        let before = match name {
            "notes.txt" => "mine\n# EOF\n".to_owned(),
            "left" => "rockmill_info{pid=\"1\"} 1\n# EOF\n".to_owned(),
            _ => std::fs::read_to_string(&file).expect("the database's own"),
        };
        std::fs::write(&file, &before).expect("written");
        o.set_status_file(name);
        let db = Db::open(&o, &path).expect("opens");
        match kept {
            true => wait_for("the reason in LOG", || log().contains(&format!("{name} is there and no status file"))),
            false => wait_for("a status file", || read_file(&file).contains("rockmill_time_seconds")),
        }
        drop(db);
        assert_eq!(kept.then_some(before), std::fs::read_to_string(&file).ok(), "{name}");
    }
}

fn read_file(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}
