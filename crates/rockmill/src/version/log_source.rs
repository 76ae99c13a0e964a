//! Files as sources of log records.

use std::io;
use std::path::Path;

use rockmill_format::checksum::crc32c_extend;
use rockmill_format::log::{ReadBlock, block_start};
use rockmill_io::{FileSystem, SequentialFile};

use crate::error::{Error, ErrorKind, Result};

/// A sequential file as the source of a [`LogReader`](rockmill_format::log::LogReader). It remembers a checksum of what
/// it gave, see [`Self::check_again`].
pub struct LogSource {
    file: Box<dyn SequentialFile>,
    begin: u64,
    read: u64,
    crc: u32,
    /// What [`Self::check_again`] has read.
    again: Option<Box<LogSource>>,
}

impl LogSource {
    /// A file that stands at its beginning.
    pub fn new(file: Box<dyn SequentialFile>) -> Self {
        Self { file, begin: 0, read: 0, crc: 0, again: None }
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

    /// Reads everything again, and compares: to be called where a log seems to end in damage, before anything is lost
    /// over it. A bit that flipped between the disk and here makes an acknowledged record look like one that a crash
    /// cut short. Called at each of many damages, it goes on where it stood: a log is read twice, not more often.
    ///
    /// # Errors
    /// `IOError` when the file reads differently this time, or cannot be read.
    pub fn check_again(&mut self, fs: &dyn FileSystem, path: &Path) -> Result<()> {
        let failed = |e: io::Error| Error::io(format_args!("cannot read {} again", path.display()), &e);
        let second = match &mut self.again {
            Some(second) => second,
            none => none.insert(Box::new(Self::open(fs, path, self.begin).map_err(failed)?)),
        };
        let mut buf = vec![0; 64 << 10];
        while second.read < self.read {
            let want = (self.read - second.read).min(buf.len() as u64) as usize;
            if second.read_block(&mut buf[..want]).map_err(failed)? == 0 {
                break;
            }
        }
        if (second.read, second.crc) == (self.read, self.crc) {
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
        self.crc = crc32c_extend(self.crc, &buf[..n]);
        Ok(n)
    }
}
