//! The programs of docs/guide.md, one function for each block; the test of the examples compares the page with this
//! file.
//!
//! Run with `cargo run -p rockmill --example guide`; it leaves `shop.db` in the current directory.

use rockmill::{
    BlockBasedOptions, Cache, CompressionType, Db, Direction, IteratorMode, Options, ReadOptions, Result, WriteBatch,
    WriteOptions,
};

fn open() -> Result<Db> {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.create_missing_column_families(true);
    let db = Db::open_cf(&options, "shop.db", ["default", "orders"])?;
    Ok(db)
}

fn batch(db: &Db) -> Result<()> {
    let orders = db.cf_handle("orders").expect("it was opened");
    let mut batch = WriteBatch::new();
    batch.put("stock:tea", "7");
    batch.put_cf(&orders, "0001", "tea");
    batch.delete("cart:ada");
    let mut durable = WriteOptions::default();
    durable.set_sync(true); // on the disk when the call returns
    db.write_opt(&batch, &durable)?;
    Ok(())
}

fn iterate(db: &Db) -> Result<()> {
    for entry in db.prefix_iterator("stock:") {
        let (item, number) = entry?;
        println!("{} {}", item.escape_ascii(), number.escape_ascii());
    }
    // From a key on, to a bound that is not part of the range.
    let mut range = ReadOptions::default();
    range.set_iterate_upper_bound("stock:u");
    let from = IteratorMode::From(b"stock:t", Direction::Forward);
    let some = db.iterator_opt(from, range).collect::<Result<Vec<_>>>()?;
    assert_eq!(some.len(), 1);
    Ok(())
}

fn snapshot(db: &Db) -> Result<()> {
    let before = db.snapshot();
    db.put("stock:tea", "6")?;
    assert_eq!(before.get("stock:tea")?.as_deref(), Some(&b"7"[..]));
    assert_eq!(db.get("stock:tea")?.as_deref(), Some(&b"6"[..]));
    Ok(())
}

fn families(db: &Db) -> Result<()> {
    let carts = db.create_cf("carts", &Options::default())?;
    db.put_cf(&carts, "ada", "tea")?;
    assert_eq!(db.get_cf(&carts, "ada")?.as_deref(), Some(&b"tea"[..]));
    db.drop_cf("carts")?;
    Ok(())
}

fn options() -> Options {
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(&Cache::new_lru_cache(512 << 20));
    table.set_bloom_filter(10.0, false);
    let mut options = Options::default();
    options.set_block_based_table_factory(&table);
    options.increase_parallelism(4);
    options.set_compression_type(CompressionType::Lz4);
    options.set_bottommost_compression_type(CompressionType::Zstd);
    options
}

fn main() -> Result<()> {
    let db = open()?;
    batch(&db)?;
    iterate(&db)?;
    snapshot(&db)?;
    families(&db)?;
    drop(db);
    // With other options, and all column families that are there.
    let options = options();
    let names = Db::list_cf(&options, "shop.db")?;
    let db = Db::open_cf(&options, "shop.db", names)?;
    assert_eq!(db.get("stock:tea")?.as_deref(), Some(&b"6"[..]));
    Ok(())
}
