//! `rockmill compact --explain`: the plan of the first jobs, for people and as JSON. Nothing is done and no block of
//! data is read.

use rockmill::internals::{
    Compaction, CompactionExplanation, ExplainedJob, ExplainedWork, FileRanges, MapFile, Part, SpecFile, SpecRun,
    SstMap, explain_compact_range_cf_opt,
};
use rockmill::{CompactOptions, MergeEngine, properties};
use rockmill_format::filename;
use serde_json::{Map, Value, json};

use crate::args::{CompactArgs, ExplainArg};
use crate::error::Result;
use crate::output::{self, Out};
use crate::store::{Manner, OpenToWrite};

/// Tables of a run that text shows; JSON has all.
const FILES_SHOWN: usize = 16;
/// Bytes of a key that text shows.
const KEY_SHOWN: usize = 32;

/// Prints what `compact` would do.
pub fn run(
    args: &CompactArgs,
    how: ExplainArg,
    range: (Option<&[u8]>, Option<&[u8]>),
    options: &CompactOptions,
    family: Option<&str>,
    out: &mut Out,
) -> Result<()> {
    let open = OpenToWrite { path: &args.db, args: &args.store, create: false, family, fs: None };
    let (db, cf) = open.open_as(Manner { read_only: true, ..Manner::default() })?;
    let plan = explain_compact_range_cf_opt(&db, &cf, range.0, range.1, options)?;
    let engine = db.get_db_options().merge_engine;
    let engine_note = db.property_value(properties::MERGE_ENGINE)?.unwrap_or_default();
    let blocks = how == ExplainArg::Blocks;
    if out.json {
        return out.json_object(&json!({
            "column_family": cf.name(),
            "engine": engine.name(),
            "unflushed_entries": plan.unflushed_entries,
            "jobs": plan.jobs.iter().map(|j| job_json(j, blocks)).collect::<Vec<_>>(),
            "later_steps": plan.later.iter().map(|l| json!({
                "level": l.level, "output_level": l.output_level, "files": l.files, "bytes": l.bytes,
            })).collect::<Vec<_>>(),
        }));
    }
    print(&plan, engine, &engine_note, blocks, out)
}

fn print(plan: &CompactionExplanation, engine: MergeEngine, note: &str, blocks: bool, out: &mut Out) -> Result<()> {
    if plan.unflushed_entries > 0 {
        out.line(format!(
            "first: {} in memtables are flushed into L0 and join the jobs below",
            output::plural(plan.unflushed_entries, "entry")
        ))?;
    }
    if plan.jobs.is_empty() && plan.unflushed_entries == 0 {
        return out.line("nothing to compact");
    }
    for (i, job) in plan.jobs.iter().enumerate() {
        let c = &job.compaction;
        out.line(format!(
            "job {} of {}: L{} into L{}, {} of {}",
            i + 1,
            plan.jobs.len(),
            c.start_level(),
            c.output_level,
            output::plural(c.input_files().count() as u64, "table"),
            output::size(c.input_bytes()),
        ))?;
        match &job.work {
            None => out.line("  the tables move as they are: one edit of the MANIFEST, nothing is read")?,
            Some(work) => print_work(work, blocks, out)?,
        }
    }
    for l in &plan.later {
        let what = if l.level == l.output_level {
            "rewritten in place".to_owned()
        } else {
            format!("into L{}", l.output_level)
        };
        out.line(format!(
            "then: L{} {what}; {} of {} are there now, planned when the jobs above are done",
            l.level,
            output::plural(l.files as u64, "table"),
            output::size(l.bytes)
        ))?;
    }
    // The engine has done no work yet, so only the reason for not using one is shown.
    let why = note.split_once(", ").map_or(String::new(), |(_, why)| format!(", {why}"));
    out.line(format!("engine: {}{why}", engine.name()))
}

fn print_work(work: &ExplainedWork, blocks: bool, out: &mut Out) -> Result<()> {
    let plan = &work.plan;
    for (i, run) in plan.runs.iter().enumerate() {
        print_run(work, i, run, out)?;
    }
    for file in &work.covered {
        out.line(format!(
            "  not read: {} {}: newer range tombstones delete all of it",
            name_of(file),
            output::size(file.size())
        ))?;
    }
    for (i, (part, map)) in plan.parts.iter().zip(&work.maps).enumerate() {
        out.line(format!(
            "  part {} of {}: keys {}: {} of {}",
            i + 1,
            plan.parts.len(),
            bounds(part),
            output::plural(map.blocks(), "block"),
            output::size(map.bytes())
        ))?;
        if blocks {
            for (run, of_run) in map.runs.iter().enumerate() {
                for file in &of_run.files {
                    for b in &file.blocks {
                        out.line(format!(
                            "    run {} {} at {}: {} bytes",
                            run + 1,
                            name_of(&file.file),
                            b.offset,
                            b.size
                        ))?;
                    }
                }
            }
        }
    }
    let rules = &plan.rules;
    let mut said = vec![
        format!("keys by {}", rules.cmp.user_comparator().name()),
        match rules.snapshots.len() {
            0 => "no snapshot".to_owned(),
            n => output::plural(n as u64, "snapshot"),
        },
        match (rules.bottommost, &rules.below) {
            (true, _) => "nothing below: tombstones go, sequence numbers become 0".to_owned(),
            (false, None) => "older data may be anywhere: tombstones stay".to_owned(),
            (false, Some(below)) => {
                let files = below.iter().map(FileRanges::len).sum::<usize>() as u64;
                format!("{} below overlap: tombstones of their keys stay", output::plural(files, "table"))
            }
        },
    ];
    if work.tables_with_tombstones > 0 {
        let n = output::plural(work.tables_with_tombstones as u64, "table");
        said.push(format!("range tombstones from {n}"));
    }
    if let Some(m) = &rules.merge_operator {
        said.push(format!("merge operator {}", m.name()));
    }
    if rules.filter.is_some() {
        said.push("a compaction filter".to_owned());
    }
    out.line(format!("  rules: {}", said.join("; ")))?;
    let o = &plan.output;
    let mut said = vec![
        format!("L{}", o.level),
        format!("tables of {}, {} at most", limit(o.file_size_target), limit(o.file_size_max)),
        format!("compression {:?}", o.compression).to_lowercase(),
    ];
    if !o.grandparents.is_empty() {
        said.push(format!(
            "boundaries of {} in L{} are followed, {} of them at most under one output",
            output::plural(o.grandparents.len() as u64, "table"),
            o.level + 1,
            limit(o.grandparent_overlap_max)
        ));
    }
    out.line(format!("  output: {}", said.join("; ")))
}

fn print_run(work: &ExplainedWork, index: usize, run: &SpecRun, out: &mut Out) -> Result<()> {
    let bytes: u64 = run.files.iter().map(|f| f.size()).sum();
    out.line(format!(
        "  run {}: L{}, {} of {}{}",
        index + 1,
        run.level,
        output::plural(run.files.len() as u64, "table"),
        output::size(bytes),
        if index == 0 { ", the newest" } else { "" }
    ))?;
    for file in run.files.iter().take(FILES_SHOWN) {
        out.line(format!(
            "    {} {:>9} {:>14}  {} .. {}",
            name_of(file),
            output::size(file.size()),
            output::plural(blocks_of(&work.maps, file), "block"),
            output::escape(file.smallest_user_key(), KEY_SHOWN),
            output::escape(file.largest_user_key(), KEY_SHOWN)
        ))?;
    }
    if run.files.len() > FILES_SHOWN {
        out.line(format!("    and {} more (--json has all)", run.files.len() - FILES_SHOWN))?;
    }
    Ok(())
}

fn name_of(file: &SpecFile) -> String {
    filename::table(file.number())
}

/// Blocks of a table that the parts read; a block read by two parts counts once.
fn blocks_of(maps: &[SstMap], file: &SpecFile) -> u64 {
    let mut last = None;
    let mut count = 0;
    for of_file in maps.iter().flat_map(|m| &m.runs).flat_map(|r| &r.files) {
        if of_file.file.number() == file.number() {
            for b in &of_file.blocks {
                if last.is_none_or(|l| b.offset > l) {
                    count += 1;
                    last = Some(b.offset);
                }
            }
        }
    }
    count
}

/// A size in words; the largest number stands for no limit.
fn limit(bytes: u64) -> String {
    if bytes == u64::MAX { "any size".to_owned() } else { output::size(bytes) }
}

fn bounds(part: &Part) -> String {
    let text =
        |key: &Option<Vec<u8>>, none: &str| key.as_ref().map_or(none.to_owned(), |k| output::escape(k, KEY_SHOWN));
    match (&part.begin, &part.end) {
        (None, None) => "all".to_owned(),
        _ => format!("{} up to {}", text(&part.begin, "the first"), text(&part.end, "the last")),
    }
}

fn job_json(job: &ExplainedJob, blocks: bool) -> Value {
    let c: &Compaction = &job.compaction;
    let mut map = Map::new();
    map.insert("level".into(), c.start_level().into());
    map.insert("output_level".into(), c.output_level.into());
    map.insert("input_files".into(), c.input_files().count().into());
    map.insert("input_bytes".into(), c.input_bytes().into());
    map.insert("trivial_move".into(), c.trivial_move.into());
    if let Some(work) = &job.work {
        let plan = &work.plan;
        let run_json = |run: &SpecRun| {
            let files: Vec<Value> = run.files.iter().map(|f| file_json(f, blocks_of(&work.maps, f))).collect();
            json!({ "level": run.level, "files": files })
        };
        map.insert("runs".into(), plan.runs.iter().map(run_json).collect());
        map.insert("covered".into(), work.covered.iter().map(|f| file_json(f, 0)).collect());
        let part_json = |(part, of_part): (&Part, &SstMap)| {
            let mut map = Map::new();
            for (name, key) in [("begin", &part.begin), ("end", &part.end)] {
                match key {
                    Some(key) => output::put_bytes(&mut map, name, key),
                    None => drop(map.insert(name.into(), Value::Null)),
                }
            }
            map.insert("blocks".into(), of_part.blocks().into());
            map.insert("bytes".into(), of_part.bytes().into());
            if blocks {
                map.insert("map".into(), map_json(of_part));
            }
            Value::Object(map)
        };
        map.insert("parts".into(), plan.parts.iter().zip(&work.maps).map(part_json).collect());
        let (rules, o) = (&plan.rules, &plan.output);
        map.insert(
            "rules".into(),
            json!({
                "comparator": rules.cmp.user_comparator().name(),
                "snapshots": rules.snapshots,
                "bottommost": rules.bottommost,
                "files_below": rules.below.as_ref().map(|b| b.iter().map(FileRanges::len).sum::<usize>()),
                "tables_with_range_tombstones": work.tables_with_tombstones,
                "merge_operator": rules.merge_operator.as_ref().map(|m| m.name().to_owned()),
                "compaction_filter": rules.filter.is_some(),
            }),
        );
        map.insert(
            "output".into(),
            json!({
                "level": o.level,
                "file_size_target": o.file_size_target,
                "file_size_max": o.file_size_max,
                "compression": format!("{:?}", o.compression).to_lowercase(),
                "grandparents": o.grandparents.len(),
                "grandparent_overlap_max": o.grandparent_overlap_max,
            }),
        );
    }
    Value::Object(map)
}

fn file_json(file: &SpecFile, blocks: u64) -> Value {
    let mut map = Map::new();
    map.insert("file".into(), name_of(file).into());
    map.insert("bytes".into(), file.size().into());
    map.insert("blocks".into(), blocks.into());
    output::put_bytes(&mut map, "smallest", file.smallest_user_key());
    output::put_bytes(&mut map, "largest", file.largest_user_key());
    Value::Object(map)
}

/// Each run's tables with offset and size of every block.
fn map_json(map: &SstMap) -> Value {
    let file = |f: &MapFile| {
        let blocks: Vec<[u64; 2]> = f.blocks.iter().map(|b| [b.offset, b.size]).collect();
        json!({ "file": name_of(&f.file), "blocks": blocks })
    };
    map.runs
        .iter()
        .map(|r| json!({ "level": r.level, "files": r.files.iter().map(file).collect::<Vec<_>>() }))
        .collect()
}
