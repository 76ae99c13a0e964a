//! `rockmill verify`: checks every file of a database, without changing any.
//!
//! 1. CURRENT and the MANIFEST: every edit decodes and applies; no level below L0 has overlapping tables.
//! 2. The directory: every table and WAL that the MANIFEST names exists with the right size; unrelated files are
//!    reported as warnings.
//! 3. Each table alone: every block's checksum, order of keys, index against data, filter against keys, counts against
//!    properties (`tables.rs`).
//! 4. All tables together: each table's keys and sequence numbers are within the MANIFEST's ranges, and no user key has
//!    a newer version below an older one (`order.rs`).
//! 5. Each WAL: every record's checksum and batch, and that no records are missing between two WALs (`wal.rs`).
//! 6. The newest OPTIONS file: whether it is usable, and whether its log directory is outside of the database
//!    (warnings).
//!
//! The database may be written to meanwhile: tables and WALs that were replaced are skipped.

mod order;
mod tables;
mod wal;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use rockmill::internals::{
    RecoveredState, TableDirs, each_file, manifest_mark, recover_manifest, retry_while_files_vanish,
};
use rockmill::{DBPath, Db, Error, ErrorKind, Options, OptionsLoader};
use rockmill_format::InternalKeyComparator;
use rockmill_format::comparator::comparator_named;
use rockmill_format::filename::{self, FileType};
use rockmill_io::{FileSystem, PosixFileSystem};
use serde_json::{Value, json};

use crate::args::VerifyArgs;
use crate::error::{CliError, Result};
use crate::output::{self, Out};
use crate::store;

/// Most levels of a tree: more than any RocksDB database has.
const NUM_LEVELS: usize = 64;

/// How often verification is repeated if problems were found and the database was written to meanwhile.
const LOOKS_MAX: usize = 5;

/// Most findings that are printed; further ones are only counted.
const SHOWN_MAX: usize = 1000;

/// Something found.
#[derive(Debug)]
pub struct Finding {
    file: String,
    message: String,
}

impl Finding {
    /// The offset in the file, if the message names one.
    fn offset(&self) -> Option<u64> {
        let at = self.message.find("offset ")? + "offset ".len();
        let digits: String = self.message.get(at..)?.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().ok()
    }

    fn json(&self) -> Value {
        json!({ "file": self.file, "offset": self.offset(), "message": self.message })
    }

    /// The message, with the file's name in front unless the message already contains it.
    fn text(&self) -> String {
        if self.message.contains(&self.file) {
            self.message.clone()
        } else {
            format!("{}: {}", self.file, self.message)
        }
    }
}

/// Findings of one sort, bounded.
#[derive(Debug, Default)]
pub struct Findings {
    shown: Vec<Finding>,
    total: u64,
}

impl Findings {
    fn add(&mut self, file: impl Into<String>, message: impl Into<String>) {
        self.total += 1;
        if self.shown.len() < SHOWN_MAX {
            self.shown.push(Finding { file: file.into(), message: message.into() });
        }
    }
}

/// The findings, and what was checked.
#[derive(Debug, Default)]
pub struct Report {
    problems: Findings,
    warnings: Findings,
    tables: u64,
    table_bytes: u64,
    entries: u64,
    wals: u64,
    wal_records: u64,
    manifest: Option<String>,
    last_sequence: u64,
}

impl Report {
    /// What breaks the database.
    pub fn problem(&mut self, file: impl Into<String>, message: impl Into<String>) {
        self.problems.add(file, message);
    }

    /// What is odd and harmless.
    pub fn warning(&mut self, file: impl Into<String>, message: impl Into<String>) {
        self.warnings.add(file, message);
    }
}

/// What the checks share.
pub struct Context<'a> {
    /// The database.
    pub dir: &'a Path,
    /// Where its tables are.
    pub dirs: TableDirs,
    /// The directory of its WALs; `None` if it is unknown.
    pub wal_dir: Option<PathBuf>,
    /// Where files are.
    pub fs: &'a Arc<dyn FileSystem>,
    /// Past the page cache.
    pub direct: bool,
    /// No progress.
    pub quiet: bool,
}

/// `rockmill verify`
pub fn run(args: &VerifyArgs, out: &mut Out) -> Result<()> {
    store::check_is_database(&args.db)?;
    let started = Instant::now();
    let fs: Arc<dyn FileSystem> = Arc::new(PosixFileSystem::default());
    let mut options = Options::default();
    if let Some(dir) = &args.dirs.wal_dir {
        options.set_wal_dir(dir);
    }
    let options = store::with_table_dirs(options, &args.dirs.db_paths, &args.dirs.cf_paths)?;
    let paths = if options.cf.cf_paths.is_empty() { &options.db.db_paths } else { &options.cf.cf_paths };
    let dirs = TableDirs::new(paths.iter().map(DBPath::path), &args.db);
    let mut report = Report::default();
    for _ in 0..LOOKS_MAX {
        report = Report::default();
        let before = manifest_mark(&*fs, &args.db);
        let wal_dir = Db::find_wal_dir(&options, &args.db).map_err(|e| {
            let what = format!("the WALs were not checked: {}; --wal-dir DIR says where they are", e.message());
            report.problem(filename::wal(0), what);
        });
        let context = Context {
            dir: &args.db,
            dirs: dirs.clone(),
            wal_dir: wal_dir.ok(),
            fs: &fs,
            direct: args.direct,
            quiet: out.quiet,
        };
        check(&context, &mut report)?;
        // A writer may have replaced the missing files.
        if report.problems.total == 0 || manifest_mark(&*fs, &args.db) == before {
            break;
        }
    }
    print(&report, started.elapsed().as_secs_f64(), out)?;
    match report.problems.total {
        0 => Ok(()),
        n => Err(CliError::problems(format!("{}: {} found", args.db.display(), output::plural(n, "problem")))),
    }
}

fn check(context: &Context<'_>, report: &mut Report) -> Result<()> {
    let mut order = |name: &str, comparator: &str| match comparator_named(comparator) {
        Some(user) => Ok((InternalKeyComparator::new(user), NUM_LEVELS)),
        None => Err(Error::not_supported(format!(
            "column family {name:?} is ordered by comparator {comparator:?}, which the command does not know"
        ))),
    };
    let read = || recover_manifest(&**context.fs, context.dir, &|_| Arc::default(), &mut order);
    let state = match retry_while_files_vanish(&**context.fs, context.dir, read) {
        Ok(state) => state,
        Err(e) if e.kind() == ErrorKind::NotSupported => return Err(e.into()),
        Err(e) => {
            // Without a MANIFEST there is nothing to check the other files against.
            report.problem(filename::CURRENT, e.to_string());
            return Ok(());
        }
    };
    report.manifest = Some(filename::manifest(state.manifest_number));
    report.last_sequence = state.last_sequence;
    let wals = check_directory(context, &state, report)?;
    check_options(context, report);
    wal::check(context, &wals, report)?;
    tables::check(context, &state, report);
    Ok(())
}

/// Whether the stored options can be used. Data can be read without them, so problems with them are warnings.
fn check_options(context: &Context<'_>, report: &mut Report) {
    match OptionsLoader::new().load_latest(context.dir) {
        Ok(loaded) => {
            if let Err(e) = loaded.check() {
                let name = loaded.path.file_name().unwrap_or_default().display().to_string();
                report.warning(name, format!("the stored options cannot be used: {}", e.message()));
            }
            let log_dir = &loaded.options.db.db_log_dir;
            if !log_dir.as_os_str().is_empty() && Db::check_stored_path(&loaded.options, context.dir, log_dir).is_err()
            {
                let name = loaded.path.file_name().unwrap_or_default().display().to_string();
                let what = "leads out of the database's directory: a program that follows it writes its log there";
                report.warning(name, format!("db_log_dir={} {what}", log_dir.display()));
            }
        }
        Err(e) if e.kind() == ErrorKind::NotFound => {}
        Err(e) => report.warning("OPTIONS", format!("the stored options cannot be used: {}", e.message())),
    }
}

/// Compares the directory with the MANIFEST. Returns the WALs that recovery would read.
fn check_directory(context: &Context<'_>, state: &RecoveredState, report: &mut Report) -> Result<Vec<u64>> {
    let dir = context.dir.display();
    let names = context.fs.list_dir(context.dir).map_err(|e| CliError::io(format_args!("cannot list {dir}"), &e))?;
    let files = each_file(state.column_families.iter().flat_map(|cf| cf.version.levels.iter().flatten()));
    let live: BTreeSet<u64> = files.map(|f| f.number).collect();
    let manifest = filename::manifest(state.manifest_number);
    if let Some(&n) = live.last()
        && n >= state.next_file_number
    {
        let next = state.next_file_number;
        report.problem(&manifest, format!("names table {n:06}.sst, but the next file number is {next}"));
    }
    let oldest_wal = state.column_families.iter().map(|cf| cf.log_number).min().unwrap_or(0);
    let mut wals = Vec::new();
    for name in &names {
        match filename::parse(name) {
            Some(FileType::Table(n)) if !live.contains(&n) => {
                report.warning(name, "orphan: the MANIFEST does not name this table");
            }
            Some(FileType::Manifest(n)) if n != state.manifest_number => {
                report.warning(name, "orphan: CURRENT names another MANIFEST");
            }
            Some(FileType::Temp(_)) => report.warning(name, "orphan: a temporary file"),
            Some(FileType::Blob(_)) => report.warning(name, "blob files (BlobDB) are not supported"),
            Some(FileType::Wal(_)) if context.wal_dir.as_deref() != Some(context.dir) => {
                report.warning(name, "orphan: the database has its WALs in another directory");
            }
            Some(FileType::Wal(n)) if n < oldest_wal => {
                report.warning(name, "orphan: all of this WAL is in tables");
            }
            Some(FileType::Wal(n)) => wals.push(n),
            _ => {}
        }
    }
    for dir in context.dirs.all().iter().filter(|dir| *dir != context.dir) {
        // A missing directory has no tables; the check of the MANIFEST's tables reports that.
        for name in context.fs.list_dir(dir).unwrap_or_default() {
            if matches!(filename::parse(&name), Some(FileType::Table(n)) if !live.contains(&n)) {
                let name = dir.join(name).display().to_string();
                report.warning(name, "orphan: the MANIFEST does not name this table");
            }
        }
    }
    if let Some(wal_dir) = context.wal_dir.as_deref().filter(|dir| *dir != context.dir) {
        let listed = context.fs.list_dir(wal_dir);
        let names = listed.map_err(|e| CliError::io(format_args!("cannot list {}", wal_dir.display()), &e))?;
        for name in names {
            match filename::parse(&name) {
                Some(FileType::Wal(n)) if n < oldest_wal => {
                    let name = wal_dir.join(name).display().to_string();
                    report.warning(name, "orphan: all of this WAL is in tables");
                }
                Some(FileType::Wal(n)) => wals.push(n),
                _ => {}
            }
        }
    }
    wals.sort_unstable();
    for (number, synced) in &state.tracked_wals {
        let name = filename::wal(*number);
        if *number < oldest_wal.max(state.min_log_number_to_keep) {
            continue;
        }
        let Some(wal_dir) = &context.wal_dir else { continue };
        match (context.fs.file_size(&wal_dir.join(&name)), synced) {
            (Err(e), _) => report.problem(&name, format!("the MANIFEST tracks this WAL, but: {e}")),
            (Ok(size), Some(synced)) if size < *synced => {
                report.problem(&name, format!("has {size} bytes, the MANIFEST says that {synced} were synced"));
            }
            _ => {}
        }
    }
    if let (Some(id), Ok(bytes)) = (&state.db_id, context.fs.read_to_vec(&context.dir.join(filename::IDENTITY))) {
        let identity = String::from_utf8_lossy(&bytes);
        if identity.trim_end() != id {
            report.warning(filename::IDENTITY, format!("holds {:?}, the MANIFEST says {id:?}", identity.trim_end()));
        }
    }
    Ok(wals)
}

fn print(report: &Report, seconds: f64, out: &mut Out) -> Result<()> {
    if out.json {
        return out.json_object(&json!({
            "ok": report.problems.total == 0,
            "manifest": report.manifest,
            "last_sequence": report.last_sequence,
            "tables": report.tables,
            "table_bytes": report.table_bytes,
            "entries": report.entries,
            "wals": report.wals,
            "wal_records": report.wal_records,
            "seconds": output::round(seconds, 6),
            "problem_count": report.problems.total,
            "problems": report.problems.shown.iter().map(Finding::json).collect::<Vec<_>>(),
            "warning_count": report.warnings.total,
            "warnings": report.warnings.shown.iter().map(Finding::json).collect::<Vec<_>>(),
        }));
    }
    for (word, findings) in [("warning", &report.warnings), ("problem", &report.problems)] {
        for f in &findings.shown {
            out.line(format!("{word}: {}", f.text()))?;
        }
        let more = findings.total - findings.shown.len() as u64;
        if more > 0 {
            out.line(format!("{word}: {} more like these", output::count(more)))?;
        }
    }
    out.note(format!(
        "checked {} ({}, {}), {} ({}) and {} in {}: {}",
        output::plural(report.tables, "table"),
        output::size(report.table_bytes),
        output::plural(report.entries, "entry"),
        output::plural(report.wals, "WAL"),
        output::plural(report.wal_records, "record"),
        report.manifest.as_deref().unwrap_or("no MANIFEST"),
        output::seconds(seconds),
        match report.problems.total {
            0 => "all sound".to_owned(),
            n => output::plural(n, "problem"),
        },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_name_their_file_once_and_their_offset() {
        let f = Finding { file: "000012.sst".into(), message: "db/000012.sst: block at offset 4096: bad".into() };
        assert_eq!(f.offset(), Some(4096));
        assert_eq!(f.text(), "db/000012.sst: block at offset 4096: bad");
        let f = Finding { file: "000013.sst".into(), message: "missing".into() };
        assert_eq!(f.offset(), None);
        assert_eq!(f.text(), "000013.sst: missing");
    }

    #[test]
    fn findings_are_bounded_and_counted() {
        let mut f = Findings::default();
        (0..SHOWN_MAX + 5).for_each(|i| f.add("x", i.to_string()));
        assert_eq!(f.shown.len(), SHOWN_MAX);
        assert_eq!(f.total, SHOWN_MAX as u64 + 5);
    }
}
