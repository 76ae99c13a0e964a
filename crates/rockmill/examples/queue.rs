//! A queue on the disk: first in, first out. Jobs survive a crash; a job that was taken and not finished is returned
//! again.
//!
//! Run with `cargo run --locked -p rockmill --example queue`.

use std::path::Path;
use std::sync::Mutex;

use rockmill::{Db, Direction, IteratorMode, Options, ReadOptions, Result};

struct Queue {
    db: Db,
    /// The next number for `put`.
    tail: Mutex<u64>,
    /// The next number for `take`. After a crash, all remaining jobs are taken again.
    head: Mutex<u64>,
}

impl Queue {
    fn open(path: &Path) -> Result<Self> {
        let mut options = Options::default();
        options.create_if_missing(true);
        let db = Db::open(&options, path)?;
        let number = |mode| -> Result<Option<u64>> {
            let entry = db.iterator(mode).next().transpose()?;
            Ok(entry.and_then(|(key, _)| key.as_ref().try_into().ok()).map(u64::from_be_bytes))
        };
        let (first, last) = (number(IteratorMode::Start)?, number(IteratorMode::End)?);
        let (head, tail) = (first.unwrap_or(0), last.map_or(0, |n| n + 1));
        Ok(Self { db, tail: Mutex::new(tail), head: Mutex::new(head) })
    }

    /// Puts a job at the end of the queue.
    fn put(&self, job: &str) -> Result<()> {
        // Keep the lock until the job is written: otherwise a later number could be visible first, and this one be
        // skipped.
        let mut tail = self.tail.lock().expect("nobody panicked");
        self.db.put(tail.to_be_bytes(), job)?;
        *tail += 1;
        Ok(())
    }

    /// Takes the first job, together with its number for `done`.
    fn take(&self) -> Result<Option<(u64, String)>> {
        let mut next = self.head.lock().expect("nobody panicked");
        let head = next.to_be_bytes();
        // Start at the head: the iterator then skips no tombstones of finished jobs.
        let mut options = ReadOptions::default();
        options.set_iterate_lower_bound(head);
        let Some(entry) = self.db.iterator_opt(IteratorMode::From(&head, Direction::Forward), options).next() else {
            return Ok(None);
        };
        let (key, job) = entry?;
        let number = key.as_ref().try_into().map_or(0, u64::from_be_bytes);
        *next = number + 1;
        Ok(Some((number, String::from_utf8_lossy(&job).into_owned())))
    }

    /// Marks a job as done, so that it is not returned again.
    fn done(&self, number: u64) -> Result<()> {
        // Each key is put once before it is deleted: this tombstone is dropped as soon as a compaction meets its key,
        // even above the deepest level.
        self.db.single_delete(number.to_be_bytes())
    }
}

fn main() -> Result<()> {
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let path = scratch.path().join("queue");
    let queue = Queue::open(&path)?;
    for job in ["wash", "dry", "fold"] {
        queue.put(job)?;
    }
    let (first, job) = queue.take()?.expect("three jobs");
    assert_eq!(job, "wash");
    queue.done(first)?;
    // This one is taken and never finished.
    assert_eq!(queue.take()?.expect("two jobs").1, "dry");
    drop(queue);

    let queue = Queue::open(&path)?;
    queue.put("iron")?;
    let mut jobs = Vec::new();
    while let Some((number, job)) = queue.take()? {
        queue.done(number)?;
        jobs.push(job);
    }
    println!("after a restart: {jobs:?}");
    assert_eq!(jobs, ["dry", "fold", "iron"]);
    drop(queue);
    assert!(Queue::open(&path)?.take()?.is_none());
    Ok(())
}
