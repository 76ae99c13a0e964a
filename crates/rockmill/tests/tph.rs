//! TPH tables in whole databases: random histories against a model, through compactions whose tables share files, with
//! changes of the kind of tables at reopenings, copies of all kinds, and external tables; and compatibility with
//! RocksDB.

mod oracle;
mod small_store;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use fastrand::Rng;
use rockmill::backup::{BackupEngine, BackupEngineOptions, RestoreOptions};
use rockmill::merge_operator::StringAppendOperator;
use rockmill::{
    BottommostLevelCompaction, Checkpoint, ColumnFamilyDescriptor, CompactOptions, CompactionDecision, Db, Env,
    ErrorKind, ImportColumnFamilyOptions, IngestExternalFileOptions, IteratorMode, Options, OptionsLoader, ReadOptions,
    RepairOptions, Snapshot, SstFileWriter, TableKind, WriteBatch,
};
use rockmill_format::InternalKeyComparator;
use rockmill_io::{FileSystem, MemFileSystem, PosixFileSystem, SystemClock};
use small_store::{entries, key, path, tables, write_tph};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// Puts, deletions and ranges; merges; single deletes; values that a compaction filter takes.
const FAMILIES: [&str; 4] = ["default", "merged", "single", "filtered"];
const DEFAULT: usize = 0;
const MERGED: usize = 1;
const SINGLE: usize = 2;
const FILTERED: usize = 3;
/// Any compaction may drop values that begin like this.
const TAKEN: &[u8] = b"x:";
const KEYS: u32 = 500;

/// Which tables are written.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    BlockBased,
    Tph { piece_limit: u32, garbage_percent: u32 },
}

impl Kind {
    const ALL: [Kind; 7] = [
        Self::BlockBased,
        Self::tph(1, 0),
        Self::tph(2, 100),
        Self::tph(3, 20),
        Self::tph(4, 0),
        Self::tph(16, 20),
        Self::tph(16, 1000),
    ];

    const fn tph(piece_limit: u32, garbage_percent: u32) -> Self {
        Self::Tph { piece_limit, garbage_percent }
    }

    fn any(rng: &mut Rng) -> Self {
        Self::ALL[rng.usize(..Self::ALL.len())]
    }
}

fn small(kind: Kind) -> Options {
    let mut o = small_store::small();
    o.create_missing_column_families(true);
    if let Kind::Tph { piece_limit, garbage_percent } = kind {
        write_tph(&mut o, piece_limit, garbage_percent);
    }
    o
}

fn of_family(family: usize, mut o: Options) -> Options {
    match family {
        MERGED => o.set_merge_operator_object(Arc::new(StringAppendOperator::default())),
        FILTERED => o.set_compaction_filter("takes", |_, _, value: &[u8]| match value.starts_with(TAKEN) {
            true => CompactionDecision::Remove,
            false => CompactionDecision::Keep,
        }),
        _ => {}
    }
    o
}

fn descriptors(o: &Options) -> Vec<ColumnFamilyDescriptor> {
    (0..4).map(|i| ColumnFamilyDescriptor::new(FAMILIES[i], of_family(i, o.clone()))).collect()
}

/// A database, and what it must show.
struct World {
    rng: Rng,
    fs: MemFileSystem,
    kind: Kind,
    /// Flushed data goes straight into the only level below.
    one_level: bool,
    state: [Map; 4],
    values: u32,
    /// Tables of several files that were seen.
    shared: usize,
    steps: Vec<String>,
}

impl World {
    fn new(seed: u64, kind: Kind) -> Self {
        let (fs, rng) = (MemFileSystem::new(), Rng::with_seed(seed));
        Self { rng, fs, kind, one_level: false, state: Default::default(), values: 0, shared: 0, steps: Vec::new() }
    }

    fn of_one_level(seed: u64, kind: Kind) -> Self {
        Self { one_level: true, ..Self::new(seed, kind) }
    }

    fn options(&self) -> Options {
        let mut o = small(self.kind);
        o.set_file_system(Arc::new(self.fs.clone()));
        // With direct reads, seeks read blocks together.
        o.set_use_direct_reads(self.values % 2 == 1);
        if self.one_level {
            o.set_num_levels(2);
            o.set_level_zero_file_num_compaction_trigger(1);
        }
        o
    }

    fn open_copy(&self, at: &str) -> Db {
        let o = self.options();
        Db::open_cf_descriptors(&o, at, descriptors(&o)).unwrap()
    }

    fn note(&mut self, step: impl Into<String>) {
        self.steps.push(step.into());
    }

    fn value(&mut self) -> Vec<u8> {
        self.values += 1;
        let len = if self.rng.u8(..40) == 0 { 1500 } else { self.rng.usize(5..90) };
        let mut value = format!("{}:", self.values).into_bytes();
        value.resize(value.len() + len, b'a' + (self.values % 26) as u8);
        value
    }

    /// A few of many keys, so that compactions can leave others alone.
    fn keys(&mut self) -> std::ops::Range<u32> {
        let len = [8, 40, 40, 150, KEYS][self.rng.usize(..5)];
        let from = self.rng.u32(..=KEYS - len);
        from..from + len
    }

    fn write(&mut self, db: &Db) {
        let (keys, family) = (self.keys(), self.rng.usize(..4));
        self.note(format!("write {} {keys:?}", FAMILIES[family]));
        let cf = db.cf_handle(FAMILIES[family]).unwrap();
        for _ in 0..self.rng.usize(1..25) {
            let mut batch = WriteBatch::new();
            for _ in 0..self.rng.usize(1..6) {
                let (key, dice) = (key(self.rng.u32(keys.clone())), self.rng.u8(..20));
                let mut value = self.value();
                let map = &mut self.state[family];
                match (family, dice) {
                    (SINGLE, 0..=8) if map.contains_key(&key) => {
                        map.remove(&key);
                        batch.single_delete_cf(&cf, &key);
                    }
                    (SINGLE, _) if map.contains_key(&key) => {}
                    (DEFAULT | MERGED | FILTERED, 0..=5) => {
                        map.remove(&key);
                        batch.delete_cf(&cf, &key);
                    }
                    (MERGED, 6..=15) => {
                        value.truncate(20);
                        batch.merge_cf(&cf, &key, &value);
                        match map.get_mut(&key) {
                            Some(old) => old.extend([b",", value.as_slice()].concat()),
                            None => drop(map.insert(key, value)),
                        }
                    }
                    _ => {
                        if family == FILTERED && dice < 12 {
                            value.splice(..0, TAKEN.iter().copied());
                        }
                        batch.put_cf(&cf, &key, &value);
                        map.insert(key, value);
                    }
                }
            }
            db.write(&batch).unwrap();
        }
        if family != SINGLE && self.rng.u8(..6) == 0 {
            let keys = self.keys();
            let (from, to) = (key(keys.start), key(keys.end));
            if from < to {
                self.note(format!("delete range {keys:?}"));
                db.delete_range_cf(&cf, &from, &to).unwrap();
                self.state[family].retain(|k, _| *k < from || *k >= to);
            }
        }
    }

    /// Reads one column family in every way.
    fn check_family(&mut self, db: &Db, family: usize, want: &Map, snapshot: Option<&Snapshot<'_>>) {
        let how = || {
            let mut how = ReadOptions::default();
            if let Some(snapshot) = snapshot {
                how.set_snapshot(snapshot);
            }
            how
        };
        let cf = db.cf_handle(FAMILIES[family]).unwrap();
        // Values that the filter may have dropped count as gone.
        let settled = |value: &[u8]| family != FILTERED || !value.starts_with(TAKEN);
        let want: Vec<(Vec<u8>, Vec<u8>)> =
            want.iter().filter(|(_, v)| settled(v)).map(|(k, v)| (k.clone(), v.clone())).collect();
        let all = |mode| {
            let all = db.iterator_cf_opt(&cf, how(), mode).map(|entry| entry.unwrap());
            all.filter(|(_, v)| settled(v)).map(|(k, v)| (k.into_vec(), v.into_vec())).collect::<Vec<_>>()
        };
        same(&all(IteratorMode::Start), &want, &format!("{} forward", FAMILIES[family]), &self.steps);
        let mut backward = all(IteratorMode::End);
        backward.reverse();
        same(&backward, &want, &format!("{} backward", FAMILIES[family]), &self.steps);

        let asked: Vec<Vec<u8>> = (0..60).map(|_| key(self.rng.u32(..KEYS + 20))).collect();
        let got = db.multi_get_cf_opt(asked.iter().map(|k| (&cf, k)), &how());
        for (k, got) in asked.iter().zip(got) {
            let expected = want.binary_search_by(|(known, _)| known.cmp(k)).ok().map(|i| want[i].1.clone());
            let visible = |v: Option<Vec<u8>>| v.filter(|v| settled(v));
            let text = || format!("{} {:?}, {:?}", FAMILIES[family], String::from_utf8_lossy(k), self.steps);
            assert_eq!(visible(got.unwrap()), expected, "multi_get {}", text());
            assert_eq!(visible(db.get_cf_opt(&cf, k, &how()).unwrap()), expected, "get {}", text());
        }
        if family != FILTERED {
            self.walk(db, family, &want, how());
        }
    }

    /// An iterator within bounds moves back and forth.
    fn walk(&mut self, db: &Db, family: usize, want: &[(Vec<u8>, Vec<u8>)], mut how: ReadOptions) {
        let bounds = [self.rng.u32(..KEYS), self.rng.u32(..KEYS)].map(key);
        let (lower, upper) = (self.rng.bool().then(|| bounds[0].clone()), self.rng.bool().then(|| bounds[1].clone()));
        if let Some(lower) = &lower {
            how.set_iterate_lower_bound(lower.clone());
        }
        if let Some(upper) = &upper {
            how.set_iterate_upper_bound(upper.clone());
        }
        let within = |k: &[u8]| {
            lower.as_ref().is_none_or(|l| k >= l.as_slice()) && upper.as_ref().is_none_or(|u| k < u.as_slice())
        };
        let want: Vec<_> = want.iter().filter(|(k, _)| within(k)).collect();
        let mut iter = db.raw_iterator_cf_opt(&db.cf_handle(FAMILIES[family]).unwrap(), how);
        let mut at: Option<usize> = None;
        let mut moves = Vec::new();
        for _ in 0..40 {
            let target = key(self.rng.u32(..KEYS));
            let dice = self.rng.u8(..12);
            match (dice, at) {
                (0, _) => {
                    iter.seek_to_first();
                    at = (!want.is_empty()).then_some(0);
                }
                (1, _) => {
                    iter.seek_to_last();
                    at = want.len().checked_sub(1);
                }
                (2, _) => {
                    iter.seek_for_prev(&target);
                    at = want.iter().rposition(|(k, _)| *k <= target);
                }
                (3..=7, Some(i)) => {
                    iter.next();
                    at = (i + 1 < want.len()).then_some(i + 1);
                }
                (8..=11, Some(i)) => {
                    iter.prev();
                    at = i.checked_sub(1);
                }
                _ => {
                    iter.seek(&target);
                    at = want.iter().position(|(k, _)| *k >= target);
                }
            }
            moves.push((dice, String::from_utf8_lossy(&target).into_owned()));
            iter.status().unwrap();
            let got = iter.item().map(|(k, v)| (k.to_vec(), v.to_vec()));
            let text = || format!("{} within {lower:?} and {upper:?}: {moves:?}; {:?}", FAMILIES[family], self.steps);
            assert_eq!(got.as_ref(), at.map(|i| want[i]), "{}", text());
        }
    }

    fn check(&mut self, db: &Db, want: &[Map; 4], snapshot: Option<&Snapshot<'_>>) {
        (0..4).for_each(|family| self.check_family(db, family, &want[family], snapshot));
    }

    fn check_now(&mut self, db: &Db) {
        let want = self.state.clone();
        self.check(db, &want, None);
    }

    fn count_shared(&mut self, db: &Db) {
        self.shared += db.live_files().unwrap().iter().filter(|f| !f.pieces.is_empty()).count();
    }

    /// Waits for jobs. With one level, L0 is then empty.
    fn settle(&mut self, db: &Db) {
        db.wait_for_background_work().unwrap();
        self.count_shared(db);
        let levels: Vec<i32> = db.live_files().unwrap().iter().map(|f| f.level).collect();
        assert!(!self.one_level || levels.iter().all(|level| *level == 1), "{levels:?}, {:?}", self.steps);
    }

    fn put(&mut self, db: &Db, keys: impl IntoIterator<Item = u32>) {
        for n in keys {
            let (key, value) = (key(n), self.value());
            db.put(&key, &value).unwrap();
            self.state[DEFAULT].insert(key, value);
        }
    }

    fn compact(&mut self, db: &Db) {
        let cf = db.cf_handle(FAMILIES[self.rng.usize(..4)]).unwrap();
        let keys = self.keys();
        let bounds = self.rng.bool().then(|| (key(keys.start), key(keys.end)));
        let mut how = CompactOptions::default();
        use BottommostLevelCompaction::{Force, ForceOptimized, IfHaveCompactionFilter, Skip};
        how.set_bottommost_level_compaction([Force, ForceOptimized, IfHaveCompactionFilter, Skip][self.rng.usize(..4)]);
        self.note(format!("compact {:?}", bounds.as_ref().map(|_| keys)));
        let (from, to) = bounds.unzip();
        db.compact_range_cf_opt(&cf, from, to, &how).unwrap();
    }

    /// A table from outside, of either kind.
    fn ingest(&mut self, db: &Db) {
        let made = Kind::any(&mut self.rng);
        let mut o = small(made);
        o.set_file_system(Arc::new(self.fs.clone()));
        let mut writer = SstFileWriter::create(&o);
        writer.open("/outside.sst").unwrap();
        // Among the others, or in an empty range, so that it needs no sequence number.
        let base = if self.rng.bool() { 0 } else { 10_000 + self.values };
        let keys = self.keys();
        self.note(format!("ingest {keys:?} behind {base} of {made:?}"));
        let map = &mut self.state[DEFAULT];
        if self.rng.u8(..3) == 0 {
            let (from, to) = (key(base + keys.start), key(base + keys.end));
            writer.delete_range(&from, &to).unwrap();
            map.retain(|k, _| *k < from || *k >= to);
        }
        let numbers: BTreeSet<u32> = (0..self.rng.usize(1..80)).map(|_| base + self.rng.u32(keys.clone())).collect();
        let sorted: BTreeSet<Vec<u8>> = numbers.into_iter().map(key).collect();
        for key in sorted {
            self.values += 1;
            if self.rng.u8(..5) == 0 {
                writer.delete(&key).unwrap();
                map.remove(&key);
            } else {
                let value = format!("ingested {}", self.values).into_bytes();
                writer.put(&key, &value).unwrap();
                map.insert(key, value);
            }
        }
        writer.finish().unwrap();
        let mut how = IngestExternalFileOptions::default();
        how.set_move_files(self.rng.bool());
        db.ingest_external_file_cf_opts(&db.default_cf(), &how, vec!["/outside.sst"]).unwrap();
        let _ = self.fs.remove(Path::new("/outside.sst"));
    }

    fn set_options(&mut self, db: &Db) {
        let cf = db.cf_handle(FAMILIES[self.rng.usize(..4)]).unwrap();
        let text = ["{piece_limit=1}", "{piece_limit=5;block_size=300}", "{garbage_percent=0}"][self.rng.usize(..3)];
        self.note(format!("set {text}"));
        let done = db.set_options_cf(&cf, &[("tph_table_factory", text)]);
        match self.kind {
            Kind::BlockBased => assert_eq!(done.unwrap_err().kind(), ErrorKind::InvalidArgument),
            Kind::Tph { .. } => done.unwrap(),
        }
        db.set_options_cf(&cf, &[("table_factory.block_restart_interval", "3")]).unwrap();
    }

    fn destroy(&self, at: &str) {
        Db::destroy(&self.options(), at).unwrap();
    }

    fn checkpoint(&mut self, db: &Db) {
        self.note("checkpoint");
        Checkpoint::new(db).unwrap().create_checkpoint("/checkpoint").unwrap();
        let copy = self.open_copy("/checkpoint");
        self.check_now(&copy);
        self.write_to_copy(&copy);
        drop(copy);
        self.verify(Path::new("/checkpoint"));
        self.destroy("/checkpoint");
        self.check_now(db);
    }

    /// A copy works independently, and does not affect the original.
    fn write_to_copy(&mut self, copy: &Db) {
        let (state, steps) = (self.state.clone(), self.steps.len());
        (0..4).for_each(|_| self.write(copy));
        self.compact(copy);
        self.check_now(copy);
        self.state = state;
        self.steps.truncate(steps);
    }

    fn backup(&mut self, db: &Db) {
        self.note("backup");
        let env = Env::from_parts(Arc::new(self.fs.clone()), Arc::new(SystemClock::default()));
        let engine = BackupEngine::open(&BackupEngineOptions::new("/backups").unwrap(), &env).unwrap();
        engine.create_new_backup_flush(db, self.rng.bool()).unwrap();
        let newest = engine.get_backup_info().iter().map(|info| info.backup_id).max().unwrap();
        engine.verify_backup_with_checksum(newest).unwrap();
        engine.restore_from_latest_backup("/restored", "/restored", &RestoreOptions::default()).unwrap();
        engine.purge_old_backups(2).unwrap();
        let copy = self.open_copy("/restored");
        self.check_now(&copy);
        self.write_to_copy(&copy);
        drop(copy);
        self.verify(Path::new("/restored"));
        self.destroy("/restored");
    }

    fn secondary(&mut self, db: &Db) {
        self.note("secondary");
        db.flush_wal(false).unwrap();
        let mut o = self.options();
        o.set_max_open_files(-1);
        let other = Db::open_cf_descriptors_as_secondary(&o, path(), "/secondary", descriptors(&o)).unwrap();
        self.check_now(&other);
        for _ in 0..3 {
            self.write(db);
            self.compact(db);
            db.flush_wal(false).unwrap();
            other.try_catch_up_with_primary().unwrap();
            self.check_now(&other);
        }
    }

    /// An export refuses tables of several files with a hint, and accepts them once they are rewritten.
    fn export(&mut self, db: &Db) {
        self.note("export");
        let (family, cf) = (MERGED, db.cf_handle("merged").unwrap());
        let exported = loop {
            match Checkpoint::new(db).unwrap().export_column_family(&cf, "/export") {
                Err(e) if e.kind() == ErrorKind::NotSupported && e.message().contains("several files") => {}
                done => break done.unwrap(),
            }
            if self.kind != Kind::BlockBased {
                db.set_options_cf(&cf, &[("tph_table_factory", "{piece_limit=1}")]).unwrap();
            }
            db.make_tables_whole_cf(&cf).unwrap();
        };
        if !exported.files.is_empty() {
            let mut how = ImportColumnFamilyOptions::default();
            how.set_move_files(self.rng.bool());
            let o = of_family(family, self.options());
            let copy = db.create_column_family_with_import(&o, "copy", &how, &exported).unwrap();
            let all = db.iterator_cf(&copy, IteratorMode::Start).map(|e| e.unwrap());
            let all: Vec<_> = all.map(|(k, v)| (k.into_vec(), v.into_vec())).collect();
            let want: Vec<_> = self.state[family].clone().into_iter().collect();
            same(&all, &want, "imported", &self.steps);
            drop(copy);
            db.drop_cf("copy").unwrap();
        }
        for name in self.fs.list_dir(Path::new("/export")).unwrap() {
            self.fs.remove(&Path::new("/export").join(name)).unwrap();
        }
        self.fs.remove_dir(Path::new("/export")).unwrap();
    }

    /// Checks that the directory of a closed database has exactly the files of its tables, and that all tables are
    /// intact.
    fn verify(&self, dir: &Path) {
        small_store::verify(&self.fs, dir, &InternalKeyComparator::default(), &format!("{:?}", self.steps));
        let tables = tables(&self.fs, dir);
        let needed: BTreeSet<u64> = tables.iter().flat_map(|(_, f)| f.files().map(|f| f.number)).collect();
        let there = self.fs.list_dir(dir).unwrap();
        let there: BTreeSet<u64> = there.iter().filter_map(|n| n.strip_suffix(".sst")?.parse().ok()).collect();
        assert_eq!(there, needed, "{:?}", self.steps);
    }

    /// One opening with some steps.
    fn life(&mut self) {
        self.note(format!("open {:?}", self.kind));
        let db = self.open_copy("/db");
        self.check_now(&db);
        let mut held: Vec<(Snapshot<'_>, [Map; 4])> = Vec::new();
        for _ in 0..self.rng.usize(5..40) {
            match self.rng.u8(..60) {
                0..=30 => self.write(&db),
                31..=35 => {
                    let cf = db.cf_handle(FAMILIES[self.rng.usize(..4)]).unwrap();
                    self.note(format!("flush {}", cf.name()));
                    db.flush_cf(&cf).unwrap();
                }
                36..=42 => self.compact(&db),
                43..=44 => {
                    self.note("snapshot");
                    held.push((db.snapshot(), self.state.clone()));
                }
                45..=46 if !held.is_empty() => {
                    let (snapshot, want) = held.swap_remove(self.rng.usize(..held.len()));
                    self.note("release");
                    self.check(&db, &want, Some(&snapshot));
                }
                47..=49 => self.ingest(&db),
                50 => self.set_options(&db),
                51 => self.checkpoint(&db),
                52 => self.backup(&db),
                53 => self.secondary(&db),
                54 => self.export(&db),
                _ => {
                    self.note("wait");
                    self.settle(&db);
                    self.check_now(&db);
                }
            }
        }
        let mut snapshots = std::mem::take(&mut held);
        for (snapshot, want) in snapshots.drain(..) {
            self.check(&db, &want, Some(&snapshot));
        }
        drop(snapshots);
        self.check_now(&db);
        self.settle(&db);
        self.check_now(&db);
        drop(db);
        self.verify(path());
    }

    /// While it is closed.
    fn between(&mut self) {
        let o = self.options();
        match self.rng.u8(..8) {
            0..=1 => {
                let db = Db::open_cf_descriptors_read_only(&o, path(), descriptors(&o), false).unwrap();
                self.check_now(&db);
            }
            2 => {
                self.note("repair");
                let mut how = RepairOptions::default();
                descriptors(&o).into_iter().for_each(|d| how.add_column_family(d));
                let report = Db::repair_with(&o, path(), &how).unwrap();
                assert_eq!((report.tables_damaged, &report.tables_missing), (0, &Vec::new()), "{report:?}");
            }
            3..=5 => self.kind = Kind::any(&mut self.rng),
            _ => {}
        }
    }
}

fn same(got: &[(Vec<u8>, Vec<u8>)], want: &[(Vec<u8>, Vec<u8>)], what: &str, steps: &[String]) {
    if got == want {
        return;
    }
    let text = |e: Option<&(Vec<u8>, Vec<u8>)>| {
        e.map(|(k, v)| format!("{}={}", String::from_utf8_lossy(k), String::from_utf8_lossy(v)))
    };
    let at = (0..).find(|&i| got.get(i) != want.get(i)).unwrap();
    panic!("{what}: entry {at} is {:?}, wanted {:?}\n{steps:?}", text(got.get(at)), text(want.get(at)));
}

fn seed() -> Option<u64> {
    std::env::var("ROCKMILL_SEED").ok().and_then(|s| s.parse().ok())
}

#[test]
fn histories_agree_with_a_model() {
    let seeds = seed().map_or_else(|| (0..56).map(|n| n * 1000 + fastrand::u64(..1000)).collect(), |s| vec![s]);
    let mut shared = 0;
    for seed in seeds {
        println!("ROCKMILL_SEED={seed}");
        let mut world = World::new(seed, Kind::ALL[(seed / 1000) as usize % Kind::ALL.len()]);
        for _ in 0..5 {
            world.life();
            world.between();
        }
        shared += world.shared;
    }
    println!("{shared} tables of several files were seen");
    assert!(shared > 500, "{shared} tables of several files were seen");
}

#[test]
fn histories_of_one_level_agree_with_a_model() {
    let seeds = seed().map_or_else(|| (0..7).map(|n| n * 1000 + fastrand::u64(..1000)).collect(), |s| vec![s]);
    let mut shared = 0;
    for seed in seeds {
        println!("ROCKMILL_SEED={seed}");
        let mut world = World::of_one_level(seed, Kind::ALL[(seed / 1000) as usize % Kind::ALL.len()]);
        for _ in 0..4 {
            world.life();
            world.between();
        }
        shared += world.shared;
    }
    println!("{shared} tables of several files were seen");
    assert!(seed().is_some() || shared > 30, "{shared} tables of several files were seen");
}

/// One-level mode step by step: overwrites, deletions and ranges, below a snapshot and without one.
#[test]
fn what_is_flushed_goes_into_the_one_level_below() {
    for (piece_limit, garbage_percent) in [(16, 20), (16, 1000), (1, 0)] {
        let mut world = World::of_one_level(u64::from(garbage_percent), Kind::tph(piece_limit, garbage_percent));
        let db = world.open_copy("/db");
        let flush = |world: &mut World| {
            db.flush_cf(&db.default_cf()).unwrap();
            world.settle(&db);
            world.check_now(&db);
        };
        world.put(&db, 0..KEYS);
        flush(&mut world);
        for round in 0..6 {
            world.put(&db, (round..KEYS).step_by(17));
            for n in (round..KEYS).step_by(31) {
                db.delete(key(n)).unwrap();
                world.state[DEFAULT].remove(&key(n));
            }
            flush(&mut world);
        }
        let (snapshot, held) = (db.snapshot(), world.state.clone());
        for (from, to) in [(100, 220), (40, 41), (450, KEYS + 10)] {
            let (from, to) = (key(from), key(to));
            db.delete_range_cf(&db.default_cf(), &from, &to).unwrap();
            world.state[DEFAULT].retain(|k, _| *k < from || *k >= to);
            world.put(&db, [150, 151, 460]);
            flush(&mut world);
            world.check(&db, &held, Some(&snapshot));
        }
        // The snapshot's versions are in the level below, next to their replacements.
        world.put(&db, (0..KEYS).step_by(50));
        flush(&mut world);
        world.check(&db, &held, Some(&snapshot));
        drop(snapshot);
        world.put(&db, [7, 300]);
        flush(&mut world);
        drop(db);
        world.verify(path());
        assert_eq!(world.shared > 0, piece_limit > 1, "{} tables of several files were seen", world.shared);

        let db = world.open_copy("/db");
        world.settle(&db);
        world.check_now(&db);
        drop(db);
        world.verify(path());
    }
}

/// An entry that is alone in its table does not stay there if a snapshot keeps it in addition to a newer one.
#[test]
fn a_version_that_a_snapshot_holds_moves_to_the_newer_one() {
    let mut world = World::new(1, Kind::tph(16, 100));
    let db = world.open_copy("/db");
    let cf = db.default_cf();
    for n in 0..100 {
        db.put(key(n), format!("old {n}")).unwrap();
        world.state[DEFAULT].insert(key(n), format!("old {n}").into_bytes());
    }
    db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
    let (snapshot, held) = (db.snapshot(), world.state.clone());
    for n in (0..100).step_by(10) {
        db.put(key(n), format!("new {n}")).unwrap();
        world.state[DEFAULT].insert(key(n), format!("new {n}").into_bytes());
    }
    db.delete(key(55)).unwrap();
    world.state[DEFAULT].remove(&key(55));
    db.flush_cf(&cf).unwrap();
    db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
    world.count_shared(&db);
    assert_ne!(world.shared, 0, "what has not changed stays");
    world.check(&db, &held, Some(&snapshot));
    world.check_now(&db);
    drop(snapshot);
    drop(db);
    world.verify(path());
}

/// A table covered by a range tombstone is not read, and nothing continues to use its file.
#[test]
fn what_a_range_tombstone_covers_stays_away() {
    let mut o = small(Kind::tph(16, 1000));
    o.set_file_system(Arc::new(MemFileSystem::new()));
    o.set_disable_auto_compactions(true);
    o.set_target_file_size_base(1 << 20);
    let db = Db::open(&o, path()).unwrap();
    let put = |keys: &mut dyn Iterator<Item = u32>| keys.for_each(|n| db.put(key(n), format!("value {n}")).unwrap());
    let all = (None::<&[u8]>, None::<&[u8]>);
    put(&mut (300..303));
    db.flush().unwrap();
    db.compact_range(all.0, all.1).unwrap();
    put(&mut (100..200));
    db.flush().unwrap();
    db.compact_range(Some(key(100)), Some(key(200))).unwrap();
    db.delete_range_cf(&db.default_cf(), key(60), key(250)).unwrap();
    put(&mut [50, 300, 302, 400].into_iter());
    // It leaves a placeholder, and no other file has entries for the new table.
    db.delete(key(301)).unwrap();
    db.flush().unwrap();
    db.compact_range(all.0, all.1).unwrap();
    let want: Vec<_> = [50, 300, 302, 400].map(|n| (key(n), format!("value {n}").into_bytes())).into();
    same(&entries(&db), &want, "forward", &[]);
}

fn on_disk(kind: Kind) -> Options {
    let mut o = small(kind);
    o.set_disable_auto_compactions(true);
    o
}

/// Flushed tables are single files: for RocksDB, they are block-based tables. It refuses tables that share files, with
/// their names, until they are rewritten.
#[test]
fn rocksdb_opens_tables_of_one_file_and_refuses_others() {
    let test = "rocksdb_opens_tables_of_one_file_and_refuses_others";
    let ldb = need!(test, oracle::tool("ldb"));
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("db");
    let o = on_disk(Kind::tph(16, 100));
    let db = Db::open(&o, &dir).unwrap();
    let fill = |round: u32, of: std::ops::Range<u32>| {
        of.for_each(|n| db.put(key(n + 1), format!("{round} {}", "v".repeat(60))).unwrap());
        db.delete(key(round)).unwrap();
        db.flush().unwrap();
    };
    fill(1, 0..400);
    fill(2, 100..150);
    // With the options that we wrote, which name block-based tables.
    let run = |dir: &Path, more: &[&str]| {
        let db = format!("--db={}", dir.display());
        oracle::run_tool(&ldb, &[&[db.as_str(), "--try_load_options"], more].concat())
    };
    let compare = |dir: &Path, wanted: &[(Vec<u8>, Vec<u8>)]| {
        let copy = temp.path().join("copy");
        let _ = std::fs::remove_dir_all(&copy);
        oracle::copy_dir(dir, &copy);
        run(&copy, &["checkconsistency"])?;
        let found = run(&copy, &["--hex", "scan"])?;
        let wanted: Vec<String> = wanted.iter().map(|(k, v)| format!("0x{} : 0x{}", hex(k), hex(v))).collect();
        let found: Vec<&str> = found.lines().filter(|l| l.contains(" : ")).collect();
        assert_eq!(found, wanted);
        Ok::<(), String>(())
    };
    compare(&dir, &entries(&db)).unwrap();

    db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
    fill(3, 200..210);
    db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
    assert!(db.live_files().unwrap().iter().any(|f| !f.pieces.is_empty()), "a table has a second file");
    let why = compare(&dir, &[]).unwrap_err();
    assert!(why.contains("custom field not supported"), "{why}");

    db.make_tables_whole_cf(&db.default_cf()).unwrap();
    let wanted = entries(&db);
    compare(&dir, &wanted).unwrap();
    drop(db);
    let kind = || OptionsLoader::new().load_latest(&dir).unwrap().options.cf.table_factory;
    assert_eq!(kind(), TableKind::Tph);
    // Tables that RocksDB writes or rewrites there can be read correctly.
    run(&dir, &["put", "by", "ldb"]).unwrap();
    run(&dir, &["compact"]).unwrap();
    assert_eq!(kind(), TableKind::BlockBased, "RocksDB has written the file anew");

    let db = Db::open(&o, &dir).unwrap();
    let by = (b"by".to_vec(), b"ldb".to_vec());
    let mut after = entries(&db);
    after.retain(|e| *e != by);
    assert_eq!(after, wanted);
    small_store::verify(&PosixFileSystem::default(), &dir, &InternalKeyComparator::default(), "after RocksDB");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02X}")).collect()
}
