//! mixgraph: db_bench's model of Facebook's social graph (Cao and others, FAST 2020), with the same random numbers.
//!
//! Each operation draws one number. Divided by the size of the key space, it is u; key, kind of operation, size of a
//! value and length of a scan all follow from it:
//!
//! - keys: uniform; or hot by a power law, the inverse of u = a*x^b, where x then seeds a generator that scatters hot
//!   keys; or first a key range, whose hotness is a*exp(b*x)+c*exp(d*x), and then a key in it by the power law;
//! - values and scans: the inverse of a generalised Pareto distribution at u.

use crate::error::Result;
use crate::flags::Flags;
use crate::generate::write_key;
use crate::random::Mersenne64;
use crate::record::Done;
use crate::store::OpKind;
use crate::workload::{Thread, Work};

const VALUE_BYTES_MIN: i64 = 10;
const VALUE_BYTES_MAX: i64 = 1 << 20;
/// Resolution of the kinds' shares: about a thousandth.
const KIND_PARTS: f64 = 1000.0;

pub(crate) struct MixGraph {
    /// Ends of the shares of gets, puts and seeks.
    kind_ends: [u64; 3],
    ranges: Option<KeyRanges>,
    value_max: i64,
}

impl MixGraph {
    pub fn new(f: &Flags) -> Self {
        let ratios = [f.mix_get_ratio, f.mix_put_ratio, f.mix_seek_ratio].map(|r| r.max(0.0));
        let sum: f64 = ratios.iter().sum::<f64>().max(f64::MIN_POSITIVE);
        let mut end = 0;
        let kind_ends = ratios.map(|ratio| {
            end += (KIND_PARTS * (ratio / sum)).ceil() as u64;
            end
        });
        let by_range = [f.keyrange_dist_a, f.keyrange_dist_b, f.keyrange_dist_c, f.keyrange_dist_d];
        let ranges = by_range.iter().any(|x| *x != 0.0).then(|| KeyRanges::new(f));
        Self { kind_ends, ranges, value_max: f.mix_max_value_size.clamp(1, VALUE_BYTES_MAX) }
    }

    fn key(&self, drawn: u64, u: f64, f: &Flags) -> u64 {
        if f.key_dist_a == 0.0 || f.key_dist_b == 0.0 {
            drawn
        } else if let Some(ranges) = &self.ranges {
            ranges.key(drawn, f)
        } else {
            // db_bench uses a signed remainder here: half of the hot keys do not exist after a fill.
            (scattered(u, f) as i64).wrapping_rem(f.num) as u64
        }
    }
}

/// A number that depends only on the key that the power law gives for `u`.
fn scattered(u: f64, f: &Flags) -> u64 {
    let hot = (u / f.key_dist_a).powf(1.0 / f.key_dist_b).ceil();
    Mersenne64::new(hot as i64 as u64).next_u64()
}

/// The value at `u` of a generalised Pareto distribution.
fn pareto(u: f64, theta: f64, k: f64, sigma: f64) -> i64 {
    let x = if k == 0.0 { theta - sigma * u.ln() } else { theta + sigma * (u.powf(-k) - 1.0) / k };
    x.ceil() as i64
}

impl Work for MixGraph {
    fn kinds(&self) -> &'static [OpKind] {
        &[OpKind::Read, OpKind::Write, OpKind::Seek]
    }

    fn step(&mut self, t: &mut Thread<'_>) -> Result<Option<Done>> {
        let f = t.flags;
        // db_bench's choice of a database.
        t.random.next_u64();
        let drawn = t.random.next_u64() % f.num as u64;
        let u = drawn as f64 / f.num as f64;
        write_key(self.key(drawn, u, f), &mut t.key);
        let kind = drawn % self.kind_ends[2].max(1);
        if kind < self.kind_ends[0] {
            return Ok(Some(Done::read(t.get()?.unwrap_or(0))));
        }
        if kind < self.kind_ends[1] {
            let size = pareto(u, f.value_theta, f.value_k, f.value_sigma);
            let size = match size {
                n if n < VALUE_BYTES_MIN => VALUE_BYTES_MIN,
                n if n > self.value_max => n % self.value_max,
                n => n,
            };
            t.record.value_bytes += size as u64;
            let bytes = t.put(size as usize)?;
            return Ok(Some(Done::write(1, bytes)));
        }
        let entries = pareto(u, f.iter_theta, f.iter_k, f.iter_sigma) % f.mix_max_scan_len.max(1);
        let sought = t.session.seek(&t.key, entries.max(0) as u64)?;
        t.record.scanned += sought.entries;
        *t.record.found.get_or_insert(0) += u64::from(sought.found);
        Ok(Some(Done { kind: OpKind::Seek, ops: 1, wrote: 0, read: sought.bytes }))
    }
}

/// Ranges of keys, some of them hotter: each has a share of the drawn numbers.
struct KeyRanges {
    /// Where each range's share begins.
    starts: Vec<u64>,
    /// The sum of all shares.
    end: u64,
    keys_in_range: u64,
}

impl KeyRanges {
    fn new(f: &Flags) -> Self {
        let count = f.keyrange_num.max(1) as u64;
        let (mut amplify, mut end) = (0u64, 0u64);
        let mut shares = Vec::new();
        // From the coldest range, whose share becomes 1.
        for x in (1..=count).rev() {
            let x = x as f64;
            let p =
                f.keyrange_dist_a * (f.keyrange_dist_b * x).exp() + f.keyrange_dist_c * (f.keyrange_dist_d * x).exp();
            let p = if p < 1e-16 { 0.0 } else { p };
            if amplify == 0 && p > 0.0 {
                amplify = (1.0 / p).floor() as u64 + 1;
            }
            shares.push((amplify as f64 * p).floor() as u64);
            end += shares[shares.len() - 1];
        }
        // Hot ranges are anywhere, at places determined only by the distribution.
        let mut random = Mersenne64::new(end);
        if f.keyrange_num > 0 {
            for i in 0..shares.len() {
                shares.swap(i, (random.next_u64() % count) as usize);
            }
        }
        let mut start = 0;
        let starts = shares
            .iter()
            .map(|share| {
                start += share;
                start - share
            })
            .collect();
        Self { starts, end: end.max(1), keys_in_range: (f.num as u64 / count).max(1) }
    }

    fn key(&self, drawn: u64, f: &Flags) -> u64 {
        let place = drawn % self.end;
        // If several ranges begin here, all except the last have no share.
        let range = self.starts.partition_point(|start| *start <= place).saturating_sub(1) as u64;
        let u = (drawn % self.keys_in_range) as f64 / self.keys_in_range as f64;
        self.keys_in_range * range + scattered(u, f) % self.keys_in_range
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_kinds_are_kept() {
        let f = Flags { mix_get_ratio: 2.0, mix_put_ratio: 2.0, mix_seek_ratio: 2.0, ..Flags::default() };
        assert_eq!(MixGraph::new(&f).kind_ends, [334, 668, 1002], "each share is rounded up, as in db_bench");
    }

    #[test]
    fn pareto_at_known_places() {
        // theta + sigma*(u^-k - 1)/k at u = 1/2, k = 1: theta + sigma.
        assert_eq!(pareto(0.5, 3.0, 1.0, 7.0), 10);
        assert_eq!(pareto(1.0, 3.0, 0.5, 7.0), 3);
        assert_eq!(pareto(std::f64::consts::E.recip(), 0.0, 0.0, 5.0), 5);
    }

    #[test]
    fn hot_ranges_get_most_of_the_draws() {
        let f = Flags {
            num: 3000,
            keyrange_num: 30,
            keyrange_dist_a: 14.18,
            keyrange_dist_b: -2.917,
            keyrange_dist_c: 0.0164,
            keyrange_dist_d: -0.08082,
            key_dist_a: 0.002312,
            key_dist_b: 0.3467,
            ..Flags::default()
        };
        let ranges = KeyRanges::new(&f);
        let mut counts = vec![0u32; 30];
        let mut random = Mersenne64::new(5);
        for _ in 0..30_000 {
            let key = ranges.key(random.next_u64() % 1_000_000_000, &f);
            assert!(key < 3000, "{key}");
            counts[(key / 100) as usize] += 1;
        }
        let hottest = *counts.iter().max().expect("30 ranges");
        assert!(hottest > 15_000, "{counts:?}");
        assert!(counts[29] < hottest || counts[0] < hottest, "{counts:?}");
    }
}
