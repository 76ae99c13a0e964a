//! `rockmill compact`: manual compaction, measured, or only explained.

mod explain;

use std::sync::Arc;
use std::time::Instant;

use indicatif::ProgressBar;
use rockmill::internals::compact_range_since_open;
use rockmill::properties;
use rockmill::{BottommostLevelCompaction, ColumnFamily, CompactOptions, Db, LevelStats};
use rockmill_io::{CountingFileSystem, IoCounts, PosixFileSystem};
use serde_json::{Map, Value, json};

use crate::args::{BottommostArg, CompactArgs};
use crate::cpu;
use crate::error::Result;
use crate::flush::check_all;
use crate::output::{self, Out};
use crate::progress;
use crate::stats::{self, LevelRow};
use crate::store::{self, Manner, OpenToWrite};

/// What the store has counted since it was opened.
#[derive(Clone, Copy, Default)]
struct Counts {
    compactions: u64,
    moves: u64,
    read: u64,
    written: u64,
}

impl Counts {
    fn of(db: &Db) -> Self {
        let s = db.counters();
        Self {
            compactions: s.compactions,
            moves: s.trivial_moves,
            read: s.compact_read_bytes,
            written: s.compact_write_bytes,
        }
    }

    /// What came after another count.
    fn since(self, earlier: Self) -> Self {
        Self {
            compactions: self.compactions - earlier.compactions,
            moves: self.moves - earlier.moves,
            read: self.read - earlier.read,
            written: self.written - earlier.written,
        }
    }
}

/// `rockmill compact`
pub fn run(args: &CompactArgs, family: Option<&str>, out: &mut Out) -> Result<()> {
    check_all(args.all_column_families, family)?;
    let key = |what: &str, arg: &Option<_>| {
        arg.as_ref().map(|a: &std::ffi::OsString| store::bytes_arg(what, a, args.hex)).transpose()
    };
    let (from, to) = (key("--from", &args.from)?, key("--to", &args.to)?);
    let mut options = CompactOptions::default();
    options.set_exclusive_manual_compaction(true);
    options.set_bottommost_level_compaction(match args.bottommost {
        BottommostArg::ForceOptimized => BottommostLevelCompaction::ForceOptimized,
        BottommostArg::Force => BottommostLevelCompaction::Force,
        BottommostArg::Skip => BottommostLevelCompaction::Skip,
    });
    if let Some(how) = args.explain {
        return explain::run(args, how, (from.as_deref(), to.as_deref()), &options, family, out);
    }
    let fs = CountingFileSystem::new(Arc::new(PosixFileSystem::default()));
    let open = OpenToWrite { path: &args.db, args: &args.store, create: false, family, fs: Some(Arc::new(fs.clone())) };
    let all = args.all_column_families;
    let manner = Manner { reproducible: args.reproducible, all_families: all, ..Manner::default() };
    let (db, cf) = open.open_as(manner)?;
    if !all {
        // Counted since the open, because automatic compactions that began then have done a part of the work.
        let done = compact(&db, &cf, &fs, (from.as_deref(), to.as_deref()), &options, Counts::default(), out.quiet)?;
        return if out.json { out.json_object(&done.json()) } else { done.tell(out) };
    }
    let mut reports = Vec::new();
    for cf in &store::all_families(&db) {
        let counted = if reports.is_empty() { Counts::default() } else { Counts::of(&db) };
        let done = compact(&db, cf, &fs, (None, None), &options, counted, out.quiet)?;
        if !out.json {
            out.note(format!("column family {:?}:", cf.name()))?;
            done.tell(out)?;
        }
        reports.push(done.json());
    }
    if out.json { out.json_object(&json!({ "column_families": reports })) } else { Ok(()) }
}

/// The result of compacting a column family.
struct Compacted {
    family: String,
    engine: String,
    threads: u32,
    counts: Counts,
    wall: f64,
    cpu: f64,
    io: IoCounts,
    before: Vec<LevelRow>,
    after: Vec<LevelRow>,
}

/// Compacts a column family; counts up to `counted` do not belong to it.
fn compact(
    db: &Db,
    cf: &ColumnFamily,
    fs: &CountingFileSystem,
    (from, to): (Option<&[u8]>, Option<&[u8]>),
    options: &CompactOptions,
    counted: Counts,
    quiet: bool,
) -> Result<Compacted> {
    // Data recovered from the WAL is also compacted, and part of the displayed levels.
    db.flush_cf(cf)?;
    let before = levels(db, cf);
    let (io, cpu, started) = (fs.counts(), cpu::process_seconds(), Instant::now());
    let bar = progress::bytes("compact", Some(before.iter().map(|l| l.bytes).sum()), quiet);
    let show = |bar: &ProgressBar| {
        let now = fs.counts() - io;
        // Data that moves down level by level is read several times.
        bar.set_length(bar.length().unwrap_or(0).max(now.read_bytes));
        bar.set_position(now.read_bytes);
        bar.set_message(format!("{} written", output::size(now.write_bytes)));
    };
    progress::beside(&bar, show, || compact_range_since_open(db, cf, from, to, options))?;
    Ok(Compacted {
        family: cf.name().to_owned(),
        wall: started.elapsed().as_secs_f64(),
        cpu: cpu::process_seconds() - cpu,
        counts: Counts::of(db).since(counted),
        io: fs.counts() - io,
        after: levels(db, cf),
        before,
        engine: db.property_value(properties::MERGE_ENGINE)?.unwrap_or_default(),
        threads: db.get_db_options().max_subcompactions,
    })
}

impl Compacted {
    /// The engine, and why it was chosen. The reason is for text output; `--json` has a separate field.
    fn engine(&self) -> (&str, &str) {
        self.engine.split_once(", ").unwrap_or((&self.engine, ""))
    }

    fn json(&self) -> Value {
        let calls: Map<String, Value> = self.io.iter().map(|(name, n)| (name.to_owned(), Value::from(n))).collect();
        let (engine, why) = self.engine();
        json!({
            "column_family": self.family,
            "engine": engine,
            "engine_note": why,
            "threads": self.threads,
            "input_bytes": self.counts.read,
            "output_bytes": self.counts.written,
            "wall_seconds": output::round(self.wall, 6),
            "cpu_seconds": output::round(self.cpu, 6),
            "syscalls": self.io.calls(),
            "io": calls,
            "jobs": self.counts.compactions + self.counts.moves,
            "trivial_moves": self.counts.moves,
            "levels_before": stats::levels_json(&self.before),
            "levels_after": stats::levels_json(&self.after),
        })
    }

    fn tell(&self, out: &mut Out) -> Result<()> {
        let Self { counts, before, after, .. } = self;
        if counts.compactions + counts.moves == 0 {
            return out.note("nothing to compact");
        }
        out.note(format!(
            "compacted {} into {} in {} ({} of CPU, {} system calls, {}{})",
            output::size(counts.read),
            output::size(counts.written),
            output::seconds(self.wall),
            output::seconds(self.cpu),
            output::count(self.io.calls()),
            output::plural(counts.compactions + counts.moves, "job"),
            if counts.moves == 0 { String::new() } else { format!(", of them {} moved without a copy", counts.moves) },
        ))?;
        let (engine, why) = self.engine();
        out.note(format!("engine: {engine}{}{why}", if why.is_empty() { "" } else { ", " }))?;
        out.note(format!("before: {}", in_words(before)))?;
        out.note(format!("after:  {}", in_words(after)))
    }
}

fn levels(db: &Db, cf: &ColumnFamily) -> Vec<LevelRow> {
    db.level_stats(cf).iter().map(|l: &LevelStats| LevelRow::new(l, None)).collect()
}

/// `L0 3 files 12.0 MiB, L6 20 files 1.2 GiB`
fn in_words(levels: &[LevelRow]) -> String {
    let used: Vec<String> = levels
        .iter()
        .filter(|l| l.files > 0)
        .map(|l| format!("L{} {} {}", l.level, output::plural(l.files, "file"), output::size(l.bytes)))
        .collect();
    if used.is_empty() { "no tables".to_owned() } else { used.join(", ") }
}
