//! `rockmill stats --report`: a page with a picture of the tree.
//!
//! Each sorted run is a row, newest at the top, and each of its tables is a segment of that row. The width of a row is
//! the whole key space, scaled by the data between neighbouring keys in all runs together.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use rockmill::{ColumnFamilyMetaData, LiveFile};
use rockmill_format::comparator::Comparator;
use rockmill_format::printable;
use rockmill_page::svg::{self, RUN_STEPS, RunRow, Stretch};
use rockmill_page::{document, escape, facts, table, verdict};

use crate::error::{CliError, Result};
use crate::output;

/// Rows of a picture. If there are more runs, the oldest tables of L0 are counted but not drawn.
const ROWS_MAX: usize = 64;
/// Most distinguishable segments in a row. If a run has more tables, neighbours are drawn as one.
const STRETCHES_MAX: usize = 600;
/// Bytes of a key that are shown.
const KEY_SHOWN: usize = 24;

/// A column family, as the page shows it.
pub struct Tree {
    /// Its name.
    pub name: String,
    /// The order of its keys.
    pub order: Arc<dyn Comparator>,
    /// Its tables.
    pub tables: ColumnFamilyMetaData,
    /// Bytes between neighbouring [`bounds`]; empty if unknown.
    pub sizes: Vec<u64>,
    /// Levels that are due for a compaction, and their scores.
    pub due: Vec<(usize, f64)>,
    /// Sorted runs.
    pub runs: u64,
    /// Space amplification.
    pub space: f64,
    /// The heads of the table of levels.
    pub heads: [&'static str; 8],
    /// Its rows.
    pub rows: Vec<Vec<String>>,
    /// Lines of text below the tables.
    pub words: Vec<String>,
}

/// A table with the places of its bounds among all bounds of the tree.
struct Placed<'a> {
    file: &'a LiveFile,
    from: usize,
    to: usize,
}

impl Placed<'_> {
    /// Bytes of the table's file, and of its live part of shared files.
    fn bytes(&self) -> u64 {
        let of_pieces: u64 = self.file.pieces.iter().map(|piece| piece.live).sum();
        self.file.size as u64 + of_pieces
    }
}

/// A sorted run.
struct Run<'a> {
    level: i32,
    name: String,
    tables: Vec<Placed<'a>>,
}

/// Refuses to overwrite a file that is not such a page.
pub fn check(path: &Path) -> Result<()> {
    rockmill_bench::check_output(path, |head| head.contains("<title>rockmill stats")).map_err(CliError::usage)
}

/// Writes the page.
pub fn write(path: &Path, db: &Path, trees: &[Tree]) -> Result<()> {
    let made = Made {
        command: output::command_line(),
        date: rockmill_bench::today(),
        now: SystemTime::UNIX_EPOCH.elapsed().map_or(0, |d| d.as_secs()),
    };
    rockmill_io::report::write(path, &page(db, trees, &made))
        .map_err(|e| CliError::io(format_args!("cannot write {}", path.display()), &e))
}

/// How the page came about.
struct Made {
    command: String,
    date: String,
    /// Seconds since 1970, from which the ages of tables are counted.
    now: u64,
}

fn page(db: &Path, trees: &[Tree], made: &Made) -> String {
    let mut body: String = trees.iter().map(|tree| verdict(&sentence(tree))).collect();
    body += &facts(&format!("{}; {}", made.date, db.display()), &made.command);
    for tree in trees {
        body += &format!("<section>\n<h2>Column family {}</h2>\n", escape(&tree.name));
        let bounds = bounds(&tree.tables, &*tree.order);
        let runs = runs(tree, &bounds);
        if !runs.is_empty() {
            body += &format!("<div class=\"full\">{}</div>\n", picture(tree, &bounds, &runs, made.now));
        }
        body += &table(&tree.heads, &[0], &tree.rows);
        let overlaps = overlaps(&runs);
        if !overlaps.is_empty() {
            let heads = ["a table of", "overlaps in", "tables, on average", "at most", "bytes, on average"];
            body += &table(&heads, &[0, 1], &overlaps);
        }
        for words in &tree.words {
            body += &format!("<p class=\"note\">{}</p>\n", escape(words));
        }
        body += "</section>\n";
    }
    document(&format!("rockmill stats: {}", db.display()), &body)
}

/// The summary: the size of the tree, and the levels that are due for a compaction.
fn sentence(tree: &Tree) -> String {
    let due: Vec<String> = tree.due.iter().map(|(level, score)| format!("L{level} (score {score:.2})")).collect();
    let due = match due.is_empty() {
        true => "no level is due for a compaction".to_owned(),
        false => format!("due: {}", due.join(", ")),
    };
    format!(
        "{}: {} ({}) in {}, space amplification {:.2}; {due}.",
        tree.name,
        output::plural(tree.tables.file_count as u64, "table"),
        output::size(tree.tables.size),
        output::plural(tree.runs, "sorted run"),
        tree.space
    )
}

/// The first and the last key of every table, in order and without duplicates.
pub fn bounds<'a>(tables: &'a ColumnFamilyMetaData, order: &dyn Comparator) -> Vec<&'a [u8]> {
    let files = tables.levels.iter().flat_map(|level| &level.files);
    let keys = files.flat_map(|f| [f.start_key.as_deref(), f.end_key.as_deref()]);
    let mut bounds: Vec<&[u8]> = keys.flatten().collect();
    bounds.sort_by(|a, b| order.compare(a, b));
    bounds.dedup_by(|a, b| order.compare(a, b).is_eq());
    bounds
}

/// The runs of a tree, newest first, with the places of their tables among its [`bounds`].
fn runs<'a>(tree: &'a Tree, bounds: &[&[u8]]) -> Vec<Run<'a>> {
    let before = |b: &[u8], key: Option<&[u8]>| key.is_some_and(|key| tree.order.compare(b, key).is_lt());
    let place = |key: Option<&[u8]>| bounds.partition_point(|b| before(b, key));
    let mut all: Vec<Run<'a>> = Vec::new();
    for level in &tree.tables.levels {
        let mut run = None;
        for file in &level.files {
            let (from, to) = (place(file.start_key.as_deref()), place(file.end_key.as_deref()));
            // Each file of L0 is a run.
            if level.level == 0 || run != Some(file.extra_run) {
                run = Some(file.extra_run);
                let name = match (level.level, file.extra_run) {
                    (0, _) => format!("L0 {}", file.number),
                    (level, 0) => format!("L{level}"),
                    (level, id) => format!("L{level} run {id}"),
                };
                all.push(Run { level: level.level, name, tables: Vec::new() });
            }
            if let Some(run) = all.last_mut() {
                run.tables.push(Placed { file, from, to: to.max(from) });
            }
        }
    }
    all
}

/// Where each bound is drawn, from 0 to 1. `sizes` has the bytes between neighbours; if it is empty, steps are even.
fn places(bounds: usize, sizes: &[u64]) -> Vec<f64> {
    let steps = bounds.saturating_sub(1);
    let all: f64 = sizes.iter().map(|size| *size as f64).sum();
    // Keeps two bounds apart in the picture even if nothing is between them.
    let least = (all / steps.max(1) as f64 / 20.0).max(1.0);
    let mut out = vec![0.0];
    let mut sum = 0.0;
    for i in 0..steps {
        sum += f64::max(sizes.get(i).map_or(0.0, |size| *size as f64), least);
        out.push(sum);
    }
    out.iter().map(|at| if sum > 0.0 { at / sum } else { 0.0 }).collect()
}

fn picture(tree: &Tree, bounds: &[&[u8]], runs: &[Run<'_>], now: u64) -> String {
    let places = places(bounds.len(), &tree.sizes);
    let place = |bound: usize| places.get(bound).copied().unwrap_or(1.0);
    let mut times: Vec<u64> = runs.iter().flat_map(|run| &run.tables).filter_map(|t| t.file.creation_time).collect();
    times.sort_unstable_by(|a, b| b.cmp(a));
    // Each colour is for the same number of tables, from the newest to the oldest.
    let step = |time: u64| times.partition_point(|t| *t > time) * RUN_STEPS / times.len().max(1);
    let row = |run: &Run<'_>| {
        let together = run.tables.len().div_ceil(STRETCHES_MAX).max(1);
        let stretch = |tables: &[Placed<'_>]| {
            let (Some(first), Some(last)) = (tables.first(), tables.last()) else { return None };
            let newest = tables.iter().filter_map(|t| t.file.creation_time).max();
            let (from, to) = (place(first.from), place(last.to));
            Some(Stretch { from, to, step: newest.map(&step), title: title(tables, now) })
        };
        let bytes: u64 = run.tables.iter().map(Placed::bytes).sum();
        let tables = output::plural(run.tables.len() as u64, "table");
        let text = if run.level == 0 { output::size(bytes) } else { format!("{tables}, {}", output::size(bytes)) };
        RunRow { name: run.name.clone(), text, stretches: run.tables.chunks(together).filter_map(stretch).collect() }
    };
    let left_out = runs.len().saturating_sub(ROWS_MAX);
    // The deeper levels show the shape of the tree, so if there are too many rows, L0's oldest tables are omitted.
    let l0 = runs.iter().filter(|run| run.level == 0).count();
    let kept = |i: usize| i < l0.saturating_sub(left_out) || i >= l0;
    let rows: Vec<RunRow> =
        runs.iter().enumerate().filter(|(i, _)| kept(*i)).take(ROWS_MAX).map(|(_, run)| row(run)).collect();
    let more = match left_out {
        0 => String::new(),
        n => format!("; {} not drawn", output::plural(n as u64, "run")),
    };
    let bound = |at: Option<&&[u8]>| at.map_or_else(String::new, |bound| key(bound));
    let (first, last) = (bound(bounds.first()), bound(bounds.last()));
    let note = format!("newer runs above older ones, from {first} to {last}{more}");
    let with_age = |word: &str, time: Option<&u64>| match time {
        Some(time) => format!("{word} table: {}", age(now, *time)),
        None => word.to_owned(),
    };
    svg::runs("The tree", &note, &rows, (&with_age("newest", times.first()), &with_age("oldest", times.last())))
}

/// How long ago something was written, in one unit. A time ahead of the clock counts as now.
fn age(now: u64, time: u64) -> String {
    match now.saturating_sub(time) {
        s if s < 120 => format!("{s} s"),
        s if s < 120 * 60 => format!("{} min", s / 60),
        s if s < 48 * 3600 => format!("{} h", s / 3600),
        s => format!("{} days", output::count(s / 86_400)),
    }
}

fn key(key: &[u8]) -> String {
    printable::bytes(key, KEY_SHOWN)
}

/// The tooltip of a segment of one or more tables.
fn title(tables: &[Placed<'_>], now: u64) -> String {
    let (Some(first), Some(last)) = (tables.first(), tables.last()) else { return String::new() };
    let bytes: u64 = tables.iter().map(Placed::bytes).sum();
    let keys = |f: &LiveFile, l: &LiveFile| {
        let of = |k: Option<&[u8]>| k.map_or_else(String::new, key);
        format!("{} to {}", of(f.start_key.as_deref()), of(l.end_key.as_deref()))
    };
    let what = match tables {
        [one] => one.file.name.trim_start_matches('/').to_owned(),
        many => output::plural(many.len() as u64, "table"),
    };
    let entries: u64 = tables.iter().map(|t| t.file.num_entries).sum();
    let newest = tables.iter().filter_map(|t| t.file.creation_time).max();
    format!(
        "{what}: {}, {}, {}{}{}",
        output::size(bytes),
        output::plural(entries, "entry"),
        keys(first.file, last.file),
        newest.map_or_else(String::new, |time| format!(", {} old", age(now, time))),
        if tables.iter().any(|t| t.file.being_compacted) { ", being compacted" } else { "" }
    )
}

/// For each level, how much of the next level that has tables one of its tables overlaps.
fn overlaps(runs: &[Run<'_>]) -> Vec<Vec<String>> {
    let mut levels: Vec<i32> = runs.iter().map(|run| run.level).collect();
    levels.dedup();
    let mut out = Vec::new();
    for pair in levels.windows(2) {
        let [upper, lower] = pair else { continue };
        let below: Vec<&Run<'_>> = runs.iter().filter(|run| run.level == *lower).collect();
        let (mut count, mut sum, mut most, mut bytes) = (0u64, 0u64, 0u64, 0u64);
        for t in runs.iter().filter(|run| run.level == *upper).flat_map(|run| &run.tables) {
            let mut of_it = 0;
            for run in &below {
                let begin = run.tables.partition_point(|b| b.to < t.from);
                for b in run.tables[begin..].iter().take_while(|b| b.from <= t.to) {
                    of_it += 1;
                    bytes += b.bytes();
                }
            }
            (count, sum, most) = (count + 1, sum + of_it, most.max(of_it));
        }
        let count = count.max(1);
        out.push(vec![
            format!("L{upper}"),
            format!("L{lower}"),
            format!("{:.1}", sum as f64 / count as f64),
            output::count(most),
            output::size(bytes / count),
        ]);
    }
    out
}

#[cfg(test)]
mod tests {
    use rockmill::{Db, Options};

    use super::*;

    /// Three tables of L0 over one of a deeper level.
    fn tree(dir: &Path) -> Tree {
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_disable_auto_compactions(true);
        let db = Db::open(&options, dir).expect("a new database");
        let put = |from: u32, to: u32| {
            for i in from..to {
                db.put(format!("key<{i:05}>"), vec![7; 100]).expect("a write");
            }
            db.flush().expect("a flush");
        };
        put(0, 3000);
        db.compact_range(None::<&[u8]>, None::<&[u8]>).expect("a compaction");
        put(0, 100);
        put(1000, 1500);
        put(2999, 3000);
        Tree {
            name: "de<fault".to_owned(),
            order: Arc::new(rockmill_format::comparator::BytewiseComparator),
            tables: db.get_column_family_metadata(),
            sizes: Vec::new(),
            due: vec![(0, 1.25)],
            runs: 4,
            space: 1.2,
            heads: ["level", "tables", "bytes", "target", "score", "debt", "entries", "deletions"],
            rows: vec![vec!["L0".to_owned(); 8]],
            words: vec!["about 3,000 keys".to_owned()],
        }
    }

    fn made() -> Made {
        // In the year 2100: every table is old.
        Made { command: "rockmill stats my.db".to_owned(), date: "2100-01-01".to_owned(), now: 4_102_444_800 }
    }

    #[test]
    fn ages_have_one_unit() {
        let ages = [0, 119, 120, 7_199, 7_200, 172_799, 172_800, 200_000_000].map(|seconds| age(seconds, 0));
        assert_eq!(ages, ["0 s", "119 s", "2 min", "119 min", "2 h", "47 h", "2 days", "2,314 days"]);
        assert_eq!(age(5, 9), "0 s", "written by a clock that is ahead");
    }

    #[test]
    fn a_page_has_each_run_and_what_overlaps() {
        let dir = tempfile::tempdir().expect("a folder");
        let tree = tree(&dir.path().join("db"));
        let bounds = bounds(&tree.tables, &*tree.order);
        let runs = runs(&tree, &bounds);
        assert_eq!(runs.len(), 4, "three of L0, one below");
        // The base run spans all keys; the newest table of L0 has the last key.
        let base = &runs[3].tables[0];
        assert_eq!((base.from, base.to + 1), (0, bounds.len()));
        assert!(runs[0].tables[0].from > runs[1].tables[0].to, "the newest is first");
        let overlaps = overlaps(&runs);
        assert_eq!(overlaps.len(), 1);
        assert_eq!(overlaps[0][2..4], ["1.0".to_owned(), "1".to_owned()], "each overlaps the one table below");
        let page = page(Path::new("my.db"), &[tree], &made());
        let keys = "key&lt;00000&gt; to key&lt;02999&gt;";
        for part in ["due: L0 (score 1.25)", "de&lt;fault", keys, "2100-01-01; my.db", "about 3,000", " days old<"] {
            assert!(page.contains(part), "{part}: {page}");
        }
        assert_eq!(page.matches("<svg").count(), 1);
        assert!(!page.contains("<script") && !page.contains("NaN") && !page.contains("<00000"), "{page}");
    }

    #[test]
    fn bounds_are_placed_by_what_is_between_them() {
        assert_eq!(places(3, &[]), [0.0, 0.5, 1.0]);
        assert_eq!(places(3, &[100, 300]), [0.0, 0.25, 1.0]);
        let tiny = places(4, &[1_000_000, 0, 1_000_000]);
        assert!(tiny[1] < tiny[2] && tiny[2] - tiny[1] < 0.03 && tiny[3] == 1.0, "{tiny:?}");
        assert_eq!((places(1, &[]), places(0, &[])), (vec![0.0], vec![0.0]));
    }

    #[test]
    fn an_empty_tree_has_no_picture() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut tree = tree(&dir.path().join("db"));
        tree.tables = ColumnFamilyMetaData::default();
        assert!(runs(&tree, &[]).is_empty() && overlaps(&[]).is_empty());
        let page = page(Path::new("my.db"), &[tree], &made());
        assert!(!page.contains("<svg") && page.contains("0 tables"), "{page}");
    }
}
