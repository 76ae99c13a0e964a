//! A run of tables of any kind, entry by entry, in plain calls.

use std::path::Path;
use std::sync::Arc;

use rockmill_format::key::InternalKey;

use super::Run;
use crate::compaction::JobHost;
use crate::compaction::plan::{JobPlan, Part};
use crate::compaction::spec::{SpecFile, SpecRun};
use crate::error::Result;
use crate::sync::atomic::Ordering;
use crate::table::{Leaves, Origin, TableScan};

/// The files of a run that a part reads, one behind the other.
pub(in crate::compaction) struct ScanRun<'a> {
    host: &'a dyn JobHost,
    plan: &'a JobPlan,
    begin: Option<InternalKey>,
    /// Those that come, the next one last.
    files: Vec<&'a Arc<SpecFile>>,
    scan: Option<Box<dyn TableScan>>,
    /// What of its bytes the job's progress has.
    counted: u64,
    steps: u32,
}

/// What a run reads ahead at least, however many there are; less where `compaction_readahead_size` is.
const READAHEAD_MIN: usize = 256 << 10;

/// Entries between two looks at how much was read.
const PROGRESS_STEPS: u32 = 256;

impl<'a> ScanRun<'a> {
    pub fn new(run: &'a SpecRun, plan: &'a JobPlan, part: &Part, host: &'a dyn JobHost) -> Result<Self> {
        let cmp = &plan.rules.cmp;
        let outside = |file: &SpecFile| {
            part.begin.as_ref().is_some_and(|b| cmp.compare_user(file.largest_user_key(), b).is_lt())
                || part.end.as_ref().is_some_and(|e| cmp.compare_user(file.smallest_user_key(), e).is_ge())
        };
        let files = run.files.iter().rev().filter(|file| !outside(file)).collect();
        let begin = part.begin.as_deref().map(InternalKey::min_possible);
        let mut new = Self { host, plan, begin, files, scan: None, counted: 0, steps: 0 };
        new.next_file()?;
        Ok(new)
    }

    /// To the first entry of the next file that has any.
    fn next_file(&mut self) -> Result<()> {
        while let Some(file) = self.files.pop() {
            self.count();
            let db = &self.host.means().db;
            let table = self.host.open_input(file)?;
            let files: Vec<u64> = file.entry.files().map(|f| f.number).collect();
            let place = |i: usize| files.get(i).and_then(|&number| self.plan.place_of(file.number(), number));
            // Together, runs and their files have no more in memory than a few of other jobs.
            let readahead = (db.compaction_readahead_size / self.plan.runs.len().max(1)).max(READAHEAD_MIN);
            let readahead = readahead.min(db.compaction_readahead_size);
            let mut scan = table.scan_keeping(&self.host.means().reads(readahead), &place);
            match &self.begin {
                Some(begin) => scan.seek(begin.as_bytes()),
                None => scan.seek_to_first(),
            }
            scan.status()?;
            self.counted = 0;
            let valid = scan.valid();
            self.scan = Some(scan);
            if valid {
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
    fn valid(&self) -> bool {
        self.scan.as_ref().is_some_and(|s| s.valid())
    }

    fn advance(&mut self) -> Result<()> {
        let Some(scan) = &mut self.scan else { return Ok(()) };
        scan.next();
        if scan.valid() {
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
