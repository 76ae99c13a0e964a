//! The program of the README, which the test of the examples compares with this file.
//!
//! Run with `cargo run -p rockmill --example people`; it leaves `people.db` in the current directory.

use rockmill::{Db, IteratorMode};

fn main() -> Result<(), rockmill::Error> {
    let db = Db::open_default("people.db")?;
    db.put("ada", "1815")?;
    assert_eq!(db.get("ada")?.as_deref(), Some(&b"1815"[..]));
    for entry in db.iterator(IteratorMode::Start) {
        let (name, born) = entry?;
        println!("{} {}", name.escape_ascii(), born.escape_ascii());
    }
    Ok(())
}
