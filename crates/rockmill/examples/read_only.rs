//! A read-only instance: it sees a database as it was when it was opened, takes no lock, and changes nothing.

use rockmill::{Db, Error, ErrorKind, Options};

fn main() -> Result<(), Error> {
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let dir = scratch.path().join("db");
    let writer = Db::open_default(&dir)?;
    writer.put("balance", "100")?;

    // At the same time as the process that writes.
    let reader = Db::open_for_read_only(&Options::default(), &dir, false)?;
    writer.put("balance", "200")?;
    assert_eq!(reader.get("balance")?.as_deref(), Some(&b"100"[..]));
    println!("the reader sees the balance of its opening");

    let refused = reader.put("balance", "300").expect_err("it only reads");
    assert_eq!(refused.kind(), ErrorKind::NotSupported);
    println!("writing to it: {refused}");

    drop((writer, reader));
    Ok(())
}
