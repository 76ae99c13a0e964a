//! Links, pipes and devices in the place of the store's files, and the ownership of files that it creates.

use rockmill_io::error::is_not_plain;
use rockmill_io::{Access, EntryKind, FileSystem, PosixFileSystem, View, WriteOptions};
use rockmill_skip::{Needs, skip};
use std::fs;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

const FS: PosixFileSystem = PosixFileSystem::new();

/// A user that owns nothing.
const NOBODY: u32 = 65534;

/// A directory that other users may enter, too.
fn dir() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn mkfifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

fn view(view: View) -> Arc<dyn FileSystem> {
    FS.view(&view).unwrap().unwrap()
}

fn beneath(dir: &Path) -> Arc<dyn FileSystem> {
    view(View { beneath: Some(dir.to_owned()), access: None })
}

fn am_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0)
}

/// True if this is root, which can create files of other users and act as them.
fn needs_root(test: &str) -> bool {
    if !am_root() {
        skip(test, &Needs::Root.because("the test gives files to another user"));
    }
    am_root()
}

/// Runs a shell as a user without any rights; true if it succeeded.
fn as_nobody(script: &str, path: &Path) -> bool {
    let mut shell = Command::new("sh");
    shell.args(["-c", script, "sh"]).arg(path).current_dir("/").uid(NOBODY).gid(NOBODY);
    shell.stderr(std::process::Stdio::null()).status().unwrap().success()
}

#[test]
fn creating_takes_the_name_and_touches_nothing_that_it_led_to() {
    let (dir, other) = (dir(), dir());
    let victim = other.path().join("victim");
    fs::write(&victim, "precious").unwrap();
    let path = dir.path().join("MANIFEST-000005");
    let create = |direct| {
        FS.create(&path, WriteOptions { direct, ..WriteOptions::default() }).map(|mut f| {
            f.append(b"new").unwrap();
            f.close().unwrap();
        })
    };
    for direct in [false, true] {
        symlink(&victim, &path).unwrap();
        create(direct).unwrap();
        fs::remove_file(&path).unwrap();
        fs::hard_link(&victim, &path).unwrap();
        create(direct).unwrap();
        fs::remove_file(&path).unwrap();
        // A link to nothing makes nothing.
        symlink(other.path().join("made"), &path).unwrap();
        FS.create_positioned(&path, WriteOptions { direct, ..WriteOptions::default() }).unwrap().close().unwrap();
        assert!(fs::symlink_metadata(&path).unwrap().is_file());
        create(direct).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        fs::remove_file(&path).unwrap();
    }
    assert_eq!(fs::read(&victim).unwrap(), b"precious");
    assert_eq!(fs::read_dir(other.path()).unwrap().count(), 1);
    // Anything other than a file stays: it may be one of the machine's devices.
    mkfifo(&path);
    let e = create(false).unwrap_err();
    assert!(is_not_plain(&e) && path.exists(), "{e}");
    assert!(e.to_string().contains("no regular file"), "{e}");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert_eq!(create(false).unwrap_err().kind(), ErrorKind::IsADirectory);
}

#[test]
fn nothing_but_regular_files_is_read() {
    let dir = dir();
    let path = dir.path().join("CURRENT");
    let began = Instant::now();
    let refused = |what: &str| {
        for e in [
            FS.open_sequential(&path).map(drop).unwrap_err(),
            FS.open_random(&path, false).map(drop).unwrap_err(),
            FS.open_random(&path, true).map(drop).unwrap_err(),
            FS.read_to_vec(&path).map(drop).unwrap_err(),
            FS.sync_file(&path).unwrap_err(),
        ] {
            assert!(is_not_plain(&e) && e.to_string().contains("CURRENT"), "{what}: {e}");
        }
        fs::remove_file(&path).unwrap();
    };
    mkfifo(&path);
    refused("a pipe");
    for device in ["/dev/zero", "/dev/null", "/dev/tty"] {
        symlink(device, &path).unwrap();
        refused(device);
    }
    mkfifo(&dir.path().join("pipe"));
    symlink("pipe", &path).unwrap();
    refused("a link to a pipe");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    refused("a socket");
    assert!(began.elapsed() < Duration::from_secs(20), "nothing is waited for");
    fs::create_dir(&path).unwrap();
    assert!(is_not_plain(&FS.read_to_vec(&path).unwrap_err()));
}

#[test]
fn a_small_file_is_read_up_to_its_bound() {
    let dir = dir();
    let path = dir.path().join("IDENTITY");
    fs::write(&path, [7; 1000]).unwrap();
    assert_eq!(FS.read_small(&path, 1000).unwrap().len(), 1000);
    let e = FS.read_small(&path, 999).unwrap_err();
    assert!(e.to_string().contains("IDENTITY") && e.to_string().contains("999 bytes"), "{e}");
    fs::File::create(&path).unwrap().set_len(1 << 50).unwrap_or_default();
    assert!(FS.read_small(&path, 1 << 20).is_err() || fs::metadata(&path).unwrap().len() < 1 << 50);
}

#[test]
fn a_table_that_its_owner_moved_is_read_through_its_link() {
    let (dir, other) = (dir(), dir());
    let (path, moved) = (dir.path().join("000007.sst"), other.path().join("000007.sst"));
    fs::write(&moved, "table").unwrap();
    symlink(&moved, &path).unwrap();
    assert_eq!(FS.read_to_vec(&path).unwrap(), b"table");
    let mut bytes = [0; 5];
    assert_eq!(FS.open_random(&path, false).unwrap().read_at(0, &mut bytes).unwrap(), 5);
    assert_eq!((&bytes, FS.file_size(&path).unwrap()), (b"table", 5));
    assert_eq!(FS.entry(&path).unwrap().unwrap().kind, EntryKind::Link);
    // A second name would be a name of the link.
    let e = FS.hard_link(&path, &dir.path().join("second")).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
    FS.remove(&path).unwrap();
    assert_eq!(fs::read(&moved).unwrap(), b"table");
}

#[test]
fn root_follows_a_link_of_another_only_to_what_is_theirs() {
    if !needs_root("root_follows_a_link_of_another_only_to_what_is_theirs") {
        return;
    }
    let dir = dir();
    let (secret, own, link) = (dir.path().join("secret"), dir.path().join("own"), dir.path().join("000007.sst"));
    fs::write(&secret, "root's").unwrap();
    fs::write(&own, "theirs").unwrap();
    std::os::unix::fs::chown(&own, Some(NOBODY), Some(NOBODY)).unwrap();
    for (target, read) in [(&own, true), (&secret, false)] {
        symlink(target, &link).unwrap();
        std::os::unix::fs::lchown(&link, Some(NOBODY), Some(NOBODY)).unwrap();
        let found = FS.read_to_vec(&link);
        assert_eq!(found.is_ok(), read, "{found:?}");
        fs::remove_file(&link).unwrap();
    }
}

#[test]
fn files_are_used_again_only_where_they_are_ours_alone() {
    let dir = dir();
    let (victim, old, new) = (dir.path().join("victim"), dir.path().join("7.log"), dir.path().join("8.log"));
    fs::write(&victim, "precious").unwrap();
    let reuse = |to: &Path| FS.reuse(&old, to, WriteOptions::default()).map(drop);
    symlink(&victim, &old).unwrap();
    assert!(is_not_plain(&reuse(&new).unwrap_err()));
    assert!(is_not_plain(&FS.truncate(&old, 0).unwrap_err()));
    fs::remove_file(&old).unwrap();
    fs::hard_link(&victim, &old).unwrap();
    assert!(is_not_plain(&reuse(&new).unwrap_err()), "a file with two names");
    assert!(is_not_plain(&reuse(&old).unwrap_err()), "written over in place");
    fs::remove_file(&old).unwrap();
    mkfifo(&old);
    assert!(is_not_plain(&reuse(&new).unwrap_err()));
    assert!(!new.exists());
    assert_eq!(fs::read(&victim).unwrap(), b"precious");
}

#[test]
fn nothing_beneath_a_directory_is_reached_by_a_link() {
    let (dir, other) = (dir(), dir());
    fs::write(other.path().join("victim"), "precious").unwrap();
    let base = dir.path().join("base");
    symlink(dir.path().join("real"), &base).unwrap();
    fs::create_dir(dir.path().join("real")).unwrap();
    let fs_ = beneath(&base);
    // The directory itself may be a link, and everything below works.
    fs_.create_dir(&base.join("d"), false).unwrap();
    fs_.write_all(&base.join("d/f"), b"1").unwrap();
    fs_.rename(&base.join("d/f"), &base.join("g")).unwrap();
    fs_.hard_link(&base.join("g"), &base.join("d/h")).unwrap();
    let mut names = fs_.list_dir(&base).unwrap();
    names.sort();
    assert_eq!(names, ["d", "g"]);
    assert_eq!(fs_.read_to_vec(&base.join("d/h")).unwrap(), b"1");
    fs_.sync_dir(&base.join("d")).unwrap();
    fs_.sync_dir(&base).unwrap();
    drop(fs_.lock(&base.join("LOCK")).unwrap());
    fs_.remove(&base.join("d/h")).unwrap();
    fs_.remove_dir(&base.join("d")).unwrap();
    assert!(!fs_.exists(&base.join("d")).unwrap());

    symlink(other.path(), base.join("private")).unwrap();
    symlink(other.path().join("victim"), base.join("file")).unwrap();
    let (inside, file) = (base.join("private/victim"), base.join("file"));
    fs_.list_dir(&base.join("private")).unwrap_err();
    fs_.create_dir(&base.join("private"), false).unwrap_err();
    fs_.sync_dir(&base.join("private")).unwrap_err();
    for e in [
        fs_.remove(&inside).unwrap_err(),
        fs_.exists(&inside).unwrap_err(),
        fs_.file_size(&inside).unwrap_err(),
        fs_.read_to_vec(&inside).map(drop).unwrap_err(),
        fs_.read_to_vec(&file).map(drop).unwrap_err(),
        fs_.create(&inside, WriteOptions::default()).map(drop).unwrap_err(),
        fs_.rename(&inside, &base.join("got")).unwrap_err(),
        fs_.hard_link(&inside, &base.join("got")).unwrap_err(),
        fs_.lock(&inside).map(drop).unwrap_err(),
        fs_.lock(&file).map(drop).unwrap_err(),
        fs_.truncate(&file, 0).unwrap_err(),
        fs_.remove(&base.join("../victim")).unwrap_err(),
        fs_.remove(&other.path().join("victim")).unwrap_err(),
    ] {
        assert!(is_not_plain(&e), "{e}");
    }
    assert_eq!(fs::read(other.path().join("victim")).unwrap(), b"precious");
    assert_eq!(fs::read_dir(other.path()).unwrap().count(), 1);
}

#[test]
fn what_is_made_is_as_private_as_its_directory_and_its_neighbours() {
    let dir = dir();
    let path = |name: &str| dir.path().join(name);
    let chmod = |name: &str, bits| fs::set_permissions(path(name), fs::Permissions::from_mode(bits)).unwrap();
    fs::create_dir(path("db")).unwrap();
    fs::write(path("db/CURRENT"), "").unwrap();
    let made = |dir_bits, file_bits| {
        chmod("db", dir_bits);
        chmod("db/CURRENT", file_bits);
        let access = FS.access(&path("db"), &[&path("db/CURRENT"), &path("db/missing")]).unwrap();
        let fs_ = view(View { beneath: None, access });
        fs_.write_all(&path("db/file"), b"").unwrap();
        fs_.create_dir(&path("db/dir"), false).unwrap();
        drop(fs_.lock(&path("db/LOCK")).unwrap());
        let found = (mode(&path("db/file")), mode(&path("db/dir")), mode(&path("db/LOCK")));
        fs::remove_dir(path("db/dir")).unwrap();
        found
    };
    assert_eq!(made(0o755, 0o644), (0o644, 0o755, 0o600));
    assert_eq!(made(0o755, 0o600), (0o600, 0o700, 0o600));
    assert_eq!(made(0o700, 0o644), (0o600, 0o700, 0o600));
    assert_eq!(made(0o750, 0o644), (0o640, 0o750, 0o600));
    assert_eq!(made(0o777, 0o666), (0o644, 0o755, 0o600), "nobody else gets to write");
}

#[test]
fn root_gives_what_it_makes_to_the_directory_s_owner() {
    if !needs_root("root_gives_what_it_makes_to_the_directory_s_owner") {
        return;
    }
    let dir = dir();
    std::os::unix::fs::chown(dir.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    let access = FS.access(dir.path(), &[]).unwrap();
    assert_eq!(access, Some(Access { mode: 0o644, owner: Some((NOBODY, NOBODY)) }));
    let fs_ = view(View { beneath: None, access });
    fs_.write_all(&dir.path().join("file"), b"").unwrap();
    fs_.create_dir(&dir.path().join("dir"), false).unwrap();
    drop(fs_.lock(&dir.path().join("LOCK")).unwrap());
    for name in ["file", "dir", "LOCK"] {
        let meta = fs::metadata(dir.path().join(name)).unwrap();
        assert_eq!((meta.uid(), meta.gid()), (NOBODY, NOBODY), "{name}");
        assert!(fs_.entry(&dir.path().join(name)).unwrap().unwrap().ours);
        assert!(!FS.entry(&dir.path().join(name)).unwrap().unwrap().ours);
    }
    // The owner of root's old file in that directory does not change: the directory's owner may have moved the file
    // there.
    let old = dir.path().join("other/LOCK");
    fs::create_dir(dir.path().join("other")).unwrap();
    fs::write(&old, "").unwrap();
    drop(fs_.lock(&old).unwrap());
    assert_eq!(fs::metadata(&old).unwrap().uid(), 0);
}

#[test]
fn who_may_not_write_cannot_hold_the_lock() {
    let dir = dir();
    let path = dir.path().join("LOCK");
    drop(FS.lock(&path).unwrap());
    assert_eq!(mode(&path), 0o600);
    // As RocksDB creates it: a user that may read it can hold a read lock, which blocks writers.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let held = FS.lock(&path).unwrap();
    assert_eq!(mode(&path), 0o600);
    drop(held);
    // Who may write may lock anyway.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o664)).unwrap();
    drop(FS.lock(&path).unwrap());
    assert_eq!(mode(&path), 0o660);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    if needs_root("who_may_not_write_cannot_hold_the_lock") {
        assert!(as_nobody("exec 3<\"$1\"", &path), "before");
        drop(FS.lock(&path).unwrap());
        assert!(!as_nobody("exec 3<\"$1\"", &path), "after");
    }
}

#[test]
fn a_lock_file_is_no_link_and_no_pipe() {
    let (dir, other) = (dir(), dir());
    let (path, victim) = (dir.path().join("LOCK"), other.path().join("victim"));
    fs::write(&victim, "precious").unwrap();
    fs::set_permissions(&victim, fs::Permissions::from_mode(0o644)).unwrap();
    for target in [victim.clone(), other.path().join("made")] {
        symlink(&target, &path).unwrap();
        let e = FS.lock(&path).unwrap_err();
        assert!(is_not_plain(&e) && e.to_string().contains("LOCK"), "{e}");
        fs::remove_file(&path).unwrap();
    }
    mkfifo(&path);
    assert!(is_not_plain(&FS.lock(&path).unwrap_err()));
    fs::remove_file(&path).unwrap();
    // The permissions of a file with another name must not be changed.
    fs::hard_link(&victim, &path).unwrap();
    drop(FS.lock(&path).unwrap());
    assert_eq!((mode(&victim), fs::read(&victim).unwrap()), (0o644, b"precious".to_vec()));
    assert_eq!(fs::read_dir(other.path()).unwrap().count(), 1);
}

/// The part of the test below that runs as another user: the directory's name is in the environment.
const AS_NOBODY: &str = "ROCKMILL_TEST_NAMES_DIR";

#[test]
fn child_process() {
    let Some(dir) = std::env::var_os(AS_NOBODY).map(PathBuf::from) else { return };
    let (own, link) = (dir.join("own"), dir.join("own/000007.sst"));
    FS.create_dir(&own, false).unwrap();
    symlink("/etc/hostname", &link).unwrap();
    FS.write_all(&link, b"mine").unwrap();
    assert_eq!(fs::symlink_metadata(&link).unwrap().len(), 4);
    drop(FS.lock(&own.join("LOCK")).unwrap());
    assert_eq!(mode(&own.join("LOCK")), 0o600);
    symlink(dir.join("theirs"), own.join("table")).unwrap();
    assert_eq!(FS.read_to_vec(&own.join("table")).unwrap(), b"readable", "whoever owns it, the link is our own");
    let entry = FS.entry(&dir.join("theirs")).unwrap().unwrap();
    assert!(!entry.ours, "{entry:?}");
    println!("CHILD done");
}

#[test]
fn a_user_without_rights_has_the_same_protection() {
    if !needs_root("a_user_without_rights_has_the_same_protection") {
        return;
    }
    let dir = dir();
    fs::write(dir.path().join("theirs"), "readable").unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    // The other user may not be able to enter the build directory.
    let program = dir.path().join("test");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let mut child = Command::new(&program);
    child.args(["--exact", "child_process", "--nocapture"]).env(AS_NOBODY, dir.path()).current_dir("/");
    let out = child.uid(NOBODY).gid(NOBODY).output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    std::io::stderr().write_all(&out.stderr).unwrap();
    assert!(out.status.success() && said.contains("CHILD done"), "{said}");
}
