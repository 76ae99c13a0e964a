//! The file system of a database whose tables a worker writes through NFS.
//!
//! The store makes the file of an output when its device gets the first block of it. What the worker wrote is there
//! already, so [`AdoptingFiles`] opens it as it is, and what the store appends is its end.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;
use std::sync::Arc;

use rockmill_io::ring::{BatchIo, BatchKind, BatchLimits, BatchProbe, DeviceFacts};
use rockmill_io::sync::Mutex;
use rockmill_io::{
    Access, Entry, FileLock, FileSystem, PositionedFile, PosixFileSystem, RandomAccessFile, SequentialFile, View,
    WritableFile, WriteOptions,
};

/// The machine's files, of which some are there before they are created.
#[derive(Debug, Clone)]
pub struct AdoptingFiles {
    inner: Arc<dyn FileSystem>,
    /// Their names, and how much of each is before what is appended.
    there: Arc<Mutex<HashMap<String, u64>>>,
}

impl Default for AdoptingFiles {
    fn default() -> Self {
        Self { inner: Arc::new(PosixFileSystem::default()), there: Arc::default() }
    }
}

impl AdoptingFiles {
    /// The next file of this name that is created is there, and has at least so many bytes.
    pub fn adopt(&self, name: &str, before: u64) {
        self.there.lock().insert(name.to_owned(), before);
    }
}

impl FileSystem for AdoptingFiles {
    fn create(&self, path: &Path, options: WriteOptions) -> io::Result<Box<dyn WritableFile>> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let Some(len) = self.there.lock().remove(&*name) else { return self.inner.create(path, options) };
        let file = OpenOptions::new().write(true).open(path)?;
        Ok(Box::new(Adopted { file, len }))
    }

    fn view(&self, view: &View) -> io::Result<Option<Arc<dyn FileSystem>>> {
        let there = Arc::clone(&self.there);
        Ok(self.inner.view(view)?.map(|inner| Arc::new(Self { inner, there }) as Arc<dyn FileSystem>))
    }

    rockmill_io::pass_on! { inner =>
        fn open_random(&self, path: &Path, direct: bool) -> io::Result<Arc<dyn RandomAccessFile>>;
        fn open_sequential(&self, path: &Path) -> io::Result<Box<dyn SequentialFile>>;
        fn reuse(&self, old: &Path, new: &Path, options: WriteOptions) -> io::Result<Box<dyn WritableFile>>;
        fn list_dir(&self, path: &Path) -> io::Result<Vec<String>>;
        fn exists(&self, path: &Path) -> io::Result<bool>;
        fn file_size(&self, path: &Path) -> io::Result<u64>;
        fn modified_seconds(&self, path: &Path) -> io::Result<u64>;
        fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
        fn remove(&self, path: &Path) -> io::Result<()>;
        fn remove_dir(&self, path: &Path) -> io::Result<()>;
        fn create_dir(&self, path: &Path, parents: bool) -> io::Result<()>;
        fn create_new_dir(&self, path: &Path) -> io::Result<()>;
        fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()>;
        fn truncate(&self, path: &Path, len: u64) -> io::Result<()>;
        fn sync_file(&self, path: &Path) -> io::Result<()>;
        fn sync_dir(&self, path: &Path) -> io::Result<()>;
        fn lock(&self, path: &Path) -> io::Result<Box<dyn FileLock>>;
        fn free_space(&self, path: &Path) -> io::Result<u64>;
        fn entry(&self, path: &Path) -> io::Result<Option<Entry>>;
        fn access(&self, dir: &Path, files: &[&Path]) -> io::Result<Option<Access>>;
        fn create_positioned(&self, path: &Path, options: WriteOptions) -> io::Result<Box<dyn PositionedFile>>;
        fn batch_io(&self, kind: BatchKind, limits: &BatchLimits) -> io::Result<BatchIo>;
        fn batch_probe(&self) -> BatchProbe;
        fn same_file(&self, a: &Path, b: &Path) -> io::Result<bool>;
        fn device(&self, path: &Path) -> Option<DeviceFacts>;
    }
}

/// A file that is there already, and ends where the store says.
#[derive(Debug)]
struct Adopted {
    file: File,
    len: u64,
}

impl WritableFile for Adopted {
    fn append(&mut self, data: &[u8]) -> io::Result<()> {
        self.len += data.len() as u64; // its bytes are there
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.set_len(self.len)?; // it has whole blocks
        self.file.sync_data()
    }

    fn close(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn len(&self) -> u64 {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_taken_once_and_cut() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("000007.sst");
        std::fs::write(&path, [7; 8192]).unwrap();
        let files = AdoptingFiles::default();
        files.adopt("000007.sst", 4096);
        let mut file = files.create(&path, WriteOptions::default()).unwrap();
        assert_eq!(file.len(), 4096);
        file.append(&[7; 10]).unwrap();
        file.sync().unwrap();
        file.close().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), [7; 4106]);
        files.create(&path, WriteOptions::default()).unwrap().close().unwrap();
        assert!(std::fs::read(&path).unwrap().is_empty(), "the next one is new");
    }
}
