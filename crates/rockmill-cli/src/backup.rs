//! `rockmill backup` and `rockmill checkpoint`.

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::{Args, Subcommand, ValueEnum};
use indicatif::ProgressBar;
use rockmill::backup::{
    BackupEngine, BackupEngineInfo, BackupEngineOptions, BackupFile, BackupProgress, CreateBackupOptions, RestoreMode,
    RestoreOptions,
};
use rockmill::{Checkpoint, Env, ErrorKind};
use serde_json::{Value, json};

use crate::args::{StoredArgs, parse_size};
use crate::error::{CliError, Result};
use crate::output::{self, Out};
use crate::progress;
use crate::store::OpenToWrite;

/// Make, list, check, restore and delete backups
///
/// Backups are incremental: a table is copied once, however many backups have it. RocksDB's tools (`ldb backup`,
/// `ldb restore`) and its BackupEngine use the same directories.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rockmill backup create my.db /backups/my.db
  rockmill backup list /backups/my.db
  rockmill backup verify /backups/my.db
  rockmill backup restore /backups/my.db my.db
  rockmill backup purge /backups/my.db --keep 7")]
pub struct BackupArgs {
    #[command(subcommand)]
    #[allow(missing_docs)]
    pub command: BackupCommand,
}

/// What to do with backups.
#[derive(Debug, Subcommand)]
#[allow(missing_docs)]
pub enum BackupCommand {
    Create(CreateArgs),
    List(ListArgs),
    Verify(VerifyBackupArgs),
    Restore(RestoreArgs),
    Purge(PurgeArgs),
    Delete(DeleteBackupArgs),
}

/// How files are copied.
#[derive(Debug, Clone, Copy, Args)]
pub struct CopyArgs {
    /// Files copied or read at once
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(i32).range(1..=1024))]
    pub threads: i32,
    /// Bytes per second at most; 0 is no limit
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "0")]
    pub rate: u64,
}

/// Make a backup of a database; creates the backup directory if missing
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rockmill backup create my.db /backups/my.db
  rockmill backup create my.db /backups/my.db --note 'before the upgrade' --threads 4 --rate 100M")]
pub struct CreateArgs {
    /// Database directory
    pub db: PathBuf,
    /// Backup directory
    pub backups: PathBuf,
    /// Text to store with the backup
    #[arg(long, value_name = "TEXT")]
    pub note: Option<String>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub copy: CopyArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub stored: StoredArgs,
}

/// List backups, damaged ones too
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rockmill backup list /backups/my.db
  rockmill backup list /backups/my.db --files
  rockmill backup list /backups/my.db --json | jq '.backups[-1].id'")]
pub struct ListArgs {
    /// Backup directory
    pub backups: PathBuf,
    /// Show each backup's files
    #[arg(long)]
    pub files: bool,
}

/// Check backups: every file's presence, size and checksum. Exit code 1 if one is damaged
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rockmill backup verify /backups/my.db
  rockmill backup verify /backups/my.db --id 7
  rockmill backup verify /backups/my.db --quick")]
pub struct VerifyBackupArgs {
    /// Backup directory
    pub backups: PathBuf,
    /// Only this backup [default: all]
    #[arg(long, value_name = "N")]
    pub id: Option<u32>,
    /// Presence and sizes only
    #[arg(long)]
    pub quick: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub copy: CopyArgs,
}

/// What to keep of the database that is replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum KeepArg {
    /// Nothing
    None,
    /// Tables with the number, session and size of those in the backup
    Session,
    /// Tables with the checksum of those in the backup
    Checksum,
}

/// Restore a backup into a directory, replacing the database there
///
/// Nothing is deleted before it is sure that the backup is whole. Files that are not a database's stay. Another
/// database than the one that the backup was made of is replaced only with --force.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rockmill backup restore /backups/my.db my.db
  rockmill backup restore /backups/my.db my.db --id 7
  rockmill backup restore /backups/my.db my.db --keep checksum")]
pub struct RestoreArgs {
    /// Backup directory
    pub backups: PathBuf,
    /// Database directory
    pub db: PathBuf,
    /// Which backup [default: the newest that can be used]
    #[arg(long, value_name = "N")]
    pub id: Option<u32>,
    /// Directory for the WALs [default: the database's]
    #[arg(long, value_name = "DIR")]
    pub wal_dir: Option<PathBuf>,
    /// Which existing tables to keep, so that less is copied
    #[arg(long, value_enum, default_value = "none")]
    pub keep: KeepArg,
    /// Leave the WALs there, to be replayed over the backup
    #[arg(long)]
    pub keep_logs: bool,
    /// Also replace a database that is not the one that the backup was made of
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub copy: CopyArgs,
}

/// Delete all backups but the newest
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rockmill backup purge /backups/my.db --keep 7")]
pub struct PurgeArgs {
    /// Backup directory
    pub backups: PathBuf,
    /// How many to keep
    #[arg(long, value_name = "N")]
    pub keep: usize,
}

/// Delete one backup
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rockmill backup delete /backups/my.db 3")]
pub struct DeleteBackupArgs {
    /// Backup directory
    pub backups: PathBuf,
    /// Its number
    pub id: u32,
}

/// Make a checkpoint: a separate database that shares the tables of this one by hard links
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rockmill checkpoint my.db /snapshots/monday
  rockmill checkpoint my.db /snapshots/monday --keep-log 64M")]
pub struct CheckpointArgs {
    /// Database directory
    pub db: PathBuf,
    /// Directory to create
    pub dir: PathBuf,
    /// Copy the WALs instead of flushing them to tables, if they are smaller than this
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "0")]
    pub keep_log: u64,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub stored: StoredArgs,
}

/// `rockmill backup`
pub fn run(args: &BackupArgs, out: &mut Out) -> Result<()> {
    match &args.command {
        BackupCommand::Create(args) => create(args, out),
        BackupCommand::List(args) => list(args, out),
        BackupCommand::Verify(args) => verify(args, out),
        BackupCommand::Restore(args) => restore(args, out),
        BackupCommand::Purge(args) => purge(args, out),
        BackupCommand::Delete(args) => delete(args, out),
    }
}

fn options(dir: &Path, copy: Option<CopyArgs>) -> Result<BackupEngineOptions> {
    let mut options = BackupEngineOptions::new(dir)?;
    if let Some(copy) = copy {
        options.set_max_background_operations(copy.threads);
        options.set_backup_rate_limit(copy.rate);
        options.set_restore_rate_limit(copy.rate);
    }
    options.set_callback_trigger_interval_size(256 << 10);
    Ok(options)
}

/// Opens an existing backup directory, to read it or, with `write`, to change it.
fn open(dir: &Path, copy: Option<CopyArgs>, write: bool) -> Result<BackupEngine> {
    let (options, env) = (options(dir, copy)?, Env::new()?);
    let engine = BackupEngine::open_read_only(&options, &env).map_err(|e| {
        let missing = e.kind() == ErrorKind::NotFound;
        let e = CliError::from(e);
        if missing { e.hint("`rockmill backup create DB DIR` makes the first backup") } else { e }
    })?;
    // Opens it read-only first: a mistyped name must not create a backup directory.
    if write { Ok(BackupEngine::open(&options, &env)?) } else { Ok(engine) }
}

/// An error that may be caused by a damaged backup.
fn damaged(e: rockmill::Error) -> CliError {
    let corrupt = e.kind() == ErrorKind::Corruption;
    let e = CliError::from(e);
    if corrupt { e.hint("`rockmill backup verify DIR` says which backups are whole; `--id` takes another") } else { e }
}

/// Shows how far an operation is.
fn follow(bar: &ProgressBar) -> impl Fn(BackupProgress) + Send + Sync + 'static {
    let bar = bar.clone();
    move |p| {
        bar.set_length(p.bytes_total);
        bar.set_position(p.bytes_done);
    }
}

fn create(args: &CreateArgs, out: &mut Out) -> Result<()> {
    let store = args.stored.alone();
    let open = OpenToWrite { path: &args.db, args: &store, create: false, family: None, fs: None };
    let (db, _) = open.open()?;
    let started = Instant::now();
    let engine = BackupEngine::open(&options(&args.backups, Some(args.copy))?, &Env::new()?)?;
    let bar = progress::bytes("backup", Some(0), out.quiet);
    let mut how = CreateBackupOptions::default();
    how.set_flush_before_backup(true);
    how.set_progress_callback(follow(&bar));
    let note = args.note.as_deref().unwrap_or_default();
    let made = engine.create_new_backup_with_metadata(&db, &how, note.as_bytes());
    bar.finish_and_clear();
    let id = made?;
    let details = engine.get_backup_details(id)?;
    let new: Vec<u64> = details.files.iter().filter(|f| f.backups == 1).map(|f| f.size).collect();
    let (size, copied) = (details.info.size, new.iter().sum::<u64>());
    if out.json {
        return out.json_object(&json!({
            "id": id,
            "files": details.files.len(),
            "bytes": size,
            "new_files": new.len(),
            "new_bytes": copied,
            "wall_seconds": output::round(started.elapsed().as_secs_f64(), 6),
        }));
    }
    out.note(format!(
        "backup {id}: {}, {}; copied {}, {}, in {}",
        output::plural(details.files.len() as u64, "file"),
        output::size(size),
        output::plural(new.len() as u64, "file"),
        output::size(copied),
        output::seconds(started.elapsed().as_secs_f64()),
    ))
}

fn info_json(engine: &BackupEngine, info: &BackupEngineInfo, files: bool) -> Result<Value> {
    let details = engine.get_backup_details(info.backup_id)?;
    let note = String::from_utf8_lossy(&details.app_metadata).into_owned();
    let mut value = json!({
        "id": info.backup_id,
        "timestamp": info.timestamp,
        "time": utc(info.timestamp),
        "bytes": info.size,
        "files": info.num_files,
        "sequence": details.sequence,
    });
    if !note.is_empty() {
        value["note"] = Value::from(note);
    }
    if files {
        let of = |f: &BackupFile| json!({ "path": f.path, "bytes": f.size, "crc32c": f.crc32c, "backups": f.backups });
        value["file_list"] = details.files.iter().map(of).collect();
    }
    Ok(value)
}

fn list(args: &ListArgs, out: &mut Out) -> Result<()> {
    let engine = open(&args.backups, None, false)?;
    let (good, bad) = (engine.get_backup_info(), engine.get_corrupted_backups());
    if out.json {
        let backups = good.iter().map(|i| info_json(&engine, i, args.files)).collect::<Result<Vec<_>>>()?;
        let damaged: Vec<Value> = bad.iter().map(|(id, e)| json!({ "id": id, "reason": e.message() })).collect();
        return out.json_object(&json!({ "backups": backups, "damaged": damaged }));
    }
    if good.is_empty() && bad.is_empty() {
        return out.note("no backups");
    }
    for info in &good {
        let details = engine.get_backup_details(info.backup_id)?;
        let note = String::from_utf8_lossy(&details.app_metadata).into_owned();
        out.line(format!(
            "{:>6}  {}  {:>10}  {}{}",
            info.backup_id,
            utc(info.timestamp),
            output::size(info.size),
            output::plural(u64::from(info.num_files), "file"),
            if note.is_empty() { String::new() } else { format!("  {}", output::escape(note.as_bytes(), 200)) },
        ))?;
        for f in details.files.iter().filter(|_| args.files) {
            out.line(format!("        {}  {}", f.path, output::size(f.size)))?;
        }
    }
    bad.iter().try_for_each(|(id, e)| out.line(format!("{id:>6}  damaged: {}", e.message())))
}

fn verify(args: &VerifyBackupArgs, out: &mut Out) -> Result<()> {
    let engine = open(&args.backups, Some(args.copy), false)?;
    let ids: Vec<u32> = match args.id {
        Some(id) => vec![id],
        None => {
            let mut ids: Vec<u32> = engine.get_backup_info().iter().map(|i| i.backup_id).collect();
            ids.extend(engine.get_corrupted_backups().iter().map(|(id, _)| *id));
            ids.sort_unstable();
            ids
        }
    };
    let mut results = Vec::new();
    for id in ids {
        let checked = if args.quick {
            engine.verify_backup(id)
        } else {
            let bar = progress::bytes(format!("verify backup {id}"), Some(0), out.quiet);
            let mut how = RestoreOptions::default();
            how.set_progress_callback(follow(&bar));
            let checked = engine.verify_backup_with_progress(id, &how);
            bar.finish_and_clear();
            checked
        };
        match checked {
            Err(e) if e.kind() == ErrorKind::NotFound => return Err(e.into()),
            checked => results.push((id, checked.err())),
        }
    }
    let bad = results.iter().filter(|(_, e)| e.is_some()).count() as u64;
    if out.json {
        let all: Vec<Value> = results
            .iter()
            .map(|(id, e)| json!({ "id": id, "ok": e.is_none(), "reason": e.as_ref().map(|e| e.message()) }))
            .collect();
        out.json_object(&json!({ "ok": bad == 0, "backups": all }))?;
    } else {
        for (id, e) in &results {
            match e {
                None => out.note(format!("backup {id}: sound"))?,
                Some(e) => out.line(format!("backup {id}: {}", e.message()))?,
            }
        }
    }
    if bad == 0 {
        return Ok(());
    }
    Err(CliError::problems(format!("{} cannot be used", output::plural(bad, "backup"))))
}

fn restore(args: &RestoreArgs, out: &mut Out) -> Result<()> {
    let engine = open(&args.backups, Some(args.copy), false)?;
    let newest = || engine.get_backup_info().last().map(|i| i.backup_id);
    let Some(id) = args.id.or_else(newest) else {
        return Err(CliError::not_found(format!("{}: no backup that can be used", args.backups.display()))
            .hint("`rockmill backup verify DIR` says what is wrong with the existing ones"));
    };
    let mut how = RestoreOptions::default();
    how.set_keep_log_files(args.keep_logs);
    how.set_same_database_only(!args.force);
    how.set_mode(match args.keep {
        KeepArg::None => RestoreMode::PurgeAllFiles,
        KeepArg::Session => RestoreMode::KeepLatestDbSessionIdFiles,
        KeepArg::Checksum => RestoreMode::VerifyChecksum,
    });
    let bar = progress::bytes("restore", Some(0), out.quiet);
    how.set_progress_callback(follow(&bar));
    let started = Instant::now();
    // Absolute, because the OPTIONS file will name it, also for commands that run in other directories.
    let wal_dir = match &args.wal_dir {
        Some(dir) => std::path::absolute(dir).map_err(|e| CliError::io(dir.display(), &e))?,
        None => args.db.clone(),
    };
    let done = engine.restore_from_backup(&args.db, &wal_dir, &how, id);
    bar.finish_and_clear();
    done.map_err(|e| match e.kind() {
        ErrorKind::InvalidArgument if e.message().contains("is not the one of the backup") => {
            CliError::from(e).hint("give another directory, or --force to replace that database")
        }
        _ => damaged(e),
    })?;
    let info = engine.get_backup_details(id)?.info;
    if out.json {
        return out.json_object(&json!({
            "restored": id,
            "files": info.num_files,
            "bytes": info.size,
            "wall_seconds": output::round(started.elapsed().as_secs_f64(), 6),
        }));
    }
    out.note(format!(
        "restored backup {id} ({}) to {}: {}, {}",
        utc(info.timestamp),
        args.db.display(),
        output::plural(u64::from(info.num_files), "file"),
        output::size(info.size),
    ))
}

fn purge(args: &PurgeArgs, out: &mut Out) -> Result<()> {
    let engine = open(&args.backups, None, true)?;
    let before = engine.get_backup_info().len();
    engine.purge_old_backups(args.keep)?;
    let left: Vec<u32> = engine.get_backup_info().iter().map(|i| i.backup_id).collect();
    if out.json {
        return out.json_object(&json!({ "deleted": before - left.len(), "left": left }));
    }
    let deleted = (before - left.len()) as u64;
    out.note(format!("deleted {}, {} left", output::plural(deleted, "backup"), left.len()))
}

fn delete(args: &DeleteBackupArgs, out: &mut Out) -> Result<()> {
    open(&args.backups, None, true)?.delete_backup(args.id)?;
    if out.json {
        return out.json_object(&json!({ "deleted": args.id }));
    }
    out.note(format!("deleted backup {}", args.id))
}

/// `rockmill checkpoint`
pub fn checkpoint(args: &CheckpointArgs, out: &mut Out) -> Result<()> {
    let store = args.stored.alone();
    let open = OpenToWrite { path: &args.db, args: &store, create: false, family: None, fs: None };
    let (db, _) = open.open()?;
    Checkpoint::new(&db)?.create_checkpoint_with_log_size(&args.dir, args.keep_log)?;
    if out.json {
        return out.json_object(&json!({ "checkpoint": args.dir, "sequence": db.latest_sequence_number() }));
    }
    out.note(format!("made checkpoint {}", args.dir.display()))
}

/// Seconds since the Unix epoch as `2024-03-01 09:15:00 UTC`.
fn utc(seconds: i64) -> String {
    let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Days to a date in the proleptic Gregorian calendar, years beginning in March.
    let shifted = days.saturating_add(719_468);
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (h, m, s) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02} {h:02}:{m:02}:{s:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_dates() {
        assert_eq!(utc(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(utc(951_782_399), "2000-02-28 23:59:59 UTC");
        assert_eq!(utc(951_782_400), "2000-02-29 00:00:00 UTC");
        assert_eq!(utc(1_709_284_500), "2024-03-01 09:15:00 UTC");
        assert_eq!(utc(-1), "1969-12-31 23:59:59 UTC");
    }
}
