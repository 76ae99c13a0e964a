//! The pilot function: one byte for each bucket determines the slots of the bucket's keys.
//!
//! 1. A mixed hash selects a bucket; 2^k consecutive buckets are a segment. Each segment has its own slots, 1 % more
//!    than keys, in groups of G (64 if there are many keys).
//! 2. A pilot has a *round* and a *turn* (for G = 64, two bits and six). The round selects one of several groups and a
//!    place in it for each key. The turn moves all keys of the bucket by this many places, each within its group.
//! 3. The builder starts with the largest buckets. It rotates the groups' occupied slots to each key's place and
//!    combines them with OR. The result shows all free turns of a round: one word operation for each key instead of 64
//!    trials.
//! 4. A bucket that fits nowhere evicts others, as in cuckoo hashing: the pilot that evicts the fewest and smallest
//!    buckets is chosen, and the evicted ones look for a new place. If that does not end, the segment gets more slots
//!    and starts again.
//!
//! The choice depends only on sets of keys, never on their order.

use crate::build::{BUCKET_KEYS_MAX, Failed, Job};
use crate::error::OpenError;
use crate::header::{self, Header, fixed32, fixed64};
use crate::mix::{reduce, reduce32, salt};
use crate::partition::{Partition, in_parallel};

/// Maximum number of keys of a function: the first group of each segment is a 32-bit number, and slots fit into 2^38.
pub(crate) const KEYS_MAX: u64 = 1 << 37;
/// The factor of a mixed hash in round 0, and the increment of the factor for each round: odd and even, so that all
/// factors are odd.
const ROUND: u64 = 0xd6e8_feb8_6659_fd93;
const ROUND_STEP: u64 = 0xa076_1d64_78bd_642e;
/// The bit of a round's product at which a key's place in its group starts. The bits above it select the group.
const PLACE_SHIFT: u32 = 26;
/// Offsets of the number of buckets and of the table of segments.
const BUCKETS_AT: usize = header::LEN;
const TABLE_AT: usize = BUCKETS_AT + 8;

/// Number of buckets, and for how many keys. Fewer buckets take fewer bits and more evictions.
const BUCKETS_OF_KEYS: (u64, u64) = (5, 14);
/// One additional slot for this many keys: a load of 0.99.
const KEYS_OF_EMPTY_SLOT: u32 = 99;
/// Log2 of the buckets of a full segment.
const SEGMENT_BITS: u32 = 15;
/// Keys of a full segment, on average.
pub(crate) const SEGMENT_KEYS: usize = ((1u64 << SEGMENT_BITS) * BUCKETS_OF_KEYS.1 / BUCKETS_OF_KEYS.0) as usize;
/// Maximum number of slots of a segment for each of its buckets. The builder stays below it: a bucket has at most 64
/// keys, enlargements add half as many slots, and the last group is rounded up. So a segment has at most 2^22 slots.
const BUCKET_SLOTS_MAX: u64 = 128;
/// In a sequence of this many evictions, one may evict several buckets, because evictions of single buckets can go in
/// circles.
const CHAIN_MAX: u32 = 8;
/// Nearly all buckets have at most this many keys.
const KEYS_OF_MOST_BUCKETS: usize = 8;
/// Number of sets of taken slots, by the size of the bucket that has them.
const PLANES: usize = 4;

/// How slots are numbered: the meaning of a pilot.
#[derive(Debug, Clone, Copy)]
struct Groups {
    /// Log2 of the slots of a group, 0 to 6.
    bits: u32,
}

impl Groups {
    /// Groups of 64 for many keys. For few keys, groups are smaller, so that rounding up to a group adds at most about
    /// 1.5 %.
    fn for_keys(keys: u64) -> Self {
        Self { bits: (keys / 64).max(1).ilog2().min(6) }
    }

    #[inline(always)]
    fn mask(self) -> u32 {
        (1 << self.bits) - 1
    }

    /// A key's group and its place in the group in a round, before the turn.
    #[inline(always)]
    fn place(self, mixed: u64, round: u32, groups: u32) -> (u32, u32) {
        let product = mixed.wrapping_mul(ROUND.wrapping_add(ROUND_STEP.wrapping_mul(u64::from(round))));
        (reduce32((product >> 32) as u32, groups), (product >> PLACE_SHIFT) as u32 & self.mask())
    }

    /// The slot of a key within its segment.
    #[inline(always)]
    fn slot(self, mixed: u64, pilot: u8, groups: u32) -> u32 {
        let (group, place) = self.place(mixed, u32::from(pilot) >> self.bits, groups);
        (group << self.bits) + ((place + u32::from(pilot)) & self.mask())
    }
}

/// What [`PerfectHash`](crate::PerfectHash) stores besides the bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    salt: u64,
    groups: Groups,
    buckets: u64,
    pilots_at: usize,
}

impl Layout {
    pub(crate) fn open(bytes: &[u8], header: &Header) -> Result<Self, OpenError> {
        if header.parameter > 6 {
            return Err(OpenError::at(7, "groups that are too large"));
        }
        let groups = Groups { bits: u32::from(header.parameter) };
        if bytes.len() < TABLE_AT {
            return Err(OpenError::at(bytes.len(), "the number of buckets is cut off"));
        }
        let buckets = fixed64(bytes, BUCKETS_AT);
        if buckets == 0 || buckets > bytes.len() as u64 {
            return Err(OpenError::at(BUCKETS_AT, "a number of buckets that cannot be"));
        }
        // This cannot overflow: both are at most the length of a slice.
        let segments = buckets.div_ceil(1 << SEGMENT_BITS) as usize;
        let pilots_at = TABLE_AT + 4 * (segments + 1);
        if bytes.len() != pilots_at + buckets as usize {
            return Err(OpenError::at(bytes.len(), "a length that is not that of the number of buckets"));
        }
        let mut last = 0;
        for segment in 0..=segments {
            let at = TABLE_AT + 4 * segment;
            let first = fixed32(bytes, at);
            // A segment without slots would use the slots of the next one, and the last segment has no next one.
            if (segment == 0 && first != 0) || (segment > 0 && first <= last) {
                return Err(OpenError::at(at, "segments that do not ascend"));
            }
            if segment > 0 {
                let own = (buckets - ((segment as u64 - 1) << SEGMENT_BITS)).min(1 << SEGMENT_BITS);
                if u64::from(first - last) << groups.bits > BUCKET_SLOTS_MAX * own {
                    return Err(OpenError::at(at, "a segment with more slots than its buckets can fill"));
                }
            }
            last = first;
        }
        if u64::from(last) << groups.bits != header.slots {
            return Err(OpenError::at(24, "a number of slots that is not that of the segments"));
        }
        Ok(Self { salt: salt(header.seed, header.attempt), groups, buckets, pilots_at })
    }

    /// The mixed hash and its bucket: the part of a lookup before it reads the pilot.
    #[inline(always)]
    pub(crate) fn bucket(&self, hash: u64) -> (u64, u64) {
        let mixed = crate::mix::mix(hash, self.salt);
        (mixed, reduce(mixed, self.buckets))
    }

    #[inline(always)]
    pub(crate) fn pilot(&self, bytes: &[u8], bucket: u64) -> u8 {
        bytes.get(self.pilots_at + bucket as usize).copied().unwrap_or(0)
    }

    #[inline(always)]
    pub(crate) fn slot_with(&self, bytes: &[u8], mixed: u64, bucket: u64, pilot: u8) -> usize {
        let segment = TABLE_AT + 4 * (bucket >> SEGMENT_BITS) as usize;
        let ends = fixed64(bytes, segment);
        let first = ends as u32;
        let slot = self.groups.slot(mixed, pilot, ((ends >> 32) as u32).wrapping_sub(first));
        ((first as usize) << self.groups.bits) + slot as usize
    }

    #[inline(always)]
    pub(crate) fn slot(&self, bytes: &[u8], hash: u64) -> usize {
        let (mixed, bucket) = self.bucket(hash);
        self.slot_with(bytes, mixed, bucket, self.pilot(bytes, bucket))
    }
}

/// Builds the bytes of a function.
pub(crate) fn build(job: &Job<'_>) -> Result<Vec<u8>, Failed> {
    let keys = job.hashes.len() as u64;
    let groups = Groups::for_keys(keys);
    let buckets = (keys * BUCKETS_OF_KEYS.0).div_ceil(BUCKETS_OF_KEYS.1).max(1);
    let segments = buckets.div_ceil(1 << SEGMENT_BITS) as usize;
    let partition = Partition::new(job, segments, |mixed| (reduce(mixed, buckets) >> SEGMENT_BITS) as usize);
    let first_bucket = |segment: usize| ((segment << SEGMENT_BITS) as u64).min(buckets);

    let mut pilots = vec![0; buckets as usize];
    let mut rest = &mut pilots[..];
    let split = |range: std::ops::Range<usize>| {
        let len = (first_bucket(range.end) - first_bucket(range.start)) as usize;
        rest.split_off_mut(..len).unwrap_or_default()
    };
    let counts = in_parallel(job, segments, split, |range, mut pilots: &mut [u8]| {
        let mut builder = SegmentBuilder::new(groups, buckets);
        let mut counts = Vec::with_capacity(range.len());
        for segment in range {
            let first = first_bucket(segment);
            let len = (first_bucket(segment + 1) - first) as usize;
            let Some(own) = pilots.split_off_mut(..len) else { return Err(Failed::Full) };
            builder.gather(first, len, &partition, segment)?;
            counts.push(builder.place_all(job, own)?);
        }
        Ok(counts)
    })?;

    let mut firsts = Vec::with_capacity(4 * (segments + 1));
    let mut end = 0u32;
    firsts.extend_from_slice(&end.to_le_bytes());
    for count in counts.into_iter().flatten() {
        end = end.checked_add(count).ok_or(Failed::Full)?;
        firsts.extend_from_slice(&end.to_le_bytes());
    }
    let slots = u64::from(end) << groups.bits;
    let header =
        Header { kind: job.kind, attempt: job.attempt, parameter: groups.bits as u8, seed: job.seed, keys, slots };
    Ok([&header.encode()[..], &buckets.to_le_bytes(), &firsts, &pilots].concat())
}

/// Memory that a thread reuses for one segment after another.
struct SegmentBuilder {
    groups: Groups,
    buckets: u64,
    /// The segment's keys by bucket, and the start of each bucket.
    keys: Vec<u64>,
    starts: Vec<u32>,
    /// The buckets by size, largest first.
    order: Vec<u16>,
    /// Slots of buckets with more than 0, 1, 2 and 3 keys: one word for each group; bits beyond the group's size are
    /// set.
    taken: [Vec<u64>; PLANES],
    /// The bucket that has each slot; valid if the slot is taken.
    owner: Vec<u16>,
    /// Evicted buckets that wait for a place.
    waiting: Vec<u16>,
}

impl SegmentBuilder {
    fn new(groups: Groups, buckets: u64) -> Self {
        let (keys, starts, order) = (Vec::new(), Vec::new(), Vec::new());
        let (taken, owner, waiting) = (Default::default(), Vec::new(), Vec::new());
        Self { groups, buckets, keys, starts, order, taken, owner, waiting }
    }

    fn bucket(&self, bucket: u16) -> &[u64] {
        let at = usize::from(bucket);
        &self.keys[self.starts[at] as usize..self.starts[at + 1] as usize]
    }

    /// Sorts a segment's keys by bucket, and its buckets by size.
    fn gather(&mut self, first: u64, buckets: usize, partition: &Partition, segment: usize) -> Result<(), Failed> {
        if partition.len(segment) > u32::MAX as usize {
            return Err(Failed::Full);
        }
        let bucket_of = |mixed: u64| (reduce(mixed, self.buckets) - first) as usize;
        // Counts are stored two places further, so that the second pass leaves each bucket's start in its own place.
        self.starts.clear();
        self.starts.resize(buckets + 2, 0);
        for part in partition.segment(segment) {
            for &mixed in part {
                self.starts[bucket_of(mixed) + 2] += 1;
            }
        }
        let mut sizes = [0u32; BUCKET_KEYS_MAX + 1];
        for i in 2..self.starts.len() {
            let size = self.starts[i] as usize;
            sizes[size.min(BUCKET_KEYS_MAX)] += 1;
            self.starts[i] += self.starts[i - 1];
        }
        self.keys.clear();
        self.keys.resize(partition.len(segment), 0);
        for part in partition.segment(segment) {
            for &mixed in part {
                let at = &mut self.starts[bucket_of(mixed) + 1];
                self.keys[*at as usize] = mixed;
                *at += 1;
            }
        }
        let mut next = [0u32; BUCKET_KEYS_MAX + 1];
        for size in (0..BUCKET_KEYS_MAX).rev() {
            next[size] = next[size + 1] + sizes[size + 1];
        }
        self.order.clear();
        self.order.resize(buckets, 0);
        for bucket in 0..buckets {
            let keys = &self.keys[self.starts[bucket] as usize..self.starts[bucket + 1] as usize];
            if let Some(equal) = equal_pair(keys) {
                return Err(Failed::Equal(equal));
            }
            if keys.len() > BUCKET_KEYS_MAX {
                return Err(Failed::Full);
            }
            let at = &mut next[keys.len()];
            self.order[*at as usize] = bucket as u16;
            *at += 1;
        }
        Ok(())
    }

    /// Finds the pilots of a segment; returns its number of groups.
    fn place_all(&mut self, job: &Job<'_>, pilots: &mut [u8]) -> Result<u32, Failed> {
        let keys = self.keys.len() as u32;
        let mut slots = keys.saturating_add(keys.div_ceil(KEYS_OF_EMPTY_SLOT)).max(1);
        let slots_max = slots.saturating_add(slots / 2 + 8);
        while slots <= slots_max {
            job.look_for_stop()?;
            let groups = slots.div_ceil(1 << self.groups.bits);
            if self.place_into(groups, pilots) {
                return Ok(groups);
            }
            slots = (groups << self.groups.bits) + slots / 128 + 1;
        }
        Err(Failed::Full)
    }

    /// Places all buckets into this number of groups, if that is possible with a limited number of evictions.
    fn place_into(&mut self, groups: u32, pilots: &mut [u8]) -> bool {
        let empty = if self.groups.bits == 6 { 0 } else { u64::MAX << (1 << self.groups.bits) };
        for plane in &mut self.taken {
            plane.clear();
            plane.resize(groups as usize, empty);
        }
        self.owner.clear();
        self.owner.resize((groups as usize) << self.groups.bits, 0);
        self.waiting.clear();
        // Segments that can be placed need about one eviction for 13 buckets.
        let evictions_max = pilots.len() as u32 / 4 + 100;
        let mut evictions = 0;
        for i in 0..self.order.len() {
            let before = evictions;
            let bucket = self.order[i];
            if self.bucket(bucket).is_empty() {
                pilots[usize::from(bucket)] = 0;
                continue;
            }
            self.waiting.push(bucket);
            while let Some(bucket) = self.waiting.pop() {
                let pilot = match self.free(bucket, groups) {
                    Some(pilot) => pilot,
                    None => {
                        evictions += 1;
                        let found = self.least_harm(bucket, groups, evictions, evictions - before);
                        let Some(pilot) = found.filter(|_| evictions <= evictions_max) else { return false };
                        self.evict(bucket, pilot, groups, pilots);
                        pilot
                    }
                };
                self.occupy(bucket, pilot, groups);
                pilots[usize::from(bucket)] = pilot;
            }
        }
        true
    }

    /// The occupied slots of a key's group in a round, rotated so that bit *t* is for turn *t*.
    #[inline(always)]
    fn turned(&self, plane: usize, mixed: u64, round: u32, groups: u32) -> u64 {
        let (group, place) = self.groups.place(mixed, round, groups);
        let word = self.taken[plane][group as usize];
        if self.groups.bits == 6 {
            return word.rotate_right(place);
        }
        let size = 1 << self.groups.bits;
        let own = word & ((1 << size) - 1);
        (own >> place) | (own << (size - place)) | (u64::MAX << size)
    }

    /// The first pilot whose slots are all free.
    #[inline(always)]
    fn free(&self, bucket: u16, groups: u32) -> Option<u8> {
        let keys = self.bucket(bucket);
        for round in 0..256 >> self.groups.bits {
            let taken = keys.iter().fold(0, |taken, &key| taken | self.turned(0, key, round, groups));
            let pilot = ((round << self.groups.bits) + taken.trailing_ones()) as u8;
            if taken != u64::MAX && self.is_apart(keys, pilot, groups) {
                return Some(pilot);
            }
        }
        None
    }

    /// Whether a pilot maps the keys of a bucket to different slots. The turn makes no difference.
    #[inline(always)]
    fn is_apart(&self, keys: &[u64], pilot: u8, groups: u32) -> bool {
        let slot = |key| self.groups.slot(key, pilot, groups);
        let mut slots = [0; KEYS_OF_MOST_BUCKETS];
        if keys.len() > slots.len() {
            return (1..keys.len()).all(|i| (0..i).all(|j| slot(keys[i]) != slot(keys[j])));
        }
        keys.iter().enumerate().all(|(i, &key)| {
            slots[i] = slot(key);
            !slots[..i].contains(&slots[i])
        })
    }

    /// A pilot that evicts only small buckets: the smallest possible, then preferably only one of that size. Among
    /// equals, the number of the eviction decides, so that two buckets do not evict each other forever.
    #[cold]
    fn least_harm(&self, bucket: u16, groups: u32, eviction: u32, chain: u32) -> Option<u8> {
        let keys = self.bucket(bucket);
        let rounds = 256 >> self.groups.bits;
        let chance = eviction.wrapping_mul(0x9e37_79b1);
        for plane in 1..=PLANES {
            let mut best: Option<(u32, u8)> = None;
            for i in 0..rounds {
                let round = (i + (chance >> 24)) % rounds;
                let (mut larger, mut ones, mut twos) = (0, 0, 0);
                for &key in keys {
                    let taken = self.turned(plane - 1, key, round, groups);
                    twos |= ones & taken;
                    ones |= taken;
                    if plane < PLANES {
                        larger |= self.turned(plane, key, round, groups);
                    }
                }
                // On the last plane no bucket is too large, and `larger` lacks the bits beyond the group's size.
                let size = 1 << self.groups.bits;
                let beyond = if size == 64 { 0 } else { u64::MAX << size };
                let few = if chain.is_multiple_of(CHAIN_MAX) { 0 } else { !(larger | twos) };
                for (harm, turns) in [(1, few), (2, !larger)] {
                    let turns = turns & !beyond;
                    if turns == 0 || best.is_some_and(|(least, _)| least <= harm) {
                        continue;
                    }
                    let start = chance & (size - 1);
                    let after = turns >> start << start;
                    let turn = if after != 0 { after.trailing_zeros() } else { turns.trailing_zeros() };
                    let pilot = ((round << self.groups.bits) + turn) as u8;
                    if self.is_apart(keys, pilot, groups) {
                        best = Some((harm, pilot));
                    }
                }
            }
            if let Some((_, pilot)) = best {
                return Some(pilot);
            }
        }
        None
    }

    fn is_taken(&self, slot: u32) -> bool {
        self.taken[0][(slot >> self.groups.bits) as usize] >> (slot & self.groups.mask()) & 1 == 1
    }

    fn occupy(&mut self, bucket: u16, pilot: u8, groups: u32) {
        let at = usize::from(bucket);
        let keys = self.starts[at] as usize..self.starts[at + 1] as usize;
        let planes = keys.len().min(PLANES);
        for &key in &self.keys[keys] {
            let slot = self.groups.slot(key, pilot, groups);
            for plane in &mut self.taken[..planes] {
                plane[(slot >> self.groups.bits) as usize] |= 1 << (slot & self.groups.mask());
            }
            self.owner[slot as usize] = bucket;
        }
    }

    /// Removes the buckets whose slots a pilot of `bucket` needs.
    fn evict(&mut self, bucket: u16, pilot: u8, groups: u32, pilots: &[u8]) {
        let at = usize::from(bucket);
        let waiting = self.waiting.len();
        for i in self.starts[at]..self.starts[at + 1] {
            let slot = self.groups.slot(self.keys[i as usize], pilot, groups);
            if !self.is_taken(slot) {
                continue;
            }
            let owner = self.owner[slot as usize];
            let place = usize::from(owner);
            for j in self.starts[place]..self.starts[place + 1] {
                let slot = self.groups.slot(self.keys[j as usize], pilots[place], groups);
                for plane in &mut self.taken {
                    plane[(slot >> self.groups.bits) as usize] &= !(1 << (slot & self.groups.mask()));
                }
            }
            self.waiting.push(owner);
        }
        if self.waiting.len() > waiting {
            // The largest is placed next. The order of the keys in their bucket must not matter.
            let mut waiting = std::mem::take(&mut self.waiting);
            waiting.sort_unstable_by_key(|&bucket| (self.bucket(bucket).len(), bucket));
            self.waiting = waiting;
        }
    }
}

/// A value that occurs twice.
pub(crate) fn equal_pair(keys: &[u64]) -> Option<u64> {
    if keys.len() <= 16 {
        return (1..keys.len()).find(|&i| keys[..i].contains(&keys[i])).map(|i| keys[i]);
    }
    let mut sorted = keys.to_vec();
    sorted.sort_unstable();
    sorted.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0])
}
