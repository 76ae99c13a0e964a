//! Names of blocks in the metaindex, and of properties that are RocksDB's user-collected ones.

/// Properties block.
pub(super) const PROPERTIES: &str = "rocksdb.properties";
/// Index block, from format_version 6 on.
pub(super) const INDEX: &str = "rocksdb.index";
/// Compression dictionary.
pub(super) const COMPRESSION_DICT: &str = "rocksdb.compression_dict";
/// Range tombstones.
pub(super) const RANGE_DEL: &str = "rocksdb.range_del";
/// One filter for all keys, of RocksDB's own policies (Bloom and Ribbon share the name).
pub(super) const FULL_FILTER: &str = "fullfilter.rocksdb.BuiltinBloomFilter";
/// Index over filter partitions.
pub(super) const PARTITIONED_FILTER: &str = "partitionedfilter.rocksdb.BuiltinBloomFilter";

/// What RocksDB's Bloom filter policy calls itself in the properties.
pub(super) const BLOOM_POLICY: &str = "bloomfilter";

/// Index type, fixed32.
pub(super) const INDEX_TYPE: &str = "rocksdb.block.based.table.index.type";
/// `1` when filters hold whole keys.
pub(super) const WHOLE_KEY_FILTERING: &str = "rocksdb.block.based.table.whole.key.filtering";
/// `1` when filters hold prefixes.
pub(super) const PREFIX_FILTERING: &str = "rocksdb.block.based.table.prefix.filtering";
/// Values of the two above.
pub(super) const TRUE: &[u8] = b"1";
/// See [`TRUE`].
pub(super) const FALSE: &[u8] = b"0";

/// Version of an ingested file, fixed32.
pub(super) const EXTERNAL_VERSION: &str = "rocksdb.external_sst_file.version";
/// Sequence number of an ingested file's keys, fixed64.
pub(super) const GLOBAL_SEQNO: &str = "rocksdb.external_sst_file.global_seqno";
/// In tables with user-defined timestamps.
pub(super) const TIMESTAMP_MIN: &str = "rocksdb.timestamp_min";
/// In tables whose timestamps were cut off.
pub(super) const TIMESTAMPS_PERSISTED: &str = "rocksdb.user.defined.timestamps.persisted";
/// Largest sequence number of the keys, varint64.
pub(super) const KEY_LARGEST_SEQNO: &str = "rocksdb.key.largest.seqno";
/// Smallest sequence number of the keys, varint64.
pub(super) const KEY_SMALLEST_SEQNO: &str = "rocksdb.key.smallest.seqno";
