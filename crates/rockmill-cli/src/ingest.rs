//! `rockmill write-sst` and `rockmill ingest`: write tables outside of a database, and ingest them.

use std::time::Instant;

use indicatif::ProgressBar;
use rockmill::{IngestExternalFileOptions, LiveFile, SstFileWriter};
use serde_json::json;

use crate::args::{FormatArg, IngestArgs, WriteSstArgs};
use crate::error::{CliError, Result};
use crate::input::{self, Record, Settings, Source, Step};
use crate::load;
use crate::output::{self, Out};
use crate::progress;
use crate::store::{self, OpenToWrite};

/// Longest key shown in a message, in bytes.
const SHOWN_LEN_MAX: usize = 100;

/// `rockmill write-sst`
pub fn write_sst(args: &WriteSstArgs, family: Option<&str>, out: &mut Out) -> Result<()> {
    let inputs = &args.input;
    let total = load::total_bytes(&args.files)?;
    let formats: Vec<FormatArg> =
        args.files.iter().map(|f| input::format_of(f, inputs.format)).collect::<Result<_>>()?;
    let settings = Settings::new(inputs, &formats)?;
    let options = store::table_options(&args.store, family)?;
    let started = Instant::now();
    let bar = if out.quiet { ProgressBar::hidden() } else { progress::bytes("write", total, false) };

    if !args.force && args.table.symlink_metadata().is_ok() {
        return Err(CliError::usage(format!("{} already exists", args.table.display()))
            .hint("--force replaces it; the table's name comes before those of the files"));
    }
    let mut writer = SstFileWriter::create(&options);
    writer.open(&args.table)?;
    let mut sorted: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    let (mut lines, mut bytes, mut skipped) = (0, 0, 0u64);
    for (file, format) in args.files.iter().zip(formats) {
        let mut source = Source::open(file, format, &settings, lines)?;
        let mut record = Record::default();
        loop {
            let place = |source: &Source| format!("{}:{}", source.name(), source.line());
            match source.next(&mut record)? {
                Step::Record if args.sort => sorted.push((record.key.clone(), record.value.clone())),
                Step::Record => writer.put(&record.key, &record.value).map_err(|e| {
                    let key = output::escape(&record.key, SHOWN_LEN_MAX);
                    let e = CliError::data(format!("{}: key {key}: {e}", place(&source)));
                    e.hint("--sort brings records into order first")
                })?,
                Step::Bad(_) if inputs.skip_bad => skipped += 1,
                Step::Bad(why) => {
                    let e = CliError::data(format!("{}: {why}", place(&source)));
                    return Err(e.hint("--skip-bad leaves such lines out"));
                }
                Step::End => break,
            }
            bar.set_position(bytes + source.bytes());
        }
        bytes += source.bytes();
        lines += source.line();
    }
    let cmp = &options.cf.comparator;
    sorted.sort_by(|a, b| cmp.compare(&a.0, &b.0)); // stable: among equal keys, the last one read stays last
    for (i, (key, value)) in sorted.iter().enumerate() {
        let last = sorted.get(i + 1).is_none_or(|next| cmp.compare(key, &next.0).is_ne());
        if last {
            writer.put(key, value)?;
        }
    }
    bar.finish_and_clear();
    let info = writer.finish_with_info().map_err(|e| match e.kind() {
        rockmill::ErrorKind::InvalidArgument => CliError::data(format!("nothing to write: {}", e.message())),
        _ => e.into(),
    })?;
    let seconds = started.elapsed().as_secs_f64();
    if out.json {
        return out.json_object(&json!({
            "table": args.table.display().to_string(),
            "records": info.num_entries,
            "table_bytes": info.file_size,
            "skipped": skipped,
            "smallest_key": output::escape(&info.smallest_key, usize::MAX),
            "largest_key": output::escape(&info.largest_key, usize::MAX),
            "seconds": output::round(seconds, 6),
        }));
    }
    let mut text = format!(
        "wrote {} into {} ({}) in {}",
        output::plural(info.num_entries, "record"),
        args.table.display(),
        output::size(info.file_size),
        output::seconds(seconds),
    );
    if skipped > 0 {
        text.push_str(&format!("; {} left out", output::plural(skipped, "bad line")));
    }
    out.note(text)
}

/// `rockmill ingest`
pub fn run(args: &IngestArgs, family: Option<&str>, out: &mut Out) -> Result<()> {
    for file in &args.files {
        std::fs::metadata(file).map_err(|e| CliError::io(format_args!("cannot open {}", file.display()), &e))?;
    }
    let started = Instant::now();
    let open = OpenToWrite { path: &args.db, args: &args.store, create: args.create, family, fs: None };
    let (db, cf) = open.open()?;
    let mut how = IngestExternalFileOptions::default();
    how.set_move_files(args.move_files);
    how.set_ingest_behind(args.ingest_behind);
    how.set_verify_checksums_before_ingest(args.verify);
    let mine = |files: Vec<LiveFile>| files.into_iter().filter(|f| f.column_family_name == cf.name());
    let before: Vec<String> = mine(db.live_files()?).map(|f| f.name).collect();
    db.ingest_external_file_cf_opts(&cf, &how, args.files.iter().collect()).map_err(|e| {
        let e = CliError::from(e);
        if args.ingest_behind && e.message.contains("allow_ingest_behind") {
            return e.hint("it is an option of the database, from its first day on: --option allow_ingest_behind=true");
        }
        e
    })?;
    // If a compaction has moved one meanwhile, its current place is shown; if a compaction has merged one, nothing is.
    let files: Vec<LiveFile> = mine(db.live_files()?).filter(|f| !before.contains(&f.name)).collect();
    let bytes: u64 = files.iter().map(|f| f.size as u64).sum();
    let seconds = started.elapsed().as_secs_f64();
    if out.json {
        let files: Vec<_> = files
            .iter()
            .map(|f| json!({"name": f.name, "level": f.level, "bytes": f.size, "sequence": f.largest_seqno}))
            .collect();
        return out.json_object(&json!({
            "column_family": cf.name(),
            "ingested": args.files.len(),
            "files": files,
            "last_sequence": db.latest_sequence_number(),
            "seconds": output::round(seconds, 6),
        }));
    }
    let mut levels: Vec<i32> = files.iter().map(|f| f.level).collect();
    levels.sort_unstable();
    levels.dedup();
    let levels: Vec<String> = levels.iter().map(|l| format!("L{l}")).collect();
    out.note(format!(
        "ingested {} ({}) into {} of column family {} in {}",
        output::plural(args.files.len() as u64, "table"),
        output::size(bytes),
        levels.join(", "),
        cf.name(),
        output::seconds(seconds),
    ))
}
