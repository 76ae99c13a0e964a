//! Resource limits of a process and how they are set: file sizes, disk space, file handles, memory.
//!
//! | limit | arranged by | while it holds | when it is lifted |
//! |---|---|---|---|
//! | `fsize` | RLIMIT_FSIZE, SIGXFSZ ignored | EFBIG: the store refuses writes | it resumes by itself |
//! | `space` | a small ext4 file system in a file, filled up | ENOSPC: the same | the same |
//! | `files` | RLIMIT_NOFILE | EMFILE: reads may fail; after failed background work no writes | `resume` |
//! | `memory` | a control group (v2) or RLIMIT_AS, and a thread that eats it | the process dies | it starts again |
//!
//! The first three are set and lifted while the child runs. All of this uses the system's own commands (`sh`,
//! `prlimit`, `mount`), so that no code here needs `unsafe`.

use std::fmt;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;

/// Size of a piece of the ballast that fills a disk.
const BALLAST_PIECE: usize = 64 << 10;
/// The ballast's name in the database's directory.
pub const BALLAST: &str = "stress-ballast";

/// What the child is short of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// Bytes of any file.
    Fsize(u64),
    /// Size of the database's file system in bytes.
    Space(u64),
    /// Open file handles.
    Files(u64),
    /// Bytes of memory.
    Memory(u64),
}

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = "fsize=BYTES, space=BYTES, files=N or memory=BYTES (for example space=64M)";
        let bad = || format!("{text:?} is not a limit: {known}");
        let (name, amount) = text.split_once('=').ok_or_else(bad)?;
        let (digits, shift) = match amount.as_bytes().last().map(u8::to_ascii_uppercase) {
            Some(b'K') => (&amount[..amount.len() - 1], 10),
            Some(b'M') => (&amount[..amount.len() - 1], 20),
            Some(b'G') => (&amount[..amount.len() - 1], 30),
            _ => (amount, 0),
        };
        let amount: u64 = digits.parse().map_err(|_| bad())?;
        let amount = amount.checked_mul(1 << shift).ok_or_else(bad)?;
        match name {
            "fsize" if amount >= 4096 => Ok(Self::Fsize(amount)),
            "space" if amount >= 8 << 20 => Ok(Self::Space(amount)),
            "space" => Err(format!("{text}: a file system of 8M at least")),
            "files" if amount >= 16 => Ok(Self::Files(amount)),
            "memory" if amount >= 64 << 20 => Ok(Self::Memory(amount)),
            "memory" => Err(format!("{text}: 64M at least")),
            _ => Err(bad()),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fsize(n) => write!(f, "fsize={n}"),
            Self::Space(n) => write!(f, "space={n}"),
            Self::Files(n) => write!(f, "files={n}"),
            Self::Memory(n) => write!(f, "memory={n}"),
        }
    }
}

impl Limit {
    /// This limit may cause such an error.
    pub fn explains(&self, e: &rockmill::Error) -> bool {
        let text = e.message();
        match self {
            Self::Fsize(_) | Self::Space(_) => e.is_no_space(),
            Self::Files(_) => text.contains("(os error 24)"),
            Self::Memory(_) => text.contains("(os error 12)") || text.contains("(os error 11)"),
        }
    }

    /// True if it is set and lifted while the child runs.
    pub fn comes_and_goes(&self) -> bool {
        !matches!(self, Self::Memory(_))
    }
}

fn run(program: &str, args: &[&str]) -> Result<(), String> {
    let out = Command::new(program).args(args).stdin(Stdio::null()).output();
    let out = out.map_err(|e| format!("{program}: {e}"))?;
    if out.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&out.stderr);
    Err(format!("{program} {}: {}", args.join(" "), said.trim().lines().next().unwrap_or("failed")))
}

/// A prepared limit; dropping it removes everything again.
#[derive(Debug)]
pub struct Arranged {
    limit: Limit,
    db: PathBuf,
    /// The control group, if this process may make one.
    group: Option<PathBuf>,
    /// Waits for the end of this process, however it ends, and unmounts.
    cleaner: Option<Child>,
    /// It holds now.
    pub on: bool,
}

impl Arranged {
    /// Prepares what the limit needs. If the limit is a file system, `db` must be an empty or a missing directory.
    ///
    /// # Errors
    /// Why this machine does not support it.
    pub fn new(limit: Limit, db: &Path, home: &Path) -> Result<Self, String> {
        let mut new = Self { limit, db: db.to_owned(), group: None, cleaner: None, on: false };
        match limit {
            Limit::Fsize(_) | Limit::Files(_) => {
                run("prlimit", &["--version"]).map_err(|e| format!("{e} (package util-linux)"))?;
            }
            Limit::Space(bytes) => new.mount(bytes, &home.join("disk.ext4"))?,
            Limit::Memory(bytes) => new.group = make_group(bytes).ok(),
        }
        Ok(new)
    }

    fn mount(&mut self, bytes: u64, image: &Path) -> Result<(), String> {
        let failed = |e: std::io::Error| format!("{}: {e}", image.display());
        std::fs::create_dir_all(&self.db).map_err(|e| format!("{}: {e}", self.db.display()))?;
        if !image.exists() {
            File::create(image).and_then(|f| f.set_len(bytes)).map_err(failed)?;
            run("mkfs.ext4", &["-q", "-F", "-m", "0", &image.to_string_lossy()])?;
        }
        run("mount", &["-o", "loop", &image.to_string_lossy(), &self.db.to_string_lossy()])?;
        // Ends when its input does, also after the death of this process.
        let script = "trap '' INT TERM HUP; cat >/dev/null; for i in 1 2 3 4 5 6 7 8 9 10; do \
                      umount \"$1\" 2>/dev/null && exit; sleep 0.3; done; umount -l \"$1\"";
        let mut cleaner = Command::new("sh");
        cleaner.args(["-c", script, "sh"]).arg(&self.db);
        let cleaner = cleaner.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        match cleaner {
            Ok(cleaner) => self.cleaner = Some(cleaner),
            Err(e) => {
                let _ = run("umount", &[&self.db.to_string_lossy()]);
                return Err(format!("sh: {e}"));
            }
        }
        let _ = std::fs::remove_dir(self.db.join("lost+found"));
        // Of a run that was kept.
        let _ = std::fs::remove_file(self.db.join(BALLAST));
        Ok(())
    }

    /// How often the kernel has killed for lack of memory here; `None` without a counting control group.
    pub fn oom_kills(&self) -> Option<u64> {
        let text = std::fs::read_to_string(self.group.as_ref()?.join("memory.events")).ok()?;
        text.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
    }

    /// The command that runs `program` with the limits that must hold from its start.
    pub fn command(&self, program: &Path) -> Command {
        let mut script = String::from("trap '' XFSZ\n");
        let mut envs = Vec::new();
        match (self.limit, self.on) {
            // Blocks of 512 bytes.
            (Limit::Fsize(bytes), true) => script.push_str(&format!("ulimit -S -f {}\n", bytes / 512)),
            (Limit::Files(n), true) => script.push_str(&format!("ulimit -S -n {n}\n")),
            (Limit::Memory(bytes), _) => {
                // Without memory, a stack trace takes for ever.
                envs.push(("RUST_BACKTRACE", "0"));
                match &self.group {
                    Some(group) => script.push_str(&format!("echo $$ > '{}/cgroup.procs'\n", group.display())),
                    None => {
                        // Limits address space, of which each arena of glibc takes 64 MiB at once.
                        envs.push(("MALLOC_ARENA_MAX", "1"));
                        script.push_str(&format!("ulimit -v {}\n", bytes >> 10));
                    }
                }
            }
            _ => {}
        }
        script.push_str("exec \"$@\"");
        let mut command = Command::new("sh");
        command.args(["-c", &script, "sh"]).arg(program).envs(envs);
        command
    }

    /// Sets or lifts the limit for the running child, if there is one.
    ///
    /// # Errors
    /// The operation that failed.
    pub fn set(&mut self, on: bool, child: Option<u32>, rng: &mut fastrand::Rng) -> Result<(), String> {
        self.on = on;
        let prlimit = |what: &str, amount: u64| {
            let Some(pid) = child else { return Ok(()) };
            let soft = if on { format!("{amount}:") } else { "unlimited:".to_owned() };
            run("prlimit", &["--pid", &pid.to_string(), &format!("--{what}={soft}")])
        };
        match self.limit {
            Limit::Fsize(bytes) => prlimit("fsize", bytes),
            // The hard limit may be lower than "unlimited".
            Limit::Files(n) => match (on, child) {
                (false, Some(pid)) => {
                    let hard = hard_files(pid).unwrap_or_else(|| "4096".to_owned());
                    run("prlimit", &["--pid", &pid.to_string(), &format!("--nofile={hard}:")])
                }
                _ => prlimit("nofile", n),
            },
            Limit::Space(bytes) => {
                let ballast = self.db.join(BALLAST);
                if on {
                    // Full, except for a little space that will soon be used up.
                    fill(&ballast, rng.u64(..bytes / 64));
                    return Ok(());
                }
                match std::fs::remove_file(&ballast) {
                    Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(format!("{}: {e}", ballast.display())),
                    _ => Ok(()),
                }
            }
            Limit::Memory(_) => Ok(()),
        }
    }
}

impl Drop for Arranged {
    fn drop(&mut self) {
        if let Some(mut cleaner) = self.cleaner.take() {
            drop(cleaner.stdin.take());
            let _ = cleaner.wait();
        }
        if let Some(group) = &self.group {
            let _ = std::fs::remove_dir(group);
        }
    }
}

/// Fills all available space, then frees `leave` bytes.
fn fill(path: &Path, leave: u64) {
    let piece = vec![0x5a; BALLAST_PIECE];
    let Ok(mut file) = File::create(path) else { return };
    let mut len = 0;
    loop {
        match file.write(&piece) {
            Ok(n) if n > 0 => len += n as u64,
            // No room: what was wanted.
            _ => break,
        }
    }
    let _ = file.set_len(len.saturating_sub(leave));
}

/// The hard limit of open files of a process.
fn hard_files(pid: u32) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/limits")).ok()?;
    let line = text.lines().find(|l| l.starts_with("Max open files"))?;
    line.split_whitespace().nth(4).map(str::to_owned)
}

/// Creates a control group of version 2 below that of this process, if permitted.
fn make_group(bytes: u64) -> std::io::Result<PathBuf> {
    let own = std::fs::read_to_string("/proc/self/cgroup")?;
    let own = own.lines().find_map(|l| l.strip_prefix("0::/")).unwrap_or_default();
    let parent = Path::new("/sys/fs/cgroup").join(own);
    // Elsewhere (version 1) this is a plain directory, or not there.
    let controllers = std::fs::read_to_string(parent.join("cgroup.subtree_control"))?;
    if !controllers.split_whitespace().any(|c| c == "memory") {
        return Err(std::io::Error::other("the memory controller is not passed on"));
    }
    let group = parent.join(format!("rockmill-stress-{}", std::process::id()));
    std::fs::create_dir(&group)?;
    // Both files exist only if the memory controller is enabled; the limit is effective only without swap.
    let made = std::fs::write(group.join("memory.max"), bytes.to_string())
        .and_then(|()| std::fs::write(group.join("memory.swap.max"), "0"));
    if let Err(e) = made {
        let _ = std::fs::remove_dir(&group);
        return Err(e);
    }
    Ok(group)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read() {
        assert_eq!("space=64M".parse(), Ok(Limit::Space(64 << 20)));
        assert_eq!("files=64".parse(), Ok(Limit::Files(64)));
        assert_eq!("memory=1G".parse(), Ok(Limit::Memory(1 << 30)));
        assert_eq!(Limit::Fsize(65536).to_string().parse(), Ok(Limit::Fsize(65536)));
        for bad in ["space", "space=1M", "files=", "colour=3", "fsize=99999999999G"] {
            assert!(bad.parse::<Limit>().is_err(), "{bad}");
        }
    }
}
