//! Runs every command on untrusted directories, randomly damaged by `rockmill_fuzz::hostile`. Nothing outside of them
//! may change. No command may hang, panic, be killed, or print control characters of file names or contents to the
//! terminal in an error.
//!
//! Prints its seed; `ROCKMILL_SEED` repeats a run, `ROCKMILL_FUZZ_SECONDS` makes it longer.

mod cli_support;

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cli_support::ROCKMILL;
use rockmill_fuzz::hostile::{FOREIGN_WALS, Hostile};
use rockmill_fuzz::mutate::Dice;

/// A command that takes longer counts as hanging.
const HANG: Duration = Duration::from_secs(120);
/// Limits of a command's writable memory in KiB and of its CPU time in seconds. Beyond them, the system refuses the
/// memory or kills the command, and the test notices that. Threads' stacks count in full.
const MEMORY_KIB: u32 = 256 << 10;
const SECONDS: u32 = 40;
/// More output than this counts as endless.
const OUTPUT: u64 = 64 << 20;

/// The commands; they run in the directory that contains `db`, `backups` and `made`.
const COMMANDS: [&str; 29] = [
    "verify db",
    "verify db --json",
    "scan db --limit 20000",
    "scan db --reverse --hex --limit 100",
    "scan db --column-family other --json --limit 100",
    "get db key0001",
    "stats db",
    "stats db --json",
    "list-cf db",
    "options db",
    "options db --changed --json",
    "put db new value",
    "delete db key0002",
    "create-cf db made",
    "drop-cf db other",
    "compact db",
    "downgrade db",
    "load db made/lines --format lines",
    "checkpoint db made/checkpoint",
    "checkpoint db made/checkpoint2 --keep-log 64M",
    "backup create db made/new-backups",
    "backup create db backups",
    "backup list backups",
    "backup verify backups",
    "backup restore backups made/restored",
    "backup restore backups db",
    "backup purge backups --keep 1",
    "backup delete backups 1",
    "repair db",
];

/// The commands that accept `--wal-dir`; a repair uses whatever it is given.
const WITH_WAL_DIR: [&str; 9] =
    ["scan", "get", "stats", "put", "delete", "compact", "downgrade", "checkpoint", "backup create"];

/// Runs one; what it broke.
fn run(root: &Path, words: &[&str]) -> Option<String> {
    let line = words.join(" ");
    let (out, err) = (root.join("made/stdout"), root.join("made/stderr"));
    let to = |path: &Path| Stdio::from(File::create(path).expect("a file"));
    let limited = format!("ulimit -d {MEMORY_KIB} && ulimit -t {SECONDS} && exec \"$0\" \"$@\"");
    let mut child = Command::new("sh")
        .args(["-c", &limited, ROCKMILL])
        .args(words)
        .current_dir(root)
        .stdin(Stdio::null())
        .stdout(to(&out))
        .stderr(to(&err))
        .spawn()
        .expect("the command starts");
    let start = Instant::now();
    let mut pause = Duration::from_millis(1);
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child") {
            break status;
        }
        let long = fs::metadata(&out).is_ok_and(|m| m.len() > OUTPUT);
        if start.elapsed() > HANG || long {
            let _ = child.kill();
            let _ = child.wait();
            return Some(format!("{line}: no end after {:?}", start.elapsed()));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    };
    let said = String::from_utf8_lossy(&fs::read(&err).expect("a file")).into_owned();
    let known = status.code().is_some_and(|code| (0..=3).contains(&code));
    let spoken = status.code() != Some(3) || !said.trim().is_empty() || line.contains("--json");
    let clean = said.chars().all(|c| c == '\n' || c == '\t' || !c.is_control());
    let wrong = if status.signal().is_some() || !known {
        "ended badly"
    } else if said.contains("panicked") {
        "a panic"
    } else if said.contains("try '--help'") {
        "is no right call"
    } else if !spoken {
        "no reason given"
    } else if !clean {
        "control characters"
    } else {
        return None;
    };
    Some(format!("{line}: {wrong}: {status}: {said:?}"))
}

/// Runs one case; returns what was done to which directory, and the violated rules, if any.
fn case(seed: u64) -> (String, Vec<String>) {
    let bytes = seed.to_le_bytes();
    let mut dice = Dice::new(&bytes);
    let root = tempfile::tempdir().expect("a directory");
    let hostile = Hostile::new(&mut dice, root.path());
    fs::write(root.path().join("made/lines"), "a line\nanother\n").expect("a file");
    // In some cases, the directory is changed meanwhile.
    let exchange = dice.once_in(4).then(|| hostile.exchange(seed));
    let mut broken = Vec::new();
    // In only some cases, the reading commands run first: commands that write may repair damage that readers would have
    // met.
    let mut order: Vec<&str> = COMMANDS.to_vec();
    let from = dice.among(0..order.len());
    order.rotate_left(from);
    for line in order.into_iter().take(12) {
        let mut words: Vec<&str> = line.split(' ').collect();
        // Unclaimed WALs that no MANIFEST here knows are not replayed either if a flag names them.
        if WITH_WAL_DIR.iter().any(|c| line.starts_with(c)) && dice.once_in(4) {
            words.extend(["--wal-dir", FOREIGN_WALS]);
        }
        broken.extend(run(root.path(), &words));
    }
    let mut files: Vec<_> = fs::read_dir(root.path().join("db")).into_iter().flatten().flatten().collect();
    files.sort_by_key(fs::DirEntry::file_name);
    for file in files.iter().take(20) {
        let name = format!("db/{}", file.file_name().to_string_lossy());
        broken.extend(run(root.path(), &["dump", &name, "--limit", "1000"]));
    }
    let what = format!("{}{}", hostile.what, if exchange.is_some() { "; exchanged meanwhile" } else { "" });
    drop(exchange);
    broken.extend(hostile.broken());
    (what, broken)
}

#[test]
fn commands_on_a_hostile_directory_change_nothing_outside_of_it() {
    let given = std::env::var("ROCKMILL_SEED").ok().and_then(|s| s.parse().ok());
    let seconds = std::env::var("ROCKMILL_FUZZ_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(10.0);
    let mut rng = fastrand::Rng::with_seed(given.unwrap_or_else(|| fastrand::u64(..)));
    let (end, mut count, mut all) = (Instant::now() + Duration::from_secs_f64(seconds), 0, Vec::new());
    while Instant::now() < end && all.len() < 10 {
        let seed = if count == 0 { given.unwrap_or_else(|| rng.u64(..)) } else { rng.u64(..) };
        let (what, broken) = case(seed);
        if !broken.is_empty() {
            all.push(format!("ROCKMILL_SEED={seed}: {what}\n  {}", broken.join("\n  ")));
        }
        count += 1;
    }
    println!("{count} directories");
    assert!(all.is_empty(), "{} directories broke a promise:\n{}", all.len(), all.join("\n"));
}
