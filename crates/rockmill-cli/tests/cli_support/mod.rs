//! Runs the built command on temporary directories.

#![allow(dead_code)] // each test file uses a part

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

/// The built command.
pub const ROCKMILL: &str = env!("CARGO_BIN_EXE_rockmill");

/// A temporary directory in which commands run.
pub struct Sandbox {
    pub dir: TempDir,
}

/// What a command came to.
pub struct Done {
    pub code: i32,
    pub stdout: Vec<u8>,
    pub stderr: String,
    shown: String,
}

impl Sandbox {
    pub fn new() -> Self {
        Self { dir: tempfile::tempdir().expect("a temporary directory") }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a file and returns its name.
    pub fn file(&self, name: &str, contents: impl AsRef<[u8]>) -> String {
        std::fs::write(self.path(name), contents).expect("the file is written");
        name.to_owned()
    }

    /// Runs `rockmill` with these arguments.
    pub fn run(&self, args: &[&str]) -> Done {
        self.run_with_input(args, b"")
    }

    /// Runs `rockmill` with these arguments and this standard input.
    pub fn run_with_input(&self, args: &[&str], input: &[u8]) -> Done {
        let mut child = Command::new(ROCKMILL)
            .args(args)
            .current_dir(self.dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command starts");
        let mut stdin = child.stdin.take().expect("a pipe");
        let input = input.to_vec();
        let feeder = std::thread::spawn(move || {
            // A command that does not read its input closes the pipe.
            let _ = stdin.write_all(&input);
        });
        let output = child.wait_with_output().expect("the command ends");
        feeder.join().expect("the feeder ends");
        Done::new(args, output)
    }

    /// Runs `rockmill`, which must succeed, and returns its standard output as text.
    #[track_caller]
    pub fn ok(&self, args: &[&str]) -> String {
        self.run(args).ok()
    }

    /// Runs `rockmill ... --json`, which must succeed, and returns the printed value.
    #[track_caller]
    pub fn json(&self, args: &[&str]) -> Value {
        let args = [args, &["--json"]].concat();
        let text = self.run(&args).ok();
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{args:?}: {e}:\n{text}"))
    }

    /// A database with `n` entries from `key000000` on, with values of about 100 bytes, in tables and in a WAL.
    pub fn database(&self, name: &str, n: usize) {
        let mut text = String::new();
        for i in 0..n {
            text.push_str(&format!("key{i:06}\tvalue {i} {}\n", "x".repeat(i % 90)));
        }
        let file = self.file(&format!("{name}.tsv"), text);
        self.ok(&["load", name, &file, "--write-buffer-size", "64K", "--target-file-size", "64K", "--batch", "50"]);
    }

    /// Files of a database whose names end like this, sorted.
    pub fn files(&self, db: &str, end: &str) -> Vec<PathBuf> {
        let mut all: Vec<PathBuf> = std::fs::read_dir(self.path(db))
            .expect("the database is there")
            .map(|e| e.expect("an entry").path())
            .filter(|p| p.to_string_lossy().ends_with(end))
            .collect();
        all.sort();
        all
    }
}

impl Done {
    fn new(args: &[&str], output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            stdout: output.stdout,
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            shown: format!("rockmill {}", args.join(" ")),
        }
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Checks that it succeeded, with nothing on standard error.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, 0, "{}: {}{}", self.shown, self.stderr, self.text());
        assert_eq!(self.stderr, "", "{}", self.shown);
        self.text()
    }

    /// Checks that it failed with this code and one `error:` line with these words, without a panic.
    #[track_caller]
    pub fn fails(self, code: i32, words: &[&str]) -> Self {
        assert_eq!(self.code, code, "{}: {}{}", self.shown, self.stderr, self.text());
        assert!(!self.stderr.contains("panicked"), "{}: {}", self.shown, self.stderr);
        let errors = self.stderr.lines().filter(|l| l.starts_with("error: ")).count();
        assert_eq!(errors, 1, "{}: {}", self.shown, self.stderr);
        for word in words {
            assert!(self.stderr.contains(word), "{}: no {word:?} in: {}", self.shown, self.stderr);
        }
        self
    }
}

/// Flips one bit of a file.
pub fn flip(path: &Path, offset: u64) {
    let mut bytes = std::fs::read(path).expect("the file is read");
    let at = usize::try_from(offset).expect("fits") % bytes.len();
    bytes[at] ^= 0x10;
    std::fs::write(path, bytes).expect("the file is written");
}
