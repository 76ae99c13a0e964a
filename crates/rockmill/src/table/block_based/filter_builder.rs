//! Builds a table's Bloom filter: of whole keys, of prefixes, or of both; one, or partitions and an index over them.
//!
//! Partitions end where those of the index end (RocksDB's `PartitionedFilterBlockBuilder`): once a partition has keys
//! enough, the index builder is asked to cut. The prefix of the key after a cut also goes into the partition before it,
//! and that of the key before the cut into the partition after it: a seek to a key between the two may land in either
//! partition, and must find both prefixes.

use rockmill_format::SliceTransform;
use rockmill_format::filter::BloomBuilder;
use rockmill_format::footer::BlockHandle;

use super::index_builder::{IndexBuilder, add_entry, index_block};
use crate::error::Result;
use crate::table::options::TableBuilderOptions;

/// See the module's description.
pub(super) struct FilterBuilder {
    bloom: BloomBuilder,
    extractor: Option<SliceTransform>,
    whole_keys: bool,
    partitions: Option<Partitions>,
}

struct Partitions {
    /// Entries at which a partition should end.
    entries_max: usize,
    index_restart_interval: usize,
    /// Separator (an internal key) and contents of each that ended.
    ended: Vec<(Vec<u8>, Vec<u8>)>,
    /// Entries of those.
    entries: usize,
}

/// What was written.
pub(super) struct FinishedFilter {
    /// The filter, or the index over its partitions.
    pub handle: BlockHandle,
    /// Bytes of all its blocks.
    pub size: u64,
    /// Keys and prefixes in it.
    pub entries: u64,
    pub partitioned: bool,
}

impl FilterBuilder {
    /// `None` where the options want no filter.
    pub fn new(options: &TableBuilderOptions) -> Option<Self> {
        let settings = &options.block_based;
        if settings.bloom_bits_per_key <= 0.0 {
            return None;
        }
        let bloom = BloomBuilder::new(settings.bloom_bits_per_key);
        let partitions = settings.partition_filters.then(|| {
            // As in RocksDB: it takes up to a data block until a cut is granted.
            let percent = 100 - settings.block_size_deviation.min(100);
            let size = settings.metadata_block_size.saturating_mul(percent).div_ceil(100).max(1);
            let entries = entries_per_partition(&bloom, size);
            let spare = usize::from(entries > 1 && options.prefix_extractor.is_some());
            Partitions {
                entries_max: entries - spare,
                index_restart_interval: settings.index_block_restart_interval,
                ended: Vec::new(),
                entries: 0,
            }
        });
        let extractor = options.prefix_extractor.clone();
        Some(Self { bloom, extractor, whole_keys: settings.whole_key_filtering, partitions })
    }

    /// True when its parts end where the index's do.
    pub fn is_partitioned(&self) -> bool {
        self.partitions.is_some()
    }

    /// Adds a key that comes after `previous` (empty before the first). If a data block ended before the key, `index`
    /// must have its entry already.
    #[inline]
    pub fn add(&mut self, key: &[u8], previous: &[u8], index: &mut IndexBuilder) {
        if self.extractor.is_none() && self.partitions.is_none() {
            if self.whole_keys {
                self.bloom.add_key(key);
            }
            return;
        }
        self.add_slowly(key, previous, index);
    }

    fn add_slowly(&mut self, key: &[u8], previous: &[u8], index: &mut IndexBuilder) {
        let extractor = self.extractor.take();
        let prefix = extractor.as_ref().and_then(|e| e.prefix(key));
        if let Some(p) = &self.partitions {
            if index.take_filter_cut() {
                let before = extractor.as_ref().and_then(|e| e.prefix(previous));
                self.cut(prefix, before, index.last_separator());
            } else if self.bloom.num_keys() >= p.entries_max {
                index.request_cut();
            }
        }
        match prefix {
            Some(prefix) if self.whole_keys => self.bloom.add_key_and_prefix(key, prefix),
            Some(prefix) => self.bloom.add_key(prefix),
            None if self.whole_keys => self.bloom.add_key(key),
            None => {}
        }
        self.extractor = extractor;
    }

    /// Ends the current partition: `next` is the prefix of the key after it, `last` that of its last key.
    fn cut(&mut self, next: Option<&[u8]>, last: Option<&[u8]>, separator: &[u8]) {
        if let Some(prefix) = next {
            if self.whole_keys {
                self.bloom.add_key_and_prefix(prefix, prefix);
            } else {
                self.bloom.add_key(prefix);
            }
        }
        let entries = self.bloom.num_keys();
        // Empty if none of the partition's keys has a prefix: a filter without keys.
        let contents = self.bloom.finish();
        if let Some(p) = &mut self.partitions {
            p.entries += entries;
            p.ended.push((separator.to_vec(), contents));
        }
        if let Some(prefix) = last {
            self.bloom.add_key(prefix);
        }
    }

    /// Writes all blocks with `write`; `None` when the filter would be empty. The index has all its entries.
    pub fn finish(
        mut self,
        index: &IndexBuilder,
        mut write: impl FnMut(&[u8]) -> Result<BlockHandle>,
    ) -> Result<Option<FinishedFilter>> {
        if self.partitions.is_none() {
            let entries = self.bloom.num_keys() as u64;
            if entries == 0 {
                return Ok(None);
            }
            let contents = self.bloom.finish();
            let size = contents.len() as u64;
            return Ok(Some(FinishedFilter { handle: write(&contents)?, size, entries, partitioned: false }));
        }
        if self.bloom.num_keys() > 0 {
            self.cut(None, None, index.last_separator());
        }
        let Some(p) = self.partitions.filter(|p| p.entries > 0) else { return Ok(None) };
        let mut size = 0;
        let mut top = index_block(p.index_restart_interval);
        let mut previous = None;
        for (separator, contents) in &p.ended {
            size += contents.len() as u64;
            let handle = write(contents)?;
            add_entry(&mut top, index.as_stored(separator), handle, previous);
            previous = Some(handle);
        }
        let contents = top.finish();
        size += contents.len() as u64;
        let handle = write(contents)?;
        Ok(Some(FinishedFilter { handle, size, entries: p.entries as u64, partitioned: true }))
    }
}

/// How many entries a partition of about `size` bytes has, at least one.
fn entries_per_partition(bloom: &BloomBuilder, size: usize) -> usize {
    let entries = bloom.entries_in(size);
    if entries >= 1 {
        return entries;
    }
    // Smaller than the smallest filter: as RocksDB finds that one's size.
    let mut larger = (size + 4).max(16);
    loop {
        let entries = bloom.entries_in(larger);
        if entries >= 1 {
            return entries;
        }
        larger += larger / 4;
        if larger > 100_000 {
            return size;
        }
    }
}
