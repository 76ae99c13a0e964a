//! Histograms with RocksDB's buckets, so that the same values give the same percentiles.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Buckets of a histogram.
pub(super) const BUCKETS: usize = 109;

/// Upper bounds (inclusive) of the buckets: 1, 2, then each 1.5 times the one before, with two significant digits.
static LIMITS: LazyLock<[u64; BUCKETS]> = LazyLock::new(|| {
    std::array::from_fn(|i| {
        if i < 2 {
            return i as u64 + 1;
        }
        // The largest product is below 2^64; the cast truncates the fraction.
        let mut limit = limits_product(i) as u64;
        let mut power = 1;
        while limit / 10 > 10 {
            limit /= 10;
            power *= 10;
        }
        limit * power
    })
});

/// 2 * 1.5^(i - 1), by repeated multiplication as RocksDB computes it.
fn limits_product(i: usize) -> f64 {
    (1..i).fold(2.0, |product, _| product * 1.5)
}

fn bucket_of(value: u64) -> usize {
    LIMITS.partition_point(|&limit| limit < value).min(BUCKETS - 1)
}

/// The part of a histogram that some of the threads write to.
#[derive(Debug)]
pub(super) struct Cells {
    buckets: [AtomicU64; BUCKETS],
    sum: AtomicU64,
    sum_squares: AtomicU64,
    min: AtomicU64,
    max: AtomicU64,
}

impl Default for Cells {
    fn default() -> Self {
        Self {
            buckets: [const { AtomicU64::new(0) }; BUCKETS],
            sum: AtomicU64::new(0),
            sum_squares: AtomicU64::new(0),
            min: AtomicU64::new(u64::MAX),
            max: AtomicU64::new(0),
        }
    }
}

impl Cells {
    #[inline]
    pub fn record(&self, value: u64) {
        self.buckets[bucket_of(value)].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(value, Ordering::Relaxed);
        self.sum_squares.fetch_add(value.wrapping_mul(value), Ordering::Relaxed);
        if value < self.min.load(Ordering::Relaxed) {
            self.min.fetch_min(value, Ordering::Relaxed);
        }
        if value > self.max.load(Ordering::Relaxed) {
            self.max.fetch_max(value, Ordering::Relaxed);
        }
    }

    pub fn clear(&self) {
        self.buckets.iter().for_each(|b| b.store(0, Ordering::Relaxed));
        self.sum.store(0, Ordering::Relaxed);
        self.sum_squares.store(0, Ordering::Relaxed);
        self.min.store(u64::MAX, Ordering::Relaxed);
        self.max.store(0, Ordering::Relaxed);
    }
}

/// A histogram at one moment, summed over all threads.
#[derive(Debug, Clone)]
pub(super) struct Summed {
    buckets: [u64; BUCKETS],
    sum: u64,
    sum_squares: u64,
    min: u64,
    max: u64,
}

impl Summed {
    pub fn of<'a>(parts: impl Iterator<Item = &'a Cells>) -> Self {
        // RocksDB's smallest value of an empty histogram.
        let mut all = Self { buckets: [0; BUCKETS], sum: 0, sum_squares: 0, min: LIMITS[BUCKETS - 1], max: 0 };
        for part in parts {
            for (sum, bucket) in all.buckets.iter_mut().zip(&part.buckets) {
                *sum += bucket.load(Ordering::Relaxed);
            }
            all.sum = all.sum.wrapping_add(part.sum.load(Ordering::Relaxed));
            all.sum_squares = all.sum_squares.wrapping_add(part.sum_squares.load(Ordering::Relaxed));
            all.min = all.min.min(part.min.load(Ordering::Relaxed));
            all.max = all.max.max(part.max.load(Ordering::Relaxed));
        }
        all
    }

    fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The `p`th percentile, interpolated linearly within a bucket.
    fn percentile(&self, p: f64) -> f64 {
        let threshold = self.count() as f64 * (p / 100.0);
        let mut up_to = 0u64;
        for (i, &n) in self.buckets.iter().enumerate() {
            let before = up_to;
            up_to += n;
            if (up_to as f64) < threshold {
                continue;
            }
            let left = if i == 0 { 0 } else { LIMITS[i - 1] };
            let within = if n == 0 { 0.0 } else { (threshold - before as f64) / n as f64 };
            let value = left as f64 + (LIMITS[i] - left) as f64 * within;
            let value = if value < self.min as f64 { self.min as f64 } else { value };
            return if value > self.max as f64 { self.max as f64 } else { value };
        }
        self.max as f64
    }

    /// Limits of the buckets up to the last one with a value, with cumulative counts; and the sum.
    pub fn up_to(&self) -> (Vec<(u64, u64)>, u64) {
        let used = self.buckets.iter().rposition(|&n| n > 0).map_or(0, |last| last + 1);
        let mut count = 0;
        let buckets = self.buckets.iter().zip(LIMITS.iter()).take(used).map(|(n, &limit)| {
            count += n;
            (limit, count)
        });
        (buckets.collect(), self.sum)
    }

    pub fn data(&self) -> HistogramData {
        let (count, sum) = (self.count(), self.sum as f64);
        let n = count as f64;
        let variance = if count == 0 { 0.0 } else { (self.sum_squares as f64 * n - sum * sum) / (n * n) };
        HistogramData {
            median: self.percentile(50.0),
            percentile95: self.percentile(95.0),
            percentile99: self.percentile(99.0),
            average: if count == 0 { 0.0 } else { sum / n },
            standard_deviation: variance.max(0.0).sqrt(),
            max: self.max as f64,
            min: self.min as f64,
            count,
            sum: self.sum,
        }
    }
}

/// What a histogram shows (`rocksdb::statistics::HistogramData`). Values are in the unit of the histogram's name.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct HistogramData {
    median: f64,
    percentile95: f64,
    percentile99: f64,
    average: f64,
    standard_deviation: f64,
    max: f64,
    min: f64,
    count: u64,
    sum: u64,
}

impl HistogramData {
    /// Of no values.
    pub fn new() -> Self {
        Self::default()
    }

    /// Half of the values are below.
    pub fn median(&self) -> f64 {
        self.median
    }

    /// Mean of the values.
    pub fn average(&self) -> f64 {
        self.average
    }

    /// The 95th percentile.
    pub fn p95(&self) -> f64 {
        self.percentile95
    }

    /// The 99th percentile.
    pub fn p99(&self) -> f64 {
        self.percentile99
    }

    /// Largest value.
    pub fn max(&self) -> f64 {
        self.max
    }

    /// Smallest value; for an empty histogram, as in RocksDB, the largest bucket's limit.
    pub fn min(&self) -> f64 {
        self.min
    }

    /// Sum of the values.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// How many values there are.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Standard deviation of the values.
    pub fn std_dev(&self) -> f64 {
        self.standard_deviation
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_rocksdbs() {
        assert_eq!(&LIMITS[..12], &[1, 2, 3, 4, 6, 10, 15, 22, 34, 51, 76, 110]);
        assert!(LIMITS.windows(2).all(|w| w[0] < w[1]));
        assert!(LIMITS[BUCKETS - 1] as f64 * 1.5 > u64::MAX as f64, "one more would not fit");
        for (value, bucket) in [(0, 0), (1, 0), (2, 1), (3, 2), (5, 4), (6, 4), (7, 5), (u64::MAX, BUCKETS - 1)] {
            assert_eq!(bucket_of(value), bucket, "{value}");
        }
    }

    #[test]
    fn data_of_few_values() {
        let cells = Cells::default();
        assert_eq!(Summed::of([&cells].into_iter()).data().count(), 0);
        for v in [10, 20, 30, 40] {
            cells.record(v);
        }
        let d = Summed::of([&cells].into_iter()).data();
        assert_eq!((d.count(), d.sum(), d.min(), d.max(), d.average()), (4, 100, 10.0, 40.0, 25.0));
        assert!((d.std_dev() - 11.180_339_887).abs() < 1e-6);
        assert!(d.median() > 20.0 && d.median() <= 22.0, "{}", d.median());
        assert_eq!(d.p99(), 40.0);
        cells.clear();
        assert_eq!(Summed::of([&cells].into_iter()).data().count(), 0);
    }
}
