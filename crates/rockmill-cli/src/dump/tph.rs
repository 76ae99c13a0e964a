//! The head of a TPH table: counts, the function, and the additional files (docs/tph.md).

use rockmill::internals::{OwnFile, TphSummary};
use serde_json::{Map, Value, json};

use super::Dump;
use super::table_file::TableFile;
use crate::error::Result;
use crate::output::{self, Out};

/// The file's contents as a head, or the damage in it, so that the rest can still be shown. `None` if it is not a head.
fn head(dump: &mut Dump<'_>, table: &TableFile) -> Result<Option<std::result::Result<(TphSummary, OwnFile), String>>> {
    match table.tph_head() {
        Ok(own) => Ok(own.and_then(|own| Some(Ok((own.head?, own))))),
        Err(e) if e.kind == "Corruption" => {
            dump.damage += 1;
            Ok(Some(Err(e.message)))
        }
        Err(e) => Err(e),
    }
}

/// For people.
pub fn text(dump: &mut Dump<'_>, out: &mut Out, table: &TableFile) -> Result<()> {
    let Some(head) = head(dump, table)? else { return Ok(()) };
    out.line("")?;
    let (head, own) = match head {
        Ok(head) => head,
        Err(damage) => return out.line(format!("TPH table\n  DAMAGED: {damage}")),
    };
    let files = output::plural(1 + own.pieces.len() as u64, "file");
    let keys = output::plural(head.user_keys, "user key");
    let (entries, blocks) = (output::plural(head.entries, "entry"), output::plural(head.blocks, "data block"));
    out.line(format!("TPH table of {files}: {keys}, {entries}, {blocks}"))?;
    match head.function {
        None => out.line("  no function: lookups search the files")?,
        Some(f) => {
            let (keys, slots, bits) = (output::count(f.keys), output::count(f.slots), f.locator_bits);
            let each = 8.0 * f.bytes as f64 / f.keys.max(1) as f64;
            out.line(format!(
                "  function {} of {keys} keys: {slots} slots, {each:.2} bits a key; locators of {bits} bits",
                f.kind
            ))?;
        }
    }
    for p in &own.pieces {
        let (first, last) = (dump.show(&p.bounds.0), dump.show(&p.bounds.1));
        out.line(format!(
            "  file {:>8}  size {:>12}  in use {:>12}  data blocks {:>8}  from {first} to {last}",
            p.number, p.size, p.live, p.blocks
        ))?;
    }
    for (what, numbers) in lists(&own).into_iter().filter(|(_, numbers)| !numbers.is_empty()) {
        let numbers: Vec<String> = numbers.iter().map(u64::to_string).collect();
        out.line(format!("  {}: {}", what.replace('_', " "), numbers.join(", ")))?;
    }
    Ok(())
}

/// Numbers of obsolete tables.
fn lists(own: &OwnFile) -> [(&'static str, &[u64]); 2] {
    [("replaced", &own.replaced.by_job), ("replaced_before", &own.replaced.before)]
}

/// For programs.
pub fn json_form(dump: &mut Dump<'_>, table: &TableFile) -> Result<Option<Value>> {
    let (head, own) = match head(dump, table)? {
        None => return Ok(None),
        Some(Err(damage)) => return Ok(Some(json!({ "damage": damage }))),
        Some(Ok(head)) => head,
    };
    let files: Vec<Value> = own
        .pieces
        .iter()
        .map(|p| {
            let mut map = Map::new();
            for (name, n) in [("number", p.number), ("size", p.size), ("live", p.live), ("data_blocks", p.blocks)] {
                map.insert(name.into(), n.into());
            }
            output::put_bytes(&mut map, "first", &p.bounds.0);
            output::put_bytes(&mut map, "last", &p.bounds.1);
            map.into()
        })
        .collect();
    let function = head.function.map(|f| {
        json!({ "kind": f.kind, "keys": f.keys, "slots": f.slots, "bytes": f.bytes, "locator_bits": f.locator_bits })
    });
    let mut all = json!({
        "user_keys": head.user_keys,
        "entries": head.entries,
        "own_data_blocks": head.own_blocks,
        "data_blocks": head.blocks,
        "function": function,
        "files": files,
    });
    for (what, numbers) in lists(&own) {
        all[what] = numbers.into();
    }
    Ok(Some(all))
}
