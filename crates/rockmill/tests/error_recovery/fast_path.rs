//! Either the device of the fast path or the device of the tables is full.

use super::*;
use rockmill::CompressionType;

/// Logs in `/fast`; only full memory causes a flush.
fn fast(options: &mut Options) {
    options.set_fast_path("/fast", 1 << 30);
    options.set_max_index_size(1 << 20);
    options.set_data_flush_trigger_size(1 << 30);
    options.set_compression_type(CompressionType::None);
    options.enable_statistics();
}

/// Only the flush of the store's own recovery makes room there.
#[test]
fn a_full_fast_device_is_emptied_by_the_recovery() {
    let (fs, options, db, mut all) = opened(fast);
    let mut n = 0;
    for round in 0..3 {
        // Also with a log smaller than an index table's memory.
        fs.set_free_space_in(Path::new("/fast"), Some([300_000, 5_000, 1 << 20][round])).expect("a directory");
        let e = loop {
            n += 1;
            assert!(n < 10_000, "the device never became full");
            if let Err(e) = all.write(&db, &format!("{n:05}"), 1000, &WriteOptions::default()) {
                break e;
            }
        };
        assert!(e.is_no_space() && e.to_string().contains("/fast"), "{e}");
        wait_until("it resumes", || db.background_error().is_none());
        all.check(&format!("round {round}"), &db);
        all.write(&db, &format!("{n:05} again"), 100, &synced()).expect("there is space again");
    }
    for mode in [CrashMode::SyncedOnly, CrashMode::KeepAll] {
        all.check(&format!("{mode:?}"), &after(&fs, mode, &options));
    }
    drop(db);
    all.check("reopened", &open(&options, path()));
}

/// Other files fill the device: with nothing to flush, retries would be useless.
#[test]
fn a_fast_device_that_others_fill_is_waited_for() {
    let (fs, options, db, mut all) = opened(fast);
    fs.set_free_space_in(Path::new("/fast"), Some(0)).expect("a directory");
    let e = all.write(&db, "k", 1000, &WriteOptions::default()).expect_err("the device is full");
    assert!(e.is_no_space(), "{e}");
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(options.get_ticker_count(Ticker::ErrorHandlerAutoresumeRetryTotalCount), 0);
    fs.set_free_space_in(Path::new("/fast"), None).expect("a directory");
    wait_until("it resumes", || db.background_error().is_none());
    all.write(&db, "k", 1000, &synced()).expect("there is space again");
    all.check("after it", &db);
}

/// A flush needs space for the values that index tables refer to, not for the tables' memory.
#[test]
fn a_full_slow_device_is_waited_for_until_the_values_fit() {
    let (fs, options, db, mut all) = opened(fast);
    for n in 0..2000 {
        all.write(&db, &format!("{n:05}"), 1000, &WriteOptions::default()).expect("a write");
    }
    let memory = db.property_int_value("rocksdb.cur-size-all-mem-tables").expect("a property").expect("known");
    assert!(memory < 1 << 20, "{memory} bytes of index tables");
    fs.set_free_space_in(path(), Some(1 << 20)).expect("a directory");
    let e = db.flush().expect_err("2 MB are written");
    assert!(e.is_no_space(), "{e}");
    wait_until("the error is known", || db.background_error_severity() == Some(ErrorSeverity::Hard));
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(options.get_ticker_count(Ticker::ErrorHandlerAutoresumeRetryTotalCount), 0, "tries in vain");
    all.check("while it is full", &db);
    fs.set_free_space_in(path(), None).expect("a directory");
    wait_until("it resumes", || db.background_error().is_none());
    all.write(&db, "later", 1000, &synced()).expect("a write");
    all.check("after it", &db);
    drop(db);
    all.check("reopened", &open(&options, path()));
}

/// Writes values that compress to a tenth or less, or incompressible ones.
fn fill(all: &mut Acknowledged, db: &Db, keys: std::ops::Range<usize>, random: Option<u64>) {
    let mut rng = random.map(fastrand::Rng::with_seed);
    for n in keys {
        let value: Vec<u8> = (0..1000).map(|i| rng.as_mut().map_or((i % 10) as u8, |rng| rng.u8(..))).collect();
        let mut batch = WriteBatch::new();
        for family in FAMILIES {
            batch.put_cf(&db.cf_handle(family).expect("opened"), format!("{n:05}"), &value);
        }
        db.write(&batch).expect("a write");
        all.0.insert(format!("{n:05}"), value);
    }
}

/// Tables of compressed values need less space than the values. How much less is unknown before the first flush, and
/// after a flush of different values: then a few attempts fail, but not many.
#[test]
fn a_full_slow_device_is_waited_for_until_the_compressed_values_fit() {
    let (fs, options, db, mut all) = opened(|o| {
        fast(o);
        o.set_compression_type(CompressionType::Lz4);
        // Attempts that only determine the required space do not count.
        o.set_max_bgerror_resume_count(1);
    });
    let tries = || options.get_ticker_count(Ticker::ErrorHandlerAutoresumeRetryTotalCount);
    let fail = |db: &Db| {
        fs.set_free_space_in(path(), Some(0)).expect("a directory");
        let e = db.flush().expect_err("there is no space");
        assert!(e.is_no_space(), "{e}");
        wait_until("the error is known", || db.background_error_severity() == Some(ErrorSeverity::Hard));
    };
    // Two column families with 2 MB each.
    fill(&mut all, &db, 0..2000, None);
    fail(&db);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(tries(), 0);
    fs.set_free_space_in(path(), Some(1_300_000)).expect("a directory");
    wait_until("it resumes", || db.background_error().is_none());
    all.check("there was space for the tables, and not for the values", &db);
    fs.set_free_space_in(path(), None).expect("a directory");
    // The same amount of incompressible values, which the store cannot know.
    fill(&mut all, &db, 2000..4000, Some(1));
    let before = tries();
    fail(&db);
    fs.set_free_space_in(path(), Some(1_300_000)).expect("a directory");
    let mut seen = before;
    wait_until("it waits", || {
        std::thread::sleep(Duration::from_millis(200));
        std::mem::replace(&mut seen, tries()) == tries()
    });
    let in_vain = tries() - before;
    assert!((1..=6).contains(&in_vain), "{in_vain} tries in vain");
    all.check("while it is full", &db);
    fs.set_free_space_in(path(), None).expect("a directory");
    wait_until("it resumes", || db.background_error().is_none());
    all.check("after it", &db);
    drop(db);
    all.check("reopened", &open(&options, path()));
}
