//! What a table that is being written remembers of each user key until its end, when the function is built: a hash of
//! eight bytes, and where the key's entries are, in one byte for nearly all.

/// Bits of a packed place for the block. Above them is the number of the file: 0 for the own file, then the files that
/// the table keeps using, in the order of their first use.
pub(super) const BLOCK_BITS: u32 = super::layout::LOCATOR_BITS_MAX;
/// A deleted key.
pub(super) const GONE: u64 = u64::MAX;
/// Different keys that have one hash.
pub(super) const SHARED: u64 = u64::MAX - 1;

/// Numbers of a chunk: 256 KiB.
const CHUNK_LEN: usize = 1 << 15;

/// Numbers, one for each key. A vector would have up to twice as many places, and three times as many while it is
/// moved.
#[derive(Default)]
pub(super) struct Column {
    full: Vec<Vec<u64>>,
    last: Vec<u64>,
}

impl Column {
    #[inline]
    pub fn push(&mut self, number: u64) {
        if self.last.len() == CHUNK_LEN {
            self.full.push(std::mem::replace(&mut self.last, Vec::with_capacity(CHUNK_LEN)));
        }
        self.last.push(number);
    }

    /// All in one vector. Each chunk is freed as soon as it is copied.
    pub fn into_vec(self) -> Vec<u64> {
        if self.full.is_empty() {
            return self.last;
        }
        let mut all = Vec::with_capacity(self.full.len() * CHUNK_LEN + self.last.len());
        self.full.into_iter().chain([self.last]).for_each(|chunk| all.extend(chunk));
        all
    }
}

/// Bytes of a chunk of places.
const PLACES_CHUNK: usize = 64 << 10;

/// Files whose places take one byte. Few tables have more.
const FILES: usize = 31;
/// The most blocks that a place may be after the previous one in its file to take one byte.
const STEPS: u64 = 8;
/// The codes after those for a file and a step: eight bytes follow, [`GONE`] and [`SHARED`].
const WIDE_CODE: u8 = FILES as u8 * STEPS as u8;
const GONE_CODE: u8 = WIDE_CODE + 1;
const SHARED_CODE: u8 = WIDE_CODE + 2;

/// Packed places, one for each key. Keys rise, and so do the blocks of each file: nearly every place is a file and the
/// same block as the last one of it, or the next.
#[derive(Default)]
pub(super) struct Places {
    full: Vec<Vec<u8>>,
    last: Vec<u8>,
    blocks: LastBlocks,
}

/// The last block of each file.
#[derive(Default, Clone, Copy)]
struct LastBlocks([u64; FILES]);

impl LastBlocks {
    /// Where the last block of a place's file is noted, and the place's block.
    #[inline]
    fn of(&mut self, place: u64) -> Option<(usize, &mut u64, u64)> {
        let file = usize::try_from(place >> BLOCK_BITS).ok()?;
        Some((file, self.0.get_mut(file)?, place & ((1 << BLOCK_BITS) - 1)))
    }

    /// The code of a place, if it has its own.
    #[inline]
    fn code(&mut self, place: u64) -> Option<u8> {
        let (file, last, block) = self.of(place)?;
        let step = block.checked_sub(std::mem::replace(last, block))?;
        (step < STEPS).then_some((file as u64 * STEPS + step) as u8)
    }

    /// The place that has its own code.
    #[inline]
    fn place(&mut self, code: u8) -> u64 {
        let (file, step) = (usize::from(code) / STEPS as usize, u64::from(code) % STEPS);
        let last = &mut self.0[file.min(FILES - 1)];
        *last += step;
        (file as u64) << BLOCK_BITS | *last
    }
}

impl Places {
    #[inline]
    pub fn push(&mut self, place: u64) {
        if self.last.len() + 1 + size_of::<u64>() > PLACES_CHUNK {
            self.full.push(std::mem::replace(&mut self.last, Vec::with_capacity(PLACES_CHUNK)));
        }
        match place {
            GONE => self.last.push(GONE_CODE),
            SHARED => self.last.push(SHARED_CODE),
            place => match self.blocks.code(place) {
                Some(code) => self.last.push(code),
                None => {
                    self.last.push(WIDE_CODE);
                    self.last.extend_from_slice(&place.to_le_bytes());
                }
            },
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = u64> {
        let mut bytes = self.full.iter().chain([&self.last]).flatten().copied();
        let mut blocks = LastBlocks::default();
        std::iter::from_fn(move || match bytes.next()? {
            GONE_CODE => Some(GONE),
            SHARED_CODE => Some(SHARED),
            WIDE_CODE => {
                let place = (0..size_of::<u64>()).try_fold(0, |n, i| Some(n | u64::from(bytes.next()?) << (8 * i)))?;
                if let Some((_, last, block)) = blocks.of(place) {
                    *last = block;
                }
                Some(place)
            }
            code => Some(blocks.place(code)),
        })
    }

    /// Bytes held.
    #[cfg(test)]
    fn bytes(&self) -> usize {
        self.full.iter().map(Vec::capacity).sum::<usize>() + self.last.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_has_what_was_put_into_it() {
        for len in [0, 1, CHUNK_LEN - 1, CHUNK_LEN, CHUNK_LEN + 1, 3 * CHUNK_LEN, 3 * CHUNK_LEN + 7] {
            let mut column = Column::default();
            (0..len as u64).for_each(|n| column.push(n * 3));
            let spare: usize = column.full.iter().map(|chunk| chunk.capacity() - chunk.len()).sum();
            assert_eq!(spare, 0);
            assert!(column.into_vec().into_iter().eq((0..len as u64).map(|n| n * 3)));
        }
    }

    #[test]
    fn places_are_what_was_put_there() {
        for seed in 0..60 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let (files, step_max) = (rng.u64(1..50), *rng.choice(&[1, 3, 40, 1 << 30]).unwrap());
            let mut blocks = vec![0; files as usize];
            let mut all = Vec::new();
            for _ in 0..rng.usize(0..40_000) {
                let file = rng.u64(..files);
                let block = &mut blocks[file as usize];
                // One that goes back, which does not happen in practice.
                *block = if rng.u8(..) == 0 { rng.u64(..1 << 20) } else { *block + rng.u64(..=step_max) };
                *block %= 1 << BLOCK_BITS;
                let place = file << BLOCK_BITS | *block;
                all.push(*rng.choice(&[place, place, place, GONE, SHARED]).unwrap());
            }
            let mut places = Places::default();
            all.iter().for_each(|place| places.push(*place));
            assert!(places.iter().eq(all), "seed {seed}");
        }
    }

    #[test]
    fn a_place_takes_one_byte() {
        let mut places = Places::default();
        // Of 26 keys of a block, a fifth is in four other files.
        for n in 0..1_000_000u64 {
            let file = if n % 5 == 0 { 1 + n % 4 } else { 0 };
            places.push(file << BLOCK_BITS | (n / 26));
        }
        assert!(places.bytes() < 1_100_000, "{}", places.bytes());
    }
}
