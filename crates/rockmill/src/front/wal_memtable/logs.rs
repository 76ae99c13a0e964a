//! Which logs exist, which may be deleted, and what must be flushed before that.
//!
//! A log is deleted when every column family's data in it is in tables that the MANIFEST names, and the MANIFEST says
//! so (`min_log_number_to_keep`). Log numbers are not enough, because that of a column family without data is not
//! advanced, and recovery must neither miss a deleted log nor believe one that came back.
//!
//! If all logs together are too large (`max_total_wal_size`), the memtables that keep the oldest one are flushed. That
//! is decided here and not in `pacing/`, because it slows nobody and does not depend on time, and a front without logs
//! has no such rule. Where values stay in logs, `pacing/log_garbage.rs` says which of them are emptied earlier.

use std::collections::VecDeque;
use std::ops::Deref;

use super::family::FamilyFront;
use crate::options::CfOptions;

/// The live logs. Guarded by the database's lock (`state`).
#[derive(Debug, Default)]
pub(crate) struct Logs {
    /// Oldest first; the last is in use.
    live: VecDeque<LiveLog>,
    /// The MANIFEST says that logs below this hold nothing that is not in tables: only these may be deleted. A column
    /// family's log number says less: without data it stays where it is.
    bound: u64,
}

#[derive(Debug, Clone, Copy)]
struct LiveLog {
    number: u64,
    /// Bytes written to it when it was left; 0 while it is in use.
    left_bytes: u64,
}

/// The log in use, after the write leader has requested an empty one.
#[derive(Debug, Clone, Copy)]
pub(crate) enum LogTurn {
    /// The present log was empty, and stays in use.
    Stays(u64),
    /// A new log. The previous one was left with this many bytes, if there was one.
    Begins { number: u64, left_bytes: Option<u64> },
}

impl Logs {
    /// None, of a database whose MANIFEST says `min_log_number_to_keep`.
    pub fn new(bound: u64) -> Self {
        Self { live: VecDeque::new(), bound }
    }

    /// `min_log_number_to_keep`, as the MANIFEST says.
    pub fn bound(&self) -> u64 {
        self.bound
    }

    /// The MANIFEST records it.
    pub fn raise_bound(&mut self, bound: u64) {
        self.bound = self.bound.max(bound);
    }

    /// Those of a database that was just opened: what recovery keeps, with their lengths, and the one in use.
    pub fn opened(&mut self, kept: Vec<(u64, u64)>, number: u64) {
        self.live.extend(kept.into_iter().map(|(number, left_bytes)| LiveLog { number, left_bytes }));
        self.live.push_back(LiveLog { number, left_bytes: 0 });
    }

    /// Notes which log is in use, and gives its number.
    pub fn turn(&mut self, turn: LogTurn) -> u64 {
        let (number, left_bytes) = match turn {
            LogTurn::Stays(number) => return number,
            LogTurn::Begins { number, left_bytes } => (number, left_bytes),
        };
        if let Some(bytes) = left_bytes {
            self.cut_newest(bytes);
        }
        self.live.push_back(LiveLog { number, left_bytes: 0 });
        number
    }

    /// The newest log has this many bytes, and gets no more.
    pub fn cut_newest(&mut self, bytes: u64) {
        if let Some(newest) = self.live.back_mut() {
            newest.left_bytes = bytes;
        }
    }

    /// The oldest; 0 before there is one.
    pub fn oldest(&self) -> u64 {
        self.live.front().map_or(0, |log| log.number)
    }

    /// The log in use: all further writes go to it or a later one. 0 before there is one.
    pub fn newest(&self) -> u64 {
        self.live.back().map_or(0, |log| log.number)
    }

    /// Bytes of those that were left.
    pub fn left_bytes(&self) -> u64 {
        self.live.iter().map(|log| log.left_bytes).sum()
    }

    /// The same, of those from number `oldest` on.
    pub fn left_bytes_from(&self, oldest: u64) -> u64 {
        self.live.iter().filter(|log| log.number >= oldest).map(|log| log.left_bytes).sum()
    }

    /// The length of the log in use at which all logs together become too large. `limit`: the bytes that they may have;
    /// 0 means four times what the memtables of all column families may have, as in RocksDB. With a single column
    /// family there is no such length, because logs are deleted with its memtables.
    pub fn room<O: Deref<Target = CfOptions>>(&self, limit: u64, families: impl ExactSizeIterator<Item = O>) -> u64 {
        if families.len() <= 1 {
            return u64::MAX;
        }
        let memtables = |o: O| (o.write_buffer_size as u64).saturating_mul(o.max_write_buffer_number.max(1) as u64);
        let limit = match limit {
            0 => families.map(memtables).fold(0, u64::saturating_add).saturating_mul(4),
            n => n,
        };
        limit.saturating_sub(self.left_bytes())
    }

    /// Number and length of each; `in_use`: that of the one in use.
    pub fn lengths(&self, in_use: Option<(u64, u64)>) -> impl Iterator<Item = (u64, u64)> {
        self.live.iter().map(move |log| match in_use {
            Some((number, bytes)) if number == log.number => (number, bytes),
            _ => (log.number, log.left_bytes),
        })
    }

    /// True if [`Self::take_obsolete`] has something to remove.
    pub fn has_obsolete(&self, oldest: Option<u64>) -> bool {
        let first = self.oldest();
        self.live.len() > 1 && first < self.bound && oldest.is_none_or(|o| first < o)
    }

    /// Removes and returns those that are not needed: `oldest` is the oldest log in which a column family has data, and
    /// the MANIFEST must say so as well.
    pub fn take_obsolete(&mut self, oldest: Option<u64>) -> Vec<u64> {
        let mut gone = Vec::new();
        while self.live.len() > 1 {
            let number = self.oldest();
            if oldest.is_some_and(|o| number >= o) || number >= self.bound {
                break;
            }
            self.live.pop_front();
            gone.push(number);
        }
        gone
    }
}

/// The flushes that are necessary before the oldest log can be deleted.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct LogRelease {
    /// Column families whose active memtable keeps it, and has to be sealed.
    pub seal: Vec<u32>,
    /// A flush of what is sealed became due.
    pub flush_due: bool,
}

impl LogRelease {
    /// For the oldest log that any of these column families needs. Sealed memtables that keep it become due.
    pub fn of_oldest<'a>(families: impl Iterator<Item = (u32, &'a mut FamilyFront)>) -> Self {
        let families: Vec<_> = families.collect();
        let oldest = families.iter().filter_map(|(_, front)| front.oldest_log()).min();
        oldest.map_or_else(Self::default, |oldest| Self::up_to(oldest, families.into_iter()))
    }

    /// The same for log `newest` and all before it.
    pub fn up_to<'a>(newest: u64, families: impl Iterator<Item = (u32, &'a mut FamilyFront)>) -> Self {
        let mut release = Self::default();
        for (id, front) in families {
            if front.active_holds(newest) {
                release.seal.push(id);
            }
            release.flush_due |= front.request_flush_of_log(newest);
        }
        release
    }

    /// True if there is something to do now.
    pub fn is_some(&self) -> bool {
        self.flush_due || !self.seal.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use rockmill_format::{InternalKeyComparator, ValueType};

    use super::super::family::WritersNow;
    use super::super::memory::FrontMemory;
    use super::*;
    use crate::event_listener::FlushReason;

    #[test]
    fn a_log_goes_when_nobody_needs_it_and_the_manifest_says_so() {
        let mut logs = Logs::new(3);
        logs.opened(vec![(4, 100)], 5);
        assert_eq!((logs.oldest(), logs.newest(), logs.left_bytes()), (4, 5, 100));
        assert_eq!(logs.turn(LogTurn::Stays(5)), 5);
        assert_eq!(logs.turn(LogTurn::Begins { number: 8, left_bytes: Some(50) }), 8);
        assert_eq!(logs.left_bytes(), 150);
        assert_eq!(logs.lengths(Some((8, 7))).collect::<Vec<_>>(), [(4, 100), (5, 50), (8, 7)]);
        assert!(logs.take_obsolete(None).is_empty(), "the MANIFEST does not say so");
        logs.raise_bound(2);
        assert_eq!(logs.bound(), 3, "it never falls");
        logs.raise_bound(8);
        assert_eq!(logs.take_obsolete(Some(5)), [4], "a column family needs the next");
        logs.raise_bound(9);
        assert_eq!(logs.take_obsolete(None), [5], "the one in use stays");
    }

    #[test]
    fn the_log_in_use_may_have_what_the_others_leave() {
        let mut logs = Logs::new(0);
        logs.opened(vec![(4, 100)], 5);
        let options =
            |bytes, most| CfOptions { write_buffer_size: bytes, max_write_buffer_number: most, ..CfOptions::default() };
        let (a, b) = (options(1000, 2), options(500, 0));
        assert_eq!(logs.room(50, [&a].into_iter()), u64::MAX, "the log goes with the memtable");
        assert_eq!(logs.room(0, [&a, &b].into_iter()), 4 * (2000 + 500) - 100);
        assert_eq!(logs.room(700, [&a, &b].into_iter()), 600);
        assert_eq!(logs.room(70, [&a, &b].into_iter()), 0);
        let large = options(usize::MAX, 2);
        assert_eq!(logs.room(0, [&a, &large].into_iter()), u64::MAX - 100);
    }

    #[test]
    fn what_holds_back_the_oldest_log_is_flushed() {
        let (options, memory) = (CfOptions::default(), FrontMemory::default());
        let of = |log| FamilyFront::new(&InternalKeyComparator::default(), &options, &memory, log);
        let put = |front: &FamilyFront| front.view().insert(1, ValueType::Value, b"k", b"v", None);
        let writers = WritersNow { written: 0, now: 0.0, waited: 0.0 };
        let release = |fronts: &mut [FamilyFront]| LogRelease::of_oldest((10..).zip(fronts.iter_mut()));
        let mut fronts = [of(3), of(3), of(4), of(3)];
        assert_eq!(release(&mut fronts), LogRelease::default(), "nothing holds back a log");
        // One writes on, one waits for others to be merged with, one began later, one has nothing.
        fronts[..3].iter().for_each(put);
        fronts[1].seal(&options, &memory, 4, FlushReason::WriteBufferFull, &writers);
        put(&fronts[1]);
        assert_eq!(release(&mut fronts), LogRelease { seal: vec![10], flush_due: true });
        assert!(fronts[1].flush_due(&CfOptions { min_write_buffer_number_to_merge: 9, ..options.clone() }, false));
        assert_eq!(release(&mut fronts), LogRelease { seal: vec![10], flush_due: false }, "it is due already");
        fronts[0].seal(&options, &memory, 5, FlushReason::WalFull, &writers);
        let (runs, _) = fronts[1].take_sealed();
        fronts[1].flushed(&runs, 4);
        let (runs, _) = fronts[0].take_sealed();
        fronts[0].flushed(&runs, 5);
        assert_eq!(release(&mut fronts), LogRelease { seal: vec![11, 12], flush_due: false });
    }
}
