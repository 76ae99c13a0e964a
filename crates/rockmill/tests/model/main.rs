//! The store against ordered maps: random operations over column families of different meaning (merges, the reverse
//! order, a compaction filter, single deletes) with snapshots, iterators in both directions, range deletes, ingested
//! tables, changed options, checkpoints, secondaries and reopening, under random options. The seed is printed and can
//! be set with `ROCKMILL_SEED`; `ROCKMILL_MODEL_OPS` sets the length.

mod families;
mod state;

use std::path::PathBuf;
use std::sync::Arc;

use families::{
    CFS, MERGING, REVERSED, SINGLE, change_options, descriptors, family_options, open, random_options, settled,
};
use rockmill::backup::{BackupEngine, BackupEngineOptions, RestoreOptions};
use rockmill::{
    BottommostLevelCompaction, Checkpoint, CompactOptions, Db, Direction, Env, ImportColumnFamilyOptions,
    IngestExternalFileOptions, IteratorMode, Options, OptionsLoader, ReadOptions, Snapshot, WriteBatch, WriteOptions,
};
use rockmill_format::comparator::{Comparator, ReverseBytewiseComparator};
use state::{Model, Pairs, add_to_batch, random_key, random_table};

fn env(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Every entry of an iterator, what may or may not be there left out.
fn pairs(cf: usize, iter: rockmill::DbIterator<'_>) -> Pairs {
    let entries = iter.map(|kv| kv.unwrap());
    entries.filter_map(|(k, v)| Some((k.into_vec(), settled(cf, &v)?.to_vec()))).collect()
}

fn check_all(db: &Db, want: &Model, snapshot: Option<&Snapshot<'_>>, what: &str) {
    for (cf, name) in CFS.iter().enumerate() {
        let handle = db.cf_handle(name).unwrap();
        let want = want.sorted(cf);
        let options = || {
            let mut r = ReadOptions::default();
            r.set_total_order_seek(true);
            if let Some(s) = snapshot {
                r.set_snapshot(s);
            }
            r
        };
        let got = pairs(cf, db.iterator_cf_opt(&handle, options(), IteratorMode::Start));
        assert_same(&got, &want, &format!("{what}: {name} forward"));
        let mut got = pairs(cf, db.iterator_cf_opt(&handle, options(), IteratorMode::End));
        got.reverse();
        assert_same(&got, &want, &format!("{what}: {name} backward"));
    }
}

fn assert_same(got: &[(Vec<u8>, Vec<u8>)], want: &[(Vec<u8>, Vec<u8>)], what: &str) {
    for (g, w) in got.iter().zip(want) {
        assert!(
            g == w,
            "{what}: got {}={} want {}={}",
            g.0.escape_ascii(),
            g.1[..g.1.len().min(20)].escape_ascii(),
            w.0.escape_ascii(),
            w.1[..w.1.len().min(20)].escape_ascii()
        );
    }
    let extra = |l: &[(Vec<u8>, Vec<u8>)], n: usize| l.get(n).map(|(k, _)| k.escape_ascii().to_string());
    assert_eq!(
        got.len(),
        want.len(),
        "{what}: extra {:?}, missing {:?}",
        extra(got, want.len()),
        extra(want, got.len())
    );
}

fn check_random_walk(db: &Db, model: &Model, rng: &mut fastrand::Rng, what: &str) {
    // Not where entries may or may not be there.
    let cf = [0, MERGING, REVERSED, SINGLE][rng.usize(0..4)];
    let handle = db.cf_handle(CFS[cf]).unwrap();
    let mut options = ReadOptions::default();
    let mut want = model.sorted(cf);
    let cmp = |a: &[u8], b: &[u8]| if cf == REVERSED { b.cmp(a) } else { a.cmp(b) };
    if rng.u8(0..3) == 0 {
        let low = random_key(rng);
        want.retain(|(k, _)| cmp(k, &low).is_ge());
        options.set_iterate_lower_bound(low);
    }
    if rng.u8(0..3) == 0 {
        let high = random_key(rng);
        want.retain(|(k, _)| cmp(k, &high).is_lt());
        options.set_iterate_upper_bound(high);
    }
    if rng.u8(0..4) == 0 {
        let mut prefix = random_key(rng);
        prefix.truncate(rng.usize(0..8));
        want.retain(|(k, _)| k.starts_with(&prefix));
        options.set_iterate_prefix(prefix);
    }
    // In the order of all keys, whatever filters know of prefixes.
    if rng.bool() {
        options.set_total_order_seek(true);
    } else {
        options.set_auto_prefix_mode(true);
    }
    let mut iter = db.raw_iterator_cf_opt(&handle, options);
    let mut at: Option<usize> = None;
    for step in 0..rng.usize(1..40) {
        match rng.u8(0..12) {
            0 => {
                iter.seek_to_first();
                at = (!want.is_empty()).then_some(0);
            }
            1 => {
                iter.seek_to_last();
                at = want.len().checked_sub(1);
            }
            2..=3 => {
                let k = random_key(rng);
                iter.seek(&k);
                at = want.iter().position(|(w, _)| cmp(w, &k).is_ge());
            }
            4..=5 => {
                let k = random_key(rng);
                iter.seek_for_prev(&k);
                at = want.iter().rposition(|(w, _)| cmp(w, &k).is_le());
            }
            6..=8 => {
                iter.next();
                at = at.map(|i| i + 1).filter(|&i| i < want.len());
            }
            _ => {
                iter.prev();
                at = at.and_then(|i| i.checked_sub(1));
            }
        }
        iter.status().unwrap();
        let got = iter.item().map(|(k, v)| (k.to_vec(), v.to_vec()));
        assert_eq!(got, at.map(|i| want[i].clone()), "{what}: walk in {} at step {step}", CFS[cf]);
    }
}

/// One run's database and what it must show.
struct Run {
    dir: tempfile::TempDir,
    options: Options,
    model: Model,
    rng: fastrand::Rng,
    n: u64,
    what: String,
}

impl Run {
    fn path(&self) -> PathBuf {
        self.dir.path().join("db")
    }

    /// A batch of random operations, written in one of the ways there are.
    fn write(&mut self, db: &Db) {
        let mut batch = WriteBatch::new();
        for _ in 0..self.rng.usize(1..8) {
            let op = self.model.random_op(&mut self.rng, self.n);
            self.model.apply(&op);
            add_to_batch(&mut batch, db, op);
        }
        let w = WriteOptions { sync: self.rng.u8(0..50) == 0, ..WriteOptions::default() };
        db.write_opt(&batch, &w).unwrap();
    }

    fn compact(&mut self, db: &Db) {
        let cf = db.cf_handle(CFS[self.rng.usize(0..CFS.len())]).unwrap();
        let mut c = CompactOptions::default();
        let bottommost = [BottommostLevelCompaction::Force, BottommostLevelCompaction::IfHaveCompactionFilter];
        c.set_bottommost_level_compaction(bottommost[self.rng.usize(0..2)]);
        let (a, b) = (random_key(&mut self.rng), random_key(&mut self.rng));
        let (a, b) = if (a <= b) == (cf.name() != CFS[REVERSED]) { (a, b) } else { (b, a) };
        let (a, b) = (self.rng.bool().then_some(a), self.rng.bool().then_some(b));
        db.compact_range_cf_opt(&cf, a, b, &c).unwrap();
    }

    /// A checkpoint shows the same.
    fn checkpoint(&mut self, db: &Db) {
        let path = self.dir.path().join("checkpoint");
        let log_size = if self.rng.bool() { 0 } else { u64::MAX };
        Checkpoint::new(db).unwrap().create_checkpoint_with_log_size(&path, log_size).unwrap();
        let copy = open(&path, &self.options);
        check_all(&copy, &self.model, None, &format!("{}: checkpoint", self.what));
        drop(copy);
        Db::destroy(&self.options, &path).unwrap();
    }

    /// A backup, restored, shows the same.
    fn backup(&mut self, db: &Db) {
        let (home, path) = (self.dir.path().join("backups"), self.dir.path().join("restored"));
        let engine = BackupEngine::open(&BackupEngineOptions::new(home).unwrap(), &Env::new().unwrap()).unwrap();
        engine.create_new_backup_flush(db, self.rng.bool()).unwrap();
        engine.restore_from_latest_backup(&path, &path, &RestoreOptions::default()).unwrap();
        let copy = open(&path, &self.options);
        check_all(&copy, &self.model, None, &format!("{}: backup", self.what));
        drop(copy);
        engine.purge_old_backups(2).unwrap();
        Db::destroy(&self.options, &path).unwrap();
    }

    /// Tables made outside come in, one or two at once.
    fn ingest(&mut self, db: &Db) {
        let cf = [0, MERGING, REVERSED][self.rng.usize(0..3)];
        let handle = db.cf_handle(CFS[cf]).unwrap();
        let options = family_options(&self.options, cf);
        let mut files = Vec::new();
        for i in 0..self.rng.usize(1..3) {
            let path = self.dir.path().join(format!("ingest-{}-{i}.sst", self.n));
            random_table(&mut self.model, &mut self.rng, cf, &options, &path, self.n);
            files.push(path);
        }
        let mut how = IngestExternalFileOptions::default();
        how.set_move_files(self.rng.bool());
        how.set_verify_checksums_before_ingest(self.rng.bool());
        db.ingest_external_file_cf_opts(&handle, &how, files.clone()).unwrap();
        for f in files.iter().filter(|f| f.exists()) {
            std::fs::remove_file(f).unwrap();
        }
    }

    /// A secondary shows the same.
    fn secondary(&mut self, db: &Db, secondary: &mut Option<Db>) {
        db.flush_wal(false).unwrap();
        let mut options = self.options.clone();
        options.set_max_open_files(-1);
        let own = self.dir.path().join("secondary");
        let follow =
            || Db::open_cf_descriptors_as_secondary(&options, self.path(), own, descriptors(&options)).unwrap();
        let secondary = secondary.get_or_insert_with(follow);
        secondary.try_catch_up_with_primary().unwrap();
        check_all(secondary, &self.model, None, &format!("{}: secondary", self.what));
    }

    /// A column family, exported and imported under another name, shows the same.
    fn export(&mut self, db: &Db) {
        let (dir, cf) = (self.dir.path().join("export"), [0, MERGING, REVERSED][self.rng.usize(0..3)]);
        let handle = db.cf_handle(CFS[cf]).unwrap();
        let exported = Checkpoint::new(db).unwrap().export_column_family(&handle, &dir).unwrap();
        let options = family_options(&self.options, cf);
        let how = ImportColumnFamilyOptions::default();
        let copy = db.create_column_family_with_import(&options, "imported", &how, &exported).unwrap();
        let mut all = ReadOptions::default();
        all.set_total_order_seek(true);
        let got = pairs(cf, db.iterator_cf_opt(&copy, all, IteratorMode::Start));
        assert_same(&got, &self.model.sorted(cf), &format!("{}: export", self.what));
        db.drop_cf("imported").unwrap();
        std::fs::remove_dir_all(dir).unwrap();
    }

    fn get(&mut self, db: &Db, snapshot: Option<&(Snapshot<'_>, Model)>) {
        let cf = self.rng.usize(0..CFS.len());
        let k = random_key(&mut self.rng);
        let handle = db.cf_handle(CFS[cf]).unwrap();
        let same = |got: Option<Vec<u8>>, want: &Model, how: &str| {
            let got = got.as_deref().and_then(|v| settled(cf, v));
            assert!(got == want.get(cf, &k), "{}: {how} {} in {}", self.what, k.escape_ascii(), CFS[cf]);
        };
        same(db.get_cf(&handle, &k).unwrap(), &self.model, "get");
        if let Some((s, then)) = snapshot {
            same(s.get_cf(&handle, &k).unwrap(), then, "snapshot get");
        }
    }

    /// The keys that share a prefix.
    fn prefix(&mut self, db: &Db) {
        let Some(extractor) = &self.options.cf.prefix_extractor else { return };
        let cf = [0, MERGING][self.rng.usize(0..2)];
        let from = random_key(&mut self.rng);
        let Some(prefix) = extractor.prefix(&from) else { return };
        let mut want = self.model.sorted(cf);
        want.retain(|(k, _)| *k >= from && extractor.prefix(k) == Some(prefix));
        let got = pairs(cf, db.prefix_iterator_cf(&db.cf_handle(CFS[cf]).unwrap(), &from));
        assert_same(&got, &want, &format!("{}: prefix {}", self.what, prefix.escape_ascii()));
    }

    fn multi_get(&mut self, db: &Db) {
        let keys: Vec<_> = (0..self.rng.usize(0..20)).map(|_| random_key(&mut self.rng)).collect();
        let got: Vec<_> = db.multi_get(&keys).into_iter().map(|r| r.unwrap()).collect();
        let want: Vec<_> = keys.iter().map(|k| self.model.now[0].get(k).cloned()).collect();
        assert_eq!(got, want, "{}: multi_get", self.what);
    }

    /// The database opens with what its OPTIONS file says, and shows the same.
    fn reopen_as_stored(&mut self) {
        let loaded = OptionsLoader::new().load_latest(self.path()).unwrap();
        // The one object that the file cannot make; the store does without its filter for a while.
        let other = loaded.warnings.iter().find(|w| w.name != "compaction_filter");
        assert!(other.is_none(), "{}: {other:?}", self.what);
        let db = Db::open_cf_descriptors(&loaded.options, self.path(), loaded.column_families).unwrap();
        check_all(&db, &self.model, None, &format!("{}: with its own options", self.what));
    }

    /// From one opening of the database to the next.
    fn session(&mut self, ops: u64) {
        let db = open(&self.path(), &self.options);
        check_all(&db, &self.model, None, &format!("{}: after open", self.what));
        let mut snapshots: Vec<(Snapshot<'_>, Model)> = Vec::new();
        let mut secondary = None;
        let end = (self.n + self.rng.u64(ops / 8..ops / 2)).min(ops);
        while self.n < end {
            self.n += 1;
            self.what.truncate(self.what.find(':').unwrap_or(self.what.len()));
            self.what += &format!(": at {}", self.n);
            match self.rng.u16(0..1000) {
                0..=2 => db.flush_cf(&db.cf_handle(CFS[self.rng.usize(0..CFS.len())]).unwrap()).unwrap(),
                3..=4 => self.compact(&db),
                5 => check_all(&db, &self.model, None, &self.what),
                6..=8 if snapshots.len() < 5 => snapshots.push((db.snapshot(), self.model.clone())),
                9..=10 if !snapshots.is_empty() => {
                    let (s, then) = snapshots.swap_remove(self.rng.usize(0..snapshots.len()));
                    check_all(&db, &then, Some(&s), &format!("{}: snapshot", self.what));
                }
                11..=30 => check_random_walk(&db, &self.model, &mut self.rng, &self.what),
                31..=200 => self.get(&db, snapshots.last()),
                201..=210 => self.multi_get(&db),
                211..=213 => change_options(&mut self.rng, &db),
                214 => self.checkpoint(&db),
                215..=216 => self.secondary(&db, &mut secondary),
                217 => self.backup(&db),
                231 => self.export(&db),
                218..=220 => self.ingest(&db),
                221..=230 => self.prefix(&db),
                _ => self.write(&db),
            }
        }
        for (s, then) in &snapshots {
            check_all(&db, then, Some(s), &format!("{}: snapshot at close", self.what));
        }
    }
}

fn run(seed: u64, ops: u64) {
    println!("model: ROCKMILL_SEED={seed} ROCKMILL_MODEL_OPS={ops}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let options = random_options(&mut rng);
    let dir = tempfile::tempdir().unwrap();
    let mut run = Run { dir, options, model: Model::default(), rng, n: 0, what: format!("seed {seed}") };
    while run.n < ops {
        run.session(ops);
        run.options = random_options(&mut run.rng);
        if run.rng.u8(0..3) == 0 {
            run.reopen_as_stored();
        }
    }
    let db = open(&run.path(), &run.options);
    check_all(&db, &run.model, None, &format!("seed {seed}: at the end"));
}

#[test]
fn the_store_agrees_with_an_ordered_map() {
    let ops = env("ROCKMILL_MODEL_OPS").unwrap_or(6000);
    if let Some(seed) = env("ROCKMILL_SEED") {
        return run(seed, ops);
    }
    for _ in 0..4 {
        run(fastrand::u64(..1 << 32), ops);
    }
}

#[test]
fn the_reverse_order_has_its_own_separators() {
    // Walks in the reversed column family rely on it; a quick look at the comparator the model uses.
    let c = ReverseBytewiseComparator;
    assert!(c.compare(b"b", b"a").is_lt());
    let dir = tempfile::tempdir().unwrap();
    let mut o = Options::default();
    o.create_if_missing(true);
    o.set_comparator_object(Arc::new(c));
    let db = Db::open(&o, dir.path()).unwrap();
    for k in ["a", "b", "c"] {
        db.put(k, k).unwrap();
    }
    let keys: Vec<_> = db.iterator(IteratorMode::From(b"b", Direction::Forward)).map(|kv| kv.unwrap().0).collect();
    assert_eq!(keys, [b"b".to_vec().into_boxed_slice(), b"a".to_vec().into_boxed_slice()]);
}
