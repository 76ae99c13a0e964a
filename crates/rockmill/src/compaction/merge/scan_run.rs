//! A run of tables of any kind, entry by entry. Blocks come from a ring if there is one (`ring_scan.rs`), otherwise
//! from plain calls.

use std::path::Path;
use std::sync::Arc;

use rockmill_format::key::InternalKey;

use super::Run;
use super::ring_scan::{RingReads, ScanLanes};
use crate::compaction::JobHost;
use crate::compaction::plan::JobPlan;
use crate::compaction::spec::{Part, SpecFile, SpecRun};
use crate::error::Result;
use crate::sync::atomic::Ordering;
use crate::table::{BlockStream, Leaves, Origin, ScanFile, TableScan};

/// The files of a run that a part reads, one after the other.
pub(in crate::compaction) struct ScanRun<'a> {
    host: &'a dyn JobHost,
    plan: &'a JobPlan,
    part: &'a Part,
    ring: Option<&'a RingReads>,
    /// Those that come, the next one last.
    files: Vec<&'a Arc<SpecFile>>,
    scan: Option<Box<dyn TableScan>>,
    /// It stands on an entry.
    valid: bool,
    /// How many of its bytes are in the job's progress.
    counted: u64,
    steps: u32,
}

/// The least that a run reads ahead, however many runs there are; less only if `compaction_readahead_size` is.
const READAHEAD_MIN: usize = 256 << 10;

/// Entries between two looks at how much was read.
const PROGRESS_STEPS: u32 = 256;

/// The files of a run that a part reads, in order.
pub(super) fn in_part<'a>(
    run: &'a SpecRun,
    plan: &'a JobPlan,
    part: &'a Part,
) -> impl DoubleEndedIterator<Item = &'a Arc<SpecFile>> {
    let cmp = &plan.rules.cmp;
    let before = move |file: &SpecFile| {
        part.begin.as_ref().is_some_and(|b| cmp.compare_user(file.largest_user_key(), b).is_lt())
    };
    let behind =
        move |file: &SpecFile| part.end.as_ref().is_some_and(|e| cmp.compare_user(file.smallest_user_key(), e).is_ge());
    run.files.iter().filter(move |file| !before(file) && !behind(file))
}

impl<'a> ScanRun<'a> {
    pub fn new(
        run: &'a SpecRun,
        plan: &'a JobPlan,
        part: &'a Part,
        host: &'a dyn JobHost,
        ring: Option<&'a RingReads>,
    ) -> Result<Self> {
        let files = in_part(run, plan, part).rev().collect();
        let mut new = Self { host, plan, part, ring, files, scan: None, valid: false, counted: 0, steps: 0 };
        new.next_file()?;
        Ok(new)
    }

    /// To the first entry of the next file that has any.
    fn next_file(&mut self) -> Result<()> {
        while let Some(file) = self.files.pop() {
            self.count();
            let db = &self.host.means().db;
            let table = self.host.open_input(file)?;
            let numbers: Vec<u64> = file.entry.files().map(|f| f.number).collect();
            let place = |i: usize| numbers.get(i).and_then(|&number| self.plan.place_of(file.number(), number));
            let mut scan = match self.ring {
                Some(ring) => {
                    let ScanLanes { first, numbers, files } = ring.take(file.number(), table.path())?;
                    let number = |i: usize| numbers.get(i).copied().unwrap_or(u32::MAX);
                    let blocks = |i: usize, file: &ScanFile| ring.blocks(first + i, number(i), file.blocks.end);
                    table.scan_from(files, blocks, &place)
                }
                None => {
                    let files = table.scan_files(self.part.begin.as_deref(), self.part.end.as_deref())?;
                    // Together, all runs and their files use no more memory than a few runs of other jobs.
                    let readahead = (db.compaction_readahead_size / self.plan.runs.len().max(1)).max(READAHEAD_MIN);
                    let readahead = readahead.min(db.compaction_readahead_size);
                    let reads = self.host.means().reads(readahead).shared_by(files.len());
                    table.scan_from(files, |_, file| BlockStream::of_file(&reads, file), &place)
                }
            };
            match self.part.begin.as_deref().map(InternalKey::min_possible) {
                Some(begin) => scan.seek(begin.as_bytes()),
                None => scan.seek_to_first(),
            }
            scan.status()?;
            self.counted = 0;
            self.valid = scan.valid();
            self.scan = Some(scan);
            if self.valid {
                return Ok(());
            }
        }
        self.count();
        self.scan = None;
        Ok(())
    }

    fn count(&mut self) {
        let Some(read) = self.scan.as_ref().map(|s| s.bytes_read()) else { return };
        self.host.progress().bytes.fetch_add(read.saturating_sub(self.counted), Ordering::Relaxed);
        self.counted = read;
    }
}

impl Run for ScanRun<'_> {
    #[inline]
    fn valid(&self) -> bool {
        self.valid
    }

    fn advance(&mut self) -> Result<()> {
        let Some(scan) = &mut self.scan else { return Ok(()) };
        scan.next();
        self.valid = scan.valid();
        if self.valid {
            self.steps = self.steps.wrapping_add(1);
            if self.steps.is_multiple_of(PROGRESS_STEPS) {
                self.count();
            }
            return Ok(());
        }
        scan.status()?;
        self.next_file()
    }

    fn key(&self) -> &[u8] {
        self.scan.as_ref().map_or(&[], |s| s.key())
    }

    fn value(&self) -> &[u8] {
        self.scan.as_ref().map_or(&[], |s| s.value())
    }

    fn value_len(&self) -> usize {
        self.scan.as_ref().map_or(0, |s| s.value_len())
    }

    fn origin(&self) -> Option<Origin> {
        self.scan.as_ref()?.origin()
    }

    fn leaves(&self) -> Leaves {
        self.scan.as_ref().map_or(Leaves::Nothing, |s| s.leaves())
    }

    fn file(&self) -> Option<&Path> {
        self.scan.as_ref().and_then(|s| s.file())
    }
}
