use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use rockmill_format::InternalKeyComparator;
use rockmill_format::edit::FileEntry;
use rockmill_format::filename;
use rockmill_format::footer::BlockHandle;
use rockmill_format::key::{InternalKey, ParsedInternalKey, ValueType};
use rockmill_io::{FileSystem, ManualClock, MemFileSystem, PosixFileSystem};
use rockmill_skip::{Needs, skip};

use super::*;
use crate::compaction::describe::JobFamily;
use crate::compaction::model::{Entry, Model, random_history};
use crate::compaction::objects::JobObjects;
use crate::compaction::pieces::KeptFile;
use crate::compaction::resolve::ResolveStats;
use crate::compaction::spec::SpecFile;
use crate::compaction::strategy::aging::Moment;
use crate::compaction::strategy::manual::{self, ManualPick};
use crate::compaction::strategy::{self, RunningCompactions};
use crate::compaction::{Compaction, JobEvents, JobMeans, LocalHost, MergeEngine, SharedEngines, sst_map};
use crate::compaction_filter::TableFileCreationReason;
use crate::front::SealedRuns;
use crate::memtable::MemTable;
use crate::options::{CfOptions, CompactionStyle, CompressionType, DbOptions, KernelDriver};
use crate::table::{Table, TableReadOptions};
use crate::version::{FileMeta, TableDirs, TableSource, Version, open_table};

/// Opens tables anew each time.
struct Tables {
    fs: Arc<dyn FileSystem>,
    dir: PathBuf,
    cmp: InternalKeyComparator,
}

impl TableSource for Tables {
    fn table(&self, file: &Arc<FileMeta>) -> Result<Arc<Table>> {
        let largest_seqno = Some(file.entry.largest_seqno);
        let dirs = TableDirs::one(&self.dir);
        open_table(&*self.fs, &dirs, &file.entry, &self.cmp, largest_seqno)
    }
}

/// The driver under test: `ROCKMILL_KERNEL_DRIVER`, or `run`.
fn kernel_driver() -> KernelDriver {
    let wanted = std::env::var("ROCKMILL_KERNEL_DRIVER").unwrap_or_default();
    KernelDriver::ALL.into_iter().find(|d| d.name() == wanted).unwrap_or_default()
}

/// False if the kernel engine is not available; reports that once.
#[cfg(feature = "kernel")]
fn kernel_is_there() -> bool {
    use std::sync::OnceLock;
    // The pool is kept, so that jobs do not load the program each time.
    static POOL: OnceLock<(Arc<rockmill_kernel::Pool>, bool)> = OnceLock::new();
    POOL.get_or_init(|| {
        let (pool, found) = (rockmill_kernel::Pool::shared(), crate::compaction::probe_kernel_engine(kernel_driver()));
        if let Err(e) = &found {
            skip("the merge engine kernel", &Needs::Kernel.because(e));
        }
        (pool, found.is_ok())
    })
    .1
}

/// False: this build does not have the engine. Most builds of `scripts/test` have it.
#[cfg(not(feature = "kernel"))]
fn kernel_is_there() -> bool {
    false
}

fn context(fs: Arc<dyn FileSystem>, dir: PathBuf) -> LocalHost {
    let next = Arc::new(AtomicU64::new(1));
    let db = DbOptions { compaction_readahead_size: 4096, kernel_driver: kernel_driver(), ..DbOptions::default() };
    let clock = Arc::new(ManualClock::new(1_700_000_000_000_000));
    LocalHost {
        means: JobMeans::new(JobObjects::default(), db, Arc::clone(&fs), clock),
        events: JobEvents::default(),
        inputs: Arc::default(),
        sealed: None,
        tables: Arc::new(Tables { fs, dir: dir.clone(), cmp: InternalKeyComparator::default() }),
        new_file_number: Arc::new(move || Ok(next.fetch_add(1, Ordering::Relaxed))),
        cancelled: Arc::default(),
        dir,
    }
}

fn small_options() -> CfOptions {
    let mut cf = CfOptions {
        level_compaction_dynamic_level_bytes: false,
        max_bytes_for_level_base: 6000,
        max_bytes_for_level_multiplier: 3.0,
        target_file_size_base: 1500,
        level0_file_num_compaction_trigger: 2,
        compression: CompressionType::None,
        num_levels: 4,
        ..CfOptions::default()
    };
    cf.table.block_size = 200;
    cf
}

fn sealed(model: &Model) -> SealedRuns {
    SealedRuns::new(vec![memtable_in(&InternalKeyComparator::default(), 1, model)])
}

fn memtable_in(cmp: &InternalKeyComparator, id: u64, model: &Model) -> Arc<MemTable> {
    let mem = MemTable::new(id, cmp.clone(), 4096);
    for (k, seq, t, v) in &model.entries {
        mem.add(*seq, *t, k, v);
    }
    for (b, e, seq) in &model.ranges {
        mem.add(*seq, ValueType::RangeDeletion, b, e);
    }
    Arc::new(mem)
}

fn contents(ctx: &LocalHost, file: &Arc<FileMeta>) -> Model {
    contents_of(&ctx.tables.table(file).unwrap())
}

fn contents_of(table: &Arc<Table>) -> Model {
    let mut out = Model::default();
    let mut it = table.iter(TableReadOptions::default());
    it.seek_to_first();
    while it.valid() {
        let e = ParsedInternalKey::parse(it.key()).unwrap();
        out.entries.push((e.user_key.to_vec(), e.sequence, e.value_type, it.value().to_vec()));
        it.next();
    }
    it.status().unwrap();
    if let Some(list) = table.range_tombstones() {
        out.ranges.extend(list.iter().map(|(b, e, s)| (b.to_vec(), e.to_vec(), s)));
    }
    out
}

/// The handles of a table's data blocks.
fn blocks_of(ctx: &LocalHost, file: &Arc<FileMeta>) -> Vec<BlockHandle> {
    sst_map::blocks_of(ctx, &SpecFile::new(file.entry.clone())).unwrap().blocks_between(None, None).unwrap()
}

/// A tree of real tables, and the history that was written to it.
struct Tree {
    ctx: LocalHost,
    cf: CfOptions,
    snapshots: Vec<u64>,
    version: Version,
    history: Model,
    epoch: u64,
    /// Run each successful job again in another process.
    elsewhere: bool,
    /// Filters of `rules.rs` have decided on entries.
    filtered: bool,
    /// What flushes dropped, and what committed compactions dropped.
    dropped: [ResolveStats; 2],
}

impl Tree {
    fn new(ctx: LocalHost, cf: CfOptions) -> Self {
        let version = Version::empty(cf.num_levels as usize, ctx.means.objects.cmp.clone());
        Self {
            ctx,
            cf,
            snapshots: Vec::new(),
            version,
            history: Model::default(),
            epoch: 0,
            elsewhere: true,
            filtered: false,
            dropped: [ResolveStats::default(); 2],
        }
    }

    fn family(&self) -> JobFamily {
        JobFamily {
            db_id: "00000000-0000-0000-0000-000000000001".into(),
            db_session_id: "ABCDEFGHIJKLMNOPQRST".into(),
            cf_id: 0,
            cf_name: "default".into(),
            options: Arc::new(self.cf.clone()),
            snapshots: self.snapshots.clone(),
            past: Vec::new(),
        }
    }

    /// The host of a job in the current state.
    fn host(&self) -> LocalHost {
        self.host_in(&self.ctx)
    }

    fn host_in(&self, ctx: &LocalHost) -> LocalHost {
        let objects = JobObjects::of(&self.cf, &ctx.means.objects.cmp);
        LocalHost { means: JobMeans { objects, ..ctx.means.clone() }, ..ctx.clone() }
    }

    fn spec(&self, c: &Compaction) -> JobSpec {
        JobSpec::of_compaction(c, &self.family(), 0, &self.host().means).unwrap()
    }

    fn run(&self, c: &Compaction) -> Result<JobOutput> {
        self.run_in(c, &self.ctx)
    }

    fn run_in(&self, c: &Compaction, ctx: &LocalHost) -> Result<JobOutput> {
        let ctx = self.host_in(ctx);
        let spec = JobSpec::of_compaction(c, &self.family(), 0, &ctx.means)?;
        let output = run(&spec, &ctx)?;
        if self.elsewhere {
            elsewhere::compare(&spec, &ctx, &output);
            device::compare(&spec, &ctx);
        }
        Ok(output)
    }

    fn install(&mut self, level: usize, entries: Vec<FileEntry>) {
        let cmp = self.version.cmp.clone();
        let files = &mut self.version.levels[level];
        files.extend(entries.into_iter().map(|e| Arc::new(FileMeta::new(e, Arc::default()))));
        files.sort(level, &cmp);
    }

    fn flush(&mut self, models: &[Model]) {
        let cmp = &self.ctx.means.objects.cmp;
        let mems = models.iter().enumerate().map(|(i, m)| memtable_in(cmp, i as u64, m));
        let runs = SealedRuns::new(mems.collect());
        for m in models {
            self.history = std::mem::take(&mut self.history).plus(m);
        }
        let (host, reason) = (LocalHost { sealed: Some(runs.clone()), ..self.host() }, TableFileCreationReason::Flush);
        let spec = JobSpec::of_flush(&runs, &self.family(), reason, 0, &host.means).unwrap();
        let flushed = run(&spec, &host).unwrap();
        if self.elsewhere {
            elsewhere::compare_flush(&spec, &host, &flushed);
        }
        self.dropped[0].add(flushed.stats.dropped);
        if let Some(mut entry) = flushed.files.first().cloned() {
            assert_eq!(flushed.stats.input_records, models.iter().map(|m| m.entries.len() as u64).sum::<u64>());
            self.epoch += 1;
            entry.epoch_number = self.epoch;
            self.install(0, vec![entry]);
        }
    }

    fn commit(&mut self, c: &Compaction, output: Vec<FileEntry>) {
        let gone: Vec<u64> = c.input_files().map(|f| f.number()).collect();
        for files in &mut self.version.levels {
            files.retain(|f| !gone.contains(&f.number()));
        }
        self.install(c.output_level, output);
    }

    fn compact(&mut self, c: &Compaction) {
        if c.trivial_move {
            let moved = c.input_files().map(|f| FileEntry { extra_run: c.output_run, ..f.entry.clone() }).collect();
            return self.commit(c, moved);
        }
        let output = self.run(c).unwrap();
        assert_eq!(output.files.iter().map(|f| f.size).sum::<u64>(), output.stats.output_bytes);
        self.dropped[1].add(output.stats.dropped);
        self.commit(c, output.files);
    }

    /// The engines of another database that merges with the same program.
    fn new_engines(&self) -> Arc<SharedEngines> {
        let engines = Arc::<SharedEngines>::default();
        #[cfg(feature = "kernel")]
        engines.kernel.set_object_of(&self.ctx.means.engines.kernel);
        engines
    }

    /// Checks that every engine writes the same bytes for a job; returns how many.
    fn compare_engines(&self, c: &Compaction, what: &str) -> usize {
        let mut c = c.clone();
        c.subcompactions_max = 1; // otherwise parts would get file numbers in a random order
        let bytes = |engine: MergeEngine| {
            let mut ctx = self.ctx.clone();
            ctx.means.db.merge_engine = engine;
            let next = AtomicU64::new(1 << 20);
            ctx.new_file_number = Arc::new(move || Ok(next.fetch_add(1, Ordering::Relaxed)));
            let done = ctx.means.engines.stats.parts(engine);
            let output = self.run_in(&c, &ctx).unwrap();
            assert!(ctx.means.engines.stats.parts(engine) > done, "{what}: another engine did the job");
            let paths = output.files.iter().map(|f| self.ctx.dir.join(filename::table(f.number)));
            let read = |path: PathBuf| {
                let bytes = ctx.means.fs.read_to_vec(&path).unwrap();
                ctx.means.fs.remove(&path).unwrap();
                bytes
            };
            paths.map(read).collect::<Vec<_>>()
        };
        let pread = bytes(MergeEngine::Pread);
        let probe = self.ctx.means.fs.batch_probe();
        if !probe.available {
            skip("what rings write compared", &Needs::Uring.because(probe.reason));
        } else {
            assert!(bytes(MergeEngine::Uring) == pread, "{what}: uring and pread write different bytes");
        }
        if kernel_is_there() {
            assert!(bytes(MergeEngine::Kernel) == pread, "{what}: kernel and pread write different bytes");
            assert_eq!(self.ctx.means.engines.stats.handed_over(), (0, None), "{what}");
        }
        pread.iter().map(Vec::len).sum()
    }

    fn all(&self) -> Model {
        let files = self.version.levels.iter().flatten();
        files.fold(Model::default(), |all, f| all.plus(&contents(&self.ctx, f)))
    }

    /// Checks that levels are sorted, that files match their boundaries, that newer data is above older data, and that
    /// readers see the history.
    fn check(&self, snapshots: &[u64], what: &str) {
        let cmp = &self.version.cmp;
        let mut newest_allowed = vec![u64::MAX; 256];
        for (level, files) in self.version.levels.iter().enumerate() {
            for f in files {
                self.ctx.tables.table(f).unwrap().verify().unwrap();
                let m = contents(&self.ctx, f);
                assert!(!m.entries.is_empty() || !m.ranges.is_empty(), "{what}: {f:?} is empty");
                for (k, s, t, _) in &m.entries {
                    let key = rockmill_format::InternalKey::new(k, *s, *t);
                    assert!(cmp.compare(key.as_bytes(), f.entry.smallest.as_bytes()).is_ge(), "{what}: {f:?}");
                    assert!(cmp.compare(key.as_bytes(), f.entry.largest.as_bytes()).is_le(), "{what}: {f:?}");
                    assert!((f.entry.smallest_seqno..=f.entry.largest_seqno).contains(s), "{what}: {f:?}");
                    let allowed = &mut newest_allowed[k[0] as usize];
                    assert!(s < allowed, "{what}: {k:?}@{s} in L{level} is newer than what is above");
                    *allowed = *s;
                }
                for (b, e, _) in &m.ranges {
                    assert!(cmp.compare_user(b, f.smallest_user_key()).is_ge(), "{what}: {f:?} {b:?}");
                    assert!(cmp.compare_user(e, f.largest_user_key()).is_le(), "{what}: {f:?} {e:?}");
                }
            }
            for w in files.runs().filter(|_| level > 0).flat_map(|run| run.windows(2)) {
                let (a, b) = (w[0].entry.largest.as_bytes(), w[1].entry.smallest.as_bytes());
                assert!(cmp.compare(a, b).is_lt(), "{what}: files overlap in L{level}");
            }
        }
        self.check_history(snapshots, what);
    }
}

#[test]
fn a_tree_under_random_jobs_shows_its_history() {
    let (mut over_extra_runs, mut into_extra_runs) = (0, 0);
    let mut dropped = [ResolveStats::default(); 2];
    for seed in 0..24 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let dir = tempfile::tempdir().unwrap();
        let mut cf = small_options();
        cf.level_compaction_dynamic_level_bytes = rng.bool();
        cf.compression = if rng.bool() { CompressionType::Lz4 } else { CompressionType::None };
        cf.table.bloom_bits_per_key = if rng.bool() { 10.0 } else { 0.0 };
        let mut ctx = context(Arc::new(PosixFileSystem::default()), dir.path().to_owned());
        ctx.means.db.compaction_readahead_size = if rng.bool() { 0 } else { 1000 };
        // Neither, one of the two, or both.
        let (merges, filters) = (seed / 2 % 2 == 1, seed / 4 % 2 == 1);
        cf.merge_operator = merges.then(rules::operator);
        let mut tree = Tree::new(ctx, cf);
        let (mut last, mut alive) = (0, [false; 256]);
        let mut jobs = 0;
        for round in 0..40 {
            if filters {
                tree.change_filter(round / 3);
            }
            let n = rng.usize(1..3);
            let models: Vec<_> = (0..n)
                .map(|_| {
                    let writes = rng.usize(1..80);
                    random_history(&mut rng, &mut last, writes, &mut alive)
                })
                .collect();
            tree.flush(&models);
            if rng.u8(0..6) == 0 {
                tree.cf.compaction_style = if rng.bool() { CompactionStyle::Universal } else { CompactionStyle::Level };
            }
            // Snapshots are added at the end of the history and removed anywhere.
            if rng.u8(0..3) == 0 {
                tree.snapshots.push(last);
            }
            if rng.u8(0..4) == 0 && !tree.snapshots.is_empty() {
                let i = rng.usize(0..tree.snapshots.len());
                tree.snapshots.remove(i);
            }
            tree.cf.compaction_downforce = seed % 2 == 0 && rng.u8(0..4) > 0;
            tree.cf.compaction_classic = seed % 4 == 1 && rng.u8(0..4) > 0;
            while rng.u8(0..8) != 0 {
                let version = Arc::new(tree.version.clone());
                let mut cursors = RunningCompactions::new();
                // Several jobs of one tree, which overtake each other with DF-compaction.
                let mut picked = Vec::new();
                for _ in 0..rng.usize(1..5) {
                    let next = if rng.u8(0..6) == 0 {
                        let level = rng.usize(0..3);
                        let to = if level > 0 && rng.bool() { level } else { level + 1 };
                        match manual::pick(&version, &tree.cf, &cursors, level, to, None, None, u64::MAX) {
                            ManualPick::Pick(c, _) | ManualPick::First(c) => Some(*c),
                            _ => None,
                        }
                    } else {
                        strategy::pick(&version, &tree.cf, &mut cursors, &Moment::default())
                    };
                    let Some(c) = next else { break };
                    picked.push((cursors.start(&c).number, c));
                }
                if picked.is_empty() {
                    break;
                }
                // In the order of issue, so that the jobs that each one depends on are done.
                for (number, mut c) in picked {
                    let from_extra = c.input_files().filter(|f| f.entry.extra_run > 0).count();
                    if !c.trivial_move && (round % 4 == 0 || c.output_run > 0 || from_extra > 0) {
                        tree.compare_engines(&c, &format!("seed {seed}, round {round}"));
                        over_extra_runs += usize::from(from_extra > 1);
                        into_extra_runs += usize::from(c.output_run > 0);
                    }
                    c.subcompactions_max = rng.usize(1..5);
                    cursors.finish(number, &c);
                    tree.compact(&c);
                    jobs += 1;
                }
            }
            let snapshots = tree.snapshots.clone();
            tree.check(&snapshots, &format!("seed {seed}, round {round}"));
        }
        assert!(jobs > 8, "seed {seed}: only {jobs} jobs");
        dropped.iter_mut().zip(tree.dropped).for_each(|(sum, of_tree)| sum.add(of_tree));
    }
    println!("{over_extra_runs} compared jobs read several tables of extra runs, {into_extra_runs} wrote one");
    assert!(over_extra_runs > 10 && into_extra_runs > 10);
    let [flushes, compactions] = dropped.map(|stats| (stats.filtered, stats.merged));
    println!("filtered and merged: {flushes:?} by flushes, {compactions:?} by compactions");
    assert!([flushes.0, flushes.1, compactions.0, compactions.1].iter().all(|&n| n > 100));
}

/// Three overlapping L0 files of `writes` puts each, with tombstones of both kinds, over one L1.
fn tree_with_l0(fs: Arc<dyn FileSystem>, dir: PathBuf, cf: CfOptions, writes: u32) -> (Tree, Compaction) {
    let mut tree = Tree::new(context(fs, dir), cf);
    let mut rng = fastrand::Rng::with_seed(7);
    let mut seq = 0;
    for round in 0..4 {
        let mut m = Model::default();
        for _ in 0..writes {
            seq += 1;
            let key = format!("k{:05}", rng.u32(0..writes * 2)).into_bytes();
            let t = if rng.u8(0..10) == 0 { ValueType::Deletion } else { ValueType::Value };
            let value = if t == ValueType::Value { vec![b'v'; rng.usize(0..60)] } else { Vec::new() };
            m.entries.push((key, seq, t, value));
        }
        for _ in 0..3 {
            seq += 1;
            let a = rng.u32(0..writes * 2);
            let end = format!("k{:05}", a + writes / 5);
            m.ranges.push((format!("k{a:05}").into_bytes(), end.into_bytes(), seq));
        }
        tree.flush(&[m]);
        if round == 0 {
            tree.snapshots.push(seq - writes as u64 / 2);
            let version = Arc::new(tree.version.clone());
            let none = RunningCompactions::new();
            let picked = manual::pick(&version, &tree.cf, &none, 0, 1, None, None, u64::MAX);
            let ManualPick::Pick(mut c, _) = picked else { panic!("nothing picked") };
            c.trivial_move = false;
            tree.compact(&c);
        }
    }
    let version = Arc::new(tree.version.clone());
    let c = strategy::pick(&version, &tree.cf, &mut RunningCompactions::new(), &Moment::default()).unwrap();
    assert_eq!((c.start_level(), c.output_level, c.trivial_move), (0, 1, false));
    assert_eq!(c.inputs.len(), 2);
    (tree, c)
}

#[test]
fn parts_write_what_one_thread_writes() {
    let dir = tempfile::tempdir().unwrap();
    let fs = Arc::new(PosixFileSystem::default());
    let (tree, mut c) = tree_with_l0(fs, dir.path().to_owned(), small_options(), 400);
    let mut whole: Option<(Vec<Entry>, Model)> = None;
    for parts in [1, 2, 4, 7] {
        c.subcompactions_max = parts;
        let output = tree.run(&c).unwrap();
        assert_eq!(output.stats.subcompactions as usize, parts);
        let files: Vec<_> = output.files.into_iter().map(|e| Arc::new(FileMeta::new(e, Arc::default()))).collect();
        for w in files.windows(2) {
            let (a, b) = (w[0].entry.largest.as_bytes(), w[1].entry.smallest.as_bytes());
            assert!(tree.ctx.means.objects.cmp.compare(a, b).is_lt(), "files of neighbouring parts overlap");
        }
        let all = files.iter().fold(Model::default(), |all, f| all.plus(&contents(&tree.ctx, f)));
        // As many rings as there are parallel parts, whichever threads run them.
        let made = tree.ctx.means.engines.rings.made();
        assert!(made <= parts as u64, "{made} rings for {parts} parts");
        let (entries, model) = whole.get_or_insert_with(|| (all.entries.clone(), all.clone()));
        assert_eq!(*entries, all.entries);
        model.assert_same(&all, &tree.snapshots, "in parts");
        // Parts are of about equal size.
        if parts == 4 {
            let mut plan = JobPlan::new(&tree.spec(&c), &tree.host()).unwrap();
            plan.split(4, &tree.ctx).unwrap();
            let ends: Vec<_> = plan.parts.iter().map(|p| p.end.clone()).collect();
            let share = |i: usize| {
                let below = |e: &&Entry| ends[i].as_ref().is_none_or(|end| e.0 < *end);
                entries.iter().filter(below).count() as f64 / entries.len() as f64
            };
            for (i, ideal) in [0.25, 0.5, 0.75].into_iter().enumerate() {
                assert!((share(i) - ideal).abs() < 0.12, "part {i} ends at {}", share(i));
            }
        }
    }
}

#[test]
fn the_same_job_writes_the_same_bytes() {
    let bytes = || {
        let fs = Arc::new(MemFileSystem::new());
        let dir = PathBuf::from("/db");
        fs.create_dir(&dir, true).unwrap();
        let (tree, c) = tree_with_l0(Arc::clone(&fs) as _, dir.clone(), small_options(), 200);
        let output = tree.run(&c).unwrap();
        let read = |f: &FileEntry| fs.read_to_vec(&dir.join(filename::table(f.number))).unwrap();
        output.files.iter().map(read).collect::<Vec<_>>()
    };
    let first = bytes();
    assert!(first.len() > 2);
    assert!(first == bytes(), "the same input gave other bytes");
}

#[test]
fn engines_write_the_same_bytes() {
    // Large enough for several windows of each run, on a real disk and in memory.
    let dir = tempfile::tempdir().unwrap();
    let memory = Arc::new(MemFileSystem::new());
    memory.create_dir(&PathBuf::from("/db"), true).unwrap();
    let places: [(Arc<dyn FileSystem>, PathBuf); 2] =
        [(Arc::new(PosixFileSystem::default()), dir.path().to_owned()), (memory, PathBuf::from("/db"))];
    for (fs, dir) in places {
        let probe = fs.batch_probe();
        if !probe.available {
            let reason = format!("{}: {}", dir.display(), probe.reason);
            skip("engines_write_the_same_bytes", &Needs::Uring.because(reason));
        }
        for compression in [CompressionType::None, CompressionType::Zstd] {
            let mut cf = small_options();
            cf.compression = compression;
            cf.table.bloom_bits_per_key = 10.0;
            cf.target_file_size_base = 300_000;
            let (mut tree, c) = tree_with_l0(Arc::clone(&fs), dir.clone(), cf, 12_000);
            // So little memory that spans are small and some must wait for it.
            tree.ctx.means.db.compaction_io_memory = 1 << 20;
            let bytes = tree.compare_engines(&c, &format!("{compression:?} in {}", dir.display()));
            assert!(bytes > 200_000, "{bytes} bytes are one window");
            for level in std::mem::take(&mut tree.version.levels) {
                level.iter().for_each(|f| fs.remove(&dir.join(filename::table(f.number()))).unwrap());
            }
        }
    }
}

#[test]
fn outputs_keep_to_their_size_and_follow_the_level_below() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, c) = tree_with_l0(Arc::new(PosixFileSystem::default()), dir.path().to_owned(), small_options(), 400);
    let output = tree.run(&c).unwrap();
    let (last, others) = output.files.split_last().unwrap();
    // Each had reached its limit before its last block and tail were written.
    for f in others {
        assert!((1500..4500).contains(&f.size), "{} bytes", f.size);
    }
    assert!(last.size < 4500);
    assert!(output.files.iter().all(|f| f.unique_id != [0, 0] && f.tail_size > 0 && f.epoch_number == 1));
    assert!(output.files.iter().all(|f| f.user_defined_timestamps_persisted && f.file_creation_time == 1_700_000_000));

    // A level below with a boundary in the middle: no output crosses it once half its size is reached.
    let mut c = c;
    let entry = |a: &str, b: &str| {
        let key = |k: &str| rockmill_format::InternalKey::new(k.as_bytes(), 1, ValueType::Value);
        let e = FileEntry { smallest: key(a), largest: key(b), size: 10, ..FileEntry::default() };
        Arc::new(FileMeta::new(e, Arc::default()))
    };
    c.output_file_size_target = 30_000;
    c.output_file_size_max = 60_000;
    c.grandparent_overlap_max = u64::MAX;
    c.bottommost = false;
    c.grandparents = vec![entry("k00000", "k00399"), entry("k00400", "k00799")];
    let output = tree.run(&c).unwrap();
    let cut = |f: &FileEntry| f.smallest.user_key() >= &b"k00400"[..] && f.smallest.user_key() < &b"k00420"[..];
    let whole: u64 = output.files.iter().map(|f| f.size).sum();
    assert_eq!(output.files.iter().any(cut), whole / 2 > 15_000, "{whole} bytes in {} files", output.files.len());
    // With little room for overlap, every boundary ends a file.
    c.grandparent_overlap_max = 1;
    c.output_file_size_target = 1 << 30;
    c.output_file_size_max = 1 << 30;
    let output = tree.run(&c).unwrap();
    assert!(output.files.iter().any(cut), "no file begins at the boundary");
}

#[test]
fn a_table_ends_at_the_cursor_of_the_level_that_it_goes_to() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, mut c) = tree_with_l0(Arc::new(PosixFileSystem::default()), dir.path().to_owned(), small_options(), 400);
    (c.output_file_size_target, c.output_file_size_max) = (1 << 30, 1 << 30);
    c.grandparents = Vec::new();
    let tables = |c: &Compaction| -> Vec<Arc<FileMeta>> {
        tree.run(c).unwrap().files.into_iter().map(|e| Arc::new(FileMeta::new(e, Arc::default()))).collect()
    };
    let all = tables(&c);
    assert_eq!(all.len(), 1, "nothing else ends a table");
    let keys: Vec<Vec<u8>> = contents(&tree.ctx, &all[0]).entries.into_iter().map(|(key, ..)| key).collect();
    for cursor in ["k00100", "k00100x", "k00399", "k00700"] {
        c.split_key = Some(InternalKey::new(cursor.as_bytes(), 1 << 50, ValueType::Value));
        let [before, behind] = tables(&c).try_into().expect("two tables");
        let first = keys.iter().find(|k| k.as_slice() >= cursor.as_bytes()).expect("a key behind it");
        assert_eq!(behind.smallest_user_key(), first.as_slice(), "{cursor}");
        let points: Vec<_> = [before, behind].iter().flat_map(|f| contents(&tree.ctx, f).entries).collect();
        assert!(points.into_iter().map(|(key, ..)| key).eq(keys.iter().cloned()), "{cursor}");
    }
    // A cursor after all keys or before the first one ends no file.
    for cursor in ["a", "z"] {
        c.split_key = Some(InternalKey::new(cursor.as_bytes(), 1, ValueType::Value));
        assert_eq!(tables(&c).len(), 1, "{cursor}");
    }
}

#[test]
fn tombstones_without_points_make_a_file_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let fs = Arc::new(PosixFileSystem::default());
    let mut tree = Tree::new(context(fs, dir.path().to_owned()), small_options());
    let put =
        |k: &[u8], seq| Model { entries: vec![(k.to_vec(), seq, ValueType::Value, b"v".to_vec())], ranges: vec![] };
    tree.flush(&[put(b"k", 1)]);
    let version = Arc::new(tree.version.clone());
    let none = RunningCompactions::new();
    for level in [0, 1] {
        let version = if level == 0 { Arc::clone(&version) } else { Arc::new(tree.version.clone()) };
        let ManualPick::Pick(c, _) = manual::pick(&version, &tree.cf, &none, level, level + 1, None, None, u64::MAX)
        else {
            panic!("nothing picked")
        };
        tree.compact(&c);
    }
    tree.flush(&[Model { entries: vec![], ranges: vec![(b"a".to_vec(), b"z".to_vec(), 5)] }]);
    tree.flush(&[put(b"b", 3)]); // hidden by the tombstone although it is flushed later here
    let version = Arc::new(tree.version.clone());
    let c = strategy::pick(&version, &tree.cf, &mut RunningCompactions::new(), &Moment::default()).unwrap();
    assert!(!c.bottommost);
    tree.compact(&c);
    assert_eq!(tree.version.levels[1].len(), 1);
    let f = &tree.version.levels[1].base[0];
    let m = contents(&tree.ctx, f);
    assert_eq!((m.entries.len(), m.ranges), (0, vec![(b"a".to_vec(), b"z".to_vec(), 5)]));
    assert_eq!((f.smallest_user_key(), f.largest_user_key()), (&b"a"[..], &b"z"[..]));
    assert!(f.entry.compensated_range_deletion_size > 0, "the file below it will go");
}

#[test]
fn nothing_left_is_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let mut host = context(Arc::new(PosixFileSystem::default()), dir.path().to_owned());
    let family = Tree::new(host.clone(), small_options()).family();
    let mut flush = |m: &Model| build_l0(&sealed(m), &family, &mut host, TableFileCreationReason::Flush).unwrap();
    assert_eq!(flush(&Model::default()).into_table(), None);
    let pair = Model {
        entries: vec![
            (b"a".to_vec(), 1, ValueType::Value, b"v".to_vec()),
            (b"a".to_vec(), 2, ValueType::SingleDeletion, Vec::new()),
        ],
        ranges: Vec::new(),
    };
    assert_eq!(flush(&pair).into_table(), None);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn each_failing_call_fails_the_job_and_leaves_nothing_behind() {
    let fs = Arc::new(MemFileSystem::new());
    let dir = PathBuf::from("/db");
    fs.create_dir(&dir, true).unwrap();
    let (mut tree, mut c) = tree_with_l0(Arc::clone(&fs) as _, dir.clone(), small_options(), 25);
    tree.elsewhere = false; // file system calls are counted
    tree.ctx.means.db.writable_file_max_buffer_size = 512;
    let list = || {
        let mut names = fs.list_dir(&dir).unwrap();
        names.sort();
        names
    };
    let before = list();
    for parts in [1, 3] {
        c.subcompactions_max = parts;
        let remove = |output: JobOutput| {
            for f in output.files {
                fs.remove(&dir.join(filename::table(f.number))).unwrap();
            }
        };
        let calls = fs.calls();
        let whole = tree.run(&c).unwrap();
        let calls = fs.calls() - calls;
        let records = whole.stats.output_records;
        remove(whole);
        let mut failures = 0;
        for call in 0..calls {
            fs.fail_once_after(call, libc::EIO);
            let result = tree.run(&c);
            fs.clear_fault();
            match result {
                Err(e) => {
                    failures += 1;
                    assert!(e.message().starts_with("compaction of level 0 into level 1"), "{e}");
                    assert_eq!(list(), before, "call {call}: {e}");
                    // The next job uses the same engines: nothing of this job may be left in them.
                    if call % 5 == 0 {
                        let again = tree.run(&c).unwrap();
                        assert_eq!(again.stats.output_records, records, "after a failure at call {call}");
                        remove(again);
                    }
                }
                Ok(output) => remove(output), // an optional call, such as a hint
            }
        }
        assert!(failures as u64 > calls / 2, "only {failures} of {calls} calls failed the job");
        assert!(tree.ctx.means.engines.rings.made() <= parts as u64, "failed jobs' rings are as good as others");
    }
}

#[test]
fn a_closing_store_stops_the_job() {
    let fs = Arc::new(PosixFileSystem::default());
    let dir = tempfile::tempdir().unwrap();
    let (tree, c) = tree_with_l0(fs, dir.path().to_owned(), small_options(), 600);
    let files = || std::fs::read_dir(dir.path()).unwrap().count();
    let before = files();
    tree.ctx.means.shutdown.store(true, Ordering::Release);
    assert_eq!(tree.run(&c).unwrap_err().kind(), ErrorKind::ShutdownInProgress);
    assert_eq!(files(), before);
}

#[test]
fn a_panic_is_an_error() {
    let e = guarded::<()>("it", || panic!("a bug")).unwrap_err();
    assert!(e.message().contains("a bug"), "{e}");
}

/// Whoever made the spec: see `JobSpec::check_bases`.
#[test]
fn a_job_that_keeps_files_of_a_newer_run_does_not_begin() {
    let dir = tempfile::tempdir().unwrap();
    let fs = Arc::new(PosixFileSystem::default());
    let (tree, c) = tree_with_l0(fs, dir.path().to_owned(), small_options(), 100);
    let mut spec = tree.spec(&c);
    let base = crate::compaction::spec::SpecRun { level: spec.output.level, files: spec.runs[0].files.clone() };
    let number = base.files[0].number();
    spec.keep = vec![KeptFile { table: number, file: number }];
    spec.runs.insert(0, base);
    let e = JobPlan::new(&spec, &tree.host()).unwrap_err();
    assert!(e.kind() == ErrorKind::InvalidArgument && e.message().contains("files to keep"), "{e}");
}

#[test]
fn records_that_go_missing_are_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let fs = Arc::new(PosixFileSystem::default());
    let (tree, c) = tree_with_l0(fs, dir.path().to_owned(), small_options(), 100);
    let parts = [PartOutput { stats: ResolveStats { input_records: 5, ..Default::default() }, ..Default::default() }];
    let plan = JobPlan::new(&tree.spec(&c), &tree.host()).unwrap();
    let e = check_record_count(&plan, &parts, &tree.ctx).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Corruption);
}

mod device;
mod device_file;
mod elsewhere;
mod handed_over;
mod helped;
#[cfg(feature = "kernel")]
mod in_kernel;
mod pass;
mod rules;
