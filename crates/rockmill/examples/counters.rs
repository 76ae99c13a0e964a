//! Counters that several threads increment without reading first and without a lock: the increments are merge operands,
//! and a read returns their sum.
//!
//! Run with `cargo run --locked -p rockmill --example counters`.

use std::path::Path;

use rockmill::{Db, IteratorMode, Options, Result, merge_operator};

struct Counters {
    db: Db,
}

impl Counters {
    fn open(path: &Path) -> Result<Self> {
        let mut options = Options::default();
        options.create_if_missing(true);
        // RocksDB's operator for numbers of eight bytes, little-endian.
        options.set_merge_operator_object(merge_operator::by_name("uint64add").expect("it is built in"));
        Ok(Self { db: Db::open(&options, path)? })
    }

    fn add(&self, name: &str, n: u64) -> Result<()> {
        self.db.merge(name, n.to_le_bytes())
    }

    fn get(&self, name: &str) -> Result<u64> {
        Ok(self.db.get(name)?.map_or(0, |value| number(&value)))
    }

    fn all(&self) -> Result<Vec<(String, u64)>> {
        let mut all = Vec::new();
        for entry in self.db.iterator(IteratorMode::Start) {
            let (name, value) = entry?;
            all.push((String::from_utf8_lossy(&name).into_owned(), number(&value)));
        }
        Ok(all)
    }
}

fn number(value: &[u8]) -> u64 {
    value.try_into().map_or(0, u64::from_le_bytes)
}

fn main() -> Result<()> {
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let path = scratch.path().join("counters");
    let counters = Counters::open(&path)?;
    std::thread::scope(|scope| {
        let add = || (0..1000).try_for_each(|i| counters.add(if i % 10 == 0 { "errors" } else { "requests" }, 1));
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(add)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })?;
    drop(counters);

    let counters = Counters::open(&path)?;
    println!("{:?}", counters.all()?);
    assert_eq!(counters.all()?, [("errors".to_owned(), 400), ("requests".to_owned(), 3600)]);
    assert_eq!(counters.get("nothing")?, 0);
    Ok(())
}
