//! `rockmill stats`: the tree's levels, amplification, memtables, caches, and jobs of the process that has it open or
//! had it open last.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use comfy_table::modifiers::UTF8_ROUND_CORNERS;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use rockmill::internals::told_by_own_file;
use rockmill::{ColumnFamily, Db, LevelStats, Range, properties};
use rockmill_format::comparator::{BYTEWISE_NAME, BytewiseComparator, comparator_named};
use rockmill_format::filename;
use rockmill_io::{FileSystem, PosixFileSystem};
use serde_json::{Value, json};

use crate::args::StatsArgs;

use crate::error::{CliError, Result};
use crate::output::{self, Out};
use crate::running;
use crate::store;
use crate::top::{self, TopArgs};
use crate::tree_page;

/// L0 tables at which RocksDB's default starts a compaction.
const L0_TRIGGER: u64 = 4;

/// Headings of the table of levels.
const HEADS: [&str; 8] = ["Level", "Files", "Size", "Target", "Score", "Debt", "Entries", "Deletions"];

/// Most key ranges whose sizes are requested for the picture of a tree.
const RANGES_MAX: usize = 20_000;

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
    /// Contents, if the tables' properties were read.
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

/// The files that a column family's tables use in addition to their own.
#[derive(Debug, Clone, Copy)]
pub struct Pieces {
    /// Tables that have some.
    tables: u64,
    /// Files, each once.
    files: u64,
    /// Bytes of them.
    bytes: u64,
    /// Bytes of them to which some table refers.
    live_bytes: u64,
}

impl Pieces {
    /// `None` where there are none.
    pub fn of(db: &Db, cf: &ColumnFamily) -> Result<Option<Self>> {
        let int = |name: &str| db.property_int_value_cf(cf, name).map(|v| v.unwrap_or(0));
        let tables = int(properties::TABLES_WITH_PIECES)?;
        if tables == 0 {
            return Ok(None);
        }
        let (files, bytes) = (int(properties::PIECE_FILES)?, int(properties::PIECE_FILES_SIZE)?);
        Ok(Some(Self { tables, files, bytes, live_bytes: int(properties::PIECE_FILES_LIVE_SIZE)? }))
    }

    /// Tables that have some.
    pub fn tables(&self) -> u64 {
        self.tables
    }

    /// Bytes of these files that some table refers to.
    pub fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    fn live_percent(&self) -> f64 {
        if self.bytes == 0 { 100.0 } else { self.live_bytes as f64 * 100.0 / self.bytes as f64 }
    }

    fn json(&self) -> Value {
        json!({
            "tables": self.tables,
            "files": self.files,
            "bytes": self.bytes,
            "live_bytes": self.live_bytes,
            "live_percent": output::round(self.live_percent(), 2),
        })
    }

    fn words(&self) -> String {
        format!(
            "{} of several files: {} of {}, {:.1} % live",
            output::plural(self.tables, "table"),
            output::plural(self.files, "further file"),
            output::size(self.bytes),
            self.live_percent()
        )
    }
}

/// The in-memory key index of a column family's TPH tables.
#[derive(Debug, Clone, Copy)]
struct TphIndex {
    /// Live user keys, counted separately for each table.
    keys: u64,
    bytes: u64,
}

impl TphIndex {
    /// `None` if no open table is a TPH table with keys.
    fn of(db: &Db, cf: &ColumnFamily) -> Result<Option<Self>> {
        let int = |name: &str| db.property_int_value_cf(cf, name).map(|v| v.unwrap_or(0));
        let (keys, bytes) = (int(properties::TPH_KEYS)?, int(properties::TPH_INDEX_MEMORY)?);
        Ok((keys > 0).then_some(Self { keys, bytes }))
    }

    fn bytes_per_key(&self) -> f64 {
        self.bytes as f64 / self.keys.max(1) as f64
    }

    fn json(&self) -> Value {
        json!({ "keys": self.keys, "bytes": self.bytes, "bytes_per_key": output::round(self.bytes_per_key(), 3) })
    }

    fn words(&self) -> String {
        format!(
            "index of TPH tables: {} of memory for {}, {:.2} bytes per key",
            output::size(self.bytes),
            output::plural(self.keys, "key"),
            self.bytes_per_key()
        )
    }
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
    pieces: Option<Pieces>,
    tph_index: Option<TphIndex>,
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
            // A deletion is itself an entry, and usually hides another.
            keys: entries.saturating_sub(2 * deletions),
            pieces: Pieces::of(db, cf)?,
            tph_index: TphIndex::of(db, cf)?,
            levels,
        })
    }

    fn files(&self) -> u64 {
        self.levels.iter().map(|l| l.files).sum()
    }

    fn bytes(&self) -> u64 {
        self.levels.iter().map(|l| l.bytes).sum()
    }

    /// Bytes of all tables divided by those of the deepest level: 1 if nothing lies above it.
    fn space_amplification(&self) -> f64 {
        let deepest = self.levels.iter().rev().find(|l| l.bytes > 0).map_or(0, |l| l.bytes);
        if deepest == 0 { 1.0 } else { self.bytes() as f64 / deepest as f64 }
    }

    /// Sorted runs that a lookup may have to search.
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

    /// Bytes of keys and values divided by the bytes of their data blocks.
    fn compression_ratio(&self) -> Option<f64> {
        let c = self.contents();
        (c.data_bytes > 0).then(|| c.raw_bytes as f64 / c.data_bytes as f64)
    }

    fn json(&self) -> Value {
        let mut all = json!({
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
        });
        if let Some(pieces) = &self.pieces {
            all["pieces"] = pieces.json();
        }
        if let Some(index) = &self.tph_index {
            all["tph_index"] = index.json();
        }
        all
    }
}

/// Sums of tables' properties by column family and level. A table that cannot be read is not counted here: `verify`
/// reports damage.
fn read_contents(db: &Db) -> Result<HashMap<(String, usize), Contents>> {
    let fs = PosixFileSystem::default();
    let mut all: HashMap<(String, usize), Contents> = HashMap::new();
    for file in db.live_files()? {
        let table = file.directory.join(filename::table(file.number));
        let Ok(own) = fs.open_random(&table, false) else { continue };
        let Ok(own) = told_by_own_file(own, &table) else { continue };
        let p = own.properties;
        let of_pieces: u64 = file.pieces.iter().map(|piece| piece.live).sum();
        let sum = all.entry((file.column_family_name, usize::try_from(file.level).unwrap_or(0))).or_default();
        sum.entries += p.num_entries;
        sum.deletions += p.num_deletions;
        sum.range_deletions += p.num_range_deletions;
        sum.raw_bytes += p.raw_key_size + p.raw_value_size;
        sum.data_bytes += p.data_size + of_pieces;
    }
    Ok(all)
}

/// `rockmill stats --prometheus`
fn prometheus(args: &StatsArgs, family: Option<&str>, out: &mut Out) -> Result<()> {
    if out.json {
        return Err(CliError::usage("--prometheus and --json exclude each other"));
    }
    let file = top::status_path(&args.db, args.status_file.as_ref());
    if args.status_file.is_some() || running::is_open(&args.db) && file.exists() {
        let text = top::status_text(&file).map_err(CliError::data)?;
        // Omits the parts that only `rockmill top` reads.
        return text.lines().filter(|l| !l.starts_with("# job ") && *l != "# EOF").try_for_each(|l| out.line(l));
    }
    let db = store::open_to_read(&args.db, &args.store, Some(args.shape), family)?;
    out.text(db.prometheus_text())
}

/// `rockmill stats`
pub fn run(args: &StatsArgs, family: Option<&str>, out: &mut Out) -> Result<()> {
    if let Some(every) = args.watch {
        let (db, status_file) = (args.db.clone(), args.status_file.clone());
        return top::run(&TopArgs { db, every, once: false, status_file }, out);
    }
    if args.prometheus {
        return prometheus(args, family, out);
    }
    if let Some(path) = &args.report {
        tree_page::check(path)?;
    }
    let db = store::open_to_read(&args.db, &args.store, Some(args.shape), family)?;
    let contents = read_contents(&db)?;
    let names = family.map_or_else(|| db.cf_names(), |name| vec![name.to_owned()]);
    let mut families = Vec::new();
    for name in &names {
        families.push(Family::new(&db, &store::family(&db, Some(name))?, &contents)?);
    }
    families.sort_by_key(|f| f.id);
    if let Some(path) = &args.report {
        write_page(path, args, &db, &families)?;
    }
    let capacity = db.property_int_value("rocksdb.block-cache-capacity")?.unwrap_or(0);
    let usage = db.property_int_value("rocksdb.block-cache-usage")?.unwrap_or(0);
    let (told, memory) = (running::told(&args.db), db.memory_parts());
    let (jobs, ended) = told.map_or((None, None), |told| (told.running, Some(told.ended)));
    if out.json {
        // The levels of the one column family that most databases have stand at the top as well.
        let first = families.first().map_or(Value::Null, |f| levels_json(&f.levels));
        let all: Vec<Value> = families.iter().map(Family::json).collect();
        return out.json_object(&json!({
            "path": args.db.display().to_string(),
            "last_sequence": db.latest_sequence_number(),
            "levels": first,
            "column_families": all,
            "ended_jobs": ended.map(|ended| ended.json()),
            "running_jobs": jobs.map(|jobs| jobs.iter().map(running::Job::json).collect::<Vec<_>>()),
            "block_cache": { "capacity_bytes": capacity, "usage_bytes": usage },
            "memory_bytes": {
                "memtables": memory.memtables,
                "memtables_unfilled": memory.memtables_unfilled,
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
        out.text(level_tables(f, out.columns()))?;
        for line in words(f) {
            out.sentence(line)?;
        }
    }
    if let Some(jobs) = &jobs {
        out.line("")?;
        out.sentence(format!(
            "another process has the database open; it runs {} now",
            output::plural(jobs.len() as u64, "job")
        ))?;
        for job in jobs {
            out.sentence(format!("  {}", job.line()))?;
        }
    }
    if let Some(ended) = &ended {
        if jobs.is_none() {
            out.line("")?;
        }
        out.sentence(format!("jobs ended, {}", ended.line()))?;
    }
    out.line("")?;
    let parts = memory.named().into_iter().filter(|(_, bytes)| *bytes > 0);
    let parts: Vec<String> = parts.map(|(name, bytes)| format!("{name} {}", output::size(bytes))).collect();
    let parts = if parts.is_empty() { String::new() } else { format!(": {}", parts.join(", ")) };
    out.sentence(format!("memory of this command {}{parts}", output::size(memory.total())))?;
    out.sentence(format!(
        "block cache {} of {}; last sequence number {}",
        output::size(usage),
        output::size(capacity),
        output::count(db.latest_sequence_number())
    ))
}

/// The page with the tree of each column family.
fn write_page(path: &Path, args: &StatsArgs, db: &Db, families: &[Family]) -> Result<()> {
    let orders = store::families(&args.db)?;
    let mut trees = Vec::new();
    for f in families {
        let order = orders.iter().find(|o| o.name == f.name).map_or(BYTEWISE_NAME, |o| o.comparator.as_str());
        let order = comparator_named(order).unwrap_or_else(|| Arc::new(BytewiseComparator));
        let cf = store::family(db, Some(&f.name))?;
        let tables = db.get_column_family_metadata_cf(&cf);
        let sizes = {
            let bounds = tree_page::bounds(&tables, &*order);
            let ranges: Vec<Range<'_>> = bounds.windows(2).map(|b| Range::new(b[0], b[1])).collect();
            if ranges.len() > RANGES_MAX { Vec::new() } else { db.get_approximate_sizes_cf(&cf, &ranges) }
        };
        let heads = ["level", "tables", "bytes", "target", "score", "debt", "entries", "deletions"];
        let rows = level_rows(f).into_iter().map(Vec::from).collect();
        trees.push(tree_page::Tree {
            name: f.name.clone(),
            order,
            tables,
            sizes,
            due: f.levels.iter().filter(|l| l.score >= 1.0 && l.files > 0).map(|l| (l.level, l.score)).collect(),
            runs: f.sorted_runs(),
            space: f.space_amplification(),
            heads,
            rows,
            words: words(f),
        });
    }
    tree_page::write(path, &args.db, &trees)
}

/// The table of levels. Where this many columns are too few for it, its cells have no blanks around them; if it is too
/// wide even so, it continues below, because broken numbers would be hard to read.
fn level_tables(f: &Family, columns: usize) -> String {
    let rows = level_rows(f);
    let fits = |table: &Table| table.lines().all(|line| line.chars().count() <= columns);
    let padding = u16::from(fits(&level_table(&rows, 1..HEADS.len(), 1)));
    let mut text = String::new();
    let mut from = 1;
    while from < HEADS.len() {
        let to = (from + 1..=HEADS.len()).rev().find(|&to| fits(&level_table(&rows, from..to, padding)));
        // At least one column, however narrow the terminal is.
        let to = to.unwrap_or(from + 1);
        let _ = writeln!(text, "{}", level_table(&rows, from..to, padding));
        from = to;
    }
    text
}

/// The levels with some of their figures.
fn level_table(rows: &[[String; HEADS.len()]], of: std::ops::Range<usize>, padding: u16) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED).apply_modifier(UTF8_ROUND_CORNERS);
    table.set_header(HEADS[..1].iter().chain(&HEADS[of.clone()]));
    for column in table.column_iter_mut() {
        column.set_padding((padding, padding));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.add_rows(rows.iter().map(|row| row[..1].iter().chain(&row[of.clone()])));
    table
}

/// The cells of the table of levels, with a row of totals.
fn level_rows(f: &Family) -> Vec<[String; HEADS.len()]> {
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
    let mut rows: Vec<[String; HEADS.len()]> = f.levels.iter().map(|l| row(format!("L{}", l.level), l)).collect();
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
    rows.push(row("all".to_owned(), &sum));
    rows
}

fn words(f: &Family) -> Vec<String> {
    let ratio = f.compression_ratio().map_or_else(|| "-".to_owned(), |r| format!("{r:.2}"));
    let mut words = vec![
        format!(
            "space amplification {:.2}; a lookup searches at most {}; compression ratio {ratio}",
            f.space_amplification(),
            output::plural(f.sorted_runs(), "sorted run"),
        ),
        format!(
            "about {}; in memtables {}, {}",
            output::plural(f.keys, "key"),
            output::plural(f.memtable_entries, "entry"),
            output::size(f.memtable_bytes)
        ),
    ];
    words.extend(f.pieces.map(|pieces| pieces.words()));
    words.extend(f.tph_index.map(|index| index.words()));
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn family(pieces: Option<Pieces>, tph_index: Option<TphIndex>) -> Family {
        Family {
            name: "default".to_owned(),
            id: 0,
            levels: Vec::new(),
            debt: 0,
            memtable_bytes: 0,
            memtable_entries: 0,
            keys: 0,
            pieces,
            tph_index,
        }
    }

    #[test]
    fn the_table_of_levels_fits_the_terminal() {
        let mut f = family(None, None);
        for level in 0..7 {
            let (entries, deletions) = (23_456_789, 1_234_567);
            f.levels.push(LevelRow {
                level,
                files: 1234,
                bytes: 999 << 20,
                target: Some(999 << 20),
                score: 12.34,
                debt: 999 << 20,
                contents: Some(Contents { entries, deletions, ..Contents::default() }),
                extra_runs: 0,
            });
        }
        let widest = |text: &str| text.lines().map(|line| line.chars().count()).max().expect("lines");
        let piped = level_tables(&f, usize::MAX);
        assert!(widest(&piped) > 80 && piped.contains("│ L0    ┆ 1,234 ┆"), "{piped}");
        assert_eq!(level_tables(&f, widest(&piped)), piped, "a wide terminal shows the same table as a pipe");
        let narrow = level_tables(&f, 80);
        assert!(widest(&narrow) <= 80 && narrow.lines().count() == piped.lines().count(), "{narrow}");
        let several = level_tables(&f, 40);
        assert!(widest(&several) <= 40 && several.matches("Level").count() > 1, "{several}");
        for text in [&narrow, &several] {
            assert!(HEADS.iter().all(|head| text.contains(head)), "{text}");
            assert!(text.contains("23,456,789") && text.contains("999.0 MiB"), "no number is broken: {text}");
        }
    }

    #[test]
    fn pieces_and_the_index_are_shown_where_there_are_any() {
        let none = family(None, None);
        assert!(none.json().get("pieces").is_none() && none.json().get("tph_index").is_none());
        assert_eq!(words(&none).len(), 2);
        let pieces = Pieces { tables: 1, files: 3, bytes: 4 << 20, live_bytes: 3 << 20 };
        let some = family(Some(pieces), Some(TphIndex { keys: 1000, bytes: 3210 }));
        let expected = json!({"tables": 1, "files": 3, "bytes": 4 << 20, "live_bytes": 3 << 20, "live_percent": 75.0});
        assert_eq!(some.json()["pieces"], expected);
        assert_eq!(some.json()["tph_index"], json!({"keys": 1000, "bytes": 3210, "bytes_per_key": 3.21}));
        assert_eq!(words(&some)[2], "1 table of several files: 3 further files of 4.0 MiB, 75.0 % live");
        assert_eq!(words(&some)[3], "index of TPH tables: 3.1 KiB of memory for 1,000 keys, 3.21 bytes per key");
    }
}
