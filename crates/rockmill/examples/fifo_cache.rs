//! A cache on the disk with a limited size: FIFO compaction drops the oldest table when the total size is too large.
//! Nothing is rewritten, so each entry is written once.
//!
//! Run with `cargo run --locked -p rockmill --example fifo_cache`.

use std::time::{Duration, Instant};

use rockmill::{BlockBasedOptions, CompactionStyle, CompressionType, Db, FifoCompactOptions, Options, Result};

/// Bytes of all tables, approximately.
const SIZE: u64 = 4 << 20;

fn main() -> Result<()> {
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let mut fifo = FifoCompactOptions::default();
    fifo.set_max_table_files_size(SIZE);
    // There are many tables, all in one level: each lookup queries the filters of all.
    let mut table = BlockBasedOptions::default();
    table.set_bloom_filter(10.0, false);
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_compaction_style(CompactionStyle::Fifo);
    options.set_fifo_compaction_options(&fifo);
    options.set_block_based_table_factory(&table);
    options.set_compression_type(CompressionType::None);
    // A dropped entry can be fetched again, so a log would be a cost without a benefit.
    options.set_write_buffer_size(256 << 10);
    let mut write = rockmill::WriteOptions::default();
    write.disable_wal(true);

    let db = Db::open(&options, scratch.path().join("cache"))?;
    let page = vec![b'x'; 10_000];
    let bytes = || db.property_int_value("rocksdb.total-sst-files-size").map(Option::unwrap_or_default);
    // Three times the capacity of the cache.
    let pages = 3 * SIZE / page.len() as u64;
    for number in 0..pages {
        db.put_opt(number.to_be_bytes(), &page, &write)?;
    }
    db.flush()?;
    let began = Instant::now();
    while bytes()? > SIZE && began.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(10));
    }
    println!("{} of {SIZE} bytes in tables", bytes()?);
    assert!(bytes()? <= SIZE);
    assert!(db.get(0u64.to_be_bytes())?.is_none(), "the oldest page has gone");
    assert!(db.get((pages - 1).to_be_bytes())?.is_some(), "the newest is there");
    Ok(())
}
