//! Reads the first blocks of a seek together: a seek goes to every sorted run, and the blocks that different runs need
//! do not depend on each other.
//!
//! 1. Each run seeks (`InternalIterator::seek_together`). A run that finds its block in memory is done, without further
//!    cost; a run that has to read a block tells which one.
//! 2. If several runs need blocks, these are read at once.
//! 3. These runs seek again, and take their blocks from here.
//!
//! A run reads its block itself if it is the only one, if there is no ring, or if the joint read failed.

use std::path::PathBuf;
use std::sync::Arc;

use rockmill_io::RandomAccessFile;

/// Bytes of a file to read: a block, perhaps with neighbouring blocks.
#[derive(Debug, Clone)]
pub(crate) struct WantedBlock {
    pub file: Arc<dyn RandomAccessFile>,
    pub path: PathBuf,
    pub offset: u64,
    /// With the trailer.
    pub len: usize,
    /// The file may be longer than when it was opened.
    pub grows: bool,
}

/// Who reads blocks together.
pub(crate) trait BlockReader: Send + Sync {
    /// The bytes of each of `wanted`, up to the first that cannot be read; `None` if they cannot be read together.
    fn read_together(&self, wanted: &[WantedBlock]) -> Option<Vec<Vec<u8>>>;
}

/// See the module's text.
pub struct SeekReads {
    reader: Arc<dyn BlockReader>,
    wanted: Vec<WantedBlock>,
    arrived: Vec<Vec<u8>>,
    asking: bool,
}

impl SeekReads {
    /// Makes the reads of one iterator, through `reader`.
    pub(crate) fn new(reader: Arc<dyn BlockReader>) -> Self {
        Self { reader, wanted: Vec::new(), arrived: Vec::new(), asking: false }
    }

    /// A seek begins.
    #[inline]
    pub fn begin(&mut self) {
        self.asking = true;
    }

    /// True before the blocks are read: runs should ask for missing blocks.
    #[inline]
    pub fn is_asking(&self) -> bool {
        self.asking
    }

    /// Number of blocks requested in this seek. An iterator that requested blocks is on no entry, has no error, and
    /// seeks again.
    #[inline]
    pub fn asked(&self) -> usize {
        self.wanted.len()
    }

    /// Requests a block; returns its number for [`Self::take`].
    pub(crate) fn ask(&mut self, block: WantedBlock) -> usize {
        self.wanted.push(block);
        self.wanted.len() - 1
    }

    /// Reads what was asked for.
    pub fn read(&mut self) {
        self.asking = false;
        if self.wanted.len() > 1 {
            self.arrived = self.reader.read_together(&self.wanted).unwrap_or_default();
        }
    }

    /// The bytes of a requested block, if they were read.
    pub fn take(&mut self, number: usize) -> Option<Vec<u8>> {
        self.arrived.get_mut(number).map(std::mem::take).filter(|bytes| !bytes.is_empty())
    }

    /// Ends the seek, and drops everything of it.
    pub fn end(&mut self) {
        self.wanted.clear();
        self.arrived.clear();
    }
}
