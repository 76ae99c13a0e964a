//! A full disk: the store refuses writes, reports the reason, loses no acknowledged write, and resumes by itself when
//! there is space again. The disk is in memory here, so that it can be full.

use std::sync::Arc;
use std::time::Duration;

use rockmill::{Db, Error, Options};
use rockmill_io::MemFileSystem;

fn main() -> Result<(), Error> {
    let disk = MemFileSystem::new();
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_file_system(Arc::new(disk.clone()));
    // Checks for space every 20 ms; the default is one second. With 0 automatic resumes, the program would have to call
    // `Db::resume`.
    options.set_bgerror_resume_retry_interval(20_000);
    let db = Db::open(&options, "/db")?;

    disk.set_free_space(Some(100_000));
    let mut written = 0;
    let refused = loop {
        match db.put(format!("key{written:05}"), [b'x'; 1000]) {
            Ok(()) => written += 1,
            Err(e) => break e,
        }
    };
    println!("after {written} records: {refused}");
    assert!(refused.is_no_space() && db.background_error().is_some());
    assert!(db.get("key00000")?.is_some(), "reads go on");

    disk.set_free_space(None);
    while db.background_error().is_some() {
        std::thread::sleep(Duration::from_millis(5));
    }
    db.put("after", "1")?;
    println!("there is space again: writing goes on");

    drop(db);
    let db = Db::open(&options, "/db")?;
    for n in 0..written {
        assert!(db.get(format!("key{n:05}"))?.is_some(), "key{n:05} was acknowledged");
    }
    assert_eq!(db.get(format!("key{written:05}"))?, None, "what was refused does not come back");
    Ok(())
}
