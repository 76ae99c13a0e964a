//! The memory file system's guarantees for crash and fault tests.

use rockmill_io::error::{is_not_plain, is_out_of_space, raw_os_error};
use rockmill_io::{CrashMode, Fault, FileSystem, MemFileSystem, OpKind, WriteOptions};
use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::{Duration, Instant};

const MODES: [CrashMode; 4] = [CrashMode::SyncedOnly, CrashMode::KeepAll, CrashMode::Random(7), CrashMode::Hostile(7)];

fn p(path: &str) -> &Path {
    Path::new(path)
}

/// A file system with a durable directory `/db`.
fn with_db() -> MemFileSystem {
    let fs = MemFileSystem::new();
    fs.create_dir(p("/db"), false).unwrap();
    fs.sync_dir(p("/")).unwrap();
    fs
}

fn read(fs: &MemFileSystem, path: &str) -> Option<Vec<u8>> {
    match fs.read_to_vec(p(path)) {
        Ok(data) => Some(data),
        Err(e) if e.kind() == ErrorKind::NotFound => None,
        Err(e) => panic!("{e}"),
    }
}

#[test]
fn synced_data_under_a_synced_name_survives_every_crash() {
    let fs = with_db();
    fs.write_all(p("/db/f"), b"safe").unwrap();
    fs.sync_dir(p("/db")).unwrap();
    for seed in 0..50 {
        for mode in [CrashMode::Random(seed), CrashMode::Hostile(seed), CrashMode::SyncedOnly, CrashMode::KeepAll] {
            assert_eq!(read(&fs.crash_image(mode), "/db/f").unwrap(), b"safe", "{mode:?}");
        }
    }
}

#[test]
fn a_file_that_another_wrote_can_be_synced_under_another_name() {
    let fs = with_db();
    let mut file = fs.create(p("/outside"), WriteOptions::default()).unwrap();
    file.append_and_flush(b"data").unwrap();
    fs.hard_link(p("/outside"), p("/db/f")).unwrap();
    fs.sync_dir(p("/db")).unwrap();
    assert_eq!(read(&fs.crash_image(CrashMode::SyncedOnly), "/db/f").unwrap(), b"", "its name alone is durable");
    fs.sync_file(p("/db/f")).unwrap();
    assert_eq!(read(&fs.crash_image(CrashMode::SyncedOnly), "/db/f").unwrap(), b"data");
    fs.set_fault(Box::new(|op| (op.kind == OpKind::Sync).then(|| io::Error::from_raw_os_error(5))));
    assert_eq!(raw_os_error(&fs.sync_file(p("/db/f")).unwrap_err()), Some(5));
}

#[test]
fn only_synced_bytes_survive_at_least_and_written_ones_at_most() {
    let fs = with_db();
    let mut file = fs.create(p("/db/log"), WriteOptions::default()).unwrap();
    fs.sync_dir(p("/db")).unwrap();
    file.append(b"one ").unwrap();
    file.sync().unwrap();
    file.append_and_flush(b"two ").unwrap();
    file.append(b"never left the process").unwrap();
    assert_eq!(read(&fs.crash_image(CrashMode::SyncedOnly), "/db/log").unwrap(), b"one ");
    assert_eq!(read(&fs.crash_image(CrashMode::KeepAll), "/db/log").unwrap(), b"one two ");
    file.sync().unwrap();
    assert_eq!(read(&fs.crash_image(CrashMode::SyncedOnly), "/db/log").unwrap(), b"one two never left the process");
}

#[test]
fn a_file_sync_does_not_make_the_name_durable_and_a_directory_sync_not_the_data() {
    let fs = with_db();
    fs.write_all(p("/db/nameless"), b"x").unwrap();
    assert_eq!(read(&fs.crash_image(CrashMode::SyncedOnly), "/db/nameless"), None);
    let mut file = fs.create(p("/db/empty"), WriteOptions::default()).unwrap();
    file.append_and_flush(b"not synced").unwrap();
    fs.sync_dir(p("/db")).unwrap();
    let after = fs.crash_image(CrashMode::SyncedOnly);
    assert_eq!((read(&after, "/db/nameless").unwrap(), read(&after, "/db/empty").unwrap()), (b"x".to_vec(), vec![]));
}

#[test]
fn a_directory_whose_own_name_was_lost_takes_its_files_along() {
    let fs = with_db();
    fs.create_dir(p("/db/new"), false).unwrap();
    fs.write_all(p("/db/new/f"), b"x").unwrap();
    fs.sync_dir(p("/db/new")).unwrap();
    assert!(!fs.crash_image(CrashMode::SyncedOnly).exists(p("/db/new")).unwrap());
    fs.sync_dir(p("/db")).unwrap();
    assert_eq!(read(&fs.crash_image(CrashMode::SyncedOnly), "/db/new/f").unwrap(), b"x");
    fs.rename(p("/db/new"), p("/db/final")).unwrap();
    let after = fs.crash_image(CrashMode::SyncedOnly);
    assert_eq!((read(&after, "/db/new/f").is_some(), read(&after, "/db/final/f").is_some()), (true, false));
}

#[test]
fn replacing_by_rename_leaves_the_old_or_the_new_and_never_none() {
    let fs = with_db();
    fs.write_all(p("/db/CURRENT"), b"old").unwrap();
    fs.sync_dir(p("/db")).unwrap();
    fs.start_recording();
    fs.write_all(p("/db/tmp"), b"new").unwrap();
    fs.rename(p("/db/tmp"), p("/db/CURRENT")).unwrap();
    let mut seen = BTreeSet::new();
    let mut replay = fs.replay().unwrap();
    for point in 0..replay.points() {
        replay.advance_to(point);
        for seed in 0..20 {
            let after = replay.crash_image(CrashMode::Random(seed));
            seen.insert(read(&after, "/db/CURRENT").expect("one of both is always there"));
        }
    }
    assert_eq!(seen, BTreeSet::from([b"old".to_vec(), b"new".to_vec()]));
}

#[test]
fn a_removal_comes_undone_until_the_directory_is_synced_and_frees_memory_after() {
    let fs = with_db();
    fs.write_all(p("/db/f"), b"back").unwrap();
    fs.sync_dir(p("/db")).unwrap();
    fs.remove(p("/db/f")).unwrap();
    assert_eq!(fs.used_bytes(), 0);
    assert_eq!(read(&fs.crash_image(CrashMode::SyncedOnly), "/db/f").unwrap(), b"back");
    assert_eq!(read(&fs.crash_image(CrashMode::KeepAll), "/db/f"), None);
    fs.sync_dir(p("/db")).unwrap();
    assert_eq!(read(&fs.crash_image(CrashMode::SyncedOnly), "/db/f"), None);
}

#[test]
fn a_rename_between_directories_settles_with_either_directory() {
    for synced in ["/db", "/"] {
        let fs = with_db();
        fs.write_all(p("/db/f"), b"x").unwrap();
        fs.rename(p("/db/f"), p("/f")).unwrap();
        fs.sync_dir(p(synced)).unwrap();
        let after = fs.crash_image(CrashMode::SyncedOnly);
        assert_eq!((read(&after, "/db/f"), read(&after, "/f")), (None, Some(b"x".to_vec())), "synced {synced}");
    }
}

/// The subsets of these names that are in a directory, over many seeds.
fn name_sets(fs: &MemFileSystem, dirs: &[&str], mode: fn(u64) -> CrashMode) -> BTreeSet<Vec<String>> {
    let image = |seed| {
        let after = fs.crash_image(mode(seed));
        let list = |dir: &&str| after.list_dir(p(dir)).unwrap();
        let mut names: Vec<String> = dirs.iter().flat_map(list).collect();
        names.sort();
        names
    };
    (0..400).map(image).collect()
}

#[test]
fn with_a_journal_names_survive_in_order_in_each_directory() {
    let fs = with_db();
    fs.create_dir(p("/wals"), false).unwrap();
    fs.sync_dir(p("/")).unwrap();
    for name in ["/db/a", "/wals/x", "/db/b", "/wals/y"] {
        fs.write_all(p(name), b"").unwrap();
    }
    let seen = name_sets(&fs, &["/db", "/wals"], CrashMode::Random);
    for names in &seen {
        let has = |name: &str| names.iter().any(|n| n == name);
        assert!(has("a") || !has("b"), "{names:?}: b overtook a");
        assert!(has("x") || !has("y"), "{names:?}: y overtook x");
    }
    assert_eq!(seen.len(), 9, "each directory keeps 0, 1 or 2, whatever the other does: {seen:?}");
}

#[test]
fn without_a_journal_any_unsynced_name_may_be_lost_without_the_others() {
    let fs = with_db();
    for name in ["/db/a", "/db/b", "/db/c"] {
        fs.write_all(p(name), b"").unwrap();
    }
    assert_eq!(name_sets(&fs, &["/db"], CrashMode::Hostile).len(), 8);
    fs.sync_dir(p("/db")).unwrap();
    assert_eq!(name_sets(&fs, &["/db"], CrashMode::Hostile).len(), 1);
    // Also removals: the newer one may be on the disk and the older one not.
    fs.remove(p("/db/a")).unwrap();
    fs.remove(p("/db/b")).unwrap();
    assert_eq!(name_sets(&fs, &["/db"], CrashMode::Hostile).len(), 4);
}

#[test]
fn changes_of_one_name_stay_in_order_and_a_rename_is_one_change() {
    let fs = with_db();
    fs.write_all(p("/db/CURRENT"), b"").unwrap();
    fs.sync_dir(p("/db")).unwrap();
    fs.write_all(p("/db/tmp"), b"").unwrap();
    fs.rename(p("/db/tmp"), p("/db/new")).unwrap();
    fs.rename(p("/db/new"), p("/db/newer")).unwrap();
    for mode in [CrashMode::Random as fn(u64) -> CrashMode, CrashMode::Hostile] {
        let expected = ["", "tmp", "new", "newer"];
        let expected =
            expected.map(|n| ["CURRENT", n].iter().filter(|n| !n.is_empty()).map(|n| n.to_string()).collect());
        assert_eq!(name_sets(&fs, &["/db"], mode), BTreeSet::from(expected));
    }
}

#[test]
fn files_are_kept_and_lost_independently_of_each_other() {
    let fs = with_db();
    let mut files = ["/db/a", "/db/b"].map(|name| fs.create(p(name), WriteOptions::default()).unwrap());
    fs.sync_dir(p("/db")).unwrap();
    for file in &mut files {
        file.append_and_flush(&[1; 512]).unwrap();
    }
    for mode in [CrashMode::Random as fn(u64) -> CrashMode, CrashMode::Hostile] {
        let whole = |fs: &MemFileSystem, name| read(fs, name).unwrap() == [1; 512];
        let image = |seed| fs.crash_image(mode(seed));
        let seen: BTreeSet<_> = (0..200).map(image).map(|fs| (whole(&fs, "/db/a"), whole(&fs, "/db/b"))).collect();
        assert_eq!(seen.len(), 4, "the later write may be there without the earlier one: {seen:?}");
    }
}

#[test]
fn random_crashes_keep_lose_and_tear_in_whole_sectors() {
    let fs = with_db();
    let mut file = fs.create(p("/db/f"), WriteOptions::default()).unwrap();
    file.append(&[1; 4096]).unwrap();
    file.sync().unwrap();
    fs.sync_dir(p("/db")).unwrap();
    // Appends after the synced part, one sector after the other, some in one write.
    for i in 2..10_u8 {
        file.append_and_flush(&vec![i; 512 * (1 + usize::from(i % 3))]).unwrap();
    }
    let whole = read(&fs, "/db/f").unwrap();
    let (mut all, mut none, mut prefix, mut holes) = (0, 0, 0, 0);
    for seed in 0..300 {
        let after = read(&fs.crash_image(CrashMode::Random(seed)), "/db/f").unwrap();
        assert_eq!(after, read(&fs.crash_image(CrashMode::Random(seed)), "/db/f").unwrap(), "same seed, same disk");
        assert!(after.len() <= whole.len() && after.len().is_multiple_of(512), "seed {seed}: {}", after.len());
        assert!(after[..4096] == whole[..4096], "seed {seed}: synced bytes changed");
        for (i, sector) in after.chunks(512).enumerate() {
            let kept = sector == &whole[i * 512..(i + 1) * 512];
            assert!(kept || sector.iter().all(|&b| b == 0), "seed {seed}: sector {i} is neither kept nor lost");
        }
        match after.len() {
            n if n == whole.len() && after == whole => all += 1,
            4096 => none += 1,
            n if after == whole[..n] => prefix += 1,
            _ => holes += 1,
        }
    }
    eprintln!("of 300: {all} whole, {none} lost, {prefix} prefixes, {holes} with holes");
    assert!(all > 20 && none > 20 && prefix > 20 && holes > 20);
}

#[test]
fn hostile_crashes_leave_garbage_and_torn_sectors_but_never_touch_synced_bytes() {
    let fs = with_db();
    let mut file = fs.create(p("/db/f"), WriteOptions::default()).unwrap();
    file.append(&[1; 1000]).unwrap();
    file.sync().unwrap();
    fs.sync_dir(p("/db")).unwrap();
    file.append_and_flush(&[2; 5000]).unwrap();
    let (mut garbage, mut torn) = (0, 0);
    for seed in 0..300 {
        let after = read(&fs.crash_image(CrashMode::Hostile(seed)), "/db/f").unwrap();
        assert!(after[..1000].iter().all(|&b| b == 1), "seed {seed}");
        garbage += usize::from(after[1000..].iter().any(|&b| b > 2));
        torn += usize::from(!after.len().is_multiple_of(512) && after.len() != 6000 && after.len() != 1000);
    }
    eprintln!("of 300: {garbage} with garbage, {torn} torn inside a sector");
    assert!(garbage > 10 && torn > 10);
}

#[test]
fn overwriting_a_recycled_file_mixes_old_and_new_sectors() {
    let fs = with_db();
    fs.write_all(p("/db/old"), &[b'o'; 4096]).unwrap();
    let mut file = fs.reuse(p("/db/old"), p("/db/new"), WriteOptions::default()).unwrap();
    fs.sync_dir(p("/db")).unwrap();
    file.append_and_flush(&[b'n'; 2048]).unwrap();
    let mut mixed = 0;
    for seed in 0..100 {
        let after = read(&fs.crash_image(CrashMode::Random(seed)), "/db/new").unwrap();
        assert_eq!(after.len(), 4096);
        assert!(after.chunks(512).all(|s| s == [b'o'; 512] || s == [b'n'; 512]), "seed {seed}");
        mixed += usize::from(after[..512] != after[512..1024]);
    }
    assert!(mixed > 5, "{mixed}");
    file.close().unwrap();
    assert_eq!(fs.file_size(p("/db/new")).unwrap(), 2048);
}

#[test]
fn a_replay_gives_at_each_point_what_a_crash_then_would_have_given() {
    for seed in 0..10 {
        eprintln!("seed {seed}");
        let mut rng = fastrand::Rng::with_seed(seed);
        let fs = with_db();
        fs.write_all(p("/db/before"), b"recording").unwrap();
        fs.start_recording();
        let mut expected = vec![(0, images(&fs))];
        let mut open: Vec<Box<dyn rockmill_io::WritableFile>> = Vec::new();
        for _ in 0..60 {
            let (a, b) = (format!("/db/{}", rng.u8(0..4)), format!("/db/{}", rng.u8(0..4)));
            match rng.u8(0..9) {
                0 => open.push(fs.create(p(&a), WriteOptions { direct: rng.bool(), ..Default::default() }).unwrap()),
                1 | 2 if !open.is_empty() => {
                    let i = rng.usize(0..open.len());
                    open[i].append_and_flush(&vec![rng.u8(..); rng.usize(0..3000)]).unwrap();
                }
                3 if !open.is_empty() => {
                    let i = rng.usize(0..open.len());
                    open[i].sync().unwrap();
                }
                4 if !open.is_empty() => drop(open.swap_remove(rng.usize(0..open.len()))),
                5 => drop(fs.rename(p(&a), p(&b))),
                6 => drop(fs.remove(p(&a))),
                7 => drop(fs.hard_link(p(&a), p(&b))),
                _ => fs.sync_dir(p("/db")).unwrap(),
            }
            expected.push((fs.recorded(), images(&fs)));
        }
        let mut replay = fs.replay().unwrap();
        for (point, expected) in expected {
            replay.advance_to(point);
            let now: Vec<_> = MODES.iter().map(|mode| contents(&replay.crash_image(*mode))).collect();
            assert_eq!(now, expected, "seed {seed} point {point}");
        }
        assert_eq!(replay.point() + 1, replay.points());
    }
}

type Contents = Vec<(String, Vec<u8>)>;

fn contents(fs: &MemFileSystem) -> Contents {
    let mut names = fs.list_dir(p("/db")).unwrap();
    names.sort();
    names.into_iter().map(|name| (name.clone(), read(fs, &format!("/db/{name}")).unwrap())).collect()
}

fn images(fs: &MemFileSystem) -> Vec<Contents> {
    MODES.iter().map(|mode| contents(&fs.crash_image(*mode))).collect()
}

#[test]
fn a_crash_image_goes_its_own_way() {
    let fs = with_db();
    let lock = fs.lock(p("/db/LOCK")).unwrap();
    let mut file = fs.create(p("/db/f"), WriteOptions::default()).unwrap();
    file.append_and_flush(b"a").unwrap();
    let after = fs.crash_image(CrashMode::KeepAll);
    file.append_and_flush(b"b").unwrap();
    drop(after.lock(p("/db/LOCK")).expect("the holder died in the crash"));
    after.write_all(p("/db/g"), b"g").unwrap();
    assert_eq!((read(&after, "/db/f").unwrap(), read(&fs, "/db/f").unwrap()), (b"a".to_vec(), b"ab".to_vec()));
    assert_eq!(read(&fs, "/db/g"), None);
    // And what survived a crash is durable: a second crash right after changes nothing.
    assert_eq!(read(&after.crash_image(CrashMode::SyncedOnly), "/db/f").unwrap(), b"a");
    drop(lock);
}

#[test]
fn what_a_failed_write_back_lost_is_in_the_cache_alone() {
    let fs = with_db();
    let mut file = fs.create(p("/db/f"), WriteOptions::default()).unwrap();
    fs.sync_dir(p("/db")).unwrap();
    file.append_and_flush(b"safe ").unwrap();
    file.sync().unwrap();
    file.append_and_flush(b"lost").unwrap();
    let direct = |fs: &MemFileSystem| {
        let (mut buf, file) = ([0; 100], fs.open_random(p("/db/f"), true).unwrap());
        assert!(file.reads_device() && file.size() == 9);
        let n = file.read_at(0, &mut buf).unwrap();
        buf[..n].to_vec()
    };
    assert_eq!(direct(&fs), b"safe lost", "a direct read has what is dirty written first");
    assert!(!fs.open_random(p("/db/f"), false).unwrap().reads_device());
    fs.fail_write_back(p("/db/f")).unwrap();
    // Another process finds the same, and a sync of it brings nothing back.
    let next = fs.next_process();
    next.sync_file(p("/db/f")).unwrap();
    for (name, fs) in [("this", &fs), ("the next", &next)] {
        assert_eq!((read(fs, "/db/f").unwrap(), direct(fs)), (b"safe lost".to_vec(), b"safe ".to_vec()), "{name}");
        assert_eq!(read(&fs.crash_image(CrashMode::SyncedOnly), "/db/f").unwrap(), b"safe ", "{name}");
    }
    let evicted = next.next_process();
    evicted.drop_cache(p("/db/f")).unwrap();
    assert_eq!(read(&evicted, "/db/f").unwrap(), b"safe ");
    // Written anew it is durable.
    let mut anew = next.reuse(p("/db/f"), p("/db/f"), WriteOptions::default()).unwrap();
    anew.append(b"safe lost").unwrap();
    anew.sync().unwrap();
    assert_eq!(direct(&next), b"safe lost");
    assert_eq!(read(&next.crash_image(CrashMode::SyncedOnly), "/db/f").unwrap(), b"safe lost");
}

#[test]
fn another_process_finds_what_was_not_synced_and_a_power_cut_takes_it() {
    let fs = with_db();
    let mut file = fs.create(p("/db/f"), WriteOptions::default()).unwrap();
    file.append_and_flush(b"dirty").unwrap();
    let _lock = fs.lock(p("/db/LOCK")).unwrap();
    let next = fs.next_process();
    drop(next.lock(p("/db/LOCK")).expect("the holder died"));
    assert_eq!(read(&next, "/db/f").unwrap(), b"dirty");
    assert_eq!(read(&next.crash_image(CrashMode::SyncedOnly), "/db/f"), None);
    next.sync_file(p("/db/f")).unwrap();
    next.sync_dir(p("/db")).unwrap();
    assert_eq!(read(&next.crash_image(CrashMode::SyncedOnly), "/db/f").unwrap(), b"dirty");
    assert_eq!(read(&fs.crash_image(CrashMode::SyncedOnly), "/db/f"), None, "each goes its own way");
}

#[test]
fn a_failed_sync_loses_the_data_and_the_file_never_works_again() {
    let fs = with_db();
    let mut file = fs.create(p("/db/f"), WriteOptions::default()).unwrap();
    fs.sync_dir(p("/db")).unwrap();
    file.append(b"lost").unwrap();
    fs.set_fault(Box::new(|op| (op.kind == OpKind::Sync).then(|| io::Error::from_raw_os_error(libc::EIO))));
    let error = file.sync().unwrap_err();
    assert_eq!(raw_os_error(&error), Some(libc::EIO));
    assert!(error.to_string().contains("/db/f"), "{error}");
    fs.clear_fault();
    for result in [file.sync(), file.append(b"more"), file.flush(), file.close()] {
        let error = result.unwrap_err();
        assert_eq!(raw_os_error(&error), Some(libc::EIO));
        assert!(error.to_string().contains("earlier failure"), "{error}");
    }
    assert_eq!(read(&fs, "/db/f").unwrap(), b"lost", "the page cache still shows it");
    assert_eq!(read(&fs.crash_image(CrashMode::SyncedOnly), "/db/f").unwrap(), b"");
}

/// The same work with each call failed in turn: every failure is reported, and none is missed.
#[test]
fn each_call_can_fail_once_and_the_failure_surfaces() {
    fn work(fs: &MemFileSystem) -> io::Result<()> {
        fs.create_dir(p("/db/d"), true)?;
        let _lock = fs.lock(p("/db/LOCK"))?;
        fs.write_all(p("/db/d/a"), b"contents")?;
        let mut file = fs.create(p("/db/d/w"), WriteOptions { direct: true, ..Default::default() })?;
        file.append(&[0; 5000])?;
        file.sync()?;
        file.close()?;
        fs.rename(p("/db/d/a"), p("/db/d/b"))?;
        fs.hard_link(p("/db/d/b"), p("/db/d/c"))?;
        fs.sync_dir(p("/db/d"))?;
        fs.truncate(p("/db/d/c"), 3)?;
        fs.open_random(p("/db/d/b"), false)?.read_at(0, &mut [0; 4])?;
        fs.read_to_vec(p("/db/d/w"))?;
        fs.list_dir(p("/db/d"))?;
        fs.exists(p("/db/d/x"))?;
        fs.file_size(p("/db/d/b"))?;
        fs.free_space(p("/db"))?;
        fs.remove(p("/db/d/c"))?;
        fs.reuse(p("/db/d/b"), p("/db/d/e"), WriteOptions::default())?.close()?;
        fs.create_dir(p("/db/gone"), false)?;
        fs.remove_dir(p("/db/gone"))
    }
    let fs = MemFileSystem::new();
    work(&fs).unwrap();
    let calls = fs.calls();
    for kind in OpKind::ALL {
        assert!(fs.calls_of(kind) > 0, "{kind:?} is not covered");
    }
    assert_eq!(OpKind::ALL.iter().map(|kind| fs.calls_of(*kind)).sum::<u64>(), calls);
    for n in 0..calls {
        let fs = MemFileSystem::new();
        fs.fail_once_after(n, libc::EDQUOT);
        let error = work(&fs).expect_err(&format!("call {n} of {calls} failed and nobody noticed"));
        assert_eq!((raw_os_error(&error), fs.calls()), (Some(libc::EDQUOT), n + 1), "{error}");
        assert!(is_out_of_space(&error));
        let fs = MemFileSystem::new();
        fs.fail_after(n, libc::EIO);
        work(&fs).unwrap_err();
        assert_eq!(fs.exists(p("/")).map_err(|e| raw_os_error(&e)), Err(Some(libc::EIO)), "a dead disk stays dead");
    }
}

#[test]
fn a_full_disk_takes_what_fits_and_has_room_again_after_a_removal() {
    let fs = with_db();
    fs.write_all(p("/db/ballast"), &[0; 1000]).unwrap();
    fs.set_free_space(Some(300));
    assert_eq!(fs.free_space(p("/db")).unwrap(), 300);
    let error = fs.write_all(p("/db/f"), &[1; 500]).unwrap_err();
    assert!(is_out_of_space(&error) && raw_os_error(&error) == Some(libc::ENOSPC), "{error}");
    assert_eq!((fs.file_size(p("/db/f")).unwrap(), fs.free_space(p("/db")).unwrap()), (300, 0));
    fs.remove(p("/db/ballast")).unwrap();
    fs.write_all(p("/db/g"), &[1; 1000]).unwrap();
    assert_eq!(fs.free_space(p("/db")).unwrap(), 0);
    // Overwriting takes no room.
    let mut file = fs.reuse(p("/db/g"), p("/db/h"), WriteOptions::default()).unwrap();
    file.append_and_flush(&[2; 1000]).unwrap();
    fs.set_free_space(None);
    fs.write_all(p("/db/i"), &[1; 5000]).unwrap();
}

#[test]
fn a_directory_can_be_a_device_that_is_full_alone() {
    let fs = with_db();
    fs.create_dir(p("/db/fast"), false).unwrap();
    fs.write_all(p("/db/fast/a"), &[0; 100]).unwrap();
    fs.set_free_space_in(p("/db/fast"), Some(50)).unwrap();
    assert!(is_out_of_space(&fs.write_all(p("/db/fast/b"), &[1; 60]).unwrap_err()));
    assert_eq!((fs.free_space(p("/db/fast")).unwrap(), fs.free_space(p("/db")).unwrap()), (0, 1 << 40));
    fs.write_all(p("/db/c"), &[1; 500]).unwrap();
    fs.set_free_space(Some(70));
    fs.remove(p("/db/fast/a")).unwrap();
    assert_eq!((fs.free_space(p("/db/fast")).unwrap(), fs.free_space(p("/db")).unwrap()), (100, 170));
    fs.set_free_space_in(p("/db/fast"), None).unwrap();
    fs.write_all(p("/db/fast/b"), &[1; 160]).unwrap();
}

#[test]
fn a_file_with_two_names_is_not_used_again() {
    let fs = with_db();
    fs.write_all(p("/db/a"), b"a").unwrap();
    fs.hard_link(p("/db/a"), p("/db/b")).unwrap();
    for to in ["/db/a", "/db/c"] {
        assert!(is_not_plain(&fs.reuse(p("/db/a"), p(to), WriteOptions::default()).unwrap_err()));
    }
    fs.remove(p("/db/b")).unwrap();
    fs.reuse(p("/db/a"), p("/db/a"), WriteOptions::default()).unwrap().close().unwrap();
}

#[test]
fn hooks_tear_writes_flip_bits_shorten_reads_and_delay() {
    let fs = with_db();
    fs.set_hook(Box::new(|op| match op.kind {
        OpKind::Write => Fault::Partial(3, io::Error::from_raw_os_error(libc::ENOSPC)),
        _ => Fault::None,
    }));
    fs.write_all(p("/db/f"), b"123456").unwrap_err();
    fs.set_hook(Box::new(|op| match op.kind {
        OpKind::ReadAt => Fault::FlipBit(9),
        OpKind::Read => Fault::Partial(1, io::Error::other("not used")),
        OpKind::FileSize => Fault::Delay(Duration::from_millis(5)),
        _ => Fault::None,
    }));
    let mut buf = [0; 8];
    assert_eq!(fs.open_random(p("/db/f"), false).unwrap().read_at(0, &mut buf).unwrap(), 3);
    assert_eq!(&buf[..3], b"103", "the second byte's second bit: 2 becomes 0");
    assert_eq!(fs.open_sequential(p("/db/f")).unwrap().read(&mut buf).unwrap(), 1);
    assert_eq!(fs.read_to_vec(p("/db/f")).unwrap(), b"123", "short reads are put together");
    let start = Instant::now();
    fs.file_size(p("/db/f")).unwrap();
    assert!(start.elapsed() >= Duration::from_millis(5));
    fs.clear_fault();
    fs.flip_stored_bit(p("/db/f"), 0).unwrap();
    assert_eq!(read(&fs, "/db/f").unwrap(), b"023");
    assert_eq!(fs.flip_stored_bit(p("/db/f"), 24).unwrap_err().kind(), ErrorKind::UnexpectedEof);
}

#[test]
fn a_short_transfer_is_gone_on_with_by_a_call_of_its_own() {
    let fs = with_db();
    fs.set_hook(Box::new(|op| match op.kind {
        OpKind::Write | OpKind::Read | OpKind::ReadAt => Fault::Short(4),
        _ => Fault::Short(0),
    }));
    fs.write_all(p("/db/f"), b"0123456789").unwrap();
    assert_eq!(fs.calls_of(OpKind::Write), 3, "4, 4 and 2 bytes");
    let mut buf = [0; 9];
    assert_eq!(fs.open_random(p("/db/f"), false).unwrap().read_at(1, &mut buf).unwrap(), 9);
    assert_eq!((&buf, fs.calls_of(OpKind::ReadAt)), (b"123456789", 3));
    let mut buf = [0; 20];
    assert_eq!(fs.open_random(p("/db/f"), false).unwrap().read_at(7, &mut buf).unwrap(), 3, "the end of the file");
    assert_eq!(fs.open_sequential(p("/db/f")).unwrap().read(&mut buf).unwrap(), 4);
    assert_eq!(fs.read_to_vec(p("/db/f")).unwrap(), b"0123456789");
    // A power cut or a failure between the calls of one write leaves a part of it.
    let mut calls = 0;
    fs.set_hook(Box::new(move |op| match op.kind {
        OpKind::Write if calls == 0 => {
            calls += 1;
            Fault::Short(3)
        }
        OpKind::Write => Fault::Error(io::Error::from_raw_os_error(libc::EIO)),
        _ => Fault::None,
    }));
    fs.write_all(p("/db/g"), b"0123456789").unwrap_err();
    assert_eq!(read(&fs, "/db/g").unwrap(), b"012");
}

#[test]
fn a_failed_sync_of_a_directory_makes_nothing_durable() {
    let fs = with_db();
    fs.write_all(p("/db/f"), b"x").unwrap();
    fs.set_fault(Box::new(|op| (op.kind == OpKind::SyncDir).then(|| io::Error::from_raw_os_error(libc::EIO))));
    assert_eq!(raw_os_error(&fs.sync_dir(p("/db")).unwrap_err()), Some(libc::EIO));
    fs.clear_fault();
    assert_eq!(read(&fs.crash_image(CrashMode::SyncedOnly), "/db/f"), None);
}

#[test]
fn what_a_failed_sync_lost_no_later_sync_of_another_handle_brings_back() {
    let fs = with_db();
    let mut file = fs.create(p("/db/f"), WriteOptions::default()).unwrap();
    fs.sync_dir(p("/db")).unwrap();
    file.append_and_flush(b"lost").unwrap();
    fs.fail_once_after(0, libc::EIO);
    file.sync().unwrap_err();
    fs.sync_file(p("/db/f")).expect("the kernel has nothing left to write, and says so");
    assert_eq!(read(&fs, "/db/f").unwrap(), b"lost");
    assert_eq!(read(&fs.crash_image(CrashMode::SyncedOnly), "/db/f").unwrap(), b"");
}

#[test]
fn a_hook_sees_each_call_and_can_take_the_crash_image_just_before_it() {
    let fs = with_db();
    let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let (log, view) = (seen.clone(), fs.clone());
    fs.set_hook(Box::new(move |op| {
        let names = view.crash_image(CrashMode::KeepAll).list_dir(p("/db")).unwrap().len();
        log.lock().unwrap().push((op.kind, op.path.to_path_buf(), op.to.map(Path::to_path_buf), op.len, names));
        Fault::None
    }));
    fs.write_all(p("/db/a"), b"four").unwrap();
    fs.rename(p("/db/a"), p("/db/b")).unwrap();
    let (a, b) = (p("/db/a").to_path_buf(), p("/db/b").to_path_buf());
    let expected = vec![
        (OpKind::Create, a.clone(), None, 0, 0),
        (OpKind::Write, a.clone(), None, 4, 1),
        (OpKind::Sync, a.clone(), None, 0, 1),
        (OpKind::Close, a.clone(), None, 0, 1),
        (OpKind::Rename, a, Some(b), 0, 1),
    ];
    assert_eq!(*seen.lock().unwrap(), expected);
}

#[test]
fn padding_of_a_direct_file_may_survive_a_crash_until_it_is_synced() {
    let fs = with_db();
    let options = WriteOptions { direct: true, ..Default::default() };
    let mut file = fs.create(p("/db/f"), options).unwrap();
    fs.sync_dir(p("/db")).unwrap();
    file.append_and_flush(b"abc").unwrap();
    assert_eq!(read(&fs.crash_image(CrashMode::KeepAll), "/db/f").unwrap().len(), 4096);
    file.sync().unwrap();
    assert_eq!(read(&fs.crash_image(CrashMode::SyncedOnly), "/db/f").unwrap(), b"abc");
}
