//! Single deletes: for keys that are put once. A compaction at any level drops a single delete together with its put,
//! whereas an ordinary deletion must be carried down to the deepest level.

use rockmill::{CompactOptions, Db, Error, Options};

fn main() -> Result<(), Error> {
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let dir = scratch.path().join("db");
    let mut options = Options::default();
    options.create_if_missing(true);
    let db = Db::open(&options, &dir)?;
    // A queue: each job has its own key, is put once and taken once.
    for job in 0..100 {
        db.put(format!("job{job:03}"), "to do: nothing")?;
    }
    db.flush()?;
    for job in 0..99 {
        db.single_delete(format!("job{job:03}"))?;
    }
    db.flush()?;
    db.compact_range_opt(None::<&[u8]>, None::<&[u8]>, &CompactOptions::default())?;

    assert_eq!(db.get("job000")?, None);
    assert!(db.get("job099")?.is_some());
    let entries: u64 = db.live_files()?.iter().map(|f| f.num_entries).sum();
    println!("{entries} entry is left in the tables");
    assert_eq!(entries, 1);

    drop(db);
    Ok(())
}
