//! A custom key order: version numbers in numerical order, 1.9 before 1.10.
//!
//! Run with `cargo run -p rockmill --example comparator`.

use std::cmp::Ordering;

use rockmill::{Db, IteratorMode, Options, Result};

/// Compares the parts between dots as numbers; parts that are not numbers come after them, as text. Versions are equal
/// only if their bytes are.
fn by_version(a: &[u8], b: &[u8]) -> Ordering {
    let parts = |key: &[u8]| -> Vec<(u64, Vec<u8>)> {
        let number = |part: &[u8]| std::str::from_utf8(part).ok()?.parse().ok();
        key.split(|&byte| byte == b'.').map(|part| (number(part).unwrap_or(u64::MAX), part.to_vec())).collect()
    };
    parts(a).cmp(&parts(b)).then_with(|| a.cmp(b))
}

fn main() -> Result<()> {
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let path = scratch.path().join("db");
    let mut options = Options::default();
    options.create_if_missing(true);
    // The name is stored: give a different order a different name.
    options.set_comparator("example.ByVersion", Box::new(by_version));
    {
        let db = Db::open(&options, &path)?;
        for version in ["1.10", "1.9", "2.0", "1.10.1", "1.beta"] {
            db.put(version, "released")?;
        }
        db.flush()?;
        let mut order = Vec::new();
        for entry in db.iterator(IteratorMode::Start) {
            order.push(String::from_utf8_lossy(&entry?.0).into_owned());
        }
        println!("{}", order.join(" < "));
        assert_eq!(order, ["1.9", "1.10", "1.10.1", "1.beta", "2.0"]);
    }

    // With another order, the database does not open.
    let refused = Db::open(&Options::default(), &path).err().map(|e| e.to_string()).unwrap_or_default();
    println!("{refused}");
    assert!(refused.contains("example.ByVersion") && refused.contains("leveldb.BytewiseComparator"));
    Ok(())
}
