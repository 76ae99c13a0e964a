//! The files of tables, opened as the MANIFEST describes them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rockmill_format::edit::FileEntry;
use rockmill_format::key::SequenceNumber;
use rockmill_format::{InternalKeyComparator, filename};
use rockmill_io::{FileSystem, RandomAccessFile};

use super::{TableDirs, TableFile};
use crate::error::{Error, Result};
use crate::table::{AutoReadahead, MetaCaching, OpenFile, Table, TableOpenOptions};

/// Where a table's file is: LevelDB and old RocksDB wrote `.ldb`.
pub fn table_path(fs: &dyn FileSystem, dirs: &TableDirs, file: TableFile) -> PathBuf {
    path_in(fs, dirs.of_file(file), file.number)
}

fn path_in(fs: &dyn FileSystem, dir: &Path, number: u64) -> PathBuf {
    let path = dir.join(filename::table(number));
    if !fs.exists(&path).unwrap_or(true) {
        let old = path.with_extension("ldb");
        if fs.exists(&old).unwrap_or(false) {
            return old;
        }
    }
    path
}

/// A file of a table, which must have the size that the MANIFEST says.
pub(crate) fn open_file(fs: &dyn FileSystem, dirs: &TableDirs, file: TableFile, direct: bool) -> Result<OpenFile> {
    let dir = dirs.of_file(file);
    let mut path = dir.join(filename::table(file.number));
    let mut opened = fs.open_random(&path, direct);
    if opened.as_ref().is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound) {
        path = path_in(fs, dir, file.number);
        opened = fs.open_random(&path, direct);
    }
    let opened = opened.map_err(|e| Error::io(format_args!("cannot open table {}", path.display()), &e))?;
    if opened.size() != file.size {
        return Err(Error::corruption(format!(
            "{}: the file has {} bytes, the MANIFEST says {}",
            path.display(),
            opened.size(),
            file.size
        )));
    }
    Ok(OpenFile { path, file: opened })
}

/// Opens a table with its pieces without a store, for a check or a repair. `largest_seqno`: what the MANIFEST says
/// about it, if there is one.
///
/// # Errors
/// A file that is not there or has another size, and whatever keeps the table from being read.
pub fn open_table(
    fs: &dyn FileSystem,
    dirs: &TableDirs,
    entry: &FileEntry,
    cmp: &InternalKeyComparator,
    largest_seqno: Option<SequenceNumber>,
) -> Result<Arc<Table>> {
    let mut files = Vec::with_capacity(1 + entry.pieces.len());
    for file in entry.files() {
        let OpenFile { path, file } = open_file(fs, dirs, file, false)?;
        files.push((path, file));
    }
    table_of_files(files, cmp, largest_seqno)
}

/// The table of these open files, its own first, then its pieces in the order of the MANIFEST.
///
/// # Errors
/// No file, and whatever keeps the table from being read.
pub fn table_of_files(
    files: Vec<(PathBuf, Arc<dyn RandomAccessFile>)>,
    cmp: &InternalKeyComparator,
    largest_seqno: Option<SequenceNumber>,
) -> Result<Arc<Table>> {
    let (readahead, caching) = (AutoReadahead::default(), MetaCaching::default());
    let mut tables = Vec::with_capacity(files.len());
    for (path, file) in files {
        let options = TableOpenOptions {
            path,
            cmp: cmp.clone(),
            cache: None,
            largest_seqno: largest_seqno.filter(|_| tables.is_empty()),
            statistics: None,
            read_protection: None,
            prefix_extractor: None,
        };
        tables.push(Table::open_file(file, options, None, readahead, caching)?);
    }
    match tables.split_first() {
        Some((own, pieces)) => Table::with_pieces(Arc::clone(own), pieces, false),
        None => Err(Error::invalid_argument("a table without files")),
    }
}

#[cfg(test)]
mod tests {
    use rockmill_format::edit::TablePiece;
    use rockmill_io::{MemFileSystem, WriteOptions};

    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn every_file_is_opened_with_its_size_whatever_its_name_ends_in() {
        let fs = MemFileSystem::new();
        let dir = Path::new("/db");
        fs.create_dir(dir, true).unwrap();
        let write = |name: &str, bytes: &[u8]| {
            let mut file = fs.create(&dir.join(name), WriteOptions::default()).unwrap();
            file.append(bytes).unwrap();
            file.close().unwrap();
        };
        let piece = |number, size| TablePiece { number, size, live: 0, path_id: 0 };
        let entry = FileEntry { number: 9, size: 4, pieces: vec![piece(7, 3), piece(5, 2)], ..FileEntry::default() };
        let open =
            || open_table(&fs, &TableDirs::one(dir), &entry, &InternalKeyComparator::default(), None).unwrap_err();
        write("000009.sst", b"own!");
        write("000007.ldb", b"old");
        let missing = open();
        assert!(missing.is_missing_file() && missing.message().contains("000005.sst"), "{missing}");
        write("000005.sst", b"longer");
        let e = open();
        assert_eq!(e.kind(), ErrorKind::Corruption);
        assert!(e.message().contains("000005.sst: the file has 6 bytes, the MANIFEST says 2"), "{e}");
        write("000005.sst", b"ok");
        // All are there. No kind of table of several files has this end.
        let e = open();
        assert_eq!(e.kind(), ErrorKind::Corruption);
        assert!(e.message().contains("000009.sst"), "{e}");
        assert_eq!(path_in(&fs, dir, 7), dir.join("000007.ldb"));
        assert_eq!(path_in(&fs, dir, 4), dir.join("000004.sst"));
    }

    #[test]
    fn each_file_of_a_table_is_opened_in_its_own_directory() {
        let fs = MemFileSystem::new();
        for (dir, name, bytes) in [("/b", "000009.sst", "own!"), ("/a", "000007.sst", "old")] {
            fs.create_dir(Path::new(dir), true).unwrap();
            fs.write_all(&Path::new(dir).join(name), bytes.as_bytes()).unwrap();
        }
        let pieces = vec![TablePiece { number: 7, size: 3, live: 0, path_id: 0 }];
        let entry = FileEntry { number: 9, size: 4, path_id: 1, pieces, ..FileEntry::default() };
        let dirs = TableDirs::new(["/a", "/b"], Path::new("/db"));
        let files: Vec<_> = entry.files().map(|file| table_path(&fs, &dirs, file)).collect();
        assert_eq!(files, [Path::new("/b/000009.sst"), Path::new("/a/000007.sst")]);
        let opened = entry.files().map(|file| open_file(&fs, &dirs, file, false).map(|open| open.path));
        assert_eq!(opened.collect::<Result<Vec<_>>>().unwrap(), files);
        // Without its paths everything is looked for in one directory.
        let e = open_file(&fs, &TableDirs::one(Path::new("/db")), entry.own_file(), false).map(|_| ()).unwrap_err();
        assert!(e.is_missing_file() && e.message().contains("/db/000009.sst"), "{e}");
    }
}
