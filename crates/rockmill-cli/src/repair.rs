//! `rockmill repair`.

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use rockmill::{Db, Options, RepairOptions, RepairReport};
use serde_json::{Value, json};

use crate::args::DirArgs;
use crate::error::{CliError, Result};
use crate::output::{self, Out};
use crate::{progress, store};

/// Make a damaged database usable again, from what is left of it
///
/// Reads every table and WAL, writes a new MANIFEST, and moves files that are damaged or not needed any more to the
/// directory `lost` in the database's; nothing is deleted. The data of damaged files is lost: if there is a backup,
/// restore it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rockmill repair my.db
  rockmill repair my.db --json | jq .damaged
  rockmill repair my.db && rockmill verify my.db")]
pub struct RepairArgs {
    /// Database directory
    pub db: PathBuf,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub dirs: DirArgs,
}

/// `rockmill repair`
pub fn run(args: &RepairArgs, out: &mut Out) -> Result<()> {
    if !args.db.is_dir() {
        return Err(CliError::usage(format!("{}: no such directory", args.db.display())));
    }
    let bar = progress::bytes("repair", Some(0), out.quiet);
    let mut how = RepairOptions::default();
    if let Some(dir) = &args.dirs.wal_dir {
        how.set_wal_dir(dir);
    }
    let shown = bar.clone();
    how.set_progress_callback(move |done, total| {
        shown.set_length(total);
        shown.set_position(done);
    });
    let started = Instant::now();
    let options = store::with_table_dirs(Options::default(), &args.dirs.db_paths, &args.dirs.cf_paths)?;
    let done = Db::repair_with(&options, &args.db, &how);
    bar.finish_and_clear();
    let report = done.map_err(store::explain_lock)?;
    if out.json {
        return out.json_object(&to_json(&report, started.elapsed().as_secs_f64()));
    }
    if let Some(why) = &report.manifest_damage {
        out.note(format!("the MANIFEST was not whole: {why}"))?;
    }
    for (file, reason) in &report.damaged {
        out.line(format!("damaged: {file}: {reason}"))?;
    }
    if let Some((dir, why)) = &report.wals_not_read {
        out.line(format!(
            "not read: the WALs in {} ({why}); the database needs them still: bring the directory back, or repair \
             again with --wal-dir",
            dir.display()
        ))?;
    }
    for number in &report.tables_missing {
        out.line(format!("missing: {number:06}.sst"))?;
    }
    if report.entries_without_column_family > 0 {
        out.line(format!(
            "lost: {} of column families that are otherwise unknown",
            output::plural(report.entries_without_column_family, "update")
        ))?;
    }
    out.note(format!(
        "repaired: column families {}; entries: {}; {}",
        report.column_families.join(", "),
        output::count(report.entries),
        output::size(report.bytes),
    ))?;
    out.note(format!(
        "tables: {} kept, {} merged, {} written, {} left over, {} damaged; {} read, {} from them",
        report.tables_kept,
        report.tables_merged,
        report.tables_written,
        report.tables_left_over,
        report.tables_damaged,
        output::plural(report.wals_converted, "WAL"),
        output::plural(report.wal_entries, "update"),
    ))?;
    match &report.lost {
        Some(lost) => out.note(format!("old files are in {}", lost.display())),
        None => Ok(()),
    }
}

fn to_json(r: &RepairReport, seconds: f64) -> Value {
    let damaged: Vec<Value> = r.damaged.iter().map(|(file, why)| json!({ "file": file, "reason": why })).collect();
    json!({
        "column_families": r.column_families,
        "manifest_damage": r.manifest_damage,
        "tables_kept": r.tables_kept,
        "tables_merged": r.tables_merged,
        "tables_written": r.tables_written,
        "tables_left_over": r.tables_left_over,
        "tables_damaged": r.tables_damaged,
        "tables_missing": r.tables_missing,
        "wals": r.wals_converted,
        "wals_not_read": r.wals_not_read.as_ref().map(|(dir, why)| json!({ "directory": dir, "reason": why })),
        "wal_entries": r.wal_entries,
        "wal_bytes_lost": r.wal_bytes_lost,
        "entries_without_column_family": r.entries_without_column_family,
        "entries": r.entries,
        "bytes": r.bytes,
        "last_sequence": r.last_sequence,
        "damaged": damaged,
        "lost": r.lost,
        "wall_seconds": output::round(seconds, 6),
    })
}
