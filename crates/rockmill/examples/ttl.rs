//! Values with a time to live: a cache of web pages, with a column family that keeps its values forever.
//!
//! Run with `cargo run -p rockmill --example ttl`.

use std::time::Duration;

use rockmill::{ColumnFamilyDescriptor, ColumnFamilyTtl, Db, Options, Result};

fn main() -> Result<()> {
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let path = scratch.path().join("db");
    let mut options = Options::default();
    options.create_if_missing(true);
    options.create_missing_column_families(true);
    let second = Duration::from_secs(1);
    {
        let families = [
            ColumnFamilyDescriptor::new_with_ttl("default", options.clone(), ColumnFamilyTtl::SameAsDb),
            ColumnFamilyDescriptor::new_with_ttl("addresses", options.clone(), ColumnFamilyTtl::Disabled),
        ];
        // Always open such a database this way: each value is followed by its time of writing.
        let db = Db::open_cf_descriptors_with_ttl(&options, &path, families, second)?;
        db.put("page", "<html>")?;
        if let Some(addresses) = db.cf_handle("addresses") {
            db.put_cf(&addresses, "page", "https://example.org")?;
            std::thread::sleep(second * 2 + second / 10);
            println!("the page is old, and there until a compaction meets it: {}", db.get("page")?.is_some());
            for family in [&db.default_cf(), &addresses] {
                db.compact_range_cf(family, None::<&[u8]>, None::<&[u8]>)?;
            }
            println!("after a compaction: {}", db.get("page")?.is_some());
            assert_eq!(db.get("page")?, None);
            assert_eq!(db.get_cf(&addresses, "page")?.as_deref(), Some(&b"https://example.org"[..]));
        }
    }
    Db::destroy(&options, &path)
}
