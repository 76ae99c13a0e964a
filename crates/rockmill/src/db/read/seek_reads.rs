//! The blocks that the runs of one seek need, read together through a ring that the thread borrows: the seek waits for
//! the slowest of them instead of for all in turn.

use std::sync::Arc;

use rockmill_io::ring::{ReadOptions as StreamOptions, ReadPlan, Span};

use crate::compaction::{LOOKUP_MEMORY, MergeEngine};
use crate::db::read::tables::CfTables;
use crate::db::{DbInner, ReadOptions};
use crate::iter::seek_reads::{BlockReader, SeekReads, WantedBlock};
use crate::perf_context::{self as perf, PerfMetric};
use crate::statistics::{Histogram, MaybeStatistics};

impl DbInner {
    /// For an iterator over `tables`; `None` if its seeks read one block after another. With the page cache that is as
    /// fast, unless the user asks for `async_io`; and with `readahead`, reads are not of single blocks.
    pub(crate) fn seek_reads(&self, tables: &Arc<CfTables>, options: &ReadOptions) -> Option<SeekReads> {
        let table = options.table();
        let wanted = (self.opts.use_direct_reads || table.async_io) && table.readahead == 0 && !table.cache_only;
        let together = wanted && self.live().merge_engine != MergeEngine::Pread;
        together.then(|| SeekReads::new(Arc::clone(tables) as Arc<dyn BlockReader>))
    }
}

impl BlockReader for CfTables {
    fn read_together(&self, wanted: &[WantedBlock]) -> Option<Vec<Vec<u8>>> {
        let db = self.db();
        let io = db.engines.lookups.lend(&db.opts.fs, &db.opts.clock)?;
        let mut plan = ReadPlan::new();
        let mut spans = Vec::with_capacity(wanted.len());
        for block in wanted {
            let file = plan.add_file(Arc::clone(&block.file), &block.path);
            spans.push(Span { file, offset: block.offset, len: u32::try_from(block.len).ok()? });
        }
        let run = plan.add_run(spans);
        let statistics = &db.opts.statistics;
        let began = statistics.start_now();
        let timer = perf::time(PerfMetric::BlockReadTime);
        let users_began = db.pacing.read_protection().read_begins();
        let mut all = Vec::with_capacity(wanted.len());
        // A block that fails, and those after it, are read again by the runs that need them, which then report the
        // error.
        let options = StreamOptions { depth: wanted.len(), memory_bytes: LOOKUP_MEMORY, throttle: None };
        if let Ok(mut stream) = io.read(plan, options) {
            while let Ok(Some(window)) = stream.next(run) {
                all.push(window.to_vec());
            }
        }
        db.pacing.read_protection().read_ends(users_began);
        drop(timer);
        for block in &all {
            perf::count(PerfMetric::BlockReadCount, 1);
            perf::count(PerfMetric::BlockReadByte, block.len() as u64);
            for histogram in
                [Histogram::SstReadMicros, Histogram::FileReadDbIteratorMicros, Histogram::ReadBlockGetMicros]
            {
                statistics.stop_now(histogram, began);
            }
        }
        Some(all)
    }
}
