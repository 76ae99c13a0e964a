//! Options that change while the database is open: a bulk load without compactions, then compactions again.
//!
//! `cargo run --example set_options`

use rockmill::{Db, ErrorKind, Result};

fn main() -> Result<()> {
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let dir = scratch.path().join("db");
    let db = Db::open_default(&dir)?;

    db.set_options(&[("disable_auto_compactions", "true"), ("write_buffer_size", "128M")])?;
    for i in 0..10_000_u32 {
        db.put(i.to_be_bytes(), b"value")?;
    }
    db.flush()?;
    db.set_options(&[("disable_auto_compactions", "false"), ("write_buffer_size", "64M")])?;

    // An option that cannot change in an open database is refused by name.
    let refused = db.set_options(&[("num_levels", "4")]);
    assert_eq!(refused.as_ref().map_err(rockmill::Error::kind), Err(ErrorKind::InvalidArgument));
    if let Err(e) = refused {
        println!("{e}");
    }

    drop(db);
    Db::destroy(&rockmill::Options::default(), &dir)
}
