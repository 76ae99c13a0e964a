//! Features of the real file system only: locks between processes, the number of system calls, reserved space, full
//! disks.

use rockmill_io::{Ahead, CountingFileSystem, FileSystem, PosixFileSystem, WriteOptions};
use rockmill_skip::{Needs, skip};
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

const FS: PosixFileSystem = PosixFileSystem::new();

/// A directory on the disk of the build directory: the usual temporary directory may be in memory.
fn real_dir() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

const CHILD_LOCKS: &str = "ROCKMILL_TEST_LOCK_PATH";

/// Not a test by itself: the other process of the lock tests. Tries the lock, prints the result, and holds it until its
/// input ends.
#[test]
fn child_process() {
    let Some(path) = std::env::var_os(CHILD_LOCKS) else { return };
    let result = FS.lock(&PathBuf::from(path));
    match &result {
        Ok(_) => println!("\nCHILD locked"),
        Err(e) => println!("\nCHILD {:?} {e}", e.kind()),
    }
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// Starts the other process and waits for its result.
fn child_locks(path: &Path) -> (std::process::Child, String) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_process", "--nocapture"])
        .env(CHILD_LOCKS, path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut lines = output.by_ref().lines().map(Result::unwrap);
    let said = lines.find_map(|line| line.strip_prefix("CHILD ").map(str::to_owned));
    // Kept open because the child still has to print its test's result.
    child.stdout = Some(output.into_inner());
    (child, said.expect("the child says how it went"))
}

fn child_said(path: &Path) -> String {
    let (mut child, said) = child_locks(path);
    drop(child.stdin.take());
    child.wait().unwrap();
    said
}

#[test]
fn a_lock_excludes_other_processes_and_names_the_holder() {
    let dir = real_dir();
    let path = dir.path().join("LOCK");
    let lock = FS.lock(&path).unwrap();
    let said = child_said(&path);
    assert!(said.starts_with("WouldBlock"), "{said}");
    assert!(said.contains(&format!("process {}", std::process::id())) && said.contains("LOCK"), "{said}");
    // POSIX releases a process's lock when any descriptor of the file is closed: a second attempt must not open it.
    FS.lock(&path).unwrap_err();
    std::fs::hard_link(&path, dir.path().join("ALIAS")).unwrap();
    let error = FS.lock(&dir.path().join("ALIAS")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
    assert!(child_said(&path).starts_with("WouldBlock"), "a refused second lock released the first");
    drop(lock);
    assert_eq!(child_said(&path), "locked");
}

#[test]
fn a_lock_held_elsewhere_is_refused_until_that_process_dies() {
    let dir = real_dir();
    let path = dir.path().join("LOCK");
    let (mut child, said) = child_locks(&path);
    assert_eq!(said, "locked");
    let error = FS.lock(&path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    assert!(error.to_string().contains(&format!("process {}", child.id())), "{error}");
    child.kill().unwrap();
    child.wait().unwrap();
    drop(FS.lock(&path).unwrap());
}

#[test]
fn a_flushed_record_costs_one_write() {
    let dir = real_dir();
    for direct in [false, true] {
        let options = WriteOptions { direct, preallocate: 1 << 20, ..Default::default() };
        let mut file = FS.create(&dir.path().join("log"), options).unwrap();
        for i in 1..=10 {
            file.append(b"header").unwrap();
            file.append(&[7; 300]).unwrap();
            file.flush().unwrap();
            assert_eq!(file.kernel_writes(), 2 * i - 1);
            file.append_and_flush(&[7; 300]).unwrap();
            file.flush().unwrap();
            assert_eq!(file.kernel_writes(), 2 * i);
        }
        file.sync().unwrap();
        file.close().unwrap();
        assert_eq!(file.kernel_writes(), 20, "sync and close had nothing to write");
    }
}

#[test]
fn asking_for_write_back_as_it_goes_changes_no_byte() {
    let dir = real_dir();
    let path = dir.path().join("f");
    let options = WriteOptions { buffer_size: 10_000, bytes_per_sync: 100_000, ..Default::default() };
    let mut file = FS.create(&path, options).unwrap();
    // The last MiB is skipped, so the file must be longer.
    let data: Vec<u8> = (0..3_000_000_u32).map(|i| (i / 7) as u8).collect();
    for piece in data.chunks(3_333) {
        file.append(piece).unwrap();
    }
    file.close().unwrap();
    assert!(FS.read_to_vec(&path).unwrap() == data);
}

#[test]
fn a_large_append_joins_what_was_gathered_in_one_write() {
    let dir = real_dir();
    let path = dir.path().join("f");
    let mut file = FS.create(&path, WriteOptions { buffer_size: 1000, ..Default::default() }).unwrap();
    file.append(&[1; 600]).unwrap();
    assert_eq!(file.kernel_writes(), 0);
    file.append(&[2; 100_000]).unwrap();
    assert_eq!(file.kernel_writes(), 1);
    file.close().unwrap();
    let data = FS.read_to_vec(&path).unwrap();
    assert!(data.len() == 100_600 && data[..600] == [1; 600] && data[600..].iter().all(|&b| b == 2));
}

#[test]
fn reserved_space_is_given_back_on_close() {
    let dir = real_dir();
    let path = dir.path().join("f");
    for direct in [false, true] {
        let mut file = FS.create(&path, WriteOptions { direct, preallocate: 8 << 20, ..Default::default() }).unwrap();
        file.append_and_flush(&[1; 100]).unwrap();
        let meta = std::fs::metadata(&path).unwrap();
        if meta.blocks() * 512 < 8 << 20 {
            let missing = Needs::Reserve.because("this file system does not reserve space");
            return skip("reserved_space_is_given_back_on_close", &missing);
        }
        file.sync().unwrap();
        file.close().unwrap();
        let meta = std::fs::metadata(&path).unwrap();
        assert_eq!(meta.len(), 100);
        assert!(meta.blocks() * 512 <= 64 << 10, "direct {direct}: {} blocks left", meta.blocks());
    }
}

#[test]
fn a_file_is_made_longer_ahead_until_it_is_closed() {
    let dir = real_dir();
    let path = dir.path().join("f");
    let mut file = FS.create(&path, WriteOptions::default()).unwrap();
    file.append_and_flush(&[1; 100]).unwrap();
    file.sync().unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 100, "nobody asked yet");
    file.extend_ahead(Ahead::Allocated(1 << 20));
    file.append_and_flush(&[2; 100]).unwrap();
    if std::fs::metadata(&path).unwrap().len() == 200 {
        let missing = Needs::Reserve.because("this file system does not reserve space");
        return skip("a_file_is_made_longer_ahead_until_it_is_closed", &missing);
    }
    let contents = |end: usize| {
        let mut bytes = [vec![1; 100], vec![2; 100]].concat();
        bytes.resize(end, 0);
        bytes
    };
    assert!(FS.read_to_vec(&path).unwrap() == contents(1 << 20));
    file.append(&[2; 1 << 20]).unwrap();
    assert_eq!(file.len(), 200 + (1 << 20), "what was appended counts");
    file.sync().unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 2 << 20, "the next step");
    // Zeros remain until they are used up, regardless of allocations.
    file.extend_ahead(Ahead::Zeros(64 << 10));
    file.append_and_flush(&[3; 1 << 20]).unwrap();
    let end = 200 + (2 << 20);
    for _ in 0..3 {
        assert_eq!(std::fs::metadata(&path).unwrap().len(), end + (64 << 10));
        file.append_and_flush(&[4; 10_000]).unwrap();
    }
    file.extend_ahead(Ahead::No);
    file.append_and_flush(&[4; 70_000]).unwrap();
    let read = FS.read_to_vec(&path).unwrap();
    assert!(read.len() as u64 == end + 100_000 && read[end as usize..].iter().all(|&b| b == 4));
    file.close().unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), end + 100_000);
}

#[test]
fn a_file_system_without_direct_io_falls_back() {
    // Depending on the kernel version, memory file systems accept or refuse the flag; the bytes arrive in any case.
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else {
        return skip("a_file_system_without_direct_io_falls_back", &Needs::Shm.because("there is no /dev/shm"));
    };
    let path = dir.path().join("f");
    let mut file = FS.create(&path, WriteOptions { direct: true, ..Default::default() }).unwrap();
    file.append(&[3; 5000]).unwrap();
    file.sync().unwrap();
    file.close().unwrap();
    let file = FS.open_random(&path, true).unwrap();
    let mut buf = [0; 100];
    assert_eq!((file.size(), file.read_at(4950, &mut buf).unwrap()), (5000, 50));
    assert_eq!(buf[..50], [3; 50]);
}

#[test]
fn counts_are_of_calls_and_bytes() {
    let dir = real_dir();
    let fs = CountingFileSystem::new(Arc::new(FS));
    let path = dir.path().join("f");
    let mut file = fs.create(&path, WriteOptions { buffer_size: 1000, ..Default::default() }).unwrap();
    for _ in 0..10 {
        file.append(&[1; 400]).unwrap();
    }
    file.sync().unwrap();
    file.close().unwrap();
    let written = fs.counts();
    assert_eq!((written.opens, written.writes, written.write_bytes), (1, 5, 4000));
    assert_eq!((written.syncs, written.closes), (1, 1));
    let reader = fs.open_random(&path, false).unwrap();
    assert_eq!(reader.read_at(3900, &mut [0; 400]).unwrap(), 100);
    reader.prefetch(0, 10);
    fs.clone().sync_dir(dir.path()).unwrap();
    fs.exists(&path).unwrap();
    let read = fs.counts() - written;
    assert_eq!((read.opens, read.reads, read.read_bytes, read.prefetches), (1, 1, 100, 1));
    assert_eq!((read.dir_syncs, read.metadata, read.writes, read.calls()), (1, 1, 0, 5));
}

#[test]
fn direct_reads_are_aligned_as_the_kernel_tells_and_the_kernel_takes_them() {
    use std::os::unix::fs::{FileExt, OpenOptionsExt};
    let dir = real_dir();
    let path = dir.path().join("f");
    let data: Vec<u8> = (0..40_000u32).map(|i| (i * 7 % 251) as u8).collect();
    FS.write_all(&path, &data).unwrap();
    let file = FS.open_random(&path, true).unwrap();
    let block = file.direct_alignment();
    assert!(block.is_power_of_two() && (512..=4096).contains(&block), "{block}");
    println!("direct reads in blocks of {block}");
    // The same without this library, which must report the same.
    let Ok(raw) = std::fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path) else {
        return skip("direct_reads_are_aligned", &Needs::DirectIo.because("the temporary directory's refuses it"));
    };
    let mut memory = vec![0; 3 * 4096];
    let start = memory.as_ptr().align_offset(4096);
    let buffer = &mut memory[start..start + block as usize];
    assert_eq!(raw.read_at(buffer, block * 5).unwrap() as u64, block);
    assert_eq!(*buffer, data[block as usize * 5..block as usize * 6]);
    let mut some = [0; 4101];
    assert_eq!(file.read_at(12_345, &mut some).unwrap(), 4101);
    assert_eq!(some, data[12_345..12_345 + 4101]);
}

#[test]
fn what_was_just_written_is_in_the_page_cache() {
    let dir = real_dir();
    for len in [0, 1, 2 * 4096 + 17] {
        let path = dir.path().join(format!("{len}"));
        std::fs::write(&path, vec![7; len]).unwrap();
        assert_eq!(FS.open_random(&path, false).unwrap().cached_bytes(), Some(len as u64));
    }
}
