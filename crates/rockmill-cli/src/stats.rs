//! `rockmill stats`: the tree's levels, amplification, memtables, caches, and jobs of the process that has it open.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use comfy_table::modifiers::UTF8_ROUND_CORNERS;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use rockmill::{ColumnFamily, Db, LevelStats};
use rockmill_format::filename;
use rockmill_io::{FileSystem, PosixFileSystem};
use serde_json::{Value, json};

use crate::args::StatsArgs;
use crate::dump::table_file::TableFile;
use crate::error::Result;
use crate::output::{self, Out};
use crate::running;
use crate::store;

/// L0 tables at which RocksDB's default starts a compaction.
const L0_TRIGGER: u64 = 4;

/// A level, as it is printed.
pub struct LevelRow {
    /// 0 is the newest.
    pub level: usize,
    /// Tables.
    pub files: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Bytes that the level should hold.
    pub target: Option<u64>,
    /// A compaction is due at 1.
    pub score: f64,
    /// Bytes that must leave the level.
    pub debt: u64,
    /// Contents, where the tables' properties were read.
    pub contents: Option<Contents>,
    /// Sorted runs above the base run.
    pub extra_runs: u64,
}

/// Sums over tables' properties.
#[derive(Debug, Clone, Copy, Default)]
pub struct Contents {
    entries: u64,
    deletions: u64,
    range_deletions: u64,
    raw_bytes: u64,
    data_bytes: u64,
}

impl LevelRow {
    /// From what the store says.
    pub fn new(l: &LevelStats, contents: Option<Contents>) -> Self {
        let files = l.files as u64;
        let debt = match l.target_bytes {
            _ if l.level == 0 => u64::from(files >= L0_TRIGGER) * l.bytes,
            Some(target) => l.bytes.saturating_sub(target),
            None => 0,
        };
        let extra_runs = l.extra_runs as u64;
        Self {
            level: l.level,
            files,
            bytes: l.bytes,
            target: l.target_bytes,
            score: l.score,
            debt,
            extra_runs,
            contents,
        }
    }
}

/// Levels as JSON.
pub fn levels_json(levels: &[LevelRow]) -> Value {
    let level = |l: &LevelRow| {
        let mut v = json!({
            "level": l.level,
            "files": l.files,
            "bytes": l.bytes,
            "target_bytes": l.target,
            "score": output::round(l.score, 4),
            "debt_bytes": l.debt,
            "extra_runs": l.extra_runs,
        });
        if let Some(c) = l.contents {
            v["entries"] = c.entries.into();
            v["deletions"] = c.deletions.into();
            v["range_deletions"] = c.range_deletions.into();
            v["raw_bytes"] = c.raw_bytes.into();
        }
        v
    };
    levels.iter().map(level).collect()
}

/// Everything shown about one column family.
struct Family {
    name: String,
    id: u32,
    levels: Vec<LevelRow>,
    debt: u64,
    memtable_bytes: u64,
    memtable_entries: u64,
    keys: u64,
}

impl Family {
    fn new(db: &Db, cf: &ColumnFamily, contents: &HashMap<(String, usize), Contents>) -> Result<Self> {
        let int = |name: &str| db.property_int_value_cf(cf, name).map(|v| v.unwrap_or(0));
        let row = |l: &LevelStats| {
            LevelRow::new(l, Some(contents.get(&(cf.name().to_owned(), l.level)).copied().unwrap_or_default()))
        };
        let levels: Vec<LevelRow> = db.level_stats(cf).iter().map(row).collect();
        let memtable_entries =
            int("rocksdb.num-entries-active-mem-table")? + int("rocksdb.num-entries-imm-mem-tables")?;
        let memtable_deletes =
            int("rocksdb.num-deletes-active-mem-table")? + int("rocksdb.num-deletes-imm-mem-tables")?;
        let (entries, deletions) = levels
            .iter()
            .filter_map(|l| l.contents)
            .fold((memtable_entries, memtable_deletes), |(e, d), c| (e + c.entries, d + c.deletions));
        Ok(Self {
            name: cf.name().to_owned(),
            id: cf.id(),
            debt: db.compaction_debt(cf),
            memtable_bytes: int("rocksdb.cur-size-all-mem-tables")?,
            memtable_entries,
            // A deletion is an entry itself and most often hides another.
            keys: entries.saturating_sub(2 * deletions),
            levels,
        })
    }

    fn files(&self) -> u64 {
        self.levels.iter().map(|l| l.files).sum()
    }

    fn bytes(&self) -> u64 {
        self.levels.iter().map(|l| l.bytes).sum()
    }

    /// All tables over those of the deepest level: 1 when nothing lies above it.
    fn space_amplification(&self) -> f64 {
        let deepest = self.levels.iter().rev().find(|l| l.bytes > 0).map_or(0, |l| l.bytes);
        if deepest == 0 { 1.0 } else { self.bytes() as f64 / deepest as f64 }
    }

    /// Sorted runs that a lookup may have to ask.
    fn sorted_runs(&self) -> u64 {
        self.levels.iter().map(|l| if l.level == 0 { l.files } else { u64::from(l.files > 0) + l.extra_runs }).sum()
    }

    fn contents(&self) -> Contents {
        self.levels.iter().filter_map(|l| l.contents).fold(Contents::default(), |a, b| Contents {
            entries: a.entries + b.entries,
            deletions: a.deletions + b.deletions,
            range_deletions: a.range_deletions + b.range_deletions,
            raw_bytes: a.raw_bytes + b.raw_bytes,
            data_bytes: a.data_bytes + b.data_bytes,
        })
    }

    /// Keys and values over the data blocks that hold them.
    fn compression_ratio(&self) -> Option<f64> {
        let c = self.contents();
        (c.data_bytes > 0).then(|| c.raw_bytes as f64 / c.data_bytes as f64)
    }

    fn json(&self) -> Value {
        json!({
            "name": self.name,
            "id": self.id,
            "levels": levels_json(&self.levels),
            "files": self.files(),
            "bytes": self.bytes(),
            "debt_bytes": self.debt,
            "sorted_runs": self.sorted_runs(),
            "space_amplification": output::round(self.space_amplification(), 4),
            "compression_ratio": self.compression_ratio().map(|r| output::round(r, 4)),
            "estimated_keys": self.keys,
            "memtable_bytes": self.memtable_bytes,
            "memtable_entries": self.memtable_entries,
        })
    }
}

/// Sums of tables' properties by column family and level. A table that cannot be read counts nothing here: `verify`
/// is where damage is reported.
fn read_contents(db: &Db, path: &Path) -> Result<HashMap<(String, usize), Contents>> {
    let fs: Arc<dyn FileSystem> = Arc::new(PosixFileSystem::default());
    let mut all: HashMap<(String, usize), Contents> = HashMap::new();
    for file in db.live_files()? {
        let table = path.join(filename::table(file.number));
        let Ok(mut table) = TableFile::open(&fs, &table) else { continue };
        let Ok(p) = table.properties() else { continue };
        let sum = all.entry((file.column_family_name, usize::try_from(file.level).unwrap_or(0))).or_default();
        sum.entries += p.num_entries;
        sum.deletions += p.num_deletions;
        sum.range_deletions += p.num_range_deletions;
        sum.raw_bytes += p.raw_key_size + p.raw_value_size;
        sum.data_bytes += p.data_size;
    }
    Ok(all)
}

/// `rockmill stats`
pub fn run(args: &StatsArgs, family: Option<&str>, out: &mut Out) -> Result<()> {
    let db = store::open_to_read(&args.db, &args.store, Some(args.shape), family)?;
    let contents = read_contents(&db, &args.db)?;
    let names = family.map_or_else(|| db.cf_names(), |name| vec![name.to_owned()]);
    let mut families = Vec::new();
    for name in &names {
        families.push(Family::new(&db, &store::family(&db, Some(name))?, &contents)?);
    }
    families.sort_by_key(|f| f.id);
    let capacity = db.property_int_value("rocksdb.block-cache-capacity")?.unwrap_or(0);
    let usage = db.property_int_value("rocksdb.block-cache-usage")?.unwrap_or(0);
    let (jobs, memory) = (running::jobs(&args.db), db.memory_parts());
    if out.json {
        // The levels of the one column family that most databases have stand at the top as well.
        let first = families.first().map_or(Value::Null, |f| levels_json(&f.levels));
        let all: Vec<Value> = families.iter().map(Family::json).collect();
        return out.json_object(&json!({
            "path": args.db.display().to_string(),
            "last_sequence": db.latest_sequence_number(),
            "levels": first,
            "column_families": all,
            "running_jobs": jobs.map(|jobs| jobs.iter().map(running::Job::json).collect::<Vec<_>>()),
            "block_cache": { "capacity_bytes": capacity, "usage_bytes": usage },
            "memory_bytes": {
                "memtables": memory.memtables,
                "flushed_memtables": memory.flushed_memtables,
                "kept_for_memtables": memory.kept_for_memtables,
                "table_readers": memory.table_readers,
                "block_cache": memory.block_cache,
                "io": memory.io,
                "kernel": memory.kernel,
                "total": memory.total(),
            },
        }));
    }
    for (i, f) in families.iter().enumerate() {
        if i > 0 {
            out.line("")?;
        }
        out.line(format!("column family {} (id {})", f.name, f.id))?;
        out.text(format!("{}\n", level_table(f)))?;
        for line in words(f) {
            out.line(line)?;
        }
    }
    if let Some(jobs) = &jobs {
        out.line("")?;
        out.line(format!(
            "another process has the database open; it runs {} now",
            output::plural(jobs.len() as u64, "job")
        ))?;
        for job in jobs {
            out.line(format!("  {}", job.line()))?;
        }
    }
    out.line("")?;
    let parts = memory.named().into_iter().filter(|(_, bytes)| *bytes > 0);
    let parts: Vec<String> = parts.map(|(name, bytes)| format!("{name} {}", output::size(bytes))).collect();
    let parts = if parts.is_empty() { String::new() } else { format!(": {}", parts.join(", ")) };
    out.line(format!("memory of this command {}{parts}", output::size(memory.total())))?;
    out.line(format!(
        "block cache {} of {}; last sequence number {}",
        output::size(usage),
        output::size(capacity),
        output::count(db.latest_sequence_number())
    ))
}

fn level_table(f: &Family) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED).apply_modifier(UTF8_ROUND_CORNERS);
    table.set_header(["Level", "Files", "Size", "Target", "Score", "Debt", "Entries", "Deletions"]);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let dash = |n: u64, text: String| if n == 0 { "-".to_owned() } else { text };
    let row = |name: String, l: &LevelRow| {
        let c = l.contents.unwrap_or_default();
        [
            name,
            dash(l.files, output::count(l.files)),
            dash(l.bytes, output::size(l.bytes)),
            l.target.map_or_else(|| "-".to_owned(), output::size),
            if l.files == 0 { "-".to_owned() } else { format!("{:.2}", l.score) },
            dash(l.debt, output::size(l.debt)),
            dash(c.entries, output::count(c.entries)),
            // Those of ranges are among them.
            dash(c.deletions, output::count(c.deletions)),
        ]
    };
    for l in &f.levels {
        table.add_row(row(format!("L{}", l.level), l));
    }
    let sum = LevelRow {
        level: 0,
        files: f.files(),
        bytes: f.bytes(),
        target: None,
        score: f.levels.iter().map(|l| l.score).fold(0.0, f64::max),
        debt: f.debt,
        contents: Some(f.contents()),
        extra_runs: f.levels.iter().map(|l| l.extra_runs).sum(),
    };
    table.add_row(row("all".to_owned(), &sum));
    table
}

fn words(f: &Family) -> Vec<String> {
    let ratio = f.compression_ratio().map_or_else(|| "-".to_owned(), |r| format!("{r:.2}"));
    vec![
        format!(
            "space amplification {:.2}; a lookup asks at most {}; compression ratio {ratio}",
            f.space_amplification(),
            output::plural(f.sorted_runs(), "sorted run"),
        ),
        format!(
            "about {} keys; in memtables {} entries, {}",
            output::count(f.keys),
            output::count(f.memtable_entries),
            output::size(f.memtable_bytes)
        ),
    ]
}
