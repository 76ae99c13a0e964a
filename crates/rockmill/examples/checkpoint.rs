//! A checkpoint: a copy of an open database at one moment. It shares the database's tables and is ready to be opened or
//! archived.

use rockmill::{Checkpoint, Db, Options};

fn main() -> rockmill::Result<()> {
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let dir = scratch.path().join("db");
    let (live, copy) = (dir.join("live"), dir.join("copy"));
    let db = Db::open_default(&live)?;
    db.put("balance", "100")?;
    Checkpoint::new(&db)?.create_checkpoint(&copy)?;
    db.put("balance", "0")?;

    let copied = Db::open_default(&copy)?;
    let text = |v: Option<Vec<u8>>| String::from_utf8_lossy(&v.unwrap_or_default()).into_owned();
    println!("live: {}, checkpoint: {}", text(db.get("balance")?), text(copied.get("balance")?));
    assert_eq!(copied.get("balance")?.as_deref(), Some(&b"100"[..]));

    drop((db, copied));
    Db::destroy(&Options::default(), &live)?;
    Db::destroy(&Options::default(), &copy)?;
    let _ = std::fs::remove_dir(dir);
    Ok(())
}
