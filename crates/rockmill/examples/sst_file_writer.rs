//! A table written outside a database and then ingested: thousands of entries at once, without a WAL and without a
//! compaction.

use rockmill::{Db, IngestExternalFileOptions, Options, SstFileWriter};

fn main() -> rockmill::Result<()> {
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let dir = scratch.path().join("db");
    let mut options = Options::default();
    options.create_if_missing(true);
    let db = Db::open(&options, dir.join("db"))?;
    db.put("city00042", "before")?;

    // Keys are ascending. Another process may do this, on another machine.
    let table = dir.join("batch.sst");
    let mut writer = SstFileWriter::create(&options);
    writer.open(&table)?;
    for i in 0..10_000 {
        writer.put(format!("city{i:05}"), format!("{} inhabitants", i * 37))?;
    }
    assert!(writer.put("city00000", "again").is_err(), "the order is checked");
    writer.finish()?;
    println!("wrote {} bytes", writer.file_size());

    // Ingested entries are newer than existing ones and become visible all at once, but not in snapshots taken before.
    let snapshot = db.snapshot();
    let mut how = IngestExternalFileOptions::default();
    how.set_move_files(true);
    db.ingest_external_file_opts(&how, vec![&table])?;
    assert_eq!(db.get("city00042")?.as_deref(), Some(&b"1554 inhabitants"[..]));
    assert_eq!(snapshot.get("city00042")?.as_deref(), Some(&b"before"[..]));
    assert!(!table.exists(), "moved");
    println!("ingested {} tables", db.counters().ingested_files);

    drop(snapshot);
    drop(db);
    Db::destroy(&options, dir.join("db"))?;
    let _ = std::fs::remove_dir(dir);
    Ok(())
}
