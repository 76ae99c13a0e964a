//! The info log: its format, its files, and that its failures never affect the database.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rockmill::statistics::Ticker;
use rockmill::{Db, ErrorKind, InfoLogger, LogLevel};
use rockmill_io::{FileSystem, ManualClock, MemFileSystem};

use crate::{in_memory, path};

pub fn text(fs: &MemFileSystem, path: &str) -> String {
    String::from_utf8(fs.read_to_vec(Path::new(path)).unwrap_or_else(|e| panic!("{path}: {e}"))).unwrap()
}

fn logs(fs: &MemFileSystem) -> Vec<String> {
    let mut names: Vec<_> = fs.list_dir(path()).unwrap().into_iter().filter(|n| n.starts_with("LOG")).collect();
    names.sort();
    names
}

/// `2026/11/21-18:16:03.123456 1234 ` stands before a line.
fn is_stamped(line: &str) -> bool {
    let pattern = "dddd/dd/dd-dd:dd:dd.dddddd ";
    let stamp = line.len() > pattern.len()
        && line.bytes().zip(pattern.bytes()).all(|(b, p)| if p == b'd' { b.is_ascii_digit() } else { b == p });
    let thread = line.get(pattern.len()..).and_then(|l| l.split(' ').next()).unwrap_or_default();
    stamp && !thread.is_empty() && thread.bytes().all(|b| b.is_ascii_digit())
}

#[test]
fn the_log_has_rocksdbs_form() {
    let (options, fs) = in_memory();
    let db = Db::open(&options, path()).unwrap();
    for i in 0..2 {
        db.put("k", format!("{i}")).unwrap();
        db.flush().unwrap();
    }
    db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
    drop(db);
    let log = text(&fs, "/db/LOG");
    for line in log.lines() {
        assert!(is_stamped(line), "{line}");
    }
    for part in [
        "Rockmill version: ",
        "DB SUMMARY",
        "               Options.create_if_missing: true\n",
        "--------------- Options for column family [default]:",
        "Options.write_buffer_size: 67108864\n",
        "DB ID: ",
        " [db/",
        "[default] [JOB 1] Level-0 flush table #",
        "EVENT_LOG_v1 {\"time_micros\": ",
        "\"job\": 1, \"event\": \"flush_started\", \"num_memtables\": 1, \"total_num_input_entries\": 1, ",
        "\"flush_reason\": \"Manual Flush\"}",
        "\"cf_name\": \"default\", \"job\": 1, \"event\": \"table_file_creation\", \"file_number\": ",
        "\"table_properties\": {\"data_size\": ",
        "\"event\": \"flush_finished\", \"output_compression\": \"NoCompression\", \"lsm_state\": [1, 0, 0, 0, 0, 0, 0]",
        "\"event\": \"compaction_started\", \"cf_name\": \"default\", \"compaction_reason\": \"ManualCompaction\", \"files_L0\"",
        "\"event\": \"compaction_finished\", \"compaction_time_micros\": ",
        "\"event\": \"table_file_deletion\", \"file_number\": ",
        "Shutdown complete",
    ] {
        assert!(log.contains(part), "{part}\n{log}");
    }
    // Each event is one object.
    for event in log.lines().filter_map(|l| l.split_once("EVENT_LOG_v1 ")) {
        let (open, close) = (event.1.matches('{').count(), event.1.matches('}').count());
        assert!(event.1.starts_with('{') && event.1.ends_with('}') && open == close, "{}", event.1);
    }
}

#[test]
fn the_log_of_before_is_kept_and_the_oldest_go() {
    let (mut options, fs) = in_memory();
    let clock = ManualClock::new(1_700_000_000_000_000);
    options.set_clock(Arc::new(clock.clone()));
    options.set_keep_log_file_num(3);
    for _ in 0..5 {
        clock.advance(Duration::from_secs(1));
        drop(Db::open(&options, path()).unwrap());
    }
    // The names contain the time at which the next file began.
    assert_eq!(logs(&fs), ["LOG", "LOG.old.1700000004000000", "LOG.old.1700000005000000"]);
    assert!(text(&fs, "/db/LOG.old.1700000005000000").contains("Shutdown complete"));
    // A read-only open writes none, and changes none.
    drop(Db::open_for_read_only(&options, path(), false).unwrap());
    assert_eq!(logs(&fs).len(), 3);
    Db::destroy(&options, path()).unwrap();
    assert!(!fs.exists(path()).unwrap());
    options.set_keep_log_file_num(0);
    assert_eq!(Db::open(&options, path()).unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn a_large_log_goes_on_in_another_file_with_the_same_head() {
    let (mut options, fs) = in_memory();
    options.set_max_log_file_size(20_000);
    options.set_keep_log_file_num(3);
    let db = Db::open(&options, path()).unwrap();
    for i in 0..40 {
        db.put(format!("{i}"), "v").unwrap();
        db.flush().unwrap();
    }
    drop(db);
    let names = logs(&fs);
    assert_eq!(names.len(), 3, "{names:?}");
    for name in names {
        let text = text(&fs, &format!("/db/{name}"));
        assert!(text.len() < 25_000, "{name}: {}", text.len());
        assert!(text.lines().next().unwrap().contains("Rockmill version: "), "{name}");
        assert!(text.ends_with('\n') && text.lines().all(is_stamped), "{name}");
    }
}

#[test]
fn an_old_log_goes_on_in_another_file() {
    let (mut options, fs) = in_memory();
    let clock = ManualClock::new(1_700_000_000_000_000);
    options.set_clock(Arc::new(clock.clone()));
    options.set_log_file_time_to_roll(60);
    let db = Db::open(&options, path()).unwrap();
    clock.advance(Duration::from_secs(61));
    db.put("k", "v").unwrap();
    db.flush().unwrap();
    drop(db);
    assert!(logs(&fs).len() >= 2, "{:?}", logs(&fs));
}

#[test]
fn levels_hold_lines_back_and_a_logger_takes_them() {
    let (mut options, fs) = in_memory();
    options.set_log_level(LogLevel::Warn);
    let db = Db::open(&options, path()).unwrap();
    db.put("k", "v").unwrap();
    db.flush().unwrap();
    drop(db);
    let log = text(&fs, "/db/LOG");
    assert!(log.contains("Rockmill version") && !log.contains("EVENT_LOG_v1") && !log.contains("Shutdown"), "{log}");
    fs.remove(Path::new("/db/LOG")).unwrap();
    let lines: Arc<Mutex<Vec<String>>> = Arc::default();
    let to = Arc::clone(&lines);
    options.set_info_logger(InfoLogger::new_callback_logger(LogLevel::Info, move |level, line| {
        to.lock().unwrap().push(format!("{level:?} {line}"));
        panic!("a logger's mistake");
    }));
    let db = Db::open(&options, path()).unwrap();
    db.put("k", "v").unwrap();
    db.flush().unwrap();
    drop(db);
    let lines = lines.lock().unwrap();
    assert!(lines.iter().any(|l| l.starts_with("Info EVENT_LOG_v1 {")), "{lines:?}");
    assert!(lines.iter().any(|l| l.starts_with("Header Rockmill version")), "{lines:?}");
    assert!(logs(&fs).is_empty(), "a logger replaces the file: {:?}", logs(&fs));
}

#[test]
fn another_directory_takes_the_log_under_the_databases_name() {
    let (mut options, fs) = in_memory();
    options.set_db_log_dir("/logs");
    drop(Db::open(&options, path()).unwrap());
    drop(Db::open(&options, path()).unwrap());
    assert!(logs(&fs).is_empty());
    let mut names = fs.list_dir(Path::new("/logs")).unwrap();
    names.sort();
    assert_eq!(names.len(), 2, "{names:?}");
    assert_eq!(names[0], "db_LOG");
    assert!(names[1].starts_with("db_LOG.old."), "{names:?}");
    fs.write_all(Path::new("/logs/other_LOG"), b"of another database").unwrap();
    Db::destroy(&options, path()).unwrap();
    assert_eq!(fs.list_dir(Path::new("/logs")).unwrap(), ["other_LOG"]);
}

#[test]
fn a_log_that_cannot_be_written_fails_nothing() {
    let (options, fs) = in_memory();
    fs.set_fault(Box::new(|op| {
        let log = op.path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("LOG"));
        log.then(|| std::io::Error::from_raw_os_error(28))
    }));
    let db = Db::open(&options, path()).unwrap();
    db.put("k", "v").unwrap();
    db.flush().unwrap();
    drop(db);
    fs.clear_fault();
    let db = Db::open(&options, path()).unwrap();
    assert_eq!(db.get("k").unwrap().as_deref(), Some(&b"v"[..]));
    // It breaks while the database is open.
    fs.set_fault(Box::new(|op| {
        let log = op.path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("LOG"));
        log.then(|| std::io::Error::from_raw_os_error(5))
    }));
    db.put("l", "v").unwrap();
    db.flush().unwrap();
    drop(db);
}

#[test]
fn a_failed_open_says_why_in_the_log() {
    let (mut options, fs) = in_memory();
    drop(Db::open(&options, path()).unwrap());
    let manifest = fs.list_dir(path()).unwrap().into_iter().find(|n| n.starts_with("MANIFEST")).unwrap();
    fs.remove(&path().join(manifest)).unwrap();
    options.create_if_missing(false);
    let e = Db::open(&options, path()).unwrap_err();
    let log = text(&fs, "/db/LOG");
    assert!(log.contains("[ERROR] [db/open/start.rs:") && log.contains(&e.to_string()), "{e}: {log}");
}

#[test]
fn statistics_are_dumped_into_the_log() {
    let (mut options, fs) = in_memory();
    let clock = ManualClock::new(1_700_000_000_000_000);
    options.set_clock(Arc::new(clock.clone()));
    options.set_stats_dump_period_sec(100);
    options.enable_statistics();
    let db = Db::open(&options, path()).unwrap();
    db.put("k", "v").unwrap();
    let dumps = || text(&fs, "/db/LOG").matches("------- DUMPING STATS -------").count();
    let wait_for = |n: usize| {
        for _ in 0..500 {
            if dumps() >= n {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(dumps(), n);
    };
    clock.advance(Duration::from_secs(101));
    wait_for(1);
    let log = text(&fs, "/db/LOG");
    assert!(log.contains("** Compaction Stats [default] **") && log.contains("** DB Stats **"), "{log}");
    assert!(log.contains("rocksdb.number.keys.written COUNT : 1\n"), "{log}");
    assert_eq!(options.get_ticker_count(Ticker::NumberKeysWritten), 1);
    db.set_db_options(&[("stats_dump_period_sec", "0")]).unwrap();
    clock.advance(Duration::from_secs(1000));
    std::thread::sleep(Duration::from_millis(1200));
    assert_eq!(dumps(), 1);
}
