//! Runs every example program, which must succeed: a broken example is worse than none.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

/// Benchmarks, which take long and check nothing; only compiled.
const NOT_RUN: [&str; 3] = ["index_merge_bench", "memtable_bench", "table_bench"];

/// Cargo puts examples next to the directory of the test programs.
fn folder() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows where it is");
    test.ancestors().nth(2).expect("tests lie in target/<profile>/deps").join("examples")
}

/// The time of the last change to a file, or to any file below a directory.
fn changed(path: &Path) -> SystemTime {
    let this = path.metadata().and_then(|m| m.modified()).expect("a time");
    match std::fs::read_dir(path) {
        Ok(entries) => entries.map(|e| changed(&e.expect("a readable folder").path())).fold(this, SystemTime::max),
        Err(_) => this,
    }
}

#[test]
fn every_example_runs() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sources = std::fs::read_dir(here.join("examples")).expect("a folder");
    let mut names: Vec<String> = sources
        .map(|e| e.expect("a readable folder").path())
        .filter(|p| p.extension().is_some_and(|e| e == "rs"))
        .map(|p| p.file_stem().expect("a name").to_string_lossy().into_owned())
        .filter(|n| !NOT_RUN.contains(&n.as_str()))
        .collect();
    names.sort();
    assert!(names.len() > 2, "the examples were not found");

    // `cargo test` has built them; `cargo test --test examples` alone has not. The package alone has other features
    // than in the workspace, so an unnecessary build would build the library again.
    let last = changed(&here.join("src")).max(changed(&here.join("examples")));
    let built = |name: &String| folder().join(name).metadata().is_ok_and(|m| m.modified().is_ok_and(|at| at > last));
    if !names.iter().all(built) {
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--examples", "--manifest-path"]).arg(here.join("Cargo.toml"));
        if !cfg!(debug_assertions) {
            build.arg("--release");
        }
        assert!(build.status().expect("cargo runs").success(), "the examples do not compile");
    }

    let mut failed = Vec::new();
    for name in &names {
        // The pages' examples create their databases in the current directory.
        let here = tempfile::tempdir().expect("a temporary directory");
        let done = Command::new(folder().join(name)).current_dir(here.path()).output();
        let done = done.unwrap_or_else(|e| panic!("{name} does not start: {e}"));
        println!("{name}: {}", done.status);
        if !done.status.success() {
            let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
            failed.push(format!("{name}: {}\n{out}{err}", done.status));
        }
    }
    assert!(failed.is_empty(), "{} examples failed:\n{}", failed.len(), failed.join("\n"));
}

/// Pages, and the example that their code is from.
const PAGES: [(&str, &str); 2] = [("README.md", "people"), ("docs/guide.md", "guide")];

/// The lines of text, without indentation and empty ones.
fn lines(text: &str) -> Vec<&str> {
    text.lines().map(str::trim).filter(|l| !l.is_empty()).collect()
}

#[test]
fn the_code_of_the_pages_is_that_of_examples() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: PathBuf| std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    for (page, example) in PAGES {
        let text = read(here.join("../..").join(page));
        let program = read(here.join("examples").join(example).with_extension("rs"));
        let program = lines(&program);
        let mut blocks = 0;
        for block in text.split("```rust").skip(1) {
            let code =
                block.split_once('\n').and_then(|(_, rest)| rest.split("```").next()).expect("a block that ends");
            let code = lines(code);
            assert!(
                !code.is_empty() && program.windows(code.len()).any(|part| part == code),
                "{page}: this block is not in examples/{example}.rs:\n{}",
                code.join("\n")
            );
            blocks += 1;
        }
        assert!(blocks > 0, "{page} has no code: the test sees nothing");
    }
}
