//! Operations that RocksDB, Rockmill and a plain model can all perform, and random sequences of them.

use std::collections::BTreeMap;

use rockmill::{ColumnFamily, CompactOptions, Db, Snapshot, WriteBatch, WriteOptions};

use super::Script;

/// One step. Column families are numbers into [`Workload::families`].
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub enum Op {
    Put { cf: usize, key: Vec<u8>, value: Vec<u8> },
    Delete { cf: usize, key: Vec<u8> },
    SingleDelete { cf: usize, key: Vec<u8> },
    DeleteRange { cf: usize, from: Vec<u8>, to: Vec<u8> },
    Batch(Vec<Op>),
    Snapshot(u32),
    Release(u32),
    Flush(usize),
    Compact(usize),
}

/// Ordered contents of one column family.
pub type Contents = BTreeMap<Vec<u8>, Vec<u8>>;

/// What the operations should leave.
#[derive(Debug, Clone, Default)]
pub struct Model {
    /// By column family.
    pub now: Vec<Contents>,
    /// As they were at each snapshot that is still held.
    pub snapshots: BTreeMap<u32, Vec<Contents>>,
}

impl Model {
    fn apply(&mut self, op: &Op) {
        match op {
            Op::Put { cf, key, value } => {
                self.now[*cf].insert(key.clone(), value.clone());
            }
            Op::Delete { cf, key } | Op::SingleDelete { cf, key } => {
                self.now[*cf].remove(key);
            }
            Op::DeleteRange { cf, from, to } => {
                let gone: Vec<_> = self.now[*cf].range(from.clone()..to.clone()).map(|(k, _)| k.clone()).collect();
                for key in gone {
                    self.now[*cf].remove(&key);
                }
            }
            Op::Batch(ops) => ops.iter().for_each(|op| self.apply(op)),
            Op::Snapshot(n) => {
                self.snapshots.insert(*n, self.now.clone());
            }
            Op::Release(n) => {
                self.snapshots.remove(n);
            }
            Op::Flush(_) | Op::Compact(_) => {}
        }
    }
}

/// What a random sequence contains.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Steps.
    pub ops: usize,
    /// Column families beside the default one.
    pub extra_families: usize,
    /// Keys to choose from in each column family.
    pub keys: usize,
    /// Longest value.
    pub value_len_max: usize,
    /// Delete ranges now and then.
    pub delete_ranges: bool,
    /// Take and release snapshots now and then.
    pub snapshots: bool,
    /// Mean number of steps between flushes; 0: never.
    pub flush_every: usize,
    /// Mean number of steps between full compactions; 0: never.
    pub compact_every: usize,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            ops: 3000,
            extra_families: 0,
            keys: 1000,
            value_len_max: 300,
            delete_ranges: false,
            snapshots: false,
            flush_every: 700,
            compact_every: 0,
        }
    }
}

/// A sequence of operations.
#[derive(Debug, Clone)]
pub struct Workload {
    /// Names of the column families; the first is the default one.
    pub families: Vec<String>,
    /// The steps.
    pub ops: Vec<Op>,
}

struct Generator {
    rng: fastrand::Rng,
    shape: Shape,
    /// Keys for single deletes that currently have a value: put exactly once since their last deletion.
    single: Vec<Vec<usize>>,
    snapshots: Vec<u32>,
    next_snapshot: u32,
}

impl Generator {
    /// Keys of various lengths and alphabets; each number has one key.
    fn key(&self, n: usize) -> Vec<u8> {
        match n % 7 {
            0 => format!("k{n}").into_bytes(),
            1 => [&[0xff, 0x00][..], &(n as u32).to_be_bytes()].concat(),
            2 => format!("a/long/shared/prefix/that/tables/compress/{n:012}").into_bytes(),
            3 if n == 3 => vec![],
            _ => format!("key{n:08}").into_bytes(),
        }
    }

    fn value(&mut self) -> Vec<u8> {
        let len = match self.rng.u8(..20) {
            0 => 0,
            1 => self.rng.usize(..=self.shape.value_len_max * 8),
            _ => self.rng.usize(..=self.shape.value_len_max),
        };
        if self.rng.u8(..4) == 0 {
            return (0..len).map(|_| self.rng.u8(..)).collect();
        }
        // Text that compresses, as most values do.
        let words: [&[u8]; 6] = [b"compaction ", b"memtable ", b"level ", b"rock ", b"mill ", b"0123456789 "];
        let mut out = Vec::with_capacity(len + 12);
        while out.len() < len {
            out.extend_from_slice(words[self.rng.usize(..words.len())]);
        }
        out.truncate(len);
        out
    }

    fn write(&mut self, cf: usize) -> Op {
        let n = self.rng.usize(..self.shape.keys);
        match self.rng.u8(..100) {
            0..=14 => Op::Delete { cf, key: self.key(n) },
            15..=19 => {
                // These keys are only put once and then single-deleted, as RocksDB requires.
                if self.single[cf].is_empty() || self.rng.bool() {
                    let fresh = (0..).find(|n| !self.single[cf].contains(n)).expect("numbers do not end");
                    self.single[cf].push(fresh);
                    Op::Put { cf, key: format!("single{fresh:06}").into_bytes(), value: self.value() }
                } else {
                    let at = self.rng.usize(..self.single[cf].len());
                    let n = self.single[cf].swap_remove(at);
                    Op::SingleDelete { cf, key: format!("single{n:06}").into_bytes() }
                }
            }
            20..=21 if self.shape.delete_ranges => {
                let width = self.rng.usize(1..self.shape.keys / 10);
                let from = format!("key{n:08}").into_bytes();
                Op::DeleteRange { cf, from, to: format!("key{:08}", n + width).into_bytes() }
            }
            _ => Op::Put { cf, key: self.key(n), value: self.value() },
        }
    }

    fn op(&mut self) -> Op {
        let families = self.shape.extra_families + 1;
        let cf = self.rng.usize(..families);
        let about = |rng: &mut fastrand::Rng, every: usize| every > 0 && rng.usize(..every) == 0;
        if about(&mut self.rng, self.shape.flush_every) {
            return Op::Flush(cf);
        }
        if about(&mut self.rng, self.shape.compact_every) {
            return Op::Compact(cf);
        }
        if self.shape.snapshots && self.rng.u8(..150) == 0 {
            if self.snapshots.len() > 3 {
                let at = self.rng.usize(..self.snapshots.len());
                return Op::Release(self.snapshots.swap_remove(at));
            }
            self.next_snapshot += 1;
            self.snapshots.push(self.next_snapshot);
            return Op::Snapshot(self.next_snapshot);
        }
        if self.rng.u8(..30) == 0 {
            let count = self.rng.usize(1..20);
            let ops = (0..count)
                .map(|_| {
                    let cf = self.rng.usize(..families);
                    self.write(cf)
                })
                .collect();
            return Op::Batch(ops);
        }
        self.write(cf)
    }
}

impl Workload {
    /// A random sequence; the same seed and shape give the same one.
    pub fn random(seed: u64, shape: Shape) -> Self {
        let families = shape.extra_families + 1;
        let mut generator = Generator {
            rng: fastrand::Rng::with_seed(seed),
            shape,
            single: vec![vec![]; families],
            snapshots: vec![],
            next_snapshot: 0,
        };
        let ops = (0..shape.ops).map(|_| generator.op()).collect();
        let names = ["default", "second", "third", "fourth"];
        Self { families: names[..families].iter().map(|s| (*s).to_owned()).collect(), ops }
    }

    /// What the sequence should leave, from nothing.
    pub fn model(&self) -> Model {
        let mut model = Model { now: vec![Contents::new(); self.families.len()], snapshots: BTreeMap::new() };
        self.continue_model(&mut model);
        model
    }

    /// Applies the sequence to a model that already has contents.
    pub fn continue_model(&self, model: &mut Model) {
        for op in &self.ops {
            model.apply(op);
        }
    }

    /// The sequence as commands for RocksDB.
    pub fn script(&self, script: &mut Script) {
        for op in &self.ops {
            self.script_op(op, script);
        }
    }

    fn script_op(&self, op: &Op, script: &mut Script) {
        match op {
            Op::Put { cf, key, value } => script.hex("put", &self.families[*cf], &[key, value]),
            Op::Delete { cf, key } => script.hex("del", &self.families[*cf], &[key]),
            Op::SingleDelete { cf, key } => script.hex("sdel", &self.families[*cf], &[key]),
            Op::DeleteRange { cf, from, to } => script.hex("delrange", &self.families[*cf], &[from, to]),
            Op::Batch(ops) => {
                script.line("begin");
                for op in ops {
                    self.script_op(op, script);
                }
                script.line("commit")
            }
            Op::Snapshot(n) => script.line(format!("snap s{n}")),
            Op::Release(n) => script.line(format!("release s{n}")),
            Op::Flush(cf) => script.line(format!("flush {}", self.families[*cf])),
            Op::Compact(cf) => script.line(format!("compact {}", self.families[*cf])),
        };
    }

    /// The same sequence with plain deletes instead of single deletes, which not every RocksDB driver supports.
    pub fn without_single_deletes(mut self) -> Self {
        fn replace(op: &mut Op) {
            match op {
                Op::SingleDelete { cf, key } => *op = Op::Delete { cf: *cf, key: std::mem::take(key) },
                Op::Batch(ops) => ops.iter_mut().for_each(replace),
                _ => {}
            }
        }
        self.ops.iter_mut().for_each(replace);
        self
    }
}

/// Performs operations on Rockmill, holding the snapshots that they take.
pub struct Runner<'a> {
    db: &'a Db,
    families: Vec<ColumnFamily>,
    /// Held snapshots.
    pub snapshots: BTreeMap<u32, Snapshot<'a>>,
    /// For every write.
    pub options: WriteOptions,
}

impl<'a> Runner<'a> {
    /// For a database that has these column families.
    #[track_caller]
    pub fn new(db: &'a Db, families: &[String]) -> Self {
        let families = families
            .iter()
            .map(|name| db.cf_handle(name).unwrap_or_else(|| panic!("no column family {name}")))
            .collect();
        Self { db, families, snapshots: BTreeMap::new(), options: WriteOptions::default() }
    }

    /// Performs them all.
    #[track_caller]
    pub fn run(&mut self, ops: &[Op]) {
        for (i, op) in ops.iter().enumerate() {
            self.op(op).unwrap_or_else(|e| {
                let shown: String = format!("{op:?}").chars().take(200).collect();
                panic!("operation {i}, {shown}: {e}")
            });
        }
    }

    fn op(&mut self, op: &Op) -> rockmill::Result<()> {
        match op {
            Op::Flush(cf) => return self.db.flush_cf(&self.families[*cf]),
            Op::Compact(cf) => {
                let mut options = CompactOptions::default();
                options.set_bottommost_level_compaction(rockmill::BottommostLevelCompaction::Force);
                return self.db.compact_range_cf_opt(&self.families[*cf], None::<&[u8]>, None::<&[u8]>, &options);
            }
            Op::Snapshot(n) => {
                self.snapshots.insert(*n, self.db.snapshot());
                return Ok(());
            }
            Op::Release(n) => {
                self.snapshots.remove(n);
                return Ok(());
            }
            _ => {}
        }
        let mut batch = WriteBatch::new();
        self.add(&mut batch, op);
        self.db.write_opt(&batch, &self.options)
    }

    fn add(&self, batch: &mut WriteBatch, op: &Op) {
        match op {
            Op::Put { cf, key, value } => batch.put_cf(&self.families[*cf], key, value),
            Op::Delete { cf, key } => batch.delete_cf(&self.families[*cf], key),
            Op::SingleDelete { cf, key } => batch.single_delete_cf(&self.families[*cf], key),
            Op::DeleteRange { cf, from, to } => batch.delete_range_cf(&self.families[*cf], from, to),
            Op::Batch(ops) => ops.iter().for_each(|op| self.add(batch, op)),
            Op::Snapshot(_) | Op::Release(_) | Op::Flush(_) | Op::Compact(_) => unreachable!("not a write"),
        }
    }
}
