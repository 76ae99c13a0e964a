//! Files as sources of log records.

use std::io;
use std::path::Path;

use rockmill_format::checksum::{crc32c_extend, xxh3};
use rockmill_format::log::{BLOCK_SIZE, ReadBlock, block_start};
use rockmill_io::{FileSystem, SequentialFile};

use crate::error::{Error, ErrorKind, Result};

/// Hashes of a log's blocks of 32 KiB, from its beginning: a compact record of what was read, for a later comparison.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BlockHashes {
    hashes: Vec<u64>,
    bytes: u64,
}

impl BlockHashes {
    /// Adds what follows: a block, or less at the end.
    fn add(&mut self, block: &[u8]) {
        if !block.is_empty() {
            debug_assert!(block.len() <= BLOCK_SIZE);
            self.hashes.push(xxh3(block));
            self.bytes += block.len() as u64;
        }
    }

    /// Bytes of all blocks.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Drops everything after the first `end` bytes. `block`: the bytes before `end` in its block.
    pub fn cut(&mut self, end: u64, block: &[u8]) {
        let begin = block_start(end);
        debug_assert!(end <= self.bytes && begin + block.len() as u64 == end);
        self.hashes.truncate((begin / BLOCK_SIZE as u64) as usize);
        self.bytes = begin;
        self.add(block);
    }

    /// True if these bytes from `offset` on, where a block begins, are the blocks that were read there, whole.
    pub fn agree(&self, offset: u64, bytes: &[u8]) -> bool {
        debug_assert!(offset.is_multiple_of(BLOCK_SIZE as u64));
        let first = (offset / BLOCK_SIZE as u64) as usize;
        let Some(hashes) = self.hashes.get(first..) else { return false };
        let blocks = bytes.chunks(BLOCK_SIZE);
        blocks.len() <= hashes.len() && blocks.zip(hashes).all(|(block, hash)| xxh3(block) == *hash)
    }
}

/// A sequential file as the source of a [`LogReader`](rockmill_format::log::LogReader). It remembers a checksum of the
/// bytes that it returned, or the hashes of its blocks; see [`Self::check_again`].
pub struct LogSource {
    file: Box<dyn SequentialFile>,
    begin: u64,
    read: u64,
    /// Checksum of the data returned, if no hashes are kept.
    crc: u32,
    /// Hashes of the data returned, if they are kept.
    blocks: Option<BlockHashes>,
    /// What [`Self::check_again`] has read.
    again: Option<Box<LogSource>>,
}

impl LogSource {
    /// A file at its beginning.
    pub fn new(file: Box<dyn SequentialFile>) -> Self {
        Self { file, begin: 0, read: 0, crc: 0, blocks: None, again: None }
    }

    /// The same, but keeps a hash of each block, for callers that read block by block.
    pub fn with_hashes(file: Box<dyn SequentialFile>) -> Self {
        Self { blocks: Some(BlockHashes::default()), ..Self::new(file) }
    }

    /// Takes out the hashes of what was read. Nothing is read after that.
    pub fn take_hashes(&mut self) -> BlockHashes {
        self.blocks.take().unwrap_or_default()
    }

    /// Opens a log to read on from `from`; the source for
    /// [`LogReader::resume`](rockmill_format::log::LogReader::resume).
    pub fn open(fs: &dyn FileSystem, path: &Path, from: u64) -> io::Result<Self> {
        let mut file = fs.open_sequential(path)?;
        let begin = block_start(from);
        file.skip(begin)?;
        Ok(Self { begin, ..Self::new(file) })
    }

    /// How far the file was read, in bytes from its beginning.
    pub fn end(&self) -> u64 {
        self.begin + self.read
    }

    /// Reads everything again and compares. Call it if a log seems to end in damage, before any data is given up
    /// because of that: a bit that flipped between the disk and here makes an acknowledged record look like one that a
    /// crash cut off. If it is called for each of many damages, it continues where it was, so a log is read at most
    /// twice.
    ///
    /// # Errors
    /// `IOError` when the file reads differently this time, or cannot be read.
    pub fn check_again(&mut self, fs: &dyn FileSystem, path: &Path) -> Result<()> {
        let failed = |e: io::Error| Error::io(format_args!("cannot read {} again", path.display()), &e);
        let second = match &mut self.again {
            Some(second) => second,
            none => {
                let mut second = Self::open(fs, path, self.begin).map_err(failed)?;
                second.blocks = self.blocks.as_ref().map(|_| BlockHashes::default());
                none.insert(Box::new(second))
            }
        };
        // In the pieces that the hashes are of.
        let mut buf = vec![0; BLOCK_SIZE];
        while second.read < self.read {
            let want = (self.read - second.read).min(buf.len() as u64) as usize;
            if second.read_block(&mut buf[..want]).map_err(failed)? == 0 {
                break;
            }
        }
        if (second.read, second.crc, &second.blocks) == (self.read, self.crc, &self.blocks) {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::IOError,
            format!(
                "{}: reads differently the second time: the disk, what is between, or the memory fails; nothing was \
                 changed",
                path.display()
            ),
        ))
    }
}

impl ReadBlock for LogSource {
    type Error = io::Error;

    fn read_block(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut n = 0;
        while n < buf.len() {
            match self.file.read(&mut buf[n..])? {
                0 => break,
                k => n += k,
            }
        }
        self.read += n as u64;
        match &mut self.blocks {
            Some(blocks) => blocks.add(&buf[..n]),
            None => self.crc = crc32c_extend(self.crc, &buf[..n]),
        }
        Ok(n)
    }
}
