//! `get_updates_since`: a copy that follows a database through its write-ahead log.

use rockmill::{Db, Options};

/// Updates `copy` to the state of `source`. Returns the number of batches.
fn follow(source: &Db, copy: &Db) -> rockmill::Result<usize> {
    let mut batches = 0;
    for update in source.get_updates_since(copy.latest_sequence_number())? {
        let (sequence, batch) = update?;
        assert_eq!(sequence, copy.latest_sequence_number() + 1, "an update is missing");
        copy.write(&batch)?;
        batches += 1;
    }
    Ok(batches)
}

fn main() -> rockmill::Result<()> {
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let dir = scratch.path().join("db");
    let mut options = Options::default();
    options.create_if_missing(true);
    // WALs whose data is in tables move to `archive/` and stay there for an hour.
    options.set_wal_ttl_seconds(3600);
    let (one, two) = (dir.join("source"), dir.join("copy"));
    Db::destroy(&options, &one)?;
    Db::destroy(&options, &two)?;
    {
        let (source, copy) = (Db::open(&options, &one)?, Db::open(&options, &two)?);
        for n in 0..100 {
            source.put(format!("key{n:03}"), format!("value{n}"))?;
        }
        println!("{} batches copied", follow(&source, &copy)?);
        source.flush()?;
        source.delete("key007")?;
        source.put("key100", "after the flush")?;
        println!("{} more, from {} files", follow(&source, &copy)?, source.get_sorted_wal_files()?.len());
        assert_eq!(copy.get("key007")?, None);
        assert_eq!(copy.get("key100")?.as_deref(), Some(&b"after the flush"[..]));
        assert_eq!(copy.latest_sequence_number(), source.latest_sequence_number());
    }
    Db::destroy(&options, &one)?;
    Db::destroy(&options, &two)?;
    let _ = std::fs::remove_dir(&dir);
    Ok(())
}
