//! Programs of users: an order, a filter or a merge of operands in the kernel gives the tables that the same one gives
//! outside.

use rockmill_format::comparator::{FnComparator, ReverseBytewiseComparator};
use rockmill_kernel::MergeObject;

use super::*;
use crate::compaction::objects::JobRegistry;
use crate::compaction_filter::{
    CompactionFilter, CompactionFilterContext, CompactionFilterFactory, Decision, SharedFactory, SharedFilter,
};
use crate::merge_operator::{MergeOperands, MergeOperator, StringAppendOperator, UInt64AddOperator};

pub(super) const REVERSE: &[u8] = include_bytes!("../../../../../../rockmill-kernel/bpf/examples/reverse.bpf.o");
pub(super) const EXPIRE: &[u8] = include_bytes!("../../../../../../rockmill-kernel/bpf/examples/expire.bpf.o");
pub(super) const COUNTERS: &[u8] = include_bytes!("../../../../../../rockmill-kernel/bpf/examples/counters.bpf.o");
const BOTH: &[u8] = include_bytes!("../../../../../../rockmill-kernel/bpf/tests/both.bpf.o");
const LIAR: &[u8] = include_bytes!("../../../../../../rockmill-kernel/bpf/tests/liar.bpf.o");

/// What `examples/expire.bpf.c` does, as a factory of filters of the same name. Operands go that begin with `x`.
pub(super) struct Expire;

pub(super) struct ExpireBefore {
    second: u64,
}

impl CompactionFilterFactory for Expire {
    type Filter = ExpireBefore;

    fn create(&mut self, context: CompactionFilterContext) -> ExpireBefore {
        ExpireBefore { second: context.now_micros / 1_000_000 }
    }

    fn name(&self) -> &str {
        "rockmill.Expire"
    }
}

impl CompactionFilter for ExpireBefore {
    fn filter(&mut self, _: u32, _: &[u8], value: &[u8]) -> Decision {
        let expires = value.first_chunk::<8>().map_or(0, |b| u64::from_be_bytes(*b));
        if expires != 0 && expires <= self.second { Decision::Remove } else { Decision::Keep }
    }

    fn filter_merge_operand(&mut self, _: u32, _: &[u8], operand: &[u8]) -> Decision {
        if operand.first() == Some(&b'x') { Decision::Remove } else { Decision::Keep }
    }

    fn name(&self) -> &str {
        "an instance of rockmill.Expire"
    }
}

/// What `tests/both.bpf.c` does, and what it leaves to the store's filter: values are changed, and what is behind some
/// keys is skipped.
struct Marks;

impl CompactionFilter for Marks {
    fn filter(&mut self, _: u32, key: &[u8], value: &[u8]) -> Decision {
        match value {
            [b'x', ..] => Decision::Remove,
            [b'?', b'c', ..] => Decision::Change(b"changed".to_vec()),
            [b'?', b'p', ..] => Decision::Purge,
            [b'?', b's', ..] => Decision::RemoveAndSkipUntil([key, b"5"].concat()),
            _ => Decision::Keep,
        }
    }

    fn name(&self) -> &str {
        "test.Marks"
    }
}

/// What these tests call by name, for another process.
pub(in super::super) fn register(known: &mut JobRegistry) {
    known.comparators.extend([no_case(), liar()].map(|cmp| Arc::clone(cmp.user_comparator())));
    known.filters.push(SharedFilter::new(Marks));
    known.filter_factories.push(SharedFactory::new(Expire));
}

/// Orders as bytes do, under another name.
fn liar() -> InternalKeyComparator {
    InternalKeyComparator::new(Arc::new(FnComparator::new("test.Liar", Box::new(|a, b| a.cmp(b)))))
}

fn no_case() -> InternalKeyComparator {
    let compare = |a: &[u8], b: &[u8]| a.to_ascii_lowercase().cmp(&b.to_ascii_lowercase());
    InternalKeyComparator::new(Arc::new(FnComparator::new("test.NoCase", Box::new(compare))))
}

/// Where values end that the filters look at.
type Value<'a> = &'a dyn Fn(&mut fastrand::Rng) -> Vec<u8>;

/// An empty tree whose tables have this order.
fn tree_in(cmp: InternalKeyComparator, cf: CfOptions) -> Tree {
    let mut tree = empty(cf);
    tree.ctx.tables =
        Arc::new(Tables { fs: Arc::clone(&tree.ctx.means.fs), dir: tree.ctx.dir.clone(), cmp: cmp.clone() });
    tree.ctx.means.objects.cmp = cmp;
    tree.ctx.means.db.reproducible = true;
    Tree::new(tree.ctx, tree.cf)
}

/// Overlapping tables of every kind of entry in L0, some above others in L1 and L2, and snapshots.
fn filled(rng: &mut fastrand::Rng, cmp: &InternalKeyComparator, cf: CfOptions, value: Value<'_>) -> Tree {
    let mut tree = tree_in(cmp.clone(), cf);
    let (keys, mut seq) = (*rng.choice(&[30, 300, 3000]).unwrap(), 0);
    let rounds = rng.usize(3..8);
    for round in 0..rounds {
        let mut m = Model::default();
        let ranges = rng.u8(0..3) == 0;
        for _ in 0..rng.usize(1..400) {
            seq += 1;
            let kinds = [ValueType::Value, ValueType::Value, ValueType::Value, ValueType::Deletion, ValueType::Merge];
            let t = if rng.u8(0..30) == 0 { ValueType::SingleDeletion } else { *rng.choice(&kinds).unwrap() };
            let value = if matches!(t, ValueType::Value | ValueType::Merge) { value(rng) } else { vec![] };
            let key = |rng: &mut fastrand::Rng| {
                let prefix = *rng.choice(&["key", "Key", "kEY"]).unwrap();
                format!("{prefix}{:05}", rng.u32(0..keys)).into_bytes()
            };
            if ranges && rng.u8(0..60) == 0 {
                let (a, b) = (key(rng), key(rng));
                match cmp.compare_user(&a, &b) {
                    std::cmp::Ordering::Less => m.ranges.push((a, b, seq)),
                    std::cmp::Ordering::Greater => m.ranges.push((b, a, seq)),
                    std::cmp::Ordering::Equal => {}
                }
            } else {
                m.entries.push((key(rng), seq, t, value));
            }
            if rng.u8(0..40) == 0 {
                tree.snapshots.push(seq);
            }
        }
        tree.flush(&[m]);
        if round + 2 < rounds && rng.bool() {
            let c = whole(&tree, 0);
            tree.compact(&c);
        }
        if round + 3 < rounds && rng.bool() && !tree.version.levels[1].is_empty() {
            let c = whole(&tree, 1);
            tree.compact(&c);
        }
    }
    tree.snapshots.retain(|_| rng.u8(0..6) == 0);
    tree
}

/// All of a level into the next.
fn whole(tree: &Tree, level: usize) -> Compaction {
    let version = Arc::new(tree.version.clone());
    let none = RunningCompactions::new();
    match manual::pick(&version, &tree.cf, &none, level, level + 1, None, None, u64::MAX) {
        ManualPick::Pick(c, _) => Compaction { trivial_move: false, ..*c },
        _ => panic!("nothing picked"),
    }
}

fn object(bytes: &[u8]) -> Option<Arc<MergeObject>> {
    Some(Arc::new(MergeObject::read("own.bpf.o", bytes).unwrap()))
}

/// The object with another name for its comparator.
fn renamed(object: &[u8], from: &str, to: &str) -> Vec<u8> {
    let at = object.windows(from.len()).position(|w| w == from.as_bytes()).unwrap();
    let mut new = object.to_vec();
    new[at..at + from.len()].fill(0);
    new[at..at + to.len()].copy_from_slice(to.as_bytes());
    new
}

/// The engine's tables are those of `pread`, which no part is handed to; what both count.
fn same_as_pread(tree: &Tree, c: &Compaction, what: &str) -> (JobStats, JobStats) {
    let (pread, _) = counted(tree, c, MergeEngine::Pread);
    let (kernel, engines) = counted(tree, c, MergeEngine::Kernel);
    assert_eq!(engines.stats.handed_over(), (0, None), "{what}");
    assert_eq!(engines.stats.parts(MergeEngine::Kernel), kernel.subcompactions, "{what}");
    assert_eq!(kernel.input_records, pread.input_records, "{what}");
    let (bytes, _) = tree.outcome(c, MergeEngine::Kernel, 0).unwrap();
    assert!(bytes == tree.outcome(c, MergeEngine::Pread, 0).unwrap().0, "{what}: other bytes");
    (pread, kernel)
}

fn options(rng: &mut fastrand::Rng) -> CfOptions {
    let mut cf = small_options();
    cf.compression = if rng.bool() { CompressionType::Lz4 } else { CompressionType::None };
    cf.merge_operator = rng.bool().then(|| Arc::new(StringAppendOperator::default()) as _);
    cf
}

#[test]
fn a_filter_in_the_kernel_gives_the_tables_of_its_twin() {
    if !kernel_is_there() {
        return;
    }
    // Around the time of the job's clock, in seconds.
    let value = |rng: &mut fastrand::Rng| {
        let expires = *rng.choice(&[0, 1, 1_699_999_999, 1_700_000_000, 1_700_000_001, u64::MAX]).unwrap();
        let text: &[u8] = if rng.bool() { b"" } else { b"and what is behind it" };
        match rng.u8(0..8) {
            0 => vec![b'x'; rng.usize(0..8)],
            _ => [&expires.to_be_bytes(), text].concat(),
        }
    };
    let (mut filtered, mut hidden, mut obsolete) = (0, 0, 0);
    for seed in 0..30 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let cf = options(&mut rng);
        let mut tree = filled(&mut rng, &InternalKeyComparator::default(), cf, &value);
        tree.cf.compaction_filter_factory = Some(SharedFactory::new(Expire));
        tree.ctx.means.engines.kernel.set_object(object(EXPIRE));
        let mut c = whole(&tree, 0);
        c.subcompactions_max = rng.usize(1..4);
        let (pread, kernel) = same_as_pread(&tree, &c, &format!("seed {seed}"));
        assert_eq!(kernel.dropped, pread.dropped, "seed {seed}");
        filtered += kernel.dropped.filtered;
        hidden += kernel.dropped.hidden;
        obsolete += kernel.dropped.obsolete;
    }
    assert!(filtered > 1000 && hidden > 1000 && obsolete > 100, "{filtered} filtered, {hidden} hidden, {obsolete}");
}

/// [`UInt64AddOperator`] without a partial merge.
struct Apart;

impl MergeOperator for Apart {
    fn name(&self) -> &str {
        UInt64AddOperator.name()
    }

    fn full_merge(&self, key: &[u8], existing: Option<&[u8]>, operands: &MergeOperands<'_>) -> Option<Vec<u8>> {
        UInt64AddOperator.full_merge(key, existing, operands)
    }
}

/// Numbers, and now and then something that is none.
fn number(rng: &mut fastrand::Rng) -> Vec<u8> {
    match rng.u8(0..10) {
        0 => vec![b'x'; rng.usize(0..12)],
        1 => u64::MAX.to_le_bytes().to_vec(),
        _ => rng.u64(0..1000).to_le_bytes().to_vec(),
    }
}

#[test]
fn operands_that_the_kernel_combines_give_the_tables_of_their_twin() {
    if !kernel_is_there() {
        return;
    }
    let (mut merged, mut differ) = (0, 0);
    for seed in 0..40 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut cf = options(&mut rng);
        cf.merge_operator = Some(Arc::new(UInt64AddOperator));
        let mut tree = filled(&mut rng, &InternalKeyComparator::default(), cf, &number);
        tree.ctx.means.engines.kernel.set_object(object(COUNTERS));
        let mut c = whole(&tree, 0);
        c.subcompactions_max = rng.usize(1..4);
        let (pread, kernel) = same_as_pread(&tree, &c, &format!("seed {seed}"));
        assert_eq!(kernel.dropped, pread.dropped, "seed {seed}");
        merged += kernel.dropped.merged;
        // It is the program that sums: an operator of this name that leaves operands apart leaves more of them.
        tree.cf.merge_operator = Some(Arc::new(Apart));
        let (apart, _) = counted(&tree, &c, MergeEngine::Pread);
        let (kernel, _) = counted(&tree, &c, MergeEngine::Kernel);
        assert!(kernel.output_records <= apart.output_records, "seed {seed}");
        differ += u32::from(kernel.output_records < apart.output_records);
    }
    assert!(merged > 1000 && differ > 5, "{merged} merged, {differ} times by the program");
}

#[test]
fn operands_of_another_operator_are_merged_outside_and_the_log_says_so() {
    if !kernel_is_there() {
        return;
    }
    let mut rng = fastrand::Rng::with_seed(8);
    let mut tree = filled(&mut rng, &InternalKeyComparator::default(), small_options(), &number);
    tree.ctx.means.engines.kernel.set_object(object(COUNTERS));
    let c = whole(&tree, 0);
    let (pread, kernel) = same_as_pread(&tree, &c, "no operator");
    assert_eq!((kernel.dropped, kernel.dropped.merged), (pread.dropped, 0));
    tree.cf.merge_operator = Some(Arc::new(StringAppendOperator::default()));
    let (pread, kernel) = same_as_pread(&tree, &c, "another operator");
    assert_eq!(kernel.dropped, pread.dropped);
    // A filter may be asked about each operand.
    tree.cf.merge_operator = Some(Arc::new(UInt64AddOperator));
    tree.cf.compaction_filter_factory = Some(SharedFactory::new(Expire));
    let (pread, kernel) = same_as_pread(&tree, &c, "a filter beside it");
    assert_eq!(kernel.dropped, pread.dropped);
}

#[test]
fn a_filter_of_another_name_is_asked_outside_and_the_log_says_so() {
    if !kernel_is_there() {
        return;
    }
    let mut rng = fastrand::Rng::with_seed(6);
    let value = |rng: &mut fastrand::Rng| rng.choice([b"x", b"y"]).unwrap().to_vec();
    let mut tree = filled(&mut rng, &InternalKeyComparator::default(), small_options(), &value);
    tree.ctx.means.engines.kernel.set_object(object(EXPIRE));
    let c = whole(&tree, 0);
    let (pread, kernel) = same_as_pread(&tree, &c, "no filter");
    assert_eq!((kernel.dropped, kernel.dropped.filtered), (pread.dropped, 0));
    tree.cf.compaction_filter = Some(SharedFilter::new(Marks));
    let (pread, kernel) = same_as_pread(&tree, &c, "another filter");
    assert_eq!(kernel.dropped, pread.dropped);
    assert!(kernel.dropped.filtered > 10, "{}", kernel.dropped.filtered);
}

#[test]
fn an_order_in_the_kernel_gives_the_tables_of_its_twin() {
    if !kernel_is_there() {
        return;
    }
    let value = |rng: &mut fastrand::Rng| vec![b'v'; rng.usize(0..80)];
    let (mut parts, mut hidden) = (0, 0);
    for seed in 0..30 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let cf = options(&mut rng);
        let reverse = InternalKeyComparator::new(Arc::new(ReverseBytewiseComparator));
        let tree = filled(&mut rng, &reverse, cf, &value);
        tree.ctx.means.engines.kernel.set_object(object(REVERSE));
        let mut c = whole(&tree, 0);
        c.subcompactions_max = rng.usize(1..5);
        let (pread, kernel) = same_as_pread(&tree, &c, &format!("seed {seed}"));
        assert_eq!(kernel.dropped, pread.dropped, "seed {seed}");
        parts += kernel.subcompactions;
        hidden += kernel.dropped.hidden;
    }
    assert!(parts > 40 && hidden > 1000, "{parts} parts, {hidden} hidden");
}

/// A block of one entry, which resolution does not take whole, stands before a block that begins with an older version.
#[test]
fn older_versions_behind_a_block_of_one_entry_are_hidden() {
    if !kernel_is_there() {
        return;
    }
    for newer in [ValueType::Value, ValueType::Deletion] {
        let reverse = InternalKeyComparator::new(Arc::new(ReverseBytewiseComparator));
        let cf = CfOptions { target_file_size_base: 64 << 20, ..small_options() };
        let mut tree = tree_in(reverse, cf);
        tree.snapshots = vec![20];
        let mut m = Model::default();
        let key = |n: u64| format!("key{n:05}").into_bytes();
        for n in 0..20 {
            m.entries.push((key(n), n + 1, ValueType::Value, vec![b'v'; 30_000]));
            if n % 3 == 0 {
                let value = if newer == ValueType::Value { vec![b'w'; 30_000] } else { Vec::new() };
                m.entries.push((key(n), 40 + n, newer, value));
            }
        }
        tree.flush(&[m]);
        let c = whole(&tree, 0);
        tree.compact(&c);
        tree.snapshots.clear();
        tree.ctx.means.engines.kernel.set_object(object(REVERSE));
        let (pread, kernel) = same_as_pread(&tree, &whole(&tree, 1), &format!("{newer:?}"));
        let left = if newer == ValueType::Value { 20 } else { 13 };
        assert_eq!((pread.output_records, kernel.output_records), (left, left), "{newer:?}");
    }
}

/// Keys whose bytes differ are the same, and the filter leaves some values to its twin, which does with them what a
/// program cannot.
#[test]
fn an_order_and_a_filter_in_one_program_give_the_tables_of_their_twins() {
    if !kernel_is_there() {
        return;
    }
    let value = |rng: &mut fastrand::Rng| rng.choice(["", "x", "x2", "v", "w", "?", "?c", "?p", "?s"]).unwrap().into();
    let mut filtered = 0;
    for seed in 0..40 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let cf = options(&mut rng);
        let mut tree = filled(&mut rng, &no_case(), cf, &value);
        tree.cf.compaction_filter = Some(SharedFilter::new(Marks));
        tree.ctx.means.engines.kernel.set_object(object(BOTH));
        // Those of L1 are all left to the twin.
        let level = usize::from(rng.bool() && !tree.version.levels[1].is_empty());
        let mut c = whole(&tree, level);
        c.subcompactions_max = rng.usize(1..4);
        let (pread, kernel) = same_as_pread(&tree, &c, &format!("seed {seed}"));
        // What is dropped among what is skipped counts as dropped by the program, as filtered without it.
        assert_eq!(kernel.output_records, pread.output_records, "seed {seed}");
        filtered += kernel.dropped.filtered;
    }
    assert!(filtered > 500, "{filtered} filtered");
}

#[test]
fn an_order_that_is_not_the_comparators_is_found_and_another_engine_merges() {
    if !kernel_is_there() {
        return;
    }
    let value = |rng: &mut fastrand::Rng| vec![b'v'; rng.usize(0..20)];
    let wrong = renamed(REVERSE, "rocksdb.ReverseBytewiseComparator", "test.NoCase");
    let cases = [
        (no_case(), wrong, "does not order as test.NoCase does: it has key"),
        (liar(), LIAR.to_vec(), "an older version before a newer one"),
        (no_case(), REVERSE.to_vec(), "test.NoCase, where the program own.bpf.o has that of rocksdb.Reverse"),
        (InternalKeyComparator::default(), REVERSE.to_vec(), "keys in the order of leveldb.BytewiseComparator"),
        (no_case(), EXPIRE.to_vec(), "keys in the order of test.NoCase"),
    ];
    for (i, (cmp, program, reason)) in cases.into_iter().enumerate() {
        let mut said = Vec::new();
        for seed in 0..4 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut tree = filled(&mut rng, &cmp, small_options(), &value);
            if i == 1 {
                tree.snapshots.clear(); // so that older versions are dropped
            }
            tree.ctx.means.engines.kernel.set_object(object(&program));
            let mut c = whole(&tree, 0);
            c.subcompactions_max = 1 + 2 * (seed as usize % 2);
            let (pread, _) = counted(&tree, &c, MergeEngine::Pread);
            let (kernel, engines) = counted(&tree, &c, MergeEngine::Kernel);
            said.extend(engines.stats.handed_over().1);
            assert_eq!((kernel.dropped, kernel.input_records), (pread.dropped, pread.input_records), "{reason}");
        }
        let as_said = said.iter().filter(|s| s.contains(reason)).count();
        assert!(as_said == if i == 1 { as_said.max(1) } else { 4 }, "{reason}: {said:?}");
    }
}
