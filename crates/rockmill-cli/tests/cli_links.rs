//! Directories of another user: links, pipes and devices in them, and the ownership of files that commands create.

mod cli_support;

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use cli_support::{ROCKMILL, Sandbox};
use rockmill_skip::{Needs, skip};

/// A user that owns nothing.
const NOBODY: u32 = 65534;

/// Runs a command that might wait for ever; returns its exit status and standard error.
fn run(s: &Sandbox, args: &[&str]) -> (i32, String) {
    let mut command = Command::new("timeout");
    let output = command.args(["120", ROCKMILL]).args(args).current_dir(s.dir.path()).output().expect("timeout");
    let code = output.status.code().unwrap_or(-1);
    assert_ne!(code, 124, "{args:?} waits for ever");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!stderr.contains("panicked"), "{args:?}: {stderr}");
    (code, stderr)
}

/// A directory outside of the database with a file that no command may touch.
fn victim(s: &Sandbox) -> PathBuf {
    let dir = s.path("outside");
    fs::create_dir_all(&dir).expect("made");
    for name in ["precious", "000001.sst", "000002.log", "MANIFEST-000003", "CURRENT", "ROCKMILL_UNFINISHED"] {
        fs::write(dir.join(name), "precious").expect("written");
    }
    dir
}

#[track_caller]
fn untouched(dir: &Path) {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).expect("listed") {
        let path = entry.expect("an entry").path();
        assert_eq!(fs::read(&path).expect("read"), b"precious", "{}", path.display());
        names.push(path);
    }
    assert_eq!(names.len(), 6, "{names:?}");
}

/// Everything below a directory, without following links.
fn tree(dir: &Path, out: &mut Vec<(PathBuf, fs::Metadata)>) {
    for entry in fs::read_dir(dir).expect("listed") {
        let path = entry.expect("an entry").path();
        let meta = fs::symlink_metadata(&path).expect("there");
        if meta.is_dir() {
            tree(&path, out);
        }
        out.push((path, meta));
    }
}

fn below(dir: &Path) -> Vec<(PathBuf, fs::Metadata)> {
    let mut out = Vec::new();
    tree(dir, &mut out);
    out
}

fn name(path: &Path) -> String {
    path.file_name().expect("a name").to_string_lossy().into_owned()
}

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0)
}

#[test]
fn planted_links_lead_no_command_out_of_the_database() {
    let s = Sandbox::new();
    let outside = victim(&s);
    for command in [&["put", "db", "k", "v"][..], &["compact", "db"], &["repair", "db"], &["delete", "db", "key000001"]]
    {
        let _ = fs::remove_dir_all(s.path("db"));
        s.database("db", 300);
        for n in 1..60 {
            for name in [format!("MANIFEST-{n:06}"), format!("{n:06}.dbtmp"), format!("OPTIONS-{n:06}.dbtmp")] {
                // The existing entry is the database.
                let _ = symlink(outside.join(if n % 2 == 0 { "precious" } else { "new" }), s.path("db").join(name));
            }
        }
        for name in ["WAL_OWNER.dbtmp", "LOG.old.1", "lost"] {
            let _ = symlink(outside.join("precious"), s.path("db").join(name));
        }
        let _ = fs::remove_file(s.path("db/LOG"));
        symlink(outside.join("precious"), s.path("db/LOG")).expect("a link");
        let (code, text) = run(&s, command);
        assert!(code == 0 || text.contains("error: "), "{command:?}: {text}");
        untouched(&outside);
    }
}

#[test]
fn a_lock_that_is_a_link_is_refused() {
    let s = Sandbox::new();
    let outside = victim(&s);
    s.database("db", 10);
    for target in ["precious", "new"] {
        fs::remove_file(s.path("db/LOCK")).expect("removed");
        symlink(outside.join(target), s.path("db/LOCK")).expect("a link");
        for command in [&["put", "db", "k", "v"][..], &["repair", "db"], &["checkpoint", "db", "copy"]] {
            let (code, text) = run(&s, command);
            assert!(code == 3 && text.contains("LOCK") && text.contains("symbolic link"), "{command:?}: {text}");
        }
        untouched(&outside);
    }
    assert_eq!(s.ok(&["get", "db", "key000001"]).trim(), "value 1 x", "readers need no lock");
}

#[test]
fn repair_moves_nothing_through_a_link() {
    let s = Sandbox::new();
    let outside = victim(&s);
    s.database("db", 300);
    symlink(&outside, s.path("db/lost")).expect("a link");
    let (code, text) = run(&s, &["repair", "db"]);
    assert!(code != 0 && text.contains("lost") && text.contains("symbolic link"), "{text}");
    untouched(&outside);
}

#[test]
fn a_checkpoint_is_made_in_no_directory_of_another() {
    let s = Sandbox::new();
    let outside = victim(&s);
    s.database("db", 300);
    symlink(&outside, s.path("copy.tmp")).expect("a link");
    if is_root() {
        // The owner of the directory could exchange its contents.
        fs::create_dir(s.path("copy.1.tmp")).expect("made");
        fs::write(s.path("copy.1.tmp/ROCKMILL_UNFINISHED"), "").expect("written");
        chown(s.path("copy.1.tmp"), Some(NOBODY), Some(NOBODY)).expect("given away");
    } else {
        skip("a_checkpoint_is_made_in_no_directory_of_another", &Needs::Root.because("the test gives files away"));
    }
    s.ok(&["checkpoint", "db", "copy"]);
    untouched(&outside);
    assert_eq!(s.ok(&["scan", "copy"]), s.ok(&["scan", "db"]));
    assert_eq!(s.path("copy.1.tmp").exists(), is_root());
}

#[test]
fn backups_empty_no_directory_through_a_link() {
    let s = Sandbox::new();
    let outside = victim(&s);
    s.database("db", 300);
    for id in 1..=2 {
        s.ok(&["backup", "create", "db", "backups"]);
        assert!(s.path(&format!("backups/meta/{id}")).exists());
    }
    // Remains of a crash have such names: the next backup, or an old one.
    symlink(&outside, s.path("backups/private/3")).expect("a link");
    symlink(&outside, s.path("backups/private/9.tmp")).expect("a link");
    s.ok(&["backup", "create", "db", "backups"]);
    untouched(&outside);
    symlink(&outside, s.path("backups/private/7")).expect("a link");
    s.ok(&["backup", "purge", "backups", "--keep", "2"]);
    untouched(&outside);
    // The directories themselves.
    for dir in ["private", "shared", "shared_checksum", "meta"] {
        let (dir, aside) = (s.path("backups").join(dir), s.path("aside"));
        let there = fs::rename(&dir, &aside).is_ok();
        symlink(&outside, &dir).expect("a link");
        for command in [
            &["backup", "purge", "backups", "--keep", "1"][..],
            &["backup", "create", "db", "backups"],
            &["backup", "restore", "backups", "restored"],
            &["backup", "delete", "backups", "3"],
        ] {
            let (code, text) = run(&s, command);
            let said = text.contains("link") || text.contains("no backup that can be used");
            assert!(code == 0 || said, "{command:?} of {}: {text}", dir.display());
            untouched(&outside);
        }
        fs::remove_file(&dir).expect("removed");
        if there {
            fs::rename(&aside, &dir).expect("renamed");
        }
    }
    // One backup whose own directory is a link.
    let v = s.json(&["backup", "create", "db", "backups"]);
    let own = s.path(&format!("backups/private/{}", v["id"]));
    fs::remove_dir_all(&own).expect("removed");
    symlink(&outside, &own).expect("a link");
    s.run(&["backup", "verify", "backups"]).fails(1, &["cannot be used"]);
    s.ok(&["backup", "delete", "backups", &v["id"].to_string()]);
    untouched(&outside);
    assert!(fs::symlink_metadata(&own).is_err(), "the link is gone");
    s.ok(&["backup", "create", "db", "backups"]);
    s.ok(&["backup", "verify", "backups"]);
    untouched(&outside);
}

#[test]
fn a_restore_brings_back_nothing_from_outside_of_the_backup() {
    let s = Sandbox::new();
    fs::write(s.path("secret"), "root:secret").expect("written");
    s.database("db", 300);
    s.ok(&["backup", "create", "db", "backups"]);
    let options = s.files("backups/private/1", "").into_iter().find(|p| name(p).starts_with("OPTIONS")).expect("one");
    fs::remove_file(&options).expect("removed");
    symlink(s.path("secret"), &options).expect("a link");
    // Schema 2 needs no checksums.
    let meta = fs::read_to_string(s.path("backups/meta/1")).expect("the list");
    let without: Vec<&str> = meta.lines().map(|l| l.split(" crc32 ").next().unwrap_or_default()).collect();
    fs::write(s.path("backups/meta/1"), format!("schema_version 2.1\n{}\n", without.join("\n"))).expect("written");
    let (code, text) = run(&s, &["backup", "restore", "backups", "restored"]);
    assert!(code != 0 && text.contains("OPTIONS"), "{text}");
    assert!(!s.path("restored").exists() || below(&s.path("restored")).is_empty());
    let (code, text) = run(&s, &["backup", "verify", "backups"]);
    assert!(code != 0, "{text}");
    // The backup directory itself may be a link.
    fs::remove_file(&options).expect("removed");
    fs::remove_file(s.path("backups/meta/1")).expect("removed");
    s.ok(&["backup", "create", "db", "backups"]);
    symlink("backups", s.path("linked")).expect("a link");
    s.ok(&["backup", "create", "db", "linked"]);
    s.ok(&["backup", "restore", "linked", "restored"]);
    assert_eq!(s.ok(&["scan", "restored"]), s.ok(&["scan", "db"]));
}

#[test]
fn pipes_and_devices_are_refused_at_once() {
    let s = Sandbox::new();
    s.database("db", 2000);
    let table = name(&s.files("db", ".sst")[0]);
    let wal = name(&s.files("db", ".log")[0]);
    let manifest = s.files("db", "").into_iter().find(|p| name(p).starts_with("MANIFEST")).expect("one");
    let options = s.files("db", "").into_iter().rfind(|p| name(p).starts_with("OPTIONS")).expect("one");
    s.ok(&["backup", "create", "db", "backups"]);
    let mut refused = 0;
    for file in ["CURRENT", "IDENTITY", "LOG", &table, &wal, &name(&manifest), &name(&options)] {
        for device in [None, Some("/dev/zero")] {
            let copied = Command::new("cp").args(["-a", "db", "d"]).current_dir(s.dir.path()).status();
            assert!(copied.expect("cp").success());
            let path = s.path("d").join(file);
            let _ = fs::remove_file(&path); // not each is in every database
            match device {
                None => assert!(Command::new("mkfifo").arg(&path).status().expect("mkfifo").success()),
                Some(device) => symlink(device, &path).expect("a link"),
            }
            let path = path.display().to_string();
            for command in [
                &["verify", "d"][..],
                &["get", "d", "key000001"],
                &["stats", "d"],
                &["dump", &path],
                &["options", "d"],
                &["checkpoint", "d", "copy"],
                &["repair", "d"],
            ] {
                let (code, text) = run(&s, command);
                refused += usize::from(code != 0 && text.contains("no regular file"));
                let _ = fs::remove_dir_all(s.path("copy"));
            }
            fs::remove_dir_all(s.path("d")).expect("removed");
        }
    }
    assert!(refused > 10, "{refused}");
    assert_eq!(s.ok(&["get", "db", "key000001"]).trim(), "value 1 x");
    fs::rename(s.path("backups/meta/1"), s.path("aside")).expect("renamed");
    symlink("/dev/zero", s.path("backups/meta/1")).expect("a link");
    let (code, text) = run(&s, &["backup", "restore", "backups", "restored"]);
    assert!(code != 0 && text.contains("link"), "{text}");
}

#[test]
fn databases_that_users_link_on_purpose_keep_working() {
    let s = Sandbox::new();
    s.database("db", 2000);
    let before = s.ok(&["scan", "db"]);
    // A table on another disk, and the directory under another name.
    let table = s.files("db", ".sst").pop().expect("a table");
    fs::create_dir(s.path("disk")).expect("made");
    let moved = s.path("disk").join(name(&table));
    fs::rename(&table, &moved).expect("moved");
    symlink(&moved, &table).expect("a link");
    symlink("db", s.path("linked")).expect("a link");
    assert_eq!(s.ok(&["scan", "linked"]), before);
    s.ok(&["verify", "linked"]);
    s.ok(&["put", "linked", "zzz", "1"]);
    s.ok(&["delete", "linked", "zzz"]);
    s.ok(&["checkpoint", "linked", "copy"]);
    let copied = fs::symlink_metadata(s.path("copy").join(name(&table))).expect("copied");
    assert!(copied.is_file(), "a copy has the table itself, not a link that leads elsewhere from there");
    assert_eq!(s.ok(&["scan", "copy"]), before);
    s.ok(&["backup", "create", "linked", "backups"]);
    s.ok(&["backup", "restore", "backups", "restored"]);
    assert_eq!(s.ok(&["scan", "restored"]), before);
    s.ok(&["compact", "linked"]);
    assert_eq!(s.ok(&["scan", "db"]), before);
    assert!(fs::symlink_metadata(&table).is_err() && moved.exists(), "the link goes, the user's file stays");
}

#[test]
fn what_is_private_stays_private_in_every_copy() {
    let s = Sandbox::new();
    for (dir_mode, file_mode) in [(0o700, 0o644), (0o755, 0o600)] {
        s.database("db", 300);
        fs::set_permissions(s.path("db"), Permissions::from_mode(dir_mode)).expect("set");
        for (path, _) in below(&s.path("db")) {
            fs::set_permissions(path, Permissions::from_mode(file_mode)).expect("set");
        }
        let old: Vec<u64> = below(&s.path("db")).into_iter().map(|(_, meta)| meta.ino()).collect();
        s.ok(&["put", "db", "a", "1"]);
        s.ok(&["compact", "db"]);
        s.ok(&["put", "db", "b", "1"]);
        s.ok(&["backup", "create", "db", "backups"]);
        s.ok(&["backup", "restore", "backups", "restored"]);
        s.ok(&["checkpoint", "db", "copy", "--keep-log", "1G"]);
        s.ok(&["put", "restored", "c", "1"]);
        fs::remove_file(s.path("db/CURRENT")).expect("removed");
        s.ok(&["repair", "db"]);
        for dir in ["db", "backups", "restored", "copy"] {
            for (path, meta) in below(&s.path(dir)) {
                let is_top = dir == "backups" && meta.is_dir() && path.parent() == Some(&s.path(dir));
                // Also under another name, for example as a table of the checkpoint.
                let keeps_its_mode = file_mode == 0o644 && old.contains(&meta.ino());
                let mode = meta.permissions().mode() & 0o777;
                assert!(is_top || keeps_its_mode || mode & 0o077 == 0, "{}: {mode:o}", path.display());
            }
        }
        for dir in ["db", "backups", "restored", "copy"] {
            fs::remove_dir_all(s.path(dir)).expect("removed");
        }
    }
    // And what is not, is not.
    s.database("db", 10);
    s.ok(&["backup", "create", "db", "backups"]);
    s.ok(&["backup", "restore", "backups", "restored"]);
    let mode = fs::metadata(s.path("db/CURRENT")).expect("there").permissions().mode();
    assert_eq!(fs::metadata(s.path("restored/CURRENT")).expect("there").permissions().mode(), mode);
    assert_eq!(fs::metadata(s.path("db/LOCK")).expect("there").permissions().mode() & 0o777, 0o600);
}

/// All users may read the directory and CURRENT, but not tables, nor copies of them.
#[test]
fn a_copy_of_a_private_file_is_private() {
    let s = Sandbox::new();
    s.database("db", 300);
    s.ok(&["compact", "db", "--bottommost", "force"]); // so that no command has to flush
    let is_table = |path: &Path| path.extension().is_some_and(|e| e == "sst");
    for (path, _) in below(&s.path("db")).into_iter().filter(|(path, _)| is_table(path)) {
        fs::set_permissions(path, Permissions::from_mode(0o600)).expect("set");
    }
    s.ok(&["backup", "create", "db", "backups"]);
    s.ok(&["backup", "restore", "backups", "restored"]);
    s.ok(&["checkpoint", "db", "copy", "--keep-log", "1G"]);
    // A table that is a link is copied, not linked.
    let (table, _) = below(&s.path("db")).into_iter().find(|(path, _)| is_table(path)).expect("a table");
    fs::rename(&table, s.path("elsewhere")).expect("moved");
    std::os::unix::fs::symlink(s.path("elsewhere"), &table).expect("a link");
    s.ok(&["checkpoint", "db", "copy2"]);
    let mut seen = 0;
    for dir in ["backups", "restored", "copy", "copy2"] {
        for (path, meta) in below(&s.path(dir)).into_iter().filter(|(path, _)| is_table(path)) {
            seen += 1;
            let mode = meta.permissions().mode() & 0o777;
            assert_eq!(mode & 0o077, 0, "{}: {mode:o}", path.display());
        }
    }
    assert!(seen >= 4, "{seen}");
}

/// Outputs of a compaction contain data of its inputs, so only users that may read all inputs may read them.
#[test]
fn a_compaction_grants_what_all_its_inputs_grant() {
    let s = Sandbox::new();
    let tables = || s.files("db", ".sst");
    let modes = || tables().iter().map(|p| fs::metadata(p).expect("there").mode() & 0o777).collect::<Vec<_>>();
    for engine in ["auto", "pread", "uring"] {
        s.database("db", 300);
        s.ok(&["compact", "db", "--bottommost", "force"]);
        assert!(modes().iter().all(|&mode| mode & 0o044 == 0o044), "{:?}", modes());
        fs::set_permissions(&tables()[0], Permissions::from_mode(0o640)).expect("set");
        s.ok(&["put", "db", "new", "value"]);
        s.ok(&["compact", "db", "--bottommost", "force", "--engine", engine]);
        assert!(modes().iter().all(|&mode| mode == 0o640), "{engine}: {:?}", modes());
        fs::remove_dir_all(s.path("db")).expect("removed");
    }
}

#[test]
fn a_report_goes_through_no_link_of_another_user() {
    let s = Sandbox::new();
    symlink(s.path("new"), s.path("report.html")).expect("a link");
    if !is_root() {
        return skip("a_report_goes_through_no_link_of_another_user", &Needs::Root.because("it makes another's link"));
    }
    lchown(s.path("report.html"), Some(NOBODY), Some(NOBODY)).expect("given away");
    s.run(&["simulate", "--data", "64M", "--report", "report.html"]).fails(3, &["link of user", "another name"]);
    assert!(!s.path("new").exists());
}

/// A table from a private directory becomes part of the database.
#[test]
fn what_is_ingested_is_as_private_as_the_database() {
    let s = Sandbox::new();
    s.database("db", 10);
    s.file("a.tsv", "a\t1\n");
    fs::create_dir(s.path("own")).expect("made");
    fs::set_permissions(s.path("own"), Permissions::from_mode(0o700)).expect("set");
    s.ok(&["write-sst", "own/a.sst", "a.tsv"]);
    let before = s.files("db", ".sst");
    s.ok(&["ingest", "db", "own/a.sst"]);
    let new: Vec<PathBuf> = s.files("db", ".sst").into_iter().filter(|path| !before.contains(path)).collect();
    let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
    assert!(!new.is_empty());
    new.iter().for_each(|path| assert_eq!(mode(path), mode(&s.path("db/CURRENT")), "{}", path.display()));
}

#[test]
fn what_root_makes_in_another_s_database_is_theirs() {
    if !is_root() {
        let missing = Needs::Root.because("the test gives files to another user");
        return skip("what_root_makes_in_another_s_database_is_theirs", &missing);
    }
    let s = Sandbox::new();
    fs::set_permissions(s.dir.path(), Permissions::from_mode(0o777)).expect("set");
    s.database("db", 300);
    for (path, _) in below(&s.path("db")).into_iter().chain([(s.path("db"), fs::metadata("/").expect("there"))]) {
        lchown(path, Some(NOBODY), Some(NOBODY)).expect("given away");
    }
    fs::remove_file(s.path("db/LOCK")).expect("removed");
    s.ok(&["put", "db", "a", "1"]);
    s.ok(&["compact", "db"]);
    s.ok(&["checkpoint", "db", "copy"]);
    fs::remove_file(s.path("db/CURRENT")).expect("removed");
    s.ok(&["repair", "db"]);
    fs::create_dir(s.path("restored")).expect("made");
    chown(s.path("restored"), Some(NOBODY), Some(NOBODY)).expect("given away");
    s.ok(&["backup", "create", "db", "backups"]);
    s.ok(&["backup", "restore", "backups", "restored"]);
    for dir in ["db", "copy", "restored"] {
        for (path, meta) in below(&s.path(dir)) {
            assert_eq!((meta.uid(), meta.gid()), (NOBODY, NOBODY), "{}", path.display());
        }
        assert_eq!(fs::metadata(s.path(dir)).expect("there").uid(), NOBODY, "{dir}");
    }
    for (path, meta) in below(&s.path("backups")) {
        assert_eq!(meta.uid(), 0, "{}", path.display());
    }
    // They go on with it.
    let mut put = Command::new(ROCKMILL);
    put.args(["put", "db", "b", "2"]).current_dir(s.dir.path()).uid(NOBODY).gid(NOBODY);
    match put.output() {
        Ok(done) => assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr)),
        Err(e) => {
            let missing = Needs::Root.because(format!("another user cannot start the command: {e}"));
            skip("what_root_makes_in_another_s_database_is_theirs", &missing);
        }
    }
}

#[test]
fn an_ingested_file_that_another_could_change_is_copied() {
    let s = Sandbox::new();
    s.file("a.tsv", "a\t1\n");
    s.file("b.tsv", "b\t2\n");
    s.file("c.tsv", "c\t3\n");
    s.file("d.tsv", "d\t4\n");
    for n in ["a", "b", "c", "d"] {
        s.ok(&["write-sst", &format!("{n}.sst"), &format!("{n}.tsv")]);
    }
    fs::set_permissions(s.path("d.sst"), Permissions::from_mode(0o664)).expect("set");
    symlink("a.sst", s.path("link.sst")).expect("a link");
    if is_root() {
        chown(s.path("b.sst"), Some(NOBODY), Some(NOBODY)).expect("given away");
    } else {
        fs::set_permissions(s.path("b.sst"), Permissions::from_mode(0o666)).expect("set");
    }
    // Kept open until the end, because a new file may get the inode number of a deleted one.
    let originals = ["a.sst", "b.sst", "c.sst", "d.sst"].map(|name| fs::File::open(s.path(name)).expect("there"));
    let inodes = originals.each_ref().map(|file| file.metadata().expect("there").ino());
    s.ok(&["ingest", "db", "link.sst", "--move", "--create"]);
    s.ok(&["ingest", "db", "b.sst", "--move"]);
    s.ok(&["ingest", "db", "c.sst", "--move"]);
    s.ok(&["ingest", "db", "d.sst", "--move"]);
    assert!(s.path("a.sst").exists(), "what the link led to stays");
    let tables: Vec<u64> = s.files("db", ".sst").iter().map(|p| fs::metadata(p).expect("there").ino()).collect();
    assert!(!tables.contains(&inodes[0]) && !tables.contains(&inodes[1]), "copied");
    assert!(tables.contains(&inodes[2]), "our own file is moved");
    assert!(!tables.contains(&inodes[3]), "its group may write to it");
    assert!(s.files("db", ".sst").iter().all(|p| fs::symlink_metadata(p).expect("there").is_file()));
    assert_eq!(s.ok(&["scan", "db"]), "a\t1\nb\t2\nc\t3\nd\t4\n");
    drop(originals);
}

/// Name, mode, owner, time and contents.
type State = (PathBuf, u32, u32, i64, Option<Vec<u8>>);

/// Everything outside.
fn state(dir: &Path) -> Vec<State> {
    let mut all: Vec<State> = below(dir)
        .into_iter()
        .map(|(path, meta)| {
            let bytes = meta.is_file().then(|| fs::read(&path).expect("read"));
            (path, meta.mode(), meta.uid(), meta.mtime(), bytes)
        })
        .collect();
    all.sort();
    all
}

/// Puts an object of another kind in the place of a file, or under a name that a command may use.
fn plant(random: &mut fastrand::Rng, dir: &Path, outside: &Path) -> String {
    let number = random.u32(1..50);
    let there = below(dir);
    let name = match random.u32(0..12) {
        0 => format!("MANIFEST-{number:06}"),
        1 => format!("{number:06}.dbtmp"),
        2 => format!("OPTIONS-{number:06}.dbtmp"),
        3 => format!("{number:06}.sst"),
        4 => format!("{number:06}.log"),
        5 => random.choice(["lost", "archive", "LOCK", "LOG", "CURRENT", "IDENTITY", "WAL_OWNER"]).unwrap().to_owned(),
        6 => random.choice(["private", "shared", "shared_checksum", "meta"]).unwrap().to_owned(),
        7 => format!("private/{}", random.u32(1..5)),
        8 => format!("meta/.{}.tmp", random.u32(1..5)),
        _ => {
            let (path, _) = &there[random.usize(..there.len())];
            path.strip_prefix(dir).expect("below").display().to_string()
        }
    };
    let path = dir.join(&name);
    let is_dir = fs::symlink_metadata(&path).is_ok_and(|m| m.is_dir());
    let _ = if is_dir { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
    let targets = ["", "precious", "new", "000001.sst", "000002.log", "CURRENT"];
    let (kind, _) = match random.u32(0..6) {
        0 => (
            "a pipe".to_owned(),
            Command::new("mkfifo").arg(&path).stderr(std::process::Stdio::null()).status().is_ok(),
        ),
        1 => ("a link to /dev/zero".to_owned(), symlink("/dev/zero", &path).is_ok()),
        2 => ("a directory".to_owned(), fs::create_dir(&path).is_ok()),
        3 => ("a link to itself".to_owned(), symlink(&name, &path).is_ok()),
        _ => {
            let target = random.choice(targets).expect("one");
            (format!("a link to {target:?}"), symlink(outside.join(target), &path).is_ok())
        }
    };
    format!("{name}: {kind}")
}

#[test]
fn no_planted_directory_leads_a_command_out_of_it_or_makes_it_wait() {
    let s = Sandbox::new();
    s.database("db", 1000);
    s.ok(&["backup", "create", "db", "backups"]);
    s.ok(&["put", "db", "k", "v"]);
    s.ok(&["backup", "create", "db", "backups"]);
    let outside = victim(&s);
    let before = state(&outside);
    let rounds = std::env::var("ROCKMILL_PLANTED").map_or(30, |n| n.parse().expect("a number"));
    let first = std::env::var("ROCKMILL_PLANTED_SEED").map_or(1, |n| n.parse().expect("a number"));
    for seed in first..first + rounds {
        let mut random = fastrand::Rng::with_seed(seed);
        for dir in ["d", "b", "copy", "restored", "copy.tmp"] {
            let _ = fs::remove_dir_all(s.path(dir));
            let _ = fs::remove_file(s.path(dir));
        }
        for (from, to) in [("db", "d"), ("backups", "b")] {
            let copied = Command::new("cp").args(["-a", from, to]).current_dir(s.dir.path()).status();
            assert!(copied.expect("cp").success());
        }
        let mut done = vec![format!("seed {seed}")];
        for _ in 0..random.u32(1..6) {
            let dir = s.path(if random.bool() { "d" } else { "b" });
            done.push(plant(&mut random, &dir, &outside));
        }
        if random.u32(0..4) == 0 {
            let _ = symlink(&outside, s.path("copy.tmp"));
        }
        let commands = [
            &["put", "d", "k", "v"][..],
            &["get", "d", "key000001"],
            &["verify", "d"],
            &["stats", "d"],
            &["compact", "d"],
            &["repair", "d"],
            &["checkpoint", "d", "copy"],
            &["backup", "create", "d", "b"],
            &["backup", "list", "b"],
            &["backup", "verify", "b"],
            &["backup", "delete", "b", "1"],
            &["backup", "purge", "b", "--keep", "1"],
            &["backup", "restore", "b", "restored"],
            &["backup", "restore", "b", "d", "--force"],
        ];
        for _ in 0..4 {
            let command = random.choice(commands).expect("one");
            let (code, text) = run(&s, command);
            done.push(format!("{command:?}: {code} {text}"));
            assert_eq!(state(&outside), before, "{done:#?}");
        }
    }
}
