//! The meta block that makes a block-based file the head of a TPH table, byte by byte. docs/tph.md has it in pictures.
//!
//! | bytes | what |
//! |---|---|
//! | 1 | version: 1 |
//! | 1 | flags: 1 there is a function, 2 a list of tables that were replaced before |
//! | 1 | bits of a locator, 0 to 40 |
//! | 1 | 0 |
//! | 4 | further files, at most 1,023 |
//! | 8 | data blocks of the own file |
//! | 48 | of the table without range tombstones: user keys, entries, tombstones, operands, bytes of keys, of values |
//! | each | of a further file: number, size, live bytes, data blocks; first and last user key for which it counts |
//! | 4 and 8 each | numbers of the tables that the job replaced, where there are further files |
//! | 4 and 8 each | with flag 2: numbers of tables that had been replaced when the job began, and were still there |
//! | 8 and the bytes | the function |
//! | slots | signatures |
//! | slots * bits / 8, and 8 zeros | locators |
//!
//! A locator is the number of a data block, counted over all files, or the number of all blocks: then several user keys
//! share the hash.
//!
//! Numbers are little-endian.

use std::ops::Range;
use std::sync::Arc;

use rockmill_format::coding;
use rockmill_format::properties::TableProperties;
use rockmill_phash::PerfectHash;

use super::{FunctionSummary, PIECES_MAX};
use crate::table::ReplacedTables;

const VERSION: u8 = 1;
const HAS_FUNCTION: u8 = 1;
const HAS_PAST: u8 = 2;
/// What a locator has at most.
pub(super) const LOCATOR_BITS_MAX: u32 = 40;

/// A further file of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PieceUse {
    /// Its number.
    pub number: u64,
    /// Its size in bytes.
    pub size: u64,
    /// Bytes of it that the table still refers to.
    pub live: u64,
    /// How many data blocks it has.
    pub blocks: u64,
    /// First and last user key for which it counts. Entries outside of this range belong, or belonged, to other tables.
    pub bounds: (Vec<u8>, Vec<u8>),
}

/// What a table has in all of its files together, without range tombstones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Totals {
    /// User keys with at least one entry.
    pub user_keys: u64,
    pub entries: u64,
    pub tombstones: u64,
    pub merge_operands: u64,
    pub key_bytes: u64,
    pub value_bytes: u64,
}

impl Totals {
    /// Puts them into properties that count range tombstones as well.
    pub fn write_to(&self, p: &mut TableProperties) {
        p.num_entries = self.entries.saturating_add(p.num_range_deletions);
        p.num_deletions = self.tombstones.saturating_add(p.num_range_deletions);
        p.num_merge_operands = self.merge_operands;
        p.raw_key_size = self.key_bytes;
        p.raw_value_size = self.value_bytes;
    }
}

/// The block's contents without function, signatures and locators.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Head {
    pub own_blocks: u64,
    pub totals: Totals,
    pub pieces: Vec<PieceUse>,
    /// The tables that the job replaced: as long as all of them exist, it has not ended. And the tables that no longer
    /// counted when it began.
    pub replaced: ReplacedTables,
}

/// A part of shared bytes.
#[derive(Debug, Clone)]
pub(super) struct Part {
    bytes: Arc<[u8]>,
    range: Range<usize>,
}

impl AsRef<[u8]> for Part {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        self.bytes.get(self.range.clone()).unwrap_or(&[])
    }
}

/// The function with its results: for each slot a signature and a locator, which is the number of a data block counted
/// over all files of the table.
#[derive(Debug)]
pub(super) struct Finder {
    function: PerfectHash<Part>,
    bytes: Arc<[u8]>,
    signatures: Range<usize>,
    locators: usize,
    bits: u32,
    seed: u64,
}

/// The signature of a key: 1 to 255. It is 0 if a slot has no key, or a deleted one.
#[inline]
pub(super) fn signature(hash: u64) -> u8 {
    // The function uses other bits.
    let mixed = (hash ^ (hash >> 29)).wrapping_mul(0xff51_afd7_ed55_8ccd) >> 32;
    (1 + ((mixed * 255) >> 32)) as u8
}

/// The bits of a locator if there are this many blocks.
pub(super) fn locator_bits(blocks: u64) -> u32 {
    blocks.saturating_sub(1).checked_ilog2().map_or(0, |b| b + 1)
}

impl Finder {
    /// The hash of a user key.
    #[inline]
    pub fn hash(&self, user_key: &[u8]) -> u64 {
        rockmill_phash::hash_key(user_key, self.seed)
    }

    /// The data block with the entries of the key with this hash. The number of all blocks if several keys share the
    /// hash and the files have to be searched. `None` if the table has no such key.
    #[inline]
    pub fn find(&self, hash: u64) -> Option<u64> {
        let slot = self.function.slot(hash);
        let found = self.bytes.get(self.signatures.start + slot)?;
        if *found != signature(hash) {
            return None;
        }
        let at = slot * self.bits as usize;
        let word = coding::fixed64_at(&self.bytes, self.locators + at / 8)?;
        Some((word >> (at % 8)) & ((1 << self.bits) - 1))
    }

    /// Bytes of memory.
    pub fn memory_usage(&self) -> usize {
        self.bytes.len()
    }

    /// What it is, in short.
    pub fn summary(&self) -> FunctionSummary {
        let function = &self.function;
        FunctionSummary {
            kind: function.kind().name(),
            keys: function.key_count(),
            slots: function.slot_count() as u64,
            bytes: function.bytes().len() as u64,
            locator_bits: self.bits,
        }
    }
}

/// The error for a block that does not end where it should.
type Refused = String;

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn take(&mut self, len: usize) -> Result<Range<usize>, Refused> {
        let end = self.at.checked_add(len).filter(|&end| end <= self.bytes.len());
        let end = end.ok_or_else(|| format!("ends at byte {}, where {len} more are expected", self.bytes.len()))?;
        let range = self.at..end;
        self.at = end;
        Ok(range)
    }

    fn byte(&mut self) -> Result<u8, Refused> {
        self.take(1).map(|r| self.bytes[r.start])
    }

    fn fixed32(&mut self) -> Result<u32, Refused> {
        let range = self.take(4)?;
        coding::fixed32_at(self.bytes, range.start).ok_or_else(String::new)
    }

    fn fixed64(&mut self) -> Result<u64, Refused> {
        let range = self.take(8)?;
        coding::fixed64_at(self.bytes, range.start).ok_or_else(String::new)
    }

    fn long(&mut self) -> Result<Range<usize>, Refused> {
        let len = self.fixed64()?;
        self.take(usize::try_from(len).unwrap_or(usize::MAX))
    }

    fn numbers(&mut self) -> Result<Vec<u64>, Refused> {
        (0..self.fixed32()?).map(|_| self.fixed64()).collect()
    }

    fn key(&mut self) -> Result<Vec<u8>, Refused> {
        let len = self.fixed32()?;
        self.take(len as usize).map(|r| self.bytes[r].to_vec())
    }
}

impl Head {
    /// All data blocks.
    pub fn blocks(&self) -> u64 {
        self.pieces.iter().map(|p| p.blocks).fold(self.own_blocks, u64::saturating_add)
    }

    /// The block's contents, up to the function.
    pub fn encode(&self, bits: u32, has_function: bool) -> Vec<u8> {
        let has_past = !self.replaced.before.is_empty();
        let flags = if has_function { HAS_FUNCTION } else { 0 } | if has_past { HAS_PAST } else { 0 };
        let mut out = vec![VERSION, flags, bits as u8, 0];
        out.extend_from_slice(&(self.pieces.len() as u32).to_le_bytes());
        let t = &self.totals;
        for n in [self.own_blocks, t.user_keys, t.entries, t.tombstones, t.merge_operands, t.key_bytes, t.value_bytes] {
            out.extend_from_slice(&n.to_le_bytes());
        }
        for p in &self.pieces {
            for n in [p.number, p.size, p.live, p.blocks] {
                out.extend_from_slice(&n.to_le_bytes());
            }
            for key in [&p.bounds.0, &p.bounds.1] {
                out.extend_from_slice(&(key.len() as u32).to_le_bytes());
                out.extend_from_slice(key);
            }
        }
        let mut list = |numbers: &[u64]| {
            out.extend_from_slice(&(numbers.len() as u32).to_le_bytes());
            numbers.iter().for_each(|n| out.extend_from_slice(&n.to_le_bytes()));
        };
        list(&self.replaced.by_job);
        if has_past {
            list(&self.replaced.before);
        }
        out
    }

    /// Reads the block. Every resulting locator is below the number of blocks, or is refused when it is used.
    pub fn decode(bytes: Vec<u8>) -> Result<(Self, Option<Finder>), Refused> {
        let bytes: Arc<[u8]> = bytes.into();
        let mut r = Reader { bytes: &bytes, at: 0 };
        let (version, flags, bits, zero) = (r.byte()?, r.byte()?, u32::from(r.byte()?), r.byte()?);
        if version != VERSION {
            return Err(format!("has version {version}; this program knows {VERSION}"));
        }
        if flags > HAS_FUNCTION | HAS_PAST || bits > LOCATOR_BITS_MAX || zero != 0 {
            return Err(format!("begins with flags {flags}, {bits} bits, and {zero}"));
        }
        let count = r.fixed32()? as usize;
        if count >= PIECES_MAX {
            return Err(format!("has {count} further files; {} are the most", PIECES_MAX - 1));
        }
        let mut head = Self { own_blocks: r.fixed64()?, ..Self::default() };
        head.totals = Totals {
            user_keys: r.fixed64()?,
            entries: r.fixed64()?,
            tombstones: r.fixed64()?,
            merge_operands: r.fixed64()?,
            key_bytes: r.fixed64()?,
            value_bytes: r.fixed64()?,
        };
        for _ in 0..count {
            let piece = PieceUse {
                number: r.fixed64()?,
                size: r.fixed64()?,
                live: r.fixed64()?,
                blocks: r.fixed64()?,
                bounds: (r.key()?, r.key()?),
            };
            if piece.live > piece.size || piece.blocks > piece.size {
                return Err(format!("says of file {} of {} bytes: {piece:?}", piece.number, piece.size));
            }
            head.pieces.push(piece);
        }
        head.replaced.by_job = r.numbers()?;
        if flags & HAS_PAST != 0 {
            head.replaced.before = r.numbers()?;
        }
        if flags & HAS_FUNCTION == 0 {
            return match r.at == bytes.len() {
                true => Ok((head, None)),
                false => Err(format!("goes on behind byte {}", r.at)),
            };
        }
        let range = r.long()?;
        let function = PerfectHash::open(Part { bytes: Arc::clone(&bytes), range }).map_err(|e| e.to_string())?;
        let slots = function.slot_count();
        let signatures = r.take(slots)?;
        let locators = slots.checked_mul(bits as usize).map_or(usize::MAX, |n| n.div_ceil(8)).saturating_add(8);
        let locators = r.take(locators)?.start;
        if r.at != bytes.len() {
            return Err(format!("goes on behind byte {}", r.at));
        }
        let seed = function.seed();
        let finder = Finder { function, bytes: Arc::clone(&bytes), signatures, locators, bits, seed };
        Ok((head, Some(finder)))
    }
}

/// Hashes whose slots are found together.
const FOUND_TOGETHER: usize = 64;

/// Appends function, signatures and locators to a head. Each hash has a locator, except that of a deleted key.
pub(super) fn append_finder(
    out: &mut Vec<u8>,
    function: &[u8],
    hashes: &[u64],
    locators_of: impl Iterator<Item = Option<u64>>,
    bits: u32,
) -> bool {
    let Ok(reader) = PerfectHash::open(function) else { return false };
    out.extend_from_slice(&(function.len() as u64).to_le_bytes());
    out.extend_from_slice(function);
    let signatures = out.len();
    let locators = signatures + reader.slot_count();
    out.resize(locators + (reader.slot_count() * bits as usize).div_ceil(8) + 8, 0);
    let (mut locators_of, mut slots) = (locators_of, [0; FOUND_TOGETHER]);
    for hashes in hashes.chunks(FOUND_TOGETHER) {
        reader.slots(hashes, &mut slots);
        for ((&hash, &slot), block) in hashes.iter().zip(&slots).zip(&mut locators_of) {
            let Some(block) = block else { continue };
            out[signatures + slot] = signature(hash);
            let at = slot * bits as usize;
            let place = locators + at / 8;
            let Some(bytes) = out.get_mut(place..place + 8).and_then(|b| b.first_chunk_mut::<8>()) else {
                return false;
            };
            *bytes = (u64::from_le_bytes(*bytes) | (block << (at % 8))).to_le_bytes();
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(rng: &mut fastrand::Rng) -> Head {
        let pieces = (0..rng.usize(0..5)).map(|i| PieceUse {
            number: i as u64 + 7,
            size: 1 << 20,
            live: rng.u64(0..1 << 20),
            blocks: rng.u64(0..400),
            bounds: (b"a".to_vec(), vec![b'z'; i * 9]),
        });
        let pieces = pieces.collect();
        let totals =
            Totals { user_keys: 3, entries: 4, tombstones: 1, merge_operands: 2, key_bytes: 5, value_bytes: 6 };
        let own_blocks = rng.u64(1..1000);
        let mut list = || (0..rng.u64(0..4)).collect();
        let replaced = ReplacedTables { by_job: list(), before: list() };
        Head { own_blocks, totals, pieces, replaced }
    }

    fn built(rng: &mut fastrand::Rng, head: &Head, keys: &[(u64, Option<u64>)]) -> Vec<u8> {
        let bits = locator_bits(head.blocks());
        let hashes: Vec<u64> = keys.iter().map(|k| k.0).collect();
        let function = rockmill_phash::Builder::new().seed(rng.u64(..)).build(&hashes).unwrap();
        let mut out = head.encode(bits, true);
        assert!(append_finder(&mut out, &function, &hashes, keys.iter().map(|k| k.1), bits));
        out
    }

    #[test]
    fn keys_are_found_in_their_blocks() {
        for seed in 0..60 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let head = head(&mut rng);
            let blocks = head.blocks();
            let keys: Vec<_> = (0..rng.usize(0..3000))
                .map(|_| (rng.u64(..), (rng.u8(0..9) > 0).then(|| rng.u64(0..blocks))))
                .collect();
            let bytes = built(&mut rng, &head, &keys);
            let (read, finder) = Head::decode(bytes).unwrap();
            assert_eq!(read, head);
            let finder = finder.unwrap();
            for (hash, block) in &keys {
                assert_eq!(finder.find(*hash), *block);
            }
            let absent = (0..10_000).filter(|_| finder.find(rng.u64(..)).is_some()).count();
            assert!(absent < 120, "{absent} of 10,000 absent keys pass");
        }
    }

    #[test]
    fn bytes_of_any_kind_are_refused_or_read() {
        for seed in 0..3000 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let head = head(&mut rng);
            let keys: Vec<_> = (0..rng.usize(0..80)).map(|_| (rng.u64(..), Some(rng.u64(0..head.blocks())))).collect();
            let mut bytes = built(&mut rng, &head, &keys);
            for _ in 0..rng.usize(1..4) {
                match rng.u8(0..3) {
                    0 => bytes.truncate(rng.usize(0..=bytes.len())),
                    1 => bytes.push(rng.u8(..)),
                    _ if bytes.is_empty() => {}
                    _ => {
                        let at = rng.usize(0..bytes.len());
                        bytes[at] = if rng.bool() { rng.u8(..) } else { 255 };
                    }
                }
            }
            if let Ok((_, Some(finder))) = Head::decode(bytes) {
                (0..200)
                    .for_each(|_| assert!(finder.find(rng.u64(..)).is_none_or(|block| block < 1 << LOCATOR_BITS_MAX)));
            }
        }
    }

    /// A block with everything that a block may have: two further files, both lists of replaced tables, a key in each
    /// file, one that is gone, and one whose hash several keys share. Tables on disks have these bytes: code that
    /// writes others needs another version.
    #[test]
    fn the_bytes_are_these() {
        const SEED: u64 = 0x0123_4567_89ab_cdef;
        let piece = |number: u64, first: &[u8], last: &[u8]| PieceUse {
            number,
            size: 0x1000 + number,
            live: 0x800 + number,
            blocks: 3,
            bounds: (first.to_vec(), last.to_vec()),
        };
        let head = Head {
            own_blocks: 2,
            totals: Totals {
                user_keys: 5,
                entries: 9,
                tombstones: 1,
                merge_operands: 2,
                key_bytes: 77,
                value_bytes: 300,
            },
            pieces: vec![piece(12, b"b", b"mm"), piece(10, b"", b"zzz")],
            replaced: ReplacedTables { by_job: vec![14, 13], before: vec![11] },
        };
        let hash = |key: &[u8]| rockmill_phash::hash_key(key, SEED);
        // Block 1 is the head's, 2 to 4 are file 12's, 5 to 7 file 10's; 8 says that keys share the hash.
        let keys: [(&[u8], Option<u64>); 5] =
            [(b"apple", Some(1)), (b"", Some(4)), (b"pear", Some(7)), (b"gone", None), (b"twins", Some(8))];
        // The builder makes room for the number of all blocks.
        let bits = locator_bits(head.blocks() + 1);
        assert_eq!(bits, 4);
        let hashes: Vec<u64> = keys.iter().map(|k| hash(k.0)).collect();
        let function = rockmill_phash::Builder::new().seed(SEED).build(&hashes).unwrap();
        let mut bytes = head.encode(bits, true);
        assert!(append_finder(&mut bytes, &function, &hashes, keys.iter().map(|k| k.1), bits));
        let expected = concat!(
            "01030400",                                                         // version, flags, bits, 0
            "02000000",                                                         // further files
            "0200000000000000",                                                 // own data blocks
            "05000000000000000900000000000000",                                 // user keys, entries
            "01000000000000000200000000000000",                                 // tombstones, operands
            "4d000000000000002c01000000000000",                                 // bytes of keys, of values
            "0c000000000000000c100000000000000c080000000000000300000000000000", // file 12
            "0100000062020000006d6d",                                           // its bounds
            "0a000000000000000a100000000000000a080000000000000300000000000000", // file 10
            "00000000030000007a7a7a",                                           // its bounds
            "020000000e000000000000000d00000000000000",                         // what the job replaced
            "010000000b00000000000000",                                         // what was replaced before
            "3200000000000000",                                                 // length, and the function
            "524d504801020000efcdab896745230105000000000000000600000000000000",
            "020000000000000000000000060000000001",
            "00005c73731c",           // signatures
            "0078140000000000000000", // locators, and eight bytes
        );
        let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, expected);
        let (read, finder) = Head::decode(bytes).unwrap();
        assert_eq!(read, head);
        let finder = finder.unwrap();
        keys.iter().for_each(|(key, block)| assert_eq!(finder.find(finder.hash(key)), *block));
        assert_eq!([0, 1, u64::MAX, 0x0123_4567_89ab_cdef].map(signature), [1, 255, 149, 248]);
    }

    #[test]
    fn locators_have_room_for_every_block() {
        assert_eq!([0, 1, 2, 3, 4, 5, 256, 257].map(locator_bits), [0, 0, 1, 2, 2, 3, 8, 9]);
    }
}
