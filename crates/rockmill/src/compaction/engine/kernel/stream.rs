//! The merge by the program, on blocks in memory that it shares with this process (crate `rockmill-kernel`), as a
//! stream of entries.
//!
//! 1. Blocks come from the same feeds as those of the other engines, checked and decompressed here, and are put into
//!    each run's part of the memory until it is full.
//! 2. A call of the program merges some thousand entries. It gives records, each a key and a value in the memory, or a
//!    whole block that may pass.
//! 3. Resolution reads the records as it reads any stream; what the program dropped is counted as if it had.
//! 4. When all records are read, the places of blocks that the program is done with are filled anew.
//!
//! What the program does not decide stays with resolution: whatever is no value and no tombstone, and what comes behind
//! such a thing. Where it cannot go on (a very long key, a block that does not fit) the part is handed over: it begins
//! again with another engine.

use std::collections::VecDeque;
use std::ops::Range;
use std::path::Path;

use rockmill_format::FormatError;
use rockmill_format::InternalKeyComparator;
use rockmill_format::block::{BlockBuilder, BlockBuilderOptions, BlockCursor, BlockEntries, BlockKind, BlockLayout};
use rockmill_format::footer::{BLOCK_TRAILER_LEN, BlockHandle};
use rockmill_format::key::{TAG_LEN, user_key};
use rockmill_kernel::{BlockPlace, Dropped, Instance, Job, Merge, Refusal, Status};

use super::order::OrderCheck;
use super::program::Binding;
use crate::compaction::Stop;
use crate::compaction::engine::PartJob;
use crate::compaction::merge::MergeStream;
use crate::compaction::merge::feed::BlockFeed;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::atomic::Ordering;
use crate::table::{BlockAccess, StoredBlock, WholeBlock};

/// A block in the memory.
struct Held {
    number: u32,
    table: BlockAccess,
    handle: BlockHandle,
    kind: BlockKind,
    /// Its contents; with `stored` empty, the trailer follows them.
    place: Range<usize>,
    /// The block as it is stored, where that is something else.
    stored: Vec<u8>,
}

impl Held {
    fn contents<'a>(&self, memory: &'a [u8]) -> &'a [u8] {
        memory.get(self.place.clone()).unwrap_or(&[])
    }
}

/// One run.
struct Input<F> {
    feed: F,
    /// Numbers rise by one.
    held: VecDeque<Held>,
    /// The feed's current block has to be put into the memory.
    waits: Option<(BlockLayout, BlockKind)>,
    /// What came after the last block that was put there.
    failed: Option<Error>,
    ended: bool,
    /// The block before was of the usual layout: the one after it may pass.
    usual: bool,
    /// Entries before this user key are left out, until one is not before it.
    before: Option<(InternalKeyComparator, Vec<u8>)>,
}

/// Why an input was not filled.
enum Unfilled {
    /// The part has to be done by another engine.
    HandOver(String),
    /// Its blocks cannot be read, or are damaged.
    Failed(Error),
}

impl From<Error> for Unfilled {
    fn from(e: Error) -> Self {
        Self::Failed(e)
    }
}

/// The stream of a merge by the program.
pub(super) struct KernelStream<'a, F> {
    merge: Merge,
    inputs: Vec<Input<F>>,
    stop: Stop<'a>,
    /// Why the part has to be done by another engine.
    hand_over: Option<String>,
    passing: bool,
    /// The current record's number, and what it names.
    at: usize,
    key: Range<usize>,
    value: Range<usize>,
    /// Its run and block.
    place: (usize, u32),
    /// Its user key is surely another than that of the entry before.
    another: bool,
    /// The program's filter keeps it.
    kept: bool,
    /// Set if the program has its own key order or merge loop.
    check: Option<Box<OrderCheck>>,
    state: State,
    /// What the last call ended with.
    status: Status,
    /// The program is in the ring of the reads: it waits for them, and nothing waits here.
    shares_ring: bool,
    /// The run that it waited for in vain.
    waited: Option<usize>,
    /// The entries of a whole block.
    entries: BlockEntries,
    entry: usize,
    /// For blocks that are written anew.
    rewritten: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// On a record of an entry.
    Record,
    /// A whole block is offered.
    Offered,
    /// On an entry of a whole block.
    Block,
    Ended,
}

impl<'a, F: BlockFeed> KernelStream<'a, F> {
    /// Lets `instance` merge what `feeds` give. Nothing is merged before [`Self::start`].
    pub fn new(
        part_job: &PartJob<'a>,
        feeds: Vec<F>,
        instance: Instance,
        binding: &Binding,
    ) -> std::result::Result<Self, Refusal> {
        let (rules, part) = (&part_job.output.plan.rules, part_job.output.part);
        let (prefixes, passing) = (part_job.prefixes, part_job.passing());
        // No key at or after the part's end has a prefix below this.
        let end_prefix = prefixes.of_end(part_job.range, part.end.as_deref());
        let check = binding.order.as_ref().map(|order| Box::new(OrderCheck::new(order, binding, part)));
        let job = Job {
            runs: feeds.len(),
            // Another's order or loop is not believed: what is before it is left out here.
            begin: part.begin.as_deref().filter(|_| check.is_none()),
            end: part.end.as_deref().map(|end| (end, end_prefix)),
            skip: prefixes.skip().unwrap_or(0),
            shift: prefixes.shared_bits(),
            linear_max: None,
            snapshots: &rules.snapshots,
            pass: passing,
            // Without the program, a filter is also asked about versions that no reader can see.
            drop: rules.filter.is_none() || binding.filter.is_some(),
            bottommost: rules.bottommost,
            own_order: binding.own_order,
            filter: binding.filter,
            // Of range tombstones it knows nothing.
            combine: binding.combines && part_job.output.tombstones.is_empty(),
        };
        let shares_ring = instance.shares_ring();
        let merge = Merge::begin(instance, &job)?;
        let before = check.as_ref().and_then(|check| check.begin());
        let input = |feed| Input {
            feed,
            held: VecDeque::new(),
            waits: None,
            failed: None,
            ended: false,
            usual: true,
            before: before.clone(),
        };
        Ok(Self {
            merge,
            inputs: feeds.into_iter().map(input).collect(),
            stop: part_job.stop,
            hand_over: None,
            passing,
            at: 0,
            key: 0..0,
            value: 0..0,
            place: (0, 0),
            another: false,
            kept: false,
            check,
            state: State::Ended,
            status: Status::Again,
            shares_ring,
            waited: None,
            entries: BlockEntries::new(prefixes.skip()),
            entry: 0,
            rewritten: Vec::new(),
        })
    }

    /// To the first entry.
    pub fn start(&mut self) -> Result<()> {
        self.more()
    }

    /// The instance, what the program dropped, and why the part has to be done by another engine, if it has.
    pub fn end(self) -> (Instance, Dropped, Option<String>) {
        let dropped = self.merge.dropped();
        (self.merge.end(), dropped, self.hand_over)
    }

    #[inline]
    fn memory(&self) -> &[u8] {
        self.merge.memory()
    }

    /// Says why the part has to be done by another engine.
    #[cold]
    fn hand_over(&mut self, reason: impl Into<String>) -> Error {
        let reason = reason.into();
        let error = Error::new(ErrorKind::Aborted, reason.clone());
        self.hand_over = Some(reason);
        error
    }

    /// Fills the memory of all runs as far as there is room. Where the program waits for reads, only blocks that are
    /// there are taken, but of the run `awaited`.
    fn fill(&mut self, awaited: Option<usize>) -> Result<()> {
        for run in 0..self.inputs.len() {
            let input = &mut self.inputs[run];
            let first = self.merge.release(run);
            while input.held.front().is_some_and(|held| held.number < first) {
                input.held.pop_front();
            }
            if input.ended || input.failed.is_some() {
                continue;
            }
            let wait = !self.shares_ring || awaited == Some(run);
            match input.fill(run, &mut self.merge, self.passing, wait, &mut self.rewritten) {
                Ok(()) => {}
                Err(Unfilled::HandOver(reason)) => return Err(self.hand_over(reason)),
                // Entries before it come first, and the merge may never come to it.
                Err(Unfilled::Failed(e)) => input.failed = Some(e),
            }
        }
        Ok(())
    }

    /// The next records.
    #[cold]
    fn more(&mut self) -> Result<()> {
        loop {
            if self.stop.iter().any(|s| s.load(Ordering::Acquire)) {
                return Err(Error::new(ErrorKind::ShutdownInProgress, "it was stopped"));
            }
            // What the call before ended with comes after its records.
            match self.status {
                Status::End => {
                    self.check_end()?;
                    self.state = State::Ended;
                    return Ok(());
                }
                Status::Corrupt(run, block) => return Err(self.damage(run, block)),
                Status::HandOver(reason) => return Err(self.hand_over(reason)),
                Status::Dry(run) => {
                    if let Some(e) = self.inputs.get_mut(run).and_then(|i| i.failed.take()) {
                        return Err(e);
                    }
                }
                Status::Again => {}
            }
            self.refill()?;
            if self.shares_ring {
                self.merge.await_transfers(self.inputs.iter().filter_map(|input| input.feed.awaited()));
            }
            self.status = match self.merge.call() {
                Ok(status) => status,
                Err(e) => return Err(self.hand_over(format!("the kernel does not run the program: {e}"))),
            };
            if self.merge.records() > 0 {
                self.at = 0;
                return self.load();
            }
        }
    }

    /// Fills the memory for the next call; a run that was dry has something then, or the program is to wait for it.
    fn refill(&mut self) -> Result<()> {
        self.fill(None)?;
        let Status::Dry(run) = self.status else {
            self.waited = None;
            return Ok(());
        };
        let is_dry =
            |inputs: &[Input<F>]| inputs.get(run).is_some_and(|i| !i.ended && i.failed.is_none() && i.held.is_empty());
        if !is_dry(&self.inputs) {
            self.waited = None;
            return Ok(());
        }
        let comes = self.inputs.get(run).is_some_and(|i| i.feed.awaited().is_some());
        if self.shares_ring && comes && self.waited.replace(run) != Some(run) {
            return Ok(());
        }
        self.waited = None;
        self.fill(Some(run))?;
        if is_dry(&self.inputs) {
            return Err(self.hand_over("a block is too large for the program's memory"));
        }
        Ok(())
    }

    /// Looks at record `at`.
    #[inline]
    fn load(&mut self) -> Result<()> {
        let Some(record) = self.merge.record(self.at) else {
            return Err(self.hand_over("a record names what is not in the memory"));
        };
        self.key = record.key;
        self.value = record.value;
        self.place = (record.run, record.block);
        self.another = record.another;
        self.kept = record.kept;
        self.state = State::Record;
        if record.whole {
            return self.offer();
        }
        if self.check.is_some() { self.check_order() } else { Ok(()) }
    }

    /// To the next record.
    #[inline]
    fn next_record(&mut self) -> Result<()> {
        self.at += 1;
        if self.at < self.merge.records() { self.load() } else { self.more() }
    }

    #[inline]
    fn held(&self, run: usize, block: u32) -> Option<&Held> {
        let held = &self.inputs.get(run)?.held;
        let at = block.checked_sub(held.front()?.number)?;
        held.get(at as usize).filter(|held| held.number == block)
    }

    /// Contents of the block of the current record.
    fn contents(&self) -> &[u8] {
        self.held(self.place.0, self.place.1).map_or(&[], |held| held.contents(self.memory()))
    }

    /// The current record is a whole block: its entries are decoded.
    #[cold]
    fn offer(&mut self) -> Result<()> {
        let (run, block) = self.place;
        let Some(held) = self.held(run, block) else {
            return Err(self.hand_over("a record names a block that is not in the memory"));
        };
        let kind = held.kind;
        let mut entries = std::mem::replace(&mut self.entries, BlockEntries::new(None));
        let data = self.contents();
        let decoded = BlockLayout::parse(data).and_then(|layout| {
            entries.reset(layout, kind);
            entries.fill(data)
        });
        let whole = matches!(decoded, Ok(true)) && entries.fill_whole(data);
        // The program looked at the last restart point only.
        let last = entries.key(entries.len().saturating_sub(1));
        let agrees = !whole || self.memory().get(self.key.clone()) == Some(last);
        self.entries = entries;
        self.entry = 0;
        if let Err(e) = decoded {
            return Err(self.error(run, block, &e));
        }
        if !agrees {
            let e = FormatError::corruption("block's last restart point does not lead to its last entry", 0);
            return Err(self.error(run, block, &e));
        }
        self.state = if whole { State::Offered } else { State::Block };
        if self.check.is_some() { self.check_order() } else { Ok(()) }
    }

    /// The next entry of the whole block.
    fn next_entry(&mut self) -> Result<()> {
        self.entry += 1;
        if self.entry < self.entries.len() {
            return if self.check.is_some() { self.check_order() } else { Ok(()) };
        }
        self.entry = 0;
        let mut entries = std::mem::replace(&mut self.entries, BlockEntries::new(None));
        let more = entries.fill(self.contents());
        self.entries = entries;
        match more {
            Ok(true) if self.check.is_some() => self.check_order(),
            Ok(true) => Ok(()),
            Ok(false) => self.next_record(),
            Err(e) => Err(self.error(self.place.0, self.place.1, &e)),
        }
    }

    /// Checks that the current entry comes after the one before, if the program has its own key order.
    fn check_order(&mut self) -> Result<()> {
        let Some(mut check) = self.check.take() else { return Ok(()) };
        let key = match self.state {
            State::Record => self.memory().get(self.key.clone()).unwrap_or(&[]),
            State::Block | State::Offered => self.entries.key(self.entry),
            State::Ended => &[],
        };
        let found = check.follows(key);
        if found.is_ok() && self.state != State::Offered {
            check.stand_on(key);
        }
        self.another = matches!(found, Ok(true));
        self.check = Some(check);
        found.map(drop).map_err(|reason| self.hand_over(reason))
    }

    /// Checks that all runs are at or after the part's end, if the program has its own key order.
    fn check_end(&mut self) -> Result<()> {
        let Some(check) = &self.check else { return Ok(()) };
        if (0..self.inputs.len()).any(|run| self.merge.is_unread(run)) {
            let reason = check.unread();
            return Err(self.hand_over(reason));
        }
        let mut keys = (0..self.inputs.len()).filter_map(|run| self.merge.current_key(run));
        let found = keys.try_for_each(|key| check.is_behind(key));
        found.map_err(|reason| self.hand_over(reason))
    }

    fn error(&self, run: usize, block: u32, e: &FormatError) -> Error {
        match self.held(run, block) {
            Some(held) => held.table.block_error(held.handle, e),
            None => Error::corruption(e.to_string()),
        }
    }

    /// The program met damage in a block: what the other engines say of it.
    #[cold]
    fn damage(&self, run: usize, block: u32) -> Error {
        let Some(held) = self.held(run, block) else {
            return Error::corruption("the merge program met damage in a block that it does not have");
        };
        let data = held.contents(self.memory());
        let look = || {
            let mut entries = BlockEntries::new(None);
            entries.reset(BlockLayout::parse(data)?, held.kind);
            while entries.fill(data)? {
                if let Some(i) = (0..entries.len()).find(|&i| entries.key(i).len() < TAG_LEN) {
                    let what = format!("block has an internal key of {} bytes", entries.key(i).len());
                    return Err(FormatError::corruption(what, 0));
                }
            }
            Err(FormatError::corruption("block has an entry that the merge program does not understand", 0))
        };
        let found: rockmill_format::Result<()> = look();
        held.table.block_error(held.handle, &found.err().unwrap_or(FormatError::corruption("damaged block", 0)))
    }
}

impl<F: BlockFeed> Input<F> {
    /// Puts blocks into the memory until there is no room, or no block; without `wait`, or none that is there.
    fn fill(
        &mut self,
        run: usize,
        merge: &mut Merge,
        passing: bool,
        wait: bool,
        rewritten: &mut Vec<u8>,
    ) -> std::result::Result<(), Unfilled> {
        loop {
            let (layout, kind) = match self.waits.take() {
                Some(waits) => waits,
                None if !wait && self.feed.next_waits() => return Ok(()),
                None => match self.feed.next_block()? {
                    Some(next) => next,
                    None => {
                        self.ended = true;
                        merge.give_last(run);
                        return Ok(());
                    }
                },
            };
            let data = self.feed.data();
            let usual = !layout.has_separated_values() && kind == BlockKind::Data { global_seqno: None };
            let Some(stored) = self.feed.stored() else {
                return Err(Unfilled::HandOver("a block does not say where it comes from".to_owned()));
            };
            let (handle, table) = (stored.handle, stored.table.clone());
            let mut place = BlockPlace { first: 0, end: 0, restart: 0, whole: self.usual && usual, damaged: false };
            let mut behind = None;
            // The rest of a block in which the part begins is written anew, too.
            let as_is = usual && self.before.is_none();
            let (contents, kept): (&[u8], _) = if as_is {
                match layout.entries_place(data) {
                    Some((first, _, end)) if first == end => continue, // no entries
                    Some((first, restart, end)) => (place.first, place.restart, place.end) = (first, restart, end),
                    None => place.damaged = true,
                }
                // An uncompressed block stands there with its trailer, so that it can pass.
                match stored.bytes.split_at_checked(data.len()) {
                    Some((same, trailer)) if passing && same.as_ptr() == data.as_ptr() => (data, Ok(trailer)),
                    _ => (data, Err(if passing { stored.bytes } else { &[] })),
                }
            } else {
                behind = rewrite(data, layout, kind, &mut self.before, rewritten).err();
                let parsed = BlockLayout::parse(rewritten).ok().and_then(|layout| layout.entries_place(rewritten));
                if let Some((first, restart, end)) = parsed {
                    (place.first, place.restart, place.end) = (first, restart, end);
                }
                (rewritten, Err(&[][..]))
            };
            if place.first < place.end || place.damaged {
                if contents.len() + TAG_LEN > merge.block_bytes_max() {
                    let (bytes, room) = (contents.len(), merge.block_bytes_max());
                    let reason = format!("a block of {bytes} bytes does not fit into a run's {room} bytes of memory");
                    return Err(Unfilled::HandOver(reason));
                }
                let number = merge.given(run);
                let Some(given) = merge.give(run, contents, kept.unwrap_or(&[]), place) else {
                    self.waits = Some((layout, kind));
                    return Ok(());
                };
                let stored = kept.err().unwrap_or(&[]).to_vec();
                let kind = if as_is { kind } else { BlockKind::Data { global_seqno: None } };
                let place = given.start..given.start + contents.len();
                self.held.push_back(Held { number, table, handle, kind, place, stored });
            }
            self.usual = usual;
            if let Some(e) = behind {
                return Err(self.feed.error(&e).into());
            }
        }
    }
}

/// Writes a block of another layout, or whose sequence numbers are another's, as a usual one, without the entries that
/// come before a user key. Damage comes after the entries before it.
fn rewrite(
    data: &[u8],
    layout: BlockLayout,
    kind: BlockKind,
    before: &mut Option<(InternalKeyComparator, Vec<u8>)>,
    out: &mut Vec<u8>,
) -> rockmill_format::Result<()> {
    let mut builder = BlockBuilder::new(BlockBuilderOptions { restart_interval: 16, ..Default::default() });
    let mut cursor = BlockCursor::new(layout, kind);
    let mut result = cursor.seek_to_first(data);
    while result.is_ok() && cursor.valid() {
        if before.as_ref().is_none_or(|(cmp, begin)| cmp.compare_user(user_key(cursor.key()), begin).is_ge()) {
            *before = None;
            builder.add(cursor.key(), data.get(cursor.value_range()).unwrap_or(&[]), None);
        }
        result = cursor.next(data);
    }
    out.clear();
    out.extend_from_slice(builder.finish());
    result
}

impl<F: BlockFeed> MergeStream for KernelStream<'_, F> {
    #[inline]
    fn valid(&self) -> bool {
        matches!(self.state, State::Record | State::Block)
    }

    #[inline]
    fn advance(&mut self) -> Result<()> {
        match self.state {
            State::Record => self.next_record(),
            State::Block => self.next_entry(),
            State::Offered | State::Ended => Ok(()),
        }
    }

    #[inline]
    fn key(&self) -> &[u8] {
        match self.state {
            State::Record => self.memory().get(self.key.clone()).unwrap_or(&[]),
            State::Block => self.entries.key(self.entry),
            State::Offered | State::Ended => &[],
        }
    }

    #[inline]
    fn value(&self) -> &[u8] {
        match self.state {
            State::Record => self.memory().get(self.value.clone()).unwrap_or(&[]),
            State::Block => self.contents().get(self.entries.value_range(self.entry)).unwrap_or(&[]),
            State::Offered | State::Ended => &[],
        }
    }

    #[inline]
    fn surely_new_user_key(&self) -> bool {
        self.another && self.state == State::Record
    }

    #[inline]
    fn filter_kept(&self) -> bool {
        self.kept && self.state == State::Record
    }

    fn file(&self) -> Option<&Path> {
        self.held(self.place.0, self.place.1).map(|held| held.table.path())
    }

    fn block(&self) -> Option<WholeBlock<'_>> {
        if self.state != State::Offered {
            return None;
        }
        let held = self.held(self.place.0, self.place.1)?;
        let data = held.contents(self.memory());
        let bytes = if held.stored.is_empty() {
            self.memory().get(held.place.start..held.place.end + BLOCK_TRAILER_LEN)?
        } else {
            &held.stored
        };
        let stored = StoredBlock { table: &held.table, handle: held.handle, bytes };
        Some(WholeBlock { entries: &self.entries, data, layout: self.entries.layout(), stored })
    }

    fn take_block(&mut self, taken: bool) -> Result<()> {
        // Behind it, or on its first entry, of which it was only asked so far whether it may come.
        let stands_on = if taken { self.entries.len().saturating_sub(1) } else { 0 };
        if let Some(check) = &mut self.check {
            check.stand_on(self.entries.key(stands_on));
        }
        if taken {
            return self.next_record();
        }
        self.state = State::Block;
        Ok(())
    }
}
