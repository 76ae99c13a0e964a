//! How a merged memtable is made, by several threads.
//!
//! 1. The user keys are cut into *parts* of some thousand entries, at keys that were sampled from the inputs: the nodes
//!    of a high level of a skip list are about evenly spread over it. Threads take one part after another, so that no
//!    thread has more than one part left when the others are done. All versions of a user key are in one part.
//! 2. For each part, the entries of each input are *gathered* with their prefixes. The entries of a skip list come one
//!    after the other, and each costs the time of a cache miss; so the range is divided once more, at the nodes of a
//!    lower level, and some of these stretches are walked in turn, one step each: their misses overlap.
//! 3. The gathered entries of each input are merged, two neighbours at a time. They and the entries that they point to
//!    are in the caches by now. Prefixes that differ decide a comparison.
//! 4. Entries that no reader sees are dropped (see the parent module).
//! 5. When all parts are done their entries are copied to their places in the table, again by all threads.

use std::ops::Range;
use std::sync::Arc;

use rockmill_format::key::{InternalKey, tag, user_key};
use rockmill_format::{InternalKeyComparator, SequenceNumber, ValueType};

use super::index::{KeyPrefixes, PrefixIndex};
use super::{Figures, MergedMemTable, RangeDels, SealedTable};
use crate::error::{Error, Result};
use crate::memtable::bloom::{Bloom, MemTableFilter};
use crate::memtable::log_values::{LogValues, Slot};
use crate::memtable::skiplist::{Entry, EntrySource, SkipList, SortedEntries};
use crate::memtable::write_buffer_manager::WriteBufferManager;
use crate::panics::{caught, guarded};
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::{Mutex, thread};

/// What a merge gets in addition to its inputs.
pub struct MergePlan<'a> {
    /// Only entries up to this sequence number are judged; see the parent module for what must be true of it.
    pub visible: SequenceNumber,
    /// The live snapshots, rising, listed after `visible` was read.
    pub snapshots: &'a [SequenceNumber],
    /// How many threads work, the caller's own among them.
    pub threads: usize,
    /// The filter that the merged memtable gets.
    pub filter: &'a MemTableFilter,
    /// What its own memory is charged to; its inputs' is charged already.
    pub manager: Option<&'a WriteBufferManager>,
    /// Asked now and then; true ends the merge without a result.
    pub stop: &'a (dyn Fn() -> bool + Sync),
}

/// What a merge left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Entries.
    pub entries: u64,
    /// Deletions among them.
    pub deletes: u64,
    /// Bytes of their internal keys and of their values.
    pub data_size: u64,
    /// Bytes of values in logs that are no longer referenced.
    pub bytes_in_logs: u64,
}

impl LeftOut {
    /// `slot`: an index table's, else the value itself stands in the entry.
    fn count(&mut self, entry: Entry<'_>, value_type: ValueType, slot: bool) {
        self.entries += 1;
        self.deletes += u64::from(value_type == ValueType::Deletion);
        let value = match slot.then(|| Slot::read(entry.value())) {
            None => entry.value().len(),
            Some(Slot::Inline(value)) => value.len(),
            Some(Slot::InLog(at)) => {
                self.bytes_in_logs += u64::from(at.len);
                at.len as usize
            }
        };
        self.data_size += (entry.key().len() + value) as u64;
    }

    fn add(&mut self, other: &Self) {
        self.entries += other.entries;
        self.deletes += other.deletes;
        self.data_size += other.data_size;
        self.bytes_in_logs += other.bytes_in_logs;
    }
}

/// How the work is divided.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    /// About how many entries a part has.
    part: usize,
    /// The level whose nodes say where parts begin: some of them lie in a part.
    sample_level: usize,
    /// The level whose nodes divide a part's range in one skip list.
    stretch_level: usize,
}

impl Sizes {
    /// 4,096 entries: with their keys they fit into a core's own cache. Under the schedule explorer there are only a
    /// few entries.
    pub(super) const USUAL: Self =
        if cfg!(rockmill_shuttle) { Self::SMALL } else { Self { part: 4096, sample_level: 9, stretch_level: 6 } };

    /// Many parts of few entries.
    pub(super) const SMALL: Self = Self { part: 4, sample_level: 1, stretch_level: 1 };
}

/// Stretches of skip lists that are walked in turn.
const LANES: usize = 10;
/// Rounds between two questions whether to stop.
const ROUNDS: usize = 1024;

/// An entry with its prefix.
#[derive(Clone, Copy)]
struct Item<'a> {
    prefix: u64,
    entry: Entry<'a>,
}

/// Why there is no merged memtable.
enum Halt {
    Stopped,
    Failed(Error),
}

impl MergedMemTable {
    /// Merges memtables to which nothing is added any more, newest first. `None` when it was stopped, or without any.
    ///
    /// The entries are those of the inputs without those that no reader sees; see the module's text for what the caller
    /// must promise.
    pub fn build(inputs: &[SealedTable], plan: &MergePlan<'_>) -> Result<Option<(Self, LeftOut)>> {
        Self::build_in(inputs, plan, Sizes::USUAL)
    }

    pub(super) fn build_in(
        inputs: &[SealedTable],
        plan: &MergePlan<'_>,
        sizes: Sizes,
    ) -> Result<Option<(Self, LeftOut)>> {
        // The comparator may be the user's own code.
        guarded("a merge of memtables", || {
            let Some(newest) = inputs.first() else { return Ok(None) };
            match merge(inputs, newest.cmp(), plan, sizes) {
                Ok(done) => Ok(Some(done)),
                Err(Halt::Stopped) => Ok(None),
                Err(Halt::Failed(e)) => Err(e),
            }
        })
    }
}

impl SealedTable {
    fn cmp(&self) -> &InternalKeyComparator {
        match self {
            Self::Plain(t) => t.list.cmp(),
            Self::Merged(t) => &t.cmp,
        }
    }

    fn source(&self) -> EntrySource {
        match self {
            Self::Plain(t) => EntrySource::List(Arc::clone(&t.list)),
            Self::Merged(t) => EntrySource::Sorted(Arc::clone(&t.entries)),
        }
    }

    fn add_range_deletions(&self, out: &mut RangeDels) {
        match self {
            Self::Plain(t) => out.all.extend(t.range_dels.lock().all.iter().cloned()),
            Self::Merged(t) => out.all.extend(t.range_dels.all.iter().cloned()),
        }
    }
}

fn merge(
    inputs: &[SealedTable],
    cmp: &InternalKeyComparator,
    plan: &MergePlan<'_>,
    sizes: Sizes,
) -> std::result::Result<(MergedMemTable, LeftOut), Halt> {
    let sources: Vec<EntrySource> = inputs.iter().map(SealedTable::source).collect();
    let bloom = Bloom::new(plan.filter);
    let values = LogValues::of_all(inputs.iter().filter_map(SealedTable::log_values));
    let (entries, (index, left_out)) = SortedEntries::new(&sources, |sources| {
        let inputs = inputs.iter().zip(sources).map(|(table, source)| Input::new(table, source)).collect();
        let (prefixes, slots) = (prefixes(sources, cmp), values.is_some());
        let build = Build { inputs, cmp, prefixes, bloom: bloom.as_ref(), plan, sizes, slots };
        let parts = build.parts()?;
        let mut left_out = LeftOut::default();
        parts.iter().for_each(|part| left_out.add(&part.left_out));
        let (entries, index) = build.put_together(parts);
        Ok((entries, (index, left_out)))
    })?;
    let sum = |figure: fn(&SealedTable) -> u64| inputs.iter().map(figure).sum::<u64>();
    let figures = Figures {
        entries: sum(SealedTable::num_entries) - left_out.entries,
        deletes: sum(SealedTable::num_deletes) - left_out.deletes,
        data_size: sum(SealedTable::data_size) - left_out.data_size,
        first_sequence: inputs.iter().map(SealedTable::first_sequence).min().unwrap_or(SequenceNumber::MAX),
    };
    let mut range_dels = RangeDels::default();
    inputs.iter().for_each(|table| table.add_range_deletions(&mut range_dels));
    let mut table = MergedMemTable {
        ids: inputs.iter().flat_map(SealedTable::ids).collect(),
        cmp: cmp.clone(),
        entries: Arc::new(entries),
        index,
        bloom,
        range_dels: RangeDels::new(range_dels.all, cmp),
        figures,
        values,
        account: None,
    };
    table.account = plan.manager.map(|manager| {
        let account = manager.account();
        // First, so that it never counts as memory of a memtable that is being filled.
        account.immutable();
        account.charge(table.own_memory_usage());
        account
    });
    Ok((table, left_out))
}

/// How prefixes are made of the keys of all sources.
fn prefixes(sources: &[EntrySource], cmp: &InternalKeyComparator) -> KeyPrefixes {
    let ends = sources.iter().filter_map(|source| match source {
        EntrySource::List(list) => list.first().zip(list.last()),
        EntrySource::Sorted(all) => all.get(0).zip(all.get(all.len().wrapping_sub(1))),
    });
    let keys = ends.map(|(first, last)| (user_key(first.key()), user_key(last.key())));
    let all = keys.reduce(|a, b| {
        let first = if cmp.compare_user(b.0, a.0).is_lt() { b.0 } else { a.0 };
        let last = if cmp.compare_user(b.1, a.1).is_gt() { b.1 } else { a.1 };
        (first, last)
    });
    let (first, last) = all.unwrap_or_default();
    KeyPrefixes::new(cmp, first, last)
}

/// One of the inputs.
enum Input<'a> {
    List(&'a SkipList),
    Sorted(&'a SortedEntries, Arc<MergedMemTable>),
}

impl<'a> Input<'a> {
    fn new(table: &SealedTable, source: &'a EntrySource) -> Self {
        match (source, table) {
            (EntrySource::List(list), _) => Self::List(list),
            (EntrySource::Sorted(all), SealedTable::Merged(table)) => Self::Sorted(all, Arc::clone(table)),
            (EntrySource::Sorted(_), SealedTable::Plain(_)) => unreachable!("the source was made of the table"),
        }
    }

    /// Some entries, in order, each of which stands for `2^level` of them.
    fn samples(&self, level: usize, out: &mut Vec<Entry<'a>>) {
        match self {
            Self::List(list) => out.extend(list.on_level(level)),
            Self::Sorted(all, _) => out.extend((0..all.len()).step_by(1 << level).filter_map(|at| all.get(at))),
        }
    }
}

struct Build<'a, 'p> {
    /// Newest first.
    inputs: Vec<Input<'a>>,
    cmp: &'p InternalKeyComparator,
    prefixes: KeyPrefixes,
    bloom: Option<&'p Bloom>,
    plan: &'p MergePlan<'p>,
    sizes: Sizes,
    /// They are index tables.
    slots: bool,
}

/// A part that is done.
struct Part<'a> {
    items: Vec<Item<'a>>,
    left_out: LeftOut,
}

/// What a thread uses again for each part.
#[derive(Default)]
struct Scratch<'a> {
    /// The gathered items, and the result of merging them.
    items: [Vec<Item<'a>>; 2],
    /// Where each input's items end.
    ends: Vec<usize>,
    heads: Vec<Entry<'a>>,
    stretches: Vec<Stretch<'a>>,
    walked: Vec<Vec<Item<'a>>>,
}

/// Neighbours in a skip list, and where they go.
struct Stretch<'a> {
    at: Entry<'a>,
    end: Option<Entry<'a>>,
    to: usize,
}

impl<'a> Build<'a, '_> {
    /// Runs `work` on all threads.
    fn on_threads(&self, jobs: usize, work: impl Fn() + Sync) {
        let work = &work;
        thread::scope(|scope| {
            for _ in 1..self.plan.threads.min(jobs) {
                // If a thread cannot be started, the others do its work.
                let _ = thread::Builder::new().name("rockmill:merge".to_owned()).spawn_scoped(scope, work);
            }
            work();
        });
    }

    /// Where parts begin, except the first.
    fn cuts(&self) -> Vec<InternalKey> {
        let mut samples = Vec::new();
        self.inputs.iter().for_each(|input| input.samples(self.sizes.sample_level, &mut samples));
        let each = (self.sizes.part >> self.sizes.sample_level).max(1);
        samples.sort_unstable_by(|a, b| self.cmp.compare_user(user_key(a.key()), user_key(b.key())));
        let mut keys: Vec<&[u8]> = samples.iter().step_by(each).skip(1).map(|e| user_key(e.key())).collect();
        keys.dedup_by(|a, b| self.cmp.compare_user(a, b).is_eq());
        keys.into_iter().map(InternalKey::min_possible).collect()
    }

    /// All parts, in order.
    fn parts(&self) -> std::result::Result<Vec<Part<'a>>, Halt> {
        let cuts = self.cuts();
        let done: Vec<Mutex<Option<Part<'a>>>> = (0..=cuts.len()).map(|_| Mutex::new(None)).collect();
        let next = AtomicUsize::new(0);
        let halted = AtomicBool::new(false);
        let failed: Mutex<Option<Error>> = Mutex::new(None);
        self.on_threads(done.len(), || {
            let mut scratch = Scratch::default();
            while !halted.load(Ordering::Acquire) {
                let i = next.fetch_add(1, Ordering::Relaxed);
                let Some(slot) = done.get(i) else { return };
                let from = i.checked_sub(1).and_then(|i| cuts.get(i)).map(InternalKey::as_bytes);
                let to = cuts.get(i).map(InternalKey::as_bytes);
                match caught("a merge of memtables", || self.part(from, to, &mut scratch)) {
                    Ok(Some(part)) => *slot.lock() = Some(part),
                    Ok(None) => halted.store(true, Ordering::Release),
                    Err(e) => {
                        failed.lock().get_or_insert(e); // before others see that they are to end
                        halted.store(true, Ordering::Release);
                    }
                }
            }
        });
        if let Some(e) = failed.into_inner() {
            return Err(Halt::Failed(e));
        }
        done.into_iter().map(Mutex::into_inner).collect::<Option<Vec<_>>>().ok_or(Halt::Stopped)
    }

    /// One part; `None` when it was stopped.
    fn part(&self, from: Option<&[u8]>, to: Option<&[u8]>, scratch: &mut Scratch<'a>) -> Option<Part<'a>> {
        self.gather(from, to, scratch)?;
        self.merge_gathered(scratch);
        let mut left_out = LeftOut::default();
        let items = &mut scratch.items[0];
        self.leave_out(items, &mut left_out);
        if let Some(bloom) = self.bloom {
            items.iter().for_each(|item| bloom.add(user_key(item.entry.key())));
        }
        Some(Part { items: items.clone(), left_out })
    }

    /// Fills the first of `scratch.items` with the entries of each input from `from` on and before `to`.
    fn gather(&self, from: Option<&[u8]>, to: Option<&[u8]>, scratch: &mut Scratch<'a>) -> Option<()> {
        let mut walked = 0;
        // Of each input the stretches, or the places.
        let mut runs: Vec<(Range<usize>, Range<usize>)> = Vec::with_capacity(self.inputs.len());
        for input in &self.inputs {
            let begun = walked;
            let mut places = 0..0;
            match input {
                Input::List(list) => {
                    let end = to.and_then(|to| list.seek(to));
                    let start = from.map_or_else(|| list.first(), |from| list.seek(from));
                    if let Some(start) = start.filter(|start| Some(*start) != end) {
                        scratch.heads.clear();
                        scratch.heads.push(start);
                        list.on_level_between(self.sizes.stretch_level, start, end, &mut scratch.heads);
                        for (i, &at) in scratch.heads.iter().enumerate() {
                            let end = scratch.heads.get(i + 1).copied().or(end);
                            scratch.stretches.push(Stretch { at, end, to: walked });
                            walked += 1;
                        }
                    }
                }
                Input::Sorted(all, table) => {
                    let end = to.map_or(all.len(), |to| table.first_at_or_after(to));
                    places = from.map_or(0, |from| table.first_at_or_after(from))..end;
                }
            }
            runs.push((begun..walked, places));
        }
        self.walk(scratch, walked)?;

        let items = &mut scratch.items[0];
        items.clear();
        scratch.ends.clear();
        for (input, (stretches, places)) in self.inputs.iter().zip(runs) {
            for walked in &scratch.walked[stretches] {
                items.extend_from_slice(walked);
            }
            if let Input::Sorted(all, table) = input {
                self.take(all, table, places, items);
            }
            if items.len() > scratch.ends.last().copied().unwrap_or(0) {
                scratch.ends.push(items.len());
            }
        }
        Some(())
    }

    /// Walks all stretches, some of them in turn. `None` when it was stopped.
    fn walk(&self, scratch: &mut Scratch<'a>, count: usize) -> Option<()> {
        let walked = &mut scratch.walked;
        if walked.len() < count {
            walked.resize_with(count, Vec::new);
        }
        walked.iter_mut().for_each(Vec::clear);
        let mut waiting = scratch.stretches.drain(..).inspect(|stretch| stretch.at.prefetch());
        let mut lanes: [Option<Stretch<'a>>; LANES] = std::array::from_fn(|_| waiting.next());
        let mut rounds = 0;
        loop {
            if rounds % ROUNDS == 0 && (self.plan.stop)() {
                return None;
            }
            rounds += 1;
            let mut ended = true;
            for lane in &mut lanes {
                let Some(stretch) = lane else { continue };
                ended = false;
                let entry = stretch.at;
                walked[stretch.to].push(Item { prefix: self.prefixes.of(entry.key()), entry });
                match entry.next() {
                    Some(next) if Some(next) != stretch.end => {
                        next.prefetch();
                        stretch.at = next;
                    }
                    _ => *lane = waiting.next(),
                }
            }
            if ended {
                return Some(());
            }
        }
    }

    /// Takes entries from the previous merge.
    fn take(&self, all: &'a SortedEntries, table: &MergedMemTable, places: Range<usize>, out: &mut Vec<Item<'a>>) {
        let known = table.index.prefixes().same_as(&self.prefixes).then(|| table.index.all());
        for at in places {
            let Some(entry) = all.get(at) else { return };
            let prefix = match known {
                Some(prefixes) => prefixes.get(at).copied().unwrap_or(0),
                None => {
                    if let Some(ahead) = all.get(at + super::AHEAD) {
                        ahead.prefetch();
                    }
                    self.prefixes.of(entry.key())
                }
            };
            out.push(Item { prefix, entry });
        }
    }

    /// Merges the runs in the first of `scratch.items`.
    fn merge_gathered(&self, scratch: &mut Scratch<'a>) {
        let Scratch { items: [items, merged], ends, .. } = scratch;
        while ends.len() > 1 {
            merged.clear();
            merged.reserve(items.len());
            let mut start = 0;
            let mut kept = 0;
            for i in (0..ends.len()).step_by(2) {
                let middle = ends[i];
                let end = ends.get(i + 1).copied().unwrap_or(middle);
                self.merge_two(&items[start..middle], &items[middle..end], merged);
                ends[kept] = end;
                (start, kept) = (end, kept + 1);
            }
            ends.truncate(kept);
            std::mem::swap(items, merged);
        }
    }

    /// Merges two runs; of equal ones, those of `left` come first.
    fn merge_two(&self, left: &[Item<'a>], right: &[Item<'a>], out: &mut Vec<Item<'a>>) {
        let (mut l, mut r) = (0, 0);
        while let (Some(a), Some(b)) = (left.get(l), right.get(r)) {
            let right_first = if a.prefix == b.prefix {
                self.cmp.compare(b.entry.key(), a.entry.key()).is_lt()
            } else {
                b.prefix < a.prefix
            };
            out.push(if right_first { *b } else { *a });
            r += usize::from(right_first);
            l += usize::from(!right_first);
        }
        out.extend_from_slice(&left[l..]);
        out.extend_from_slice(&right[r..]);
    }

    /// Removes entries that no reader sees.
    fn leave_out(&self, items: &mut Vec<Item<'a>>, left_out: &mut LeftOut) {
        let mut previous: Option<Item<'a>> = None;
        // Entries of the present user key from this sequence number on are replaced by a newer one.
        let mut replaced_from: Option<SequenceNumber> = None;
        items.retain(|item| {
            let before = previous.replace(*item).filter(|p| p.prefix == item.prefix).map(|p| p.entry);
            let same = |p: &Entry<'_>| self.cmp.compare_user(user_key(p.key()), user_key(item.entry.key())).is_eq();
            let Some(before) = before.filter(same) else {
                replaced_from = None;
                return true;
            };
            // Most keys have one version, of which only the prefix was read.
            replaced_from = self.replaces_from(before).or(replaced_from);
            let tag = tag(item.entry.key());
            let value_type = ValueType::from_u8(tag as u8).filter(|t| {
                matches!(t, ValueType::Value | ValueType::Deletion | ValueType::Merge)
                    && replaced_from.is_some_and(|from| tag >> 8 >= from)
            });
            if let Some(value_type) = value_type {
                left_out.count(item.entry, value_type, self.slots);
            }
            value_type.is_none()
        });
    }

    /// The sequence number from which on older entries of its user key are replaced by this one, if any are.
    fn replaces_from(&self, entry: Entry<'_>) -> Option<SequenceNumber> {
        let tag = tag(entry.key());
        let sequence = tag >> 8;
        let ends = matches!(ValueType::from_u8(tag as u8), Some(ValueType::Value | ValueType::Deletion));
        if !ends || sequence > self.plan.visible {
            return None;
        }
        // A snapshot sees what is not above it: entries up to the newest snapshot that does not see this one stay.
        let unseen = self.plan.snapshots.partition_point(|s| *s < sequence);
        Some(unseen.checked_sub(1).map_or(0, |newest| self.plan.snapshots[newest] + 1))
    }

    /// The entries of all parts in their places.
    fn put_together(&self, parts: Vec<Part<'a>>) -> (Vec<Entry<'a>>, PrefixIndex) {
        let len = parts.iter().map(|part| part.items.len()).sum();
        let any = parts.iter().find_map(|part| part.items.first()).map(|item| item.entry);
        let mut entries = any.map_or_else(Vec::new, |any| vec![any; len]);
        let index = PrefixIndex::new(self.prefixes.clone(), len, |mut prefixes| {
            let mut rest = &mut entries[..];
            let mut jobs = Vec::with_capacity(parts.len());
            for Part { items, .. } in parts {
                let of_part;
                (of_part, rest) = std::mem::take(&mut rest).split_at_mut(items.len());
                let prefixes_of_part;
                let known = items.len().min(prefixes.len());
                (prefixes_of_part, prefixes) = std::mem::take(&mut prefixes).split_at_mut(known);
                jobs.push((items, of_part, prefixes_of_part));
            }
            let count = jobs.len();
            let jobs = Mutex::new(jobs.into_iter());
            self.on_threads(count, || {
                loop {
                    let Some((items, entries, prefixes)) = jobs.lock().next() else { return };
                    entries.iter_mut().zip(&items).for_each(|(to, item)| *to = item.entry);
                    prefixes.iter_mut().zip(&items).for_each(|(to, item)| *to = item.prefix);
                }
            });
        });
        (entries, index)
    }
}
