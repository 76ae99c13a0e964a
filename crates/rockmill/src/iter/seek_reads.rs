//! The first blocks that a seek reads, read together: a seek goes to every sorted run, and what one run has to read
//! does not depend on what another has.
//!
//! 1. Each run seeks (`InternalIterator::seek_together`). One that finds its block in memory is done, at no further
//!    cost; one that has to read a block says which.
//! 2. Where several did, their blocks are read at once.
//! 3. Those seek again, and take their blocks from here.
//!
//! A block that is not here, its run reads for itself: where it is the only one, where there is no ring, and where a
//! read failed.

use std::path::PathBuf;
use std::sync::Arc;

use rockmill_io::RandomAccessFile;

/// Bytes of a file that somebody should read: a block, perhaps with others behind or in front of it.
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
    /// The bytes of each of `wanted`, up to the first that cannot be read; `None` where they cannot be had together.
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
    /// Those of one iterator, read by `reader`.
    pub(crate) fn new(reader: Arc<dyn BlockReader>) -> Self {
        Self { reader, wanted: Vec::new(), arrived: Vec::new(), asking: false }
    }

    /// A seek begins.
    #[inline]
    pub fn begin(&mut self) {
        self.asking = true;
    }

    /// True before the blocks are read: one that is missing is to be asked for.
    #[inline]
    pub fn is_asking(&self) -> bool {
        self.asking
    }

    /// Blocks asked for in this seek. Who asked for any stands on no entry and has no error, and seeks again.
    #[inline]
    pub fn asked(&self) -> usize {
        self.wanted.len()
    }

    /// Asks for a block; [`Self::take`] takes the number.
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

    /// The bytes of a block that was asked for, if they are here.
    pub fn take(&mut self, number: usize) -> Option<Vec<u8>> {
        self.arrived.get_mut(number).map(std::mem::take).filter(|bytes| !bytes.is_empty())
    }

    /// The seek is done: nothing of it is kept.
    pub fn end(&mut self) {
        self.wanted.clear();
        self.arrived.clear();
    }
}
