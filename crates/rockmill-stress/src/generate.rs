//! Random histories: the same for the same seed and profile.

use crate::history::{Bottom, Bounds, External, History, How, Key, Move, Reopen, Step, Update, View, Writer};
use crate::kinds::{KEYS, Kind, Slot, Value};

/// The frequency of operations, in about a thousand steps. 0 means never.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// Kinds of the column families that are created first, in addition to the default one.
    pub families: Vec<Kind>,
    /// Keys have numbers below this.
    pub keys: u16,
    /// Percentage of batches that are synced.
    pub synced: u8,
    /// Batches without a WAL, in a thousand.
    pub unlogged: u8,
    /// Percentage of values with some thousand bytes.
    pub large: u8,
    /// Updates of a batch at most.
    pub batch_max: usize,
    /// Batches.
    pub write: u32,
    /// Lookups.
    pub get: u32,
    /// Lookups of many keys.
    pub multi_get: u32,
    /// Walks of iterators.
    pub walk: u32,
    /// Scans of a prefix.
    pub prefix: u32,
    /// Looks at everything.
    pub check: u32,
    /// Snapshots taken; about as many are read and released.
    pub snapshot: u32,
    /// Iterators that stay, and their moves.
    pub iterator: u32,
    /// Flushes.
    pub flush: u32,
    /// Manual compactions.
    pub compact: u32,
    /// Manual compactions that change levels.
    pub refit: u32,
    /// Waits for background work.
    pub wait: u32,
    /// Options changed.
    pub set: u32,
    /// Ingestions.
    pub ingest: u32,
    /// Exports with imports.
    pub copy: u32,
    /// Checkpoints.
    pub checkpoint: u32,
    /// Backups and restores.
    pub backup: u32,
    /// Looks at a secondary.
    pub secondary: u32,
    /// Column families created; about as many are dropped.
    pub create: u32,
    /// Flushes of the WAL.
    pub flush_wal: u32,
    /// Looks at what WALs have.
    pub updates: u32,
    /// Deletions of tables in a range.
    pub delete_files: u32,
    /// Deletions of files turned off and on.
    pub keep_files: u32,
    /// Looks at properties.
    pub inspect: u32,
    /// Closes and opens.
    pub reopen: u32,
    /// Of a hundred of those, repairs.
    pub repaired: u8,
    /// Writes of several threads at once.
    pub together: u32,
    /// These writers use different options, and every other time there are more than eight. Writes without a WAL are
    /// then flushed.
    pub mixed: bool,
    /// With RocksDB: percentage of reopens at which the stores swap directories.
    pub swapped: u8,
    /// Beside RocksDB: ingestions behind everything.
    pub behind: u32,
    /// With RocksDB: walks over keys of one prefix.
    pub same_prefix: u32,
    /// With RocksDB: calls that both must refuse, or neither.
    pub wrong: u32,
    /// With RocksDB: waits for the end of a short time to live.
    pub age: u32,
}

impl Profile {
    /// Everything that there is, mostly writes.
    pub fn everything() -> Self {
        Self {
            families: Kind::ALL[1..].to_vec(),
            keys: KEYS,
            synced: 2,
            unlogged: 4,
            large: 2,
            batch_max: 8,
            write: 700,
            get: 100,
            multi_get: 12,
            walk: 30,
            prefix: 10,
            check: 1,
            snapshot: 4,
            iterator: 12,
            flush: 4,
            compact: 3,
            refit: 1,
            wait: 1,
            set: 4,
            ingest: 4,
            copy: 1,
            checkpoint: 1,
            backup: 1,
            secondary: 2,
            create: 2,
            flush_wal: 4,
            updates: 3,
            delete_files: 1,
            keep_files: 2,
            inspect: 2,
            reopen: 2,
            repaired: 10,
            together: 6,
            mixed: true,
            swapped: 0,
            behind: 0,
            same_prefix: 0,
            wrong: 0,
            age: 0,
        }
    }

    /// Operations that both Rockmill and RocksDB support, with more reopens; see [`crate::beside`].
    pub fn beside() -> Self {
        Self {
            copy: 0,
            backup: 0,
            secondary: 0,
            keep_files: 0,
            delete_files: 0,
            refit: 0,
            repaired: 0,
            checkpoint: 2,
            check: 4,
            walk: 60,
            iterator: 25,
            flush: 8,
            compact: 8,
            updates: 6,
            reopen: 8,
            swapped: 50,
            together: 10,
            mixed: false,
            same_prefix: 20,
            wrong: 10,
            ..Self::everything()
        }
    }

    /// The same, with tables that are ingested behind everything.
    pub fn behind() -> Self {
        Self { behind: 10, ..Self::beside() }
    }

    /// The same, with a time to live of a second, whose end is awaited now and then. Nothing else compacts, because the
    /// values that a compaction removes would depend on the exact time.
    pub fn aging() -> Self {
        Self { age: 4, compact: 0, set: 0, ingest: 0, checkpoint: 0, updates: 0, ..Self::beside() }
    }

    /// Short histories for power cuts and faults: few keys, many syncs and flushes; contents are checked afterwards.
    /// Without operations that a crash may leave half done (writes without a WAL, tables deleted by range, repairs),
    /// and without copies; these have separate tests.
    pub fn crash() -> Self {
        let Profile { get, walk, .. } = Self::everything();
        Self {
            keys: 400,
            synced: 15,
            unlogged: 0,
            large: 4,
            write: 600,
            get: get / 10,
            walk: walk / 10,
            multi_get: 1,
            flush: 25,
            compact: 12,
            set: 2,
            ingest: 10,
            copy: 4,
            create: 6,
            flush_wal: 20,
            reopen: 4,
            snapshot: 6,
            prefix: 0,
            check: 0,
            iterator: 0,
            wait: 4,
            checkpoint: 0,
            backup: 0,
            secondary: 0,
            updates: 0,
            delete_files: 0,
            keep_files: 2,
            inspect: 0,
            repaired: 0,
            together: 0,
            ..Self::everything()
        }
    }
}

/// Calls of [`Step::Wrong`] have numbers below this.
pub(crate) const WRONGS: u8 = 16;

/// Column families that are created and dropped have numbers from this one on.
const EXTRA: std::ops::Range<Slot> = 7..10;

/// Options of a column family that histories change, with the new values, including values that the store has to
/// adjust.
const SETTABLE: &[(&str, &[&str])] = &[
    ("write_buffer_size", &["8192", "20000", "100000", "0"]),
    ("max_write_buffer_number", &["2", "3", "5", "0"]),
    ("target_file_size_base", &["8192", "30000", "100000"]),
    ("max_bytes_for_level_base", &["32768", "200000", "0"]),
    ("max_bytes_for_level_multiplier", &["2", "8", "1", "0.5", "-1"]),
    ("max_bytes_for_level_multiplier_additional", &["1:1", "0:3"]),
    ("level0_file_num_compaction_trigger", &["1", "2", "4", "0", "-1"]),
    ("level0_slowdown_writes_trigger", &["4", "20", "0", "-1"]),
    ("compression", &["kNoCompression", "kSnappyCompression", "kZSTD", "kLZ4Compression", "kZlibCompression"]),
    (
        "block_based_table_factory",
        &[
            "{block_size=512}",
            "{filter_policy=bloomfilter:8:false}",
            "{block_size=0;block_restart_interval=0;index_block_restart_interval=0}",
            "{partition_filters=true}",
        ],
    ),
    ("tph_table_factory", &["{piece_limit=1}", "{piece_limit=3;garbage_percent=50}", "{garbage_percent=0}"]),
    ("prefix_extractor", &["fixed:3", "capped:20", "nullptr"]),
    ("memtable_prefix_bloom_size_ratio", &["0", "0.1", "-3", "3"]),
    ("memtable_whole_key_filtering", &["true", "false"]),
    ("disable_auto_compactions", &["false", "false", "true"]),
    ("periodic_compaction_seconds", &["0", "1"]),
    ("compaction_style", &["kCompactionStyleLevel", "kCompactionStyleUniversal"]),
    ("compaction_downforce", &["true", "false"]),
    ("compaction_classic", &["true", "false"]),
];

/// The same of the database.
const SETTABLE_DB: &[(&str, &[&str])] = &[
    ("max_background_jobs", &["1", "2", "5", "0", "-1"]),
    ("max_subcompactions", &["1", "3", "0"]),
    ("max_open_files", &["-1", "12", "-2"]),
    ("max_total_wal_size", &["20000", "200000", "0"]),
    ("compaction_readahead_size", &["0", "4096", "2097152"]),
    ("bytes_per_sync", &["0", "4096"]),
    ("wal_bytes_per_sync", &["0", "4096"]),
    ("delayed_write_rate", &["1000000", "16777216", "0"]),
];

struct Generator<'p> {
    rng: fastrand::Rng,
    profile: &'p Profile,
    /// Seeds of values: all different, so that no two writes are equal.
    seed: u32,
    /// The column families that probably exist. The model decides; this only makes most steps valid.
    families: Vec<(Slot, Kind)>,
    snapshots: Vec<u8>,
    iterators: Vec<u8>,
    marked: bool,
    /// The next steps, in reverse order.
    next: Vec<Step>,
}

/// A history of about `steps` steps. The last steps read everything, before and after a reopen.
pub fn generate(seed: u64, steps: usize, profile: &Profile) -> History {
    let mut g = Generator {
        rng: fastrand::Rng::with_seed(seed),
        profile,
        seed: 0,
        families: vec![(0, Kind::Plain)],
        snapshots: Vec::new(),
        iterators: Vec::new(),
        marked: false,
        next: Vec::new(),
    };
    let mut all = Vec::with_capacity(steps + 8);
    for (n, &kind) in profile.families.iter().enumerate() {
        let slot = n as Slot + 1;
        g.families.push((slot, kind));
        all.push(Step::Create(slot, kind));
    }
    while all.len() < steps || !g.next.is_empty() {
        let step = g.step();
        all.push(step);
    }
    all.extend([Step::Check(View::default()), Step::Reopen(Reopen::Same), Step::Check(View::default())]);
    History { steps: all }
}

impl Generator<'_> {
    fn percent(&mut self, of: u8) -> bool {
        self.rng.u8(0..100) < of
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.rng.usize(0..of.len())]
    }

    fn key(&mut self) -> Key {
        let all = self.profile.keys.clamp(1, KEYS);
        // The few unusual keys and the short ones occur more often than their share.
        let class = match self.rng.u8(0..10) {
            0 => 4,
            1..=4 => 300,
            _ => all,
        };
        self.rng.u16(0..class.min(all))
    }

    fn value(&mut self) -> Value {
        self.seed += 1;
        let large = self.percent(self.profile.large);
        let len = if large { self.rng.u16(0..9000) } else { self.rng.u16(0..120) };
        Value { seed: self.seed, len }
    }

    fn family(&mut self) -> (Slot, Kind) {
        let n = self.rng.usize(0..self.families.len());
        self.families[n]
    }

    fn slot(&mut self) -> Slot {
        self.family().0
    }

    fn update(&mut self) -> Update {
        let (slot, kind) = self.family();
        let dice = self.rng.u16(0..400);
        match dice {
            0..=1 => Update::DeleteRange(slot, self.key(), self.key()),
            2 => Update::LogData(u32::from(dice)),
            3..=160 if kind == Kind::Single => Update::SingleDelete(slot, self.key()),
            3..=240 if kind == Kind::Counting => Update::Merge(slot, self.key(), self.value()),
            81..=240 if kind == Kind::Merging => {
                let value = Value { len: self.rng.u16(0..12), ..self.value() };
                Update::Merge(slot, self.key(), value)
            }
            3..=80 => Update::Delete(slot, self.key()),
            _ => Update::Put(slot, self.key(), self.value()),
        }
    }

    fn write(&mut self) -> Step {
        let updates: Vec<Update> =
            (0..self.rng.usize(1..=self.profile.batch_max.max(1))).map(|_| self.update()).collect();
        let how = How {
            sync: self.percent(self.profile.synced),
            disable_wal: false,
            no_slowdown: self.percent(5),
            low_pri: self.percent(3),
            alone: updates.len() == 1,
        };
        // Together they are refused.
        let disable_wal = !how.sync && self.rng.u16(0..1000) < u16::from(self.profile.unlogged);
        Step::Write(How { disable_wal, ..how }, updates)
    }

    /// Threads with separate keys: those whose numbers have the same remainder.
    fn together(&mut self) -> Step {
        let many = self.profile.mixed && self.rng.bool();
        let threads = if many { self.rng.u16(9..17) } else { self.rng.u16(2..5) };
        let mut writers = vec![Writer::default(); usize::from(threads)];
        let updates = if many { self.rng.usize(60..180) } else { self.rng.usize(2..60) };
        for _ in 0..updates {
            let update = self.update();
            let key = match &update {
                Update::Put(_, key, _)
                | Update::Merge(_, key, _)
                | Update::Delete(_, key)
                | Update::SingleDelete(_, key) => *key,
                Update::DeleteRange(..) | Update::LogData(_) => continue,
            };
            writers[usize::from(key % threads)].updates.push(update);
        }
        writers.retain(|writer| !writer.updates.is_empty());
        if self.profile.mixed {
            for writer in &mut writers {
                let kind = self.rng.u8(0..10);
                let (sync, disable_wal) = (kind < 4, (4..6).contains(&kind));
                writer.how = How { sync, disable_wal, no_slowdown: self.percent(10), ..How::default() };
            }
            if writers.iter().any(|writer| writer.how.disable_wal) {
                self.next.push(Step::Flush(Vec::new(), true));
            }
        }
        Step::Together(writers)
    }

    fn view(&mut self) -> View {
        let snapshot = (!self.snapshots.is_empty() && self.rng.u8(0..4) == 0)
            .then(|| self.snapshots[self.rng.usize(0..self.snapshots.len())]);
        View { snapshot }
    }

    fn bounds(&mut self) -> Bounds {
        let mut bounds = Bounds::default();
        if self.rng.u8(0..3) == 0 {
            bounds.lower = Some(self.key());
        }
        if self.rng.u8(0..3) == 0 {
            bounds.upper = Some(self.key());
        }
        if self.rng.u8(0..4) == 0 {
            bounds.prefix = Some((self.key(), self.rng.u8(0..8)));
        }
        bounds.auto_prefix = self.rng.bool();
        if self.rng.u8(0..8) == 0 {
            bounds.readahead = self.one(&[1000, 4096, 100_000]);
        }
        bounds
    }

    fn moves(&mut self) -> Vec<Move> {
        let mut moves = vec![match self.rng.u8(0..4) {
            0 => Move::First,
            1 => Move::Last,
            2 => Move::SeekForPrev(self.key()),
            _ => Move::Seek(self.key()),
        }];
        for _ in 0..self.rng.usize(0..14) {
            moves.push(match self.rng.u8(0..12) {
                0 => Move::First,
                1 => Move::Last,
                2..=3 => Move::Seek(self.key()),
                4..=5 => Move::SeekForPrev(self.key()),
                6..=8 => Move::Next(self.rng.u8(1..6)),
                _ => Move::Prev(self.rng.u8(1..6)),
            });
        }
        moves
    }

    fn ingest(&mut self) -> Step {
        let mut files = Vec::new();
        for _ in 0..self.rng.usize(1..4) {
            let (slot, kind) = self.family();
            let range = (self.rng.u8(0..4) == 0).then(|| (self.key(), self.key()));
            let mut updates = Vec::new();
            for _ in 0..self.rng.usize(1..60) {
                updates.push(match self.rng.u8(0..8) {
                    0 if kind != Kind::Single => Update::Delete(slot, self.key()),
                    1..=3 if kind.merges() => Update::Merge(slot, self.key(), self.value()),
                    _ => Update::Put(slot, self.key(), self.value()),
                });
            }
            files.push(External { slot, range, updates });
        }
        Step::Ingest(self.rng.bool(), files)
    }

    fn extra(&mut self, gone: bool) -> Option<Slot> {
        let there = |slot: &Slot| self.families.iter().any(|(s, _)| s == slot);
        let all: Vec<Slot> = EXTRA.filter(|slot| there(slot) == gone).collect();
        (!all.is_empty()).then(|| self.one(&all))
    }

    fn snapshot(&mut self) -> Step {
        let free = (0..5).find(|id| !self.snapshots.contains(id));
        match (self.rng.u8(0..5), free) {
            (0..=1, Some(id)) => {
                self.snapshots.push(id);
                Step::Snapshot(id)
            }
            (2..=3, _) if !self.snapshots.is_empty() => {
                Step::Release(self.snapshots.swap_remove(self.rng.usize(0..self.snapshots.len())))
            }
            (_, _) if !self.snapshots.is_empty() => {
                Step::Check(View { snapshot: Some(self.snapshots[self.rng.usize(0..self.snapshots.len())]) })
            }
            _ => {
                self.snapshots.push(0);
                Step::Snapshot(0)
            }
        }
    }

    fn iterator(&mut self) -> Step {
        let free = (0..4).find(|id| !self.iterators.contains(id));
        match (self.rng.u8(0..6), free) {
            (0, Some(id)) => {
                self.iterators.push(id);
                Step::Iterator(id, self.slot(), self.bounds())
            }
            (1, _) if !self.iterators.is_empty() => {
                Step::Close(self.iterators.swap_remove(self.rng.usize(0..self.iterators.len())))
            }
            (_, _) if !self.iterators.is_empty() => {
                Step::Move(self.iterators[self.rng.usize(0..self.iterators.len())], self.moves())
            }
            _ => {
                self.iterators.push(0);
                Step::Iterator(0, self.slot(), self.bounds())
            }
        }
    }

    fn create(&mut self) -> Step {
        let (free, used) = (self.extra(false), self.extra(true));
        match (free, used) {
            (Some(slot), used) if used.is_none() || self.rng.bool() => {
                let kind = self.one(&Kind::ALL);
                self.families.push((slot, kind));
                Step::Create(slot, kind)
            }
            (_, Some(slot)) => {
                self.families.retain(|(s, _)| *s != slot);
                Step::Drop(slot)
            }
            _ => Step::Wait,
        }
    }

    fn set(&mut self) -> Step {
        if self.rng.u8(0..3) == 0 {
            let (name, values) = self.one(SETTABLE_DB);
            return Step::SetDbOptions(name.to_owned(), self.one(values).to_owned());
        }
        let (name, values) = self.one(SETTABLE);
        Step::SetOptions(self.slot(), name.to_owned(), self.one(values).to_owned())
    }

    fn reopen(&mut self) -> Step {
        self.snapshots.clear();
        self.iterators.clear();
        self.marked = false;
        if self.percent(self.profile.repaired) {
            return Step::Reopen(Reopen::Repaired);
        }
        if self.profile.swapped > 0 {
            let swapped = self.percent(self.profile.swapped);
            let other = self.one(&[Reopen::Same, Reopen::Next, Reopen::Next, Reopen::ReadOnly]);
            return Step::Reopen(if swapped { Reopen::Swapped } else { other });
        }
        Step::Reopen(self.one(&[Reopen::Same, Reopen::Next, Reopen::Next, Reopen::Stored, Reopen::ReadOnly]))
    }

    fn flush(&mut self) -> Step {
        let slots =
            if self.rng.u8(0..3) == 0 { Vec::new() } else { (0..self.rng.usize(1..3)).map(|_| self.slot()).collect() };
        Step::Flush(slots, self.rng.u8(0..4) > 0)
    }

    fn compact(&mut self) -> Step {
        let bottoms = [Bottom::Filtered, Bottom::Skip, Bottom::Force, Bottom::ForceOptimized];
        let (from, to) = (self.rng.bool().then(|| self.key()), self.rng.bool().then(|| self.key()));
        Step::Compact(self.slot(), from, to, self.one(&bottoms), self.rng.u8(0..4) == 0)
    }

    /// Deleted tables disappear for every reader, so there may be no snapshots or iterators.
    fn delete_files(&mut self) -> Step {
        let delete = Step::DeleteFiles(self.slot(), self.key(), self.key());
        self.next.push(delete);
        self.next.extend(self.snapshots.drain(..).map(Step::Release));
        self.next.extend(self.iterators.drain(..).map(Step::Close));
        self.next.pop().unwrap_or(Step::Wait)
    }

    fn step(&mut self) -> Step {
        if let Some(step) = self.next.pop() {
            return step;
        }
        let p = self.profile;
        type Make<'p> = fn(&mut Generator<'p>) -> Step;
        let all: &[(u32, Make<'_>)] = &[
            (p.write, Self::write),
            (p.get, |g| Step::Get(g.slot(), g.key(), g.view())),
            (p.multi_get, |g| {
                let keys = (0..g.rng.usize(0..20)).map(|_| (g.slot(), g.key())).collect();
                Step::MultiGet(g.view(), keys)
            }),
            (p.walk, |g| Step::Walk(g.slot(), g.view(), g.bounds(), g.moves())),
            (p.prefix, |g| Step::Prefix(g.slot(), g.key())),
            (p.check, |_| Step::Check(View::default())),
            (p.snapshot * 2, Self::snapshot),
            (p.iterator, Self::iterator),
            (p.flush, Self::flush),
            (p.compact, Self::compact),
            (p.refit, |g| Step::Refit(g.slot())),
            (p.wait, |_| Step::Wait),
            (p.set, Self::set),
            (p.ingest, Self::ingest),
            (p.copy, |g| match g.extra(false) {
                Some(to) => {
                    let (from, kind) = g.family();
                    g.families.push((to, kind));
                    Step::Copy(from, to, g.rng.bool())
                }
                None => g.create(),
            }),
            (p.checkpoint, |g| Step::Checkpoint(g.rng.bool())),
            (p.backup, |g| Step::Backup(g.rng.bool())),
            (p.secondary, |_| Step::Secondary),
            (p.create * 2, Self::create),
            (p.flush_wal, |g| Step::FlushWal(g.rng.bool())),
            (p.updates * 2, |g| {
                g.marked = !g.marked;
                if g.marked { Step::Mark } else { Step::Updates }
            }),
            (p.delete_files, Self::delete_files),
            (p.keep_files, |g| Step::KeepFiles(g.rng.bool())),
            (p.inspect, |g| Step::Inspect(g.slot())),
            (p.reopen, Self::reopen),
            (p.together, Self::together),
            (p.behind, |g| {
                let Step::Ingest(_, files) = g.ingest() else { return Step::Wait };
                Step::Behind(files)
            }),
            (p.same_prefix, |g| {
                let moves = g.moves().into_iter().map(|to| match to {
                    Move::First | Move::Last | Move::SeekForPrev(_) => Move::Seek(g.key()),
                    Move::Prev(n) => Move::Next(n),
                    other => other,
                });
                let moves = moves.collect();
                let bounds = Bounds { prefix: None, auto_prefix: false, ..g.bounds() };
                Step::SamePrefix(g.slot(), g.view(), bounds, moves)
            }),
            (p.wrong, |g| Step::Wrong(g.rng.u8(..WRONGS))),
            (p.age, |_| Step::Age),
        ];
        let total: u32 = all.iter().map(|(weight, _)| weight).sum();
        let mut at = self.rng.u32(0..total.max(1));
        for (weight, make) in all {
            if at < *weight {
                return make(self);
            }
            at -= weight;
        }
        Step::Wait
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::model::Model;

    /// How often steps of each verb occur, and how often they are valid.
    fn counts(profile: &Profile, steps: usize) -> BTreeMap<String, (u32, u32)> {
        let mut counts: BTreeMap<String, (u32, u32)> = BTreeMap::new();
        for seed in 0..4 {
            let mut model = Model::new();
            for step in generate(seed, steps, profile).steps {
                let verb = step.to_string().split(' ').next().unwrap_or("").to_owned();
                let count = counts.entry(verb).or_default();
                count.0 += 1;
                count.1 += u32::from(model.step(&step).is_some());
            }
        }
        counts
    }

    #[test]
    fn histories_do_everything_and_little_in_vain() {
        let counts = counts(&Profile::everything(), 4000);
        println!("{counts:?}");
        for verb in [
            "backup",
            "check",
            "checkpoint",
            "close",
            "compact",
            "copy",
            "create",
            "delete-files",
            "drop",
            "flush",
            "flush-wal",
            "get",
            "ingest",
            "inspect",
            "iterator",
            "keep-files",
            "mark",
            "move",
            "multi-get",
            "prefix",
            "refit",
            "release",
            "reopen",
            "secondary",
            "set",
            "set-db",
            "snapshot",
            "together",
            "updates",
            "wait",
            "walk",
            "write",
        ] {
            let (come, done) = counts.get(verb).copied().unwrap_or_default();
            assert!(done >= 2, "{verb} comes {come} times and is done {done} times");
        }
        let (come, done) = counts.values().fold((0, 0), |sum, c| (sum.0 + c.0, sum.1 + c.1));
        assert!(done * 10 > come * 9, "of {come} steps {done} are done");
    }

    #[test]
    fn histories_for_crashes_have_nothing_that_a_crash_leaves_half_done() {
        for seed in 0..4 {
            for step in generate(seed, 2000, &Profile::crash()).steps {
                let unlogged = matches!(&step, Step::Write(how, _) if how.disable_wal);
                let alone = matches!(&step, Step::Write(how, updates) if how.alone && updates.len() > 1);
                let halves = matches!(step, Step::DeleteFiles(..) | Step::Reopen(Reopen::Repaired));
                assert!(!unlogged && !alone && !halves, "{step}");
            }
        }
        assert!(counts(&Profile::crash(), 500).values().all(|(_, done)| *done > 0));
    }
}
