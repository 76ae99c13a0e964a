//! How blocks are compressed (RocksDB's `CompressionOptions`).

use super::Options;
pub use crate::table::CompressionOptions;

use super::value::{Value, nested};

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

/// RocksDB's older text: values in a fixed order, separated by colons, at least `-14:32767:0`.
fn read_unnamed(options: &mut CompressionOptions, text: &str) -> bool {
    let values: Vec<&str> = text.split(':').collect();
    if !(3..=9).contains(&values.len()) {
        return false;
    }
    let o = options;
    // Three numbers come first; the others are optional and follow in this order.
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
    /// The compression library's level; 32767 means the library's default.
    pub fn set_compression_level(&mut self, level: i32) {
        self.cf.compression_opts.level = level;
    }

    /// Window (zlib), level, strategy (zlib) and dictionary size; see [`CompressionOptions`].
    pub fn set_compression_options(&mut self, w_bits: i32, level: i32, strategy: i32, max_dict_bytes: i32) {
        set_four(&mut self.cf.compression_opts, w_bits, level, strategy, max_dict_bytes);
    }

    /// The same for the deepest level, if `enabled` is set; otherwise that level is compressed like the others.
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

    /// Leaves tables of levels above `level` uncompressed; the others take the option `compression`, which must be set
    /// before this call.
    pub fn set_min_level_to_compress(&mut self, level: i32) {
        let all = 0..self.cf.num_levels;
        let of = |l| if l < level { super::CompressionType::None } else { self.cf.compression };
        self.cf.compression_per_level = all.map(of).collect();
    }

    /// RocksDB's shorthand for leveled compaction with this many bytes of memtables.
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
