//! Which parts of shared files tables refer to: this shows which pieces are worth cleaning up, and is reported to
//! users.

use std::collections::HashMap;

use super::Level;

/// The pieces of some tables, and the parts of each that the tables refer to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PieceUses {
    uses: HashMap<u64, PieceUse>,
    tables: usize,
}

/// What tables refer to of one piece.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct PieceUse {
    size: u64,
    live: u64,
}

/// Sums over pieces.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PieceTotals {
    /// Tables that have pieces.
    pub tables: usize,
    /// Files that are pieces, each once, however many tables have it.
    pub files: usize,
    /// Bytes of these files.
    pub bytes: u64,
    /// Bytes of them that some table refers to.
    pub live_bytes: u64,
}

impl PieceTotals {
    /// The live share of the pieces; 1 if there are none.
    pub fn live_percent(&self) -> f64 {
        if self.bytes == 0 { 100.0 } else { self.live_bytes as f64 * 100.0 / self.bytes as f64 }
    }
}

impl PieceUses {
    /// For the tables of a version.
    pub(super) fn of(levels: &[Level]) -> Self {
        let mut all = Self::default();
        for table in levels.iter().flatten().filter(|table| !table.entry.pieces.is_empty()) {
            all.tables += 1;
            for piece in &table.entry.pieces {
                let of = all.uses.entry(piece.number).or_default();
                (of.size, of.live) = (piece.size, of.live.saturating_add(piece.live));
            }
        }
        if !all.uses.is_empty() {
            // A table refers to all of its own file, which may be a piece of others.
            for table in levels.iter().flatten() {
                if let Some(of) = all.uses.get_mut(&table.number()) {
                    of.live = of.live.saturating_add(table.own_size());
                }
            }
        }
        all
    }

    /// Size of a piece, and its bytes that tables refer to, added up over the tables: bytes that several refer to count
    /// for each of them. Both 0 for a file that is no piece.
    pub fn live(&self, number: u64) -> (u64, u64) {
        self.uses.get(&number).map_or((0, 0), |of| (of.size, of.live))
    }

    /// The sums. The live bytes of a piece count at most as its size.
    pub fn totals(&self) -> PieceTotals {
        let start = PieceTotals { tables: self.tables, files: self.uses.len(), ..PieceTotals::default() };
        self.uses.values().fold(start, |sum, of| PieceTotals {
            bytes: sum.bytes.saturating_add(of.size),
            live_bytes: sum.live_bytes.saturating_add(of.live.min(of.size)),
            ..sum
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use rockmill_format::edit::{FileEntry, TablePiece, VersionEdit};
    use rockmill_format::{InternalKey, InternalKeyComparator, ValueType};

    use super::*;
    use crate::version::{FileMeta, PurgeQueue, Version, VersionBuilder};

    /// Sizes of files never change: they follow from the number.
    fn size(number: u64) -> u64 {
        number * 10
    }

    /// A table of a key of its own, so that none overlap, with some of the files that there were.
    fn table(rng: &mut fastrand::Rng, number: u64) -> FileEntry {
        let key = InternalKey::new(&number.to_be_bytes(), 1, ValueType::Value);
        let mut pieces: Vec<u64> = (0..rng.usize(0..5)).map(|_| rng.u64(1..number.max(2))).collect();
        pieces.sort_unstable();
        pieces.dedup();
        pieces.retain(|&piece| piece != number);
        let piece = |number| TablePiece { number, size: size(number), live: rng.u64(0..=size(number)), path_id: 0 };
        let pieces = pieces.into_iter().map(piece).collect();
        let (smallest, largest) = (key.clone(), key);
        FileEntry { number, size: size(number), smallest, largest, pieces, ..FileEntry::default() }
    }

    #[test]
    fn sums_are_those_of_the_tables_after_any_edits() {
        for seed in 0..20 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let purge = Arc::<PurgeQueue>::default();
            let mut version = Arc::new(Version::empty(4, InternalKeyComparator::default()));
            let mut model: BTreeMap<u64, (u32, FileEntry)> = BTreeMap::new();
            let mut next = 1;
            for step in 0..60 {
                let mut edit = VersionEdit::default();
                let leaving: Vec<u64> = model.keys().copied().filter(|_| rng.u8(0..8) == 0).collect();
                for number in leaving {
                    let Some((level, entry)) = model.remove(&number) else { continue };
                    edit.deleted_files.push((level, number));
                    // Some only move.
                    if rng.bool() {
                        let to = rng.u32(0..4);
                        edit.new_files.push((to, entry.clone()));
                        model.insert(number, (to, entry));
                    }
                }
                for _ in 0..rng.usize(0..3) {
                    let (level, entry) = (rng.u32(0..4), table(&mut rng, next));
                    edit.new_files.push((level, entry.clone()));
                    model.insert(next, (level, entry));
                    next += 1;
                }
                let mut builder = VersionBuilder::new(Arc::clone(&version), Arc::clone(&purge));
                builder.apply(&edit).unwrap();
                version = Arc::new(builder.build().unwrap());

                let entries = || model.values().map(|(_, entry)| entry);
                let mut totals = PieceTotals::default();
                for number in 0..=next {
                    let uses = || entries().flat_map(|e| &e.pieces).filter(|piece| piece.number == number);
                    let own = entries().filter(|e| e.number == number).map(|e| e.size).sum::<u64>();
                    let live = uses().map(|piece| piece.live).sum::<u64>() + own;
                    let expected = if uses().next().is_none() { (0, 0) } else { (size(number), live) };
                    assert_eq!(version.piece_live(number), expected, "seed {seed}, step {step}, file {number}");
                    totals.files += usize::from(expected.0 > 0);
                    totals.bytes += expected.0;
                    totals.live_bytes += expected.1.min(expected.0);
                }
                totals.tables = entries().filter(|e| !e.pieces.is_empty()).count();
                assert_eq!(version.pieces().totals(), totals, "seed {seed}, step {step}");
                let counted: u64 = entries().map(FileEntry::table_size).sum();
                assert_eq!((0..4).map(|level| version.level_bytes(level)).sum::<u64>(), counted);
            }
            assert!(version.pieces().totals().files > 0, "seed {seed}");
        }
    }

    #[test]
    fn a_changed_copy_of_a_version_counts_anew() {
        let mut rng = fastrand::Rng::with_seed(7);
        let with_pieces = std::iter::repeat_with(|| table(&mut rng, 30)).find(|e| !e.pieces.is_empty()).unwrap();
        let version = Version::empty(2, InternalKeyComparator::default());
        assert_eq!((version.has_pieces(), version.pieces().totals().live_percent()), (false, 100.0));
        let mut copy = version.clone();
        copy.levels[1].push(Arc::new(FileMeta::new(with_pieces, Arc::default())));
        assert_eq!((copy.has_pieces(), copy.pieces().totals().tables), (true, 1));
    }
}
