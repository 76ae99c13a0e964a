//! One suite for all file systems: the contracts of the traits hold on the disk, buffered and direct, and in memory.

use rockmill_io::aligned::AlignedBuf;
use rockmill_io::error::raw_os_error;
use rockmill_io::{CountingFileSystem, Fault, FileSystem, MemFileSystem, OpKind, PosixFileSystem, WriteOptions};
use std::io::{ErrorKind, Read as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// One place to run the suite in.
struct Place {
    name: &'static str,
    fs: Arc<dyn FileSystem>,
    root: PathBuf,
    direct: bool,
    _dir: Option<tempfile::TempDir>,
}

impl Place {
    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn options(&self) -> WriteOptions {
        WriteOptions { direct: self.direct, ..WriteOptions::default() }
    }

    fn read(&self, name: &str) -> Vec<u8> {
        self.fs.read_to_vec(&self.path(name)).unwrap()
    }

    fn names(&self, dir: &str) -> Vec<String> {
        let mut names = self.fs.list_dir(&self.path(dir)).unwrap();
        names.sort();
        names
    }
}

/// A directory on the disk of the build directory: the usual temporary directory may be in memory.
fn real_dir() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Runs a test in each place. If the disk refuses direct I/O, reports that and tests the fallback.
fn everywhere(test: impl Fn(&Place)) {
    for (name, direct) in [("posix", false), ("posix, direct", true)] {
        let dir = real_dir();
        let fs = Arc::new(PosixFileSystem::default());
        if direct {
            let probe = dir.path().join("probe");
            fs.write_all(&probe, b"x").unwrap();
            if !fs.open_random(&probe, true).unwrap().is_direct() {
                let reason = format!("{} refuses O_DIRECT; only the fallback is tested", dir.path().display());
                rockmill_skip::skip("conformance with direct I/O", &rockmill_skip::Needs::DirectIo.because(reason));
            }
            fs.remove(&probe).unwrap();
        }
        eprintln!("in {name}");
        test(&Place { name, fs, root: dir.path().to_path_buf(), direct, _dir: Some(dir) });
    }
    // Every transfer of more than 1000 bytes takes several calls.
    let short = || {
        let fs = MemFileSystem::new();
        fs.set_hook(Box::new(|op| Fault::Short(1000.max(op.len as usize / 2))));
        Arc::new(fs)
    };
    let counted = || Arc::new(CountingFileSystem::new(Arc::new(MemFileSystem::new())));
    for (name, fs, direct) in [
        ("memory", Arc::new(MemFileSystem::new()) as Arc<dyn FileSystem>, false),
        ("memory, direct", Arc::new(MemFileSystem::new()), true),
        ("memory, counted", counted(), false),
        ("memory, short transfers", short(), false),
        ("memory, direct, short transfers", short(), true),
    ] {
        eprintln!("in {name}");
        let root = PathBuf::from("/db");
        fs.create_dir(&root, false).unwrap();
        test(&Place { name, fs, root, direct, _dir: None });
    }
}

/// Bytes without repetitions nearby.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect()
}

#[test]
fn what_is_appended_is_read_back_at_every_offset_and_length() {
    everywhere(|place| {
        let data = pattern(3 * 4096 + 777);
        let path = place.path("f");
        let mut file = place.fs.create(&path, place.options()).unwrap();
        assert!(file.is_empty());
        file.append(&data).unwrap();
        assert_eq!(file.len(), data.len() as u64);
        file.sync().unwrap();
        file.close().unwrap();
        assert_eq!(place.fs.file_size(&path).unwrap(), data.len() as u64);
        let file = place.fs.open_random(&path, place.direct).unwrap();
        assert_eq!(file.size(), data.len() as u64);
        let mut aligned = AlignedBuf::with_capacity(16384);
        for offset in [0, 1, 511, 512, 4095, 4096, 4097, 8192, 12288, 13064, 13065, 13066, 20000, 1 << 40] {
            for len in [0, 1, 512, 4095, 4096, 8192, 16384] {
                let start = offset.min(data.len());
                let expected = &data[start..data.len().min(offset.saturating_add(len))];
                let expected = if offset >= data.len() { &[][..] } else { expected };
                let mut unaligned = vec![0; len + 1];
                let n = file.read_at(offset as u64, &mut unaligned[1..]).unwrap();
                assert_eq!(&unaligned[1..=n], expected, "{}: {len} bytes at {offset}", place.name);
                let n = file.read_at(offset as u64, &mut aligned[..len]).unwrap();
                assert_eq!(&aligned[..n], expected, "{}: {len} bytes at {offset}, aligned", place.name);
            }
        }
        file.prefetch(0, 4096);
        file.prefetch(1 << 40, u64::MAX);
    });
}

#[test]
fn reads_larger_than_the_bounce_buffer_are_whole() {
    everywhere(|place| {
        let data = pattern((5 << 20) + 333);
        let path = place.path("f");
        place.fs.write_all(&path, &data).unwrap();
        let file = place.fs.open_random(&path, place.direct).unwrap();
        let mut out = vec![0; data.len()];
        assert_eq!(file.read_at(0, &mut out).unwrap(), data.len());
        assert!(out == data);
        let n = file.read_at(4097, &mut out).unwrap();
        assert!(out[..n] == data[4097..]);
    });
}

#[test]
fn an_offset_beyond_any_file_is_an_error_or_the_end_and_no_panic() {
    everywhere(|place| {
        place.fs.write_all(&place.path("f"), b"abc").unwrap();
        let file = place.fs.open_random(&place.path("f"), place.direct).unwrap();
        for offset in [i64::MAX as u64 - 1, i64::MAX as u64, u64::MAX - 1, u64::MAX] {
            if let Ok(n) = file.read_at(offset, &mut [0; 16]) {
                assert_eq!(n, 0);
            }
        }
    });
}

/// Appends of all sizes with flushes and syncs in between, compared with a plain vector.
#[test]
fn any_mix_of_appends_flushes_and_syncs_gives_the_same_bytes() {
    everywhere(|place| {
        for seed in 0..24 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let options = WriteOptions {
                mode_max: None,
                strict_bytes_per_sync: rng.bool(),
                direct: place.direct,
                buffer_size: [0, 1, 100, 4096, 10_000][rng.usize(0..5)],
                bytes_per_sync: [0, 4096, 1 << 20][rng.usize(0..3)],
                preallocate: [0, 1000, 65_536][rng.usize(0..3)],
            };
            let path = place.path("f");
            let mut expected = Vec::new();
            let mut file = place.fs.create(&path, options).unwrap();
            for _ in 0..rng.usize(0..60) {
                let n = [rng.usize(0..10), rng.usize(0..5000), rng.usize(0..50_000)][rng.usize(0..3)];
                let data: Vec<u8> = (0..n).map(|_| rng.u8(..)).collect();
                expected.extend_from_slice(&data);
                match rng.u8(0..6) {
                    0 => file.append_and_flush(&data).unwrap(),
                    1 => {
                        file.append(&data).unwrap();
                        file.sync().unwrap();
                        let size = place.fs.file_size(&path).unwrap();
                        assert_eq!(size, expected.len() as u64, "{} seed {seed}: length after sync", place.name);
                    }
                    2 => {
                        file.append(&data).unwrap();
                        file.flush().unwrap();
                        let there = place.read("f");
                        assert!(there.len() >= expected.len(), "{} seed {seed}: flushed", place.name);
                        assert!(there[..expected.len()] == expected, "{} seed {seed}: flushed", place.name);
                        assert!(there[expected.len()..].iter().all(|&b| b == 0), "padding is zeros");
                    }
                    _ => file.append(&data).unwrap(),
                }
                assert_eq!(file.len(), expected.len() as u64);
            }
            file.close().unwrap();
            assert!(place.read("f") == expected, "{} seed {seed}", place.name);
        }
    });
}

#[test]
fn creating_empties_and_reusing_keeps_until_close() {
    everywhere(|place| {
        let old = place.path("old");
        place.fs.write_all(&old, &[b'o'; 10_000]).unwrap();
        let new = place.path("new");
        let mut file = place.fs.reuse(&old, &new, place.options()).unwrap();
        assert!(!place.fs.exists(&old).unwrap());
        assert_eq!(place.fs.file_size(&new).unwrap(), 10_000);
        file.append(b"new").unwrap();
        file.flush().unwrap();
        let there = place.read("new");
        assert_eq!(there.len(), 10_000);
        assert_eq!((&there[..3], there[9_999]), (&b"new"[..], b'o'));
        file.close().unwrap();
        assert_eq!(place.read("new"), b"new");
        drop(place.fs.create(&new, place.options()).unwrap());
        assert_eq!(place.read("new"), b"");
        let error = place.fs.reuse(&old, &new, place.options()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
    });
}

#[test]
fn a_closed_file_refuses_writes_and_closes_twice() {
    everywhere(|place| {
        let mut file = place.fs.create(&place.path("f"), place.options()).unwrap();
        file.append(b"x").unwrap();
        file.close().unwrap();
        file.close().unwrap();
        for result in [file.append(b"y"), file.flush(), file.sync(), file.append_and_flush(b"z")] {
            assert!(result.unwrap_err().to_string().contains("closed"));
        }
        assert_eq!(place.read("f"), b"x");
    });
}

#[test]
fn a_drop_without_close_loses_what_was_not_flushed() {
    everywhere(|place| {
        let mut file = place.fs.create(&place.path("f"), WriteOptions::default()).unwrap();
        file.append_and_flush(b"kept").unwrap();
        file.append(b"lost").unwrap();
        drop(file);
        assert_eq!(place.read("f"), b"kept");
    });
}

#[test]
fn sequential_reads_skip_and_end() {
    everywhere(|place| {
        let data = pattern(10_000);
        place.fs.write_all(&place.path("f"), &data).unwrap();
        let mut file = place.fs.open_sequential(&place.path("f")).unwrap();
        let mut buf = [0; 100];
        assert_eq!(file.read(&mut buf).unwrap(), 100);
        assert_eq!(buf[..], data[..100]);
        file.skip(5_000).unwrap();
        assert_eq!(file.read(&mut buf).unwrap(), 100);
        assert_eq!(buf[..], data[5_100..5_200]);
        file.skip(1 << 40).unwrap();
        assert_eq!(file.read(&mut buf).unwrap(), 0);
        assert!(file.skip(u64::MAX).is_err());
    });
}

#[test]
fn names_come_and_go() {
    everywhere(|place| {
        let fs = &place.fs;
        fs.write_all(&place.path("a"), b"A").unwrap();
        fs.write_all(&place.path("b"), b"B").unwrap();
        fs.hard_link(&place.path("a"), &place.path("link")).unwrap();
        fs.sync_file(&place.path("link")).unwrap();
        assert_eq!(place.names(""), ["a", "b", "link"]);
        fs.rename(&place.path("a"), &place.path("b")).unwrap();
        assert_eq!((place.names(""), place.read("b")), (vec!["b".into(), "link".into()], b"A".to_vec()));
        // Two names of one file: renaming one onto the other changes nothing.
        fs.rename(&place.path("link"), &place.path("b")).unwrap();
        assert_eq!(place.names(""), ["b", "link"]);
        fs.remove(&place.path("b")).unwrap();
        assert_eq!(place.read("link"), b"A");
        assert!(fs.exists(&place.path("link")).unwrap());
        assert!(!fs.exists(&place.path("b")).unwrap());
        assert!(!fs.exists(&place.path("link/below")).unwrap());
        fs.truncate(&place.path("link"), 3).unwrap();
        assert_eq!(place.read("link"), b"A\0\0");
        fs.truncate(&place.path("link"), 0).unwrap();
        assert_eq!(fs.file_size(&place.path("link")).unwrap(), 0);
        fs.sync_dir(&place.root).unwrap();
        assert!(fs.free_space(&place.root).unwrap() > 0);
    });
}

#[test]
fn directories_nest_move_and_go_when_empty() {
    everywhere(|place| {
        let fs = &place.fs;
        fs.create_dir(&place.path("x/y/z"), true).unwrap();
        fs.create_dir(&place.path("x/y/z"), true).unwrap();
        fs.create_dir(&place.path("x"), false).unwrap();
        fs.write_all(&place.path("x/y/f"), b"f").unwrap();
        fs.rename(&place.path("x/y"), &place.path("moved")).unwrap();
        assert_eq!(place.names("moved"), ["f", "z"]);
        assert_eq!(place.names("x"), Vec::<String>::new());
        assert_eq!(place.read("moved/../moved/./f"), b"f");
        fs.remove_dir(&place.path("x")).unwrap();
        fs.remove_dir(&place.path("moved/z")).unwrap();
        fs.sync_dir(&place.path("moved")).unwrap();
        assert_eq!(place.names(""), ["moved"]);
    });
}

#[test]
fn errors_have_the_system_s_number_and_name_the_path() {
    everywhere(|place| {
        let fs = &place.fs;
        let path = |name| place.path(name);
        fs.create_dir(&path("dir/sub"), true).unwrap();
        fs.write_all(&path("file"), b"x").unwrap();
        let check = |what: &str, error: Option<std::io::Error>, code: i32, name: &str| {
            let error = error.unwrap_or_else(|| panic!("{}: {what} succeeded", place.name));
            assert_eq!(raw_os_error(&error), Some(code), "{}: {what}: {error}", place.name);
            assert_eq!(error.kind(), std::io::Error::from_raw_os_error(code).kind(), "{}: {what}", place.name);
            assert!(error.to_string().contains(name), "{}: {what}: {error}", place.name);
        };
        let no = path("none");
        let o = place.options();
        check("open", fs.open_random(&no, place.direct).err(), libc::ENOENT, "none");
        check("open sequential", fs.open_sequential(&no).err(), libc::ENOENT, "none");
        check("create below nothing", fs.create(&path("none/f"), o).err(), libc::ENOENT, "none/f");
        check("create below a file", fs.create(&path("file/f"), o).err(), libc::ENOTDIR, "file/f");
        check("create over a directory", fs.create(&path("dir"), o).err(), libc::EISDIR, "dir");
        check("list nothing", fs.list_dir(&no).err(), libc::ENOENT, "none");
        check("list a file", fs.list_dir(&path("file")).err(), libc::ENOTDIR, "file");
        check("size", fs.file_size(&no).err(), libc::ENOENT, "none");
        check("rename", fs.rename(&no, &path("to")).err(), libc::ENOENT, "none");
        check("rename file to dir", fs.rename(&path("file"), &path("dir")).err(), libc::EISDIR, "dir");
        check("rename dir to file", fs.rename(&path("dir"), &path("file")).err(), libc::ENOTDIR, "file");
        check("rename into itself", fs.rename(&path("dir"), &path("dir/sub/x")).err(), libc::EINVAL, "dir");
        check("remove", fs.remove(&no).err(), libc::ENOENT, "none");
        check("remove a directory", fs.remove(&path("dir")).err(), libc::EISDIR, "dir");
        check("remove a full directory", fs.remove_dir(&path("dir")).err(), libc::ENOTEMPTY, "dir");
        check("remove file as directory", fs.remove_dir(&path("file")).err(), libc::ENOTDIR, "file");
        check("mkdir below nothing", fs.create_dir(&path("none/d"), false).err(), libc::ENOENT, "none/d");
        check("mkdir over a file", fs.create_dir(&path("file"), false).err(), libc::EEXIST, "file");
        check("link", fs.hard_link(&no, &path("to")).err(), libc::ENOENT, "none");
        check("link over", fs.hard_link(&path("file"), &path("file")).err(), libc::EEXIST, "file");
        check("link a directory", fs.hard_link(&path("dir"), &path("to")).err(), libc::EPERM, "dir");
        check("truncate", fs.truncate(&no, 1).err(), libc::ENOENT, "none");
        check("sync nothing", fs.sync_dir(&no).err(), libc::ENOENT, "none");
        check("sync no file", fs.sync_file(&no).err(), libc::ENOENT, "none");
        check("sync a file as directory", fs.sync_dir(&path("file")).err(), libc::ENOTDIR, "file");
        check("space", fs.free_space(&no).err(), libc::ENOENT, "none");
        check("lock", fs.lock(&path("none/LOCK")).err(), libc::ENOENT, "none/LOCK");
    });
}

#[test]
fn an_open_file_outlives_its_name_and_a_replacement() {
    everywhere(|place| {
        let fs = &place.fs;
        let path = place.path("f");
        fs.write_all(&path, b"first").unwrap();
        let file = fs.open_random(&path, place.direct).unwrap();
        let mut writer = fs.create(&place.path("g"), place.options()).unwrap();
        fs.remove(&path).unwrap();
        fs.remove(&place.path("g")).unwrap();
        fs.write_all(&path, b"second").unwrap();
        fs.sync_dir(&place.root).unwrap();
        let mut buf = [0; 10];
        assert_eq!(file.read_at(0, &mut buf).unwrap(), 5);
        assert_eq!(&buf[..5], b"first");
        writer.append(b"nowhere").unwrap();
        writer.sync().unwrap();
        writer.close().unwrap();
        assert_eq!(place.names(""), ["f"]);
    });
}

#[test]
fn a_lock_excludes_until_dropped() {
    everywhere(|place| {
        let path = place.path("LOCK");
        let held = place.fs.lock(&path).unwrap();
        for again in
            [&path, &place.path("./LOCK"), &place.path("../").join(place.root.file_name().unwrap()).join("LOCK")]
        {
            let error = place.fs.lock(again).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::WouldBlock, "{}: {error}", place.name);
            let text = error.to_string();
            assert!(text.contains("LOCK") && text.contains(&std::process::id().to_string()), "{text}");
        }
        drop(place.fs.lock(&place.path("OTHER")).unwrap());
        drop(held);
        drop(place.fs.lock(&path).unwrap());
        assert!(place.fs.exists(&path).unwrap(), "the file stays: deleting it would let two hold it");
    });
}

#[test]
fn many_threads_read_one_file() {
    everywhere(|place| {
        let data = pattern(200_000);
        place.fs.write_all(&place.path("f"), &data).unwrap();
        let file = place.fs.open_random(&place.path("f"), place.direct).unwrap();
        std::thread::scope(|scope| {
            for seed in 0..4 {
                let (file, data) = (&file, &data);
                scope.spawn(move || {
                    let mut rng = fastrand::Rng::with_seed(seed);
                    for _ in 0..200 {
                        let offset = rng.usize(0..data.len());
                        let mut buf = vec![0; rng.usize(0..9000)];
                        let n = file.read_at(offset as u64, &mut buf).unwrap();
                        assert_eq!(n, buf.len().min(data.len() - offset));
                        assert!(buf[..n] == data[offset..offset + n], "seed {seed}");
                    }
                });
            }
        });
    });
}

#[test]
fn relative_paths_work() {
    let mem = MemFileSystem::new();
    mem.create_dir(Path::new("a/b"), true).unwrap();
    mem.write_all(Path::new("a/b/f"), b"x").unwrap();
    assert_eq!(mem.read_to_vec(Path::new("/a/b/f")).unwrap(), b"x");
}

/// Whether in memory or on the disk: the bytes of the file, no more than it has, and errors of both sides.
#[test]
fn a_file_is_sent_to_a_socket() {
    everywhere(|place| {
        let (path, data) = (place.path("table"), (0..300_000u32).map(|i| (i / 7) as u8).collect::<Vec<_>>());
        place.fs.write_all(&path, &data).unwrap();
        let file = place.fs.open_random(&path, place.direct).unwrap();
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        if file.is_direct() {
            assert!(!file.sends(), "{}", place.name);
            return;
        }
        assert!(file.sends() || !cfg!(target_os = "linux"), "{}", place.name);
        let reader = std::thread::spawn(move || {
            let mut got = Vec::new();
            theirs.read_to_end(&mut got).unwrap();
            got
        });
        let mut at = 1000;
        // Also where it ends before what is asked for.
        while let n @ 1.. = file.send_to(at, 1 << 20, ours.as_fd()).unwrap() {
            at += n as u64;
        }
        assert_eq!(at, 300_000, "{}", place.name);
        assert_eq!(file.send_to(u64::MAX >> 1, 10, ours.as_fd()).unwrap_or(0), 0);
        drop(ours);
        assert!(reader.join().unwrap() == data[1000..], "{}", place.name);
        // It was cut meanwhile.
        let (ours, theirs) = UnixStream::pair().unwrap();
        place.fs.truncate(&path, 5000).unwrap();
        assert_eq!(file.send_to(6000, 10, ours.as_fd()).unwrap(), 0);
        drop(theirs);
        let gone = file.send_to(0, 10, ours.as_fd()).unwrap_err();
        assert_eq!(gone.kind(), ErrorKind::BrokenPipe, "{}: {gone}", place.name);
    });
}

#[test]
fn a_file_that_fails_is_not_sent() {
    let fs = MemFileSystem::new();
    fs.write_all(Path::new("/table"), &[7; 10_000]).unwrap();
    let file = fs.open_random(Path::new("/table"), false).unwrap();
    fs.set_hook(Box::new(|op| match op.kind {
        OpKind::ReadAt if op.offset >= 5000 => std::io::Error::other("a bad sector").into(),
        OpKind::ReadAt => Fault::Short(3000),
        _ => Fault::None,
    }));
    let (ours, _theirs) = UnixStream::pair().unwrap();
    assert_eq!(file.send_to(0, 10_000, ours.as_fd()).unwrap(), 3000);
    assert!(file.send_to(6000, 10, ours.as_fd()).unwrap_err().to_string().contains("a bad sector"));
}
