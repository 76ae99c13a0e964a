//! Which logs are emptied early, since most of what is in them is in tables already.
//!
//! Logs are deleted whole, oldest first, and values stay in them until a flush. So a column family that is seldom
//! written to keeps what all others have written since, although their flushes have put it into tables: those bytes
//! are *dead*. The bytes of what is in no table are *live*. A flush of those that keep the oldest logs frees the dead
//! bytes, and costs the live ones, which become a table earlier, and thus a smaller one.
//!
//! **The rule.** With the column families in the order of the oldest log that each needs, a flush of the first few
//! frees the logs before the next one's. It is worth it if the dead bytes in these are at least the live ones that it
//! writes, and at least an eighth of what logs may hold ([`DEAD_PART`]). The fewest are flushed for which that is so,
//! and more of them only if these free another eighth beyond what they write.
//!
//! **What follows.** As far as flushes that have begun or are due are done,
//!
//! - logs hold less than twice the live bytes, or than these and an eighth of the capacity;
//! - each such flush frees an eighth of the capacity at least, and nothing is freed twice. So there is at most one for
//!   each eighth of the capacity that users write, and together they write at most half of what users do.
//!
//! Values that a later write of the same column family replaced, and that no flush has written, count as live: a log
//! with many of these is left alone until half of the capacity is used, because each flush would have to write the
//! newest values, too, which may also be replaced soon.
//!
//! Pure functions.

/// Dead bytes are too many from this part of the capacity of logs on. Derived: a quarter of the half at which flushes
/// begin anyway, so that those for dead bytes are at most four times as many.
const DEAD_PART: u64 = 8;

/// What a column family keeps in logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogNeed {
    /// The oldest log that it needs.
    pub oldest: u64,
    /// Bytes in this log and later ones of what is in no table.
    pub live: u64,
}

/// Logs that are to be emptied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogsToEmpty {
    /// Those below this number: what needs one of them is to be flushed.
    pub before: u64,
    /// Bytes in them, if they are all those that are needed.
    pub freed: u64,
    /// Bytes that this flush writes at most.
    pub live: u64,
}

/// True if so few bytes cannot be too many dead ones.
pub fn are_few(bytes: u64, capacity: u64) -> bool {
    bytes < capacity / DEAD_PART
}

/// Decides by the module's rule. `needs`: those of all column families that need a log, in any order. `logs`: number
/// and bytes of each log, the oldest first. `capacity`: the bytes that logs may hold.
pub fn logs_to_empty(
    mut needs: Vec<LogNeed>,
    logs: impl Iterator<Item = (u64, u64)>,
    capacity: u64,
) -> Option<LogsToEmpty> {
    needs.sort_unstable_by_key(|need| need.oldest);
    let first = needs.first()?.oldest;
    let mut logs = logs.skip_while(|(number, _)| *number < first).peekable();
    let (mut live, mut freed, mut best, mut gain) = (0_u64, 0_u64, None, None);
    for (i, need) in needs.iter().enumerate() {
        live = live.saturating_add(need.live);
        let before = needs.get(i + 1).map_or(u64::MAX, |next| next.oldest);
        while let Some((_, bytes)) = logs.next_if(|(number, _)| *number < before) {
            freed = freed.saturating_add(bytes);
        }
        let dead = freed.saturating_sub(live);
        if dead < live || are_few(dead, capacity) {
            continue;
        }
        // Those that need the same log come together, so the last of them counts.
        let more = gain.is_none_or(|gain: u64| !are_few((dead - live).saturating_sub(gain), capacity));
        if before > need.oldest && more {
            (best, gain) = (Some(LogsToEmpty { before, freed, live }), Some(dead - live));
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPACITY: u64 = 8000;

    /// With logs of 500 bytes each, from number 1 on.
    fn decide(needs: &[(u64, u64)], logs: u64) -> Option<LogsToEmpty> {
        let needs = needs.iter().map(|&(oldest, live)| LogNeed { oldest, live }).collect();
        logs_to_empty(needs, (1..=logs).map(|number| (number, 500)), CAPACITY)
    }

    #[test]
    fn who_keeps_many_dead_bytes_is_flushed() {
        // A cold column family with one record in log 1, and a hot one whose data from log 4 on is in no table.
        assert_eq!(decide(&[(1, 10), (4, 3000)], 9), Some(LogsToEmpty { before: 4, freed: 1500, live: 10 }));
        assert_eq!(decide(&[(4, 3000), (1, 10)], 9), decide(&[(1, 10), (4, 3000)], 9), "in any order");
        assert_eq!(decide(&[(1, 10), (3, 3500)], 9), None, "990 dead bytes are too few");
        assert_eq!(decide(&[(1, 10)], 9), Some(LogsToEmpty { before: u64::MAX, freed: 4500, live: 10 }));
        assert_eq!(decide(&[(5, 10)], 9), Some(LogsToEmpty { before: u64::MAX, freed: 2500, live: 10 }));
        assert_eq!(decide(&[(8, 10)], 9), None, "older logs are needed by nobody");
        assert_eq!(decide(&[], 9), None);
        assert_eq!(decide(&[(1, 4500)], 9), None, "all of it is live");
        assert_eq!(decide(&[(1, 2300)], 9), None, "more would be written than freed");
    }

    #[test]
    fn several_are_flushed_together_where_one_alone_frees_little() {
        // Each of three keeps one more log, a fourth is hot.
        let cold = [(1, 10), (2, 10), (3, 10), (8, 1000)];
        assert_eq!(decide(&cold, 9), Some(LogsToEmpty { before: 8, freed: 3500, live: 30 }));
        // The second has so much that a flush of it is worth nothing, before or with the others.
        assert_eq!(decide(&[(1, 10), (2, 1900), (3, 10), (8, 1000)], 9), None);
        assert_eq!(decide(&[(1, 10), (4, 2600), (8, 10)], 9).map(|l| l.before), Some(4));
        // Those that need the same log go together. The last one is left alone: it keeps only 490 bytes more, or is
        // flushed with the others where it keeps 1490.
        let alone = Some(LogsToEmpty { before: 6, freed: 2500, live: 30 });
        assert_eq!(decide(&[(1, 10), (1, 20), (6, 10)], 6), alone);
        assert_eq!(decide(&[(1, 10), (1, 20), (6, 10)], 8).map(|l| l.before), Some(u64::MAX));
        assert_eq!(decide(&[(1, 10), (1, 600), (6, 500)], 6).map(|l| l.live), Some(610));
    }

    /// Whatever the column families write and when they are flushed: as long as nothing is to be emptied, logs hold no
    /// more than the module says; and a flush that is ordered frees more than it writes.
    #[test]
    fn logs_hold_at_most_twice_the_live_bytes_or_these_and_an_eighth() {
        let mut rng = fastrand::Rng::with_seed(7);
        let (mut flushes, mut appended) = (0, 0);
        // Per log and column family, the bytes there; and per column family, the oldest log that it needs.
        let (mut logs, mut from): (Vec<[u64; 5]>, [usize; 5]) = (Vec::new(), [0; 5]);
        for _ in 0..3000 {
            let hot = rng.usize(..5);
            let bytes = std::array::from_fn(|f| if f == hot { rng.u64(100..900) } else { rng.u64(0..3) / 2 * 10 });
            appended += bytes.iter().sum::<u64>();
            logs.push(bytes);
            if rng.u8(..3) == 0 {
                from[hot] = logs.len();
            }
            let live = |from: &[usize; 5], f: usize| logs[from[f]..].iter().map(|log| log[f]).sum::<u64>();
            let oldest = |from: &[usize; 5], f: usize| (from[f]..logs.len()).find(|log| logs[*log][f] > 0);
            let needs = |from: &[usize; 5]| -> Vec<LogNeed> {
                let need = |f| Some(LogNeed { oldest: oldest(from, f)? as u64, live: live(from, f) });
                (0..5).filter_map(need).collect()
            };
            let lengths = || logs.iter().map(|log| log.iter().sum()).enumerate().map(|(i, n)| (i as u64, n));
            while let Some(order) = logs_to_empty(needs(&from), lengths(), CAPACITY) {
                flushes += 1;
                let written: u64 = needs(&from).iter().filter(|n| n.oldest < order.before).map(|n| n.live).sum();
                assert!(written == order.live && order.freed >= 2 * written, "{order:?}");
                for f in 0..5 {
                    if oldest(&from, f).is_some_and(|log| (log as u64) < order.before) {
                        from[f] = logs.len();
                    }
                }
            }
            let needs = needs(&from);
            let first = needs.iter().map(|n| n.oldest).min().unwrap_or(u64::MAX);
            let all: u64 = lengths().filter(|(number, _)| *number >= first).map(|(_, bytes)| bytes).sum();
            let live: u64 = needs.iter().map(|n| n.live).sum();
            assert!(all < live + live.max(CAPACITY / DEAD_PART) || all == 0, "{all} bytes, {live} of them live");
        }
        assert!(flushes > 50 && flushes < appended / (CAPACITY / DEAD_PART), "{flushes} for {appended} bytes");
    }
}
