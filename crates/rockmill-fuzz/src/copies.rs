//! Copies of databases: damaged directories of backups, and checkpoints, backups, exports and imports of damaged
//! databases.

use std::path::Path;
use std::sync::Arc;

use rockmill::backup::{BackupEngine, BackupEngineOptions};
use rockmill::{Checkpoint, Db, Env, Error, ExportImportFilesMetaData, ImportColumnFamilyOptions};
use rockmill_io::{FileSystem, MemFileSystem, SystemClock};

use crate::database::{judge as placed, read_everything};
use crate::fixtures::{self, BACKUPS, DIR, Fixture, Open};
use crate::mend;
use crate::mutate::{self, Dice};

/// Part of every path in use here.
const ROOT: &str = "/hostile/";

fn judge(e: &Error) {
    placed(e, ROOT);
}

fn env(fs: &Arc<MemFileSystem>) -> Env {
    Env::from_parts(Arc::clone(fs) as Arc<dyn FileSystem>, Arc::new(SystemClock::default()))
}

/// A directory of backups with damaged files: it is listed, verified, restored, extended and purged.
pub fn backup(data: &[u8]) {
    let mut dice = Dice::new(data);
    let all = fixtures::backups();
    let fixture = &all[dice.among(0..all.len())];
    let mut files = fixture.files.clone();
    let names: Vec<String> = files.keys().cloned().collect();
    let mended = !dice.once_in(3);
    for _ in 0..dice.among(1..3) {
        let name = &names[dice.among(0..names.len())];
        let other = fixture.files.get(&names[dice.among(0..names.len())]).map_or(&[][..], Vec::as_slice);
        if dice.once_in(16) {
            files.remove(name);
            continue;
        }
        let Some(bytes) = files.get_mut(name) else { continue };
        mutate::mutate(&mut dice, bytes, other);
        if mended {
            mend::file(name, bytes);
        }
    }
    if mended {
        mend::backups(&mut files);
    }
    let fs = fixtures::file_system_at(BACKUPS, &files);
    let options = BackupEngineOptions::new(BACKUPS).expect("options");
    match BackupEngine::open_read_only(&options, &env(&fs)) {
        Ok(engine) => look_at(&engine, &fs, fixture),
        Err(e) => judge(&e),
    }
    let engine = match BackupEngine::open(&options, &env(&fs)) {
        Ok(engine) => engine,
        Err(e) => return judge(&e),
    };
    let mut fresh = fixtures::options(&fs);
    fresh.create_if_missing(true);
    let db = Db::open(&fresh, "/hostile/fresh").expect("a new database in memory");
    db.put(b"key", b"value").expect("a write");
    match engine.create_new_backup_flush(&db, dice.once_in(2)) {
        Ok(()) => {
            // Damaged backups must not prevent a new one.
            let newest = engine.get_backup_info().iter().map(|b| b.backup_id).max().expect("just made");
            engine.verify_backup_with_checksum(newest).expect("a new backup is sound");
            let target = "/hostile/again";
            engine.restore_from_backup(target, target, &Default::default(), newest).expect("a new backup is restored");
            let again = Db::open(&fixtures::options(&fs), target).expect("what was restored opens");
            assert_eq!(again.get(b"key").expect("a read").as_deref(), Some(&b"value"[..]));
        }
        Err(e) => judge(&e),
    }
    let _ = engine.purge_old_backups(2).map_err(|e| judge(&e));
    let ids: Vec<u32> = engine.get_backup_info().iter().map(|b| b.backup_id).collect();
    if let Some(&id) = ids.first() {
        let _ = engine.delete_backup(id).map_err(|e| judge(&e));
    }
    let _ = engine.garbage_collect().map_err(|e| judge(&e));
}

fn look_at(engine: &BackupEngine, fs: &Arc<MemFileSystem>, fixture: &Fixture) {
    engine.get_corrupted_backups().iter().for_each(|(_, e)| judge(e));
    for info in engine.get_backup_info() {
        let _ = engine.get_backup_details(info.backup_id).map_err(|e| judge(&e));
        let _ = engine.verify_backup(info.backup_id).map_err(|e| judge(&e));
        let _ = engine.verify_backup_with_checksum(info.backup_id).map_err(|e| judge(&e));
        match engine.restore_from_backup(DIR, DIR, &Default::default(), info.backup_id) {
            Ok(()) => read_restored(fs, fixture),
            Err(e) => judge(&e),
        }
    }
}

/// A restored backup is a database, possibly damaged.
fn read_restored(fs: &Arc<MemFileSystem>, fixture: &Fixture) {
    let names = Db::list_cf(&fixture.options(fs, "default"), DIR).unwrap_or_else(|e| {
        judge(&e);
        vec!["default".to_owned()]
    });
    match fixture.open(fs, &names, Open::ToRead) {
        Ok(db) => read_everything(&db, ROOT),
        Err(e) => judge(&e),
    }
}

/// Checkpoint, backup and export of an open, possibly damaged database; the copies are read too.
pub fn of_database(db: &Db, fs: &Arc<MemFileSystem>, fixture: &Fixture) {
    let options = fixture.options(fs, "default");
    let made = Checkpoint::new(db).and_then(|c| c.create_checkpoint("/hostile/checkpoint"));
    match made {
        Ok(()) => {
            let names = Db::list_cf(&options, "/hostile/checkpoint").expect("a checkpoint has a MANIFEST");
            match Db::open_cf_for_read_only(&options, "/hostile/checkpoint", names, false) {
                Ok(copy) => read_everything(&copy, ROOT),
                Err(e) => judge(&e),
            }
        }
        Err(e) => judge(&e),
    }
    match BackupEngine::open(&BackupEngineOptions::new(BACKUPS).expect("options"), &env(fs)) {
        Ok(engine) => match engine.create_new_backup(db) {
            Ok(()) => {
                engine.verify_backup_with_checksum(1).expect("a backup is what was copied");
                let target = "/hostile/restored";
                engine.restore_from_backup(target, target, &Default::default(), 1).expect("it is restored");
                Db::list_cf(&options, target).expect("a backup has a MANIFEST");
            }
            Err(e) => judge(&e),
        },
        Err(e) => judge(&e),
    }
    let cf = db.cf_handle("default").expect("always there");
    match Checkpoint::new(db).and_then(|c| c.export_column_family(&cf, "/hostile/export")) {
        Ok(metadata) => {
            let mut fresh = fixtures::options(fs);
            fresh.create_if_missing(true);
            let other = Db::open(&fresh, "/hostile/fresh").expect("a new database in memory");
            import_into(&other, fs, fixture, &metadata);
        }
        Err(e) => judge(&e),
    }
}

/// An error of an import may refer to its description, which is not a file.
fn judge_import(e: &Error) {
    let text = e.to_string();
    if text.contains("the list of files is empty") {
        assert!(text.contains("\"imported\""), "an import without a name: {text}");
    } else {
        judge(e);
    }
}

fn import_into(db: &Db, fs: &Arc<MemFileSystem>, fixture: &Fixture, metadata: &ExportImportFilesMetaData) {
    let how = ImportColumnFamilyOptions::default();
    match db.create_column_family_with_import(&fixture.options(fs, "default"), "imported", &how, metadata) {
        Ok(cf) => {
            read_everything(db, ROOT);
            let _ = db.put_cf(&cf, b"new", b"new").map_err(|e| judge(&e));
            let _ = db.flush_cf(&cf).map_err(|e| judge(&e));
            let _ = db.compact_range_cf(&cf, None::<&[u8]>, None::<&[u8]>).map_err(|e| judge(&e));
            read_everything(db, ROOT);
        }
        Err(e) => {
            judge_import(&e);
            assert!(db.cf_handle("imported").is_none(), "half an import: {e}");
        }
    }
}

/// An import whose description or tables are damaged.
pub fn import(data: &[u8]) {
    let mut dice = Dice::new(data);
    let all = &fixtures::all()[..fixtures::MADE];
    let fixture = &all[dice.among(0..all.len())];
    let fs = fixtures::file_system(&fixture.files);
    let db = fixture.open(&fs, &["default".to_owned(), "other".to_owned()], Open::ToWrite).expect("a sound database");
    let cf = db.cf_handle("default").expect("always there");
    // An export cannot describe tables of several files.
    db.make_tables_whole_cf(&cf).expect("a compaction");
    let export = Checkpoint::new(&db).and_then(|c| c.export_column_family(&cf, "/hostile/export"));
    let mut metadata = export.expect("a sound export");
    drop(db);
    for _ in 0..dice.among(1..4) {
        let count = metadata.files.len();
        let n = dice.among(0..count.max(1));
        let number = [0, 1, 7, u64::from(u32::MAX), (1 << 56) - 1, 1 << 56, u64::MAX];
        let number = dice.one_of(&number).unwrap_or(0);
        let Some(file) = metadata.files.get_mut(n) else { break };
        match dice.among(0..10) {
            0 => file.level = dice.one_of(&[0, 1, 2, 6, 7, 64, usize::MAX]).unwrap_or(0),
            1 => file.size = number,
            2 => file.smallest_seqno = number,
            3 => file.largest_seqno = number,
            4 => file.epoch_number = number,
            5 => mutate::mutate(&mut dice, &mut file.smallest, b"key0100\x01\x01\0\0\0\0\0\0"),
            6 => mutate::mutate(&mut dice, &mut file.largest, b"key0100\x01\x01\0\0\0\0\0\0"),
            7 => file.name = ["", "..", "CURRENT", "000000.sst", "/hostile/none.sst"][dice.among(0..5)].to_owned(),
            8 => {
                let twice = file.clone();
                metadata.files.push(twice);
            }
            _ => {
                let path = file.directory.join(&file.name);
                if let Ok(mut bytes) = fs.read_to_vec(Path::new(&path)) {
                    mutate::mutate(&mut dice, &mut bytes, b"");
                    mend::table(&mut bytes);
                    fs.write_all(&path, &bytes).expect("a file in memory");
                }
            }
        }
    }
    let mut fresh = fixtures::options(&fs);
    fresh.create_if_missing(true);
    let other = Db::open(&fresh, "/hostile/fresh").expect("a new database in memory");
    other.put(b"key0001", b"1").expect("a write");
    import_into(&other, &fs, fixture, &metadata);
    assert_eq!(other.get(b"key0001").expect("a read").as_deref(), Some(&b"1"[..]), "an import changed data");
}
