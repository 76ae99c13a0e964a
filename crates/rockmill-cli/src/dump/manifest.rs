//! MANIFESTs: each version edit.

use rockmill::internals::LogSource;
use rockmill_format::edit::{FileEntry, TablePiece, VersionEdit};
use rockmill_format::log::{DamageKind, LogEvent, LogReader};
use serde_json::{Map, Value, json};

use super::{Dump, NO_NUMBER, format_error, key_json};
use crate::error::{CliError, Result};
use crate::output::{self, JsonList, Out};

/// Shows the MANIFEST.
pub fn run(dump: &mut Dump<'_>, out: &mut Out) -> Result<()> {
    let shown = dump.path.display();
    let io = |e| CliError::io(format_args!("cannot read {shown}"), &e);
    let mut reader = LogReader::new(LogSource::new(dump.fs.open_sequential(dump.path).map_err(io)?), NO_NUMBER)
        .without_space_ahead();
    let mut record = Vec::new();
    let mut list = if out.json { Some(JsonList::open(out, &dump.head("manifest"), "edits")?) } else { None };
    let mut edits = 0u64;
    loop {
        let (offset, error) = match reader.next_record(&mut record).map_err(io)? {
            LogEvent::Record { offset } => {
                if !dump.take() {
                    break;
                }
                edits += 1;
                match VersionEdit::decode(&record) {
                    Ok(edit) => {
                        match &mut list {
                            Some(list) => list.item(out, &edit_json(offset, &edit))?,
                            None => edit_text(dump, out, offset, &edit)?,
                        }
                        continue;
                    }
                    Err(e) => (offset, format_error(dump.path, &e).message),
                }
            }
            // Left by a crash during the write of an edit; nothing depends on that edit.
            LogEvent::Damage { kind: DamageKind::CutTail, error, .. } => {
                match &mut list {
                    Some(list) => list.item(out, &json!({ "damage": "CutTail", "message": error.to_string() }))?,
                    None => out.line(format!("end: {error}"))?,
                }
                continue;
            }
            LogEvent::Damage { error, .. } => (reader.offset(), error.to_string()),
            LogEvent::End { .. } => break,
        };
        dump.damage += 1;
        match &mut list {
            Some(list) => list.item(out, &json!({ "offset": offset, "error": error }))?,
            None => out.line(format!("offset {offset}: DAMAGED: {error}"))?,
        }
    }
    match list {
        Some(list) => {
            let mut tail = Map::new();
            tail.insert("count".into(), edits.into());
            list.close(out, &tail)
        }
        None => out.note(format!("{} edits", output::count(edits))),
    }
}

/// The edit's simple fields, in the order of interest.
fn fields(edit: &VersionEdit) -> Vec<(&'static str, Value)> {
    let mut all: Vec<(&'static str, Value)> = Vec::new();
    let mut add = |name, value: Option<Value>| all.extend(value.map(|v| (name, v)));
    add("column_family", (edit.column_family != 0).then(|| edit.column_family.into()));
    add("column_family_add", edit.column_family_add.as_deref().map(Value::from));
    add("column_family_drop", edit.column_family_drop.then(|| true.into()));
    add("db_id", edit.db_id.as_deref().map(Value::from));
    add("comparator", edit.comparator.as_deref().map(Value::from));
    add("log_number", edit.log_number.map(Value::from));
    add("prev_log_number", edit.prev_log_number.map(Value::from));
    add("next_file_number", edit.next_file_number.map(Value::from));
    add("last_sequence", edit.last_sequence.map(Value::from));
    add("min_log_number_to_keep", edit.min_log_number_to_keep.map(Value::from));
    add("max_column_family", edit.max_column_family.map(Value::from));
    add("remaining_in_atomic_group", edit.remaining_in_group.map(Value::from));
    add("wal_deletions_below", edit.wal_deletions.map(Value::from));
    add("persist_user_defined_timestamps", edit.persist_user_defined_timestamps.map(Value::from));
    add("full_history_ts_low", edit.full_history_ts_low.as_deref().map(|b| output::hex(b).into()));
    add("blob_files", edit.has_blob_files.then(|| true.into()));
    add("subcompaction_progress", edit.has_subcompaction_progress.then(|| true.into()));
    add("last_compacted_manifest_file_size", edit.last_compacted_manifest_file_size.map(Value::from));
    all
}

/// A file's fields other than number, size, keys and sequence numbers; default values are omitted.
fn file_fields(f: &FileEntry) -> Vec<(&'static str, Value)> {
    let mut all: Vec<(&'static str, Value)> = Vec::new();
    let mut add = |name, value: Value, set: bool| all.extend(set.then_some((name, value)));
    add("epoch_number", f.epoch_number.into(), f.epoch_number != 0);
    add("oldest_ancester_time", f.oldest_ancester_time.into(), f.oldest_ancester_time != 0);
    add("file_creation_time", f.file_creation_time.into(), f.file_creation_time != 0);
    add("marked_for_compaction", true.into(), f.marked_for_compaction);
    add("path_id", f.path_id.into(), f.path_id != 0);
    add("oldest_blob_file_number", f.oldest_blob_file_number.into(), f.oldest_blob_file_number != 0);
    add("file_checksum", output::hex(&f.file_checksum).into(), !f.file_checksum.is_empty());
    add("file_checksum_func_name", f.file_checksum_func_name.as_str().into(), !f.file_checksum_func_name.is_empty());
    let id = format!("{:016x}{:016x}", f.unique_id[0], f.unique_id[1]);
    add("unique_id", id.into(), f.unique_id != [0, 0]);
    add("tail_size", f.tail_size.into(), f.tail_size != 0);
    let range_size = f.compensated_range_deletion_size;
    add("compensated_range_deletion_size", range_size.into(), range_size != 0);
    add("temperature", f.temperature.into(), f.temperature != 0);
    add("user_defined_timestamps_persisted", false.into(), !f.user_defined_timestamps_persisted);
    add("extra_run", f.extra_run.into(), f.extra_run != 0);
    let piece = |p: &TablePiece| json!({ "number": p.number, "size": p.size, "live": p.live });
    let pieces: Vec<Value> = f.pieces.iter().map(piece).collect();
    add("pieces", pieces.into(), !f.pieces.is_empty());
    all
}

fn edit_text(dump: &Dump<'_>, out: &mut Out, offset: u64, edit: &VersionEdit) -> Result<()> {
    out.line(format!("offset {offset}:"))?;
    for (name, value) in fields(edit) {
        match value.as_str() {
            Some(text) => out.line(format!("  {name} {text}"))?,
            None => out.line(format!("  {name} {value}"))?,
        }
    }
    for (number, size) in &edit.wal_additions {
        let size = size.map_or_else(String::new, |s| format!(", {s} bytes synced"));
        out.line(format!("  wal {number}{size}"))?;
    }
    for (level, number) in &edit.deleted_files {
        out.line(format!("  delete L{level} {number:06}.sst"))?;
    }
    for (level, f) in &edit.new_files {
        out.line(format!(
            "  add    L{level} {:06}.sst  {} bytes, sequence {}..{}",
            f.number, f.size, f.smallest_seqno, f.largest_seqno
        ))?;
        out.line(format!("    from {}", dump.show_key(f.smallest.as_bytes())))?;
        out.line(format!("    to   {}", dump.show_key(f.largest.as_bytes())))?;
        let rest: Vec<String> = file_fields(f)
            .iter()
            .map(|(name, v)| v.as_str().map_or_else(|| format!("{name} {v}"), |s| format!("{name} {s}")))
            .collect();
        if !rest.is_empty() {
            out.line(format!("    {}", rest.join(", ")))?;
        }
    }
    for (level, key) in &edit.compact_cursors {
        out.line(format!("  compaction cursor L{level} {}", dump.show_key(key.as_bytes())))?;
    }
    Ok(())
}

fn edit_json(offset: u64, edit: &VersionEdit) -> Value {
    let mut map = Map::new();
    map.insert("offset".into(), offset.into());
    for (name, value) in fields(edit) {
        map.insert(name.into(), value);
    }
    let list = |v: Vec<Value>| Value::from(v);
    if !edit.wal_additions.is_empty() {
        let wals = edit.wal_additions.iter().map(|(n, s)| json!({ "number": n, "synced_size": s })).collect();
        map.insert("wal_additions".into(), list(wals));
    }
    if !edit.deleted_files.is_empty() {
        let files = edit.deleted_files.iter().map(|(l, n)| json!({ "level": l, "number": n })).collect();
        map.insert("deleted_files".into(), list(files));
    }
    if !edit.new_files.is_empty() {
        let files = edit.new_files.iter().map(|(l, f)| file_json(*l, f)).collect();
        map.insert("new_files".into(), list(files));
    }
    if !edit.compact_cursors.is_empty() {
        let cursors = edit
            .compact_cursors
            .iter()
            .map(|(l, k)| {
                let mut m = key_json(k.as_bytes());
                m.insert("level".into(), (*l).into());
                m.into()
            })
            .collect();
        map.insert("compact_cursors".into(), list(cursors));
    }
    map.into()
}

fn file_json(level: u32, f: &FileEntry) -> Value {
    let mut v = json!({
        "level": level,
        "number": f.number,
        "size": f.size,
        "smallest": key_json(f.smallest.as_bytes()),
        "largest": key_json(f.largest.as_bytes()),
        "smallest_seqno": f.smallest_seqno,
        "largest_seqno": f.largest_seqno,
    });
    for (name, value) in file_fields(f) {
        v[name] = value;
    }
    v
}
