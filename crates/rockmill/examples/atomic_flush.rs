//! `atomic_flush`: batches for several column families, written without a WAL, reach tables together or not at all.

use rockmill::{ColumnFamilyDescriptor, Db, Options, WriteBatch, WriteOptions};

fn main() -> rockmill::Result<()> {
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let dir = scratch.path().join("db");
    let mut options = Options::default();
    options.create_if_missing(true);
    options.create_missing_column_families(true);
    options.set_atomic_flush(true);
    Db::destroy(&options, &dir)?;
    let families = || ["default", "index"].map(|f| ColumnFamilyDescriptor::new(f, options.clone()));
    {
        let db = Db::open_cf_descriptors(&options, &dir, families())?;
        let index = db.cf_handle("index").expect("opened above");
        let mut unlogged = WriteOptions::default();
        unlogged.disable_wal(true);
        for n in 0..1000 {
            // A row and its index entry. Whichever memtable is full first, both are flushed together.
            let mut row = WriteBatch::new();
            row.put(format!("row{n:04}"), format!("colour{}", n % 7));
            row.put_cf(&index, format!("colour{}-row{n:04}", n % 7), "");
            db.write_opt(&row, &unlogged)?;
        }
        db.flush_all()?;
        let files = db.live_files()?;
        println!("one flush, one commit: {} tables", files.len());
        assert_eq!(files.len(), 2);
    }
    let db = Db::open_cf_descriptors(&options, &dir, families())?;
    let index = db.cf_handle("index").expect("opened above");
    assert!(db.get("row0999")?.is_some() && db.get_cf(&index, "colour5-row0999")?.is_some());
    println!("rows and index agree");
    drop(db);
    Db::destroy(&options, &dir)
}
