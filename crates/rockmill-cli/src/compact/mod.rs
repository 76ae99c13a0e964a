//! `rockmill compact`: manual compaction, measured, or only explained.

mod explain;

use std::sync::Arc;
use std::time::Instant;

use indicatif::ProgressBar;
use rockmill::internals::compact_range_since_open;
use rockmill::properties;
use rockmill::{BottommostLevelCompaction, ColumnFamily, CompactOptions, Db, LevelStats};
use rockmill_io::{CountingFileSystem, PosixFileSystem};
use serde_json::{Map, Value, json};

use crate::args::{BottommostArg, CompactArgs};
use crate::cpu;
use crate::error::Result;
use crate::output::{self, Out};
use crate::progress;
use crate::stats::{self, LevelRow};
use crate::store::{self, Manner, OpenToWrite};

/// What the store has counted since it was opened.
#[derive(Clone, Copy)]
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
}

/// `rockmill compact`
pub fn run(args: &CompactArgs, family: Option<&str>, out: &mut Out) -> Result<()> {
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
    let (db, cf) = open.open_as(Manner { reproducible: args.reproducible, ..Manner::default() })?;

    // What the WAL left in memory is part of what is compacted, and of the levels that are shown.
    db.flush_cf(&cf)?;
    let before = levels(&db, &cf);
    let (io, cpu, started) = (fs.counts(), cpu::process_seconds(), Instant::now());
    let bar = progress::bytes("compact", Some(before.iter().map(|l| l.bytes).sum()), out.quiet);
    let show = |bar: &ProgressBar| {
        let now = fs.counts() - io;
        // Data that moves down level by level is read more than once.
        bar.set_length(bar.length().unwrap_or(0).max(now.read_bytes));
        bar.set_position(now.read_bytes);
        bar.set_message(format!("{} written", output::size(now.write_bytes)));
    };
    progress::beside(&bar, show, || compact_range_since_open(&db, &cf, from.as_deref(), to.as_deref(), &options))?;
    let wall = started.elapsed().as_secs_f64();
    let cpu = cpu::process_seconds() - cpu;
    // Since the opening: automatic compactions that began with it have done a part of the work.
    let counts = Counts::of(&db);
    let io = fs.counts() - io;
    let after = levels(&db, &cf);

    let options = db.get_db_options();
    let engine = db.property_value(properties::MERGE_ENGINE)?.unwrap_or_default();
    // The reason is for people; `--json` has it apart.
    let (engine, why) = engine.split_once(", ").unwrap_or((&engine, ""));
    if out.json {
        let calls: Map<String, Value> = io.iter().map(|(name, n)| (name.to_owned(), Value::from(n))).collect();
        return out.json_object(&json!({
            "column_family": cf.name(),
            "engine": engine,
            "engine_note": why,
            "threads": options.max_subcompactions,
            "input_bytes": counts.read,
            "output_bytes": counts.written,
            "wall_seconds": output::round(wall, 6),
            "cpu_seconds": output::round(cpu, 6),
            "syscalls": io.calls(),
            "io": calls,
            "jobs": counts.compactions + counts.moves,
            "trivial_moves": counts.moves,
            "levels_before": stats::levels_json(&before),
            "levels_after": stats::levels_json(&after),
        }));
    }
    if counts.compactions + counts.moves == 0 {
        return out.note("nothing to compact");
    }
    out.note(format!(
        "compacted {} into {} in {} ({} of CPU, {} system calls, {}{})",
        output::size(counts.read),
        output::size(counts.written),
        output::seconds(wall),
        output::seconds(cpu),
        output::count(io.calls()),
        output::plural(counts.compactions + counts.moves, "job"),
        if counts.moves == 0 { String::new() } else { format!(", of them {} moved without a copy", counts.moves) },
    ))?;
    out.note(format!("engine: {engine}{}{why}", if why.is_empty() { "" } else { ", " }))?;
    out.note(format!("before: {}", in_words(&before)))?;
    out.note(format!("after:  {}", in_words(&after)))
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
