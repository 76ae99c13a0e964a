//! Compaction filters: for what they are called, the effects of their decisions on readers and on disk, failing
//! filters, and a comparison with RocksDB.

mod oracle;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use oracle::{Driver, Peer, Script};
use parking_lot::Mutex;
use rockmill::{
    BottommostLevelCompaction, ColumnFamilyDescriptor, ColumnFamilyTtl, CompactOptions, CompactionDecision,
    CompactionFilter, CompactionFilterContext, CompactionFilterFactory, Db, ErrorKind, IteratorMode, Options,
    TableFileCreationReason, WriteBatch, merge_operator,
};
use rockmill_io::{ManualClock, MemFileSystem};

fn memory() -> Options {
    let mut o = Options::default();
    o.create_if_missing(true);
    o.set_disable_auto_compactions(true);
    o.set_file_system(Arc::new(MemFileSystem::new()));
    o
}

fn compact(db: &Db) {
    db.compact_range(None::<&[u8]>, None::<&[u8]>).expect("compaction");
}

type Entries = Vec<(Vec<u8>, Vec<u8>)>;

fn all(db: &Db) -> Entries {
    let items = db.iterator(IteratorMode::Start).map(|kv| kv.expect("an entry"));
    items.map(|(k, v)| (k.into_vec(), v.into_vec())).collect()
}

/// Decides as the driver's filter of the same name.
#[derive(Default)]
struct ByValue;

impl ByValue {
    fn decide(value: &[u8]) -> CompactionDecision {
        match value.split_first() {
            Some((b'r', _)) => CompactionDecision::Remove,
            Some((b'c', rest)) => CompactionDecision::Change([b"C", rest].concat()),
            Some((b'p', _)) => CompactionDecision::Purge,
            Some((b's', rest)) => CompactionDecision::RemoveAndSkipUntil(rest.to_vec()),
            _ => CompactionDecision::Keep,
        }
    }
}

impl CompactionFilter for ByValue {
    fn filter(&mut self, _: u32, _: &[u8], value: &[u8]) -> CompactionDecision {
        Self::decide(value)
    }
    fn filter_merge_operand(&mut self, _: u32, _: &[u8], operand: &[u8]) -> CompactionDecision {
        Self::decide(operand)
    }
    fn name(&self) -> &str {
        "ByValue"
    }
}

/// Remembers what it was asked for.
#[derive(Default, Clone)]
struct Recorder {
    contexts: Arc<Mutex<Vec<CompactionFilterContext>>>,
    asked: Arc<AtomicU64>,
    in_flushes: bool,
}

impl CompactionFilterFactory for Recorder {
    type Filter = Counter;

    fn create(&mut self, context: CompactionFilterContext) -> Counter {
        self.contexts.lock().push(context);
        Counter(Arc::clone(&self.asked))
    }
    fn should_filter_table_file_creation(&self, reason: TableFileCreationReason) -> bool {
        self.in_flushes || reason == TableFileCreationReason::Compaction
    }
    fn name(&self) -> &str {
        "recorder"
    }
}

struct Counter(Arc<AtomicU64>);

impl CompactionFilter for Counter {
    fn filter(&mut self, _: u32, _: &[u8], value: &[u8]) -> CompactionDecision {
        self.0.fetch_add(1, Ordering::Relaxed);
        ByValue::decide(value)
    }
    fn name(&self) -> &str {
        "counter"
    }
}

#[test]
fn a_filter_is_asked_in_compactions_only() {
    let mut o = memory();
    let mut seen = 0;
    o.set_compaction_filter("first byte", move |level, key, value| {
        assert_eq!((level, key), (0, &[b'a' + seen][..]));
        seen += 1;
        ByValue::decide(value)
    });
    let db = Db::open(&o, "/db").expect("open");
    for (k, v) in [("a", "r"), ("b", "keep"), ("c", "change")] {
        db.put(k, v).expect("put");
    }
    db.flush().expect("flush");
    assert_eq!(all(&db).len(), 3, "a flush does not ask it");
    let before = db.snapshot();
    db.compact_range_opt(None::<&[u8]>, None::<&[u8]>, &{
        let mut c = CompactOptions::default();
        c.set_bottommost_level_compaction(BottommostLevelCompaction::Skip);
        c
    })
    .expect("compaction");
    let entry = |k: &str, v: &str| (k.as_bytes().to_vec(), v.as_bytes().to_vec());
    assert_eq!(all(&db), [entry("b", "keep"), entry("c", "Change")]);
    assert_eq!(before.get("a").expect("get"), None, "a snapshot does not protect a value from a filter");
    assert_eq!(before.get("c").expect("get").as_deref(), Some(&b"Change"[..]));
}

#[test]
fn factories_learn_what_for() {
    let recorder = Recorder { in_flushes: true, ..Recorder::default() };
    let mut o = memory();
    o.set_compaction_filter_factory(recorder.clone());
    {
        let db = Db::open(&o, "/db").expect("open");
        db.put("a", "rest in the memtable").expect("put");
        db.put("b", "b").expect("put");
        db.flush().expect("flush");
        assert_eq!(db.get("a").expect("get"), None, "a flush asks where the factory wants it");
        compact(&db);
        db.put("c", "c").expect("put");
        compact(&db);
        db.put("d", "ready").expect("put");
    }
    let db = Db::open(&o, "/db").expect("open");
    assert_eq!(db.get("d").expect("get"), None, "recovery asks too");
    let contexts = std::mem::take(&mut *recorder.contexts.lock());
    let short: Vec<_> = contexts
        .iter()
        .map(|c| (c.reason, c.input_start_level, c.is_full_compaction, c.is_manual_compaction, c.column_family_id))
        .collect();
    use TableFileCreationReason::{Compaction, Flush, Recovery};
    let want = [
        (Flush, None, false, false, 0),
        (Compaction, Some(0), true, true, 0),
        (Flush, None, false, false, 0),
        (Compaction, Some(0), false, true, 0),
        // The old table in the deepest level was not filtered when it moved down.
        (Compaction, Some(6), false, true, 0),
        (Recovery, None, false, false, 0),
    ];
    assert_eq!(short, want);
}

#[test]
fn the_deepest_level_is_filtered_if_there_is_a_filter() {
    for (has_filter, bottommost, asked) in [
        (false, BottommostLevelCompaction::IfHaveCompactionFilter, 0),
        (true, BottommostLevelCompaction::Skip, 0),
        (true, BottommostLevelCompaction::IfHaveCompactionFilter, 1),
    ] {
        let recorder = Recorder::default();
        let mut o = memory();
        let db = Db::open(&o, "/db").expect("open");
        db.put("a", "a").expect("put");
        compact(&db);
        drop(db);
        if has_filter {
            o.set_compaction_filter_factory(recorder.clone());
        }
        let db = Db::open(&o, "/db").expect("open");
        let mut c = CompactOptions::default();
        c.set_bottommost_level_compaction(bottommost);
        db.compact_range_opt(None::<&[u8]>, None::<&[u8]>, &c).expect("compaction");
        assert_eq!(recorder.asked.load(Ordering::Relaxed), asked, "{has_filter} {bottommost:?}");
    }
}

#[test]
fn a_filters_panic_makes_the_store_read_only_and_loses_nothing() {
    let fs = Arc::new(MemFileSystem::new());
    for in_flush in [false, true] {
        let path = format!("/db-{in_flush}");
        let mut o = memory();
        o.set_file_system(fs.clone());
        struct Panics(bool);
        impl CompactionFilterFactory for Panics {
            type Filter = Box<dyn CompactionFilter>;
            fn create(&mut self, _: CompactionFilterContext) -> Self::Filter {
                struct F;
                impl CompactionFilter for F {
                    fn filter(&mut self, _: u32, _: &[u8], value: &[u8]) -> CompactionDecision {
                        assert_ne!(value, b"bad", "cannot read {value:?}");
                        CompactionDecision::Keep
                    }
                    fn name(&self) -> &str {
                        "careful"
                    }
                }
                Box::new(F)
            }
            fn should_filter_table_file_creation(&self, reason: TableFileCreationReason) -> bool {
                self.0 || reason == TableFileCreationReason::Compaction
            }
            fn name(&self) -> &str {
                "careful factory"
            }
        }
        o.set_compaction_filter_factory(Panics(in_flush));
        o.set_disable_auto_compactions(false);
        o.set_level_zero_file_num_compaction_trigger(2);
        let db = Db::open(&o, &path).expect("open");
        for (k, v) in [("a", "good"), ("b", "bad"), ("c", "good")] {
            db.put("0", "in each table, so that none just moves").expect("put");
            db.put(k, v).expect("put");
            if db.flush().is_err() {
                break;
            }
        }
        let _ = db.wait_for_background_work();
        let e = db.background_error().unwrap_or_else(|| panic!("{in_flush}: {:?}", db.live_files()));
        assert_eq!(e.kind(), ErrorKind::Aborted, "{e}");
        for part in ["\"careful\" panicked on key b", "cannot read"] {
            assert!(e.to_string().contains(part), "{part:?} is not in {e}");
        }
        assert!(db.put("d", "more").is_err(), "the store is read-only");
        let live = db.live_files().expect("files").len();
        let names = rockmill_io::FileSystem::list_dir(&*fs, path.as_ref()).expect("names");
        assert_eq!(names.iter().filter(|n| n.ends_with(".sst")).count(), live, "no table of the failed job stays");
        assert_eq!(db.get("b").expect("get").as_deref(), Some(&b"bad"[..]));
        drop(db);
        o.cf.compaction_filter_factory = None;
        let db = Db::open(&o, &path).expect("open without the filter");
        for (k, v) in [("a", "good"), ("b", "bad")] {
            assert_eq!(db.get(k).expect("get").as_deref(), Some(v.as_bytes()), "what was acknowledged is there");
        }
        db.put("d", "more").expect("put");
    }
}

#[test]
fn subcompactions_share_a_filter() {
    let mut o = memory();
    o.set_max_subcompactions(4);
    o.set_target_file_size_base(4096);
    let asked = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&asked);
    o.set_compaction_filter("odd", move |_, key, _| {
        count.fetch_add(1, Ordering::Relaxed);
        if key[3] % 2 == 1 { CompactionDecision::Remove } else { CompactionDecision::Keep }
    });
    let db = Db::open(&o, "/db").expect("open");
    for i in 0u32..2000 {
        db.put(i.to_be_bytes(), [7; 50]).expect("put");
    }
    compact(&db);
    assert_eq!(all(&db).len(), 1000);
    assert_eq!(asked.load(Ordering::Relaxed), 2000);
}

/// Runs a random history in both stores with the same filter, and compares the results after each step.
fn alike(test: &str, seed: u64, in_flushes: bool) {
    let driver = need!(test, Peer::Library.driver());
    let home = tempfile::tempdir().expect("a folder");
    let (theirs, ours) = (home.path().join("theirs"), home.path().join("ours"));
    let mut script = Script::new();
    script.line("cf default merge_operator=stringappend;disable_auto_compactions=true;num_levels=4");
    script.line(if in_flushes { "filter default flush" } else { "filter default" }).open(&theirs);
    let mut o = Options::default();
    o.create_if_missing(true);
    o.set_disable_auto_compactions(true);
    o.set_num_levels(4);
    o.set_level_compaction_dynamic_level_bytes(false);
    o.set_merge_operator_object(merge_operator::by_name("stringappend").expect("built in"));
    if in_flushes {
        struct Factory;
        impl CompactionFilterFactory for Factory {
            type Filter = ByValue;
            fn create(&mut self, _: CompactionFilterContext) -> ByValue {
                ByValue
            }
            fn should_filter_table_file_creation(&self, _: TableFileCreationReason) -> bool {
                true
            }
            fn name(&self) -> &str {
                "ByValueFactory"
            }
        }
        o.set_compaction_filter_factory(Factory);
    } else {
        o.set_compaction_filter_object(ByValue);
    }
    let db = Db::open(&o, &ours).expect("open");
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut expected = Entries::new();
    let mut snapshots = Vec::new();
    let mut once = 0u32;
    for step in 0..250 {
        let key = [rng.u8(b'a'..b'p')];
        let value = match rng.u8(0..8) {
            0 => b"remove".to_vec(),
            1 => format!("change {step}").into_bytes(),
            // Behind its own key or before it.
            2 => vec![b's', rng.u8(b'a'..b'p')],
            _ => format!("keep {step}").into_bytes(),
        };
        match rng.u8(0..20) {
            0 | 1 => {
                script.hex("del", "default", &[&key]);
                db.delete(key).expect("delete");
            }
            2 => {
                let end = [key[0] + 2];
                script.hex("delrange", "default", &[&key, &end]);
                db.delete_range_cf(&db.default_cf(), key, end).expect("delete_range");
            }
            3..=7 => {
                script.hex("merge", "default", &[&key, &value]);
                db.merge(key, &value).expect("merge");
            }
            8 => {
                // A key that is put once, as purges and single deletes require.
                once += 1;
                let key = format!("z{once}");
                script.put("default", &key, "purge");
                db.put(&key, "purge").expect("put");
            }
            9 => {
                script.line(format!("snap {step}"));
                snapshots.push((step, db.snapshot()));
            }
            10 if !snapshots.is_empty() => {
                let (name, _) = snapshots.swap_remove(rng.usize(0..snapshots.len()));
                script.line(format!("release {name}"));
            }
            11 | 12 => {
                script.line("flush default").line("dump default");
                db.flush().expect("flush");
                expected.extend(all(&db));
            }
            13 => {
                script.line("compact_once default").line("dump default");
                let mut c = CompactOptions::default();
                c.set_bottommost_level_compaction(BottommostLevelCompaction::ForceOptimized);
                db.compact_range_opt(None::<&[u8]>, None::<&[u8]>, &c).expect("compaction");
                expected.extend(all(&db));
                for (name, s) in &snapshots {
                    script.line(format!("dump default {name}"));
                    let items = db.snapshot_iterator(s, IteratorMode::Start).map(|kv| kv.expect("an entry"));
                    expected.extend(items.map(|(k, v)| (k.into_vec(), v.into_vec())));
                }
            }
            _ => {
                script.put("default", key, &value);
                db.put(key, &value).expect("put");
            }
        }
    }
    let found = driver.answer(test, &script).expect("filters").entries();
    assert!(found.len() > 50, "{} entries are too few to show anything", found.len());
    let text = |e: &Entries| -> Vec<String> {
        e.iter().map(|(k, v)| format!("{}={}", k.escape_ascii(), v.escape_ascii())).collect()
    };
    let (found, expected) = (text(&found), text(&expected));
    if let Some(at) = (0..found.len().max(expected.len())).find(|&i| found.get(i) != expected.get(i)) {
        let part = |e: &[String]| e[at.saturating_sub(20).min(e.len())..(at + 20).min(e.len())].join(" ");
        panic!("seed {seed}, flushes {in_flushes}:\nRocksDB  {}\nRockmill {}", part(&found), part(&expected));
    }
    // RocksDB takes over what Rockmill wrote.
    drop(snapshots);
    let now = all(&db);
    drop(db);
    let mut script = Script::new();
    script.line("cf default merge_operator=stringappend;disable_auto_compactions=true;num_levels=4");
    script.open(&ours).line("dump default").line("verify");
    assert_eq!(text(&driver.answer(test, &script).expect("opens").entries()), text(&now));
}

#[test]
fn rocksdb_filters_alike() {
    for seed in 0..4 {
        alike("rocksdb_filters_alike", seed, false);
    }
}

#[test]
fn rocksdb_filters_flushes_alike() {
    for seed in 10..13 {
        alike("rocksdb_filters_flushes_alike", seed, true);
    }
}

// Databases with a time to live.

/// A moment in 2033.
const NOW: u64 = 2_000_000_000;

fn at(seconds: u64) -> Arc<ManualClock> {
    Arc::new(ManualClock::new(seconds * 1_000_000))
}

#[test]
fn values_live_for_their_time() {
    let clock = at(NOW);
    let mut o = memory();
    o.set_clock(clock.clone());
    o.set_merge_operator_object(merge_operator::by_name("stringappend").expect("built in"));
    let ttl = Duration::from_secs(100);
    {
        let db = Db::open_with_ttl(&o, "/db", ttl).expect("open");
        db.put("old", "1").expect("put");
        db.put("", "").expect("an empty value");
        db.merge("merged", "a").expect("merge");
        clock.advance(Duration::from_secs(60));
        db.put("young", "2").expect("put");
        let mut batch = WriteBatch::new();
        batch.merge("merged", "b");
        batch.put("gone", "x");
        batch.delete("gone");
        db.write(&batch).expect("write");
        let e = |k: &str, v: &str| (k.as_bytes().to_vec(), v.as_bytes().to_vec());
        let want = [e("", ""), e("merged", "a,b"), e("old", "1"), e("young", "2")];
        for round in ["in memory", "flushed", "compacted"] {
            assert_eq!(all(&db), want, "{round}");
            let mut back: Entries = db
                .iterator(IteratorMode::End)
                .map(|kv| kv.map(|(k, v)| (k.into_vec(), v.into_vec())).expect("an entry"))
                .collect();
            back.reverse();
            assert_eq!(back, want, "{round}");
            for (k, v) in &want {
                assert_eq!(db.get(k).expect("get").as_ref(), Some(v), "{round}");
                assert_eq!(db.get_pinned(k).expect("get").as_deref(), Some(&v[..]), "{round}");
            }
            let many = db.multi_get(["old", "young", "none"]);
            let many: Vec<_> = many.into_iter().map(|v| v.expect("get")).collect();
            assert_eq!(many, [Some(b"1".to_vec()), Some(b"2".to_vec()), None]);
            if round == "in memory" { db.flush().expect("flush") } else { compact(&db) }
        }
        clock.advance(Duration::from_secs(50));
        assert_eq!(db.get("old").expect("get").as_deref(), Some(&b"1"[..]), "until a compaction meets it");
        compact(&db);
        // A value merged in the compaction is as young as the compaction.
        assert_eq!(all(&db), [e("merged", "a,b"), e("young", "2")]);
        assert_eq!(db.get("old").expect("get"), None);
    }
    let mut without = o.clone();
    without.cf.merge_operator = None;
    let raw = Db::open(&without, "/db").expect("open without");
    let stored = raw.get("young").expect("get").expect("there");
    assert_eq!(stored, [&b"2"[..], &(NOW as u32 + 60).to_le_bytes()].concat());
    raw.put("plain", "no time\0\0\0\0").expect("put");
    raw.put("short", "abc").expect("put");
    drop(raw);
    let db = Db::open_with_ttl(&o, "/db", ttl).expect("open");
    for key in ["plain", "short"] {
        let e = db.get(key).expect_err("not a time");
        assert_eq!(e.kind(), ErrorKind::Corruption, "{e}");
        let mut iter = db.raw_iterator();
        iter.seek(key);
        assert!(!iter.valid() && iter.status().is_err(), "{key}");
    }
}

#[test]
fn column_families_have_times_of_their_own() {
    let clock = at(NOW);
    let mut o = memory();
    o.set_clock(clock.clone());
    o.create_missing_column_families(true);
    let of = |name: &str, ttl| ColumnFamilyDescriptor::new_with_ttl(name, o.clone(), ttl);
    let cfs = [
        of("default", ColumnFamilyTtl::SameAsDb),
        of("short", ColumnFamilyTtl::Duration(Duration::from_secs(10))),
        of("ever", ColumnFamilyTtl::Disabled),
    ];
    let db = Db::open_cf_descriptors_with_ttl(&o, "/db", cfs, Duration::from_secs(100)).expect("open");
    db.create_cf("later", &o).expect("create");
    db.create_cf_with_ttl("later-short", &o, Duration::from_secs(10)).expect("create");
    let names = db.cf_names();
    for name in &names {
        db.put_cf(&db.cf_handle(name).expect("there"), "k", "v").expect("put");
    }
    for (wait, left) in [(9, 5), (11, 3), (100, 2)] {
        clock.advance(Duration::from_secs(wait));
        let found = names.iter().filter(|name| {
            let cf = db.cf_handle(name).expect("there");
            db.compact_range_cf(&cf, None::<&[u8]>, None::<&[u8]>).expect("compaction");
            db.get_cf(&cf, "k").expect("get").is_some_and(|v| v == b"v")
        });
        assert_eq!(found.count(), left);
    }
    let ever = db.cf_handle("ever").expect("there");
    assert_eq!(db.ttl_cf(&ever).expect("ttl"), Duration::ZERO);
    db.set_ttl_cf(&ever, Duration::from_secs(50)).expect("set_ttl");
    assert_eq!(db.ttl_cf(&ever).expect("ttl"), Duration::from_secs(50));
    db.compact_range_cf(&ever, None::<&[u8]>, None::<&[u8]>).expect("compaction");
    assert_eq!(db.get_cf(&ever, "k").expect("get"), None, "the new time holds for old values");
    drop(db);
    {
        let db = Db::open_cf_with_ttl_for_read_only(&o, "/db", ["default", "later"], false).expect("open");
        let later = db.cf_handle("later").expect("there");
        assert_eq!(db.get_cf(&later, "k").expect("get").as_deref(), Some(&b"v"[..]));
        db.put("k", "v").expect_err("read-only");
    }
    let plain = Db::open_cf(&o, "/db", &names).expect("open");
    for e in [
        plain.create_cf_with_ttl("x", &o, Duration::ZERO).map(|_| ()).expect_err("not with a time to live"),
        plain.set_ttl(Duration::ZERO).expect_err("not with a time to live"),
        plain.ttl_cf(&plain.default_cf()).map(|_| ()).expect_err("not with a time to live"),
    ] {
        assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
    }
}

#[test]
fn rocksdb_and_rockmill_share_times_to_live() {
    let test = "rocksdb_and_rockmill_share_times_to_live";
    for driver in Peer::all(test) {
        share_times_to_live(test, &driver);
    }
}

fn share_times_to_live(test: &str, driver: &Driver) {
    // The wheel cannot merge.
    let merges = driver.peer != Peer::Wheel;
    let home = tempfile::tempdir().expect("a folder");
    let (theirs, ours) = (home.path().join("theirs"), home.path().join("ours"));
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_secs();
    let start = |path: &Path| {
        let mut script = Script::new();
        script.line("cf default disable_auto_compactions=true");
        if merges {
            script.line("cf default merge_operator=stringappend");
        }
        script.line("ttl 1000").open(path);
        script
    };
    let e = |k: &str, v: &str| (k.as_bytes().to_vec(), v.as_bytes().to_vec());
    // RocksDB writes; Rockmill reads, and drops old values by its own clock.
    let mut script = start(&theirs);
    script.put("default", "a", "1").put("default", "b", "").line("flush default");
    if merges {
        script.hex("merge", "default", &[b"a", b"2"]).hex("merge", "default", &[b"c", b"3"]);
    }
    driver.answer(test, &script).expect("writes");
    let mut o = Options::default();
    o.create_if_missing(true);
    o.set_disable_auto_compactions(true);
    if merges {
        o.set_merge_operator_object(merge_operator::by_name("stringappend").expect("built in"));
    }
    let written = if merges { vec![e("a", "1,2"), e("b", ""), e("c", "3")] } else { vec![e("a", "1"), e("b", "")] };
    let open = |path: &Path, clock: u64| {
        let mut o = o.clone();
        o.set_clock(at(clock));
        Db::open_with_ttl(&o, path, Duration::from_secs(1000)).expect("open")
    };
    let young = open(&theirs, now + 900);
    assert_eq!(all(&young), written);
    compact(&young);
    assert_eq!(all(&young), written);
    drop(young);
    // That compaction merged operands, which made the values as young as itself.
    let old = open(&theirs, now + 1100);
    compact(&old);
    assert_eq!(all(&old), if merges { vec![e("a", "1,2"), e("c", "3")] } else { vec![] });
    drop(old);
    let older = open(&theirs, now + 2000);
    compact(&older);
    assert_eq!(all(&older), []);
    // Rockmill writes, partly with old times; RocksDB reads, and its compaction drops old values.
    {
        let db = open(&ours, now - 5000);
        db.put("old", "1").expect("put");
        db.put("merged", "1").expect("put");
    }
    {
        let db = open(&ours, now);
        if merges {
            db.merge("merged", "2").expect("merge");
        } else {
            db.put("merged", "1,2").expect("put");
        }
        db.put("young", "3").expect("put");
        db.flush().expect("flush");
    }
    let mut script = start(&ours);
    script.line("dump default").line("rdump default").line("compact_once default").line("dump default");
    let found = driver.answer(test, &script).expect("reads").entries();
    let before = [e("merged", "1,2"), e("old", "1"), e("young", "3")];
    let back: Entries = before.iter().rev().cloned().collect();
    assert_eq!(found, [before.to_vec(), back, vec![e("merged", "1,2"), e("young", "3")]].concat());
}

#[test]
fn ldb_opens_them() {
    let test = "ldb_opens_them";
    let ldb = need!(test, oracle::tool("ldb"));
    let home = tempfile::tempdir().expect("a folder");
    let db_arg = format!("--db={}", home.path().join("db").display());
    let run = |args: &[&str]| oracle::run_tool(&ldb, &[&[&*db_arg, "--ttl"], args].concat()).expect("ldb");
    let mut o = Options::default();
    o.create_if_missing(true);
    drop(Db::open_with_ttl(&o, home.path().join("db"), Duration::ZERO).expect("create"));
    // ldb sees what is stored.
    let raw = oracle::run_tool(&ldb, &[&db_arg, "--value_hex", "put", "raw", "0x3100f15365"]).expect("ldb");
    assert_eq!(raw.trim(), "OK");
    {
        let db = Db::open_with_ttl(&o, home.path().join("db"), Duration::ZERO).expect("open");
        assert_eq!(db.get("raw").expect("get").as_deref(), Some(&b"1"[..]));
        db.delete("raw").expect("delete");
    }
    if let Err(why) = oracle::run_tool(&ldb, &[&*db_arg, "--ttl", "put", "theirs", "1"]) {
        assert!(why.contains("doesn't support TTL DB"), "{why}");
        let missing = rockmill_skip::Needs::PeerFeature.because("this ldb's --ttl opens no database that exists");
        rockmill_skip::skip(test, &missing);
        return;
    }
    {
        let db = Db::open_with_ttl(&o, home.path().join("db"), Duration::ZERO).expect("open");
        assert_eq!(db.get("theirs").expect("get").as_deref(), Some(&b"1"[..]));
        db.put("ours", "2").expect("put");
    }
    assert_eq!(run(&["get", "ours"]).trim(), "2");
    assert_eq!(run(&["scan"]).lines().filter(|l| l.contains(" : ")).collect::<Vec<_>>(), ["ours : 2", "theirs : 1"]);
}

// Compactions because of age, and because of released snapshots.

fn aging_options(clock: &Arc<ManualClock>) -> Options {
    let mut o = memory();
    o.set_disable_auto_compactions(false);
    o.set_clock(clock.clone());
    o
}

/// Lets compactions see the clock, and waits for them.
fn settle(db: &Db) {
    db.wait_for_background_work().expect("background work");
}

fn files(db: &Db) -> Vec<(i32, u64, u64)> {
    let mut files: Vec<_> =
        db.live_files().expect("files").iter().map(|f| (f.level, f.number, f.largest_seqno)).collect();
    files.sort_unstable();
    files
}

#[test]
fn periodic_compactions_take_every_table_past_the_filter() {
    let clock = at(NOW);
    let mut o = aging_options(&clock);
    let condemned = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let flag = Arc::clone(&condemned);
    o.set_compaction_filter("when told", move |_, _, _| {
        if flag.load(Ordering::Relaxed) { CompactionDecision::Remove } else { CompactionDecision::Keep }
    });
    o.set_periodic_compaction_seconds(100);
    let db = Db::open(&o, "/db").expect("open");
    db.put("a", "1").expect("put");
    compact(&db);
    let written = files(&db);
    condemned.store(true, Ordering::Relaxed);
    clock.advance(Duration::from_secs(100));
    settle(&db);
    assert_eq!(files(&db), written, "not yet");
    clock.advance(Duration::from_secs(1));
    settle(&db);
    assert_eq!(files(&db), [], "the filter took all there was");
    assert_eq!(all(&db), []);
    // The option can change, which takes effect immediately.
    condemned.store(false, Ordering::Relaxed);
    db.put("a", "1").expect("put");
    compact(&db);
    let written = files(&db);
    clock.advance(Duration::from_secs(50));
    settle(&db);
    assert_eq!(files(&db), written);
    db.set_options(&[("periodic_compaction_seconds", "40")]).expect("set_options");
    settle(&db);
    assert_ne!(files(&db), written);
    let rewritten = files(&db);
    settle(&db);
    assert_eq!(files(&db), rewritten, "once");
}

#[test]
fn old_data_sinks() {
    let clock = at(NOW);
    let mut o = aging_options(&clock);
    o.set_level_compaction_dynamic_level_bytes(false);
    o.set_ttl(100);
    let db = Db::open(&o, "/db").expect("open");
    let mut level_by_level = CompactOptions::default();
    level_by_level.set_bottommost_level_compaction(BottommostLevelCompaction::Skip);
    db.put("a", "1").expect("put");
    compact(&db);
    clock.advance(Duration::from_secs(60));
    db.delete("a").expect("delete");
    db.put("b", "1").expect("put");
    db.flush().expect("flush");
    let levels = |db: &Db| files(db).iter().map(|f| f.0).collect::<Vec<_>>();
    assert_eq!(levels(&db), [0, 1]);
    clock.advance(Duration::from_secs(90));
    settle(&db);
    assert_eq!(levels(&db), [0, 1], "the deepest level stays however old it is, and the other is young");
    clock.advance(Duration::from_secs(11));
    settle(&db);
    assert_eq!(levels(&db), [1], "the old deletion met what it deletes");
    assert_eq!(all(&db), [(b"b".to_vec(), b"1".to_vec())]);
}

#[test]
fn the_bottom_is_cleaned_when_snapshots_go() {
    let clock = at(NOW);
    let db = Db::open(&aging_options(&clock), "/db").expect("open");
    db.put("a", "old").expect("put");
    db.put("b", "old").expect("put");
    let (first, second) = (db.snapshot(), db.snapshot());
    db.put("a", "new").expect("put");
    db.delete("b").expect("delete");
    compact(&db);
    let written = files(&db);
    assert_eq!(written.len(), 1);
    assert!(written[0].2 > 0, "the snapshot needs old versions and sequence numbers");
    settle(&db);
    assert_eq!(files(&db), written);
    db.put("z", "newer than the table").expect("put");
    drop(first);
    settle(&db);
    assert_eq!(files(&db), written, "another one still needs them");
    assert_eq!(second.get("a").expect("get").as_deref(), Some(&b"old"[..]));
    drop(second);
    settle(&db);
    let cleaned = files(&db);
    assert_eq!(cleaned.iter().map(|f| f.2).collect::<Vec<_>>(), [0], "sequence numbers went");
    assert_eq!(db.get("a").expect("get").as_deref(), Some(&b"new"[..]));
    assert_eq!(db.get("b").expect("get"), None);
    for _ in 0..3 {
        drop(db.snapshot());
        settle(&db);
    }
    assert_eq!(files(&db), cleaned, "once");
}

#[test]
fn what_cannot_be_cleaned_is_tried_once() {
    let clock = at(NOW);
    let db = Db::open(&aging_options(&clock), "/db").expect("open");
    db.merge("k", "an operand that nobody can merge").expect("merge");
    let snapshot = db.snapshot();
    compact(&db);
    let written = files(&db);
    db.put("z", "newer than the table").expect("put");
    drop(snapshot);
    settle(&db);
    let tried = files(&db);
    assert_ne!(tried, written);
    assert!(tried[0].2 > 0);
    for i in 0..5 {
        db.put("z", i.to_string()).expect("put");
        drop(db.snapshot());
        settle(&db);
        assert_eq!(files(&db), tried);
    }
}

#[test]
fn rocksdb_and_rockmill_share_times_of_tables() {
    let test = "rocksdb_and_rockmill_share_times_of_tables";
    let driver = need!(test, Peer::Library.driver());
    let home = tempfile::tempdir().expect("a folder");
    let (theirs, ours) = (home.path().join("theirs"), home.path().join("ours"));
    let clock = at(NOW);
    let mut o = Options::default();
    o.create_if_missing(true);
    o.set_clock(clock.clone());
    {
        let db = Db::open(&o, &ours).expect("open");
        db.put("a", "1").expect("put");
        compact(&db);
        clock.advance(Duration::from_secs(10));
        db.put("b", "1").expect("put");
        db.flush().expect("flush");
        clock.advance(Duration::from_secs(10));
        let mut force = CompactOptions::default();
        force.set_bottommost_level_compaction(BottommostLevelCompaction::Force);
        db.compact_range_opt(None::<&[u8]>, None::<&[u8]>, &force).expect("compaction");
        clock.advance(Duration::from_secs(10));
        db.put("c", "1").expect("put");
        db.flush().expect("flush");
    }
    let mut script = Script::new();
    script.line("cf default disable_auto_compactions=true").open(&ours).line("times default");
    let answer = driver.answer(test, &script).expect("reads");
    // The new table of L0 first. The other one has the time of its inputs' oldest data, but was written later.
    assert_eq!(answer.properties(), [format!("{} {}", NOW + 30, NOW + 30), format!("{NOW} {}", NOW + 20)]);
    // The age of RocksDB's tables counts.
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_secs();
    let mut script = Script::new();
    script.open(&theirs).put("default", "a", "1").line("compact default");
    driver.answer(test, &script).expect("writes");
    let clock = at(now + 50);
    o.set_clock(clock.clone());
    o.set_periodic_compaction_seconds(100);
    o.set_level_compaction_dynamic_level_bytes(false); // as RocksDB 7 by default
    let db = Db::open(&o, &theirs).expect("open");
    let written = files(&db);
    settle(&db);
    assert_eq!(files(&db), written);
    clock.advance(Duration::from_secs(100));
    settle(&db);
    assert_ne!(files(&db), written);
}

#[test]
fn threads_wake_up_by_themselves() {
    let mut o = memory();
    o.set_disable_auto_compactions(false);
    o.set_periodic_compaction_seconds(1);
    let db = Db::open(&o, "/db").expect("open");
    db.put("a", "1").expect("put");
    compact(&db);
    let written = files(&db);
    let begun = std::time::Instant::now();
    while files(&db) == written {
        assert!(begun.elapsed() < Duration::from_secs(30), "nobody looked");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(begun.elapsed() > Duration::from_millis(900), "too early");
}
