//! CPHash, CompassDB's perfect hash (its sections 3.1 and 4.1), and CHD, with which the paper compares it.
//!
//! 1. A mixed hash selects one of up to 64 segments, and a bucket in it: 60 % of the keys go to the 30 % of buckets
//!    that are *dense*, the others to the *sparse* ones (PTHash). A bucket has five keys on average. CHD has only
//!    sparse buckets.
//! 2. A bucket's parameter encodes a pair (α, β). The slot of a key is (h0 + h1 α + β) mod the segment's number of
//!    slots; a tenth of the slots stays empty.
//! 3. The builder starts with the largest buckets and gives each the smallest parameter that fits, so many buckets
//!    share parameters. It tries eight at a time if the processor has AVX2.
//! 4. If no parameter fits a bucket, the segment gets more slots and starts again.
//!
//! The paper stores a dictionary of pairs, 1.2 bytes per key. Here the pairs are a fixed sequence, and a bucket stores
//! an index into it, with as many bits as the segment's largest index needs: 2 to 3 bits per key.
//!
//! # Bytes
//!
//! The header's byte 7 is the number of segments, 1 to 64: one for each 1,024 keys. A directory of 40 bytes for each
//! segment begins at 32. The parameters of each segment follow, and 8 zeros. Numbers are little-endian.
//!
//! | in the directory | type | meaning |
//! |---|---|---|
//! | slots before | fixed64 | slots of the segments before |
//! | parameters at | fixed64 | offset from the first byte of the header |
//! | magic | fixed64 | 2^64 / slots, rounded up, in 64 bits: with it a remainder is two multiplications |
//! | slots, dense, sparse | fixed32 each | slots, and numbers of buckets |
//! | dense bits, sparse bits | a byte each | bits that the largest parameter needs, at most 12 |
//! | 0 | 2 bytes | |
//!
//! Bits are 0 if all parameters are 0, but at least 1 for more than 64 buckets. A segment's parameters are those of its
//! dense buckets, then those of its sparse ones, low bits first, up to a whole byte.
//!
//! A lookup, where `mulhi` is the high half of the 128-bit product and `*` keeps the low half:
//!
//! ```text
//! segment   = mulhi(mixed, segments)
//! spread    = (mixed * 0xd6e8feb86659fd93) >> 32
//! bucket    = (spread * dense) >> 32             if dense > 0 and mixed * segments < 0x9999999999999999
//!           = dense + ((spread * sparse) >> 32)  otherwise
//! h0, h1    = high and low 32 bits of mixed * 0xa0761d6478bd642f
//! position  = h0 + h1 * (parameter >> 4) + (parameter mod 16) * 0x9e3779b1, in 32 bits
//! slot      = slots before + position mod slots
//! ```

use crate::build::{BUCKET_KEYS_MAX, Failed, Job, Kind};
use crate::error::OpenError;
use crate::header::{self, Header, fixed32, fixed64};
use crate::mix::{Modulus, mix, reduce, reduce32, salt};
use crate::partition::{Partition, in_parallel};
use crate::pilot::equal_pair;
use crate::simd;

/// Maximum number of keys of a function: a segment's number of slots has 32 bits.
pub(crate) const KEYS_MAX: u64 = 1 << 36;
/// Maximum number of segments, as in the paper.
const SEGMENTS_MAX: u64 = 64;
/// Minimum number of keys for each segment.
const SEGMENT_KEYS_MIN: u64 = 1024;
/// Keys for each bucket, and the share of slots that are used.
const BUCKET_KEYS: usize = 5;
const LOAD: f64 = 0.9;
/// 60 % of 2^64: keys below it in their segment go to dense buckets.
const DENSE_KEYS: u64 = 0x9999_9999_9999_9999;
/// Number of dense buckets among ten.
const DENSE_BUCKETS_OF_TEN: usize = 3;
/// Bits of the largest parameter that the builder tries.
const PARAMETER_BITS_MAX: u32 = 12;
/// Maximum number of slots of a segment for each of its buckets. The builder stays below it: it has five keys per
/// bucket, starts with a load of 0.9, and each enlargement doubles the slots.
const BUCKET_SLOTS_MAX: u64 = 32;
/// If there are more dense or sparse buckets than this, their parameters have at least one bit. So the number of
/// buckets is limited by the number of bytes.
const BUCKETS_WITHOUT_BITS_MAX: u32 = 64;
/// Odd numbers that derive the bucket, h0 and h1 from a mixed hash.
const TO_BUCKET: u64 = 0xd6e8_feb8_6659_fd93;
const TO_POSITION: u64 = 0xa076_1d64_78bd_642f;
/// The step of β from one parameter to the next.
const BETA: u32 = 0x9e37_79b1;

const DIRECTORY_AT: usize = header::LEN;
const ENTRY_LEN: usize = 40;
/// Zeros at the end, so that eight bytes can be read at every parameter.
const PADDING: usize = 8;

/// The two hashes of a key that determine its positions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hashes {
    h0: u32,
    h1: u32,
}

impl Hashes {
    #[inline(always)]
    fn new(mixed: u64) -> Self {
        let product = mixed.wrapping_mul(TO_POSITION);
        Self { h0: (product >> 32) as u32, h1: product as u32 }
    }

    /// The position before the remainder, for a parameter that is a multiple of 16: β is 0.
    #[inline(always)]
    pub(crate) fn at(self, parameter: u32) -> u32 {
        self.h0.wrapping_add(self.h1.wrapping_mul(parameter >> 4))
    }

    /// The slot for a parameter: α is the parameter's high bits, the lowest four determine β.
    #[inline(always)]
    pub(crate) fn slot(self, parameter: u32, modulus: Modulus) -> u32 {
        modulus.of(self.at(parameter).wrapping_add(beta(parameter)))
    }
}

/// β of a parameter.
#[inline(always)]
pub(crate) fn beta(parameter: u32) -> u32 {
    (parameter & 15).wrapping_mul(BETA)
}

/// Whether a parameter maps all keys of a bucket to different slots.
pub(crate) fn is_apart(keys: &[Hashes], parameter: u32, modulus: Modulus) -> bool {
    let slot = |key: Hashes| key.slot(parameter, modulus);
    (1..keys.len()).all(|i| (0..i).all(|j| slot(keys[i]) != slot(keys[j])))
}

/// The smallest parameter below `end` that maps all keys to free and different slots.
pub(crate) fn first_free(keys: &[Hashes], taken: &[u32], modulus: Modulus, end: u32) -> Option<u32> {
    let is_free = |slot: u32| taken[(slot >> 5) as usize] >> (slot & 31) & 1 == 0;
    (0..end).find(|&p| keys.iter().all(|key| is_free(key.slot(p, modulus))) && is_apart(keys, p, modulus))
}

/// One segment's entry of the directory.
#[derive(Debug, Clone, Copy)]
struct Segment {
    slots_before: u64,
    parameters_at: u64,
    modulus: Modulus,
    dense: u32,
    sparse: u32,
    dense_bits: u32,
    sparse_bits: u32,
}

impl Segment {
    #[inline(always)]
    fn read(bytes: &[u8], segment: u64) -> Self {
        let at = DIRECTORY_AT + ENTRY_LEN * segment as usize;
        let bits = fixed32(bytes, at + 36);
        Self {
            slots_before: fixed64(bytes, at),
            parameters_at: fixed64(bytes, at + 8),
            modulus: Modulus { magic: fixed64(bytes, at + 16), n: fixed32(bytes, at + 24) },
            dense: fixed32(bytes, at + 28),
            sparse: fixed32(bytes, at + 32),
            dense_bits: bits & 0xff,
            sparse_bits: bits >> 8,
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        for number in [self.slots_before, self.parameters_at, self.modulus.magic] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        for number in [self.modulus.n, self.dense, self.sparse, self.dense_bits | self.sparse_bits << 8] {
            out.extend_from_slice(&number.to_le_bytes());
        }
    }

    /// Bytes of the segment's parameters.
    fn parameters_len(&self) -> u64 {
        let bits = |buckets: u32, width: u32| u64::from(buckets) * u64::from(width);
        (bits(self.dense, self.dense_bits) + bits(self.sparse, self.sparse_bits)).div_ceil(8)
    }

    /// The bucket of a key: dense ones come first.
    #[inline(always)]
    fn bucket(&self, mixed: u64, segments: u64) -> u32 {
        let within = mixed.wrapping_mul(segments);
        let spread = (mixed.wrapping_mul(TO_BUCKET) >> 32) as u32;
        if within < DENSE_KEYS && self.dense != 0 {
            reduce32(spread, self.dense)
        } else {
            self.dense + reduce32(spread, self.sparse)
        }
    }

    /// Where a bucket's parameter is stored: its first bit, counted from the start of the parameters, and its width.
    #[inline(always)]
    fn parameter_place(&self, bucket: u32) -> (u64, u32) {
        let dense = u64::from(self.dense) * u64::from(self.dense_bits);
        if bucket < self.dense {
            (u64::from(bucket) * u64::from(self.dense_bits), self.dense_bits)
        } else {
            (dense + u64::from(bucket - self.dense) * u64::from(self.sparse_bits), self.sparse_bits)
        }
    }
}

/// What [`PerfectHash`](crate::PerfectHash) stores besides the bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    salt: u64,
    segments: u64,
}

impl Layout {
    pub(crate) fn open(bytes: &[u8], header: &Header) -> Result<Self, OpenError> {
        let segments = u64::from(header.parameter);
        if segments == 0 || segments > SEGMENTS_MAX {
            return Err(OpenError::at(7, "a number of segments that cannot be"));
        }
        let mut parameters_at = (DIRECTORY_AT + ENTRY_LEN * segments as usize) as u64;
        if (bytes.len() as u64) < parameters_at {
            return Err(OpenError::at(bytes.len(), "the directory of segments is cut off"));
        }
        let mut slots = 0;
        for i in 0..segments {
            let at = DIRECTORY_AT + ENTRY_LEN * i as usize;
            let segment = Segment::read(bytes, i);
            if segment.slots_before != slots || segment.parameters_at != parameters_at {
                return Err(OpenError::at(at, "a segment that does not follow the one before it"));
            }
            if segment.modulus.n == 0 || segment.modulus != Modulus::new(segment.modulus.n) {
                return Err(OpenError::at(at + 16, "a modulus that cannot be"));
            }
            let buckets = segment.dense.checked_add(segment.sparse).map_or(0, u64::from);
            if buckets == 0 || segment.sparse == 0 || (segment.dense != 0) != (header.kind == Kind::CpHash) {
                return Err(OpenError::at(at + 28, "a number of buckets that cannot be"));
            }
            if u64::from(segment.modulus.n) > BUCKET_SLOTS_MAX * buckets {
                return Err(OpenError::at(at + 24, "a segment with more slots than its buckets can fill"));
            }
            for (buckets, bits) in [(segment.dense, segment.dense_bits), (segment.sparse, segment.sparse_bits)] {
                if bits > PARAMETER_BITS_MAX {
                    return Err(OpenError::at(at + 36, "parameters that are too wide"));
                }
                if bits == 0 && buckets > BUCKETS_WITHOUT_BITS_MAX {
                    return Err(OpenError::at(at + 36, "many buckets without parameters"));
                }
            }
            slots += u64::from(segment.modulus.n);
            parameters_at += segment.parameters_len();
        }
        if slots != header.slots {
            return Err(OpenError::at(24, "a number of slots that is not that of the segments"));
        }
        if bytes.len() as u64 != parameters_at + PADDING as u64 {
            return Err(OpenError::at(bytes.len(), "a length that is not that of the segments"));
        }
        Ok(Self { salt: salt(header.seed, header.attempt), segments })
    }

    #[inline(always)]
    pub(crate) fn slot(&self, bytes: &[u8], hash: u64) -> usize {
        let mixed = mix(hash, self.salt);
        let segment = Segment::read(bytes, reduce(mixed, self.segments));
        let (bit, width) = segment.parameter_place(segment.bucket(mixed, self.segments));
        let word = fixed64(bytes, segment.parameters_at as usize + (bit >> 3) as usize);
        let parameter = (word >> (bit & 7)) as u32 & ((1 << width) - 1);
        segment.slots_before as usize + Hashes::new(mixed).slot(parameter, segment.modulus) as usize
    }
}

/// Builds the bytes of a function.
pub(crate) fn build(job: &Job<'_>) -> Result<Vec<u8>, Failed> {
    let keys = job.hashes.len() as u64;
    let segments = (keys / SEGMENT_KEYS_MIN).clamp(1, SEGMENTS_MAX);
    let partition = Partition::new(job, segments as usize, |mixed| reduce(mixed, segments) as usize);
    let built = in_parallel(
        job,
        segments as usize,
        |_| (),
        |range, ()| {
            let mut builder = SegmentBuilder::default();
            range.map(|i| builder.build(job, &partition, i, segments)).collect::<Result<Vec<_>, _>>()
        },
    )?;

    let mut directory = Vec::with_capacity(ENTRY_LEN * segments as usize);
    let mut parameters = Vec::new();
    let mut slots = 0;
    for (mut segment, packed) in built.into_iter().flatten() {
        segment.slots_before = slots;
        segment.parameters_at = (DIRECTORY_AT + ENTRY_LEN * segments as usize + parameters.len()) as u64;
        segment.write(&mut directory);
        slots += u64::from(segment.modulus.n);
        parameters.extend_from_slice(&packed);
    }
    let Job { kind, seed, attempt, .. } = *job;
    let header = Header { kind, attempt, parameter: segments as u8, seed, keys, slots };
    Ok([&header.encode()[..], &directory, &parameters, &[0; PADDING]].concat())
}

/// Memory that a thread reuses for one segment after another.
#[derive(Default)]
struct SegmentBuilder {
    /// The segment's keys by bucket, and the start of each bucket.
    keys: Vec<u64>,
    starts: Vec<u32>,
    /// The buckets by size, largest first.
    order: Vec<u32>,
    taken: Vec<u32>,
    parameters: Vec<u32>,
}

impl SegmentBuilder {
    /// A segment's entry, without its place, and its packed parameters.
    fn build(&mut self, job: &Job<'_>, all: &Partition, i: usize, segments: u64) -> Result<(Segment, Vec<u8>), Failed> {
        let keys = all.len(i);
        let buckets = keys.div_ceil(BUCKET_KEYS).max(2);
        let dense = if job.kind == Kind::CpHash { (buckets * DENSE_BUCKETS_OF_TEN).div_ceil(10) } else { 0 };
        let mut slots = ((keys as f64 / LOAD).ceil() as u64).max(1);
        let slots_max = 2 * slots + 16;
        let mut segment = Segment {
            slots_before: 0,
            parameters_at: 0,
            modulus: Modulus::new(1),
            dense: dense as u32,
            sparse: (buckets - dense) as u32,
            dense_bits: 0,
            sparse_bits: 0,
        };
        self.gather(&segment, all, i, segments)?;
        loop {
            job.look_for_stop()?;
            // If the number of slots exceeds 32 bits, there are more keys than `KEYS_MAX`, or they are not distributed
            // uniformly.
            segment.modulus = Modulus::new(u32::try_from(slots).map_err(|_| Failed::Full)?);
            if self.place(segment.modulus, job.simd) {
                break;
            }
            slots += slots / 50 + 1;
            if slots > slots_max {
                return Err(Failed::Full);
            }
        }
        let bits = |parameters: &[u32]| {
            let least = u32::from(parameters.len() > BUCKETS_WITHOUT_BITS_MAX as usize);
            parameters.iter().max().map_or(0, |largest| 32 - largest.leading_zeros()).max(least)
        };
        segment.dense_bits = bits(&self.parameters[..dense]);
        segment.sparse_bits = bits(&self.parameters[dense..]);
        let mut packed = vec![0; segment.parameters_len() as usize];
        for (bucket, &parameter) in self.parameters.iter().enumerate() {
            let (bit, _) = segment.parameter_place(bucket as u32);
            let shifted = (u64::from(parameter) << (bit & 7)).to_le_bytes();
            for (byte, part) in packed[(bit >> 3) as usize..].iter_mut().zip(shifted) {
                *byte |= part;
            }
        }
        Ok((segment, packed))
    }

    /// Sorts a segment's keys by bucket, and its buckets by size.
    fn gather(&mut self, segment: &Segment, all: &Partition, i: usize, segments: u64) -> Result<(), Failed> {
        if all.len(i) > u32::MAX as usize {
            return Err(Failed::Full);
        }
        let buckets = (segment.dense + segment.sparse) as usize;
        // Counts are stored two places further, so that the second pass leaves each bucket's start in its own place.
        self.starts.clear();
        self.starts.resize(buckets + 2, 0);
        for &mixed in all.segment(i).flatten() {
            self.starts[segment.bucket(mixed, segments) as usize + 2] += 1;
        }
        for at in 2..self.starts.len() {
            self.starts[at] += self.starts[at - 1];
        }
        self.keys.clear();
        self.keys.resize(all.len(i), 0);
        for &mixed in all.segment(i).flatten() {
            let at = &mut self.starts[segment.bucket(mixed, segments) as usize + 1];
            self.keys[*at as usize] = mixed;
            *at += 1;
        }
        if let Some(equal) = (0..buckets as u32).find_map(|bucket| equal_pair(self.bucket(bucket))) {
            return Err(Failed::Equal(equal));
        }
        let mut order = std::mem::take(&mut self.order);
        order.clear();
        order.extend(0..buckets as u32);
        order.sort_by_key(|&bucket| std::cmp::Reverse(self.bucket(bucket).len()));
        self.order = order;
        if self.order.first().is_some_and(|&largest| self.bucket(largest).len() > BUCKET_KEYS_MAX) {
            return Err(Failed::Full);
        }
        Ok(())
    }

    fn bucket(&self, bucket: u32) -> &[u64] {
        let at = bucket as usize;
        &self.keys[self.starts[at] as usize..self.starts[at + 1] as usize]
    }

    /// Finds the parameters of all buckets, if there are any.
    fn place(&mut self, modulus: Modulus, simd: bool) -> bool {
        self.taken.clear();
        self.taken.resize(modulus.n.div_ceil(32) as usize, 0);
        self.parameters.clear();
        self.parameters.resize(self.order.len(), 0);
        let mut hashes = Vec::new();
        for &bucket in &self.order {
            hashes.clear();
            hashes.extend(self.bucket(bucket).iter().map(|&mixed| Hashes::new(mixed)));
            let Some(parameter) = simd::first_free(&hashes, &self.taken, modulus, 1 << PARAMETER_BITS_MAX, simd) else {
                return false;
            };
            self.parameters[bucket as usize] = parameter;
            for key in &hashes {
                let slot = key.slot(parameter, modulus);
                self.taken[(slot >> 5) as usize] |= 1 << (slot & 31);
            }
        }
        true
    }
}
