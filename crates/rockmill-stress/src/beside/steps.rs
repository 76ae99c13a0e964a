//! One step on one store: the calls are the same for both, and the results must be, too.

use std::path::Path;

use rockmill_rocksdb::store::{CompactHow, Go, Look, Op, WriteHow};

use super::store::{Said, Store};
use crate::cursor::prefix_bytes;
use crate::history::{Bottom, Bounds, How, Key, Move, Step, Update, View};
use crate::kinds::{Kind, Slot, family_name, key_bytes};
use crate::model::{Family, State};
use crate::replay::TOGETHER;

/// Iterators of a single step.
const PASSING: u8 = 255;

/// Something that a store showed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Shown {
    /// That the call is done.
    Done,
    /// A value, or none.
    Value(Option<Vec<u8>>),
    /// An iterator's place.
    At(Option<(Vec<u8>, Vec<u8>)>),
    /// A text, or none.
    Text(Option<String>),
}

/// All that a step showed.
pub(super) type Seen = Vec<Said<Shown>>;

/// Properties that both stores have; `true` if the values must be the same.
const PROPERTIES: &[(&str, bool)] = &[
    ("rocksdb.num-snapshots", true),
    ("rocksdb.is-file-deletions-enabled", true),
    ("rocksdb.background-errors", true),
    ("rocksdb.num-files-at-level0", false),
    ("rocksdb.num-files-at-level6", false),
    ("rocksdb.num-files-at-level99", false),
    ("rocksdb.stats", false),
    ("rocksdb.sstables", false),
    ("rocksdb.cfstats", false),
    ("rocksdb.dbstats", false),
    ("rocksdb.levelstats", false),
    ("rocksdb.num-immutable-mem-table", false),
    ("rocksdb.mem-table-flush-pending", false),
    ("rocksdb.num-running-flushes", false),
    ("rocksdb.compaction-pending", false),
    ("rocksdb.num-running-compactions", false),
    ("rocksdb.cur-size-active-mem-table", false),
    ("rocksdb.cur-size-all-mem-tables", false),
    ("rocksdb.size-all-mem-tables", false),
    ("rocksdb.num-entries-active-mem-table", false),
    ("rocksdb.num-deletes-active-mem-table", false),
    ("rocksdb.estimate-num-keys", false),
    ("rocksdb.estimate-table-readers-mem", false),
    ("rocksdb.oldest-snapshot-time", false),
    ("rocksdb.oldest-snapshot-sequence", false),
    ("rocksdb.num-live-versions", false),
    ("rocksdb.current-super-version-number", false),
    ("rocksdb.estimate-live-data-size", false),
    ("rocksdb.min-log-number-to-keep", false),
    ("rocksdb.total-sst-files-size", false),
    ("rocksdb.live-sst-files-size", false),
    ("rocksdb.base-level", false),
    ("rocksdb.block-cache-capacity", false),
    ("rocksdb.block-cache-usage", false),
    ("rocksdb.estimate-pending-compaction-bytes", false),
    ("rocksdb.aggregated-table-properties", false),
    ("rocksdb.actual-delayed-write-rate", false),
    ("rocksdb.is-write-stopped", false),
    ("rocksdb.estimate-oldest-key-time", false),
    ("rocksdb.no-such-property", true),
];

/// An update with names and bytes.
pub(super) fn op(state: &State, update: &Update) -> Option<Op> {
    let of = |slot: &Slot| state.get(slot).map(|family| (family_name(*slot, family.kind), family.kind));
    Some(match update {
        Update::Put(slot, key, value) => {
            let (name, kind) = of(slot)?;
            Op::Put(name, key_bytes(*key), kind.value_bytes(*value))
        }
        Update::Merge(slot, key, value) => {
            let (name, kind) = of(slot)?;
            Op::Merge(name, key_bytes(*key), kind.value_bytes(*value))
        }
        Update::Delete(slot, key) => Op::Delete(of(slot)?.0, key_bytes(*key)),
        Update::SingleDelete(slot, key) => Op::SingleDelete(of(slot)?.0, key_bytes(*key)),
        Update::DeleteRange(slot, from, to) => {
            let (name, kind) = of(slot)?;
            let (from, to) = Family::ordered(kind, *from, *to);
            Op::DeleteRange(name, from, to)
        }
        Update::LogData(seed) => Op::LogData(seed.to_le_bytes().to_vec()),
    })
}

fn ops(state: &State, updates: &[Update]) -> Vec<Op> {
    updates.iter().filter_map(|update| op(state, update)).collect()
}

/// A store under a step.
pub(super) struct On<'a, S> {
    pub store: &'a mut S,
    /// The column families that there are.
    pub state: &'a State,
    /// A directory of this store's, for files.
    pub scratch: &'a Path,
    /// Kinds of the iterators that are held.
    pub held: &'a std::collections::BTreeMap<u8, Kind>,
}

impl<S: Store> On<'_, S> {
    fn name(&self, slot: Slot) -> (String, Kind) {
        let kind = self.state.get(&slot).map_or(Kind::Plain, |family| family.kind);
        (family_name(slot, kind), kind)
    }

    fn look(&self, slot: Slot, view: View, bounds: &Bounds) -> Look {
        let (_, kind) = self.name(slot);
        let mut look = Look {
            snapshot: view.snapshot,
            lower: bounds.lower.map(key_bytes),
            upper: bounds.upper.map(key_bytes),
            total_order: !bounds.auto_prefix,
            same_prefix: false,
            auto_prefix: bounds.auto_prefix,
            readahead: bounds.readahead as usize,
        };
        if let Some(prefix) = bounds.prefix.filter(|_| kind.is_bytewise()) {
            let prefix = prefix_bytes(prefix);
            let mut end = prefix.clone();
            while end.pop_if(|last| *last == 0xff).is_some() {}
            if let Some(last) = end.last_mut() {
                *last += 1;
                look.upper = Some(look.upper.map_or(end.clone(), |upper| upper.min(end.clone())));
            }
            look.lower = Some(look.lower.map_or(prefix.clone(), |lower| lower.max(prefix)));
        }
        look
    }

    /// Moves, and skips entries that a filter may have removed.
    fn go(&mut self, id: u8, kind: Kind, to: &Go) -> Said<Shown> {
        let onward = if matches!(to, Go::Last | Go::SeekForPrev(_) | Go::Prev) { Go::Prev } else { Go::Next };
        let mut at = self.store.go(id, to)?;
        loop {
            let Some((key, value)) = at else { return Ok(Shown::At(None)) };
            if let Some(value) = kind.settled(&value) {
                return Ok(Shown::At(Some((key, value.to_vec()))));
            }
            at = self.store.go(id, &onward)?;
        }
    }

    fn walk(&mut self, id: u8, kind: Kind, moves: &[Move], seen: &mut Seen) {
        for to in moves {
            let (to, times) = match to {
                Move::First => (Go::First, 1),
                Move::Last => (Go::Last, 1),
                Move::Seek(key) => (Go::Seek(key_bytes(*key)), 1),
                Move::SeekForPrev(key) => (Go::SeekForPrev(key_bytes(*key)), 1),
                Move::Next(n) => (Go::Next, *n),
                Move::Prev(n) => (Go::Prev, *n),
            };
            for _ in 0..times {
                let at = self.go(id, kind, &to);
                seen.push(at);
            }
        }
    }

    /// All entries of all column families, in both directions.
    pub fn everything(&mut self, snapshot: Option<u8>, slots: &[Slot], seen: &mut Seen) {
        for &slot in slots {
            let (name, kind) = self.name(slot);
            let look = Look { snapshot, total_order: true, ..Look::default() };
            for (first, next) in [(Go::First, Go::Next), (Go::Last, Go::Prev)] {
                if let Err(refusal) = self.store.iterator(PASSING, &name, &look) {
                    seen.push(Err(refusal));
                    continue;
                }
                let mut to = first;
                loop {
                    let at = self.go(PASSING, kind, &to);
                    let more = matches!(at, Ok(Shown::At(Some(_))));
                    seen.push(at);
                    if !more {
                        break;
                    }
                    to = next.clone();
                }
                self.store.close(PASSING);
            }
        }
    }

    fn write(&mut self, how: How, updates: &[Update]) -> Said<()> {
        let ops = ops(self.state, updates);
        let mut options = WriteHow {
            sync: how.sync,
            disable_wal: how.disable_wal,
            no_slowdown: how.no_slowdown,
            low_pri: how.low_pri,
        };
        for some in ops.chunks(if how.alone { 1 } else { ops.len().max(1) }) {
            loop {
                match self.store.write(options, some) {
                    // It would have had to wait; retries with waiting.
                    Err(e) if options.no_slowdown && e.kind == rockmill::ErrorKind::Incomplete => {
                        options.no_slowdown = false;
                    }
                    done => break done?,
                }
            }
        }
        Ok(())
    }

    fn compact(&mut self, slot: Slot, from: Option<Key>, to: Option<Key>, bottom: Bottom, alone: bool) -> Said<()> {
        let (name, kind) = self.name(slot);
        let (from, to) = match (from, to) {
            (Some(from), Some(to)) => {
                let (from, to) = Family::ordered(kind, from, to);
                (Some(from), Some(to))
            }
            (from, to) => (from.map(key_bytes), to.map(key_bytes)),
        };
        let bottommost = match bottom {
            Bottom::Skip => 0,
            Bottom::Filtered => 1,
            Bottom::Force => 2,
            Bottom::ForceOptimized => 3,
        };
        let how = CompactHow { bottommost, exclusive: alone, change_level: false };
        self.store.compact(&name, from.as_deref(), to.as_deref(), how)
    }

    /// Flushes and compacts everything, so that expired values are removed.
    fn age(&mut self) -> Said<()> {
        let names = self.store.names();
        self.store.flush(&names, true)?;
        let how = CompactHow { bottommost: 2, exclusive: true, change_level: false };
        names.iter().try_for_each(|name| self.store.compact(name, None, None, how))
    }

    /// A call that violates a rule, or nearly does.
    fn wrong(&mut self, n: u8) -> Seen {
        let default = "default";
        let done = |said: Said<()>| said.map(|()| Shown::Done);
        let low = key_bytes(10);
        let plain = WriteHow::default();
        let put = Op::Put(default.to_owned(), key_bytes(5), b"wrong".to_vec());
        vec![match n {
            0 => done(self.store.create(default, Kind::Plain)),
            1 => {
                let made = self.store.create("", Kind::Plain);
                let gone = if made.is_ok() { self.store.drop_family("") } else { Ok(()) };
                return vec![done(made), done(gone)];
            }
            2 => done(self.store.drop_family(default)),
            3 => done(self.store.set_option(default, "no_such_option", "1")),
            4 => done(self.store.set_option(default, "write_buffer_size", "many")),
            5 => done(self.store.write(plain, &[Op::LogData(b"nothing else".to_vec())])),
            6 => done(self.store.write(WriteHow { sync: true, disable_wal: true, ..plain }, &[put])),
            7 => done(self.store.ingest(default, &[self.scratch.join("no-such.sst")], false, false)),
            8 => done(self.store.ingest(default, &[], false, false)),
            9 => {
                let newest = self.store.latest_sequence();
                self.store.updates_since(newest + 1000).and_then(|(_, ended)| done(ended))
            }
            10 => done(self.store.checkpoint(self.scratch, 0)),
            11 => done(self.store.set_option(default, "compression", "kNoSuchCompression")),
            12 => done(self.store.set_option(default, "max_write_buffer_number", "-")),
            13 => done(self.store.write(plain, &[Op::DeleteRange(default.to_owned(), low.clone(), low)])),
            14 => done(self.store.write(plain, &[])),
            _ => {
                let path = self.scratch.join("no-table.sst");
                let made = std::fs::write(&path, [7; 100]);
                let said = done(self.store.ingest(default, std::slice::from_ref(&path), false, false));
                let _ = made.and_then(|()| std::fs::remove_file(&path));
                said
            }
        }]
    }

    /// Runs one step, except those that the pair runs itself.
    pub fn step(&mut self, step: &Step) -> Seen {
        let done = |said: Said<()>| vec![said.map(|()| Shown::Done)];
        let mut seen = Vec::new();
        match step {
            Step::Write(how, updates) => return done(self.write(*how, updates)),
            Step::Together(writers) => {
                let chunk = |some: &[Update]| ops(self.state, some);
                let writers: Vec<Vec<Vec<Op>>> =
                    writers.iter().map(|writer| writer.updates.chunks(TOGETHER).map(chunk).collect()).collect();
                return done(self.store.write_together(&writers));
            }
            Step::Get(slot, key, view) => {
                let (name, kind) = self.name(*slot);
                let got = self.store.get(&name, &key_bytes(*key), view.snapshot);
                return vec![got.map(|v| Shown::Value(settled(kind, v)))];
            }
            Step::MultiGet(view, keys) => {
                let kinds: Vec<Kind> = keys.iter().map(|(slot, _)| self.name(*slot).1).collect();
                let keys: Vec<_> = keys.iter().map(|(slot, key)| (self.name(*slot).0, key_bytes(*key))).collect();
                let all = self.store.multi_get(&keys, view.snapshot);
                return all.into_iter().zip(kinds).map(|(v, kind)| Ok(Shown::Value(settled(kind, v?)))).collect();
            }
            Step::Walk(slot, view, bounds, moves) => {
                let (name, kind) = self.name(*slot);
                let look = self.look(*slot, *view, bounds);
                match self.store.iterator(PASSING, &name, &look) {
                    Ok(()) => self.walk(PASSING, kind, moves, &mut seen),
                    Err(e) => seen.push(Err(e)),
                }
                self.store.close(PASSING);
            }
            Step::SamePrefix(slot, view, bounds, moves) => {
                let (name, kind) = self.name(*slot);
                let bounds = Bounds { prefix: None, auto_prefix: false, ..*bounds };
                let mut look = self.look(*slot, *view, &bounds);
                (look.same_prefix, look.total_order) = (true, false);
                // Keys without a prefix, which extractors need not accept, come after this one.
                let end = b"z".to_vec();
                look.upper = Some(look.upper.map_or(end.clone(), |upper| upper.min(end)));
                match self.store.iterator(PASSING, &name, &look) {
                    Ok(()) => self.walk(PASSING, kind, moves, &mut seen),
                    Err(e) => seen.push(Err(e)),
                }
                self.store.close(PASSING);
            }
            // All keys with a prefix, by bounds: results of prefix filters without bounds differ between the stores.
            Step::Prefix(slot, key) => {
                let bounds = Bounds { prefix: Some((*key, 5)), auto_prefix: true, ..Bounds::default() };
                let moves = [Move::Seek(*key), Move::Next(20)];
                return self.step(&Step::Walk(*slot, View::default(), bounds, moves.to_vec()));
            }
            Step::Check(view) => {
                seen.push(Ok(Shown::Text(Some(self.store.names().join(" ")))));
                let slots: Vec<Slot> = self.state.keys().copied().collect();
                self.everything(view.snapshot, &slots, &mut seen);
            }
            Step::Snapshot(id) => return done(self.store.snapshot(*id)),
            Step::Release(id) => return done(self.store.release(*id)),
            Step::Iterator(id, slot, bounds) => {
                let (name, _) = self.name(*slot);
                let look = self.look(*slot, View::default(), bounds);
                return done(self.store.iterator(*id, &name, &look));
            }
            Step::Move(id, moves) => {
                let kind = self.held.get(id).copied().unwrap_or(Kind::Plain);
                self.walk(*id, kind, moves, &mut seen);
            }
            Step::Close(id) => self.store.close(*id),
            Step::Flush(slots, wait) => {
                let names = if slots.is_empty() {
                    self.store.names()
                } else {
                    slots.iter().map(|slot| self.name(*slot).0).collect()
                };
                return done(self.store.flush(&names, *wait));
            }
            Step::Compact(slot, from, to, bottom, alone) => {
                return done(self.compact(*slot, *from, *to, *bottom, *alone));
            }
            Step::SetOptions(slot, name, value) => {
                let (family, _) = self.name(*slot);
                return done(self.store.set_option(&family, name, value));
            }
            Step::Create(slot, kind) => return done(self.store.create(&family_name(*slot, *kind), *kind)),
            Step::Drop(slot) => return done(self.store.drop_family(&self.name(*slot).0)),
            Step::FlushWal(sync) => return done(self.store.flush_wal(*sync)),
            Step::Inspect(slot) => {
                let (family, _) = self.name(*slot);
                for (name, same) in PROPERTIES {
                    let text = self.store.property(&family, name);
                    let shown = if *same { text } else { text.map(|_| (*name).to_owned()) };
                    seen.push(Ok(Shown::Text(shown)));
                }
            }
            Step::Wrong(n) => return self.wrong(*n),
            Step::Age => {
                let aged = self.age();
                seen.extend(done(aged));
                let slots: Vec<Slot> = self.state.keys().copied().collect();
                self.everything(None, &slots, &mut seen);
            }
            // The pair's, or nothing that shows.
            _ => {}
        }
        seen
    }
}

fn settled(kind: Kind, value: Option<Vec<u8>>) -> Option<Vec<u8>> {
    value.and_then(|value| kind.settled(&value).map(<[u8]>::to_vec))
}
