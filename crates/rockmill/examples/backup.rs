//! Backups: incremental copies of an open database, verified, listed, restored and deleted.

use rockmill::backup::{BackupEngine, BackupEngineOptions, CreateBackupOptions, RestoreOptions};
use rockmill::{Db, Env};

fn main() -> rockmill::Result<()> {
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let dir = scratch.path().join("db");
    let path = dir.join("db");
    let db = Db::open_default(&path)?;
    let mut options = BackupEngineOptions::new(dir.join("backups"))?;
    options.set_max_background_operations(2);
    let engine = BackupEngine::open(&options, &Env::new()?)?;

    db.put("balance", "100")?;
    engine.create_new_backup_flush(&db, true)?;
    db.put("balance", "0")?;
    let mut how = CreateBackupOptions::default();
    how.set_flush_before_backup(true);
    let second = engine.create_new_backup_with_metadata(&db, &how, b"after the mistake")?;
    for backup in engine.get_backup_info() {
        println!("backup {}: {} files, {} bytes", backup.backup_id, backup.num_files, backup.size);
        engine.verify_backup_with_checksum(backup.backup_id)?;
    }
    // The first table is in both backups and was copied only once.
    let shared = engine.get_backup_details(second)?.files.into_iter().filter(|f| f.backups == 2).count();
    assert_eq!(shared, 1);

    drop(db);
    engine.restore_from_backup(&path, &path, &RestoreOptions::default(), 1)?;
    let db = Db::open_default(&path)?;
    assert_eq!(db.get("balance")?.as_deref(), Some(&b"100"[..]));
    println!("restored backup 1: the balance is 100 again");
    engine.purge_old_backups(1)?;
    assert_eq!(engine.get_backup_info().len(), 1);

    drop((db, engine));
    Ok(())
}
