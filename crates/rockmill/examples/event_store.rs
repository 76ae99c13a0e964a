//! An event store: events of many sources in time order, read by source and time, deleted after a week. The end of the
//! run shortens the week to two seconds, to show how events expire.
//!
//! Run with `cargo run --locked -p rockmill --example event_store`.

use std::path::Path;
use std::time::Duration;

use rockmill::{Db, Direction, IteratorMode, Options, ReadOptions, Result, WriteBatch};

/// How long events are kept. Compactions drop older ones, so an event may be found a little longer.
const KEPT: Duration = Duration::from_secs(7 * 24 * 3600);

struct EventStore {
    db: Db,
}

/// Source, a zero byte, time, and a number that distinguishes events of the same moment. Numbers are big-endian, so
/// that keys are in time order. The source must not contain a zero byte.
fn key(source: &str, millis: u64, number: u32) -> Vec<u8> {
    let mut key = Vec::with_capacity(source.len() + 13);
    key.extend_from_slice(source.as_bytes());
    key.push(0);
    key.extend_from_slice(&millis.to_be_bytes());
    key.extend_from_slice(&number.to_be_bytes());
    key
}

impl EventStore {
    fn open(path: &Path) -> Result<Self> {
        let mut options = Options::default();
        options.create_if_missing(true);
        // Always open it this way: each value is followed by its time of writing.
        Ok(Self { db: Db::open_with_ttl(&options, path, KEPT)? })
    }

    /// Adds events of one source atomically.
    fn add(&self, source: &str, millis: u64, events: &[&str]) -> Result<()> {
        let mut batch = WriteBatch::new();
        for (number, event) in events.iter().enumerate() {
            batch.put(key(source, millis, number as u32), event);
        }
        self.db.write(&batch)
    }

    /// Events of a source in a time range; `to` is excluded.
    fn between(&self, source: &str, from: u64, to: u64) -> Result<Vec<(u64, String)>> {
        let mut options = ReadOptions::default();
        options.set_iterate_upper_bound(key(source, to, 0));
        let from = key(source, from, 0);
        let mut found = Vec::new();
        for entry in self.db.iterator_opt(IteratorMode::From(&from, Direction::Forward), options) {
            let (key, event) = entry?;
            let time = key.get(source.len() + 1..source.len() + 9).and_then(|t| t.try_into().ok());
            found.push((time.map_or(0, u64::from_be_bytes), String::from_utf8_lossy(&event).into_owned()));
        }
        Ok(found)
    }

    /// The newest event of a source.
    fn last(&self, source: &str) -> Result<Option<String>> {
        let mut options = ReadOptions::default();
        options.set_iterate_lower_bound(key(source, 0, 0));
        let end = key(source, u64::MAX, u32::MAX);
        let newest = self.db.iterator_opt(IteratorMode::From(&end, Direction::Reverse), options).next();
        newest.transpose().map(|found| found.map(|(_, event)| String::from_utf8_lossy(&event).into_owned()))
    }
}

fn main() -> Result<()> {
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let store = EventStore::open(&scratch.path().join("events"))?;
    store.add("door", 1000, &["opened", "closed"])?;
    store.add("lamp", 1500, &["on"])?;
    store.add("door", 2000, &["opened"])?;
    store.add("door2", 1000, &["opened"])?;

    let morning = store.between("door", 0, 2000)?;
    println!("the door until 2000: {morning:?}");
    assert_eq!(morning, [(1000, "opened".to_owned()), (1000, "closed".to_owned())]);
    assert_eq!(store.between("door", 2000, 3000)?, [(2000, "opened".to_owned())]);
    assert_eq!(store.last("lamp")?.as_deref(), Some("on"));
    assert_eq!(store.last("door")?.as_deref(), Some("opened"));
    assert_eq!(store.last("roof")?, None);

    let kept = Duration::from_secs(2);
    store.db.set_ttl(kept)?;
    // Times are in whole seconds, and an event is dropped when it is older than `kept`.
    std::thread::sleep(kept + Duration::from_millis(1100));
    store.add("door", 9000, &["locked"])?;
    // Compactions run when the tree needs them. This one does not wait for that.
    store.db.compact_range(None::<&[u8]>, None::<&[u8]>)?;
    let left = store.between("door", 0, 10_000)?;
    println!("the door after {kept:?}: {left:?}");
    assert_eq!(left, [(9000, "locked".to_owned())], "old events are gone, new ones are there");
    assert_eq!((store.last("lamp")?, store.last("door2")?), (None, None));
    Ok(())
}
