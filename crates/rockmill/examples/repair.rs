//! Repair: a database that lost its MANIFEST and has a damaged table becomes usable again.

use rockmill::{Db, Options};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let path = scratch.path().join("db");
    {
        let db = Db::open_default(&path)?;
        for table in ["a", "b", "c"] {
            (0..100).try_for_each(|i| db.put(format!("{table}{i:02}"), "value"))?;
            db.flush()?;
        }
        db.put("d", "in the WAL only")?;
    }
    // The worst happens.
    for entry in std::fs::read_dir(&path)? {
        let file = entry?.path();
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with("MANIFEST") || name == "CURRENT" {
            std::fs::remove_file(&file)?;
        }
    }
    let mut options = Options::default();
    assert!(Db::open(&options, &path).is_err());
    let mut tables: Vec<_> = std::fs::read_dir(&path)?.map(|e| e.map(|e| e.path())).collect::<Result<_, _>>()?;
    tables.retain(|p| p.extension().is_some_and(|e| e == "sst"));
    let damaged = tables.pop().ok_or("no table")?;
    let mut bytes = std::fs::read(&damaged)?;
    bytes[50] ^= 1;
    std::fs::write(&damaged, bytes)?;

    let report = Db::repair(&options, &path)?;
    println!("{} tables kept, {} entries from WALs", report.tables_kept, report.wal_entries);
    for (file, reason) in &report.damaged {
        println!("{file} is in lost/: {reason}");
    }
    assert_eq!((report.tables_kept, report.tables_damaged, report.wal_entries), (2, 1, 1));
    options.create_if_missing(false);
    let db = Db::open(&options, &path)?;
    assert!(db.get("d")?.is_some() && db.get("a00")?.is_some());
    drop(db);
    Ok(())
}
