//! Jobs merged in the kernel: the same bytes, errors and counts as with the other engines; and the jobs that it leaves
//! to them.

use rockmill_format::checksum::ChecksumType;
use rockmill_format::compression::CompressionType;

use super::*;
use crate::compaction::JobStats;
use crate::version::TableSource;

mod own;
mod shared_ring;
mod swap;

pub(super) use own::register;

pub(super) fn empty(cf: CfOptions) -> Tree {
    let fs = Arc::new(MemFileSystem::new());
    fs.create_dir(&PathBuf::from("/db"), true).unwrap();
    let mut ctx = context(fs, PathBuf::from("/db"));
    ctx.means.db.compaction_helper_threads = 0;
    ctx.means.db.compaction_io_memory = 1 << 20;
    Tree::new(ctx, cf)
}

/// Overlapping L0 tables of values, tombstones, single deletes and operands, with nothing below.
fn mixed(rng: &mut fastrand::Rng, cf: CfOptions, files: usize, keys: u32) -> (Tree, Compaction) {
    let mut tree = empty(cf);
    let mut seq = 0;
    for _ in 0..files {
        let mut m = Model::default();
        for _ in 0..400 {
            seq += 1;
            let kinds = [ValueType::Value, ValueType::Value, ValueType::Deletion, ValueType::Merge];
            let t = if rng.u8(0..30) == 0 { ValueType::SingleDeletion } else { *rng.choice(&kinds).unwrap() };
            let value =
                if matches!(t, ValueType::Value | ValueType::Merge) { vec![b'v'; rng.usize(0..80)] } else { vec![] };
            m.entries.push((format!("key{:05}", rng.u32(0..keys)).into_bytes(), seq, t, value));
            if rng.u8(0..40) == 0 {
                tree.snapshots.push(seq);
            }
        }
        tree.flush(&[m]);
    }
    // Versions that only the removed snapshots saw are in the tables, and hidden from now on.
    tree.snapshots.retain(|_| rng.u8(0..6) == 0);
    let c = whole_level(&tree);
    (tree, c)
}

/// All of L0 into L1, in one part.
pub(super) fn whole_level(tree: &Tree) -> Compaction {
    let version = Arc::new(tree.version.clone());
    let none = RunningCompactions::new();
    let ManualPick::Pick(mut c, _) = manual::pick(&version, &tree.cf, &none, 0, 1, None, None, u64::MAX) else {
        panic!("nothing picked")
    };
    c.subcompactions_max = 1;
    *c
}

/// The counters of a job, and the engines of its parts.
fn counted(tree: &Tree, c: &Compaction, engine: MergeEngine) -> (JobStats, Arc<SharedEngines>) {
    let mut ctx = tree.ctx.clone();
    ctx.means.db.merge_engine = engine;
    ctx.means.engines = tree.new_engines();
    let output = tree.run_in(c, &ctx).unwrap();
    for f in &output.files {
        ctx.means.fs.remove(&ctx.dir.join(filename::table(f.number))).unwrap();
    }
    (output.stats, ctx.means.engines)
}

#[test]
fn what_the_program_drops_is_counted_as_resolution_counts_it() {
    if !kernel_is_there() {
        return;
    }
    let (mut hidden, mut obsolete) = (0, 0);
    for seed in 0..12 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (files, keys) = (rng.usize(2..6), *rng.choice(&[30, 300, 3000]).unwrap());
        let (tree, c) = mixed(&mut rng, small_options(), files, keys);
        let (pread, _) = counted(&tree, &c, MergeEngine::Pread);
        let (kernel, engines) = counted(&tree, &c, MergeEngine::Kernel);
        assert_eq!(kernel.dropped, pread.dropped, "seed {seed}");
        assert_eq!(kernel.input_records, pread.input_records, "seed {seed}");
        assert_eq!(
            (engines.stats.parts(MergeEngine::Kernel), engines.stats.parts(MergeEngine::Uring)),
            (1, 0),
            "seed {seed}"
        );
        let (bytes, _) = tree.outcome(&c, MergeEngine::Kernel, 0).unwrap();
        assert!(bytes == tree.outcome(&c, MergeEngine::Pread, 0).unwrap().0, "seed {seed}: other bytes");
        hidden += kernel.dropped.hidden;
        obsolete += kernel.dropped.obsolete;
    }
    assert!(hidden > 1000 && obsolete > 100, "{hidden} hidden, {obsolete} obsolete");
}

/// Damage that no checksum catches, in blocks, their lengths and restart points: all engines report the same error, or
/// write the same output, and leave nothing behind.
#[test]
fn damage_that_no_checksum_catches_is_named_as_by_the_other_engines() {
    if !kernel_is_there() {
        return;
    }
    let mut failed = 0;
    for seed in 0..150 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut cf = small_options();
        cf.table.checksum = ChecksumType::None;
        let (tree, c) = mixed(&mut rng, cf, 3, 3000);
        let file = Arc::clone(&tree.version.levels[0].base[rng.usize(0..3)]);
        let path = tree.ctx.dir.join(filename::table(file.number()));
        let mut bytes = tree.ctx.means.fs.read_to_vec(&path).unwrap();
        let blocks = blocks_of(&tree.ctx, &file);
        let block = blocks[rng.usize(..blocks.len())];
        let at = block.offset as usize + rng.usize(..block.size as usize);
        let any = rng.u8(..);
        bytes[at] = *rng.choice(&[0, 0x7f, 0x80, 0xff, any]).unwrap();
        let mut damaged = tree.ctx.means.fs.create(&path, rockmill_io::WriteOptions::default()).unwrap();
        damaged.append(&bytes).unwrap();
        damaged.close().unwrap();
        let tables = tree.ctx.means.fs.list_dir(&tree.ctx.dir).unwrap().len();
        let pread = tree.outcome(&c, MergeEngine::Pread, 0).map_err(|e| e.to_string());
        let kernel = tree.outcome(&c, MergeEngine::Kernel, 0).map_err(|e| e.to_string());
        if let Err(e) = &pread {
            failed += 1;
            // An invalid key is found by the program, in other engines by version resolution: different messages, the
            // same file.
            let say = |e: &String| (e.contains("internal key"), e.contains(&path.display().to_string()));
            let other = kernel.as_ref().err().unwrap_or_else(|| panic!("seed {seed}: only pread says {e}"));
            assert!(other == e || say(e) == (true, true) && say(other).1, "seed {seed}: {e}\n{other}");
        } else {
            assert!(kernel == pread, "seed {seed}: {:?}", kernel.map(|_| "other bytes"));
        }
        assert_eq!(tree.ctx.means.fs.list_dir(&tree.ctx.dir).unwrap().len(), tables, "seed {seed}: tables were left");
    }
    assert!(failed > 20, "only {failed} jobs failed");
}

/// A table that ends before the blocks in its index.
#[test]
fn blocks_behind_the_end_of_a_file_are_an_error_that_names_it() {
    if !kernel_is_there() {
        return;
    }
    let mut rng = fastrand::Rng::with_seed(1);
    let (tree, c) = mixed(&mut rng, small_options(), 3, 3000);
    let file = Arc::clone(&tree.version.levels[0].base[1]);
    let path = tree.ctx.dir.join(filename::table(file.number()));
    let bytes = tree.ctx.means.fs.read_to_vec(&path).unwrap();
    let open = tree.ctx.tables.table(&file).unwrap();
    let last = *blocks_of(&tree.ctx, &file).last().unwrap();
    // The table is already open, and its index read, when the file is truncated.
    struct Opened(Arc<dyn TableSource>, u64, Arc<Table>);
    impl TableSource for Opened {
        fn table(&self, file: &Arc<FileMeta>) -> Result<Arc<Table>> {
            if file.number() == self.1 { Ok(Arc::clone(&self.2)) } else { self.0.table(file) }
        }
    }
    let mut tree = tree;
    tree.ctx.tables = Arc::new(Opened(Arc::clone(&tree.ctx.tables), file.number(), open));
    let mut short = tree.ctx.means.fs.create(&path, rockmill_io::WriteOptions::default()).unwrap();
    short.append(&bytes[..last.offset as usize + 3]).unwrap();
    short.close().unwrap();
    let e = tree.outcome(&c, MergeEngine::Kernel, 0).map(drop).unwrap_err();
    assert!(e.to_string().contains(&path.display().to_string()), "{e}");
    let tables = tree.ctx.means.fs.list_dir(&tree.ctx.dir).unwrap();
    assert_eq!(tables.len(), 3, "a failed job left tables: {tables:?}");
}

#[test]
fn what_the_program_cannot_do_is_done_by_another_engine_and_said() {
    if !kernel_is_there() {
        return;
    }
    let one = |key: Vec<u8>, value: usize| {
        let (mut a, mut b) = (Model::default(), Model::default());
        for (i, m) in [&mut a, &mut b].into_iter().enumerate() {
            m.entries.push((b"a".to_vec(), 1 + i as u64, ValueType::Value, b"v".to_vec()));
            m.entries.push((key.clone(), 11 + i as u64, ValueType::Value, vec![b'v'; value]));
        }
        [a, b]
    };
    let cases = [(vec![b'k'; 9000], 5, "a key is longer"), (b"key".to_vec(), 5 << 20, "does not fit")];
    for (key, value, reason) in cases {
        let mut tree = empty(small_options());
        for m in one(key, value) {
            tree.flush(&[m]);
        }
        let c = whole_level(&tree);
        // The first attempt may have used up file numbers, which are in tables' properties, so only entries are
        // compared.
        let (pread, _) = counted(&tree, &c, MergeEngine::Pread);
        let (kernel, engines) = counted(&tree, &c, MergeEngine::Kernel);
        assert_eq!((kernel.dropped, kernel.input_records), (pread.dropped, pread.input_records), "{reason}");
        let numbers = |engine| {
            let mut ctx = tree.ctx.clone();
            (ctx.means.db.merge_engine, ctx.means.db.reproducible) = (engine, true);
            // From the same on.
            let next = std::sync::atomic::AtomicU64::new(900);
            ctx.new_file_number = Arc::new(move || Ok(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)));
            let files = tree.run_in(&c, &ctx).unwrap().files;
            for f in &files {
                ctx.means.fs.remove(&ctx.dir.join(filename::table(f.number))).unwrap();
            }
            files.iter().map(|f| f.number).collect::<Vec<_>>()
        };
        assert_eq!(numbers(MergeEngine::Kernel), numbers(MergeEngine::Pread), "{reason}: other numbers");
        let entries = |engine| {
            let mut ctx = tree.ctx.clone();
            ctx.means.db.merge_engine = engine;
            let files = tree.run_in(&c, &ctx).unwrap().files;
            let metas = files.iter().map(|f| Arc::new(FileMeta::new(f.clone(), Arc::default())));
            let all = metas.fold(Model::default(), |all, f| all.plus(&contents(&ctx, &f)));
            for f in &files {
                ctx.means.fs.remove(&ctx.dir.join(filename::table(f.number))).unwrap();
            }
            all.entries
        };
        assert!(entries(MergeEngine::Kernel) == entries(MergeEngine::Pread), "{reason}: other entries");
        let (parts, said) = engines.stats.handed_over();
        assert!(parts == 1 && said.as_ref().is_some_and(|s| s.contains(reason)), "{parts} {said:?}");
        assert_eq!(engines.stats.parts(MergeEngine::Kernel), 0);
        let tables = tree.ctx.means.fs.list_dir(&tree.ctx.dir).unwrap();
        assert_eq!(tables.len(), 2, "the first try left tables: {tables:?}");
    }
}

#[test]
fn a_driver_that_is_not_there_is_named_and_auto_does_the_work() {
    let mut rng = fastrand::Rng::with_seed(3);
    let (mut tree, c) = mixed(&mut rng, small_options(), 2, 100);
    tree.ctx.means.db.kernel_driver = KernelDriver::Loop;
    if crate::compaction::probe_kernel_engine(KernelDriver::Loop).is_ok() {
        return skip("a driver that is not there", &Needs::NoKernelLoop.because("this kernel has all"));
    }
    let (_, engines) = counted(&tree, &c, MergeEngine::Kernel);
    let said = engines.stats.missing(MergeEngine::Kernel).unwrap_or_default();
    assert!(said.contains("the driver loop needs Linux 7.1") || said.contains("permission"), "{said}");
    assert_eq!((engines.stats.parts(MergeEngine::Kernel), engines.stats.handed_over().0), (0, 0));
}
