//! A database with two column families, and writers whose batches are in both.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rockmill::{ColumnFamilyDescriptor, Db, Options, WriteBatch};

pub fn options() -> Options {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.create_missing_column_families(true);
    options
}

/// Small memtables and tables, and recycled WALs.
pub fn busy_options() -> Options {
    let mut options = options();
    options.set_write_buffer_size(64 << 10);
    options.set_target_file_size_base(32 << 10);
    options.set_recycle_log_file_num(2);
    options
}

pub fn open(options: &Options, path: &Path) -> Db {
    let families = ["default", "other"].map(|n| ColumnFamilyDescriptor::new(n, options.clone()));
    Db::open_cf_descriptors(options, path, families).unwrap()
}

/// Runs `work` while three writers write. Each batch writes its number to its own key and to a key of the other column
/// family. The argument of `work` returns the number of acknowledged batches of each writer.
pub fn beside_writers(db: &Db, work: impl FnOnce(&dyn Fn() -> Vec<u64>)) {
    let stop = AtomicBool::new(false);
    let acknowledged = [const { AtomicU64::new(0) }; 3];
    std::thread::scope(|scope| {
        for (w, done) in acknowledged.iter().enumerate() {
            let stop = &stop;
            scope.spawn(move || {
                let other = db.cf_handle("other").unwrap();
                for n in 1..=100_000u64 {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let mut batch = WriteBatch::default();
                    batch.put(format!("w{w}-{n:08}"), [b'x'; 100]);
                    batch.put_cf(&other, format!("last{w}"), format!("{n:08}"));
                    db.write(&batch).unwrap();
                    done.store(n, Ordering::Release);
                }
            });
        }
        work(&|| acknowledged.iter().map(|a| a.load(Ordering::Acquire)).collect());
        stop.store(true, Ordering::Relaxed);
    });
}
