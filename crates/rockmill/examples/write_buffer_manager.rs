//! Two databases whose memtables share 4 MiB, charged to their shared block cache.

use rockmill::{BlockBasedOptions, Cache, Db, Options, WriteBufferManager, get_memory_usage_stats};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let cache = Cache::new_lru_cache(16 << 20);
    // Writers wait instead of exceeding the limit.
    let manager = WriteBufferManager::new_write_buffer_manager_with_cache(4 << 20, true, cache.clone());
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(&cache);
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_block_based_table_factory(&table);
    options.set_write_buffer_manager(&manager);
    let one = Db::open(&options, dir.path().join("one"))?;
    let two = Db::open(&options, dir.path().join("two"))?;

    let mut most = 0;
    for n in 0..20_000u32 {
        let db = if n % 2 == 0 { &one } else { &two };
        db.put(n.to_be_bytes(), [n as u8; 1000])?;
        most = most.max(manager.get_usage());
    }
    println!("20 MB were written with at most {most} bytes of memtables");
    assert!(most < 6 << 20);
    println!("{} bytes of the cache's {} stand for memtables", manager.get_cache_usage(), cache.get_usage());
    assert!(cache.get_pinned_usage() >= manager.get_cache_usage());

    let stats = get_memory_usage_stats(Some(&[&one, &two]), Some(&[&cache]))?;
    println!("{stats:?}");
    assert!(stats.mem_table_unflushed <= stats.mem_table_total);
    assert_eq!(one.get(10_000u32.to_be_bytes())?.as_deref(), Some(&[10_000u32 as u8; 1000][..]));
    Ok(())
}
