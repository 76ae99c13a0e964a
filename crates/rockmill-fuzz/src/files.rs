//! Decoders that read a file: tables, MANIFESTs, OPTIONS, the meta files of backups; and input from users.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rockmill::backup::{BackupEngine, BackupEngineOptions};
use rockmill::internals::{GetContext, Table, TableOpenOptions, TableReadOptions, properties_of};
use rockmill::{Db, Env, Error, IngestExternalFileOptions, Options, OptionsLoader, WriteBatch};
use rockmill_format::{InternalKeyComparator, key};
use rockmill_io::{FileSystem, MemFileSystem, SystemClock};

use crate::{database, fixtures, mend};

/// Fails unless the error names the file, or at least the directory.
pub(crate) fn assert_placed(e: &Error, place: &str) {
    let text = e.to_string();
    assert!(text.contains(place), "an error without a place ({place}): {text}");
    assert!(!text.contains("panic"), "a panic came out as an error: {text}");
}

/// A whole table: opened, read in every way, verified; unchanged, and with corrected checksums.
pub fn table(data: &[u8]) {
    let mut mended = data.to_vec();
    mend::table(&mut mended);
    for bytes in [data, &mended] {
        if let Err(e) = read_table(bytes) {
            assert_placed(&e, TABLE);
        }
        if mended == data {
            break;
        }
    }
}

const TABLE: &str = "/hostile/000012.sst";

fn read_table(bytes: &[u8]) -> rockmill::Result<()> {
    let fs = MemFileSystem::new();
    let path = Path::new(TABLE);
    fs.create_dir(Path::new("/hostile"), true).expect("a directory in memory");
    fs.write_all(path, bytes).expect("a file in memory");
    let file = fs.open_random(path, false).expect("the file");
    let _ = properties_of(Arc::clone(&file), path).map_err(|e| assert_placed(&e, TABLE));
    let options = TableOpenOptions {
        path: path.to_owned(),
        cmp: InternalKeyComparator::default(),
        cache: None,
        largest_seqno: None,
        statistics: None,
        read_protection: None,
        prefix_extractor: None,
    };
    let table = Table::open(file, options)?;
    read_open_table(&table, bytes.len() as u64, TABLE);
    Ok(())
}

/// Reads an open table, whose files have `size` bytes, in every way; errors must name the place.
pub(crate) fn read_open_table(table: &Arc<Table>, size: u64, place: &str) {
    let mut keys = vec![b"key0001\x01\xff\xff\xff\xff\xff\xff\xff".to_vec()];
    let mut it = table.iter(TableReadOptions::default());
    it.seek_to_first();
    let mut entries = 0u64;
    while it.valid() {
        // Blocks may share bytes if handles are damaged, but not without limit.
        entries += 1;
        assert!(entries <= 64 * size.max(1 << 20), "a table has no end");
        if keys.len() < 24 {
            keys.push(it.key().to_vec());
        }
        let _ = it.value();
        it.next();
    }
    let mut results = vec![it.status()];
    it.seek_to_last();
    let mut back = 0u64;
    while it.valid() && back < 4096 {
        back += 1;
        it.prev();
    }
    results.push(it.status());
    for k in &keys {
        it.seek(k);
        results.push(it.status());
        it.seek_for_prev(k);
        results.push(it.status());
        let mut ctx = GetContext::new(key::user_key(k));
        results.push(table.get(k, TableReadOptions::default(), &mut ctx));
        let _ = table.approximate_offset_of(size, k);
    }
    let mut it = table.scan(0, true);
    it.seek_to_first();
    let mut entries = 0u64;
    while it.valid() && entries < 1 << 20 {
        entries += 1;
        it.next();
    }
    results.push(it.status());
    results.push(table.anchors(10).map(drop));
    results.push(table.boundaries().map(drop));
    results.push(table.verify());
    let _ = (table.describe(), table.memory_usage());
    for result in results {
        let _ = result.map_err(|e| assert_placed(&e, place));
    }
}

/// A MANIFEST that CURRENT names; unchanged, and with corrected checksums.
pub fn manifest(data: &[u8]) {
    let mut mended = data.to_vec();
    mend::log(&mut mended);
    for bytes in [data, &mended] {
        let files = BTreeMap::from([
            ("CURRENT".to_owned(), b"MANIFEST-000005\n".to_vec()),
            ("MANIFEST-000005".to_owned(), bytes.to_vec()),
        ]);
        let fs = fixtures::file_system(&files);
        let options = fixtures::options(&fs);
        if let Err(e) = Db::summary(&options, fixtures::DIR) {
            assert_placed(&e, fixtures::DIR);
        }
        let names = Db::list_cf(&options, fixtures::DIR).unwrap_or_else(|_| vec!["default".into()]);
        match Db::open_cf_for_read_only(&options, fixtures::DIR, names, false) {
            Ok(db) => {
                let _ = db.get(b"key0001").map_err(|e| assert_placed(&e, fixtures::DIR));
            }
            Err(e) => assert_placed(&e, fixtures::DIR),
        }
    }
}

/// An OPTIONS file.
pub fn options(data: &[u8]) {
    let path = Path::new(fixtures::DIR).join("OPTIONS-000007");
    let files = BTreeMap::from([("OPTIONS-000007".to_owned(), data.to_vec())]);
    let fs = fixtures::file_system(&files);
    for ignore in [false, true] {
        let mut loader = OptionsLoader::new();
        loader.file_system(Arc::clone(&fs) as Arc<dyn FileSystem>).ignore_unknown_options(ignore);
        if let Err(e) = loader.load_latest(fixtures::DIR) {
            assert_placed(&e, &path.display().to_string());
        }
    }
}

/// Options as a string, as users write them.
pub fn option_string(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Ok(options) = Options::from_string(&Options::default(), &text) {
        let pairs = options.values().into_iter().map(|v| (v.name, v.value));
        let _ = pairs.count();
    }
}

/// The meta file of a backup.
pub fn backup_meta(data: &[u8]) {
    let fs = MemFileSystem::new();
    let dir = PathBuf::from("/hostile/backups");
    for name in ["meta", "private/1", "shared_checksum", "shared"] {
        fs.create_dir(&dir.join(name), true).expect("a directory in memory");
    }
    fs.write_all(&dir.join("meta/1"), data).expect("a file in memory");
    fs.write_all(&dir.join("private/1/CURRENT"), b"MANIFEST-000005\n").expect("a file in memory");
    fs.write_all(&dir.join("shared_checksum/000012_sABC_10.sst"), b"0123456789").expect("a file in memory");
    let env = Env::from_parts(Arc::new(fs), Arc::new(SystemClock::default()));
    let options = BackupEngineOptions::new(&dir).expect("options");
    let engine = match BackupEngine::open_read_only(&options, &env) {
        Ok(engine) => engine,
        Err(e) => return assert_placed(&e, "/hostile/backups"),
    };
    for (id, e) in engine.get_corrupted_backups() {
        assert_eq!(id, 1);
        assert_placed(&e, "/hostile/backups");
    }
    for info in engine.get_backup_info() {
        let _ = engine.get_backup_details(info.backup_id);
        let _ = engine.verify_backup_with_checksum(info.backup_id).map_err(|e| assert_placed(&e, "/hostile/backups"));
        let target = "/hostile/restored";
        let restored = engine.restore_from_backup(target, target, &Default::default(), info.backup_id);
        let _ = restored.map_err(|e| assert_placed(&e, "/hostile/"));
    }
}

/// A database in memory with a few keys, some of them in a table.
fn small_db() -> (Arc<MemFileSystem>, Db) {
    let fs = Arc::new(MemFileSystem::new());
    let mut options = fixtures::options(&fs);
    options.create_if_missing(true);
    let db = Db::open(&options, fixtures::DIR).expect("a database in memory");
    db.put(b"key0001", b"1").expect("a put");
    db.flush().expect("a flush");
    db.put(b"key0100", b"100").expect("a put");
    (fs, db)
}

/// A file that a user ingests; unchanged, and with corrected checksums.
pub fn ingest(data: &[u8]) {
    let mut mended = data.to_vec();
    mend::table(&mut mended);
    for bytes in [data, &mended] {
        let (fs, db) = small_db();
        let path = "/hostile/external.sst";
        fs.write_all(Path::new(path), bytes).expect("a file in memory");
        let mut refused = true;
        for verify in [true, false] {
            let mut how = IngestExternalFileOptions::default();
            how.set_verify_checksums_before_ingest(verify);
            match db.ingest_external_file_opts(&how, vec![path]) {
                Ok(()) => refused = false,
                Err(e) => assert_placed(&e, "/hostile/"),
            }
            if refused {
                assert_eq!(db.get(b"key0100").expect("a read").as_deref(), Some(&b"100"[..]), "a refusal changed data");
            }
        }
        database::read_everything(&db, fixtures::DIR);
        let _ = db.compact_range(None::<&[u8]>, None::<&[u8]>).map_err(|e| assert_placed(&e, fixtures::DIR));
        database::read_everything(&db, fixtures::DIR);
        if mended == data {
            break;
        }
    }
}

/// Encoded batches that a user writes.
pub fn write_batch(data: &[u8]) {
    let Ok(batch) = WriteBatch::from_data(data) else { return };
    let (fs, db) = small_db();
    let before = db.latest_sequence_number();
    match db.write(&batch) {
        Ok(()) => assert!(db.latest_sequence_number() >= before),
        Err(_) => assert_eq!(db.get(b"key0100").expect("a read").as_deref(), Some(&b"100"[..])),
    }
    database::read_everything(&db, fixtures::DIR);
    let now: Vec<_> = db.iterator(rockmill::IteratorMode::Start).flatten().collect();
    drop(db);
    // The log must return every accepted batch.
    let again = Db::open(&fixtures::options(&fs), fixtures::DIR).expect("what was written opens again");
    let then: Vec<_> = again.iterator(rockmill::IteratorMode::Start).flatten().collect();
    assert_eq!(now, then, "another content after opening again");
}
