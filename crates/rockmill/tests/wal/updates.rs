//! `get_updates_since`: its results, the WALs that it reads, and its errors if something is missing.

use super::*;

#[test]
fn updates_are_read_back_from_archived_and_live_wals() {
    let fs = MemFileSystem::new();
    let mut options = options(&fs);
    options.set_wal_ttl_seconds(3600);
    let db = open_two(&options);
    let second = db.cf_handle("second").expect("opened");
    let mut written = Vec::new();
    for n in 0..200u32 {
        let mut batch = WriteBatch::new();
        for k in 0..=n % 3 {
            batch.put(format!("{n}-{k}"), n.to_string());
            batch.merge_cf(&second, "all", n.to_string());
        }
        let first = db.latest_sequence_number() + 1;
        db.write(&batch).expect("a batch");
        written.push((first, batch.len()));
        if n % 40 == 39 {
            db.flush_all().expect("a flush");
        }
    }
    let read = |since: u64| -> Vec<(u64, usize)> {
        let updates = db.get_updates_since(since).expect("an iterator");
        updates.map(|u| u.map(|(seq, batch)| (seq, batch.len())).expect("a batch")).collect()
    };
    assert!(
        db.get_sorted_wal_files().expect("files").iter().filter(|f| f.file_type == WalFileType::Archived).count() > 2
    );
    assert_eq!(read(0), written);
    for at in [0, 1, 57, 120, 198, 199] {
        // Batches that begin after it; a batch that begins at it does not count.
        assert_eq!(read(written[at].0), written[at + 1..], "since batch {at}");
        assert_eq!(read(written[at].0 - 1), written[at..], "since just before batch {at}");
    }
    let newest = db.latest_sequence_number();
    assert_eq!(read(newest), []);
    assert_eq!(db.get_updates_since(newest + 1).expect_err("not written yet").kind(), ErrorKind::NotFound);
    // An iterator ends at the database's state when it was created; the next one continues.
    let mut before = db.get_updates_since(newest - 1).expect("an iterator");
    db.put("later", "1").expect("a write");
    assert_eq!(before.by_ref().count(), 0, "the last batch began before");
    before.status().expect("no error");
    assert_eq!(read(newest), [(newest + 1, 1)]);
    // The batches repeat the original changes.
    let copy_fs = MemFileSystem::new();
    let copy = open_two(&self::options(&copy_fs));
    for update in db.get_updates_since(0).expect("an iterator") {
        copy.write(&update.expect("a batch").1).expect("a write");
    }
    assert_eq!(copy.latest_sequence_number(), db.latest_sequence_number());
    assert_eq!(get(&copy, "199-1").as_deref(), Some("199"));
}

#[test]
fn gaps_in_the_updates_are_named() {
    let fs = MemFileSystem::new();
    let mut options = options(&fs);
    options.set_wal_ttl_seconds(3600);
    let db = Db::open(&options, path()).expect("open");
    db.put("a", "1").expect("a write");
    db.put_opt("b", "2", &unlogged()).expect("a write");
    db.put("c", "3").expect("a write");
    let mut updates = db.get_updates_since(0).expect("an iterator");
    assert_eq!(updates.next().expect("one").expect("sound").0, 1);
    let e = updates.next().expect("an error").expect_err("a gap");
    assert!(e.kind() == ErrorKind::Corruption && e.to_string().contains("expected 2"), "{e}");
    assert!(updates.next().is_none() && updates.status().is_err());
    // There is none after it.
    assert_eq!(db.get_updates_since(2).expect("an iterator").map(|u| u.expect("sound").0).collect::<Vec<_>>(), [3]);
    // The last writes are unlogged: the WALs end too early.
    db.put_opt("d", "4", &unlogged()).expect("a write");
    let e = db.get_updates_since(2).expect("an iterator").last().expect("an error").expect_err("an end too early");
    assert_eq!(e.kind(), ErrorKind::TryAgain, "{e}");
}

#[test]
fn updates_are_read_from_wals_in_files_that_are_used_again() {
    let fs = MemFileSystem::new();
    let mut options = options(&fs);
    options.set_recycle_log_file_num(2);
    let db = open_two(&options);
    rounds(&db, 0, 4, 20);
    let from = db.latest_sequence_number();
    for n in 0..30 {
        db.put(format!("later{n}"), "v").expect("a write");
    }
    let first = |u: rockmill::Result<(u64, WriteBatch)>| u.expect("sound").0;
    let read: Vec<u64> = db.get_updates_since(from).expect("an iterator").map(first).collect();
    assert_eq!(read, (from + 1..=from + 30).collect::<Vec<_>>());
    // The WAL becomes obsolete, and its file is recycled, while an iterator is in it.
    let mut slow = db.get_updates_since(from).expect("an iterator");
    assert_eq!(slow.next().map(first), Some(from + 1));
    rounds(&db, 10, 4, 50);
    for (expected, update) in (from + 2..).zip(slow) {
        match update {
            Ok((first, _)) => assert_eq!(first, expected, "no update of another WAL"),
            Err(e) => assert!(matches!(e.kind(), ErrorKind::Corruption | ErrorKind::TryAgain), "{e}"),
        }
    }
}

#[test]
fn a_gap_in_the_updates_blames_a_lost_wal_only_where_one_may_be_lost() {
    let fs = MemFileSystem::new();
    let mut options = options(&fs);
    options.set_wal_ttl_seconds(3600);
    let mut writer = SstFileWriter::create(&options);
    writer.open("/ext.sst").expect("a table");
    writer.put("a", "ingested").expect("an entry");
    writer.finish().expect("a table");
    let db = Db::open(&options, path()).expect("open");
    let gap = |since: u64| {
        let last = db.get_updates_since(since).expect("an iterator").last();
        last.expect("an error").expect_err("a gap").to_string()
    };
    for n in 0..3 {
        db.put("a", format!("{n}")).expect("a write");
    }
    // It uses a sequence number, with and without a new WAL.
    db.ingest_external_file(vec!["/ext.sst"]).expect("an ingestion");
    db.put("b", "1").expect("a write");
    let e = gap(0);
    assert!(e.contains("no WAL has those between") && e.contains("ingested"), "{e}");
    let here = db.latest_sequence_number();
    db.put_opt("b", "2", &unlogged()).expect("a write");
    db.put("b", "3").expect("a write");
    db.flush().expect("a flush");
    db.put("b", "4").expect("a write");
    assert!(gap(here - 1).contains("no WAL has those between"));
    // If a whole WAL is missing, it returns an error.
    for n in 0..3 {
        db.put("c", format!("{n}")).expect("a write");
        db.flush().expect("a flush");
    }
    db.put("c", "9").expect("a write");
    let wals = db.get_sorted_wal_files().expect("files");
    let lost = &wals[wals.len() - 2];
    // It may be moved to the archive at any moment.
    let archived = path().join("archive").join(lost.path.file_name().expect("a name"));
    fs.remove(&lost.path).or_else(|_| fs.remove(&archived)).expect("a removal");
    let e = gap(lost.start_sequence - 2);
    assert!(e.contains("or their WAL is gone"), "{e}");
    // Internal batches do not appear, and users' log data does.
    let mut batch = WriteBatch::new();
    batch.put_log_data("for followers");
    db.write(&batch).expect("a write");
    db.put("d", "1").expect("a write");
    let from = db.latest_sequence_number() - 1;
    let tail: Vec<_> = db.get_updates_since(from - 1).expect("an iterator").map(|u| u.expect("sound")).collect();
    let shape: Vec<(u64, usize)> = tail.iter().map(|(first, batch)| (*first, batch.len())).collect();
    assert_eq!(shape, [(from, 1), (from + 1, 0), (from + 1, 1)]);
    assert_eq!(tail[1].1.data(), {
        batch.clear();
        batch.put_log_data("for followers");
        let mut data = batch.data().to_vec();
        data[..8].copy_from_slice(&(from + 1).to_le_bytes());
        data
    });
}

/// A point-in-time recovery drops updates, and their numbers are used again, but the archive still has them.
#[test]
fn updates_that_a_recovery_left_out_are_not_given() {
    let fs = MemFileSystem::new();
    let mut options = options(&fs);
    options.set_wal_size_limit_mb(100);
    options.set_min_write_buffer_number_to_merge(3);
    options.set_max_write_buffer_number(6);
    options.set_write_buffer_size(16 << 10);
    let db = Db::open(&options, path()).expect("open");
    let mut n = 0;
    // Three WALs whose data is in memtables.
    while db.get_sorted_wal_files().expect("files").len() < 3 {
        db.put_opt(format!("key{n:05}"), vec![b'v'; 500], &synced()).expect("a write");
        n += 1;
    }
    let wals = db.get_sorted_wal_files().expect("files");
    let image = fs.crash_image(CrashMode::KeepAll);
    drop(db);
    image.flip_stored_bit(&wals[0].path, 8 * 3000).expect("a flip");
    options.set_file_system(Arc::new(image));
    options.set_write_buffer_size(64 << 20);
    let db = Db::open(&options, path()).expect("open");
    let hole = db.latest_sequence_number();
    assert!(hole > 2 && hole < wals[1].start_sequence, "{hole}");
    let mut written = Vec::new();
    // Up to numbers that the dead updates had, and beyond them.
    while db.latest_sequence_number() < n + 20 {
        let key = format!("new{:05}", db.latest_sequence_number() + 1);
        db.put_opt(&key, "v", &synced()).expect("a write");
        written.push(key);
        if written.len() % 40 == 0 {
            db.flush().expect("a flush");
        }
    }
    struct Keys(Vec<String>);
    impl WriteBatchIterator for Keys {
        fn put(&mut self, key: &[u8], _: &[u8]) {
            self.0.push(String::from_utf8_lossy(key).into_owned());
        }
        fn delete(&mut self, _: &[u8]) {}
    }
    for since in [0, 1, hole - 1, hole, hole + 1, wals[1].start_sequence, wals[2].start_sequence, n, n + 10] {
        let mut keys = Keys(Vec::new());
        let mut first = None;
        for update in db.get_updates_since(since).expect("an iterator") {
            let (sequence, batch) = update.unwrap_or_else(|e| panic!("since {since}, hole {hole}: {e}"));
            first.get_or_insert(sequence);
            batch.iterate(&mut keys);
        }
        let old = (since..hole).map(|n| format!("key{n:05}"));
        let new = (since.max(hole)..n + 20).map(|n| format!("new{:05}", n + 1));
        let want: Vec<String> = old.chain(new).collect();
        assert_eq!(keys.0, want, "since {since}, hole {hole}");
        assert_eq!(first, Some(since + 1));
    }
}

#[test]
fn updates_begin_with_the_first_wal_that_is_still_there_when_they_are_read() {
    let fs = MemFileSystem::new();
    let db = open_two(&options(&fs));
    let second = db.cf_handle("second").expect("opened");
    db.put_cf(&second, "a", "1").expect("a write");
    db.put("b", "2").expect("a write");
    db.flush().expect("a flush"); // the other column family holds the WAL back
    db.put("c", "3").expect("a write");
    let updates = db.get_updates_since(0).expect("an iterator");
    db.flush_cf(&second).expect("a flush"); // and no more
    while db.get_sorted_wal_files().expect("files").len() > 1 {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(updates.map(|u| u.expect("sound").0).collect::<Vec<_>>(), [3]);
}

#[test]
fn updates_are_read_while_others_write_and_flush() {
    let fs = MemFileSystem::new();
    let mut options = options(&fs);
    options.set_wal_ttl_seconds(3600);
    options.set_write_buffer_size(32 << 10);
    let db = Arc::new(Db::open(&options, path()).expect("open"));
    let writers: Vec<_> = (0..2)
        .map(|w| {
            let db = Arc::clone(&db);
            std::thread::spawn(move || {
                for n in 0..1500 {
                    db.put(format!("{w}-{n}"), vec![b'x'; 100]).expect("a write");
                }
            })
        })
        .collect();
    let mut seen = 0;
    while seen < 3000 {
        for update in db.get_updates_since(seen).expect("an iterator") {
            let (first, batch) = update.unwrap_or_else(|e| panic!("after {seen}: {e}"));
            assert_eq!(first, seen + 1);
            seen += batch.len() as u64;
        }
    }
    writers.into_iter().for_each(|w| w.join().expect("a writer"));
}
