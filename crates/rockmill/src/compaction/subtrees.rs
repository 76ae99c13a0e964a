//! Subtrees: where tables end in the order by search key (CompassDB, section 3.4).
//!
//! 1. The 2^32 search keys are divided into `2^bits` ranges of the same size, and no output table has keys of two of
//!    them. `bits` is chosen so that a range has about a table's target size in the run that is written.
//! 2. Ranges of fewer bits consist of whole ranges of more bits. So of two tables, whatever their levels and whenever
//!    they were written, one's range of search keys is within the other's, or they have nothing in common: a compaction
//!    of one table reads the tables below its own range, and nothing that a neighbour overlaps as well.
//! 3. Hashes are spread evenly, so a range fills its table whatever the keys are. Only if values differ much in size
//!    does a table reach twice its target size before its range ends; the next table then continues in the same range.
//!
//! Thus the number of tables that one table of the level above overlaps is a power of two that depends on the sizes of
//! the two levels. Once both are full, it is `max_bytes_for_level_multiplier` rounded to a power of two.

use rockmill_format::comparator::search_key;

use super::Compaction;

/// Bits of a search key.
pub(super) const SUBTREE_BITS_MAX: u32 = 32;

/// The range of a user key: its search key's upper `bits`; 0 without any.
#[inline]
pub(super) fn subtree_of(user_key: &[u8], bits: u32) -> u32 {
    search_key(user_key).checked_shr(SUBTREE_BITS_MAX.saturating_sub(bits)).unwrap_or(0)
}

/// Bits for the outputs of a compaction: as many ranges as the run will have tables, rounded to a power of two.
pub(super) fn subtree_bits(compaction: &Compaction) -> u32 {
    let runs = compaction.version.sorted_runs();
    let own = runs.filter(|place| place.level == compaction.output_level && place.run == compaction.output_run);
    let taken = |number: u64| compaction.input_files().any(|f| f.number() == number);
    let rest = own.flat_map(|place| place.files).filter(|f| !taken(f.number())).map(|f| f.size());
    let bytes = rest.fold(compaction.input_bytes(), u64::saturating_add);
    let tables = bytes as f64 / compaction.output_file_size_target.max(1) as f64;
    // Rounded, a range has 0.7 to 1.4 times the target size.
    tables.log2().round().clamp(0.0, f64::from(SUBTREE_BITS_MAX)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_nested() {
        for i in 0..1000u32 {
            let key = i.to_be_bytes();
            assert_eq!((subtree_of(&key, 0), subtree_of(&key, SUBTREE_BITS_MAX)), (0, search_key(&key)));
            for bits in 1..SUBTREE_BITS_MAX {
                assert_eq!(subtree_of(&key, bits), subtree_of(&key, bits + 1) >> 1);
            }
        }
    }
}
