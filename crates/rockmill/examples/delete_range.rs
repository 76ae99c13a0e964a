//! Two ways to delete many keys: a range tombstone, which costs the same for any number of keys, and dropping whole
//! tables, which frees their space immediately.

use rockmill::{Db, IteratorMode, Options};

fn main() -> rockmill::Result<()> {
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let dir = scratch.path().join("db");
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_target_file_size_base(16 << 10);
    options.set_disable_auto_compactions(true);
    let db = Db::open(&options, &dir)?;
    let cf = db.default_cf();
    for half in 0..2 {
        for day in 0..100 {
            for event in (half..100).step_by(2) {
                db.put(format!("day{day:03}/event{event:03}"), "x".repeat(100))?;
            }
        }
        db.flush()?;
    }
    db.compact_range(None::<&[u8]>, None::<&[u8]>)?;
    let bytes = |db: &Db| -> rockmill::Result<usize> { Ok(db.live_files()?.iter().map(|f| f.size).sum()) };
    println!("{} tables, {} bytes", db.live_files()?.len(), bytes(&db)?);

    // Tables that contain only days 0 to 49 are dropped now, even for snapshots; the tombstone deletes the keys in the
    // others.
    let before = bytes(&db)?;
    db.delete_file_in_range("day000", "day049~")?;
    db.delete_range_cf(&cf, "day000", "day050")?;
    assert!(bytes(&db)? < before);
    println!("{} tables, {} bytes", db.live_files()?.len(), bytes(&db)?);
    assert_eq!(db.iterator(IteratorMode::Start).count(), 5000);

    // A tombstone for more days: compactions drop, without reading them, tables that it covers completely.
    db.delete_range_cf(&cf, "day050", "day090")?;
    db.flush()?;
    db.compact_range(None::<&[u8]>, None::<&[u8]>)?;
    assert_eq!(db.iterator(IteratorMode::Start).count(), 1000);
    assert!(db.counters().files_covered > 0);
    println!("{} tables dropped unread", db.counters().files_covered);

    drop(db);
    Db::destroy(&options, &dir)
}
