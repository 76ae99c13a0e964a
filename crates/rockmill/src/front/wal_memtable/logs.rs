//! Which logs there are, and which may go.
//!
//! A log goes when every column family's data in it is in tables that the MANIFEST names, and the MANIFEST says so
//! (`min_log_number_to_keep`): the log number of a column family without data stays behind, and recovery must neither
//! miss a log that is gone nor believe one that came back.

use std::collections::VecDeque;

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

/// The log in use, after the write leader has asked for an empty one.
#[derive(Debug, Clone, Copy)]
pub(crate) enum LogTurn {
    /// It was empty, and stays in use.
    Stays(u64),
    /// It is new. The one before was left with so many bytes, if there was one.
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

    /// The MANIFEST says it now.
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

    /// The newest log has so many bytes, and gets no more.
    pub fn cut_newest(&mut self, bytes: u64) {
        if let Some(newest) = self.live.back_mut() {
            newest.left_bytes = bytes;
        }
    }

    /// The oldest; 0 before there is one.
    pub fn oldest(&self) -> u64 {
        self.live.front().map_or(0, |log| log.number)
    }

    /// The one in use: what is written from now on goes to it or a later one. 0 before there is one.
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

    /// Number and length of each; `in_use`: that of the one in use.
    pub fn lengths(&self, in_use: Option<(u64, u64)>) -> impl Iterator<Item = (u64, u64)> {
        self.live.iter().map(move |log| match in_use {
            Some((number, bytes)) if number == log.number => (number, bytes),
            _ => (log.number, log.left_bytes),
        })
    }

    /// Takes out those that are not needed: no column family has data in them, the oldest such log being `oldest`, and
    /// the MANIFEST says so.
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
