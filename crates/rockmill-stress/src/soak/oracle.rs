//! The independent check: RocksDB's own `ldb` reads a killed database, and must find everything acknowledged.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::expected::Expected;
use super::judge::{self, Entry};
use super::limits::BALLAST;
use super::settings::Settings;

/// An `ldb`, and what it can read.
#[derive(Debug, Clone)]
pub struct Ldb {
    program: PathBuf,
    /// As it says itself.
    pub version: String,
    number: (u32, u32),
}

/// What [`Ldb::check`] compared.
#[derive(Debug, Clone, Copy)]
pub struct Checked {
    /// Keys.
    pub keys: u64,
    /// There were extra runs, which were first merged.
    pub downgraded: bool,
}

/// Merges the extra runs of a copy.
fn downgrade(program: &Path, copy: &Path) -> Result<(), String> {
    let out = Command::new(program).args(["downgrade", "--quiet"]).arg(copy).stdin(Stdio::null()).output();
    let out = out.map_err(|e| format!("cannot run {} downgrade: {e}", program.display()))?;
    let said = String::from_utf8_lossy(&out.stderr);
    if out.status.success() { Ok(()) } else { Err(format!("rockmill downgrade: {}: {}", out.status, said.trim())) }
}

/// RocksDB's first version that can read this table format.
fn needs(format: &str) -> (u32, u32) {
    match format {
        "6" => (8, 6),
        "7" => (10, 4),
        _ => (6, 6),
    }
}

impl Ldb {
    /// Finds the given `ldb`, or the first one in PATH.
    ///
    /// # Errors
    /// Why there is none.
    pub fn find(given: Option<&Path>) -> Result<Self, String> {
        let program = given.map_or_else(|| PathBuf::from("ldb"), Path::to_owned);
        let out = Command::new(&program).arg("--version").stdin(Stdio::null()).output();
        let out = out.map_err(|e| format!("RocksDB's {} cannot be run: {e}", program.display()))?;
        // "ldb from RocksDB 7.8.3"
        let text = String::from_utf8_lossy(&out.stdout).trim().to_owned();
        let version = text.rsplit(' ').next().unwrap_or_default().to_owned();
        let mut parts = version.split('.').map(|n| n.parse::<u32>().ok());
        match (parts.next().flatten(), parts.next().flatten()) {
            (Some(major), Some(minor)) => Ok(Self { program, version, number: (major, minor) }),
            _ => Err(format!("{} --version says {text:?}, no version of RocksDB", program.display())),
        }
    }

    /// Checks that it can read tables of these formats.
    ///
    /// # Errors
    /// The format that it cannot read.
    pub fn reads<'f>(&self, formats: impl IntoIterator<Item = &'f str>) -> Result<(), String> {
        match formats.into_iter().find(|f| needs(f) > self.number) {
            Some(format) => {
                Err(format!("RocksDB {} cannot read format_version {format}, which a life wrote", self.version))
            }
            None => Ok(()),
        }
    }

    /// Compares a closed database with the expected state, on a copy with linked tables. RocksDB must refuse it while
    /// it has extra runs: `program downgrade` then merges those of the copy, after which RocksDB must be able to open
    /// it. Returns `None` if a kill happened between the drop and the re-creation of a column family: `ldb` takes the
    /// merge operators from the OPTIONS file, and does not open a database whose MANIFEST has other column families.
    ///
    /// # Errors
    /// A description of the problems.
    pub fn check(
        &self,
        (db, wals): (&Path, Option<&Path>),
        copy: &Path,
        program: &Path,
        settings: &Settings,
        expected: &Expected,
    ) -> Result<Option<Checked>, String> {
        let failed = |e: std::io::Error| format!("cannot copy {} for RocksDB: {e}", db.display());
        let _ = std::fs::remove_dir_all(copy);
        copy_database(db, copy).map_err(failed)?;
        if let Some(wals) = wals {
            copy_database(wals, copy).and_then(|()| forget_wal_dir(copy)).map_err(failed)?;
        }
        let mut there = self.families(copy);
        // RocksDB must not treat extra runs as levels.
        let downgraded = there.as_ref().is_err_and(|why| why.contains("custom field not supported"));
        if downgraded {
            downgrade(program, copy)?;
            there = self.families(copy).map_err(|why| format!("after a downgrade: {why}"));
        }
        let there = there?;
        let options = newest_options(copy).map_err(failed)?;
        let mut names = (0..expected.families()).map(|family| judge::family_name(settings, family));
        if !names.all(|name| there.contains(&name) && options.contains(&format!("[CFOptions \"{name}\"]"))) {
            return std::fs::remove_dir_all(copy).map_err(failed).map(|()| None);
        }
        let entries = |family: usize| self.scan(copy, &judge::family_name(settings, family));
        let what = format!("RocksDB {} reads the database", self.version);
        let keys = judge::judge_dead(&what, settings, expected, entries, |_, _, _| ())?;
        std::fs::remove_dir_all(copy).map_err(failed)?;
        Ok(Some(Checked { keys, downgraded }))
    }

    /// The column families that a database has.
    fn families(&self, db: &Path) -> Result<Vec<String>, String> {
        let db = format!("--db={}", db.display());
        let out = Command::new(&self.program).args([&db, "list_column_families"]).stdin(Stdio::null()).output();
        let out = out.map_err(|e| format!("cannot run {}: {e}", self.program.display()))?;
        // "Column families in DB:", then "{default, one, two}".
        let text = String::from_utf8_lossy(&out.stdout);
        let list = text.lines().find_map(|l| l.trim().strip_prefix('{')?.strip_suffix('}'));
        let list = list.ok_or_else(|| {
            let said = String::from_utf8_lossy(&out.stderr);
            format!("ldb list_column_families: {}: {} {}", out.status, text.trim(), said.trim())
        })?;
        Ok(list.split(", ").map(str::to_owned).collect())
    }

    /// Entries of a column family as `ldb scan` prints them; an error of `ldb` comes as the last entry.
    fn scan(&self, db: &Path, family: &str) -> Result<impl Iterator<Item = Entry> + use<>, String> {
        let failed = |e: std::io::Error| format!("cannot run {}: {e}", self.program.display());
        let mut child = Command::new(&self.program)
            .arg(format!("--db={}", db.display()))
            .arg(format!("--column_family={family}"))
            // For the merge operators.
            .args(["--try_load_options", "--ignore_unknown_options", "--hex", "scan"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let stdout = child.stdout.take().ok_or("ldb has no output")?;
        let stderr = child.stderr.take().ok_or("ldb has no output")?;
        let errors = std::thread::spawn(move || {
            let mut text = String::new();
            let _ = BufReader::new(stderr).read_to_string(&mut text);
            text
        });
        let mut lines = BufReader::new(stdout).lines();
        let mut ending = Some((child, errors));
        Ok(std::iter::from_fn(move || {
            for line in lines.by_ref() {
                let Ok(line) = line else { break };
                if let Some((key, value)) = line.split_once(" : ") {
                    return Some(match (unhex(key), unhex(value)) {
                        (Some(key), Some(value)) => Ok((key, value)),
                        _ => Err(format!("ldb printed a line that is no entry: {line}")),
                    });
                }
            }
            let (mut child, errors) = ending.take()?;
            let status = child.wait();
            let text = errors.join().unwrap_or_default();
            let said = text.trim();
            match status {
                Ok(status) if status.success() && said.is_empty() => None,
                Ok(status) => Some(Err(format!("ldb scan: {status}: {said}"))),
                Err(e) => Some(Err(format!("ldb scan: {e}"))),
            }
        }))
    }
}

/// The text of a database's newest OPTIONS file.
fn newest_options(db: &Path) -> std::io::Result<String> {
    let mut newest: Option<(u64, PathBuf)> = None;
    for entry in std::fs::read_dir(db)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let number = name.strip_prefix("OPTIONS-").and_then(|n| n.parse::<u64>().ok());
        if let Some(number) = number.filter(|n| newest.as_ref().is_none_or(|(other, _)| n > other)) {
            newest = Some((number, path));
        }
    }
    newest.map_or(Ok(String::new()), |(_, path)| std::fs::read_to_string(path))
}

/// A copy has its WALs in the same directory as its tables, whatever its OPTIONS files say.
fn forget_wal_dir(copy: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(copy)? {
        let path = entry?.path();
        if !path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("OPTIONS-")) {
            continue;
        }
        let text = std::fs::read_to_string(&path)?;
        let line = |l: &str| if l.trim().starts_with("wal_dir=") { "  wal_dir=".to_owned() } else { l.to_owned() };
        let lines: Vec<String> = text.lines().map(line).collect();
        std::fs::write(&path, lines.join("\n") + "\n")?;
    }
    Ok(())
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let text = text.trim().strip_prefix("0x").unwrap_or(text.trim());
    if !text.len().is_multiple_of(2) || !text.is_ascii() {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect()
}

/// Copies a database directory. Tables never change, so they are linked if possible.
pub fn copy_database(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if !entry.file_type()?.is_file() || entry.file_name() == BALLAST {
            continue;
        }
        let table = path.extension().is_some_and(|e| e == "sst");
        if !table || std::fs::hard_link(&path, &target).is_err() {
            std::fs::copy(&path, &target)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_read_follows_from_the_version() {
        let ldb = Ldb { program: "ldb".into(), version: "8.9.1".to_owned(), number: (8, 9) };
        assert!(ldb.reads(["5", "6"]).is_ok());
        assert!(ldb.reads(["5", "7"]).unwrap_err().contains("8.9.1 cannot read format_version 7"));
        assert_eq!(unhex("0x00fF"), Some(vec![0, 255]));
        assert_eq!(unhex("0x0"), None);
    }
}
