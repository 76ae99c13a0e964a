//! Counters and lists without reading first: one of RocksDB's operators and a custom one.
//!
//! Run with `cargo run -p rockmill --example merge_operator`.

use rockmill::{ColumnFamilyDescriptor, Db, MergeOperands, Options, Result, merge_operator};

/// Maintains a sorted set of words, separated by spaces.
fn add_words(_key: &[u8], existing: Option<&[u8]>, operands: &MergeOperands<'_>) -> Option<Vec<u8>> {
    let mut words: Vec<&[u8]> = existing.into_iter().chain(operands).flat_map(|w| w.split(|&b| b == b' ')).collect();
    words.sort_unstable();
    words.dedup();
    Some(words.join(&b' '))
}

fn main() -> Result<()> {
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let path = scratch.path().join("db");
    let mut options = Options::default();
    options.create_if_missing(true);
    options.create_missing_column_families(true);
    let mut counters = options.clone();
    if let Some(operator) = merge_operator::by_name("uint64add") {
        counters.set_merge_operator_object(operator);
    }
    let mut tags = options.clone();
    tags.set_merge_operator_associative("words", add_words);
    let families = [("default", options.clone()), ("counters", counters), ("tags", tags)]
        .map(|(name, options)| ColumnFamilyDescriptor::new(name, options));
    {
        let db = Db::open_cf_descriptors(&options, &path, families)?;
        if let (Some(counters), Some(tags)) = (db.cf_handle("counters"), db.cf_handle("tags")) {
            for _ in 0..3 {
                db.merge_cf(&counters, "visits", 5u64.to_le_bytes())?;
            }
            db.merge_cf(&tags, "page", "red round")?;
            db.flush_cf(&tags)?;
            db.merge_cf(&tags, "page", "blue red")?;
            let visits = db.get_cf(&counters, "visits")?.and_then(|v| v.try_into().ok()).map(u64::from_le_bytes);
            let words = db.get_cf(&tags, "page")?.map(|w| String::from_utf8_lossy(&w).into_owned());
            println!("visits: {visits:?}, words: {words:?}");
            assert_eq!((visits, words.as_deref()), (Some(15), Some("blue red round")));
        }
    }
    Ok(())
}
