//! The `kernel` engine: the merge and the dropping are done by an eBPF program, on blocks in memory that it shares with
//! this process (crate `rockmill-kernel`).
//!
//! 1. Blocks come from the same feeds as those of the other engines, checked and decompressed here, and are put into
//!    each run's part of the memory until it is full. Where the ring reads into that memory itself
//!    (`kernel_reads_in_place`), a block that is stored as it is stays where it was read.
//! 2. A call of the program merges some thousand entries. It gives records, each a key and a value in the memory, or a
//!    whole block that may pass.
//! 3. Resolution reads the records as it reads any stream; what the program dropped is counted as if it had.
//! 4. When all records are read, the places of blocks that the program is done with are filled anew.
//!
//! What the program does not decide stays with resolution: whatever is no value and no tombstone, and what comes behind
//! such a thing. Where it cannot go on (a very long key, a block that does not fit) the part is handed over: it begins
//! again with another engine.

use std::cell::RefCell;
use std::cmp::Ordering::{Equal, Less};
use std::collections::VecDeque;
use std::ops::Range;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use rockmill_format::FormatError;
use rockmill_format::InternalKeyComparator;
use rockmill_format::block::{BlockBuilder, BlockBuilderOptions, BlockCursor, BlockEntries, BlockKind, BlockLayout};
use rockmill_format::footer::{BLOCK_TRAILER_LEN, BlockHandle};
use rockmill_format::key::{TAG_LEN, tag, user_key};
use rockmill_io::ring::Window;
use rockmill_kernel::{BlockPlace, Dropped, Job, Machine, Merge, Refusal, Status};

use super::feed::{BlockFeed, Next};
use super::ring_feed::WINDOWS_KEPT;
use super::{Heads, MergeStream};
use crate::compaction::Stop;
use crate::compaction::merge_program::Fit;
use crate::compaction::plan::{Part, Rules};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::atomic::Ordering;
use crate::table::{StoredBlock, TableReader, WholeBlock};

/// What a merge leaves behind for who began it.
#[derive(Debug, Default)]
pub(crate) struct Left {
    /// The machine, for the next merge.
    pub machine: Option<Machine>,
    /// Why the part has to be done by another engine.
    pub hand_over: Option<String>,
    /// What the program dropped.
    pub dropped: Dropped,
    /// Blocks that were written anew for the program, which knows the usual layout only.
    pub blocks_rewritten: u64,
    /// Blocks that stayed where they were read.
    pub blocks_in_place: u64,
}

/// What is merged.
pub(crate) struct KernelJob<'a> {
    pub part: &'a Part,
    pub rules: &'a Rules,
    /// How the program does it.
    pub fit: &'a Fit,
    pub heads: Heads,
    /// No key at or behind the part's end has a head below this.
    pub end_head: u64,
    /// Whole blocks may pass.
    pub passing: bool,
    pub stop: Stop<'a>,
}

/// What shows that a program with an order of its own has the order of the store's comparator.
///
/// The entries of each run come in the run's order, and all of them come (they are counted), but for versions that the
/// merge itself, byte for byte, finds to be behind a newer one of the same user key. So it is enough that each entry
/// comes behind the one before, and that runs end where they should.
struct OrderCheck {
    cmp: InternalKeyComparator,
    /// The program's.
    origin: String,
    /// The internal key before; empty at first.
    last: Vec<u8>,
    begin: Option<(InternalKeyComparator, Vec<u8>)>,
    end: Option<Vec<u8>>,
}

impl OrderCheck {
    fn new(cmp: &InternalKeyComparator, fit: &Fit, part: &Part) -> Self {
        Self {
            cmp: cmp.clone(),
            origin: fit.origin.clone(),
            last: Vec::new(),
            begin: part.begin.clone().map(|begin| (cmp.clone(), begin)),
            end: part.end.clone(),
        }
    }

    /// Whether `key`, which must not come before the last one, has another user key.
    fn follows(&self, key: &[u8]) -> std::result::Result<bool, String> {
        if key.len() < TAG_LEN {
            return Ok(false); // resolution says what it is
        }
        if self.end.as_ref().is_some_and(|end| self.cmp.compare_user(user_key(key), end).is_ge()) {
            return Err(self.disorder(key, "at or behind the part's end"));
        }
        if self.last.len() < TAG_LEN {
            return Ok(true);
        }
        match self.cmp.compare_user(user_key(&self.last), user_key(key)) {
            Less => Ok(true),
            Equal if tag(&self.last) >= tag(key) => Ok(false),
            _ => Err(self.disorder(key, &format!("behind {}", user_key(&self.last).escape_ascii()))),
        }
    }

    /// Whether a run may end at `key`.
    fn is_behind(&self, key: &[u8]) -> std::result::Result<(), String> {
        match &self.end {
            Some(end) if self.cmp.compare_user(user_key(key), end).is_ge() => Ok(()),
            _ => Err(self.disorder(key, "at its end")),
        }
    }

    #[cold]
    fn disorder(&self, key: &[u8], place: &str) -> String {
        let (name, key) = (self.cmp.user_comparator().name(), user_key(key).escape_ascii());
        format!("the program {} does not order as {name} does: it has key {key} {place}", self.origin)
    }
}

/// A block in the memory.
struct Held {
    number: u32,
    table: Arc<TableReader>,
    handle: BlockHandle,
    kind: BlockKind,
    /// Its contents; with `stored` empty, the trailer stands behind them.
    place: Range<usize>,
    /// Where it was read to, if it stays there, and where it begins in that.
    window: Option<(Rc<Window>, usize)>,
    /// The block as it is stored, where that is something else.
    stored: Vec<u8>,
}

impl Held {
    /// A part of it, or of its trailer, by its place in the program's memory.
    #[inline]
    fn part<'a>(&'a self, memory: &'a [u8], part: Range<usize>) -> Option<&'a [u8]> {
        let Some((window, begin)) = &self.window else { return memory.get(part) };
        let (start, end) = (part.start.checked_sub(self.place.start)?, part.end.checked_sub(self.place.start)?);
        window.get(begin + start..begin + end)
    }

    fn contents<'a>(&'a self, memory: &'a [u8]) -> &'a [u8] {
        self.part(memory, self.place.clone()).unwrap_or(&[])
    }
}

/// One run.
struct Input<F> {
    feed: F,
    /// Numbers rise by one.
    held: VecDeque<Held>,
    /// Windows that these stand in.
    windows: usize,
    /// The feed's current block has to be put into the memory.
    waits: Option<(BlockLayout, BlockKind)>,
    /// What came behind the last block that was put there.
    failed: Option<Error>,
    ended: bool,
    /// The block before was of the usual layout: the one after it may pass.
    usual: bool,
    /// Entries before this user key are left out, until one is not before it.
    before: Option<(InternalKeyComparator, Vec<u8>)>,
}

/// The stream of a merge by the program.
pub(crate) struct KernelStream<'a, F> {
    /// `None` only while it is dropped.
    merge: Option<Merge>,
    inputs: Vec<Input<F>>,
    stop: Stop<'a>,
    left: Rc<RefCell<Left>>,
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
    /// Where the program orders in a way of its own.
    check: Option<Box<OrderCheck>>,
    state: State,
    /// What the last call ended with.
    status: Status,
    /// The program is in the ring of the reads: it waits for them, and nobody does here.
    seated: bool,
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
    /// Merges what `feeds` give, in `machine`. Why not is in `left` when it is an error; the machine always is at the
    /// end.
    pub fn new(feeds: Vec<F>, machine: Machine, job: KernelJob<'a>, left: &Rc<RefCell<Left>>) -> Result<Self> {
        let KernelJob { part, rules, fit, heads, end_head, passing, stop } = job;
        let check = fit.order.as_ref().map(|order| Box::new(OrderCheck::new(order, fit, part)));
        let job = Job {
            runs: feeds.len(),
            // Another's order is not believed: what is before it is left out here.
            begin: part.begin.as_deref().filter(|_| check.is_none()),
            end: part.end.as_deref().map(|end| (end, end_head)),
            skip: heads.skip().unwrap_or(0),
            shift: heads.shared_bits(),
            snapshots: &rules.snapshots,
            pass: passing,
            // Without the program, a filter is asked about versions that nobody could read.
            drop: rules.filter.is_none() || fit.filter.is_some(),
            bottommost: rules.bottommost,
            own_order: check.is_some(),
            filter: fit.filter,
        };
        let seated = machine.is_seated();
        let merge = match Merge::begin(machine, &job) {
            Ok(merge) => merge,
            Err(Refusal { reason, machine }) => {
                left.borrow_mut().machine = Some(*machine);
                return Err(hand_over(left, reason));
            }
        };
        let before = check.as_ref().and_then(|check| check.begin.clone());
        let input = |feed| Input {
            feed,
            held: VecDeque::new(),
            windows: 0,
            waits: None,
            failed: None,
            ended: false,
            usual: true,
            before: before.clone(),
        };
        let mut new = Self {
            merge: Some(merge),
            inputs: feeds.into_iter().map(input).collect(),
            stop,
            left: Rc::clone(left),
            passing,
            at: 0,
            key: 0..0,
            value: 0..0,
            place: (0, 0),
            another: false,
            kept: false,
            check,
            state: State::Record,
            status: Status::Again,
            seated,
            waited: None,
            entries: BlockEntries::new(heads.skip()),
            entry: 0,
            rewritten: Vec::new(),
        };
        new.more()?;
        Ok(new)
    }

    #[inline]
    fn memory(&self) -> &[u8] {
        self.merge.as_ref().map_or(&[], |m| m.memory())
    }

    /// Fills the memory of all runs as far as there is room. Where the program waits for reads, only blocks that are
    /// there are taken, but of the run `urgent`.
    fn fill(&mut self, urgent: Option<usize>) -> Result<()> {
        let Some(merge) = &mut self.merge else { return Ok(()) };
        for (run, input) in self.inputs.iter_mut().enumerate() {
            let first = merge.release(run);
            while input.held.front().is_some_and(|held| held.number < first) {
                input.let_go();
            }
            if input.ended || input.failed.is_some() {
                continue;
            }
            let wait = !self.seated || urgent == Some(run);
            if let Err(e) = input.fill(run, merge, self.passing, wait, &mut self.rewritten, &self.left) {
                if self.left.borrow().hand_over.is_some() {
                    return Err(e);
                }
                // Entries before it come first, and the merge may never come to it.
                input.failed = Some(e);
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
            // What the call before ended with comes behind its records.
            match self.status {
                Status::End => {
                    self.check_end()?;
                    self.state = State::Ended;
                    return Ok(());
                }
                Status::Corrupt(run, block) => return Err(self.damage(run, block)),
                Status::HandOver(reason) => return Err(hand_over(&self.left, reason)),
                Status::Dry(run) => {
                    if let Some(e) = self.inputs.get_mut(run).and_then(|i| i.failed.take()) {
                        return Err(e);
                    }
                }
                Status::Again => {}
            }
            self.refill()?;
            let Some(merge) = &mut self.merge else { return Ok(()) };
            if self.seated {
                merge.await_transfers(self.inputs.iter().filter_map(|input| input.feed.awaited()));
            }
            self.status = match merge.call() {
                Ok(status) => status,
                Err(e) => return Err(hand_over(&self.left, format!("the kernel does not run the program: {e}"))),
            };
            self.left.borrow_mut().dropped = merge.dropped();
            if merge.records() > 0 {
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
        if self.seated && comes && self.waited.replace(run) != Some(run) {
            return Ok(());
        }
        self.waited = None;
        self.fill(Some(run))?;
        if is_dry(&self.inputs) {
            return Err(hand_over(&self.left, "a block is too large for the program's memory"));
        }
        Ok(())
    }

    /// Looks at record `at`.
    #[inline]
    fn load(&mut self) -> Result<()> {
        let Some(record) = self.merge.as_ref().and_then(|m| m.record(self.at)) else {
            return Err(hand_over(&self.left, "a record names what is not in the memory"));
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
        if self.value_bytes().is_none() {
            return Err(hand_over(&self.left, "a record names what is not in its block"));
        }
        if self.check.is_some() { self.check_order() } else { Ok(()) }
    }

    /// To the next record.
    #[inline]
    fn next_record(&mut self) -> Result<()> {
        self.at += 1;
        if self.merge.as_ref().is_some_and(|m| self.at < m.records()) { self.load() } else { self.more() }
    }

    #[inline]
    fn held(&self, run: usize, block: u32) -> Option<&Held> {
        let held = &self.inputs.get(run)?.held;
        let at = block.checked_sub(held.front()?.number)?;
        held.get(at as usize).filter(|held| held.number == block)
    }

    /// What a record's value names: in the memory, or in the block that the record names.
    #[inline]
    fn value_bytes(&self) -> Option<&[u8]> {
        let memory = self.memory();
        match memory.get(self.value.clone()) {
            Some(value) => Some(value),
            None => self.held(self.place.0, self.place.1)?.part(memory, self.value.clone()),
        }
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
            return Err(hand_over(&self.left, "a record names a block that is not in the memory"));
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

    /// Looks whether the current entry comes behind the one before, where the program orders in a way of its own.
    fn check_order(&mut self) -> Result<()> {
        let Some(mut check) = self.check.take() else { return Ok(()) };
        let key = match self.state {
            State::Record => self.memory().get(self.key.clone()).unwrap_or(&[]),
            State::Block | State::Offered => self.entries.key(self.entry),
            State::Ended => &[],
        };
        let found = check.follows(key);
        if found.is_ok() && self.state != State::Offered {
            check.last.clear();
            check.last.extend_from_slice(key);
        }
        self.another = matches!(found, Ok(true));
        self.check = Some(check);
        found.map(drop).map_err(|reason| hand_over(&self.left, reason))
    }

    /// Looks whether all runs stand at or behind the part's end, where the program orders in a way of its own.
    fn check_end(&mut self) -> Result<()> {
        let (Some(check), Some(merge)) = (&self.check, &self.merge) else { return Ok(()) };
        let keys = (0..self.inputs.len()).filter_map(|run| merge.current_key(run));
        keys.map(|key| check.is_behind(key))
            .find(std::result::Result::is_err)
            .unwrap_or(Ok(()))
            .map_err(|e| hand_over(&self.left, e))
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
    /// The program is done with the oldest block.
    fn let_go(&mut self) {
        let Some((window, _)) = self.held.pop_front().and_then(|gone| gone.window) else { return };
        let next = self.held.iter().find_map(|held| held.window.as_ref());
        self.windows -= usize::from(next.is_none_or(|(next, _)| !Rc::ptr_eq(next, &window)));
    }

    /// False where the next block is not wanted yet: memory for reads is not to run out, nor is anybody to wait for a
    /// read while there are blocks of the run.
    fn may_take(&self) -> bool {
        match self.feed.next_is() {
            Next::AtHand => true,
            Next::Ready => self.windows <= WINDOWS_KEPT,
            Next::Waits => false,
        }
    }

    fn hold(&mut self, held: Held) {
        if let Some((window, _)) = &held.window {
            let last = self.held.iter().rev().find_map(|held| held.window.as_ref());
            self.windows += usize::from(last.is_none_or(|(last, _)| !Rc::ptr_eq(last, window)));
        }
        self.held.push_back(held);
    }

    /// Puts blocks into the memory until there is no room, or no block; without `wait`, or none that is there.
    fn fill(
        &mut self,
        run: usize,
        merge: &mut Merge,
        passing: bool,
        wait: bool,
        rewritten: &mut Vec<u8>,
        left: &RefCell<Left>,
    ) -> Result<()> {
        loop {
            let (layout, kind) = match self.waits.take() {
                Some(waits) => waits,
                None if self.windows > 0 && !self.may_take() => return Ok(()),
                None if !wait && self.feed.next_is() == Next::Waits => return Ok(()),
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
                return Err(hand_over_cell(left, "a block does not say where it comes from"));
            };
            let (handle, table) = (stored.handle, Arc::clone(stored.table));
            let mut place = BlockPlace { first: 0, end: 0, restart: 0, whole: self.usual && usual, damaged: false };
            let mut behind = None;
            // The rest of a block in which the part begins is written anew, too.
            let as_is = usual && self.before.is_none();
            let in_place = self.feed.in_place().filter(|_| as_is);
            let (contents, kept): (&[u8], _) = if as_is {
                match layout.entries_place(data) {
                    Some((first, _, end)) if first == end => continue, // no entries
                    Some((first, restart, end)) => (place.first, place.restart, place.end) = (first, restart, end),
                    None => place.damaged = true,
                }
                // An uncompressed block stands there with its trailer, so that it can pass.
                match stored.bytes.split_at_checked(data.len()) {
                    _ if in_place.is_some() => (data, Ok(&[][..])),
                    Some((same, trailer)) if passing && same.as_ptr() == data.as_ptr() => (data, Ok(trailer)),
                    _ => (data, Err(if passing { stored.bytes } else { &[] })),
                }
            } else {
                left.borrow_mut().blocks_rewritten += 1;
                behind = rewrite(data, layout, kind, &mut self.before, rewritten).err();
                let parsed = BlockLayout::parse(rewritten).ok().and_then(|layout| layout.entries_place(rewritten));
                if let Some((first, restart, end)) = parsed {
                    (place.first, place.restart, place.end) = (first, restart, end);
                }
                (rewritten, Err(&[][..]))
            };
            if place.first < place.end || place.damaged {
                if in_place.is_none() && contents.len() + TAG_LEN > merge.block_bytes_max() {
                    let (bytes, room) = (contents.len(), merge.block_bytes_max());
                    let reason = format!("a block of {bytes} bytes does not fit into a run's {room} bytes of memory");
                    return Err(hand_over_cell(left, reason));
                }
                let trailer = kept.unwrap_or(&[]);
                let number = merge.given(run);
                let window = in_place.map(|(window, raw)| (Rc::clone(window), raw.start));
                let given = match &window {
                    Some((window, start)) => {
                        let at = window.place().unwrap_or(usize::MAX / 2) + start;
                        merge.give_in_place(run, at, contents.len(), place)
                    }
                    None => merge.give(run, contents, trailer, place),
                };
                let Some(given) = given else {
                    self.waits = Some((layout, kind));
                    return Ok(());
                };
                let stored = kept.err().unwrap_or(&[]).to_vec();
                let kind = if as_is { kind } else { BlockKind::Data { global_seqno: None } };
                let place = given.start..given.start + contents.len();
                left.borrow_mut().blocks_in_place += u64::from(window.is_some());
                self.hold(Held { number, table, handle, kind, place, window, stored });
            }
            self.usual = usual;
            if let Some(e) = behind {
                return Err(self.feed.error(&e));
            }
        }
    }
}

/// Writes a block of another layout, or whose sequence numbers are another's, as a usual one, without the entries that
/// come before a user key. Damage comes behind the entries before it.
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

/// Says why the part has to be done by another engine.
#[cold]
fn hand_over(left: &Rc<RefCell<Left>>, reason: impl Into<String>) -> Error {
    hand_over_cell(left, reason)
}

#[cold]
fn hand_over_cell(left: &RefCell<Left>, reason: impl Into<String>) -> Error {
    let reason = reason.into();
    let error = Error::new(ErrorKind::Aborted, reason.clone());
    left.borrow_mut().hand_over = Some(reason);
    error
}

impl<F> Drop for KernelStream<'_, F> {
    fn drop(&mut self) {
        self.left.borrow_mut().machine = self.merge.take().map(Merge::end);
    }
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
            State::Record => self.value_bytes().unwrap_or(&[]),
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
            held.part(self.memory(), held.place.start..held.place.end + BLOCK_TRAILER_LEN)?
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
            check.last.clear();
            check.last.extend_from_slice(self.entries.key(stands_on));
        }
        if taken {
            return self.next_record();
        }
        self.state = State::Block;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rockmill_format::key::{InternalKey, ValueType};

    use super::*;

    #[test]
    fn what_an_order_must_not_do_is_found() {
        let part = Part { begin: None, end: Some(b"m".to_vec()) };
        let cmp = InternalKeyComparator::default();
        let fit = Fit { origin: "x.o".to_owned(), order: Some(cmp.clone()), filter: None };
        let mut check = OrderCheck::new(&cmp, &fit, &part);
        let key = |user: &[u8], seq| InternalKey::new(user, seq, ValueType::Value).as_bytes().to_vec();
        assert_eq!(check.follows(&key(b"c", 5)), Ok(true), "the first of all");
        check.last = key(b"c", 5);
        assert_eq!(check.follows(&key(b"d", 9)), Ok(true));
        assert_eq!(check.follows(&key(b"c", 4)), Ok(false), "an older version");
        assert_eq!(check.follows(&key(b"c", 5)), Ok(false), "twice");
        let said = |said: std::result::Result<bool, String>| said.unwrap_err();
        let does_not = "the program x.o does not order as leveldb.BytewiseComparator does: it has key ";
        assert_eq!(said(check.follows(&key(b"c", 6))), format!("{does_not}c behind c"), "a newer version");
        assert_eq!(said(check.follows(&key(b"b", 1))), format!("{does_not}b behind c"));
        assert_eq!(said(check.follows(&key(b"m", 1))), format!("{does_not}m at or behind the part's end"));
        assert_eq!(check.is_behind(&key(b"m", 1)), Ok(()));
        assert_eq!(check.is_behind(&key(b"l", 1)), Err(format!("{does_not}l at its end")));
        // Without an end, a run ends where it has nothing left.
        check.end = None;
        assert_eq!(check.is_behind(&key(b"z", 1)), Err(format!("{does_not}z at its end")));
    }
}
