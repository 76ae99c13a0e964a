//! How files are opened, read and written, and how many are open.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rockmill::properties::IO_MEMORY;
use rockmill::{
    BlockBasedOptions, Cache, Db, Direction, ErrorKind, IteratorMode, MergeEngine, Options, ReadOptions,
    TphTableOptions,
};
use rockmill_io::{AccessPattern, CountingFileSystem, Fault, FileSystem, MemFileSystem, PosixFileSystem};
use rockmill_skip::{Needs, skip};

use super::limits::number;
use super::watch::WatchedFileSystem;
use super::{fill, filled_before_a_change_of_kind, key, memory, noise, options, table_bytes, tables};

fn watched() -> (Arc<WatchedFileSystem>, Options) {
    let fs = WatchedFileSystem::new(memory());
    let o = options(&(Arc::clone(&fs) as Arc<dyn FileSystem>));
    (fs, o)
}

/// Without a block cache, so that every block access is a read of the file.
fn uncached(o: &mut Options, change: impl FnOnce(&mut BlockBasedOptions)) {
    let mut table = BlockBasedOptions::default();
    table.disable_cache();
    change(&mut table);
    o.set_block_based_table_factory(&table);
}

#[test]
fn direct_io_is_chosen_for_reads_and_for_writes() {
    for (reads, writes) in [(false, false), (true, false), (false, true)] {
        let (fs, mut o) = watched();
        o.set_use_direct_reads(reads);
        o.set_use_direct_io_for_flush_and_compaction(writes);
        o.set_bytes_per_sync(12345);
        o.set_strict_bytes_per_sync(true);
        o.set_writable_file_max_buffer_size(77_000);
        o.set_advise_random_on_open(reads);
        let db = Db::open(&o, "/db").unwrap();
        for _ in 0..2 {
            fill(&db, 0..100, 1000);
            db.flush().unwrap();
        }
        assert_eq!(db.get(key(7)).unwrap(), Some(noise(7, 1000)));
        db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
        assert_eq!(db.get(key(7)).unwrap(), Some(noise(7, 1000)));
        let opened = fs.seen.opened_direct.lock().unwrap();
        assert!(opened.len() >= 3 && opened.iter().all(|&d| d == reads), "{opened:?}");
        let created = fs.seen.created.lock().unwrap();
        assert_eq!(created.len(), 3);
        for c in created.iter() {
            assert_eq!((c.direct, c.bytes_per_sync, c.strict_bytes_per_sync), (writes, 12345, true));
            assert_eq!(c.buffer_size, 77_000);
        }
        let advised = fs.seen.advised.lock().unwrap();
        assert_eq!(advised.contains(&AccessPattern::Normal), !reads, "a table is taken to be read at random");
    }
}

/// Data in the page cache stays there, and other data does not enter it.
#[test]
fn jobs_leave_the_page_cache_as_they_find_it() {
    struct Case {
        engine: MergeEngine,
        /// Direct I/O for users' reads, and for flushes and compactions.
        direct: [bool; 2],
        /// Percent of each table that is there.
        cached: usize,
        /// Whether a flush's table, a compaction's inputs and its outputs bypass it.
        past: [bool; 3],
    }
    use MergeEngine::{Pread, Uring};
    let case = |engine, direct, cached, past| Case { engine, direct, cached, past };
    for Case { engine, direct, cached, past } in [
        case(Uring, [false, false], 100, [false, false, false]),
        case(Uring, [false, false], 90, [false, false, false]),
        case(Uring, [false, false], 60, [false, true, false]),
        case(Uring, [false, false], 40, [false, true, true]),
        case(Uring, [false, false], 0, [false, true, true]),
        case(Uring, [false, true], 100, [true, true, true]),
        case(Uring, [true, false], 100, [true, true, true]),
        case(Pread, [false, false], 0, [false, false, false]),
        case(Pread, [false, true], 100, [true, false, true]),
    ] {
        let what = format!("{engine:?}, direct {direct:?}, {cached} % in the page cache");
        let (fs, mut o) = watched();
        fs.seen.rings.store(true, Ordering::SeqCst);
        fs.seen.cached_percent.store(cached, Ordering::SeqCst);
        o.set_merge_engine(engine);
        o.set_use_direct_reads(direct[0]);
        o.set_use_direct_io_for_flush_and_compaction(direct[1]);
        let db = Db::open(&o, "/db").unwrap();
        for _ in 0..2 {
            fill(&db, 0..100, 1000);
            db.flush().unwrap();
        }
        assert_eq!(db.get(key(7)).unwrap(), Some(noise(7, 1000)), "{what}");
        let made: Vec<_> = std::mem::take(&mut *fs.seen.created.lock().unwrap());
        assert!(made.len() == 2 && made.iter().all(|c| c.direct == past[0]), "{what}: {made:?}");
        fs.seen.opened_direct.lock().unwrap().clear();
        db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
        let read: Vec<_> = std::mem::take(&mut *fs.seen.opened_direct.lock().unwrap());
        assert!(read.contains(&past[1]), "{what}: {read:?}");
        assert!(past[1] || direct[0] || !read.contains(&true), "{what}: {read:?}");
        let made: Vec<_> = std::mem::take(&mut *fs.seen.created.lock().unwrap());
        assert!(made.len() == 1 && made[0].direct == past[2], "{what}: {made:?}");
        // Cached data needs no reads in flight, and plain writes need no buffers.
        let rings = number(&db, IO_MEMORY);
        let expected = match (engine, past[1]) {
            (Pread, _) => 0..=0,
            (_, false) => 1..=2 << 20,
            (_, true) => 9 << 20..=24 << 20,
        };
        assert!(expected.contains(&rings), "{what}: {rings} bytes of rings");
        assert_eq!(db.get(key(7)).unwrap(), Some(noise(7, 1000)), "{what}");
    }
}

/// Every file of every input, including additional files, is read in large reads. The outputs are the same as with
/// plain reads.
#[test]
fn compactions_of_tph_tables_read_through_the_ring() {
    let mut written = Vec::new();
    for (rings, parts) in [(false, 1), (true, 1), (false, 3), (true, 3)] {
        let (fs, mut o) = watched();
        fs.seen.rings.store(rings, Ordering::SeqCst);
        let mut tph = TphTableOptions::default();
        tph.set_garbage_percent(1000);
        o.set_tph_table_factory(&tph);
        o.set_num_levels(2);
        o.set_reproducible(true);
        o.set_max_subcompactions(parts);
        // As many lanes of 64 KiB as fit, and no more.
        o.set_compaction_io_memory(2 << 20);
        if parts > 1 {
            o.set_target_file_size_base(200_000);
        }
        let db = Db::open(&o, "/db").unwrap();
        let compact = || {
            db.flush().unwrap();
            db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
        };
        fill(&db, 0..3000, 300);
        compact();
        let overwrite = |step: u64| {
            (0..3000).step_by(step as usize).for_each(|n| db.put(key(n), noise(n + 10_000 * step, 300)).unwrap());
        };
        for step in [17, 19] {
            overwrite(step);
            compact();
        }
        overwrite(23);
        db.flush().unwrap();
        let inputs = db.live_files().unwrap();
        let files: usize = inputs.iter().map(|f| 1 + f.pieces.len()).sum();
        assert!(files > inputs.len() + 1, "no table has further files");
        fs.seen.opened_direct.lock().unwrap().clear();
        fs.seen.take_reads();
        compact();
        let opened = fs.seen.opened_direct.lock().unwrap().iter().filter(|direct| **direct).count();
        let reads = fs.seen.take_reads();
        if rings {
            // Each part opens what it reads.
            assert!(if parts > 1 { opened >= files } else { opened == files }, "{opened} of {files} files");
            let large = reads.iter().filter(|(_, len)| *len > 60_000).map(|(_, len)| *len).sum::<usize>();
            assert!(large > 700_000, "{large} bytes in large reads: {reads:?}");
        } else {
            assert_eq!(opened, 0, "plain reads open nothing anew");
        }
        for n in [0, 17, 19, 23, 100, 2999] {
            let step = [23, 19, 17].into_iter().find(|step| n % step == 0).unwrap_or(0);
            assert_eq!(db.get(key(n)).unwrap(), Some(noise(n + 10_000 * step, 300)), "{n}");
        }
        let bytes = |(name, _): &(String, u64)| (name.clone(), fs.read_to_vec(&Path::new("/db").join(name)).unwrap());
        written.push(tables(&*fs, Path::new("/db")).iter().map(bytes).collect::<Vec<_>>());
    }
    assert!(written[0] == written[1] && written[2] == written[3], "rings make a difference");
}

/// Whichever file of the table a key is in, one read finds it. A deleted key takes no read, and of keys that never
/// existed, one in 255 takes a read.
#[test]
fn lookups_of_tph_tables_read_one_block() {
    let (fs, mut o) = watched();
    let mut blocks = BlockBasedOptions::default();
    blocks.disable_cache();
    let mut tph = TphTableOptions::default();
    tph.set_block_based_options(&blocks);
    tph.set_garbage_percent(1000);
    o.set_tph_table_factory(&tph);
    o.set_num_levels(2);
    let db = Db::open(&o, "/db").unwrap();
    let compact = || {
        db.flush().unwrap();
        db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
    };
    fill(&db, 0..6000, 300);
    compact();
    (0..6000).step_by(17).for_each(|n| fill(&db, n..n + 1, 300));
    compact();
    (23..5990).step_by(23).for_each(|n| db.delete(key(n)).unwrap());
    compact();
    let files = db.live_files().unwrap();
    assert!(files.len() == 1 && files[0].pieces.len() == 2, "{files:?}");
    let mut absent = 0;
    for n in 0..6000 {
        fs.seen.take_reads();
        let gone = n > 0 && n % 23 == 0 && n < 5990;
        assert_eq!(db.get(key(n)).unwrap(), (!gone).then(|| noise(n, 300)), "key {n}");
        assert_eq!(fs.seen.take_reads().len(), usize::from(!gone), "key {n}");
        // Behind the last key nobody looks.
        for more in (0..6u8).filter(|_| n < 5999) {
            assert_eq!(db.get([&key(n)[..], &[more]].concat()).unwrap(), None);
            absent += fs.seen.take_reads().len();
        }
    }
    // One in 255 of 35,994 is 141, give or take a dozen.
    assert!((60..230).contains(&absent), "{absent} reads for absent keys");
}

/// Tables of a column family's former kind are read as before: a lookup reads one block; for an absent key, usually
/// none. The same holds for a block-based table that became a piece of a TPH table.
#[test]
fn tables_are_read_as_their_kind_is_whatever_kind_is_written_now() {
    for old_is_tph in [false, true] {
        let fs = CountingFileSystem::new(memory());
        let mut blocks = BlockBasedOptions::default();
        blocks.disable_cache();
        blocks.set_block_size(512);
        blocks.set_bloom_filter(10.0, false);
        let db = filled_before_a_change_of_kind(&(Arc::new(fs.clone()) as _), &blocks, old_is_tph, 4000);
        let reads_of_lookups = |what: &str| {
            assert_eq!(db.get(key(0)).unwrap(), Some(noise(0, 100)));
            let before = fs.counts();
            (0..1000).for_each(|n| assert_eq!(db.get(key(n)).unwrap(), Some(noise(n, 100))));
            let found = fs.counts().reads - before.reads;
            (0..1000).for_each(|n| assert_eq!(db.get([&key(n)[..], b"+"].concat()).unwrap(), None));
            let absent = fs.counts().reads - before.reads - found;
            let text = format!("{what}, old tables are TPH: {old_is_tph}; {found} and {absent}");
            assert!(found == 1000 && absent < 40, "{text}");
        };
        reads_of_lookups("old");
        // A few keys change, and the old file becomes a piece.
        (3990..4000).for_each(|n| fill(&db, n..n + 1, 100));
        db.flush().unwrap();
        db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
        let files = db.live_files().unwrap();
        assert!(files.len() == 1 && files[0].pieces.len() == usize::from(!old_is_tph), "{files:?}");
        reads_of_lookups("after a compaction");
    }
}

/// The descriptor flags of the tables in `dir` that this process has open.
fn open_tables(dir: &Path) -> Vec<u32> {
    let mut flags = Vec::new();
    for entry in fs::read_dir("/proc/self/fd").unwrap().flatten() {
        let Ok(to) = fs::read_link(entry.path()) else { continue };
        if to.starts_with(dir) && to.extension().is_some_and(|e| e == "sst") {
            let info = Path::new("/proc/self/fdinfo").join(entry.file_name());
            let text = fs::read_to_string(info).unwrap();
            let octal = text.lines().find_map(|l| l.strip_prefix("flags:")).unwrap().trim();
            flags.push(u32::from_str_radix(octal, 8).unwrap());
        }
    }
    flags
}

#[test]
fn the_kernel_sees_direct_reads_and_a_file_system_without_them_still_works() {
    const O_DIRECT: u32 = 0o40000;
    let mut places = vec![tempfile::tempdir().unwrap()];
    places.extend(tempfile::tempdir_in("/dev/shm"));
    for (i, place) in places.iter().enumerate() {
        let dir = place.path().canonicalize().unwrap();
        for direct in [false, true] {
            let mut o = Options::default();
            o.create_if_missing(true);
            o.set_use_direct_reads(direct);
            o.set_use_direct_io_for_flush_and_compaction(direct);
            let db = Db::open(&o, &dir).unwrap();
            for _ in 0..2 {
                fill(&db, 0..300, 1000);
                db.flush().unwrap();
            }
            db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
            assert!((0..300).all(|n| db.get(key(n)).unwrap() == Some(noise(n, 1000))));
            let flags = open_tables(&dir);
            assert!(!flags.is_empty());
            if i == 0 && direct && !flags.iter().all(|f| f & O_DIRECT != 0) {
                let reason = format!("{} is on a file system that refuses O_DIRECT", dir.display());
                skip("the_kernel_sees_direct_reads", &Needs::DirectIo.because(reason));
            }
            assert!(direct || flags.iter().all(|f| f & O_DIRECT == 0));
        }
    }
}

#[test]
fn the_space_of_a_flush_is_reserved_at_once() {
    // A direct write that extends its file must end before the next one begins.
    for (entries, allowed, reserves) in [(100, true, false), (6000, true, true), (6000, false, false)] {
        let (fs, mut o) = watched();
        o.set_allow_fallocate(allowed);
        let db = Db::open(&o, "/db").unwrap();
        fill(&db, 0..entries, 1000);
        db.flush().unwrap();
        let created = fs.seen.created.lock().unwrap();
        assert_eq!(created.len(), 1);
        let (reserved, size) = (created[0].preallocate, table_bytes(&*fs, Path::new("/db")));
        if reserves {
            assert!((size..size + size / 5).contains(&reserved), "{reserved} bytes for a table of {size}");
        } else {
            assert_eq!(reserved, 0, "one write takes all of it, or nothing may be reserved");
        }
    }
}

#[test]
fn write_back_is_started_as_asked() {
    let dir = tempfile::tempdir().unwrap();
    for (bytes_per_sync, strict) in [(0, false), (256 << 10, false), (256 << 10, true)] {
        let fs = Arc::new(CountingFileSystem::new(Arc::new(PosixFileSystem::default())));
        let mut o = options(&(Arc::clone(&fs) as Arc<dyn FileSystem>));
        // Tables written through a ring bypass the page cache: there is nothing to write back.
        o.set_merge_engine(MergeEngine::Pread);
        o.set_bytes_per_sync(bytes_per_sync);
        o.set_strict_bytes_per_sync(strict);
        o.set_writable_file_max_buffer_size(64 << 10);
        let db = Db::open(&o, dir.path().join(format!("{bytes_per_sync}{strict}"))).unwrap();
        fill(&db, 0..4000, 1000);
        db.flush().unwrap();
        let started = fs.counts().write_backs;
        // 4 MB, of which the last one is left to the sync.
        assert!(if bytes_per_sync == 0 { started == 0 } else { (8..=14).contains(&started) }, "{started}");
    }
}

#[test]
fn compactions_read_as_much_at_once_as_they_are_told() {
    for readahead in [0, 16 << 10, 1 << 20] {
        let (fs, mut o) = watched();
        o.set_compaction_readahead_size(readahead);
        let db = Db::open(&o, "/db").unwrap();
        for _ in 0..2 {
            fill(&db, 0..500, 1000);
            db.flush().unwrap();
        }
        assert_eq!(db.get(key(7)).unwrap(), Some(noise(7, 1000))); // opens one table
        fs.seen.take_reads();
        db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
        let reads = fs.seen.take_reads();
        let largest = reads.iter().map(|r| r.1).max().unwrap();
        match readahead {
            0 => assert!(reads.len() > 200, "{}", reads.len()),
            16_384 => assert!((62..90).contains(&reads.len()) && largest <= 20_000, "{} {largest}", reads.len()),
            _ => assert!(reads.len() <= 10 && largest > 400_000, "{} {largest}", reads.len()),
        }
    }
}

#[test]
fn iterators_read_ahead_in_both_directions() {
    let (fs, mut o) = watched();
    uncached(&mut o, |_| {});
    let db = Db::open(&o, "/db").unwrap();
    fill(&db, 0..2000, 1000);
    db.flush().unwrap();
    let scan = |read: ReadOptions, mode: IteratorMode<'_>| {
        db.get(key(0)).unwrap(); // opens the table
        fs.seen.take_reads();
        assert_eq!(db.iterator_opt(mode, read).map(Result::unwrap).count(), 2000);
        fs.seen.take_reads()
    };
    for mode in [IteratorMode::Start, IteratorMode::End] {
        let what = format!("{mode:?}");
        let reads = scan(ReadOptions::default(), mode);
        let lens: Vec<usize> = reads.iter().map(|r| r.1).collect();
        // 2 MB: two single blocks, then from 8 KiB up to 256 KiB and the rest of the last block.
        assert!(reads.len() < 20, "{what}: {lens:?}");
        let most = *lens.iter().max().unwrap();
        assert!(lens[0] < 8192 && lens[1] < 8192 && (250 << 10..260 << 10).contains(&most), "{what}: {lens:?}");
        let bytes: usize = lens.iter().sum();
        assert!(bytes < 2_100_000, "{what}: {bytes} bytes");
    }
    let mut explicit = ReadOptions::default();
    explicit.set_readahead_size(512 << 10);
    assert!(scan(explicit.clone(), IteratorMode::Start).len() <= 6);
    assert!(scan(explicit, IteratorMode::End).len() <= 7);
    // A step back and forth is not a scan.
    let mut it = db.raw_iterator();
    it.seek(key(1000));
    fs.seen.take_reads();
    for _ in 0..10 {
        (0..8).for_each(|_| it.next());
        (0..8).for_each(|_| it.prev());
    }
    assert!(fs.seen.take_reads().iter().all(|r| r.1 <= 16 << 10), "read-ahead where there is no sequence");
    drop(db);

    // Off, and of other sizes.
    uncached(&mut o, |t| t.set_max_auto_readahead_size(0));
    let db = Db::open(&o, "/db").unwrap();
    db.get(key(0)).unwrap();
    fs.seen.take_reads();
    assert_eq!(db.iterator(IteratorMode::Start).count(), 2000);
    assert!(fs.seen.take_reads().len() > 400);
    drop(db);
    uncached(&mut o, |t| {
        t.set_num_file_reads_for_auto_readahead(5);
        t.set_initial_auto_readahead_size(64 << 10);
        t.set_max_auto_readahead_size(64 << 10);
    });
    let db = Db::open(&o, "/db").unwrap();
    db.get(key(0)).unwrap();
    fs.seen.take_reads();
    assert_eq!(db.iterator(IteratorMode::From(&key(0), Direction::Forward)).count(), 2000);
    let lens: Vec<usize> = fs.seen.take_reads().iter().map(|r| r.1).collect();
    assert!(
        lens[..5].iter().all(|&l| l < 8192) && (64 << 10..72 << 10).contains(&lens[5]) && lens[6] > 60 << 10,
        "{lens:?}"
    );
}

#[test]
fn reads_fill_the_cache_and_check_blocks_unless_told_not_to() {
    let fs = memory();
    let cache = Cache::new_lru_cache(8 << 20);
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(&cache);
    let mut o = options(&fs);
    o.set_block_based_table_factory(&table);
    let db = Db::open(&o, "/db").unwrap();
    fill(&db, 0..1000, 1000);
    db.flush().unwrap();
    let mut past = ReadOptions::default();
    past.fill_cache(false);
    assert_eq!(db.get_opt(key(1), &past).unwrap(), Some(noise(1, 1000)));
    assert_eq!(db.iterator_opt(IteratorMode::Start, past.clone()).count(), 1000);
    assert_eq!(cache.get_usage(), 0);
    assert_eq!(db.get(key(1)).unwrap(), Some(noise(1, 1000)));
    assert!((4096..8192).contains(&cache.get_usage()), "{}", cache.get_usage());
    assert_eq!(db.iterator(IteratorMode::Start).count(), 1000);
    assert!(cache.get_usage() > 1_000_000);
    drop(db);

    // One bit of a value.
    let (name, size) = tables(&*fs, Path::new("/db")).remove(0);
    let path = Path::new("/db").join(name);
    let mut bytes = fs.read_to_vec(&path).unwrap();
    assert_eq!(bytes.len() as u64, size);
    bytes[500] ^= 1;
    fs.write_all(&path, &bytes).unwrap();
    let db = Db::open(&o, "/db").unwrap();
    let e = db.get(key(0)).unwrap_err().to_string();
    assert!(e.contains("checksum"), "{e}");
    let mut unchecked = ReadOptions::default();
    unchecked.set_verify_checksums(false);
    unchecked.fill_cache(false);
    let value = db.get_opt(key(0), &unchecked).unwrap().unwrap();
    let differ = value.iter().zip(noise(0, 1000)).filter(|(a, b)| **a != *b).count();
    assert_eq!(differ, 1);
    assert!(db.iterator_opt(IteratorMode::Start, unchecked).all(|e| e.is_ok()));
    assert!(db.iterator(IteratorMode::Start).any(|e| e.is_err()));
}

#[test]
fn open_tables_stay_within_their_bound() {
    let (fs, mut o) = watched();
    o.set_max_open_files(15); // ten of them for others
    o.set_target_file_size_base(64 << 10);
    o.set_num_levels(3);
    let cache = Cache::new_lru_cache(64 << 20);
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(&cache);
    o.set_block_based_table_factory(&table);
    let db = Db::open(&o, "/db").unwrap();
    for part in 0..4 {
        (part..2000).step_by(4).for_each(|n| fill(&db, n..n + 1, 1000));
        db.flush().unwrap();
    }
    db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
    let count = tables(&*fs, Path::new("/db")).len();
    assert!(count >= 20, "{count} tables");
    for n in (0..2000).chain(0..2000) {
        assert_eq!(db.get(key(n * 7 % 2000)).unwrap(), Some(noise(n * 7 % 2000, 1000)));
        // The new table is open before the oldest one is closed.
        assert!(fs.seen.open().0 <= 5, "{} tables are open", fs.seen.open().0);
    }
    let most = fs.seen.open().1;
    assert!(most <= 6 + 4, "{most} tables were open at once: the bound, and what the compaction held");
    // A table in constant use stays open while others come and go.
    db.get(key(0)).unwrap();
    let before = fs.seen.opened_direct.lock().unwrap().len();
    for n in (100..2000).step_by(50) {
        db.get(key(n)).unwrap();
        db.get(key(0)).unwrap();
    }
    let opened = fs.seen.opened_direct.lock().unwrap().len() - before;
    assert!((20..=count + 1).contains(&opened), "{opened} opens of {count} tables");
    // The blocks of a closed table are still in the cache.
    fs.seen.take_reads();
    for n in 0..2000 {
        db.get(key(n)).unwrap();
    }
    let reads = fs.seen.take_reads();
    let blocks = reads.iter().filter(|r| r.1 < 6000 && r.1 > 4000).count();
    assert_eq!(blocks, 0, "data blocks were read again");
    // Iterators hold their current table, one per level.
    let iterators: Vec<_> = (0..3).map(|_| db.iterator(IteratorMode::Start)).collect();
    for mut it in iterators {
        assert_eq!(it.by_ref().count(), 2000);
        assert!(fs.seen.open().0 <= 5 + 3, "{}", fs.seen.open().0);
    }
    // Dropped files do not count any more.
    fill(&db, 0..2000, 1000);
    db.flush().unwrap();
    db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
    assert_eq!(db.iterator(IteratorMode::Start).count(), 2000);
    assert!(fs.seen.open().0 <= 5, "{}", fs.seen.open().0);
    assert!(table_bytes(&*fs, Path::new("/db")) > 2_000_000);
    // Changed while it is open.
    db.set_db_options(&[("max_open_files", "11")]).unwrap();
    assert!(fs.seen.open().0 <= 1, "{}", fs.seen.open().0);
    db.set_db_options(&[("max_open_files", "-1")]).unwrap();
    assert_eq!(db.iterator(IteratorMode::Start).count(), 2000);
    assert!(fs.seen.open().0 >= 20, "{}", fs.seen.open().0);
}

#[test]
fn files_of_tables_stay_within_their_bound() {
    let (fs, mut o) = watched();
    o.set_max_open_files(22); // ten of them for others
    o.set_target_file_size_base(64 << 10);
    o.set_num_levels(3);
    let mut tph = TphTableOptions::default();
    tph.set_garbage_percent(1000);
    o.set_tph_table_factory(&tph);
    let db = Db::open(&o, "/db").unwrap();
    for part in 0..4 {
        (part..2000).step_by(if part == 0 { 1 } else { 97 }).for_each(|n| fill(&db, n..n + 1, 1000));
        db.flush().unwrap();
        db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
    }
    let (tables, files) = (db.live_files().unwrap().len(), tables(&*fs, Path::new("/db")).len());
    assert!(tables <= 12 && files > 12, "{tables} tables of {files} files");
    for n in (0..2000).chain(0..2000) {
        assert_eq!(db.get(key(n * 7 % 2000)).unwrap(), Some(noise(n * 7 % 2000, 1000)));
        // New files are open before the oldest ones are closed.
        assert!(fs.seen.open().0 <= 12, "{} files are open", fs.seen.open().0);
    }
    // One table may have more files than the limit.
    db.set_db_options(&[("max_open_files", "11")]).unwrap();
    for n in 0..2000 {
        assert_eq!(db.get(key(n * 7 % 2000)).unwrap(), Some(noise(n * 7 % 2000, 1000)));
        assert!(fs.seen.open().0 <= 4, "{} files are open", fs.seen.open().0);
    }
}

#[test]
fn scans_with_reads_in_flight_give_what_others_give_and_read_no_byte_twice() {
    // On the disk of the build directory: elsewhere, direct I/O may be impossible.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let fs = CountingFileSystem::new(Arc::new(PosixFileSystem::default()));
    let probe = fs.batch_probe();
    let rings = probe.available;
    if !rings {
        skip("scans with reads in flight through rings", &Needs::Uring.because(probe.reason));
    }
    let mut o = options(&(Arc::new(fs.clone()) as Arc<dyn FileSystem>));
    o.set_use_direct_reads(true);
    o.set_target_file_size_base(1 << 20);
    for cached in [false, true] {
        if !cached {
            uncached(&mut o, |_| {});
        }
        let db = Db::open(&o, dir.path()).unwrap();
        if !cached {
            // A level of several tables, and tables in L0 above it.
            fill(&db, 0..4000, 1000);
            db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
            fill(&db, 1000..1500, 1000);
            db.flush().unwrap();
            fill(&db, 4000..6000, 1000);
            db.flush().unwrap();
        } else {
            o.set_block_based_table_factory(&BlockBasedOptions::default());
        }
        let scan = |read: &ReadOptions, from: u64, mode: Direction| {
            let before = fs.counts();
            let from = key(from);
            let all: Vec<_> = db
                .iterator_opt(IteratorMode::From(&from, mode), read.clone())
                .map(Result::unwrap)
                .map(|(k, v)| (k.to_vec(), v.to_vec()))
                .collect();
            (all, fs.counts() - before)
        };
        let (mut plain, mut flying) = (ReadOptions::default(), ReadOptions::default());
        for read in [&mut plain, &mut flying] {
            read.fill_cache(false);
        }
        flying.set_async_io(true);
        for readahead in [0, 100 << 10, 3 << 20] {
            for (from, mode) in [(0, Direction::Forward), (3123, Direction::Forward), (3123, Direction::Reverse)] {
                plain.set_readahead_size(readahead);
                flying.set_readahead_size(readahead);
                let (wanted, alone) = scan(&plain, from, mode);
                let (given, counts) = scan(&flying, from, mode);
                let what = format!("cached {cached}, read-ahead {readahead}, from {from} {mode:?}");
                assert!(given == wanted, "{what}");
                assert!(wanted.len() > 2800, "{what}: {}", wanted.len());
                // Readahead that a table's end interrupts is wasted, once for each table.
                let spare = 9 * (256 << 10).max(readahead as u64);
                assert!(counts.read_bytes < alone.read_bytes + spare, "{what}: {counts:?} {alone:?}");
                let rings = rings && db_is_direct(&fs, dir.path());
                // The largest takes a table at once.
                let expected = rings && mode == Direction::Forward && readahead < 1 << 20;
                // Seeks use a ring, too.
                assert_eq!(counts.ring_reads > alone.ring_reads, expected, "{what}: {counts:?} {alone:?}");
            }
        }
        // An iterator moves between threads, seeks, and is dropped with reads in flight.
        let mut it = db.raw_iterator_opt(flying.clone());
        it.seek_to_first();
        for round in 0..6u64 {
            std::thread::scope(|scope| {
                let it = &mut it;
                scope.spawn(move || {
                    for n in 0..700 {
                        assert_eq!(it.key(), Some(&key(round * 900 + n)[..]), "round {round}");
                        it.next();
                    }
                    it.seek(key((round + 1) * 900));
                });
            });
            it.status().unwrap();
        }
    }
}

/// True if tables are read past the page cache there.
fn db_is_direct(fs: &CountingFileSystem, dir: &Path) -> bool {
    let all = fs.list_dir(dir).unwrap();
    let table = all.iter().find(|name| name.ends_with(".sst")).unwrap();
    fs.open_random(&dir.join(table), true).unwrap().is_direct()
}

#[test]
fn a_scan_with_reads_in_flight_is_right_or_says_what_failed() {
    let (twin, dir) = (Arc::new(MemFileSystem::new()), Path::new("/db"));
    let mut o = options(&(Arc::clone(&twin) as Arc<dyn FileSystem>));
    o.set_use_direct_reads(true);
    uncached(&mut o, |_| {});
    {
        let db = Db::open(&o, dir).unwrap();
        fill(&db, 0..3000, 1000);
        db.flush().unwrap();
    }
    let db = Db::open(&o, dir).unwrap();
    let mut read = ReadOptions::default();
    read.fill_cache(false);
    read.set_readahead_size(100 << 10);
    read.set_async_io(true);
    let scan = || {
        let before = twin.calls();
        let mut it = db.raw_iterator_opt(read.clone());
        let mut n = 0;
        it.seek_to_first();
        while it.valid() {
            assert_eq!((it.key(), it.value()), (Some(&key(n)[..]), Some(&noise(n, 1000)[..])));
            n += 1;
            it.next();
        }
        (n, it.status(), twin.calls() - before)
    };
    let (all, status, calls) = scan();
    assert!(all == 3000 && status.is_ok() && calls > 10, "{all} {status:?} {calls}");
    let mut told = 0;
    for call in 0..calls {
        for fault in 0..3 {
            let (at, lasting) = (twin.calls() + call, fault == 2);
            twin.set_hook(Box::new(move |op| match fault {
                0 if op.number == at => Fault::Short(5000),
                1 if op.number == at => Fault::FlipBit(12_345),
                _ if op.number == at || (lasting && op.number > at) => {
                    Fault::Error(std::io::Error::from_raw_os_error(libc::EIO))
                }
                _ => Fault::None,
            }));
            let (n, status, _) = scan();
            twin.clear_fault();
            let what = format!("fault {fault} at call {call}: {n} entries, {status:?}");
            match (fault, status) {
                (0, status) => assert!(n == 3000 && status.is_ok(), "{what}"),
                (_, Ok(())) => assert_eq!(n, 3000, "{what}"),
                (_, Err(e)) => {
                    told += 1;
                    let kind = if fault == 1 { ErrorKind::Corruption } else { ErrorKind::IOError };
                    assert!(e.kind() == kind && e.message().contains(".sst") && n < 3000, "{what}");
                }
            }
        }
    }
    assert!(told > calls, "{told} of {calls}");
    let (n, status, _) = scan();
    assert!(n == 3000 && status.is_ok(), "nothing lasts");
}
