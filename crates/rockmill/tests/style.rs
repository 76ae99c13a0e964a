//! The project's rules of style that neither rustfmt nor clippy checks, as tests over the source tree.
//!
//! Each rule reports every place that breaks it as `file:line: what`, so that one run shows all violations.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

#[path = "style/layers.rs"]
mod layers;
#[path = "style/lexer.rs"]
mod lexer;
#[path = "style/supply.rs"]
mod supply;

use lexer::{Line, has_word};

/// Longest file; the aim is 200 to 700 lines.
const FILE_LINES_MAX: usize = 900;
/// Longest line, in characters.
const LINE_CHARS_MAX: usize = 120;

/// Where `unsafe` is allowed: files, or folders that end in `/`. Everything else is safe Rust.
const UNSAFE_ALLOWED: &[&str] = &[
    "crates/rockmill-bench/src/kernel.rs",
    "crates/rockmill-bench/src/kernel/linux.rs",
    "crates/rockmill-bench/src/offload/nfs/libnfs.rs",
    "crates/rockmill-bench/src/peers/lmdb.rs",
    "crates/rockmill-cli/src/cpu.rs",
    "crates/rockmill-cli/src/interrupt.rs",
    "crates/rockmill-fuzz/src/memory.rs",
    "crates/rockmill-io/src/aligned.rs",
    "crates/rockmill-io/src/pages.rs",
    "crates/rockmill-io/src/posix/",
    "crates/rockmill-io/src/prefetch.rs",
    "crates/rockmill-io/src/ring/arena.rs",
    "crates/rockmill-io/src/ring/kernel.rs",
    "crates/rockmill-kernel/src/sys.rs",
    "crates/rockmill-kernel/src/sys/",
    "crates/rockmill-nvme/src/tcp/tls/psk_session.rs",
    "crates/rockmill-phash/src/simd.rs",
    "crates/rockmill-rocksdb/src/ffi.rs",
    "crates/rockmill-rocksdb/src/store.rs",
    "crates/rockmill/src/memtable/arena.rs",
    "crates/rockmill/src/memtable/skiplist.rs",
];

/// Files and folders of the store whose atomics are only counters or hints, or belong to one thread: a schedule
/// explorer ignores them.
const NOT_EXPLORED: &[&str] =
    &["db/report/stats.rs", "iter/prefix_seek.rs", "statistics/", "sync.rs", "table/cache.rs", "table/cache/"];

/// Calls of `.unwrap()` and `panic!` outside tests that have no `// invariant:` comment: file and count. The list
/// may only shrink.
const UNWRAP_ALLOWED: &[(&str, usize)] =
    &[("crates/rockmill/src/memtable/arena.rs", 1), ("crates/rockmill/src/memtable/skiplist.rs", 1)];

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("crates/rockmill is two folders below the root").to_path_buf()
}

/// Every file of the project with one of these endings, as paths from the root, sorted.
fn files(endings: &[&str]) -> Vec<String> {
    fn walk(dir: &Path, root: &Path, endings: &[&str], out: &mut Vec<String>) {
        let entries = fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
        for entry in entries {
            let path = entry.expect("a readable folder").path();
            let name = path.file_name().expect("entries have names").to_string_lossy().into_owned();
            if path.is_dir() {
                if name != "target" && name != ".git" && name != "fixtures" && name != "shared" {
                    walk(&path, root, endings, out);
                }
            } else if endings.iter().any(|e| name.ends_with(e)) {
                let relative = path.strip_prefix(root).expect("below the root");
                out.push(relative.to_string_lossy().into_owned());
            }
        }
    }
    let root = root();
    let mut out = Vec::new();
    walk(&root, &root, endings, &mut out);
    out.sort();
    out
}

/// The programs under `scripts` and `.ci`.
fn scripts() -> Vec<String> {
    let entries = fs::read_dir(root().join("scripts")).expect("scripts");
    let names = entries.map(|e| e.expect("a readable folder").path()).filter(|p| p.is_file());
    let name = |p: PathBuf| format!("scripts/{}", p.file_name().expect("a name").to_string_lossy());
    names.map(name).chain([".ci/run".to_owned()]).collect()
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// The Rust files, lexed.
fn rust() -> Vec<(String, Vec<Line>)> {
    let files: Vec<_> = files(&[".rs"]).into_iter().map(|p| (p.clone(), lexer::lines(&read(&p)))).collect();
    assert!(files.len() > 20, "the source tree was not found");
    files
}

/// True for files whose whole content is test or benchmark code.
fn is_test_file(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    path.contains("/tests/")
        || path.contains("/benches/")
        || name == "tests.rs"
        || name == "build.rs"
        || name.ends_with("_tests.rs")
        || name.ends_with("_test.rs")
}

#[track_caller]
fn report(rule: &str, broken: &[String]) {
    assert!(broken.is_empty(), "{rule}; {} places:\n  {}", broken.len(), broken.join("\n  "));
}

#[test]
fn files_and_lines_are_short() {
    let mut broken = Vec::new();
    for path in files(&[".rs", ".cc", ".py", ".md"]) {
        let text = read(&path);
        if path.ends_with(".rs") && text.lines().count() > FILE_LINES_MAX {
            broken.push(format!("{path}: {} lines, at most {FILE_LINES_MAX}", text.lines().count()));
        }
        for (i, line) in text.lines().enumerate() {
            let chars = line.chars().count();
            // A table row or a link of a page cannot be wrapped.
            let unfoldable = path.ends_with(".md") && (line.starts_with('|') || line.contains("http"))
                // rustfmt does not break string literals.
                || (path.ends_with(".rs") && line.contains('"') && chars <= LINE_CHARS_MAX + 10);
            if chars > LINE_CHARS_MAX && !unfoldable {
                broken.push(format!("{path}:{}: {chars} characters, at most {LINE_CHARS_MAX}", i + 1));
            }
            if line.ends_with([' ', '\t']) {
                broken.push(format!("{path}:{}: ends in white space", i + 1));
            }
        }
    }
    report("files and lines are short", &broken);
}

#[test]
fn nothing_is_left_for_later() {
    // Written in two halves, so that this file does not violate its own rule.
    let words = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X"), concat!("HA", "CK")];
    let calls = [concat!("todo", "!"), concat!("unimplemented", "!"), concat!("dbg", "!")];
    let mut broken = Vec::new();
    for path in files(&[".rs", ".cc", ".py", ".md", ".toml"]) {
        for (i, line) in read(&path).lines().enumerate() {
            for word in words {
                if has_word(line, word) {
                    broken.push(format!("{path}:{}: {word}", i + 1));
                }
            }
        }
    }
    for (path, lines) in rust() {
        for (i, line) in lines.iter().enumerate() {
            for call in calls {
                if line.code.contains(call) {
                    broken.push(format!("{path}:{}: {call}", i + 1));
                }
            }
            if line.code.contains(concat!("#[", "ignore")) {
                broken.push(format!("{path}:{}: an ignored test", i + 1));
            }
            let allows = ["allow(unused", "allow(dead_code", "allow(clippy::all"];
            if allows.iter().any(|a| line.code.contains(a)) && !is_test_file(&path) {
                broken.push(format!("{path}:{}: hides dead code", i + 1));
            }
        }
    }
    report("nothing is left for later", &broken);
}

fn may_be_unsafe(path: &str) -> bool {
    UNSAFE_ALLOWED.iter().any(|a| if a.ends_with('/') { path.starts_with(a) } else { path == *a })
}

#[test]
fn unsafe_is_fenced_and_explained() {
    let mut broken = Vec::new();
    let mut used = vec![false; UNSAFE_ALLOWED.len()];
    for (path, lines) in rust() {
        let allowed = may_be_unsafe(&path);
        for (i, line) in lines.iter().enumerate() {
            if !has_word(&line.code, "unsafe") || line.code.trim_start().starts_with('#') {
                continue;
            }
            if !allowed {
                broken.push(format!("{path}:{}: unsafe outside the modules that may have it", i + 1));
                continue;
            }
            for (entry, used) in UNSAFE_ALLOWED.iter().zip(&mut used) {
                *used |= path.starts_with(entry);
            }
            // `unsafe fn` states its contract in its documentation, everything else in a comment above it.
            let declares = line.code.contains("unsafe fn") || line.code.contains("unsafe trait");
            let wanted = if declares { "# Safety" } else { "SAFETY:" };
            let signature_in_impl = declares && line.code.starts_with("    ") && explains(&lines, i, "SAFETY:");
            if !explains(&lines, i, wanted) && !signature_in_impl {
                broken.push(format!("{path}:{}: unsafe without `{wanted}`", i + 1));
            }
        }
    }
    for (entry, used) in UNSAFE_ALLOWED.iter().zip(used) {
        if !used {
            broken.push(format!("{entry}: has no unsafe any more; take it off the list"));
        }
    }
    report("unsafe stands in few, named modules and is explained", &broken);
}

/// Only one crate reports that a test was skipped: the harness hides other output, and `ROCKMILL_REQUIRE` does not turn
/// other messages into failures.
#[test]
fn skips_are_said_in_one_way() {
    let prints = ["println!", "print!", "stdout()", "stderr()", "write!", "writeln!"];
    // Expressions that check whether the machine has something, and the words that must follow if it does not.
    let probes = ["probe_kernel_engine(", ".batch_probe()", "Peer::Library.driver()", "Peer::Wheel.driver()"];
    let says = ["skip(", "need!(", "wish(", ".skipped()"];
    let mut broken = Vec::new();
    for (path, lines) in rust() {
        if path.starts_with("crates/rockmill-skip/") || path == "crates/rockmill/tests/style.rs" {
            continue;
        }
        let text = read(&path);
        let mut asks = None;
        for (i, (line, raw)) in lines.iter().zip(text.lines()).enumerate() {
            if !line.test && !is_test_file(&path) {
                continue;
            }
            let probe = !line.code.contains("assert!") && probes.iter().any(|p| line.code.contains(p));
            asks = asks.or(probe.then_some(i + 1));
            // The macro and its text may stand on two lines; strings are blanked in the code, not in the raw line.
            let printed = lines[i.saturating_sub(2)..=i].iter().any(|l| prints.iter().any(|p| l.code.contains(p)));
            let lower = raw.to_lowercase();
            if printed && line.code.contains('"') && (lower.contains("skipped") || lower.contains("skipping")) {
                broken.push(format!("{path}:{}: says that something is skipped; rockmill_skip::skip does", i + 1));
            }
        }
        if let Some(at) = asks
            && !says.iter().any(|s| text.contains(s))
        {
            broken.push(format!("{path}:{at}: looks what the machine has, and never says that it has it not"));
        }
    }
    report("skips are said by rockmill_skip alone", &broken);
}

/// Everything that a machine may be required to have is described, and some test needs it.
#[test]
fn what_tests_need_is_listed() {
    let (page, source) = (read("docs/reliability.md"), read("crates/rockmill-skip/src/lib.rs"));
    let used: String = rust().into_iter().map(|(p, _)| p).chain(scripts()).map(|p| read(&p)).collect();
    let mut broken = Vec::new();
    for needs in rockmill_skip::Needs::ALL {
        if !page.lines().any(|l| l.starts_with("| `") && l.contains(&format!("`{needs}`"))) {
            broken.push(format!("docs/reliability.md: the table of what tests need lacks `{needs}`"));
        }
        // In Rust, in a shell script, in Python.
        let uses = [format!("Needs::{needs:?}"), format!("skip {needs} "), format!("\"{needs}\", \"")];
        if !uses.iter().any(|u| used.contains(u)) {
            broken.push(format!("rockmill-skip: nothing needs `{needs}`"));
        }
    }
    assert!(source.contains("macro_rules! needs"), "scripts/skip reads the names there");
    report("what tests need is listed in docs/reliability.md", &broken);
}

/// There are other sorted things, such as lists of keys and of numbers; strategies do not search them.
#[test]
fn strategies_search_runs_in_one_way() {
    let mut broken = Vec::new();
    for (path, lines) in rust().iter().filter(|(path, _)| path.contains("rockmill/src/compaction/strategy/")) {
        for (i, line) in lines.iter().enumerate() {
            if ["partition_point(", "binary_search"].iter().any(|search| line.code.contains(search)) {
                broken.push(format!("{path}:{}: {}", i + 1, line.code.trim()));
            }
        }
    }
    report("a sorted run is searched with version::search", &broken);
}

/// Synchronization between threads comes from `crate::sync`, which a schedule explorer can replace.
#[test]
fn locks_and_threads_come_from_one_place() {
    let banned = ["std::sync::atomic", "std::thread::Builder", "std::thread::spawn", "std::thread::scope"];
    let mut broken = Vec::new();
    for (path, lines) in rust() {
        let Some(inside) = path.strip_prefix("crates/rockmill/src/") else { continue };
        if is_test_file(&path) || NOT_EXPLORED.iter().any(|a| inside.starts_with(a)) {
            continue;
        }
        for (i, line) in lines.iter().enumerate().filter(|(_, line)| !line.test) {
            let found = banned.iter().chain(&["parking_lot::", "arc_swap::"]).find(|b| line.code.contains(**b));
            if let Some(banned) = found {
                broken.push(format!("{path}:{}: {banned} instead of crate::sync", i + 1));
            }
        }
    }
    report("locks, atomics and threads come from crate::sync", &broken);
}

/// True if the comment of line `i` contains `what`: on the line itself, or in the comments above it. Attributes and the
/// beginning of the same statement may be in between.
fn explains(lines: &[Line], i: usize, what: &str) -> bool {
    if lines[i].comment.contains(what) {
        return true;
    }
    let mut statement_lines = 0;
    for line in lines[..i].iter().rev() {
        let code = line.code.trim();
        if !line.comment.is_empty() {
            if line.comment.contains(what) {
                return true;
            }
            if code.is_empty() {
                continue;
            }
        }
        if code.starts_with("#[") {
            continue;
        }
        if code.is_empty() || code.ends_with([';', '{', '}']) || statement_lines == 4 {
            return false;
        }
        statement_lines += 1;
    }
    false
}

#[test]
fn crates_without_unsafe_forbid_it() {
    let mut broken = Vec::new();
    for path in files(&["lib.rs", "main.rs"]) {
        let mut parts = path.splitn(4, '/');
        let (Some("crates"), Some(name), Some("src"), Some(file)) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        if file.contains('/') || UNSAFE_ALLOWED.iter().any(|a| a.starts_with(&format!("crates/{name}/"))) {
            continue;
        }
        if !read(&path).contains("#![forbid(unsafe_code)]") {
            broken.push(format!("{path}: lacks #![forbid(unsafe_code)]"));
        }
    }
    report("crates without unsafe forbid it", &broken);
}

#[test]
fn unwraps_are_counted_and_only_shrink() {
    let mut counts: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (path, lines) in rust() {
        if is_test_file(&path) {
            continue;
        }
        for (i, line) in lines.iter().enumerate() {
            let found = line.code.contains(".unwrap()") || has_word(&line.code, "panic!");
            if found && !line.test && !explains(&lines, i, "invariant:") {
                counts.entry(path.clone()).or_default().push(i + 1);
            }
        }
    }
    let mut broken = Vec::new();
    for (path, at) in &counts {
        let allowed = UNWRAP_ALLOWED.iter().find(|(p, _)| p == path).map_or(0, |(_, n)| *n);
        if at.len() > allowed {
            broken.push(format!(
                "{path}: {} (lines {at:?}), {allowed} allowed: return an error, or say why it holds in `// invariant:`",
                at.len()
            ));
        }
    }
    for (path, allowed) in UNWRAP_ALLOWED {
        let now = counts.get(*path).map_or(0, Vec::len);
        if now < *allowed {
            broken.push(format!("{path}: {now} now, {allowed} on the list: lower the number"));
        }
    }
    report("no unwrap or panic outside tests", &broken);
}

#[test]
fn no_path_of_one_machine() {
    // Built from parts, so that this file does not violate its own rule.
    let paths = ["home", "root", "work", "Users", "tmp/w"].map(|p| format!("/{p}/"));
    let mut broken = Vec::new();
    let mut all = files(&[".rs", ".cc", ".py", ".md", ".toml"]);
    all.extend(["scripts/setup", "scripts/test", "scripts/demo", ".ci/run"].map(String::from));
    for path in all {
        for (i, line) in read(&path).lines().enumerate() {
            for p in &paths {
                let starts = |at: usize| {
                    let before = line[..at].chars().next_back();
                    before.is_none_or(|c| c.is_whitespace() || "\"'`(=:".contains(c))
                };
                if line.match_indices(p.as_str()).any(|(at, _)| starts(at)) {
                    broken.push(format!("{path}:{}: {p}", i + 1));
                }
            }
        }
    }
    report("no path of one machine", &broken);
}

#[test]
fn manifests_have_licence_description_and_lints() {
    let mut broken = Vec::new();
    let top = read("Cargo.toml");
    for line in ["license = \"MIT OR Apache-2.0\"", "missing_docs = \"warn\"", "undocumented_unsafe_blocks = \"warn\""]
    {
        if !top.contains(line) {
            broken.push(format!("Cargo.toml: lacks {line}"));
        }
    }
    let manifests: Vec<_> = files(&["Cargo.toml"]).into_iter().filter(|p| p.starts_with("crates/")).collect();
    assert!(manifests.len() >= 5, "the crates were not found");
    for path in manifests {
        let text = read(&path);
        let published = [
            "readme.workspace = true",
            "keywords",
            "categories",
            "[package.metadata.docs.rs]\ntargets = [\"x86_64-unknown-linux-gnu\"]",
        ];
        let all = ["license.workspace = true", "description = \"", "[lints]\nworkspace = true"].into_iter();
        let wanted = all.chain(published.into_iter().filter(|_| !text.contains("publish = false")));
        for line in wanted {
            if !text.contains(line) {
                broken.push(format!("{path}: lacks {}", line.replace('\n', " ")));
            }
        }
    }
    for (path, start) in [("LICENSE-MIT", "MIT License"), ("LICENSE-APACHE", "Apache License")] {
        if !read(path).contains(start) {
            broken.push(format!("{path}: is not the {start}"));
        }
    }
    report("manifests have licence, description and lints", &broken);
}

/// A heading's anchor as GitHub makes it.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    text.chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

/// The lines of a page outside fenced code.
fn prose(text: &str) -> Vec<(usize, &str)> {
    let mut code = false;
    let mut out = Vec::new();
    for (i, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            code = !code;
        } else if !code {
            out.push((i + 1, line));
        }
    }
    out
}

#[test]
fn links_of_the_pages_lead_somewhere() {
    let mut broken = Vec::new();
    let mut links = 0;
    for path in files(&[".md"]) {
        let text = read(&path);
        let folder = root().join(&path).parent().expect("a file has a folder").to_path_buf();
        for (i, line) in prose(&text) {
            for (at, _) in line.match_indices("](") {
                let Some(target) = line[at + 2..].split(')').next() else { continue };
                if target.contains("://") || target.starts_with("mailto:") || target.contains(' ') {
                    continue;
                }
                links += 1;
                let (file, fragment) = target.split_once('#').unwrap_or((target, ""));
                let file = if file.is_empty() { root().join(&path) } else { folder.join(file) };
                if !file.exists() {
                    broken.push(format!("{path}:{i}: {target} does not exist"));
                    continue;
                }
                if fragment.is_empty() || file.extension().is_none_or(|e| e != "md") {
                    continue;
                }
                let page = fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
                if !prose(&page).iter().any(|(_, l)| l.starts_with('#') && anchor(l) == fragment) {
                    broken.push(format!("{path}:{i}: {target} has no such heading"));
                }
            }
        }
    }
    assert!(links > 0, "the pages have no links: the test sees nothing");
    report("links of the pages lead somewhere", &broken);
}

#[test]
fn public_pages_exist() {
    let mut broken = Vec::new();
    let pages = ["README.md", "CHANGELOG.md", "ARCHITECTURE.md"].into_iter();
    for page in pages.chain(["docs/guide.md", "docs/format.md", "docs/rocksdb.md", "docs/rocksdb-differences.md"]) {
        if !root().join(page).exists() {
            broken.push(format!("{page}: missing"));
        }
    }
    report("public pages exist", &broken);
}

#[test]
fn the_readme_has_the_figures_of_the_benchmarks_page() {
    let page = read("docs/benchmarks.md");
    let readme = read("README.md");
    let mut broken = Vec::new();
    let mut figures = 0;
    for (i, line) in readme.lines().enumerate() {
        // Work, one side, the other, the ratio in bold.
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [_, theirs, ours, ratio] = cells[..] else { continue };
        if ratio.starts_with("**") {
            figures += 1;
            if !page.contains(&format!("| {theirs} | {ours} | {ratio} ")) {
                broken.push(format!("README.md:{}: docs/benchmarks.md has no {theirs}, {ours}, {ratio}", i + 1));
            }
        }
    }
    assert!(figures > 3, "the table was not found");
    report("the README has the figures of docs/benchmarks.md", &broken);
}

/// `scripts/picture` draws the table of the README; each row has a title with its two figures, and its ratio in words.
#[test]
fn the_picture_shows_the_table_of_the_readme() {
    let (readme, picture) = (read("README.md"), read("docs/picture.svg"));
    let mut broken = Vec::new();
    let mut rows = 0;
    let table = readme.lines().skip_while(|line| !line.starts_with("| work |")).skip(2);
    for line in table.take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [work, theirs, ours, ratio] = cells[..] else {
            broken.push(format!("README.md: a row has other cells than four: {line}"));
            continue;
        };
        rows += 1;
        let name = work.trim_start_matches("*behind:*").trim();
        let title = format!("<title>{name}: RocksDB 11.8 {theirs}, Rockmill {ours}</title>");
        let value = format!(">{}</text>", ratio.trim_matches('*'));
        let row = picture.split("<g>").find(|row| row.starts_with(&title));
        if !row.is_some_and(|row| ratio.is_empty() || row.contains(&value)) {
            broken.push(format!("docs/picture.svg: lacks `{name}`, {theirs}, {ours}, {ratio}"));
        }
    }
    assert!(rows > 3, "the table was not found");
    if picture.matches("<g>").count() != rows {
        broken.push("docs/picture.svg: has other rows than the README".to_owned());
    }
    report("the picture shows the table of the README: run scripts/picture", &broken);
}
