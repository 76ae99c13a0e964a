//! Random damage to bytes, of the kinds that decoders handle wrongly: extreme lengths and counts, cuts, pieces of other
//! inputs.

use std::ops::Range;

use fastrand::Rng;
use rockmill_format::hash::hash64;

/// Numbers at which the handling of lengths, offsets and counts fails.
const EXTREMES: [u64; 16] = [
    0,
    1,
    2,
    0x7f,
    0x80,
    0xff,
    0x100,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_fff0,
    0xffff_ffff,
    0x3fff_ffff_ffff_ffff,
    0x7fff_ffff_ffff_ffff,
    u64::MAX,
];

/// Choices that come from an input's bytes as long as there are any, then from a generator that these bytes seed. So a
/// fuzzer can learn which bytes matter, and the eight bytes of a seed are an input too.
#[derive(Debug)]
pub struct Dice<'a> {
    bytes: &'a [u8],
    rng: Rng,
}

impl<'a> Dice<'a> {
    /// The choices that these bytes encode.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, rng: Rng::with_seed(hash64(bytes)) }
    }

    fn number(&mut self) -> u64 {
        match self.bytes.split_first_chunk::<2>() {
            Some((number, rest)) => {
                self.bytes = rest;
                u64::from(u16::from_le_bytes(*number))
            }
            None => self.rng.u64(..),
        }
    }

    /// A number from a non-empty range.
    pub fn among(&mut self, range: Range<usize>) -> usize {
        range.start + (self.number() % (range.len().max(1) as u64)) as usize
    }

    /// True once in `times` calls, on average.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.among(0..times) == 0
    }

    /// One of these.
    pub fn one_of<T: Copy>(&mut self, all: &[T]) -> Option<T> {
        all.get(self.among(0..all.len())).copied()
    }
}

/// Damages `bytes` in one to four ways; pieces come from `other`.
pub fn mutate(dice: &mut Dice<'_>, bytes: &mut Vec<u8>, other: &[u8]) {
    let times = if dice.once_in(2) { 1 } else { dice.among(1..5) };
    for _ in 0..times {
        once(dice, bytes, other);
    }
}

/// A position in `len` bytes, with a preference for both ends.
fn place(dice: &mut Dice<'_>, len: usize) -> usize {
    match dice.among(0..4) {
        0 => dice.among(0..len.min(64)),
        1 => len - 1 - dice.among(0..len.min(96)),
        _ => dice.among(0..len),
    }
}

fn once(dice: &mut Dice<'_>, bytes: &mut Vec<u8>, other: &[u8]) {
    if bytes.is_empty() {
        let len = dice.among(0..16);
        bytes.extend((0..len).map(|_| dice.among(0..256) as u8));
        return;
    }
    let at = place(dice, bytes.len());
    match dice.among(0..10) {
        0 | 1 => bytes[at] ^= 1 << dice.among(0..8),
        2 | 3 => bytes[at] = dice.one_of(&[0, 1, 2, 5, 9, 15, 22, 0x7f, 0x80, 0xfe, 0xff]).unwrap_or(0),
        4 => {
            let n = dice.one_of(&EXTREMES).unwrap_or(0).to_le_bytes();
            let width = dice.one_of(&[2, 4, 8]).unwrap_or(4);
            bytes.iter_mut().skip(at).zip(&n[..width]).for_each(|(to, from)| *to = *from);
        }
        5 => {
            let mut n = Vec::new();
            rockmill_format::coding::put_varint64(&mut n, dice.one_of(&EXTREMES).unwrap_or(0));
            let end = if dice.once_in(2) { at + 1 } else { (at + n.len()).min(bytes.len()) };
            bytes.splice(at..end, n);
        }
        6 => bytes.truncate(at),
        7 => {
            let end = (at + 1 + dice.among(0..64)).min(bytes.len());
            bytes.drain(at..end);
        }
        8 => {
            let end = (at + 1 + dice.among(0..256)).min(bytes.len());
            let piece = bytes[at..end].to_vec();
            let to = place(dice, bytes.len());
            bytes.splice(to..to, piece);
        }
        _ => {
            if other.is_empty() {
                return;
            }
            let from = dice.among(0..other.len());
            let end = (from + 1 + dice.among(0..512)).min(other.len());
            let over = (at + end - from).min(bytes.len());
            let until = if dice.once_in(2) { at } else { over };
            bytes.splice(at..until, other[from..end].iter().copied());
        }
    }
}
