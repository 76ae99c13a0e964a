//! The SST-Map: which blocks of which tables a part of a job reads, in which order, as plain data (Resystance,
//! section IV).
//!
//! It is made from index blocks, and is the input of every engine: each block in it is read exactly once, in this
//! order. Indexes of open tables are in memory. Indexes of tables that are not open, indexes that the block cache has
//! evicted, and the parts of two-level indexes are read for it.

use std::sync::Arc;

use rockmill_format::footer::BlockHandle;

use super::JobHost;
use super::plan::JobPlan;
use super::spec::{JobSpec, Part, SpecFile};
use super::tombstones::Tombstones;
use crate::error::{Error, Result};
use crate::table::BlockAccess;

/// What a part of a job reads.
#[derive(Debug, Clone, Default)]
pub struct SstMap {
    /// Sorted runs, newest first.
    pub runs: Vec<MapRun>,
}

/// One sorted input.
#[derive(Debug, Clone)]
pub struct MapRun {
    /// Level it lies in.
    pub level: usize,
    /// Its tables, by key; none without a block.
    pub files: Vec<MapFile>,
}

/// One table of a run.
#[derive(Debug, Clone)]
pub struct MapFile {
    /// What the spec says of it.
    pub file: Arc<SpecFile>,
    /// Its data blocks, in order. The first may begin before the part, and the last may end after it.
    pub blocks: Vec<BlockHandle>,
}

impl MapFile {
    /// Offset after the last block and its trailer.
    pub fn end(&self) -> u64 {
        self.blocks.last().map_or(0, BlockHandle::end)
    }

    /// Bytes of its blocks and their trailers.
    pub fn bytes(&self) -> u64 {
        self.blocks.first().map_or(0, |first| self.end() - first.offset)
    }
}

/// The table of `file` by its data blocks, which are what an SST-Map is made of.
pub(super) fn blocks_of(host: &dyn JobHost, file: &SpecFile) -> Result<BlockAccess> {
    let table = host.open_input(file)?;
    let none = || Error::not_supported(format!("{}: has no data blocks that could be merged", table.path().display()));
    table.block_access().ok_or_else(none)
}

impl SstMap {
    /// What `part` of `plan` reads, from the spec or from the inputs' indexes.
    ///
    /// # Errors
    /// A table that cannot be opened, or whose index cannot be read again (`cache_index_and_filter_blocks`).
    pub(crate) fn new(plan: &JobPlan, part: &Part, host: &dyn JobHost) -> Result<Self> {
        let (cmp, begin, end) = (&plan.rules.cmp, part.begin.as_deref(), part.end.as_deref());
        let mut runs = Vec::with_capacity(plan.runs.len());
        for run in &plan.runs {
            let mut files = Vec::new();
            for file in &run.files {
                let outside = begin.is_some_and(|b| cmp.compare_user(file.largest_user_key(), b).is_lt())
                    || end.is_some_and(|e| cmp.compare_user(file.smallest_user_key(), e).is_ge());
                if outside {
                    continue;
                }
                let blocks = match &part.blocks {
                    Some(known) => known.get(&file.number()).cloned().unwrap_or_default(),
                    None => blocks_of(host, file)?.blocks_between(begin, end)?,
                };
                if !blocks.is_empty() {
                    files.push(MapFile { file: Arc::clone(file), blocks });
                }
            }
            runs.push(MapRun { level: run.level, files });
        }
        Ok(Self { runs })
    }

    /// Number of blocks.
    pub fn blocks(&self) -> u64 {
        self.files().map(|f| f.blocks.len() as u64).sum()
    }

    /// Bytes of all blocks and their trailers.
    pub fn bytes(&self) -> u64 {
        self.files().map(MapFile::bytes).sum()
    }

    fn files(&self) -> impl Iterator<Item = &MapFile> {
        self.runs.iter().flat_map(|r| &r.files)
    }
}

impl JobSpec {
    /// Decides on the parts, and looks up in the inputs' indexes which blocks each part reads, unless it reads entry by
    /// entry. A runner on another machine then reads no index.
    ///
    /// # Errors
    /// A table that cannot be opened.
    #[cfg_attr(not(test), expect(dead_code, reason = "for hosts elsewhere; the store's own runner looks it up itself"))]
    pub(crate) fn lay_out(&mut self, host: &dyn JobHost) -> Result<()> {
        let mut plan = JobPlan::new(self, host)?;
        Tombstones::gather(&mut plan, host)?;
        plan.split(self.parts_max, host)?;
        if !plan.by_entries {
            let maps = plan.parts.iter().map(|part| SstMap::new(&plan, part, host)).collect::<Result<Vec<_>>>()?;
            for (part, map) in plan.parts.iter_mut().zip(maps) {
                let files = map.runs.into_iter().flat_map(|run| run.files);
                part.blocks = Some(files.map(|f| (f.file.number(), f.blocks)).collect());
            }
        }
        self.parts = plan.parts;
        Ok(())
    }
}
