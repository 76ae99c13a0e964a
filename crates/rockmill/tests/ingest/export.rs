//! Column families exported and imported: between databases of Rockmill, and with RocksDB both ways.

use std::path::Path;
use std::sync::Arc;

use rockmill::{
    Checkpoint, ColumnFamilyDescriptor, Db, ErrorKind, ExportImportFilesMetaData, ExportedFile,
    ImportColumnFamilyOptions, Options, SstFileWriter,
};
use rockmill_io::{FileSystem, MemFileSystem};

use super::oracle::content::{Entries, read, same};
use super::oracle::{Peer, Script};
use super::{mem_options, options, write_sst};

fn files(db: &Db, family: &str) -> Vec<(i32, u64, u64, u64)> {
    let all = db.live_files().unwrap().into_iter().filter(|f| f.column_family_name == family);
    all.map(|f| (f.level, f.size as u64, f.smallest_seqno, f.largest_seqno)).collect()
}

/// A column family with tables in several levels, some of them ingested, and range tombstones truncated at table
/// boundaries.
fn fill(options: &Options, db: &Db, outside: &Path) -> Entries {
    let cf = db.cf_handle("from").unwrap();
    for round in 0..4 {
        for i in (0..600).skip(round).step_by(round + 1) {
            db.put_cf(&cf, format!("key{i:04}"), format!("{round}{}", "x".repeat(60))).unwrap();
        }
        db.delete_range_cf(&cf, format!("key{:04}", round * 50), format!("key{:04}", round * 50 + 120)).unwrap();
        db.flush_cf(&cf).unwrap();
        if round % 2 == 1 {
            db.compact_range_cf(&cf, None::<&[u8]>, None::<&[u8]>).unwrap();
        }
    }
    let mut w = SstFileWriter::create(options);
    w.open(outside).unwrap();
    w.put("key0100", "ingested").unwrap();
    w.delete_range("key0300", "key0310").unwrap();
    w.finish().unwrap();
    db.ingest_external_file_cf(&cf, vec![outside]).unwrap();
    db.put_cf(&cf, "key0101", "in the memtable").unwrap();
    read(db, "from")
}

fn small_tables(options: &mut Options) {
    options.set_target_file_size_base(4 << 10);
    options.set_disable_auto_compactions(true);
}

#[test]
fn an_export_is_imported_with_levels_and_sequence_numbers() {
    for moves in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let file = |n: &str| dir.path().join(n);
        let mut options = options();
        small_tables(&mut options);
        let db = Db::open_cf(&options, file("a"), ["default", "from"]).unwrap();
        let expected = fill(&options, &db, &file("t.sst"));
        let meta =
            Checkpoint::new(&db).unwrap().export_column_family(&db.cf_handle("from").unwrap(), file("x")).unwrap();
        assert!(meta.files.len() > 5 && meta.get_db_comparator_name() == "leveldb.BytewiseComparator");
        let before = files(&db, "from");
        // The source changes and is then deleted.
        db.put_cf(&db.cf_handle("from").unwrap(), "key0001", "later").unwrap();
        drop(db);
        Db::destroy(&options, file("a")).unwrap();

        let db = Db::open(&options, file("b")).unwrap();
        db.put("a", "1").unwrap();
        let snapshot = db.snapshot();
        let mut how = ImportColumnFamilyOptions::new();
        how.set_move_files(moves);
        let cf = db.create_column_family_with_import(&options, "to", &how, &meta).unwrap();
        assert_eq!(snapshot.get_cf(&cf, "key0101").unwrap(), None, "newer than the snapshot");
        drop(snapshot);
        assert_eq!(files(&db, "to"), before);
        assert!(db.latest_sequence_number() >= before.iter().map(|f| f.3).max().unwrap());
        same("imported", &expected, &read(&db, "to"));
        assert_eq!(std::fs::read_dir(file("x")).unwrap().count(), if moves { 0 } else { before.len() });
        db.put_cf(&cf, "key0101", "newest").unwrap();
        let mut changed = expected.clone();
        changed.iter_mut().filter(|(k, _)| k == b"key0101").for_each(|(_, v)| *v = b"newest".to_vec());
        same("written over", &changed, &read(&db, "to"));
        db.flush_cf(&cf).unwrap();
        db.compact_range_cf(&cf, None::<&[u8]>, None::<&[u8]>).unwrap();
        same("compacted", &changed, &read(&db, "to"));
        drop((cf, db));
        let db = Db::open_cf(&options, file("b"), ["default", "to"]).unwrap();
        same("reopened", &changed, &read(&db, "to"));
        // RocksDB reads it.
        let driver = crate::need!("an_export_is_imported", Peer::Library.driver());
        drop(db);
        let mut script = Script::new();
        script.line("cf to num_levels=7").open(&file("b")).line("dump to").line("close");
        let answer = driver.answer("an_export_is_imported", &script).expect("it opens databases");
        same("RocksDB's view", &changed, &answer.entries());
    }
}

#[test]
fn what_does_not_fit_is_not_imported() {
    let fs = MemFileSystem::new();
    let mut options = mem_options(&fs);
    small_tables(&mut options);
    let db = Db::open_cf(&options, "/a", ["default", "from"]).unwrap();
    fill(&options, &db, Path::new("/t.sst"));
    let from = db.cf_handle("from").unwrap();
    let checkpoint = Checkpoint::new(&db).unwrap();
    let meta = checkpoint.export_column_family(&from, "/x").unwrap();
    assert!(checkpoint.export_column_family(&from, "/x").unwrap_err().to_string().contains("exists"));
    let tables = || fs.list_dir(Path::new("/a")).unwrap().iter().filter(|n| n.ends_with(".sst")).count();
    let (before, how) = (tables(), ImportColumnFamilyOptions::new());
    let refused = |meta: &ExportImportFilesMetaData, options: &Options, words: &str| {
        let e = db.create_column_family_with_import(options, "to", &how, meta).unwrap_err();
        assert!(e.to_string().contains(words) && e.to_string().contains("\"to\""), "{words}: {e}");
        assert!(db.cf_handle("to").is_none());
        assert_eq!(tables(), before, "{words}");
    };
    let mut empty = meta.clone();
    empty.files.clear();
    refused(&empty, &options, "list of files is empty");
    let mut reversed = options.clone();
    reversed.set_comparator_object(Arc::new(rockmill_format::comparator::ReverseBytewiseComparator));
    refused(&meta, &reversed, "comparator");
    let with = |change: &dyn Fn(&mut ExportedFile)| {
        let mut meta = meta.clone();
        change(&mut meta.files[0]); // of L0
        meta
    };
    refused(&with(&|f| f.name = "999999.sst".into()), &options, "999999.sst");
    refused(&with(&|f| f.size += 1), &options, "bytes");
    refused(&with(&|f| f.level = 9), &options, "num_levels");
    refused(&with(&|f| f.level = 1 << 32), &options, "num_levels");
    refused(&with(&|f| (f.smallest_seqno, f.largest_seqno) = (0, 0)), &options, "equence number");
    refused(&with(&|f| f.smallest = b"short".to_vec()), &options, "sst");
    let mut twice = meta.clone();
    twice.files.extend(meta.files.iter().filter(|f| f.level > 0).cloned());
    refused(&twice, &options, "overlap");
    // Also by the names in the export.
    let name = &twice.files.last().expect("a table below L0").name;
    refused(&twice, &options, &format!("/x/{}", name.trim_start_matches('/')));
    assert_eq!(
        db.create_column_family_with_import(&options, "from", &how, &meta).unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
    assert_eq!(tables(), before);
    db.create_column_family_with_import(&options, "to", &how, &meta).unwrap();
    same("both", &read(&db, "from"), &read(&db, "to"));
}

#[test]
fn rocksdb_and_rockmill_import_what_the_other_exports() {
    let test = "rocksdb_and_rockmill_import_what_the_other_exports";
    let driver = crate::need!(test, Peer::Library.driver());
    let dir = tempfile::tempdir().unwrap();
    let file = |n: &str| dir.path().join(n);
    let mut options = options();
    small_tables(&mut options);
    // From here to there.
    let db = Db::open_cf(&options, file("ours"), ["default", "from"]).unwrap();
    let cf = db.cf_handle("from").unwrap();
    for round in 0..3 {
        for i in (0..400).skip(round).step_by(round + 1) {
            db.put_cf(&cf, format!("key{i:04}"), format!("{round}")).unwrap();
        }
        db.flush_cf(&cf).unwrap();
        if round == 1 {
            db.compact_range_cf(&cf, None::<&[u8]>, None::<&[u8]>).unwrap();
        }
    }
    write_sst(&options, &file("t.sst"), &[("key0100", "ingested")]);
    db.ingest_external_file_cf(&cf, vec![file("t.sst")]).unwrap();
    let expected = read(&db, "from");
    let meta = Checkpoint::new(&db).unwrap().export_column_family(&cf, file("export")).unwrap();
    let mut line = format!("import to {}", file("export").display());
    for f in &meta.files {
        line += &format!(" /{} {} {} {} {}", f.name, f.level, f.size, f.smallest_seqno, f.largest_seqno);
    }
    let mut script = Script::new();
    script.line("cf default num_levels=7").open(&file("theirs")).line("put default 61 62");
    // The driver sets options of column families by `cf`; `to` has the defaults.
    script.line("export default ".to_owned() + file("unused").to_str().unwrap());
    script.line(line).line("dump to").line("verify").line("close");
    same("RocksDB imports", &expected, &driver.answer(test, &script).expect("it imports").entries());

    // From there to here.
    let mut script = Script::new();
    script.line("cf from num_levels=7;disable_auto_compactions=true").open(&file("their2"));
    for round in 0..3u32 {
        for i in 0..400 {
            script.put("from", format!("key{i:04}"), format!("their{round}"));
        }
        script.hex("delrange", "from", &[format!("key{:04}", round * 100).as_bytes(), b"key0350"]);
        script.line("flush from");
        if round == 1 {
            script.line("compact from");
        }
    }
    script.line(format!("export from {}", file("export2").display())).line("dump from").line("close");
    let answer = driver.answer(test, &script).expect("it exports");
    let mut meta = ExportImportFilesMetaData::default();
    meta.set_db_comparator_name("leveldb.BytewiseComparator");
    for words in answer.words("file ") {
        let number = |i: usize| words[i].parse::<u64>().unwrap();
        let mut table = ExportedFile::default();
        table.directory = file("export2");
        table.name.clone_from(&words[0]);
        table.level = number(1) as usize;
        table.size = number(2);
        table.smallest_seqno = number(3);
        table.largest_seqno = number(4);
        meta.files.push(table);
    }
    assert!(meta.files.iter().any(|f| f.level == 0) && meta.files.iter().any(|f| f.level > 0));
    db.create_column_family_with_import(&options, "to", &ImportColumnFamilyOptions::new(), &meta).unwrap();
    same("Rockmill imports", &answer.entries(), &read(&db, "to"));
}

/// Each call fails in turn: afterwards the column family is complete or absent.
#[test]
fn a_failed_import_is_all_or_nothing() {
    let base = MemFileSystem::new();
    let options = mem_options(&base);
    {
        let db = Db::open(&options, "/a").unwrap();
        for i in 0..50 {
            db.put(format!("k{i:02}"), "v").unwrap();
        }
    }
    let run = |fs: &MemFileSystem| {
        let options = mem_options(fs);
        let db = Db::open(&options, "/a")?;
        let meta = Checkpoint::new(&db)?.export_column_family(&db.default_cf(), "/x")?;
        let mut how = ImportColumnFamilyOptions::new();
        how.set_move_files(true);
        db.create_column_family_with_import(&options, "to", &how, &meta).map(drop)
    };
    let whole = base.crash_image(rockmill_io::CrashMode::KeepAll);
    run(&whole).unwrap();
    let calls = whole.calls();
    let (mut there, mut absent) = (0, 0);
    for at in (0..calls).step_by((calls / 120).max(1) as usize) {
        let fs = base.crash_image(rockmill_io::CrashMode::KeepAll);
        fs.fail_after(at, 5);
        let done = run(&fs);
        fs.clear_fault();
        let image = fs.crash_image(rockmill_io::CrashMode::SyncedOnly);
        for fs in [&fs, &image] {
            let options = mem_options(fs);
            let families = Db::list_cf(&options, "/a").unwrap();
            let families = families.into_iter().map(|f| ColumnFamilyDescriptor::new(f, options.clone()));
            let db = Db::open_cf_descriptors(&options, "/a", families).unwrap();
            assert_eq!(read(&db, "default").len(), 50, "call {at} of {calls}");
            match db.cf_handle("to") {
                Some(_) => {
                    assert_eq!(read(&db, "to").len(), 50, "call {at} of {calls}");
                    there += 1;
                }
                None => {
                    assert!(done.is_err(), "call {at} of {calls}: it was imported");
                    absent += 1;
                }
            }
        }
    }
    assert!(there > 0 && absent > 0, "{there} times there, {absent} times absent");
}
