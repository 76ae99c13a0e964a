//! RocksDB's write control, for comparisons with RocksDB: `ColumnFamilyData::RecalculateWriteStallConditions` and
//! `SetupDelay` (`db/column_family.cc`), for one column family.
//!
//! It is evaluated when a memtable is full, and when a flush or a compaction ends. While writers are delayed, each
//! evaluation multiplies the rate: by 0.8 if the debt has not decreased, by 0.6 near a stop trigger, and by 1.25 if the
//! debt has decreased. After a delay ends, the next one begins with 1.4 times the last rate. The rate never exceeds
//! `delayed_write_rate`.

use rockmill::CfOptions;
use rockmill::internals::simulation::{FullMemtables, StallReason, TreeLoad};

/// The lowest rate (`kMinWriteRate`).
const RATE_MIN: f64 = 16.0 * 1024.0;
/// RocksDB's `kIncSlowdownRatio`, its inverse, `kNearStopSlowdownRatio` and `kDelayRecoverSlowdownRatio`.
const SLOWER: f64 = 0.8;
const FASTER: f64 = 1.0 / SLOWER;
const NEAR_STOP: f64 = 0.6;
const RECOVERED: f64 = 1.4;

/// What writers may do.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Now {
    Free,
    Delayed(StallReason),
    Stopped(StallReason),
}

/// See the module's text.
#[derive(Debug, Clone)]
pub struct PeerControl {
    now: Now,
    /// Bytes per second while writers are delayed; otherwise the last delay's rate.
    rate: f64,
    most: f64,
    /// When it was asked last.
    debt: u64,
}

impl PeerControl {
    /// Nobody is delayed.
    pub fn new(delayed_write_rate: u64) -> Self {
        let most = (delayed_write_rate as f64).max(1.0);
        Self { now: Now::Free, rate: most, most, debt: 0 }
    }

    /// The tree or the memtables changed.
    pub fn recalculate(&mut self, load: TreeLoad, memtables: FullMemtables, o: &CfOptions) {
        let (before, debt) = (self.now, load.pending_bytes);
        self.now = condition(load, memtables, o);
        match self.now {
            Now::Stopped(_) => {}
            Now::Delayed(why) => {
                // After a stop, there is no delay whose rate could change.
                if matches!(before, Now::Delayed(_)) && self.most > RATE_MIN {
                    self.rate = match self.debt {
                        _ if is_near_stop(why, load, o) => (self.rate * NEAR_STOP).max(RATE_MIN),
                        was if was > 0 && was <= debt => (self.rate * SLOWER).max(RATE_MIN),
                        was if was > debt => (self.rate * FASTER).min(self.most),
                        _ => self.rate,
                    };
                }
            }
            Now::Free => {
                if matches!(before, Now::Delayed(_)) {
                    self.rate = (self.rate * RECOVERED).min(self.most);
                }
            }
        }
        self.debt = debt;
    }

    /// Bytes per second that writers may write; infinite if they are not limited.
    pub fn rate(&self) -> f64 {
        if matches!(self.now, Now::Delayed(_)) { self.rate } else { f64::INFINITY }
    }

    /// Why writers are stopped, if they are.
    pub fn stop(&self) -> Option<StallReason> {
        if let Now::Stopped(why) = self.now { Some(why) } else { None }
    }

    /// Why they are delayed.
    pub fn reason(&self) -> StallReason {
        if let Now::Delayed(why) = self.now { why } else { StallReason::None }
    }
}

/// `ColumnFamilyData::GetWriteStallConditionAndCause`.
fn condition(load: TreeLoad, memtables: FullMemtables, o: &CfOptions) -> Now {
    let (soft, hard) = (o.soft_pending_compaction_bytes_limit, o.hard_pending_compaction_bytes_limit);
    let reaches = |limit: i32| limit >= 0 && load.runs >= limit as usize;
    if memtables.full >= memtables.most {
        Now::Stopped(StallReason::Memtables)
    } else if reaches(o.level0_stop_writes_trigger) {
        Now::Stopped(StallReason::L0Files)
    } else if hard > 0 && load.pending_bytes >= hard {
        Now::Stopped(StallReason::PendingCompactionBytes)
    } else if memtables.most > 3 && memtables.full + 1 >= memtables.most {
        Now::Delayed(StallReason::Memtables)
    } else if reaches(o.level0_slowdown_writes_trigger) {
        Now::Delayed(StallReason::L0Files)
    } else if soft > 0 && load.pending_bytes >= soft {
        Now::Delayed(StallReason::PendingCompactionBytes)
    } else {
        Now::Free
    }
}

/// The last two files before L0 stops writers, or the last quarter of the way from the soft to the hard limit.
fn is_near_stop(why: StallReason, load: TreeLoad, o: &CfOptions) -> bool {
    let (soft, hard) = (o.soft_pending_compaction_bytes_limit, o.hard_pending_compaction_bytes_limit);
    match why {
        StallReason::L0Files => load.runs as i64 >= i64::from(o.level0_stop_writes_trigger) - 2,
        StallReason::PendingCompactionBytes => {
            hard > 0 && load.pending_bytes.saturating_sub(soft) > hard.saturating_sub(soft) / 4 * 3
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1 << 20;

    fn options() -> CfOptions {
        let mut o = rockmill::Options::default().cf;
        (o.level0_slowdown_writes_trigger, o.level0_stop_writes_trigger) = (6, 12);
        o.soft_pending_compaction_bytes_limit = 300 * MB;
        o.hard_pending_compaction_bytes_limit = 600 * MB;
        o
    }

    fn look(c: &mut PeerControl, runs: usize, debt: u64) -> f64 {
        let memtables = FullMemtables { full: 0, most: 2 };
        c.recalculate(TreeLoad { runs, pending_bytes: debt * MB }, memtables, &options());
        c.rate() / MB as f64
    }

    /// Worked out by hand from `SetupDelay`.
    #[test]
    fn the_rate_follows_the_debt_as_in_rocksdb() {
        let mut c = PeerControl::new(16 * MB);
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-6, "{a}, not {b}");
        assert_eq!(look(&mut c, 5, 299), f64::INFINITY);
        near(look(&mut c, 6, 299), 16.0);
        near(look(&mut c, 6, 299), 12.8);
        near(look(&mut c, 6, 350), 10.24);
        near(look(&mut c, 6, 320), 12.8);
        near(look(&mut c, 0, 310), 16.0);
        // 300 to 600: from 525 on the hard limit is near.
        near(look(&mut c, 0, 526), 9.6);
        // Two files before the stop.
        near(look(&mut c, 10, 100), 5.76);
        assert_eq!((look(&mut c, 12, 100), c.stop()), (f64::INFINITY, Some(StallReason::L0Files)));
        near(look(&mut c, 6, 100), 5.76);
        assert_eq!(look(&mut c, 0, 0), f64::INFINITY);
        near(look(&mut c, 6, 0), 5.76 * 1.4);
        assert_eq!(c.reason(), StallReason::L0Files);
    }

    #[test]
    fn the_first_cause_counts_and_the_rate_has_both_bounds() {
        let mut c = PeerControl::new(16 * MB);
        let full = |full, most| FullMemtables { full, most };
        c.recalculate(TreeLoad { runs: 20, pending_bytes: 0 }, full(2, 2), &options());
        assert_eq!(c.stop(), Some(StallReason::Memtables));
        c.recalculate(TreeLoad { runs: 0, pending_bytes: 600 * MB }, full(0, 2), &options());
        assert_eq!(c.stop(), Some(StallReason::PendingCompactionBytes));
        c.recalculate(TreeLoad { runs: 0, pending_bytes: 0 }, full(3, 4), &options());
        assert_eq!((c.stop(), c.reason()), (None, StallReason::Memtables));
        for _ in 0..100 {
            look(&mut c, 11, 100);
        }
        assert_eq!(c.rate(), RATE_MIN);
        for i in 0..100 {
            look(&mut c, 6, 299 - i);
        }
        assert_eq!(c.rate(), (16 * MB) as f64);
    }
}
