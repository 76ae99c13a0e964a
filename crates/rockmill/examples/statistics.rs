//! Counters, histograms and properties of a store.

use rockmill::statistics::{Histogram, StatsLevel, Ticker};
use rockmill::{Db, Options, properties};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let dir = scratch.path().join("db");
    let mut options = Options::default();
    options.create_if_missing(true);
    options.enable_statistics();
    options.set_statistics_level(StatsLevel::All);
    let db = Db::open(&options, &dir)?;
    for i in 0..10_000 {
        db.put(format!("key{i:05}"), "value")?;
    }
    db.flush()?;
    for i in 0..1000 {
        assert!(db.get(format!("key{i:05}"))?.is_some());
    }

    // One by one, as long as the options live.
    assert_eq!(options.get_ticker_count(Ticker::NumberKeysWritten), 10_000);
    let hits = options.get_ticker_count(Ticker::BlockCacheHit);
    let get = options.get_histogram_data(Histogram::DbGet);
    println!("{hits} cache hits; gets: median {:.1}, 99 of 100 below {:.1} microseconds", get.median(), get.p99());

    // All of them, in RocksDB's text form.
    let text = options.get_statistics().unwrap_or_default();
    println!("{}", text.lines().find(|l| l.starts_with("rocksdb.db.flush.micros")).unwrap_or_default());

    // The store's properties.
    let keys = db.property_int_value(properties::ESTIMATE_NUM_KEYS)?;
    assert_eq!(keys, Some(10_000));
    println!("{}", db.property_value(properties::LEVELSTATS)?.unwrap_or_default());
    drop(db);
    Db::destroy(&options, &dir)?;
    Ok(())
}
