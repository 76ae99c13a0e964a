//! Jobs with helper threads: the same bytes, the same errors.

use super::*;
use crate::options::CompressionType::{Lz4, None as Uncompressed, Snappy, Zstd};

/// Four L0 tables whose blocks are randomly compressible, incompressible, or mixed.
fn job(cf: CfOptions, seed: u64) -> (Tree, Compaction) {
    let fs = Arc::new(MemFileSystem::new());
    fs.create_dir(&PathBuf::from("/db"), true).unwrap();
    let mut ctx = context(fs, PathBuf::from("/db"));
    ctx.means.db.compaction_helper_threads = 0;
    ctx.means.db.compaction_io_memory = 1 << 20;
    ctx.means.db.compaction_readahead_size = 3000;
    let mut tree = Tree::new(ctx, cf);
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut seq = 0;
    for _ in 0..4 {
        let mut m = Model::default();
        let mut noise = false;
        for i in 0..700 {
            if i % 40 == 0 {
                noise = rng.bool();
            }
            seq += 1;
            let key = format!("prefix{:06}", rng.u32(0..4000) / 8 * 8).into_bytes();
            let len = rng.usize(0..120);
            let value = if noise { std::iter::repeat_with(|| rng.u8(..)).take(len).collect() } else { vec![b'v'; len] };
            m.entries.push((key, seq, ValueType::Value, value));
        }
        tree.flush(&[m]);
    }
    let version = Arc::new(tree.version.clone());
    let none = RunningCompactions::new();
    let ManualPick::Pick(mut c, _) = manual::pick(&version, &tree.cf, &none, 0, 1, None, None, u64::MAX) else {
        panic!("nothing picked")
    };
    c.subcompactions_max = 1;
    (tree, *c)
}

impl Tree {
    /// What a job writes, and how many pieces helpers did; or its error.
    pub(super) fn outcome(&self, c: &Compaction, engine: MergeEngine, helpers: i32) -> Result<(Vec<Vec<u8>>, u64)> {
        let (_, bytes, engines) = self.whole_outcome(c, engine, helpers)?;
        Ok((bytes, engines.helpers.done()))
    }

    /// What a job writes, file by file, and what the engines did.
    fn whole_outcome(&self, c: &Compaction, engine: MergeEngine, helpers: i32) -> Result<Outcome> {
        let mut ctx = self.ctx.clone();
        ctx.means.db.merge_engine = engine;
        ctx.means.db.compaction_helper_threads = helpers;
        ctx.means.engines = self.new_engines();
        let next = AtomicU64::new(1 << 20);
        ctx.new_file_number = Arc::new(move || Ok(next.fetch_add(1, Ordering::Relaxed)));
        let output = self.run_in(c, &ctx)?;
        let paths = output.files.iter().map(|f| ctx.dir.join(filename::table(f.number)));
        let read = |path: PathBuf| {
            let bytes = ctx.means.fs.read_to_vec(&path).unwrap();
            ctx.means.fs.remove(&path).unwrap();
            bytes
        };
        let bytes = paths.map(read).collect();
        Ok((output.files, bytes, ctx.means.engines))
    }
}

/// The tables, their bytes, and what the engines counted.
type Outcome = (Vec<FileEntry>, Vec<Vec<u8>>, Arc<SharedEngines>);

/// Jobs whose outputs continue to use files of the inputs: every engine, with and without helpers, writes the same
/// bytes and lists the same pieces. `kernel` reports that it left them to another engine.
#[test]
fn tph_jobs_that_keep_pieces_write_the_same_bytes_with_every_engine() {
    let (mut kept, mut helped) = (0, 0);
    for seed in 0..6u64 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut options = crate::Options { cf: small_options(), ..crate::Options::default() };
        options.cf.compression = [Uncompressed, Lz4, Zstd][seed as usize % 3];
        options.cf.compression_opts.parallel_threads = 4;
        options.cf.target_file_size_base = [30_000, 1 << 20][rng.usize(0..2)];
        options.cf.max_bytes_for_level_base = 1 << 30;
        let mut tph = crate::options::TphTableOptions::default();
        tph.set_block_based_options(&options.cf.table);
        tph.set_garbage_percent(100);
        options.set_tph_table_factory(&tph);
        let (mut tree, first) = job(options.cf, seed);
        tree.compact(&first);
        let mut seq = 10_000;
        for round in 0..3 {
            // A tenth of the keys, some of them deleted.
            let mut m = Model::default();
            let from = rng.u32(0..360);
            for n in from..from + 50 {
                seq += 1;
                let key = format!("prefix{:06}", n * 8).into_bytes();
                match rng.u8(0..4) {
                    0 => m.entries.push((key, seq, ValueType::Deletion, Vec::new())),
                    _ => m.entries.push((key, seq, ValueType::Value, vec![b'w'; rng.usize(0..120)])),
                }
            }
            tree.flush(&[m]);
            let version = Arc::new(tree.version.clone());
            let none = RunningCompactions::new();
            let ManualPick::Pick(mut c, _) = manual::pick(&version, &tree.cf, &none, 0, 1, None, None, u64::MAX) else {
                panic!("nothing picked")
            };
            c.subcompactions_max = 1;
            let what = format!("seed {seed}, round {round}");
            assert!(!tree.spec(&c).keep.is_empty(), "{what}: nothing is to stay");
            let (files, alone, engines) = tree.whole_outcome(&c, MergeEngine::Pread, 0).unwrap();
            assert_eq!((engines.stats.parts(MergeEngine::Pread), engines.helpers.done()), (1, 0), "{what}");
            let pieces: usize = files.iter().map(|f| f.pieces.len()).sum();
            assert!(pieces > 0, "{what}: no table goes on using a file");
            kept += pieces;
            for engine in [MergeEngine::Pread, MergeEngine::Uring, MergeEngine::Kernel] {
                for helpers in [0, 2] {
                    let what = format!("{what}, {engine} with {helpers} helpers");
                    let (again, bytes, engines) = tree.whole_outcome(&c, engine, helpers).unwrap();
                    assert!(bytes == alone, "{what}: other bytes");
                    assert_eq!(again, files, "{what}: other tables");
                    helped += engines.helpers.done();
                    let stats = &engines.stats;
                    let by_entries = if cfg!(feature = "kernel") && engine == MergeEngine::Kernel {
                        (1, Some("TPH tables are merged entry by entry".to_owned()))
                    } else {
                        (0, None)
                    };
                    assert_eq!(stats.handed_over(), by_entries, "{what}");
                    assert_eq!(stats.parts(MergeEngine::Kernel), 0, "{what}");
                    let parts = (stats.parts(MergeEngine::Pread), stats.parts(MergeEngine::Uring));
                    // The in-memory twin of a ring is always available.
                    assert_eq!(parts, if engine == MergeEngine::Pread { (1, 0) } else { (0, 1) }, "{what}");
                }
            }
            tree.compact(&c);
            tree.history.assert_same(&tree.all(), &[], &what);
        }
    }
    println!("{kept} pieces were kept, helpers did {helped} pieces of work");
    assert!(kept >= 18 && helped > 0, "{kept} {helped}");
}

#[test]
fn helpers_change_no_byte() {
    let mut helped = 0;
    for seed in 0..24 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut cf = small_options();
        cf.compression = [Uncompressed, Lz4, Zstd, Snappy][seed as usize % 4];
        cf.compression_opts.parallel_threads = [1, 2, 8][rng.usize(0..3)];
        cf.target_file_size_base = [2000, 30_000, 1 << 20][rng.usize(0..3)];
        cf.table.block_size = [100, 200, 900][rng.usize(0..3)];
        cf.table.format_version = rng.u32(5..8);
        cf.table.bloom_bits_per_key = if rng.bool() { 10.0 } else { 0.0 };
        if rng.bool() {
            cf.table.index_type = crate::options::BlockBasedIndexType::TwoLevelIndexSearch;
            cf.table.metadata_block_size = 300;
            cf.table.partition_filters = rng.bool();
        }
        if rng.u8(0..3) == 0 {
            cf.compression_opts.max_dict_bytes = 500;
            cf.compression_opts.max_dict_buffer_bytes = rng.u64(0..2) * 5000;
        }
        if rng.u8(0..3) == 0 {
            cf.prefix_extractor = Some(rockmill_format::SliceTransform::create_fixed_prefix(10));
        }
        let what = format!("seed {seed}, {:?}, {:?}", cf.compression, cf.table);
        let (tree, c) = job(cf, seed);
        let (alone, none) = tree.outcome(&c, MergeEngine::Pread, 0).unwrap();
        assert_eq!(none, 0);
        for helpers in [1, 3] {
            for engine in [MergeEngine::Pread, MergeEngine::Uring] {
                let (bytes, done) = tree.outcome(&c, engine, helpers).unwrap();
                assert!(bytes == alone, "{helpers} helpers and {engine} write other bytes: {what}");
                helped += done;
            }
        }
    }
    assert!(helped > 100, "helpers did {helped} pieces");
}

#[test]
fn a_damaged_block_is_named_as_without_helpers() {
    for compression in [Lz4, Zstd, Snappy] {
        let mut cf = small_options();
        cf.compression = compression;
        let (tree, c) = job(cf, 5);
        let file = Arc::clone(&tree.version.levels[0].base[2]);
        let path = tree.ctx.dir.join(filename::table(file.number()));
        let whole = tree.ctx.means.fs.read_to_vec(&path).unwrap();
        let blocks = blocks_of(&tree.ctx, &file);
        for block in [0, blocks.len() / 2, blocks.len() - 1] {
            let mut bytes = whole.clone();
            bytes[blocks[block].offset as usize + 3] ^= 0x40;
            let mut damaged = tree.ctx.means.fs.create(&path, rockmill_io::WriteOptions::default()).unwrap();
            damaged.append(&bytes).unwrap();
            damaged.close().unwrap();
            let said: Vec<String> = [0, 1, 3]
                .into_iter()
                .flat_map(|helpers| [MergeEngine::Pread, MergeEngine::Uring].map(|engine| (engine, helpers)))
                .chain(kernel_is_there().then_some((MergeEngine::Kernel, 0)))
                .map(|(engine, helpers)| tree.outcome(&c, engine, helpers).unwrap_err().to_string())
                .collect();
            let place = format!("block at offset {} of {} bytes", blocks[block].offset, blocks[block].size);
            assert!(said[0].contains(&place) && said[0].contains(&path.display().to_string()), "{}", said[0]);
            assert!(said.iter().all(|s| *s == said[0]), "{said:#?}");
        }
        let names = tree.ctx.means.fs.list_dir(&tree.ctx.dir).unwrap();
        assert_eq!(names.len(), 4, "a failed job left tables: {names:?}");
    }
}
