//! A column family copied to another database by its tables: no entry is read or written.

use rockmill::{Checkpoint, Db, ImportColumnFamilyOptions, Options};

fn main() -> rockmill::Result<()> {
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let dir = scratch.path().join("db");
    let (from, to, export) = (dir.join("from"), dir.join("to"), dir.join("export"));
    let mut options = Options::default();
    options.create_if_missing(true);
    options.create_missing_column_families(true);
    let source = Db::open_cf(&options, &from, ["default", "orders"])?;
    let orders = source.cf_handle("orders").expect("opened");
    for i in 0..1000 {
        source.put_cf(&orders, format!("order{i:04}"), format!("{} items", i % 7))?;
    }

    // Hard links, and a description of the tables for the import.
    let tables = Checkpoint::new(&source)?.export_column_family(&orders, &export)?;
    println!("exported {} table(s), comparator {}", tables.files.len(), tables.get_db_comparator_name());

    let target = Db::open(&options, &to)?;
    let mut how = ImportColumnFamilyOptions::new();
    how.set_move_files(true);
    let imported = target.create_column_family_with_import(&options, "orders-2024", &how, &tables)?;
    assert_eq!(target.get_cf(&imported, "order0012")?.as_deref(), Some(&b"5 items"[..]));
    println!("imported as {:?}, up to sequence number {}", imported.name(), target.latest_sequence_number());

    drop((orders, source, imported, target));
    Db::destroy(&options, &from)?;
    Db::destroy(&options, &to)?;
    let _ = std::fs::remove_dir(export);
    let _ = std::fs::remove_dir(dir);
    Ok(())
}
