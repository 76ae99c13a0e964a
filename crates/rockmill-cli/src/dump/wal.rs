//! WALs: each record with the write batch in it.

use rockmill::internals::LogSource;
use rockmill_format::batch::{self, BatchRecord};
use rockmill_format::log::{DamageKind, LogEvent, LogReader};
use serde_json::{Map, Value, json};

use super::Dump;
use crate::error::{CliError, Result};
use crate::output::{self, JsonList, Out};

/// Shows the WAL with this number.
pub fn run(dump: &mut Dump<'_>, number: u64, out: &mut Out) -> Result<()> {
    let shown = dump.path.display();
    let io = |e| CliError::io(format_args!("cannot read {shown}"), &e);
    let mut reader = LogReader::new(LogSource::new(dump.fs.open_sequential(dump.path).map_err(io)?), number);
    let mut record = Vec::new();
    let mut list = if out.json { Some(JsonList::open(out, &dump.head("wal"), "records")?) } else { None };
    let mut records = 0u64;
    loop {
        match reader.next_record(&mut record).map_err(io)? {
            LogEvent::Record { offset } => {
                if !dump.take() {
                    break;
                }
                records += 1;
                match &mut list {
                    Some(list) => list.item(out, &record_json(dump, offset, &record))?,
                    None => record_text(dump, out, offset, &record)?,
                }
            }
            LogEvent::Damage { kind, error, dropped } => {
                // The rest of a reused file, and a truncated last record, are not damage but normal ends of a WAL.
                let end = matches!(kind, DamageKind::CutTail | DamageKind::OldRecord { .. });
                dump.damage += u64::from(!end);
                match &mut list {
                    Some(list) => {
                        let what = format!("{kind:?}");
                        let v = json!({ "damage": what, "message": error.to_string(), "dropped_bytes": dropped });
                        list.item(out, &v)?;
                    }
                    None => {
                        let word = if end { "end" } else { "DAMAGED" };
                        out.line(format!("{word}: {error}; {dropped} bytes passed over"))?;
                    }
                }
            }
            LogEvent::End { .. } => break,
        }
    }
    let recycled = reader.is_recycled();
    match list {
        Some(list) => {
            let mut tail = Map::new();
            tail.insert("count".into(), records.into());
            tail.insert("recycled".into(), recycled.into());
            list.close(out, &tail)
        }
        None => {
            let reused = if recycled { ", reused file" } else { "" };
            out.note(format!("{}{reused}", output::plural(records, "record")))
        }
    }
}

/// The name of a record's type, its column family, and its one or two byte strings.
type Parts<'a> = (&'static str, Option<u32>, Option<&'a [u8]>, Option<(&'static str, &'a [u8])>);

/// Takes a record apart.
fn parts<'a>(r: &BatchRecord<'a>) -> Parts<'a> {
    match *r {
        BatchRecord::Put { cf, key, value } => ("Put", Some(cf), Some(key), Some(("value", value))),
        BatchRecord::Delete { cf, key } => ("Delete", Some(cf), Some(key), None),
        BatchRecord::SingleDelete { cf, key } => ("SingleDelete", Some(cf), Some(key), None),
        BatchRecord::Merge { cf, key, value } => ("Merge", Some(cf), Some(key), Some(("value", value))),
        BatchRecord::DeleteRange { cf, begin, end } => ("DeleteRange", Some(cf), Some(begin), Some(("end", end))),
        BatchRecord::LogData(data) => ("LogData", None, None, Some(("value", data))),
        BatchRecord::Noop => ("Noop", None, None, None),
    }
}

fn record_text(dump: &mut Dump<'_>, out: &mut Out, offset: u64, record: &[u8]) -> Result<()> {
    let (first, batch) = match batch::decode(record) {
        Ok(b) => b,
        Err(e) => {
            dump.damage += 1;
            return out.line(format!("offset {offset}: DAMAGED: {e}"));
        }
    };
    out.line(format!(
        "offset {offset}: sequence {first}, {}, {} bytes",
        output::plural(u64::from(batch.promised()), "update"),
        record.len()
    ))?;
    let mut sequence = first;
    for r in batch {
        match r {
            Ok(r) => {
                let (kind, cf, key, value) = parts(&r);
                let mut line = if r.counts() { format!("  {sequence} {kind}") } else { format!("  - {kind}") };
                if let Some(cf) = cf.filter(|&cf| cf != 0) {
                    line.push_str(&format!(" cf {cf}"));
                }
                if let Some(key) = key {
                    line.push_str(&format!(" {}", dump.show(key)));
                }
                if let Some((name, value)) = value {
                    let arrow = if name == "end" { "up to" } else { "=>" };
                    line.push_str(&format!(" {arrow} {}", dump.show(value)));
                }
                out.line(line)?;
                sequence += u64::from(r.counts());
            }
            Err(e) => {
                dump.damage += 1;
                out.line(format!("  DAMAGED: {e}"))?;
            }
        }
    }
    Ok(())
}

fn record_json(dump: &mut Dump<'_>, offset: u64, record: &[u8]) -> Value {
    let (first, batch) = match batch::decode(record) {
        Ok(b) => b,
        Err(e) => {
            dump.damage += 1;
            return json!({ "offset": offset, "error": e.to_string() });
        }
    };
    let mut updates = Vec::new();
    let mut error = None;
    let mut sequence = first;
    for r in batch {
        match r {
            Ok(r) => {
                let (kind, cf, key, value) = parts(&r);
                let mut map = Map::new();
                map.insert("kind".into(), kind.into());
                if r.counts() {
                    map.insert("sequence".into(), sequence.into());
                    sequence += 1;
                }
                if let Some(cf) = cf {
                    map.insert("column_family".into(), cf.into());
                }
                if let Some(key) = key {
                    output::put_bytes(&mut map, "key", key);
                }
                if let Some((name, value)) = value {
                    output::put_bytes(&mut map, name, value);
                }
                updates.push(Value::from(map));
            }
            Err(e) => {
                dump.damage += 1;
                error = Some(e.to_string());
            }
        }
    }
    let mut v = json!({ "offset": offset, "sequence": first, "bytes": record.len(), "updates": updates });
    if let Some(e) = error {
        v["error"] = e.into();
    }
    v
}
