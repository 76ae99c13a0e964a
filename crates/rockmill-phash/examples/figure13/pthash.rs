//! PTHash, to compare with: Pibiri and Trani, "PTHash: Revisiting FCH Minimal Perfect Hashing" (SIGIR 2021).
//!
//! Keys go to c n / log2 n buckets, 60 % of them to 30 % of the buckets. Starting with the largest, each bucket gets a
//! pilot: the smallest number k for which all its keys' places, (hash XOR hash(k)) mod n / alpha, are free and
//! different. The pilots of dense and of sparse buckets are stored separately, either as numbers with as many bits as
//! the largest needs ("C-C"), or as positions in a dictionary of the pilots that occur ("D-D"). An Elias-Fano list maps
//! each place at or after n to an unused slot before n, so the function is minimal.
//!
//! The paper builds with one thread. With more threads, keys are split by hash into as many parts, each with its own
//! function, as the authors did in later work.

/// How a function is built.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    pub name: &'static str,
    /// Keys for each place.
    alpha: f64,
    /// The number of buckets is c n / log2 n.
    c: f64,
    /// Whether pilots are stored as positions in a dictionary.
    dictionary: bool,
}

/// The paper's (i) and (iv): the fastest lookups, and the best overall balance.
pub const SETTINGS: [Setting; 2] = [
    Setting { name: "PTHash C-C, 0.99", alpha: 0.99, c: 7.0, dictionary: false },
    Setting { name: "PTHash D-D, 0.94", alpha: 0.94, c: 7.0, dictionary: true },
];

/// The function.
pub struct PtHash {
    /// The parts, each with the number of keys in the parts before it.
    parts: Vec<(usize, Part)>,
}

impl PtHash {
    /// Builds the function of `hashes`, which must be distinct; with as many parts as threads.
    pub fn build(setting: Setting, hashes: &[u64], threads: usize) -> Self {
        if threads == 1 {
            return Self { parts: vec![(0, Part::build(setting, hashes))] };
        }
        let mut split = vec![Vec::with_capacity(hashes.len() / threads * 9 / 8); threads];
        hashes.iter().for_each(|&hash| split[reduce(hash, threads as u64)].push(hash));
        let built: Vec<Part> = std::thread::scope(|scope| {
            let threads: Vec<_> = split.iter().map(|part| scope.spawn(|| Part::build(setting, part))).collect();
            threads.into_iter().map(|thread| thread.join().expect("a part is built")).collect()
        });
        let mut parts = Vec::with_capacity(threads);
        let mut before = 0;
        for part in built {
            parts.push((before, part));
            before += split[parts.len() - 1].len();
        }
        Self { parts }
    }

    /// The slot of a key, less than the number of keys.
    #[inline]
    pub fn slot(&self, hash: u64) -> usize {
        let (before, part) = match &self.parts[..] {
            [only] => only,
            parts => &parts[reduce(hash, parts.len() as u64)],
        };
        before + part.slot(hash)
    }

    /// What it takes.
    pub fn bits(&self) -> usize {
        self.parts.iter().map(|(_, part)| part.dense.bits() + part.sparse.bits() + part.free.bits()).sum()
    }
}

struct Part {
    keys: usize,
    buckets: Buckets,
    places: Modulus,
    dense: Pilots,
    sparse: Pilots,
    free: EliasFano,
}

impl Part {
    fn build(setting: Setting, hashes: &[u64]) -> Self {
        let keys = hashes.len();
        let all = ((setting.c * keys as f64 / (keys.max(4) as f64).log2()) as usize).max(4);
        let buckets = Buckets { dense: (all * 3 / 10) as u32, sparse: (all - all * 3 / 10) as u32 };
        // Odd: after XOR and a remainder by an even number, low bits differ exactly where they did before, whatever the
        // pilot is. A bucket might then have no pilot.
        let places = Modulus::new(((keys as f64 / setting.alpha) as u64 + 1) | 1);
        let (pilots, taken) = search(buckets, places, hashes);
        let (dense, sparse) = pilots.split_at(buckets.dense as usize);
        let mut next = 0;
        let free = (keys..places.n as usize).map(|place| {
            // A place that no key uses repeats the previous entry.
            if taken.get(place) {
                while taken.get(next) {
                    next += 1;
                }
                next += 1;
            }
            next.saturating_sub(1)
        });
        let free = EliasFano::new(&free.collect::<Vec<_>>(), keys);
        let [dense, sparse] = [dense, sparse].map(|pilots| Pilots::new(pilots, setting.dictionary));
        Self { keys, buckets, places, dense, sparse, free }
    }

    #[inline]
    fn slot(&self, hash: u64) -> usize {
        let bucket = self.buckets.of(hash);
        let pilot = match bucket.checked_sub(self.buckets.dense as usize) {
            None => self.dense.get(bucket),
            Some(bucket) => self.sparse.get(bucket),
        };
        let place = self.places.of(hash ^ mix(pilot));
        if place < self.keys { place } else { self.free.get(place - self.keys) }
    }
}

/// The pilot of each bucket, and the places taken.
fn search(buckets: Buckets, places: Modulus, hashes: &[u64]) -> (Vec<u64>, BitSet) {
    let all = (buckets.dense + buckets.sparse) as usize;
    // The keys of each bucket, one bucket after another.
    let mut ends = vec![0u32; all];
    hashes.iter().for_each(|&hash| ends[buckets.of(hash)] += 1);
    let largest = ends.iter().max().map_or(0, |&size| size as usize);
    let mut of_size = vec![Vec::new(); largest + 1];
    let mut begin = 0;
    for (bucket, end) in ends.iter_mut().enumerate() {
        of_size[*end as usize].push(bucket as u32);
        begin += std::mem::replace(end, begin);
    }
    let mut grouped = vec![0; hashes.len()];
    for &hash in hashes {
        let end = &mut ends[buckets.of(hash)];
        grouped[*end as usize] = hash;
        *end += 1;
    }
    let mixed: Vec<u64> = (0..1024).map(mix).collect();
    let (mut pilots, mut taken) = (vec![0; all], BitSet::new(places.n as usize));
    let mut found = Vec::with_capacity(largest);
    for (size, of_size) in of_size.iter().enumerate().skip(1).rev() {
        for &bucket in of_size {
            let end = ends[bucket as usize] as usize;
            let keys = &grouped[end - size..end];
            pilots[bucket as usize] = (0..1 << 26)
                .find(|&pilot| {
                    let mixed = mixed.get(pilot as usize).copied().unwrap_or_else(|| mix(pilot));
                    found.clear();
                    for &hash in keys {
                        let place = places.of(hash ^ mixed);
                        if taken.get(place) {
                            return false;
                        }
                        found.push(place);
                    }
                    found.sort_unstable();
                    found.windows(2).all(|two| two[0] != two[1])
                })
                .expect("some pilot does");
            found.iter().for_each(|&place| taken.set(place));
        }
    }
    (pilots, taken)
}

/// Numbers of buckets of each kind.
#[derive(Clone, Copy)]
struct Buckets {
    dense: u32,
    sparse: u32,
}

impl Buckets {
    #[inline]
    fn of(self, hash: u64) -> usize {
        const DENSE_SHARE: u32 = (0.6 * u32::MAX as f64) as u32;
        let spread = mix(hash);
        let (which, within) = (spread as u32, (spread >> 32) << 32);
        match which < DENSE_SHARE {
            true => reduce(within, self.dense.into()),
            false => self.dense as usize + reduce(within, self.sparse.into()),
        }
    }
}

#[inline]
fn mix(x: u64) -> u64 {
    let product = u128::from(x ^ 0x9e37_79b9_7f4a_7c15) * 0x9fb2_1c65_1e98_df25;
    (product as u64) ^ (product >> 64) as u64
}

/// Maps `x`, uniform over 64 bits, to `0..n`.
#[inline]
fn reduce(x: u64, n: u64) -> usize {
    ((u128::from(x) * u128::from(n)) >> 64) as usize
}

/// Division of 64 bits by a constant as multiplication (Lemire, Kaser, Kurz).
#[derive(Clone, Copy)]
struct Modulus {
    n: u64,
    magic: u128,
}

impl Modulus {
    fn new(n: u64) -> Self {
        Self { n, magic: (u128::MAX / u128::from(n)).wrapping_add(1) }
    }

    #[inline]
    fn of(self, x: u64) -> usize {
        let low = self.magic.wrapping_mul(x.into());
        let n = u128::from(self.n);
        (((low >> 64) * n + ((u128::from(low as u64) * n) >> 64)) >> 64) as usize
    }
}

struct BitSet(Vec<u64>);

impl BitSet {
    fn new(len: usize) -> Self {
        Self(vec![0; len.div_ceil(64)])
    }

    #[inline]
    fn get(&self, i: usize) -> bool {
        self.0[i / 64] >> (i % 64) & 1 == 1
    }

    fn set(&mut self, i: usize) {
        self.0[i / 64] |= 1 << (i % 64);
    }
}

/// Numbers with the same number of bits.
struct Packed {
    width: usize,
    words: Vec<u64>,
}

impl Packed {
    fn new(numbers: impl ExactSizeIterator<Item = u64>, largest: u64) -> Self {
        let width = (u64::BITS - largest.leading_zeros()) as usize;
        // One extra word, so that two words can be read at every number.
        let mut words = vec![0; (numbers.len() * width).div_ceil(64).max(1) + 1];
        for (i, number) in numbers.enumerate().filter(|_| width > 0) {
            let (word, bit) = (i * width / 64, i * width % 64);
            words[word] |= number << bit;
            if bit + width > 64 {
                words[word + 1] = number >> (64 - bit);
            }
        }
        Self { width, words }
    }

    #[inline]
    fn get(&self, i: usize) -> u64 {
        let (word, bit) = (i * self.width / 64, i * self.width % 64);
        let two = u128::from(self.words[word]) | u128::from(self.words[word + 1]) << 64;
        (two >> bit) as u64 & ((1u128 << self.width) - 1) as u64
    }

    fn bits(&self) -> usize {
        64 * self.words.len()
    }
}

/// The pilots of buckets of one kind.
struct Pilots {
    numbers: Packed,
    dictionary: Option<Packed>,
}

impl Pilots {
    fn new(pilots: &[u64], dictionary: bool) -> Self {
        let largest = pilots.iter().max().copied().unwrap_or(0);
        if !dictionary {
            return Self { numbers: Packed::new(pilots.iter().copied(), largest), dictionary: None };
        }
        let mut occurs = vec![false; largest as usize + 1];
        pilots.iter().for_each(|&pilot| occurs[pilot as usize] = true);
        let known: Vec<u64> = (0..=largest).filter(|&pilot| occurs[pilot as usize]).collect();
        let mut places = vec![0; occurs.len()];
        known.iter().zip(0..).for_each(|(&pilot, place)| places[pilot as usize] = place);
        let numbers = Packed::new(pilots.iter().map(|&p| places[p as usize]), known.len().saturating_sub(1) as u64);
        Self { numbers, dictionary: Some(Packed::new(known.into_iter(), largest)) }
    }

    #[inline]
    fn get(&self, bucket: usize) -> u64 {
        let number = self.numbers.get(bucket);
        self.dictionary.as_ref().map_or(number, |all| all.get(number as usize))
    }

    fn bits(&self) -> usize {
        self.numbers.bits() + self.dictionary.as_ref().map_or(0, Packed::bits)
    }
}

/// Non-decreasing numbers: the low bits of each, and the high bits as distances in ones and zeros.
struct EliasFano {
    shift: usize,
    low: Packed,
    high: Vec<u64>,
    /// The position of every 64th one bit.
    ones: Vec<u32>,
}

impl EliasFano {
    fn new(numbers: &[usize], bound: usize) -> Self {
        let shift = (bound / numbers.len().max(1)).max(1).ilog2() as usize;
        let mask = (1u64 << shift) - 1;
        let mut high = BitSet::new((bound >> shift) + numbers.len() + 1);
        let mut ones = Vec::new();
        for (i, number) in numbers.iter().enumerate() {
            let at = (number >> shift) + i;
            high.set(at);
            if i % 64 == 0 {
                ones.push(at as u32);
            }
        }
        Self { shift, low: Packed::new(numbers.iter().map(|&n| n as u64 & mask), mask), high: high.0, ones }
    }

    #[inline]
    fn get(&self, i: usize) -> usize {
        let (from, mut skip) = (self.ones[i / 64] as usize, i % 64);
        let mut at = from / 64;
        let mut word = self.high[at] >> (from % 64) << (from % 64);
        while skip >= word.count_ones() as usize {
            skip -= word.count_ones() as usize;
            at += 1;
            word = self.high[at];
        }
        (0..skip).for_each(|_| word &= word - 1);
        let one = 64 * at + word.trailing_zeros() as usize;
        (one - i) << self.shift | self.low.get(i) as usize
    }

    fn bits(&self) -> usize {
        self.low.bits() + 64 * self.high.len() + 32 * self.ones.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_a_slot_of_its_own_and_every_slot_a_key() {
        let mut rng = fastrand::Rng::with_seed(5);
        for n in (0..70).chain([1000, 4095, 4096, 50_001]) {
            let hashes: Vec<u64> = (0..n).map(|_| rng.u64(..)).collect();
            for (setting, threads) in SETTINGS.into_iter().flat_map(|setting| [1, 2, 3].map(|t| (setting, t))) {
                let function = PtHash::build(setting, &hashes, threads);
                let mut slots: Vec<usize> = hashes.iter().map(|&hash| function.slot(hash)).collect();
                slots.sort_unstable();
                assert!(slots.into_iter().eq(0..n), "{n} keys, {setting:?}, {threads} threads");
                assert!(n < 4000 || function.bits() < 6 * n, "{n} keys, {setting:?}: {} bits", function.bits());
            }
        }
    }

    #[test]
    fn lists_give_what_was_put_in() {
        let mut rng = fastrand::Rng::with_seed(6);
        for bound in [1, 2, 100, 100_000] {
            for len in [0, 1, 63, 64, 65, 1000] {
                let mut numbers: Vec<usize> = (0..len).map(|_| rng.usize(..bound)).collect();
                numbers.sort_unstable();
                let list = EliasFano::new(&numbers, bound);
                assert!((0..len).all(|i| list.get(i) == numbers[i]), "{len} below {bound}");
            }
        }
        for n in [1, 2, 3, 1000, u64::from(u32::MAX) + 2, u64::MAX] {
            for x in [0, 1, n - 1, n / 2, u64::MAX, rng.u64(..)] {
                assert_eq!(Modulus::new(n).of(x), (x % n) as usize, "{x} % {n}");
            }
        }
    }
}
