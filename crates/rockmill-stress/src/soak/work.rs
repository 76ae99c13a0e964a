//! The child's threads: random operations, with updates of the expected state before and after each.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};

use rockmill::{ColumnFamily, Db, ErrorKind, Options, WriteBatch, WriteOptions};

use super::expected::{Change, Expected};
use super::limits::Limit;
use super::settings::{Act, Paths, Settings};
use super::value::{self, Kind};

/// Most keys that one range deletion covers.
const RANGE_KEYS_MAX: u32 = 64;
/// One in this many keys is only put while absent, and single-deleted: in RocksDB, a single deletion of a key that was
/// overwritten, merged or otherwise deleted (also by a filter) is undefined. Range deletions may cover such keys.
const SINGLES: u32 = 8;
/// Updates in a batch at most.
const BATCH_MAX: usize = 10;

/// Why an operation did not complete.
#[derive(Debug)]
pub enum Trouble {
    /// The store refused it because of the limit.
    Refused,
    /// Something is wrong.
    Wrong(String),
}

/// What came of an operation.
pub type Done = Result<(), Trouble>;

impl From<String> for Trouble {
    fn from(text: String) -> Self {
        Self::Wrong(text)
    }
}

/// Operations of a life so far.
#[derive(Debug, Default)]
pub struct Counts {
    /// All.
    pub ops: AtomicU64,
    /// Those that write.
    pub writes: AtomicU64,
    /// Keys whose value (or absence) was compared.
    pub checked: AtomicU64,
    /// Operations that were refused under a limit.
    pub refused: AtomicU64,
}

/// What the threads share.
pub struct Shared<'a> {
    /// What the run does.
    pub settings: &'a Settings,
    /// What must be there.
    pub expected: &'a Expected,
    /// The database.
    pub db: &'a Db,
    /// Its column families by number; replaced when one is cleared.
    pub families: Vec<RwLock<ColumnFamily>>,
    /// Options of the current configuration, for external tables and copies.
    pub options: &'a Options,
    /// Where files go.
    pub paths: &'a Paths,
    /// Writes count once a `flush_wal` has returned.
    pub manual_wal: bool,
    /// What the process lacks.
    pub limit: Option<Limit>,
    /// The threads are to end.
    pub stop: AtomicBool,
    /// What was done.
    pub counts: Counts,
    /// The first thing that was wrong.
    pub failure: Mutex<Option<String>>,
    /// Checkpoints and backups, one at a time.
    pub copies: Mutex<()>,
}

impl<'a> Shared<'a> {
    /// The column family with this number.
    pub fn family(&self, family: usize) -> ColumnFamily {
        self.families[family].read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Classifies an error of the store.
    pub fn trouble(&self, what: &str, e: &rockmill::Error) -> Trouble {
        if self.limit.is_some_and(|l| l.explains(e)) {
            return Trouble::Refused;
        }
        Trouble::Wrong(format!("{what}: {e}"))
    }

    /// A thread of a life: runs until it is told to stop, or something is wrong.
    pub fn run(&self, life: u64, thread: usize) {
        let mut worker = Worker {
            shared: self,
            rng: fastrand::Rng::with_seed(self.settings.seed ^ (life << 20 | thread as u64).wrapping_mul(0x9e37_79b9)),
            thread,
            writes: 0,
            leaked: Vec::new(),
        };
        while !self.stop.load(Ordering::Relaxed) {
            let act = self.settings.choose(&mut worker.rng);
            match worker.act(act) {
                Ok(()) => {}
                Err(Trouble::Refused) => {
                    self.counts.refused.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(std::time::Duration::from_millis(2));
                }
                Err(Trouble::Wrong(text)) => {
                    let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
                    failure.get_or_insert(format!("{act:?} of thread {thread}: {text}"));
                    self.stop.store(true, Ordering::Relaxed);
                    return;
                }
            }
            self.counts.ops.fetch_add(1, Ordering::Relaxed);
            if self.settings.leak > 0 {
                worker.leaked.push(vec![1; self.settings.leak]);
            }
        }
        // The leak must last until the process ends.
        std::mem::forget(worker.leaked);
    }
}

/// One thread.
pub struct Worker<'s, 'a> {
    /// What all share.
    pub shared: &'s Shared<'a>,
    /// Its choices.
    pub rng: fastrand::Rng,
    /// Its number.
    pub thread: usize,
    writes: u64,
    leaked: Vec<Vec<u8>>,
}

impl<'s, 'a> Worker<'s, 'a> {
    fn act(&mut self, act: Act) -> Done {
        let writes = matches!(
            act,
            Act::Write | Act::Batch | Act::Delete | Act::RangeDelete | Act::Merge | Act::Ingest | Act::Clear
        );
        if writes {
            self.shared.counts.writes.fetch_add(1, Ordering::Relaxed);
        }
        match act {
            Act::Read => self.read(),
            Act::MultiRead => self.multi_read(),
            Act::Iterate => self.iterate(),
            Act::Snapshot => self.snapshot(),
            Act::Write => self.write(),
            Act::Batch => self.batch(),
            Act::Delete => self.delete(),
            Act::RangeDelete => self.range_delete(),
            Act::Merge => self.merge(),
            Act::Ingest => self.ingest(),
            Act::Checkpoint => self.checkpoint(),
            Act::Backup => self.backup(),
            Act::Flush => self.flush(),
            Act::Compact => self.compact(),
            Act::Clear => self.clear(),
        }
    }

    /// A key: every other time one of a few, so that some have many versions.
    pub fn any_key(&mut self) -> u32 {
        let keys = self.shared.settings.keys;
        if self.rng.bool() { self.rng.u32(..keys) } else { self.rng.u32(..keys.div_ceil(16)) }
    }

    /// The key is one for single deletions.
    pub fn is_single(&self, family: usize, key: u32) -> bool {
        key % SINGLES == SINGLES - 1 && self.kind(family) != Kind::Expiring
    }

    fn kind(&self, family: usize) -> Kind {
        Kind::of(self.shared.settings, family)
    }

    /// A key that may be overwritten and merged.
    fn any_plain_key(&mut self) -> u32 {
        let key = self.any_key();
        if key % SINGLES == SINGLES - 1 { key - 1 } else { key }
    }

    /// A column family with values.
    pub fn any_family(&mut self) -> usize {
        self.rng.usize(..self.shared.settings.families)
    }

    /// A stretch of up to `most` keys.
    pub fn any_range(&mut self, most: u32) -> Range<u32> {
        let start = self.any_key();
        start..(start + self.rng.u32(1..=most)).min(self.shared.settings.keys)
    }

    /// A file or directory of this thread.
    pub fn own_path(&self, what: &str) -> PathBuf {
        self.shared.paths.own(&format!("{what}-{}", self.thread))
    }

    fn write_options(&mut self) -> WriteOptions {
        self.writes += 1;
        let every = self.shared.settings.sync_every;
        let mut options = WriteOptions::default();
        options.set_sync(every > 0 && self.writes.is_multiple_of(every));
        options
    }

    /// Marks the affected keys, calls `run` with the new versions, and records the completion. The caller holds the
    /// locks.
    pub fn change(
        &self,
        what: &str,
        touched: &[(usize, u32, Change)],
        run: impl FnOnce(&[u32]) -> rockmill::Result<()>,
    ) -> Done {
        let shared = self.shared;
        let op = shared.expected.new_op();
        let mut versions = Vec::with_capacity(touched.len());
        for &(family, key, change) in touched {
            let slot = shared.expected.slot(family, key).begun(op, change);
            versions.push(slot.latest);
            shared.expected.set(family, key, slot)?;
        }
        let done = run(&versions).and_then(|()| if shared.manual_wal { shared.db.flush_wal(false) } else { Ok(()) });
        // A refused operation stays begun and unacknowledged.
        done.map_err(|e| shared.trouble(what, &e))?;
        let next_op = shared.expected.next_op();
        for &(family, key, change) in touched {
            let slot = shared.expected.slot(family, key).done(change).ended_before(next_op);
            shared.expected.set(family, key, slot)?;
        }
        Ok(())
    }

    /// The key with this number.
    pub fn key(&self, family: usize, key: u32) -> Vec<u8> {
        value::key(self.shared.settings, family, key)
    }

    fn value(&self, family: usize, key: u32, version: u32) -> Vec<u8> {
        value::value(self.shared.settings, family, key, version)
    }

    fn write(&mut self) -> Done {
        let (family, key, options) = (self.any_family(), self.any_key(), self.write_options());
        let _held = self.shared.expected.lock(&[(family, key..key + 1)]);
        let cf = self.shared.family(family);
        if self.is_single(family, key) && self.shared.expected.slot(family, key).is_present() {
            return self.single_delete(&cf, family, key, &options);
        }
        self.change("put", &[(family, key, Change::Put)], |v| {
            self.shared.db.put_cf_opt(&cf, self.key(family, key), self.value(family, key, v[0]), &options)
        })
    }

    /// The caller holds the lock and has checked that the key exists.
    fn single_delete(&self, cf: &ColumnFamily, family: usize, key: u32, options: &WriteOptions) -> Done {
        self.change("single_delete", &[(family, key, Change::Delete)], |_| {
            let mut batch = WriteBatch::new();
            batch.single_delete_cf(cf, self.key(family, key));
            self.shared.db.write_opt(&batch, options)
        })
    }

    fn delete(&mut self) -> Done {
        let (family, key, options) = (self.any_family(), self.any_key(), self.write_options());
        let _held = self.shared.expected.lock(&[(family, key..key + 1)]);
        let cf = self.shared.family(family);
        if self.is_single(family, key) {
            let there = self.shared.expected.slot(family, key).is_present();
            return if there { self.single_delete(&cf, family, key, &options) } else { Ok(()) };
        }
        self.change("delete", &[(family, key, Change::Delete)], |_| {
            self.shared.db.delete_cf_opt(&cf, self.key(family, key), &options)
        })
    }

    fn range_delete(&mut self) -> Done {
        let (family, keys) = (self.any_family(), self.any_range(RANGE_KEYS_MAX));
        if self.kind(family) == Kind::Hashed {
            return self.delete();
        }
        let _held = self.shared.expected.lock(&[(family, keys.clone())]);
        let cf = self.shared.family(family);
        let touched: Vec<_> = keys.clone().map(|key| (family, key, Change::Delete)).collect();
        self.change("delete_range", &touched, |_| {
            self.shared.db.delete_range_cf(&cf, self.key(family, keys.start), self.key(family, keys.end))
        })
    }

    fn merge(&mut self) -> Done {
        let counters = self.shared.settings.families;
        let (family, key) =
            if self.rng.bool() { (counters, self.any_key()) } else { (self.any_family(), self.any_plain_key()) };
        if self.kind(family) == Kind::Expiring {
            return self.write();
        }
        let _held = self.shared.expected.lock(&[(family, key..key + 1)]);
        let cf = self.shared.family(family);
        let change = if family == counters { Change::Count } else { Change::Merge };
        self.change("merge", &[(family, key, change)], |v| {
            let operand = if family == counters { value::count_value(1) } else { self.value(family, key, v[0]) };
            self.shared.db.merge_cf(&cf, self.key(family, key), operand)
        })
    }

    fn batch(&mut self) -> Done {
        let counters = self.shared.settings.families;
        let mut touched: Vec<(usize, u32, Change)> = Vec::new();
        for _ in 0..self.rng.usize(2..=BATCH_MAX) {
            let (family, key) = (self.rng.usize(..=counters), self.any_plain_key());
            if touched.iter().any(|t| (t.0, t.1) == (family, key)) {
                continue;
            }
            let change = match self.rng.u8(..6) {
                _ if family == counters => Change::Count,
                0 => Change::Delete,
                1 if self.kind(family) != Kind::Expiring => Change::Merge,
                _ => Change::Put,
            };
            touched.push((family, key, change));
        }
        let places: Vec<_> = touched.iter().map(|t| (t.0, t.1..t.1 + 1)).collect();
        let options = self.write_options();
        let _held = self.shared.expected.lock(&places);
        self.change("write of a batch", &touched, |versions| {
            let mut batch = WriteBatch::new();
            for (&(family, key, change), &version) in touched.iter().zip(versions) {
                let (cf, name) = (self.shared.family(family), self.key(family, key));
                match change {
                    Change::Put => batch.put_cf(&cf, name, self.value(family, key, version)),
                    Change::Merge => batch.merge_cf(&cf, name, self.value(family, key, version)),
                    Change::Delete => batch.delete_cf(&cf, name),
                    Change::Count => batch.merge_cf(&cf, name, value::count_value(1)),
                }
            }
            self.shared.db.write_opt(&batch, &options)
        })
    }

    /// Ignores errors on a column family that was dropped meanwhile.
    pub fn unless_dropped(&self, what: &str, done: rockmill::Result<()>) -> Done {
        match done {
            Err(e) if e.kind() == ErrorKind::ColumnFamilyDropped => Ok(()),
            done => done.map_err(|e| self.shared.trouble(what, &e)),
        }
    }
}
