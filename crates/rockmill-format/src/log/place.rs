//! Where a record's payload is in a log file, for reading parts of it later.
//!
//! A payload is cut at the ends of 32 KiB blocks, and each piece has a header before it. So a part of the payload that
//! begins in one block and ends in another has headers in its middle; their positions follow from its offset alone.

use super::{BLOCK_SIZE, HEADER_LEN, RECYCLABLE_HEADER_LEN};

/// Where a record is: all that is needed to find any byte of its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordPlace {
    /// Offset in the file where the record was begun: its first header, or padding before that.
    pub start: u64,
    /// The log has the long headers of files that may be used again.
    pub recyclable: bool,
}

impl RecordPlace {
    fn header_len(self) -> u64 {
        (if self.recyclable { RECYCLABLE_HEADER_LEN } else { HEADER_LEN }) as u64
    }

    /// Offset in the file of the payload's byte `at`.
    pub fn offset_of(self, at: u64) -> u64 {
        let (block, header) = (BLOCK_SIZE as u64, self.header_len());
        let left = block - self.start % block;
        // Fewer bytes than a header are padding: the record then begins with the next block.
        let room = left.checked_sub(header);
        match room {
            Some(room) if at < room => self.start + header + at,
            _ => {
                let rest = at - room.unwrap_or(0);
                let in_block = block - header;
                self.start + left + rest / in_block * block + header + rest % in_block
            }
        }
    }

    /// Bytes of the file from `offset`, a byte of the payload, to the end of the `len` bytes of payload there, with the
    /// headers between them.
    pub fn span(self, offset: u64, len: u64) -> u64 {
        let (block, header) = (BLOCK_SIZE as u64, self.header_len());
        let first = block - offset % block;
        if len <= first { len } else { len + (len - first).div_ceil(block - header) * header }
    }

    /// Removes the headers from `bytes`, which were read from `offset` on and are as many as [`Self::span`] says. The
    /// rest is the payload; the result is its length.
    pub fn join(self, offset: u64, bytes: &mut [u8]) -> usize {
        let (block, header) = (BLOCK_SIZE, self.header_len() as usize);
        let mut to = (block - (offset % block as u64) as usize).min(bytes.len());
        let mut from = to + header;
        while from < bytes.len() {
            let n = (block - header).min(bytes.len() - from);
            bytes.copy_within(from..from + n, to);
            (to, from) = (to + n, from + n + header);
        }
        to
    }
}

#[cfg(test)]
mod tests {
    use super::super::LogEncoder;
    use super::*;

    /// Every part of records of many lengths, at many places of a block, is found and joined.
    #[test]
    fn parts_of_records_are_found_across_blocks() {
        let mut rng = fastrand::Rng::with_seed(7);
        for recyclable in [false, true] {
            let mut file = vec![0u8; 0];
            let mut encoder = LogEncoder::new(9, recyclable, 0);
            let mut records = Vec::new();
            for i in 0..400 {
                let len = match i % 4 {
                    0 => rng.usize(0..40),
                    1 => rng.usize(0..3000),
                    2 => rng.usize(30_000..34_000),
                    _ => rng.usize(0..150_000),
                };
                let record: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(len).collect();
                let place = RecordPlace { start: file.len() as u64, recyclable };
                encoder.add_record(&record, &mut file);
                records.push((place, record));
            }
            // To the end of a block but for each number of bytes around a header.
            for left in 0..20 {
                let used = file.len() % BLOCK_SIZE;
                let header = if recyclable { RECYCLABLE_HEADER_LEN } else { HEADER_LEN };
                let fill = (2 * BLOCK_SIZE - used - header).saturating_sub(left + header) % BLOCK_SIZE;
                encoder.add_record(&vec![1; fill], &mut file);
                let record: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(100).collect();
                let place = RecordPlace { start: file.len() as u64, recyclable };
                encoder.add_record(&record, &mut file);
                records.push((place, record));
            }
            for (place, record) in &records {
                for _ in 0..20 {
                    if record.is_empty() {
                        continue;
                    }
                    let from = rng.usize(0..record.len());
                    let len = rng.usize(1..=record.len() - from);
                    let offset = place.offset_of(from as u64);
                    let span = place.span(offset, len as u64) as usize;
                    let mut bytes = file[offset as usize..offset as usize + span].to_vec();
                    let joined = place.join(offset, &mut bytes);
                    assert_eq!(&bytes[..joined], &record[from..from + len], "{place:?} {from} {len}");
                }
            }
        }
    }
}
