//! Blocks of other tables that are copied into a table unchanged: neither compressed nor encoded again.
//!
//! A table's reader must not notice: a block passes only if this builder could have written it. The only difference is
//! that it begins and ends where the builder would not have cut.

use rockmill_format::SequenceNumber;
use rockmill_format::block::{BlockEntries, BlockLayout};
use rockmill_format::checksum::{ChecksumType, context_modifier};
use rockmill_format::compression::{CompressionType, compression_name};
use rockmill_format::footer::{BLOCK_TRAILER_LEN, BlockHandle};
use rockmill_format::key;

use super::super::access::BlockAccess;
use super::BlockBasedBuilder;
use crate::error::Result;
use crate::statistics::Ticker;

/// A data block as it is stored in a table.
#[derive(Clone, Copy)]
pub struct StoredBlock<'a> {
    /// The table.
    pub table: &'a BlockAccess,
    /// Where it is.
    pub handle: BlockHandle,
    /// Its bytes and its trailer, whose checksum was verified.
    pub bytes: &'a [u8],
}

/// A data block with all of its entries decoded.
#[derive(Clone, Copy)]
pub struct WholeBlock<'a> {
    /// Its entries, in one batch.
    pub entries: &'a BlockEntries,
    /// Its contents, decompressed.
    pub data: &'a [u8],
    /// Of its contents.
    pub layout: BlockLayout,
    /// The block as it is stored.
    pub stored: StoredBlock<'a>,
}

/// Sums over the entries of a block that passes. All are plain values.
#[derive(Debug, Clone, Copy, Default)]
pub struct Census {
    /// Bytes of internal keys.
    pub key_bytes: u64,
    /// Bytes of values.
    pub value_bytes: u64,
    /// Smallest sequence number.
    pub smallest_seqno: SequenceNumber,
    /// Largest sequence number.
    pub largest_seqno: SequenceNumber,
}

/// For each block that ends early less than half full, there must be at least as many entries as in this many blocks.
const SMALL_BLOCKS_APART: u64 = 8;

/// What passing blocks need of a builder.
#[derive(Default)]
pub(super) struct Passing {
    /// A block that passed and is not in the index yet, because the key after it is not known.
    pending: Option<BlockHandle>,
    /// Entries before the last block that ended early less than half full.
    small_at: u64,
    /// The table that blocks came from last, and whether it is written as this one.
    from: Option<(BlockAccess, bool)>,
}

impl BlockBasedBuilder {
    /// Adds all entries of `block`, which `census` sums up, by copying the block unchanged. False, without any effect,
    /// if it does not fit here.
    pub fn pass_block(&mut self, block: &WholeBlock<'_>, census: &Census) -> Result<bool> {
        if self.failed.is_some() {
            self.again()?;
        }
        let entries = block.entries;
        let Some(last) = entries.len().checked_sub(1) else { return Ok(false) };
        if !self.fits(block, last) || !self.fits_here(entries.len()) || !self.is_of_same_kind(block.stored.table) {
            return Ok(false);
        }
        let Some((data, &[kind, a, b, c, d])) = block.stored.bytes.split_last_chunk::<BLOCK_TRAILER_LEN>() else {
            return Ok(false);
        };
        if kind != CompressionType::None as u8 && kind != self.options.compression as u8 {
            return Ok(false);
        }
        let first = entries.key(0);
        if !self.rises(first, super::shared_prefix_len(&self.last_key, first)) {
            return self.refuse(first, "is not after the one before").map(|()| false);
        }
        if !self.data_block.is_empty()
            && self.data_block.current_size_estimate() < self.options.block_based.block_size / 2
        {
            self.passing.small_at = self.points;
        }
        self.flush_block(Some(first))?;
        self.settle()?;
        self.catch_up(Some(first))?;
        if let Some(filter) = &mut self.filter {
            let mut before = &*self.last_key;
            for i in 0..=last {
                let ikey = entries.key(i);
                filter.add(key::user_key(ikey), key::user_key(before), &mut self.index);
                before = ikey;
            }
        }
        let checksum = self.moved_checksum(&block.stored, data, kind, u32::from_le_bytes([a, b, c, d]));
        let handle = BlockHandle { offset: self.writer.offset, size: data.len() as u64 };
        let mut trailer = [kind; BLOCK_TRAILER_LEN];
        trailer[1..].copy_from_slice(&checksum.to_le_bytes());
        if let Err(e) = self.writer.append(data).and_then(|()| self.writer.append(&trailer)) {
            return self.fail(e).map(|()| false);
        }
        self.writer.any_compressed |= kind != CompressionType::None as u8;
        if let Some(s) = &self.writer.statistics {
            let bytes = data.len() as u64;
            s.add_all([(Ticker::NumberBlockCompressionBypassed, 1), (Ticker::BytesCompressionBypassed, bytes)]);
        }
        self.passing.pending = Some(handle);
        self.unusual = true;
        self.last_key.set(entries.key(last));
        if self.keys_follow {
            self.filter_before.clear();
            self.filter_before.extend_from_slice(&self.last_key);
        }
        self.points += entries.len() as u64;
        let p = &mut self.properties;
        p.num_data_blocks += 1;
        p.data_size = self.writer.offset;
        p.raw_key_size += census.key_bytes;
        p.raw_value_size += census.value_bytes;
        self.boundaries.smallest_seqno = self.boundaries.smallest_seqno.min(census.smallest_seqno);
        self.boundaries.largest_seqno = self.boundaries.largest_seqno.max(census.largest_seqno);
        Ok(true)
    }

    /// Returns the failure, if there was one; otherwise adds a block that passed to the index, before `next`.
    #[cold]
    pub(super) fn catch_up(&mut self, next: Option<&[u8]>) -> Result<()> {
        self.again()?;
        self.unusual = false;
        if let Some(handle) = self.passing.pending.take() {
            self.index.add(&self.last_key, next, handle, &self.options.cmp);
        }
        Ok(())
    }

    /// True when the block looks as this builder's do, `last` being its last entry.
    fn fits(&self, block: &WholeBlock<'_>, last: usize) -> bool {
        let (o, layout, entries) = (&self.options, &block.layout, block.entries);
        let restarts = entries.len().div_ceil(o.block_based.block_restart_interval.max(1));
        block.data.len() >= o.block_based.block_size / 2
            && entries.value_range(last).start <= o.block_based.block_size
            && layout.num_restarts() as usize == restarts
            && !(layout.has_hash_index() || layout.has_separated_values() || layout.is_uniform())
            && o.block_based.hash_index_util_ratio.is_none()
    }

    /// True if the current block, if there is one, may end here before a block of this many entries: it is half full,
    /// or less if that is rare. Otherwise this would make many small blocks; or each of a run's following blocks would
    /// find the same remainder of the previous one, and none would pass.
    fn fits_here(&self, entries: usize) -> bool {
        let current = self.data_block.current_size_estimate();
        let apart = self.points - self.passing.small_at >= SMALL_BLOCKS_APART * entries as u64;
        self.points > 0
            && self.held.is_none()
            && self.dictionary.is_empty()
            && (self.data_block.is_empty() || current >= self.options.block_based.block_size / 2 || apart)
    }

    /// True when `table`'s blocks are checked and compressed as this one's are.
    fn is_of_same_kind(&mut self, table: &BlockAccess) -> bool {
        if let Some((from, same)) = &self.passing.from
            && from.is_same(table)
        {
            return *same;
        }
        let (o, footer, p) = (&self.options, table.footer(), table.properties());
        let name = |used| compression_name(o.block_based.format_version, o.compression, used);
        let same = footer.format_version == o.block_based.format_version
            && footer.checksum == o.block_based.checksum
            && table.global_seqno().is_none()
            && !table.has_dictionary()
            && (p.compression_name == name(true) || p.compression_name == name(false))
            && (o.compression == CompressionType::None || p.compression_options == o.compression_opts.property());
        self.passing.from = Some((table.clone(), same));
        same
    }

    /// The checksum that the block has here. It is computed from the old checksum without reading the bytes again, so
    /// that any damage to them in between is detected.
    fn moved_checksum(&self, stored: &StoredBlock<'_>, data: &[u8], kind: u8, checksum: u32) -> u32 {
        let (from, to) = (stored.table.footer(), &self.writer.footer);
        if to.checksum == ChecksumType::None {
            return to.block_checksum(data, kind, self.writer.offset);
        }
        checksum
            .wrapping_sub(context_modifier(from.base_context_checksum, stored.handle.offset))
            .wrapping_add(context_modifier(to.base_context_checksum, self.writer.offset))
    }
}
