//! The tables of a store, and the size of a key range in bytes.

use rockmill::{Db, Options, Range};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let dir = scratch.path().join("db");
    let db = Db::open_default(&dir)?;
    for i in 0..10_000 {
        db.put(format!("key{i:05}"), format!("value {i}"))?;
    }
    db.flush()?;

    let files = db.live_files()?;
    assert_eq!(files.len(), 1);
    for f in &files {
        println!("{} level {}: {} bytes, {} entries", f.name, f.level, f.size, f.num_entries);
    }
    let cf = db.get_column_family_metadata();
    assert_eq!((cf.file_count, cf.size), (1, files[0].size as u64));

    let half = [Range::new(b"key00000", b"key05000"), Range::new(b"key05000", b"key99999")];
    let sizes = db.get_approximate_sizes(&half);
    println!("first half about {} bytes, second {}", sizes[0], sizes[1]);
    assert!(sizes[0] > cf.size / 3 && sizes[1] > cf.size / 3);

    drop(db);
    Db::destroy(&Options::default(), &dir)?;
    Ok(())
}
