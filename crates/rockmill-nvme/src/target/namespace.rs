//! What a namespace is to a target, and one in memory.

use std::fmt::Debug;

use parking_lot::Mutex;

use crate::status::Status;

/// Blocks that hosts read and write.
///
/// The target checks ranges, sizes and write protection before it calls: every range is inside, and every buffer a
/// whole number of blocks. Its sizes must not change. Calls come from several threads at once, one for each connection.
pub trait Namespace: Send + Sync + Debug {
    /// Bytes of a block: a power of two from 512 to 65,536.
    fn block_bytes(&self) -> u32;

    /// Blocks that there are.
    fn blocks(&self) -> u64;

    /// True if hosts must not write.
    fn read_only(&self) -> bool;

    /// Its globally unique identifier (NGUID): never that of another namespace, not all zeros.
    fn nguid(&self) -> [u8; 16];

    /// Reads blocks from `first` on into all of the buffer, which may have anything in it before.
    ///
    /// # Errors
    /// The status that the host gets.
    fn read(&self, first: u64, into: &mut [u8]) -> Result<(), Status>;

    /// Writes blocks from `first` on.
    ///
    /// # Errors
    /// The status that the host gets.
    fn write(&self, first: u64, from: &[u8]) -> Result<(), Status>;

    /// Makes blocks read as zeros.
    ///
    /// # Errors
    /// The status that the host gets.
    fn write_zeroes(&self, first: u64, count: u32) -> Result<(), Status>;

    /// Returns when what was written is durable.
    ///
    /// # Errors
    /// The status that the host gets.
    fn flush(&self) -> Result<(), Status>;
}

/// A namespace in memory, for tests and for trying things out.
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

    /// From now on every call fails with this, until it is `None`.
    pub fn set_fault(&self, fault: Option<Status>) {
        self.state.lock().fault = fault;
    }

    /// Does something with `bytes` bytes from block `first` on.
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
