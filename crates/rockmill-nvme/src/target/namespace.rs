//! The interface of namespaces, and a namespace in memory.

use std::fmt::Debug;
use std::io;
use std::net::TcpStream;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rockmill_io::RandomAccessFile;

use crate::status::Status;

/// A sequence of blocks that hosts read and write.
///
/// The target checks ranges, sizes and write protection before it calls: every range lies inside, and every buffer is a
/// whole number of blocks. The sizes must not change. Calls come from several threads at once, one per connection.
pub trait Namespace: Send + Sync + Debug {
    /// Bytes of a block: a power of two from 512 to 65,536.
    fn block_bytes(&self) -> u32;

    /// Blocks that there are.
    fn blocks(&self) -> u64;

    /// True if hosts must not write.
    fn read_only(&self) -> bool;

    /// Its globally unique identifier (NGUID): different from every other namespace's, and not all zeros.
    fn nguid(&self) -> [u8; 16];

    /// Fills the buffer with blocks from `first` on. The buffer may contain anything before.
    ///
    /// # Errors
    /// The status to send to the host.
    fn read(&self, first: u64, into: &mut [u8]) -> Result<(), Status>;

    /// The file that has these blocks, all of them, and that can be sent without reading it. `None`: call
    /// [`Self::read`]. The file may be read later than the call returns, also after the namespace was removed; it must
    /// not change.
    fn file_part(&self, first: u64, bytes: u32) -> Option<FilePart> {
        let _ = (first, bytes);
        None
    }

    /// Writes blocks from `first` on.
    ///
    /// # Errors
    /// The status to send to the host.
    fn write(&self, first: u64, from: &[u8]) -> Result<(), Status>;

    /// Makes blocks read as zeros.
    ///
    /// # Errors
    /// The status to send to the host.
    fn write_zeroes(&self, first: u64, count: u32) -> Result<(), Status>;

    /// Makes all completed writes durable.
    ///
    /// # Errors
    /// The status to send to the host.
    fn flush(&self) -> Result<(), Status>;
}

/// A part of a file that is sent to a host as it is.
#[derive(Debug, Clone)]
pub struct FilePart {
    /// The file.
    pub file: Arc<dyn RandomAccessFile>,
    /// Where the part begins in it.
    pub offset: u64,
    /// Its bytes.
    pub bytes: u32,
    /// Set where the file could not be sent after all. The next command for these blocks should get the reason: from
    /// then on the namespace has no parts of files.
    pub has_failed: Arc<AtomicBool>,
}

impl FilePart {
    /// Sends some of it, and leaves the rest.
    ///
    /// # Errors
    /// As [`RandomAccessFile::send_to`].
    pub(crate) fn send(&mut self, socket: &TcpStream) -> io::Result<usize> {
        let sent = self.file.send_to(self.offset, self.bytes as usize, socket.as_fd())?;
        self.offset += sent as u64;
        self.bytes = self.bytes.saturating_sub(u32::try_from(sent).unwrap_or(u32::MAX));
        Ok(sent)
    }

    /// Reads it.
    ///
    /// # Errors
    /// Those of the file; also where it ends before.
    pub(crate) fn read(&self, into: &mut [u8]) -> io::Result<()> {
        let read = match self.file.read_at(self.offset, into) {
            Ok(n) if n == into.len() => return Ok(()),
            Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(e) => Err(e),
        };
        self.has_failed.store(true, Ordering::Relaxed);
        read
    }
}

/// A namespace in memory, for tests and experiments.
#[derive(Debug)]
pub struct MemoryNamespace {
    block_bytes: u32,
    read_only: bool,
    nguid: [u8; 16],
    state: Mutex<MemoryState>,
}

#[derive(Debug)]
struct MemoryState {
    bytes: Vec<u8>,
    flushes: u64,
    fault: Option<Status>,
}

impl MemoryNamespace {
    /// `blocks` blocks of zeros.
    #[must_use]
    pub fn new(block_bytes: u32, blocks: usize, read_only: bool) -> Self {
        let state = MemoryState { bytes: vec![0; block_bytes as usize * blocks], flushes: 0, fault: None };
        let mut nguid = *b"rockmill-memory\0";
        nguid[15] = u8::from(read_only);
        Self { block_bytes, read_only, nguid, state: Mutex::new(state) }
    }

    /// The same with another identifier.
    #[must_use]
    pub fn with_nguid(mut self, nguid: [u8; 16]) -> Self {
        self.nguid = nguid;
        self
    }

    /// All its bytes.
    #[must_use]
    pub fn contents(&self) -> Vec<u8> {
        self.state.lock().bytes.clone()
    }

    /// Changes its bytes, read-only or not.
    pub fn fill(&self, byte_at: impl Fn(usize) -> u8) {
        self.state.lock().bytes.iter_mut().enumerate().for_each(|(i, b)| *b = byte_at(i));
    }

    /// Flushes so far.
    #[must_use]
    pub fn flushes(&self) -> u64 {
        self.state.lock().flushes
    }

    /// Makes every call fail with this status, until it is set to `None`.
    pub fn set_fault(&self, fault: Option<Status>) {
        self.state.lock().fault = fault;
    }

    /// Calls `body` with `bytes` bytes from block `first` on.
    fn with(&self, first: u64, bytes: usize, body: impl FnOnce(&mut [u8])) -> Result<(), Status> {
        let mut state = self.state.lock();
        if let Some(fault) = state.fault {
            return Err(fault);
        }
        let start = usize::try_from(first).ok().and_then(|f| f.checked_mul(self.block_bytes as usize));
        let range = start.and_then(|s| Some(s..s.checked_add(bytes)?)).ok_or(Status::LBA_OUT_OF_RANGE)?;
        body(state.bytes.get_mut(range).ok_or(Status::LBA_OUT_OF_RANGE)?);
        Ok(())
    }
}

impl Namespace for MemoryNamespace {
    fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    fn blocks(&self) -> u64 {
        self.state.lock().bytes.len() as u64 / u64::from(self.block_bytes)
    }

    fn read_only(&self) -> bool {
        self.read_only
    }

    fn nguid(&self) -> [u8; 16] {
        self.nguid
    }

    fn read(&self, first: u64, into: &mut [u8]) -> Result<(), Status> {
        self.with(first, into.len(), |bytes| into.copy_from_slice(bytes))
    }

    fn write(&self, first: u64, from: &[u8]) -> Result<(), Status> {
        self.with(first, from.len(), |bytes| bytes.copy_from_slice(from))
    }

    fn write_zeroes(&self, first: u64, count: u32) -> Result<(), Status> {
        self.with(first, count as usize * self.block_bytes as usize, |bytes| bytes.fill(0))
    }

    fn flush(&self) -> Result<(), Status> {
        let mut state = self.state.lock();
        state.flushes += 1;
        state.fault.map_or(Ok(()), Err)
    }
}
