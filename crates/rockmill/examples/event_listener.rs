//! Callbacks for a store's events.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rockmill::event_listener::{CompactionJobInfo, FlushJobInfo};
use rockmill::{Db, EventListener, Options};

#[derive(Clone, Default)]
struct Counts {
    flushes: Arc<AtomicUsize>,
    compactions: Arc<AtomicUsize>,
}

impl EventListener for Counts {
    fn on_flush_completed(&self, info: &FlushJobInfo) {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        println!("flushed {} into {}: {}", info.cf_name, info.file_path.display(), info.flush_reason.name());
    }

    fn on_compaction_completed(&self, info: &CompactionJobInfo) {
        self.compactions.fetch_add(1, Ordering::Relaxed);
        let (from, to) = (info.input_files.len(), info.output_files.len());
        println!("compacted {from} tables into {to} of level {}: {:?}", info.output_level, info.compaction_reason);
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let dir = scratch.path().join("db");
    let counts = Counts::default();
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_disable_auto_compactions(true);
    options.add_event_listener(counts.clone());
    let db = Db::open(&options, &dir)?;
    for round in 0..2 {
        for i in 0..1000 {
            db.put(format!("key{i:05}"), format!("{round}"))?;
        }
        db.flush()?;
    }
    db.compact_range(None::<&[u8]>, None::<&[u8]>)?;
    assert_eq!(counts.flushes.load(Ordering::Relaxed), 2);
    assert!(counts.compactions.load(Ordering::Relaxed) >= 1);
    drop(db);
    Db::destroy(&options, &dir)?;
    Ok(())
}
