//! Blocks that are passed on unchanged: in every engine, a job writes the same with and without this.

use rockmill_format::checksum::ChecksumType;
use rockmill_format::{InternalKey, SliceTransform};

use super::*;
use crate::compaction::merge::Merger;
use crate::compaction::merge::testing::VecRun;
use crate::compaction::resolve::Resolver;
use crate::compaction::spec::SpecRun;
use crate::options::{BlockBasedIndexType, DataBlockIndexType};

/// How a tree's L0 looks.
struct Shape {
    files: u64,
    entries: u64,
    /// Entries of a file within the key range of the next file.
    overlap: u64,
    /// One in this many entries is not a value, and has a second version.
    odd_one_in: u64,
}

/// A tree with L0 files whose keys ascend from file to file, and an L2 below all of them (none at the bottom).
fn rising(
    rng: &mut fastrand::Rng,
    (fs, dir): (Arc<dyn FileSystem>, PathBuf),
    cf: CfOptions,
    shape: &Shape,
    bottom: bool,
) -> Tree {
    let mut tree = Tree::new(context(fs, dir), cf);
    let key = |n: u64| format!("key{n:09}").into_bytes();
    let mut seq = 0;
    let mut put = |m: &mut Model, n: u64, t: ValueType, len: usize| {
        seq += 1;
        let value = if t == ValueType::Deletion { Vec::new() } else { format!("{seq:0len$}").into_bytes() };
        m.entries.push((key(n), seq, t, value));
    };
    if !bottom {
        let mut m = Model::default();
        put(&mut m, 0, ValueType::Value, 8);
        put(&mut m, shape.files * shape.entries + shape.overlap, ValueType::Value, 8);
        tree.flush(&[m]);
        for (from, to) in [(0, 1), (1, 2)] {
            let c = picked(&tree, from, to);
            tree.compact(&c);
        }
    }
    for file in 0..shape.files {
        let mut m = Model::default();
        for n in file * shape.entries..(file + 1) * shape.entries + shape.overlap {
            let odd = rng.u64(0..shape.odd_one_in) == 0;
            let kinds = [ValueType::Deletion, ValueType::Merge, ValueType::Value];
            let t = if odd { *rng.choice(&kinds).unwrap() } else { ValueType::Value };
            let len = rng.usize(1..60);
            put(&mut m, n, t, len);
            if odd {
                // A snapshot keeps both versions when the table is written.
                tree.snapshots.push(m.entries.last().unwrap().1);
                put(&mut m, n, ValueType::Value, 3);
            }
        }
        tree.flush(&[m]);
    }
    tree
}

fn picked(tree: &Tree, from: usize, to: usize) -> Compaction {
    let version = Arc::new(tree.version.clone());
    let none = RunningCompactions::new();
    match manual::pick(&version, &tree.cf, &none, from, to, None, None, u64::MAX) {
        ManualPick::Pick(c, _) => *c,
        _ => panic!("nothing picked"),
    }
}

/// The surviving entries of the inputs, from a merge that does not pass blocks.
fn survivors(tree: &Tree, c: &Compaction) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut plan = JobPlan::new(&tree.spec(c), &tree.host()).unwrap();
    let (tombstones, _) = Tombstones::gather(&mut plan, &tree.ctx).unwrap();
    let (rules, cmp) = (&plan.rules, &plan.rules.cmp);
    let run = |run: &SpecRun| {
        let entries = run.files.iter().flat_map(|f| contents_of(&tree.ctx.open_input(f).unwrap()).entries);
        let entries = entries.map(|(k, s, t, v)| (InternalKey::new(&k, s, t).as_bytes().to_vec(), v));
        VecRun::new(cmp, entries.collect())
    };
    let runs = plan.runs.iter().map(run).collect();
    let mut merger = Merger::new(runs, cmp.clone(), KeyPrefixes::new(cmp, None), None, None).unwrap();
    let never = AtomicBool::new(false);
    let mut resolver = Resolver::new(&mut merger, rules, &tombstones, [&never; 3]).unwrap();
    let mut out = Vec::new();
    while resolver.next_survivor().unwrap() {
        out.push((resolver.key().to_vec(), resolver.value().to_vec()));
    }
    out
}

/// Runs the job and compares its entries; returns its files and the number of passed blocks.
fn check_job(tree: &Tree, c: &Compaction, what: &str) -> (Vec<FileEntry>, u64) {
    let output = tree.run(c).unwrap();
    let mut entries = Vec::new();
    for f in &output.files {
        let f = Arc::new(FileMeta::new(f.clone(), Arc::default()));
        // Among other things, checks counts, sums, index and filter.
        tree.ctx.tables.table(&f).unwrap().verify().unwrap();
        for (k, s, t, v) in contents(&tree.ctx, &f).entries {
            assert!((f.entry.smallest_seqno..=f.entry.largest_seqno).contains(&s), "{what}: {f:?}");
            entries.push((InternalKey::new(&k, s, t).as_bytes().to_vec(), v));
        }
    }
    assert!(entries == survivors(tree, c), "{what}: other entries than without passing blocks");
    assert_eq!(output.stats.output_records, entries.len() as u64, "{what}");
    (output.files, output.stats.dropped.blocks_passed)
}

fn memory() -> (Arc<dyn FileSystem>, PathBuf) {
    let (fs, dir) = (MemFileSystem::new(), PathBuf::from("/db"));
    fs.create_dir(&dir, true).unwrap();
    (Arc::new(fs), dir)
}

fn random_options(rng: &mut fastrand::Rng) -> CfOptions {
    let mut cf = small_options();
    cf.num_levels = 7;
    cf.compression = *rng.choice(&[CompressionType::None, CompressionType::Lz4, CompressionType::Zstd]).unwrap();
    cf.target_file_size_base = *rng.choice(&[1500, 5000, 100_000]).unwrap();
    if rng.u8(0..3) == 0 {
        cf.prefix_extractor = Some(SliceTransform::create_fixed_prefix(rng.usize(3..11)));
    }
    let t = &mut cf.table;
    t.format_version = rng.u32(5..=7);
    t.checksum = *rng.choice(&[ChecksumType::Xxh3, ChecksumType::Crc32c, ChecksumType::None]).unwrap();
    t.block_size = *rng.choice(&[200, 700, 5000]).unwrap();
    t.block_restart_interval = *rng.choice(&[1, 4, 16]).unwrap();
    t.bloom_bits_per_key = if rng.bool() { 10.0 } else { 0.0 };
    if rng.bool() {
        t.index_type = BlockBasedIndexType::TwoLevelIndexSearch;
        t.metadata_block_size = 100;
        t.partition_filters = rng.bool();
    }
    cf
}

#[test]
fn blocks_pass_and_every_entry_is_what_it_would_be_without() {
    let (mut by_compression, mut by_version, mut helped) = ([0; 256], [0; 8], 0);
    for seed in 0..80 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let cf = random_options(&mut rng);
        let shape = Shape {
            files: rng.u64(1..6),
            entries: rng.u64(100..400),
            overlap: *rng.choice(&[0, 3, 100]).unwrap(),
            odd_one_in: *rng.choice(&[7, 20, 20, 100, 100_000]).unwrap(),
        };
        let mut tree = rising(&mut rng, memory(), cf, &shape, false);
        // Removed snapshots leave versions that are hidden from now on.
        tree.snapshots.retain(|_| rng.u8(0..4) == 0);
        let mut c = picked(&tree, 0, 1);
        let what = format!("seed {seed}");
        c.subcompactions_max = 1;
        let (alone, _) = tree.outcome(&c, MergeEngine::Pread, 0).unwrap();
        for (engine, helpers) in [(MergeEngine::Uring, 0), (MergeEngine::Pread, 2), (MergeEngine::Uring, 2)] {
            let (bytes, done) = tree.outcome(&c, engine, helpers).unwrap();
            assert!(bytes == alone, "{what}: {engine} with {helpers} helpers writes other bytes");
            helped += done;
        }
        if kernel_is_there() {
            for helpers in [0, 2] {
                let (bytes, _) = tree.outcome(&c, MergeEngine::Kernel, helpers).unwrap();
                assert!(bytes == alone, "{what}: kernel with {helpers} helpers writes other bytes");
            }
        }
        c.subcompactions_max = rng.usize(1..4);
        let passed = check_job(&tree, &c, &what).1;
        by_compression[tree.cf.compression as usize] += passed;
        by_version[tree.cf.table.format_version as usize] += passed;
    }
    for kind in [CompressionType::None, CompressionType::Lz4, CompressionType::Zstd] {
        assert!(by_compression[kind as usize] > 100, "{by_compression:?}");
    }
    assert!(helped > 100, "helpers did {helped} pieces");
    assert!(by_version[5..].iter().all(|&n| n > 100), "{by_version:?}");
}

/// Eight files of plain values that hardly overlap.
const PLAIN: Shape = Shape { files: 8, entries: 300, overlap: 2, odd_one_in: 1 << 40 };

#[test]
fn blocks_pass_only_into_tables_of_their_kind() {
    type Change = fn(&mut CfOptions);
    let passed = |change: Change| {
        let cf = CfOptions { target_file_size_base: 100_000, ..small_options() };
        let tree = &mut rising(&mut fastrand::Rng::with_seed(1), memory(), cf, &PLAIN, false);
        change(&mut tree.cf);
        let c = picked(tree, 0, 1);
        check_job(tree, &c, "").1
    };
    let all = passed(|_| ());
    // Of each file's sixty or so blocks, all from the tenth on at the latest, whatever comes before them.
    assert!(all > 320, "only {all} blocks passed");
    let not: [(&str, Change); 9] = [
        ("restart interval", |cf| cf.table.block_restart_interval = 2),
        ("format_version", |cf| cf.table.format_version = 6),
        ("checksum", |cf| cf.table.checksum = ChecksumType::Crc32c),
        ("hash index", |cf| cf.table.data_block_index_type = DataBlockIndexType::BinaryAndHash),
        ("larger blocks", |cf| cf.table.block_size = 1000),
        ("smaller blocks", |cf| cf.table.block_size = 100),
        ("compression", |cf| cf.compression = CompressionType::Lz4),
        ("files of a block each", |cf| cf.target_file_size_base = 1),
        ("a filter", |cf| {
            let mut options = crate::Options::default();
            options.set_compaction_filter("keep", |_, _, _| crate::compaction_filter::Decision::Keep);
            cf.compaction_filter = options.cf.compaction_filter.take();
        }),
    ];
    for (what, change) in not {
        assert_eq!(passed(change), 0, "{what}");
    }
}

#[test]
fn blocks_pass_at_the_bottom_once_their_sequence_numbers_are_0() {
    let tree = &mut rising(&mut fastrand::Rng::with_seed(1), memory(), small_options(), &PLAIN, true);
    for (from, passes) in [(0, false), (1, true)] {
        let mut c = picked(tree, from, from + 1);
        c.trivial_move = false;
        assert!(c.bottommost);
        let (files, passed) = check_job(tree, &c, "");
        assert_eq!(passed > 0, passes, "{passed} blocks passed from level {from}");
        tree.commit(&c, files);
    }
    tree.history.assert_same(&tree.all(), &[], "at the bottom");
}
