//! A secondary instance: reads a database that another process (here: another handle) is writing.

use rockmill::{Db, Error, Options};

fn main() -> Result<(), Error> {
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let dir = scratch.path().join("db");
    let (primary_path, own_path) = (dir.join("primary"), dir.join("secondary"));
    let primary = Db::open_default(&primary_path)?;
    primary.put("answer", "41")?;

    let secondary = Db::open_as_secondary(&Options::default(), &primary_path, &own_path)?;
    assert_eq!(secondary.get("answer")?.as_deref(), Some(&b"41"[..]));

    primary.put("answer", "42")?;
    primary.flush()?;
    // It sees its old state until it is told to catch up.
    assert_eq!(secondary.get("answer")?.as_deref(), Some(&b"41"[..]));
    secondary.try_catch_up_with_primary()?;
    assert_eq!(secondary.get("answer")?.as_deref(), Some(&b"42"[..]));
    println!("the secondary has caught up");

    let refused = secondary.put("answer", "43");
    println!("writing to it: {}", refused.expect_err("a secondary only reads"));

    drop((primary, secondary));
    Ok(())
}
