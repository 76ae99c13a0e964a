//! Each table alone, several at once.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use rockmill::internals::{
    FileMeta, RecoveredCf, RecoveredState, Table, current_manifest, for_each_edit, retry_while_files_vanish,
    table_of_files, table_path,
};
use rockmill_format::edit::TableFile;
use rockmill_format::filename;
use rockmill_format::properties::UNKNOWN_COLUMN_FAMILY;
use rockmill_io::RandomAccessFile;

use super::{Context, Report, order};
use crate::progress;

/// The message for a missing table.
const MISSING: &str = "missing: the MANIFEST names this table";

/// Most threads: beyond this, the disk is the limit.
const THREADS_MAX: usize = 16;

/// A table of the MANIFEST, and its place.
struct Job<'a> {
    cf: &'a RecoveredCf,
    file: &'a Arc<FileMeta>,
}

/// The result of a table's own check.
type Outcome = (Option<Arc<Table>>, Vec<String>);

/// Checks all tables, each alone and then together.
pub fn check(context: &Context<'_>, state: &RecoveredState, report: &mut Report) {
    let jobs: Vec<Job<'_>> = state
        .column_families
        .iter()
        .flat_map(|cf| cf.version.levels.iter().flatten().map(move |file| Job { cf, file }))
        .collect();
    let bytes = jobs.iter().map(|j| j.file.size()).sum();
    let bar = progress::bytes("tables", Some(bytes), context.quiet);
    let next = AtomicUsize::new(0);
    let outcomes: Vec<Mutex<Outcome>> = jobs.iter().map(|_| Mutex::default()).collect();
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX).min(jobs.len());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((job, outcome)) = {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    jobs.get(i).zip(outcomes.get(i))
                } {
                    let done = check_one(context, job);
                    bar.inc(job.file.size());
                    if let Ok(mut outcome) = outcome.lock() {
                        *outcome = done;
                    }
                }
            });
        }
    });
    bar.finish_and_clear();

    report.tables += jobs.len() as u64;
    report.table_bytes += bytes;
    let mut outcomes: Vec<Outcome> = outcomes.into_iter().map(|o| o.into_inner().unwrap_or_default()).collect();
    if outcomes.iter().any(|(_, problems)| problems.iter().any(|p| p.ends_with(MISSING))) {
        let named = named_now(context);
        for (job, (_, problems)) in jobs.iter().zip(&mut outcomes) {
            if named.as_ref().is_some_and(|named| !named.contains(&job.file.number())) {
                // A compaction replaced it while it was waiting to be checked.
                problems.retain(|p| !p.ends_with(MISSING));
            }
        }
    }
    for (job, (table, problems)) in jobs.iter().zip(&outcomes) {
        let name = filename::table(job.file.number());
        for p in problems {
            report.problem(&name, p.as_str());
        }
        report.entries += table.as_ref().map_or(0, |t| t.properties().num_entries);
    }
    // Damaged tables are excluded from the next step; their damage was already reported.
    let sound: HashMap<u64, Arc<Table>> = jobs
        .iter()
        .zip(outcomes)
        .filter(|(_, (_, problems))| problems.is_empty())
        .filter_map(|(job, (table, _))| Some((job.file.number(), table?)))
        .collect();
    for cf in &state.column_families {
        order::check(context, cf, &sound, report);
    }
}

/// The tables that the MANIFEST names now.
fn named_now(context: &Context<'_>) -> Option<HashSet<u64>> {
    let fs = &**context.fs;
    let read = || {
        let mut named = HashSet::new();
        let manifest = filename::manifest(current_manifest(fs, context.dir)?);
        for_each_edit(fs, &context.dir.join(manifest), &mut |edit| {
            named.extend(edit.new_files.iter().map(|(_, f)| f.number));
            // A table that changes its level is deleted from one and added to the other in a single edit.
            let gone = edit.deleted_files.iter().map(|(_, number)| *number);
            for number in gone.filter(|n| !edit.new_files.iter().any(|(_, f)| f.number == *n)) {
                named.remove(&number);
            }
            Ok(())
        })?;
        Ok(named)
    };
    retry_while_files_vanish(fs, context.dir, read).ok()
}

/// Opens a table's file, or returns the error. `problems` gets findings that do not prevent reading.
fn open_file(
    context: &Context<'_>,
    file: TableFile,
    problems: &mut Vec<String>,
) -> Result<(PathBuf, Arc<dyn RandomAccessFile>), String> {
    let path = table_path(&**context.fs, &context.dirs, file);
    let opened = context.fs.open_random(&path, context.direct).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => MISSING.to_owned(),
        _ => format!("cannot be opened: {e}"),
    })?;
    if opened.size() != file.size {
        problems.push(format!("has {} bytes, the MANIFEST says {}", opened.size(), file.size));
    }
    Ok((path, opened))
}

fn check_one(context: &Context<'_>, job: &Job<'_>) -> Outcome {
    let mut problems = Vec::new();
    let mut files = match open_file(context, job.file.own_file(), &mut problems) {
        Ok(own) => vec![own],
        Err(problem) => return (None, vec![problem]),
    };
    for piece in &job.file.entry.pieces {
        let mut of_piece = Vec::new();
        match open_file(context, piece.file(), &mut of_piece) {
            Ok(piece) => files.push(piece),
            Err(problem) => of_piece.push(problem),
        }
        problems.extend(of_piece.iter().map(|problem| format!("{}: {problem}", filename::table(piece.number))));
    }
    if files.len() <= job.file.entry.pieces.len() {
        return (None, problems); // the table cannot be read if one of its files is missing
    }
    let table = match table_of_files(files, &job.cf.version.cmp, Some(job.file.entry.largest_seqno)) {
        Ok(table) => table,
        Err(e) => {
            problems.push(e.to_string());
            return (None, problems);
        }
    };
    let of = table.properties().column_family_id;
    if of != u64::from(job.cf.id) && of != UNKNOWN_COLUMN_FAMILY && !table.properties().column_family_name.is_empty() {
        problems.push(format!(
            "was written for column family {:?} (id {of}) and stands in {:?} (id {})",
            table.properties().column_family_name,
            job.cf.name,
            job.cf.id
        ));
    }
    if let Err(e) = table.verify() {
        problems.push(e.to_string());
    }
    (Some(table), problems)
}
