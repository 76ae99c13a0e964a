//! Real RocksDB as the reference: its tools, its library through a small driver, and the newer library in a Python
//! wheel.
//!
//! Tests that need something that is missing on the machine report that (see `rockmill_skip`) and pass; the test
//! command collects these reports.
#![allow(dead_code)] // each test binary uses a different part of this

pub mod content;
pub mod ops;

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use rockmill_skip::{Missing, Needs, program, python_with_rocksdict, skip, wish};

/// Seconds after which a tool counts as hanging.
const TOOL_SECONDS_MAX: u32 = 300;

/// Unwraps the value, or reports the skip and returns from the test.
#[macro_export]
macro_rules! need {
    ($test:expr, $found:expr) => {
        match $found {
            Ok(found) => found,
            Err(missing) => {
                rockmill_skip::skip($test, &missing);
                return;
            }
        }
    };
}

/// A command that is killed if it hangs.
fn command(program: impl AsRef<OsStr>) -> Command {
    let mut c = Command::new("timeout");
    c.arg("--signal=KILL").arg(TOOL_SECONDS_MAX.to_string()).arg(program).stdin(Stdio::null());
    c
}

/// The path of this RocksDB tool, or why it cannot be used.
pub fn tool(name: &str) -> Result<PathBuf, Missing> {
    program(name, Needs::Ldb)
}

/// A RocksDB that can run scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// The system's librocksdb (Debian bookworm: 7.8.3).
    Library,
    /// The one in the wheel rocksdict (9.8.4).
    Wheel,
    /// Any other, named by `ROCKMILL_ROCKSDB_FLAGS`: the compiler flags to include and link it.
    Other,
    /// A library with the C API, loaded by `driver.c`: see [`Driver::of_library`].
    Loaded,
}

impl Peer {
    /// The driver for scripts, or why it cannot be used.
    pub fn driver(self) -> Result<Driver, Missing> {
        static LIBRARY: OnceLock<Result<PathBuf, Missing>> = OnceLock::new();
        static WHEEL: OnceLock<Result<PathBuf, Missing>> = OnceLock::new();
        static OTHER: OnceLock<Result<PathBuf, Missing>> = OnceLock::new();
        match self {
            Self::Library => {
                let program =
                    LIBRARY.get_or_init(|| build_driver(&["-lrocksdb".to_owned()], Needs::RocksDb)).clone()?;
                Ok(Driver { peer: self, program, args: vec![] })
            }
            Self::Other => {
                let program = OTHER.get_or_init(|| {
                    let flags = std::env::var("ROCKMILL_ROCKSDB_FLAGS")
                        .map_err(|_| Needs::OtherRocksDb.because("ROCKMILL_ROCKSDB_FLAGS names none"))?;
                    let flags: Vec<_> = flags.split_whitespace().map(str::to_owned).collect();
                    build_driver(&flags, Needs::OtherRocksDb)
                });
                Ok(Driver { peer: self, program: program.clone()?, args: vec![] })
            }
            Self::Loaded => Err(Needs::Releases.because("a library has to be named")),
            Self::Wheel => {
                let program = WHEEL.get_or_init(python_with_rocksdict).clone()?;
                Ok(Driver { peer: self, program, args: vec![here().join("driver.py")] })
            }
        }
    }

    /// Those available on this machine; the others are reported as skipped for `test`.
    pub fn all(test: &str) -> Vec<Driver> {
        let mut found = Vec::new();
        for peer in [Self::Library, Self::Wheel, Self::Other] {
            match peer.driver() {
                Ok(driver) => found.push(driver),
                Err(missing) if peer == Self::Other => wish(test, &missing),
                Err(missing) => skip(test, &missing),
            }
        }
        found
    }
}

fn here() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracle")
}

/// Compiles the C++ driver.
fn build_driver(flags: &[String], needs: Needs) -> Result<PathBuf, Missing> {
    // A RocksDB built without RTTI cannot be linked with code that uses it; the reverse is possible.
    compile("g++", &["-std=c++20", "-O1", "-w"], "driver.cc", flags, needs)
}

/// Compiles a driver, or finds the one that an earlier run compiled from the same source and flags.
fn compile(
    compiler: &str,
    language: &[&str],
    source: &str,
    flags: &[String],
    needs: Needs,
) -> Result<PathBuf, Missing> {
    let compiler = program(compiler, needs)?;
    let source = here().join(source);
    let text = fs::read(&source).map_err(|e| needs.because(format!("{}: {e}", source.display())))?;
    let mut hasher = DefaultHasher::new();
    (text, flags).hash(&mut hasher);
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let program = target.join(format!("rocksdb-driver-{:016x}", hasher.finish()));
    if program.exists() {
        return Ok(program);
    }
    fs::create_dir_all(target).map_err(|e| needs.because(format!("{}: {e}", target.display())))?;
    // Under another name first, because another test binary may be doing the same.
    let unfinished = target.join(format!("rocksdb-driver-{}", std::process::id()));
    let mut c = command(compiler);
    c.args(language).arg("-o").arg(&unfinished).arg(&source).args(flags);
    let out = c.output().map_err(|e| needs.because(format!("cannot run the compiler: {e}")))?;
    if !out.status.success() {
        let message = String::from_utf8_lossy(&out.stderr);
        let first = message.lines().find(|l| l.contains("error")).unwrap_or("no message");
        return Err(needs.because(format!("cannot compile the driver (is librocksdb-dev installed?): {first}")));
    }
    fs::rename(&unfinished, &program).map_err(|e| needs.because(format!("{}: {e}", program.display())))?;
    Ok(program)
}

/// What a script printed.
#[derive(Debug)]
pub struct Answer {
    lines: Vec<String>,
}

impl Answer {
    /// The entries that `dump` printed, in order.
    pub fn entries(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut out = Vec::new();
        for line in &self.lines {
            if let Some(entry) = line.strip_prefix("entry ") {
                let (key, value) = entry.split_once(' ').expect("a key and a value");
                out.push((from_hex(key), from_hex(value)));
            }
        }
        out
    }

    /// The entries after each `say`, with its words.
    pub fn entries_by_title(&self) -> Vec<(&str, content::Entries)> {
        let mut out: Vec<(&str, content::Entries)> = Vec::new();
        for line in &self.lines {
            if let Some(title) = line.strip_prefix("said ") {
                out.push((title, Vec::new()));
            } else if let (Some((_, entries)), Some(entry)) = (out.last_mut(), line.strip_prefix("entry ")) {
                let (key, value) = entry.split_once(' ').expect("a key and a value");
                entries.push((from_hex(key), from_hex(value)));
            }
        }
        out
    }

    /// What `get` printed, in order.
    pub fn values(&self) -> Vec<Option<Vec<u8>>> {
        let mut out = Vec::new();
        for line in &self.lines {
            if line == "missing" {
                out.push(None);
            } else if let Some(value) = line.strip_prefix("value ") {
                out.push(Some(from_hex(value)));
            }
        }
        out
    }

    /// First sequence number and count of each batch that `updates` printed.
    pub fn updates(&self) -> Vec<(u64, u64)> {
        let number = |s: &str| s.parse().expect("a number");
        let updates = self.lines.iter().filter_map(|l| l.strip_prefix("update "));
        updates.map(|l| l.split_once(' ').map(|(seq, n)| (number(seq), number(n))).expect("two numbers")).collect()
    }

    /// The words of each line that begins with `prefix`.
    pub fn words(&self, prefix: &str) -> Vec<Vec<String>> {
        let lines = self.lines.iter().filter_map(|l| l.strip_prefix(prefix));
        lines.map(|l| l.split(' ').map(str::to_owned).collect()).collect()
    }

    /// What each `try` came to.
    pub fn statuses(&self) -> Vec<&str> {
        self.lines.iter().filter_map(|l| l.strip_prefix("status ")).collect()
    }

    /// The lines behind each `say`.
    pub fn sections(&self) -> Vec<Vec<&str>> {
        let mut out: Vec<Vec<&str>> = Vec::new();
        for line in &self.lines {
            if line.starts_with("said ") {
                out.push(Vec::new());
            } else if let Some(section) = out.last_mut() {
                section.push(line);
            }
        }
        out
    }

    /// The result of each move of `walk`: a key, or `None` at the end.
    pub fn places(&self) -> Vec<Option<Vec<u8>>> {
        let places = self.lines.iter().filter_map(|l| l.strip_prefix("at "));
        places.map(|l| (l != "end").then(|| from_hex(l))).collect()
    }

    /// Files by level, as `levels` printed them.
    pub fn levels(&self) -> Vec<(usize, usize)> {
        let number = |s: &str| s.parse().expect("a number");
        self.lines
            .iter()
            .filter_map(|l| l.strip_prefix("level "))
            .map(|l| l.split_once(' ').map(|(level, files)| (number(level), number(files))).expect("two numbers"))
            .collect()
    }

    /// What `options` printed.
    pub fn options(&self) -> Vec<&str> {
        self.lines.iter().filter_map(|l| l.strip_prefix("option ")).collect()
    }

    /// What `prop` printed, in order.
    pub fn properties(&self) -> Vec<&str> {
        self.lines.iter().filter_map(|l| l.strip_prefix("prop ")).collect()
    }
}

/// A RocksDB that was found.
#[derive(Debug, Clone)]
pub struct Driver {
    /// Which.
    pub peer: Peer,
    program: PathBuf,
    args: Vec<PathBuf>,
}

/// What came of a script.
#[derive(Debug)]
pub enum Outcome {
    /// It ran to its end.
    Done(Answer),
    /// This RocksDB lacks a feature that the script uses.
    Unsupported(Missing),
    /// A command failed; the text names it.
    Failed(String),
}

impl Driver {
    /// One that loads a RocksDB library with the C API (`driver.c`), whichever its version.
    pub fn of_library(library: &Path) -> Result<Self, Missing> {
        if !library.is_file() {
            return Err(Needs::Releases.because(format!("there is no {}", library.display())));
        }
        let program = compile("cc", &["-std=gnu11", "-O1", "-w"], "driver.c", &["-ldl".to_owned()], Needs::Releases)?;
        Ok(Self { peer: Peer::Loaded, program, args: vec![library.to_owned()] })
    }

    /// Runs a script.
    pub fn run(&self, script: &Script) -> Outcome {
        let mut child = command(&self.program)
            .args(&self.args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("{}: {e}", self.program.display()));
        let mut stdin = child.stdin.take().expect("piped");
        let text = script.text.clone();
        // In a thread: the driver answers while it still reads, and a full pipe in either direction would block both.
        let feeder = std::thread::spawn(move || {
            let _ = stdin.write_all(text.as_bytes());
        });
        let out = child.wait_with_output().expect("the driver's output");
        feeder.join().expect("the feeder");
        let stdout = String::from_utf8(out.stdout).expect("the driver prints hex");
        let last = stdout.lines().last().unwrap_or_default();
        if out.status.success() {
            return Outcome::Done(Answer { lines: stdout.lines().map(str::to_owned).collect() });
        }
        if let Some(what) = last.strip_prefix("unsupported ") {
            return Outcome::Unsupported(Needs::PeerFeature.because(format!("{:?} has no {what}", self.peer)));
        }
        let stderr = String::from_utf8_lossy(&out.stderr);
        let line = last.strip_prefix("error ").and_then(|l| l.split(':').next()).and_then(|n| n.parse::<usize>().ok());
        let command = line.and_then(|n| script.text.lines().nth(n - 1)).unwrap_or_default();
        let command: String = command.chars().take(200).collect();
        Outcome::Failed(format!("{:?}: {last}\n  command: {command}\n  {} {stderr}", self.peer, out.status))
    }

    /// Runs a script that must succeed. If this RocksDB lacks a feature, reports the skip and returns `None`.
    #[track_caller]
    pub fn answer(&self, test: &str, script: &Script) -> Option<Answer> {
        match self.run(script) {
            Outcome::Done(answer) => Some(answer),
            Outcome::Unsupported(what) => {
                skip(test, &what);
                None
            }
            Outcome::Failed(why) => panic!("{test}: {why}"),
        }
    }
}

/// Commands for a [`Driver`]; `driver.cc` describes them.
#[derive(Debug, Default, Clone)]
pub struct Script {
    text: String,
}

impl Script {
    /// No commands.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a command.
    pub fn line(&mut self, line: impl AsRef<str>) -> &mut Self {
        self.text.push_str(line.as_ref());
        self.text.push('\n');
        self
    }

    /// Opens the database at `path`.
    pub fn open(&mut self, path: &Path) -> &mut Self {
        self.line(format!("open {}", path.display()))
    }

    /// Adds a command about a column family with arguments in hex.
    pub fn hex(&mut self, command: &str, cf: &str, args: &[&[u8]]) -> &mut Self {
        self.text.push_str(command);
        self.text.push(' ');
        self.text.push_str(cf);
        for arg in args {
            self.text.push(' ');
            push_hex(&mut self.text, arg);
        }
        self.text.push('\n');
        self
    }

    /// Adds `put`.
    pub fn put(&mut self, cf: &str, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> &mut Self {
        self.hex("put", cf, &[key.as_ref(), value.as_ref()])
    }
}

fn push_hex(out: &mut String, bytes: &[u8]) {
    if bytes.is_empty() {
        out.push('-');
    }
    for b in bytes {
        write!(out, "{b:02x}").expect("writing to a string");
    }
}

/// Hex as the tools print it; "-" is empty.
pub fn to_hex(bytes: &[u8]) -> String {
    let mut out = String::new();
    push_hex(&mut out, bytes);
    out
}

/// The reverse of [`to_hex`]; both cases are read.
#[track_caller]
pub fn from_hex(text: &str) -> Vec<u8> {
    if text == "-" {
        return vec![];
    }
    assert!(text.len().is_multiple_of(2) && text.is_ascii(), "not hex: {text}");
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).expect("hex")).collect()
}

/// Runs a tool; returns its standard output, or its messages if it failed.
pub fn run_tool(program: &Path, args: &[&str]) -> Result<String, String> {
    let out: Output = command(program).args(args).output().map_err(|e| format!("{}: {e}", program.display()))?;
    let stdout = String::from_utf8_lossy(&out.stdout).into_owned();
    if out.status.success() {
        return Ok(stdout);
    }
    let stderr = String::from_utf8_lossy(&out.stderr);
    Err(format!("{} {args:?}: {}\n{stdout}{stderr}", program.display(), out.status))
}

/// Copies a database directory, for tools that change what they open.
pub fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap_or_else(|e| panic!("{}: {e}", to.display()));
    for entry in fs::read_dir(from).unwrap_or_else(|e| panic!("{}: {e}", from.display())) {
        let entry = entry.expect("a readable folder");
        if entry.file_type().expect("a type").is_file() {
            match fs::copy(entry.path(), to.join(entry.file_name())) {
                // An obsolete file that was deleted after it was listed, because the database may be open.
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                done => drop(done.expect("a copy")),
            }
        }
    }
}

/// The tables of a database directory, sorted.
pub fn tables(dir: &Path) -> Vec<PathBuf> {
    let mut out: Vec<_> = fs::read_dir(dir)
        .unwrap_or_else(|e| panic!("{}: {e}", dir.display()))
        .map(|e| e.expect("a readable folder").path())
        .filter(|p| p.extension().is_some_and(|e| e == "sst"))
        .collect();
    out.sort();
    out
}
