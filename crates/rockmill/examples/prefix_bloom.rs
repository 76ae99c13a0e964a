//! Events of users under keys that start with the user's id: prefix filters speed up scans of a single user.
//!
//! Run with `cargo run -p rockmill --example prefix_bloom`.

use rockmill::statistics::Ticker;
use rockmill::{BlockBasedOptions, Db, Direction, IteratorMode, Options, ReadOptions, Result, SliceTransform};

fn main() -> Result<()> {
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let path = scratch.path().join("db");
    let mut table = BlockBasedOptions::default();
    table.set_bloom_filter(10.0, false);
    let mut options = Options::default();
    options.create_if_missing(true);
    options.enable_statistics();
    options.set_prefix_extractor(SliceTransform::create_fixed_prefix(8));
    options.set_memtable_prefix_bloom_ratio(0.02);
    options.set_block_based_table_factory(&table);
    {
        let db = Db::open(&options, &path)?;
        for user in (0..1000u64).step_by(2) {
            for event in 0..3u8 {
                db.put([&user.to_be_bytes()[..], b"/", &[event]].concat(), "seen")?;
            }
        }
        db.flush()?;

        // All keys with the same prefix as the given one.
        let events = db.prefix_iterator(42u64.to_be_bytes()).count();
        println!("events of user 42: {events}");
        assert_eq!(events, 3);

        // Users without events need no read: the table's filter lacks their prefix.
        let none = (1..1000u64).step_by(2).map(|user| db.prefix_iterator(user.to_be_bytes()).count()).sum::<usize>();
        let kept_off = options.get_ticker_count(Ticker::NonLastLevelSeekFiltered);
        println!("events of 500 users that have none: {none}; {kept_off} seeks read nothing");
        assert!(none == 0 && kept_off > 450);

        // A scan over several users needs all keys in order.
        let mut all = ReadOptions::default();
        all.set_total_order_seek(true);
        all.set_iterate_upper_bound(20u64.to_be_bytes());
        let from = 10u64.to_be_bytes();
        let several = db.iterator_opt(IteratorMode::From(&from, Direction::Forward), all).count();
        println!("events of users 10 to 19: {several}");
        assert_eq!(several, 15);
    }
    Ok(())
}
