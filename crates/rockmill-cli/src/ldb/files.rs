//! `ldb`'s commands about files: `list_live_files_metadata`, `file_checksum_dump`, and the newest MANIFEST.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Args;
use rockmill::internals::LogSource;
use rockmill_format::edit::{FileEntry, VersionEdit};
use rockmill_format::filename;
use rockmill_format::log::{DamageKind, LogEvent, LogReader};
use rockmill_io::{FileSystem as _, PosixFileSystem};
use serde_json::json;

use crate::args::{DumpArgs, ReadArgs};
use crate::error::{CliError, REPAIR_HINT, Result};
use crate::output::{self, Out};
use crate::{dump, store};

/// The name that RocksDB stores for a table without a checksum of the whole file.
const NO_CHECKSUM: &str = "Unknown";
/// The last line of `ldb`'s list of files.
const END: &str = "------------------------------";

/// List the tables in use
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rockmill --db=my.db list_live_files_metadata
  rockmill --db=my.db list_live_files_metadata --sort_by_filename")]
pub struct LiveFilesArgs {
    /// Database directory
    pub db: PathBuf,
    /// One line for each table, by name
    #[arg(long)]
    pub sort_by_filename: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub store: ReadArgs,
}

/// Print the checksums of whole tables that the MANIFEST has
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rockmill --db=my.db file_checksum_dump --hex")]
pub struct FileChecksumArgs {
    /// Database directory
    pub db: PathBuf,
    /// Print checksums as hexadecimal
    #[arg(long)]
    pub hex: bool,
}

/// Show the newest MANIFEST: `rockmill dump` of it
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rockmill --db=my.db manifest_dump")]
pub struct DumpManifestArgs {
    /// Database directory
    pub db: PathBuf,
    /// Print keys as hexadecimal, in full
    #[arg(long)]
    pub hex: bool,
}

/// `rockmill list_live_files_metadata`, in `ldb`'s form
pub fn list_live_files(args: &LiveFilesArgs, out: &mut Out) -> Result<()> {
    let db = store::open_to_read(&args.db, &args.store, None, None)?;
    let mut families = store::all_families(&db);
    families.sort_by_key(rockmill::ColumnFamily::id);
    let all: Vec<_> = families.iter().map(|cf| db.get_column_family_metadata_cf(cf)).collect();
    let path = |file: &rockmill::LiveFile| file.directory.join(file.name.trim_start_matches('/'));
    let mut files: Vec<_> =
        all.iter().flat_map(|cf| cf.levels.iter().flat_map(|l| l.files.iter()).map(|f| (path(f), f))).collect();
    if out.json {
        let files: Vec<_> = files
            .iter()
            .map(|(path, f)| {
                let path = path.display().to_string();
                json!({ "path": path, "column_family": f.column_family_name, "level": f.level, "bytes": f.size })
            })
            .collect();
        return out.json_object(&json!({ "files": files }));
    }
    if args.sort_by_filename {
        files.sort_by(|a, b| a.0.cmp(&b.0));
        out.line("Live SST and Blob Files:")?;
        files.iter().try_for_each(|(path, f)| {
            let (path, family) = (path.display(), &f.column_family_name);
            out.line(format!("{path} : level {}, column family '{family}'", f.level))
        })?;
        return out.line(END);
    }
    for cf in &all {
        out.line(format!("===== Column Family: {} =====", cf.name))?;
        out.line("Live SST Files:")?;
        for level in &cf.levels {
            out.line(format!("---------- level {} ----------", level.level))?;
            level.files.iter().try_for_each(|f| out.line(path(f).display().to_string()))?;
        }
        out.line("Live Blob Files:")?;
    }
    out.line(END)
}

/// `rockmill file_checksum_dump`, in `ldb`'s form
pub fn file_checksums(args: &FileChecksumArgs, out: &mut Out) -> Result<()> {
    let tables = live_tables(&manifest(&args.db)?)?;
    if out.json {
        let tables: Vec<_> = tables
            .iter()
            .map(|(number, t)| {
                let checksum = output::hex(&t.file_checksum);
                json!({ "number": number, "function": t.file_checksum_func_name, "checksum_hex": checksum })
            })
            .collect();
        return out.json_object(&json!({ "tables": tables }));
    }
    for (number, table) in &tables {
        let function = match table.file_checksum_func_name.as_str() {
            "" => NO_CHECKSUM,
            name => name,
        };
        let mut line = format!("{number}, {function}, ").into_bytes();
        if args.hex {
            line.extend_from_slice(format!("0x{}", output::hex(&table.file_checksum).to_ascii_uppercase()).as_bytes());
        } else {
            crate::scan::append_as(false, out.is_terminal())(&mut line, &table.file_checksum);
        }
        line.push(b'\n');
        out.bytes(&line)?;
    }
    out.line("Print SST file checksum information finished ")
}

/// `rockmill --db=DIR manifest_dump`
pub fn dump_manifest(args: &DumpManifestArgs, out: &mut Out) -> Result<()> {
    let file = manifest(&args.db)?;
    dump::run(&DumpArgs { file, entries: false, limit: None, hex: args.hex, file_type: None }, out)
}

/// The MANIFEST that CURRENT names.
fn manifest(db: &Path) -> Result<PathBuf> {
    store::check_is_database(db)?;
    let current = db.join(filename::CURRENT);
    let text = std::fs::read_to_string(&current).map_err(|e| CliError::io(current.display(), &e))?;
    let name = text.strip_suffix('\n').filter(|n| matches!(filename::parse(n), Some(filename::FileType::Manifest(_))));
    let damaged = || CliError::corruption(format!("{}: names no MANIFEST", current.display())).hint(REPAIR_HINT);
    Ok(db.join(name.ok_or_else(damaged)?))
}

/// The tables that a MANIFEST leaves in use, by number.
fn live_tables(path: &Path) -> Result<BTreeMap<u64, FileEntry>> {
    let io = |e| CliError::io(path.display(), &e);
    let file = PosixFileSystem::default().open_sequential(path).map_err(io)?;
    let mut reader = LogReader::new(LogSource::new(file), 0).without_space_ahead();
    let mut tables = BTreeMap::new();
    // Edits of a group count together, or not at all.
    let mut group = Vec::new();
    let mut record = Vec::new();
    loop {
        match reader.next_record(&mut record).map_err(io)? {
            LogEvent::Record { .. } => {}
            LogEvent::Damage { kind: DamageKind::CutTail, .. } | LogEvent::End { .. } => break,
            LogEvent::Damage { error, .. } => {
                return Err(CliError::corruption(format!("{}: {error}", path.display())).hint(REPAIR_HINT));
            }
        }
        let edit = VersionEdit::decode(&record).map_err(|e| CliError::from(rockmill::Error::format(path, &e)))?;
        let more = edit.remaining_in_group.is_some_and(|left| left > 0);
        group.push(edit);
        if more {
            continue;
        }
        for edit in group.drain(..) {
            if edit.column_family_drop {
                tables.retain(|_, (family, _)| *family != edit.column_family);
            }
            for (_, number) in &edit.deleted_files {
                tables.remove(number);
            }
            tables.extend(edit.new_files.into_iter().map(|(_, file)| (file.number, (edit.column_family, file))));
        }
    }
    Ok(tables.into_iter().map(|(number, (_, file))| (number, file)).collect())
}
