//! Where databases and results may be written: only files of this command are replaced. Also empties caches between the
//! sides, as far as permitted.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::kernel;

/// The file that marks a directory as created by a benchmark, which may empty it.
pub(crate) const MARK: &str = "made-by-rockmill-bench";

/// Refuses a non-empty directory, unless a benchmark created it.
pub(crate) fn check(dir: &Path) -> Result<()> {
    if is_free(dir)? || dir.join(MARK).exists() {
        return Ok(());
    }
    Err(Error::Usage(format!(
        "{} is not empty and no benchmark made it (there is no file {MARK} in it), so it is not emptied: choose another \
         --db, or measure the database that is there with --use_existing_db",
        dir.display()
    )))
}

/// Refuses to put directories of several sides into a database.
pub(crate) fn check_above(dir: &Path) -> Result<()> {
    let is_database = ["CURRENT", "LOCK", "IDENTITY"].iter().any(|name| dir.join(name).exists());
    if !is_database || dir.join(MARK).exists() {
        return Ok(());
    }
    Err(Error::Usage(format!(
        "{} is a database that no benchmark made; with --peer each side gets a directory in --db: choose another --db",
        dir.display()
    )))
}

/// Creates a directory with the mark. A non-empty directory is not changed.
pub(crate) fn make(dir: &Path) -> Result<()> {
    if !is_free(dir)? {
        return Ok(());
    }
    fs::create_dir_all(dir)
        .and_then(|()| fs::write(dir.join(MARK), "rockmill bench may empty this folder\n"))
        .map_err(|e| Error::io(format_args!("cannot make {}", dir.display()), &e))
}

/// Removes the WALs that a benchmark left in its WAL directory.
pub(crate) fn remove_wals(dir: &Path) -> Result<()> {
    if !dir.join(MARK).exists() {
        return Ok(());
    }
    let failed = |e: std::io::Error| Error::io(format_args!("cannot empty {}", dir.display()), &e);
    for entry in fs::read_dir(dir).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|e| e == "log") {
            fs::remove_file(&path).map_err(failed)?;
        }
    }
    Ok(())
}

/// True if a directory is missing or empty.
fn is_free(dir: &Path) -> Result<bool> {
    match fs::read_dir(dir) {
        Ok(mut entries) => Ok(entries.next().is_none()),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(true),
        Err(e) => Err(Error::io(format_args!("cannot use {}", dir.display()), &e)),
    }
}

/// Refuses to write results over a file that does not look like earlier results: `is_ours` gets its beginning.
///
/// # Errors
/// The directory is missing, or the file does not look like results.
pub fn check_output(path: &Path, is_ours: impl Fn(&str) -> bool) -> std::result::Result<(), String> {
    let shown = path.display();
    if let Some(folder) = path.parent().filter(|p| !p.as_os_str().is_empty() && !p.is_dir()) {
        return Err(format!("{shown}: there is no folder {}", folder.display()));
    }
    let meta = match fs::metadata(path) {
        Ok(meta) => meta,
        Err(_) => return Ok(()), // other problems with the path are reported by the write
    };
    if meta.is_dir() {
        return Err(format!("{shown} is a folder; give the name of a file"));
    }
    // A pipe or a terminal has nothing to lose.
    if !meta.is_file() || meta.len() == 0 {
        return Ok(());
    }
    let mut head = Vec::new();
    let read =
        File::open(path).and_then(|file| std::io::Read::read_to_end(&mut std::io::Read::take(file, 4096), &mut head));
    match read {
        Ok(_) if is_ours(&String::from_utf8_lossy(&head)) => Ok(()),
        _ => Err(format!("{shown} exists and holds something else than such results: give another name, or remove it")),
    }
}

/// True for the beginning of a page, or of a benchmark's JSON.
pub(crate) fn is_result(head: &str) -> bool {
    head.contains("<title>rockmill bench")
        || (head.starts_with("{\n  \"version\": ") && head.contains("\"machine\": {"))
}

/// Whether the page cache was emptied between the sides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caches {
    /// The whole cache was emptied.
    Dropped,
    /// Not permitted, with the reason; only the sides' own files were dropped from it.
    OwnFiles(String),
}

impl Caches {
    /// In words.
    pub fn to_text(&self) -> String {
        match self {
            Self::Dropped => "emptied before each side".to_owned(),
            Self::OwnFiles(why) => {
                format!("not emptied between the sides ({why}): only their own files were taken out of it")
            }
        }
    }

    /// Writes everything back and empties the page cache, so that no side benefits from another side's cached data.
    pub(crate) fn drop_now(dirs: &[PathBuf]) -> Self {
        const SWITCH: &str = "/proc/sys/vm/drop_caches";
        kernel::sync_disks();
        match fs::write(SWITCH, "1\n") {
            Ok(()) => {
                read_program();
                Self::Dropped
            }
            Err(e) => {
                dirs.iter().for_each(|dir| forget(dir));
                Self::OwnFiles(format!("{SWITCH}: {e}"))
            }
        }
    }
}

/// Loads the program and its libraries into the cache again, so that this is not part of a side's figures.
fn read_program() {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let code = maps.lines().filter(|line| line.split_whitespace().nth(1).is_some_and(|rights| rights.contains('x')));
    let mut files: Vec<&str> = code.filter_map(|line| line.find('/').map(|at| &line[at..])).collect();
    files.dedup();
    for file in files {
        if let Ok(mut file) = File::open(file) {
            let _ = std::io::copy(&mut file, &mut std::io::sink());
        }
    }
}

/// Drops all files below a directory from the page cache.
fn forget(dir: &Path) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => forget(&entry.path()),
            Ok(kind) if kind.is_file() => {
                if let Ok(file) = File::open(entry.path()) {
                    kernel::forget_cached(&file);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_directories_that_a_benchmark_made_are_emptied() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("db");
        check(&dir).unwrap();
        fs::create_dir(&dir).unwrap();
        check(&dir).unwrap();
        fs::write(dir.join("precious"), "x").unwrap();
        make(&dir).unwrap();
        let e = check(&dir).unwrap_err().to_string();
        assert!(e.contains(MARK) && e.contains("--use_existing_db"), "{e}");
        assert!(!dir.join(MARK).exists(), "what was there does not become a benchmark's");
        fs::remove_file(dir.join("precious")).unwrap();
        make(&dir).unwrap();
        fs::write(dir.join("CURRENT"), "x").unwrap();
        check(&dir).unwrap();
        check_above(&dir).unwrap();
        fs::write(dir.join("1.log"), "x").unwrap();
        remove_wals(&dir).unwrap();
        assert!(!dir.join("1.log").exists());
        let other = home.path().join("other");
        fs::create_dir(&other).unwrap();
        fs::write(other.join("1.log"), "x").unwrap();
        remove_wals(&other).unwrap();
        assert!(other.join("1.log").exists(), "not a benchmark's");
        fs::write(other.join("CURRENT"), "x").unwrap();
        assert!(check_above(&other).unwrap_err().to_string().contains("--peer"));
    }

    #[test]
    fn results_replace_only_results() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("r.html");
        let check = || check_output(&file, is_result);
        check().unwrap();
        for (text, ok) in [
            ("", true),
            ("<!doctype html>\n<title>rockmill bench: a</title>", true),
            ("{\n  \"version\": \"0.1.0\",\n  \"machine\": {\n", true),
            ("<title>My thesis</title>", false),
            ("{\"version\": 1}", false),
        ] {
            fs::write(&file, text).unwrap();
            assert_eq!(check().is_ok(), ok, "{text}");
        }
        assert!(check_output(home.path(), is_result).unwrap_err().contains("folder"));
        assert!(check_output(&home.path().join("no/such"), is_result).unwrap_err().contains("there is no folder"));
    }

    #[test]
    fn caches_are_emptied_or_it_is_said() {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join("in")).unwrap();
        fs::write(home.path().join("in/file"), vec![1; 9000]).unwrap();
        let text = Caches::drop_now(&[home.path().to_path_buf()]).to_text();
        assert!(text.contains("emptied"), "{text}");
        assert!(Caches::OwnFiles("no permission".to_owned()).to_text().contains("not emptied"));
    }
}
