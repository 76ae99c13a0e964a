//! Tables of several files that share some of them: no file is deleted, forgotten or omitted from a copy while a table
//! uses it. The MANIFESTs are constructed for block-based tables, which then cannot be read.

use std::path::Path;
use std::sync::Arc;

use rockmill::backup::{BackupEngine, BackupEngineOptions, RestoreOptions};
use rockmill::internals::{ManifestWriter, current_manifest, for_each_edit};
use rockmill::{Checkpoint, CompressionType, Db, Env, ErrorKind, Options};
use rockmill_format::edit::{TablePiece, VersionEdit};
use rockmill_format::filename;
use rockmill_io::{FileSystem, PosixFileSystem};
use rockmill_skip::skip;

use super::extra_runs::as_rocksdb_reads;
use super::oracle::{run_tool, tool};

/// Numbers of the pieces. They are far above what the MANIFEST gives out next.
const PIECES: [u64; 3] = [201, 202, 203];
/// The first table has one piece alone and shares one with the second table, which also uses the first table's file.
fn pieces_of(own: [u64; 2]) -> [Vec<u64>; 2] {
    [vec![PIECES[0], PIECES[1]], vec![PIECES[2], PIECES[1], own[0]]]
}

fn options() -> Options {
    let mut o = Options::default();
    o.create_if_missing(true);
    o.set_disable_auto_compactions(true);
    o.set_num_levels(5);
    o.set_compression_type(CompressionType::None);
    o
}

fn open(dir: &Path) -> rockmill::Result<Db> {
    Db::open_cf(&options(), dir, ["default", "other"])
}

/// The contents of a piece, which is not a table itself.
fn piece(number: u64) -> Vec<u8> {
    vec![number as u8; number as usize]
}

fn tables(dir: &Path) -> Vec<u64> {
    let name = |e: std::io::Result<std::fs::DirEntry>| e.unwrap().file_name().into_string().unwrap();
    let numbers = std::fs::read_dir(dir).unwrap().map(name).filter_map(|n| n.strip_suffix(".sst")?.parse().ok());
    let mut numbers: Vec<u64> = numbers.collect();
    numbers.sort_unstable();
    numbers
}

/// The files of each table according to the MANIFEST.
fn named(dir: &Path) -> Vec<Vec<u64>> {
    let fs = PosixFileSystem::default();
    let manifest = dir.join(filename::manifest(current_manifest(&fs, dir).unwrap()));
    let mut all = std::collections::BTreeMap::new();
    let mut each = |edit: VersionEdit| {
        edit.deleted_files.iter().for_each(|(_, number)| drop(all.remove(number)));
        all.extend(edit.new_files.iter().map(|(_, f)| (f.number, f.files().map(|f| f.number).collect())));
        Ok(())
    };
    for_each_edit(&fs, &manifest, &mut each).unwrap();
    all.into_values().collect()
}

/// A database of two tables in level 1, from `a` to `c` and from `m` to `o`, with pieces. Returns the tables' numbers.
fn database(dir: &Path) -> [u64; 2] {
    let db = Db::open(&options(), dir).unwrap();
    drop(db.create_cf("other", &options()).unwrap());
    for keys in [["a", "c"], ["m", "o"]] {
        keys.iter().for_each(|k| db.put(k, "value").unwrap());
        db.flush().unwrap();
    }
    drop(db);
    let fs: Arc<dyn FileSystem> = Arc::new(PosixFileSystem::default());
    let number = current_manifest(&*fs, dir).unwrap();
    let mut edits = Vec::new();
    let old = dir.join(filename::manifest(number));
    for_each_edit(&*fs, &old, &mut |edit| {
        edits.push(edit);
        Ok(())
    })
    .unwrap();
    let own: Vec<u64> = edits.iter().flat_map(|e| &e.new_files).map(|(_, f)| f.number).collect();
    let own = <[u64; 2]>::try_from(own).unwrap();
    let size = |n: u64| std::fs::metadata(dir.join(filename::table(n))).map_or(n, |m| m.len());
    PIECES.iter().for_each(|&n| std::fs::write(dir.join(filename::table(n)), piece(n)).unwrap());
    for (level, file) in edits.iter_mut().flat_map(|e| &mut e.new_files) {
        let of = own.iter().position(|n| *n == file.number).unwrap();
        *level = 1;
        let half = |&number: &u64| TablePiece { number, size: size(number), live: size(number) / 2, path_id: 0 };
        file.pieces = pieces_of(own)[of].iter().map(half).collect();
    }
    ManifestWriter::create(&fs, dir, number + 50, &edits).unwrap();
    std::fs::remove_file(old).unwrap();
    own
}

fn all_files(own: [u64; 2]) -> Vec<u64> {
    own.into_iter().chain(PIECES).collect()
}

fn total(db: &Db) -> u64 {
    db.property_int_value("rocksdb.live-sst-files-size").unwrap().unwrap()
}

fn int_of(db: &Db, name: &str) -> u64 {
    db.property_int_value(format!("rockmill.{name}")).unwrap().unwrap()
}

fn assert_whole(dir: &Path, own: [u64; 2], what: &str) {
    assert_eq!(tables(dir), all_files(own), "{what}");
    let [a, b] = pieces_of(own);
    assert_eq!(named(dir), [[vec![own[0]], a].concat(), [vec![own[1]], b].concat()], "{what}");
    assert!(PIECES.iter().all(|&n| std::fs::read(dir.join(filename::table(n))).unwrap() == piece(n)), "{what}");
    drop(open(dir).unwrap());
}

#[test]
fn a_file_goes_with_the_last_table_that_has_it() {
    let test = "a_file_goes_with_the_last_table_that_has_it";
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("db");
    let own = database(&dir);
    for answer in as_rocksdb_reads(&dir, test) {
        let why = answer.unwrap_err();
        assert!(why.contains("custom field not supported") || why.contains("Corruption"), "{why}");
    }
    let ldb = tool("ldb").inspect_err(|why| skip(test, why)).ok();
    let scan = || ldb.as_ref().map(|ldb| run_tool(ldb, &[&format!("--db={}", dir.display()), "scan"]));
    assert!(scan().is_none_or(|done| done.unwrap_err().contains("custom field not supported")));

    // The next open removes the remains of an interrupted job, and nothing else.
    std::fs::write(dir.join("000120.sst"), "an orphan").unwrap();
    let db = open(&dir).unwrap();
    assert_eq!(tables(&dir), all_files(own));
    let bytes = |numbers: &[u64]| -> u64 {
        numbers.iter().map(|&n| std::fs::metadata(dir.join(filename::table(n))).unwrap().len()).sum()
    };
    assert_eq!(total(&db), bytes(&all_files(own)), "a shared file counts once");
    let halves = |numbers: &[u64]| numbers.iter().map(|&n| bytes(&[n]) / 2).sum::<u64>();
    let [a, b] = pieces_of(own);
    let counted = bytes(&own) + halves(&a) + halves(&b);
    let levels = db.level_stats(&db.cf_handle("default").unwrap());
    assert_eq!(levels.iter().map(|l| l.bytes).collect::<Vec<_>>(), [0, counted, 0, 0, 0]);
    let range = rockmill::Range::new(b"a", b"z");
    assert_eq!(db.get_approximate_sizes(&[range]), [counted], "as tables count in their levels");
    let int = |name: &str| int_of(&db, name);
    let pieces = [PIECES[0], PIECES[1], PIECES[2], own[0]];
    // A table refers to all of its own file, even if that is also a piece of another table.
    let live = halves(&a) + halves(&b[..2]) + bytes(&own[..1]);
    assert_eq!((int("tables-with-pieces"), int("piece-files")), (2, 4));
    assert_eq!((int("piece-files-size"), int("piece-files-live-size")), (bytes(&pieces), live));
    let text = |name: &str| db.property_value(format!("rocksdb.{name}")).unwrap().unwrap();
    assert!(text("stats").contains("Pieces: 2 tables have 4 further files of 0.00 GB, "), "{}", text("stats"));
    assert!(text("sstables").contains("] +201:201(100 live) +202:202(101 live)\n"), "{}", text("sstables"));
    assert_eq!(db.live_files().unwrap_err().kind(), ErrorKind::Corruption, "block-based tables are one file");
    db.put("k", "new").unwrap();
    db.flush().unwrap();
    let new = tables(&dir).pop().unwrap();
    assert!(new > PIECES[2], "{new} may be a number of a piece");

    // The first table's file stays as a piece of the second one, also after other opens.
    let left = [own[0], own[1], PIECES[1], PIECES[2], new];
    db.delete_file_in_range("a", "d").unwrap();
    assert_eq!((tables(&dir), total(&db)), (left.to_vec(), bytes(&left)));
    drop(db);
    let db = open(&dir).unwrap();
    assert_eq!((tables(&dir), total(&db)), (left.to_vec(), bytes(&left)));
    let before = current_manifest(&PosixFileSystem::default(), &dir).unwrap();
    db.delete_file_in_range("l", "p").unwrap();
    assert_eq!(tables(&dir), [new]);

    assert_eq!(int_of(&db, "tables-with-pieces"), 0);
    assert!(!db.property_value("rocksdb.stats").unwrap().unwrap().contains("Pieces: "));
    // No table has pieces any more, so RocksDB can open the files on disk while the database is still open.
    assert_ne!(current_manifest(&PosixFileSystem::default(), &dir).unwrap(), before);
    for answer in as_rocksdb_reads(&dir, test) {
        assert_eq!(answer.unwrap(), [(b"k".to_vec(), b"new".to_vec())]);
    }
    assert!(scan().is_none_or(|done| done.unwrap().contains("new")));
}

#[test]
fn copies_have_every_file_once() {
    let temp = tempfile::tempdir().unwrap();
    let (dir, copy) = (temp.path().join("db"), temp.path().join("copy"));
    let own = database(&dir);
    let db = open(&dir).unwrap();
    let checkpoint = Checkpoint::new(&db).unwrap();
    checkpoint.create_checkpoint(&copy).unwrap();
    assert_whole(&copy, own, "checkpoint");
    let e = checkpoint.export_column_family(&db.cf_handle("default").unwrap(), temp.path().join("export"));
    assert_eq!(e.unwrap_err().kind(), ErrorKind::NotSupported);
    for shared in [true, false] {
        let (backups, to) = (temp.path().join(format!("backups{shared}")), temp.path().join(format!("to{shared}")));
        let mut how = BackupEngineOptions::new(&backups).unwrap();
        how.set_share_table_files(shared);
        let engine = BackupEngine::open(&how, &Env::new().unwrap()).unwrap();
        (0..2).for_each(|_| engine.create_new_backup(&db).unwrap());
        engine.verify_backup(2).unwrap();
        engine.restore_from_latest_backup(&to, &to, &RestoreOptions::default()).unwrap();
        assert_whole(&to, own, "backup");
    }
    drop(db);
    assert_whole(&dir, own, "the original");
}

#[test]
fn a_file_that_is_missing_is_named_whichever_table_has_it() {
    for number in PIECES {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("db");
        database(&dir);
        let path = dir.join(filename::table(number));
        std::fs::write(&path, "short").unwrap();
        for found in ["the file has 5 bytes", "missing"] {
            let e = open(&dir).err().unwrap();
            assert_eq!(e.kind(), ErrorKind::Corruption);
            assert!(e.message().contains(found) && e.message().contains(&filename::table(number)), "{e}");
            let _ = std::fs::remove_file(&path);
        }
    }
}

/// Block-based tables are a single file, so none of these can be read. Repair abandons what it cannot read, and deletes
/// none of it.
#[test]
fn repair_opens_tables_with_their_pieces() {
    enum Damage {
        None,
        NoCurrent,
        Missing(u64),
    }
    for damage in [Damage::None, Damage::NoCurrent, Damage::Missing(PIECES[2])] {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("db");
        let mut files = all_files(database(&dir));
        match damage {
            Damage::None => {}
            Damage::NoCurrent => std::fs::remove_file(dir.join(filename::CURRENT)).unwrap(),
            Damage::Missing(number) => {
                std::fs::remove_file(dir.join(filename::table(number))).unwrap();
                files.retain(|n| *n != number);
            }
        }
        let report = Db::repair(&options(), &dir).unwrap();
        let missing = if let Damage::Missing(number) = damage { vec![number] } else { Vec::new() };
        assert_eq!((report.tables_kept, report.tables_damaged, report.tables_missing), (0, 2, missing));
        drop(open(&dir).unwrap());
        assert_eq!((tables(&dir), tables(&dir.join("lost"))), (Vec::new(), files));
    }
}
