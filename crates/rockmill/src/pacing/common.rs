//! Constants of several rules.

use std::time::Duration;

/// In seconds: a point in time, counted from any other, or the time between two.
pub type Seconds = f64;
/// A rate; infinite: no bound.
pub type BytesPerSecond = f64;

/// Time constant for averages of what writers did lately. Simulated: half or twice of it changes throughput by less
/// than 4 %; with half of it some writers stop for seconds.
pub const LATELY_SECONDS: Seconds = 5.0;
/// Bytes that compactions read and write for each byte that users write, and so about its debt: a rewrite in each of
/// some levels. Simulated: with a quarter to four times of it in write control throughput changes by -2 to +4 %, and
/// the longest wait only where debt stops writers (5 s: 4 to 8 s). Half or twice of it changes nothing for reads in the
/// model of `read_protection/tests.rs`; with nothing for a byte, writers of 20 MB/s get 8.
pub const BYTES_OF_A_BYTE: u64 = 16;
/// Bytes that a background job may always write each second, whoever has priority, so that it ends some time. Simulated
/// with flushes that go first on devices of 60 MB/s and more: half or twice of it changes throughput by less than 3 %,
/// and the runs of the tree by +3 and -5 %. A device of 15 MB/s has a quarter of itself for such a job, and writers get
/// 17 % more with half of it and 14 % less with twice of it.
pub const JOB_BYTES_PER_SECOND_MIN: u64 = 4 << 20;
/// The shortest sleep; a shorter one is added to the next. RocksDB has the same: a shorter sleep costs more in wake-ups
/// than it is worth.
pub const SLEEP_MIN: Duration = Duration::from_millis(1);
/// The longest sleep at once: the reason for it may be gone meanwhile. Derived: two of the shortest. In a model of
/// paced writers half or twice of it changes what they write by less than 3 %.
pub const SLEEP_MAX: Duration = SLEEP_MIN.saturating_mul(2);
