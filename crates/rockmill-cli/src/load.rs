//! `rockmill load`: loads records from files into a database, in batches.
//!
//! 1. Check the flags, find each file's format, and open the database (creating it if it is missing).
//! 2. Read records into a batch; write the batch when it is full. A batch is written completely or not at all.
//! 3. After each batch: acknowledge it (`--ack`), move the progress bar.
//! 4. At the end, without a WAL, flush, so that what the summary reports is durable.

use std::path::PathBuf;
use std::time::Instant;

use indicatif::ProgressBar;
use rockmill::{ColumnFamily, Db, WriteBatch, WriteOptions};
use serde_json::json;

use crate::args::{FormatArg, LoadArgs, Switch};
use crate::error::{CliError, Result};
use crate::input::{self, Record, Settings, Source, Step};
use crate::interrupt;
use crate::output::{self, Out};
use crate::progress;
use crate::store::{self, OpenToWrite};

/// Bytes at which a batch of large records ends, to bound memory.
const BATCH_BYTES_MAX: usize = 8 << 20;

/// Number of bad lines that `--skip-bad` reports individually; further ones are only counted.
const BAD_SHOWN_MAX: u64 = 10;

struct Loader<'a> {
    args: &'a LoadArgs,
    out: &'a mut Out,
    db: &'a Db,
    cf: ColumnFamily,
    options: WriteOptions,
    bar: ProgressBar,
    batch: WriteBatch,
    /// Records written.
    records: u64,
    /// Bytes of their keys and values.
    record_bytes: u64,
    /// The same of the present batch.
    batch_bytes: u64,
    skipped: u64,
    /// Bytes of the files that are finished.
    input_bytes: u64,
    lines: u64,
}

/// `rockmill load`
pub fn run(args: &LoadArgs, family: Option<&str>, out: &mut Out) -> Result<()> {
    let total = total_bytes(&args.files)?;
    let formats: Vec<FormatArg> =
        args.files.iter().map(|f| input::format_of(f, args.input.format)).collect::<Result<_>>()?;
    let settings = Settings::new(&args.input, &formats)?;
    let options = store::durability(args.durability)?;

    let started = Instant::now();
    let open = OpenToWrite { path: &args.db, args: &args.store, create: true, family, fs: None };
    let (db, cf) = open.open()?;
    let mut loader = Loader {
        args,
        out,
        db: &db,
        cf,
        options,
        bar: progress::bytes("load", total, false),
        batch: WriteBatch::new(),
        records: 0,
        record_bytes: 0,
        batch_bytes: 0,
        skipped: 0,
        input_bytes: 0,
        lines: 0,
    };
    if loader.out.quiet {
        loader.bar = ProgressBar::hidden();
    }
    let mut done = Ok(());
    for (file, format) in args.files.iter().zip(formats) {
        done = Source::open(file, format, &settings, loader.lines).and_then(|s| loader.load(s));
        if done.is_err() {
            break;
        }
    }
    let done = done.and_then(|()| loader.finish());
    loader.bar.finish_and_clear();
    let records = loader.records;
    done.map_err(|e| {
        let e = if e.broken_pipe { e.unread() } else { e };
        if records == 0 {
            return e;
        }
        let (were, them) = if records == 1 { ("was", "it") } else { ("were", "them") };
        let count = output::plural(records, "record");
        let written = format!("{count} {were} written before this; loading {them} again is safe");
        let hint = e.hint.as_ref().map_or_else(|| written.clone(), |h| format!("{h}; {written}"));
        e.hint(hint)
    })?;
    let seconds = started.elapsed().as_secs_f64();
    loader.report(seconds)
}

/// Total bytes of all files, unless one has no length. Missing files are detected here, before anything is written.
pub fn total_bytes(files: &[PathBuf]) -> Result<Option<u64>> {
    let mut total = Some(0u64);
    for file in files {
        if file.as_os_str() == "-" {
            total = None;
            continue;
        }
        let meta =
            std::fs::metadata(file).map_err(|e| CliError::io(format_args!("cannot open {}", file.display()), &e))?;
        if meta.is_dir() {
            return Err(CliError::usage(format!("{}: is a directory, not a file to load", file.display())));
        }
        total = if meta.is_file() { total.map(|t| t + meta.len()) } else { None };
    }
    Ok(total)
}

impl Loader<'_> {
    fn load(&mut self, mut source: Source) -> Result<()> {
        let mut record = Record::default();
        loop {
            match source.next(&mut record)? {
                Step::Record => {
                    self.batch.put_cf(&self.cf, &record.key, &record.value);
                    self.batch_bytes += (record.key.len() + record.value.len()) as u64;
                    if self.batch.len() as u64 >= self.args.batch || self.batch.size_in_bytes() >= BATCH_BYTES_MAX {
                        self.commit()?;
                        self.show(&source);
                    }
                }
                Step::Bad(why) => self.bad(&source, &why)?,
                Step::End => break,
            }
        }
        self.show(&source);
        self.input_bytes += source.bytes();
        self.lines += source.line();
        Ok(())
    }

    /// Writes the batch. A crash loses at most this one batch, and only as a whole.
    fn commit(&mut self) -> Result<()> {
        if self.batch.is_empty() {
            return Ok(());
        }
        self.db.write_opt(&self.batch, &self.options)?;
        self.records += self.batch.len() as u64;
        interrupt::note_records(self.records);
        self.record_bytes += self.batch_bytes;
        self.batch_bytes = 0;
        self.batch.clear();
        if self.args.ack {
            self.out.line(format!("acked {}", self.records))?;
            self.out.flush()?;
        }
        Ok(())
    }

    fn show(&self, source: &Source) {
        if !self.bar.is_hidden() {
            self.bar.set_position(self.input_bytes + source.bytes());
            self.bar.set_message(output::plural(self.records, "record"));
        }
    }

    fn bad(&mut self, source: &Source, why: &str) -> Result<()> {
        let place = format!("{}:{}", source.name(), source.line());
        if !self.args.input.skip_bad {
            return Err(CliError::data(format!("{place}: {why}")).hint("--skip-bad leaves such lines out"));
        }
        self.skipped += 1;
        if self.skipped <= BAD_SHOWN_MAX && !self.out.quiet {
            self.bar.suspend(|| output::tell(&format!("warning: {place}: {why}; left out")));
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        self.commit()?;
        if self.args.durability.wal == Switch::Off {
            self.bar.set_message("flushing");
            self.db.flush_cf(&self.cf)?;
        }
        Ok(())
    }

    fn report(self, seconds: f64) -> Result<()> {
        let rate = self.records as f64 / seconds.max(1e-9);
        let byte_rate = self.record_bytes as f64 / seconds.max(1e-9);
        let stats = self.db.counters();
        let stalled = |name| self.db.property_int_value(name).map(|v| v.unwrap_or(0) as f64 / 1e6);
        let delayed = stalled("rockmill.stall-delayed-micros")?;
        let stopped = stalled("rockmill.stall-stopped-micros")?;
        let written = stats.flush_bytes + stats.compact_write_bytes + stats.wal_bytes;
        let amplification = if self.record_bytes == 0 { 0.0 } else { written as f64 / self.record_bytes as f64 };
        if self.out.json {
            return self.out.json_object(&json!({
                "records": self.records,
                "bytes": self.record_bytes,
                "input_bytes": self.input_bytes,
                "skipped": self.skipped,
                "seconds": output::round(seconds, 6),
                "records_per_second": output::round(rate, 1),
                "bytes_per_second": output::round(byte_rate, 1),
                "write_amplification": output::round(amplification, 3),
                "delayed_seconds": output::round(delayed, 6),
                "stopped_seconds": output::round(stopped, 6),
            }));
        }
        let mut text = format!(
            "loaded {} ({}) in {}: {} records/s, {}/s",
            output::plural(self.records, "record"),
            output::size(self.record_bytes),
            output::seconds(seconds),
            output::count(rate as u64),
            output::size(byte_rate as u64),
        );
        if self.skipped > 0 {
            text.push_str(&format!("; {} left out", output::plural(self.skipped, "bad line")));
        }
        if delayed + stopped >= 0.01 {
            text.push_str(&format!("; writers waited {}", output::seconds(delayed + stopped)));
        }
        self.out.note(text)
    }
}
