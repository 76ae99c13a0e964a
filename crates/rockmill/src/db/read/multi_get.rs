//! Many lookups at once: a lookup that needs a block from a file is suspended, and the blocks of all suspended lookups
//! are read together, many in flight (RocksDB's `MultiGet`, with its batched reads).
//!
//! 1. The keys are looked up in order. A lookup that the memtables and the block cache can answer is done. Any other
//!    stops where it needs a block, and keeps its version, its findings and its place.
//! 2. When enough of them wait, or no key is left, their blocks go to the thread's ring as one plan: each block once,
//!    neighbours joined, in the order of the files.
//! 3. The lookups go on with their blocks. Those that need another one, of the next level, wait again: step 2.
//!
//! 4. Values that are in logs (index tables) are left until their lookup has ended, and then read in the same way.
//! 5. A block that the cache does not keep is held for the lookups that follow, so that a call reads it once.
//!
//! If there is no ring, if only one lookup waits, or if a read has failed, lookups read their blocks themselves.

use std::io;
use std::sync::Arc;

use rockmill_format::SequenceNumber;
use rockmill_io::ring::{BatchIo, Pieces, ReadOptions as StreamOptions};

use crate::compaction::{LOOKUP_MEMORY, LentRing, MergeEngine};
use crate::db::catalog::column_family::CfData;
use crate::db::catalog::super_version::SuperVersion;
use crate::db::read::get::{LookupKey, LookupPosition};
use crate::db::{AsColumnFamilyRef, Db, DbInner, ReadOptions};
use crate::error::Result;
use crate::iter::get::{GetContext, GetState, PinnedValue, Waiting, WantedBlock};
use crate::perf_context::{self as perf, PerfMetric};
use crate::statistics::{Histogram, MaybeStatistics};
use crate::table::HeldBlocks;

/// The most lookups that wait at a time: more would not help a device, and each keeps its key and findings in memory.
const WAITING_MAX: usize = 128;
/// Reads in flight.
const READS_IN_FLIGHT: usize = 64;

/// A lookup that waits for a block.
struct Lookup<'k> {
    /// Which of the keys.
    index: usize,
    cf: &'k CfData,
    version: Arc<SuperVersion>,
    key: LookupKey,
    ctx: GetContext<'k>,
    place: LookupPosition,
}

/// If at most this many bytes are between two values in a log, they are read together.
const GAP_MAX: u64 = 4 << 10;

/// When this many bytes of values in logs are wanted, they are read before more lookups begin.
const LATE_BYTES_MAX: usize = 4 << 20;

/// A lookup that has ended except for reading values that are in logs.
struct Late<'k> {
    index: usize,
    cf: &'k CfData,
    ctx: GetContext<'k>,
}

/// The values of many keys, in the making.
struct Many<'k, 'o> {
    db: &'o DbInner,
    options: &'o ReadOptions,
    /// What the lookups see.
    seq: SequenceNumber,
    values: Vec<Result<Option<Vec<u8>>>>,
    waiting: Vec<Lookup<'k>>,
    late: Vec<Late<'k>>,
    /// What they want.
    late_bytes: usize,
    /// Reused by the next lookup.
    spare: Option<Box<Waiting<'k>>>,
    /// What its lookups have read; `None` where there is only one.
    held: Option<&'k HeldBlocks>,
    io: Option<LentRing>,
}

impl DbInner {
    /// The values of `keys` as of `seq`, which is held.
    fn get_many(
        &self,
        keys: &[(&CfData, &[u8])],
        seq: SequenceNumber,
        options: &ReadOptions,
    ) -> Vec<Result<Option<Vec<u8>>>> {
        // In key order: neighbours share index and data blocks.
        let mut order: Vec<usize> = (0..keys.len()).collect();
        order.sort_by(|&a, &b| {
            let ((cf_a, a), (cf_b, b)) = (keys[a], keys[b]);
            cf_a.id.cmp(&cf_b.id).then_with(|| cf_a.cmp.compare_user(a, b))
        });
        let batched = keys.len() > 1 && !options.cache_only && self.live().merge_engine != MergeEngine::Pread;
        let held = HeldBlocks::default();
        let mut many = Many {
            db: self,
            options,
            seq,
            values: (0..keys.len()).map(|_| Ok(None)).collect(),
            waiting: Vec::new(),
            late: Vec::new(),
            late_bytes: 0,
            spare: None,
            held: Some(&held).filter(|_| keys.len() > 1),
            io: batched.then(|| self.engines.lookups.lend(&self.opts.fs, &self.opts.clock)).flatten(),
        };
        for index in order {
            let (cf, key) = keys[index];
            many.begin(index, cf, key);
            if many.waiting.len() == WAITING_MAX {
                many.settle();
            }
            // More than one lookup may have ended.
            if many.late.len() >= WAITING_MAX || many.late_bytes >= LATE_BYTES_MAX {
                many.read_late();
            }
        }
        many.settle();
        many.read_late();
        many.values
    }
}

impl<'k> Many<'k, '_> {
    /// Begins a lookup, and ends it if no block must be read.
    fn begin(&mut self, index: usize, cf: &'k CfData, key: &'k [u8]) {
        let version = cf.current.load_full();
        let lookup = LookupKey::new(key, self.seq);
        let mut ctx = GetContext::new(key);
        ctx.late = self.io.is_some().then(Vec::new);
        if self.db.get_from_memory::<true>(&version, lookup.as_bytes(), &mut ctx) {
            return self.end(index, cf, ctx);
        }
        if self.held.is_some() {
            let waiting = ctx.waiting.insert(self.spare.take().unwrap_or_default());
            waiting.alone = self.io.is_none();
            waiting.held = self.held;
        }
        self.go_on(Lookup { index, cf, version, key: lookup, ctx, place: LookupPosition::default() });
    }

    /// Asks tables until the lookup has its answer or waits.
    fn go_on(&mut self, mut lookup: Lookup<'k>) {
        let Lookup { index, cf, version, key, ctx, place } = &mut lookup;
        let timer = perf::time(PerfMetric::GetFromOutputFilesTime);
        let found = self.db.get_from_tables(cf, version, key.as_bytes(), self.options.table(), ctx, place);
        drop(timer);
        match found {
            Ok(None) => self.waiting.push(lookup),
            Ok(Some(hit)) => {
                self.db.count_hit(hit, ctx);
                self.end(*index, lookup.cf, lookup.ctx);
            }
            Err(e) => self.values[*index] = Err(e),
        }
    }

    fn end(&mut self, index: usize, cf: &'k CfData, mut ctx: GetContext<'k>) {
        if let Some(mut waiting) = ctx.waiting.take() {
            *waiting = Waiting::default();
            self.spare = Some(waiting);
        }
        let wanted: usize = ctx.late.iter().flatten().map(|(_, value)| value.wanted().len).sum();
        if wanted > 0 && !matches!(ctx.state, GetState::Failed(_)) {
            self.late_bytes += wanted;
            return self.late.push(Late { index, cf, ctx });
        }
        let value = self.db.conclude(cf, ctx.user_key, ctx);
        self.values[index] = value.map(|v| v.map(PinnedValue::into_vec));
    }

    /// Reads the values that ended lookups still need from logs.
    fn read_late(&mut self) {
        let late = std::mem::take(&mut self.late);
        self.late_bytes = 0;
        let values: usize = late.iter().flat_map(|l| &l.ctx.late).map(Vec::len).sum();
        // A single value is read by itself. If reading together fails, each is read by itself and reports what is
        // wrong.
        let read = self.io.as_ref().filter(|_| values > 1).and_then(|io| self.read_values(io, &late));
        let mut asked = 0;
        for Late { index, cf, mut ctx } in late {
            let mut done = Ok(());
            for (place, value) in ctx.late.take().unwrap_or_default() {
                let bytes = match &read {
                    Some(read) => value.join(read.of(asked).to_vec()),
                    None => value.read(),
                };
                asked += 1;
                match bytes {
                    Ok(bytes) => ctx.fill(place, bytes),
                    Err(e) => done = done.and(Err(e)),
                }
            }
            let value = done.and_then(|()| self.db.conclude(cf, ctx.user_key, ctx));
            self.values[index] = value.map(|v| v.map(PinnedValue::into_vec));
        }
    }

    /// Reads all values of `late`, in its order.
    fn read_values(&self, io: &BatchIo, late: &[Late<'_>]) -> Option<Together> {
        let values = late.iter().flat_map(|l| l.ctx.late.iter().flatten());
        let began = self.db.opts.statistics.start_now();
        let read = Together::read(io, values.map(|(_, value)| value.wanted()), GAP_MAX).ok()?;
        self.db.opts.statistics.stop_now(Histogram::FileReadMultigetMicros, began);
        Some(read)
    }

    /// Continues all lookups that wait.
    fn settle(&mut self) {
        while !self.waiting.is_empty() {
            let mut lookups = std::mem::take(&mut self.waiting);
            let io = self.io.as_ref().filter(|_| lookups.len() > 1);
            let all_there = io.is_some_and(|io| self.read(io, &mut lookups));
            for mut lookup in lookups {
                if let Some(waiting) = &mut lookup.ctx.waiting
                    && (!all_there || waiting.arrived.is_none())
                {
                    // From here on it reads for itself, and reports an error if there is one.
                    waiting.wanted = None;
                    waiting.alone = true;
                }
                self.go_on(lookup);
            }
        }
    }

    /// Reads the blocks that `lookups` wait for; false if they could not be read.
    fn read(&self, io: &BatchIo, lookups: &mut [Lookup<'_>]) -> bool {
        let waiting = lookups.iter_mut().filter_map(|l| l.ctx.waiting.as_deref_mut());
        let (waiting, wanted): (Vec<_>, Vec<_>) =
            waiting.filter_map(|w| w.wanted.take().map(|wanted| (w, wanted))).unzip();
        let began = self.db.opts.statistics.start_now();
        let timer = perf::time(PerfMetric::BlockReadTime);
        let users_began = self.db.pacing.read_protection().read_begins();
        let read = Together::read(io, wanted, 0);
        self.db.pacing.read_protection().read_ends(users_began);
        drop(timer);
        let Ok(read) = read else { return false };
        perf::count(PerfMetric::BlockReadCount, read.pieces.reads() as u64);
        perf::count(PerfMetric::BlockReadByte, read.bytes);
        self.db.opts.statistics.stop_now(Histogram::FileReadMultigetMicros, began);
        for (asked, waiting) in waiting.into_iter().enumerate() {
            waiting.arrived = Some(read.of(asked).to_vec());
        }
        true
    }
}

/// What was read for several requests.
struct Together {
    pieces: Pieces,
    /// The piece of each request.
    piece_of: Vec<usize>,
    /// Bytes that were read.
    bytes: u64,
}

impl Together {
    /// Reads all of `wanted`; ranges with at most `gap_max` bytes in between are read together. Neighbours that want
    /// the same range share a piece: consecutive keys are often in one block.
    fn read(io: &BatchIo, wanted: impl IntoIterator<Item = WantedBlock>, gap_max: u64) -> io::Result<Self> {
        let mut pieces = Pieces::default();
        let mut files: Vec<(*const (), u32)> = Vec::new();
        let (mut piece_of, mut before) = (Vec::new(), None);
        for WantedBlock { file, path, offset, len, grows } in wanted {
            let same = Arc::as_ptr(&file).cast::<()>();
            let number = match files.iter().rfind(|(known, _)| *known == same) {
                Some((_, number)) => *number,
                None => {
                    let number = pieces.add_file(&file, &path, grows);
                    files.push((same, number));
                    number
                }
            };
            let place = (number, offset, len);
            if before != Some(place) {
                pieces.add(number, offset, len);
                before = Some(place);
            }
            piece_of.push(pieces.len() - 1);
        }
        let options = StreamOptions { depth: READS_IN_FLIGHT, memory_bytes: LOOKUP_MEMORY, throttle: None };
        let bytes = pieces.begin(io, options, gap_max)?;
        pieces.finish()?;
        Ok(Self { pieces, piece_of, bytes })
    }

    /// What was read for the request with this number.
    fn of(&self, asked: usize) -> &[u8] {
        self.pieces.piece(self.piece_of[asked])
    }
}

impl Db {
    /// The values of many keys, all as of one moment, in the order of the keys.
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: impl IntoIterator<Item = K>) -> Vec<Result<Option<Vec<u8>>>> {
        self.multi_get_opt(keys, &ReadOptions::default())
    }

    /// The values of many keys, all as of one moment.
    pub fn multi_get_opt<K: AsRef<[u8]>>(
        &self,
        keys: impl IntoIterator<Item = K>,
        options: &ReadOptions,
    ) -> Vec<Result<Option<Vec<u8>>>> {
        let cf = self.inner.catalog.default_cf();
        self.multi_get_cf_opt(keys.into_iter().map(|k| (cf, k)), options)
    }

    /// The values of many keys of column families, all as of one moment.
    pub fn multi_get_cf<'c, K: AsRef<[u8]>, C: AsColumnFamilyRef + 'c>(
        &self,
        keys: impl IntoIterator<Item = (&'c C, K)>,
    ) -> Vec<Result<Option<Vec<u8>>>> {
        self.multi_get_cf_opt(keys, &ReadOptions::default())
    }

    /// The values of many keys of column families, all as of one moment.
    pub fn multi_get_cf_opt<'c, K: AsRef<[u8]>, C: AsColumnFamilyRef + 'c>(
        &self,
        keys: impl IntoIterator<Item = (&'c C, K)>,
        options: &ReadOptions,
    ) -> Vec<Result<Option<Vec<u8>>>> {
        let statistics = &self.inner.opts.statistics;
        let began = statistics.start(&*self.inner.opts.clock);
        let keys: Vec<(&C, K)> = keys.into_iter().collect();
        let _still = self.inner.opened.hold_still();
        // A snapshot, so that column families looked at one after another are seen at the same moment.
        let moment = options.snapshot.is_none().then(|| self.inner.hold_moment());
        let seq = match &moment {
            Some(moment) => Ok(moment.seq),
            None => self.inner.read_sequence(options.snapshot.as_deref()),
        };
        let keys: Vec<(&CfData, &[u8])> = keys.iter().map(|(cf, key)| (&*cf.as_cf().data, key.as_ref())).collect();
        let all_ours = keys.iter().all(|(cf, _)| self.inner.check_family(cf).is_ok());
        let values = match seq {
            Ok(seq) if all_ours => self.inner.get_many(&keys, seq, options),
            Ok(seq) => {
                let one = |pair: &(&CfData, &[u8])| {
                    self.inner.check_family(pair.0)?;
                    self.inner.get_many(&[*pair], seq, options).remove(0)
                };
                keys.iter().map(one).collect()
            }
            Err(e) => keys.iter().map(|_| Err(e.clone())).collect(),
        };
        statistics.stop(Histogram::DbMultiget, &*self.inner.opts.clock, began);
        self.inner.count_multi_get(&values);
        values
    }
}
