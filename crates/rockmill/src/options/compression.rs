//! How blocks are compressed (RocksDB's `CompressionOptions`).

use super::Options;
use super::value::{Value, nested};

/// What a compression method has to choose (RocksDB's `CompressionOptions`). Opening a database with values that
/// cannot be served is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompressionOptions {
    /// zlib: minus the bits of the window, -14 to -9. RocksDB itself inflates with -14.
    pub window_bits: i32,
    /// The library's level; 32767 (and `i32::MAX`) its default. LZ4 and Snappy have none here.
    pub level: i32,
    /// zlib: 0, its default strategy; others are refused.
    pub strategy: i32,
    /// Bytes of the dictionary that each table's blocks share; 0 for none. The table's first blocks are held in memory
    /// until it is made (`max_dict_buffer_bytes`). For ZSTD, LZ4 and zlib.
    pub max_dict_bytes: u32,
    /// ZSTD: bytes of samples from which the dictionary is trained; 0 takes samples as they are.
    pub zstd_max_train_bytes: u32,
    /// Threads that compress a table's blocks at most, where `compaction_helper_threads` lets others help; 0 and 1
    /// leave it to that option.
    pub parallel_threads: u32,
    /// Of `bottommost_compression_opts`: whether they count at all.
    pub enabled: bool,
    /// Bytes of blocks held to take samples from; 0 takes the target size of tables, and all of a flush.
    pub max_dict_buffer_bytes: u64,
    /// Train with ZSTD's trainer; its cheaper alternative (`false`) is refused where there is something to train.
    pub use_zstd_dict_trainer: bool,
    /// Compressed bytes for each 1024 up to which a block is kept compressed.
    pub max_compressed_bytes_per_kb: i32,
    /// ZSTD: put a checksum of its own behind each block.
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
    /// Why tables cannot be written so; `None` when they can.
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

nested! {
    CompressionOptions as "compression_opts" {
        window_bits,
        level,
        strategy,
        max_dict_bytes,
        zstd_max_train_bytes,
        parallel_threads,
        enabled,
        max_dict_buffer_bytes,
        use_zstd_dict_trainer,
        max_compressed_bytes_per_kb,
        checksum,
    } or read_unnamed
}

/// RocksDB's older text: values in a fixed order, parted by colons, `-14:32767:0` at least.
fn read_unnamed(options: &mut CompressionOptions, text: &str) -> bool {
    let values: Vec<&str> = text.split(':').collect();
    if !(3..=9).contains(&values.len()) {
        return false;
    }
    let o = options;
    // Three numbers come first; what else there is follows in this order.
    let mut set: [&mut dyn FnMut(&str) -> bool; 9] = [
        &mut |v| take(&mut o.window_bits, v),
        &mut |v| take(&mut o.level, v),
        &mut |v| take(&mut o.strategy, v),
        &mut |v| take(&mut o.max_dict_bytes, v),
        &mut |v| take(&mut o.zstd_max_train_bytes, v),
        &mut |v| take(&mut o.parallel_threads, v),
        &mut |v| take(&mut o.enabled, v),
        &mut |v| take(&mut o.max_dict_buffer_bytes, v),
        &mut |v| take(&mut o.use_zstd_dict_trainer, v),
    ];
    values.iter().zip(&mut set).all(|(value, set)| set(value))
}

fn take<T: Value>(field: &mut T, text: &str) -> bool {
    T::read(text).map(|value| *field = value).is_some()
}

impl Options {
    /// The compression library's level; 32767 its default.
    pub fn set_compression_level(&mut self, level: i32) {
        self.cf.compression_opts.level = level;
    }

    /// Window (zlib), level, strategy (zlib) and dictionary size; see [`CompressionOptions`].
    pub fn set_compression_options(&mut self, w_bits: i32, level: i32, strategy: i32, max_dict_bytes: i32) {
        set_four(&mut self.cf.compression_opts, w_bits, level, strategy, max_dict_bytes);
    }

    /// The same for the deepest level, where `enabled`; otherwise it has what the others have.
    pub fn set_bottommost_compression_options(
        &mut self,
        w_bits: i32,
        level: i32,
        strategy: i32,
        max_dict_bytes: i32,
        enabled: bool,
    ) {
        let o = &mut self.cf.bottommost_compression_opts;
        set_four(o, w_bits, level, strategy, max_dict_bytes);
        o.enabled = enabled;
    }

    /// ZSTD: bytes of samples that dictionaries are trained from.
    pub fn set_zstd_max_train_bytes(&mut self, value: i32) {
        self.cf.compression_opts.zstd_max_train_bytes = value.max(0) as u32;
    }

    /// The same for the deepest level, where `enabled`.
    pub fn set_bottommost_zstd_max_train_bytes(&mut self, value: i32, enabled: bool) {
        self.cf.bottommost_compression_opts.zstd_max_train_bytes = value.max(0) as u32;
        self.cf.bottommost_compression_opts.enabled = enabled;
    }

    /// Threads that compress a table's blocks; see [`CompressionOptions::parallel_threads`].
    pub fn set_compression_options_parallel_threads(&mut self, threads: i32) {
        self.cf.compression_opts.parallel_threads = threads.max(1) as u32;
    }

    /// Leaves tables of levels above `level` uncompressed; the others have the option `compression`, which is set
    /// before.
    pub fn set_min_level_to_compress(&mut self, level: i32) {
        let all = 0..self.cf.num_levels;
        let of = |l| if l < level { super::CompressionType::None } else { self.cf.compression };
        self.cf.compression_per_level = all.map(of).collect();
    }

    /// RocksDB's shorthand for leveled compaction with so many bytes of memtables.
    pub fn optimize_level_style_compaction(&mut self, memtable_memory_budget: usize) {
        use super::CompressionType::{Lz4, None};
        let (cf, budget) = (&mut self.cf, memtable_memory_budget);
        cf.write_buffer_size = budget / 4;
        cf.min_write_buffer_number_to_merge = 2;
        cf.max_write_buffer_number = 6;
        cf.level0_file_num_compaction_trigger = 2;
        cf.target_file_size_base = budget as u64 / 8;
        cf.max_bytes_for_level_base = budget as u64;
        cf.compression_per_level = (0..cf.num_levels).map(|l| if l < 2 { None } else { Lz4 }).collect();
    }
}

fn set_four(o: &mut CompressionOptions, window_bits: i32, level: i32, strategy: i32, max_dict_bytes: i32) {
    (o.window_bits, o.level, o.strategy) = (window_bits, level, strategy);
    o.max_dict_bytes = max_dict_bytes.max(0) as u32;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_texts_of_rocksdb_are_read() {
        let named = CompressionOptions::read("{level=3;max_dict_bytes=64K;enabled=true}").unwrap();
        let usual = CompressionOptions::default();
        let wanted = CompressionOptions { level: 3, max_dict_bytes: 65536, enabled: true, ..usual.clone() };
        assert_eq!(named, wanted);
        assert_eq!(CompressionOptions::read(&named.write()), Some(named));
        let unnamed = CompressionOptions::read("-13:4:0:100:200:1:true").unwrap();
        let wanted = CompressionOptions {
            window_bits: -13,
            level: 4,
            max_dict_bytes: 100,
            zstd_max_train_bytes: 200,
            enabled: true,
            ..usual
        };
        assert_eq!(unnamed, wanted);
        for bad in ["1:2", "a:b:c", "1:2:3:4:5:6:true:8:true:10", "{level=x}"] {
            assert_eq!(CompressionOptions::read(bad), None, "{bad}");
        }
    }
}
