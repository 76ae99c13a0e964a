//! A block device, read and written past the page cache: for whoever has one to himself.

use super::sys;
use crate::aligned::{ALIGNMENT, AlignedBuf};
use crate::error::path_error;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Bytes that are copied at a time, where the caller's memory is not aligned.
const COPIED_BYTES: usize = 1 << 20;

/// A block device that is open for direct reads and writes. The page cache has no part in them: nothing of what another
/// device of the same name had is read, and a write that has returned is with the device.
#[derive(Debug)]
pub struct BlockDevice {
    file: File,
    path: PathBuf,
    bytes: u64,
}

impl BlockDevice {
    /// Opens a device, exclusively: nobody mounts it as long as this lives. A regular file may stand for a device.
    ///
    /// # Errors
    /// There is none, somebody else has it (`ResourceBusy`), or it takes no direct I/O.
    pub fn open(path: &Path) -> io::Result<Self> {
        let failed = |e| path_error("open", path, e);
        let flags = sys::O_DIRECT | libc::O_EXCL | libc::O_NOFOLLOW | libc::O_NOCTTY;
        let mut file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).map_err(failed)?;
        let bytes = file.seek(SeekFrom::End(0)).map_err(failed)?;
        Ok(Self { file, path: path.to_path_buf(), bytes })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The kernel's numbers of the device, major and minor; `None` where they are not known.
    ///
    /// # Errors
    /// The device does not say.
    pub fn numbers(&self) -> io::Result<Option<(u32, u32)>> {
        Ok(sys::device_numbers(self.file.metadata()?.rdev()))
    }

    /// Its descriptor, for rings. Memory, offsets and lengths must be multiples of [`ALIGNMENT`].
    pub fn raw_fd(&self) -> i32 {
        self.file.as_raw_fd()
    }

    /// Fills `into`, which may lie anywhere, with whole blocks of [`ALIGNMENT`].
    ///
    /// # Errors
    /// A range of no whole blocks, or one behind the end; what the device says.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let failed = |e| path_error(format!("read at {offset} from"), &self.path, e);
        check(offset, into.len()).map_err(failed)?;
        if into.as_ptr().addr().is_multiple_of(ALIGNMENT) {
            return self.file.read_exact_at(into, offset).map_err(failed);
        }
        let mut copy = AlignedBuf::with_capacity(into.len().min(COPIED_BYTES));
        let mut at = offset;
        for piece in into.chunks_mut(COPIED_BYTES) {
            self.file.read_exact_at(&mut copy[..piece.len()], at).map_err(failed)?;
            piece.copy_from_slice(&copy[..piece.len()]);
            at += piece.len() as u64;
        }
        Ok(())
    }

    /// Writes whole blocks of [`ALIGNMENT`] from anywhere, with one call; complete when this returns.
    ///
    /// # Errors
    /// A range of no whole blocks, or one behind the end; what the device says.
    pub fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let failed = |e| path_error(format!("write at {offset} to"), &self.path, e);
        check(offset, data.len()).map_err(failed)?;
        if data.as_ptr().addr().is_multiple_of(ALIGNMENT) {
            return self.file.write_all_at(data, offset).map_err(failed);
        }
        let mut copy = AlignedBuf::with_capacity(data.len());
        copy[..data.len()].copy_from_slice(data);
        self.file.write_all_at(&copy[..data.len()], offset).map_err(failed)
    }
}

fn check(offset: u64, len: usize) -> io::Result<()> {
    match offset.is_multiple_of(ALIGNMENT as u64) && len.is_multiple_of(ALIGNMENT) {
        true => Ok(()),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "a range of no whole blocks")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::{FileSystem, PositionedFile, RandomAccessFile, WritableFile, WriteOptions};
    use crate::posix::PosixFileSystem;
    use crate::ring::{BatchKind, BatchLimits, ReadOptions, ReadPlan, Span};
    use rockmill_skip::{Needs, skip};
    use std::sync::Arc;

    /// A file that stands for a device; `None` where its file system takes no direct I/O.
    fn device(test: &str, dir: &Path, bytes: u64) -> Option<BlockDevice> {
        let path = dir.join("device");
        File::create(&path).unwrap().set_len(bytes).unwrap();
        match BlockDevice::open(&path) {
            Ok(device) => Some(device),
            Err(e) => {
                skip(test, &Needs::DirectIo.because(e.to_string()));
                None
            }
        }
    }

    #[test]
    fn whole_blocks_go_to_and_from_any_memory() {
        let dir = tempfile::tempdir().unwrap();
        let Some(device) = device("whole_blocks_go_to_and_from_any_memory", dir.path(), 4 << 20) else { return };
        assert_eq!(device.bytes(), 4 << 20);
        let mut buffer = AlignedBuf::with_capacity(3 << 20);
        for (i, byte) in buffer.iter_mut().enumerate() {
            *byte = (i / 4096 + i % 251) as u8;
        }
        let len = (2 << 20) + 4096;
        for before in [0, 1, 4095] {
            let data = &buffer[before..before + len];
            device.write(8192, data).unwrap();
            let mut back = AlignedBuf::with_capacity(3 << 20);
            for before in [0, 7] {
                device.read(8192, &mut back[before..before + len]).unwrap();
                assert!(back[before..before + len] == *data);
            }
        }
        for (offset, len) in [(1, 4096), (4096, 1)] {
            let e = device.write(offset, &buffer[..len]).unwrap_err();
            assert!(e.to_string().contains("no whole blocks"), "{e}");
            assert!(device.read(offset, &mut buffer[..len]).is_err());
        }
        let e = device.read(4 << 20, &mut buffer[..4096]).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::UnexpectedEof, "{e}");
        assert!(e.to_string().contains("read at 4194304 from"), "{e}");
        assert!(BlockDevice::open(&dir.path().join("none")).unwrap_err().to_string().contains("none"));
    }

    /// A part of a device, as a file.
    #[derive(Debug, Clone)]
    struct Part {
        device: Arc<BlockDevice>,
        at: u64,
        len: u64,
    }

    impl RandomAccessFile for Part {
        fn read_at(&self, _: u64, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("a ring reads by the descriptor"))
        }
        fn size(&self) -> u64 {
            self.len
        }
        fn prefetch(&self, _: u64, _: u64) {}
        fn is_direct(&self) -> bool {
            true
        }
        fn raw_fd(&self) -> Option<i32> {
            Some(self.device.raw_fd())
        }
        fn fd_offset(&self) -> u64 {
            self.at
        }
    }

    impl PositionedFile for Part {
        fn path(&self) -> &Path {
            self.device.path()
        }
        fn is_direct(&self) -> bool {
            true
        }
        fn write_at(&self, _: u64, _: &[u8]) -> io::Result<usize> {
            Err(io::Error::other("a ring writes by the descriptor"))
        }
        fn cut(&self, _: u64) -> io::Result<()> {
            Ok(())
        }
        fn sync(&self) -> io::Result<()> {
            Ok(())
        }
        fn close(&self) -> io::Result<()> {
            Ok(())
        }
        fn in_order(&self) -> bool {
            true
        }
        fn bytes_max(&self) -> u64 {
            self.len
        }
        fn raw_fd(&self) -> Option<i32> {
            Some(self.device.raw_fd())
        }
        fn fd_offset(&self) -> u64 {
            self.at
        }
    }

    #[test]
    fn parts_of_a_device_are_files_of_a_ring() {
        const TEST: &str = "parts_of_a_device_are_files_of_a_ring";
        let dir = tempfile::tempdir().unwrap();
        let Some(device) = device(TEST, dir.path(), 8 << 20) else { return };
        let device = Arc::new(device);
        for register in [true, false] {
            let limits = BatchLimits { memory_bytes: 8 << 20, huge_pages: false, register, ..BatchLimits::default() };
            let io = match PosixFileSystem::new().batch_io(BatchKind::Uring, &limits) {
                Ok(io) => io,
                Err(e) => return skip(TEST, &Needs::Uring.because(e)),
            };
            let zeros = vec![0; 8 << 20];
            device.write(0, &zeros).unwrap();
            let part = Part { device: Arc::clone(&device), at: 1 << 20, len: 2 << 20 };
            let wanted: Vec<u8> = (0..1_500_001u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8 | 1).collect();
            let options = WriteOptions { buffer_size: 256 << 10, direct: true, ..WriteOptions::default() };
            let mut writer = io.writer(Arc::new(part.clone()), options).unwrap();
            wanted.chunks(10_000).for_each(|piece| writer.append(piece).unwrap());
            writer.sync().unwrap();
            writer.close().unwrap();
            drop(writer);
            let mut all = vec![1; 8 << 20];
            device.read(0, &mut all).unwrap();
            let (start, end) = (1 << 20, (1 << 20) + wanted.len());
            assert!(all[start..end] == wanted && all[..start] == zeros[..start] && all[end..] == zeros[end..]);
            // Read back, as a file of its own.
            let file = Part { len: wanted.len() as u64, ..part.clone() };
            let mut plan = ReadPlan::new();
            let file = plan.add_file(Arc::new(file), Path::new("part"));
            let span = |i: usize| Span { file, offset: i as u64, len: 50_000.min(wanted.len() - i) as u32 };
            let run = plan.add_run((0..wanted.len()).step_by(50_000).map(span).collect());
            let mut stream = io.read(plan, ReadOptions::default()).unwrap();
            let mut got = Vec::new();
            while let Some(window) = stream.next(run).unwrap() {
                got.extend_from_slice(&window);
            }
            assert!(got == wanted);
            drop(stream);
            // No byte of the next part is written.
            let mut writer = io.writer(Arc::new(part), options).unwrap();
            let e = (0..3).map(|_| writer.append(&vec![7; 1 << 20])).find_map(Result::err);
            let e = e.or_else(|| writer.sync().err()).expect("there is no room");
            assert_eq!(e.kind(), io::ErrorKind::StorageFull, "{e}");
            drop(writer);
            device.read(0, &mut all).unwrap();
            assert!(all[3 << 20..] == zeros[3 << 20..]);
        }
    }
}
