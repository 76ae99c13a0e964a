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
pub(super) const SUMS: &[u8] = include_bytes!("../../../../../../rockmill-kernel/bpf/examples/sums.bpf.o");
const IDLE: &[u8] = include_bytes!("../../../../../../rockmill-kernel/bpf/tests/idle.bpf.o");
const UNMERGED: &[u8] = include_bytes!("../../../../../../rockmill-kernel/bpf/tests/unmerged.bpf.o");
const ALL: &[u8] = include_bytes!("../../../../../../rockmill-kernel/bpf/tests/all.bpf.o");
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

/// A factory of that name whose filters have another setting: values stay for a day more.
struct ExpireLater;

impl CompactionFilterFactory for ExpireLater {
    type Filter = ExpireBefore;

    fn create(&mut self, context: CompactionFilterContext) -> ExpireBefore {
        ExpireBefore { second: context.now_micros / 1_000_000 - 86_400 }
    }

    fn name(&self) -> &str {
        "rockmill.Expire"
    }

    fn option_text(&self) -> String {
        "later=1d".to_owned()
    }
}

/// What `tests/all.bpf.c` does, and what it leaves to the store's filter: values are changed, and what follows some
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
    known.filter_factories.push(SharedFactory::new(ExpireLater));
    known.merge_operators.push(Arc::new(Apart));
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

/// What is written to a tree.
struct Mix<'a> {
    /// How many keys there are.
    keys: &'a [u32],
    kinds: &'a [ValueType],
    /// One flush in as many has range tombstones.
    ranges: u8,
    /// One write in as many is a single delete.
    single_deletions: u8,
    /// One snapshot in as many stays.
    snapshots: u8,
}

const USUAL: Mix<'_> = Mix {
    keys: &[30, 300, 3000],
    kinds: &[ValueType::Value, ValueType::Value, ValueType::Value, ValueType::Deletion, ValueType::Merge],
    ranges: 3,
    single_deletions: 30,
    snapshots: 6,
};

/// Many operands of few keys, and whatever may end their row.
const OPERANDS: Mix<'_> = Mix {
    keys: &[5, 30, 100],
    kinds: &[ValueType::Merge, ValueType::Merge, ValueType::Merge, ValueType::Value, ValueType::Deletion],
    ranges: 8,
    single_deletions: 15,
    snapshots: 6,
};

/// Overlapping tables of every kind of entry in L0, some above others in L1 and L2, and snapshots.
fn filled(rng: &mut fastrand::Rng, cmp: &InternalKeyComparator, cf: CfOptions, value: Value<'_>) -> Tree {
    filled_with(rng, cmp, cf, value, &USUAL)
}

fn filled_with(
    rng: &mut fastrand::Rng,
    cmp: &InternalKeyComparator,
    cf: CfOptions,
    value: Value<'_>,
    mix: &Mix<'_>,
) -> Tree {
    let mut tree = tree_in(cmp.clone(), cf);
    let (keys, mut seq) = (*rng.choice(mix.keys).unwrap(), 0);
    let rounds = rng.usize(3..8);
    for round in 0..rounds {
        let mut m = Model::default();
        let ranges = rng.u8(0..mix.ranges) == 0;
        for _ in 0..rng.usize(1..400) {
            seq += 1;
            let single = rng.u8(0..mix.single_deletions) == 0;
            let t = if single { ValueType::SingleDeletion } else { *rng.choice(mix.kinds).unwrap() };
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
    tree.snapshots.retain(|_| rng.u8(0..mix.snapshots) == 0);
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

/// [`UInt64AddOperator`] without a partial merge, which it says: with the same text it would be taken for that one by
/// programs and by other processes.
struct Apart;

impl MergeOperator for Apart {
    fn name(&self) -> &str {
        UInt64AddOperator.name()
    }

    fn option_text(&self) -> String {
        "{id=UInt64AddOperator;partial=false;}".to_owned()
    }

    fn full_merge(&self, key: &[u8], existing: Option<&[u8]>, operands: &MergeOperands<'_>) -> Option<Vec<u8>> {
        UInt64AddOperator.full_merge(key, existing, operands)
    }
}

/// An operator, and how many operands it was given.
struct Counting {
    operator: Arc<dyn MergeOperator>,
    operands: AtomicU64,
}

impl MergeOperator for Counting {
    fn name(&self) -> &str {
        self.operator.name()
    }

    fn option_text(&self) -> String {
        self.operator.option_text()
    }

    fn full_merge(&self, key: &[u8], existing: Option<&[u8]>, operands: &MergeOperands<'_>) -> Option<Vec<u8>> {
        self.operands.fetch_add(operands.len() as u64, Ordering::Relaxed);
        self.operator.full_merge(key, existing, operands)
    }

    fn partial_merge(&self, key: &[u8], operands: &MergeOperands<'_>) -> Option<Vec<u8>> {
        self.operands.fetch_add(operands.len() as u64, Ordering::Relaxed);
        self.operator.partial_merge(key, operands)
    }
}

/// How many operands the tree's operator is given in a job.
fn operands_merged_outside(tree: &mut Tree, c: &Compaction, engine: MergeEngine) -> u64 {
    let operator = tree.cf.merge_operator.clone().unwrap();
    let counting = Arc::new(Counting { operator: Arc::clone(&operator), operands: AtomicU64::new(0) });
    tree.cf.merge_operator = Some(Arc::clone(&counting) as _);
    let elsewhere = std::mem::replace(&mut tree.elsewhere, false);
    counted(tree, c, engine);
    (tree.elsewhere, tree.cf.merge_operator) = (elsewhere, Some(operator));
    counting.operands.load(Ordering::Relaxed)
}

/// Jobs over trees full of operands, of all kinds: with snapshots, single deletes and range tombstones, above other
/// levels and at the bottom, some with a filter.
struct OperandJobs<'a> {
    cmp: InternalKeyComparator,
    program: &'a [u8],
    operator: Arc<dyn MergeOperator>,
    value: Value<'a>,
    /// Sets a filter.
    filter: &'a dyn Fn(&mut CfOptions),
}

impl OperandJobs<'_> {
    fn give_the_tables_of_pread(&self) {
        let (mut merged, mut combined) = (0, 0);
        // Jobs with range tombstones, with a filter, with neither; at the bottom, above; with snapshots; of L1.
        let mut seen = [0; 7];
        for seed in 0..60 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut cf = options(&mut rng);
            cf.merge_operator = Some(Arc::clone(&self.operator));
            let mut tree = filled_with(&mut rng, &self.cmp, cf, self.value, &OPERANDS);
            tree.ctx.means.engines.kernel.set_object(object(self.program));
            let filtered = rng.u8(0..4) == 0;
            if filtered {
                (self.filter)(&mut tree.cf);
            }
            let level = usize::from(rng.bool() && !tree.version.levels[1].is_empty());
            let mut c = whole(&tree, level);
            c.subcompactions_max = rng.usize(1..4);
            let what = format!("seed {seed}");
            let (pread, kernel) = same_as_pread(&tree, &c, &what);
            assert_eq!(kernel.dropped, pread.dropped, "{what}");
            merged += kernel.dropped.merged;
            let ranges = c.input_files().any(|f| !contents(&tree.ctx, f).ranges.is_empty());
            let bottom = tree.version.levels[level + 2..].iter().all(|files| files.is_empty());
            let plain = !ranges && !filtered;
            let is = [ranges, filtered, plain, bottom, !bottom, !tree.snapshots.is_empty(), level == 1];
            seen.iter_mut().zip(is).for_each(|(seen, is)| *seen += u32::from(is));
            // What the program combined, the operator is not given.
            let outside = MERGERS.map(|engine| operands_merged_outside(&mut tree, &c, engine));
            assert!(if plain { outside[1] <= outside[0] } else { outside[1] == outside[0] }, "{what}: {outside:?}");
            combined += outside[0] - outside[1];
        }
        assert!(merged > 1000 && combined > 200, "{merged} merged, {combined} of them by the program");
        assert!(seen.iter().all(|n| *n >= 5), "{seen:?}");
    }
}

const MERGERS: [MergeEngine; 2] = [MergeEngine::Pread, MergeEngine::Kernel];

/// Numbers, and now and then something that is none.
fn number(rng: &mut fastrand::Rng) -> Vec<u8> {
    match rng.u8(0..10) {
        0 => vec![b'x'; rng.usize(0..12)],
        1 => u64::MAX.to_le_bytes().to_vec(),
        _ => rng.u64(0..1000).to_le_bytes().to_vec(),
    }
}

/// Words, some of which the filter [`Marks`] removes, and of which two or three are too long for a program.
fn word(rng: &mut fastrand::Rng) -> Vec<u8> {
    let longest = *rng.choice(&[1, 5, 40]).unwrap();
    (0..rng.usize(0..=longest)).map(|_| rng.lowercase() as u8).collect()
}

#[test]
fn operands_that_the_kernel_combines_give_the_tables_of_their_twin() {
    if !kernel_is_there() {
        return;
    }
    let jobs = OperandJobs {
        cmp: InternalKeyComparator::default(),
        program: COUNTERS,
        operator: Arc::new(UInt64AddOperator),
        value: &number,
        filter: &|cf: &mut CfOptions| cf.compaction_filter_factory = Some(SharedFactory::new(Expire)),
    };
    jobs.give_the_tables_of_pread();
}

/// The whole merge replaced: a loop that sums operands and the value below them.
#[test]
fn a_merge_loop_of_its_own_gives_the_tables_of_its_twin() {
    if !kernel_is_there() {
        return;
    }
    let jobs = OperandJobs {
        cmp: InternalKeyComparator::default(),
        program: SUMS,
        operator: Arc::new(UInt64AddOperator),
        value: &number,
        filter: &|cf: &mut CfOptions| cf.compaction_filter_factory = Some(SharedFactory::new(Expire)),
    };
    jobs.give_the_tables_of_pread();
}

/// Loops that give their runs one after another, end before a run does, or never end: no table has what they made.
#[test]
fn what_a_merge_loop_of_its_own_does_wrong_is_in_no_table() {
    if !kernel_is_there() {
        return;
    }
    let mut reasons = Vec::new();
    for seed in 0..10 {
        for program in [UNMERGED, IDLE] {
            let mut rng = fastrand::Rng::with_seed(seed);
            let cf = options(&mut rng);
            let mut tree = filled(&mut rng, &InternalKeyComparator::default(), cf, &number);
            tree.snapshots = if seed % 2 == 0 { vec![1] } else { vec![] };
            tree.ctx.means.engines.kernel.set_object(object(program));
            let mut c = whole(&tree, 0);
            c.subcompactions_max = 1;
            let [pread, kernel] = MERGERS.map(|engine| tree.outcome(&c, engine, 0).unwrap().0);
            assert!(kernel == pread, "seed {seed}: other bytes");
            let (count, reason) = counted(&tree, &c, MergeEngine::Kernel).1.stats.handed_over();
            assert_eq!(count, 1, "seed {seed}");
            reasons.push(reason.unwrap());
        }
    }
    for why in ["does not order as leveldb.BytewiseComparator does", "ended before a run did", "makes no progress"] {
        assert!(reasons.iter().any(|reason| reason.contains(why)), "{why}: {reasons:?}");
    }
}

/// An operator whose result shows the order of its operands, and user keys that are the same though their bytes differ.
#[test]
fn an_order_a_filter_and_a_merge_in_one_program_give_the_tables_of_their_twins() {
    if !kernel_is_there() {
        return;
    }
    let jobs = OperandJobs {
        cmp: no_case(),
        program: ALL,
        operator: Arc::new(StringAppendOperator::default()),
        value: &word,
        filter: &|cf: &mut CfOptions| cf.compaction_filter = Some(SharedFilter::new(Marks)),
    };
    jobs.give_the_tables_of_pread();
}

/// Versions of one user key come in any order: whatever was put together by then, no table has it.
#[test]
fn operands_that_a_wrong_order_puts_together_are_in_no_table() {
    if !kernel_is_there() {
        return;
    }
    let mut handed_over = 0;
    for seed in 0..20 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut cf = small_options();
        cf.merge_operator = Some(Arc::new(StringAppendOperator::default()));
        let mut tree = filled_with(&mut rng, &liar(), cf, &word, &OPERANDS);
        tree.snapshots.clear(); // so that more are put together
        tree.ctx.means.engines.kernel.set_object(object(LIAR));
        let c = whole(&tree, 0);
        let [pread, kernel] = MERGERS.map(|engine| tree.outcome(&c, engine, 0).unwrap().0);
        assert!(kernel == pread, "seed {seed}: other bytes");
        handed_over += counted(&tree, &c, MergeEngine::Kernel).1.stats.handed_over().0;
    }
    assert!(handed_over > 5, "{handed_over} parts");
}

#[test]
fn operands_of_another_operator_are_merged_outside_and_the_log_says_so() {
    if !kernel_is_there() {
        return;
    }
    let mut rng = fastrand::Rng::with_seed(8);
    let mut tree = filled_with(&mut rng, &InternalKeyComparator::default(), small_options(), &number, &OPERANDS);
    tree.ctx.means.engines.kernel.set_object(object(COUNTERS));
    let c = whole(&tree, 0);
    let (pread, kernel) = same_as_pread(&tree, &c, "no operator");
    assert_eq!((kernel.dropped, kernel.dropped.merged), (pread.dropped, 0));
    // The last one has the program's name, and another text.
    let others: [Arc<dyn MergeOperator>; 2] = [Arc::new(StringAppendOperator::default()), Arc::new(Apart)];
    for operator in others {
        let what = operator.option_text();
        tree.cf.merge_operator = Some(operator);
        let (pread, kernel) = same_as_pread(&tree, &c, &what);
        assert_eq!(kernel.dropped, pread.dropped, "{what}");
        let outside = MERGERS.map(|engine| operands_merged_outside(&mut tree, &c, engine));
        assert!(outside[0] > 0 && outside[1] == outside[0], "{what}: {outside:?}");
    }
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

/// The name is the program's, and what it decides by is not.
#[test]
fn a_filter_of_other_settings_is_asked_outside() {
    if !kernel_is_there() {
        return;
    }
    let mut rng = fastrand::Rng::with_seed(7);
    // Expired for an hour.
    let value = |_: &mut fastrand::Rng| 1_699_996_400u64.to_be_bytes().to_vec();
    let mut tree = filled(&mut rng, &InternalKeyComparator::default(), small_options(), &value);
    tree.ctx.means.engines.kernel.set_object(object(EXPIRE));
    let c = whole(&tree, 0);
    tree.cf.compaction_filter_factory = Some(SharedFactory::new(ExpireLater));
    let (pread, kernel) = same_as_pread(&tree, &c, "a day later");
    assert_eq!((kernel.dropped, kernel.dropped.filtered), (pread.dropped, 0));
    tree.cf.compaction_filter_factory = Some(SharedFactory::new(Expire));
    let (_, kernel) = same_as_pread(&tree, &c, "at once");
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
        tree.ctx.means.engines.kernel.set_object(object(ALL));
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
