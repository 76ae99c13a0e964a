//! The driver `loop`, whose program submits the job's reads and writes.

use std::path::Path;

use rockmill_io::ring::Tamper;
use rockmill_io::{CountingFileSystem, WriteOptions};

use super::*;
use crate::compaction::engine::{self, RingUse};
use crate::version::TableSource;

/// False if the driver `loop` or rings are missing; reports that.
fn is_there(what: &str) -> bool {
    let rings = PosixFileSystem::default().batch_probe();
    let missing = match crate::compaction::probe_kernel_engine(KernelDriver::Loop) {
        Err(e) => Needs::KernelLoop.because(e),
        Ok(()) if !rings.available => Needs::Uring.because(rings.reason),
        Ok(()) => return true,
    };
    skip(what, &missing);
    false
}

/// L0 tables with this many values each, whose keys interleave.
fn tree(dir: &Path, tables: u64, values: u64, cf: CfOptions) -> (Tree, Compaction, CountingFileSystem) {
    let fs = CountingFileSystem::new(Arc::new(PosixFileSystem::default()));
    let mut ctx = context(Arc::new(fs.clone()), dir.to_owned());
    ctx.means.db.kernel_driver = KernelDriver::Loop;
    ctx.means.db.compaction_helper_threads = 0;
    let mut tree = Tree::new(ctx, cf);
    tree.elsewhere = false; // reads and writes are counted
    let mut rng = fastrand::Rng::with_seed(tables);
    for run in 0..tables {
        let mut m = Model::default();
        for i in 0..values {
            let mut value: Vec<u8> = (0..500).map(|_| rng.u8(..)).collect();
            value.resize(1000, b'v');
            m.entries.push((format!("{:08}", i * tables + run).into_bytes(), 1 + run, ValueType::Value, value));
        }
        tree.flush(&[m]);
    }
    let c = whole_level(&tree);
    (tree, c, fs)
}

fn plain_options(compression: CompressionType) -> CfOptions {
    let mut cf = CfOptions { compression, ..CfOptions::default() };
    cf.compression_per_level.clear();
    cf
}

#[test]
fn a_ring_is_entered_for_calls_of_the_program_alone() {
    if !is_there("reads and writes handed over by the merge program") {
        return;
    }
    for (tables, values, compression, helpers) in [
        (4, 2500, CompressionType::None, 0),
        (9, 1000, CompressionType::None, 0),
        (3, 2500, CompressionType::Lz4, 0),
        (3, 2500, CompressionType::Lz4, 2),
    ] {
        let what = format!("{tables} tables, {compression:?}, {helpers} helpers");
        let dir = tempfile::tempdir().unwrap();
        let (mut tree, c, fs) = tree(dir.path(), tables, values, plain_options(compression));
        let (pread, _) = tree.outcome(&c, MergeEngine::Pread, 0).unwrap();
        tree.ctx.means.db.compaction_helper_threads = helpers;
        assert!(tree.outcome(&c, MergeEngine::Kernel, helpers).unwrap().0 == pread, "{what}: other bytes");
        let before = fs.counts();
        let (stats, engines) = counted(&tree, &c, MergeEngine::Kernel);
        let io = fs.counts() - before;
        let (calls, operations) = engines.kernel.ring_calls();
        println!("{what}: {} enters, {calls} calls, {operations} reads and writes", io.ring_enters);
        assert_eq!((engines.stats.handed_over(), engines.stats.parts(MergeEngine::Kernel)), ((0, None), 1), "{what}");
        // All reads and nearly all writes, including those after the last entry.
        assert!(operations >= io.ring_reads + io.ring_writes, "{what}: {operations} of {io:?}");
        assert!(io.ring_reads > 4 && io.ring_writes > 2, "{what}: {io:?}");
        // One call per output buffer. Other waits are for the table's end, and for blocks that are decompressed ahead
        // of the merge.
        let others = if helpers > 0 { stats.input_bytes >> 18 } else { 0 };
        assert!(io.ring_enters <= calls + 3 + others, "{what}: {} enters for {calls} calls", io.ring_enters);
        assert!(calls <= 4 + ((tables * values * 1000) >> 19), "{what}: {calls} calls");
    }
}

/// With a damaged byte of a block, a truncated file, a failing device, or a short or late completion, the messages are
/// those of `uring`. No data of the block is returned, and nothing is left behind.
#[test]
fn reads_handed_over_by_the_program_fail_as_those_of_uring() {
    if !is_there("failing reads handed over by the merge program") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (mut tree, c, _) = tree(dir.path(), 3, 1500, plain_options(CompressionType::None));
    // Both bypass the page cache: `uring` reads cached data in shorter pieces, and an error names the piece.
    tree.ctx.means.db.use_direct_reads = true;
    let (whole, _) = tree.outcome(&c, MergeEngine::Pread, 0).unwrap();
    let file = Arc::clone(&tree.version.levels[0].base[1]);
    let path = tree.ctx.dir.join(filename::table(file.number()));
    let bytes = tree.ctx.means.fs.read_to_vec(&path).unwrap();
    let open = tree.ctx.tables.table(&file).unwrap();
    let blocks = blocks_of(&tree.ctx, &file);
    struct Opened(Arc<dyn TableSource>, u64, Arc<Table>);
    impl TableSource for Opened {
        fn table(&self, file: &Arc<FileMeta>) -> Result<Arc<Table>> {
            if file.number() == self.1 { Ok(Arc::clone(&self.2)) } else { self.0.table(file) }
        }
    }
    // Already open, and its index read, when the file is truncated.
    tree.ctx.tables = Arc::new(Opened(Arc::clone(&tree.ctx.tables), file.number(), open));
    let put = |tree: &Tree, bytes: &[u8]| {
        let mut out = tree.ctx.means.fs.create(&path, WriteOptions::default()).unwrap();
        out.append(bytes).unwrap();
        out.close().unwrap();
    };
    let tables = || std::fs::read_dir(dir.path()).unwrap().count();
    let there = tables();
    let mut rng = fastrand::Rng::with_seed(9);
    for round in 0..12 {
        let mut damaged = bytes.clone();
        let block = blocks[rng.usize(..blocks.len())];
        let words = if round % 4 == 3 {
            damaged.truncate(block.offset as usize + 3);
            "were asked for"
        } else {
            // In the block's contents, restart points or trailer.
            damaged[block.offset as usize + rng.usize(..block.size as usize + 5)] ^= 1 << rng.u32(..8);
            ""
        };
        put(&tree, &damaged);
        let said = |engine| tree.outcome(&c, engine, 0).map(drop).unwrap_err().to_string();
        let (uring, kernel) = (said(MergeEngine::Uring), said(MergeEngine::Kernel));
        assert_eq!(kernel, uring, "round {round}");
        assert!(kernel.contains(&path.display().to_string()) && kernel.contains(words), "round {round}: {kernel}");
        assert_eq!(tables(), there, "round {round}: tables were left");
    }
    put(&tree, &bytes);
    // Failures of the ring: a failing device is an error; everything else changes no byte.
    for round in 0..8 {
        let failing = round % 4 == 0;
        let said = |engine| {
            let mut ctx = tree.ctx.clone();
            (ctx.means.db.merge_engine, ctx.means.engines) = (engine, Arc::default());
            let next = AtomicU64::new(1 << 20);
            ctx.new_file_number = Arc::new(move || Ok(next.fetch_add(1, Ordering::Relaxed)));
            let ring = engine::ring(&ctx, RingUse { runs: 3, ..RingUse::default() }).expect("a ring");
            let (path, mut rng) = (path.clone(), fastrand::Rng::with_seed(round));
            ring.set_shim(Box::new(move |op| match rng.u8(0..6) {
                _ if failing => {
                    let hit = op.read && op.path == path && op.offset > 300_000;
                    if hit { Tamper::Refuse(libc::EIO) } else { Tamper::No }
                }
                0 => Tamper::Short(rng.usize(1..op.len.max(2))),
                1 => Tamper::FailAfter(if op.read { libc::EAGAIN } else { libc::EINTR }),
                2 => Tamper::Late(rng.u32(1..5)),
                _ => Tamper::No,
            }))
            .unwrap();
            drop(ring); // the job's thread gets it again
            let output = tree.run_in(&c, &ctx).map_err(|e| e.to_string())?;
            assert_eq!(
                (ctx.means.engines.stats.parts(engine), ctx.means.engines.stats.handed_over()),
                (1, (0, None)),
                "round {round}"
            );
            assert_eq!(engine == MergeEngine::Kernel, ctx.means.engines.kernel.ring_calls().1 > 0, "round {round}");
            let paths = output.files.iter().map(|f| ctx.dir.join(filename::table(f.number)));
            let read = |path: PathBuf| {
                let bytes = ctx.means.fs.read_to_vec(&path).unwrap();
                ctx.means.fs.remove(&path).unwrap();
                bytes
            };
            Ok::<_, String>(paths.map(read).collect::<Vec<_>>())
        };
        let (uring, kernel) = (said(MergeEngine::Uring), said(MergeEngine::Kernel));
        assert_eq!(kernel.is_err(), failing, "round {round}");
        match &kernel {
            Err(e) => assert!(uring.as_ref().err() == Some(e) && e.contains(&path.display().to_string()), "{e}"),
            Ok(kernel) => assert!(kernel == &whole, "round {round}: other bytes"),
        }
        assert_eq!(tables(), there, "round {round}: tables were left");
    }
}

/// If the kernel does not perform the reads and writes, the program runs in a separate ring, and the log says so.
#[test]
fn without_a_ring_the_program_runs_apart() {
    if !is_there("a merge program beside plain calls") {
        return;
    }
    let mut rng = fastrand::Rng::with_seed(4);
    let (mut tree, c) = mixed(&mut rng, small_options(), 3, 3000);
    tree.ctx.means.db.kernel_driver = KernelDriver::Loop;
    let (pread, _) = tree.outcome(&c, MergeEngine::Pread, 0).unwrap();
    assert!(tree.outcome(&c, MergeEngine::Kernel, 0).unwrap().0 == pread, "other bytes");
    let (_, engines) = counted(&tree, &c, MergeEngine::Kernel);
    assert_eq!((engines.stats.parts(MergeEngine::Kernel), engines.kernel.ring_calls()), (1, (0, 0)));
}
