//! Names of blocks in the metaindex, and names and values of RocksDB's user-collected properties.
//! `rockmill_format::properties` has the names of other properties.

/// Properties block.
pub(super) const PROPERTIES: &str = "rocksdb.properties";
/// Index block, from format_version 6 on.
pub(super) const INDEX: &str = "rocksdb.index";
/// Compression dictionary.
pub(super) const COMPRESSION_DICT: &str = "rocksdb.compression_dict";
/// Range tombstones.
pub(super) const RANGE_DEL: &str = "rocksdb.range_del";
/// One filter for all keys, made by RocksDB's own policies (Bloom and Ribbon share the name).
pub(super) const FULL_FILTER: &str = "fullfilter.rocksdb.BuiltinBloomFilter";
/// Index over filter partitions.
pub(super) const PARTITIONED_FILTER: &str = "partitionedfilter.rocksdb.BuiltinBloomFilter";

/// The name of RocksDB's Bloom filter policy in the properties.
pub(super) const BLOOM_POLICY: &str = "bloomfilter";
/// In tables with user-defined timestamps.
pub(super) const TIMESTAMP_MIN: &str = "rocksdb.timestamp_min";

/// Marks the file as the head of a TPH table. Readers of plain block-based tables ignore it.
pub(in crate::table) const TPH: &str = "rockmill.tph";
