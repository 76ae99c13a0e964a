//! One merge by the program: laying its memory out, giving it blocks, taking records.
//!
//! ```text
//! control  runs  marks  order  snapshots  bounds  key slots  descriptors  records  keys  | blocks of run 0 | run 1 ...
//! ```
//!
//! 1. Each run has an equal share of the memory for its blocks, used as a ring: a block stands in one piece, and its
//!    place is free again when the program has taken the next one and the records before were read.
//! 2. [`Merge::call`] runs the program until it needs something. Its records are valid until the next call, and so are
//!    the blocks that they point into.
//!
//! What the program writes is not believed: a record's places must lie in the memory, its run and block must be known.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;

use crate::instance::Instance;
use crate::layout::*;

/// Longest internal key; a job with a longer one is handed over.
pub const KEY_BYTES_MAX: usize = 8 << 10;
/// Records of a call at most.
const RECORDS_MAX: u32 = 16 << 10;
/// Bytes of keys that a call gives about.
const KEYS_BYTES: usize = 1 << 20;
/// Entries of a call at most: far below the 65,535 steps after which the kernel looks at the clock.
const STEPS_MAX: u32 = 16 << 10;
/// Bytes of keys compared and copied in a call, or so: some milliseconds.
const WORK_MAX: u64 = 4 << 20;
/// Live runs up to which all prefixes are looked at: as many as a mark has room to name. A choice, not measured.
pub const LINEAR_MAX: u32 = 16;
/// The same where all prefixes are equal, and each look at one is a call of a user's comparator. A choice, too.
const LINEAR_MAX_OWN_ORDER: u32 = 4;
/// Smallest share of the memory of a run: below, calls are many and blocks may not fit.
const SHARE_MIN: usize = 48 << 10;
/// Bytes of all runs' blocks that are there at once, as long as blocks are small: what was put there should still be in
/// the processor's cache when the program and the builder of tables come to it (docs/notebook/kernel-engine.md).
const BLOCKS_BYTES_USUAL: usize = 2 << 20;
/// Of one run.
const RUN_BYTES_USUAL: std::ops::RangeInclusive<usize> = 128 << 10..=1 << 20;
/// Bytes of blocks for which a run has a descriptor.
const BLOCK_BYTES_USUAL: usize = 1 << 10;

/// Calls in a row that leave everything as it was, after which the program counts as stuck. More than one, because a
/// call whose thread the scheduler held up may end before its first entry.
const IDLE_CALLS_MAX: u32 = 100;

/// What is to be merged, and under which rules.
#[derive(Debug, Clone, Default)]
pub struct Job<'a> {
    /// Sorted runs, newest first.
    pub runs: usize,
    /// User key where the part begins.
    pub begin: Option<&'a [u8]>,
    /// User key where it ends, and a key prefix (`bpf/merge.h`): no key with a smaller one is at or behind the end.
    pub end: Option<(&'a [u8], u64)>,
    /// Bytes that all user keys have in common.
    pub skip: usize,
    /// Bits that all key prefixes have in common, the eight bytes of user keys behind those.
    pub shift: u32,
    /// Live runs up to which all prefixes are looked at, at most [`LINEAR_MAX`]; `None`: as many as is usual. With
    /// more the program has a heap.
    pub linear_max: Option<u32>,
    /// Live snapshots, rising.
    pub snapshots: &'a [u64],
    /// Whole blocks may be given as one record.
    pub pass: bool,
    /// What no reader can see may be dropped.
    pub drop: bool,
    /// Nothing older is below: tombstones may be dropped.
    pub bottommost: bool,
    /// The program orders keys in a way of its own, of which it is not believed what user keys are the same: with
    /// `drop`, versions that are the same byte for byte are dropped alone. Goes with `skip` 0, with neither `begin` nor
    /// `bottommost`, and with prefixes of 0.
    pub own_order: bool,
    /// The program's filter is to be asked about the newest version of each user key, if that is a value.
    pub filter: Option<FilterJob>,
    /// The program may combine merge operands of one user key and stripe.
    pub combine: bool,
}

/// What a program's filter is told.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FilterJob {
    /// The lowest level that the job reads.
    pub level: u32,
    /// When it began, in microseconds since 1970.
    pub now_micros: u64,
}

/// Where things are in a block, as offsets into its contents.
#[derive(Debug, Clone, Copy)]
pub struct BlockPlace {
    /// Of the first entry.
    pub first: u32,
    /// Of the end of its entries.
    pub end: u32,
    /// Of the entry at its last restart point.
    pub restart: u32,
    /// It may be given as a whole.
    pub whole: bool,
    /// Its entries do not begin where they should: the merge is to fail when it comes to it.
    pub damaged: bool,
}

/// What a call ended with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Its share is done, or there is no room for more records: call again.
    Again,
    /// This run needs blocks.
    Dry(usize),
    /// The merge is at its end.
    End,
    /// This run's block is damaged.
    Corrupt(usize, u32),
    /// The program cannot go on.
    HandOver(&'static str),
}

/// One record.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Record {
    /// All entries of the block, not this one.
    pub whole: bool,
    /// Its user key is another than that of the entry looked at before; false says nothing.
    pub another: bool,
    /// The program's filter was asked about it and keeps it.
    pub kept: bool,
    /// Number of the run.
    pub run: usize,
    /// Number of the block in the run.
    pub block: u32,
    /// The internal key's place in the memory.
    pub key: Range<usize>,
    /// The value's place.
    pub value: Range<usize>,
}

/// What was dropped so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Behind a newer version.
    pub hidden: u64,
    /// Tombstones, those that the program's filter made included.
    pub obsolete: u64,
    /// Values that the program's filter made tombstones of; they were given or are among the others.
    pub filtered: u64,
    /// Merge operands that became part of a newer one.
    pub combined: u64,
}

/// A run's blocks in the memory.
#[derive(Debug)]
struct Share {
    /// Its memory.
    range: Range<usize>,
    /// The end of what is used of it as long as no block is larger.
    usual_end: usize,
    /// Blocks that may be in use: number and place, oldest first.
    blocks: VecDeque<(u32, Range<usize>)>,
    /// Where the run's control block is.
    at: usize,
    descs: usize,
    descs_max: u32,
    given: u32,
    last: bool,
}

impl Share {
    /// Tells the program of the next block, whose contents are at an address.
    fn describe(&mut self, memory: &mut [u8], at: u32, len: usize, place: BlockPlace) {
        let desc = self.descs + ((self.given % self.descs_max) * DESC_BYTES) as usize;
        let address = |offset: u32| at.wrapping_add(offset);
        put_u32(memory, desc + DESC_AT as usize, address(place.first));
        put_u32(memory, desc + DESC_END as usize, address(place.end.min(len as u32)));
        put_u32(memory, desc + DESC_RESTART as usize, address(place.restart));
        let flags = [(place.whole, DESC_WHOLE), (place.damaged, DESC_DAMAGED)];
        let flags = flags.iter().filter(|(on, _)| *on).fold(0, |sum, (_, flag)| sum | flag);
        put_u32(memory, desc + DESC_FLAGS as usize, flags);
        self.given += 1;
        put_u32(memory, self.at + RUN_GIVEN as usize, self.given);
    }
}

/// A merge in progress.
#[derive(Debug)]
pub struct Merge {
    instance: Instance,
    shares: Vec<Share>,
    /// Where the records are, and their keys.
    records_at: usize,
    keys: usize,
    keys_end: usize,
    records: usize,
    /// Calls in a row that left everything as it was.
    idle_calls: u32,
}

/// Why a job cannot be done by the program; the instance comes back.
#[derive(Debug)]
pub struct Refusal {
    /// In words.
    pub reason: String,
    /// What was given.
    pub instance: Box<Instance>,
}

/// Takes pieces off the front of the memory.
struct Cut(usize);

impl Cut {
    fn take(&mut self, bytes: usize) -> usize {
        let at = self.0.next_multiple_of(64);
        self.0 = at + bytes;
        at
    }
}

fn put_u32(memory: &mut [u8], at: usize, v: u32) {
    if let Some(place) = memory.get_mut(at..at + 4) {
        place.copy_from_slice(&v.to_le_bytes());
    }
}

fn put_u64(memory: &mut [u8], at: usize, v: u64) {
    if let Some(place) = memory.get_mut(at..at + 8) {
        place.copy_from_slice(&v.to_le_bytes());
    }
}

fn put(memory: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(place) = memory.get_mut(at..at + bytes.len()) {
        place.copy_from_slice(bytes);
    }
}

#[inline]
fn get_u32(memory: &[u8], at: usize) -> u32 {
    memory.get(at..).and_then(|m| m.first_chunk::<4>()).map_or(0, |b| u32::from_le_bytes(*b))
}

fn get_u64(memory: &[u8], at: usize) -> u64 {
    memory.get(at..).and_then(|m| m.first_chunk::<8>()).map_or(0, |b| u64::from_le_bytes(*b))
}

impl Merge {
    /// Lays `instance`'s memory out for `job`.
    ///
    /// # Errors
    /// The memory is too small for so many runs or such bounds.
    pub fn begin(mut instance: Instance, job: &Job<'_>) -> Result<Self, Refusal> {
        let slot = KEY_BYTES_MAX + SLACK as usize;
        let longest = job.begin.map_or(0, <[u8]>::len).max(job.end.map_or(0, |e| e.0.len()));
        if longest > KEY_BYTES_MAX {
            let reason = format!("a bound of {longest} bytes is longer than {KEY_BYTES_MAX}");
            return Err(Refusal { reason, instance: Box::new(instance) });
        }
        let bytes = instance.memory().len();
        let mut cut = Cut(CTL_BYTES as usize);
        let table = cut.take(job.runs * RUN_BYTES as usize);
        let marks = cut.take(LINEAR_RUNS as usize * 8);
        let order = cut.take(job.runs * 4);
        let snapshots = cut.take(job.snapshots.len() * 8);
        let (begin, end, last) = (cut.take(slot), cut.take(slot), cut.take(slot));
        let slots = cut.take(job.runs * slot);
        let records = cut.take((RECORDS_MAX * REC_BYTES) as usize);
        let keys = cut.take(KEYS_BYTES);
        let left = bytes.saturating_sub(cut.take(0) + SLACK as usize);
        let share = left / job.runs.max(1);
        if share < SHARE_MIN {
            let reason = format!("{} runs are too many for {bytes} bytes of memory", job.runs);
            return Err(Refusal { reason, instance: Box::new(instance) });
        }
        // A ring of descriptors for each run, of a size that masks can be made of.
        let descs_max = 1u32 << (share / BLOCK_BYTES_USUAL).ilog2();
        let base = instance.base();
        let address = |at: usize| base.wrapping_add(at as u32);
        let memory = instance.memory_mut();
        memory[..cut.0].fill(0);
        let mut shares = Vec::with_capacity(job.runs);
        for run in 0..job.runs {
            let at = table + run * RUN_BYTES as usize;
            let descs = cut.take((descs_max * DESC_BYTES) as usize);
            // In front of its blocks, within its share.
            let range = descs + (descs_max * DESC_BYTES) as usize..(descs + share) / 64 * 64 - 64;
            cut.0 = range.end;
            let mut put = |field: u32, v: u32| put_u32(memory, at + field as usize, v);
            put(RUN_KEY, address(slots + run * slot));
            put(RUN_DESCS, address(descs));
            put(RUN_DESC_MASK, descs_max - 1);
            put(RUN_NUMBER, run as u32);
            put(RUN_SELF, address(at));
            let usual = (BLOCKS_BYTES_USUAL / job.runs).clamp(*RUN_BYTES_USUAL.start(), *RUN_BYTES_USUAL.end());
            let usual_end = range.end.min(range.start + usual);
            shares.push(Share {
                range,
                usual_end,
                blocks: VecDeque::new(),
                at,
                descs,
                descs_max,
                given: 0,
                last: false,
            });
        }
        for (i, snapshot) in job.snapshots.iter().enumerate() {
            put_u64(memory, snapshots + 8 * i, *snapshot);
        }
        put(memory, begin, job.begin.unwrap_or(&[]));
        put(memory, end, job.end.map_or(&[], |e| e.0));
        let flags = [
            (job.pass, FLAG_PASS),
            (job.drop, FLAG_DROP),
            (job.bottommost && !job.own_order, FLAG_BOTTOM),
            (job.filter.is_some(), FLAG_FILTER),
            (job.combine, FLAG_COMBINE),
        ];
        let flags = flags.iter().filter(|(on, _)| *on).fold(0, |sum, (_, flag)| sum | flag);
        let mut set = |field: u32, v: u32| put_u32(memory, field as usize, v);
        set(CTL_RUNS, job.runs as u32);
        set(CTL_FLAGS, flags);
        set(CTL_BEGIN_KEY, address(begin));
        set(CTL_BEGIN_LEN, job.begin.map_or(NONE, |k| k.len() as u32));
        set(CTL_END_KEY, address(end));
        set(CTL_END_LEN, job.end.map_or(NONE, |e| e.0.len() as u32));
        set(CTL_SKIP, job.skip.min(KEY_BYTES_MAX) as u32);
        set(CTL_SHIFT, job.shift.min(63));
        set(CTL_SNAPSHOTS, address(snapshots));
        set(CTL_SNAPSHOT_COUNT, job.snapshots.len() as u32);
        set(CTL_RECORDS, address(records));
        set(CTL_RECORDS_MAX, RECORDS_MAX);
        set(CTL_KEYS_END, address(keys + KEYS_BYTES));
        set(CTL_LAST_SLOT, address(last));
        set(CTL_MARKS, address(marks));
        set(CTL_ORDER, address(order));
        set(CTL_RUN_TABLE, address(table));
        set(CTL_KEY_MAX, KEY_BYTES_MAX as u32);
        set(CTL_STEPS_MAX, STEPS_MAX);
        let usual = if job.own_order { LINEAR_MAX_OWN_ORDER } else { LINEAR_MAX };
        set(CTL_LINEAR_MAX, job.linear_max.map_or(usual, |most| most.min(LINEAR_MAX)));
        let filter = job.filter.unwrap_or_default();
        set(CTL_LEVEL, filter.level);
        put_u64(memory, CTL_NOW as usize, filter.now_micros);
        put_u64(memory, CTL_END_PREFIX as usize, job.end.map_or(u64::MAX, |e| e.1));
        put_u64(memory, CTL_EARLIEST as usize, job.snapshots.first().copied().unwrap_or(u64::MAX));
        put_u64(memory, CTL_WORK_MAX as usize, WORK_MAX);
        Ok(Self { instance, shares, records_at: records, keys, keys_end: keys + KEYS_BYTES, records: 0, idle_calls: 0 })
    }

    /// The instance, for the next merge.
    pub fn end(self) -> Instance {
        self.instance
    }

    /// Its instance.
    pub fn instance(&self) -> &Instance {
        &self.instance
    }

    /// The instance's memory, which the places in records are of.
    #[inline]
    pub fn memory(&self) -> &[u8] {
        self.instance.memory()
    }

    /// Bytes of the largest block that a run can be given.
    pub fn block_bytes_max(&self) -> usize {
        self.shares.first().map_or(0, |s| s.range.len())
    }

    /// Frees the places of the blocks of `run` that the program is done with; gives the number of the first block that
    /// is still in use. Records of the last call must have been read.
    pub fn release(&mut self, run: usize) -> u32 {
        let Some(share) = self.shares.get_mut(run) else { return 0 };
        let memory = self.instance.memory();
        let taken = get_u32(memory, share.at + RUN_TAKEN as usize);
        let has = get_u32(memory, share.at + RUN_STATE as usize) == STATE_HAS;
        // The one that was taken last is in use as long as the run stands on an entry of it.
        let first = taken.saturating_sub(u32::from(has));
        while share.blocks.front().is_some_and(|b| b.0 < first) {
            share.blocks.pop_front();
        }
        first
    }

    /// Puts the next block of `run` into the memory: its contents, and `trailer` behind them. Where they are; `None`
    /// when there is no room now.
    pub fn give(&mut self, run: usize, contents: &[u8], trailer: &[u8], place: BlockPlace) -> Option<Range<usize>> {
        let base = self.instance.base();
        let share = self.shares.get_mut(run)?;
        let len = contents.len() + trailer.len();
        let room = (len + SLACK as usize).next_multiple_of(8);
        let taken = get_u32(self.instance.memory(), share.at + RUN_TAKEN as usize);
        if share.given.wrapping_sub(taken) >= share.descs_max {
            return None;
        }
        if 4 * room > share.usual_end - share.range.start {
            share.usual_end = share.range.end;
        }
        let at = match (share.blocks.front(), share.blocks.back()) {
            (Some((_, first)), Some((_, last))) => {
                let next = (last.start + (last.len() + SLACK as usize).next_multiple_of(8)).max(last.end);
                if last.start >= first.start {
                    if next + room <= share.usual_end {
                        next
                    } else if share.range.start + room <= first.start {
                        share.range.start
                    } else {
                        return None;
                    }
                } else if next + room <= first.start {
                    next
                } else {
                    return None;
                }
            }
            _ if share.range.start + room <= share.usual_end => share.range.start,
            _ => return None,
        };
        let memory = self.instance.memory_mut();
        put(memory, at, contents);
        put(memory, at + contents.len(), trailer);
        share.blocks.push_back((share.given, at..at + len));
        share.describe(memory, base.wrapping_add(at as u32), contents.len(), place);
        Some(at..at + len)
    }

    /// No more blocks come for `run`.
    pub fn give_last(&mut self, run: usize) {
        let Some(share) = self.shares.get_mut(run) else { return };
        share.last = true;
        put_u32(self.instance.memory_mut(), share.at + RUN_LAST as usize, 1);
    }

    /// Blocks that `run` was given.
    pub fn given(&self, run: usize) -> u32 {
        self.shares.get(run).map_or(0, |s| s.given)
    }

    /// If a run is dry in the next call, that is to wait for these transfers of its ring's.
    pub fn await_transfers(&mut self, transfers: impl Iterator<Item = u64>) {
        self.instance.await_transfers(transfers);
    }

    /// Merges until something has to be done; [`Self::records`] says how many records there are then.
    ///
    /// # Errors
    /// The kernel did not run the program.
    pub fn call(&mut self) -> io::Result<Status> {
        let base = self.instance.base();
        let keys = self.keys;
        let memory = self.instance.memory_mut();
        put_u32(memory, CTL_RECORD_COUNT as usize, 0);
        put_u32(memory, CTL_KEYS as usize, base.wrapping_add(keys as u32));
        put_u64(memory, CTL_WORK as usize, 0);
        put_u32(memory, CTL_STATUS as usize, NONE);
        self.records = 0;
        let before = self.position();
        self.instance.call(base)?;
        let memory = self.instance.memory();
        let run = get_u32(memory, CTL_RUN as usize) as usize;
        self.records = get_u32(memory, CTL_RECORD_COUNT as usize).min(RECORDS_MAX) as usize;
        let known = run < self.shares.len();
        let status = get_u32(memory, CTL_STATUS as usize);
        // Where it waits for a block that it does not have, the block comes or the job ends.
        let waits = status == STATUS_DRY && known && self.left(run) == 0 && !self.shares[run].last;
        let idle = self.records == 0 && !waits && self.position() == before;
        self.idle_calls = if idle { self.idle_calls + 1 } else { 0 };
        if self.idle_calls > IDLE_CALLS_MAX {
            return Ok(Status::HandOver("the program makes no progress"));
        }
        let memory = self.instance.memory();
        Ok(match status {
            STATUS_PAUSE | STATUS_FULL => Status::Again,
            STATUS_DRY if known => Status::Dry(run),
            STATUS_END => Status::End,
            STATUS_CORRUPT if known => {
                let taken = get_u32(memory, self.shares[run].at + RUN_TAKEN as usize);
                Status::Corrupt(run, taken.saturating_sub(1))
            }
            STATUS_HAND_OVER => Status::HandOver(match get_u32(memory, CTL_DETAIL as usize) {
                REASON_KEY => "a key is longer than the program takes",
                REASON_CUT => "the kernel ended a loop of the program early",
                REASON_BLOCK => "a block has too many entries for the program",
                REASON_ORDER => "the program's comparator puts an older version before a newer one",
                _ => "the program gives no reason",
            }),
            _ => Status::HandOver("the program ended in a state that means nothing"),
        })
    }

    /// Blocks of a run that the program has and did not begin.
    fn left(&self, run: usize) -> u32 {
        let taken = |share: &Share| get_u32(self.instance.memory(), share.at + RUN_TAKEN as usize);
        self.shares.get(run).map_or(0, |share| share.given.wrapping_sub(taken(share)))
    }

    /// Something that changes whenever the program gets on: where its runs are, summed up.
    fn position(&self) -> u64 {
        let fields = [RUN_TAKEN, RUN_POS, RUN_STATE];
        let places = self.shares.iter().flat_map(|share| fields.map(|field| share.at + field as usize));
        let numbers = places.map(|at| u64::from(get_u32(self.instance.memory(), at)));
        numbers.fold(0, |sum, number| sum.wrapping_mul(31).wrapping_add(number))
    }

    /// True if the program may not have read all of `run`: it stands on no entry, and not at the end.
    pub fn is_unread(&self, run: usize) -> bool {
        let state = |share: &Share| get_u32(self.instance.memory(), share.at + RUN_STATE as usize);
        self.shares.get(run).is_some_and(|share| !matches!(state(share), STATE_HAS | STATE_ENDED))
    }

    /// Records of the last call.
    #[inline]
    pub fn records(&self) -> usize {
        self.records
    }

    /// Record `i` of the last call; `None` where it does not exist or names what is not there.
    #[inline]
    pub fn record(&self, i: usize) -> Option<Record> {
        if i >= self.records {
            return None;
        }
        let (memory, base) = (self.instance.memory(), self.instance.base());
        let at = self.records_at + i * REC_BYTES as usize;
        let fields = memory.get(at..)?.first_chunk::<{ REC_BYTES as usize }>()?;
        let field = |f: u32| get_u32(fields, f as usize);
        let place = |at: u32, len: u32| {
            let start = at.wrapping_sub(base) as usize;
            let end = start + len as usize;
            (end <= memory.len()).then_some(start..end)
        };
        let kind = field(REC_KIND);
        let (whole, kept) = (kind == KIND_BLOCK, kind == KIND_KEPT);
        let another = kept || kind == KIND_NEW;
        let key = place(field(REC_KEY), field(REC_KEY_LEN))?;
        let value = if whole { 0..0 } else { place(field(REC_VALUE), field(REC_VALUE_LEN))? };
        let known = key.start >= self.keys && key.end <= self.keys_end && key.len() >= 8;
        let run = field(REC_RUN) as usize;
        (known && run < self.shares.len()).then_some(Record {
            whole,
            another,
            kept,
            run,
            block: field(REC_BLOCK),
            key,
            value,
        })
    }

    /// What the program dropped so far.
    pub fn dropped(&self) -> Dropped {
        let memory = self.instance.memory();
        let get = |field: u32| get_u64(memory, field as usize);
        Dropped {
            hidden: get(CTL_HIDDEN),
            obsolete: get(CTL_OBSOLETE),
            filtered: get(CTL_FILTERED),
            combined: get(CTL_COMBINED),
        }
    }

    /// The internal key of the entry that a run stands on; `None` at its end, or where the program names none.
    pub fn current_key(&self, run: usize) -> Option<&[u8]> {
        let share = self.shares.get(run)?;
        let (memory, base) = (self.instance.memory(), self.instance.base());
        let field = |f: u32| get_u32(memory, share.at + f as usize);
        if field(RUN_STATE) != STATE_HAS {
            return None;
        }
        let start = field(RUN_KEY).wrapping_sub(base) as usize;
        let key = memory.get(start..start.checked_add(field(RUN_KEY_LEN) as usize)?)?;
        (key.len() >= 8).then_some(key)
    }
}
