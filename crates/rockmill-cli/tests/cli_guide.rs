//! The commands of the README and of docs/guide.md, run exactly as they are written there.

mod cli_support;

use std::path::Path;
use std::process::{Command, Stdio};

use cli_support::{ROCKMILL, Sandbox};

/// Lines that this test does not run: commands that install, build and test. Continuous integration runs `scripts/test`
/// and `scripts/demo` separately; `cargo install` and `scripts/build_rocksdb` take long, and are run by hand.
const NOT_RUN: [&str; 2] = ["scripts/", "cargo install "];

/// Numbers in the benchmark's command, and smaller ones for this test.
const SMALLER: [(&str, &str); 4] = [
    (" --peer rocksdb=target/rocksdb/librocksdb.so", ""),
    ("--repeat 5", "--repeat 1 --measure_device=false --measure_space=false"),
    ("--num=1000000", "--num=3000"),
    ("--reads=100000", "--reads=500"),
];

fn page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The shell blocks of a page, without the lines that are not run.
fn blocks(text: &str) -> Vec<String> {
    let blocks = text.split("```sh\n").skip(1).map(|b| b.split("```").next().unwrap_or_default());
    let run = |l: &&str| !NOT_RUN.iter().any(|start| l.starts_with(start));
    let kept = blocks.map(|b| b.lines().filter(run).map(|l| format!("{l}\n")).collect::<String>());
    kept.filter(|b| !b.trim().is_empty()).collect()
}

/// Runs a page's blocks one after the other in one directory; returns the number of commands.
fn run(name: &str) -> usize {
    let s = Sandbox::new();
    let bin = Path::new(ROCKMILL).parent().expect("a folder");
    let path = std::env::var("PATH").unwrap_or_default();
    let mut commands = 0;
    for block in blocks(&page(name)) {
        let block = SMALLER.iter().fold(block, |text, (from, to)| text.replace(from, to));
        let mut shell = Command::new("sh");
        shell.args(["-eu", "-c", &block]).env("PATH", format!("{}:{path}", bin.display()));
        let done = shell.current_dir(s.dir.path()).stdin(Stdio::null()).output().expect("sh runs");
        let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        assert!(done.status.success(), "{name}: {}\n{block}\n{out}{err}", done.status);
        commands += block.lines().filter(|l| l.starts_with("rockmill ")).count();
    }
    commands
}

#[test]
fn the_commands_of_the_readme_run() {
    assert!(run("README.md") >= 10, "the commands were not found");
}

#[test]
fn the_commands_of_the_guide_run() {
    assert!(run("docs/guide.md") >= 15, "the commands were not found");
}

/// Continuous integration or this workspace's tests run the README's two commands for trying it.
#[test]
fn the_readme_names_scripts_that_are_there() {
    let text = page("README.md");
    let named: Vec<&str> = text.lines().filter(|l| l.starts_with("scripts/")).collect();
    assert!(named.contains(&"scripts/demo") && named.contains(&"scripts/test"), "{named:?}");
    for line in named {
        let script = line.split_whitespace().next().unwrap_or_default();
        assert!(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(script).is_file(), "{script} is missing");
    }
    assert!(page(".ci/run").contains("scripts/test"));
}
