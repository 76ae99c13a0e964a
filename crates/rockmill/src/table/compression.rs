//! How blocks are compressed.

/// The settings of a compression method (RocksDB's `CompressionOptions`). An open with values that are not supported is
/// refused.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompressionOptions {
    /// zlib: minus the bits of the window, -14 to -9. RocksDB itself inflates with -14.
    pub window_bits: i32,
    /// The library's level; 32767 (and `i32::MAX`) means its default. LZ4 and Snappy have no levels here.
    pub level: i32,
    /// zlib: 0, the default strategy; others are refused.
    pub strategy: i32,
    /// Bytes of the dictionary that each table's blocks share; 0 for none. The table's first blocks are held in memory
    /// until it is made (`max_dict_buffer_bytes`). For ZSTD, LZ4 and zlib.
    pub max_dict_bytes: u32,
    /// ZSTD: bytes of samples from which the dictionary is trained; 0 takes samples as they are.
    pub zstd_max_train_bytes: u32,
    /// The most threads that compress a table's blocks, if `compaction_helper_threads` lets others help; 0 and 1 leave
    /// it to that option.
    pub parallel_threads: u32,
    /// For `bottommost_compression_opts`: whether they are used at all.
    pub enabled: bool,
    /// Bytes of blocks held to take samples from; 0 takes the target size of tables, and all of a flush.
    pub max_dict_buffer_bytes: u64,
    /// Train with ZSTD's trainer; its cheaper alternative (`false`) is refused if a dictionary is to be trained.
    pub use_zstd_dict_trainer: bool,
    /// A block is stored compressed if it has at most this many compressed bytes for each 1024.
    pub max_compressed_bytes_per_kb: i32,
    /// ZSTD: put ZSTD's own checksum after each block.
    pub checksum: bool,
}

impl Default for CompressionOptions {
    fn default() -> Self {
        Self {
            window_bits: -14,
            level: 32767,
            strategy: 0,
            max_dict_bytes: 0,
            zstd_max_train_bytes: 0,
            parallel_threads: 1,
            enabled: false,
            max_dict_buffer_bytes: 0,
            use_zstd_dict_trainer: true,
            max_compressed_bytes_per_kb: 896,
            checksum: false,
        }
    }
}

impl CompressionOptions {
    /// Why tables cannot be written with these settings; `None` if they can.
    pub(crate) fn refused(&self) -> Option<&'static str> {
        if !(-14..=-9).contains(&self.window_bits) {
            return Some("window_bits must be -14 to -9 (raw deflate that every RocksDB inflates)");
        }
        if self.strategy != 0 {
            return Some("strategy must be 0: zlib's other strategies are not there");
        }
        if !self.use_zstd_dict_trainer && self.max_dict_bytes > 0 && self.zstd_max_train_bytes > 0 {
            return Some("use_zstd_dict_trainer must be true where zstd_max_train_bytes is set");
        }
        if self.max_compressed_bytes_per_kb < 1 {
            return Some("max_compressed_bytes_per_kb must be at least 1");
        }
        None
    }

    /// As the table property `rocksdb.compression_options` has it.
    pub(crate) fn property(&self) -> String {
        format!(
            "window_bits={}; level={}; strategy={}; max_dict_bytes={}; zstd_max_train_bytes={}; enabled={}; \
             max_dict_buffer_bytes={}; use_zstd_dict_trainer={}; ",
            self.window_bits,
            if self.level == i32::MAX { 32767 } else { self.level },
            self.strategy,
            self.max_dict_bytes,
            self.zstd_max_train_bytes,
            i32::from(self.enabled),
            self.max_dict_buffer_bytes,
            i32::from(self.use_zstd_dict_trainer),
        )
    }
}
