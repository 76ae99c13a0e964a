//! Event listeners: what they are told, in which order, and that they may use the database.

use std::sync::{Arc, Mutex, OnceLock, Weak};

use rockmill::event_listener::{
    BackgroundErrorReason, CompactionJobInfo, CompactionReason, FlushJobInfo, FlushReason, MemTableInfo,
    TableFileCreationInfo, TableFileDeletionInfo, WriteStallCondition, WriteStallInfo,
};
use rockmill::{CompactOptions, Db, Error, EventListener, Options};

use crate::{in_memory, path};

/// Writes down what it is told.
#[derive(Clone, Default)]
struct Notes {
    lines: Arc<Mutex<Vec<String>>>,
    flushes: Arc<Mutex<Vec<FlushJobInfo>>>,
    compactions: Arc<Mutex<Vec<CompactionJobInfo>>>,
    /// Written to from within the calls.
    db: Arc<OnceLock<Weak<Db>>>,
}

impl Notes {
    fn note(&self, line: String) {
        self.lines.lock().unwrap().push(line);
        if let Some(db) = self.db.get().and_then(Weak::upgrade) {
            db.put("noted", "in a listener").unwrap();
            db.get("noted").unwrap();
        }
    }

    fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }
}

impl EventListener for Notes {
    fn on_flush_begin(&self, info: &FlushJobInfo) {
        self.note(format!("flush begins: {}, {} memtables", info.flush_reason.name(), info.memtables));
    }
    fn on_flush_completed(&self, info: &FlushJobInfo) {
        self.flushes.lock().unwrap().push(info.clone());
        self.note("flush completed".to_owned());
    }
    fn on_compaction_begin(&self, info: &CompactionJobInfo) {
        self.note(format!("compaction begins: {:?}", info.compaction_reason));
    }
    fn on_compaction_completed(&self, info: &CompactionJobInfo) {
        self.compactions.lock().unwrap().push(info.clone());
        self.note(format!("compaction completed: {}", info.status.is_ok()));
    }
    fn on_table_file_created(&self, info: &TableFileCreationInfo) {
        self.note(format!("created: {:?}, {} entries", info.reason, info.table_properties.num_entries));
    }
    fn on_table_file_deleted(&self, info: &TableFileDeletionInfo) {
        self.note(format!("deleted: {}", info.status.is_ok()));
    }
    fn on_memtable_sealed(&self, info: &MemTableInfo) {
        self.note(format!("sealed: {} entries, {} deletes", info.num_entries, info.num_deletes));
    }
    fn on_stall_conditions_changed(&self, info: &WriteStallInfo) {
        self.note(format!("stall: {:?} to {:?}", info.prev, info.cur));
    }
    fn on_background_error(&self, reason: BackgroundErrorReason, _: &Error) {
        self.lines.lock().unwrap().push(format!("error: {reason:?}"));
    }
    fn on_column_family_handle_deletion_started(&self, name: &str) {
        self.note(format!("dropped: {name}"));
    }
}

fn options(notes: &Notes) -> Options {
    let (mut options, _) = in_memory();
    options.set_disable_auto_compactions(true);
    options.add_event_listener(notes.clone());
    options
}

#[test]
fn a_listener_is_told_of_flushes_and_compactions_and_may_use_the_database() {
    let notes = Notes::default();
    let db = Arc::new(Db::open(&options(&notes), path()).unwrap());
    for round in 0..2 {
        for i in 0..100 {
            db.put(format!("key{i:03}"), format!("{round}")).unwrap();
        }
        db.delete("key000").unwrap();
        db.flush().unwrap();
    }
    let expected = [
        "sealed: 101 entries, 1 deletes",
        "flush begins: Manual Flush, 1 memtables",
        "created: Flush, 100 entries",
        "flush completed",
    ];
    assert_eq!(notes.lines(), [expected, expected].concat());
    {
        let flushes = notes.flushes.lock().unwrap();
        let [first, second] = &flushes[..] else { panic!("{flushes:?}") };
        assert!(second.file_number > first.file_number && second.job_id > first.job_id);
        assert_eq!((first.smallest_seqno, first.largest_seqno), (2, 101), "the first entry was deleted");
        assert_eq!(first.flush_reason, FlushReason::ManualFlush);
        assert_eq!(first.table_properties.as_ref().unwrap().num_deletions, 1);
        assert!(first.file_path.ends_with(format!("{:06}.sst", first.file_number)));
    }
    // From here on every call writes and reads.
    notes.lines.lock().unwrap().clear();
    notes.db.set(Arc::downgrade(&db)).unwrap();
    db.compact_range_opt(None::<&[u8]>, None::<&[u8]>, &CompactOptions::default()).unwrap();
    db.flush().unwrap();
    assert_eq!(db.get("noted").unwrap().as_deref(), Some(&b"in a listener"[..]));
    let lines = notes.lines();
    let at = |line: &str| lines.iter().position(|l| l == line).unwrap_or_else(|| panic!("{line}: {lines:?}"));
    let begin = at("compaction begins: ManualCompaction");
    assert!(begin < at("created: Compaction, 99 entries"), "{lines:?}");
    assert!(at("created: Compaction, 99 entries") < at("compaction completed: true"), "{lines:?}");
    assert_eq!(lines.iter().filter(|l| *l == "deleted: true").count(), 2, "{lines:?}");
    let compactions = notes.compactions.lock().unwrap();
    let job = compactions.last().unwrap();
    assert_eq!((job.compaction_reason, job.base_input_level), (CompactionReason::ManualCompaction, 0));
    assert_eq!((job.input_files.len(), job.output_files.len(), job.num_l0_files), (2, 1, 2));
    let s = job.stats;
    assert_eq!((s.num_input_records, s.num_output_records, s.is_manual_compaction), (200, 99, true));
    assert!(s.total_output_bytes > 0 && s.total_input_bytes > s.total_output_bytes);
    assert_eq!(s.num_records_replaced + s.num_expired_deletion_records, 101);
}

#[test]
fn stalls_and_dropped_column_families_are_told() {
    let notes = Notes::default();
    let mut options = options(&notes);
    options.set_disable_auto_compactions(false);
    options.set_level_zero_file_num_compaction_trigger(100);
    options.set_level_zero_slowdown_writes_trigger(3);
    options.set_level_zero_stop_writes_trigger(6);
    let db = Db::open(&options, path()).unwrap();
    db.create_cf("other", &options).unwrap();
    for i in 0..6 {
        // A stop would keep the writer of another batch waiting: the sixth table is the last.
        db.put(format!("{i}"), "v").unwrap();
        db.flush().unwrap();
    }
    db.drop_cf("other").unwrap();
    db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
    db.flush().unwrap();
    let lines = notes.lines();
    let stalls: Vec<_> = lines.iter().filter_map(|l| l.strip_prefix("stall: ")).collect();
    assert_eq!(stalls, ["Normal to Delayed", "Delayed to Stopped", "Stopped to Normal"], "{lines:?}");
    assert!(lines.contains(&"dropped: other".to_owned()), "{lines:?}");
    let info =
        WriteStallInfo { cf_name: "x".into(), cur: WriteStallCondition::Normal, prev: WriteStallCondition::Delayed };
    assert_ne!(info.cur, info.prev);
}

#[test]
fn a_failed_flush_is_told_as_a_background_error() {
    let notes = Notes::default();
    let (mut options, fs) = in_memory();
    options.add_event_listener(notes.clone());
    let db = Db::open(&options, path()).unwrap();
    db.put("k", "v").unwrap();
    fs.set_fault(Box::new(|op| {
        let table = op.path.extension().is_some_and(|e| e == "sst");
        table.then(|| std::io::Error::from_raw_os_error(libc_eio()))
    }));
    assert!(db.flush().is_err());
    fs.clear_fault();
    let lines = notes.lines();
    assert!(lines.contains(&"error: Flush".to_owned()), "{lines:?}");
    assert!(!lines.contains(&"flush completed".to_owned()), "{lines:?}");
}

/// EIO.
fn libc_eio() -> i32 {
    5
}

/// Holds every job where it has written its first table, until it is let go.
struct Holds {
    reached: std::sync::mpsc::Sender<u64>,
    go: Mutex<std::sync::mpsc::Receiver<()>>,
}

impl EventListener for Holds {
    fn on_table_file_created(&self, info: &TableFileCreationInfo) {
        self.reached.send(info.job_id).unwrap();
        let _ = self.go.lock().unwrap().recv();
    }
}

#[test]
fn running_jobs_are_shown_with_their_levels_and_how_far_they_are() {
    let (mut options, _) = in_memory();
    let (reached, reaches) = std::sync::mpsc::channel();
    let (go, goes) = std::sync::mpsc::channel();
    options.add_event_listener(Holds { reached, go: Mutex::new(goes) });
    options.set_disable_auto_compactions(true);
    options.set_target_file_size_base(64 << 10);
    let db = Db::open(&options, path()).unwrap();
    assert_eq!(db.running_jobs(), []);
    let fill = || (0..1000).for_each(|i| db.put(format!("key{i:04}"), vec![7; 500]).unwrap());
    fill();
    go.send(()).unwrap();
    db.flush().unwrap();
    reaches.recv().unwrap();
    fill();
    std::thread::scope(|s| {
        let go = go; // dropped by a failed assertion, so that nothing is held for ever
        let work = s.spawn(|| {
            db.flush().unwrap();
            db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
        });
        let job = reaches.recv().unwrap();
        let [flush] = &db.running_jobs()[..] else { panic!("one flush") };
        assert_eq!((flush.job, flush.start_level, flush.output_level), (job, None, 0));
        assert!(flush.bytes_total > 500_000, "{flush:?}");
        assert!(db.property_value("rocksdb.stats").unwrap().unwrap().contains("\n  mem     1       1   L0 "));
        go.send(()).unwrap();
        // The compaction: its first table is written, seven eighths are to come.
        let job = reaches.recv_timeout(std::time::Duration::from_secs(300)).unwrap();
        let [c] = &db.running_jobs()[..] else { panic!("one compaction") };
        assert_eq!((c.job, c.start_level, c.output_level, c.parts), (job, Some(0), 6, 1));
        assert!(c.bytes_total > 1_000_000 && (50_000..600_000).contains(&c.bytes_done), "{c:?}");
        let text = db.property_value("rocksdb.stats").unwrap().unwrap();
        assert!(
            text.contains("** Running Jobs [default] **") && text.contains("\n   L0     1       1   L6 "),
            "{text}"
        );
        drop(go);
        work.join().unwrap();
    });
    assert_eq!(db.running_jobs(), []);
    let text = db.property_value("rocksdb.stats").unwrap().unwrap();
    assert!(text.contains("Longest(sec)\nnone\n"), "{text}");
}

struct Panics;

impl EventListener for Panics {
    fn on_flush_begin(&self, _: &FlushJobInfo) {
        panic!("a listener's mistake");
    }
}

#[test]
fn a_panic_in_a_listener_harms_nobody_and_is_logged() {
    let (mut options, fs) = in_memory();
    let notes = Notes::default();
    options.add_event_listener(Panics);
    options.add_event_listener(notes.clone());
    let db = Db::open(&options, path()).unwrap();
    db.put("k", "v").unwrap();
    db.flush().unwrap();
    assert!(notes.lines().contains(&"flush completed".to_owned()));
    drop(db);
    let log = crate::info_log::text(&fs, "/db/LOG");
    assert!(log.contains("[ERROR] [event_listener.rs:") && log.contains("panicked: a listener's mistake"), "{log}");
}

/// Names of column families, in the order in which their compactions began.
#[derive(Clone, Default)]
struct Order(Arc<Mutex<Vec<String>>>);

impl EventListener for Order {
    fn on_compaction_begin(&self, info: &CompactionJobInfo) {
        let mut names = self.0.lock().unwrap();
        if !names.contains(&info.cf_name) {
            names.push(info.cf_name.clone());
        }
    }
}

#[test]
fn the_column_family_whose_debt_delays_writers_most_is_compacted_first() {
    let (mut options, _fs) = in_memory();
    let order = Order::default();
    options.add_event_listener(order.clone());
    // One thread compacts.
    options.set_max_background_jobs(2);
    let db = Db::open(&options, path()).unwrap();
    db.pause_background_work();
    // Tables in L0, the trigger, and where writers are slowed down: in the order of ids, then of scores, then of debt.
    for (name, files, trigger, slowdown) in [("third", 6, 2, 1000), ("second", 8, 1, 1000), ("first", 6, 4, 5)] {
        let mut o = options.clone();
        o.set_level_zero_file_num_compaction_trigger(trigger);
        o.set_level_zero_slowdown_writes_trigger(slowdown);
        o.set_level_zero_stop_writes_trigger(2000);
        db.create_cf(name, &o).unwrap();
        let cf = db.cf_handle(name).unwrap();
        for i in 0..files {
            db.put_cf(&cf, "key", format!("{i}")).unwrap();
            db.flush_cf(&cf).unwrap();
        }
    }
    assert!(order.0.lock().unwrap().is_empty());
    db.continue_background_work();
    db.wait_for_background_work().unwrap();
    assert_eq!(*order.0.lock().unwrap(), ["first", "second", "third"]);
}

/// Deletes tables when it is told of tables that were deleted, and counts what it is told.
#[derive(Clone, Default)]
struct Deletes {
    db: Arc<OnceLock<Weak<Db>>>,
    told: Arc<Mutex<usize>>,
    calls: Arc<Mutex<usize>>,
}

impl EventListener for Deletes {
    fn on_table_file_deleted(&self, _: &TableFileDeletionInfo) {
        *self.told.lock().unwrap() += 1;
        if let Some(db) = self.db.get().and_then(Weak::upgrade) {
            // One table after the other, each in a call within the call before.
            db.delete_file_in_range("b", "b~").unwrap();
            db.delete_file_in_range("c", "c~").unwrap();
            db.disable_file_deletions().unwrap();
            db.enable_file_deletions().unwrap();
            *self.calls.lock().unwrap() += 1;
        }
    }
}

#[test]
fn a_listener_that_deletes_tables_does_not_wait_for_itself() {
    let listener = Deletes::default();
    let (mut options, _) = in_memory();
    options.set_disable_auto_compactions(true);
    options.add_event_listener(listener.clone());
    let db = Arc::new(Db::open(&options, path()).unwrap());
    for name in ["a", "b", "c"] {
        db.put(format!("{name}1"), "v").unwrap();
        db.put(format!("{name}2"), "v").unwrap();
        db.flush().unwrap();
        let cf = db.cf_handle("default").unwrap();
        db.merge_into_extra_run(&cf, &[0], 1).unwrap();
    }
    let written = *listener.told.lock().unwrap();
    listener.db.set(Arc::downgrade(&db)).unwrap();
    let (done, ended) = std::sync::mpsc::channel();
    let of_thread = Arc::clone(&db);
    let thread = std::thread::spawn(move || {
        of_thread.delete_file_in_range("a", "a~").unwrap();
        done.send(()).unwrap();
    });
    // Far more than it takes: without the end of the call there is nothing else to see.
    ended.recv_timeout(std::time::Duration::from_secs(60)).expect("the call ends");
    thread.join().unwrap();
    assert_eq!(db.get("a1").unwrap().or(db.get("b1").unwrap()).or(db.get("c1").unwrap()), None);
    assert_eq!(*listener.told.lock().unwrap(), written + 3);
    assert_eq!(*listener.calls.lock().unwrap(), 3, "all had ended when the first call did");
}
