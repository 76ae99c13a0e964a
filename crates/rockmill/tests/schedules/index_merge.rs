//! Index merges while entries are written, snapshots come and go, and readers read: no reader misses an entry, and no
//! reader could see the dropped ones. Several threads do the parts of a merge, and it may be stopped.

use std::collections::BTreeMap;
use std::sync::Arc;

use rockmill::internals::{GetContext, MemTable, MemTableFilter, MergePlan, MergedMemTable, SealedTable};
use rockmill_format::key::{InternalKey, VALUE_TYPE_FOR_SEEK};
use rockmill_format::{InternalKeyComparator, ValueType};
use shuttle::sync::Mutex;
use shuttle::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use shuttle::thread;

use crate::explore::explore;

const KEYS: u64 = 3;
const PER_TABLE: u64 = 6;
const TABLES: u64 = 4;

/// As in the store: an atomically replaced view, the visible number, and the snapshots.
struct Store {
    /// Newest first; writers fill the first.
    view: Mutex<Arc<(Arc<MemTable>, Vec<SealedTable>)>>,
    visible: AtomicU64,
    snapshots: Mutex<BTreeMap<u64, usize>>,
    closing: AtomicBool,
}

fn memtable(id: u64) -> Arc<MemTable> {
    Arc::new(MemTable::new(id, InternalKeyComparator::default(), 4096))
}

/// Entry `seq` is of this key.
fn key_of(seq: u64) -> [u8; 1] {
    [(seq % KEYS) as u8]
}

impl Store {
    fn view(&self) -> Arc<(Arc<MemTable>, Vec<SealedTable>)> {
        Arc::clone(&self.view.lock().expect("the lock"))
    }

    fn write(&self, seq: u64) {
        if seq % PER_TABLE == 0 {
            let mut view = self.view.lock().expect("the lock");
            let mut sealed = view.1.clone();
            sealed.insert(0, SealedTable::Plain(Arc::clone(&view.0)));
            *view = Arc::new((memtable(seq), sealed));
        }
        let value_type = if seq % 5 == 0 { ValueType::Deletion } else { ValueType::Value };
        self.view().0.add(seq, value_type, &key_of(seq), &seq.to_le_bytes());
        // Several at once, so that sealed entries may not be visible yet.
        if seq % 4 == 0 {
            self.visible.store(seq, Ordering::Release);
        }
    }

    /// Checks all keys at a snapshot: the newest entry up to the snapshot's number must be found. A view taken before
    /// the snapshot lacks the memtables that began after it.
    fn check(&self, view: &(Arc<MemTable>, Vec<SealedTable>), snapshot: u64) {
        let last = view.0.id() + PER_TABLE - 1;
        for key in 0..KEYS {
            let key = [key as u8];
            let ikey = InternalKey::new(&key, snapshot, VALUE_TYPE_FOR_SEEK);
            let mut ctx = GetContext::new(&key);
            view.0.get(ikey.as_bytes(), &mut ctx);
            for table in &view.1 {
                if ctx.is_done() {
                    break;
                }
                table.get(ikey.as_bytes(), &mut ctx);
            }
            let newest = (1..=snapshot.min(last)).rev().find(|seq| key_of(*seq) == key);
            let want = newest.filter(|seq| seq % 5 != 0).map(|seq| seq.to_le_bytes().to_vec());
            let found = ctx.finish(None).expect("a lookup").map(|value| value.into_vec());
            assert_eq!(found, want, "key {key:?} at {snapshot}");
        }
    }

    /// Reads without a snapshot, and with one that is held for a while.
    fn read(&self) {
        let view = self.view();
        self.check(&view, self.visible.load(Ordering::Acquire));
        let snapshot = {
            let mut live = self.snapshots.lock().expect("the lock");
            let seq = self.visible.load(Ordering::Acquire);
            *live.entry(seq).or_default() += 1;
            seq
        };
        for _ in 0..2 {
            thread::yield_now();
            self.check(&self.view(), snapshot);
        }
        let mut live = self.snapshots.lock().expect("the lock");
        let count = live.get_mut(&snapshot).expect("it is live");
        *count -= 1;
        if *count == 0 {
            live.remove(&snapshot);
        }
    }

    /// Merges sealed memtables; stopped when the store closes.
    fn merge(&self) {
        let inputs = self.view().1.clone();
        if inputs.len() < 2 {
            return;
        }
        // First what is visible, then the snapshots.
        let visible = self.visible.load(Ordering::Acquire);
        let snapshots: Vec<u64> = self.snapshots.lock().expect("the lock").keys().copied().collect();
        let filter = MemTableFilter { bytes: 64, whole_keys: true, prefixes: None };
        let plan = MergePlan {
            visible,
            snapshots: &snapshots,
            threads: 2,
            filter: &filter,
            manager: None,
            stop: &|| self.closing.load(Ordering::Acquire),
        };
        let Some((merged, _)) = MergedMemTable::build(&inputs, &plan).expect("a merge") else { return };
        let mut view = self.view.lock().expect("the lock");
        // Newer ones may have been sealed since.
        let newer = view.1.len() - inputs.len();
        let mut sealed = view.1[..newer].to_vec();
        sealed.push(SealedTable::Merged(Arc::new(merged)));
        *view = Arc::new((Arc::clone(&view.0), sealed));
    }
}

#[test]
fn readers_see_the_same_whoever_merges() {
    explore(|| {
        let store = Arc::new(Store {
            view: Mutex::new(Arc::new((memtable(0), Vec::new()))),
            visible: AtomicU64::new(0),
            snapshots: Mutex::default(),
            closing: AtomicBool::new(false),
        });
        let spawn = |work: fn(&Store)| {
            let store = Arc::clone(&store);
            thread::spawn(move || work(&store))
        };
        let writer = spawn(|store| (1..=TABLES * PER_TABLE).for_each(|seq| store.write(seq)));
        let threads = [
            spawn(|store| (0..3).for_each(|_| store.merge())),
            spawn(|store| (0..2).for_each(|_| store.read())),
            spawn(|store| (0..2).for_each(|_| store.read())),
        ];
        writer.join().expect("the writer");
        store.closing.store(true, Ordering::Release);
        for thread in threads {
            thread.join().expect("a thread");
        }
        store.closing.store(false, Ordering::Release);
        store.merge();
        store.check(&store.view(), store.visible.load(Ordering::Acquire));
    });
}
