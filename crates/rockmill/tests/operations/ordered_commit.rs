//! How compactions end if an earlier one takes long or fails: waiting outputs are merged with each other, outputs that
//! depend on the failed job are dropped, and a crash in between leaves nothing behind.
//!
//! A filter blocks compactions: one that reads a value `wait:NAME` stops until the test opens the gate NAME.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rockmill::event_listener::{BackgroundErrorReason, CompactionJobInfo, CompactionReason, TableFileCreationInfo};
use rockmill::{
    ColumnFamilyDescriptor, CompactionDecision, CompactionFilter, CompactionFilterContext, CompactionFilterFactory, Db,
    Error, EventListener, IteratorMode, Options,
};
use rockmill_io::{CrashMode, FileSystem, MemFileSystem, OpKind};

type Model = BTreeMap<String, Vec<u8>>;

/// No wait comes near this, except on a suspended machine.
const LIMIT: Duration = Duration::from_secs(300);

/// Opens every gate.
const ALL: &str = "";

#[derive(Default)]
struct Seen {
    open: BTreeSet<String>,
    /// Gates that jobs reached, in order, and the number of filter calls after that.
    arrived: Vec<(String, usize)>,
    begun: Vec<CompactionJobInfo>,
    ended: Vec<CompactionJobInfo>,
    errors: usize,
}

/// Holds compactions up, and hears of them.
#[derive(Clone, Default)]
struct Gates {
    seen: Arc<(Mutex<Seen>, Condvar)>,
    /// The first merge of pending output cannot create a table.
    fail_merge: Option<MemFileSystem>,
    /// Merges of pending output stop at the gate `merge` after their first table; after this point they check nothing
    /// until they report their end.
    hold_merge: bool,
}

impl Gates {
    fn open(&self, name: &str) {
        self.seen.0.lock().open.insert(name.to_owned());
        self.seen.1.notify_all();
    }

    #[track_caller]
    fn wait(&self, what: &str, mut done: impl FnMut(&Seen) -> bool) {
        let until = Instant::now() + LIMIT;
        let mut seen = self.seen.0.lock();
        while !done(&seen) {
            assert!(Instant::now() < until, "{what}: not within {LIMIT:?}");
            self.seen.1.wait_for(&mut seen, Duration::from_millis(20));
        }
    }

    /// Waits for something that does not involve the gates.
    #[track_caller]
    fn until(&self, what: &str, done: impl Fn() -> bool) {
        let until = Instant::now() + LIMIT;
        while !done() {
            assert!(Instant::now() < until, "{what}: not within {LIMIT:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn wait_at(&self, gate: &str) {
        self.wait(gate, |seen| seen.arrived.iter().any(|a| a.0 == gate));
    }

    /// Stops at a gate until it is open. Returns the index in the list of arrivals.
    fn stop_at(&self, gate: &str) -> usize {
        let mut seen = self.seen.0.lock();
        let at = seen.arrived.len();
        seen.arrived.push((gate.to_owned(), 0));
        self.seen.1.notify_all();
        while !seen.open.contains(gate) && !seen.open.contains(ALL) {
            self.seen.1.wait(&mut seen);
        }
        at
    }
}

impl CompactionFilterFactory for Gates {
    type Filter = AtGate;

    fn create(&mut self, _: CompactionFilterContext) -> AtGate {
        AtGate { gates: self.clone(), arrived: None }
    }

    fn name(&self) -> &str {
        "gates"
    }
}

struct AtGate {
    gates: Gates,
    arrived: Option<usize>,
}

impl CompactionFilter for AtGate {
    fn filter(&mut self, _: u32, _: &[u8], value: &[u8]) -> CompactionDecision {
        if let Some(at) = self.arrived {
            self.gates.seen.0.lock().arrived[at].1 += 1;
        }
        if let Some(gate) = value.strip_prefix(b"wait:") {
            self.arrived = Some(self.gates.stop_at(&String::from_utf8_lossy(gate)));
        }
        CompactionDecision::Keep
    }

    fn name(&self) -> &str {
        "gates"
    }
}

impl EventListener for Gates {
    fn on_compaction_begin(&self, info: &CompactionJobInfo) {
        let mut seen = self.seen.0.lock();
        let merge = |c: &CompactionJobInfo| c.compaction_reason == CompactionReason::IntraDf;
        if let Some(fs) = self.fail_merge.as_ref().filter(|_| merge(info) && !seen.begun.iter().any(merge)) {
            // Other jobs create tables meanwhile.
            next_table_fails(fs, Some(thread::current().id()));
        }
        seen.begun.push(info.clone());
        self.seen.1.notify_all();
    }

    fn on_compaction_completed(&self, info: &CompactionJobInfo) {
        self.seen.0.lock().ended.push(info.clone());
        self.seen.1.notify_all();
    }

    fn on_table_file_created(&self, table: &TableFileCreationInfo) {
        let of_merge = |seen: &Seen| merges(&seen.begun).iter().any(|c| c.job_id == table.job_id);
        if self.hold_merge && of_merge(&self.seen.0.lock()) {
            self.stop_at("merge");
        }
    }

    fn on_background_error(&self, reason: BackgroundErrorReason, _: &Error) {
        assert_eq!(reason, BackgroundErrorReason::Compaction);
        self.seen.0.lock().errors += 1;
    }
}

/// The next table of this thread (or of any thread) cannot be created because the disk is full; after that, there is
/// space again.
fn next_table_fails(fs: &MemFileSystem, of: Option<ThreadId>) {
    let mut left = 1;
    fs.set_fault(Box::new(move |op| {
        let table = op.kind == OpKind::Create && op.path.extension().is_some_and(|e| e == "sst");
        if !table || left == 0 || of.is_some_and(|id| id != thread::current().id()) {
            return None;
        }
        left -= 1;
        Some(std::io::Error::from_raw_os_error(28))
    }));
}

fn options(fs: &MemFileSystem, gates: &Gates) -> Options {
    let mut o = Options::default();
    o.create_if_missing(true);
    o.create_missing_column_families(true);
    o.set_file_system(Arc::new(fs.clone()));
    o.set_compaction_downforce(true);
    o.set_max_background_jobs(8);
    o.set_level_zero_file_num_compaction_trigger(2);
    o.set_level_zero_slowdown_writes_trigger(200);
    o.set_level_zero_stop_writes_trigger(300);
    o.set_level_compaction_dynamic_level_bytes(false);
    o.set_compression_type(rockmill::CompressionType::None);
    o.set_bgerror_resume_retry_interval(5_000);
    o.set_compaction_filter_factory(gates.clone());
    o.add_event_listener(gates.clone());
    o
}

fn open(o: &Options) -> Db {
    let families = ["default", "other"].map(|f| ColumnFamilyDescriptor::new(f, o.clone()));
    Db::open_cf_descriptors(o, "/db", families).unwrap()
}

struct Store {
    fs: MemFileSystem,
    gates: Gates,
    db: Db,
    model: Model,
    round: usize,
}

impl Drop for Store {
    /// A test that failed must end, too.
    fn drop(&mut self) {
        self.gates.open(ALL);
    }
}

impl Store {
    /// One table is in level 1, or will be soon.
    fn new(gates: Gates, fs: MemFileSystem) -> Self {
        fs.set_free_space(Some(1 << 30));
        let o = options(&fs, &gates);
        let db = open(&o);
        let mut store = Self { fs, gates, db, model: Model::new(), round: 0 };
        store.table("default", 50, None);
        store
    }

    /// A table in L0 with new values of the same keys; each round deletes some. A job that reads it stops at the gate
    /// before it has written anything.
    fn table(&mut self, family: &str, keys: usize, gate: Option<&str>) {
        self.table_of(family, 0..keys, gate);
    }

    /// The same with these keys.
    fn table_of(&mut self, family: &str, keys: Range<usize>, gate: Option<&str>) {
        self.round += 1;
        let cf = self.db.cf_handle(family).unwrap();
        let first = keys.start;
        for i in keys {
            let (key, round) = (format!("key{i:05}"), self.round);
            let value = match gate {
                Some(gate) if i == first => format!("wait:{gate}"),
                _ => format!("{round} {}", "v".repeat(50)),
            };
            if i > first && (i + round) % 7 == 0 {
                self.db.delete_cf(&cf, &key).unwrap();
                self.model.remove(&format!("{family} {key}"));
            } else {
                self.db.put_cf(&cf, &key, &value).unwrap();
                self.model.insert(format!("{family} {key}"), value.into_bytes());
            }
        }
        self.db.flush_cf(&cf).unwrap();
    }

    /// Two tables, as many as a job from L0 takes.
    fn tables(&mut self, keys: usize, gate: Option<&str>) {
        self.table("default", keys, gate);
        self.table("default", keys, gate);
    }

    #[track_caller]
    fn check(&self, what: &str) {
        assert_eq!(contents(&self.db), self.model, "{what}");
    }

    /// Tables on disk that are not in the tree.
    fn orphans(&self) -> BTreeSet<String> {
        let live = live(&self.db);
        tables(&self.fs).into_iter().filter(|t| !live.contains(t)).collect()
    }

    /// What pending output was merged into.
    fn merged(&self) -> BTreeSet<String> {
        let seen = self.gates.seen.0.lock();
        merges(&seen.ended).iter().flat_map(|c| names(&c.output_files)).collect()
    }

    /// Checks that at rest all data and no other files exist.
    #[track_caller]
    fn check_at_rest(&self) {
        // A temporary error is reported until it has passed.
        self.gates.until("background work ends well", || self.db.wait_for_background_work().is_ok());
        self.check("at rest");
        self.gates.until("obsolete tables are removed", || self.orphans().is_empty());
    }
}

fn contents(db: &Db) -> Model {
    let of = |family: &str| {
        let cf = db.cf_handle(family).unwrap();
        let all: Vec<_> = db.iterator_cf(&cf, IteratorMode::Start).map(|kv| kv.unwrap()).collect();
        all.into_iter().map(move |(k, v)| (k, v.into_vec())).collect::<Vec<_>>()
    };
    ["default", "other"]
        .into_iter()
        .flat_map(|f| of(f).into_iter().map(move |(k, v)| (format!("{f} {}", String::from_utf8_lossy(&k)), v)))
        .collect()
}

fn tables(fs: &MemFileSystem) -> BTreeSet<String> {
    fs.list_dir(&PathBuf::from("/db")).unwrap().into_iter().filter(|n| n.ends_with(".sst")).collect()
}

fn live(db: &Db) -> BTreeSet<String> {
    db.live_files().unwrap().iter().map(|f| f.name.trim_start_matches('/').to_owned()).collect()
}

fn merges(seen: &[CompactionJobInfo]) -> Vec<&CompactionJobInfo> {
    seen.iter().filter(|c| c.compaction_reason == CompactionReason::IntraDf).collect()
}

fn names(paths: &[PathBuf]) -> BTreeSet<String> {
    paths.iter().map(|p| p.file_name().unwrap().to_string_lossy().into_owned()).collect()
}

/// A store whose first job is at the gate "first", and the outputs of the two jobs after it are one waiting run.
fn with_merged_output(gates: Gates, fs: MemFileSystem) -> Store {
    let mut s = Store::new(gates, fs);
    s.tables(50, Some("first"));
    s.gates.wait_at("first");
    s.tables(60, None);
    s.tables(70, None);
    s.gates.wait("a merge", |seen| merges(&seen.ended).iter().any(|c| c.status.is_ok()));
    s
}

#[test]
fn output_that_waits_is_merged_and_lives_once_the_first_job_does() {
    let s = with_merged_output(Gates::default(), MemFileSystem::new());
    let merge = merges(&s.gates.seen.0.lock().ended)[0].clone();
    assert!(merge.input_files.len() >= 2 && !merge.output_files.is_empty(), "{merge:?}");
    s.check("while it waits");
    // The merged tables are gone, and the result waits.
    let parts = names(&merge.input_files);
    s.gates.until("parts are removed", || tables(&s.fs).is_disjoint(&parts));
    assert_eq!(s.orphans(), names(&merge.output_files));
    s.gates.open("first");
    s.check_at_rest();
    let seen = s.gates.seen.0.lock();
    assert_eq!((seen.begun.len(), seen.errors), (seen.ended.len(), 0));
    assert!(seen.ended.iter().all(|c| c.status.is_ok()));
}

#[test]
fn a_crash_between_completion_and_commit_loses_nothing_and_leaves_no_table() {
    let s = with_merged_output(Gates::default(), MemFileSystem::new());
    let waiting = s.merged();
    assert!(!waiting.is_empty() && live(&s.db).is_disjoint(&waiting));
    for mode in [CrashMode::KeepAll, CrashMode::SyncedOnly, CrashMode::Random(1), CrashMode::Random(2)] {
        let fs = s.fs.crash_image(mode);
        if matches!(mode, CrashMode::KeepAll) {
            assert!(tables(&fs).is_superset(&waiting), "they are durable");
        }
        let mut o = options(&fs, &Gates::default());
        o.set_disable_auto_compactions(true);
        let db = open(&o);
        assert_eq!(contents(&db), s.model, "{mode:?}");
        assert_eq!(tables(&fs), live(&db), "{mode:?}");
        assert!(live(&db).is_disjoint(&waiting), "{mode:?}");
    }
    s.gates.open("first");
    s.check_at_rest();
}

#[test]
fn a_merge_of_waiting_output_that_fails_leaves_it_as_it_was() {
    let fs = MemFileSystem::new();
    let gates = Gates { fail_merge: Some(fs.clone()), ..Gates::default() };
    let s = with_merged_output(gates, fs);
    // Another thread may do the merge before the failed thread reports its failure.
    let failed = |c: &&CompactionJobInfo| c.status.is_err();
    s.gates.wait("the error", |seen| seen.errors > 0 && seen.ended.iter().any(|c| failed(&c)));
    {
        let seen = s.gates.seen.0.lock();
        let merges = merges(&seen.ended);
        let [a, b] = &merges[..] else { panic!("{merges:?}") };
        let (failed, done) = if failed(a) { (a, b) } else { (b, a) };
        assert!(failed.status.as_ref().is_err_and(Error::is_no_space), "{failed:?}");
        assert!(done.status.is_ok());
        assert_eq!(failed.input_files, done.input_files, "the same tables once more");
        assert_eq!(seen.errors, 1);
    }
    s.check("while it waits");
    s.gates.open("first");
    s.check_at_rest();
}

#[test]
fn when_a_job_fails_those_that_need_it_end_at_once_and_are_picked_again() {
    const KEYS: usize = 5000;
    let mut s = Store::new(Gates::default(), MemFileSystem::new());
    s.tables(50, Some("first"));
    s.gates.wait_at("first");
    s.tables(KEYS, Some("second"));
    s.gates.wait_at("second");
    // The third job is done, and waits for both.
    let before = tables(&s.fs);
    s.tables(60, None);
    let third = |s: &Store| s.orphans().into_iter().filter(|t| !before.contains(t)).collect::<BTreeSet<_>>();
    s.gates.until("the third job", || !third(&s).is_empty());
    next_table_fails(&s.fs, None);
    s.gates.open("first");
    s.gates.wait("the first job and the third", |seen| seen.ended.iter().filter(|c| c.status.is_err()).count() == 2);
    // The second job does not know yet. New jobs with the third job's inputs would be dropped again and again.
    let begun = s.gates.seen.0.lock().begun.len();
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(s.gates.seen.0.lock().begun.len(), begun, "nothing begins that needs what is doomed");
    s.gates.open("second");
    s.check_at_rest();
    let seen = s.gates.seen.0.lock();
    let failed: Vec<String> =
        seen.ended.iter().filter_map(|c| c.status.as_ref().err()).map(ToString::to_string).collect();
    let dropped = failed.iter().filter(|e| e.contains("had to commit before")).count();
    assert_eq!((failed.len(), dropped, seen.errors), (3, 2, 1), "{failed:?}");
    // The second job saw the flag long before its end.
    let second: Vec<usize> = seen.arrived.iter().filter(|a| a.0 == "second").map(|a| a.1).collect();
    assert!(!second.is_empty() && second[0] < KEYS / 2, "{second:?}");
    assert!(s.db.level_stats(&s.db.cf_handle("default").unwrap())[0].files < 2, "what they took was picked again");
    drop(seen);
    // Log lines are written to the file with a delay.
    let told = |what: &str| {
        let log = s.fs.read_to_vec(&PathBuf::from("/db/LOG")).unwrap();
        String::from_utf8_lossy(&log).matches(what).count()
    };
    for what in ["Compaction dropped", "\"event\": \"compaction_dropped\""] {
        s.gates.until(what, || told(what) == 2);
    }
    // And they count.
    let counted = s.db.counters();
    assert_eq!((counted.compactions_failed, counted.compactions_dropped, counted.flushes_failed), (1, 2, 0));
    let text = s.db.property_value("rocksdb.dbstats").unwrap().unwrap();
    assert!(text.contains("1 compactions failed, 2 dropped as another one failed, 0 flushes failed"), "{text}");
}

#[test]
fn column_families_commit_independently() {
    let mut s = with_merged_output(Gates::default(), MemFileSystem::new());
    let waiting = s.merged();
    for _ in 0..6 {
        s.table("other", 50, None);
    }
    let levels = |family: &str| s.db.level_stats(&s.db.cf_handle(family).unwrap());
    s.gates.until("the other one's jobs", || {
        let levels = levels("other");
        levels[0].files <= 1 && levels[1..].iter().any(|l| l.files > 0)
    });
    assert!(s.orphans().is_superset(&waiting), "they still wait");
    s.check("one waits, the other one does not");
    s.gates.open("first");
    s.check_at_rest();
}

/// Two outputs wait for the first job, and the newer one also for another job, which fails while they are being merged.
/// The merge's output has data of a job that must never become live, and the older output must not be dropped with it.
#[test]
fn a_merge_is_undone_when_what_one_of_its_parts_needs_fails() {
    let gates = Gates { hold_merge: true, ..Gates::default() };
    let mut s = Store::new(gates, MemFileSystem::new());
    // No L0 job has all keys, so that only the newer one depends on the failing job.
    let (low, high, all) = (0..60, 100..150, 0..150);
    s.table_of("default", all.clone(), None);
    s.db.compact_range_cf(&s.db.cf_handle("default").unwrap(), None::<&[u8]>, None::<&[u8]>).unwrap();
    let two = |s: &mut Store, keys: &Range<usize>, gate: Option<&str>| {
        s.table_of("default", keys.clone(), gate);
        s.table_of("default", keys.clone(), gate);
    };
    two(&mut s, &low, Some("first"));
    s.gates.wait_at("first");
    two(&mut s, &high, Some("second"));
    s.gates.wait_at("second");
    let before = tables(&s.fs);
    two(&mut s, &low, None);
    let written = |s: &Store| s.orphans().into_iter().filter(|t| !before.contains(t)).count();
    s.gates.until("the older output", || written(&s) == 1);
    two(&mut s, &all, None);
    s.gates.wait_at("merge");
    let merge = merges(&s.gates.seen.0.lock().begun)[0].clone();
    assert_eq!(merge.input_files.len(), 2, "{merge:?}");
    let parts = names(&merge.input_files);
    let merged = || -> Vec<String> { s.orphans().into_iter().filter(|t| !parts.contains(t)).collect() };
    // Obsolete tables may exist a moment longer.
    s.gates.until("what it wrote", || merged().len() == 1);
    let merged = merged();

    next_table_fails(&s.fs, None);
    s.gates.open("second");
    s.gates.wait("the job that fails", |seen| seen.ended.iter().any(|c| c.status.is_err()));
    s.gates.open("merge");
    let of_merge = |seen: &Seen| seen.ended.iter().find(|c| c.job_id == merge.job_id).cloned();
    s.gates.wait("the merge", |seen| of_merge(seen).is_some());
    let ended = of_merge(&s.gates.seen.0.lock()).unwrap().status;
    assert!(ended.as_ref().is_err_and(|e| e.to_string().contains("had to commit before")), "{ended:?}");
    assert!(!tables(&s.fs).contains(&merged[0]), "what it wrote is gone");
    s.check("while the older one waits");
    s.gates.open("first");
    s.check_at_rest();
    let seen = s.gates.seen.0.lock();
    let failed: Vec<String> =
        seen.ended.iter().filter_map(|c| c.status.as_ref().err()).map(ToString::to_string).collect();
    let dropped = failed.iter().filter(|e| e.contains("had to commit before")).count();
    assert_eq!((failed.len(), dropped, seen.errors), (3, 2, 1), "it, the merge and the newer part: {failed:?}");
}
