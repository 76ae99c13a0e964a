//! Finds whole fragments after damage, when their starts are no longer known.

use super::{BLOCK_SIZE, HEADER_LEN, block_start, kind};
use crate::checksum::{crc32c, unmask};
use crate::coding::fixed32_at;

/// Which part of a record a fragment is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// All of it.
    Full,
    /// Its beginning.
    First,
    /// Neither beginning nor end.
    Middle,
    /// Its end.
    Last,
}

/// A fragment whose checksum is right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found<'a> {
    /// Where its header begins in the bytes that were searched.
    pub start: usize,
    /// What it holds.
    pub payload: &'a [u8],
    /// Which part of a record that is.
    pub part: Part,
}

impl Found<'_> {
    /// Where it ends in the bytes that were searched.
    pub fn end(&self) -> usize {
        self.start + HEADER_LEN + self.payload.len()
    }
}

/// Every whole fragment with a short header in `bytes`, which are at `offset` of their log. None overlap. `None` if
/// this would take more than `work_max` bytes of checksums, because bytes look like headers everywhere.
pub fn fragments(bytes: &[u8], offset: u64, work_max: usize) -> Option<Vec<Found<'_>>> {
    let mut found = Vec::new();
    let (mut at, mut work) = (0, 0);
    while let Some(rest) = bytes.get(at..).filter(|rest| rest.len() > HEADER_LEN) {
        let begin = offset + at as u64;
        let left_in_block = BLOCK_SIZE - (begin - block_start(begin)) as usize;
        let length = usize::from(u16::from_le_bytes([rest[4], rest[5]]));
        let part = match rest[6] {
            kind::FULL => Some(Part::Full),
            kind::FIRST => Some(Part::First),
            kind::MIDDLE => Some(Part::Middle),
            kind::LAST => Some(Part::Last),
            _ => None,
        };
        let end = HEADER_LEN + length;
        if let (Some(part), Some(fragment), true) = (part, rest.get(..end), length > 0 && end <= left_in_block) {
            work += end;
            if work > work_max {
                return None;
            }
            if fixed32_at(fragment, 0).map(unmask) == Some(crc32c(&fragment[6..])) {
                found.push(Found { start: at, payload: &fragment[HEADER_LEN..], part });
                at += end;
                continue;
            }
        }
        at += 1;
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::super::LogEncoder;
    use super::*;

    #[test]
    fn whole_fragments_are_found_wherever_they_begin() {
        let mut log = Vec::new();
        let mut encoder = LogEncoder::new(7, false, 0);
        for n in 0..40u8 {
            encoder.add_record(&vec![n; 100 + usize::from(n) * 100], &mut log);
        }
        let all = fragments(&log, 0, usize::MAX).unwrap();
        assert!(all.len() > 40, "some records are in two blocks");
        assert_eq!(all.iter().filter(|f| f.part == Part::Full).count(), 40 - (all.len() - 40));
        for cut in [1, 50, 107, 1000] {
            let behind: Vec<_> = all.iter().filter(|f| f.start >= cut).map(|f| f.payload).collect();
            let found = fragments(&log[cut..], cut as u64, usize::MAX).unwrap();
            assert_eq!(found.iter().map(|f| f.payload).collect::<Vec<_>>(), behind);
        }
        let mut damaged = log.clone();
        damaged[200] ^= 1;
        assert_eq!(fragments(&damaged, 0, usize::MAX).unwrap().len(), all.len() - 1);
    }

    #[test]
    fn bytes_that_look_like_headers_everywhere_are_given_up() {
        let bytes = vec![1; 100_000];
        assert_eq!(fragments(&bytes, 0, 1 << 20), None);
        assert_eq!(fragments(&vec![0; 100_000], 0, 0), Some(Vec::new()));
    }
}
