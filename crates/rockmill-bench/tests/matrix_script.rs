//! `scripts/bench_matrix` changes only the tables of a page.

use std::path::Path;
use std::process::Command;

use rockmill_skip::{Needs, skip};

const PAGE: &str = "\
# Page

Before.

<!-- bench_matrix mixed | mixgraph -->
an old table
<!-- end -->

Between.

<!-- bench_matrix scans -->
a table of what was not measured
<!-- end -->
";

/// One pair of one cell, with placeholders for `SCALE` and the section's name.
const RESULTS: &str = r#"{"SECTION | mixgraph | ": {"command": "", "machine": {}, "pairs": 1, "scale": 0.5,
 "date": "2026-01-02", "benchmarks": [{"name": "mixgraph", "sides": {
 "rockmill": [{"ops": 150.0, "cpu": 1.0, "p99": 5.0, "p99.9": 9.0, "memory": 10, "written": 0, "read": 4}],
 "rocksdb": [{"ops": 100.0, "cpu": 2.0, "p99": 10.0, "p99.9": 9.0, "memory": 10, "written": 0, "read": 8}]}}]}}"#;

/// The script's output for these results when it writes the page; `None` without an interpreter.
fn write(dir: &Path, results: &str, page: &str, flags: &[&str]) -> Option<(bool, String)> {
    std::fs::write(dir.join("results.json"), results).unwrap();
    std::fs::write(dir.join("page.md"), page).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/bench_matrix");
    let done = Command::new("python3")
        .arg(script)
        .args(["--json=results.json", "--page=page.md"])
        .args(flags)
        .current_dir(dir)
        .output()
        .inspect_err(|_| skip("tables of a page", &Needs::RocksDict.because("there is no python3")))
        .ok()?;
    Some((done.status.success(), String::from_utf8(done.stderr).unwrap()))
}

#[test]
fn tables_that_were_measured_are_replaced_and_the_rest_of_a_page_stays() {
    let dir = tempfile::tempdir().unwrap();
    let results = RESULTS.replace("SECTION", "mixed");
    let Some((ok, said)) = write(dir.path(), &results, PAGE, &["--table", "--scale=0.5"]) else { return };
    assert!(ok && said.contains("1 tables written: mixed | mixgraph"), "{said}");
    let page = std::fs::read_to_string(dir.path().join("page.md")).unwrap();
    let row = "| `mixgraph`; mixgraph | **1.50** (1.50..1.50) | 150 | 100 | 0.50 | 1.00 | 0.50 | 1.00 | 0.50 |  |";
    assert!(page.contains(row) && page.contains("(1 pair at scale 0.5, 2026-01-02)"), "{page}");
    assert!(!page.contains("an old table"), "{page}");
    let around = ["# Page\n\nBefore.\n", "\n\nBetween.\n", "\na table of what was not measured\n<!-- end -->\n"];
    assert!(around.iter().all(|part| page.contains(part)), "{page}");
}

#[test]
fn what_cannot_be_written_is_said_and_the_page_stays() {
    let dir = tempfile::tempdir().unwrap();
    let page = PAGE.replace("bench_matrix scans", "bench_matrix scones");
    let Some((ok, said)) = write(dir.path(), &RESULTS.replace("SECTION", "mixed"), &page, &["--table"]) else { return };
    assert!(!ok && said.contains("there is no section 'scones'"), "{said}");
    assert_eq!(std::fs::read_to_string(dir.path().join("page.md")).unwrap(), page);
    let (ok, said) = write(dir.path(), "{}", PAGE, &["--table", "--page=no-such.md"]).unwrap();
    assert!(!ok && said.contains("bench_matrix: no-such.md: No such file"), "{said}");
    // Cells of another size are not mistaken for the requested ones.
    let other = ["--only=mixed", "--rows=mixgraph", "--rockmill=/bin/true", "--scale=1"];
    let (ok, said) = write(dir.path(), &RESULTS.replace("SECTION", "mixed"), PAGE, &other).unwrap();
    assert!(!ok && said.contains("mixed | mixgraph |  at scale 0.5"), "{said}");
    // The same for cells with other flags, to which pairs would be added.
    let results = RESULTS.replace("SECTION", "mixed").replace("\"command\": \"", "\"command\": \"rockmill bench");
    let other = ["--only=mixed", "--rows=mixgraph", "--rockmill=/bin/true", "--scale=0.5"];
    let (ok, said) = write(dir.path(), &results, PAGE, &other).unwrap();
    assert!(!ok && said.contains("with other flags"), "{said}");
    let (ok, said) = write(dir.path(), "{}", PAGE, &["--table", "--rows=no such row"]).unwrap();
    assert!(!ok && said.contains("no cell has these --rows"), "{said}");
}
