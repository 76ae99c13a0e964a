//! Tables: footer, blocks, properties, index, range tombstones and, if asked for, every entry.

use rockmill_format::ParsedInternalKey;
use rockmill_format::footer::BlockHandle;
use serde_json::{Map, Value, json};

use super::table_file::{IndexEntry, RANGE_DELETIONS, TableFile};
use super::{Dump, key_json, tph};
use crate::error::Result;
use crate::output::{self, JsonList, Out};

/// Shows the table.
pub fn run(dump: &mut Dump<'_>, out: &mut Out) -> Result<()> {
    let mut table = TableFile::open(&dump.fs, dump.path)?;
    let properties = table.properties()?;
    let user_keys = properties.index_key_is_user_key != 0;
    let index = table.index()?;
    let tombstones = range_tombstones(&mut table)?;
    if out.json {
        return json_form(dump, out, &mut table, &index, user_keys, &tombstones);
    }
    let f = table.footer;
    out.line(format!("{}: table of {} ({} bytes)", dump.path.display(), output::size(table.size()), table.size()))?;
    out.line("")?;
    out.line("Footer")?;
    out.line(format!("  format_version {}, checksum {:?}", f.format_version, f.checksum))?;
    if f.base_context_checksum != 0 {
        out.line(format!("  base context checksum {:#010x}", f.base_context_checksum))?;
    }
    out.line(format!("  {:<52} offset {:>12}  size {:>10}", "metaindex", f.metaindex.offset, f.metaindex.size))?;
    if let Some(h) = f.index {
        out.line(format!("  {:<52} offset {:>12}  size {:>10}", "index", h.offset, h.size))?;
    }
    out.line("")?;
    out.line("Metaindex")?;
    for (name, h) in &table.metaindex {
        out.line(format!("  {name:<52} offset {:>12}  size {:>10}", h.offset, h.size))?;
    }
    out.line("")?;
    out.line("Properties")?;
    for (name, value) in properties.for_display() {
        out.line(format!("  {name:<52} {value}"))?;
    }
    tph::text(dump, out, &table)?;
    out.line("")?;
    out.line(format!("Index: {} data blocks", output::count(index.len() as u64)))?;
    let mut partition = None;
    let shown = usize::try_from(dump.left).unwrap_or(usize::MAX);
    for (i, e) in index.iter().enumerate().take(shown) {
        if e.partition != partition {
            partition = e.partition;
            if let Some(p) = partition {
                out.line(format!("  partition at offset {}, size {}", p.offset, p.size))?;
            }
        }
        let key = if user_keys { dump.show(&e.separator) } else { dump.show_key(&e.separator) };
        out.line(format!("  {i:>6}  offset {:>12}  size {:>10}  up to {key}", e.handle.offset, e.handle.size))?;
    }
    if shown < index.len() {
        out.line(format!("  ... and {} more", output::count((index.len() - shown) as u64)))?;
    }
    if !tombstones.is_empty() {
        out.line("")?;
        out.line(format!("Range deletions: {}", tombstones.len()))?;
        for (begin, end) in &tombstones {
            out.line(format!("  {} up to {}", dump.show_key(begin), dump.show(end)))?;
        }
    }
    if dump.args.entries {
        out.line("")?;
        out.line("Entries")?;
        for e in &index {
            if dump.left == 0 {
                break;
            }
            entries_text(dump, out, &mut table, e.handle)?;
        }
    }
    Ok(())
}

/// Range tombstones as stored: (internal key of the begin, end).
fn range_tombstones(table: &mut TableFile) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let Some(handle) = table.find(RANGE_DELETIONS) else { return Ok(Vec::new()) };
    let kind = table.data_kind()?;
    let block = table.block(handle, false)?;
    table.whole(handle, &block)?;
    let mut all = Vec::new();
    table.each(handle, &block.data, kind, |key, value, _| {
        all.push((key.to_vec(), value.to_vec()));
        Ok(true)
    })?;
    Ok(all)
}

fn entries_text(dump: &mut Dump<'_>, out: &mut Out, table: &mut TableFile, handle: BlockHandle) -> Result<()> {
    let kind = table.data_kind()?;
    let read = table.block(handle, true).and_then(|block| {
        out.line(format!("  block at offset {}, {} bytes, {}", handle.offset, block.data.len(), block.compression))?;
        if let Some(damage) = &block.damage {
            dump.damage += 1;
            out.line(format!("  DAMAGED: {damage}"))?;
        }
        table.each(handle, &block.data, kind, |key, value, _| {
            if !dump.take() {
                return Ok(false);
            }
            out.line(format!("    {} => {}", dump.show_key(key), dump.show(value)))?;
            Ok(true)
        })
    });
    match read {
        // The next block may be sound.
        Err(e) if e.kind == "Corruption" => {
            dump.damage += 1;
            out.line(format!("  DAMAGED: {}", e.message))
        }
        other => other,
    }
}

fn json_form(
    dump: &mut Dump<'_>,
    out: &mut Out,
    table: &mut TableFile,
    index: &[IndexEntry],
    user_keys: bool,
    tombstones: &[(Vec<u8>, Vec<u8>)],
) -> Result<()> {
    let f = table.footer;
    let block = |h: BlockHandle| json!({ "offset": h.offset, "size": h.size });
    let mut head = dump.head("sst");
    head.insert("size".into(), table.size().into());
    head.insert(
        "footer".into(),
        json!({
            "format_version": f.format_version,
            "checksum": format!("{:?}", f.checksum),
            "base_context_checksum": f.base_context_checksum,
            "metaindex": block(f.metaindex),
            "index": f.index.map(block),
        }),
    );
    let metaindex: Map<String, Value> = table.metaindex.iter().map(|(n, h)| (n.clone(), block(*h))).collect();
    head.insert("metaindex".into(), metaindex.into());
    let properties: Map<String, Value> =
        table.properties()?.for_display().into_iter().map(|(n, v)| (n, v.into())).collect();
    head.insert("properties".into(), properties.into());
    if let Some(tph) = tph::json_form(dump, table)? {
        head.insert("tph".into(), tph);
    }
    let entries: Vec<Value> = index
        .iter()
        .map(|e| {
            let mut map = Map::new();
            let key = if user_keys {
                &e.separator[..]
            } else {
                ParsedInternalKey::parse(&e.separator).map_or(&e.separator[..], |k| k.user_key)
            };
            output::put_bytes(&mut map, "separator", key);
            map.insert("offset".into(), e.handle.offset.into());
            map.insert("size".into(), e.handle.size.into());
            if let Some(p) = e.partition {
                map.insert("partition".into(), p.offset.into());
            }
            map.into()
        })
        .collect();
    head.insert("index".into(), entries.into());
    let tombstones: Vec<Value> = tombstones
        .iter()
        .map(|(begin, end)| {
            let mut map = key_json(begin);
            output::put_bytes(&mut map, "end", end);
            map.into()
        })
        .collect();
    head.insert("range_deletions".into(), tombstones.into());
    if !dump.args.entries {
        return out.json_object(&head.into());
    }
    let mut list = JsonList::open(out, &head, "entries")?;
    let mut damage = Vec::new();
    let kind = table.data_kind()?;
    for e in index {
        if dump.left == 0 {
            break;
        }
        let read = table.block(e.handle, true).and_then(|block| {
            if let Some(what) = &block.damage {
                damage.push(json!({ "offset": e.handle.offset, "message": what }));
            }
            table.each(e.handle, &block.data, kind, |key, value, _| {
                if !dump.take() {
                    return Ok(false);
                }
                let mut map = key_json(key);
                output::put_bytes(&mut map, "value", value);
                map.insert("block".into(), e.handle.offset.into());
                list.item(out, &map.into())?;
                Ok(true)
            })
        });
        match read {
            Err(e2) if e2.kind == "Corruption" => {
                damage.push(json!({ "offset": e.handle.offset, "message": e2.message }));
            }
            other => other?,
        }
    }
    dump.damage += damage.len() as u64;
    let mut tail = Map::new();
    tail.insert("damage".into(), damage.into());
    list.close(out, &tail)
}
