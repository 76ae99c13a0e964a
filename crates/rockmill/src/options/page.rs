//! Generates the page `docs/options.md` from the declarations, and checks that they match.

use std::fmt::Write as _;
use std::path::Path;

use super::declare::{Kind, TextOption};
use super::known::{self, Meaning, Section};
use super::{BlockBasedOptions, CfOptions, DbOptions, TphTableOptions};
use crate::options::check;

/// The command that regenerates the page.
const HOW: &str = "ROCKMILL_WRITE_DOCS=1 cargo test -p rockmill --lib options_page";

const HEAD: &str = "\
# Options

Every option of Rockmill, and every option of RocksDB that Rockmill does not have, by RocksDB's names. The page is made
from the declarations in `crates/rockmill/src/options`; a test says when it is out of date.

Options are given when opening (`Options`), as text (`Options::from_string`), or from the database's OPTIONS file
(`OptionsLoader`, `Options::load_latest`). Those marked \"yes\" also change while the database is open: with `set_options`
for column families and their tables (`block_based_table_factory={block_size=16K}`), with `set_db_options` for the
database. Each open for writing and each change leaves a new OPTIONS file; the two newest are kept. `rockmill options`
shows what is stored, and `--option NAME=VALUE` sets any option of this page.

`db_paths` and `cf_paths` as text are `{{path=/fast;target_size=10G}:{path=/slow}}`.

TPH tables (`table_factory`) have options of their own and share those of block-based tables, except `filter_policy`,
`whole_key_filtering`, `partition_filters`, `index_type`, `metadata_block_size`, `data_block_index_type` and
`data_block_hash_table_util_ratio`. As text: `table_factory={id=TphTable;piece_limit=8;block_size=16K}` or
`tph_table_factory={piece_limit=8;block_size=16K}`. An open column family keeps its kind: `set_options` takes
`tph_table_factory={...}` where it writes TPH tables, `block_based_table_factory={...}` where it writes block-based
ones, and `table_factory.block_size` for both.

Options that are Rockmill's own are given in code or on a command line. An OPTIONS file with one of them is refused,
because anybody may have written it (docs/security.md); so is one with `db_paths` or `cf_paths`, which RocksDB writes
into none. Only TPH tables and their options stand in OPTIONS files, in a line that RocksDB takes for a comment.

Where the default is the store's choice, the last column says what that is; an OPTIONS file has 2^64 - 2 there.

At open, values outside of the given range are adjusted, with a line in the info log, or refused; so are some that do
not go together (docs/rocksdb-differences.md, \"Options that are adjusted\").
";

const TAIL: &str = "\n\
## RocksDB's options that Rockmill does not have

An OPTIONS file may have them. A value of the second column is taken silently. Any other has no effect, for the reason
in the third; where that is empty, Rockmill has one way of doing this. Loading (`OptionsLoader`) then warns, keeps the
value and writes it back; option strings and `set_options` refuse it. Where the reason begins with \"refused\", loading
refuses the file. Options that RocksDB itself reads and ignores are taken at any value.
";

/// What RocksDB stores for an option whose value the store chooses.
const CHOSEN: &str = "18446744073709551614";

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "\\<").replace("[`", "`").replace("`]", "`")
}

fn declared<O: Default>(page: &mut String, title: &str, table: &[TextOption<O>]) {
    let _ =
        write!(page, "\n## {title}\n\n| option | default | changes while open | what it does |\n|---|---|---|---|\n");
    let base = O::default();
    for option in table {
        let Some(default) = (option.write)(&base) else { continue };
        let changes = if option.kind.is_mutable() { "yes" } else { "" };
        let own = if matches!(option.kind, Kind::Own | Kind::OwnFixed) { " Rockmill's own." } else { "" };
        let words: Vec<&str> = option.doc.iter().map(|line| line.trim()).collect();
        let default = match &*default {
            "" => "(empty)".to_owned(),
            CHOSEN => "the store's choice".to_owned(),
            text => format!("`{}`", cell(text)),
        };
        let words = format!("{}{}{own}", cell(&words.join(" ")), range_words(option.name));
        let _ = writeln!(page, "| `{}` | {default} | {changes} | {words} |", option.name);
    }
}

/// The range of an option, and of the options nested in it.
fn range_words(name: &str) -> String {
    let inner = |n: &'static str| match n.strip_prefix(name) {
        Some("") => Some(String::new()),
        Some(rest) => rest.strip_prefix('.').map(|inner| format!(" of `{inner}`")),
        None => None,
    };
    let of_this = check::ranges().filter_map(|(n, words)| Some(format!(" Range{}: {words}.", inner(n)?)));
    of_this.collect()
}

/// What an option takes silently, separated by `|`, and why another value has no effect.
fn usual_and_why(section: Section, name: &str, meaning: Meaning) -> (String, String) {
    match meaning {
        Meaning::NoEffect(usual, known::ONE_WAY) => (usual.to_owned(), String::new()),
        Meaning::NoEffect(usual, why) => (usual.to_owned(), why.to_owned()),
        Meaning::Object(usual) => (usual.to_owned(), "not built in".to_owned()),
        Meaning::Refused(usual, why) => (usual.to_owned(), format!("refused: {why}")),
        Meaning::Struct => {
            let inner = known::names(section).filter_map(|(n, meaning)| {
                let inner = n.strip_prefix(name)?.strip_prefix('.')?;
                let (usual, why) = usual_and_why(section, n, meaning);
                Some((format!("{inner}={usual};"), why))
            });
            let (values, whys): (Vec<String>, Vec<String>) = inner.unzip();
            assert!(whys.windows(2).all(|w| w[0] == w[1]), "{name}: its row has one reason for all options in it");
            (format!("{{{}}}", values.concat()), whys.into_iter().next().unwrap_or_default())
        }
        Meaning::Retired => Default::default(),
    }
}

fn undeclared<O>(page: &mut String, title: &str, section: Section, table: &[TextOption<O>]) {
    let _ = write!(page, "\n### {title}\n\n| option | taken silently | why another has no effect |\n|---|---|---|\n");
    for (name, meaning) in known::names(section) {
        let of_struct = |(outer, _)| known::meaning(section, outer) == Some(Meaning::Struct);
        if name.split_once('.').is_some_and(of_struct) || table.iter().any(|o| o.name == name && o.kind.has_text()) {
            continue;
        }
        let (usual, why) = usual_and_why(section, name, meaning);
        let usual: Vec<String> = usual
            .split('|')
            .map(|v| if v.is_empty() { "(empty)".to_owned() } else { format!("`{}`", cell(v)) })
            .collect();
        let _ = writeln!(page, "| `{name}` | {} | {} |", usual.join(", "), cell(&why));
    }
}

fn page() -> String {
    let mut page = HEAD.to_owned();
    declared(&mut page, "The database", DbOptions::TEXT);
    declared(&mut page, "Column families", CfOptions::TEXT);
    declared(&mut page, "Tables", BlockBasedOptions::TEXT);
    declared(&mut page, "TPH tables", TphTableOptions::TEXT);
    page.push_str(TAIL);
    undeclared(&mut page, "Of the database", Section::Db, DbOptions::TEXT);
    undeclared(&mut page, "Of column families", Section::Cf, CfOptions::TEXT);
    undeclared(&mut page, "Of tables", Section::Table, BlockBasedOptions::TEXT);
    page
}

#[test]
fn changeable_options_are_read_where_they_change() {
    fn walk(dir: &Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(dir).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                walk(&path, found);
            } else if let Ok(text) = std::fs::read_to_string(&path) {
                for option in DbOptions::TEXT.iter().filter(|o| o.kind.is_mutable()) {
                    let stale = format!("opts.{}", option.name);
                    let is_whole = |after: &str| !after.starts_with(|c: char| c.is_alphanumeric() || c == '_');
                    if text.match_indices(&stale).any(|(at, _)| is_whole(&text[at + stale.len()..])) {
                        found.push(format!("{}: {stale}", path.display()));
                    }
                }
            }
        }
    }
    let mut found = Vec::new();
    walk(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/db"), &mut found);
    assert!(found.is_empty(), "what `set_db_options` changes is read from `live()`: {found:#?}");
}

#[test]
fn options_page_has_every_option() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/options.md");
    let page = page();
    if std::env::var_os("ROCKMILL_WRITE_DOCS").is_some() {
        std::fs::write(&path, &page).expect("the page can be written");
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    let missing: Vec<&str> = page.lines().filter(|l| !found.lines().any(|f| f == *l)).take(5).collect();
    assert!(found == page, "docs/options.md is not up to date; make it anew with `{HOW}`; it lacks: {missing:#?}");
}
