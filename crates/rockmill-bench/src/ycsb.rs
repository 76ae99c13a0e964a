//! YCSB's core workloads (Cooper and others, SoCC 2010) with its generators.
//!
//! A record has one key and `fieldcount` fields, which are concatenated in the value. As in YCSB's bindings to
//! key-value stores, an update reads the record, changes one field and writes it, unless `--writeallfields` writes all
//! of it blindly. Inserts of several threads take turns by number instead of sharing a counter, so that the same seed
//! gives the same operations with any number of threads.

use crate::error::Result;
use crate::flags::Flags;
use crate::random::Mersenne64;
use crate::record::Done;
use crate::store::OpKind;
use crate::workload::{Thread, Work, Workload};

/// YCSB's `ZIPFIAN_CONSTANT`.
const THETA: f64 = 0.99;
/// The scrambled generator draws from this many items, regardless of the number of keys, and folds the result.
const SCRAMBLED_ITEMS: u64 = 10_000_000_000;
/// zeta(SCRAMBLED_ITEMS, THETA), as YCSB has it.
const SCRAMBLED_ZETA: f64 = 26.469_028_201_783_02;

/// YCSB's hash (FNV-1, 64 bits, of the eight bytes of a number, low byte first) made positive.
pub fn hash64(n: u64) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for byte in n.to_le_bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(1_099_511_628_211);
    }
    (hash as i64).wrapping_abs() as u64
}

/// A number from 0 up to but not 1, of 53 random bits.
fn unit(random: &mut Mersenne64) -> f64 {
    (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

/// Zipfian numbers (Gray and others, SIGMOD 1994): 0 is drawn most often.
#[derive(Debug, Clone)]
pub struct Zipfian {
    items: u64,
    theta: f64,
    zeta: f64,
    zeta2: f64,
    alpha: f64,
    eta: f64,
}

impl Zipfian {
    /// Numbers below `items`.
    pub fn new(items: u64) -> Self {
        let items = items.max(1);
        Self::with_zeta(items, zeta(0, items, THETA, 0.0))
    }

    fn with_zeta(items: u64, sum: f64) -> Self {
        let zeta2 = zeta(0, 2, THETA, 0.0);
        let mut z = Self { items, theta: THETA, zeta: sum, zeta2, alpha: 1.0 / (1.0 - THETA), eta: 0.0 };
        z.set_eta();
        z
    }

    fn set_eta(&mut self) {
        let n = self.items as f64;
        self.eta = (1.0 - (2.0 / n).powf(1.0 - self.theta)) / (1.0 - self.zeta2 / self.zeta);
    }

    /// The next number, below `items`, which may grow from call to call.
    pub fn next(&mut self, random: &mut Mersenne64, items: u64) -> u64 {
        if items > self.items {
            self.zeta = zeta(self.items, items, self.theta, self.zeta);
            self.items = items;
            self.set_eta();
        }
        let u = unit(random);
        let uz = u * self.zeta;
        if uz < 1.0 {
            return 0;
        }
        if uz < 1.0 + 0.5f64.powf(self.theta) {
            return 1.min(self.items - 1);
        }
        let drawn = (self.items as f64 * (self.eta * u - self.eta + 1.0).powf(self.alpha)) as u64;
        drawn.min(self.items - 1)
    }
}

/// The sum of 1/i^theta from `from + 1` to `to`, added to `sum`.
fn zeta(from: u64, to: u64, theta: f64, sum: f64) -> f64 {
    (from..to).fold(sum, |sum, i| sum + 1.0 / ((i + 1) as f64).powf(theta))
}

/// How the keys of reads, updates and scans are chosen.
#[derive(Debug)]
pub enum Chooser {
    /// Every key the same.
    Uniform,
    /// Some keys are hot, and stand anywhere.
    Scrambled(Zipfian),
    /// The newest keys are hot.
    Latest(Zipfian),
}

impl Chooser {
    /// The chooser of a name: `uniform`, `zipfian` or `latest`.
    pub fn new(name: &str, records: u64) -> Self {
        match name {
            "uniform" => Self::Uniform,
            "latest" => Self::Latest(Zipfian::new(records)),
            _ => Self::Scrambled(Zipfian::with_zeta(SCRAMBLED_ITEMS, SCRAMBLED_ZETA)),
        }
    }

    /// The number of a key below `records`.
    pub fn next(&mut self, random: &mut Mersenne64, records: u64) -> u64 {
        match self {
            Self::Uniform => random.next_u64() % records,
            Self::Scrambled(z) => hash64(z.next(random, SCRAMBLED_ITEMS)) % records,
            Self::Latest(z) => records - 1 - z.next(random, records).min(records - 1),
        }
    }
}

/// Lengths: constant, uniform or zipfian, from a smallest to a largest.
enum Lengths {
    Constant(u64),
    Uniform(u64, u64),
    Zipfian(u64, Zipfian),
}

impl Lengths {
    fn new(name: &str, min: u64, max: u64) -> Self {
        match name {
            "uniform" => Self::Uniform(min, max),
            "zipfian" => Self::Zipfian(min, Zipfian::new(max - min + 1)),
            _ => Self::Constant(max),
        }
    }

    fn next(&mut self, random: &mut Mersenne64) -> u64 {
        match self {
            Self::Constant(n) => *n,
            Self::Uniform(min, max) => *min + random.next_u64() % (*max - *min + 1),
            Self::Zipfian(min, z) => *min + z.next(random, z.items),
        }
    }
}

#[derive(Clone, Copy)]
enum Op {
    Read,
    Update,
    Insert,
    Scan,
    ReadModifyWrite,
}

/// A workload's operations with their shares, and how it chooses keys.
fn mix(workload: Workload) -> ([(Op, f64); 2], &'static str) {
    match workload {
        Workload::YcsbA => ([(Op::Read, 0.5), (Op::Update, 0.5)], "zipfian"),
        Workload::YcsbB => ([(Op::Read, 0.95), (Op::Update, 0.05)], "zipfian"),
        Workload::YcsbC => ([(Op::Read, 1.0), (Op::Read, 0.0)], "zipfian"),
        Workload::YcsbD => ([(Op::Read, 0.95), (Op::Insert, 0.05)], "latest"),
        Workload::YcsbE => ([(Op::Scan, 0.95), (Op::Insert, 0.05)], "zipfian"),
        Workload::YcsbF => ([(Op::Read, 0.5), (Op::ReadModifyWrite, 0.5)], "zipfian"),
        _ => ([(Op::Insert, 1.0), (Op::Insert, 0.0)], "uniform"),
    }
}

/// One thread's part of a workload.
pub(crate) struct Ycsb {
    loads: bool,
    ops: [(Op, f64); 2],
    chooser: Chooser,
    scans: Lengths,
    fields: Lengths,
    hashed: bool,
    zero_padding: usize,
    /// Number of the next record that this thread inserts, and the step to the following one.
    next_insert: u64,
    insert_step: u64,
    /// Records that certainly exist, as far as this thread knows.
    records: u64,
    value: Vec<u8>,
}

impl Ycsb {
    pub fn new(workload: Workload, f: &Flags, index: usize) -> Self {
        let (ops, chosen_by) = mix(workload);
        let (records, threads) = (f.records(), f.threads as u64);
        let loads = workload == Workload::YcsbLoad;
        let chosen_by = if f.requestdistribution.is_empty() { chosen_by } else { &f.requestdistribution };
        Self {
            loads,
            ops,
            chooser: Chooser::new(if loads { "uniform" } else { chosen_by }, records),
            scans: Lengths::new(&f.scanlengthdistribution, f.minscanlength, f.maxscanlength),
            fields: Lengths::new(&f.fieldlengthdistribution, 1, f.fieldlength as u64),
            hashed: f.insertorder == "hashed",
            zero_padding: f.zeropadding,
            next_insert: if loads { index as u64 } else { records + index as u64 },
            insert_step: threads,
            records,
            value: Vec::new(),
        }
    }

    /// Writes the key of record `n` into `t.key`: `user` and the number, hashed so that neighbours are far apart.
    fn key(&self, n: u64, t: &mut Thread<'_>) {
        let n = if self.hashed { hash64(n) } else { n };
        let mut digits = [0; 20];
        let mut at = digits.len();
        let mut rest = n;
        loop {
            at -= 1;
            digits[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        let digits = &digits[at..];
        t.key.clear();
        t.key.extend_from_slice(b"user");
        t.key.resize(4 + self.zero_padding.saturating_sub(digits.len()), b'0');
        t.key.extend_from_slice(digits);
    }

    fn chosen_key(&mut self, t: &mut Thread<'_>) {
        let n = self.chooser.next(&mut t.random, self.records);
        self.key(n, t);
    }

    /// Fills `self.value` with a whole record.
    fn new_record(&mut self, t: &mut Thread<'_>) {
        self.value.clear();
        for _ in 0..t.flags.fieldcount {
            let len = self.fields.next(&mut t.random) as usize;
            self.value.extend_from_slice(t.values.next_value(len));
        }
    }

    fn write(&self, t: &mut Thread<'_>) -> Result<u64> {
        t.session.put(&t.key, &self.value);
        t.session.commit()?;
        Ok((t.key.len() + self.value.len()) as u64)
    }

    /// Reads the record under `t.key` into `self.value`. Returns the bytes of key and value, 0 if it does not exist.
    fn read(&mut self, t: &mut Thread<'_>) -> Result<u64> {
        let value = &mut self.value;
        value.clear();
        let found = t.session.get(&t.key, &mut |v| value.extend_from_slice(v))?;
        *t.record.found.get_or_insert(0) += u64::from(found);
        Ok(if found { (t.key.len() + self.value.len()) as u64 } else { 0 })
    }

    /// Changes one field of the record in `self.value`, whose fields all have the same length.
    fn change_field(&mut self, t: &mut Thread<'_>) {
        let count = t.flags.fieldcount;
        let field = (t.random.next_u64() % count as u64) as usize;
        let len = self.value.len() / count;
        if len == 0 {
            return self.new_record(t);
        }
        let new = t.values.next_value(len);
        self.value[field * len..(field + 1) * len].copy_from_slice(new);
    }

    fn insert(&mut self, t: &mut Thread<'_>) -> Result<Done> {
        let n = self.next_insert;
        self.next_insert += self.insert_step;
        self.key(n, t);
        self.new_record(t);
        let wrote = self.write(t)?;
        // Other threads' records with lower numbers may still be missing; such a read finds nothing, as in YCSB.
        self.records = self.records.max(n + 1);
        Ok(Done { kind: OpKind::Insert, ops: 1, wrote, read: 0 })
    }
}

impl Work for Ycsb {
    fn kinds(&self) -> &'static [OpKind] {
        if self.loads {
            return &[OpKind::Insert];
        }
        match self.ops.map(|(op, _)| op) {
            [Op::Read, Op::Update | Op::ReadModifyWrite] => &[OpKind::Read, OpKind::Update],
            [Op::Read, Op::Insert] => &[OpKind::Read, OpKind::Insert],
            [Op::Scan, _] => &[OpKind::Scan, OpKind::Insert],
            _ => &[OpKind::Read],
        }
    }

    fn step(&mut self, t: &mut Thread<'_>) -> Result<Option<Done>> {
        if self.loads {
            return self.insert(t).map(Some);
        }
        let op = if unit(&mut t.random) < self.ops[0].1 { self.ops[0].0 } else { self.ops[1].0 };
        let done = match op {
            Op::Insert => self.insert(t)?,
            Op::Read => {
                self.chosen_key(t);
                Done::read(self.read(t)?)
            }
            Op::Scan => {
                self.chosen_key(t);
                let len = self.scans.next(&mut t.random);
                let sought = t.session.seek(&t.key, len)?;
                t.record.scanned += sought.entries;
                Done { kind: OpKind::Scan, ops: 1, wrote: 0, read: sought.bytes }
            }
            Op::Update | Op::ReadModifyWrite => {
                self.chosen_key(t);
                let blind = t.flags.writeallfields && matches!(op, Op::Update);
                let read = if blind { 0 } else { self.read(t)? };
                if t.flags.writeallfields || read == 0 {
                    self.new_record(t);
                } else {
                    self.change_field(t);
                }
                Done { kind: OpKind::Update, ops: 1, wrote: self.write(t)?, read }
            }
        };
        Ok(Some(done))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Probabilities of the first numbers by the definition of the distribution: 1/i^theta divided by their sum.
    #[test]
    fn zipfian_numbers_come_as_often_as_they_should() {
        const ITEMS: u64 = 1000;
        let (mut z, mut random) = (Zipfian::new(ITEMS), Mersenne64::new(11));
        let mut counts = vec![0f64; ITEMS as usize];
        const DRAWS: u32 = 200_000;
        for _ in 0..DRAWS {
            counts[z.next(&mut random, ITEMS) as usize] += 1.0;
        }
        let sum = zeta(0, ITEMS, THETA, 0.0);
        for i in [0usize, 1, 9, 99] {
            let wanted = f64::from(DRAWS) / ((i + 1) as f64).powf(THETA) / sum;
            // The method is exact for the first two numbers and an approximation for the others.
            let allowed = if i < 2 { 0.03 } else { 0.25 };
            assert!((counts[i] / wanted - 1.0).abs() < allowed, "{i}: {} for {wanted}", counts[i]);
        }
        let head: f64 = counts[..100].iter().sum::<f64>() / f64::from(DRAWS);
        let wanted = zeta(0, 100, THETA, 0.0) / sum;
        assert!((head - wanted).abs() < 0.02, "{head} for {wanted}");
    }

    #[test]
    fn zeta_goes_on_where_it_ended() {
        let whole = zeta(0, 5000, THETA, 0.0);
        let parts = zeta(2000, 5000, THETA, zeta(0, 2000, THETA, 0.0));
        assert!((whole - parts).abs() < 1e-9);
        // YCSB's constant is the sum for 10^10 items. The tail after 10^6 is approximated well by an integral.
        let tail = |x: f64| x.powf(1.0 - THETA) / (1.0 - THETA);
        let sum = zeta(0, 1_000_000, THETA, 0.0) + tail(1e10) - tail(1e6);
        assert!((sum - SCRAMBLED_ZETA).abs() < 1e-4, "{sum}");
    }

    /// Computed by hand from FNV's definition: eight zero bytes multiply the offset basis by the prime eight times.
    #[test]
    fn the_hash_is_fnv() {
        let mut wanted = 0xcbf2_9ce4_8422_2325u64;
        for _ in 0..8 {
            wanted = wanted.wrapping_mul(0x0000_0100_0000_01b3);
        }
        assert_eq!(hash64(0), (wanted as i64).wrapping_abs() as u64);
        assert_ne!(hash64(1), hash64(256));
    }

    #[test]
    fn choosers_choose_as_their_names_say() {
        const RECORDS: u64 = 10_000;
        let share_of_top = |name: &str, newest: bool| {
            let (mut c, mut random) = (Chooser::new(name, RECORDS), Mersenne64::new(3));
            let mut counts = vec![0u32; RECORDS as usize];
            for _ in 0..50_000 {
                counts[c.next(&mut random, RECORDS) as usize] += 1;
            }
            if newest {
                counts.reverse();
            } else {
                counts.sort_unstable_by(|a, b| b.cmp(a));
            }
            counts[..100].iter().sum::<u32>() as f64 / 50_000.0
        };
        assert!(share_of_top("uniform", false) < 0.05);
        let hot = share_of_top("zipfian", false);
        // The hundred hottest of 10^10 items get about zeta(100) / zeta(10^10) of the draws.
        assert!((0.17..0.27).contains(&hot), "{hot}");
        let newest = share_of_top("latest", true);
        assert!((0.45..0.65).contains(&newest), "{newest}");
    }

    #[test]
    fn latest_follows_what_is_inserted() {
        let (mut c, mut random) = (Chooser::new("latest", 10), Mersenne64::new(3));
        let drawn: Vec<u64> = (0..2000).map(|i| c.next(&mut random, 10 + i)).collect();
        assert!(drawn.iter().enumerate().all(|(i, n)| *n < 10 + i as u64));
        assert!(drawn[1900..].iter().any(|n| *n > 1900), "the newest are hot");
    }

    #[test]
    fn lengths_keep_their_bounds() {
        let mut random = Mersenne64::new(1);
        for name in ["uniform", "zipfian"] {
            let mut l = Lengths::new(name, 3, 9);
            let all: Vec<u64> = (0..2000).map(|_| l.next(&mut random)).collect();
            assert_eq!((all.iter().min(), all.iter().max()), (Some(&3), Some(&9)), "{name}");
        }
        assert_eq!(Lengths::new("constant", 1, 100).next(&mut random), 100);
    }
}
