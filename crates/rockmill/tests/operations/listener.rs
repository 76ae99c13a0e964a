//! Event listeners: the events that they get, the order of events, and that they may use the database.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use rockmill::event_listener::{
    BackgroundErrorReason, BackgroundErrorRecoveryInfo, CompactionJobInfo, CompactionReason, ExternalFileIngestionInfo,
    FlushJobInfo, FlushReason, MemTableInfo, TableFileCreationInfo, TableFileDeletionInfo, WriteStallInfo,
};
use rockmill::internals::merge_into_extra_run;
use rockmill::{
    CompactOptions, Db, Error, EventListener, Options, SstFileWriter, WriteBatch, WriteBufferManager, WriteOptions,
};

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
    let db = Db::open(&options, path()).unwrap();
    // An open would raise the slowdown trigger to 6, so that compactions begin before writers are slowed down.
    let triggers = ["level0_file_num_compaction_trigger", "level0_stop_writes_trigger"].map(|name| (name, "6"));
    db.set_options(&[triggers[0], triggers[1], ("level0_slowdown_writes_trigger", "3")]).unwrap();
    db.create_cf("other", &options).unwrap();
    for i in 0..6 {
        // The sixth table is the last, because a stop would block the writer of another batch.
        db.put(format!("{i}"), "v").unwrap();
        db.flush().unwrap();
    }
    db.drop_cf("other").unwrap();
    db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
    db.flush().unwrap();
    let lines = notes.lines();
    let stalls: Vec<_> = lines.iter().filter_map(|l| l.strip_prefix("stall: ")).collect();
    // The compaction of the six may or may not have ended before the manual one.
    assert_eq!(stalls[..2], ["Normal to Delayed", "Delayed to Stopped"], "{lines:?}");
    assert!(matches!(stalls[2..], ["Stopped to Normal"] | ["Stopped to Delayed", "Delayed to Normal"]), "{lines:?}");
    assert!(lines.contains(&"dropped: other".to_owned()), "{lines:?}");
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

/// Holds every job after its first table, until it is released.
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
        // The compaction has written its first table; seven eighths remain.
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
    // Tables in L0, the trigger, and the slowdown trigger; ordered by ids, then by scores, then by debt.
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

/// Deletes tables when it is notified of deleted tables, and counts the notifications.
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
        merge_into_extra_run(&db, &cf, &[0], 1).unwrap();
    }
    let written = *listener.told.lock().unwrap();
    listener.db.set(Arc::downgrade(&db)).unwrap();
    let (done, ended) = std::sync::mpsc::channel();
    let of_thread = Arc::clone(&db);
    let thread = std::thread::spawn(move || {
        of_thread.delete_file_in_range("a", "a~").unwrap();
        done.send(()).unwrap();
    });
    // Far more time than needed; there is nothing else to observe than the end of the call.
    ended.recv_timeout(std::time::Duration::from_secs(60)).expect("the call ends");
    thread.join().unwrap();
    assert_eq!(db.get("a1").unwrap().or(db.get("b1").unwrap()).or(db.get("c1").unwrap()), None);
    assert_eq!(*listener.told.lock().unwrap(), written + 3);
    assert_eq!(*listener.calls.lock().unwrap(), 3, "all had ended when the first call did");
}

/// Writes when it is notified of one kind of event.
#[derive(Clone, Default)]
struct WritesOn {
    event: &'static str,
    key: &'static str,
    db: Arc<OnceLock<Weak<Db>>>,
    /// Writes that were begun, and those that returned.
    writes: Arc<[AtomicU64; 2]>,
    failed: Arc<Mutex<Vec<Error>>>,
}

impl WritesOn {
    fn told(&self, event: &str) {
        let db = self.db.get().and_then(Weak::upgrade);
        let (Some(db), true) = (db, event == self.event || self.event == "everything") else { return };
        self.writes[0].fetch_add(1, Ordering::SeqCst);
        let mut batch = WriteBatch::new();
        batch.put(self.key, "from a listener");
        let mut how = WriteOptions::default();
        how.set_sync(self.writes[0].load(Ordering::SeqCst).is_multiple_of(2));
        let done = db.put(self.key, event).and_then(|()| db.write_opt(&batch, &how));
        let _ = db.get(self.key).unwrap();
        self.failed.lock().unwrap().extend(done.err());
        self.writes[1].fetch_add(1, Ordering::SeqCst);
    }
}

impl EventListener for WritesOn {
    fn on_flush_begin(&self, _: &FlushJobInfo) {
        self.told("flush begin");
    }
    fn on_flush_completed(&self, _: &FlushJobInfo) {
        self.told("flush completed");
    }
    fn on_compaction_begin(&self, _: &CompactionJobInfo) {
        self.told("compaction begin");
    }
    fn on_compaction_completed(&self, _: &CompactionJobInfo) {
        self.told("compaction completed");
    }
    fn on_table_file_created(&self, _: &TableFileCreationInfo) {
        self.told("table created");
    }
    fn on_table_file_deleted(&self, _: &TableFileDeletionInfo) {
        self.told("table deleted");
    }
    fn on_memtable_sealed(&self, _: &MemTableInfo) {
        self.told("memtable sealed");
    }
    fn on_stall_conditions_changed(&self, _: &WriteStallInfo) {
        self.told("stall");
    }
    fn on_background_error(&self, _: BackgroundErrorReason, _: &Error) {
        self.told("background error");
    }
    fn on_error_recovery_begin(&self, _: BackgroundErrorReason, _: &Error) -> bool {
        self.told("recovery begin");
        true
    }
    fn on_error_recovery_completed(&self, _: &Error) {
        self.told("recovery completed");
    }
    fn on_error_recovery_end(&self, _: &BackgroundErrorRecoveryInfo) {
        self.told("recovery end");
    }
    fn on_external_file_ingested(&self, _: &ExternalFileIngestionInfo) {
        self.told("ingested");
    }
    fn on_column_family_handle_deletion_started(&self, _: &str) {
        self.told("family dropped");
    }
}

/// Runs `work` on a separate thread; panics if it does not end in time.
fn in_time(what: &str, work: impl FnOnce() + Send + 'static) {
    let (done, ends) = std::sync::mpsc::channel();
    let worker = std::thread::spawn(move || {
        work();
        let _ = done.send(());
    });
    let ended = ends.recv_timeout(Duration::from_secs(120));
    assert!(ended != Err(std::sync::mpsc::RecvTimeoutError::Timeout), "{what}: it hangs");
    worker.join().unwrap();
}

/// Several writers that are stopped now and then, flushes, ingestions that overlap memtables, and compactions.
fn busy_database(listener: &WritesOn, atomic: bool, stalls: bool) {
    let (mut options, _) = in_memory();
    options.add_event_listener(listener.clone());
    options.set_write_buffer_size(16 << 10);
    options.set_max_write_buffer_number(2);
    options.set_level_zero_file_num_compaction_trigger(2);
    options.set_level_zero_slowdown_writes_trigger(3);
    options.set_level_zero_stop_writes_trigger(4);
    options.set_atomic_flush(atomic);
    if stalls {
        options.set_write_buffer_manager(&WriteBufferManager::new_write_buffer_manager(40 << 10, true));
    }
    let db = Arc::new(Db::open(&options, path()).unwrap());
    let other = db.create_cf("other", &options).unwrap();
    let gone = db.create_cf("gone", &options).unwrap();
    let _ = listener.db.set(Arc::downgrade(&db));
    db.put_cf(&gone, "k", "v").unwrap();
    std::thread::scope(|s| {
        for w in 0..2 {
            let (db, other) = (&db, &other);
            s.spawn(move || {
                for i in 0..600 {
                    db.put(format!("{w}-{i:05}"), vec![1; 100]).unwrap();
                    db.put_cf(other, format!("{w}-{i:05}"), vec![1; 100]).unwrap();
                }
            });
        }
        s.spawn(|| {
            for i in 0..5 {
                let table = format!("/ext{i}.sst");
                let mut writer = SstFileWriter::create(&options);
                writer.open(&table).unwrap();
                for key in ["0", "listener", "z"] {
                    writer.put(key, format!("ingested {i}")).unwrap();
                }
                writer.finish().unwrap();
                db.ingest_external_file(vec![table]).unwrap();
            }
        });
        s.spawn(|| {
            for _ in 0..3 {
                db.flush_all().unwrap();
                db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
            }
            db.drop_cf("gone").unwrap();
        });
    });
    drop(gone);
    db.flush_all().unwrap();
    db.wait_for_background_work().unwrap();
    for w in 0..2 {
        for i in 0..600 {
            assert!(db.get(format!("{w}-{i:05}")).unwrap().is_some());
            assert!(db.get_cf(&other, format!("{w}-{i:05}")).unwrap().is_some());
        }
    }
    assert!(db.get("0").unwrap().is_some_and(|v| v == b"ingested 4"));
    // Late notifications may come now; a hanging write never returns.
    let writes = || [0, 1].map(|n| listener.writes[n].load(Ordering::SeqCst));
    while writes()[0] == 0 || writes()[0] != writes()[1] {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(*listener.failed.lock().unwrap(), [], "writes of the listener");
    // None of its writes is lost, neither after an earlier ingestion nor before a later one.
    let found = db.get(listener.key).unwrap().unwrap();
    let mut it = db.raw_iterator();
    it.seek(listener.key);
    assert_eq!(it.value(), Some(&found[..]));
    drop(db);
}

#[test]
fn a_listener_may_write_in_every_call() {
    let events = [
        "flush begin",
        "flush completed",
        "compaction begin",
        "compaction completed",
        "table created",
        "table deleted",
        "memtable sealed",
        "stall",
        "ingested",
        "family dropped",
        "everything",
    ];
    for (n, event) in events.into_iter().enumerate() {
        for (atomic, stalls) in [(false, false), (true, false), (false, true)] {
            if n % 3 != 0 && event != "everything" && (atomic || stalls) {
                continue;
            }
            let listener = WritesOn { event, key: "listener", ..WritesOn::default() };
            let what = format!("{event}, atomic {atomic}, stalls {stalls}");
            in_time(&what, move || busy_database(&listener, atomic, stalls));
        }
    }
}

#[test]
fn a_listener_may_write_while_an_ingestion_flushes_what_it_writes() {
    for event in ["flush begin", "flush completed", "memtable sealed", "table created", "everything"] {
        for running in [false, true] {
            in_time(event, move || {
                let listener = WritesOn { event, key: "listener", ..WritesOn::default() };
                let (mut options, _) = in_memory();
                options.add_event_listener(listener.clone());
                let db = Arc::new(Db::open(&options, path()).unwrap());
                let mut writer = SstFileWriter::create(&options);
                writer.open("/ext.sst").unwrap();
                for key in ["a", "listener", "z"] {
                    writer.put(key, "ingested").unwrap();
                }
                writer.finish().unwrap();
                let _ = listener.db.set(Arc::downgrade(&db));
                db.put("b", "x").unwrap();
                std::thread::scope(|s| {
                    if running {
                        // A flush thread calls one at the same time.
                        s.spawn(|| db.flush().unwrap());
                    }
                    db.ingest_external_file(vec!["/ext.sst"]).unwrap();
                });
                assert_eq!(*listener.failed.lock().unwrap(), []);
                assert!(listener.writes[1].load(Ordering::SeqCst) > 0);
                db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
                assert!(db.get("listener").unwrap().is_some());
                assert_eq!(db.get("a").unwrap().as_deref(), Some(&b"ingested"[..]));
            });
        }
    }
}

#[test]
fn a_listener_may_write_when_work_fails_and_recovers() {
    for event in ["background error", "recovery begin", "recovery completed", "recovery end", "everything"] {
        in_time(event, move || {
            let listener = WritesOn { event, key: "listener", ..WritesOn::default() };
            let (mut options, fs) = in_memory();
            options.add_event_listener(listener.clone());
            options.set_bgerror_resume_retry_interval(10_000);
            let db = Arc::new(Db::open(&options, path()).unwrap());
            let _ = listener.db.set(Arc::downgrade(&db));
            db.put("k", "v").unwrap();
            fs.set_fault(Box::new(|op| {
                let table = op.path.extension().is_some_and(|e| e == "sst");
                table.then(|| std::io::Error::from_raw_os_error(28)) // no space
            }));
            assert!(db.flush().is_err());
            fs.clear_fault();
            while db.background_error().is_some() || listener.writes[0].load(Ordering::SeqCst) == 0 {
                std::thread::sleep(Duration::from_millis(5));
            }
            db.put("after", "v").unwrap();
            db.flush().unwrap();
            // The last call may still run.
            while listener.writes[0].load(Ordering::SeqCst) != listener.writes[1].load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
    }
}

/// Holds the last handle of its database, in a call by one of the database's threads.
struct HasTheLastHandle {
    db: Arc<OnceLock<Weak<Db>>>,
    /// Signals that the call has begun, and waits for the signal that no other handle is left.
    steps: Mutex<(std::sync::mpsc::Sender<()>, std::sync::mpsc::Receiver<()>)>,
    cancels: bool,
}

impl EventListener for HasTheLastHandle {
    fn on_flush_begin(&self, _: &FlushJobInfo) {
        let Some(db) = self.db.get().and_then(Weak::upgrade) else { return };
        let steps = self.steps.lock().unwrap();
        steps.0.send(()).unwrap();
        steps.1.recv().unwrap();
        if self.cancels {
            db.cancel_all_background_work(true);
        }
    }
}

#[test]
fn a_listener_with_the_last_handle_closes_the_database() {
    for cancels in [false, true] {
        in_time("close", move || {
            let (mut options, _) = in_memory();
            options.set_write_buffer_size(64 << 10);
            let plain = options.clone();
            let ((said, hears), (says, heard)) = (std::sync::mpsc::channel(), std::sync::mpsc::channel());
            let of = Arc::new(OnceLock::new());
            options.add_event_listener(HasTheLastHandle {
                db: Arc::clone(&of),
                steps: Mutex::new((said, heard)),
                cancels,
            });
            let db = Arc::new(Db::open(&options, path()).unwrap());
            of.set(Arc::downgrade(&db)).unwrap();
            db.put("k", "v").unwrap();
            // Fills a memtable, which a thread of the database flushes.
            db.put("large", vec![1; 80 << 10]).unwrap();
            db.put("next", "v").unwrap();
            hears.recv().unwrap();
            drop(db);
            says.send(()).unwrap();
            let again = loop {
                match Db::open(&plain, path()) {
                    Ok(db) => break db,
                    Err(e) => assert!(e.to_string().contains("lock"), "{e}"),
                }
                std::thread::sleep(Duration::from_millis(1));
            };
            assert_eq!(again.get("k").unwrap().as_deref(), Some(&b"v"[..]));
        });
    }
}
