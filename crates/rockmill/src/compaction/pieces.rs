//! Which files the outputs of a compaction keep using (TPH tables; CompassDB, section 3.5).
//!
//! A compaction replaces tables of its output level by new ones that say where every entry is: changed entries are
//! written, unchanged ones stay in their files. Over time a table gets too many files, and stale entries in them take
//! space. So the live entries of some files are written again, and those files are deleted when no table needs them:
//!
//! 1. The emptiest, until stale bytes are at most `garbage_percent` of live ones, even if everything that comes from
//!    above replaces something.
//! 2. Those with the fewest live bytes, if there would be more than `piece_limit` files: down to three quarters of
//!    that, so that the next compaction does not have to do the same.
//! 3. Any with less than a hundredth of the table: looking into such a file costs more than writing its entries again.

use super::Compaction;
use crate::table::TphSettings;
use crate::version::FileMeta;

/// A file that outputs may keep using.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    number: u64,
    /// The table's share of its bytes, and how many of them are live.
    size: u64,
    live: u64,
}

/// A file of an input that outputs keep using for that input's entries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeptFile {
    /// The input.
    pub table: u64,
    /// One of its files.
    pub file: u64,
}

/// The files that outputs keep using. `live_of`: the bytes of a piece that tables refer to, added up over all tables.
pub fn files_to_keep(compaction: &Compaction, settings: &TphSettings, live_of: impl Fn(u64) -> u64) -> Vec<KeptFile> {
    let is_base =
        |level: usize, f: &FileMeta| level == compaction.output_level && f.entry.extra_run == compaction.output_run;
    let inputs = || compaction.inputs.iter().flat_map(|(level, files)| files.iter().map(|f| (*level, f)));
    // If nothing new comes in, the tables are compacted in order to rewrite them. Tables that are not live yet may
    // never be live.
    let written_again = inputs().all(|(level, f)| is_base(level, f));
    if compaction.output_level == 0 || !compaction.keep_pieces || compaction.is_intra_df() || written_again {
        return Vec::new();
    }
    let bases = || inputs().filter(|(level, f)| is_base(*level, f));
    let bytes: u64 = bases().map(|(_, f)| f.size()).sum();
    let new = compaction.input_bytes().saturating_sub(bytes);
    let share = |f: &FileMeta| (u128::from(new) * u128::from(f.size()) / u128::from(bytes.max(1))) as u64;
    let kept = |f: &FileMeta| choose(candidates(f, &live_of), share(f), settings);
    bases().flat_map(|(_, f)| kept(f).into_iter().map(|c| KeptFile { table: f.number(), file: c.number })).collect()
}

fn candidates(file: &FileMeta, live_of: &impl Fn(u64) -> u64) -> Vec<Candidate> {
    let own = Candidate { number: file.number(), size: file.own_size(), live: file.own_size() };
    let shared = file.entry.pieces.iter().map(|p| {
        // Other tables may refer to a part of the live bytes there, and then account for a part of the stale ones.
        let all = live_of(p.number).max(p.live).max(1);
        let size = (u128::from(p.size) * u128::from(p.live) / u128::from(all)) as u64;
        Candidate { number: p.number, size: size.max(p.live), live: p.live }
    });
    std::iter::once(own).chain(shared).collect()
}

/// `new`: bytes that come to the table.
fn choose(mut files: Vec<Candidate>, new: u64, settings: &TphSettings) -> Vec<Candidate> {
    let limit = settings.piece_limit.saturating_sub(1) as usize;
    if limit == 0 {
        return Vec::new();
    }
    let live: u64 = files.iter().map(|c| c.live).sum();
    files.retain(|c| c.live.saturating_mul(100) >= live);
    // The emptiest last.
    files.sort_by(|a, b| {
        let emptier = u128::from(b.live) * u128::from(a.size);
        emptier.cmp(&(u128::from(a.live) * u128::from(b.size))).then(b.number.cmp(&a.number))
    });
    let (mut size, mut live) = files.iter().fold((0u64, 0u64), |(s, l), c| (s.saturating_add(c.size), l + c.live));
    let allowed = u64::from(settings.garbage_percent);
    while let Some(last) = files.last()
        && last.size > last.live
        && (size - live).saturating_add(new).saturating_mul(100) > live.saturating_mul(allowed)
    {
        (size, live) = (size - last.size, live - last.live);
        files.pop();
    }
    if files.len() > limit {
        files.sort_by_key(|c| (std::cmp::Reverse(c.live), c.number));
        files.truncate((limit * 3).div_ceil(4).max(1));
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compaction::strategy::RunningCompactions;
    use crate::compaction::strategy::manual::{self, ManualPick};
    use crate::compaction::strategy::testing::TreeSpec;
    use crate::options::CfOptions;

    fn of(files: &[(u64, u64, u64)]) -> Vec<Candidate> {
        files.iter().map(|&(number, size, live)| Candidate { number, size, live }).collect()
    }

    fn kept(files: &[(u64, u64, u64)], piece_limit: u32, garbage_percent: u32) -> Vec<u64> {
        let mut numbers: Vec<u64> =
            choose(of(files), 0, &TphSettings { piece_limit, garbage_percent }).iter().map(|c| c.number).collect();
        numbers.sort_unstable();
        numbers
    }

    #[test]
    fn the_emptiest_files_go_until_little_is_stale() {
        let files = [(1, 1000, 200), (2, 1000, 900), (3, 1000, 700), (4, 1000, 1000)];
        assert_eq!(kept(&files, 16, 100), [1, 2, 3, 4]);
        assert_eq!(kept(&files, 16, 20), [2, 3, 4]);
        assert_eq!(kept(&files, 16, 10), [2, 4]);
        assert_eq!(kept(&files, 16, 0), [4]);
    }

    #[test]
    fn what_comes_may_make_as_much_stale() {
        let (files, settings) = ([(1, 1000, 900), (2, 1000, 1000)], TphSettings::default());
        let kept = |new| choose(of(&files), new, &settings).len();
        assert_eq!([kept(0), kept(280), kept(281), kept(100_000)], [2, 2, 1, 1]);
    }

    #[test]
    fn of_too_many_files_those_with_the_least_go() {
        let files: Vec<_> = (1..=8).map(|n| (n, n * 100, n * 100)).collect();
        assert_eq!(kept(&files, 9, 20), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(kept(&files, 8, 20), [3, 4, 5, 6, 7, 8]);
        assert_eq!(kept(&files, 2, 20), [8]);
        assert_eq!(kept(&files, 1, 20), []);
    }

    #[test]
    fn what_is_nearly_nothing_is_not_kept() {
        assert_eq!(kept(&[(1, 10, 10), (2, 5000, 5000)], 16, 20), [2]);
    }

    #[test]
    fn each_table_decides_on_a_file_that_several_have() {
        let tree = TreeSpec::new(3).file(1, "a", "m", 10_000).with_piece(90, 9000);
        let tree = tree.file(1, "n", "z", 10_000).with_piece(90, 50);
        let version = tree.file(0, "a", "z", 1000).build();
        let none = RunningCompactions::new();
        let picked = manual::pick(&version, &CfOptions::default(), &none, 0, 1, None, None, u64::MAX);
        let ManualPick::Pick(job, _) = picked else { panic!("nothing picked") };
        let mut keep = files_to_keep(&job, &TphSettings::default(), |n| version.piece_live(n).1);
        keep.sort_unstable();
        let of = |table, file| KeptFile { table, file };
        assert_eq!(keep, [of(1, 1), of(1, 90), of(2, 2)]);
    }
}
