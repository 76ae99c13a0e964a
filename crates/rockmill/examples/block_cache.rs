//! A block cache with a strict capacity: it counts values that point into it and refuses blocks that do not fit.

use rockmill::{BlockBasedOptions, Cache, Db, ErrorKind, LruCacheOptions, Options};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let mut shape = LruCacheOptions::default();
    shape.set_capacity(256 << 10);
    shape.set_num_shard_bits(0);
    shape.set_strict_capacity_limit(true);
    let mut cache = Cache::new_lru_cache_opts(&shape);
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(&cache);
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_block_based_table_factory(&table);
    let db = Db::open(&options, dir.path())?;
    for n in 0..1000u32 {
        db.put(n.to_be_bytes(), [n as u8; 1000])?;
    }
    db.flush()?;

    // Each value keeps its block in the cache.
    let mut held = Vec::new();
    let refused = (0..1000u32).find_map(|n| match db.get_pinned(n.to_be_bytes()) {
        Ok(value) => {
            held.push(value);
            None
        }
        Err(e) => Some(e),
    });
    let refused = refused.ok_or("1 MB fitted into 256 KiB")?;
    println!("after {} values: {refused}", held.len());
    assert_eq!(refused.kind(), ErrorKind::Aborted);
    println!("{} bytes used, {} of them pinned", cache.get_usage(), cache.get_pinned_usage());
    assert!(cache.get_usage() <= 256 << 10);

    cache.set_capacity(8 << 20);
    for n in 0..1000u32 {
        assert!(db.get_pinned(n.to_be_bytes())?.is_some());
    }
    println!("with 8 MiB: {} bytes used", cache.get_usage());
    assert!(cache.get_usage() > 256 << 10);
    Ok(())
}
