//! What the ring reads ahead for runs that are merged entry by entry (`scan_run.rs`): every file of every table, TPH
//! tables' further files included.
//!
//! A scan of a TPH table goes through all of its files at once. So each file of a table that is being scanned needs its
//! own reads in flight: a *lane* of the read plan. A run has as many lanes as its table with the most files has files,
//! and its tables use them one after the other; the ring reads the next table's files while the previous one is merged.
//! Only blocks that may have live entries are read: those within the part, and within the bounds that the table's head
//! gives the file. Neighbours are read together, in spans of about 256 KiB, or smaller ones where many lanes share the
//! memory.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::Path;
use std::sync::Arc;

use rockmill_format::block::BlockLayout;
use rockmill_format::footer::{BLOCK_TRAILER_LEN, BlockHandle};
use rockmill_io::ring::{BatchIo, ReadPlan, ReadStream, Span, Window};

use super::ring_feed::{begin, failed, spans_of};
use super::scan_run::in_part;
use crate::compaction::plan::JobPlan;
use crate::compaction::spec::Part;
use crate::compaction::{JobHost, page_cache};
use crate::error::{Error, Result};
use crate::sync::Mutex;
use crate::table::{BlockBasedTable, ScanFile, Source, StreamSource, TableIndex};

/// The reads of a part.
pub(in crate::compaction) struct RingReads {
    stream: Arc<Mutex<ReadStream>>,
    /// By number, until their scans begin.
    tables: Mutex<HashMap<u64, ScanLanes>>,
}

/// What is read of a table.
pub(super) struct ScanLanes {
    /// The lane of its own file.
    pub first: usize,
    /// What its files are in the read plan.
    pub numbers: Vec<u32>,
    /// Its files, with the indexes that said which of their blocks to read.
    pub files: Vec<ScanFile>,
}

/// How many lanes a part's reads take.
pub(in crate::compaction) fn lanes(plan: &JobPlan, part: &Part) -> usize {
    let of_run = |run| in_part(run, plan, part).map(|file| file.entry.files().count()).max().unwrap_or(0);
    plan.runs.iter().map(of_run).sum()
}

impl RingReads {
    /// Begins to read what a part of a job needs of its inputs.
    pub fn begin(plan: &JobPlan, part: &Part, io: &BatchIo, host: &dyn JobHost) -> Result<Self> {
        let span_bytes = io.span_bytes(host.device().as_ref(), lanes(plan, part));
        let (mut reads, mut tables, mut numbers) = (ReadPlan::new(), HashMap::new(), HashMap::new());
        let mut first = 0;
        for run in &plan.runs {
            let mut lanes: Vec<Vec<Span>> = Vec::new();
            for file in in_part(run, plan, part) {
                let table = host.open_input(file)?;
                let files = table.scan_files(part.begin.as_deref(), part.end.as_deref())?;
                let mut of_table = ScanLanes { first, numbers: Vec::with_capacity(files.len()), files };
                lanes.resize_with(lanes.len().max(of_table.files.len()), Vec::new);
                for ((scanned, known), lane) in of_table.files.iter().zip(file.entry.files()).zip(&mut lanes) {
                    let (table, path) = (&scanned.table, scanned.table.path());
                    // Several tables may share it.
                    let number = match numbers.entry(known.number) {
                        Entry::Occupied(number) => *number.get(),
                        Entry::Vacant(new) => {
                            let direct = !page_cache::has_input(&host.means().db, table.table(), known.size);
                            *new.insert(reads.add_file(host.input_bytes(file, path, direct)?, path))
                        }
                    };
                    lane.extend(spans_of(number, &table.handles_of(scanned.blocks.clone())?, span_bytes, path)?);
                    of_table.numbers.push(number);
                }
                tables.insert(file.number(), of_table);
            }
            first += lanes.len();
            for lane in lanes {
                reads.add_run(lane);
            }
        }
        Ok(Self { stream: Arc::new(Mutex::new(begin(reads, io, host)?)), tables: Mutex::new(tables) })
    }

    /// What is read of a table, whose scan begins. A part scans each table once.
    pub(super) fn take(&self, table: u64, path: &Path) -> Result<ScanLanes> {
        let taken = self.tables.lock().remove(&table);
        taken.ok_or_else(|| Error::corruption("no reads were begun for the table").context(path.display()))
    }

    /// The blocks that a lane has of file `number` of the read plan, up to the one of number `end`.
    pub(super) fn blocks(&self, lane: usize, number: u32, end: usize) -> RingBlocks {
        RingBlocks {
            stream: Arc::clone(&self.stream),
            lane,
            number,
            end,
            window: None,
            place: None,
            scratch: Vec::new(),
            bytes_read: 0,
        }
    }
}

/// The blocks of one file, out of its lane's windows.
pub(super) struct RingBlocks {
    stream: Arc<Mutex<ReadStream>>,
    lane: usize,
    /// The file in the read plan.
    number: u32,
    end: usize,
    window: Option<Window>,
    /// Where the current block's contents are in the window; `None` when they are in `scratch`.
    place: Option<(usize, usize)>,
    scratch: Vec<u8>,
    bytes_read: u64,
}

impl RingBlocks {
    /// The block's place in the window, if it is all there.
    fn find(&self, handle: BlockHandle, len: usize) -> Option<usize> {
        let span = self.window.as_ref()?.span();
        let start = usize::try_from(handle.offset.checked_sub(span.offset)?).ok()?;
        (span.file == self.number && start + len <= span.len as usize).then_some(start)
    }

    /// Takes windows until the block is in one.
    fn read(&mut self, table: &BlockBasedTable, handle: BlockHandle, len: usize) -> Result<usize> {
        loop {
            self.window = None;
            let began = table.compaction_read_begins();
            let window = self.stream.lock().next(self.lane).map_err(|e| failed(&e))?;
            let Some(window) = window else {
                let lost = Error::corruption("a block is in no window that was read for it");
                return Err(lost.context(table.path().display()));
            };
            table.compaction_read_ends(began, window.len());
            self.bytes_read += window.len() as u64;
            self.window = Some(window);
            if let Some(start) = self.find(handle, len) {
                return Ok(start);
            }
        }
    }
}

impl Source for RingBlocks {
    fn load(&mut self, table: &BlockBasedTable, index: &TableIndex, at: usize) -> Result<BlockLayout> {
        let handle = index.handle(at);
        let len = handle.size as usize + BLOCK_TRAILER_LEN;
        self.place = None;
        let start = match self.find(handle, len) {
            Some(start) => start,
            None => self.read(table, handle, len)?,
        };
        let raw = self.window.as_ref().and_then(|w| w.get(start..start + len)).unwrap_or(&[]);
        let plain = table.check_block(handle, raw, &mut self.scratch)?;
        self.place = plain.then_some((start, start + handle.size as usize));
        BlockLayout::parse(self.data()).map_err(|e| table.block_error(handle, &e))
    }

    #[inline]
    fn data(&self) -> &[u8] {
        match (&self.window, self.place) {
            (Some(window), Some((start, end))) => window.get(start..end).unwrap_or(&[]),
            _ => &self.scratch,
        }
    }

    fn meta_from(&self) -> (bool, bool) {
        (false, false)
    }

    #[inline]
    fn end(&self) -> usize {
        self.end
    }
}

impl StreamSource for RingBlocks {
    fn bytes_read(&self) -> u64 {
        self.bytes_read
    }
}
