//! `manual_wal_flush`: log records are buffered in memory, and the program decides when they are written to the kernel
//! and to the disk.

use rockmill::{Db, Options, WriteOptions};

fn main() -> rockmill::Result<()> {
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let dir = scratch.path().join("db");
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_manual_wal_flush(true);
    Db::destroy(&options, &dir)?;
    // Bytes of the log that the kernel has received.
    let size = || -> u64 {
        let files = std::fs::read_dir(&dir).expect("the database's directory").flatten();
        let logs = files.filter(|f| f.path().extension().is_some_and(|e| e == "log"));
        logs.filter_map(|f| f.metadata().ok()).map(|m| m.len()).sum()
    };
    let db = Db::open(&options, &dir)?;
    for n in 0..100 {
        db.put(format!("key{n:03}"), "value")?;
    }
    // Readers see the writes; they are not in the file yet, so the death of the process would lose them.
    assert!(db.get("key099")?.is_some());
    println!("after 100 writes the log has {} bytes", size());
    assert_eq!(size(), 0);
    db.flush_wal(false)?;
    println!("after flush_wal it has {}: they survive the process", size());
    assert!(size() > 2000);
    // A synced write includes everything before it.
    db.put("key100", "value")?;
    let mut synced = WriteOptions::default();
    synced.set_sync(true);
    db.put_opt("key101", "value", &synced)?;
    println!("after a synced write it has {}: all of them survive a power cut", size());
    drop(db);
    let db = Db::open(&options, &dir)?;
    assert!(db.get("key101")?.is_some());
    drop(db);
    Db::destroy(&options, &dir)
}
