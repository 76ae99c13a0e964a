//! Damaged, missing, foreign and unwanted input: each gives a clear error, without a panic, wrong data or loss.
//!
//! The tests damage copies of a database with non-empty files of every kind: tables on several levels, a log with
//! unflushed writes, a MANIFEST with many edits, two column families.

mod oracle;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use oracle::content::{Entries, entries, try_open_all, try_read};
use oracle::ops::{Contents, Runner, Shape, Workload};
use oracle::{copy_dir, tables};
use rockmill::{
    BlockBasedOptions, Cache, ChecksumType, ColumnFamilyDescriptor, CompressionType, Db, Error, ErrorKind, Options,
};
use rockmill_format::footer::Footer;
use rockmill_io::{CrashMode, FileSystem as _, MemFileSystem};
use rockmill_skip::{Needs, skip};

/// The database that the tests damage, and its contents by column family.
struct Sound {
    dir: tempfile::TempDir,
    contents: BTreeMap<String, Entries>,
    /// All values that each key ever had: with a damaged log or MANIFEST, an older state may appear, but never one that
    /// did not exist.
    history: BTreeMap<(String, Vec<u8>), Vec<Vec<u8>>>,
}

impl Sound {
    fn path(&self) -> PathBuf {
        self.dir.path().join("db")
    }

    fn copy(&self) -> (tempfile::TempDir, PathBuf) {
        let home = tempfile::tempdir().expect("a folder");
        let path = home.path().join("db");
        copy_dir(&self.path(), &path);
        (home, path)
    }
}

fn sound() -> &'static Sound {
    static SOUND: OnceLock<Sound> = OnceLock::new();
    SOUND.get_or_init(|| {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("db");
        let shape = Shape { ops: 2000, extra_families: 1, delete_ranges: true, flush_every: 250, ..Shape::default() };
        let workload = Workload::random(42, shape);
        let mut options = Options::default();
        options.create_if_missing(true);
        options.create_missing_column_families(true);
        options.set_target_file_size_base(100_000);
        let families = workload.families.iter().map(|f| ColumnFamilyDescriptor::new(f, options.clone()));
        let db = Db::open_cf_descriptors(&options, &path, families).expect("open");
        let mut runner = Runner::new(&db, &workload.families);
        runner.run(&workload.ops[..1500]);
        db.compact_range(None::<&[u8]>, None::<&[u8]>).expect("compaction");
        runner.run(&workload.ops[1500..]);
        db.flush().expect("flush");
        // The log's part: plain puts in an order that shows which are missing.
        let mut contents = workload.model().now;
        for n in 0..400u32 {
            let key = log_key(n);
            db.put(&key, b"in the log").expect("put");
            contents[0].insert(key, b"in the log".to_vec());
        }
        db.wait_for_background_work().expect("background work");
        drop(runner);
        drop(db);
        assert!(tables(&path).len() >= 3, "too few tables to damage");
        let mut history: BTreeMap<(String, Vec<u8>), Vec<Vec<u8>>> = BTreeMap::new();
        let mut note = |family: &str, key: &[u8], value: &[u8]| {
            history.entry((family.to_owned(), key.to_vec())).or_default().push(value.to_vec());
        };
        fn puts<'a>(op: &'a oracle::ops::Op, out: &mut Vec<(usize, &'a [u8], &'a [u8])>) {
            match op {
                oracle::ops::Op::Put { cf, key, value } => out.push((*cf, key, value)),
                oracle::ops::Op::Batch(ops) => ops.iter().for_each(|op| puts(op, out)),
                _ => {}
            }
        }
        for op in &workload.ops {
            let mut all = Vec::new();
            puts(op, &mut all);
            for (cf, key, value) in all {
                note(&workload.families[cf], key, value);
            }
        }
        (0..400).for_each(|n| note("default", &log_key(n), b"in the log"));
        let name = |n: usize| workload.families[n].clone();
        let contents = contents.iter().enumerate().map(|(n, c): (usize, &Contents)| (name(n), entries(c))).collect();
        Sound { dir, contents, history }
    })
}

fn log_key(n: u32) -> Vec<u8> {
    format!("log/{n:05}").into_bytes()
}

/// Reads everything; returns the first error of any step.
fn read_all(path: &Path) -> Result<BTreeMap<String, Entries>, Error> {
    let mut options = Options::default();
    options.set_disable_auto_compactions(true);
    let db = try_open_all(&options, path)?;
    db.cf_names().into_iter().map(|name| Ok((name.clone(), try_read(&db, &name)?))).collect()
}

/// The names and contents of the files that hold data.
fn files(path: &Path) -> BTreeMap<String, Vec<u8>> {
    fs::read_dir(path)
        .expect("the folder")
        .map(|e| e.expect("an entry").path())
        .map(|p| (p.file_name().expect("a name").to_string_lossy().into_owned(), p))
        .filter(|(name, _)| name != "LOCK" && !name.starts_with("LOG") && !name.starts_with("OPTIONS"))
        .map(|(name, p)| (name, fs::read(p).expect("a file")))
        .collect()
}

fn find(path: &Path, what: impl Fn(&str) -> bool) -> PathBuf {
    let name = files(path).into_iter().filter(|(n, bytes)| what(n) && !bytes.is_empty()).map(|(n, _)| n).next_back();
    path.join(name.expect("a file of this kind"))
}

fn manifest(path: &Path) -> PathBuf {
    find(path, |n| n.starts_with("MANIFEST-"))
}

fn log(path: &Path) -> PathBuf {
    find(path, |n| n.ends_with(".log"))
}

/// An error is clear when it is of a kind that fits and names a file of the database.
#[track_caller]
fn assert_clear(what: &str, path: &Path, e: &Error, file: Option<&str>) {
    let text = e.to_string();
    assert!(
        matches!(
            e.kind(),
            ErrorKind::Corruption | ErrorKind::IOError | ErrorKind::InvalidArgument | ErrorKind::NotSupported
        ),
        "{what}: an error of an odd kind: {text}"
    );
    assert!(!text.contains("panic"), "{what}: a panic came out as an error: {text}");
    let folder = path.file_name().expect("a name").to_string_lossy().into_owned();
    match file {
        Some(file) => assert!(text.contains(file), "{what}: the error does not name {file}: {text}"),
        None => assert!(text.contains(&folder), "{what}: the error does not name the database: {text}"),
    }
}

/// Opens the damaged copy; checks the error, or that what is read was once written.
fn judge(what: &str, path: &Path) -> Result<BTreeMap<String, Entries>, Error> {
    let before = files(path);
    let outcome = std::panic::catch_unwind(|| read_all(path)).unwrap_or_else(|_| panic!("{what}: panicked"));
    match &outcome {
        Err(e) => {
            assert_clear(what, path, e, None);
            // All files that a repair would need still exist. Logs of an interrupted recovery may have become tables.
            let after = files(path);
            for (name, bytes) in &before {
                if name.ends_with(".sst") {
                    assert_eq!(after.get(name), Some(bytes), "{what}: {name} was lost or changed: {e}");
                }
            }
        }
        Ok(contents) => {
            for (family, found) in contents {
                for (key, value) in found {
                    let once = sound().history.get(&(family.clone(), key.clone()));
                    assert!(
                        once.is_some_and(|values| values.contains(value)),
                        "{what}: {family} has an entry that nobody wrote: {}",
                        oracle::to_hex(key)
                    );
                }
            }
        }
    }
    outcome
}

/// Offsets to damage: both ends, and some in between.
fn offsets(len: usize, count: usize) -> Vec<usize> {
    let mut all: Vec<usize> = (0..16).chain(len.saturating_sub(64)..len).filter(|&o| o < len).collect();
    all.extend((0..count).map(|i| i * len / count));
    all.sort_unstable();
    all.dedup();
    all
}

#[test]
fn the_sound_database_reads_well() {
    let (_home, path) = sound().copy();
    assert!(log(&path).exists() && manifest(&path).exists());
    assert_eq!(read_all(&path).expect("sound"), sound().contents);
}

#[test]
fn flipped_bits_in_tables_give_errors_or_right_data() {
    let names: Vec<_> = tables(&sound().path()).iter().map(|p| p.file_name().expect("a name").to_owned()).collect();
    let mut errors = 0;
    for name in names {
        let (_home, path) = sound().copy();
        let table = path.join(&name);
        let bytes = fs::read(&table).expect("a table");
        for offset in offsets(bytes.len(), 24) {
            let mut damaged = bytes.clone();
            damaged[offset] ^= 1 << (offset % 8);
            fs::write(&table, &damaged).expect("the copy");
            let what = format!("{} with a flipped bit at {offset} of {}", table.display(), bytes.len());
            match judge(&what, &path) {
                // Bytes that nothing reads (a filter of another kind, padding) may be damaged unseen.
                Ok(contents) => assert_eq!(contents, sound().contents, "{what}: other data"),
                Err(e) => {
                    errors += 1;
                    let name = name.to_string_lossy();
                    assert_clear(&what, &path, &e, Some(&name));
                }
            }
            // Recovery may have flushed the log: begin again from the sound copy.
            fs::remove_dir_all(&path).expect("the copy");
            copy_dir(&sound().path(), &path);
        }
    }
    assert!(errors > 30, "only {errors} flips were noticed");
}

#[test]
fn truncated_tables_are_named() {
    let (_home, path) = sound().copy();
    for table in tables(&path) {
        let name = table.file_name().expect("a name").to_string_lossy().into_owned();
        let bytes = fs::read(&table).expect("a table");
        for len in [0, 1, 40, bytes.len() / 2, bytes.len() - 60, bytes.len() - 1] {
            fs::write(&table, &bytes[..len]).expect("the copy");
            let what = format!("{name} cut to {len} of {}", bytes.len());
            match judge(&what, &path) {
                Ok(_) => panic!("{what}: nobody noticed"),
                Err(e) => assert_clear(&what, &path, &e, Some(&name)),
            }
        }
        fs::remove_dir_all(&path).expect("the copy");
        copy_dir(&sound().path(), &path);
    }
}

#[test]
fn a_missing_table_is_named() {
    let (_home, path) = sound().copy();
    let table = tables(&path).pop().expect("a table");
    fs::remove_file(&table).expect("the copy");
    let name = table.file_name().expect("a name").to_string_lossy().into_owned();
    let e = judge("a missing table", &path).expect_err("nobody noticed");
    assert_clear("a missing table", &path, &e, Some(&name));
}

#[test]
fn flipped_bits_in_the_manifest_give_errors() {
    let (_home, path) = sound().copy();
    let file = manifest(&path);
    let name = file.file_name().expect("a name").to_string_lossy().into_owned();
    let bytes = fs::read(&file).expect("the MANIFEST");
    let mut errors = 0;
    for offset in offsets(bytes.len(), 60) {
        let mut damaged = bytes.clone();
        damaged[offset] ^= 1 << (offset % 8);
        fs::write(&file, &damaged).expect("the copy");
        let what = format!("{name} with a flipped bit at {offset} of {}", bytes.len());
        match judge(&what, &path) {
            // Only in the last record, as in RocksDB: a flipped bit there cannot be distinguished from an interrupted
            // write.
            Ok(_) => assert!(offset * 10 > bytes.len() * 8, "{what}: nobody noticed"),
            Err(e) => {
                errors += 1;
                assert!(matches!(e.kind(), ErrorKind::Corruption | ErrorKind::NotSupported), "{what}: {e}");
            }
        }
        fs::remove_dir_all(&path).expect("the copy");
        copy_dir(&sound().path(), &path);
    }
    assert!(errors > 40, "only {errors} flips were noticed");
}

#[test]
fn truncated_manifests_give_errors_or_older_states() {
    let (_home, path) = sound().copy();
    let file = manifest(&path);
    let bytes = fs::read(&file).expect("the MANIFEST");
    for len in offsets(bytes.len(), 40) {
        fs::write(&file, &bytes[..len]).expect("the copy");
        let what = format!("the MANIFEST cut to {len} of {}", bytes.len());
        let _ = judge(&what, &path);
        fs::remove_dir_all(&path).expect("the copy");
        copy_dir(&sound().path(), &path);
    }
}

/// Number of the log's puts that exist; checks that they are the first ones.
#[track_caller]
fn prefix_of_log(what: &str, contents: &BTreeMap<String, Entries>) -> u32 {
    let there: Vec<_> = contents["default"].iter().filter(|(k, _)| k.starts_with(b"log/")).map(|(k, _)| k).collect();
    for (n, key) in there.iter().enumerate() {
        assert_eq!(**key, log_key(n as u32), "{what}: a later write is there, an earlier one is not");
    }
    there.len() as u32
}

#[test]
fn damaged_logs_recover_to_a_point_in_time() {
    let (_home, path) = sound().copy();
    let file = log(&path);
    let bytes = fs::read(&file).expect("the log");
    let mut seen = Vec::new();
    for offset in offsets(bytes.len(), 60) {
        for cut in [false, true] {
            let mut damaged = bytes.clone();
            damaged[offset] ^= 0x40;
            if cut {
                damaged = bytes[..offset].to_vec();
            }
            fs::write(&file, &damaged).expect("the copy");
            let what = format!("the log {} at {offset} of {}", if cut { "cut" } else { "flipped" }, bytes.len());
            match judge(&what, &path) {
                Ok(contents) => {
                    let n = prefix_of_log(&what, &contents);
                    seen.push(n);
                    let mut rest = contents;
                    let mut sound = sound().contents.clone();
                    for c in [&mut rest, &mut sound] {
                        c.get_mut("default").expect("default").retain(|(k, _)| !k.starts_with(b"log/"));
                    }
                    assert_eq!(rest, sound, "{what}: what the tables hold was touched");
                }
                Err(e) => assert_eq!(e.kind(), ErrorKind::Corruption, "{what}: {e}"),
            }
            fs::remove_dir_all(&path).expect("the copy");
            copy_dir(&sound().path(), &path);
        }
    }
    assert!(seen.iter().any(|&n| n > 0 && n < 400), "no damage hit the middle of the log");
}

#[test]
fn damaged_small_files() {
    let current = |path: &Path, text: &[u8]| fs::write(path.join("CURRENT"), text).expect("the copy");
    for (what, text) in [
        ("an empty CURRENT", &b""[..]),
        ("a CURRENT without its line end", b"MANIFEST-000004"),
        ("a CURRENT that names nothing", b"\n"),
        ("a CURRENT with words", b"hello, world\n"),
        ("a CURRENT that names a missing file", b"MANIFEST-999999\n"),
        ("a CURRENT that leads out", b"../MANIFEST-000001\n"),
        ("a CURRENT of binary", b"\xff\xfe\x00\x00\n"),
    ] {
        let (_home, path) = sound().copy();
        current(&path, text);
        let e = judge(what, &path).expect_err(what);
        let text = e.to_string();
        assert!(text.contains("CURRENT") || text.contains("MANIFEST-999999"), "{what}: {text}");
    }
    // IDENTITY only names the database: without it, or with invalid contents, all data is still there.
    for text in [None, Some(&b""[..]), Some(b"\x00\xff\n nonsense")] {
        let (_home, path) = sound().copy();
        let identity = path.join("IDENTITY");
        match text {
            None => fs::remove_file(&identity).expect("the copy"),
            Some(text) => fs::write(&identity, text).expect("the copy"),
        }
        let contents = judge("a damaged IDENTITY", &path).expect("IDENTITY is not needed");
        assert_eq!(contents, sound().contents);
    }
    // A file that the MANIFEST does not know.
    let (_home, path) = sound().copy();
    fs::write(path.join("999999.sst"), b"not a table").expect("the copy");
    fs::write(path.join("notes.txt"), b"mine").expect("the copy");
    assert_eq!(judge("foreign files", &path).expect("they are in nobody's way"), sound().contents);
    assert_eq!(fs::read(path.join("notes.txt")).expect("still there"), b"mine");
}

#[test]
fn what_is_no_database_is_left_alone() {
    let home = tempfile::tempdir().expect("a folder");
    let missing = home.path().join("missing");
    let e = Db::open(&Options::default(), &missing).expect_err("there is nothing");
    assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
    assert!(e.to_string().contains("missing") && e.to_string().contains("create_if_missing"), "{e}");
    assert!(!missing.join("CURRENT").exists(), "a database was made");

    let file = home.path().join("file");
    fs::write(&file, b"text").expect("a file");
    let mut create = Options::default();
    create.create_if_missing(true);
    let e = Db::open(&create, &file).expect_err("a file is no folder");
    assert!(e.to_string().contains("file"), "{e}");
    assert_eq!(fs::read(&file).expect("still there"), b"text");

    let photos = home.path().join("photos");
    fs::create_dir(&photos).expect("a folder");
    fs::write(photos.join("cat.jpg"), b"a cat").expect("a file");
    let e = Db::open(&Options::default(), &photos).expect_err("photos are no database");
    assert!(e.to_string().contains("photos"), "{e}");
    assert_eq!(fs::read_dir(&photos).expect("the folder").filter(|e| !is_lock(e)).count(), 1, "files were added");

    let (_home, path) = sound().copy();
    let mut fresh = create.clone();
    fresh.set_error_if_exists(true);
    let e = Db::open(&fresh, &path).expect_err("it exists");
    assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
    assert!(e.to_string().contains("exist"), "{e}");

    let e = Db::open(&Options::default(), &path).expect_err("a column family was not named");
    assert!(e.to_string().contains("second"), "does not name the column family: {e}");
    let e = Db::open_cf(&Options::default(), &path, ["default", "second", "nosuch"]).expect_err("no such family");
    assert!(e.to_string().contains("nosuch"), "does not name the column family: {e}");
    assert_eq!(read_all(&path).expect("untouched"), sound().contents);
}

fn is_lock(entry: &std::io::Result<fs::DirEntry>) -> bool {
    entry.as_ref().is_ok_and(|e| e.file_name() == "LOCK")
}

#[test]
fn a_locked_database_says_so() {
    let (_home, path) = sound().copy();
    let open = || try_open_all(&Options::default(), &path);
    let first = open().expect("nobody has it");
    let e = open().expect_err("this process has it");
    assert_eq!(e.kind(), ErrorKind::IOError, "{e}");
    assert!(e.to_string().to_lowercase().contains("lock"), "{e}");
    drop(first);
    let held = open().expect("it was given back");

    // The lock is compatible with RocksDB: each refuses a database that the other has open.
    match oracle::Peer::Library.driver() {
        Err(reason) => skip("a_locked_database_says_so", &reason),
        Ok(driver) => {
            let mut script = oracle::Script::new();
            script.line("cf second").open(&path);
            match driver.run(&script) {
                oracle::Outcome::Failed(why) => assert!(why.to_lowercase().contains("lock"), "{why}"),
                other => panic!("RocksDB opened a database that Rockmill has open: {other:?}"),
            }
        }
    }
    drop(held);
}

#[test]
fn a_full_disk_stops_writes_and_loses_nothing() {
    let fs = Arc::new(MemFileSystem::new());
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_file_system(fs.clone());
    options.set_write_buffer_size(32 << 10);
    let path = Path::new("/db");
    // Data that neither compression nor compaction can reduce.
    let mut rng = fastrand::Rng::with_seed(1);
    let value: Vec<u8> = (0..1000).map(|_| rng.u8(..)).collect();
    let mut written = 0u32;
    let db = Db::open(&options, path).expect("open");
    fs.set_free_space(Some(300 << 10));
    let e = loop {
        match db.put(format!("key{written:06}"), &value) {
            Ok(()) => written += 1,
            Err(e) => break e,
        }
        assert!(written < 2000, "the disk did not fill up");
    };
    assert!(e.is_no_space() || e.to_string().contains("No space"), "does not say that the disk is full: {e}");
    assert!(written > 50, "only {written} writes fitted");
    let check = |db: &Db| {
        for n in 0..written {
            let found = db.get(format!("key{n:06}")).unwrap_or_else(|e| panic!("reading with a full disk: {e}"));
            assert_eq!(found.as_ref(), Some(&value), "acknowledged key {n} of {written} is gone");
        }
    };
    check(&db);
    // With space again, `resume` or a reopen makes it writable.
    fs.set_free_space(None);
    db.resume().expect("resume after room was made");
    db.put(b"after", b"room").expect("a write after resume");
    check(&db);
    drop(db);
    let db = Db::open(&options, path).expect("reopen");
    check(&db);
    assert_eq!(db.get(b"after").expect("get").as_deref(), Some(&b"room"[..]));

    // The disk is full again, and the process ends: after the restart, with the disk still full, acknowledged data is
    // there.
    fs.set_free_space(Some(100 << 10));
    let mut more = 0u32;
    while db.put(format!("more{more:06}"), &value).is_ok() {
        more += 1;
    }
    drop(db);
    fs.set_free_space(Some(0));
    if let Err(e) = Db::open(&options, path) {
        assert!(e.is_no_space() || e.to_string().contains("No space"), "{e}");
    }
    let db = Db::open_for_read_only(&options, path, false).expect("reading needs no room");
    check(&db);
    for n in 0..more {
        assert!(db.get(format!("more{n:06}")).expect("get").is_some(), "acknowledged more{n} is gone");
    }
    drop(db);
    fs.set_free_space(None);
    assert!(fs.exists(&path.join("CURRENT")).expect("exists"));
    let db = Db::open(&options, path).expect("room again");
    check(&db);
}

/// The orders of the process without privileges.
const UNPRIVILEGED: &str = "ROCKMILL_TEST_UNPRIVILEGED";

/// Runs as the other process. Without instructions, as in a normal test run, it does nothing.
#[test]
fn unprivileged_process() {
    let Ok(path) = std::env::var(UNPRIVILEGED) else { return };
    match read_all(Path::new(&path)) {
        Ok(_) => println!("opened: everything"),
        Err(e) => println!("refused: {e}"),
    }
    let families = ["default", "second"];
    match Db::open_cf_for_read_only(&Options::default(), Path::new(&path), families, false)
        .and_then(|db| try_read(&db, "default"))
    {
        Ok(entries) => println!("read-only: {} entries", entries.len()),
        Err(e) => println!("read-only refused: {e}"),
    }
}

#[test]
fn no_permission_says_so() {
    let test = "no_permission_says_so";
    let home = tempfile::tempdir().expect("a folder");
    let mode = |p: &Path, mode: u32| fs::set_permissions(p, fs::Permissions::from_mode(mode)).expect("chmod");
    mode(home.path(), 0o755);
    let path = home.path().join("db");
    copy_dir(&sound().path(), &path);
    for entry in fs::read_dir(&path).expect("the copy") {
        mode(&entry.expect("an entry").path(), 0o644);
    }
    // Root may do everything, so another user has to try. The binary may be in a directory that this user cannot enter.
    let root = fs::metadata(home.path()).expect("metadata").uid() == 0;
    let program = home.path().join("test");
    fs::copy(std::env::current_exe().expect("this binary"), &program).expect("a copy");
    mode(&program, 0o755);
    let run = || {
        use std::os::unix::process::CommandExt as _;
        let mut command = std::process::Command::new(&program);
        command.args(["unprivileged_process", "--exact", "--nocapture"]).env(UNPRIVILEGED, &path);
        command.current_dir("/").stdin(std::process::Stdio::null());
        if root {
            command.uid(65534).gid(65534);
        }
        match command.output() {
            Ok(out) => Some(String::from_utf8_lossy(&out.stdout).into_owned()),
            Err(e) => {
                skip(test, &Needs::Root.because(format!("cannot run as another user: {e}")));
                None
            }
        }
    };
    // A folder that may be read but not written: not opened, but readable.
    mode(&path, 0o555);
    let Some(said) = run() else { return };
    assert!(said.contains("refused: ") && said.to_lowercase().contains("permission denied"), "{said}");
    assert!(said.contains("/db"), "does not name the place: {said}");
    assert!(said.contains(&format!("read-only: {} entries", sound().contents["default"].len())), "{said}");
    // A table that may not be read.
    mode(&path, 0o777);
    for name in ["LOCK", "CURRENT", "IDENTITY"] {
        mode(&path.join(name), 0o666);
    }
    let table = tables(&path).pop().expect("a table");
    mode(&table, 0o000);
    let said = run().expect("ran before");
    let name = table.file_name().expect("a name").to_string_lossy().into_owned();
    let refused = said.lines().filter(|l| l.contains(&name) && l.to_lowercase().contains("permission denied")).count();
    assert!(refused >= 1, "no refusal names {name}: {said}");
    // A folder that may not even be entered.
    mode(&path, 0o700);
    if root {
        let said = run().expect("ran before");
        assert!(said.lines().filter(|l| l.to_lowercase().contains("permission denied")).count() >= 2, "{said}");
    }
    mode(&path, 0o755);
    mode(&table, 0o644);
    assert_eq!(read_all(&path).expect("nothing was lost"), sound().contents);
}

#[test]
fn keys_and_values_over_the_limit_are_refused() {
    let home = tempfile::tempdir().expect("a folder");
    let mut options = Options::default();
    options.create_if_missing(true);
    let db = Db::open(&options, home.path().join("db")).expect("open");
    db.put(b"before", b"1").expect("put");
    // Zeroed memory that nobody touches costs nothing.
    let Some(len) = usize::try_from(1u64 << 32).ok() else { return };
    let huge = vec![0u8; len];
    for (what, result) in [
        ("value", db.put(b"key", &huge)),
        ("key", db.put(&huge, b"value")),
        ("key", db.delete(&huge)),
        ("value", db.merge(b"key", &huge)),
    ] {
        let e = result.expect_err("4 GiB fit in no record");
        assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
        let text = e.to_string();
        assert!(text.contains(what) && text.contains("large"), "does not say that the {what} is too large: {text}");
    }
    // A batch with such an entry is refused whole.
    let mut batch = rockmill::WriteBatch::new();
    batch.put(b"with", b"it");
    batch.put(b"key", &huge);
    let e = db.write(&batch).expect_err("the batch holds it");
    assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
    assert_eq!(db.get(b"with").expect("get"), None, "a refused batch was written in part");
    batch.clear();
    batch.put(b"with", b"it");
    db.write(&batch).expect("a cleared batch is fine again");
    // Large values are fine, and so are empty ones.
    let large = vec![1u8; 20 << 20];
    db.put(b"large", &large).expect("20 MiB");
    db.put(b"", b"").expect("nothing at all");
    db.flush().expect("flush");
    assert_eq!(db.get(b"large").expect("get").as_ref(), Some(&large));
    assert_eq!(db.get(b"").expect("get").as_deref(), Some(&b""[..]));
    assert_eq!(db.get(b"before").expect("get").as_deref(), Some(&b"1"[..]));
}

/// A table with valid checksums whose keys are out of order: a scan must end.
#[test]
fn a_scan_of_a_table_out_of_order_ends_with_an_error() {
    let fs = Arc::new(MemFileSystem::new());
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_file_system(Arc::clone(&fs) as _);
    options.set_compression_type(CompressionType::None);
    let mut table = BlockBasedOptions::default();
    table.set_checksum_type(ChecksumType::None);
    table.set_block_restart_interval(1);
    options.set_block_based_table_factory(&table);
    let dir = Path::new("/db");
    let key = |n: usize| format!("key{n:03}").into_bytes();
    {
        let db = Db::open(&options, dir).expect("open");
        (0..60).for_each(|n| db.put(key(n), vec![b'v'; 100]).expect("put"));
        db.flush().expect("flush");
    }
    let name = fs.list_dir(dir).expect("the folder").into_iter().find(|n| n.ends_with(".sst")).expect("a table");
    let path = dir.join(name);
    let mut bytes = fs.read_to_vec(&path).expect("the table");
    let places = |bytes: &[u8], n| -> Vec<usize> {
        let found = bytes.windows(6).enumerate().filter(|(_, w)| *w == key(n));
        found.map(|(at, _)| at).collect()
    };
    // The last key of the first of two blocks is also in the index, so lookups of this key go to that block.
    let last = (0..60).find(|&n| places(&bytes, n).len() == 2).expect("an index entry");
    let mut rename = |n: usize, to: usize| {
        let at = places(&bytes, n)[0];
        bytes[at..at + 6].copy_from_slice(&key(to));
    };
    // It is now missing there and appears earlier, and the keys after the block are smaller.
    rename(last, 0);
    (last + 1..last + 13).for_each(|n| rename(n, 0));
    rename(5, last);
    fs.write_all(&path, &bytes).expect("the table");

    let db = Db::open(&options, dir).expect("open");
    let entries: Vec<_> = db.iterator(rockmill::IteratorMode::Start).take(1000).collect();
    let e = entries.last().expect("an end").as_ref().expect_err("nobody noticed");
    assert_eq!(e.kind(), ErrorKind::Corruption);
    assert!(e.to_string().contains(".sst") && e.to_string().contains("out of order"), "{e}");
}

/// Looks like an endless loop, but is not: a key with many versions newer than the snapshot, and many older ones below
/// a deletion.
#[test]
fn many_versions_on_both_sides_of_a_snapshot_are_passed() {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_file_system(Arc::new(MemFileSystem::new()));
    let db = Db::open(&options, "/db").expect("open");
    for key in ["a", "b"] {
        (0..40).for_each(|n| db.put(key, format!("old {n}")).expect("put"));
        db.delete(key).expect("delete");
    }
    db.put("c", "seen").expect("put");
    let snapshot = db.snapshot();
    for key in ["a", "b"] {
        (0..40).for_each(|n| db.put(key, format!("new {n}")).expect("put"));
    }
    let keys: Vec<_> =
        db.snapshot_iterator(&snapshot, rockmill::IteratorMode::Start).map(|e| e.expect("sound").0).collect();
    assert_eq!(keys, [b"c".to_vec().into_boxed_slice()]);
}

/// A table whose last index entry points to the index itself, with right checksums. Its index and its blocks share one
/// cache, which must not return one for the other.
#[test]
fn a_table_whose_index_points_to_itself_is_refused() {
    let options = |fs: &MemFileSystem, cache: usize| {
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_file_system(Arc::new(fs.clone()));
        options.set_compression_type(CompressionType::None);
        let mut table = BlockBasedOptions::default();
        table.set_cache_index_and_filter_blocks(true);
        table.set_bloom_filter(10.0, false);
        table.set_block_cache(&Cache::new_lru_cache(cache));
        table.set_block_size(4096);
        options.set_block_based_table_factory(&table);
        options
    };
    let fs = MemFileSystem::new();
    {
        let db = Db::open(&options(&fs, 1 << 20), "/db").unwrap();
        (0..280).for_each(|i| db.put(format!("k{i:05}"), vec![b'v'; 40]).unwrap());
        db.flush().unwrap();
    }
    let names = fs.list_dir(Path::new("/db")).unwrap();
    let path = Path::new("/db").join(names.iter().find(|n| n.ends_with(".sst")).unwrap());
    let mut bytes = fs.read_to_vec(&path).unwrap();
    let footer = Footer::decode(&bytes, bytes.len() as u64).unwrap();
    let index = footer.index.unwrap();
    let (at, len) = (index.offset as usize, index.size as usize);
    let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap()) as usize;
    // One restart point for each entry: no shared bytes, the key's length in one byte, the key, the block's handle.
    let restarts = number(&bytes[at + len - 4..at + len]) & 0x0fff_ffff;
    let last = at + number(&bytes[at + len - 8..at + len - 4]);
    let (handle, end) = (last + 2 + usize::from(bytes[last + 1]), at + len - 4 - 4 * restarts);
    let first = bytes[handle..end].iter().position(|b| b & 0x80 == 0).unwrap() + 1;
    // Numbers in the same number of bytes as before.
    let padded = |mut n: u64, len: usize| -> Vec<u8> {
        let byte = |i| {
            let low = (n & 0x7f) as u8;
            n >>= 7;
            if i + 1 < len { low | 0x80 } else { low }
        };
        (0..len).map(byte).collect()
    };
    let own = [padded(index.offset, first), padded(index.size, end - handle - first)].concat();
    bytes[handle..end].copy_from_slice(&own);
    let checksum = footer.block_checksum(&bytes[at..at + len], 0, index.offset);
    bytes[at + len + 1..at + len + 5].copy_from_slice(&checksum.to_le_bytes());
    fs.write_all(&path, &bytes).unwrap();
    for cache in [1 << 20, 700, 300] {
        let copy = fs.crash_image(CrashMode::KeepAll);
        let db = match Db::open(&options(&copy, cache), "/db") {
            Ok(db) => db,
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::Corruption, "{e}");
                continue;
            }
        };
        for _ in 0..3 {
            let refused = db.get("k00279").unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Corruption, "{refused}");
            assert!(refused.message().contains("overlaps"), "{refused}");
        }
    }
}
