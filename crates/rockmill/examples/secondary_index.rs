//! A secondary index: people stored by number and found by city. Each change of a person and of the index is one batch.
//!
//! Run with `cargo run --locked -p rockmill --example secondary_index`.

use std::path::Path;
use std::sync::Mutex;

use rockmill::{ColumnFamily, Db, Options, ReadOptions, Result, WriteBatch};

struct People {
    db: Db,
    /// Number to city.
    people: ColumnFamily,
    /// Key: city, a zero byte, and number; the value is empty. Cities must not contain a zero byte.
    by_city: ColumnFamily,
    /// A change reads the previous city. Two changes at the same time would each remove the same index entry, and one
    /// of the new entries would stay. Programs with many writers use one of several locks, chosen by the key.
    change: Mutex<()>,
}

fn index_key(city: &str, number: u32) -> Vec<u8> {
    [city.as_bytes(), &[0], &number.to_be_bytes()].concat()
}

impl People {
    fn open(path: &Path) -> Result<Self> {
        let mut options = Options::default();
        options.create_if_missing(true);
        options.create_missing_column_families(true);
        let db = Db::open_cf(&options, path, ["default", "people", "by_city"])?;
        let family = |name: &str| db.cf_handle(name).expect("it was opened");
        let (people, by_city) = (family("people"), family("by_city"));
        Ok(Self { db, people, by_city, change: Mutex::new(()) })
    }

    /// Adds a person, or moves them.
    fn set(&self, number: u32, city: &str) -> Result<()> {
        let _one_at_a_time = self.change.lock().expect("nobody panicked");
        let mut batch = WriteBatch::new();
        if let Some(before) = self.db.get_cf(&self.people, number.to_be_bytes())? {
            batch.delete_cf(&self.by_city, index_key(&String::from_utf8_lossy(&before), number));
        }
        batch.put_cf(&self.people, number.to_be_bytes(), city);
        batch.put_cf(&self.by_city, index_key(city, number), "");
        self.db.write(&batch)
    }

    /// Numbers of all people in a city.
    fn of_city(&self, city: &str) -> Result<Vec<u32>> {
        let mut options = ReadOptions::default();
        let prefix = [city.as_bytes(), &[0]].concat();
        options.set_iterate_prefix(prefix.clone());
        let mut found = Vec::new();
        let mut entries = self.db.raw_iterator_cf_opt(&self.by_city, options);
        entries.seek_to_first();
        while let Some(key) = entries.key() {
            let number = key.get(prefix.len()..).and_then(|n| n.try_into().ok());
            found.extend(number.map(u32::from_be_bytes));
            entries.next();
        }
        // The loop also ends at an error.
        entries.status()?;
        Ok(found)
    }
}

fn main() -> Result<()> {
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let people = People::open(&scratch.path().join("people"))?;
    people.set(1, "London")?;
    people.set(2, "New York")?;
    people.set(3, "London")?;
    people.set(4, "London Colney")?;
    println!("in London: {:?}", people.of_city("London")?);
    assert_eq!(people.of_city("London")?, [1, 3]);

    people.set(3, "New York")?;
    assert_eq!(people.of_city("London")?, [1]);
    assert_eq!(people.of_city("New York")?, [2, 3]);
    assert!(people.of_city("Paris")?.is_empty());
    Ok(())
}
