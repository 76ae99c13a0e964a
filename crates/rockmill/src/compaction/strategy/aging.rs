//! Compactions that the tree's shape does not require: tables that are too old, and tables of the deepest level that
//! keep data that only released snapshots needed (RocksDB's `ExpiredTtlFiles`, `FilesMarkedForPeriodicCompaction` and
//! `BottommostFilesMarkedForCompaction`).
//!
//! 1. `ttl`: a table whose oldest data is older goes down one level, until the data reaches the deepest level in use.
//!    Data that its tombstones delete there is gone after that time.
//! 2. `periodic_compaction_seconds`: a table that was written longer ago is rewritten, so that a compaction filter
//!    meets every entry now and then.
//! 3. A table with nothing older below it needs no tombstones, old versions or sequence numbers once every reader sees
//!    all of it. When a snapshot is released, tables that kept them are rewritten.
//!
//! The time and the oldest snapshot are arguments. They determine what is due; [`Aging`] says when to check.

use std::sync::Arc;

use rockmill_format::SequenceNumber;

use crate::options::{CfOptions, CompactionStyle, DEFAULT_AGE};
use crate::sync::atomic::Ordering as Atomic;
use crate::version::{FileMeta, Level, SortedRun, Version, search};

/// What `ttl` and `periodic_compaction_seconds` mean when they are left to the store: 30 days.
const MONTH: u64 = 30 * 24 * 60 * 60;

/// What a pick must know in addition to the tree. With the default, nothing is due.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Moment {
    /// Unix time in seconds.
    pub now: u64,
    /// The oldest snapshot when one was last released (the newest sequence number, if it was the last one); 0 before
    /// that.
    pub oldest_snapshot: SequenceNumber,
}

/// When a column family's tables are due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Aging {
    /// Unix time in seconds when the next table is too old; `u64::MAX` never.
    pub next_due: u64,
    /// A table of the deepest level keeps data that no reader needs.
    pub bottommost_due: bool,
    /// When the oldest snapshot is newer than this, another table of the deepest level is due.
    pub threshold: SequenceNumber,
}

impl Aging {
    /// True when something is due.
    pub fn is_due(&self, now: u64) -> bool {
        self.bottommost_due || now >= self.next_due
    }
}

impl CfOptions {
    /// The option `ttl`; `None` never.
    fn ttl_option(&self) -> Option<u64> {
        match self.ttl {
            0 => None,
            DEFAULT_AGE => Some(MONTH),
            n => Some(n),
        }
    }

    /// Seconds after which a table goes down; `None` never. With leveled compaction only.
    pub(crate) fn ttl_seconds(&self) -> Option<u64> {
        self.ttl_option().filter(|_| self.compaction_style == CompactionStyle::Level)
    }

    /// Seconds after which a table is rewritten; `None` never. With a compaction filter every month unless the options
    /// say otherwise. With universal compaction `ttl` means the same, and the smaller one counts.
    pub(crate) fn periodic_seconds(&self) -> Option<u64> {
        let universal = self.compaction_style == CompactionStyle::Universal;
        let period = match self.periodic_compaction_seconds {
            _ if self.compaction_style == CompactionStyle::Fifo => None,
            0 => None,
            DEFAULT_AGE => (universal || self.has_compaction_filter()).then_some(MONTH),
            n => Some(n),
        };
        match self.ttl_option().filter(|_| universal) {
            Some(ttl) => Some(period.unwrap_or(ttl).min(ttl)),
            None => period,
        }
    }
}

/// The time of a table's oldest data; `None` unknown.
fn data_time(f: &FileMeta) -> Option<u64> {
    let time = match f.entry.oldest_ancester_time {
        0 => f.table.load().as_ref().map_or(0, |t| t.properties().creation_time),
        time => time,
    };
    (time > 0).then_some(time)
}

/// The time when a table was written, or that of its oldest data; `None` unknown.
fn written_time(f: &FileMeta) -> Option<u64> {
    let time = match f.entry.file_creation_time {
        0 => f.table.load().as_ref().map_or(0, |t| t.properties().file_creation_time),
        time => time,
    };
    if time > 0 { Some(time) } else { data_time(f) }
}

fn is_idle(f: &FileMeta) -> bool {
    !f.being_compacted.load(Atomic::Acquire)
}

/// Levels that compactions read and write.
fn usable(version: &Version) -> &[Level] {
    &version.levels[..version.usable_levels()]
}

/// The deepest of them that has files.
pub(super) fn deepest(version: &Version) -> usize {
    usable(version).iter().rposition(|f| !f.is_empty()).unwrap_or(0)
}

/// Tables that are not being compacted, with their levels and the time when they are too old to stay where they are.
fn by_ttl<'v>(version: &'v Version, options: &CfOptions) -> impl Iterator<Item = (usize, &'v Arc<FileMeta>, u64)> {
    let ttl = options.ttl_seconds();
    let levels = version.levels.iter().enumerate().take(deepest(version)).filter(move |_| ttl.is_some());
    let files = levels.flat_map(|(level, files)| files.iter().map(move |f| (level, f)));
    files.filter(|(_, f)| is_idle(f)).filter_map(move |(level, f)| {
        let due = data_time(f)?.checked_add(ttl?)?.checked_add(1)?;
        Some((level, f, due))
    })
}

/// The same for the time when they are to be rewritten.
fn by_period<'v>(version: &'v Version, options: &CfOptions) -> impl Iterator<Item = (usize, &'v Arc<FileMeta>, u64)> {
    let period = options.periodic_seconds();
    let levels = usable(version).iter().filter(move |_| period.is_some()).enumerate();
    let files = levels.flat_map(|(level, files)| files.iter().map(move |f| (level, f)));
    files.filter(|(_, f)| is_idle(f)).filter_map(move |(level, f)| {
        let due = written_time(f)?.checked_add(period?)?.checked_add(1)?;
        Some((level, f, due))
    })
}

/// Tables that `ttl` sends down, from the top.
pub(super) fn expired(version: &Version, options: &CfOptions, now: u64) -> Vec<(usize, Arc<FileMeta>)> {
    by_ttl(version, options).filter(|f| f.2 <= now).map(|(level, f, _)| (level, Arc::clone(f))).collect()
}

/// Tables that are to be rewritten because of their age, from the top.
pub(super) fn periodic(version: &Version, options: &CfOptions, now: u64) -> Vec<(usize, Arc<FileMeta>)> {
    by_period(version, options).filter(|f| f.2 <= now).map(|(level, f, _)| (level, Arc::clone(f))).collect()
}

/// True when no table can hold data older than the keys of `f`, a file of `level`.
fn is_bottommost(version: &Version, level: usize, f: &Arc<FileMeta>) -> bool {
    if level == 0 {
        let oldest = version.levels.first().and_then(|l0| l0.base.last());
        return oldest.is_some_and(|o| Arc::ptr_eq(o, f)) && version.levels.iter().skip(1).all(Level::is_empty);
    }
    let cmp = &version.cmp;
    let below = |p: &SortedRun<'_>| p.level > level || (p.level == level && p.run < f.entry.extra_run);
    version.sorted_runs().filter(below).all(|SortedRun { files, .. }| {
        let i = search(files, |b| cmp.compare_user(b.largest_user_key(), f.smallest_user_key()).is_lt());
        files.get(i).is_none_or(|b| cmp.compare_user(b.smallest_user_key(), f.largest_user_key()).is_gt())
    })
}

/// Tables with nothing older below them that are wholly visible to every reader and hold more than readers need; and
/// the sequence number that the oldest snapshot must pass for the next one.
pub(super) fn bottommost(
    version: &Version,
    options: &CfOptions,
    oldest_snapshot: SequenceNumber,
) -> (Vec<(usize, Arc<FileMeta>)>, SequenceNumber) {
    let (mut due, mut threshold) = (Vec::new(), SequenceNumber::MAX);
    if version.reserves_last_level || options.compaction_style != CompactionStyle::Level {
        // Below every table there is room for older data; or, as in RocksDB, only leveled compaction does this.
        return (due, threshold);
    }
    // From the deepest level up: most such tables are there, so the threshold is soon low.
    for (level, files) in version.levels.iter().enumerate().rev() {
        for f in files {
            let newest = f.entry.largest_seqno;
            let matters = newest < oldest_snapshot || newest < threshold;
            // The newest sequence number is 0 if a compaction has set all of them to 0.
            if newest == 0 || !matters || !is_idle(f) || f.rewrite_useless.load(Atomic::Acquire) {
                continue;
            }
            if !is_bottommost(version, level, f) {
                continue;
            }
            if newest < oldest_snapshot {
                due.push((level, Arc::clone(f)));
            } else {
                threshold = newest;
            }
        }
    }
    (due, threshold)
}

/// With FIFO compaction, when the oldest table of L0 is too old to stay. All that it holds was written before it.
fn fifo_due(version: &Version, options: &CfOptions) -> Option<u64> {
    let ttl = options.ttl_option().filter(|_| options.compaction_style == CompactionStyle::Fifo)?;
    let oldest = version.levels.first()?.base.last().filter(|f| is_idle(f))?;
    written_time(oldest)?.checked_add(ttl)?.checked_add(1)
}

/// With FIFO compaction, the oldest tables of L0 that are too old, the oldest first.
pub(super) fn fifo_expired(version: &Version, options: &CfOptions, now: u64) -> Vec<Arc<FileMeta>> {
    let Some(ttl) = options.ttl_option() else { return Vec::new() };
    let is_old = |f: &&Arc<FileMeta>| written_time(f).is_some_and(|t| t.saturating_add(ttl) < now);
    version.levels.first().into_iter().flat_map(|l0| &l0.base).rev().take_while(is_old).map(Arc::clone).collect()
}

/// When the tables of a version are due.
pub fn aging(version: &Version, options: &CfOptions, oldest_snapshot: SequenceNumber) -> Aging {
    let times = by_ttl(version, options).chain(by_period(version, options)).map(|f| f.2);
    let times = times.chain(fifo_due(version, options));
    let next_due = times.min().unwrap_or(u64::MAX);
    let (due, threshold) = bottommost(version, options, oldest_snapshot);
    Aging { next_due, bottommost_due: !due.is_empty(), threshold }
}

/// How much more urgent tables of a level are for the time that `ttl` leaves them (RocksDB's `FileTtlBooster`).
pub(super) struct Booster {
    now: u64,
    /// The age at which the urgency begins to rise, and the seconds in which it rises by one. `None`: L0, the deepest
    /// level, or no `ttl`.
    rises: Option<(u64, u64)>,
}

impl Booster {
    /// For a level: the deeper it is, the later and the more steeply the urgency rises.
    pub(super) fn new(version: &Version, options: &CfOptions, level: usize, now: u64) -> Self {
        let levels = deepest(version) + 1;
        let ttl = options.ttl_seconds().filter(|_| level > 0 && level + 1 < levels);
        let rises = ttl.map(|ttl| {
            let range = (ttl / 32 * 31).saturating_sub(ttl / 2) >> (levels - level - 1).min(63);
            (ttl / 2 + range, (range / 16).max(1))
        });
        Self { now, rises }
    }

    /// If no data is older than this time, every urgency is 1; `None`: always.
    pub(super) fn rises_from(&self) -> Option<u64> {
        self.rises.map(|(begin, _)| self.now.saturating_sub(begin))
    }

    /// 1 in the first half of the available time, and more later.
    pub(super) fn of(&self, f: &FileMeta) -> u64 {
        let Some((begin, step)) = self.rises else { return 1 };
        let age = self.now.saturating_sub(data_time(f).unwrap_or(self.now));
        if age > begin { (age - begin) / step + 1 } else { 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compaction::Compaction;
    use crate::compaction::strategy::testing::{TreeSpec, numbers};
    use crate::compaction::strategy::{RunningCompactions, pick};
    use crate::event_listener::CompactionReason;

    fn options() -> CfOptions {
        CfOptions {
            level_compaction_dynamic_level_bytes: false,
            ttl: 100,
            periodic_compaction_seconds: 0,
            ..CfOptions::default()
        }
    }

    fn at(now: u64) -> Moment {
        Moment { now, oldest_snapshot: 0 }
    }

    fn job(v: &Arc<Version>, o: &CfOptions, m: Moment) -> Option<Compaction> {
        pick(v, o, &mut RunningCompactions::new(), &m)
    }

    #[test]
    fn old_data_goes_down_to_the_deepest_level() {
        let v = TreeSpec::new(5)
            .file(1, "a", "b", 10)
            .times(1000, 1500)
            .file(1, "c", "d", 10)
            .times(1050, 1500)
            .file(2, "a", "b", 10)
            .times(900, 1500)
            .file(3, "a", "z", 10)
            .times(1, 1)
            .build();
        let o = options();
        assert_eq!(aging(&v, &o, 0).next_due, 1001, "the table of level 2");
        assert!(job(&v, &o, at(1000)).is_none(), "it is as old as it may be");
        let c = job(&v, &o, at(1001)).unwrap();
        assert_eq!((c.reason, c.start_level(), c.output_level), (CompactionReason::Ttl, 2, 3));
        let c = job(&v, &o, at(1101)).unwrap();
        assert_eq!((numbers(&c.inputs[0].1), c.output_level), (vec![1], 2), "from the top");
        assert!(aging(&v, &CfOptions { ttl: 0, ..o.clone() }, 0).next_due == u64::MAX);
        let month = CfOptions { ttl: DEFAULT_AGE, ..o };
        assert_eq!(aging(&v, &month, 0).next_due, 900 + MONTH + 1);
    }

    #[test]
    fn files_of_unknown_age_stay() {
        let v = TreeSpec::new(5).file(1, "a", "b", 10).file(2, "c", "d", 10).build();
        let o = CfOptions { periodic_compaction_seconds: 5, ..options() };
        assert_eq!(aging(&v, &o, 0).next_due, u64::MAX);
        assert!(job(&v, &o, at(u64::MAX)).is_none());
    }

    #[test]
    fn tables_are_rewritten_for_their_age() {
        let v = TreeSpec::new(5)
            .file(1, "a", "b", 10)
            .times(10, 1000)
            .file(2, "a", "b", 10)
            .times(10, 900)
            .file(2, "c", "d", 10)
            .times(10, 0)
            .build();
        let o = CfOptions { ttl: 0, periodic_compaction_seconds: 100, ..options() };
        assert_eq!(aging(&v, &o, 0).next_due, 111, "without a time of its own, that of its data counts");
        let c = job(&v, &o, at(200)).unwrap();
        assert_eq!((c.reason, numbers(&c.inputs[0].1)), (CompactionReason::PeriodicCompaction, vec![3]));
        assert_eq!((c.start_level(), c.output_level, c.trivial_move), (2, 2, false));
        let c = job(&v, &o, at(2000)).unwrap();
        assert_eq!((c.start_level(), c.output_level), (1, 1), "into the level it is in");
        let dynamic = CfOptions { level_compaction_dynamic_level_bytes: true, ..o.clone() };
        let c = job(&v, &dynamic, at(2000)).unwrap();
        assert_eq!((c.start_level(), c.output_level), (1, 2), "with dynamic level sizes, down");
        // By default only with a filter.
        let mut o = CfOptions { periodic_compaction_seconds: DEFAULT_AGE, ..o };
        assert_eq!(aging(&v, &o, 0).next_due, u64::MAX);
        let mut with = crate::options::Options::default();
        with.set_compaction_filter("f", |_, _, _| crate::CompactionDecision::Keep);
        o.compaction_filter = with.cf.compaction_filter;
        assert_eq!(aging(&v, &o, 0).next_due, 10 + MONTH + 1);
    }

    #[test]
    fn the_bottom_is_cleaned_when_snapshots_go() {
        // Files have sequence numbers 100 n to 100 n + 99.
        let v = TreeSpec::new(5)
            .file(1, "a", "b", 10)
            .file(1, "x", "y", 10)
            .file(2, "a", "c", 10)
            .file(2, "d", "e", 10)
            .build();
        let o = CfOptions { ttl: 0, ..options() };
        let seen = |oldest_snapshot| Moment { now: 0, oldest_snapshot };
        assert_eq!(aging(&v, &o, 0), Aging { next_due: u64::MAX, bottommost_due: false, threshold: 299 });
        assert!(job(&v, &o, seen(299)).is_none(), "the snapshot sees nothing of the newest");
        let c = job(&v, &o, seen(300)).unwrap();
        assert_eq!((c.reason, numbers(&c.inputs[0].1)), (CompactionReason::BottommostFiles, vec![2]));
        assert_eq!((c.start_level(), c.output_level, c.bottommost, c.trivial_move), (1, 1, true, false));
        let after = aging(&v, &o, 300);
        assert_eq!((after.bottommost_due, after.threshold), (true, 399));
        let mut cursors = RunningCompactions::new();
        cursors.start(&c);
        assert!(!aging(&v, &o, 300).bottommost_due);
        v.levels[2].base[0].rewrite_useless.store(true, Atomic::Release);
        let c = pick(&v, &o, &mut cursors, &seen(1000)).unwrap();
        assert_eq!(numbers(&c.inputs[0].1), [4], "file 1 has older data below, file 3 cannot become better");
    }

    #[test]
    fn level0_is_the_bottom_over_an_empty_tree_only() {
        let over = |level| TreeSpec::new(5).file(0, "a", "b", 1).file(0, "a", "b", 1).file(level, "x", "y", 1).build();
        let (due, threshold) =
            bottommost(&TreeSpec::new(5).file(0, "a", "b", 1).file(0, "a", "b", 1).build(), &options(), 1000);
        let due: Vec<_> = due.into_iter().map(|f| f.1).collect();
        assert_eq!((numbers(&due), threshold), (vec![1], u64::MAX), "the oldest one");
        assert_eq!(bottommost(&over(3), &options(), 1000).0.iter().map(|f| f.1.number()).collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn a_table_becomes_urgent_as_its_time_runs_out() {
        let v = TreeSpec::new(5)
            .file(1, "a", "b", 1)
            .times(1000, 1000)
            .file(2, "a", "b", 1)
            .times(1000, 1000)
            .file(3, "a", "b", 1)
            .build();
        let o = CfOptions { ttl: 3200, ..options() };
        let of = |level: usize, now| Booster::new(&v, &o, level, now).of(&v.levels[level].base[0]);
        // 1500 seconds between half of the time and its 31/32: a quarter of that for level 1, half for level 2.
        assert_eq!([of(1, 2975), of(1, 2976 + 23), of(1, 1000 + 1975 + 16 * 23)], [1, 2, 17]);
        assert_eq!([of(2, 3350), of(2, 1000 + 2350 + 46 * 2)], [1, 3]);
        assert_eq!(of(3, 1_000_000), 1);
    }
}
