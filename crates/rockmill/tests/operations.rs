//! What users see of a running store: statistics, perf context, listeners, the info log, properties, sizes.

mod oracle;

#[path = "operations/compared.rs"]
mod compared;
#[path = "operations/composed.rs"]
mod composed;
#[path = "operations/extra_runs.rs"]
mod extra_runs;
#[path = "operations/handles.rs"]
mod handles;
#[path = "operations/info_log.rs"]
mod info_log;
#[path = "operations/listener.rs"]
mod listener;
#[path = "operations/lost_manifest.rs"]
mod lost_manifest;
#[path = "operations/multi_get.rs"]
mod multi_get;
#[path = "operations/numbers.rs"]
mod numbers;
#[path = "operations/ordered_commit.rs"]
mod ordered_commit;
#[path = "operations/pieces.rs"]
mod pieces;
#[path = "operations/seek_reads.rs"]
mod seek_reads;
#[path = "operations/strategies.rs"]
mod strategies;

use std::path::Path;
use std::sync::Arc;

use rockmill::{CompressionType, Options};
use rockmill_io::MemFileSystem;

/// Options of a small database in memory.
fn in_memory() -> (Options, MemFileSystem) {
    let fs = MemFileSystem::default();
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_file_system(Arc::new(fs.clone()));
    options.set_compression_type(CompressionType::None);
    (options, fs)
}

fn path() -> &'static Path {
    Path::new("/db")
}
