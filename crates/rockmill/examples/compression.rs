//! Compression for each level: none for young data that moves often, strong for the deepest level, which has most of
//! the data.

use rockmill::{BottommostLevelCompaction, CompactOptions, CompressionType, Db, Error, Options};

fn main() -> Result<(), Error> {
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let dir = scratch.path().join("db");
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_compression_per_level(&[CompressionType::None, CompressionType::Lz4, CompressionType::Zstd]);
    options.set_bottommost_compression_type(CompressionType::Zstd);
    // The deepest level: ZSTD's level 6, with dictionaries of 16 KiB.
    options.set_bottommost_compression_options(-14, 6, 0, 16 << 10, true);
    // Read and write tables without the page cache, if the file system supports it.
    options.set_use_direct_reads(true);
    options.set_use_direct_io_for_flush_and_compaction(true);
    let db = Db::open(&options, &dir)?;
    for n in 0..5_000 {
        db.put(format!("user{n:05}"), format!("{{\"id\": {n}, \"plan\": \"free\", \"country\": \"none\"}}"))?;
    }
    db.flush()?;
    let size = |db: &Db| -> Result<usize, Error> { Ok(db.live_files()?.iter().map(|f| f.size).sum()) };
    let young = size(&db)?;
    // A table that overlaps no others moves down unchanged, unless the deepest level must be rewritten.
    let mut all = CompactOptions::default();
    all.set_bottommost_level_compaction(BottommostLevelCompaction::Force);
    db.compact_range_opt(None::<&[u8]>, None::<&[u8]>, &all)?;
    let rested = size(&db)?;
    println!("{young} bytes in L0, {rested} in the deepest level");
    assert!(rested * 2 < young);

    drop(db);
    Ok(())
}
