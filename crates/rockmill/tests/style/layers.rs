//! Which module of the store may use which: a module uses its own layer and those below, never one above. The same
//! holds within `compaction/` and for the rooms of `db/`, except for declarations in their `mod.rs` and in
//! `db/state.rs`: all modules there may use what a compaction is, and the structs that combine the rooms. A table lists
//! what a room uses of a higher room through these structs. Only the front uses memtables.

use std::collections::HashMap;

use super::lexer::{self, Line};
use super::{is_test_file, report, rust};

/// The store's layers, lowest first. A module belongs to the longest entry that its path begins with, so that a file
/// may be in another layer than its folder.
const LAYERS: &[&[&str]] = &[
    &["sync", "error"],
    &["panics", "perf_context", "options::parse", "options::setters", "range_del"],
    &["merge_operator", "compaction_filter", "compaction_workers", "statistics", "env", "helpers", "properties"],
    &["rate_limiter", "info_log", "event_listener"],
    &["pacing::common", "pacing::flush_priority", "pacing::read_protection", "pacing::file", "pacing::job_device"],
    &["iter"],
    // A lookup's state holds blocks of the cache, and tables fill it.
    &["table", "iter::get"],
    &["memtable"],
    &["options"],
    &["pacing"],
    &["version"],
    &["front"],
    &["iter::level"],
    // Compactions: picking the next one from the tree's state, and modules that need no more than that.
    &[
        "compaction::file_ranges",
        "compaction::model",
        "compaction::page_cache",
        "compaction::pieces",
        "compaction::strategy",
        "compaction::subtrees",
        "compaction::table_format",
        "compaction::thread_cpu",
        "compaction::unique_id",
        "compaction::wire",
    ],
    &["compaction::commit"],
    // A job and its result as data.
    &["compaction::spec", "compaction::result"],
    // The user code that a spec names, and its callers.
    &["compaction::objects"],
    &["compaction::filter"],
    &["compaction::host"],
    &["compaction::events"],
    &["compaction::local_host"],
    // The description of the store's own jobs, and the execution of a spec on any host.
    &["compaction::describe"],
    &["compaction::plan"],
    &["compaction::tombstones"],
    &["compaction::sst_map"],
    &["compaction::merge"],
    &["compaction::resolve"],
    &["compaction::output"],
    &["compaction::engine"],
    &["compaction::flush", "compaction::rewrite"],
    &["compaction::job"],
    // Jobs that another machine does, from both sides.
    &["compaction::elsewhere", "compaction::worker"],
    // Re-exports the interface for other modules.
    &["compaction"],
    // The rooms of `db/`; its module documentation explains the order.
    &["db::files"],
    &["db::catalog"],
    &["db::report"],
    &["db::read"],
    &["db::write"],
    // Changes and queries by users of an open database.
    &["db::catalog::families", "db::catalog::set_options", "db::report::approximate_sizes", "db::report::live_files"],
    &["db::jobs"],
    // Whole files that come and go.
    &["db::files::checkpoint", "db::files::delete_files", "db::files::export", "db::files::ingest"],
    // What users ask of jobs, too.
    &[
        "db::report::explain",
        "db::report::memory_usage",
        "db::report::metrics",
        "db::report::properties",
        "db::report::stats_text",
    ],
    &["db::report::prometheus"],
    &["db::open"],
    // Operations on databases that are not open.
    &["db::files::repair", "db::report::summary"],
    // The crate root re-exports what is below it.
    &["db", "backup", "sst_file_writer", "internals", "perf"],
];

/// Folders with files in several layers, which their `mod.rs` combines. Re-exports of `mod.rs` belong to the declaring
/// module; its own declarations may be used by all files of the folder.
const FOLDERS: &[&str] = &["compaction", "db"];

/// Items above a module that it may use. Unused entries are errors.
const PATHS_UP: &[(&str, &str)] = &[
    // A host carries the shared state of a machine's jobs, for the engines.
    ("compaction::host", "compaction::engine::SharedEngines"),
];

/// Which parts of memtables modules other than the front may use; an empty name stands for all other modules. The front
/// creates, fills, reads and drops memtables. The compiler protects what is private in `front`.
const MEMTABLE_USERS: &[(&str, &str)] = &[
    // Users create it, and share it between databases.
    ("", "memtable::write_buffer_manager"),
    // The least that an option may be.
    ("options::check", "memtable::BLOCK_SIZE_MIN"),
    // For the benchmarks of the skip list and of index merges, and for schedules of these.
    ("internals", "memtable::LeftOut"),
    ("internals", "memtable::MemTable"),
    ("internals", "memtable::MemTableFilter"),
    ("internals", "memtable::MergePlan"),
    ("internals", "memtable::MergedMemTable"),
    ("internals", "memtable::SealedTable"),
    // The unused part of a full memtable.
    ("internals::simulation", "memtable::arena_step"),
    ("internals::simulation", "memtable::block_of_arena"),
];

/// The fields of `DbInner` with the state of rooms, and their owners. All rooms may use the settings of the open
/// (`opened`).
const DOORS: &[(&str, &str)] = &[
    ("catalog", "db::catalog"),
    ("files", "db::files"),
    ("readers", "db::read"),
    ("recovery", "db::jobs"),
    ("reporting", "db::report"),
    ("writers", "db::write"),
];

/// The methods of `State` and `CfState` that give access to a room's state under the database's lock, and their owners.
/// All rooms may use the other declarations in `db/state.rs`.
const DOORS_OF_STATE: &[(&str, &str)] = &[
    ("errors", "db::jobs"),
    ("errors_mut", "db::jobs"),
    ("job_stats", "db::report"),
    ("job_stats_mut", "db::report"),
    ("jobs", "db::jobs"),
    ("jobs_and_family", "db::jobs"),
    ("jobs_and_version", "db::jobs"),
    ("jobs_mut", "db::jobs"),
];

/// The types that combine the rooms, and those that combine the state under the lock. Methods that a room adds in its
/// own `impl` belong to that room.
const DB: &[&str] = &["Db", "DbInner"];
const STATE: &[&str] = &["State", "CfState"];

/// What a module uses of a higher room through `Db`, `DbInner`, `State` and `CfState`: doors and methods. Anything else
/// is an error, and so are unused entries.
const CALLS_UP: &[(&str, &str)] = &[
    // The code that deletes files reports it.
    ("db::files::deletion", "table_deleted"),
    // An installed version changes what writers may do and what readers hold; a failed write of the MANIFEST stops
    // both.
    ("db::catalog::install", "readers"),
    ("db::catalog::install", "set_background_error"),
    ("db::catalog::install", "update_pressure"),
    ("db::catalog::install", "writers"),
    // Tables tell with which merge operator they were written.
    ("db::catalog::merge_names", "readers"),
    ("db::catalog::options_file", "readers"),
    // The MANIFEST stores where the next compactions of levels begin; snapshots store for which oldest snapshot another
    // bottommost table becomes due.
    ("db::catalog::install", "jobs"),
    // With another version, and with other options, other jobs are due.
    ("db::catalog::install", "rescore"),
    ("db::catalog::set_options", "rescore"),
    // When the oldest snapshot goes, tables at the bottom may be due.
    ("db::read::snapshot", "raise_oldest_snapshot"),
    // Listeners are notified of the oldest snapshot.
    ("db::report::events", "readers"),
    // A failed log stops jobs, and failed jobs stop writers.
    ("db::write", "errors"),
    ("db::write", "set_background_error"),
    // The write rate depends on the compaction debt.
    ("db::write::pressure", "jobs"),
    // Periodic work is a job; one of these writes statistics to the info log.
    ("db::jobs::timer", "stats_text"),
    ("db::jobs::timer", "remove_status_file"),
    ("db::jobs::timer", "update_status_file"),
    // Options set the number of threads, and the open sets how values are read.
    ("db::catalog::families", "create_cf_with_ttl"),
    ("db::catalog::set_options", "start_missing_threads"),
];

/// The layer of a path below the crate: its number, and the matching entry.
fn layer(path: &str) -> Option<(usize, &'static str)> {
    let all = LAYERS.iter().enumerate().flat_map(|(i, names)| names.iter().map(move |name| (i, *name)));
    all.filter(|(_, name)| is_in(path, name)).max_by_key(|(_, name)| name.len())
}

/// The module of a file: `db/write/group.rs` is `db::write::group`.
fn module_of(file: &str) -> String {
    let path = file.trim_end_matches(".rs").trim_end_matches("/mod");
    path.replace('/', "::")
}

/// The paths of a `use` tree, without `use` and the semicolon.
fn flat(tree: &str, prefix: &str, out: &mut Vec<String>) {
    let tree = tree.trim();
    let Some(open) = tree.find('{') else {
        out.push(format!("{prefix}{tree}"));
        return;
    };
    let prefix = format!("{prefix}{}", tree[..open].trim());
    let inner = &tree[open + 1..tree.rfind('}').unwrap_or(tree.len())];
    let (mut depth, mut start) = (0, 0);
    for (i, c) in inner.char_indices().chain([(inner.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                if !inner[start..i].trim().is_empty() {
                    flat(&inner[start..i], &prefix, out);
                }
                start = i + 1;
            }
            _ => {}
        }
    }
}

/// A path from the crate's root: `super` and `self` are those of `module`, and a bare name may be a child module with
/// its own layer. `None` for another crate.
fn from_root(path: &str, module: &str) -> Option<String> {
    let mut at: Vec<&str> = module.split("::").collect();
    let mut parts = path.split("::").map(str::trim).peekable();
    match *parts.peek()? {
        "crate" => {
            at.clear();
            parts.next();
        }
        "self" => {
            parts.next();
        }
        "super" => {
            while parts.next_if_eq(&"super").is_some() {
                at.pop();
            }
        }
        first => {
            let child = format!("{module}::{first}");
            if !LAYERS.iter().any(|names| names.contains(&&*child)) {
                return None;
            }
        }
    }
    at.extend(parts);
    Some(at.join("::"))
}

/// The paths in a file's code outside tests, with their lines.
fn paths(lines: &[Line]) -> Vec<(usize, String)> {
    let mut out = Vec::new();
    let mut tree: Option<(usize, String)> = None;
    for (i, line) in lines.iter().enumerate().filter(|(_, line)| !line.test) {
        let mut code = line.code.as_str();
        let begins = code.trim_start().trim_start_matches("pub").trim_start();
        let begins = begins.strip_prefix('(').and_then(|b| Some(b.split_once(')')?.1)).unwrap_or(begins).trim_start();
        if tree.is_none()
            && let Some(rest) = begins.strip_prefix("use ")
        {
            tree = Some((i + 1, String::new()));
            code = rest;
        }
        if let Some((at, text)) = &mut tree {
            text.push_str(code);
            if let Some(end) = text.find(';') {
                let (mut found, at) = (Vec::new(), *at);
                flat(&text[..end], "", &mut found);
                out.extend(found.into_iter().map(|path| (at, path.split(" as ").next().unwrap_or("").to_owned())));
                tree = None;
            }
            continue;
        }
        // Visibility is not a use.
        let code = code.replace("pub(in crate::", "pub(in ");
        let part = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
        for word in code.split(|c| !part(c)).filter(|w| w.contains("::") && !w.starts_with(':')) {
            out.push((i + 1, word.trim_end_matches(':').to_owned()));
        }
    }
    out
}

/// The store's files that are not tests, each with its module and its lines.
fn modules() -> Vec<(String, String, Vec<Line>)> {
    let module = |(file, lines): (String, Vec<Line>)| {
        let inside = file.strip_prefix("crates/rockmill/src/")?;
        let left_out = inside == "lib.rs" || is_test_file(&file) || inside.contains("/tests/");
        let module = module_of(inside);
        (!left_out).then_some((file, module, lines))
    };
    rust().into_iter().filter_map(module).collect()
}

/// The modules that declare what the `mod.rs` of a folder re-exports, by name.
fn named_in(folder: &str, modules: &[(String, String, Vec<Line>)]) -> HashMap<String, String> {
    let (_, module, lines) = modules.iter().find(|(_, module, _)| module == folder).expect("it has a mod.rs");
    let found = paths(lines).into_iter().filter_map(|(_, path)| from_root(&path, module));
    found.filter_map(|path| Some((path.rsplit("::").next()?.to_owned(), path))).collect()
}

/// The module to which `path` refers in a file of `folder`; `None` for the `mod.rs`'s own declarations.
fn behind<'a>(path: &'a str, folder: &str, named: &'a HashMap<String, String>) -> Option<&'a str> {
    let of_folder = path.strip_prefix(folder).and_then(|rest| rest.strip_prefix("::"));
    match of_folder.filter(|_| layer(path).is_some_and(|(_, name)| name == folder)) {
        Some(name) => named.get(name.split("::").next()?).map(String::as_str),
        None => Some(path),
    }
}

/// A character of a name.
fn of_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// For each line, whether it is in an `impl` block of one of these types.
fn in_impl<'a>(lines: &'a [Line], of: &'a [&'a str]) -> impl Iterator<Item = bool> + 'a {
    lines.iter().scan(false, move |inside, line| {
        let begins = line.code.strip_prefix("impl ").and_then(|code| code.strip_suffix(" {"));
        *inside = begins.map_or(*inside && !line.code.starts_with('}'), |name| of.contains(&name));
        Some(*inside)
    })
}

/// True for the modules that combine the rooms.
fn is_in_db_itself(module: &str) -> bool {
    matches!(module, "db" | "db::state")
}

/// The methods of these types with the modules that declare them.
fn methods_of<'a>(modules: &'a [(String, String, Vec<Line>)], of: &[&str]) -> HashMap<&'a str, Vec<&'a str>> {
    let mut found: HashMap<&str, Vec<&str>> = HashMap::new();
    // A `State` elsewhere is another.
    for (_, module, lines) in modules.iter().filter(|(_, module, _)| of != STATE || is_in(module, "db")) {
        for (line, _) in lines.iter().zip(in_impl(lines, of)).filter(|(line, inside)| *inside && !line.test) {
            let item = line.code.strip_prefix("    ").filter(|item| !item.starts_with(' '));
            let Some((_, rest)) = item.and_then(|item| item.split_once("fn ")) else { continue };
            found.entry(rest.split(|c| !of_name(c)).next().unwrap_or("")).or_default().push(module);
        }
    }
    found
}

/// Accesses after a dot in code outside tests, with their lines: the fields and methods of a `Db` or `DbInner`
/// (`true`), and the methods of anything else. Methods of `State` and `CfState` are recognized by name.
fn behind_dots(lines: &[Line]) -> Vec<(usize, bool, &str)> {
    let mut out = Vec::new();
    let mut before = "";
    for ((i, line), inside) in lines.iter().enumerate().zip(in_impl(lines, DB)).filter(|((_, line), _)| !line.test) {
        for (at, _) in line.code.match_indices('.') {
            let (left, right) = (line.code[..at].trim(), &line.code[at + 1..]);
            let left = if left.is_empty() { before } else { left };
            let of = left.rsplit(|c| !of_name(c)).next().unwrap_or("");
            let of_db = matches!(of, "db" | "inner") || (of == "self" && inside);
            let name = right.split(|c| !of_name(c)).next().unwrap_or("");
            if of_db || (!name.is_empty() && right[name.len()..].starts_with('(')) {
                out.push((i + 1, of_db, name));
            }
        }
        if !line.code.trim().is_empty() {
            before = line.code.trim();
        }
    }
    out
}

fn is_in(path: &str, name: &str) -> bool {
    path == name || path.strip_prefix(name).is_some_and(|rest| rest.starts_with("::"))
}

#[test]
fn rooms_call_what_is_below_them() {
    let modules = modules();
    let (of_db, of_state) = (methods_of(&modules, DB), methods_of(&modules, STATE));
    let mut unused = CALLS_UP.to_vec();
    let mut broken = Vec::new();
    for (file, module, lines) in modules.iter().filter(|(_, module, _)| module.starts_with("db::")) {
        let own = layer(module).map(|(own, _)| own);
        // What `db/mod.rs` and `db/state.rs` have is everybody's.
        let is_above = |place: &str| !is_in_db_itself(place) && layer(place).map(|(other, _)| other) > own;
        for (line, is_db, name) in behind_dots(lines) {
            let (doors, methods) = if is_db { (DOORS, &of_db) } else { (DOORS_OF_STATE, &of_state) };
            let door = doors.iter().find(|(door, _)| *door == name).map(|(_, place)| std::slice::from_ref(place));
            let places = door.or(methods.get(name).map(Vec::as_slice)).unwrap_or(&[]);
            if places.is_empty() || !places.iter().all(|place| is_above(place)) {
                continue;
            }
            if CALLS_UP.iter().any(|(who, what)| is_in(module, who) && *what == name) {
                unused.retain(|(who, what)| !(is_in(module, who) && *what == name));
            } else {
                broken.push(format!("{file}:{line}: uses {name} of {}, which is above it", places.join(" and ")));
            }
        }
    }
    broken.extend(unused.iter().map(|(who, what)| format!("{who} does not use {what}, which CALLS_UP allows it to")));
    report("rooms call what is below them", &broken);
}

#[test]
fn memtables_are_the_fronts_alone() {
    let mut broken = Vec::new();
    for (file, module, lines) in modules() {
        if is_in(&module, "front") || is_in(&module, "memtable") {
            continue;
        }
        let allowed = |path: &str| {
            MEMTABLE_USERS.iter().any(|(who, what)| (who.is_empty() || is_in(&module, who)) && is_in(path, what))
        };
        for (line, path) in paths(&lines) {
            let Some(path) = from_root(&path, &module).filter(|path| is_in(path, "memtable")) else { continue };
            if !allowed(&path) {
                broken.push(format!("{file}:{line}: uses {path}; the methods of `front` are for this"));
            }
        }
    }
    report("memtables are the front's alone", &broken);
}

#[test]
fn modules_use_what_is_below_them() {
    let mut broken = Vec::new();
    let modules = modules();
    let named: Vec<_> = FOLDERS.iter().map(|folder| (*folder, named_in(folder, &modules))).collect();
    let mut unused = PATHS_UP.to_vec();
    for (file, module, lines) in modules {
        let Some((own, name)) = layer(&module) else {
            broken.push(format!("{file}: stands in no layer"));
            continue;
        };
        if FOLDERS.contains(&name) && module != name && !is_in_db_itself(&module) {
            broken.push(format!("{file}: stands in no layer of {name}"));
        }
        let folder = named.iter().find(|(folder, _)| module != *folder && is_in(&module, folder));
        for (line, path) in paths(&lines) {
            // Within an inline module, `super` is the file itself, whose names have no layer.
            let inline = path.starts_with("super") && lines[line - 1].code.starts_with(' ');
            let Some(path) = from_root(&path, &module) else { continue };
            let declared = folder.map_or(Some(&*path), |(folder, named)| behind(&path, folder, named));
            let Some(path) = declared else { continue };
            match layer(path) {
                Some((other, _)) if other > own && PATHS_UP.contains(&(&*module, path)) => {
                    unused.retain(|up| *up != (&*module, path));
                }
                Some((other, name)) if other > own => {
                    broken.push(format!("{file}:{line}: uses {path}; {name} is above it"));
                }
                // The crate root's re-exports are for users: the modules themselves have their own layers.
                None if !inline && own + 1 < LAYERS.len() => {
                    broken.push(format!("{file}:{line}: {path} stands in no layer"))
                }
                _ => {}
            }
        }
    }
    broken.extend(unused.iter().map(|(who, what)| format!("{who} does not use {what}, which PATHS_UP allows it to")));
    report("modules use what is below them", &broken);
}

#[test]
fn paths_are_found() {
    let mut found = Vec::new();
    flat("crate::a::{self, b::{C, d}, E as F}", "", &mut found);
    assert_eq!(found, ["crate::a::self", "crate::a::b::C", "crate::a::b::d", "crate::a::E as F"]);
    assert_eq!(from_root("super::super::x::Y", "db::write::group").as_deref(), Some("db::x::Y"));
    assert_eq!(from_root("crate::table::Cache", "db").as_deref(), Some("table::Cache"));
    assert_eq!(from_root("std::fmt", "db"), None);
    assert_eq!(from_root("self::level::X", "iter").as_deref(), Some("iter::level::X"));
    assert_eq!(from_root("level::X", "iter").as_deref(), Some("iter::level::X"));
    assert_eq!(from_root("merging::X", "iter"), None, "of the same layer");
    assert_eq!(from_root("super::Db", "helpers").as_deref(), Some("Db"));
    let file = "pub(in crate::a) use crate::{b::C,\n    d};\npub(in crate::a) fn f() { level::g(crate::e::h) }\n";
    let found: Vec<_> = paths(&lexer::lines(file)).into_iter().map(|(line, path)| format!("{line} {path}")).collect();
    assert_eq!(found, ["1 crate::b::C", "1 crate::d", "3 level::g", "3 crate::e::h"]);
    assert_eq!(layer("iter::level::LevelIterator").map(|(_, name)| name), Some("iter::level"));
    assert_eq!(layer("iterators"), None);
    let modules = modules();
    let in_db = named_in("db", &modules);
    assert_eq!(behind("db::Snapshot", "db", &in_db), Some("db::read::snapshot::Snapshot"));
    assert_eq!(behind("db::read::snapshot::Snapshot", "db", &in_db), Some("db::read::snapshot::Snapshot"));
    assert_eq!(behind("db::DbInner", "db", &in_db), None);
    assert_eq!(behind("version::Version", "db", &in_db), Some("version::Version"));
    let in_compaction = named_in("compaction", &modules);
    assert_eq!(behind("compaction::JobHost", "compaction", &in_compaction), Some("compaction::host::JobHost"));
    assert_eq!(behind("compaction::job::run", "compaction", &in_compaction), Some("compaction::job::run"));
    assert_eq!(behind("compaction::Compaction", "compaction", &in_compaction), None);
    let file = "impl Db {\n    pub fn a(&self) {\n        self.inner\n            .b().c(db.d::<E>(), of.self_.g);\n    }\n}\n\
                impl F {\n    fn h(&self) { self.i() }\n}\n\
                impl State {\n    fn k(&self) { self.jobs().l }\n}\n";
    let lines = lexer::lines(file);
    let (db, other) = (true, false);
    assert_eq!(
        behind_dots(&lines),
        [(3, db, "inner"), (4, db, "b"), (4, other, "c"), (4, db, "d"), (8, other, "i"), (11, other, "jobs")]
    );
    let modules = [(String::new(), "db::here".to_owned(), lines)];
    assert_eq!(methods_of(&modules, DB), HashMap::from([("a", vec!["db::here"])]));
    assert_eq!(methods_of(&modules, STATE), HashMap::from([("k", vec!["db::here"])]));
}
