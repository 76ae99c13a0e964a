//! Sessions that expire: a filter deletes them during compactions, and shortens long entries.
//!
//! Run with `cargo run -p rockmill --example compaction_filter`.

use rockmill::{
    CompactionDecision, CompactionFilter, CompactionFilterContext, CompactionFilterFactory, Db, Options, Result,
};

/// One is created for each part of a compaction, so it can keep state without a lock.
struct Cleaner {
    dropped: u64,
}

impl CompactionFilter for Cleaner {
    fn filter(&mut self, _level: u32, _key: &[u8], value: &[u8]) -> CompactionDecision {
        match value {
            b"logged out" => {
                self.dropped += 1;
                CompactionDecision::Remove
            }
            long if long.len() > 20 => CompactionDecision::Change(long[..20].to_vec()),
            _ => CompactionDecision::Keep,
        }
    }

    fn name(&self) -> &str {
        "session cleaner"
    }
}

impl Drop for Cleaner {
    fn drop(&mut self) {
        println!("a compaction dropped {} sessions", self.dropped);
    }
}

struct Cleaners;

impl CompactionFilterFactory for Cleaners {
    type Filter = Cleaner;

    fn create(&mut self, context: CompactionFilterContext) -> Cleaner {
        println!("filtering from level {:?}, manual: {}", context.input_start_level, context.is_manual_compaction);
        Cleaner { dropped: 0 }
    }

    fn name(&self) -> &str {
        "session cleaners"
    }
}

fn main() -> Result<()> {
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let path = scratch.path().join("db");
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_compaction_filter_factory(Cleaners);
    // Without this, a table that is not compacted for other reasons would be filtered only once in 30 days.
    options.set_periodic_compaction_seconds(24 * 60 * 60);
    {
        let db = Db::open(&options, &path)?;
        db.put("alice", "logged in")?;
        db.put("bob", "logged out")?;
        db.put("carol", "logged in from a rather long address")?;
        db.compact_range(None::<&[u8]>, None::<&[u8]>)?;
        assert_eq!(db.get("alice")?.as_deref(), Some(&b"logged in"[..]));
        assert_eq!(db.get("bob")?, None);
        assert_eq!(db.get("carol")?.as_deref(), Some(&b"logged in from a rat"[..]));
    }
    Db::destroy(&options, &path)
}
